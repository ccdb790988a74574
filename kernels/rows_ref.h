/*
 * Rows to try kernels of generation with, on every target: at [2, m], of each row its position and
 * then its sequence, of b sequences of s positions.
 */
#ifndef OM_ROWS_REF_H
#define OM_ROWS_REF_H

#include <stdbool.h>
#include <stdint.h>

static inline int64_t
om_rows_ref_pick(uint64_t seed, int64_t i, int64_t below)
{
	uint64_t x = (seed + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	return (int64_t)((x ^ x >> 27) % (uint64_t)below);
}

/*
 * As decode has them where there are as many sequences as rows, else as prompts have: each 64 are
 * of one sequence, at positions that follow one another. Of several rows some are none.
 */
static inline void
om_rows_ref(int64_t m, int64_t b, int64_t s, uint64_t seed, int32_t *at)
{
	const int64_t first = om_rows_ref_pick(seed, 2, s), runs = (m + 63) / 64;
	const int64_t share = s / ((runs + b - 1) / b); /* positions of a run */
	for (int64_t r = 0; r < m; r++) {
		const int64_t any = om_rows_ref_pick(seed, r + 3, s), last = s - 1;
		const int64_t one = r == 0 ? first : r == 1 ? last : r == 2 ? 0 : any;
		const int64_t run = r / 64, rows = m - run * 64 < 64 ? m - run * 64 : 64;
		const int64_t most = rows < share ? rows : share;
		const int64_t live =
		    most > 1 ? most - om_rows_ref_pick(seed, 2 * run + 1, most / 2) : most;
		const int64_t from =
		    run / b * share + om_rows_ref_pick(seed, 2 * run + 2, share - live + 1);
		const bool none = m == b ? r % 5 == 3 : r % 64 >= live;
		at[r] = (int32_t)(none ? -1 : m == b ? one : from + r % 64);
		at[m + r] =
		    (int32_t)(m == b ? (r + 1) % b : (run + om_rows_ref_pick(seed, 0, b)) % b);
	}
}

#endif
