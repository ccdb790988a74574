/*
 * The core of attention.h on Hopper's tensor cores.
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

#ifdef __CUDACC__ /* ---- device ---- */

/* ---- barriers in shared memory (mbarrier), and the copy engine (TMA) ---- */

OM_DEV void
om_bar_init(uint32_t bar, int arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals)
		     : "memory");
}

/* Barriers that this thread has made can be used by the copy engine; a block barrier follows. */
OM_DEV void
om_bar_ready(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

OM_DEV void
om_bar_arrive(uint32_t bar)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives, and keeps the phase open until as many bytes have been copied. */
OM_DEV void
om_bar_expect(uint32_t bar, int bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
		     : "memory");
}

/* Waits until the phase of that parity is over: 1 on a new barrier returns at once. */
OM_DEV void
om_bar_wait(uint32_t bar, uint32_t parity)
{
	asm volatile("{ .reg .pred p;\n.reg .u32 n;\n"
		     "mov.u32 n, 0;\n"
		     "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
		     "@p bra done;\n"
		     "add.u32 n, n, 1;\n"
		     "setp.gt.u32 p, n, 16777216;\n"
		     "@p trap;\n" /* after seconds: better an error than a hang */
		     "bra again;\n"
		     "done: }" ::"r"(bar),
		     "r"(parity)
		     : "memory");
}

/* Some of the block's threads, a multiple of 32, meet at one of its named barriers. */
OM_DEV void
om_meet(int name, int threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

OM_DEV void
om_tma_load(uint32_t to, const om_tensor_map *map, uint32_t bar, int x, int y, int z, int u)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
		     " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
		     "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(u)
		     : "memory");
}

OM_DEV void
om_tma_store(const om_tensor_map *map, uint32_t from, int x, int y, int z, int u)
{
	asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group"
		     " [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
		     "r"(from), "r"(x), "r"(y), "r"(z), "r"(u)
		     : "memory");
}

/* A whole number of aligned 16 bytes. */
OM_DEV void
om_bulk_load(uint32_t to, const void *from, int bytes, uint32_t bar)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
		     " [%0], [%1], %2, [%3];" ::"r"(to),
		     "l"(from), "r"(bytes), "r"(bar)
		     : "memory");
}

/* Shared memory that this thread wrote can be read by the copy engine, after a barrier. */
OM_DEV void
om_tma_ready(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* This thread's stores so far are read from shared memory. */
OM_DEV void
om_tma_wait(void)
{
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
	asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* ---- wgmma: c [64, N] (+)= a [64, 16] b [16, N] by the four warps of a warpgroup ---- */

#define OM_4(io, i) io(c[i]), io(c[i + 1]), io(c[i + 2]), io(c[i + 3])
#define OM_16(io, i) OM_4(io, i), OM_4(io, i + 4), OM_4(io, i + 8), OM_4(io, i + 12)
#define OM_T0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define OM_T1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define OM_T2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define OM_T3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
/* A and B by descriptor, both with the sum along rows; add 0: c is overwritten */
#define OM_WGMMA(N, TEXT, ADD, A, B, ...)                                                   \
	asm volatile("{ .reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                        \
		     "wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" TEXT "}, " \
		     "%" A ", %" B ", p, 1, 1, 0, 0; }"                                     \
		     : __VA_ARGS__                                                          \
		     : "l"(a), "l"(b))
/* A in registers, B by descriptor with the sum along columns; c is added to */
#define OM_WGMMA_R(N, TEXT, A0, A1, A2, A3, B, ...)                                         \
	asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" TEXT "}, " \
		     "{%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B ", 1, 1, 1, 1;"            \
		     : __VA_ARGS__                                                          \
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

template <int N, bool ADD>
OM_DEV void
om_wgmma(float *c, uint64_t a, uint64_t b)
{
	if constexpr (N == 64 && ADD)
		OM_WGMMA("64", OM_T0 "," OM_T1, "1", "32", "33", OM_16("+f", 0), OM_16("+f", 16));
	else if constexpr (N == 64)
		OM_WGMMA("64", OM_T0 "," OM_T1, "0", "32", "33", OM_16("=f", 0), OM_16("=f", 16));
	else if constexpr (ADD)
		OM_WGMMA("128", OM_T0 "," OM_T1 "," OM_T2 "," OM_T3, "1", "64", "65",
		    OM_16("+f", 0), OM_16("+f", 16), OM_16("+f", 32), OM_16("+f", 48));
	else
		OM_WGMMA("128", OM_T0 "," OM_T1 "," OM_T2 "," OM_T3, "0", "64", "65",
		    OM_16("=f", 0), OM_16("=f", 16), OM_16("=f", 32), OM_16("=f", 48));
}

template <int N>
OM_DEV void
om_wgmma_r(float *c, const uint32_t *a, uint64_t b)
{
	if constexpr (N == 32)
		OM_WGMMA_R("32", OM_T0, "16", "17", "18", "19", "20", OM_16("+f", 0));
	else if constexpr (N == 64)
		OM_WGMMA_R("64", OM_T0 "," OM_T1, "32", "33", "34", "35", "36", OM_16("+f", 0),
		    OM_16("+f", 16));
	else if constexpr (N == 96)
		OM_WGMMA_R("96", OM_T0 "," OM_T1 "," OM_T2, "48", "49", "50", "51", "52",
		    OM_16("+f", 0), OM_16("+f", 16), OM_16("+f", 32));
	else
		OM_WGMMA_R("128", OM_T0 "," OM_T1 "," OM_T2 "," OM_T3, "64", "65", "66", "67", "68",
		    OM_16("+f", 0), OM_16("+f", 16), OM_16("+f", 32), OM_16("+f", 48));
}

/* Registers written so far are seen by the wgmmas that follow. */
template <int N>
OM_DEV void
om_wgmma_begin(uint32_t (&a)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+r"(a[i])::"memory");
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

OM_DEV void
om_wgmma_begin(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

OM_DEV void
om_wgmma_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* All but the last LEFT groups are done, c among them: no use of c moves up before this. */
template <int LEFT, int N>
OM_DEV void
om_wgmma_wait(float (&c)[N])
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(c[i])::"memory");
}

template <int REGISTERS, bool MORE>
OM_DEV void
om_registers(void)
{
	if constexpr (MORE)
		asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
	else
		asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

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

/* A descriptor of an operand at an address: bytes between chunks and between 8 rows. */
template <int C>
OM_DEV uint64_t
om_operand(uint32_t at, int chunk)
{
	const uint64_t rows8 = 16 * C, swizzle = C == 64 ? 1 : 2;
	return (uint64_t)(at >> 4) | (uint64_t)(chunk >> 4) << 16 | rows8 >> 4 << 32 |
	       swizzle << 62;
}

/* c [64, N] = a b^T: a 64 rows of a tile of A_ROWS rows, from the address on, b a tile [N, D] */
template <int D, int N, int A_ROWS>
OM_DEV void
om_product_t(float *c, uint32_t a, uint32_t b)
{
	constexpr int C = OM_AT_CHUNK(D);
	const uint64_t da = om_operand<C>(a, 16), db = om_operand<C>(b, 16);
#pragma unroll
	for (int k = 0; k < D; k += 16) {
		const uint64_t ka = da + (2 * (k / C * C * A_ROWS + k % C) >> 4);
		const uint64_t kb = db + (2 * (k / C * C * N + k % C) >> 4);
		if (k == 0)
			om_wgmma<N, false>(c, ka, kb);
		else
			om_wgmma<N, true>(c, ka, kb);
	}
}

/* c [64, D] += a b: a [64, N] in registers, b a tile [N, D] */
template <int D, int N>
OM_DEV void
om_product(float *c, const uint32_t *a, uint32_t b)
{
	constexpr int C = OM_AT_CHUNK(D);
	const uint64_t db = om_operand<C>(b, 2 * N * C);
#pragma unroll
	for (int k = 0; k < N; k += 16)
		om_wgmma_r<D>(c, a + k / 4, db + (2 * k * C >> 4));
}

/* Four matrices of 8 x 8 bf16; lane i has the address of row i % 8 of matrix i / 8. */
OM_DEV void
om_stmatrix(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
		     "r"(a), "r"(b), "r"(c), "r"(d)
		     : "memory");
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
		om_tma_wait();
	om_meet(group + 1, 128);
#pragma unroll
	for (int k = 0; k < D; k += 16) {
		const int unit = (k % C / 8 + half) ^ (C == 64 ? r % 8 : r / 2 % 4);
		const float *x = c + k / 2;
		om_stmatrix(at + k / C * 128 * C + 2 * r * C + 16 * unit,
		    om_pack(x[0] * f0, x[1] * f0), om_pack(x[2] * f1, x[3] * f1),
		    om_pack(x[4] * f0, x[5] * f0), om_pack(x[6] * f1, x[7] * f1));
	}
	om_tma_ready();
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

/* ---- forward ---- */

template <int B, int S, int H, int G, int D, int W>
OM_DEV void
om_attention(const om_tensor_map *q, const om_tensor_map *k, const om_tensor_map *v,
    const om_tensor_map *o, float *lse, uint32_t *counter, float scale)
{
	constexpr int GROUPS = OM_AT_GROUPS(D), ST = OM_AT_STAGES(D), C = OM_AT_CHUNK(D);
	constexpr int ROWS = 64 * GROUPS, N = 128, TILES = OM_CEIL(S, ROWS), ITEMS = TILES * B * H;
	constexpr int64_t BYTES = OM_CEIL((int64_t)4 * S * D, H / G);
	extern __shared__ __align__(1024) uint8_t smem[];
	const uint32_t sq = (uint32_t)__cvta_generic_to_shared(smem), so = sq + 2 * ROWS * D;
	const uint32_t sk = so + 2 * ROWS * D, sv = sk + ST * 2 * N * D, bars = sv + ST * 2 * N * D;
	const uint32_t q_full = bars, q_empty = bars + 8, k_full = bars + 16,
		       k_empty = k_full + 8 * ST;
	const uint32_t v_full = k_empty + 8 * ST, v_empty = v_full + 8 * ST;
	volatile int *const shared_item = (int *)(smem + (v_empty + 8 * ST - sq));
	const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 1;
	int item, tile, head;

	if (threadIdx.x == 0) {
		om_bar_init(q_full, 1);
		om_bar_init(q_empty, 4 * GROUPS);
		for (int i = 0; i < ST; i++) {
			om_bar_init(k_full + 8 * i, 1);
			om_bar_init(v_full + 8 * i, 1);
			om_bar_init(k_empty + 8 * i, 4 * GROUPS);
			om_bar_init(v_empty + 8 * i, 4 * GROUPS);
		}
		om_bar_ready();
	}
	__syncthreads();

	if (group < 0) {
		om_registers<GROUPS == 2 ? 24 : 32, false>();
		if (threadIdx.x > 0)
			return;
		uint32_t at = 0, turn = 0;
		item = (int)blockIdx.x;
		for (int n = 0;; n++) {
			const int next = (int)(gridDim.x + atomicAdd(counter, 1));
			om_bar_wait(q_empty, (n & 1) ^ 1);
			*shared_item = item;
			if (item >= ITEMS) {
				om_bar_arrive(q_full);
				return;
			}
			om_item<B * H, TILES, BYTES>(item, &tile, &head);
			const int row = (TILES - 1 - tile) * ROWS, seq = head / H, hh = head % H;
			om_bar_expect(q_full, 2 * ROWS * D);
			om_tile_load<D, ROWS>(sq, q, q_full, hh, row, seq);
			for (int j = (min(S, row + ROWS) - 1) / N; j >= max(0, row - W + 1) / N;
			     j--) {
				om_bar_wait(k_empty + 8 * at, turn ^ 1);
				om_bar_expect(k_full + 8 * at, 2 * N * D);
				om_tile_load<D, N>(sk + at * 2 * N * D, k, k_full + 8 * at,
				    hh / (H / G), j * N, seq);
				om_bar_wait(v_empty + 8 * at, turn ^ 1);
				om_bar_expect(v_full + 8 * at, 2 * N * D);
				om_tile_load<D, N>(sv + at * 2 * N * D, v, v_full + 8 * at,
				    hh / (H / G), j * N, seq);
				om_next<ST>(&at, &turn);
			}
			item = next;
		}
	} else {
		om_registers<GROUPS == 2 ? 240 : 160, true>();
		const int t = threadIdx.x % 128, lane = t % 32;
		const float c = scale * 1.44269504088896341f;
		/* of k, and of v, which is a step behind */
		uint32_t at = 0, turn = 0, v_at = 0, v_turn = 0;

		for (int n = 0;; n++) {
			om_bar_wait(q_full, n & 1);
			item = *shared_item;
			if (item >= ITEMS)
				break;
			om_item<B * H, TILES, BYTES>(item, &tile, &head);
			const int row = (TILES - 1 - tile) * ROWS + 64 * group, seq = head / H;
			const int mine = row + t / 32 * 16 + lane / 4;
			const uint32_t a = sq + 128 * group * C;
			/*
			 * Steps of the block, and of them those of this warpgroup. It waits for
			 * the others' tiles too before it gives them back: a barrier's parity
			 * tells only two turns of the ring apart, and who left one out could take
			 * the turn before for the next.
			 */
			const int last = (min(S, (TILES - tile) * ROWS) - 1) / N;
			const int first = max(0, (TILES - 1 - tile) * ROWS - W + 1) / N;
			const int to = (min(S, row + 64) - 1) / N;
			const int from = min(to, max(0, row - W + 1) / N);
			float out[D / 2], top[2], sum[2] = { 0, 0 }, shrink[2];
			uint32_t p[N / 4];

			for (int j = last; j > to; j--) {
				om_bar_wait(k_full + 8 * at, turn);
				om_bar_wait(v_full + 8 * at, turn);
				if (lane == 0) {
					om_bar_arrive(k_empty + 8 * at);
					om_bar_arrive(v_empty + 8 * at);
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
				om_bar_wait(k_full + 8 * at, turn);
				om_wgmma_begin();
				om_product_t<D, N, ROWS>(s, a, sk + at * 2 * N * D);
				om_wgmma_commit();
				om_wgmma_wait<0>(s);
				if (lane == 0)
					om_bar_arrive(k_empty + 8 * at);
				om_next<ST>(&at, &turn);
				om_mask<N, W, false>(s, mine - to * N - lane % 4 * 2);
				om_softmax<N>(s, c, top, sum, shrink);
				om_cut<N>(p, s);
			}
			for (int j = to - 1; j >= from; j--) {
				float s[N / 2];
				om_bar_wait(v_full + 8 * v_at, v_turn);
				om_bar_wait(k_full + 8 * at, turn);
				om_wgmma_begin(p);
				om_product_t<D, N, ROWS>(s, a, sk + at * 2 * N * D);
				om_wgmma_commit();
				om_product<D, N>(out, p, sv + v_at * 2 * N * D);
				om_wgmma_commit();
				om_wgmma_wait<1>(s);
				if (lane == 0)
					om_bar_arrive(k_empty + 8 * at);
				om_next<ST>(&at, &turn);
				if (j * N + N - 1 > row || row + 63 - j * N >= W)
					om_mask<N, W, false>(s, mine - j * N - lane % 4 * 2);
				om_softmax<N>(s, c, top, sum, shrink);
				om_wgmma_wait<0>(out);
				if (lane == 0)
					om_bar_arrive(v_empty + 8 * v_at);
				om_next<ST>(&v_at, &v_turn);
#pragma unroll
				for (int i = 0; i < D / 2; i++)
					out[i] *= shrink[i / 2 % 2];
				om_cut<N>(p, s);
			}
			if (lane == 0)
				om_bar_arrive(q_empty);

			om_bar_wait(v_full + 8 * v_at, v_turn);
			om_wgmma_begin(p);
			om_product<D, N>(out, p, sv + v_at * 2 * N * D);
			om_wgmma_commit();
#pragma unroll
			for (int r = 0; r < 2; r++) {
				sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
				sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
				if (lane % 4 == 0 && mine + 8 * r < S)
					lse[(int64_t)head * S + mine + 8 * r] =
					    0.693147180559945309f * (top[r] * c + __log2f(sum[r]));
			}
			om_wgmma_wait<0>(out);
			if (lane == 0)
				om_bar_arrive(v_empty + 8 * v_at);
			for (int j = from - 1; j >= first; j--) {
				om_bar_wait(k_full + 8 * at, turn);
				om_bar_wait(v_full + 8 * at, turn);
				if (lane == 0) {
					om_bar_arrive(k_empty + 8 * at);
					om_bar_arrive(v_empty + 8 * at);
				}
				om_next<ST>(&at, &turn);
			}
			om_tile_store<D>(out, 1 / sum[0], 1 / sum[1], so + 128 * group * D, o,
			    head % H, row, seq, group);
		}
		if (t == 0)
			om_tma_wait();
	}
}

/* ---- backward ---- */

template <int B, int S, int H, int G, int D, int W, bool KEYS>
OM_DEV void
om_attention_bwd(const om_tensor_map *a0, const om_tensor_map *a1, const om_tensor_map *b0,
    const om_tensor_map *b1, const om_tensor_map *out0, const om_tensor_map *out1, float *stat,
    float scale)
{
	constexpr int N = OM_AT_STEP(D, KEYS), ST = OM_AT_BWD_STAGES(D, KEYS), C = OM_AT_CHUNK(D);
	constexpr int PAD = OM_AT_PAD(S), TILES = PAD / 128, STATS = B * H * PAD;
	/* heads of the rows that stay; query heads that they meet, one after the other */
	constexpr int OWN = KEYS ? G : H, MET = KEYS ? H / G : 1, ITEMS = B * OWN * TILES;
	constexpr int64_t BYTES = (int64_t)4 * S * D * MET;
	extern __shared__ __align__(1024) uint8_t smem[];
	const uint32_t sa0 = (uint32_t)__cvta_generic_to_shared(smem), sa1 = sa0 + 256 * D;
	const uint32_t so = sa1 + 256 * D, sb = so + (KEYS ? 512 : 256) * D;
	const uint32_t ss = sb + ST * 4 * N * D, bars = ss + (KEYS ? ST * 8 * N : 0);
	const uint32_t a_full = bars, a_empty = bars + 8, full = bars + 16, empty = full + 8 * ST;
	volatile int *const shared_item = (int *)(smem + (empty + 8 * ST - sa0));
	const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 1;
	uint32_t at = 0, turn = 0;
	int item, tile, head;

	if (threadIdx.x == 0) {
		om_bar_init(a_full, 1);
		om_bar_init(a_empty, 8);
		for (int i = 0; i < ST; i++) {
			om_bar_init(full + 8 * i, 1);
			om_bar_init(empty + 8 * i, 8);
		}
		om_bar_ready();
	}
	__syncthreads();

	if (group < 0) {
		om_registers<40, false>();
		if (threadIdx.x > 0)
			return;
		item = (int)blockIdx.x;
		for (int n = 0;; n++) {
			const int next =
			    (int)(gridDim.x + atomicAdd((uint32_t *)stat + 2 * STATS + KEYS, 1));
			om_bar_wait(a_empty, (n & 1) ^ 1);
			*shared_item = item;
			if (item >= ITEMS) {
				om_bar_arrive(a_full);
				return;
			}
			om_item<B * OWN, TILES, BYTES>(item, &tile, &head);
			const int row = 128 * (KEYS ? tile : TILES - 1 - tile);
			const int seq = head / OWN, hh = head % OWN;
			om_bar_expect(a_full, 512 * D);
			om_tile_load<D, 128>(sa0, a0, a_full, hh, row, seq);
			om_tile_load<D, 128>(sa1, a1, a_full, hh, row, seq);
			const int from = (KEYS ? row : max(0, row - W + 1)) / N;
			const int to = (min(S, KEYS ? row + 127 + W : row + 128) - 1) / N;
			for (int i = 0; i < MET; i++)
				for (int j = from; j <= to; j++) {
					const int other = KEYS ? hh * MET + i : hh / (H / G);
					const uint32_t bar = full + 8 * at, b = sb + at * 4 * N * D;
					om_bar_wait(empty + 8 * at, turn ^ 1);
					om_bar_expect(bar, 4 * N * D + (KEYS ? 8 * N : 0));
					om_tile_load<D, N>(b, b0, bar, other, j * N, seq);
					om_tile_load<D, N>(
					    b + 2 * N * D, b1, bar, other, j * N, seq);
					if (KEYS) {
						const float *x =
						    stat + (seq * H + other) * PAD + j * N;
						const uint32_t y = ss + at * 8 * N;
						om_bulk_load(y, x, 4 * N, bar);
						om_bulk_load(y + 4 * N, x + STATS, 4 * N, bar);
					}
					om_next<ST>(&at, &turn);
				}
			item = next;
		}
	} else {
		om_registers<232, true>();
		const int t = threadIdx.x % 128, lane = t % 32;
		const float c = scale * 1.44269504088896341f;
		const uint32_t a = 128 * group * C;

		for (int n = 0;; n++) {
			om_bar_wait(a_full, n & 1);
			item = *shared_item;
			if (item >= ITEMS)
				break;
			om_item<B * OWN, TILES, BYTES>(item, &tile, &head);
			const int row = 128 * (KEYS ? tile : TILES - 1 - tile),
				  first = row + 64 * group;
			const int mine = first + t / 32 * 16 + lane / 4;
			/* steps: queries that see a key of the tile, keys that its queries see */
			const int from = (KEYS ? row : max(0, row - W + 1)) / N;
			const int to = (min(S, KEYS ? row + 127 + W : row + 128) - 1) / N;
			float acc0[D / 2], acc1[KEYS ? D / 2 : 1], lse[2], delta[2];

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
			for (int i = 0, j = from; i < MET;
			     i += j == to, j = j == to ? from : j + 1) {
				/* the first query is ahead of the first key; the last of each */
				const int ahead = KEYS ? j * N - first : first - j * N;
				const int query = KEYS ? N - 1 : 63, key = KEYS ? 63 : N - 1;
				const uint32_t tb0 = sb + at * 4 * N * D, tb1 = tb0 + 2 * N * D;
				/* column statistics of this thread: two of every 8 */
				const float2 *cl =
				    (const float2 *)(smem + (ss + at * 8 * N - sa0) + lane % 4 * 8);
				om_bar_wait(full + 8 * at, turn);
				if (ahead + query >= 0 && ahead - key < W) {
					float s[N / 2], ds[N / 2];
					uint32_t p[N / 4], x[N / 4];
					om_wgmma_begin();
					om_product_t<D, N, 128>(s, sa0 + a, tb0);
					om_wgmma_commit();
					om_product_t<D, N, 128>(ds, sa1 + a, tb1);
					om_wgmma_commit();
					om_wgmma_wait<1>(s);
					if (ahead < key || ahead + query >= W)
						om_mask<N, W, KEYS>(
						    s, KEYS ? j * N + lane % 4 * 2 - mine
							    : mine - j * N - lane % 4 * 2);
#pragma unroll
					for (int e = 0; e < N / 2; e += 4) {
						if constexpr (KEYS)
							lse[0] = cl[e].x, lse[1] = cl[e].y;
						s[e] = om_exp2(s[e] * c - lse[0]);
						s[e + 1] = om_exp2(s[e + 1] * c - lse[KEYS]);
						s[e + 2] = om_exp2(s[e + 2] * c - lse[!KEYS]);
						s[e + 3] = om_exp2(s[e + 3] * c - lse[1]);
					}
					if constexpr (KEYS) {
						om_cut<N>(p, s);
						om_wgmma_begin(p);
						om_product<D, N>(acc1, p, tb1);
						om_wgmma_commit();
					}
					om_wgmma_wait<KEYS>(ds);
#pragma unroll
					for (int e = 0; e < N / 2; e += 4) {
						if constexpr (KEYS)
							delta[0] = cl[N / 2 + e].x,
							delta[1] = cl[N / 2 + e].y;
						ds[e] = s[e] * (ds[e] - delta[0]);
						ds[e + 1] = s[e + 1] * (ds[e + 1] - delta[KEYS]);
						ds[e + 2] = s[e + 2] * (ds[e + 2] - delta[!KEYS]);
						ds[e + 3] = s[e + 3] * (ds[e + 3] - delta[1]);
					}
					om_cut<N>(x, ds);
					om_wgmma_begin(x);
					om_product<D, N>(acc0, x, tb0);
					om_wgmma_commit();
					if constexpr (KEYS)
						om_wgmma_wait<0>(acc1);
					om_wgmma_wait<0>(acc0);
				}
				if (lane == 0)
					om_bar_arrive(empty + 8 * at);
				om_next<ST>(&at, &turn);
			}
			if (lane == 0)
				om_bar_arrive(a_empty);
			const uint32_t place = so + (KEYS ? 256 : 128) * group * D;
			om_tile_store<D>(
			    acc0, scale, scale, place, out0, head % OWN, first, head / OWN, group);
			if constexpr (KEYS)
				om_tile_store<D>(acc1, 1, 1, place + 128 * D, out1, head % OWN,
				    first, head / OWN, group);
		}
		if (t == 0)
			om_tma_wait();
	}
}

#define OM_ATTENTION(NAME, b, s, h, g, d, w, scale)                                                \
	OM_AT_SIZES(b, s, h, g, d, w)                                                              \
	OM_GLOBAL(OM_AT_THREADS(d), 1)                                                             \
	NAME##_x(const __grid_constant__ om_tensor_map q, const __grid_constant__ om_tensor_map k, \
	    const __grid_constant__ om_tensor_map v, const __grid_constant__ om_tensor_map o,      \
	    float *lse, uint32_t *counter)                                                         \
	{                                                                                          \
		om_attention<b, s, h, g, d, OM_AT_MIN(w, s)>(                                      \
		    &q, &k, &v, &o, lse, counter, (float)(scale));                                 \
	}

#define OM_ATTENTION_BWD(NAME, b, s, h, g, d, w, scale)                                           \
	OM_AT_SIZES(b, s, h, g, d, w)                                                             \
	OM_GLOBAL(256, 8)                                                                         \
	NAME##_delta(const om_bf16 *grad, const om_bf16 *o, const float *lse, float *stat)        \
	{                                                                                         \
		om_attention_delta<b, s, h, d>(grad, o, lse, stat);                               \
	}                                                                                         \
	OM_GLOBAL(OM_AT_BWD_THREADS, 1)                                                           \
	NAME##_keys(const __grid_constant__ om_tensor_map k,                                      \
	    const __grid_constant__ om_tensor_map v, const __grid_constant__ om_tensor_map q,     \
	    const __grid_constant__ om_tensor_map grad, const __grid_constant__ om_tensor_map dk, \
	    const __grid_constant__ om_tensor_map dv, float *stat)                                \
	{                                                                                         \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), true>(                           \
		    &k, &v, &q, &grad, &dk, &dv, stat, (float)(scale));                           \
	}                                                                                         \
	OM_GLOBAL(OM_AT_BWD_THREADS, 1)                                                           \
	NAME##_queries(const __grid_constant__ om_tensor_map q,                                   \
	    const __grid_constant__ om_tensor_map grad, const __grid_constant__ om_tensor_map k,  \
	    const __grid_constant__ om_tensor_map v, const __grid_constant__ om_tensor_map dq,    \
	    float *stat)                                                                          \
	{                                                                                         \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), false>(                          \
		    &q, &grad, &k, &v, &dq, 0, stat, (float)(scale));                             \
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
    const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, om_bf16 *o, float *lse, void *ws)
{
	const int64_t items = b * h * OM_CEIL(s, 64 * OM_AT_GROUPS(d));
	struct om_tensor_map mq, mk, mv, mo;
	om_attention_map(&mq, q, b, s, h, d);
	om_attention_map(&mk, k, b, s, g, d);
	om_attention_map(&mv, v, b, s, g, d);
	om_attention_map(&mo, o, b, s, h, d);
	om_set_zero(ws, sizeof(uint32_t));
	OM_LAUNCH(*x, (uint32_t)OM_AT_MIN(items, om_sms()), 1, 1, &mq, &mk, &mv, &mo, &lse, &ws);
}

static inline void
om_attention_bwd(const struct om_kernel *delta, const struct om_kernel *keys,
    const struct om_kernel *queries, int64_t b, int64_t s, int64_t h, int64_t g, int64_t d,
    const om_bf16 *grad, const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, const om_bf16 *o,
    const float *lse, om_bf16 *dq, om_bf16 *dk, om_bf16 *dv, void *ws)
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
	    &mgrad, &mdk, &mdv, &ws);
	OM_LAUNCH(*queries, (uint32_t)OM_AT_MIN(b * h * rows / 128, om_sms()), 1, 1, &mq, &mgrad,
	    &mk, &mv, &mdq, &ws);
}

#endif
#endif
