/*
 * What users read. Errors are collected, sorted by position and printed in one go, each with its
 * source line and a caret; notes and help stay with the error before them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* Distinct errors kept for sorting; a description that loops over a mistake has more. */
enum { KEPT_MAX = 1000 };
/* Bytes of a source line shown, and how many of them stand before the caret when it is cut. */
enum { LINE_MAX_SHOWN = 120, LINE_BEFORE = 40 };
/* Bytes of a message: users' strings may be of any length. */
enum { TEXT_MAX_SHOWN = 1000 };

struct source_file {
	const char *path, *text;
	size_t n;
	ARRAY(const char *) line; /* where each ends; none before they are asked for */
};
struct entry {
	struct pos pos;
	uint32_t seq;
	const char *text;
	struct buf more; /* its notes and help, printed already */
};

static ARRAY(struct source_file) files;
static ARRAY(struct entry) entries;
static uint32_t dropped;   /* errors beyond KEPT_MAX */
static bool drop_details;  /* the last error was a repetition: so are its notes */
static bool trying;        /* what is reported is not kept */
static uint32_t tried_for; /* the error that should be gone */
static enum diag_trial tried;

/*
 * Registers a source file, whose text must stay; gives its index. Unreadable files have the text
 * NULL.
 */
uint32_t
diag_file(const char *path, const char *text, size_t n)
{
	struct source_file *f = PUSH(files);
	f->path = xstrdup(path);
	f->text = text;
	f->n = n;
	return files.n;
}

/* The path of a file as it was given, NULL for index 0. */
const char *
diag_file_name(uint32_t file)
{
	return file && file <= files.n ? files.a[file - 1].path : NULL;
}

/* The text of a file and its length; NULL if there is none. */
const char *
diag_file_text(uint32_t file, size_t *n)
{
	*n = 0;
	if (!file || file > files.n)
		return NULL;
	*n = files.a[file - 1].n;
	return files.a[file - 1].text;
}

static char *
format(const char *fmt, va_list ap)
{
	char *raw = xvprintf(fmt, ap);
	struct buf b = { 0 };
	if (strlen(raw) > TEXT_MAX_SHOWN)
		strcpy(raw + TEXT_MAX_SHOWN - 3, "...");
	buf_puts(&b, "");
	/* users' strings may hold anything: a terminal gets no control characters from here */
	for (; *raw; raw++) {
		unsigned char c = *raw;
		if (c == '\n')
			buf_puts(&b, "\\n");
		else if (c == '\t')
			buf_puts(&b, "\\t");
		else if (c < 0x20 || c == 0x7f)
			buf_printf(&b, "\\%d", c);
		else
			buf_add(&b, raw, 1);
	}
	return b.s;
}

static void
place(struct buf *b, struct pos p)
{
	const char *path = diag_file_name(p.file);
	buf_puts(b, path ? path : "olmogen");
	if (p.line)
		buf_printf(b, ":%u", p.line);
	if (p.col)
		buf_printf(b, ":%u", p.col);
	buf_puts(b, ": ");
}

int
pos_order(struct pos a, struct pos b)
{
	if (a.file != b.file)
		return a.file < b.file ? -1 : 1;
	if (a.line != b.line)
		return a.line < b.line ? -1 : 1;
	return (a.col > b.col) - (a.col < b.col);
}

/*
 * Adds an error at a position (file 0: none). The same text at the same place counts once, so that
 * a loop in the description doesn't repeat itself.
 */
void
diag_error(struct pos p, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	char *text = format(fmt, ap);
	va_end(ap);

	drop_details = true;
	uint32_t i = 0;
	while (i < entries.n &&
	       (pos_order(entries.a[i].pos, p) || strcmp(entries.a[i].text, text) != 0))
		i++;
	if (trying) {
		bool there = tried_for < entries.n && !pos_order(entries.a[tried_for].pos, p);
		enum diag_trial t = i < entries.n && i != tried_for ? TRIAL_AGAIN
				    : there                         ? TRIAL_SAME
								    : TRIAL_NEW;
		tried = t > tried ? t : tried;
	}
	if (trying || i < entries.n)
		return;
	if (entries.n == KEPT_MAX) {
		dropped++;
		return;
	}
	drop_details = false;
	struct entry *e = PUSH(entries);
	*e = (struct entry){ .pos = p, .seq = entries.n, .text = text };
}

void
diag_note(struct pos p, const char *fmt, ...)
{
	va_list ap;
	if (drop_details || !entries.n)
		return;
	struct buf *b = &entries.a[entries.n - 1].more;
	va_start(ap, fmt);
	place(b, p);
	buf_printf(b, "note: %s\n", format(fmt, ap));
	va_end(ap);
}

void
diag_help(const char *fmt, ...)
{
	va_list ap;
	if (drop_details || !entries.n)
		return;
	va_start(ap, fmt);
	diag_help_of((int)entries.n - 1, format(fmt, ap));
	va_end(ap);
}

int
diag_last(void)
{
	return drop_details || trying || !entries.n ? DIAG_NONE : (int)entries.n - 1;
}

void
diag_help_of(int error, const char *help)
{
	buf_printf(&entries.a[error].more, "  help: %s\n", help);
}

void
diag_trial(int error)
{
	tried_for = (uint32_t)error;
	trying = true;
	tried = TRIAL_CLEAN;
}

enum diag_trial
diag_tried(void)
{
	return tried;
}

bool
diag_trying(void)
{
	return trying;
}

void
diag_trial_end(void)
{
	trying = false;
}

static bool
is_continuation(char c)
{
	return ((unsigned char)c & 0xc0) == 0x80; /* inside a UTF-8 character */
}

bool
diag_source_line(uint32_t file, uint32_t line, const char **s, size_t *n)
{
	size_t size;
	const char *text = diag_file_text(file, &size), *end = text + size;
	if (!text || !line)
		return false;
	struct source_file *f = &files.a[file - 1];
	for (const char *p = f->line.n ? NULL : text; p && p <= end; p++) {
		const char *eol = memchr(p, '\n', (size_t)(end - p));
		*PUSH(f->line) = p = eol ? eol : end;
	}
	if (line > f->line.n)
		return false;
	*s = line > 1 ? f->line.a[line - 2] + 1 : text;
	*n = (size_t)(f->line.a[line - 1] - *s);
	if (*n && (*s)[*n - 1] == '\r')
		(*n)--;
	return true;
}

/* The source line and the caret; a line too long is cut around the caret. */
static void
excerpt(struct buf *b, struct pos p)
{
	const char *s;
	size_t n;
	if (!diag_source_line(p.file, p.line, &s, &n))
		return;
	size_t from = 0, to = n, at = p.col ? p.col - 1 : 0;
	if (at > n)
		at = n;
	if (n > LINE_MAX_SHOWN) {
		if (at > LINE_MAX_SHOWN - LINE_BEFORE)
			from = at - LINE_BEFORE;
		if (to - from > LINE_MAX_SHOWN)
			to = from + LINE_MAX_SHOWN;
		while (from && is_continuation(s[from]))
			from--;
		while (to < n && is_continuation(s[to]))
			to++;
	}
	const char *head = from ? "..." : "", *tail = to < n ? "..." : "";
	buf_printf(b, "%5u | %s", p.line, head);
	for (size_t i = from; i < to; i++) {
		unsigned char c = s[i];
		buf_add(b, (c < 0x20 && c != '\t') || c == 0x7f ? "?" : s + i, 1);
	}
	buf_printf(b, "%s\n", tail);
	if (!p.col)
		return;
	buf_printf(b, "      | %*s", (int)strlen(head), "");
	for (size_t i = from; i < at; i++)
		if (!is_continuation(s[i]))
			buf_puts(b, s[i] == '\t' ? "\t" : " ");
	buf_puts(b, "^");
	for (size_t i = at + 1; i < at + p.len && i < to; i++)
		if (!is_continuation(s[i]))
			buf_puts(b, "~");
	buf_puts(b, "\n");
}

static int
by_place(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	int order = pos_order(x->pos, y->pos);
	return order ? order : x->seq < y->seq ? -1 : 1;
}

bool
diag_shown(int error)
{
	uint32_t before = 0;

	for (uint32_t i = 0; i < entries.n; i++)
		before += by_place(&entries.a[i], &entries.a[error]) < 0;
	return before < DIAG_MAX;
}

/* Errors collected and not printed yet. */
int
diag_count(void)
{
	return (int)(entries.n + dropped);
}

/* What was collected, by place, is now the caller's. */
static uint32_t
take_sorted(void)
{
	uint32_t n = entries.n;
	if (n)
		qsort(entries.a, n, sizeof(*entries.a), by_place);
	entries.n = dropped = 0;
	return n;
}

int
diag_flush(void)
{
	int total = diag_count();
	uint32_t n = take_sorted();
	for (uint32_t i = 0; i < n && i < DIAG_MAX; i++) {
		struct entry *e = &entries.a[i];
		struct buf b = { 0 };
		place(&b, e->pos);
		buf_printf(&b, "error: %s\n", e->text);
		excerpt(&b, e->pos);
		if (e->more.n)
			buf_add(&b, e->more.s, e->more.n);
		fwrite(b.s, 1, b.n, stderr);
	}
	if (total > DIAG_MAX)
		fprintf(stderr, "... and %d more error%s\n", total - DIAG_MAX,
		    total == DIAG_MAX + 1 ? "" : "s");
	return total;
}

/* The same to one line, "PLACE: ERROR; ...". */
void
diag_line(struct buf *b)
{
	uint32_t n = take_sorted();
	for (uint32_t i = 0; i < n; i++) {
		buf_puts(b, i ? "; " : "");
		place(b, entries.a[i].pos);
		buf_puts(b, entries.a[i].text);
	}
}

/*
 * The name closest to a word, if it is close enough to be what was meant: a third of its letters
 * differ, or one. Else NULL.
 */
const char *
diag_closest(const char *word, const char *const *names, uint32_t n)
{
	size_t size = strlen(word), most = size / 3 > 1 ? size / 3 : 1;
	const char *best = NULL;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t d = om_distance(word, names[i]);
		if (d < most || (d == most && !best)) {
			most = d;
			best = names[i];
		}
	}
	return best;
}

bool
diag_failed(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fprintf(stderr, "olmogen: error: %s\n", xvprintf(fmt, ap));
	va_end(ap);
	return false;
}
