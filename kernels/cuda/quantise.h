/*
 * Numbers of 8 bits, e4m3, of which a block shares a scale, and back to bf16: what
 * kernels/cpu/quantise.h has, to the bit.
 *
 *   quantise       q [m, k], s of x [m, k]: b numbers of a row share a scale
 *   quantise_w     q [e, n, k], s of w [e, n, k]: b numbers of h rows share one
 *   quantise_wt    t [e, k, n], st of w [e, n, k] transposed: b of n, and h of k
 *   quantise_w_2   both, and w is read once
 *   dequantise     x of q, s; dequantise_w, dequantise_wt: w in its own order
 *
 * b is 32, h 1: scales are bytes, and those of x lie as [m, k/32]; or both are 128: scales are
 * floats, and lie as [k/128, m], so that those of a product's rows lie together. f: 0 rceil, 1
 * floor.
 *
 * ..._routed: off has j numbers; rows from the last of these on are padding. ..._counted: sat[0] +=
 * the numbers that were cut, which are those that would round to more than 448, sat[1] += all.
 */
#ifndef OM_QUANTISE_H
#define OM_QUANTISE_H

#include "om_cuda.h"

typedef uint8_t om_e4m3; /* the bits */

#define OM_QUANTISE_THREADS 256
/* A tile of 128 x 128 weights in shared memory: bf16, and E4M3 in rows of 144 bytes. */
#define OM_QUANTISE_PITCH 144
#define OM_QUANTISE_SMEM (128 * (256 + OM_QUANTISE_PITCH))
/* A tile that is turned as bf16, in rows of 136 numbers. */
#define OM_DEQUANTISE_PITCH 136
#define OM_DEQUANTISE_SMEM (128 * OM_DEQUANTISE_PITCH * 2)

#define OM_QUANTISE_SIZES(m, k, b, f)                                                        \
	static_assert((m) >= 1 && (m) <= 0x7fffff00, "quantise: rows are counted in int32"); \
	static_assert((b) == 32 || (b) == 128, "quantise: no such block");                   \
	static_assert((k) >= (b) && (k) % (b) == 0, "quantise: blocks divide rows");         \
	static_assert((f) == 0 || (f) == 1, "quantise: no such rule of scales");

#define OM_QUANTISE_W_SIZES(e, n, k, b, h, f)                                                      \
	static_assert((b) == 128 ? (h) == 128 : (b) == 32 && (h) == 1, "quantise: no such block"); \
	static_assert((e) >= 1 && (n) >= (b) && (k) >= (b), "quantise: sizes start at a block");   \
	static_assert((n) % (b) == 0 && (k) % (b) == 0, "quantise: blocks divide weights");        \
	static_assert((f) == 0 || (f) == 1, "quantise: no such rule of scales");

#ifdef __CUDACC__ /* ---- device ---- */

template <int B> struct om_scale_of {
	using type = float;
	static constexpr int LOWEST = -126;
};
template <> struct om_scale_of<32> {
	using type = uint8_t;
	static constexpr int LOWEST = -127;
};

/* The largest of magnitudes of two bf16 each, as bits, which are in the order of their values. */
OM_DEV uint32_t
om_most2(uint32_t a, uint32_t b)
{
	uint32_t y;
	asm("max.u16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b & 0x7fff7fffu));
	return y;
}

/* Over the 2, 4, 8, ... lanes that hold one block, of one bf16 in the end. */
template <int LANES>
OM_DEV uint32_t
om_most(uint32_t two)
{
	uint32_t most = max(two & 0xffff, two >> 16);
#pragma unroll
	for (int i = 1; i < LANES; i *= 2)
		most = max(most, __shfl_xor_sync(0xffffffffu, most, i));
	return most;
}

/* A block's scale from its largest magnitude in bf16, and what its numbers are multiplied by. */
struct om_scale {
	uint32_t bits; /* the scale as float */
	float inverse;
};

template <int LOWEST, int F>
OM_DEV om_scale
om_scale_for(uint32_t most)
{
	/* 448 is 1.75 times 2^8: what is larger, times a power of two, has the next exponent */
	const int bits = (int)(most << 16) + (F ? 0 : 0x1fffff);
	const int e = max((bits >> 23) - 135, LOWEST);
	if (most >= 0x7f80)
		return { 0x7fc00000u, __uint_as_float(0x7fc00000u) };
	return { e > -127 ? (uint32_t)(e + 127) << 23 : 0x400000u,
		__uint_as_float((uint32_t)(127 - e) << 23) };
}

/* The byte of E8M0 of such a float. */
OM_DEV uint32_t
om_e8m0(uint32_t bits)
{
	return bits == 0x7fc00000u ? 255 : bits >> 23;
}

/* cvt.rn.satfinite.e4m3x2: two as E4M3, lo in the low byte */
OM_DEV uint32_t
om_pack_8(float lo, float hi)
{
	uint16_t y;
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(hi), "f"(lo));
	return y;
}

/* Four bf16, two in each, times a number. */
OM_DEV uint32_t
om_pack4_8(uint32_t a, uint32_t b, float by)
{
	return om_pack_8(om_lo(a) * by, om_hi(a) * by) | om_pack_8(om_lo(b) * by, om_hi(b) * by)
							     << 16;
}

/* Two E4M3, in the low bytes, as bf16 times a scale. */
OM_DEV uint32_t
om_unpack_8(uint32_t q, float scale)
{
	uint32_t h;
	float lo, hi;
	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"((uint16_t)q));
	asm("{.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}"
	    : "=f"(lo), "=f"(hi)
	    : "r"(h));
	return om_pack(lo * scale, hi * scale);
}

OM_DEV float
om_scale_value(float s)
{
	return s;
}

OM_DEV float
om_scale_value(uint8_t s)
{
	return __uint_as_float(s == 255 ? 0x7fc00000u : s ? (uint32_t)s << 23 : 0x400000u);
}

OM_DEV int
om_cut(uint32_t two, float by)
{
	return (fabsf(om_lo(two) * by) > 464) + (fabsf(om_hi(two) * by) > 464);
}

/* Sixteen bf16 from 32 aligned bytes, or zeros. */
OM_DEV void
om_load_two(uint32_t (&v)[8], const om_bf16 *p, bool there)
{
	const uint4 none = make_uint4(0, 0, 0, 0);
	const uint4 a = there ? __ldg((const uint4 *)p) : none;
	const uint4 b = there ? __ldg((const uint4 *)p + 1) : none;
	v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
	v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/* Their scale: LANES lanes side by side have a block. */
template <int LANES, int LOWEST, int F>
OM_DEV om_scale
om_scale_two(const uint32_t (&v)[8])
{
	uint32_t most = v[0] & 0x7fff7fffu;
#pragma unroll
	for (int i = 1; i < 8; i++)
		most = om_most2(most, v[i]);
	return om_scale_for<LOWEST, F>(om_most<LANES>(most));
}

OM_DEV uint4
om_pack16_8(const uint32_t (&v)[8], float by)
{
	return make_uint4(om_pack4_8(v[0], v[1], by), om_pack4_8(v[2], v[3], by),
	    om_pack4_8(v[4], v[5], by), om_pack4_8(v[6], v[7], by));
}

/*
 * A warp has 32 rows of 128 columns, four rows at once, 8 lanes each. Lane i keeps what is stored
 * as scales of row i, and stores it in the end.
 */
template <int M, int K, int B, int F, int J, bool SAT>
OM_DEV void
om_quantise(const om_bf16 *x, const int32_t *off, om_e4m3 *q, void *s, uint64_t *sat)
{
	using scale = om_scale_of<B>;
	constexpr int across = OM_CEIL(K, 128);
	const int lane = threadIdx.x % 32, rows = J ? off[J - 1] : M;
	const int64_t at = (int64_t)blockIdx.x * (OM_QUANTISE_THREADS / 32) + threadIdx.x / 32;
	const int first = (int)(at / across) * 32, col = (int)(at % across) * 128 + lane % 8 * 16;
	int cut = 0;
	uint32_t kept = 0;
	if (SAT && blockIdx.x == 0 && threadIdx.x == 0)
		atomicAdd((unsigned long long *)sat + 1, (unsigned long long)rows * K);
	if (first >= rows)
		return;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		uint32_t v[4][8];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int row = first + (half * 4 + i) * 4 + lane / 8;
			om_load_two(v[i], x + (int64_t)row * K + col, row < rows && col < K);
		}
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int turn = half * 4 + i, row = first + turn * 4 + lane / 8;
			const om_scale by = om_scale_two<B / 16, scale::LOWEST, F>(v[i]);
			uint32_t word = by.bits;
			if (row < rows && col < K)
				*(uint4 *)(q + (int64_t)row * K + col) =
				    om_pack16_8(v[i], by.inverse);
#pragma unroll
			for (int j = 0; SAT && j < 8; j++)
				cut += om_cut(v[i][j], by.inverse);
			if (B == 32) { /* four bytes of a row */
				word = om_e8m0(word);
				word |= __shfl_down_sync(0xffffffffu, word, 2) << 8;
				word |= __shfl_down_sync(0xffffffffu, word, 4) << 16;
			}
			const uint32_t mine = __shfl_sync(0xffffffffu, word, lane % 4 * 8);
			if (lane / 4 == turn)
				kept = mine;
		}
	}
	if (first + lane < rows) {
		const int64_t row = first + lane, block = at % across;
		if (B == 128)
			((uint32_t *)s)[block * M + row] = kept;
		else if (K % 128 == 0)
			((uint32_t *)s)[row * across + block] = kept;
		else
			for (int i = 0; i < 4 && block * 4 + i < K / 32; i++)
				((uint8_t *)s)[row * (K / 32) + block * 4 + i] =
				    (uint8_t)(kept >> i * 8);
	}
	if (SAT) {
		cut = __reduce_add_sync(0xffffffffu, cut);
		if (lane == 0 && cut)
			atomicAdd((unsigned long long *)sat, (unsigned long long)cut);
	}
}

OM_DEV void
om_unpack16_8(uint32_t (&v)[8], uint4 q, float scale)
{
	const uint32_t word[4] = { q.x, q.y, q.z, q.w };
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = om_unpack_8(word[i / 2] >> i % 2 * 16, scale);
}

OM_DEV void
om_store_two(om_bf16 *p, const uint32_t (&v)[8])
{
	*(uint4 *)p = make_uint4(v[0], v[1], v[2], v[3]);
	*((uint4 *)p + 1) = make_uint4(v[4], v[5], v[6], v[7]);
}

/* A thread has 16 numbers of a row. */
template <int M, int K, int B, int J>
OM_DEV void
om_dequantise(const om_e4m3 *q, const void *s, const int32_t *off, om_bf16 *x)
{
	using type = typename om_scale_of<B>::type;
	const int64_t at = ((int64_t)blockIdx.x * OM_QUANTISE_THREADS + threadIdx.x) * 16;
	const int64_t row = at / K, col = at % K;
	if (row >= (J ? off[J - 1] : M))
		return;
	const type scale =
	    ((const type *)s)[B == 128 ? col / B * M + row : row * (K / B) + col / B];
	uint32_t v[8];
	om_unpack16_8(v, *(const uint4 *)(q + at), om_scale_value(scale));
	om_store_two(x + at, v);
}

/* ---- weights: a block has a tile of 128 x 128 ---- */

/* Which one. */
struct om_tile {
	int e, n, k;
};

template <int N, int K>
OM_DEV om_tile
om_tile_of(void)
{
	constexpr int over = OM_CEIL(K, 128), down = OM_CEIL(N, 128);
	const int at = blockIdx.x;
	return { at / over / down, at / over % down * 128, at % over * 128 };
}

/* 32 rows of two columns, from shared memory, as 32 E4M3 of each, in rows of t */
template <int B, int F>
OM_DEV void
om_quantise_turned(uint32_t from, uint32_t to, float by, uint8_t (&scales)[2])
{
	uint32_t v[32], most = 0;
	float inverse[2] = { by, by };
#pragma unroll
	for (int i = 0; i < 32; i++) {
		asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v[i]) : "r"(from + i * 256));
		most = om_most2(most, v[i]);
	}
	if (B == 32) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const om_scale one =
			    om_scale_for<om_scale_of<B>::LOWEST, F>(i ? most >> 16 : most & 0xffff);
			scales[i] = (uint8_t)om_e8m0(one.bits);
			inverse[i] = one.inverse;
		}
	}
#pragma unroll
	for (int i = 0; i < 32; i += 16) {
		uint32_t a[4], b[4];
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const uint32_t *w = v + i + j * 4;
			const float x = inverse[0], y = inverse[1];
			a[j] = om_pack_8(om_lo(w[0]) * x, om_lo(w[1]) * x) |
			       om_pack_8(om_lo(w[2]) * x, om_lo(w[3]) * x) << 16;
			b[j] = om_pack_8(om_hi(w[0]) * y, om_hi(w[1]) * y) |
			       om_pack_8(om_hi(w[2]) * y, om_hi(w[3]) * y) << 16;
		}
		asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + i), "r"(a[0]),
			     "r"(a[1]), "r"(a[2]), "r"(a[3])
			     : "memory");
		asm volatile(
		    "st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + OM_QUANTISE_PITCH + i),
		    "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3])
		    : "memory");
	}
}

/* Q: q and s are wanted; T: t and st are. */
template <int N, int K, int B, int F, bool Q, bool T>
OM_DEV void
om_quantise_w(const om_bf16 *w, om_e4m3 *q, void *s, om_e4m3 *t, void *st)
{
	using scale = om_scale_of<B>;
	extern __shared__ __align__(16) char om_quantise_smem[];
	__shared__ uint32_t s_most[OM_QUANTISE_THREADS / 32];
	const om_tile at = om_tile_of<N, K>();
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t first = (int64_t)at.e * N + at.n;
	const int col = lane % 8 * 16;
	om_scale one = { 0, 0 };
	uint32_t v[4][8], most = 0;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int row = (i * 8 + warp) * 4 + lane / 8;
		om_load_two(
		    v[i], w + (first + row) * K + at.k + col, at.n + row < N && at.k + col < K);
	}
	if (B == 128) {
#pragma unroll
		for (int i = 0; i < 32; i++)
			most = om_most2(most, v[i / 8][i % 8]);
		most = om_most<32>(most);
		if (lane == 0)
			s_most[warp] = most;
		__syncthreads();
#pragma unroll
		for (int i = 0; i < OM_QUANTISE_THREADS / 32; i++)
			most = max(most, s_most[i]);
		one = om_scale_for<scale::LOWEST, F>(most);
		const int n = at.n / 128, k = at.k / 128;
		if (Q && threadIdx.x == 0)
			((uint32_t *)s)[(at.e * (N / 128) + n) * (K / 128) + k] = one.bits;
		if (T && threadIdx.x == 0)
			((uint32_t *)st)[(at.e * (K / 128) + k) * (N / 128) + n] = one.bits;
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int row = (i * 8 + warp) * 4 + lane / 8;
		const bool there = at.n + row < N && at.k + col < K;
		if (T) {
			uint4 *to = (uint4 *)(om_quantise_smem + row * 256 + col * 2);
			to[0] = make_uint4(v[i][0], v[i][1], v[i][2], v[i][3]);
			to[1] = make_uint4(v[i][4], v[i][5], v[i][6], v[i][7]);
		}
		if (!Q)
			continue;
		if (B == 32) {
			one = om_scale_two<2, scale::LOWEST, F>(v[i]);
			if (there && lane % 2 == 0)
				((uint8_t *)s)[(first + row) * (K / 32) + (at.k + col) / 32] =
				    (uint8_t)om_e8m0(one.bits);
		}
		if (there)
			*(uint4 *)(q + (first + row) * K + at.k + col) =
			    om_pack16_8(v[i], one.inverse);
	}
	if (!T)
		return;
	__syncthreads();
	const int two = threadIdx.x % 64 * 2, down = threadIdx.x / 64 * 32;
	char *turned = om_quantise_smem + 128 * 256;
	uint8_t scales[2] = { 0, 0 };
	om_quantise_turned<B, F>(om_smem(om_quantise_smem) + down * 256 + two * 2,
	    om_smem(turned) + two * OM_QUANTISE_PITCH + down, one.inverse, scales);
	for (int i = 0; i < 2 && B == 32; i++)
		if (at.k + two + i < K && at.n + down < N)
			((uint8_t *)st)[((int64_t)at.e * K + at.k + two + i) * (N / 32) +
					(at.n + down) / 32] = scales[i];
	__syncthreads();
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int row = (i * 8 + warp) * 4 + lane / 8;
		if (at.k + row < K && at.n + col < N)
			*(uint4 *)(t + ((int64_t)at.e * K + at.k + row) * N + at.n + col) =
			    *(const uint4 *)(turned + row * OM_QUANTISE_PITCH + col);
	}
}

/* ROWS: of all weights, 16 numbers of one a thread */
template <int64_t ROWS, int K, int B>
OM_DEV void
om_dequantise_w(const om_e4m3 *q, const void *s, om_bf16 *w)
{
	using type = typename om_scale_of<B>::type;
	const int64_t at = ((int64_t)blockIdx.x * OM_QUANTISE_THREADS + threadIdx.x) * 16;
	const int64_t row = at / K, col = at % K;
	if (row >= ROWS)
		return;
	const type scale = ((const type *)s)[(B == 128 ? row / B : row) * (K / B) + col / B];
	uint32_t v[8];
	om_unpack16_8(v, *(const uint4 *)(q + at), om_scale_value(scale));
	om_store_two(w + at, v);
}

template <int N, int K, int B>
OM_DEV void
om_dequantise_wt(const om_e4m3 *t, const void *st, om_bf16 *w)
{
	using type = typename om_scale_of<B>::type;
	extern __shared__ __align__(16) char om_quantise_smem[];
	om_bf16 *turned = (om_bf16 *)om_quantise_smem;
	const om_tile at = om_tile_of<N, K>();
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = lane % 8 * 16;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int row = (i * 8 + warp) * 4 + lane / 8; /* of t */
		const int64_t k = (int64_t)at.e * K + at.k + row;
		uint32_t v[8];
		if (at.k + row >= K || at.n + col >= N)
			continue;
		const type scale =
		    ((const type *)st)[(B == 128 ? k / B : k) * (N / B) + (at.n + col) / B];
		om_unpack16_8(v, *(const uint4 *)(t + k * N + at.n + col), om_scale_value(scale));
#pragma unroll
		for (int j = 0; j < 16; j++)
			turned[(col + j) * OM_DEQUANTISE_PITCH + row] =
			    (om_bf16)(v[j / 2] >> j % 2 * 16);
	}
	__syncthreads();
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int row = (i * 8 + warp) * 4 + lane / 8; /* of w */
		const uint4 *from = (const uint4 *)(turned + row * OM_DEQUANTISE_PITCH + col);
		uint4 *to = (uint4 *)(w + ((int64_t)at.e * N + at.n + row) * K + at.k + col);
		if (at.n + row < N && at.k + col < K)
			to[0] = from[0], to[1] = from[1];
	}
}

#define OM_QUANTISE_KERNEL(NAME, m, k, b, f, j, sat)                                          \
	OM_QUANTISE_SIZES(m, k, b, f)                                                         \
	OM_GLOBAL(OM_QUANTISE_THREADS, 1)                                                     \
	NAME##_x(const om_bf16 *x, const int32_t *off, om_e4m3 *q, void *s, uint64_t *counts) \
	{                                                                                     \
		om_quantise<m, k, b, f, j, sat>(x, off, q, s, counts);                        \
	}
#define OM_QUANTISE(NAME, m, k, b, f) OM_QUANTISE_KERNEL(NAME, m, k, b, f, 0, false)
#define OM_QUANTISE_COUNTED(NAME, m, k, b, f) OM_QUANTISE_KERNEL(NAME, m, k, b, f, 0, true)
#define OM_QUANTISE_ROUTED(NAME, m, k, b, f, j) OM_QUANTISE_KERNEL(NAME, m, k, b, f, j, false)
#define OM_QUANTISE_ROUTED_COUNTED(NAME, m, k, b, f, j) \
	OM_QUANTISE_KERNEL(NAME, m, k, b, f, j, true)

#define OM_DEQUANTISE_KERNEL(NAME, m, k, b, j)                                    \
	OM_QUANTISE_SIZES(m, k, b, 0)                                             \
	OM_GLOBAL(OM_QUANTISE_THREADS, 1)                                         \
	NAME##_x(const om_e4m3 *q, const void *s, const int32_t *off, om_bf16 *x) \
	{                                                                         \
		om_dequantise<m, k, b, j>(q, s, off, x);                          \
	}
#define OM_DEQUANTISE(NAME, m, k, b) OM_DEQUANTISE_KERNEL(NAME, m, k, b, 0)
#define OM_DEQUANTISE_ROUTED(NAME, m, k, b, j) OM_DEQUANTISE_KERNEL(NAME, m, k, b, j)

#define OM_QUANTISE_W_KERNEL(NAME, e, n, k, b, h, f, Q, T)                    \
	OM_QUANTISE_W_SIZES(e, n, k, b, h, f)                                 \
	OM_GLOBAL(OM_QUANTISE_THREADS, 1)                                     \
	NAME##_x(const om_bf16 *w, om_e4m3 *q, void *s, om_e4m3 *t, void *st) \
	{                                                                     \
		om_quantise_w<n, k, b, f, Q, T>(w, q, s, t, st);              \
	}
#define OM_QUANTISE_W(NAME, e, n, k, b, h, f) \
	OM_QUANTISE_W_KERNEL(NAME, e, n, k, b, h, f, true, false)
#define OM_QUANTISE_WT(NAME, e, n, k, b, h, f) \
	OM_QUANTISE_W_KERNEL(NAME, e, n, k, b, h, f, false, true)
#define OM_QUANTISE_W_2(NAME, e, n, k, b, h, f) \
	OM_QUANTISE_W_KERNEL(NAME, e, n, k, b, h, f, true, true)

#define OM_DEQUANTISE_W(NAME, e, n, k, b, h)                        \
	OM_QUANTISE_W_SIZES(e, n, k, b, h, 0)                       \
	OM_GLOBAL(OM_QUANTISE_THREADS, 1)                           \
	NAME##_x(const om_e4m3 *q, const void *s, om_bf16 *w)       \
	{                                                           \
		om_dequantise_w<(int64_t)(e) * (n), k, b>(q, s, w); \
	}
#define OM_DEQUANTISE_WT(NAME, e, n, k, b, h)                  \
	OM_QUANTISE_W_SIZES(e, n, k, b, h, 0)                  \
	OM_GLOBAL(OM_QUANTISE_THREADS, 1)                      \
	NAME##_x(const om_e4m3 *t, const void *st, om_bf16 *w) \
	{                                                      \
		om_dequantise_wt<n, k, b>(t, st, w);           \
	}

#else /* ---- host ---- */

#include <assert.h>

#define OM_QUANTISE_BLOCKS(m, k) \
	OM_CEIL(OM_CEIL((int64_t)(m), 32) * OM_CEIL(k, 128), OM_QUANTISE_THREADS / 32)
#define OM_DEQUANTISE_BLOCKS(m, k) OM_CEIL((int64_t)(m) * (k), OM_QUANTISE_THREADS * 16)
#define OM_QUANTISE_TILES(e, n, k) ((int64_t)(e)*OM_CEIL(n, 128) * OM_CEIL(k, 128))

#define OM_QUANTISE_KERNEL(NAME, m, k, b, f, j, sat_)                                        \
	OM_QUANTISE_SIZES(m, k, b, f)                                                        \
	OM_KERNEL(NAME##_x, OM_QUANTISE_THREADS, 0)                                          \
	static inline void NAME##_run(                                                       \
	    const om_bf16 *x, const int32_t *off, om_e4m3 *q, void *s, int64_t *sat)         \
	{                                                                                    \
		OM_LAUNCH(NAME##_x, OM_QUANTISE_BLOCKS(m, k), 1, 1, &x, &off, &q, &s, &sat); \
	}                                                                                    \
	double NAME##_check(uint64_t seed)                                                   \
	{                                                                                    \
		return om_quantise_check(                                                    \
		    NAME##_run, &(struct om_quantise_case){ m, k, b, f, j, sat_ }, seed);    \
	}
#define OM_QUANTISE(NAME, m, k, b, f)                    \
	OM_QUANTISE_KERNEL(NAME, m, k, b, f, 0, false)   \
	void NAME(const om_bf16 *x, om_e4m3 *q, void *s) \
	{                                                \
		NAME##_run(x, NULL, q, s, NULL);         \
	}
#define OM_QUANTISE_COUNTED(NAME, m, k, b, f)                          \
	OM_QUANTISE_KERNEL(NAME, m, k, b, f, 0, true)                  \
	void NAME(const om_bf16 *x, om_e4m3 *q, void *s, int64_t *sat) \
	{                                                              \
		NAME##_run(x, NULL, q, s, sat);                        \
	}
#define OM_QUANTISE_ROUTED(NAME, m, k, b, f, j)                              \
	OM_QUANTISE_KERNEL(NAME, m, k, b, f, j, false)                       \
	void NAME(const om_bf16 *x, const int32_t *off, om_e4m3 *q, void *s) \
	{                                                                    \
		NAME##_run(x, off, q, s, NULL);                              \
	}
#define OM_QUANTISE_ROUTED_COUNTED(NAME, m, k, b, f, j)                                    \
	OM_QUANTISE_KERNEL(NAME, m, k, b, f, j, true)                                      \
	void NAME(const om_bf16 *x, const int32_t *off, om_e4m3 *q, void *s, int64_t *sat) \
	{                                                                                  \
		NAME##_run(x, off, q, s, sat);                                             \
	}

#define OM_DEQUANTISE_KERNEL(NAME, m, k, b, j)                                             \
	OM_QUANTISE_SIZES(m, k, b, 0)                                                      \
	OM_KERNEL(NAME##_x, OM_QUANTISE_THREADS, 0)                                        \
	static inline void NAME##_run(                                                     \
	    const om_e4m3 *q, const void *s, const int32_t *off, om_bf16 *x)               \
	{                                                                                  \
		OM_LAUNCH(NAME##_x, OM_DEQUANTISE_BLOCKS(m, k), 1, 1, &q, &s, &off, &x);   \
	}                                                                                  \
	double NAME##_check(uint64_t seed)                                                 \
	{                                                                                  \
		return om_dequantise_check(                                                \
		    NAME##_run, &(struct om_quantise_case){ m, k, b, 0, j, false }, seed); \
	}
#define OM_DEQUANTISE(NAME, m, k, b)                           \
	OM_DEQUANTISE_KERNEL(NAME, m, k, b, 0)                 \
	void NAME(const om_e4m3 *q, const void *s, om_bf16 *x) \
	{                                                      \
		NAME##_run(q, s, NULL, x);                     \
	}
#define OM_DEQUANTISE_ROUTED(NAME, m, k, b, j)                                     \
	OM_DEQUANTISE_KERNEL(NAME, m, k, b, j)                                     \
	void NAME(const om_e4m3 *q, const void *s, const int32_t *off, om_bf16 *x) \
	{                                                                          \
		NAME##_run(q, s, off, x);                                          \
	}

#define OM_QUANTISE_W_KERNEL(NAME, e, n, k, b, h, f, q_, t_)                                       \
	OM_QUANTISE_W_SIZES(e, n, k, b, h, f)                                                      \
	OM_KERNEL(NAME##_x, OM_QUANTISE_THREADS, OM_QUANTISE_SMEM)                                 \
	static inline void NAME##_run(const om_bf16 *w, om_e4m3 *q, void *s, om_e4m3 *t, void *st) \
	{                                                                                          \
		OM_LAUNCH(NAME##_x, OM_QUANTISE_TILES(e, n, k), 1, 1, &w, &q, &s, &t, &st);        \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_quantise_w_check(                                                        \
		    NAME##_run, &(struct om_quantise_w_case){ e, n, k, b, f, q_, t_ }, seed);      \
	}
#define OM_QUANTISE_W(NAME, e, n, k, b, h, f)                     \
	OM_QUANTISE_W_KERNEL(NAME, e, n, k, b, h, f, true, false) \
	void NAME(const om_bf16 *w, om_e4m3 *q, void *s)          \
	{                                                         \
		NAME##_run(w, q, s, NULL, NULL);                  \
	}
#define OM_QUANTISE_WT(NAME, e, n, k, b, h, f)                    \
	OM_QUANTISE_W_KERNEL(NAME, e, n, k, b, h, f, false, true) \
	void NAME(const om_bf16 *w, om_e4m3 *t, void *st)         \
	{                                                         \
		NAME##_run(w, NULL, NULL, t, st);                 \
	}
#define OM_QUANTISE_W_2(NAME, e, n, k, b, h, f)                                \
	OM_QUANTISE_W_KERNEL(NAME, e, n, k, b, h, f, true, true)               \
	void NAME(const om_bf16 *w, om_e4m3 *q, void *s, om_e4m3 *t, void *st) \
	{                                                                      \
		NAME##_run(w, q, s, t, st);                                    \
	}

#define OM_DEQUANTISE_W(NAME, e, n, k, b, h)                                                  \
	OM_QUANTISE_W_SIZES(e, n, k, b, h, 0)                                                 \
	OM_KERNEL(NAME##_x, OM_QUANTISE_THREADS, 0)                                           \
	void NAME(const om_e4m3 *q, const void *s, om_bf16 *w)                                \
	{                                                                                     \
		OM_LAUNCH(                                                                    \
		    NAME##_x, OM_DEQUANTISE_BLOCKS((int64_t)(e) * (n), k), 1, 1, &q, &s, &w); \
	}                                                                                     \
	double NAME##_check(uint64_t seed)                                                    \
	{                                                                                     \
		return om_dequantise_w_check(                                                 \
		    NAME, &(struct om_quantise_w_case){ e, n, k, b, 0, true, false }, seed);  \
	}
#define OM_DEQUANTISE_WT(NAME, e, n, k, b, h)                                                \
	OM_QUANTISE_W_SIZES(e, n, k, b, h, 0)                                                \
	OM_KERNEL(NAME##_x, OM_QUANTISE_THREADS, OM_DEQUANTISE_SMEM)                         \
	void NAME(const om_e4m3 *t, const void *st, om_bf16 *w)                              \
	{                                                                                    \
		OM_LAUNCH(NAME##_x, OM_QUANTISE_TILES(e, n, k), 1, 1, &t, &st, &w);          \
	}                                                                                    \
	double NAME##_check(uint64_t seed)                                                   \
	{                                                                                    \
		return om_dequantise_w_check(                                                \
		    NAME, &(struct om_quantise_w_case){ e, n, k, b, 0, false, true }, seed); \
	}

#include "quantise_check.h"

#endif
#endif
