/*
 * Root mean square norm (Zhang and Sennrich, 2019). A row of h * n numbers is h groups of n, each
 * normalised on its own; the groups share w [n].
 *
 *   rmsnorm      y [m, h * n] = x r w, r [m * h] = 1 / sqrt(mean(x^2) + eps)
 *   rmsnorm_bwd  dx = r (dy w - x r^2 mean(dy w x)); dx may be dy;
 *                dw [n] += sum over groups of dy x r, or without add =
 *
 * ws [c, n] holds dw summed over c fixed ranges of groups; their order of addition is fixed too.
 */
#ifndef OM_RMSNORM_H
#define OM_RMSNORM_H

#include "check.h"

#include "rmsnorm_ref.h"

static OM_CLONES void
om_rmsnorm_range(int64_t lo, int64_t hi, int64_t n, om_real eps, const om_real *x, const om_real *w,
    om_real *y, om_real *r)
{
	for (int64_t i = lo; i < hi; i++) {
		const om_real *xi = x + i * n;
		om_real *yi = y + i * n;
		om_real ri = 1 / (om_real)sqrt(om_dot(xi, xi, n) / (om_real)n + eps);
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			yi[j] = xi[j] * ri * w[j];
		r[i] = ri;
	}
}

static inline void
om_rmsnorm(int64_t m, int64_t h, int64_t n, double eps, const om_real *x, const om_real *w,
    om_real *y, om_real *r)
{
#pragma omp parallel if (m * h * n > OM_SERIAL)
	om_rmsnorm_range(om_lo(m * h), om_hi(m * h), n, (om_real)eps, x, w, y, r);
}

/* dx, and dw of these groups alone */
static OM_CLONES void
om_rmsnorm_bwd_range(int64_t lo, int64_t hi, int64_t n, const om_real *dy, const om_real *x,
    const om_real *w, const om_real *r, om_real *dx, om_real *dw)
{
	memset(dw, 0, (size_t)n * sizeof *dw);
	for (int64_t i = lo; i < hi; i++) {
		const om_real *dyi = dy + i * n, *xi = x + i * n;
		om_real *dxi = dx + i * n;
		om_vec acc[2] = { 0 };
		om_real lane[OM_LANES], ri = r[i];
		int64_t j = 0;
		for (; j + OM_LANES <= n; j += OM_LANES) {
			for (int v = 0; v < 2; v++) {
				const int64_t at = j + v * OM_WIDTH;
				om_vec t =
				    *(const om_vecu *)(dyi + at) * *(const om_vecu *)(xi + at);
				acc[v] += t * *(const om_vecu *)(w + at);
				*(om_vecu *)(dw + at) += t * ri;
			}
		}
		memcpy(lane, acc, sizeof acc);
		for (int l = 0; j < n; j++, l++) {
			om_real t = dyi[j] * xi[j];
			lane[l] += t * w[j];
			dw[j] += t * ri;
		}
		om_real along = om_lanes_sum(lane) * ri * ri / (om_real)n;
#pragma omp simd
		for (int64_t c = 0; c < n; c++)
			dxi[c] = ri * (dyi[c] * w[c] - xi[c] * along);
	}
}

static inline void
om_rmsnorm_bwd(int64_t m, int64_t h, int64_t n, int64_t c, bool add, const om_real *dy,
    const om_real *x, const om_real *w, const om_real *r, om_real *dx, om_real *dw, om_real *ws)
{
	const int64_t groups = m * h;
#pragma omp parallel for schedule(static)
	for (int64_t p = 0; p < c; p++)
		om_rmsnorm_bwd_range(
		    groups * p / c, groups * (p + 1) / c, n, dy, x, w, r, dx, ws + p * n);
	om_sum_rows(n, c, add, ws, dw);
}

#define OM_RMSNORM_SIZES(m, h, n) \
	_Static_assert((m) >= 1 && (h) >= 1 && (n) >= 1, "rmsnorm: sizes start at 1");

#define OM_RMSNORM(NAME, m, h, n, eps)                                        \
	OM_RMSNORM_SIZES(m, h, n)                                             \
	void NAME(const om_real *x, const om_real *w, om_real *y, om_real *r) \
	{                                                                     \
		om_rmsnorm(m, h, n, eps, x, w, y, r);                         \
	}                                                                     \
	double NAME##_check(uint64_t seed)                                    \
	{                                                                     \
		return om_rmsnorm_check(NAME, m, h, n, eps, seed);            \
	}

#define OM_RMSNORM_BWD(NAME, m, h, n, c, add)                                              \
	OM_RMSNORM_SIZES(m, h, n)                                                          \
	_Static_assert((c) >= 1, "rmsnorm_bwd: at least one partial sum");                 \
	void NAME(const om_real *dy, const om_real *x, const om_real *w, const om_real *r, \
	    om_real *dx, om_real *dw, om_real *ws)                                         \
	{                                                                                  \
		om_rmsnorm_bwd(m, h, n, c, add, dy, x, w, r, dx, dw, ws);                  \
	}                                                                                  \
	double NAME##_check(uint64_t seed)                                                 \
	{                                                                                  \
		return om_rmsnorm_bwd_check(NAME, m, h, n, c, add, seed);                  \
	}

typedef void om_rmsnorm_fn(const om_real *, const om_real *, om_real *, om_real *);
typedef void om_rmsnorm_bwd_fn(const om_real *, const om_real *, const om_real *, const om_real *,
    om_real *, om_real *, om_real *);
enum { OM_RMSNORM_SAMPLES = 64 };

OM_CHECK double
om_rmsnorm_check(om_rmsnorm_fn *run, int64_t m, int64_t h, int64_t n, double eps, uint64_t seed)
{
	const int64_t groups = m * h;
	om_real *x = om_check_random(groups * n, seed, 0), *w = om_check_random(n, seed, 1);
	om_real *y = om_check_nan(groups * n), *r = om_check_nan(groups);
	const struct om_in in = { x }, by = { w };
	struct om_err ey = { .scale = 1 }, er = { 0 };
	run(x, w, y, r);
	for (int64_t s = 0; s < om_samples(groups, OM_RMSNORM_SAMPLES); s++) {
		int64_t i = om_sample(s, groups, OM_RMSNORM_SAMPLES, seed);
		double ri = om_rmsnorm_ref_r(in, n, eps, i);
		om_err_add(&er, r[i], ri);
		for (int64_t j = 0; j < n; j++)
			om_err_add(&ey, y[i * n + j], om_rmsnorm_ref_y(in, by, ri, n, i, j));
	}
	free(x);
	free(w);
	free(y);
	free(r);
	return om_worse(om_err_value(&ey), om_err_value(&er));
}

OM_CHECK double
om_rmsnorm_bwd_check(
    om_rmsnorm_bwd_fn *run, int64_t m, int64_t h, int64_t n, int64_t c, bool add, uint64_t seed)
{
	const int64_t groups = m * h;
	om_real *dy = om_check_random(groups * n, seed, 0),
		*x = om_check_random(groups * n, seed, 1);
	om_real *w = om_check_random(n, seed, 2), *r = om_check_random(groups, seed, 3);
	om_real *dx = om_check_nan(groups * n), *ws = om_check_nan(c * n);
	om_real *dw = om_check_sum(n, add, seed, 4), *old = om_check_copy(dw, n);
	const struct om_in grad = { dy }, in = { x }, by = { w };
	struct om_err ex = { .scale = 1 }, ew = { .scale = 1 };
	for (int64_t i = 0; i < groups; i++)
		r[i] = (om_real)fabs(r[i]) + (om_real)0.5;
	run(dy, x, w, r, dx, dw, ws);
	for (int64_t s = 0; s < om_samples(groups, OM_RMSNORM_SAMPLES); s++) {
		int64_t i = om_sample(s, groups, OM_RMSNORM_SAMPLES, seed);
		double ri = r[i], along = om_rmsnorm_ref_along(grad, in, by, n, i);
		for (int64_t j = 0; j < n; j++)
			om_err_add(&ex, dx[i * n + j],
			    om_rmsnorm_ref_dx(grad, in, by, ri, along, n, i, j));
	}
	for (int64_t s = 0; s < om_samples(n, OM_RMSNORM_SAMPLES); s++) {
		int64_t j = om_sample(s, n, OM_RMSNORM_SAMPLES, seed);
		om_err_add(&ew, dw[j],
		    (add ? (double)old[j] : 0) +
			om_rmsnorm_ref_dw(grad, in, (struct om_in){ r }, groups, n, j));
	}
	free(dy);
	free(x);
	free(w);
	free(r);
	free(dx);
	free(ws);
	free(dw);
	free(old);
	return om_worse(om_err_value(&ex), om_err_value(&ew));
}

#endif
