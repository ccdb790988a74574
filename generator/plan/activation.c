/*
 * Places of activations. What a phase reads of one before it is saved by layer and microbatch, in
 * the rooms of its life; everything else shares one scratch region, packed by lifetime within each
 * program (largest first, lowest free offset).
 */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

enum where { IN_SCRATCH, ON_STREAM, ON_DSTREAM, IN_SAVED };
/* By tensor. Those that share one buffer because ops work in place have one that stands for all. */
struct buffers {
	tensor_id *same; /* a step to that one, which has itself */
	/* of that one: */
	enum where *where;
	struct life *life; /* from the first phase that writes to the last that reads */
	uint32_t *nth;     /* 1 + its number in a program's scratch; zero before and after */
};

static tensor_id
root(const struct buffers *b, tensor_id t)
{
	while (b->same[t] != t)
		t = b->same[t];
	return t;
}

/* Whether an op of the segment from there on reads the tensor. */
static bool
read_after(const struct graph *g, struct op_at at, tensor_id t)
{
	for (uint32_t seg = at.seg; graph_next(g, &at) && at.seg == seg;)
		if (op_reads(at.op, t))
			return true;
	return false;
}

/* Whether an op of another stream reads the tensor: it may not be done with it. */
static bool
elsewhere(const struct plan *p, const struct op_at *at, tensor_id t)
{
	uint8_t stream = kernel_stream(at->op->op, p->target);

	for (struct op_at x = { .seg = at->seg }; graph_next(p->graph, &x) && x.seg == at->seg;)
		if (op_reads(x.op, t) && kernel_stream(x.op->op, p->target) != stream)
			return true;
	return false;
}

/* Whether an op's output may overwrite an input. */
static bool
may_take(
    const struct plan *p, const struct buffers *b, const struct op_at *at, uint8_t out, uint8_t in)
{
	const struct graph *g = p->graph;
	const struct segment *seg = &g->seg.a[at->seg];
	tensor_id to = at->op->arg[out], from = at->op->arg[in];
	tensor_id ro = root(b, to), ri = root(b, from);

	for (uint8_t a = 0; a < op_row(at->op->op)->nin; a++)
		if (a != in && root(b, at->op->arg[a]) == ri)
			return false;
	return ro != ri && g->tensor.a[from].class == T_ACT && from != seg->x &&
	       (from != seg->dy || g->last_phase == BACKWARD) && !read_after(g, *at, from) &&
	       (b->where[ri] || !elsewhere(p, at, from)) &&
	       shard_bytes(p->shard, from) == shard_bytes(p->shard, to) &&
	       (!b->where[ro] || !b->where[ri] || b->where[ro] == b->where[ri]);
}

/* Joins outputs with the inputs that they may overwrite. */
static void
join_in_place(const struct plan *p, struct buffers *b)
{
	for (struct op_at at = { 0 }; graph_next(p->graph, &at);) {
		const struct op_row *r = op_row(at.op->op);
		for (uint8_t out = r->nin; out < r->nargs; out++)
			for (uint8_t in = 0; in < r->nin; in++) {
				if (!(r->takes[out] >> in & 1) || !may_take(p, b, &at, out, in))
					continue;
				tensor_id ro = root(b, at.op->arg[out]),
					  ri = root(b, at.op->arg[in]);
				b->same[ro] = ri;
				b->where[ri] |= b->where[ro];
				break;
			}
	}
}

/* A buffer of one program's scratch. */
struct scratch {
	uint32_t id;         /* a tensor; behind all tensors, the workspace of a step */
	int32_t first, last; /* steps that use it */
	uint8_t streams;     /* of those steps, a bit each */
	uint64_t bytes, off;
};

/*
 * Whether one may be in use while the other is: what streams but the first use lives on until the
 * end, as far as others are concerned.
 */
static bool
together(const struct scratch *a, const struct scratch *b)
{
	bool one = a->streams == b->streams && !(a->streams & (a->streams - 1));

	return (a->first <= b->last || (!one && b->streams > 1)) &&
	       (b->first <= a->last || (!one && a->streams > 1));
}

/*
 * Lowest offset at which a buffer fits next to those already placed that live at the same time.
 */
static uint64_t
fit(const struct scratch *done, uint32_t ndone, const struct scratch *t, uint64_t base)
{
	uint64_t off = base, bytes = size_align(t->bytes, PLAN_ALIGN);
	bool moved = true;

	while (moved) {
		moved = false;
		for (uint32_t i = 0; i < ndone; i++) {
			const struct scratch *o = &done[i];
			uint64_t end = o->off + size_align(o->bytes, PLAN_ALIGN);
			if (together(o, t) && off < end && o->off < off + bytes) {
				off = end;
				moved = true;
			}
		}
	}
	return off;
}

/* Largest first; ties by first use, then by number: the order must not depend on the sort. */
static int
by_size(const void *a, const void *b)
{
	const struct scratch *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

/* Scratch of one program: tensors that are neither saved nor of the stream, and workspaces. */
static void
place_scratch(struct plan *p, struct program *prog, struct buffers *b, uint64_t base)
{
	struct graph *g = p->graph;
	ARRAY(struct scratch) list = { 0 };

	for (uint32_t i = 0; i < prog->n; i++) {
		const struct launch *l = &prog->a[i];
		const int32_t step = (int32_t)i;
		const uint8_t stream = (uint8_t)(1 << l->stream);
		for (uint8_t a = 0; a < op_row(l->op.op)->nargs; a++) {
			tensor_id t = root(b, l->op.arg[a]);
			if (g->tensor.a[l->op.arg[a]].class != T_ACT || b->where[t])
				continue;
			if (!b->nth[t]) {
				*PUSH(list) = (struct scratch){
					.id = t, .first = step, .bytes = shard_bytes(p->shard, t)
				};
				b->nth[t] = list.n;
			}
			list.a[b->nth[t] - 1].last = step;
			list.a[b->nth[t] - 1].streams |= stream;
		}
		if (l->workspace_bytes)
			*PUSH(list) = (struct scratch){ g->tensor.n + i, step, step, stream,
				l->workspace_bytes, 0 };
	}
	if (list.n)
		qsort(list.a, list.n, sizeof *list.a, by_size);
	for (uint32_t i = 0; i < list.n; i++) {
		struct scratch *x = &list.a[i];
		x->off = fit(list.a, i, x, base);
		uint64_t end = size_align(x->off + x->bytes, PLAN_ALIGN);
		if (end > p->region_bytes[R_SCRATCH])
			p->region_bytes[R_SCRATCH] = end;
		if (x->id >= g->tensor.n) {
			prog->a[x->id - g->tensor.n].workspace = x->off;
			continue;
		}
		p->place[x->id] = (struct place){ PLACE, R_SCRATCH, x->off, x->bytes, 0, false, 0 };
		b->nth[x->id] = 0;
	}
}

/*
 * Caches lie over what training saves, behind the stream, of whose entries decode takes the first
 * rows: a process that generates does not train. The region only grows where it saves less.
 */
static void
place_caches(struct plan *p)
{
	struct graph *g = p->graph;
	uint64_t off =
	    size_add(p->kept[p->stream_life].off, size_mul(p->stream_stride, g->n_layers + 1));

	for (tensor_id t = 0; p->decode && (t = tensor_next(g, T_CACHE, t));) {
		uint64_t bytes = shard_bytes(p->shard, t), stride = size_align(bytes, PLAN_ALIGN);
		p->place[t] = (struct place){ PLACE, R_SAVED, off, bytes, stride, false, 0 };
		off = size_add(off, size_mul(stride, tensor_layers(g, &g->tensor.a[t])));
	}
	if (p->decode && off > p->region_bytes[R_SAVED]) {
		p->cache_more = off - p->region_bytes[R_SAVED];
		p->region_bytes[R_SAVED] = off;
	}
}

static void
find_lives(const struct plan *p, struct buffers *b)
{
	for (tensor_id t = 0; t < p->graph->tensor.n; t++)
		b->life[t].from = N_PHASES;
	for (struct launch_at at = { 0 }; plan_next(p, &at);) {
		const struct op_row *r = op_row(at.launch->op.op);
		for (uint8_t a = 0; a < r->nargs; a++) {
			struct life *x = &b->life[root(b, at.launch->op.arg[a])];
			if (a < r->nin && x->to < at.phase)
				x->to = at.phase;
			if (a >= r->nin && x->from > at.phase)
				x->from = at.phase;
		}
	}
}

static uint8_t
life_number(enum phase from, enum phase to)
{
	uint8_t l = 0;

	while (l < N_LIVES && (lives[l].from != from || lives[l].to != to))
		l++;
	return l;
}

/* What a phase reads of one before it is saved, for every layer of its kind. */
static void
place_saved(struct plan *p, struct buffers *b)
{
	const struct graph *g = p->graph;
	uint64_t entries = 0;

	for (uint32_t c = 0; c < p->here->nchunks; c++)
		entries = p->here->chunk[c].n + 1u > entries ? p->here->chunk[c].n + 1u : entries;
	p->kept[p->stream_life].stride = size_mul(p->stream_stride, entries);
	if (p->dstream_life < N_LIVES)
		p->kept[p->dstream_life].stride = size_mul(p->stream_stride, entries);
	for (struct launch_at at = { 0 }; plan_next(p, &at);) {
		const struct op *o = &at.launch->op;
		const struct op_row *r = op_row(o->op);
		const struct op_at next = { .seg = at.seg, .phase = at.phase + 1 };
		for (uint8_t a = r->nin; a < r->nargs; a++) {
			tensor_id t = o->arg[a], ro = root(b, t);
			if (g->tensor.a[t].class != T_ACT || b->where[ro] ||
			    !read_after(g, next, t))
				continue;
			uint8_t l = life_number(b->life[ro].from, b->life[ro].to);
			uint64_t bytes = shard_bytes(p->shard, t);
			uint64_t stride = size_align(bytes, PLAN_ALIGN);
			b->where[ro] = IN_SAVED;
			p->place[ro] = (struct place){ PLACE, R_SAVED, p->kept[l].stride, bytes,
				stride, false, l };
			p->kept[l].stride = size_add(p->kept[l].stride,
			    size_mul(stride, plan_slot_layers(p, &g->seg.a[at.seg])));
		}
	}
	for (uint32_t l = 0; l < N_LIVES; l++) {
		p->kept[l].off = p->region_bytes[R_SAVED];
		p->region_bytes[R_SAVED] =
		    size_add(p->kept[l].off, size_mul(p->kept[l].stride, p->here->rooms[l]));
	}
	for (tensor_id t = 1; t < g->tensor.n; t++)
		if (b->where[t] == IN_SAVED)
			p->place[t].off = size_add(p->place[t].off, p->kept[p->place[t].life].off);
}

/* The place of a tensor in the residual stream, or in its gradient. */
static struct place
stream_place(const struct plan *p, const struct buffers *b, tensor_id t, bool gradient)
{
	const struct segment *seg = &p->graph->seg.a[p->graph->tensor.a[t].seg];
	tensor_id last = gradient ? seg->dy : seg->y;
	struct place pl = { .kind = gradient ? DSTREAM : STREAM,
		.region = R_SAVED,
		.off = gradient ? p->dstream_off : p->stream_off,
		.bytes = shard_bytes(p->shard, t),
		.stride = p->stream_stride,
		.next = root(b, last) == root(b, t) && seg->nlayers,
		.life = gradient ? p->dstream_life : p->stream_life };

	if (pl.life < N_LIVES)
		return pl;
	return (struct place){ DSTREAM, R_SCRATCH, pl.off, pl.bytes, 0, false, 0 };
}

void
plan_activations(struct plan *p)
{
	struct graph *g = p->graph;
	struct buffers b = { .same = xalloc(g->tensor.n * sizeof *b.same),
		.where = xalloc(g->tensor.n * sizeof *b.where),
		.life = xalloc(g->tensor.n * sizeof *b.life),
		.nth = xalloc(g->tensor.n * sizeof *b.nth) };
	uint64_t stream = shard_bytes(p->shard, g->seg.a[g->head].x);
	enum phase last = BACKWARD; /* that reads the stream */

	p->stream_stride = size_align(stream, PLAN_ALIGN);
	p->hop = xalloc(p->here->nchunks * sizeof *p->hop);
	for (uint32_t c = 0; c < p->here->nchunks; c++)
		p->hop[c] = p->here->chunk[c].place ? plan_take(p, R_COMM, stream) : 0;
	for (tensor_id t = 0; t < g->tensor.n; t++)
		b.same[t] = t;
	for (const struct segment *seg = g->seg.a; seg < g->seg.a + g->seg.n; seg++) {
		b.where[seg->x] = b.where[seg->y] = ON_STREAM;
		b.where[seg->dx] = b.where[seg->dy] = ON_DSTREAM;
	}
	b.where[0] = IN_SCRATCH; /* that of segments without one */
	join_in_place(p, &b);
	find_lives(p, &b);
	for (tensor_id t = 1; t < g->tensor.n; t++)
		if (b.where[t] == ON_STREAM && b.life[t].to > last)
			last = b.life[t].to;
	p->stream_life = life_number(FORWARD, last);
	p->dstream_life =
	    life_number(BACKWARD, g->last_phase); /* N_LIVES: no later phase reads it */
	place_saved(p, &b);
	place_caches(p);
	p->stream_off = p->kept[p->stream_life].off;
	p->dstream_off = p->dstream_life < N_LIVES ? p->kept[p->dstream_life].off
						   : plan_take(p, R_SCRATCH, stream);
	uint64_t base = p->region_bytes[R_SCRATCH];
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			place_scratch(p, &p->prog[s][ph], &b, base);
	for (tensor_id t = 0; (t = tensor_next(g, T_ACT, t));) {
		enum where where = b.where[root(&b, t)];
		if (!plan_runs(p, g->tensor.a[t].seg))
			continue;
		p->place[t] = where == ON_STREAM || where == ON_DSTREAM
				  ? stream_place(p, &b, t, where == ON_DSTREAM)
				  : p->place[root(&b, t)];
	}
}
