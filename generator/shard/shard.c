/*
 * The mesh, the pipeline's stages, and what a rank sends. One rank is the case in which nothing is
 * sent.
 */
#include <math.h>
#include <string.h>

#include "shard/shard.h"

/* Of so many bytes in equal parts, one a rank, a rank sends all but its own. */
static void
all_but_own(struct shard *s, struct stage *st, enum collective_kind kind, enum om_group group,
    uint64_t bytes)
{
	uint64_t n = s->mesh.size[group];

	if (n > 1 && bytes >= n)
		*PUSH(st->comm) =
		    (struct collective){ kind, n, shard_near(s, group), bytes / n * (n - 1) };
}

/* Routed rows that go to their experts' ranks, or come back, in one microbatch of the stage. */
static uint64_t
rows_sent(const struct shard *s, uint32_t i, bool back)
{
	const struct graph *g = s->graph;
	uint64_t rows = 0;

	for (struct op_at at = { .seg = g->embed + 1 }; graph_next(g, &at) && at.seg < g->head;) {
		const struct op_row *r = op_row(at.op->op);
		const struct segment *kind = &g->seg.a[at.seg];
		if (!(back ? r->returns : r->sends))
			continue;
		/* balanced, as many as a rank has tokens for, or room; between hosts, all blocks */
		uint64_t n = size_mul(g->T, (uint64_t)spec_int(kind->ffn, F_moe_top_k));
		uint64_t room = shard_capacity(s, kind->ffn),
			 layers = stage_kind(&s->stage[i], kind);
		n = n < room ? n : room;
		if (shard_blocks(s))
			n = size_mul(shard_pair_rows(s, kind->ffn), s->mesh.size[OM_EXPERT]);
		rows = size_add(rows, size_mul(n, layers));
	}
	return rows;
}

/*
 * Bytes a rank of the stage sends in one step: ring reductions, rows of the routed tokens,
 * activations.
 */
static void
communication(struct shard *s, uint32_t i)
{
	const struct graph *g = s->graph;
	struct stage *st = &s->stage[i];
	uint64_t elems[OM_N_GROUPS] = { 0 }, edges = 0; /* elems: of parameters, by their copies */
	uint64_t D = (uint64_t)spec_int(g->trainer, F_transformer_d_model);
	uint64_t row = size_mul(target_bytes(s->target, g->format[ROLE_ROWS], D), g->microbatches);
	uint64_t x = target_bytes(s->target, g->format[ROLE_ACT], D);
	const struct format *weight = g->format[ROLE_WEIGHT], *grad = g->format[ROLE_GRAD];

	for (tensor_id t = 0; (t = tensor_next(g, T_PARAM, t));) {
		const struct tensor *p = &g->tensor.a[t];
		elems[p->copies] +=
		    size_mul(tensor_elems(p), stage_layers(s, i, p)) / shard_parts(s, p);
	}
	for (enum om_group k = 0; k < OM_N_GROUPS; k++) {
		all_but_own(s, st, REDUCE_SCATTER, k, target_bytes(s->target, grad, elems[k]));
		all_but_own(s, st, ALL_GATHER, k, target_bytes(s->target, weight, elems[k]));
	}
	/* balanced rows */
	all_but_own(s, st, ROW_DISPATCH, OM_EXPERT, size_mul(rows_sent(s, i, false), row));
	all_but_own(s, st, ROW_COMBINE, OM_EXPERT, size_mul(rows_sent(s, i, true), row));
	/* what goes from one of its chunks to the next is only copied */
	const struct step *step = &st->step[st->nsteps - 1];
	for (uint32_t k = 0; k < step->action.n; k++)
		edges += step->action.a[k].kind == SEND && step->action.a[k].stage != i;
	if (edges)
		*PUSH(st->comm) = (struct collective){ SEND_RECV, 2,
			shard_near(s, OM_PIPELINE) == s->mesh.size[OM_PIPELINE] ? 2 : 1,
			size_mul(edges, size_mul(g->T, x)) };
}

/* Work of a microbatch: a layer's, or a segment's that exists once. */
static uint64_t
work(const struct graph *g, uint32_t seg)
{
	uint64_t sum = 0;

	for (struct op_at at = { .seg = seg }; graph_next(g, &at) && at.seg == seg;)
		sum = size_add(sum, op_flops(g, at.op));
	return sum;
}

/* Chunks of layers as they come; cost[l] is what lies before layer l. */
struct balance {
	const uint64_t *cost;
	uint32_t layers, chunks;
	uint64_t embed, head;
};

static uint64_t
chunk_cost(const struct balance *b, uint32_t chunk, uint32_t first, uint32_t n)
{
	return b->cost[first + n] - b->cost[first] + (chunk == 0 ? b->embed : 0) +
	       (chunk + 1 == b->chunks ? b->head : 0);
}

/*
 * The least, over all splits in which no chunk costs more than most, of the largest chunk's cost
 * or of the sum of their squares; n: the layers of each chunk then, lighter ones first.
 */
static uint64_t
best_split(const struct balance *b, uint64_t most, bool squares, uint32_t *n)
{
	uint32_t L = b->layers, N = b->chunks;
	/* of chunks c .. N - 1 if their first layer is l */
	uint64_t *best = xalloc((size_t)(N + 1) * (L + 1) * sizeof *best);
	uint32_t *take = xalloc((size_t)(N + 1) * (L + 1) * sizeof *take);

	memset(best, 0xff, (size_t)(N + 1) * (L + 1) * sizeof *best);
	best[(size_t)N * (L + 1) + L] = 0;
	for (uint32_t c = N; c-- > 0;)
		for (uint32_t l = c; l < L; l++) {
			size_t at = (size_t)c * (L + 1) + l;
			for (uint32_t k = 1; l + k <= L; k++) {
				uint64_t x = chunk_cost(b, c, l, k), rest = best[at + L + 1 + k];
				if (x > most || (!squares && x >= best[at]))
					break;
				if (rest == UINT64_MAX)
					continue;
				uint64_t sum = squares ? x * x + rest : x > rest ? x : rest;
				if (sum < best[at]) {
					best[at] = sum;
					take[at] = k;
				}
			}
		}
	for (uint32_t c = 0, l = 0; c < N; l += n[c++])
		n[c] = take[(size_t)c * (L + 1) + l];
	return *best;
}

/*
 * Layers of each chunk: as the description says, or such that the largest chunk is as small as can
 * be, then all as equal as can be. The head weighs as the layers that its work would make.
 */
static void
split_layers(const struct graph *g, uint32_t chunks, uint32_t *n)
{
	const struct value *split = spec_value(g->trainer, F_parallel_split);
	uint64_t *cost = xalloc((g->n_layers + 1) * sizeof *cost);
	struct balance b = { cost, g->n_layers, chunks, work(g, g->embed), work(g, g->head) };
	uint64_t sum = b.embed + b.head;

	if (split->set && split->nnums == chunks) {
		for (uint32_t c = 0; c < chunks; c++)
			n[c] = (uint32_t)split->nums[c];
		return;
	}
	for (uint32_t l = 0; l < g->n_layers; l++)
		sum = size_add(sum, work(g, g->kind_of[l]));
	/* squares of whole numbers, exact on every machine */
	uint64_t unit = (sum >> 24) + 1;
	b.embed /= unit;
	b.head /= unit;
	for (uint32_t l = 0; l < g->n_layers; l++)
		cost[l + 1] = cost[l] + work(g, g->kind_of[l]) / unit;
	best_split(&b, best_split(&b, UINT64_MAX, false, n), true, n);
}

/* The arithmetic of a layout. */
static struct shard *
lay_out(struct graph *g, const struct target_row *target)
{
	struct shard *s = xalloc(sizeof *s);
	const struct object *pa = g->trainer;
	const struct value *kind = spec_value(pa, F_parallel_schedule);
	const struct value *per = spec_value(pa, F_parallel_chunks);
	const char *schedule_kind = kind->set ? kind->str : "1f1b";
	uint64_t expert = (uint64_t)spec_int(pa, F_parallel_expert);

	s->graph = g;
	s->target = target;
	s->expert_rows = target_format(target, g->format[ROLE_ROWS])->rows;
	s->nstages = (uint32_t)spec_int(pa, F_parallel_pipeline);
	s->mesh = om_mesh((uint64_t[OM_N_AXES]){ [OM_AXIS_EXPERT] = expert,
	    [OM_AXIS_EXPERT_DATA] = (uint64_t)spec_int(pa, F_parallel_data) / expert,
	    [OM_AXIS_PIPELINE] = s->nstages });
	s->stage = xalloc(s->nstages * sizeof *s->stage);
	uint32_t chunks = s->nstages > 1 && per->set ? (uint32_t)per->i : 1;
	for (uint32_t i = 0; i < s->nstages; i++)
		s->stage[i].chunk = xalloc(chunks * sizeof *s->stage[i].chunk);
	uint32_t places = s->nstages * chunks, first = 0, *n = xalloc(places * sizeof *n);
	split_layers(g, places, n);
	for (uint32_t p = 0; p < places; first += n[p++]) {
		struct stage *st = &s->stage[schedule_stage(schedule_kind, s->nstages, p)];
		bool head = p + 1 == places;
		st->chunk[st->nchunks++] = (struct chunk){
			.first = first, .n = n[p], .place = p, .embed = p == 0, .head = head
		};
		st->n += n[p];
		st->embed |= p == 0;
		st->head |= head;
	}
	schedule(s, schedule_kind, &g->microbatches, 1);
	for (uint32_t i = 0; i < s->nstages; i++)
		communication(s, i);
	return s;
}

struct shard *
shard(struct graph *g, const struct target_row *target)
{
	struct shard *s = lay_out(g, target);

	if (s->mesh.size[OM_EXPERT] > 1 || s->expert_rows > 1)
		shard_experts(s);
	if (s->mesh.size[OM_WORLD] == 1)
		return s;
	/* one token after another is for one rank */
	for (uint32_t k = g->decode; k < g->seg.n; k++)
		g->seg.a[k].ops[FORWARD].n = 0;
	shard_balance(s);
	shard_update(s);
	return s;
}

const char *
shard_action_text(const struct action *a)
{
	return a->kind == PASS ? graph_phase_names[a->phase]
			       : xprintf("%s %s", a->kind == SEND ? "send" : "receive",
				     a->phase == FORWARD ? "x" : "dx");
}

static void
print_actions(const struct step *step, struct buf *out)
{
	for (uint32_t i = 0; i < step->action.n; i++) {
		const struct action *a = &step->action.a[i];
		buf_printf(out, "  %4u %-10s microbatch %u, chunk %u, slot %u", i,
		    shard_action_text(a), a->microbatch, a->chunk, a->slot);
		if (a->kind != PASS)
			buf_printf(out, ", stage %u, tag %u", a->stage, a->tag);
		buf_puts(out, "\n");
	}
}

const char *const shard_sent_names[N_COLLECTIVES] = { "activations", "gradients reduced",
	"weights gathered", "expert rows sent", "expert rows returned" };

const char *
shard_layers_text(const struct stage *st)
{
	struct buf b = { 0 };

	for (uint32_t i = 0; i < st->nchunks; i++) {
		const struct chunk *c = &st->chunk[i];
		buf_printf(&b, "%s%slayers %u .. %u%s", i ? "; " : "",
		    c->embed ? "embedding, " : "", c->first, c->first + c->n - 1,
		    c->head ? ", head" : "");
	}
	return b.s;
}

const char *
shard_slots_text(const struct stage *st)
{
	struct buf b = { 0 };

	for (uint32_t i = 0; i < st->nchunks; i++)
		buf_printf(&b, "%s%u", i ? " + " : "", st->chunk[i].slots);
	return b.s;
}

void
shard_print(const struct shard *s, struct buf *out)
{
	buf_puts(out, "mesh:");
	for (enum om_group g = OM_WORLD; g < OM_N_GROUPS; g++)
		buf_printf(out, " %s %llu", om_group_name[g], llu(s->mesh.size[g]));
	buf_puts(out, "\n");
	for (uint32_t i = 0; i < s->nstages; i++) {
		const struct stage *st = &s->stage[i];
		buf_printf(out, "stage %u: %s; slots %s\n", i, shard_layers_text(st),
		    shard_slots_text(st));
		for (uint32_t k = 0; k < st->nsteps; k++)
			print_actions(&st->step[k], out);
		for (uint32_t c = 0; c < st->comm.n; c++)
			buf_printf(out, "  %s among %llu ranks: %llu bytes a step\n",
			    shard_sent_names[st->comm.a[c].kind], llu(st->comm.a[c].ranks),
			    llu(st->comm.a[c].bytes));
	}
	buf_puts(out, "\n");
	graph_print(s->graph, out);
}
