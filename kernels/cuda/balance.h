/*
 * The load-balance loss over all data ranks; kernels/cpu/balance.h says what is computed.
 *
 *   balance_all  all [e] = sum over w ranks of cnt [e]; aux[0] += e sum over i of
 *                (all_i / w - cnt_i) / (t k) P_i, P_i the mean of prob [t, e] over t
 *
 * A block sums prob over a range of tokens, of which there are c; then one adds these up in order.
 */
#ifndef OM_BALANCE_H
#define OM_BALANCE_H

#include "om_cuda.h"

#define OM_BALANCE_THREADS 256

#define OM_BALANCE_SIZES(t, e, k, w, c)                                                           \
	static_assert((t) >= 1 && (k) >= 1 && (w) >= 1 && (c) >= 1, "balance: sizes start at 1"); \
	static_assert((e) >= 1 && (e) <= 512, "balance: 1 to 512 experts");

#ifdef __CUDACC__

template <int T, int E, int C>
OM_DEV void
om_balance_mass(const float *prob, double *part)
{
	constexpr int WIDE = E <= 32 ? 32 : E <= 64 ? 64 : E <= 128 ? 128 : 256;
	constexpr int ROWS = OM_BALANCE_THREADS / WIDE;
	__shared__ double sums[ROWS][WIDE];
	const int col = threadIdx.x % WIDE, row = threadIdx.x / WIDE;
	const int lo = (int64_t)T * blockIdx.x / C, hi = (int64_t)T * (blockIdx.x + 1) / C;
	for (int first = 0; first < E; first += WIDE) {
		const int i = first + col;
		double sum = 0;
#pragma unroll 8
		for (int t = lo + row; t < hi; t += ROWS)
			sum += i < E ? prob[(int64_t)t * E + i] : 0;
		sums[row][col] = sum;
		__syncthreads();
		if (row == 0 && i < E) {
#pragma unroll
			for (int r = 1; r < ROWS; r++)
				sum += sums[r][col];
			part[(int64_t)blockIdx.x * E + i] = sum;
		}
		__syncthreads();
	}
}

template <int E>
OM_DEV void
om_balance_own(const int32_t *cnt, int64_t *sum)
{
	for (int i = threadIdx.x; i < E; i += OM_BALANCE_THREADS)
		sum[i] = cnt[i];
}

template <int T, int E, int K, int W, int C>
OM_DEV void
om_balance_sum(
    const int32_t *cnt, const int64_t *sum, const double *part, int32_t *all, double *aux)
{
	__shared__ double more[OM_BALANCE_THREADS];
	double own = 0;
	for (int i = threadIdx.x; i < E; i += OM_BALANCE_THREADS) {
		double mass = 0;
#pragma unroll 8
		for (int c = 0; c < C; c++)
			mass += part[c * E + i];
		own += ((double)sum[i] / W - cnt[i]) * mass;
		all[i] = (int32_t)sum[i];
	}
	more[threadIdx.x] = own;
	for (int d = OM_BALANCE_THREADS / 2; d; d /= 2) {
		__syncthreads();
		if (threadIdx.x < d)
			more[threadIdx.x] += more[threadIdx.x + d];
	}
	if (threadIdx.x == 0)
		aux[0] += E * more[0] / ((double)T * T * K);
}

#define OM_BALANCE_ALL(NAME, t, e, k, w, c)                                                        \
	OM_BALANCE_SIZES(t, e, k, w, c)                                                            \
	OM_GLOBAL(OM_BALANCE_THREADS, 1) NAME##_own(const int32_t *cnt, int64_t *sum)              \
	{                                                                                          \
		om_balance_own<e>(cnt, sum);                                                       \
	}                                                                                          \
	OM_GLOBAL(OM_BALANCE_THREADS, 1) NAME##_mass(const float *prob, double *part)              \
	{                                                                                          \
		om_balance_mass<t, e, c>(prob, part);                                              \
	}                                                                                          \
	OM_GLOBAL(OM_BALANCE_THREADS, 1)                                                           \
	NAME##_sum(                                                                                \
	    const int32_t *cnt, const int64_t *sum, const double *part, int32_t *all, double *aux) \
	{                                                                                          \
		om_balance_sum<t, e, k, w, c>(cnt, sum, part, all, aux);                           \
	}

#else /* ---- host ---- */

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "om_comm.h"

/* ws: 2*e + 2*c*e floats, as int64 [e] and double [c, e] */
#define OM_BALANCE_ALL(NAME, t, e, k, w, c)                                                   \
	OM_BALANCE_SIZES(t, e, k, w, c)                                                       \
	OM_KERNEL(NAME##_own, OM_BALANCE_THREADS, 0)                                          \
	OM_KERNEL(NAME##_mass, OM_BALANCE_THREADS, 0)                                         \
	OM_KERNEL(NAME##_sum, OM_BALANCE_THREADS, 0)                                          \
	static void NAME##_of(                                                                \
	    const float *prob, const int32_t *cnt, int32_t *all, double *aux, void *ws)       \
	{                                                                                     \
		double *part = (double *)ws + (e);                                            \
		OM_LAUNCH(NAME##_mass, c, 1, 1, &prob, &part);                                \
		OM_LAUNCH(NAME##_sum, 1, 1, 1, &cnt, &ws, &part, &all, &aux);                 \
	}                                                                                     \
	void NAME(const float *prob, const int32_t *cnt, int32_t *all, double *aux, void *ws) \
	{                                                                                     \
		OM_LAUNCH(NAME##_own, 1, 1, 1, &cnt, &ws);                                    \
		om_all_sum_i64(OM_DATA, "counts of all experts", ws, e);                      \
		NAME##_of(prob, cnt, all, aux, ws);                                           \
	}                                                                                     \
	double NAME##_check(uint64_t seed)                                                    \
	{                                                                                     \
		return om_balance_all_check(NAME##_of, t, e, k, w, c, seed);                  \
	}

/* Without the sum over ranks: what is added makes the loss of cnt that of all / w. */
static inline double
om_balance_all_check(void (*run)(const float *, const int32_t *, int32_t *, double *, void *),
    int64_t t, int64_t e, int64_t k, int64_t w, int64_t c, uint64_t seed)
{
	const size_t room = (size_t)(2 * e + 2 * c * e) * sizeof(float);
	int64_t *ws = calloc(1, room);
	int32_t *cnt = calloc((size_t)e, sizeof *cnt), *got = calloc((size_t)e, sizeof *got);
	double aux[2] = { 3, 5 }, more = 0;
	struct om_err err = { .scale = 1 };
	for (int64_t i = 0; i < e; i++) {
		cnt[i] = (int32_t)(fabs(om_unit(seed, 1, i)) * (double)t);
		ws[i] = (int64_t)(fabs(om_unit(seed, 2, i)) * (double)(t * w));
	}
	float *prob = om_check_f32(t * e, seed, 0, 1);
	int32_t *d_cnt = om_check_copy(cnt, (size_t)e * sizeof *cnt);
	int32_t *all = om_check_nan((size_t)e * sizeof *all);
	double *d_aux = om_check_copy(aux, sizeof aux);
	void *d_ws = om_check_copy(ws, room);
	run(prob, d_cnt, all, d_aux, d_ws);
	om_check_read(got, all, (size_t)e * sizeof *got);
	om_check_read(aux, d_aux, sizeof aux);
	for (int64_t i = 0; i < e; i++) {
		double mass = 0;
		for (int64_t j = 0; j < t; j++)
			mass += om_unit(seed, 0, j * e + i);
		more += ((double)ws[i] / (double)w - cnt[i]) * mass / (double)t;
		err.wrong |= got[i] != ws[i];
	}
	om_err_add(&err, aux[0], 3 + more * (double)e / ((double)t * (double)k));
	err.wrong |= aux[1] > 5 || aux[1] < 5;
	OM_TIME(run(prob, d_cnt, all, d_aux, d_ws));
	om_check_end();
	free(ws);
	free(cnt);
	free(got);
	return om_err_value(&err);
}

#endif
#endif
