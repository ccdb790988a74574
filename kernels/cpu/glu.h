/*
 * Activations of the feed-forward layers, gated (Shazeer, 2020) or not. a chooses the gated one:
 *   0  silu(x) = x sigmoid(x)
 *   1  gelu(x) = x (1 + tanh(y)) / 2 = x sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x^3), the
 *      tanh form (Hendrycks and Gimpel, 2016)
 * and relu2(x) = max(x, 0)^2 has no gate (So et al., Primer, 2021).
 *
 *   glu                h [m, f] = act(g) u
 *   glu_bwd            dg = dh u act'(g), du = dh act(g); du may be dh
 *   glu_routed         h [t * k, f], row r, = p[src[r]] act(g) u; p [t, k] seen flat
 *   glu_routed_bwd     the same with p in dg and du, and dp[src[r]] = dh . (act(g) u)
 *   glu_rows           h [c, f], row r, = pr[r] act(g) u, of the rows before off[j - 1], the last
 *                      of off [j]; the others are neither read nor written
 *   glu_rows_bwd       the same with pr in dg and du, and dpr[r] = dh . (act(g) u)
 *   relu2              h [m, f] = relu2(u)
 *   relu2_bwd          du = dh relu2'(u); du may be dh
 *   relu2_routed       h [t * k, f], row r, = p[src[r]] relu2(u)
 *   relu2_routed_bwd   the same with p in du, and dp[src[r]] = dh . relu2(u)
 *   relu2_rows, relu2_rows_bwd   as glu_rows
 *
 * One body a phase serves all: relu2's u is then its g, and its du the bodies' dg.
 */
#ifndef OM_GLU_H
#define OM_GLU_H

#include "check.h"
#include "glu_ref.h"

enum { OM_SILU, OM_GELU, OM_GATED, OM_RELU2 = OM_GATED };

/* The activation of x, and its derivative. NaN stays NaN. */
static OM_INLINE om_real
om_activation(int a, om_real x, om_real *slope)
{
	if (a == OM_RELU2) {
		om_real y = x < 0 ? 0 : x;
		*slope = 2 * y;
		return y * y;
	}
	om_real inner = x, grown = 1; /* sigmoid's argument and its derivative */
	if (a == OM_GELU) {
		const om_real twice = (om_real)1.5957691216057308, cube = (om_real)0.044715;
		inner = twice * x * (1 + cube * x * x);
		grown = twice * (1 + 3 * cube * x * x);
	}
	om_real s = om_sigmoid(inner);
	*slope = s * (1 + x * grown * (1 - s));
	return x * s;
}

/* Numbers [lo, hi), of one weight p. */
static OM_INLINE void
om_glu_span(
    int a, int64_t lo, int64_t hi, om_real p, const om_real *g, const om_real *u, om_real *h)
{
#pragma omp simd
	for (int64_t i = lo; i < hi; i++) {
		om_real slope, act = om_activation(a, g[i], &slope);
		h[i] = p * act * (a == OM_RELU2 ? 1 : u[i]);
	}
}

/* term [hi - lo], if given, is for dp. */
static OM_INLINE void
om_glu_bwd_span(int a, int64_t lo, int64_t hi, om_real p, const om_real *dh, const om_real *g,
    const om_real *u, om_real *dg, om_real *du, om_real *term)
{
#pragma omp simd
	for (int64_t i = lo; i < hi; i++) {
		om_real slope, act = om_activation(a, g[i], &slope), d = dh[i];
		om_real up = a == OM_RELU2 ? 1 : u[i];
		if (term)
			term[i - lo] = d * act * up;
		dg[i] = p * d * up * slope;
		if (a != OM_RELU2)
			du[i] = p * d * act;
	}
}

/* Rows [lo, hi) of f with their weights, at src or in order; without p, numbers [lo, hi). */
static OM_INLINE void
om_glu_rows(int a, int64_t lo, int64_t hi, int64_t f, const om_real *g, const om_real *u,
    const om_real *p, const int32_t *src, om_real *h)
{
	if (!p)
		om_glu_span(a, lo, hi, 1, g, u, h);
	for (int64_t r = lo; p && r < hi; r++)
		om_glu_span(a, r * f, (r + 1) * f, p[src ? src[r] : r], g, u, h);
}

enum { OM_GLU_BLOCK = 256 }; /* terms of dp held between making and adding them */

static OM_INLINE void
om_glu_bwd_rows(int a, int64_t lo, int64_t hi, int64_t f, const om_real *dh, const om_real *g,
    const om_real *u, const om_real *p, const int32_t *src, om_real *dg, om_real *du, om_real *dp)
{
	if (!p)
		om_glu_bwd_span(a, lo, hi, 1, dh, g, u, dg, du, NULL);
	for (int64_t r = lo; p && r < hi; r++) {
		const int64_t own = src ? src[r] : r;
		om_real pr = p[own], sum = 0, term[OM_GLU_BLOCK];
		for (int64_t b = 0; b < f; b += OM_GLU_BLOCK) {
			const int64_t n = om_min(f - b, OM_GLU_BLOCK), at = r * f + b;
			om_glu_bwd_span(a, at, at + n, pr, dh, g, u, dg, du, term);
			sum += om_sum(term, n);
		}
		dp[own] = sum;
	}
}

/* In the leaves a becomes a constant of each loop. */
static OM_CLONES void
om_glu_range(int a, int64_t lo, int64_t hi, int64_t f, const om_real *g, const om_real *u,
    const om_real *p, const int32_t *src, om_real *h)
{
	if (a == OM_SILU)
		om_glu_rows(OM_SILU, lo, hi, f, g, u, p, src, h);
	else if (a == OM_GELU)
		om_glu_rows(OM_GELU, lo, hi, f, g, u, p, src, h);
	else
		om_glu_rows(OM_RELU2, lo, hi, f, g, u, p, src, h);
}

static OM_CLONES void
om_glu_bwd_range(int a, int64_t lo, int64_t hi, int64_t f, const om_real *dh, const om_real *g,
    const om_real *u, const om_real *p, const int32_t *src, om_real *dg, om_real *du, om_real *dp)
{
	if (a == OM_SILU)
		om_glu_bwd_rows(OM_SILU, lo, hi, f, dh, g, u, p, src, dg, du, dp);
	else if (a == OM_GELU)
		om_glu_bwd_rows(OM_GELU, lo, hi, f, dh, g, u, p, src, dg, du, dp);
	else
		om_glu_bwd_rows(OM_RELU2, lo, hi, f, dh, g, u, p, src, dg, du, dp);
}

/* Without p, src and dp: not routed; without src: the weights are those of the rows. */
static inline void
om_glu(int64_t rows, int64_t f, int a, const om_real *g, const om_real *u, const om_real *p,
    const int32_t *src, om_real *h)
{
	const int64_t items = p ? rows : rows * f;
#pragma omp parallel if (items * f > OM_SERIAL)
	om_glu_range(a, om_lo(items), om_hi(items), f, g, u, p, src, h);
}

static inline void
om_glu_bwd(int64_t rows, int64_t f, int a, const om_real *dh, const om_real *g, const om_real *u,
    const om_real *p, const int32_t *src, om_real *dg, om_real *du, om_real *dp)
{
	const int64_t items = p ? rows : rows * f;
#pragma omp parallel
	om_glu_bwd_range(a, om_lo(items), om_hi(items), f, dh, g, u, p, src, dg, du, dp);
}

#define OM_GLU_SIZES(t, k, f, a)                                                   \
	_Static_assert((t) >= 1 && (k) >= 1 && (f) >= 1, "glu: sizes start at 1"); \
	_Static_assert((a) >= 0 && (a) <= OM_RELU2, "glu: no such activation");

#define OM_GLU_ROUTED_SIZES(t, k, f, a) \
	OM_GLU_SIZES(t, k, f, a)        \
	_Static_assert((int64_t)(t) * (k) <= INT32_MAX, "glu: rows are counted in int32");

#define OM_GLU_ROWS_SIZES(c, f, a, j)   \
	OM_GLU_ROUTED_SIZES(c, 1, f, a) \
	_Static_assert((j) >= 1, "glu: the last offset says how many rows");

#define OM_GLU(NAME, m, f, a)                                                            \
	OM_GLU_SIZES(m, 1, f, a)                                                         \
	void NAME(const om_real *g, const om_real *u, om_real *h)                        \
	{                                                                                \
		om_glu(m, f, a, g, u, NULL, NULL, h);                                    \
	}                                                                                \
	double NAME##_check(uint64_t seed)                                               \
	{                                                                                \
		return om_glu_check((struct om_glu_fn){ .gated = NAME }, m, f, a, seed); \
	}

#define OM_GLU_BWD(NAME, m, f, a)                                                                  \
	OM_GLU_SIZES(m, 1, f, a)                                                                   \
	void NAME(const om_real *dh, const om_real *g, const om_real *u, om_real *dg, om_real *du) \
	{                                                                                          \
		om_glu_bwd(m, f, a, dh, g, u, NULL, NULL, dg, du, NULL);                           \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_glu_bwd_check((struct om_glu_bwd_fn){ .gated = NAME }, m, f, a, seed);   \
	}

#define OM_GLU_ROUTED(NAME, t, k, f, a)                                                           \
	OM_GLU_ROUTED_SIZES(t, k, f, a)                                                           \
	void NAME(                                                                                \
	    const om_real *g, const om_real *u, const om_real *p, const int32_t *src, om_real *h) \
	{                                                                                         \
		om_glu((int64_t)(t) * (k), f, a, g, u, p, src, h);                                \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_glu_check(                                                              \
		    (struct om_glu_fn){ .gated_routed = NAME }, (int64_t)(t) * (k), f, a, seed);  \
	}

#define OM_GLU_ROUTED_BWD(NAME, t, k, f, a)                                                \
	OM_GLU_ROUTED_SIZES(t, k, f, a)                                                    \
	void NAME(const om_real *dh, const om_real *g, const om_real *u, const om_real *p, \
	    const int32_t *src, om_real *dg, om_real *du, om_real *dp)                     \
	{                                                                                  \
		om_glu_bwd((int64_t)(t) * (k), f, a, dh, g, u, p, src, dg, du, dp);        \
	}                                                                                  \
	double NAME##_check(uint64_t seed)                                                 \
	{                                                                                  \
		return om_glu_bwd_check((struct om_glu_bwd_fn){ .gated_routed = NAME },    \
		    (int64_t)(t) * (k), f, a, seed);                                       \
	}

#define OM_GLU_ROWS(NAME, c, f, a, j)                                                              \
	OM_GLU_ROWS_SIZES(c, f, a, j)                                                              \
	void NAME(                                                                                 \
	    const om_real *g, const om_real *u, const om_real *pr, const int32_t *off, om_real *h) \
	{                                                                                          \
		om_glu(off[j - 1], f, a, g, u, pr, NULL, h);                                       \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_glu_check(                                                               \
		    (struct om_glu_fn){ .gated_routed = NAME, .offsets = j }, c, f, a, seed);      \
	}

#define OM_GLU_ROWS_BWD(NAME, c, f, a, j)                                                         \
	OM_GLU_ROWS_SIZES(c, f, a, j)                                                             \
	void NAME(const om_real *dh, const om_real *g, const om_real *u, const om_real *pr,       \
	    const int32_t *off, om_real *dg, om_real *du, om_real *dpr)                           \
	{                                                                                         \
		om_glu_bwd(off[j - 1], f, a, dh, g, u, pr, NULL, dg, du, dpr);                    \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_glu_bwd_check(                                                          \
		    (struct om_glu_bwd_fn){ .gated_routed = NAME, .offsets = j }, c, f, a, seed); \
	}

#define OM_RELU2(NAME, m, f)                                                                    \
	OM_GLU_SIZES(m, 1, f, OM_RELU2)                                                         \
	void NAME(const om_real *u, om_real *h)                                                 \
	{                                                                                       \
		om_glu(m, f, OM_RELU2, u, NULL, NULL, NULL, h);                                 \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_glu_check((struct om_glu_fn){ .relu2 = NAME }, m, f, OM_RELU2, seed); \
	}

#define OM_RELU2_BWD(NAME, m, f)                                                     \
	OM_GLU_SIZES(m, 1, f, OM_RELU2)                                              \
	void NAME(const om_real *dh, const om_real *u, om_real *du)                  \
	{                                                                            \
		om_glu_bwd(m, f, OM_RELU2, dh, u, NULL, NULL, NULL, du, NULL, NULL); \
	}                                                                            \
	double NAME##_check(uint64_t seed)                                           \
	{                                                                            \
		return om_glu_bwd_check(                                             \
		    (struct om_glu_bwd_fn){ .relu2 = NAME }, m, f, OM_RELU2, seed);  \
	}

#define OM_RELU2_ROUTED(NAME, t, k, f)                                                \
	OM_GLU_ROUTED_SIZES(t, k, f, OM_RELU2)                                        \
	void NAME(const om_real *u, const om_real *p, const int32_t *src, om_real *h) \
	{                                                                             \
		om_glu((int64_t)(t) * (k), f, OM_RELU2, u, NULL, p, src, h);          \
	}                                                                             \
	double NAME##_check(uint64_t seed)                                            \
	{                                                                             \
		return om_glu_check((struct om_glu_fn){ .relu2_routed = NAME },       \
		    (int64_t)(t) * (k), f, OM_RELU2, seed);                           \
	}

#define OM_RELU2_ROUTED_BWD(NAME, t, k, f)                                                      \
	OM_GLU_ROUTED_SIZES(t, k, f, OM_RELU2)                                                  \
	void NAME(const om_real *dh, const om_real *u, const om_real *p, const int32_t *src,    \
	    om_real *du, om_real *dp)                                                           \
	{                                                                                       \
		om_glu_bwd((int64_t)(t) * (k), f, OM_RELU2, dh, u, NULL, p, src, du, NULL, dp); \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_glu_bwd_check((struct om_glu_bwd_fn){ .relu2_routed = NAME },         \
		    (int64_t)(t) * (k), f, OM_RELU2, seed);                                     \
	}

#define OM_RELU2_ROWS(NAME, c, f, j)                                                             \
	OM_GLU_ROWS_SIZES(c, f, OM_RELU2, j)                                                     \
	void NAME(const om_real *u, const om_real *pr, const int32_t *off, om_real *h)           \
	{                                                                                        \
		om_glu(off[j - 1], f, OM_RELU2, u, NULL, pr, NULL, h);                           \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_glu_check((struct om_glu_fn){ .relu2_routed = NAME, .offsets = j }, c, \
		    f, OM_RELU2, seed);                                                          \
	}

#define OM_RELU2_ROWS_BWD(NAME, c, f, j)                                                          \
	OM_GLU_ROWS_SIZES(c, f, OM_RELU2, j)                                                      \
	void NAME(const om_real *dh, const om_real *u, const om_real *pr, const int32_t *off,     \
	    om_real *du, om_real *dpr)                                                            \
	{                                                                                         \
		om_glu_bwd(off[j - 1], f, OM_RELU2, dh, u, NULL, pr, NULL, du, NULL, dpr);        \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_glu_bwd_check(                                                          \
		    (struct om_glu_bwd_fn){ .relu2_routed = NAME, .offsets = j }, c, f, OM_RELU2, \
		    seed);                                                                        \
	}

/*
 * The kernel that a check runs: one of these. With offsets, how many, a routed one takes them in
 * place of src, and the weights in the order of the rows.
 */
struct om_glu_fn {
	void (*gated)(const om_real *, const om_real *, om_real *);
	void (*gated_routed)(
	    const om_real *, const om_real *, const om_real *, const int32_t *, om_real *);
	void (*relu2)(const om_real *, om_real *);
	void (*relu2_routed)(const om_real *, const om_real *, const int32_t *, om_real *);
	int64_t offsets;
};
struct om_glu_bwd_fn {
	void (*gated)(const om_real *, const om_real *, const om_real *, om_real *, om_real *);
	void (*gated_routed)(const om_real *, const om_real *, const om_real *, const om_real *,
	    const int32_t *, om_real *, om_real *, om_real *);
	void (*relu2)(const om_real *, const om_real *, om_real *);
	void (*relu2_routed)(const om_real *, const om_real *, const om_real *, const int32_t *,
	    om_real *, om_real *);
	int64_t offsets;
};
enum { OM_GLU_SAMPLES = 64 };

OM_CHECK int32_t *
om_glu_src(int64_t rows, uint64_t seed)
{
	int32_t *src = om_check_alloc(rows, sizeof *src);
	om_glu_ref_src(src, rows, om_hash(seed, 9));
	return src;
}

/* Offsets of which the last alone counts: how many rows, of all or at most as many. */
OM_CHECK int32_t *
om_glu_off(int64_t offsets, int64_t rows, uint64_t seed)
{
	int32_t *off = om_check_ints(offsets, INT32_MAX, seed, 8);
	off[offsets - 1] =
	    (int32_t)(seed % 3 ? om_hash(seed, 8) % (uint64_t)(rows + 1) : (uint64_t)rows);
	return off;
}

/* What is activated, over a range where all activations bend. */
OM_CHECK om_real *
om_glu_check_input(int64_t n, uint64_t seed, int stream)
{
	om_real *g = om_check_random(n, seed, stream);
	for (int64_t i = 0; i < n; i++)
		g[i] *= 3;
	return g;
}

OM_CHECK double
om_glu_check(struct om_glu_fn run, int64_t rows, int64_t f, int a, uint64_t seed)
{
	om_real *g = om_glu_check_input(rows * f, seed, 0), *u = om_check_random(rows * f, seed, 1);
	om_real *p = om_check_random(rows, seed, 2);
	int32_t *src = run.offsets ? om_glu_off(run.offsets, rows, seed) : om_glu_src(rows, seed);
	const int64_t valid = run.offsets ? src[run.offsets - 1] : rows;
	om_real *h = om_check_output(valid * f, rows * f);
	struct om_err e = { .scale = 1 };
	om_check_spoil(g, valid * f, rows * f);
	om_check_spoil(u, valid * f, rows * f);
	om_check_spoil(p, valid, rows);
	if (run.gated)
		run.gated(g, u, h);
	if (run.gated_routed)
		run.gated_routed(g, u, p, src, h);
	if (run.relu2)
		run.relu2(g, h);
	if (run.relu2_routed)
		run.relu2_routed(g, p, src, h);
	for (int64_t s = 0; s < om_samples(valid, OM_GLU_SAMPLES); s++) {
		int64_t r = om_sample(s, valid, OM_GLU_SAMPLES, seed),
			own = run.offsets ? r : src[r];
		double pr = run.gated_routed || run.relu2_routed ? (double)p[own] : 1, slope;
		for (int64_t i = r * f; i < (r + 1) * f; i++) {
			double up = run.gated || run.gated_routed ? (double)u[i] : 1;
			om_err_add(&e, h[i], pr * om_glu_ref(a, g[i], &slope) * up);
		}
	}
	e.wrong |= !om_check_kept(h, valid * f, rows * f);
	free(g);
	free(u);
	free(p);
	free(h);
	free(src);
	return om_err_value(&e);
}

OM_CHECK double
om_glu_bwd_check(struct om_glu_bwd_fn run, int64_t rows, int64_t f, int a, uint64_t seed)
{
	const bool gated = run.gated || run.gated_routed;
	const bool routed = run.gated_routed || run.relu2_routed;
	om_real *dh = om_check_random(rows * f, seed, 0),
		*g = om_glu_check_input(rows * f, seed, 1);
	om_real *u = om_check_random(rows * f, seed, 2), *p = om_check_random(rows, seed, 3);
	int32_t *src = run.offsets ? om_glu_off(run.offsets, rows, seed) : om_glu_src(rows, seed);
	const int64_t valid = run.offsets ? src[run.offsets - 1] : rows;
	om_real *dg = om_check_output(valid * f, rows * f),
		*du = om_check_output(valid * f, rows * f), *dp = om_check_output(valid, rows);
	om_check_spoil(dh, valid * f, rows * f);
	om_check_spoil(g, valid * f, rows * f);
	om_check_spoil(u, valid * f, rows * f);
	om_check_spoil(p, valid, rows);
	struct om_err eg = { .scale = 1 }, eu = { .scale = 1 }, ep = { .scale = 1 };
	if (run.gated)
		run.gated(dh, g, u, dg, du);
	if (run.gated_routed)
		run.gated_routed(dh, g, u, p, src, dg, du, dp);
	if (run.relu2)
		run.relu2(dh, g, dg);
	if (run.relu2_routed)
		run.relu2_routed(dh, g, p, src, dg, dp);
	for (int64_t s = 0; s < om_samples(valid, OM_GLU_SAMPLES); s++) {
		int64_t r = om_sample(s, valid, OM_GLU_SAMPLES, seed),
			own = run.offsets ? r : src[r];
		double pr = routed ? (double)p[own] : 1, sum = 0, slope;
		for (int64_t i = r * f; i < (r + 1) * f; i++) {
			double act = om_glu_ref(a, g[i], &slope), d = dh[i];
			double up = gated ? (double)u[i] : 1;
			om_err_add(&eg, dg[i], pr * d * up * slope);
			if (gated)
				om_err_add(&eu, du[i], pr * d * act);
			sum += d * act * up;
			ep.scale = fmax(ep.scale, fabs(d * act * up));
		}
		if (routed)
			om_err_add(&ep, dp[own], sum);
	}
	eg.wrong |= !om_check_kept(dg, valid * f, rows * f);
	eu.wrong |= !om_check_kept(du, valid * f, rows * f);
	ep.wrong |= !om_check_kept(dp, valid, rows);
	free(dh);
	free(g);
	free(u);
	free(p);
	free(dg);
	free(du);
	free(dp);
	free(src);
	return om_worse(om_err_value(&eg), om_worse(om_err_value(&eu), om_err_value(&ep)));
}

#endif
