/*
 * Which changes of a description would do. Each is tried as a user would: made in a copy, which
 * then goes through the very rules and plans that a description does. Nothing is reported here.
 */
#include <stdlib.h>
#include <string.h>

#include "search.h"

enum { CHANGES_MAX = 4, PLANS_MAX = 24 /* values of a field that are planned */ };

/* How far a changed description comes. */
enum verdict {
	REFUSED, /* it breaks a rule that held */
	LEGAL,   /* the rules hold, but it does not fit its device, or cannot be built */
	FITS,    /* it would be planned, or built; or what else is wrong hides whether it would */
};
struct trial {
	enum verdict verdict;
	uint64_t need; /* bytes on the rank that needs most; UINT64_MAX: it cannot be planned */
};

/* A copy with the changes, checked; NULL if they are not in it. */
static struct object *
changed(const struct checked *of, const struct change *c, uint32_t n)
{
	struct object *t = spec_copy(of->trainer);
	const char *target = of->target;
	bool any = false;

	for (uint32_t i = 0; i < n; i++) {
		any |= spec_change(t, &c[i]);
		target = c[i].f == F_trainer_target ? NULL : target;
	}
	if (any)
		check(t, targets, target);
	return any ? t : NULL;
}

static struct trial
try_changes(const struct question *q, const struct change *c, uint32_t n, bool build)
{
	struct trial r = { REFUSED, UINT64_MAX };

	diag_trial(q->error);
	struct object *t = changed(&q->of, c, n);
	/* what is written once may make several trainers */
	for (uint32_t i = 0; ask_checked(i) && c->at.file; i++)
		if (ask_checked(i)->trainer != q->of.trainer)
			changed(ask_checked(i), c, n);
	r.verdict = !t || diag_tried() > TRIAL_AGAIN ? REFUSED : FITS;
	if (t && diag_tried() == TRIAL_CLEAN && spec_whole(t)) {
		search_least(t);
		const struct plan *p = search_plan(t);
		if (p && build)
			plan_buildable(p);
		if (diag_tried() == TRIAL_CLEAN) {
			r.need = plan_worst(p)->arena_bytes;
			plan_fits(p);
		}
		r.verdict = diag_tried() == TRIAL_SAME  ? REFUSED
			    : diag_tried() == TRIAL_NEW ? LEGAL
							: FITS;
	}
	diag_trial_end();
	return r;
}

/* ---- values that would do -------------------------------------------------------------------- */

static bool
same_field(const struct way *a, const struct way *b)
{
	return !a->words && !b->words && a->change[0].f == b->change[0].f;
}

/* Tries those ways of a field that come first, until as many fit as are to be named. */
static void
try_field(const struct question *q, uint32_t from, uint32_t to, bool build, enum verdict *v)
{
	uint32_t fit = 0, plans = 0;

	for (uint32_t i = from; i < to && plans < PLANS_MAX; i++) {
		const struct way *w = &q->way.a[i];
		if (w->n)
			v[i] = try_changes(q, w->change, w->n, build).verdict;
		plans += v[i] != REFUSED;
		fit += v[i] == FITS;
		if (w->most && fit == w->most)
			return;
	}
}

static int
by_value(const void *a, const void *b)
{
	const struct way *x = *(const struct way *const *)a, *y = *(const struct way *const *)b;
	long long i = strtoll(x->change[0].lua, NULL, 10), j = strtoll(y->change[0].lua, NULL, 10);

	return i < j ? -1 : i > j;
}

/* "use num_experts = 56 or 64, or expert = 1, 2 or 4": those that fit, if any does. */
static char *
which_do(const struct question *q, bool build)
{
	enum verdict *v = xalloc(q->way.n * sizeof *v), best = REFUSED;
	const struct way **named = xalloc(q->way.n * sizeof *named);
	const char *verb = "";
	struct buf b = { 0 };

	for (uint32_t i = 0, to; i < q->way.n; i = to) {
		for (to = i + 1; to < q->way.n && same_field(&q->way.a[i], &q->way.a[to]);)
			to++;
		try_field(q, i, to, build, v);
	}
	for (uint32_t i = 0; i < q->way.n; i++)
		best = v[i] > best ? v[i] : best;
	for (uint32_t i = 0, to; i < q->way.n; i = to) {
		const struct way *w = &q->way.a[i];
		uint32_t n = 0;
		for (to = i; to < q->way.n && (to == i || same_field(w, &q->way.a[to])); to++)
			if (!q->way.a[to].n ||
			    (v[to] && v[to] == best && (w->words || n < w->most)))
				named[n++] = &q->way.a[to];
		if (!n)
			continue;
		buf_puts(&b, b.n ? ", or " : "");
		if (w->words) {
			bool use = !strncmp(w->words, "use ", 4);
			buf_puts(&b, w->words + (use && !strcmp(verb, "use ") ? 4 : 0));
			verb = use ? "use " : "";
			continue;
		}
		buf_printf(
		    &b, "%s%s = ", strcmp(verb, "use ") ? "use " : "", fields[w->change[0].f].name);
		verb = "use ";
		if (fields[w->change[0].f].type == INT)
			qsort(named, n, sizeof *named, by_value);
		for (uint32_t k = 0; k < n; k++)
			buf_printf(&b, "%s%s",
			    !k          ? ""
			    : k + 1 < n ? ", "
					: " or ",
			    named[k]->change[0].lua);
	}
	if (best == LEGAL)
		buf_puts(&b, "; more than that has to change");
	return b.s;
}

/* ---- less memory ----------------------------------------------------------------------------- */

/* What has too little memory, and what is said of it. */
struct search {
	const struct question *q;
	uint64_t device;
	bool build, enough;
	struct buf text;
};

/* Names a change by which so much would be needed. */
static void
add(struct search *s, const char *what, uint64_t need)
{
	buf_printf(&s->text, "%s%s: %s%s", s->text.n ? "; " : "use ", what, text_bytes(need),
	    need <= s->device ? ", fits" : "");
}

/* Fields that are changed by factors of two, and by how much at once. */
static const enum field_id grown[CHANGES_MAX] = { F_batch_micro, F_parallel_data, F_parallel_expert,
	F_parallel_pipeline };
enum { MICRO = 1, DATA = 2, EXPERT = 4, PIPELINE = 8 };

/* Changes some fields by a growing power of two until it fits; gives what is needed then. */
static uint64_t
grow_fields(const struct search *s, uint32_t which, const char **what)
{
	const struct object *t = s->q->of.trainer;
	uint64_t best = UINT64_MAX;

	for (int power = 1; power < 8 && best > s->device; power++) {
		struct change c[CHANGES_MAX];
		struct buf text = { 0 };
		uint32_t n = 0;
		for (uint32_t i = 0; i < CHANGES_MAX; i++) {
			int64_t x = spec_int(t, grown[i]);
			x = i ? x << power : x >> power;
			if (!(which >> i & 1))
				continue;
			if (!x)
				return best;
			c[n] =
			    (struct change){ .f = grown[i], .lua = xprintf("%lld", (long long)x) };
			buf_printf(
			    &text, "%s%s = %s", n ? " with " : "", spec_name(grown[i]), c[n].lua);
			n++;
		}
		uint64_t need = try_changes(s->q, c, n, s->build).need;
		if (need == UINT64_MAX)
			continue;
		if (need >= best)
			break;
		best = need;
		*what = text.s;
	}
	return best;
}

/* Cheapest first: recomputation, fewer rows, fewer sequences at a time, more ranks, several. */
static void
less_memory(struct search *s)
{
	static const uint32_t single[] = { MICRO, DATA, DATA | EXPERT, PIPELINE };
	static const uint32_t joint[] = { MICRO | DATA | EXPERT, MICRO | PIPELINE,
		DATA | EXPERT | PIPELINE, MICRO | DATA | EXPERT | PIPELINE };
	const struct object *t = s->q->of.trainer;
	uint64_t most = s->q->need - s->q->need / 50;

	for (unsigned i = 1; i < SEARCH_LEVELS; i++) { /* the first keeps all */
		struct change c[] = { { .f = F_transformer_recompute, .lua = "recompute {}" },
			{ .f = F_recompute_what, .lua = xprintf("\"%s\"", search_levels[i]) } };
		uint64_t need = try_changes(s->q, c, LEN(c), s->build).need;
		if (need < most)
			add(s, xprintf("recompute { what = \"%s\" }", search_levels[i]), need);
	}
	static const struct change cuts[] = { { .f = F_parallel_capacity, .lua = "1.25" },
		{ .f = F_parallel_pair_capacity, .lua = "2" } };
	for (unsigned i = 0; i < LEN(cuts) && spec_int(t, F_parallel_expert) > 1; i++) {
		struct change c = cuts[i];
		if (!spec_value(t, c.f)->str)
			continue;
		uint64_t need = try_changes(s->q, &c, 1, s->build).need;
		s->enough |= need <= s->device;
		if (need < most)
			add(s, xprintf("%s = %s, which cuts rows", spec_name(c.f), c.lua), need);
	}
	most = s->q->need - s->q->need / 20;
	for (unsigned i = 0; i < LEN(single) + LEN(joint); i++) {
		bool one = i < LEN(single);
		const char *what = NULL;
		if (!one && s->enough)
			break;
		uint64_t need = grow_fields(s, one ? single[i] : joint[i - LEN(single)], &what);
		s->enough |= need <= s->device;
		if (need < most && (one || need <= s->device))
			add(s, what, need);
	}
}

char *
remedy_answer(const struct question *q, bool build)
{
	const struct object *t = q->of.trainer;

	if (!q->need)
		return which_do(q, build);
	struct search s = { .q = q,
		.device = (uint64_t)(spec_num(t, F_trainer_device_memory) * 1073741824.0),
		.build = build };
	less_memory(&s);
	if (!s.enough)
		buf_printf(&s.text,
		    "%sno smaller microbatch and no layout near this one fits: take a smaller "
		    "model "
		    "or shorter sequences",
		    s.text.n ? "\n" : "");
	return s.text.s;
}
