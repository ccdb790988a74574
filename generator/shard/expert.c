/*
 * Several ranks as rewrites of the graph. Expert parallelism: the rows of a layer's routed tokens
 * go to the ranks of their experts, each of which holds a part of the experts, and come back. The
 * sharded update: gradients are summed over the ranks that have the same weights, each steps its
 * part, and gathers the rest.
 */
#include <string.h>

#include "shard/shard.h"

/* ---- expert parallelism ---- */

/* The layer being rewritten. */
struct rows {
	struct graph *g;
	uint32_t seg;
	uint64_t ranks, capacity, T, K;
	tensor_id row, src, off, idx; /* as the router's map gives them */
	tensor_id map, cut;
	ARRAY(tensor_id) routed; /* have a row for each routed token */
};

static tensor_id
new_tensor(struct graph *g, uint32_t seg, const char *name, enum tensor_class c, enum dtype d,
    uint64_t n, uint32_t rline)
{
	tensor_id id = graph_tensor(g, name, c, d, seg);

	g->tensor.a[id].ndims = 1;
	g->tensor.a[id].dim[0] = n;
	g->tensor.a[id].rline = rline;
	return id;
}

static struct op *
add_op(struct oplist *list, enum op_id op, const struct op *like, const tensor_id *arg)
{
	struct op *o = PUSH(*list);
	const struct op_row *r = op_row(op);

	o->op = op;
	o->rline = like->rline;
	memcpy(o->arg, arg, (r->nin + r->nout) * sizeof *arg);
	return o;
}
#define ARGS(...) ((tensor_id[]){ __VA_ARGS__ })
#define INTS(o, ...) \
	memcpy((o)->ints, (uint64_t[]){ __VA_ARGS__ }, sizeof((uint64_t[]){ __VA_ARGS__ }))

/* Without the segment's name before it. */
static const char *
short_name(const struct graph *g, tensor_id t)
{
	return g->tensor.a[t].name + strlen(g->seg.a[g->tensor.a[t].seg].name) + 1;
}

/* A tensor whose rows are those of routed tokens gets as many as a rank has room for. */
static void
widen(struct rows *w, tensor_id t)
{
	*PUSH(w->routed) = t;
	w->g->tensor.a[t].dim[0] = w->capacity;
}

static bool
is_routed(const struct rows *w, tensor_id t)
{
	for (uint32_t i = 0; i < w->routed.n; i++)
		if (w->routed.a[i] == t)
			return true;
	return false;
}

/* The weights of rows, for which a tensor beside p stands. */
static tensor_id
row_weights(struct rows *w, tensor_id p, const char *format, const struct op *like)
{
	return new_tensor(w->g, w->seg, xprintf(format, short_name(w->g, p)), T_ACT, DT_STAT,
	    w->capacity, like->rline);
}

/* The map of the forward pass holds in both; what recomputation would repeat of it is dropped. */
static tensor_id
same_map(const struct rows *w, tensor_id t, tensor_id again[3])
{
	return again[0] && t == again[0]   ? w->row
	       : again[1] && t == again[1] ? w->src
	       : again[2] && t == again[2] ? w->off
					   : t;
}

static void
rewrite(struct rows *w, enum phase ph)
{
	struct graph *g = w->g;
	struct oplist old = g->seg.a[w->seg].ops[ph], list = { 0 };
	tensor_id again[3] = { 0 }, pr = 0;

	for (uint32_t i = 0; i < old.n; i++) {
		struct op o = old.a[i], *n;
		const struct op_row *r = op_row(o.op);
		const tensor_id *a = o.arg;

		for (uint8_t k = 0; k < r->nin; k++)
			o.arg[k] = same_map(w, o.arg[k], again);
		switch (o.op) {
		case OP_route_map:
			if (ph == BACKWARD) {
				memcpy(again, o.arg + r->nin, sizeof again);
				break;
			}
			w->idx = a[0], w->row = a[2], w->src = a[3], w->off = a[4];
			uint64_t E = g->tensor.a[w->off].dim[0] - 1;
			w->map = new_tensor(g, w->seg, "map", T_ACT, DT_I32, mul64(5, E), o.rline);
			w->cut = new_tensor(g, w->seg, "cut", T_STAT, DT_I64, 2, o.rline);
			g->tensor.a[w->off].dim[0] = E / w->ranks + 1;
			n = add_op(&list, OP_ep_map, &o,
			    ARGS(a[0], a[1], w->row, w->src, w->map, w->off, w->cut));
			INTS(n, w->ranks, w->capacity);
			n->group = OM_EXPERT;
			break;
		case OP_dispatch:
			widen(w, a[3]);
			n = add_op(&list, OP_ep_dispatch, &o, ARGS(a[0], w->src, w->map, a[3]));
			INTS(n, w->K, w->ranks, w->capacity);
			n->group = OM_EXPERT;
			break;
		case OP_combine:
			n = add_op(
			    &list, OP_ep_combine, &o, ARGS(a[0], w->idx, w->row, w->map, a[3]));
			INTS(n, w->ranks);
			n->group = OM_EXPERT;
			break;
		case OP_glu_routed:
		case OP_relu2_routed: {
			tensor_id p = op_arg(&o, "p"), h = op_arg(&o, "h");
			pr = row_weights(w, p, ph == FORWARD ? "row_%s" : "re_row_%s", &o);
			n = add_op(&list, OP_ep_weights, &o, ARGS(p, w->src, w->map, pr));
			INTS(n, w->ranks, w->capacity);
			n->group = OM_EXPERT;
			widen(w, h);
			if (o.op == OP_glu_routed)
				add_op(&list, OP_glu_rows, &o, ARGS(a[0], a[1], pr, w->off, h))
				    ->ints[0] = o.ints[0];
			else
				add_op(&list, OP_relu2_rows, &o, ARGS(a[0], pr, w->off, h));
			break;
		}
		case OP_glu_routed_bwd:
		case OP_relu2_routed_bwd: {
			tensor_id p = op_arg(&o, "p"), dp = op_arg(&o, "dp");
			tensor_id du = op_arg(&o, "du"), dg = op_arg(&o, "dg");
			tensor_id dpr = row_weights(w, p, "d_row_%s", &o);
			/* not repeated, they are those of the forward pass */
			for (uint32_t k = 0; k < g->seg.a[w->seg].ops[FORWARD].n && !pr; k++)
				if (g->seg.a[w->seg].ops[FORWARD].a[k].op == OP_ep_weights)
					pr = g->seg.a[w->seg].ops[FORWARD].a[k].arg[3];
			widen(w, du);
			if (dg) {
				widen(w, dg);
				add_op(&list, OP_glu_rows_bwd, &o,
				    ARGS(a[0], a[1], a[2], pr, w->off, dg, du, dpr))
				    ->ints[0] = o.ints[0];
			} else {
				add_op(&list, OP_relu2_rows_bwd, &o,
				    ARGS(a[0], a[1], pr, w->off, du, dpr));
			}
			n = add_op(&list, OP_ep_weights_bwd, &o, ARGS(dpr, w->src, w->map, dp));
			INTS(n, w->T, w->K, w->ranks);
			n->group = OM_EXPERT;
			break;
		}
		case OP_grouped:
		case OP_grouped_dx:
			widen(w, a[3]);
			*PUSH(list) = o;
			break;
		case OP_add:
			if (is_routed(w, a[0])) {
				widen(w, a[2]);
				add_op(&list, OP_add_rows, &o, ARGS(a[0], a[1], w->off, a[2]));
				break;
			}
			*PUSH(list) = o;
			break;
		default:
			*PUSH(list) = o;
		}
	}
	g->seg.a[w->seg].ops[ph] = list;
}

void
shard_experts(struct shard *s)
{
	struct graph *g = s->graph;

	for (tensor_id t = 1; t < g->tensor.n; t++) {
		struct tensor *x = &g->tensor.a[t];
		bool own = x->class == T_GRAD || x->class == T_STATE;
		if (x->class == T_PARAM ? x->experts : own && g->tensor.a[x->param].experts)
			x->dim[0] /= s->mesh.size[OM_EXPERT];
	}
	for (uint32_t k = g->embed + 1; k < g->head && s->mesh.size[OM_EXPERT] > 1; k++) {
		if (!graph_route(&g->seg.a[k]))
			continue;
		struct rows w = { .g = g,
			.seg = k,
			.ranks = s->mesh.size[OM_EXPERT],
			.capacity = shard_capacity(s, g->seg.a[k].ffn),
			.T = g->T,
			.K = (uint64_t)spec_int(g->seg.a[k].ffn, F_moe_top_k) };
		rewrite(&w, FORWARD);
		rewrite(&w, BACKWARD);
	}
}

/* ---- the load-balance loss ---- */

/* Counts of experts become those of all data ranks before the router's gradient reads them. */
void
shard_balance(struct shard *s)
{
	struct graph *g = s->graph;

	for (uint32_t k = g->embed + 1; k < g->head && s->mesh.size[OM_DATA] > 1; k++) {
		struct segment *seg = &g->seg.a[k];
		const struct op *route = graph_route(seg);
		if (!route ||
		    strcmp(spec_str(spec_obj(seg->ffn, F_moe_router), F_router_balance_over),
			"global"))
			continue;
		struct op r = *route, *n;
		tensor_id prob = op_arg(&r, "prob"), cnt = op_arg(&r, "cnt");
		uint64_t E = g->tensor.a[prob].dim[1];
		struct oplist old = seg->ops[FORWARD], list = { 0 };
		tensor_id all = new_tensor(g, k, "counts_of_all", T_ACT, DT_I32, 1, r.rline);
		g->tensor.a[all].ndims = 2;
		g->tensor.a[all].dim[1] = E;
		for (uint32_t i = 0; i < old.n; i++) {
			*PUSH(list) = old.a[i];
			if (!op_arg(&old.a[i], "load"))
				continue;
			n = add_op(
			    &list, OP_balance_all, &r, ARGS(prob, cnt, all, op_arg(&r, "aux")));
			INTS(n, r.ints[0], s->mesh.size[OM_DATA]);
			n->group = OM_DATA;
		}
		seg->ops[FORWARD] = list;
		for (uint32_t i = 0; i < seg->ops[BACKWARD].n; i++) {
			struct op *b = &seg->ops[BACKWARD].a[i];
			if (b->op != OP_route_bwd)
				continue;
			b->arg[5] = all;
			b->floats[1] /= (double)s->mesh.size[OM_DATA];
		}
	}
}

/* ---- the update ---- */

/* The ranks that have the same of a parameter. */
static enum om_group
copies(const struct tensor *param)
{
	return param->experts ? OM_EXPERT_DATA : OM_DATA;
}

static void
together(const struct shard *s, struct oplist *list, enum op_id op, enum om_group ranks,
    const struct op *like, tensor_id t)
{
	if (s->mesh.size[ranks] > 1)
		add_op(list, op, like, ARGS(t))->group = ranks;
}

/* The ops of a kind that step parameters, or measure their gradients, in the order of buckets. */
static void
by_bucket(const struct graph *g, const struct oplist *from, bool steps, struct oplist *to)
{
	static const enum om_group all[] = { OM_DATA, OM_EXPERT_DATA };

	for (uint32_t k = 0; k < g->param_group.n; k++)
		for (unsigned r = 0; r < LEN(all); r++)
			for (uint32_t i = 0; i < from->n; i++) {
				const struct op *o = &from->a[i];
				bool stepping = o->op == OP_adamw || o->op == OP_adamw_master;
				if (steps ? !stepping : o->op != OP_sumsq)
					continue;
				const struct tensor *param =
				    &g->tensor.a[g->tensor.a[o->arg[0]].param];
				if (param->param_group == k && copies(param) == all[r]) {
					*PUSH(*to) = *o;
					to->a[to->n - 1].group = all[r];
				}
			}
}

void
shard_update(struct shard *s)
{
	struct graph *g = s->graph;
	struct oplist old = g->seg.a[g->update].ops[FORWARD], list = { 0 }, sums = { 0 },
		      steps = { 0 };

	by_bucket(g, &old, false, &sums);
	by_bucket(g, &old, true, &steps);
	for (tensor_id t = 1; t < g->tensor.n; t++)
		if (g->tensor.a[t].class == T_STAT)
			together(s, &list,
			    g->tensor.a[t].dtype == DT_I64 ? OP_sum_counts : OP_sum_reals,
			    g->tensor.a[t].seg == g->head ? OM_WORLD : OM_DATA, &old.a[0], t);
	for (uint32_t i = 0; i < sums.n; i++)
		together(
		    s, &list, OP_reduce_scatter, sums.a[i].group, &sums.a[i], sums.a[i].arg[0]);
	for (uint32_t i = 0; i < sums.n; i++)
		*PUSH(list) = sums.a[i];
	for (uint32_t i = 0; i < old.n; i++)
		if (old.a[i].op == OP_clip) {
			together(
			    s, &list, OP_sum_norm, OM_WORLD, &old.a[i], op_arg(&old.a[i], "ctl"));
			*PUSH(list) = old.a[i];
		}
	for (uint32_t i = 0; i < steps.n; i++)
		*PUSH(list) = steps.a[i];
	for (uint32_t i = 0; i < steps.n; i++)
		together(s, &list, OP_all_gather, steps.a[i].group, &steps.a[i],
		    op_arg(&steps.a[i], "w"));
	for (uint32_t i = 0; i < old.n; i++)
		if (old.a[i].op == OP_bias_update)
			*PUSH(list) = old.a[i];
	g->seg.a[g->update].ops[FORWARD] = list;
}
