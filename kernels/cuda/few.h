/*
 * Products of few rows, of tokens that are generated: what takes their time is reading w once, at
 * the memory's speed.
 *
 *   few        y [m, n]  = x [m, k] w [n, k]^T; few_f32: z, float; few_3: as linear_3
 *   few_glu    g, u, h [m, f] = x [m, k] w [2 f, k]^T and the activation, as linear_glu
 *   few_grouped, few_grouped_glu  the same of experts' rows, as grouped and grouped_glu
 *
 * A block has 16 rows of w, of a gated layer 8 of gate and the 8 of up beside them, and all rows of
 * x, up to 32 at a time. Its warps take slabs of 32 columns in turns, and their sums are
 * added in order. A lane reads 16 bytes of two rows of w; as sums over k may have any order, these
 * are the operands of mma.sync as they come: the same columns of x go with them. The first of w's
 * numbers, which no kernel before changes, are asked for before these are done (om_after).
 *
 * Of experts blocks go to those that have rows, wherever these are.
 */
#ifndef OM_FEW_H
#define OM_FEW_H

#include "activation.h"
#include "gemm.h"
#include "sm80.h"

enum { OM_FEW_SLAB = 32, OM_FEW_ROWS = 16 };
/* Slabs that a warp asks for at once; sums of more rows of x leave room for fewer. */
#define OM_FEW_BATCH(tiles) ((tiles) > 2 ? 4 : 8)
/* Warps of a block: each has a batch of slabs, where there are so many. */
#define OM_FEW_WARPS(k) ((k) > 1024 ? 8 : (k) > 512 ? 4 : 2)
/* Tiles of 8 rows of x at once: of m rows; of an expert's, twice the mean of r rows of e. */
#define OM_FEW_OF(r, e) ((e) > 0 ? 2 * (r) / (e) : (r))
#define OM_FEW_AT_ONCE(m) ((m) > 16 ? 4 : (m) > 8 ? 2 : 1)

#define OM_FEW_SIZES(m, n, k)                                                           \
	static_assert((m) >= 1 && (n) >= 1 && (k) >= 8, "few: sizes start at 1 and 8"); \
	static_assert((k) % 8 == 0, "few: k is a multiple of 8");

#ifdef __CUDACC__

/* 16 bytes that are read once. */
OM_DEV uint4
om_few_load(const om_bf16 *p)
{
	uint4 v;
	asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(p));
	return v;
}

/*
 * sum [WARPS][TILES * 8][16]: of the block's rows of w and the first `rows` rows of x. w0, w1: the
 * rows of w that this lane reads, numbers lane / 4 and that + 8.
 */
template <int K, int TILES>
OM_DEV void
om_few_sums(const om_bf16 *w0, const om_bf16 *w1, const om_bf16 *x, int rows, float *sum, bool wait)
{
	constexpr int warps = OM_FEW_WARPS(K), slabs = OM_CEIL(K, OM_FEW_SLAB);
	constexpr int each = OM_CEIL(slabs, warps), most = OM_FEW_BATCH(TILES);
	constexpr int batch = each < most ? each : most;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = lane / 4;
	float c[TILES][4] = {};

#pragma unroll 1
	for (int s = 0; s < each; s += batch) {
		uint4 a[batch], b[batch];
#pragma unroll
		for (int i = 0; i < batch; i++) {
			const int k = ((s + i) * warps + warp) * OM_FEW_SLAB + lane % 4 * 8;
			const bool in = k < K;
			a[i] = in ? om_few_load(w0 + k) : make_uint4(0, 0, 0, 0);
			b[i] = in ? om_few_load(w1 + k) : make_uint4(0, 0, 0, 0);
		}
		if (wait && s == 0)
			om_after();
#pragma unroll
		for (int i = 0; i < batch; i++) {
			const int k = ((s + i) * warps + warp) * OM_FEW_SLAB + lane % 4 * 8;
			const uint32_t first[4] = { a[i].x, b[i].x, a[i].y, b[i].y };
			const uint32_t second[4] = { a[i].z, b[i].z, a[i].w, b[i].w };
#pragma unroll
			for (int t = 0; t < TILES; t++) {
				uint4 v = make_uint4(0, 0, 0, 0);
				if (t > 0 && t * 8 >= rows)
					break;
				if (k < K && t * 8 + at < rows)
					v = *(const uint4 *)(x + (int64_t)(t * 8 + at) * K + k);
				om_mma(c[t], first, v.x, v.y);
				om_mma(c[t], second, v.z, v.w);
			}
		}
	}
#pragma unroll
	for (int t = 0; t < TILES; t++) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			sum[(warp * TILES * 8 + t * 8 + lane % 4 * 2 + i % 2) * OM_FEW_ROWS + at +
			    i / 2 * 8] = c[t][i];
	}
	__syncthreads();
}

/* Of the warps' sums the one of a row of x and of w. */
template <int K, int TILES>
OM_DEV float
om_few_sum(const float *sum, int row, int col)
{
	float all = 0;
#pragma unroll
	for (int w = 0; w < OM_FEW_WARPS(K); w++)
		all += sum[(w * TILES * 8 + row) * OM_FEW_ROWS + col];
	return all;
}

#define OM_FEW_SUM(K, TILES) __shared__ float sum[OM_FEW_WARPS(K) * (TILES)*8 * OM_FEW_ROWS]
/* For each number of a block, of `wide` rows of w and `rows` of x: row and col. */
#define OM_FEW_EACH(K, rows, wide)                                                        \
	for (int i = threadIdx.x, row, col;                                               \
	     i < (rows) * (wide) && (row = i / (wide), true) && (col = i % (wide), true); \
	     i += OM_FEW_WARPS(K) * 32)

OM_DEV void
om_few_put(om_bf16 *y, float x)
{
	*y = om_round(x);
}

OM_DEV void
om_few_put(float *y, float x)
{
	*y = x;
}

template <int M, int NA, int NB, int NC, int K, class T>
OM_DEV void
om_few(const om_bf16 *x, const om_bf16 *w, T *ya, T *yb, T *yc)
{
	constexpr int tiles = OM_FEW_AT_ONCE(M), n = NA + NB + NC;
	OM_FEW_SUM(K, tiles);
	const int to = blockIdx.x * OM_FEW_ROWS, at = to + threadIdx.x % 32 / 4;
	const om_bf16 *w0 = w + (int64_t)min(at, n - 1) * K;
	const om_bf16 *w1 = w + (int64_t)min(at + 8, n - 1) * K;
	om_before();
	for (int r = 0; r < M; r += tiles * 8) {
		const int rows = min(tiles * 8, M - r);
		om_few_sums<K, tiles>(w0, w1, x + (int64_t)r * K, rows, sum, r == 0);
		OM_FEW_EACH(K, rows, OM_FEW_ROWS)
		{
			const float all = om_few_sum<K, tiles>(sum, row, col);
			const int to_col = to + col;
			if (to_col < NA)
				om_few_put(ya + (int64_t)(r + row) * NA + to_col, all);
			else if (to_col < NA + NB)
				om_few_put(yb + (int64_t)(r + row) * NB + to_col - NA, all);
			else if (to_col < n)
				om_few_put(yc + (int64_t)(r + row) * NC + to_col - NA - NB, all);
		}
		if (r + tiles * 8 < M)
			__syncthreads();
	}
}

/* The nth expert that has rows, and these; false: so many have none. */
template <int E>
OM_DEV bool
om_few_expert(const int32_t *off, int nth, int &expert, int &first, int &rows)
{
	const int lane = threadIdx.x % 32;
	int seen = 0;
#pragma unroll 4
	for (int e = 0; e < E; e += 32) {
		const int own = min(e + lane, E - 1), lo = off[own], n = off[own + 1] - lo;
		const bool has = e + lane < E && n > 0;
		const uint32_t all = __ballot_sync(0xffffffffu, has);
		const int before = seen + __popc(all & ((1u << lane) - 1));
		const uint32_t it = __ballot_sync(0xffffffffu, has && before == nth);
		if (it) {
			const int from = __ffs(it) - 1;
			expert = e + from;
			first = __shfl_sync(0xffffffffu, lo, from);
			rows = __shfl_sync(0xffffffffu, n, from);
			return true;
		}
		seen += __popc(all);
	}
	return false;
}

template <int R, int E, int N, int K>
OM_DEV void
om_few_grouped(const om_bf16 *x, const om_bf16 *w, const int32_t *off, om_bf16 *y)
{
	constexpr int tiles = OM_FEW_AT_ONCE(OM_FEW_OF(R, E));
	OM_FEW_SUM(K, tiles);
	const int to = blockIdx.x * OM_FEW_ROWS, at = to + threadIdx.x % 32 / 4;
	int e, first, all;
	om_before();
	om_after();
	if (!om_few_expert<E>(off, blockIdx.y, e, first, all))
		return;
	const om_bf16 *w0 = w + ((int64_t)e * N + min(at, N - 1)) * K;
	const om_bf16 *w1 = w + ((int64_t)e * N + min(at + 8, N - 1)) * K;
	for (int r = 0; r < all; r += tiles * 8) {
		const int rows = min(tiles * 8, all - r);
		om_few_sums<K, tiles>(w0, w1, x + (int64_t)(first + r) * K, rows, sum, false);
		OM_FEW_EACH(K, rows, OM_FEW_ROWS)
		{
			if (to + col < N)
				y[(int64_t)(first + r + row) * N + to + col] =
				    om_round(om_few_sum<K, tiles>(sum, row, col));
		}
		__syncthreads();
	}
}

/* E 0: a dense layer's, of R rows. */
template <int R, int E, int F, int K, int A>
OM_DEV void
om_few_glu(const om_bf16 *x, const om_bf16 *w, const int32_t *off, const float *p,
    const int32_t *src, om_bf16 *g, om_bf16 *u, om_bf16 *h)
{
	constexpr int tiles = OM_FEW_AT_ONCE(OM_FEW_OF(R, E)), half = OM_FEW_ROWS / 2;
	OM_FEW_SUM(K, tiles);
	const int to = blockIdx.x * half, at = min(to + (int)threadIdx.x % 32 / 4, F - 1);
	int e = 0, first = 0, all = R;
	om_before();
	if (E) {
		om_after();
		if (!om_few_expert < E ? E : 1 > (off, blockIdx.y, e, first, all))
			return;
	}
	const om_bf16 *w0 = w + ((int64_t)e * F + at) * K;
	const om_bf16 *w1 = w0 + (int64_t)(E ? E : 1) * F * K;
	for (int r = 0; r < all; r += tiles * 8) {
		const int rows = min(tiles * 8, all - r);
		om_few_sums<K, tiles>(
		    w0, w1, x + (int64_t)(first + r) * K, rows, sum, !E && r == 0);
		OM_FEW_EACH(K, rows, half)
		{
			const om_bf16 gate = om_round(om_few_sum<K, tiles>(sum, row, col));
			const om_bf16 up = om_round(om_few_sum<K, tiles>(sum, row, col + half));
			const int64_t y = (int64_t)(first + r + row) * F + to + col;
			float slope;
			const float own = E ? p[src[first + r + row]] : 1;
			if (to + col < F) {
				g[y] = gate;
				u[y] = up;
				h[y] = om_round(
				    own * (om_activation<A>(om_f32(gate), slope) * om_f32(up)));
			}
		}
		__syncthreads();
	}
}

#define OM_FEW(NAME, m, n, k)                                                           \
	OM_FEW_SIZES(m, n, k)                                                           \
	OM_GLOBAL(OM_FEW_WARPS(k) * 32, 16 / OM_FEW_WARPS(k))                           \
	NAME##_x(const om_bf16 *x, const om_bf16 *w, om_bf16 *y)                        \
	{                                                                               \
		om_few<m, n, 0, 0, k>(x, w, y, (om_bf16 *)nullptr, (om_bf16 *)nullptr); \
	}
#define OM_FEW_F32(NAME, m, n, k)                                                   \
	OM_FEW_SIZES(m, n, k)                                                       \
	OM_GLOBAL(OM_FEW_WARPS(k) * 32, 16 / OM_FEW_WARPS(k))                       \
	NAME##_x(const om_bf16 *x, const om_bf16 *w, float *z)                      \
	{                                                                           \
		om_few<m, n, 0, 0, k>(x, w, z, (float *)nullptr, (float *)nullptr); \
	}
#define OM_FEW_3(NAME, m, a, b, c, k)                                                       \
	OM_FEW_SIZES(m, (a) + (b) + (c), k)                                                 \
	OM_GLOBAL(OM_FEW_WARPS(k) * 32, 16 / OM_FEW_WARPS(k))                               \
	NAME##_x(const om_bf16 *x, const om_bf16 *w, om_bf16 *ya, om_bf16 *yb, om_bf16 *yc) \
	{                                                                                   \
		om_few<m, a, b, c, k>(x, w, ya, yb, yc);                                    \
	}
#define OM_FEW_GLU(NAME, m, f, k, a)                                                     \
	OM_FEW_SIZES(m, f, k)                                                            \
	OM_GLOBAL(OM_FEW_WARPS(k) * 32, 16 / OM_FEW_WARPS(k))                            \
	NAME##_x(const om_bf16 *x, const om_bf16 *w, om_bf16 *g, om_bf16 *u, om_bf16 *h) \
	{                                                                                \
		om_few_glu<m, 0, f, k, a>(x, w, nullptr, nullptr, nullptr, g, u, h);     \
	}
#define OM_FEW_GROUPED(NAME, r, e, n, k)                                             \
	OM_FEW_SIZES(r, n, k)                                                        \
	OM_GLOBAL(OM_FEW_WARPS(k) * 32, 16 / OM_FEW_WARPS(k))                        \
	NAME##_x(const om_bf16 *x, const om_bf16 *w, const int32_t *off, om_bf16 *y) \
	{                                                                            \
		om_few_grouped<r, e, n, k>(x, w, off, y);                            \
	}
#define OM_FEW_GROUPED_GLU(NAME, r, e, f, n, a)                                          \
	OM_FEW_SIZES(r, f, n)                                                            \
	OM_GLOBAL(OM_FEW_WARPS(n) * 32, 16 / OM_FEW_WARPS(n))                            \
	NAME##_x(const om_bf16 *x, const om_bf16 *w, const int32_t *off, const float *p, \
	    const int32_t *src, om_bf16 *g, om_bf16 *u, om_bf16 *h)                      \
	{                                                                                \
		om_few_glu<r, e, f, n, a>(x, w, off, p, src, g, u, h);                   \
	}

#else /* ---- host ---- */

#include "ffn.h"

#define OM_FEW_KERNEL(NAME, k) OM_KERNEL_AFTER(NAME, OM_FEW_WARPS(k) * 32, 0, 0)
#define OM_FEW(NAME, m, n, k)                                                                     \
	OM_FEW_SIZES(m, n, k)                                                                     \
	OM_FEW_KERNEL(NAME##_x, k)                                                                \
	void NAME(const om_bf16 *x, const om_bf16 *w, om_bf16 *y)                                 \
	{                                                                                         \
		OM_LAUNCH(NAME##_x, OM_CEIL(n, OM_FEW_ROWS), 1, 1, &x, &w, &y);                   \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		OM_GEMM_CHECK(                                                                    \
		    seed, 0, NAME(v.a, v.b, c), OM_GEMM_ONE, 1, m, n, k, 0, 0, .c_float = false); \
	}
#define OM_FEW_F32(NAME, m, n, k)                                                                \
	OM_FEW_SIZES(m, n, k)                                                                    \
	OM_FEW_KERNEL(NAME##_x, k)                                                               \
	void NAME(const om_bf16 *x, const om_bf16 *w, float *z)                                  \
	{                                                                                        \
		OM_LAUNCH(NAME##_x, OM_CEIL(n, OM_FEW_ROWS), 1, 1, &x, &w, &z);                  \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		OM_GEMM_CHECK(                                                                   \
		    seed, 0, NAME(v.a, v.b, c), OM_GEMM_ONE, 1, m, n, k, 0, 0, .c_float = true); \
	}
#define OM_FEW_3(NAME, m, a_, b, c_, k)                                                         \
	OM_FEW_SIZES(m, (a_) + (b) + (c_), k)                                                   \
	OM_FEW_KERNEL(NAME##_x, k)                                                              \
	void NAME(const om_bf16 *x, const om_bf16 *w, om_bf16 *ya, om_bf16 *yb, om_bf16 *yc)    \
	{                                                                                       \
		OM_LAUNCH(NAME##_x, OM_CEIL((a_) + (b) + (c_), OM_FEW_ROWS), 1, 1, &x, &w, &ya, \
		    &yb, &yc);                                                                  \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		OM_BESIDE_CHECK(seed, false, NAME(v.a[0], v.w, c[0], c[1], c[2]), 1, m,         \
		    { a_, b, c_ }, k, NULL);                                                    \
	}
#define OM_FEW_GROUPED(NAME, r, e, n, k)                                                         \
	OM_FEW_SIZES(r, n, k)                                                                    \
	OM_FEW_KERNEL(NAME##_x, k)                                                               \
	void NAME(const om_bf16 *x, const om_bf16 *w, const int32_t *off, om_bf16 *y)            \
	{                                                                                        \
		OM_LAUNCH(NAME##_x, OM_CEIL(n, OM_FEW_ROWS), (e) < (r) ? (e) : (r), 1, &x, &w,   \
		    &off, &y);                                                                   \
	}                                                                                        \
	double NAME##_check_as(uint64_t seed, int how)                                           \
	{                                                                                        \
		int32_t off[(e) + 1];                                                            \
		om_gemm_share(off, r, e, how, seed);                                             \
		OM_GEMM_CHECK(seed, 0, NAME(v.a, v.b, v.off, c), OM_GEMM_ROWS, e, r, n, k, 0, 0, \
		    0, false, false, off);                                                       \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return NAME##_check_as(seed, seed % OM_SHARE_WAYS);                              \
	}

#define OM_FEW_GROUPED_GLU(NAME, r, e, f, n, a)                                                    \
	OM_FEW_SIZES(r, f, n)                                                                      \
	OM_FEW_KERNEL(NAME##_x, n)                                                                 \
	void NAME(const om_bf16 *x, const om_bf16 *w, const int32_t *off, const float *p,          \
	    const int32_t *src, om_bf16 *g, om_bf16 *u, om_bf16 *h)                                \
	{                                                                                          \
		OM_LAUNCH(NAME##_x, OM_CEIL(f, OM_FEW_ROWS / 2), (e) < (r) ? (e) : (r), 1, &x, &w, \
		    &off, &p, &src, &g, &u, &h);                                                   \
	}                                                                                          \
	static inline void NAME##_run(const om_bf16 *x, const om_bf16 *w, const int32_t *off,      \
	    const float *p, const int32_t *src, om_bf16 *g, om_bf16 *u, om_bf16 *h)                \
	{                                                                                          \
		NAME(x, w, off, p, src, g, u, h);                                                  \
	}                                                                                          \
	OM_FFN_CHECKS(NAME, r, e, om_ffn_check(NAME##_run, false, r, e, f, n, a, off, seed))

#define OM_FEW_GLU(NAME, m, f, n, a)                                                          \
	OM_FEW_SIZES(m, f, n)                                                                 \
	OM_FEW_KERNEL(NAME##_x, n)                                                            \
	void NAME(const om_bf16 *x, const om_bf16 *w, om_bf16 *g, om_bf16 *u, om_bf16 *h)     \
	{                                                                                     \
		OM_LAUNCH(NAME##_x, OM_CEIL(f, OM_FEW_ROWS / 2), 1, 1, &x, &w, &g, &u, &h);   \
	}                                                                                     \
	static inline void NAME##_run(const om_bf16 *x, const om_bf16 *w, const int32_t *off, \
	    const float *p, const int32_t *src, om_bf16 *g, om_bf16 *u, om_bf16 *h)           \
	{                                                                                     \
		(void)off, (void)p, (void)src;                                                \
		NAME(x, w, g, u, h);                                                          \
	}                                                                                     \
	double NAME##_check(uint64_t seed)                                                    \
	{                                                                                     \
		return om_ffn_check(NAME##_run, false, m, 1, f, n, a, NULL, seed);            \
	}

#endif
#endif
