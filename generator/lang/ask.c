/*
 * What would do in place of an error. Who reports it asks: here stand the questions, with the
 * values that come into question. Who knows all stages tries them on copies of the description.
 */
#include <string.h>

#include "lang/lang.h"

static ARRAY(struct question) questions;
static uint32_t taken;
static ARRAY(struct checked) trainers;
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

static void
add_change(struct way *w, const struct value *v, const char *lua)
{
	w->change[w->n++] = (struct change){ v->f, v->pos, lua };
}

void
ask_value(struct question *q, const struct value *v, uint32_t most, const char *lua)
{
	struct way *w = way(q);

	w->most = most;
	add_change(w, v, lua);
}

void
ask_choices(struct question *q, const struct value *v, const char *choices)
{
	for (const char *s = choices; *s; s += strcspn(s, "|"), s += *s == '|')
		ask_value(q, v, UINT32_MAX, xprintf("\"%.*s\"", (int)strcspn(s, "|"), s));
}

void
ask_words(struct question *q, const char *words, const struct value *v, const char *lua)
{
	struct way *w = way(q);

	w->words = words;
	if (v)
		add_change(w, v, lua);
}

void
ask_without(struct question *q, const struct value *v, const struct value *too)
{
	struct way *w = way(q);

	w->words = xprintf("leave %s%s%s out", fields[v->f].name, too ? " and " : "",
	    too ? fields[too->f].name : "");
	add_change(w, v, NULL);
	if (too)
		add_change(w, too, NULL);
}

/* ---- other values of a description ----------------------------------------------------------- */

/* Lists with an entry a layer get as many as there are: more of the last. */
static void
resize_layers(const struct object *model, uint32_t n)
{
	for (struct value *v = model->v; v < model->v + model->n; v++) {
		if (fields[v->f].type != LAYERS || !v->n)
			continue;
		struct object **list = xalloc((n + 1) * sizeof *list);
		for (uint32_t i = 0; i < n; i++)
			list[i] = v->list[i < v->n ? i : v->n - 1];
		v->list = list;
		v->n = n;
	}
}

static void
change_value(struct object *o, struct value *v, const char *lua)
{
	v->given = v->set = v->refused = v->idle = false;
	if (!lua) {
		v->n = v->nnums = 0;
		return;
	}
	spec_set(o, v, lua);
	v->given = true;
	if (v->f == F_transformer_n_layers)
		resize_layers(o, (uint32_t)v->i);
}

bool
spec_change(struct object *o, const struct change *c)
{
	const char *in = xprintf("%s {}", objects[fields[c->f].object].name);
	bool changed = false;

	for (struct value *v = o->v; v < o->v + o->n; v++) {
		const struct field_row *row = &fields[v->f];
		if (v->f == c->f && (!c->at.file || !pos_order(v->pos, c->at))) {
			change_value(o, v, c->lua);
			changed = true;
		}
		/* what the change is in may be there by default */
		if (c->lua && row->type == OBJ && !v->given && row->dflt &&
		    !strcmp(row->dflt, in)) {
			spec_set(o, v, in);
			v->given = true;
		}
		for (uint32_t i = 0; i < v->n; i++)
			if (!spec_again(v, i))
				changed |= spec_change(v->list[i], c);
	}
	return changed;
}

bool
spec_whole(const struct object *o)
{
	for (const struct value *v = o->v; v < o->v + o->n; v++) {
		if (v->given && !v->set)
			return false;
		for (uint32_t i = 0; i < v->n; i++)
			if (!spec_again(v, i) && !spec_whole(v->list[i]))
				return false;
	}
	return true;
}
