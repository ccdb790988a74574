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

#endif
