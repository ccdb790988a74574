/*
 * Kernels and places: each op gets a kernel instance, each tensor a fixed offset in the rank's
 * arena.
 *
 * Weights, gradients and optimizer state lie tensor by tensor in the order of their groups, all
 * layers of a tensor together, at the same element offsets in every region: an update is one call a
 * group. What the backward pass reads is saved by layer and slot; everything else shares one
 * scratch region, packed by lifetime within each program (largest first, lowest free offset).
 */
#include <string.h>

#include "olmogen.h"

enum { ALIGN = 256, ALIGN_ELEMS = 64 };

const char *const region_names[N_REGIONS] = { "input", "statistics", "constants", "weights",
	"gradients", "optimizer state", "kept buffers", "saved activations", "scratch",
	"communication" };

static const struct kernel_row kernel_rows[] = {
#define KERNEL(op, target, file, macro, params, ws) { OP_##op, #target, file, #macro, params, ws },
#define NEEDS(...)
#define ARCH(...)
#include "kernel.def"
#undef KERNEL
#undef NEEDS
#undef ARCH
};

static const struct {
	const char *target, *arch;
} archs[] = {
#define KERNEL(...)
#define NEEDS(...)
#define ARCH(target, arch) { #target, arch },
#include "kernel.def"
#undef KERNEL
#undef NEEDS
#undef ARCH
};

static const struct need {
	enum op_id op;
	const char *target;
	char letter;
	enum { MULTIPLE_OF, AT_MOST } rule;
	uint64_t value;
} needs[] = {
#define KERNEL(...)
#define NEEDS(op, target, letter, rule, value) { OP_##op, #target, letter, rule, value },
#define ARCH(...)
#include "kernel.def"
#undef KERNEL
#undef NEEDS
#undef ARCH
};

/* Kernels that are C run anywhere. */
static bool
written_for(const struct target_row *t)
{
	for (uint32_t i = 0; i < LEN(archs); i++)
		if (t->arch && !strcmp(archs[i].target, t->kernels) &&
		    !strcmp(archs[i].arch, t->arch))
			return true;
	return !t->arch;
}

/* Bytes of a format itself, wherever it lies. */
static uint64_t
width(const char *format)
{
	return strstr(format, "64") ? 8 : strstr(format, "16") ? 2 : 4;
}

uint64_t
format_bytes(const struct object *trainer, const char *format)
{
	uint64_t least = target_find(spec_str(trainer, F_trainer_target))->least_bytes;

	return width(format) > least ? width(format) : least;
}

const char *
dtype_format(const struct plan *p, enum dtype d)
{
	const struct object *pr = spec_obj(p->graph->trainer, F_trainer_precision);
	const char *weights = spec_str(pr, F_precision_weights);

	switch (d) {
	case DT_ACT:
		return weights;
	case DT_STAT:
		return strcmp(weights, "bf16") ? weights : "fp32";
	case DT_GRAD:
		return spec_str(pr, F_precision_grads);
	case DT_OPT:
		return spec_str(pr, F_precision_optimizer);
	case DT_I32:
		return "int32";
	case DT_I64:
		return "int64";
	default:
		return "fp64";
	}
}

uint64_t
dtype_bytes(const struct plan *p, enum dtype d)
{
	return format_bytes(p->graph->trainer, dtype_format(p, d));
}

/* ---- instances ---- */

const struct kernel_row *
kernel_for(enum op_id op, const char *target)
{
	for (uint32_t i = 0; i < LEN(kernel_rows); i++)
		if (kernel_rows[i].op == op && !strcmp(kernel_rows[i].target, target))
			return &kernel_rows[i];
	return NULL;
}

/*
 * Fills in the step's instance and workspace; equal kernels at equal sizes and constants are one
 * instance.
 */
static void
select_kernel(struct plan *p, struct step *st)
{
	const struct op_row *r = op_row(st->op.op);
	const struct kernel_row *k = kernel_for(st->op.op, p->target->kernels);
	struct instance in = { .kernel = k };
	struct buf name = { 0 };
	struct sizes z;

	if (!k) {
		p->kernels = false;
		return;
	}
	const char *fault = op_bind(p->graph, &st->op, &z);
	if (fault)
		internal("%s", fault);
	if (st->span)
		z.v['n' - 'a'] = st->span;
	buf_puts(&name, r->name);
	for (const char *s = k->params; *s; s += strspn(s, " ")) {
		char c = *s++;
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
		uint64_t n = st->span && i != 1 ? st->span : tensor_elems(t);
		in.bytes +=
		    (double)mul64(n, dtype_bytes(p, t->dtype)) * (r->arg[i].accumulate ? 2 : 1);
		/* weights are rounded by the update's own kernel, from their masters */
		if (i >= r->nin && t->class == T_ACT &&
		    dtype_bytes(p, t->dtype) > width(dtype_format(p, t->dtype)))
			in.round[i] = n;
	}
	if (*k->workspace)
		st->workspace_bytes = mul64(
		    expr_eval(k->workspace, strlen(k->workspace), &z), dtype_bytes(p, DT_STAT));
	uint32_t same = 0;
	for (uint32_t i = 1; i < p->inst.n; i++) {
		const struct instance *o = &p->inst.a[i];
		if (o->kernel != k || memcmp(o->param, in.param, sizeof in.param))
			continue;
		same++;
		if (!memcmp(o->floats, in.floats, sizeof in.floats)) {
			st->inst = i;
			return;
		}
	}
	if (same)
		buf_printf(&name, "_%u", same + 1);
	in.name = name.s;
	*PUSH(p->inst) = in;
	st->inst = p->inst.n - 1;
}

/* Decode is part of a trainer if its target has a kernel for each op, and one rank has it all. */
static bool
can_decode(const struct plan *p)
{
	const struct graph *g = p->graph;

	for (uint32_t s = g->decode; s < g->seg.n; s++)
		for (uint32_t i = 0; i < g->seg.a[s].ops[FORWARD].n; i++)
			if (!kernel_for(g->seg.a[s].ops[FORWARD].a[i].op, p->target->kernels))
				return false;
	return p->shard->mesh.world == 1;
}

/* Whether the trainer has the segment, and the tensors that it owns. */
static bool
present(const struct plan *p, uint32_t seg)
{
	return p->decode || seg < p->graph->decode;
}

/* ---- weights, gradients, state, inputs: whole regions ---- */

static uint64_t
take(struct plan *p, enum region r, uint64_t bytes)
{
	uint64_t off = p->region_bytes[r];

	p->region_bytes[r] = align64(add64(off, bytes), ALIGN);
	return off;
}

/* Offsets inside regions, made absolute at the end. */
static void
place_resident(struct plan *p)
{
	struct graph *g = p->graph;
	uint64_t elems = 0;

	for (uint32_t k = 0; k < g->group.n; k++)
		for (uint32_t i = 1; i < g->tensor.n; i++) {
			struct tensor *t = &g->tensor.a[i];
			if (t->class != T_PARAM || t->group != k)
				continue;
			uint64_t n = tensor_elems(t);
			uint64_t states = 0;
			for (uint32_t j = 1; j < g->tensor.n; j++) {
				struct tensor *u = &g->tensor.a[j];
				if (j != i && u->param != i)
					continue;
				uint64_t size = dtype_bytes(p, u->dtype);
				enum region r = u->class == T_PARAM  ? R_WEIGHT
						: u->class == T_GRAD ? R_GRAD
								     : R_STATE;
				/*
				 * states one after the other: first all masters, then all m, then
				 * all v
				 */
				p->place[j] = (struct place){ PLACE, r, mul64(elems, size),
					mul64(n, size), mul64(n, size), false };
				if (r == R_STATE)
					p->place[j].off |= (uint64_t)states++ << 56;
			}
			elems = align64(add64(elems, mul64(n, tensor_layers(g, t))), ALIGN_ELEMS);
		}
	p->region_bytes[R_WEIGHT] = align64(mul64(elems, dtype_bytes(p, DT_ACT)), ALIGN);
	p->region_bytes[R_GRAD] = align64(mul64(elems, dtype_bytes(p, DT_GRAD)), ALIGN);
	uint64_t one = align64(mul64(elems, dtype_bytes(p, DT_OPT)), ALIGN), nstates = 0;
	for (uint32_t i = 1; i < g->tensor.n; i++) {
		struct tensor *t = &g->tensor.a[i];
		struct place *pl = &p->place[i];
		if (!present(p, t->seg))
			continue;
		if (t->class == T_STATE) {
			uint64_t nth = pl->off >> 56;
			pl->off = add64(pl->off & UINT64_MAX >> 8, mul64(nth, one));
			nstates = nth + 1 > nstates ? nth + 1 : nstates;
		} else if (t->class == T_INPUT || t->class == T_STAT || t->class == T_CONST ||
			   t->class == T_BUFFER) {
			uint64_t bytes = mul64(tensor_elems(t), dtype_bytes(p, t->dtype));
			enum region r = t->class == T_INPUT    ? R_INPUT
					: t->class == T_STAT   ? R_STAT
					: t->class == T_BUFFER ? R_BUFFER
							       : R_CONST;
			*pl =
			    (struct place){ PLACE, r, take(p, r, mul64(bytes, tensor_layers(g, t))),
				    bytes, bytes, false };
		}
	}
	p->region_bytes[R_STATE] = mul64(one, nstates);
}

/* ---- activations ---- */

/* Tensors that share one buffer because ops work in place, and how long it lives. */
struct share {
	tensor_id root;
	int32_t first, last; /* op index in its program */
};

static tensor_id
root(struct share *sh, tensor_id t)
{
	while (sh[t].root != t)
		t = sh[t].root;
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

/* Buffers that others see: the residual stream and its gradient. */
static int
boundary(const struct segment *seg, tensor_id t)
{
	return t == seg->x || t == seg->y ? 1 : t == seg->dx || t == seg->dy ? 2 : 0;
}

/* Joins outputs with the inputs they may overwrite ("out:in" of op.def). */
static void
join_in_place(const struct plan *p, const struct segment *seg, struct share *sh, uint8_t *bound)
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
				    read_after(seg, ph, i, ti) ||
				    tensor_elems(&g->tensor.a[ti]) *
					    dtype_bytes(p, g->tensor.a[ti].dtype) !=
					tensor_elems(&g->tensor.a[to]) *
					    dtype_bytes(p, g->tensor.a[to].dtype) ||
				    (bound[ro] && bound[ri] && bound[ro] != bound[ri]))
					continue;
				joined |= 1u << out;
				sh[ro].root = ri;
				bound[ri] |= bound[ro];
			}
		}
}

/*
 * Lowest offset at which bytes fit next to the buffers already placed that live at the same time.
 */
static uint64_t
fit(const struct place *place, const struct share *sh, const tensor_id *done, uint32_t ndone,
    tensor_id t, uint64_t base)
{
	uint64_t off = base, bytes = align64(place[t].bytes, ALIGN);
	bool moved = true;

	while (moved) {
		moved = false;
		for (uint32_t i = 0; i < ndone; i++) {
			const struct place *o = &place[done[i]];
			uint64_t end = o->off + align64(o->bytes, ALIGN);
			if (sh[done[i]].first <= sh[t].last && sh[t].first <= sh[done[i]].last &&
			    off < end && o->off < off + bytes) {
				off = end;
				moved = true;
			}
		}
	}
	return off;
}

/* Scratch of one program: tensors that are neither saved nor boundary, and kernels' workspaces. */
static void
place_scratch(
    struct plan *p, uint32_t s, int ph, struct share *sh, const uint8_t *where, uint64_t base)
{
	struct graph *g = p->graph;
	struct program *prog = &p->prog[s][ph];
	uint32_t n = g->tensor.n + prog->n, nlist = 0;
	struct place *place = xalloc(n * sizeof *place);
	struct share *life = xalloc(n * sizeof *life);
	tensor_id *list = xalloc(n * sizeof *list);

	memcpy(place, p->place, g->tensor.n * sizeof *place);
	memcpy(life, sh, g->tensor.n * sizeof *life);
	for (tensor_id t = 1; t < g->tensor.n; t++)
		life[t].first = INT32_MAX, life[t].last = -1;
	for (uint32_t i = 0; i < prog->n; i++) {
		const struct op *o = &prog->a[i].op;
		const struct op_row *r = op_row(o->op);
		for (uint8_t a = 0; a < r->nin + r->nout; a++) {
			tensor_id t = o->arg[a];
			if (g->tensor.a[t].class != T_ACT || where[root(sh, t)])
				continue;
			t = root(sh, t);
			if (life[t].last < 0) {
				list[nlist++] = t;
				life[t].first = (int32_t)i;
			}
			life[t].last = (int32_t)i;
			uint64_t bytes =
			    tensor_elems(&g->tensor.a[t]) * dtype_bytes(p, g->tensor.a[t].dtype);
			place[t] = (struct place){ PLACE, R_SCRATCH, 0, bytes, 0, false };
		}
		if (prog->a[i].workspace_bytes) {
			tensor_id w = g->tensor.n + i;
			list[nlist++] = w;
			life[w].first = life[w].last = (int32_t)i;
			place[w].bytes = prog->a[i].workspace_bytes;
		}
	}
	/*
	 * largest first; ties by first use, then by number: the order must not depend on the sort
	 */
	for (uint32_t i = 1; i < nlist; i++)
		for (uint32_t j = i; j > 0; j--) {
			tensor_id a = list[j - 1], b = list[j];
			if (place[a].bytes > place[b].bytes ||
			    (place[a].bytes == place[b].bytes &&
				(life[a].first < life[b].first ||
				    (life[a].first == life[b].first && a < b))))
				break;
			list[j - 1] = b;
			list[j] = a;
		}
	for (uint32_t i = 0; i < nlist; i++) {
		tensor_id t = list[i];
		place[t].off = fit(place, life, list, i, t, base);
		uint64_t end = align64(place[t].off + place[t].bytes, ALIGN);
		if (end > p->region_bytes[R_SCRATCH])
			p->region_bytes[R_SCRATCH] = end;
		if (t < g->tensor.n)
			p->place[t] = place[t];
		else
			prog->a[t - g->tensor.n].workspace = place[t].off;
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
	uint64_t off = mul64(p->stream_stride, g->n_layers + 1);

	for (tensor_id t = 1; t < g->tensor.n; t++) {
		const struct tensor *x = &g->tensor.a[t];
		if (x->class != T_CACHE || !present(p, x->seg))
			continue;
		uint64_t bytes = mul64(tensor_elems(x), dtype_bytes(p, x->dtype));
		uint64_t stride = align64(bytes, ALIGN), all = mul64(stride, tensor_layers(g, x));
		p->place[t] = (struct place){ PLACE, R_SAVED, off, bytes, stride, false };
		off = add64(off, all);
		p->cache_bytes = add64(p->cache_bytes, all);
	}
	if (p->cache_bytes && off > p->region_bytes[R_SAVED]) {
		p->cache_more = off - p->region_bytes[R_SAVED];
		p->region_bytes[R_SAVED] = off;
	}
}

static void
place_activations(struct plan *p)
{
	struct graph *g = p->graph;
	struct share *sh = xalloc(g->tensor.n * sizeof *sh);
	uint8_t *where =
	    xalloc(g->tensor.n); /* of roots: 0 scratch, 1 stream, 2 its gradient, 3 saved */
	const struct tensor *x = &g->tensor.a[g->seg.a[g->head].x];
	uint64_t stream = mul64(tensor_elems(x), dtype_bytes(p, DT_ACT));
	uint64_t saved = 0;

	p->stream_stride = align64(stream, ALIGN);
	saved = mul64(p->stream_stride, g->n_layers + 1);
	for (tensor_id t = 0; t < g->tensor.n; t++)
		sh[t].root = t;
	for (uint32_t s = 0; s < g->seg.n; s++) {
		const struct segment *seg = &g->seg.a[s];
		tensor_id ends[] = { seg->x, seg->y, seg->dx, seg->dy };
		for (unsigned i = 0; i < LEN(ends); i++)
			if (ends[i])
				where[ends[i]] = (uint8_t)boundary(seg, ends[i]);
		join_in_place(p, seg, sh, where);
	}
	/* what the backward pass reads of the forward pass is saved, for every layer of its kind */
	for (uint32_t s = 0; s < g->seg.n; s++) {
		const struct segment *seg = &g->seg.a[s];
		for (uint32_t i = 0; i < seg->ops[FORWARD].n; i++) {
			const struct op_row *r = op_row(seg->ops[FORWARD].a[i].op);
			for (uint8_t a = r->nin; a < r->nin + r->nout; a++) {
				tensor_id t = seg->ops[FORWARD].a[i].arg[a], ro = root(sh, t);
				if (g->tensor.a[t].class != T_ACT || where[ro] ||
				    !read_after(seg, FORWARD, seg->ops[FORWARD].n, t))
					continue;
				where[ro] = 3;
				uint64_t bytes = mul64(tensor_elems(&g->tensor.a[t]),
				    dtype_bytes(p, g->tensor.a[t].dtype));
				uint64_t stride = align64(bytes, ALIGN);
				p->place[ro] =
				    (struct place){ PLACE, R_SAVED, saved, bytes, stride, false };
				saved =
				    add64(saved, mul64(stride, tensor_layers(g, &g->tensor.a[t])));
			}
		}
	}
	p->slot_stride = saved;
	p->region_bytes[R_SAVED] = mul64(saved, p->slots);
	place_caches(p);
	p->dstream_off = take(p, R_SCRATCH, stream);
	uint64_t base = p->region_bytes[R_SCRATCH];
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			place_scratch(p, s, ph, sh, where, base);
	for (tensor_id t = 1; t < g->tensor.n; t++) {
		if (g->tensor.a[t].class != T_ACT || !present(p, g->tensor.a[t].seg))
			continue;
		tensor_id ro = root(sh, t);
		const struct segment *seg = &g->seg.a[g->tensor.a[t].seg];
		uint64_t bytes =
		    mul64(tensor_elems(&g->tensor.a[t]), dtype_bytes(p, g->tensor.a[t].dtype));
		if (where[ro] == 1) {
			bool next = root(sh, seg->y) == ro && seg->nlayers;
			p->place[t] =
			    (struct place){ STREAM, R_SAVED, 0, bytes, p->stream_stride, next };
		} else if (where[ro] == 2) {
			p->place[t] =
			    (struct place){ DSTREAM, R_SCRATCH, p->dstream_off, bytes, 0, false };
		} else {
			p->place[t] = p->place[ro];
		}
	}
}

/* ---- programs ---- */

static bool
adjacent(const struct plan *p, const struct step *run, const struct op *next)
{
	const struct graph *g = p->graph;
	const struct op_row *r = op_row(next->op);

	if (run->op.op != next->op || memcmp(run->op.floats, next->floats, sizeof next->floats))
		return false;
	for (uint8_t i = 0; i < r->nin + r->nout; i++) {
		const struct place *a = &p->place[run->op.arg[i]], *b = &p->place[next->arg[i]];
		uint64_t size = dtype_bytes(p, g->tensor.a[next->arg[i]].dtype);
		if (g->tensor.a[next->arg[i]].class != T_INPUT &&
		    a->off + align64(run->span, ALIGN_ELEMS) * size != b->off)
			return false;
	}
	return true;
}

/*
 * One step an op; updates of neighbouring tensors with the same constants are one step over their
 * run, unless they work in rows (have ints), which the padding between tensors would shift.
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
				bool flat = op_flat(o->op);
				const struct tensor *t = &g->tensor.a[o->arg[0]];
				uint64_t n = flat ? mul64(tensor_elems(t), tensor_layers(g, t)) : 0;
				if (flat && prog->n && !op_row(o->op)->nints &&
				    adjacent(p, &prog->a[prog->n - 1], o)) {
					struct step *run = &prog->a[prog->n - 1];
					run->span = align64(run->span, ALIGN_ELEMS) + n;
					run->tensors++;
					continue;
				}
				*PUSH(*prog) = (struct step){
					.op = *o, .span = n, .tensors = flat, .wait = -1
				};
			}
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < p->prog[s][ph].n; i++) {
				select_kernel(p, &p->prog[s][ph].a[i]);
				struct instance *in = &p->inst.a[p->prog[s][ph].a[i].inst];
				const char *seg = g->seg.a[s].name;
				if (!in->used_by)
					in->used_by = seg;
				else if (!strstr(in->used_by, seg))
					in->used_by = xprintf("%s, %s", in->used_by, seg);
				in->calls += g->seg.a[s].nlayers ? g->seg.a[s].nlayers : 1;
			}
}

struct plan *
plan(struct shard *s)
{
	struct plan *p = xalloc(sizeof *p);
	struct graph *g = s->graph;
	uint64_t off = 0;

	p->shard = s;
	p->graph = g;
	p->target = target_find(spec_str(g->trainer, F_trainer_target));
	p->place = xalloc(g->tensor.n * sizeof *p->place);
	p->slots = s->stage[0].slots;
	p->kernels = written_for(p->target);
	p->decode = can_decode(p);
	PUSH(p->inst)->name = "none";
	place_resident(p);
	make_programs(p);
	place_activations(p);
	for (int r = 0; r < N_REGIONS; r++) {
		p->region_off[r] = off;
		off = add64(off, p->region_bytes[r]);
	}
	p->arena_bytes = off;
	for (tensor_id t = 1; t < g->tensor.n; t++)
		p->place[t].off += p->region_off[p->place[t].region];
	for (uint32_t k = 0; k < g->seg.n; k++)
		for (int ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < p->prog[k][ph].n; i++)
				p->prog[k][ph].a[i].workspace += p->region_off[R_SCRATCH];
	p->stream_off = p->region_off[R_SAVED];
	p->dstream_off += p->region_off[R_SCRATCH];
	return p;
}

/* A size that kernels ask something of: where it comes from, and all that they ask. */
struct asked {
	const struct value *v;
	enum field_id f;
	uint64_t x, multiple, most;
	enum op_id op; /* one that cannot do it */
	bool refused;
};

/* Sizes that would do: "32, 64, 96 or 128", the nearest, or "512 or less". */
static const char *
would_do(const struct asked *a)
{
	uint64_t low = (a->x < a->most ? a->x : a->most) / a->multiple * a->multiple;
	struct buf b = { 0 };

	if (a->most / a->multiple <= 8)
		for (uint64_t x = a->multiple; x <= a->most; x += a->multiple)
			buf_printf(&b, "%s%llu",
			    x == a->multiple            ? ""
			    : x + a->multiple > a->most ? " or "
							: ", ",
			    (unsigned long long)x);
	else if (a->multiple == 1)
		buf_printf(&b, "%llu or less", (unsigned long long)a->most);
	else if (!low || low + a->multiple > a->most)
		buf_printf(&b, "%llu", (unsigned long long)(low ? low : a->multiple));
	else
		buf_printf(&b, "%llu or %llu", (unsigned long long)low,
		    (unsigned long long)(low + a->multiple));
	return b.s;
}

/* What the target has no kernels for, an op or a size, once each, at the field behind it. */
static void
check_needs(const struct plan *p)
{
	ARRAY(struct asked) all = { 0 };
	bool absent[N_OPS] = { 0 };

	for (uint32_t s = 0; s < p->graph->decode; s++)
		for (uint32_t i = 0; i < p->prog[s][FORWARD].n; i++) {
			const struct op *o = &p->prog[s][FORWARD].a[i].op;
			enum field_id f;
			const struct value *v;
			struct sizes z;
			if (!kernel_for(o->op, p->target->kernels) && !absent[o->op]) {
				absent[o->op] = true;
				v = spec_line(p->graph->trainer, o->rline, &f);
				diag_error(v->pos,
				    "%s asks for %s, for which target %s has no kernel",
				    spec_name(f), op_row(o->op)->name, p->target->name);
			}
			for (uint32_t k = 0; k < LEN(needs); k++) {
				const struct need *n = &needs[k];
				struct asked *a = NULL;
				if (n->op != o->op || strcmp(n->target, p->target->kernels) ||
				    op_bind(p->graph, o, &z))
					continue;
				uint64_t x = z.v[n->letter - 'a'];
				v = spec_size(p->graph->trainer, o->rline, x, &f);
				for (uint32_t j = 0; j < all.n; j++)
					if (all.a[j].v == v && all.a[j].x == x)
						a = &all.a[j];
				if (!a) {
					a = PUSH(all);
					*a = (struct asked){ v, f, x, 1, UINT64_MAX, o->op, false };
				}
				if (n->rule == AT_MOST && n->value < a->most)
					a->most = n->value;
				if (n->rule == MULTIPLE_OF && a->multiple % n->value) {
					if (n->value % a->multiple)
						internal("NEEDS: %llu of multiples of %llu",
						    (unsigned long long)n->value,
						    (unsigned long long)a->multiple);
					a->multiple = n->value;
				}
				if (!a->refused && (x % a->multiple || x > a->most)) {
					a->refused = true;
					a->op = o->op;
				}
			}
		}
	for (uint32_t j = 0; j < all.n; j++) {
		const struct asked *a = &all.a[j];
		if (!a->refused)
			continue;
		diag_error(a->v->pos, "%s gives %s a size of %s, for which target %s has no kernel",
		    spec_name(a->f), op_row(a->op)->name, commas(a->x), p->target->name);
		diag_help(spec_is(a->v, a->x) ? "use %s = %s"
					      : "it follows from %s; there are kernels for %s",
		    fields[a->f].name, would_do(a));
	}
}

void
plan_buildable(const struct plan *p)
{
	static const struct {
		enum field_id field;
		const char *name;
	} degree[] = { { F_parallel_data, "data" }, { F_parallel_pipeline, "pipeline" } };
	struct object *par = spec_obj(p->graph->trainer, F_trainer_parallel);

	for (unsigned i = 0; i < LEN(degree); i++) {
		if (spec_int(par, degree[i].field) == 1)
			continue;
		diag_error(spec_value(par, degree[i].field)->pos,
		    "parallel.%s = %lld: this version builds trainers of one rank", degree[i].name,
		    (long long)spec_int(par, degree[i].field));
		diag_help("--plan answers for any layout; to build, use %s = 1", degree[i].name);
	}
	/*
	 * kernels index rows by int32; those of a device vectors of 8 too, and single numbers of
	 * what is not an activation
	 */
	for (tensor_id t = 1; t < p->graph->tensor.n; t++) {
		const struct tensor *x = &p->graph->tensor.a[t];
		uint64_t most = x->dtype == DT_ACT ? (uint64_t)INT32_MAX * 8 : INT32_MAX / 2;
		const struct value *v =
		    spec_value(spec_obj(p->graph->trainer, F_trainer_batch), F_batch_micro);
		if (x->class != T_ACT || (x->seg >= p->graph->decode))
			continue;
		if (x->dim[0] > INT32_MAX)
			diag_error(v->pos,
			    "batch.micro = %lld sequences give %s rows a microbatch (%s); kernels "
			    "count to 2^31 - 1",
			    (long long)v->i, commas(x->dim[0]), x->name);
		else if (p->target->arch && tensor_elems(x) > most)
			diag_error(v->pos,
			    "batch.micro = %lld sequences give %s numbers in one tensor (%s); "
			    "kernels of target %s count to %s",
			    (long long)v->i, commas(tensor_elems(x)), x->name, p->target->name,
			    commas(most));
		else
			continue;
		diag_help("use a smaller micro, sequence_length or top_k");
		break;
	}
	if (written_for(p->target)) {
		check_needs(p);
	} else {
		diag_error(spec_value(p->graph->trainer, F_trainer_target)->pos,
		    "target %s can be planned, but this version has no kernels for it",
		    p->target->name);
		diag_help("--plan shows the plan; to build, use --target=cpu");
	}
}
