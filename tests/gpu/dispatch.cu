#include "dispatch.h"

#include "case.h"

/* dispatch copies: exact. combine adds in float and rounds once, at most 2^-8 of the sum. */
#define DISPATCH(t, k, n)                                       \
	CASE(OM_DISPATCH, 0, dispatch_##t##_##k##_##n, t, k, n) \
	CASE(OM_COMBINE, 4e-3, combine_##t##_##k##_##n, t, k, n)
DISPATCH(1, 1, 8)
DISPATCH(7, 3, 24)
DISPATCH(67, 1, 40)
DISPATCH(100, 8, 264)
DISPATCH(333, 11, 520)
DISPATCH(65, 64, 128)
DISPATCH(1001, 2, 2056)
RATED(OM_DISPATCH, 0, 0, 9.0 * 2 * 16384 * 2048, dispatch_16384_8_2048, 16384, 8, 2048)
RATED(OM_COMBINE, 4e-3, 0, 9.0 * 2 * 16384 * 2048, combine_16384_8_2048, 16384, 8, 2048)
