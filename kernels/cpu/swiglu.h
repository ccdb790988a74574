/*
 * Gated activation (Shazeer, 2020); silu(x) = x sigmoid(x).
 *
 *   swiglu             h [m, f] = silu(g) u
 *   swiglu_bwd         dg = dh u silu'(g), du = dh silu(g); du may be dh
 *   swiglu_routed      h [t * k, f], row r, = p[src[r]] silu(g) u; p [t, k] seen flat
 *   swiglu_routed_bwd  the same with p in dg and du, and dp[src[r]] = dh . (silu(g) u)
 */
#include "check.h"

static OM_CLONES void
om_swiglu_range(int64_t lo, int64_t hi, const om_real *g, const om_real *u, om_real *h)
{
#pragma omp simd
	for (int64_t i = lo; i < hi; i++)
		h[i] = g[i] * om_sigmoid(g[i]) * u[i];
}

static inline void
om_swiglu(int64_t m, int64_t f, const om_real *g, const om_real *u, om_real *h)
{
#pragma omp parallel
	om_swiglu_range(om_lo(m * f), om_hi(m * f), g, u, h);
}

static OM_CLONES void
om_swiglu_bwd_range(int64_t lo, int64_t hi, const om_real *dh, const om_real *g, const om_real *u,
    om_real *dg, om_real *du)
{
#pragma omp simd
	for (int64_t i = lo; i < hi; i++) {
		om_real s = om_sigmoid(g[i]), d = dh[i];
		dg[i] = d * u[i] * s * (1 + g[i] * (1 - s));
		du[i] = d * g[i] * s;
	}
}

static inline void
om_swiglu_bwd(int64_t m, int64_t f, const om_real *dh, const om_real *g, const om_real *u,
    om_real *dg, om_real *du)
{
#pragma omp parallel
	om_swiglu_bwd_range(om_lo(m * f), om_hi(m * f), dh, g, u, dg, du);
}

static OM_CLONES void
om_swiglu_routed_range(int64_t lo, int64_t hi, int64_t f, const om_real *g, const om_real *u,
    const om_real *p, const int32_t *src, om_real *h)
{
	for (int64_t r = lo; r < hi; r++) {
		om_real pr = p[src[r]];
#pragma omp simd
		for (int64_t i = r * f; i < (r + 1) * f; i++)
			h[i] = pr * g[i] * om_sigmoid(g[i]) * u[i];
	}
}

static inline void
om_swiglu_routed(int64_t rows, int64_t f, const om_real *g, const om_real *u, const om_real *p,
    const int32_t *src, om_real *h)
{
#pragma omp parallel
	om_swiglu_routed_range(om_lo(rows), om_hi(rows), f, g, u, p, src, h);
}

enum { OM_SWIGLU_BLOCK = 256 }; /* terms of dp held between making and adding them */

static OM_CLONES void
om_swiglu_routed_bwd_range(int64_t lo, int64_t hi, int64_t f, const om_real *dh, const om_real *g,
    const om_real *u, const om_real *p, const int32_t *src, om_real *dg, om_real *du, om_real *dp)
{
	for (int64_t r = lo; r < hi; r++) {
		om_real pr = p[src[r]], sum = 0;
		for (int64_t b = 0; b < f; b += OM_SWIGLU_BLOCK) {
			const int64_t n = om_min(f - b, OM_SWIGLU_BLOCK), at = r * f + b;
			om_real term[OM_SWIGLU_BLOCK];
#pragma omp simd
			for (int64_t j = 0; j < n; j++) {
				int64_t i = at + j;
				om_real s = om_sigmoid(g[i]), d = dh[i], a = g[i] * s;
				term[j] = d * a * u[i];
				dg[i] = pr * d * u[i] * s * (1 + g[i] * (1 - s));
				du[i] = pr * d * a;
			}
			sum += om_sum(term, n);
		}
		dp[src[r]] = sum;
	}
}

static inline void
om_swiglu_routed_bwd(int64_t rows, int64_t f, const om_real *dh, const om_real *g, const om_real *u,
    const om_real *p, const int32_t *src, om_real *dg, om_real *du, om_real *dp)
{
#pragma omp parallel
	om_swiglu_routed_bwd_range(om_lo(rows), om_hi(rows), f, dh, g, u, p, src, dg, du, dp);
}

#define OM_SWIGLU(NAME, m, f)                                             \
	_Static_assert((m) >= 1 && (f) >= 1, "swiglu: sizes start at 1"); \
	void NAME(const om_real *g, const om_real *u, om_real *h)         \
	{                                                                 \
		om_swiglu(m, f, g, u, h);                                 \
	}                                                                 \
	double NAME##_check(uint64_t seed)                                \
	{                                                                 \
		return om_swiglu_check(NAME, NULL, m, f, seed);           \
	}

#define OM_SWIGLU_BWD(NAME, m, f)                                                                  \
	_Static_assert((m) >= 1 && (f) >= 1, "swiglu: sizes start at 1");                          \
	void NAME(const om_real *dh, const om_real *g, const om_real *u, om_real *dg, om_real *du) \
	{                                                                                          \
		om_swiglu_bwd(m, f, dh, g, u, dg, du);                                             \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_swiglu_bwd_check(NAME, NULL, m, f, seed);                                \
	}

#define OM_SWIGLU_ROUTED_SIZES(t, k, f)                                               \
	_Static_assert((t) >= 1 && (k) >= 1 && (f) >= 1, "swiglu: sizes start at 1"); \
	_Static_assert((int64_t)(t) * (k) <= INT32_MAX, "swiglu: rows are counted in int32");

#define OM_SWIGLU_ROUTED(NAME, t, k, f)                                                           \
	OM_SWIGLU_ROUTED_SIZES(t, k, f)                                                           \
	void NAME(                                                                                \
	    const om_real *g, const om_real *u, const om_real *p, const int32_t *src, om_real *h) \
	{                                                                                         \
		om_swiglu_routed((int64_t)(t) * (k), f, g, u, p, src, h);                         \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_swiglu_check(NULL, NAME, (int64_t)(t) * (k), f, seed);                  \
	}

#define OM_SWIGLU_ROUTED_BWD(NAME, t, k, f)                                                \
	OM_SWIGLU_ROUTED_SIZES(t, k, f)                                                    \
	void NAME(const om_real *dh, const om_real *g, const om_real *u, const om_real *p, \
	    const int32_t *src, om_real *dg, om_real *du, om_real *dp)                     \
	{                                                                                  \
		om_swiglu_routed_bwd((int64_t)(t) * (k), f, dh, g, u, p, src, dg, du, dp); \
	}                                                                                  \
	double NAME##_check(uint64_t seed)                                                 \
	{                                                                                  \
		return om_swiglu_bwd_check(NULL, NAME, (int64_t)(t) * (k), f, seed);       \
	}

typedef void om_swiglu_fn(const om_real *, const om_real *, om_real *);
typedef void
om_swiglu_routed_fn(const om_real *, const om_real *, const om_real *, const int32_t *, om_real *);
typedef void
om_swiglu_bwd_fn(const om_real *, const om_real *, const om_real *, om_real *, om_real *);
typedef void om_swiglu_routed_bwd_fn(const om_real *, const om_real *, const om_real *,
    const om_real *, const int32_t *, om_real *, om_real *, om_real *);
enum { OM_SWIGLU_SAMPLES = 64 };

/* Row r takes weight (a r + b) mod rows, a coprime to rows: a one-to-one src without a shuffle. */
OM_CHECK int32_t *
om_swiglu_src(int64_t rows, uint64_t seed)
{
	int32_t *src = om_check_alloc(rows, sizeof *src);
	int64_t a = rows / 2 + 1, b = (int64_t)(om_hash(seed, 9) % (uint64_t)rows);
	for (int64_t x = a, y = rows; y;) { /* Euclid; back to 1 when not coprime */
		int64_t rest = x % y;
		x = y;
		y = rest;
		if (!y && x != 1)
			a = 1;
	}
	for (int64_t r = 0; r < rows; r++)
		src[r] = (int32_t)((a * r + b) % rows);
	return src;
}

/* Exactly one of plain and routed is given. */
OM_CHECK double
om_swiglu_check(
    om_swiglu_fn *plain, om_swiglu_routed_fn *routed, int64_t rows, int64_t f, uint64_t seed)
{
	om_real *g = om_check_random(rows * f, seed, 0), *u = om_check_random(rows * f, seed, 1);
	om_real *p = om_check_random(rows, seed, 2), *h = om_check_nan(rows * f);
	int32_t *src = om_swiglu_src(rows, seed);
	struct om_err e = { .scale = 1 };
	if (plain)
		plain(g, u, h);
	else
		routed(g, u, p, src, h);
	for (int64_t s = 0; s < om_samples(rows, OM_SWIGLU_SAMPLES); s++) {
		int64_t r = om_sample(s, rows, OM_SWIGLU_SAMPLES, seed);
		double pr = plain ? 1 : (double)p[src[r]];
		for (int64_t i = r * f; i < (r + 1) * f; i++) {
			double x = g[i];
			om_err_add(&e, h[i], pr * x / (1 + exp(-x)) * (double)u[i]);
		}
	}
	free(g);
	free(u);
	free(p);
	free(h);
	free(src);
	return om_err_value(&e);
}

OM_CHECK double
om_swiglu_bwd_check(om_swiglu_bwd_fn *plain, om_swiglu_routed_bwd_fn *routed, int64_t rows,
    int64_t f, uint64_t seed)
{
	om_real *dh = om_check_random(rows * f, seed, 0), *g = om_check_random(rows * f, seed, 1);
	om_real *u = om_check_random(rows * f, seed, 2), *p = om_check_random(rows, seed, 3);
	om_real *dg = om_check_nan(rows * f), *du = om_check_nan(rows * f),
		*dp = om_check_nan(rows);
	int32_t *src = om_swiglu_src(rows, seed);
	struct om_err eg = { .scale = 1 }, eu = { .scale = 1 }, ep = { .scale = 1 };
	if (plain)
		plain(dh, g, u, dg, du);
	else
		routed(dh, g, u, p, src, dg, du, dp);
	for (int64_t s = 0; s < om_samples(rows, OM_SWIGLU_SAMPLES); s++) {
		int64_t r = om_sample(s, rows, OM_SWIGLU_SAMPLES, seed);
		double pr = plain ? 1 : (double)p[src[r]], sum = 0;
		for (int64_t i = r * f; i < (r + 1) * f; i++) {
			double x = g[i], d = dh[i], sigma = 1 / (1 + exp(-x));
			om_err_add(
			    &eg, dg[i], pr * d * (double)u[i] * (sigma + x * sigma * (1 - sigma)));
			om_err_add(&eu, du[i], pr * d * x * sigma);
			sum += d * x * sigma * (double)u[i];
		}
		if (routed)
			om_err_add(&ep, dp[src[r]], sum);
	}
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
