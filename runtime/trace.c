/*
 * What ran when in one step, as a file for Perfetto or chrome://tracing (the Trace Event Format):
 * a process a rank, a thread a stream, operators inside their segments. On a stream one operator
 * runs after the other, as they were launched; segments that overlap do so on different streams.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "om_rt.h"
#include "om_trace.h"

/* A segment of a layer as it ran once, or the part of the step around it. */
struct range {
	const char *name;
	int layer;       /* -1: of none */
	uint32_t around; /* among ranges, from 1; 0: none */
};
/* When it was on a stream; end 0: never. */
struct stay {
	double begin, end;
};
struct event {
	const struct om_op *op; /* NULL: `name`, which the host does */
	const char *name;
	uint32_t range;
	int thread; /* of the picture: the stream, or behind the last of them the host */
	double begin, end;
};

static bool on;
static struct range *ranges;
static struct stay *stays; /* [range][stream] */
static struct event *events;
static uint32_t nstreams, nranges, nevents, inside; /* inside: the open range, 0 for none */

/* Room for one more than n: twice as many each time n is a power of two. */
static void *
more(void *p, uint32_t n, size_t size)
{
	if (n & (n - 1))
		return p;
	if (!(p = realloc(p, (n ? 2 * (size_t)n : 1) * size)))
		om_die("trace", "no memory for %u events", n);
	return p;
}

void
om_trace_begin(uint32_t streams)
{
	on = true;
	nstreams = streams ? streams : 1;
	nranges = nevents = inside = 0;
}

bool
om_tracing(void)
{
	return on;
}

void
om_trace_enter(const char *name, int layer)
{
	if (!on)
		return;
	ranges = more(ranges, nranges, sizeof *ranges);
	stays = more(stays, nranges, nstreams * sizeof *stays);
	memset(stays + (size_t)nranges * nstreams, 0, nstreams * sizeof *stays);
	ranges[nranges++] = (struct range){ name, layer, inside };
	inside = nranges;
}

void
om_trace_leave(void)
{
	if (on)
		inside = ranges[inside - 1].around;
}

static void
add(struct event e)
{
	events = more(events, nevents, sizeof *events);
	events[nevents++] = e;
	for (uint32_t r = e.range; r; r = ranges[r - 1].around) {
		struct stay *x = &stays[(size_t)(r - 1) * nstreams + (uint32_t)e.thread];

		x->begin = x->end > 0 && x->begin < e.begin ? x->begin : e.begin;
		x->end = x->end > e.end ? x->end : e.end;
	}
}

uint32_t
om_trace_at(void)
{
	return inside;
}

void
om_trace_op(const struct om_op *op, uint32_t at, int stream, double begin, double end)
{
	if (on)
		add((struct event){ op, op->name, at, stream, begin, end });
}

void
om_trace_host(const char *what, double begin)
{
	if (on)
		add((struct event){ NULL, what, 0, (int)nstreams, begin, om_now() });
}

/* One event's line; times are microseconds since the step's begin. */
static void
line(FILE *f, const char *name, int layer, const char *kind, int thread, double begin, double end)
{
	fputs("{\"name\": ", f);
	om_json_string(f, name);
	fprintf(f,
	    ", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %u, \"tid\": %d, \"ts\": %.3f, "
	    "\"dur\": %.3f, \"args\": {",
	    kind, om_rank(OM_WORLD), thread, 1e6 * begin, 1e6 * (end - begin));
	if (layer >= 0)
		fprintf(f, "\"layer\": %d", layer);
}

/* This rank's part of the file: lines that end with a comma. */
static void
print_events(FILE *f, double origin)
{
	const uint32_t rank = om_rank(OM_WORLD);

	fprintf(f,
	    "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %u, \"args\": {\"name\": "
	    "\"rank %u\"}},\n",
	    rank, rank);
	for (uint32_t t = 0; t <= nstreams; t++) {
		char *name = om_text(t < nstreams ? "stream %u" : "other ranks", t);

		fprintf(f,
		    "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %u, \"tid\": %u, "
		    "\"args\": {\"name\": \"%s\"}},\n",
		    rank, t, name);
		free(name);
	}
	for (uint32_t i = 0; i < nranges * nstreams; i++) {
		const struct range *r = &ranges[i / nstreams];

		if (stays[i].end <= 0)
			continue;
		line(f, r->name, r->layer, r->around ? "segment" : "part", (int)(i % nstreams),
		    stays[i].begin - origin, stays[i].end - origin);
		fputs("}},\n", f);
	}
	for (uint32_t i = 0; i < nevents; i++) {
		const struct event *e = &events[i];
		const struct range *r = e->range ? &ranges[e->range - 1] : NULL;
		int layer = r ? r->layer : -1;
		double t = e->end - e->begin;

		line(f, e->name, layer, e->op ? "operator" : "host", e->thread, e->begin - origin,
		    e->end - origin);
		if (e->op)
			fprintf(f,
			    "%s\"segment\": \"%s\", \"FLOPs\": %.0f, \"bytes\": %.0f, \"GFLOP/s\": "
			    "%.2f, \"GB/s\": %.2f",
			    layer >= 0 ? ", " : "", r ? r->name : "", e->op->flops, e->op->bytes,
			    t > 0 ? 1e-9 * e->op->flops / t : 0,
			    t > 0 ? 1e-9 * e->op->bytes / t : 0);
		fputs("}},\n", f);
	}
}

/* What all ranks have printed. */
struct trace {
	const struct om_model *m;
	char *lines;
	uint64_t bytes;
};

static void
print_trace(FILE *f, void *arg)
{
	const struct trace *t = arg;

	fputs("{\"displayTimeUnit\": \"ms\", \"otherData\": {\"trainer\": ", f);
	om_json_string(f, t->m->name);
	fprintf(f, ", \"target\": \"%s\", \"peak\": %.6g}, \"traceEvents\": [\n", t->m->target,
	    t->m->peak);
	/* the comma behind the last line is not JSON */
	fwrite(t->lines, 1, t->bytes - 2, f);
	fputs("\n]}\n", f);
}

static void
write_file(struct trace *t, const char *path, bool page)
{
	FILE *f = fopen(path, "w");

	if (!f)
		om_die("trace", "%s: %s", path, strerror(errno));
	if (page)
		om_page_write(f, "bench.html", print_trace, t);
	else
		print_trace(f, t);
	if (ferror(f) | fclose(f))
		om_die("trace", "%s: %s", path, strerror(errno));
}

void
om_trace_write(const struct om_model *m, const char *trace, const char *html, double origin)
{
	struct trace t = { .m = m };
	char *own = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&own, &bytes);

	on = false;
	if (!f)
		om_die("trace", "%s", strerror(errno));
	print_events(f, origin);
	if (fclose(f) != 0)
		om_die("trace", "%s", strerror(errno));
	t.lines = om_gather("trace", own, bytes, &t.bytes);
	free(own);
	if (trace && !om_rank(OM_WORLD))
		write_file(&t, trace, false);
	if (html && !om_rank(OM_WORLD))
		write_file(&t, html, true);
	free(t.lines);
}
