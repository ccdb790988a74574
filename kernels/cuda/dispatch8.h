/*
 * dispatch.h's rows, quantised on the way as quantise.h has it, 1 x 128: a token's blocks once, for
 * all of its k rows.
 *
 *   dispatch_8    q [t * k, n], s [n/128, t * k] of xr = dispatch of x [t, n]
 *   dispatch_2_8  and xr, too
 *
 * A thread has one vector of 8 numbers, 16 of them a block. n is a multiple of 128.
 */
#ifndef OM_DISPATCH8_H
#define OM_DISPATCH8_H

#include "dispatch.h"
#include "quantise.h"

#define OM_DISPATCH_8_SIZES(t, k, n) \
	OM_DISPATCH_SIZES(t, k, n)   \
	static_assert((n) % 128 == 0, "dispatch_8: blocks divide rows");

#ifdef __CUDACC__ /* ---- device ---- */

template <int T, int K, int N, bool ROWS>
OM_DEV void
om_dispatch_8(const om_bf16 *x, const int32_t *row, om_bf16 *xr, om_e4m3 *q, float *s)
{
	constexpr uint32_t wide = N / 8, total = (uint64_t)T * wide;
	constexpr int batch = K < OM_DISPATCH_BATCH ? K : OM_DISPATCH_BATCH;
	const uint32_t at = blockIdx.x * OM_DISPATCH_THREADS + threadIdx.x;
	const uint32_t i = total % OM_DISPATCH_THREADS ? min(at, total - 1) : at;
	const uint32_t token = i / wide, col = i % wide;
	const uint4 v = ((const uint4 *)x)[i];
	const uint32_t most = om_most2(om_most2(om_most2(v.x & 0x7fff7fffu, v.y), v.z), v.w);
	const om_scale by = om_scale_for<-126, 0>(om_most<16>(most));
	const uint2 two =
	    make_uint2(om_pack4_8(v.x, v.y, by.inverse), om_pack4_8(v.z, v.w, by.inverse));
	if (total % OM_DISPATCH_THREADS && at >= total)
		return;
#pragma unroll 1
	for (int j = 0; j < K; j += batch) {
		int32_t to[batch];
#pragma unroll
		for (int b = 0; b < batch; b++)
			to[b] = row[(int64_t)token * K + min(j + b, K - 1)];
#pragma unroll
		for (int b = 0; b < batch; b++) {
			if (K % batch && j + b >= K)
				continue;
			if (ROWS)
				((uint4 *)xr)[(int64_t)to[b] * wide + col] = v;
			((uint2 *)q)[(int64_t)to[b] * wide + col] = two;
			if (col % 16 == 0)
				s[(int64_t)(col / 16) * T * K + to[b]] = __uint_as_float(by.bits);
		}
	}
}

#define OM_DISPATCH_8_KERNEL(NAME, t, k, n, rows)                                         \
	OM_DISPATCH_8_SIZES(t, k, n)                                                      \
	OM_GLOBAL(OM_DISPATCH_THREADS, 1)                                                 \
	NAME##_x(const om_bf16 *x, const int32_t *row, om_bf16 *xr, om_e4m3 *q, float *s) \
	{                                                                                 \
		om_dispatch_8<t, k, n, rows>(x, row, xr, q, s);                           \
	}
#define OM_DISPATCH_8(NAME, t, k, n) OM_DISPATCH_8_KERNEL(NAME, t, k, n, false)
#define OM_DISPATCH_2_8(NAME, t, k, n) OM_DISPATCH_8_KERNEL(NAME, t, k, n, true)

#else /* ---- host ---- */

#define OM_DISPATCH_8_KERNEL(NAME, t, k, n, rows)                                           \
	OM_DISPATCH_8_SIZES(t, k, n)                                                        \
	OM_KERNEL(NAME##_x, OM_DISPATCH_THREADS, 0)                                         \
	static inline void NAME##_run(                                                      \
	    const om_bf16 *x, const int32_t *row, om_bf16 *xr, om_e4m3 *q, float *s)        \
	{                                                                                   \
		OM_LAUNCH(NAME##_x, OM_DISPATCH_BLOCKS(t, n), 1, 1, &x, &row, &xr, &q, &s); \
	}                                                                                   \
	double NAME##_check(uint64_t seed)                                                  \
	{                                                                                   \
		return om_dispatch_8_check(NAME##_run, rows, t, k, n, seed);                \
	}
#define OM_DISPATCH_8(NAME, t, k, n)                                                              \
	OM_DISPATCH_8_KERNEL(NAME, t, k, n, false)                                                \
	void NAME(const om_bf16 *x, const int32_t *row, const int32_t *src, om_e4m3 *q, float *s) \
	{                                                                                         \
		(void)src;                                                                        \
		NAME##_run(x, row, NULL, q, s);                                                   \
	}
#define OM_DISPATCH_2_8(NAME, t, k, n)                                                   \
	OM_DISPATCH_8_KERNEL(NAME, t, k, n, true)                                        \
	void NAME(const om_bf16 *x, const int32_t *row, const int32_t *src, om_bf16 *xr, \
	    om_e4m3 *q, float *s)                                                        \
	{                                                                                \
		(void)src;                                                               \
		NAME##_run(x, row, xr, q, s);                                            \
	}

typedef void
om_dispatch_8_fn(const om_bf16 *x, const int32_t *row, om_bf16 *xr, om_e4m3 *q, float *s);

static inline double
om_dispatch_8_check(om_dispatch_8_fn *run, bool raw, int64_t t, int64_t k, int64_t n, uint64_t seed)
{
	const int64_t rows = t * k;
	int32_t *row = malloc((size_t)rows * sizeof *row),
		*src = malloc((size_t)rows * sizeof *src);
	om_dispatch_order(rows, seed, row, src);
	int32_t *drow = om_check_copy(row, (size_t)rows * sizeof *row);
	om_bf16 *x = om_quantise_array(t * n, seed);
	om_bf16 *xr = raw ? om_check_nan((size_t)(rows * n) * sizeof *xr) : NULL;
	om_e4m3 *q = om_check_nan((size_t)(rows * n)), *got = malloc((size_t)n);
	om_bf16 *as_is = malloc((size_t)n * sizeof *as_is);
	float *s = om_check_nan((size_t)(rows * (n / 128)) * sizeof *s);
	bool wrong = false;
	run(x, drow, xr, q, s);
	for (int64_t at = 0; at < rows && at < OM_DISPATCH_SAMPLES; at++) {
		const int64_t r = om_dispatch_sample(at, rows, seed), from = src[r] / k * n;
		om_check_read(got, q + r * n, (size_t)n);
		if (raw)
			om_check_read(as_is, xr + r * n, (size_t)n * sizeof *as_is);
		for (int64_t j = 0, e = 0; j < n; j++) {
			if (j % 128 == 0) {
				e = om_quantise_of(from + j, 1, 128, 0, 128, 0, seed);
				wrong |= om_quantise_scale(s, j / 128 * rows + r, 128) !=
					 om_quantise_stored((int)e, 128);
			}
			wrong |= got[j] != om_quantise_q(from + j, (int)e, seed);
			wrong |= raw && as_is[j] != om_quantise_in(from + j, seed);
		}
	}
	OM_TIME(run(x, drow, xr, q, s));
	om_check_end();
	free(row);
	free(src);
	free(got);
	free(as_is);
	return wrong ? OM_WRONG : 0;
}

#endif
#endif
