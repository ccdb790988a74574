/*
 * Activations of the feed-forward layers, gated (Shazeer, 2020) or not. a chooses the gated one:
 *   0  silu(x) = x sigmoid(x)
 *   1  gelu(x) = x (1 + tanh(y)) / 2 = x sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x^3), the
 *      tanh form (Hendrycks and Gimpel, 2016)
 * and relu2(x) = max(x, 0)^2 has no gate (So et al., Primer, 2021).
 *
 *   glu                h [m, f] = act(g) u
 *   glu_bwd            dg = dh u act'(g), du = dh act(g); du may be dh
 *   glu_routed         h [t * k, f], row r, = p[src[r]] act(g) u; p [t, k] seen flat
 *   glu_routed_bwd     the same with p in dg and du, and dp[src[r]] = dh . (act(g) u)
 *   glu_rows           h [c, f], row r, = pr[r] act(g) u; rows up to off[j-1] alone
 *   glu_rows_bwd       the same with pr in dg and du, and dpr[r] = dh . (act(g) u)
 *   relu2              h [m, f] = relu2(u)
 *   relu2_bwd          du = dh relu2'(u); du may be dh
 *   relu2_routed       h [t * k, f], row r, = p[src[r]] relu2(u)
 *   relu2_routed_bwd   the same with p in du, and dp[src[r]] = dh . relu2(u)
 *   relu2_rows, relu2_rows_bwd   likewise
 *
 * One body a phase serves all: relu2's u is then its g, and its du the bodies' dg. f is a multiple
 * of 8.
 *
 * Without dp the arrays are flat: a thread takes OM_GLU_VECTORS vectors of 8 numbers, all loaded
 * before the first is used. With dp a team of up to 32 threads takes a row, its dot product on the
 * way: lane by lane in order, then as a tree.
 */
#ifndef OM_GLU_H
#define OM_GLU_H

#include "activation.h"

#define OM_GLU_THREADS 256
#define OM_GLU_VECTORS 2
#define OM_GLU_BLOCKS(m, f) OM_CEIL((int64_t)(m) * (f) / 8, OM_GLU_THREADS * OM_GLU_VECTORS)
#define OM_GLU_TEAM(f) ((f) > 128 ? 32 : (f) > 64 ? 16 : (f) > 32 ? 8 : 4)
#define OM_GLU_TEAMS(f) (OM_GLU_THREADS / OM_GLU_TEAM(f)) /* of a block, a row each */

#define OM_GLU_SIZES(m, f, a)                                                                 \
	static_assert((m) >= 1 && (f) >= 1, "glu: sizes start at 1");                         \
	static_assert((f) % 8 == 0, "glu: the width is a multiple of 8");                     \
	static_assert((int64_t)(m) * (f) / 8 <= 0x7fffffff, "glu: vectors counted in int32"); \
	static_assert((a) >= 0 && (a) <= 2, "glu: no such activation");
#define OM_GLU_ROUTED_SIZES(t, k, f, a)        \
	OM_GLU_SIZES((int64_t)(t) * (k), f, a) \
	static_assert((int64_t)(t) * (k) <= 0x7fffffff, "glu: rows are counted in int32");
#define OM_GLU_ROWS_SIZES(c, f, a, j)   \
	OM_GLU_ROUTED_SIZES(c, 1, f, a) \
	static_assert((j) >= 1, "glu: the last offset says how many rows");

#ifdef __CUDACC__

/* Which weight a row has: none; that of its route, src; its own, and there are only *src rows. */
enum om_glu_weight { OM_GLU_NONE, OM_GLU_ROUTE, OM_GLU_ROW };

/* p and src only with a weight */
template <int64_t M, int F, int A, int WEIGHT>
OM_DEV void
om_glu(const om_bf16 *g, const om_bf16 *u, const float *p, const int32_t *src, om_bf16 *h)
{
	constexpr uint32_t wide = F / 8, most = M * wide, block = OM_GLU_THREADS * OM_GLU_VECTORS;
	constexpr bool even = WEIGHT != OM_GLU_ROW && most % block == 0;
	const uint32_t total = WEIGHT == OM_GLU_ROW ? *src * wide : most;
	const uint32_t first = blockIdx.x * block + threadIdx.x;
	if (WEIGHT == OM_GLU_ROW && blockIdx.x * block >= total)
		return;
	float x[OM_GLU_VECTORS][8], y[OM_GLU_VECTORS][8], weight[OM_GLU_VECTORS];
#pragma unroll
	for (int v = 0; v < OM_GLU_VECTORS; v++) {
		/* beyond the end the last one: a branch would make each load wait for the last */
		const uint32_t at = first + v * OM_GLU_THREADS, i = even ? at : min(at, total - 1);
		om_load8(g + (int64_t)i * 8, x[v]);
		if (A != OM_RELU2)
			om_load8(u + (int64_t)i * 8, y[v]);
		weight[v] = WEIGHT == OM_GLU_NONE    ? 1
			    : WEIGHT == OM_GLU_ROUTE ? p[src[i / wide]]
						     : p[i / wide];
	}
#pragma unroll
	for (int v = 0; v < OM_GLU_VECTORS; v++) {
		const uint32_t i = first + v * OM_GLU_THREADS;
#pragma unroll
		for (int j = 0; j < 8; j++) {
			float slope, act = om_activation<A>(x[v][j], slope);
			x[v][j] = weight[v] * (act * (A == OM_RELU2 ? 1 : y[v][j]));
		}
		if (even || i < total)
			om_store8(h + (int64_t)i * 8, x[v]);
	}
}

/*
 * Eight numbers of the backward pass: g becomes dg, u du; gives their part of dp.
 */
template <int A>
OM_DEV float
om_glu_slope(float p, const float dh[8], float g[8], float u[8])
{
	float sum = 0;
#pragma unroll
	for (int j = 0; j < 8; j++) {
		float slope, act = om_activation<A>(g[j], slope);
		const float up = A == OM_RELU2 ? 1 : u[j], d = p * dh[j];
		sum += dh[j] * (act * up);
		g[j] = d * (up * slope);
		u[j] = d * act;
	}
	return sum;
}

template <int64_t M, int F, int A>
OM_DEV void
om_glu_bwd(const om_bf16 *dh, const om_bf16 *g, const om_bf16 *u, om_bf16 *dg, om_bf16 *du)
{
	constexpr uint32_t total = M * F / 8, block = OM_GLU_THREADS * OM_GLU_VECTORS;
	constexpr bool even = total % block == 0;
	const uint32_t first = blockIdx.x * block + threadIdx.x;
	float d[OM_GLU_VECTORS][8], x[OM_GLU_VECTORS][8], y[OM_GLU_VECTORS][8];
#pragma unroll
	for (int v = 0; v < OM_GLU_VECTORS; v++) {
		const uint32_t at = first + v * OM_GLU_THREADS, i = even ? at : min(at, total - 1);
		om_load8(dh + (int64_t)i * 8, d[v]);
		om_load8(g + (int64_t)i * 8, x[v]);
		if (A != OM_RELU2)
			om_load8(u + (int64_t)i * 8, y[v]);
	}
#pragma unroll
	for (int v = 0; v < OM_GLU_VECTORS; v++) {
		const uint32_t i = first + v * OM_GLU_THREADS;
		om_glu_slope<A>(1, d[v], x[v], y[v]);
		if (even || i < total) {
			om_store8(dg + (int64_t)i * 8, x[v]);
			if (A != OM_RELU2)
				om_store8(du + (int64_t)i * 8, y[v]);
		}
	}
}

template <int64_t MOST, int F, int A, int WEIGHT>
OM_DEV void
om_glu_routed_bwd(const om_bf16 *dh, const om_bf16 *g, const om_bf16 *u, const float *p,
    const int32_t *src, om_bf16 *dg, om_bf16 *du, float *dp)
{
	constexpr int team = OM_GLU_TEAM(F), wide = F / 8, step = team * OM_GLU_VECTORS;
	const int lane = threadIdx.x % team;
	const int64_t rows = WEIGHT == OM_GLU_ROW ? *src : MOST;
	const int64_t r = (int64_t)blockIdx.x * OM_GLU_TEAMS(F) + threadIdx.x / team;
	if (WEIGHT == OM_GLU_ROW && (int64_t)blockIdx.x * OM_GLU_TEAMS(F) >= rows)
		return;
	/* beyond the end a row is computed once more and not stored: the shuffles need all */
	constexpr bool even = WEIGHT != OM_GLU_ROW && MOST % OM_GLU_TEAMS(F) == 0;
	const int64_t row = min(r, rows - 1), base = row * F;
	const int32_t at = WEIGHT == OM_GLU_ROW ? (int32_t)row : src[row];
	const float weight = p[at];
	float sum = 0;
#pragma unroll 1
	for (int c0 = lane; c0 - lane < wide; c0 += step) {
		float d[OM_GLU_VECTORS][8], x[OM_GLU_VECTORS][8], y[OM_GLU_VECTORS][8];
#pragma unroll
		for (int v = 0; v < OM_GLU_VECTORS; v++) {
			const int at = c0 + v * team, c = wide % step ? min(at, wide - 1) : at;
			om_load8(dh + base + c * 8, d[v]);
			om_load8(g + base + c * 8, x[v]);
			if (A != OM_RELU2)
				om_load8(u + base + c * 8, y[v]);
		}
#pragma unroll
		for (int v = 0; v < OM_GLU_VECTORS; v++) {
			const int c = c0 + v * team;
			const float part = om_glu_slope<A>(weight, d[v], x[v], y[v]);
			if (wide % step && c >= wide)
				continue;
			sum += part;
			if (!even && r >= rows)
				continue;
			om_store8(dg + base + c * 8, x[v]);
			if (A != OM_RELU2)
				om_store8(du + base + c * 8, y[v]);
		}
	}
#pragma unroll
	for (int d = team / 2; d; d /= 2)
		sum += __shfl_xor_sync(0xffffffffu, sum, d);
	if (lane == 0 && r < rows)
		dp[at] = sum;
}

#define OM_GLU(NAME, m, f, a)                                            \
	OM_GLU_SIZES(m, f, a)                                            \
	OM_GLOBAL(OM_GLU_THREADS, 1)                                     \
	NAME##_x(const om_bf16 *g, const om_bf16 *u, om_bf16 *h)         \
	{                                                                \
		om_glu<m, f, a, OM_GLU_NONE>(g, u, nullptr, nullptr, h); \
	}

#define OM_GLU_ROUTED(NAME, t, k, f, a)                                                         \
	OM_GLU_ROUTED_SIZES(t, k, f, a)                                                         \
	OM_GLOBAL(OM_GLU_THREADS, 1)                                                            \
	NAME##_x(                                                                               \
	    const om_bf16 *g, const om_bf16 *u, const float *p, const int32_t *src, om_bf16 *h) \
	{                                                                                       \
		om_glu<(int64_t)(t) * (k), f, a, OM_GLU_ROUTE>(g, u, p, src, h);                \
	}

#define OM_RELU2(NAME, m, f)                                                    \
	OM_GLU_SIZES(m, f, OM_RELU2)                                            \
	OM_GLOBAL(OM_GLU_THREADS, 1) NAME##_x(const om_bf16 *u, om_bf16 *h)     \
	{                                                                       \
		om_glu<m, f, OM_RELU2, OM_GLU_NONE>(u, u, nullptr, nullptr, h); \
	}

#define OM_RELU2_ROUTED(NAME, t, k, f)                                                  \
	OM_GLU_ROUTED_SIZES(t, k, f, OM_RELU2)                                          \
	OM_GLOBAL(OM_GLU_THREADS, 1)                                                    \
	NAME##_x(const om_bf16 *u, const float *p, const int32_t *src, om_bf16 *h)      \
	{                                                                               \
		om_glu<(int64_t)(t) * (k), f, OM_RELU2, OM_GLU_ROUTE>(u, u, p, src, h); \
	}

#define OM_GLU_BWD(NAME, m, f, a)                                                                 \
	OM_GLU_SIZES(m, f, a)                                                                     \
	OM_GLOBAL(OM_GLU_THREADS, 1)                                                              \
	NAME##_x(const om_bf16 *dh, const om_bf16 *g, const om_bf16 *u, om_bf16 *dg, om_bf16 *du) \
	{                                                                                         \
		om_glu_bwd<m, f, a>(dh, g, u, dg, du);                                            \
	}

#define OM_RELU2_BWD(NAME, m, f)                                   \
	OM_GLU_SIZES(m, f, OM_RELU2)                               \
	OM_GLOBAL(OM_GLU_THREADS, 1)                               \
	NAME##_x(const om_bf16 *dh, const om_bf16 *u, om_bf16 *du) \
	{                                                          \
		om_glu_bwd<m, f, OM_RELU2>(dh, u, u, du, du);      \
	}

#define OM_GLU_ROUTED_BWD(NAME, t, k, f, a)                                             \
	OM_GLU_ROUTED_SIZES(t, k, f, a)                                                 \
	OM_GLOBAL(OM_GLU_THREADS, 3)                                                    \
	NAME##_x(const om_bf16 *dh, const om_bf16 *g, const om_bf16 *u, const float *p, \
	    const int32_t *src, om_bf16 *dg, om_bf16 *du, float *dp)                    \
	{                                                                               \
		om_glu_routed_bwd<(int64_t)(t) * (k), f, a, OM_GLU_ROUTE>(              \
		    dh, g, u, p, src, dg, du, dp);                                      \
	}

#define OM_RELU2_ROUTED_BWD(NAME, t, k, f)                                                \
	OM_GLU_ROUTED_SIZES(t, k, f, OM_RELU2)                                            \
	OM_GLOBAL(OM_GLU_THREADS, 3)                                                      \
	NAME##_x(const om_bf16 *dh, const om_bf16 *u, const float *p, const int32_t *src, \
	    om_bf16 *du, float *dp)                                                       \
	{                                                                                 \
		om_glu_routed_bwd<(int64_t)(t) * (k), f, OM_RELU2, OM_GLU_ROUTE>(         \
		    dh, u, u, p, src, du, du, dp);                                        \
	}

#define OM_GLU_ROWS(NAME, c, f, a, j)                                                            \
	OM_GLU_ROWS_SIZES(c, f, a, j)                                                            \
	OM_GLOBAL(OM_GLU_THREADS, 1)                                                             \
	NAME##_x(                                                                                \
	    const om_bf16 *g, const om_bf16 *u, const float *pr, const int32_t *off, om_bf16 *h) \
	{                                                                                        \
		om_glu<c, f, a, OM_GLU_ROW>(g, u, pr, off + (j)-1, h);                           \
	}

#define OM_RELU2_ROWS(NAME, c, f, j)                                                \
	OM_GLU_ROWS_SIZES(c, f, OM_RELU2, j)                                        \
	OM_GLOBAL(OM_GLU_THREADS, 1)                                                \
	NAME##_x(const om_bf16 *u, const float *pr, const int32_t *off, om_bf16 *h) \
	{                                                                           \
		om_glu<c, f, OM_RELU2, OM_GLU_ROW>(u, u, pr, off + (j)-1, h);       \
	}

#define OM_GLU_ROWS_BWD(NAME, c, f, a, j)                                                       \
	OM_GLU_ROWS_SIZES(c, f, a, j)                                                           \
	OM_GLOBAL(OM_GLU_THREADS, 3)                                                            \
	NAME##_x(const om_bf16 *dh, const om_bf16 *g, const om_bf16 *u, const float *pr,        \
	    const int32_t *off, om_bf16 *dg, om_bf16 *du, float *dpr)                           \
	{                                                                                       \
		om_glu_routed_bwd<c, f, a, OM_GLU_ROW>(dh, g, u, pr, off + (j)-1, dg, du, dpr); \
	}

#define OM_RELU2_ROWS_BWD(NAME, c, f, j)                                                   \
	OM_GLU_ROWS_SIZES(c, f, OM_RELU2, j)                                               \
	OM_GLOBAL(OM_GLU_THREADS, 3)                                                       \
	NAME##_x(const om_bf16 *dh, const om_bf16 *u, const float *pr, const int32_t *off, \
	    om_bf16 *du, float *dpr)                                                       \
	{                                                                                  \
		om_glu_routed_bwd<c, f, OM_RELU2, OM_GLU_ROW>(                             \
		    dh, u, u, pr, off + (j)-1, du, du, dpr);                               \
	}

#else /* ---- host ---- */

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OM_GLU(NAME, m, f, a)                                                            \
	OM_GLU_SIZES(m, f, a)                                                            \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                           \
	void NAME(const om_bf16 *g, const om_bf16 *u, om_bf16 *h)                        \
	{                                                                                \
		OM_LAUNCH(NAME##_x, OM_GLU_BLOCKS(m, f), 1, 1, &g, &u, &h);              \
	}                                                                                \
	double NAME##_check(uint64_t seed)                                               \
	{                                                                                \
		return om_glu_check((struct om_glu_fn){ .gated = NAME }, m, f, a, seed); \
	}

#define OM_GLU_ROUTED(NAME, t, k, f, a)                                                          \
	OM_GLU_ROUTED_SIZES(t, k, f, a)                                                          \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                                   \
	void NAME(                                                                               \
	    const om_bf16 *g, const om_bf16 *u, const float *p, const int32_t *src, om_bf16 *h)  \
	{                                                                                        \
		OM_LAUNCH(                                                                       \
		    NAME##_x, OM_GLU_BLOCKS((int64_t)(t) * (k), f), 1, 1, &g, &u, &p, &src, &h); \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_glu_check(                                                             \
		    (struct om_glu_fn){ .gated_routed = NAME }, (int64_t)(t) * (k), f, a, seed); \
	}

#define OM_RELU2(NAME, m, f)                                                             \
	OM_GLU_SIZES(m, f, 2)                                                            \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                           \
	void NAME(const om_bf16 *u, om_bf16 *h)                                          \
	{                                                                                \
		OM_LAUNCH(NAME##_x, OM_GLU_BLOCKS(m, f), 1, 1, &u, &h);                  \
	}                                                                                \
	double NAME##_check(uint64_t seed)                                               \
	{                                                                                \
		return om_glu_check((struct om_glu_fn){ .relu2 = NAME }, m, f, 2, seed); \
	}

#define OM_RELU2_ROUTED(NAME, t, k, f)                                                             \
	OM_GLU_ROUTED_SIZES(t, k, f, 2)                                                            \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                                     \
	void NAME(const om_bf16 *u, const float *p, const int32_t *src, om_bf16 *h)                \
	{                                                                                          \
		OM_LAUNCH(NAME##_x, OM_GLU_BLOCKS((int64_t)(t) * (k), f), 1, 1, &u, &p, &src, &h); \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_glu_check(                                                               \
		    (struct om_glu_fn){ .relu2_routed = NAME }, (int64_t)(t) * (k), f, 2, seed);   \
	}

#define OM_GLU_BWD(NAME, m, f, a)                                                                  \
	OM_GLU_SIZES(m, f, a)                                                                      \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                                     \
	void NAME(const om_bf16 *dh, const om_bf16 *g, const om_bf16 *u, om_bf16 *dg, om_bf16 *du) \
	{                                                                                          \
		OM_LAUNCH(NAME##_x, OM_GLU_BLOCKS(m, f), 1, 1, &dh, &g, &u, &dg, &du);             \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_glu_bwd_check((struct om_glu_bwd_fn){ .gated = NAME }, m, f, a, seed);   \
	}

#define OM_RELU2_BWD(NAME, m, f)                                                                 \
	OM_GLU_SIZES(m, f, 2)                                                                    \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                                   \
	void NAME(const om_bf16 *dh, const om_bf16 *u, om_bf16 *du)                              \
	{                                                                                        \
		OM_LAUNCH(NAME##_x, OM_GLU_BLOCKS(m, f), 1, 1, &dh, &u, &du);                    \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_glu_bwd_check((struct om_glu_bwd_fn){ .relu2 = NAME }, m, f, 2, seed); \
	}

#define OM_GLU_ROUTED_BWD(NAME, t, k, f, a)                                                      \
	OM_GLU_ROUTED_SIZES(t, k, f, a)                                                          \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                                   \
	void NAME(const om_bf16 *dh, const om_bf16 *g, const om_bf16 *u, const float *p,         \
	    const int32_t *src, om_bf16 *dg, om_bf16 *du, float *dp)                             \
	{                                                                                        \
		OM_LAUNCH(NAME##_x, OM_CEIL((int64_t)(t) * (k), OM_GLU_TEAMS(f)), 1, 1, &dh, &g, \
		    &u, &p, &src, &dg, &du, &dp);                                                \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_glu_bwd_check((struct om_glu_bwd_fn){ .gated_routed = NAME },          \
		    (int64_t)(t) * (k), f, a, seed);                                             \
	}

#define OM_RELU2_ROUTED_BWD(NAME, t, k, f)                                                       \
	OM_GLU_ROUTED_SIZES(t, k, f, 2)                                                          \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                                   \
	void NAME(const om_bf16 *dh, const om_bf16 *u, const float *p, const int32_t *src,       \
	    om_bf16 *du, float *dp)                                                              \
	{                                                                                        \
		OM_LAUNCH(NAME##_x, OM_CEIL((int64_t)(t) * (k), OM_GLU_TEAMS(f)), 1, 1, &dh, &u, \
		    &p, &src, &du, &dp);                                                         \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_glu_bwd_check((struct om_glu_bwd_fn){ .relu2_routed = NAME },          \
		    (int64_t)(t) * (k), f, 2, seed);                                             \
	}

#define OM_GLU_ROWS(NAME, c, f, a, j)                                                            \
	OM_GLU_ROWS_SIZES(c, f, a, j)                                                            \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                                   \
	void NAME(                                                                               \
	    const om_bf16 *g, const om_bf16 *u, const float *pr, const int32_t *off, om_bf16 *h) \
	{                                                                                        \
		OM_LAUNCH(NAME##_x, OM_GLU_BLOCKS(c, f), 1, 1, &g, &u, &pr, &off, &h);           \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_glu_check(                                                             \
		    (struct om_glu_fn){ .gated_routed = NAME, .offsets = j }, c, f, a, seed);    \
	}

#define OM_RELU2_ROWS(NAME, c, f, j)                                                          \
	OM_GLU_ROWS_SIZES(c, f, 2, j)                                                         \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                                \
	void NAME(const om_bf16 *u, const float *pr, const int32_t *off, om_bf16 *h)          \
	{                                                                                     \
		OM_LAUNCH(NAME##_x, OM_GLU_BLOCKS(c, f), 1, 1, &u, &pr, &off, &h);            \
	}                                                                                     \
	double NAME##_check(uint64_t seed)                                                    \
	{                                                                                     \
		return om_glu_check(                                                          \
		    (struct om_glu_fn){ .relu2_routed = NAME, .offsets = j }, c, f, 2, seed); \
	}

#define OM_GLU_ROWS_BWD(NAME, c, f, a, j)                                                         \
	OM_GLU_ROWS_SIZES(c, f, a, j)                                                             \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                                    \
	void NAME(const om_bf16 *dh, const om_bf16 *g, const om_bf16 *u, const float *pr,         \
	    const int32_t *off, om_bf16 *dg, om_bf16 *du, float *dpr)                             \
	{                                                                                         \
		OM_LAUNCH(NAME##_x, OM_CEIL(c, OM_GLU_TEAMS(f)), 1, 1, &dh, &g, &u, &pr, &off,    \
		    &dg, &du, &dpr);                                                              \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_glu_bwd_check(                                                          \
		    (struct om_glu_bwd_fn){ .gated_routed = NAME, .offsets = j }, c, f, a, seed); \
	}

#define OM_RELU2_ROWS_BWD(NAME, c, f, j)                                                          \
	OM_GLU_ROWS_SIZES(c, f, 2, j)                                                             \
	OM_KERNEL(NAME##_x, OM_GLU_THREADS, 0)                                                    \
	void NAME(const om_bf16 *dh, const om_bf16 *u, const float *pr, const int32_t *off,       \
	    om_bf16 *du, float *dpr)                                                              \
	{                                                                                         \
		OM_LAUNCH(                                                                        \
		    NAME##_x, OM_CEIL(c, OM_GLU_TEAMS(f)), 1, 1, &dh, &u, &pr, &off, &du, &dpr);  \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_glu_bwd_check(                                                          \
		    (struct om_glu_bwd_fn){ .relu2_routed = NAME, .offsets = j }, c, f, 2, seed); \
	}

/*
 * The kernel that a check runs: one of these. With offsets, how many, a routed one takes them in
 * place of src, and the weights in the order of the rows.
 */
struct om_glu_fn {
	void (*gated)(const om_bf16 *, const om_bf16 *, om_bf16 *);
	void (*gated_routed)(
	    const om_bf16 *, const om_bf16 *, const float *, const int32_t *, om_bf16 *);
	void (*relu2)(const om_bf16 *, om_bf16 *);
	void (*relu2_routed)(const om_bf16 *, const float *, const int32_t *, om_bf16 *);
	int64_t offsets;
};
struct om_glu_bwd_fn {
	void (*gated)(const om_bf16 *, const om_bf16 *, const om_bf16 *, om_bf16 *, om_bf16 *);
	void (*gated_routed)(const om_bf16 *, const om_bf16 *, const om_bf16 *, const float *,
	    const int32_t *, om_bf16 *, om_bf16 *, float *);
	void (*relu2)(const om_bf16 *, const om_bf16 *, om_bf16 *);
	void (*relu2_routed)(
	    const om_bf16 *, const om_bf16 *, const float *, const int32_t *, om_bf16 *, float *);
	int64_t offsets;
};
static inline void
om_glu_run(struct om_glu_fn f, const om_bf16 *g, const om_bf16 *u, const float *p,
    const int32_t *src, om_bf16 *h)
{
	if (f.gated)
		f.gated(g, u, h);
	if (f.gated_routed)
		f.gated_routed(g, u, p, src, h);
	if (f.relu2)
		f.relu2(g, h);
	if (f.relu2_routed)
		f.relu2_routed(g, p, src, h);
}

static inline void
om_glu_bwd_run(struct om_glu_bwd_fn f, const om_bf16 *dh, const om_bf16 *g, const om_bf16 *u,
    const float *p, const int32_t *src, om_bf16 *dg, om_bf16 *du, float *dp)
{
	if (f.gated)
		f.gated(dh, g, u, dg, du);
	if (f.gated_routed)
		f.gated_routed(dh, g, u, p, src, dg, du, dp);
	if (f.relu2)
		f.relu2(dh, g, dg);
	if (f.relu2_routed)
		f.relu2_routed(dh, g, p, src, dg, dp);
}

/* The sth of at most OM_GLU_SAMPLES rows that are looked at; the last ones are among them. */
static inline int64_t
om_glu_sample(int64_t s, int64_t rows, uint64_t seed)
{
	if (rows <= OM_GLU_SAMPLES)
		return s;
	if (s < 8)
		return rows - 1 - s;
	return (int64_t)((om_unit(seed, 99, s) / 3.4641016151377544 + 0.5) * (double)(rows - 1));
}

/* What a kernel takes as src: offsets of which the last alone counts; *valid: rows there are. */
static inline int32_t *
om_glu_given(int64_t offsets, const int32_t *src, int64_t rows, uint64_t seed, int64_t *valid)
{
	*valid = rows;
	if (!offsets)
		return om_check_copy(src, (size_t)rows * sizeof *src);
	int32_t *off = calloc((size_t)offsets, sizeof *off), *device;
	if (seed % 3)
		*valid = (int64_t)((om_unit(seed, 8, 0) / 3.4641016151377544 + 0.5) * (double)rows);
	off[offsets - 1] = (int32_t)*valid;
	device = om_check_copy(off, (size_t)offsets * sizeof *off);
	free(off);
	return device;
}

/* Bytes behind the rows that there are have to be as they were, 0xff; some are looked at. */
static inline bool
om_glu_kept(const void *p, int64_t row_bytes, int64_t valid, int64_t rows)
{
	unsigned char got[64];
	bool kept = true;
	for (int64_t r = valid; r < rows; r += (rows - valid + 15) / 16) {
		const size_t n = row_bytes < 64 ? (size_t)row_bytes : 64;
		om_check_read(got, (const char *)p + r * row_bytes, n);
		for (size_t i = 0; i < n; i++)
			kept &= got[i] == 0xff;
	}
	return kept;
}

static inline double
om_glu_check(struct om_glu_fn run, int64_t rows, int64_t f, int a, uint64_t seed)
{
	const bool gated = run.gated || run.gated_routed;
	const bool routed = run.gated_routed || run.relu2_routed;
	om_bf16 *g = om_check_bf16(rows * f, seed, 0, OM_GLU_STRETCH);
	om_bf16 *u = gated ? om_check_bf16(rows * f, seed, 1, 1) : NULL;
	float *p = om_check_f32(rows, seed, 2, 1);
	om_bf16 *h = om_check_nan((size_t)(rows * f) * sizeof *h);
	int32_t *host = om_glu_src(rows, seed);
	int64_t valid;
	int32_t *src = om_glu_given(run.offsets, host, rows, seed, &valid);
	om_bf16 *got = malloc((size_t)f * sizeof *got);
	struct om_err e = { .scale = 1 };
	om_glu_run(run, g, u, p, src, h);
	for (int64_t s = 0; s < valid && s < OM_GLU_SAMPLES; s++) {
		const int64_t r = om_glu_sample(s, valid, seed);
		const double pr = routed ? om_unit(seed, 2, run.offsets ? r : host[r]) : 1;
		om_check_read(got, h + r * f, (size_t)f * sizeof *got);
		for (int64_t j = 0; j < f; j++) {
			const int64_t i = r * f + j;
			double slope, up = gated ? om_unit_bf16(seed, 1, i) : 1;
			double gi = OM_GLU_STRETCH * (double)om_unit_bf16(seed, 0, i);
			om_err_add(&e, om_bf16_f32(got[j]), pr * om_glu_ref(a, gi, &slope) * up);
		}
	}
	e.wrong |= !om_glu_kept(h, f * 2, valid, rows);
	OM_TIME(om_glu_run(run, g, u, p, src, h));
	om_check_end();
	free(host);
	free(got);
	return om_err_value(&e);
}

static inline double
om_glu_bwd_check(struct om_glu_bwd_fn run, int64_t rows, int64_t f, int a, uint64_t seed)
{
	const bool gated = run.gated || run.gated_routed;
	const bool routed = run.gated_routed || run.relu2_routed;
	const size_t bytes = (size_t)(rows * f) * sizeof(om_bf16);
	om_bf16 *dh = om_check_bf16(rows * f, seed, 0, 1);
	om_bf16 *g = om_check_bf16(rows * f, seed, 1, OM_GLU_STRETCH);
	om_bf16 *u = gated ? om_check_bf16(rows * f, seed, 2, 1) : NULL;
	float *p = om_check_f32(rows, seed, 3, 1);
	om_bf16 *dg = om_check_nan(bytes), *du = gated ? om_check_nan(bytes) : NULL;
	float *dp[2] = { om_check_nan((size_t)rows * sizeof(float)),
		om_check_nan((size_t)rows * sizeof(float)) };
	int32_t *host = om_glu_src(rows, seed);
	int64_t valid;
	int32_t *src = om_glu_given(run.offsets, host, rows, seed, &valid);
	om_bf16 *got = malloc(3 * (size_t)f * sizeof *got);
	struct om_err eg = { .scale = 1 }, eu = { .scale = 1 }, ep = { .scale = 1 };
	om_glu_bwd_run(run, dh, g, u, p, src, dg, du, dp[0]);
	/* once more with du in place of dh, which is du's (relu2: dg's) second version then */
	if (gated)
		om_glu_bwd_run(run, dh, g, u, p, src, dg, dh, dp[1]);
	else
		om_glu_bwd_run(run, dh, g, u, p, src, dh, NULL, dp[1]);
	for (int64_t s = 0; s < valid && s < OM_GLU_SAMPLES; s++) {
		const int64_t r = om_glu_sample(s, valid, seed), own = run.offsets ? r : host[r];
		const double pr = routed ? om_unit(seed, 3, own) : 1;
		double sum = 0;
		float gp[2];
		om_check_read(got, dg + r * f, (size_t)f * sizeof *got);
		om_check_read(got + f, (gated ? du : dg) + r * f, (size_t)f * sizeof *got);
		om_check_read(got + 2 * f, dh + r * f, (size_t)f * sizeof *got);
		eu.wrong |= memcmp(got + f, got + 2 * f, (size_t)f * sizeof *got) != 0;
		for (int64_t j = 0; j < f; j++) {
			const int64_t i = r * f + j;
			double slope, d = om_unit_bf16(seed, 0, i);
			double up = gated ? om_unit_bf16(seed, 2, i) : 1;
			double act = om_glu_ref(
			    a, OM_GLU_STRETCH * (double)om_unit_bf16(seed, 1, i), &slope);
			om_err_add(&eg, om_bf16_f32(got[j]), pr * d * up * slope);
			if (gated)
				om_err_add(&eu, om_bf16_f32(got[f + j]), pr * d * act);
			sum += d * act * up;
			ep.scale = fmax(ep.scale, fabs(d * act * up));
		}
		if (!routed)
			continue;
		for (int k = 0; k < 2; k++)
			om_check_read(&gp[k], dp[k] + own, sizeof *gp);
		om_err_add(&ep, gp[0], sum);
		ep.wrong |= memcmp(&gp[0], &gp[1], sizeof *gp) != 0;
	}
	eg.wrong |= !om_glu_kept(dg, f * 2, valid, rows);
	eu.wrong |= gated && !om_glu_kept(du, f * 2, valid, rows);
	ep.wrong |= run.offsets && !om_glu_kept(dp[0], 4, valid, rows);
	OM_TIME(om_glu_bwd_run(run, dh, g, u, p, src, dg, du, dp[0]));
	om_check_end();
	free(host);
	free(got);
	/* dp is float: held to 1e-5 where dg and du are held to 4e-3 */
	return fmax(fmax(om_err_value(&eg), om_err_value(&eu)), 400 * om_err_value(&ep));
}

#endif
#endif
