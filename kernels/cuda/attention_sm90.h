/*
 * attention.h on Hopper's tensor cores.
 *
 * One block a multiprocessor, which draws its work from a counter: what is computed doesn't depend
 * on who computes it. A producer thread keeps a ring of tiles in shared memory full (TMA and
 * mbarriers) and runs ahead into the next piece of work; consumer warpgroups of 64 rows each hold
 * their scores and sums in registers (wgmma). A tensor is [b, s, heads, d] to TMA, so that a tile
 * that reaches over the end of a sequence reads zeros there and writes nothing.
 *
 * Forward, the scores of one step are computed while the last step's probabilities multiply v.
 * Probabilities are cut to bf16 in registers, where a wgmma's accumulator has the layout of the
 * next one's left operand.
 *
 * Backward, the pass over keys and the one over queries are one function.
 */
#ifndef OM_ATTENTION_SM90_H
#define OM_ATTENTION_SM90_H

#include "attention.h"
#include "sm90.h"

#define OM_AT_CHUNK(d) ((d) % 64 ? 32 : 64) /* columns of a swizzled row: 64 or 128 bytes */
/* forward: consumer warpgroups, threads, steps of 128 keys in shared memory, its bytes */
#define OM_AT_GROUPS(d) ((d) > 64 ? 2 : 3)
#define OM_AT_THREADS(d) (128 + 128 * OM_AT_GROUPS(d))
#define OM_AT_STAGES(d) OM_AT_MIN(4, (200 * 1024 - 256 * OM_AT_GROUPS(d) * (d)) / (512 * (d)))
#define OM_AT_SMEM(d) ((256 * OM_AT_GROUPS(d) + 512 * OM_AT_STAGES(d)) * (d) + 256)
/* backward: 128 rows stay; of a pass with steps of n rows */
#define OM_AT_BWD_THREADS 384
#define OM_AT_STEP(d, keys) ((keys) ? 64 : 128)
#define OM_AT_HELD(d, keys) (((keys) ? 1024 : 768) * (d) + 256) /* rows, results, barriers */
#define OM_AT_STAGE(d, keys) (OM_AT_STEP(d, keys) * (4 * (d) + ((keys) ? 8 : 0)))
#define OM_AT_BWD_STAGES(d, keys) \
	OM_AT_MIN(4, (227 * 1024 - OM_AT_HELD(d, keys)) / OM_AT_STAGE(d, keys))
#define OM_AT_BWD_SMEM(d, keys) \
	(OM_AT_HELD(d, keys) + OM_AT_BWD_STAGES(d, keys) * OM_AT_STAGE(d, keys))

/* blocks of a head's scores in which a query sees a key (om_attention_block), in a row at most */
#define OM_AT_WIDE(s, w) OM_AT_MIN(((w) + 62) / 64 + 1, OM_CEIL(s, 64))
#define OM_AT_PAIRS(s, w)                             \
	((int64_t)OM_CEIL(s, 64) * OM_AT_WIDE(s, w) - \
	    (int64_t)OM_AT_WIDE(s, w) * (OM_AT_WIDE(s, w) - 1) / 2)
#define OM_AT_KEPT 4096 /* numbers of a block */

#ifdef __CUDACC__ /* ---- device ---- */

/*
 * ---- tiles ----
 * A tile [rows, D] in shared memory is D / C chunks of [rows, C], swizzled as TMA and wgmma do:
 * 16-byte unit u of row r lies at u ^ r % 8 (C = 64), u ^ r / 2 % 4 (C = 32). TMA moves 64 rows of
 * a chunk at a time.
 */
template <int D, int ROWS>
OM_DEV void
om_tile_load(uint32_t to, const om_tensor_map *map, uint32_t bar, int head, int row, int seq)
{
	constexpr int C = OM_AT_CHUNK(D);
#pragma unroll
	for (int c = 0; c < D; c += C)
#pragma unroll
		for (int r = 0; r < ROWS; r += 64)
			om_tma_load(to + 2 * (c * ROWS + r * C), map, bar, c, head, row + r, seq);
}

/* c [64, N] = a b^T: a 64 rows of a tile of A_ROWS rows, from the address on, b a tile [N, D] */
template <int D, int N, int A_ROWS>
OM_DEV void
om_product_t(float *c, uint32_t a, uint32_t b)
{
	constexpr int C = OM_AT_CHUNK(D);
	const uint64_t da = om_wgmma_desc<2 * C>(a), db = om_wgmma_desc<2 * C>(b);
#pragma unroll
	for (int k = 0; k < D; k += 16) {
		const uint64_t ka = da + (2 * (k / C * C * A_ROWS + k % C) >> 4);
		const uint64_t kb = db + (2 * (k / C * C * N + k % C) >> 4);
		if (k == 0)
			om_wgmma_first<N, 0, 0>(c, ka, kb);
		else
			om_wgmma<N, 0, 0>(c, ka, kb);
	}
}

/* c [64, D] += a b: a [64, N] in registers, b a tile [N, D] */
template <int D, int N>
OM_DEV void
om_product(float *c, const uint32_t *a, uint32_t b)
{
	constexpr int C = OM_AT_CHUNK(D);
	const uint64_t db = om_wgmma_desc<2 * C>(b, 2 * N * C);
#pragma unroll
	for (int k = 0; k < N; k += 16)
		om_wgmma_r<D>(c, a + k / 4, db + (2 * k * C >> 4));
}

/* This thread's stores so far are read from shared memory. */
OM_DEV void
om_tile_wait(void)
{
	om_bulk_commit();
	om_bulk_wait_read();
}

/*
 * An accumulator, times f0 and f1 (rows r, r + 8), to memory by way of shared memory, from where
 * the last store of this warpgroup has been read before.
 */
template <int D>
OM_DEV void
om_tile_store(const float *c, float f0, float f1, uint32_t at, const om_tensor_map *map, int head,
    int row, int seq, int group)
{
	constexpr int C = OM_AT_CHUNK(D);
	const int t = threadIdx.x % 128, r = t / 32 * 16 + t % 16, half = t % 32 / 16;
	if (t == 0)
		om_tile_wait();
	om_meet(group + 1, 128);
#pragma unroll
	for (int k = 0; k < D; k += 16) {
		const int unit = (k % C / 8 + half) ^ (C == 64 ? r % 8 : r / 2 % 4);
		const float *x = c + k / 2;
		om_stmatrix(at + k / C * 128 * C + 2 * r * C + 16 * unit,
		    om_pack(x[0] * f0, x[1] * f0), om_pack(x[2] * f1, x[3] * f1),
		    om_pack(x[4] * f0, x[5] * f0), om_pack(x[6] * f1, x[7] * f1));
	}
	om_fence_async();
	om_meet(group + 1, 128);
	if (t == 0)
#pragma unroll
		for (int k = 0; k < D; k += C)
			om_tma_store(map, at + k / C * 128 * C, k, head, row, seq);
}

/* The next stage of a ring: its index, and the parity of its turn. */
template <int STAGES>
OM_DEV void
om_next(uint32_t *at, uint32_t *turn)
{
	*at = *at + 1 == STAGES ? 0 : *at + 1;
	*turn ^= *at == 0;
}

/*
 * A block's next work item, drawn when all of the last one is on its way: who drew earlier could
 * have another long one behind a long one, while others have none.
 */
OM_DEV int
om_draw(uint32_t *counter)
{
	return (int)(gridDim.x + atomicAdd(counter, 1));
}

/* ---- forward ---- */

/* Shared memory: tiles of q and o, rings of those of k and v, barriers, the block's work item. */
struct om_attention_smem {
	uint32_t q, o, k, v;
	uint32_t q_full, q_empty, k_full, k_empty, v_full, v_empty;
	volatile int *item;
};

/* The producer: draws the block's items, and fills the rings with what their consumers read. */
template <int B, int S, int H, int G, int D, int W, bool DOC>
OM_DEV void
om_attention_load(const om_attention_smem &sm, const om_tensor_map *q, const om_tensor_map *k,
    const om_tensor_map *v, const int32_t *doc, uint32_t *counter)
{
	constexpr int GROUPS = OM_AT_GROUPS(D), ST = OM_AT_STAGES(D);
	constexpr int ROWS = 64 * GROUPS, N = 128, TILES = OM_CEIL(S, ROWS), ITEMS = TILES * B * H;
	constexpr int64_t BYTES = OM_CEIL((int64_t)4 * S * D, H / G);
	int item, tile, head;
	uint32_t at = 0, turn = 0;
	item = (int)blockIdx.x;
	for (int n = 0;; n++) {
		/* what it has to know is there before the consumers are done with the last item */
		om_item<B * H, TILES, BYTES>(min(item, ITEMS - 1), &tile, &head);
		const int row = (TILES - 1 - tile) * ROWS, seq = head / H, hh = head % H;
		int least = max(0, row - W + 1);
		if constexpr (DOC)
			least = max(least, om_document<B, S, false>(doc, seq, row));
		om_bar_wait(sm.q_empty, (n & 1) ^ 1);
		*sm.item = item;
		if (item >= ITEMS) {
			om_bar_arrive(sm.q_full);
			return;
		}
		om_bar_expect(sm.q_full, 2 * ROWS * D);
		om_tile_load<D, ROWS>(sm.q, q, sm.q_full, hh, row, seq);
		for (int j = (min(S, row + ROWS) - 1) / N; j >= least / N; j--) {
			om_bar_wait(sm.k_empty + 8 * at, turn ^ 1);
			om_bar_expect(sm.k_full + 8 * at, 2 * N * D);
			om_tile_load<D, N>(
			    sm.k + at * 2 * N * D, k, sm.k_full + 8 * at, hh / (H / G), j * N, seq);
			om_bar_wait(sm.v_empty + 8 * at, turn ^ 1);
			om_bar_expect(sm.v_full + 8 * at, 2 * N * D);
			om_tile_load<D, N>(
			    sm.v + at * 2 * N * D, v, sm.v_full + 8 * at, hh / (H / G), j * N, seq);
			om_next<ST>(&at, &turn);
		}
		item = om_draw(counter);
	}
}

/* A consumer: a warpgroup's 64 rows of each item. */
template <int B, int S, int H, int G, int D, int W, bool DOC>
OM_DEV void
om_attention_rows(const om_attention_smem &sm, int group, const om_tensor_map *o, float *lse,
    float scale, const int32_t *doc)
{
	constexpr int GROUPS = OM_AT_GROUPS(D), ST = OM_AT_STAGES(D), C = OM_AT_CHUNK(D);
	constexpr int ROWS = 64 * GROUPS, N = 128, TILES = OM_CEIL(S, ROWS), ITEMS = TILES * B * H;
	constexpr int64_t BYTES = OM_CEIL((int64_t)4 * S * D, H / G);
	int item, tile, head;
	const int t = threadIdx.x % 128, lane = t % 32;
	const float c = scale * 1.44269504088896341f;
	/* of k, and of v, which is a step behind */
	uint32_t at = 0, turn = 0, v_at = 0, v_turn = 0;

	for (int n = 0;; n++) {
		om_bar_wait(sm.q_full, n & 1);
		item = *sm.item;
		if (item >= ITEMS)
			break;
		om_item<B * H, TILES, BYTES>(item, &tile, &head);
		const int row = (TILES - 1 - tile) * ROWS + 64 * group, seq = head / H;
		const int mine = row + t / 32 * 16 + lane / 4;
		const uint32_t a = sm.q + 128 * group * C;
		/*
		 * Steps of the block, and of them those of this warpgroup. It waits for
		 * the others' tiles too before it gives them back: a barrier's parity
		 * tells only two turns of the ring apart, and who left one out could take
		 * the turn before for the next.
		 */
		const int last = (min(S, (TILES - tile) * ROWS) - 1) / N;
		int least = max(0, (TILES - 1 - tile) * ROWS - W + 1), own = max(0, row - W + 1);
		/*
		 * Of documents: from which key on no row is past its document or the window; what
		 * each row meets.
		 */
		int since = 0, reach[2];
		if constexpr (DOC) {
			least = max(
			    least, om_document<B, S, false>(doc, seq, (TILES - 1 - tile) * ROWS));
			own = max(own, om_document<B, S, false>(doc, seq, row));
			since = max(om_document<B, S, false>(doc, seq, row + 63), row + 64 - W);
			om_reach<B, S, W, false>(reach, doc, seq, mine);
		}
		const int first = least / N;
		const int to = (min(S, row + 64) - 1) / N;
		const int from = min(to, own / N);
		float out[D / 2], top[2], sum[2] = { 0, 0 }, shrink[2];
		uint32_t p[N / 4];

		for (int j = last; j > to; j--) {
			om_bar_wait(sm.k_full + 8 * at, turn);
			om_bar_wait(sm.v_full + 8 * at, turn);
			if (lane == 0) {
				om_bar_arrive(sm.k_empty + 8 * at);
				om_bar_arrive(sm.v_empty + 8 * at);
			}
			om_next<ST>(&at, &turn);
		}
		v_at = at, v_turn = turn;
		top[0] = top[1] = __int_as_float(0xff800000);
#pragma unroll
		for (int i = 0; i < D / 2; i++)
			out[i] = 0;
		{
			float s[N / 2];
			om_bar_wait(sm.k_full + 8 * at, turn);
			om_wgmma_fence();
			om_product_t<D, N, ROWS>(s, a, sm.k + at * 2 * N * D);
			om_wgmma_commit();
			om_wgmma_wait<0>(s);
			if (lane == 0)
				om_bar_arrive(sm.k_empty + 8 * at);
			om_next<ST>(&at, &turn);
			if constexpr (DOC)
				om_mask<N, false>(s, mine - to * N - lane % 4 * 2, reach);
			else
				om_mask<N, W, false>(s, mine - to * N - lane % 4 * 2);
			om_softmax<N>(s, c, top, sum, shrink);
			om_cut<N>(p, s);
		}
		for (int j = to - 1; j >= from; j--) {
			float s[N / 2];
			om_bar_wait(sm.v_full + 8 * v_at, v_turn);
			om_bar_wait(sm.k_full + 8 * at, turn);
			om_wgmma_fence(p);
			om_product_t<D, N, ROWS>(s, a, sm.k + at * 2 * N * D);
			om_wgmma_commit();
			om_product<D, N>(out, p, sm.v + v_at * 2 * N * D);
			om_wgmma_commit();
			om_wgmma_wait<1>(s);
			if (lane == 0)
				om_bar_arrive(sm.k_empty + 8 * at);
			om_next<ST>(&at, &turn);
			if constexpr (DOC) {
				if (j * N < since)
					om_mask<N, false>(s, mine - j * N - lane % 4 * 2, reach);
			} else if (j * N + N - 1 > row || row + 63 - j * N >= W) {
				om_mask<N, W, false>(s, mine - j * N - lane % 4 * 2);
			}
			om_softmax<N>(s, c, top, sum, shrink);
			om_wgmma_wait<0>(out);
			if (lane == 0)
				om_bar_arrive(sm.v_empty + 8 * v_at);
			om_next<ST>(&v_at, &v_turn);
#pragma unroll
			for (int i = 0; i < D / 2; i++)
				out[i] *= shrink[i / 2 % 2];
			om_cut<N>(p, s);
		}
		if (lane == 0)
			om_bar_arrive(sm.q_empty);

		om_bar_wait(sm.v_full + 8 * v_at, v_turn);
		om_wgmma_fence(p);
		om_product<D, N>(out, p, sm.v + v_at * 2 * N * D);
		om_wgmma_commit();
		om_softmax_end<S>(sum, top, c, lse, head, mine, lane);
		om_wgmma_wait<0>(out);
		if (lane == 0)
			om_bar_arrive(sm.v_empty + 8 * v_at);
		for (int j = from - 1; j >= first; j--) {
			om_bar_wait(sm.k_full + 8 * at, turn);
			om_bar_wait(sm.v_full + 8 * at, turn);
			if (lane == 0) {
				om_bar_arrive(sm.k_empty + 8 * at);
				om_bar_arrive(sm.v_empty + 8 * at);
			}
			om_next<ST>(&at, &turn);
		}
		om_tile_store<D>(out, 1 / sum[0], 1 / sum[1], sm.o + 128 * group * D, o, head % H,
		    row, seq, group);
	}
	if (t == 0)
		om_tile_wait();
}

template <int B, int S, int H, int G, int D, int W, bool DOC>
OM_DEV void
om_attention(const om_tensor_map *q, const om_tensor_map *k, const om_tensor_map *v,
    const om_tensor_map *o, float *lse, uint32_t *counter, float scale, const int32_t *doc = 0)
{
	constexpr int GROUPS = OM_AT_GROUPS(D), ST = OM_AT_STAGES(D), ROWS = 64 * GROUPS, N = 128;
	extern __shared__ __align__(1024) uint8_t smem[];
	om_attention_smem sm;
	sm.q = om_smem(smem);
	sm.o = sm.q + 2 * ROWS * D;
	sm.k = sm.o + 2 * ROWS * D;
	sm.v = sm.k + ST * 2 * N * D;
	sm.q_full = sm.v + ST * 2 * N * D;
	sm.q_empty = sm.q_full + 8;
	sm.k_full = sm.q_empty + 8;
	sm.k_empty = sm.k_full + 8 * ST;
	sm.v_full = sm.k_empty + 8 * ST;
	sm.v_empty = sm.v_full + 8 * ST;
	sm.item = (int *)(smem + (sm.v_empty + 8 * ST - sm.q));
	const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 1;

	if (threadIdx.x == 0) {
		om_bar_init(sm.q_full, 1);
		om_bar_init(sm.q_empty, 4 * GROUPS);
		for (int i = 0; i < ST; i++) {
			om_bar_init(sm.k_full + 8 * i, 1);
			om_bar_init(sm.v_full + 8 * i, 1);
			om_bar_init(sm.k_empty + 8 * i, 4 * GROUPS);
			om_bar_init(sm.v_empty + 8 * i, 4 * GROUPS);
		}
		om_bar_ready();
	}
	__syncthreads();

	if (group < 0) {
		om_registers<GROUPS == 2 ? 24 : 32, false>();
		if (threadIdx.x > 0)
			return;
		om_attention_load<B, S, H, G, D, W, DOC>(sm, q, k, v, doc, counter);
	} else {
		om_registers<GROUPS == 2 ? 240 : 160, true>();
		om_attention_rows<B, S, H, G, D, W, DOC>(sm, group, o, lse, scale, doc);
	}
}

/* ---- backward ---- */

/* Shared memory: the rows that stay, results, a ring of steps, their statistics, barriers, item. */
struct om_attention_bwd_smem {
	uint32_t a0, a1, out, b, stat;
	uint32_t a_full, a_empty, full, empty;
	volatile int *item;
	const uint8_t *base; /* a0 */
};

/*
 * Is the last product of a step waited for behind the first ones of the next, so that a warpgroup's
 * tensor cores have work meanwhile? Where there are registers for it: with heads of 128 a consumer
 * then has 240, and the producer of a simple pass gets by with 24.
 */
template <int H, int G, int D, bool KEYS, bool DOC>
OM_DEV constexpr bool
om_attention_late(void)
{
	return !DOC && (D <= 64 || (KEYS && H == G));
}

/* The producer, as in forward. */
template <int B, int S, int H, int G, int D, int W, bool KEYS, bool DOC, int SECTION>
OM_DEV void
om_attention_bwd_load(const om_attention_bwd_smem &sm, const om_tensor_map *a0,
    const om_tensor_map *a1, const om_tensor_map *b0, const om_tensor_map *b1, const float *stat,
    uint32_t *counter, int since, const int32_t *doc)
{
	constexpr int N = OM_AT_STEP(D, KEYS), ST = OM_AT_BWD_STAGES(D, KEYS);
	constexpr int PAD = OM_AT_PAD(S), TILES = PAD / 128, STATS = B * H * PAD;
	/* heads of the rows that stay; query heads that they meet, one after the other */
	constexpr int OWN = KEYS ? G : H, MET = KEYS ? H / G : 1, ITEMS = SECTION * TILES;
	constexpr int64_t BYTES = (int64_t)4 * S * D * MET;
	uint32_t at = 0, turn = 0;
	int item, tile, head;
	item = (int)blockIdx.x;
	for (int n = 0;; n++) {
		if constexpr (B * OWN % SECTION)
			for (; item < ITEMS; item = om_draw(counter)) {
				om_item<SECTION, TILES, BYTES>(item, &tile, &head);
				if (since + head < B * OWN)
					break;
			}
		om_bar_wait(sm.a_empty, (n & 1) ^ 1);
		*sm.item = item;
		if (item >= ITEMS) {
			om_bar_arrive(sm.a_full);
			return;
		}
		om_item<SECTION, TILES, BYTES>(item, &tile, &head);
		head += since;
		const int row = 128 * (KEYS ? tile : TILES - 1 - tile);
		const int seq = head / OWN, hh = head % OWN;
		om_bar_expect(sm.a_full, 512 * D);
		om_tile_load<D, 128>(sm.a0, a0, sm.a_full, hh, row, seq);
		om_tile_load<D, 128>(sm.a1, a1, sm.a_full, hh, row, seq);
		int from = (KEYS ? row : max(0, row - W + 1)) / N;
		int to = (min(S, KEYS ? row + 127 + W : row + 128) - 1) / N;
		if constexpr (DOC)
			om_steps<B, S, 128, N, KEYS>(&from, &to, doc, seq, row);
		for (int i = 0; i < MET; i++)
			for (int j = from; j <= to; j++) {
				const int other = KEYS ? hh * MET + i : hh / (H / G);
				const uint32_t bar = sm.full + 8 * at, b = sm.b + at * 4 * N * D;
				om_bar_wait(sm.empty + 8 * at, turn ^ 1);
				om_bar_expect(bar, 4 * N * D + (KEYS ? 8 * N : 0));
				om_tile_load<D, N>(b, b0, bar, other, j * N, seq);
				om_tile_load<D, N>(b + 2 * N * D, b1, bar, other, j * N, seq);
				if (KEYS) {
					const float *x = stat + (seq * H + other) * PAD + j * N;
					const uint32_t y = sm.stat + at * 8 * N;
					om_bulk_load(y, x, 4 * N, bar);
					om_bulk_load(y + 4 * N, x + STATS, 4 * N, bar);
				}
				om_next<ST>(&at, &turn);
			}
		item = om_draw(counter);
	}
}

/*
 * ---- gradients of scores that are kept (attention_kept.h) ----
 * They lie in blocks of 64 keys by 64 queries, a row of 128 bytes a key, swizzled as in shared
 * memory. A head has those blocks in which a query may see a key, by keys, then by queries; those
 * of the last keys, which have fewer and fewer, form a triangle.
 */
template <int S, int W>
OM_DEV int
om_attention_block(int keys, int query)
{
	constexpr int HIGH = OM_CEIL(S, 64), WIDE = OM_AT_WIDE(S, W);
	const int left = HIGH - keys; /* rows of blocks from this one on */
	return (left >= WIDE ? keys * WIDE
			     : HIGH * WIDE - (WIDE * (WIDE - 1) + left * (left + 1)) / 2) +
	       query - keys;
}

/* A warp's 16 keys of a block, x as om_cut gave it, by way of one of its two boxes from `at` on. */
OM_DEV void
om_attention_keep(const uint32_t *x, uint32_t at, om_bf16 *to, int turn)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
	const uint32_t box = at + (warp * 2 + turn % 2) * 2048;
	if (lane == 0)
		om_bulk_wait_read<1>();
	__syncwarp();
#pragma unroll
	for (int k = 0; k < 4; k++)
		om_stmatrix(box + lane % 16 * 128 + ((2 * k + lane / 16) ^ lane % 8) * 16, x[4 * k],
		    x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
	om_fence_async();
	__syncwarp();
	if (lane == 0) {
		om_bulk_store_once(to + warp * (OM_AT_KEPT / 4), box, 2048);
		om_bulk_commit();
	}
}

/*
 * A consumer: a warpgroup's 64 of the rows that stay. Into kept, if there is one, go the gradients
 * of the scores, from where results are later.
 */
template <int B, int S, int H, int G, int D, int W, bool KEYS, bool DOC, int SECTION, bool KEPT>
OM_DEV void
om_attention_bwd_rows(const om_attention_bwd_smem &sm, int group, const om_tensor_map *out0,
    const om_tensor_map *out1, const float *stat, float scale, int since, om_bf16 *kept,
    const int32_t *doc)
{
	constexpr int N = OM_AT_STEP(D, KEYS), ST = OM_AT_BWD_STAGES(D, KEYS), C = OM_AT_CHUNK(D);
	constexpr int PAD = OM_AT_PAD(S), TILES = PAD / 128, STATS = B * H * PAD;
	constexpr int OWN = KEYS ? G : H, MET = KEYS ? H / G : 1, ITEMS = SECTION * TILES;
	constexpr int64_t BYTES = (int64_t)4 * S * D * MET;
	uint32_t at = 0, turn = 0;
	int item, tile, head, turns = 0;
	const int t = threadIdx.x % 128, lane = t % 32;
	const float c = scale * 1.44269504088896341f;
	const uint32_t a = 128 * group * C;
	constexpr int64_t HEAD = OM_AT_PAIRS(S, W) * OM_AT_KEPT; /* kept of a head */

	for (int n = 0;; n++) {
		om_bar_wait(sm.a_full, n & 1);
		item = *sm.item;
		if (item >= ITEMS)
			break;
		om_item<SECTION, TILES, BYTES>(item, &tile, &head);
		const int64_t local = head * MET; /* of the section's query heads, the first met */
		head += since;
		const int row = 128 * (KEYS ? tile : TILES - 1 - tile), first = row + 64 * group;
		const int mine = first + t / 32 * 16 + lane / 4;
		/* steps: queries that see a key of the tile, keys that its queries see */
		int from = (KEYS ? row : max(0, row - W + 1)) / N;
		int to = (min(S, KEYS ? row + 127 + W : row + 128) - 1) / N;
		/*
		 * Of documents: where that of the warpgroup's first row ends, and of its last
		 * (queries: begin, of the last and of the first); what each row meets.
		 */
		int near = 0, far = 0, reach[2];
		if constexpr (DOC) {
			om_steps<B, S, 128, N, KEYS>(&from, &to, doc, head / OWN, row);
			near = om_document<B, S, KEYS>(doc, head / OWN, KEYS ? first : first + 63);
			far = om_document<B, S, KEYS>(doc, head / OWN, KEYS ? first + 63 : first);
			om_reach<B, S, W, KEYS>(reach, doc, head / OWN, mine);
		}
		float acc0[D / 2], acc1[KEYS ? D / 2 : 1], lse[2], delta[2];
		const int blocks = om_attention_block<S, W>(first / 64, 0);
		if constexpr (KEPT) { /* results have left the place for what is kept */
			if (t == 0)
				om_tile_wait();
			om_meet(group + 1, 128);
		}

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
		constexpr bool LATE = om_attention_late<H, G, D, KEYS, DOC>();
		int held = -1; /* the stage of a step whose last product is on its way */
#pragma unroll 1
		for (int i = 0, j = from; i < MET; i += j == to, j = j == to ? from : j + 1) {
			/* the first query is ahead of the first key; the last of each */
			const int ahead = KEYS ? j * N - first : first - j * N;
			const int query = KEYS ? N - 1 : 63, key = KEYS ? 63 : N - 1;
			const uint32_t tb0 = sm.b + at * 4 * N * D, tb1 = tb0 + 2 * N * D;
			/* column statistics of this thread: two of every 8 */
			const float2 *cl =
			    (const float2 *)(sm.base + (sm.stat + at * 8 * N - sm.a0) +
					     lane % 4 * 8);
			om_bar_wait(sm.full + 8 * at, turn);
			bool meet = ahead + query >= 0 && ahead - key < W;
			bool all = !(ahead < key || ahead + query >= W);
			if constexpr (DOC) {
				meet = meet && (KEYS ? j * N <= far : j * N + N > far);
				all = all && (KEYS ? j * N + N <= near + 1 : j * N >= near);
			}
			if (meet) {
				float s[N / 2], ds[N / 2];
				uint32_t p[N / 4], x[N / 4];
				om_wgmma_fence();
				om_product_t<D, N, 128>(s, sm.a0 + a, tb0);
				om_wgmma_commit();
				om_product_t<D, N, 128>(ds, sm.a1 + a, tb1);
				om_wgmma_commit();
				if (LATE && held >= 0) {
					om_wgmma_wait<2>();
					if (lane == 0)
						om_bar_arrive(sm.empty + 8 * held);
				}
				held = at;
				om_wgmma_wait<1>(s);
				const int distance = KEYS ? j * N + lane % 4 * 2 - mine
							  : mine - j * N - lane % 4 * 2;
				if constexpr (DOC) {
					if (!all)
						om_mask<N, KEYS>(s, distance, reach);
				} else if (!all) {
					om_mask<N, W, KEYS>(s, distance);
				}
				om_probabilities<N, KEYS>(s, c, lse, cl);
				if constexpr (KEYS) {
					om_cut<N>(p, s);
					om_wgmma_fence(p);
					om_product<D, N>(acc1, p, tb1);
					om_wgmma_commit();
				}
				om_wgmma_wait<KEYS>(ds);
				om_score_gradients<N, KEYS>(ds, s, delta, cl);
				om_cut<N>(x, ds);
				om_wgmma_fence(x);
				om_product<D, N>(acc0, x, tb0);
				om_wgmma_commit();
				if constexpr (KEPT)
					om_attention_keep(x, sm.out + 256 * group * D,
					    kept + (local + i) * HEAD +
						(int64_t)(blocks + j) * OM_AT_KEPT,
					    turns++);
				om_wgmma_wait<LATE>();
			}
			if (!meet || !LATE) {
				if (lane == 0)
					om_bar_arrive(sm.empty + 8 * at);
			}
			om_next<ST>(&at, &turn);
		}
		om_wgmma_wait<0>(acc0);
		if constexpr (KEYS)
			om_wgmma_keep(acc1);
		if (lane == 0) {
			if (LATE && held >= 0)
				om_bar_arrive(sm.empty + 8 * held);
			om_bar_arrive(sm.a_empty);
		}
		if (KEPT && lane == 0)
			om_bulk_wait_read();
		const uint32_t place = sm.out + (KEYS ? 256 : 128) * group * D;
		om_tile_store<D>(
		    acc0, scale, scale, place, out0, head % OWN, first, head / OWN, group);
		if constexpr (KEYS)
			om_tile_store<D>(acc1, 1, 1, place + 128 * D, out1, head % OWN, first,
			    head / OWN, group);
	}
	if (t == 0)
		om_tile_wait();
}

template <int B, int S, int H, int G, int D, int W, bool KEYS, bool DOC, int SECTION, bool KEPT>
OM_DEV void
om_attention_bwd(const om_tensor_map *a0, const om_tensor_map *a1, const om_tensor_map *b0,
    const om_tensor_map *b1, const om_tensor_map *out0, const om_tensor_map *out1,
    const float *stat, uint32_t *counter, float scale, int since, om_bf16 *kept,
    const int32_t *doc = 0)
{
	constexpr int N = OM_AT_STEP(D, KEYS), ST = OM_AT_BWD_STAGES(D, KEYS);
	constexpr bool MOST = D > 64 && om_attention_late<H, G, D, KEYS, DOC>();
	extern __shared__ __align__(1024) uint8_t smem[];
	om_attention_bwd_smem sm;
	sm.base = smem;
	sm.a0 = om_smem(smem);
	sm.a1 = sm.a0 + 256 * D;
	sm.out = sm.a1 + 256 * D;
	sm.b = sm.out + (KEYS ? 512 : 256) * D;
	sm.stat = sm.b + ST * 4 * N * D;
	sm.a_full = sm.stat + (KEYS ? ST * 8 * N : 0);
	sm.a_empty = sm.a_full + 8;
	sm.full = sm.a_empty + 8;
	sm.empty = sm.full + 8 * ST;
	sm.item = (int *)(smem + (sm.empty + 8 * ST - sm.a0));
	const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 1;

	if (threadIdx.x == 0) {
		om_bar_init(sm.a_full, 1);
		om_bar_init(sm.a_empty, 8);
		for (int i = 0; i < ST; i++) {
			om_bar_init(sm.full + 8 * i, 1);
			om_bar_init(sm.empty + 8 * i, 8);
		}
		om_bar_ready();
	}
	__syncthreads();

	if (group < 0) {
		om_registers<MOST ? 24 : 40, false>();
		if (threadIdx.x > 0)
			return;
		om_attention_bwd_load<B, S, H, G, D, W, KEYS, DOC, SECTION>(
		    sm, a0, a1, b0, b1, stat, counter, since, doc);
	} else {
		om_registers<MOST ? 240 : 232, true>();
		om_attention_bwd_rows<B, S, H, G, D, W, KEYS, DOC, SECTION, KEPT>(
		    sm, group, out0, out1, stat, scale, since, kept, doc);
	}
}

#define OM_ATTENTION(NAME, b, s, h, g, d, w, scale)                                                \
	OM_AT_SIZES(b, s, h, g, d, w)                                                              \
	OM_GLOBAL(OM_AT_THREADS(d), 1)                                                             \
	NAME##_x(const __grid_constant__ om_tensor_map q, const __grid_constant__ om_tensor_map k, \
	    const __grid_constant__ om_tensor_map v, const __grid_constant__ om_tensor_map o,      \
	    float *lse, uint32_t *counter)                                                         \
	{                                                                                          \
		om_attention<b, s, h, g, d, OM_AT_MIN(w, s), false>(                               \
		    &q, &k, &v, &o, lse, counter, (float)(scale));                                 \
	}

#define OM_ATTENTION_MASKED(NAME, b, s, h, g, d, w, scale)                                         \
	OM_AT_SIZES(b, s, h, g, d, w)                                                              \
	OM_GLOBAL(OM_AT_THREADS(d), 1)                                                             \
	NAME##_x(const __grid_constant__ om_tensor_map q, const __grid_constant__ om_tensor_map k, \
	    const __grid_constant__ om_tensor_map v, const __grid_constant__ om_tensor_map o,      \
	    float *lse, uint32_t *counter, const int32_t *doc)                                     \
	{                                                                                          \
		om_attention<b, s, h, g, d, OM_AT_MIN(w, s), true>(                                \
		    &q, &k, &v, &o, lse, counter, (float)(scale), doc);                            \
	}

/* behind lse and delta: of a pass, how much is drawn of its work */
#define OM_AT_COUNTER(stat, b, s, h, i) ((uint32_t *)(stat) + 2 * (b) * (h)*OM_AT_PAD(s) + (i))
#define OM_ATTENTION_DELTA(NAME, b, s, h, d)                                               \
	OM_GLOBAL(256, 8)                                                                  \
	NAME##_delta(const om_bf16 *grad, const om_bf16 *o, const float *lse, float *stat) \
	{                                                                                  \
		om_attention_delta<b, s, h, d>(grad, o, lse, stat);                        \
	}

#define OM_ATTENTION_BWD(NAME, b, s, h, g, d, w, scale)                                           \
	OM_AT_SIZES(b, s, h, g, d, w)                                                             \
	OM_ATTENTION_DELTA(NAME, b, s, h, d)                                                      \
	OM_GLOBAL(OM_AT_BWD_THREADS, 1)                                                           \
	NAME##_keys(const __grid_constant__ om_tensor_map k,                                      \
	    const __grid_constant__ om_tensor_map v, const __grid_constant__ om_tensor_map q,     \
	    const __grid_constant__ om_tensor_map grad, const __grid_constant__ om_tensor_map dk, \
	    const __grid_constant__ om_tensor_map dv, float *stat)                                \
	{                                                                                         \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), true, false, b * g, false>(&k,   \
		    &v, &q, &grad, &dk, &dv, stat, OM_AT_COUNTER(stat, b, s, h, 1),               \
		    (float)(scale), 0, 0);                                                        \
	}                                                                                         \
	OM_GLOBAL(OM_AT_BWD_THREADS, 1)                                                           \
	NAME##_queries(const __grid_constant__ om_tensor_map q,                                   \
	    const __grid_constant__ om_tensor_map grad, const __grid_constant__ om_tensor_map k,  \
	    const __grid_constant__ om_tensor_map v, const __grid_constant__ om_tensor_map dq,    \
	    float *stat)                                                                          \
	{                                                                                         \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), false, false, b * h, false>(&q,  \
		    &grad, &k, &v, &dq, 0, stat, OM_AT_COUNTER(stat, b, s, h, 0), (float)(scale), \
		    0, 0);                                                                        \
	}

#define OM_ATTENTION_BWD_MASKED(NAME, b, s, h, g, d, w, scale)                                     \
	OM_AT_SIZES(b, s, h, g, d, w)                                                              \
	OM_ATTENTION_DELTA(NAME, b, s, h, d)                                                       \
	OM_GLOBAL(OM_AT_BWD_THREADS, 1)                                                            \
	NAME##_keys(const __grid_constant__ om_tensor_map k,                                       \
	    const __grid_constant__ om_tensor_map v, const __grid_constant__ om_tensor_map q,      \
	    const __grid_constant__ om_tensor_map grad, const __grid_constant__ om_tensor_map dk,  \
	    const __grid_constant__ om_tensor_map dv, float *stat, const int32_t *doc)             \
	{                                                                                          \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), true, true, b * g, false>(&k, &v, \
		    &q, &grad, &dk, &dv, stat, OM_AT_COUNTER(stat, b, s, h, 1), (float)(scale), 0, \
		    0, doc);                                                                       \
	}                                                                                          \
	OM_GLOBAL(OM_AT_BWD_THREADS, 1)                                                            \
	NAME##_queries(const __grid_constant__ om_tensor_map q,                                    \
	    const __grid_constant__ om_tensor_map grad, const __grid_constant__ om_tensor_map k,   \
	    const __grid_constant__ om_tensor_map v, const __grid_constant__ om_tensor_map dq,     \
	    float *stat, const int32_t *doc)                                                       \
	{                                                                                          \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), false, true, b * h, false>(&q,    \
		    &grad, &k, &v, &dq, 0, stat, OM_AT_COUNTER(stat, b, s, h, 0), (float)(scale),  \
		    0, 0, doc);                                                                    \
	}

#else /* ---- host ---- */

static inline void
om_attention_map(
    struct om_tensor_map *map, const om_bf16 *p, int64_t b, int64_t s, int64_t heads, int64_t d)
{
	const uint64_t row = 2 * (uint64_t)(heads * d);
	const uint64_t dim[] = { (uint64_t)d, (uint64_t)heads, (uint64_t)s, (uint64_t)b };
	const uint64_t stride[] = { 2 * (uint64_t)d, row, row * (uint64_t)s };
	const uint32_t box[] = { OM_AT_CHUNK(d), 1, 64, 1 };
	om_map(map, OM_MAP_BF16, p, 4, dim, stride, box, 2 * OM_AT_CHUNK(d));
}

static inline void
om_attention(const struct om_kernel *x, int64_t b, int64_t s, int64_t h, int64_t g, int64_t d,
    const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, const int32_t *doc, om_bf16 *o,
    float *lse, void *ws)
{
	const int64_t items = b * h * OM_CEIL(s, 64 * OM_AT_GROUPS(d));
	struct om_tensor_map mq, mk, mv, mo;
	om_attention_map(&mq, q, b, s, h, d);
	om_attention_map(&mk, k, b, s, g, d);
	om_attention_map(&mv, v, b, s, g, d);
	om_attention_map(&mo, o, b, s, h, d);
	om_set_zero(ws, sizeof(uint32_t));
	/* a kernel without documents has no last argument */
	OM_LAUNCH(
	    *x, (uint32_t)OM_AT_MIN(items, om_sms()), 1, 1, &mq, &mk, &mv, &mo, &lse, &ws, &doc);
}

static inline void
om_attention_bwd(const struct om_kernel *delta, const struct om_kernel *keys,
    const struct om_kernel *queries, int64_t b, int64_t s, int64_t h, int64_t g, int64_t d,
    const om_bf16 *grad, const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, const om_bf16 *o,
    const float *lse, const int32_t *doc, om_bf16 *dq, om_bf16 *dk, om_bf16 *dv, void *ws)
{
	const int64_t rows = OM_AT_PAD(s), lanes = d > 64 ? 16 : d / 8;
	struct om_tensor_map mgrad, mq, mk, mv, mdq, mdk, mdv;
	om_attention_map(&mgrad, grad, b, s, h, d);
	om_attention_map(&mq, q, b, s, h, d);
	om_attention_map(&mk, k, b, s, g, d);
	om_attention_map(&mv, v, b, s, g, d);
	om_attention_map(&mdq, dq, b, s, h, d);
	om_attention_map(&mdk, dk, b, s, g, d);
	om_attention_map(&mdv, dv, b, s, g, d);
	OM_LAUNCH(*delta, (uint32_t)OM_CEIL(b * h * rows * lanes, 256), 1, 1, &grad, &o, &lse, &ws);
	OM_LAUNCH(*keys, (uint32_t)OM_AT_MIN(b * g * rows / 128, om_sms()), 1, 1, &mk, &mv, &mq,
	    &mgrad, &mdk, &mdv, &ws, &doc);
	OM_LAUNCH(*queries, (uint32_t)OM_AT_MIN(b * h * rows / 128, om_sms()), 1, 1, &mq, &mgrad,
	    &mk, &mv, &mdq, &ws, &doc);
}

#endif
#endif
