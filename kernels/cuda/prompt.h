/*
 * Attention of prompts: decode.h's attention_at, of rows of which each 64 are tokens of one
 * sequence, one after the other, and those that are none come last.
 *
 * A block of four warps has 64 rows of a query head, and goes from their own keys down, as
 * attention_mma.h. Steps of keys begin where the rows do, so that each row has a key in the first
 * one; what is before a sequence or behind the last row is zeros, and nobody reads what the cache
 * has there.
 */
#ifndef OM_PROMPT_H
#define OM_PROMPT_H

#include "attention_mma.h"
#include "decode.h"

#ifdef __CUDACC__

/* 64 rows from row on, of which those from 0 on and before end are there. */
template <int D, int WIDE>
OM_DEV void
om_prompt_load(uint32_t to, const om_bf16 *from, int row, int end)
{
#pragma unroll
	for (int i = threadIdx.x; i < 64 * D / 8; i += 128) {
		const int r = row + i / (D / 8), unit = i % (D / 8);
		const bool there = r >= 0 && r < end;
		om_async_load(to + i / (D / 8) * OM_AT_LINE(D) + 16 * unit,
		    from + (int64_t)(there ? r : 0) * WIDE + 8 * unit, there ? 16 : 0);
	}
}

template <int M, int S, int H, int G, int D, int W>
OM_DEV void
om_attention_prompt(float scale, const om_bf16 *q, const om_bf16 *kc, const om_bf16 *vc,
    const int32_t *at, om_bf16 *o)
{
	constexpr int SIZE = 64 * OM_AT_LINE(D);
	extern __shared__ __align__(16) uint8_t smem[];
	const uint32_t base = om_smem(smem);
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x;
	const int row = blockIdx.y * 64, mine = 16 * warp + lane / 4;
	const float c = scale * 1.44269504088896341f;
	float out[D / 2], top[2], sum[2] = { 0, 0 }, shrink[2];
	uint32_t a[D / 4];
	int reach[2];

	const bool is = threadIdx.x < 64 && row + (int)threadIdx.x < M;
	const int live = __syncthreads_count(is && at[min(row + (int)threadIdx.x, M - 1)] >= 0);
	const int first = live ? at[row] : 0, end = first + live;
	const int64_t cached = (int64_t)(live ? at[M + row] : 0) * S * G * D + head / (H / G) * D;
	const int steps = live ? (first + 63 - max(0, first - W + 1)) / 64 + 1 : 0;

	/* q goes by way of the second stage to registers */
	om_prompt_load<D, H * D>(base + 2 * SIZE, q + ((int64_t)row * H + head) * D, 0, live);
	om_async_wait_all();
	__syncthreads();
#pragma unroll
	for (int i = 0; i < D; i += 16)
		om_left<D>(a + i / 4, base + 2 * SIZE + 16 * warp * OM_AT_LINE(D) + 2 * i);
#pragma unroll
	for (int r = 0; r < 2; r++) {
		top[r] = __int_as_float(0xff800000);
		reach[r] = min(W, first + mine + 8 * r + 1);
	}
#pragma unroll
	for (int i = 0; i < D / 2; i++)
		out[i] = 0;

	for (int n = 0; n <= steps; n++) {
		/* step n - 1 has arrived, and all have read n - 2 */
		om_async_wait_all();
		__syncthreads();
		if (n < steps) {
			const uint32_t to = base + n % 2 * 2 * SIZE;
			om_prompt_load<D, G * D>(to, kc + cached, first - 64 * n, end);
			om_prompt_load<D, G * D>(to + SIZE, vc + cached, first - 64 * n, end);
		}
		if (n == 0)
			continue;
		const uint32_t sk = base + (n - 1) % 2 * 2 * SIZE;
		const int back = 64 * (n - 1); /* from the first row to the first key */
		float s[32];
		uint32_t p[16];
#pragma unroll
		for (int i = 0; i < 32; i++)
			s[i] = 0;
#pragma unroll
		for (int i = 0; i < D; i += 16)
			om_product_t<D, 64>(s, a + i / 4, sk + 2 * i);
		if (back == 0 || back > first || back + 63 >= W)
			om_mask<64, false>(s, mine + back - lane % 4 * 2, reach);
		om_softmax<64>(s, c, top, sum, shrink);
		om_cut<64>(p, s);
#pragma unroll
		for (int i = 0; i < D / 2; i++)
			out[i] *= shrink[i / 2 % 2];
		om_product<D, 64>(out, p, sk + SIZE);
	}
#pragma unroll
	for (int r = 0; r < 2; r++) {
		sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
		sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
		sum[r] = mine + 8 * r < live ? 1 / sum[r] : 0;
	}
	om_tile_store<D, M, H>(out, sum[0], sum[1], o + (int64_t)head * D, row + mine);
}

#define OM_ATTENTION_PROMPT(NAME, m, b, s, h, g, d, w, n, scale)                                   \
	OM_CACHED_SIZES(m, b, s, h, g, d, w)                                                       \
	static_assert((n) == 64, "attention_at: rows of 64 are one sequence's");                   \
	OM_GLOBAL(128, OM_AT_BLOCKS(d))                                                            \
	NAME##_x(                                                                                  \
	    const om_bf16 *q, const om_bf16 *kc, const om_bf16 *vc, const int32_t *at, om_bf16 *o) \
	{                                                                                          \
		om_attention_prompt<m, s, h, g, d, w>((float)(scale), q, kc, vc, at, o);           \
	}

#else /* ---- host ---- */

#define OM_ATTENTION_PROMPT(NAME, m, b, s, h, g, d, w, n, scale)                                   \
	OM_CACHED_SIZES(m, b, s, h, g, d, w)                                                       \
	OM_KERNEL(NAME##_x, 128, OM_AT_SMEM(d))                                                    \
	void NAME(                                                                                 \
	    const om_bf16 *q, const om_bf16 *kc, const om_bf16 *vc, const int32_t *at, om_bf16 *o) \
	{                                                                                          \
		OM_LAUNCH(NAME##_x, h, OM_CEIL(m, 64), 1, &q, &kc, &vc, &at, &o);                  \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_attention_at_check(NAME, m, b, s, h, g, d, w, scale, seed);              \
	}

#endif
#endif
