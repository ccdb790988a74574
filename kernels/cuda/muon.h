/*
 * Muon (Jordan et al., 2024): a matrix is stepped by its momentum, made orthogonal as far as a few
 * steps of Newton-Schulz do it. ctl [9], fp64, holds the step's scalars.
 *
 *   muon_master     matrices [r, c] one after the other, n numbers in all. Of each, g COEF drives
 *                   the momentum m <- momentum m + (1 - momentum) g, and x is that, or with j its
 *                   mean with g once more. x / |x|, in bf16, passes s times
 *                       x <- (a I + b x x' + c (x x')^2) x
 *                   where a tall one has x' x instead, on its other side; then
 *                   master -= lr (decay master + factor x), lr = LR lr_scale, and w is its
 *                   rounding. A skipped step leaves all as it is
 *   muon_drawn      the same with m in bf16: each becomes one of the two neighbours of what it is,
 *                   the nearer the likelier, by 16 bits that lots say (rng.h); x is from what it
 *                   was before
 *   normuon_master  before the step, row i of x is divided by the root of v[i] <- beta2 v[i] +
 *                   (1 - beta2) mean(x[i]^2), and x gets its old norm back (Li et al., 2025)
 *   normuon_drawn   both; v is drawn, too, by the upper half of the word of its row's first m, and
 *                   rows are divided by what it has become
 *
 * Two steps of Newton-Schulz are one product of x: with A = x x' and P the polynomial of A, after
 * the first step x x' is A' = P A P, since all of these commute, and after the second one x is
 * P' P x with P' the polynomial of A'. Only products of x are of l l h operations; those of two
 * matrices [l, l] are symmetric, which is half work. More steps than two from one x x' would need
 * more digits than bf16 has: what A' is off by counts twelve times as much in the step after.
 *
 * Matrices go by batches of b, whose products are gemm.h's in groups, a matrix each. The last batch
 * may have fewer: then the products of those of the batch before are computed once more, to no use,
 * so that every launch has one shape. r and c are multiples of 8.
 *
 * ws: of a batch x and y [r, c], and three matrices [l, l], l the lesser of r and c, in bf16;
 * sums of squares of blocks, and of rows before and after, in double; norms; offsets of groups.
 */
#ifndef OM_MUON_H
#define OM_MUON_H

#include "adamw.h"
#include "gemm.h"
#include "muon_ref.h"

#define OM_MUON_THREADS 256
#define OM_MUON_BLOCK (OM_MUON_THREADS * 16) /* elements of a block, all of one matrix */
#define OM_MUON_BLOCKS(r, c) OM_CEIL((int64_t)(r) * (c), OM_MUON_BLOCK)
#define OM_MUON_L(r, c) OM_GEMM_LESS(r, c)
#define OM_MUON_TWICE(r, c) (2 * (r) > 3 * (c) || 2 * (c) > 3 * (r)) /* two steps in one are less */

#define OM_MUON_SIZES(n, r, c, b)                                                                  \
	static_assert((r) >= 8 && (c) >= 8 && (r) % 8 == 0 && (c) % 8 == 0, "muon: r % 8, c % 8"); \
	static_assert((n) % ((int64_t)(r) * (c)) == 0 && (b) >= 1, "muon: whole matrices");        \
	static_assert((int64_t)(b) * (r) * (c) <= (int64_t)(n), "muon: the first batch is whole"); \
	static_assert((int64_t)(b) * (r) <= 0x7fffff00, "muon: rows are counted in int32");

#define OM_MUON_WIDTH(r, c, b) ((r) <= (c) ? OM_GEMM_WIDTH((b) * (r), r) : OM_GEMM_WIDE(c))
/* the polynomial times x, or, tall, x times it */
#define OM_MUON_STEP(NAME, r, c, b)                                               \
	OM_GEMM(NAME, om_bf16, 0, OM_GEMM_ROWS, b, (b) * (r), c, OM_MUON_L(r, c), \
	    OM_GEMM_WIDTH((b) * (r), c), 0, ((r) <= (c)), 1, 1)

#if OM_ARCH != 90
/* the product of two matrices [l, l]; x x' or, tall, x' x */
#define OM_MUON_TWO_OF(NAME, l, b)                                                               \
	OM_GEMM(NAME, om_bf16, 0, OM_GEMM_ROWS, b, (b) * (l), l, l, OM_GEMM_WIDTH((b) * (l), l), \
	    0, 0, 1, 1)
#define OM_MUON_GRAM_OF(NAME, r, c, b)                                                       \
	OM_GEMM(NAME, om_bf16, 0, ((r) <= (c) ? OM_GEMM_ROWS : OM_GEMM_SUMS), b,             \
	    ((r) <= (c) ? (b) * (r) : (c)), OM_MUON_L(r, c), ((r) <= (c) ? (c) : (b) * (r)), \
	    OM_MUON_WIDTH(r, c, b), ((r) > (c)), ((r) > (c)), 1, 1)
#endif

#ifdef __CUDACC__ /* ---- device ---- */

struct om_muon_rates {
	float beta, ahead; /* one minus the momentum; the same with Nesterov's, else 0 */
};

/*
 * A block's momentum, and x unscaled; the sum of its squares, of what it is rounded to. left: how
 * many matrices of the batch there are.
 */
template <int64_t SIZE, class MOMENT>
OM_DEV void
om_muon_momentum(om_muon_rates a, const float *g, const double *ctl, const int64_t *lots, MOMENT *m,
    om_bf16 *x, double *part, int left)
{
	constexpr bool drawn = sizeof(MOMENT) == sizeof(om_bf16);
	const int64_t base = (int64_t)blockIdx.y * SIZE;
	const int64_t first = (int64_t)blockIdx.x * OM_MUON_BLOCK + threadIdx.x * 4;
	const float coef = (float)ctl[OM_CTL_COEF];
	__shared__ om_adamw_piece piece;
	float sum = 0;
	if (blockIdx.y >= left || ctl[OM_CTL_SKIPPED] != 0)
		return;
	float4 p[4], q[4];
#pragma unroll
	for (int i = 0; i < 4; i++) { /* beyond the end the last ones, so that loads go together */
		const int64_t at = (base + min(first + i * OM_MUON_THREADS * 4, SIZE - 4)) / 4;
		p[i] = ((const float4 *)g)[at];
		q[i] = om_adamw_load(m, at);
	}
	if constexpr (drawn) {
		if (threadIdx.x == 0)
			piece = om_adamw_find(lots, m, base + (int64_t)blockIdx.x * OM_MUON_BLOCK);
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int64_t in = first + i * OM_MUON_THREADS * 4, at = (base + in) / 4;
		float *gi = &p[i].x, *mi = &q[i].x, u[4];
		if (in >= SIZE)
			break;
#pragma unroll
		for (int k = 0; k < 4; k++) {
			gi[k] = __fmul_rn(gi[k], coef); /* or it is part of the next one */
			mi[k] = __fmaf_rn(a.beta, gi[k] - mi[k], mi[k]);
			u[k] = __fmaf_rn(a.ahead, gi[k] - mi[k], mi[k]);
		}
		const uint2 v = make_uint2(om_pack(u[0], u[1]), om_pack(u[2], u[3]));
		struct om_philox draw = {};
		if constexpr (drawn)
			draw = om_adamw_draw(lots, m, piece, 4 * at);
		om_adamw_store(m, at, q[i], draw, 0);
		((uint2 *)x)[at] = v;
		sum += om_lo(v.x) * om_lo(v.x) + om_hi(v.x) * om_hi(v.x) + om_lo(v.y) * om_lo(v.y) +
		       om_hi(v.y) * om_hi(v.y);
	}
	const double total = om_sumsq_block<OM_MUON_THREADS>(sum);
	if (threadIdx.x == 0)
		part[blockIdx.y * OM_MUON_BLOCKS(SIZE, 1) + blockIdx.x] = total;
}

/* A block a matrix: what its x is to be multiplied by. The first one also writes offsets. */
template <int BLOCKS, int R, int L>
OM_DEV void
om_muon_norm(const double *part, float *norm, int32_t *off)
{
	double sum = 0;
	for (int i = threadIdx.x; i < BLOCKS; i += OM_MUON_THREADS)
		sum += part[(int64_t)blockIdx.x * BLOCKS + i];
	sum = om_sumsq_block<OM_MUON_THREADS>(sum);
	if (threadIdx.x == 0)
		norm[blockIdx.x] = (float)(1 / fmax(sqrt(sum), OM_MUON_EPS));
	for (int i = threadIdx.x; blockIdx.x == 0 && i <= gridDim.x; i += OM_MUON_THREADS) {
		off[i] = i * R;
		off[gridDim.x + 1 + i] = i * L;
	}
}

/* A row's mean square; keeping one, perhaps drawn, gives what it has become. m: the row's first. */
OM_DEV float
om_muon_row(const float *v)
{
	return *v;
}

OM_DEV float
om_muon_row(const om_bf16 *v)
{
	return om_f32(*v);
}

OM_DEV float
om_muon_keep(float *v, float x, const int64_t *, const float *)
{
	return *v = x;
}

OM_DEV float
om_muon_keep(om_bf16 *v, float x, const int64_t *lots, const om_bf16 *m)
{
	const struct om_philox draw = om_adamw_draw(lots, m, om_adamw_find(lots, m, 0), 0);
	*v = (om_bf16)(om_adamw_drawn(x, draw.v[0] >> 16) >> 16);
	return om_f32(*v);
}

/* A warp a row: v, and the row's sum of squares before it is divided and after. */
template <int R, int C, class MOMENT>
OM_DEV void
om_muon_rows(float beta, const double *ctl, const int64_t *lots, const om_bf16 *x, const MOMENT *m,
    MOMENT *v, double *sums, int left)
{
	const int row = blockIdx.x * (OM_MUON_THREADS / 32) + threadIdx.x / 32;
	float part = 0;
	if (row >= left * R || ctl[OM_CTL_SKIPPED] != 0)
		return;
	for (int c = threadIdx.x % 32 * 8; c < C; c += 256) {
		float y[8];
		om_load8(x + (int64_t)row * C + c, y);
#pragma unroll
		for (int k = 0; k < 8; k++)
			part = __fmaf_rn(y[k], y[k], part);
	}
	const double sum = om_warp_sum(part);
	if (threadIdx.x % 32)
		return;
	const float old = om_muon_row(v + row);
	const float now = om_muon_keep(
	    v + row, __fmaf_rn(beta, (float)(sum / C) - old, old), lots, m + (int64_t)row * C);
	const double by = sqrt((double)now) + OM_MUON_ROW_EPS;
	sums[2 * row] = sum;
	sums[2 * row + 1] = sum / by / by;
}

/* A block a matrix: what its x's norm was over what it is. */
template <int R>
OM_DEV void
om_muon_ratio(const double *sums, float *norm)
{
	double old = 0, now = 0;
	for (int i = threadIdx.x; i < R; i += OM_MUON_THREADS) {
		old += sums[2 * ((int64_t)blockIdx.x * R + i)];
		now += sums[2 * ((int64_t)blockIdx.x * R + i) + 1];
	}
	old = om_sumsq_block<OM_MUON_THREADS>(old);
	__syncthreads();
	now = om_sumsq_block<OM_MUON_THREADS>(now);
	if (threadIdx.x == 0)
		norm[blockIdx.x] = now > 0 ? (float)sqrt(old / now) : 0;
}

/* v: NULL, or NorMuon's. */
template <int64_t SIZE, int C, class MOMENT>
OM_DEV void
om_muon_update(double decay, double lr_scale, double factor, const double *ctl, const om_bf16 *x,
    const MOMENT *v, const float *norm, om_bf16 *w, float *master, int left)
{
	const double lr = ctl[OM_CTL_LR] * lr_scale;
	const float keep = (float)(1 - lr * decay), step = (float)(lr * factor);
	if (blockIdx.y >= left || ctl[OM_CTL_SKIPPED] != 0)
		return;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int64_t in =
		    (int64_t)blockIdx.x * OM_MUON_BLOCK + (i * OM_MUON_THREADS + threadIdx.x) * 8;
		const int64_t at = blockIdx.y * SIZE + in;
		float y[8], by = step;
		if (in >= SIZE)
			return;
		om_load8(x + at, y);
		float4 p = ((const float4 *)(master + at))[0],
		       q = ((const float4 *)(master + at))[1];
		if (v) /* 8 columns are one row's */
			by *= norm[blockIdx.y] /
			      (sqrtf(om_muon_row(v + at / C)) + (float)OM_MUON_ROW_EPS);
		p.x = __fmaf_rn(-by, y[0], keep * p.x), p.y = __fmaf_rn(-by, y[1], keep * p.y);
		p.z = __fmaf_rn(-by, y[2], keep * p.z), p.w = __fmaf_rn(-by, y[3], keep * p.w);
		q.x = __fmaf_rn(-by, y[4], keep * q.x), q.y = __fmaf_rn(-by, y[5], keep * q.y);
		q.z = __fmaf_rn(-by, y[6], keep * q.z), q.w = __fmaf_rn(-by, y[7], keep * q.w);
		((float4 *)(master + at))[0] = p;
		((float4 *)(master + at))[1] = q;
		const float out[8] = { p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w };
		om_store8(w + at, out);
	}
}

OM_DEV float
om_muon_polynomial(float gram, float square, bool diagonal)
{
	const float x = __fmaf_rn((float)OM_MUON_C, square, (float)OM_MUON_B * gram);
	return diagonal ? x + (float)OM_MUON_A : x;
}

#if OM_ARCH == 90

/*
 * A warp's 16 rows of a tile that lies above the diagonal, also to where they are mirrored: as
 * columns, by boxes of 64 rows of 32 bytes.
 */
template <class S>
OM_DEV void
om_muon_mirror(
    const float (&d)[S::WIDTH / 2], const om_gemm_args &x, const om_gemm_tile &t, uint32_t boxes)
{
	constexpr int COLS = S::BOXES / 32;
	const int lane = threadIdx.x % 32, warp = om_warp(), plane = S::ROWS ? 0 : t.group;
	const uint32_t at = boxes + (lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16;
	if (t.row + OM_GEMM_M > t.col || t.rows <= warp * 16)
		return;
#pragma unroll
	for (int c = 0; c < S::WIDTH; c += COLS) {
		om_bulk_wait_read();
		__syncwarp();
#pragma unroll
		for (int j = c / 8; j < (c + COLS) / 8; j += 2) {
			const float *p = d + j * 4, *q = p + 4;
			om_stmatrix_turned(at + (j * 8 - c) * 32, om_pack(p[0], p[1]),
			    om_pack(p[2], p[3]), om_pack(q[0], q[1]), om_pack(q[2], q[3]));
		}
		om_fence_async();
		__syncwarp();
		if (lane == 0)
#pragma unroll
			for (int i = 0; i < COLS; i += 64)
				if (t.col + c + i < S::N::width[0])
					om_tma_store(&x.map_c[1], boxes + i * 32, t.row + warp * 16,
					    t.first * S::ROWS + t.col + c + i, plane);
		om_bulk_commit();
	}
}

/*
 * What becomes of a tile of x x'; of the square of x x', which is at x.p; of another product of
 * what commutes. All are symmetric: half of them is computed, where boxes of the other half end
 * with a matrix. x.part, where it is not NULL, has factors of the matrices x.
 */
enum om_muon_of { OM_MUON_OF_X, OM_MUON_OF_GRAM, OM_MUON_OF_TWO };
template <int L, om_muon_of OF> struct om_muon_tile : om_gemm_plain {
	static constexpr bool TRIANGLE = L % 64 == 0;

	template <class S>
	OM_DEV void
	store(float (&d)[S::WIDTH / 2], const float (&w)[2], const om_gemm_args &x,
	    const om_gemm_tile &t, om_gemm_ring<S> &r, uint32_t boxes)
	{
		const int lane = threadIdx.x % 32, at = om_warp() * 16 + lane / 4;
		const om_bf16 *gram = (const om_bf16 *)x.p + (int64_t)(t.first + t.row) * L;
		const float norm = x.part ? x.part[t.group] : 1,
			    by = OF == OM_MUON_OF_X ? norm * norm : norm;
#pragma unroll
		for (int i = 0; i < S::WIDTH / 2; i += 2) {
			if constexpr (OF == OM_MUON_OF_GRAM) {
				const int row = at + i % 4 / 2 * 8;
				const int col = t.col + i / 4 * 8 + lane % 4 * 2;
				uint32_t g = 0;
				if (row < t.rows && col < L)
					g = *(const uint32_t *)(gram + (int64_t)row * L + col);
				d[i] = om_muon_polynomial(om_lo(g), d[i], t.row + row == col);
				d[i + 1] =
				    om_muon_polynomial(om_hi(g), d[i + 1], t.row + row == col + 1);
			}
			d[i] *= by;
			d[i + 1] *= by;
		}
		om_gemm_plain::template store<S>(d, w, x, t, r, boxes);
		if constexpr (TRIANGLE)
			om_muon_mirror<S>(d, x, t, boxes);
	}
};

#define OM_MUON_TILE(l, of) om_muon_tile<l, of>
#define OM_MUON_GRAM(NAME, r, c, b)                                                        \
	OM_GEMM_KERNEL(NAME, OM_MUON_TILE(OM_MUON_L(r, c), OM_MUON_OF_X), om_bf16, 0,      \
	    ((r) <= (c) ? OM_GEMM_ROWS : OM_GEMM_SUMS), b, ((r) <= (c) ? (b) * (r) : (c)), \
	    om_beside<OM_MUON_L(r, c)>, OM_MUON_BESIDE((r) <= (c) ? (c) : (b) * (r)),      \
	    OM_MUON_WIDTH(r, c, b), ((r) > (c)), ((r) > (c)), 1, 1)
#define OM_MUON_BESIDE(n) om_beside<(n)>
#define OM_MUON_SQUARE(NAME, of, l, b)                                                    \
	OM_GEMM_KERNEL(NAME, OM_MUON_TILE(l, of), om_bf16, 0, OM_GEMM_ROWS, b, (b) * (l), \
	    om_beside<l>, om_beside<l>, OM_GEMM_WIDTH((b) * (l), l), 0, 0, 1, 1)
#define OM_MUON_POLYNOMIAL(NAME, l, b) OM_MUON_SQUARE(NAME, OM_MUON_OF_GRAM, l, b)
#define OM_MUON_TWO(NAME, l, b) OM_MUON_SQUARE(NAME, OM_MUON_OF_TWO, l, b)
#define OM_MUON_SCALE(NAME, r, c)

#else

template <int L>
OM_DEV void
om_muon_combine(const om_bf16 *gram, om_bf16 *square)
{
	const int64_t at = ((int64_t)blockIdx.x * OM_MUON_THREADS + threadIdx.x) * 8;
	const int row = at / L % L, col = at % L;
	float g[8], s[8];
	if (at >= (int64_t)gridDim.y * L * L)
		return;
	om_load8(gram + at, g);
	om_load8(square + at, s);
#pragma unroll
	for (int k = 0; k < 8; k++)
		s[k] = om_muon_polynomial(g[k], s[k], row == col + k);
	om_store8(square + at, s);
}

/* x divided by its norm, eight elements a time. */
template <int64_t SIZE>
OM_DEV void
om_muon_scale(const float *norm, om_bf16 *x)
{
	const float by = norm[blockIdx.y];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int64_t at =
		    (int64_t)blockIdx.x * OM_MUON_BLOCK + (i * OM_MUON_THREADS + threadIdx.x) * 8;
		float v[8];
		if (at >= SIZE)
			return;
		om_load8(x + blockIdx.y * SIZE + at, v);
#pragma unroll
		for (int k = 0; k < 8; k++)
			v[k] *= by;
		om_store8(x + blockIdx.y * SIZE + at, v);
	}
}

#define OM_MUON_SCALE(NAME, r, c)                                         \
	OM_GLOBAL(OM_MUON_THREADS, 2) NAME(const float *norm, om_bf16 *x) \
	{                                                                 \
		om_muon_scale<(int64_t)(r) * (c)>(norm, x);               \
	}
#define OM_MUON_POLYNOMIAL(NAME, l, b)                                                     \
	OM_MUON_TWO_OF(NAME##_x, l, b)                                                     \
	OM_GLOBAL(OM_MUON_THREADS, 1) NAME##_combine(const om_bf16 *gram, om_bf16 *square) \
	{                                                                                  \
		om_muon_combine<l>(gram, square);                                          \
	}
#define OM_MUON_GRAM(NAME, r, c, b) OM_MUON_GRAM_OF(NAME##_x, r, c, b)
#define OM_MUON_TWO(NAME, l, b) OM_MUON_TWO_OF(NAME##_x, l, b)

#endif

#define OM_MUON_KERNELS(NAME, moment, n, r, c, s, j, b, momentum, decay, lr_scale, factor)        \
	OM_MUON_SIZES(n, r, c, b)                                                                 \
	OM_MUON_GRAM(NAME##_gram, r, c, b)                                                        \
	OM_MUON_POLYNOMIAL(NAME##_poly, OM_MUON_L(r, c), b)                                       \
	OM_MUON_TWO(NAME##_two, OM_MUON_L(r, c), b)                                               \
	OM_MUON_STEP(NAME##_step, r, c, b)                                                        \
	OM_GLOBAL(OM_MUON_THREADS, 2)                                                             \
	NAME##_m(const float *g, const double *ctl, const int64_t *lots, moment *m, om_bf16 *x,   \
	    double *part, int left)                                                               \
	{                                                                                         \
		om_muon_momentum<(int64_t)(r) * (c)>(                                             \
		    { (float)(1 - (momentum)), (j) ? (float)(1 - (momentum)) : 0 }, g, ctl, lots, \
		    m, x, part, left);                                                            \
	}                                                                                         \
	OM_GLOBAL(OM_MUON_THREADS, 1) NAME##_n(const double *part, float *norm, int32_t *off)     \
	{                                                                                         \
		om_muon_norm<OM_MUON_BLOCKS(r, c), r, OM_MUON_L(r, c)>(part, norm, off);          \
	}                                                                                         \
	OM_MUON_SCALE(NAME##_s, r, c)                                                             \
	OM_GLOBAL(OM_MUON_THREADS, 2)                                                             \
	NAME##_u(const double *ctl, const om_bf16 *x, const moment *v, const float *norm,         \
	    om_bf16 *w, float *master, int left)                                                  \
	{                                                                                         \
		om_muon_update<(int64_t)(r) * (c), c>(                                            \
		    decay, lr_scale, factor, ctl, x, v, norm, w, master, left);                   \
	}

#define OM_MUON_ROWS(NAME, moment, r, c, beta2)                                             \
	OM_GLOBAL(OM_MUON_THREADS, 1)                                                       \
	NAME##_r(const double *ctl, const int64_t *lots, const om_bf16 *x, const moment *m, \
	    moment *v, double *sums, int left)                                              \
	{                                                                                   \
		om_muon_rows<r, c>((float)(1 - (beta2)), ctl, lots, x, m, v, sums, left);   \
	}                                                                                   \
	OM_GLOBAL(OM_MUON_THREADS, 1) NAME##_q(const double *sums, float *norm)             \
	{                                                                                   \
		om_muon_ratio<r>(sums, norm);                                               \
	}

#define OM_MUON_MASTER(NAME, n, r, c, s, j, b, momentum, beta2, decay, lr_scale, factor) \
	OM_MUON_KERNELS(NAME, float, n, r, c, s, j, b, momentum, decay, lr_scale, factor)

#define OM_MUON_DRAWN(NAME, n, r, c, s, j, b, momentum, beta2, decay, lr_scale, factor) \
	OM_MUON_KERNELS(NAME, om_bf16, n, r, c, s, j, b, momentum, decay, lr_scale, factor)

#define OM_NORMUON_MASTER(NAME, n, r, c, s, j, b, momentum, beta2, decay, lr_scale, factor) \
	OM_MUON_KERNELS(NAME, float, n, r, c, s, j, b, momentum, decay, lr_scale, factor)   \
	OM_MUON_ROWS(NAME, float, r, c, beta2)

#define OM_NORMUON_DRAWN(NAME, n, r, c, s, j, b, momentum, beta2, decay, lr_scale, factor)  \
	OM_MUON_KERNELS(NAME, om_bf16, n, r, c, s, j, b, momentum, decay, lr_scale, factor) \
	OM_MUON_ROWS(NAME, om_bf16, r, c, beta2)

#else /* ---- host ---- */

#include <assert.h>

/* A batch's workspace. */
struct om_muon_space {
	om_bf16 *x, *y, *a, *p, *t;
	double *part, *sums;
	float *norm;
	int32_t *off, *off_l;
};

static inline struct om_muon_space
om_muon_space(void *ws, int64_t r, int64_t c, int64_t b)
{
	const int64_t l = OM_MUON_L(r, c);
	struct om_muon_space s = { .x = (om_bf16 *)ws };
	s.y = s.x + b * r * c;
	s.a = s.y + b * r * c;
	s.p = s.a + b * l * l;
	s.t = s.p + b * l * l;
	s.part = (double *)(s.t + b * l * l);
	s.sums = s.part + b * OM_MUON_BLOCKS(r, c);
	s.norm = (float *)(s.sums + 2 * b * r);
	s.off = (int32_t *)(s.norm + b);
	s.off_l = s.off + b + 1;
	return s;
}

/*
 * x x' into a; the polynomial of a into p; a product of two into c. norm: NULL, or what x is to be
 * multiplied by yet, or is multiplied by on the way.
 */
#if OM_ARCH == 90
#define OM_MUON_GRAM(NAME, r, c, b)                                                               \
	OM_KERNEL(NAME, OM_GEMM_THREADS,                                                          \
	    OM_GEMM_SMEM_OF(om_bf16, OM_MUON_WIDTH(r, c, b), OM_GEMM_ROWS, b))                    \
	static inline void NAME##_run(                                                            \
	    const om_bf16 *x, om_bf16 *a, const int32_t *offsets, float *norm)                    \
	{                                                                                         \
		om_gemm_run(                                                                      \
		    &NAME, &(struct om_gemm_call){ (r) <= (c) ? OM_GEMM_ROWS : OM_GEMM_SUMS, b,   \
			       (r) <= (c) ? (int64_t)(b) * (r) : (c), { OM_MUON_L(r, c) },        \
			       { (r) <= (c) ? (c) : (int64_t)(b) * (r) }, OM_MUON_WIDTH(r, c, b), \
			       false, (r) > (c), (r) > (c), 1, 1, 2, { x }, x, { a },             \
			       .off = offsets, .part = norm, .mirror = true });                   \
	}
#define OM_MUON_SQUARE(NAME, gram, l, b)                                                        \
	OM_KERNEL(NAME, OM_GEMM_THREADS,                                                        \
	    OM_GEMM_SMEM_OF(om_bf16, OM_GEMM_WIDTH((b) * (l), l), OM_GEMM_ROWS, b))             \
	static inline void NAME##_run(const om_bf16 *a, const om_bf16 *other, om_bf16 *y,       \
	    const int32_t *offsets, float *norm)                                                \
	{                                                                                       \
		om_gemm_run(&NAME,                                                              \
		    &(struct om_gemm_call){ OM_GEMM_ROWS, b, (int64_t)(b) * (l), { l }, { l },  \
			OM_GEMM_WIDTH((b) * (l), l), false, 0, 0, 1, 1, 2, { a }, other, { y }, \
			.off = offsets, .p = gram, .part = norm, .mirror = true });             \
	}
#define OM_MUON_POLYNOMIAL(NAME, l, b) OM_MUON_SQUARE(NAME, (const float *)a, l, b)
#define OM_MUON_TWO(NAME, l, b) OM_MUON_SQUARE(NAME, NULL, l, b)
#define OM_MUON_SCALE(NAME, r, c)                                                      \
	static inline float *NAME##_run(const struct om_muon_space *own, int32_t left) \
	{                                                                              \
		(void)left;                                                            \
		return own->norm;                                                      \
	}
#else
#define OM_MUON_GRAM(NAME, r, c, b)                                            \
	OM_MUON_GRAM_OF(NAME##_x, r, c, b)                                     \
	static inline void NAME##_run(                                         \
	    const om_bf16 *x, om_bf16 *a, const int32_t *offsets, float *norm) \
	{                                                                      \
		(void)norm;                                                    \
		NAME##_x_run(x, x, a, offsets);                                \
	}
#define OM_MUON_TWO(NAME, l, b)                                                           \
	OM_MUON_TWO_OF(NAME##_x, l, b)                                                    \
	static inline void NAME##_run(const om_bf16 *a, const om_bf16 *other, om_bf16 *y, \
	    const int32_t *offsets, float *norm)                                          \
	{                                                                                 \
		(void)norm;                                                               \
		NAME##_x_run(a, other, y, offsets);                                       \
	}
#define OM_MUON_POLYNOMIAL(NAME, l, b)                                                            \
	OM_KERNEL(NAME##_combine, OM_MUON_THREADS, 0)                                             \
	OM_MUON_TWO_OF(NAME##_x, l, b)                                                            \
	static inline void NAME##_run(const om_bf16 *a, const om_bf16 *same, om_bf16 *p,          \
	    const int32_t *offsets, float *norm)                                                  \
	{                                                                                         \
		(void)norm;                                                                       \
		NAME##_x_run(a, same, p, offsets);                                                \
		OM_LAUNCH(NAME##_combine, OM_CEIL((int64_t)(l) * (l), OM_MUON_THREADS * 8), b, 1, \
		    &a, &p);                                                                      \
	}
#define OM_MUON_SCALE(NAME, r, c)                                                      \
	OM_KERNEL(NAME, OM_MUON_THREADS, 0)                                            \
	static inline float *NAME##_run(const struct om_muon_space *own, int32_t left) \
	{                                                                              \
		OM_LAUNCH(NAME, OM_MUON_BLOCKS(r, c), left, 1, &own->norm, &own->x);   \
		return NULL;                                                           \
	}
#endif

/* To each batch of matrices: momentum, norm, Newton-Schulz, ROWS, weights. */
#define OM_MUON_BODY(NAME, moment, n, r, c, steps, b, ROWS)                                     \
	OM_MUON_SIZES(n, r, c, b)                                                               \
	OM_MUON_GRAM(NAME##_gram, r, c, b)                                                      \
	OM_MUON_POLYNOMIAL(NAME##_poly, OM_MUON_L(r, c), b)                                     \
	OM_MUON_TWO(NAME##_two, OM_MUON_L(r, c), b)                                             \
	OM_MUON_STEP(NAME##_step, r, c, b)                                                      \
	OM_MUON_SCALE(NAME##_s, r, c)                                                           \
	OM_KERNEL(NAME##_m, OM_MUON_THREADS, 0)                                                 \
	OM_KERNEL(NAME##_n, OM_MUON_THREADS, 0)                                                 \
	OM_KERNEL(NAME##_u, OM_MUON_THREADS, 0)                                                 \
	static inline void NAME##_newton(struct om_muon_space *own, int32_t left)               \
	{                                                                                       \
		float *norm = NAME##_s_run(own, left);                                          \
		om_bf16 *a = own->a, *p = own->p, *t = own->t;                                  \
		for (int k = 0, two; k < (steps); k += 1 + two, norm = NULL) {                  \
			om_bf16 *x = own->x, *y = own->y;                                       \
			two = OM_MUON_TWICE(r, c) && k + 1 < (steps);                           \
			const om_bf16 *q = two ? a : p;                                         \
			NAME##_gram_run(x, a, own->off, norm);                                  \
			NAME##_poly_run(a, a, p, own->off_l, two ? NULL : norm);                \
			if (two) {                                                              \
				NAME##_two_run(p, a, t, own->off_l, NULL);                      \
				NAME##_two_run(p, t, a, own->off_l, NULL);                      \
				NAME##_poly_run(a, a, t, own->off_l, NULL);                     \
				NAME##_two_run(t, p, a, own->off_l, norm);                      \
			}                                                                       \
			NAME##_step_run((r) <= (c) ? q : x, (r) <= (c) ? x : q, y, own->off);   \
			own->x = y;                                                             \
			own->y = x;                                                             \
		}                                                                               \
	}                                                                                       \
	static inline void NAME##_all(const float *g, const double *ctl, const int64_t *lots,   \
	    om_bf16 *w, float *master, moment *m, moment *v, void *ws)                          \
	{                                                                                       \
		const int64_t size = (int64_t)(r) * (c), count = (n) / size;                    \
		const uint32_t blocks = OM_MUON_BLOCKS(r, c);                                   \
		for (int64_t at = 0; at < count; at += b) {                                     \
			struct om_muon_space own = om_muon_space(ws, r, c, b);                  \
			const float *gi = g + at * size;                                        \
			float *master_i = master + at * size;                                   \
			moment *mi = m + at * size, *vi = v ? v + at * (r) : NULL;              \
			om_bf16 *wi = w + at * size;                                            \
			int32_t left = count - at < (b) ? (int32_t)(count - at) : (b);          \
			OM_LAUNCH(NAME##_m, blocks, left, 1, &gi, &ctl, &lots, &mi, &own.x,     \
			    &own.part, &left);                                                  \
			OM_LAUNCH(NAME##_n, b, 1, 1, &own.part, &own.norm, &own.off);           \
			NAME##_newton(&own, left);                                              \
			ROWS OM_LAUNCH(NAME##_u, blocks, left, 1, &ctl, &own.x, &vi, &own.norm, \
			    &wi, &master_i, &left);                                             \
		}                                                                               \
	}

#define OM_MUON_ROWS(NAME, r, b)                                                                  \
	OM_LAUNCH(NAME##_r, OM_CEIL((int64_t)(b) * (r), OM_MUON_THREADS / 32), 1, 1, &ctl, &lots, \
	    &own.x, &mi, &vi, &own.sums, &left);                                                  \
	OM_LAUNCH(NAME##_q, b, 1, 1, &own.sums, &own.norm);

/* What kernels work on; m and v are float or om_bf16. */
struct om_muon_arrays {
	const float *g;
	const int64_t *lots;
	om_bf16 *w;
	float *master;
	void *m, *v;
};

#define OM_MUON_CHECK(NAME, moment, rows, drawn, n, b, r, c, s, j, ...)                           \
	static inline void NAME##_on(const struct om_muon_arrays *x, const double *ctl, void *ws) \
	{                                                                                         \
		NAME##_all(                                                                       \
		    x->g, ctl, x->lots, x->w, x->master, (moment *)x->m, (moment *)x->v, ws);     \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		const struct om_muon_ref ref = { r, c, s, j, __VA_ARGS__ };                       \
		return om_muon_check(NAME##_on, n, b, &ref, rows, drawn, seed);                   \
	}

#define OM_MUON_MASTER(NAME, n, r, c, s, j, b, ...)                                           \
	OM_MUON_BODY(NAME, float, n, r, c, s, b, )                                            \
	void NAME(                                                                            \
	    const float *g, const double *ctl, om_bf16 *w, float *master, float *m, void *ws) \
	{                                                                                     \
		NAME##_all(g, ctl, NULL, w, master, m, NULL, ws);                             \
	}                                                                                     \
	OM_MUON_CHECK(NAME, float, false, false, n, b, r, c, s, j, __VA_ARGS__)

#define OM_MUON_DRAWN(NAME, n, r, c, s, j, b, ...)                                    \
	OM_MUON_BODY(NAME, om_bf16, n, r, c, s, b, )                                  \
	void NAME(const float *g, const double *ctl, const int64_t *lots, om_bf16 *w, \
	    float *master, om_bf16 *m, void *ws)                                      \
	{                                                                             \
		NAME##_all(g, ctl, lots, w, master, m, NULL, ws);                     \
	}                                                                             \
	OM_MUON_CHECK(NAME, om_bf16, false, true, n, b, r, c, s, j, __VA_ARGS__)

#define OM_NORMUON_MASTER(NAME, n, r, c, s, j, b, ...)                                    \
	OM_KERNEL(NAME##_r, OM_MUON_THREADS, 0)                                           \
	OM_KERNEL(NAME##_q, OM_MUON_THREADS, 0)                                           \
	OM_MUON_BODY(NAME, float, n, r, c, s, b, OM_MUON_ROWS(NAME, r, b))                \
	void NAME(const float *g, const double *ctl, om_bf16 *w, float *master, float *m, \
	    float *v, void *ws)                                                           \
	{                                                                                 \
		NAME##_all(g, ctl, NULL, w, master, m, v, ws);                            \
	}                                                                                 \
	OM_MUON_CHECK(NAME, float, true, false, n, b, r, c, s, j, __VA_ARGS__)

#define OM_NORMUON_DRAWN(NAME, n, r, c, s, j, b, ...)                                 \
	OM_KERNEL(NAME##_r, OM_MUON_THREADS, 0)                                       \
	OM_KERNEL(NAME##_q, OM_MUON_THREADS, 0)                                       \
	OM_MUON_BODY(NAME, om_bf16, n, r, c, s, b, OM_MUON_ROWS(NAME, r, b))          \
	void NAME(const float *g, const double *ctl, const int64_t *lots, om_bf16 *w, \
	    float *master, om_bf16 *m, om_bf16 *v, void *ws)                          \
	{                                                                             \
		NAME##_all(g, ctl, lots, w, master, m, v, ws);                        \
	}                                                                             \
	OM_MUON_CHECK(NAME, om_bf16, true, true, n, b, r, c, s, j, __VA_ARGS__)

#include "muon_check.h"

#endif
#endif
