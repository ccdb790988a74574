/*
 * Element by element, on [m, n].
 *
 *   add       y = a + b; y may be a or b
 *   add_rows  the same of rows up to off[j-1] of [c, n]; the others are neither read nor written
 *   bias      y = x + c, c [n] added to each row; y may be x
 *   bias_bwd  dc [n] += sum over rows of dy, or without add =
 *   scale     y = factor x; y may be x
 *
 * ws [c, n] holds dc summed over c fixed ranges of rows; their order of addition is fixed too.
 */
#ifndef OM_ADD_H
#define OM_ADD_H

#include "check.h"

#include "add_ref.h"

static OM_CLONES void
om_add_range(int64_t lo, int64_t hi, const om_real *a, const om_real *b, om_real *y)
{
#pragma omp simd
	for (int64_t i = lo; i < hi; i++)
		y[i] = a[i] + b[i];
}

static inline void
om_add(int64_t m, int64_t n, const om_real *a, const om_real *b, om_real *y)
{
#pragma omp parallel if (m * n > OM_SERIAL)
	om_add_range(om_lo(m * n), om_hi(m * n), a, b, y);
}

static OM_CLONES void
om_bias_range(int64_t lo, int64_t hi, int64_t n, const om_real *x, const om_real *bias, om_real *y)
{
	for (int64_t i = lo; i < hi; i++) {
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			y[i * n + j] = x[i * n + j] + bias[j];
	}
}

static inline void
om_bias(int64_t m, int64_t n, const om_real *x, const om_real *bias, om_real *y)
{
#pragma omp parallel if (m * n > OM_SERIAL)
	om_bias_range(om_lo(m), om_hi(m), n, x, bias, y);
}

/* The sum of these rows alone. */
static OM_CLONES void
om_bias_bwd_range(int64_t lo, int64_t hi, int64_t n, const om_real *dy, om_real *sum)
{
	memset(sum, 0, (size_t)n * sizeof *sum);
	for (int64_t i = lo; i < hi; i++) {
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			sum[j] += dy[i * n + j];
	}
}

static inline void
om_bias_bwd(
    int64_t m, int64_t n, int64_t c, bool add, const om_real *dy, om_real *dbias, om_real *ws)
{
#pragma omp parallel for schedule(static)
	for (int64_t p = 0; p < c; p++)
		om_bias_bwd_range(m * p / c, m * (p + 1) / c, n, dy, ws + p * n);
	om_sum_rows(n, c, add, ws, dbias);
}

static OM_CLONES void
om_scale_range(int64_t lo, int64_t hi, om_real factor, const om_real *x, om_real *y)
{
#pragma omp simd
	for (int64_t i = lo; i < hi; i++)
		y[i] = factor * x[i];
}

static inline void
om_scale(int64_t m, int64_t n, double factor, const om_real *x, om_real *y)
{
#pragma omp parallel if (m * n > OM_SERIAL)
	om_scale_range(om_lo(m * n), om_hi(m * n), (om_real)factor, x, y);
}

#define OM_ADD(NAME, m, n)                                             \
	_Static_assert((m) >= 1 && (n) >= 1, "add: sizes start at 1"); \
	void NAME(const om_real *a, const om_real *b, om_real *y)      \
	{                                                              \
		om_add(m, n, a, b, y);                                 \
	}                                                              \
	double NAME##_check(uint64_t seed)                             \
	{                                                              \
		return om_add_check(NAME, NULL, NULL, m, n, 0, seed);  \
	}

#define OM_ADD_ROWS(NAME, c, n, j)                                                      \
	_Static_assert((c) >= 1 && (n) >= 1 && (j) >= 1, "add_rows: sizes start at 1"); \
	void NAME(const om_real *a, const om_real *b, const int32_t *off, om_real *y)   \
	{                                                                               \
		om_add(off[(j)-1], n, a, b, y);                                         \
	}                                                                               \
	double NAME##_check(uint64_t seed)                                              \
	{                                                                               \
		return om_add_rows_check(NAME, c, n, j, seed);                          \
	}

#define OM_BIAS(NAME, m, n)                                             \
	_Static_assert((m) >= 1 && (n) >= 1, "bias: sizes start at 1"); \
	void NAME(const om_real *x, const om_real *bias, om_real *y)    \
	{                                                               \
		om_bias(m, n, x, bias, y);                              \
	}                                                               \
	double NAME##_check(uint64_t seed)                              \
	{                                                               \
		return om_add_check(NULL, NAME, NULL, m, n, 0, seed);   \
	}

#define OM_BIAS_BWD(NAME, m, n, c, add)                                     \
	_Static_assert((m) >= 1 && (n) >= 1, "bias_bwd: sizes start at 1"); \
	_Static_assert((c) >= 1, "bias_bwd: at least one partial sum");     \
	void NAME(const om_real *dy, om_real *dbias, om_real *ws)           \
	{                                                                   \
		om_bias_bwd(m, n, c, add, dy, dbias, ws);                   \
	}                                                                   \
	double NAME##_check(uint64_t seed)                                  \
	{                                                                   \
		return om_bias_bwd_check(NAME, m, n, c, add, seed);         \
	}

#define OM_SCALE(NAME, m, n, factor)                                       \
	_Static_assert((m) >= 1 && (n) >= 1, "scale: sizes start at 1");   \
	void NAME(const om_real *x, om_real *y)                            \
	{                                                                  \
		om_scale(m, n, factor, x, y);                              \
	}                                                                  \
	double NAME##_check(uint64_t seed)                                 \
	{                                                                  \
		return om_add_check(NULL, NULL, NAME, m, n, factor, seed); \
	}

typedef void om_add_fn(const om_real *, const om_real *, om_real *);
typedef void om_scale_fn(const om_real *, om_real *);
enum { OM_BIAS_SAMPLES = 64 };

/* The three that give y, whichever is given. */
OM_CHECK double
om_add_check(om_add_fn *add, om_add_fn *bias, om_scale_fn *scale, int64_t m, int64_t n,
    double factor, uint64_t seed)
{
	om_real *a = om_check_random(m * n, seed, 0), *b = om_check_random(m * n, seed, 1);
	om_real *c = om_check_random(n, seed, 2), *y = om_check_nan(m * n);
	struct om_err e = { .scale = 1 };
	if (add)
		add(a, b, y);
	if (bias)
		bias(a, c, y);
	if (scale)
		scale(a, y);
	const struct om_in x = { a };
	for (int64_t i = 0; i < m * n; i++)
		om_err_add(&e, y[i],
		    add    ? om_add_ref(x, (struct om_in){ b }, i)
		    : bias ? om_bias_ref_y(x, (struct om_in){ c }, n, i)
			   : om_scale_ref(x, factor, i));
	free(a);
	free(b);
	free(c);
	free(y);
	return om_err_value(&e);
}

OM_CHECK double
om_add_rows_check(void (*run)(const om_real *, const om_real *, const int32_t *, om_real *),
    int64_t c, int64_t n, int64_t j, uint64_t seed)
{
	om_real *a = om_check_random(c * n, seed, 0), *b = om_check_random(c * n, seed, 1);
	om_real *y = om_check_nan(c * n);
	int32_t *off = om_check_ints(j, c + 1, seed, 2);
	struct om_err e = { .scale = 1 };
	for (int64_t i = off[j - 1] * n; i < c * n; i++)
		a[i] = (om_real)NAN;
	run(a, b, off, y);
	for (int64_t i = 0; i < c * n; i++)
		if (i < off[j - 1] * n)
			om_err_add(
			    &e, y[i], om_add_ref((struct om_in){ a }, (struct om_in){ b }, i));
		else if (!isnan(y[i]))
			e.wrong = true;
	free(a);
	free(b);
	free(y);
	free(off);
	return om_err_value(&e);
}

OM_CHECK double
om_bias_bwd_check(void (*run)(const om_real *, om_real *, om_real *), int64_t m, int64_t n,
    int64_t c, bool add, uint64_t seed)
{
	om_real *dy = om_check_random(m * n, seed, 0), *ws = om_check_nan(c * n);
	om_real *dc = om_check_sum(n, add, seed, 1), *old = om_check_copy(dc, n);
	struct om_err e = { .scale = 1 };
	run(dy, dc, ws);
	for (int64_t s = 0; s < om_samples(n, OM_BIAS_SAMPLES); s++) {
		int64_t j = om_sample(s, n, OM_BIAS_SAMPLES, seed);
		om_err_add(&e, dc[j],
		    (add ? (double)old[j] : 0) + om_bias_ref_dc((struct om_in){ dy }, m, n, j));
	}
	free(dy);
	free(ws);
	free(dc);
	free(old);
	return om_err_value(&e);
}

#endif
