/*
 * For the checks: counter-based random numbers, filled and poisoned arrays, errors that see NaN.
 *
 * A check runs its kernel on random inputs of unit scale, with NaN in whatever the kernel must
 * overwrite, and compares a sample of the outputs with the definition, computed plainly in double.
 * It gives the largest error over the largest magnitude of the sampled reference, or OM_WRONG: an
 * integer that differs, a NaN, a write where none belongs. Where sums may cancel, the magnitude
 * counts as at least that of their terms, so that a small sample of small sums isn't a failure.
 */
#ifndef OM_CHECK_H
#define OM_CHECK_H

#include <float.h>
#include <stdlib.h>

#include "om_cpu.h"

#define OM_WRONG 1e30
#define OM_CHECK static __attribute__((noinline, cold, unused))

/* splitmix64's finaliser (Steele, Lea, Flood 2014) over seed and counter */
static inline uint64_t
om_hash(uint64_t seed, uint64_t i)
{
	uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xd1342543de82ef95u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* Uniform in [-sqrt 3, sqrt 3): mean 0, variance 1. */
static inline double
om_unit(uint64_t seed, uint64_t i)
{
	return ((double)(om_hash(seed, i) >> 11) * 0x1p-53 - 0.5) * 3.4641016151377544;
}

OM_CHECK void *
om_check_alloc(int64_t n, size_t size)
{
	void *p = malloc(n > 0 ? (size_t)n * size : 1);
	if (!p)
		abort();
	return p;
}

/* n random numbers; stream tells the arrays of one check apart */
OM_CHECK om_real *
om_check_random(int64_t n, uint64_t seed, int stream)
{
	om_real *p = om_check_alloc(n, sizeof *p);
	for (int64_t i = 0; i < n; i++)
		p[i] = (om_real)om_unit(om_hash(seed, (uint64_t)stream), (uint64_t)i);
	return p;
}

OM_CHECK om_real *
om_check_nan(int64_t n)
{
	om_real *p = om_check_alloc(n, sizeof *p);
	for (int64_t i = 0; i < n; i++)
		p[i] = (om_real)NAN;
	return p;
}

/* What is added to; without add, what must be overwritten. */
OM_CHECK om_real *
om_check_sum(int64_t n, bool add, uint64_t seed, int stream)
{
	return add ? om_check_random(n, seed, stream) : om_check_nan(n);
}

/* A tail that must be neither read nor written: of inputs NaN, of outputs a number. */
OM_CHECK void
om_check_spoil(om_real *p, int64_t used, int64_t n)
{
	for (int64_t i = used; i < n; i++)
		p[i] = (om_real)NAN;
}

OM_CHECK om_real *
om_check_output(int64_t used, int64_t n)
{
	om_real *p = om_check_nan(n);
	for (int64_t i = used; i < n; i++)
		p[i] = 7;
	return p;
}

OM_CHECK bool
om_check_kept(const om_real *p, int64_t used, int64_t n)
{
	bool kept = true;
	for (int64_t i = used; i < n; i++)
		kept &= p[i] == 7;
	return kept;
}

OM_CHECK om_real *
om_check_copy(const om_real *s, int64_t n)
{
	om_real *p = om_check_alloc(n, sizeof *p);
	memcpy(p, s, (size_t)n * sizeof *p);
	return p;
}

/* n random integers in [0, below) */
OM_CHECK int32_t *
om_check_ints(int64_t n, int64_t below, uint64_t seed, int stream)
{
	int32_t *p = om_check_alloc(n, sizeof *p);
	for (int64_t i = 0; i < n; i++)
		p[i] = (int32_t)(om_hash(om_hash(seed, (uint64_t)stream), (uint64_t)i) %
				 (uint64_t)below);
	return p;
}

/* How many of total are looked at, and which: all when they are few. */
static inline int64_t
om_samples(int64_t total, int64_t most)
{
	return om_min(total, most);
}

static inline int64_t
om_sample(int64_t s, int64_t total, int64_t most, uint64_t seed)
{
	return total <= most ? s : (int64_t)(om_hash(seed, (uint64_t)s) % (uint64_t)total);
}

/* What a check gave its kernel, as references read it (FAMILY_ref.h). */
struct om_in {
	const om_real *x;
};

static inline double
om_in(struct om_in a, int64_t i)
{
	return (double)a.x[i];
}

struct om_err {
	double diff, scale;
	bool wrong;
};

static inline void
om_err_add(struct om_err *e, double got, double want)
{
	double d = fabs(got - want);
	if (!(d <= DBL_MAX))
		e->wrong = true;
	if (d > e->diff)
		e->diff = d;
	if (fabs(want) > e->scale)
		e->scale = fabs(want);
}

static inline double
om_err_value(const struct om_err *e)
{
	if (e->wrong)
		return OM_WRONG;
	return e->scale > 0 ? e->diff / e->scale : e->diff;
}

/* The larger of two results of checks. */
static inline double
om_worse(double a, double b)
{
	return a > b ? a : b;
}

#endif
