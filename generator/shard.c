/*
 * The mesh, the pipeline's stages, and what a rank sends. One rank is the case in which nothing is
 * sent.
 */
#include <string.h>

#include "olmogen.h"

static uint64_t
min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t
stage_layers(const struct shard *s, uint32_t stage, const struct tensor *t)
{
	const struct graph *g = s->graph;
	const struct stage *st = &s->stage[stage];
	const struct segment *seg = &g->seg.a[t->seg];
	uint64_t n = 0;

	if (t->seg == g->embed) {
		/* a tied head needs the embedding's weights on the last stage too */
		bool tied =
		    t->class != T_ACT && t->class != T_INPUT &&
		    spec_int(spec_obj(spec_obj(g->trainer, F_trainer_model), F_transformer_lm_head),
			F_lm_head_tied);
		return st->embed || (st->head && (tied || t->class == T_INPUT));
	}
	if (t->seg == g->head)
		return st->head;
	if (!seg->nlayers)
		return 1;
	for (uint32_t l = st->first; l < st->first + st->n; l++)
		n += g->kind_of[l] == t->seg;
	return n;
}

static void
collective(struct stage *st, enum collective_kind kind, uint64_t ranks, uint64_t bytes)
{
	if (ranks > 1 && bytes)
		*PUSH(st->comm) = (struct collective){ kind, ranks, bytes };
}

/*
 * Bytes a rank of the stage sends in one step: ring reductions, rows of the routed tokens,
 * activations.
 */
static void
communication(struct shard *s, uint32_t i, uint64_t weight, uint64_t grad)
{
	const struct graph *g = s->graph;
	const struct mesh *m = &s->mesh;
	struct stage *st = &s->stage[i];
	uint64_t dense = 0, expert = 0, rows = 0;
	uint64_t D =
	    (uint64_t)spec_int(spec_obj(g->trainer, F_trainer_model), F_transformer_d_model);

	for (uint32_t t = 1; t < g->tensor.n; t++) {
		const struct tensor *p = &g->tensor.a[t];
		if (p->class == T_PARAM) {
			uint64_t n = mul64(tensor_elems(p), stage_layers(s, i, p));
			*(p->experts ? &expert : &dense) += p->experts ? n / m->expert : n;
		}
	}
	for (uint32_t k = 0; k < g->update; k++)
		for (uint32_t o = 0; o < g->seg.a[k].ops[FORWARD].n; o++) {
			const struct op *op = &g->seg.a[k].ops[FORWARD].a[o];
			if (op->op == OP_dispatch) {
				const struct tensor *xr = &g->tensor.a[op->arg[3]];
				rows = add64(rows, mul64(xr->dim[0], stage_layers(s, i, xr)));
			}
		}
	uint64_t row_bytes = mul64(mul64(mul64(rows, D), weight), g->microbatches);
	collective(st, REDUCE_SCATTER, m->data, mul64(dense, grad) / m->data * (m->data - 1));
	collective(st, ALL_GATHER, m->data, mul64(dense, weight) / m->data * (m->data - 1));
	collective(st, REDUCE_SCATTER, m->expert_data,
	    mul64(expert, grad) / m->expert_data * (m->expert_data - 1));
	collective(st, ALL_GATHER, m->expert_data,
	    mul64(expert, weight) / m->expert_data * (m->expert_data - 1));
	/* forward and backward; of balanced rows, 1/EP stay at home */
	collective(st, ROW_DISPATCH, m->expert, mul64(2, row_bytes) / m->expert * (m->expert - 1));
	collective(st, ROW_COMBINE, m->expert, mul64(2, row_bytes) / m->expert * (m->expert - 1));
	uint64_t edges = (uint64_t)!st->embed + (uint64_t)!st->head;
	collective(st, SEND_RECV, edges ? 2 : 1,
	    mul64(mul64(edges, mul64(mul64(g->T, D), weight)), g->microbatches));
}

struct shard *
shard_mesh(struct graph *g, uint64_t data, uint64_t expert, uint64_t pipeline)
{
	struct shard *s = xalloc(sizeof *s);
	const struct object *pr = spec_obj(g->trainer, F_trainer_precision);
	uint32_t first = 0;

	s->graph = g;
	s->mesh = (struct mesh){ data, expert, pipeline, data / expert, mul64(data, pipeline) };
	s->stage = xalloc(pipeline * sizeof *s->stage);
	for (uint32_t i = 0; i < pipeline; i++) {
		struct stage *st = &s->stage[i];
		st->first = first;
		/* the last stages are the shorter ones: the head is on the last */
		st->n = (uint32_t)(g->n_layers / pipeline + (i < g->n_layers % pipeline));
		first += st->n;
		st->embed = i == 0;
		st->head = i + 1 == pipeline;
		st->slots = min64(pipeline - i, g->microbatches);
		communication(s, i, format_bytes(g->trainer, spec_str(pr, F_precision_weights)),
		    format_bytes(g->trainer, spec_str(pr, F_precision_grads)));
	}
	return s;
}

struct shard *
shard(struct graph *g)
{
	const struct object *p = spec_obj(g->trainer, F_trainer_parallel);

	return shard_mesh(g, (uint64_t)spec_int(p, F_parallel_data),
	    (uint64_t)spec_int(p, F_parallel_expert), (uint64_t)spec_int(p, F_parallel_pipeline));
}

void
shard_print(const struct shard *s, struct buf *out)
{
	static const char *const names[] = { "send/recv", "reduce-scatter", "all-gather",
		"row dispatch", "row combine" };

	buf_printf(out,
	    "mesh: %llu ranks = pipeline %llu x data %llu, expert %llu, expert-data %llu\n",
	    (unsigned long long)s->mesh.world, (unsigned long long)s->mesh.pipeline,
	    (unsigned long long)s->mesh.data, (unsigned long long)s->mesh.expert,
	    (unsigned long long)s->mesh.expert_data);
	for (uint32_t i = 0; i < s->mesh.pipeline; i++) {
		const struct stage *st = &s->stage[i];
		buf_printf(out, "stage %u: %slayers %u .. %u%s, %llu slots\n", i,
		    st->embed ? "embed, " : "", st->first, st->first + st->n - 1,
		    st->head ? ", head" : "", (unsigned long long)st->slots);
		for (uint32_t c = 0; c < st->comm.n; c++)
			buf_printf(out, "  %-14s among %llu ranks: %llu bytes a step\n",
			    names[st->comm.a[c].kind], (unsigned long long)st->comm.a[c].ranks,
			    (unsigned long long)st->comm.a[c].bytes);
	}
	buf_puts(out, "\n");
	graph_print(s->graph, out);
}
