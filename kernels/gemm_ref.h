/*
 * Matrix products by their definition, in double: what the checks of linear.h, grouped.h and those
 * that build on gemm.h compare kernels of every target with. It shares no code with them.
 */
#ifndef OM_GEMM_REF_H
#define OM_GEMM_REF_H

#include <stdint.h>

/* Elements of an array that are far apart as far as step says, from the first on. */
struct om_walk {
	struct om_in of;
	int64_t first, step;
};

/* An element of a product: the sum of n products, along a row of one and a column of the other. */
static inline double
om_gemm_ref(struct om_walk a, struct om_walk b, int64_t n)
{
	double sum = 0;
	for (int64_t p = 0; p < n; p++)
		sum += om_in(a.of, a.first + p * a.step) * om_in(b.of, b.first + p * b.step);
	return sum;
}

/* The group of a row: off[e] .. off[e + 1] are e's. */
static inline int64_t
om_gemm_ref_group(const int32_t *off, int64_t row)
{
	int64_t e = 0;
	while (off[e + 1] <= row)
		e++;
	return e;
}

#endif
