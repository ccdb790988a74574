/*
 * Muon by its definition, in double, on matrices whose singular values are known: what the checks
 * of muon.h compare kernels of every target with. The definitions share no code with the kernels.
 *
 * Of l the lesser and h the greater of rows and columns, gradient and momentum are P D Q, or lie on
 * their side: Q [l, h] are rows of the discrete Hartley transform, which are orthogonal; D is
 * diagonal; P = I - 2 u u' mirrors at a unit vector. No element is small beside the others, and an
 * orthogonal polynomial of the matrix is P times that of D times Q.
 */
#ifndef OM_MUON_REF_H
#define OM_MUON_REF_H

#include "adamw_ref.h"

/* The polynomial of a step of Newton-Schulz: x (a + b x^2 + c x^4) on singular values. */
#define OM_MUON_A 3.4445
#define OM_MUON_B -4.7750
#define OM_MUON_C 2.0315
#define OM_MUON_EPS 1e-7     /* below it, a norm is taken for that */
#define OM_MUON_ROW_EPS 1e-8 /* added to the root of a row's mean square */

#ifndef __CUDACC__

/* Muon's constants, in the order of kernel.def and op.def. */
struct om_muon_ref {
	int64_t rows, cols;
	int steps, nesterov;
	double momentum, beta2, decay, lr_scale, factor;
};

/* P D Q; dq [h] = 2 u' D Q, cas [h]: the numbers of which Q is made */
struct om_mirrored {
	const struct om_muon_ref *of;
	const double *u, *d, *cas;
	double *dq;
};

static inline int64_t
om_muon_less(const struct om_muon_ref *a)
{
	return a->rows < a->cols ? a->rows : a->cols;
}

/* A unit vector u of random numbers, and cas. */
static inline void
om_mirror_begin(const struct om_muon_ref *a, double *u, double *cas,
    double (*random)(uint64_t, int64_t), uint64_t seed)
{
	const int64_t l = om_muon_less(a), h = a->rows + a->cols - l;
	double sum = 0;
	for (int64_t i = 0; i < l; i++) {
		u[i] = random(seed, i);
		sum += u[i] * u[i];
	}
	for (int64_t i = 0; i < l; i++)
		u[i] /= sqrt(sum);
	for (int64_t i = 0; i < h; i++) {
		const double angle = 6.283185307179586 * (double)i / (double)h;
		cas[i] = (cos(angle) + sin(angle)) / sqrt((double)h);
	}
}

static inline struct om_mirrored
om_mirror(
    const struct om_muon_ref *a, const double *u, const double *cas, const double *d, double *dq)
{
	const int64_t l = om_muon_less(a), h = a->rows + a->cols - l;
	for (int64_t j = 0; j < h; j++) {
		dq[j] = 0;
		for (int64_t i = 0; i < l; i++)
			dq[j] += 2 * u[i] * d[i] * cas[i * j % h];
	}
	return (struct om_mirrored){ a, u, d, cas, dq };
}

static inline double
om_mirrored(const struct om_mirrored *x, int64_t row, int64_t col)
{
	const bool tall = x->of->rows > x->of->cols;
	const int64_t i = tall ? col : row, j = tall ? row : col;
	const int64_t h = tall ? x->of->rows : x->of->cols;
	return x->d[i] * x->cas[i * j % h] - x->u[i] * x->dq[j];
}

/*
 * From the diagonals of gradient and momentum to those of the new momentum and of what the step is
 * by, which is as orthogonal as it gets.
 */
static inline void
om_muon_ref(const struct om_muon_ref *a, double coef, const double *g, double *m, double *o)
{
	const int64_t n = om_muon_less(a);
	double sum = 0;
	for (int64_t i = 0; i < n; i++) {
		m[i] = a->momentum * m[i] + (1 - a->momentum) * coef * g[i];
		o[i] = a->nesterov ? (1 - a->momentum) * coef * g[i] + a->momentum * m[i] : m[i];
		sum += o[i] * o[i];
	}
	for (int64_t i = 0; i < n; i++) {
		o[i] /= fmax(sqrt(sum), OM_MUON_EPS);
		for (int k = 0; k < a->steps; k++) {
			const double s = o[i] * o[i];
			o[i] *= OM_MUON_A + OM_MUON_B * s + OM_MUON_C * s * s;
		}
	}
}

/* NorMuon: new mean squares of rows, and sums of their squares. */
static inline void
om_normuon_ref_rows(
    const struct om_muon_ref *a, const struct om_mirrored *o, double *v, double *sum)
{
	for (int64_t i = 0; i < a->rows; i++) {
		sum[i] = 0;
		for (int64_t j = 0; j < a->cols; j++)
			sum[i] += om_mirrored(o, i, j) * om_mirrored(o, i, j);
		v[i] = a->beta2 * v[i] + (1 - a->beta2) * sum[i] / (double)a->cols;
	}
}

/* From these sums the factors of rows. */
static inline void
om_normuon_ref_factors(const struct om_muon_ref *a, const double *v, double *sum)
{
	double old = 0, new = 0;
	for (int64_t i = 0; i < a->rows; i++) {
		const double factor = 1 / (sqrt(v[i]) + OM_MUON_ROW_EPS);
		old += sum[i];
		new += sum[i] * factor *factor;
		sum[i] = factor;
	}
	for (int64_t i = 0; i < a->rows; i++)
		sum[i] *= sqrt(old / new);
}

/* The weight after the step. */
static inline double
om_muon_ref_weight(const struct om_muon_ref *a, double lr, double w, double o)
{
	return w - lr * a->lr_scale * (a->decay * w + a->factor * o);
}

#endif
#endif
