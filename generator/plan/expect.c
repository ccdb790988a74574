/* How long a step should take: launch by launch, from measured rates (rate.def). */
#include <math.h>
#include <string.h>

#include "plan/plan.h"

static const struct rate {
	enum op_id op; /* N_OPS: those of no other row */
	enum expected_part part;
	const char *target, *where;
	double tflops, gbs, us;
} rates[] = {
#define RATE(op, part, ...) { OP_##op, part, __VA_ARGS__ },
#define RATE_OTHER(part, target, ...) { N_OPS, part, target, "", __VA_ARGS__ },
#include "rate.def"
};

/* The first row of the op, or of others, for the target's kind of kernels; NULL: there is none. */
static const struct rate *
rate_of(const struct plan *p, const struct op *o, bool multiplies)
{
	const struct sizes z = op_sizes(p->graph, o);
	const char *weights = p->graph->format[ROLE_WEIGHT]->name;
	const struct rate *other = NULL;

	for (uint32_t i = 0; i < LEN(rates); i++) {
		const struct rate *r = &rates[i];
		if (target_find(targets, r->target)->kind != p->target->kind)
			continue;
		if (r->op == o->op && kernel_holds(r->where, p->target->arch, weights, &z))
			return r;
		if (r->op == N_OPS && (r->tflops > 0) == multiplies)
			other = r;
	}
	return other;
}

double
expected_seconds(double flops, double bytes, double tflops, double gbs, double us)
{
	double multiply = tflops > 0 ? flops / (tflops * 1e12) : 0;

	return hypot(multiply, bytes / (gbs * 1e9)) + us * 1e-6;
}

/* Adds so many calls of a launch to what a stage does in a step. */
static void
add_calls(
    const struct plan *p, const struct launch_at *at, bool stores, double calls, struct expected *e)
{
	const struct cost c = plan_cost(p, at->launch, stores);
	const struct rate *r = rate_of(p, &at->launch->op, c.flops > 0);
	const struct target_row *from = r ? target_find(targets, r->target) : NULL;

	if (!r) {
		e->known = false;
		return;
	}
	double flops = from->tflops > 0 ? p->target->tflops / from->tflops : 1;
	double bytes = from->memory_gbs > 0 ? p->target->memory_gbs / from->memory_gbs : 1;
	e->seconds[at->seg == p->graph->update ? OPTIMIZER : r->part] +=
	    calls * expected_seconds(c.flops, c.bytes, r->tflops * flops, r->gbs * bytes, r->us);
	if (flops < 1 || flops > 1 || bytes < 1 || bytes > 1)
		e->scaled_from = from;
}

/* Of one stage, without the bubble. */
static struct expected
stage_expected(const struct plan *p)
{
	const struct graph *g = p->graph;
	struct expected e = { .known = true };

	for (struct launch_at at = { 0 }; e.known && plan_next(p, &at);) {
		const struct segment *seg = &g->seg.a[at.seg];
		double layers = seg->nlayers ? (double)stage_kind(p->here, seg) : 1;
		bool stores = at.launch->stores != 0;
		if (runtime_call(at.launch->op.op)) /* among what is sent */
			continue;
		if (at.seg == g->update) {
			add_calls(p, &at, false, (double)at.launch->layers, &e);
		} else if (at.seg >= g->embed && at.seg <= g->head) {
			add_calls(p, &at, false, ((double)g->microbatches - stores) * layers, &e);
			add_calls(p, &at, true, stores * layers, &e);
		}
	}
	for (uint32_t c = 0; c < p->here->comm.n && p->target->link_gbs > 0; c++)
		e.seconds[COMMUNICATION] +=
		    (double)p->here->comm.a[c].bytes / (p->target->link_gbs * 1e9);
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
	uint64_t **none = xalloc(s->nstages * sizeof *none);
	return 1 -
	       SCHEDULE_COST * n * chunks / (double)schedule_run(s, s->stage[0].nsteps - 1, none);
}

struct expected
plan_expected(const struct plan *p)
{
	struct expected e = stage_expected(p);

	for (uint32_t i = 1; i < p->n_stages; i++) {
		struct expected x = stage_expected(&p[i]);
		if (x.step > e.step)
			e = x;
	}
	e.known &= p->target->tflops > 0;
	e.bubble = bubble(p->shard);
	e.seconds[BUBBLE] = (e.seconds[PRODUCTS] + e.seconds[ATTENTION] + e.seconds[ROWS]) *
			    e.bubble / (1 - e.bubble);
	e.step += e.seconds[BUBBLE];
	return e;
}
