/*
 * What would do in place of an error. Who reports it asks: here stand the questions, with the
 * values that come into question. Who knows all stages tries them on copies of the description.
 */
#include <string.h>

#include "lang/lang.h"

static struct {
	struct question *a;
	uint32_t n, cap;
} questions;
static uint32_t taken;
static struct {
	struct checked *a;
	uint32_t n, cap;
} trainers;
static struct checked about;

void
ask_about(const struct object *trainer, const char *target)
{
	uint32_t i = 0;

	if (diag_trying())
		return;
	about = (struct checked){ trainer, target };
	while (i < trainers.n && trainers.a[i].trainer != trainer)
		i++;
	if (i == trainers.n)
		*PUSH(trainers) = about;
}

const struct checked *
ask_checked(uint32_t i)
{
	return i < trainers.n ? &trainers.a[i] : NULL;
}

struct question *
ask(void)
{
	int error = diag_last();

	if (error == DIAG_NONE)
		return NULL;
	struct question *q = PUSH(questions);
	*q = (struct question){ .error = error, .of = about };
	return q;
}

const struct question *
ask_take(void)
{
	return taken < questions.n ? &questions.a[taken++] : NULL;
}

static struct way *
way(struct question *q)
{
	/* what nobody is asked goes nowhere */
	static struct way none;

	return q ? PUSH(q->way) : (none = (struct way){ 0 }, &none);
}

void
ask_value(struct question *q, enum field_id f, struct pos at, uint32_t most, const char *lua)
{
	struct way *w = way(q);

	w->most = most;
	w->change[w->n++] = (struct change){ f, at, lua };
}

void
ask_choices(struct question *q, enum field_id f, struct pos at, const char *choices)
{
	for (const char *s = choices; *s; s += strcspn(s, "|"), s += *s == '|')
		ask_value(q, f, at, UINT32_MAX, xprintf("\"%.*s\"", (int)strcspn(s, "|"), s));
}

void
ask_words(struct question *q, const char *words)
{
	way(q)->words = words;
}

void
ask_change(struct question *q, enum field_id f, struct pos at, const char *lua)
{
	struct way *w = q ? &q->way.a[q->way.n - 1] : way(q);

	w->change[w->n++] = (struct change){ f, at, lua };
}

void
ask_without(struct question *q, enum field_id f, struct pos at, enum field_id g, struct pos and_at)
{
	struct way *w = way(q);

	w->words = f == g ? xprintf("leave %s out", fields[f].name)
			  : xprintf("leave %s and %s out", fields[f].name, fields[g].name);
	w->change[w->n++] = (struct change){ f, at, NULL };
	w->change[w->n++] = (struct change){ g, and_at, NULL };
}

/* ---- other values of a description ----------------------------------------------------------- */

static bool
stands_there(const struct value *v, struct pos at)
{
	return !at.file ||
	       (v->pos.file == at.file && v->pos.line == at.line && v->pos.col == at.col);
}

/* Lists with an entry a layer get as many as there are: more of the last. */
static void
resize_layers(const struct object *model, uint32_t n)
{
	for (uint32_t f = 0; f < N_FIELDS; f++) {
		if (fields[f].object != model->type || fields[f].type != LAYERS)
			continue;
		struct value *v = spec_value(model, f);
		struct object **list = xalloc((n + 1) * sizeof *list);
		for (uint32_t i = 0; i < n && v->n; i++)
			list[i] = v->list[i < v->n ? i : v->n - 1];
		v->list = list;
		v->n = v->n ? n : 0;
	}
}

static void
change_value(struct object *o, struct value *v, const struct change *c)
{
	v->given = v->set = v->refused = v->idle = false;
	if (!c->lua) {
		v->n = v->nints = 0;
		return;
	}
	spec_set(o, c->f, c->lua);
	v->given = true;
	if (c->f == F_transformer_n_layers)
		resize_layers(o, (uint32_t)v->i);
}

bool
spec_change(struct object *o, const struct change *c)
{
	bool changed = false;

	for (uint32_t f = 0; f < N_FIELDS; f++) {
		if (fields[f].object != o->type)
			continue;
		struct value *v = spec_value(o, f);
		if (f == c->f && stands_there(v, c->at)) {
			change_value(o, v, c);
			changed = true;
		}
		/* what the change is in may be there by default */
		const char *object = object_names[fields[c->f].object], *dflt = fields[f].dflt;
		if (c->lua && fields[f].type == OBJ && !v->given && dflt &&
		    strcspn(dflt, " ") == strlen(object) &&
		    !strncmp(dflt, object, strlen(object))) {
			spec_set(o, f, dflt);
			v->given = true;
		}
		for (uint32_t i = 0, j; i < v->n; i++) {
			for (j = 0; j < i && v->list[j] != v->list[i];)
				j++;
			if (j == i)
				changed |= spec_change(v->list[i], c);
		}
	}
	return changed;
}

bool
spec_whole(const struct object *o)
{
	for (uint32_t f = 0; f < N_FIELDS; f++) {
		if (fields[f].object != o->type)
			continue;
		const struct value *v = spec_value(o, f);
		if (v->given && !v->set)
			return false;
		for (uint32_t i = 0; i < v->n; i++)
			if ((!i || v->list[i] != v->list[i - 1]) && !spec_whole(v->list[i]))
				return false;
	}
	return true;
}
