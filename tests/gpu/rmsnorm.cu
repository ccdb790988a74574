#include "rmsnorm.h"

#include "case.h"

/*
 * One rounding to bf16, at most 2^-8 of the value. The checks hold what is float, r and dw, to a
 * four hundredth of that: a sum of t terms errs by about sqrt(t) 2^-24.
 */
#define RMSNORM(m, h, n, c)                                            \
	CASE(OM_RMSNORM, 4e-3, rmsnorm_##m##_##h##_##n, m, h, n, 1e-5) \
	CASE(OM_RMSNORM_BWD, 4e-3, rmsnorm_bwd_##m##_##h##_##n, m, h, n, c, 1) \
	CASE(OM_RMSNORM_BWD, 4e-3, rmsnorm_bwd_store_##m##_##h##_##n, m, h, n, c, 0)
RMSNORM(1, 1, 8, 264)
RMSNORM(2, 1, 32, 1)
RMSNORM(7, 3, 40, 16)
RMSNORM(67, 5, 64, 5)
RMSNORM(67, 1, 72, 5)
RMSNORM(129, 3, 128, 264)
RMSNORM(33, 3, 136, 264)
RMSNORM(77, 1, 256, 3)
RMSNORM(77, 1, 384, 3)
RMSNORM(301, 1, 768, 264)
RMSNORM(65, 2, 1024, 7)
RMSNORM(65, 1, 1032, 7)
RMSNORM(301, 1, 2048, 264)
RMSNORM(301, 1, 2056, 264)
RMSNORM(19, 1, 5120, 5)
RMSNORM(19, 1, 7168, 5)
RMSNORM(19, 1, 8192, 264)
#define REAL(m, h, n, c)                                                                    \
	RATED(OM_RMSNORM, 4e-3, 0, 4.0 * m * h * n, rmsnorm_##m##_##h##_##n, m, h, n, 1e-5) \
	RATED(OM_RMSNORM_BWD, 4e-3, 0, 6.0 * m * h * n, rmsnorm_bwd_##m##_##h##_##n, m, h, n, c, 1)
REAL(16384, 1, 2048, 264)
REAL(65536, 1, 2048, 264)
REAL(16384, 16, 128, 264)
REAL(16384, 1, 4096, 264)
REAL(16384, 1, 7168, 264)
