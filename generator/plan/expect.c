/* How long a step should take: launch by launch, from measured rates (rate.def). */
#include <math.h>
#include <string.h>

#include "plan/plan.h"

const char *const plan_part_names[N_EXPECTED_PARTS] = { "products", "attention", "row kernels",
	"optimizer", "communication", "bubble" };

static const struct rate {
	enum op_id op; /* N_OPS: those of no other row */
	enum expected_part part;
	const char *kernels, *where;
	double tflops, gbs, us;
} rates[] = {
#define RATE(op, part, kernels, ...) { OP_##op, part, #kernels, __VA_ARGS__ },
#define RATE_OTHER(part, kernels, ...) { N_OPS, part, #kernels, "", __VA_ARGS__ },
#include "rate.def"
};

/* The first row of the op, or else of others, for the target's kind of kernels. */
static const struct rate *
rate_of(const struct plan *p, const struct op *o, bool multiplies)
{
	const struct sizes z = op_sizes(p->graph, o);
	const char *weights = p->graph->format[ROLE_WEIGHT]->name;
	const struct rate *other = NULL;

	for (const struct rate *r = rates; r < rates + LEN(rates); r++) {
		if (strcmp(r->kernels, p->target->kind->name))
			continue;
		if (r->op == o->op && kernel_holds(r->where, p->target->arch, weights, &z))
			return r;
		if (r->op == N_OPS && (r->tflops > 0) == multiplies)
			other = r;
	}
	if (!other)
		internal("rate.def: no rate of %s", op_row(o->op)->name);
	return other;
}

double
expected_seconds(double flops, double bytes, double tflops, double gbs, double us)
{
	double multiply = tflops > 0 ? flops / (tflops * 1e12) : 0;

	return hypot(multiply, bytes / (gbs * 1e9)) + us * 1e-6;
}

double
expected_sent(const struct target_row *t, const struct collective *c)
{
	double link = t->link_gbs * 1e9, network = t->network_gbs * 1e9, bytes = (double)c->bytes;
	double far = (double)(c->ranks - c->near), n = (double)c->ranks;

	if (link <= 0)
		return 0;
	if (c->near == c->ranks)
		return bytes / link;
	/* each pair has its own rows: those for this host go beside those for others */
	if (c->kind == ROW_DISPATCH || c->kind == ROW_COMBINE)
		return fmax(bytes * far / (n - 1) / network, bytes * (1 - far / (n - 1)) / link);
	/* of rings through all hosts each rank of a host drives one over the network */
	return bytes / fmin(link, network * (double)c->near);
}

static double
ratio(double a, double b)
{
	return b > 0 ? a / b : 1;
}

/*
 * What a call takes where only some of the rows that a rank has room for are there: balanced, as
 * many as it has routes.
 */
static struct cost
cost_there(const struct plan *p, const struct launch *l, bool stores)
{
	const struct graph *g = p->graph;
	const struct op_row *r = op_row(l->op.op);
	const struct tensor *rows = &g->tensor.a[l->op.arg[0]];
	struct cost c = plan_cost(p, l, stores);

	if (p->shard->mesh.size[OM_EXPERT] == 1 || op_find_arg(r, (struct word){ "off", 3 }) < 0)
		return c;
	double routes = (double)g->T * (double)spec_int(g->seg.a[rows->seg].ffn, F_moe_top_k);
	double away = fmax(0, 1 - routes / (double)rows->dim[0]);
	c.flops -= away * c.flops;
	for (uint8_t k = 0; k < r->nargs; k++)
		if (g->tensor.a[l->op.arg[k]].dim[0] == rows->dim[0])
			c.bytes -= away * (double)p->place[l->op.arg[k]].bytes;
	return c;
}

/* One call by the rates of a machine, and what part of a step that is. */
static double
call_seconds(const struct plan *p, const struct target_row *from, const struct launch *l,
    bool stores, enum expected_part *part)
{
	const struct target_row *t = p->target;
	const struct cost c = cost_there(p, l, stores);
	const struct rate *r = rate_of(p, &l->op, c.flops > 0);

	*part = r->part;
	return expected_seconds(c.flops, c.bytes, r->tflops * ratio(t->tflops, from->tflops),
	    r->gbs * ratio(t->memory_gbs, from->memory_gbs), r->us);
}

/* Whose rates hold for a target; NULL: nobody's. */
static const struct target_row *
measured_on(const struct target_row *t)
{
	return t->kind->measured ? target_find(targets, t->kind->measured) : NULL;
}

double
plan_seconds(const struct plan *p, const struct launch *l, enum expected_part *part)
{
	const struct target_row *from = measured_on(p->target);

	return from && p->target->tflops > 0 && !runtime_call(l->op.op)
		   ? call_seconds(p, from, l, false, part)
		   : 0;
}

/* Of one stage, without the bubble, by the rates of a machine. */
static struct expected
stage_expected(const struct plan *p, const struct target_row *from)
{
	const struct graph *g = p->graph;
	const struct target_row *t = p->target;
	struct expected e = { .known = from != NULL };

	for (struct launch_at at = { 0 }; from && plan_next(p, &at);) {
		const struct segment *seg = &g->seg.a[at.seg];
		bool update = at.seg == g->update, stores = !update && at.launch->stores;
		/* calls that add to a gradient, or have none; and that store it */
		double layers = seg->nlayers ? (double)stage_kind(p->here, seg) : 1;
		double calls[2] = { ((double)g->microbatches - stores) * layers, stores * layers };
		if (op_row(at.launch->op.op)->first)
			calls[0] = layers;
		if (update)
			calls[0] = (double)at.launch->layers;
		else if (at.seg < g->embed || at.seg > g->head)
			continue;
		for (int k = 0; k < 2 && !runtime_call(at.launch->op.op); k++) { /* that is sent */
			enum expected_part part;
			double call = call_seconds(p, from, at.launch, k, &part);
			e.seconds[update ? OPTIMIZER : part] += calls[k] * call;
		}
	}
	for (uint32_t c = 0; c < p->here->comm.n; c++)
		e.seconds[COMMUNICATION] += expected_sent(t, &p->here->comm.a[c]);
	for (int i = 0; i < N_EXPECTED_PARTS; i++)
		e.step += e.seconds[i];
	return e;
}

/* The share of a step's passes in which the average stage waits, if all take equally long. */
static double
bubble(const struct shard *s)
{
	double chunks = s->stage[0].nchunks, n = (double)s->graph->microbatches;

	if (s->nstages == 1)
		return 0;
	return 1 - SCHEDULE_COST * n * chunks /
		       (double)schedule_run(s, s->stage[0].nsteps - 1, NULL, 0);
}

struct expected
plan_expected(const struct plan *p)
{
	const struct target_row *t = p->target;
	const struct target_row *from = measured_on(t);
	struct expected e = stage_expected(p, from);

	for (uint32_t i = 1; i < p->n_stages; i++) {
		struct expected x = stage_expected(&p[i], from);
		if (x.step > e.step)
			e = x;
	}
	e.known &= t->tflops > 0;
	if (from && (from->tflops != t->tflops || from->memory_gbs != t->memory_gbs))
		e.scaled_from = from;
	e.bubble = bubble(p->shard);
	e.seconds[BUBBLE] = (e.seconds[PRODUCTS] + e.seconds[ATTENTION] + e.seconds[ROWS]) *
			    e.bubble / (1 - e.bubble);
	e.step += e.seconds[BUBBLE];
	return e;
}
