/*
 * The update. ctl [9], fp64, holds the step's scalars.
 *
 *   sumsq         ctl[NORM2] += sum of g [n] squared
 *   clip          ctl[COEF] is what gradients and loss are multiplied by to be those of the step,
 *                 and norm = ctl[COEF] sqrt(ctl[NORM2]); then ctl[COEF] *= min(1, max / (norm +
 *                 1e-6)), if max > 0.
 *                 ctl[SKIPPED] = 1 if norm or loss[0] is not finite, or COEF loss[0] >
 *                 ctl[LOSS_LIMIT], or norm > ctl[NORM_LIMIT]; otherwise 0
 *   share_ctl     own's COEF and SKIPPED are those of ctl
 *   adamw         g COEF drives the moments m, v; w -= lr (mhat / (sqrt(vhat) + eps) + decay w),
 *                 where mhat = m / BIAS1, vhat = v / BIAS2, lr = LR lr_scale (Loshchilov and
 *                 Hutter, 2019). A skipped step leaves w, m and v as they are. w is bf16.
 *   adamw_master  the same on master, in float; w = master, rounded
 *   adamw_drawn   the same with m and v in bf16: each becomes one of the two neighbours of what it
 *                 is in float, the more likely the nearer, by 16 bits that lots say (rng.h)
 *   bias_update   b [n] += gamma sign(mean load - load) of each e experts, a layer's, unless the
 *                 step is skipped
 *
 * Any n; 16-byte accesses. adamw moves 24 bytes a weight, adamw_master 30, adamw_drawn 22: that is
 * its time.
 *
 * Pieces of lots begin at multiples of 4, of m and of their tensors: those of a bucket do, and
 * within merged weights since the sizes of products are multiples of 8.
 *
 * sumsq adds squares in double, in which they are exact. ws holds the sums of OM_SUMSQ_BLOCKS
 * blocks, 2 c floats at most: a fixed number for a given n and c, as is their order of addition.
 */
#ifndef OM_ADAMW_H
#define OM_ADAMW_H

#include "adamw_ref.h"
#include "om_cuda.h"
#include "rng.h"

#define OM_SUMSQ_THREADS 512
#define OM_SUMSQ_VECTORS 4 /* of 4, of a thread at once */
#define OM_SUMSQ_BLOCK (OM_SUMSQ_THREADS * OM_SUMSQ_VECTORS * 4)
#define OM_SUMSQ_BLOCKS(n, c) \
	(OM_CEIL((int64_t)(n), OM_SUMSQ_BLOCK) < (c) ? OM_CEIL((int64_t)(n), OM_SUMSQ_BLOCK) : (c))

#define OM_ADAMW_THREADS 256
#define OM_ADAMW_BLOCKS(n) OM_CEIL((int64_t)(n), OM_ADAMW_THREADS * 4)

#define OM_SUMSQ_SIZES(n, c)                                \
	static_assert((n) >= 1, "sumsq: sizes start at 1"); \
	static_assert((c) >= 1 && (c) <= 65535, "sumsq: 1 to 65535 partial sums");
#define OM_ADAMW_SIZES(n)                                   \
	static_assert((n) >= 1, "adamw: sizes start at 1"); \
	static_assert(OM_ADAMW_BLOCKS(n) <= 0x7fffffff, "adamw: blocks are counted in int32");

#ifdef __CUDACC__

/* The block's sum, in thread 0: over lanes as a tree, then over warps in order. */
template <int THREADS>
OM_DEV double
om_sumsq_block(double x)
{
	__shared__ double part[THREADS / 32];
#pragma unroll
	for (int d = 16; d; d /= 2)
		x += __shfl_xor_sync(0xffffffffu, x, d);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = x;
	__syncthreads();
	x = 0;
	if (threadIdx.x == 0) {
#pragma unroll
		for (int w = 0; w < THREADS / 32; w++)
			x += part[w];
	}
	return x;
}

template <int64_t N, int C>
OM_DEV void
om_sumsq(const float *g, double *part)
{
	constexpr int64_t vectors = N / 4, step = OM_SUMSQ_BLOCKS(N, C) * OM_SUMSQ_THREADS;
	double sum[4] = {};
	int64_t i = (int64_t)blockIdx.x * OM_SUMSQ_THREADS + threadIdx.x;
	for (; i + (OM_SUMSQ_VECTORS - 1) * step < vectors; i += OM_SUMSQ_VECTORS * step) {
		float4 x[OM_SUMSQ_VECTORS];
#pragma unroll
		for (int v = 0; v < OM_SUMSQ_VECTORS; v++)
			x[v] = ((const float4 *)g)[i + v * step];
#pragma unroll
		for (int v = 0; v < OM_SUMSQ_VECTORS; v++) {
			sum[0] += (double)x[v].x * x[v].x;
			sum[1] += (double)x[v].y * x[v].y;
			sum[2] += (double)x[v].z * x[v].z;
			sum[3] += (double)x[v].w * x[v].w;
		}
	}
#pragma unroll 1
	for (; i < vectors; i += step) {
		const float4 x = ((const float4 *)g)[i];
		sum[0] += (double)x.x * x.x;
		sum[1] += (double)x.y * x.y;
		sum[2] += (double)x.z * x.z;
		sum[3] += (double)x.w * x.w;
	}
	if (N % 4 && blockIdx.x == 0 && threadIdx.x < N % 4) {
		const double x = g[vectors * 4 + threadIdx.x];
		sum[0] += x * x;
	}
	const double total =
	    om_sumsq_block<OM_SUMSQ_THREADS>((sum[0] + sum[1]) + (sum[2] + sum[3]));
	if (threadIdx.x == 0)
		part[blockIdx.x] = total;
}

/* One block adds the parts to ctl. */
template <int PARTS>
OM_DEV void
om_sumsq_fold(const double *part, double *ctl)
{
	double sum = 0;
	for (int p = threadIdx.x; p < PARTS; p += OM_SUMSQ_THREADS)
		sum += part[p];
	sum = om_sumsq_block<OM_SUMSQ_THREADS>(sum);
	if (threadIdx.x == 0)
		ctl[OM_CTL_NORM2] += sum;
}

OM_DEV bool
om_clip_finite(double x)
{
	return fabs(x) <= 1.7976931348623157e308;
}

OM_DEV void
om_clip(double max, const double *loss, double *ctl)
{
	const double coef = ctl[OM_CTL_COEF], norm = coef * sqrt(ctl[OM_CTL_NORM2]);
	if (max > 0)
		ctl[OM_CTL_COEF] = coef * fmin(1.0, max / (norm + 1e-6));
	ctl[OM_CTL_SKIPPED] = !om_clip_finite(norm) || !om_clip_finite(loss[0]) ||
			      coef * loss[0] > ctl[OM_CTL_LOSS_LIMIT] ||
			      norm > ctl[OM_CTL_NORM_LIMIT];
}

struct om_adamw_rates {
	float beta1, beta1c, beta2, beta2c, eps, decay; /* c: one minus */
};

struct om_adamw_step {
	float coef, unbias1, unbias2, lr;
};

/* One weight; gives the new one. The products that are added to are those of the CPU's kernel. */
OM_DEV float
om_adamw_one(const om_adamw_rates &c, const om_adamw_step &s, float g, float w, float &m, float &v)
{
	g *= s.coef;
	m = __fmaf_rn(c.beta1, m, c.beta1c * g);
	v = __fmaf_rn(c.beta2, v, c.beta2c * g * g);
	const float step = m * s.unbias1 / (sqrtf(v * s.unbias2) + c.eps);
	return __fmaf_rn(-s.lr, __fmaf_rn(c.decay, w, step), w);
}

/* Elements of m that are one tensor's. */
struct om_adamw_piece {
	int64_t end;   /* the first that is not */
	int64_t shift; /* an element's number in its tensor, less that here */
	int64_t tensor;
};

/* The piece that element i of m is in. */
OM_DEV om_adamw_piece
om_adamw_find(const int64_t *lots, const om_bf16 *m, int64_t i)
{
	const int64_t at = (const char *)(m + i) - (const char *)lots;
	const int64_t *p = lots + OM_LOTS_FIRST, *end = p + lots[OM_LOTS_PIECES] * OM_PIECE_WORDS;
	for (int64_t n = lots[OM_LOTS_PIECES]; n > 1; n -= n / 2) {
		const int64_t *middle = p + n / 2 * OM_PIECE_WORDS;
		p = middle[OM_PIECE_AT] <= at ? middle : p;
	}
	const int64_t size = sizeof *m, *next = p + OM_PIECE_WORDS;
	return { next < end ? i + (next[OM_PIECE_AT] - at) / size : (int64_t)1 << 62,
		p[OM_PIECE_INDEX] + (at - p[OM_PIECE_AT]) / size - i, p[OM_PIECE_TENSOR] };
}

/* The draws of elements i to i + 3; the piece is that of one before them, or theirs. */
OM_DEV struct om_philox
om_adamw_draw(const int64_t *lots, const om_bf16 *m, om_adamw_piece p, int64_t i)
{
	if (i >= p.end)
		p = om_adamw_find(lots, m, i);
	return om_moment_draw(lots[OM_LOTS_KEY], p.tensor, (i + p.shift) >> 2);
}

/* In its upper half bf16: x's neighbour towards zero, or by 16 bits drawn the other; NaN is NaN. */
OM_DEV uint32_t
om_adamw_drawn(float x, uint32_t draw)
{
	return __float_as_uint(x) + (x == x ? draw : 0);
}

OM_DEV float4
om_adamw_load(const float *p, int64_t i)
{
	return ((const float4 *)p)[i];
}

OM_DEV float4
om_adamw_load(const om_bf16 *p, int64_t i)
{
	const uint2 h = ((const uint2 *)p)[i];
	return make_float4(om_lo(h.x), om_hi(h.x), om_lo(h.y), om_hi(h.y));
}

OM_DEV void
om_adamw_store(float *p, int64_t i, float4 x, const struct om_philox &, int)
{
	((float4 *)p)[i] = x;
}

/* By the 16 bits of each word from `half` on. */
OM_DEV void
om_adamw_store(om_bf16 *p, int64_t i, float4 x, const struct om_philox &draw, int half)
{
	const uint32_t a = om_adamw_drawn(x.x, draw.v[0] >> half & 0xffff);
	const uint32_t b = om_adamw_drawn(x.y, draw.v[1] >> half & 0xffff);
	const uint32_t c = om_adamw_drawn(x.z, draw.v[2] >> half & 0xffff);
	const uint32_t d = om_adamw_drawn(x.w, draw.v[3] >> half & 0xffff);
	((uint2 *)p)[i] = make_uint2(__byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x7632));
}

/*
 * A thread has four weights; without MASTER they are w itself. A block's loads are under way while
 * one of its threads reads ctl, and one looks for the piece that the block begins in.
 */
template <int64_t N, bool MASTER, class MOMENT>
OM_DEV void
om_adamw(const om_adamw_rates c, double lr_scale, const float *g, const double *ctl,
    const int64_t *lots, om_bf16 *w, float *master, MOMENT *m, MOMENT *v)
{
	constexpr int64_t vectors = N / 4;
	constexpr bool drawn = sizeof(MOMENT) == sizeof(om_bf16);
	const int64_t block = (int64_t)blockIdx.x * OM_ADAMW_THREADS, i = block + threadIdx.x;
	float4 x, y, p, q;
	__shared__ om_adamw_step shared;
	__shared__ om_adamw_piece piece;
	__shared__ bool skipped;
	if (vectors) {
		/* beyond the end the last one: a branch would make each load wait for the last */
		const int64_t at = N % (OM_ADAMW_THREADS * 4) ? min(i, vectors - 1) : i;
		x = ((const float4 *)g)[at];
		p = om_adamw_load(m, at);
		q = om_adamw_load(v, at);
		y = MASTER ? om_adamw_load(master, at) : om_adamw_load(w, at);
	}
	if (threadIdx.x == 0) {
		const double coef = ctl[OM_CTL_COEF], lr = ctl[OM_CTL_LR] * lr_scale;
		const double bias1 = ctl[OM_CTL_BIAS1], bias2 = ctl[OM_CTL_BIAS2];
		skipped = ctl[OM_CTL_SKIPPED] != 0;
		shared = { (float)coef, (float)(1 / bias1), (float)(1 / bias2), (float)lr };
	}
	if constexpr (drawn)
		if (threadIdx.x == 32)
			piece = om_adamw_find(lots, m, 4 * block);
	__syncthreads();
	if (skipped)
		return;
	const om_adamw_step s = shared;
	if (i < vectors) {
		y.x = om_adamw_one(c, s, x.x, y.x, p.x, q.x);
		y.y = om_adamw_one(c, s, x.y, y.y, p.y, q.y);
		y.z = om_adamw_one(c, s, x.z, y.z, p.z, q.z);
		y.w = om_adamw_one(c, s, x.w, y.w, p.w, q.w);
		((uint2 *)w)[i] = make_uint2(om_pack(y.x, y.y), om_pack(y.z, y.w));
		if (MASTER)
			((float4 *)master)[i] = y;
		struct om_philox draw = {};
		if constexpr (drawn)
			draw = om_adamw_draw(lots, m, piece, 4 * i);
		om_adamw_store(m, i, p, draw, 0);
		om_adamw_store(v, i, q, draw, 16);
	}
	/* what is left of a vector; buckets of adamw_drawn leave nothing */
	if constexpr (N % 4 && !drawn) {
		if (blockIdx.x || threadIdx.x >= N % 4)
			return;
		const int64_t i = vectors * 4 + threadIdx.x;
		const float old = MASTER ? master[i] : om_f32(w[i]);
		const float now = om_adamw_one(c, s, g[i], old, m[i], v[i]);
		w[i] = om_round(now);
		if (MASTER)
			master[i] = now;
	}
}

/* Integers: a load that is the mean exactly leaves its bias alone. */
template <int N, int E>
OM_DEV void
om_bias_update(float gamma, const int64_t *load, const double *ctl, float *b)
{
	const int i = blockIdx.x * OM_ADAMW_THREADS + threadIdx.x, first = i / E * E;
	if (i >= N || ctl[OM_CTL_SKIPPED] != 0)
		return;
	const int64_t own = load[i] * E;
	int64_t sum = 0;
#pragma unroll 8
	for (int c = 0; c < E; c++)
		sum += load[first + c];
	b[i] += gamma * (float)((own < sum) - (own > sum));
}

#define OM_ADAMW_RATES(beta1, beta2, eps, decay)                                            \
	{                                                                                   \
		(float)(beta1), (float)(1 - (beta1)), (float)(beta2), (float)(1 - (beta2)), \
		    (float)(eps), (float)(decay)                                            \
	}

#define OM_SUMSQ(NAME, n, c)                                                        \
	OM_SUMSQ_SIZES(n, c)                                                        \
	OM_GLOBAL(OM_SUMSQ_THREADS, 2) NAME##_x(const float *g, double *part)       \
	{                                                                           \
		om_sumsq<n, c>(g, part);                                            \
	}                                                                           \
	OM_GLOBAL(OM_SUMSQ_THREADS, 1) NAME##_fold(const double *part, double *ctl) \
	{                                                                           \
		om_sumsq_fold<OM_SUMSQ_BLOCKS(n, c)>(part, ctl);                    \
	}

#define OM_CLIP(NAME, max)                                        \
	OM_GLOBAL(1, 1) NAME##_x(const double *loss, double *ctl) \
	{                                                         \
		om_clip(max, loss, ctl);                          \
	}

#define OM_SHARE_CTL(NAME)                                       \
	OM_GLOBAL(1, 1) NAME##_x(const double *ctl, double *own) \
	{                                                        \
		own[OM_CTL_COEF] = ctl[OM_CTL_COEF];             \
		own[OM_CTL_SKIPPED] = ctl[OM_CTL_SKIPPED];       \
	}

#define OM_ADAMW(NAME, n, beta1, beta2, eps, decay, lr_scale)                                  \
	OM_ADAMW_SIZES(n)                                                                      \
	OM_GLOBAL(OM_ADAMW_THREADS, 1)                                                         \
	NAME##_x(const float *g, const double *ctl, om_bf16 *w, float *m, float *v)            \
	{                                                                                      \
		om_adamw<n, false>(OM_ADAMW_RATES(beta1, beta2, eps, decay), lr_scale, g, ctl, \
		    nullptr, w, nullptr, m, v);                                                \
	}

#define OM_ADAMW_MASTER(NAME, n, beta1, beta2, eps, decay, lr_scale)                               \
	OM_ADAMW_SIZES(n)                                                                          \
	OM_GLOBAL(OM_ADAMW_THREADS, 1)                                                             \
	NAME##_x(const float *g, const double *ctl, om_bf16 *w, float *master, float *m, float *v) \
	{                                                                                          \
		om_adamw<n, true>(OM_ADAMW_RATES(beta1, beta2, eps, decay), lr_scale, g, ctl,      \
		    nullptr, w, master, m, v);                                                     \
	}

#define OM_ADAMW_DRAWN(NAME, n, beta1, beta2, eps, decay, lr_scale)                           \
	OM_ADAMW_SIZES(n)                                                                     \
	static_assert((n) % 4 == 0, "adamw_drawn: whole vectors");                            \
	OM_GLOBAL(OM_ADAMW_THREADS, 1)                                                        \
	NAME##_x(const float *g, const double *ctl, const int64_t *lots, om_bf16 *w,          \
	    float *master, om_bf16 *m, om_bf16 *v)                                            \
	{                                                                                     \
		om_adamw<n, true>(OM_ADAMW_RATES(beta1, beta2, eps, decay), lr_scale, g, ctl, \
		    lots, w, master, m, v);                                                   \
	}

#define OM_BIAS_UPDATE(NAME, n, e, gamma)                           \
	OM_GLOBAL(OM_ADAMW_THREADS, 1)                              \
	NAME##_x(const int64_t *load, const double *ctl, float *b)  \
	{                                                           \
		om_bias_update<n, e>((float)(gamma), load, ctl, b); \
	}

#else /* ---- host ---- */

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om.h"

static_assert(OM_CTL_LR == (int)OM_LR && OM_CTL_BIAS1 == (int)OM_BIAS1 &&
		  OM_CTL_BIAS2 == (int)OM_BIAS2 && OM_CTL_NORM2 == (int)OM_NORM2 &&
		  OM_CTL_COEF == (int)OM_COEF && OM_CTL_LOSS_LIMIT == (int)OM_LOSS_LIMIT &&
		  OM_CTL_NORM_LIMIT == (int)OM_NORM_LIMIT && OM_CTL_SKIPPED == (int)OM_SKIPPED &&
		  OM_CTL_PER_LABEL == (int)OM_PER_LABEL && OM_CTL_N == (int)OM_N_CTL,
    "the numbering of runtime/om.h");

#define OM_SUMSQ(NAME, n, c)                                               \
	OM_SUMSQ_SIZES(n, c)                                               \
	OM_KERNEL(NAME##_x, OM_SUMSQ_THREADS, 0)                           \
	OM_KERNEL(NAME##_fold, OM_SUMSQ_THREADS, 0)                        \
	void NAME(const float *g, double *ctl, float *ws)                  \
	{                                                                  \
		OM_LAUNCH(NAME##_x, OM_SUMSQ_BLOCKS(n, c), 1, 1, &g, &ws); \
		OM_LAUNCH(NAME##_fold, 1, 1, 1, &ws, &ctl);                \
	}                                                                  \
	double NAME##_check(uint64_t seed)                                 \
	{                                                                  \
		return om_sumsq_check(NAME, n, c, seed);                   \
	}

#define OM_CLIP(NAME, max)                                 \
	OM_KERNEL(NAME##_x, 1, 0)                          \
	void NAME(const double *loss, double *ctl)         \
	{                                                  \
		OM_LAUNCH(NAME##_x, 1, 1, 1, &loss, &ctl); \
	}                                                  \
	double NAME##_check(uint64_t seed)                 \
	{                                                  \
		return om_clip_check(NAME, max, seed);     \
	}

#define OM_SHARE_CTL(NAME)                                \
	OM_KERNEL(NAME##_x, 1, 0)                         \
	void NAME(const double *ctl, double *own)         \
	{                                                 \
		OM_LAUNCH(NAME##_x, 1, 1, 1, &ctl, &own); \
	}                                                 \
	double NAME##_check(uint64_t seed)                \
	{                                                 \
		return om_share_ctl_check(NAME, seed);    \
	}

#define OM_ADAMW(NAME, n, beta1, beta2, eps, decay, lr_scale)                                      \
	OM_ADAMW_SIZES(n)                                                                          \
	OM_KERNEL(NAME##_x, OM_ADAMW_THREADS, 0)                                                   \
	void NAME(const float *g, const double *ctl, om_bf16 *w, float *m, float *v)               \
	{                                                                                          \
		OM_LAUNCH(NAME##_x, OM_ADAMW_BLOCKS(n), 1, 1, &g, &ctl, &w, &m, &v);               \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_adamw_check((struct om_adamw_fn){ .plain = NAME }, n, beta1, beta2, eps, \
		    decay, lr_scale, seed);                                                        \
	}

#define OM_ADAMW_MASTER(NAME, n, beta1, beta2, eps, decay, lr_scale)                           \
	OM_ADAMW_SIZES(n)                                                                      \
	OM_KERNEL(NAME##_x, OM_ADAMW_THREADS, 0)                                               \
	void NAME(                                                                             \
	    const float *g, const double *ctl, om_bf16 *w, float *master, float *m, float *v)  \
	{                                                                                      \
		OM_LAUNCH(NAME##_x, OM_ADAMW_BLOCKS(n), 1, 1, &g, &ctl, &w, &master, &m, &v);  \
	}                                                                                      \
	double NAME##_check(uint64_t seed)                                                     \
	{                                                                                      \
		return om_adamw_check((struct om_adamw_fn){ .master = NAME }, n, beta1, beta2, \
		    eps, decay, lr_scale, seed);                                               \
	}

#define OM_ADAMW_DRAWN(NAME, n, beta1, beta2, eps, decay, lr_scale)                             \
	OM_ADAMW_SIZES(n)                                                                       \
	static_assert((n) % 4 == 0, "adamw_drawn: whole vectors");                              \
	OM_KERNEL(NAME##_x, OM_ADAMW_THREADS, 0)                                                \
	void NAME(const float *g, const double *ctl, const int64_t *lots, om_bf16 *w,           \
	    float *master, om_bf16 *m, om_bf16 *v)                                              \
	{                                                                                       \
		OM_LAUNCH(                                                                      \
		    NAME##_x, OM_ADAMW_BLOCKS(n), 1, 1, &g, &ctl, &lots, &w, &master, &m, &v);  \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_adamw_drawn_check(NAME, n, beta1, beta2, eps, decay, lr_scale, seed); \
	}

#define OM_BIAS_UPDATE(NAME, n, e, gamma)                                                        \
	static_assert((e) >= 1 && (n) >= (e) && (n) % (e) == 0, "bias_update: rows of experts"); \
	OM_KERNEL(NAME##_x, OM_ADAMW_THREADS, 0)                                                 \
	void NAME(const int64_t *load, const double *ctl, float *b)                              \
	{                                                                                        \
		OM_LAUNCH(NAME##_x, OM_CEIL(n, OM_ADAMW_THREADS), 1, 1, &load, &ctl, &b);        \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_bias_update_check(NAME, n, e, gamma, seed);                            \
	}

static inline double
om_sumsq_check(void (*run)(const float *, double *, float *), int64_t n, int64_t c, uint64_t seed)
{
	float *g = om_check_f32(n, seed, 0, 1), *ws = om_check_nan((size_t)c * sizeof(double));
	const double before[OM_CTL_N] = { [OM_CTL_NORM2] = 0.25 };
	double *ctl[2] = { om_check_copy(before, sizeof before),
		om_check_copy(before, sizeof before) };
	double got[2][OM_CTL_N];
	/* a chain of n positive terms would lose n 2^-53 in double */
	long double period = 0, want = 0.25L;
	struct om_err e = { 0 };
	for (int k = 0; k < 2; k++) {
		run(g, ctl[k], ws);
		om_check_read(got[k], ctl[k], sizeof got[k]);
	}
	e.wrong = memcmp(got[0], got[1], sizeof got[0]) != 0;
#pragma omp parallel for reduction(+ : period)
	for (int64_t i = 0; i < OM_CHECK_PERIOD; i++)
		period += om_unit(seed, 0, i) * om_unit(seed, 0, i);
	want += period * (long double)(n / OM_CHECK_PERIOD);
	for (int64_t i = 0; i < n % OM_CHECK_PERIOD; i++)
		want += om_unit(seed, 0, i) * om_unit(seed, 0, i);
	for (int i = 0; i < OM_CTL_N; i++)
		om_err_add(&e, got[0][i], i == OM_CTL_NORM2 ? (double)want : 0);
	OM_TIME(run(g, ctl[0], ws));
	om_check_end();
	return om_err_value(&e);
}

static inline double
om_clip_check(void (*run)(const double *, double *), double max, uint64_t seed)
{
	struct om_clip_ref test[OM_CLIP_REFS];
	struct om_err e = { 0 };
	om_clip_refs(max, 2 + fabs(om_unit(seed, 0, 0)), test);
	for (int i = 0; i < OM_CLIP_REFS; i++) {
		const double loss[2] = { test[i].loss / test[i].coef, NAN };
		double before[OM_CTL_N], ctl[OM_CTL_N];
		om_clip_ref_before(&test[i], before);
		double *dloss = om_check_copy(loss, sizeof loss);
		double *dctl = om_check_copy(before, sizeof before);
		run(dloss, dctl);
		om_check_read(ctl, dctl, sizeof ctl);
		e.wrong |= !om_clip_ref_right(&test[i], before, ctl);
		if (isfinite(test[i].norm))
			om_err_add(&e, ctl[OM_CTL_COEF], om_clip_ref_factor(&test[i], max));
	}
	om_check_end();
	return om_err_value(&e);
}

static inline double
om_share_ctl_check(void (*run)(const double *, double *), uint64_t seed)
{
	double ctl[OM_CTL_N], own[OM_CTL_N], was[OM_CTL_N];
	for (int i = 0; i < OM_CTL_N; i++) {
		ctl[i] = om_unit(seed, 0, i);
		was[i] = om_unit(seed, 1, i);
	}
	double *dctl = om_check_copy(ctl, sizeof ctl), *down = om_check_copy(was, sizeof was);
	run(dctl, down);
	om_check_read(own, down, sizeof own);
	om_check_end();
	return om_share_ctl_right(ctl, was, own) ? 0 : OM_WRONG;
}

/* The kernel that a check runs: one of these. */
struct om_adamw_fn {
	void (*plain)(const float *, const double *, om_bf16 *, float *, float *);
	void (*master)(const float *, const double *, om_bf16 *, float *, float *, float *);
};
enum { OM_ADAMW_SAMPLES = 128, OM_ADAMW_SPAN = 64 };

static inline void
om_adamw_run(struct om_adamw_fn f, const float *g, const double *ctl, om_bf16 *w, float *master,
    float *m, float *v)
{
	if (f.plain)
		f.plain(g, ctl, w, m, v);
	if (f.master)
		f.master(g, ctl, w, master, m, v);
}

/* Where the s-th span begins that a check looks at: all of them, or the ends and by chance. */
static inline int64_t
om_adamw_sample(int64_t n, int64_t span, uint64_t seed, int64_t s)
{
	if (n <= OM_ADAMW_SAMPLES * OM_ADAMW_SPAN)
		return s * span < n - span ? s * span : n - span;
	if (s < 2)
		return s * (n - span);
	return (int64_t)((om_unit(seed, 9, s) / 3.4641016151377544 + 0.5) * (double)(n - span));
}

/*
 * Two steps from moments of zero, of different bias and clipping, and one before and one after
 * them that are skipped. Spans of the arrays are looked at, the first and the last among them.
 */
static inline double
om_adamw_check(struct om_adamw_fn run, int64_t n, double beta1, double beta2, double eps,
    double decay, double lr_scale, uint64_t seed)
{
	const struct om_adamw_ref ref = { beta1, beta2, eps, decay, lr_scale };
	const int64_t span = n < OM_ADAMW_SPAN ? n : OM_ADAMW_SPAN;
	/* one gradient: with it, the arrays are what a trainer has in memory */
	float *g = om_check_f32(n, seed, 0, 1);
	om_bf16 *w = om_check_bf16(n, seed, 2, 1);
	float *master = run.master ? om_check_f32(n, seed, 2, 1) : NULL;
	float *m = om_check_nan((size_t)n * sizeof *m), *v = om_check_nan((size_t)n * sizeof *v);
	/* NaN: only clip looks at norm and limits */
	double scalars[2][OM_CTL_N] = { { 0.125, 0.1, 0.05, NAN, 0.7, NAN, NAN, 0 },
		{ 0.125, 0.19, 0.0975, NAN, 0.9, NAN, NAN, 0 } };
	double *ctl[2] = { om_check_copy(scalars[0], sizeof scalars[0]),
		om_check_copy(scalars[1], sizeof scalars[1]) };
	scalars[0][OM_CTL_SKIPPED] = 1;
	double *skip = om_check_copy(scalars[0], sizeof scalars[0]);
	struct om_err ew = { .scale = 1 }, es = { .scale = 1 }, em = { .scale = 1 },
		      ev = { .scale = 1 };
	om_bf16 gw[OM_ADAMW_SPAN];
	float gs[OM_ADAMW_SPAN], gm[OM_ADAMW_SPAN], gv[OM_ADAMW_SPAN];

	om_set_zero(m, (size_t)n * sizeof *m);
	om_set_zero(v, (size_t)n * sizeof *v);
	om_adamw_run(run, g, skip, w, master, m, v);
	for (int k = 0; k < 2; k++)
		om_adamw_run(run, g, ctl[k], w, master, m, v);
	om_adamw_run(run, g, skip, w, master, m, v);
	for (int64_t s = 0; s < OM_ADAMW_SAMPLES && s * span < n; s++) {
		const int64_t at = om_adamw_sample(n, span, seed, s);
		om_check_read(gw, w + at, (size_t)span * sizeof *gw);
		om_check_read(gm, m + at, (size_t)span * sizeof *gm);
		om_check_read(gv, v + at, (size_t)span * sizeof *gv);
		if (master)
			om_check_read(gs, master + at, (size_t)span * sizeof *gs);
		for (int64_t i = 0; i < span; i++) {
			double mi = 0, vi = 0,
			       wi = master ? om_unit(seed, 2, at + i)
					   : om_unit_bf16(seed, 2, at + i);
			for (int k = 0; k < 2; k++)
				om_adamw_ref(
				    &ref, scalars[k], om_unit(seed, 0, at + i), &wi, &mi, &vi);
			om_err_add(&ew, om_bf16_f32(gw[i]), wi);
			if (master) {
				om_err_add(&es, gs[i], wi);
				/* rounded from the very master: half of the last place of bf16 */
				ew.wrong |= fabs((double)om_bf16_f32(gw[i]) - gs[i]) >
					    ldexp(fabs((double)gs[i]), -8);
			}
			om_err_add(&em, gm[i], mi);
			om_err_add(&ev, gv[i], vi);
		}
	}
	OM_TIME(om_adamw_run(run, g, ctl[0], w, master, m, v));
	om_check_end();
	/* what is float is held to 1e-5 where w, rounded to bf16 each step, is held to 1.2e-2 */
	return fmax(om_err_value(&ew),
	    1200 * fmax(om_err_value(&es), fmax(om_err_value(&em), om_err_value(&ev))));
}

/* A span of what adamw_drawn changes. */
struct om_adamw_span {
	om_bf16 w[OM_ADAMW_SPAN], m[OM_ADAMW_SPAN], v[OM_ADAMW_SPAN];
	float master[OM_ADAMW_SPAN];
};

static inline void
om_adamw_read(struct om_adamw_span *s, int64_t span, const om_bf16 *w, const float *master,
    const om_bf16 *m, const om_bf16 *v)
{
	om_check_read(s->w, w, (size_t)span * sizeof *w);
	om_check_read(s->m, m, (size_t)span * sizeof *m);
	om_check_read(s->v, v, (size_t)span * sizeof *v);
	om_check_read(s->master, master, (size_t)span * sizeof *master);
}

/* Whether a step, from an element as it was, gave the moments that its draws say, to the bit. */
static inline bool
om_adamw_drawn_right(const struct om_adamw_ref *a, double coef, float g, uint32_t draw,
    const struct om_adamw_span *was, const struct om_adamw_span *is, int64_t i)
{
	g *= (float)coef;
	const float m = fmaf((float)a->beta1, om_bf16_f32(was->m[i]), (float)(1 - a->beta1) * g);
	const float v =
	    fmaf((float)a->beta2, om_bf16_f32(was->v[i]), (float)(1 - a->beta2) * g * g);
	return om_bf16_f32(is->m[i]) == om_drawn_ref(m, draw & 0xffff) &&
	       om_bf16_f32(is->v[i]) == om_drawn_ref(v, draw >> 16);
}

/* A step, one that is skipped, and another, each compared with what was there before it. */
static inline double
om_adamw_drawn_check(void (*run)(const float *, const double *, const int64_t *, om_bf16 *, float *,
			 om_bf16 *, om_bf16 *),
    int64_t n, double beta1, double beta2, double eps, double decay, double lr_scale, uint64_t seed)
{
	const struct om_adamw_ref ref = { beta1, beta2, eps, decay, lr_scale };
	const int64_t span = n < OM_ADAMW_SPAN ? n : OM_ADAMW_SPAN;
	float *g = om_check_f32(n, seed, 0, 1), *master = om_check_f32(n, seed, 2, 1);
	om_bf16 *w = om_check_bf16(n, seed, 2, 1);
	om_bf16 *m = om_check_nan((size_t)n * sizeof *m), *v = om_check_nan((size_t)n * sizeof *v);
	int64_t draw[OM_LOTS_REF], *lots = om_check_nan(sizeof draw);
	const int64_t away = (const char *)m - (const char *)lots;
	double *ctl = om_check_nan(OM_CTL_N * sizeof *ctl);
	struct om_adamw_span *was = calloc(OM_ADAMW_SAMPLES, sizeof *was);
	struct om_adamw_span is = { .w = { 0 } };
	struct om_err e = { .scale = 1 };

	om_set_zero(m, (size_t)n * sizeof *m);
	om_set_zero(v, (size_t)n * sizeof *v);
	for (int k = 0; k < 4; k++) {
		const bool skipped = k % 2;
		const double scalars[OM_CTL_N] = { 0.125, 0.1 * (1 + k), 0.05 * (1 + k), NAN,
			0.7 + 0.1 * k, NAN, NAN, skipped };
		om_lots_ref(draw, away, sizeof *m, n, 4, seed + (uint64_t)k);
		om_check_write(lots, draw, sizeof draw);
		om_check_write(ctl, scalars, sizeof scalars);
		for (int64_t s = 0; s < OM_ADAMW_SAMPLES && s * span < n; s++) {
			const int64_t at = om_adamw_sample(n, span, seed, s);
			om_adamw_read(&was[s], span, w + at, master + at, m + at, v + at);
		}
		run(g, ctl, lots, w, master, m, v);
		for (int64_t s = 0; s < OM_ADAMW_SAMPLES && s * span < n; s++) {
			const int64_t at = om_adamw_sample(n, span, seed, s);
			om_adamw_read(&is, span, w + at, master + at, m + at, v + at);
			e.wrong |= skipped && memcmp(&is, &was[s], sizeof is) != 0;
			for (int64_t i = 0; i < span && !skipped; i++) {
				const double gi = om_unit(seed, 0, at + i);
				double x = was[s].master[i], mi = om_bf16_f32(was[s].m[i]),
				       vi = om_bf16_f32(was[s].v[i]);
				om_adamw_ref(&ref, scalars, gi, &x, &mi, &vi);
				om_err_add(&e, is.master[i], x);
				e.wrong |= fabs((double)om_bf16_f32(is.w[i]) - is.master[i]) >
					   ldexp(fabs((double)is.master[i]), -8);
				e.wrong |= !om_adamw_drawn_right(&ref, scalars[OM_CTL_COEF],
				    (float)gi, om_lots_ref_word(draw, away, sizeof *m, at + i),
				    &was[s], &is, i);
			}
		}
	}
	const double step[OM_CTL_N] = { 0.125, 0.1, 0.05, NAN, 0.7, NAN, NAN, 0 };
	om_check_write(ctl, step, sizeof step);
	OM_TIME(run(g, ctl, lots, w, master, m, v));
	om_check_end();
	free(was);
	return 1200 * om_err_value(&e); /* as om_adamw_check counts what is float */
}

/* Two steps, and one before and one after them that are skipped; some loads are the mean. */
static inline double
om_bias_update_check(void (*run)(const int64_t *, const double *, float *), int64_t n, int64_t e,
    double gamma, uint64_t seed)
{
	float *b = om_check_f32(n, seed, 0, 1), *got = malloc((size_t)n * sizeof *got);
	int64_t *load = malloc((size_t)n * sizeof *load);
	double scalars[OM_CTL_N] = { [OM_CTL_SKIPPED] = 1 };
	struct om_err err = { .scale = 1 };

	for (int64_t i = 0; i < n; i++)
		load[i] = (int64_t)(2 * om_unit(seed, 1, i)) + (seed % 2 ? 9 : (int64_t)1 << 40);
	int64_t *dload = om_check_copy(load, (size_t)n * sizeof *load);
	double *skip = om_check_copy(scalars, sizeof scalars);
	scalars[OM_CTL_SKIPPED] = 0;
	double *ctl = om_check_copy(scalars, sizeof scalars);
	run(dload, skip, b);
	run(dload, ctl, b);
	run(dload, ctl, b);
	run(dload, skip, b);
	om_check_read(got, b, (size_t)n * sizeof *got);
	for (int64_t i = 0; i < n; i++)
		om_err_add(&err, got[i], om_unit(seed, 0, i) + 2 * om_bias_ref(load, i, e, gamma));
	OM_TIME(run(dload, ctl, b));
	om_check_end();
	free(got);
	free(load);
	return om_err_value(&err);
}

#endif
#endif
