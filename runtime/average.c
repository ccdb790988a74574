/*
 * Averages of weights: those that a run keeps beside them, and the mean of several checkpoints' as
 * a checkpoint of its own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"

enum { SOME = 1 << 18 }; /* elements at a time */

/* ---- of a run -------------------------------------------------------------------------------- */

void
om_average_begin(const struct om_model *m, unsigned char *arena)
{
	uint64_t first, end;

	for (const struct om_param *p = m->param; p < m->param + m->nparams; p++) {
		om_param_part(m, p, &first, &end);
		for (uint32_t l = 0; l < p->nlayers && first < end && p->average; l++)
			om_copy(arena + om_state_at(m, p, p->average, l, first),
			    arena + om_home_at(m, p, l, first), (end - first) * m->real);
	}
}

void
om_average_write(
    const struct om_model *m, const struct om_conf *c, unsigned char *arena, uint64_t step)
{
	const uint64_t from = c->average_from ? c->average_from : 1;
	double rate =
	    isnan(c->average_decay) ? 1 / (double)(step - from + 1) : 1 - c->average_decay;

	rate = step <= from ? 1 : rate;
	if (m->average_off)
		om_put(arena, m->average_off, &rate, sizeof rate);
}

/* Of this rank's part n elements from i on: the two change places, or the master's are put back. */
static void
swap_some(const struct om_model *m, unsigned char *arena, const struct om_param *p, uint32_t l,
    uint64_t i, size_t n, bool there, void *a, void *b)
{
	const uint64_t average = om_state_at(m, p, p->average, l, i),
		       weight = om_weight_at(m, p, l, i);

	om_get(arena, average, a, n * m->real);
	if (p->master != OM_NO_MASTER) {
		om_get(arena, om_home_at(m, p, l, i), b, n * m->real);
		om_put_bf16(arena, weight, there ? a : b, n, m->weight_size);
		return;
	}
	om_get(arena, weight, b, n * m->real);
	om_put(arena, weight, a, n * m->real);
	om_put(arena, average, b, n * m->real);
}

void
om_average_swap(const struct om_model *m, unsigned char *arena, bool there)
{
	void *a = om_alloc(SOME, sizeof(double)), *b = om_alloc(SOME, sizeof(double));
	uint64_t first, end, n;

	for (const struct om_param *p = m->param; p < m->param + m->nparams; p++) {
		om_param_part(m, p, &first, &end);
		for (uint32_t l = 0; l < p->nlayers; l++)
			for (uint64_t i = first; i < end; i += n) {
				n = end - i < SOME ? end - i : SOME;
				swap_some(m, arena, p, l, i, (size_t)n, there, a, b);
			}
	}
	om_weights_gather(m, arena);
	free(a);
	free(b);
}

/* ---- of checkpoints -------------------------------------------------------------------------- */

struct mean {
	struct om_reader **r;
	uint32_t n;
	unsigned char *raw; /* [SOME], of one of them */
	double *x;          /* [SOME], and the sum */
	float *y;
};

/* Elements [at, at + n) of a tensor: summed in the order of the checkpoints. */
static void
add_up(struct mean *w, const struct om_entry *e, uint64_t at, size_t n)
{
	memset(w->x, 0, n * sizeof *w->x);
	for (uint32_t k = 0; k < w->n; k++) {
		const size_t size = om_reader_read(w->r[k], e, at, w->raw, n);

		for (size_t i = 0; i < n; i++)
			w->x[i] += size == sizeof(float) ? (double)((const float *)w->raw)[i]
							 : ((const double *)w->raw)[i];
	}
	for (size_t i = 0; i < n; i++)
		w->x[i] /= w->n;
}

static void
fill(struct mean *w, const struct om_model *m, unsigned char *arena, const struct om_param *p,
    const struct om_entry *e)
{
	for (uint64_t at = 0, n; at < p->numel; at += n) {
		n = p->numel - at < SOME ? p->numel - at : SOME;
		add_up(w, e, at, (size_t)n);
		for (size_t i = 0; i < n; i++)
			w->y[i] = (float)w->x[i];
		om_put_weights(
		    m, arena, p, 0, at, m->real == sizeof *w->y ? (void *)w->y : w->x, (size_t)n);
	}
}

int
om_average(
    const struct om_model *models, const char *dir, int npaths, char **path, uint64_t last, int of)
{
	struct mean w = { .raw = om_alloc(SOME, sizeof(double)),
		.x = om_alloc(SOME, sizeof(double)),
		.y = om_alloc(SOME, sizeof(float)) };
	uint64_t size, there = 0;
	char *list = om_ckpt_list(npaths, path, &size);
	struct om_entry *e;
	struct om_model *m;
	unsigned char *arena;
	uint32_t n, all, *entry;

	for (const char *at = list; at < list + size; at += strlen(at) + 1)
		there++;
	if (last > there)
		om_die("average", "there are %s, and last=%llu", om_count(there, "checkpoint"),
		    (unsigned long long)last);
	w.r = om_alloc(there, sizeof(struct om_reader *));
	for (const char *at = list; at < list + size; at += strlen(at) + 1)
		if (!last || there-- <= last)
			w.r[w.n++] = om_reader_open(models, at, "name another", stdout);
	e = om_ckpt_whole(models, &all);
	for (n = 0; n < all && !e[n].file; n++)
		;
	entry = om_alloc(n, sizeof *entry);
	m = om_whole(models, e, n, entry);
	arena = om_arena_host(m);
	for (uint32_t i = 0; i < n; i++) {
		struct om_entry x = e[entry[i]];

		if (of == OM_AVERAGE_WEIGHTS && !x.buffer) /* the same tensor by another name */
			x.t.name = om_text("average.%s", x.t.name);
		for (uint32_t k = 0; k < w.n; k++)
			if (!om_reader_shape(w.r[k], x.t.name, (uint64_t[2]){ 0 }))
				om_die("average", "a checkpoint has no %s; leave out of=average",
				    x.t.name);
		fill(&w, m, arena, &m->param[i], &x);
		if (x.t.name != e[entry[i]].t.name)
			free(x.t.name);
	}
	om_whole_save("average", m, arena, dir);
	printf("average: the mean of %s, %s/step-000000\n", om_count(w.n, "checkpoint"), dir);
	for (uint32_t k = 0; k < w.n; k++)
		om_reader_close(w.r[k]);
	om_whole_free(m);
	om_ckpt_entries_free(e, all);
	free(entry);
	free(list);
	free(w.r);
	free(w.raw);
	free(w.x);
	free(w.y);
	return 0;
}
