#include "glu.h"

#include "case.h"

/*
 * One rounding to bf16, at most 2^-8 of the value; exp and division are approximate to some 2^-22.
 * The checks hold dp, a float sum of f terms, to a four hundredth of that.
 */
#define GATED(t, k, f, a)                                                       \
	CASE(OM_GLU, 4e-3, glu_##t##_##k##_##f##_##a, t, f, a)                  \
	CASE(OM_GLU_BWD, 4e-3, glu_bwd_##t##_##k##_##f##_##a, t, f, a)          \
	CASE(OM_GLU_ROUTED, 4e-3, glu_routed_##t##_##k##_##f##_##a, t, k, f, a) \
	CASE(OM_GLU_ROUTED_BWD, 4e-3, glu_routed_bwd_##t##_##k##_##f##_##a, t, k, f, a)
#define GLU(t, k, f)                                                       \
	GATED(t, k, f, 0)                                                  \
	GATED(t, k, f, 1)                                                  \
	CASE(OM_RELU2, 4e-3, relu2_##t##_##k##_##f, t, f)                  \
	CASE(OM_RELU2_BWD, 4e-3, relu2_bwd_##t##_##k##_##f, t, f)          \
	CASE(OM_RELU2_ROUTED, 4e-3, relu2_routed_##t##_##k##_##f, t, k, f) \
	CASE(OM_RELU2_ROUTED_BWD, 4e-3, relu2_routed_bwd_##t##_##k##_##f, t, k, f)
GLU(1, 1, 8)
GLU(7, 3, 40)
GLU(33, 1, 72)
GLU(13, 5, 520)
GLU(101, 2, 128)
GLU(67, 2, 1408)
GLU(9, 4, 4096)
#define ELEMENTS (131072.0 * 1024)
RATED(OM_GLU, 4e-3, 0, 6 * ELEMENTS, glu_131072_1024, 131072, 1024, 0)
RATED(OM_GLU_BWD, 4e-3, 0, 10 * ELEMENTS, glu_bwd_131072_1024, 131072, 1024, 0)
RATED(OM_GLU_ROUTED, 4e-3, 0, 6 * ELEMENTS, glu_routed_16384_8_1024, 16384, 8, 1024, 0)
RATED(OM_GLU_ROUTED_BWD, 4e-3, 0, 10 * ELEMENTS, glu_routed_bwd_16384_8_1024, 16384, 8, 1024, 0)
RATED(OM_GLU_ROUTED, 4e-3, 0, 6 * ELEMENTS, gelu_routed_16384_8_1024, 16384, 8, 1024, 1)
RATED(OM_GLU_ROUTED_BWD, 4e-3, 0, 10 * ELEMENTS, gelu_routed_bwd_16384_8_1024, 16384, 8, 1024, 1)
RATED(OM_RELU2_ROUTED, 4e-3, 0, 4 * ELEMENTS, relu2_routed_16384_8_1024, 16384, 8, 1024)
RATED(OM_RELU2_ROUTED_BWD, 4e-3, 0, 6 * ELEMENTS, relu2_routed_bwd_16384_8_1024, 16384, 8, 1024)
RATED(OM_RELU2, 4e-3, 0, 4 * ELEMENTS, relu2_131072_1024, 131072, 1024)
RATED(OM_RELU2_BWD, 4e-3, 0, 6 * ELEMENTS, relu2_bwd_131072_1024, 131072, 1024)
/* rows that there are, up to the last of some offsets */
#define ROWS(c, f, j)                                                \
	CASE(OM_GLU_ROWS, 4e-3, glu_rows_##c##_##f, c, f, 0, j)          \
	CASE(OM_GLU_ROWS, 4e-3, gelu_rows_##c##_##f, c, f, 1, j)         \
	CASE(OM_GLU_ROWS_BWD, 4e-3, glu_rows_bwd_##c##_##f, c, f, 0, j)  \
	CASE(OM_GLU_ROWS_BWD, 4e-3, gelu_rows_bwd_##c##_##f, c, f, 1, j) \
	CASE(OM_RELU2_ROWS, 4e-3, relu2_rows_##c##_##f, c, f, j)         \
	CASE(OM_RELU2_ROWS_BWD, 4e-3, relu2_rows_bwd_##c##_##f, c, f, j)
ROWS(1, 8, 1)
ROWS(21, 40, 3)
ROWS(97, 520, 9)
ROWS(640, 128, 5)
ROWS(131072, 1024, 33)
