/* The mean of several checkpoints' weights, element by element, as a checkpoint of its own. */
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"

enum { SOME = 1 << 18 }; /* elements at a time */

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
om_average(const struct om_model *models, const char *dir, int npaths, char **path, uint64_t last)
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
	for (uint32_t i = 0; i < n; i++)
		fill(&w, m, arena, &m->param[i], &e[entry[i]]);
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
