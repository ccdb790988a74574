/*
 * How fast the pairs of a rotary embedding turn: f = theta^(-2i/d) for pair i of d / 2, scaled by y
 * as Hugging Face's transformers does it. Kernels of every target compute their tables from these.
 *
 *   0  f
 *   1  f / factor
 *   2  YaRN (Peng et al., 2023): f for pairs that turn more than about p times (beta_fast) in
 *      length positions, f / factor for those below q times (beta_slow), a ramp over i between them
 *   3  Llama 3: f where length holds more than q turns (high_freq_factor), f / factor where fewer
 *      than p (low_freq_factor), between them a ramp over the number of turns
 */
#ifndef OM_ROPE_FREQUENCY_H
#define OM_ROPE_FREQUENCY_H

#include <math.h>
#include <stdint.h>

enum { OM_ROPE_PLAIN, OM_ROPE_LINEAR, OM_ROPE_YARN, OM_ROPE_LLAMA3, OM_ROPE_SCALINGS };

/* A table's floats, in the order of op.def. */
struct om_rope_table {
	double theta, factor, p, q, length, attention;
};

/* The pair, of d / 2 and broken, that turns this often in length positions. */
static inline double
om_rope_pair(int64_t d, double turns, const struct om_rope_table *r)
{
	const double turn = 6.283185307179586;
	return (double)d * log(r->length / (turns * turn)) / (2 * log(r->theta));
}

static inline double
om_rope_frequency(int64_t d, int y, int64_t i, const struct om_rope_table *r)
{
	const double f = pow(r->theta, -2 * (double)i / (double)d);
	double keep = 0; /* how much of f; the rest is of f / factor */
	if (y == OM_ROPE_PLAIN)
		return f;
	if (y == OM_ROPE_YARN) {
		double low = fmax(floor(om_rope_pair(d, r->p, r)), 0);
		double high = fmin(ceil(om_rope_pair(d, r->q, r)), (double)(d - 1));
		high += low == high ? 0.001 : 0;
		keep = 1 - fmin(fmax(((double)i - low) / (high - low), 0), 1);
	}
	if (y == OM_ROPE_LLAMA3) {
		/* tests in this order: p may be q */
		double turns = r->length * f / 6.283185307179586;
		keep = turns < r->p ? 0 : turns > r->q ? 1 : (turns - r->p) / (r->q - r->p);
	}
	return keep * f + (1 - keep) * f / r->factor;
}

#endif
