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

const struct life lives[N_LIVES] = { { FORWARD, BACKWARD }, { FORWARD, WEIGHTS },
	{ BACKWARD, WEIGHTS } };

uint32_t
schedule_cost(const struct graph *g, enum phase phase)
{
	return phase == BACKWARD && g->last_phase == BACKWARD ? 2 : 1;
}

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
	bool apart;                /* a phase begins when the one before is over */
};

/* When a pass is, in a step of so many microbatches. */
static uint64_t
time_of(const struct timing *t, enum phase phase, uint32_t place, uint64_t microbatch, uint64_t of)
{
	uint64_t group = t->group;

	return t->first[phase][place] + (t->apart ? phase * COST * of : 0) +
	       COST * (microbatch / group * group * t->chunks + microbatch % group);
}

static bool
room_at(const bool *used, uint64_t now, uint32_t cost, uint32_t period)
{
	for (uint32_t i = 0; i < cost; i++)
		if (used[(now + i) % period])
			return false;
	return true;
}

/* Takes a rank's time for a pass, if one more fits then, or the time is all taken. */
static bool
take(bool *used, uint64_t now, uint32_t cost, uint32_t period)
{
	bool more = false, room = false;

	if (!room_at(used, now, cost, period))
		return false;
	for (uint32_t i = 0; i < cost; i++)
		used[(now + i) % period] = true;
	for (uint32_t i = 0; i < period; i++) {
		more |= !used[i];
		room |= room_at(used, i, cost, period);
	}
	for (uint32_t i = 0; i < cost && more && !room; i++)
		used[(now + i) % period] = false;
	return !more || room;
}

/*
 * The way of one microbatch through the pipeline and back, as early as it can be such that one more
 * microbatch after each period meets no other on any rank: ranks then never idle between the first
 * and the last. For one chunk this is 1F1B. Gradients of weights take what time is left.
 */
static void
one_by_one(struct timing *t, const struct graph *g, const char *kind, uint32_t pipeline)
{
	uint32_t places = pipeline * t->chunks, period = COST * t->chunks;
	bool(*used)[COST * MAX_CHUNKS] = xalloc(pipeline * sizeof *used);
	uint64_t now = places;

	for (uint32_t p = 0; p < places; p++) {
		t->first[FORWARD][p] = p;
		used[schedule_stage(kind, pipeline, p)][p % period] = true;
	}
	for (enum phase ph = BACKWARD; ph <= g->last_phase; ph++)
		for (uint32_t p = places, cost = schedule_cost(g, ph); p-- > 0; now += cost) {
			if (ph > BACKWARD)
				now = t->first[ph - 1][p] + schedule_cost(g, ph - 1);
			uint64_t first = now;
			while (!take(used[schedule_stage(kind, pipeline, p)], now, cost, period))
				if (++now == first + period)
					internal("schedule %s: no time is left for the %s pass at "
						 "place %u of %u",
					    kind, graph_phase_names[ph], p, places);
			t->first[ph][p] = now;
		}
}

/*
 * Groups of as many microbatches as ranks pass the ranks' first chunks, then their second ones, so
 * that the bubble is one of a chunk. As Megatron's: backward passes are far enough behind that the
 * way back never waits. A last group that is not full leaves gaps.
 */
static void
by_groups(struct timing *t, const struct graph *g, uint32_t pipeline)
{
	uint64_t turn = COST * (uint64_t)pipeline; /* of a chunk */

	for (uint32_t p = 0; p < pipeline * t->chunks; p++) {
		uint32_t chunk = p / pipeline, rank = p % pipeline;
		t->first[FORWARD][p] = turn * chunk + rank;
		t->first[BACKWARD][p] = turn * (2 * (t->chunks - 1) - chunk) + pipeline +
					(2 * COST - 1) * (uint64_t)(pipeline - 1 - rank);
		for (enum phase ph = WEIGHTS; ph <= g->last_phase; ph++)
			t->first[ph][p] = t->first[ph - 1][p] + schedule_cost(g, ph - 1);
	}
}

struct timed {
	uint64_t time;
	enum phase phase;
	uint32_t chunk, microbatch;
};
struct passes {
	struct timed *a;
	uint32_t n;
};

static int
by_time(const void *a, const void *b)
{
	const struct timed *x = a, *y = b;

	if (x->time != y->time)
		return x->time < y->time ? -1 : 1;
	if (x->phase != y->phase)
		return x->phase < y->phase ? -1 : 1;
	return x->chunk < y->chunk ? -1 : x->chunk > y->chunk;
}

static struct timing
make_timing(const struct shard *s, const char *kind)
{
	const struct graph *g = s->graph;
	struct timing t = { .chunks = s->stage[0].nchunks,
		.group = !strcmp(kind, "interleaved") ? s->nstages : 1,
		.apart = !strcmp(kind, "gpipe") };

	for (enum phase ph = FORWARD; ph <= g->last_phase; ph++)
		t.first[ph] = xalloc(s->nstages * t.chunks * sizeof *t.first[ph]);
	if (!strcmp(kind, "interleaved"))
		by_groups(&t, g, s->nstages);
	else
		one_by_one(&t, g, kind, s->nstages);
	return t;
}

/* All passes of a stage in a step, in the order of their times. */
static struct passes
stage_passes(const struct shard *s, const struct stage *st, const struct timing *t, uint64_t step)
{
	struct passes all = { xalloc(step * st->nchunks * N_PHASES * sizeof *all.a), 0 };

	for (uint32_t c = 0; c < st->nchunks; c++)
		for (enum phase ph = FORWARD; ph <= s->graph->last_phase; ph++)
			for (uint32_t m = 0; m < step; m++)
				all.a[all.n++] =
				    (struct timed){ time_of(t, ph, st->chunk[c].place, m, step), ph,
					    c, m };
	qsort(all.a, all.n, sizeof *all.a, by_time);
	return all;
}

/* A chunk has room for each microbatch that is between a life's two phases. */
static void
count_rooms(struct stage *st, const struct passes *all)
{
	uint32_t(*live)[N_LIVES] = xalloc(st->nchunks * sizeof *live);

	for (const struct timed *x = all->a; x < all->a + all->n; x++)
		for (uint32_t l = 0; l < N_LIVES; l++) {
			uint32_t *now = &live[x->chunk][l], *n = &st->chunk[x->chunk].rooms[l].n;
			*now += lives[l].from == x->phase;
			*n = *n < *now ? *now : *n;
			*now -= lives[l].to == x->phase;
		}
}

static uint32_t
common_multiple(uint32_t a, uint32_t b)
{
	uint32_t n = a;

	while (n % b)
		n += a;
	return n;
}

/* The next slot's rooms are the next ones of each life, so that they take their turns. */
static void
give_slots(const struct graph *g, struct stage *st)
{
	st->slots = 0;
	memset(st->rooms, 0, sizeof st->rooms);
	for (struct chunk *c = st->chunk; c < st->chunk + st->nchunks; c++) {
		c->slot = (uint32_t)st->slots;
		c->slots = 1;
		for (uint32_t l = 0; l < N_LIVES; l++) {
			if (lives[l].to > g->last_phase)
				c->rooms[l].n = 0;
			c->rooms[l].first = (uint32_t)st->rooms[l];
			st->rooms[l] += c->rooms[l].n;
			if (c->rooms[l].n)
				c->slots = common_multiple(c->slots, c->rooms[l].n);
		}
		st->slots += c->slots;
	}
}

uint32_t
chunk_room(const struct chunk *c, uint32_t life, uint32_t slot)
{
	return c->rooms[life].first + (slot - c->slot) % c->rooms[life].n;
}

static void
add_actions(const struct shard *s, const struct stage *st, const char *kind, struct step *step,
    const struct passes *all)
{
	uint32_t places = s->nstages * st->nchunks;

	step->action.cap = 3 * all->n; /* each receives and sends at most */
	step->action.a = xalloc(step->action.cap * sizeof *step->action.a);
	for (const struct timed *x = all->a; x < all->a + all->n; x++) {
		const struct chunk *c = &st->chunk[x->chunk];
		/* by kind the other chunk's place, or its own; beyond all: there is none */
		uint32_t p = c->place, one = x->phase == FORWARD ? 1 : -1u;
		const uint32_t other[] = { [RECEIVE] = p - one, [PASS] = p, [SEND] = p + one };
		static const enum action_kind order[] = { RECEIVE, PASS, SEND };
		for (unsigned i = 0; i < LEN(order); i++) {
			uint32_t q = other[order[i]];
			if (q >= places || (order[i] != PASS && x->phase > BACKWARD))
				continue;
			struct action *a = PUSH(step->action);
			*a = (struct action){ order[i], x->phase, x->chunk,
				c->slot + x->microbatch % c->slots, x->microbatch, 0, 0 };
			if (q != p) {
				a->stage = schedule_stage(kind, s->nstages, q);
				a->tag = 2 * (p < q ? p : q) + (x->phase == BACKWARD);
			}
		}
	}
}

void
schedule(struct shard *s, const char *kind, const uint64_t *microbatches, uint32_t nsteps)
{
	struct passes *pass = xalloc(nsteps * sizeof *pass);
	bool alone = s->nstages == 1; /* one microbatch after the other */
	struct timing t = { 0 };

	if (!alone)
		t = make_timing(s, kind);
	for (struct stage *st = s->stage; st < s->stage + s->nstages; st++) {
		st->step = xalloc(nsteps * sizeof *st->step);
		st->nsteps = nsteps;
		for (uint32_t c = 0; c < st->nchunks; c++)
			for (uint32_t l = 0; l < N_LIVES; l++)
				st->chunk[c].rooms[l].n = alone;
		for (uint32_t k = 0; k < nsteps && !alone; k++) {
			pass[k] = stage_passes(s, st, &t, microbatches[k]);
			count_rooms(st, &pass[k]);
		}
		give_slots(s->graph, st);
		for (uint32_t k = 0; k < nsteps; k++) {
			st->step[k].microbatches = microbatches[k];
			if (!alone)
				add_actions(s, st, kind, &st->step[k], &pass[k]);
		}
	}
}

uint64_t
schedule_run(const struct shard *s, uint32_t step, uint64_t **start, uint32_t stages)
{
	uint32_t edges = 2 * s->nstages * s->stage[0].nchunks;
	uint64_t n = s->stage[0].step[step].microbatches, end = 0;
	uint64_t *now = xalloc(s->nstages * sizeof *now);
	uint32_t *next = xalloc(s->nstages * sizeof *next);
	uint64_t **sent = xalloc(edges * sizeof *sent); /* when, + 1 */
	bool moved = true, done = true;

	for (uint32_t e = 0; e < edges; e++)
		sent[e] = xalloc(n * sizeof **sent);
	for (uint32_t i = 0; i < stages; i++)
		start[i] = xalloc(s->stage[i].step[step].action.n * sizeof **start);
	while (moved) {
		moved = false;
		for (uint32_t i = 0; i < s->nstages; i++) {
			const struct step *of = &s->stage[i].step[step];
			for (; next[i] < of->action.n; next[i]++, moved = true) {
				const struct action *a = &of->action.a[next[i]];
				uint64_t *message = &sent[a->tag][a->microbatch];
				if (a->kind == RECEIVE && !*message)
					break;
				if (a->kind == RECEIVE && now[i] < *message - 1)
					now[i] = *message - 1;
				if (a->kind == SEND)
					*message = now[i] + 1;
				if (i < stages)
					start[i][next[i]] = now[i];
				now[i] += a->kind == PASS ? schedule_cost(s->graph, a->phase) : 0;
			}
		}
	}
	for (uint32_t i = 0; i < s->nstages; i++) {
		done &= next[i] == s->stage[i].step[step].action.n;
		end = end < now[i] ? now[i] : end;
	}
	return done ? end : 0;
}
