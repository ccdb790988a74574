/*
 * The update. ctl [9], fp64, holds the step's scalars.
 *
 *   sumsq   ctl[NORM2] += sum of g [n] squared
 *   clip    ctl[COEF] is what gradients and loss are multiplied by to be those of the step, and
 *           norm = ctl[COEF] sqrt(ctl[NORM2]); then ctl[COEF] *= min(1, max / (norm + 1e-6)), if
 *           max > 0. ctl[SKIPPED] = 1 if norm or loss[0] is not finite, or COEF loss[0] >
 *           ctl[LOSS_LIMIT], or norm > ctl[NORM_LIMIT]; otherwise 0
 *   share_ctl  own's COEF and SKIPPED are those of ctl
 *   adamw   g COEF drives the moments m, v; w -= lr (mhat / (sqrt(vhat) + eps) + decay w), where
 *           mhat = m / BIAS1, vhat = v / BIAS2, lr = LR lr_scale (Loshchilov and Hutter, 2019).
 *           A skipped step leaves w, m and v as they are.
 *   adamw_master  the same of a master in w's place; w is its rounding to bf16
 *   adamw_drawn   the same with m and v in bf16: each becomes one of the two neighbours of what it
 *           is, the nearer the likelier, by 16 bits that lots say (rng.h)
 *   bias_update  b [n] += gamma sign(mean - load), the mean being of each e neighbours' load [n]:
 *           the routers' biases of balancing without a loss (Wang et al., 2024). A skipped step
 *           leaves b as it is.
 *
 * sumsq adds OM_SUMSQ_PARTS partial sums in order, however many threads computed them.
 */
#ifndef OM_ADAMW_H
#define OM_ADAMW_H

#include "adamw_ref.h"
#include "drawn.h"
#include "round.h"

enum { OM_SUMSQ_PARTS = 256, OM_SUMSQ_LANES = 16 };

static OM_CLONES double
om_sumsq_range(int64_t lo, int64_t hi, const om_real *g)
{
	double lane[OM_SUMSQ_LANES] = { 0 };
	int64_t i = lo;
	for (; i + OM_SUMSQ_LANES <= hi; i += OM_SUMSQ_LANES) {
		for (int l = 0; l < OM_SUMSQ_LANES; l++)
			lane[l] += (double)g[i + l] * (double)g[i + l];
	}
	for (int l = 0; i < hi; i++, l++)
		lane[l] += (double)g[i] * (double)g[i];
	for (int l = 1; l < OM_SUMSQ_LANES; l++)
		lane[0] += lane[l];
	return lane[0];
}

static inline void
om_sumsq(int64_t n, const om_real *g, double *ctl)
{
	double part[OM_SUMSQ_PARTS];
#pragma omp parallel for schedule(static)
	for (int64_t p = 0; p < OM_SUMSQ_PARTS; p++)
		part[p] = om_sumsq_range(n * p / OM_SUMSQ_PARTS, n * (p + 1) / OM_SUMSQ_PARTS, g);
	for (int p = 0; p < OM_SUMSQ_PARTS; p++)
		ctl[OM_CTL_NORM2] += part[p];
}

static inline void
om_clip(double max, const double *loss, double *ctl)
{
	const double coef = ctl[OM_CTL_COEF], norm = coef * sqrt(ctl[OM_CTL_NORM2]);
	if (max > 0)
		ctl[OM_CTL_COEF] = coef * fmin(1, max / (norm + 1e-6));
	ctl[OM_CTL_SKIPPED] = !isfinite(norm) || !isfinite(loss[0]) ||
			      coef * loss[0] > ctl[OM_CTL_LOSS_LIMIT] ||
			      norm > ctl[OM_CTL_NORM_LIMIT];
}

struct om_adamw {
	om_real beta1, beta1c, beta2, beta2c; /* c: one minus */
	om_real coef, unbias1, unbias2, eps, decay, lr;
};

/* One weight; gives the new one. */
static OM_INLINE om_real
om_adamw_one(const struct om_adamw *c, om_real g, om_real w, om_real *m, om_real *v)
{
	g *= c->coef;
	*m = c->beta1 * *m + c->beta1c * g;
	*v = c->beta2 * *v + c->beta2c * g * g;
	om_real step = *m * c->unbias1 / ((om_real)sqrt(*v * c->unbias2) + c->eps);
	return w - c->lr * (step + c->decay * w);
}

static OM_CLONES void
om_adamw_range(int64_t lo, int64_t hi, const struct om_adamw *a, const om_real *g, om_real *w,
    om_real *m, om_real *v)
{
	const struct om_adamw c = *a;
#pragma omp simd
	for (int64_t i = lo; i < hi; i++) {
		om_real mi = m[i], vi = v[i];
		w[i] = om_adamw_one(&c, g[i], w[i], &mi, &vi);
		m[i] = mi;
		v[i] = vi;
	}
}

/* Of a piece, of which element lo has that index. */
static OM_CLONES void
om_adamw_drawn_range(int64_t lo, int64_t hi, const struct om_adamw *a, const om_real *g, om_real *w,
    om_real *m, om_real *v, int64_t key, int64_t tensor, int64_t index)
{
	const struct om_adamw c = *a;
	uint32_t draw[OM_DRAWN_MANY + 4];
	for (int64_t n; lo < hi; lo += n, index += n) {
		n = om_min(hi - lo, OM_DRAWN_MANY);
		const uint32_t *word = om_drawn_words(key, tensor, index, n, draw);
#pragma omp simd
		for (int64_t i = lo; i < lo + n; i++) {
			const uint32_t bits = word[i - lo];
			om_real mi = m[i], vi = v[i];
			w[i] = om_adamw_one(&c, g[i], w[i], &mi, &vi);
			m[i] = (om_real)om_drawn((float)mi, bits & 0xffff);
			v[i] = (om_real)om_drawn((float)vi, bits >> 16);
		}
	}
}

/* Elements of several pieces. */
static inline void
om_adamw_pieces(int64_t lo, int64_t hi, const struct om_adamw *a, const int64_t *lots,
    const om_real *g, om_real *w, om_real *m, om_real *v)
{
	for (struct om_drawn_piece p; lo < hi; lo = p.end) {
		p = om_drawn_find(lots, m, lo, hi);
		om_adamw_drawn_range(
		    lo, p.end, a, g, w, m, v, lots[OM_LOTS_KEY], p.tensor, p.index);
	}
}

/* rounded: NULL, or where w is a master, the weights; lots: NULL, or how moments are drawn. */
static inline void
om_adamw(int64_t n, double beta1, double beta2, double eps, double decay, double lr_scale,
    const om_real *g, const double *ctl, const int64_t *lots, om_real *rounded, om_real *w,
    om_real *m, om_real *v)
{
	if (ctl[OM_CTL_SKIPPED] != 0)
		return;
	const struct om_adamw a = {
		.beta1 = (om_real)beta1,
		.beta1c = (om_real)(1 - beta1),
		.beta2 = (om_real)beta2,
		.beta2c = (om_real)(1 - beta2),
		.coef = (om_real)ctl[OM_CTL_COEF],
		.unbias1 = (om_real)(1 / ctl[OM_CTL_BIAS1]),
		.unbias2 = (om_real)(1 / ctl[OM_CTL_BIAS2]),
		.eps = (om_real)eps,
		.decay = (om_real)decay,
		.lr = (om_real)(ctl[OM_CTL_LR] * lr_scale),
	};
#pragma omp parallel
	{
		if (lots)
			om_adamw_pieces(om_lo(n), om_hi(n), &a, lots, g, w, m, v);
		else
			om_adamw_range(om_lo(n), om_hi(n), &a, g, w, m, v);
		if (rounded)
			om_round_range(om_lo(n), om_hi(n), w, rounded);
	}
}

/* Integers: a load that is the mean exactly leaves its bias alone. */
static inline void
om_bias_update(
    int64_t n, int64_t e, double gamma, const int64_t *load, const double *ctl, om_real *b)
{
	if (ctl[OM_CTL_SKIPPED] != 0)
		return;
	for (int64_t i = 0; i < n; i += e) {
		int64_t sum = 0;
		for (int64_t c = i; c < i + e; c++)
			sum += load[c];
		for (int64_t c = i; c < i + e; c++)
			b[c] +=
			    (om_real)gamma * (om_real)((load[c] * e < sum) - (load[c] * e > sum));
	}
}

#define OM_SUMSQ(NAME, n)                                    \
	_Static_assert((n) >= 1, "sumsq: sizes start at 1"); \
	void NAME(const om_real *g, double *ctl)             \
	{                                                    \
		om_sumsq(n, g, ctl);                         \
	}                                                    \
	double NAME##_check(uint64_t seed)                   \
	{                                                    \
		return om_sumsq_check(NAME, n, seed);        \
	}

#define OM_CLIP(NAME, max)                             \
	void NAME(const double *loss, double *ctl)     \
	{                                              \
		om_clip(max, loss, ctl);               \
	}                                              \
	double NAME##_check(uint64_t seed)             \
	{                                              \
		return om_clip_check(NAME, max, seed); \
	}

#define OM_SHARE_CTL(NAME)                                 \
	void NAME(const double *ctl, double *own)          \
	{                                                  \
		own[OM_CTL_COEF] = ctl[OM_CTL_COEF];       \
		own[OM_CTL_SKIPPED] = ctl[OM_CTL_SKIPPED]; \
	}                                                  \
	double NAME##_check(uint64_t seed)                 \
	{                                                  \
		return om_share_ctl_check(NAME, seed);     \
	}

#define OM_ADAMW(NAME, n, beta1, beta2, eps, decay, lr_scale)                                   \
	_Static_assert((n) >= 1, "adamw: sizes start at 1");                                    \
	void NAME(const om_real *g, const double *ctl, om_real *w, om_real *m, om_real *v)      \
	{                                                                                       \
		om_adamw(n, beta1, beta2, eps, decay, lr_scale, g, ctl, NULL, NULL, w, m, v);   \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_adamw_check(NAME, NULL, n, beta1, beta2, eps, decay, lr_scale, seed); \
	}

#define OM_ADAMW_MASTER(NAME, n, beta1, beta2, eps, decay, lr_scale)                            \
	_Static_assert((n) >= 1, "adamw_master: sizes start at 1");                             \
	void NAME(const om_real *g, const double *ctl, om_real *w, om_real *master, om_real *m, \
	    om_real *v)                                                                         \
	{                                                                                       \
		om_adamw(n, beta1, beta2, eps, decay, lr_scale, g, ctl, NULL, w, master, m, v); \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_adamw_check(NULL, NAME, n, beta1, beta2, eps, decay, lr_scale, seed); \
	}

#define OM_ADAMW_DRAWN(NAME, n, beta1, beta2, eps, decay, lr_scale)                             \
	_Static_assert((n) >= 1, "adamw_drawn: sizes start at 1");                              \
	void NAME(const om_real *g, const double *ctl, const int64_t *lots, om_real *w,         \
	    om_real *master, om_real *m, om_real *v)                                            \
	{                                                                                       \
		om_adamw(n, beta1, beta2, eps, decay, lr_scale, g, ctl, lots, w, master, m, v); \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_adamw_drawn_check(NAME, n, beta1, beta2, eps, decay, lr_scale, seed); \
	}

#define OM_BIAS_UPDATE(NAME, n, e, gamma)                                                         \
	_Static_assert((e) >= 1 && (n) >= (e) && (n) % (e) == 0, "bias_update: rows of experts"); \
	void NAME(const int64_t *load, const double *ctl, om_real *b)                             \
	{                                                                                         \
		om_bias_update(n, e, gamma, load, ctl, b);                                        \
	}                                                                                         \
	double NAME##_check(uint64_t seed)                                                        \
	{                                                                                         \
		return om_bias_update_check(NAME, n, e, gamma, seed);                             \
	}

OM_CHECK double
om_sumsq_check(void (*run)(const om_real *, double *), int64_t n, uint64_t seed)
{
	om_real *g = om_check_random(n, seed, 0);
	double ctl[OM_CTL_N] = { [OM_CTL_NORM2] = 0.25 }, want = 0.25;
	struct om_err e = { 0 };
	run(g, ctl);
	for (int64_t i = 0; i < n; i++)
		want += (double)g[i] * (double)g[i];
	for (int i = 0; i < OM_CTL_N; i++)
		om_err_add(&e, ctl[i], i == OM_CTL_NORM2 ? want : 0);
	free(g);
	return om_err_value(&e);
}

OM_CHECK double
om_clip_check(void (*run)(const double *, double *), double max, uint64_t seed)
{
	struct om_clip_ref test[OM_CLIP_REFS];
	struct om_err e = { 0 };
	om_clip_refs(max, 2 + fabs(om_unit(seed, 0)), test);
	for (int i = 0; i < OM_CLIP_REFS; i++) {
		const double loss[2] = { test[i].loss / test[i].coef, NAN };
		double before[OM_CTL_N], ctl[OM_CTL_N];
		om_clip_ref_before(&test[i], before);
		memcpy(ctl, before, sizeof ctl);
		run(loss, ctl);
		e.wrong |= !om_clip_ref_right(&test[i], before, ctl);
		if (isfinite(test[i].norm))
			om_err_add(&e, ctl[OM_CTL_COEF], om_clip_ref_factor(&test[i], max));
	}
	return om_err_value(&e);
}

OM_CHECK double
om_share_ctl_check(void (*run)(const double *, double *), uint64_t seed)
{
	double ctl[OM_CTL_N], own[OM_CTL_N], was[OM_CTL_N];
	for (int i = 0; i < OM_CTL_N; i++) {
		ctl[i] = om_unit(seed, (uint64_t)i);
		own[i] = was[i] = om_unit(seed + 1, (uint64_t)i);
	}
	run(ctl, own);
	return om_share_ctl_right(ctl, was, own) ? 0 : OM_WRONG;
}

/* Of one without a master, or of one with, in which w is that. */
OM_CHECK double
om_adamw_check(void (*plain)(const om_real *, const double *, om_real *, om_real *, om_real *),
    void (*master)(const om_real *, const double *, om_real *, om_real *, om_real *, om_real *),
    int64_t n, double beta1, double beta2, double eps, double decay, double lr_scale, uint64_t seed)
{
	const struct om_adamw_ref ref = { beta1, beta2, eps, decay, lr_scale };
	om_real *rounded = om_check_nan(n);
	om_real *g = om_check_random(n, seed, 0), *w = om_check_random(n, seed, 1);
	om_real *m = om_check_random(n, seed, 2), *v = om_check_random(n, seed, 3);
	for (int64_t i = 0; i < n; i++)
		v[i] = v[i] * v[i] + (om_real)0.25; /* so that no step dwarfs the others */
	om_real *w0 = om_check_copy(w, n), *m0 = om_check_copy(m, n), *v0 = om_check_copy(v, n);
	/* NaN: only clip looks at norm and limits */
	double ctl[OM_CTL_N] = { 0.125, 0.1, 0.05, NAN, 0.7, NAN, NAN, 1 };
	struct om_err ew = { .scale = 1 }, em = { .scale = 1 }, ev = { 0 };

	plain ? plain(g, ctl, w, m, v) : master(g, ctl, rounded, w, m, v);
	for (int64_t i = 0; i < n; i++)
		ew.wrong |= !isnan(rounded[i]);
	if (memcmp(w, w0, (size_t)n * sizeof *w) || memcmp(m, m0, (size_t)n * sizeof *m) ||
	    memcmp(v, v0, (size_t)n * sizeof *v))
		ew.wrong = true;
	ctl[OM_CTL_SKIPPED] = 0;
	plain ? plain(g, ctl, w, m, v) : master(g, ctl, rounded, w, m, v);
	for (int64_t i = 0; i < n; i++) {
		ew.wrong |= master && rounded[i] != (om_real)om_check_bf16((float)w[i]);
		double wi = w0[i], mi = m0[i], vi = v0[i];
		om_adamw_ref(&ref, ctl, g[i], &wi, &mi, &vi);
		om_err_add(&ew, w[i], wi);
		om_err_add(&em, m[i], mi);
		om_err_add(&ev, v[i], vi);
	}
	free(rounded);
	free(g);
	free(w);
	free(m);
	free(v);
	free(w0);
	free(m0);
	free(v0);
	return om_worse(om_err_value(&ew), om_worse(om_err_value(&em), om_err_value(&ev)));
}

OM_CHECK double
om_adamw_drawn_check(void (*run)(const om_real *, const double *, const int64_t *, om_real *,
			 om_real *, om_real *, om_real *),
    int64_t n, double beta1, double beta2, double eps, double decay, double lr_scale, uint64_t seed)
{
	const struct om_adamw_ref ref = { beta1, beta2, eps, decay, lr_scale };
	om_real *g = om_check_random(n, seed, 0), *w = om_check_random(n, seed, 1);
	om_real *m = om_check_random(n, seed, 2), *v = om_check_random(n, seed, 3);
	om_real *rounded = om_check_nan(n);
	int64_t lots[OM_LOTS_REF];
	const int64_t size = sizeof *m, away = (const char *)m - (const char *)lots;
	double ctl[OM_CTL_N] = { 0.125, 0.1, 0.05, NAN, 0.7, NAN, NAN, 1 };
	struct om_err e = { .scale = 1 };

	om_lots_ref(lots, away, size, n, 1, seed);
	for (int64_t i = 0; i < n; i++) {
		m[i] = (om_real)om_check_bf16((float)m[i]);
		v[i] = (om_real)om_check_bf16((float)(v[i] * v[i] + (om_real)0.25));
	}
	om_real *w0 = om_check_copy(w, n), *m0 = om_check_copy(m, n), *v0 = om_check_copy(v, n);
	run(g, ctl, lots, rounded, w, m, v);
	for (int64_t i = 0; i < n; i++)
		e.wrong |= !isnan(rounded[i]) || w[i] != w0[i] || m[i] != m0[i] || v[i] != v0[i];
	ctl[OM_CTL_SKIPPED] = 0;
	run(g, ctl, lots, rounded, w, m, v);
	for (int64_t i = 0; i < n; i++) {
		const uint32_t bits = om_lots_ref_word(lots, away, size, i);
		double wi = w0[i], mi = m0[i], vi = v0[i];
		om_adamw_ref(&ref, ctl, g[i], &wi, &mi, &vi);
		om_err_add(&e, w[i], wi);
		e.wrong |= rounded[i] != (om_real)om_check_bf16((float)w[i]);
		e.wrong |= !om_drawn_right(
		    m[i], mi, 0x1p-21 * (fabs((double)m0[i]) + fabs((double)g[i])), bits & 0xffff);
		e.wrong |= !om_drawn_right(v[i], vi, 0x1p-21 * vi, bits >> 16);
	}
	free(rounded);
	free(g);
	free(w);
	free(m);
	free(v);
	free(w0);
	free(m0);
	free(v0);
	return om_err_value(&e);
}

OM_CHECK double
om_bias_update_check(void (*run)(const int64_t *, const double *, om_real *), int64_t n, int64_t e,
    double gamma, uint64_t seed)
{
	om_real *b = om_check_random(n, seed, 0), *b0 = om_check_copy(b, n);
	int32_t *small = om_check_ints(n, 9, seed, 1); /* some loads are the mean */
	int64_t *load = om_check_alloc(n, sizeof *load);
	double ctl[OM_CTL_N] = { [OM_CTL_SKIPPED] = 1 };
	struct om_err err = { .scale = 1 };

	for (int64_t i = 0; i < n; i++)
		load[i] = small[i] + (seed % 2 ? 0 : (int64_t)1 << 40);
	run(load, ctl, b);
	if (memcmp(b, b0, (size_t)n * sizeof *b))
		err.wrong = true;
	ctl[OM_CTL_SKIPPED] = 0;
	run(load, ctl, b);
	for (int64_t i = 0; i < n; i++)
		om_err_add(&err, b[i], (double)b0[i] + om_bias_ref(load, i, e, gamma));
	free(b);
	free(b0);
	free(small);
	free(load);
	return om_err_value(&err);
}

#endif
