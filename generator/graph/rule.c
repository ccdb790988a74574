/* "dx, +dw = op(dy, x)": in op.def what follows from an op, in fuse.def what one stands for. */
#include <string.h>

#include "graph/graph.h"

enum op_id
op_find(struct word name)
{
	for (uint32_t i = 0; i < N_OPS; i++)
		if (word_is(name, op_row((enum op_id)i)->name))
			return (enum op_id)i;
	internal("op.def: no op named '%.*s'", (int)name.n, name.s);
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

bool
rule_next(const char **s, struct rule *r)
{
	struct word w;

	*r = (struct rule){ .op = N_OPS };
	*s += strspn(*s, " ;");
	if (!**s)
		return false;
	for (; word_next(s, "=", &w); r->nout++) {
		r->adds[r->nout] = *w.s == '+';
		r->out[r->nout] = (struct word){ w.s + r->adds[r->nout], w.n - r->adds[r->nout] };
	}
	*s += strspn(*s, "= ");
	if (!word_next(s, ";", &w))
		internal("op.def: a rule without an op");
	if (**s != '(') {
		r->in[r->nin++] = w;
		return true;
	}
	r->op = op_find(w);
	for (++*s; word_next(s, ")", &r->in[r->nin]);)
		r->nin++;
	++*s;
	while (word_next(s, ";", &w))
		r->when = w; /* behind "if" */
	return true;
}
