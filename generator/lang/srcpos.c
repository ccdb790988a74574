/*
 * Where things stand in a description. Lua knows lines only, so it is given the text with one token
 * a line and no comments: every line it reports is then one token, and its line and column in the
 * file are exact, for errors, call levels and constructors alike.
 */
#define _GNU_SOURCE /* memmem */
#include <stdlib.h>
#include <string.h>

#include "lang/lang.h"

#define DIGITS "0123456789"
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
#define SPACE " \t\n\v\f\r"

enum kind { K_OTHER, K_NAME, K_STRING, K_NUMBER };

struct token {
	const char *s;
	enum kind kind;
	struct pos pos;
};
struct source {
	uint32_t file;
	ARRAY(struct token) token;
	ARRAY(uint32_t) lines; /* line of the split text - 1 -> token */
};

static ARRAY(struct source) sources;

/* What follows looks ahead without asking for the end: a text has a 0 behind it. */

static bool
is_newline(char c)
{
	return c == '\n' || c == '\r';
}

/* End of the line break at p: Lua counts \r\n and \n\r once. */
static const char *
skip_newline(const char *p)
{
	return is_newline(p[1]) && p[1] != *p ? p + 2 : p + 1;
}

/*
 * End of a long bracket that opens at p ("[[", "[=["), NULL if none opens; the end of the text if
 * it isn't closed.
 */
static const char *
skip_long(const char *p, const char *end, bool *closed)
{
	size_t level = strspn(++p, "=");
	if (p[level] != '[')
		return NULL;
	const char *close = xprintf("]%.*s]", (int)level, p);
	const char *at = memmem(p + level, (size_t)(end - p) - level, close, level + 2);
	*closed = at != NULL;
	return at ? at + level + 2 : end;
}

/* End of a quoted string; before the line break that leaves it unfinished. */
static const char *
skip_string(const char *p, const char *end)
{
	char quote = *p++;
	while (p < end && !is_newline(*p)) {
		if (*p == quote)
			return p + 1;
		if (*p++ != '\\' || p == end)
			continue;
		if (*p == 'z')
			p += 1 + strspn(p + 1, SPACE);
		else
			p = is_newline(*p) ? skip_newline(p) : p + 1;
	}
	return p;
}

static const char *
skip_number(const char *p)
{
	const char *exponent = *p == '0' && (p[1] | 0x20) == 'x' ? "pP" : "eE";
	while (*p && strchr(DIGITS LETTERS ".", *p))
		if (strchr(exponent, *p++))
			p += strspn(p, "+-") > 0;
	return p;
}

static const char *
skip_operator(const char *p)
{
	static const char *const longer[] = { "...", "..", "==", "~=", "<=", ">=", "//", "::", "<<",
		">>" };
	for (size_t i = 0; i < LEN(longer); i++)
		if (!strncmp(p, longer[i], strlen(longer[i])))
			return p + strlen(longer[i]);
	return p + 1;
}

/* End of the token at p and its kind; NULL for a comment, whose end is left in *after. */
static const char *
skip_token(const char *p, const char *end, enum kind *kind, const char **after)
{
	const char *e;
	bool closed;
	*kind = K_NAME;
	if (strspn(p, LETTERS))
		return p + strspn(p, LETTERS DIGITS);
	*kind = K_NUMBER;
	if (strspn(p + (*p == '.'), DIGITS))
		return skip_number(p);
	*kind = K_STRING;
	if (*p == '"' || *p == '\'')
		return skip_string(p, end);
	if (*p == '[' && (e = skip_long(p, end, &closed)))
		return e;
	*kind = K_OTHER;
	if (*p != '-' || p[1] != '-')
		return skip_operator(p);
	if (p[2] == '[' && (e = skip_long(p + 2, end, &closed))) {
		*after = e;
		return closed ? NULL : e; /* stays, for Lua to complain about */
	}
	for (*after = p; *after < end && !is_newline(**after);)
		++*after;
	return NULL;
}

static void
tokenize(struct source *src)
{
	size_t n;
	const char *text = diag_file_text(src->file, &n), *p = text, *end = text + n, *bol = text;
	uint32_t line = 1;
	if (n >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0)
		p += 3;
	if (*p == '#')
		while (p < end && *p != '\n')
			p++;
	while (p < end) {
		enum kind kind;
		const char *e, *after = end;
		if (strspn(p, SPACE)) {
			after = p + strspn(p, SPACE);
		} else if ((e = skip_token(p, end, &kind, &after))) {
			struct token *t = PUSH(src->token);
			*t = (struct token){ p, kind,
				{ src->file, line, (uint32_t)(p - bol) + 1, (uint32_t)(e - p) } };
			after = e;
			*PUSH(src->lines) = src->token.n - 1;
			for (const char *q = p; q < e; q = is_newline(*q) ? skip_newline(q) : q + 1)
				if (is_newline(*q))
					*PUSH(src->lines) = src->token.n - 1;
		}
		for (; p < after; p++)
			if (*p == '\n') {
				line++;
				bol = p + 1;
			}
	}
}

static const struct source *
source_of(uint32_t file)
{
	for (uint32_t i = sources.n; i--;)
		if (sources.a[i].file == file)
			return &sources.a[i];
	struct source *s = PUSH(sources);
	*s = (struct source){ .file = file };
	tokenize(s);
	return s;
}

/* The whole file if it has no such token. */
static struct pos
pos_of(const struct source *src, uint32_t token)
{
	return token < src->token.n ? src->token.a[token].pos : (struct pos){ .file = src->file };
}

/* The token on a line of the split text; the last one beyond the end. */
static uint32_t
token_on(const struct source *src, uint32_t line)
{
	if (!line || !src->token.n)
		return 0;
	return line <= src->lines.n ? src->lines.a[line - 1] : src->token.n - 1;
}

static bool
is(const struct source *src, uint32_t token, const char *text)
{
	if (token >= src->token.n)
		return false;
	const struct token *t = &src->token.a[token];
	return t->pos.len == strlen(text) && memcmp(t->s, text, t->pos.len) == 0;
}

/*
 * The text of a file for Lua, one token a line, and its length. Multi-line strings keep their
 * lines.
 */
char *
srcpos_split(uint32_t file, size_t *n)
{
	const struct source *src = source_of(file);
	struct buf b = { 0 };
	buf_puts(&b, "");
	for (uint32_t i = 0; i < src->token.n; i++) {
		if (i)
			buf_puts(&b, "\n");
		buf_add(&b, src->token.a[i].s, src->token.a[i].pos.len);
	}
	*n = b.n;
	return b.s;
}

/* Where the token on a line of the split text stands; the whole file if it has none. */
struct pos
srcpos_token(uint32_t file, uint32_t line)
{
	const struct source *src = source_of(file);
	return pos_of(src, token_on(src, line));
}

/*
 * Where a call stands whose argument opens on a line of the split text: the name before the brace,
 * parenthesis or string, or that itself when no name is there.
 */
struct pos
srcpos_call(uint32_t file, uint32_t line)
{
	const struct source *src = source_of(file);
	uint32_t t = token_on(src, line);
	if (t && src->token.a[t].kind != K_NAME && src->token.a[t - 1].kind == K_NAME)
		t--;
	return pos_of(src, t);
}

/* Where a name stands that was read on a line of the split text: on it or a few tokens around. */
struct pos
srcpos_name(uint32_t file, uint32_t line, const char *name)
{
	static const int around[] = { 0, -1, 1, -2, 2 };
	const struct source *src = source_of(file);
	uint32_t t = token_on(src, line);
	for (size_t i = 0; i < LEN(around); i++)
		if (is(src, t + (uint32_t)around[i], name))
			return pos_of(src, t + (uint32_t)around[i]);
	return pos_of(src, t);
}

/* The last return of a file, where its result is; the last token if there is none. */
struct pos
srcpos_return(uint32_t file)
{
	const struct source *src = source_of(file);
	for (uint32_t t = src->token.n; t--;)
		if (is(src, t, "return"))
			return pos_of(src, t);
	return srcpos_token(file, UINT32_MAX);
}

static int
by_place(const void *a, const void *b)
{
	return pos_order(((const struct token *)a)->pos, ((const struct token *)b)->pos);
}

/* The token at a position; the number of tokens if none is there. */
static uint32_t
token_at(const struct source *src, struct pos p)
{
	const struct token at = { .pos = p },
			   *t = bsearch(&at, src->token.a, src->token.n, sizeof at, by_place);
	return t ? (uint32_t)(t - src->token.a) : src->token.n;
}

/* Tokens of the key 'field =' or '["field"] =' at t, 0 if there is none. */
static uint32_t
key_at(const struct source *src, uint32_t t, const char *field)
{
	if (is(src, t, field) && is(src, t + 1, "="))
		return 1;
	bool quoted = is(src, t, "[") && (is(src, t + 1, xprintf("\"%s\"", field)) ||
					     is(src, t + 1, xprintf("'%s'", field)));
	return quoted && is(src, t + 2, "]") && is(src, t + 3, "=") ? 3 : 0;
}

/*
 * Where a field is given in the table of a call: the last time, which is the one that holds in Lua.
 * The call's own position if it stands nowhere (a computed key, a table made elsewhere). If it is
 * given more than once, *first is where it was first, else its line is 0; first may be NULL.
 */
struct pos
srcpos_field(struct pos call, const char *field, struct pos *first)
{
	const struct source *src = source_of(call.file);
	struct pos found = call;
	uint32_t t = token_at(src, call), depth = 0, seen = 0;
	if (first)
		*first = (struct pos){ 0 };
	if (!is(src, t, "{") && !is(src, t, "("))
		t++;
	while (is(src, t, "."))
		t += 2;
	if (is(src, t, "("))
		t++;
	if (!is(src, t, "{"))
		return call;
	for (; t < src->token.n; t++) {
		if (is(src, t, "{") || is(src, t, "(") || is(src, t, "function"))
			depth++;
		else if (is(src, t, "}") || is(src, t, ")") || is(src, t, "end"))
			depth--;
		/* do and then open blocks that 'end' closes; for and while have their do */
		else if (is(src, t, "do") || is(src, t, "if"))
			depth++;
		if (depth == 0)
			break;
		if (depth != 1 || !(is(src, t, "{") || is(src, t, ",") || is(src, t, ";")))
			continue;
		uint32_t n = key_at(src, t + 1, field);
		if (!n)
			continue;
		if (seen++ && first && !first->line)
			*first = found;
		found = pos_of(src, t + 1);
		struct pos last = pos_of(src, t + n);
		if (last.line == found.line)
			found.len = last.col + last.len - found.col;
	}
	return found;
}

bool
srcpos_literal(struct pos field)
{
	if (!field.line)
		return false;
	const struct source *src = source_of(field.file);
	uint32_t t = token_at(src, field);
	t += is(src, t, "[") ? 3 : 1;
	if (!is(src, t++, "="))
		return false;
	t += is(src, t, "-");
	bool constant = is(src, t, "true") || is(src, t, "false") ||
			(t < src->token.n && src->token.a[t].kind >= K_STRING);
	t++;
	return constant && (is(src, t, ",") || is(src, t, ";") || is(src, t, "}"));
}
