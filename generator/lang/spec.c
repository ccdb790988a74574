/*
 * A description as a tree of typed values, and its complete form in Lua: resolved.lua.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lang/lang.h"

static char spec_target_names[1024];
const struct field_row fields[N_FIELDS] = {
#define OBJECT(...)
#define FIELD(o, f, type, lo, hi, dflt, choices, export, doc) \
	{ OBJ_##o, #f, type, lo, hi, dflt, choices, doc },
#include "field.def"
#undef OBJECT
#undef FIELD
};
const char *const object_names[N_OBJECTS] = {
	"",
#define OBJECT(o, doc) #o,
#define FIELD(...)
#include "field.def"
#undef OBJECT
#undef FIELD
};
const char *const object_docs[N_OBJECTS] = {
	"",
#define OBJECT(o, doc) doc,
#define FIELD(...)
#include "field.def"
#undef OBJECT
#undef FIELD
};

/* Width of resolved.lua, and the locals that hold layer kinds: Lua takes 200 a function. */
enum { WIDTH = 100, LOCALS_MAX = 26 };

static uint32_t
first_field(enum object_type type)
{
	static uint32_t first[N_OBJECTS]; /* 0: not known yet, or cheap to find */
	uint32_t f = first[type];
	while (f < N_FIELDS && fields[f].object != type)
		f++;
	return first[type] = f;
}

/* An object of a type whose fields are all unset and stand at pos. */
struct object *
spec_new(enum object_type type, struct pos pos)
{
	struct object *o = xalloc(sizeof(*o));
	uint32_t first = first_field(type), n = 0;
	while (first + n < N_FIELDS && fields[first + n].object == type)
		n++;
	*o = (struct object){ type, pos, xalloc(n * sizeof(*o->v)) };
	for (uint32_t i = 0; i < n; i++) {
		o->v[i].pos = pos;
		o->v[i].type = fields[first + i].type;
	}
	return o;
}

/* A field's value, set or not; an internal error if the object has no such field. */
struct value *
spec_value(const struct object *o, enum field_id f)
{
	if (fields[f].object != o->type)
		internal("%s has no field %s", object_names[o->type], fields[f].name);
	return &o->v[f - first_field(o->type)];
}

static struct value *
typed_value(const struct object *o, enum field_id f, enum field_type a, enum field_type b)
{
	struct value *v = spec_value(o, f);
	if (v->type != a && v->type != b)
		internal("%s.%s read as another type", object_names[o->type], fields[f].name);
	return v;
}

/* The value of an INT or BOOL field. */
int64_t
spec_int(const struct object *o, enum field_id f)
{
	return typed_value(o, f, INT, BOOL)->i;
}

/* The value of a NUM field. */
double
spec_num(const struct object *o, enum field_id f)
{
	return typed_value(o, f, NUM, NUM)->num;
}

/* The value of a STR or ENUM field; NULL if unset. */
const char *
spec_str(const struct object *o, enum field_id f)
{
	return typed_value(o, f, STR, ENUM)->str;
}

/* The value of an OBJ field; NULL if unset. */
struct object *
spec_obj(const struct object *o, enum field_id f)
{
	const struct value *v = typed_value(o, f, OBJ, OBJ);
	return v->n ? v->list[0] : NULL;
}

static bool
value_equal(const struct value *a, const struct value *b)
{
	if (a->set != b->set || a->n != b->n)
		return false;
	for (uint32_t i = 0; i < a->n; i++)
		if (!spec_equal(a->list[i], b->list[i]))
			return false;
	if (!a->set)
		return true;
	switch (a->type) {
	case INT:
	case BOOL:
		return a->i == b->i;
	case NUM:
	case PAIR:
		return a->num == b->num && a->num2 == b->num2 && !a->str == !b->str &&
		       (!a->str || strcmp(a->str, b->str) == 0);
	case INTS:
		return a->nints == b->nints &&
		       memcmp(a->ints, b->ints, a->nints * sizeof(*a->ints)) == 0;
	case STR:
	case ENUM:
		return strcmp(a->str, b->str) == 0;
	case OBJ:
	case LIST:
	case LAYERS:
		break;
	}
	return true;
}

/* Whether two objects have the same type and the same values; where they stand doesn't matter. */
bool
spec_equal(const struct object *a, const struct object *b)
{
	if (a == b)
		return true;
	if (a->type != b->type)
		return false;
	uint32_t first = first_field(a->type);
	for (uint32_t f = first; f < N_FIELDS && fields[f].object == a->type; f++)
		if (!value_equal(&a->v[f - first], &b->v[f - first]))
			return false;
	return true;
}

void
spec_targets(const struct target_row *table)
{
	struct buf b = { 0 };

	for (; table->name; table++)
		buf_printf(&b, "%s%s", b.n ? "|" : "", table->name);
	if (b.n >= sizeof spec_target_names)
		internal("too many targets");
	memcpy(spec_target_names, b.s, b.n + 1);
}

/* Whether a text is one of the choices "a|b|c". */
bool
spec_choice(const char *choices, const char *text)
{
	size_t n = strlen(text);
	for (const char *s = choices; *s; s += strcspn(s, "|"), s += *s == '|')
		if (strcspn(s, "|") == n && memcmp(s, text, n) == 0)
			return true;
	return false;
}

/* Pairs of an object and its copy. */
struct copies {
	struct {
		const struct object *from;
		struct object *to;
	} * a;
	uint32_t n, cap;
};

static struct object *
copy(const struct object *from, struct copies *c)
{
	for (uint32_t i = c->n; i--;)
		if (c->a[i].from == from)
			return c->a[i].to;
	struct object *to = spec_new(from->type, from->pos);
	for (uint32_t f = 0; f < N_FIELDS; f++) {
		if (fields[f].object != from->type)
			continue;
		const struct value *old = spec_value(from, f);
		if (!old->given && !old->idle)
			continue;
		struct value *v = spec_value(to, f);
		*v = *old;
		v->set |= v->idle | v->refused;
		v->given = true;
		v->idle = v->refused = false;
		v->list = xalloc((v->n + 1) * sizeof(*v->list));
		for (uint32_t i = 0; i < v->n; i++)
			v->list[i] = copy(old->list[i], c);
	}
	(void)PUSH(*c);
	c->a[c->n - 1].from = from;
	c->a[c->n - 1].to = to;
	return to;
}

struct object *
spec_copy(const struct object *from)
{
	struct copies c = { 0 };
	return copy(from, &c);
}

/* The choice of a field that a wrong text is close to, or NULL. */
const char *
spec_closest_choice(enum field_id f, const char *text)
{
	const char *name[16];
	uint32_t n = 0;
	for (const char *s = fields[f].choices; *s && n < LEN(name);
	     s += strcspn(s, "|"), s += *s == '|')
		name[n++] = xprintf("%.*s", (int)strcspn(s, "|"), s);
	/* in capitals, or a card or architecture without "cuda:" */
	for (uint32_t i = 0; i < n; i++) {
		const char *colon = strchr(name[i], ':');
		if (!strcasecmp(text, name[i]) || (colon && !strcasecmp(text, colon + 1)))
			return name[i];
	}
	/* who asks for some GPU does not mean the processor, which is a letter away */
	if (f == F_trainer_target && !strncasecmp(text, "gpu", 3))
		return NULL;
	return diag_closest(text, name, n);
}

/* Choices "a|b|c" in words: "a, b or c", each between before and after. */
char *
spec_choices(const char *choices, const char *before, const char *after)
{
	struct buf b = { 0 };
	buf_puts(&b, "");
	for (const char *s = choices, *sep = ""; *s;) {
		size_t n = strcspn(s, "|");
		buf_printf(&b, "%s%s%.*s%s", sep, before, (int)n, s, after);
		s += n + (s[n] == '|');
		sep = strchr(s, '|') ? ", " : " or ";
	}
	return b.s;
}

/* "moe.top_k" */
const char *
spec_name(enum field_id f)
{
	return xprintf("%s.%s", object_names[fields[f].object], fields[f].name);
}

/* What a field takes, in words: "an integer". */
const char *
spec_type(enum field_id f)
{
	const char *choices = fields[f].choices;
	switch (fields[f].type) {
	case INT:
		return "an integer";
	case NUM:
		return *choices ? xprintf("a number or %s", spec_choices(choices, "\"", "\""))
				: "a number";
	case STR:
		return "a string";
	case BOOL:
		return "true or false";
	case INTS:
		return "a list of integers";
	case PAIR:
		return "two numbers { a, b }";
	case ENUM:
		return spec_choices(choices, "\"", "\"");
	case OBJ:
		return spec_choices(choices, "", " { ... }");
	case LIST:
		return xprintf("a list of %s", spec_choices(choices, "", " { ... }"));
	case LAYERS:
		break;
	}
	return xprintf("%s, a list of them, or a function of the layer's index",
	    spec_choices(choices, "", " { ... }"));
}

/* The same with its range: "an integer in 1 .. 8". */
const char *
spec_range(enum field_id f)
{
	const struct field_row *row = &fields[f];
	if (row->type == INT || row->type == INTS)
		return xprintf("%s in %.0f .. %.0f", spec_type(f), row->lo, row->hi);
	if (row->type == NUM && *row->choices)
		return xprintf("a number in %.9g .. %.9g, or %s", row->lo, row->hi,
		    spec_choices(row->choices, "\"", "\""));
	if (row->type == NUM || row->type == PAIR)
		return xprintf("%s in %.9g .. %.9g", spec_type(f), row->lo, row->hi);
	return spec_type(f);
}

/* ---- resolved.lua ---------------------------------------------------------------------------- */

struct printer {
	struct buf *out;
	bool complete;
	uint32_t line; /* of the text's end */
	/* where the description has what is printed, or what stands around it; own: on this line */
	const char *origin, *own;
	const char *const *layers[N_FIELDS]; /* names of the kinds that a LAYERS field refers to */
};

static void
number(struct buf *b, double x)
{
	char s[40];
	for (int digits = 9; digits <= 17; digits++) {
		snprintf(s, sizeof(s), "%.*g", digits, x);
		if (strtod(s, NULL) == x)
			break;
	}
	buf_puts(b, s);
}

static void
quoted(struct buf *b, const char *s)
{
	buf_puts(b, "\"");
	for (; *s; s++) {
		unsigned char c = *s;
		if (c == '"' || c == '\\')
			buf_printf(b, "\\%c", c);
		else if (c < 0x20 || c == 0x7f)
			buf_printf(b, "\\%03d", c);
		else
			buf_add(b, s, 1);
	}
	buf_puts(b, "\"");
}

/* A value on one line; objects too, and those of a list in braces. */
static void
inline_value(struct buf *b, const struct value *v)
{
	switch (v->type) {
	case INT:
		buf_printf(b, "%lld", (long long)v->i);
		return;
	case BOOL:
		buf_puts(b, v->i ? "true" : "false");
		return;
	case NUM:
		if (v->str)
			quoted(b, v->str);
		else
			number(b, v->num);
		return;
	case INTS:
		for (uint32_t i = 0; i < v->nints; i++)
			buf_printf(b, "%s%lld", i ? ", " : "{ ", (long long)v->ints[i]);
		buf_puts(b, " }");
		return;
	case PAIR:
		buf_puts(b, "{ ");
		number(b, v->num);
		buf_puts(b, ", ");
		number(b, v->num2);
		buf_puts(b, " }");
		return;
	case STR:
	case ENUM:
		quoted(b, v->str);
		return;
	case OBJ:
	case LIST:
	case LAYERS:
		break;
	}
	if (v->type == LIST)
		buf_puts(b, v->n ? "{ " : "{");
	for (uint32_t i = 0; i < v->n; i++) {
		const struct object *o = v->list[i];
		uint32_t first = first_field(o->type);
		const char *sep = " ";
		buf_printf(b, "%s%s {", i ? ", " : "", object_names[o->type]);
		for (uint32_t f = first; f < N_FIELDS && fields[f].object == o->type; f++) {
			if (!o->v[f - first].set)
				continue;
			buf_printf(b, "%s%s = ", sep, fields[f].name);
			inline_value(b, &o->v[f - first]);
			sep = ", ";
		}
		buf_puts(b, *sep == ',' ? " }" : "}");
		if (v->type == LAYERS)
			break;
	}
	if (v->type == LIST)
		buf_puts(b, v->n ? " }" : "}");
}

const char *
spec_text(const struct value *v)
{
	struct buf b = { 0 };
	for (uint32_t i = 0; i < v->n && v->type == LAYERS; i++) {
		struct value one = { .type = OBJ, .list = &v->list[i], .n = 1 };
		inline_value(&b, &one);
		buf_puts(&b, "; ");
	}
	if (v->type != LAYERS)
		inline_value(&b, v);
	return b.s;
}

/* A field at the end of a path of objects; its value in each layer, NULL: it is not there. */
struct fact {
	const char *name;
	const char **value;
};
struct facts {
	struct fact *a;
	uint32_t n, cap, layers;
};

/* layer UINT32_MAX: all of them */
static void
add_fact(struct facts *t, const char *name, const char *value, uint32_t layer)
{
	uint32_t i = 0;

	while (i < t->n && strcmp(t->a[i].name, name))
		i++;
	if (i == t->n)
		*PUSH(*t) = (struct fact){ name, xalloc(t->layers * sizeof(*t->a->value)) };
	for (uint32_t l = 0; l < t->layers; l++)
		if (layer == UINT32_MAX || layer == l)
			t->a[i].value[l] = value;
}

static void
facts_of(struct facts *t, const char *path, const struct object *o, uint32_t layer)
{
	uint32_t first = first_field(o->type);

	for (uint32_t f = first; f < N_FIELDS && fields[f].object == o->type; f++) {
		const struct value *v = &o->v[f - first];
		const char *name = *path ? xprintf("%s.%s", path, fields[f].name) : fields[f].name;
		struct buf b = { 0 };
		if (!v->set || (o->type == OBJ_transformer && f == F_transformer_recompute))
			continue;
		for (uint32_t i = 0; i < v->n; i++) {
			uint32_t l = v->type == LAYERS ? i : layer;
			if (strchr(fields[f].choices, '|'))
				add_fact(t, name, object_names[v->list[i]->type], l);
			facts_of(t, name, v->list[i], l);
		}
		if (v->type != OBJ && v->type != LAYERS) {
			inline_value(&b, v);
			add_fact(t, name, b.s, layer);
		}
	}
}

const char *
spec_facts(const struct object *model)
{
	struct facts t = { .layers = (uint32_t)spec_int(model, F_transformer_n_layers) };
	struct buf b = { 0 };

	facts_of(&t, "", model, UINT32_MAX);
	for (const struct fact *x = t.a; x < t.a + t.n; x++) {
		uint32_t n = 0;
		for (uint32_t l = 0; l < t.layers; l++)
			if (x->value[l])
				x->value[n++] = x->value[l];
		buf_printf(&b, "%s = ", x->name);
		for (uint32_t from = 0, to; from < n; from = to) { /* of equal layers */
			for (to = from + 1; to < n && !strcmp(x->value[from], x->value[to]);)
				to++;
			if (!from && to == n)
				buf_puts(&b, x->value[0]);
			else
				buf_printf(
				    &b, "%s%u x %s", from ? ", " : "", to - from, x->value[from]);
		}
		buf_puts(&b, "\n");
	}
	return b.s;
}

static void
set_lines(struct value *v, uint32_t line, const char *origin)
{
	v->rline = line;
	v->origin = origin;
	for (uint32_t i = 0; i < v->n; i++) {
		struct object *o = v->list[i];
		uint32_t first = first_field(o->type);
		for (uint32_t f = first; f < N_FIELDS && fields[f].object == o->type; f++)
			set_lines(&o->v[f - first], line, origin);
	}
}

static void
newline(struct printer *p, int indent)
{
	if (p->own)
		buf_printf(p->out, " -- %s", p->own);
	p->own = NULL;
	buf_printf(p->out, "\n%*s", indent, "");
	p->line++;
}

static void
set_line(const struct printer *p, struct value *v)
{
	v->rline = p->line;
	v->origin = p->origin;
}

/* What is printed now stands there in the description; gives what stands around it. */
static const char *
enter(struct printer *p, const char *own)
{
	const char *around = p->origin;

	p->own = own;
	p->origin = own ? own : around;
	return around;
}

static void print_object(struct printer *p, struct object *o, int indent);

/* The layers' kinds by name, filled up to the line's width. */
static void
print_layers(struct printer *p, struct value *v, const char *const *name, int indent)
{
	size_t column = WIDTH;
	set_line(p, v);
	buf_puts(p->out, "{");
	for (uint32_t i = 0; i < v->n; i++) {
		size_t need = strlen(name[i]) + 2;
		if (column + need > WIDTH) {
			newline(p, indent + 2);
			column = (size_t)indent + 2;
		} else {
			buf_puts(p->out, " ");
			need++;
		}
		buf_printf(p->out, "%s,", name[i]);
		column += need;
	}
	newline(p, indent);
	buf_puts(p->out, "}");
}

/* One field's value at the end of "name = "; column is where it starts. */
static void
print_value(struct printer *p, struct value *v, uint32_t f, int indent, size_t column)
{
	if (p->layers[f]) {
		print_layers(p, v, p->layers[f], indent);
		return;
	}
	struct buf b = { 0 };
	inline_value(&b, v);
	size_t behind = p->own ? strlen(" -- ") + strlen(p->own) : 0;
	if (column + b.n + 1 + behind <= WIDTH || !v->n) {
		buf_add(p->out, b.s, b.n);
		set_lines(v, p->line, p->origin);
		return;
	}
	set_line(p, v);
	if (v->type != LIST) {
		print_object(p, v->list[0], indent);
		return;
	}
	buf_puts(p->out, "{");
	for (uint32_t i = 0; i < v->n; i++) {
		newline(p, indent + 2);
		print_object(p, v->list[i], indent + 2);
		buf_puts(p->out, ",");
	}
	newline(p, indent);
	buf_puts(p->out, "}");
}

/* An object over several lines, a field a line. */
static void
print_object(struct printer *p, struct object *o, int indent)
{
	uint32_t first = first_field(o->type);
	buf_printf(p->out, "%s {", object_names[o->type]);
	for (uint32_t f = first; f < N_FIELDS && fields[f].object == o->type; f++) {
		struct value *v = &o->v[f - first];
		bool object = v->n && v->type != LIST && !p->layers[f];
		set_line(p, v);
		if (!v->set)
			continue;
		newline(p, indent + 2);
		const char *around = enter(p, !p->complete || !v->given
						  ? NULL
						  : origin_of(object ? v->list[0]->pos : v->pos));
		buf_printf(p->out, "%s = ", fields[f].name);
		print_value(p, v, f, indent + 2, (size_t)indent + 2 + strlen(fields[f].name) + 3);
		buf_puts(p->out, ",");
		p->origin = around;
	}
	newline(p, indent);
	buf_puts(p->out, "}");
}

/* Lines of an object, taken over from an equal one that was printed. */
static void
copy_lines(struct object *to, const struct object *from)
{
	uint32_t first = first_field(to->type);
	for (uint32_t f = first; f < N_FIELDS && fields[f].object == to->type; f++) {
		struct value *a = &to->v[f - first];
		const struct value *b = &from->v[f - first];
		a->rline = b->rline;
		a->origin = b->origin;
		for (uint32_t i = 0; i < a->n && i < b->n; i++)
			copy_lines(a->list[i], b->list[i]);
	}
}

/*
 * Prints the kinds of a LAYERS field as locals (a table when there are many), if there is more than
 * one; names them layer by layer. Equal layers that are not printed get the lines of their kind
 * later, by copy_kinds.
 */
static void
print_kinds(struct printer *p, const struct value *v, uint32_t f, struct object **kind, uint32_t n)
{
	const char **name = xalloc((v->n + 1) * sizeof(*name));
	bool table = n > LOCALS_MAX;
	if (n <= 1)
		return;
	if (table) {
		buf_printf(p->out, "local %s_kind = {}", fields[f].name);
		newline(p, 0);
	}
	for (uint32_t k = 0; k < n; k++) {
		const char *text = table ? xprintf("%s_kind[%u]", fields[f].name, k + 1)
					 : xprintf("%s_%c", fields[f].name, 'a' + (int)k);
		buf_printf(p->out, "%s%s = ", table ? "" : "local ", text);
		enter(p, p->complete ? origin_of(kind[k]->pos) : NULL);
		print_object(p, kind[k], 0);
		newline(p, 0);
		for (uint32_t i = 0; i < v->n; i++)
			if (spec_equal(v->list[i], kind[k]))
				name[i] = text;
	}
	p->layers[f] = name;
}

static uint32_t
find_kinds(const struct value *v, struct object **kind)
{
	uint32_t n = 0;
	for (uint32_t i = 0, k; i < v->n; i++) {
		for (k = 0; k < n && !spec_equal(v->list[i], kind[k]);)
			k++;
		if (k == n)
			kind[n++] = v->list[i];
	}
	return n;
}

/*
 * Prints a trainer as Lua that loads to an equal one and prints to the same bytes; what isn't set
 * is left out. Sets the line of every value in it.
 */
void
spec_print(struct object *trainer, bool complete, struct buf *out)
{
	struct printer p = { .out = out, .line = 1, .complete = complete };
	struct value *name = spec_value(trainer, F_trainer_name);
	struct object *model = spec_obj(trainer, F_trainer_model);
	struct object **kind[N_FIELDS] = { NULL };
	uint32_t n[N_FIELDS] = { 0 };
	buf_printf(out, "-- %s, %s", name->set ? name->str : "trainer",
	    complete ? origin_title
		     : "as it is given: defaults are not filled in, rules not checked.");
	newline(&p, 0);
	for (uint32_t f = 0; model && f < N_FIELDS; f++) {
		const struct value *v = fields[f].type == LAYERS && fields[f].object == model->type
					    ? spec_value(model, f)
					    : NULL;
		if (!v || !v->set)
			continue;
		kind[f] = xalloc((v->n + 1) * sizeof(**kind));
		n[f] = find_kinds(v, kind[f]);
		print_kinds(&p, v, f, kind[f], n[f]);
	}
	newline(&p, 0);
	buf_puts(out, "return ");
	enter(&p, complete ? origin_of(trainer->pos) : NULL);
	print_object(&p, trainer, 0);
	buf_puts(out, "\n");
	for (uint32_t f = 0; f < N_FIELDS; f++)
		for (uint32_t k = 0; k < n[f]; k++) {
			const struct value *v = spec_value(model, f);
			for (uint32_t i = 0; i < v->n; i++)
				if (v->list[i] != kind[f][k] && spec_equal(v->list[i], kind[f][k]))
					copy_lines(v->list[i], kind[f][k]);
		}
}

static void
collect_origins(const struct object *o, struct origins *to)
{
	uint32_t first = first_field(o->type);

	for (uint32_t i = first; i < N_FIELDS && fields[i].object == o->type; i++) {
		const struct value *v = &o->v[i - first];
		while (v->set && to->n <= v->rline)
			*PUSH(*to) = NULL;
		if (v->set && !to->a[v->rline])
			to->a[v->rline] = v->origin;
		for (uint32_t k = 0; k < v->n; k++)
			collect_origins(v->list[k], to);
	}
}

struct origins
spec_origins(const struct object *trainer)
{
	struct origins all = { 0 };

	collect_origins(trainer, &all);
	return all;
}

const struct value *
spec_line(const struct object *o, uint32_t rline, enum field_id *f)
{
	uint32_t first = first_field(o->type);

	for (uint32_t i = first; i < N_FIELDS && fields[i].object == o->type; i++) {
		const struct value *v = &o->v[i - first];
		if (v->set && v->rline == rline) {
			*f = (enum field_id)i;
			return v;
		}
		for (uint32_t k = 0; k < v->n; k++) {
			const struct value *inner = spec_line(v->list[k], rline, f);
			if (inner)
				return inner;
		}
	}
	return NULL;
}

bool
spec_is(const struct value *v, uint64_t x)
{
	return v->given && v->type == INT && v->i >= 0 && (uint64_t)v->i == x;
}

const struct value *
spec_size(const struct object *o, uint32_t rline, uint64_t x, enum field_id *f)
{
	uint32_t first = first_field(o->type);
	const struct value *at = NULL;

	for (uint32_t i = first; i < N_FIELDS && fields[i].object == o->type && !at; i++) {
		const struct value *v = &o->v[i - first];
		if (v->set && v->rline == rline) {
			*f = (enum field_id)i;
			at = v;
		}
		for (uint32_t k = 0; k < v->n && !at; k++)
			at = spec_size(v->list[k], rline, x, f);
	}
	if (!at || spec_is(at, x))
		return at;
	for (uint32_t i = first; i < N_FIELDS && fields[i].object == o->type; i++)
		if (spec_is(&o->v[i - first], x)) {
			*f = (enum field_id)i;
			return &o->v[i - first];
		}
	return at;
}
