/*
 * y [n] = w [n, k] x [k] for one row x, or few: no copy of w pays where it is read once. Sums run
 * over lanes (om_dot), which is another order than that of gemm.h.
 */
#ifndef OM_GEMV_H
#define OM_GEMV_H

#include "om_cpu.h"

enum { OM_FEW = 32 }; /* rows of a grouped product, up to which they come one by one */

/* Elements [lo, hi) of y. */
static OM_CLONES void
om_gemv_range(int64_t lo, int64_t hi, int64_t k, const om_real *x, const om_real *w, om_real *y)
{
	for (int64_t j = lo; j < hi; j++)
		y[j] = om_dot(x, w + j * k, k);
}

#endif
