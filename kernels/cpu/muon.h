/*
 * Muon (Jordan et al., 2024): a matrix is stepped by its momentum, made orthogonal as far as a few
 * steps of Newton-Schulz do it. ctl [9], fp64, holds the step's scalars.
 *
 *   muon    matrices [r, c] one after the other, n numbers in all. Of each, g COEF drives the
 *           momentum m <- momentum m + (1 - momentum) g, and x is that, or with j its mean with g
 *           once more. x / |x|, lying on its longer side, passes s times
 *               x <- (a I + b x x' + c (x x')^2) x
 *           and then w -= lr (decay w + factor x), lr = LR lr_scale. A skipped step leaves all as
 *           it is
 *   muon_master     the same of a master in w's place; w is its rounding to bf16
 *   muon_drawn      that with m in bf16: each becomes one of the two neighbours of what it is, the
 *                   nearer the likelier, by 16 bits that lots say (rng.h); x is from what it was
 *   normuon         before the step, row i of x is divided by the root of v[i] <- beta2 v[i] +
 *                   (1 - beta2) mean(x[i]^2), and x gets its old norm back (Li et al., 2025)
 *   normuon_master, normuon_drawn   both; drawn, v too, by the upper half of the word of its row's
 *                   first m, and rows are divided by what it has become
 *
 * ws: x and y [l, h] of which l is the lesser of r and c, x x' and its polynomial [l, l].
 * A matrix has the same bits wherever it lies among the others. One of zeros, such as padding, has
 * no products.
 */
#ifndef OM_MUON_H
#define OM_MUON_H

#include "drawn.h"
#include "gemm.h"
#include "muon_ref.h"

enum { OM_MUON_PARTS = 64 }; /* of sums */

struct om_muon {
	int64_t r, c;
	int steps;
	bool nesterov;
	om_real beta, row_beta, coef; /* beta: one minus momentum; row_beta: of one minus, too */
	om_real a, b, cc;
	om_real keep, lr;    /* of the weight; of x */
	const int64_t *lots; /* NULL, or how moments are drawn */
};

static OM_CLONES void
om_muon_momentum_range(
    int64_t lo, int64_t hi, const struct om_muon *a, const om_real *g, om_real *m, om_real *x)
{
	const om_real beta = a->beta, coef = a->coef, ahead = a->nesterov ? beta : 0;
#pragma omp simd
	for (int64_t i = lo; i < hi; i++) {
		const om_real gi = g[i] * coef, mi = m[i] + beta * (gi - m[i]);
		m[i] = mi;
		x[i] = mi + ahead * (gi - mi);
	}
}

static OM_CLONES double
om_muon_sumsq(int64_t lo, int64_t hi, const om_real *x)
{
	double lane[16] = { 0 };
	int64_t i = lo;
	for (; i + 16 <= hi; i += 16)
		for (int l = 0; l < 16; l++)
			lane[l] += (double)x[i + l] * (double)x[i + l];
	for (int l = 0; i < hi; i++, l++)
		lane[l] += (double)x[i] * (double)x[i];
	for (int l = 1; l < 16; l++)
		lane[0] += lane[l];
	return lane[0];
}

static OM_CLONES void
om_muon_scale_range(int64_t lo, int64_t hi, om_real factor, om_real *x)
{
#pragma omp simd
	for (int64_t i = lo; i < hi; i++)
		x[i] *= factor;
}

/* Rows of q [n, n] = a I + b p + c q */
static OM_CLONES void
om_muon_polynomial_rows(
    int64_t lo, int64_t hi, int64_t n, const struct om_muon *a, const om_real *p, om_real *q)
{
	const om_real b = a->b, c = a->cc;
#pragma omp simd
	for (int64_t i = lo * n; i < hi * n; i++)
		q[i] = b * p[i] + c * q[i];
	for (int64_t i = lo; i < hi; i++)
		q[i * n + i] += a->a;
}

/* Rows of w, by x, of which each has a factor beside lr where there are any. */
static OM_CLONES void
om_muon_step_rows(int64_t lo, int64_t hi, const struct om_muon *a, const om_real *x,
    const om_real *v, om_real by, om_real *w)
{
	const int64_t c = a->c;
	for (int64_t i = lo; i < hi; i++) {
		om_real lr = a->lr;
		if (v)
			lr *= by / ((om_real)sqrt(v[i]) + (om_real)OM_MUON_ROW_EPS);
		const om_real keep = a->keep;
#pragma omp simd
		for (int64_t j = i * c; j < (i + 1) * c; j++)
			w[j] = keep * w[j] - lr * x[j];
	}
}

/* C [m, n] = A [m, k] B, and B may be stored transposed */
static inline void
om_muon_product(
    int64_t m, int64_t n, int64_t k, const om_real *a, const om_real *b, bool turned, om_real *c)
{
	const struct om_gemm g = { m, n, k, { a, k, false }, { b, turned ? k : n, turned }, c, n,
		false };
	om_gemm(&g);
}

/* Divides x [l, h] by its norm; false: it is zero. */
static inline bool
om_muon_normalize(int64_t l, int64_t h, om_real *x)
{
	double part[OM_MUON_PARTS], sum = 0;
#pragma omp parallel for schedule(static)
	for (int64_t p = 0; p < OM_MUON_PARTS; p++)
		part[p] =
		    om_muon_sumsq(l * p / OM_MUON_PARTS * h, l * (p + 1) / OM_MUON_PARTS * h, x);
	for (int p = 0; p < OM_MUON_PARTS; p++)
		sum += part[p];
	const om_real factor = (om_real)(1 / fmax(sqrt(sum), OM_MUON_EPS));
#pragma omp parallel
	om_muon_scale_range(om_lo(l * h), om_hi(l * h), factor, x);
	return sum > 0;
}

/* The word that a row's mean square is drawn by; m: the row's first moment. */
static inline uint32_t
om_muon_word(const int64_t *lots, const om_real *m)
{
	const struct om_drawn_piece p = om_drawn_find(lots, m, 0, 1);
	return om_moment_draw(lots[OM_LOTS_KEY], p.tensor, p.index / 4).v[p.index % 4];
}

/* New mean squares of rows of x; gives what x's norm was over what it is. */
static inline om_real
om_muon_rows(const struct om_muon *a, const om_real *x, const om_real *m, om_real *v)
{
	double old[OM_MUON_PARTS] = { 0 }, new[OM_MUON_PARTS] = { 0 };
#pragma omp parallel for schedule(static)
	for (int64_t p = 0; p < OM_MUON_PARTS; p++)
		for (int64_t i = a->r * p / OM_MUON_PARTS; i < a->r * (p + 1) / OM_MUON_PARTS;
		     i++) {
			const double sum = om_muon_sumsq(i * a->c, (i + 1) * a->c, x);
			v[i] += a->row_beta * ((om_real)(sum / (double)a->c) - v[i]);
			if (a->lots)
				v[i] = (om_real)om_drawn(
				    (float)v[i], om_muon_word(a->lots, m + i * a->c) >> 16);
			const double by = sqrt((double)v[i]) + OM_MUON_ROW_EPS;
			old[p] += sum;
			new[p] += sum / by / by;
		}
	for (int p = 1; p < OM_MUON_PARTS; p++) {
		old[0] += old[p];
		new[0] += new[p];
	}
	return (om_real)(new[0] > 0 ? sqrt(old[0] / new[0]) : 0);
}

/* y [cols, rows] = x [rows, cols] transposed */
static inline void
om_muon_turn(int64_t rows, int64_t cols, const om_real *x, om_real *y)
{
#pragma omp parallel
	{
		const int64_t lo = om_lo(rows), hi = om_hi(rows);
		om_transpose(y + lo, rows, x + lo * cols, cols, hi - lo, cols);
	}
}

/* One matrix. */
static inline void
om_muon_matrix(const struct om_muon *a, const om_real *g, om_real *rounded, om_real *w, om_real *m,
    om_real *v, om_real *ws)
{
	const int64_t n = a->r * a->c, l = om_min(a->r, a->c), h = n / l;
	const bool tall = a->r > a->c;
	om_real *x = ws, *y = x + n, *p = y + n, *q = p + l * l, *old;

#pragma omp parallel
	{
		om_muon_momentum_range(om_lo(n), om_hi(n), a, g, m, tall ? y : x);
		if (a->lots)
			om_drawn_pieces(om_lo(n), om_hi(n), a->lots, m);
	}
	if (tall)
		om_muon_turn(a->r, a->c, y, x);
	const bool any = om_muon_normalize(l, h, x);
	for (int s = 0; s < a->steps && any; s++) {
		om_muon_product(l, l, h, x, x, true, p);
		om_muon_product(l, l, l, p, p, false, q);
#pragma omp parallel
		om_muon_polynomial_rows(om_lo(l), om_hi(l), l, a, p, q);
		om_muon_product(l, h, l, q, x, false, y);
		old = x;
		x = y;
		y = old;
	}
	if (tall) {
		om_muon_turn(l, h, x, y);
		x = y;
	}
	const om_real by = v ? om_muon_rows(a, x, m, v) : 1;
#pragma omp parallel
	{
		const int64_t lo = om_lo(a->r), hi = om_hi(a->r);
		om_muon_step_rows(lo, hi, a, x, v, by, w);
		if (rounded)
			om_round_range(lo * a->c, hi * a->c, w, rounded);
	}
}

/*
 * rounded: NULL, or where w is a master, the weights; v: NULL, or NorMuon's; lots: NULL, or
 * how moments are drawn.
 */
static inline void
om_muon(int64_t n, int64_t r, int64_t c, int steps, int nesterov, double momentum, double beta2,
    double decay, double lr_scale, double factor, const om_real *g, const double *ctl,
    const int64_t *lots, om_real *rounded, om_real *w, om_real *m, om_real *v, om_real *ws)
{
	const double lr = ctl[OM_CTL_LR] * lr_scale;
	const struct om_muon a = {
		.r = r,
		.c = c,
		.steps = steps,
		.nesterov = nesterov,
		.beta = (om_real)(1 - momentum),
		.row_beta = (om_real)(1 - beta2),
		.coef = (om_real)ctl[OM_CTL_COEF],
		.a = (om_real)OM_MUON_A,
		.b = (om_real)OM_MUON_B,
		.cc = (om_real)OM_MUON_C,
		.keep = (om_real)(1 - lr * decay),
		.lr = (om_real)(lr * factor),
		.lots = lots,
	};

	if (ctl[OM_CTL_SKIPPED] != 0)
		return;
	for (int64_t i = 0; i < n; i += r * c)
		om_muon_matrix(&a, g + i, rounded ? rounded + i : NULL, w + i, m + i,
		    v ? v + i / c : NULL, ws);
}

#define OM_MUON_SIZES(n, r, c)                                                              \
	_Static_assert((r) >= 1 && (c) >= 1 && (n) >= 1 && (n) % ((int64_t)(r) * (c)) == 0, \
	    "muon: whole matrices")
/* What kernels work on, and which have masters, mean squares of rows, or lots. */
struct om_muon_arrays {
	om_real *g, *rounded, *w, *m, *v, *ws;
	const int64_t *lots;
};
enum { OM_MUON_HAS_MASTER = 1, OM_MUON_HAS_ROWS = 2, OM_MUON_HAS_LOTS = 4 };

/* CALL: its arguments, of x and ctl */
#define OM_MUON_CHECK(NAME, CALL, has, n, r, c, s, j, ...)                       \
	static void NAME##_on(const struct om_muon_arrays *x, const double *ctl) \
	{                                                                        \
		NAME CALL;                                                       \
	}                                                                        \
	double NAME##_check(uint64_t seed)                                       \
	{                                                                        \
		const struct om_muon_ref ref = { r, c, s, j, __VA_ARGS__ };      \
		return om_muon_check(NAME##_on, has, n, &ref, seed);             \
	}

#define OM_MUON(NAME, n, r, c, s, j, ...)                                                   \
	OM_MUON_SIZES(n, r, c);                                                             \
	void NAME(const om_real *g, const double *ctl, om_real *w, om_real *m, om_real *ws) \
	{                                                                                   \
		om_muon(n, r, c, s, j, __VA_ARGS__, g, ctl, NULL, NULL, w, m, NULL, ws);    \
	}                                                                                   \
	OM_MUON_CHECK(NAME, (x->g, ctl, x->w, x->m, x->ws), 0, n, r, c, s, j, __VA_ARGS__)

#define OM_MUON_MASTER(NAME, n, r, c, s, j, ...)                                                  \
	OM_MUON_SIZES(n, r, c);                                                                   \
	void NAME(const om_real *g, const double *ctl, om_real *w, om_real *master, om_real *m,   \
	    om_real *ws)                                                                          \
	{                                                                                         \
		om_muon(n, r, c, s, j, __VA_ARGS__, g, ctl, NULL, w, master, m, NULL, ws);        \
	}                                                                                         \
	OM_MUON_CHECK(NAME, (x->g, ctl, x->rounded, x->w, x->m, x->ws), OM_MUON_HAS_MASTER, n, r, \
	    c, s, j, __VA_ARGS__)

#define OM_MUON_DRAWN(NAME, n, r, c, s, j, ...)                                            \
	OM_MUON_SIZES(n, r, c);                                                            \
	void NAME(const om_real *g, const double *ctl, const int64_t *lots, om_real *w,    \
	    om_real *master, om_real *m, om_real *ws)                                      \
	{                                                                                  \
		om_muon(n, r, c, s, j, __VA_ARGS__, g, ctl, lots, w, master, m, NULL, ws); \
	}                                                                                  \
	OM_MUON_CHECK(NAME, (x->g, ctl, x->lots, x->rounded, x->w, x->m, x->ws),           \
	    OM_MUON_HAS_MASTER | OM_MUON_HAS_LOTS, n, r, c, s, j, __VA_ARGS__)

#define OM_NORMUON(NAME, n, r, c, s, j, ...)                                                       \
	OM_MUON_SIZES(n, r, c);                                                                    \
	void NAME(                                                                                 \
	    const om_real *g, const double *ctl, om_real *w, om_real *m, om_real *v, om_real *ws)  \
	{                                                                                          \
		om_muon(n, r, c, s, j, __VA_ARGS__, g, ctl, NULL, NULL, w, m, v, ws);              \
	}                                                                                          \
	OM_MUON_CHECK(NAME, (x->g, ctl, x->w, x->m, x->v, x->ws), OM_MUON_HAS_ROWS, n, r, c, s, j, \
	    __VA_ARGS__)

#define OM_NORMUON_MASTER(NAME, n, r, c, s, j, ...)                                             \
	OM_MUON_SIZES(n, r, c);                                                                 \
	void NAME(const om_real *g, const double *ctl, om_real *w, om_real *master, om_real *m, \
	    om_real *v, om_real *ws)                                                            \
	{                                                                                       \
		om_muon(n, r, c, s, j, __VA_ARGS__, g, ctl, NULL, w, master, m, v, ws);         \
	}                                                                                       \
	OM_MUON_CHECK(NAME, (x->g, ctl, x->rounded, x->w, x->m, x->v, x->ws),                   \
	    OM_MUON_HAS_MASTER | OM_MUON_HAS_ROWS, n, r, c, s, j, __VA_ARGS__)

#define OM_NORMUON_DRAWN(NAME, n, r, c, s, j, ...)                                      \
	OM_MUON_SIZES(n, r, c);                                                         \
	void NAME(const om_real *g, const double *ctl, const int64_t *lots, om_real *w, \
	    om_real *master, om_real *m, om_real *v, om_real *ws)                       \
	{                                                                               \
		om_muon(n, r, c, s, j, __VA_ARGS__, g, ctl, lots, w, master, m, v, ws); \
	}                                                                               \
	OM_MUON_CHECK(NAME, (x->g, ctl, x->lots, x->rounded, x->w, x->m, x->v, x->ws),  \
	    OM_MUON_HAS_MASTER | OM_MUON_HAS_ROWS | OM_MUON_HAS_LOTS, n, r, c, s, j, __VA_ARGS__)

/* ---- checks ---------------------------------------------------------------------------------- */

OM_CHECK double
om_muon_random(uint64_t seed, int64_t i)
{
	return om_unit(seed, (uint64_t)i);
}

/* What a check knows of a matrix: vectors, and diagonals of gradient and momentum. */
struct om_muon_known {
	double *u, *cas, *g, *m, *dq;
};

OM_CHECK struct om_muon_known
om_muon_fill(const struct om_muon_ref *a, uint64_t seed, const struct om_muon_arrays *x)
{
	const int64_t l = om_muon_less(a), h = a->rows + a->cols - l;
	double *p = om_check_alloc(3 * (l + h), sizeof *p);
	const struct om_muon_known k = { p, p + l, p + l + h, p + 2 * l + h, p + 3 * l + h };
	om_mirror_begin(a, k.u, k.cas, om_muon_random, om_hash(seed, 1));
	for (int64_t i = 0; i < l; i++) {
		k.g[i] = 1 + 0.4 * om_unit(om_hash(seed, 3), (uint64_t)i);
		k.m[i] = 1 + 0.4 * om_unit(om_hash(seed, 4), (uint64_t)i);
	}
	for (int64_t i = 0; x->lots && i < l; i++)
		k.m[i] = 0; /* what is orthogonal and in bf16 */
	for (int what = 0; what < 2; what++) {
		const struct om_mirrored d = om_mirror(a, k.u, k.cas, what ? k.m : k.g, k.dq);
		om_real *to = what ? x->m : x->g;
		for (int64_t i = 0; i < a->rows; i++)
			for (int64_t j = 0; j < a->cols; j++)
				to[i * a->cols + j] = (om_real)om_mirrored(&d, i, j);
	}
	return k;
}

/* The word of one of x's moments; first: of all matrices'. */
OM_CHECK uint32_t
om_muon_check_word(const struct om_muon_arrays *x, const om_real *first, int64_t i)
{
	const int64_t away = (const char *)first - (const char *)x->lots;
	return om_lots_ref_word(x->lots, away, sizeof *first, x->m - first + i);
}

/* The new momentum, drawn or as it is. */
OM_CHECK double
om_muon_check_moments(const struct om_muon_ref *a, const struct om_mirrored *want,
    const struct om_muon_arrays *x, const om_real *first)
{
	struct om_err e = { 0 };
	for (int64_t i = 0; i < a->rows * a->cols; i++) {
		const double m = om_mirrored(want, i / a->cols, i % a->cols);
		if (x->lots)
			e.wrong |= !om_drawn_right(x->m[i], m, 0x1p-20 / sqrt((double)a->cols),
			    om_muon_check_word(x, first, i) & 0xffff);
		else
			om_err_add(&e, x->m[i], m);
	}
	return om_err_value(&e);
}

/* The same matrix after the step; first: the first moment of all. */
OM_CHECK double
om_muon_compare(const struct om_muon_ref *a, const double *ctl, const struct om_muon_known *k,
    const om_real *w0, const om_real *v0, const struct om_muon_arrays *x, const om_real *first)
{
	double *o = om_check_alloc(om_muon_less(a), sizeof *o);
	double *v = om_check_alloc(2 * a->rows, sizeof *v), *by = v + a->rows;
	struct om_err ew = { 0 }, ev = { 0 };
	om_muon_ref(a, ctl[OM_CTL_COEF], k->g, k->m, o);
	const struct om_mirrored mm = om_mirror(a, k->u, k->cas, k->m, k->dq);
	const double em = om_muon_check_moments(a, &mm, x, first);
	const struct om_mirrored mo = om_mirror(a, k->u, k->cas, o, k->dq); /* mm is no more */
	for (int64_t i = 0; i < a->rows; i++) {
		v[i] = (double)v0[i];
		by[i] = 1;
	}
	if (x->v)
		om_normuon_ref_rows(a, &mo, v, by);
	for (int64_t i = 0; x->v && i < a->rows; i++)
		if (x->lots) { /* rows are divided by what it is */
			ev.wrong |= !om_drawn_right(x->v[i], v[i], 0x1p-14 * v[i],
			    om_muon_check_word(x, first, i * a->cols) >> 16);
			v[i] = (double)x->v[i];
		} else
			om_err_add(&ev, x->v[i], v[i]);
	if (x->v)
		om_normuon_ref_factors(a, v, by);
	for (int64_t i = 0; i < a->rows; i++)
		for (int64_t j = 0; j < a->cols; j++) {
			const int64_t at = i * a->cols + j;
			const double step = by[i] * om_mirrored(&mo, i, j);
			om_err_add(&ew, x->w[at],
			    om_muon_ref_weight(a, ctl[OM_CTL_LR], (double)w0[at], step));
			ew.wrong |=
			    x->rounded && x->rounded[at] != (om_real)om_check_bf16((float)x->w[at]);
		}
	free(o);
	free(v);
	return om_worse(om_err_value(&ew), om_worse(em, om_err_value(&ev)));
}

/* The first and the last matrix. */
OM_CHECK double
om_muon_check(void (*run)(const struct om_muon_arrays *, const double *), int has, int64_t n,
    const struct om_muon_ref *a, uint64_t seed)
{
	const int64_t size = a->rows * a->cols, last = n / size - 1,
		      less = om_min(a->rows, a->cols);
	const double step = 0.125 * a->lr_scale * a->factor * 2 / sqrt((double)(a->rows + a->cols));
	struct om_muon_known known[2];
	double ctl[OM_CTL_N] = { 0.125, NAN, NAN, NAN, 0.7, NAN, NAN, 1, 1 }, worst = 0;
	int64_t lots[OM_LOTS_REF];
	om_real *v = om_check_random(n / a->cols, seed, 2);
	struct om_muon_arrays all = { om_check_alloc(n, sizeof(om_real)),
		has & OM_MUON_HAS_MASTER ? om_check_nan(n) : NULL, om_check_random(n, seed, 1),
		om_check_alloc(n, sizeof(om_real)), has & OM_MUON_HAS_ROWS ? v : NULL,
		om_check_nan(2 * size + 2 * less * less), has & OM_MUON_HAS_LOTS ? lots : NULL };

	om_lots_ref(lots, (const char *)all.m - (const char *)lots, sizeof *all.m, n, 1, seed);
	memset(all.g, 0, (size_t)n * sizeof *all.g);
	memset(all.m, 0, (size_t)n * sizeof *all.m);
	for (int64_t i = 0; i < n; i++) /* so that the step is not small beside it */
		all.w[i] *= (om_real)step;
	for (int64_t i = 0; i < n / a->cols; i++)
		v[i] = (om_real)om_check_bf16(
		    (float)((v[i] * v[i] + (om_real)0.25) / (om_real)(a->rows + a->cols)));
	om_real *w0 = om_check_copy(all.w, n), *v0 = om_check_copy(v, n / a->cols);
	for (int k = 0; k < 2; k++) {
		struct om_muon_arrays x = all;
		x.g += k * last * size;
		x.m += k * last * size;
		known[k] = om_muon_fill(a, seed + (uint64_t)(k * last), &x);
	}
	om_real *m0 = om_check_copy(all.m, n);
	for (int k = 0; k < 2; k++, ctl[OM_CTL_SKIPPED] = 0) {
		run(&all, ctl);
		if (k == 0 && (memcmp(all.w, w0, (size_t)n * sizeof *w0) ||
				  memcmp(all.m, m0, (size_t)n * sizeof *m0) ||
				  memcmp(v, v0, (size_t)(n / a->cols) * sizeof *v)))
			worst = OM_WRONG;
	}
	for (int k = 0; k <= (last > 0); k++) {
		const int64_t at = k * last * size, row = at / a->cols;
		struct om_muon_arrays x = all;
		x.w += at;
		x.m += at;
		if (x.rounded)
			x.rounded += at;
		if (x.v)
			x.v += row;
		worst = om_worse(
		    worst, om_muon_compare(a, ctl, &known[k], w0 + at, v0 + row, &x, all.m));
	}
	for (int k = 0; k < 2; k++)
		free(known[k].u);
	free(all.g);
	free(all.rounded);
	free(all.w);
	free(all.m);
	free(all.ws);
	free(v);
	free(w0);
	free(v0);
	free(m0);
	return worst;
}

#endif
