/*
 * Reverse-mode differentiation of a segment by the rules of op.def. Gradients that meet are added
 * in the order in which the reversed ops give them; parameters have one gradient tensor that ops
 * add to.
 */
#include <string.h>

#include "graph/graph.h"

/* A segment walked backwards; its activations keep their gradient so far in `grad`, `parts`. */
struct walk {
	struct graph *g;
	uint32_t seg;
};

static tensor_id *
grad_of(const struct walk *w, tensor_id t)
{
	return &w->g->tensor.a[t].grad;
}

static tensor_id
new_grad(struct walk *w, tensor_id of)
{
	const char *name = w->g->tensor.a[of].name + strlen(w->g->seg.a[w->seg].name) + 1;
	const char *nth =
	    w->g->tensor.a[of].parts ? xprintf("_%u", w->g->tensor.a[of].parts + 1u) : "";
	tensor_id d = graph_tensor(
	    w->g, xprintf("d_%s%s", name, nth), T_ACT, w->g->tensor.a[of].role, w->seg);
	struct tensor *t = &w->g->tensor.a[d], *f = &w->g->tensor.a[of];

	t->ndims = f->ndims;
	memcpy(t->dim, f->dim, sizeof t->dim);
	t->line = f->line;
	w->g->tensor.a[of].parts++;
	return d;
}

static void
accumulate(struct walk *w, tensor_id of, tensor_id part, const struct line *line)
{
	struct op *o;

	if (!*grad_of(w, of)) {
		*grad_of(w, of) = part;
		return;
	}
	tensor_id sum = new_grad(w, of);
	o = PUSH(w->g->seg.a[w->seg].ops[BACKWARD]);
	o->op = OP_add;
	o->line = line;
	o->arg[0] = *grad_of(w, of);
	o->arg[1] = part;
	o->arg[2] = sum;
	*grad_of(w, of) = sum;
}

/* "dx" is the gradient of x: the name without its "d". */
static struct word
of(struct word w)
{
	return (struct word){ w.s + 1, w.n - 1 };
}

/* Tensors for what is left of "=", the op with its arguments, ints and floats by name. */
static void
apply_rule(struct walk *w, const struct op *f, const struct rule *rule)
{
	const struct op_row *r = op_row(f->op), *br;
	struct op b = { .op = rule->op, .line = f->line };
	tensor_id input[MAX_ARGS], result[MAX_ARGS];

	if (rule->op == N_OPS) { /* "da = dy" */
		accumulate(w, f->arg[op_find_arg(r, of(rule->out[0]))],
		    *grad_of(w, f->arg[op_find_arg(r, of(rule->in[0]))]), f->line);
		return;
	}
	br = op_row(b.op);
	const struct sizes z = op_sizes(w->g, f);
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
			b.arg[i] = *grad_of(w, f->arg[a]);
		}
	}
	for (uint8_t i = 0; i < rule->nout; i++) {
		int a = op_find_arg(r, of(rule->out[i]));
		if (a < 0 || a >= r->nin || rule->adds[i] != br->arg[br->nin + i].accumulate)
			internal("op.def: gradient of %s: bad result '%.*s'", r->name,
			    (int)rule->out[i].n, rule->out[i].s);
		input[i] = f->arg[a];
		result[i] = rule->adds[i] ? *grad_of(w, input[i]) : new_grad(w, input[i]);
		b.arg[br->nin + i] = result[i];
	}
	*PUSH(w->g->seg.a[w->seg].ops[BACKWARD]) = b;
	for (uint8_t i = 0; i < rule->nout; i++)
		if (!rule->adds[i])
			accumulate(w, input[i], result[i], f->line);
}

void
grad_segment(struct graph *g, uint32_t s)
{
	struct segment *seg = &g->seg.a[s];
	struct walk w = { g, s };

	if (seg->y) {
		seg->dy = new_grad(&w, seg->y);
		*grad_of(&w, seg->y) = seg->dy;
	}
	for (uint32_t i = seg->ops[FORWARD].n; i-- > 0;) {
		const struct op *f = &seg->ops[FORWARD].a[i];
		const struct op_row *r = op_row(f->op);
		const char *rules = r->grad;
		bool reached = r->root;
		struct rule rule;
		for (uint8_t a = r->nin; a < r->nin + r->nout; a++)
			reached |= *grad_of(&w, f->arg[a]) != 0;
		while (reached && rule_next(&rules, &rule))
			apply_rule(&w, f, &rule);
	}
	if (seg->x)
		seg->dx = *grad_of(&w, seg->x);
}
