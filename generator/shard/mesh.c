/*
 * The arithmetic of a layout: how many ranks, layers and rows there are of what, and what a pass
 * goes through.
 */
#include <math.h>

#include "shard/shard.h"

enum om_group
shard_group(const struct shard *s, enum om_group g)
{
	return s->mesh.size[g] > 1 ? g : OM_ALONE;
}

uint64_t
shard_parts(const struct shard *s, const struct tensor *param)
{
	const uint64_t *size = s->mesh.size;

	return size[OM_WORLD] / size[OM_PIPELINE] / size[param->copies];
}

uint64_t
chunk_layers(const struct chunk *c, const struct segment *kind)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < kind->nlayers; i++)
		n += kind->layer[i] - c->first < c->n;
	return n;
}

uint64_t
stage_kind(const struct stage *st, const struct segment *kind)
{
	uint64_t n = 0;

	for (uint32_t c = 0; c < st->nchunks; c++)
		n += chunk_layers(&st->chunk[c], kind);
	return n;
}

uint64_t
stage_runs(const struct shard *s, uint32_t stage, uint32_t seg)
{
	const struct graph *g = s->graph;
	const struct stage *st = &s->stage[stage];

	if (seg == g->embed)
		return st->embed;
	if (seg == g->head || seg == g->eval)
		return st->head;
	return g->seg.a[seg].nlayers ? stage_kind(st, &g->seg.a[seg]) : 1;
}

uint64_t
stage_layers(const struct shard *s, uint32_t stage, const struct tensor *t)
{
	const struct graph *g = s->graph;
	const struct stage *st = &s->stage[stage];

	/* every stage counts the loss, and is given the tokens */
	if ((t->class == T_INPUT || t->class == T_STAT) && !g->seg.a[t->seg].nlayers)
		return 1;
	/* a tied head needs the embedding's weights on the last stage too */
	bool tied = t->class != T_ACT && spec_int(g->trainer, F_lm_head_tied);
	return t->seg == g->embed && tied ? st->embed || st->head : stage_runs(s, stage, t->seg);
}

uint64_t
shard_bytes(const struct shard *s, tensor_id t)
{
	const struct tensor *x = &s->graph->tensor.a[t];
	uint64_t row = t ? x->dim[x->ndims - 1] : 0; /* a scale is of one row */

	return t ? size_mul(tensor_elems(x) / row, target_bytes(s->target, x->format, row)) : 0;
}

/*
 * The rows that can come to a rank if all ranks' tokens want its experts; capacity sets fewer. What
 * lies between two experts' rows is in it.
 */
uint64_t
shard_capacity(const struct shard *s, const struct object *moe)
{
	const struct value *v = spec_value(s->graph->trainer, F_parallel_capacity);
	uint64_t k = (uint64_t)spec_int(moe, F_moe_top_k), expert = s->mesh.size[OM_EXPERT];
	uint64_t here = (uint64_t)spec_int(moe, F_moe_num_experts) / expert;
	uint64_t between = size_mul(here, s->expert_rows - 1);
	uint64_t worst =
	    size_add(size_mul(size_mul(s->graph->T, expert), k < here ? k : here), between);
	double rows =
	    v->set && !v->str ? ceil(v->num * (double)size_mul(s->graph->T, k)) : INFINITY;

	return size_align(rows < (double)worst ? (uint64_t)rows : worst, s->expert_rows);
}

uint64_t
shard_pair_rows(const struct shard *s, const struct object *moe)
{
	const struct value *v = spec_value(s->graph->trainer, F_parallel_pair_capacity);
	uint64_t k = (uint64_t)spec_int(moe, F_moe_top_k), expert = s->mesh.size[OM_EXPERT];
	uint64_t here = (uint64_t)spec_int(moe, F_moe_num_experts) / expert;
	uint64_t worst = size_mul(s->graph->T, k < here ? k : here);
	double rows = v->set && !v->str
			  ? ceil(v->num * (double)size_mul(s->graph->T, k) / (double)expert)
			  : INFINITY;

	return rows < (double)worst ? (uint64_t)rows : worst;
}

uint64_t
shard_near(const struct shard *s, enum om_group group)
{
	uint64_t n = 1, of = s->mesh.size[group], host = s->target->host;

	while (n < of && (!host || om_mesh_member(&s->mesh, group, 0, n) < host))
		n++;
	return n;
}

bool
shard_blocks(const struct shard *s)
{
	return s->target->kind->reach && shard_near(s, OM_EXPERT) < s->mesh.size[OM_EXPERT];
}

struct pass
shard_pass(const struct graph *g, enum pass_id pass)
{
	const struct pass all[N_PASSES] = {
		[PASS_FORWARD] = { "forward", FORWARD, g->embed, g->head, 0 },
		[PASS_BACKWARD] = { "backward", BACKWARD, g->head, g->embed, 0 },
		[PASS_WEIGHTS] = { "weights", WEIGHTS, g->head, g->embed, 0 },
		[PASS_EVALUATE] = { "evaluate", FORWARD, g->embed, g->eval, 0 },
		[PASS_DECODE] = { "decode", FORWARD, g->decode, g->prompt - 1,
		    g->decode - g->embed },
		[PASS_PROMPT] = { "prompt", FORWARD, g->prompt, 0, g->prompt - g->embed },
	};

	return all[pass];
}

void
shard_visits(const struct graph *g, const struct chunk *c, enum pass_id id, struct visits *out)
{
	const struct pass w = shard_pass(g, id);
	uint32_t slot = id >= PASS_DECODE ? 0 : c->slot;
	bool forward = w.phase == FORWARD;

	if (forward ? c->embed : c->head)
		*PUSH(*out) = (struct visit){ w.first, w.phase, forward ? 0 : g->n_layers, slot };
	for (uint32_t k = 0; k < c->n; k++) {
		uint32_t l = c->first + (forward ? k : c->n - 1 - k);
		*PUSH(*out) = (struct visit){ g->kind_of[l] + w.own, w.phase, l, slot };
	}
	if ((forward ? c->head : c->embed) && w.last)
		*PUSH(*out) = (struct visit){ w.last, w.phase, forward ? g->n_layers : 0, slot };
}

struct chunk_end
chunk_end(const struct graph *g, const struct chunk *c, enum phase phase, bool first)
{
	uint32_t layer = first ? c->first : c->first + c->n - 1;
	const struct segment *kind = &g->seg.a[g->kind_of[layer]];
	tensor_id forward = first ? kind->x : kind->y, backward = first ? kind->dx : kind->dy;

	return (struct chunk_end){ phase == FORWARD ? forward : backward, layer };
}
