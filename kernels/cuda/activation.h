/*
 * What kernels with an activation share (glu.h, ffn.h): the function itself, and what their checks
 * are made of.
 */
#ifndef OM_ACTIVATION_H
#define OM_ACTIVATION_H

#include "om_cuda.h"

#ifdef __CUDACC__

enum { OM_SILU, OM_GELU, OM_RELU2 };

/* The activation of x, and its derivative. NaN stays NaN. */
template <int A>
OM_DEV float
om_activation(float x, float &slope)
{
	if (A == OM_RELU2) {
		const float y = x < 0 ? 0 : x;
		slope = 2 * y;
		return y * y;
	}
	float inner = x, grown = 1; /* sigmoid's argument and its derivative */
	if (A == OM_GELU) {
		const float twice = 1.5957691216057308f, cube = 0.044715f;
		inner = twice * x * (1 + cube * x * x);
		grown = twice * (1 + 3 * cube * x * x);
	}
	const float s = __fdividef(1, 1 + om_exp2(inner * -1.4426950408889634f));
	const float y = x * s;
	slope = s + y * grown * (1 - s);
	return y;
}

#else /* ---- host ---- */

#include <stdlib.h>

#include "glu_ref.h"

/* what is activated is stretched over a range where all activations bend */
enum { OM_GLU_SAMPLES = 64, OM_GLU_STRETCH = 4 };

/* Which weight each row takes, a permutation. */
static inline int32_t *
om_glu_src(int64_t rows, uint64_t seed)
{
	int32_t *src = malloc((size_t)rows * sizeof *src);
	om_glu_ref_src(src, rows, seed * 6364136223846793005u >> 33);
	return src;
}

#endif
#endif
