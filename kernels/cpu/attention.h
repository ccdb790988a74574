/*
 * Causal attention with grouped queries and a window, by tiles and without the [s, s] matrix (Dao
 * et al., FlashAttention, 2022, and -2, 2023).
 *
 *   attention      o [b * s, h * d] = softmax(scale q k^T, over the w keys up to the own) v;
 *                  q [b * s, h * d], k, v [b * s, g * d]; query head i reads key head i / (h / g);
 *                  lse [b, h, s] natural logarithm of the sum of exp(scale q k^T); scale > 0
 *   attention_bwd  dq, dk, dv from do; ws [b, h, s] holds rowsum(do o)
 *   cache          k, v [m, n] of rows of any of b sequences become rows of kc, vc [b, s, n]: at
 *                  [2, m] has the position of each, and the sequence; -1: there is no such row
 *   attention_at   o [m, h * d] of such rows, of the keys and values up to their own that kc, vc
 *                  [b, s, g * d] hold; 0 where there is no row
 *
 * Query i sees keys max(0, i - w + 1) to i; w = s is all of them. The masked ones, of sequences of
 * several documents, are given doc [2, b, s], of each token the place in its sequence of the first
 * and of the last token of its document, and a query sees keys of its own document alone. Tiles in
 * which no query sees a key are left out.
 *
 * Forward, a thread computes one tile of queries of one head. Backward, it computes all of a key
 * head: the tiles of dq, dk and dv add up in a fixed order, and scores are recomputed once.
 */
#ifndef OM_ATTENTION_H
#define OM_ATTENTION_H

#include "check.h"
#include "gemm.h"

#include "attention_ref.h"
#include "rows_ref.h"

enum {
	OM_BQ = 56,
	OM_BK = 128,
	OM_AT_KEYS = 128
}; /* queries: whole micro-tiles of the widest machine */

/* The first key that query i sees; begin: of a sequence, first tokens of documents, or NULL. */
static OM_INLINE int64_t
om_key_from(int64_t i, int64_t w, const int32_t *begin)
{
	const int64_t from = i < w ? 0 : i - w + 1;
	return begin && begin[i] > from ? begin[i] : from;
}

/*
 * How many of the keys from j on are up to i, at most cols? Of a tile, query i sees those from
 * om_keys_to(om_key_from(i) - 1) on and before om_keys_to(i).
 */
static OM_INLINE int64_t
om_keys_to(int64_t i, int64_t j, int64_t cols)
{
	return i < j ? 0 : om_min(i - j + 1, cols);
}

/*
 * One step of the online softmax: scores s [rows, OM_BK] of queries from i on and cols keys from j
 * on become exp(scale s - max), zero where not visible; sums and o so far turn to the new max. In
 * the first step every query sees a key.
 */
static OM_CLONES void
om_attention_softmax(om_real *s, int64_t rows, int64_t cols, int64_t i, int64_t j, int64_t w,
    const int32_t *begin, bool first, om_real scale, om_real *max, om_real *sum, om_real *o,
    int64_t ldo, int64_t d)
{
	for (int64_t r = 0; r < rows; r++) {
		om_real *sr = s + r * OM_BK, *out = o + r * ldo;
		const int64_t from = om_keys_to(om_key_from(i + r, w, begin) - 1, j, cols);
		const int64_t to = om_keys_to(i + r, j, cols);
		om_real m = first ? -INFINITY : max[r];
		if (to > from) {
			om_real top = scale * om_max(sr + from, to - from);
			m = top > m ? top : m;
		}
		for (int64_t c = 0; c < from; c++)
			sr[c] = 0;
#pragma omp simd
		for (int64_t c = from; c < to; c++)
			sr[c] = om_exp(scale * sr[c] - m);
		for (int64_t c = to; c < cols; c++)
			sr[c] = 0;
		if (first) {
			sum[r] = om_sum(sr, to);
		} else {
			om_real shrink = max[r] < m ? om_exp(max[r] - m) : 1;
			sum[r] = sum[r] * shrink + om_sum(sr, to);
#pragma omp simd
			for (int64_t c = 0; c < d; c++)
				out[c] *= shrink;
		}
		max[r] = m;
	}
}

static OM_CLONES void
om_attention_finish(int64_t rows, const om_real *max, const om_real *sum, om_real *o, int64_t ldo,
    int64_t d, om_real *lse)
{
	for (int64_t r = 0; r < rows; r++) {
		om_real inverse = 1 / sum[r];
#pragma omp simd
		for (int64_t c = 0; c < d; c++)
			o[r * ldo + c] *= inverse;
		lse[r] = max[r] + (om_real)log(sum[r]);
	}
}

static inline void
om_attention(int64_t b, int64_t s, int64_t h, int64_t g, int64_t d, int64_t w, double scale,
    const om_real *q, const om_real *k, const om_real *v, const int32_t *doc, om_real *o,
    om_real *lse)
{
	const int64_t tiles = (s + OM_BQ - 1) / OM_BQ, ldq = h * d, ldk = g * d;
	/* the longest tiles first, all heads of a tile in turn: even shares, though fixed */
#pragma omp parallel for schedule(static, 1)
	for (int64_t item = 0; item < tiles * b * h; item++) {
		const int64_t i = (tiles - 1 - item / (b * h)) * OM_BQ, rows = om_min(OM_BQ, s - i);
		const int64_t bb = item % (b * h) / h, hh = item % h;
		const int32_t *begin = doc ? doc + bb * s : NULL;
		const int64_t at = bb * s * ldk + hh / (h / g) * d;
		const int64_t start = om_key_from(i, w, begin);
		const om_real *qi = q + (bb * s + i) * ldq + hh * d;
		om_real *oi = o + (bb * s + i) * ldq + hh * d;
		om_real p[OM_BQ * OM_BK], max[OM_BQ], sum[OM_BQ];
		/* from the first key that the first query sees, on no tile's border */
		for (int64_t j = start; j < i + rows; j += OM_BK) {
			const int64_t cols = om_min(OM_BK, i + rows - j);
			const om_real *kj = k + at + j * ldk, *vj = v + at + j * ldk;
			om_gemm_serial(&(struct om_gemm){ rows, cols, d, { qi, ldq, false },
			    { kj, ldk, true }, p, OM_BK, false });
			om_attention_softmax(p, rows, cols, i, j, w, begin, j == start,
			    (om_real)scale, max, sum, oi, ldq, d);
			om_gemm_serial(&(struct om_gemm){ rows, d, cols, { p, OM_BK, false },
			    { vj, ldk, false }, oi, ldq, j > start });
		}
		om_attention_finish(rows, max, sum, oi, ldq, d, lse + (bb * h + hh) * s + i);
	}
}

static OM_CLONES void
om_attention_delta(
    int64_t s, const om_real *grad, const om_real *o, int64_t ldo, int64_t d, om_real *delta)
{
	for (int64_t r = 0; r < s; r++)
		delta[r] = om_dot(grad + r * ldo, o + r * ldo, d);
}

/* Scores p become probabilities, and dp the gradient of the scores. */
static OM_CLONES void
om_attention_dscore(om_real *p, om_real *dp, int64_t rows, int64_t cols, int64_t i, int64_t j,
    int64_t w, const int32_t *begin, om_real scale, const om_real *lse, const om_real *delta)
{
	for (int64_t r = 0; r < rows; r++) {
		om_real *pr = p + r * OM_BK, *dr = dp + r * OM_BK;
		const int64_t from = om_keys_to(om_key_from(i + r, w, begin) - 1, j, cols);
		const int64_t to = om_keys_to(i + r, j, cols);
		for (int64_t c = 0; c < from; c++)
			pr[c] = dr[c] = 0;
#pragma omp simd
		for (int64_t c = from; c < to; c++) {
			pr[c] = om_exp(scale * pr[c] - lse[r]);
			dr[c] = scale * pr[c] * (dr[c] - delta[r]);
		}
		for (int64_t c = to; c < cols; c++)
			pr[c] = dr[c] = 0;
	}
}

/*
 * One query head, pointers at the head; begin and last: of documents, or NULL. With more, dk and dv
 * hold other heads' parts already.
 */
static void
om_attention_bwd_head(int64_t s, int64_t d, int64_t w, const int32_t *begin, const int32_t *last,
    int64_t ldq, int64_t ldk, om_real scale, const om_real *grad, const om_real *q,
    const om_real *k, const om_real *v, const om_real *lse, const om_real *delta, om_real *dq,
    om_real *dk, om_real *dv, bool more)
{
	om_real p[OM_BQ * OM_BK], dp[OM_BQ * OM_BK];
	for (int64_t j = 0; j < s; j += OM_BK) {
		const int64_t cols = om_min(OM_BK, s - j), first = j / OM_BQ * OM_BQ;
		/* up to the last query that sees the last key */
		const int64_t to = om_min(last ? last[j + cols - 1] + 1 : s, j + cols + w - 1);
		const struct om_mat kj = { k + j * ldk, ldk, false };
		const struct om_mat kt = { k + j * ldk, ldk, true };
		const struct om_mat vt = { v + j * ldk, ldk, true };
		for (int64_t i = first; i < om_min(s, to); i += OM_BQ) {
			const int64_t rows = om_min(OM_BQ, s - i);
			const int64_t start = om_key_from(i, w, begin) / OM_BK * OM_BK;
			const struct om_mat qi = { q + i * ldq, ldq, false };
			const struct om_mat gi = { grad + i * ldq, ldq, false };
			const struct om_mat ds = { dp, OM_BK, false };
			const struct om_mat pt = { p, OM_BK, true }, dst = { dp, OM_BK, true };
			const bool add = more || i > first;
			om_real *dqi = dq + i * ldq, *dkj = dk + j * ldk, *dvj = dv + j * ldk;
			om_gemm_serial(&(struct om_gemm){ rows, cols, d, qi, kt, p, OM_BK, false });
			om_gemm_serial(
			    &(struct om_gemm){ rows, cols, d, gi, vt, dp, OM_BK, false });
			om_attention_dscore(
			    p, dp, rows, cols, i, j, w, begin, scale, lse + i, delta + i);
			om_gemm_serial(
			    &(struct om_gemm){ rows, d, cols, ds, kj, dqi, ldq, j > start });
			om_gemm_serial(&(struct om_gemm){ cols, d, rows, dst, qi, dkj, ldk, add });
			om_gemm_serial(&(struct om_gemm){ cols, d, rows, pt, gi, dvj, ldk, add });
		}
	}
}

static inline void
om_attention_bwd(int64_t b, int64_t s, int64_t h, int64_t g, int64_t d, int64_t w, double scale,
    const om_real *grad, const om_real *q, const om_real *k, const om_real *v, const om_real *o,
    const om_real *lse, const int32_t *doc, om_real *dq, om_real *dk, om_real *dv, om_real *ws)
{
	const int64_t ldq = h * d, ldk = g * d, share = h / g;
#pragma omp parallel for schedule(static, 1)
	for (int64_t item = 0; item < b * g; item++) {
		const int64_t row = item / g * s, key = row * ldk + item % g * d;
		const int32_t *begin = doc ? doc + row : NULL, *last = doc ? begin + b * s : NULL;
		for (int64_t c = 0; c < share; c++) {
			const int64_t hh = item % g * share + c, at = row * ldq + hh * d;
			const int64_t stat = row * h + hh * s;
			om_attention_delta(s, grad + at, o + at, ldq, d, ws + stat);
			om_attention_bwd_head(s, d, w, begin, last, ldq, ldk, (om_real)scale,
			    grad + at, q + at, k + key, v + key, lse + stat, ws + stat, dq + at,
			    dk + key, dv + key, c > 0);
		}
	}
}

static inline void
om_cache(int64_t m, int64_t s, int64_t n, const om_real *k, const om_real *v, const int32_t *at,
    om_real *kc, om_real *vc)
{
	for (int64_t r = 0; r < m; r++) {
		const int64_t to = ((int64_t)at[m + r] * s + at[r]) * n;
		if (at[r] < 0)
			continue;
		memcpy(kc + to, k + r * n, (size_t)n * sizeof *k);
		memcpy(vc + to, v + r * n, (size_t)n * sizeof *v);
	}
}

/* A head of a row, keys [from, to) of k and v; what was added so far is scaled as maxima grow. */
static OM_CLONES void
om_attention_at_head(int64_t from, int64_t to, int64_t d, int64_t ldk, om_real scale,
    const om_real *q, const om_real *k, const om_real *v, om_real *out)
{
	om_real p[OM_AT_KEYS], max = -INFINITY, sum = 0;
	memset(out, 0, (size_t)d * sizeof *out);
	for (int64_t j = from; j < to; j += OM_AT_KEYS) {
		const int64_t n = om_min(OM_AT_KEYS, to - j);
		for (int64_t i = 0; i < n; i++)
			p[i] = scale * om_dot(q, k + (j + i) * ldk, d);
		const om_real before = max, here = om_max(p, n);
		max = here > before ? here : before;
		const om_real shrink = om_exp(before - max);
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			p[i] = om_exp(p[i] - max);
		sum = sum * shrink + om_sum(p, n);
#pragma omp simd
		for (int64_t c = 0; c < d; c++)
			out[c] *= shrink;
		for (int64_t i = 0; i < n; i++) {
#pragma omp simd
			for (int64_t c = 0; c < d; c++)
				out[c] += p[i] * v[(j + i) * ldk + c];
		}
	}
	const om_real inverse = to > from ? 1 / sum : 0;
#pragma omp simd
	for (int64_t c = 0; c < d; c++)
		out[c] *= inverse;
}

static inline void
om_attention_at(int64_t m, int64_t s, int64_t h, int64_t g, int64_t d, int64_t w, double scale,
    const om_real *q, const om_real *kc, const om_real *vc, const int32_t *at, om_real *o)
{
	int64_t most = 0;
	for (int64_t r = 0; r < m; r++)
		most = at[r] > most ? at[r] : most;
#pragma omp parallel for schedule(static) if (m * h * d * most > OM_SERIAL)
	for (int64_t i = 0; i < m * h; i++) {
		const int64_t r = i / h, pos = at[r], from = pos < w ? 0 : pos - w + 1;
		const int64_t key = at[m + r] * s * g * d + i % h / (h / g) * d;
		om_attention_at_head(from, pos + 1, d, g * d, (om_real)scale, q + i * d, kc + key,
		    vc + key, o + i * d);
	}
}

#define OM_ATTENTION_SIZES(b, s, h, g, d, w)                                                     \
	_Static_assert(                                                                          \
	    (b) >= 1 && (s) >= 1 && (g) >= 1 && (d) >= 1, "attention: sizes start at 1");        \
	_Static_assert((h) >= (g) && (h) % (g) == 0, "attention: key heads divide query heads"); \
	_Static_assert((w) >= 1 && (w) <= (s), "attention: a window has 1 to all positions");

#define OM_ATTENTION(NAME, b, s, h, g, d, w, scale)                                               \
	OM_ATTENTION_SIZES(b, s, h, g, d, w)                                                      \
	void NAME(const om_real *q, const om_real *k, const om_real *v, om_real *o, om_real *lse) \
	{                                                                                         \
		om_attention(b, s, h, g, d, w, scale, q, k, v, NULL, o, lse);                     \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_attention_check(NAME, NULL, b, s, h, g, d, w, scale, seed);             \
	}

#define OM_ATTENTION_MASKED(NAME, b, s, h, g, d, w, scale)                                  \
	OM_ATTENTION_SIZES(b, s, h, g, d, w)                                                \
	void NAME(const om_real *q, const om_real *k, const om_real *v, const int32_t *doc, \
	    om_real *o, om_real *lse)                                                       \
	{                                                                                   \
		om_attention(b, s, h, g, d, w, scale, q, k, v, doc, o, lse);                \
	}                                                                                   \
	double NAME##_check(uint64_t seed)                                                  \
	{                                                                                   \
		return om_attention_check(NULL, NAME, b, s, h, g, d, w, scale, seed);       \
	}

#define OM_ATTENTION_BWD(NAME, b, s, h, g, d, w, scale)                                      \
	OM_ATTENTION_SIZES(b, s, h, g, d, w)                                                 \
	void NAME(const om_real *grad, const om_real *q, const om_real *k, const om_real *v, \
	    const om_real *o, const om_real *lse, om_real *dq, om_real *dk, om_real *dv,     \
	    om_real *ws)                                                                     \
	{                                                                                    \
		om_attention_bwd(                                                            \
		    b, s, h, g, d, w, scale, grad, q, k, v, o, lse, NULL, dq, dk, dv, ws);   \
	}                                                                                    \
	double NAME##_check(uint64_t seed)                                                   \
	{                                                                                    \
		return om_attention_bwd_check(NAME, NULL, b, s, h, g, d, w, scale, seed);    \
	}

#define OM_ATTENTION_BWD_MASKED(NAME, b, s, h, g, d, w, scale)                                  \
	OM_ATTENTION_SIZES(b, s, h, g, d, w)                                                    \
	void NAME(const om_real *grad, const om_real *q, const om_real *k, const om_real *v,    \
	    const om_real *o, const om_real *lse, const int32_t *doc, om_real *dq, om_real *dk, \
	    om_real *dv, om_real *ws)                                                           \
	{                                                                                       \
		om_attention_bwd(                                                               \
		    b, s, h, g, d, w, scale, grad, q, k, v, o, lse, doc, dq, dk, dv, ws);       \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_attention_bwd_check(NULL, NAME, b, s, h, g, d, w, scale, seed);       \
	}

#define OM_CACHE(NAME, m, b, s, n)                                                                 \
	_Static_assert((m) >= 1 && (b) >= 1 && (s) >= 1 && (n) >= 1, "cache: sizes start at 1");   \
	void NAME(const om_real *k, const om_real *v, const int32_t *at, om_real *kc, om_real *vc) \
	{                                                                                          \
		om_cache(m, s, n, k, v, at, kc, vc);                                               \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_cache_check(NAME, m, b, s, n, seed);                                     \
	}

#define OM_ATTENTION_AT(NAME, m, b, s, h, g, d, w, scale)                                          \
	OM_ATTENTION_SIZES(b, s, h, g, d, w)                                                       \
	void NAME(                                                                                 \
	    const om_real *q, const om_real *kc, const om_real *vc, const int32_t *at, om_real *o) \
	{                                                                                          \
		om_attention_at(m, s, h, g, d, w, scale, q, kc, vc, at, o);                        \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_attention_at_check(NAME, m, b, s, h, g, d, w, scale, seed);              \
	}

typedef void
om_attention_fn(const om_real *, const om_real *, const om_real *, om_real *, om_real *);
typedef void om_attention_bwd_fn(const om_real *, const om_real *, const om_real *, const om_real *,
    const om_real *, const om_real *, om_real *, om_real *, om_real *, om_real *);
typedef void om_attention_masked_fn(
    const om_real *, const om_real *, const om_real *, const int32_t *, om_real *, om_real *);
typedef void
om_attention_bwd_masked_fn(const om_real *, const om_real *, const om_real *, const om_real *,
    const om_real *, const om_real *, const int32_t *, om_real *, om_real *, om_real *, om_real *);
typedef void om_cache_fn(const om_real *, const om_real *, const int32_t *, om_real *, om_real *);
typedef void
om_attention_at_fn(const om_real *, const om_real *, const om_real *, const int32_t *, om_real *);
enum { OM_ATTENTION_SAMPLES = 96 }; /* rows: (sequence, head, position) */

/* One of the two, which is not NULL, is looked at. */
OM_CHECK double
om_attention_check(om_attention_fn *run, om_attention_masked_fn *masked, int64_t b, int64_t s,
    int64_t h, int64_t g, int64_t d, int64_t w, double scale, uint64_t seed)
{
	om_real *q = om_check_random(b * s * h * d, seed, 0),
		*k = om_check_random(b * s * g * d, seed, 1);
	om_real *v = om_check_random(b * s * g * d, seed, 2);
	om_real *o = om_check_nan(b * s * h * d), *lse = om_check_nan(b * h * s);
	int32_t *doc = masked ? om_attention_documents(b, s, seed) : NULL;
	const struct om_attention_ref a = { s, h, g, d, w, scale, .q = { q }, .k = { k },
		.v = { v }, .doc = doc };
	double *want = om_check_alloc(d, sizeof *want), spread;
	struct om_err eo = { .scale = 1 }, el = { .scale = 1 };
	if (masked)
		masked(q, k, v, doc, o, lse);
	else
		run(q, k, v, o, lse);
	for (int64_t n = 0; n < om_samples(b * h * s, OM_ATTENTION_SAMPLES); n++) {
		int64_t at = om_sample(n, b * h * s, OM_ATTENTION_SAMPLES, seed);
		int64_t bb = at / (h * s), hh = at / s % h, i = at % s, gg = hh / (h / g);
		int64_t query = ((bb * s + i) * h + hh) * d;
		om_err_add(&el, lse[at], om_attention_ref(&a, query, bb, gg, i, want, &spread));
		for (int64_t c = 0; c < d; c++)
			om_err_add(&eo, o[query + c], want[c]);
	}
	free(q);
	free(k);
	free(v);
	free(o);
	free(lse);
	free(doc);
	free(want);
	return om_worse(om_err_value(&eo), om_err_value(&el));
}

/*
 * The same; o and lse come from the forward body and count as given. dq is looked at by rows of
 * query heads, dk and dv by rows of key heads.
 */
OM_CHECK double
om_attention_bwd_check(om_attention_bwd_fn *run, om_attention_bwd_masked_fn *masked, int64_t b,
    int64_t s, int64_t h, int64_t g, int64_t d, int64_t w, double scale, uint64_t seed)
{
	om_real *grad = om_check_random(b * s * h * d, seed, 0);
	om_real *q = om_check_random(b * s * h * d, seed, 1);
	om_real *k = om_check_random(b * s * g * d, seed, 2),
		*v = om_check_random(b * s * g * d, seed, 3);
	om_real *o = om_check_nan(b * s * h * d), *lse = om_check_nan(b * h * s);
	om_real *dq = om_check_nan(b * s * h * d), *dk = om_check_nan(b * s * g * d);
	om_real *dv = om_check_nan(b * s * g * d), *ws = om_check_nan(b * h * s);
	double *wq = om_check_alloc(3 * d, sizeof *wq), *wk = wq + d, *wv = wk + d, spread[3];
	int32_t *doc = masked ? om_attention_documents(b, s, seed) : NULL;
	const struct om_attention_ref a = { s, h, g, d, w, scale, { grad }, { q }, { k }, { v },
		{ o }, { lse }, doc };
	struct om_err eq = { .scale = 1 }, ek = { .scale = 1 }, ev = { .scale = 1 };
	om_attention(b, s, h, g, d, w, scale, q, k, v, doc, o, lse);
	if (masked)
		masked(grad, q, k, v, o, lse, doc, dq, dk, dv, ws);
	else
		run(grad, q, k, v, o, lse, dq, dk, dv, ws);
	for (int64_t n = 0; n < om_samples(b * h * s, OM_ATTENTION_SAMPLES); n++) {
		int64_t at = om_sample(n, b * h * s, OM_ATTENTION_SAMPLES, seed);
		int64_t bb = at / (h * s), hh = at / s % h, own = at % s, gg = hh / (h / g);
		om_attention_ref_bwd(&a, bb, hh, own, wq, wk, wv, spread);
		for (int64_t c = 0; c < d; c++) {
			om_err_add(&eq, dq[((bb * s + own) * h + hh) * d + c], wq[c]);
			om_err_add(&ek, dk[((bb * s + own) * g + gg) * d + c], wk[c]);
			om_err_add(&ev, dv[((bb * s + own) * g + gg) * d + c], wv[c]);
		}
	}
	free(grad);
	free(q);
	free(k);
	free(v);
	free(o);
	free(lse);
	free(dq);
	free(dk);
	free(dv);
	free(ws);
	free(doc);
	free(wq);
	return om_worse(om_err_value(&eq), om_worse(om_err_value(&ek), om_err_value(&ev)));
}

/* Rows of the caches that must not be read hold NaN, and must keep it. */
/* Rows that are there have new keys and values, all other bytes of the caches stay. */
OM_CHECK double
om_cache_check(om_cache_fn *run, int64_t m, int64_t b, int64_t s, int64_t n, uint64_t seed)
{
	om_real *k = om_check_random(m * n, seed, 0), *v = om_check_random(m * n, seed, 1);
	om_real *kc = om_check_nan(b * s * n), *vc = om_check_nan(b * s * n);
	om_real *kw = om_check_nan(b * s * n), *vw = om_check_nan(b * s * n);
	int32_t *at = om_check_alloc(2 * m, sizeof *at);
	const size_t bytes = (size_t)(b * s * n) * sizeof *kc;
	om_rows_ref(m, b, s, seed, at);
	for (int64_t i = 0; i < m * n; i++) {
		const int64_t r = i / n, to = (at[m + r] * s + at[r]) * n + i % n;
		if (at[r] >= 0) {
			kw[to] = k[i];
			vw[to] = v[i];
		}
	}
	run(k, v, at, kc, vc);
	const bool same = !memcmp(kc, kw, bytes) && !memcmp(vc, vw, bytes);
	free(k);
	free(v);
	free(kc);
	free(vc);
	free(kw);
	free(vw);
	free(at);
	return same ? 0 : OM_WRONG;
}

/* What a row must not see is NaN, unless another one sees it. */
OM_CHECK double
om_attention_at_check(om_attention_at_fn *run, int64_t m, int64_t b, int64_t s, int64_t h,
    int64_t g, int64_t d, int64_t w, double scale, uint64_t seed)
{
	const int64_t n = b * s * g * d;
	om_real *q = om_check_random(m * h * d, seed, 0), *o = om_check_nan(m * h * d);
	om_real *k = om_check_random(n, seed, 1), *v = om_check_random(n, seed, 2);
	om_real *kc = om_check_nan(n), *vc = om_check_nan(n);
	int32_t *at = om_check_alloc(2 * m, sizeof *at);
	double *want = om_check_alloc(d, sizeof *want), spread;
	const struct om_attention_ref a = { s, h, g, d, w, scale, .q = { q }, .k = { k },
		.v = { v } };
	struct om_err e = { .scale = 1 };
	om_rows_ref(m, b, s, seed, at);
	for (int64_t r = 0; r < m; r++)
		for (int64_t j = at[r] - w + 1 > 0 ? at[r] - w + 1 : 0; j <= at[r]; j++) {
			const int64_t row = (at[m + r] * s + j) * g * d;
			memcpy(kc + row, k + row, (size_t)(g * d) * sizeof *k);
			memcpy(vc + row, v + row, (size_t)(g * d) * sizeof *v);
		}
	run(q, kc, vc, at, o);
	for (int64_t x = 0; x < om_samples(m * h, OM_ATTENTION_SAMPLES); x++) {
		const int64_t i = om_sample(x, m * h, OM_ATTENTION_SAMPLES, seed), r = i / h;
		memset(want, 0, (size_t)d * sizeof *want);
		if (at[r] >= 0)
			om_attention_ref(
			    &a, i * d, at[m + r], i % h / (h / g), at[r], want, &spread);
		for (int64_t c = 0; c < d; c++)
			om_err_add(&e, o[i * d + c], want[c]);
	}
	free(q);
	free(o);
	free(k);
	free(v);
	free(kc);
	free(vc);
	free(at);
	free(want);
	return om_err_value(&e);
}

#endif
