/*
 * Linear maps of experts: rows sorted by expert, expert i has the rows [off[i], off[i + 1]).
 *
 *   grouped     y  [r, n]     = x  [r, k] w [e, n, k]^T, each row with its expert's w
 *   grouped_dx  dx [r, k]     = dy [r, n] w [e, n, k]
 *   grouped_dx_2  dx [r, k]   = da [r, n] times the first half of w [2 e, n, k] + db times the
 *                               second
 *   grouped_dw  dw [e, n, k] += dy [r, n]^T x [r, k], over each expert's rows, float; or without
 *               add =, which is 0 where there are none
 *
 * r is the buffers' capacity. Rows from off[e] on are padding: they are loaded along with the rows
 * before them, but what they hold, NaN too, goes nowhere. The products are gemm.h's; off is on the
 * device, and an expert may have any number of rows. n and k are multiples of 8.
 */
#ifndef OM_GROUPED_H
#define OM_GROUPED_H

#include "gemm.h"

#define OM_GROUPED_SIZES(r, e, n, k)                                                        \
	static_assert((r) >= 1 && (r) <= 0x7fffff00, "grouped: rows are counted in int32"); \
	static_assert((e) >= 1 && (n) >= 8 && (k) >= 8, "grouped: sizes start at 1");       \
	static_assert((n) % 8 == 0 && (k) % 8 == 0, "grouped: n % 8, k % 8");

#define OM_GROUPED_Y(NAME, r, e, n, k) \
	OM_GROUPED_SIZES(r, e, n, k)   \
	OM_GEMM(NAME, om_bf16, 0, OM_GEMM_ROWS, e, r, n, k, OM_GEMM_WIDTH(r, n), 0, 0, 1, 1)
#define OM_GROUPED_XS(NAME, r, e, n, k) \
	OM_GROUPED_SIZES(r, e, n, k)    \
	OM_GEMM_INS(NAME, OM_GEMM_ROWS, e, r, k, n, n, 0, OM_GEMM_WIDTH(r, k))
#define OM_GROUPED_X(NAME, r, e, n, k) \
	OM_GROUPED_SIZES(r, e, n, k)   \
	OM_GEMM(NAME, om_bf16, 0, OM_GEMM_ROWS, e, r, k, n, OM_GEMM_WIDTH(r, k), 0, 1, 1, 1)
#define OM_GROUPED_W(NAME, r, e, n, k, add) \
	OM_GROUPED_SIZES(r, e, n, k)        \
	OM_GEMM(NAME, float, add, OM_GEMM_SUMS, e, n, k, r, OM_GEMM_WIDE(k), 1, 1, 1, 1)

#ifdef __CUDACC__ /* ---- device ---- */

#define OM_GROUPED(NAME, r, e, n, k) OM_GROUPED_Y(NAME##_x, r, e, n, k)
#define OM_GROUPED_DX(NAME, r, e, n, k) OM_GROUPED_X(NAME##_x, r, e, n, k)
#define OM_GROUPED_DW(NAME, r, e, n, k, add) OM_GROUPED_W(NAME##_x, r, e, n, k, add)
#define OM_GROUPED_DX_2(NAME, r, e, n, k) OM_GROUPED_XS(NAME##_x, r, e, n, k)

#else /* ---- host ---- */

#include <assert.h>

/* Beside NAME_check, NAME_check_as(seed, how) tries one way to share the rows. */
#define OM_GROUPED(NAME, r, e, n, k)                                                  \
	OM_GROUPED_Y(NAME##_x, r, e, n, k)                                            \
	void NAME(const om_bf16 *x, const om_bf16 *w, const int32_t *off, om_bf16 *y) \
	{                                                                             \
		NAME##_x_run(x, w, y, off);                                           \
	}                                                                             \
	OM_GROUPED_CHECKS(NAME, r, e, OM_GEMM_ROWS, e, r, n, k, 0, 0, false, false)

#define OM_GROUPED_DX(NAME, r, e, n, k)                                                 \
	OM_GROUPED_X(NAME##_x, r, e, n, k)                                              \
	void NAME(const om_bf16 *dy, const om_bf16 *w, const int32_t *off, om_bf16 *dx) \
	{                                                                               \
		NAME##_x_run(dy, w, dx, off);                                           \
	}                                                                               \
	OM_GROUPED_CHECKS(NAME, r, e, OM_GEMM_ROWS, e, r, k, n, 0, 1, false, false)

#define OM_GROUPED_DW(NAME, r, e, n, k, add)                                          \
	OM_GROUPED_W(NAME##_x, r, e, n, k, add)                                       \
	void NAME(const om_bf16 *dy, const om_bf16 *x, const int32_t *off, float *dw) \
	{                                                                             \
		NAME##_x_run(dy, x, dw, off);                                         \
	}                                                                             \
	OM_GROUPED_CHECKS(NAME, r, e, OM_GEMM_SUMS, e, n, k, r, 1, 1, true, add)

#define OM_GROUPED_DX_2(NAME, r, e, n, k)                                                        \
	OM_GROUPED_XS(NAME##_x, r, e, n, k)                                                      \
	void NAME(const om_bf16 *da, const om_bf16 *db, const om_bf16 *w, const int32_t *off,    \
	    om_bf16 *dx)                                                                         \
	{                                                                                        \
		NAME##_x_run(da, db, NULL, w, dx, off);                                          \
	}                                                                                        \
	double NAME##_check_as(uint64_t seed, int how)                                           \
	{                                                                                        \
		int32_t off[(e) + 1];                                                            \
		om_gemm_share(off, r, e, how, seed);                                             \
		OM_BESIDE_CHECK(                                                                 \
		    seed, true, NAME(v.a[0], v.a[1], v.w, v.off, c[0]), e, r, { n, n }, k, off); \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return NAME##_check_as(seed, seed % OM_SHARE_WAYS);                              \
	}

#define OM_GROUPED_CHECKS(NAME, r, e, groups, g, m, n, k, at, bt, c_float, add)                 \
	double NAME##_check_as(uint64_t seed, int how)                                          \
	{                                                                                       \
		int32_t off[(e) + 1];                                                           \
		om_gemm_share(off, r, e, how, seed);                                            \
		OM_GEMM_CHECK(seed, 0, NAME(v.a, v.b, v.off, c), groups, g, m, n, k, at, bt, 0, \
		    c_float, add, off);                                                         \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return NAME##_check_as(seed, seed % OM_SHARE_WAYS);                             \
	}

#endif
#endif
