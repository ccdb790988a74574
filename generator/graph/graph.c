/* Logical tensors and ops: the rows of op.def, sizes bound by shapes, text for people. */
#include <stddef.h>
#include <string.h>

#include "graph/graph.h"

static struct op_row rows[N_OPS];

const char *const graph_phase_names[N_PHASES] = { "forward", "backward", "weights" };
static const char *const role_letters = " sgoildqc"; /* in the order of enum role */
static const char *const role_names[N_ROLES] = { "act", "stat", "grad", "moment", "int32", "int64",
	"fp64", "eight", "scale", "scale32", "weight", "rows", "master" };
static const char *const class_names[] = { "", "param", "grad", "state", "merged", "buffer", "copy",
	"const", "input", "stat", "cache", "act" };

/* Reads "name[dims]:role ..." into args, which outlive the text. */
static uint8_t
parse_args(const char *s, struct arg_row *arg)
{
	uint8_t n = 0;

	for (; *s; n++) {
		struct arg_row *a = &arg[n];
		size_t len = strcspn(s, "[");
		*a = (struct arg_row){ .accumulate = *s == '+' };
		if (len - a->accumulate >= sizeof a->name || s[len] != '[')
			internal("op.def: bad argument '%s'", s);
		memcpy(a->name, s + a->accumulate, len - a->accumulate);
		for (s += len; *s == '[' || *s == ','; s += a->dim[a->ndims++].n) {
			s++;
			a->dim[a->ndims].s = s;
			a->dim[a->ndims].n = (uint8_t)strcspn(s, ",]");
		}
		s++;
		if (*s == ':') {
			a->role = (enum role)(strchr(role_letters, s[1]) - role_letters);
			s += 2;
		}
		a->optional = *s == '?';
		s += a->optional + strspn(s + a->optional, " ");
	}
	return n;
}

bool
word_is(struct word w, const char *s)
{
	return strlen(s) == w.n && !memcmp(s, w.s, w.n);
}

bool
word_next(const char **s, const char *stop, struct word *w)
{
	*s += strspn(*s, " ,");
	if (!**s || strchr(stop, **s))
		return false;
	w->s = *s;
	w->n = strcspn(*s, " ,=();");
	*s += w->n;
	return true;
}

static void
parse_trait(struct op_row *r, struct word w)
{
	static const struct {
		const char *name;
		size_t at;
	} flag[] = {
#define TRAIT(name) { #name, offsetof(struct op_row, name) },
		TRAITS
#undef TRAIT
	};
	const char *colon = memchr(w.s, ':', w.n);
	struct word trait = { w.s, colon ? (size_t)(colon - w.s) : w.n };
	struct word group = { trait.s + trait.n + 1, w.n - trait.n - 1 };
	bool found = false, known = !colon;

	for (unsigned i = 0; i < LEN(flag); i++)
		if (word_is(trait, flag[i].name))
			found = *(bool *)((char *)r + flag[i].at) = true;
	for (unsigned i = 0; !known && i < OM_N_GROUPS; i++)
		if ((known = word_is(group, i == OM_ALONE ? "tensor" : om_group_name[i])))
			r->group = (enum om_group)i;
	if (!found || !known)
		internal("op.def: no trait '%.*s'", (int)w.n, w.s);
}

int
op_find_arg(const struct op_row *r, struct word w)
{
	for (int i = 0; i < r->nargs; i++)
		if (word_is(w, r->arg[i].name))
			return i;
	return -1;
}

/* The columns of a row; the last ones may be missing. */
enum {
	C_INTS,
	C_FLOATS,
	C_IN,
	C_OUT,
	C_INPLACE,
	C_FLOPS,
	C_GRAD,
	C_TRAITS,
	C_APART,
	C_EIGHT,
	N_COLUMNS
};

static void
parse_row(struct op_row *r, const char *name, const char *const *c)
{
	struct word w;

	*r = (struct op_row){ .name = name,
		.flops = c[C_FLOPS],
		.grad = c[C_GRAD],
		.apart = c[C_APART] ? c[C_APART] : "",
		.eight = c[C_EIGHT] ? c[C_EIGHT] : "" };
	for (const char *s = c[C_INTS]; *s; s++)
		if (*s != ' ')
			r->ints[r->nints++] = *s;
	bool kept = false;
	for (const char *s = c[C_FLOATS] + strspn(c[C_FLOATS], " "); *s; s += strspn(s, " ")) {
		size_t len = strcspn(s, " ");
		kept |= *s == ';';
		if (*s != ';')
			memcpy(r->floats[r->nfloats++], s, len);
		r->nconsts = kept ? r->nconsts : r->nfloats;
		s += len;
	}
	r->nin = parse_args(c[C_IN], r->arg);
	r->nout = parse_args(c[C_OUT], r->arg + r->nin);
	r->nargs = r->nin + r->nout;
	for (const char *s = c[C_INPLACE]; *s; s += strspn(s, " ")) {
		struct word out = { s, strcspn(s, ":") };
		struct word in = { s + out.n + 1, strcspn(s + out.n + 1, " ") };
		int to = op_find_arg(r, out), from = op_find_arg(r, in);
		if (to < r->nin || from < 0)
			internal("op.def: %s: bad buffers '%s'", name, s);
		r->takes[to] |= (uint16_t)(1u << from);
		s += out.n + 1 + in.n;
	}
	for (const char *s = c[C_TRAITS] ? c[C_TRAITS] : ""; word_next(&s, "", &w);)
		parse_trait(r, w);
}

const struct op_row *
op_row(enum op_id op)
{
	if (!rows[op].name) {
#define OP(name, ...) \
	parse_row(&rows[OP_##name], #name, (const char *const[N_COLUMNS]){ __VA_ARGS__ });
#include "op.def"
#undef OP
	}
	return &rows[op];
}

bool
arg_routed(const struct arg_row *a)
{
	return a->dim[0].n == 1 && *a->dim[0].s == 'r';
}

/* What op.def calls a role. */
static enum role
as_written(enum role r)
{
	return r == ROLE_WEIGHT || r == ROLE_ROWS ? ROLE_ACT
	       : r == ROLE_MASTER                 ? ROLE_MOMENT
	       : r == ROLE_SCALE32                ? ROLE_SCALE
						  : r;
}

enum op_id
op_collective(enum role role)
{
	for (uint32_t i = 0; i < N_OPS; i++) {
		const struct op_row *r = op_row((enum op_id)i);
		if (r->collective && r->group == OM_ALONE && r->arg[0].role == as_written(role))
			return (enum op_id)i;
	}
	return N_OPS;
}

uint64_t
tensor_elems(const struct tensor *t)
{
	uint64_t n = 1;

	for (uint8_t i = 0; i < t->ndims; i++)
		n = size_mul(n, t->dim[i]);
	return n;
}

uint64_t
tensor_layers(const struct graph *g, const struct tensor *t)
{
	uint32_t n = g->seg.a[t->seg].nlayers;
	return n ? n : 1;
}

tensor_id
tensor_next(const struct graph *g, enum tensor_class c, tensor_id t)
{
	while (++t < g->tensor.n)
		if (g->tensor.a[t].class == c)
			return t;
	return 0;
}

void
graph_role(struct graph *g, tensor_id t, enum role r)
{
	g->tensor.a[t].role = r;
	g->tensor.a[t].format = g->format[r];
}

bool
tensor_by_expert(const struct tensor *t)
{
	return strstr(t->hf, "%e") != NULL;
}

struct part_list
tensor_parts(const struct graph *g, tensor_id t)
{
	struct part_list p = { { t } };

	if (g->tensor.a[t].class == T_MERGED)
		memcpy(p.a, g->tensor.a[t].part, sizeof g->tensor.a[t].part);
	return p;
}

tensor_id
graph_tensor(struct graph *g, const char *name, enum tensor_class c, enum role r, uint32_t seg)
{
	struct tensor *t = PUSH(g->tensor);

	t->name = xprintf("%s_%s", g->seg.a[seg].name, name);
	t->class = c;
	t->seg = seg;
	graph_role(g, g->tensor.n - 1, r);
	return g->tensor.n - 1;
}

const char *
tensor_short_name(const struct graph *g, tensor_id t)
{
	return g->tensor.a[t].name + strlen(g->seg.a[g->tensor.a[t].seg].name) + 1;
}

tensor_id
graph_like(struct graph *g, tensor_id of, enum tensor_class c, enum role r, const char *name)
{
	tensor_id id = graph_tensor(g, name, c, r, g->tensor.a[of].seg);
	struct tensor *t = &g->tensor.a[id];

	t->ndims = g->tensor.a[of].ndims;
	memcpy(t->dim, g->tensor.a[of].dim, sizeof t->dim);
	t->line = g->tensor.a[of].line;
	return id;
}

/* "n" or, where h is known, "h*n": gives n its value if it has none. */
static const char *
bind_dim(const struct arg_row *a, uint8_t d, uint64_t size, struct sizes *z)
{
	const char *e = a->dim[d].s;
	uint8_t n = a->dim[d].n;
	char last = e[n - 1];
	uint64_t first = 1;

	if (last < 'a' || last > 'z' || z->bound[last - 'a'] || (n > 1 && e[n - 2] != '*'))
		return NULL;
	for (uint8_t i = 0; i + 1 < n; i++)
		if (e[i] >= 'a' && e[i] <= 'z' && !z->bound[e[i] - 'a'])
			return NULL;
	if (n > 1)
		first = expr_eval(e, n - 2u, z);
	if (!first || size % first)
		return xprintf("%llu is not a multiple of %llu", llu(size), llu(first));
	z->v[last - 'a'] = size / first;
	z->bound[last - 'a'] = true;
	return NULL;
}

static const char *
check_dim(const struct arg_row *a, uint8_t d, uint64_t size, struct sizes *z)
{
	uint64_t want = expr_eval(a->dim[d].s, a->dim[d].n, z);

	if (want == size)
		return NULL;
	return xprintf("%llu, where %s wants %.*s = %llu", llu(size), a->name, a->dim[d].n,
	    a->dim[d].s, llu(want));
}

bool
graph_next(const struct graph *g, struct op_at *at)
{
	at->i += at->op != NULL;
	for (; at->seg < g->seg.n; at->seg++, at->phase = FORWARD)
		for (; at->phase < N_PHASES; at->phase++, at->i = 0) {
			const struct oplist *l = &g->seg.a[at->seg].ops[at->phase];
			if (at->i == l->n)
				continue;
			at->op = &l->a[at->i];
			return true;
		}
	return false;
}

/* Whether a tensor is one of the op's arguments from the first to before the end. */
static bool
has_arg(const struct op *o, tensor_id t, uint8_t first, uint8_t end)
{
	for (uint8_t i = first; i < end; i++)
		if (o->arg[i] == t)
			return true;
	return false;
}

bool
op_reads(const struct op *o, tensor_id t)
{
	return has_arg(o, t, 0, op_row(o->op)->nin);
}

bool
op_writes(const struct op *o, tensor_id t)
{
	return has_arg(o, t, op_row(o->op)->nin, op_row(o->op)->nargs);
}

const struct op *
graph_route(const struct segment *s)
{
	for (uint32_t i = 0; i < s->ops[FORWARD].n; i++)
		if (op_row(s->ops[FORWARD].a[i].op)->route)
			return &s->ops[FORWARD].a[i];
	return NULL;
}

/* The letters that an op's attributes bind. */
static void
bind_ints(const struct op *o, struct sizes *z)
{
	const struct op_row *r = op_row(o->op);

	*z = (struct sizes){ 0 };
	for (uint8_t i = 0; i < r->nints; i++) {
		z->v[r->ints[i] - 'a'] = o->ints[i];
		z->bound[r->ints[i] - 'a'] = true;
	}
}

void
op_shape(struct graph *g, const struct op *o)
{
	const struct op_row *r = op_row(o->op);
	struct sizes z;

	bind_ints(o, &z);
	for (uint8_t i = 0; i < r->nargs; i++) {
		const struct arg_row *a = &r->arg[i];
		struct tensor *t = &g->tensor.a[o->arg[i]];
		bool out = i >= r->nin;
		if (!o->arg[i] ||
		    (out && t->class != T_ACT && t->class != T_STAT && t->class != T_COPY))
			continue;
		t->ndims = out ? a->ndims : t->ndims;
		for (uint8_t d = 0; d < a->ndims; d++)
			if (out)
				t->dim[d] = expr_eval(a->dim[d].s, a->dim[d].n, &z);
			else
				bind_dim(a, d, t->dim[d], &z);
	}
}

const char *
op_bind(const struct graph *g, const struct op *o, struct sizes *z)
{
	const struct op_row *r = op_row(o->op);

	bind_ints(o, z);
	/*
	 * first the letters that stand alone, then products that they leave with one unknown, then
	 * the checks
	 */
	for (int pass = 0; pass < 2; pass++)
		for (uint8_t i = 0; i < r->nargs; i++) {
			const struct arg_row *a = &r->arg[i];
			if (!o->arg[i] && a->optional)
				continue;
			if (!o->arg[i] || o->arg[i] >= g->tensor.n)
				return xprintf("%s: argument %s is missing", r->name, a->name);
			const struct tensor *t = &g->tensor.a[o->arg[i]];
			uint64_t all = size_mul(tensor_elems(t), tensor_layers(g, t));
			const uint64_t *dim = r->flat ? &all : t->dim;
			uint8_t ndims = r->flat ? 1 : t->ndims;
			if (as_written(t->role) != a->role)
				return xprintf("%s: %s is %s, %s wants %s", r->name, t->name,
				    role_names[t->role], a->name, role_names[a->role]);
			if (ndims != a->ndims)
				return xprintf("%s: %s has %u dimensions, %s wants %u", r->name,
				    t->name, t->ndims, a->name, a->ndims);
			for (uint8_t d = 0; d < a->ndims; d++) {
				const char *fault =
				    pass ? check_dim(a, d, dim[d], z) : bind_dim(a, d, dim[d], z);
				if (fault)
					return xprintf(
					    "%s: %s, dimension %u: %s", r->name, t->name, d, fault);
			}
		}
	return NULL;
}

struct sizes
op_sizes(const struct graph *g, const struct op *o)
{
	struct sizes z;
	const char *fault = op_bind(g, o, &z);

	if (fault)
		internal("%s", fault);
	return z;
}

uint64_t
op_flops(const struct graph *g, const struct op *o)
{
	const struct sizes z = op_sizes(g, o);

	return expr_eval(op_row(o->op)->flops, strlen(op_row(o->op)->flops), &z);
}

char *
op_text(const struct graph *g, const struct op *o)
{
	const struct op_row *r = op_row(o->op);
	struct buf b = { 0 };

	for (uint8_t i = r->nin; i < r->nargs; i++)
		if (o->arg[i])
			buf_printf(&b, "%s%s%s", b.n ? ", " : "", r->arg[i].accumulate ? "+" : "",
			    g->tensor.a[o->arg[i]].name);
	buf_printf(&b, " = %s(", r->name);
	for (uint8_t i = 0; i < r->nin; i++)
		if (o->arg[i])
			buf_printf(&b, "%s%s", i ? ", " : "", g->tensor.a[o->arg[i]].name);
	const char *sep = r->nin ? "; " : "";
	for (uint8_t i = 0; i < r->nints; i++, sep = ", ")
		buf_printf(&b, "%s%c=%llu", sep, r->ints[i], llu(o->ints[i]));
	for (uint8_t i = 0; i < r->nfloats; i++, sep = ", ")
		buf_printf(&b, "%s%s=%.9g", sep, r->floats[i], o->floats[i]);
	buf_puts(&b, ")");
	return b.s;
}

void
graph_print(const struct graph *g, struct buf *out)
{
	for (uint32_t i = 1; i < g->tensor.n; i++) {
		const struct tensor *t = &g->tensor.a[i];
		buf_printf(out, "tensor %-28s %-5s ", t->name, class_names[t->class]);
		buf_printf(out, "%s[", role_names[t->role]);
		for (uint8_t d = 0; d < t->ndims; d++)
			buf_printf(out, "%s%llu", d ? "," : "", llu(t->dim[d]));
		buf_puts(out, "]");
		if (g->seg.a[t->seg].nlayers)
			buf_printf(out, " x%u", g->seg.a[t->seg].nlayers);
		if (t->hf)
			buf_printf(out, "  %s", t->hf);
		buf_puts(out, "\n");
	}
	for (struct op_at at = { 0 }; graph_next(g, &at);) {
		const struct segment *seg = &g->seg.a[at.seg];
		if (!at.i) {
			buf_printf(out, "\n%s %s", seg->name, graph_phase_names[at.phase]);
			if (seg->nlayers)
				buf_printf(out, " (%u layer%s)", seg->nlayers,
				    seg->nlayers > 1 ? "s" : "");
			buf_puts(out, "\n");
		}
		buf_printf(out, "  %s\n", op_text(g, at.op));
	}
}
