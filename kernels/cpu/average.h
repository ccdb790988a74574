/*
 * An average of the weights, beside them: average: e [n] += rate[0] (x - e), and x itself where the
 * rate is 1. The host says the rate of each step, by which it is a moving average or a mean.
 */
#ifndef OM_AVERAGE_H
#define OM_AVERAGE_H

#include "check.h"

static OM_CLONES void
om_average_range(int64_t lo, int64_t hi, om_real rate, const om_real *x, om_real *e)
{
	if (rate >= 1) {
		memcpy(e + lo, x + lo, (size_t)(hi - lo) * sizeof *e);
		return;
	}
#pragma omp simd
	for (int64_t i = lo; i < hi; i++)
		e[i] += rate * (x[i] - e[i]);
}

static inline void
om_average(int64_t n, const om_real *x, const double *rate, om_real *e)
{
#pragma omp parallel
	om_average_range(om_lo(n), om_hi(n), (om_real)*rate, x, e);
}

#define OM_AVERAGE(NAME, n)                                         \
	_Static_assert((n) >= 1, "average: sizes start at 1");      \
	void NAME(const om_real *w, const double *rate, om_real *e) \
	{                                                           \
		om_average(n, w, rate, e);                          \
	}                                                           \
	double NAME##_check(uint64_t seed)                          \
	{                                                           \
		return om_average_check(NAME, NULL, n, seed);       \
	}

/* Of masters; w is their rounding, and not read. */
#define OM_AVERAGE_MASTER(NAME, n)                                                         \
	_Static_assert((n) >= 1, "average_master: sizes start at 1");                      \
	void NAME(const om_real *w, const om_real *master, const double *rate, om_real *e) \
	{                                                                                  \
		(void)w;                                                                   \
		om_average(n, master, rate, e);                                            \
	}                                                                                  \
	double NAME##_check(uint64_t seed)                                                 \
	{                                                                                  \
		return om_average_check(NULL, NAME, n, seed);                              \
	}

/* A step of a moving average, and one that takes the weights themselves. */
OM_CHECK double
om_average_check(void (*plain)(const om_real *, const double *, om_real *),
    void (*master)(const om_real *, const om_real *, const double *, om_real *), int64_t n,
    uint64_t seed)
{
	om_real *x = om_check_random(n, seed, 0), *e = om_check_random(n, seed, 1);
	om_real *old = om_check_copy(e, n);
	const double rate[2] = { 0.03125, 1 };
	struct om_err err = { .scale = 1 };

	plain ? plain(x, &rate[0], e) : master(NULL, x, &rate[0], e);
	for (int64_t i = 0; i < n; i++)
		om_err_add(&err, e[i], (double)old[i] + rate[0] * ((double)x[i] - (double)old[i]));
	plain ? plain(x, &rate[1], e) : master(NULL, x, &rate[1], e);
	err.wrong |= memcmp(e, x, (size_t)n * sizeof *e) != 0;
	free(x);
	free(e);
	free(old);
	return om_err_value(&err);
}

#endif
