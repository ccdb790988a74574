/*
 * Weights of another model, or of another's, as a checkpoint from which every layout trains: of
 * Hugging Face's layout, or to become more experts also of a checkpoint.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hf.h"

struct om_model *
om_whole(const struct om_model *models, const struct om_entry *e, uint32_t n, uint32_t *entry)
{
	enum { FIRST = 64 };
	struct om_model *m = om_alloc(1, sizeof *m);
	struct om_param *p = om_alloc(n, sizeof *p);
	struct om_bucket *b = om_alloc(1, sizeof *b);
	uint64_t at = 0, behind;

	*m = *models;
	m->mesh = om_mesh((uint64_t[OM_N_AXES]){ 0 });
	m->param = p;
	m->bucket = b;
	m->nbuckets = 1;
	m->nparams = m->nbuffers = 0;
	for (int buffers = 0; buffers < 2; buffers++)
		for (uint32_t i = 0; i < n; i++) {
			struct om_param *q = &p[m->nparams + m->nbuffers];

			if (e[i].buffer != (buffers == 1))
				continue;
			entry[m->nparams + m->nbuffers] = i;
			*q = (struct om_param){ .name = e[i].t.name,
				.numel = e[i].p->numel,
				.dim = { e[i].p->dim[0], e[i].p->dim[1] },
				.ndims = e[i].p->ndims,
				.param_group = e[i].p->param_group,
				.nlayers = 1,
				.copies = OM_DATA,
				.at = at,
				.weight = FIRST + at * m->real };
			at += q->numel;
			if (buffers)
				m->nbuffers++;
			else
				m->nparams++;
			b->elems = buffers ? b->elems : at;
		}
	behind = FIRST + at * m->real;
	for (uint32_t i = 0; i < m->nparams; i++) {
		p[i].m = behind + p[i].at * m->moment_size;
		if (e[entry[i]].p->v)
			p[i].v = p[i].m + b->elems * m->moment_size;
	}
	b->group = OM_DATA;
	b->weight = FIRST;
	b->nlayers = 1;
	m->arena_bytes = behind + 2 * b->elems * m->moment_size;
	return m;
}

void
om_whole_free(struct om_model *m)
{
	free((void *)(uintptr_t)m->param);
	free((void *)(uintptr_t)m->bucket);
	free(m);
}

void
om_whole_save(
    const char *operation, const struct om_model *m, const unsigned char *arena, const char *dir)
{
	struct om_conf c = { .dir = om_text("%s", dir) };
	struct om_ckpt k;
	char *there;

	om_ckpt_open(&k, m, NULL, NULL, &c);
	if ((there = om_ckpt_newest(&k)))
		om_die(operation, "%s is here already; give another directory", there);
	om_ckpt_save(&k, arena, 0);
	om_ckpt_close(&k);
	om_conf_free(&c);
}

struct work {
	const struct om_giver *g;
	struct om_model *m;
	unsigned char *arena;
	size_t most; /* elements at a time */
	double *x, *z;
	float *y;
};

/* Elements of the stored parameter, n from `at` on. */
static void
put(struct work *w, const struct om_param *p, uint64_t at, size_t n)
{
	for (size_t i = 0; w->m->real == sizeof *w->y && i < n; i++)
		w->y[i] = (float)w->x[i];
	om_put_weights(w->m, w->arena, p, 0, at, w->m->real == 4 ? (void *)w->y : (void *)w->x, n);
}

/* Its numbers times factor, and 1 + noise times a number that is the tensor's and element's own. */
static void
change(struct work *w, const struct om_origin *o, const struct om_upcycle *up, const char *name,
    uint64_t at, size_t n)
{
	if (o->noise > 0)
		om_normal(up->seed, name, at, n, w->z);
	for (size_t i = 0; i < n; i++)
		w->x[i] *= o->factor * (o->noise > 0 ? 1 + o->noise * w->z[i] : 1);
}

/*
 * Row by row, what does not lie there as it is here: a router's rows, or its bias, each of them so
 * many times; a part of a matrix; a router that is drawn.
 */
static void
by_rows(struct work *w, const struct om_origin *o, const struct om_upcycle *up,
    const struct om_param *p)
{
	uint64_t row = p->ndims > 1 ? p->dim[1] : 1, numel = p->numel / o->repeat * o->parts;
	uint64_t first = o->columns ? 0 : o->part * p->dim[0],
		 side = o->columns ? o->part * row : 0, wide = o->columns ? o->parts * row : row;
	double *all = o->from == OM_FRESH ? NULL : om_alloc(numel, sizeof *all);

	for (uint64_t at = 0, n; all && at < numel; at += n) {
		n = w->g->some(w->g->of, o->from, numel - at);
		w->g->read(w->g->of, o->from, at, all + at, (size_t)n);
	}
	for (uint64_t r = 0; r < p->dim[0]; r++)
		for (uint64_t c = 0, n; c < row; c += n) {
			uint64_t from = r / o->repeat;

			n = row - c < w->most ? row - c : w->most;
			if (all)
				memcpy(
				    w->x, all + (first + from) * wide + side + c, n * sizeof *all);
			else
				om_normal(up->seed, p->name, from * o->repeat * row + c, n, w->x);
			for (uint64_t i = 0; !all && i < n; i++)
				w->x[i] *= w->m->init_std;
			change(w, o, up, p->name, r * row + c, (size_t)n);
			put(w, p, r * row + c, (size_t)n);
		}
	free(all);
}

static void
fill(struct work *w, const struct om_origin *o, const struct om_upcycle *up,
    const struct om_param *p)
{
	if (o->from == OM_NOTHING)
		return;
	if (o->from == OM_FRESH || o->repeat > 1 || o->parts > 1) {
		by_rows(w, o, up, p);
		return;
	}
	for (uint64_t at = 0, n; at < p->numel; at += n) {
		n = w->g->some(w->g->of, o->from, p->numel - at);
		w->g->read(w->g->of, o->from, at, w->x, (size_t)n);
		change(w, o, up, p->name, at, (size_t)n);
		put(w, p, at, (size_t)n);
	}
}

/* ---- a checkpoint ---------------------------------------------------------------------------- */

struct shelf {
	struct om_reader *r;
	const struct om_model *m;
	const struct om_entry *e;
	unsigned char *raw;
};
enum { SOME = 1 << 20 };

static bool
shelf_shape(void *of, const char *name, uint64_t dim[2])
{
	return om_reader_shape(((struct shelf *)of)->r, name, dim);
}

static size_t
shelf_take(void *of, const struct om_entry *e, uint32_t n)
{
	struct shelf *s = of;

	s->e = e;
	s->raw = om_alloc(SOME, sizeof(double));
	om_reader_check(s->r, e, n);
	return SOME;
}

static size_t
shelf_some(void *of, uint32_t i, uint64_t left)
{
	(void)of, (void)i;
	return left < SOME ? (size_t)left : SOME;
}

static void
shelf_read(void *of, uint32_t i, uint64_t at, double *x, size_t n)
{
	struct shelf *s = of;
	size_t size = om_reader_read(s->r, &s->e[i], at, s->raw, n);
	float y;

	for (size_t j = 0; j < n; j++)
		if (size == sizeof y) {
			memcpy(&y, s->raw + j * size, size);
			x[j] = (double)y;
		} else {
			memcpy(&x[j], s->raw + j * size, size);
		}
}

static void
shelf_close(void *of)
{
	struct shelf *s = of;

	om_reader_close(s->r);
	free(s->raw);
}

static void
shelf(struct om_giver *g, const struct om_model *models, const char *path)
{
	static struct shelf s;

	s.m = models;
	s.r = om_reader_foreign(models, path, "name its folder", stdout);
	*g = (struct om_giver){ &s, path, shelf_shape, shelf_take, shelf_some, shelf_read,
		shelf_close, om_reader_fact(s.r, "feed_forward.top_k") };
}

int
om_import(
    const struct om_model *models, const char *from, const char *dir, const struct om_upcycle *up)
{
	struct om_entry *e, *taken;
	struct om_origin *o;
	struct om_giver g;
	struct work w = { .g = &g };
	uint32_t n, all, count, *entry;

	if (up &&
	    (om_ckpt_is_one(from) || om_ckpt_newest_below(from, OM_NO_STEP, NULL) != OM_NO_STEP))
		shelf(&g, models, from);
	else
		om_hf_giver(&g, models, from, up);
	e = om_ckpt_whole(models, &all);
	for (n = 0; n < all && !e[n].file; n++)
		;
	o = om_origins(models, &g, up, e, n, &taken, &count);
	w.most = g.take(g.of, taken, count);
	entry = om_alloc(n, sizeof *entry);
	w.m = om_whole(models, e, n, entry);
	w.arena = om_arena_host(w.m);
	w.x = om_alloc(w.most, sizeof *w.x);
	w.z = om_alloc(w.most, sizeof *w.z);
	w.y = om_alloc(w.most, sizeof *w.y);
	for (uint32_t i = 0; i < n; i++)
		fill(&w, &o[entry[i]], up, &w.m->param[i]);
	om_whole_save("import", w.m, w.arena, dir);
	printf("import: %s, %s/step-000000; train on by checkpoint.dir=%s\n", om_count(n, "tensor"),
	    dir, dir);
	g.close(g.of);
	for (uint32_t i = 0; i < count; i++)
		free(taken[i].t.name);
	free((void *)(uintptr_t)(count ? taken[0].p : NULL)); /* of all of them */
	om_whole_free(w.m);
	free(taken);
	free(o);
	free(entry);
	free(w.x);
	free(w.y);
	free(w.z);
	om_ckpt_entries_free(e, all);
	return 0;
}
