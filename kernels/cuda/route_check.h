/* The checks of route.h: the definition in double, written independently of the kernels. */
#ifndef OM_ROUTE_CHECK_H
#define OM_ROUTE_CHECK_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "route_ref.h"

/* NAME_by: by is bias or draw, or NULL */
typedef void om_route_fn(const float *, const void *, float *, int32_t *, float *, float *,
    int32_t *, int64_t *, double *, void *);
typedef void om_route_bwd_fn(const float *, const float *, const int32_t *, const float *,
    const float *, const int32_t *, float *);
typedef void
om_route_map_fn(const int32_t *, const int32_t *, int32_t *, int32_t *, int32_t *, void *);

#define OM_ROUTE_CHECK static __attribute__((noinline, cold, unused))
enum { OM_ROUTE_SAMPLES = 64 };

static inline double
om_route_worse(double a, double b)
{
	return a > b ? a : b;
}

/*
 * idx [t, k], k distinct experts for each token, and their counts in n sequences: random ones, or
 * the last k for all tokens, which leaves the others empty.
 */
OM_ROUTE_CHECK void
om_route_choice(bool same, int64_t t, int64_t e, int64_t k, int64_t n, uint64_t seed, int32_t *idx,
    int32_t *cnt)
{
	int32_t *deck = malloc((size_t)e * sizeof *deck);
	memset(cnt, 0, (size_t)(n * e) * sizeof *cnt);
	for (int64_t c = 0; c < e; c++)
		deck[c] = (int32_t)c;
	for (int64_t i = 0; i < t * k; i++) {
		const int64_t a = i % k;
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		const int64_t b =
		    same ? e - k + a : a + (int64_t)((seed >> 33) % (uint64_t)(e - a));
		idx[i] = deck[b];
		if (!same) {
			deck[b] = deck[a];
			deck[a] = idx[i];
		}
		cnt[i / k / (t / n) * e + idx[i]]++;
	}
	free(deck);
}

/* Floats as double. */
OM_ROUTE_CHECK const double *
om_route_double(int64_t n, const float *x, double *room)
{
	for (int64_t c = 0; c < n; c++)
		room[c] = (double)x[c];
	return room;
}

/* A route call's outputs on the host. */
struct om_route_out {
	float *p, *prob, *lse;
	int32_t *idx, *cnt;
	int64_t *load;
	double aux[2];
};

OM_ROUTE_CHECK struct om_route_out
om_route_run(om_route_fn *run, const struct om_route *r, const float *z, const void *by,
    size_t by_size, bool time)
{
	const int64_t t = r->t, e = r->e, k = r->k, n = r->n;
	const size_t words =
	    (size_t)(2 * n * ((e + 31) / 32) + 2 * n + 2 + n * ((t / n + 31) / 32) * (2 * e + 1));
	struct om_route_out o = { malloc((size_t)(t * k) * 4), malloc((size_t)(t * e) * 4),
		malloc((size_t)t * 4), malloc((size_t)(t * k) * 4), malloc((size_t)(n * e) * 4),
		malloc((size_t)e * 8), { 0.25, 0.5 } };
	for (int64_t c = 0; c < e; c++)
		o.load[c] = 1000 + c;
	void *dby = by ? om_check_copy(by, by_size) : NULL;
	float *dz = om_check_copy(z, (size_t)(t * e) * 4), *p = om_check_nan((size_t)(t * k) * 4);
	float *prob = om_check_nan((size_t)(t * e) * 4), *lse = om_check_nan((size_t)t * 4);
	int32_t *idx = om_check_nan((size_t)(t * k) * 4), *cnt = om_check_nan((size_t)(n * e) * 4);
	int64_t *load = om_check_copy(o.load, (size_t)e * 8);
	double *aux = om_check_copy(o.aux, sizeof o.aux);
	void *ws = om_check_nan(words * 4);
	run(dz, dby, p, idx, prob, lse, cnt, load, aux, ws);
	om_check_read(o.p, p, (size_t)(t * k) * 4);
	om_check_read(o.prob, prob, (size_t)(t * e) * 4);
	om_check_read(o.lse, lse, (size_t)t * 4);
	om_check_read(o.idx, idx, (size_t)(t * k) * 4);
	om_check_read(o.cnt, cnt, (size_t)(n * e) * 4);
	om_check_read(o.load, load, (size_t)e * 8);
	om_check_read(o.aux, aux, sizeof o.aux);
	if (time)
		OM_TIME(run(dz, dby, p, idx, prob, lse, cnt, load, aux, ws));
	om_check_end();
	return o;
}

OM_ROUTE_CHECK void
om_route_free(struct om_route_out *o)
{
	free(o->p);
	free(o->prob);
	free(o->lse);
	free(o->idx);
	free(o->cnt);
	free(o->load);
}

OM_ROUTE_CHECK double
om_route_check(om_route_fn *run, int by, const struct om_route *r, uint64_t seed)
{
	const int64_t t = r->t, e = r->e, k = r->k, n = r->n;
	float *z = malloc((size_t)(t * e) * sizeof *z);
	double *mass = calloc((size_t)(n * e), sizeof *mass), want[2] = { 0.25, 0.5 };
	double *score = malloc((size_t)e * sizeof *score);
	int32_t *count = calloc((size_t)(n * e), sizeof *count);
	bool *allowed = malloc((size_t)e * sizeof *allowed);
	double *rank = malloc((size_t)e * sizeof *rank);
	float *bias = malloc((size_t)e * sizeof *bias);
	/* the counter's low word overflows within the tokens */
	const int64_t draw[3] = { (int64_t)(seed * 6364136223846793005u), (int64_t)(seed % 99),
		((int64_t)1 << 32) - t / 2 };
	double *room = malloc((size_t)e * sizeof *room),
	       *ref_bias = malloc((size_t)e * sizeof *room);
	const void *input = by == OM_BY_BIAS ? (void *)bias : by == OM_BY_DRAW ? draw : NULL;
	const size_t input_size = by == OM_BY_BIAS ? (size_t)e * sizeof *bias : sizeof draw;
	const struct om_route_ref_by ref_by = { by == OM_BY_BIAS ? ref_bias : NULL,
		by == OM_BY_DRAW ? draw : NULL, by == OM_BY_TURN };
	struct om_err ep = { 0 }, eprob = { 0 }, elog = { .scale = 1 }, eaux = { 0 };
	/* ties: every third token has only two different scores */
	for (int64_t i = 0; i < t * e; i++) {
		z[i] = (float)om_unit(seed, 0, i);
		z[i] = i / e % 3 == 2 ? (float)(z[i] > 0) : z[i];
	}
	for (int64_t c = 0; c < e; c++) /* of the size of the scores' differences */
		bias[c] = (float)(om_unit(seed, 2, c) * (r->c == 0 ? 1 / (double)e : 0.25));
	om_route_double(e, bias, ref_bias);
	struct om_route_out o = om_route_run(run, r, z, input, input_size, true);
	for (int64_t i = 0; i < t; i++) {
		const int64_t part = i / (t / n);
		const double *zi = om_route_double(e, z + i * e, room);
		double log_sum = om_route_ref_scores(r, zi, score), sum = 0, chosen = 0;
		om_err_add(&elog, (double)o.lse[i], log_sum);
		want[1] += log_sum * log_sum / (double)t;
		om_route_ref_ranks(r, zi, ref_by, i, score, rank);
		if (!om_route_ref_choice(
			r, rank, by == OM_BY_DRAW ? 0 : 1e-6, o.idx + i * k, allowed)) {
			ep.wrong = true;
			continue;
		}
		for (int64_t c = 0; c < e; c++)
			sum += score[c];
		for (int64_t c = 0; c < e; c++) {
			om_err_add(&eprob, (double)o.prob[i * e + c], score[c] / sum);
			mass[part * e + c] += score[c] / sum;
		}
		for (int64_t a = 0; a < k; a++) {
			chosen += score[o.idx[i * k + a]];
			count[part * e + o.idx[i * k + a]]++;
		}
		for (int64_t a = 0; a < k; a++) {
			double weight = score[o.idx[i * k + a]] / (r->j || r->c == 2 ? chosen : 1);
			om_err_add(&ep, (double)o.p[i * k + a], r->factor * weight);
		}
	}
	for (int64_t c = 0; c < e; c++) {
		int64_t all = 1000 + c;
		for (int64_t part = 0; part < n; part++) {
			all += count[part * e + c];
			ep.wrong |= o.cnt[part * e + c] != count[part * e + c];
		}
		ep.wrong |= o.load[c] != all;
	}
	want[0] += om_route_ref_balance(r, count, mass);
	om_err_add(&eaux, o.aux[0], want[0]);
	om_err_add(&eaux, o.aux[1], want[1]);

	struct om_route_out again = om_route_run(run, r, z, input, input_size, false);
	ep.wrong |= memcmp(o.p, again.p, (size_t)(t * k) * 4) != 0;
	ep.wrong |= memcmp(o.prob, again.prob, (size_t)(t * e) * 4) != 0;
	ep.wrong |= memcmp(o.aux, again.aux, sizeof o.aux) != 0;
	om_route_free(&again);
	/* NaN, in some logits: the choice is still of k experts */
	for (int64_t i = 0; i < t * e; i++)
		z[i] = om_unit(seed, 1, i) > 1.5 ? NAN : z[i];
	again = om_route_run(run, r, z, input, input_size, false);
	for (int64_t i = 0; i < t; i++) {
		memset(allowed, 1, (size_t)e * sizeof *allowed);
		for (int64_t a = 0; a < k; a++) {
			int32_t at = again.idx[i * k + a];
			if (at < 0 || at >= e || !allowed[at])
				ep.wrong = true;
			else
				allowed[at] = false;
		}
	}
	om_route_free(&again);
	om_route_free(&o);
	free(z);
	free(mass);
	free(score);
	free(rank);
	free(room);
	free(ref_bias);
	free(bias);
	free(count);
	free(allowed);
	return om_route_worse(om_route_worse(om_err_value(&ep), om_err_value(&eprob)),
	    om_route_worse(om_err_value(&elog), om_err_value(&eaux)));
}

/* By Jacobians: of p and prob by the scores, of the scores by z. */
OM_ROUTE_CHECK double
om_route_bwd_check(
    om_route_bwd_fn *run, const struct om_route *r, double lb, double zl, uint64_t seed)
{
	const int64_t t = r->t, e = r->e, k = r->k, n = r->n;
	const int64_t samples = t < OM_ROUTE_SAMPLES ? t : OM_ROUTE_SAMPLES;
	float *z = malloc((size_t)(t * e) * 4), *prob = malloc((size_t)(t * e) * 4);
	float *lse = malloc((size_t)t * 4), *dz = malloc((size_t)(t * e) * 4);
	float *dp = malloc((size_t)(t * k) * 4);
	int32_t *idx = malloc((size_t)(t * k) * 4), *cnt = malloc((size_t)(n * e) * 4);
	double *score = malloc((size_t)e * 8), *want = malloc((size_t)e * 8);
	double *dscore = malloc((size_t)e * 8), worst = 0;
	double *room = malloc((size_t)e * 8), *dpi = malloc((size_t)k * 8);
	om_route_choice(false, t, e, k, n, seed, idx, cnt);
	for (int64_t i = 0; i < t * k; i++)
		dp[i] = (float)om_unit(seed, 0, i);
	for (int64_t i = 0; i < t; i++) {
		double sum = 0;
		for (int64_t c = 0; c < e; c++)
			z[i * e + c] = (float)om_unit(seed, 1, i * e + c);
		lse[i] = (float)om_route_ref_scores(r, om_route_double(e, z + i * e, room), score);
		for (int64_t c = 0; c < e; c++)
			sum += score[c];
		for (int64_t c = 0; c < e; c++)
			prob[i * e + c] = (float)(score[c] / sum);
	}
	/* without dp the second time: the losses alone, which it would drown */
	for (int second = 0; second < 2; second++) {
		/* with one expert, all of dz is rounding */
		struct om_err err = { .scale =
					  second ? (lb + zl) / (double)(t * e) : 1 / (double)e };
		for (int64_t i = 0; second && i < t * k; i++)
			dp[i] = 0;
		float *d_dp = om_check_copy(dp, (size_t)(t * k) * 4);
		float *d_z = om_check_copy(z, (size_t)(t * e) * 4);
		int32_t *d_idx = om_check_copy(idx, (size_t)(t * k) * 4);
		float *d_prob = om_check_copy(prob, (size_t)(t * e) * 4);
		float *d_lse = om_check_copy(lse, (size_t)t * 4);
		int32_t *d_cnt = om_check_copy(cnt, (size_t)(n * e) * 4);
		float *d_dz = om_check_nan((size_t)(t * e) * 4);
		run(d_dp, d_z, d_idx, d_prob, d_lse, d_cnt, d_dz);
		om_check_read(dz, d_dz, (size_t)(t * e) * 4);
		if (second)
			OM_TIME(run(d_dp, d_z, d_idx, d_prob, d_lse, d_cnt, d_dz));
		om_check_end();
		for (int64_t s = 0; s < samples; s++) { /* first and last ones among them */
			const int64_t i = samples > 1 ? s * (t - 1) / (samples - 1) : 0;
			om_route_ref_bwd(r, lb, zl, om_route_double(e, z + i * e, room),
			    idx + i * k, om_route_double(k, dp + i * k, dpi), cnt + i / (t / n) * e,
			    score, dscore, want);
			for (int64_t c = 0; c < e; c++)
				om_err_add(&err, (double)dz[i * e + c], want[c]);
		}
		for (int64_t i = 0; i < t * e; i++) /* all are written */
			err.wrong |= !isfinite(dz[i]);
		worst = om_route_worse(worst, om_err_value(&err));
	}
	free(z);
	free(prob);
	free(lse);
	free(dz);
	free(dp);
	free(idx);
	free(cnt);
	free(score);
	free(want);
	free(dscore);
	free(room);
	free(dpi);
	return worst;
}

OM_ROUTE_CHECK double
om_route_map_check(om_route_map_fn *run, int64_t t, int64_t e, int64_t k, int64_t n, uint64_t seed)
{
	const size_t rows = (size_t)(t * k) * sizeof(int32_t);
	int32_t *idx = malloc(rows), *cnt = malloc((size_t)(n * e) * 4);
	int32_t *row = malloc(rows), *src = malloc(rows), *off = malloc((size_t)(e + 1) * 4);
	int32_t *next = malloc((size_t)(e + 1) * 4);
	bool right = true;
	for (int same = 1; same >= 0; same--) {
		om_route_choice(same, t, e, k, n, seed, idx, cnt);
		int32_t *d_idx = om_check_copy(idx, rows);
		int32_t *d_cnt = om_check_copy(cnt, (size_t)(n * e) * 4);
		int32_t *d_row = om_check_nan(rows), *d_src = om_check_nan(rows);
		int32_t *d_off = om_check_nan((size_t)(e + 1) * 4);
		void *ws = om_check_nan((size_t)(n * OM_ROUTE_MOST * e) * 4);
		run(d_idx, d_cnt, d_row, d_src, d_off, ws);
		om_check_read(row, d_row, rows);
		om_check_read(src, d_src, rows);
		om_check_read(off, d_off, (size_t)(e + 1) * 4);
		if (!same)
			OM_TIME(run(d_idx, d_cnt, d_row, d_src, d_off, ws));
		om_check_end();
		memset(next, 0, (size_t)(e + 1) * 4);
		for (int64_t i = 0; i < t * k; i++)
			next[idx[i] + 1]++;
		for (int64_t c = 0; c < e; c++)
			next[c + 1] += next[c];
		right &= !memcmp(next, off, (size_t)(e + 1) * 4);
		for (int64_t i = 0; i < t * k; i++) {
			int32_t want = next[idx[i]]++;
			right &= row[i] == want && src[want] == i;
		}
	}
	free(idx);
	free(cnt);
	free(row);
	free(src);
	free(off);
	free(next);
	return right ? 0 : OM_WRONG;
}

#endif
