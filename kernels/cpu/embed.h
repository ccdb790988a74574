/*
 * Token embedding.
 *
 *   embed      x [t, n] = w [v, n] at row tok [t]
 *   embed_bwd  dw [v, n], row tok[i], += dx [t, n], row i
 *
 * 0 <= tok < v is the caller's promise. In embed_bwd a thread owns every nth row of dw and adds to
 * it in token order, so frequent tokens spread over threads and no order depends on them.
 */
#ifndef OM_EMBED_H
#define OM_EMBED_H

#include "check.h"

#include "embed_ref.h"

static inline void
om_embed(int64_t t, int64_t n, const int32_t *tok, const om_real *w, om_real *x)
{
#pragma omp parallel for schedule(static) if (t * n > OM_SERIAL)
	for (int64_t i = 0; i < t; i++)
		memcpy(x + i * n, w + tok[i] * n, (size_t)n * sizeof *x);
}

static OM_CLONES void
om_embed_bwd_rows(
    int64_t t, int64_t n, const om_real *dx, const int32_t *tok, om_real *dw, int tid, int nth)
{
	for (int64_t i = 0; i < t; i++) {
		if (tok[i] % nth != tid)
			continue;
		om_real *d = dw + tok[i] * n;
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			d[j] += dx[i * n + j];
	}
}

static inline void
om_embed_bwd(int64_t t, int64_t n, const om_real *dx, const int32_t *tok, om_real *dw)
{
#pragma omp parallel
	om_embed_bwd_rows(t, n, dx, tok, dw, omp_get_thread_num(), omp_get_num_threads());
}

#define OM_EMBED_SIZES(t, n, v)                                          \
	_Static_assert((t) >= 1 && (n) >= 1, "embed: sizes start at 1"); \
	_Static_assert((v) >= 1 && (v) <= INT32_MAX, "embed: tokens are int32");

#define OM_EMBED(NAME, t, n, v)                                     \
	OM_EMBED_SIZES(t, n, v)                                     \
	void NAME(const int32_t *tok, const om_real *w, om_real *x) \
	{                                                           \
		om_embed(t, n, tok, w, x);                          \
	}                                                           \
	double NAME##_check(uint64_t seed)                          \
	{                                                           \
		return om_embed_check(NAME, t, n, v, seed);         \
	}

#define OM_EMBED_BWD(NAME, t, n, v)                                   \
	OM_EMBED_SIZES(t, n, v)                                       \
	void NAME(const om_real *dx, const int32_t *tok, om_real *dw) \
	{                                                             \
		om_embed_bwd(t, n, dx, tok, dw);                      \
	}                                                             \
	double NAME##_check(uint64_t seed)                            \
	{                                                             \
		return om_embed_bwd_check(NAME, t, n, v, seed);       \
	}

enum { OM_EMBED_SAMPLES = 256 };

OM_CHECK double
om_embed_check(void (*run)(const int32_t *, const om_real *, om_real *), int64_t t, int64_t n,
    int64_t v, uint64_t seed)
{
	int32_t *tok = om_check_ints(t, v, seed, 0);
	om_real *w = om_check_random(v * n, seed, 1), *x = om_check_nan(t * n);
	struct om_err e = { .scale = 1 };
	run(tok, w, x);
	for (int64_t i = 0; i < t * n; i++)
		om_err_add(&e, x[i], om_embed_ref(tok, (struct om_in){ w }, n, i / n, i % n));
	free(tok);
	free(w);
	free(x);
	return om_err_value(&e);
}

OM_CHECK double
om_embed_bwd_check(void (*run)(const om_real *, const int32_t *, om_real *), int64_t t, int64_t n,
    int64_t v, uint64_t seed)
{
	/* half of the tokens from a few words, so that rows receive several */
	int32_t *tok = om_check_ints(t, v, seed, 0);
	for (int64_t i = 0; i < t; i += 2)
		tok[i] %= 3;
	om_real *dx = om_check_random(t * n, seed, 1);
	om_real *dw = om_check_random(v * n, seed, 2), *old = om_check_copy(dw, v * n);
	struct om_err e = { .scale = 1 };
	run(dx, tok, dw);
	for (int64_t s = 0; s < om_samples(v * n, OM_EMBED_SAMPLES); s++) {
		int64_t at = om_sample(s, v * n, OM_EMBED_SAMPLES, seed);
		if (s % 2) /* a row that was hit */
			at = tok[s % t] * n + at % n;
		om_err_add(&e, dw[at],
		    (double)old[at] + om_embed_ref_dw((struct om_in){ dx }, tok, t, n, at));
	}
	free(tok);
	free(dx);
	free(dw);
	free(old);
	return om_err_value(&e);
}

#endif
