/* What a pass does: which segments it visits, and which bytes their launches use. */
#include "plan/plan.h"

struct pass
plan_pass(const struct graph *g, enum pass_id pass)
{
	const struct pass all[N_PASSES] = {
		[PASS_FORWARD] = { "forward", FORWARD, g->embed, g->head, 0 },
		[PASS_BACKWARD] = { "backward", BACKWARD, g->head, g->embed, 0 },
		[PASS_EVALUATE] = { "evaluate", FORWARD, g->embed, g->eval, 0 },
		[PASS_DECODE] = { "decode", FORWARD, g->decode, g->seg.n - 1,
		    g->decode - g->embed },
	};

	return all[pass];
}

void
plan_visits(const struct plan *p, const struct chunk *c, enum pass_id id, struct visits *out)
{
	const struct graph *g = p->graph;
	const struct pass w = plan_pass(g, id);
	uint32_t slot = id == PASS_DECODE ? 0 : c->slot;
	bool forward = w.phase == FORWARD;

	if (forward ? c->embed : c->head)
		*PUSH(*out) = (struct visit){ w.first, w.phase, forward ? 0 : g->n_layers, slot };
	for (uint32_t k = 0; k < c->n; k++) {
		uint32_t l = c->first + (forward ? k : c->n - 1 - k);
		*PUSH(*out) = (struct visit){ g->kind_of[l] + w.own, w.phase, l, slot };
	}
	if (forward ? c->head : c->embed)
		*PUSH(*out) = (struct visit){ w.last, w.phase, forward ? g->n_layers : 0, slot };
}

void
plan_extent(const struct plan *p, const struct launch *st, tensor_id t, uint32_t layer,
    uint32_t slot, uint64_t *off, uint64_t *end)
{
	const struct place *pl = &p->place[t];
	const struct tensor *x = &p->graph->tensor.a[t];
	bool layered = p->graph->seg.a[x->seg].nlayers != 0;
	uint32_t index = !layered                                       ? 0
			 : pl->region == R_SAVED && x->class != T_CACHE ? p->saved_index[layer]
									: p->index[layer];

	*off = pl->off + (pl->kind == STREAM       ? p->entry[layer] + pl->next
			     : pl->kind == DSTREAM ? 0
						   : index) *
			     pl->stride;
	if (pl->region == R_SAVED)
		*off += slot * p->slot_stride;
	uint64_t bytes = pl->bytes;
	if (st && st->span && x->class != T_INPUT) {
		/* of states a rank has its part alone */
		uint64_t ranks = x->class == T_STATE ? p->shard->mesh.size[st->op.group] : 1;
		bytes = target_bytes(p->target, x->format, st->span / ranks) * st->layers;
	}
	*end = *off + bytes;
}
