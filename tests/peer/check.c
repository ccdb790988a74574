/*
 * A generated trainer against Hugging Face's own implementation: weights of a fixture go in;
 * logits, loss, balance losses, every gradient and one AdamW step must come out as make.py recorded
 * them. Linked with an emitted tree in place of its main.c. Usage: check fixture.safetensors
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "hf.h"
#include "layout.h"
#include "model.h"

const char om_manifest[] = "", om_plan[] = "";

/* A safetensors file in memory. */
struct store {
	char *header;
	const unsigned char *data;
};
static struct store fixture, given, exported;
static unsigned char *arena;
static int passed, failed;
static double gradient_scale; /* of the whole model */

static void
expect(int ok, const char *what, double got, double want)
{
	passed += ok;
	failed += !ok;
	if (!ok && failed < 20)
		printf("FAIL %s: got %.9g, want %.9g\n", what, got, want);
}

static struct store
read_store(const char *path)
{
	FILE *f = fopen(path, "rb");
	char *file;
	long n;
	uint64_t h;
	struct store s;

	if (!f || fseek(f, 0, SEEK_END) || (n = ftell(f)) < 8 || fseek(f, 0, SEEK_SET) ||
	    !(file = malloc((size_t)n)) || fread(file, 1, (size_t)n, f) != (size_t)n) {
		printf("FAIL cannot read %s\n", path);
		exit(1);
	}
	fclose(f);
	memcpy(&h, file, 8);
	s.header = malloc(h + 1);
	memcpy(s.header, file + 8, h);
	s.header[h] = 0;
	s.data = (const unsigned char *)file + 8 + h;
	return s;
}

/* A tensor of 4-byte numbers and how many; NULL: there is none. */
static const void *
tensor(const struct store *st, const char *name, uint64_t *n)
{
	char key[200];
	unsigned long long from, to;

	snprintf(key, sizeof key, "\"%s\":", name);
	const char *s = strstr(st->header, key), *off = s ? strstr(s, "\"data_offsets\":[") : NULL;
	if (!off || sscanf(off + 16, "%llu,%llu", &from, &to) != 2)
		return NULL;
	*n = (to - from) / 4;
	return st->data + from;
}

static double
largest(const float *x, uint64_t n)
{
	double m = 0;

	for (uint64_t i = 0; i < n; i++)
		m = fmax(m, fabs(x[i]));
	return m;
}

static void
full_name(char *out, const struct om_param *p, uint32_t layer, uint32_t expert)
{
	for (const char *s = p->name; *s; s++)
		if (*s == '%')
			out += sprintf(out, "%u", *++s == 'l' ? layer : expert);
		else
			*out++ = *s;
	*out = 0;
}

/* Whose names and forms the fixture has. */
static struct om_hf_model config;

/* What the fixture has under a key, in our form; NULL: nothing. scale: of the numbers. */
static const float *
ours(const struct store *st, const char *key, const struct om_hf_item *item, double scale,
    uint64_t *n)
{
	const float *x = tensor(st, key, n);
	double *y = x ? malloc((*n + 1) * sizeof *y) : NULL;
	float *z = x ? malloc((*n + 1) * sizeof *z) : NULL;

	if (!x || *n % item->block)
		return NULL;
	for (uint64_t i = 0; i < *n; i++)
		y[i] = scale * (double)x[i];
	om_hf_form(item, y, *n, true);
	for (uint64_t i = 0; i < *n; i++)
		z[i] = (float)y[i];
	free(y);
	return z;
}

enum what { LOAD, GRADIENT, STEP };

/*
 * Goes through all tensors of the checkpoint: fills in weights, or compares gradients or stepped
 * weights.
 */
static void
each_tensor(enum what what)
{
	uint32_t count = om_models[0].nparams + (what == LOAD ? om_models[0].nbuffers : 0);

	for (uint32_t i = 0; i < count; i++) {
		const struct om_param *p = &om_models[0].param[i];
		uint32_t experts = p->experts ? p->experts : 1;
		for (uint32_t l = 0; l < p->nlayers; l++)
			for (uint32_t e = 0; e < experts; e++) {
				uint64_t at = l * p->stride + e * p->numel, n = 0, ng;
				float *w = (float *)(arena + p->weight) + at,
				      *g = (float *)(arena + p->grad) + at;
				char own[150], *name, key[170];
				struct om_hf_item item = { .rows = 1, .columns = 1, .block = 1 };
				full_name(own, p, p->layer ? p->layer[l] : 0, e);
				name = om_hf_name(config.family, own, &item.form);
				if (item.form == OM_HF_PAIRS) {
					item.rows = (uint64_t)config.v[OM_HF_head_dim];
					item.block = item.rows * (item.columns = p->dim[1]);
				}
				/* Adam's first step knows no size of a gradient */
				bool twice = item.form == OM_HF_DOUBLE;
				if (what == STEP && twice)
					continue;
				if (what == LOAD) {
					/*
					 * exported again, the weights are those that were imported,
					 * to the bit
					 */
					const float *in = tensor(&given, name, &n);
					const float *out = tensor(&exported, name, &ng);
					bool same = in && out && n == p->numel && ng == n &&
						    !memcmp(in, out, n * sizeof *in);
					expect(same, name, 0, 0);
					if (same)
						memcpy(w, ours(&exported, name, &item, 1, &n),
						    n * sizeof *w);
					continue;
				}
				snprintf(key, sizeof key, "%s.%s",
				    what == GRADIENT ? "grad" : "step", name);
				/* theirs is half of ours where their weights are twice ours */
				double half = twice ? 4 : 1;
				const float *want = ours(&fixture, key, &item, half, &n);
				expect(want && n == p->numel, key, (double)n, (double)p->numel);
				if (!want || n != p->numel)
					continue;
				snprintf(key, sizeof key, "grad.%s", name);
				const float *grad = ours(&fixture, key, &item, half, &ng);
				/* a gradient that cancels out is noise of the others' size */
				double worst = 0;
				double scale = fmax(largest(grad, n), 1e-3 * gradient_scale);
				for (uint64_t k = 0; k < n; k++) {
					/*
					 * the first step follows a gradient's sign: below fp32
					 * noise it says nothing
					 */
					if (what == STEP && fabs(grad[k]) < 1e-5 * scale)
						continue;
					double err =
					    fabs((what == GRADIENT ? g[k] : w[k]) - want[k]);
					worst = fmax(worst, what == GRADIENT
								? err / (scale + 1e-12)
								: err / fmax(1, fabs(want[k])));
				}
				/* an expert without tokens has no gradient at all */
				expect(worst <= (what == GRADIENT ? 1e-4 : 1e-5), key, worst, 0);
			}
	}
}

int
main(int argc, char **argv)
{
	enum { T = OM_MICRO * OM_SEQ };
	uint64_t n;
	const int32_t *tokens;

	if (argc != 4)
		return 2;
	fixture = read_store(argv[1]);
	given = read_store(argv[2]);
	exported = read_store(argv[3]);
	om_hf_own(&om_models[0], "check", &config);
	arena = calloc(1, om_models[0].arena_bytes);
	each_tensor(LOAD);
	for (const char *g = fixture.header; (g = strstr(g, "\"grad.")) != NULL; g++) {
		char name[200];
		snprintf(name, sizeof name, "%.*s", (int)strcspn(g + 1, "\""), g + 1);
		const float *x = tensor(&fixture, name, &n);
		gradient_scale = fmax(gradient_scale, largest(x, n));
	}
	tokens = tensor(&fixture, "tokens", &n);
	expect(
	    tokens && n == OM_MICRO * (OM_SEQ + 1), "tokens", (double)n, OM_MICRO * (OM_SEQ + 1));
	for (uint64_t t = 0; tokens && t < T; t++) {
		const int32_t *at = tokens + t / OM_SEQ * (OM_SEQ + 1) + t % OM_SEQ;
		((int32_t *)(arena + om_models[0].token_off))[t] = at[0];
		((int32_t *)(arena + om_models[0].label_off))[t] = at[1];
	}
	om_models[0].init(arena);
	((double *)(arena + om_models[0].ctl_off))[OM_PER_LABEL] = 1;
	om_models[0].zero(arena);
	om_models[0].pass[OM_FORWARD](arena, 0, OM_FIRST | OM_LAST);

	/* logits from what goes into the head */
	const float *h = (const float *)(arena + OM_OFF_head_in), *head = NULL;
	for (uint32_t i = 0; i < om_models[0].nparams; i++)
		if (!strcmp(om_models[0].param[i].name, "lm_head.weight") ||
		    (!head && !strcmp(om_models[0].param[i].name, "model.embed_tokens.weight")))
			head = (const float *)(arena + om_models[0].param[i].weight);
	const float *logits = tensor(&fixture, "logits", &n);
	double worst = 0, scale = largest(logits, n);
	for (uint64_t t = 0; t < T; t++)
		for (uint64_t v = 0; v < OM_VOCAB; v++) {
			double s = 0;
			for (uint64_t c = 0; c < OM_D_MODEL; c++)
				s += (double)h[t * OM_D_MODEL + c] * head[v * OM_D_MODEL + c];
			worst = fmax(worst, fabs(s - logits[t * OM_VOCAB + v]) / scale);
		}
	expect(worst <= 1e-4, "logits", worst, 0);

	om_models[0].pass[OM_BACKWARD](arena, 0, OM_FIRST | OM_LAST);
	double loss = *(double *)(arena + om_models[0].loss_off),
	       want = *(const float *)tensor(&fixture, "loss", &n);
	expect(fabs(loss - want) <= 1e-5 * want, "loss", loss, want);
	bool balanced = tensor(&fixture, "balance", &n) != NULL; /* where it was computed */
	for (uint32_t m = 0, k = 0; balanced && m < om_models[0].nmoe; m++)
		for (uint32_t l = 0; l < om_models[0].moe[m].nlayers; l++, k++) {
			double b = *(double *)(arena + om_models[0].moe[m].aux +
					       l * om_models[0].moe[m].aux_stride);
			want = ((const float *)tensor(&fixture, "balance", &n))[k];
			expect(fabs(b - want) <= 1e-5 * want, "balance loss", b, want);
		}
	each_tensor(GRADIENT);

	double *ctl = (double *)(arena + om_models[0].ctl_off);
	memcpy(ctl,
	    (double[OM_N_CTL]){ [OM_LR] = 1e-2,
		[OM_BIAS1] = 1 - 0.9,
		[OM_BIAS2] = 1 - 0.95,
		[OM_COEF] = 1,
		[OM_LOSS_LIMIT] = INFINITY,
		[OM_NORM_LIMIT] = INFINITY },
	    OM_N_CTL * sizeof *ctl);
	om_models[0].update(arena);
	each_tensor(STEP);
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
