/*
 * Moments in bf16, in a float's place: each is drawn as it is rounded, by 16 bits of lots (rng.h),
 * to one of the two neighbours of what it is, the nearer the likelier.
 */
#ifndef OM_DRAWN_H
#define OM_DRAWN_H

#include "adamw_ref.h"
#include "round.h"

enum { OM_DRAWN_MANY = 256 }; /* words at once */

/* Elements of m that are one tensor's: up to which, and the number there of the first. */
struct om_drawn_piece {
	int64_t end, tensor, index;
};

/* Those from i on, at most up to hi. */
static inline struct om_drawn_piece
om_drawn_find(const int64_t *lots, const om_real *m, int64_t i, int64_t hi)
{
	const int64_t size = sizeof *m, at = (const char *)(m + i) - (const char *)lots;
	const int64_t *p = lots + OM_LOTS_FIRST, *end = p + lots[OM_LOTS_PIECES] * OM_PIECE_WORDS;
	for (int64_t n = lots[OM_LOTS_PIECES]; n > 1; n -= n / 2) {
		const int64_t *middle = p + n / 2 * OM_PIECE_WORDS;
		p = middle[OM_PIECE_AT] <= at ? middle : p;
	}
	const int64_t *next = p + OM_PIECE_WORDS;
	return (struct om_drawn_piece){ next < end ? om_min(hi, i + (next[OM_PIECE_AT] - at) / size)
						   : hi,
		p[OM_PIECE_TENSOR], p[OM_PIECE_INDEX] + (at - p[OM_PIECE_AT]) / size };
}

/* The words of n elements of a tensor from one on, at most MANY, lie in draw; gives the first. */
static inline const uint32_t *
om_drawn_words(
    int64_t key, int64_t tensor, int64_t index, int64_t n, uint32_t draw[OM_DRAWN_MANY + 4])
{
	const int64_t skip = index & 3;
	for (int64_t i = 0; i < skip + n; i += 4) {
		const struct om_philox four = om_moment_draw(key, tensor, (index - skip + i) / 4);
		memcpy(draw + i, four.v, sizeof four.v);
	}
	return draw + skip;
}

/* x's neighbour in bf16 towards zero, or by 16 bits drawn the other one; a NaN stays one. */
static OM_INLINE float
om_drawn(float x, uint32_t draw)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	bits = (bits + (isnan(x) ? 0 : draw)) & 0xffff0000;
	memcpy(&x, &bits, sizeof x);
	return x;
}

/* Of a piece, of which element lo has that index: by the lower halves of words. */
static OM_CLONES void
om_drawn_range(int64_t lo, int64_t hi, om_real *m, int64_t key, int64_t tensor, int64_t index)
{
	uint32_t draw[OM_DRAWN_MANY + 4];
	for (int64_t n; lo < hi; lo += n, index += n) {
		n = om_min(hi - lo, OM_DRAWN_MANY);
		const uint32_t *word = om_drawn_words(key, tensor, index, n, draw);
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			m[lo + i] = (om_real)om_drawn((float)m[lo + i], word[i] & 0xffff);
	}
}

/* Elements of several pieces. */
static inline void
om_drawn_pieces(int64_t lo, int64_t hi, const int64_t *lots, om_real *m)
{
	for (struct om_drawn_piece p; lo < hi; lo = p.end) {
		p = om_drawn_find(lots, m, lo, hi);
		om_drawn_range(lo, p.end, m, lots[OM_LOTS_KEY], p.tensor, p.index);
	}
}

/* Whether a moment is what it may be drawn to, where float has put it up to `far` beside x. */
OM_CHECK bool
om_drawn_right(double got, double x, double far, uint32_t bits)
{
	return om_drawn_ref(x - far, bits) <= got && got <= om_drawn_ref(x + far, bits);
}

#endif
