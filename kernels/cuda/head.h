/*
 * The language model head with its cross-entropy, c tokens at a time, so that the logits of a chunk
 * only are ever in memory.
 *
 *   head_loss       lse [t] = log sum exp of x [t, n] w [v, n]^T;
 *                   loss[0] += scale sum over t of lse - logit of the label,
 *                   loss[1] += scale sum over t of lse^2 (PaLM's z-loss, Chowdhery et al., 2022)
 *   head_loss_bwd   dx [t, n] = dlogit w, dw [v, n] += dlogit^T x, where
 *                   dlogit = scale ((1 + 2 z lse) exp(logit - lse) - (1 at label)), the gradient of
 *                   loss[0] + z loss[1], from recomputed logits
 *   head_loss_grad  both in one pass
 *   head_score      head_loss whose nll [t] = lse - logit of the label, or 0 where it is masked
 *
 * A label outside [0, v) is masked: no loss of either kind, no gradient. scale is times
 * ctl[PER_LABEL], by which the host makes up for the step's masked labels.
 *
 * A chunk's logits are float; a kernel with a block a row turns them into losses, or into dlogit as
 * bf16; the products are gemm.h's. Workspace: logits [c, p], bf16 dlogit [c, p], losses [t, 2];
 * p is v rounded up to 8, so that rows start where the copy engine can; what lies beyond v is not
 * read.
 *
 * All chunks are of one size, so that there is one instance of each product. The last one reaches
 * back over tokens that were done before: these come out as they did, and their dlogit is made
 * zero before the product that adds to dw.
 */
#ifndef OM_HEAD_H
#define OM_HEAD_H

#include "ctl.h"
#include "gemm.h"
#include "sm80.h"

/* threads of a row; float4 that each keeps in registers, and in shared memory */
enum { OM_HEAD_THREADS = 512, OM_HEAD_HELD = 25, OM_HEAD_SHARED = 27 };
enum { OM_HEAD_LOSSES, OM_HEAD_SCORES, OM_HEAD_DLOGIT, OM_HEAD_BOTH };
#define OM_HEAD_NO_DLOGIT(what) ((what) <= OM_HEAD_SCORES)

#define OM_HEAD_PITCH(v) OM_GEMM_ALIGN8(v) /* of a chunk's rows */

/* Tokens of a chunk */
#define OM_HEAD_ROWS(t, c) ((t) < (c) ? (t) : (c))

/* float4 a thread has to keep of a row, and those of them in shared memory */
#define OM_HEAD_NEED(v) OM_CEIL((v) / 4, OM_HEAD_THREADS)
#define OM_HEAD_MOST(n, most) ((n) < 0 ? 0 : (n) < (most) ? (n) : (most))
#define OM_HEAD_KEPT(v, what) \
	((what) == OM_HEAD_BOTH ? OM_HEAD_MOST(OM_HEAD_NEED(v) - OM_HEAD_HELD, OM_HEAD_SHARED) : 0)
#define OM_HEAD_SMEM(v, what) (OM_HEAD_KEPT(v, what) * OM_HEAD_THREADS * 16)

#define OM_HEAD_LOGITS(NAME, m, n, v) \
	OM_GEMM(NAME, float, 0, OM_GEMM_ONE, 1, m, v, n, OM_GEMM_WIDTH(m, v), 0, 0, 1, 8)
#define OM_HEAD_DX(NAME, m, n, v) \
	OM_GEMM(NAME, om_bf16, 0, OM_GEMM_ONE, 1, m, n, v, OM_GEMM_WIDTH(m, n), 0, 1, 1, 8)
#define OM_HEAD_DW(NAME, m, n, v) \
	OM_GEMM(NAME, float, 1, OM_GEMM_ONE, 1, v, n, m, OM_GEMM_WIDE(n), 1, 1, 1, 8)

#ifdef __CUDACC__ /* ---- device ---- */

/* The branch on x, which is not negative, keeps this from moving up before the loads under x. */
OM_DEV void
om_head_wait(float x)
{
	if (!(x < 0))
		om_async_wait_all();
}

/* Logits times log2 e, less shift, as powers of two. */
OM_DEV float4
om_head_powers(float4 x, float shift)
{
	constexpr float log2_e = 0x1.715476p0f;
	return make_float4(om_exp2(fmaf(x.x, log2_e, -shift)), om_exp2(fmaf(x.y, log2_e, -shift)),
	    om_exp2(fmaf(x.z, log2_e, -shift)), om_exp2(fmaf(x.w, log2_e, -shift)));
}

OM_DEV uint2
om_head_bf16(float4 x, float factor)
{
	return make_uint2(om_pack(x.x * factor, x.y * factor), om_pack(x.z * factor, x.w * factor));
}

/* The last V % 4 logits of a row, with -infinity, whose power is 0, for what lies beyond them */
template <int V>
OM_DEV float4
om_head_end(const float *row)
{
	const float none = __uint_as_float(0xff800000u), *x = row + V / 4 * 4;
	return make_float4(
	    V % 4 > 0 ? x[0] : none, V % 4 > 1 ? x[1] : none, V % 4 > 2 ? x[2] : none, none);
}

/* sum 2^(x_i - max) of some x_i, and their max: the softmax' denominator as it grows. */
struct om_head_sum {
	float max, sum;
};

OM_DEV om_head_sum
om_head_grow(om_head_sum a, float4 x)
{
	const float max = fmaxf(a.max, fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)) * 0x1.715476p0f);
	x = om_head_powers(x, max);
	return { max, a.sum * om_exp2(a.max - max) + ((x.x + x.y) + (x.z + x.w)) };
}

OM_DEV om_head_sum
om_head_merge(om_head_sum a, om_head_sum b)
{
	const float max = fmaxf(a.max, b.max);
	return { max, a.sum * om_exp2(a.max - max) + b.sum * om_exp2(b.max - max) };
}

/* Of all threads' in a fixed order, for each of them. */
OM_DEV om_head_sum
om_head_block(om_head_sum x)
{
	constexpr int WARPS = OM_HEAD_THREADS / 32;
	__shared__ om_head_sum warps[WARPS];
#pragma unroll
	for (int d = 16; d; d /= 2)
		x = om_head_merge(x, { __shfl_xor_sync(0xffffffffu, x.max, d),
					 __shfl_xor_sync(0xffffffffu, x.sum, d) });
	if (threadIdx.x % 32 == 0)
		warps[threadIdx.x / 32] = x;
	__syncthreads();
	x = warps[threadIdx.x % WARPS];
#pragma unroll
	for (int d = WARPS / 2; d; d /= 2)
		x = om_head_merge(x, { __shfl_xor_sync(0xffffffffu, x.max, d),
					 __shfl_xor_sync(0xffffffffu, x.sum, d) });
	return x;
}

/*
 * Row blockIdx.x of a chunk's logits z [c, PITCH]. Everything is in powers of two: logits times
 * log2 e. loss [c] gets the token's two losses, lse [c] is written with the losses and read for
 * dlogit; for scores it gets the first of the two.
 *
 * To write dlogit, a thread keeps in registers what it read of the row, all of one of 50,304, as
 * powers of two less its own maximum, which the row's turns into probabilities by one factor. Of
 * longer rows it keeps more in shared memory, to 106,496, and reads the rest again.
 */
template <int V, int WHAT>
OM_DEV void
om_head_row(float scale, float square, const float *z, const int32_t *label, float *lse,
    float2 *loss, om_bf16 *dlogit)
{
	constexpr int THREADS = OM_HEAD_THREADS, N = V / 4, NEED = OM_HEAD_NEED(V);
	constexpr int PITCH = OM_HEAD_PITCH(V);
	constexpr int H = WHAT != OM_HEAD_BOTH ? 0 : NEED < OM_HEAD_HELD ? NEED : OM_HEAD_HELD;
	constexpr int S = OM_HEAD_KEPT(V, WHAT), LEFT = N / THREADS - H - S; /* of all threads */
	constexpr int AHEAD = WHAT == OM_HEAD_BOTH && LEFT > 0 && LEFT <= 24 ? LEFT : 8;
	constexpr float log2_e = 0x1.715476p0f, ln_2 = 0x1.62e43p-1f;
	const int64_t row = blockIdx.x;
	const int at = label[row];
	const bool masked = at < 0 || at >= V;
	const float4 *from = (const float4 *)(z + row * PITCH);
	uint2 *to = (uint2 *)(dlogit + row * PITCH);
	const bool has_end = V % 4 && threadIdx.x == N % THREADS;

	if (masked && !OM_HEAD_NO_DLOGIT(WHAT)) {
		for (int i = threadIdx.x; i < PITCH / 4; i += THREADS)
			to[i] = make_uint2(0, 0);
		if (WHAT == OM_HEAD_BOTH && threadIdx.x == 0)
			loss[row] = make_float2(0, 0);
		return;
	}

	extern __shared__ float4 om_head_kept[];
	float4 x[H ? H : 1];
	float shift, factor = scale; /* dlogit = factor 2^(z log2 e - shift), less scale at label */
	om_head_sum own = { -1e30f, 0 };
	if (WHAT != OM_HEAD_DLOGIT) {
		const float none = __uint_as_float(0xff800000u); /* -infinity, whose power is 0 */
		float max = -1e30f;                              /* of logits yet */
		om_head_sum rest = { max, 0 };
#pragma unroll
		for (int s = 0; s < S; s++) {
			const int i = (H + s) * THREADS + threadIdx.x;
			if ((H + s + 1) * THREADS <= N || i < N)
				om_async_load(
				    om_smem(&om_head_kept[s * THREADS + threadIdx.x]), &from[i]);
		}
#pragma unroll AHEAD
		for (int i = (H + S) * THREADS + threadIdx.x; H + S < NEED && i < N; i += THREADS)
			rest = om_head_grow(rest, __ldg(&from[i]));
#pragma unroll
		for (int h = 0; h < H; h++) {
			const int i = h * THREADS + threadIdx.x;
			const bool has = (h + 1) * THREADS <= N || i < N;
			x[h] = has ? __ldg(&from[i]) : make_float4(none, none, none, none);
		}
#pragma unroll
		for (int h = 0; h < H; h++)
			max = fmaxf(fmaxf(max, fmaxf(x[h].x, x[h].y)), fmaxf(x[h].z, x[h].w));
		own.max = max * log2_e;
#pragma unroll
		for (int h = 0; h < H; h++) {
			x[h] = om_head_powers(x[h], own.max);
			own.sum += (x[h].x + x[h].y) + (x[h].z + x[h].w);
		}
		rest = om_head_merge(rest, own);
		if (S > 0)
			om_head_wait(rest.sum);
#pragma unroll
		for (int s = 0; s < S; s++) {
			const int i = (H + s) * THREADS + threadIdx.x;
			if ((H + s + 1) * THREADS <= N || i < N)
				rest = om_head_grow(rest, om_head_kept[s * THREADS + threadIdx.x]);
		}
		if (has_end)
			rest = om_head_grow(rest, om_head_end<V>(z + row * PITCH));
		const om_head_sum all = om_head_block(rest);
		const float log_sum = log2f(all.sum);
		const float row_lse = (all.max + log_sum) * ln_2;
		if (threadIdx.x == 0) {
			const float picked = masked ? 0 : z[row * PITCH + at];
			const float entropy = (fmaf(-picked, log2_e, all.max) + log_sum) * ln_2;
			loss[row] =
			    masked ? make_float2(0, 0) : make_float2(entropy, row_lse * row_lse);
			if (WHAT == OM_HEAD_LOSSES)
				lse[row] = row_lse;
			if (WHAT == OM_HEAD_SCORES)
				lse[row] = loss[row].x;
		}
		shift = all.max;
		factor *= (1 + 2 * square * row_lse) / all.sum;
	} else {
		shift = lse[row] * log2_e;
		factor *= 1 + 2 * square * lse[row];
	}
	if (OM_HEAD_NO_DLOGIT(WHAT))
		return;

	const float kept = factor * om_exp2(own.max - shift);
#pragma unroll
	for (int h = 0; h < H; h++) {
		const int i = h * THREADS + threadIdx.x;
		if ((h + 1) * THREADS <= N || i < N)
			to[i] = om_head_bf16(x[h], kept);
	}
#pragma unroll
	for (int s = 0; s < S; s++) {
		const int i = (H + s) * THREADS + threadIdx.x;
		if ((H + s + 1) * THREADS <= N || i < N)
			to[i] = om_head_bf16(
			    om_head_powers(om_head_kept[s * THREADS + threadIdx.x], shift), factor);
	}
#pragma unroll AHEAD
	for (int i = (H + S) * THREADS + threadIdx.x; H + S < NEED && i < N; i += THREADS)
		to[i] = om_head_bf16(om_head_powers(__ldg(&from[i]), shift), factor);
	if (has_end)
		to[N] =
		    om_head_bf16(om_head_powers(om_head_end<V>(z + row * PITCH), shift), factor);
	if (at / 4 % THREADS == threadIdx.x) { /* over what this thread wrote */
		const bool inside = V % 4 == 0 || at / 4 < N;
		const float4 logits = inside ? from[at / 4] : om_head_end<V>(z + row * PITCH);
		float4 y = om_head_powers(logits, shift);
		y.x = factor * y.x - (at % 4 == 0 ? scale : 0);
		y.y = factor * y.y - (at % 4 == 1 ? scale : 0);
		y.z = factor * y.z - (at % 4 == 2 ? scale : 0);
		y.w = factor * y.w - (at % 4 == 3 ? scale : 0);
		to[at / 4] = om_head_bf16(y, 1);
	}
}

/* sum[0] += scale times the sum of loss[i].x, sum[1] of loss[i].y; one block of 1024 */
template <int T>
OM_DEV void
om_head_add(double scale, const float2 *loss, double *sum)
{
	__shared__ double warps[2][32];
	double x = 0, y = 0;
#pragma unroll 8
	for (int i = threadIdx.x; i < T; i += 1024) {
		x += loss[i].x;
		y += loss[i].y;
	}
#pragma unroll
	for (int d = 16; d; d /= 2) {
		x += __shfl_xor_sync(0xffffffffu, x, d);
		y += __shfl_xor_sync(0xffffffffu, y, d);
	}
	if (threadIdx.x % 32 == 0) {
		warps[0][threadIdx.x / 32] = x;
		warps[1][threadIdx.x / 32] = y;
	}
	__syncthreads();
	if (threadIdx.x < 2) {
		x = 0;
		for (int w = 0; w < 32; w++)
			x += warps[threadIdx.x][w];
		sum[threadIdx.x] += scale * x;
	}
}

#define OM_HEAD_ROW(NAME, v, what, scale, z)                                                    \
	OM_GLOBAL(OM_HEAD_THREADS, (what) == OM_HEAD_BOTH ? 1 : 2)                              \
	NAME(const float *logit, const int32_t *label, const double *ctl, float *lse,           \
	    float2 *token, om_bf16 *dlogit)                                                     \
	{                                                                                       \
		om_head_row<v, what>((float)((scale)*ctl[OM_CTL_PER_LABEL]), (float)(z), logit, \
		    label, lse, token, dlogit);                                                 \
	}
#define OM_HEAD_ADD(NAME, t, scale)                                                   \
	OM_GLOBAL(1024, 1) NAME(const float2 *token, const double *ctl, double *loss) \
	{                                                                             \
		om_head_add<t>((scale)*ctl[OM_CTL_PER_LABEL], token, loss);           \
	}

#define OM_HEAD_LOSS_AS(NAME, t, n, v, c, scale, z, what)       \
	OM_HEAD_LOGITS(NAME##_logits, OM_HEAD_ROWS(t, c), n, v) \
	OM_HEAD_ROW(NAME##_row, v, what, scale, z)              \
	OM_HEAD_ADD(NAME##_add, t, scale)

#define OM_HEAD_LOSS_BWD(NAME, t, n, v, c, scale, z)            \
	OM_HEAD_LOGITS(NAME##_logits, OM_HEAD_ROWS(t, c), n, v) \
	OM_HEAD_ROW(NAME##_row, v, OM_HEAD_DLOGIT, scale, z)    \
	OM_HEAD_DX(NAME##_dx, OM_HEAD_ROWS(t, c), n, v)         \
	OM_HEAD_DW(NAME##_dw, OM_HEAD_ROWS(t, c), n, v)

#define OM_HEAD_LOSS_GRAD(NAME, t, n, v, c, scale, z)           \
	OM_HEAD_LOGITS(NAME##_logits, OM_HEAD_ROWS(t, c), n, v) \
	OM_HEAD_ROW(NAME##_row, v, OM_HEAD_BOTH, scale, z)      \
	OM_HEAD_DX(NAME##_dx, OM_HEAD_ROWS(t, c), n, v)         \
	OM_HEAD_DW(NAME##_dw, OM_HEAD_ROWS(t, c), n, v)         \
	OM_HEAD_ADD(NAME##_add, t, scale)

#else /* ---- host ---- */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OM_HEAD_SIZES(NAME, t, n, v, c, what)                                           \
	_Static_assert((t) >= 1 && (c) >= 1, "head: sizes start at 1");                 \
	_Static_assert((n) >= 8 && (n) % 8 == 0, "head: the width is a multiple of 8"); \
	_Static_assert((v) >= 1 && (int64_t)(v) < 1 << 30, "head: labels are int32");   \
	OM_HEAD_LOGITS(NAME##_logits, OM_HEAD_ROWS(t, c), n, v)                         \
	OM_KERNEL(NAME##_row, OM_HEAD_THREADS, OM_HEAD_SMEM(v, what))

/* The first token of the chunk after the one at i, all of m tokens; t after the last. */
static inline int64_t
om_head_next(int64_t i, int64_t m, int64_t t)
{
	return i + m >= t ? t : i + 2 * m <= t ? i + m : t - m;
}

/* The products with dlogit; of the last chunk only the t % m tokens that are new go to dw. */
#define OM_HEAD_PRODUCTS(NAME, t, n, v)                                                         \
	NAME##_dx_run(dlogit, w, dx + i * (n), NULL);                                           \
	if (i + m == (t) && (t) % m)                                                            \
		om_set_zero(dlogit, (size_t)(m - (t) % m) * OM_HEAD_PITCH(v) * sizeof *dlogit); \
	NAME##_dw_run(dlogit, x + i * (n), dw, NULL);

/* ws: c*p + 2*t floats */
#define OM_HEAD_LOSS_AS(NAME, t, n, v, c, scale, z, what)                                      \
	OM_HEAD_SIZES(NAME, t, n, v, c, what)                                                  \
	OM_KERNEL(NAME##_add, 1024, 0)                                                         \
	void NAME(const om_bf16 *x, const om_bf16 *w, const int32_t *label, const double *ctl, \
	    float *lse, double *loss, void *ws)                                                \
	{                                                                                      \
		const int64_t m = OM_HEAD_ROWS(t, c);                                          \
		float *logit = ws, *losses = logit + m * OM_HEAD_PITCH(v);                     \
		om_bf16 *dlogit = NULL;                                                        \
		for (int64_t i = 0; i < (t); i = om_head_next(i, m, t)) {                      \
			const int32_t *labels = label + i;                                     \
			float *lses = lse + i, *token = losses + 2 * i;                        \
			NAME##_logits_run(x + i * (n), w, logit, NULL);                        \
			OM_LAUNCH(NAME##_row, (uint32_t)m, 1, 1, &logit, &labels, &ctl, &lses, \
			    &token, &dlogit);                                                  \
		}                                                                              \
		OM_LAUNCH(NAME##_add, 1, 1, 1, &losses, &ctl, &loss);                          \
	}                                                                                      \
	double NAME##_check(uint64_t seed)                                                     \
	{                                                                                      \
		return om_head_check(NAME, NULL, NULL, what, t, n, v, c, scale, z, seed);      \
	}

/* ws: c*p + c*p/2 floats */
#define OM_HEAD_LOSS_BWD(NAME, t, n, v, c, scale, z)                                           \
	OM_HEAD_SIZES(NAME, t, n, v, c, OM_HEAD_DLOGIT)                                        \
	OM_HEAD_DX(NAME##_dx, OM_HEAD_ROWS(t, c), n, v)                                        \
	OM_HEAD_DW(NAME##_dw, OM_HEAD_ROWS(t, c), n, v)                                        \
	void NAME(const om_bf16 *x, const om_bf16 *w, const int32_t *label, const double *ctl, \
	    const float *lse, om_bf16 *dx, float *dw, void *ws)                                \
	{                                                                                      \
		const int64_t m = OM_HEAD_ROWS(t, c);                                          \
		float *logit = ws, *token = NULL;                                              \
		om_bf16 *dlogit = (om_bf16 *)(logit + m * OM_HEAD_PITCH(v));                   \
		for (int64_t i = 0; i < (t); i = om_head_next(i, m, t)) {                      \
			const int32_t *labels = label + i;                                     \
			const float *lses = lse + i;                                           \
			NAME##_logits_run(x + i * (n), w, logit, NULL);                        \
			OM_LAUNCH(NAME##_row, (uint32_t)m, 1, 1, &logit, &labels, &ctl, &lses, \
			    &token, &dlogit);                                                  \
			OM_HEAD_PRODUCTS(NAME, t, n, v)                                        \
		}                                                                              \
	}                                                                                      \
	double NAME##_check(uint64_t seed)                                                     \
	{                                                                                      \
		return om_head_check(                                                          \
		    NULL, NAME, NULL, OM_HEAD_DLOGIT, t, n, v, c, scale, z, seed);             \
	}

/* ws: c*p + c*p/2 + 2*t floats */
#define OM_HEAD_LOSS_GRAD(NAME, t, n, v, c, scale, z)                                             \
	OM_HEAD_SIZES(NAME, t, n, v, c, OM_HEAD_BOTH)                                             \
	OM_HEAD_DX(NAME##_dx, OM_HEAD_ROWS(t, c), n, v)                                           \
	OM_HEAD_DW(NAME##_dw, OM_HEAD_ROWS(t, c), n, v)                                           \
	OM_KERNEL(NAME##_add, 1024, 0)                                                            \
	void NAME(const om_bf16 *x, const om_bf16 *w, const int32_t *label, const double *ctl,    \
	    double *loss, om_bf16 *dx, float *dw, void *ws)                                       \
	{                                                                                         \
		const int64_t m = OM_HEAD_ROWS(t, c);                                             \
		float *logit = ws, *lse = NULL;                                                   \
		om_bf16 *dlogit = (om_bf16 *)(logit + m * OM_HEAD_PITCH(v));                      \
		float *losses = (float *)(dlogit + m * OM_HEAD_PITCH(v));                         \
		for (int64_t i = 0; i < (t); i = om_head_next(i, m, t)) {                         \
			const int32_t *labels = label + i;                                        \
			float *token = losses + 2 * i;                                            \
			NAME##_logits_run(x + i * (n), w, logit, NULL);                           \
			OM_LAUNCH(NAME##_row, (uint32_t)m, 1, 1, &logit, &labels, &ctl, &lse,     \
			    &token, &dlogit);                                                     \
			OM_HEAD_PRODUCTS(NAME, t, n, v)                                           \
		}                                                                                 \
		OM_LAUNCH(NAME##_add, 1, 1, 1, &losses, &ctl, &loss);                             \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_head_check(NULL, NULL, NAME, OM_HEAD_BOTH, t, n, v, c, scale, z, seed); \
	}

/* ---- check ---- */

#include "head_ref.h"

typedef void om_head_loss_fn(
    const om_bf16 *, const om_bf16 *, const int32_t *, const double *, float *, double *, void *);
typedef void om_head_loss_bwd_fn(const om_bf16 *, const om_bf16 *, const int32_t *, const double *,
    const float *, om_bf16 *, float *, void *);
typedef void om_head_loss_grad_fn(const om_bf16 *, const om_bf16 *, const int32_t *, const double *,
    double *, om_bf16 *, float *, void *);
enum { OM_HEAD_SAMPLES = 128 };

/*
 * All three, whichever is given. At first only some tokens have a label, spread over the chunks,
 * and the others are masked: so the whole loss and dw can be had without t * v * n operations.
 * Then all have one, which must leave those tokens' dx as they were; that is also what is timed.
 *
 * Losses count 1000 times where there are bf16 gradients beside them.
 */
static __attribute__((noinline, cold, unused)) double
om_head_check(om_head_loss_fn *fwd, om_head_loss_bwd_fn *bwd, om_head_loss_grad_fn *grad, int what,
    int64_t t, int64_t n, int64_t v, int64_t c, double scale, double z, uint64_t seed)
{
	const int64_t m = t < c ? t : c, p = OM_HEAD_PITCH(v), room = 3 + 200000000 / (n * v);
	const double size = exp2(floor(log2(2 / sqrt((double)n)))); /* logits of a few units */
	const int64_t live = t < room && t < 200 ? t : room < 48 ? room : 48;
	const double ctl[OM_CTL_N] = { [OM_CTL_PER_LABEL] = 1.25 };
	struct om_head_ref o = { .x = OM_BF16(0),
		.w = OM_BF16(1),
		.n = n,
		.v = v,
		.live = live,
		.token = malloc((size_t)live * 8),
		.label = malloc((size_t)live * 4),
		.scale = scale * ctl[OM_CTL_PER_LABEL],
		.z = z };
	struct om_err eloss = { .scale = scale }, esquare = { .scale = scale };
	struct om_err elog = { .scale = 1 }, ex = { .scale = scale }, ew = { .scale = scale };
	int32_t *few = malloc((size_t)t * 4), *all = malloc((size_t)t * 4);
	float *lse = malloc((size_t)t * 4);
	om_bf16 *dx = malloc((size_t)(t * n) * 2), *dx2 = malloc((size_t)(t * n) * 2);
	double loss[2] = { scale, 2 * scale }, loss2[2] = { 0, 0 };
	bool wrong = false;

	o.w.scale = size;
	for (int64_t i = 0; i < t; i++) {
		all[i] = (int32_t)(i * 7919 % v);
		few[i] = i % 2 ? -1 : (int32_t)v;
	}
	all[0] = (int32_t)v - 1;
	for (int64_t a = 0; a < live; a++) {
		o.token[a] = live > 1 ? a * (t - 1) / (live - 1) : t - 1;
		few[o.token[a]] = o.label[a] = all[o.token[a]];
	}
	om_head_ref(&o);
	for (int64_t i = 0; i < t; i++)
		lse[i] = (float)o.lse[0];
	for (int64_t a = 0; a < live; a++)
		lse[o.token[a]] = (float)o.lse[a];

	om_bf16 *d_x = om_check_bf16(t * n, seed, 0, 1);
	om_bf16 *d_w = om_check_bf16(v * n, seed, 1, (float)size);
	int32_t *d_few = om_check_copy(few, (size_t)t * 4),
		*d_all = om_check_copy(all, (size_t)t * 4);
	float *d_lse = bwd ? om_check_copy(lse, (size_t)t * 4) : om_check_nan((size_t)t * 4);
	double *d_ctl = om_check_copy(ctl, sizeof ctl);
	double *d_loss = om_check_copy(loss, sizeof loss);
	om_bf16 *d_dx = fwd ? NULL : om_check_nan((size_t)(t * n) * 2);
	float *d_dw = fwd ? NULL : om_check_f32(v * n, seed, 2, (float)scale);
	void *ws = om_check_nan((size_t)(m * p + (fwd ? 0 : m * p / 2) + (bwd ? 0 : 2 * t)) * 4);
	for (int run = 0; run < 3; run++) {
		const int32_t *label = run == 0 ? d_few : d_all;
		double now[2];
		if (fwd)
			fwd(d_x, d_w, label, d_ctl, d_lse, d_loss, ws);
		if (bwd)
			bwd(d_x, d_w, label, d_ctl, d_lse, d_dx, d_dw, ws);
		if (grad)
			grad(d_x, d_w, label, d_ctl, d_loss, d_dx, d_dw, ws);
		om_check_read(now, d_loss, sizeof now);
		if (!fwd)
			om_check_read(run == 1 ? dx2 : dx, d_dx, (size_t)(t * n) * 2);
		if (run == 0) {
			const double want[2] = { scale + o.loss, 2 * scale + o.square };
			om_err_add(&eloss, bwd ? want[0] : now[0], want[0]);
			om_err_add(&esquare, bwd ? want[1] : now[1], want[1]);
			loss[0] = now[0];
			loss[1] = now[1];
		}
		for (int64_t i = 0, a = 0; !fwd && run == 0 && i < t * n; i++) {
			const int64_t token = i / n;
			a += a < live && o.token[a] < token;
			if (a == live || o.token[a] != token)
				wrong |= (dx[i] & 0x7fff) != 0; /* masked */
		}
		for (int64_t s = 0; !fwd && run == 0 && s < OM_HEAD_SAMPLES; s++) {
			const int64_t a = s % live, b = s * 613 % n;
			om_err_add(&ex, (double)om_bf16_f32(dx[o.token[a] * n + b]),
			    om_head_ref_dx(&o, a, b));
		}
		for (int64_t s = 0; !fwd && run == 0 && s < OM_HEAD_SAMPLES; s++) {
			const int64_t j =
			    s % 2 ? o.label[s % live] : s * (v - 1) / (OM_HEAD_SAMPLES - 2);
			const int64_t b = s < 2 ? s * (n - 1) : s * 389 % n;
			float got;
			om_check_read(&got, d_dw + j * n + b, sizeof got);
			om_err_add(&ew, (double)got,
			    om_in(OM_F32(2), j * n + b) * scale + om_head_ref_dw(&o, j, b));
		}
		for (int64_t a = 0; !fwd && run == 1 && a < live; a++)
			wrong |=
			    memcmp(dx + o.token[a] * n, dx2 + o.token[a] * n, (size_t)n * 2) != 0;
		if (run == 1) { /* what they add to the loss is 0 or more; twice the same */
			loss2[0] = now[0] - loss[0];
			loss2[1] = now[1] - loss[1];
		}
		if (run == 2) {
			wrong |= !fwd && memcmp(dx, dx2, (size_t)(t * n) * 2) != 0;
			wrong |= !bwd && !(fabs(now[0] - loss[0] - 2 * loss2[0]) <= 1e-12 * now[0]);
			wrong |= !bwd && !(fabs(now[1] - loss[1] - 2 * loss2[1]) <= 1e-12 * now[1]);
		}
	}
	om_check_read(lse, d_lse, (size_t)t * 4);
	for (int64_t a = 0; fwd && a < live; a++)
		om_err_add(
		    &elog, (double)lse[o.token[a]], what == OM_HEAD_SCORES ? o.nll[a] : o.lse[a]);
	for (int64_t i = 0; fwd && i < t; i++)
		wrong |= !isfinite(lse[i]);
	if (fwd)
		OM_TIME(fwd(d_x, d_w, d_all, d_ctl, d_lse, d_loss, ws));
	if (bwd)
		OM_TIME(bwd(d_x, d_w, d_all, d_ctl, d_lse, d_dx, d_dw, ws));
	if (grad)
		OM_TIME(grad(d_x, d_w, d_all, d_ctl, d_loss, d_dx, d_dw, ws));
	om_check_end();
	free(o.token);
	free(o.label);
	free(o.prob);
	free(o.lse);
	free(o.nll);
	free(few);
	free(all);
	free(lse);
	free(dx);
	free(dx2);
	if (wrong)
		return OM_WRONG;
	return fmax(fmax(om_err_value(&elog), fmax(om_err_value(&ex), om_err_value(&ew))),
	    (grad ? 1000 : 1) * fmax(om_err_value(&eloss), om_err_value(&esquare)));
}

#endif /* host */

#define OM_HEAD_LOSS(NAME, t, n, v, c, scale, z) \
	OM_HEAD_LOSS_AS(NAME, t, n, v, c, scale, z, OM_HEAD_LOSSES)
#define OM_HEAD_SCORE(NAME, t, n, v, c, scale) \
	OM_HEAD_LOSS_AS(NAME, t, n, v, c, scale, 0.0, OM_HEAD_SCORES)

#endif
