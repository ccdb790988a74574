/*
 * The router by its definition, in double, one token at a time: what the checks of route.h compare
 * kernels of every target with. It shares no code with them.
 */
#ifndef OM_ROUTE_REF_H
#define OM_ROUTE_REF_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "rng.h"

/* A router as its macro says it: the letters of op.def. */
struct om_route {
	int64_t t, e, k;
	int j, c;
	int64_t g, q, n;
	double factor;
};

/* What experts are chosen by: one of these, or the scores. */
struct om_route_ref_by {
	const double *bias;  /* [e], added to scores, or to z where p is softmax of the chosen */
	const int64_t *draw; /* [3]: seed, layer, first token */
	bool turn;           /* each token takes the next k */
};

/* The scores of a token by its z [e]; gives log sum exp of z. */
static inline double
om_route_ref_scores(const struct om_route *r, const double *z, double *score)
{
	double sum = 0;
	for (int64_t i = 0; i < r->e; i++)
		sum += exp(z[i]);
	for (int64_t i = 0; i < r->e; i++)
		score[i] = r->c == 1 ? 1 / (1 + exp(-z[i])) : exp(z[i]) / sum;
	return log(sum);
}

/* What the token's experts are chosen by, the greatest first. */
static inline void
om_route_ref_ranks(const struct om_route *r, const double *z, struct om_route_ref_by by,
    int64_t token, const double *score, double *rank)
{
	for (int64_t i = 0; i < r->e; i++) {
		rank[i] = score[i];
		if (by.bias)
			rank[i] = (r->c == 2 ? z[i] : score[i]) + by.bias[i];
		if (by.turn) /* falling in the order of the turns, from the token's first */
			rank[i] = -(double)((i + r->e - token * r->k % r->e) % r->e);
		if (by.draw) {
			const uint64_t at = (uint64_t)(by.draw[2] + token);
			const struct om_philox at_i = { { (uint32_t)at, (uint32_t)(at >> 32),
			    (uint32_t)by.draw[1], (uint32_t)i / 4 } };
			const struct om_philox x = om_philox(at_i, (uint64_t)by.draw[0]);
			rank[i] = floor(x.v[i % 4] * 0x1p-9) * 0x1p-23;
		}
	}
}

/*
 * Are the experts at [k] those that the definition chooses, in order? Ranks apart by less than
 * `close`, by rounding, may change places, equal ones may not. allowed [e] is room.
 */
static inline bool
om_route_ref_choice(
    const struct om_route *r, const double *rank, double close, const int32_t *at, bool *allowed)
{
	const int64_t size = r->e / r->g;
	for (int64_t i = 0; i < r->e; i++)
		allowed[i] = r->q == r->g;
	double last = 0;
	for (int64_t round = 0; r->q < r->g && round <= r->q; round++) {
		/* the best group that isn't allowed yet; the one too many tells a near tie */
		int64_t best = -1;
		double most = 0;
		for (int64_t i = 0; i < r->g; i++) {
			double first = -INFINITY, second = size > 1 ? -INFINITY : 0;
			for (int64_t a = i * size; a < (i + 1) * size; a++) {
				if (size > 1)
					second = fmax(second, fmin(first, rank[a]));
				first = fmax(first, rank[a]);
			}
			if (!allowed[i * size] && (best < 0 || first + second > most)) {
				best = i;
				most = first + second;
			}
		}
		if (round == r->q && most != last && last - most < close)
			return true;
		for (int64_t i = best * size; round < r->q && i < (best + 1) * size; i++)
			allowed[i] = true;
		last = most;
	}
	for (int64_t a = 0; a < r->k; a++) {
		if (at[a] < 0 || at[a] >= r->e || !allowed[at[a]])
			return false;
		for (int64_t i = 0; i < r->e; i++) {
			const double ahead = rank[i] - rank[at[a]];
			if (allowed[i] && (ahead > close || (ahead == 0 && i < at[a])))
				return false;
		}
		allowed[at[a]] = false; /* taken */
	}
	return true;
}

/* The load-balance loss of counts [n, e] and sums of scores' shares [n, e], factor lb left out. */
static inline double
om_route_ref_balance(const struct om_route *r, const int32_t *count, const double *mass)
{
	double sum = 0;
	for (int64_t i = 0; i < r->n * r->e; i++)
		sum += (double)count[i] * mass[i];
	return sum * (double)r->e * (double)r->n / ((double)(r->t * r->k) * (double)r->t);
}

/*
 * The gradient of z, want [e], by Jacobians: of p and prob by the scores, of the scores by z. Of a
 * token with experts at [k], gradients dp [k] of their weights, count [e] of its sequence; lb and
 * zl are the losses' factors; score and dscore [e] are room.
 */
static inline void
om_route_ref_bwd(const struct om_route *r, double lb, double zl, const double *z, const int32_t *at,
    const double *dp, const int32_t *count, double *score, double *dscore, double *want)
{
	const int64_t t = r->t, e = r->e, k = r->k;
	const double log_sum = om_route_ref_scores(r, z, score);
	double chosen = 0, sum = 0;
	for (int64_t a = 0; a < e; a++) {
		sum += score[a];
		dscore[a] = want[a] = 0;
	}
	for (int64_t a = 0; a < k; a++)
		chosen += score[at[a]];
	for (int64_t a = 0; a < k; a++) {
		const double pa = score[at[a]] / chosen, dpa = r->factor * dp[a];
		for (int64_t b = 0; b < k; b++) { /* d p_a / d score_b */
			const double d = a == b;
			if (r->c == 2) /* to z at once */
				want[at[b]] += dpa * pa * (d - score[at[b]] / chosen);
			else
				dscore[at[b]] += dpa * (r->j ? (d - pa) / chosen : d);
		}
	}
	for (int64_t a = 0; a < e; a++) {
		const double dprob =
		    lb * (double)(e * r->n * count[a]) / (double)(t * k) / (double)t;
		/* scores that are a softmax sum to 1 whatever z */
		for (int64_t b = 0; r->c == 1 && b < e; b++)
			dscore[b] += dprob * ((a == b) - score[a] / sum) / sum;
		dscore[a] += r->c == 1 ? 0 : dprob;
	}
	for (int64_t a = 0; a < e; a++) {
		for (int64_t b = 0; b < e; b++) { /* d score_a / d z_b */
			const double d =
			    r->c == 1 ? (a == b) * (1 - score[a]) : (a == b) - score[b];
			want[b] += dscore[a] * score[a] * d;
		}
		want[a] += zl * 2 * log_sum / (double)t * exp(z[a] - log_sum);
	}
}

#endif
