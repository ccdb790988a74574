/*
 * olmogen --search: which layout of so many ranks is the fastest. Each candidate is a change of the
 * description, as an edit of its text would be, and goes through the rules and stages that a
 * description does. Only what cannot matter is left out: what needs less recomputation does not try
 * more of it, and a microbatch that fits with no recomputation ends the larger ones.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "search.h"

/* gpipe takes as long as 1f1b, and more memory */
static const char *const schedules[] = { "1f1b", "interleaved", "v" };
static const char *const parts[N_EXPECTED_PARTS] = { "products", "attention", "row kernels",
	"the optimizer", "communication", "the bubble" };
enum { MICRO_MOST = 32, CHUNKS_MOST = 8, NAMED = 10 };

struct search {
	const struct object *trainer;
	const char *target;
	uint64_t sequences; /* a step */
	ARRAY(struct candidate) layout;
	struct found *found; /* of each, shared with the processes that look for it */
};

/* ---- one layout ------------------------------------------------------------------------------ */

static const char *
number(uint64_t n)
{
	return xprintf("%llu", llu(n));
}

struct found
search_try(const struct object *trainer, const char *target, struct candidate l)
{
	const struct change c[] = { { .f = F_parallel_split },
		{ .f = F_parallel_data, .lua = number(l.data) },
		{ .f = F_parallel_expert, .lua = number(l.expert) },
		{ .f = F_parallel_pipeline, .lua = number(l.pipeline) },
		{ .f = F_parallel_schedule, .lua = l.schedule ? xprintf("\"%s\"", l.schedule) : 0 },
		{ .f = F_parallel_chunks, .lua = l.chunks > 1 ? number(l.chunks) : NULL },
		{ .f = F_batch_micro, .lua = number(l.micro) },
		{ .f = F_transformer_recompute, .lua = "recompute {}" },
		{ .f = F_recompute_what, .lua = xprintf("\"%s\"", search_levels[l.level]) } };
	struct object *t = spec_copy(trainer);
	struct found r = { .at = l };

	diag_trial(DIAG_NONE);
	for (unsigned i = 0; i < LEN(c); i++)
		spec_change(t, &c[i]);
	check(t, targets, target);
	const struct plan *p = diag_tried() == TRIAL_CLEAN ? search_plan(t) : NULL;
	if (p && diag_tried() == TRIAL_CLEAN) {
		r.legal = true;
		r.need = plan_worst(p)->arena_bytes;
		r.expected = plan_expected(p);
		plan_fits(p);
		r.fits = diag_tried() == TRIAL_CLEAN;
	}
	diag_trial_end();
	return r;
}

/* Whether a is rather taken than b. */
static bool
better(const struct found *a, const struct found *b)
{
	if (a->legal != b->legal || !a->legal)
		return a->legal && !b->legal;
	if (a->fits != b->fits)
		return a->fits;
	if (a->fits && a->expected.step != b->expected.step)
		return a->expected.step < b->expected.step;
	return a->need < b->need;
}

/* Of the microbatches that divide, the larger ones with at least as much computed again. */
static void
try_microbatches(const struct search *s, struct candidate l, struct found *best)
{
	uint64_t each = s->sequences / l.data;

	for (l.micro = 1; l.micro <= MICRO_MOST && l.micro <= each; l.micro++) {
		struct found f = { .legal = false };
		if (each % l.micro)
			continue;
		for (; l.level < SEARCH_LEVELS; l.level++) {
			f = search_try(s->trainer, s->target, l);
			*best = better(&f, best) ? f : *best;
			if (!f.legal || f.fits)
				break;
		}
		if (!f.fits) /* nor does a larger one, or it breaks a rule */
			return;
	}
}

/* The best of so many data, expert and pipeline ranks with a schedule. */
static struct found
best_of(const struct search *s, struct candidate l)
{
	const struct schedule_row *row = l.schedule ? schedule_find(l.schedule) : NULL;
	struct found best = { .at = l };

	for (int64_t n = row ? row->lo : 1; n <= (row ? row->hi : 1) && n <= CHUNKS_MOST; n++) {
		l.chunks = (uint64_t)n;
		try_microbatches(s, l, &best);
	}
	return best;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void
add_layouts(struct search *s, uint64_t ranks)
{
	for (uint64_t pipeline = 1; pipeline <= ranks; pipeline++)
		for (uint64_t expert = 1; expert <= ranks / pipeline; expert++) {
			struct candidate l = { .pipeline = pipeline,
				.data = ranks / pipeline,
				.expert = expert,
				.micro = 1,
				.chunks = 1 };
			if (ranks % pipeline || l.data % expert || s->sequences % l.data)
				continue;
			for (unsigned k = 0; k < (pipeline > 1 ? LEN(schedules) : 1); k++) {
				l.schedule = pipeline > 1 ? schedules[k] : NULL;
				l.index = s->layout.n;
				*PUSH(s->layout) = l;
			}
		}
}

/*
 * A process for each layout, as many at a time as there are processors: a plan's memory goes with
 * it.
 */
static void
run_all(struct search *s)
{
	long at_once = sysconf(_SC_NPROCESSORS_ONLN), running = 0;

	s->found = mmap(NULL, (s->layout.n + 1) * sizeof *s->found, PROT_READ | PROT_WRITE,
	    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s->found == MAP_FAILED)
		internal("--search: no memory for %u layouts", s->layout.n);
	fflush(NULL);
	for (uint32_t i = 0; i < s->layout.n || running; i++) {
		int status = 0;
		if (i >= s->layout.n || running >= at_once) {
			if (wait(&status) < 0 || status)
				internal(
				    "--search: a layout's process ended with status %d", status);
			running--;
		}
		if (i >= s->layout.n)
			continue;
		pid_t child = fork();
		if (child < 0)
			internal("--search: no process for a layout");
		if (!child) {
			s->found[i] = best_of(s, s->layout.a[i]);
			_exit(0);
		}
		running++;
	}
}

static int
by_rank(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	if (better(x, y) != better(y, x))
		return better(x, y) ? -1 : 1;
	return x->at.index < y->at.index ? -1 : 1;
}

/* ---- what is printed ------------------------------------------------------------------------- */

const char *
search_text(const struct candidate *l)
{
	struct buf b = { 0 };

	buf_printf(&b, "parallel { data = %llu, expert = %llu, pipeline = %llu", llu(l->data),
	    llu(l->expert), llu(l->pipeline));
	if (l->schedule)
		buf_printf(&b, ", schedule = \"%s\"", l->schedule);
	if (l->chunks > 1)
		buf_printf(&b, ", chunks = %llu", llu(l->chunks));
	buf_puts(&b, " }");
	return b.s;
}

/* What a description says of it, between the parts a text. */
static const char *
layout_text(const struct candidate *l, uint64_t sequences, const char *between)
{
	return xprintf("parallel = %s%sbatch = batch { micro = %llu, global = %llu }%srecompute = "
		       "recompute { what = \"%s\" }",
	    search_text(l), between, llu(l->micro), llu(sequences), between,
	    search_levels[l->level]);
}

/* What costs a layout most of the time by which it is slower than the one before it. */
static const char *
why_slower(const struct found *f, const struct found *before)
{
	int worst = 0;
	double most = -1, slower = f->expected.step - before->expected.step;

	for (int i = 0; i < N_EXPECTED_PARTS; i++) {
		double d = f->expected.seconds[i] - before->expected.seconds[i];
		if (d > most) {
			most = d;
			worst = i;
		}
	}
	if (slower <= 0)
		return "as fast";
	return xprintf("+%.1f ms: %s %+.1f", slower * 1e3, parts[worst], most * 1e3);
}

void
search_print(const struct object *trainer, const struct found *found, uint32_t n, struct buf *out)
{
	uint64_t sequences = (uint64_t)spec_int(trainer, F_batch_global);
	double tokens =
	    (double)sequences * (double)spec_int(trainer, F_transformer_sequence_length);
	uint32_t legal = 0, fit = 0;

	for (uint32_t i = 0; i < n; i++) {
		legal += found[i].legal;
		fit += found[i].fits;
	}
	buf_printf(out, "%s on %llu ranks of %s: of %u layouts that keep the rules %u fit\n\n",
	    spec_str(trainer, F_trainer_name), llu(found->at.data * found->at.pipeline),
	    spec_str(trainer, F_trainer_target), legal, fit);
	buf_puts(out,
	    "      step s  tokens/s/rank   data expert  pipeline             micro recompute"
	    "     memory  bubble      sent  against the one before\n");
	for (uint32_t i = 0; i < n && i < NAMED && found[i].fits; i++) {
		const struct found *f = &found[i];
		const struct candidate *l = &f->at;
		const char *how =
		    !l->schedule ? "1"
		    : l->chunks > 1
			? xprintf("%llu %s %llu", llu(l->pipeline), l->schedule, llu(l->chunks))
			: xprintf("%llu %s", llu(l->pipeline), l->schedule);
		buf_printf(out,
		    "%3u %8.4g %14.0f %6llu %6llu  %-20s %5llu %-9s %10s %6.1f%% %7.1fms%s\n",
		    i + 1, f->expected.step,
		    tokens / f->expected.step / (double)(l->data * l->pipeline), llu(l->data),
		    llu(l->expert), how, llu(l->micro), search_levels[l->level],
		    text_bytes(f->need), 100 * f->expected.bubble,
		    1e3 * f->expected.seconds[COMMUNICATION],
		    i ? xprintf("  %s", why_slower(f, f - 1)) : "");
	}
	buf_printf(out,
	    "\nThe first, for the description (recompute goes into its transformer):\n%s\n",
	    layout_text(&found->at, sequences, ",\n"));
}

const struct found *
search_layouts(const struct object *trainer, const char *target, uint64_t ranks, uint32_t *n)
{
	struct search s = { .trainer = trainer,
		.target = target,
		.sequences = (uint64_t)spec_int(trainer, F_batch_global) };
	uint32_t legal = 0;

	add_layouts(&s, ranks);
	run_all(&s);
	for (uint32_t i = 0; i < s.layout.n; i++)
		legal += s.found[i].legal;
	qsort(s.found, s.layout.n, sizeof *s.found, by_rank);
	*n = s.layout.n;
	if (legal && s.found->fits)
		return s.found;
	if (!legal) {
		diag_error(trainer->pos, "no layout of %llu ranks keeps the rules", llu(ranks));
		diag_help(
		    "%llu = data * pipeline; data * micro divides batch.global = %llu, expert "
		    "divides data and the experts, pipeline * chunks is at most the layers",
		    llu(ranks), llu(s.sequences));
	} else {
		diag_error(trainer->pos, "none of %u layouts of %llu ranks fits: %s of %s at least",
		    legal, llu(ranks), text_bytes(s.found->need),
		    text_bytes(
			(uint64_t)(spec_num(trainer, F_trainer_device_memory) * 1073741824.0)));
		diag_help("the nearest is %s", layout_text(&s.found->at, s.sequences, ", "));
	}
	return NULL;
}
