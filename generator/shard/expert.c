/*
 * Several ranks as rewrites of the graph. Expert parallelism: the rows of a layer's routed tokens
 * go to the ranks of their experts, each of which holds a part of the experts, and come back. The
 * sharded update: in the last microbatch a layer's gradients are summed over the ranks that have
 * the same weights, as soon as its backward pass is over; each steps its part, and gathers the
 * rest.
 */
#include <string.h>

#include "shard/shard.h"

/* ---- expert parallelism ---- */

struct named {
	struct word name;
	tensor_id t;
};
/* The layer being rewritten. */
struct rows {
	struct graph *g;
	uint32_t seg;
	struct sizes size; /* the letters t, k, w, c, u, q and h of op.def's rules */
	/* by tensor: what stands for it, 0: itself; it has a row for each routed one */
	tensor_id *same;
	bool *routed;
	ARRAY(struct named) named; /* by rules, the last one holds */
};

static struct op *
add_op(struct oplist *list, enum op_id op, const struct op *like)
{
	struct op *o = PUSH(*list);

	*o = (struct op){ .op = op, .group = op_row(op)->group, .line = like->line };
	return o;
}

static tensor_id
find_named(const struct rows *w, struct word name)
{
	for (uint32_t i = w->named.n; i-- > 0;)
		if (w->named.a[i].name.n == name.n && !memcmp(w->named.a[i].name.s, name.s, name.n))
			return w->named.a[i].t;
	return 0;
}

/* The tensor that a name means: the op's own, or one that rules before this one have named. */
static tensor_id
meant(const struct rows *w, const struct op *o, struct word name)
{
	int a = op_find_arg(op_row(o->op), name);

	return a >= 0 ? o->arg[a] : find_named(w, name);
}

/* Adds the op that a rule makes of o. */
static void
apply_rule(struct rows *w, const struct op *o, const struct rule *rule, struct oplist *list)
{
	const struct op_row *r = op_row(rule->op), *old = op_row(o->op);
	struct op *n = add_op(list, rule->op, o);

	if (rule->nin != r->nin || rule->nout != r->nout)
		internal("op.def: what %s becomes has not the arguments of %s", old->name, r->name);
	for (uint8_t i = 0; i < r->nints; i++) {
		const char *own = memchr(old->ints, r->ints[i], old->nints);
		n->ints[i] = own ? o->ints[own - old->ints] : w->size.v[r->ints[i] - 'a'];
	}
	for (uint8_t i = 0; i < r->nargs; i++) {
		struct word name = i < r->nin ? rule->in[i] : rule->out[i - r->nin];
		bool again = i >= r->nin && op_find_arg(old, name) < 0 && find_named(w, name);
		n->arg[i] = again ? 0 : meant(w, o, name);
		if (!n->arg[i] && i < r->nin)
			internal("op.def: what %s becomes: no tensor '%.*s'", old->name,
			    (int)name.n, name.s);
		if (!n->arg[i]) {
			n->arg[i] = graph_tensor(w->g,
			    xprintf("%s%.*s", again ? "re_" : "", (int)name.n, name.s),
			    r->arg[i].accumulate ? T_STAT : T_ACT, r->arg[i].role, w->seg);
			w->g->tensor.a[n->arg[i]].line = o->line;
			if (r->arg[i].accumulate)
				w->g->tensor.a[n->arg[i]].sum = OM_DATA;
		}
		*PUSH(w->named) = (struct named){ name, n->arg[i] };
	}
}

/* What an op becomes. Behind the forward pass it may be one that recomputation would repeat. */
static void
rewrite_op(struct rows *w, enum phase ph, struct op *o, struct oplist *list)
{
	const struct op_row *r = op_row(o->op);
	const char *rules = r->apart;
	struct rule rule;

	for (uint8_t k = 0; k < r->nin; k++)
		if (w->same[o->arg[k]])
			o->arg[k] = w->same[o->arg[k]];
	for (uint8_t k = 0; k < r->nargs; k++)
		if ((k < r->nin ? r->returns : r->sends) && arg_routed(&r->arg[k]) &&
		    r->arg[k].role == ROLE_ACT)
			graph_role(w->g, o->arg[k], ROLE_ROWS);
	bool any = rule_next(&rules, &rule);
	bool routed = any && rule.when.n && w->routed[meant(w, o, rule.when)];
	for (uint8_t k = r->nin; k < r->nargs; k++)
		w->routed[o->arg[k]] = routed || arg_routed(&r->arg[k]);
	if (!any || (rule.when.n && !routed)) {
		*PUSH(*list) = *o;
		return;
	}
	for (uint8_t i = 0; i < rule.nout && ph > FORWARD; i++)
		if (rule.adds[i]) { /* what the forward pass gave stands for its results */
			for (uint8_t k = r->nin; k < r->nargs; k++)
				w->same[o->arg[k]] = find_named(
				    w, (struct word){ r->arg[k].name, strlen(r->arg[k].name) });
			return;
		}
	do
		apply_rule(w, o, &rule, list);
	while (rule_next(&rules, &rule));
}

static void
rewrite(struct rows *w, enum phase ph)
{
	struct graph *g = w->g;
	struct oplist old = g->seg.a[w->seg].ops[ph], list = { 0 };

	for (uint32_t i = 0, done = 0; i < old.n; i++) {
		rewrite_op(w, ph, &old.a[i], &list);
		/* routed rows are as many as a rank has room for, experts those of a rank */
		for (; done < list.n; done++)
			op_shape(g, &list.a[done]);
	}
	g->seg.a[w->seg].ops[ph] = list;
}

void
shard_experts(struct shard *s)
{
	struct graph *g = s->graph;
	struct rows w = { .g = g,
		.same = xalloc(g->tensor.n * sizeof *w.same),
		.routed = xalloc(g->tensor.n * sizeof *w.routed) };

	for (tensor_id t = 1; t < g->tensor.n; t++) {
		struct tensor *x = &g->tensor.a[t];
		tensor_id param = x->class == T_PARAM ? t : x->param;
		if (param) /* and what belongs to one */
			x->dim[0] /= shard_parts(s, &g->tensor.a[param]);
	}
	for (uint32_t k = g->embed + 1; k < g->head; k++) {
		if (!graph_route(&g->seg.a[k]))
			continue;
		w.seg = k;
		w.named.n = 0;
		w.size.v['t' - 'a'] = g->T;
		w.size.v['k' - 'a'] = (uint64_t)spec_int(g->seg.a[k].ffn, F_moe_top_k);
		w.size.v['w' - 'a'] = s->mesh.size[OM_EXPERT];
		w.size.v['c' - 'a'] = shard_capacity(s, g->seg.a[k].ffn);
		w.size.v['u' - 'a'] = s->expert_rows;
		w.size.v['q' - 'a'] = shard_pair_rows(s, g->seg.a[k].ffn);
		w.size.v['h' - 'a'] = shard_blocks(s) ? 2 : 1;
		for (enum phase ph = FORWARD; ph <= g->last_phase; ph++)
			rewrite(&w, ph);
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
		if (!route || strcmp(spec_str(seg->ffn, F_router_balance_over), "global"))
			continue;
		tensor_id all = graph_tensor(g, "counts_of_all", T_ACT, ROLE_INT32, k);
		g->tensor.a[all].line = route->line;
		const struct op n = { .op = OP_balance_all,
			.group = op_row(OP_balance_all)->group,
			.line = route->line,
			.arg = { op_arg(route, "prob"), op_arg(route, "cnt"), all,
			    op_arg(route, "aux") },
			.ints = { route->ints[0], s->mesh.size[OM_DATA] } };
		op_shape(g, &n);
		struct oplist *l = &seg->ops[FORWARD];
		uint32_t at = (uint32_t)(route - l->a) + 1;
		(void)PUSH(*l);
		memmove(&l->a[at + 1], &l->a[at], (l->n - 1 - at) * sizeof n);
		l->a[at] = n;
		for (uint32_t i = 0; i < seg->ops[BACKWARD].n; i++) {
			struct op *b = &seg->ops[BACKWARD].a[i];
			if (!op_row(b->op)->balance)
				continue;
			b->arg[5] = all;
			b->floats[1] /= (double)s->mesh.size[OM_DATA];
		}
	}
}

/* ---- the update ---- */

/* The ranks of a group do op to a tensor together. */
static void
together(const struct shard *s, struct oplist *list, enum op_id op, enum om_group group,
    const struct op *like, tensor_id t)
{
	if (s->mesh.size[group] < 2)
		return;
	struct op *o = add_op(list, op, like);
	o->group = group;
	o->arg[0] = t;
}

/* The gradient of what an op of the update is about: of a gradient itself, or of a parameter. */
static tensor_id
grad_of(const struct graph *g, tensor_id t)
{
	return g->tensor.a[t].class == T_PARAM ? g->tensor.a[t].grad : t;
}

/* Ops that each rank does its part of, in the order of buckets. */
static void
by_bucket(const struct shard *s, const struct op *from, uint32_t n, struct oplist *to)
{
	const struct graph *g = s->graph;

	for (uint32_t k = 0; k < g->param_group.n; k++)
		for (enum om_group group = 0; group < OM_N_GROUPS; group++)
			for (uint32_t i = 0; i < n; i++) {
				const struct tensor *grad =
				    &g->tensor.a[grad_of(g, from[i].arg[0])];
				if (g->tensor.a[grad->param].param_group == k &&
				    shard_group(s, grad->sum) == group) {
					*PUSH(*to) = from[i];
					to->a[to->n - 1].group = group;
				}
			}
}

/* Whether two ops of the update are of parameters that lie in one bucket. */
static bool
same_bucket(const struct graph *g, const struct op *a, const struct op *b)
{
	const struct tensor *x = &g->tensor.a[g->tensor.a[a->arg[0]].param],
			    *y = &g->tensor.a[g->tensor.a[b->arg[0]].param];

	return x->seg == y->seg && x->param_group == y->param_group && a->group == b->group;
}

/*
 * A run of ops of which each rank does its part: gradients are summed before, what they write is
 * made whole again after. summed: the gradients that are.
 */
static void
do_parts(
    const struct shard *s, const struct op *from, uint32_t n, bool *summed, struct oplist *list)
{
	struct graph *g = s->graph;
	const struct op_row *r = op_row(from->op);
	struct oplist parts = { 0 };

	by_bucket(s, from, n, &parts);
	for (uint32_t i = 0; i < parts.n; i++) {
		tensor_id grad = grad_of(g, parts.a[i].arg[0]);
		/* in the step's last microbatch, when its parameter's layer is done with it */
		uint32_t seg = g->tensor.a[g->tensor.a[grad].param].seg;
		if (!summed[grad])
			together(s, &g->seg.a[seg].ops[g->last_phase],
			    op_collective(g->tensor.a[grad].role), g->tensor.a[grad].sum,
			    &parts.a[i], grad);
		summed[grad] = true;
	}
	/* what a bucket's ops write is made whole before the next bucket's turn */
	for (uint32_t i = 0, end; i < parts.n; i = end) {
		for (end = i; end < parts.n && same_bucket(g, &parts.a[i], &parts.a[end]); end++)
			*PUSH(*list) = parts.a[end];
		for (uint8_t a = r->nin; a < r->nargs; a++)
			for (uint32_t k = i; k < end; k++) {
				const struct tensor *x = &g->tensor.a[parts.a[k].arg[a]];
				if (x->class == T_PARAM)
					together(s, list, op_collective(ROLE_ACT), x->copies,
					    &parts.a[k], parts.a[k].arg[a]);
			}
	}
	for (uint8_t a = r->nin; a < r->nargs; a++)
		if (g->tensor.a[from->arg[a]].class == T_INPUT)
			together(s, list, OP_sum_norm, OM_WORLD, from, from->arg[a]);
}

void
shard_update(struct shard *s)
{
	struct graph *g = s->graph;
	struct oplist old = g->seg.a[g->update].ops[FORWARD], list = { 0 };
	bool *summed = xalloc(g->tensor.n * sizeof *summed);

	for (tensor_id t = 0; (t = tensor_next(g, T_STAT, t));)
		together(
		    s, &list, op_collective(g->tensor.a[t].role), g->tensor.a[t].sum, &old.a[0], t);
	for (uint32_t i = 0, n; i < old.n; i += n) {
		n = 1;
		if (!op_row(old.a[i].op)->part) {
			*PUSH(list) = old.a[i];
			continue;
		}
		while (i + n < old.n && old.a[i + n].op == old.a[i].op)
			n++;
		do_parts(s, &old.a[i], n, summed, &list);
	}
	g->seg.a[g->update].ops[FORWARD] = list;
}
