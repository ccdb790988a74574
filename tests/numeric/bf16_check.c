/*
 * The whole step of a small model in bf16 on the CPU. Finite differences see nothing through
 * roundings, so the same source is linked with the model's fp32 tree, where it writes losses and
 * gradients into a file, and then with its bf16 tree, where it reads them. Both have the same
 * weights, which are bf16, and every token goes to every expert: no choice can fall differently.
 *
 * Arguments: seed, file. buffers.h, made from the manifest, lists the tree's bf16 buffers.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "layout.h"
#include "model.h"
#include "place.h"

const char om_manifest[] = "", om_plan[] = "";

static const struct {
	const char *name;
	uint64_t off, bytes, stride, layers;
} buffers[] = {
#include "buffers.h"
	{ "residual stream", OM_OFF_stream, OM_MICRO *OM_SEQ *OM_D_MODEL * 4, OM_STRIDE_stream,
	    OM_N_LAYERS + 1 },
};

/*
 * A bf16 errs by 2^-9 at most. The longest way into a gradient, forward and back through two
 * layers, has some 50 roundings, of either sign: sqrt(50) 2^-9 is 1.4 %, of the length of all
 * gradients at most thrice that. Those of queries and keys are what is left of larger numbers, as
 * softmax's slope subtracts their mean: 15 %, where a term that is missing or twice there is tens
 * of percent. The loss is a mean over tokens of what was rounded on half that way.
 */
static const double all_tolerance = 0.05, grad_tolerance = 0.15, loss_tolerance = 0.01;

enum { PARTS = 2 }; /* microbatches */
static unsigned char *arena;
static int passed, failed;
static uint64_t rng;

static double
uniform(void)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (double)(rng >> 11) / 9007199254740992.0;
}

static void
expect(int ok, const char *what, double got, double want)
{
	if (ok) {
		passed++;
		return;
	}
	failed++;
	printf("FAIL %s: got %.9g, want %.9g\n", what, got, want);
}

/* To eight bits, by arithmetic; of normal numbers. */
static float
rounded(float x)
{
	int e;

	frexp((double)x, &e);
	return (float)ldexp(nearbyint(ldexp((double)x, 8 - e)), e - 8);
}

static uint64_t
elements(const struct om_param *p)
{
	return p->numel * p->nlayers * (p->experts ? p->experts : 1);
}

/* How many of n numbers are no bf16, or none at all. */
static uint64_t
others(const float *x, uint64_t n)
{
	uint64_t count = 0;

	for (uint64_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, &x[i], sizeof bits);
		count += (bits & 0xffff) != 0 || !isfinite(x[i]);
	}
	return count;
}

static void
check_buffers(const char *when)
{
	char what[200];

	for (size_t b = 0; b < sizeof buffers / sizeof *buffers; b++)
		for (uint64_t l = 0; l < buffers[b].layers; l++) {
			uint64_t n =
			    others((float *)(arena + buffers[b].off + l * buffers[b].stride),
				buffers[b].bytes / 4);
			snprintf(what, sizeof what, "%s, %s of layer %d: not bf16", when,
			    buffers[b].name, (int)l);
			expect(n == 0, what, (double)n, 0);
		}
}

/* One microbatch, the first of a step or added to it. */
static void
microbatch(const int32_t *ids, bool first)
{
	uint64_t n = om_models[0].micro * om_models[0].seq;

	memcpy(arena + om_models[0].token_off, ids, n * 4);
	memcpy(arena + om_models[0].label_off, ids + n, n * 4);
	om_models[0].pass[OM_FORWARD](arena, 0, first ? OM_FIRST : 0);
	om_models[0].pass[OM_BACKWARD](arena, 0, first ? OM_FIRST : 0);
}

static void
update(double lr, double step)
{
	double *ctl = (double *)(arena + om_models[0].ctl_off);

	ctl[OM_LR] = lr;
	ctl[OM_BIAS1] = 1 - pow(om_models[0].beta1, step);
	ctl[OM_BIAS2] = 1 - pow(om_models[0].beta2, step);
	ctl[OM_NORM2] = 0;
	ctl[OM_COEF] = 1;
	ctl[OM_LOSS_LIMIT] = ctl[OM_NORM_LIMIT] = INFINITY;
	om_models[0].update(arena);
}

/*
 * Steps of 1e-5 on weights from 1/8 to 1/4, which lie 2^-10 apart, and whose masters start on them:
 * one leaves the weight, a hundred do not. Only where there is a gradient.
 */
static void
check_masters(void)
{
	uint64_t eligible = 0, still = 0, moved = 0, gone = 0, wrong = 0;
	unsigned char *before = malloc(om_models[0].arena_bytes);

	memcpy(before, arena, om_models[0].arena_bytes);
	for (int step = 1; step <= 100; step++) {
		update(1e-5, step);
		for (uint32_t i = 0; (step == 1 || step == 100) && i < om_models[0].nparams; i++) {
			const struct om_param *p = &om_models[0].param[i];
			const float *w = (float *)(arena + p->weight);
			const float *master = (float *)(arena + p->master);
			const float *old = (float *)(before + p->weight);
			for (uint64_t j = 0; j < elements(p); j++) {
				uint64_t k = place(p, j);
				float size = fabsf(old[k]);
				wrong += w[k] != rounded(master[k]);
				if (size < 0.13f || size > 0.24f ||
				    ((float *)(before + p->grad))[k] == 0)
					continue;
				eligible += step == 1;
				still += step == 1 && w[k] == old[k];
				moved += step == 1 && master[k] != old[k];
				gone += step == 100 && w[k] != old[k];
			}
		}
	}
	expect(wrong == 0, "a weight is its master's rounding", (double)wrong, 0);
	expect(eligible > 100, "weights to look at", (double)eligible, 100);
	expect(still == eligible, "one small step leaves the weights", (double)still,
	    (double)eligible);
	expect(moved == eligible, "it moves the masters", (double)moved, (double)eligible);
	/* the embedding goes at half the rate, and halfway there nothing is reached yet */
	expect(gone > eligible / 2, "a hundred move the weights", (double)gone, (double)eligible);
	free(before);
}

int
main(int argc, char **argv)
{
	uint64_t n = om_models[0].micro * om_models[0].seq, ngrad = om_models[0].grad_bytes / 4;
	int32_t *ids = malloc(PARTS * 2 * n * sizeof *ids);
	float *grad[PARTS], *want = malloc(om_models[0].grad_bytes);
	double loss[PARTS], want_loss;
	bool bf16 = om_models[0].param[0].master != OM_NO_MASTER;
	FILE *f = fopen(argc > 2 ? argv[2] : "", bf16 ? "rb" : "wb");

	if (!f)
		return 1;
	rng = strtoull(argv[1], NULL, 10);
	arena = malloc(om_models[0].arena_bytes);
	memset(arena, 0xff, om_models[0].arena_bytes); /* NaN, and no bf16 */
	memset(arena + om_models[0].weight_off, 0, om_models[0].weight_bytes);
	memset(arena + om_models[0].state_off, 0, om_models[0].state_bytes);
	memset(arena + om_models[0].grad_off, 0, om_models[0].grad_bytes);
	((double *)(arena + om_models[0].ctl_off))[OM_PER_LABEL] = 1;
	for (uint32_t i = 0; i < om_models[0].nparams; i++) {
		const struct om_param *p = &om_models[0].param[i];
		for (uint64_t k = 0; k < elements(p); k++) {
			float x =
			    rounded((float)((p->init == OM_ONE) +
					    (uniform() - 0.5) * (p->init == OM_ONE ? 0.5 : 0.6)));
			((float *)(arena + p->weight))[place(p, k)] = x;
			if (bf16)
				((float *)(arena + p->master))[place(p, k)] = x;
			((float *)(arena + p->grad))[place(p, k)] = NAN;
		}
	}
	for (uint64_t i = 0; i < PARTS * 2 * n; i++)
		ids[i] = (int32_t)(uniform() * (double)om_models[0].vocab);
	om_models[0].init(arena);
	for (int k = 0; k < PARTS; k++) {
		om_models[0].zero(arena);
		microbatch(ids + (uint64_t)k * 2 * n, true);
		loss[k] = *(double *)(arena + om_models[0].loss_off);
		grad[k] = malloc(om_models[0].grad_bytes);
		memcpy(grad[k], arena + om_models[0].grad_off, om_models[0].grad_bytes);
	}
	if (!bf16) {
		for (int k = 0; k < PARTS; k++)
			if (fwrite(&loss[k], sizeof loss[k], 1, f) != 1 ||
			    fwrite(grad[k], sizeof **grad, ngrad, f) != ngrad)
				return 1;
		return fclose(f) != 0;
	}

	check_buffers("after a step");
	for (int k = 0; k < PARTS; k++) {
		if (fread(&want_loss, sizeof want_loss, 1, f) != 1 ||
		    fread(want, sizeof *want, ngrad, f) != ngrad)
			return 1;
		double off = fabs(loss[k] - want_loss) / want_loss;
		double all = 0, all_length = 0;
		expect(off < loss_tolerance && off > 0, "loss", loss[k], want_loss);
		for (uint32_t i = 0; i < om_models[0].nparams; i++) {
			const struct om_param *p = &om_models[0].param[i];
			const uint64_t first = (p->grad - om_models[0].grad_off) / 4;
			double diff = 0, length = 0;
			for (uint64_t e = 0; e < elements(p); e++) {
				uint64_t j = first + place(p, e);
				double d = (double)grad[k][j] - (double)want[j];
				diff += d * d;
				length += (double)want[j] * (double)want[j];
			}
			all += diff;
			all_length += length;
			diff = sqrt(diff / length);
			expect(diff < grad_tolerance && diff > 1e-4, p->name, diff, 0);
		}
		all = sqrt(all / all_length);
		expect(all < all_tolerance, "all gradients", all, 0);
	}
	/* sums are fp32: of two microbatches the sum of each one's, and no bf16 themselves */
	double any = 0, unrounded = 0;
	om_models[0].zero(arena);
	for (int k = 0; k < PARTS; k++)
		microbatch(ids + (uint64_t)k * 2 * n, k == 0);
	for (uint32_t i = 0; i < om_models[0].nparams; i++) {
		const struct om_param *p = &om_models[0].param[i];
		const float *sum = (float *)(arena + p->grad);
		const uint64_t first = (p->grad - om_models[0].grad_off) / 4;
		double worst = 0, scale = 0;
		for (uint64_t k = 0; k < elements(p); k++) {
			uint64_t j = place(p, k);
			double both = (double)grad[0][first + j] + (double)grad[1][first + j];
			worst = fmax(worst, fabs((double)sum[j] - both));
			scale = fmax(scale, fabs(both));
			any += both != 0;
			unrounded += (double)others(&sum[j], 1);
		}
		expect(worst <= 1e-6 * scale, p->name, worst, 1e-6 * scale);
	}
	expect(unrounded > 0.9 * any, "gradients are not rounded", unrounded, any);
	check_masters();
	om_models[0].zero(arena);
	microbatch(ids, true);
	check_buffers("after a hundred updates");
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
