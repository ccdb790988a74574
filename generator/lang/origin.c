/*
 * Where the description has what a line of resolved.lua says. resolved.lua keeps it in a comment
 * behind the line, "-- tiny.lua:14", so that it gives the same tree again.
 */
#include <ctype.h>
#include <string.h>

#include "lang/lang.h"

const char origin_title[] =
    "every default filled in; olmogen regenerates this tree from this file.";

/* The comment of that form behind a line; NULL: there is none. */
static const char *
comment_behind(const char *begin, const char *end)
{
	const char *p = end;

	while (p > begin && isdigit((unsigned char)p[-1]))
		p--;
	if (p == end || p == begin || p[-1] != ':')
		return NULL;
	for (; p - begin >= 4; p--)
		if (!memcmp(p - 4, " -- ", 4))
			return xprintf("%.*s", (int)(end - p), p);
	return NULL;
}

const char *
origin_of(struct pos pos)
{
	const size_t title = sizeof origin_title - 1;
	const char *s;
	size_t n;

	if (!pos.line || !diag_source_line(pos.file, 1, &s, &n))
		return NULL;
	if (n >= title && !memcmp(s + n - title, origin_title, title))
		return pos.line > 1 && diag_source_line(pos.file, pos.line, &s, &n)
			   ? comment_behind(s, s + n)
			   : NULL;
	const char *path = diag_file_name(pos.file), *slash = strrchr(path, '/');
	char *name = xprintf("%s:%u", slash ? slash + 1 : path, pos.line);
	for (char *c = name; *c; c++)
		if (iscntrl((unsigned char)*c))
			*c = '?';
	return name;
}
