/*
 * The whole emitted step of a small model in fp64, against a naive forward pass written here from
 * the model's definition, its finite differences, and a naive AdamW. Linked with an emitted tree in
 * place of its main.c.
 *
 * The options of model.lua that differ from their defaults come as macros.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "layout.h"
#include "model.h"
#include "om_rt.h"
#include "rng.h"
#include "place.h"

const char om_manifest[] = "", om_plan[] = "";

/* options and their defaults */
#ifndef QK
#define QK 0 /* 1: full, 2: per head */
#endif
#ifndef NORMALIZE
#define NORMALIZE 0
#endif
#ifndef SHARED
#define SHARED 0
#endif
#ifndef TOP_K
#define TOP_K 2
#endif
#ifndef DENSE
#define DENSE 0 /* the dense layer; -1: none */
#endif
#ifndef TIED
#define TIED 0
#endif
#ifndef KV
#define KV 2
#endif
#ifndef PLACEMENT
#define PLACEMENT 0 /* 1: post, 2: peri */
#endif
#ifndef BIAS
#define BIAS 0 /* 1: q, k and v, 2: all */
#endif
#ifndef WINDOW
#define WINDOW 0 /* of layer 1 */
#endif
#ifndef ROPE
#define ROPE 0 /* 1: linear, 2: YaRN, 3: Llama 3 */
#endif
#ifndef NOPE
#define NOPE 0 /* layer 1 has no positions */
#endif
#ifndef ACT
#define ACT 0 /* 1: geglu, 2: relu2 */
#endif
#ifndef SCORE
#define SCORE 0 /* 1: sigmoid, 2: topk_softmax */
#endif
#ifndef GROUPS
#define GROUPS 1
#endif
#ifndef TOP_GROUPS
#define TOP_GROUPS GROUPS
#endif
#ifndef WEIGHT_SCALE
#define WEIGHT_SCALE 1.0
#endif
#ifndef BALANCE
#define BALANCE 1 /* sequences are balanced one by one: MICRO */
#endif
#ifndef ROUTING
#define ROUTING 0 /* 1: random, 2: uniform */
#endif
#ifndef GAMMA
#define GAMMA 0.0 /* bias_gamma */
#endif
#ifndef HEAD_Z
#define HEAD_Z 0.0
#endif
#ifndef EMB_SCALE
#define EMB_SCALE 1.0
#endif
#ifndef EMB_NORM
#define EMB_NORM 0
#endif

#ifndef DOCUMENTS
#define DOCUMENTS 0 /* 1: masked */
#endif

#define SEED 12345 /* of random routing */
enum { V = 37, D = 12, L = 2, S = 9, H = 6, HD = 4, E = 6, F = 7, FD = 14, MICRO = 2, PARTS = 3 };
enum { HK = KV, K = TOP_K, T = MICRO * S };
static const double eps = 1e-3, theta = 100, load_balance = 0.3, z_loss = 0.2;
static const double label_weight = 1.25;

static unsigned char *arena;
static int passed, failed;
static uint64_t rng;
static uint64_t sequence = 1000; /* number of the microbatch's first one */
static int64_t load[L][E];       /* what the naive pass has sent to the experts */
static int32_t begin[T]; /* of each token the first one of its document, where they are masked */

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
	printf("FAIL %s: got %.12g, want %.12g\n", what, got, want);
}

static void
fill_name(char *out, const char *name, int layer, int expert)
{
	for (; *name; name++)
		if (*name == '%')
			out += sprintf(out, "%d", *++name == 'l' ? layer : expert);
		else
			*out++ = *name;
	*out = 0;
}

/* The weights (or, with grad, the gradient) of a checkpoint name. */
static double *
find(const char *name, int grad)
{
	char have[200];

	for (uint32_t i = 0; i < om_models[0].nparams + om_models[0].nbuffers; i++) {
		const struct om_param *p = &om_models[0].param[i];
		for (uint32_t l = 0; l < p->nlayers; l++)
			for (uint32_t e = 0; e < (p->experts ? p->experts : 1); e++) {
				fill_name(have, p->name, p->layer ? (int)p->layer[l] : 0, (int)e);
				if (!strcmp(have, name))
					return (double *)(arena + (grad ? p->grad : p->weight)) +
					       l * p->stride + e * p->numel;
			}
	}
	printf("FAIL no parameter named %s\n", name);
	exit(1);
}

/* Is asked for each token, so what was found is kept. */
static double *
weight(const char *fmt, int layer, int expert)
{
	enum { MOST = 4096 };
	static struct {
		char name[200];
		double *at;
	} known[MOST];
	char name[200];
	uint32_t h = 0;

	fill_name(name, fmt, layer, expert);
	for (const char *s = name; *s; s++)
		h = h * 31 + (unsigned char)*s;
	while (known[h %= MOST].at && strcmp(known[h].name, name) != 0)
		h++;
	if (!known[h].at) {
		strcpy(known[h].name, name);
		known[h].at = find(name, 0);
	}
	return known[h].at;
}

static void
matmul(const double *x, const double *w, int m, int n, int k, double *y)
{
	for (int i = 0; i < m; i++)
		for (int j = 0; j < n; j++) {
			double s = 0;
			for (int c = 0; c < k; c++)
				s += x[i * k + c] * w[j * k + c];
			y[i * n + j] = s;
		}
}

static void
rms(const double *x, const double *w, int rows, int n, double *y)
{
	for (int i = 0; i < rows; i++) {
		double s = 0;
		for (int j = 0; j < n; j++)
			s += x[i * n + j] * x[i * n + j];
		for (int j = 0; j < n; j++)
			y[i * n + j] = x[i * n + j] / sqrt(s / n + eps) * w[j];
	}
}

/* Frequency of pair i, and in *factor what cosines and sines are multiplied by. */
static double
frequency(int i, double *factor)
{
	double f = pow(theta, -2.0 * i / HD), wave = 2 * acos(-1) / f;

	*factor = 1;
	if (ROPE == 1)
		return f / 3;
	if (ROPE == 2) {
		/* pairs that turn beta times within the original length */
		double low = floor(HD * log(8 / (2 * 2 * acos(-1))) / (2 * log(theta)));
		double high = ceil(HD * log(8 / (0.5 * 2 * acos(-1))) / (2 * log(theta)));
		low = low < 0 ? 0 : low;
		high = high > HD - 1 ? HD - 1 : high;
		high += high == low ? 0.001 : 0;
		double ramp = fmin(1, fmax(0, (i - low) / (high - low)));
		*factor = 0.1 * log(4) + 1;
		return f / 4 * ramp + f * (1 - ramp);
	}
	if (ROPE == 3) {
		double low = 16 / 1.0, high = 16 / 3.0, smooth = (16 / wave - 1) / (3 - 1);
		return wave > low ? f / 4 : wave < high ? f : (1 - smooth) * f / 4 + smooth * f;
	}
	return f;
}

static void
rotate(double *x, int heads)
{
	for (int t = 0; t < T; t++)
		for (int h = 0; h < heads; h++)
			for (int i = 0; i < HD / 2; i++) {
				double *a = x + (t * heads + h) * HD + i, *b = a + HD / 2, factor;
				/* positions begin anew with each document */
				double angle = (t % S - begin[t]) * frequency(i, &factor);
				double x0 = *a, x1 = *b;
				*a = factor * (x0 * cos(angle) - x1 * sin(angle));
				*b = factor * (x1 * cos(angle) + x0 * sin(angle));
			}
}

static void
add_bias(double *x, const char *name, int l, int n)
{
	const double *c = weight(name, l, 0);

	for (int i = 0; i < T * n; i++)
		x[i] += c[i % n];
}

#define ATTN "model.layers.%l.self_attn."

static void
attention(const double *x, int l, double *y)
{
	static double q[T * H * HD], k[T * HK * HD], v[T * HK * HD], o[T * H * HD], tmp[T * H * HD];

	matmul(x, weight(ATTN "q_proj.weight", l, 0), T, H * HD, D, q);
	matmul(x, weight(ATTN "k_proj.weight", l, 0), T, HK * HD, D, k);
	matmul(x, weight(ATTN "v_proj.weight", l, 0), T, HK * HD, D, v);
	if (BIAS) {
		add_bias(q, ATTN "q_proj.bias", l, H * HD);
		add_bias(k, ATTN "k_proj.bias", l, HK * HD);
		add_bias(v, ATTN "v_proj.bias", l, HK * HD);
	}
	if (QK) {
		rms(q, weight(ATTN "q_norm.weight", l, 0), QK == 1 ? T : T * H,
		    QK == 1 ? H * HD : HD, tmp);
		memcpy(q, tmp, sizeof q);
		rms(k, weight(ATTN "k_norm.weight", l, 0), QK == 1 ? T : T * HK,
		    QK == 1 ? HK * HD : HD, tmp);
		memcpy(k, tmp, sizeof k);
	}
	if (!(NOPE && l == 1)) {
		rotate(q, H);
		rotate(k, HK);
	}
	for (int t = 0; t < T; t++)
		for (int h = 0; h < H; h++) {
			int g = h / (H / HK), first = t / S * S + begin[t];
			if (WINDOW && l == 1 && t - first >= WINDOW)
				first = t - WINDOW + 1;
			double p[S], sum = 0;
			for (int u = first; u <= t; u++) {
				double s = 0;
				for (int c = 0; c < HD; c++)
					s += q[(t * H + h) * HD + c] * k[(u * HK + g) * HD + c];
				sum += p[u - first] = exp(s / sqrt(HD));
			}
			for (int c = 0; c < HD; c++) {
				double s = 0;
				for (int u = first; u <= t; u++)
					s += p[u - first] / sum * v[(u * HK + g) * HD + c];
				o[(t * H + h) * HD + c] = s;
			}
		}
	matmul(o, weight(ATTN "o_proj.weight", l, 0), T, D, H * HD, y);
	if (BIAS == 2)
		add_bias(y, ATTN "o_proj.bias", l, D);
}

#define MLP "model.layers.%l.mlp."
#define CHOICE_BIAS MLP "gate.e_score_correction_bias"

/* One token through a feed-forward whose projections' names start like this. */
static void
ffn(const double *x, int f, const char *prefix, int layer, int expert, double *y)
{
	char name[100];
	double g[FD], u[FD];

	sprintf(name, "%sup_proj.weight", prefix);
	matmul(x, weight(name, layer, expert), 1, f, D, u);
	sprintf(name, "%sgate_proj.weight", prefix);
	if (ACT < 2)
		matmul(x, weight(name, layer, expert), 1, f, D, g);
	for (int i = 0; i < f; i++) {
		double inner = sqrt(2 / acos(-1)) * (g[i] + 0.044715 * g[i] * g[i] * g[i]);
		g[i] = ACT == 0   ? g[i] / (1 + exp(-g[i])) * u[i]
		       : ACT == 1 ? 0.5 * g[i] * (1 + tanh(inner)) * u[i]
				  : (u[i] > 0 ? u[i] * u[i] : 0);
	}
	sprintf(name, "%sdown_proj.weight", prefix);
	matmul(g, weight(name, layer, expert), 1, D, f, y);
}

/* Marks the experts whose group may be used. */
static void
open_groups(const double *score, int *open)
{
	double best[GROUPS];
	int each = E / GROUPS;

	for (int g = 0; g < GROUPS; g++) {
		double first = -100, second = 0;
		for (int e = g * each; e < (g + 1) * each; e++) {
			if (score[e] > first) {
				second = e == g * each ? each > 1 ? -100 : 0 : first;
				first = score[e];
			} else if (score[e] > second) {
				second = score[e];
			}
		}
		best[g] = first + second;
	}
	for (int e = 0; e < E; e++) {
		int better = 0;
		for (int g = 0; g < GROUPS; g++)
			better += best[g] > best[e / each];
		open[e] = better < TOP_GROUPS;
	}
}

/* What the experts of a token are chosen by. */
static void
ranks(int l, int t, const double *s, const double *score, double *rank)
{
	uint64_t token = sequence * S + (uint64_t)t;

	for (int e = 0; e < E; e++) {
		rank[e] = score[e];
		if (GAMMA > 0)
			rank[e] = (SCORE == 2 ? s[e] : score[e]) + weight(CHOICE_BIAS, l, 0)[e];
		if (ROUTING == 1)
			rank[e] =
			    om_philox((struct om_philox){ { (uint32_t)token,
					  (uint32_t)(token >> 32), (uint32_t)l, (uint32_t)e / 4 } },
				SEED)
				.v[e % 4] >>
			    9;
		if (ROUTING == 2) /* turns go round: K places from t K on are the best */
			rank[e] = (e - t * K % E + E) % E < K;
	}
}

/* Adds the layer's experts to y; gives its auxiliary loss. */
static double
experts(const double *x, int l, double *y)
{
	double count[BALANCE][E] = { { 0 } }, mean[BALANCE][E] = { { 0 } }, z = 0, balance = 0,
	       out[D];

	for (int t = 0; t < T; t++) {
		double s[E], score[E], rank[E], sum = 0, total = 0, chosen = 0, picked[K];
		int open[E], pick[K], part = t / (T / BALANCE);
		matmul(x + t * D, weight(MLP "gate.weight", l, 0), 1, E, D, s);
		for (int e = 0; e < E; e++)
			sum += exp(s[e]);
		z += log(sum) * log(sum) / T;
		for (int e = 0; e < E; e++) {
			score[e] = SCORE == 1 ? 1 / (1 + exp(-s[e])) : exp(s[e]) / sum;
			total += score[e];
		}
		for (int e = 0; e < E; e++)
			mean[part][e] += score[e] / total / (T / BALANCE);
		ranks(l, t, s, score, rank);
		open_groups(rank, open);
		for (int k = 0; k < K; k++) {
			pick[k] = -1;
			for (int e = 0; e < E; e++)
				if (open[e] && (pick[k] < 0 || rank[e] > rank[pick[k]]))
					pick[k] = e;
			open[pick[k]] = 0;
			count[part][pick[k]]++;
			load[l][pick[k]]++;
			picked[k] = SCORE == 2 ? exp(s[pick[k]]) : score[pick[k]];
			chosen += picked[k];
		}
		for (int k = 0; k < K; k++) {
			ffn(x + t * D, F, MLP "experts.%e.", l, pick[k], out);
			for (int c = 0; c < D; c++)
				y[t * D + c] += WEIGHT_SCALE * picked[k] /
						(NORMALIZE || SCORE == 2 ? chosen : 1) * out[c];
		}
		if (SHARED) {
			ffn(x + t * D, SHARED, MLP "shared_expert.", l, 0, out);
			for (int c = 0; c < D; c++)
				y[t * D + c] += out[c];
		}
	}
	for (int part = 0; part < BALANCE; part++)
		for (int e = 0; e < E; e++)
			balance +=
			    E * count[part][e] / ((T / BALANCE) * K) * mean[part][e] / BALANCE;
	return load_balance * balance + z_loss * z;
}

/* x becomes its norm where the option asks for one. */
static void
norm_if(int here, double *x, const char *name, int l)
{
	static double y[T * D];

	if (!here)
		return;
	rms(x, weight(name, l, 0), T, D, y);
	memcpy(x, y, sizeof y);
}

/* The objective of one microbatch: its share of the step's mean token loss and auxiliary losses. */
static double
objective(double *ce)
{
	const int32_t *tok = (int32_t *)(arena + om_models[0].token_off);
	const int32_t *label = (int32_t *)(arena + om_models[0].label_off);
	static double x[T * D], h[T * D], y[T * D], logits[V];
	double aux = 0;

	*ce = 0;
	for (int t = 0; t < T; t++)
		for (int c = 0; c < D; c++)
			x[t * D + c] =
			    EMB_SCALE * weight("model.embed_tokens.weight", 0, 0)[tok[t] * D + c];
	norm_if(EMB_NORM, x, "model.embed_norm.weight", 0);
	for (int l = 0; l < L; l++) {
		memcpy(h, x, sizeof h);
		norm_if(PLACEMENT != 1, h, "model.layers.%l.input_layernorm.weight", l);
		attention(h, l, y);
		norm_if(PLACEMENT != 0, y, "model.layers.%l.post_attention_layernorm.weight", l);
		for (int i = 0; i < T * D; i++)
			x[i] += y[i];
		memcpy(h, x, sizeof h);
		norm_if(PLACEMENT == 0, h, "model.layers.%l.post_attention_layernorm.weight", l);
		norm_if(PLACEMENT == 2, h, "model.layers.%l.pre_feedforward_layernorm.weight", l);
		memset(y, 0, sizeof y);
		for (int t = 0; t < T && l == DENSE; t++)
			ffn(h + t * D, FD, MLP, l, 0, y + t * D);
		if (l != DENSE)
			aux += experts(h, l, y) / PARTS;
		norm_if(PLACEMENT != 0, y, "model.layers.%l.post_feedforward_layernorm.weight", l);
		for (int i = 0; i < T * D; i++)
			x[i] += y[i];
	}
	rms(x, weight("model.norm.weight", 0, 0), T, D, h);
	for (int t = 0; t < T; t++) {
		double sum = 0;
		matmul(h + t * D,
		    weight(TIED ? "model.embed_tokens.weight" : "lm_head.weight", 0, 0), 1, V, D,
		    logits);
		for (int i = 0; i < V; i++)
			sum += exp(logits[i]);
		*ce += label_weight * (log(sum) - logits[label[t]]) / (T * PARTS);
		aux += label_weight * HEAD_Z * log(sum) * log(sum) / (T * PARTS);
	}
	return *ce + aux;
}

static double
stat_aux(void)
{
	double sum = om_models[0].head_z_loss * ((double *)(arena + om_models[0].loss_off))[1];

	for (uint32_t i = 0; i < om_models[0].nmoe; i++)
		for (uint32_t l = 0; l < om_models[0].moe[i].nlayers; l++) {
			const double *aux = (double *)(arena + om_models[0].moe[i].aux +
						       l * om_models[0].moe[i].aux_stride);
			sum += (om_models[0].moe[i].load_balance * aux[0] +
				   om_models[0].moe[i].z_loss * aux[1]) /
			       PARTS;
		}
	return sum;
}

static void
check_gradients(void)
{
	for (uint32_t i = 0; i < om_models[0].nparams; i++) {
		const struct om_param *p = &om_models[0].param[i];
		uint64_t n = p->numel * p->nlayers * (p->experts ? p->experts : 1);
		double *w = (double *)(arena + p->weight), *g = (double *)(arena + p->grad),
		       scale = 1e-6;
		for (uint64_t k = 0; k < n; k++)
			scale = fmax(scale, fabs(g[place(p, k)]));
		for (int s = 0; s < 24 && s < (int)n; s++) {
			uint64_t k =
			    place(p, n <= 24 ? (uint64_t)s : (uint64_t)(uniform() * (double)n));
			double old = w[k], step = 1e-5, ce;
			w[k] = old + step;
			double up = objective(&ce);
			w[k] = old - step;
			double down = objective(&ce);
			w[k] = old;
			double want = (up - down) / (2 * step);
			/* second-order error of the difference is about 1e-10 at unit scale */
			expect(fabs(g[k] - want) <= 1e-6 * scale + 1e-9, p->name, g[k], want);
		}
	}
}

/* AdamW as in the paper, on copies; the gradient norm counts each parameter once. */
static void
check_update(void)
{
	double *ctl = (double *)(arena + om_models[0].ctl_off), norm2 = 0, lr = 0.01, step = 3;
	unsigned char *before = malloc(om_models[0].arena_bytes);

	for (uint32_t i = 0; i < om_models[0].nparams; i++) {
		const struct om_param *p = &om_models[0].param[i];
		uint64_t n = p->numel * p->nlayers * (p->experts ? p->experts : 1);
		for (uint64_t j = 0; j < n; j++) {
			uint64_t k = place(p, j);
			((double *)(arena + p->m))[k] = 0.1 * (uniform() - 0.5);
			((double *)(arena + p->v))[k] = 0.01 * uniform();
			norm2 +=
			    ((double *)(arena + p->grad))[k] * ((double *)(arena + p->grad))[k];
		}
	}
	memcpy(before, arena, om_models[0].arena_bytes);
	ctl[OM_LR] = lr;
	ctl[OM_BIAS1] = 1 - pow(om_models[0].beta1, step);
	ctl[OM_BIAS2] = 1 - pow(om_models[0].beta2, step);
	ctl[OM_NORM2] = 0;
	ctl[OM_COEF] = 1;
	ctl[OM_LOSS_LIMIT] = ctl[OM_NORM_LIMIT] = INFINITY;
	om_models[0].update(arena);
	expect(fabs(ctl[OM_NORM2] - norm2) <= 1e-12 * norm2, "squared norm", ctl[OM_NORM2], norm2);
	double coef =
	    om_models[0].clip_norm > 0 ? om_models[0].clip_norm / (sqrt(norm2) + 1e-6) : 1;
	coef = coef < 1 ? coef : 1;
	for (uint32_t i = 0; i < om_models[0].nparams; i++) {
		const struct om_param *p = &om_models[0].param[i];
		const struct om_param_group *grp = &om_models[0].param_group[p->param_group];
		uint64_t n = p->numel * p->nlayers * (p->experts ? p->experts : 1);
		double decay = p->ndims == 1 ? 0 : 0.1, scale = 1, worst = 0;
		if (strstr(p->name, "embed_tokens")) {
			decay = 0.02;
			scale = 0.5;
		} else if (strstr(p->name, "gate.weight")) {
			decay = 0;
		}
		expect(grp->weight_decay == decay && grp->lr_scale == scale, p->name,
		    grp->weight_decay, decay);
		for (uint64_t j = 0; j < n; j++) {
			uint64_t k = place(p, j);
			double g = ((double *)(before + p->grad))[k] * coef,
			       w = ((double *)(before + p->weight))[k];
			double m = 0.9 * ((double *)(before + p->m))[k] + 0.1 * g;
			double v = 0.95 * ((double *)(before + p->v))[k] + 0.05 * g * g;
			double want =
			    w -
			    lr * scale *
				(m / ctl[OM_BIAS1] / (sqrt(v / ctl[OM_BIAS2]) + 1e-8) + decay * w);
			worst = fmax(worst, fabs(((double *)(arena + p->weight))[k] - want));
			worst = fmax(worst, fabs(((double *)(arena + p->m))[k] - m));
			worst = fmax(worst, fabs(((double *)(arena + p->v))[k] - v));
		}
		expect(worst < 1e-12, p->name, worst, 0);
	}
	free(before);
}

/* Another microbatch: its tokens, documents, and what random routers draw by. */
static void
new_tokens(void)
{
	sequence += MICRO;
	om_draw_write(om_models, arena, SEED, sequence);
	for (int t = 0; t < T; t++) {
		((int32_t *)(arena + om_models[0].token_off))[t] = (int32_t)(uniform() * V);
		((int32_t *)(arena + om_models[0].label_off))[t] = (int32_t)(uniform() * V);
		if (DOCUMENTS)
			begin[t] = !(t % S) ? 0 : uniform() < 0.3 ? t % S : begin[t - 1];
	}
	om_documents_put(om_models, arena, begin);
}

/*
 * Two steps of several microbatches, a third one that is skipped, and an evaluation: each expert's
 * bias moves by gamma against the step's loads, and by nothing else.
 */
static void
check_biases(void)
{
	double *ctl = (double *)(arena + om_models[0].ctl_off), want[L][E], ce, worst = 0;
	int moved = 0;

	for (int l = 0; l < L; l++)
		for (int e = 0; e < E && l != DENSE; e++)
			want[l][e] = weight(CHOICE_BIAS, l, 0)[e];
	for (int step = 0; step < 4; step++) {
		memset(load, 0, sizeof load);
		om_models[0].zero(arena);
		for (int part = 0; part < PARTS; part++) {
			new_tokens();
			objective(&ce);
			if (step == 3) {
				om_models[0].eval(arena, 0);
				continue;
			}
			om_models[0].pass[OM_FORWARD](arena, 0, part ? 0 : OM_FIRST);
			om_models[0].pass[OM_BACKWARD](arena, 0, part ? 0 : OM_FIRST);
		}
		ctl[OM_NORM2] = 0;
		ctl[OM_COEF] = 1;
		ctl[OM_LOSS_LIMIT] = step < 2 ? INFINITY : 0;
		if (step < 3)
			om_models[0].update(arena);
		expect(ctl[OM_SKIPPED] == (step > 1), "skipped", ctl[OM_SKIPPED], step > 1);
		for (int l = 0; l < L; l++)
			for (int e = 0; e < E && l != DENSE; e++) {
				double over = (double)load[l][e] - (double)(PARTS * T * K) / E;
				if (step < 2 && fabs(over) > 1e-9) {
					want[l][e] -= over > 0 ? GAMMA : -GAMMA;
					moved++;
				}
				worst =
				    fmax(worst, fabs(weight(CHOICE_BIAS, l, 0)[e] - want[l][e]));
			}
	}
	expect(worst < 1e-15, "biases of the choice", worst, 0);
	expect(moved > E, "biases that move", moved, E);
}

int
main(int argc, char **argv)
{
	double ce, total;

	rng = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	arena = malloc(om_models[0].arena_bytes);
	/* poison: whatever is read before it was written shows as NaN */
	for (uint64_t i = 0; i < om_models[0].arena_bytes / 8; i++)
		((double *)arena)[i] = NAN;
	memset(arena + om_models[0].weight_off, 0, om_models[0].weight_bytes);
	memset(arena + om_models[0].state_off, 0, om_models[0].state_bytes);
	memset(arena + om_models[0].grad_off, 0, om_models[0].grad_bytes);
	((double *)(arena + om_models[0].ctl_off))[OM_PER_LABEL] = label_weight;
	for (uint32_t i = 0; i < om_models[0].nparams + om_models[0].nbuffers; i++) {
		const struct om_param *p = &om_models[0].param[i];
		uint64_t n = p->numel * p->nlayers * (p->experts ? p->experts : 1);
		for (uint64_t k = 0; k < n; k++) {
			((double *)(arena + p->weight))[place(p, k)] =
			    (p->init == OM_ONE) +
			    (uniform() - 0.5) * (p->init == OM_ONE ? 0.5 : 1.2);
			if (i < om_models[0].nparams) /* a first microbatch stores it */
				((double *)(arena + p->grad))[place(p, k)] = NAN;
		}
	}
	new_tokens();
	om_models[0].init(arena);
	om_models[0].zero(arena);
	om_models[0].pass[OM_FORWARD](arena, 0, OM_FIRST);
	om_models[0].pass[OM_BACKWARD](arena, 0, OM_FIRST);
	total = objective(&ce);
	double loss = *(double *)(arena + om_models[0].loss_off);
	expect(fabs(loss - ce) < 1e-11 * fabs(ce), "token loss", loss, ce);
	expect(fabs(loss + stat_aux() - total) < 1e-11 * fabs(total), "total loss",
	    loss + stat_aux(), total);
	check_gradients();
	/* a second microbatch adds the same gradient again, whatever the buffers hold by now */
	double *first = malloc(om_models[0].grad_bytes), worst = 0;
	memcpy(first, arena + om_models[0].grad_off, om_models[0].grad_bytes);
	om_models[0].pass[OM_FORWARD](arena, 0, 0);
	om_models[0].pass[OM_BACKWARD](arena, 0, 0);
	for (uint64_t i = 0; i < om_models[0].grad_bytes / 8; i++)
		worst = fmax(
		    worst, fabs(((double *)(arena + om_models[0].grad_off))[i] - 2 * first[i]));
	expect(worst < 1e-13, "two equal microbatches", worst, 0);
	check_update();
	/* evaluation: the loss of the new weights, from the forward pass alone */
	om_models[0].zero(arena);
	om_models[0].eval(arena, 0);
	objective(&ce);
	loss = *(double *)(arena + om_models[0].loss_off);
	expect(fabs(loss - ce) < 1e-11 * fabs(ce), "evaluated loss", loss, ce);
	uint64_t pair = 0; /* 2 products of HD forward and 4 backward, 2 operations each */
	for (uint32_t i = 0; i < om_models[0].npairs; i++)
		pair += om_models[0].pairs[i].flops;
	expect(pair == DOCUMENTS * 12 * H * HD * L, "operations of a pair", (double)pair,
	    DOCUMENTS * 12 * H * HD * L);
	expect(om_models[0].npairs == DOCUMENTS * (1 + (WINDOW > 0)), "windows",
	    om_models[0].npairs, DOCUMENTS * (1 + (WINDOW > 0)));
	expect((om_models[0].document_off != 0) == DOCUMENTS, "masks documents",
	    (double)om_models[0].document_off, DOCUMENTS);
	expect(om_models[0].nbuffers == (GAMMA > 0 ? om_models[0].nmoe : 0), "buffers",
	    om_models[0].nbuffers, om_models[0].nmoe);
	if (GAMMA > 0)
		check_biases();
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
