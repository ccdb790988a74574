/*
 * Rows of routed tokens by their definition, in double: what the checks of dispatch.h compare
 * kernels of every target with. It shares no code with them. Choice c of token i is row
 * row[i * k + c], and src is row's inverse.
 */
#ifndef OM_DISPATCH_REF_H
#define OM_DISPATCH_REF_H

#include <stdint.h>

/* Row r, element j: that of the token whose choice it is, of x [t, n]. */
static inline double
om_dispatch_ref(struct om_in x, const int32_t *src, int64_t k, int64_t n, int64_t r, int64_t j)
{
	return om_in(x, src[r] / k * n + j);
}

/* Token i, element j: the sum over its choices of their rows of y [t * k, n]. */
static inline double
om_combine_ref(struct om_in y, const int32_t *row, int64_t k, int64_t n, int64_t i, int64_t j)
{
	double sum = 0;
	for (int64_t c = 0; c < k; c++)
		sum += om_in(y, row[i * k + c] * n + j);
	return sum;
}

#endif
