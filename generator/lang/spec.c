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
const struct object_row objects[N_OBJECTS] = {
	{ "", "" },
#define OBJECT(o, doc) { #o, doc },
#define FIELD(...)
#include "field.def"
#undef OBJECT
#undef FIELD
};

const char spec_name_letters[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

/* Width of resolved.lua, and the locals that hold layer kinds: Lua takes 200 a function. */
enum { WIDTH = 100, LOCALS_MAX = 26 };

/* An object of a type whose fields are all unset and stand at pos. */
struct object *
spec_new(enum object_type type, struct pos pos)
{
	struct object *o = xalloc(sizeof(*o));
	uint32_t first = 0, n = 0;
	while (first < N_FIELDS && fields[first].object != type)
		first++;
	while (first + n < N_FIELDS && fields[first + n].object == type)
		n++;
	*o = (struct object){ type, pos, xalloc(n * sizeof(*o->v)), n };
	for (uint32_t i = 0; i < n; i++)
		o->v[i] = (struct value){ .f = (enum field_id)(first + i), .pos = pos };
	return o;
}

/* Of the object, or of one that it has, or that one has; NULL: none of them has the field. */
static struct value *
find_value(const struct object *o, enum field_id f)
{
	struct value *v = NULL;

	if (o->type == fields[f].object)
		return &o->v[f - o->v->f];
	for (uint32_t i = 0; i < o->n && !v; i++)
		if (fields[o->v[i].f].type == OBJ && o->v[i].n)
			v = find_value(o->v[i].list[0], f);
	return v;
}

struct value *
spec_value(const struct object *o, enum field_id f)
{
	/* of an object that is missing, which is an error that was reported, none is set */
	struct value *v = o ? find_value(o, f) : xalloc(sizeof *v);

	if (!v)
		internal("%s has no field %s", objects[o->type].name, fields[f].name);
	return v;
}

static struct value *
typed_value(const struct object *o, enum field_id f, enum field_type a, enum field_type b)
{
	if (fields[f].type != a && fields[f].type != b)
		internal("%s read as another type", spec_name(f));
	return spec_value(o, f);
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
	if (!a->set || !b->set)
		return a->set == b->set;
	if (a->i != b->i || a->num != b->num || a->n != b->n || a->nnums != b->nnums ||
	    !a->str != !b->str || (a->str && strcmp(a->str, b->str)) ||
	    (a->nnums && memcmp(a->nums, b->nums, a->nnums * sizeof(*a->nums))))
		return false;
	for (uint32_t i = 0; i < a->n; i++)
		if (!spec_equal(a->list[i], b->list[i]))
			return false;
	return true;
}

bool
spec_equal(const struct object *a, const struct object *b)
{
	if (a == b)
		return true;
	if (a->type != b->type)
		return false;
	for (uint32_t i = 0; i < a->n; i++)
		if (!value_equal(&a->v[i], &b->v[i]))
			return false;
	return true;
}

bool
spec_again(const struct value *v, uint32_t i)
{
	for (uint32_t j = 0; j < i; j++)
		if (v->list[j] == v->list[i])
			return true;
	return false;
}

/* The object that a text makes, "rope {}", and for a field of LAYERS one a layer, the same. */
static void
set_objects(const struct object *o, struct value *v, const char *lua)
{
	bool layers = fields[v->f].type == LAYERS;
	size_t n = strcspn(lua, " ");
	uint32_t t = OBJ_none + 1;

	while (t < N_OBJECTS && (strlen(objects[t].name) != n || memcmp(objects[t].name, lua, n)))
		t++;
	if (t == N_OBJECTS)
		internal("field.def: no object %s", lua);
	/* without a number of layers there is no list, and an error already */
	v->set = !layers || spec_value(o, F_transformer_n_layers)->set;
	v->n = !layers ? 1 : v->set ? (uint32_t)spec_int(o, F_transformer_n_layers) : 0;
	v->list = xalloc((v->n + 1) * sizeof(*v->list));
	v->list[0] = spec_new(t, v->pos);
	for (uint32_t i = 1; i < v->n; i++)
		v->list[i] = v->list[0];
}

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
	case LAYERS:
		set_objects(o, v, s);
		return;
	case INTS: /* "{}", as of a LIST */
		v->nnums = 0;
		return;
	case LIST:
		return;
	}
}

void
spec_refuse(struct value *v)
{
	v->set = false;
	v->refused = true;
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

bool
spec_choice(const char *choices, const char *text)
{
	size_t n = strlen(text);
	for (const char *s = choices; *s; s += strcspn(s, "|"), s += *s == '|')
		if (strcspn(s, "|") == n && memcmp(s, text, n) == 0)
			return true;
	return false;
}

struct copied {
	const struct object *from;
	struct object *to;
};
typedef ARRAY(struct copied) copies;

static struct object *
copy(const struct object *from, copies *c)
{
	for (uint32_t i = c->n; i--;)
		if (c->a[i].from == from)
			return c->a[i].to;
	struct object *to = spec_new(from->type, from->pos);
	for (uint32_t k = 0; k < from->n; k++) {
		const struct value *old = &from->v[k];
		struct value *v = &to->v[k];
		if (!old->given && !old->idle)
			continue;
		*v = *old;
		v->set |= v->idle | v->refused;
		v->given = true;
		v->idle = v->refused = false;
		v->list = xalloc((v->n + 1) * sizeof(*v->list));
		for (uint32_t i = 0; i < v->n; i++)
			v->list[i] = copy(old->list[i], c);
	}
	*PUSH(*c) = (struct copied){ from, to };
	return to;
}

struct object *
spec_copy(const struct object *from)
{
	return copy(from, &(copies){ 0 });
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

const char *
spec_name(enum field_id f)
{
	return xprintf("%s.%s", objects[fields[f].object].name, fields[f].name);
}

const char *
spec_assigned(const struct value *v)
{
	return xprintf("%s = %s", spec_name(v->f), spec_text(v));
}

const char *
spec_product(const struct value *a, const struct value *b)
{
	return xprintf("%s * %s = %lld * %lld = %lld", spec_name(a->f), spec_name(b->f),
	    (long long)a->i, (long long)b->i, (long long)(a->i * b->i));
}

void
spec_note(const struct value *v)
{
	if (v->given)
		diag_note(v->pos, "%s is set here", spec_name(v->f));
	else
		diag_note(v->pos, "%s by default", spec_assigned(v));
}

const char *
spec_type(enum field_id f)
{
	/* in the order of enum field_type; of the others there are choices alone */
	static const char *const words[] = { "an integer", "a number", "a string", "true or false",
		"", "", "a list of ", "a list of integers", "two numbers { a, b }", "" };
	const char *choices = fields[f].choices;
	enum field_type type = fields[f].type;
	bool quotes = type == NUM || type == ENUM;
	return xprintf("%s%s%s%s", words[type], type == NUM && *choices ? " or " : "",
	    spec_choices(choices, quotes ? "\"" : "", quotes ? "\"" : " { ... }"),
	    type == LAYERS ? ", a list of them, or a function of the layer's index" : "");
}

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
	size_t begin;                        /* of the line that is printed, in out */
	uint32_t number;                     /* of it */
	const char *own;                     /* where the description has what stands on it */
	const struct line *line;             /* of the field whose value is printed */
	const char *const *layers[N_FIELDS]; /* names of the kinds that a LAYERS field refers to */
};

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

static void inline_value(struct buf *b, const struct value *v);

static void
inline_object(struct buf *b, const struct object *o)
{
	const char *sep = " ";
	buf_printf(b, "%s {", objects[o->type].name);
	for (const struct value *v = o->v; v < o->v + o->n; v++)
		if (v->set) {
			buf_printf(b, "%s%s = ", sep, fields[v->f].name);
			inline_value(b, v);
			sep = ", ";
		}
	buf_puts(b, *sep == ',' ? " }" : "}");
}

/* A value on one line; objects too, those of a list in braces, and the first of the layers. */
static void
inline_value(struct buf *b, const struct value *v)
{
	enum field_type type = fields[v->f].type;
	if (v->str) {
		quoted(b, v->str);
	} else if (type == INT) {
		buf_printf(b, "%lld", (long long)v->i);
	} else if (type == BOOL) {
		buf_puts(b, v->i ? "true" : "false");
	} else if (type == NUM) {
		buf_puts(b, text_digits(v->num, 9));
	} else if (type == OBJ || type == LAYERS) {
		if (v->n)
			inline_object(b, v->list[0]);
	} else {
		uint32_t n = v->n + v->nnums;
		for (uint32_t i = 0; i < n; i++) {
			buf_puts(b, i ? ", " : "{ ");
			if (v->n)
				inline_object(b, v->list[i]);
			else
				buf_puts(b, text_digits(v->nums[i], 9));
		}
		buf_puts(b, n ? " }" : "{}");
	}
}

const char *
spec_text(const struct value *v)
{
	bool layers = fields[v->f].type == LAYERS;
	struct buf b = { 0 };
	for (uint32_t i = 0; i < v->n && layers; i++) {
		inline_object(&b, v->list[i]);
		buf_puts(&b, "; ");
	}
	if (!layers)
		inline_value(&b, v);
	return b.s;
}

/* A field at the end of a path of objects: its value, or those of the layers in a row. */
struct fact {
	const char *name, *last;
	uint32_t run;    /* of layers with the last value */
	struct buf runs; /* those before it: "3 x 8" */
};
typedef ARRAY(struct fact) facts;

static void
end_run(struct fact *f)
{
	buf_printf(&f->runs, "%s%u x %s", f->runs.n ? ", " : "", f->run, f->last);
}

static void
add_fact(facts *t, const char *name, const char *value)
{
	uint32_t i = 0;

	while (i < t->n && strcmp(t->a[i].name, name))
		i++;
	if (i == t->n)
		*PUSH(*t) = (struct fact){ .name = name, .last = value };
	struct fact *f = &t->a[i];
	if (strcmp(f->last, value)) {
		end_run(f);
		f->last = value;
		f->run = 0;
	}
	f->run++;
}

static void
facts_of(facts *t, const char *path, const struct object *o)
{
	for (const struct value *v = o->v; v < o->v + o->n; v++) {
		const struct field_row *row = &fields[v->f];
		const char *name = *path ? xprintf("%s.%s", path, row->name) : row->name;
		if (!v->set || v->f == F_transformer_recompute)
			continue;
		for (uint32_t i = 0; i < v->n; i++) {
			if (strchr(row->choices, '|'))
				add_fact(t, name, objects[v->list[i]->type].name);
			facts_of(t, name, v->list[i]);
		}
		if (row->type != OBJ && row->type != LAYERS)
			add_fact(t, name, spec_text(v));
	}
}

const char *
spec_facts(const struct object *model)
{
	facts t = { 0 };
	struct buf b = { 0 };

	facts_of(&t, "", model);
	for (struct fact *f = t.a; f < t.a + t.n; f++) {
		if (f->runs.n)
			end_run(f);
		buf_printf(&b, "%s = %s\n", f->name, f->runs.n ? f->runs.s : f->last);
	}
	return b.s;
}

/* ---- resolved.lua over several lines --------------------------------------------------------- */

/*
 * Where the description has what a line says stands in a comment behind it, "-- tiny.lua:14", so
 * that resolved.lua gives the same tree again. The title ends its first line.
 */
static const char origin_title[] =
    "every default filled in; olmogen regenerates this tree from this file.";

/* The comment of that form at the end of a line; NULL: there is none. */
static const char *
comment_behind(const char *line)
{
	const char *comment = NULL, *colon;

	for (const char *s = line; (s = strstr(s, " -- ")); s++)
		comment = s + strlen(" -- ");
	colon = comment ? strrchr(comment, ':') : NULL;
	return colon && colon[1] && !colon[1 + strspn(colon + 1, "0123456789")] ? comment : NULL;
}

/* "tiny.lua:14"; NULL: not of a file, or not said there. */
static const char *
origin_of(struct pos pos)
{
	const size_t title = sizeof origin_title - 1;
	const char *s;
	size_t n;

	if (!pos.line || !diag_source_line(pos.file, 1, &s, &n))
		return NULL;
	if (n >= title && !memcmp(s + n - title, origin_title, title))
		return pos.line > 1 && diag_source_line(pos.file, pos.line, &s, &n)
			   ? comment_behind(xprintf("%.*s", (int)n, s))
			   : NULL;
	const char *path = diag_file_name(pos.file), *slash = strrchr(path, '/');
	char *name = xprintf("%s:%u", slash ? slash + 1 : path, pos.line);
	om_plain(name);
	return name;
}

static void
set_line(struct value *v, const struct line *line)
{
	v->line = line;
	for (uint32_t i = 0; i < v->n; i++)
		for (uint32_t k = 0; k < v->list[i]->n; k++)
			set_line(&v->list[i]->v[k], line);
}

static void
newline(struct printer *p, int indent)
{
	if (p->own)
		buf_printf(p->out, " -- %s", p->own);
	p->own = NULL;
	buf_puts(p->out, "\n");
	p->begin = p->out->n;
	p->number++;
	buf_printf(p->out, "%*s", indent, "");
}

/* On this line stands an object's field, which the description has at pos. */
static void
enter(struct printer *p, const struct object *of, const struct value *v, struct pos pos)
{
	struct line *l = xalloc(sizeof(*l));
	p->own = p->complete && v->given ? origin_of(pos) : NULL;
	*l = (struct line){ p->number, v, of, p->line, p->own ? p->own : p->line->origin };
	p->line = l;
}

static void print_object(struct printer *p, const struct object *o, int indent);

/* The layers' kinds by name, filled up to the line's width. */
static void
print_layers(struct printer *p, const struct value *v, int indent)
{
	const char *const *name = p->layers[v->f];
	size_t column = WIDTH;
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

/* One field's value at the end of "name = ". */
static void
print_value(struct printer *p, struct value *v, int indent)
{
	struct buf b = { 0 };
	v->line = p->line;
	if (p->layers[v->f]) {
		print_layers(p, v, indent);
		return;
	}
	inline_value(&b, v);
	size_t behind = p->own ? strlen(" -- ") + strlen(p->own) : 0;
	if (p->out->n - p->begin + b.n + 1 + behind <= WIDTH || !v->n) {
		buf_add(p->out, b.s, b.n);
		set_line(v, p->line);
		return;
	}
	if (fields[v->f].type != LIST) {
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
print_object(struct printer *p, const struct object *o, int indent)
{
	const struct line *around = p->line;
	buf_printf(p->out, "%s {", objects[o->type].name);
	for (struct value *v = o->v; v < o->v + o->n; v++) {
		bool object = v->n && fields[v->f].type != LIST && !p->layers[v->f];
		if (!v->set)
			continue;
		newline(p, indent + 2);
		enter(p, o, v, object ? v->list[0]->pos : v->pos);
		buf_printf(p->out, "%s = ", fields[v->f].name);
		print_value(p, v, indent + 2);
		buf_puts(p->out, ",");
		p->line = around;
	}
	newline(p, indent);
	buf_puts(p->out, "}");
}

/* Layers that are equal become one object: what is said of one line is so of each. */
static void
join_equal(const struct value *v)
{
	for (uint32_t i = 0, k; i < v->n; i++) {
		for (k = 0; !spec_equal(v->list[k], v->list[i]);)
			k++;
		v->list[i] = v->list[k];
	}
}

/*
 * Prints the kinds of a model's LAYERS field as locals (a table when there are many) if there are
 * several, and names them layer by layer.
 */
static void
print_kinds(struct printer *p, const struct object *model, const struct value *v)
{
	const struct line *around = p->line;
	const char **name = xalloc((v->n + 1) * sizeof(*name)), *field = fields[v->f].name;
	uint32_t n = 0, nth = 0;
	for (uint32_t i = 0; i < v->n; i++)
		n += !spec_again(v, i);
	if (n <= 1)
		return;
	bool table = n > LOCALS_MAX;
	if (table) {
		buf_printf(p->out, "local %s_kind = {}", field);
		newline(p, 0);
	}
	for (uint32_t i = 0, first; i < v->n; i++) {
		for (first = 0; v->list[first] != v->list[i];)
			first++;
		name[i] = name[first];
		if (first < i)
			continue;
		name[i] = table ? xprintf("%s_kind[%u]", field, nth + 1)
				: xprintf("%s_%c", field, 'a' + (int)nth);
		nth++;
		buf_printf(p->out, "%s%s = ", table ? "" : "local ", name[i]);
		enter(p, model, v, v->list[i]->pos);
		print_object(p, v->list[i], 0);
		newline(p, 0);
		p->line = around;
	}
	p->layers[v->f] = name;
}

void
spec_print(struct object *trainer, bool complete, struct buf *out)
{
	struct line *around = xalloc(sizeof(*around));
	struct printer p = { .out = out, .number = 1, .complete = complete, .line = around };
	struct value *name = spec_value(trainer, F_trainer_name);
	const struct object *model = spec_obj(trainer, F_trainer_model);
	buf_printf(out, "-- %s, %s", name->set ? name->str : "trainer",
	    complete ? origin_title
		     : "as it is given: defaults are not filled in, rules not checked.");
	newline(&p, 0);
	around->of = trainer;
	for (uint32_t k = 0; model && k < model->n; k++)
		if (fields[model->v[k].f].type == LAYERS && model->v[k].set) {
			join_equal(&model->v[k]);
			print_kinds(&p, model, &model->v[k]);
		}
	newline(&p, 0);
	buf_puts(out, "return ");
	p.own = around->origin = complete ? origin_of(trainer->pos) : NULL;
	print_object(&p, trainer, 0);
	buf_puts(out, "\n");
}

bool
spec_is(const struct value *v, uint64_t x)
{
	return v->given && fields[v->f].type == INT && v->i >= 0 && (uint64_t)v->i == x;
}

const struct value *
spec_size(const struct line *line, uint64_t x)
{
	if (spec_is(line->v, x))
		return line->v;
	for (const struct line *l = line; l; l = l->around)
		for (const struct value *v = l->of->v; v < l->of->v + l->of->n; v++)
			if (spec_is(v, x))
				return v;
	return line->v;
}
