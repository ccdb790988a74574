/*
 * Rows between token order and expert order; every token has k rows, src[row] = token * k + choice,
 * and row [t, k] is its inverse.
 *
 *   dispatch      xr [t * k, n], row r, = x [t, n], row src[r] / k
 *   combine       x [t, n] = sum over k, in order, of y [t * k, n] at row[t, k]
 *   combine_add   the same, rounded, and other [t, n] added; sum may be other
 *
 * Both go by token: dispatch reads a row of x once and writes it to its k places, combine reads k
 * rows and writes one. n is a multiple of 8; a thread has one vector of 8 numbers, its k rows
 * OM_DISPATCH_BATCH at a time.
 */
#ifndef OM_DISPATCH_H
#define OM_DISPATCH_H

#include "om_cuda.h"

#define OM_DISPATCH_THREADS 256
#define OM_DISPATCH_BATCH 8
#define OM_DISPATCH_BLOCKS(t, n) OM_CEIL((int64_t)(t) * (n) / 8, OM_DISPATCH_THREADS)

#define OM_DISPATCH_SIZES(t, k, n)                                                          \
	static_assert((t) >= 1 && (k) >= 1 && (n) >= 1, "dispatch: sizes start at 1");      \
	static_assert((n) % 8 == 0, "dispatch: the width is a multiple of 8");              \
	static_assert((int64_t)(t) * (k) <= 0x7fffffff, "dispatch: rows counted in int32"); \
	static_assert((int64_t)(t) * (n) / 8 <= 0x7fffffff, "dispatch: vectors counted in int32");

#ifdef __CUDACC__

template <int T, int K, int N>
OM_DEV void
om_dispatch(const om_bf16 *x, const int32_t *row, om_bf16 *xr)
{
	constexpr uint32_t wide = N / 8, total = (uint64_t)T * wide;
	constexpr int batch = K < OM_DISPATCH_BATCH ? K : OM_DISPATCH_BATCH;
	const uint32_t i = blockIdx.x * OM_DISPATCH_THREADS + threadIdx.x;
	if (total % OM_DISPATCH_THREADS && i >= total)
		return;
	const uint32_t token = i / wide, col = i % wide;
	const uint4 v = ((const uint4 *)x)[i];
#pragma unroll 1
	for (int j = 0; j < K; j += batch) {
		int32_t to[batch];
#pragma unroll
		for (int b = 0; b < batch; b++)
			to[b] = row[(int64_t)token * K + min(j + b, K - 1)];
#pragma unroll
		for (int b = 0; b < batch; b++) {
			if (K % batch == 0 || j + b < K)
				((uint4 *)xr)[(int64_t)to[b] * wide + col] = v;
		}
	}
}

template <int T, int K, int N, bool ADD>
OM_DEV void
om_combine(const om_bf16 *y, const int32_t *row, const om_bf16 *other, om_bf16 *x)
{
	constexpr uint32_t wide = N / 8, total = (uint64_t)T * wide;
	constexpr int batch = K < OM_DISPATCH_BATCH ? K : OM_DISPATCH_BATCH;
	const uint32_t i = blockIdx.x * OM_DISPATCH_THREADS + threadIdx.x;
	if (total % OM_DISPATCH_THREADS && i >= total)
		return;
	const uint32_t token = i / wide, col = i % wide;
	float sum[8] = {}, rest[8];
	if (ADD)
		om_load8(other + (int64_t)i * 8, rest);
#pragma unroll 1
	for (int j = 0; j + batch <= K; j += batch) {
		float v[batch][8];
#pragma unroll
		for (int b = 0; b < batch; b++)
			om_load8(
			    y + ((int64_t)row[(int64_t)token * K + j + b] * wide + col) * 8, v[b]);
#pragma unroll
		for (int b = 0; b < batch; b++) {
#pragma unroll
			for (int c = 0; c < 8; c++)
				sum[c] += v[b][c];
		}
	}
#pragma unroll
	for (int j = K / batch * batch; j < K; j++) {
		float v[8];
		om_load8(y + ((int64_t)row[(int64_t)token * K + j] * wide + col) * 8, v);
#pragma unroll
		for (int c = 0; c < 8; c++)
			sum[c] += v[c];
	}
	if (ADD) {
#pragma unroll
		for (int c = 0; c < 8; c++)
			sum[c] = om_f32(om_round(sum[c])) + rest[c];
	}
	om_store8(x + (int64_t)i * 8, sum);
}

#define OM_DISPATCH(NAME, t, k, n)                                  \
	OM_DISPATCH_SIZES(t, k, n)                                  \
	OM_GLOBAL(OM_DISPATCH_THREADS, 1)                           \
	NAME##_x(const om_bf16 *x, const int32_t *row, om_bf16 *xr) \
	{                                                           \
		OM_FEW_BEGIN(t)                                     \
		om_dispatch<t, k, n>(x, row, xr);                   \
	}

#define OM_COMBINE(NAME, t, k, n)                                  \
	OM_DISPATCH_SIZES(t, k, n)                                 \
	OM_GLOBAL(OM_DISPATCH_THREADS, 1)                          \
	NAME##_x(const om_bf16 *y, const int32_t *row, om_bf16 *x) \
	{                                                          \
		OM_FEW_BEGIN(t)                                    \
		om_combine<t, k, n, false>(y, row, nullptr, x);    \
	}

#define OM_COMBINE_ADD(NAME, t, k, n)                                                      \
	OM_DISPATCH_SIZES(t, k, n)                                                         \
	OM_GLOBAL(OM_DISPATCH_THREADS, 1)                                                  \
	NAME##_x(const om_bf16 *y, const int32_t *row, const om_bf16 *other, om_bf16 *sum) \
	{                                                                                  \
		OM_FEW_BEGIN(t)                                                            \
		om_combine<t, k, n, true>(y, row, other, sum);                             \
	}

#else /* ---- host ---- */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch_ref.h"

#define OM_DISPATCH(NAME, t, k, n)                                                       \
	OM_DISPATCH_SIZES(t, k, n)                                                       \
	OM_KERNEL_FEW(NAME##_x, OM_DISPATCH_THREADS, 0, t)                               \
	void NAME(const om_bf16 *x, const int32_t *row, const int32_t *src, om_bf16 *xr) \
	{                                                                                \
		(void)src;                                                               \
		OM_LAUNCH(NAME##_x, OM_DISPATCH_BLOCKS(t, n), 1, 1, &x, &row, &xr);      \
	}                                                                                \
	double NAME##_check(uint64_t seed)                                               \
	{                                                                                \
		return om_dispatch_check(NAME, t, k, n, seed);                           \
	}

#define OM_COMBINE(NAME, t, k, n)                                                       \
	OM_DISPATCH_SIZES(t, k, n)                                                      \
	OM_KERNEL_FEW(NAME##_x, OM_DISPATCH_THREADS, 0, t)                              \
	void NAME(const om_bf16 *y, const int32_t *row, const int32_t *src, om_bf16 *x) \
	{                                                                               \
		(void)src;                                                              \
		OM_LAUNCH(NAME##_x, OM_DISPATCH_BLOCKS(t, n), 1, 1, &y, &row, &x);      \
	}                                                                               \
	double NAME##_check(uint64_t seed)                                              \
	{                                                                               \
		return om_combine_check(NAME, NULL, t, k, n, seed);                     \
	}

#define OM_COMBINE_ADD(NAME, t, k, n)                                                             \
	OM_DISPATCH_SIZES(t, k, n)                                                                \
	OM_KERNEL_FEW(NAME##_x, OM_DISPATCH_THREADS, 0, t)                                        \
	void NAME(const om_bf16 *y, const int32_t *row, const int32_t *src, const om_bf16 *other, \
	    om_bf16 *sum)                                                                         \
	{                                                                                         \
		(void)src;                                                                        \
		OM_LAUNCH(NAME##_x, OM_DISPATCH_BLOCKS(t, n), 1, 1, &y, &row, &other, &sum);      \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_combine_check(NULL, NAME, t, k, n, seed);                               \
	}

typedef void om_dispatch_fn(const om_bf16 *, const int32_t *, const int32_t *, om_bf16 *);
typedef void
om_combine_add_fn(const om_bf16 *, const int32_t *, const int32_t *, const om_bf16 *, om_bf16 *);
enum { OM_DISPATCH_EXPERTS = 64, OM_DISPATCH_SAMPLES = 128 };

/* Uniform in [0, below). */
static inline int64_t
om_dispatch_pick(uint64_t seed, int stream, int64_t i, int64_t below)
{
	int64_t x =
	    (int64_t)((om_unit(seed, stream, i) / 3.4641016151377544 + 0.5) * (double)below);
	return x < 0 ? 0 : x >= below ? below - 1 : x;
}

/* Each (token, choice) has a random expert; rows in expert order and token order within one. */
static inline void
om_dispatch_order(int64_t rows, uint64_t seed, int32_t *row, int32_t *src)
{
	int64_t at[OM_DISPATCH_EXPERTS + 1] = { 0 };
	for (int64_t i = 0; i < rows; i++)
		at[om_dispatch_pick(seed, 8, i, OM_DISPATCH_EXPERTS) + 1]++;
	for (int e = 1; e < OM_DISPATCH_EXPERTS; e++)
		at[e] += at[e - 1];
	for (int64_t i = 0; i < rows; i++) {
		row[i] = (int32_t)at[om_dispatch_pick(seed, 8, i, OM_DISPATCH_EXPERTS)]++;
		src[row[i]] = (int32_t)i;
	}
}

/* The sth of at most OM_DISPATCH_SAMPLES rows that are looked at, first and last among them. */
static inline int64_t
om_dispatch_sample(int64_t s, int64_t rows, uint64_t seed)
{
	if (rows <= OM_DISPATCH_SAMPLES)
		return s;
	return s < 2 ? s * (rows - 1) : om_dispatch_pick(seed, 99, s, rows);
}

static inline double
om_dispatch_check(om_dispatch_fn *run, int64_t t, int64_t k, int64_t n, uint64_t seed)
{
	const int64_t rows = t * k;
	int32_t *row = malloc((size_t)rows * sizeof *row),
		*src = malloc((size_t)rows * sizeof *src);
	om_dispatch_order(rows, seed, row, src);
	int32_t *drow = om_check_copy(row, (size_t)rows * sizeof *row);
	int32_t *dsrc = om_check_copy(src, (size_t)rows * sizeof *src);
	om_bf16 *x = om_check_bf16(t * n, seed, 1, 1);
	om_bf16 *xr = om_check_nan((size_t)(rows * n) * sizeof *xr);
	om_bf16 *got = malloc((size_t)n * sizeof *got);
	struct om_err e = { .scale = 1 };
	run(x, drow, dsrc, xr);
	for (int64_t s = 0; s < rows && s < OM_DISPATCH_SAMPLES; s++) {
		const int64_t r = om_dispatch_sample(s, rows, seed);
		om_check_read(got, xr + r * n, (size_t)n * sizeof *got);
		for (int64_t j = 0; j < n; j++)
			om_err_add(
			    &e, om_bf16_f32(got[j]), om_dispatch_ref(OM_BF16(1), src, k, n, r, j));
	}
	OM_TIME(run(x, drow, dsrc, xr));
	om_check_end();
	free(row);
	free(src);
	free(got);
	return om_err_value(&e);
}

/* One of the two runs; the second one's sum lies once more in place of what is added. */
static inline double
om_combine_check(
    om_dispatch_fn *run, om_combine_add_fn *run_add, int64_t t, int64_t k, int64_t n, uint64_t seed)
{
	const int64_t rows = t * k;
	int32_t *row = malloc((size_t)rows * sizeof *row),
		*src = malloc((size_t)rows * sizeof *src);
	om_dispatch_order(rows, seed, row, src);
	int32_t *drow = om_check_copy(row, (size_t)rows * sizeof *row);
	int32_t *dsrc = om_check_copy(src, (size_t)rows * sizeof *src);
	om_bf16 *y = om_check_bf16(rows * n, seed, 1, 1);
	om_bf16 *x = om_check_nan((size_t)(t * n) * sizeof *x);
	om_bf16 *other = run_add ? om_check_bf16(t * n, seed, 2, 1) : x;
	om_bf16 *got = malloc(2 * (size_t)n * sizeof *got);
	struct om_err e = { .scale = 1 };
	if (run)
		run(y, drow, dsrc, x);
	if (run_add)
		run_add(y, drow, dsrc, other, x);
	if (run_add)
		run_add(y, drow, dsrc, other, other);
	for (int64_t s = 0; s < t && s < OM_DISPATCH_SAMPLES; s++) {
		const int64_t i = om_dispatch_sample(s, t, seed);
		om_check_read(got, x + i * n, (size_t)n * sizeof *got);
		om_check_read(got + n, other + i * n, (size_t)n * sizeof *got);
		e.wrong |= memcmp(got, got + n, (size_t)n * sizeof *got) != 0;
		for (int64_t j = 0; j < n; j++)
			om_err_add(&e, om_bf16_f32(got[j]),
			    om_combine_ref(OM_BF16(1), row, k, n, i, j) +
				(run_add ? om_in(OM_BF16(2), i * n + j) : 0));
	}
	if (run)
		OM_TIME(run(y, drow, dsrc, x));
	if (run_add)
		OM_TIME(run_add(y, drow, dsrc, other, x));
	om_check_end();
	free(row);
	free(src);
	free(got);
	return om_err_value(&e);
}

#endif
#endif
