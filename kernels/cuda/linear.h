/*
 * Linear maps without bias, weights stored [out, in].
 *
 *   linear      y  [m, n]  = x  [m, k] w [n, k]^T
 *   linear_f32  z  [m, n]  = x  [m, k] w [n, k]^T, float
 *   linear_3    w [a + b + c, k]: its first rows give ya [m, a], the next yb, the last yc
 *   linear_dx   dx [m, k]  = dy [m, n] w [n, k]
 *   linear_dx_2, linear_dx_3  dx [m, k] = da [m, a] times w's first rows + db [m, b] times the
 *               next, and so on
 *   linear_dw   dw [n, k] += dy [m, n]^T x [m, k], float; or without add =
 *
 * and the router's, whose z and dz are float:
 *
 *   gate        z  [m, e]  = x  [m, k] w [e, k]^T
 *   gate_dx     dx [m, k]  = dz [m, e] w [e, k]
 *   gate_dw     dw [e, k] += dz [m, e]^T x [m, k], or without add =
 *
 * The products are gemm.h's; m and e are any number, n and k multiples of 8. As bf16 dz would lose
 * most of its digits; a first kernel splits it into halves, dz = hi + lo to 2^-16, and both are
 * multiplied.
 *
 * Where dw has few tiles, the sum over m is cut into parts, by the sizes alone, and a second kernel
 * adds them up in order.
 */
#ifndef OM_LINEAR_H
#define OM_LINEAR_H

#include "gemm.h"

/* Floats of workspace: for the parts of dw, at most 132 * 128 * 256; for dz's halves. */
#define OM_LINEAR_DW_FLOATS(m, n, k) \
	(OM_GEMM_PARTS(n, k, m) > 1 ? (int64_t)OM_GEMM_PARTS(n, k, m) * (n) * (k) : 0)
#define OM_GATE_FLOATS(m, e) ((int64_t)(m)*OM_GEMM_ALIGN8(e))

#define OM_LINEAR_Y(NAME, type, m, n, k)                                                  \
	static_assert((m) >= 1 && (n) >= 1 && (k) >= 8 && (k) % 8 == 0, "linear: k % 8"); \
	OM_GEMM(NAME, type, 0, OM_GEMM_ONE, 1, m, n, k, OM_GEMM_WIDTH(m, n), 0, 0, 1, 1)
#define OM_LINEAR_X(NAME, m, n, k, planes)                                                   \
	static_assert((m) >= 1 && (n) >= 1 && (k) >= 8 && (k) % 8 == 0, "linear_dx: k % 8"); \
	OM_GEMM(NAME, om_bf16, 0, OM_GEMM_ONE, 1, m, k, n, OM_GEMM_WIDTH(m, k), 0, 1, planes, 8)
#define OM_LINEAR_W(NAME, m, n, k, planes, add)                                                  \
	static_assert((m) >= 1 && (n) >= 1 && (k) >= 8 && (k) % 8 == 0, "linear_dw: k % 8");     \
	OM_GEMM(NAME, float, OM_GEMM_PARTS(n, k, m) == 1 && (add),                               \
	    (OM_GEMM_PARTS(n, k, m) == 1 ? OM_GEMM_ONE : OM_GEMM_SPLIT), OM_GEMM_PARTS(n, k, m), \
	    n, k, m, OM_GEMM_WIDE(k), 1, 1, planes, 8)
/* by matrices side by side */
#define OM_LINEAR_SIDES(m, a, b, c, k)                                                           \
	static_assert((m) >= 1 && (a) >= 8 && (b) >= 8 && (c) >= 0, "linear: sizes start at 8"); \
	static_assert(((a) | (b) | (c) | (k)) % 8 == 0, "linear: widths are multiples of 8");
#define OM_LINEAR_YS(NAME, m, a, b, c, k) \
	OM_LINEAR_SIDES(m, a, b, c, k)    \
	OM_GEMM_OUTS(NAME, OM_GEMM_ONE, 1, m, a, b, c, k, OM_GEMM_WIDTH_3(m, a, b, c))
#define OM_LINEAR_XS(NAME, m, a, b, c, k) \
	OM_LINEAR_SIDES(m, a, b, c, k)    \
	OM_GEMM_INS(NAME, OM_GEMM_ONE, 1, m, k, a, b, c, OM_GEMM_WIDTH(m, k))
#define OM_LINEAR_N(n) static_assert((n) % 8 == 0, "linear: n % 8");

#ifdef __CUDACC__ /* ---- device ---- */

#define OM_LINEAR(NAME, m, n, k) OM_LINEAR_N(n) OM_LINEAR_Y(NAME##_x, om_bf16, m, n, k)
#define OM_LINEAR_F32(NAME, m, n, k) OM_LINEAR_Y(NAME##_x, float, m, n, k)
#define OM_LINEAR_DX(NAME, m, n, k) OM_LINEAR_N(n) OM_LINEAR_X(NAME##_x, m, n, k, 1)
#define OM_LINEAR_DW(NAME, m, n, k, add) \
	OM_LINEAR_N(n)                   \
	OM_LINEAR_W(NAME##_x, m, n, k, 1, add) OM_LINEAR_SUM(NAME##_sum, m, n, k, add)

#define OM_LINEAR_3(NAME, m, a, b, c, k) OM_LINEAR_YS(NAME##_x, m, a, b, c, k)
#define OM_LINEAR_DX_2(NAME, m, a, b, k) OM_LINEAR_XS(NAME##_x, m, a, b, 0, k)
#define OM_LINEAR_DX_3(NAME, m, a, b, c, k) OM_LINEAR_XS(NAME##_x, m, a, b, c, k)

#define OM_GATE(NAME, m, e, k) OM_LINEAR_F32(NAME, m, e, k)
#define OM_GATE_DX(NAME, m, e, k) \
	OM_GATE_HALVES(NAME##_halves, m, e) OM_LINEAR_X(NAME##_x, m, e, k, 2)
#define OM_GATE_DW(NAME, m, e, k, add)      \
	OM_GATE_HALVES(NAME##_halves, m, e) \
	OM_LINEAR_W(NAME##_x, m, e, k, 2, add) OM_LINEAR_SUM(NAME##_sum, m, e, k, add)

#define OM_LINEAR_SUM(NAME, m, n, k, add)                                               \
	OM_GLOBAL(256, 1) NAME(const float *part, float *dw)                            \
	{                                                                               \
		om_gemm_sum<OM_GEMM_PARTS(n, k, m), (int64_t)(n) * (k), add>(part, dw); \
	}
#define OM_GATE_HALVES(NAME, m, e)                               \
	OM_GLOBAL(256, 1) NAME(const float *dz, om_bf16 *halves) \
	{                                                        \
		om_gate_halves<m, e>(dz, halves);                \
	}

/* halves [2, m, e rounded up to 8], whose padding nobody reads */
template <int M, int E>
OM_DEV void
om_gate_halves(const float *dz, om_bf16 *halves)
{
	constexpr int pitch = OM_GEMM_ALIGN8(E);
	const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, to = i / E * pitch + i % E;
	if (i >= (int64_t)M * E)
		return;
	const float x = dz[i];
	const om_bf16 hi = om_round(x);
	halves[to] = hi;
	halves[to + (int64_t)M * pitch] = om_round(x - om_f32(hi));
}

#else /* ---- host ---- */

#include <assert.h>

#define OM_LINEAR(NAME, m, n, k)                                                                  \
	OM_LINEAR_N(n)                                                                            \
	OM_LINEAR_Y(NAME##_x, om_bf16, m, n, k)                                                   \
	void NAME(const om_bf16 *x, const om_bf16 *w, om_bf16 *y)                                 \
	{                                                                                         \
		NAME##_x_run(x, w, y, NULL);                                                      \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		OM_GEMM_CHECK(                                                                    \
		    seed, 0, NAME(v.a, v.b, c), OM_GEMM_ONE, 1, m, n, k, 0, 0, .c_float = false); \
	}

#define OM_LINEAR_F32(NAME, m, n, k)                                                             \
	OM_LINEAR_Y(NAME##_x, float, m, n, k)                                                    \
	void NAME(const om_bf16 *x, const om_bf16 *w, float *z)                                  \
	{                                                                                        \
		NAME##_x_run(x, w, z, NULL);                                                     \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		OM_GEMM_CHECK(                                                                   \
		    seed, 0, NAME(v.a, v.b, c), OM_GEMM_ONE, 1, m, n, k, 0, 0, .c_float = true); \
	}

#define OM_LINEAR_DX(NAME, m, n, k)                                                               \
	OM_LINEAR_N(n)                                                                            \
	OM_LINEAR_X(NAME##_x, m, n, k, 1)                                                         \
	void NAME(const om_bf16 *dy, const om_bf16 *w, om_bf16 *dx)                               \
	{                                                                                         \
		NAME##_x_run(dy, w, dx, NULL);                                                    \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		OM_GEMM_CHECK(                                                                    \
		    seed, 0, NAME(v.a, v.b, c), OM_GEMM_ONE, 1, m, k, n, 0, 1, .c_float = false); \
	}

/* ws: OM_LINEAR_DW_FLOATS(m, n, k), not used where that is 0 */
#define OM_LINEAR_DW(NAME, m, n, k, add)                                                   \
	OM_LINEAR_N(n)                                                                     \
	OM_LINEAR_W(NAME##_x, m, n, k, 1, add)                                             \
	OM_KERNEL(NAME##_sum, 256, 0)                                                      \
	void NAME(const om_bf16 *dy, const om_bf16 *x, float *dw, void *ws)                \
	{                                                                                  \
		if (OM_GEMM_PARTS(n, k, m) == 1) {                                         \
			NAME##_x_run(dy, x, dw, NULL);                                     \
			return;                                                            \
		}                                                                          \
		NAME##_x_run(dy, x, ws, NULL);                                             \
		OM_LAUNCH(NAME##_sum, OM_CEIL((int64_t)(n) * (k), 1024), 1, 1, &ws, &dw);  \
	}                                                                                  \
	double NAME##_check(uint64_t seed)                                                 \
	{                                                                                  \
		OM_GEMM_CHECK(seed, OM_LINEAR_DW_FLOATS(m, n, k), NAME(v.a, v.b, c, v.ws), \
		    OM_GEMM_ONE, 1, n, k, m, 1, 1, false, true, add, NULL);                \
	}

#define OM_LINEAR_3(NAME, m, a_, b, c_, k)                                                   \
	OM_LINEAR_YS(NAME##_x, m, a_, b, c_, k)                                              \
	void NAME(const om_bf16 *x, const om_bf16 *w, om_bf16 *ya, om_bf16 *yb, om_bf16 *yc) \
	{                                                                                    \
		NAME##_x_run(x, w, ya, yb, yc, NULL);                                        \
	}                                                                                    \
	double NAME##_check(uint64_t seed)                                                   \
	{                                                                                    \
		OM_BESIDE_CHECK(seed, false, NAME(v.a[0], v.w, c[0], c[1], c[2]), 1, m,      \
		    { a_, b, c_ }, k, NULL);                                                 \
	}
#define OM_LINEAR_DX_2(NAME, m, a_, b, k)                                                   \
	OM_LINEAR_XS(NAME##_x, m, a_, b, 0, k)                                              \
	void NAME(const om_bf16 *da, const om_bf16 *db, const om_bf16 *w, om_bf16 *dx)      \
	{                                                                                   \
		NAME##_x_run(da, db, NULL, w, dx, NULL);                                    \
	}                                                                                   \
	double NAME##_check(uint64_t seed)                                                  \
	{                                                                                   \
		OM_BESIDE_CHECK(                                                            \
		    seed, true, NAME(v.a[0], v.a[1], v.w, c[0]), 1, m, { a_, b }, k, NULL); \
	}
#define OM_LINEAR_DX_3(NAME, m, a_, b, c_, k)                                                \
	OM_LINEAR_XS(NAME##_x, m, a_, b, c_, k)                                              \
	void NAME(const om_bf16 *da, const om_bf16 *db, const om_bf16 *dc, const om_bf16 *w, \
	    om_bf16 *dx)                                                                     \
	{                                                                                    \
		NAME##_x_run(da, db, dc, w, dx, NULL);                                       \
	}                                                                                    \
	double NAME##_check(uint64_t seed)                                                   \
	{                                                                                    \
		OM_BESIDE_CHECK(seed, true, NAME(v.a[0], v.a[1], v.a[2], v.w, c[0]), 1, m,   \
		    { a_, b, c_ }, k, NULL);                                                 \
	}

#define OM_GATE(NAME, m, e, k) OM_LINEAR_F32(NAME, m, e, k)

#define OM_GATE_DX(NAME, m, e, k)                                                                  \
	OM_KERNEL(NAME##_halves, 256, 0)                                                           \
	OM_LINEAR_X(NAME##_x, m, e, k, 2)                                                          \
	void NAME(const float *dz, const om_bf16 *w, om_bf16 *dx, void *ws)                        \
	{                                                                                          \
		OM_LAUNCH(NAME##_halves, OM_CEIL((int64_t)(m) * (e), 256), 1, 1, &dz, &ws);        \
		NAME##_x_run(ws, w, dx, NULL);                                                     \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		OM_GEMM_CHECK(seed, OM_GATE_FLOATS(m, e), NAME(v.a, v.b, c, v.ws), OM_GEMM_ONE, 1, \
		    m, k, e, 0, 1, .a_float = true);                                               \
	}

/* ws: OM_GATE_FLOATS(m, e) + OM_LINEAR_DW_FLOATS(m, e, k) */
#define OM_GATE_DW(NAME, m, e, k, add)                                                       \
	OM_KERNEL(NAME##_halves, 256, 0)                                                     \
	OM_LINEAR_W(NAME##_x, m, e, k, 2, add)                                               \
	OM_KERNEL(NAME##_sum, 256, 0)                                                        \
	void NAME(const float *dz, const om_bf16 *x, float *dw, void *ws)                    \
	{                                                                                    \
		float *part = (float *)ws + OM_GATE_FLOATS(m, e);                            \
		OM_LAUNCH(NAME##_halves, OM_CEIL((int64_t)(m) * (e), 256), 1, 1, &dz, &ws);  \
		if (OM_GEMM_PARTS(e, k, m) == 1) {                                           \
			NAME##_x_run(ws, x, dw, NULL);                                       \
			return;                                                              \
		}                                                                            \
		NAME##_x_run(ws, x, part, NULL);                                             \
		OM_LAUNCH(NAME##_sum, OM_CEIL((int64_t)(e) * (k), 1024), 1, 1, &part, &dw);  \
	}                                                                                    \
	double NAME##_check(uint64_t seed)                                                   \
	{                                                                                    \
		OM_GEMM_CHECK(seed, OM_GATE_FLOATS(m, e) + OM_LINEAR_DW_FLOATS(m, e, k),     \
		    NAME(v.a, v.b, c, v.ws), OM_GEMM_ONE, 1, e, k, m, 1, 1, true, true, add, \
		    NULL);                                                                   \
	}

#endif
#endif
