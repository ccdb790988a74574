#include "embed.h"

#include "case.h"

/*
 * embed copies: exact. embed_bwd adds up to T rows in float, in pieces: about sqrt(T) roundings of
 * 2^-24 relative to the sum.
 */
#define EMBED(t, n, v)                                    \
	CASE(OM_EMBED, 0, embed_##t##_##n##_##v, t, n, v) \
	CASE(OM_EMBED_BWD, 1e-5, embed_bwd_##t##_##n##_##v, t, n, v)
EMBED(1, 8, 1)
EMBED(7, 24, 2)
EMBED(31, 16, 5)
EMBED(513, 40, 97)
EMBED(1000, 264, 333)
EMBED(3001, 2056, 4099)
EMBED(512, 128, 1000)
RATED(OM_EMBED, 0, 0, 2.0 * 16384 * 2048 * 2, embed_16384_2048_50304, 16384, 2048, 50304)
/* of 16384 uniform tokens about 13985 differ */
RATED(OM_EMBED_BWD, 1e-5, 0, 16384.0 * 2048 * 2 + 13985.0 * 2048 * 8, embed_bwd_16384_2048_50304,
    16384, 2048, 50304)
CASE(OM_EMBED_BWD, 1e-5, embed_bwd_65536_512_3, 65536, 512, 3)
