/*
 * Attention of tokens that are generated, and what comes before it. at [2, m] has the position of
 * each row, and then its sequence; a row whose position is -1 is none.
 *
 *   rope_at       y [m, h * d]: x turned by the table [s, d] at each row's position; none: at 0
 *   cache         k, v [m, n] become rows of kc, vc [b, s, n]
 *   heads_at      both, with the norms before: y is the normed and turned q [m, d * h], kc and vc
 *                 get the normed and turned k [m, d * g], and v. w1 and w2 are weights of a row's
 *                 norm, or of a head's. It rounds where the ops one by one do
 *   likeliest     id [m]: of each row of z [m, v] the place of the largest, of equal ones the
 *                 first; -1 where not all are finite
 *   attention_at  o [m, h * d] of the last w of the keys and values that kc, vc [b, s, g * d] hold
 *                 up to each row's own; 0 where there is no row
 *
 * Attention of a row and OM_AT_HEADS query heads of one key head is computed by a cluster of
 * blocks. They take groups of keys in turns, warp after warp; lanes that share a key have 8 numbers
 * each of it. Sums of all of these are joined in a fixed order: lanes, warps, then blocks.
 */
#ifndef OM_DECODE_H
#define OM_DECODE_H

#include "om_cuda.h"

enum { OM_AT_WARPS = 8, OM_AT_GROUP = 4, OM_AT_BLOCKS = 1056, OM_HEADS_THREADS = 256 };
enum { OM_LIKELIEST_THREADS = 1024 };
/* Query heads that a block has, of those that share a key head. */
#define OM_AT_HEADS(h, g) ((h) / (g) % 4 == 0 ? 4 : (h) / (g) % 2 == 0 ? 2 : 1)
/* Blocks of a cluster: as many as fill the device, where rows are few. */
#define OM_AT_ALL(m, h, g) ((int64_t)(m) * ((h) / OM_AT_HEADS(h, g)))
#define OM_AT_SPLIT(m, h, g)                             \
	(OM_AT_ALL(m, h, g) * 8 <= OM_AT_BLOCKS      ? 8 \
	    : OM_AT_ALL(m, h, g) * 4 <= OM_AT_BLOCKS ? 4 \
	    : OM_AT_ALL(m, h, g) * 2 <= OM_AT_BLOCKS ? 2 \
						     : 1)

#define OM_CACHED_SIZES(m, b, s, h, g, d, w)                                                    \
	static_assert((m) >= 1 && (b) >= 1 && (s) >= 1, "attention_at: sizes start at 1");      \
	static_assert((h) % (g) == 0, "attention_at: key heads divide query heads");            \
	static_assert((d) % 32 == 0 && (d) <= 128, "attention_at: heads of 32, 64, 96 or 128"); \
	static_assert((w) >= 1 && (w) <= (s), "attention_at: a window has 1 to all positions");

#ifdef __CUDACC__

#define OM_AT_NONE (-__uint_as_float(0x7f800000u))

/* What a block, or a part of it, has of a head: the largest score, and sums at that. */
OM_DEV float
om_at_shrink(float max, float most)
{
	return max == OM_AT_NONE ? 0 : om_exp2(max - most);
}

/* ld.shared::cluster: a number in the shared memory of another block of the cluster */
OM_DEV float
om_at_other(const float *p, int block)
{
	uint32_t to;
	float x;
	asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(om_smem(p)), "r"(block));
	asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(to) : "memory");
	return x;
}

/* barrier.cluster: all threads of the cluster are here, and see what these wrote */
OM_DEV void
om_at_meet(void)
{
	asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::
			 : "memory");
}

template <int M, int S, int H, int G, int D, int W>
OM_DEV void
om_attention_at(float scale, const om_bf16 *q, const om_bf16 *kc, const om_bf16 *vc,
    const int32_t *at, om_bf16 *o)
{
	constexpr int heads = OM_AT_HEADS(H, G), split = OM_AT_SPLIT(M, H, G);
	constexpr int lanes = D > 64 ? 16 : D / 8, keys = 32 / lanes, step = keys * OM_AT_GROUP;
	constexpr int pitch = D + 2;
	__shared__ float part[OM_AT_WARPS][heads][pitch], own[heads][pitch];
	const int row = blockIdx.z, first = blockIdx.y * heads, block = blockIdx.x;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int sub = lane / lanes, col = lane % lanes * 8;
	const bool on = col < D;
	float x[heads][8], sum[heads][8] = {}, max[heads], total[heads] = {};

	om_before();
	om_after();
	const int position = at[row], to = position + 1, from = to > W ? to - W : 0;
	const int64_t base = (int64_t)at[M + row] * S * G * D + first / (H / G) * D + col;
#pragma unroll
	for (int i = 0; i < heads; i++) {
		max[i] = OM_AT_NONE;
		if (on)
			om_load8(q + ((int64_t)row * H + first + i) * D + col, x[i]);
#pragma unroll
		for (int c = 0; c < 8; c++)
			x[i][c] = on ? x[i][c] * (scale * 1.4426950408889634f) : 0;
	}
#pragma unroll 1
	for (int j = from + (block * OM_AT_WARPS + warp) * step; j < to;
	     j += split * OM_AT_WARPS * step) {
		uint4 k[OM_AT_GROUP], v[OM_AT_GROUP];
#pragma unroll
		for (int u = 0; u < OM_AT_GROUP; u++) {
			const int key = j + u * keys + sub;
			const bool in = on && key < to;
			const int64_t where = base + (int64_t)(in ? key : from) * G * D;
			k[u] = in ? *(const uint4 *)(kc + where) : make_uint4(0, 0, 0, 0);
			v[u] = in ? *(const uint4 *)(vc + where) : make_uint4(0, 0, 0, 0);
		}
#pragma unroll
		for (int i = 0; i < heads; i++) {
			float p[OM_AT_GROUP], most = max[i];
#pragma unroll
			for (int u = 0; u < OM_AT_GROUP; u++) {
				const uint32_t word[4] = { k[u].x, k[u].y, k[u].z, k[u].w };
				p[u] = 0;
#pragma unroll
				for (int c = 0; c < 4; c++)
					p[u] += x[i][2 * c] * om_lo(word[c]) +
						x[i][2 * c + 1] * om_hi(word[c]);
#pragma unroll
				for (int d = lanes / 2; d; d /= 2)
					p[u] += __shfl_xor_sync(0xffffffffu, p[u], d);
				p[u] = j + u * keys + sub < to ? p[u] : OM_AT_NONE;
				most = fmaxf(most, p[u]);
			}
			const float shrink = om_at_shrink(max[i], most);
			max[i] = most;
			total[i] *= shrink;
#pragma unroll
			for (int c = 0; c < 8; c++)
				sum[i][c] *= shrink;
#pragma unroll
			for (int u = 0; u < OM_AT_GROUP; u++) {
				const uint32_t word[4] = { v[u].x, v[u].y, v[u].z, v[u].w };
				const float e = om_at_shrink(p[u], most);
				total[i] += e;
#pragma unroll
				for (int c = 0; c < 4; c++) {
					sum[i][2 * c] += e * om_lo(word[c]);
					sum[i][2 * c + 1] += e * om_hi(word[c]);
				}
			}
		}
	}
	/* the lanes that had other keys */
#pragma unroll
	for (int i = 0; i < heads; i++) {
#pragma unroll
		for (int d = lanes; d < 32; d *= 2) {
			const float other = __shfl_xor_sync(0xffffffffu, max[i], d);
			const float most = fmaxf(max[i], other),
				    shrink = om_at_shrink(max[i], most);
			max[i] = most;
			total[i] *= shrink;
			total[i] += __shfl_xor_sync(0xffffffffu, total[i], d);
#pragma unroll
			for (int c = 0; c < 8; c++) {
				sum[i][c] *= shrink;
				sum[i][c] += __shfl_xor_sync(0xffffffffu, sum[i][c], d);
			}
		}
		if (sub == 0 && on) {
#pragma unroll
			for (int c = 0; c < 8; c++)
				part[warp][i][col + c] = sum[i][c];
		}
		if (lane == 0) {
			part[warp][i][D] = max[i];
			part[warp][i][D + 1] = total[i];
		}
	}
	__syncthreads();
	/* the warps; D is the largest score, D + 1 the sum of exponentials */
	for (int n = threadIdx.x; n < heads * (D + 1); n += OM_AT_WARPS * 32) {
		const int i = n / (D + 1), c = n % (D + 1), what = c < D ? c : D + 1;
		float most = OM_AT_NONE, all = 0;
#pragma unroll
		for (int w = 0; w < OM_AT_WARPS; w++)
			most = fmaxf(most, part[w][i][D]);
#pragma unroll
		for (int w = 0; w < OM_AT_WARPS; w++)
			all += om_at_shrink(part[w][i][D], most) * part[w][i][what];
		own[i][what] = all;
		if (c == D)
			own[i][D] = most;
	}
	if (split > 1)
		om_at_meet();
	else
		__syncthreads();
	/* the blocks, each of which gives a part of the result */
	for (int n = block * OM_AT_WARPS * 32 + threadIdx.x; n < heads * D;
	     n += split * OM_AT_WARPS * 32) {
		const int i = n / D, c = n % D;
		float most = OM_AT_NONE, all = 0, sums = 0;
#pragma unroll
		for (int k = 0; k < split; k++)
			most = fmaxf(most, om_at_other(&own[i][D], k));
#pragma unroll
		for (int k = 0; k < split; k++) {
			const float shrink = om_at_shrink(om_at_other(&own[i][D], k), most);
			all += shrink * om_at_other(&own[i][c], k);
			sums += shrink * om_at_other(&own[i][D + 1], k);
		}
		o[((int64_t)row * H + first) * D + n] = om_round(sums > 0 ? all / sums : 0);
	}
	if (split > 1)
		om_at_meet(); /* nobody reads a block that is over */
}

/* Eight numbers at x and the eight that they turn with, turned by a position's angles. */
template <int D>
OM_DEV void
om_at_turn(float (&lo)[8], float (&hi)[8], const float *tab, om_bf16 *to)
{
#pragma unroll
	for (int c = 0; c < 8; c++) {
		const float cosine = tab[c], sine = tab[D / 2 + c], a = lo[c], b = hi[c];
		lo[c] = a * cosine - b * sine;
		hi[c] = b * cosine + a * sine;
	}
	om_store8(to, lo);
	om_store8(to + D / 2, hi);
}

template <int M, int H, int D>
OM_DEV void
om_rope_at(const om_bf16 *x, const float *tab, const int32_t *at, om_bf16 *y)
{
	constexpr int wide = H * D / 16; /* pairs of eight in a row */
	const int64_t i = (int64_t)blockIdx.x * OM_HEADS_THREADS + threadIdx.x;
	om_before();
	om_after();
	if (i >= (int64_t)M * wide)
		return;
	const int row = i / wide, pair = i % wide, col = pair % (D / 16) * 8;
	const int64_t from = ((int64_t)row * H + pair / (D / 16)) * D + col;
	float lo[8], hi[8];
	om_load8(x + from, lo);
	om_load8(x + from + D / 2, hi);
	om_at_turn<D>(lo, hi, tab + (int64_t)max(at[row], 0) * D + col, y + from);
}

/* A row, by a block's threads. */
template <int N>
OM_DEV void
om_at_copy(const om_bf16 *from, om_bf16 *to)
{
	for (int i = threadIdx.x; i < N / 8; i += OM_HEADS_THREADS)
		((uint4 *)to)[i] = ((const uint4 *)from)[i];
}

template <int M, int S, int N>
OM_DEV void
om_cache(const om_bf16 *k, const om_bf16 *v, const int32_t *at, om_bf16 *kc, om_bf16 *vc)
{
	const int row = blockIdx.x;
	om_before();
	om_after();
	const int64_t from = (int64_t)row * N, to = ((int64_t)at[M + row] * S + at[row]) * N;
	if (at[row] < 0)
		return;
	om_at_copy<N>(blockIdx.y ? v + from : k + from, blockIdx.y ? vc + to : kc + to);
}

/* A row x [HEADS * D], normed by w [NORM] and turned. */
template <int HEADS, int D, int NORM>
OM_DEV void
om_at_heads(
    float eps, const om_bf16 *x, const om_bf16 *w, const float *tab, om_bf16 *y, float *room)
{
	constexpr int pairs = HEADS * D / 16, each = NORM / 16; /* pairs of a norm */
	float lo[8], hi[8], by[8];
	for (int i = threadIdx.x; i < pairs; i += OM_HEADS_THREADS) {
		const int from = i / (D / 16) * D + i % (D / 16) * 8;
		float sum = 0;
		om_load8(x + from, lo);
		om_load8(x + from + D / 2, hi);
#pragma unroll
		for (int c = 0; c < 8; c++)
			sum += lo[c] * lo[c] + hi[c] * hi[c];
		room[i] = sum;
	}
	__syncthreads();
	for (int i = threadIdx.x / 32; i < pairs / each; i += OM_HEADS_THREADS / 32) {
		float sum = 0;
		for (int k = threadIdx.x % 32; k < each; k += 32)
			sum += room[i * each + k];
		sum = om_warp_sum(sum);
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			room[i * each] = 1 / sqrtf(sum / NORM + eps);
	}
	__syncthreads();
	for (int i = threadIdx.x; i < pairs; i += OM_HEADS_THREADS) {
		const int col = i % (D / 16) * 8, from = i / (D / 16) * D + col;
		const float r = room[i / each * each];
		om_load8(x + from, lo);
		om_load8(x + from + D / 2, hi);
		om_load8(w + from % NORM, by);
#pragma unroll
		for (int c = 0; c < 8; c++)
			lo[c] = om_f32(om_round(lo[c] * r * by[c]));
		om_load8(w + (from + D / 2) % NORM, by);
#pragma unroll
		for (int c = 0; c < 8; c++)
			hi[c] = om_f32(om_round(hi[c] * r * by[c]));
		om_at_turn<D>(lo, hi, tab + col, y + from);
	}
}

template <int M, int S, int H, int G, int D, int N1, int N2>
OM_DEV void
om_heads_at(float eps, const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, const om_bf16 *w1,
    const om_bf16 *w2, const float *tab, const int32_t *at, om_bf16 *y, om_bf16 *kc, om_bf16 *vc)
{
	__shared__ float room[(H > G ? H : G) * D / 16];
	const int64_t row = blockIdx.x;
	om_before();
	om_after();
	const int position = at[row];
	const int64_t to = ((int64_t)at[M + row] * S + position) * G * D;
	const float *angles = tab + (int64_t)max(position, 0) * D;
	if (blockIdx.y == 0) {
		om_at_heads<H, D, N1>(eps, q + row * H * D, w1, angles, y + row * H * D, room);
	} else if (position >= 0) {
		om_at_heads<G, D, N2>(eps, k + row * G * D, w2, angles, kc + to, room);
		om_at_copy<G * D>(v + row * G * D, vc + to);
	}
}

template <int V>
OM_DEV void
om_likeliest(const float *z, int32_t *id)
{
	constexpr int warps = OM_LIKELIEST_THREADS / 32;
	__shared__ float values[warps];
	__shared__ int places[warps];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float best = OM_AT_NONE;
	int at = V;
	bool finite = true;
	om_before();
	om_after();
	z += (int64_t)blockIdx.x * V;
#pragma unroll 8
	for (int i = threadIdx.x; i < V; i += OM_LIKELIEST_THREADS) {
		const float x = z[i];
		finite = finite && fabsf(x) < -OM_AT_NONE;
		at = x > best ? i : at;
		best = fmaxf(x, best);
	}
	finite = __syncthreads_and(finite);
#pragma unroll
	for (int half = 0; half < 2; half++) { /* of a warp; of the warps */
#pragma unroll
		for (int d = 16; d; d /= 2) {
			const float x = __shfl_xor_sync(0xffffffffu, best, d);
			const int i = __shfl_xor_sync(0xffffffffu, at, d);
			at = x > best || (x == best && i < at) ? i : at;
			best = fmaxf(x, best);
		}
		if (half)
			break;
		if (lane == 0) {
			values[warp] = best;
			places[warp] = at;
		}
		__syncthreads();
		best = lane < warps ? values[lane] : OM_AT_NONE;
		at = lane < warps ? places[lane] : V;
	}
	if (threadIdx.x == 0)
		id[blockIdx.x] = finite ? at : -1;
}

#define OM_LIKELIEST(NAME, m, v)                                                 \
	OM_GLOBAL(OM_LIKELIEST_THREADS, 1) NAME##_x(const float *z, int32_t *id) \
	{                                                                        \
		om_likeliest<v>(z, id);                                          \
	}
#define OM_ROPE_AT(NAME, m, s, h, d)                                                \
	static_assert((d) % 16 == 0, "rope_at: heads are multiples of 16");         \
	OM_GLOBAL(OM_HEADS_THREADS, 1)                                              \
	NAME##_x(const om_bf16 *x, const float *tab, const int32_t *at, om_bf16 *y) \
	{                                                                           \
		om_rope_at<m, h, d>(x, tab, at, y);                                 \
	}
#define OM_CACHE(NAME, m, b, s, n)                                                                \
	static_assert((n) % 8 == 0, "cache: the width is a multiple of 8");                       \
	OM_GLOBAL(OM_HEADS_THREADS, 1)                                                            \
	NAME##_x(const om_bf16 *k, const om_bf16 *v, const int32_t *at, om_bf16 *kc, om_bf16 *vc) \
	{                                                                                         \
		om_cache<m, s, n>(k, v, at, kc, vc);                                              \
	}
#define OM_HEADS_AT(NAME, m, b, s, h, g, d, i, j, eps)                                       \
	OM_GLOBAL(OM_HEADS_THREADS, 1)                                                       \
	NAME##_x(const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, const om_bf16 *w1,    \
	    const om_bf16 *w2, const float *tab, const int32_t *at, om_bf16 *y, om_bf16 *kc, \
	    om_bf16 *vc)                                                                     \
	{                                                                                    \
		om_heads_at<m, s, h, g, d, i, j>(eps, q, k, v, w1, w2, tab, at, y, kc, vc);  \
	}
#define OM_ATTENTION_AT(NAME, m, b, s, h, g, d, w, scale)                                          \
	OM_CACHED_SIZES(m, b, s, h, g, d, w)                                                       \
	OM_GLOBAL(OM_AT_WARPS * 32, 1)                                                             \
	NAME##_x(                                                                                  \
	    const om_bf16 *q, const om_bf16 *kc, const om_bf16 *vc, const int32_t *at, om_bf16 *o) \
	{                                                                                          \
		om_attention_at<m, s, h, g, d, w>(scale, q, kc, vc, at, o);                        \
	}

#else /* ---- host ---- */

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention_ref.h"
#include "rope_ref.h"
#include "rows_ref.h"

#define OM_LIKELIEST(NAME, m, v)                              \
	OM_KERNEL_AFTER(NAME##_x, OM_LIKELIEST_THREADS, 0, 0) \
	void NAME(const float *z, int32_t *id)                \
	{                                                     \
		OM_LAUNCH(NAME##_x, m, 1, 1, &z, &id);        \
	}                                                     \
	double NAME##_check(uint64_t seed)                    \
	{                                                     \
		return om_likeliest_check(NAME, m, v, seed);  \
	}
#define OM_ROPE_AT(NAME, m, s, h, d)                                                             \
	OM_KERNEL_AFTER(NAME##_x, OM_HEADS_THREADS, 0, 0)                                        \
	void NAME(const om_bf16 *x, const float *tab, const int32_t *at, om_bf16 *y)             \
	{                                                                                        \
		OM_LAUNCH(NAME##_x, OM_CEIL((int64_t)(m) * (h) * (d) / 16, OM_HEADS_THREADS), 1, \
		    1, &x, &tab, &at, &y);                                                       \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_rope_at_check(NAME, m, s, h, d, seed);                                 \
	}
#define OM_CACHE(NAME, m, b, s, n)                                                                 \
	OM_KERNEL_AFTER(NAME##_x, OM_HEADS_THREADS, 0, 0)                                          \
	void NAME(const om_bf16 *k, const om_bf16 *v, const int32_t *at, om_bf16 *kc, om_bf16 *vc) \
	{                                                                                          \
		OM_LAUNCH(NAME##_x, m, 2, 1, &k, &v, &at, &kc, &vc);                               \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_cache_check(NAME, m, b, s, n, seed);                                     \
	}
#define OM_HEADS_AT(NAME, m, b, s, h, g, d, i, j, eps)                                       \
	OM_KERNEL_AFTER(NAME##_x, OM_HEADS_THREADS, 0, 0)                                    \
	void NAME(const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, const om_bf16 *w1,   \
	    const om_bf16 *w2, const float *tab, const int32_t *at, om_bf16 *y, om_bf16 *kc, \
	    om_bf16 *vc)                                                                     \
	{                                                                                    \
		OM_LAUNCH(NAME##_x, m, 2, 1, &q, &k, &v, &w1, &w2, &tab, &at, &y, &kc, &vc); \
	}                                                                                    \
	double NAME##_check(uint64_t seed)                                                   \
	{                                                                                    \
		return om_heads_at_check(NAME, m, b, s, h, g, d, i, j, eps, seed);           \
	}
#define OM_ATTENTION_AT(NAME, m, b, s, h, g, d, w, scale)                                          \
	OM_CACHED_SIZES(m, b, s, h, g, d, w)                                                       \
	OM_KERNEL_AFTER(                                                                           \
	    NAME##_x, OM_AT_WARPS * 32, 0, (OM_AT_SPLIT(m, h, g) > 1 ? OM_AT_SPLIT(m, h, g) : 0))  \
	void NAME(                                                                                 \
	    const om_bf16 *q, const om_bf16 *kc, const om_bf16 *vc, const int32_t *at, om_bf16 *o) \
	{                                                                                          \
		OM_LAUNCH(NAME##_x, OM_AT_SPLIT(m, h, g), (h) / OM_AT_HEADS(h, g), m, &q, &kc,     \
		    &vc, &at, &o);                                                                 \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_attention_at_check(NAME, m, b, s, h, g, d, w, scale, seed);              \
	}

typedef void om_rope_at_fn(const om_bf16 *, const float *, const int32_t *, om_bf16 *);
typedef void om_cache_fn(const om_bf16 *, const om_bf16 *, const int32_t *, om_bf16 *, om_bf16 *);
typedef void om_heads_at_fn(const om_bf16 *, const om_bf16 *, const om_bf16 *, const om_bf16 *,
    const om_bf16 *, const float *, const int32_t *, om_bf16 *, om_bf16 *, om_bf16 *);
typedef void
om_attention_at_fn(const om_bf16 *, const om_bf16 *, const om_bf16 *, const int32_t *, om_bf16 *);

enum { OM_CACHED_SAMPLES = 96 };

/* Rows to try a kernel with: on the host, and in *device. */
static inline int32_t *
om_at_rows(int64_t m, int64_t b, int64_t s, uint64_t seed, int32_t **device)
{
	int32_t *at = malloc(2 * (size_t)m * sizeof *at);
	om_rows_ref(m, b, s, seed, at);
	*device = om_check_copy(at, 2 * (size_t)m * sizeof *at);
	return at;
}

static inline double
om_rope_at_check(om_rope_at_fn *run, int64_t m, int64_t s, int64_t h, int64_t d, uint64_t seed)
{
	const int64_t n = m * h * d;
	int32_t *d_at, *at = om_at_rows(m, m, s, seed, &d_at);
	om_bf16 *x = om_check_bf16(n, seed, 0, 1), *y = om_check_nan((size_t)n * 2);
	float *tab = om_check_f32(s * d, seed, 1, 1);
	om_bf16 *got = malloc((size_t)n * 2);
	struct om_err e = { .scale = 1 };
	run(x, tab, d_at, y);
	om_check_read(got, y, (size_t)n * 2);
	for (int64_t i = 0; i < n; i++) {
		const int64_t row = i / (h * d), pos = at[row] < 0 ? 0 : at[row];
		om_err_add(&e, om_bf16_f32(got[i]),
		    om_rope_ref_turn(OM_F32(1), d, pos, 1, i, om_in(OM_BF16(0), i),
			om_in(OM_BF16(0), om_rope_ref_pair(d, i))));
	}
	OM_TIME(run(x, tab, d_at, y));
	om_check_end();
	free(at);
	free(got);
	return om_err_value(&e);
}

/* Two equal ones in a row, the last of which has one that is no number. */
static inline double
om_likeliest_check(void (*run)(const float *, int32_t *), int64_t m, int64_t v, uint64_t seed)
{
	float *z = malloc((size_t)(m * v) * sizeof *z);
	int32_t *want = malloc((size_t)m * sizeof *want), *got = malloc((size_t)m * sizeof *got);
	for (int64_t i = 0; i < m * v; i++)
		z[i] = (float)om_unit(seed, 0, i);
	for (int64_t r = 0; r < m; r++) {
		want[r] = (int32_t)om_rows_ref_pick(seed, r, v);
		z[r * v + want[r]] = z[r * v + (want[r] + v) / 2 % v] = 3;
		want[r] =
		    (int32_t)((want[r] + v) / 2 % v < want[r] ? (want[r] + v) / 2 % v : want[r]);
	}
	if (m > 1) {
		z[m * v - 1] = NAN;
		want[m - 1] = -1;
	}
	float *d_z = om_check_copy(z, (size_t)(m * v) * sizeof *z);
	int32_t *id = om_check_nan((size_t)m * sizeof *id);
	run(d_z, id);
	om_check_read(got, id, (size_t)m * sizeof *id);
	const bool same = memcmp(got, want, (size_t)m * sizeof *id) == 0;
	OM_TIME(run(d_z, id));
	om_check_end();
	free(z);
	free(want);
	free(got);
	return same ? 0 : OM_WRONG;
}

/* Of a cache's [b, s, n] the rows that are there are as from says, all others as they were. */
static inline bool
om_at_cached(const om_bf16 *cache, const om_bf16 *want, int64_t m, int64_t b, int64_t s, int64_t n,
    const int32_t *at)
{
	const size_t bytes = (size_t)(b * s * n) * 2;
	om_bf16 *got = malloc(bytes), *all = malloc(bytes);
	om_check_read(got, cache, bytes);
	memset(all, 0xff, bytes);
	for (int64_t r = 0; r < m; r++)
		if (at[r] >= 0)
			memcpy(all + (at[m + r] * s + at[r]) * n, want + r * n, (size_t)n * 2);
	const bool same = memcmp(got, all, bytes) == 0;
	free(got);
	free(all);
	return same;
}

static inline double
om_cache_check(om_cache_fn *run, int64_t m, int64_t b, int64_t s, int64_t n, uint64_t seed)
{
	const size_t rows = (size_t)(m * n) * 2, all = (size_t)(b * s * n) * 2;
	int32_t *d_at, *at = om_at_rows(m, b, s, seed, &d_at);
	om_bf16 *k = om_check_bf16(m * n, seed, 0, 1), *v = om_check_bf16(m * n, seed, 1, 1);
	om_bf16 *kc = om_check_nan(all), *vc = om_check_nan(all);
	om_bf16 *kw = malloc(rows), *vw = malloc(rows);
	run(k, v, d_at, kc, vc);
	om_check_read(kw, k, rows);
	om_check_read(vw, v, rows);
	const bool same =
	    om_at_cached(kc, kw, m, b, s, n, at) && om_at_cached(vc, vw, m, b, s, n, at);
	OM_TIME(run(k, v, d_at, kc, vc));
	om_check_end();
	free(at);
	free(kw);
	free(vw);
	return same ? 0 : OM_WRONG;
}

/* Element i of x [m, heads * d], normed by w [n] and turned. */
static inline double
om_heads_at_want(struct om_in x, struct om_in w, struct om_in tab, int64_t heads, int64_t d,
    int64_t n, double eps, const int32_t *at, int64_t i)
{
	const int64_t row = i / (heads * d), first = i / n * n, pair = om_rope_ref_pair(d, i);
	double sum = 0;
	for (int64_t c = 0; c < n; c++)
		sum += om_in(x, first + c) * om_in(x, first + c);
	const double r = 1 / sqrt(sum / (double)n + eps);
	return om_rope_ref_turn(tab, d, at[row] < 0 ? 0 : at[row], 1, i,
	    om_in(x, i) * r * om_in(w, i % n), om_in(x, pair) * r * om_in(w, pair % n));
}

static inline double
om_heads_at_check(om_heads_at_fn *run, int64_t m, int64_t b, int64_t s, int64_t h, int64_t g,
    int64_t d, int64_t n1, int64_t n2, double eps, uint64_t seed)
{
	const int64_t wide[2] = { h * d, g * d }, all = b * s * g * d;
	int32_t *d_at, *at = om_at_rows(m, b, s, seed, &d_at);
	om_bf16 *q = om_check_bf16(m * wide[0], seed, 0, 1),
		*k = om_check_bf16(m * wide[1], seed, 1, 1);
	om_bf16 *v = om_check_bf16(m * wide[1], seed, 2, 1), *w1 = om_check_bf16(n1, seed, 3, 1);
	om_bf16 *w2 = om_check_bf16(n2, seed, 4, 1);
	float *tab = om_check_f32(s * d, seed, 5, 1);
	om_bf16 *y = om_check_nan((size_t)(m * wide[0]) * 2);
	om_bf16 *kc = om_check_nan((size_t)all * 2), *vc = om_check_nan((size_t)all * 2);
	om_bf16 *got = malloc((size_t)(m * wide[0]) * 2), *keys = malloc((size_t)all * 2);
	om_bf16 *values = malloc((size_t)(m * wide[1]) * 2);
	struct om_err e = { .scale = 1 };
	run(q, k, v, w1, w2, tab, d_at, y, kc, vc);
	om_check_read(got, y, (size_t)(m * wide[0]) * 2);
	om_check_read(keys, kc, (size_t)all * 2);
	om_check_read(values, v, (size_t)(m * wide[1]) * 2);
	e.wrong |= !om_at_cached(vc, values, m, b, s, wide[1], at);
	for (int64_t x = 0; x < 4 * OM_CACHED_SAMPLES; x++)
		for (int part = 0; part < 2; part++) {
			const int64_t n = m * wide[part];
			const int64_t i =
			    n <= 4 * OM_CACHED_SAMPLES ? x % n : om_rows_ref_pick(seed, x, n);
			const int64_t row = i / wide[part], of = at[m + row] * s + at[row];
			const double want = om_heads_at_want(OM_BF16(part), OM_BF16(3 + part),
			    OM_F32(5), part ? g : h, d, part ? n2 : n1, eps, at, i);
			if (!part)
				om_err_add(&e, om_bf16_f32(got[i]), want);
			else if (at[row] >= 0)
				om_err_add(&e, om_bf16_f32(keys[of * wide[1] + i % wide[1]]), want);
		}
	OM_TIME(run(q, k, v, w1, w2, tab, d_at, y, kc, vc));
	om_check_end();
	free(at);
	free(got);
	free(keys);
	free(values);
	return om_err_value(&e);
}

static inline double
om_attention_at_check(om_attention_at_fn *run, int64_t m, int64_t b, int64_t s, int64_t h,
    int64_t g, int64_t d, int64_t w, double scale, uint64_t seed)
{
	const int64_t all = b * s * g * d;
	int32_t *d_at, *at = om_at_rows(m, b, s, seed, &d_at);
	om_bf16 *q = om_check_bf16(m * h * d, seed, 0, 1), *k = om_check_bf16(all, seed, 1, 1);
	om_bf16 *v = om_check_bf16(all, seed, 2, 1), *o = om_check_nan((size_t)(m * h * d) * 2);
	om_bf16 *got = malloc((size_t)(m * h * d) * 2), *again = malloc((size_t)(m * h * d) * 2);
	double *want = malloc((size_t)d * sizeof *want), spread;
	const struct om_attention_ref a = { s, h, g, d, w, scale, .q = OM_BF16(0), .k = OM_BF16(1),
		.v = OM_BF16(2) };
	struct om_err e = { .scale = 1 };
	run(q, k, v, d_at, o);
	om_check_read(got, o, (size_t)(m * h * d) * 2);
	run(q, k, v, d_at, o);
	om_check_read(again, o, (size_t)(m * h * d) * 2);
	e.wrong = memcmp(got, again, (size_t)(m * h * d) * 2) != 0;
	for (int64_t x = 0; x < m * h && x < OM_CACHED_SAMPLES; x++) {
		const int64_t i = m * h <= OM_CACHED_SAMPLES ? x : om_rows_ref_pick(seed, x, m * h);
		const int64_t r = i / h;
		memset(want, 0, (size_t)d * sizeof *want);
		if (at[r] >= 0)
			om_attention_ref(
			    &a, i * d, at[m + r], i % h / (h / g), at[r], want, &spread);
		for (int64_t c = 0; c < d; c++)
			om_err_add(&e, om_bf16_f32(got[i * d + c]), want[c]);
	}
	OM_TIME(run(q, k, v, d_at, o));
	om_check_end();
	free(at);
	free(got);
	free(again);
	free(want);
	return om_err_value(&e);
}

#endif
#endif
