/*
 * The update by its definition, in double: what the checks of adamw.h
 * compare kernels of every target with. The definitions share no code with the kernels.
 */
#ifndef OM_ADAMW_REF_H
#define OM_ADAMW_REF_H

#include "ctl.h"

#ifndef __CUDACC__

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "rng.h"

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

/*
 * A table of draws (rng.h) for n moments of so many bytes each that begin `away` bytes from it:
 * three pieces, of which the first began before them. What they begin at is a multiple.
 */
enum { OM_LOTS_REF = OM_LOTS_FIRST + 3 * OM_PIECE_WORDS };
static inline void
om_lots_ref(int64_t *t, int64_t away, int64_t size, int64_t n, int64_t multiple, uint64_t seed)
{
	const int64_t first[] = { -2 * multiple, n / 3 / multiple * multiple,
		n / 5 * 3 / multiple * multiple };
	const int64_t index[] = { 0, 5 * multiple, (int64_t)7 << 34 };
	t[OM_LOTS_KEY] = (int64_t)(seed * 0x9e3779b97f4a7c15);
	t[OM_LOTS_PIECES] = 3;
	for (int k = 0; k < 3; k++) {
		int64_t *piece = t + OM_LOTS_FIRST + k * OM_PIECE_WORDS;
		piece[OM_PIECE_AT] = away + first[k] * size;
		piece[OM_PIECE_INDEX] = index[k];
		piece[OM_PIECE_TENSOR] = (int64_t)((seed + (uint64_t)k) * 0xd1342543de82ef95);
	}
}

/* The word that moment i of them is drawn by. */
static inline uint32_t
om_lots_ref_word(const int64_t *t, int64_t away, int64_t size, int64_t i)
{
	const int64_t *piece = t + OM_LOTS_FIRST;
	while (piece + OM_PIECE_WORDS < t + OM_LOTS_REF &&
	       piece[OM_PIECE_WORDS + OM_PIECE_AT] <= away + i * size)
		piece += OM_PIECE_WORDS;
	i += (away - piece[OM_PIECE_AT]) / size + piece[OM_PIECE_INDEX];
	return om_moment_draw(t[OM_LOTS_KEY], piece[OM_PIECE_TENSOR], i / 4).v[i % 4];
}

/*
 * x as bf16: of its two neighbours the one away from zero with the probability by which x is nearer
 * to it, which 16 bits decide. It rises with x.
 */
static inline double
om_drawn_ref(double x, uint32_t bits)
{
	int e;
	frexp(x, &e);
	const double unit = ldexp(1, e < -125 ? -133 : e - 8);
	return copysign(floor(fabs(x) / unit + bits * 0x1p-16) * unit, x);
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
	double coef; /* by which sums are less than these, in ctl[COEF]: 1 or 4 */
};
enum { OM_CLIP_REFS = 14 };

/* Norms above max and below, then every reason to skip; limits may be reached. unit: above 1. */
static inline void
om_clip_refs(double max, double unit, struct om_clip_ref *x)
{
	const double size = max > 0 ? max : 1;
	const struct om_clip_ref all[OM_CLIP_REFS] = {
		{ size * unit, unit, INFINITY, INFINITY, false, 1 },
		{ size / unit, unit, INFINITY, INFINITY, false, 1 },
		{ size, unit, unit, size, false, 1 },
		{ size, -unit, 0, 2 * size, false, 1 },
		{ size, unit, 0.999 * unit, INFINITY, true, 1 },
		{ size, unit, INFINITY, 0.999 * size, true, 1 },
		{ size, NAN, INFINITY, INFINITY, true, 1 },
		{ size, INFINITY, INFINITY, INFINITY, true, 1 },
		{ size, -INFINITY, INFINITY, INFINITY, true, 1 },
		{ NAN, unit, INFINITY, INFINITY, true, 1 },
		{ INFINITY, unit, INFINITY, INFINITY, true, 1 },
		{ size * unit, unit, unit, INFINITY, false, 4 },
		{ size, unit, 0.999 * unit, INFINITY, true, 4 },
		{ size, unit, INFINITY, 0.999 * size, true, 4 },
	};
	memcpy(x, all, sizeof all);
}

/* ctl before clip; after it, whether all but the factor is right; the factor. */
static inline void
om_clip_ref_before(const struct om_clip_ref *x, double *ctl)
{
	const double norm = x->norm / x->coef;
	const double before[OM_CTL_N] = { 1, 2, 3, norm * norm, x->coef, x->loss_limit,
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

/* What share_ctl made of own, which was `was`: ctl's factor and whether it is skipped. */
static inline bool
om_share_ctl_right(const double *ctl, const double *was, const double *own)
{
	bool right = true;
	for (int i = 0; i < OM_CTL_N; i++)
		right &= own[i] == (i == OM_CTL_COEF || i == OM_CTL_SKIPPED ? ctl[i] : was[i]);
	return right;
}

static inline double
om_clip_ref_factor(const struct om_clip_ref *x, double max)
{
	return x->coef * (max > 0 && x->norm + 1e-6 > max ? max / (x->norm + 1e-6) : 1);
}

#endif
#endif
