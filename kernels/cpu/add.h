/*
 * y [m, n] = a + b; y may be a or b.
 */
#include "check.h"

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
#pragma omp parallel
	om_add_range(om_lo(m * n), om_hi(m * n), a, b, y);
}

#define OM_ADD(NAME, m, n)                                             \
	_Static_assert((m) >= 1 && (n) >= 1, "add: sizes start at 1"); \
	void NAME(const om_real *a, const om_real *b, om_real *y)      \
	{                                                              \
		om_add(m, n, a, b, y);                                 \
	}                                                              \
	double NAME##_check(uint64_t seed)                             \
	{                                                              \
		return om_add_check(NAME, m, n, seed);                 \
	}

OM_CHECK double
om_add_check(
    void (*run)(const om_real *, const om_real *, om_real *), int64_t m, int64_t n, uint64_t seed)
{
	om_real *a = om_check_random(m * n, seed, 0), *b = om_check_random(m * n, seed, 1);
	om_real *y = om_check_nan(m * n);
	struct om_err e = { .scale = 1 };
	run(a, b, y);
	for (int64_t i = 0; i < m * n; i++)
		om_err_add(&e, y[i], (double)a[i] + (double)b[i]);
	free(a);
	free(b);
	free(y);
	return om_err_value(&e);
}
