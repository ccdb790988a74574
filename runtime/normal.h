/*
 * Normal numbers by counter, the same bits on every target: fixed polynomials, every product that
 * is added to something is an explicit fma, so that no compiler may round it otherwise. Included by
 * init.c, and by cuda/init.cu for the device.
 */
#ifndef OM_NORMAL_H
#define OM_NORMAL_H

#include "rng.h"

#ifdef __CUDACC__
#define OM_FMA __fma_rn
#else
#include <math.h>
#define OM_FMA __builtin_fma
#endif

/* ln u of a normal number, 2^-53 <= u <= 1: by the series of atanh, error under 2^-50 of it. */
OM_ANY double
om_ln(double u)
{
	union {
		double x;
		uint64_t b;
	} m = { u };
	int e = (int)(m.b >> 52) - 1023;
	double f, g, s = 1.0 / 23;

	m.b = (m.b & 0xfffffffffffff) | (uint64_t)1023 << 52;
	if (m.x > 1.4142135623730951) {
		m.x *= 0.5;
		e++;
	}
	f = (m.x - 1) / (m.x + 1);
	g = f * f;
	for (int k = 21; k >= 1; k -= 2)
		s = OM_FMA(s, g, 1.0 / k);
	return OM_FMA((double)e, 0.6931471805599453, 2 * (f * s));
}

/* Sine and cosine of 2 pi v, 0 <= v < 1 a multiple of 2^-53: to a quarter, then Taylor. */
OM_ANY void
om_turn(double v, double *sine, double *cosine)
{
	int quarter = (int)OM_FMA(v, 4.0, 0.5);
	double t = OM_FMA((double)quarter, -0.25, v) * 6.283185307179586, g = t * t;
	double s = 1, c = 1;

	for (int k = 17; k >= 3; k -= 2) {
		s = OM_FMA(s, -(g / (double)(k * (k - 1))), 1.0);
		c = OM_FMA(c, -(g / (double)((k - 1) * (k - 2))), 1.0);
	}
	s *= t;
	*sine = quarter & 1 ? c : s;
	*cosine = quarter & 1 ? s : c;
	if (quarter == 2 || quarter == 3)
		*sine = -*sine;
	if (quarter == 1 || quarter == 2)
		*cosine = -*cosine;
}

/* Elements 2*block and 2*block+1 (Box and Muller, 1958); each redraw has its own counter. */
OM_ANY void
om_normal_pair(uint64_t seed, uint64_t name, uint64_t block, uint32_t redraw, double z[2])
{
	struct om_philox c = { { (uint32_t)block, (uint32_t)(block >> 32) | redraw << 16,
	    (uint32_t)name, (uint32_t)(name >> 32) } };
	struct om_philox r = om_philox(c, seed);
	const double unit = 1.0 / 9007199254740992;                                /* 2^-53 */
	double u = (double)((((uint64_t)r.v[0] << 32 | r.v[1]) >> 11) + 1) * unit; /* (0, 1] */
	double v = (double)(((uint64_t)r.v[2] << 32 | r.v[3]) >> 11) * unit;       /* [0, 1) */
	double radius = sqrt(-2 * om_ln(u)), sine, cosine;

	om_turn(v, &sine, &cosine);
	z[0] = radius * cosine;
	z[1] = radius * sine;
}

/* Element i of the tensor of that name's hash, cut at 3 standard deviations. */
OM_ANY double
om_normal_at(uint64_t seed, uint64_t name, uint64_t i)
{
	double z[2];

	om_normal_pair(seed, name, i / 2, 0, z);
	for (uint32_t redraw = 1; fabs(i & 1 ? z[1] : z[0]) > 3; redraw++)
		om_normal_pair(seed, name, i / 2, redraw, z);
	return i & 1 ? z[1] : z[0];
}

#endif
