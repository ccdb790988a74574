/* Values from Lua text: the defaults of field.def, and what is tried in place of others. */
#include <stdlib.h>
#include <string.h>

#include "lang/lang.h"

static enum object_type
type_named(const char *name, size_t n)
{
	for (uint32_t t = OBJ_none + 1; t < N_OBJECTS; t++)
		if (strlen(objects[t].name) == n && memcmp(objects[t].name, name, n) == 0)
			return t;
	internal("field.def: no object %.*s", (int)n, name);
}

static void
set_object(struct value *v, struct object *o)
{
	v->list = xalloc(sizeof(*v->list));
	v->list[0] = o;
	v->n = 1;
}

/* field.def writes each type in one form only. */
void
spec_set(const struct object *o, struct value *v, const char *s)
{
	v->set = true;
	switch (fields[v->f].type) {
	case INT:
		v->i = strtoll(s, NULL, 10);
		return;
	case NUM:
		v->num = strtod(s, NULL);
		v->str = NULL;
		return;
	case BOOL:
		v->i = strcmp(s, "true") == 0;
		return;
	case STR:
	case ENUM:
		v->str = xprintf("%.*s", (int)strlen(s) - 2, s + 1);
		return;
	case PAIR:
		v->nums = xalloc(2 * sizeof(*v->nums));
		v->nnums = 2;
		if (sscanf(s, "{ %lf, %lf }", &v->nums[0], &v->nums[1]) != 2)
			internal("field.def: default %s", s);
		return;
	case OBJ:
		set_object(v, spec_new(type_named(s, strcspn(s, " ")), v->pos));
		return;
	case LIST:
	case INTS:
		return;
	case LAYERS:
		/* without a number of layers there is no list, and an error already */
		v->set = spec_value(o, F_transformer_n_layers)->set;
		v->n = v->set ? (uint32_t)spec_int(o, F_transformer_n_layers) : 0;
		v->list = xalloc((v->n + 1) * sizeof(*v->list));
		v->list[0] = spec_new(type_named(s, strcspn(s, " ")), v->pos);
		for (uint32_t i = 1; i < v->n; i++)
			v->list[i] = v->list[0];
		return;
	}
}

void
default_refuse(struct value *v)
{
	v->set = false;
	v->refused = true;
}

void
default_again(const struct object *o, struct value *v)
{
	v->given = v->set = false;
	v->idle = !*fields[v->f].dflt;
	if (!v->idle)
		spec_set(o, v, fields[v->f].dflt);
}
