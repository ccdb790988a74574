/*
 * A layer whose experts multiply numbers in 8 bits, forward and back, against naive products of
 * numbers that are quantised by their definition, in double. What goes into the branch of experts,
 * and which expert a token has, is what the trainer computed; all behind it is computed here.
 *
 * What 8 bits change is what the same without them differs by: errors are a small part of that, so
 * that no quantisation can be left out, or be of other numbers. A second microbatch must multiply
 * the weights that the first one quantised, whatever has become of them, an evaluation those that
 * are there. -DFORWARD=32, -DDX=128, -DDW=1 say what is in blocks of so many, or at all, -DBY_FLOOR
 * by which rule.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "layout.h"
#include "model.h"
#include "quantise_ref.h"

#ifndef BY_FLOOR
#define BY_FLOOR 0
#endif

const char om_manifest[] = "", om_plan[] = "";

enum { D = 128, V = 64, E = 4, F = 256, FS = 128, T = 16, LABELS = 32, PARTS = 2 };
static const double eps = 1e-5;

/* The parameters of experts and of what is behind them, and their gradients. */
enum { GATE, UP, DOWN, SHARED_GATE, SHARED_UP, SHARED_DOWN, FFN_NORM, NORM, HEAD, N };
static const struct {
	const char *name;
	uint64_t weight, grad, n;
} params[N] = {
	{ "gate", OM_OFF_moe_gate_proj, OM_OFF_moe_g_gate_proj, E *F *D },
	{ "up", OM_OFF_moe_up_proj, OM_OFF_moe_g_up_proj, E *F *D },
	{ "down", OM_OFF_moe_down_proj, OM_OFF_moe_g_down_proj, E *D *F },
	{ "shared gate", OM_OFF_moe_shared_gate_proj, OM_OFF_moe_g_shared_gate_proj, FS *D },
	{ "shared up", OM_OFF_moe_shared_up_proj, OM_OFF_moe_g_shared_up_proj, FS *D },
	{ "shared down", OM_OFF_moe_shared_down_proj, OM_OFF_moe_g_shared_down_proj, D *FS },
	{ "ffn norm", OM_OFF_moe_ffn_norm, OM_OFF_moe_g_ffn_norm, D },
	{ "norm", OM_OFF_head_norm, OM_OFF_head_g_norm, D },
	{ "head", OM_OFF_head_w, OM_OFF_head_g_w, V *D },
};
struct numbers {
	double *a[N], loss;
};

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
expect(bool ok, const char *what, double got, double want)
{
	passed += ok;
	failed += !ok;
	if (!ok)
		printf("FAIL %s: got %.9g, want %.9g\n", what, got, want);
}

static double *
zeros(uint64_t n)
{
	double *x = calloc(n, sizeof *x);

	if (!x)
		abort();
	return x;
}

/* What x [rows, cols] is in 8 bits, of b numbers of h rows each; b = 0: as it is. */
static double *
quantised(const double *x, int rows, int cols, int b, int h)
{
	double *y = zeros((uint64_t)rows * (uint64_t)cols);

	memcpy(y, x, (uint64_t)rows * (uint64_t)cols * sizeof *y);
	for (int i = 0; i < rows && b; i += h)
		for (int j = 0; j < cols; j += b) {
			double a = 0;
			for (int k = 0; k < h * b; k++)
				a = fmax(a, fabs(x[(i + k / b) * cols + j + k % b]));
			int e = om_exponent_ref(a, BY_FLOOR && b == 32, b == 32 ? -127 : -126);
			for (int k = 0; k < h * b; k++) {
				double *v = &y[(i + k / b) * cols + j + k % b];
				*v = ldexp(om_e4m3_ref(om_e4m3_code_ref(ldexp(*v, -e))), e);
			}
		}
	return y;
}

static double *
transposed(const double *x, int rows, int cols)
{
	double *y = zeros((uint64_t)rows * (uint64_t)cols);

	for (int i = 0; i < rows; i++)
		for (int j = 0; j < cols; j++)
			y[j * rows + i] = x[i * cols + j];
	return y;
}

static int
rows_of(int b)
{
	return b == 128 ? b : 1;
}

/* Weights as products read them: in rows of what they give, and the other way round. */
struct eight {
	bool on;
	double *w[N], *t[N];
};

static struct eight
prepare(bool on, const struct numbers *w)
{
	struct eight all = { .on = on };
	const int f = on ? FORWARD : 0, b = on ? DX : 0;

	for (int i = GATE; i <= SHARED_DOWN; i++) {
		int experts = i < SHARED_GATE ? E : 1, size = (int)params[i].n / experts;
		int k = i % 3 == DOWN ? size / D : D, n = size / k;
		all.w[i] = quantised(w->a[i], experts * n, k, f, rows_of(f));
		all.t[i] = zeros(params[i].n);
		for (int e = 0; e < experts; e++) {
			double *t = transposed(w->a[i] + e * size, n, k);
			double *q = quantised(t, k, n, b, rows_of(b));
			memcpy(all.t[i] + e * size, q, (size_t)size * sizeof *q);
			free(t);
			free(q);
		}
	}
	return all;
}

/* y [n] = x [k] w [n, k]^T */
static void
product(const struct eight *a, const double *x, const double *w, int n, int k, double *y)
{
	double *q = quantised(x, 1, k, a->on ? FORWARD : 0, 1);

	for (int i = 0; i < n; i++) {
		y[i] = 0;
		for (int j = 0; j < k; j++)
			y[i] += q[j] * w[i * k + j];
	}
	free(q);
}

/* dx [k] += dy [n] t [k, n]^T; dw [n, k] += dy^T x */
static void
back(const struct eight *a, const double *dy, const double *x, const double *t, int n, int k,
    double *dx, double *dw)
{
	int of = a->on && DW ? FORWARD : 0;
	double *q = quantised(dy, 1, n, a->on ? DX : 0, 1);
	double *y = quantised(dy, 1, n, of, 1), *z = quantised(x, 1, k, of, 1);

	for (int j = 0; j < k; j++)
		for (int i = 0; i < n; i++) {
			dx[j] += q[i] * t[j * n + i];
			dw[i * k + j] += y[i] * z[j];
		}
	free(q);
	free(y);
	free(z);
}

static double
inverse_rms(const double *x)
{
	double sum = 0;

	for (int i = 0; i < D; i++)
		sum += x[i] * x[i];
	return 1 / sqrt(sum / D + eps);
}

/* What an expert makes of x, added to y. */
struct hidden {
	double g[F], u[F], h[F], y[D];
};
static void
expert(const struct eight *a, const double *x, int first, uint64_t at, int f, struct hidden *s)
{
	product(a, x, a->w[first] + at, f, D, s->g);
	product(a, x, a->w[first + UP] + at, f, D, s->u);
	for (int i = 0; i < f; i++)
		s->h[i] = s->g[i] / (1 + exp(-s->g[i])) * s->u[i];
	product(a, s->h, a->w[first + DOWN] + at, D, f, s->y);
}

static void
expert_back(const struct eight *a, const struct hidden *s, const double *dy, const double *x,
    int first, uint64_t at, int f, double *dx, struct numbers *g)
{
	double dh[F] = { 0 }, dg[F], du[F];

	back(a, dy, s->h, a->t[first + DOWN] + at, D, f, dh, g->a[first + DOWN] + at);
	for (int i = 0; i < f; i++) {
		double sigmoid = 1 / (1 + exp(-s->g[i]));
		du[i] = dh[i] * s->g[i] * sigmoid;
		dg[i] = dh[i] * s->u[i] * sigmoid * (1 + s->g[i] * (1 - sigmoid));
	}
	back(a, dg, x, a->t[first] + at, f, D, dx, g->a[first] + at);
	back(a, du, x, a->t[first + UP] + at, f, D, dx, g->a[first + UP] + at);
}

/* A token on its way from the middle of the layer to its loss, and back. */
static void
token(const struct eight *a, const double *mid, int e, int label, const struct numbers *w,
    struct numbers *g)
{
	double x[D], y[D], out[D], z[V], top = -INFINITY, sum = 0, dout[D] = { 0 }, dy[D], dx[D];
	double r = inverse_rms(mid), along = 0;
	struct hidden own, all;
	const uint64_t at = (uint64_t)e * F * D;

	for (int i = 0; i < D; i++)
		x[i] = mid[i] * r * w->a[FFN_NORM][i];
	expert(a, x, GATE, at, F, &own);
	expert(a, x, SHARED_GATE, 0, FS, &all);
	for (int i = 0; i < D; i++)
		y[i] = mid[i] + own.y[i] + all.y[i];
	double s = inverse_rms(y);
	for (int i = 0; i < D; i++)
		out[i] = y[i] * s * w->a[NORM][i];
	for (int v = 0; v < V; v++) {
		z[v] = 0;
		for (int i = 0; i < D; i++)
			z[v] += out[i] * w->a[HEAD][v * D + i];
		top = fmax(top, z[v]);
	}
	for (int v = 0; v < V; v++)
		sum += exp(z[v] - top);
	g->loss += (log(sum) + top - z[label]) / LABELS;
	for (int v = 0; v < V; v++) {
		double dz = (exp(z[v] - top) / sum - (v == label)) / LABELS;
		for (int i = 0; i < D; i++) {
			g->a[HEAD][v * D + i] += dz * out[i];
			dout[i] += dz * w->a[HEAD][v * D + i];
		}
	}
	for (int i = 0; i < D; i++) {
		g->a[NORM][i] += dout[i] * y[i] * s;
		along += dout[i] * w->a[NORM][i] * y[i];
	}
	for (int i = 0; i < D; i++)
		dy[i] = s * dout[i] * w->a[NORM][i] - y[i] * s * s * s / D * along;
	memset(dx, 0, sizeof dx);
	expert_back(a, &own, dy, x, GATE, at, F, dx, g);
	expert_back(a, &all, dy, x, SHARED_GATE, 0, FS, dx, g);
	for (int i = 0; i < D; i++)
		g->a[FFN_NORM][i] += dx[i] * mid[i] * r;
}

/* All tokens of the pass that the trainer has just done. */
static void
naive(bool eight, const int32_t *labels, const struct numbers *w, struct numbers *g)
{
	const float *mid = SAVED(moe_mid, 0, 0);
	const int32_t *chosen = SAVED(moe_chosen, 0, 0);
	const struct eight a = prepare(eight, w);

	for (int t = 0; t < T; t++) {
		double x[D];
		for (int i = 0; i < D; i++)
			x[i] = (double)mid[t * D + i];
		token(&a, x, chosen[t], labels[t], w, g);
	}
}

/*
 * Numbers of blocks far apart, so that it shows which of them share a scale: those that one side of
 * a product has less of the other has more of.
 */
static void
spread(void)
{
	for (int i = GATE; i <= FFN_NORM; i++) {
		float *w = (float *)(arena + params[i].weight);
		int k = i % 3 == DOWN ? i < SHARED_GATE ? F : FS : D, of = i % 3;
		for (uint64_t n = 0; n < params[i].n; n++) {
			int col = 5 * (int)(n % (uint64_t)k / 32 % 4);
			int row = 5 * (int)(n / (uint64_t)k / 32 % 4);
			w[n] = ldexpf(w[n], i == FFN_NORM ? -col : of == UP ? col - row : col);
		}
	}
}

static struct numbers
numbers(bool weights)
{
	struct numbers all = { .loss = 0 };

	for (int i = 0; i < N; i++) {
		all.a[i] = zeros(params[i].n);
		for (uint64_t k = 0; k < params[i].n && weights; k++)
			all.a[i][k] = (double)((float *)(arena + params[i].weight))[k];
	}
	return all;
}

/* The root of the sum of squares of a - b. */
static double
apart(const double *a, const double *b, uint64_t n)
{
	double sum = 0;

	for (uint64_t i = 0; i < n; i++)
		sum += (a[i] - b[i]) * (a[i] - b[i]);
	return sqrt(sum);
}

static void
compare(const struct numbers *want, const struct numbers *plain)
{
	for (int i = 0; i < N; i++) {
		const float *grad = (float *)(arena + params[i].grad);
		double *got = zeros(params[i].n), *none = zeros(params[i].n);
		for (uint64_t k = 0; k < params[i].n; k++)
			got[k] = (double)grad[k];
		double effect = apart(want->a[i], plain->a[i], params[i].n);
		double off = apart(got, want->a[i], params[i].n);
		expect(off < 0.01 * effect, params[i].name, off, 0.01 * effect);
		effect /= apart(plain->a[i], none, params[i].n);
		expect(effect > 1e-3 && effect < 1, params[i].name, effect, 0.03);
		free(got);
		free(none);
	}
}

static void
compare_loss(const char *what, const struct numbers *want, const struct numbers *plain)
{
	double loss = *(double *)(arena + om_models[0].loss_off);
	double effect = fabs(want->loss - plain->loss);

	expect(fabs(loss - want->loss) < 0.02 * effect, what, loss, want->loss);
}

int
main(int argc, char **argv)
{
	const struct om_model *m = &om_models[0];
	int32_t ids[PARTS * 2 * T];

	rng = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	arena = malloc(m->arena_bytes);
	memset(arena, 0xff, m->arena_bytes);
	((double *)(arena + m->ctl_off))[OM_PER_LABEL] = 1;
	memset(arena + m->weight_off, 0, m->weight_bytes);
	memset(arena + m->grad_off, 0, m->grad_bytes);
	for (uint32_t i = 0; i < m->nparams; i++) {
		const struct om_param *p = &m->param[i];
		for (uint64_t k = 0; k < p->numel * (p->experts ? p->experts : 1); k++)
			((float *)(arena + p->weight))[k] =
			    (float)((p->init == OM_ONE) + (uniform() - 0.5) * 0.4);
	}
	for (int i = 0; i < PARTS * 2 * T; i++)
		ids[i] = (int32_t)(uniform() * V);
	m->init(arena);
	m->zero(arena);
	spread();
	struct numbers w = numbers(true), want = numbers(false), plain = numbers(false);
	for (int k = 0; k < PARTS; k++) {
		memcpy(arena + m->token_off, ids + k * 2 * T, T * 4);
		memcpy(arena + m->label_off, ids + k * 2 * T + T, T * 4);
		m->pass[OM_FORWARD](arena, 0, k ? OM_LAST : OM_FIRST);
		naive(true, ids + k * 2 * T + T, &w, &want);
		naive(false, ids + k * 2 * T + T, &w, &plain);
		m->pass[OM_BACKWARD](arena, 0, k ? OM_LAST : OM_FIRST);
		/* a step's microbatches have one copy */
		for (int i = GATE; i <= SHARED_DOWN; i++)
			for (uint64_t n = 0; n < params[i].n; n++)
				((float *)(arena + params[i].weight))[n] *= -0.7f;
	}
	compare_loss("loss", &want, &plain);
	compare(&want, &plain);
	m->zero(arena);
	m->eval(arena, 0);
	struct numbers now = numbers(true), last = numbers(false), as_is = numbers(false);
	naive(true, ids + 3 * T, &now, &last);
	naive(false, ids + 3 * T, &now, &as_is);
	compare_loss("an evaluation", &last, &as_is);
	/* what no scale is for is not made a number */
	for (int i = 0; i < 2; i++) {
		((float *)(arena + params[SHARED_UP].weight))[77] = i ? INFINITY : NAN;
		m->zero(arena);
		m->eval(arena, 0);
		double loss = *(double *)(arena + m->loss_off);
		expect(isnan(loss), "the loss by a weight that is no number", loss, NAN);
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
