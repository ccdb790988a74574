/*
 * Where the description has what a line of resolved.lua says. resolved.lua keeps it in a comment
 * behind the line, "-- tiny.lua:14", so that it gives the same tree again.
 */
#include <ctype.h>
#include <string.h>

#include "lang/lang.h"

const char origin_title[] =
    "every default filled in; olmogen regenerates this tree from this file.";

/* The file that was asked about last, by lines. */
static struct {
	uint32_t file;
	bool resolved;
	ARRAY(const char *) line; /* where each ends */
} last;

static void
read_lines(uint32_t file)
{
	size_t size;
	const char *text = diag_file_text(file, &size), *end = text + size;

	last.file = file;
	last.line.n = 0;
	for (const char *p = text; p < end; p++) {
		const char *to = memchr(p, '\n', (size_t)(end - p));
		*PUSH(last.line) = p = to ? to : end;
	}
	size_t title = strlen(origin_title);
	last.resolved = last.line.n && last.line.a[0] >= text + title &&
			!memcmp(last.line.a[0] - title, origin_title, title);
}

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
	if (!pos.file || !pos.line)
		return NULL;
	if (last.file != pos.file)
		read_lines(pos.file);
	if (last.resolved)
		return pos.line > 1 && pos.line <= last.line.n
			   ? comment_behind(last.line.a[pos.line - 2], last.line.a[pos.line - 1])
			   : NULL;
	const char *path = diag_file_name(pos.file), *slash = strrchr(path, '/');
	char *name = xprintf("%s:%u", slash ? slash + 1 : path, pos.line);
	for (char *c = name; *c; c++)
		if (iscntrl((unsigned char)*c))
			*c = '?';
	return name;
}
