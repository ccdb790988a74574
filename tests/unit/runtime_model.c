/*
 * A tiny trainer written by hand in place of a generated one, to drive the runtime for real: a
 * bigram model whose token picks one of two "experts" in each of two layers, with AdamW. x =
 * emb[t]; in each layer x += W[l][t % 2] (norm[l] * x); logits = head x. Built with other sizes and
 * formats by -DTEST_....
 *
 * The environment breaks it on purpose: OM_TEST_NAN=N and OM_TEST_NORM=N make the loss or gradient
 * of this process' Nth step NaN, the norm by the gradient's element OM_TEST_AT; OM_TEST_FROM=N the
 * loss of it and all after it, OM_TEST_SPIKE=N multiplies its gradient by 1000, OM_TEST_SPOIL=N
 * leaves two of its weights NaN, OM_TEST_NAP=N sleeps N us a step, OM_TEST_PAUSE=N as long in
 * every microbatch from the second step on, OM_TEST_BAD=1 fails the self-test, OM_TEST_ARENA=N
 * asks for so large an arena, OM_TEST_ABI=1 is of another runtime, OM_TEST_TIED=1 says that the
 * head is the embedding, and has none, OM_TEST_NODECODE=1 that there is no decode program,
 * OM_TEST_PROMPT=1 that there is one for prompts,
 * OM_TEST_CUT=1 that routes are cut, as many as the first expert gets of those that the second one
 * does.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/om_rt.h"

#ifndef TEST_REAL
#define TEST_REAL float
#endif
#ifndef TEST_V
#define TEST_V 256
#endif
#ifndef TEST_S
#define TEST_S 16
#endif
#ifndef TEST_D
#define TEST_D 8
#endif
#ifndef TEST_NAME
#define TEST_NAME "bigram"
#endif
#ifndef TEST_SHARD
#define TEST_SHARD 10000 /* bytes: several shards */
#endif

#ifndef TEST_GLOBAL
#define TEST_GLOBAL 4
#endif

#define TEXT(x) TEXT_OF(x)
#define TEXT_OF(x) #x

typedef TEST_REAL real;
enum {
	V = TEST_V,
	D = TEST_D,
	S = TEST_S,
	MICRO = 2,
	GLOBAL = TEST_GLOBAL,
	L = 2,
	E = 2,
	T = MICRO * S,
	ROWS = 4,   /* sequences that generate goes on with at once */
	PROMPT = 4, /* tokens of prompts at once */
	EACH = 2    /* of them of one sequence */
};

/* elements of the stored parameters, and where each begins */
enum { N_EMB = V * D, N_NORM = L * D, N_EXP = L * E * D * D, N_HEAD = V * D };
enum {
	P_EMB = 0,
	P_NORM = P_EMB + N_EMB,
	P_EXP = P_NORM + N_NORM,
	P_HEAD = P_EXP + N_EXP,
	N = P_HEAD + N_HEAD
};
#define R (uint64_t)sizeof(real)
#define W_OFF (uint64_t)0
#define G_OFF (W_OFF + N * R)
#define M_OFF (G_OFF + N * R)
#define V_OFF (M_OFF + N * R)
#define STAT_OFF ((V_OFF + N * R + 63) / 64 * 64) /* loss[2], then per layer load[E], aux[2] */
#define STAT_BYTES (uint64_t)(16 + L * (E + 2) * 8)
#define CTL_OFF (STAT_OFF + STAT_BYTES)
#define TOK_OFF (CTL_OFF + 8 * OM_N_CTL)
#define LAB_OFF (TOK_OFF + T * 4)
#define X_OFF ((LAB_OFF + T * 4 + 63) / 64 * 64) /* real[L + 1][T][D] */
#define ROW_OFF (X_OFF + (L + 1) * T * D * R)    /* decode: token, position, sequence [ROWS] */
#define PROMPT_OFF (ROW_OFF + 3 * ROWS * 4)      /* the same of prompts */
#define LOGIT_OFF (PROMPT_OFF + 3 * PROMPT * 4)  /* logits [ROWS, V]; R divides it */
#define BEST_OFF (LOGIT_OFF + ROWS * V * R)      /* the likeliest [ROWS] */
#define SCORE_OFF ((BEST_OFF + ROWS * 4 + 63) / 64 * 64) /* real[T] */
#define END (SCORE_OFF + T * R)

#define PARAM(str, p, n, d0, d1, nd, lay, nl, ex, one, grp, b)                                   \
	{                                                                                        \
		.name = str, .weight = W_OFF + (p)*R, .grad = G_OFF + (p)*R, .m = M_OFF + (p)*R, \
		.v = V_OFF + (p)*R, .bucket = b, .stride = (ex ? ex : 1) * (n), .numel = n,      \
		.dim = { d0, d1 }, .ndims = nd, .layer = lay, .nlayers = nl, .experts = ex,      \
		.init = one ? OM_ONE : OM_NORMAL, .param_group = grp                             \
	}

static const uint32_t layer[] = { 0, 1 };
static const struct om_param_group param_group[] = { { .weight_decay = 0.1, .lr_scale = 1.0 },
	{ .weight_decay = 0.0, .lr_scale = 1.0 } };
static const struct om_param param[] = {
	PARAM("model.embed_tokens.weight", P_EMB, N_EMB, V, D, 2, NULL, 1, 0, false, 0, 0),
	PARAM("model.layers.%l.norm.weight", P_NORM, D, D, 0, 1, layer, L, 0, true, 1, 1),
	PARAM("model.layers.%l.mlp.experts.%e.weight", P_EXP, D *D, D, D, 2, layer, L, E, false, 0,
	    2),
	PARAM("lm_head.weight", P_HEAD, N_HEAD, V, D, 2, NULL, 1, 0, false, 0, 3),
};
static const struct om_bucket bucket[] = {
	{ .group = OM_DATA, .weight = W_OFF, .grad = G_OFF, .elems = N_EMB, .nlayers = 1 },
	{ .group = OM_DATA,
	    .weight = W_OFF + P_NORM * R,
	    .grad = G_OFF + P_NORM * R,
	    .elems = D,
	    .nlayers = L },
	{ .group = OM_DATA,
	    .weight = W_OFF + P_EXP * R,
	    .grad = G_OFF + P_EXP * R,
	    .elems = E * D * D,
	    .nlayers = L },
	{ .group = OM_DATA,
	    .weight = W_OFF + P_HEAD * R,
	    .grad = G_OFF + P_HEAD * R,
	    .elems = N_HEAD,
	    .nlayers = 1 },
};
static const uint32_t first[] = { P_EMB, P_NORM, P_EXP, P_HEAD, N };
static struct om_moe moe[] = {
	{ .load = STAT_OFF + 16,
	    .load_stride = (E + 2) * 8,
	    .aux = STAT_OFF + 16 + E * 8,
	    .aux_stride = (E + 2) * 8,
	    .layer = layer,
	    .nlayers = L,
	    .experts = E,
	    .top_k = 1,
	    .load_balance = 0.01,
	    .z_loss = 0.001 },
};
#define HEAD_Z 1e-3
static uint64_t step = 1; /* of this process; each ends with update() */

static uint64_t
env(const char *name)
{
	return getenv(name) ? strtoull(getenv(name), NULL, 10) : 0;
}

static double
check_good(uint64_t seed)
{
	return 1e-8 * (double)seed;
}

static double
check_head(uint64_t seed)
{
	return env("OM_TEST_BAD") && seed == 2 ? NAN : 1e-7;
}

static struct om_op op[] = {
	{ "bigram_fwd", 2.0 * T *D *(V + L * D), 4.0 * (V * D), check_good, 1e-6, 0, 0 },
	{ "bigram_bwd", 4.0 * T *D *(V + L * D), 8.0 * (V * D), check_head, 1e-6, 0, 0 },
	{ "adamw", 0, 7.0 * N * sizeof(real), NULL, 0, 0, 0 },
};

static void
done(int i, double since)
{
	if (om_profile) {
		op[i].seconds += om_now() - since;
		op[i].calls++;
	}
}

static void
init(unsigned char *arena)
{
	(void)arena;
}

static void
nap(uint64_t us)
{
	double until = om_now() + 1e-6 * (double)us;

	while (om_now() < until) /* signals do not cut it short */
		usleep(1000);
}

static void
zero(unsigned char *arena)
{
	memset(arena + STAT_OFF, 0, STAT_BYTES);
	nap(env("OM_TEST_NAP"));
}

/* Adds to the losses, and where train is set to the other statistics too. */
static void
losses(unsigned char *arena, bool train)
{
	const real *w = (const real *)(arena + W_OFF);
	real *x = (real *)(arena + X_OFF);
	const int32_t *tok = (const int32_t *)(arena + TOK_OFF),
		      *lab = (const int32_t *)(arena + LAB_OFF);
	double *loss = (double *)(arena + STAT_OFF), since = om_now();
	real *score = (real *)(arena + SCORE_OFF);
	const double weight = ((const double *)(arena + CTL_OFF))[OM_PER_LABEL];

	for (int t = 0; t < T; t++) {
		double sum = 0, own = 0;
		const int e = tok[t] % E;

		memcpy(x + t * D, w + P_EMB + tok[t] * D, D * sizeof *x);
		for (int l = 0; l < L; l++) {
			const real *in = x + (l * T + t) * D, *norm = w + P_NORM + l * D;
			const real *mat = w + P_EXP + (l * E + e) * D * D;
			real *out = x + ((l + 1) * T + t) * D;
			int64_t *load =
			    (int64_t *)(arena + moe->load + (uint64_t)l * moe->load_stride);
			double *aux = (double *)(arena + moe->aux + (uint64_t)l * moe->aux_stride);

			for (int i = 0; i < D; i++) {
				double y = (double)in[i];

				for (int j = 0; j < D; j++)
					y += (double)mat[i * D + j] * (double)(norm[j] * in[j]);
				out[i] = (real)y;
			}
			load[e] += train;
			aux[0] += train * 1.0 / T;
			aux[1] += train * 0.5 / T;
		}
		for (int v = 0; v < V; v++) {
			double z = 0;

			for (int i = 0; i < D; i++)
				z += (double)(w[P_HEAD + v * D + i] * x[(L * T + t) * D + i]);
			sum += exp(z);
			own = v == lab[t] ? z : own;
		}
		score[t] = 0;
		if (lab[t] < 0 || lab[t] >= V)
			continue;
		score[t] = (real)(log(sum) - own);
		loss[0] += weight * (log(sum) - own) / (GLOBAL * S);
		loss[1] += weight * log(sum) * log(sum) / (GLOBAL * S);
	}
	if (train && (env("OM_TEST_NAN") == step || env("OM_TEST_FROM") - 1 < step))
		*loss = NAN;
	done(0, since);
}

static void
forward(unsigned char *arena, int slot, int of)
{
	(void)of;
	(void)slot;
	nap(step > 1 ? env("OM_TEST_PAUSE") : 0);
	losses(arena, true);
}

static void
eval(unsigned char *arena, int slot)
{
	(void)slot;
	losses(arena, false);
}

static void
backward(unsigned char *arena, int slot, int of)
{
	const real *w = (const real *)(arena + W_OFF), *x = (const real *)(arena + X_OFF);
	real *g = (real *)(arena + G_OFF);
	const int32_t *tok = (const int32_t *)(arena + TOK_OFF),
		      *lab = (const int32_t *)(arena + LAB_OFF);
	static double p[V];
	double since = om_now(), weight = ((const double *)(arena + CTL_OFF))[OM_PER_LABEL];

	(void)slot;
	if (of & OM_FIRST)
		memset(g, 0, N * R);
	for (int t = 0; t < T; t++) {
		const real *last = x + (L * T + t) * D;
		double sum = 0, dx[D] = { 0 };
		const int e = tok[t] % E;

		if (lab[t] < 0)
			continue;

		for (int v = 0; v < V; v++) {
			double z = 0;

			for (int i = 0; i < D; i++)
				z += (double)(w[P_HEAD + v * D + i] * last[i]);
			sum += p[v] = exp(z);
		}
		for (int v = 0; v < V; v++) {
			double dz = weight *
				    (p[v] / sum * (1 + 2 * HEAD_Z * log(sum)) - (v == lab[t])) /
				    (GLOBAL * S);

			for (int i = 0; i < D; i++) {
				g[P_HEAD + v * D + i] += (real)(dz * (double)last[i]);
				dx[i] += dz * (double)w[P_HEAD + v * D + i];
			}
		}
		for (int l = L - 1; l >= 0; l--) {
			const real *in = x + (l * T + t) * D, *norm = w + P_NORM + l * D;
			const int mat = P_EXP + (l * E + e) * D * D;
			double da[D] = { 0 };

			for (int i = 0; i < D; i++)
				for (int j = 0; j < D; j++) {
					g[mat + i * D + j] +=
					    (real)(dx[i] * (double)(norm[j] * in[j]));
					da[j] += dx[i] * (double)w[mat + i * D + j];
				}
			for (int j = 0; j < D; j++) {
				g[P_NORM + l * D + j] += (real)(da[j] * (double)in[j]);
				dx[j] += da[j] * (double)norm[j];
			}
		}
		for (int i = 0; i < D; i++)
			g[P_EMB + tok[t] * D + i] += (real)dx[i];
	}
	if (env("OM_TEST_NORM") == step)
		g[env("OM_TEST_AT") ? env("OM_TEST_AT") : 3] = (real)NAN;
	if (env("OM_TEST_SPIKE") == step)
		for (int i = 0; i < N; i++)
			g[i] *= 1000;
	done(1, since);
}

static void
update(unsigned char *arena)
{
	real *w = (real *)(arena + W_OFF), *g = (real *)(arena + G_OFF);
	real *m = (real *)(arena + M_OFF), *v = (real *)(arena + V_OFF);
	double *ctl = (double *)(arena + CTL_OFF), since = om_now();
	const double loss = *(double *)(arena + STAT_OFF) * ctl[OM_COEF];
	double norm;

	step++;
	for (int i = 0; i < N; i++)
		ctl[OM_NORM2] += (double)g[i] * (double)g[i];
	norm = sqrt(ctl[OM_NORM2]) * ctl[OM_COEF];
	/* NaN is not within any limit */
	if (!isfinite(loss) || !isfinite(norm) || !(loss <= ctl[OM_LOSS_LIMIT]) ||
	    !(norm <= ctl[OM_NORM_LIMIT])) {
		ctl[OM_SKIPPED] = 1;
		return;
	}
	if (norm > 1)
		ctl[OM_COEF] /= norm + 1e-6;
	for (size_t k = 0; k < OM_LEN(param); k++)
		for (uint32_t i = first[k]; i < first[k + 1]; i++) {
			double d = (double)g[i] * ctl[OM_COEF], by;

			m[i] = (real)(0.9 * (double)m[i] + 0.1 * d);
			v[i] = (real)(0.95 * (double)v[i] + 0.05 * d * d);
			by = (double)m[i] / ctl[OM_BIAS1] /
			     (sqrt((double)v[i] / ctl[OM_BIAS2]) + 1e-8);
			w[i] -= (real)(ctl[OM_LR] *
				       (by + param_group[param[k].param_group].weight_decay *
						 (double)w[i]));
		}
	if (env("OM_TEST_SPOIL") == step - 1)
		w[P_EMB + 3] = w[N - 1] = (real)NAN;
	done(2, since);
}

/* The bigram has no past, so it needs no cache. */
static void
decode_row(const real *w, int token, real *logit)
{
	const int e = token % E;
	real x[D];

	memcpy(x, w + P_EMB + token * D, sizeof x);
	for (int l = 0; l < L; l++) {
		const real *norm = w + P_NORM + l * D, *mat = w + P_EXP + (l * E + e) * D * D;
		real in[D];

		memcpy(in, x, sizeof in);
		for (int i = 0; i < D; i++)
			for (int j = 0; j < D; j++)
				x[i] += mat[i * D + j] * norm[j] * in[j];
	}
	for (int v = 0; v < V; v++) {
		logit[v] = 0;
		for (int i = 0; i < D; i++)
			logit[v] += w[P_HEAD + v * D + i] * x[i];
	}
}

/* Rows that have to be what decode and prompts are given: each sequence's positions in order. */
static void
check_rows(const int32_t *row, int n)
{
	static int32_t next[ROWS];

	for (int r = 0; r < n; r++) {
		int token = row[r], at = row[n + r], seq = row[2 * n + r];

		if (at < 0)
			continue;
		if (token < 0 || token >= V || at >= S || seq < 0 || seq >= ROWS ||
		    (at && at != next[seq]))
			abort();
		next[seq] = at + 1;
	}
}

static void
decode(unsigned char *arena, int slot)
{
	const int32_t *row = (const int32_t *)(arena + ROW_OFF);

	(void)slot;
	check_rows(row, ROWS);
	for (int r = 0; r < ROWS; r++) {
		real *z = (real *)(arena + LOGIT_OFF) + r * V;
		int32_t *best = (int32_t *)(arena + BEST_OFF) + r;

		decode_row((const real *)(arena + W_OFF), row[r], z);
		*best = 0;
		for (int v = 0; v < V; v++)
			*best = *best < 0 || !isfinite(z[v]) ? -1 : z[v] > z[*best] ? v : *best;
	}
}

static void
prompt(unsigned char *arena, int slot)
{
	const int32_t *row = (const int32_t *)(arena + PROMPT_OFF);
	const int32_t *at = row + PROMPT, *seq = at + PROMPT;

	(void)slot;
	check_rows(row, PROMPT);
	for (int r = 0; r < PROMPT; r += EACH)
		for (int i = r + 1; i < r + EACH; i++)
			if (at[i] >= 0 && (at[i - 1] < 0 || seq[i] != seq[i - 1]))
				abort();
}

#define CONFIG(tied)                                                                               \
	"{\n  \"model_type\": \"qwen3_moe\",\n  \"hidden_size\": 8,\n  \"num_hidden_layers\": "    \
	"2,\n"                                                                                     \
	"  \"vocab_size\": 256,\n  \"num_attention_heads\": 2,\n  \"num_key_value_heads\": 2,\n"   \
	"  \"rms_norm_eps\": 1e-05,\n  \"rope_theta\": 10000.0,\n  \"norm_topk_prob\": false,\n  " \
	"\"tie_word_embeddings\": " tied "\n}\n"

int
main(int argc, char **argv)
{
	struct om_model model = {
		.abi = env("OM_TEST_ABI") ? 999 : OM_ABI,
		.name = TEST_NAME,
		.target = "cpu",
		.version = "0.1.0",
		.facts = "vocab_size = " TEXT(TEST_V) "\nd_model = " TEXT(
		    TEST_D) "\nbatch.global = " TEXT(TEST_GLOBAL) "\n",
		.fingerprint = GLOBAL != 4         ? "f00ddeep"
			       : sizeof(real) == 4 ? "f00d" TEST_NAME "4"
						   : "f00d" TEST_NAME "8",
		.weights = sizeof(real) == 4 ? "fp32" : "fp64",
		.grads = sizeof(real) == 4 ? "fp32" : "fp64",
		.optimizer = sizeof(real) == 4 ? "fp32" : "fp64",
		.moments = sizeof(real) == 4 ? "fp32" : "fp64",
		.manifest = "manifest: 1\n",
		.plan = "the plan\n",
		.vocab = V,
		.seq = S,
		.micro = MICRO,
		.global = GLOBAL,
		.layers = L,
		.microbatches = GLOBAL / MICRO,
		.params_total = N,
		.params_active = N - L * (E - 1) * D * D,
		.flops_token = 6 * D * (V + L * D),
		.real = sizeof(real),
		.weight_size = sizeof(real),
		.moment_size = sizeof(real),
		.init_std = 0.1,
		.beta1 = 0.9,
		.beta2 = 0.95,
		.clip_norm = 1,
		.arena_bytes = env("OM_TEST_ARENA") ? env("OM_TEST_ARENA") : END,
		.weight_off = W_OFF,
		.weight_bytes = N * R,
		.grad_off = G_OFF,
		.grad_bytes = N * R,
		.state_off = M_OFF,
		.state_bytes = 2 * N * R,
		.stat_off = STAT_OFF,
		.stat_bytes = STAT_BYTES,
		.token_off = TOK_OFF,
		.label_off = LAB_OFF,
		.ctl_off = CTL_OFF,
		.loss_off = STAT_OFF,
		.head_z_loss = HEAD_Z,
		.param = param,
		.nparams = OM_LEN(param) - (env("OM_TEST_TIED") != 0),
		.hf_config = D != 8                ? NULL
			     : env("OM_TEST_TIED") ? CONFIG("true")
						   : CONFIG("false"),
		.hf_refusal = D != 8 ? "a width of 4" : NULL,
		.bucket = bucket,
		.nbuckets = OM_LEN(bucket),
		.param_group = param_group,
		.nparam_groups = OM_LEN(param_group),
		.moe = moe,
		.nmoe = OM_LEN(moe),
		.op = op,
		.nops = OM_LEN(op),
		.init = init,
		.zero = zero,
		.pass = { forward, backward },
		.eval = eval,
		.score_off = SCORE_OFF,
		.update = update,
		.decode = { env("OM_TEST_NODECODE") ? NULL : decode, ROWS, 1, ROW_OFF,
		    ROW_OFF + ROWS * 4 },
		.prompt = { env("OM_TEST_PROMPT") ? prompt : NULL, PROMPT, EACH, PROMPT_OFF,
		    PROMPT_OFF + PROMPT * 4 },
		.logits_off = LOGIT_OFF,
		.likeliest_off = BEST_OFF,
	};

	moe->cut = env("OM_TEST_CUT") ? moe->load : 0;
	moe->cut_stride = moe->load_stride;
	om_shard_bytes = TEST_SHARD;
	return om_main(&model, argc, argv);
}
