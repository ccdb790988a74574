/*
 * run.yaml: the table of keys, key.def, drives parsing, checking, --help and suggestions. A value
 * is read the same way from the file, from a key=value of the command line and from the table's
 * default. What keys must be beside one another is conf_rules.c's.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "rates.h"
#include "yaml_limits.h"

enum {
	FILE_MOST = 1 << 20, /* bytes of run.yaml */
	NAMED_MOST = 256,    /* sources of a mix, or sets of eval */
	NAME_SIZE = 32       /* bytes, with a 0 */
};

/* Where the keys of run.yaml were given, or those of a struct om_set with a name. */
struct where {
	struct om_at seen[OM_NKEYS];  /* in this text */
	struct om_at given[OM_NKEYS]; /* last, in any text */
	struct om_at name;            /* the set's */
};

struct reader {
	struct om_conf *conf;
	const struct om_src *src;
	uint32_t skip; /* characters before the value, on the command line */
	yaml_document_t doc;
	struct where *where; /* [nwhere]: the first is not of a set */
	uint32_t nwhere;
};

/* One at a time; errors point into it. */
static struct reader reader;

struct om_at
om_conf_given(const char *name)
{
	return reader.where[0].given[om_key_find(name) - om_keys];
}

struct om_at
om_conf_named(const struct om_set *s, const char *key)
{
	const struct where *w = &reader.where[s->where];

	return key ? w->given[om_key_find(key) - om_keys] : w->name;
}

bool
om_conf_evaluates(const struct om_conf *c)
{
	return c->eval.paths.n || c->eval.nsources;
}

/* The set whose sources have names of that section. */
static struct om_set *
parent_of(struct om_conf *c, const struct om_named *of)
{
	return (struct om_set *)((char *)c + of->at);
}

static struct om_at
mark(const struct reader *r, yaml_mark_t m)
{
	struct om_at at = { r->src, (uint32_t)m.line + 1, (uint32_t)m.column + 1 + r->skip, 1 };

	if (r->src->arg && m.line) /* the end, for libyaml a line of its own */
		at = (struct om_at){ r->src, 1, (uint32_t)r->src->n + 1, 1 };
	return at;
}

static struct om_at
place(const struct reader *r, const yaml_node_t *node)
{
	yaml_mark_t a = node->start_mark, b = node->end_mark;
	struct om_at at = mark(r, a);

	if (a.line == b.line && b.column > a.column)
		at.len = (uint32_t)(b.column - a.column);
	return at;
}

static const char *
scalar(const yaml_node_t *node)
{
	return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
}

/* Whether a text, or an item of a list, is YAML's null and not a text. */
static bool
is_null(const yaml_node_t *node)
{
	static const char *const word[] = { "~", "null", "Null", "NULL" };
	const char *s = scalar(node);

	for (size_t i = 0; i < OM_LEN(word); i++)
		if (s && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
		    strcmp(s, word[i]) == 0)
			return true;
	return false;
}

/* The value as a message shows it. */
static const char *
shown(const yaml_node_t *node, char text[64])
{
	const char *s = scalar(node);
	bool quoted = s && node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;

	if (!s && node->type == YAML_SEQUENCE_NODE)
		return node->data.sequence.items.top > node->data.sequence.items.start ? "[...]"
										       : "[]";
	if (!s)
		return "{...}";
	snprintf(text, 64, "%s%.48s%s%s", quoted ? "\"" : "", s, strlen(s) > 48 ? "..." : "",
	    quoted ? "\"" : "");
	return text;
}

static void
unknown(struct om_at at, const char *name, const yaml_node_t *value, const char *section)
{
	const char *last = strrchr(name, '.');
	const char *near, *lua;
	char list[256];

	last = last ? last + 1 : name;
	lua = om_key_fixed(last);
	if (lua) {
		om_diag(at, "%s is fixed in the trainer", om_clip(name));
		om_diag_help("set it in the Lua description's %s and generate again", lua);
		return;
	}
	om_diag(at, "%s is not a key", om_clip(name));
	if (om_diag_count() > OM_DIAG_MAX) /* nobody sees what comes now, and it takes time */
		return;
	near = om_key_closest(name, value->type == YAML_MAPPING_NODE);
	if (near) {
		om_diag_help("did you mean %s?", near);
		return;
	}
	om_keys_of(section, list, sizeof list);
	if (*section)
		om_diag_help("%s has %s", section, list);
	else
		om_diag_help("the keys are %s", list);
}

static void
list_free(struct om_list *list)
{
	for (uint32_t i = 0; i < list->n; i++)
		free(list->a[i]);
	free(list->a);
	*list = (struct om_list){ NULL, 0 };
}

static bool
set_list(struct reader *r, yaml_node_t *node, struct om_list *list, double min)
{
	yaml_node_item_t *first = &(yaml_node_item_t){ 0 }, *end = first + 1;

	list_free(list);
	if (node->type == YAML_SEQUENCE_NODE) {
		first = node->data.sequence.items.start;
		end = node->data.sequence.items.top;
	}
	list->a = om_alloc((size_t)(end - first), sizeof *list->a);
	for (; first < end; first++) {
		yaml_node_t *item = *first ? yaml_document_get_node(&r->doc, *first) : node;
		const char *s = scalar(item);

		if (!s || !*s || is_null(item))
			return false;
		list->a[list->n++] = om_text("%s", s);
	}
	return list->n >= min;
}

/*
 * Reads node into the key's place, in the set, NULL: in none; false: it isn't what the key's rule
 * says.
 */
static bool
set(struct reader *r, const struct om_key *k, struct om_set *in, yaml_node_t *node)
{
	const char *s = scalar(node);
	bool plain = s && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
	void *at = (in ? (char *)in : (char *)r->conf) + k->at;
	char *end;
	double x;
	int c;

	if (k->kind == OM_LIST)
		return set_list(r, node, at, k->min);
	if (!s || (k->kind != OM_TEXT && !plain) || (k->kind == OM_TEXT && is_null(node)))
		return false;
	switch (k->kind) {
	case OM_WHOLE:
		*(uint64_t *)at = OM_NONE;
		if (om_key_may_be_none(k) && strcmp(s, "none") == 0)
			return true;
		errno = 0;
		if (!*s || s[strspn(s, "0123456789")])
			return false;
		*(uint64_t *)at = strtoull(s, &end, 10);
		/* a double holds the limits, but not all numbers beyond them */
		return !errno && *(uint64_t *)at >= (uint64_t)k->min &&
		       *(uint64_t *)at <= (uint64_t)k->max;
	case OM_NUMBER:
		*(double *)at = NAN;
		if (om_key_may_be_none(k) && strcmp(s, "none") == 0)
			return true;
		x = strtod(s, &end);
		*(double *)at = x;
		return *s && !*end && !s[strspn(s, "0123456789+-.eE")] && x >= k->min &&
		       x <= k->max;
	case OM_YESNO:
		*(bool *)at = strcmp(s, "true") == 0;
		return *(bool *)at || strcmp(s, "false") == 0;
	case OM_TEXT:
		free(*(char **)at);
		*(char **)at = om_text("%s", s);
		return true;
	default:
		c = om_key_choice(k->choices, s);
		*(int *)at = c < 0 ? 0 : c;
		return c >= 0;
	}
}

/* The value of the key of that name, of a set, NULL: of none. */
static void
value(struct reader *r, const struct om_key *k, struct om_set *in, const char *name,
    struct om_at key_at, yaml_node_t *node)
{
	const char *s = scalar(node);
	size_t i = (size_t)(k - om_keys);
	struct where *w = &r->where[in ? in->where : 0];
	char text[64], must[128];
	double x;

	if (w->seen[i].line) {
		om_diag(key_at, "%s is given twice", name);
		om_diag_note(w->seen[i], "it is given here first");
		return;
	}
	w->seen[i] = w->given[i] = key_at;
	if (s && !*s && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
	    !(r->src->arg && k->kind == OM_TEXT)) {
		om_key_rule(k, must);
		om_diag(key_at, "%s has no value", name);
		om_diag_help("%s must be %s", name, must);
		return;
	}
	if (set(r, k, in, node))
		return;
	om_key_rule(k, must);
	om_diag(place(r, node), "%s = %s must be %s", name, shown(node, text), must);
	if (!s)
		return;
	x = strtod(s, NULL);
	if (k->kind == OM_WHOLE && strpbrk(s, ".eE_,") && x == floor(x) && x >= k->min &&
	    x <= k->max)
		om_diag_help(strpbrk(s, "_,") ? "write it in digits alone" : "write %.0f", x);
	else if ((k->kind == OM_WHOLE || k->kind == OM_NUMBER || k->kind == OM_YESNO) &&
		 node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
		om_diag_help("leave out the quotes");
	else if (k->kind == OM_CHOICE) {
		char word[32];

		for (const char *c = k->choices; *c; c += strcspn(c, " "), c += *c == ' ') {
			snprintf(word, sizeof word, "%.*s", (int)strcspn(c, " "), c);
			if (om_distance(word, s) <= (strlen(s) < 6 ? 1 : strlen(s) / 3)) {
				om_diag_help("did you mean %s?", word);
				break;
			}
		}
	}
}

/* What a C string would cut at its first zero byte. */
static bool
has_zero(struct reader *r)
{
	bool found = false;

	for (yaml_node_t *node = r->doc.nodes.start; node < r->doc.nodes.top; node++)
		if (scalar(node) && strlen(scalar(node)) != node->data.scalar.length) {
			om_diag(place(r, node), "this text has a zero byte in it");
			om_diag_help("leave out the \\0");
			found = true;
		}
	return found;
}

static void
bracket_help(void)
{
	om_diag_help("close what is open; a text that begins with [ or { has to be quoted: "
		     "'[ab]*.npy'");
}

/* What begins with a * at character `at` is an alias in YAML, and was meant as a glob. */
static void
quote_help(const char *text, size_t n, size_t at)
{
	const char *s = text, *end = text + n;

	for (; s < end && at; at--) /* characters of UTF-8 */
		do
			s++;
		while (s < end && ((unsigned char)*s & 0xc0) == 0x80);
	if (s > text && strchr("]}", s[-1])) {
		bracket_help();
		return;
	}
	n = 0;
	while (s + n < end && !strchr(",]} \t\r\n", s[n]))
		n++;
	om_diag_help("a text that begins with * has to be quoted: '%.*s'", n < 60 ? (int)n : 60, s);
}

/* Parses one document of text into r->doc; reports and gives false where it isn't YAML. */
static bool
parse(struct reader *r, const char *text, size_t n)
{
	yaml_parser_t parser;
	yaml_document_t more;
	struct om_at at = { r->src, 0, 0, 1 };
	yaml_mark_t where;
	const char *why = om_yaml_limits(text, n, &where);
	bool ok;

	if (why) {
		om_diag(mark(r, where), "%s", why);
		om_diag_help("run.yaml has a mapping of keys, and of sections of keys");
		return false;
	}
	if (!yaml_parser_initialize(&parser))
		om_die("memory", "cannot start the YAML parser");
	yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
	ok = yaml_parser_load(&parser, &r->doc);
	if (ok && yaml_document_get_root_node(&r->doc)) {
		bool second = yaml_parser_load(&parser, &more);

		ok = second && !yaml_document_get_root_node(&more);
		if (second && !ok) {
			at = place(r, yaml_document_get_root_node(&more));
			om_diag(at, "a second document begins here, only one is read");
		}
		if (second)
			yaml_document_delete(&more);
		ok = ok && !has_zero(r);
		if (!ok)
			yaml_document_delete(&r->doc);
	}
	if (parser.error == YAML_READER_ERROR) {
		om_diag(at, "byte %zu: %s", parser.problem_offset, parser.problem);
		om_diag_help("write it in UTF-8");
	} else if (parser.error != YAML_NO_ERROR) {
		om_diag(mark(r, parser.problem_mark), "%s", parser.problem);
		if (parser.context && parser.context_mark.index < parser.problem_mark.index)
			om_diag_note(
			    mark(r, parser.context_mark), "%s that begins here", parser.context);
		if (strstr(parser.problem, "alias") ||
		    (parser.context && strstr(parser.context, "alias")))
			quote_help(text, n,
			    strstr(parser.problem, "alias") ? parser.problem_mark.index
							    : parser.context_mark.index);
		else if (parser.context && strstr(parser.context, "a flow"))
			bracket_help();
		else if (memchr(text, '\t', n))
			om_diag_help("YAML is indented by spaces, not by tabs");
	}
	yaml_parser_delete(&parser);
	return ok;
}

/* The keys of run.yaml, or of a set with a name, as they are where nothing is given. */
static void
defaults(struct reader *r, struct om_set *in, const struct om_named *section)
{
	struct om_src src = { "default", NULL, 0, true };
	struct reader of = { .conf = r->conf, .src = &src, .where = r->where };
	struct where *w = &r->where[in ? in->where : 0];

	memset(w, 0, sizeof *w);
	for (size_t i = 0; i < OM_NKEYS; i++)
		if (om_keys[i].initial && om_key_named(om_keys[i].name) == section) {
			if (!parse(&of, om_keys[i].initial, strlen(om_keys[i].initial)))
				abort();
			value(&of, &om_keys[i], in, om_keys[i].name,
			    (struct om_at){ &src, 1, 1, 1 }, yaml_document_get_root_node(&of.doc));
			yaml_document_delete(&of.doc);
		}
	memset(w, 0, sizeof *w);
}

/* The set of a section that a name is of; NULL: it has a name that none may have. */
static struct om_set *
named(struct reader *r, const struct om_named *of, const char *name, struct om_at at)
{
	static const char letters[] =
	    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
	struct om_set *parent = parent_of(r->conf, of);
	const char *begin = name + strlen(of->prefix);
	size_t n = strcspn(begin, ".");
	struct om_set *s = parent->source, *end = s + parent->nsources;

	while (s < end && (strlen(s->name) != n || strncmp(s->name, begin, n) != 0))
		s++;
	if (s < end)
		return s;
	if (!n || n >= NAME_SIZE || strspn(begin, letters) != n) {
		om_diag(at, "%.*s cannot be the name of a %s", (int)(n < 100 ? n : 100), begin,
		    of->what);
		om_diag_help("a name has at most %d letters, digits, _ and -", NAME_SIZE - 1);
		return NULL;
	}
	if (parent->nsources == NAMED_MOST) {
		om_diag(at, "%.*s has at most %d %ss", (int)strlen(of->prefix) - 1, of->prefix,
		    NAMED_MOST, of->what);
		return NULL;
	}
	n = parent->nsources++;
	parent->source = realloc(parent->source, parent->nsources * sizeof *parent->source);
	r->where = realloc(r->where, (r->nwhere + 1) * sizeof *r->where);
	if (!parent->source || !r->where)
		om_die("memory", "cannot list %u %ss", parent->nsources, of->what);
	s = &parent->source[n];
	*s = (struct om_set){ .name = om_text("%.*s", (int)strcspn(begin, "."), begin),
		.order = of->at == offsetof(struct om_conf, eval) ? OM_SEQUENTIAL : OM_SHUFFLE,
		.where = r->nwhere++ };
	s->section = om_text("%s%s", of->prefix, s->name);
	defaults(r, s, of);
	r->where[s->where].name = at;
	return s;
}

static void mapping(struct reader *r, const char *prefix, yaml_node_t *map);

/* One name and its value, from anywhere. */
static void
entry(struct reader *r, const char *name, struct om_at at, yaml_node_t *node)
{
	const char *last = strrchr(name, '.');
	char list[256], text[64], *section = om_text("%.*s", last ? (int)(last - name) : 0, name);
	bool parent = false, above = false; /* a known section holds it; it is one itself */
	const struct om_named *of = om_key_named(name);
	const struct om_key *same = NULL;
	struct om_set *in = NULL;

	for (size_t i = 0; i < OM_NKEYS; i++) {
		enum om_match match = om_key_match(om_keys[i].name, name);

		same = match == OM_SAME ? &om_keys[i] : same;
		above = above || match == OM_ABOVE;
		parent = parent || om_key_match(om_keys[i].name, section) == OM_ABOVE;
	}
	if (of && (same || above) && !(in = named(r, of, name, at))) {
		free(section);
		return;
	}
	if (same) {
		value(r, same, in, name, at, node);
	} else if (above && node->type == YAML_MAPPING_NODE) {
		mapping(r, name, node);
	} else if (above && scalar(node) && *scalar(node) && om_key_fixed(name)) {
		unknown(at, name, node, "");
	} else if (above) {
		om_keys_of(name, list, sizeof list);
		if (!scalar(node) || *scalar(node) || r->src->arg) { /* not all commented out */
			om_diag(
			    place(r, node), "%s = %s must be a mapping", name, shown(node, text));
			om_diag_help("%s has %s", name, list);
		}
	} else if (node->type == YAML_MAPPING_NODE && !parent && om_key_fixed(name) &&
		   node->data.mapping.pairs.top > node->data.mapping.pairs.start) {
		mapping(r, name, node); /* names its children */
	} else {
		unknown(at, name, node, parent ? section : "");
	}
	free(section);
}

/* A name of a mapping, and its place there. */
struct name {
	const char *s;
	size_t i;
};

static int
by_name(const void *a, const void *b)
{
	const struct name *x = a, *y = b;
	int s = strcmp(x->s, y->s);

	return s ? s : x->i < y->i ? -1 : x->i > y->i;
}

/*
 * For each pair of a mapping the first one of the same name; free() it. Sorted, so that a hundred
 * thousand names take no time.
 */
static yaml_node_t **
first_of_name(struct reader *r, const yaml_node_t *map)
{
	yaml_node_pair_t *pair = map->data.mapping.pairs.start;
	size_t n = (size_t)(map->data.mapping.pairs.top - pair);
	struct name *name = om_alloc(n, sizeof *name);
	yaml_node_t **first = om_alloc(n, sizeof(yaml_node_t *));

	for (size_t i = 0; i < n; i++) {
		const char *s = scalar(yaml_document_get_node(&r->doc, pair[i].key));

		name[i] = (struct name){ s ? s : "", i };
	}
	qsort(name, n, sizeof *name, by_name);
	for (size_t i = 0; i < n; i++)
		first[name[i].i] = i && strcmp(name[i].s, name[i - 1].s) == 0
				       ? first[name[i - 1].i]
				       : yaml_document_get_node(&r->doc, pair[name[i].i].key);
	free(name);
	return first;
}

static void
mapping(struct reader *r, const char *prefix, yaml_node_t *map)
{
	yaml_node_t **same = first_of_name(r, map);
	yaml_node_pair_t *first = map->data.mapping.pairs.start, *end = map->data.mapping.pairs.top;

	for (yaml_node_pair_t *p = first; p < end; p++) {
		yaml_node_t *k = yaml_document_get_node(&r->doc, p->key);
		yaml_node_t *v = yaml_document_get_node(&r->doc, p->value);
		const char *s = scalar(k);
		char *name;

		if (!s || !*s) {
			om_diag(place(r, k), "a key must be a name");
			continue;
		}
		name = om_text("%s%s%s", prefix, *prefix ? "." : "", s);
		if (same[p - first] != k) {
			om_diag(place(r, k), "%s is given twice", om_clip(name));
			om_diag_note(place(r, same[p - first]), "it is given here first");
		} else {
			entry(r, name, place(r, k), v);
		}
		free(name);
	}
	free(same);
}

static void
override(struct reader *r, struct om_src *src)
{
	const char *eq = strchr(src->text, '=');
	struct om_at at = { src, 1, 1, (uint32_t)strlen(src->text) };
	yaml_node_t *node;
	char *name;

	r->src = src;
	if (!eq || eq == src->text) {
		om_diag(at, "an override must be key=value");
		return;
	}
	at.len = (uint32_t)(eq - src->text);
	r->skip = at.len + 1;
	name = om_text("%.*s", (int)at.len, src->text);
	eq++;
	if (parse(r, *eq ? eq : "''", *eq ? strlen(eq) : 2)) {
		if ((node = yaml_document_get_root_node(&r->doc))) {
			if (!*eq) /* key= is the empty text, and no value for all else */
				node->data.scalar.style = YAML_PLAIN_SCALAR_STYLE;
			entry(r, name, at, node);
		} else {
			om_diag(at, "%s has no value", om_clip(name));
		}
		yaml_document_delete(&r->doc);
	}
	free(name);
}

static struct {
	char *text;
	size_t n;
} read_once;

bool
om_conf_copy(const char *path)
{
	FILE *f = read_once.text ? fopen(path, "w") : NULL;
	bool ok = f && fwrite(read_once.text, 1, read_once.n, f) == read_once.n;

	return !read_once.text || (f && fclose(f) == 0 && ok);
}

/*
 * run.yaml's text. A pipe is read once, and descriptors are this process's alone: ranks that it
 * starts find the text in the folder of their start.
 */
static char *
read_text(const char *path, size_t *n)
{
	const char *start = getenv("OM_LAUNCHED");
	char *copy = om_text("%s/run.yaml", start ? start : ""),
	     *text = start ? om_file_read(copy, FILE_MOST, n) : NULL;

	free(copy);
	if (text || !(text = om_file_or_pipe_read(path, FILE_MOST, n)))
		return text;
	free(read_once.text);
	read_once.text = om_alloc(*n + 1, 1);
	read_once.n = *n;
	memcpy(read_once.text, text, *n);
	return text;
}

/* Another one beside it that is called nearly as it is; NULL: none. */
static const struct om_set *
like(const struct om_set *parent, const struct om_set *to)
{
	const size_t n = strlen(to->name);

	for (const struct om_set *s = parent->source; s < parent->source + parent->nsources; s++)
		if (s != to && om_distance(s->name, to->name) <= (n < 6 ? 1 : n / 3))
			return s;
	return NULL;
}

/* Required keys that nothing gives. Commands that train no step do not ask for steps. */
static void
missing(const struct om_conf *c, const struct where *at, const struct om_src *file, bool train)
{
	const struct om_set *data = &c->data, *other;

	for (const struct om_key *k = om_keys; k < om_keys + OM_NKEYS; k++) {
		if (k->initial || k->source || at->given[k - om_keys].line ||
		    (!train && strcmp(k->name, "steps") == 0) ||
		    (data->nsources && strcmp(k->name, "data.paths") == 0))
			continue;
		om_diag((struct om_at){ file, 0, 0, 0 }, "%s is missing", k->name);
		om_diag_help("%s: %s", k->name, k->doc);
	}
	for (const struct om_set *s = data->source; s < data->source + data->nsources; s++)
		for (const struct om_key *k = om_keys; k < om_keys + OM_NKEYS; k++) {
			if (k->initial || !k->source || at[s->where].given[k - om_keys].line)
				continue;
			om_diag(at[s->where].name, "%s%s is missing", s->section,
			    strrchr(k->name, '.'));
			if ((other = like(data, s)))
				om_diag_help("did you mean %s?", other->section);
			else
				om_diag_help("%s: %s", strrchr(k->name, '.') + 1, k->doc);
		}
}

/* Keys that are as others where they are not given. */
static void
inherit(struct om_conf *c)
{
	struct om_set *const data = &c->data, *const eval = &c->eval;

	if (!om_conf_given("eval.format").line)
		eval->format = data->format;
	eval->eos = data->eos;
	eval->bos = data->bos;
	eval->cut = data->cut;
	for (struct om_set *s = data->source; s < data->source + data->nsources; s++) {
		if (!om_conf_named(s, "data.mix.NAME.format").line)
			s->format = data->format;
		if (!om_conf_named(s, "data.mix.NAME.eos").line)
			s->eos = data->eos;
		if (!om_conf_named(s, "data.mix.NAME.bos").line)
			s->bos = data->bos;
	}
	for (struct om_set *s = eval->source; s < eval->source + eval->nsources; s++) {
		if (!om_conf_named(s, "eval.sets.NAME.format").line)
			s->format = eval->format;
		if (s->sequences == OM_NONE)
			s->sequences = eval->sequences;
		s->eos = data->eos;
		s->bos = data->bos;
		s->cut = data->cut;
	}
}

int
om_conf_load(struct om_conf *c, const struct om_model *m, const char *command, const char *path,
    int nover, char **over)
{
	static const char bom[] = "\xEF\xBB\xBF";
	struct reader *const r = &reader;
	struct om_src *src = om_alloc((size_t)nover + 1, sizeof *src);
	int before = om_diag_count();
	yaml_node_t *root;
	char *text;

	memset(r, 0, sizeof *r);
	memset(c, 0, sizeof *c);
	r->conf = c;
	c->data.section = "data";
	c->eval.section = "eval";
	c->eval.order = OM_SEQUENTIAL;
	r->where = om_alloc(1, sizeof *r->where);
	r->nwhere = 1;
	defaults(r, NULL, NULL);
	src[0].name = path;
	r->src = &src[0];
	if (!(text = read_text(path, &src[0].n))) {
		om_diag((struct om_at){ r->src, 0, 0, 0 }, "cannot be read: %s", om_file_why());
		om_diag_help("usage: trainer %s run.yaml [key=value ...]", command);
		free(r->where);
		free(src);
		return om_diag_count() - before;
	}
	src[0].text = text;
	if (strncmp(text, bom, sizeof bom - 1) == 0) { /* libyaml takes it for a character */
		src[0].text += sizeof bom - 1;
		src[0].n -= sizeof bom - 1;
	}
	if (parse(r, src[0].text, src[0].n)) {
		root = yaml_document_get_root_node(&r->doc);
		if (root && root->type == YAML_MAPPING_NODE)
			mapping(r, "", root);
		else if (root)
			om_diag(place(r, root),
			    "the file must be a mapping, \"key: value\" on each line");
		yaml_document_delete(&r->doc);
	}
	for (uint32_t i = 0; i < r->nwhere; i++) /* the command line may repeat keys */
		memset(r->where[i].seen, 0, sizeof r->where[i].seen);
	for (int i = 0; i < nover; i++) {
		src[i + 1] = (struct om_src){ "command line", over[i], strlen(over[i]), true };
		override(r, &src[i + 1]);
	}
	if (om_diag_count() == before) {
		missing(c, r->where, &src[0], strcmp(command, "train") == 0);
		if (strcmp(command, "eval") == 0 && !om_conf_evaluates(c)) {
			om_diag((struct om_at){ &src[0], 0, 0, 0 }, "eval.paths is missing");
			om_diag_help("eval.paths: %s", om_key_find("eval.paths")->doc);
		}
		if (om_diag_count() == before)
			om_conf_rules(c, m);
	}
	inherit(c);
	if (om_diag_count() > OM_DIAG_MAX)
		fprintf(stderr, "%s: %d more errors\n", path, om_diag_count() - OM_DIAG_MAX);
	free(r->where);
	free(text);
	free(src);
	return om_diag_count() - before;
}

void
om_conf_free(struct om_conf *c)
{
	list_free(&c->data.paths);
	list_free(&c->eval.paths);
	list_free(&c->data.masks);
	list_free(&c->eval.masks);
	list_free(&c->periods);
	list_free(&c->peaks);
	list_free(&c->stages);
	list_free(&c->sizes);
	list_free(&c->skips);
	om_steps_free(&c->plan);
	free(c->lr.stage);
	om_rates_free(c);
	list_free(&c->groups);
	for (size_t i = 0; i < OM_NNAMED; i++) {
		struct om_set *parent = parent_of(c, &om_named[i]);

		for (struct om_set *s = parent->source; s < parent->source + parent->nsources;
		     s++) {
			list_free(&s->paths);
			list_free(&s->masks);
			list_free(&s->questions);
			free((char *)s->section);
			free(s->name);
		}
		free(parent->source);
	}
	free(c->tokenizer);
	list_free(&c->saves);
	free(c->given);
	list_free(&c->take);
	list_free(&c->leave);
	free(c->start);
	free(c->dir);
	free(c->resume);
	free(c->metrics);
	free(c->tensorboard);
}

void
om_conf_numbers(const struct om_conf *c, uint64_t value[OM_NKEYS])
{
	memset(value, 0, OM_NKEYS * sizeof *value);
	for (size_t i = 0; i < OM_NKEYS; i++) {
		const char *at = (const char *)c + om_keys[i].at;

		if (om_keys[i].source) /* what they come to is agreed on with the data */
			continue;
		switch (om_keys[i].kind) {
		case OM_WHOLE:
		case OM_NUMBER:
			if (strcmp(om_keys[i].name, "threads") != 0)
				memcpy(&value[i], at, sizeof *value);
			break;
		case OM_CHOICE:
			memcpy(&value[i], at, sizeof(int));
			break;
		case OM_YESNO:
			value[i] = *(const bool *)at;
			break;
		default:
			break;
		}
	}
}
