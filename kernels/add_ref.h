/*
 * Sums and products of elements by their definition, in double: what the checks of add.h compare
 * kernels of every target with. It shares no code with them.
 */
#ifndef OM_ADD_REF_H
#define OM_ADD_REF_H

#include <stdint.h>

/* Element i of a + b; of x + c, c [n] for each row. */
static inline double
om_add_ref(struct om_in a, struct om_in b, int64_t i)
{
	return om_in(a, i) + om_in(b, i);
}

static inline double
om_bias_ref_y(struct om_in x, struct om_in c, int64_t n, int64_t i)
{
	return om_in(x, i) + om_in(c, i % n);
}

/* What bias_bwd adds to dc[j]: the sum over the m rows of dy [m, n]. */
static inline double
om_bias_ref_dc(struct om_in dy, int64_t m, int64_t n, int64_t j)
{
	double sum = 0;
	for (int64_t i = 0; i < m; i++)
		sum += om_in(dy, i * n + j);
	return sum;
}

static inline double
om_scale_ref(struct om_in x, double factor, int64_t i)
{
	return factor * om_in(x, i);
}

#endif
