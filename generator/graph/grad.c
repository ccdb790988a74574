/*
 * Reverse-mode differentiation of a segment by the rules of op.def. Gradients that meet are added
 * in the order in which the reversed ops give them; parameters have one gradient tensor that ops
 * add to.
 */
#include <string.h>

#include "graph/graph.h"

/*
 * A segment walked backwards; its activations keep their gradient so far in `grad`, of `parts`.
 */
static tensor_id
new_grad(struct graph *g, tensor_id of)
{
	uint8_t before = g->tensor.a[of].parts++;
	const char *nth = before ? xprintf("_%u", before + 1u) : "";

	return graph_like(
	    g, of, T_ACT, g->tensor.a[of].role, xprintf("d_%s%s", tensor_short_name(g, of), nth));
}

static void
accumulate(
    struct graph *g, struct oplist *ops, tensor_id of, tensor_id part, const struct line *line)
{
	tensor_id before = g->tensor.a[of].grad, sum = part;

	if (before) {
		sum = new_grad(g, of);
		*PUSH(*ops) = (struct op){ OP_add, .arg = { before, part, sum }, .line = line };
	}
	g->tensor.a[of].grad = sum;
}

/* "dx" is the gradient of x: the name without its "d". */
static struct word
of(struct word w)
{
	return (struct word){ w.s + 1, w.n - 1 };
}

/* Tensors for what is left of "=", the op with its arguments, ints and floats by name. */
static void
apply_rule(struct graph *g, struct oplist *ops, const struct op *f, const struct rule *rule)
{
	const struct op_row *r = op_row(f->op), *br;
	struct op b = { .op = rule->op, .line = f->line };
	tensor_id input[MAX_ARGS], result[MAX_ARGS];

	if (rule->op == N_OPS) { /* "da = dy" */
		accumulate(g, ops, f->arg[op_find_arg(r, of(rule->out[0]))],
		    g->tensor.a[f->arg[op_find_arg(r, of(rule->in[0]))]].grad, f->line);
		return;
	}
	br = op_row(b.op);
	const struct sizes z = op_sizes(g, f);
	for (uint8_t i = 0; i < br->nints; i++)
		b.ints[i] = z.v[br->ints[i] - 'a'];
	for (uint8_t i = 0; i < br->nfloats; i++) {
		uint8_t k = 0;
		while (k < r->nfloats && strcmp(r->floats[k], br->floats[i]))
			k++;
		if (k == r->nfloats)
			internal("op.def: %s wants %s, which %s does not have", br->name,
			    br->floats[i], r->name);
		b.floats[i] = f->floats[k];
	}
	for (uint8_t i = 0; i < rule->nin; i++) {
		struct word name = rule->in[i];
		int a = op_find_arg(r, name);
		b.arg[i] = a >= 0 ? f->arg[a] : 0;
		if (a < 0) {
			a = op_find_arg(r, of(name));
			if (*name.s != 'd' || a < r->nin)
				internal("op.def: gradient of %s: no tensor '%.*s'", r->name,
				    (int)name.n, name.s);
			b.arg[i] = g->tensor.a[f->arg[a]].grad;
		}
	}
	for (uint8_t i = 0; i < rule->nout; i++) {
		int a = op_find_arg(r, of(rule->out[i]));
		if (a < 0 || a >= r->nin || rule->adds[i] != br->arg[br->nin + i].accumulate)
			internal("op.def: gradient of %s: bad result '%.*s'", r->name,
			    (int)rule->out[i].n, rule->out[i].s);
		input[i] = f->arg[a];
		result[i] = rule->adds[i] ? g->tensor.a[input[i]].grad : new_grad(g, input[i]);
		b.arg[br->nin + i] = result[i];
	}
	*PUSH(*ops) = b;
	for (uint8_t i = 0; i < rule->nout; i++)
		if (!rule->adds[i])
			accumulate(g, ops, input[i], result[i], f->line);
}

void
grad_segment(struct graph *g, uint32_t s)
{
	struct segment *seg = &g->seg.a[s];
	struct oplist *bwd = &seg->ops[BACKWARD];

	if (seg->y) {
		seg->dy = new_grad(g, seg->y);
		g->tensor.a[seg->y].grad = seg->dy;
	}
	for (uint32_t i = seg->ops[FORWARD].n; i-- > 0;) {
		const struct op *f = &seg->ops[FORWARD].a[i];
		const struct op_row *r = op_row(f->op);
		const char *rules = r->grad;
		bool reached = r->root;
		struct rule rule;
		for (uint8_t a = r->nin; a < r->nargs; a++)
			reached |= g->tensor.a[f->arg[a]].grad != 0;
		while (reached && rule_next(&rules, &rule))
			apply_rule(g, bwd, f, &rule);
	}
	if (seg->x)
		seg->dx = g->tensor.a[seg->x].grad;
}
