/* Philox4x32-10, as in kernels/cpu/philox.h: four random words by a counter and a key. */
#ifndef OM_PHILOX_H
#define OM_PHILOX_H

#include "om_cuda.h"

#ifdef __CUDACC__
OM_DEV
#else
static inline
#endif
void
om_random4(uint32_t c[4], uint64_t key)
{
	uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
	for (int round = 0; round < 10; round++) {
		const uint64_t a = (uint64_t)0xD2511F53 * c[0], b = (uint64_t)0xCD9E8D57 * c[2];
		c[0] = (uint32_t)(b >> 32) ^ c[1] ^ low;
		c[2] = (uint32_t)(a >> 32) ^ c[3] ^ high;
		c[1] = (uint32_t)b;
		c[3] = (uint32_t)a;
		low += 0x9E3779B9;
		high += 0xBB67AE85;
	}
}

#endif
