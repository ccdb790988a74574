/*
 * Logits, the loss and its gradients by their definition, in double: what the checks of head.h
 * compare kernels of every target with. It shares no code with them.
 */
#ifndef OM_HEAD_REF_H
#define OM_HEAD_REF_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* Some tokens of x [t, n], live of them, that have a label; the others have none. w [v, n]. */
struct om_head_ref {
	struct om_in x, w;
	int64_t n, v, live, *token;
	int32_t *label;      /* [live] */
	double scale, z;     /* of the loss, of the squares of lse within it */
	double *prob, *lse;  /* [live, v]: dloss / dlogit over scale; [live] */
	double *nll;         /* [live]: the tokens' losses */
	double loss, square; /* what they add to the loss, and to the sum of squares */
};

static inline void
om_head_ref_logits(struct om_head_ref *o)
{
	double *x = malloc((size_t)(o->live * o->n) * sizeof *x);
	if (!x)
		abort();
	for (int64_t i = 0; i < o->live * o->n; i++)
		x[i] = om_in(o->x, o->token[i / o->n] * o->n + i % o->n);
#pragma omp parallel for
	for (int64_t j = 0; j < o->v; j++) {
		for (int64_t a = 0; a < o->live; a++)
			o->prob[a * o->v + j] = 0;
		for (int64_t b = 0; b < o->n; b++) {
			const double w = om_in(o->w, j * o->n + b);
			for (int64_t a = 0; a < o->live; a++)
				o->prob[a * o->v + j] += x[a * o->n + b] * w;
		}
	}
	free(x);
}

/* From the inputs and labels to all that follows them; the arrays are the caller's to free. */
static inline void
om_head_ref(struct om_head_ref *o)
{
	o->prob = malloc((size_t)(o->live * o->v) * sizeof *o->prob);
	o->lse = malloc((size_t)o->live * sizeof *o->lse);
	o->nll = malloc((size_t)o->live * sizeof *o->nll);
	if (!o->prob || !o->lse || !o->nll)
		abort();
	o->loss = o->square = 0;
	om_head_ref_logits(o);
	for (int64_t a = 0; a < o->live; a++) {
		double *p = o->prob + a * o->v, sum = 0;
		o->nll[a] = -p[o->label[a]];
		for (int64_t j = 0; j < o->v; j++)
			sum += p[j] = exp(p[j]);
		o->lse[a] = log(sum);
		o->nll[a] += o->lse[a];
		o->loss += o->scale * o->nll[a];
		o->square += o->scale * o->lse[a] * o->lse[a];
		for (int64_t j = 0; j < o->v; j++)
			p[j] = (1 + o->z * 2 * o->lse[a]) * p[j] / sum;
		p[o->label[a]] -= 1;
	}
}

/* dx of a live token, element b; what dw of row j, element b gains. */
static inline double
om_head_ref_dx(const struct om_head_ref *o, int64_t a, int64_t b)
{
	double sum = 0;
	for (int64_t j = 0; j < o->v; j++)
		sum += o->scale * o->prob[a * o->v + j] * om_in(o->w, j * o->n + b);
	return sum;
}

static inline double
om_head_ref_dw(const struct om_head_ref *o, int64_t j, int64_t b)
{
	double sum = 0;
	for (int64_t a = 0; a < o->live; a++)
		sum += o->scale * o->prob[a * o->v + j] * om_in(o->x, o->token[a] * o->n + b);
	return sum;
}

#endif
