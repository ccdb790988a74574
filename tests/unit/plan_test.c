/*
 * The verifiers must object: gradients dropped, shapes bent, buffers overlapped, steps swapped,
 * events left out. Usage: plan_test DESCRIPTION.lua, run under sanitizers.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plan/plan.h"

static const char *path, *weights; /* weights: in another format than the description's */
static int passed, failed;

static void
expect(bool ok, const char *what)
{
	if (ok) {
		passed++;
	} else {
		failed++;
		printf("FAIL %s\n", what);
	}
}

static struct graph *
make_graph(void)
{
	struct spec s = { 0 };
	struct buf resolved = { 0 };
	struct define precision = { "weights", weights, false };

	load(path, &precision, weights != NULL, &s);
	check(s.trainer[0], targets, NULL);
	const struct value *ffn =
	    spec_value(spec_obj(s.trainer[0], F_trainer_model), F_transformer_feed_forward);
	for (uint32_t i = 0; i < ffn->n; i++) /* so that there are buffers, too */
		if (ffn->list[i]->type == OBJ_moe)
			spec_value(spec_obj(ffn->list[i], F_moe_router), F_router_bias_gamma)->num =
			    0.001;
	spec_print(s.trainer[0], true, &resolved);
	struct graph *g = graph_build(s.trainer[0]);
	if (diag_flush())
		exit(1);
	return g;
}

static struct plan *
make_plan(void)
{
	struct graph *g = make_graph();
	struct shard *s = shard(g, target_find(targets, spec_str(g->trainer, F_trainer_target)));

	fuse(s);
	return plan(s);
}

/* ---- the graph: each fault in a child, which must end as an internal error ---- */

static struct oplist *
list(struct graph *g, const char *seg, int phase)
{
	for (uint32_t s = 0; s < g->seg.n; s++)
		if (!strcmp(g->seg.a[s].name, seg))
			return &g->seg.a[s].ops[phase];
	abort();
}

static struct op *
find(struct oplist *l, enum op_id id)
{
	for (uint32_t i = 0; i < l->n; i++)
		if (l->a[i].op == id)
			return &l->a[i];
	abort();
}

static void
drop(struct oplist *l, struct op *o)
{
	memmove(o, o + 1, (size_t)(l->a + l->n - (o + 1)) * sizeof *o);
	l->n--;
}

static void
drop_gradient(struct graph *g)
{
	struct oplist *l = list(g, "moe", BACKWARD);
	drop(l, find(l, OP_grouped_dw));
}

static void
drop_forward(struct graph *g)
{
	struct oplist *l = list(g, "moe", FORWARD);
	drop(l, find(l, OP_route_map));
}

static void
drop_update(struct graph *g)
{
	struct oplist *l = list(g, "update", FORWARD);
	drop(l, find(l, OP_adamw));
}

static void
drop_bias_update(struct graph *g)
{
	struct oplist *l = list(g, "update", FORWARD);
	drop(l, find(l, OP_bias_update));
}

static void
update_twice(struct graph *g)
{
	struct oplist *l = list(g, "update", FORWARD);
	struct op *o = find(l, OP_adamw);
	o[1] = o[0];
}

static void
wrong_shape(struct graph *g)
{
	g->tensor.a[find(list(g, "dense", FORWARD), OP_linear)->arg[2]].dim[1]++;
}

static void
wrong_dtype(struct graph *g)
{
	g->tensor.a[find(list(g, "moe", FORWARD), OP_route_biased)->arg[0]].dtype = DT_ACT;
}

static void
wrong_argument(struct graph *g)
{
	struct op *o = find(list(g, "moe", BACKWARD), OP_grouped_dx);
	o->arg[1] = o->arg[0];
}

static void
missing_argument(struct graph *g)
{
	find(list(g, "moe", FORWARD), OP_combine)->arg[1] = 0;
}

static void
defined_twice(struct graph *g)
{
	struct oplist *l = list(g, "dense", FORWARD);
	find(l, OP_rmsnorm)->arg[2] = find(l, OP_linear)->arg[0];
	*PUSH(*l) = *find(l, OP_rmsnorm);
}

static void
swapped_order(struct graph *g)
{
	struct op *o = find(list(g, "moe", FORWARD), OP_dispatch), t = o[0];
	o[0] = o[1];
	o[1] = t;
}

static void
no_stream_gradient(struct graph *g)
{
	for (uint32_t s = 0; s < g->seg.n; s++)
		g->seg.a[s].dx = 0;
}

static void
graph_faults(void)
{
	static const struct {
		const char *name;
		void (*plant)(struct graph *g);
	} fault[] = {
		{ "dropped gradient", drop_gradient },
		{ "dropped forward op", drop_forward },
		{ "dropped update", drop_update },
		{ "dropped update of a buffer", drop_bias_update },
		{ "parameter updated twice", update_twice },
		{ "wrong shape", wrong_shape },
		{ "wrong dtype", wrong_dtype },
		{ "wrong argument", wrong_argument },
		{ "missing argument", missing_argument },
		{ "tensor defined twice", defined_twice },
		{ "swapped ops", swapped_order },
		{ "no stream gradient", no_stream_gradient },
	};

	graph_verify(make_graph());
	for (unsigned i = 0; i < LEN(fault); i++) {
		int status = 0;
		fflush(stdout);
		pid_t child = fork();
		if (!child) {
			struct graph *g = make_graph();
			if (!freopen("/dev/null", "w", stderr))
				_exit(1);
			fault[i].plant(g);
			graph_verify(g);
			_exit(0);
		}
		expect(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
			   WEXITSTATUS(status) == EXIT_INTERNAL,
		    fault[i].name);
	}
}

/* ---- the plan ---- */

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
					if (a->kind != PLACE || b->kind != PLACE ||
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
	for (tensor_id t = 1; t < g->tensor.n; t++) {
		struct place old = p->place[t];
		if (g->tensor.a[t].class != T_CACHE || g->tensor.a[t].seg != moe)
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
	for (uint32_t i = 0; i < prog->n; i++) {
		struct launch a = prog->a[i];
		memmove(&prog->a[i], &prog->a[i + 1], (prog->n - i - 1) * sizeof a);
		prog->n--;
		expect(plancheck_fault(p) != NULL, "a step of decode left out");
		memmove(&prog->a[i + 1], &prog->a[i], (prog->n - i) * sizeof a);
		prog->n++;
		prog->a[i] = a;
	}
	expect(plancheck_fault(p) == NULL, "the plan as it was before faults of decode");
}

/* A target that lacks a kernel of decode plans the same training, and nothing of decode. */
static void
no_decode(void)
{
	struct spec s = { 0 };
	struct buf resolved = { 0 };

	load(path, NULL, 0, &s);
	check(s.trainer[0], targets, "cuda:sm_90a");
	spec_print(s.trainer[0], true, &resolved);
	struct shard *sh = shard(graph_build(s.trainer[0]), target_find(targets, "cuda:sm_90a"));
	fuse(sh);
	struct plan *p = plan(sh);
	expect(p->decode == (kernel_for(OP_attention_at, "cuda") != NULL), "decode by its kernels");
	expect(plancheck_fault(p) == NULL, "a plan for cuda");
	for (uint32_t i = p->graph->decode; i < p->graph->seg.n; i++)
		expect(p->decode == (p->prog[i][FORWARD].n > 0), "programs of decode");
	for (tensor_id t = 1; t < p->graph->tensor.n; t++)
		if (p->graph->tensor.a[t].seg >= p->graph->decode && !p->decode)
			expect(!p->place[t].bytes, "no memory for what is not there");
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

	for (tensor_id t = 1; t < g->tensor.n; t++)
		if (g->tensor.a[t].class == T_PARAM && g->tensor.a[t].seg == moe) {
			uint64_t stride = p->place[t].stride;
			p->place[t].stride = 0;
			expect(
			    plancheck_fault(p) != NULL, "layers of a weight on top of each other");
			p->place[t].stride = stride;
		}
	for (tensor_id t = 1; t < g->tensor.n; t++)
		if (p->place[t].kind == STREAM && g->tensor.a[t].seg == moe) {
			uint64_t stride = p->place[t].stride;
			p->place[t].stride = 0;
			expect(plancheck_fault(p) != NULL,
			    "one entry of the residual stream for all layers");
			p->place[t].stride = stride;
			break;
		}

	for (uint32_t i = 0; i < bwd->n; i++)
		if (bwd->a[i].workspace_bytes) {
			uint64_t old = bwd->a[i].workspace;
			bwd->a[i].workspace = p->place[bwd->a[i].op.arg[0]].off;
			expect(plancheck_fault(p) != NULL, "workspace on top of an input");
			bwd->a[i].workspace = old;
		}
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
	for (uint32_t i = 0; i < fwd->n; i++) {
		struct launch a = fwd->a[i];
		memmove(&fwd->a[i], &fwd->a[i + 1], (fwd->n - i - 1) * sizeof a);
		fwd->n--;
		expect(plancheck_fault(p) != NULL, "a step left out");
		memmove(&fwd->a[i + 1], &fwd->a[i], (fwd->n - i) * sizeof a);
		fwd->n++;
		fwd->a[i] = a;
	}

	/* the first step that reads what the step before it wrote, moved to another stream */
	for (uint32_t i = 1; i < fwd->n; i++) {
		fwd->a[i].stream = 1;
		expect(plancheck_fault(p) != NULL, "a stream that waits for nothing");
		if (i + 1 < fwd->n) {
			fwd->a[i].wait = (int32_t)i - 1;
			fwd->a[i + 1].wait = (int32_t)i;
			/* later readers on stream 0 are behind the second event */
			expect(plancheck_fault(p) == NULL, "a stream behind events both ways");
			fwd->a[i + 1].wait = -1;
			/*
			 * the last step's output goes to the next segment, which this plan does not
			 * let wait
			 */
			expect(plancheck_fault(p) != NULL, "no event back");
			fwd->a[i].wait = -1;
		}
		fwd->a[i].stream = 0;
	}
	fwd->a[1].wait = 5;
	expect(plancheck_fault(p) != NULL, "an event from the future");
	fwd->a[1].wait = -1;
	expect(plancheck_fault(p) == NULL, "the plan as it was");
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

int
main(int argc, char **argv)
{
	path = argc > 1 ? argv[1] : "models/tiny.lua";
	graph_faults();
	plan_faults();
	rounding_faults();
	no_decode();
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
