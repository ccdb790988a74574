/*
 * What every graph must satisfy, after gradients and after each rewrite. A failure is olmogen's own
 * bug.
 */
#include <string.h>

#include "graph/graph.h"

/*
 * A tensor that ops may read without an op having written it in the same segment and phase order.
 */
static bool
given(const struct graph *g, const struct segment *seg, tensor_id id)
{
	enum tensor_class c = g->tensor.a[id].class;
	return (c != T_ACT && c != T_COPY) || id == seg->x || id == seg->dy;
}

/* Parts of one tensor have its rows together, and know it. */
static void
merged(const struct graph *g, tensor_id id)
{
	const struct tensor *t = &g->tensor.a[id];
	const struct part_list all = tensor_parts(g, id);
	uint64_t rows = 0;

	for (uint8_t i = 0; all.a[i]; i++) {
		const struct tensor *x = &g->tensor.a[all.a[i]];
		rows = size_add(rows, x->dim[0]);
		if (x->whole != id || x->class != T_PARAM || x->seg != t->seg ||
		    x->role != t->role || x->format != t->format || x->ndims != t->ndims ||
		    memcmp(x->dim + 1, t->dim + 1, sizeof x->dim - sizeof *x->dim))
			internal("graphverify: %s is no part of %s", x->name, t->name);
	}
	if (rows != t->dim[0])
		internal("graphverify: %s has not the rows of its parts", t->name);
}

/* By tensor: an op has written it, a parameter was updated, a gradient added to. */
struct seen {
	uint8_t *defined, *updated, *summed;
};

/* What an op may read, define and add to, after those before it. */
static void
check_op(const struct graph *g, const struct op_at *at, struct seen *seen)
{
	const struct segment *seg = &g->seg.a[at->seg];
	const struct op *o = at->op;
	const struct op_row *r = op_row(o->op);
	struct sizes z;

	if (at->phase > g->last_phase)
		internal("graphverify: %s: there is no phase for %s", seg->name, r->name);
	const char *fault = op_bind(g, o, &z);
	if (fault)
		internal("graphverify: %s: %s", seg->name, fault);
	if (r->last && at->phase != g->last_phase)
		internal("graphverify: %s: %s belongs to the last phase", seg->name, r->name);
	if (r->first && at->phase != FORWARD)
		internal("graphverify: %s: %s belongs to the first phase", seg->name, r->name);
	if (r->step != (at->seg == g->update))
		internal("graphverify: %s: %s belongs to %s", seg->name, r->name,
		    r->step ? "the update" : "a pass");
	for (uint8_t a = 0; a < r->nin; a++) {
		const struct tensor *t = &g->tensor.a[o->arg[a]];
		if (!given(g, seg, o->arg[a]) && (!seen->defined[o->arg[a]] || t->seg != at->seg))
			internal("graphverify: %s: %s reads %s before it is written", seg->name,
			    r->name, t->name);
	}
	for (uint8_t a = r->nin; a < r->nargs; a++) {
		tensor_id id = o->arg[a];
		const struct tensor *t = &g->tensor.a[id];
		bool acc = r->arg[a].accumulate;
		if (acc == (t->class == T_ACT || t->class == T_COPY || t->class == T_CONST))
			internal("graphverify: %s: %s %s %s", seg->name, r->name,
			    acc ? "adds to" : "overwrites", t->name);
		if (!acc && seen->defined[id]++)
			internal("graphverify: %s: %s is defined twice", seg->name, t->name);
		if (t->class == T_GRAD)
			seen->summed[id] = 1;
		if ((t->class == T_PARAM || t->class == T_BUFFER) && !r->collective &&
		    seen->updated[id]++)
			internal("graphverify: %s is updated twice", t->name);
	}
}

void
graph_verify(const struct graph *g)
{
	struct seen seen = { xalloc(g->tensor.n), xalloc(g->tensor.n), xalloc(g->tensor.n) };

	for (struct op_at at = { 0 }; graph_next(g, &at);)
		check_op(g, &at, &seen);
	for (uint32_t s = 0; s < g->update; s++) {
		const struct segment *seg = &g->seg.a[s];
		if (seg->nlayers && (!seg->dx || !seg->dy))
			internal("graphverify: %s: the residual stream has no gradient", seg->name);
	}
	for (uint32_t i = 1; i < g->tensor.n; i++) {
		const struct tensor *t = &g->tensor.a[i];
		bool kept = t->class == T_PARAM || t->class == T_BUFFER;
		if (kept && !seen.updated[i])
			internal("graphverify: %s is never updated", t->name);
		if (kept != (t->copies != OM_ALONE))
			internal("graphverify: %s: which ranks hold copies of it?", t->name);
		if ((t->class == T_GRAD || t->class == T_STAT) != (t->sum != OM_ALONE))
			internal("graphverify: %s: which ranks' sums add up?", t->name);
		if (t->class == T_MERGED)
			merged(g, i);
		if (t->class != T_PARAM)
			continue;
		if (!t->grad || g->tensor.a[t->grad].param != i)
			internal("graphverify: %s has no gradient tensor", t->name);
		if (!seen.summed[t->grad])
			internal("graphverify: nothing adds to the gradient of %s", t->name);
	}
}
