/*
 * Recomputation as a rewrite: the backward pass of a layer begins with copies of forward ops, and
 * reads what they give instead of what was kept. The forward pass stays as it is; tensors that the
 * backward pass no longer reads are no longer saved. Ops that add to statistics (the router) are
 * never repeated: what they give is small, and is kept.
 */
#include <string.h>

#include "olmogen.h"

static bool
repeatable(const struct op *o, const char *what)
{
	const struct op_row *r = op_row(o->op);

	if (!strcmp(what, "experts"))
		return o->op == OP_dispatch || o->op == OP_grouped || o->op == OP_glu_routed ||
		       o->op == OP_relu2_routed;
	for (uint8_t i = r->nin; i < r->nin + r->nout; i++)
		if (r->arg[i].accumulate)
			return false;
	if (!strcmp(what, "cheap"))
		return !strcmp(r->flops, "0");
	return !strcmp(what, "block");
}

/* A tensor for what an op gives the second time. */
static tensor_id
again(struct graph *g, uint32_t seg, tensor_id t)
{
	const char *name = g->tensor.a[t].name + strlen(g->seg.a[seg].name) + 1;
	struct tensor old = g->tensor.a[t];
	tensor_id n = graph_tensor(g, xprintf("re_%s", name), T_ACT, old.dtype, seg);

	g->tensor.a[n].ndims = old.ndims;
	memcpy(g->tensor.a[n].dim, old.dim, sizeof old.dim);
	g->tensor.a[n].rline = old.rline;
	return n;
}

void
recompute_segment(struct graph *g, uint32_t s, const char *what)
{
	struct segment *seg = &g->seg.a[s];
	const struct oplist *fwd = &seg->ops[FORWARD];
	struct oplist old = seg->ops[BACKWARD], bwd = { 0 };
	tensor_id *copy = xalloc(g->tensor.n * sizeof *copy);
	uint8_t *wanted = xalloc(g->tensor.n);

	for (uint32_t i = 0; i < old.n; i++)
		for (uint8_t k = 0; k < op_row(old.a[i].op)->nin; k++)
			wanted[old.a[i].arg[k]] = 1;
	/*
	 * backwards through the forward pass: an op is repeated if something wanted comes from it
	 */
	uint8_t *repeat = xalloc(fwd->n + 1);
	for (uint32_t i = fwd->n; i-- > 0;) {
		const struct op *o = &fwd->a[i];
		const struct op_row *r = op_row(o->op);
		for (uint8_t k = r->nin; k < r->nin + r->nout && repeatable(o, what); k++)
			repeat[i] |= wanted[o->arg[k]];
		for (uint8_t k = 0; k < r->nin && repeat[i]; k++)
			wanted[o->arg[k]] = 1;
	}
	for (uint32_t i = 0; i < fwd->n; i++) {
		struct op o = fwd->a[i];
		const struct op_row *r = op_row(o.op);
		if (!repeat[i])
			continue;
		for (uint8_t k = 0; k < r->nin; k++)
			if (copy[o.arg[k]])
				o.arg[k] = copy[o.arg[k]];
		for (uint8_t k = r->nin; k < r->nin + r->nout; k++)
			o.arg[k] = copy[o.arg[k]] = again(g, s, o.arg[k]);
		*PUSH(bwd) = o;
	}
	for (uint32_t i = 0; i < old.n; i++) {
		struct op o = old.a[i];
		for (uint8_t k = 0; k < op_row(o.op)->nin; k++)
			if (copy[o.arg[k]])
				o.arg[k] = copy[o.arg[k]];
		*PUSH(bwd) = o;
	}
	g->seg.a[s].ops[BACKWARD] = bwd;
}
