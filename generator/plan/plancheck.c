/*
 * Proof that the plan's buffers hold what each op expects: two microbatches, an update, an
 * evaluation and two tokens of decode are simulated over the arena. Every write makes its bytes the
 * property of one tensor of one layer; every read must find all of its bytes to be that tensor's.
 * So no two live buffers overlap, whatever the reason. Gradients are the step before's until the
 * first microbatch stores them, once. Reads of what another stream writes must be behind an event,
 * and writes over what another stream reads or writes; and what lies in a wider format than its own
 * must have been rounded.
 */
#include <string.h>

#include "plan/plan.h"

struct owned { /* bytes [off, end) belong to owner since launch clock of stream */
	uint64_t off, end, owner;
	uint64_t clock;
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
	bool first;          /* of a step's microbatches, this one is */
};

/*
 * A tensor of one layer; entries of the residual stream have the same name in both layers that see
 * them.
 */
static uint64_t
owner_of(const struct plan *p, tensor_id t, uint32_t layer)
{
	const struct segment *seg = &p->graph->seg.a[p->graph->tensor.a[t].seg];

	if (t == seg->x || t == seg->y)
		return 1ull << 62 |
		       (uint64_t)(p->graph->tensor.a[t].seg >= p->graph->decode) << 24 |
		       (layer + (t == seg->y && seg->nlayers));
	if (t == seg->dx || t == seg->dy)
		return 1ull << 61 | (layer + (t == seg->dy && seg->nlayers));
	return (uint64_t)t << 24 | (seg->nlayers ? layer : 0);
}

static void
extent(const struct arena *m, tensor_id t, uint32_t layer, uint64_t *off, uint64_t *end)
{
	plan_extent(m->p, NULL, t, layer, m->slot, off, end);
}

/* A bf16 in more bytes than its own is one because it was rounded; weights are by their update. */
static const char *
check_rounding(const struct plan *p, const struct launch *st)
{
	const struct op_row *r = op_row(st->op.op);

	for (uint8_t i = r->nin; st->inst && i < r->nin + r->nout; i++) {
		const struct tensor *t = &p->graph->tensor.a[st->op.arg[i]];
		bool must = t->class == T_ACT && target_format(p->target, t->format) != t->format;
		if (p->inst->a[st->inst].round[i] != (must ? tensor_elems(t) : 0))
			return xprintf("%s: %s is %s, %llu elements of it are rounded", r->name,
			    t->name, t->format->name,
			    (unsigned long long)p->inst->a[st->inst].round[i]);
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
		if (m->own.a[mid].end <= off)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static void
write_bytes(struct arena *m, struct owned w)
{
	uint32_t i = find(m, w.off), j = i, add = 0;
	struct owned keep[3];

	if (i < m->own.n && m->own.a[i].off < w.off) {
		keep[add] = m->own.a[i];
		keep[add++].end = w.off;
	}
	keep[add++] = w;
	while (j < m->own.n && m->own.a[j].off < w.end)
		j++;
	if (j > i && m->own.a[j - 1].end > w.end) {
		keep[add] = m->own.a[j - 1];
		keep[add++].off = w.end;
	}
	uint32_t n = m->own.n;
	for (uint32_t k = j - i; k < add; k++)
		array_grow((void **)&m->own.a, &m->own.n, &m->own.cap, sizeof *m->own.a);
	m->own.n = n + add - (j - i);
	memmove(&m->own.a[i + add], &m->own.a[j], (n - j) * sizeof *keep);
	memcpy(&m->own.a[i], keep, add * sizeof *keep);
}

static const char *
describe(const struct plan *p, uint64_t owner)
{
	if (owner >> 62 & 1)
		return xprintf("%sresidual stream %u", owner >> 24 & 1 ? "decode's " : "",
		    (unsigned)(owner & 0xffffff));
	if (owner >> 61 & 1)
		return xprintf("the stream's gradient %u", (unsigned)(owner & 0xffffff));
	if (owner >> 58 & 1)
		return "what is another microbatch's";
	if (owner >> 60 & 1)
		return "a workspace";
	if (owner >> 59 & 1)
		return "a gradient of the step before";
	return xprintf(
	    "%s of layer %u", p->graph->tensor.a[owner >> 24].name, (unsigned)(owner & 0xffffff));
}

static const char *
read_bytes(const struct arena *m, const struct launch *st, tensor_id t, uint64_t off, uint64_t end,
    uint64_t owner)
{
	const char *what = m->p->graph->tensor.a[t].name, *op = op_row(st->op.op)->name;
	uint64_t at = off;

	for (uint32_t i = find(m, off); at < end; i++) {
		if (i == m->own.n || m->own.a[i].off > at)
			return xprintf("%s reads %s where nothing was written, byte %llu", op, what,
			    (unsigned long long)at);
		const struct owned *o = &m->own.a[i];
		if (o->owner != owner)
			return xprintf("%s reads %s, but byte %llu holds %s", op, what,
			    (unsigned long long)at, describe(m->p, o->owner));
		at = o->end;
	}
	return NULL;
}

/* The parts of a merged tensor follow one another; each is what it should be. */
static const char *
read_parts(const struct arena *m, const struct launch *st, tensor_id t, uint32_t layer)
{
	const struct graph *g = m->p->graph;
	const struct part_list all = tensor_parts(g, t);
	uint64_t at, last, off, end;
	const char *fault;

	extent(m, t, layer, &at, &last);
	for (uint8_t i = 0; all.a[i]; i++, at = end) {
		extent(m, all.a[i], layer, &off, &end);
		if (off != at)
			return xprintf("%s: %s does not lie in its place in %s",
			    op_row(st->op.op)->name, g->tensor.a[all.a[i]].name,
			    g->tensor.a[t].name);
		if ((fault =
			    read_bytes(m, st, all.a[i], off, end, owner_of(m->p, all.a[i], layer))))
			return fault;
	}
	return at == last ? NULL
			  : xprintf("%s: %s ends elsewhere than its parts", op_row(st->op.op)->name,
				g->tensor.a[t].name);
}

/* Splits the interval that the byte is inside of. */
static void
split(struct arena *m, uint64_t at)
{
	uint32_t i = find(m, at);

	if (i == m->own.n || m->own.a[i].off >= at)
		return;
	array_grow((void **)&m->own.a, &m->own.n, &m->own.cap, sizeof *m->own.a);
	memmove(&m->own.a[i + 1], &m->own.a[i], (m->own.n - 1 - i) * sizeof *m->own.a);
	m->own.a[i].end = m->own.a[i + 1].off = at;
}

/* A launch's reading or writing of bytes must come after what other streams do with them. */
static const char *
touch(struct arena *m, const struct launch *st, const char *what, uint64_t off, uint64_t end,
    bool write)
{
	const uint64_t *known = m->known[st->stream];

	split(m, off);
	split(m, end);
	for (uint32_t i = find(m, off); i < m->own.n && m->own.a[i].off < end; i++) {
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

/* What the launch waits for; a fault. */
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

static const char *
check_step(struct arena *m, const struct launch *st, uint32_t layer)
{
	const struct plan *p = m->p;
	const struct op_row *r = op_row(st->op.op);
	const char *fault = check_rounding(p, st);

	if (fault)
		return fault;
	if (st->stream >= p->streams || st->event > p->events)
		return xprintf("%s: stream %u, event %u", r->name, st->stream, st->event);
	if ((fault = await(m, st)))
		return fault;
	for (int pass = 0; pass < 2; pass++)
		for (uint8_t i = 0; i < r->nin + r->nout; i++) {
			tensor_id t = st->op.arg[i];
			if (!t)
				continue;
			uint64_t off, end,
			    owner = st->span ? (uint64_t)t << 24 : owner_of(p, t, layer);
			const struct format *in =
			    target_format(p->target, p->graph->tensor.a[t].format);
			uint64_t number = (in->bits + 7) / 8;
			plan_extent(p, st, t, layer, m->slot, &off, &end);
			bool out = i >= r->nin, adds = r->arg[i].accumulate;
			if (m->first && st->first && p->graph->tensor.a[t].class == T_GRAD) {
				if (pass == 0 && m->own.a[find(m, off)].owner == owner)
					return xprintf("%s stores %s, which was written before",
					    r->name, p->graph->tensor.a[t].name);
				adds = false;
			}
			if (end > p->arena_bytes || off % number)
				return xprintf(
				    "%s: %s at byte %llu is outside the arena or not aligned",
				    r->name, p->graph->tensor.a[t].name, (unsigned long long)off);
			/*
			 * an update's run covers several resident tensors, checked below by region
			 */
			if (pass == 0 && (!out || adds) && !st->span &&
			    (fault = read_parts(m, st, t, layer)))
				return fault;
			if (pass == out &&
			    (fault = touch(m, st, p->graph->tensor.a[t].name, off, end, out)))
				return fault;
			if (pass == 1 && out && !st->span)
				write_bytes(m,
				    (struct owned){ off, end, owner, m->clock, st->stream, { 0 } });
			if (st->span) {
				enum region g = p->place[t].region;
				if (off < p->region_off[g] ||
				    end > p->region_off[g] + p->region_bytes[g])
					return xprintf(
					    "%s: the run of %u tensors at %s leaves its region",
					    r->name, st->tensors, p->graph->tensor.a[t].name);
			}
		}
	if (st->workspace_bytes) {
		if (st->workspace + st->workspace_bytes > p->arena_bytes)
			return xprintf("%s: workspace outside the arena", r->name);
		if ((fault = touch(m, st, "its workspace", st->workspace,
			 st->workspace + st->workspace_bytes, true)))
			return fault;
		write_bytes(m, (struct owned){ st->workspace, st->workspace + st->workspace_bytes,
				   1ull << 60, m->clock, st->stream, { 0 } });
		/* the workspace must not have taken what this very step reads or writes */
		for (uint8_t i = 0; i < r->nin + r->nout; i++) {
			uint64_t off, end;
			extent(m, st->op.arg[i], layer, &off, &end);
			if (off < st->workspace + st->workspace_bytes && st->workspace < end)
				return xprintf("%s: workspace overlaps %s", r->name,
				    p->graph->tensor.a[st->op.arg[i]].name);
		}
	}
	/* outputs that are not declared in place may not overlap the inputs */
	for (uint8_t i = r->nin; i < r->nin + r->nout; i++)
		for (uint8_t j = 0; j < i && !st->span; j++) {
			uint64_t a, b, c, d;
			extent(m, st->op.arg[i], layer, &a, &b);
			extent(m, st->op.arg[j], layer, &c, &d);
			if (a >= d || c >= b ||
			    strstr(r->inplace, xprintf("%s:%s", r->arg[i].name, r->arg[j].name)))
				continue;
			return xprintf("%s: %s overlaps %s", r->name,
			    p->graph->tensor.a[st->op.arg[i]].name,
			    p->graph->tensor.a[st->op.arg[j]].name);
		}
	return NULL;
}

static const char *
run(struct arena *m, uint32_t seg, int phase, uint32_t layer)
{
	const struct program *prog = &m->p->prog[seg][phase];
	const char *fault;

	for (uint32_t i = 0; i < prog->n; i++) {
		struct event *e = &m->event[prog->a[i].event];
		if ((fault = check_step(m, &prog->a[i], layer)))
			return xprintf("%s %s, layer %u, step %u: %s", m->p->graph->seg.a[seg].name,
			    graph_phase_names[phase], layer, i, fault);
		e->recorded = true;
		memcpy(e->known, m->known[prog->a[i].stream], sizeof e->known);
	}
	return NULL;
}

/* The bytes of a tensor, all its layers, become its own. NULL, or what they belonged to before. */
static const char *
own(struct arena *m, tensor_id t)
{
	const struct plan *p = m->p;
	const struct graph *g = p->graph;
	const struct segment *s = &g->seg.a[g->tensor.a[t].seg];
	const char *before = NULL;

	for (uint32_t l = 0; l < (s->nlayers ? s->nlayers : 1); l++) {
		uint32_t layer = s->nlayers ? s->layer[l] : 0;
		uint64_t off, end;
		if (s->nlayers && !plan_on_stage(p, layer))
			continue;
		extent(m, t, layer, &off, &end);
		uint32_t i = find(m, off);
		if (i < m->own.n && m->own.a[i].off < end)
			before = describe(p, m->own.a[i].owner);
		write_bytes(m, (struct owned){ off, end, owner_of(p, t, layer), 0, 0, { 0 } });
	}
	return before;
}

/* All gradients are the step before's; or, written: whether each was written in this one. */
static const char *
gradients(struct arena *m, bool written)
{
	const struct graph *g = m->p->graph;
	const char *fault = NULL;

	for (tensor_id t = 1; t < g->tensor.n && !fault; t++) {
		const struct segment *s = &g->seg.a[g->tensor.a[t].seg];
		if (g->tensor.a[t].class != T_GRAD || !m->p->place[t].bytes)
			continue;
		for (uint32_t l = 0; l < (s->nlayers ? s->nlayers : 1) && !fault; l++) {
			uint32_t layer = s->nlayers ? s->layer[l] : 0;
			uint64_t off, end;
			if (s->nlayers && !plan_on_stage(m->p, layer))
				continue;
			extent(m, t, layer, &off, &end);
			if (written)
				fault = read_bytes(m, &m->p->prog[g->update][FORWARD].a[0], t, off,
				    end, owner_of(m->p, t, layer));
			else
				write_bytes(
				    m, (struct owned){ off, end, 1ull << 59, m->clock, 0, { 0 } });
		}
	}
	return fault;
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
			write_bytes(m, (struct owned){ off, off + p->kept[l].stride, 1ull << 58,
					   m->clock, 0, { 0 } });
	}
}

/* A chunk's pass; what does not begin there has come from the chunk before, or after. */
static const char *
pass(struct arena *m, const struct chunk *c, enum pass_id id)
{
	const struct plan *p = m->p;
	const struct graph *g = p->graph;
	const struct segment *first = &g->seg.a[g->kind_of[c->first]];
	const struct segment *last = &g->seg.a[g->kind_of[c->first + c->n - 1]];
	const enum phase ph = plan_pass(g, id).phase;
	const uint32_t end = c->first + c->n - 1;
	struct visits v = { 0 };
	const char *fault = NULL;
	uint64_t off, to;

	if (id <= PASS_WEIGHTS)
		change_hands(m, c, ph, true);
	if (ph == FORWARD && !c->embed) {
		plan_extent(p, NULL, first->x, c->first, c->slot, &off, &to);
		write_bytes(m,
		    (struct owned){ off, to, owner_of(p, first->x, c->first), m->clock, 0, { 0 } });
	} else if (ph == BACKWARD && !c->head) {
		plan_extent(p, NULL, last->dy, end, c->slot, &off, &to);
		write_bytes(
		    m, (struct owned){ off, to, owner_of(p, last->dy, end), m->clock, 0, { 0 } });
	}
	if (ph == FORWARD || p->n_stages > 1) /* one stage's other passes are of one part with it */
		begin_part(m);
	plan_visits(p, c, id, &v);
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
	const struct stage *st = &p->shard->stage[p->stage];
	struct arena m = { .p = p };
	const char *fault = NULL;

	m.event = xalloc((p->events + 1) * sizeof *m.event);

	for (uint32_t l = 0; l < N_LIVES; l++)
		if (p->kept[l].off + p->kept[l].stride * st->rooms[l] > p->region_bytes[R_SAVED])
			return "saved activations: rooms leave their region";
	for (tensor_id t = 1; t < g->tensor.n; t++) {
		const struct tensor *x = &g->tensor.a[t];
		const char *before;
		bool part =
		    x->class == T_STATE && shard_group(p->shard, g->tensor.a[x->param].copies);
		if (x->class == T_ACT || x->class == T_CONST || x->class == T_CACHE || part ||
		    x->class == T_MERGED || !p->place[t].bytes)
			continue;
		if ((before = own(&m, t)))
			return xprintf("%s overlaps %s", x->name, before);
	}
	begin_part(&m);
	fault = run(&m, g->init, FORWARD, 0);
	for (int twice = 0; twice < 2 && !fault; twice++) {
		m.first = !twice || g->microbatches == 1;
		if (m.first)
			gradients(&m, false);
		for (uint32_t c = 0; c < st->nchunks && !fault; c++)
			fault = pass(&m, &st->chunk[c], PASS_FORWARD);
		for (enum pass_id id = PASS_BACKWARD; id <= PASS_WEIGHTS; id++)
			for (uint32_t c = st->nchunks; c-- > 0 && !fault && plan_has_pass(p, id);)
				fault = pass(&m, &st->chunk[c], id);
	}
	begin_part(&m);
	if (!fault)
		fault = gradients(&m, true);
	if (!fault)
		fault = run(&m, g->update, FORWARD, 0);
	for (uint32_t c = 0; c < st->nchunks && !fault; c++)
		fault = pass(&m, &st->chunk[c], PASS_EVALUATE);
	m.slot = 0;
	/* rows to come hold anything; the second token reads what the first one left */
	for (tensor_id t = 1; t < g->tensor.n && p->decode && !fault; t++) {
		const struct place *pl = &p->place[t];
		uint64_t end = pl->off + pl->stride * tensor_layers(g, &g->tensor.a[t]);
		if (g->tensor.a[t].class != T_CACHE)
			continue;
		if (pl->off < p->region_off[R_SAVED] ||
		    end > p->region_off[R_SAVED] + p->region_bytes[R_SAVED])
			return xprintf("%s leaves its region", g->tensor.a[t].name);
		own(&m, t);
	}
	for (int twice = 0; twice < 2 && !fault && p->decode; twice++)
		fault = pass(&m, &st->chunk[0], PASS_DECODE);
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
