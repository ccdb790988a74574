/*
 * Which weights of another model become which of this one. Upcycling (Komatsuzaki et al., 2022): a
 * layer that is dense there has experts here, each of them a copy of the dense feed-forward, and a
 * fresh router; one that has experts there has a multiple of them here. Where experts are narrower
 * than the dense feed-forward, as many as make its width are the parts of a copy, and their rows of
 * the router begin alike, so that they are chosen together (He et al., 2024).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hf.h"

static const char layers[] = "model.layers.", experts[] = "mlp.experts.";

/* A field of the model by its name among the facts; 0 or more is a number or a truth value. */
static double
fact(const struct om_model *m, const char *name, double otherwise)
{
	char *line = om_text("feed_forward.%s = ", name);
	const char *s = m->facts ? strstr(m->facts, line) : NULL;

	if (s) {
		s += strlen(line);
		if (strstr(s, " x ") && strstr(s, " x ") < s + strcspn(s, "\n"))
			om_die("import", "router.%s differs by layer, which cannot be upcycled",
			    strrchr(name, '.') + 1);
		otherwise =
		    strncmp(s, "true", 4) == 0 || strncmp(s, "\"sigmoid\"", 9) == 0 ? 1 : atof(s);
	}
	free(line);
	return otherwise;
}

/* What the weights of a token's experts add up to where all scores are alike; *exact: always. */
static double
sum_of_weights(const struct om_model *m, double e, double k, bool *exact)
{
	double scale = fact(m, "router.weight_scale", 1);
	bool sigmoid = fact(m, "router.score", 0) == 1;

	*exact = fact(m, "router.normalize", 0) == 1 ||
		 (m->facts && strstr(m->facts, "router.score = \"topk_softmax\""));
	return *exact ? scale : scale * k * (sigmoid ? 0.5 : 1 / e);
}

static bool
ends(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && strcmp(s + n - m, end) == 0;
}

struct plan {
	const struct om_model *m;
	const struct om_giver *s;
	const struct om_upcycle *up;
	struct om_entry *from; /* of the source, each once */
	struct om_param *param;
	uint32_t n;
	json_t *index; /* their numbers by name */
	/* by the names of this model's routers: experts, and how wide each of them is */
	json_t *routers, *widths;
	double k, sum;         /* experts a token; what their weights add up to */
	bool exact;            /* whatever their scores are */
	uint64_t parts;        /* experts that a copy of a dense layer is divided among */
	uint64_t dense, grown; /* experts that are copies of a dense layer's, of an expert */
	uint64_t before, now;  /* experts of a layer that has more of them now */
};

/* The source's entry of that name and shape, which take() will look for. */
static uint32_t
source(struct plan *p, const char *name, const uint64_t dim[2], int ndims, const struct om_entry *e)
{
	const json_t *known = json_object_get(p->index, name);
	struct om_entry *f = &p->from[p->n];
	struct om_param *q = &p->param[p->n];

	if (known)
		return (uint32_t)json_integer_value(known);
	*f = (struct om_entry){
		.t = { om_text("%s", name), e->t.dtype, { dim[0], dim[1] }, ndims, 0, 0 }, .p = q
	};
	*q = *e->p;
	memcpy(q->dim, dim, sizeof q->dim);
	q->numel = dim[0] * (ndims > 1 ? dim[1] : 1);
	f->numel = f->end = q->numel;
	json_object_set_new(p->index, name, json_integer(p->n));
	return p->n++;
}

static bool
has(const struct plan *p, const char *name, uint64_t dim[2])
{
	return p->s->shape(p->s->of, name, dim);
}

/* What is known of a layer here by its router: how many experts, or how wide; 0: it is dense. */
static uint64_t
known_of(const json_t *routers, const char *head)
{
	char *name = om_text("%smlp.gate.weight", head);
	const json_t *count = json_object_get(routers, name);

	free(name);
	return count ? (uint64_t)json_integer_value(count) : 0;
}

/* How many experts of this model come of each of the source's; now: how many it has. */
static uint64_t
copies(struct plan *p, const char *head, uint64_t before, uint64_t now)
{
	if (now % before || now < before)
		om_die("import",
		    "%s: %smlp has %llu experts, the trainer's model %llu, which has to be a "
		    "multiple: each of them becomes as many copies",
		    p->s->path, head, (unsigned long long)before, (unsigned long long)now);
	if (now > before)
		p->before = before;
	return now / before;
}

/* Among how many of a layer's experts a copy of the source's dense one is divided. */
static uint64_t
parts_of(struct plan *p, const char *head)
{
	char *name = om_text("%smlp.up_proj.weight", head);
	uint64_t dim[2], parts = 1, experts = known_of(p->routers, head),
			 width = known_of(p->widths, head);

	if (has(p, name, dim)) {
		parts = dim[0] / width;
		if (dim[0] % width || experts % parts)
			om_die("import",
			    "%s: %s is %llu wide; moe.hidden_size = %llu has to be that or a part "
			    "of it, and moe.num_experts = %llu a multiple of the number of parts",
			    p->s->path, name, (unsigned long long)dim[0], (unsigned long long)width,
			    (unsigned long long)experts);
	}
	free(name);
	return p->parts = parts;
}

/* An expert's matrix: a copy of one of the source's experts, or of its dense layer. */
static void
expert(struct plan *p, const char *head, const char *tail, uint64_t now, const struct om_entry *e,
    struct om_origin *o)
{
	uint64_t dim[2], whole[2], number = strtoull(tail + sizeof experts - 1, NULL, 10), r;
	const char *matrix = strchr(tail + sizeof experts - 1, '.') + 1;
	char *router = om_text("%smlp.gate.weight", head), *name;
	bool down = strncmp(matrix, "down", 4) == 0;

	if (has(p, router, dim)) {
		r = copies(p, head, dim[0], now);
		name =
		    om_text("%s%s%llu.%s", head, experts, (unsigned long long)(number / r), matrix);
		o->noise = r > 1 ? p->up->noise : 0;
		/* all copies of what was chosen are chosen, and each has the whole of its weight */
		if (down && r > 1 && !p->exact && fact(p->m, "router.score", 0) == 1 &&
		    p->k == (double)r * p->s->experts_per_token)
			o->factor = 1 / (double)r;
		p->grown += r > 1 && down;
	} else {
		name = om_text("%smlp.%s", head, matrix);
		o->noise = p->up->noise;
		o->parts = parts_of(p, head);
		o->part = number % o->parts;
		o->columns = down;
		o->factor = down ? (double)o->parts / p->sum : 1;
		p->dense += down;
	}
	memcpy(whole, e->p->dim, sizeof whole);
	whole[down] *= o->parts;
	if (has(p, name, dim) && memcmp(dim, whole, sizeof dim) != 0)
		om_die("import",
		    "%s: %s is [%llu, %llu], an expert's here is [%llu, %llu]: set moe.hidden_size "
		    "to its width",
		    p->s->path, name, (unsigned long long)dim[0], (unsigned long long)dim[1],
		    (unsigned long long)e->p->dim[0], (unsigned long long)e->p->dim[1]);
	o->from = source(p, name, whole, e->p->ndims, e);
	free(router);
	free(name);
}

/* What a router, or its bias, comes of. */
static void
router(struct plan *p, const char *head, bool bias, const struct om_entry *e, struct om_origin *o)
{
	uint64_t dim[2], rows = e->p->dim[0];

	if (has(p, e->t.name, dim)) {
		o->repeat = copies(p, head, dim[0], rows);
		o->noise = !bias && o->repeat > 1 ? p->up->noise : 0;
		dim[1] = e->p->dim[1];
		o->from = source(p, e->t.name, dim, e->p->ndims, e);
	} else {
		o->from = bias ? OM_NOTHING : OM_FRESH;
		o->repeat = parts_of(p, head); /* the parts of a copy are chosen together */
	}
}

static void
origin(struct plan *p, const struct om_entry *e, struct om_origin *o)
{
	const char *name = e->t.name, *tail = name;
	char *head = NULL;
	uint64_t now = 0, dim[2];

	*o = (struct om_origin){ .repeat = 1, .parts = 1, .factor = 1 };
	if (p->up && strncmp(name, layers, sizeof layers - 1) == 0 &&
	    (tail = strchr(name + sizeof layers - 1, '.'))) {
		head = om_text("%.*s", (int)(++tail - name), name);
		now = known_of(p->routers, head);
	}
	if (now && strncmp(tail, experts, sizeof experts - 1) == 0)
		expert(p, head, tail, now, e, o);
	else if (now && strcmp(tail, "mlp.gate.weight") == 0)
		router(p, head, false, e, o);
	else if (now && strcmp(tail, "mlp.gate.e_score_correction_bias") == 0)
		router(p, head, true, e, o);
	else if (now && strncmp(tail, "mlp.shared_expert.", 18) == 0 && !has(p, name, dim))
		om_die("import",
		    "%s has no shared expert, the trainer's model has one: upcycle into a model "
		    "with moe.shared_hidden_size = 0",
		    p->s->path);
	else
		o->from = source(p, name, e->p->dim, e->p->ndims, e);
	free(head);
}

/* What was done, and what it means for what the model computes. */
static void
tell(const struct plan *p)
{
	double r = p->before ? (double)p->now / (double)p->before : 1;

	if (!p->dense && !p->grown)
		om_die("import", "%s: nothing in it becomes more; leave out upcycle=", p->s->path);
	if (p->dense && p->parts == 1)
		printf("import: %s are copies of dense layers with noise of %g; routers are "
		       "fresh\n",
		    om_count(p->dense, "expert"), p->up->noise);
	if (p->dense && p->parts > 1)
		printf("import: %s are parts of copies of dense layers, %llu of each, with noise "
		       "of %g; routers are fresh, and alike for the parts of a copy\n",
		    om_count(p->dense, "expert"), (unsigned long long)p->parts, p->up->noise);
	if (p->dense && fmod(p->k, (double)p->parts) != 0)
		printf("import: moe.top_k is %g: with a multiple of %llu all parts of a copy would "
		       "be chosen together, and the model compute what it did\n",
		    p->k, (unsigned long long)p->parts);
	if (p->dense && !p->exact)
		printf("import: router.normalize is false: the weights of a token's experts add up "
		       "to about %g, which down_proj makes up for; what the model computes is near "
		       "the dense one's\n",
		    p->sum);
	if (p->grown)
		printf("import: %s, %llu of each, are copies with noise of %g, and so are rows of "
		       "routers\n",
		    om_count(p->grown, "expert"), (unsigned long long)r, p->up->noise);
	if (p->grown && p->s->experts_per_token && p->k != r * p->s->experts_per_token)
		printf("import: moe.top_k is %g, was %g: with %g all copies of an expert would be "
		       "chosen together, and the model compute what it did\n",
		    p->k, p->s->experts_per_token, r * p->s->experts_per_token);
}

struct om_origin *
om_origins(const struct om_model *m, const struct om_giver *s, const struct om_upcycle *up,
    const struct om_entry *e, uint32_t n, struct om_entry **from, uint32_t *nfrom)
{
	struct om_origin *o = om_alloc(n, sizeof *o);
	struct plan p = { .m = m,
		.s = s,
		.up = up,
		.parts = 1,
		.index = json_object(),
		.routers = json_object(),
		.widths = json_object() };
	static const char first[] = "mlp.experts.0.up_proj.weight";

	p.from = om_alloc(n, sizeof *p.from);
	p.param = om_alloc(n, sizeof *p.param); /* entries point to them to the end */
	for (uint32_t i = 0; up && i < n; i++) {
		const char *name = e[i].t.name;
		json_t *rows = json_integer((json_int_t)e[i].p->dim[0]);

		if (ends(name, ".mlp.gate.weight")) {
			json_object_set(p.routers, name, rows);
			p.now = e[i].p->dim[0];
		} else if (ends(name, first)) {
			char *router = om_text(
			    "%.*smlp.gate.weight", (int)(strlen(name) + 1 - sizeof first), name);

			json_object_set(p.widths, router, rows);
			free(router);
		}
		json_decref(rows);
	}
	if (up && !p.now)
		om_die("import", "this trainer's model has no experts; leave out upcycle=");
	p.k = fact(m, "top_k", 1);
	p.sum = up ? sum_of_weights(m, (double)p.now, p.k, &p.exact) : 1;
	for (uint32_t i = 0; i < n; i++)
		origin(&p, &e[i], &o[i]);
	if (up)
		tell(&p);
	json_decref(p.index);
	json_decref(p.routers);
	json_decref(p.widths);
	*from = p.from;
	*nfrom = p.n;
	return o;
}
