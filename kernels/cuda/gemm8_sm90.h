/*
 * gemm_sm90.h's product for e4m3 in blocks, whose scales are multiplied in as fp32: C = A B^T with
 *
 *   A [M, K] e4m3, scales sa [K/128, M]: 1 x 128            C [M, N] bf16
 *   B [N, K] e4m3, scales sb [N/128, K/128]: 128 x 128      K % 128 == 0, N % 128 == 0
 *
 * Ring, tiles, groups and several A, whose k follow each other, are gemm_sm90.h's; each A has a B
 * of its own, and so has each half of the columns where there are two B side by side. Two e4m3 are
 * copied as one number of 16 bits: so a product of K e4m3 is there one of K / 2, a slab of 64 of
 * which is one block of 128, and its bytes in a stage lie as those of bf16 do.
 *
 * A tile has 256 columns, for each consumer 64 rows in two halves of 128 columns, so that one
 * number of sb is that of a half's slab. The tensor cores sum one slab of a half, which is then
 * added, times its scales, to the sums in fp32: DeepSeek's way, since the tensor cores keep few
 * bits. While one consumer adds, the other's products run. The second one begins some slabs later,
 * and stays behind, so that epilogues come one after the other, too.
 *
 * The scales of a stage's 128 rows of A come with it; those of B a warp reads for 32 slabs at once.
 */
#ifndef OM_GEMM8_SM90_H
#define OM_GEMM8_SM90_H

#include "gemm.h"
#include "quantise.h"

#define OM_GEMM8_BLOCK 128
#define OM_GEMM8_WIDTH 256
#define OM_GEMM8_Y_BOXES 4 /* of om_gemm8_plain */
#define OM_GEMM8_BEHIND 2  /* slabs that the second consumer begins later */
/* Scales of a stage's rows of A: the copy engine begins at multiples of 16 bytes. */
#define OM_GEMM8_SCALES (OM_GEMM_M + 4)
#define OM_GEMM8_PITCH 640 /* bytes, for they have to go to multiples of 128 */
/*
 * Behind the stages: as many boxes for each consumer warp as its epilogue wants, scales, barriers
 * of up to four stages, off.
 */
#define OM_GEMM8_REST(boxes, g) (8 * (boxes)*OM_GEMM_BOX + 64 + ((g) + 1) * 4)
#define OM_GEMM8_STAGE (OM_GEMM_STAGE(OM_GEMM8_WIDTH) + OM_GEMM8_PITCH)
#define OM_GEMM8_STAGES(boxes, g) ((OM_GEMM_SMEM_MAX - OM_GEMM8_REST(boxes, g)) / OM_GEMM8_STAGE)
#define OM_GEMM8_SMEM(boxes, g) \
	(OM_GEMM8_STAGES(boxes, g) * OM_GEMM8_STAGE + OM_GEMM8_REST(boxes, g))

struct om_gemm8_args {
	struct om_gemm_args x;
	struct om_tensor_map map_b, map_s[2]; /* of a second B; of each A's scales */
	const float *sb[2];
	/* what ffn8.h's epilogues quantise: of two numbers of 8 bits each, and their scales */
	struct om_tensor_map map_q[2];
	om_bf16 *q[2];
	float *s[2];
};

#ifdef __CUDACC__

#define OM_GEMM8_KERNEL(NAME, epilogue, groups, G, M, N, K)                          \
	OM_GLOBAL(OM_GEMM_THREADS, 1) NAME(const __grid_constant__ om_gemm8_args x)  \
	{                                                                            \
		om_gemm8<om_gemm8_shape<epilogue, groups, G, M, N, K>, epilogue>(x); \
	}

/* K: widths in numbers of 16 bits */
template <class E, int GROUPS_, int G_, int M_, class N_, class K_>
struct om_gemm8_shape
    : om_gemm_shape<om_bf16, 0, GROUPS_, G_, M_, N_, K_, OM_GEMM8_WIDTH, 0, 0, 1, 1> {
	static constexpr int STAGES = OM_GEMM8_STAGES(E::BOXES, G_);
	static constexpr int BOXES = E::BOXES * OM_GEMM_BOX;
	/* blocks of B in a matrix */
	static constexpr int DOWN = N_::width[0] / OM_GEMM8_BLOCK;
	static constexpr int OVER = K_::width[0] / OM_GEMM_K;
	static_assert(STAGES >= 3 && STAGES <= 4, "room for stages, and for their barriers");
	static_assert(N_::width[0] % OM_GEMM8_BLOCK == 0 && K_::width[0] % OM_GEMM_K == 0,
	    "blocks of scales");
};

/* A tile's slabs, and with each the scales of its rows of A, into the ring. */
template <class S, class E>
OM_DEV void
om_gemm8_fill(om_gemm_ring<S> &r, uint32_t scales, const om_gemm8_args &x, const om_gemm_tile &t)
{
	constexpr int BOX = E::HALVES ? S::WIDTH / 2 : S::WIDTH;
#pragma unroll 1
	for (int i = 0; i < t.slabs; i++, r.next()) {
		const om_gemm_place k = om_gemm_find<typename S::K, OM_GEMM_K>(i * OM_GEMM_K);
		const om_tensor_map *b = S::K::most > 1 && k.i ? &x.map_b : &x.x.map_b;
		const int row = t.first + t.row;
		const uint32_t to = r.at(), bar = r.fill(S::STAGE + OM_GEMM8_SCALES * 4);
		om_gemm_load<OM_GEMM_M, 0>(to, &x.x.map_a[k.i], bar, row, k.at, 0);
		om_tma_load(scales + r.stage * OM_GEMM8_PITCH, &x.map_s[k.i], bar, row & ~3,
		    k.at / OM_GEMM_K, 0);
		om_gemm_load<BOX, 0>(to + S::B_AT, b, bar, t.col, k.at, t.group);
		if constexpr (E::HALVES)
			om_gemm_load<BOX, 0>(to + S::B_AT + BOX * OM_GEMM_K * 2, &x.map_b, bar,
			    t.col, k.at, t.group);
	}
}

/* The scales of B for slab `first` + lane of a tile, of the left and of the right half. */
template <class S, class E>
OM_DEV void
om_gemm8_scales(float (&v)[2], const om_gemm8_args &x, const om_gemm_tile &t, int first)
{
	const int i = min(first + (int)threadIdx.x % 32, t.slabs - 1);
	const om_gemm_place k = om_gemm_find<typename S::K, OM_GEMM_K>(i * OM_GEMM_K);
	const int down = t.col / OM_GEMM8_BLOCK;
	const int at = (t.group * S::DOWN + down) * S::OVER + k.at / OM_GEMM_K;
	v[0] = __ldg(x.sb[k.i] + at);
	if (E::HALVES)
		v[1] = __ldg(x.sb[1] + at);
	else
		v[1] = __ldg(x.sb[k.i] + at + (down + 1 < S::DOWN ? S::OVER : 0));
}

OM_DEV float
om_gemm8_scale(uint32_t smem)
{
	float x;
	asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(smem) : "memory");
	return x;
}

/* A consumer's products of a slab, and their sums in fp32, which the first one overwrites. */
template <class S, bool FIRST>
OM_DEV void
om_gemm8_slab(float (&d)[S::WIDTH / 2], float (&c)[64], om_gemm_ring<S> &r, uint32_t scales,
    const float (&v)[2], int i, int half)
{
	r.wait();
	const uint32_t at = r.at(), from = scales + r.stage * OM_GEMM8_PITCH;
	const float s[2] = { om_gemm8_scale(from), om_gemm8_scale(from + 32) };
	const float wl = __shfl_sync(0xffffffffu, v[0], i), wr = __shfl_sync(0xffffffffu, v[1], i);
	const float sw[2][2] = { { s[0] * wl, s[1] * wl }, { s[0] * wr, s[1] * wr } };
	const uint64_t da = om_wgmma_desc<128>(at + half * 128);
	const uint64_t db = om_wgmma_desc<128>(at + S::B_AT);
#pragma unroll
	for (int h = 0; h < 2; h++) {
		om_wgmma_fence();
		if (FIRST && h == 0)
			om_wgmma_8_first<false>(c, da, db + h * 1024);
		else
			om_wgmma_8_first<true>(c, da, db + h * 1024);
#pragma unroll
		for (int j = 1; j < 4; j++) /* 32 k */
			om_wgmma_8(c, da + j * 2, db + h * 1024 + j * 2);
		om_wgmma_commit();
		om_wgmma_wait<0>(c);
		if (h == 1)
			r.free(r.stage);
#pragma unroll
		for (int j = 0; j < 64; j++) {
			float &sum = d[h * 64 + j];
			sum = FIRST ? sw[h][j / 2 % 2] * c[j] : sum + sw[h][j / 2 % 2] * c[j];
		}
		om_wgmma_keep(d);
	}
	r.next();
}

/* 64 columns as bf16, a thread's sums of them two in each, to a box of a warp's rows. */
OM_DEV void
om_gemm8_box(const uint32_t *y, uint32_t box)
{
	const int lane = threadIdx.x % 32;
#pragma unroll
	for (int j = 0; j < 8; j += 2)
		om_stmatrix(box + lane % 16 * 128 + (lane / 16 ^ lane % 8 ^ j) * 16, y[j * 2],
		    y[j * 2 + 1], y[j * 2 + 2], y[j * 2 + 3]);
}

/*
 * A box of 64 numbers of 16 bits of 16 rows to c, whose lines are PITCH apart, at column x and row
 * y; rows that there are fewer are another group's.
 */
template <int PITCH>
OM_DEV void
om_box_store(uint32_t box, const om_tensor_map *map, om_bf16 *c, int x, int y, int rows)
{
	const int lane = threadIdx.x % 32;
	if (rows >= 16) {
		if (lane == 0)
			om_tma_store(map, box, x, y, 0);
		return;
	}
	c += (int64_t)y * PITCH + x;
	for (int at = lane; at < rows * 8; at += 32) {
		const int row = at / 8, chunk = at % 8;
		uint32_t v[4];
		om_load16(v, box + row * 128 + (chunk ^ row % 8) * 16);
		*(uint4 *)(c + (int64_t)row * PITCH + chunk * 8) =
		    make_uint4(v[0], v[1], v[2], v[3]);
	}
}

/*
 * A tile's rows as bf16; TWO: its halves go to two C. Boxes hold all of them, so that a warp waits
 * only for those of the tile before.
 */
template <bool TWO> struct om_gemm8_plain : om_gemm_plain {
	static constexpr bool HALVES = TWO;
	static constexpr int BOXES = OM_GEMM8_Y_BOXES;

	template <class S>
	OM_DEV void
	begin(float (&w)[2], const om_gemm8_args &, const om_gemm_tile &)
	{
		w[0] = w[1] = 0;
	}

	template <class S>
	OM_DEV void
	load(om_gemm_ring<S> &, const om_gemm8_args &, const om_gemm_tile &)
	{
	}

	template <class S>
	OM_DEV void
	store(float (&d)[S::WIDTH / 2], const float (&)[2], const om_gemm8_args &x,
	    const om_gemm_tile &t, om_gemm_ring<S> &, uint32_t boxes)
	{
		const int warp = om_warp(), rows = t.rows - warp * 16;
		const int row = t.first + t.row + warp * 16;
		if (rows <= 0)
			return;
		uint32_t y[S::WIDTH / 4];
#pragma unroll
		for (int i = 0; i < S::WIDTH / 4; i++)
			y[i] = om_pack(d[i * 2], d[i * 2 + 1]);
		om_bulk_wait_read();
		__syncwarp();
#pragma unroll
		for (int i = 0; i < BOXES; i++)
			om_gemm8_box(y + i * 16, boxes + i * OM_GEMM_BOX);
		om_fence_async();
		__syncwarp();
#pragma unroll
		for (int i = 0; i < BOXES; i++) {
			const int at = t.col + (TWO ? i % 2 : i) * 64;
			if (at < S::PITCH)
				om_box_store<S::PITCH>(boxes + i * OM_GEMM_BOX,
				    &x.x.map_c[TWO ? i / 2 : 0], (om_bf16 *)x.x.c[TWO ? i / 2 : 0],
				    at, row, rows);
		}
		om_bulk_commit();
	}
};

template <class S, class E>
OM_DEV void
om_gemm8(const om_gemm8_args &x)
{
	extern __shared__ __align__(1024) char om_gemm_smem[];
	constexpr int SCALES_AT = S::STAGES * S::STAGE + 8 * S::BOXES;
	constexpr int BARRIERS_AT = SCALES_AT + S::STAGES * OM_GEMM8_PITCH;
	const uint32_t smem = om_smem(om_gemm_smem), full = smem + BARRIERS_AT;
	const uint32_t boxes = smem + S::STAGES * S::STAGE, scales = smem + SCALES_AT;
	int32_t *s_off = (int32_t *)(om_gemm_smem + BARRIERS_AT + 64);
	om_gemm_ring<S> r = { smem, full, full + 8 * S::STAGES, 0, 0 };
	const int warp = om_warp();

	if (threadIdx.x == 0) {
		for (int i = 0; i < S::STAGES; i++) {
			om_bar_init(r.full + i * 8, 1);
			om_bar_init(r.empty + i * 8, 8);
		}
		om_bar_ready();
	}
	for (int i = threadIdx.x; S::ROWS && i <= S::G; i += OM_GEMM_THREADS)
		s_off[i] = x.x.off[i];
	__syncthreads();

	om_gemm_tile t = { 0 };
	if (warp >= 8) {
		om_registers<40, false>();
		if (threadIdx.x != 256)
			return;
		while (om_gemm_step<S, E>(t, s_off, s_off)) {
			om_gemm8_fill<S, E>(r, scales, x, t);
			E::template load<S>(r, x, t);
		}
		return;
	}

	om_registers<232, true>();
	const int half = warp / 4 * 64; /* the group's rows of the tile */
	bool behind = true;
	while (om_gemm_step<S, E>(t, s_off, s_off)) {
		float d[S::WIDTH / 2], c[64], v[2], w[2];
		if (behind && half)
			om_meet(1, 256), behind = false;
		if (t.rows <= half) { /* nothing to do in this half */
#pragma unroll 1
			for (int i = 0; i < t.slabs + E::template more<S>(t); i++, r.next()) {
				r.wait();
				r.free(r.stage);
			}
			continue;
		}
		/* of this thread's rows, and of 8 further down */
		const int row = warp * 16 + threadIdx.x % 32 / 4 + ((t.first + t.row) & 3);
		const uint32_t from = scales + row * 4;
		om_gemm8_scales<S, E>(v, x, t, 0);
		E::template begin<S>(w, x, t);
		om_gemm8_slab<S, true>(d, c, r, from, v, 0, half);
#pragma unroll 1
		for (int i = 1; i < t.slabs; i++) {
			if (behind && i == OM_GEMM8_BEHIND)
				om_meet(1, 256), behind = false;
			if (i % 32 == 0)
				om_gemm8_scales<S, E>(v, x, t, i);
			om_gemm8_slab<S, false>(d, c, r, from, v, i % 32, half);
		}
		if (behind) /* a sum of few slabs */
			om_meet(1, 256), behind = false;
		E::template store<S>(d, w, x, t, r, boxes + warp * S::BOXES);
		__syncwarp(); /* or the compiler takes a warp for parted: see om_warp */
	}
	om_bulk_wait();
}

#else /* ---- host ---- */

/* A product: gemm_sm90.h's of numbers of 16 bits, scales, and what an epilogue quantises. */
struct om_gemm8_call {
	struct om_gemm_call x;
	const om_e4m3 *b[2];
	const float *sa[2], *sb[2];
	om_e4m3 *q[2];
	float *s[2];
};

static inline void
om_gemm8_run(const struct om_kernel *kernel, const struct om_gemm8_call *x)
{
	struct om_gemm_call of = x->x;
	of.b = (const om_bf16 *)x->b[0];
	struct om_gemm8_args args = { .x = om_gemm_arguments(&of), .sb = { x->sb[0], x->sb[1] } };
	const uint64_t m = x->x.m, k = x->x.k[0] / OM_GEMM_K, f = x->x.n[0] / 2;
	for (int i = 0; i < 2; i++) {
		if (x->b[i])
			om_gemm_map(i ? &args.map_b : &args.x.map_b, (const om_bf16 *)x->b[i],
			    false, x->x.n[0], x->x.k[0], x->x.g, 1, x->x.step);
		if (x->sa[i])
			om_map(&args.map_s[i], OM_MAP_F32, x->sa[i], 3, (uint64_t[]){ m, k, 1 },
			    (uint64_t[]){ m * 4, m * k * 4 }, (uint32_t[]){ OM_GEMM8_SCALES, 1, 1 },
			    0);
		if (x->q[i])
			om_map(&args.map_q[i], OM_MAP_BF16, x->q[i], 3, (uint64_t[]){ f, m, 1 },
			    (uint64_t[]){ f * 2, f * m * 2 }, (uint32_t[]){ 64, 16, 1 }, 128);
		args.q[i] = (om_bf16 *)x->q[i];
		args.s[i] = x->s[i];
	}
	om_launch(kernel, om_gemm_blocks(&x->x), 1, 1, (void *[]){ &args });
}

#endif
#endif
