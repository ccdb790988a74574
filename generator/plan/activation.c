/*
 * Places of activations. What a phase reads of one before it is saved by layer and microbatch, in
 * the rooms of its life; everything else shares one scratch region, packed by lifetime within each
 * program (largest first, lowest free offset).
 */
#include <string.h>

#include "plan/plan.h"

/* Of tensors that share one buffer because ops work in place: the one that stands for each. */
static tensor_id
root(const tensor_id *sh, tensor_id t)
{
	while (sh[t] != t)
		t = sh[t];
	return t;
}

static bool
read_after(const struct segment *seg, int phase, uint32_t i, tensor_id t)
{
	for (int p = phase; p < N_PHASES; p++)
		for (uint32_t k = p == phase ? i + 1 : 0; k < seg->ops[p].n; k++)
			for (uint8_t a = 0; a < op_row(seg->ops[p].a[k].op)->nin; a++)
				if (seg->ops[p].a[k].arg[a] == t)
					return true;
	return false;
}

/* Whether an op of another stream uses the tensor: it may not be done with it. */
static bool
elsewhere(const struct plan *p, const struct segment *seg, const struct op *o, tensor_id t)
{
	for (int ph = 0; ph < N_PHASES; ph++)
		for (uint32_t k = 0; k < seg->ops[ph].n; k++) {
			const struct op *x = &seg->ops[ph].a[k];
			for (uint8_t a = 0; a < op_row(x->op)->nin; a++)
				if (x->arg[a] == t && kernel_stream(x->op, p->target) !=
							  kernel_stream(o->op, p->target))
					return true;
		}
	return false;
}

/* Buffers that others see: the residual stream and its gradient. */
static int
boundary(const struct segment *seg, tensor_id t)
{
	return t == seg->x || t == seg->y ? 1 : t == seg->dx || t == seg->dy ? 2 : 0;
}

/* Joins outputs with the inputs they may overwrite ("out:in" of op.def). */
static void
join_in_place(const struct plan *p, const struct segment *seg, tensor_id *sh, uint8_t *bound)
{
	const struct graph *g = p->graph;

	for (int ph = 0; ph < N_PHASES; ph++)
		for (uint32_t i = 0; i < seg->ops[ph].n; i++) {
			const struct op *o = &seg->ops[ph].a[i];
			const struct op_row *r = op_row(o->op);
			uint32_t joined = 0;
			for (const char *s = r->inplace; *s; s += strspn(s, " ")) {
				size_t n = strcspn(s, ":"), m = strcspn(s + n + 1, " ");
				int out = -1, in = -1;
				for (int a = 0; a < r->nin + r->nout; a++) {
					if (strlen(r->arg[a].name) == n &&
					    !memcmp(r->arg[a].name, s, n))
						out = a;
					if (strlen(r->arg[a].name) == m &&
					    !memcmp(r->arg[a].name, s + n + 1, m))
						in = a;
				}
				s += n + 1 + m;
				tensor_id to = o->arg[out], ti = o->arg[in];
				tensor_id ro = root(sh, to), ri = root(sh, ti);
				bool twice = false;
				for (uint8_t a = 0; a < r->nin; a++)
					twice |= a != in && root(sh, o->arg[a]) == ri;
				if (joined & 1u << out || ro == ri || twice ||
				    g->tensor.a[ti].class != T_ACT || ti == seg->x ||
				    (ti == seg->dy && g->last_phase > BACKWARD) ||
				    read_after(seg, ph, i, ti) ||
				    (!bound[ri] && elsewhere(p, seg, o, ti)) ||
				    shard_bytes(p->shard, ti) != shard_bytes(p->shard, to) ||
				    (bound[ro] && bound[ri] && bound[ro] != bound[ri]))
					continue;
				joined |= 1u << out;
				sh[ro] = ri;
				bound[ri] |= bound[ro];
			}
		}
}

/* A buffer of one program's scratch. */
struct buffer {
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
together(const struct buffer *a, const struct buffer *b)
{
	bool one = a->streams == b->streams && !(a->streams & (a->streams - 1));

	return (a->first <= b->last || (!one && b->streams > 1)) &&
	       (b->first <= a->last || (!one && a->streams > 1));
}

/*
 * Lowest offset at which a buffer fits next to those already placed that live at the same time.
 */
static uint64_t
fit(const struct buffer *done, uint32_t ndone, const struct buffer *t, uint64_t base)
{
	uint64_t off = base, bytes = size_align(t->bytes, PLAN_ALIGN);
	bool moved = true;

	while (moved) {
		moved = false;
		for (uint32_t i = 0; i < ndone; i++) {
			const struct buffer *o = &done[i];
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
static bool
before(const struct buffer *a, const struct buffer *b)
{
	if (a->bytes != b->bytes)
		return a->bytes > b->bytes;
	return a->first < b->first || (a->first == b->first && a->id < b->id);
}

/*
 * Scratch of one program: tensors that are neither saved nor boundary, and kernels' workspaces.
 * nth, by tensor: 1 + its buffer; zero before and after.
 */
static void
place_scratch(struct plan *p, uint32_t s, int ph, const tensor_id *sh, const uint8_t *where,
    uint32_t *nth, uint64_t base)
{
	struct graph *g = p->graph;
	struct program *prog = &p->prog[s][ph];
	ARRAY(struct buffer) list = { 0 };

	for (uint32_t i = 0; i < prog->n; i++) {
		const struct op *o = &prog->a[i].op;
		const struct op_row *r = op_row(o->op);
		for (uint8_t a = 0; a < r->nin + r->nout; a++) {
			tensor_id t = root(sh, o->arg[a]);
			if (g->tensor.a[o->arg[a]].class != T_ACT || where[t])
				continue;
			if (!nth[t]) {
				*PUSH(list) = (struct buffer){ t, (int32_t)i, 0, 0,
					shard_bytes(p->shard, t), 0 };
				nth[t] = list.n;
			}
			list.a[nth[t] - 1].last = (int32_t)i;
			list.a[nth[t] - 1].streams |= (uint8_t)(1 << prog->a[i].stream);
		}
		if (prog->a[i].workspace_bytes)
			*PUSH(list) = (struct buffer){ g->tensor.n + i, (int32_t)i, (int32_t)i,
				(uint8_t)(1 << prog->a[i].stream), prog->a[i].workspace_bytes, 0 };
	}
	for (uint32_t i = 0; i < list.n; i++)
		if (list.a[i].id < g->tensor.n)
			nth[list.a[i].id] = 0;
	for (uint32_t i = 1; i < list.n; i++)
		for (uint32_t j = i; j > 0 && before(&list.a[j], &list.a[j - 1]); j--) {
			struct buffer b = list.a[j];
			list.a[j] = list.a[j - 1];
			list.a[j - 1] = b;
		}
	for (uint32_t i = 0; i < list.n; i++) {
		struct buffer *b = &list.a[i];
		b->off = fit(list.a, i, b, base);
		uint64_t end = size_align(b->off + b->bytes, PLAN_ALIGN);
		if (end > p->region_bytes[R_SCRATCH])
			p->region_bytes[R_SCRATCH] = end;
		if (b->id < g->tensor.n)
			p->place[b->id] =
			    (struct place){ PLACE, R_SCRATCH, b->off, b->bytes, 0, false, 0 };
		else
			prog->a[b->id - g->tensor.n].workspace = b->off;
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

	for (tensor_id t = 1; t < g->tensor.n; t++) {
		const struct tensor *x = &g->tensor.a[t];
		if (x->class != T_CACHE || !p->decode)
			continue;
		uint64_t bytes = shard_bytes(p->shard, t);
		uint64_t stride = size_align(bytes, PLAN_ALIGN),
			 all = size_mul(stride, tensor_layers(g, x));
		p->place[t] = (struct place){ PLACE, R_SAVED, off, bytes, stride, false, 0 };
		off = size_add(off, all);
		p->cache_bytes = size_add(p->cache_bytes, all);
	}
	if (p->cache_bytes && off > p->region_bytes[R_SAVED]) {
		p->cache_more = off - p->region_bytes[R_SAVED];
		p->region_bytes[R_SAVED] = off;
	}
}

/* Of buffers: the first phase that writes and the last that reads. */
struct uses {
	uint8_t from, to;
};

static struct uses *
find_uses(const struct plan *p, const tensor_id *sh)
{
	const struct graph *g = p->graph;
	struct uses *u = xalloc(g->tensor.n * sizeof *u);

	for (tensor_id t = 0; t < g->tensor.n; t++)
		u[t].from = N_PHASES;
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (uint8_t ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < p->prog[s][ph].n; i++) {
				const struct op *o = &p->prog[s][ph].a[i].op;
				for (uint8_t a = 0; a < op_row(o->op)->nin + op_row(o->op)->nout;
				     a++) {
					struct uses *x = &u[root(sh, o->arg[a])];
					if (a < op_row(o->op)->nin)
						x->to = x->to < ph ? ph : x->to;
					else
						x->from = x->from > ph ? ph : x->from;
				}
			}
	return u;
}

static uint8_t
life_of(struct uses u)
{
	uint8_t l = 0;

	while (l < N_LIVES && (lives[l].from != u.from || lives[l].to != u.to))
		l++;
	return l;
}

/* How long the stream lives, and its gradient, which is saved where weights' come later. */
static void
find_stream_lives(struct plan *p, const struct uses *uses, const uint8_t *where)
{
	struct uses x = { FORWARD, BACKWARD };

	for (tensor_id t = 1; t < p->graph->tensor.n; t++)
		if (where[t] == 1 && uses[t].to > x.to)
			x.to = uses[t].to;
	p->stream_life = life_of(x);
	p->dstream_life = life_of((struct uses){ BACKWARD, (uint8_t)p->graph->last_phase });
}

/* What a phase reads of one before it is saved, for every layer of its kind. */
static void
place_saved(struct plan *p, const tensor_id *sh, uint8_t *where, const struct uses *uses)
{
	const struct graph *g = p->graph;
	const struct stage *st = &p->shard->stage[p->stage];
	uint64_t entries = 0;

	for (uint32_t c = 0; c < st->nchunks; c++)
		entries = st->chunk[c].n + 1u > entries ? st->chunk[c].n + 1u : entries;
	p->kept[p->stream_life].stride = size_mul(p->stream_stride, entries);
	if (p->dstream_life < N_LIVES)
		p->kept[p->dstream_life].stride = size_mul(p->stream_stride, entries);
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < p->prog[s][ph].n; i++) {
				const struct segment *seg = &g->seg.a[s];
				const struct op *o = &p->prog[s][ph].a[i].op;
				const struct op_row *r = op_row(o->op);
				for (uint8_t a = r->nin; a < r->nin + r->nout; a++) {
					tensor_id t = o->arg[a], ro = root(sh, t);
					if (g->tensor.a[t].class != T_ACT || where[ro] ||
					    !read_after(seg, ph, seg->ops[ph].n, t))
						continue;
					uint8_t l = life_of(uses[ro]);
					uint64_t bytes = shard_bytes(p->shard, t);
					uint64_t stride = size_align(bytes, PLAN_ALIGN);
					where[ro] = 3;
					p->place[ro] = (struct place){ PLACE, R_SAVED,
						p->kept[l].stride, bytes, stride, false, l };
					p->kept[l].stride = size_add(p->kept[l].stride,
					    size_mul(stride, plan_slot_layers(p, seg)));
				}
			}
	for (uint32_t l = 0; l < N_LIVES; l++) {
		p->kept[l].off = p->region_bytes[R_SAVED];
		p->region_bytes[R_SAVED] =
		    size_add(p->kept[l].off, size_mul(p->kept[l].stride, st->rooms[l]));
	}
	for (tensor_id t = 1; t < g->tensor.n; t++)
		if (where[t] == 3)
			p->place[t].off = size_add(p->place[t].off, p->kept[p->place[t].life].off);
}

void
plan_activations(struct plan *p)
{
	struct graph *g = p->graph;
	const struct stage *st = &p->shard->stage[p->stage];
	tensor_id *sh = xalloc(g->tensor.n * sizeof *sh);
	uint32_t *nth = xalloc(g->tensor.n * sizeof *nth);
	uint8_t *where =
	    xalloc(g->tensor.n); /* of roots: 0 scratch, 1 stream, 2 its gradient, 3 saved */
	uint64_t stream = shard_bytes(p->shard, g->seg.a[g->head].x);

	p->stream_stride = size_align(stream, PLAN_ALIGN);
	for (uint32_t c = 0; c < st->nchunks; c++)
		if (st->chunk[c].place)
			plan_take(p, R_COMM, stream);
	for (tensor_id t = 0; t < g->tensor.n; t++)
		sh[t] = t;
	for (uint32_t s = 0; s < g->seg.n; s++) {
		const struct segment *seg = &g->seg.a[s];
		tensor_id ends[] = { seg->x, seg->y, seg->dx, seg->dy };
		for (unsigned i = 0; i < LEN(ends); i++)
			if (ends[i])
				where[ends[i]] = (uint8_t)boundary(seg, ends[i]);
		join_in_place(p, seg, sh, where);
	}
	const struct uses *uses = find_uses(p, sh);
	find_stream_lives(p, uses, where);
	place_saved(p, sh, where, uses);
	place_caches(p);
	p->stream_off = p->kept[p->stream_life].off;
	p->dstream_off = p->dstream_life < N_LIVES ? p->kept[p->dstream_life].off
						   : plan_take(p, R_SCRATCH, stream);
	uint64_t base = p->region_bytes[R_SCRATCH];
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			place_scratch(p, s, ph, sh, where, nth, base);
	for (tensor_id t = 1; t < g->tensor.n; t++) {
		if (g->tensor.a[t].class != T_ACT || !plan_runs(p, g->tensor.a[t].seg))
			continue;
		tensor_id ro = root(sh, t);
		const struct segment *seg = &g->seg.a[g->tensor.a[t].seg];
		uint64_t bytes = shard_bytes(p->shard, t);
		if (where[ro] == 1)
			p->place[t] =
			    (struct place){ STREAM, R_SAVED, p->stream_off, bytes, p->stream_stride,
				    root(sh, seg->y) == ro && seg->nlayers, p->stream_life };
		else if (where[ro] == 2 && p->dstream_life < N_LIVES)
			p->place[t] = (struct place){ DSTREAM, R_SAVED, p->dstream_off, bytes,
				p->stream_stride, root(sh, seg->dy) == ro && seg->nlayers,
				p->dstream_life };
		else if (where[ro] == 2)
			p->place[t] = (struct place){ DSTREAM, R_SCRATCH, p->dstream_off, bytes, 0,
				false, 0 };
		else
			p->place[t] = p->place[ro];
	}
}
