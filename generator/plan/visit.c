/*
 * What of the model a stage has, and what a pass does of it: which segments it visits, and which
 * bytes their launches use.
 */
#include "plan/plan.h"

uint64_t
plan_layers(const struct plan *p, tensor_id t)
{
	const struct tensor *x = &p->graph->tensor.a[t];

	return p->decode || x->seg < p->graph->decode ? stage_layers(p->shard, p->stage, x) : 0;
}

bool
plan_on_stage(const struct plan *p, uint32_t layer)
{
	bool here = false;

	for (uint32_t c = 0; c < p->here->nchunks; c++)
		here |= layer - p->here->chunk[c].first < p->here->chunk[c].n;
	return here;
}

uint64_t
plan_slot_layers(const struct plan *p, const struct segment *seg)
{
	uint64_t most = 0;

	for (uint32_t c = 0; c < p->here->nchunks; c++) {
		uint64_t n = chunk_layers(&p->here->chunk[c], seg);
		most = n > most ? n : most;
	}
	return seg->nlayers ? most : 1;
}

bool
plan_runs(const struct plan *p, uint32_t seg)
{
	return seg >= p->graph->decode ? p->decode : stage_runs(p->shard, p->stage, seg) != 0;
}

uint64_t
plan_take(struct plan *p, enum region r, uint64_t bytes)
{
	uint64_t off = p->region_bytes[r];

	p->region_bytes[r] = size_align(size_add(off, bytes), PLAN_ALIGN);
	return off;
}

bool
plan_has_pass(const struct plan *p, enum pass_id pass)
{
	switch (pass) {
	case PASS_WEIGHTS:
		return p->graph->last_phase == WEIGHTS;
	case PASS_DECODE:
		return p->decode;
	case PASS_PROMPT:
		return p->decode && p->graph->prompt < p->graph->seg.n;
	default:
		return true;
	}
}

uint32_t
plan_room(const struct plan *p, uint32_t life, uint32_t slot)
{
	const struct chunk *c = p->here->chunk;

	while (slot - c->slot >= c->slots)
		c++;
	return chunk_room(c, life, slot);
}

bool
plan_function(const struct plan *p, uint32_t seg, enum phase phase)
{
	const struct program *prog = &p->prog[seg][phase];

	return prog->n && prog->of == prog;
}

bool
plan_next(const struct plan *p, struct launch_at *at)
{
	at->i += at->launch != NULL;
	for (; at->seg < p->graph->seg.n; at->seg++, at->phase = FORWARD)
		for (; at->phase < N_PHASES; at->phase++, at->i = 0) {
			const struct program *prog = &p->prog[at->seg][at->phase];
			if (at->i == prog->n)
				continue;
			at->launch = &prog->a[at->i];
			return true;
		}
	return false;
}

struct extent
plan_workspace(const struct launch *st)
{
	return (struct extent){ st->workspace, st->workspace + st->workspace_bytes };
}

bool
extents_meet(struct extent a, struct extent b)
{
	return a.off < b.end && b.off < a.end;
}

uint64_t
plan_elems(const struct plan *p, tensor_id t, uint64_t n)
{
	const struct tensor *x = &p->graph->tensor.a[t];
	const struct tensor *param = &p->graph->tensor.a[x->param];

	return x->class == T_STATE ? n / (tensor_elems(param) / tensor_elems(x)) : n;
}

struct extent
plan_extent(
    const struct plan *p, const struct launch *st, tensor_id t, uint32_t layer, uint32_t slot)
{
	const struct place *pl = &p->place[t];
	const struct tensor *x = &p->graph->tensor.a[t];
	bool layered = p->graph->seg.a[x->seg].nlayers != 0;
	uint32_t index = !layered                                       ? 0
			 : pl->region == R_SAVED && x->class != T_CACHE ? p->saved_index[layer]
									: p->index[layer];

	uint64_t off =
	    pl->off + (pl->kind == PLACE ? index : p->entry[layer] + pl->next) * pl->stride;
	if (pl->region == R_SAVED && x->class != T_CACHE)
		off += plan_room(p, pl->life, slot) * p->kept[pl->life].stride;
	uint64_t bytes = pl->bytes;
	if (st && st->span && x->class != T_INPUT) {
		/* of states a rank has its part alone */
		uint64_t ranks = x->class == T_STATE ? p->shard->mesh.size[st->op.group] : 1;
		bytes = target_bytes(p->target, x->format, plan_elems(p, t, st->span / ranks)) *
			st->layers;
	}
	return (struct extent){ off, off + bytes };
}

uint64_t
plan_hop(const struct plan *p, const struct action *a)
{
	bool first = (a->phase == FORWARD) == (a->kind == RECEIVE);
	const struct chunk_end end =
	    chunk_end(p->graph, &p->here->chunk[a->chunk], a->phase, first);

	return a->kind == PASS ? 0 : plan_extent(p, NULL, end.t, end.layer, a->slot).off;
}
