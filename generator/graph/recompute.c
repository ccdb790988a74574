/*
 * Recomputation as a rewrite: the backward pass of a layer begins with copies of forward ops, and
 * reads what they give instead of what was kept. The forward pass stays as it is; tensors that the
 * backward pass no longer reads are no longer saved. Ops that add to statistics (the router) are
 * never repeated: what they give is small, and is kept.
 */
#include <string.h>

#include "graph/graph.h"

static bool
repeatable(const struct op *o, const char *what)
{
	const struct op_row *r = op_row(o->op);

	for (uint8_t i = r->nin; i < r->nargs; i++)
		if (r->arg[i].accumulate)
			return false;
	bool cheap = !strcmp(r->flops, "0"), routed = arg_routed(&r->arg[r->nin]);
	return (cheap && !strcmp(what, "cheap")) || (cheap && routed && !strcmp(what, "rows")) ||
	       (routed && !strcmp(what, "experts")) || !strcmp(what, "block");
}

/* Ops of a segment's backward pass with the copies before them, and what these give. */
struct rewrite {
	struct oplist bwd;
	ARRAY(tensor_id) old, new;
};

/* Appends an op that reads what was given again in place of what was kept. */
static struct op *
append(struct rewrite *w, struct op o)
{
	for (uint8_t k = 0; k < op_row(o.op)->nin; k++)
		for (uint32_t i = 0; i < w->old.n; i++)
			if (w->old.a[i] == o.arg[k]) {
				o.arg[k] = w->new.a[i];
				break;
			}
	*PUSH(w->bwd) = o;
	return &w->bwd.a[w->bwd.n - 1];
}

/*
 * True if to repeat a forward op would keep as much as it frees: what it reads of ops that are not
 * repeated, and nobody else reads after the forward pass. So a sum is kept, not one of its terms.
 */
static bool
pointless(const struct graph *g, const struct segment *seg, uint32_t i, const bool *repeat,
    const char *what)
{
	const struct oplist *fwd = &seg->ops[FORWARD], *bwd = &seg->ops[BACKWARD];
	const struct op *o = &fwd->a[i];
	const struct op_row *r = op_row(o->op);
	uint64_t kept = 0, freed = 0;

	for (uint8_t k = 0; k < r->nin; k++) {
		bool more = false; /* the op alone wants it kept */
		for (uint32_t j = 0; j < i; j++)
			more |= op_writes(&fwd->a[j], o->arg[k]) && !repeatable(&fwd->a[j], what);
		for (uint32_t j = i + 1; j < fwd->n; j++)
			more &= !(repeat[j] && op_reads(&fwd->a[j], o->arg[k]));
		for (uint32_t j = 0; j < bwd->n; j++)
			more &= !op_reads(&bwd->a[j], o->arg[k]);
		kept += more ? tensor_elems(&g->tensor.a[o->arg[k]]) : 0;
	}
	for (uint8_t k = r->nin; k < r->nargs; k++)
		freed += tensor_elems(&g->tensor.a[o->arg[k]]);
	return kept >= freed;
}

void
recompute_segment(struct graph *g, uint32_t s, const char *what)
{
	const struct oplist *fwd = &g->seg.a[s].ops[FORWARD], *bwd = &g->seg.a[s].ops[BACKWARD];
	struct rewrite w = { 0 };
	bool *repeat = xalloc(fwd->n + 1);

	/* backwards: an op is repeated if the backward pass, or a repeated op, reads its result */
	for (uint32_t i = fwd->n; i-- > 0;) {
		const struct op *o = &fwd->a[i];
		const struct op_row *r = op_row(o->op);
		for (uint8_t k = r->nin; k < r->nargs && repeatable(o, what); k++) {
			for (uint32_t j = 0; j < bwd->n; j++)
				repeat[i] |= op_reads(&bwd->a[j], o->arg[k]);
			for (uint32_t j = i + 1; j < fwd->n; j++)
				repeat[i] |= repeat[j] && op_reads(&fwd->a[j], o->arg[k]);
		}
		repeat[i] = repeat[i] && !pointless(g, &g->seg.a[s], i, repeat, what);
	}
	for (uint32_t i = 0; i < fwd->n; i++) {
		const struct op_row *r = op_row(fwd->a[i].op);
		if (!repeat[i])
			continue;
		struct op *o = append(&w, fwd->a[i]);
		for (uint8_t k = r->nin; k < r->nargs; k++) {
			tensor_id old = o->arg[k];
			*PUSH(w.old) = old;
			*PUSH(w.new) = o->arg[k] = graph_like(g, old, T_ACT, g->tensor.a[old].role,
			    xprintf("re_%s", tensor_short_name(g, old)));
		}
	}
	for (uint32_t i = 0; i < bwd->n; i++)
		append(&w, bwd->a[i]);
	g->seg.a[s].ops[BACKWARD] = w.bwd;
}
