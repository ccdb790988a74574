/*
 * Numbers in 8 bits by their definition, in double: what the checks of quantise.h compare kernels
 * of every target with. OCP MX 1.0 has e4m3 and its rounding; 448 is the largest.
 */
#ifndef OM_QUANTISE_REF_H
#define OM_QUANTISE_REF_H

#include <math.h>
#include <stdint.h>

enum { OM_E4M3_NAN = 0x7f, OM_NO_SCALE = 1000 /* of a block with a NaN or an infinity */ };

/* What a code means: a sign, four bits of an exponent, three of a fraction. */
static inline double
om_e4m3_ref(int code)
{
	int exponent = code >> 3 & 15, fraction = code & 7;
	double v = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);

	if ((code & 0x7f) == OM_E4M3_NAN)
		return NAN;
	return code & 0x80 ? -v : v;
}

/* The code nearest to a finite number; of two the even one. */
static inline int
om_e4m3_code_ref(double v)
{
	double a = fabs(v);
	int low = 0, high = OM_E4M3_NAN - 1;

	while (low < high) { /* the largest that is not above */
		int mid = (low + high + 1) / 2;
		if (om_e4m3_ref(mid) <= a)
			low = mid;
		else
			high = mid - 1;
	}
	if (low < OM_E4M3_NAN - 1) {
		double down = a - om_e4m3_ref(low), up = om_e4m3_ref(low + 1) - a;
		low += up < down || (up == down && low % 2 == 1);
	}
	return low | (signbit(v) ? 0x80 : 0);
}

/*
 * The exponent of the scale of a block whose largest is a: rceil, the least by which nothing is
 * above 448; floor, that of a's power of two, less that of 448's.
 */
static inline int
om_exponent_ref(double a, int floor_rule, int least)
{
	int e = 127;

	if (!(a <= 0x1p127 * 2))
		return OM_NO_SCALE;
	while (e > least && (floor_rule ? ldexp(1, e + 8) > a : a <= ldexp(448, e - 1)))
		e--;
	return e;
}

#endif
