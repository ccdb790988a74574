/*
 * attention.h on the tensor cores of any architecture from sm_80 on, FlashAttention-2.
 *
 * A block of four warps owns 64 rows of the output, 16 a warp. The tensors that pass by come in
 * steps of N rows through two stages of shared memory: while one is computed on, the next is copied
 * (cp.async). Operands go from there to registers by ldmatrix; the rows of a tile are 16 bytes
 * longer than their numbers, so that the eight rows of a matrix lie in different banks. Scores,
 * probabilities and sums stay in registers. Rows beyond a sequence are zeros, and aren't stored.
 */
#ifndef OM_ATTENTION_MMA_H
#define OM_ATTENTION_MMA_H

#include "attention.h"
#include "sm80.h"

#define OM_AT_LINE(d) (2 * (d) + 16) /* bytes of a row in shared memory */
#define OM_AT_BLOCKS(d) ((d) > 64 ? 2 : 3)
#define OM_AT_THREADS(d) 128
#define OM_AT_SMEM(d) (4 * 64 * OM_AT_LINE(d))
/* backward: of a pass with steps of n rows */
#define OM_AT_BWD_BLOCKS(d, keys) ((d) > 64 ? 2 : 3)
#define OM_AT_BWD_THREADS 128
#define OM_AT_STEP(d, keys) ((keys) && (d) > 32 ? 32 : 64)
#define OM_AT_STAGE(d, keys) (OM_AT_STEP(d, keys) * (2 * OM_AT_LINE(d) + ((keys) ? 8 : 0)))
#define OM_AT_BWD_SMEM(d, keys) (2 * 64 * OM_AT_LINE(d) + 2 * OM_AT_STAGE(d, keys))

#ifdef __CUDACC__ /* ---- device ---- */

/* A left operand [16, 16] at an address of a tile [rows, D]. */
template <int D>
OM_DEV void
om_left(uint32_t *a, uint32_t at)
{
	const int lane = threadIdx.x % 32;
	om_ldmatrix<0>(a, at + lane % 16 * OM_AT_LINE(D) + lane / 16 * 16);
}

/* c [16, N] += a b^T: a [16, 16], b N rows of 16 at an address of a tile [N, D] */
template <int D, int N>
OM_DEV void
om_product_t(float *c, const uint32_t *a, uint32_t at)
{
	const int lane = threadIdx.x % 32;
	at += (lane / 16 * 8 + lane % 8) * OM_AT_LINE(D) + lane / 8 % 2 * 16;
#pragma unroll
	for (int n = 0; n < N; n += 16) {
		uint32_t b[4];
		om_ldmatrix<0>(b, at + n * OM_AT_LINE(D));
		om_mma(c + n / 2, a, b[0], b[1]);
		om_mma(c + n / 2 + 4, a, b[2], b[3]);
	}
}

/* c [16, D] += a b: a [16, N], b a tile [N, D] */
template <int D, int N>
OM_DEV void
om_product(float *c, const uint32_t *a, uint32_t at)
{
	const int lane = threadIdx.x % 32;
	at += lane % 16 * OM_AT_LINE(D) + lane / 16 * 16;
#pragma unroll
	for (int k = 0; k < N; k += 16)
#pragma unroll
		for (int n = 0; n < D; n += 16) {
			uint32_t b[4];
			om_ldmatrix<1>(b, at + k * OM_AT_LINE(D) + 2 * n);
			om_mma(c + n / 2, a + k / 4, b[0], b[1]);
			om_mma(c + n / 2 + 4, a + k / 4, b[2], b[3]);
		}
}

/* Rows from row on of a head of a sequence, whose first row is at from; S there are. */
template <int D, int S, int HEADS, int ROWS>
OM_DEV void
om_tile_load(uint32_t to, const om_bf16 *from, int row)
{
#pragma unroll
	for (int i = threadIdx.x; i < ROWS * D / 8; i += 128) {
		const int r = i / (D / 8), unit = i % (D / 8);
		const bool there = row + r < S;
		om_async_load(to + r * OM_AT_LINE(D) + 16 * unit,
		    from + (int64_t)(there ? row + r : 0) * (HEADS * D) + 8 * unit, there ? 16 : 0);
	}
}

/* A warp's accumulator, times f0 and f1 (rows r, r + 8), where row is this thread's r. */
template <int D, int S, int HEADS>
OM_DEV void
om_tile_store(const float *c, float f0, float f1, om_bf16 *to, int row)
{
	to += (int64_t)row * (HEADS * D) + threadIdx.x % 4 * 2;
#pragma unroll
	for (int i = 0; i < D / 2; i += 4) {
		if (row < S)
			*(uint32_t *)(to + 2 * i) = om_pack(c[i] * f0, c[i + 1] * f0);
		if (row + 8 < S)
			*(uint32_t *)(to + 2 * i + 8 * HEADS * D) =
			    om_pack(c[i + 2] * f1, c[i + 3] * f1);
	}
}

/* ---- forward ---- */

template <int B, int S, int H, int G, int D, int W, bool DOC>
OM_DEV void
om_attention(const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, om_bf16 *o, float *lse,
    float scale, const int32_t *doc = 0)
{
	constexpr int N = 64, TILES = OM_CEIL(S, 64), SIZE = N * OM_AT_LINE(D);
	constexpr int64_t BYTES = OM_CEIL((int64_t)4 * S * D, H / G);
	extern __shared__ __align__(16) uint8_t smem[];
	const uint32_t base = om_smem(smem);
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const float c = scale * 1.44269504088896341f;
	float out[D / 2], top[2], sum[2] = { 0, 0 }, shrink[2];
	uint32_t a[D / 4];
	int tile, head;

	om_item<B * H, TILES, BYTES>((int)blockIdx.x, &tile, &head);
	const int row = (TILES - 1 - tile) * 64, mine = row + 16 * warp + lane / 4;
	const int64_t own = (int64_t)(head / H) * S * H + head % H;
	const int64_t met = (int64_t)(head / H) * S * G + head % H / (H / G);
	/* of documents: the first token of the last row's; what each row meets */
	int least = max(0, row - W + 1), since = 0, reach[2];
	if constexpr (DOC) {
		least = max(least, om_document<B, S, false>(doc, head / H, row));
		since = om_document<B, S, false>(doc, head / H, row + 63);
		om_reach<B, S, W, false>(reach, doc, head / H, mine);
	}
	/* steps of keys, down from the queries' own: a row's first step has a key for it */
	const int last = row / N, steps = last - least / N + 1;

	/* q goes by way of the second stage to registers */
	om_tile_load<D, S, H, 64>(base + 2 * SIZE, q + own * D, row);
	om_async_wait_all();
	__syncthreads();
#pragma unroll
	for (int i = 0; i < D; i += 16)
		om_left<D>(a + i / 4, base + 2 * SIZE + 16 * warp * OM_AT_LINE(D) + 2 * i);
	top[0] = top[1] = __int_as_float(0xff800000);
#pragma unroll
	for (int i = 0; i < D / 2; i++)
		out[i] = 0;

	for (int n = 0; n <= steps; n++) {
		/* step n - 1 has arrived, and all have read n - 2 */
		om_async_wait_all();
		__syncthreads();
		if (n < steps) {
			const uint32_t to = base + n % 2 * 2 * SIZE;
			om_tile_load<D, S, G, N>(to, k + met * D, (last - n) * N);
			om_tile_load<D, S, G, N>(to + SIZE, v + met * D, (last - n) * N);
		}
		if (n == 0)
			continue;
		const uint32_t sk = base + (n - 1) % 2 * 2 * SIZE;
		const int key = (last - n + 1) * N;
		float s[N / 2];
		uint32_t p[N / 4];
#pragma unroll
		for (int i = 0; i < N / 2; i++)
			s[i] = 0;
#pragma unroll
		for (int i = 0; i < D; i += 16)
			om_product_t<D, N>(s, a + i / 4, sk + 2 * i);
		if constexpr (DOC) {
			if (key + N - 1 > row || row + 63 - key >= W || key < since)
				om_mask<N, false>(s, mine - key - lane % 4 * 2, reach);
		} else if (key + N - 1 > row || row + 63 - key >= W) {
			om_mask<N, W, false>(s, mine - key - lane % 4 * 2);
		}
		om_softmax<N>(s, c, top, sum, shrink);
		om_cut<N>(p, s);
#pragma unroll
		for (int i = 0; i < D / 2; i++)
			out[i] *= shrink[i / 2 % 2];
		om_product<D, N>(out, p, sk + SIZE);
	}
	om_softmax_end<S>(sum, top, c, lse, head, mine, lane);
	om_tile_store<D, S, H>(out, 1 / sum[0], 1 / sum[1], o + own * D, mine);
}

/* ---- backward ---- */

template <int B, int S, int H, int G, int D, int W, bool KEYS, bool DOC>
OM_DEV void
om_attention_bwd(const om_bf16 *a0, const om_bf16 *a1, const om_bf16 *b0, const om_bf16 *b1,
    om_bf16 *out0, om_bf16 *out1, const float *stat, float scale, const int32_t *doc = 0)
{
	constexpr int N = OM_AT_STEP(D, KEYS), TILES = OM_CEIL(S, 64), SIZE = N * OM_AT_LINE(D);
	constexpr int PAD = OM_AT_PAD(S), STATS = B * H * PAD;
	/* heads of the rows that stay and of those that pass; how many meet one that stays */
	constexpr int OWN = KEYS ? G : H, OTHER = KEYS ? H : G, MET = KEYS ? H / G : 1;
	constexpr int64_t BYTES = (int64_t)4 * S * D * MET;
	extern __shared__ __align__(16) uint8_t smem[];
	const uint32_t sa0 = om_smem(smem);
	const uint32_t sa1 = sa0 + 64 * OM_AT_LINE(D), stages = sa1 + 64 * OM_AT_LINE(D);
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t slab = 16 * warp * OM_AT_LINE(D);
	const float c = scale * 1.44269504088896341f;
	float acc0[D / 2], acc1[KEYS ? D / 2 : 1], lse[2], delta[2];
	int tile, head;

	om_item<B * OWN, TILES, BYTES>((int)blockIdx.x, &tile, &head);
	const int row = 64 * (KEYS ? tile : TILES - 1 - tile), seq = head / OWN, hh = head % OWN;
	const int first = row + 16 * warp, mine = first + lane / 4;
	const int64_t own = (int64_t)seq * S * OWN + hh;
	/* steps: queries that see a key of the tile, keys that its queries see; for each head */
	int from = (KEYS ? row : max(0, row - W + 1)) / N;
	int to = (min(S, KEYS ? row + 63 + W : row + 64) - 1) / N;
	/*
	 * Of documents: where that of the warp's first row ends, and of its last (queries: begin,
	 * of the last and of the first); what each row meets.
	 */
	int near = 0, far = 0, reach[2];
	if constexpr (DOC) {
		om_steps<B, S, 64, N, KEYS>(&from, &to, doc, seq, row);
		near = om_document<B, S, KEYS>(doc, seq, KEYS ? first : first + 15);
		far = om_document<B, S, KEYS>(doc, seq, KEYS ? first + 15 : first);
		om_reach<B, S, W, KEYS>(reach, doc, seq, mine);
	}
	const int each = to - from + 1;

	om_tile_load<D, S, OWN, 64>(sa0, a0 + own * D, row);
	om_tile_load<D, S, OWN, 64>(sa1, a1 + own * D, row);
#pragma unroll
	for (int i = 0; i < D / 2; i++)
		acc0[i] = 0;
	if constexpr (KEYS) {
#pragma unroll
		for (int i = 0; i < D / 2; i++)
			acc1[i] = 0;
	} else {
#pragma unroll
		for (int r = 0; r < 2; r++) {
			lse[r] = stat[head * PAD + mine + 8 * r];
			delta[r] = stat[STATS + head * PAD + mine + 8 * r];
		}
	}

	for (int n = 0; n <= MET * each; n++) {
		/* step n - 1 has arrived, and all have read n - 2 */
		om_async_wait_all();
		__syncthreads();
		if (n < MET * each) {
			const int other = KEYS ? hh * MET + n / each : hh / (H / G);
			const int at = (from + (KEYS ? n % each : n)) * N;
			const int64_t met = (int64_t)seq * S * OTHER + other;
			const uint32_t b = stages + n % 2 * OM_AT_STAGE(D, KEYS);
			om_tile_load<D, S, OTHER, N>(b, b0 + met * D, at);
			om_tile_load<D, S, OTHER, N>(b + SIZE, b1 + met * D, at);
			if (KEYS && threadIdx.x < N / 2)
				om_async_load(b + 2 * SIZE + 16 * threadIdx.x,
				    stat + (threadIdx.x < N / 4 ? 0 : STATS - N) +
					(seq * H + other) * PAD + at + 4 * threadIdx.x);
		}
		/* the first query is ahead of the first key; the last of each */
		const int at = (from + (KEYS ? (n - 1) % each : n - 1)) * N;
		const int ahead = KEYS ? at - first : first - at;
		const int query = KEYS ? N - 1 : 15, key = KEYS ? 15 : N - 1;
		if (n == 0 || ahead + query < 0 || ahead - key >= W)
			continue;
		if constexpr (DOC)
			if (KEYS ? at > far : at + N <= far)
				continue;
		const uint32_t b = stages + (n - 1) % 2 * OM_AT_STAGE(D, KEYS);
		/* column statistics of this thread: two of every 8 */
		const float2 *cl = (const float2 *)(smem + (b - sa0) + 2 * SIZE + lane % 4 * 8);
		float s[N / 2], ds[N / 2];
		uint32_t a[4], p[N / 4], x[N / 4];
#pragma unroll
		for (int e = 0; e < N / 2; e++)
			s[e] = ds[e] = 0;
#pragma unroll
		for (int i = 0; i < D; i += 16) {
			om_left<D>(a, sa0 + slab + 2 * i);
			om_product_t<D, N>(s, a, b + 2 * i);
		}
		const int distance = KEYS ? at + lane % 4 * 2 - mine : mine - at - lane % 4 * 2;
		const bool cut = ahead < key || ahead + query >= W;
		if constexpr (DOC) {
			if (cut || (KEYS ? at + N - 1 > near : at < near))
				om_mask<N, KEYS>(s, distance, reach);
		} else if (cut) {
			om_mask<N, W, KEYS>(s, distance);
		}
		om_probabilities<N, KEYS>(s, c, lse, cl);
		if constexpr (KEYS) {
			om_cut<N>(p, s);
			om_product<D, N>(acc1, p, b + SIZE);
		}
#pragma unroll
		for (int i = 0; i < D; i += 16) {
			om_left<D>(a, sa1 + slab + 2 * i);
			om_product_t<D, N>(ds, a, b + SIZE + 2 * i);
		}
		om_score_gradients<N, KEYS>(ds, s, delta, cl);
		om_cut<N>(x, ds);
		om_product<D, N>(acc0, x, b);
	}
	om_tile_store<D, S, OWN>(acc0, scale, scale, out0 + own * D, mine);
	if constexpr (KEYS)
		om_tile_store<D, S, OWN>(acc1, 1, 1, out1 + own * D, mine);
}

#define OM_ATTENTION(NAME, b, s, h, g, d, w, scale)                                            \
	OM_AT_SIZES(b, s, h, g, d, w)                                                          \
	OM_GLOBAL(128, OM_AT_BLOCKS(d))                                                        \
	NAME##_x(const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, om_bf16 *o, float *lse) \
	{                                                                                      \
		om_attention<b, s, h, g, d, OM_AT_MIN(w, s), false>(                           \
		    q, k, v, o, lse, (float)(scale));                                          \
	}

#define OM_ATTENTION_MASKED(NAME, b, s, h, g, d, w, scale)                                     \
	OM_AT_SIZES(b, s, h, g, d, w)                                                          \
	OM_GLOBAL(128, OM_AT_BLOCKS(d))                                                        \
	NAME##_x(const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, om_bf16 *o, float *lse, \
	    const int32_t *doc)                                                                \
	{                                                                                      \
		om_attention<b, s, h, g, d, OM_AT_MIN(w, s), true>(                            \
		    q, k, v, o, lse, (float)(scale), doc);                                     \
	}

#define OM_ATTENTION_DELTA(NAME, b, s, h, d)                                               \
	OM_GLOBAL(256, 8)                                                                  \
	NAME##_delta(const om_bf16 *grad, const om_bf16 *o, const float *lse, float *stat) \
	{                                                                                  \
		om_attention_delta<b, s, h, d>(grad, o, lse, stat);                        \
	}

#define OM_ATTENTION_BWD(NAME, b, s, h, g, d, w, scale)                                           \
	OM_AT_SIZES(b, s, h, g, d, w)                                                             \
	OM_ATTENTION_DELTA(NAME, b, s, h, d)                                                      \
	OM_GLOBAL(128, OM_AT_BWD_BLOCKS(d, 1))                                                    \
	NAME##_keys(const om_bf16 *k, const om_bf16 *v, const om_bf16 *q, const om_bf16 *grad,    \
	    om_bf16 *dk, om_bf16 *dv, const float *stat)                                          \
	{                                                                                         \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), true, false>(                    \
		    k, v, q, grad, dk, dv, stat, (float)(scale));                                 \
	}                                                                                         \
	OM_GLOBAL(128, OM_AT_BWD_BLOCKS(d, 0))                                                    \
	NAME##_queries(const om_bf16 *q, const om_bf16 *grad, const om_bf16 *k, const om_bf16 *v, \
	    om_bf16 *dq, const float *stat)                                                       \
	{                                                                                         \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), false, false>(                   \
		    q, grad, k, v, dq, 0, stat, (float)(scale));                                  \
	}

#define OM_ATTENTION_BWD_MASKED(NAME, b, s, h, g, d, w, scale)                                    \
	OM_AT_SIZES(b, s, h, g, d, w)                                                             \
	OM_ATTENTION_DELTA(NAME, b, s, h, d)                                                      \
	OM_GLOBAL(128, OM_AT_BWD_BLOCKS(d, 1))                                                    \
	NAME##_keys(const om_bf16 *k, const om_bf16 *v, const om_bf16 *q, const om_bf16 *grad,    \
	    om_bf16 *dk, om_bf16 *dv, const float *stat, const int32_t *doc)                      \
	{                                                                                         \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), true, true>(                     \
		    k, v, q, grad, dk, dv, stat, (float)(scale), doc);                            \
	}                                                                                         \
	OM_GLOBAL(128, OM_AT_BWD_BLOCKS(d, 0))                                                    \
	NAME##_queries(const om_bf16 *q, const om_bf16 *grad, const om_bf16 *k, const om_bf16 *v, \
	    om_bf16 *dq, const float *stat, const int32_t *doc)                                   \
	{                                                                                         \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), false, true>(                    \
		    q, grad, k, v, dq, 0, stat, (float)(scale), doc);                             \
	}

#else /* ---- host ---- */

static inline void
om_attention(const struct om_kernel *x, int64_t b, int64_t s, int64_t h, int64_t g, int64_t d,
    const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, const int32_t *doc, om_bf16 *o,
    float *lse, void *ws)
{
	(void)g, (void)d, (void)ws;
	/* a kernel without documents has no last argument */
	OM_LAUNCH(*x, (uint32_t)(b * h * OM_CEIL(s, 64)), 1, 1, &q, &k, &v, &o, &lse, &doc);
}

static inline void
om_attention_bwd(const struct om_kernel *delta, const struct om_kernel *keys,
    const struct om_kernel *queries, int64_t b, int64_t s, int64_t h, int64_t g, int64_t d,
    const om_bf16 *grad, const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, const om_bf16 *o,
    const float *lse, const int32_t *doc, om_bf16 *dq, om_bf16 *dk, om_bf16 *dv, void *ws)
{
	const int64_t rows = OM_AT_PAD(s), lanes = d > 64 ? 16 : d / 8, tiles = OM_CEIL(s, 64);
	OM_LAUNCH(*delta, (uint32_t)OM_CEIL(b * h * rows * lanes, 256), 1, 1, &grad, &o, &lse, &ws);
	OM_LAUNCH(*keys, (uint32_t)(b * g * tiles), 1, 1, &k, &v, &q, &grad, &dk, &dv, &ws, &doc);
	OM_LAUNCH(*queries, (uint32_t)(b * h * tiles), 1, 1, &q, &grad, &k, &v, &dq, &ws, &doc);
}

#endif
#endif
