/*
 * The command report: files of metrics as one page. Whatever numbers their lines have become
 * curves, by their path in the line, "loss" or "moe/3/max_load", and lists of numbers rows of a
 * heat map. Both are kept for bins of steps, with their least and greatest number, so that a page
 * of a million lines is as large as one of some thousand: two bins become one whenever they are
 * too many.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "om_rt.h"

enum {
	BINS = 1024,
	WIDE = 4, /* bins of a curve that are one of a heat map */
	HEAT_BINS = BINS / WIDE,
	SERIES = 8192,
	ROWS = 1 << 16,
	EVENTS = 1000, /* of a kind that are listed */
	DEPTH = 16,
	PATH_MOST = 200,
	LINE_MOST = 1 << 26
};

struct bin {
	float lo, hi;
	double sum;
	uint32_t n;
};
struct series {
	char *name;
	uint32_t rows; /* of a heat map, 0: it is a curve */
	struct bin *bin;
	float *cell; /* [HEAT_BINS][rows], sums of shares of the mean */
	uint64_t end;
	double last; /* of the highest step, end */
};
enum kind { SKIPPED, NOT_FINITE, RESTARTED, ROLLED_BACK, SLOW, N_KINDS };
static const char *const kind_names[N_KINDS] = { "skipped", "not finite", "restart", "rollback",
	"slow" };
struct event {
	enum kind kind;
	uint64_t step;
	char text[64];
};
struct run {
	char *path;
	const char *line; /* that is read */
	uint64_t number;
	uint64_t step, first, top, width; /* steps; of a bin */
	bool any, going;                  /* going: its last line has no end yet */
	struct series *series;
	uint32_t nseries, next; /* next: what most likely comes next */
	uint32_t *hash;         /* 1 + of series */
	struct event *event;
	uint64_t counts[N_KINDS], nevents;
	double rate, waited, pace, back; /* of this line; of lines before: usual rate, rollbacks */
	bool lost;                       /* the line's loss is no number */
	uint64_t paced;
};

static _Noreturn void
wrong(const struct run *r, const char *at, const char *what)
{
	om_die("report", "%s: line %llu, byte %llu: %s; give files of log.metrics", r->path,
	    (unsigned long long)r->number, (unsigned long long)(at - r->line + 1), what);
}

/* ---- bins ---- */

static void
join_bins(struct run *r)
{
	r->width *= 2;
	for (struct series *s = r->series; s < r->series + r->nseries; s++) {
		const uint32_t n = s->rows ? HEAT_BINS : BINS;

		for (uint32_t i = 0; i < n / 2; i++) {
			struct bin a = s->bin[2 * i], b = s->bin[2 * i + 1];

			s->bin[i] = (struct bin){ a.n && (!b.n || a.lo < b.lo) ? a.lo : b.lo,
				a.n && (!b.n || a.hi > b.hi) ? a.hi : b.hi, a.sum + b.sum,
				a.n + b.n };
			for (uint32_t k = 0; k < s->rows; k++)
				s->cell[i * s->rows + k] = s->cell[2 * i * s->rows + k] +
							   s->cell[(2 * i + 1) * s->rows + k];
		}
		memset(s->bin + n / 2, 0, n / 2 * sizeof *s->bin);
		if (s->rows)
			memset(s->cell + n / 2 * s->rows, 0, n / 2 * s->rows * sizeof *s->cell);
	}
}

/* The curve or heat map of a name, which is new if it has not been met. */
static struct series *
series_of(struct run *r, const char *name, uint32_t rows)
{
	uint64_t h = 14695981039346656037ull ^ rows;
	uint32_t at, id;

	if (r->next < r->nseries && r->series[r->next].rows == rows &&
	    strcmp(r->series[r->next].name, name) == 0)
		return &r->series[r->next++];
	for (const char *s = name; *s; s++)
		h = (h ^ (unsigned char)*s) * 1099511628211ull;
	for (at = (uint32_t)(h >> 32) % (2 * SERIES); (id = r->hash[at]);
	     at = (at + 1) % (2 * SERIES))
		if (r->series[id - 1].rows == rows && strcmp(r->series[id - 1].name, name) == 0) {
			r->next = id;
			return &r->series[id - 1];
		}
	if (r->nseries == SERIES)
		wrong(r, r->line, "no trainer writes so many different numbers");
	r->series[r->nseries] = (struct series){ .name = om_text("%s", name),
		.rows = rows,
		.bin = om_alloc(rows ? HEAT_BINS : BINS, sizeof(struct bin)) };
	if (rows)
		r->series[r->nseries].cell = om_alloc((size_t)HEAT_BINS * rows, sizeof(float));
	r->hash[at] = r->next = ++r->nseries;
	return &r->series[r->nseries - 1];
}

static struct bin *
bin_of(struct run *r, struct series *s)
{
	uint64_t at = r->step > r->first ? (r->step - r->first) / r->width : 0;

	return &s->bin[s->rows ? at / WIDE : at];
}

static void
add(struct run *r, struct series *s, double x)
{
	struct bin *b = bin_of(r, s);

	b->lo = b->n && b->lo <= (float)x ? b->lo : (float)x;
	b->hi = b->n && b->hi >= (float)x ? b->hi : (float)x;
	b->sum += x;
	b->n++;
	if (r->step >= s->end) {
		s->end = r->step;
		s->last = x;
	}
}

/* ---- what happened ---- */

static void
happened(struct run *r, enum kind kind, const char *fmt, double x)
{
	struct event *e;

	if (r->counts[kind]++ >= EVENTS)
		return;
	e = &r->event[r->nevents++];
	*e = (struct event){ .kind = kind, .step = r->step };
	snprintf(e->text, sizeof e->text, fmt, x);
}

/* A number of the line, or null's NAN. */
static void
met(struct run *r, const char *path, double x)
{
	if (isfinite(x))
		add(r, series_of(r, path, 0), x);
	if (strcmp(path, "skipped") == 0 && x > 0)
		happened(r, SKIPPED, "by SkipStep", 0);
	else if (strcmp(path, "loss") == 0)
		r->lost = !isfinite(x);
	else if (strcmp(path, "resumed") == 0)
		happened(r, RESTARTED, "from the checkpoint of step %.0f", x);
	else if (strcmp(path, "rollbacks") == 0 && x > r->back)
		happened(r, ROLLED_BACK, "number %.0f", r->back = x);
	else if (strcmp(path, "tokens_per_s") == 0)
		r->rate = x;
	else if (strcmp(path, "data_wait") == 0)
		r->waited = x;
}

/*
 * A loss that is none, where no tensor is named for it; a step that takes half as long again as
 * those before it.
 */
static void
line_end(struct run *r)
{
	if (r->lost && !(r->nevents && r->event[r->nevents - 1].step == r->step))
		happened(r, NOT_FINITE, "the loss", 0);
	if (!(r->rate > 0))
		return;
	if (r->paced > 4 && r->rate * 1.5 < r->pace)
		happened(r, SLOW, r->waited > 0.01 ? "it waited %.3g s for data" : "not for data",
		    r->waited);
	else
		r->pace += (r->rate - r->pace) / (r->paced < 20 ? (double)++r->paced : 20);
}

/* ---- reading ---- */

static const char *value(struct run *r, const char *s, char *path, size_t n, int depth);

static const char *
blanks(const char *s)
{
	return s + strspn(s, " \t\r");
}

/* Behind a string; its text, or as much as there is room for, goes to text. */
static const char *
string(const struct run *r, const char *s, char *text, size_t room)
{
	size_t n = 0;

	for (s++; *s != '"'; s++) {
		if (!*s || (*s == '\\' && !*++s))
			wrong(r, s, "a string has no end");
		if (n + 1 < room)
			text[n++] = *s;
	}
	if (room)
		text[n] = 0;
	return s + 1;
}

static const char *
number(const struct run *r, const char *s, double *x)
{
	char *end;
	size_t n = strspn(s, "+-.0123456789eE");

	*x = strtod(s, &end);
	if (end == s || *s == '+' || (size_t)(end - s) != n)
		wrong(r, s, "is no JSON");
	return end;
}

/* A list of numbers, from behind its bracket: one row each, as shares of their mean. */
static const char *
numbers(struct run *r, const char *s, const char *path)
{
	static double x[ROWS];
	struct series *heat;
	double sum = 0;
	uint32_t n = 0;

	for (; *s != ']'; s = blanks(*s == ',' ? s + 1 : s)) {
		if (n == ROWS)
			wrong(r, s, "a list has more than 65,536 numbers");
		s = blanks(number(r, s, &x[n]));
		sum += x[n++];
		if (*s != ',' && *s != ']')
			wrong(r, s, "wants , or ]");
	}
	if (n > 1 && sum > 0) {
		heat = series_of(r, path, n);
		float *cell = heat->cell + (bin_of(r, heat) - heat->bin) * n;
		add(r, heat, sum);
		for (uint32_t i = 0; i < n; i++)
			cell[i] += (float)(x[i] * n / sum);
	}
	return s + 1;
}

/*
 * Members of an object or a list, from behind its bracket, each under its key: of a list its place,
 * or the layer that an object there begins with.
 */
static const char *
members(struct run *r, const char *s, char *path, size_t n, int depth, char close)
{
	char key[64];

	s = blanks(s);
	for (uint32_t i = 0; *s != close; i++) {
		double layer;

		if (close == ']') {
			layer = i;
			if (strncmp(s, "{\"layer\": ", 10) == 0)
				number(r, s + 10, &layer);
			snprintf(key, sizeof key, "%.0f", layer);
		} else {
			if (*s != '"')
				wrong(r, s, "wants a name in quotes");
			s = blanks(string(r, s, key, sizeof key));
			if (*s != ':')
				wrong(r, s, "wants a colon");
			s = blanks(s + 1);
		}
		size_t m = n, length = strlen(key);
		if (n + length + 2 > PATH_MOST)
			wrong(r, s, "is nested too deep");
		if (n)
			path[m++] = '/';
		memcpy(path + m, key, length + 1);
		s = blanks(value(r, s, path, m + length, depth));
		path[n] = 0;
		if (*s == ',')
			s = blanks(s + 1);
		else if (*s != close)
			wrong(r, s, close == '}' ? "wants , or }" : "wants , or ]");
	}
	return s + 1;
}

static const char *
value(struct run *r, const char *s, char *path, size_t n, int depth)
{
	static const struct {
		const char *word;
		double x;
	} words[] = { { "null", NAN }, { "true", 1 }, { "false", 0 } };
	double x;

	if (*s == '{' || *s == '[') {
		if (depth == DEPTH)
			wrong(r, s, "is nested too deep");
		const char *in = blanks(s + 1);
		if (*s == '[' && *in && strchr("-0123456789", *in))
			return numbers(r, in, path);
		return members(r, s + 1, path, n, depth + 1, *s == '{' ? '}' : ']');
	}
	if (*s == '"') {
		char text[64];

		s = string(r, s, text, sizeof text);
		if (strcmp(path, "not_finite") == 0) {
			happened(r, NOT_FINITE, "", 0);
			if (r->counts[NOT_FINITE] <= EVENTS)
				memcpy(r->event[r->nevents - 1].text, text, sizeof text);
		}
		return s;
	}
	for (size_t i = 0; i < OM_LEN(words); i++)
		if (strncmp(s, words[i].word, strlen(words[i].word)) == 0) {
			met(r, path, words[i].x);
			return s + strlen(words[i].word);
		}
	s = number(r, s, &x);
	met(r, path, x);
	return s;
}

/* One line, of n bytes without its end. */
static void
read_line(struct run *r, const char *line, size_t n)
{
	static const char begins[] = "{\"step\": ";
	char path[PATH_MOST] = "";
	double step;

	r->line = line;
	r->number++;
	if (strncmp(line, begins, sizeof begins - 1) != 0)
		wrong(r, line, "is no line of metrics");
	number(r, line + sizeof begins - 1, &step);
	if (!(step >= 0 && step <= 9007199254740992))
		wrong(r, line + sizeof begins - 1, "is no step");
	r->step = (uint64_t)step;
	r->first = r->any ? r->first : r->step;
	r->top = r->any && r->top > r->step ? r->top : r->step;
	r->any = true;
	while (r->step > r->first && (r->step - r->first) / r->width >= BINS)
		join_bins(r);
	r->next = 0;
	r->rate = r->waited = 0;
	r->lost = false;
	const char *end = blanks(value(r, line, path, 0, 0));
	if (end != line + n)
		wrong(r, end, "has more than an object");
	line_end(r);
}

/* All whole lines; what a run has not written to its end is left out. */
static void
read_run(struct run *r, int fd)
{
	size_t room = 1 << 20, n = 0;
	char *text = om_alloc(room + 1, 1);

	for (ssize_t got; (got = read(fd, text + n, room - n)) != 0;) {
		size_t from = 0;

		if (got < 0)
			om_die("report", "%s: %s", r->path, strerror(errno));
		n += (size_t)got;
		for (char *end; (end = memchr(text + from, '\n', n - from));
		     from = (size_t)(end - text) + 1) {
			*end = 0;
			read_line(r, text + from, (size_t)(end - (text + from)));
		}
		n -= from;
		memmove(text, text + from, n);
		if (n == room) {
			if (room >= LINE_MOST)
				om_die("report",
				    "%s: line %llu is longer than 64 MiB; give files of "
				    "log.metrics",
				    r->path, (unsigned long long)r->number + 1);
			text = realloc(text, (room *= 2) + 1);
			if (!text)
				om_die("report", "out of memory");
		}
	}
	r->going = n > 0;
	free(text);
}

/* ---- writing ---- */

/* In a script of HTML, too. */
static void
write_text(const char *s)
{
	putchar('"');
	for (; *s; s++)
		if ((unsigned char)*s < ' ' || strchr("\"\\<&", *s))
			printf("\\u%04x", (unsigned char)*s);
		else
			putchar(*s);
	putchar('"');
}

/* A column of the bins that have any: their numbers, means, least or greatest. */
static void
write_column(const struct series *s, char column)
{
	const char *comma = "";

	printf(",\"%c\":[", column);
	for (uint32_t i = 0; i < (s->rows ? HEAT_BINS : BINS); i++) {
		const struct bin *b = &s->bin[i];

		if (!b->n)
			continue;
		fputs(comma, stdout);
		comma = ",";
		if (column == 'x')
			printf("%u", (unsigned)i);
		else
			printf("%.7g", column == 'y'   ? b->sum / b->n
				       : column == 'l' ? (double)b->lo
						       : (double)b->hi);
	}
	putchar(']');
}

static void
write_curve(const struct series *s)
{
	bool many = false;

	write_text(s->name);
	printf(":{\"last\":%.10g", s->last);
	for (uint32_t i = 0; i < BINS; i++)
		many |= s->bin[i].n > 1;
	for (const char *c = many ? "xylh" : "xy"; *c; c++)
		write_column(s, *c);
	putchar('}');
}

/* Shares of the mean as characters: none, or 2^-4 to 2^4 in 62 equal steps. */
static void
write_heat(const struct series *s)
{
	static const char digit[] =
	    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

	write_text(s->name);
	printf(":{\"rows\":%u", (unsigned)s->rows);
	write_column(s, 'x');
	fputs(",\"cells\":\"", stdout);
	for (uint32_t i = 0; i < HEAT_BINS; i++)
		for (uint32_t k = 0; s->bin[i].n && k < s->rows; k++) {
			double x = (double)s->cell[i * s->rows + k] / s->bin[i].n;
			double at =
			    x > 0 ? 1 + round((fmin(fmax(log2(x), -4), 4) + 4) * 62 / 8) : 0;

			putchar(digit[(int)at]);
		}
	fputs("\"}", stdout);
}

static void
write_series(const struct run *r, bool heats)
{
	const char *comma = "";

	for (const struct series *s = r->series; s < r->series + r->nseries; s++) {
		if (!s->rows == heats)
			continue;
		fputs(comma, stdout);
		comma = ",\n";
		if (heats)
			write_heat(s);
		else
			write_curve(s);
	}
}

static void
write_run(const struct run *r)
{
	fputs("{\"name\":", stdout);
	write_text(r->path);
	printf(",\"lines\":%llu,\"first\":%llu,\"last\":%llu,\"width\":%llu,\"wide\":%d,\"going\":%"
	       "s,\"counts\":{",
	    (unsigned long long)r->number, (unsigned long long)r->first, (unsigned long long)r->top,
	    (unsigned long long)r->width, WIDE, r->going ? "true" : "false");
	for (int k = 0; k < N_KINDS; k++)
		printf(
		    "%s\"%s\":%llu", k ? "," : "", kind_names[k], (unsigned long long)r->counts[k]);
	fputs("},\"events\":[", stdout);
	for (const struct event *e = r->event; e < r->event + r->nevents; e++) {
		printf("%s[%llu,\"%s\",", e > r->event ? "," : "", (unsigned long long)e->step,
		    kind_names[e->kind]);
		write_text(e->text);
		putchar(']');
	}
	fputs("],\"series\":{\n", stdout);
	write_series(r, false);
	fputs("},\"heats\":{\n", stdout);
	write_series(r, true);
	fputs("}}", stdout);
}

/* A RUN as it is given: a file of metrics, or the folder that has one. */
static struct run
open_run(const char *given)
{
	struct stat st;
	bool folder = stat(given, &st) == 0 && S_ISDIR(st.st_mode);
	struct run r = { .path = om_text("%s%s", given, folder ? "/metrics.jsonl" : ""),
		.width = 1,
		.series = om_alloc(SERIES, sizeof *r.series),
		.hash = om_alloc(2 * SERIES, sizeof *r.hash),
		.event = om_alloc(N_KINDS * EVENTS, sizeof *r.event) };
	uint64_t size;
	int fd = om_open_regular(r.path, &size);

	if (fd < 0)
		om_die("report",
		    "%s: %s; give files of log.metrics, or folders with a metrics.jsonl", r.path,
		    om_file_why());
	read_run(&r, fd);
	close(fd);
	if (!r.any)
		om_die("report", "%s: has no line of metrics%s", r.path, r.going ? " yet" : "");
	return r;
}

static void
free_run(struct run *r)
{
	for (struct series *s = r->series; s < r->series + r->nseries; s++) {
		free(s->name);
		free(s->bin);
		free(s->cell);
	}
	free(r->path);
	free(r->series);
	free(r->hash);
	free(r->event);
}

struct runs {
	struct run *run;
	int n;
};

static void
write_runs(FILE *f, void *arg)
{
	const struct runs *all = arg;

	for (int i = 0; i < all->n; i++) {
		fputs(i ? ",\n" : "", f);
		write_run(&all->run[i]);
	}
}

int
om_report(int argc, char **argv)
{
	struct runs all = { om_alloc((size_t)argc, sizeof *all.run), argc };

	for (int i = 0; i < argc; i++)
		all.run[i] = open_run(argv[i]);
	om_page_write(stdout, "report.html", write_runs, &all);
	for (int i = 0; i < argc; i++)
		free_run(&all.run[i]);
	free(all.run);
	return 0;
}
