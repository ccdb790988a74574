/*
 * The checks of attention.h's kernels, whatever their core.
 *
 * Sampled rows are (sequence, head, position). A row's error is measured in units of the square
 * root of the sum of its terms' squares, which is what a sum of random terms comes to: a row over
 * thousands of keys is small, and must be as right as one over few.
 */
#ifndef OM_ATTENTION_CHECK_H
#define OM_ATTENTION_CHECK_H

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention_ref.h"

typedef void
om_attention_fn(const om_bf16 *, const om_bf16 *, const om_bf16 *, om_bf16 *, float *, void *);
typedef void om_attention_masked_fn(
    const om_bf16 *, const om_bf16 *, const om_bf16 *, const int32_t *, om_bf16 *, float *, void *);
typedef void
om_attention_bwd_masked_fn(const om_bf16 *, const om_bf16 *, const om_bf16 *, const om_bf16 *,
    const om_bf16 *, const float *, const int32_t *, om_bf16 *, om_bf16 *, om_bf16 *, void *);
typedef void om_attention_bwd_fn(const om_bf16 *, const om_bf16 *, const om_bf16 *, const om_bf16 *,
    const om_bf16 *, const float *, om_bf16 *, om_bf16 *, om_bf16 *, void *);
enum { OM_AT_GUARD = 1024 }; /* elements behind an output that must stay as they are */

/* Sample n of at most total: all when they are few, or ends, edges of tiles, and random ones. */
static int64_t
om_at_sample(int64_t n, int64_t total, int64_t s, int64_t w, uint64_t seed)
{
	const int64_t edge[] = { 0, s - 1, 63, 64, 127, 128, 191, 192, w - 1, w, s - 2, s - 64,
		s - 65, s - 128, s - 129, s / 2 };
	const int64_t at =
	    (int64_t)((om_unit(seed, 99, n) / 3.4641016151377544 + 0.5) * (double)total);
	if (n < 16 && edge[n] >= 0 && edge[n] < s)
		return at / s * s + edge[n];
	return at < 0 ? 0 : at < total ? at : total - 1;
}

/* An output [n] read back; the second run's must be the same, and nothing behind it written. */
static om_bf16 *
om_at_read(const om_bf16 *x, const om_bf16 *again, int64_t n, bool *wrong)
{
	om_bf16 *y = malloc(2 * sizeof *y * (size_t)(n + OM_AT_GUARD)), *z = y + n + OM_AT_GUARD;
	if (!y)
		abort();
	om_check_read(y, x, sizeof *y * (size_t)(n + OM_AT_GUARD));
	om_check_read(z, again, sizeof *y * (size_t)(n + OM_AT_GUARD));
	*wrong |= memcmp(y, z, sizeof *y * (size_t)(n + OM_AT_GUARD)) != 0;
	for (int64_t i = 0; i < n; i++)
		*wrong |= (y[i] & 0x7f80) == 0x7f80; /* NaN or infinity */
	for (int64_t i = n; i < n + OM_AT_GUARD; i++)
		*wrong |= y[i] != 0xffff;
	return y;
}

/*
 * Documents to try a masked kernel with, on the device and in *host, which is the caller's to free;
 * those that are timed are of 512 tokens.
 */
static int32_t *
om_at_documents(int32_t **host, int64_t b, int64_t s, uint64_t seed)
{
	*host = om_attention_documents(b, s, seed);
	for (int64_t i = 0; om_check_timing && i < b * s; i++) {
		(*host)[i] = (int32_t)(i % s / 512 * 512);
		(*host)[b * s + i] = (int32_t)OM_AT_MIN((*host)[i] + 511, s - 1);
	}
	return om_check_copy(*host, 2 * sizeof **host * (size_t)(b * s));
}

/* One of the two, which is not NULL, is looked at. */
static inline double
om_attention_check(om_attention_fn *plain, om_attention_masked_fn *masked, int64_t b, int64_t s,
    int64_t h, int64_t g, int64_t d, int64_t w, double scale, uint64_t seed)
{
	const int64_t nq = b * s * h * d, nk = b * s * g * d, total = b * h * s;
	const int64_t samples = total < 600 ? total : 64;
	om_bf16 *q = om_check_bf16(nq, seed, 0, 1), *k = om_check_bf16(nk, seed, 1, 1);
	om_bf16 *v = om_check_bf16(nk, seed, 2, 1), *out[2];
	float *stat[2];
	void *ws = om_check_nan(sizeof(float));
	int32_t *host = NULL, *doc = masked ? om_at_documents(&host, b, s, seed) : NULL;
	const struct om_attention_ref a = { s, h, g, d, w, scale, .q = OM_BF16(0), .k = OM_BF16(1),
		.v = OM_BF16(2), .doc = host };
	struct om_err eo = { .scale = 1 }, el = { .scale = 1 };
	for (int i = 0; i < 2; i++) {
		out[i] = om_check_nan(sizeof(om_bf16) * (size_t)(nq + OM_AT_GUARD));
		stat[i] = om_check_nan(sizeof(float) * (size_t)(total + OM_AT_GUARD / 2));
		if (masked)
			masked(q, k, v, doc, out[i], stat[i], ws);
		else
			plain(q, k, v, out[i], stat[i], ws);
	}
	om_bf16 *o = om_at_read(out[0], out[1], nq, &eo.wrong);
	float *lse = malloc(sizeof *lse * (size_t)total);
	if (!lse)
		abort();
	om_check_read(lse, stat[0], sizeof *lse * (size_t)total);
#pragma omp parallel for schedule(dynamic)
	for (int64_t n = 0; n < samples; n++) {
		const int64_t at = samples == total ? n : om_at_sample(n, total, s, w, seed);
		const int64_t bb = at / (h * s), hh = at / s % h, i = at % s, gg = hh / (h / g);
		const int64_t query = ((bb * s + i) * h + hh) * d;
		double want[128], spread;
		const double sum = om_attention_ref(&a, query, bb, gg, i, want, &spread);
#pragma omp critical
		{
			om_err_add(&el, (double)lse[at], sum);
			for (int64_t c = 0; c < d; c++)
				om_err_add(
				    &eo, om_bf16_f32(o[query + c]) / spread, want[c] / spread);
		}
	}
	free(o);
	free(lse);
	free(host);
	OM_TIME(masked ? masked(q, k, v, doc, out[0], stat[0], ws)
		       : plain(q, k, v, out[0], stat[0], ws));
	om_check_end();
	/* lse is not rounded to bf16 and has to be 256 times as good */
	return fmax(om_err_value(&eo), 256 * om_err_value(&el));
}

/*
 * The same; o is random, and lse about what the scores would give: the gradient is a function of
 * them as they are. Position own is looked at as a query of head hh, and as a key with every head
 * of its group.
 */
static inline double
om_attention_bwd_check(om_attention_bwd_fn *plain, om_attention_bwd_masked_fn *masked, int64_t b,
    int64_t s, int64_t h, int64_t g, int64_t d, int64_t w, double scale, int64_t floats,
    uint64_t seed)
{
	const int64_t nq = b * s * h * d, nk = b * s * g * d, total = b * h * s, share = h / g;
	const int64_t samples = total < 600 ? total : s * share > 8192 ? 24 : 64;
	om_bf16 *grad = om_check_bf16(nq, seed, 0, 1), *q = om_check_bf16(nq, seed, 1, 1);
	om_bf16 *k = om_check_bf16(nk, seed, 2, 1), *v = om_check_bf16(nk, seed, 3, 1);
	om_bf16 *o = om_check_bf16(nq, seed, 4, 1), *out[2][3], *got[3];
	void *ws = om_check_nan(sizeof(float) * (size_t)floats);
	float *lse = malloc(sizeof *lse * (size_t)total);
	int32_t *host = NULL, *doc = masked ? om_at_documents(&host, b, s, seed) : NULL;
	const struct om_attention_ref a = { s, h, g, d, w, scale, OM_BF16(0), OM_BF16(1),
		OM_BF16(2), OM_BF16(3), OM_BF16(4), { .host = lse }, host };
	struct om_err e[3] = { { .scale = 1 }, { .scale = 1 }, { .scale = 1 } };
	if (!lse)
		abort();
	for (int64_t i = 0; i < total; i++) {
		const int64_t since = host ? host[i / (h * s) * s + i % s] : 0;
		const int64_t sees = OM_AT_MIN(i % s - since + 1, w);
		lse[i] = (float)(log((double)sees) + scale * scale * (double)d / 2 +
				 0.1 * om_unit(seed, 5, i));
	}
	float *stat = om_check_copy(lse, sizeof *lse * (size_t)total);
	for (int i = 0; i < 2; i++) {
		for (int n = 0; n < 3; n++)
			out[i][n] =
			    om_check_nan(sizeof(om_bf16) * (size_t)((n ? nk : nq) + OM_AT_GUARD));
		if (masked)
			masked(grad, q, k, v, o, stat, doc, out[i][0], out[i][1], out[i][2], ws);
		else
			plain(grad, q, k, v, o, stat, out[i][0], out[i][1], out[i][2], ws);
	}
	for (int n = 0; n < 3; n++)
		got[n] = om_at_read(out[0][n], out[1][n], n ? nk : nq, &e[n].wrong);
#pragma omp parallel for schedule(dynamic)
	for (int64_t n = 0; n < samples; n++) {
		const int64_t at = samples == total ? n : om_at_sample(n, total, s, w, seed);
		const int64_t bb = at / (h * s), hh = at / s % h, own = at % s, gg = hh / share;
		double want[3][128], spread[3];
		om_attention_ref_bwd(&a, bb, hh, own, want[0], want[1], want[2], spread);
#pragma omp critical
		for (int m = 0; m < 3; m++)
			for (int64_t c = 0; c < d; c++) {
				const int64_t row = (bb * s + own) * (m ? g : h) + (m ? gg : hh);
				om_err_add(&e[m], om_bf16_f32(got[m][row * d + c]) / spread[m],
				    want[m][c] / spread[m]);
			}
	}
	for (int n = 0; n < 3; n++)
		free(got[n]);
	free(lse);
	free(host);
	OM_TIME(masked ? masked(grad, q, k, v, o, stat, doc, out[0][0], out[0][1], out[0][2], ws)
		       : plain(grad, q, k, v, o, stat, out[0][0], out[0][1], out[0][2], ws));
	om_check_end();
	return fmax(om_err_value(&e[0]), fmax(om_err_value(&e[1]), om_err_value(&e[2])));
}

#endif
