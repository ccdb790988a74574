/* JSON by jansson, with limits on size, depth and memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "json.h"

/*
 * A tensor's entry in a header takes 8 to 16 times its text; what takes more, lists of digits 28
 * times, objects without members 80 times, may do so in small files.
 */
enum { TIMES = 20, LEAST = 1 << 24 };

static size_t left = SIZE_MAX; /* bytes that jansson may still take */
static bool denied;            /* it wanted more; not all of its code notices */

static void *
take(size_t n)
{
	denied = denied || n > left;
	if (denied)
		return NULL;
	left -= n;
	return malloc(n);
}

/* The place of byte `at`, and what is wrong there. */
static void
say(char why[OM_JSON_WHY], const char *s, size_t at, const char *what)
{
	size_t line = 1, column = 1;

	for (size_t i = 0; i < at; i++) {
		column = s[i] == '\n' ? 1 : column + ((s[i] & 0xC0) != 0x80);
		line += s[i] == '\n';
	}
	snprintf(why, OM_JSON_WHY, "line %zu, column %zu: %s", line, column, what);
}

/* The first bracket that is too deep, n: there is none. jansson descends 2048 levels. */
static size_t
too_deep(const char *s, size_t n)
{
	bool quoted = false;
	int depth = 0;

	for (size_t i = 0; i < n; i++)
		switch (s[i]) {
		case '\\':
			i += quoted;
			break;
		case '"':
			quoted = !quoted;
			break;
		case '{':
		case '[':
			if (!quoted && ++depth > OM_JSON_DEPTH)
				return i;
			break;
		case '}':
		case ']':
			depth -= !quoted;
			break;
		}
	return n;
}

/* jansson's own words; of a name that is there twice, which one. */
static void
explain(char why[OM_JSON_WHY], const char *s, size_t n, const json_error_t *e)
{
	size_t at = (size_t)e->position, from; /* of what was read last */
	char what[OM_JSON_WHY / 2];

	at = at > n ? n : at;
	at -= at > 0;
	snprintf(what, sizeof what, "%s", e->text);
	if (json_error_code(e) == json_error_duplicate_key) {
		for (from = at; from && (s[from - 1] != '"' || (from > 1 && s[from - 2] == '\\'));)
			from--;
		snprintf(what, sizeof what, "the name \"%.*s\" is there twice",
		    at - from < 100 ? (int)(at - from) : 100, s + from);
	}
	om_plain(what);
	say(why, s, at, what);
}

json_t *
om_json_parse(const char *s, size_t n, char why[OM_JSON_WHY])
{
	size_t start = 0, deep;
	json_error_t e;
	json_t *x;

	while (start < n && strchr(" \t\r\n", s[start]) && s[start])
		start++;
	if (start == n || s[start] != '{') {
		say(why, s, start, start == n ? "it is empty" : "an object, {...}, is expected");
		return NULL;
	}
	if ((deep = too_deep(s, n)) < n) {
		say(why, s, deep, "more than 100 levels of brackets");
		return NULL;
	}
	json_set_alloc_funcs(take, free);
	left = TIMES * n + LEAST;
	x = json_loadb(s, n, JSON_REJECT_DUPLICATES, &e);
	if (denied) {
		json_decref(x);
		x = NULL;
		snprintf(
		    why, OM_JSON_WHY, "takes more memory than %d times its %zu bytes", TIMES, n);
	} else if (!x) {
		explain(why, s, n, &e);
	}
	left = SIZE_MAX;
	denied = false;
	return x;
}

json_t *
om_json_file(const char *path, char why[OM_JSON_WHY])
{
	size_t n;
	char *s = om_file_read(path, OM_JSON_MOST, &n);
	json_t *x;

	if (!s) {
		snprintf(why, OM_JSON_WHY, "%s", om_file_why());
		return NULL;
	}
	x = om_json_parse(s, n, why);
	free(s);
	errno = EINVAL; /* it is there */
	return x;
}

uint64_t
om_json_whole(const json_t *x)
{
	json_int_t n = json_is_integer(x) ? json_integer_value(x) : -1;

	return n < 0 ? UINT64_MAX : (uint64_t)n;
}

void
om_json_string(FILE *f, const char *s)
{
	fputc('"', f);
	while (*s) {
		json_t *x = json_string(s);
		size_t n = x ? strlen(s) : 1;
		char *text;

		/* of a text that is not UTF-8 one character at a time */
		for (; !x && n <= 4 && n <= strlen(s); n++)
			if ((x = json_stringn(s, n)))
				break;
		text = x ? json_dumps(x, JSON_ENCODE_ANY) : NULL;
		if (text)
			fprintf(f, "%.*s", (int)strlen(text) - 2, text + 1);
		else
			fputs("\\ufffd", f);
		s += x ? n : 1;
		free(text);
		json_decref(x);
	}
	fputc('"', f);
}
