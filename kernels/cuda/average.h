/*
 * An average of the weights, beside them: average_master: e [n] += rate[0] (x - e), x being the
 * masters, and x itself where the rate is 1; bf16 weights are not read. The host says the rate of
 * each step, by which it is a moving average or a mean. A thread does four numbers, all float.
 */
#ifndef OM_AVERAGE_H
#define OM_AVERAGE_H

#include "om_cuda.h"

#define OM_AVERAGE_THREADS 256
#define OM_AVERAGE_BLOCKS(n) OM_CEIL((int64_t)(n), OM_AVERAGE_THREADS * 4)
#define OM_AVERAGE_SIZES(n)                                   \
	static_assert((n) >= 1, "average: sizes start at 1"); \
	static_assert(OM_AVERAGE_BLOCKS(n) <= 0x7fffffff, "average: blocks are counted in int32");

#ifdef __CUDACC__ /* ---- device ---- */

OM_DEV float
om_average_one(float rate, float x, float e)
{
	return rate >= 1 ? x : fmaf(rate, x - e, e);
}

template <int64_t N>
OM_DEV void
om_average(const float *x, const double *rate, float *e)
{
	constexpr int64_t vectors = N / 4;
	const int64_t i = (int64_t)blockIdx.x * OM_AVERAGE_THREADS + threadIdx.x;
	const float r = (float)*rate;
	if (i < vectors) {
		const float4 a = ((const float4 *)x)[i];
		float4 b = ((float4 *)e)[i];
		b.x = om_average_one(r, a.x, b.x);
		b.y = om_average_one(r, a.y, b.y);
		b.z = om_average_one(r, a.z, b.z);
		b.w = om_average_one(r, a.w, b.w);
		((float4 *)e)[i] = b;
	}
	if (N % 4 && blockIdx.x == 0 && threadIdx.x < N % 4) {
		const int64_t at = vectors * 4 + threadIdx.x;
		e[at] = om_average_one(r, x[at], e[at]);
	}
}

#define OM_AVERAGE_MASTER(NAME, n)                             \
	OM_AVERAGE_SIZES(n)                                    \
	OM_GLOBAL(OM_AVERAGE_THREADS, 1)                       \
	NAME##_x(const float *x, const double *rate, float *e) \
	{                                                      \
		om_average<n>(x, rate, e);                     \
	}

#else /* ---- host ---- */

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OM_AVERAGE_MASTER(NAME, n)                                                \
	OM_AVERAGE_SIZES(n)                                                       \
	OM_KERNEL(NAME##_x, OM_AVERAGE_THREADS, 0)                                \
	void NAME(const om_bf16 *w, const float *x, const double *rate, float *e) \
	{                                                                         \
		(void)w;                                                          \
		OM_LAUNCH(NAME##_x, OM_AVERAGE_BLOCKS(n), 1, 1, &x, &rate, &e);   \
	}                                                                         \
	double NAME##_check(uint64_t seed)                                        \
	{                                                                         \
		return om_average_check(NAME, n, seed);                           \
	}

/* A step of a moving average, and one that takes the weights themselves. */
static inline double
om_average_check(
    void (*run)(const om_bf16 *, const float *, const double *, float *), int64_t n, uint64_t seed)
{
	float *x = om_check_f32(n, seed, 0, 1), *e = om_check_f32(n, seed, 1, 1);
	float *got = malloc((size_t)n * sizeof *got), *all = malloc((size_t)n * sizeof *all);
	const double rate[2] = { 0.03125, 1 };
	double *some = om_check_copy(&rate[0], sizeof rate[0]);
	double *whole = om_check_copy(&rate[1], sizeof rate[1]);
	struct om_err err = { .scale = 1 };

	run(NULL, x, some, e);
	om_check_read(got, e, (size_t)n * sizeof *got);
	for (int64_t i = 0; i < n; i++) {
		const double old = (double)(float)om_unit(seed, 1, i);
		om_err_add(
		    &err, got[i], old + rate[0] * ((double)(float)om_unit(seed, 0, i) - old));
	}
	run(NULL, x, whole, e);
	om_check_read(got, x, (size_t)n * sizeof *got);
	om_check_read(all, e, (size_t)n * sizeof *all);
	err.wrong |= memcmp(got, all, (size_t)n * sizeof *got) != 0;
	OM_TIME(run(NULL, x, some, e));
	om_check_end();
	free(got);
	free(all);
	return om_err_value(&err);
}

#endif
#endif
