/*
 * Ops that one op does better: the rows of fuse.def that hold for the target, in their order. A row
 * is tried on a segment until it matches nowhere; of several matches the one whose ops come first
 * holds. Nothing is looked for beyond a segment, so work grows with their number and no faster.
 */
#include <string.h>

#include "plan/plan.h"

enum { MAX_CALLS = 8, MAX_VARS = 32, ANY_PHASE = N_PHASES };

struct call {
	enum op_id op;
	int phase;
	uint8_t var[MAX_ARGS];
};
struct pattern {
	struct call call[MAX_CALLS], into;
	uint32_t n, nvars;
	const char *var[MAX_VARS];
	/* of a merged variable, which `into` alone may have: those that it is made of */
	uint8_t nparts[MAX_VARS], part[MAX_VARS][MAX_PARTS];
	uint32_t written, kept; /* sets of variables: by the calls, by `into` */
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

/* The variable of "a", or of "a|b|c". */
static uint8_t
var_of(struct pattern *p, struct word w)
{
	const char *s = xprintf("%.*s", (int)w.n, w.s);
	uint8_t part[MAX_PARTS], n = 0;

	for (bool more = true; more; n++) {
		size_t k = strcspn(s, "|");
		if (n == MAX_PARTS)
			internal("fuse.def: more than %d parts of a merged argument", MAX_PARTS);
		part[n] = variable(p, xprintf("%.*s", (int)k, s));
		more = s[k];
		s += k + more;
	}
	if (n == 1)
		return *part;
	uint8_t v = variable(p, xprintf("merged %u", p->nvars));
	memcpy(p->part[v], part, n);
	p->nparts[v] = n;
	return v;
}

/* A variable, or those that it is made of. */
static uint32_t
set_of(const struct pattern *p, uint8_t v)
{
	uint32_t set = p->nparts[v] ? 0 : 1u << v;

	for (uint8_t i = 0; i < p->nparts[v]; i++)
		set |= 1u << p->part[v][i];
	return set;
}

/* Reads "outs = op(ins)"; gives the set of its variables. */
static uint32_t
read_call(struct pattern *p, const char **s, struct call *c)
{
	struct rule rule;
	uint32_t all = 0;

	if (!rule_next(s, &rule) || rule.op == N_OPS)
		internal("fuse.def: no op where one should be");
	c->op = rule.op;
	const struct op_row *r = op_row(c->op);
	if (rule.nin != r->nin || rule.nout != r->nout)
		internal("fuse.def: wrong number of arguments of %s", r->name);
	for (uint8_t i = 0; i < r->nin + r->nout; i++) {
		bool out = i >= r->nin;
		c->var[i] = var_of(p, out ? rule.out[i - r->nin] : rule.in[i]);
		all |= set_of(p, c->var[i]);
		if (r->arg[i].accumulate != (out && rule.adds[i - r->nin]))
			internal("fuse.def: %s is %sadded to by %s", p->var[c->var[i]],
			    r->arg[i].accumulate ? "" : "not ", r->name);
	}
	return all;
}

static uint32_t
outputs(const struct pattern *p, const struct call *c)
{
	const struct op_row *r = op_row(c->op);
	uint32_t set = 0;

	for (uint8_t i = r->nin; i < r->nin + r->nout; i++)
		set |= set_of(p, c->var[i]);
	return set;
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
		c->phase = phase;
		uint32_t all = read_call(&p, &s, c);
		for (uint32_t v = 0; v < p.nvars; v++)
			if (p.nparts[v])
				internal("fuse.def: '%s' has a merged argument", f->match);
		if (p.n > 1 && !(all & seen))
			internal("fuse.def: %s shares no name with the ops before it",
			    op_row(c->op)->name);
		seen |= all;
		p.written |= outputs(&p, c);
	}
	s = f->into;
	uint32_t all = read_call(&p, &s, &p.into);
	p.kept = outputs(&p, &p.into);
	if (p.n < 2 || all & ~seen || p.kept & ~p.written || all & ~p.kept & p.written)
		internal("fuse.def: '%s' cannot become '%s'", f->match, f->into);
	return p;
}

/* ---- a place in a segment where it holds ---- */

struct match {
	uint32_t at[MAX_CALLS]; /* indices of ops in their phases */
	int phase[MAX_CALLS];
	tensor_id of[MAX_VARS];
	uint32_t bound; /* variables that have a tensor */
	uint32_t place; /* call whose place the new op takes */
	struct op into;
};
struct fuser {
	struct graph *g;
	const struct target_row *target; /* NULL: whatever can be, is fused */
	uint32_t seg;
	const struct pattern *p;
	ARRAY(uint32_t) uses; /* by tensor, in all ops that run between those of a segment */
};

static const struct op *
op_of(const struct fuser *f, const struct match *m, uint32_t k)
{
	return &f->g->seg.a[f->seg].ops[m->phase[k]].a[m->at[k]];
}

/* True if the op at that place is one of the match's first n. */
static bool
taken(const struct match *m, uint32_t n, int phase, uint32_t at)
{
	for (uint32_t k = 0; k < n; k++)
		if (m->phase[k] == phase && m->at[k] == at)
			return true;
	return false;
}

/* Activations have readers in their segment alone; what a step's passes do not do is done apart. */
static void
count_uses(struct fuser *f, const struct op *o, uint32_t change)
{
	const struct op_row *r = op_row(o->op);
	bool pass = f->seg >= f->g->embed && f->seg <= f->g->head;

	for (uint8_t i = 0; i < r->nin + r->nout; i++)
		if (pass || f->g->tensor.a[o->arg[i]].class == T_ACT)
			f->uses.a[o->arg[i]] += change;
}

/* True if no op but the match's own reads or writes the tensor. */
static bool
own(const struct fuser *f, const struct match *m, tensor_id t)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < f->p->n; k++) {
		const struct op *o = op_of(f, m, k);
		const struct op_row *r = op_row(o->op);
		for (uint8_t i = 0; i < r->nin + r->nout; i++)
			n += o->arg[i] == t;
	}
	return n == f->uses.a[t];
}

/* True if what one of the two writes is read or written by the other. */
static bool
ordered(const struct op *a, const struct op *b)
{
	const struct op_row *ra = op_row(a->op), *rb = op_row(b->op);

	for (uint8_t i = 0; i < ra->nin + ra->nout; i++)
		for (uint8_t k = 0; k < rb->nin + rb->nout; k++)
			if (a->arg[i] == b->arg[k] && (i >= ra->nin || k >= rb->nin))
				return true;
	return false;
}

/*
 * True if an op of the match may be done in the place of another: no op between has to come before
 * or after it. Between two phases other layers and microbatches are done, too.
 */
static bool
movable(const struct fuser *f, const struct match *m, uint32_t k, uint32_t place)
{
	const struct segment *seg = &f->g->seg.a[f->seg];
	const struct op *o = op_of(f, m, k);
	const struct op_row *r = op_row(o->op);
	bool later = m->phase[k] < m->phase[place] ||
		     (m->phase[k] == m->phase[place] && m->at[k] < m->at[place]);
	uint32_t lo = later ? k : place, hi = later ? place : k;

	for (int ph = m->phase[lo]; ph <= m->phase[hi]; ph++) {
		uint32_t end = ph == m->phase[hi] ? m->at[hi] : seg->ops[ph].n;
		for (uint32_t i = ph == m->phase[lo] ? m->at[lo] + 1 : 0; i < end; i++)
			if (!taken(m, f->p->n, ph, i) && ordered(o, &seg->ops[ph].a[i]))
				return false;
	}
	for (uint8_t i = r->nin; i < r->nin + r->nout && m->phase[k] != m->phase[place]; i++)
		if (f->g->tensor.a[o->arg[i]].class != T_ACT && !own(f, m, o->arg[i]))
			return false;
	return true;
}

/* The last place, in the last phase of the match, that all of its ops can be done in. */
static bool
find_place(const struct fuser *f, struct match *m)
{
	uint32_t n = f->p->n;
	int last = 0;

	for (uint32_t k = 0; k < n; k++)
		last = m->phase[k] > last ? m->phase[k] : last;
	for (uint32_t i = f->g->seg.a[f->seg].ops[last].n; i-- > 0;)
		for (uint32_t c = 0; c < n; c++) {
			bool good = m->phase[c] == last && m->at[c] == i;
			for (uint32_t k = 0; k < n && good; k++)
				good = k == c || movable(f, m, k, c);
			m->place = c;
			if (good)
				return true;
		}
	return false;
}

/* Takes over an int or float by its name; false if the ops disagree about it. */
static bool
same_constants(const struct fuser *f, struct match *m)
{
	const struct op_row *r = op_row(f->p->into.op);
	uint32_t ints = 0, floats = 0; /* found so far */

	for (uint32_t k = 0; k < f->p->n; k++) {
		const struct op *o = op_of(f, m, k);
		const struct op_row *s = op_row(o->op);
		if (o->group != op_of(f, m, 0)->group)
			return false;
		for (uint8_t i = 0; i < r->nints; i++)
			for (uint8_t j = 0; j < s->nints; j++) {
				if (r->ints[i] != s->ints[j])
					continue;
				if (ints >> i & 1 && m->into.ints[i] != o->ints[j])
					return false;
				m->into.ints[i] = o->ints[j];
				ints |= 1u << i;
			}
		for (uint8_t i = 0; i < r->nfloats; i++)
			for (uint8_t j = 0; j < s->nfloats; j++) {
				if (strcmp(r->floats[i], s->floats[j]))
					continue;
				if (floats >> i & 1 &&
				    memcmp(&m->into.floats[i], &o->floats[j], sizeof(double)))
					return false;
				m->into.floats[i] = o->floats[j];
				floats |= 1u << i;
			}
	}
	if (ints + 1 != 1u << r->nints || floats + 1 != 1u << r->nfloats)
		internal("fuse.def: %s wants what no matched op has", r->name);
	return true;
}

/*
 * True if parameters can be merged: those that are already are merged so, or they are of one
 * segment, differ in their rows alone, in number and use, and stand in the order in which they were
 * made.
 */
static bool
may_merge(const struct fuser *f, const struct match *m, uint8_t v)
{
	const struct tensor *all = f->g->tensor.a, *first = &all[m->of[f->p->part[v][0]]];
	tensor_id last = 0;

	for (uint8_t i = 0; i < MAX_PARTS; i++) {
		bool here = i < f->p->nparts[v];
		tensor_id id = here ? m->of[f->p->part[v][i]] : 0;
		const struct tensor *x = &all[id];
		if (first->whole && all[first->whole].part[i] != id)
			return false;
		if (here && (x->class != T_PARAM || id <= last || x->whole != first->whole ||
				x->seg != first->seg || x->param_group != first->param_group ||
				x->copies != first->copies || x->ndims != first->ndims ||
				memcmp(x->dim + 1, first->dim + 1, sizeof x->dim - sizeof *x->dim)))
			return false;
		last = id;
	}
	return true;
}

/* What parameters that can be merged become, or are already. */
static struct tensor
merged(const struct fuser *f, const struct match *m, uint8_t v)
{
	const struct tensor *all = f->g->tensor.a, *first = &all[m->of[f->p->part[v][0]]];
	struct buf name = { 0 };

	if (first->whole)
		return all[first->whole];
	struct tensor t = { .class = T_MERGED,
		.role = first->role,
		.format = first->format,
		.ndims = first->ndims,
		.seg = first->seg,
		.rline = first->rline };
	memcpy(t.dim, first->dim, sizeof t.dim);
	t.dim[0] = 0;
	for (uint8_t i = 0; i < f->p->nparts[v]; i++) {
		const struct tensor *x = &all[m->of[f->p->part[v][i]]];
		size_t own = i ? strlen(f->g->seg.a[t.seg].name) : 0;
		buf_puts(&name, x->name + own);
		t.part[i] = m->of[f->p->part[v][i]];
		t.dim[0] += x->dim[0];
	}
	t.name = name.s;
	return t;
}

/* The merged tensor, which is made if it is not there yet. */
static tensor_id
merge(struct fuser *f, const struct match *m, uint8_t v)
{
	struct graph *g = f->g;
	const struct tensor t = merged(f, m, v);
	tensor_id *whole = &g->tensor.a[t.part[0]].whole;

	if (*whole)
		return *whole;
	for (uint8_t i = 0; i < f->p->nparts[v]; i++)
		g->tensor.a[t.part[i]].whole = g->tensor.n;
	*PUSH(g->tensor) = t;
	(void)PUSH(f->uses);
	return g->tensor.n - 1;
}

/* True if the target has a kernel for what the match becomes. */
static bool
has_kernel(const struct fuser *f, const struct match *m)
{
	const struct op_row *r = op_row(m->into.op);
	uint32_t n = f->g->tensor.n;
	struct op o = m->into;

	/* sizes are asked of tensors: merged ones are there for so long */
	for (uint8_t i = 0; i < r->nin; i++)
		if (f->p->nparts[f->p->into.var[i]]) {
			struct tensor t = merged(f, m, f->p->into.var[i]);
			o.arg[i] = f->g->tensor.n;
			*PUSH(f->g->tensor) = t;
		}
	bool has = !f->target || kernel_for(f->g, f->target, &o);
	f->g->tensor.n = n;
	return has;
}

/* True if the ops that were found can become one: what is lost is theirs alone, order holds. */
static bool
may_fuse(const struct fuser *f, struct match *m)
{
	const struct segment *seg = &f->g->seg.a[f->seg];
	const struct op_row *r = op_row(f->p->into.op);

	for (uint32_t v = 0; v < f->p->nvars; v++) {
		tensor_id t = m->of[v];
		if (!((f->p->written & ~f->p->kept) >> v & 1))
			continue;
		if (f->g->tensor.a[t].class != T_ACT || t == seg->x || t == seg->y ||
		    t == seg->dx || t == seg->dy || !own(f, m, t))
			return false;
	}
	m->into = (struct op){ .op = f->p->into.op, .group = op_of(f, m, 0)->group };
	for (uint8_t i = 0; i < r->nin + r->nout; i++) {
		uint8_t v = f->p->into.var[i];
		m->into.arg[i] = m->of[v]; /* 0: merged when all else is well */
		if (f->p->nparts[v] && !may_merge(f, m, v))
			return false;
	}
	/* two names may be one tensor */
	for (uint8_t i = 0; i < r->nin; i++)
		for (uint32_t v = 0; v < f->p->nvars; v++)
			if (f->p->written >> v & 1 && m->of[v] == m->into.arg[i])
				return false;
	if (!same_constants(f, m) || !has_kernel(f, m) || !find_place(f, m))
		return false;
	m->into.rline = op_of(f, m, m->place)->rline;
	return true;
}

/* Finds ops for the calls from k on. */
static bool
complete(const struct fuser *f, struct match *m, uint32_t k)
{
	const struct match before = *m;

	if (k == f->p->n)
		return may_fuse(f, m);
	const struct oplist *l = &f->g->seg.a[f->seg].ops[m->phase[k]];
	for (uint32_t i = 0; i < l->n; i++) {
		const struct op *o = &l->a[i];
		bool good = o->op == f->p->call[k].op && !taken(&before, k, before.phase[k], i);
		if (!good)
			continue;
		*m = before;
		m->at[k] = i;
		for (uint8_t a = 0; a < op_row(o->op)->nin + op_row(o->op)->nout; a++) {
			uint8_t v = f->p->call[k].var[a];
			good &= !(m->bound >> v & 1) || m->of[v] == o->arg[a];
			m->bound |= 1u << v;
			m->of[v] = o->arg[a];
		}
		if (good && complete(f, m, k + 1))
			return true;
	}
	return false;
}

static void
replace(struct fuser *f, struct match *m)
{
	const struct op_row *r = op_row(m->into.op);

	for (uint8_t i = 0; i < r->nin + r->nout; i++)
		if (f->p->nparts[f->p->into.var[i]])
			m->into.arg[i] = merge(f, m, f->p->into.var[i]);
	for (uint32_t k = 0; k < f->p->n; k++)
		count_uses(f, op_of(f, m, k), -1u);
	count_uses(f, &m->into, 1);
	for (int ph = 0; ph < N_PHASES; ph++) {
		struct oplist *l = &f->g->seg.a[f->seg].ops[ph];
		uint32_t n = 0;
		for (uint32_t i = 0; i < l->n; i++) {
			if (m->phase[m->place] == ph && m->at[m->place] == i)
				l->a[n++] = m->into;
			else if (!taken(m, f->p->n, ph, i))
				l->a[n++] = l->a[i];
		}
		l->n = n;
	}
}

void
fuse_graph(struct graph *g, const struct target_row *t, const struct fusion *rows, uint32_t n)
{
	struct fuser f = { .g = g, .target = t };

	while (f.uses.n < g->tensor.n)
		(void)PUSH(f.uses);
	for (f.seg = 0; f.seg < g->seg.n; f.seg++)
		for (int ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < g->seg.a[f.seg].ops[ph].n; i++)
				count_uses(&f, &g->seg.a[f.seg].ops[ph].a[i], 1);
	for (uint32_t i = 0; i < n; i++) {
		const struct pattern p = read_pattern(&rows[i]);
		f.p = &p;
		for (f.seg = 0; f.seg < g->seg.n; f.seg++)
			for (int any = 0; any < N_PHASES; any++)
				for (bool found = true; found;) {
					struct match m = { 0 };
					for (uint32_t k = 0; k < p.n; k++)
						m.phase[k] = p.call[k].phase == ANY_PHASE
								 ? any
								 : p.call[k].phase;
					found = complete(&f, &m, 0);
					if (found)
						replace(&f, &m);
				}
	}
}

void
fuse(struct shard *s)
{
	static const struct {
		const char *kernels;
		struct fusion fusion;
	} rows[] = {
#define FUSE(kernels, match, into) { #kernels, { match, into } },
#include "fuse.def"
#undef FUSE
	};
	struct fusion here[LEN(rows)];
	uint32_t n = 0;

	for (uint32_t i = 0; i < LEN(rows) && spec_int(s->graph->trainer, F_trainer_fuse); i++)
		if (!strcmp(rows[i].kernels, s->target->kind->name))
			here[n++] = rows[i].fusion;
	fuse_graph(s->graph, s->target, here, n);
}
