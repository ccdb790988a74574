/*
 * ffn.h's products of e4m3 in blocks (grouped8.h), whose hidden layer goes on in e4m3:
 *
 *   grouped_glu_8       g, u [r, f] of xq [r, n] and gq, uq [e, f, n], as grouped_glu has them;
 *                       hq, hs = h quantised, which is bf16 only in between
 *   grouped_dx_glu_8    dg, du, dp of dyq [r, n] and wtq [e, f, n] as grouped_dx_glu has them; dgq,
 *                       dgs, duq, dus = dg, du quantised
 *   grouped_dx_glu_h_8  and h once more
 *   ..._rows_8          the same of each with a weight of the row's own
 *
 * A block of 1 x 128 is a row of a tile's half, which four lanes have: their largest magnitude is
 * the block's. All has the bits of the ops one by one, but for dp, whose sum has another order.
 */
#ifndef OM_FFN8_H
#define OM_FFN8_H

#include "ffn.h"
#include "grouped8.h"

#define OM_FFN8_SIZES(r, e, n, f, a)   \
	OM_GROUPED_8_SIZES(r, e, n, f) \
	OM_FFN_SIZES(r, e, n, f, a)
#define OM_FFN8_Y_BOXES 5 /* two for g, two for u, one for h */
#define OM_FFN8_X_BOXES 2 /* dg and du */

#ifdef __CUDACC__ /* ---- device ---- */

/* A box of 16 rows of 128 e4m3 to row y and column x of q, as numbers of 16 bits. */
template <class S>
OM_DEV void
om_ffn8_store(uint32_t box, const om_gemm8_args &to, int i, int x, int y, int rows)
{
	om_box_store<S::N::width[0] / 2>(box, &to.map_q[i], to.q[i], x / 2, y, rows);
}

/*
 * A warp's 16 rows of 128 columns, bf16 as a thread's sums lie, two in each, to a box of e4m3, and
 * the scales of those rows that there are.
 */
OM_DEV void
om_ffn8_quantise(const uint32_t (&v)[32], uint32_t box, float *s, int rows)
{
	const int lane = threadIdx.x % 32;
#pragma unroll
	for (int k = 0; k < 2; k++) {
		const int row = lane / 4 + k * 8;
		uint32_t most = v[k] & 0x7fff7fffu;
#pragma unroll
		for (int j = 1; j < 16; j++)
			most = om_most2(most, v[j * 2 + k]);
		const om_scale by = om_scale_for<-126, 0>(om_most<4>(most));
		if (lane % 4 == 0 && row < rows)
			s[row] = __uint_as_float(by.bits);
#pragma unroll
		for (int j = 0; j < 16; j++) {
			const uint32_t two = v[j * 2 + k];
			const uint32_t to = box + row * 128 + (j / 2 ^ row % 8) * 16 + j % 2 * 8;
			asm volatile("st.shared.b16 [%0], %1;" ::"r"(to + lane % 4 * 2),
				     "h"((uint16_t)om_pack_8(
					 om_lo(two) * by.inverse, om_hi(two) * by.inverse))
				     : "memory");
		}
	}
}

template <int A, bool ROUTED> struct om_ffn8_glu : om_ffn_glu<A, ROUTED> {
	static constexpr int BOXES = OM_FFN8_Y_BOXES;

	template <class S>
	OM_DEV void
	begin(float (&w)[2], const om_gemm8_args &x, const om_gemm_tile &t)
	{
		om_ffn_weights<ROUTED>(w, x.x, t);
	}

	template <class S>
	OM_DEV void
	load(om_gemm_ring<S> &, const om_gemm8_args &, const om_gemm_tile &)
	{
	}

	template <class S>
	OM_DEV void
	store(float (&d)[S::WIDTH / 2], const float (&w)[2], const om_gemm8_args &x,
	    const om_gemm_tile &t, om_gemm_ring<S> &, uint32_t boxes)
	{
		const int warp = om_warp(), rows = t.rows - warp * 16;
		const int row = t.first + t.row + warp * 16;
		uint32_t y[S::WIDTH / 4], h[32];
		if (rows <= 0)
			return;
		om_ffn_round<S::WIDTH>(y, d);
		om_bulk_wait_read();
		__syncwarp();
#pragma unroll
		for (int i = 0; i < 4; i++)
			om_gemm8_box(y + i * 16, boxes + i * OM_GEMM_BOX);
#pragma unroll
		for (int i = 0; i < 32; i++)
			h[i] = om_ffn_glu<A, ROUTED>::hidden(w[i % 2], y[i], y[32 + i]);
		om_ffn8_quantise(
		    h, boxes + 4 * OM_GEMM_BOX, x.s[0] + (int64_t)(t.col / 128) * S::M + row, rows);
		om_fence_async();
		__syncwarp();
#pragma unroll
		for (int i = 0; i < 4; i++)
			om_ffn_store<S>(
			    boxes + i * OM_GEMM_BOX, x.x, i / 2, t.col + i % 2 * 64, row, rows);
		om_ffn8_store<S>(boxes + 4 * OM_GEMM_BOX, x, 0, t.col, row, rows);
		om_bulk_commit();
	}
};

template <int A, bool ROUTED, bool H> struct om_ffn8_slope : om_ffn_slope<A, ROUTED, H> {
	static constexpr int BOXES = OM_FFN8_X_BOXES;
	using base = om_ffn_slope<A, ROUTED, H>;

	template <class S>
	OM_DEV void
	begin(float (&w)[2], const om_gemm8_args &x, const om_gemm_tile &t)
	{
		om_ffn_weights<ROUTED>(w, x.x, t);
	}

	template <class S>
	OM_DEV void
	load(om_gemm_ring<S> &r, const om_gemm8_args &x, const om_gemm_tile &t)
	{
		base::template load<S>(r, x.x, t);
	}

	/* 128 columns of dg (k = 0) or du, which are in two boxes of stages, as e4m3 */
	template <class S>
	OM_DEV void
	quantise(int k, uint32_t left, uint32_t right, const om_gemm8_args &x, int col, int row,
	    int rows, uint32_t box)
	{
		uint32_t v[32];
#pragma unroll
		for (int j = 0; j < 16; j += 2) {
			uint32_t y[4];
			om_ldmatrix<0>(
			    y, om_ffn_place((j < 8 ? left : right) + k * base::PART, j % 8));
#pragma unroll
			for (int i = 0; i < 4; i++)
				v[j * 2 + i] = y[i];
		}
		om_ffn8_quantise(v, box, x.s[k] + (int64_t)(col / 128) * S::M + row, rows);
	}

	/* as base's, and behind every 128 columns these as e4m3 */
	template <class S>
	OM_DEV void
	store(float (&d)[S::WIDTH / 2], const float (&w)[2], const om_gemm8_args &x,
	    const om_gemm_tile &t, om_gemm_ring<S> &r, uint32_t boxes)
	{
		const int warp = om_warp(), rows = t.rows - warp * 16;
		const int row = t.first + t.row + warp * 16;
		const int chunks = base::template more<S>(t);
		float sum[2] = { 0, 0 };
		int held = -1; /* the stage before, from which stores may still read */
#pragma unroll
		for (int i = 0; i < S::WIDTH / 64; i++) {
			if (i >= chunks)
				break;
			const uint32_t box = r.at() + warp * 16 * 128;
			r.wait();
			if (rows > 0) {
				base::slope(d + i * 32, w, box, sum);
				om_fence_async();
				__syncwarp();
#pragma unroll
				for (int k = 0; k < (H ? 3 : 2); k++)
					om_ffn_store<S>(box + k * base::PART, x.x, k,
					    t.col + i * 64, row, rows);
				om_bulk_commit();
			}
			if (i % 2 && rows > 0) {
				const uint32_t left = r.smem + held * S::STAGE + warp * 16 * 128;
				const int col = t.col + i / 2 * 128;
#pragma unroll
				for (int k = 0; k < 2; k++)
					quantise<S>(k, left, box, x, col, row, rows,
					    boxes + k * OM_GEMM_BOX);
				om_fence_async();
				__syncwarp();
#pragma unroll
				for (int k = 0; k < 2; k++)
					om_ffn8_store<S>(
					    boxes + k * OM_GEMM_BOX, x, k, col, row, rows);
				om_bulk_commit();
				om_bulk_wait_read<2>();
			} else
				om_bulk_wait_read<1>();
			__syncwarp();
			if (held >= 0)
				r.free(held);
			held = r.stage;
			r.next();
		}
		om_bulk_wait_read<0>();
		__syncwarp();
		r.free(held);
		base::template parts<S>(sum, x.x, t, rows);
	}
};

#define OM_FFN8_GLU(a, routed) om_ffn8_glu<a, routed>
#define OM_FFN8_SLOPE(a, routed, h) om_ffn8_slope<a, routed, h>

#define OM_GROUPED_GLU_8(NAME, r, e, f, n, a) \
	OM_FFN8_SIZES(r, e, n, f, a)          \
	OM_GEMM8_KERNEL(                      \
	    NAME##_x, OM_FFN8_GLU(a, true), OM_GEMM_ROWS, e, r, om_beside<f>, om_beside<(n) / 2>)
#define OM_FFN8_X(NAME, r, e, n, f, a, h)                                                      \
	OM_FFN8_SIZES(r, e, n, f, a)                                                           \
	OM_GEMM8_KERNEL(NAME##_x, OM_FFN8_SLOPE(a, true, h), OM_GEMM_ROWS, e, r, om_beside<f>, \
	    om_beside<(n) / 2>)                                                                \
	OM_FFN_DP(NAME##_dp, r, e, f)
#define OM_GROUPED_DX_GLU_8(NAME, r, e, n, f, a) OM_FFN8_X(NAME, r, e, n, f, a, false)
#define OM_GROUPED_DX_GLU_H_8(NAME, r, e, n, f, a) OM_FFN8_X(NAME, r, e, n, f, a, true)
#define OM_GROUPED_GLU_ROWS_8 OM_GROUPED_GLU_8
#define OM_GROUPED_DX_GLU_ROWS_8 OM_GROUPED_DX_GLU_8
#define OM_GROUPED_DX_GLU_H_ROWS_8 OM_GROUPED_DX_GLU_H_8

#else /* ---- host ---- */

#define OM_FFN8_CALL(r, e, f, n_)                                                           \
	.groups = OM_GEMM_ROWS, .g = e, .m = r, .n = { f }, .k = { (n_) / 2 }, .planes = 1, \
	.pad = 1, .size = 2, .off = off, .p = p, .src = src
#define OM_FFN8_Y(NAME, r, e, f, n_)                                                               \
	OM_KERNEL(NAME, OM_GEMM_THREADS, OM_GEMM8_SMEM(OM_FFN8_Y_BOXES, e))                        \
	static inline void NAME##_run(const om_e4m3 *xq, const float *xs, const om_e4m3 *gq,       \
	    const float *gs, const om_e4m3 *uq, const float *us, const int32_t *off,               \
	    const float *p, const int32_t *src, om_bf16 *g, om_bf16 *u, om_e4m3 *hq, float *hs)    \
	{                                                                                          \
		om_gemm8_run(&NAME, &(struct om_gemm8_call){                                       \
					.x = { OM_FFN8_CALL(r, e, f, n_), .step = 128,             \
					    .halves = true, .a = { OM_AS16(xq) }, .c = { g, u } }, \
					.b = { gq, uq },                                           \
					.sa = { xs },                                              \
					.sb = { gs, us },                                          \
					.q = { hq },                                               \
					.s = { hs } });                                            \
	}
#define OM_FFN8_X(NAME, r, e, n_, f)                                                              \
	OM_KERNEL(NAME, OM_GEMM_THREADS, OM_GEMM8_SMEM(OM_FFN8_X_BOXES, e))                       \
	static inline void NAME##_run(const om_e4m3 *dyq, const float *dys, const om_e4m3 *wq,    \
	    const float *ws, const int32_t *off, const om_bf16 *g, const om_bf16 *u,              \
	    const float *p, const int32_t *src, om_bf16 *h, om_bf16 *dg, om_bf16 *du,             \
	    om_e4m3 *dgq, float *dgs, om_e4m3 *duq, float *dus, void *part)                       \
	{                                                                                         \
		om_gemm8_run(&NAME, &(struct om_gemm8_call){                                      \
					.x = { OM_FFN8_CALL(r, e, f, n_), .step = OM_GEMM8_WIDTH, \
					    .a = { OM_AS16(dyq), g, u }, .c = { dg, du, h },      \
					    .part = (float *)part },                              \
					.b = { wq },                                              \
					.sa = { dys },                                            \
					.sb = { ws },                                             \
					.q = { dgq, duq },                                        \
					.s = { dgs, dus } });                                     \
	}

#define OM_GROUPED_GLU_8(NAME, r, e, f, n, a)                                             \
	OM_FFN8_SIZES(r, e, n, f, a)                                                      \
	OM_FFN8_Y(NAME##_x, r, e, f, n)                                                   \
	void NAME(const om_e4m3 *xq, const float *xs, const om_e4m3 *gq, const float *gs, \
	    const om_e4m3 *uq, const float *us, const int32_t *off, const float *p,       \
	    const int32_t *src, om_bf16 *g, om_bf16 *u, om_e4m3 *hq, float *hs)           \
	{                                                                                 \
		NAME##_x_run(xq, xs, gq, gs, uq, us, off, p, src, g, u, hq, hs);          \
	}                                                                                 \
	OM_FFN_CHECKS(NAME, r, e, om_ffn8_check(NAME##_x_run, false, r, e, f, n, a, off, seed))

/* ws: OM_FFN_TILES(f) * r */
#define OM_GROUPED_DX_GLU_8(NAME, r, e, n, f, a)                                                  \
	OM_FFN8_SIZES(r, e, n, f, a)                                                              \
	OM_FFN8_X(NAME##_x, r, e, n, f)                                                           \
	OM_FFN_DP(NAME##_dp, r)                                                                   \
	void NAME(const om_e4m3 *dyq, const float *dys, const om_e4m3 *wtq, const float *wts,     \
	    const int32_t *off, const om_bf16 *g, const om_bf16 *u, const float *p,               \
	    const int32_t *src, om_bf16 *dg, om_bf16 *du, float *dp, om_e4m3 *dgq, float *dgs,    \
	    om_e4m3 *duq, float *dus, void *ws)                                                   \
	{                                                                                         \
		NAME##_x_run(                                                                     \
		    dyq, dys, wtq, wts, off, g, u, p, src, NULL, dg, du, dgq, dgs, duq, dus, ws); \
		NAME##_dp_run(ws, off, src, dp);                                                  \
	}                                                                                         \
	OM_FFN_CHECKS(NAME, r, e,                                                                 \
	    om_ffn8_bwd_check(                                                                    \
		NAME##_x_run, NAME##_dp_run, false, false, r, e, n, f, a, off, seed))
#define OM_GROUPED_DX_GLU_H_8(NAME, r, e, n, f, a)                                             \
	OM_FFN8_SIZES(r, e, n, f, a)                                                           \
	OM_FFN8_X(NAME##_x, r, e, n, f)                                                        \
	OM_FFN_DP(NAME##_dp, r)                                                                \
	void NAME(const om_e4m3 *dyq, const float *dys, const om_e4m3 *wtq, const float *wts,  \
	    const int32_t *off, const om_bf16 *g, const om_bf16 *u, const float *p,            \
	    const int32_t *src, om_bf16 *h, om_bf16 *dg, om_bf16 *du, float *dp, om_e4m3 *dgq, \
	    float *dgs, om_e4m3 *duq, float *dus, void *ws)                                    \
	{                                                                                      \
		NAME##_x_run(                                                                  \
		    dyq, dys, wtq, wts, off, g, u, p, src, h, dg, du, dgq, dgs, duq, dus, ws); \
		NAME##_dp_run(ws, off, src, dp);                                               \
	}                                                                                      \
	OM_FFN_CHECKS(NAME, r, e,                                                              \
	    om_ffn8_bwd_check(NAME##_x_run, NAME##_dp_run, false, true, r, e, n, f, a, off, seed))

/* The same with a weight of the row's own. */
#define OM_GROUPED_GLU_ROWS_8(NAME, r, e, f, n, a)                                               \
	OM_FFN8_SIZES(r, e, n, f, a)                                                             \
	OM_FFN8_Y(NAME##_x, r, e, f, n)                                                          \
	void NAME(const om_e4m3 *xq, const float *xs, const om_e4m3 *gq, const float *gs,        \
	    const om_e4m3 *uq, const float *us, const int32_t *off, const float *pr, om_bf16 *g, \
	    om_bf16 *u, om_e4m3 *hq, float *hs)                                                  \
	{                                                                                        \
		NAME##_x_run(xq, xs, gq, gs, uq, us, off, pr, NULL, g, u, hq, hs);               \
	}                                                                                        \
	OM_FFN_CHECKS(NAME, r, e, om_ffn8_check(NAME##_x_run, true, r, e, f, n, a, off, seed))

#define OM_GROUPED_DX_GLU_ROWS_8(NAME, r, e, n, f, a)                                              \
	OM_FFN8_SIZES(r, e, n, f, a)                                                               \
	OM_FFN8_X(NAME##_x, r, e, n, f)                                                            \
	OM_FFN_DP(NAME##_dp, r)                                                                    \
	void NAME(const om_e4m3 *dyq, const float *dys, const om_e4m3 *wtq, const float *wts,      \
	    const int32_t *off, const om_bf16 *g, const om_bf16 *u, const float *pr, om_bf16 *dg,  \
	    om_bf16 *du, float *dpr, om_e4m3 *dgq, float *dgs, om_e4m3 *duq, float *dus, void *ws) \
	{                                                                                          \
		NAME##_x_run(dyq, dys, wtq, wts, off, g, u, pr, NULL, NULL, dg, du, dgq, dgs, duq, \
		    dus, ws);                                                                      \
		NAME##_dp_run(ws, off, NULL, dpr);                                                 \
	}                                                                                          \
	OM_FFN_CHECKS(NAME, r, e,                                                                  \
	    om_ffn8_bwd_check(NAME##_x_run, NAME##_dp_run, true, false, r, e, n, f, a, off, seed))

#define OM_GROUPED_DX_GLU_H_ROWS_8(NAME, r, e, n, f, a)                                          \
	OM_FFN8_SIZES(r, e, n, f, a)                                                             \
	OM_FFN8_X(NAME##_x, r, e, n, f)                                                          \
	OM_FFN_DP(NAME##_dp, r)                                                                  \
	void NAME(const om_e4m3 *dyq, const float *dys, const om_e4m3 *wtq, const float *wts,    \
	    const int32_t *off, const om_bf16 *g, const om_bf16 *u, const float *pr, om_bf16 *h, \
	    om_bf16 *dg, om_bf16 *du, float *dpr, om_e4m3 *dgq, float *dgs, om_e4m3 *duq,        \
	    float *dus, void *ws)                                                                \
	{                                                                                        \
		NAME##_x_run(                                                                    \
		    dyq, dys, wtq, wts, off, g, u, pr, NULL, h, dg, du, dgq, dgs, duq, dus, ws); \
		NAME##_dp_run(ws, off, NULL, dpr);                                               \
	}                                                                                        \
	OM_FFN_CHECKS(NAME, r, e,                                                                \
	    om_ffn8_bwd_check(NAME##_x_run, NAME##_dp_run, true, true, r, e, n, f, a, off, seed))

typedef void om_ffn8_fn(const om_e4m3 *xq, const float *xs, const om_e4m3 *gq, const float *gs,
    const om_e4m3 *uq, const float *us, const int32_t *off, const float *p, const int32_t *src,
    om_bf16 *g, om_bf16 *u, om_e4m3 *hq, float *hs);
typedef void om_ffn8_bwd_fn(const om_e4m3 *dyq, const float *dys, const om_e4m3 *wq,
    const float *ws, const int32_t *off, const om_bf16 *g, const om_bf16 *u, const float *p,
    const int32_t *src, om_bf16 *h, om_bf16 *dg, om_bf16 *du, om_e4m3 *dgq, float *dgs,
    om_e4m3 *duq, float *dus, void *part);

/* The weights' scales are so much smaller that sums of n products are about `to` in size. */
static inline int
om_ffn8_down(int64_t n, double to)
{
	return (int)round(log2(6e4 * sqrt((double)n) / to));
}

/*
 * A block of 128 numbers in e4m3: of those that are given exactly, all must be quantised as
 * quantise_ref.h says; of those that were rounded otherwise, near enough.
 */
static inline bool
om_ffn8_right(const om_e4m3 *q, float s, const double *want, bool exact)
{
	double most = 0, largest = 0;
	bool right = true;
	for (int i = 0; i < 128; i++)
		most = fmax(most, fabs(want[i]));
	const int e = om_exponent_ref(most, 0, -126);
	if (exact && s != ldexpf(1, e))
		return false;
	for (int i = 0; i < 128; i++) {
		const double got = om_e4m3_ref(q[i]) * s;
		largest = fmax(largest, fabs(om_e4m3_ref(q[i])));
		if (exact)
			right &= q[i] == om_e4m3_code_ref(ldexp(want[i], -e));
		else
			right &= fabs(got - want[i]) <= fabs(want[i]) * 0.07 + s * 0x1p-9;
	}
	return right && (most < 0x1p-100 || largest >= 208);
}

/* Row `row` of q [r, f] and of its scales [f/128, r]. */
static inline bool
om_ffn8_row(const om_e4m3 *q, const float *s, int64_t r, int64_t f, int64_t row, const double *want,
    bool exact)
{
	om_e4m3 got[128];
	float scale;
	bool right = true;
	for (int64_t j = 0; j < f; j += 128) {
		om_check_read(got, q + row * f + j, sizeof got);
		om_check_read(&scale, s + j / 128 * r + row, sizeof scale);
		right &= om_ffn8_right(got, scale, want + j, exact);
	}
	return right;
}

static inline double
om_ffn8_check(om_ffn8_fn *run, bool own, int64_t r, int64_t e, int64_t f, int64_t n, int a,
    const int32_t *off, uint64_t seed)
{
	const struct om_grouped8_case x = { r, e, f, n, 1, off, om_ffn8_down(n, OM_GLU_STRETCH) };
	const int64_t used = off[e], bytes[4] = { r * f * 2, r * f * 2, r * f, r * (f / 128) * 4 };
	const struct om_grouped8_arrays v = om_grouped8_fill(&x, 2, seed);
	float *p = om_check_f32(r, seed, 2, 1);
	int32_t *src, *d_src = om_ffn_src(own, r, seed, &src);
	void *out[2][4];
	om_bf16 *got = malloc((size_t)f * 4);
	double *want = malloc((size_t)f * sizeof *want);
	struct om_err ey = { .scale = 1 };
	for (int i = 0; i < 2; i++) {
		for (int k = 0; k < 4; k++)
			out[i][k] = om_check_nan((size_t)bytes[k]);
		run(v.a[0], v.sa[0], v.w[0], v.sw[0], v.w[1], v.sw[1], v.off, p, d_src, out[i][0],
		    out[i][1], out[i][2], out[i][3]);
	}
	for (int k = 0; k < 4 && bytes[0] <= OM_GEMM_WHOLE * 2; k++) {
		const int64_t kept = k == 3 ? bytes[3] : used * (bytes[k] / r);
		ey.wrong |= !om_ffn_same(out[0][k], out[1][k], kept, bytes[k] - kept);
	}
	for (int64_t s = 0; s < OM_GLU_SAMPLES && used > 0; s++) {
		const int64_t row = om_gemm_pick(s, used, seed, 90);
		for (int k = 0; k < 2; k++)
			om_check_read(
			    got + k * f, (om_bf16 *)out[s % 2][k] + row * f, (size_t)f * 2);
		for (int64_t j = 0; j < f; j++) {
			double slope, g = om_bf16_f32(got[j]), u = om_bf16_f32(got[f + j]);
			want[j] = om_unit(seed, 2, src[row]) * om_glu_ref(a, g, &slope) * u;
		}
		ey.wrong |= !om_ffn8_row(out[s % 2][2], out[s % 2][3], r, f, row, want, false);
		for (int64_t i = 0; i < 16; i++) {
			const int64_t j = om_gemm_pick(s + i, f, seed, 91);
			om_err_add(&ey, om_bf16_f32(got[i % 2 * f + j]),
			    om_grouped8_want(&x, i % 2, row, j, seed));
		}
	}
	OM_TIME(run(v.a[0], v.sa[0], v.w[0], v.sw[0], v.w[1], v.sw[1], v.off, p, d_src, out[0][0],
	    out[0][1], out[0][2], out[0][3]));
	om_check_end();
	free(src);
	free(got);
	free(want);
	return om_err_value(&ey);
}

static inline double
om_ffn8_bwd_check(om_ffn8_bwd_fn *run, om_ffn_dp_fn *sum, bool own, bool hidden, int64_t r,
    int64_t e, int64_t n, int64_t f, int a, const int32_t *off, uint64_t seed)
{
	const struct om_grouped8_case x = { r, e, f, n, 1, off, om_ffn8_down(n, 1) };
	const int64_t used = off[e], size = r * f;
	const struct om_grouped8_arrays v = om_grouped8_fill(&x, 1, seed);
	om_bf16 *d_g = om_check_bf16(size, seed, 6, OM_GLU_STRETCH);
	om_bf16 *d_u = om_gemm_padded(size, used * f, seed, 7);
	float *d_p = om_check_f32(r, seed, 8, 1), got_p;
	int32_t *src, *d_src = om_ffn_src(own, r, seed, &src);
	void *ws = om_check_nan((size_t)(r * OM_FFN_TILES(f)) * 4);
	om_bf16 *out[2][3], *got = malloc((size_t)f * 6);
	om_e4m3 *q[2][2];
	float *s[2][2], *dp = om_check_nan((size_t)r * 4);
	double *want = malloc((size_t)f * sizeof *want);
	struct om_err ed = { .scale = 1 }, eh = { .scale = 1 }, ep = { .scale = 1 };
	for (int i = 0; i < 2; i++) { /* then once more with dg and du in place of g and u */
		for (int k = 0; k < 3; k++)
			out[i][k] = i && k == 0 ? d_g : i && k == 1 ? d_u : om_check_nan(size * 2);
		for (int k = 0; k < 2; k++) {
			q[i][k] = om_check_nan((size_t)size);
			s[i][k] = om_check_nan((size_t)(r * (f / 128)) * 4);
		}
		run(v.a[0], v.sa[0], v.w[0], v.sw[0], v.off, d_g, d_u, d_p, d_src, out[i][2],
		    out[i][0], out[i][1], q[i][0], s[i][0], q[i][1], s[i][1], ws);
		sum(ws, v.off, d_src, dp);
	}
	for (int k = 0; k < (hidden ? 3 : 2) && size <= OM_GEMM_WHOLE; k++)
		eh.wrong |= !om_ffn_same(out[0][k], out[1][k], used * f * 2, (size - used * f) * 2);
	for (int k = 0; k < 2 && size <= OM_GEMM_WHOLE; k++)
		eh.wrong |= !om_ffn_same(q[0][k], q[1][k], used * f, size - used * f) ||
			    !om_ffn_same(s[0][k], s[1][k], r * (f / 128) * 4, 0);
	for (int64_t i = 0; i < 24 && used > 0; i++) {
		const int64_t row = om_gemm_pick(i, used, seed, 90);
		const double p = om_unit(seed, 8, src[row]);
		const bool whole = i < 4;
		double dot = 0;
		for (int k = 0; k < (hidden ? 3 : 2); k++)
			om_check_read(got + k * f, out[i % 2][k] + row * f, (size_t)f * 2);
		for (int k = 0; k < 2; k++) {
			for (int64_t j = 0; j < f; j++)
				want[j] = om_bf16_f32(got[k * f + j]);
			eh.wrong |= !om_ffn8_row(q[i % 2][k], s[i % 2][k], r, f, row, want, true);
		}
		for (int64_t j = 0; j < f; j++) {
			const int64_t at = row * f + j;
			double slope, u = om_unit_bf16(seed, 7, at);
			double act = om_glu_ref(
			    a, OM_GLU_STRETCH * (double)om_unit_bf16(seed, 6, at), &slope);
			if (hidden)
				om_err_add(&eh, om_bf16_f32(got[2 * f + j]), p * act * u);
			if (!whole && j % 64 != i % 64 && j != f - 1)
				continue;
			const double d = om_grouped8_want(&x, 0, row, j, seed);
			om_err_add(&ed, om_bf16_f32(got[j]), p * d * u * slope);
			om_err_add(&ed, om_bf16_f32(got[f + j]), p * d * act);
			dot += d * act * u;
			ep.scale = fmax(ep.scale, fabs(d * act * u));
		}
		om_check_read(&got_p, dp + src[row], 4);
		if (whole)
			om_err_add(&ep, got_p, dot);
	}
	OM_TIME({
		run(v.a[0], v.sa[0], v.w[0], v.sw[0], v.off, d_g, d_u, d_p, d_src, out[0][2],
		    out[0][0], out[0][1], q[0][0], s[0][0], q[0][1], s[0][1], ws);
		sum(ws, v.off, d_src, dp);
	});
	om_check_end();
	free(src);
	free(got);
	free(want);
	/* what is computed from dh has two roundings, dp f of them at random */
	return fmax(fmax(om_err_value(&ed) / 2, om_err_value(&eh)), om_err_value(&ep) / 4);
}

#endif
#endif
