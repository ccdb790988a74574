/*
 * Products of gated feed-forward layers together with the activation around them (glu.h, whose a
 * chooses it):
 *
 *   grouped_glu     g, u [r, f] = x [r, n] times the first half of w [2 e, f, n], and times the
 *                   second; h [r, f], row i, = p[src[i]] act(g) u
 *   grouped_dx_glu  dh [r, f] = dy [r, n] w [e, n, f], which stays in registers;
 *                   dg = p dh u act'(g), du = p dh act(g), dp[src[i]] = dh . (act(g) u) of row i
 *   grouped_dx_glu_h  and h once more
 *   ..._rows        the same of each with a weight pr [r] and dpr [r] of the row's own
 *   linear_glu, linear_dx_glu, linear_dx_glu_h  the same without groups, off, p and src
 *
 * g, u and dh are rounded before they are used, so that all but dp, whose sum has another order,
 * has the bits of the ops one by one. Rows are grouped as in grouped.h; r is t * k routed rows.
 *
 * These are epilogues of gemm_sm90.h. Forward, a tile is 128 columns of g and the same 128 of u, so
 * that a thread's sums are those of the same elements. Backward, g and u come through the ring
 * behind the slabs, 64 columns a stage; what is computed from them is laid out in their place, and
 * stored from there, where dg may be g and du may be u. A row's part of dp in each tile goes to
 * workspace; a second kernel adds them up in order.
 */
#ifndef OM_FFN_H
#define OM_FFN_H

#include "activation.h"
#include "gemm.h"

#define OM_FFN_SIZES(m, e, n, f, a)                                                     \
	static_assert((m) >= 1 && (m) <= 0x7fffff00, "ffn: rows are counted in int32"); \
	static_assert((e) >= 1 && (n) >= 8 && (f) >= 8, "ffn: sizes start at 1");       \
	static_assert((n) % 8 == 0 && (f) % 8 == 0, "ffn: n % 8, f % 8");               \
	static_assert((a) == 0 || (a) == 1, "ffn: no such gated activation");
#define OM_FFN_WIDTH 256
#define OM_FFN_TILES(f) OM_CEIL(f, OM_FFN_WIDTH)

#ifdef __CUDACC__ /* ---- device ---- */

#include "sm80.h"

/* A box of 16 rows, of which some may be another group's, to row y and column x of c. */
template <class S>
OM_DEV void
om_ffn_store(uint32_t box, const om_gemm_args &to, int i, int x, int y, int rows)
{
	const int lane = threadIdx.x % 32, cols = S::N::width[0] - x;
	if (!S::ROWS || rows >= 16) {
		if (lane == 0)
			om_tma_store(&to.map_c[i], box, x, y, 0);
		return;
	}
	om_bf16 *c = (om_bf16 *)to.c[i] + (int64_t)y * S::N::width[0] + x;
	for (int at = lane; at < rows * 8; at += 32) {
		const int row = at / 8, chunk = at % 8;
		uint32_t v[4];
		om_load16(v, box + row * 128 + (chunk ^ row % 8) * 16);
		if (chunk * 8 < cols)
			*(uint4 *)(c + (int64_t)row * S::N::width[0] + chunk * 8) =
			    make_uint4(v[0], v[1], v[2], v[3]);
	}
}

/* Where in a box of 16 rows by 128 bytes this lane's row of four matrices begins. */
OM_DEV uint32_t
om_ffn_place(uint32_t box, int j)
{
	const int lane = threadIdx.x % 32;
	return box + lane % 16 * 128 + (lane / 16 ^ lane % 8 ^ j) * 16;
}

/* Without src a row's weight is its own. */
template <bool ROUTED>
OM_DEV void
om_ffn_weights(float (&w)[2], const om_gemm_args &x, const om_gemm_tile &t)
{
	const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, at = t.first + t.row + row;
	w[0] = w[1] = 1;
	if (ROUTED && row < t.rows)
		w[0] = x.p[x.src ? x.src[at] : at];
	if (ROUTED && row + 8 < t.rows)
		w[1] = x.p[x.src ? x.src[at + 8] : at + 8];
}

/* A thread's sums as bf16, two in each. */
template <int WIDTH>
OM_DEV void
om_ffn_round(uint32_t (&y)[WIDTH / 4], const float (&d)[WIDTH / 2])
{
#pragma unroll
	for (int i = 0; i < WIDTH / 4; i++)
		y[i] = om_pack(d[i * 2], d[i * 2 + 1]);
}

template <int A, bool ROUTED> struct om_ffn_glu : om_gemm_plain {
	static constexpr bool HALVES = true;

	template <class S>
	OM_DEV void
	begin(float (&w)[2], const om_gemm_args &x, const om_gemm_tile &t)
	{
		om_ffn_weights<ROUTED>(w, x, t);
	}

	OM_DEV uint32_t
	hidden(float p, uint32_t g, uint32_t u)
	{
		float slope;
		return om_pack(p * (om_activation<A>(om_lo(g), slope) * om_lo(u)),
		    p * (om_activation<A>(om_hi(g), slope) * om_hi(u)));
	}

	/* g, u and h of 64 columns, then of the others, each to one of two boxes in turn */
	template <class S>
	OM_DEV void
	store(float (&d)[S::WIDTH / 2], const float (&w)[2], const om_gemm_args &x,
	    const om_gemm_tile &t, om_gemm_ring<S> &, uint32_t boxes)
	{
		constexpr int HALF = S::WIDTH / 2;
		const int warp = om_warp(), rows = t.rows - warp * 16;
		const int row = t.first + t.row + warp * 16;
		uint32_t y[S::WIDTH / 4];
		if (rows <= 0)
			return;
		om_ffn_round<S::WIDTH>(y, d);
#pragma unroll
		for (int i = 0; i < HALF / 64 * 3; i++) {
			const int at = i / 3 * 64, what = i % 3;
			const uint32_t box = boxes + i % 2 * OM_GEMM_BOX;
			if (t.col + at >= S::N::width[0])
				break;
			if (i == 0) /* of the tile before, the last box may be this one */
				om_bulk_wait_read<0>();
			else
				om_bulk_wait_read<1>();
			__syncwarp();
#pragma unroll
			for (int j = 0; j < 8; j += 2) {
				const uint32_t *g = y + (at / 8 + j) * 2, *u = g + HALF / 4;
				uint32_t v[4];
#pragma unroll
				for (int k = 0; k < 4; k++)
					v[k] = what == 0   ? g[k]
					       : what == 1 ? u[k]
							   : hidden(w[k % 2], g[k], u[k]);
				om_stmatrix(om_ffn_place(box, j), v[0], v[1], v[2], v[3]);
			}
			om_fence_async();
			__syncwarp();
			om_ffn_store<S>(box, x, what, t.col + at, row, rows);
			om_bulk_commit();
		}
	}
};

/* H: h is wanted, too. A stage has 64 columns of g, then u, which become dg and du, then h. */
template <int A, bool ROUTED, bool H> struct om_ffn_slope : om_gemm_plain {
	static constexpr int PART = OM_GEMM_M * 128;

	template <class S>
	OM_DEV int
	more(const om_gemm_tile &t)
	{
		return OM_CEIL(min(S::N::width[0] - t.col, S::WIDTH), 64);
	}

	template <class S>
	OM_DEV void
	load(om_gemm_ring<S> &r, const om_gemm_args &x, const om_gemm_tile &t)
	{
		static_assert(3 * PART <= S::STAGE, "a stage has room for g, u and h");
#pragma unroll 1
		for (int i = 0; i < more<S>(t); i++, r.next()) {
			const uint32_t bar = r.fill(2 * PART);
			const int row = t.first + t.row, col = t.col + i * 64;
			om_gemm_load<OM_GEMM_M, 0>(r.at(), &x.map_a[1], bar, row, col, 0);
			om_gemm_load<OM_GEMM_M, 0>(r.at() + PART, &x.map_a[2], bar, row, col, 0);
		}
	}

	template <class S>
	OM_DEV void
	begin(float (&w)[2], const om_gemm_args &x, const om_gemm_tile &t)
	{
		om_ffn_weights<ROUTED>(w, x, t);
	}

	/* by 64 columns of dh; sum += each row's part of dp */
	OM_DEV void
	slope(const float *c, const float (&w)[2], uint32_t box, float (&sum)[2])
	{
		uint32_t g[2][4], u[2][4]; /* of 16 columns, and of the next */
		om_ldmatrix<0>(g[0], om_ffn_place(box, 0));
		om_ldmatrix<0>(u[0], om_ffn_place(box + PART, 0));
#pragma unroll
		for (int j = 0; j < 8; j += 2) {
			uint32_t dg[4], du[4], h[4];
			const int now = j / 2 % 2;
			if (j < 6) {
				om_ldmatrix<0>(g[!now], om_ffn_place(box, j + 2));
				om_ldmatrix<0>(u[!now], om_ffn_place(box + PART, j + 2));
			}
#pragma unroll
			for (int k = 0; k < 4; k++) {
				const uint32_t d = om_pack(c[j * 4 + k * 2], c[j * 4 + k * 2 + 1]);
				const float ds[2] = { om_lo(d), om_hi(d) };
				float gs[2] = { om_lo(g[now][k]), om_hi(g[now][k]) };
				float us[2] = { om_lo(u[now][k]), om_hi(u[now][k]) }, hs[2];
#pragma unroll
				for (int i = 0; i < 2; i++) {
					const float p = w[k % 2], pd = p * ds[i];
					float s, act = om_activation<A>(gs[i], s);
					hs[i] = act * us[i];
					sum[k % 2] += ds[i] * hs[i];
					hs[i] = p * hs[i];
					gs[i] = pd * (us[i] * s);
					us[i] = pd * act;
				}
				dg[k] = om_pack(gs[0], gs[1]);
				du[k] = om_pack(us[0], us[1]);
				h[k] = om_pack(hs[0], hs[1]);
			}
			om_stmatrix(om_ffn_place(box, j), dg[0], dg[1], dg[2], dg[3]);
			om_stmatrix(om_ffn_place(box + PART, j), du[0], du[1], du[2], du[3]);
			if (H)
				om_stmatrix(
				    om_ffn_place(box + 2 * PART, j), h[0], h[1], h[2], h[3]);
		}
	}

	template <class S>
	OM_DEV void
	store(float (&d)[S::WIDTH / 2], const float (&w)[2], const om_gemm_args &x,
	    const om_gemm_tile &t, om_gemm_ring<S> &r, uint32_t)
	{
		const int warp = om_warp(), rows = t.rows - warp * 16, chunks = more<S>(t);
		const int row = t.first + t.row + warp * 16;
		float sum[2] = { 0, 0 };
		int held = -1; /* the stage before, from which stores may still read */
#pragma unroll
		for (int i = 0; i < S::WIDTH / 64; i++) {
			if (i >= chunks)
				break;
			const uint32_t box = r.at() + warp * 16 * 128;
			r.wait();
			if (rows > 0) {
				slope(d + i * 32, w, box, sum);
				om_fence_async();
				__syncwarp();
#pragma unroll
				for (int k = 0; k < (H ? 3 : 2); k++)
					om_ffn_store<S>(
					    box + k * PART, x, k, t.col + i * 64, row, rows);
				om_bulk_commit();
			}
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
		parts<S>(sum, x, t, rows);
	}

	/* of rows that four lanes have each */
	template <class S>
	OM_DEV void
	parts(const float (&sum)[2], const om_gemm_args &x, const om_gemm_tile &t, int rows)
	{
		const int lane = threadIdx.x % 32, row = t.first + t.row + om_warp() * 16;
#pragma unroll
		for (int i = 0; i < 2 && ROUTED; i++) {
			float s = sum[i];
			s += __shfl_xor_sync(0xffffffffu, s, 1);
			s += __shfl_xor_sync(0xffffffffu, s, 2);
			if (lane % 4 == 0 && lane / 4 + i * 8 < rows)
				x.part[(int64_t)(t.col / S::WIDTH) * S::M + row + lane / 4 +
				       i * 8] = s;
		}
	}
};

/* dp of each row from its parts, of which those of one tile's columns lie together */
template <int M, int G, int PARTS>
OM_DEV void
om_ffn_dp(const float *part, const int32_t *off, const int32_t *src, float *dp)
{
	const int row = blockIdx.x * 256 + threadIdx.x;
	if (row >= off[G])
		return;
	float sum = 0;
#pragma unroll 8
	for (int i = 0; i < PARTS; i++)
		sum += part[(int64_t)i * M + row];
	dp[src ? src[row] : row] = sum;
}

#define OM_FFN_GLU(a, routed) om_ffn_glu<a, routed>
#define OM_FFN_SLOPE(a, routed, h) om_ffn_slope<a, routed, h>
#define OM_FFN_Y(NAME, routed, groups, e, m, f, n, a)                                       \
	OM_FFN_SIZES(m, e, n, f, a)                                                         \
	OM_GEMM_KERNEL(NAME, OM_FFN_GLU(a, routed), om_bf16, 0, groups, e, m, om_beside<f>, \
	    om_beside<n>, OM_FFN_WIDTH, 0, 0, 1, 1)
#define OM_FFN_X(NAME, routed, groups, e, m, n, f, a, h)                                         \
	OM_FFN_SIZES(m, e, n, f, a)                                                              \
	OM_GEMM_KERNEL(NAME, OM_FFN_SLOPE(a, routed, h), om_bf16, 0, groups, e, m, om_beside<f>, \
	    om_beside<n>, OM_FFN_WIDTH, 0, 1, 1, 1)
#define OM_FFN_DP(NAME, r, e, f)                                                   \
	OM_GLOBAL(256, 1)                                                          \
	NAME(const float *part, const int32_t *off, const int32_t *src, float *dp) \
	{                                                                          \
		om_ffn_dp<r, e, OM_FFN_TILES(f)>(part, off, src, dp);              \
	}

#define OM_GROUPED_GLU(NAME, r, e, f, n, a) OM_FFN_Y(NAME##_x, true, OM_GEMM_ROWS, e, r, f, n, a)
#define OM_GROUPED_DX_GLU(NAME, r, e, n, f, a)                       \
	OM_FFN_X(NAME##_x, true, OM_GEMM_ROWS, e, r, n, f, a, false) \
	OM_FFN_DP(NAME##_dp, r, e, f)
#define OM_GROUPED_DX_GLU_H(NAME, r, e, n, f, a)                    \
	OM_FFN_X(NAME##_x, true, OM_GEMM_ROWS, e, r, n, f, a, true) \
	OM_FFN_DP(NAME##_dp, r, e, f)
#define OM_GROUPED_GLU_ROWS OM_GROUPED_GLU
#define OM_GROUPED_DX_GLU_ROWS OM_GROUPED_DX_GLU
#define OM_GROUPED_DX_GLU_H_ROWS OM_GROUPED_DX_GLU_H
#define OM_LINEAR_GLU(NAME, m, f, n, a) OM_FFN_Y(NAME##_x, false, OM_GEMM_ONE, 1, m, f, n, a)
#define OM_LINEAR_DX_GLU(NAME, m, n, f, a) \
	OM_FFN_X(NAME##_x, false, OM_GEMM_ONE, 1, m, n, f, a, false)
#define OM_LINEAR_DX_GLU_H(NAME, m, n, f, a) \
	OM_FFN_X(NAME##_x, false, OM_GEMM_ONE, 1, m, n, f, a, true)

#else /* ---- host ---- */

#include <assert.h>

#define OM_FFN_Y(NAME, groups_, e, m_, f, n_)                                                      \
	OM_KERNEL(NAME, OM_GEMM_THREADS, OM_GEMM_SMEM_OF(om_bf16, OM_FFN_WIDTH, groups_, e))       \
	static inline void NAME##_run(const om_bf16 *x, const om_bf16 *w, const int32_t *off,      \
	    const float *p, const int32_t *src, om_bf16 *g, om_bf16 *u, om_bf16 *h)                \
	{                                                                                          \
		om_gemm_run(&NAME,                                                                 \
		    &(struct om_gemm_call){ groups_, e, m_, { f }, { n_ }, OM_FFN_WIDTH / 2, true, \
			0, 0, 1, 1, 2, { x }, w, { g, u, h }, off, .p = p, .src = src });          \
	}
#define OM_FFN_X(NAME, groups_, e, m_, n_, f)                                                     \
	OM_KERNEL(NAME, OM_GEMM_THREADS, OM_GEMM_SMEM_OF(om_bf16, OM_FFN_WIDTH, groups_, e))      \
	static inline void NAME##_run(const om_bf16 *dy, const om_bf16 *w, const int32_t *off,    \
	    const om_bf16 *g, const om_bf16 *u, const float *p, const int32_t *src, om_bf16 *h,   \
	    om_bf16 *dg, om_bf16 *du, void *part)                                                 \
	{                                                                                         \
		om_gemm_run(                                                                      \
		    &NAME, &(struct om_gemm_call){ groups_, e, m_, { f }, { n_ }, OM_FFN_WIDTH,   \
			       false, 0, 1, 1, 1, 2, { dy, g, u }, w, { dg, du, h }, off, .p = p, \
			       .src = src, .part = (float *)part });                              \
	}

/* As in grouped.h, NAME_check_as(seed, how) tries one way to share the rows. */
#define OM_FFN_CHECKS(NAME, r, e, call)                             \
	double NAME##_check_as(uint64_t seed, int how)              \
	{                                                           \
		int32_t off[(e) + 1];                               \
		om_gemm_share(off, r, e, how, seed);                \
		return call;                                        \
	}                                                           \
	double NAME##_check(uint64_t seed)                          \
	{                                                           \
		return NAME##_check_as(seed, seed % OM_SHARE_WAYS); \
	}

#define OM_GROUPED_GLU(NAME, r, e, f, n, a)                                               \
	OM_FFN_SIZES(r, e, n, f, a)                                                       \
	OM_FFN_Y(NAME##_x, OM_GEMM_ROWS, e, r, f, n)                                      \
	void NAME(const om_bf16 *x, const om_bf16 *w, const int32_t *off, const float *p, \
	    const int32_t *src, om_bf16 *g, om_bf16 *u, om_bf16 *h)                       \
	{                                                                                 \
		NAME##_x_run(x, w, off, p, src, g, u, h);                                 \
	}                                                                                 \
	OM_FFN_CHECKS(NAME, r, e, om_ffn_check(NAME##_x_run, false, r, e, f, n, a, off, seed))

#define OM_LINEAR_GLU(NAME, m, f, n, a)                                                   \
	OM_FFN_SIZES(m, 1, n, f, a)                                                       \
	OM_FFN_Y(NAME##_x, OM_GEMM_ONE, 1, m, f, n)                                       \
	void NAME(const om_bf16 *x, const om_bf16 *w, om_bf16 *g, om_bf16 *u, om_bf16 *h) \
	{                                                                                 \
		NAME##_x_run(x, w, NULL, NULL, NULL, g, u, h);                            \
	}                                                                                 \
	double NAME##_check(uint64_t seed)                                                \
	{                                                                                 \
		return om_ffn_check(NAME##_x_run, false, m, 1, f, n, a, NULL, seed);      \
	}

#define OM_FFN_DP(NAME, r)                                                      \
	OM_KERNEL(NAME, 256, 0)                                                 \
	static inline void NAME##_run(                                          \
	    void *part, const int32_t *off, const int32_t *src, float *dp)      \
	{                                                                       \
		OM_LAUNCH(NAME, OM_CEIL(r, 256), 1, 1, &part, &off, &src, &dp); \
	}

/* ws: OM_FFN_TILES(f) * r */
#define OM_GROUPED_DX_GLU(NAME, r, e, n, f, a)                                               \
	OM_FFN_SIZES(r, e, n, f, a)                                                          \
	OM_FFN_X(NAME##_x, OM_GEMM_ROWS, e, r, n, f)                                         \
	OM_FFN_DP(NAME##_dp, r)                                                              \
	void NAME(const om_bf16 *dy, const om_bf16 *w, const int32_t *off, const om_bf16 *g, \
	    const om_bf16 *u, const float *p, const int32_t *src, om_bf16 *dg, om_bf16 *du,  \
	    float *dp, void *ws)                                                             \
	{                                                                                    \
		NAME##_x_run(dy, w, off, g, u, p, src, NULL, dg, du, ws);                    \
		NAME##_dp_run(ws, off, src, dp);                                             \
	}                                                                                    \
	OM_FFN_CHECKS(NAME, r, e,                                                            \
	    om_ffn_bwd_check(NAME##_x_run, NAME##_dp_run, false, false, r, e, n, f, a, off, seed))

#define OM_GROUPED_DX_GLU_H(NAME, r, e, n, f, a)                                             \
	OM_FFN_SIZES(r, e, n, f, a)                                                          \
	OM_FFN_X(NAME##_x, OM_GEMM_ROWS, e, r, n, f)                                         \
	OM_FFN_DP(NAME##_dp, r)                                                              \
	void NAME(const om_bf16 *dy, const om_bf16 *w, const int32_t *off, const om_bf16 *g, \
	    const om_bf16 *u, const float *p, const int32_t *src, om_bf16 *h, om_bf16 *dg,   \
	    om_bf16 *du, float *dp, void *ws)                                                \
	{                                                                                    \
		NAME##_x_run(dy, w, off, g, u, p, src, h, dg, du, ws);                       \
		NAME##_dp_run(ws, off, src, dp);                                             \
	}                                                                                    \
	OM_FFN_CHECKS(NAME, r, e,                                                            \
	    om_ffn_bwd_check(NAME##_x_run, NAME##_dp_run, false, true, r, e, n, f, a, off, seed))

#define OM_GROUPED_GLU_ROWS(NAME, r, e, f, n, a)                                           \
	OM_FFN_SIZES(r, e, n, f, a)                                                        \
	OM_FFN_Y(NAME##_x, OM_GEMM_ROWS, e, r, f, n)                                       \
	void NAME(const om_bf16 *x, const om_bf16 *w, const int32_t *off, const float *pr, \
	    om_bf16 *g, om_bf16 *u, om_bf16 *h)                                            \
	{                                                                                  \
		NAME##_x_run(x, w, off, pr, NULL, g, u, h);                                \
	}                                                                                  \
	OM_FFN_CHECKS(NAME, r, e, om_ffn_check(NAME##_x_run, true, r, e, f, n, a, off, seed))

#define OM_GROUPED_DX_GLU_ROWS(NAME, r, e, n, f, a)                                            \
	OM_FFN_SIZES(r, e, n, f, a)                                                            \
	OM_FFN_X(NAME##_x, OM_GEMM_ROWS, e, r, n, f)                                           \
	OM_FFN_DP(NAME##_dp, r)                                                                \
	void NAME(const om_bf16 *dy, const om_bf16 *w, const int32_t *off, const om_bf16 *g,   \
	    const om_bf16 *u, const float *pr, om_bf16 *dg, om_bf16 *du, float *dpr, void *ws) \
	{                                                                                      \
		NAME##_x_run(dy, w, off, g, u, pr, NULL, NULL, dg, du, ws);                    \
		NAME##_dp_run(ws, off, NULL, dpr);                                             \
	}                                                                                      \
	OM_FFN_CHECKS(NAME, r, e,                                                              \
	    om_ffn_bwd_check(NAME##_x_run, NAME##_dp_run, true, false, r, e, n, f, a, off, seed))

#define OM_GROUPED_DX_GLU_H_ROWS(NAME, r, e, n, f, a)                                            \
	OM_FFN_SIZES(r, e, n, f, a)                                                              \
	OM_FFN_X(NAME##_x, OM_GEMM_ROWS, e, r, n, f)                                             \
	OM_FFN_DP(NAME##_dp, r)                                                                  \
	void NAME(const om_bf16 *dy, const om_bf16 *w, const int32_t *off, const om_bf16 *g,     \
	    const om_bf16 *u, const float *pr, om_bf16 *h, om_bf16 *dg, om_bf16 *du, float *dpr, \
	    void *ws)                                                                            \
	{                                                                                        \
		NAME##_x_run(dy, w, off, g, u, pr, NULL, h, dg, du, ws);                         \
		NAME##_dp_run(ws, off, NULL, dpr);                                               \
	}                                                                                        \
	OM_FFN_CHECKS(NAME, r, e,                                                                \
	    om_ffn_bwd_check(NAME##_x_run, NAME##_dp_run, true, true, r, e, n, f, a, off, seed))

#define OM_LINEAR_DX_GLU(NAME, m, n, f, a)                                                 \
	OM_FFN_SIZES(m, 1, n, f, a)                                                        \
	OM_FFN_X(NAME##_x, OM_GEMM_ONE, 1, m, n, f)                                        \
	void NAME(const om_bf16 *dy, const om_bf16 *w, const om_bf16 *g, const om_bf16 *u, \
	    om_bf16 *dg, om_bf16 *du)                                                      \
	{                                                                                  \
		NAME##_x_run(dy, w, NULL, g, u, NULL, NULL, NULL, dg, du, NULL);           \
	}                                                                                  \
	double NAME##_check(uint64_t seed)                                                 \
	{                                                                                  \
		return om_ffn_bwd_check(                                                   \
		    NAME##_x_run, NULL, false, false, m, 1, n, f, a, NULL, seed);          \
	}

#define OM_LINEAR_DX_GLU_H(NAME, m, n, f, a)                                               \
	OM_FFN_SIZES(m, 1, n, f, a)                                                        \
	OM_FFN_X(NAME##_x, OM_GEMM_ONE, 1, m, n, f)                                        \
	void NAME(const om_bf16 *dy, const om_bf16 *w, const om_bf16 *g, const om_bf16 *u, \
	    om_bf16 *h, om_bf16 *dg, om_bf16 *du)                                          \
	{                                                                                  \
		NAME##_x_run(dy, w, NULL, g, u, NULL, NULL, h, dg, du, NULL);              \
	}                                                                                  \
	double NAME##_check(uint64_t seed)                                                 \
	{                                                                                  \
		return om_ffn_bwd_check(                                                   \
		    NAME##_x_run, NULL, false, true, m, 1, n, f, a, NULL, seed);           \
	}

typedef void om_ffn_fn(const om_bf16 *x, const om_bf16 *w, const int32_t *off, const float *p,
    const int32_t *src, om_bf16 *g, om_bf16 *u, om_bf16 *h);
typedef void om_ffn_bwd_fn(const om_bf16 *dy, const om_bf16 *w, const int32_t *off,
    const om_bf16 *g, const om_bf16 *u, const float *p, const int32_t *src, om_bf16 *h, om_bf16 *dg,
    om_bf16 *du, void *part);
typedef void om_ffn_dp_fn(void *part, const int32_t *off, const int32_t *src, float *dp);

/*
 * The sums are of unit scale times the root of their length; g is to be where all activations
 * bend, so w is scaled down to give that.
 */
static inline float
om_ffn_scale(int64_t n, double to)
{
	return (float)exp2(round(log2(to / sqrt((double)n))));
}

/* True if the arrays hold the same bits, and n2 bytes of the first from n on are still poisoned. */
static inline bool
om_ffn_same(const void *a, const void *b, int64_t n, int64_t n2)
{
	char *x = malloc((size_t)(n + n2) + 1), *y = malloc((size_t)(n + n2) + 1);
	om_check_read(x, a, (size_t)(n + n2));
	om_check_read(y, b, (size_t)(n + n2));
	bool same = memcmp(x, y, (size_t)n) == 0;
	for (int64_t i = n; i < n + n2; i++)
		same &= x[i] == (char)0xff;
	free(x);
	free(y);
	return same;
}

/* Which weight each row takes, on the host and on the device; there NULL where it is its own. */
static inline int32_t *
om_ffn_src(bool own, int64_t r, uint64_t seed, int32_t **src)
{
	*src = om_glu_src(r, seed);
	if (!own)
		return om_check_copy(*src, (size_t)r * sizeof **src);
	for (int64_t i = 0; i < r; i++)
		(*src)[i] = (int32_t)i;
	return NULL;
}

static inline double
om_ffn_check(om_ffn_fn *run, bool own, int64_t r, int64_t e, int64_t f, int64_t n, int a,
    const int32_t *off, uint64_t seed)
{
	const struct om_beside_case x = { .g = e, .m = r, .n = { f, f }, .k = n, .off = off };
	const int64_t used = off ? off[e] : r, size = r * f * 2;
	const double scale = om_ffn_scale(n, OM_GLU_STRETCH);
	om_bf16 *d_x = om_gemm_padded(r * n, used * n, seed, 0);
	om_bf16 *d_w = om_check_bf16(2 * e * f * n, seed, 1, (float)scale);
	float *d_p = off ? om_check_f32(r, seed, 2, 1) : NULL;
	int32_t *src, *d_src = om_ffn_src(own, r, seed, &src);
	int32_t *d_off = off ? om_check_copy(off, (size_t)(e + 1) * sizeof *off) : NULL;
	om_bf16 *out[2][3], *got = malloc((size_t)f * 6);
	struct om_err ey = { .scale = 1 }, eh = { .scale = 1 };
	for (int i = 0; i < 2; i++) {
		for (int k = 0; k < 3; k++)
			out[i][k] = om_check_nan((size_t)size);
		run(d_x, d_w, d_off, d_p, d_src, out[i][0], out[i][1], out[i][2]);
	}
	for (int k = 0; k < 3 && size <= OM_GEMM_WHOLE * 2; k++)
		eh.wrong |= !om_ffn_same(out[0][k], out[1][k], used * f * 2, size - used * f * 2);
	for (int64_t s = 0; s < OM_GLU_SAMPLES && used > 0; s++) {
		const int64_t row = om_gemm_pick(s, used, seed, 90);
		const double p = off ? om_unit(seed, 2, src[row]) : 1;
		for (int k = 0; k < 3; k++)
			om_check_read(got + k * f, out[s % 2][k] + row * f, (size_t)f * 2);
		for (int64_t j = 0; j < f; j++) {
			double slope, g = om_bf16_f32(got[j]), u = om_bf16_f32(got[f + j]);
			om_err_add(
			    &eh, om_bf16_f32(got[2 * f + j]), p * om_glu_ref(a, g, &slope) * u);
		}
		for (int64_t i = 0; i < 16; i++) {
			const int64_t j = om_gemm_pick(s + i, f, seed, 91);
			const int part = i % 2;
			om_err_add(&ey, om_bf16_f32(got[part * f + j]),
			    scale * om_beside_y(&x, part, row, j, seed));
		}
	}
	OM_TIME(run(d_x, d_w, d_off, d_p, d_src, out[0][0], out[0][1], out[0][2]));
	om_check_end();
	free(src);
	free(got);
	return fmax(om_err_value(&ey), om_err_value(&eh));
}

/* dh is the sum over n alone; dp, also over f, is of few rows. */
static inline double
om_ffn_bwd_check(om_ffn_bwd_fn *run, om_ffn_dp_fn *sum, bool own, bool hidden, int64_t r, int64_t e,
    int64_t n, int64_t f, int a, const int32_t *off, uint64_t seed)
{
	const struct om_beside_case x = { .g = e, .m = r, .n = { n }, .k = f, .off = off };
	const int64_t used = off ? off[e] : r, size = r * f * 2, parts = OM_FFN_TILES(f);
	const double scale = om_ffn_scale(n, 1);
	om_bf16 *d_y = om_gemm_padded(r * n, used * n, seed, 2);
	om_bf16 *d_w = om_check_bf16(e * n * f, seed, 1, (float)scale);
	om_bf16 *d_g = om_check_bf16(r * f, seed, 6, OM_GLU_STRETCH);
	om_bf16 *d_u = om_gemm_padded(r * f, used * f, seed, 7);
	float *d_p = off ? om_check_f32(r, seed, 8, 1) : NULL;
	int32_t *src, *d_src = om_ffn_src(own, r, seed, &src);
	int32_t *d_off = off ? om_check_copy(off, (size_t)(e + 1) * sizeof *off) : NULL;
	void *ws = om_check_nan((size_t)(r * parts) * 4);
	om_bf16 *out[2][3], *got = malloc((size_t)f * 6);
	float *dp[2], got_p[2];
	struct om_err ed = { .scale = 1 }, eh = { .scale = 1 }, ep = { .scale = 1 };
	for (int i = 0; i < 2; i++) { /* then once more with dg and du in place of g and u */
		out[i][0] = i ? d_g : om_check_nan((size_t)size);
		out[i][1] = i ? d_u : om_check_nan((size_t)size);
		out[i][2] = om_check_nan((size_t)size);
		dp[i] = om_check_nan((size_t)r * 4);
		run(d_y, d_w, d_off, d_g, d_u, d_p, d_src, out[i][2], out[i][0], out[i][1], ws);
		if (sum)
			sum(ws, d_off, d_src, dp[i]);
	}
	for (int k = 0; k < (hidden ? 3 : 2) && size <= OM_GEMM_WHOLE * 2; k++)
		eh.wrong |= !om_ffn_same(out[0][k], out[1][k], used * f * 2, size - used * f * 2);
	for (int64_t s = 0; s < 24 && used > 0; s++) {
		const int64_t row = om_gemm_pick(s, used, seed, 90);
		const double p = off ? om_unit(seed, 8, src[row]) : 1;
		const bool whole = sum && (s < 4 || f * n < 1 << 16);
		double want = 0;
		for (int k = 0; k < (hidden ? 3 : 2); k++)
			om_check_read(got + k * f, out[s % 2][k] + row * f, (size_t)f * 2);
		for (int64_t j = 0; j < f; j++) {
			const int64_t at = row * f + j;
			double slope, u = om_unit_bf16(seed, 7, at);
			double act = om_glu_ref(
			    a, OM_GLU_STRETCH * (double)om_unit_bf16(seed, 6, at), &slope);
			if (hidden)
				om_err_add(&eh, om_bf16_f32(got[2 * f + j]), p * act * u);
			if (!whole && j % 64 != s % 64 && j != f - 1)
				continue;
			const double d = scale * om_beside_dx(&x, row, j, seed);
			om_err_add(&ed, om_bf16_f32(got[j]), p * d * u * slope);
			om_err_add(&ed, om_bf16_f32(got[f + j]), p * d * act);
			want += d * act * u;
			ep.scale = fmax(ep.scale, fabs(d * act * u));
		}
		if (!sum)
			continue;
		for (int k = 0; k < 2; k++)
			om_check_read(&got_p[k], dp[k] + src[row], 4);
		ep.wrong |= memcmp(&got_p[0], &got_p[1], 4) != 0;
		if (whole)
			om_err_add(&ep, got_p[0], want);
	}
	OM_TIME({
		run(d_y, d_w, d_off, d_g, d_u, d_p, d_src, out[0][2], out[0][0], out[0][1], ws);
		if (sum)
			sum(ws, d_off, d_src, dp[0]);
	});
	om_check_end();
	free(src);
	free(got);
	/* what is computed from dh has two roundings, dp f of them at random */
	return fmax(fmax(om_err_value(&ed) / 2, om_err_value(&eh)), om_err_value(&ep) / 4);
}

#endif
#endif
