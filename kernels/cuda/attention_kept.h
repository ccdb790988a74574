/*
 * attention.h's gradients on Hopper, where there is room to keep those of the scores.
 *
 * The pass over keys (attention_sm90.h) stores the gradients of the scores, cut to bf16 as it
 * multiplies them; dq is then a product of them and k: 5 products, and each score's exponential
 * once. Two bytes are written and read for a score, which takes less time and power than to compute
 * it again. dq has no sum in another order than that of its keys, so that results repeat.
 *
 *   attention_bwd  ws: 2048 p floats for each query head of a section, 2 b h (s rounded up to 128),
 *                  2 n
 *
 * p: blocks of 64 x 64 scores in which a query of a head may see a key. n: sections of key heads,
 * which one after the other have the same place for what is kept.
 */
#ifndef OM_ATTENTION_KEPT_H
#define OM_ATTENTION_KEPT_H

#include "attention_sm90.h"

#define OM_AT_SECTION(b, g, n) OM_CEIL((b) * (g), n) /* key heads of a section */
/* the product: two blocks and 64 keys are a step; 128 rows of dq are laid out */
#define OM_AT_DQ_STAGE(d) (16384 + 128 * (d))
#define OM_AT_DQ_STAGES(d) OM_AT_MIN(8, (226 * 1024 - 256 * (d)) / OM_AT_DQ_STAGE(d))
#define OM_AT_DQ_SMEM(d) (256 * (d) + OM_AT_DQ_STAGES(d) * OM_AT_DQ_STAGE(d) + 256)
#define OM_AT_KEPT_SIZES(b, s, h, g, d, w, p, n)                                \
	OM_AT_SIZES(b, s, h, g, d, w)                                           \
	static_assert((d) % 64 == 0, "attention: heads whose scores are kept"); \
	static_assert((p) == OM_AT_PAIRS(s, OM_AT_MIN(w, s)), "attention: blocks of scores");

#ifdef __CUDACC__ /* ---- device ---- */

struct om_attention_dq_smem {
	uint32_t out, b, item_full, item_empty, full, empty;
	volatile int *item;
};

/* Blocks of keys, from *from to *to, of which a query of that block sees one; none: *to = -1. */
template <int B, int S, int W, bool DOC>
OM_DEV void
om_attention_blocks(int *from, int *to, int query, const int32_t *doc, int seq)
{
	*to = query * 64 < S ? query : -1;
	*from = max(0, query - (W + 62) / 64);
	if constexpr (DOC)
		*from = max(*from, om_document<B, S, false>(doc, seq, query * 64) / 64);
}

/* Item x: a query head of the section, with its place among all, and 128 of its queries. */
template <int H, int G, int S, int D, int SECTION>
OM_DEV void
om_attention_dq_item(int x, int since, int *local, int *head, int *tile)
{
	constexpr int TILES = OM_AT_PAD(S) / 128;
	om_item<SECTION *(H / G), TILES, (int64_t)2 * S * D>(x, tile, local);
	*tile = TILES - 1 - *tile;
	*head = since * (H / G) + *local;
}

template <int B, int S, int H, int G, int D, int W, bool DOC, int SECTION>
OM_DEV void
om_attention_dq_load(const om_attention_dq_smem &sm, const om_tensor_map *k, const om_bf16 *kept,
    uint32_t *counter, int since, const int32_t *doc)
{
	constexpr int ST = OM_AT_DQ_STAGES(D), ITEMS = SECTION * (H / G) * OM_AT_PAD(S) / 128;
	uint32_t at = 0, turn = 0;
	int item = (int)blockIdx.x, tile, head, local;
	for (int n = 0;; n++) {
		if constexpr (B * G % SECTION)
			for (; item < ITEMS; item = om_draw(counter)) {
				om_attention_dq_item<H, G, S, D, SECTION>(
				    item, since, &local, &head, &tile);
				if (head < B * H)
					break;
			}
		om_bar_wait(sm.item_empty, (n & 1) ^ 1);
		*sm.item = item;
		om_bar_arrive(sm.item_full);
		if (item >= ITEMS)
			return;
		om_attention_dq_item<H, G, S, D, SECTION>(item, since, &local, &head, &tile);
		const om_bf16 *blocks = kept + local * OM_AT_PAIRS(S, W) * OM_AT_KEPT;
		int from[2], to[2];
#pragma unroll
		for (int i = 0; i < 2; i++)
			om_attention_blocks<B, S, W, DOC>(
			    &from[i], &to[i], 2 * tile + i, doc, head / H);
		for (int j = from[0]; j <= max(to[0], to[1]); j++) {
			const uint32_t bar = sm.full + 8 * at, b = sm.b + at * OM_AT_DQ_STAGE(D);
			const bool own[2] = { j <= to[0], j >= from[1] && j <= to[1] };
			om_bar_wait(sm.empty + 8 * at, turn ^ 1);
			om_bar_expect(bar, 128 * D + (own[0] + own[1]) * 8192);
#pragma unroll
			for (int i = 0; i < 2; i++)
				if (own[i])
					om_bulk_load_once(b + i * 8192,
					    blocks + (int64_t)OM_AT_KEPT *
							 om_attention_block<S, W>(j, 2 * tile + i),
					    8192, bar);
			om_tile_load<D, 64>(
			    b + 16384, k, bar, head % H / (H / G), j * 64, head / H);
			om_next<ST>(&at, &turn);
		}
		item = om_draw(counter);
	}
}

template <int B, int S, int H, int G, int D, int W, bool DOC, int SECTION>
OM_DEV void
om_attention_dq_rows(const om_attention_dq_smem &sm, int group, const om_tensor_map *dq,
    float scale, int since, const int32_t *doc)
{
	constexpr int ST = OM_AT_DQ_STAGES(D), ITEMS = SECTION * (H / G) * OM_AT_PAD(S) / 128;
	uint32_t at = 0, turn = 0;
	int item, tile, head, local;
	const int t = threadIdx.x % 128, lane = t % 32;
	for (int n = 0;; n++) {
		om_bar_wait(sm.item_full, n & 1);
		item = *sm.item;
		if (item >= ITEMS)
			break;
		__syncwarp();
		if (lane == 0)
			om_bar_arrive(sm.item_empty);
		om_attention_dq_item<H, G, S, D, SECTION>(item, since, &local, &head, &tile);
		int from[2], to[2];
		float sum[D / 2];
#pragma unroll
		for (int i = 0; i < 2; i++)
			om_attention_blocks<B, S, W, DOC>(
			    &from[i], &to[i], 2 * tile + i, doc, head / H);
#pragma unroll
		for (int i = 0; i < D / 2; i++)
			sum[i] = 0;
		for (int j = from[0]; j <= max(to[0], to[1]); j++) {
			const uint32_t b = sm.b + at * OM_AT_DQ_STAGE(D);
			om_bar_wait(sm.full + 8 * at, turn);
			if (group ? j >= from[1] && j <= to[1] : j <= to[0]) {
				const uint64_t ds = om_wgmma_desc<128>(b + group * 8192);
				const uint64_t keys = om_wgmma_desc<128>(b + 16384, 8192);
				om_wgmma_fence();
#pragma unroll
				for (int k = 0; k < 4; k++)
					om_wgmma<D, 1, 1>(sum, ds + k * 128, keys + k * 128);
				om_wgmma_commit();
				om_wgmma_wait<0>(sum);
			}
			if (lane == 0)
				om_bar_arrive(sm.empty + 8 * at);
			om_next<ST>(&at, &turn);
		}
		om_tile_store<D>(sum, scale, scale, sm.out + 128 * group * D, dq, head % H,
		    128 * tile + 64 * group, head / H, group);
	}
	if (t == 0)
		om_tile_wait();
}

template <int B, int S, int H, int G, int D, int W, bool DOC, int SECTION>
OM_DEV void
om_attention_dq(const om_tensor_map *k, const om_tensor_map *dq, const om_bf16 *kept,
    uint32_t *counter, float scale, int since, const int32_t *doc = 0)
{
	constexpr int ST = OM_AT_DQ_STAGES(D);
	extern __shared__ __align__(1024) uint8_t smem[];
	om_attention_dq_smem sm;
	sm.b = om_smem(smem);
	sm.out = sm.b + ST * OM_AT_DQ_STAGE(D);
	sm.item_full = sm.out + 256 * D;
	sm.item_empty = sm.item_full + 8;
	sm.full = sm.item_empty + 8;
	sm.empty = sm.full + 8 * ST;
	sm.item = (int *)(smem + (sm.empty + 8 * ST - sm.b));
	const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 1;

	if (threadIdx.x == 0) {
		om_bar_init(sm.item_full, 1);
		om_bar_init(sm.item_empty, 8);
		for (int i = 0; i < ST; i++) {
			om_bar_init(sm.full + 8 * i, 1);
			om_bar_init(sm.empty + 8 * i, 8);
		}
		om_bar_ready();
	}
	__syncthreads();

	if (group < 0) {
		if (threadIdx.x == 0)
			om_attention_dq_load<B, S, H, G, D, W, DOC, SECTION>(
			    sm, k, kept, counter, since, doc);
	} else {
		om_attention_dq_rows<B, S, H, G, D, W, DOC, SECTION>(
		    sm, group, dq, scale, since, doc);
	}
}

#define OM_AT_KEPT_PASSES(NAME, b, s, h, g, d, w, n, scale, masked, ARG, ...)                     \
	OM_GLOBAL(256, 8)                                                                         \
	NAME##_delta(const om_bf16 *grad, const om_bf16 *o, const float *lse, float *stat)        \
	{                                                                                         \
		om_attention_delta<b, s, h, d, 2 * (n)>(grad, o, lse, stat);                      \
	}                                                                                         \
	OM_GLOBAL(OM_AT_BWD_THREADS, 1)                                                           \
	NAME##_keys(const __grid_constant__ om_tensor_map k,                                      \
	    const __grid_constant__ om_tensor_map v, const __grid_constant__ om_tensor_map q,     \
	    const __grid_constant__ om_tensor_map grad, const __grid_constant__ om_tensor_map dk, \
	    const __grid_constant__ om_tensor_map dv, float *stat, om_bf16 *kept, int since ARG)  \
	{                                                                                         \
		constexpr int section = OM_AT_SECTION(b, g, n);                                   \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), true, masked, section, true>(&k, \
		    &v, &q, &grad, &dk, &dv, stat,                                                \
		    OM_AT_COUNTER(stat, b, s, h, since / section * 2 + 1), (float)(scale), since, \
		    kept __VA_ARGS__);                                                            \
	}                                                                                         \
	OM_GLOBAL(OM_AT_BWD_THREADS, 1)                                                           \
	NAME##_queries(const __grid_constant__ om_tensor_map k,                                   \
	    const __grid_constant__ om_tensor_map dq, float *stat, const om_bf16 *kept,           \
	    int since ARG)                                                                        \
	{                                                                                         \
		constexpr int section = OM_AT_SECTION(b, g, n);                                   \
		om_attention_dq<b, s, h, g, d, OM_AT_MIN(w, s), masked, section>(&k, &dq, kept,   \
		    OM_AT_COUNTER(stat, b, s, h, since / section * 2), (float)(scale),            \
		    since __VA_ARGS__);                                                           \
	}
#define OM_AT_DOC , const int32_t *doc
#define OM_ATTENTION_BWD_KEPT(NAME, b, s, h, g, d, w, p, n, scale) \
	OM_AT_KEPT_SIZES(b, s, h, g, d, w, p, n)                   \
	OM_AT_KEPT_PASSES(NAME, b, s, h, g, d, w, n, scale, false, , )
#define OM_ATTENTION_BWD_KEPT_MASKED(NAME, b, s, h, g, d, w, p, n, scale) \
	OM_AT_KEPT_SIZES(b, s, h, g, d, w, p, n)                          \
	OM_AT_KEPT_PASSES(NAME, b, s, h, g, d, w, n, scale, true, OM_AT_DOC, , doc)

#else /* ---- host ---- */

static inline void
om_attention_kept(const struct om_kernel *delta, const struct om_kernel *keys,
    const struct om_kernel *queries, int64_t b, int64_t s, int64_t h, int64_t g, int64_t d,
    int64_t p, int64_t n, const om_bf16 *grad, const om_bf16 *q, const om_bf16 *k, const om_bf16 *v,
    const om_bf16 *o, const float *lse, const int32_t *doc, om_bf16 *dq, om_bf16 *dk, om_bf16 *dv,
    void *ws)
{
	const int64_t rows = OM_AT_PAD(s), lanes = d > 64 ? 16 : d / 8;
	const int64_t section = OM_AT_SECTION(b, g, n), met = h / g;
	float *stat = (float *)ws + section * met * p * 2048;
	struct om_tensor_map mgrad, mq, mk, mv, mdq, mdk, mdv;
	om_attention_map(&mgrad, grad, b, s, h, d);
	om_attention_map(&mq, q, b, s, h, d);
	om_attention_map(&mk, k, b, s, g, d);
	om_attention_map(&mv, v, b, s, g, d);
	om_attention_map(&mdq, dq, b, s, h, d);
	om_attention_map(&mdk, dk, b, s, g, d);
	om_attention_map(&mdv, dv, b, s, g, d);
	OM_LAUNCH(
	    *delta, (uint32_t)OM_CEIL(b * h * rows * lanes, 256), 1, 1, &grad, &o, &lse, &stat);
	for (int32_t since = 0; since < b * g; since += (int32_t)section) {
		const int64_t items = OM_AT_MIN(section, b * g - since) * rows / 128;
		OM_LAUNCH(*keys, (uint32_t)OM_AT_MIN(items, om_sms()), 1, 1, &mk, &mv, &mq, &mgrad,
		    &mdk, &mdv, &stat, &ws, &since, &doc);
		OM_LAUNCH(*queries, (uint32_t)OM_AT_MIN(items * met, om_sms()), 1, 1, &mk, &mdq,
		    &stat, &ws, &since, &doc);
	}
}

#define OM_AT_KEPT_KERNELS(NAME, d)                                     \
	OM_KERNEL(NAME##_delta, 256, 0)                                 \
	OM_KERNEL(NAME##_keys, OM_AT_BWD_THREADS, OM_AT_BWD_SMEM(d, 1)) \
	OM_KERNEL(NAME##_queries, OM_AT_BWD_THREADS, OM_AT_DQ_SMEM(d))
#define OM_AT_KEPT_FLOATS(b, s, h, g, p, n)                                                      \
	(OM_AT_SECTION(b, g, n) * ((h) / (g)) * (int64_t)(p)*2048 + 2 * (b) * (h)*OM_AT_PAD(s) + \
	    2 * (n))

#define OM_ATTENTION_BWD_KEPT(NAME, b, s, h, g, d, w, p, n, scale)                                \
	OM_AT_KEPT_SIZES(b, s, h, g, d, w, p, n)                                                  \
	OM_AT_KEPT_KERNELS(NAME, d)                                                               \
	void NAME(const om_bf16 *grad, const om_bf16 *q, const om_bf16 *k, const om_bf16 *v,      \
	    const om_bf16 *o, const float *lse, om_bf16 *dq, om_bf16 *dk, om_bf16 *dv, void *ws)  \
	{                                                                                         \
		om_attention_kept(&NAME##_delta, &NAME##_keys, &NAME##_queries, b, s, h, g, d, p, \
		    n, grad, q, k, v, o, lse, NULL, dq, dk, dv, ws);                              \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_attention_bwd_check(NAME, NULL, b, s, h, g, d, w, scale,                \
		    OM_AT_KEPT_FLOATS(b, s, h, g, p, n), seed);                                   \
	}

#define OM_ATTENTION_BWD_KEPT_MASKED(NAME, b, s, h, g, d, w, p, n, scale)                         \
	OM_AT_KEPT_SIZES(b, s, h, g, d, w, p, n)                                                  \
	OM_AT_KEPT_KERNELS(NAME, d)                                                               \
	void NAME(const om_bf16 *grad, const om_bf16 *q, const om_bf16 *k, const om_bf16 *v,      \
	    const om_bf16 *o, const float *lse, const int32_t *doc, om_bf16 *dq, om_bf16 *dk,     \
	    om_bf16 *dv, void *ws)                                                                \
	{                                                                                         \
		om_attention_kept(&NAME##_delta, &NAME##_keys, &NAME##_queries, b, s, h, g, d, p, \
		    n, grad, q, k, v, o, lse, doc, dq, dk, dv, ws);                               \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_attention_bwd_check(NULL, NAME, b, s, h, g, d, w, scale,                \
		    OM_AT_KEPT_FLOATS(b, s, h, g, p, n), seed);                                   \
	}

#endif
#endif
