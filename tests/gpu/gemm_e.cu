#define OM_X_STORE 1
#define OM_X_PREFETCH 0
#define OM_X_RED 0
#include "../../tests/gpu/gemm_x.h"
#include "linear.h"
#include "grouped.h"
#include "case.h"
#define BF16 4e-3 /* the rounding, 2^-8 of the largest value */
#define F32 2e30    /* sums in fp32, which wgmma truncates at each step of 16 */

/* A case once for each way to share the rows among the experts. */
#ifdef __CUDACC__
#define WAYS(M, tolerance, NAME, ...) M(NAME, __VA_ARGS__)
#define REAL(M, tolerance, flops, NAME, ...) M(NAME, __VA_ARGS__)
#else
#define WAYS(M, tolerance, NAME, ...)                             \
	M(NAME, __VA_ARGS__)                                      \
	WAY(NAME##_even, NAME, OM_GROUPED_EVEN, tolerance, 0)     \
	WAY(NAME##_skewed, NAME, OM_GROUPED_SKEWED, tolerance, 0) \
	WAY(NAME##_padded, NAME, OM_GROUPED_PADDED, tolerance, 0) \
	WAY(NAME##_single, NAME, OM_GROUPED_SINGLE, tolerance, 0)
#define REAL(M, tolerance, flops, NAME, ...)                      \
	M(NAME, __VA_ARGS__)                                      \
	WAY(NAME##_even, NAME, OM_GROUPED_EVEN, tolerance, flops) \
	WAY(NAME##_skewed, NAME, OM_GROUPED_SKEWED, tolerance, flops)
#define WAY(WAYNAME, NAME, how, tolerance, flops)                                          \
	static double WAYNAME##_run(uint64_t seed) { return NAME##_check_as(seed, how); }  \
	__attribute__((constructor)) static void WAYNAME##_case(void)                      \
	{                                                                                  \
		static struct test_case c = { #WAYNAME, WAYNAME##_run, tolerance, flops, 0, 0 }; \
		case_add(&c);                                                              \
	}
#endif


#define PRODUCT(m, n, k) 2.0 * (m) * (n) * (k)
#define FLOPS 2.0 * 131072 * 1024 * 2048
CASE(OM_LINEAR_DW, F32, e_linear_dw_edge, 257, 264, 328)
WAYS(OM_GROUPED_DW, F32, e_grouped_dw_odd, 1501, 7, 136, 72)
RATED(OM_LINEAR_DW, F32, PRODUCT(1024, 50304, 2048), 0, e_head_dw_1024, 1024, 50304, 2048)
RATED(OM_LINEAR_DW, F32, PRODUCT(2048, 50304, 2048), 0, e_head_dw_2048, 2048, 50304, 2048)
RATED(OM_LINEAR_DW, 2 * F32, PRODUCT(4096, 50304, 2048), 0, e_head_dw_4096, 4096, 50304, 2048)
REAL(OM_GROUPED_DW, 2 * F32, FLOPS, e_grouped_dw_up, 131072, 64, 1024, 2048)
