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
 *
 * Two things more than gemm.h asks for: A may be several matrices whose k follow each other, or C
 * several whose n do, as rows of one B, or in groups as planes of it; and what becomes of a tile is
 * a type, om_gemm_plain or one of ffn.h's.
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

/*
 * A kernel's one argument. Products of several A, whose k follow each other, have a map of each;
 * those of several C, whose n do, too.
 */
struct om_gemm_args {
	struct om_tensor_map map_a[3], map_b, map_c[3];
	void *c[3];
	const int32_t *off;
	const float *p; /* the last three are for the epilogues of ffn.h */
	const int32_t *src;
	float *part;
};

#ifdef __CUDACC__

#define OM_GEMM(NAME, type, add, groups, G, M, N, K, width, at, bt, planes, pad)                 \
	OM_GEMM_KERNEL(NAME, om_gemm_plain, type, add, groups, G, M, om_beside<N>, om_beside<K>, \
	    width, at, bt, planes, pad)
#define OM_GEMM_OUTS(NAME, groups, G, M, A, B, C, K, width)                               \
	OM_GEMM_KERNEL(NAME, om_gemm_plain, om_bf16, 0, groups, G, M, OM_BESIDE(A, B, C), \
	    om_beside<K>, width, 0, 0, 1, 1)
#define OM_GEMM_INS(NAME, groups, G, M, N, A, B, C, width)                          \
	OM_GEMM_KERNEL(NAME, om_gemm_plain, om_bf16, 0, groups, G, M, om_beside<N>, \
	    OM_BESIDE(A, B, C), width, 0, 1, 1, 1)

#define OM_BESIDE(A, B, C) om_beside<A, B, C> /* in a macro's argument */
#define OM_GEMM_KERNEL(NAME, epilogue, ...)                                        \
	OM_GLOBAL(OM_GEMM_THREADS, 1) NAME(const __grid_constant__ om_gemm_args x) \
	{                                                                          \
		om_gemm<om_gemm_shape<__VA_ARGS__>, epilogue>(x);                  \
	}

/*
 * Widths of up to three matrices side by side. Tiles of n, and slabs of k, begin anew with each, so
 * that they lie as if each width were a multiple of them.
 */
template <int A, int B = 0, int C = 0> struct om_beside {
	static constexpr int width[3] = { A, B, C };
	static constexpr int most = B ? C ? 3 : 2 : 1;
};

template <class P, int STEP>
OM_DEV constexpr int
om_beside_tiled(void)
{
	return OM_GEMM_TILED(STEP, P::width[0], P::width[1], P::width[2]);
}

/* Of rounded widths column `at` is in matrix i, whose first column, not rounded, is `first`. */
struct om_gemm_place {
	int i, at, first, width;
};

template <class P, int STEP>
OM_DEV om_gemm_place
om_gemm_find(int at)
{
	constexpr int a = P::width[0], b = P::width[1], c = P::width[2];
	constexpr int second = OM_GEMM_TILED(STEP, a, 0, 0), third = OM_GEMM_TILED(STEP, a, b, 0);
	if (c && at >= third)
		return { 2, at - third, a + b, c };
	if (b && at >= second)
		return { 1, at - second, a, b };
	return { 0, at, 0, a };
}

template <typename T_, int ADD_, int GROUPS_, int G_, int M_, class N_, class K_, int WIDTH_,
    int AT_, int BT_, int PLANES_, int PAD_>
struct om_gemm_shape {
	using T = T_;
	using N = N_;
	using K = K_;
	static constexpr int ADD = ADD_, GROUPS = GROUPS_, G = G_, M = M_, WIDTH = WIDTH_;
	static constexpr int AT = AT_, BT = BT_, PLANES = PLANES_, PAD = PAD_;
	static constexpr bool ROWS = GROUPS == OM_GEMM_ROWS, SUMS = GROUPS == OM_GEMM_SUMS;
	static constexpr int KEPT = ROWS || SUMS ? G : 0;
	static constexpr int STAGES = OM_GEMM_STAGES(T, WIDTH, KEPT), STAGE = OM_GEMM_STAGE(WIDTH);
	static constexpr int B_AT = OM_GEMM_M * OM_GEMM_K * 2;
	static constexpr int BOXES = OM_GEMM_BOXES(T, WIDTH) * OM_GEMM_BOX;
	static constexpr int PITCH = OM_GEMM_PITCH(N::width[0], PAD);
	static constexpr bool ROUND = PITCH * sizeof(T) % 16 == 0;
	static_assert(STAGES >= 2, "the offsets leave no room for stages");
	static_assert(!SUMS || (AT && BT && PLANES == 1), "sums over rows");
	static_assert(ADD ? ROUND && sizeof(T) == 4 : ROUND || sizeof(T) == 4, "rows of C");
	static_assert(N::most == 1 || K::most == 1, "several A and several C");
	static_assert(N::most * K::most == 1 || (ROUND && PAD == 1 && PLANES == 1 && !SUMS),
	    "matrices side by side");
};

/* The ring of stages, and where in it a thread is. */
template <class S> struct om_gemm_ring {
	uint32_t smem, full, empty;
	int stage, phase;
	__device__ __forceinline__ uint32_t
	at() const
	{
		return smem + stage * S::STAGE;
	}
	__device__ __forceinline__ void
	next()
	{
		if (++stage == S::STAGES)
			stage = 0, phase ^= 1;
	}
	/* the producer's turn: this many bytes will come; gives their barrier */
	__device__ __forceinline__ uint32_t
	fill(int bytes) const
	{
		om_bar_wait(empty + stage * 8, phase ^ 1);
		om_bar_expect(full + stage * 8, bytes);
		return full + stage * 8;
	}
	/* a consumer's: they have come; this warp has read them */
	__device__ __forceinline__ void
	wait() const
	{
		om_bar_wait(full + stage * 8, phase);
	}
	__device__ __forceinline__ void
	free(int of) const
	{
		if (threadIdx.x % 32 == 0)
			om_bar_arrive(empty + of * 8);
	}
};

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
om_load16(uint32_t (&v)[4], uint32_t smem)
{
	asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
		     : "r"(smem)
		     : "memory");
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
template <typename T, int WIDTH>
OM_DEV void
om_gemm_store_odd(const float (&d)[WIDTH / 2], T *c, int pitch, int rows, int cols)
{
	const int lane = threadIdx.x % 32;
#pragma unroll
	for (int i = 0; i < WIDTH / 2; i++) {
		const int row = lane / 4 + i % 4 / 2 * 8, col = i / 4 * 8 + lane % 4 * 2 + i % 2;
		if (row < rows && col < cols)
			om_gemm_put(c + (int64_t)row * pitch + col, d[i]);
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

/*
 * What becomes of a tile. HALVES: its columns are half a tile of one matrix in B and half a tile of
 * the next. TRIANGLE: of C, which is symmetric, tiles below the diagonal are left out. Behind a
 * tile's slabs come `more` stages, which `load` fills and `store` frees.
 */
struct om_gemm_plain {
	static constexpr bool HALVES = false, TRIANGLE = false;

	/* before the products: what a thread keeps in w until they are there */
	template <class S>
	OM_DEV void
	begin(float (&w)[2], const om_gemm_args &, const om_gemm_tile &)
	{
		w[0] = w[1] = 0;
	}

	template <class S>
	OM_DEV int
	more(const om_gemm_tile &)
	{
		return 0;
	}

	template <class S>
	OM_DEV void
	load(om_gemm_ring<S> &, const om_gemm_args &, const om_gemm_tile &)
	{
	}

	template <class S>
	OM_DEV void
	store(float (&d)[S::WIDTH / 2], const float (&)[2], const om_gemm_args &x,
	    const om_gemm_tile &t, om_gemm_ring<S> &, uint32_t boxes)
	{
		const int warp = om_warp(), rows = t.rows - warp * 16;
		const int row = (S::ROWS ? t.first : 0) + t.row + warp * 16;
		const om_gemm_place n = om_gemm_find<typename S::N, S::WIDTH>(t.col);
		const int cols = n.width - n.at, pitch = S::N::most == 1 ? S::PITCH : n.width;
		typename S::T *c = (typename S::T *)x.c[n.i];
		if (rows <= 0)
			return;
		if (!S::ROUND || (S::ROWS && rows < 16))
			om_gemm_store_odd<typename S::T, S::WIDTH>(
			    d, c + (int64_t)row * pitch + n.at, pitch, rows, cols);
		else
			om_gemm_store<typename S::T, S::ADD, S::WIDTH>(
			    d, &x.map_c[n.i], n.at, row, S::ROWS ? 0 : t.group, cols, boxes);
	}
};

/* ---- the kernel ---- */

/* This block's next tile. */
template <class S, class E>
OM_DEV bool
om_gemm_step(om_gemm_tile &t, const int32_t *off, const int32_t *order)
{
	using N = typename S::N;
	using K = typename S::K;
	constexpr int STEP = E::HALVES ? S::WIDTH / 2 : S::WIDTH;
	constexpr int n = N::most == 1 ? N::width[0] : om_beside_tiled<N, STEP>();
	constexpr int k = K::most == 1 ? K::width[0] : om_beside_tiled<K, OM_GEMM_K>();
	bool any = om_gemm_next<S::GROUPS, S::G, S::M, n, k, STEP, S::PLANES>(t, off, order);
	while (E::TRIANGLE && any && t.row >= t.col + S::WIDTH)
		any = om_gemm_next<S::GROUPS, S::G, S::M, n, k, STEP, S::PLANES>(t, off, order);
	return any;
}

/* A tile's slabs into the ring. */
template <class S, class E>
OM_DEV void
om_gemm_fill(om_gemm_ring<S> &r, const om_gemm_args &x, const om_gemm_tile &t)
{
	constexpr int BOX = E::HALVES ? S::WIDTH / 2 : S::WIDTH;
	const om_gemm_place n = om_gemm_find<typename S::N, BOX>(t.col);
#pragma unroll 1
	for (int i = 0; i < t.slabs; i++, r.next()) {
		const om_gemm_place k =
		    om_gemm_find<typename S::K, OM_GEMM_K>(i / S::PLANES * OM_GEMM_K);
		/* matrices side by side are planes of B in groups, else rows one after the other */
		const int b = S::ROWS ? t.group + (n.i + k.i) * S::G : 0;
		const int bn = (S::ROWS ? 0 : n.first) + n.at, bk = (S::ROWS ? 0 : k.first) + k.at;
		const uint32_t to = r.at(), bar = r.fill(S::STAGE);
		om_gemm_load<OM_GEMM_M, S::AT>(
		    to, &x.map_a[k.i], bar, t.first + t.row, t.k + k.at, i % S::PLANES);
		om_gemm_load<BOX, S::BT>(to + S::B_AT, &x.map_b, bar, bn, t.k + bk, b);
		if constexpr (E::HALVES)
			om_gemm_load<BOX, S::BT>(to + S::B_AT + BOX * OM_GEMM_K * 2, &x.map_b, bar,
			    S::ROWS ? bn : S::N::width[0] + bn, bk, S::ROWS ? b + S::G : b);
	}
}

/* A consumer's products of a slab. The first one overwrites d, the others add to it. */
template <class S, bool FIRST>
OM_DEV void
om_gemm_slab(float (&d)[S::WIDTH / 2], om_gemm_ring<S> &r, int half, int tail)
{
	const uint32_t at = r.at();
	r.wait();
	/* the rows after the group's last are another's, or padding */
	if (S::SUMS && tail)
		om_gemm_clear<S::STAGE>(at, tail);
	const uint64_t da = om_wgmma_desc<128>(at + half * 128, S::AT ? 8192 : 16);
	const uint64_t db = om_wgmma_desc<128>(at + S::B_AT, S::BT ? 8192 : 16);
	om_wgmma_fence();
#pragma unroll
	for (int j = 0; j < 4; j++) { /* 16 k: 32 bytes along a row, or 16 rows */
		const uint64_t a = da + j * (S::AT ? 128 : 2), b = db + j * (S::BT ? 128 : 2);
		if (FIRST && j == 0)
			om_wgmma_first<S::WIDTH, S::AT, S::BT>(d, a, b);
		else
			om_wgmma<S::WIDTH, S::AT, S::BT>(d, a, b);
	}
	om_wgmma_commit();
	om_wgmma_wait<0>();
	r.free(r.stage);
	r.next();
}

template <class S, class E>
OM_DEV void
om_gemm(const om_gemm_args &x)
{
	extern __shared__ __align__(1024) char om_gemm_smem[];
	const uint32_t smem = om_smem(om_gemm_smem), boxes_at = smem + S::STAGES * S::STAGE;
	const uint32_t full = boxes_at + 8 * S::BOXES;
	int32_t *s_off = (int32_t *)(om_gemm_smem + S::STAGES * S::STAGE + 8 * S::BOXES + 128);
	int32_t *s_order = s_off + S::G + 1;
	om_gemm_ring<S> r = { smem, full, full + 64, 0, 0 };
	const int warp = om_warp();

	if (threadIdx.x == 0) {
		for (int i = 0; i < S::STAGES; i++) {
			om_bar_init(r.full + i * 8, 1);
			om_bar_init(r.empty + i * 8, 8);
		}
		om_bar_ready();
	}
	for (int i = threadIdx.x; S::KEPT && i <= S::G; i += OM_GEMM_THREADS)
		s_off[i] = x.off[i];
	__syncthreads();
	if (S::SUMS)
		om_gemm_order<S::G, OM_GEMM_THREADS>(s_off, s_order);
	if constexpr (S::SUMS && !S::ADD && sizeof(typename S::T) == 4)
		om_gemm_zero<S::G, (int64_t)S::M * S::N::width[0], OM_GEMM_THREADS>(
		    s_off, (float *)x.c[0]);

	om_gemm_tile t = { 0 };
	if (warp >= 8) {
		om_registers<40, false>();
		if (threadIdx.x != 256)
			return;
		while (om_gemm_step<S, E>(t, s_off, s_order)) {
			om_gemm_fill<S, E>(r, x, t);
			E::template load<S>(r, x, t);
		}
		return;
	}

	om_registers<232, true>();
	const int half = warp / 4 * 64; /* the group's rows of the tile */
	while (om_gemm_step<S, E>(t, s_off, s_order)) {
		float d[S::WIDTH / 2], w[2];
		if (S::SUMS && t.slabs == 0)
			continue;
		if (!S::SUMS && t.rows <= half) { /* nothing to do in this half */
#pragma unroll 1
			for (int i = 0; i < t.slabs + E::template more<S>(t); i++, r.next()) {
				r.wait();
				r.free(r.stage);
			}
			continue;
		}
		E::template begin<S>(w, x, t);
		om_gemm_slab<S, true>(d, r, half, t.slabs == 1 ? t.tail : 0);
#pragma unroll 1
		for (int i = 1; i < t.slabs; i++)
			om_gemm_slab<S, false>(d, r, half, i == t.slabs - 1 ? t.tail : 0);
		om_wgmma_keep(d);
		E::template store<S>(d, w, x, t, r, boxes_at + warp * S::BOXES);
		__syncwarp(); /* or the compiler takes a warp for parted: see om_warp */
	}
	om_bulk_wait();
}

#else /* ---- host ---- */

/* A product: struct om_gemm_args, and what it takes to make one. */
struct om_gemm_call {
	int groups;
	int64_t g, m, n[3], k[3];
	int step; /* columns of a tile, or of each of its halves */
	bool halves, at, bt;
	int planes, pad, size; /* size: of an element of C */
	const om_bf16 *a[3], *b;
	void *c[3];
	const int32_t *off;
	const float *p;
	const int32_t *src;
	float *part;
	bool mirror; /* C is stored turned too, by boxes of 64 rows of 16 */
};

#define OM_GEMM_SMEM_OF(type, width, groups, G) \
	OM_GEMM_SMEM(type, width, (groups) == OM_GEMM_ROWS || (groups) == OM_GEMM_SUMS ? (G) : 0)

#define OM_GEMM(NAME, type, add, groups, G, M, N, K, width, at, bt, planes, pad)                 \
	OM_KERNEL(NAME, OM_GEMM_THREADS, OM_GEMM_SMEM_OF(type, width, groups, G))                \
	static inline void NAME##_run(                                                           \
	    const om_bf16 *a, const om_bf16 *b, type *c, const int32_t *off)                     \
	{                                                                                        \
		om_gemm_run(                                                                     \
		    &NAME, &(struct om_gemm_call){ groups, G, M, { N }, { K }, width, false, at, \
			       bt, planes, pad, sizeof(type), { a }, b, { c }, .off = off });    \
	}
#define OM_GEMM_OUTS(NAME, groups, G, M, A, B, C, K, width)                                        \
	OM_KERNEL(NAME, OM_GEMM_THREADS, OM_GEMM_SMEM_OF(om_bf16, width, groups, G))               \
	static inline void NAME##_run(const om_bf16 *x, const om_bf16 *w, om_bf16 *ya,             \
	    om_bf16 *yb, om_bf16 *yc, const int32_t *off)                                          \
	{                                                                                          \
		om_gemm_run(                                                                       \
		    &NAME, &(struct om_gemm_call){ groups, G, M, { A, B, C }, { K }, width, false, \
			       0, 0, 1, 1, 2, { x }, w, { ya, yb, yc }, .off = off });             \
	}
#define OM_GEMM_INS(NAME, groups, G, M, N, A, B, C, width)                                         \
	OM_KERNEL(NAME, OM_GEMM_THREADS, OM_GEMM_SMEM_OF(om_bf16, width, groups, G))               \
	static inline void NAME##_run(const om_bf16 *da, const om_bf16 *db, const om_bf16 *dc,     \
	    const om_bf16 *w, om_bf16 *dx, const int32_t *off)                                     \
	{                                                                                          \
		om_gemm_run(                                                                       \
		    &NAME, &(struct om_gemm_call){ groups, G, M, { N }, { A, B, C }, width, false, \
			       0, 1, 1, 1, 2, { da, db, dc }, w, { dx }, .off = off });            \
	}

/*
 * The tensor map of an operand, planes of [mn, k] or, transposed, [k, mn], in boxes of mn x 64.
 */
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

static inline struct om_gemm_args
om_gemm_arguments(const struct om_gemm_call *x)
{
	struct om_gemm_args args = { .c = { x->c[0], x->c[1], x->c[2] },
		.off = x->off,
		.p = x->p,
		.src = x->src,
		.part = x->part };
	const bool rows = x->groups == OM_GEMM_ROWS;
	int64_t n = 0, k = 0, beside = x->halves ? 2 : 1;
	for (int i = 0; i < 3; i++) {
		n += x->n[i];
		k += x->k[i];
		beside += i && (x->n[i] || x->k[i]);
	}
	const int64_t outs = rows ? 1 : x->g, high = x->halves ? 2 * n : n;
	om_gemm_map(&args.map_b, x->b, x->bt, rows ? x->n[0] : high, rows ? x->k[0] : k,
	    rows ? x->g * beside : 1, 1, x->step);
	for (int i = 0; i < 3; i++) {
		const int64_t ak = x->k[i] ? x->k[i] : x->n[0], cn = x->n[i] ? x->n[i] : x->n[0];
		const int64_t pitch = OM_GEMM_PITCH(cn, x->pad) * x->size;
		if (x->a[i])
			om_gemm_map(
			    &args.map_a[i], x->a[i], x->at, x->m, ak, x->planes, x->pad, OM_GEMM_M);
		if (x->c[i] && pitch % 16 == 0)
			om_map(&args.map_c[i], x->size == 4 ? OM_MAP_F32 : OM_MAP_BF16, x->c[i], 3,
			    (uint64_t[]){ cn, x->m, outs }, (uint64_t[]){ pitch, x->m * pitch },
			    (uint32_t[]){ 128 / x->size, 16, 1 }, 128);
	}
	if (x->mirror)
		om_map(&args.map_c[1], OM_MAP_BF16, x->c[0], 3, (uint64_t[]){ x->n[0], x->m, outs },
		    (uint64_t[]){ 2 * x->n[0], 2 * x->m * x->n[0] }, (uint32_t[]){ 16, 64, 1 }, 0);
	return args;
}

static inline uint32_t
om_gemm_blocks(const struct om_gemm_call *x)
{
	int64_t wide = 0;
	for (int i = 0; i < 3; i++)
		wide += OM_CEIL(x->n[i], x->step) * x->step;
	const int64_t tiles = om_gemm_tiles(x->groups, x->g, x->m, wide, x->step), sms = om_sms();
	return tiles < sms ? tiles : sms;
}

static inline void
om_gemm_run(const struct om_kernel *kernel, const struct om_gemm_call *x)
{
	struct om_gemm_args args = om_gemm_arguments(x);
	om_launch(kernel, om_gemm_blocks(x), 1, 1, (void *[]){ &args });
}

#endif
#endif
