/*
 * likeliest  id [m]: of each row of z [m, v] the place of the largest, of equal ones the first; -1
 *            where not all are finite
 */
#ifndef OM_LIKELIEST_H
#define OM_LIKELIEST_H

#include "check.h"

static inline void
om_likeliest(int64_t m, int64_t v, const om_real *z, int32_t *id)
{
	for (int64_t r = 0; r < m; r++, z += v) {
		int64_t best = 0, finite = 0;
		for (int64_t i = 0; i < v; i++) {
			best = z[i] > z[best] ? i : best;
			finite += isfinite(z[i]) != 0;
		}
		id[r] = finite == v ? (int32_t)best : -1;
	}
}

#define OM_LIKELIEST(NAME, m, v)                                             \
	_Static_assert((m) >= 1 && (v) >= 1, "likeliest: sizes start at 1"); \
	void NAME(const om_real *z, int32_t *id)                             \
	{                                                                    \
		om_likeliest(m, v, z, id);                                   \
	}                                                                    \
	double NAME##_check(uint64_t seed)                                   \
	{                                                                    \
		return om_likeliest_check(NAME, m, v, seed);                 \
	}

/* Of a row with two largest the first one; of the last row, with one that is no number, none. */
OM_CHECK double
om_likeliest_check(void (*run)(const om_real *, int32_t *), int64_t m, int64_t v, uint64_t seed)
{
	om_real *z = om_check_random(m * v, seed, 0);
	int32_t *id = om_check_ints(m, 9, seed, 1), *at = om_check_ints(m, v, seed, 2);
	bool same = true;
	for (int64_t r = 0; r < m; r++) {
		z[r * v + at[r]] = 3;
		z[r * v + (at[r] + v - 1) / 2] = r % 2 ? 3 : z[r * v + (at[r] + v - 1) / 2];
		for (int64_t i = v; i-- > 0;)
			at[r] = z[r * v + i] == 3 ? (int32_t)i : at[r];
	}
	if (m > 1)
		z[m * v - 1] = (om_real)NAN;
	run(z, id);
	for (int64_t r = 0; r < m; r++)
		same &= id[r] == (m > 1 && r == m - 1 ? -1 : at[r]);
	free(z);
	free(id);
	free(at);
	return same ? 0 : OM_WRONG;
}

#endif
