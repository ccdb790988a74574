/*
 * What each stage of the pipeline does in a step, one thing after the other. A schedule gives every
 * forward and backward pass a time; a stage does its own in the order of their times. Passes wait
 * for what they need and for nothing else, and their times rise along whatever they need, so that
 * no order can deadlock; rankcheck.c proves it of each.
 */
#include <stdlib.h>
#include <string.h>

#include "shard/shard.h"

enum { COST = SCHEDULE_COST, MAX_CHUNKS = 64 };

uint32_t
schedule_stage(const char *kind, uint32_t pipeline, uint32_t place)
{
	if (!strcmp(kind, "v") && place >= pipeline)
		return 2 * pipeline - 1 - place;
	return place % pipeline;
}

struct timing {
	uint64_t *first[N_PHASES]; /* by place: when the first microbatch is there */
	uint32_t chunks, group;    /* so many microbatches pass a chunk before the next chunk's */
};

static uint64_t
time_of(const struct timing *t, enum phase phase, uint32_t place, uint64_t microbatch)
{
	uint64_t group = t->group;

	return t->first[phase][place] +
	       COST * (microbatch / group * group * t->chunks + microbatch % group);
}

static bool
room_at(const bool *used, uint64_t now, uint32_t period)
{
	for (uint32_t i = 0; i < COST_BACKWARD; i++)
		if (used[(now + i) % period])
			return false;
	return true;
}

/* Takes a rank's time for a backward pass, if one more fits then, or the time is all taken. */
static bool
take(bool *used, uint64_t now, uint32_t period)
{
	bool more = false, room = false;

	if (!room_at(used, now, period))
		return false;
	for (uint32_t i = 0; i < COST_BACKWARD; i++)
		used[(now + i) % period] = true;
	for (uint32_t i = 0; i < period; i++) {
		more |= !used[i];
		room |= room_at(used, i, period);
	}
	for (uint32_t i = 0; i < COST_BACKWARD && more && !room; i++)
		used[(now + i) % period] = false;
	return !more || room;
}

/*
 * The way of one microbatch through the pipeline and back, as early as it can be such that one more
 * microbatch after each period meets no other on any rank: ranks then never idle between the first
 * and the last. For one chunk this is 1F1B.
 */
static void
one_by_one(struct timing *t, const char *kind, uint32_t pipeline)
{
	uint32_t places = pipeline * t->chunks, period = COST * t->chunks;
	bool(*used)[COST * MAX_CHUNKS] = xalloc(pipeline * sizeof *used);
	uint64_t now = places;

	for (uint32_t p = 0; p < places; p++) {
		t->first[FORWARD][p] = p;
		used[schedule_stage(kind, pipeline, p)][p % period] = true;
	}
	for (uint32_t p = places; p-- > 0; now += COST_BACKWARD) {
		uint64_t first = now;
		while (!take(used[schedule_stage(kind, pipeline, p)], now, period))
			if (++now == first + period)
				internal("schedule %s: no time is left for the backward pass at "
					 "place %u of %u",
				    kind, p, places);
		t->first[BACKWARD][p] = now;
	}
}

/*
 * Groups of as many microbatches as ranks pass the ranks' first chunks, then their second ones, so
 * that the bubble is one of a chunk. As Megatron's: backward passes are far enough behind that the
 * way back never waits. A last group that is not full leaves gaps.
 */
static void
by_groups(struct timing *t, uint32_t pipeline)
{
	uint64_t turn = COST * (uint64_t)pipeline; /* of a chunk */

	for (uint32_t p = 0; p < pipeline * t->chunks; p++) {
		uint32_t chunk = p / pipeline, rank = p % pipeline;
		t->first[FORWARD][p] = turn * chunk + rank;
		t->first[BACKWARD][p] = turn * (2 * (t->chunks - 1) - chunk) + pipeline +
					(COST + COST_BACKWARD) * (uint64_t)(pipeline - 1 - rank);
	}
}

struct pass {
	uint64_t time;
	enum phase phase;
	uint32_t chunk, microbatch;
};

static int
by_time(const void *a, const void *b)
{
	const struct pass *x = a, *y = b;

	if (x->time != y->time)
		return x->time < y->time ? -1 : 1;
	if (x->phase != y->phase)
		return x->phase < y->phase ? -1 : 1;
	return x->chunk < y->chunk ? -1 : x->chunk > y->chunk;
}

/* A chunk has a slot for each microbatch that is between its forward and its backward pass. */
static void
give_slots(struct stage *st, const struct pass *pass, uint32_t n)
{
	uint32_t *live = xalloc(st->nchunks * sizeof *live), slot = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct chunk *c = &st->chunk[pass[i].chunk];
		live[pass[i].chunk] += pass[i].phase == FORWARD ? 1 : -1u;
		if (c->slots < live[pass[i].chunk])
			c->slots = live[pass[i].chunk];
	}
	for (uint32_t c = 0; c < st->nchunks; c++) {
		st->chunk[c].slot = slot;
		slot += st->chunk[c].slots;
	}
	st->slots = slot;
}

static void
act(struct stage *st, enum action_kind kind, const struct pass *pass, uint32_t peer, uint32_t tag)
{
	const struct chunk *c = &st->chunk[pass->chunk];

	*PUSH(st->action) = (struct action){ kind, pass->chunk,
		c->slot + pass->microbatch % c->slots, pass->microbatch, peer, tag };
}

void
schedule(struct shard *s, const char *kind)
{
	uint32_t pipeline = (uint32_t)s->mesh.size[OM_PIPELINE], chunks = s->stage[0].nchunks;
	uint32_t places = pipeline * chunks, n = (uint32_t)s->graph->microbatches;
	struct timing t = { .chunks = chunks, .group = 1 };

	for (int ph = 0; ph < N_PHASES; ph++)
		t.first[ph] = xalloc(places * sizeof *t.first[ph]);
	if (!strcmp(kind, "interleaved")) {
		t.group = pipeline;
		by_groups(&t, pipeline);
	} else {
		one_by_one(&t, kind, pipeline);
	}
	for (uint32_t p = 0; p < places && !strcmp(kind, "gpipe"); p++)
		t.first[BACKWARD][p] += COST * (uint64_t)n;
	struct pass *pass = xalloc((size_t)n * chunks * N_PHASES * sizeof *pass);
	for (uint32_t i = 0; i < pipeline; i++) {
		struct stage *st = &s->stage[i];
		uint32_t k = 0;
		for (uint32_t c = 0; c < chunks; c++)
			for (int ph = 0; ph < N_PHASES; ph++)
				for (uint32_t m = 0; m < n; m++)
					pass[k++] =
					    (struct pass){ time_of(&t, ph, st->chunk[c].place, m),
						    ph, c, m };
		qsort(pass, k, sizeof *pass, by_time);
		st->action.cap = 3 * k; /* each receives and sends at most */
		st->action.a = xalloc(st->action.cap * sizeof *st->action.a);
		give_slots(st, pass, k);
		for (uint32_t j = 0; j < k; j++) {
			uint32_t p = st->chunk[pass[j].chunk].place;
			uint32_t before = p ? schedule_stage(kind, pipeline, p - 1) : 0;
			uint32_t after = schedule_stage(kind, pipeline, p + 1);
			bool forward = pass[j].phase == FORWARD;
			if (forward && p)
				act(st, RECV_X, &pass[j], before, 2 * (p - 1));
			if (!forward && p + 1 < places)
				act(st, RECV_DX, &pass[j], after, 2 * p + 1);
			act(st, forward ? DO_FORWARD : DO_BACKWARD, &pass[j], 0, 0);
			if (forward && p + 1 < places)
				act(st, SEND_X, &pass[j], after, 2 * p);
			if (!forward && p)
				act(st, SEND_DX, &pass[j], before, 2 * (p - 1) + 1);
		}
	}
}

/*
 * When each action of each stage whose start is asked for would start if messages took no time;
 * gives the end of the last. What only moves data takes none. 0: some wait for one another for
 * ever.
 */
uint64_t
schedule_run(const struct shard *s, uint64_t **start)
{
	uint32_t pipeline = (uint32_t)s->mesh.size[OM_PIPELINE],
		 edges = 2 * pipeline * s->stage[0].nchunks;
	uint64_t n = s->graph->microbatches, *now = xalloc(pipeline * sizeof *now), end = 0;
	uint32_t *next = xalloc(pipeline * sizeof *next);
	uint64_t **sent = xalloc(edges * sizeof *sent); /* when, + 1 */
	bool moved = true, done = true;

	for (uint32_t e = 0; e < edges; e++)
		sent[e] = xalloc(n * sizeof **sent);
	while (moved) {
		moved = false;
		for (uint32_t i = 0; i < pipeline; i++)
			for (; next[i] < s->stage[i].action.n; next[i]++, moved = true) {
				const struct action *a = &s->stage[i].action.a[next[i]];
				bool receives = a->kind == RECV_X || a->kind == RECV_DX;
				uint64_t *message = &sent[a->tag][a->microbatch];
				if (receives && !*message)
					break;
				if (receives && now[i] < *message - 1)
					now[i] = *message - 1;
				if (a->kind == SEND_X || a->kind == SEND_DX)
					*message = now[i] + 1;
				if (start[i])
					start[i][next[i]] = now[i];
				now[i] += a->kind == DO_FORWARD    ? COST_FORWARD
					  : a->kind == DO_BACKWARD ? COST_BACKWARD
								   : 0;
			}
	}
	for (uint32_t i = 0; i < pipeline; i++) {
		done &= next[i] == s->stage[i].action.n;
		end = end < now[i] ? now[i] : end;
	}
	return done ? end : 0;
}
