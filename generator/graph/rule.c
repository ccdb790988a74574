/* "dx, +dw = op(dy, x)": in op.def what follows from an op, in fuse.def what one stands for. */
#include <string.h>

#include "graph/graph.h"

enum op_id
op_find(const char *name, size_t n)
{
	for (uint32_t i = 0; i < N_OPS; i++) {
		const char *s = op_row((enum op_id)i)->name;
		if (strlen(s) == n && !memcmp(s, name, n))
			return (enum op_id)i;
	}
	internal("op.def: no op named '%.*s'", (int)n, name);
}

tensor_id
op_arg(const struct op *o, const char *name)
{
	const struct op_row *r = op_row(o->op);
	int a = op_find_arg(r, (struct word){ name, strlen(name) });

	if (a < 0)
		internal("op.def: %s has no argument %s", r->name, name);
	return o->arg[a];
}

/* Splits the next word off a list that ends at one of stop; false at the end. */
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

bool
rule_next(const char **s, struct rule *r)
{
	struct word w;

	*r = (struct rule){ .op = N_OPS };
	*s += strspn(*s, " ;");
	if (!**s)
		return false;
	for (; next_word(s, "=", &w); r->nout++) {
		r->adds[r->nout] = *w.s == '+';
		r->out[r->nout] = (struct word){ w.s + r->adds[r->nout], w.n - r->adds[r->nout] };
	}
	*s += strspn(*s, "= ");
	if (!next_word(s, ";", &w))
		internal("op.def: a rule without an op");
	if (**s != '(') {
		r->in[r->nin++] = w;
		return true;
	}
	r->op = op_find(w.s, w.n);
	for (++*s; next_word(s, ")", &r->in[r->nin]);)
		r->nin++;
	++*s;
	while (next_word(s, ";", &w))
		r->when = w; /* behind "if" */
	return true;
}
