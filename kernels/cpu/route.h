/*
 * The router: scores, groups of experts, top-k, balance statistics and losses (Switch Transformer's
 * load-balancing loss, Fedus et al., 2021; ST-MoE's z-loss, Zoph et al., 2022; groups and sigmoid
 * scores as in DeepSeek-V3, 2024), and the order of rows.
 *
 *   route      score [t, e] = softmax(z), or with c = 1 sigmoid(z); lse [t] = log sum exp(z);
 *              idx [t, k] the k experts of the largest scores in falling order, of the groups that
 *              take part; p [t, k] their scores, with j or c = 2 divided by their sum (with c = 2
 *              that is the softmax over the chosen), times factor;
 *              prob [t, e] = score, with c = 1 divided by its sum over e;
 *              cnt [n, e] tokens of each expert in each of n equal sequences, load [e] += its sum;
 *              aux[0] += mean over n of e sum over i of f_i P_i, f_i = cnt_i / (t/n k),
 *              P_i = mean of prob over the t/n tokens; aux[1] += mean over t of lse^2
 *   route_biased  route, but the experts, and their groups, are chosen by score + b [e], with
 *              c = 2 by z + b: balancing without a loss (Wang et al., 2024). p is of the scores
 *   route_random   route, but chosen by random numbers in place of scores: token i of a microbatch
 *              gives expert c the word c mod 4 of Philox at counter (draw[2] + i, draw[1], c / 4)
 *              under the key draw[0]
 *   route_uniform  route, but token i's experts are (i k + a) mod e, a from 0 to k
 *   route_bwd  dz [t, e] from dp through p, plus lb d aux[0] (f held constant), plus zl d aux[1]
 *   route_map  off [e + 1] from cnt; row [t, k] in expert order, in token order within an expert,
 *              and its inverse src
 *
 * Of g equal groups of neighbouring experts the q best take part, by the sum of their two best
 * scores (of one expert, by its score). Ties go to the lower index, of experts and of groups. NaN
 * counts as the smallest score, so that idx is in range and distinct whatever z holds.
 */
#ifndef OM_ROUTE_H
#define OM_ROUTE_H

#include "check.h"
#include "rng.h"
#include "route_ref.h"

enum { OM_ROUTE_SOFTMAX, OM_ROUTE_SIGMOID, OM_ROUTE_CHOSEN, OM_ROUTE_SCORES };

/* What experts are chosen by, beside the scores or in their place; nothing: by the scores. */
struct om_route_by {
	const om_real *bias;
	const int64_t *draw;
	bool uniform;
};

/* What a score counts as in comparisons: none is below 0, and a biased one is a number. */
static OM_INLINE om_real
om_route_rank(om_real score)
{
	return score == score ? score : -1;
}

/* The score of group i, of size experts. */
static OM_INLINE om_real
om_route_group(const om_real *score, int64_t i, int64_t size)
{
	om_real best = om_route_rank(score[i * size]), second = size > 1 ? -INFINITY : 0;
	for (int64_t c = i * size + 1; c < (i + 1) * size; c++) {
		om_real x = om_route_rank(score[c]), less = x < best ? x : best;
		second = less > second ? less : second;
		best = x > best ? x : best;
	}
	return best + second;
}

/*
 * Do fewer than q groups come before group i? Their scores are computed each time they are
 * compared, which needs no room and is little beside the product that gave z.
 */
static OM_INLINE bool
om_route_in(const om_real *score, int64_t i, const struct om_route *r)
{
	const int64_t size = r->e / r->g;
	const om_real own = om_route_group(score, i, size);
	int64_t before = 0;
	for (int64_t o = 0; o < r->g; o++) {
		om_real other = om_route_group(score, o, size);
		before += other > own || (other == own && o < i);
	}
	return before < r->q;
}

/* Insertion: experts in index order, each behind those of its score and above. */
static OM_INLINE void
om_route_choose(const struct om_route *r, const om_real *score, om_real *best, int32_t *at)
{
	const int64_t size = r->e / r->g;
	int64_t have = 0;
	for (int64_t i = 0; i < r->g; i++) {
		if (r->q < r->g && !om_route_in(score, i, r))
			continue;
		for (int64_t c = i * size; c < (i + 1) * size; c++) {
			om_real x = om_route_rank(score[c]);
			int64_t a = have;
			if (a == r->k && !(x > best[--a]))
				continue;
			have = a + 1;
			for (; a > 0 && x > best[a - 1]; a--) {
				best[a] = best[a - 1];
				at[a] = at[a - 1];
			}
			best[a] = x;
			at[a] = (int32_t)c;
		}
	}
}

/* The scores of a token; gives log sum exp of z. */
static OM_INLINE om_real
om_route_scores(const struct om_route *r, const om_real *z, om_real *score)
{
	const om_real max = om_max(z, r->e);
#pragma omp simd
	for (int64_t c = 0; c < r->e; c++)
		score[c] = om_exp(z[c] - max);
	const om_real sum = om_sum(score, r->e), inverse = 1 / sum;
	if (r->c == OM_ROUTE_SIGMOID) {
#pragma omp simd
		for (int64_t c = 0; c < r->e; c++)
			score[c] = om_sigmoid(z[c]);
	} else {
#pragma omp simd
		for (int64_t c = 0; c < r->e; c++)
			score[c] *= inverse;
	}
	return max + (om_real)log(sum);
}

/* Random numbers in the place of a token's scores: 23 bits, so that sums of two are exact. */
static OM_INLINE void
om_route_draw(const int64_t *draw, int64_t token, int64_t e, om_real *score)
{
	const uint64_t at = (uint64_t)(draw[2] + token);
	for (int64_t c = 0; c < e; c += 4) {
		const struct om_philox at_c = { { (uint32_t)at, (uint32_t)(at >> 32),
		    (uint32_t)draw[1], (uint32_t)(c / 4) } };
		const struct om_philox r = om_philox(at_c, (uint64_t)draw[0]);
		for (int64_t w = 0; w < 4 && c + w < e; w++)
			score[c + w] = (om_real)(r.v[w] >> 9) * (om_real)0x1p-23;
	}
}

/* Tokens [lo, hi) of all that concerns one token. */
static OM_CLONES void
om_route_range(int64_t lo, int64_t hi, const struct om_route *shape, const om_real *z,
    const struct om_route_by *choice, om_real *p, int32_t *idx, om_real *prob, om_real *lse)
{
	const struct om_route r = *shape;
	const struct om_route_by by = *choice;
	const bool normalize = r.j || r.c == OM_ROUTE_CHOSEN, sigmoid = r.c == OM_ROUTE_SIGMOID;
	const om_real factor = (om_real)r.factor;
	for (int64_t i = lo; i < hi; i++) {
		const om_real *zi = z + i * r.e;
		om_real *pi = prob + i * r.e, *best = p + i * r.k, chosen = 0;
		int32_t *at = idx + i * r.k;
		lse[i] = om_route_scores(&r, zi, pi);

		/* what is not chosen by the scores stands in their place meanwhile */
		for (int64_t c = 0; by.bias && c < r.e; c++) {
			om_real x = (r.c == OM_ROUTE_CHOSEN ? zi[c] : pi[c]) + by.bias[c];
			pi[c] = x == x ? x : -INFINITY;
		}
		if (by.draw)
			om_route_draw(by.draw, i, r.e, pi);
		if (!by.uniform)
			om_route_choose(&r, pi, best, at);
		for (int64_t a = 0; by.uniform && a < r.k; a++)
			at[a] = (int32_t)((i * r.k + a) % r.e);
		if (by.bias || by.draw)
			om_route_scores(&r, zi, pi);
		for (int64_t a = 0; a < r.k; a++)
			chosen += best[a] = pi[at[a]];
		for (int64_t a = 0; a < r.k; a++)
			best[a] = factor * (normalize ? best[a] / chosen : best[a]);

		if (sigmoid) {
			const om_real inverse = 1 / om_sum(pi, r.e);
#pragma omp simd
			for (int64_t c = 0; c < r.e; c++)
				pi[c] *= inverse;
		}
	}
}

enum { OM_ROUTE_BLOCK = 64 }; /* experts whose probabilities are summed at a time */

/* e sum f P of one sequence, of which prob [t, e] and cnt [e] are. */
static inline double
om_route_balance(
    int64_t t, int64_t e, int64_t k, const om_real *prob, const int32_t *cnt, int64_t *load)
{
	double balance = 0;
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
	return (double)e * balance / ((double)t * (double)t * (double)k);
}

static inline void
om_route(const struct om_route *r, const om_real *z, struct om_route_by by, om_real *p,
    int32_t *idx, om_real *prob, om_real *lse, int32_t *cnt, int64_t *load, double *aux)
{
	const int64_t t = r->t, e = r->e, k = r->k, n = r->n, part = t / n;
#pragma omp parallel if (r->t * r->e > OM_SERIAL)
	om_route_range(om_lo(t), om_hi(t), r, z, &by, p, idx, prob, lse);

	memset(cnt, 0, (size_t)(n * e) * sizeof *cnt);
	for (int64_t i = 0; i < t * k; i++)
		cnt[i / (part * k) * e + idx[i]]++;
	double balance = 0, square = 0;
	for (int64_t i = 0; i < n; i++)
		balance += om_route_balance(part, e, k, prob + i * part * e, cnt + i * e, load);
	for (int64_t i = 0; i < t; i++)
		square += (double)lse[i] * (double)lse[i];
	aux[0] += balance / (double)n;
	aux[1] += square / (double)t;
}

/* balance: gradient of prob for each token an expert has; square: of z for lse times softmax */
static OM_CLONES void
om_route_bwd_range(int64_t lo, int64_t hi, const struct om_route *shape, om_real balance,
    om_real square, const om_real *dp, const om_real *z, const int32_t *idx, const om_real *prob,
    const om_real *lse, const int32_t *cnt, om_real *dz)
{
	const struct om_route r = *shape;
	const bool normalize = r.j || r.c == OM_ROUTE_CHOSEN, sigmoid = r.c == OM_ROUTE_SIGMOID;
	for (int64_t i = lo; i < hi; i++) {
		const om_real *zi = z + i * r.e, *pi = prob + i * r.e, *dpi = dp + i * r.k;
		const int32_t *at = idx + i * r.k, *count = cnt + i / (r.t / r.n) * r.e;
		om_real *dzi = dz + i * r.e, chosen = 1, along = 0;
		if (normalize) { /* p = c / sum c; of dp only what is not along p counts */
			chosen = 0;
			for (int64_t a = 0; a < r.k; a++) {
				om_real score = sigmoid ? om_sigmoid(zi[at[a]]) : pi[at[a]];
				chosen += score;
				along += dpi[a] * score;
			}
			along /= chosen;
		}
		const om_real weight = (om_real)r.factor / chosen;
		/* the gradient of prob, for the softmax of scores too, then through it */
#pragma omp simd
		for (int64_t c = 0; c < r.e; c++)
			dzi[c] = balance * (om_real)count[c];
		if (!sigmoid) {
			for (int64_t a = 0; a < r.k; a++)
				dzi[at[a]] += (dpi[a] - along) * weight;
			om_real mean = om_dot(dzi, pi, r.e) - square * lse[i];
#pragma omp simd
			for (int64_t c = 0; c < r.e; c++)
				dzi[c] = pi[c] * (dzi[c] - mean);
			continue;
		}
		/* prob = s / sum s */
		om_real mean = om_dot(dzi, pi, r.e);
#pragma omp simd
		for (int64_t c = 0; c < r.e; c++)
			dzi[c] = om_sigmoid(zi[c]);
		om_real inverse = 1 / om_sum(dzi, r.e);
#pragma omp simd
		for (int64_t c = 0; c < r.e; c++) {
			om_real s = dzi[c], ds = (balance * (om_real)count[c] - mean) * inverse;
			dzi[c] = s * (1 - s) * ds + square * lse[i] * om_exp(zi[c] - lse[i]);
		}
		for (int64_t a = 0; a < r.k; a++) {
			om_real s = om_sigmoid(zi[at[a]]);
			dzi[at[a]] += s * (1 - s) * (dpi[a] - along) * weight;
		}
	}
}

static inline void
om_route_bwd(const struct om_route *r, double lb, double zl, const om_real *dp, const om_real *z,
    const int32_t *idx, const om_real *prob, const om_real *lse, const int32_t *cnt, om_real *dz)
{
	const double t = (double)r->t, part = t / (double)r->n;
	const om_real balance = (om_real)(lb * (double)r->e / (part * t * (double)r->k));
	const om_real square = (om_real)(2 * zl / t);
#pragma omp parallel
	om_route_bwd_range(
	    om_lo(r->t), om_hi(r->t), r, balance, square, dp, z, idx, prob, lse, cnt, dz);
}

/* A counting sort. off[i + 1] runs from the start of expert i's rows to their end. */
static inline void
om_route_map(int64_t t, int64_t e, int64_t k, int64_t n, const int32_t *idx, const int32_t *cnt,
    int32_t *row, int32_t *src, int32_t *off)
{
	int32_t start = 0;
	off[0] = 0;
	for (int64_t i = 0; i < e; i++) {
		off[i + 1] = start;
		for (int64_t part = 0; part < n; part++)
			start += cnt[part * e + i];
	}
	for (int64_t i = 0; i < t * k; i++) {
		row[i] = off[idx[i] + 1]++;
		src[row[i]] = (int32_t)i;
	}
}

#define OM_ROUTE_SIZES(t, e, k, n)                                                        \
	_Static_assert((t) >= 1 && (e) >= 1, "route: sizes start at 1");                  \
	_Static_assert((k) >= 1 && (k) <= (e), "route: top-k chooses among the experts"); \
	_Static_assert((n) >= 1 && (t) % (n) == 0, "route: sequences divide the tokens"); \
	_Static_assert((int64_t)(t) * (k) <= INT32_MAX, "route: rows are counted in int32");

#define OM_ROUTE_SHAPE(NAME, t, e, k, j, c, g, q, n, factor)                                      \
	OM_ROUTE_SIZES(t, e, k, n)                                                                \
	_Static_assert((c) >= 0 && (c) < OM_ROUTE_SCORES, "route: no such score");                \
	_Static_assert((g) >= 1 && (e) % (g) == 0, "route: groups divide the experts");           \
	_Static_assert((q) >= 1 && (q) <= (g), "route: groups that take part are some of them");  \
	_Static_assert((k) <= (e) / (g) * (q), "route: top-k fits in the groups that take part"); \
	static const struct om_route NAME##_shape = { t, e, k, j, c, g, q, n, factor };

#define OM_ROUTE(NAME, t, e, k, j, c, g, q, n, factor)                                             \
	OM_ROUTE_SHAPE(NAME, t, e, k, j, c, g, q, n, factor)                                       \
	void NAME(const om_real *z, om_real *p, int32_t *idx, om_real *prob, om_real *lse,         \
	    int32_t *cnt, int64_t *load, double *aux)                                              \
	{                                                                                          \
		om_route(&NAME##_shape, z, (struct om_route_by){ 0 }, p, idx, prob, lse, cnt,      \
		    load, aux);                                                                    \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_route_check((struct om_route_fn){ .plain = NAME }, &NAME##_shape, seed); \
	}

#define OM_ROUTE_BIASED(NAME, t, e, k, j, c, g, q, n, factor)                                    \
	OM_ROUTE_SHAPE(NAME, t, e, k, j, c, g, q, n, factor)                                     \
	_Static_assert((c) != OM_ROUTE_CHOSEN || (g) == (q), "route: logits have no groups");    \
	void NAME(const om_real *z, const om_real *b, om_real *p, int32_t *idx, om_real *prob,   \
	    om_real *lse, int32_t *cnt, int64_t *load, double *aux)                              \
	{                                                                                        \
		om_route(&NAME##_shape, z, (struct om_route_by){ .bias = b }, p, idx, prob, lse, \
		    cnt, load, aux);                                                             \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_route_check(                                                           \
		    (struct om_route_fn){ .biased = NAME }, &NAME##_shape, seed);                \
	}

#define OM_ROUTE_RANDOM(NAME, t, e, k, j, c, g, q, n, factor)                                     \
	OM_ROUTE_SHAPE(NAME, t, e, k, j, c, g, q, n, factor)                                      \
	void NAME(const om_real *z, const int64_t *draw, om_real *p, int32_t *idx, om_real *prob, \
	    om_real *lse, int32_t *cnt, int64_t *load, double *aux)                               \
	{                                                                                         \
		om_route(&NAME##_shape, z, (struct om_route_by){ .draw = draw }, p, idx, prob,    \
		    lse, cnt, load, aux);                                                         \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_route_check(                                                            \
		    (struct om_route_fn){ .random = NAME }, &NAME##_shape, seed);                 \
	}

#define OM_ROUTE_UNIFORM(NAME, t, e, k, j, c, g, q, n, factor)                                    \
	OM_ROUTE_SHAPE(NAME, t, e, k, j, c, g, q, n, factor)                                      \
	_Static_assert((g) == (q), "route: turns are taken in all groups");                       \
	void NAME(const om_real *z, om_real *p, int32_t *idx, om_real *prob, om_real *lse,        \
	    int32_t *cnt, int64_t *load, double *aux)                                             \
	{                                                                                         \
		om_route(&NAME##_shape, z, (struct om_route_by){ .uniform = true }, p, idx, prob, \
		    lse, cnt, load, aux);                                                         \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_route_check(                                                            \
		    (struct om_route_fn){ .uniform = NAME }, &NAME##_shape, seed);                \
	}

#define OM_ROUTE_BWD(NAME, t, e, k, j, c, g, q, n, factor, lb, zl)                              \
	OM_ROUTE_SHAPE(NAME, t, e, k, j, c, g, q, n, factor)                                    \
	void NAME(const om_real *dp, const om_real *z, const int32_t *idx, const om_real *prob, \
	    const om_real *lse, const int32_t *cnt, om_real *dz)                                \
	{                                                                                       \
		om_route_bwd(&NAME##_shape, lb, zl, dp, z, idx, prob, lse, cnt, dz);            \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_route_bwd_check(NAME, &NAME##_shape, lb, zl, seed);                   \
	}

#define OM_ROUTE_MAP(NAME, t, e, k, n)                                                        \
	OM_ROUTE_SIZES(t, e, k, n)                                                            \
	void NAME(                                                                            \
	    const int32_t *idx, const int32_t *cnt, int32_t *row, int32_t *src, int32_t *off) \
	{                                                                                     \
		om_route_map(t, e, k, n, idx, cnt, row, src, off);                            \
	}                                                                                     \
	double NAME##_check(uint64_t seed)                                                    \
	{                                                                                     \
		return om_route_map_check(NAME, t, e, k, n, seed);                            \
	}

/* one of them */
struct om_route_fn {
	void (*plain)(const om_real *, om_real *, int32_t *, om_real *, om_real *, int32_t *,
	    int64_t *, double *);
	void (*biased)(const om_real *, const om_real *, om_real *, int32_t *, om_real *, om_real *,
	    int32_t *, int64_t *, double *);
	void (*random)(const om_real *, const int64_t *, om_real *, int32_t *, om_real *, om_real *,
	    int32_t *, int64_t *, double *);
	void (*uniform)(const om_real *, om_real *, int32_t *, om_real *, om_real *, int32_t *,
	    int64_t *, double *);
};
typedef void om_route_bwd_fn(const om_real *, const om_real *, const int32_t *, const om_real *,
    const om_real *, const int32_t *, om_real *);
typedef void om_route_map_fn(const int32_t *, const int32_t *, int32_t *, int32_t *, int32_t *);
enum { OM_ROUTE_SAMPLES = 64 };

/*
 * idx [t, k], k distinct experts for each token, and their counts in n sequences; every fourth seed
 * takes the first.
 */
OM_CHECK void
om_route_choice(
    int64_t t, int64_t e, int64_t k, int64_t n, uint64_t seed, int32_t *idx, int32_t *cnt)
{
	memset(cnt, 0, (size_t)(n * e) * sizeof *cnt);
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
			cnt[i / (t / n) * e + c]++;
		}
	}
}

/* A token's z as double. */
OM_CHECK const double *
om_route_check_z(int64_t e, const om_real *z, double *room)
{
	for (int64_t c = 0; c < e; c++)
		room[c] = (double)z[c];
	return room;
}

OM_CHECK double
om_route_check(struct om_route_fn run, const struct om_route *r, uint64_t seed)
{
	const int64_t t = r->t, e = r->e, k = r->k, n = r->n;
	om_real *z = om_check_random(t * e, seed, 0), *p = om_check_nan(t * k);
	om_real *prob = om_check_nan(t * e), *lse = om_check_nan(t);
	int32_t *idx = om_check_ints(t * k, 1, seed, 0), *cnt = om_check_ints(n * e, 99, seed, 1);
	int32_t *count = om_check_alloc(n * e, sizeof *count);
	int64_t *load = om_check_alloc(e, sizeof *load);
	double *mass = om_check_alloc(n * e, sizeof *mass),
	       *score = om_check_alloc(e, sizeof *score), *rank = om_check_alloc(e, sizeof *rank);
	double *room = om_check_alloc(e, sizeof *room), *ref_bias = om_check_alloc(e, sizeof *room);
	om_real *bias = om_check_random(e, seed, 1);
	/* the counter's low word overflows within the tokens */
	const int64_t draw[3] = { (int64_t)om_hash(seed, 2), (int64_t)(seed % 99),
		((int64_t)1 << 32) - t / 2 };
	const struct om_route_ref_by by = { run.biased ? ref_bias : NULL, run.random ? draw : NULL,
		run.uniform != NULL };
	double aux[2] = { 0.25, 0.5 }, want[2] = { 0.25, 0.5 };
	bool *allowed = om_check_alloc(e, sizeof *allowed);
	struct om_err ep = { 0 }, eprob = { 0 }, elog = { .scale = 1 }, eaux = { 0 };
	for (int64_t c = 0; c < e; c++)
		load[c] = 1000 + c;
	for (int64_t c = 0; c < n * e; c++)
		mass[c] = count[c] = 0;
	/* ties: every third token has only two different scores */
	for (int64_t i = 0; i < t * e; i++)
		z[i] = i / e % 3 == 2 ? (om_real)(z[i] > 0) : z[i];
	/* of the size of the scores' differences; half the time, all far below 0 */
	for (int64_t c = 0; c < e; c++)
		bias[c] =
		    bias[c] * (om_real)(r->c == 0 ? 1 / (double)e : 0.25) - (seed % 2 ? 3 : 0);
	om_route_check_z(e, bias, ref_bias);
	if (run.biased)
		run.biased(z, bias, p, idx, prob, lse, cnt, load, aux);
	else if (run.random)
		run.random(z, draw, p, idx, prob, lse, cnt, load, aux);
	else
		(run.uniform ? run.uniform : run.plain)(z, p, idx, prob, lse, cnt, load, aux);
	for (int64_t i = 0; i < t; i++) {
		const int64_t part = i * n / t;
		const double *zi = om_route_check_z(e, z + i * e, room);
		double log_sum = om_route_ref_scores(r, zi, score), sum = 0, chosen = 0;
		om_err_add(&elog, lse[i], log_sum);
		want[1] += log_sum * log_sum / (double)t;
		om_route_ref_ranks(r, zi, by, i, score, rank);
		if (!om_route_ref_choice(r, rank, OM_DOUBLE ? 1e-14 : 1e-6, idx + i * k, allowed)) {
			ep.wrong = true;
			continue;
		}
		for (int64_t c = 0; c < e; c++)
			sum += score[c];
		for (int64_t c = 0; c < e; c++) {
			om_err_add(&eprob, prob[i * e + c], score[c] / sum);
			mass[part * e + c] += score[c] / sum;
		}
		for (int64_t a = 0; a < k; a++) {
			chosen += score[idx[i * k + a]];
			count[part * e + idx[i * k + a]]++;
		}
		for (int64_t a = 0; a < k; a++) {
			double weight = score[idx[i * k + a]] / (r->j || r->c == 2 ? chosen : 1);
			om_err_add(&ep, p[i * k + a], r->factor * weight);
		}
	}
	for (int64_t c = 0; c < e; c++) {
		int64_t all = 1000 + c;
		for (int64_t part = 0; part < n; part++) {
			all += count[part * e + c];
			if (cnt[part * e + c] != count[part * e + c])
				ep.wrong = true;
		}
		if (load[c] != all)
			ep.wrong = true;
	}
	want[0] += om_route_ref_balance(r, count, mass);
	om_err_add(&eaux, aux[0], want[0]);
	om_err_add(&eaux, aux[1], want[1]);
	free(z);
	free(p);
	free(prob);
	free(lse);
	free(idx);
	free(cnt);
	free(count);
	free(load);
	free(mass);
	free(score);
	free(rank);
	free(room);
	free(ref_bias);
	free(bias);
	free(allowed);
	return om_worse(om_worse(om_err_value(&ep), om_err_value(&eprob)),
	    om_worse(om_err_value(&elog), om_err_value(&eaux)));
}

/* By Jacobians: of p and prob by the scores, of the scores by z. */
OM_CHECK double
om_route_bwd_check(
    om_route_bwd_fn *run, const struct om_route *r, double lb, double zl, uint64_t seed)
{
	const int64_t t = r->t, e = r->e, k = r->k, n = r->n;
	om_real *dp = om_check_random(t * k, seed, 0), *z = om_check_random(t * e, seed, 1);
	om_real *prob = om_check_alloc(t * e, sizeof *prob), *lse = om_check_alloc(t, sizeof *lse);
	om_real *dz = om_check_nan(t * e);
	int32_t *idx = om_check_alloc(t * k, sizeof *idx);
	int32_t *cnt = om_check_alloc(n * e, sizeof *cnt);
	double *score = om_check_alloc(e, sizeof *score), *want = om_check_alloc(e, sizeof *want);
	double *dscore = om_check_alloc(e, sizeof *dscore), worst = 0;
	double *room = om_check_alloc(e, sizeof *room), *dpi = om_check_alloc(k, sizeof *dpi);
	om_route_choice(t, e, k, n, seed, idx, cnt);
	for (int64_t i = 0; i < t; i++) {
		double sum = 0;
		lse[i] =
		    (om_real)om_route_ref_scores(r, om_route_check_z(e, z + i * e, room), score);
		for (int64_t c = 0; c < e; c++)
			sum += score[c];
		for (int64_t c = 0; c < e; c++)
			prob[i * e + c] = (om_real)(score[c] / sum);
	}
	/* without dp the second time: the losses alone, which it would drown */
	for (int second = 0; second < 2; second++) {
		/* with one expert, all of dz is rounding */
		struct om_err err = { .scale =
					  second ? (lb + zl) / (double)(t * e) : 1 / (double)e };
		for (int64_t i = 0; second && i < t * k; i++)
			dp[i] = 0;
		run(dp, z, idx, prob, lse, cnt, dz);
		for (int64_t s = 0; s < om_samples(t, OM_ROUTE_SAMPLES); s++) {
			const int64_t i = om_sample(s, t, OM_ROUTE_SAMPLES, seed);
			om_route_ref_bwd(r, lb, zl, om_route_check_z(e, z + i * e, room),
			    idx + i * k, om_route_check_z(k, dp + i * k, dpi), cnt + i * n / t * e,
			    score, dscore, want);
			for (int64_t c = 0; c < e; c++)
				om_err_add(&err, dz[i * e + c], want[c]);
		}
		worst = om_worse(worst, om_err_value(&err));
	}
	free(dp);
	free(z);
	free(prob);
	free(lse);
	free(dz);
	free(idx);
	free(cnt);
	free(score);
	free(want);
	free(dscore);
	free(room);
	free(dpi);
	return worst;
}

OM_CHECK double
om_route_map_check(om_route_map_fn *run, int64_t t, int64_t e, int64_t k, int64_t n, uint64_t seed)
{
	int32_t *idx = om_check_alloc(t * k, sizeof *idx);
	int32_t *cnt = om_check_alloc(n * e, sizeof *cnt);
	int32_t *row = om_check_ints(t * k, 9, seed, 0), *src = om_check_ints(t * k, 9, seed, 1);
	int32_t *off = om_check_ints(e + 1, 9, seed, 2), next = 0;
	bool right = true;
	om_route_choice(t, e, k, n, seed, idx, cnt);
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

#endif
