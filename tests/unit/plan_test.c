/*
 * plancheck must object: buffers overlapped, steps swapped, events left out. What --plan prints of
 * layouts. In the repository's root, under sanitizers.
 */
#include <string.h>

#include "check.h"
#include "describe.h"

static const char path[] = "models/tiny.lua";
static const char *weights; /* in another format than the description's */
static struct plan *
make_plan(void)
{
	struct define precision = { "weights", weights, false };
	struct object *trainer = trainer_of(path, &precision, weights != NULL, NULL);

	with_bias(trainer);
	struct shard *s = shard_of(trainer);
	fuse(s);
	return plan(s);
}

/* Written by the forward pass and read by the backward pass. */
static bool
saved(const struct plan *p, tensor_id t)
{
	const struct program *b = &p->prog[p->graph->tensor.a[t].seg][BACKWARD];

	if (p->place[t].kind != PLACE || p->place[t].region != R_SAVED)
		return false;
	for (uint32_t i = 0; i < b->n; i++)
		for (uint8_t k = 0; k < op_row(b->a[i].op.op)->nin; k++)
			if (b->a[i].op.arg[k] == t)
				return true;
	return false;
}

/* Any two saved tensors of one kind of layer are live together: no pair may share bytes. */
static void
overlap_saved(struct plan *p)
{
	uint32_t caught = 0, tried = 0;

	for (tensor_id a = 1; a < p->graph->tensor.n; a++)
		for (tensor_id b = 1; b < p->graph->tensor.n; b++) {
			struct place old = p->place[a];
			if (!saved(p, a) || !saved(p, b) || p->place[a].off == p->place[b].off ||
			    p->graph->tensor.a[a].seg != p->graph->tensor.a[b].seg)
				continue;
			p->place[a].off = p->place[b].off;
			tried++;
			caught += plancheck_fault(p) != NULL;
			p->place[a] = old;
		}
	expect(tried > 100 && caught == tried, "saved tensors on top of each other");
}

/* Two inputs of one op are live together. */
static void
overlap_inputs(struct plan *p)
{
	uint32_t caught = 0, tried = 0;

	for (uint32_t s = 0; s < p->graph->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < p->prog[s][ph].n && s != p->graph->update; i++) {
				struct op *o = &p->prog[s][ph].a[i].op;
				for (uint8_t k = 1; k < op_row(o->op)->nin; k++) {
					struct place *a = &p->place[o->arg[0]],
						     *b = &p->place[o->arg[k]], old = *a;
					if (!o->arg[k] || a->kind != PLACE || b->kind != PLACE ||
					    a->off == b->off)
						continue;
					a->off = b->off;
					tried++;
					caught += plancheck_fault(p) != NULL;
					*a = old;
				}
			}
	expect(tried > 50 && caught == tried, "inputs on top of each other");
}

/* No step of a program may be missing: nor one whose gradient the update alone reads. */
static void
leave_out(struct plan *p, struct program *prog)
{
	for (uint32_t i = 0; i < prog->n; i++) {
		struct launch a = prog->a[i];
		memmove(&prog->a[i], &prog->a[i + 1], (prog->n - i - 1) * sizeof a);
		prog->n--;
		/* but a cache may hold anything before */
		expect(plancheck_fault(p) || a.op.op == OP_cache, "a step left out");
		memmove(&prog->a[i + 1], &prog->a[i], (prog->n - i) * sizeof a);
		prog->n++;
		prog->a[i] = a;
	}
}

/* A workspace on an input, or on what another op reads later, of this layer or of the first one. */
static void
workspace_faults(struct plan *p, struct program *prog, uint32_t seg)
{
	uint32_t tried = 0;

	for (uint32_t i = 0; i < prog->n; i++)
		for (tensor_id t = 1; t < p->graph->tensor.n; t++) {
			struct launch *st = &prog->a[i];
			uint64_t old = st->workspace;
			if (!st->workspace_bytes || p->graph->tensor.a[t].seg != seg ||
			    (!saved(p, t) && t != st->op.arg[0]))
				continue;
			st->workspace = p->place[t].off;
			const char *said = plancheck_fault(p);
			tried++;
			expect(said && strstr(said, "workspace"), "a workspace on what is read");
			st->workspace = old;
		}
	expect(tried > 10, "workspaces in a backward pass");
}

/* Nothing of decode may take what one token leaves for the next, and no step may be missing. */
static void
decode_faults(struct plan *p)
{
	struct graph *g = p->graph;
	uint32_t moe = g->kind_of[g->n_layers - 1] + g->decode - g->embed;
	struct program *prog = &p->prog[moe][FORWARD];
	/* decode's stream, its scratch, what training keeps from step to step */
	uint64_t elsewhere[] = { p->stream_off, 0, p->region_off[R_STATE], p->region_off[R_GRAD] };

	expect(p->decode, "a cpu trainer decodes");
	for (uint32_t i = 0; i < prog->n; i++)
		if (prog->a[i].op.op == OP_attention_at)
			elsewhere[1] = p->place[prog->a[i].op.arg[4]].off;
	for (tensor_id t = 0; (t = tensor_next(g, T_CACHE, t));) {
		struct place old = p->place[t];
		if (g->tensor.a[t].seg != moe)
			continue;
		expect(elsewhere[1] && old.off + old.bytes <= p->arena_bytes, "a cache's place");
		p->place[t].stride = 0;
		expect(plancheck_fault(p) != NULL, "caches of layers on top of each other");
		p->place[t] = old;
		for (unsigned i = 0; i < LEN(elsewhere); i++) {
			p->place[t].off = elsewhere[i];
			expect(plancheck_fault(p) != NULL, "a cache where it must not be");
			p->place[t] = old;
		}
	}
	leave_out(p, prog);
	expect(plancheck_fault(p) == NULL, "the plan as it was before faults of decode");
}

/* A target that lacks a kernel of decode plans the same training, and nothing of decode. */
static void
no_decode(void)
{
	struct shard *s = shard_of(trainer_of(path, NULL, 0, "cuda:sm_90a"));
	fuse(s);
	struct plan *p = plan(s);
	bool all = true;
	for (struct op_at at = { .seg = p->graph->decode }; graph_next(p->graph, &at);)
		all &= kernel_for(p->graph, p->target, at.op) != NULL;
	expect(p->decode == all, "decode by its kernels");
	expect(plancheck_fault(p) == NULL, "a plan for cuda");
	for (uint32_t i = p->graph->decode; i < p->graph->seg.n; i++)
		expect(p->decode == (p->prog[i][FORWARD].n > 0), "programs of decode");
	for (tensor_id t = 1; t < p->graph->tensor.n; t++)
		if (p->graph->tensor.a[t].seg >= p->graph->decode && !p->decode)
			expect(!p->place[t].bytes, "no memory for what is not there");
}

/* What an op takes as one must be just its parts, in their order. */
static void
merged_faults(struct plan *p)
{
	uint32_t n = 0;

	for (tensor_id t = 0; (t = tensor_next(p->graph, T_MERGED, t));) {
		struct tensor *x = &p->graph->tensor.a[t], old = *x;
		struct place *pl = &p->place[t], at = *pl;
		n++;
		pl->off += 256;
		expect(plancheck_fault(p) != NULL, "a merged tensor elsewhere than its parts");
		pl->off = at.off;
		pl->bytes += 256;
		expect(plancheck_fault(p) != NULL, "a merged tensor longer than its parts");
		pl->bytes = at.bytes;
		pl->stride += 256;
		expect(plancheck_fault(p) != NULL || !p->graph->seg.a[x->seg].nlayers ||
			   p->graph->seg.a[x->seg].nlayers == 1,
		    "a merged tensor's layers elsewhere");
		pl->stride = at.stride;
		x->part[0] = old.part[1];
		x->part[1] = old.part[0];
		expect(plancheck_fault(p) != NULL, "parts in another order");
		*x = old;
	}
	expect(n == 5, "merged weights of two kinds of layers");
}

static void
plan_faults(void)
{
	struct plan *p = make_plan();
	struct graph *g = p->graph;
	uint32_t moe = g->kind_of[g->n_layers - 1];
	struct program *fwd = &p->prog[moe][FORWARD], *bwd = &p->prog[moe][BACKWARD];

	expect(plancheck_fault(p) == NULL, "the plan as it is");
	overlap_saved(p);
	overlap_inputs(p);
	decode_faults(p);
	uint64_t bytes = p->arena_bytes;
	p->arena_bytes = p->region_off[R_SCRATCH];
	expect(plancheck_fault(p) != NULL, "scratch beyond the arena");
	p->arena_bytes = bytes;

	for (tensor_id t = 0; (t = tensor_next(g, T_PARAM, t));)
		if (g->tensor.a[t].seg == moe) {
			uint64_t stride = p->place[t].stride;
			p->place[t].stride = 0;
			expect(
			    plancheck_fault(p) != NULL, "layers of a weight on top of each other");
			p->place[t].stride = stride;
		}
	merged_faults(p);
	for (tensor_id t = 1; t < g->tensor.n; t++)
		if (p->place[t].kind == STREAM && g->tensor.a[t].seg == moe) {
			uint64_t stride = p->place[t].stride;
			p->place[t].stride = 0;
			expect(plancheck_fault(p) != NULL,
			    "one entry of the residual stream for all layers");
			p->place[t].stride = stride;
			break;
		}

	workspace_faults(p, bwd, moe);
	for (uint32_t i = 0; i + 1 < fwd->n; i++) {
		struct launch a = fwd->a[i], b = fwd->a[i + 1];
		const struct op_row *r = op_row(a.op.op);
		bool depends = false;
		for (uint8_t k = r->nin; k < r->nin + r->nout; k++)
			for (uint8_t j = 0; j < op_row(b.op.op)->nin; j++)
				depends |= a.op.arg[k] == b.op.arg[j];
		if (!depends)
			continue;
		fwd->a[i] = b;
		fwd->a[i + 1] = a;
		expect(plancheck_fault(p) != NULL, "a step before the one that it needs");
		fwd->a[i] = a;
		fwd->a[i + 1] = b;
	}
	leave_out(p, fwd);
	leave_out(p, bwd);

	expect(plancheck_fault(p) == NULL, "the plan as it was");
}

/* ---- streams ---- */

/* A plan for a target that has so many streams; with two ranks along the axis. */
static struct plan *
streams_plan(const char *description, const char *target, uint32_t streams, const char *axis)
{
	struct define ranks[] = { { axis, "2", false }, { "micro", "4", false } };
	struct target_row *t = xalloc(sizeof *t);

	*t = *target_find(targets, target);
	t->streams = streams;
	struct shard *s =
	    shard(graph_of(trainer_of(description, ranks, axis ? LEN(ranks) : 0, target)), t);
	fuse(s);
	return plan(s);
}

static const char *
faults(const struct plan *p)
{
	const char *fault = NULL;

	for (uint32_t i = 0; i < p->n_stages && !fault; i++)
		fault = plancheck_fault(&p[i]);
	return fault;
}

/* The i-th launch of a stage's segment and phase; of all that share its waits: not the update. */
static uint32_t
same_launch(struct plan *p, uint32_t at, uint32_t i, struct launch **out)
{
	const uint32_t s = at / N_PHASES % p->graph->seg.n, stage = at / N_PHASES / p->graph->seg.n;
	const uint32_t end = s == p->graph->update ? stage + 1 : stage ? 0 : p->n_stages;
	uint32_t n = 0;

	for (uint32_t k = stage; k < end; k++)
		if (plan_function(&p[k], s, at % N_PHASES) && i < p[k].prog[s][at % N_PHASES].n)
			out[n++] = &p[k].prog[s][at % N_PHASES].a[i];
	return n;
}

/* Without any one of its waits, or of its records, a plan is out of order. */
static void
drop_events(struct plan *p)
{
	struct launch **st = xalloc(p->n_stages * sizeof *st);
	uint32_t waits = 0, records = 0, aside = 0, crossing = 0;

	for (uint32_t at = 0; at < p->n_stages * p->graph->seg.n * N_PHASES; at++)
		for (uint32_t i = 0, n; (n = same_launch(p, at, i, st)); i++) {
			uint32_t event = st[0]->event, all = st[0]->wait.n;
			aside += st[0]->stream != 0;
			for (uint32_t w = 0; w < all; w++) {
				bool here = false;
				for (const struct launch *x = st[0] - i; x < st[0]; x++)
					here |= x->event == st[0]->wait.a[w];
				for (uint32_t out = 2; out-- > 0;) {
					for (uint32_t k = 0; k < n; k++) {
						uint32_t *a = st[k]->wait.a, old = a[w];
						a[w] = a[all - 1], a[all - 1] = old;
						st[k]->wait.n = all - out;
					}
					expect(!out || faults(p) != NULL, "a wait left out");
				}
				waits++;
				crossing += !here;
			}
			for (uint32_t k = 0; k < n && event; k++)
				st[k]->event = 0;
			expect(!event || faults(p) != NULL, "an event never recorded");
			for (uint32_t k = 0; k < n; k++)
				st[k]->event = event;
			records += event != 0;
		}
	expect(faults(p) == NULL, "the plan with its events");
	expect(aside > 3 && waits > 3 && records == p->events &&
		   (crossing > 0 || p->target->streams == 1),
	    "launches on another stream, events, waits for what an earlier call of a function did");
}

/* Each launch, moved to another stream, overtakes something; with an event each way, nothing. */
static void
move_launches(struct plan *p)
{
	struct graph *g = p->graph;
	struct program *fwd = &p->prog[g->kind_of[g->n_layers - 1]][FORWARD];

	p->streams = 2;
	p->events = 2;
	for (uint32_t i = 1; i < fwd->n; i++) {
		struct launch *st = &fwd->a[i];
		st->stream = 1;
		expect(plancheck_fault(p) != NULL, "a stream that waits for nothing");
		if (i + 1 < fwd->n) {
			fwd->a[i - 1].event = 1;
			st->event = 2;
			*PUSH(st->wait) = 1;
			*PUSH(fwd->a[i + 1].wait) = 2;
			/* later readers on stream 0 are behind the second event */
			expect(plancheck_fault(p) == NULL, "a stream behind events both ways");
			fwd->a[i + 1].wait.n = 0;
			/* the last one's output goes to the next segment, which does not wait */
			expect(plancheck_fault(p) != NULL, "no event back");
			st->wait.n = 0;
			*PUSH(fwd->a[i + 1].wait) = 2;
			expect(plancheck_fault(p) != NULL, "no event there");
			fwd->a[i + 1].wait.n = fwd->a[i - 1].event = st->event = 0;
		}
		st->stream = 0;
	}
	*PUSH(fwd->a[1].wait) = 3;
	expect(plancheck_fault(p) != NULL, "an event that there is not");
	fwd->a[1].wait.n = 0;
	fwd->a[1].stream = 2;
	expect(plancheck_fault(p) != NULL, "a stream that there is not");
	fwd->a[1].stream = 0;
	expect(plancheck_fault(p) == NULL, "the plan as it was");
}

static void
stream_faults(void)
{
	static const char *const axes[] = { NULL, "pipeline", "data" };

	move_launches(make_plan());
	for (uint32_t streams = 1; streams <= 3; streams++)
		for (unsigned i = streams == 1; i < LEN(axes); i++)
			drop_events(streams_plan(path, "cuda:sm_90a", streams, axes[i]));
	drop_events(streams_plan("models/olmoe-1b-7b.lua", "cuda:h200", 2, NULL));
	for (unsigned i = 0; i < LEN(axes); i++) {
		struct plan *p = streams_plan(path, "cuda:sm_90a", 1, axes[i]);
		expect(p->streams == (axes[i] ? 2 : 1), "one stream, and one for what ranks send");
		p = streams_plan(path, "cpu", 2, axes[i]);
		expect(p->streams == 1 && p->events == 0, "a processor's kernels leave no stream");
	}
}

/* On the CPU every bf16 output of an op is rounded, and nothing else. */
static void
rounding_faults(void)
{
	uint32_t rounded = 0;

	weights = "bf16";
	struct plan *p = make_plan();
	expect(plancheck_fault(p) == NULL, "the plan in bf16");
	for (uint32_t i = 1; i < p->inst->n; i++) {
		const struct op_row *r = op_row(p->inst->a[i].kernel->op);
		for (uint8_t k = r->nin; k < r->nin + r->nout; k++) {
			uint64_t old = p->inst->a[i].round[k];
			rounded += old != 0;
			p->inst->a[i].round[k] = old ? 0 : 1;
			expect(plancheck_fault(p) != NULL, "a bf16 not rounded, or a sum that is");
			p->inst->a[i].round[k] = old;
		}
	}
	expect(rounded > 30, "outputs that are rounded");
	weights = NULL;
}

/*
 * A bucket is a layer's: its parameters and gradients lie in it, at the same elements, layer after
 * layer, and of each state the part of one rank. Muon's have matrices of one shape, and cut none.
 */
static void
buckets(bool muon)
{
	struct shard *s = layout_shard(
	    (struct layout){ "1f1b", 1, 1, 1, .data = 4, .expert = 2, .layers = 4, .muon = muon });
	fuse(s);
	struct plan *p = plan(s);
	struct graph *g = p->graph;
	uint64_t end = 0, state = 0, at, at_grad, experts = 0, cut = 0;

	expect(plancheck_fault(p) == NULL, "the plan of four ranks");
	for (uint32_t i = 0; i < p->bucket.n; i++) {
		const struct bucket *b = &p->bucket.a[i];
		uint64_t ranks = s->mesh.size[b->group];
		expect(b->first == end && b->state[STATE_M] == state && b->elems % ranks == 0,
		    "buckets follow one another, and ranks have equal parts");
		end += b->elems * b->layers;
		state += b->elems / ranks * b->layers;
	}
	for (tensor_id t = 0; (t = tensor_next(g, T_PARAM, t));) {
		const struct tensor *x = &g->tensor.a[t];
		const struct bucket *b = plan_bucket(p, t, &at);
		const struct place *w = &p->place[t], *d = &p->place[x->grad];
		uint64_t ranks = s->mesh.size[b->group];
		expect(b == plan_bucket(p, x->grad, &at_grad) && at == at_grad &&
			   w->off - p->region_off[R_WEIGHT] == plan_bytes(p, t, b->first + at) &&
			   d->off - p->region_off[R_GRAD] == plan_bytes(p, x->grad, b->first + at),
		    "a parameter and its gradient at one place");
		expect(b->group == (tensor_by_expert(x) ? OM_EXPERT_DATA : OM_DATA) &&
			   b->layers == tensor_layers(g, x) && at + tensor_elems(x) <= b->elems,
		    "a parameter in its layer's bucket, and its ranks");
		expect(w->stride == plan_bytes(p, t, b->elems) &&
			   d->stride == plan_bytes(p, x->grad, b->elems) &&
			   p->place[x->state[STATE_M]].stride ==
			       plan_bytes(p, x->state[STATE_M], b->elems / ranks),
		    "layers are as far apart as their buckets");
		bool matrix = g->param_group.a[x->param_group].rows, own = true;
		uint64_t n = tensor_elems(x) / (tensor_by_expert(x) ? x->dim[0] : 1);
		for (uint64_t i = at; i < at + tensor_elems(x); i += n)
			own &= i * ranks / b->elems == (i + n - 1) * ranks / b->elems;
		expect(matrix == (muon && x->ndims > 1 && g->seg.a[x->seg].nlayers) &&
			   (matrix ? own && at % n == 0 && !x->state[STATE_V] : x->state[STATE_V]),
		    "Muon steps matrices of layers, each whole, and keeps one moment");
		experts += tensor_by_expert(x), cut += !own;
	}
	expect(
	    experts == 3 && (muon || (cut > 3 && p->bucket.n == 8)), "buckets of ends and kinds");
	for (uint32_t i = 0; i < p->prog[g->update][FORWARD].n; i++) {
		const struct launch *l = &p->prog[g->update][FORWARD].a[i];
		const struct bucket *b = plan_bucket(p, l->op.arg[0], &at);
		expect(!b || (l->span == b->elems && l->layers == b->layers && !at),
		    "what ranks share is updated bucket by bucket");
	}
	/* a layer's gradients are summed where its last backward pass ends, all of each bucket */
	uint32_t sums = 0, tensors = 0;
	for (uint32_t k = g->embed; k <= g->head; k++)
		for (uint32_t i = 0; i < p->prog[k][BACKWARD].n; i++) {
			const struct launch *l = &p->prog[k][BACKWARD].a[i];
			const struct bucket *b = plan_bucket(p, l->op.arg[0], &at);
			if (l->op.op != OP_reduce_scatter)
				continue;
			expect(b && l->span == b->elems && l->layers == 1 && !at &&
				   l->op.group == b->group,
			    "a bucket's gradients are summed at once");
			sums++;
			tensors += l->tensors;
		}
	for (tensor_id t = 0; (t = tensor_next(g, T_GRAD, t));)
		tensors--;
	expect(sums == p->bucket.n && !tensors, "every gradient is summed, by buckets");
}

/*
 * Of the launches that write a gradient, the first of a step's first microbatch stores it, and only
 * that one: the embedding's adds to a tied head's.
 */
static void
stores(const char *target)
{
	struct define def[] = { { "tied", "true", false }, { "micro", "2", false } };
	struct shard *s = shard_of(trainer_of("tests/parallel/model.lua", def, LEN(def), target));
	fuse(s);
	struct plan *p = plan(s);
	struct graph *g = p->graph;
	uint32_t first = 0, stored = 0, added = 0;

	expect(g->microbatches > 1 && plancheck_fault(p) == NULL, "a plan with a tied head");
	for (uint32_t k = g->embed; k <= g->head; k++)
		for (uint32_t i = 0; i < p->prog[k][BACKWARD].n; i++) {
			struct launch *l = &p->prog[k][BACKWARD].a[i];
			const struct op_row *r = op_row(l->op.op);
			bool writes = false;
			for (uint8_t a = r->nin; a < r->nin + r->nout; a++)
				writes |= g->tensor.a[l->op.arg[a]].class == T_GRAD;
			first += l->first;
			stored += l->stores != 0;
			added += writes && !l->first;
			expect(l->first <= writes && (l->stores != 0) <= l->first,
			    "what writes no gradient stores none");
			expect(!l->stores ||
				   (strstr(p->inst->a[l->stores].name, "_store") &&
				       p->inst->a[l->stores].bytes < p->inst->a[l->inst].bytes),
			    "storing reads less than adding");
			if (!writes)
				continue;
			l->first = !l->first;
			expect(plancheck_fault(p) != NULL, "a gradient not stored once");
			l->first = !l->first;
		}
	expect(added == 1 && stored > 10 && first == stored + 1,
	    "all but a table's and a head's gradients are stored");
	expect(plancheck_fault(p) == NULL, "the plan as it was before faults of gradients");
	g->microbatches = 1;
	p = plan(s);
	for (uint32_t i = 0; i < p->prog[g->head][BACKWARD].n; i++)
		expect(!p->prog[g->head][BACKWARD].a[i].stores ||
			   p->prog[g->head][BACKWARD].a[i].stores ==
			       p->prog[g->head][BACKWARD].a[i].inst,
		    "of one microbatch nothing is added to");
}

static void
conditions(void)
{
	static const struct {
		const char *where;
		bool holds;
	} cases[] = { { "", true }, { "arch=90a", true }, { "arch=90", false },
		{ "arch=100a", false }, { "weights=bf16", true }, { "weights=fp8", false },
		{ "m>=64", true }, { "m>=65", false }, { "m<=64", true }, { "m<=63", false },
		{ "m%64", true }, { "m%65", false }, { "m*k>=6400", true }, { "m*k>=6401", false },
		{ "arch=90a m>=64 k%4", true }, { "arch=90a m>=64 k%3", false },
		{ "arch=100a m>=64", false } };
	static const char *const target[] = { "cuda:sm_90a", "cuda:sm_100a", "cpu" },
				 *const file[] = { "attention_sm90.h", "attention_mma.h",
					 "attention.h" },
				 *const says[] = { "attention_sm90.h  where arch=90a\n",
					 "attention_mma.h  for all others\n", NULL };
	struct sizes z = { 0 };

	z.v['m' - 'a'] = 64;
	z.v['k' - 'a'] = 100;
	z.bound['m' - 'a'] = z.bound['k' - 'a'] = true;
	for (uint32_t i = 0; i < LEN(cases); i++)
		expect(kernel_holds(cases[i].where, "90a", "bf16", &z) == cases[i].holds,
		    cases[i].where);
	for (uint32_t i = 0; i < LEN(target); i++) {
		struct plan *p = streams_plan(path, target[i], 1, NULL);
		struct buf b = { 0 };
		for (uint32_t k = 1; k < p->inst->n; k++)
			if (p->inst->a[k].kernel->op == OP_attention)
				expect(!strcmp(p->inst->a[k].kernel->file, file[i]), file[i]);
		plan_report(p, &b);
		expect(says[i] ? strstr(b.s, says[i]) != NULL : !strstr(b.s, "chosen"), b.s);
	}
}

/* A product by cuBLASLt would be a row of kernel.def; here one is made to call it. */
static void
libraries(void)
{
	struct plan *p = streams_plan(path, "cuda:h200", 1, NULL);
	struct kernel_row lt = *p->inst->a[1].kernel;
	struct buf before = { 0 }, after = { 0 }, cpu = { 0 };

	plan_report(p, &before);
	for (const struct library *l = plan_libraries; l->name; l++)
		if (!strcmp(l->name, "cuBLASLt"))
			lt.library = l;
	p->inst->a[1].kernel = &lt;
	plan_report(p, &after);
	expect(strstr(before.s, "libcuda.so.1") && !strstr(before.s, "cublas"),
	    "a GPU's trainer opens the driver alone");
	expect(strstr(after.s, "libcuda.so.1") && strstr(after.s, "libcublasLt.so.13  licence: "),
	    "what a kernel calls, with its licence");
	plan_report(streams_plan(path, "cpu", 1, NULL), &cpu);
	expect(!strstr(cpu.s, "libraries"), "one rank on a processor needs none");
	plan_report(streams_plan(path, "cpu", 1, "data"), &cpu);
	expect(strstr(cpu.s, "Open MPI") != NULL, "several ranks need what joins them");
}

static void
timelines(void)
{
	static const struct {
		struct layout l;
		const char *says[5];
	} want[] = {
		{ { "1f1b", 2, 1, .microbatches = 3 },
		    { "  25.0 %", "\n  stage 0   F0F1....B0--F2B1--..B2--\n",
			"\n  stage 1   ..F0B0--F1B1--F2B2--..", " 2 microbatches in flight" } },
		{ { "v", 2, 2, .microbatches = 2 },
		    { "\n  stage 0   F0a......F0bB0b---F1a......F1bB1b---",
			" 2 + 1 microbatches in flight",
			" stage 0: embedding, layers 0 .. 0; layers 3 .. 3, head\n" } },
		{ { "gpipe", 2, 1, .microbatches = 64 }, { " columns, 2 of 2 stages)\n" } },
		/* 64 times 8 tokens of 16 fp32 */
		{ { "1f1b", 2, 1, .microbatches = 64 },
		    { "activations                      32.0 KiB" } },
		/* to the next stage and from it, forward and backward; the middle stays */
		{ { "v", 2, 2, .microbatches = 2 },
		    { " stage 1\n  activations                      2.00 KiB" } },
		/* half of 16 rows of 64 bytes, of each of 4 microbatches, forward and backward */
		{ { "1f1b", 1, 1, 4, .data = 2, .expert = 2, .layers = 2 },
		    { "expert rows sent                 4.00 KiB",
			"expert rows returned             4.00 KiB" } },
		/* and of the 8 that there is room for */
		{ { "1f1b", 1, 1, 4, .data = 2, .expert = 2, .layers = 2, .capacity = "0.5" },
		    { "expert rows sent                 2.00 KiB" } },
	};

	for (uint32_t i = 0; i < LEN(want); i++) {
		struct shard *s = layout_shard(want[i].l);
		struct buf b = { 0 };
		fuse(s);
		plan_report(plan(s), &b);
		for (uint32_t k = 0; k < LEN(want[i].says) && want[i].says[k]; k++)
			expect(strstr(b.s, want[i].says[k]) != NULL,
			    xprintf("plan %u says no %s:\n%s", i, want[i].says[k], b.s));
	}
}

/* What an op may do without is another kernel's, or none's. */
static void
optional_arguments(void)
{
	static const struct {
		const char *b, *draw, *macro;
	} want[] = { { NULL, NULL, "OM_ROUTE" }, { "b", NULL, "OM_ROUTE_BIASED" },
		{ NULL, "draw", "OM_ROUTE_RANDOM" }, { "b", "draw", NULL } };
	struct graph *g = graph_of(trainer_of(path, NULL, 0, NULL));

	for (uint32_t i = 0; i < LEN(want); i++) {
		struct op o = *graph_route(&g->seg.a[g->kind_of[1]]);
		struct sizes z;
		o.arg[1] = want[i].b ? graph_tensor(g, "b", T_BUFFER, ROLE_STAT, g->embed) : 0;
		o.arg[2] =
		    want[i].draw ? graph_tensor(g, "draw", T_INPUT, ROLE_INT64, g->embed) : 0;
		g->tensor.a[o.arg[1]].ndims = g->tensor.a[o.arg[2]].ndims = 1;
		g->tensor.a[o.arg[2]].dim[0] = 3;
		g->tensor.a[o.arg[1]].dim[0] = g->tensor.a[o.arg[0]].dim[1];
		const struct kernel_row *k = kernel_for(g, target_find(targets, "cpu"), &o);
		expect(k ? want[i].macro && !strcmp(k->macro, want[i].macro) : !want[i].macro,
		    "a kernel that takes just these");
		expect(!op_bind(g, &o, &z), "any of them may be missing");
		o.arg[0] = 0;
		expect(op_bind(g, &o, &z) != NULL, "others may not");
	}
	static const struct {
		bool lots, master;
		const char *macro;
	} update[] = { { false, false, "OM_ADAMW" }, { false, true, "OM_ADAMW_MASTER" },
		{ true, true, "OM_ADAMW_DRAWN" }, { true, false, NULL } };
	const struct oplist *l = &g->seg.a[g->update].ops[FORWARD];
	for (uint32_t i = 0; i < LEN(update); i++) {
		struct op o = l->a[l->n - 1];
		expect(o.op == OP_adamw, "the last op steps a parameter");
		int lots = op_find_arg(op_row(o.op), (struct word){ "lots", 4 });
		int master = op_find_arg(op_row(o.op), (struct word){ "master", 6 });
		o.arg[lots] =
		    update[i].lots ? graph_tensor(g, "lots", T_INPUT, ROLE_INT64, g->embed) : 0;
		g->tensor.a[o.arg[lots]].ndims = 1;
		g->tensor.a[o.arg[lots]].dim[0] = 5;
		o.arg[master] = update[i].master ? o.arg[master + 1] : 0;
		const struct kernel_row *k = kernel_for(g, target_find(targets, "cpu"), &o);
		expect(k ? update[i].macro && !strcmp(k->macro, update[i].macro) : !update[i].macro,
		    "a kernel that takes just those two");
	}
}

/* Rows in a format of blocks, which need experts to begin at multiples of 128, go through. */
static void
aligned_rows(void)
{
	static const struct layout all[] = {
		{ "1f1b", 1, 1, 4, .layers = 2 },
		{ "1f1b", 1, 1, 4, .data = 4, .expert = 2, .layers = 2 },
		{ "v", 2, 2, 4, .data = 2, .expert = 2, .capacity = "1.3" },
	};
	struct target_row short_numbers = *target_find(targets, "cpu");
	const struct format *blocks = format_find("fp8_block");
	struct target_kind kind = *short_numbers.kind;

	kind.least_bytes = 1;
	short_numbers.kind = &kind;
	for (uint32_t i = 0; i < 2 * LEN(all); i++) {
		bool wide =
		    i >= LEN(all); /* where kernels know nothing so short, any row will do */
		struct graph *g = graph_of(layout_trainer(all[i % LEN(all)]));
		g->format[ROLE_ROWS] = blocks;
		struct shard *s = shard(g, wide ? target_find(targets, "cpu") : &short_numbers);
		fuse(s);
		struct plan *p = plan(s);
		const char *fault = rankcheck_fault(s);
		uint64_t c = shard_capacity(s, g->seg.a[g->kind_of[1]].ffn), rows = 0, d = 0;
		for (uint32_t k = 0; k < p->n_stages && !fault; k++)
			fault = plancheck_fault(&p[k]);
		expect(!fault, fault ? fault : "");
		expect(s->expert_rows == (wide ? 1 : 128) && c % s->expert_rows == 0,
		    "an expert's rows begin where they must");
		for (tensor_id t = 1; t < g->tensor.n; t++)
			if (g->tensor.a[t].role == ROLE_ROWS && !wide) {
				d = g->tensor.a[t].dim[1];
				rows++;
				expect(
				    g->tensor.a[t].dim[0] == c, "rows are those of the capacity");
				expect(shard_bytes(s, t) == c * (d + (d + 127) / 128 * 4),
				    "bytes of rows of blocks");
			}
		expect(wide || rows > 3, "rows are sent");
		diag_trial(DIAG_NONE);
		plan_buildable(p);
		expect((diag_tried() == TRIAL_NEW) == (wide && s->mesh.size[OM_EXPERT] > 1),
		    "kernels begin at multiples of 128, and do not round to blocks");
		diag_trial_end();
	}
}

/* Equal sizes in another format are another instance, and each role has a format of its own. */
static void
formats_apart(void)
{
	struct shard *s = shard_of(trainer_of(path, NULL, 0, NULL));
	struct graph *g = s->graph;
	uint32_t adds[2] = { 0 };

	for (int k = 0; k < 2; k++) {
		const struct plan *p = plan(s);
		for (uint32_t i = 1; i < p->inst->n; i++)
			adds[k] += p->inst->a[i].kernel->op == OP_add;
		/* the residual connection's, of two layers with equal sizes */
		for (uint32_t i = 0; i < g->seg.a[g->embed + 1].ops[FORWARD].n; i++) {
			const struct op *o = &g->seg.a[g->embed + 1].ops[FORWARD].a[i];
			if (o->op == OP_add)
				g->tensor.a[o->arg[1]].format = format_find("fp64");
		}
	}
	expect(adds[1] > adds[0], "a kernel in two formats is two instances");
	g = graph_of(trainer_of(path, NULL, 0, NULL));
	for (enum role r = 0; r < N_ROLES; r++)
		g->format[r] = format_find(r == ROLE_MOMENT ? "bf16" : "fp32");
	tensor_id x = graph_tensor(g, "x", T_ACT, ROLE_ACT, g->embed);
	tensor_id m = graph_tensor(g, "m", T_ACT, ROLE_MOMENT, g->embed);
	expect(g->tensor.a[x].format == format_find("fp32") &&
		   g->tensor.a[m].format == format_find("bf16"),
	    "a tensor has the format of its role");
}

/* ---- three phases ---- */

/* Makes the rooms of a life longer by so many bytes that nobody has; all behind them moves. */
static void
lengthen(struct plan *p, uint32_t life, uint64_t bytes)
{
	uint64_t more = bytes * p->shard->stage[p->stage].rooms[life];
	uint64_t end = p->region_off[R_SAVED] + p->kept[life].off +
		       p->kept[life].stride * p->shard->stage[p->stage].rooms[life];

	for (tensor_id t = 1; t < p->graph->tensor.n; t++)
		if (p->place[t].bytes && p->place[t].off >= end)
			p->place[t].off += more;
	for (uint32_t s = 0; s < p->graph->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < p->prog[s][ph].n; i++)
				if (p->prog[s][ph].a[i].workspace_bytes)
					p->prog[s][ph].a[i].workspace += more;
	for (int r = R_SAVED + 1; r < N_REGIONS; r++)
		p->region_off[r] += more;
	for (uint32_t l = life + 1; l < N_LIVES; l++)
		p->kept[l].off += more;
	p->kept[life].stride += bytes;
	p->region_bytes[R_SAVED] += more;
	p->arena_bytes += more;
}

/* All tensors that share a buffer. */
static void
move(struct plan *p, const struct place *from, const struct place *to)
{
	const struct place old = *from;

	for (tensor_id t = 1; t < p->graph->tensor.n; t++)
		if (p->place[t].region == old.region && p->place[t].off == old.off &&
		    p->place[t].kind == old.kind)
			p->place[t] = *to;
}

/*
 * What is kept moves, by itself, to where there is room for another life: at the wrong times it is
 * another microbatch's.
 */
static void
wrong_lives(struct plan *p, uint32_t from, uint32_t to, const char *what)
{
	uint32_t caught = 0, tried = 0;

	for (tensor_id t = 1; t < p->graph->tensor.n; t++) {
		struct place *pl = &p->place[t];
		uint32_t layers = p->graph->seg.a[p->graph->tensor.a[t].seg].nlayers + 1;
		if (pl->region != R_SAVED || pl->kind != PLACE || pl->life != from ||
		    p->graph->tensor.a[t].class != T_ACT)
			continue;
		uint64_t bytes = (pl->bytes + 255) / 256 * 256;
		lengthen(p, to, bytes * layers);
		if (plancheck_fault(p))
			expect(false, "longer rooms change nothing");
		const struct place old = *pl;
		const struct place new = { PLACE, R_SAVED,
			p->region_off[R_SAVED] + p->kept[to].off + p->kept[to].stride -
			    bytes * layers,
			pl->bytes, bytes, false, (uint8_t)to };
		move(p, &old, &new);
		const char *said = plancheck_fault(p);
		tried++;
		caught += said && strstr(said, "another microbatch's");
		move(p, &new, &old);
	}
	expect(tried && caught == tried, xprintf("%s: %u of %u are caught", what, caught, tried));
}

/* Gradients of weights as a phase of their own, which other microbatches' phases come before. */
static void
three_phases(void)
{
	static const struct layout all[] = {
		{ "1f1b", 1, 1, 4, .layers = 3, .split = true },
		{ "gpipe", 2, 1, 4, .layers = 4, .split = true },
		{ "v", 2, 2, 4, .layers = 6, .split = true },
		{ "1f1b", 2, 1, 4, .data = 2, .expert = 2, .layers = 4, .split = true },
	};

	for (uint32_t i = 0; i < LEN(all); i++) {
		struct shard *s = layout_shard(all[i]);
		struct layout two = all[i];
		two.split = false;
		struct plan *p, *once = plan(layout_shard(two));
		fuse(s);
		p = plan(s);
		for (uint32_t k = 0; k < p->n_stages; k++) {
			const char *said = plancheck_fault(&p[k]);
			expect(!said, xprintf("three phases, layout %u: %s", i, said));
			/* lives: to backward, from forward to weights, from backward to weights */
			expect(p[k].kept[0].stride && p[k].kept[1].stride && p[k].kept[2].stride &&
				   p[k].kept[0].stride < once[k].kept[0].stride &&
				   !once[k].kept[1].stride && !once[k].kept[2].stride,
			    "each life has rooms of its own");
			wrong_lives(&p[k], 1, 0, "a life that ends a phase too soon");
			wrong_lives(&p[k], 1, 2, "a life that begins a phase too late");
			wrong_lives(&p[k], 2, 0, "a life of backward and weights");
		}
	}
}

int
main(void)
{
	plan_faults();
	stream_faults();
	rounding_faults();
	no_decode();
	buckets(true);
	buckets(false);
	optional_arguments();
	aligned_rows();
	formats_apart();
	conditions();
	stores("cpu");
	stores("cuda:sm_90a");
	libraries();
	three_phases();
	timelines();
	return check_end();
}
