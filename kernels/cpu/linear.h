/*
 * Linear maps without bias, weights stored [out, in].
 *
 *   linear     y  [m, n]  = x  [m, k] w [n, k]^T
 *   linear_2   ya [m, a], yb [m, b] = x w [a + b, k]^T, w's first rows and the others
 *   linear_3   the same of three
 *   linear_dx  dx [m, k]  = dy [m, n] w [n, k]
 *   linear_dw  dw [n, k] += dy [m, n]^T x [m, k], or without add = dy^T x
 */
#ifndef OM_LINEAR_H
#define OM_LINEAR_H

#include "check.h"
#include "gemm.h"
#include "gemv.h"

#include "gemm_ref.h"

/* By rows of w that lie one after the other: n[i] of them give y[i]. */
static inline void
om_linear(int64_t m, int parts, const int64_t *n, int64_t k, const om_real *x, const om_real *w,
    om_real *const *y)
{
	int64_t all = 0;

	for (int i = 0; i < parts; i++)
		all += n[i];
#pragma omp parallel if (m > 1 || all * k > OM_SERIAL)
	{
		const int nth = omp_get_num_threads();
		const om_real *wi = w;
		int64_t item = 0;
		for (int i = 0; i < parts; wi += n[i] * k, i++) {
			if (m == 1)
				om_gemv_range(om_lo(n[i]), om_hi(n[i]), k, x, wi, y[i]);
			else
				om_gemm_share(&(struct om_gemm){ m, n[i], k, { x, k, false },
						  { wi, k, true }, y[i], n[i], false },
				    nth, omp_get_thread_num(), nth, &item);
		}
	}
}

static inline void
om_linear_dx(int64_t m, int64_t n, int64_t k, const om_real *dy, const om_real *w, om_real *dx)
{
	om_gemm(&(struct om_gemm){ m, k, n, { dy, n, false }, { w, k, false }, dx, k, false });
}

static inline void
om_linear_dw(
    int64_t m, int64_t n, int64_t k, bool add, const om_real *dy, const om_real *x, om_real *dw)
{
	om_gemm(&(struct om_gemm){ n, k, m, { dy, n, true }, { x, k, false }, dw, k, add });
}

#define OM_LINEAR_SIZES(m, n, k) \
	_Static_assert((m) >= 1 && (n) >= 1 && (k) >= 1, "linear: sizes start at 1");

#define OM_LINEAR(NAME, m, n, k)                                                           \
	OM_LINEAR_SIZES(m, n, k)                                                           \
	void NAME(const om_real *x, const om_real *w, om_real *y)                          \
	{                                                                                  \
		om_linear(m, 1, (const int64_t[]){ n }, k, x, w, (om_real *const[]){ y }); \
	}                                                                                  \
	double NAME##_check(uint64_t seed)                                                 \
	{                                                                                  \
		return om_linear_check(NAME, m, n, k, seed);                               \
	}

#define OM_LINEAR_2(NAME, m, a, b, k)                                                              \
	OM_LINEAR_SIZES(m, (a) < (b) ? (a) : (b), k)                                               \
	void NAME(const om_real *x, const om_real *w, om_real *ya, om_real *yb)                    \
	{                                                                                          \
		om_linear(m, 2, (const int64_t[]){ a, b }, k, x, w, (om_real *const[]){ ya, yb }); \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_linear_parts_check(NAME, NULL, m, a, b, 0, k, seed);                     \
	}

#define OM_LINEAR_3(NAME, m, a, b, c, k)                                                     \
	OM_LINEAR_SIZES(m, (a) < (b) ? (a) : (b), k)                                         \
	OM_LINEAR_SIZES(m, c, k)                                                             \
	void NAME(const om_real *x, const om_real *w, om_real *ya, om_real *yb, om_real *yc) \
	{                                                                                    \
		om_linear(m, 3, (const int64_t[]){ a, b, c }, k, x, w,                       \
		    (om_real *const[]){ ya, yb, yc });                                       \
	}                                                                                    \
	double NAME##_check(uint64_t seed)                                                   \
	{                                                                                    \
		return om_linear_parts_check(NULL, NAME, m, a, b, c, k, seed);               \
	}

#define OM_LINEAR_DX(NAME, m, n, k)                                 \
	OM_LINEAR_SIZES(m, n, k)                                    \
	void NAME(const om_real *dy, const om_real *w, om_real *dx) \
	{                                                           \
		om_linear_dx(m, n, k, dy, w, dx);                   \
	}                                                           \
	double NAME##_check(uint64_t seed)                          \
	{                                                           \
		return om_linear_dx_check(NAME, m, n, k, seed);     \
	}

#define OM_LINEAR_DW(NAME, m, n, k, add)                             \
	OM_LINEAR_SIZES(m, n, k)                                     \
	void NAME(const om_real *dy, const om_real *x, om_real *dw)  \
	{                                                            \
		om_linear_dw(m, n, k, add, dy, x, dw);               \
	}                                                            \
	double NAME##_check(uint64_t seed)                           \
	{                                                            \
		return om_linear_dw_check(NAME, m, n, k, add, seed); \
	}

typedef void om_linear_fn(const om_real *, const om_real *, om_real *);
enum { OM_LINEAR_SAMPLES = 256 };

OM_CHECK double
om_linear_check(om_linear_fn *run, int64_t m, int64_t n, int64_t k, uint64_t seed)
{
	om_real *x = om_check_random(m * k, seed, 0), *w = om_check_random(n * k, seed, 1);
	om_real *y = om_check_nan(m * n);
	struct om_err e = { .scale = 1 };
	run(x, w, y);
	for (int64_t s = 0; s < om_samples(m * n, OM_LINEAR_SAMPLES); s++) {
		int64_t at = om_sample(s, m * n, OM_LINEAR_SAMPLES, seed), i = at / n, j = at % n;
		om_err_add(&e, y[at],
		    om_gemm_ref((struct om_walk){ { x }, i * k, 1 },
			(struct om_walk){ { w }, j * k, 1 }, k));
	}
	free(x);
	free(w);
	free(y);
	return om_err_value(&e);
}

/* Of two parts, or of three. */
OM_CHECK double
om_linear_parts_check(void (*two)(const om_real *, const om_real *, om_real *, om_real *),
    void (*three)(const om_real *, const om_real *, om_real *, om_real *, om_real *), int64_t m,
    int64_t a, int64_t b, int64_t c, int64_t k, uint64_t seed)
{
	const int64_t n = a + b + c;
	om_real *x = om_check_random(m * k, seed, 0), *w = om_check_random(n * k, seed, 1);
	om_real *y[] = { om_check_nan(m * a), om_check_nan(m * b), om_check_nan(m * c) };
	struct om_err e = { .scale = 1 };
	two ? two(x, w, y[0], y[1]) : three(x, w, y[0], y[1], y[2]);
	for (int64_t s = 0; s < om_samples(m * n, OM_LINEAR_SAMPLES); s++) {
		int64_t at = om_sample(s, m * n, OM_LINEAR_SAMPLES, seed), i = at / n, j = at % n;
		om_err_add(&e,
		    j < a       ? y[0][i * a + j]
		    : j < a + b ? y[1][i * b + j - a]
				: y[2][i * c + j - a - b],
		    om_gemm_ref((struct om_walk){ { x }, i * k, 1 },
			(struct om_walk){ { w }, j * k, 1 }, k));
	}
	for (int i = 0; i < 3; i++)
		free(y[i]);
	free(x);
	free(w);
	return om_err_value(&e);
}

OM_CHECK double
om_linear_dx_check(om_linear_fn *run, int64_t m, int64_t n, int64_t k, uint64_t seed)
{
	om_real *dy = om_check_random(m * n, seed, 0), *w = om_check_random(n * k, seed, 1);
	om_real *dx = om_check_nan(m * k);
	struct om_err e = { .scale = 1 };
	run(dy, w, dx);
	for (int64_t s = 0; s < om_samples(m * k, OM_LINEAR_SAMPLES); s++) {
		int64_t at = om_sample(s, m * k, OM_LINEAR_SAMPLES, seed), i = at / k, j = at % k;
		om_err_add(&e, dx[at],
		    om_gemm_ref(
			(struct om_walk){ { dy }, i * n, 1 }, (struct om_walk){ { w }, j, k }, n));
	}
	free(dy);
	free(w);
	free(dx);
	return om_err_value(&e);
}

OM_CHECK double
om_linear_dw_check(om_linear_fn *run, int64_t m, int64_t n, int64_t k, bool add, uint64_t seed)
{
	om_real *dy = om_check_random(m * n, seed, 0), *x = om_check_random(m * k, seed, 1);
	om_real *dw = om_check_sum(n * k, add, seed, 2), *old = om_check_copy(dw, n * k);
	struct om_err e = { .scale = 1 };
	run(dy, x, dw);
	for (int64_t s = 0; s < om_samples(n * k, OM_LINEAR_SAMPLES); s++) {
		int64_t at = om_sample(s, n * k, OM_LINEAR_SAMPLES, seed), i = at / k, j = at % k;
		om_err_add(&e, dw[at],
		    (add ? (double)old[at] : 0) + om_gemm_ref((struct om_walk){ { dy }, i, n },
						      (struct om_walk){ { x }, j, k }, m));
	}
	free(dy);
	free(x);
	free(dw);
	free(old);
	return om_err_value(&e);
}

#endif
