/*
 * The update: a step's scalars, and by its definition, in double, what the checks of adamw.h
 * compare kernels of every target with. The definitions share no code with the kernels.
 */
#ifndef OM_ADAMW_REF_H
#define OM_ADAMW_REF_H

/* ctl's entries, runtime/om.h's enum om_ctl */
enum {
	OM_CTL_LR,
	OM_CTL_BIAS1,
	OM_CTL_BIAS2,
	OM_CTL_NORM2,
	OM_CTL_COEF,
	OM_CTL_LOSS_LIMIT,
	OM_CTL_NORM_LIMIT,
	OM_CTL_SKIPPED,
	OM_CTL_N
};

#ifndef __CUDACC__

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* AdamW's constants, in the order of op.def. */
struct om_adamw_ref {
	double beta1, beta2, eps, decay, lr_scale;
};

/* A step of one weight. */
static inline void
om_adamw_ref(
    const struct om_adamw_ref *a, const double *ctl, double g, double *w, double *m, double *v)
{
	g *= ctl[OM_CTL_COEF];
	*m = a->beta1 * *m + (1 - a->beta1) * g;
	*v = a->beta2 * *v + (1 - a->beta2) * g * g;
	const double step = *m / ctl[OM_CTL_BIAS1] / (sqrt(*v / ctl[OM_CTL_BIAS2]) + a->eps);
	*w -= ctl[OM_CTL_LR] * a->lr_scale * (step + a->decay * *w);
}

/* What bias_update adds to bias i, by the loads of its e neighbours. */
static inline double
om_bias_ref(const int64_t *load, int64_t i, int64_t e, double gamma)
{
	double mean = 0; /* less load[i] */
	for (int64_t c = i / e * e; c < i / e * e + e; c++)
		mean += (double)(load[c] - load[i]) / (double)e;
	return fabs(mean) > 0.5 / (double)e ? mean > 0 ? gamma : -gamma : 0;
}

/* A case of clip: what it sees, and whether the step is skipped. */
struct om_clip_ref {
	double norm, loss, loss_limit, norm_limit;
	bool skip;
};
enum { OM_CLIP_REFS = 11 };

/* Norms above max and below, then every reason to skip; limits may be reached. unit: above 1. */
static inline void
om_clip_refs(double max, double unit, struct om_clip_ref *x)
{
	const double size = max > 0 ? max : 1;
	const struct om_clip_ref all[OM_CLIP_REFS] = {
		{ size * unit, unit, INFINITY, INFINITY, false },
		{ size / unit, unit, INFINITY, INFINITY, false },
		{ size, unit, unit, size, false },
		{ size, -unit, 0, 2 * size, false },
		{ size, unit, 0.999 * unit, INFINITY, true },
		{ size, unit, INFINITY, 0.999 * size, true },
		{ size, NAN, INFINITY, INFINITY, true },
		{ size, INFINITY, INFINITY, INFINITY, true },
		{ size, -INFINITY, INFINITY, INFINITY, true },
		{ NAN, unit, INFINITY, INFINITY, true },
		{ INFINITY, unit, INFINITY, INFINITY, true },
	};
	memcpy(x, all, sizeof all);
}

/* ctl before clip; after it, whether all but the factor is right; the factor. */
static inline void
om_clip_ref_before(const struct om_clip_ref *x, double *ctl)
{
	const double before[OM_CTL_N] = { 1, 2, 3, x->norm * x->norm, 1, x->loss_limit,
		x->norm_limit, NAN };
	memcpy(ctl, before, sizeof before);
}

static inline bool
om_clip_ref_right(const struct om_clip_ref *x, const double *before, const double *ctl)
{
	return !memcmp(ctl, before, OM_CTL_COEF * sizeof *ctl) &&
	       ctl[OM_CTL_LOSS_LIMIT] == x->loss_limit && ctl[OM_CTL_NORM_LIMIT] == x->norm_limit &&
	       ctl[OM_CTL_SKIPPED] == x->skip;
}

static inline double
om_clip_ref_factor(const struct om_clip_ref *x, double max)
{
	return max > 0 && x->norm + 1e-6 > max ? max / (x->norm + 1e-6) : 1;
}

#endif
#endif
