/*
 * gemm.h's product on Hopper (sm_90a): wgmma and TMA.
 *
 * A block has a multiprocessor to itself and walks over tiles of C, 128 rows by 64, 128 or 256. One
 * thread, the producer, has the copy engine (TMA) bring slabs of A and B, 64 deep, into a ring of
 * stages. Two consumers, of four warps each, multiply 64 rows each by wgmma; the sums stay in
 * registers. full[i] tells the consumers that stage i has arrived, empty[i] the producer that both
 * have read it. So the producer runs ahead, during the consumers' epilogue too, and while one
 * consumer waits for its products the other's keep the tensor cores busy. This is the form of
 * CUTLASS' warp-specialised kernels and of DeepGEMM.
 *
 * A stage consists of rows of 128 bytes in the 128-byte swizzle, which TMA writes and wgmma undoes.
 * An operand stored along k fills it with one box, 64 k of one m (n) a row; a transposed one with
 * boxes of 64 by 64, 64 m (n) of one k a row. Sizes need not divide anything: beyond the ends TMA
 * reads zeros and writes nothing.
 *
 * The epilogue lays out a warp's 16 rows in shared memory and has the copy engine store them, or
 * add them to C, while the warp continues. An element of C gets no other addition in the launch, so
 * that the result does not depend on timing. Nor does it on which block computes a tile.
 */
#ifndef OM_GEMM_SM90_H
#define OM_GEMM_SM90_H

#include "sm90.h"

#define OM_GEMM_THREADS 384 /* two consumers of 128, and the producer in a third group */

/*
 * Shared memory: the stages; for each consumer warp, up to two boxes of 16 rows by 128 bytes of
 * output; barriers; off, and the groups in order of size.
 */
#define OM_GEMM_STAGE(width) ((OM_GEMM_M + (width)) * OM_GEMM_K * 2)
#define OM_GEMM_BOX 2048
#define OM_GEMM_BOXES(type, width) ((width) * sizeof(type) > 128 ? 2 : 1)
#define OM_GEMM_REST(type, width, g) \
	(8 * OM_GEMM_BOXES(type, width) * OM_GEMM_BOX + 128 + (2 * (g) + 1) * 4)
#define OM_GEMM_FIT(type, width, g) \
	((OM_GEMM_SMEM_MAX - OM_GEMM_REST(type, width, g)) / OM_GEMM_STAGE(width))
#define OM_GEMM_STAGES(type, width, g) OM_GEMM_LESS(OM_GEMM_FIT(type, width, g), 8)
#define OM_GEMM_SMEM(type, width, g) \
	(OM_GEMM_STAGES(type, width, g) * OM_GEMM_STAGE(width) + OM_GEMM_REST(type, width, g))

#ifdef __CUDACC__

#define OM_GEMM(NAME, type, add, groups, G, M, N, K, width, at, bt, planes, pad)      \
	OM_GLOBAL(OM_GEMM_THREADS, 1)                                                 \
	NAME(const __grid_constant__ om_tensor_map map_a,                             \
	    const __grid_constant__ om_tensor_map map_b,                              \
	    const __grid_constant__ om_tensor_map map_c, type *c, const int32_t *off) \
	{                                                                             \
		om_gemm<type, add, groups, G, M, N, K, width, at, bt, planes, pad>(   \
		    &map_a, &map_b, &map_c, c, off);                                  \
	}

/* ---- the producer ---- */

/* WIDTH rows (m or n) by 64 k into a stage */
template <int WIDTH, int TRANSPOSED>
OM_DEV void
om_gemm_load(uint32_t smem, const om_tensor_map *map, uint32_t bar, int row, int k, int plane)
{
	if constexpr (TRANSPOSED) {
#pragma unroll
		for (int i = 0; i < WIDTH; i += 64)
			om_tma_load(smem + i * 128, map, bar, row + i, k, plane);
	} else
		om_tma_load(smem, map, bar, k, row, plane);
}

/* ---- the epilogue ---- */

OM_DEV void
om_store2(uint32_t smem, float x, float y)
{
	asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(smem), "f"(x), "f"(y) : "memory");
}

OM_DEV void
om_zero16(uint32_t smem)
{
	asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(smem), "r"(0) : "memory");
}

OM_DEV void
om_gemm_put(float *c, float x)
{
	*c = x;
}

OM_DEV void
om_gemm_put(om_bf16 *c, float x)
{
	*c = om_round(x);
}

/*
 * A warp's 16 rows of the tile into c, of which rows and cols exist, where boxes won't do. Of each
 * 8 columns lane l holds the two from l % 4 * 2 on, in rows l / 4 and l / 4 + 8.
 */
template <typename T, int PITCH, int WIDTH>
OM_DEV void
om_gemm_store_odd(const float (&d)[WIDTH / 2], T *c, int rows, int cols)
{
	const int lane = threadIdx.x % 32;
#pragma unroll
	for (int i = 0; i < WIDTH / 2; i++) {
		const int row = lane / 4 + i % 4 / 2 * 8, col = i / 4 * 8 + lane % 4 * 2 + i % 2;
		if (row < rows && col < cols)
			om_gemm_put(c + (int64_t)row * PITCH + col, d[i]);
	}
}

/*
 * The same through boxes, to column x and row y of plane z. Boxes are swizzled as stages are: the
 * 16 bytes i of row r are at i ^ r % 8, so that what is written at once is in different banks.
 */
template <typename T, int ADD, int WIDTH>
OM_DEV void
om_gemm_store(const float (&d)[WIDTH / 2], const om_tensor_map *map, int x, int y, int z, int cols,
    uint32_t smem)
{
	constexpr int BOXES = OM_GEMM_BOXES(T, WIDTH), COLS = 128 / sizeof(T);
	const int lane = threadIdx.x % 32;

#pragma unroll
	for (int at = 0; at < WIDTH; at += BOXES * COLS) {
		om_bulk_wait_read();
		__syncwarp();
#pragma unroll
		for (int j = at / 8; j < at / 8 + BOXES * COLS / 8; j += 2) {
			const float *p = d + j * 4, *q = p + 4;
			const uint32_t box = smem + (j * 8 - at) / COLS * OM_GEMM_BOX;
			if constexpr (sizeof(T) == 2) {
				const int chunk = lane / 16 ^ lane % 8;
				om_stmatrix(box + lane % 16 * 128 + (chunk ^ j % 8) * 16,
				    om_pack(p[0], p[1]), om_pack(p[2], p[3]), om_pack(q[0], q[1]),
				    om_pack(q[2], q[3]));
			} else {
				const int chunk = lane % 4 / 2 ^ lane / 4;
				const uint32_t row = box + lane / 4 * 128 + lane % 2 * 8;
				om_store2(row + (chunk ^ j % 4 * 2) * 16, p[0], p[1]);
				om_store2(row + (chunk ^ j % 4 * 2) * 16 + 1024, p[2], p[3]);
				om_store2(row + (chunk ^ j % 4 * 2 + 2) * 16, q[0], q[1]);
				om_store2(row + (chunk ^ j % 4 * 2 + 2) * 16 + 1024, q[2], q[3]);
			}
		}
		om_fence_async();
		__syncwarp();
		if (lane == 0)
#pragma unroll
			for (int i = 0; i < BOXES; i++) {
				if (at + i * COLS >= cols)
					break;
				if constexpr (ADD)
					om_tma_add(
					    map, smem + i * OM_GEMM_BOX, x + at + i * COLS, y, z);
				else
					om_tma_store(
					    map, smem + i * OM_GEMM_BOX, x + at + i * COLS, y, z);
			}
		om_bulk_commit();
	}
}

/* Both consumers clear a stage of boxes from row `tail` of each on. */
template <int STAGE>
OM_DEV void
om_gemm_clear(uint32_t stage, int tail)
{
#pragma unroll 1
	for (int box = 0; box < STAGE; box += 64 * 128)
#pragma unroll 1
		for (int i = tail * 8 + threadIdx.x; i < 64 * 8; i += 256)
			om_zero16(stage + box + i * 16);
	om_fence_async();
	om_meet(1, 256);
}

/* ---- the kernel ---- */

template <typename T, int ADD, int GROUPS, int G, int M, int N, int K, int WIDTH, int AT, int BT,
    int PLANES, int PAD>
OM_DEV void
om_gemm(const om_tensor_map *map_a, const om_tensor_map *map_b, const om_tensor_map *map_c, T *c,
    const int32_t *off)
{
	constexpr bool offsets = GROUPS == OM_GEMM_ROWS || GROUPS == OM_GEMM_SUMS;
	constexpr int kept = offsets ? G : 0;
	constexpr int STAGES = OM_GEMM_STAGES(T, WIDTH, kept), STAGE = OM_GEMM_STAGE(WIDTH);
	constexpr int B_AT = OM_GEMM_M * OM_GEMM_K * 2;
	constexpr int BOXES = OM_GEMM_BOXES(T, WIDTH) * OM_GEMM_BOX;
	static_assert(STAGES >= 2, "the offsets leave no room for stages");
	static_assert(GROUPS != OM_GEMM_SUMS || (AT && BT && PLANES == 1), "sums over rows");
	constexpr int PITCH = OM_GEMM_PITCH(N, PAD);
	constexpr bool ROUND = PITCH * sizeof(T) % 16 == 0;
	static_assert(ADD ? ROUND && sizeof(T) == 4 : ROUND || sizeof(T) == 4, "rows of C");

	extern __shared__ __align__(1024) char om_gemm_smem[];
	const uint32_t smem = om_smem(om_gemm_smem), boxes_at = smem + STAGES * STAGE;
	const uint32_t full = boxes_at + 8 * BOXES, empty = full + 64;
	int32_t *s_off = (int32_t *)(om_gemm_smem + STAGES * STAGE + 8 * BOXES + 128);
	int32_t *s_order = s_off + G + 1;
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);

	if (threadIdx.x == 0) {
		for (int i = 0; i < STAGES; i++) {
			om_bar_init(full + i * 8, 1);
			om_bar_init(empty + i * 8, 8);
		}
		om_bar_ready();
	}
	for (int i = threadIdx.x; offsets && i <= G; i += OM_GEMM_THREADS)
		s_off[i] = off[i];
	__syncthreads();
	if (GROUPS == OM_GEMM_SUMS)
		om_gemm_order<G, OM_GEMM_THREADS>(s_off, s_order);
	if constexpr (GROUPS == OM_GEMM_SUMS && !ADD)
		om_gemm_zero<G, (int64_t)M * N, OM_GEMM_THREADS>(s_off, c);

	om_gemm_tile t = { 0 };
	int stage = 0, phase = 0;
	if (warp >= 8) {
		om_registers<40, false>();
		if (threadIdx.x != 256)
			return;
		while (om_gemm_next<GROUPS, G, M, N, K, WIDTH, PLANES>(t, s_off, s_order)) {
#pragma unroll 1
			for (int i = 0; i < t.slabs; i++) {
				const uint32_t to = smem + stage * STAGE, bar = full + stage * 8;
				const int k = t.k + i / PLANES * OM_GEMM_K;
				om_bar_wait(empty + stage * 8, phase ^ 1);
				om_bar_expect(bar, STAGE);
				om_gemm_load<OM_GEMM_M, AT>(
				    to, map_a, bar, t.first + t.row, k, i % PLANES);
				om_gemm_load<WIDTH, BT>(to + B_AT, map_b, bar, t.col, k,
				    GROUPS == OM_GEMM_ROWS ? t.group : 0);
				if (++stage == STAGES)
					stage = 0, phase ^= 1;
			}
		}
		return;
	}

	om_registers<232, true>();
	const bool leader = threadIdx.x % 32 == 0;
	const int half = warp / 4 * 64; /* the group's rows of the tile */
	while (om_gemm_next<GROUPS, G, M, N, K, WIDTH, PLANES>(t, s_off, s_order)) {
		float d[WIDTH / 2];
		if (GROUPS == OM_GEMM_SUMS && t.slabs == 0)
			continue;
		if (GROUPS != OM_GEMM_SUMS && t.rows <= half) { /* nothing to do in this half */
#pragma unroll 1
			for (int i = 0; i < t.slabs; i++) {
				om_bar_wait(full + stage * 8, phase);
				if (leader)
					om_bar_arrive(empty + stage * 8);
				if (++stage == STAGES)
					stage = 0, phase ^= 1;
			}
			continue;
		}
#pragma unroll 1
		for (int i = 0; i < t.slabs; i++) {
			const uint32_t at = smem + stage * STAGE;
			om_bar_wait(full + stage * 8, phase);
			/* the rows after the group's last are another's, or padding */
			if (GROUPS == OM_GEMM_SUMS && t.tail && i == t.slabs - 1)
				om_gemm_clear<STAGE>(at, t.tail);
			const uint64_t da = om_wgmma_desc<128>(at + half * 128, AT ? 8192 : 16);
			const uint64_t db = om_wgmma_desc<128>(at + B_AT, BT ? 8192 : 16);
			om_wgmma_fence();
#pragma unroll
			for (int j = 0; j < 4; j++) /* 16 k: 32 bytes along a row, or 16 rows */
				om_wgmma<WIDTH, AT, BT>(d, da + j * (AT ? 128 : 2),
				    db + j * (BT ? 128 : 2), i > 0 || j > 0);
			om_wgmma_commit();
			om_wgmma_wait<0>();
			if (leader)
				om_bar_arrive(empty + stage * 8);
			if (++stage == STAGES)
				stage = 0, phase ^= 1;
		}
		om_wgmma_keep(d);
		const int rows = t.rows - warp * 16, cols = N - t.col;
		const int row = (GROUPS == OM_GEMM_ROWS ? t.first : 0) + t.row + warp * 16;
		if (rows <= 0)
			continue;
		if (!ROUND || (GROUPS == OM_GEMM_ROWS && rows < 16))
			om_gemm_store_odd<T, PITCH, WIDTH>(
			    d, c + (int64_t)row * PITCH + t.col, rows, cols);
		else
			om_gemm_store<T, ADD, WIDTH>(d, map_c, t.col, row,
			    GROUPS == OM_GEMM_ROWS ? 0 : t.group, cols, boxes_at + warp * BOXES);
	}
	om_bulk_wait();
}

#else /* ---- host ---- */

#define OM_GEMM(NAME, type, add, groups, G, M, N, K, width, at, bt, planes, pad)              \
	OM_KERNEL(NAME, OM_GEMM_THREADS,                                                      \
	    OM_GEMM_SMEM(                                                                     \
		type, width, (groups) == OM_GEMM_ROWS || (groups) == OM_GEMM_SUMS ? (G) : 0)) \
	static inline void NAME##_run(                                                        \
	    const om_bf16 *a, const om_bf16 *b, type *c, const int32_t *off)                  \
	{                                                                                     \
		om_gemm_run(&NAME, groups, G, M, N, K, width, at, bt, planes, pad, a, b, c,   \
		    sizeof(type), off);                                                       \
	}

/* The tensor map of an operand, planes of [mn, k] or, transposed, [k, mn], in boxes of mn x 64. */
static inline void
om_gemm_map(struct om_tensor_map *map, const om_bf16 *p, bool transposed, int64_t mn, int64_t k,
    int64_t planes, int pad, int box)
{
	const uint64_t wide = transposed ? mn : k, high = transposed ? k : mn;
	const uint64_t pitch = OM_GEMM_PITCH(wide, pad) * sizeof *p;
	om_map(map, OM_MAP_BF16, p, 3, (uint64_t[]){ wide, high, planes },
	    (uint64_t[]){ pitch, pitch * high },
	    (uint32_t[]){ OM_GEMM_K, transposed ? OM_GEMM_K : box, 1 }, 128);
}

static inline void
om_gemm_run(const struct om_kernel *kernel, int groups, int64_t g, int64_t m, int64_t n, int64_t k,
    int width, bool at, bool bt, int planes, int pad, const om_bf16 *a, const om_bf16 *b, void *c,
    int size, const int32_t *off)
{
	struct om_tensor_map map_a, map_b, map_c = { { 0 } };
	const bool rows = groups == OM_GEMM_ROWS;
	const int64_t tiles = om_gemm_tiles(groups, g, m, n, width), sms = om_sms();
	const int64_t outs = rows ? 1 : g, pitch = OM_GEMM_PITCH(n, pad) * size;
	om_gemm_map(&map_a, a, at, m, k, planes, pad, OM_GEMM_M);
	om_gemm_map(&map_b, b, bt, n, k, rows ? g : 1, 1, width);
	if (pitch % 16 == 0)
		om_map(&map_c, size == 4 ? OM_MAP_F32 : OM_MAP_BF16, c, 3,
		    (uint64_t[]){ n, m, outs }, (uint64_t[]){ pitch, m * pitch },
		    (uint32_t[]){ 128 / size, 16, 1 }, 128);
	om_launch(kernel, tiles < sms ? tiles : sms, 1, 1,
	    (void *[]){ &map_a, &map_b, &map_c, &c, &off });
}

#endif
#endif
