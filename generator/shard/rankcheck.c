/*
 * Proof that no layout deadlocks or mixes up what it sends: the program of every rank is run
 * against those of all others, message by message. A stage's own part of it, what it does with its
 * slots and gradients, is the same on all its ranks and is looked at once.
 *
 * It holds for what waits on a device too, on several streams: what is found here is one order of
 * all events in which each comes after all that it waits for. A stream does its launches in the
 * program's order, and events (plan/stream.c) have it wait for launches before alone, so that on a
 * device nothing waits for what comes later in this order. Besides, a kernel that waits must not
 * keep from the device what it waits for: those that send rows have few blocks, and at most one of
 * them runs on a rank at a time.
 */
#include <string.h>

#include "shard/shard.h"

enum {
	ALIKE = 2, /* microbatches of one stage that are run: the others are as these */
	BUDGET = 32 * 1024 * 1024, /* events; so many data ranks are run as give that */
};

/* ---- who is in a group --------------------------------------------------------------------- */

/*
 * Sizes are those that the degrees of the axes give, and each rank's group is the same one for all
 * its members, who know their places in it.
 */
static const char *
check_groups(const struct om_mesh *m)
{
	const struct om_mesh want = om_mesh(om_degrees(m));

	for (enum om_group g = 0; g < OM_N_GROUPS; g++)
		if (m->size[g] != want.size[g])
			return "the mesh is no product of its degrees";
	for (uint64_t rank = 0; rank < m->size[OM_WORLD]; rank++)
		for (enum om_group g = 0; g < OM_N_GROUPS; g++) {
			uint64_t first = om_mesh_member(m, g, rank, 0);
			if (om_mesh_member(m, g, rank, om_mesh_place(m, g, rank)) != rank)
				return xprintf("rank %llu is not in its own group", llu(rank));
			for (uint64_t i = 0; i < m->size[g] && rank == first; i++) {
				uint64_t k = om_mesh_member(m, g, rank, i);
				if (k >= m->size[OM_WORLD] || om_mesh_place(m, g, k) != i ||
				    om_mesh_member(m, g, k, 0) != first)
					return xprintf(
					    "ranks %llu and %llu do not agree on a group",
					    llu(rank), llu(k));
			}
		}
	return NULL;
}

/* ---- one stage by itself ---- */

static const char *
action_text(const struct shard *s, uint32_t step, uint32_t stage, uint32_t i)
{
	const struct action *a = &s->stage[stage].step[step].action.a[i];

	return xprintf("stage %u, action %u (%s of microbatch %u, chunk %u, slot %u)", stage, i,
	    shard_action_text(a), a->microbatch, a->chunk, a->slot);
}

/* What crosses the edge between two chunks is as large to one as to the other. */
static const char *
check_edge(const struct shard *s, const struct chunk *a, const struct chunk *b)
{
	for (enum phase ph = FORWARD; ph <= BACKWARD; ph++) {
		const struct chunk *from = ph == FORWARD ? a : b, *to = ph == FORWARD ? b : a;
		uint64_t sent = shard_bytes(s, chunk_end(s->graph, from, ph, from == b).t);
		uint64_t wanted = shard_bytes(s, chunk_end(s->graph, to, ph, to == b).t);
		if (sent != wanted)
			return xprintf("place %u sends place %u %llu bytes, which wants %llu",
			    from->place, to->place, llu(sent), llu(wanted));
	}
	return NULL;
}

/* A chunk's slots, and its rooms of each life, are its own, and among the stage's. */
static const char *
check_slots(const struct shard *s, uint32_t stage, uint32_t k)
{
	const struct stage *st = &s->stage[stage];
	const struct chunk *c = &st->chunk[k];

	for (uint32_t j = 0; j < k; j++) {
		const struct chunk *o = &st->chunk[j];
		bool both = c->slot < o->slot + o->slots && o->slot < c->slot + c->slots;
		for (uint32_t l = 0; l < N_LIVES; l++)
			both |= c->rooms[l].first < o->rooms[l].first + o->rooms[l].n &&
				o->rooms[l].first < c->rooms[l].first + c->rooms[l].n;
		if (both)
			return xprintf("stage %u: chunks %u and %u share slots", stage, j, k);
	}
	if (c->slot + c->slots > st->slots)
		return xprintf("stage %u: chunk %u has slot %u of %llu", stage, k,
		    c->slot + c->slots - 1, llu(st->slots));
	for (uint32_t l = 0; l < N_LIVES; l++)
		if (c->rooms[l].first + c->rooms[l].n > st->rooms[l] ||
		    (lives[l].to <= s->graph->last_phase) != (c->rooms[l].n > 0))
			return xprintf("stage %u: chunk %u has %u rooms from %s to %s, of %llu",
			    stage, k, c->rooms[l].n, graph_phase_names[lives[l].from],
			    graph_phase_names[lives[l].to], llu(st->rooms[l]));
	return NULL;
}

/* Chunks lie end to end over the layers, each place of the pipeline is one, slots are their own. */
static const char *
check_chunks(const struct shard *s)
{
	uint32_t places = s->nstages * s->stage[0].nchunks, layer = 0;
	const struct chunk **at = xalloc((places + 1) * sizeof *at);

	for (uint32_t i = 0; i < s->nstages; i++)
		for (uint32_t k = 0; k < s->stage[i].nchunks; k++) {
			const struct chunk *c = &s->stage[i].chunk[k];
			if (c->place >= places || at[c->place])
				return xprintf("stage %u: chunk %u has the place %u of %u", i, k,
				    c->place, places);
			at[c->place] = c;
			const char *fault = check_slots(s, i, k);
			if (fault)
				return fault;
		}
	for (uint32_t p = 0; p < places; layer += at[p++]->n) {
		const struct chunk *c = at[p];
		if (!c)
			return xprintf("no chunk is at place %u of %u", p, places);
		if (c->first != layer || !c->n)
			return xprintf("the chunk at place %u has layers %u .. %u where layer %u "
				       "comes next",
			    p, c->first, c->first + c->n - 1, layer);
		if (c->embed != (p == 0) || c->head != (p + 1 == places))
			return xprintf("the chunk at place %u of %u has the wrong end of the model",
			    p, places);
		const char *fault = p ? check_edge(s, at[p - 1], c) : NULL;
		if (fault)
			return fault;
	}
	return layer == s->graph->n_layers
		   ? NULL
		   : xprintf("the chunks have %u layers, the model %u", layer, s->graph->n_layers);
}

/* What is in a slot, or in a buffer of gradients: a microbatch, how far it is. */
enum state { EMPTY, RECEIVED, DONE };
struct held {
	enum state state;
	uint32_t chunk, microbatch;
};
/* A stage's slots and gradients, while it does one thing after the other. */
struct hands {
	const struct shard *s;
	const struct stage *st;
	uint64_t microbatches;
	uint32_t places;
	struct held *room[N_LIVES];
	struct held dx, out; /* the gradient that came, the one that leaves */
	uint8_t *did;        /* by chunk, microbatch and phase */
};

/*
 * An action finds a place empty, or with its own microbatch, in a state, and leaves that in
 * another. What it finds instead, which waits for a phase, or N_PHASES; or NULL.
 */
static const char *
turn(struct held *h, const struct action *a, enum state from, enum state to, enum phase until)
{
	const struct held is = *h;
	bool own = is.chunk == a->chunk && is.microbatch == a->microbatch;

	*h = (struct held){ to, a->chunk, a->microbatch };
	if (is.state == from && (own || from == EMPTY))
		return NULL;
	if (is.state == EMPTY)
		return "nothing";
	return xprintf("microbatch %u of chunk %u%s", is.microbatch, is.chunk,
	    is.state == DONE && until < N_PHASES
		? xprintf(", whose %s pass has not run", graph_phase_names[until])
		: "");
}

/* The rooms of its slot that an action takes, reads and leaves. begins: nothing comes for it. */
static const char *
turn_rooms(struct hands *h, const struct action *a, bool begins)
{
	const char *said = NULL;

	for (uint32_t l = 0; l < N_LIVES && !said; l++) {
		const struct life *life = &lives[l];
		bool first = a->phase == life->from;
		if (life->to > h->s->graph->last_phase || a->phase < life->from ||
		    a->phase > life->to || (a->kind != PASS && !first))
			continue;
		enum state from = !first || a->kind == SEND      ? DONE
				  : begins || a->kind == RECEIVE ? EMPTY
								 : RECEIVED;
		enum state to = a->kind == RECEIVE ? RECEIVED : a->phase == life->to ? EMPTY : DONE;
		uint32_t room = chunk_room(&h->st->chunk[a->chunk], l, a->slot);
		said = turn(&h->room[l][room], a, from, to, life->to);
		if (said && from == DONE)
			said = xprintf("its %s pass is not in the slot, which holds %s",
			    graph_phase_names[life->from], said);
		else if (said)
			said = xprintf("%sthe slot holds %s",
			    from == RECEIVED ? "its input was not received; " : "", said);
	}
	return said;
}

/* The buffers of gradients, at the last chunk of the pipeline, or the first, or between. */
static const char *
turn_gradients(struct hands *h, const struct action *a, bool first, bool last)
{
	bool comes = a->kind == RECEIVE, sends = a->kind == SEND;
	const char *said = NULL;

	if (!sends && (said = turn(&h->dx, a, comes || last ? EMPTY : RECEIVED,
			   comes ? RECEIVED : EMPTY, N_PHASES)))
		return comes  ? xprintf("the buffer holds the gradient of %s", said)
		       : last ? "no gradient comes to the head"
			      : "its gradient was not received";
	said = turn(
	    &h->out, a, sends ? DONE : EMPTY, first || a->kind != PASS ? EMPTY : DONE, N_PHASES);
	return !said   ? NULL
	       : sends ? "its gradient is not there to send"
		       : xprintf("the gradient of %s was not sent", said);
}

/* Does an action; what is wrong with it, or NULL. */
static const char *
do_action(struct hands *h, const struct action *a)
{
	if (a->chunk >= h->st->nchunks || a->microbatch >= h->microbatches ||
	    a->phase > h->s->graph->last_phase)
		return "there is no such chunk, microbatch or phase";
	const struct chunk *c = &h->st->chunk[a->chunk];
	bool first = c->place == 0, last = c->place + 1 == h->places;
	bool forward = a->phase == FORWARD, up = forward == (a->kind == SEND);
	uint64_t number = a->chunk * h->microbatches + a->microbatch;
	const char *fault = NULL;

	if (a->slot - c->slot >= c->slots)
		return xprintf("the chunk's slots are %u .. %u", c->slot, c->slot + c->slots - 1);
	if (a->kind == PASS && h->did[number * N_PHASES + a->phase]++)
		return "a second time";
	if (a->kind != PASS && a->stage >= h->s->nstages)
		return xprintf("no stage %u", a->stage);
	if (a->kind != PASS && a->phase > BACKWARD)
		return "nothing is sent there";
	if (a->kind != PASS && (up ? last : first))
		return "the pipeline ends there";
	if (a->kind != PASS && a->tag != 2 * (c->place - !up) + !forward)
		return xprintf("tag %u is of another edge", a->tag);
	if (a->phase == BACKWARD)
		fault = turn_gradients(h, a, first, last);
	if (fault || (a->kind == SEND && !forward))
		return fault;
	return turn_rooms(h, a, forward ? first : a->phase > BACKWARD || last);
}

static const char *
check_stage(const struct shard *s, uint32_t step, uint32_t stage)
{
	const struct stage *st = &s->stage[stage];
	const struct step *of = &st->step[step];
	uint64_t n = of->microbatches;
	struct hands h = { .s = s,
		.st = st,
		.microbatches = n,
		.places = s->nstages * st->nchunks,
		.did = xalloc(st->nchunks * n * N_PHASES) };
	const char *fault = NULL;

	for (uint32_t l = 0; l < N_LIVES; l++)
		h.room[l] = xalloc((st->rooms[l] + 1) * sizeof *h.room[l]);
	for (uint32_t i = 0; i < of->action.n && !fault; i++)
		if ((fault = do_action(&h, &of->action.a[i])))
			fault = xprintf("%s: %s", action_text(s, step, stage, i), fault);
	for (uint64_t i = 0; i < st->nchunks * n * N_PHASES && !fault; i++)
		if (!h.did[i] && i % N_PHASES <= s->graph->last_phase)
			fault = xprintf("stage %u: microbatch %llu has no %s pass on chunk %llu",
			    stage, llu(i / N_PHASES % n), graph_phase_names[i % N_PHASES],
			    llu(i / N_PHASES / n));
	if (!fault && h.out.state != EMPTY)
		fault = xprintf("stage %u: the gradient of microbatch %u was not sent", stage,
		    h.out.microbatch);
	return fault;
}

/* ---- gradients and weights: each parameter reduced once, by those who have it, then gathered */

/*
 * How often and where ops of the last microbatch's passes but forward, then of the update, sum or
 * gather a tensor: behind the last that adds to a sum, or changes weights; before the first that
 * reads the sum. 1 + index, 0: none.
 */
struct use {
	uint32_t times, at, behind, before;
};

/* Of each phase but forward, from the head to the embedding; from *update on the update. */
static struct oplist
last_ops(const struct graph *g, uint32_t *update)
{
	uint32_t segs = g->head - g->embed + 1, n = segs * (N_PHASES - 1);
	struct oplist all = { 0 };

	for (uint32_t k = 0; k <= n; k++) {
		const struct oplist *l =
		    k < n ? &g->seg.a[g->head - k % segs].ops[BACKWARD + k / segs]
			  : &g->seg.a[g->update].ops[FORWARD];
		*update = all.n;
		for (uint32_t i = 0; i < l->n; i++)
			*PUSH(all) = l->a[i];
	}
	return all;
}

static struct use *
find_uses(const struct graph *g, const struct oplist *l, uint32_t update)
{
	struct use *use = xalloc(g->tensor.n * sizeof *use);

	for (uint32_t i = 0; i < l->n; i++) {
		const struct op *o = &l->a[i];
		for (uint8_t k = 0; k < op_row(o->op)->nargs; k++) {
			struct use *u = &use[o->arg[k]];
			bool sum = g->tensor.a[o->arg[k]].class == T_GRAD;
			if (o->op == op_collective(g->tensor.a[o->arg[k]].role)) {
				u->times += u->at != i + 1;
				u->at = i + 1;
			} else if (sum == (i < update)) {
				/* what only reads a weight finds its own part whole */
				if (sum || k >= op_row(o->op)->nin)
					u->behind = i + 1;
			} else if (sum && !u->before) {
				u->before = i + 1;
			}
		}
	}
	return use;
}

static const char *
check_buckets(const struct shard *s)
{
	const struct graph *g = s->graph;
	uint32_t update;
	struct oplist l = last_ops(g, &update);
	const struct use *use = find_uses(g, &l, update);

	for (tensor_id t = 0; (t = tensor_next(g, T_PARAM, t));) {
		const struct tensor *x = &g->tensor.a[t];
		const uint64_t *size = s->mesh.size;
		uint64_t parts = tensor_by_expert(x) ? size[OM_EXPERT] : 1;
		for (unsigned k = 0; k < 2; k++) {
			tensor_id what = k ? t : x->grad;
			enum om_group want = k ? x->copies : g->tensor.a[what].sum;
			const struct use *u = &use[what];
			const char *name = g->tensor.a[what].name;
			const char *op = op_row(op_collective(g->tensor.a[what].role))->name;
			if (size[want] * parts != size[OM_WORLD] / size[OM_PIPELINE])
				return xprintf("%s: %s is cut into %llu, and %llu ranks of a stage "
					       "have the same part",
				    op, name, llu(parts), llu(size[want]));
			if (u->times != (size[want] > 1))
				return xprintf("%s: %u of %s, whose copies are on %llu ranks", op,
				    u->times, name, llu(size[want]));
			if (u->times && l.a[u->at - 1].group != want)
				return xprintf(
				    "%s of %s is among the wrong ranks: they do not hold "
				    "the same %s",
				    op, name, tensor_by_expert(x) ? "experts" : "layers");
			if (u->times && u->at < u->behind)
				return xprintf("%s of %s comes before %s", op, name,
				    op_row(l.a[u->behind - 1].op)->name);
			if (u->before && u->at > u->before)
				return xprintf("%s of %s comes after %s", op, name,
				    op_row(l.a[u->before - 1].op)->name);
		}
	}
	return NULL;
}

/* ---- all ranks ---- */

struct meeting { /* something that a group does together */
	const struct op *op;
	enum om_group group;
	uint64_t bytes;
	uint32_t layer;
};
ARRAY_TYPE(meetings, struct meeting);
/* What a rank does next in a step. */
struct event {
	const struct meeting *meeting; /* NULL: a message */
	const struct action *action;   /* NULL: the update, or all if there is one stage */
};
ARRAY_TYPE(events, struct event);

struct message { /* from a sender that waits before it sends the next with this tag */
	bool full;
	uint32_t from, to, microbatch;
	uint64_t waiting; /* 1 + the rank that can go on when full changes */
};
struct gathering {            /* of a group for one thing that it does */
	uint64_t came, first; /* members; the first of them, whose event others must equal */
};

struct run {
	const struct shard *s;
	uint32_t step;                 /* of its stages' */
	struct om_mesh mesh;           /* with as many replicas as are run */
	const struct events **program; /* of a step, by rank; those of a stage share one */
	uint32_t *at;                  /* by rank: events that are done */
	uint64_t *ready, nready;       /* ranks that can go on */
	uint32_t tags;
	struct message *message;              /* by rank of the first stage, and tag */
	struct gathering *group[OM_N_GROUPS]; /* by first rank */
};

static const char *
add_ops(const struct shard *s, uint32_t stage, struct meetings *to, const struct oplist *l,
    uint32_t layer, bool last)
{
	const struct graph *g = s->graph;
	bool update = l == &g->seg.a[g->update].ops[FORWARD];

	for (uint32_t i = 0; i < l->n; i++) {
		const struct op *o = &l->a[i];
		const struct op_row *r = op_row(o->op);
		uint64_t bytes = 0, layers = 1;
		if (r->group != OM_ALONE && o->group != r->group)
			return xprintf("%s is not among the ranks of its group", r->name);
		/* what each member of a group does alone on its part is no event */
		if (!r->collective || o->group == OM_ALONE || (r->last && !last))
			continue;
		if (update)
			layers = stage_layers(s, stage, &g->tensor.a[o->arg[0]]);
		for (uint8_t k = r->nin; k < r->nargs; k++)
			bytes = size_add(bytes, size_mul(shard_bytes(s, o->arg[k]), layers));
		/* parts of the model that other stages have are theirs to reduce */
		if (layers || o->group == OM_WORLD || o->group == OM_PIPELINE)
			*PUSH(*to) = (struct meeting){ o, o->group, bytes, layer };
	}
	return NULL;
}

/* Passes of one kind are the same for all microbatches but the last one. */
static void
append(struct events *to, const struct meetings *pass, const struct action *a)
{
	for (uint32_t i = 0; i < pass->n; i++)
		*PUSH(*to) = (struct event){ &pass->a[i], a };
}

/* All that a stage does in a step. */
static const char *
expand(const struct shard *s, uint32_t step, uint32_t stage, struct events *all)
{
	enum { PASSES = N_PHASES + 1 }; /* of a chunk: the last is that of the step's end */
	const struct graph *g = s->graph;
	const struct stage *st = &s->stage[stage];
	const struct step *of = &st->step[step];
	struct meetings *pass = xalloc(st->nchunks * PASSES * sizeof *pass), update = { 0 };
	uint64_t alone = of->action.n ? 0 : of->microbatches < ALIKE ? of->microbatches : ALIKE;
	const char *fault = NULL;

	for (uint32_t i = 0; i < st->nchunks * PASSES && !fault; i++) {
		bool last = i % PASSES == N_PHASES;
		struct visits v = { 0 };
		shard_visits(
		    g, &st->chunk[i / PASSES], last ? (enum pass_id)g->last_phase : i % PASSES, &v);
		for (const struct visit *at = v.a; at < v.a + v.n && !fault; at++)
			fault = add_ops(
			    s, stage, &pass[i], &g->seg.a[at->seg].ops[at->phase], at->layer, last);
	}
	/* room for all messages at once: what an array has outgrown is not freed */
	all->cap = 16;
	for (uint32_t i = 0; i < of->action.n; i++)
		all->cap += of->action.a[i].kind != PASS;
	all->a = xalloc(all->cap * sizeof *all->a);
	/* one stage: a pass after the other */
	for (uint64_t m = 0; m < alone; m++)
		for (enum phase ph = FORWARD; ph <= g->last_phase; ph++) {
			bool end = ph == g->last_phase && m + 1 == alone;
			append(all, &pass[end ? N_PHASES : ph], NULL);
		}
	for (const struct action *a = of->action.a; a < of->action.a + of->action.n; a++) {
		bool end = a->phase == g->last_phase && a->microbatch + 1 == of->microbatches;
		if (a->kind == PASS)
			append(all, &pass[a->chunk * PASSES + (end ? N_PHASES : a->phase)], a);
		else
			*PUSH(*all) = (struct event){ NULL, a };
	}
	if (!fault)
		fault = add_ops(s, stage, &update, &g->seg.a[g->update].ops[FORWARD], 0, false);
	append(all, &update, NULL);
	return fault;
}

/* What a rank does next; NULL: it has ended. */
static const struct event *
event_at(const struct run *r, uint64_t rank)
{
	const struct events *l = r->program[rank];

	return r->at[rank] < l->n ? &l->a[r->at[rank]] : NULL;
}

static const char *
at_text(const struct run *r, uint64_t rank)
{
	uint32_t stage = (uint32_t)om_mesh_place(&r->mesh, OM_PIPELINE, rank);
	const struct event *e = event_at(r, rank);
	const struct meeting *m = e->meeting;
	const struct step *of = &r->s->stage[stage].step[r->step];
	const char *where =
	    e->action      ? action_text(r->s, r->step, stage, (uint32_t)(e->action - of->action.a))
	    : of->action.n ? xprintf("stage %u, update", stage)
			   : "";

	if (!m)
		return xprintf("rank %llu: %s", llu(rank), where);
	return xprintf("rank %llu: %s%s%s of %s, layer %u, %llu bytes", llu(rank), where,
	    *where ? ": " : "", op_row(m->op->op)->name,
	    r->s->graph->tensor.a[m->op->arg[op_row(m->op->op)->nin]].name, m->layer,
	    llu(m->bytes));
}

/* A message goes or comes, or the rank waits for it; *moved: it is further. */
static const char *
pass_message(struct run *r, uint64_t rank, const struct action *a, bool *moved)
{
	uint32_t stage = (uint32_t)om_mesh_place(&r->mesh, OM_PIPELINE, rank);
	struct message *m =
	    &r->message[om_mesh_member(&r->mesh, OM_PIPELINE, rank, 0) * r->tags + a->tag];
	bool sends = a->kind == SEND;

	*moved = m->full != sends;
	if (!*moved) {
		m->waiting = 1 + rank;
		return NULL;
	}
	if (!sends && (m->from != a->stage || m->to != stage))
		return xprintf(
		    "%s: waits for stage %u, but the message of tag %u goes from stage %u "
		    "to stage %u",
		    at_text(r, rank), a->stage, a->tag, m->from, m->to);
	if (!sends && m->microbatch != a->microbatch)
		return xprintf(
		    "%s: stage %u sent microbatch %u", at_text(r, rank), m->from, m->microbatch);
	if (m->waiting)
		r->ready[r->nready++] = m->waiting - 1;
	*m = (struct message){ sends, stage, a->stage, a->microbatch, 0 };
	r->at[rank]++;
	return NULL;
}

/* A rank comes to what its group does together; they go on when all are there. */
static const char *
gather(struct run *r, uint64_t rank, const struct meeting *m, bool *moved)
{
	struct gathering *group = &r->group[m->group][om_mesh_member(&r->mesh, m->group, rank, 0)];

	if (!group->came)
		group->first = rank;
	const struct meeting *o = event_at(r, group->first)->meeting;
	if (o != m && (o->op->op != m->op->op || o->bytes != m->bytes || o->layer != m->layer ||
			  o->op->arg[op_row(o->op->op)->nin] != m->op->arg[op_row(m->op->op)->nin]))
		return xprintf("%s, where %s", at_text(r, rank), at_text(r, group->first));
	*moved = ++group->came == r->mesh.size[m->group];
	if (!*moved)
		return NULL;
	group->came = 0;
	for (uint64_t i = 0; i < r->mesh.size[m->group]; i++) {
		uint64_t k = om_mesh_member(&r->mesh, m->group, rank, i);
		r->at[k]++;
		if (k != rank)
			r->ready[r->nready++] = k;
	}
	return NULL;
}

/* The rank that a rank which cannot go on waits for; itself if none could help. */
static uint64_t
waits_for(const struct run *r, uint64_t rank)
{
	const struct event *e = event_at(r, rank);

	if (!e->meeting)
		return om_mesh_member(&r->mesh, OM_PIPELINE, rank, e->action->stage);
	/* who can go no further and is at something of the group has come */
	for (uint64_t i = 0; i < r->mesh.size[e->meeting->group]; i++) {
		uint64_t k = om_mesh_member(&r->mesh, e->meeting->group, rank, i);
		const struct event *o = event_at(r, k);
		if (!o || !o->meeting || o->meeting->group != e->meeting->group)
			return k;
	}
	return rank;
}

static const char *
deadlock(const struct run *r, uint64_t rank)
{
	struct buf b = { 0 };
	uint64_t start = rank;

	buf_puts(&b, "deadlock: ");
	for (int i = 0; i < 8; i++) {
		if (!event_at(r, rank)) {
			buf_printf(&b, "rank %llu, which has ended", llu(rank));
			break;
		}
		uint64_t other = waits_for(r, rank);
		buf_printf(&b, "%s waits for rank %llu; ", at_text(r, rank), llu(other));
		rank = other;
		if (rank == start)
			break;
	}
	return b.s;
}

/* Each rank goes as far as it can; what it waits for makes it ready again. */
static const char *
run_all(struct run *r)
{
	uint64_t world = r->mesh.size[OM_WORLD];

	for (uint64_t i = world; i-- > 0;)
		r->ready[r->nready++] = i;
	while (r->nready) {
		uint64_t rank = r->ready[--r->nready];
		const struct event *e;
		for (bool moved = true; moved && (e = event_at(r, rank));) {
			const char *fault = e->meeting ? gather(r, rank, e->meeting, &moved)
						       : pass_message(r, rank, e->action, &moved);
			if (fault)
				return fault;
		}
	}
	for (uint64_t rank = 0; rank < world; rank++)
		if (event_at(r, rank))
			return deadlock(r, rank);
	for (uint64_t i = 0; i < world / r->mesh.size[OM_PIPELINE] * r->tags; i++)
		if (r->message[i].full)
			return xprintf("stage %u sends stage %u microbatch %u with tag %u, but it "
				       "is never received",
			    r->message[i].from, r->message[i].to, r->message[i].microbatch,
			    (uint32_t)(i % r->tags));
	return NULL;
}

/* The programs of all ranks in a step; NULL, or the fault of one stage's alone. */
static const char *
prepare(const struct shard *s, uint32_t step, struct run *r)
{
	struct events *program = xalloc(s->nstages * sizeof *program);
	uint64_t events = 0;
	const char *fault = check_groups(&s->mesh);

	*r = (struct run){ .s = s, .step = step, .mesh = s->mesh };
	if (!fault)
		fault = check_chunks(s);
	if (!fault)
		fault = check_buckets(s);
	for (uint32_t i = 0; i < s->nstages && !fault; i++) {
		if (s->nstages > 1)
			fault = check_stage(s, step, i);
		if (!fault)
			fault = expand(s, step, i, &program[i]);
		events += program[i].n;
		r->tags = 2 * s->nstages * s->stage[i].nchunks;
	}
	/* replicas run the same program side by side: some stand for very many */
	uint64_t replicas = BUDGET / (s->mesh.size[OM_EXPERT] * (events + 1));
	replicas = replicas < 2 ? 2 : replicas;
	if (replicas < s->mesh.size[OM_EXPERT_DATA]) {
		r->mesh.size[OM_EXPERT_DATA] = replicas;
		r->mesh = om_mesh(om_degrees(&r->mesh));
	}
	uint64_t world = r->mesh.size[OM_WORLD];
	r->program = xalloc(world * sizeof *r->program);
	for (uint64_t i = 0; i < world; i++)
		r->program[i] = &program[om_mesh_place(&r->mesh, OM_PIPELINE, i)];
	r->at = xalloc(world * sizeof *r->at);
	r->ready = xalloc(world * sizeof *r->ready);
	_Static_assert(OM_AXIS_PIPELINE == OM_N_AXES - 1, "the first stage has the first ranks");
	r->message = xalloc(world / s->nstages * r->tags * sizeof *r->message);
	for (int k = 0; k < OM_N_GROUPS; k++)
		r->group[k] = xalloc(world * sizeof *r->group[k]);
	return fault;
}

const char *
rankcheck_fault(const struct shard *s)
{
	const char *fault = NULL;

	for (uint32_t k = 0; k < s->stage[0].nsteps && !fault; k++) {
		struct run r;
		fault = prepare(s, k, &r);
		fault = fault ? fault : run_all(&r);
	}
	return fault;
}

void
rankcheck(const struct shard *s)
{
	const char *fault = rankcheck_fault(s);

	if (fault)
		internal("rankcheck: %s", fault);
}
