/* Logical tensors and ops: the rows of op.def, sizes bound by shapes, text for people. */
#include <string.h>

#include "graph/graph.h"

static struct op_row rows[N_OPS];

const char *const graph_phase_names[N_PHASES] = { "forward", "backward" };
static const char *const dtype_letters = " sgoild"; /* in the order of enum dtype */
static const char *const dtype_names[] = { "act", "stat", "grad", "opt", "i32", "i64", "f64" };
static const char *const class_names[] = { "param", "grad", "state", "buffer", "const", "input",
	"stat", "cache", "act" };

/* Reads "name[dims]:dtype ..." into args, which outlive the text. */
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
			a->dtype = (enum dtype)(strchr(dtype_letters, s[1]) - dtype_letters);
			s += 2;
		}
		s += strspn(s, " ");
	}
	return n;
}

static void
parse_row(struct op_row *r, const char *name, const char *ints, const char *floats, const char *in,
    const char *out, const char *inplace, const char *flops, const char *grad)
{
	*r = (struct op_row){ .name = name, .inplace = inplace, .flops = flops, .grad = grad };
	for (; *ints; ints++)
		if (*ints != ' ')
			r->ints[r->nints++] = *ints;
	r->nconsts = UINT8_MAX;
	for (floats += strspn(floats, " "); *floats; floats += strspn(floats, " ")) {
		size_t len = strcspn(floats, " ");
		if (*floats == ';')
			r->nconsts = r->nfloats;
		else
			memcpy(r->floats[r->nfloats++], floats, len);
		floats += len;
	}
	if (r->nconsts == UINT8_MAX)
		r->nconsts = r->nfloats;
	r->nin = parse_args(in, r->arg);
	r->nout = parse_args(out, r->arg + r->nin);
}

const struct op_row *
op_row(enum op_id op)
{
	if (!rows[op].name) {
#define OP(name, ints, floats, in, out, inplace, flops, grad) \
	parse_row(&rows[OP_##name], #name, ints, floats, in, out, inplace, flops, grad);
#include "op.def"
#undef OP
	}
	return &rows[op];
}

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

uint64_t
tensor_elems(const struct tensor *t)
{
	uint64_t n = 1;

	for (uint8_t i = 0; i < t->ndims; i++)
		n = mul64(n, t->dim[i]);
	return n;
}

uint64_t
tensor_layers(const struct graph *g, const struct tensor *t)
{
	uint32_t n = g->seg.a[t->seg].nlayers;
	return n ? n : 1;
}

tensor_id
graph_tensor(struct graph *g, const char *name, enum tensor_class c, enum dtype d, uint32_t seg)
{
	struct tensor *t = PUSH(g->tensor);

	t->name = xprintf("%s_%s", g->seg.a[seg].name, name);
	t->class = c;
	t->dtype = d;
	t->seg = seg;
	return g->tensor.n - 1;
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
		return xprintf("%llu is not a multiple of %llu", (unsigned long long)size,
		    (unsigned long long)first);
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
	return xprintf("%llu, where %s wants %.*s = %llu", (unsigned long long)size, a->name,
	    a->dim[d].n, a->dim[d].s, (unsigned long long)want);
}

bool
op_flat(enum op_id op)
{
	static const enum op_id flat[] = { OP_sumsq, OP_adamw, OP_adamw_master, OP_bias_update,
		OP_reduce_scatter, OP_all_gather, OP_sum_reals, OP_sum_counts };

	for (unsigned i = 0; i < LEN(flat); i++)
		if (op == flat[i])
			return true;
	return false;
}

tensor_id
op_arg(const struct op *o, const char *name)
{
	const struct op_row *r = op_row(o->op);

	for (uint8_t i = 0; i < r->nin + r->nout; i++)
		if (!strcmp(r->arg[i].name, name))
			return o->arg[i];
	return 0;
}

const struct op *
graph_route(const struct segment *s)
{
	for (uint32_t i = 0; i < s->ops[FORWARD].n; i++)
		if (op_arg(&s->ops[FORWARD].a[i], "load"))
			return &s->ops[FORWARD].a[i];
	return NULL;
}

const char *
op_bind(const struct graph *g, const struct op *o, struct sizes *z)
{
	const struct op_row *r = op_row(o->op);
	bool flat = op_flat(o->op);

	*z = (struct sizes){ 0 };
	for (uint8_t i = 0; i < r->nints; i++) {
		z->v[r->ints[i] - 'a'] = o->ints[i];
		z->bound[r->ints[i] - 'a'] = true;
	}
	/*
	 * first the letters that stand alone, then products that they leave with one unknown, then
	 * the checks
	 */
	for (int pass = 0; pass < 2; pass++)
		for (uint8_t i = 0; i < r->nin + r->nout; i++) {
			const struct arg_row *a = &r->arg[i];
			if (!o->arg[i] || o->arg[i] >= g->tensor.n)
				return xprintf("%s: argument %s is missing", r->name, a->name);
			const struct tensor *t = &g->tensor.a[o->arg[i]];
			uint64_t all = mul64(tensor_elems(t), tensor_layers(g, t));
			const uint64_t *dim = flat ? &all : t->dim;
			uint8_t ndims = flat ? 1 : t->ndims;
			if (t->dtype != a->dtype)
				return xprintf("%s: %s is %s, %s wants %s", r->name, t->name,
				    dtype_names[t->dtype], a->name, dtype_names[a->dtype]);
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

uint64_t
op_flops(const struct graph *g, const struct op *o)
{
	struct sizes z;
	const char *fault = op_bind(g, o, &z);

	if (fault)
		internal("%s", fault);
	return expr_eval(op_row(o->op)->flops, strlen(op_row(o->op)->flops), &z);
}

static void
shape_text(const struct tensor *t, struct buf *b)
{
	buf_printf(b, "%s[", dtype_names[t->dtype]);
	for (uint8_t i = 0; i < t->ndims; i++)
		buf_printf(b, "%s%llu", i ? "," : "", (unsigned long long)t->dim[i]);
	buf_puts(b, "]");
}

char *
op_text(const struct graph *g, const struct op *o)
{
	const struct op_row *r = op_row(o->op);
	struct buf b = { 0 };

	for (uint8_t i = 0; i < r->nout; i++)
		buf_printf(&b, "%s%s%s", i ? ", " : "", r->arg[r->nin + i].accumulate ? "+" : "",
		    g->tensor.a[o->arg[r->nin + i]].name);
	buf_printf(&b, " = %s(", r->name);
	for (uint8_t i = 0; i < r->nin; i++)
		buf_printf(&b, "%s%s", i ? ", " : "", g->tensor.a[o->arg[i]].name);
	const char *sep = r->nin ? "; " : "";
	for (uint8_t i = 0; i < r->nints; i++, sep = ", ")
		buf_printf(&b, "%s%c=%llu", sep, r->ints[i], (unsigned long long)o->ints[i]);
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
		shape_text(t, out);
		if (g->seg.a[t->seg].nlayers)
			buf_printf(out, " x%u", g->seg.a[t->seg].nlayers);
		if (t->hf)
			buf_printf(out, "  %s", t->hf);
		buf_puts(out, "\n");
	}
	for (uint32_t s = 0; s < g->seg.n; s++) {
		const struct segment *seg = &g->seg.a[s];
		for (int p = 0; p < N_PHASES; p++) {
			if (!seg->ops[p].n)
				continue;
			buf_printf(out, "\n%s %s", seg->name, graph_phase_names[p]);
			if (seg->nlayers)
				buf_printf(out, " (%u layer%s)", seg->nlayers,
				    seg->nlayers > 1 ? "s" : "");
			buf_puts(out, "\n");
			for (uint32_t i = 0; i < seg->ops[p].n; i++)
				buf_printf(out, "  %s\n", op_text(g, &seg->ops[p].a[i]));
		}
	}
}
