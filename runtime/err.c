/* What users read when something is wrong: one line at run time, source and caret for run.yaml. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "om_rt.h"

enum { CLIP = 100 };

static const char *who = "trainer";
static uint64_t now_step;
static void (*before)(void);
static int errors;

void
om_err_name(const char *name)
{
	who = name;
}

void
om_err_step(uint64_t step)
{
	now_step = step;
}

void
om_err_before(void (*hook)(void))
{
	before = hook;
}

static _Noreturn void
end(int status, bool here, const char *operation, const char *fmt, va_list ap)
{
	char what[4096], step[40] = "";
	bool speaks;

	vsnprintf(what, sizeof what, fmt, ap);
	if (now_step)
		snprintf(step, sizeof step, "step %llu, ", (unsigned long long)now_step);
	speaks = om_comm_speaks(); /* what ends one rank often ends all at once */
	if (speaks) {
		if (!here)
			fflush(stdout);
		if (!here && before)
			before();
		fprintf(stderr, "%s: rank %u, %s%s: %s\n", who, om_rank(OM_WORLD), step, operation,
		    what);
	}
	if (here)
		_exit(status);
	om_comm_abort(status, speaks);
}

void
om_die(const char *operation, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	end(OM_EXIT_USER, false, operation, fmt, ap);
}

void
om_lost(const char *operation, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	end(OM_EXIT_LOST, false, operation, fmt, ap);
}

void
om_lost_here(const char *operation, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	end(OM_EXIT_LOST, true, operation, fmt, ap);
}

/* A byte within a character of UTF-8, not its first one. */
static bool
inner(char c)
{
	return ((unsigned char)c & 0xC0) == 0x80;
}

const char *
om_clip(const char *s)
{
	static char text[4][CLIP + 4];
	static unsigned next;
	char *t = text[next++ % OM_LEN(text)];
	size_t n = strnlen(s, CLIP);

	while (n && inner(s[n]))
		n--;
	snprintf(t, sizeof text[0], "%.*s%s", (int)n, s, s[n] ? "..." : "");
	om_plain(t);
	return t;
}

/* The place n characters after s. */
static const char *
after(const char *s, const char *end, uint32_t n)
{
	for (; s < end && n; n--)
		for (s++; s < end && inner(*s);)
			s++;
	return s;
}

/*
 * Prints line at.line of the source, of a long one the part around at.col, and carets under at.col
 * .. at.col + at.len.
 */
static void
show(struct om_at at)
{
	const char *s = at.src->text, *end = s + at.src->n, *stop;
	uint32_t col, from = 1, most = UINT32_MAX;

	for (uint32_t line = 1; line < at.line && s < end; line++) {
		const char *next = memchr(s, '\n', (size_t)(end - s));

		s = next ? next + 1 : end;
	}
	if (!(stop = memchr(s, '\n', (size_t)(end - s))))
		stop = end;
	if (stop > s && stop[-1] == '\r')
		stop--;
	if (stop - s > CLIP) {
		most = CLIP;
		from = at.col > CLIP / 2 ? at.col - CLIP / 2 : 1;
	}
	s = after(s, stop, from - 1);
	end = after(s, stop, most);
	if (at.src->arg)
		fprintf(stderr, "      | ");
	else
		fprintf(stderr, "%5u | ", at.line);
	fprintf(stderr, "%s%.*s%s\n      | %s", from > 1 ? "..." : "", (int)(end - s), s,
	    end < stop ? "..." : "", from > 1 ? "   " : "");
	for (col = from; s < end && col < at.col; s = after(s, end, 1), col++)
		fputc(*s == '\t' ? '\t' : ' ', stderr);
	fputc('^', stderr);
	for (uint32_t i = 1; i < at.len && at.col - from + i < most; i++)
		fputc('~', stderr);
	fputc('\n', stderr);
}

static void
report(struct om_at at, const char *kind, const char *fmt, va_list ap)
{
	if (errors > OM_DIAG_MAX)
		return;
	fprintf(stderr, "%s:", at.src->name);
	if (at.line && !at.src->arg)
		fprintf(stderr, "%u:%u:", at.line, at.col);
	fprintf(stderr, " %s: ", kind);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	if (at.line)
		show(at);
}

void
om_diag(struct om_at at, const char *fmt, ...)
{
	va_list ap;

	errors++;
	va_start(ap, fmt);
	report(at, "error", fmt, ap);
	va_end(ap);
}

void
om_diag_note(struct om_at at, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	report(at, "note", fmt, ap);
	va_end(ap);
}

void
om_diag_help(const char *fmt, ...)
{
	va_list ap;

	if (errors > OM_DIAG_MAX)
		return;
	va_start(ap, fmt);
	fprintf(stderr, "  help: ");
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
}

int
om_diag_count(void)
{
	return errors;
}
