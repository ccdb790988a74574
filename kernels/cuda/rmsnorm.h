/*
 * Root mean square norm (Zhang and Sennrich, 2019). A row of p * n numbers is p groups of n, each
 * normalised on its own; the groups share w [n].
 *
 *   rmsnorm           y [m, p * n] = x r w, r [m * p] = 1 / sqrt(mean(x^2) + eps)
 *   add_rmsnorm       sum [m, p * n] = a + b, and its norm; sum may be a or b
 *   rmsnorm_rope      y [b * s, h * d] = x r w, its heads then turned as rope.h says
 *   rmsnorm_bwd       dx = r (dy w - x r^2 mean(dy w x)); dx may be dy;
 *                     dw [n] += sum over groups of dy x r, or without add =
 *   rmsnorm_add_bwd   sum = other + dx; sum may be dy or other
 *   rmsnorm_rope_bwd  the same as rmsnorm_bwd of dy turned back
 *
 * What an op between would store is rounded here too: the fused kernels give the bits of the others
 * one after the other.
 *
 * n is a multiple of 8, at most 8192. A group belongs to a team of threads: as many as it has
 * vectors of 8 numbers, rounded up to a power of two, but then at least a warp if a thread has
 * several vectors, up to OM_RMSNORM_MOST. They stay in registers between the sum and its use. Small
 * groups are several at once, all loaded before the first is used, so that enough bytes are in
 * flight.
 *
 * Heads that are turned have 16, 32, 64, 128 or 256 numbers: the other half of a pair is in another
 * lane of the warp, and all vectors of a thread lie at one place in their heads. Where its groups
 * are of one token it reads the angles once.
 *
 * In the backward pass a block walks through one of c fixed ranges of rows; a thread keeps dw of
 * its columns. ws [c, n] holds the ranges' sums; _fold adds them in a fixed order.
 */
#ifndef OM_RMSNORM_H
#define OM_RMSNORM_H

#include "om_cuda.h"
#include "rope.h"

#define OM_RMSNORM_THREADS 256
/*
 * Vectors of a thread: of a group, and of all its groups at once; least blocks a multiprocessor. By
 * what an H200 is fastest with; compiled for others, some sizes would need too many registers.
 */
#if OM_ARCH > 90
#define OM_RMSNORM_MOST 4
#define OM_RMSNORM_BWD_MOST 2
#define OM_RMSNORM_BWD_AT_ONCE 2
#else
#define OM_RMSNORM_MOST 8
#define OM_RMSNORM_BWD_MOST 4
#define OM_RMSNORM_BWD_AT_ONCE 4
#endif
#define OM_RMSNORM_AT_ONCE 4
#define OM_RMSNORM_BLOCKS 3
#define OM_RMSNORM_BWD_BLOCKS 2

/* threads of a group of n, each with at most `most` vectors */
#define OM_RMSNORM_TEAM(n, most)       \
	((n) > 1024 * (most)     ? 256 \
	    : (n) > 512 * (most) ? 128 \
	    : (n) > 256 * (most) ? 64  \
	    : (n) > 128          ? 32  \
	    : (n) > 64           ? 16  \
	    : (n) > 32           ? 8   \
				 : 4)
#define OM_RMSNORM_VECTORS(n, most) OM_CEIL(n, 8 * OM_RMSNORM_TEAM(n, most))
/* teams of a warp; a larger team is alone */
#define OM_RMSNORM_ABREAST(n, most) OM_CEIL(32, OM_RMSNORM_TEAM(n, most))
/*
 * Groups of a team at once, p of them a row: up to `once` vectors of a thread, and of a row of
 * several groups as many as let those of a warp be of one row.
 */
#define OM_RMSNORM_FITS(n, p, most, once, u)          \
	((u)*OM_RMSNORM_VECTORS(n, most) <= (once) && \
	    ((p) == 1 || (p) % ((u)*OM_RMSNORM_ABREAST(n, most)) == 0))
#define OM_RMSNORM_DEEP(n, p, most, once)              \
	(OM_RMSNORM_FITS(n, p, most, once, 8)      ? 8 \
	    : OM_RMSNORM_FITS(n, p, most, once, 4) ? 4 \
	    : OM_RMSNORM_FITS(n, p, most, once, 2) ? 2 \
						   : 1)
/* blocks of the forward pass */
#define OM_RMSNORM_GRID(m, p, n)                                                           \
	OM_CEIL(                                                                           \
	    (int64_t)(m) * (p), OM_RMSNORM_THREADS / OM_RMSNORM_TEAM(n, OM_RMSNORM_MOST) * \
				    OM_RMSNORM_DEEP(n, p, OM_RMSNORM_MOST, OM_RMSNORM_AT_ONCE))

#define OM_RMSNORM_SIZES(m, p, n)                                                     \
	static_assert((m) >= 1 && (p) >= 1 && (n) >= 1, "rmsnorm: sizes start at 1"); \
	static_assert((n) % 8 == 0, "rmsnorm: the width is a multiple of 8");         \
	static_assert((n) <= 8192, "rmsnorm: the width is at most 8192");             \
	static_assert((int64_t)(m) * (p) <= 0x7fffffff, "rmsnorm: groups counted in int32");
#define OM_RMSNORM_ROPE_SIZES(b, s, h, d, n)                                              \
	OM_RMSNORM_SIZES((int64_t)(b) * (s), (h) * (d) / (n), n)                          \
	static_assert(                                                                    \
	    (n) == (d) || (n) == (h) * (d), "rmsnorm_rope: the norm of a head or a row"); \
	static_assert((d) == 16 || (d) == 32 || (d) == 64 || (d) == 128 || (d) == 256,    \
	    "rmsnorm_rope: heads of 16, 32, 64, 128 or 256");

#ifdef __CUDACC__

enum om_rmsnorm_with { OM_NORM_ALONE, OM_NORM_ADD, OM_NORM_ROPE };

OM_DEV void
om_rmsnorm_open(const uint4 v, float x[8])
{
	x[0] = om_lo(v.x), x[1] = om_hi(v.x), x[2] = om_lo(v.y), x[3] = om_hi(v.y);
	x[4] = om_lo(v.z), x[5] = om_hi(v.z), x[6] = om_lo(v.w), x[7] = om_hi(v.w);
}

OM_DEV uint4
om_rmsnorm_pack(const float x[8])
{
	return make_uint4(
	    om_pack(x[0], x[1]), om_pack(x[2], x[3]), om_pack(x[4], x[5]), om_pack(x[6], x[7]));
}

/*
 * Sums each of x over the thread's team. turn alternates from one call to the next: it chooses the
 * buffer, so that one barrier a call is enough.
 */
template <int TEAM, int DEEP>
OM_DEV void
om_rmsnorm_sum(float x[DEEP], int turn)
{
#pragma unroll
	for (int d = (TEAM < 32 ? TEAM : 32) / 2; d; d /= 2) {
#pragma unroll
		for (int u = 0; u < DEEP; u++)
			x[u] += __shfl_xor_sync(0xffffffffu, x[u], d);
	}
	if constexpr (TEAM > 32) {
		constexpr int warps = TEAM / 32;
		__shared__ float part[2][OM_RMSNORM_THREADS / 32][DEEP];
		if (threadIdx.x % 32 == 0) {
#pragma unroll
			for (int u = 0; u < DEEP; u++)
				part[turn][threadIdx.x / 32][u] = x[u];
		}
		asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / TEAM), "n"(TEAM)
			     : "memory");
#pragma unroll
		for (int u = 0; u < DEEP; u++) {
			x[u] = 0;
#pragma unroll
			for (int w = 0; w < warps; w++)
				x[u] += part[turn][threadIdx.x / TEAM * warps + w][u];
		}
	}
}

/*
 * Opens a vector once more, by other instructions: the compiler would else keep it open from the
 * first time on, in twice the registers.
 */
OM_DEV void
om_rmsnorm_again(const uint4 v, float x[8])
{
	const uint32_t w[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
	for (int i = 0; i < 4; i++) {
		asm volatile("prmt.b32 %0, %1, 0, 0x1044;" : "=f"(x[2 * i]) : "r"(w[i]));
		asm volatile("prmt.b32 %0, %1, 0, 0x3244;" : "=f"(x[2 * i + 1]) : "r"(w[i]));
	}
}

/* Eight numbers at p, or zeros. The branch is one load: it becomes a predicate. */
OM_DEV uint4
om_rmsnorm_load(bool in, const om_bf16 *p)
{
	uint4 v = make_uint4(0, 0, 0, 0);
	if (in)
		v = *(const uint4 *)p;
	return v;
}

/* The same of what the kernel does not write: such a load may pass a store. */
OM_DEV uint4
om_rmsnorm_weight(bool in, const om_bf16 *p)
{
	uint4 v = make_uint4(0, 0, 0, 0);
	if (in)
		v = __ldg((const uint4 *)p);
	return v;
}

/* The same, never kept in registers for the next turn of a loop. */
OM_DEV uint4
om_rmsnorm_reload(bool in, const om_bf16 *p)
{
	uint4 v = make_uint4(0, 0, 0, 0);
	if (in)
		asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
			     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
			     : "l"(p));
	return v;
}

/* One store of 16 bytes: nvcc takes some of a uint4's apart. */
OM_DEV void
om_rmsnorm_store(om_bf16 *p, const uint4 v)
{
	asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
		     "r"(v.z), "r"(v.w)
		     : "memory");
}

/* The sum of two vectors. */
OM_DEV uint4
om_rmsnorm_add(const uint4 a, const uint4 b)
{
	float p[8], q[8];
	om_rmsnorm_open(a, p);
	om_rmsnorm_open(b, q);
#pragma unroll
	for (int j = 0; j < 8; j++)
		p[j] += q[j];
	return om_rmsnorm_pack(p);
}

/* A vector of a head, turned: the other half of its pairs is half a head of lanes away. */
template <int D>
OM_DEV uint4
om_rmsnorm_turn(const uint4 v, const float c[8], const float s[8])
{
	constexpr int away = D / 16;
	float p[8], q[8];
	om_rmsnorm_open(v, p);
	om_rmsnorm_open(
	    make_uint4(__shfl_xor_sync(0xffffffffu, v.x, away),
		__shfl_xor_sync(0xffffffffu, v.y, away), __shfl_xor_sync(0xffffffffu, v.z, away),
		__shfl_xor_sync(0xffffffffu, v.w, away)),
	    q);
#pragma unroll
	for (int j = 0; j < 8; j++)
		p[j] = om_rope_turn(p[j], q[j], c[j], s[j]);
	return om_rmsnorm_pack(p);
}

/* A thread's share of groups of N, P a row. */
template <int P, int N, int MOST, int ONCE> struct om_rmsnorm_share {
	static constexpr int team = OM_RMSNORM_TEAM(N, MOST), vectors = OM_RMSNORM_VECTORS(N, MOST);
	static constexpr int abreast = OM_RMSNORM_ABREAST(N, MOST);
	static constexpr int deep = OM_RMSNORM_DEEP(N, P, MOST, ONCE);
	static constexpr int crew = team * abreast, groups = OM_RMSNORM_THREADS / team * deep;
	static constexpr bool one_row = P % (abreast * deep) == 0;
	int lane, first; /* in its team; of a block's groups, the others follow `abreast` apart */
	__device__ __forceinline__
	om_rmsnorm_share()
	{
		lane = threadIdx.x % team;
		first = threadIdx.x / crew * (abreast * deep) + threadIdx.x % crew / team;
	}
};

/* other: the second summand; sum: where both go. S and D are of heads that are turned by tab. */
template <int64_t M, int P, int N, om_rmsnorm_with WITH, int S, int D>
OM_DEV void
om_rmsnorm(float eps, const om_bf16 *x, const om_bf16 *other, const om_bf16 *w, const float *tab,
    om_bf16 *sum, om_bf16 *y, float *r)
{
	typedef om_rmsnorm_share<P, N, OM_RMSNORM_MOST, OM_RMSNORM_AT_ONCE> share;
	constexpr int team = share::team, vectors = share::vectors, deep = share::deep;
	const share my;
	constexpr uint32_t groups = M * P;
	const int lane = my.lane;
	const uint32_t first = blockIdx.x * share::groups + my.first;
	uint4 a[deep][vectors], b[deep][vectors];
	float scale[deep] = {}, cosine[8], sine[8];
#pragma unroll
	for (int u = 0; u < deep; u++) {
		const uint32_t i = first + u * share::abreast;
#pragma unroll
		for (int v = 0; v < vectors; v++) {
			const int c = (lane + v * team) * 8;
			a[u][v] = om_rmsnorm_load(i < groups && c < N, x + (int64_t)i * N + c);
			if (WITH == OM_NORM_ADD)
				b[u][v] = om_rmsnorm_load(
				    i < groups && c < N, other + (int64_t)i * N + c);
		}
	}
#pragma unroll
	for (int u = 0; u < deep; u++) {
		const uint32_t i = first + u * share::abreast;
#pragma unroll
		for (int v = 0; v < vectors; v++) {
			const int c = (lane + v * team) * 8;
			float p[8];
			if (WITH == OM_NORM_ADD) {
				a[u][v] = om_rmsnorm_add(a[u][v], b[u][v]);
				if (i < groups && c < N)
					om_rmsnorm_store(sum + (int64_t)i * N + c, a[u][v]);
			}
			om_rmsnorm_open(a[u][v], p);
#pragma unroll
			for (int j = 0; j < 8; j++)
				scale[u] = fmaf(p[j], p[j], scale[u]);
		}
	}
	om_rmsnorm_sum<team, deep>(scale, 0);
#pragma unroll
	for (int u = 0; u < deep; u++) {
		const uint32_t i = first + u * share::abreast;
		scale[u] = rsqrtf(fmaf(scale[u], 1.0f / N, eps));
		if (lane == 0 && i < groups)
			r[i] = scale[u];
		if (WITH == OM_NORM_ROPE && (u == 0 || !share::one_row))
			om_rope_angles<D, 1>(
			    tab, min(i, groups - 1) / P % S, lane % (D / 8), cosine, sine);
#pragma unroll
		for (int v = 0; v < vectors; v++) {
			const int c = (lane + v * team) * 8;
			float p[8], q[8];
			om_rmsnorm_again(a[u][v], p);
			om_rmsnorm_open(om_rmsnorm_weight(c < N, w + c), q);
#pragma unroll
			for (int j = 0; j < 8; j++)
				p[j] = p[j] * scale[u] * q[j];
			uint4 out = om_rmsnorm_pack(p);
			if (WITH == OM_NORM_ROPE)
				out = om_rmsnorm_turn<D>(out, cosine, sine);
			if (i < groups && c < N)
				om_rmsnorm_store(y + (int64_t)i * N + c, out);
		}
	}
}

/* The block's sum of dw over its teams, in order, to out; a team of all its threads is alone. */
template <int TEAM, int VECTORS, int N>
OM_DEV void
om_rmsnorm_teams(const float dw[VECTORS][8], float *out)
{
	constexpr int teams = OM_RMSNORM_THREADS / TEAM, wide = TEAM * VECTORS * 8;
	const int lane = threadIdx.x % TEAM, mine = threadIdx.x / TEAM;
	if constexpr (teams == 1) {
#pragma unroll
		for (int v = 0; v < VECTORS; v++) {
			const int c = (lane + v * TEAM) * 8;
			if (c < N) {
				*(float4 *)(out + c) =
				    make_float4(dw[v][0], dw[v][1], dw[v][2], dw[v][3]);
				*(float4 *)(out + c + 4) =
				    make_float4(dw[v][4], dw[v][5], dw[v][6], dw[v][7]);
			}
		}
	} else {
		__shared__ float4 part[teams * wide / 4];
#pragma unroll
		for (int v = 0; v < VECTORS; v++) {
			float4 *to = part + (mine * wide + (lane + v * TEAM) * 8) / 4;
			to[0] = make_float4(dw[v][0], dw[v][1], dw[v][2], dw[v][3]);
			to[1] = make_float4(dw[v][4], dw[v][5], dw[v][6], dw[v][7]);
		}
		__syncthreads();
#pragma unroll 1
		for (int c = threadIdx.x; c < N; c += OM_RMSNORM_THREADS) {
			float sum = 0;
#pragma unroll
			for (int t = 0; t < teams; t++)
				sum += ((const float *)part)[t * wide + c];
			out[c] = sum;
		}
	}
}

template <int64_t M, int P, int N, int C, om_rmsnorm_with WITH, int S, int D>
OM_DEV void
om_rmsnorm_bwd(const om_bf16 *dy, const float *tab, const om_bf16 *x, const om_bf16 *w,
    const float *r, const om_bf16 *other, om_bf16 *dx, float *ws)
{
	typedef om_rmsnorm_share<P, N, OM_RMSNORM_BWD_MOST, OM_RMSNORM_BWD_AT_ONCE> share;
	constexpr int team = share::team, vectors = share::vectors, deep = share::deep;
	const share my;
	const int lane = my.lane;
	const uint32_t lo = M * blockIdx.x / C * P, hi = M * (blockIdx.x + 1) / C * P;
	float dw[vectors][8] = {};
	int turn = 0;
#pragma unroll 1
	for (uint32_t i0 = lo; i0 < hi; i0 += share::groups) { /* the same for all of the block */
		const uint32_t first = i0 + my.first;
		uint4 d[deep][vectors], a[deep][vectors], o[deep][vectors];
		float along[deep] = {}, ri[deep];
#pragma unroll
		for (int u = 0; u < deep; u++) {
			const uint32_t i = first + u * share::abreast;
			ri[u] = 0;
			if (i < hi)
				ri[u] = r[i];
#pragma unroll
			for (int v = 0; v < vectors; v++) {
				const int c = (lane + v * team) * 8;
				const int64_t at = (int64_t)i * N + c;
				d[u][v] = om_rmsnorm_load(i < hi && c < N, dy + at);
				a[u][v] = om_rmsnorm_load(i < hi && c < N, x + at);
			}
		}
		if constexpr (WITH == OM_NORM_ROPE) {
			float cosine[8], sine[8];
#pragma unroll
			for (int u = 0; u < deep; u++) {
				const uint32_t i = min(first + u * share::abreast, hi - 1);
				if (u == 0 || !share::one_row)
					om_rope_angles<D, -1>(
					    tab, i / P % S, lane % (D / 8), cosine, sine);
#pragma unroll
				for (int v = 0; v < vectors; v++)
					d[u][v] = om_rmsnorm_turn<D>(d[u][v], cosine, sine);
			}
		}
#pragma unroll
		for (int v = 0; v < vectors; v++) {
			const int c = (lane + v * team) * 8;
			float p[8], q[8], s[8];
			om_rmsnorm_again(om_rmsnorm_reload(c < N, w + c), s);
#pragma unroll
			for (int u = 0; u < deep; u++) {
				om_rmsnorm_open(d[u][v], p);
				om_rmsnorm_open(a[u][v], q);
#pragma unroll
				for (int j = 0; j < 8; j++) {
					p[j] *= q[j];
					along[u] = fmaf(p[j], s[j], along[u]);
					dw[v][j] = fmaf(p[j], ri[u], dw[v][j]);
				}
			}
		}
		if constexpr (WITH == OM_NORM_ADD) {
#pragma unroll
			for (int u = 0; u < deep; u++) {
#pragma unroll
				for (int v = 0; v < vectors; v++) {
					const uint32_t i = first + u * share::abreast;
					const int c = (lane + v * team) * 8;
					o[u][v] = om_rmsnorm_load(
					    i < hi && c < N, other + (int64_t)i * N + c);
				}
			}
		}
		om_rmsnorm_sum<team, deep>(along, turn);
		turn ^= 1;
#pragma unroll
		for (int v = 0; v < vectors; v++) {
			const int c = (lane + v * team) * 8;
			float p[8], q[8], s[8];
			om_rmsnorm_again(om_rmsnorm_reload(c < N, w + c), s);
#pragma unroll
			for (int u = 0; u < deep; u++) {
				const uint32_t i = first + u * share::abreast;
				const bool in = i < hi && c < N;
				const int64_t at = (int64_t)i * N + c;
				const float back = along[u] * ri[u] * ri[u] * (1.0f / N);
				om_rmsnorm_again(d[u][v], p);
				om_rmsnorm_again(a[u][v], q);
#pragma unroll
				for (int j = 0; j < 8; j++)
					p[j] = ri[u] * fmaf(p[j], s[j], -(q[j] * back));
				uint4 out = om_rmsnorm_pack(p);
				if (WITH == OM_NORM_ADD)
					out = om_rmsnorm_add(o[u][v], out);
				if (in)
					om_rmsnorm_store(dx + at, out);
			}
		}
	}
	om_rmsnorm_teams<team, vectors, N>(dw, ws + (int64_t)blockIdx.x * N);
}

#define OM_RMSNORM(NAME, m, p, n, eps)                                     \
	OM_RMSNORM_SIZES(m, p, n)                                          \
	OM_GLOBAL(OM_RMSNORM_THREADS, OM_RMSNORM_BLOCKS)                   \
	NAME##_x(const om_bf16 *x, const om_bf16 *w, om_bf16 *y, float *r) \
	{                                                                  \
		OM_FEW_BEGIN(m)                                            \
		om_rmsnorm<m, p, n, OM_NORM_ALONE, 1, 16>(                 \
		    (float)(eps), x, nullptr, w, nullptr, nullptr, y, r);  \
	}

#define OM_ADD_RMSNORM(NAME, m, p, n, eps)                                                       \
	OM_RMSNORM_SIZES(m, p, n)                                                                \
	OM_GLOBAL(OM_RMSNORM_THREADS, OM_RMSNORM_BLOCKS)                                         \
	NAME##_x(const om_bf16 *a, const om_bf16 *b, const om_bf16 *w, om_bf16 *sum, om_bf16 *y, \
	    float *r)                                                                            \
	{                                                                                        \
		OM_FEW_BEGIN(m)                                                                  \
		om_rmsnorm<m, p, n, OM_NORM_ADD, 1, 16>(                                         \
		    (float)(eps), a, b, w, nullptr, sum, y, r);                                  \
	}

#define OM_RMSNORM_ROPE(NAME, b, s, h, d, n, eps)                                            \
	OM_RMSNORM_ROPE_SIZES(b, s, h, d, n)                                                 \
	OM_GLOBAL(OM_RMSNORM_THREADS, OM_RMSNORM_BLOCKS)                                     \
	NAME##_x(const om_bf16 *x, const om_bf16 *w, const float *tab, om_bf16 *y, float *r) \
	{                                                                                    \
		om_rmsnorm<(int64_t)(b) * (s), (h) * (d) / (n), n, OM_NORM_ROPE, s, d>(      \
		    (float)(eps), x, nullptr, w, tab, nullptr, y, r);                        \
	}

#define OM_RMSNORM_FOLD(NAME, n, c, add)                                      \
	static_assert((c) >= 1, "rmsnorm_bwd: at least one partial sum");     \
	OM_GLOBAL(OM_FOLD_THREADS, 1) NAME##_fold(const float *ws, float *dw) \
	{                                                                     \
		om_fold<n, c, add>(ws, dw);                                   \
	}

#define OM_RMSNORM_BWD(NAME, m, p, n, c, add)                                           \
	OM_RMSNORM_SIZES(m, p, n)                                                       \
	OM_RMSNORM_FOLD(NAME, n, c, add)                                                \
	OM_GLOBAL(OM_RMSNORM_THREADS, OM_RMSNORM_BWD_BLOCKS)                            \
	NAME##_x(const om_bf16 *dy, const om_bf16 *x, const om_bf16 *w, const float *r, \
	    om_bf16 *dx, float *ws)                                                     \
	{                                                                               \
		om_rmsnorm_bwd<m, p, n, c, OM_NORM_ALONE, 1, 16>(                       \
		    dy, nullptr, x, w, r, nullptr, dx, ws);                             \
	}

#define OM_RMSNORM_ADD_BWD(NAME, m, p, n, c, add)                                       \
	OM_RMSNORM_SIZES(m, p, n)                                                       \
	OM_RMSNORM_FOLD(NAME, n, c, add)                                                \
	OM_GLOBAL(OM_RMSNORM_THREADS, OM_RMSNORM_BWD_BLOCKS)                            \
	NAME##_x(const om_bf16 *dy, const om_bf16 *x, const om_bf16 *w, const float *r, \
	    const om_bf16 *other, om_bf16 *sum, float *ws)                              \
	{                                                                               \
		om_rmsnorm_bwd<m, p, n, c, OM_NORM_ADD, 1, 16>(                         \
		    dy, nullptr, x, w, r, other, sum, ws);                              \
	}

#define OM_RMSNORM_ROPE_BWD(NAME, b, s, h, d, n, c, add)                                       \
	OM_RMSNORM_ROPE_SIZES(b, s, h, d, n)                                                   \
	OM_RMSNORM_FOLD(NAME, n, c, add)                                                       \
	OM_GLOBAL(OM_RMSNORM_THREADS, OM_RMSNORM_BWD_BLOCKS)                                   \
	NAME##_x(const om_bf16 *dy, const float *tab, const om_bf16 *x, const om_bf16 *w,      \
	    const float *r, om_bf16 *dx, float *ws)                                            \
	{                                                                                      \
		om_rmsnorm_bwd<(int64_t)(b) * (s), (h) * (d) / (n), n, c, OM_NORM_ROPE, s, d>( \
		    dy, tab, x, w, r, nullptr, dx, ws);                                        \
	}

#else /* ---- host ---- */

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "add_ref.h"
#include "rmsnorm_ref.h"

#define OM_RMSNORM(NAME, m, p, n, eps)                                               \
	OM_RMSNORM_SIZES(m, p, n)                                                    \
	OM_KERNEL_FEW(NAME##_x, OM_RMSNORM_THREADS, 0, m)                            \
	void NAME(const om_bf16 *x, const om_bf16 *w, om_bf16 *y, float *r)          \
	{                                                                            \
		OM_LAUNCH(NAME##_x, OM_RMSNORM_GRID(m, p, n), 1, 1, &x, &w, &y, &r); \
	}                                                                            \
	double NAME##_check(uint64_t seed)                                           \
	{                                                                            \
		return om_rmsnorm_check((struct om_rmsnorm_fn){ .alone = NAME },     \
		    (int64_t)(m) * (p), n, 1, 1, 1, eps, seed);                      \
	}

#define OM_ADD_RMSNORM(NAME, m, p, n, eps)                                                         \
	OM_RMSNORM_SIZES(m, p, n)                                                                  \
	OM_KERNEL_FEW(NAME##_x, OM_RMSNORM_THREADS, 0, m)                                          \
	void NAME(const om_bf16 *a, const om_bf16 *b, const om_bf16 *w, om_bf16 *sum, om_bf16 *y,  \
	    float *r)                                                                              \
	{                                                                                          \
		OM_LAUNCH(NAME##_x, OM_RMSNORM_GRID(m, p, n), 1, 1, &a, &b, &w, &sum, &y, &r);     \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_rmsnorm_check((struct om_rmsnorm_fn){ .sum = NAME }, (int64_t)(m) * (p), \
		    n, 1, 1, 1, eps, seed);                                                        \
	}

#define OM_RMSNORM_ROPE(NAME, b, s, h, d, n, eps)                                                 \
	OM_RMSNORM_ROPE_SIZES(b, s, h, d, n)                                                      \
	OM_KERNEL(NAME##_x, OM_RMSNORM_THREADS, 0)                                                \
	void NAME(const om_bf16 *x, const om_bf16 *w, const float *tab, om_bf16 *y, float *r)     \
	{                                                                                         \
		OM_LAUNCH(NAME##_x, OM_RMSNORM_GRID((b) * (s), (h) * (d) / (n), n), 1, 1, &x, &w, \
		    &tab, &y, &r);                                                                \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_rmsnorm_check((struct om_rmsnorm_fn){ .rope = NAME },                   \
		    (int64_t)(b) * (s) * (h) * (d) / (n), n, s, h, d, eps, seed);                 \
	}

#define OM_RMSNORM_BWD(NAME, m, p, n, c, add)                                            \
	OM_RMSNORM_SIZES(m, p, n)                                                        \
	OM_RMSNORM_PARTS(NAME, n, c)                                                     \
	void NAME(const om_bf16 *dy, const om_bf16 *x, const om_bf16 *w, const float *r, \
	    om_bf16 *dx, float *dw, float *ws)                                           \
	{                                                                                \
		OM_LAUNCH(NAME##_x, c, 1, 1, &dy, &x, &w, &r, &dx, &ws);                 \
		OM_LAUNCH(NAME##_fold, OM_CEIL(n, 32), 1, 1, &ws, &dw);                  \
	}                                                                                \
	double NAME##_check(uint64_t seed)                                               \
	{                                                                                \
		return om_rmsnorm_bwd_check((struct om_rmsnorm_bwd_fn){ .alone = NAME }, \
		    (int64_t)(m) * (p), n, 1, 1, 1, c, add, seed);                       \
	}

#define OM_RMSNORM_ADD_BWD(NAME, m, p, n, c, add)                                        \
	OM_RMSNORM_SIZES(m, p, n)                                                        \
	OM_RMSNORM_PARTS(NAME, n, c)                                                     \
	void NAME(const om_bf16 *dy, const om_bf16 *x, const om_bf16 *w, const float *r, \
	    const om_bf16 *other, om_bf16 *sum, float *dw, float *ws)                    \
	{                                                                                \
		OM_LAUNCH(NAME##_x, c, 1, 1, &dy, &x, &w, &r, &other, &sum, &ws);        \
		OM_LAUNCH(NAME##_fold, OM_CEIL(n, 32), 1, 1, &ws, &dw);                  \
	}                                                                                \
	double NAME##_check(uint64_t seed)                                               \
	{                                                                                \
		return om_rmsnorm_bwd_check((struct om_rmsnorm_bwd_fn){ .sum = NAME },   \
		    (int64_t)(m) * (p), n, 1, 1, 1, c, add, seed);                       \
	}

#define OM_RMSNORM_ROPE_BWD(NAME, b, s, h, d, n, c, add)                                   \
	OM_RMSNORM_ROPE_SIZES(b, s, h, d, n)                                               \
	OM_RMSNORM_PARTS(NAME, n, c)                                                       \
	void NAME(const om_bf16 *dy, const float *tab, const om_bf16 *x, const om_bf16 *w, \
	    const float *r, om_bf16 *dx, float *dw, float *ws)                             \
	{                                                                                  \
		OM_LAUNCH(NAME##_x, c, 1, 1, &dy, &tab, &x, &w, &r, &dx, &ws);             \
		OM_LAUNCH(NAME##_fold, OM_CEIL(n, 32), 1, 1, &ws, &dw);                    \
	}                                                                                  \
	double NAME##_check(uint64_t seed)                                                 \
	{                                                                                  \
		return om_rmsnorm_bwd_check((struct om_rmsnorm_bwd_fn){ .rope = NAME },    \
		    (int64_t)(b) * (s) * (h) * (d) / (n), n, s, h, d, c, add, seed);       \
	}
#define OM_RMSNORM_PARTS(NAME, n, c)                                      \
	static_assert((c) >= 1, "rmsnorm_bwd: at least one partial sum"); \
	OM_KERNEL(NAME##_x, OM_RMSNORM_THREADS, 0)                        \
	OM_KERNEL(NAME##_fold, OM_FOLD_THREADS, 0)

/* The kernel that a check runs: one of these. */
struct om_rmsnorm_fn {
	void (*alone)(const om_bf16 *, const om_bf16 *, om_bf16 *, float *);
	void (*sum)(
	    const om_bf16 *, const om_bf16 *, const om_bf16 *, om_bf16 *, om_bf16 *, float *);
	void (*rope)(const om_bf16 *, const om_bf16 *, const float *, om_bf16 *, float *);
};
struct om_rmsnorm_bwd_fn {
	void (*alone)(const om_bf16 *, const om_bf16 *, const om_bf16 *, const float *, om_bf16 *,
	    float *, float *);
	void (*sum)(const om_bf16 *, const om_bf16 *, const om_bf16 *, const float *,
	    const om_bf16 *, om_bf16 *, float *, float *);
	void (*rope)(const om_bf16 *, const float *, const om_bf16 *, const om_bf16 *,
	    const float *, om_bf16 *, float *, float *);
};
enum { OM_RMSNORM_SAMPLES = 64, OM_RMSNORM_COLUMNS = 32 };

static inline void
om_rmsnorm_run(struct om_rmsnorm_fn f, const om_bf16 *x, const om_bf16 *other, const om_bf16 *w,
    const float *tab, om_bf16 *sum, om_bf16 *y, float *r)
{
	if (f.alone)
		f.alone(x, w, y, r);
	if (f.sum)
		f.sum(x, other, w, sum, y, r);
	if (f.rope)
		f.rope(x, w, tab, y, r);
}

static inline void
om_rmsnorm_bwd_run(struct om_rmsnorm_bwd_fn f, const om_bf16 *dy, const float *tab,
    const om_bf16 *x, const om_bf16 *w, const float *r, const om_bf16 *other, om_bf16 *dx,
    float *dw, float *ws)
{
	if (f.alone)
		f.alone(dy, x, w, r, dx, dw, ws);
	if (f.sum)
		f.sum(dy, x, w, r, other, dx, dw, ws);
	if (f.rope)
		f.rope(dy, tab, x, w, r, dx, dw, ws);
}

/* The sth of at most OM_RMSNORM_SAMPLES groups that are looked at; the last ones are among them. */
static inline int64_t
om_rmsnorm_sample(int64_t s, int64_t groups, uint64_t seed)
{
	if (groups <= OM_RMSNORM_SAMPLES)
		return s;
	if (s < 8)
		return groups - 1 - s;
	return (int64_t)((om_unit(seed, 99, s) / 3.4641016151377544 + 0.5) * (double)(groups - 1));
}

/* Heads of d, if turned: h a token, s tokens a sequence, by random angles, stream 7. */
static inline double
om_rmsnorm_check(struct om_rmsnorm_fn run, int64_t groups, int64_t n, int64_t s, int64_t h,
    int64_t d, double eps, uint64_t seed)
{
	const size_t bytes = (size_t)(groups * n) * sizeof(om_bf16);
	om_bf16 *x = om_check_bf16(groups * n, seed, 0, 1), *w = om_check_bf16(n, seed, 1, 1);
	om_bf16 *other = run.sum ? om_check_bf16(groups * n, seed, 2, 1) : NULL;
	float *tab = run.rope ? om_check_f32(s * d, seed, 7, 1) : NULL;
	om_bf16 *y = om_check_nan(bytes), *sum = run.sum ? om_check_nan(bytes) : x;
	om_bf16 *place = run.sum ? om_check_nan(bytes) : NULL;
	om_bf16 *got = malloc(3 * (size_t)n * sizeof *got);
	float *r = om_check_nan((size_t)groups * sizeof *r), gr;
	double *normed = malloc((size_t)n * sizeof *normed);
	float *in = malloc((size_t)n * sizeof *in);
	struct om_err ey = { .scale = 1 }, er = { 0 }, es = { .scale = 1 };
	om_rmsnorm_run(run, x, other, w, tab, sum, y, r);
	if (run.sum) /* once more, in place: of either summand */
		place = seed & 1 ? x : other;
	if (run.sum)
		om_rmsnorm_run(run, x, other, w, tab, place, y, r);
	for (int64_t k = 0; k < groups && k < OM_RMSNORM_SAMPLES; k++) {
		const int64_t i = om_rmsnorm_sample(k, groups, seed);
		const struct om_in row = { .host = in };
		om_check_read(got, y + i * n, (size_t)n * sizeof *got);
		om_check_read(got + n, sum + i * n, (size_t)n * sizeof *got);
		om_check_read(&gr, r + i, sizeof gr);
		for (int64_t j = 0; j < n; j++)
			in[j] = om_bf16_f32(got[n + j]);
		if (run.sum) {
			om_check_read(got + 2 * n, place + i * n, (size_t)n * sizeof *got);
			es.wrong |= memcmp(got + n, got + 2 * n, (size_t)n * sizeof *got) != 0;
			for (int64_t j = 0; j < n; j++)
				om_err_add(
				    &es, in[j], om_add_ref(OM_BF16(0), OM_BF16(2), i * n + j));
		}
		const double ri = om_rmsnorm_ref_r(row, n, eps, 0);
		om_err_add(&er, gr, ri);
		for (int64_t j = 0; j < n; j++)
			normed[j] = om_rmsnorm_ref_y(row, OM_BF16(1), ri, n, 0, j);
		for (int64_t j = 0; j < n; j++)
			om_err_add(&ey, om_bf16_f32(got[j]),
			    run.rope ? om_rope_ref_turn(OM_F32(7), d, i * n / (h * d) % s, 1, j,
					   normed[j], normed[om_rope_ref_pair(d, j)])
				     : normed[j]);
	}
	OM_TIME(om_rmsnorm_run(run, x, other, w, tab, sum, y, r));
	om_check_end();
	free(got);
	free(normed);
	free(in);
	/* r is float: held to 1e-5 where y is held to 4e-3 */
	return fmax(fmax(om_err_value(&ey), om_err_value(&es)), 400 * om_err_value(&er));
}

/* Element j of group i of dy, turned back where tab has heads of d. */
static inline double
om_rmsnorm_grad(struct om_in dy, struct om_in tab, int64_t n, int64_t s, int64_t h, int64_t d,
    int64_t i, int64_t j)
{
	const int64_t at = i * n + j, position = at / (h * d) % s;
	const double self = om_in(dy, at);
	if (d == 1)
		return self;
	return om_rope_ref_turn(
	    tab, d, position, -1, j, self, om_in(dy, i * n + om_rope_ref_pair(d, j)));
}

static inline double
om_rmsnorm_bwd_check(struct om_rmsnorm_bwd_fn run, int64_t groups, int64_t n, int64_t s, int64_t h,
    int64_t d, int64_t c, bool add, uint64_t seed)
{
	const size_t bytes = (size_t)(groups * n) * sizeof(om_bf16);
	om_bf16 *dy = om_check_bf16(groups * n, seed, 0, 1),
		*x = om_check_bf16(groups * n, seed, 1, 1);
	om_bf16 *w = om_check_bf16(n, seed, 2, 1);
	om_bf16 *other = run.sum ? om_check_bf16(groups * n, seed, 5, 1) : NULL;
	float *tab = run.rope ? om_check_f32(s * d, seed, 7, 1) : NULL;
	om_bf16 *dx = om_check_nan(bytes), *place = run.sum && seed & 1 ? other : dy;
	float *rh = malloc((size_t)groups * sizeof *rh);
	for (int64_t i = 0; i < groups; i++)
		rh[i] = (float)(fabs(om_unit(seed, 3, i)) + 0.5);
	float *r = om_check_copy(rh, (size_t)groups * sizeof *r);
	float *dw = om_check_sum(n, add, seed, 4), *again = om_check_sum(n, add, seed, 4);
	float *ws = om_check_nan((size_t)(c * n) * sizeof *ws);
	float *gw = malloc(2 * (size_t)n * sizeof *gw);
	om_bf16 *got = malloc(2 * (size_t)n * sizeof *got);
	float *grad = malloc((size_t)(groups > n ? groups : n) * sizeof *grad);
	float *at = malloc((size_t)(groups > n ? groups : n) * sizeof *at);
	const struct om_in g = { .host = grad }, xs = { .host = at };
	struct om_err ex = { .scale = 1 }, ew = { .scale = 1 };
	om_rmsnorm_bwd_run(run, dy, tab, x, w, r, other, dx, dw, ws);
	/* once more, in place: what is lost is random, and asked for again */
	om_rmsnorm_bwd_run(run, dy, tab, x, w, r, other, place, again, ws);
	for (int64_t k = 0; k < groups && k < OM_RMSNORM_SAMPLES; k++) {
		const int64_t i = om_rmsnorm_sample(k, groups, seed);
		for (int64_t j = 0; j < n; j++) {
			grad[j] = (float)om_rmsnorm_grad(OM_BF16(0), OM_F32(7), n, s, h, d, i, j);
			at[j] = (float)om_in(OM_BF16(1), i * n + j);
		}
		const double along = om_rmsnorm_ref_along(g, xs, OM_BF16(2), n, 0);
		om_check_read(got, dx + i * n, (size_t)n * sizeof *got);
		om_check_read(got + n, place + i * n, (size_t)n * sizeof *got);
		ex.wrong |= memcmp(got, got + n, (size_t)n * sizeof *got) != 0;
		for (int64_t j = 0; j < n; j++)
			om_err_add(&ex, om_bf16_f32(got[j]),
			    (run.sum ? om_in(OM_BF16(5), i * n + j) : 0) +
				om_rmsnorm_ref_dx(
				    g, xs, OM_BF16(2), (double)rh[i], along, n, 0, j));
	}
	om_check_read(gw, dw, (size_t)n * sizeof *gw);
	om_check_read(gw + n, again, (size_t)n * sizeof *gw);
	ew.wrong |= memcmp(gw, gw + n, (size_t)n * sizeof *gw) != 0;
	for (int64_t k = 0; k < n && k < OM_RMSNORM_COLUMNS; k++) {
		const int64_t j =
		    n <= OM_RMSNORM_COLUMNS ? k : k * (n - 1) / (OM_RMSNORM_COLUMNS - 1);
#pragma omp parallel for
		for (int64_t i = 0; i < groups; i++) {
			grad[i] = (float)om_rmsnorm_grad(OM_BF16(0), OM_F32(7), n, s, h, d, i, j);
			at[i] = (float)om_in(OM_BF16(1), i * n + j);
		}
		om_err_add(&ew, gw[j],
		    (add ? om_in(OM_F32(4), j) : 0) +
			om_rmsnorm_ref_dw(g, xs, (struct om_in){ .host = rh }, groups, 1, 0));
	}
	OM_TIME(om_rmsnorm_bwd_run(run, dy, tab, x, w, r, other, dx, dw, ws));
	om_check_end();
	free(rh);
	free(gw);
	free(got);
	free(grad);
	free(at);
	/* dw is float: held to 1e-5 where dx is held to 4e-3; what is turned was rounded before */
	return fmax(om_err_value(&ex), (run.rope ? 1 : 400) * om_err_value(&ew));
}

#endif
#endif
