/*
 * The backward pass in two: gradients of activations, which the chunk before waits for, and those
 * of parameters, which nobody waits for before the update.
 */
#include "graph/graph.h"

/* All that o writes is read by ops that move alone, or is the gradient of a parameter. */
static bool
moves(const struct graph *g, const struct segment *seg, const struct op *o, const bool *needed)
{
	const struct op_row *r = op_row(o->op);

	for (uint8_t i = r->nin; i < r->nargs; i++) {
		const struct tensor *t = &g->tensor.a[o->arg[i]];
		if (t->class != T_GRAD &&
		    (t->class != T_ACT || needed[o->arg[i]] || o->arg[i] == seg->dx))
			return false;
	}
	return true;
}

void
graph_split(struct graph *g)
{
	bool *needed = xalloc(g->tensor.n * sizeof *needed); /* by an op that stays */

	g->last_phase = WEIGHTS;
	for (uint32_t s = g->embed; s <= g->head; s++) {
		struct segment *seg = &g->seg.a[s];
		struct oplist old = seg->ops[BACKWARD], stay = { 0 };
		bool *move = xalloc(old.n + 1);
		for (uint32_t i = old.n; i-- > 0;) {
			const struct op *o = &old.a[i];
			move[i] = moves(g, seg, o, needed);
			for (uint8_t k = 0; k < op_row(o->op)->nin && !move[i]; k++)
				needed[o->arg[k]] = true;
		}
		for (uint32_t i = 0; i < old.n; i++)
			*PUSH(*(move[i] ? &seg->ops[WEIGHTS] : &stay)) = old.a[i];
		seg->ops[BACKWARD] = stay;
	}
}
