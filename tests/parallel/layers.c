/*
 * A tiny trainer written by hand, in any layout: x = emb[token]; x += W[l] x for each of 4 layers;
 * logits = head x. -DDATA=, -DPIPELINE= ranks, -DCHUNKS= of each. Layers have the loads and losses
 * of routers that they do not have, for the metrics. OM_TEST_NAP=N sleeps N us a microbatch,
 * OM_TEST_SLOW=N those of rank 1 alone, OM_TEST_MEET=1 has the data ranks of a stage meet in it, as
 * expert ranks do, OM_TEST_NAN=N makes the loss of this process' Nth step NaN.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/om_rt.h"

#ifndef DATA
#define DATA 1
#define PIPELINE 1
#define CHUNKS 1
#endif
enum {
	V = 256,
	D = 8,
	S = 16,
	MICRO = 2,
	GLOBAL = 16,
	L = 4,
	T = MICRO * S,
	M = GLOBAL / MICRO / DATA, /* microbatches of a rank */
	EACH = L / PIPELINE / CHUNKS,
	OWN = L / PIPELINE,
	ALONE = PIPELINE * CHUNKS == 1,
	SLOTS = ALONE ? 1 : CHUNKS * M,
	N = (2 * V * D + OWN * D * D + DATA - 1) / DATA * DATA, /* head and embedding everywhere */
	PART = N / DATA,
	P_EMB = 0,
	P_HEAD = V * D,
	P_W = 2 * V * D,
	STATS = 2 + OWN * 4 /* loss[2], then per layer load[2], aux[2] */
};
enum {
	W,
	G = W + N * 4,
	M1 = G + N * 4,
	M2 = M1 + PART * 4,
	STAT = (M2 + PART * 4 + 63) / 64 * 64
};
enum { CTL = STAT + STATS * 8, TOK = CTL + 8 * OM_N_CTL, LAB = TOK + T * 4, DX = LAB + T * 4 };
enum { HOP = DX + T * D * 4, X = HOP + CHUNKS * T * D * 4 }; /* X: float[SLOTS][EACH + 1][T][D] */
enum { STRIDE = (EACH + 1) * T * D * 4, END = X + SLOTS * STRIDE };

static struct om_model model[PIPELINE];
static uint32_t layer[PIPELINE][OWN];
static struct om_chunk chunk[PIPELINE][CHUNKS];
static struct om_action action[PIPELINE][CHUNKS * M * 6];
static struct om_step step[PIPELINE];

static int
chunk_of(int slot)
{
	return ALONE ? 0 : slot / M;
}

static bool
is_head(int c)
{
	return om_rank(OM_PIPELINE) == PIPELINE - 1 && c == CHUNKS - 1;
}

static void
nothing(unsigned char *arena)
{
	(void)arena;
}

static void
zero(unsigned char *arena)
{
	memset(arena + STAT, 0, STATS * 8);
}

/* Of token t: the logits' log-sum-exp, and p the softmax. */
static double
softmax(const float *w, const float *x, double *p)
{
	double sum = 0;

	for (int v = 0; v < V; v++) {
		p[v] = 0;
		for (int i = 0; i < D; i++)
			p[v] += (double)w[P_HEAD + v * D + i] * (double)x[i];
		sum += p[v] = exp(p[v]);
	}
	for (int v = 0; v < V; v++)
		p[v] /= sum;
	return log(sum);
}

static void
pass(unsigned char *arena, int slot, bool train)
{
	const float *w = (const float *)(arena + W);
	const int32_t *tok = (const int32_t *)(arena + TOK), *lab = (const int32_t *)(arena + LAB);
	float *x = (float *)(arena + X + (size_t)slot * STRIDE);
	double *stat = (double *)(arena + STAT), p[V];
	const double weight = ((const double *)(arena + CTL))[OM_PER_LABEL];
	const char *nap = getenv("OM_TEST_NAP"), *slow = getenv("OM_TEST_SLOW");
	int c = chunk_of(slot);

	if (nap)
		usleep((useconds_t)atoi(nap));
	if (slow && om_rank(OM_WORLD) == 1)
		usleep((useconds_t)atoi(slow));
	if (getenv("OM_TEST_MEET"))
		om_all_sum_f64(OM_DATA, "meeting", &(double){ 0 }, 1);
	for (int t = 0; t < T; t++) {
		if (om_rank(OM_PIPELINE) == 0 && c == 0)
			memcpy(x + t * D, w + P_EMB + tok[t] * D, D * sizeof *x);
		for (int l = 0; l < EACH; l++) {
			const float *in = x + (l * T + t) * D,
				    *mat = w + P_W + (c * EACH + l) * D * D;
			float *out = x + ((l + 1) * T + t) * D;
			int64_t load;
			double *of = stat + 2 + (c * EACH + l) * 4;

			for (int i = 0; i < D; i++) {
				double y = (double)in[i];

				for (int j = 0; j < D; j++)
					y += (double)mat[i * D + j] * (double)in[j];
				out[i] = (float)y;
			}
			memcpy(&load, of + (tok[t] & 1), 8);
			load += train;
			memcpy(of + (tok[t] & 1), &load, 8);
			of[2] += train * (tok[t] % 7) / (double)T;
			of[3] += train * (tok[t] % 5) / (double)T;
		}
		if (is_head(c) && lab[t] >= 0) {
			double z = softmax(w, x + (EACH * T + t) * D, p);

			stat[0] -= weight * log(p[lab[t]]) / (GLOBAL * S);
			stat[1] += weight * z * z / (GLOBAL * S);
		}
	}
}

static void
forward(unsigned char *arena, int slot, int of)
{
	const char *nan = getenv("OM_TEST_NAN");
	static int step;

	step += chunk_of(slot) == 0 && (of & OM_FIRST);
	pass(arena, slot, true);
	if (nan && atoi(nan) == step && is_head(chunk_of(slot)))
		*(double *)(arena + STAT) = NAN;
}

static void
eval(unsigned char *arena, int slot)
{
	pass(arena, slot, false);
}

static void
backward(unsigned char *arena, int slot, int of)
{
	const float *w = (const float *)(arena + W);
	float *g = (float *)(arena + G), *dx = (float *)(arena + DX);
	const int32_t *tok = (const int32_t *)(arena + TOK), *lab = (const int32_t *)(arena + LAB);
	const float *x = (const float *)(arena + X + (size_t)slot * STRIDE);
	const double weight = ((const double *)(arena + CTL))[OM_PER_LABEL];
	double p[V];
	int c = chunk_of(slot);

	/* what this chunk adds to */
	if (of & OM_FIRST)
		memset(g + P_W + c * EACH * D * D, 0, EACH * D * D * sizeof *g);
	if ((of & OM_FIRST) && is_head(c))
		memset(g + P_HEAD, 0, V * D * sizeof *g);
	if ((of & OM_FIRST) && om_rank(OM_PIPELINE) == 0 && c == 0)
		memset(g + P_EMB, 0, V * D * sizeof *g);
	for (int t = 0; t < T; t++) {
		double d[D] = { 0 };

		if (is_head(c)) {
			const float *in = x + (EACH * T + t) * D;

			softmax(w, in, p);
			for (int v = 0; v < V; v++)
				for (int i = 0; i < D; i++) {
					double dz = lab[t] < 0 ? 0
							       : weight * (p[v] - (v == lab[t])) /
								     (GLOBAL * S);

					g[P_HEAD + v * D + i] += (float)(dz * (double)in[i]);
					d[i] += dz * (double)w[P_HEAD + v * D + i];
				}
		} else {
			for (int i = 0; i < D; i++)
				d[i] = (double)dx[t * D + i];
		}
		for (int l = EACH - 1; l >= 0; l--) {
			const float *in = x + (l * T + t) * D;
			const int mat = P_W + (c * EACH + l) * D * D;
			double before[D];

			memcpy(before, d, sizeof d);
			for (int i = 0; i < D; i++)
				for (int j = 0; j < D; j++) {
					g[mat + i * D + j] += (float)(before[i] * (double)in[j]);
					d[j] += before[i] * (double)w[mat + i * D + j];
				}
		}
		for (int i = 0; i < D; i++)
			dx[t * D + i] = (float)d[i];
		if (om_rank(OM_PIPELINE) == 0 && c == 0)
			for (int i = 0; i < D; i++)
				g[P_EMB + tok[t] * D + i] += (float)d[i];
	}
}

static void
update(unsigned char *arena)
{
	float *w = (float *)(arena + W), *g = (float *)(arena + G);
	float *m = (float *)(arena + M1), *v = (float *)(arena + M2);
	double *ctl = (double *)(arena + CTL), *stat = (double *)(arena + STAT);
	uint32_t first = om_rank(OM_DATA) * PART;

	om_reduce_scatter(OM_DATA, "gradients", g, N, sizeof *g);
	om_all_sum_f64(OM_WORLD, "loss", stat, 2);
	for (int l = 0; l < OWN; l++) {
		om_all_sum_i64(OM_DATA, "loads", (int64_t *)(void *)(stat + 2 + l * 4), 2);
		om_all_sum_f64(OM_DATA, "aux", stat + 2 + l * 4 + 2, 2);
	}
	for (int i = 0; i < PART; i++)
		ctl[OM_NORM2] += (double)g[first + i] * (double)g[first + i];
	om_all_sum_f64(OM_WORLD, "norm", &ctl[OM_NORM2], 1);
	for (int i = 0; i < PART; i++) {
		double d = (double)g[first + i];

		m[i] = (float)(0.9 * (double)m[i] + 0.1 * d);
		v[i] = (float)(0.95 * (double)v[i] + 0.05 * d * d);
		w[first + i] -= (float)(ctl[OM_LR] * (double)m[i] / ctl[OM_BIAS1] /
					(sqrt((double)v[i] / ctl[OM_BIAS2]) + 1e-8));
	}
	om_all_gather(OM_DATA, "weights", w, N * 4);
}

/* Microbatch after microbatch through the chunks, and then back. */
static uint32_t
schedule(uint32_t stage, struct om_action *a)
{
	uint32_t n = 0;

	for (int back = 0; back < 2; back++)
		for (uint32_t i = 0; i < M; i++)
			for (uint32_t j = 0; j < CHUNKS; j++) {
				uint32_t c = back ? CHUNKS - 1 - j : j,
					 place = c * PIPELINE + stage;
				bool first = place == 0, last = place == PIPELINE * CHUNKS - 1;
				struct om_action before = { .phase =
								back ? OM_BACKWARD : OM_FORWARD,
					.chunk = (uint8_t)c,
					.slot = (uint16_t)(c * M + i),
					.microbatch = i,
					.stage = (uint16_t)((stage + PIPELINE - 1) % PIPELINE),
					.tag = (uint16_t)(2 * (place - 1) + (uint32_t)back) };
				struct om_action after = before, self = before;

				after.stage = (uint16_t)((stage + 1) % PIPELINE);
				after.tag = (uint16_t)(2 * place + (uint32_t)back);
				before.at = back ? DX : X + before.slot * STRIDE;
				after.at = back ? DX : X + after.slot * STRIDE + EACH * T * D * 4;
				before.kind = back ? OM_SEND : OM_RECEIVE;
				after.kind = back ? OM_RECEIVE : OM_SEND;
				if (back ? !last : !first)
					a[n++] = back ? after : before;
				a[n++] = self;
				if (back ? !first : !last)
					a[n++] = back ? before : after;
			}
	return n;
}

int
main(int argc, char **argv)
{
	static const struct om_param_group param_group = { .lr_scale = 1 };
	static const struct om_bucket bucket = { OM_DATA, W, G, N, 1 };
	static struct om_param param[PIPELINE][2 + OWN];
	static struct om_moe moe[PIPELINE];

	for (uint32_t s = 0; s < PIPELINE; s++) {
		const struct om_param at[] = {
			{ .name = "emb", .at = P_EMB, .numel = V * D, .dim = { V, D } },
			{ .name = "head", .at = P_HEAD, .numel = V * D, .dim = { V, D } },
			{ .name = "layer.%l.w", .at = P_W, .numel = D * D, .dim = { D, D } },
		};
		uint32_t n = 0;

		for (uint32_t i = 0; i < 2 + OWN; i++) {
			struct om_param *p = &param[s][n];

			if ((i == 0 && s) || (i == 1 && s + 1 < PIPELINE))
				continue;
			n++;
			*p = at[i < 2 ? i : 2];
			p->at += i < 2 ? 0 : (i - 2) * D * D;
			p->weight = W + p->at * 4;
			p->grad = G + p->at * 4;
			p->m = M1 + p->at * 4;
			p->v = M2 + p->at * 4;
			p->ndims = 2;
			p->nlayers = 1;
			p->layer = i < 2 ? NULL : &layer[s][i - 2];
		}
		for (uint32_t i = 0; i < OWN; i++)
			layer[s][i] = (i / EACH * PIPELINE + s) * EACH + i % EACH;
		for (uint32_t c = 0; c < CHUNKS; c++)
			chunk[s][c] = (struct om_chunk){
				.slot = c * M, .slots = M, .hop = HOP + c * T * D * 4
			};
		step[s] = (struct om_step){ M, action[s], schedule(s, action[s]) };
		moe[s] = (struct om_moe){ .load = STAT + 16,
			.load_stride = 32,
			.aux = STAT + 32,
			.aux_stride = 32,
			.layer = layer[s],
			.nlayers = OWN,
			.experts = 2,
			.top_k = 1,
			.load_balance = 0.01,
			.z_loss = 0.001 };
		model[s] = (struct om_model){
			.abi = OM_ABI,
			.name = "layers",
			.target = "cpu",
			.version = "0",
			.fingerprint = "1a7e55f00d000000",
			.manifest = "manifest: 1\n",
			.weights = "fp32",
			.grads = "fp32",
			.optimizer = "fp32",
			.moments = "fp32",
			.vocab = V,
			.seq = S,
			.micro = MICRO,
			.global = GLOBAL,
			.layers = L,
			.microbatches = M,
			.params_total = 2 * V * D + L * D * D,
			.params_active = 2 * V * D + L * D * D,
			.flops_token = 6 * (V * D + L * D * D),
			.real = 4,
			.weight_size = 4,
			.moment_size = 4,
			.init_std = 0.1,
			.beta1 = 0.9,
			.beta2 = 0.95,
			.mesh = om_mesh((uint64_t[OM_N_AXES]){
			    [OM_AXIS_EXPERT_DATA] = DATA, [OM_AXIS_PIPELINE] = PIPELINE }),
			.stage = s,
			.step = ALONE ? NULL : &step[s],
			.nsteps = ALONE ? 0 : 1,
			.chunk = chunk[s],
			.nchunks = CHUNKS,
			.hop_bytes = T * D * 4,
			.arena_bytes = END,
			.weight_off = W,
			.weight_bytes = N * 4,
			.grad_off = G,
			.grad_bytes = N * 4,
			.state_off = M1,
			.state_bytes = 2 * PART * 4,
			.stat_off = STAT,
			.stat_bytes = STATS * 8,
			.token_off = TOK,
			.label_off = LAB,
			.ctl_off = CTL,
			.loss_off = STAT,
			.param = param[s],
			.nparams = n,
			.bucket = &bucket,
			.nbuckets = 1,
			.param_group = &param_group,
			.nparam_groups = 1,
			.moe = &moe[s],
			.nmoe = 1,
			.init = nothing,
			.zero = zero,
			.pass = { forward, backward },
			.eval = eval,
			.update = update,
		};
	}
	return om_main(model, argc, argv);
}
