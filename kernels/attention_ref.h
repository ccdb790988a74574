/*
 * Attention by its definition, in double: what the checks of attention.h compare kernels of every
 * target with. It shares no code with them.
 *
 * Query heads h share g key heads; a position sees itself and the w - 1 before it, of these, where
 * documents are said, those of its own. q, o and their gradients are [b, s, h, d], k and v
 * [b, s, g, d], lse [b, h, s]; doc [2, b, s], of each token the place in its sequence of the first
 * and of the last token of its document.
 */
#ifndef OM_ATTENTION_REF_H
#define OM_ATTENTION_REF_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct om_attention_ref {
	int64_t s, h, g, d, w;
	double scale;
	struct om_in grad, q, k, v, o, lse;
	const int32_t *doc; /* NULL: a sequence is one document */
};

/*
 * Documents to try it with, b sequences' [2, b, s]; free() them. Some are of a few tokens, some
 * longer than a tile, and the last sequence of several is one.
 */
static inline int32_t *
om_attention_documents(int64_t b, int64_t s, uint64_t seed)
{
	int32_t *first = malloc(2 * (size_t)(b * s) * sizeof *first), *last = first + b * s;
	if (!first)
		abort();
	for (int64_t row = 0; row < b; row++)
		for (int64_t at = 0, n; at < s; at += n) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			const int64_t most = seed >> 62 ? s / 2 : 5;
			n = 1 + (int64_t)(seed >> 33) % (most + 1);
			n = n > s - at || (b > 1 && row == b - 1) ? s - at : n;
			for (int64_t i = at; i < at + n; i++) {
				first[row * s + i] = (int32_t)at;
				last[row * s + i] = (int32_t)(at + n - 1);
			}
		}
	return first;
}

static inline bool
om_attention_ref_sees(const struct om_attention_ref *a, int64_t row, int64_t i, int64_t j)
{
	if (j > i || i - j >= a->w)
		return false;
	return !a->doc || a->doc[row * a->s + i] == a->doc[row * a->s + j];
}

/* Room for n rows of d elements. */
static inline double *
om_attention_ref_room(int64_t n, int64_t d)
{
	double *x = calloc((size_t)(n * d), sizeof *x);
	if (!x)
		abort();
	return x;
}

/* A row that starts at first. */
static inline void
om_attention_ref_row(double *to, struct om_in a, int64_t first, int64_t d)
{
	for (int64_t c = 0; c < d; c++)
		to[c] = om_in(a, first + c);
}

static inline double
om_attention_ref_dot(const double *x, const double *y, int64_t d)
{
	double sum = 0;
	for (int64_t c = 0; c < d; c++)
		sum += x[c] * y[c];
	return sum;
}

/*
 * One row of o, of the query whose elements start at `query` and which is position i of sequence
 * `row` for key head `head`. *spread: the square root of the sum of the squared probabilities,
 * which is what a sum of random values comes to, so weighed. Gives lse.
 */
static inline double
om_attention_ref(const struct om_attention_ref *a, int64_t query, int64_t row, int64_t head,
    int64_t i, double *o, double *spread)
{
	double *q = om_attention_ref_room(2, a->d), *x = q + a->d, sum = 0, squares = 0;
	om_attention_ref_row(q, a->q, query, a->d);
	for (int64_t c = 0; c < a->d; c++)
		o[c] = 0;
	for (int64_t j = i < a->w ? 0 : i - a->w + 1; j <= i; j++) {
		const int64_t key = ((row * a->s + j) * a->g + head) * a->d;
		if (!om_attention_ref_sees(a, row, i, j))
			continue;
		om_attention_ref_row(x, a->k, key, a->d);
		const double p = exp(a->scale * om_attention_ref_dot(q, x, a->d));
		om_attention_ref_row(x, a->v, key, a->d);
		sum += p;
		squares += p * p;
		for (int64_t c = 0; c < a->d; c++)
			o[c] += p * x[c];
	}
	for (int64_t c = 0; c < a->d; c++)
		o[c] /= sum;
	*spread = sqrt(squares) / sum;
	free(q);
	return log(sum);
}

/*
 * Rows of dq of query head `head`, and of dk and dv of its key head, at position own of sequence
 * `row`, by o and lse as they are: its pairs as a query, and as a key with every head of the group.
 * spread: of each row, the square root of the sum of its terms' squares.
 */
static inline void
om_attention_ref_bwd(const struct om_attention_ref *a, int64_t row, int64_t head, int64_t own,
    double *dq, double *dk, double *dv, double spread[3])
{
	const int64_t share = a->h / a->g, shared = head / share, d = a->d;
	double *q = om_attention_ref_room(5, d), *k = q + d, *v = k + d, *grad = v + d,
	       *o = grad + d;
	spread[0] = spread[1] = spread[2] = 0;
	for (int64_t c = 0; c < d; c++)
		dq[c] = dk[c] = dv[c] = 0;
	for (int64_t pair = 0; pair < a->s * (1 + share); pair++) {
		const bool query = pair < a->s;
		const int64_t i = query ? own : pair % a->s, j = query ? pair : own;
		const int64_t by = query ? head : shared * share + pair / a->s - 1;
		const int64_t qa = ((row * a->s + i) * a->h + by) * d;
		const int64_t ka = ((row * a->s + j) * a->g + shared) * d;
		if (!om_attention_ref_sees(a, row, i, j))
			continue;
		om_attention_ref_row(grad, a->grad, qa, d);
		om_attention_ref_row(q, a->q, qa, d);
		om_attention_ref_row(k, a->k, ka, d);
		om_attention_ref_row(v, a->v, ka, d);
		om_attention_ref_row(o, a->o, qa, d);
		const double dp = om_attention_ref_dot(grad, v, d);
		const double delta = om_attention_ref_dot(grad, o, d);
		const double p = exp(a->scale * om_attention_ref_dot(q, k, d) -
				     om_in(a->lse, (row * a->h + by) * a->s + i));
		const double ds = a->scale * p * (dp - delta);
		spread[query ? 0 : 1] += a->scale * a->scale * p * p * (dp * dp + delta * delta);
		spread[2] += query ? 0 : p * p;
		for (int64_t c = 0; c < d; c++) {
			dq[c] += query ? ds * k[c] : 0;
			dk[c] += query ? 0 : ds * q[c];
			dv[c] += query ? 0 : p * grad[c];
		}
	}
	for (int m = 0; m < 3; m++)
		spread[m] = sqrt(spread[m]);
	free(q);
}

#endif
