/*
 * bf16 in a float's place: the upper half of its bits, the lower half zero. The launch functions of
 * a bf16 trainer round what a kernel has computed in fp32 to the nearest, ties to even, where a GPU
 * rounds as it stores. What is too large becomes infinite, a NaN stays one, quiet.
 *
 *   om_round   x [n], in place
 */
#ifndef OM_ROUND_H
#define OM_ROUND_H

#include "check.h"

static OM_INLINE float
om_rounded(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	/* half of the last place, less one where that is even; it may carry into infinity */
	uint32_t near = bits + 0x7fff + (bits >> 16 & 1);
	uint32_t nan = bits | 0x400000;
	bits = ((bits & 0x7fffffff) > 0x7f800000 ? nan : near) & 0xffff0000;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static OM_CLONES void
om_round_range(int64_t lo, int64_t hi, const om_real *x, om_real *y)
{
#pragma omp simd
	for (int64_t i = lo; i < hi; i++)
		y[i] = (om_real)om_rounded((float)x[i]);
}

static inline void
om_round(int64_t n, om_real *x)
{
#pragma omp parallel if (n > OM_SERIAL)
	om_round_range(om_lo(n), om_hi(n), x, x);
}

/*
 * For the checks: the nearer of the two bf16 that x lies between, by their distances, which double
 * holds exactly; 2^128 in place of infinity. NaN is for the caller to look at.
 */
OM_CHECK float
om_check_bf16(float x)
{
	uint32_t low, high;
	memcpy(&low, &x, sizeof low);
	low &= 0xffff0000;
	high = low + 0x10000; /* away from zero */
	float a, b;
	memcpy(&a, &low, sizeof a);
	memcpy(&b, &high, sizeof b);
	if (!isfinite(x) || x == a)
		return x;
	double to_a = fabs((double)x - (double)a);
	double to_b = fabs((isinf(b) ? copysign(0x1p128, (double)b) : (double)b) - (double)x);
	return to_a < to_b || (to_a == to_b && !(low >> 16 & 1)) ? a : b;
}

#endif
