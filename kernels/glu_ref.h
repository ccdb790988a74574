/*
 * Activations by their definition, in double: what the checks of glu.h compare kernels of every
 * target with. It shares no code with them.
 */
#ifndef OM_GLU_REF_H
#define OM_GLU_REF_H

#include <math.h>
#include <stdint.h>

/* The activation of x and its derivative; a: 0 silu, 1 gelu by tanh, 2 the square of relu. */
static inline double
om_glu_ref(int a, double x, double *slope)
{
	const double c = sqrt(2 / acos(-1.0));
	double sigma = 1 / (1 + exp(-x)), th = tanh(c * (x + 0.044715 * pow(x, 3)));
	switch (a) {
	case 0:
		*slope = sigma + x * sigma * (1 - sigma);
		return x * sigma;
	case 1:
		*slope = (1 + th + x * (1 - th * th) * c * (1 + 3 * 0.044715 * x * x)) / 2;
		return x * (1 + th) / 2;
	default:
		*slope = x > 0 ? 2 * x : 0;
		return x > 0 ? x * x : 0;
	}
}

/*
 * src [rows], row r takes weight (a r + b) mod rows, a coprime to rows: one-to-one, without a
 * shuffle. b: any number.
 */
static inline void
om_glu_ref_src(int32_t *src, int64_t rows, uint64_t b)
{
	int64_t a = rows / 2 + 1, first = (int64_t)(b % (uint64_t)rows);
	for (int64_t x = a, y = rows; y;) { /* Euclid; back to 1 when not coprime */
		int64_t rest = x % y;
		x = y;
		y = rest;
		if (!y && x != 1)
			a = 1;
	}
	for (int64_t r = 0; r < rows; r++)
		src[r] = (int32_t)((a * r + first) % rows);
}

#endif
