/*
 * The load-balance loss over all data ranks: how often experts are chosen is counted over the
 * microbatches that these work on at the same time, how likely they were stays each rank's own mean
 * (OLMo-core's global load balancing; Qiu et al., 2025).
 *
 *   balance_all  all [e] = sum over w ranks of cnt [e]; aux[0] += e sum over i of
 *                (all_i / w - cnt_i) / (t k) P_i, P_i the mean of prob [t, e] over t: what the
 *                router added for this rank's counts becomes that of all
 */
#ifndef OM_BALANCE_H
#define OM_BALANCE_H

#include "om_comm.h"
#include "route.h"

static inline double
om_balance_all(int64_t t, int64_t e, int64_t k, int64_t w, const om_real *prob, const int32_t *cnt,
    const int32_t *all)
{
	double more = 0;
	for (int64_t i = 0; i < e; i++) {
		double mass = 0;
		for (int64_t j = 0; j < t; j++)
			mass += (double)prob[j * e + i];
		more += ((double)all[i] / (double)w - (double)cnt[i]) * mass;
	}
	return (double)e * more / ((double)t * (double)t * (double)k);
}

#define OM_BALANCE_ALL(NAME, t, e, k, w)                                              \
	_Static_assert((w) >= 1, "balance_all: ranks");                               \
	void NAME(const om_real *prob, const int32_t *cnt, int32_t *all, double *aux) \
	{                                                                             \
		int64_t sum[e];                                                       \
		for (int64_t i = 0; i < (e); i++)                                     \
			sum[i] = cnt[i];                                              \
		om_all_sum_i64(OM_DATA, "counts of all experts", sum, e);             \
		for (int64_t i = 0; i < (e); i++)                                     \
			all[i] = (int32_t)sum[i];                                     \
		aux[0] += om_balance_all(t, e, k, w, prob, cnt, all);                 \
	}                                                                             \
	double NAME##_check(uint64_t seed)                                            \
	{                                                                             \
		return om_balance_all_check(t, e, k, w, seed);                        \
	}

/* Without the sum over ranks: what is added makes the loss of cnt that of all / w. */
OM_CHECK double
om_balance_all_check(int64_t t, int64_t e, int64_t k, int64_t w, uint64_t seed)
{
	om_real *prob = om_check_random(t * e, seed, 0);
	int32_t *cnt = om_check_ints(e, t, seed, 1), *all = om_check_ints(e, t * w, seed, 2);
	double own = 0, want = 0;
	struct om_err err = { .scale = 1 };
	for (int64_t i = 0; i < t * e; i++)
		prob[i] = (om_real)fabs((double)prob[i]);
	for (int64_t i = 0; i < t * e; i++) {
		double share = (double)prob[i] / (double)t * (double)e / ((double)t * (double)k);
		own += cnt[i % e] * share;
		want += (double)all[i % e] / (double)w * share;
	}
	om_err_add(&err, own + om_balance_all(t, e, k, w, prob, cnt, all), want);
	free(prob);
	free(cnt);
	free(all);
	return om_err_value(&err);
}

#endif
