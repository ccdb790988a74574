/*
 * Proof that the plan's buffers hold what each op expects: two microbatches, an update, an
 * evaluation, and twice a prompt and rows of decode are simulated over the arena. Every write makes
 * its bytes the property of one tensor of one layer; every read must find all of its bytes to be
 * that tensor's. So no two live buffers overlap, whatever the reason. Gradients are the step
 * before's until the first microbatch stores them, once. Reads of what another stream writes must
 * be behind an event, and writes over what another stream reads or writes; and what lies in a wider
 * format than its own must have been rounded.
 */
#include <string.h>

#include "plan/plan.h"

/* Whose bytes are: a tensor's of one layer, an entry's of the stream, or of its gradient, or ... */
enum owner_kind { OF_TENSOR, OF_OTHERS, OF_STEP_BEFORE, OF_WORKSPACE, OF_DSTREAM, OF_STREAM };
struct owned { /* bytes belong to owner since launch clock of stream */
	struct extent at;
	uint64_t owner, clock;
	uint8_t stream;
	uint64_t read[MAX_STREAMS]; /* the last launch of each stream that read them since */
};
struct event {
	bool recorded; /* in this part */
	uint64_t known[MAX_STREAMS];
};
struct arena {
	const struct plan *p;
	ARRAY(struct owned) own; /* sorted, disjoint */
	uint64_t clock;          /* launches issued so far */
	/* of each other stream, up to which launch a stream's own come after it */
	uint64_t known[MAX_STREAMS][MAX_STREAMS];
	struct event *event; /* from 1 */
	uint32_t slot;       /* of the chunk that runs */
	bool first; /* of a step's microbatches, this one is, or of those of an evaluation */
};

static uint64_t
owner(enum owner_kind kind, uint32_t number, uint32_t layer)
{
	return (uint64_t)kind << 56 | (uint64_t)number << 24 | layer;
}

/*
 * A tensor of one layer; entries of the residual stream have the same name in both layers that see
 * them.
 */
static uint64_t
owner_of(const struct plan *p, tensor_id t, uint32_t layer)
{
	uint32_t s = p->graph->tensor.a[t].seg;
	const struct segment *seg = &p->graph->seg.a[s];
	bool layered = seg->nlayers != 0;

	if (t == seg->x || t == seg->y)
		return owner(OF_STREAM, (s >= p->graph->decode) + (s >= p->graph->prompt),
		    layer + (t == seg->y && layered));
	if (t == seg->dx || t == seg->dy)
		return owner(OF_DSTREAM, 0, layer + (t == seg->dy && layered));
	return owner(OF_TENSOR, t, layered ? layer : 0);
}

static const char *
describe(const struct plan *p, uint64_t own)
{
	unsigned number = (unsigned)(own >> 24), layer = (unsigned)(own & 0xffffff);

	switch ((enum owner_kind)(own >> 56)) {
	case OF_STREAM:
		return xprintf("%sresidual stream %u",
		    (const char *[]){ "", "decode's ", "the prompt's " }[number], layer);
	case OF_DSTREAM:
		return xprintf("the stream's gradient %u", layer);
	case OF_OTHERS:
		return "what is another microbatch's";
	case OF_WORKSPACE:
		return "a workspace";
	case OF_STEP_BEFORE:
		return "a gradient of the step before, or a copy of its weights";
	case OF_TENSOR:
		break;
	}
	return xprintf("%s of layer %u", p->graph->tensor.a[number].name, layer);
}

static struct extent
extent(const struct arena *m, tensor_id t, uint32_t layer)
{
	return plan_extent(m->p, NULL, t, layer, m->slot);
}

/* A bf16 in more bytes than its own is one because it was rounded; weights are by their update. */
static const char *
check_rounding(const struct plan *p, const struct launch *st)
{
	const struct op_row *r = op_row(st->op.op);

	for (uint8_t i = r->nin; st->inst && i < r->nargs; i++) {
		const struct tensor *t = &p->graph->tensor.a[st->op.arg[i]];
		bool must = t->class == T_ACT && target_format(p->target, t->format) != t->format;
		if (p->inst->a[st->inst].round[i] != (must ? tensor_elems(t) : 0))
			return xprintf("%s: %s is %s, %llu elements of it are rounded", r->name,
			    t->name, t->format->name, llu(p->inst->a[st->inst].round[i]));
	}
	return NULL;
}

/* Index of the first interval that ends after off. */
static uint32_t
find(const struct arena *m, uint64_t off)
{
	uint32_t lo = 0, hi = m->own.n;

	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;
		if (m->own.a[mid].at.end <= off)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Splits the interval that the byte is inside of. */
static void
split(struct arena *m, uint64_t at)
{
	uint32_t i = find(m, at);

	if (i == m->own.n || m->own.a[i].at.off >= at)
		return;
	(void)PUSH(m->own);
	memmove(&m->own.a[i + 1], &m->own.a[i], (m->own.n - 1 - i) * sizeof *m->own.a);
	m->own.a[i].at.end = m->own.a[i + 1].at.off = at;
}

static void
write_bytes(struct arena *m, struct extent at, uint64_t owner_is, uint8_t stream)
{
	split(m, at.off);
	split(m, at.end);
	uint32_t i = find(m, at.off), j = i, n = m->own.n;
	while (j < n && m->own.a[j].at.off < at.end)
		j++;
	if (j == i)
		(void)PUSH(m->own);
	memmove(&m->own.a[i + 1], &m->own.a[j], (n - j) * sizeof *m->own.a);
	m->own.n = n + 1 - (j - i);
	m->own.a[i] =
	    (struct owned){ .at = at, .owner = owner_is, .clock = m->clock, .stream = stream };
}

static const char *
read_bytes(const struct arena *m, const char *op, tensor_id t, uint32_t layer)
{
	const char *what = m->p->graph->tensor.a[t].name;
	const struct extent e = extent(m, t, layer);
	uint64_t at = e.off;

	for (uint32_t i = find(m, at); at < e.end; i++) {
		const struct owned *x = &m->own.a[i];
		if (i == m->own.n || x->at.off > at)
			return xprintf(
			    "%s reads %s where nothing was written, byte %llu", op, what, llu(at));
		if (x->owner != owner_of(m->p, t, layer))
			return xprintf("%s reads %s, but byte %llu holds %s", op, what, llu(at),
			    describe(m->p, x->owner));
		at = x->at.end;
	}
	return NULL;
}

/* The parts of a merged tensor follow one another; each is what it should be. */
static const char *
read_parts(const struct arena *m, const char *op, tensor_id t, uint32_t layer)
{
	const struct tensor *all = m->p->graph->tensor.a;
	const struct part_list parts = tensor_parts(m->p->graph, t);
	const struct extent whole = extent(m, t, layer);
	uint64_t at = whole.off;

	for (uint8_t i = 0; parts.a[i]; i++) {
		const struct extent part = extent(m, parts.a[i], layer);
		if (part.off != at)
			return xprintf("%s: %s does not lie in its place in %s", op,
			    all[parts.a[i]].name, all[t].name);
		const char *fault = read_bytes(m, op, parts.a[i], layer);
		if (fault)
			return fault;
		at = part.end;
	}
	return at == whole.end ? NULL
			       : xprintf("%s: %s ends elsewhere than its parts", op, all[t].name);
}

/* A launch's reading or writing of bytes must come after what other streams do with them. */
static const char *
touch(struct arena *m, const struct launch *st, const char *what, struct extent at, bool write)
{
	const uint64_t *known = m->known[st->stream];

	split(m, at.off);
	split(m, at.end);
	for (uint32_t i = find(m, at.off); i < m->own.n && m->own.a[i].at.off < at.end; i++) {
		struct owned *o = &m->own.a[i];
		for (uint8_t s = 0; s < MAX_STREAMS; s++) {
			bool wrote = s == o->stream && o->clock > known[s];
			if (s == st->stream || !(wrote || (write && o->read[s] > known[s])))
				continue;
			return xprintf(
			    "%s on stream %u %s %s, %s on stream %u, with no event between",
			    op_row(st->op.op)->name, st->stream, write ? "writes" : "reads", what,
			    wrote ? "written" : "read", s);
		}
		o->read[st->stream] = m->clock;
		if (write) {
			o->clock = m->clock;
			o->stream = st->stream;
			memset(o->read, 0, sizeof o->read);
		}
	}
	return NULL;
}

/* All streams are done with what came before. */
static void
begin_part(struct arena *m)
{
	for (int s = 0; s < MAX_STREAMS; s++)
		for (int r = 0; r < MAX_STREAMS; r++)
			m->known[s][r] = m->clock;
	for (uint32_t e = 0; e <= m->p->events; e++)
		m->event[e].recorded = false;
}

/* What the launch waits for, which its function says; a fault. */
static const char *
await(struct arena *m, const struct launch *st)
{
	for (uint32_t w = 0; w < st->wait.n; w++) {
		uint32_t e = st->wait.a[w];
		if (!e || e > m->p->events)
			return xprintf("%s waits for event %u", op_row(st->op.op)->name, e);
		for (int s = 0; s < MAX_STREAMS && m->event[e].recorded; s++)
			if (m->known[st->stream][s] < m->event[e].known[s])
				m->known[st->stream][s] = m->event[e].known[s];
	}
	m->known[st->stream][st->stream] = ++m->clock;
	return NULL;
}

/* An argument lies where it may; what is read of it, or added to, is there. */
static const char *
check_arg(struct arena *m, const struct launch *st, uint8_t i, uint32_t layer, struct extent at)
{
	const struct plan *p = m->p;
	const struct op_row *r = op_row(st->op.op);
	const struct tensor *x = &p->graph->tensor.a[st->op.arg[i]];
	const uint64_t number = (target_format(p->target, x->format)->bits + 7) / 8;
	const enum region g = p->place[st->op.arg[i]].region;
	bool out = i >= r->nin, stores = m->first && st->first && x->class == T_GRAD;
	const char *fault = NULL;

	if (stores &&
	    m->own.a[find(m, at.off)].owner == owner_of(p, st->op.arg[i], st->span ? 0 : layer))
		return xprintf("%s stores %s, which was written before", r->name, x->name);
	if (at.end > p->arena_bytes || at.off % number)
		return xprintf("%s: %s at byte %llu is outside the arena or not aligned", r->name,
		    x->name, llu(at.off));
	/* an update's run covers several resident tensors */
	if (st->span &&
	    (at.off < p->region_off[g] || at.end > p->region_off[g] + p->region_bytes[g]))
		return xprintf("%s: the run of %u tensors at %s leaves its region", r->name,
		    st->tensors, x->name);
	if (!st->span && (!out || (r->arg[i].accumulate && !stores)))
		fault = read_parts(m, r->name, st->op.arg[i], layer);
	return fault || out ? fault : touch(m, st, x->name, at, false);
}

static const char *
check_step(struct arena *m, const struct launch *st, const struct launch *events, uint32_t layer)
{
	const struct plan *p = m->p;
	const struct tensor *all = p->graph->tensor.a;
	const tensor_id *arg = st->op.arg;
	const struct op_row *r = op_row(st->op.op);
	struct extent at[MAX_ARGS] = { 0 }, ws = plan_workspace(st);
	const char *fault = check_rounding(p, st);

	if (!fault && (st->stream >= p->streams || events->event > p->events))
		fault = xprintf("%s: stream %u, event %u", r->name, st->stream, events->event);
	if (!fault)
		fault = await(m, events);
	for (uint8_t i = 0; i < r->nargs && !fault; i++) {
		if (!arg[i])
			continue;
		at[i] = plan_extent(p, st, arg[i], layer, m->slot);
		fault = check_arg(m, st, i, layer, at[i]);
		/* the workspace must not take what this very step reads or writes */
		if (!fault && st->workspace_bytes && extents_meet(at[i], ws))
			fault = xprintf("%s: workspace overlaps %s", r->name, all[arg[i]].name);
		/* outputs that are not declared in place may not overlap the inputs */
		for (uint8_t j = 0; j < i && i >= r->nin && !st->span && !fault; j++)
			if (extents_meet(at[i], at[j]) && !(r->takes[i] >> j & 1))
				fault = xprintf("%s: %s overlaps %s", r->name, all[arg[i]].name,
				    all[arg[j]].name);
	}
	for (uint8_t i = r->nin; i < r->nargs && !fault; i++) {
		if (!arg[i])
			continue;
		fault = touch(m, st, all[arg[i]].name, at[i], true);
		if (!fault && !st->span)
			write_bytes(m, at[i], owner_of(p, arg[i], layer), st->stream);
	}
	if (!fault && st->workspace_bytes) {
		if (ws.end > p->arena_bytes)
			return xprintf("%s: workspace outside the arena", r->name);
		fault = touch(m, st, "its workspace", ws, true);
		write_bytes(m, ws, owner(OF_WORKSPACE, 0, 0), st->stream);
	}
	return fault;
}

static const char *
run(struct arena *m, uint32_t seg, int phase, uint32_t layer)
{
	const struct program *prog = &m->p->prog[seg][phase];
	const char *fault;

	for (uint32_t i = 0; i < prog->n; i++) {
		const struct launch *events = &prog->of->a[i];
		struct event *e = &m->event[events->event];
		if (op_row(prog->a[i].op.op)->first && !m->first)
			continue;
		if ((fault = check_step(m, &prog->a[i], events, layer)))
			return xprintf("%s %s, layer %u, step %u: %s", m->p->graph->seg.a[seg].name,
			    graph_phase_names[phase], layer, i, fault);
		e->recorded = true;
		memcpy(e->known, m->known[prog->a[i].stream], sizeof e->known);
	}
	return NULL;
}

/*
 * The bytes of all tensors of a class, of all their layers on the stage, become their own, or the
 * step before's; or each must be its own. NULL, or a fault: what they belonged to before.
 */
enum deed { OWN, OUTDATE, READ };
static const char *
all_of(struct arena *m, enum tensor_class class, enum deed deed)
{
	const struct plan *p = m->p;
	const struct graph *g = p->graph;
	const char *reader = op_row(p->prog[g->update][FORWARD].a->op.op)->name, *said = NULL;

	for (tensor_id t = 0; (t = tensor_next(g, class, t));) {
		const struct tensor *x = &g->tensor.a[t];
		const struct segment *s = &g->seg.a[x->seg];
		bool part = class == T_STATE && shard_group(p->shard, g->tensor.a[x->param].copies);
		for (uint32_t l = 0; l < (s->nlayers ? s->nlayers : 1) && !part; l++) {
			uint32_t layer = s->nlayers ? s->layer[l] : 0;
			if (!p->place[t].bytes || (s->nlayers && !plan_on_stage(p, layer)))
				continue;
			struct extent at = extent(m, t, layer);
			uint32_t i = find(m, at.off);
			if (deed == READ && (said = read_bytes(m, reader, t, layer)))
				return said;
			if (deed == OWN && i < m->own.n && m->own.a[i].at.off < at.end)
				said = xprintf(
				    "%s overlaps %s", x->name, describe(p, m->own.a[i].owner));
			if (deed != READ)
				write_bytes(m, at,
				    deed == OWN ? owner_of(p, t, layer)
						: owner(OF_STEP_BEFORE, 0, 0),
				    0);
		}
	}
	return said;
}

/* Rooms of lives that begin or end with a phase are other microbatches' before, or after. */
static void
change_hands(struct arena *m, const struct chunk *c, enum phase ph, bool begin)
{
	const struct plan *p = m->p;

	for (uint32_t l = 0; l < N_LIVES; l++) {
		if ((begin ? lives[l].from : lives[l].to) != ph || !c->rooms[l].n)
			continue;
		uint64_t off = p->region_off[R_SAVED] + p->kept[l].off +
			       plan_room(p, l, c->slot) * p->kept[l].stride;
		if (p->kept[l].stride)
			write_bytes(m, (struct extent){ off, off + p->kept[l].stride },
			    owner(OF_OTHERS, 0, 0), 0);
	}
}

/* A chunk's pass; what does not begin there has come from the chunk before, or after. */
static const char *
pass(struct arena *m, const struct chunk *c, enum pass_id id)
{
	const struct plan *p = m->p;
	const struct graph *g = p->graph;
	const enum phase ph = shard_pass(g, id).phase;
	const struct chunk_end in = chunk_end(g, c, ph, ph == FORWARD);
	struct visits v = { 0 };
	const char *fault = NULL;

	m->slot = c->slot;
	if (id <= PASS_WEIGHTS)
		change_hands(m, c, ph, true);
	if (ph == FORWARD ? !c->embed : ph == BACKWARD && !c->head)
		write_bytes(m, extent(m, in.t, in.layer), owner_of(p, in.t, in.layer), 0);
	if (ph == FORWARD || p->n_stages > 1) /* one stage's other passes are of one part with it */
		begin_part(m);
	shard_visits(p->graph, c, id, &v);
	for (uint32_t i = 0; i < v.n && !fault; i++) {
		m->slot = v.a[i].slot;
		fault = run(m, v.a[i].seg, v.a[i].phase, v.a[i].layer);
	}
	if (id <= PASS_WEIGHTS)
		change_hands(m, c, ph, false);
	return fault;
}

const char *
plancheck_fault(const struct plan *p)
{
	const struct graph *g = p->graph;
	static const enum tensor_class resident[] = { T_PARAM, T_GRAD, T_STATE, T_BUFFER, T_COPY,
		T_INPUT, T_STAT };
	struct arena m = { .p = p, .event = xalloc((p->events + 1) * sizeof *m.event) };
	const char *fault = NULL;

	for (uint32_t l = 0; l < N_LIVES; l++)
		if (p->kept[l].off + p->kept[l].stride * p->here->rooms[l] >
		    p->region_bytes[R_SAVED])
			return "saved activations: rooms leave their region";
	for (unsigned i = 0; i < LEN(resident) && !fault; i++)
		fault = all_of(&m, resident[i], OWN);
	if (fault)
		return fault;
	begin_part(&m);
	fault = run(&m, g->init, FORWARD, 0);
	for (int twice = 0; twice < 2 && !fault; twice++) {
		m.first = !twice || g->microbatches == 1;
		if (m.first) {
			all_of(&m, T_GRAD, OUTDATE);
			all_of(&m, T_COPY, OUTDATE);
		}
		for (enum pass_id id = PASS_FORWARD; id <= PASS_WEIGHTS; id++)
			for (uint32_t n = p->here->nchunks, c = 0; c < n && !fault; c++)
				if (plan_has_pass(p, id))
					fault = pass(&m, &p->here->chunk[id ? n - 1 - c : c], id);
	}
	begin_part(&m);
	if (!fault)
		fault = all_of(&m, T_GRAD, READ);
	if (!fault)
		fault = run(&m, g->update, FORWARD, 0);
	m.first = true;
	all_of(&m, T_COPY, OUTDATE);
	for (uint32_t c = 0; c < p->here->nchunks && !fault; c++)
		fault = pass(&m, &p->here->chunk[c], PASS_EVALUATE);
	m.slot = 0;
	/* rows to come hold anything; the second token reads what the first one left */
	for (tensor_id t = 0; p->decode && !fault && (t = tensor_next(g, T_CACHE, t));) {
		const struct place *pl = &p->place[t];
		uint64_t end = pl->off + pl->stride * tensor_layers(g, &g->tensor.a[t]);
		if (pl->off < p->region_off[R_SAVED] ||
		    end > p->region_off[R_SAVED] + p->region_bytes[R_SAVED])
			return xprintf("%s leaves its region", g->tensor.a[t].name);
	}
	all_of(&m, T_CACHE, OWN);
	for (int twice = 0; twice < 2; twice++)
		for (enum pass_id id = PASS_PROMPT; id >= PASS_DECODE && !fault; id--)
			if (plan_has_pass(p, id))
				fault = pass(&m, &p->here->chunk[0], id);
	return fault;
}

void
plancheck(const struct plan *p)
{
	for (uint32_t i = 0; i < p->n_stages; i++) {
		const char *fault = plancheck_fault(&p[i]);
		if (fault)
			internal("plancheck: %s%s", p->n_stages > 1 ? xprintf("stage %u: ", i) : "",
			    fault);
	}
}
