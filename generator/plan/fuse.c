/*
 * Ops that one op does better: the rows of fuse.def in their order. A row
 * is tried on a segment until it matches nowhere; of several matches the one whose ops come first
 * holds. Nothing is looked for beyond a segment, so work grows with their number and no faster.
 */
#include <string.h>

#include "plan/plan.h"

enum { MAX_CALLS = 8, MAX_VARS = 32, ANY_PHASE = N_PHASES };

struct variables { /* one, or those that are merged, which `into` alone may have */
	uint8_t n, a[MAX_PARTS];
};
struct call {
	enum op_id op;
	int phase;
	struct variables arg[MAX_ARGS];
	uint32_t named, written; /* sets of variables */
};
struct pattern {
	struct call call[MAX_CALLS], into;
	uint32_t n, nvars;
	const char *var[MAX_VARS];
	uint32_t written; /* by the calls */
};

/* ---- the text of a row ---- */

static uint8_t
variable(struct pattern *p, const char *name)
{
	uint8_t v = 0;

	while (v < p->nvars && strcmp(p->var[v], name))
		v++;
	if (v == MAX_VARS || !*name)
		internal("fuse.def: '%s' is no name, or one too many", name);
	if (v == p->nvars)
		p->var[p->nvars++] = name;
	return v;
}

/* "a", or "a|b|c". */
static struct variables
read_variables(struct pattern *p, struct word w)
{
	const char *s = xprintf("%.*s", (int)w.n, w.s);
	struct variables all = { 0 };

	do {
		size_t k = strcspn(s, "|");
		if (all.n == MAX_PARTS)
			internal("fuse.def: more than %d parts of a merged argument", MAX_PARTS);
		all.a[all.n++] = variable(p, xprintf("%.*s", (int)k, s));
		s += k;
	} while (*s++ == '|');
	return all;
}

/* "outs = op(ins)" */
static struct call
read_call(struct pattern *p, const char **s)
{
	struct rule rule;

	if (!rule_next(s, &rule) || rule.op == N_OPS)
		internal("fuse.def: no op where one should be");
	struct call c = { .op = rule.op };
	const struct op_row *r = op_row(c.op);
	if (rule.nin > r->nin || rule.nout > r->nargs - r->nin)
		internal("fuse.def: wrong number of arguments of %s", r->name);
	for (uint8_t i = 0; i < r->nargs; i++) {
		bool out = i >= r->nin;
		if (out ? i - r->nin >= rule.nout : i >= rule.nin) {
			if (!r->arg[i].optional)
				internal("fuse.def: %s lacks arguments", r->name);
			continue;
		}
		c.arg[i] = read_variables(p, out ? rule.out[i - r->nin] : rule.in[i]);
		for (uint8_t k = 0; k < c.arg[i].n; k++) {
			c.named |= 1u << c.arg[i].a[k];
			c.written |= (uint32_t)out << c.arg[i].a[k];
		}
		if (r->arg[i].accumulate != (out && rule.adds[i - r->nin]))
			internal("fuse.def: %s is %sadded to by %s", p->var[*c.arg[i].a],
			    r->arg[i].accumulate ? "" : "not ", r->name);
	}
	return c;
}

static struct pattern
read_pattern(const struct fusion *f)
{
	struct pattern p = { 0 };
	const char *s = f->match;
	uint32_t seen = 0;
	int phase = ANY_PHASE;

	for (; *s; s += strspn(s, " ;")) {
		for (int ph = 0; ph < N_PHASES; ph++) {
			size_t n = strlen(graph_phase_names[ph]);
			if (!strncmp(s, graph_phase_names[ph], n) && s[n] == ':') {
				phase = ph;
				s += n + 1;
			}
		}
		if (p.n == MAX_CALLS)
			internal("fuse.def: more than %d ops in '%s'", MAX_CALLS, f->match);
		struct call *c = &p.call[p.n++];
		*c = read_call(&p, &s);
		c->phase = phase;
		for (uint8_t i = 0; i < op_row(c->op)->nargs; i++)
			if (c->arg[i].n > 1)
				internal("fuse.def: '%s' has a merged argument", f->match);
		if (p.n > 1 && !(c->named & seen))
			internal("fuse.def: %s shares no name with the ops before it",
			    op_row(c->op)->name);
		seen |= c->named;
		p.written |= c->written;
	}
	s = f->into;
	p.into = read_call(&p, &s);
	if (p.n < 2 || p.into.named & ~seen || p.into.written & ~p.written ||
	    p.into.named & ~p.into.written & p.written)
		internal("fuse.def: '%s' cannot become '%s'", f->match, f->into);
	return p;
}

/* ---- a place in a segment where it holds ---- */

struct match {
	const struct op_at *at[MAX_CALLS]; /* among fuser.op */
	tensor_id of[MAX_VARS];
	uint32_t bound;            /* variables that have a tensor */
	const struct op_at *place; /* which the new op takes */
	struct op into;
};
struct fuser {
	struct graph *g;
	const struct target_row *target; /* NULL: whatever can be, is fused */
	uint32_t seg;
	ARRAY(struct op_at) op; /* the segment's, phase after phase */
	const struct pattern *p;
	ARRAY(uint32_t) uses; /* by tensor, in all ops that run between those of a segment */
};

/* True if the op is one of the match's first n. */
static bool
taken(const struct match *m, uint32_t n, const struct op_at *at)
{
	for (uint32_t k = 0; k < n; k++)
		if (m->at[k] == at)
			return true;
	return false;
}

/* Activations have readers in their segment alone; what a step's passes do not do is done apart. */
static void
count_uses(struct fuser *f, uint32_t seg, const struct op *o, uint32_t change)
{
	bool pass = seg >= f->g->embed && seg <= f->g->head;

	for (uint8_t i = 0; i < op_row(o->op)->nargs; i++)
		if (pass || f->g->tensor.a[o->arg[i]].class == T_ACT)
			f->uses.a[o->arg[i]] += change;
}

/* True if no op but the match's own reads or writes the tensor. */
static bool
own(const struct fuser *f, const struct match *m, tensor_id t)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < f->p->n; k++)
		for (uint8_t i = 0; i < op_row(f->p->call[k].op)->nargs; i++)
			n += m->at[k]->op->arg[i] == t;
	return n == f->uses.a[t];
}

/* True if what one of the two writes is read or written by the other. */
static bool
ordered(const struct op *a, const struct op *b)
{
	for (uint8_t i = 0; i < op_row(a->op)->nargs; i++)
		if (op_writes(b, a->arg[i]) || (op_writes(a, a->arg[i]) && op_reads(b, a->arg[i])))
			return true;
	return false;
}

/*
 * True if an op of the match may be done in the place of another: no op between has to come before
 * or after it. Between two phases other layers and microbatches are done, too.
 */
static bool
movable(
    const struct fuser *f, const struct match *m, const struct op_at *from, const struct op_at *to)
{
	const struct op_row *r = op_row(from->op->op);
	const struct op_at *end = from < to ? to : from;

	for (const struct op_at *x = from < to ? from : to; x < end; x++)
		if (!taken(m, f->p->n, x) && ordered(from->op, x->op))
			return false;
	for (uint8_t i = r->nin; i < r->nargs && from->phase != to->phase; i++) {
		tensor_id t = from->op->arg[i];
		if (f->g->tensor.a[t].class != T_ACT && !own(f, m, t))
			return false;
	}
	return true;
}

/* The last place, in the last phase of the match, that all of its ops can be done in. */
static bool
find_place(const struct fuser *f, struct match *m)
{
	const struct op_at *last = m->at[0];
	uint32_t n = f->p->n;

	for (uint32_t k = 1; k < n; k++)
		last = m->at[k] > last ? m->at[k] : last;
	for (uint32_t c = 0; c < n; c++) {
		bool good = m->at[c]->phase == last->phase && (!m->place || m->at[c] > m->place);
		for (uint32_t k = 0; k < n && good; k++)
			good = movable(f, m, m->at[k], m->at[c]);
		if (good)
			m->place = m->at[c];
	}
	return m->place;
}

/* A constant becomes what an op has of it; false if that is another than ops before had. */
static bool
take(void *constant, const void *of_op, bool *known)
{
	bool same = !*known || !memcmp(constant, of_op, sizeof(uint64_t));

	memcpy(constant, of_op, sizeof(uint64_t));
	*known = true;
	return same;
}

/* Takes over ints and floats by their names; false if the ops disagree about one. */
static bool
same_constants(const struct fuser *f, struct match *m)
{
	const struct op_row *r = op_row(m->into.op);
	bool ints[MAX_INTS] = { 0 }, floats[MAX_FLOATS] = { 0 }; /* known */

	for (uint32_t k = 0; k < f->p->n; k++) {
		const struct op *o = m->at[k]->op;
		const struct op_row *s = op_row(o->op);
		for (uint8_t i = 0; i < r->nints; i++)
			for (uint8_t j = 0; j < s->nints; j++)
				if (r->ints[i] == s->ints[j] &&
				    !take(&m->into.ints[i], &o->ints[j], &ints[i]))
					return false;
		for (uint8_t i = 0; i < r->nfloats; i++)
			for (uint8_t j = 0; j < s->nfloats; j++)
				if (!strcmp(r->floats[i], s->floats[j]) &&
				    !take(&m->into.floats[i], &o->floats[j], &floats[i]))
					return false;
	}
	if (memchr(ints, false, r->nints) || memchr(floats, false, r->nfloats))
		internal("fuse.def: %s wants what no matched op has", r->name);
	return true;
}

/*
 * True if parameters can be merged: those that are already are merged so, or they are of one
 * segment, differ in their rows alone, in number and use, and stand in the order in which they were
 * made.
 */
static bool
may_merge(const struct fuser *f, const struct match *m, const struct variables *v)
{
	const struct tensor *all = f->g->tensor.a, *first = &all[m->of[*v->a]];
	tensor_id last = 0;

	for (uint8_t i = 0; i < MAX_PARTS; i++) {
		tensor_id id = i < v->n ? m->of[v->a[i]] : 0;
		const struct tensor *x = &all[id];
		if (first->whole && all[first->whole].part[i] != id)
			return false;
		if (id && (x->class != T_PARAM || id <= last || x->whole != first->whole ||
			      x->seg != first->seg || x->param_group != first->param_group ||
			      x->copies != first->copies || x->ndims != first->ndims ||
			      memcmp(x->dim + 1, first->dim + 1, sizeof x->dim - sizeof *x->dim)))
			return false;
		last = id;
	}
	return true;
}

/* What parameters that can be merged are, or become. */
static tensor_id
merge(struct fuser *f, const struct match *m, const struct variables *v)
{
	struct graph *g = f->g;
	const struct tensor first = g->tensor.a[m->of[*v->a]];
	struct buf name = { 0 };

	if (first.whole)
		return first.whole;
	for (uint8_t i = 0; i < v->n; i++)
		buf_printf(&name, "%s%s", i ? "_" : "", tensor_short_name(g, m->of[v->a[i]]));
	tensor_id id = graph_like(g, m->of[*v->a], T_MERGED, first.role, name.s);
	struct tensor *whole = &g->tensor.a[id];
	whole->dim[0] = 0;
	for (uint8_t i = 0; i < v->n; i++) {
		whole->part[i] = m->of[v->a[i]];
		whole->dim[0] += g->tensor.a[whole->part[i]].dim[0];
		g->tensor.a[whole->part[i]].whole = id;
	}
	(void)PUSH(f->uses);
	return id;
}

/* Merges arguments; true if the target has a kernel for them, else nothing was merged. */
static bool
has_kernel(struct fuser *f, struct match *m)
{
	uint32_t n = f->g->tensor.n;

	for (uint8_t i = 0; i < op_row(m->into.op)->nargs; i++)
		if (f->p->into.arg[i].n > 1)
			m->into.arg[i] = merge(f, m, &f->p->into.arg[i]);
	if (!f->target || kernel_for(f->g, f->target, &m->into))
		return true;
	for (tensor_id t = n; t < f->g->tensor.n; t++)
		for (uint8_t i = 0; i < MAX_PARTS; i++)
			f->g->tensor.a[f->g->tensor.a[t].part[i]].whole = 0;
	f->g->tensor.n = f->uses.n = n;
	return false;
}

/* True if the ops that were found can become one: what is lost is theirs alone, order holds. */
static bool
may_fuse(struct fuser *f, struct match *m)
{
	const struct segment *seg = &f->g->seg.a[f->seg];
	const struct call *into = &f->p->into;
	const enum om_group group = m->at[0]->op->group;

	for (uint32_t k = 0; k < f->p->n; k++)
		if (m->at[k]->op->group != group)
			return false;
	for (uint32_t v = 0; v < f->p->nvars; v++) {
		tensor_id t = m->of[v];
		if (!((f->p->written & ~into->written) >> v & 1))
			continue;
		if (f->g->tensor.a[t].class != T_ACT || t == seg->x || t == seg->y ||
		    t == seg->dx || t == seg->dy || !own(f, m, t))
			return false;
	}
	m->into = (struct op){ .op = into->op, .group = group };
	for (uint8_t i = 0; i < op_row(into->op)->nargs; i++) {
		m->into.arg[i] = m->of[*into->arg[i].a]; /* until all else is well */
		if (into->arg[i].n > 1 && !may_merge(f, m, &into->arg[i]))
			return false;
	}
	/* two names may be one tensor */
	for (uint32_t v = 0; v < f->p->nvars; v++)
		if (f->p->written >> v & 1 && op_reads(&m->into, m->of[v]))
			return false;
	if (!same_constants(f, m) || !find_place(f, m))
		return false;
	m->into.line = m->place->op->line;
	return has_kernel(f, m);
}

/* Finds ops for the calls from k on. */
static bool
complete(struct fuser *f, struct match *m, uint32_t k)
{
	const struct match before = *m;
	const struct call *c = &f->p->call[k];

	if (k == f->p->n)
		return may_fuse(f, m);
	for (const struct op_at *x = f->op.a; x < f->op.a + f->op.n; x++) {
		/* calls of any phase come first, and are all of one */
		int phase = c->phase != ANY_PHASE ? c->phase
			    : k                   ? (int)before.at[0]->phase
						  : (int)x->phase;
		if (x->op->op != c->op || (int)x->phase != phase || taken(&before, k, x))
			continue;
		bool good = true;
		*m = before;
		m->at[k] = x;
		for (uint8_t i = 0; good && i < op_row(c->op)->nargs; i++) {
			uint8_t v = *c->arg[i].a;
			if (!c->arg[i].n) {
				good = !x->op->arg[i];
				continue;
			}
			good = !(m->bound >> v & 1) || m->of[v] == x->op->arg[i];
			m->bound |= 1u << v;
			m->of[v] = x->op->arg[i];
		}
		if (good && complete(f, m, k + 1))
			return true;
	}
	return false;
}

static void
list_ops(struct fuser *f)
{
	f->op.n = 0;
	for (struct op_at o = { .seg = f->seg }; graph_next(f->g, &o) && o.seg == f->seg;)
		*PUSH(f->op) = o;
}

static void
replace(struct fuser *f, struct match *m)
{
	struct oplist *ops = f->g->seg.a[f->seg].ops;

	for (uint32_t k = 0; k < f->p->n; k++)
		count_uses(f, f->seg, m->at[k]->op, -1u);
	count_uses(f, f->seg, &m->into, 1);
	for (int ph = 0; ph < N_PHASES; ph++)
		ops[ph].n = 0;
	for (const struct op_at *x = f->op.a; x < f->op.a + f->op.n; x++) {
		struct oplist *l = &ops[x->phase];
		if (x == m->place || !taken(m, f->p->n, x))
			l->a[l->n++] = x == m->place ? m->into : *x->op;
	}
	list_ops(f);
}

void
fuse_graph(struct graph *g, const struct target_row *t, const struct fusion *rows, uint32_t n)
{
	struct fuser f = { .g = g, .target = t };

	while (f.uses.n < g->tensor.n)
		(void)PUSH(f.uses);
	for (struct op_at o = { 0 }; graph_next(g, &o);)
		count_uses(&f, o.seg, o.op, 1);
	for (uint32_t i = 0; i < n; i++) {
		const struct pattern p = read_pattern(&rows[i]);
		f.p = &p;
		for (f.seg = 0; f.seg < g->seg.n; f.seg++) {
			struct match m = { 0 };
			list_ops(&f);
			for (; complete(&f, &m, 0); m = (struct match){ 0 })
				replace(&f, &m);
		}
	}
}

void
fuse(struct shard *s)
{
	static const struct fusion rows[] = {
#define FUSE(match, into) { match, into },
#include "fuse.def"
#undef FUSE
	};

	if (spec_int(s->graph->trainer, F_trainer_fuse))
		fuse_graph(s->graph, s->target, rows, LEN(rows));
}
