/*
 * Regular expressions of tokenizers, over code points: compiled to a program that tries
 * alternatives in order and goes back where one fails. What it goes back to is on a stack of its
 * own, and steps are counted, so that no pattern and no text overflows or never ends.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "tokenizer.h"

enum {
	PATTERN = 4000,     /* characters */
	DEPTH = 50,         /* of groups in groups */
	PROGRAM = 20000,    /* instructions */
	REPEATS = 1000,     /* in {n,m} */
	MANY = UINT32_MAX,  /* a repetition without end */
	LAST = 0x10FFFF,    /* the greatest code point */
	STEPS = 100000,     /* that any text may take, and */
	STEPS_A_POINT = 500 /* more for each of its code points */
};

/* What of a set is its own: a range, classes, white space; or all but that. */
struct item {
	uint32_t low, high, classes;
	bool space, negated;
};
struct set {
	uint32_t first, n; /* items */
	bool negated;
};

enum kind { EMPTY, SET, LINE_END, SEQUENCE, EITHER, REPEAT, LOOK, ATOMIC };
struct node {
	enum kind kind;
	uint32_t a, b;     /* nodes; of SET, the set */
	uint32_t min, max; /* of REPEAT */
	bool lazy;         /* of REPEAT */
	bool negated;      /* of LOOK */
	bool empty;        /* it can match nothing */
	uint32_t letter;   /* of SET: the one letter that is meant in either case, or 0 */
};

enum code { C_SET, C_LINE_END, C_SPLIT, C_JUMP, C_AHEAD, C_NOT_AHEAD, C_ATOMIC, C_END };
struct insn {
	enum code code;
	uint32_t x, y; /* C_SET: the set; C_SPLIT: first x, then y; others: where it goes on */
};

struct om_split {
	struct item *item;
	struct set *set;
	struct insn *insn;
	uint32_t nitems, nsets, ninsns;
};

/* ---- the pattern, read ----------------------------------------------------------------------- */

struct reader {
	struct om_split *s;
	uint32_t *c;
	size_t n, at;
	struct node *node;
	uint32_t nnodes, depth;
	bool fold; /* inside (?i: */
	char *why;
};

/* The first thing that is wrong; gives false. */
OM_PRINTF(3, 4) static bool wrong(struct reader *r, size_t at, const char *fmt, ...)
{
	char what[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	if (!*r->why)
		snprintf(
		    r->why, OM_TOKENIZER_WHY, "character %zu of the pattern: %s", at + 1, what);
	return false;
}

static uint32_t
peek(const struct reader *r, size_t ahead)
{
	return r->at + ahead < r->n ? r->c[r->at + ahead] : 0;
}

/* Whether this text comes next; if so it is taken. */
static bool
take(struct reader *r, const char *s)
{
	size_t n = strlen(s);

	for (size_t i = 0; i < n; i++)
		if (r->at + i >= r->n || r->c[r->at + i] != (unsigned char)s[i])
			return false;
	r->at += n;
	return true;
}

static uint32_t
add_node(struct reader *r, struct node x)
{
	r->node[r->nnodes] = x; /* there is room, see om_split_open */
	return r->nnodes++;
}

static void
add_item(struct reader *r, struct item x)
{
	r->s->item[r->s->nitems++] = x; /* likewise */
}

static uint32_t
add_set(struct reader *r, uint32_t first, bool negated)
{
	r->s->set[r->s->nsets] = (struct set){ first, r->s->nitems - first, negated };
	return r->s->nsets++;
}

/* Letters, in both cases where that is asked for: s and k have a third form each. */
static bool
add_range(struct reader *r, uint32_t low, uint32_t high, size_t at)
{
	add_item(r, (struct item){ .low = low, .high = high });
	if (!r->fold)
		return true;
	if (high >= 128 || (low != high && (low > '9' || high > '9')))
		return wrong(r, at, "in (?i: only letters of ASCII and digits are known");
	if ((low | 32) >= 'a' && (low | 32) <= 'z')
		add_item(r, (struct item){ .low = low ^ 32, .high = low ^ 32 });
	if ((low | 32) == 's' || (low | 32) == 'k')
		add_item(r, (struct item){ .low = (low | 32) == 's' ? 0x17F : 0x212A,
				.high = (low | 32) == 's' ? 0x17F : 0x212A });
	return true;
}

static const struct {
	const char *name;
	uint32_t classes;
} property[] = {
	{ "L", OM_CLASS_BIT(LU) | OM_CLASS_BIT(LL) | OM_CLASS_BIT(LT) | OM_CLASS_BIT(LM) |
		   OM_CLASS_BIT(LO) },
	{ "Lu", OM_CLASS_BIT(LU) },
	{ "Ll", OM_CLASS_BIT(LL) },
	{ "Lt", OM_CLASS_BIT(LT) },
	{ "Lm", OM_CLASS_BIT(LM) },
	{ "Lo", OM_CLASS_BIT(LO) },
	{ "M", OM_CLASS_BIT(MARK) },
	{ "N", OM_CLASS_BIT(ND) | OM_CLASS_BIT(NL) | OM_CLASS_BIT(NO) },
	{ "Nd", OM_CLASS_BIT(ND) },
	{ "Nl", OM_CLASS_BIT(NL) },
	{ "No", OM_CLASS_BIT(NO) },
	{ "P", OM_CLASS_BIT(PC) | OM_CLASS_BIT(PUNCTUATION) },
	{ "Pc", OM_CLASS_BIT(PC) },
	{ "S", OM_CLASS_BIT(SYMBOL) },
	{ "Z", OM_CLASS_BIT(SEPARATOR) },
	{ "C", OM_CLASS_BIT(OTHER) },
};

/* \p{L}, \P{L} and \p{^L}, behind the p. */
static bool
read_property(struct reader *r, size_t at, bool negated)
{
	char name[16] = "";

	if (r->fold)
		return wrong(r, at, "\\p in (?i: is not supported");
	if (!take(r, "{"))
		return wrong(r, at, "\\p is not followed by {");
	if (take(r, "^"))
		negated = !negated;
	for (size_t i = 0; peek(r, 0) && peek(r, 0) != '}' && i < sizeof name - 1; i++) {
		name[i] = (char)(peek(r, 0) < 128 ? peek(r, 0) : '?');
		r->at++;
	}
	if (!take(r, "}"))
		return wrong(r, at, "\\p{%s... has no end", name);
	for (size_t i = 0; i < OM_LEN(property); i++)
		if (strcmp(property[i].name, name) == 0) {
			add_item(
			    r, (struct item){
				   .low = 1, .classes = property[i].classes, .negated = negated });
			return true;
		}
	return wrong(r, at,
	    "\\p{%s} is not supported; L, Lu, Ll, Lt, Lm, Lo, M, N, Nd, Nl, No, P, Pc, S, Z and C "
	    "are",
	    name);
}

/* Digits of \x and \u, with or without braces. */
static bool
read_hex(struct reader *r, size_t at, size_t digits, uint32_t *c)
{
	bool braces = digits == 2 && take(r, "{");
	size_t n = 0;

	*c = 0;
	for (; n < (braces ? 6 : digits); n++, r->at++) {
		uint32_t x = peek(r, 0), letter = x | 32;

		if (x >= '0' && x <= '9')
			*c = *c * 16 + x - '0';
		else if (letter >= 'a' && letter <= 'f')
			*c = *c * 16 + letter - 'a' + 10;
		else
			break;
	}
	if (!n || (!braces && n < digits) || (braces && !take(r, "}")) || *c > LAST)
		return wrong(r, at, "is no code point in hexadecimal");
	return true;
}

/*
 * An escape, behind the backslash: a class, which becomes an item, or one character, *single.
 */
static bool
read_escape(struct reader *r, bool *single, uint32_t *c)
{
	static const char from[] = "nrtfvae", to[] = "\n\r\t\f\v\a\033";
	size_t at = r->at - 1;
	uint32_t x = peek(r, 0);
	const char *simple = x && x < 128 ? strchr(from, (int)x) : NULL;

	*single = true;
	*c = x;
	r->at++;
	if (simple) {
		*c = (unsigned char)to[simple - from];
		return true;
	}
	if (x == 'x' || x == 'u')
		return read_hex(r, at, x == 'x' ? 2 : 4, c);
	if (x > ' ' && x < 127 && !(x >= '0' && x <= '9') && !((x | 32) >= 'a' && (x | 32) <= 'z'))
		return true; /* a sign that means itself */
	*single = false;
	switch (x) {
	case 's':
	case 'S':
		add_item(r, (struct item){ .low = 1, .space = true, .negated = x == 'S' });
		return true;
	case 'd':
	case 'D':
		add_item(
		    r, (struct item){ .low = 1, .classes = OM_CLASS_BIT(ND), .negated = x == 'D' });
		return true;
	case 'p':
	case 'P':
		return read_property(r, at, x == 'P');
	case 0:
		return wrong(r, at, "a backslash with nothing behind it");
	default:
		return wrong(r, at, "\\%c is not supported", x < 128 ? (int)x : '?');
	}
}

/* [...], behind the first bracket. */
static bool
read_set(struct reader *r, uint32_t *set)
{
	size_t begin = r->at - 1;
	bool negated = take(r, "^"), single;
	uint32_t first = r->s->nitems, low, high;

	if (peek(r, 0) == ']')
		return wrong(r, r->at, "a set that begins with ] is not supported; write \\]");
	while (r->at < r->n && peek(r, 0) != ']') {
		size_t at = r->at;

		if (peek(r, 0) == '[' || (peek(r, 0) == '&' && peek(r, 1) == '&'))
			return wrong(
			    r, at, "a set in a set is not supported; for a bracket, write \\[");
		single = true;
		low = peek(r, 0);
		r->at++;
		if (low == '\\' && !read_escape(r, &single, &low))
			return false;
		if (!single)
			continue;
		high = low;
		if (peek(r, 0) == '-' && r->at + 1 < r->n && peek(r, 1) != ']') {
			r->at++;
			high = peek(r, 0);
			r->at++;
			if (high == '\\' && !read_escape(r, &single, &high))
				return false;
			if (!single || high == '[')
				return wrong(r, at, "a range that ends in a class");
			if (high < low)
				return wrong(r, at, "a range from a greater to a smaller one");
		}
		if (!add_range(r, low, high, at))
			return false;
	}
	if (!take(r, "]"))
		return wrong(r, begin, "[ has no ]");
	*set = add_set(r, first, negated);
	return true;
}

static bool read_either(struct reader *r, uint32_t *node);

/* (...), behind the first parenthesis. */
static bool
read_group(struct reader *r, uint32_t *node)
{
	size_t at = r->at - 1;
	bool fold = r->fold, look = false, negated = false, atomic = false;

	if (take(r, "?i:"))
		r->fold = true;
	else if (take(r, "?="))
		look = true;
	else if (take(r, "?!"))
		look = negated = true;
	else if (take(r, "?>"))
		atomic = true;
	else if (!take(r, "?:") && peek(r, 0) == '?')
		return wrong(r, at,
		    "of groups with ?, only (?:...), (?i:...), (?>...), (?=...) and (?!...) are "
		    "supported");
	if (++r->depth > DEPTH)
		return wrong(r, at, "more than %d groups in one another", DEPTH);
	if (!read_either(r, node))
		return false;
	if (!take(r, ")"))
		return wrong(r, at, "( has no )");
	r->depth--;
	r->fold = fold;
	if (look)
		*node = add_node(r,
		    (struct node){ .kind = LOOK, .a = *node, .negated = negated, .empty = true });
	else if (atomic)
		*node = add_node(
		    r, (struct node){ .kind = ATOMIC, .a = *node, .empty = r->node[*node].empty });
	return true;
}

/* One character, set or group. */
static bool
read_atom(struct reader *r, uint32_t *node)
{
	size_t at = r->at;
	uint32_t c = peek(r, 0), first = r->s->nitems, set = 0;
	bool single = true, escaped = c == '\\';

	r->at++;
	if (c == '(')
		return read_group(r, node);
	if (c == '[') {
		if (!read_set(r, &set))
			return false;
		*node = add_node(r, (struct node){ .kind = SET, .a = set });
		return true;
	}
	if (!escaped && c == '$') {
		*node = add_node(r, (struct node){ .kind = LINE_END, .empty = true });
		return true;
	}
	if (!escaped && c == '^')
		return wrong(r, at, "^ as an anchor is not supported");
	if (!escaped && c < 128 && c && strchr("*+?{", (int)c))
		return wrong(r, at, "%c has nothing before it to repeat", (int)c);
	if (!escaped && c == '.') {
		add_item(r, (struct item){ .low = '\n', .high = '\n', .negated = true });
		single = false;
	} else if (escaped && !read_escape(r, &single, &c)) {
		return false;
	}
	if (single && !add_range(r, c, c, at))
		return false;
	*node = add_node(r, (struct node){ .kind = SET,
				.a = add_set(r, first, false),
				.letter = single && r->fold ? (c | 32) : 0 });
	return true;
}

/* {n}, {n,}, {n,m} and {,m}, behind the brace. */
static bool
read_counts(struct reader *r, uint32_t *min, uint32_t *max)
{
	size_t at = r->at - 1;
	uint32_t value[2] = { 0, MANY };
	bool there[2] = { false, false }, comma = false;

	for (int i = 0; i < 2; i++) {
		for (; peek(r, 0) >= '0' && peek(r, 0) <= '9'; r->at++) {
			value[i] = (there[i] ? value[i] * 10 : 0) + peek(r, 0) - '0';
			there[i] = true;
			if (value[i] > REPEATS)
				return wrong(r, at, "more than %d repetitions", REPEATS);
		}
		if (i == 0)
			comma = take(r, ",");
		if (!comma)
			break;
	}
	if (!take(r, "}") || (!there[0] && !there[1]))
		return wrong(r, at, "{ begins no {n,m}; for a brace, write \\{");
	*min = value[0];
	*max = comma ? value[1] : value[0];
	if (*max < *min)
		return wrong(r, at, "{n,m} with m below n");
	if (peek(r, 0) == '?' || peek(r, 0) == '+')
		return wrong(r, r->at, "%c behind {n,m} is not supported", (int)peek(r, 0));
	return true;
}

/* An atom and its repetitions. */
static bool
read_repeat(struct reader *r, uint32_t *node)
{
	if (!read_atom(r, node))
		return false;
	for (bool again = false;; again = true) {
		size_t at = r->at;
		struct node x = { .kind = REPEAT, .a = *node, .max = MANY };
		bool possessive = false;

		if (take(r, "{")) {
			if (!read_counts(r, &x.min, &x.max))
				return false;
		} else if (take(r, "?") || take(r, "*") || take(r, "+")) {
			x.min = r->c[at] == '+';
			x.max = r->c[at] == '?' ? 1 : MANY;
			x.lazy = take(r, "?");
			possessive = !x.lazy && take(r, "+");
		} else {
			return true;
		}
		if (again)
			return wrong(r, at, "a repetition of a repetition is not supported");
		if (x.max == MANY && r->node[*node].empty)
			return wrong(r, at, "an endless repetition of what may be empty");
		x.empty = x.min == 0 || r->node[*node].empty;
		*node = add_node(r, x);
		if (possessive)
			*node = add_node(
			    r, (struct node){ .kind = ATOMIC, .a = *node, .empty = x.empty });
	}
}

/* In either case some letters together are one letter: ss is a sharp s. */
static bool
is_ligature(uint32_t a, uint32_t b)
{
	return (a == 'f' && (b == 'f' || b == 'i' || b == 'l')) ||
	       (a == 's' && (b == 's' || b == 't'));
}

static bool
read_sequence(struct reader *r, uint32_t *node)
{
	uint32_t parts[2], letter = 0;

	*node = add_node(r, (struct node){ .kind = EMPTY, .empty = true });
	while (r->at < r->n && peek(r, 0) != '|' && peek(r, 0) != ')') {
		size_t at = r->at;

		parts[0] = *node;
		if (!read_repeat(r, &parts[1]))
			return false;
		if (is_ligature(letter, r->node[parts[1]].letter))
			return wrong(r, at, "%c%c in (?i: is not supported", (int)letter,
			    (int)r->node[parts[1]].letter);
		letter = r->node[parts[1]].letter;
		*node = r->node[*node].kind == EMPTY
			    ? parts[1]
			    : add_node(r, (struct node){ .kind = SEQUENCE,
					      .a = parts[0],
					      .b = parts[1],
					      .empty = r->node[parts[0]].empty &&
						       r->node[parts[1]].empty });
	}
	return true;
}

static bool
read_either(struct reader *r, uint32_t *node)
{
	uint32_t next;

	if (!read_sequence(r, node))
		return false;
	while (take(r, "|")) {
		if (!read_sequence(r, &next))
			return false;
		*node = add_node(r, (struct node){ .kind = EITHER,
					.a = *node,
					.b = next,
					.empty = r->node[*node].empty || r->node[next].empty });
	}
	return true;
}

/* ---- the program ----------------------------------------------------------------------------- */

static uint32_t
emit(struct reader *r, enum code code, uint32_t x)
{
	struct om_split *s = r->s;

	if (s->ninsns == PROGRAM) {
		wrong(r, 0, "its repetitions make it longer than %d steps", PROGRAM);
		return PROGRAM - 1; /* what is written there is not used */
	}
	s->insn[s->ninsns] = (struct insn){ .code = code, .x = x };
	return s->ninsns++;
}

static void write_node(struct reader *r, uint32_t node);

/* A part of the program with an end of its own. */
static void
write_apart(struct reader *r, enum code code, uint32_t node)
{
	uint32_t at = emit(r, code, 0);

	write_node(r, node);
	emit(r, C_END, 0);
	r->s->insn[at].x = r->s->ninsns;
}

/* Of a choice at `at`, whose first way begins behind it: the other one begins here. */
static void
write_other(struct reader *r, uint32_t at, bool lazy)
{
	struct insn *i = &r->s->insn[at];

	i->x = lazy ? r->s->ninsns : at + 1;
	i->y = lazy ? at + 1 : r->s->ninsns;
}

static void
write_repeat(struct reader *r, const struct node *x)
{
	uint32_t at, first = r->s->ninsns;

	for (uint32_t i = 0; i < x->min && !*r->why; i++)
		write_node(r, x->a);
	if (x->max == MANY) {
		at = emit(r, C_SPLIT, 0);
		write_node(r, x->a);
		emit(r, C_JUMP, at);
		write_other(r, at, x->lazy);
		return;
	}
	first = r->s->ninsns;
	for (uint32_t i = x->min; i < x->max && !*r->why; i++) {
		emit(r, C_SPLIT, 1);
		write_node(r, x->a);
	}
	/* all of these choices lead to the end; each is as long as the first */
	for (uint32_t i = x->min, n = r->s->ninsns - first; i < x->max && !*r->why; i++)
		write_other(r, first + (i - x->min) * (n / (x->max - x->min)), x->lazy);
}

static void
write_node(struct reader *r, uint32_t node)
{
	const struct node *x = &r->node[node];
	uint32_t at, over;

	switch (x->kind) {
	case EMPTY:
		break;
	case SET:
		emit(r, C_SET, x->a);
		break;
	case LINE_END:
		emit(r, C_LINE_END, 0);
		break;
	case SEQUENCE:
		write_node(r, x->a);
		write_node(r, x->b);
		break;
	case EITHER:
		at = emit(r, C_SPLIT, 0);
		write_node(r, x->a);
		over = emit(r, C_JUMP, 0);
		write_other(r, at, false);
		write_node(r, x->b);
		r->s->insn[over].x = r->s->ninsns;
		break;
	case REPEAT:
		write_repeat(r, x);
		break;
	case LOOK:
		write_apart(r, x->negated ? C_NOT_AHEAD : C_AHEAD, x->a);
		break;
	case ATOMIC:
		write_apart(r, C_ATOMIC, x->a);
		break;
	}
}

struct om_split *
om_split_open(const char *pattern, char why[OM_TOKENIZER_WHY])
{
	struct om_split *s = om_alloc(1, sizeof *s);
	struct reader r = { .s = s, .why = why };
	uint32_t root;

	*why = '\0';
	r.c = om_utf8_all(pattern, strlen(pattern), &r.n);
	if (r.n > PATTERN) {
		wrong(&r, PATTERN, "more than %d characters", PATTERN);
		r.n = 0;
	}
	/*
	 * A character gives at most two nodes, its own and one that joins it to others, and in (?i:
	 * at most three ranges.
	 */
	r.node = om_alloc(4 * r.n + 4, sizeof *r.node);
	s->item = om_alloc(4 * r.n + 4, sizeof *s->item);
	s->set = om_alloc(r.n + 1, sizeof *s->set);
	s->insn = om_alloc(PROGRAM, sizeof *s->insn);
	if (!*why && read_either(&r, &root)) {
		if (r.at < r.n)
			wrong(&r, r.at, ") has no (");
		write_node(&r, root);
		emit(&r, C_END, 0);
	}
	free(r.c);
	free(r.node);
	if (!*why)
		return s;
	om_split_close(s);
	return NULL;
}

void
om_split_close(struct om_split *s)
{
	if (!s)
		return;
	free(s->item);
	free(s->set);
	free(s->insn);
	free(s);
}

/* ---- a match --------------------------------------------------------------------------------- */

struct way { /* one not tried yet */
	uint32_t at;
	size_t place;
};
struct match {
	const struct om_split *s;
	const uint32_t *text;
	size_t n;
	struct way *way;
	size_t ways, room;
	uint64_t steps, most;
};

static bool
in_set(const struct om_split *s, uint32_t which, uint32_t c)
{
	const struct set *set = &s->set[which];

	for (uint32_t i = 0; i < set->n; i++) {
		const struct item *x = &s->item[set->first + i];
		bool in = (c >= x->low && c <= x->high) ||
			  (x->classes && (x->classes >> om_class(c) & 1)) ||
			  (x->space && om_is_space(c));

		if (in != x->negated)
			return !set->negated;
	}
	return set->negated;
}

static void
push(struct match *m, uint32_t at, size_t place)
{
	if (m->ways == m->room) {
		size_t room = m->room ? 2 * m->room : 64;
		struct way *more = om_alloc(room, sizeof *more);

		if (m->ways)
			memcpy(more, m->way, m->ways * sizeof *more);
		free(m->way);
		m->way = more;
		m->room = room;
	}
	m->way[m->ways++] = (struct way){ at, place };
}

#define NOWHERE SIZE_MAX
/* Where the program from `at` on ends, begun at this place of the text; groups go a level down. */
static size_t
run(struct match *m, uint32_t at, size_t place)
{
	size_t base = m->ways, end;

	while (m->steps++ < m->most) {
		const struct insn *i = &m->s->insn[at++];
		bool fits = true;

		switch (i->code) {
		case C_SET:
			fits = place < m->n && in_set(m->s, i->x, m->text[place]);
			place += fits;
			break;
		case C_LINE_END:
			fits = place == m->n || m->text[place] == '\n';
			break;
		case C_SPLIT:
			push(m, i->y, place);
			at = i->x;
			break;
		case C_JUMP:
			at = i->x;
			break;
		case C_ATOMIC:
			end = run(m, at, place);
			fits = end != NOWHERE;
			place = fits ? end : place;
			at = i->x;
			break;
		case C_AHEAD:
		case C_NOT_AHEAD:
			fits = (run(m, at, place) != NOWHERE) == (i->code == C_AHEAD);
			at = i->x;
			break;
		case C_END:
			m->ways = base;
			return place;
		}
		if (fits)
			continue;
		if (m->ways == base)
			return NOWHERE;
		m->ways--;
		at = m->way[m->ways].at;
		place = m->way[m->ways].place;
	}
	m->ways = base;
	return NOWHERE;
}

enum om_find
om_split_next(const struct om_split *s, const uint32_t *text, struct om_found *f)
{
	struct match m = { .s = s,
		.text = text,
		.n = f->n,
		.steps = f->steps,
		.most = STEPS + (uint64_t)f->n * STEPS_A_POINT };
	enum om_find found = OM_NO_MORE;

	for (; found == OM_NO_MORE && f->at <= f->n; f->at++) {
		size_t end = run(&m, 0, f->at);

		if (m.steps >= m.most) {
			found = OM_TOO_LONG;
		} else if (end != NOWHERE && (end > f->at || !f->any || f->end != end)) {
			found = OM_FOUND; /* an empty one just behind another is none */
			f->begin = f->at;
			f->end = end;
			f->any = true;
		}
	}
	if (found == OM_FOUND)
		f->at = f->end;
	f->steps = m.steps;
	free(m.way);
	return found;
}
