/*
 * The router: softmax scores, top-k, balance statistics and losses (Switch Transformer's
 * load-balancing loss, Fedus et al., 2021; ST-MoE's z-loss, Zoph et al., 2022), and the order of
 * rows.
 *
 *   route      prob [t, e] = softmax(z), lse [t] its logarithmic sum; idx [t, k] the k most
 * probable in falling order, ties to the lower index; p [t, k] their probabilities, with j divided
 *              by their sum; cnt [e] tokens of each expert, load [e] += cnt;
 *              aux[0] += e sum over i of f_i P_i, f_i = cnt_i / (t k), P_i = mean over t of prob;
 *              aux[1] += mean over t of lse^2
 *   route_bwd  dz [t, e] from dp through p, plus lb d aux[0] (f held constant), plus zl d aux[1]
 *   route_map  off [e + 1] from cnt; row [t, k] in expert order, in token order within an expert,
 *              and its inverse src
 *
 * NaN counts as the smallest score, so that idx is in range and distinct whatever z holds.
 */
#include "check.h"

/* Tokens [lo, hi) of all that concerns one token. */
static OM_CLONES void
om_route_range(int64_t lo, int64_t hi, int64_t e, int64_t k, bool normalize, const om_real *z,
    om_real *p, int32_t *idx, om_real *prob, om_real *lse)
{
	for (int64_t i = lo; i < hi; i++) {
		const om_real *zi = z + i * e;
		om_real *pi = prob + i * e;
		om_real max = om_max(zi, e);
#pragma omp simd
		for (int64_t c = 0; c < e; c++)
			pi[c] = om_exp(zi[c] - max);
		om_real sum = om_sum(pi, e), inverse = 1 / sum, chosen = 0;
#pragma omp simd
		for (int64_t c = 0; c < e; c++)
			pi[c] *= inverse;
		lse[i] = max + (om_real)log(sum);

		/* insertion: experts in index order, each behind those of its score and above */
		om_real *best = p + i * k;
		int32_t *at = idx + i * k;
		for (int64_t c = 0; c < e; c++) {
			om_real score = pi[c] == pi[c] ? pi[c] : -1;
			int64_t a = om_min(c, k);
			if (a == k && !(score > best[--a]))
				continue;
			for (; a > 0 && score > best[a - 1]; a--) {
				best[a] = best[a - 1];
				at[a] = at[a - 1];
			}
			best[a] = score;
			at[a] = (int32_t)c;
		}
		for (int64_t a = 0; a < k; a++)
			chosen += best[a] = pi[at[a]];
		for (int64_t a = 0; normalize && a < k; a++)
			best[a] /= chosen;
	}
}

enum { OM_ROUTE_BLOCK = 64 }; /* experts whose probabilities are summed at a time */

static inline void
om_route(int64_t t, int64_t e, int64_t k, bool normalize, const om_real *z, om_real *p,
    int32_t *idx, om_real *prob, om_real *lse, int32_t *cnt, int64_t *load, double *aux)
{
#pragma omp parallel
	om_route_range(om_lo(t), om_hi(t), e, k, normalize, z, p, idx, prob, lse);

	memset(cnt, 0, (size_t)e * sizeof *cnt);
	for (int64_t i = 0; i < t * k; i++)
		cnt[idx[i]]++;
	double balance = 0, square = 0;
	for (int64_t b = 0; b < e; b += OM_ROUTE_BLOCK) {
		const int64_t n = om_min(e - b, OM_ROUTE_BLOCK);
		double mass[OM_ROUTE_BLOCK] = { 0 };
		for (int64_t i = 0; i < t; i++) {
			for (int64_t c = 0; c < n; c++)
				mass[c] += (double)prob[i * e + b + c];
		}
		for (int64_t c = 0; c < n; c++) {
			load[b + c] += cnt[b + c];
			balance += (double)cnt[b + c] * mass[c];
		}
	}
	for (int64_t i = 0; i < t; i++)
		square += (double)lse[i] * (double)lse[i];
	aux[0] += (double)e * balance / ((double)t * (double)t * (double)k);
	aux[1] += square / (double)t;
}

/* balance: gradient of prob for each token an expert has; square: of z for lse times prob */
static OM_CLONES void
om_route_bwd_range(int64_t lo, int64_t hi, int64_t e, int64_t k, bool normalize, om_real balance,
    om_real square, const om_real *dp, const int32_t *idx, const om_real *prob, const om_real *lse,
    const int32_t *cnt, om_real *dz)
{
	for (int64_t i = lo; i < hi; i++) {
		const om_real *pi = prob + i * e, *dpi = dp + i * k;
		const int32_t *at = idx + i * k;
		om_real *dzi = dz + i * e, chosen = 1, along = 0;
		if (normalize) { /* p = c / sum c; of dp only what is not along p counts */
			chosen = 0;
			for (int64_t a = 0; a < k; a++) {
				chosen += pi[at[a]];
				along += dpi[a] * pi[at[a]];
			}
			along /= chosen;
		}
		/* first the gradient of prob, then through the softmax */
#pragma omp simd
		for (int64_t c = 0; c < e; c++)
			dzi[c] = balance * (om_real)cnt[c];
		for (int64_t a = 0; a < k; a++)
			dzi[at[a]] += (dpi[a] - along) / chosen;
		om_real mean = om_dot(dzi, pi, e) - square * lse[i];
#pragma omp simd
		for (int64_t c = 0; c < e; c++)
			dzi[c] = pi[c] * (dzi[c] - mean);
	}
}

static inline void
om_route_bwd(int64_t t, int64_t e, int64_t k, bool normalize, double lb, double zl,
    const om_real *dp, const int32_t *idx, const om_real *prob, const om_real *lse,
    const int32_t *cnt, om_real *dz)
{
	const om_real balance = (om_real)(lb * (double)e / ((double)t * (double)t * (double)k));
	const om_real square = (om_real)(2 * zl / (double)t);
#pragma omp parallel
	om_route_bwd_range(
	    om_lo(t), om_hi(t), e, k, normalize, balance, square, dp, idx, prob, lse, cnt, dz);
}

/* A counting sort. off[i + 1] runs from the start of expert i's rows to their end. */
static inline void
om_route_map(int64_t t, int64_t e, int64_t k, const int32_t *idx, const int32_t *cnt, int32_t *row,
    int32_t *src, int32_t *off)
{
	int32_t start = 0;
	off[0] = 0;
	for (int64_t i = 0; i < e; i++) {
		off[i + 1] = start;
		start += cnt[i];
	}
	for (int64_t i = 0; i < t * k; i++) {
		row[i] = off[idx[i] + 1]++;
		src[row[i]] = (int32_t)i;
	}
}

#define OM_ROUTE_SIZES(t, e, k)                                                           \
	_Static_assert((t) >= 1 && (e) >= 1, "route: sizes start at 1");                  \
	_Static_assert((k) >= 1 && (k) <= (e), "route: top-k chooses among the experts"); \
	_Static_assert((int64_t)(t) * (k) <= INT32_MAX, "route: rows are counted in int32");

#define OM_ROUTE(NAME, t, e, k, j)                                                         \
	OM_ROUTE_SIZES(t, e, k)                                                            \
	void NAME(const om_real *z, om_real *p, int32_t *idx, om_real *prob, om_real *lse, \
	    int32_t *cnt, int64_t *load, double *aux)                                      \
	{                                                                                  \
		om_route(t, e, k, j, z, p, idx, prob, lse, cnt, load, aux);                \
	}                                                                                  \
	double NAME##_check(uint64_t seed)                                                 \
	{                                                                                  \
		return om_route_check(NAME, t, e, k, j, seed);                             \
	}

#define OM_ROUTE_BWD(NAME, t, e, k, j, lb, zl)                                                    \
	OM_ROUTE_SIZES(t, e, k)                                                                   \
	void NAME(const om_real *dp, const int32_t *idx, const om_real *prob, const om_real *lse, \
	    const int32_t *cnt, om_real *dz)                                                      \
	{                                                                                         \
		om_route_bwd(t, e, k, j, lb, zl, dp, idx, prob, lse, cnt, dz);                    \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_route_bwd_check(NAME, t, e, k, j, lb, zl, seed);                        \
	}

#define OM_ROUTE_MAP(NAME, t, e, k)                                                           \
	OM_ROUTE_SIZES(t, e, k)                                                               \
	void NAME(                                                                            \
	    const int32_t *idx, const int32_t *cnt, int32_t *row, int32_t *src, int32_t *off) \
	{                                                                                     \
		om_route_map(t, e, k, idx, cnt, row, src, off);                               \
	}                                                                                     \
	double NAME##_check(uint64_t seed)                                                    \
	{                                                                                     \
		return om_route_map_check(NAME, t, e, k, seed);                               \
	}

typedef void om_route_fn(
    const om_real *, om_real *, int32_t *, om_real *, om_real *, int32_t *, int64_t *, double *);
typedef void om_route_bwd_fn(
    const om_real *, const int32_t *, const om_real *, const om_real *, const int32_t *, om_real *);
typedef void om_route_map_fn(const int32_t *, const int32_t *, int32_t *, int32_t *, int32_t *);

/* idx [t, k], k distinct experts for each token, and their counts; every fourth seed takes the
 * first. */
OM_CHECK void
om_route_choice(int64_t t, int64_t e, int64_t k, uint64_t seed, int32_t *idx, int32_t *cnt)
{
	memset(cnt, 0, (size_t)e * sizeof *cnt);
	for (int64_t i = 0; i < t; i++) {
		for (int64_t a = 0; a < k; a++) {
			int32_t c = (int32_t)(om_hash(seed, (uint64_t)(i * k + a)) % (uint64_t)e);
			bool taken = true;
			if (seed % 4 == 0)
				c = (int32_t)a;
			while (taken) {
				taken = false;
				for (int64_t b = 0; b < a; b++)
					taken |= idx[i * k + b] == c;
				c = taken ? (int32_t)((c + 1) % e) : c;
			}
			idx[i * k + a] = c;
			cnt[c]++;
		}
	}
}

OM_CHECK double
om_route_check(om_route_fn *run, int64_t t, int64_t e, int64_t k, bool normalize, uint64_t seed)
{
	om_real *z = om_check_random(t * e, seed, 0), *p = om_check_nan(t * k);
	om_real *prob = om_check_nan(t * e), *lse = om_check_nan(t);
	int32_t *idx = om_check_ints(t * k, 1, seed, 0), *cnt = om_check_ints(e, 99, seed, 1);
	int64_t *load = om_check_alloc(e, sizeof *load);
	double *mass = om_check_alloc(e, sizeof *mass), aux[2] = { 0.25, 0.5 },
	       want[2] = { 0.25, 0.5 };
	int32_t *count = om_check_alloc(e, sizeof *count);
	bool *taken = om_check_alloc(e, sizeof *taken);
	struct om_err ep = { 0 }, eprob = { 0 }, elog = { .scale = 1 }, eaux = { 0 };
	for (int64_t c = 0; c < e; c++) {
		load[c] = 1000 + c;
		mass[c] = count[c] = 0;
	}
	/* ties: every third token has only two different scores */
	for (int64_t i = 0; i < t * e; i++)
		z[i] = i / e % 3 == 2 ? (om_real)(z[i] > 0) : z[i];
	run(z, p, idx, prob, lse, cnt, load, aux);
	for (int64_t i = 0; i < t; i++) {
		double sum = 0, chosen = 0;
		for (int64_t c = 0; c < e; c++)
			sum += exp((double)z[i * e + c]);
		for (int64_t c = 0; c < e; c++) {
			om_err_add(&eprob, prob[i * e + c], exp((double)z[i * e + c]) / sum);
			mass[c] += exp((double)z[i * e + c]) / sum;
			taken[c] = false;
		}
		om_err_add(&elog, lse[i], log(sum));
		want[1] += log(sum) * log(sum) / (double)t;
		for (int64_t a = 0; a < k; a++) {
			int64_t best = -1;
			for (int64_t c = 0; c < e; c++) {
				if (!taken[c] && (best < 0 || prob[i * e + c] > prob[i * e + best]))
					best = c;
			}
			if (idx[i * k + a] != best)
				ep.wrong = true;
			taken[best] = true;
			count[best]++;
			chosen += exp((double)z[i * e + best]) / sum;
		}
		for (int64_t a = 0; a < k; a++) {
			double c = exp((double)z[i * e + idx[i * k + a]]) / sum;
			om_err_add(&ep, p[i * k + a], normalize ? c / chosen : c);
		}
	}
	for (int64_t c = 0; c < e; c++) {
		if (cnt[c] != count[c] || load[c] != 1000 + c + count[c])
			ep.wrong = true;
		want[0] += (double)e * (double)count[c] / (double)(t * k) * mass[c] / (double)t;
	}
	om_err_add(&eaux, aux[0], want[0]);
	om_err_add(&eaux, aux[1], want[1]);
	free(z);
	free(p);
	free(prob);
	free(lse);
	free(idx);
	free(cnt);
	free(load);
	free(mass);
	free(count);
	free(taken);
	return om_worse(om_worse(om_err_value(&ep), om_err_value(&eprob)),
	    om_worse(om_err_value(&elog), om_err_value(&eaux)));
}

OM_CHECK double
om_route_bwd_check(om_route_bwd_fn *run, int64_t t, int64_t e, int64_t k, bool normalize, double lb,
    double zl, uint64_t seed)
{
	om_real *dp = om_check_random(t * k, seed, 0), *prob = om_check_random(t * e, seed, 1);
	om_real *lse = om_check_random(t, seed, 2), *dz = om_check_nan(t * e);
	int32_t *idx = om_check_alloc(t * k, sizeof *idx), *cnt = om_check_alloc(e, sizeof *cnt);
	double *dprob = om_check_alloc(e, sizeof *dprob), worst = 0;
	om_route_choice(t, e, k, seed, idx, cnt);
	for (int64_t i = 0; i < t; i++) {
		om_real sum = 0;
		for (int64_t c = 0; c < e; c++)
			sum += prob[i * e + c] = (om_real)exp((double)prob[i * e + c]);
		for (int64_t c = 0; c < e; c++)
			prob[i * e + c] /= sum;
	}
	/* without dp the second time: the losses alone, which it would drown */
	for (int second = 0; second < 2; second++) {
		/* with one expert, all of dz is rounding */
		struct om_err err = { .scale =
					  second ? (lb + zl) / (double)(t * e) : 1 / (double)e };
		for (int64_t i = 0; second && i < t * k; i++)
			dp[i] = 0;
		run(dp, idx, prob, lse, cnt, dz);
		for (int64_t i = 0; i < t; i++) {
			const om_real *pi = prob + i * e;
			double chosen = 0, dot = 0;
			for (int64_t c = 0; c < e; c++)
				dprob[c] =
				    lb * (double)e * (double)cnt[c] / (double)(t * k) / (double)t;
			for (int64_t a = 0; a < k; a++)
				chosen += (double)pi[idx[i * k + a]];
			for (int64_t a = 0; a < k; a++) {
				for (int64_t b = 0; b < k; b++) { /* d p_a / d c_b */
					double pa = (double)pi[idx[i * k + a]] / chosen;
					double d = normalize ? ((a == b) - pa) / chosen : a == b;
					dprob[idx[i * k + b]] += (double)dp[i * k + a] * d;
				}
			}
			for (int64_t c = 0; c < e; c++)
				dot += dprob[c] * (double)pi[c];
			for (int64_t c = 0; c < e; c++) {
				double want = (double)pi[c] * (dprob[c] - dot);
				want += zl * 2 * (double)lse[i] / (double)t * (double)pi[c];
				om_err_add(&err, dz[i * e + c], want);
			}
		}
		worst = om_worse(worst, om_err_value(&err));
	}
	free(dp);
	free(prob);
	free(lse);
	free(dz);
	free(idx);
	free(cnt);
	free(dprob);
	return worst;
}

OM_CHECK double
om_route_map_check(om_route_map_fn *run, int64_t t, int64_t e, int64_t k, uint64_t seed)
{
	int32_t *idx = om_check_alloc(t * k, sizeof *idx), *cnt = om_check_alloc(e, sizeof *cnt);
	int32_t *row = om_check_ints(t * k, 9, seed, 0), *src = om_check_ints(t * k, 9, seed, 1);
	int32_t *off = om_check_ints(e + 1, 9, seed, 2), next = 0;
	bool right = true;
	om_route_choice(t, e, k, seed, idx, cnt);
	run(idx, cnt, row, src, off);
	for (int64_t c = 0; c < e; c++) {
		right &= off[c] == next;
		for (int64_t i = 0; i < t * k; i++) {
			if (idx[i] != c)
				continue;
			right &= row[i] == next && src[next] == i;
			next++;
		}
	}
	right &= off[e] == next && next == t * k;
	free(idx);
	free(cnt);
	free(row);
	free(src);
	free(off);
	return right ? 0 : OM_WRONG;
}
