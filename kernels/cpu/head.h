/*
 * The language model head with its cross-entropy, c tokens at a time: ws [c, v] holds the logits of
 * one chunk, never those of all tokens.
 *
 *   head_loss       lse [t] = log sum exp of x [t, n] w [v, n]^T;
 *                   loss[0] += scale sum over t of lse - logit of the label,
 *                   loss[1] += scale sum over t of lse^2 (PaLM's z-loss, Chowdhery et al., 2022)
 *   head_loss_bwd   dx [t, n] = dlogit w, dw [v, n] += dlogit^T x, where
 *                   dlogit = scale ((1 + 2 z lse) exp(logit - lse) - (1 at label)), the gradient of
 *                   loss[0] + z loss[1], from recomputed logits
 *   head_loss_grad  both in one pass
 *   head_score      head_loss whose nll [t] = lse - logit of the label, or 0 where it is masked
 *
 * A label outside [0, v) is masked: no loss of either kind, no gradient. scale is times
 * ctl[PER_LABEL], by which the host makes up for the step's masked labels.
 */
#ifndef OM_HEAD_H
#define OM_HEAD_H

#include "check.h"
#include "gemm.h"

#include "ctl.h"
#include "head_ref.h"

enum { OM_HEAD_CHUNK = 1024 }; /* the largest c */

/* The losses of a chunk's tokens. */
struct om_head_part {
	double entropy[OM_HEAD_CHUNK], square[OM_HEAD_CHUNK];
};

/*
 * Losses of the rows [lo, hi) of a chunk's logits, and lse; without lse they become dlogit. square
 * is the weight of lse^2 in the objective.
 */
static OM_CLONES void
om_head_softmax(int64_t lo, int64_t hi, int64_t v, double scale, double square, om_real *z,
    const int32_t *label, om_real *lse, struct om_head_part *loss)
{
	for (int64_t i = lo; i < hi; i++) {
		om_real *zi = z + i * v, max = om_max(zi, v);
		const bool masked = label[i] < 0 || label[i] >= v;
		const double picked = masked ? 0 : (double)zi[label[i]];
#pragma omp simd
		for (int64_t j = 0; j < v; j++)
			zi[j] = om_exp(zi[j] - max);
		om_real sum = om_sum(zi, v);
		double log_sum = (double)max + log((double)sum);
		loss->entropy[i] = masked ? 0 : log_sum - picked;
		loss->square[i] = masked ? 0 : log_sum * log_sum;
		if (lse) {
			lse[i] = (om_real)log_sum;
			continue;
		}
		const double all = scale * (1 + 2 * square * log_sum) / (double)sum;
		const om_real factor = masked ? 0 : (om_real)all;
#pragma omp simd
		for (int64_t j = 0; j < v; j++)
			zi[j] *= factor;
		if (!masked)
			zi[label[i]] -= (om_real)scale;
	}
}

/* Rows [lo, hi) of a chunk's logits become dlogit. */
static OM_CLONES void
om_head_dlogit(int64_t lo, int64_t hi, int64_t v, double scale, double square, om_real *z,
    const int32_t *label, const om_real *lse)
{
	for (int64_t i = lo; i < hi; i++) {
		om_real *zi = z + i * v;
		if (label[i] < 0 || label[i] >= v) {
			memset(zi, 0, (size_t)v * sizeof *zi);
			continue;
		}
		const om_real factor = (om_real)(scale * (1 + 2 * square * (double)lse[i]));
#pragma omp simd
		for (int64_t j = 0; j < v; j++)
			zi[j] = factor * om_exp(zi[j] - lse[i]);
		zi[label[i]] -= (om_real)scale;
	}
}

/* z [m, v] = x [m, n] w [v, n]^T, and the two products with its gradient */
static inline void
om_head_logits(int64_t m, int64_t n, int64_t v, const om_real *x, const om_real *w, om_real *z)
{
	om_gemm(&(struct om_gemm){ m, v, n, { x, n, false }, { w, n, true }, z, v, false });
}

static inline void
om_head_products(int64_t m, int64_t n, int64_t v, const om_real *dz, const om_real *x,
    const om_real *w, om_real *dx, om_real *dw)
{
	om_gemm(&(struct om_gemm){ m, n, v, { dz, v, false }, { w, n, false }, dx, n, false });
	om_gemm(&(struct om_gemm){ v, n, m, { dz, v, true }, { x, n, false }, dw, n, true });
}

static inline void
om_head_add(int64_t m, double scale, const struct om_head_part *part, double *loss)
{
	for (int64_t i = 0; i < m; i++) {
		loss[0] += scale * part->entropy[i];
		loss[1] += scale * part->square[i];
	}
}

/* each: lse gets the tokens' losses */
static inline void
om_head_loss(int64_t t, int64_t n, int64_t v, int64_t c, double scale, bool each, const om_real *x,
    const om_real *w, const int32_t *label, om_real *lse, double *loss, om_real *ws)
{
	for (int64_t i = 0; i < t; i += c) {
		const int64_t m = om_min(c, t - i);
		struct om_head_part part;
		om_head_logits(m, n, v, x + i * n, w, ws);
#pragma omp parallel
		om_head_softmax(om_lo(m), om_hi(m), v, 0, 0, ws, label + i, lse + i, &part);
		for (int64_t j = 0; each && j < m; j++)
			lse[i + j] = (om_real)part.entropy[j];
		om_head_add(m, scale, &part, loss);
	}
}

static inline void
om_head_loss_bwd(int64_t t, int64_t n, int64_t v, int64_t c, double scale, double square,
    const om_real *x, const om_real *w, const int32_t *label, const om_real *lse, om_real *dx,
    om_real *dw, om_real *ws)
{
	for (int64_t i = 0; i < t; i += c) {
		const int64_t m = om_min(c, t - i);
		om_head_logits(m, n, v, x + i * n, w, ws);
#pragma omp parallel
		om_head_dlogit(om_lo(m), om_hi(m), v, scale, square, ws, label + i, lse + i);
		om_head_products(m, n, v, ws, x + i * n, w, dx + i * n, dw);
	}
}

static inline void
om_head_loss_grad(int64_t t, int64_t n, int64_t v, int64_t c, double scale, double square,
    const om_real *x, const om_real *w, const int32_t *label, double *loss, om_real *dx,
    om_real *dw, om_real *ws)
{
	for (int64_t i = 0; i < t; i += c) {
		const int64_t m = om_min(c, t - i);
		struct om_head_part part;
		om_head_logits(m, n, v, x + i * n, w, ws);
#pragma omp parallel
		om_head_softmax(om_lo(m), om_hi(m), v, scale, square, ws, label + i, NULL, &part);
		om_head_add(m, scale, &part, loss);
		om_head_products(m, n, v, ws, x + i * n, w, dx + i * n, dw);
	}
}

#define OM_HEAD_SIZES(t, n, v, c)                                               \
	_Static_assert((t) >= 1 && (n) >= 1, "head: sizes start at 1");         \
	_Static_assert((v) >= 1 && (v) <= INT32_MAX, "head: labels are int32"); \
	_Static_assert((c) >= 1 && (c) <= OM_HEAD_CHUNK, "head: a chunk has 1 to 1024 tokens");

#define OM_HEAD_LOSSES(NAME, t, n, v, c, scale, z, each)                                          \
	OM_HEAD_SIZES(t, n, v, c)                                                                 \
	void NAME(const om_real *x, const om_real *w, const int32_t *label, const double *ctl,    \
	    om_real *lse, double *loss, om_real *ws)                                              \
	{                                                                                         \
		om_head_loss(                                                                     \
		    t, n, v, c, (scale)*ctl[OM_CTL_PER_LABEL], each, x, w, label, lse, loss, ws); \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_head_check(NAME, NULL, NULL, each, t, n, v, c, scale, z, seed);         \
	}

#define OM_HEAD_LOSS(NAME, t, n, v, c, scale, z) OM_HEAD_LOSSES(NAME, t, n, v, c, scale, z, false)
#define OM_HEAD_SCORE(NAME, t, n, v, c, scale) OM_HEAD_LOSSES(NAME, t, n, v, c, scale, 0, true)

#define OM_HEAD_LOSS_BWD(NAME, t, n, v, c, scale, z)                                             \
	OM_HEAD_SIZES(t, n, v, c)                                                                \
	void NAME(const om_real *x, const om_real *w, const int32_t *label, const double *ctl,   \
	    const om_real *lse, om_real *dx, om_real *dw, om_real *ws)                           \
	{                                                                                        \
		om_head_loss_bwd(                                                                \
		    t, n, v, c, (scale)*ctl[OM_CTL_PER_LABEL], z, x, w, label, lse, dx, dw, ws); \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_head_check(NULL, NAME, NULL, false, t, n, v, c, scale, z, seed);       \
	}

#define OM_HEAD_LOSS_GRAD(NAME, t, n, v, c, scale, z)                                             \
	OM_HEAD_SIZES(t, n, v, c)                                                                 \
	void NAME(const om_real *x, const om_real *w, const int32_t *label, const double *ctl,    \
	    double *loss, om_real *dx, om_real *dw, om_real *ws)                                  \
	{                                                                                         \
		om_head_loss_grad(                                                                \
		    t, n, v, c, (scale)*ctl[OM_CTL_PER_LABEL], z, x, w, label, loss, dx, dw, ws); \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_head_check(NULL, NULL, NAME, false, t, n, v, c, scale, z, seed);        \
	}

typedef void om_head_loss_fn(const om_real *, const om_real *, const int32_t *, const double *,
    om_real *, double *, om_real *);
typedef void om_head_loss_bwd_fn(const om_real *, const om_real *, const int32_t *, const double *,
    const om_real *, om_real *, om_real *, om_real *);
typedef void om_head_loss_grad_fn(const om_real *, const om_real *, const int32_t *, const double *,
    double *, om_real *, om_real *, om_real *);
enum { OM_HEAD_SAMPLES = 128, OM_HEAD_TOKENS = 48 };

/*
 * All three, whichever is given; each: fwd gives the tokens' losses. Only up to OM_HEAD_TOKENS
 * tokens have a label, spread over the chunks; the others are masked. So the whole loss and dw can
 * be had without t * v * n operations.
 */
OM_CHECK double
om_head_check(om_head_loss_fn *fwd, om_head_loss_bwd_fn *bwd, om_head_loss_grad_fn *grad, bool each,
    int64_t t, int64_t n, int64_t v, int64_t c, double scale, double z, uint64_t seed)
{
	int64_t live = om_min(t, om_min(OM_HEAD_TOKENS, 2 + 50000000 / (n * v)));
	om_real *x = om_check_random(t * n, seed, 0), *w = om_check_random(v * n, seed, 1);
	int32_t *label = om_check_alloc(t, sizeof *label);
	om_real *lse = om_check_nan(t), *dx = om_check_nan(t * n), *ws = om_check_nan(c * v);
	om_real *dw = om_check_random(v * n, seed, 2);
	const double ctl[OM_CTL_N] = { [OM_CTL_PER_LABEL] = 1.25 };
	double loss[2] = { scale, 2 * scale };
	struct om_head_ref o = { .x = { x },
		.w = { w },
		.n = n,
		.v = v,
		.live = live,
		.token = om_check_alloc(live, sizeof *o.token),
		.label = om_check_alloc(live, sizeof *o.label),
		.scale = scale * ctl[OM_CTL_PER_LABEL],
		.z = z };
	struct om_err eloss = { .scale = scale }, esquare = { .scale = scale },
		      elog = { .scale = 1 };
	struct om_err ex = { .scale = scale }, ew = { .scale = scale };

	for (int64_t i = 0; i < v * n; i++) {
		w[i] *= (om_real)(2 / sqrt((double)n)); /* logits of a few units */
		dw[i] *= (om_real)scale;
	}
	om_real *old = om_check_copy(dw, v * n);
	for (int64_t i = 0; i < t; i++)
		label[i] = i % 2 ? -1 : (int32_t)v;
	for (int64_t a = 0; a < live; a++) {
		int64_t i = o.token[a] = live > 1 ? a * (t - 1) / (live - 1) : t - 1;
		label[i] = o.label[a] = (int32_t)(om_hash(seed, (uint64_t)i) % (uint64_t)v);
	}
	om_head_ref(&o);
	for (int64_t a = 0; bwd && a < live; a++)
		lse[o.token[a]] = (om_real)o.lse[a];
	if (fwd)
		fwd(x, w, label, ctl, lse, loss, ws);
	if (bwd)
		bwd(x, w, label, ctl, lse, dx, dw, ws);
	if (grad)
		grad(x, w, label, ctl, loss, dx, dw, ws);
	if (!bwd) {
		om_err_add(&eloss, loss[0], scale + o.loss);
		om_err_add(&esquare, loss[1], 2 * scale + o.square);
	}
	for (int64_t a = 0; !grad && a < live; a++)
		om_err_add(&elog, lse[o.token[a]], each ? o.nll[a] : o.lse[a]);
	for (int64_t i = 0; each && i < t; i++)
		if (label[i] < 0 || label[i] >= v)
			om_err_add(&elog, lse[i], 0);
	for (int64_t s = 0; !fwd && s < om_samples(live * n, OM_HEAD_SAMPLES); s++) {
		int64_t at = om_sample(s, live * n, OM_HEAD_SAMPLES, seed), a = at / n, b = at % n;
		om_err_add(&ex, dx[o.token[a] * n + b], om_head_ref_dx(&o, a, b));
	}
	for (int64_t i = 0; !fwd && i < t; i++) {
		if (label[i] < 0 || label[i] >= v)
			om_err_add(&ex, dx[i * n + i % n], 0);
	}
	for (int64_t s = 0; !fwd && s < om_samples(v * n, OM_HEAD_SAMPLES); s++) {
		int64_t at = om_sample(s, v * n, OM_HEAD_SAMPLES, seed);
		if (v * n > OM_HEAD_SAMPLES && s % 2) /* the row of a label */
			at = o.label[s % live] * n + at % n;
		om_err_add(&ew, dw[at], (double)old[at] + om_head_ref_dw(&o, at / n, at % n));
	}
	free(x);
	free(w);
	free(label);
	free(lse);
	free(dx);
	free(ws);
	free(dw);
	free(old);
	free(o.token);
	free(o.label);
	free(o.prob);
	free(o.lse);
	free(o.nll);
	return om_worse(om_worse(om_err_value(&eloss), om_err_value(&esquare)),
	    om_worse(om_err_value(&elog), om_worse(om_err_value(&ex), om_err_value(&ew))));
}

#endif
