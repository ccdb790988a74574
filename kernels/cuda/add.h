/*
 * Element by element, on [m, n]; n is a multiple of 8.
 *
 *   add       y = a + b; y may be a or b
 *   add_rows  the same of rows up to off[j-1] of [c, n]; the others are neither read nor written
 *   bias      y = x + c, c [n] added to each row; y may be x
 *   bias_bwd  dc [n] += sum over rows of dy, or without add =
 *   scale     y = factor x; y may be x
 *
 * A thread takes OM_ADD_VECTORS vectors of 8 numbers, all loaded before the first is used.
 *
 * bias_bwd: ws [c, n] holds the sums over c fixed ranges of rows; _fold adds them in a fixed order.
 */
#ifndef OM_ADD_H
#define OM_ADD_H

#include "om_cuda.h"

#define OM_ADD_THREADS 256
#define OM_ADD_VECTORS 4
#define OM_ADD_BLOCKS(m, n) OM_CEIL((int64_t)(m) * (n) / 8, OM_ADD_THREADS * OM_ADD_VECTORS)

#define OM_ADD_SIZES(m, n)                                                \
	static_assert((m) >= 1 && (n) >= 1, "add: sizes start at 1");     \
	static_assert((n) % 8 == 0, "add: the width is a multiple of 8"); \
	static_assert((int64_t)(m) * (n) / 8 <= 0x7fffffff, "add: vectors counted in int32");

#ifdef __CUDACC__

enum om_add_op { OM_ADD_BOTH, OM_ADD_UP_TO, OM_ADD_BIAS, OM_ADD_SCALED };

/*
 * b: the other summand, a row of it, or none. UP_TO: there are *rows rows. The last block's threads
 * beyond the end load the last vector: a branch around loads would make each wait for the one
 * before.
 */
template <int64_t M, int N, int OP
> OM_DEV void
    om_add(
	float factor, const om_bf16 *a, const om_bf16 *b, om_bf16 *y, const int32_t *rows = nullptr)
{
	constexpr uint32_t most = M * N / 8, wide = N / 8, block = OM_ADD_THREADS * OM_ADD_VECTORS;
	constexpr bool even = OP
	!= OM_ADD_UP_TO &&most % block == 0;
	const uint32_t total = OP
	== OM_ADD_UP_TO ? *rows *wide : most;
	const uint32_t first = blockIdx.x * block + threadIdx.x;
	if (OP == OM_ADD_UP_TO && blockIdx.x * block >= total)
		return;
	float p[OM_ADD_VECTORS][8], q[OM_ADD_VECTORS][8];
#pragma unroll
	for (int u = 0; u < OM_ADD_VECTORS; u++) {
		const uint32_t at = first + u * OM_ADD_THREADS, i = even ? at : min(at, total - 1);
		om_load8(a + (int64_t)i * 8, p[u]);
		if (OP == OM_ADD_BOTH || OP == OM_ADD_UP_TO)
			om_load8(b + (int64_t)i * 8, q[u]);
		if (OP == OM_ADD_BIAS)
			om_load8(b + i % wide * 8, q[u]);
	}
#pragma unroll
	for (int u = 0; u < OM_ADD_VECTORS; u++) {
		const uint32_t i = first + u * OM_ADD_THREADS;
#pragma unroll
		for (int c = 0; c < 8; c++)
			p[u][c] = OP
		== OM_ADD_SCALED ? factor *p[u][c] : p[u][c] + q[u][c];
		if (even || i < total)
			om_store8(y + (int64_t)i * 8, p[u]);
	}
}

/* A block sums 256 columns of a range of rows; its 8 warps take turns at the rows. */
template <int64_t M, int N, int C>
OM_DEV void
om_bias_bwd(const om_bf16 *dy, float *ws)
{
	constexpr int warps = OM_ADD_THREADS / 32;
	__shared__ float part[warps][8][32];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int col = blockIdx.x * 256 + lane * 8;
	const int64_t lo = M * blockIdx.y / C, hi = M * (blockIdx.y + 1) / C;
	float sum[8] = {};
	if (col < N) {
#pragma unroll 8
		for (int64_t r = lo + warp; r < hi; r += warps) {
			float x[8];
			om_load8(dy + r * N + col, x);
#pragma unroll
			for (int i = 0; i < 8; i++)
				sum[i] += x[i];
		}
	}
#pragma unroll
	for (int i = 0; i < 8; i++)
		part[warp][i][lane] = sum[i];
	__syncthreads();
	/* thread (i, lane) adds the warps' sums of one column */
	const int i = warp, to = col + i;
	float total = 0;
#pragma unroll
	for (int w = 0; w < warps; w++)
		total += part[w][i][lane];
	if (to < N)
		ws[(int64_t)blockIdx.y * N + to] = total;
}

#define OM_ADD(NAME, m, n)                                       \
	OM_ADD_SIZES(m, n)                                       \
	OM_GLOBAL(OM_ADD_THREADS, 1)                             \
	NAME##_x(const om_bf16 *a, const om_bf16 *b, om_bf16 *y) \
	{                                                        \
		OM_FEW_BEGIN(m)                                  \
		om_add<m, n, OM_ADD_BOTH>(0, a, b, y);           \
	}

#define OM_ADD_ROWS(NAME, c, n, j)                                                   \
	OM_ADD_SIZES(c, n)                                                           \
	OM_GLOBAL(OM_ADD_THREADS, 1)                                                 \
	NAME##_x(const om_bf16 *a, const om_bf16 *b, const int32_t *off, om_bf16 *y) \
	{                                                                            \
		om_add<c, n, OM_ADD_UP_TO>(0, a, b, y, off + (j)-1);                 \
	}

#define OM_BIAS(NAME, m, n)                                         \
	OM_ADD_SIZES(m, n)                                          \
	OM_GLOBAL(OM_ADD_THREADS, 1)                                \
	NAME##_x(const om_bf16 *x, const om_bf16 *bias, om_bf16 *y) \
	{                                                           \
		om_add<m, n, OM_ADD_BIAS>(0, x, bias, y);           \
	}

#define OM_SCALE(NAME, m, n, factor)                                   \
	OM_ADD_SIZES(m, n)                                             \
	OM_GLOBAL(OM_ADD_THREADS, 1)                                   \
	NAME##_x(const om_bf16 *x, om_bf16 *y)                         \
	{                                                              \
		om_add<m, n, OM_ADD_SCALED>((float)(factor), x, x, y); \
	}

#define OM_BIAS_BWD(NAME, m, n, c, add)                                               \
	OM_ADD_SIZES(m, n)                                                            \
	static_assert((c) >= 1 && (c) <= 65535, "bias_bwd: 1 to 65535 partial sums"); \
	OM_GLOBAL(OM_ADD_THREADS, 1) NAME##_x(const om_bf16 *dy, float *ws)           \
	{                                                                             \
		om_bias_bwd<m, n, c>(dy, ws);                                         \
	}                                                                             \
	OM_GLOBAL(OM_FOLD_THREADS, 1) NAME##_fold(const float *ws, float *dbias)      \
	{                                                                             \
		om_fold<n, c, add>(ws, dbias);                                        \
	}

#else /* ---- host ---- */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "add_ref.h"

#define OM_ADD(NAME, m, n)                                                             \
	OM_ADD_SIZES(m, n)                                                             \
	OM_KERNEL_FEW(NAME##_x, OM_ADD_THREADS, 0, m)                                  \
	void NAME(const om_bf16 *a, const om_bf16 *b, om_bf16 *y)                      \
	{                                                                              \
		OM_LAUNCH(NAME##_x, OM_ADD_BLOCKS(m, n), 1, 1, &a, &b, &y);            \
	}                                                                              \
	double NAME##_check(uint64_t seed)                                             \
	{                                                                              \
		return om_add_check((struct om_add_fn){ .add = NAME }, m, n, 0, seed); \
	}

#define OM_ADD_ROWS(NAME, c, n, j)                                                    \
	OM_ADD_SIZES(c, n)                                                            \
	OM_KERNEL(NAME##_x, OM_ADD_THREADS, 0)                                        \
	void NAME(const om_bf16 *a, const om_bf16 *b, const int32_t *off, om_bf16 *y) \
	{                                                                             \
		OM_LAUNCH(NAME##_x, OM_ADD_BLOCKS(c, n), 1, 1, &a, &b, &off, &y);     \
	}                                                                             \
	double NAME##_check(uint64_t seed)                                            \
	{                                                                             \
		return om_add_rows_check(NAME, c, n, j, seed);                        \
	}

#define OM_BIAS(NAME, m, n)                                                             \
	OM_ADD_SIZES(m, n)                                                              \
	OM_KERNEL(NAME##_x, OM_ADD_THREADS, 0)                                          \
	void NAME(const om_bf16 *x, const om_bf16 *bias, om_bf16 *y)                    \
	{                                                                               \
		OM_LAUNCH(NAME##_x, OM_ADD_BLOCKS(m, n), 1, 1, &x, &bias, &y);          \
	}                                                                               \
	double NAME##_check(uint64_t seed)                                              \
	{                                                                               \
		return om_add_check((struct om_add_fn){ .bias = NAME }, m, n, 0, seed); \
	}

#define OM_SCALE(NAME, m, n, factor)                                                          \
	OM_ADD_SIZES(m, n)                                                                    \
	OM_KERNEL(NAME##_x, OM_ADD_THREADS, 0)                                                \
	void NAME(const om_bf16 *x, om_bf16 *y)                                               \
	{                                                                                     \
		OM_LAUNCH(NAME##_x, OM_ADD_BLOCKS(m, n), 1, 1, &x, &y);                       \
	}                                                                                     \
	double NAME##_check(uint64_t seed)                                                    \
	{                                                                                     \
		return om_add_check((struct om_add_fn){ .scale = NAME }, m, n, factor, seed); \
	}

#define OM_BIAS_BWD(NAME, m, n, c, add)                                               \
	OM_ADD_SIZES(m, n)                                                            \
	static_assert((c) >= 1 && (c) <= 65535, "bias_bwd: 1 to 65535 partial sums"); \
	OM_KERNEL(NAME##_x, OM_ADD_THREADS, 0)                                        \
	OM_KERNEL(NAME##_fold, OM_FOLD_THREADS, 0)                                    \
	void NAME(const om_bf16 *dy, float *dbias, float *ws)                         \
	{                                                                             \
		OM_LAUNCH(NAME##_x, OM_CEIL(n, 256), c, 1, &dy, &ws);                 \
		OM_LAUNCH(NAME##_fold, OM_CEIL(n, 32), 1, 1, &ws, &dbias);            \
	}                                                                             \
	double NAME##_check(uint64_t seed)                                            \
	{                                                                             \
		return om_bias_bwd_check(NAME, m, n, c, add, seed);                   \
	}

enum { OM_ADD_SAMPLES = 100, OM_ADD_SPAN = 256, OM_BIAS_SAMPLES = 64 };

/* The kernel that a check runs: one of these. */
struct om_add_fn {
	void (*add)(const om_bf16 *, const om_bf16 *, om_bf16 *);
	void (*bias)(const om_bf16 *, const om_bf16 *, om_bf16 *);
	void (*scale)(const om_bf16 *, om_bf16 *);
};

static inline void
om_add_run(struct om_add_fn f, const om_bf16 *a, const om_bf16 *b, const om_bf16 *c, om_bf16 *y)
{
	if (f.add)
		f.add(a, b, y);
	if (f.bias)
		f.bias(a, c, y);
	if (f.scale)
		f.scale(a, y);
}

/* Spans of the result, the first and the last among them; also in place of either input. */
static inline double
om_add_check(struct om_add_fn f, int64_t m, int64_t n, double factor, uint64_t seed)
{
	const int64_t total = m * n, span = total < OM_ADD_SPAN ? total : OM_ADD_SPAN;
	om_bf16 *a = om_check_bf16(total, seed, 0, 1), *b = om_check_bf16(total, seed, 1, 1);
	om_bf16 *c = om_check_bf16(n, seed, 2, 1);
	om_bf16 *y = om_check_nan((size_t)total * sizeof *y), got[3][OM_ADD_SPAN];
	om_bf16 *a2 = om_check_bf16(total, seed, 0, 1), *b2 = om_check_bf16(total, seed, 1, 1);
	struct om_err e = { .scale = 1 };
	om_add_run(f, a, b, c, y);
	om_add_run(f, a2, b, c, a2);
	if (f.add)
		f.add(a, b2, b2);
	for (int64_t s = 0; s < OM_ADD_SAMPLES && s * span < total; s++) {
		int64_t at = (int64_t)((om_unit(seed, 9, s) / 3.4641016151377544 + 0.5) *
				       (double)(total - span));
		if (total <= OM_ADD_SAMPLES * OM_ADD_SPAN)
			at = s * span < total - span ? s * span : total - span;
		else if (s < 2)
			at = s * (total - span);
		om_check_read(got[0], y + at, (size_t)span * sizeof *y);
		om_check_read(got[1], a2 + at, (size_t)span * sizeof *y);
		om_check_read(got[2], (f.add ? b2 : y) + at, (size_t)span * sizeof *y);
		for (int64_t i = 0; i < span; i++) {
			double want = f.add    ? om_add_ref(OM_BF16(0), OM_BF16(1), at + i)
				      : f.bias ? om_bias_ref_y(OM_BF16(0), OM_BF16(2), n, at + i)
					       : om_scale_ref(OM_BF16(0), factor, at + i);
			for (int k = 0; k < 3; k++)
				om_err_add(&e, om_bf16_f32(got[k][i]), want);
		}
	}
	OM_TIME(om_add_run(f, a, b, c, y));
	om_check_end();
	return om_err_value(&e);
}

/* Rows that there are, and that others stay as they were. */
static inline double
om_add_rows_check(void (*run)(const om_bf16 *, const om_bf16 *, const int32_t *, om_bf16 *),
    int64_t c, int64_t n, int64_t j, uint64_t seed)
{
	const double share = seed % 3 ? om_unit(seed, 9, 0) / 3.4641016151377544 + 0.5 : 1;
	const int64_t valid = (int64_t)(share * (double)c);
	om_bf16 *a = om_check_bf16(c * n, seed, 0, 1), *b = om_check_bf16(c * n, seed, 1, 1);
	om_bf16 *y = om_check_nan((size_t)(c * n) * sizeof *y);
	om_bf16 *got = malloc((size_t)n * sizeof *got);
	int32_t *off = calloc((size_t)j, sizeof *off);
	struct om_err e = { .scale = 1 };
	off[j - 1] = (int32_t)valid;
	const int32_t *d_off = om_check_copy(off, (size_t)j * sizeof *off);
	run(a, b, d_off, y);
	for (int64_t s = 0; s < c && s < OM_ADD_SAMPLES; s++) { /* the border is looked at too */
		const int64_t r = c <= OM_ADD_SAMPLES ? s
				  : s < 4             ? (valid + s - 2 + c) % c
						      : s * (c - 1) / (OM_ADD_SAMPLES - 1);
		om_check_read(got, y + r * n, (size_t)n * sizeof *got);
		for (int64_t i = 0; i < n; i++)
			if (r < valid)
				om_err_add(&e, om_bf16_f32(got[i]),
				    om_add_ref(OM_BF16(0), OM_BF16(1), r * n + i));
			else
				e.wrong |= got[i] != 0xffff;
	}
	OM_TIME(run(a, b, d_off, y));
	om_check_end();
	free(got);
	free(off);
	return om_err_value(&e);
}

static inline double
om_bias_bwd_check(void (*run)(const om_bf16 *, float *, float *), int64_t m, int64_t n, int64_t c,
    bool add, uint64_t seed)
{
	om_bf16 *dy = om_check_bf16(m * n, seed, 0, 1);
	float *dc = om_check_sum(n, add, seed, 1), *again = om_check_sum(n, add, seed, 1);
	float *ws = om_check_nan((size_t)(c * n) * sizeof *ws);
	float *got = malloc(2 * (size_t)n * sizeof *got);
	struct om_err e = { .scale = 1 };
	run(dy, dc, ws);
	run(dy, again, ws);
	om_check_read(got, dc, (size_t)n * sizeof *got);
	om_check_read(got + n, again, (size_t)n * sizeof *got);
	e.wrong = memcmp(got, got + n, (size_t)n * sizeof *got) != 0;
	for (int64_t s = 0; s < n && s < OM_BIAS_SAMPLES; s++) {
		int64_t j = n <= OM_BIAS_SAMPLES ? s : s * (n - 1) / (OM_BIAS_SAMPLES - 1);
		om_err_add(&e, got[j],
		    (add ? om_in(OM_F32(1), j) : 0) + om_bias_ref_dc(OM_BF16(0), m, n, j));
	}
	OM_TIME(run(dy, dc, ws));
	om_check_end();
	free(got);
	return om_err_value(&e);
}

#endif
#endif
