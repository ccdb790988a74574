/*
 * gemm.h's product by what every machine since Ampere (sm_80) has: mma.sync, ldmatrix, cp.async.
 *
 * Eight warps share a tile of C, WIDTH / 4 rows by 64 columns each. All threads copy slabs of A and
 * B into a ring of three stages, two slabs ahead of the products; one barrier a slab tells that
 * everyone's copies have arrived and that the stage before has been read. The ring doesn't stop at
 * the end of a tile: the first slabs of the next one arrive during the epilogue.
 *
 * A stage has the operand as it is stored: rows of 64 k, one m (n) each, or, transposed, rows of
 * all m (n), one k each, which ldmatrix transposes. The 16 bytes i of row r are at i ^ r % 8, so
 * that the 8 rows that ldmatrix reads at once are in different banks. What lies beyond the ends is
 * zero there, and is not read.
 */
#ifndef OM_GEMM_MMA_H
#define OM_GEMM_MMA_H

#include "sm80.h"

#define OM_GEMM_THREADS 256

/* Shared memory: the stages; the latest tiles; off, and the groups in order of size. */
#define OM_GEMM_STAGES 3
#define OM_GEMM_TILES 4 /* those of the slabs in the ring, and two marks of the end */
#define OM_GEMM_STAGE(width) ((OM_GEMM_M + (width)) * OM_GEMM_K * 2)
#define OM_GEMM_SMEM(width, g) \
	(OM_GEMM_STAGES * OM_GEMM_STAGE(width) + OM_GEMM_TILES * 40 + (2 * (g) + 1) * 4)

#ifdef __CUDACC__

#define OM_GEMM(NAME, type, add, groups, G, M, N, K, width, at, bt, planes, pad)                  \
	OM_GLOBAL(OM_GEMM_THREADS, 1)                                                             \
	NAME(const om_bf16 *a, const om_bf16 *b, type *c, const int32_t *off)                     \
	{                                                                                         \
		om_gemm<type, add, groups, G, M, N, K, width, at, bt, planes, pad>(a, b, c, off); \
	}

/* ---- slabs ---- */

/*
 * A slab of an operand into a stage: from p on there are `mn` of its ROWS m (n), and `k` of the
 * slab's k, in rows PITCH apart.
 */
template <int ROWS, int TRANSPOSED, int PITCH>
OM_DEV void
om_mma_load(uint32_t smem, const om_bf16 *p, int mn, int k)
{
	constexpr int CHUNKS = (TRANSPOSED ? ROWS : OM_GEMM_K) / 8; /* of 16 bytes, in a row */
	static_assert(PITCH % 8 == 0, "rows of A and B start at multiples of 16 bytes");
	const int high = TRANSPOSED ? k : mn, wide = TRANSPOSED ? mn : k;
	const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
	const int bytes = max(0, min(16, (wide - chunk * 8) * 2));
	smem += (row * CHUNKS + (chunk ^ row % 8)) * 16;
	p += (int64_t)row * PITCH + chunk * 8;
#pragma unroll
	for (int i = 0; i < ROWS * OM_GEMM_K / 8 / CHUNKS; i += OM_GEMM_THREADS / CHUNKS)
		om_async_load(
		    smem + i * CHUNKS * 16, p + (int64_t)i * PITCH, row + i < high ? bytes : 0);
}

/*
 * Where this lane reads of a stage's operand, for om_mma_read below. Of 16 m (n) by 16 k, r[i] is 8
 * by 8: for A in om_mma's order, first k, both halves of m, then second k; for B both halves of k
 * of the first 8 n, then of the others.
 */
template <int ROWS, int TRANSPOSED, int IS_B>
OM_DEV uint32_t
om_mma_place(int mn)
{
	const int i = threadIdx.x % 8, low = threadIdx.x / 8 % 2, high = threadIdx.x / 16 % 2;
	const int mn8 = mn / 8 + (IS_B ? high : low), k8 = IS_B ? low : high;
	const int row = (TRANSPOSED ? k8 : mn8) * 8 + i, chunk = TRANSPOSED ? mn8 : k8;
	return row * (TRANSPOSED ? ROWS : OM_GEMM_K) * 2 + (chunk ^ i) * 16;
}

/* 16 m (n) by 16 k, at those from the place on: mn, k: multiples of 16 below 64 */
template <int ROWS, int TRANSPOSED>
OM_DEV void
om_mma_read(uint32_t (&r)[4], uint32_t place, int mn, int k)
{
	om_ldmatrix<TRANSPOSED>(
	    r, TRANSPOSED ? (place ^ mn * 2) + k * ROWS * 2 : (place ^ k * 2) + mn * OM_GEMM_K * 2);
}

/* ---- the epilogue ---- */

/* Columns col and col + 1 of a row of N, where they exist, from `to` on; rows are PITCH apart */
template <int N, int PITCH>
OM_DEV void
om_mma_store(float *to, int col, float x, float y)
{
	if constexpr (PITCH % 2 == 0) { /* a last odd column and, zero, its padding */
		if (col < N)
			*(float2 *)to = make_float2(x, y);
	} else {
		if (col < N)
			to[0] = x;
		if (col + 1 < N)
			to[1] = y;
	}
}

template <int N, int PITCH>
OM_DEV void
om_mma_store(om_bf16 *to, int col, float x, float y)
{
	static_assert(PITCH % 2 == 0, "rows of a bf16 C");
	if (col < N)
		*(uint32_t *)to = om_pack(x, y);
}

/* A warp's part of C: at least one of its rows exists, and the column col, its first. */
template <typename T, int ADD, int N, int PITCH, int TALL>
OM_DEV void
om_mma_epilogue(float (&d)[TALL][8][4], T *c, int rows, int col)
{
	static_assert(!ADD || (sizeof(T) == 4 && N % 8 == 0), "C that is added to");
	const int lane = threadIdx.x % 32;
	col += lane % 4 * 2;
#pragma unroll
	for (int i = 0; i < TALL; i++) {
		const int row = i * 16 + lane / 4;
		if constexpr (ADD) { /* all loads at once, hence of what exists in any case */
			float2 old[2][8];
#pragma unroll
			for (int j = 0; j < 16; j++) {
				const int y = min(row + j / 8 * 8, rows - 1), x = col + j % 8 * 8;
				const float *at = c + (int64_t)y * PITCH + (x < N ? x : col);
				old[j / 8][j % 8] = *(const float2 *)at;
			}
#pragma unroll
			for (int j = 0; j < 16; j++) {
				d[i][j % 8][j / 8 * 2] += old[j / 8][j % 8].x;
				d[i][j % 8][j / 8 * 2 + 1] += old[j / 8][j % 8].y;
			}
		}
#pragma unroll
		for (int j = 0; j < 16; j++) {
			const int y = row + j / 8 * 8, x = col + j % 8 * 8;
			if (y < rows)
				om_mma_store<N, PITCH>(c + (int64_t)y * PITCH + x, x,
				    d[i][j % 8][j / 8 * 2], d[i][j % 8][j / 8 * 2 + 1]);
		}
	}
}

/* ---- the kernel ---- */

template <typename T, int ADD, int GROUPS, int G, int M, int N, int K, int WIDTH, int AT, int BT,
    int PLANES, int PAD>
OM_DEV void
om_gemm(const om_bf16 *a, const om_bf16 *b, T *c, const int32_t *off)
{
	constexpr bool offsets = GROUPS == OM_GEMM_ROWS || GROUPS == OM_GEMM_SUMS;
	constexpr int STAGE = OM_GEMM_STAGE(WIDTH), B_AT = OM_GEMM_M * OM_GEMM_K * 2;
	constexpr int PITCH_A = OM_GEMM_PITCH(AT ? M : K, PAD), PITCH_B = BT ? N : K;
	constexpr int PITCH_C = OM_GEMM_PITCH(N, PAD);
	constexpr int TALL = WIDTH / 64; /* a warp's rows, in 16 */
	static_assert(OM_GEMM_SMEM(WIDTH, offsets ? G : 0) <= OM_GEMM_SMEM_MAX, "too many groups");
	static_assert(sizeof(om_gemm_tile) == 40, "shared memory");
	static_assert(GROUPS != OM_GEMM_SUMS || (AT && BT && PLANES == 1), "sums over rows");
	static_assert(GROUPS != OM_GEMM_ROWS || (!AT && PLANES == 1), "groups start at any row");

	extern __shared__ __align__(1024) char om_gemm_smem[];
	const uint32_t smem = om_smem(om_gemm_smem);
	om_gemm_tile *s_tile = (om_gemm_tile *)(om_gemm_smem + OM_GEMM_STAGES * STAGE);
	int32_t *s_off = (int32_t *)(s_tile + OM_GEMM_TILES), *s_order = s_off + G + 1;
	for (int i = threadIdx.x; offsets && i <= G; i += OM_GEMM_THREADS)
		s_off[i] = off[i];
	__syncthreads();
	if (GROUPS == OM_GEMM_SUMS)
		om_gemm_order<G, OM_GEMM_THREADS>(s_off, s_order);
	if constexpr (GROUPS == OM_GEMM_SUMS && !ADD && sizeof(T) == 4)
		om_gemm_zero<G, (int64_t)M * N, OM_GEMM_THREADS>(s_off, c);

	/* copies the next slab, number `slab` of tile `ahead`, which is the block's `tiles`th */
	om_gemm_tile ahead = { 0 };
	int slab = 0, tiles = 0;
	const auto copy_next = [&](int stage) {
		if (slab == ahead.slabs) {
			bool more = true;
			for (slab = ahead.slabs = 0; more && ahead.slabs == 0;)
				more = om_gemm_next<GROUPS, G, M, N, K, WIDTH, PLANES>(
				    ahead, s_off, s_order);
			if (threadIdx.x == 0)
				s_tile[tiles % OM_GEMM_TILES] = ahead;
			tiles++;
		}
		if (slab < ahead.slabs) {
			const int part = slab / PLANES, plane = slab % PLANES;
			const bool last = part == ahead.slabs / PLANES - 1 && ahead.tail;
			const int64_t k = ahead.k + part * OM_GEMM_K, row = ahead.first + ahead.row;
			const int64_t group = GROUPS == OM_GEMM_ROWS ? ahead.group : 0;
			const int ks = last ? ahead.tail : OM_GEMM_K;
			const uint32_t to = smem + stage * STAGE;
			om_mma_load<OM_GEMM_M, AT, PITCH_A>(to,
			    a + (AT ? (plane * (int64_t)K + k) * PITCH_A + row
				    : (plane * (int64_t)M + row) * PITCH_A + k),
			    ahead.rows, ks);
			om_mma_load<WIDTH, BT, PITCH_B>(to + B_AT,
			    b + (BT ? (group * K + k) * N + ahead.col
				    : (group * N + ahead.col) * K + k),
			    N - ahead.col, ks);
			slab++;
		}
		om_async_commit(); /* without copies too, for the count */
	};
	for (int i = 0; i < OM_GEMM_STAGES - 1; i++)
		copy_next(i);
	__syncthreads();

	const int warp = threadIdx.x / 32;
	const int high = warp / TALL * TALL * 16, wide = warp % TALL * 64; /* its part of a tile */
	const uint32_t place_a = smem + om_mma_place<OM_GEMM_M, AT, 0>(high);
	const uint32_t place_b = smem + B_AT + om_mma_place<WIDTH, BT, 1>(wide);
	for (int stage = 0, tile = 0;; tile++) {
		const om_gemm_tile &t = s_tile[tile % OM_GEMM_TILES];
		const int slabs = t.slabs;
		const bool some = high < t.rows && t.col + wide < N;
		float d[TALL][8][4] = {};
		if (slabs == 0)
			break;
		for (int i = 0; i < slabs; i++) {
			const uint32_t at_a = place_a + stage * STAGE;
			const uint32_t at_b = place_b + stage * STAGE;
			om_async_wait<OM_GEMM_STAGES - 2>();
			__syncthreads();
			copy_next(stage ? stage - 1 : OM_GEMM_STAGES - 1);
			stage = stage + 1 == OM_GEMM_STAGES ? 0 : stage + 1;
			if (!some)
				continue;
#pragma unroll 2 /* all four would take all registers */
			for (int k = 0; k < OM_GEMM_K; k += 16) {
				uint32_t x[TALL][4], y[4];
#pragma unroll
				for (int m = 0; m < TALL; m++)
					om_mma_read<OM_GEMM_M, AT>(x[m], at_a, m * 16, k);
#pragma unroll
				for (int n = 0; n < 8; n += 2) {
					om_mma_read<WIDTH, BT>(y, at_b, n * 8, k);
#pragma unroll
					for (int m = 0; m < TALL; m++) {
						om_mma(d[m][n], x[m], y[0], y[1]);
						om_mma(d[m][n + 1], x[m], y[2], y[3]);
					}
				}
			}
		}
		if (some) {
			const int64_t group = GROUPS == OM_GEMM_ROWS ? 0 : t.group;
			om_mma_epilogue<T, ADD, N, PITCH_C, TALL>(d,
			    c + (group * M + t.first + t.row + high) * PITCH_C, t.rows - high,
			    t.col + wide);
		}
	}
}

#else /* ---- host ---- */

#define OM_GEMM(NAME, type, add, groups, G, M, N, K, width, at, bt, planes, pad)                 \
	OM_KERNEL(NAME, OM_GEMM_THREADS,                                                         \
	    OM_GEMM_SMEM(width, (groups) == OM_GEMM_ROWS || (groups) == OM_GEMM_SUMS ? (G) : 0)) \
	static inline void NAME##_run(                                                           \
	    const om_bf16 *a, const om_bf16 *b, type *c, const int32_t *off)                     \
	{                                                                                        \
		const int64_t tiles = om_gemm_tiles(groups, G, M, N, width);                     \
		const int64_t sms = om_sms();                                                    \
		OM_LAUNCH(NAME, tiles < sms ? tiles : sms, 1, 1, &a, &b, &c, &off);              \
	}

#endif
#endif
