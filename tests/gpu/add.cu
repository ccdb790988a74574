#include "add.h"

#include "case.h"

/* One rounding to bf16, at most 2^-8 of the value. Column sums are float: sqrt(m) 2^-24. */
#define ADD(m, n, c, factor)                                \
	CASE(OM_ADD, 4e-3, add_##m##_##n, m, n)             \
	CASE(OM_BIAS, 4e-3, bias_##m##_##n, m, n)           \
	CASE(OM_SCALE, 4e-3, scale_##m##_##n, m, n, factor) \
	CASE(OM_BIAS_BWD, 1e-5, bias_bwd_##m##_##n##_##c, m, n, c, 1) \
	CASE(OM_BIAS_BWD, 1e-5, bias_bwd_store_##m##_##n##_##c, m, n, c, 0)
ADD(1, 8, 1, 1.0)
ADD(7, 24, 2, -0.3)
ADD(67, 264, 128, 12.0)
ADD(300, 2056, 5, 0.125)
ADD(1025, 1000, 128, 3.0)
RATED(OM_ADD, 4e-3, 0, 3.0 * 2 * 16384 * 2048, add_16384_2048, 16384, 2048)
RATED(OM_BIAS, 4e-3, 0, 2.0 * 2 * 16384 * 2048, bias_16384_2048, 16384, 2048)
RATED(OM_SCALE, 4e-3, 0, 2.0 * 2 * 16384 * 2048, scale_16384_2048, 16384, 2048, 0.125)
RATED(OM_BIAS_BWD, 1e-5, 0, 2.0 * 16384 * 2048, bias_bwd_16384_2048, 16384, 2048, 64, 1)
/* beyond what the second-level cache could help */
RATED(OM_ADD, 4e-3, 0, 3.0 * 2 * 131072 * 2048, add_131072_2048, 131072, 2048)
CASE(OM_ADD_ROWS, 4e-3, add_rows_1_8, 1, 8, 1)
CASE(OM_ADD_ROWS, 4e-3, add_rows_67_264, 67, 264, 9)
CASE(OM_ADD_ROWS, 4e-3, add_rows_1025_1000, 1025, 1000, 3)
