/* Cases of kernels whose rows are sorted by expert. */
#ifndef WAYS_H
#define WAYS_H

#include "case.h"
#include "grouped.h"

/* A case once for each way to share the rows among the experts. */
#ifdef __CUDACC__
#define WAYS(M, tolerance, NAME, ...) M(NAME, __VA_ARGS__)
#define REAL(M, tolerance, flops, NAME, ...) M(NAME, __VA_ARGS__)
#else
#define WAYS(M, tolerance, NAME, ...)                           \
	M(NAME, __VA_ARGS__)                                    \
	WAY(NAME##_even, NAME, OM_SHARE_EVEN, tolerance, 0)     \
	WAY(NAME##_skewed, NAME, OM_SHARE_SKEWED, tolerance, 0) \
	WAY(NAME##_padded, NAME, OM_SHARE_PADDED, tolerance, 0) \
	WAY(NAME##_single, NAME, OM_SHARE_SINGLE, tolerance, 0)
#define REAL(M, tolerance, flops, NAME, ...)                    \
	M(NAME, __VA_ARGS__)                                    \
	WAY(NAME##_even, NAME, OM_SHARE_EVEN, tolerance, flops) \
	WAY(NAME##_skewed, NAME, OM_SHARE_SKEWED, tolerance, flops)
#define WAY(WAYNAME, NAME, how, tolerance, flops)                                                \
	static double WAYNAME##_run(uint64_t seed)                                               \
	{                                                                                        \
		return NAME##_check_as(seed, how);                                               \
	}                                                                                        \
	__attribute__((constructor)) static void WAYNAME##_case(void)                            \
	{                                                                                        \
		static struct test_case c = { #WAYNAME, WAYNAME##_run, tolerance, flops, 0, 0 }; \
		case_add(&c);                                                                    \
	}
#endif

#endif
