/*
 * Kernels and places: each op gets a kernel instance, each tensor a fixed offset in the rank's
 * arena.
 *
 * Weights, gradients and optimizer state lie bucket by bucket, layer after layer, at the same
 * element offsets in every region. Buckets with one update follow one another: on one rank that is
 * one call. Activations have their places from activation.c.
 */
#include <string.h>

#include "plan/plan.h"

enum { ALIGN_ELEMS = 64 };

const char *const plan_region_names[N_REGIONS] = { "input", "statistics", "constants", "weights",
	"gradients", "optimizer state", "kept buffers", "weights in 8 bits", "saved activations",
	"scratch", "communication" };

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

/* Elements of a launch's argument: of the update's, this rank's part of the run, but of scalars. */
static uint64_t
arg_elems(const struct plan *p, const struct launch *st, uint8_t i)
{
	const struct tensor *t = &p->graph->tensor.a[st->op.arg[i]];

	return st->span && t->class != T_INPUT
		   ? plan_elems(p, st->op.arg[i], st->span / p->shard->mesh.size[st->op.group])
		   : tensor_elems(t);
}

struct cost
plan_cost(const struct plan *p, const struct launch *st, bool stores)
{
	const struct op_row *r = op_row(st->op.op);
	struct cost c = { .flops = (double)op_flops(p->graph, &st->op) };

	if (st->span) {
		const struct sizes z = op_sizes(p->graph, &st->op);
		c.flops *= (double)arg_elems(p, st, 0) / (double)z.v['n' - 'a'];
	}
	for (uint8_t i = 0; i < r->nargs; i++)
		if (st->op.arg[i])
			c.bytes += (double)plan_bytes(p, st->op.arg[i], arg_elems(p, st, i)) *
				   (r->arg[i].accumulate && !stores ? 2 : 1);
	return c;
}

/*
 * The launch's instance, of a gradient's kernel one that adds or one that stores, and its
 * workspace; equal kernels at equal sizes and constants are one instance.
 */
static uint32_t
select_kernel(struct plan *p, const struct kernel_row *k, struct launch *st, bool stores)
{
	const struct op_row *r = op_row(st->op.op);
	struct instance in = { .kernel = k };
	struct buf name = { 0 };

	struct sizes z = op_sizes(p->graph, &st->op);
	struct cost cost = plan_cost(p, st, stores);
	if (st->span)
		z.v['n' - 'a'] = arg_elems(p, st, 0);
	buf_puts(&name, r->name);
	for (uint8_t i = 0; i < r->nargs; i++)
		if (r->arg[i].optional && st->op.arg[i])
			buf_printf(&name, "_%s", r->arg[i].name);
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
			buf_printf(&name, "%s%llu", in.nparams ? "x" : "_", llu(z.v[c - 'a']));
		}
		in.param[in.nparams++] = z.v[c - 'a'];
	}
	memcpy(in.floats, st->op.floats, r->nconsts * sizeof *in.floats);
	in.flops = cost.flops;
	in.bytes = cost.bytes;
	for (uint8_t i = 0; i < r->nargs; i++) {
		const struct tensor *t = &p->graph->tensor.a[st->op.arg[i]];
		if (!st->op.arg[i])
			continue;
		in.format[i] = target_format(p->target, t->format);
		/* weights are rounded by the update's own kernel, from their masters */
		if (i >= r->nin && t->class == T_ACT && in.format[i] != t->format)
			in.round[i] = arg_elems(p, st, i);
	}
	if (*k->workspace)
		st->workspace_bytes = target_bytes(p->target, p->graph->format[ROLE_STAT],
		    expr_eval(k->workspace, strlen(k->workspace), &z));
	return add_instance(p, &in, &name);
}

/* The launch's instances: one that adds, and for the first of its gradient one that stores. */
static void
select_kernels(struct plan *p, struct launch *st)
{
	const struct kernel_row *k = kernel_for(p->graph, p->target, &st->op);
	bool stores = st->first && k && strstr(k->params, " +"); /* a word, none of an expression */

	bool apart = p->target->kind->comm_apart && runtime_call(st->op.op) &&
		     spec_int(p->graph->trainer, F_parallel_overlap);
	st->stream = apart ? (uint8_t)p->target->streams : kernel_stream(st->op.op, p->target);
	p->streams = p->streams > st->stream ? p->streams : st->stream + 1u;
	if (k && (!stores || p->graph->microbatches > 1))
		st->inst = select_kernel(p, k, st, false);
	if (stores)
		st->stores = select_kernel(p, k, st, true);
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

	for (struct op_at at = { .seg = g->decode }; graph_next(g, &at);)
		if (!kernel_for(g, p->target, at.op))
			return false;
	return p->shard->mesh.size[OM_WORLD] == 1;
}

/* ---- what of the model is on the stage ---- */

/* Where the stage's layers stand among those of their kind, and in their chunk. */
static void
number_layers(struct plan *p)
{
	const struct graph *g = p->graph;
	uint32_t *here = xalloc(g->seg.n * sizeof *here);

	p->index = xalloc(g->n_layers * sizeof *p->index);
	p->saved_index = xalloc(g->n_layers * sizeof *p->saved_index);
	p->entry = xalloc((g->n_layers + 1u) * sizeof *p->entry);
	for (uint32_t c = 0; c < p->here->nchunks; c++) {
		uint32_t *saved = xalloc(g->seg.n * sizeof *saved);
		for (uint32_t i = 0; i < p->here->chunk[c].n; i++) {
			uint32_t l = p->here->chunk[c].first + i, k = g->kind_of[l];
			p->index[l] = here[k]++;
			p->saved_index[l] = saved[k]++;
			p->entry[l] = i;
		}
		if (p->here->chunk[c].head) /* what it reads is the last layer's y */
			p->entry[g->n_layers] = p->here->chunk[c].n;
	}
}

/* ---- weights, gradients, state, inputs: whole regions ---- */

/*
 * The parameters of a segment that this group has and ranks share become a bucket at b's place;
 * gives one of them, 0: there is none. Parts of a merged tensor have no padding between them.
 * Matrices that Muon steps, all of one shape, follow one another without any, and no rank's part
 * ends within one.
 */
static tensor_id
fill_bucket(struct plan *p, struct bucket *b, uint32_t s, uint32_t group)
{
	const struct graph *g = p->graph;
	const struct param_group *k = &g->param_group.a[group];
	uint64_t ranks = p->shard->mesh.size[b->group], matrix = k->rows * k->cols;
	tensor_id one = 0;

	for (tensor_id i = g->seg.a[s].first; i < g->tensor.n && g->tensor.a[i].seg <= s; i++) {
		const struct tensor *t = &g->tensor.a[i];
		if (t->class != T_PARAM || t->seg != s || t->param_group != group ||
		    shard_group(p->shard, t->copies) != b->group || !plan_layers(p, i) ||
		    (t->whole && g->tensor.a[t->whole].part[0] != i))
			continue;
		const struct part_list list = tensor_parts(g, t->whole ? t->whole : i);
		for (const tensor_id *part = list.a; *part; part++) {
			p->home[*part] = (struct home){ p->bucket.n + 1, b->elems };
			b->elems = size_add(b->elems, tensor_elems(&g->tensor.a[*part]));
		}
		b->elems = size_align(b->elems, matrix ? 1 : ALIGN_ELEMS);
		b->layers = plan_layers(p, i);
		one = one ? one : i;
	}
	b->elems = size_align(b->elems, size_mul(ranks, matrix ? matrix : ALIGN_ELEMS));
	return one;
}

/*
 * Offsets inside regions, made absolute at the end: of parameters, their gradients and states by
 * their buckets, of others one after the other. begins: where each kind of state does.
 */
static void
place_tensors(struct plan *p, const uint64_t *begins)
{
	static const enum region regions[] = { [T_NONE] = N_REGIONS,
		[T_PARAM] = R_WEIGHT,
		[T_GRAD] = R_GRAD,
		[T_STATE] = R_STATE,
		[T_MERGED] = R_WEIGHT,
		[T_BUFFER] = R_BUFFER,
		[T_COPY] = R_COPY,
		[T_CONST] = R_CONST,
		[T_INPUT] = R_INPUT,
		[T_STAT] = R_STAT,
		[T_CACHE] = N_REGIONS,
		[T_ACT] = N_REGIONS };
	const struct graph *g = p->graph;
	uint64_t at;

	for (tensor_id i = 1; i < g->tensor.n; i++) {
		const struct tensor *t = &g->tensor.a[i], *param = &g->tensor.a[t->param];
		const struct bucket *b = plan_bucket(p, i, &at);
		enum region r = regions[t->class];
		struct place *pl = &p->place[i];
		uint64_t layers = plan_layers(p, i), bytes = shard_bytes(p->shard, i);
		if (r == N_REGIONS || !layers)
			continue;
		*pl = (struct place){ .kind = PLACE, .region = r, .bytes = bytes, .stride = bytes };
		if (!b) {
			pl->off = plan_take(p, r, size_mul(bytes, layers));
			continue;
		}
		uint32_t k = 0;
		while (r == R_STATE && param->state[k] != i)
			k++;
		uint64_t parts = r == R_STATE ? p->shard->mesh.size[b->group] : 1;
		pl->off = plan_bytes(p, i,
			      plan_elems(p, i, at) + (r == R_STATE ? b->state[k] : b->first)) +
			  (r == R_STATE ? begins[k] : 0);
		pl->stride = plan_bytes(p, i, plan_elems(p, i, b->elems / parts));
	}
}

static void
place_resident(struct plan *p)
{
	struct graph *g = p->graph;
	const struct format *const format[N_STATES] = { g->format[ROLE_MASTER],
		g->format[ROLE_MOMENT], g->format[ROLE_MOMENT], g->format[ROLE_MASTER] };
	uint64_t elems = 0, state[N_STATES] = { 0 }, begins[N_STATES + 1] = { 0 };

	p->home = xalloc(g->tensor.n * sizeof *p->home);
	for (uint32_t k = 0; k < g->param_group.n; k++)
		for (enum om_group r = 0; r < OM_N_GROUPS; r++)
			for (uint32_t s = g->embed; s <= g->head; s++) {
				struct bucket b = { .group = r, .first = elems };
				tensor_id one = fill_bucket(p, &b, s, k);
				if (!one)
					continue;
				uint64_t n = size_mul(b.elems, b.layers);
				elems = size_add(elems, n);
				for (uint32_t i = 0; i < N_STATES; i++) {
					tensor_id t = g->tensor.a[one].state[i];
					b.state[i] = state[i];
					n = size_mul(b.elems, b.layers) / p->shard->mesh.size[r];
					if (t)
						state[i] = size_add(state[i], plan_elems(p, t, n));
				}
				*PUSH(p->bucket) = b;
			}
	/* one after the other: first all masters, then all m, all v, and all averages */
	for (uint32_t k = 0; k < N_STATES; k++)
		begins[k + 1] = size_add(begins[k],
		    size_align(target_bytes(p->target, format[k], state[k]), PLAN_ALIGN));
	place_tensors(p, begins);
	p->region_bytes[R_WEIGHT] =
	    size_align(target_bytes(p->target, g->format[ROLE_WEIGHT], elems), PLAN_ALIGN);
	p->region_bytes[R_GRAD] =
	    size_align(target_bytes(p->target, g->format[ROLE_GRAD], elems), PLAN_ALIGN);
	p->region_bytes[R_STATE] = begins[N_STATES];
}

/* ---- programs ---- */

const struct bucket *
plan_bucket(const struct plan *p, tensor_id t, uint64_t *at)
{
	const struct tensor *x = &p->graph->tensor.a[t];
	const struct home *h = &p->home[x->class == T_MERGED ? x->part[0]
					: x->param           ? x->param
							     : t];

	*at = h->at;
	return h->bucket ? &p->bucket.a[h->bucket - 1] : NULL;
}

/* Whether a launch of the update covers the op's bucket too, or goes on with it. */
static bool
joins(const struct plan *p, struct launch *run, const struct op *next)
{
	uint64_t at;
	const struct bucket *first = plan_bucket(p, run->op.arg[0], &at);
	const struct bucket *b = plan_bucket(p, next->arg[0], &at);

	if (!first || !b || run->op.op != next->op || run->op.group != next->group ||
	    memcmp(run->op.ints, next->ints, sizeof next->ints) ||
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
	in->calls += (uint32_t)(seg->nlayers ? stage_kind(p->here, seg)
				: st->span   ? st->layers
					     : 1);
}

/* Whether a launch of several layers does something else to the bucket of the one before it. */
static bool
follows(const struct plan *p, const struct launch *st)
{
	uint64_t at;
	const struct launch *before = st - 1;

	return st->layers > 1 && before->layers == st->layers &&
	       plan_bucket(p, st->op.arg[0], &at) == plan_bucket(p, before->op.arg[0], &at) &&
	       runtime_call(st->op.op);
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
	for (struct op_at at = { 0 }; graph_next(g, &at);) {
		struct program *prog = &p->prog[at.seg][at.phase];
		if (!plan_runs(p, at.seg))
			continue;
		if (!op_row(at.op->op)->flat)
			*PUSH(*prog) = (struct launch){ .op = *at.op };
		else if (plan_layers(p, at.op->arg[0]) && /* not on another stage */
			 !(prog->n && joins(p, &prog->a[prog->n - 1], at.op)))
			*PUSH(*prog) = update_launch(p, at.seg, at.op);
	}
	mark_first(p);
	for (struct launch_at at = { 0 }; plan_next(p, &at);) {
		struct launch *st = at.launch;
		st->follows = at.i && follows(p, st);
		select_kernels(p, st);
		count_call(p, st->inst, at.seg, st);
		if (st->stores && st->stores != st->inst)
			count_call(p, st->stores, at.seg, st);
	}
}

static void
plan_stage(struct plan *p)
{
	struct graph *g = p->graph;
	uint64_t off = 0;

	number_layers(p);
	p->place = xalloc(g->tensor.n * sizeof *p->place);
	p->decode = can_decode(p);
	place_resident(p);
	make_programs(p);
	plan_activations(p);
	for (int r = 0; r < N_REGIONS; r++) {
		p->region_off[r] = off;
		off = size_add(off, p->region_bytes[r]);
	}
	p->arena_bytes = off;
	for (tensor_id t = 1; t < g->tensor.n; t++)
		p->place[t].off += p->region_off[p->place[t].region];
	for (struct launch_at at = { 0 }; plan_next(p, &at);) {
		struct program *prog = &p->prog[at.seg][at.phase];
		at.launch->workspace += p->region_off[R_SCRATCH];
		prog->first |=
		    (at.launch->first || op_row(at.launch->op.op)->first) && g->microbatches > 1;
		prog->last |= op_row(at.launch->op.op)->last;
		for (uint8_t k = 0; k < MAX_ARGS; k++) {
			const struct place *pl = &p->place[at.launch->op.arg[k]];
			prog->slot |= pl->kind == STREAM || pl->region == R_SAVED;
		}
	}
	p->stream_off += p->region_off[R_SAVED];
	p->dstream_off += p->region_off[p->dstream_life < N_LIVES ? R_SAVED : R_SCRATCH];
	for (uint32_t c = 0; c < p->here->nchunks; c++)
		p->hop[c] += p->here->chunk[c].place ? p->region_off[R_COMM] : 0;
}

/* Of each program of a stage, after those of the stages before it. */
static void
find_functions(struct plan *p)
{
	const struct graph *g = p->graph;

	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++) {
			struct program *own = &p->prog[s][ph];
			own->of = own;
			for (const struct plan *o = p; o->stage && s != g->init && s != g->update;)
				if ((--o)->prog[s][ph].n)
					own->of = &o->prog[s][ph];
		}
}

/*
 * The target as this plan takes it: where rows go to other ranks, what waits for none of them, as
 * gradients of weights, has a stream beside.
 */
static const struct target_row *
with_streams(const struct shard *s)
{
	bool beside = s->mesh.size[OM_EXPERT] > 1 && s->target->kind->reach &&
		      spec_int(s->graph->trainer, F_parallel_overlap);
	struct target_row *own = xalloc(sizeof *own);

	*own = *s->target;
	own->streams = beside && own->streams < 2 ? 2 : own->streams;
	return own;
}

struct plan *
plan(struct shard *s)
{
	uint32_t n = s->nstages, streams = 1;
	const struct target_row *target = with_streams(s);
	struct plan *all = xalloc(n * sizeof *all);
	struct instances *inst = xalloc(sizeof *inst);

	PUSH(*inst)->name = "none";
	for (uint32_t i = 0; i < n; i++) {
		all[i] = (struct plan){ .shard = s,
			.graph = s->graph,
			.target = target,
			.stage = i,
			.here = &s->stage[i],
			.n_stages = n,
			.inst = inst,
			.streams = 1 };
		plan_stage(&all[i]);
		find_functions(&all[i]);
		streams = all[i].streams > streams ? all[i].streams : streams;
	}
	for (uint32_t i = 0; i < n; i++)
		all[i].streams = streams;
	plan_events(all, n);
	return all;
}
