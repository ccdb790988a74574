/*
 * Philox4x32-10, a counter-based generator: Salmon, Moraes, Dror and Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011. A value depends on its key and counter alone, so any
 * element can be drawn by anyone, on the host or on a device.
 */
#ifndef OM_RNG_H
#define OM_RNG_H

#ifdef __CUDACC__
#define OM_ANY static __device__ __forceinline__
#else
#include <stdint.h>
#define OM_ANY static inline
#endif

struct om_philox {
	uint32_t v[4];
};

OM_ANY struct om_philox
om_philox(struct om_philox c, uint64_t key)
{
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53 * c.v[0], p1 = (uint64_t)0xCD9E8D57 * c.v[2];
		struct om_philox n = { { (uint32_t)(p1 >> 32) ^ c.v[1] ^ k0, (uint32_t)p1,
		    (uint32_t)(p0 >> 32) ^ c.v[3] ^ k1, (uint32_t)p0 } };

		c = n;
		k0 += 0x9E3779B9;
		k1 += 0xBB67AE85;
	}
	return c;
}

/*
 * What a step's roundings of moments are drawn by, a table of int64: the step's key of Philox; how
 * many pieces there are; of each piece, a parameter's part of a layer that lies here, in the order
 * in which they lie, and each up to where the next one begins:
 *
 *   OM_PIECE_AT      bytes from the table to its first m
 *   OM_PIECE_INDEX   that element's number in its tensor, of which a layer's experts are one
 *   OM_PIECE_TENSOR  which tensor that is
 *
 * So the draws of an element are the same wherever it lies, and on every target.
 */
enum { OM_LOTS_KEY, OM_LOTS_PIECES, OM_LOTS_FIRST };
enum { OM_PIECE_AT, OM_PIECE_INDEX, OM_PIECE_TENSOR, OM_PIECE_WORDS };

/* A word for each of elements 4 four to 4 four + 3: its lower half is m's, the upper one v's. */
OM_ANY struct om_philox
om_moment_draw(int64_t key, int64_t tensor, int64_t four)
{
	struct om_philox c = { { (uint32_t)four, (uint32_t)(four >> 32), (uint32_t)tensor,
	    (uint32_t)(tensor >> 32) } };

	return om_philox(c, (uint64_t)key);
}

#endif
