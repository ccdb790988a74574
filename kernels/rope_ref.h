/*
 * Rotary angles by their definition, in double: what the checks of rope.h compare kernels of every
 * target with. It shares no code with them but what a table is made of.
 */
#ifndef OM_ROPE_REF_H
#define OM_ROPE_REF_H

#include "rope_frequency.h"

/*
 * The frequency of pair i as transformers' modeling_rope_utils.py computes it, by its names; y: the
 * scaling, in the order of rope_scaling's choices.
 */
static inline double
om_rope_ref_frequency(int64_t d, int y, int64_t i, const struct om_rope_table *r)
{
	const double pi = acos(-1.0), base = r->theta, original = r->length;
	double inv_freq = 1 / pow(base, (double)(2 * i) / (double)d);
	if (y == 1)
		return inv_freq / r->factor;
	if (y == 2) {
		double low = floor(((double)d * log(original / (r->p * 2 * pi))) / (2 * log(base)));
		double high = ceil(((double)d * log(original / (r->q * 2 * pi))) / (2 * log(base)));
		if (low < 0)
			low = 0;
		if (high > (double)(d - 1))
			high = (double)(d - 1);
		if (low == high)
			high += 0.001;
		double ramp = ((double)i - low) / (high - low);
		double extrapolation = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
		return inv_freq / r->factor * (1 - extrapolation) + inv_freq * extrapolation;
	}
	if (y == 3) {
		double wavelen = 2 * pi / inv_freq;
		double smooth = (original / wavelen - r->p) / (r->q - r->p);
		if (wavelen > original / r->p)
			return inv_freq / r->factor;
		if (wavelen < original / r->q)
			return inv_freq;
		return (1 - smooth) * inv_freq / r->factor + smooth * inv_freq;
	}
	return inv_freq;
}

/* Element `at` of the table [s, d]: cosines of a position's pairs, then sines. */
static inline double
om_rope_ref_table(int64_t d, int y, int64_t at, const struct om_rope_table *r)
{
	const double angle = (double)(at / d) * om_rope_ref_frequency(d, y, at % d % (d / 2), r);
	return r->attention * (at % d < d / 2 ? cos(angle) : sin(angle));
}

/* The other of element j's pair, in heads of d. */
static inline int64_t
om_rope_ref_pair(int64_t d, int64_t j)
{
	return j % d < d / 2 ? j + d / 2 : j - d / 2;
}

/* Element j, whose pair is `pair`, turned by the table's angle of that position: sign -1 back. */
static inline double
om_rope_ref_turn(
    struct om_in tab, int64_t d, int64_t position, int sign, int64_t j, double self, double pair)
{
	const int64_t at = position * d + j % (d / 2);
	return self * om_in(tab, at) +
	       (j % d < d / 2 ? -sign : sign) * om_in(tab, at + d / 2) * pair;
}

#endif
