/*
 * Reverse-mode differentiation of a segment by the rules of op.def. Gradients that meet are added
 * in the order in which the reversed ops give them; parameters have one gradient tensor that ops
 * add to.
 */
#include <string.h>

#include "graph/graph.h"

struct word {
	const char *s;
	size_t n;
};

/* Splits the next item off a comma-separated list that ends at one of stop; false at the end. */
static bool
next_word(const char **s, const char *stop, struct word *w)
{
	*s += strspn(*s, " ,");
	if (!**s || strchr(stop, **s))
		return false;
	w->s = *s;
	w->n = strcspn(*s, " ,=();");
	*s += w->n;
	return true;
}

static int
find_arg(const struct op_row *r, struct word w)
{
	for (int i = 0; i < r->nin + r->nout; i++)
		if (strlen(r->arg[i].name) == w.n && !memcmp(r->arg[i].name, w.s, w.n))
			return i;
	return -1;
}

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
	    w->g, xprintf("d_%s%s", name, nth), T_ACT, w->g->tensor.a[of].dtype, w->seg);
	struct tensor *t = &w->g->tensor.a[d], *f = &w->g->tensor.a[of];

	t->ndims = f->ndims;
	memcpy(t->dim, f->dim, sizeof t->dim);
	t->rline = f->rline;
	w->g->tensor.a[of].parts++;
	return d;
}

static void
accumulate(struct walk *w, tensor_id of, tensor_id part, uint32_t rline)
{
	struct op *o;

	if (!*grad_of(w, of)) {
		*grad_of(w, of) = part;
		return;
	}
	tensor_id sum = new_grad(w, of);
	o = PUSH(w->g->seg.a[w->seg].ops[BACKWARD]);
	o->op = OP_add;
	o->rline = rline;
	o->arg[0] = *grad_of(w, of);
	o->arg[1] = part;
	o->arg[2] = sum;
	*grad_of(w, of) = sum;
}

/*
 * "dx, +dw = op(dy, x)": tensors for what is left of "=", the op with its arguments, sizes by name.
 */
static void
apply_rule(struct walk *w, const struct op *f, const char *rule)
{
	const struct op_row *r = op_row(f->op), *br;
	const char *s = rule, *call;
	struct word word;
	struct sizes z;
	struct op b = { .rline = f->rline };
	tensor_id input[MAX_ARGS], result[MAX_ARGS];
	uint8_t n = 0;

	call = strchr(s, '=') + 1;
	call += strspn(call, " ");
	if (!strchr("(", call[strcspn(call, " ,(;")]) || !call[strcspn(call, " ,(;")]) {
		/* "da = dy" */
		next_word(&s, "=", &word);
		tensor_id in = f->arg[find_arg(r, (struct word){ word.s + 1, word.n - 1 })];
		next_word(&call, ";", &word);
		accumulate(w, in,
		    *grad_of(w, f->arg[find_arg(r, (struct word){ word.s + 1, word.n - 1 })]),
		    f->rline);
		return;
	}
	next_word(&call, "(", &word);
	b.op = op_find(word.s, word.n);
	br = op_row(b.op);
	const char *fault = op_bind(w->g, f, &z);
	if (fault)
		internal("%s", fault);
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
	call++;
	for (uint8_t i = 0; next_word(&call, ")", &word); i++) {
		int a = find_arg(r, word);
		b.arg[i] = a >= 0 ? f->arg[a] : 0;
		if (a < 0) {
			a = find_arg(r, (struct word){ word.s + 1, word.n - 1 });
			if (*word.s != 'd' || a < r->nin)
				internal("op.def: gradient of %s: no tensor '%.*s'", r->name,
				    (int)word.n, word.s);
			b.arg[i] = *grad_of(w, f->arg[a]);
		}
	}
	for (; next_word(&s, "=", &word); n++) {
		bool plus = *word.s == '+';
		int a = find_arg(r, (struct word){ word.s + 1 + plus, word.n - 1 - plus });
		if (a < 0 || a >= r->nin || plus != br->arg[br->nin + n].accumulate)
			internal("op.def: gradient of %s: bad result '%.*s'", r->name, (int)word.n,
			    word.s);
		input[n] = f->arg[a];
		result[n] = plus ? *grad_of(w, input[n]) : new_grad(w, input[n]);
		b.arg[br->nin + n] = result[n];
	}
	*PUSH(w->g->seg.a[w->seg].ops[BACKWARD]) = b;
	for (uint8_t i = 0; i < n; i++)
		if (!br->arg[br->nin + i].accumulate)
			accumulate(w, input[i], result[i], f->rline);
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
		bool root = f->op == OP_head_loss, reached = root;
		for (uint8_t a = r->nin; a < r->nin + r->nout; a++)
			reached |= *grad_of(&w, f->arg[a]) != 0;
		for (const char *rule = r->grad; reached && rule && *rule;) {
			apply_rule(&w, f, rule);
			rule = strchr(rule, ';');
			if (rule)
				rule += 1 + strspn(rule + 1, " ");
		}
	}
	if (seg->x)
		seg->dx = *grad_of(&w, seg->x);
}
