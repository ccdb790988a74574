/*
 * Events: a launch waits for those of other streams that it must not overtake.
 *
 * kernel.def says which ops leave the first stream, target.def how many there are. The runtime lets
 * all streams begin a part of a step together, and ends it when all are done, so only launches of
 * one part can overtake each other. A wait is for an event's last record in the part, whichever
 * layer's it is, and for nothing where the part has none yet: so what a function of step.c waits
 * for may be recorded by another one, or by itself in the layer before.
 *
 * Each part is run through with a clock for each stream: where two launches touch the same bytes,
 * one writes them, and nothing orders them, the later one gets a wait. Then each wait without
 * which all is still in order goes.
 */
#include <string.h>

#include "plan/plan.h"

struct access {
	struct extent bytes;
	bool write;
};
struct issued {                             /* a launch of one layer, in the order of the part */
	struct launch *st;                  /* that has its events */
	struct access access[MAX_ARGS + 1]; /* arguments, workspace */
	uint32_t n;
	uint32_t done[MAX_STREAMS]; /* launches of each stream that have ended when it has */
};
ARRAY_TYPE(part, struct issued);
ARRAY_TYPE(parts, struct part);

static void
issue(const struct plan *p, const struct visits *v, struct parts *all)
{
	struct part *part = PUSH(*all);

	for (const struct visit *at = v->a; at < v->a + v->n; at++) {
		struct program *prog = &p->prog[at->seg][at->phase];
		for (struct launch *st = prog->a; st < prog->a + prog->n; st++) {
			const struct op_row *r = op_row(st->op.op);
			struct issued *x = PUSH(*part);
			x->st = &prog->of->a[st - prog->a];
			for (uint8_t a = 0; a < r->nargs; a++)
				if (st->op.arg[a])
					x->access[x->n++] =
					    (struct access){ plan_extent(p, st, st->op.arg[a],
								 at->layer, at->slot),
						    a >= r->nin };
			if (st->workspace_bytes)
				x->access[x->n++] = (struct access){ plan_workspace(st), true };
		}
	}
}

/* What the runtime runs in one go: a microbatch, or where stages take turns a pass of a chunk. */
static void
list_parts(const struct plan *p, struct parts *all)
{
	const uint32_t ends[] = { p->graph->init, p->graph->update };

	for (unsigned i = 0; i < LEN(ends); i++) {
		struct visits one = { 0 };
		*PUSH(one) = (struct visit){ ends[i], FORWARD, 0, 0 };
		issue(p, &one, all);
	}
	for (uint32_t c = 0; c < p->here->nchunks; c++) {
		struct visits v[N_PASSES] = { 0 };
		bool whole = p->n_stages == 1;
		for (enum pass_id i = 0; i < N_PASSES; i++)
			if (plan_has_pass(p, i))
				shard_visits(p->graph, &p->here->chunk[c], i,
				    &v[whole && i <= PASS_WEIGHTS ? PASS_FORWARD : i]);
		for (unsigned i = 0; i < N_PASSES; i++)
			issue(p, &v[i], all);
	}
}

/* ---- order ---- */

static bool
conflict(const struct issued *a, const struct issued *b)
{
	for (uint32_t i = 0; i < a->n; i++)
		for (uint32_t j = 0; j < b->n; j++)
			if ((a->access[i].write || b->access[j].write) &&
			    extents_meet(a->access[i].bytes, b->access[j].bytes))
				return true;
	return false;
}

static void
after(uint32_t *known, const struct issued *x)
{
	for (int s = 0; s < MAX_STREAMS; s++)
		known[s] = x->done[s] > known[s] ? x->done[s] : known[s];
}

/* The last launch of the part so far that recorded the event; NULL: none. */
static const struct issued *
recorded(const struct part *part, uint32_t before, uint32_t event)
{
	while (before--)
		if (part->a[before].st->event == event)
			return &part->a[before];
	return NULL;
}

/*
 * Whether nothing overtakes what it must not. Where events is given, launches get what it takes,
 * and it counts them.
 */
static bool
in_order(struct part *part, uint32_t *events)
{
	uint32_t known[MAX_STREAMS][MAX_STREAMS] = { 0 };
	ARRAY(uint32_t) of[MAX_STREAMS] = { 0 }; /* the launches of each stream */

	for (uint32_t k = 0; k < part->n; k++) {
		struct issued *b = &part->a[k];
		uint8_t s = b->st->stream;
		for (uint32_t w = 0; w < b->st->wait.n; w++) {
			const struct issued *x = recorded(part, k, b->st->wait.a[w]);
			if (x)
				after(known[s], x);
		}
		for (int r = 0; r < MAX_STREAMS; r++)
			for (uint32_t i = of[r].n; r != s && i > known[s][r]; i--) {
				struct issued *a = &part->a[of[r].a[i - 1]];
				if (!conflict(a, b))
					continue;
				if (!events)
					return false;
				if (!a->st->event)
					a->st->event = ++*events;
				*PUSH(b->st->wait) = a->st->event;
				after(known[s], recorded(part, k, a->st->event));
			}
		*PUSH(of[s]) = k;
		known[s][s] = of[s].n;
		memcpy(b->done, known[s], sizeof b->done);
	}
	return true;
}

static bool
all_in_order(const struct parts *all)
{
	for (uint32_t i = 0; i < all->n; i++)
		if (!in_order(&all->a[i], NULL))
			return false;
	return true;
}

/* Drops the waits of a stage's own launches that nothing needs. */
static void
drop_waits(const struct plan *p, const struct parts *parts)
{
	for (struct launch_at i = { 0 }; plan_next(p, &i);) {
		struct launch *st = i.launch;
		for (uint32_t w = st->wait.n; w-- > 0;) {
			uint32_t *at = &st->wait.a[w], event = *at, rest = st->wait.n - 1 - w;
			memmove(at, at + 1, rest * sizeof *at);
			st->wait.n--;
			if (all_in_order(parts))
				continue;
			memmove(at + 1, at, rest * sizeof *at);
			*at = event;
			st->wait.n++;
		}
	}
}

/* Events that nobody waits for go, and the others are counted anew. */
static void
number_events(struct plan *all, uint32_t n, uint32_t events)
{
	uint32_t *number = xalloc((events + 1) * sizeof *number), used = 0;
	bool *waited = xalloc((events + 1) * sizeof *waited);
	struct launch_at *by = xalloc((events + 1) * sizeof *by);

	for (uint32_t k = 0; k < n; k++)
		for (struct launch_at i = { 0 }; plan_next(&all[k], &i);)
			for (uint32_t w = 0; w < i.launch->wait.n; w++)
				waited[i.launch->wait.a[w]] = true;
	for (uint32_t k = 0; k < n; k++)
		for (struct launch_at i = { 0 }; plan_next(&all[k], &i);) {
			uint32_t *e = &i.launch->event;
			if (waited[*e] && !number[*e]) {
				number[*e] = ++used;
				by[used] = i;
			}
			*e = number[*e];
		}
	for (uint32_t k = 0; k < n; k++) {
		for (struct launch_at i = { 0 }; plan_next(&all[k], &i);)
			for (uint32_t w = 0; w < i.launch->wait.n; w++)
				i.launch->wait.a[w] = number[i.launch->wait.a[w]];
		all[k].events = used;
		all[k].event = by;
	}
}

void
plan_events(struct plan *all, uint32_t n)
{
	struct parts parts = { 0 };
	uint32_t events = 0;

	if (all->streams == 1)
		return;
	for (uint32_t k = 0; k < n; k++) {
		uint32_t first = parts.n;
		list_parts(&all[k], &parts);
		for (uint32_t i = first; i < parts.n; i++)
			in_order(&parts.a[i], &events);
	}
	for (uint32_t k = 0; k < n; k++)
		drop_waits(&all[k], &parts);
	number_events(all, n, events);
}
