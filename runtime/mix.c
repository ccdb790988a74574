/*
 * How much of each source an epoch of a mix takes. All is counted in whole tokens, sequences or
 * documents, and computed in whole numbers: 0.7 of 10 is 7.
 *
 *   limit = floor(size repeat), what a source may give
 *   take  = floor(N weight / sum of weights), where the mix is to have N; each must be within its
 *           limit
 *   take  = floor(f N weight / sum of weights), where N is what all sources have together, and f
 *           the greatest number up to 1 that leaves each within its limit
 */
#include <math.h>

#include "om_rt.h"

enum { PARTS = 1000000 }; /* of 1, in which repeat counts */

/* Ten to the most that leaves this weight times it within OM_SHARE_MOST. */
static double
scale_of(double weight)
{
	double scale = 1;

	while (weight > 0 && weight * scale * 10 <= (double)OM_SHARE_MOST)
		scale *= 10;
	return scale;
}

void
om_mix_limits(struct om_share *s, uint32_t n)
{
	double largest = 0, scale;

	for (uint32_t i = 0; i < n; i++)
		if (s[i].weight > largest)
			largest = s[i].weight;
	scale = scale_of(largest);
	for (uint32_t i = 0; i < n; i++) {
		om_wide limit = (om_wide)s[i].size * (uint64_t)llround(s[i].repeat * PARTS) / PARTS;

		s[i].limit = limit < UINT64_MAX / 2 ? (uint64_t)limit : UINT64_MAX / 2;
		s[i].part = isnan(s[i].weight) ? s[i].size : (uint64_t)llround(s[i].weight * scale);
	}
}

bool
om_mix_takes(struct om_share *s, uint32_t n, uint64_t size, uint64_t *most)
{
	uint64_t parts = 0, all = size;
	const struct om_share *least = NULL; /* whose limit is the least for its part */
	bool fit = true;

	for (uint32_t i = 0; i < n; i++) {
		parts += s[i].part;
		all += size ? 0 : s[i].size;
		if (s[i].part && (!least || (om_wide)s[i].limit * least->part <
						(om_wide)least->limit * s[i].part))
			least = &s[i];
	}
	if (!size && (om_wide)all * least->part > (om_wide)least->limit * parts)
		for (uint32_t i = 0; i < n; i++)
			s[i].take = (uint64_t)((om_wide)least->limit * s[i].part / least->part);
	else
		for (uint32_t i = 0; i < n; i++)
			s[i].take = (uint64_t)((om_wide)all * s[i].part / parts);
	*most = UINT64_MAX;
	for (uint32_t i = 0; i < n; i++) {
		om_wide m = s[i].part ? (((om_wide)s[i].limit + 1) * parts - 1) / s[i].part : *most;

		*most = m < *most ? (uint64_t)m : *most;
		fit = fit && s[i].take <= s[i].limit;
	}
	return fit;
}
