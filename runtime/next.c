/*
 * The next token of sequences that are generated: rows through the trainer's programs, whose caches
 * keep what earlier tokens gave to attention, and the choice by logits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "rng.h"

struct om_next { /* a token that may come next */
	double z;
	int32_t id;
};

/* ---- rows ------------------------------------------------------------------------------------ */

/* What a program computes: these rows, and behind them none. */
static void
put_rows(const struct om_rows *r, unsigned char *arena, const struct om_row *row, uint64_t n)
{
	int32_t *all = om_alloc(3 * r->n, sizeof *all), *at = all + r->n;

	for (uint64_t i = 0; i < r->n; i++) {
		all[i] = i < n ? row[i].token : 0;
		at[i] = i < n ? row[i].position : -1;
		at[r->n + i] = i < n ? row[i].sequence : 0;
	}
	om_put(arena, r->token_off, all, r->n * sizeof *all);
	om_put(arena, r->at_off, at, 2 * r->n * sizeof *at);
	free(all);
}

void
om_logits_after(const struct om_model *m, unsigned char *arena, const struct om_row *row,
    uint64_t n, double *logit)
{
	float *narrow = (float *)logit; /* the front half; widened from its end */

	put_rows(&m->decode, arena, row, n);
	om_run(m, OM_RUN_DECODE, arena);
	om_get(arena, m->logits_off, logit, n * m->vocab * m->real);
	for (uint64_t i = m->real == sizeof *narrow ? n * m->vocab : 0; i-- > 0;) {
		float x;

		memcpy(&x, narrow + i, sizeof x);
		logit[i] = (double)x;
	}
}

void
om_likeliest_after(const struct om_model *m, unsigned char *arena, const struct om_row *row,
    uint64_t n, int32_t *token)
{
	put_rows(&m->decode, arena, row, n);
	om_run(m, OM_RUN_DECODE, arena);
	om_get(arena, m->likeliest_off, token, n * sizeof *token);
}

void
om_prompts_put(
    const struct om_model *m, unsigned char *arena, const struct om_prompt *p, uint64_t n)
{
	const struct om_rows *r = &m->prompt;
	struct om_row *row = om_alloc(r->n, sizeof *row);
	uint64_t rows = 0;

	for (const struct om_prompt *end = p + n; p < end; p++)
		for (uint64_t at = 0; at < p->n; at++) {
			/* behind another sequence's, up to where this one's may begin */
			for (; at == 0 && rows % r->each && rows < r->n; rows++)
				row[rows] = (struct om_row){ .position = -1 };
			if (rows == r->n) {
				put_rows(r, arena, row, rows);
				om_run(m, OM_RUN_PROMPT, arena);
				rows = 0;
			}
			row[rows++] =
			    (struct om_row){ p->token[at], (int32_t)at, (int32_t)p->sequence };
		}
	if (rows) {
		put_rows(r, arena, row, rows);
		om_run(m, OM_RUN_PROMPT, arena);
	}
	free(row);
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* The likelier one first; of equal ones the lower id. */
static int
by_logit(const void *a, const void *b)
{
	const struct om_next *x = a, *y = b;

	return x->z != y->z ? (x->z < y->z) - (x->z > y->z) : (x->id > y->id) - (x->id < y->id);
}

int32_t
om_choose(const struct om_sampling *s, uint64_t position, const double *logit, uint64_t vocab)
{
	struct om_philox r = om_philox(
	    (struct om_philox){ { (uint32_t)position, (uint32_t)(position >> 32), s->sequence } },
	    s->seed);
	double u = (double)((((uint64_t)r.v[0] << 32) | r.v[1]) >> 11) * 0x1p-53, sum = 0;
	struct om_next *next;
	uint64_t n = 0, best = 0;
	int32_t id;

	for (uint64_t i = 1; i < vocab; i++)
		if (logit[i] > logit[best])
			best = i;
	if (s->temperature == 0)
		return (int32_t)best;
	next = om_alloc(vocab, sizeof *next);
	for (uint64_t i = 0; i < vocab; i++)
		next[i] = (struct om_next){ (logit[i] - logit[best]) / s->temperature, (int32_t)i };
	qsort(next, vocab, sizeof *next, by_logit);
	if (s->top_k && s->top_k < vocab)
		vocab = s->top_k;
	for (uint64_t i = 0; i < vocab; i++)
		sum += next[i].z = exp(next[i].z);
	/* the fewest that together have top_p of what is left, and from then on all there is */
	for (double p = 0; n < vocab && (!n || p < s->top_p * sum); n++)
		p += next[n].z;
	sum = 0;
	for (uint64_t i = 0; i < n; i++)
		sum += next[i].z;
	id = next[0].id;
	for (uint64_t i = 0; i < n && u >= 0; i++) { /* none with a probability of 0 */
		if (next[i].z > 0)
			id = next[i].id;
		u -= next[i].z / sum;
	}
	free(next);
	return id;
}
