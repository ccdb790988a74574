/*
 * Rows between token order and expert order; every token has k rows, src[row] = token * k + choice,
 * and row [t, k] is its inverse.
 *
 *   dispatch  xr [t * k, n], row r, = x [t, n], row src[r] / k
 *   combine   x [t, n] = sum over k, in order, of y [t * k, n] at row[t, k]
 */
#ifndef OM_DISPATCH_H
#define OM_DISPATCH_H

#include "check.h"

#include "dispatch_ref.h"

static inline void
om_dispatch(int64_t t, int64_t k, int64_t n, const om_real *x, const int32_t *src, om_real *xr)
{
#pragma omp parallel for schedule(static) if (t * k * n > OM_SERIAL)
	for (int64_t r = 0; r < t * k; r++)
		memcpy(xr + r * n, x + src[r] / k * n, (size_t)n * sizeof *x);
}

static OM_CLONES void
om_combine_range(
    int64_t lo, int64_t hi, int64_t k, int64_t n, const om_real *y, const int32_t *row, om_real *x)
{
	for (int64_t i = lo; i < hi; i++) {
		om_real *d = x + i * n;
		memcpy(d, y + row[i * k] * n, (size_t)n * sizeof *d);
		for (int64_t c = 1; c < k; c++) {
			const om_real *s = y + row[i * k + c] * n;
#pragma omp simd
			for (int64_t j = 0; j < n; j++)
				d[j] += s[j];
		}
	}
}

static inline void
om_combine(int64_t t, int64_t k, int64_t n, const om_real *y, const int32_t *row, om_real *x)
{
#pragma omp parallel if (t * k * n > OM_SERIAL)
	om_combine_range(om_lo(t), om_hi(t), k, n, y, row, x);
}

#define OM_DISPATCH_SIZES(t, k, n)                                                      \
	_Static_assert((t) >= 1 && (k) >= 1 && (n) >= 1, "dispatch: sizes start at 1"); \
	_Static_assert((int64_t)(t) * (k) <= INT32_MAX, "dispatch: rows are counted in int32");

#define OM_DISPATCH(NAME, t, k, n)                                                       \
	OM_DISPATCH_SIZES(t, k, n)                                                       \
	void NAME(const om_real *x, const int32_t *row, const int32_t *src, om_real *xr) \
	{                                                                                \
		(void)row;                                                               \
		om_dispatch(t, k, n, x, src, xr);                                        \
	}                                                                                \
	double NAME##_check(uint64_t seed)                                               \
	{                                                                                \
		return om_dispatch_check(NAME, t, k, n, seed);                           \
	}

#define OM_COMBINE(NAME, t, k, n)                                                       \
	OM_DISPATCH_SIZES(t, k, n)                                                      \
	void NAME(const om_real *y, const int32_t *row, const int32_t *src, om_real *x) \
	{                                                                               \
		(void)src;                                                              \
		om_combine(t, k, n, y, row, x);                                         \
	}                                                                               \
	double NAME##_check(uint64_t seed)                                              \
	{                                                                               \
		return om_combine_check(NAME, t, k, n, seed);                           \
	}

typedef void om_dispatch_fn(const om_real *, const int32_t *, const int32_t *, om_real *);

/* A random order of rows and its inverse. */
OM_CHECK void
om_dispatch_order(int64_t rows, uint64_t seed, int32_t **row, int32_t **src)
{
	*row = om_check_alloc(rows, sizeof **row);
	*src = om_check_alloc(rows, sizeof **src);
	for (int64_t i = 0; i < rows; i++)
		(*src)[i] = (int32_t)i;
	for (int64_t i = rows - 1; i > 0; i--) {
		int64_t j = (int64_t)(om_hash(seed, (uint64_t)i) % (uint64_t)(i + 1));
		int32_t swap = (*src)[i];
		(*src)[i] = (*src)[j];
		(*src)[j] = swap;
	}
	for (int64_t i = 0; i < rows; i++)
		(*row)[(*src)[i]] = (int32_t)i;
}

OM_CHECK double
om_dispatch_check(om_dispatch_fn *run, int64_t t, int64_t k, int64_t n, uint64_t seed)
{
	int32_t *row, *src;
	om_dispatch_order(t * k, seed, &row, &src);
	om_real *x = om_check_random(t * n, seed, 1), *xr = om_check_nan(t * k * n);
	struct om_err e = { .scale = 1 };
	run(x, row, src, xr);
	for (int64_t r = 0; r < t * k; r++) {
		for (int64_t j = 0; j < n; j++)
			om_err_add(&e, xr[r * n + j],
			    om_dispatch_ref((struct om_in){ x }, src, k, n, r, j));
	}
	free(row);
	free(src);
	free(x);
	free(xr);
	return om_err_value(&e);
}

OM_CHECK double
om_combine_check(om_dispatch_fn *run, int64_t t, int64_t k, int64_t n, uint64_t seed)
{
	int32_t *row, *src;
	om_dispatch_order(t * k, seed, &row, &src);
	om_real *y = om_check_random(t * k * n, seed, 1), *x = om_check_nan(t * n);
	struct om_err e = { .scale = 1 };
	run(y, row, src, x);
	for (int64_t i = 0; i < t * n; i++)
		om_err_add(&e, x[i], om_combine_ref((struct om_in){ y }, row, k, n, i / n, i % n));
	free(row);
	free(src);
	free(y);
	free(x);
	return om_err_value(&e);
}

#endif
