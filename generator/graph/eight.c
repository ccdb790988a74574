/*
 * Products of numbers in 8 bits, as a rewrite by the rules of op.def's last column: what they
 * multiply is quantised, and what that means goes into the product as it was. So one that a target
 * has no kernel for in 8 bits is computed by the one that it has, and what it gives is the oracle.
 *
 * Gradients and recomputation come before: the gradient of a product is that of its inputs as they
 * were, and what is computed again is quantised again.
 */
#include <string.h>

#include "graph/graph.h"

/* The products of a weight: what each multiplies, by the word before its rules. */
static const struct product {
	const char *word;
	enum field_id experts;
} products[] = { { "forward", F_precision_experts }, { "dx", F_precision_experts_dx },
	{ "dw", F_precision_experts_dw } };

struct made {
	struct op op;
	enum phase phase;
};
/* The kind of layers that is rewritten. */
struct eight {
	struct graph *g;
	uint32_t seg;
	enum phase phase;
	ARRAY(struct made) made;
	struct oplist list;
	tensor_id saturated; /* what became 448 of what is quantised; 0: nothing has counted yet */
	bool counts;         /* the op is none that recomputation repeats */
};

/* Results of the rules of one op, by their names. */
struct results {
	struct word name[MAX_ARGS * 2];
	tensor_id of[MAX_ARGS * 2];
	uint32_t n;
};

/* 0: an argument that the rule does without. */
static tensor_id
meant(const struct op *o, const struct results *all, struct word name)
{
	int a = op_find_arg(op_row(o->op), name);

	for (uint32_t i = all->n; i-- > 0 && a < 0;)
		if (name.n == all->name[i].n && !memcmp(name.s, all->name[i].s, name.n))
			return all->of[i];
	return a < 0 ? 0 : o->arg[a];
}

static bool
taken(const struct eight *e, const char *name)
{
	for (tensor_id i = 1; i < e->g->tensor.n; i++)
		if (e->g->tensor.a[i].seg == e->seg && !strcmp(tensor_short_name(e->g, i), name))
			return true;
	return false;
}

/* "s_gate_proj", of what is quantised, or of what that is of; what is made again is another. */
static const char *
name_of(const struct eight *e, struct word name, tensor_id from)
{
	const char *of = tensor_short_name(e->g, from), *end = strchr(of, '_');
	bool eight = e->g->tensor.a[from].role == ROLE_EIGHT;
	const char *all = xprintf("%.*s_%s", (int)name.n, name.s, eight && end ? end + 1 : of);

	while (taken(e, all))
		all = xprintf("re_%s", all);
	return all;
}

/*
 * The same that was done before; what has more bits is not kept from one phase to the next, but
 * made of them again.
 */
static const struct op *
made_before(const struct eight *e, const struct op *o)
{
	const struct op_row *r = op_row(o->op);

	for (uint32_t i = 0; i < e->made.n; i++) {
		const struct made *m = &e->made.a[i];
		if (m->op.op == o->op && !memcmp(m->op.ints, o->ints, sizeof o->ints) &&
		    !memcmp(m->op.arg, o->arg, r->nin * sizeof *o->arg) &&
		    (m->phase == e->phase || r->arg[r->nin].role == ROLE_EIGHT))
			return &m->op;
	}
	return NULL;
}

static bool
by_floor(const struct eight *e, const struct format *f)
{
	const struct value *scale = spec_value(e->g->trainer, F_precision_scale);

	return !strcmp(f->name, "mxfp8") && !strcmp(scale->str, "floor");
}

/* Where rows of a kind of layers count what is larger than 448, which rceil leaves nothing of. */
static tensor_id
saturated(struct eight *e, const struct format *f, const struct arg_row *arg)
{
	if (!e->counts || !by_floor(e, f))
		return 0;
	if (!e->saturated) {
		e->saturated = graph_tensor(e->g, "saturated", T_STAT, arg->role, e->seg);
		e->g->tensor.a[e->saturated].sum = OM_DATA;
		e->g->tensor.a[e->saturated].line =
		    spec_value(e->g->trainer, F_precision_scale)->line;
	}
	return e->saturated;
}

/* Tensors for what the op of a rule gives. */
static void
give(struct eight *e, struct op *n, const struct rule *rule, const struct format *f)
{
	const struct op_row *r = op_row(n->op);

	for (uint8_t i = r->nin; i < r->nargs; i++) {
		enum role role = r->arg[i].role;
		if (r->arg[i].optional) {
			n->arg[i] = i - r->nin < rule->nout ? saturated(e, f, &r->arg[i]) : 0;
			continue;
		}
		if (role == ROLE_SCALE && !strcmp(f->scale, "fp32"))
			role = ROLE_SCALE32;
		n->arg[i] = graph_tensor(e->g, name_of(e, rule->out[i - r->nin], n->arg[0]),
		    r->first ? T_COPY : T_ACT, role, e->seg);
		e->g->tensor.a[n->arg[i]].line = n->line;
	}
	op_shape(e->g, n);
}

/* One rule of those for an op. */
static void
apply(struct eight *e, const struct op *o, const struct rule *rule, const struct format *f,
    const struct line *line, struct results *all)
{
	const struct op_row *r = op_row(rule->op);
	bool last = rule->op == o->op;
	struct op n = { .op = rule->op, .line = last ? o->line : line };

	if (rule->nin > r->nin || rule->nout > r->nout)
		internal("op.def: %s in 8 bits has not the arguments of %s", op_row(o->op)->name,
		    r->name);
	for (uint8_t i = 0; i < r->nints; i++)
		n.ints[i] = r->ints[i] == 'b'   ? f->block
			    : r->ints[i] == 'h' ? (strcmp(f->scale, "fp32") ? 1 : f->block)
						: by_floor(e, f);
	for (uint8_t i = 0; i < rule->nin; i++)
		n.arg[i] = meant(o, all, rule->in[i]);
	if (last) {
		memcpy(n.ints, o->ints, sizeof n.ints);
		memcpy(n.floats, o->floats, sizeof n.floats);
		memcpy(n.arg + r->nin, o->arg + r->nin, r->nout * sizeof *n.arg);
		*PUSH(e->list) = n;
		return;
	}
	const struct op *before = made_before(e, &n);
	if (before) {
		n = *before;
	} else {
		give(e, &n, rule, f);
		/* weights once for all passes, the first of which is forward */
		bool ahead = r->first && e->phase > FORWARD;
		*PUSH(*(ahead ? &e->g->seg.a[e->seg].ops[FORWARD] : &e->list)) = n;
		*PUSH(e->made) = (struct made){ n, e->phase };
	}
	for (uint8_t i = 0; i < rule->nout; i++, all->n++) {
		all->name[all->n] = rule->out[i];
		all->of[all->n] = n.arg[r->nin + i];
	}
}

/* The field that says what an op's product multiplies; NULL: none does. */
static const struct value *
chosen(const struct eight *e, const struct op *o, const char **rules)
{
	const struct op_row *r = op_row(o->op);
	size_t n = strcspn(r->eight, ":");
	const char *hf = NULL;

	for (uint8_t i = 0; i < r->nargs; i++) {
		const struct tensor *t = &e->g->tensor.a[o->arg[i]];
		hf = t->class == T_PARAM  ? t->hf
		     : t->class == T_GRAD ? e->g->tensor.a[t->param].hf
					  : hf;
	}
	for (uint32_t i = 0; *r->eight && i < LEN(products); i++)
		if (!strncmp(products[i].word, r->eight, n) && strstr(hf, "expert")) {
			*rules = r->eight + n + 1;
			return spec_value(e->g->trainer, products[i].experts);
		}
	return NULL;
}

static void
rewrite(struct eight *e, const struct op *o)
{
	const char *rules;
	const struct value *v = chosen(e, o, &rules);
	const struct format *f = v && v->set ? format_find(v->str) : NULL;
	const struct value *why = spec_value(e->g->trainer, F_precision_experts);
	struct results all = { 0 };
	struct rule rule;

	if (!f || f->block == 1) {
		*PUSH(e->list) = *o;
		return;
	}
	/* the field to point at, whether the description gives it or it follows */
	why = strcmp(v->str, why->str) ? v : why;
	e->counts = e->phase == FORWARD || strncmp(op_row(o->op)->eight, "forward", 7) != 0;
	while (rule_next(&rules, &rule))
		apply(e, o, &rule, f, why->line, &all);
}

void
eight_segment(struct graph *g, uint32_t s)
{
	struct eight e = { .g = g, .seg = s };

	for (; e.phase <= g->last_phase && g->seg.a[s].eight; e.phase++) {
		struct oplist old = g->seg.a[s].ops[e.phase];
		e.list = (struct oplist){ 0 };
		for (uint32_t i = 0; i < old.n; i++)
			rewrite(&e, &old.a[i]);
		g->seg.a[s].ops[e.phase] = e.list;
	}
}
