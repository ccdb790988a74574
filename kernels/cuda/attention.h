/*
 * Causal attention with grouped queries and a window, on tensor cores (FlashAttention: Dao et al.
 * 2022; -2, Dao 2023; -3, Shah et al. 2024).
 *
 *   attention      o [b * s, h * d] = softmax(scale q k^T, over the w keys up to the own) v;
 *                  q [b * s, h * d], k, v [b * s, g * d]; query head i reads key head i / (h / g);
 *                  lse [b, h, s] natural logarithm of the sum of exp(scale q k^T); scale > 0;
 *                  ws: one element, Hopper's counter
 *   attention_bwd  dq, dk, dv from do; ws: 2 b h (s rounded up to 128) elements, and Hopper's 4
 *                  counters
 *
 * Query i sees keys max(0, i - w + 1) to i. The masked ones are of sequences of several documents:
 * doc [2, b, s] has of each token the place in its sequence of the first and of the last token of
 * its document, and a query sees keys of its own document alone. Tiles in which no query sees a key
 * are left out: first and last tokens never fall from one token to the next, so those of a tile's
 * ends bound what it meets.
 *
 * Two kernels share this file's sizes, macros and the arithmetic on a thread's scores: that of
 * Hopper (attention_sm90.h: wgmma, TMA), and one for every other architecture (attention_mma.h:
 * mma.sync, ldmatrix, cp.async), each with a row of kernel.def. Accumulators of wgmma and of
 * mma.sync have one layout.
 *
 * Backward is deterministic without an order among blocks: one pass gives dk and dv, one dq, and
 * each computes the scores again (7 products, where 5 and sums in memory would do). Rows of a pair
 * of tensors (k, v or q, do) stay, steps of the other pair pass by:
 *
 *   keys stay:     s = k q^T, t = v do^T;  p = exp(s - lse), ds = p (t - delta);
 *                  dv += p do, dk += ds q
 *   queries stay:  s = q k^T, t = do v^T;  the same p and ds;  dq += ds k
 *
 * with delta = rowsum(do o). All of p and ds stay in registers.
 */
#ifndef OM_ATTENTION_H
#define OM_ATTENTION_H

#include "om_cuda.h"

#define OM_AT_MIN(a, b) ((a) < (b) ? (a) : (b))
#define OM_AT_PAD(s) (OM_CEIL(s, 128) * 128)

#define OM_AT_SIZES(b, s, h, g, d, w)                                                           \
	static_assert((b) >= 1 && (s) >= 1 && (g) >= 1, "attention: sizes start at 1");         \
	static_assert((h) >= (g) && (h) % (g) == 0, "attention: key heads divide query heads"); \
	static_assert((d) >= 32 && (d) <= 128 && (d) % 32 == 0, "attention: head size");        \
	static_assert((w) >= 1, "attention: a window has at least 1 position");                 \
	static_assert((int64_t)(b) * (h)*OM_AT_PAD(s) < 1 << 30, "attention: too large");

#ifdef __CUDACC__ /* ---- device ---- */

/*
 * Work item x is which tile of which head? The tiles of a head come in order, the largest first,
 * and heads in sections whose streamed tensors (bytes a head) stay in the second-level cache; fewer
 * than four heads would leave multiprocessors idle at the end.
 */
template <int HEADS, int TILES, int64_t BYTES>
OM_DEV void
om_item(int x, int *tile, int *head)
{
	constexpr int fit = (16 << 20) / BYTES, section = OM_AT_MIN(fit < 4 ? 4 : fit, HEADS);
	const int first = x / (section * TILES) * section, heads = min(section, HEADS - first);
	x -= first * TILES;
	*tile = x / heads;
	*head = first + x % heads;
}

/*
 * An accumulator [64, N]: thread t of four warps has rows r = t / 32 * 16 + t % 32 / 4 and r + 8,
 * and of every 8 columns n the two at 8 n + t % 4 * 2: c[4 n], c[4 n + 1] in row r, the next two in
 * row r + 8. Cut to bf16, that is the layout of a left operand.
 */
template <int N>
OM_DEV void
om_cut(uint32_t *a, const float *c)
{
#pragma unroll
	for (int i = 0; i < N / 2; i += 2)
		a[i / 2] = om_pack(c[i], c[i + 1]);
}

/* ---- documents: `doc`, where a kernel is masked ---- */

/* The first, or the last, token of a row's document; rows beyond the sequence have its end's. */
template <int B, int S, bool LAST>
OM_DEV int
om_document(const int32_t *doc, int seq, int row)
{
	return __ldg(doc + ((LAST ? B : 0) + seq) * S + min(row, S - 1));
}

/* Steps of N from *from to *to that a tile of ROWS rows, which stay in a backward pass, meets. */
template <int B, int S, int ROWS, int N, bool KEYS>
OM_DEV void
om_steps(int *from, int *to, const int32_t *doc, int seq, int row)
{
	if constexpr (KEYS)
		*to = min(*to, om_document<B, S, true>(doc, seq, row + ROWS - 1) / N);
	else
		*from = max(*from, om_document<B, S, false>(doc, seq, row) / N);
}

/*
 * How many others rows row and row + 8 meet: keys back from their own place or, where they are keys
 * themselves, queries on from it.
 */
template <int B, int S, int W, bool KEYS>
OM_DEV void
om_reach(int *reach, const int32_t *doc, int seq, int row)
{
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int own = row + 8 * r, end = om_document<B, S, KEYS>(doc, seq, own);
		reach[r] = max(0, min(W, (KEYS ? end - own : own - end) + 1));
	}
}

/*
 * The same as om_mask below, where each row has a window of its own. ahead is another one each time
 * to the compiler, which else computes all distances before the loop over work where that is one
 * tile, and has no registers for them.
 */
template <int N, bool KEYS>
OM_DEV void
om_mask(float *c, int ahead, const int *reach)
{
	asm volatile("" : "+r"(ahead));
#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		const int column = i / 4 * 8 + i % 2, row = i / 2 % 2 * 8;
		if ((uint32_t)(ahead + (KEYS ? column - row : row - column)) >=
		    (uint32_t)reach[i / 2 % 2])
			c[i] = __int_as_float(0xff800000);
	}
}

/*
 * Scores outside of the window become -infinity. Rows are queries and columns keys, or with KEYS
 * the other way round; ahead: how far the query of c[0] is past its key.
 */
template <int N, int W, bool KEYS>
OM_DEV void
om_mask(float *c, int ahead)
{
#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		const int column = i / 4 * 8 + i % 2, row = i / 2 % 2 * 8;
		if ((uint32_t)(ahead + (KEYS ? column - row : row - column)) >= (uint32_t)W)
			c[i] = __int_as_float(0xff800000);
	}
}

/*
 * One step of the online softmax: scores become exp2(c score - c max), max and the sums of this
 * thread's share follow, shrink is what sums so far are to be multiplied by.
 */
template <int N>
OM_DEV void
om_softmax(float *s, float c, float *max, float *sum, float *shrink)
{
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float top = max[r], add = 0;
#pragma unroll
		for (int i = 2 * r; i < N / 2; i += 4)
			top = fmaxf(top, fmaxf(s[i], s[i + 1]));
		top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
		top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
		/* a row that has seen no key yet stays empty */
		const float base = top == __int_as_float(0xff800000) ? 0 : top * c;
		shrink[r] = om_exp2(max[r] * c - base);
		max[r] = top;
#pragma unroll
		for (int i = 2 * r; i < N / 2; i += 4) {
			s[i] = om_exp2(s[i] * c - base);
			s[i + 1] = om_exp2(s[i + 1] * c - base);
			add += s[i] + s[i + 1];
		}
		sum[r] = sum[r] * shrink[r] + add;
	}
}

/* The end of the online softmax: sums of a row's four threads, and lse of rows row and row + 8. */
template <int S>
OM_DEV void
om_softmax_end(float *sum, const float *max, float c, float *lse, int head, int row, int lane)
{
#pragma unroll
	for (int r = 0; r < 2; r++) {
		sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
		sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
		if (lane % 4 == 0 && row + 8 * r < S)
			lse[(int64_t)head * S + row + 8 * r] =
			    0.693147180559945309f * (max[r] * c + __log2f(sum[r]));
	}
}

/*
 * Backward: scores become probabilities, by the lse of their query. Queries are columns with KEYS,
 * whose statistics are at `column`, two of every 8; else rows, lse[0] and lse[1].
 */
template <int N, bool KEYS>
OM_DEV void
om_probabilities(float *s, float c, float *lse, const float2 *column)
{
#pragma unroll
	for (int e = 0; e < N / 2; e += 4) {
		if constexpr (KEYS)
			lse[0] = column[e].x, lse[1] = column[e].y;
		s[e] = om_exp2(s[e] * c - lse[0]);
		s[e + 1] = om_exp2(s[e + 1] * c - lse[KEYS]);
		s[e + 2] = om_exp2(s[e + 2] * c - lse[!KEYS]);
		s[e + 3] = om_exp2(s[e + 3] * c - lse[1]);
	}
}

/* ds holds do v^T, and becomes the gradient of the scores; delta as lse above. */
template <int N, bool KEYS>
OM_DEV void
om_score_gradients(float *ds, const float *p, float *delta, const float2 *column)
{
#pragma unroll
	for (int e = 0; e < N / 2; e += 4) {
		if constexpr (KEYS)
			delta[0] = column[N / 2 + e].x, delta[1] = column[N / 2 + e].y;
		ds[e] = p[e] * (ds[e] - delta[0]);
		ds[e + 1] = p[e + 1] * (ds[e + 1] - delta[KEYS]);
		ds[e + 2] = p[e + 2] * (ds[e + 2] - delta[!KEYS]);
		ds[e + 3] = p[e + 3] * (ds[e + 3] - delta[1]);
	}
}

/*
 * stat [2, B, H, s rounded up]: lse for exp2, and delta. The rest of a last tile has an infinite
 * lse: no probabilities, hence no gradients. Then counters of the two passes, for Hopper.
 */
template <int B, int S, int H, int D, int COUNTERS = 2>
OM_DEV void
om_attention_delta(const om_bf16 *grad, const om_bf16 *o, const float *lse, float *stat)
{
	constexpr int PAD = OM_AT_PAD(S), LANES = D > 64 ? 16 : D / 8;
	const int n = (int)(blockIdx.x * (256 / LANES) + threadIdx.x / LANES);
	const int lane = threadIdx.x % LANES;
	const int hh = n % H, i = n / H % PAD, seq = n / H / PAD;
	float sum = 0;
	for (int c = (int)threadIdx.x; blockIdx.x == 0 && c < COUNTERS; c += 256)
		((uint32_t *)stat)[2 * B * H * PAD + c] = 0;
	if (seq < B && i < S && lane * 8 < D) {
		const int64_t at = (((int64_t)seq * S + i) * H + hh) * D + lane * 8;
		float x[8], y[8];
		om_load8(grad + at, x);
		om_load8(o + at, y);
#pragma unroll
		for (int e = 0; e < 8; e++)
			sum += x[e] * y[e];
	}
#pragma unroll
	for (int e = LANES / 2; e; e /= 2)
		sum += __shfl_xor_sync(0xffffffffu, sum, e);
	if (seq < B && lane == 0) {
		const int head = seq * H + hh, to = head * PAD + i;
		stat[to] = i < S ? lse[(int64_t)head * S + i] * 1.44269504088896341f
				 : __int_as_float(0x7f800000);
		stat[B * H * PAD + to] = sum;
	}
}

#endif

#ifndef __CUDACC__ /* ---- host ---- */

#include "attention_check.h"

#define OM_ATTENTION(NAME, b, s, h, g, d, w, scale)                                             \
	OM_AT_SIZES(b, s, h, g, d, w)                                                           \
	OM_KERNEL(NAME##_x, OM_AT_THREADS(d), OM_AT_SMEM(d))                                    \
	void NAME(const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, om_bf16 *o, float *lse, \
	    void *ws)                                                                           \
	{                                                                                       \
		om_attention(&NAME##_x, b, s, h, g, d, q, k, v, NULL, o, lse, ws);              \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_attention_check(NAME, NULL, b, s, h, g, d, w, scale, seed);           \
	}

#define OM_ATTENTION_MASKED(NAME, b, s, h, g, d, w, scale)                                  \
	OM_AT_SIZES(b, s, h, g, d, w)                                                       \
	OM_KERNEL(NAME##_x, OM_AT_THREADS(d), OM_AT_SMEM(d))                                \
	void NAME(const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, const int32_t *doc, \
	    om_bf16 *o, float *lse, void *ws)                                               \
	{                                                                                   \
		om_attention(&NAME##_x, b, s, h, g, d, q, k, v, doc, o, lse, ws);           \
	}                                                                                   \
	double NAME##_check(uint64_t seed)                                                  \
	{                                                                                   \
		return om_attention_check(NULL, NAME, b, s, h, g, d, w, scale, seed);       \
	}

#define OM_ATTENTION_BWD_KERNELS(NAME, d)                               \
	OM_KERNEL(NAME##_delta, 256, 0)                                 \
	OM_KERNEL(NAME##_keys, OM_AT_BWD_THREADS, OM_AT_BWD_SMEM(d, 1)) \
	OM_KERNEL(NAME##_queries, OM_AT_BWD_THREADS, OM_AT_BWD_SMEM(d, 0))

#define OM_ATTENTION_BWD(NAME, b, s, h, g, d, w, scale)                                          \
	OM_AT_SIZES(b, s, h, g, d, w)                                                            \
	OM_ATTENTION_BWD_KERNELS(NAME, d)                                                        \
	void NAME(const om_bf16 *grad, const om_bf16 *q, const om_bf16 *k, const om_bf16 *v,     \
	    const om_bf16 *o, const float *lse, om_bf16 *dq, om_bf16 *dk, om_bf16 *dv, void *ws) \
	{                                                                                        \
		om_attention_bwd(&NAME##_delta, &NAME##_keys, &NAME##_queries, b, s, h, g, d,    \
		    grad, q, k, v, o, lse, NULL, dq, dk, dv, ws);                                \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_attention_bwd_check(                                                   \
		    NAME, NULL, b, s, h, g, d, w, scale, 2 * b * h * OM_AT_PAD(s) + 4, seed);    \
	}

#define OM_ATTENTION_BWD_MASKED(NAME, b, s, h, g, d, w, scale)                                \
	OM_AT_SIZES(b, s, h, g, d, w)                                                         \
	OM_ATTENTION_BWD_KERNELS(NAME, d)                                                     \
	void NAME(const om_bf16 *grad, const om_bf16 *q, const om_bf16 *k, const om_bf16 *v,  \
	    const om_bf16 *o, const float *lse, const int32_t *doc, om_bf16 *dq, om_bf16 *dk, \
	    om_bf16 *dv, void *ws)                                                            \
	{                                                                                     \
		om_attention_bwd(&NAME##_delta, &NAME##_keys, &NAME##_queries, b, s, h, g, d, \
		    grad, q, k, v, o, lse, doc, dq, dk, dv, ws);                              \
	}                                                                                     \
	double NAME##_check(uint64_t seed)                                                    \
	{                                                                                     \
		return om_attention_bwd_check(                                                \
		    NULL, NAME, b, s, h, g, d, w, scale, 2 * b * h * OM_AT_PAD(s) + 4, seed); \
	}

#endif
#endif
