/*
 * Kernels and places: each op gets a kernel instance, each tensor a fixed offset in the rank's
 * arena.
 *
 * Weights, gradients and optimizer state lie bucket by bucket, layer after layer, at the same
 * element offsets in every region. Buckets with one update follow one another: on one rank that is
 * one call. What a phase reads of one before it is saved by layer and microbatch; everything else
 * shares one scratch region, packed by lifetime within each program (largest first, lowest free
 * offset).
 */
#include <string.h>

#include "plan/plan.h"

enum { ALIGN = 256, ALIGN_ELEMS = 64 };

const char *const plan_region_names[N_REGIONS] = { "input", "statistics", "constants", "weights",
	"gradients", "optimizer state", "kept buffers", "saved activations", "scratch",
	"communication" };

uint64_t
plan_bytes(const struct plan *p, tensor_id t, uint64_t n)
{
	return target_bytes(p->target, p->graph->tensor.a[t].format, n);
}

/* ---- instances ---- */

/* An instance like that, or a new one; of one kernel and size, other constants have a number. */
static uint32_t
add_instance(struct plan *p, const struct instance *in, struct buf *name)
{
	uint32_t same = 0;

	for (uint32_t i = 1; i < p->inst->n; i++) {
		const struct instance *o = &p->inst->a[i];
		if (o->kernel != in->kernel || memcmp(o->param, in->param, sizeof in->param) ||
		    memcmp(o->format, in->format, sizeof in->format))
			continue;
		same++;
		if (!memcmp(o->floats, in->floats, sizeof in->floats))
			return i;
	}
	if (same)
		buf_printf(name, "_%u", same + 1);
	*PUSH(*p->inst) = *in;
	p->inst->a[p->inst->n - 1].name = name->s;
	return p->inst->n - 1;
}

/*
 * The launch's instance, of a gradient's kernel one that adds or one that stores, and its
 * workspace; equal kernels at equal sizes and constants are one instance. 0: there is no kernel.
 */
static uint32_t
select_kernel(struct plan *p, struct launch *st, bool stores)
{
	const struct op_row *r = op_row(st->op.op);
	const struct kernel_row *k = kernel_for(p->graph, p->target, &st->op);
	struct instance in = { .kernel = k };
	struct buf name = { 0 };
	struct sizes z;

	st->stream = kernel_stream(st->op.op, p->target);
	p->streams = p->streams > st->stream ? p->streams : st->stream + 1u;
	if (!k) {
		p->kernels &= runtime_call(st->op.op) && p->target->kind->comm;
		return 0;
	}
	const char *fault = op_bind(p->graph, &st->op, &z);
	if (fault)
		internal("%s", fault);
	uint64_t span = st->span / p->shard->mesh.size[st->op.group];
	if (st->span)
		z.v['n' - 'a'] = span;
	buf_puts(&name, r->name);
	for (const char *s = k->params; *s; s += strspn(s, " ")) {
		char c = *s++;
		if (c == '+') {
			buf_puts(&name, stores ? "_store" : "");
			in.param[in.nparams++] = !stores;
			continue;
		}
		if (*s == '=') {
			size_t n = strcspn(++s, " ");
			z.v[c - 'a'] = expr_eval(s, n, &z);
			z.bound[c - 'a'] = true;
			s += n;
		} else {
			buf_printf(&name, "%s%llu", in.nparams ? "x" : "_",
			    (unsigned long long)z.v[c - 'a']);
		}
		in.param[in.nparams++] = z.v[c - 'a'];
	}
	memcpy(in.floats, st->op.floats, r->nconsts * sizeof *in.floats);
	in.flops = (double)expr_eval(r->flops, strlen(r->flops), &z);
	for (uint8_t i = 0; i < r->nin + r->nout; i++) {
		const struct tensor *t = &p->graph->tensor.a[st->op.arg[i]];
		uint64_t n = st->span && i != 1 ? span : tensor_elems(t);
		in.format[i] = target_format(p->target, t->format);
		in.bytes += (double)format_bytes(in.format[i], n) *
			    (r->arg[i].accumulate && !stores ? 2 : 1);
		/* weights are rounded by the update's own kernel, from their masters */
		if (i >= r->nin && t->class == T_ACT && in.format[i] != t->format)
			in.round[i] = n;
	}
	if (*k->workspace)
		st->workspace_bytes = target_bytes(p->target, p->graph->format[ROLE_STAT],
		    expr_eval(k->workspace, strlen(k->workspace), &z));
	return add_instance(p, &in, &name);
}

/* Whether the kernel can store its gradient, or only adds to it. */
static bool
can_store(const struct plan *p, const struct launch *st)
{
	const struct kernel_row *k = kernel_for(p->graph, p->target, &st->op);

	/* a word "+", not the sign in an expression of sizes */
	for (const char *s = k ? k->params : ""; *s; s += strcspn(s, " "), s += strspn(s, " "))
		if (*s == '+')
			return true;
	return false;
}

/* The launch's instances: one that adds, and for the first of its gradient one that stores. */
static void
select_kernels(struct plan *p, struct launch *st)
{
	bool stores = st->first && can_store(p, st);

	if (!stores || p->graph->microbatches > 1)
		st->inst = select_kernel(p, st, false);
	if (stores)
		st->stores = select_kernel(p, st, true);
	if (!st->inst)
		st->inst = st->stores;
}

bool
plan_uses(const struct plan *p, const struct library *l)
{
	const struct target_kind *k = p->target->kind;
	bool uses = k->library == l || (k->comm_library == l && p->shard->mesh.size[OM_WORLD] > 1);

	for (uint32_t i = 1; i < p->inst->n; i++)
		uses |= p->inst->a[i].kernel->library == l;
	return uses && *l->name;
}

/* Decode is part of a trainer if its target has a kernel for each op, and one rank has it all. */
static bool
can_decode(const struct plan *p)
{
	const struct graph *g = p->graph;

	for (uint32_t s = g->decode; s < g->seg.n; s++)
		for (uint32_t i = 0; i < g->seg.a[s].ops[FORWARD].n; i++)
			if (!kernel_for(g, p->target, &g->seg.a[s].ops[FORWARD].a[i]))
				return false;
	return p->shard->mesh.size[OM_WORLD] == 1;
}

/* ---- what of the model is on the stage ---- */

/* How many layers of a kind the chunk with the most has: so many does a slot have room for. */
static uint64_t
slot_layers(const struct plan *p, const struct segment *seg)
{
	const struct stage *st = &p->shard->stage[p->stage];
	uint64_t most = 0;

	for (uint32_t c = 0; c < st->nchunks; c++) {
		uint64_t n = chunk_layers(&st->chunk[c], seg);
		most = n > most ? n : most;
	}
	return seg->nlayers ? most : 1;
}

/* Whether the stage runs the segment. */
static bool
present(const struct plan *p, uint32_t seg)
{
	const struct graph *g = p->graph;
	const struct stage *st = &p->shard->stage[p->stage];

	if (seg >= g->decode)
		return p->decode;
	if (seg == g->embed)
		return st->embed;
	if (seg == g->head || seg == g->eval)
		return st->head;
	return slot_layers(p, &g->seg.a[seg]) != 0;
}

/* Where the stage's layers stand among those of their kind, and in their chunk. */
static void
number_layers(struct plan *p)
{
	const struct graph *g = p->graph;
	const struct stage *st = &p->shard->stage[p->stage];
	uint32_t *here = xalloc(g->seg.n * sizeof *here);

	p->index = xalloc(g->n_layers * sizeof *p->index);
	p->saved_index = xalloc(g->n_layers * sizeof *p->saved_index);
	p->entry = xalloc((g->n_layers + 1u) * sizeof *p->entry);
	for (uint32_t c = 0; c < st->nchunks; c++) {
		uint32_t *saved = xalloc(g->seg.n * sizeof *saved);
		for (uint32_t i = 0; i < st->chunk[c].n; i++) {
			uint32_t l = st->chunk[c].first + i, k = g->kind_of[l];
			p->index[l] = here[k]++;
			p->saved_index[l] = saved[k]++;
			p->entry[l] = i;
		}
		if (st->chunk[c].head) /* what it reads is the last layer's y */
			p->entry[g->n_layers] = st->chunk[c].n;
	}
}

/* ---- weights, gradients, state, inputs: whole regions ---- */

static uint64_t
take(struct plan *p, enum region r, uint64_t bytes)
{
	uint64_t off = p->region_bytes[r];

	p->region_bytes[r] = size_align(size_add(off, bytes), ALIGN);
	return off;
}

/* Where a parameter's elements begin in the regions of weights and gradients, and of a state. */
struct home {
	uint64_t first, state;
	uint32_t bucket; /* + 1; 0: it is not here */
	uint8_t states;  /* of it that have a place */
};

/*
 * The parameters of a segment that this group has and ranks share become a bucket at b's place,
 * if there are any. Parts of a merged tensor have no padding between them.
 */
static bool
fill_bucket(struct plan *p, struct bucket *b, uint32_t s, uint32_t group, struct home *home)
{
	const struct graph *g = p->graph;

	for (tensor_id i = g->seg.a[s].first; i < g->tensor.n && g->tensor.a[i].seg <= s; i++) {
		const struct tensor *t = &g->tensor.a[i];
		if (t->class != T_PARAM || t->seg != s || t->param_group != group ||
		    shard_group(p->shard, t->copies) != b->group || !plan_layers(p, i) ||
		    home[i].bucket)
			continue;
		const struct part_list all = tensor_parts(g, t->whole ? t->whole : i);
		for (uint8_t k = 0; all.a[k]; k++) {
			home[all.a[k]] = (struct home){ size_add(b->first, b->elems),
				size_add(b->state, b->elems), p->bucket.n + 1, 0 };
			b->elems = size_add(b->elems, tensor_elems(&g->tensor.a[all.a[k]]));
		}
		b->layers = plan_layers(p, i);
		b->elems = size_align(b->elems, ALIGN_ELEMS);
	}
	b->elems = size_align(b->elems, size_mul(p->shard->mesh.size[b->group], ALIGN_ELEMS));
	return b->elems;
}

/* Parameters, their gradients and states. */
static void
place_params(struct plan *p, struct home *home, uint8_t *nth)
{
	const struct graph *g = p->graph;

	for (tensor_id j = 1; j < g->tensor.n; j++) {
		const struct tensor *u = &g->tensor.a[j];
		/* a merged tensor lies where its first part does */
		tensor_id i = u->class == T_MERGED ? u->part[0] : u->param ? u->param : j;
		if (!home[i].bucket)
			continue;
		const struct bucket *b = &p->bucket.a[home[i].bucket - 1];
		uint64_t bytes = shard_bytes(p->shard, j);
		enum region r = u->class == T_GRAD    ? R_GRAD
				: u->class == T_STATE ? R_STATE
						      : R_WEIGHT;
		uint64_t first = r == R_STATE ? home[i].state : home[i].first;
		uint64_t parts = r == R_STATE ? p->shard->mesh.size[b->group] : 1;
		p->place[j] = (struct place){ PLACE, r, plan_bytes(p, j, first), bytes,
			plan_bytes(p, j, b->elems / parts), false, 0 };
		if (r == R_STATE)
			nth[j] = home[i].states++;
	}
}

/* Offsets inside regions, made absolute at the end. */
static void
place_resident(struct plan *p)
{
	struct graph *g = p->graph;
	uint64_t elems = 0, state = 0;
	struct home *home = xalloc(g->tensor.n * sizeof *home);
	uint8_t *nth = xalloc(g->tensor.n); /* of a parameter's states */

	for (uint32_t k = 0; k < g->param_group.n; k++)
		for (enum om_group r = 0; r < OM_N_GROUPS; r++)
			for (uint32_t s = g->embed; s <= g->head; s++) {
				struct bucket b = { r, 0, elems, 0, state };
				if (!fill_bucket(p, &b, s, k, home))
					continue;
				uint64_t n = size_mul(b.elems, b.layers);
				elems = size_add(elems, n);
				state = size_add(state, n / p->shard->mesh.size[r]);
				*PUSH(p->bucket) = b;
			}
	place_params(p, home, nth);
	p->region_bytes[R_WEIGHT] =
	    size_align(target_bytes(p->target, g->format[ROLE_WEIGHT], elems), ALIGN);
	p->region_bytes[R_GRAD] =
	    size_align(target_bytes(p->target, g->format[ROLE_GRAD], elems), ALIGN);
	/* one after the other: first all masters, then all m, then all v */
	uint64_t after[MAX_ARGS] = { 0 }; /* where those of the states after the nth begin */
	for (tensor_id i = 1; i < g->tensor.n; i++)
		if (g->tensor.a[i].class == T_STATE && plan_layers(p, i))
			after[nth[i]] = size_align(plan_bytes(p, i, state), ALIGN);
	for (unsigned k = 1; k < LEN(after); k++)
		after[k] = size_add(after[k], after[k - 1]);
	for (tensor_id i = 1; i < g->tensor.n; i++) {
		const struct tensor *t = &g->tensor.a[i];
		struct place *pl = &p->place[i];
		uint64_t layers = plan_layers(p, i);
		if (!layers)
			continue;
		if (t->class == T_STATE) {
			pl->off = size_add(pl->off, nth[i] ? after[nth[i] - 1] : 0);
		} else if (t->class == T_INPUT || t->class == T_STAT || t->class == T_CONST ||
			   t->class == T_BUFFER) {
			uint64_t bytes = shard_bytes(p->shard, i);
			enum region r = t->class == T_INPUT    ? R_INPUT
					: t->class == T_STAT   ? R_STAT
					: t->class == T_BUFFER ? R_BUFFER
							       : R_CONST;
			*pl = (struct place){ PLACE, r, take(p, r, size_mul(bytes, layers)), bytes,
				bytes, false, 0 };
		}
	}
	p->region_bytes[R_STATE] = after[LEN(after) - 1];
}

/* ---- activations ---- */

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
	uint64_t off = base, bytes = size_align(t->bytes, ALIGN);
	bool moved = true;

	while (moved) {
		moved = false;
		for (uint32_t i = 0; i < ndone; i++) {
			const struct buffer *o = &done[i];
			uint64_t end = o->off + size_align(o->bytes, ALIGN);
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
		uint64_t end = size_align(b->off + b->bytes, ALIGN);
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
		uint64_t stride = size_align(bytes, ALIGN),
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
					uint64_t stride = size_align(bytes, ALIGN);
					where[ro] = 3;
					p->place[ro] = (struct place){ PLACE, R_SAVED,
						p->kept[l].stride, bytes, stride, false, l };
					p->kept[l].stride = size_add(p->kept[l].stride,
					    size_mul(stride, slot_layers(p, seg)));
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

static void
place_activations(struct plan *p)
{
	struct graph *g = p->graph;
	const struct stage *st = &p->shard->stage[p->stage];
	tensor_id *sh = xalloc(g->tensor.n * sizeof *sh);
	uint32_t *nth = xalloc(g->tensor.n * sizeof *nth);
	uint8_t *where =
	    xalloc(g->tensor.n); /* of roots: 0 scratch, 1 stream, 2 its gradient, 3 saved */
	uint64_t stream = shard_bytes(p->shard, g->seg.a[g->head].x);

	p->stream_stride = size_align(stream, ALIGN);
	for (uint32_t c = 0; c < st->nchunks; c++)
		if (st->chunk[c].place)
			take(p, R_COMM, stream);
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
	p->dstream_off =
	    p->dstream_life < N_LIVES ? p->kept[p->dstream_life].off : take(p, R_SCRATCH, stream);
	uint64_t base = p->region_bytes[R_SCRATCH];
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			place_scratch(p, s, ph, sh, where, nth, base);
	for (tensor_id t = 1; t < g->tensor.n; t++) {
		if (g->tensor.a[t].class != T_ACT || !present(p, g->tensor.a[t].seg))
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

/* ---- programs ---- */

const struct bucket *
plan_bucket(const struct plan *p, tensor_id t, uint64_t *at)
{
	const struct place *pl = &p->place[t];
	/* regions begin at 0 until all are placed */
	uint64_t first = (pl->off - p->region_off[pl->region]) / plan_bytes(p, t, 1);

	for (uint32_t i = 0; i < p->bucket.n; i++) {
		const struct bucket *b = &p->bucket.a[i];
		*at = first - b->first;
		if ((pl->region == R_WEIGHT || pl->region == R_GRAD) && *at < b->elems)
			return b;
	}
	return NULL;
}

/* Whether a launch of the update covers the op's bucket too, or goes on with it. */
static bool
joins(const struct plan *p, struct launch *run, const struct op *next)
{
	uint64_t at;
	const struct bucket *first = plan_bucket(p, run->op.arg[0], &at);
	const struct bucket *b = plan_bucket(p, next->arg[0], &at);

	if (!first || !b || run->op.op != next->op || run->op.group != next->group ||
	    memcmp(run->op.floats, next->floats, sizeof next->floats))
		return false;
	/* ranks have parts of one bucket, not of a run of them */
	if (p->shard->mesh.size[next->group] > 1 ? b != first
						 : b < first || b->first - first->first > run->span)
		return false;
	if (b->first - first->first == run->span)
		run->span += b->elems * b->layers;
	run->tensors++;
	return true;
}

/*
 * A launch of the update: of a whole bucket, all layers at once if no ranks share it. In a layer,
 * where its gradients are summed, it is of that one.
 */
static struct launch
update_launch(const struct plan *p, uint32_t s, const struct op *o)
{
	uint64_t at, n = tensor_elems(&p->graph->tensor.a[o->arg[0]]);
	const struct bucket *b = plan_bucket(p, o->arg[0], &at);
	struct launch l = {
		.op = *o, .span = size_mul(n, plan_layers(p, o->arg[0])), .layers = 1, .tensors = 1
	};

	if (!b)
		return l;
	if (at)
		internal(
		    "%s of a bucket does not begin with its first tensor", op_row(o->op)->name);
	bool shared = p->shard->mesh.size[o->group] > 1;
	l.span = shared ? b->elems : b->elems * b->layers;
	l.layers = shared && s == p->graph->update ? b->layers : 1;
	return l;
}

/*
 * In a microbatch's phases after the first the head comes before the layers, and they before the
 * embedding, whatever the stages: of a gradient that several write, the first launch in that order.
 */
static void
mark_first(struct plan *p)
{
	struct graph *g = p->graph;
	bool *written = xalloc(g->tensor.n * sizeof *written);

	for (uint32_t n = g->head - g->embed + 1, k = 0; k < n * (N_PHASES - 1); k++) {
		struct program *prog = &p->prog[g->head - k % n][BACKWARD + k / n];
		for (uint32_t i = 0; i < prog->n; i++)
			for (uint8_t a = 0; a < MAX_ARGS; a++) {
				tensor_id t = prog->a[i].op.arg[a];
				if (g->tensor.a[t].class != T_GRAD)
					continue;
				prog->a[i].first = !written[t];
				written[t] = true;
			}
	}
}

/* An instance is called in a segment, for people. */
static void
count_call(struct plan *p, uint32_t inst, uint32_t s, const struct launch *st)
{
	struct instance *in = &p->inst->a[inst];
	const struct segment *seg = &p->graph->seg.a[s];

	if (!in->used_by.s || !strstr(in->used_by.s, seg->name))
		buf_printf(&in->used_by, "%s%s", in->used_by.n ? ", " : "", seg->name);
	in->calls += (uint32_t)(seg->nlayers ? stage_kind(&p->shard->stage[p->stage], seg)
				: st->span   ? st->layers
					     : 1);
}

/*
 * One step an op; updates of neighbouring buckets with the same constants are one step over their
 * run.
 */
static void
make_programs(struct plan *p)
{
	struct graph *g = p->graph;

	p->prog = xalloc(g->seg.n * sizeof *p->prog);
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < g->seg.a[s].ops[ph].n && present(p, s); i++) {
				const struct op *o = &g->seg.a[s].ops[ph].a[i];
				struct program *prog = &p->prog[s][ph];
				if (!op_row(o->op)->flat)
					*PUSH(*prog) = (struct launch){ .op = *o };
				else if (plan_layers(p, o->arg[0]) && /* not on another stage */
					 !(prog->n && joins(p, &prog->a[prog->n - 1], o)))
					*PUSH(*prog) = update_launch(p, s, o);
			}
	mark_first(p);
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < p->prog[s][ph].n; i++) {
				struct launch *st = &p->prog[s][ph].a[i];
				select_kernels(p, st);
				count_call(p, st->inst, s, st);
				if (st->stores && st->stores != st->inst)
					count_call(p, st->stores, s, st);
			}
}

static void
plan_stage(struct plan *p)
{
	struct graph *g = p->graph;
	uint64_t off = 0;

	number_layers(p);
	p->place = xalloc(g->tensor.n * sizeof *p->place);
	p->kernels = kernel_written_for(p->target);
	p->decode = can_decode(p);
	place_resident(p);
	make_programs(p);
	place_activations(p);
	for (int r = 0; r < N_REGIONS; r++) {
		p->region_off[r] = off;
		off = size_add(off, p->region_bytes[r]);
	}
	p->arena_bytes = off;
	for (tensor_id t = 1; t < g->tensor.n; t++)
		p->place[t].off += p->region_off[p->place[t].region];
	for (uint32_t k = 0; k < g->seg.n; k++)
		for (int ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < p->prog[k][ph].n; i++)
				p->prog[k][ph].a[i].workspace += p->region_off[R_SCRATCH];
	p->stream_off += p->region_off[R_SAVED];
	p->dstream_off += p->region_off[p->dstream_life < N_LIVES ? R_SAVED : R_SCRATCH];
	p->hop_off = p->region_off[R_COMM];
}

struct plan *
plan(struct shard *s)
{
	uint32_t n = (uint32_t)s->mesh.size[OM_PIPELINE], streams = 1;
	struct plan *all = xalloc(n * sizeof *all);
	struct instances *inst = xalloc(sizeof *inst);

	PUSH(*inst)->name = "none";
	for (uint32_t i = 0; i < n; i++) {
		all[i].shard = s;
		all[i].graph = s->graph;
		all[i].target = s->target;
		all[i].stage = i;
		all[i].n_stages = n;
		all[i].inst = inst;
		all[i].streams = 1;
		plan_stage(&all[i]);
		streams = all[i].streams > streams ? all[i].streams : streams;
	}
	for (uint32_t i = 0; i < n; i++)
		all[i].streams = streams;
	plan_events(all, n);
	return all;
}
