/* The tables of what there is to plan for: target.def, and of kernel.def which kernels. */
#include <string.h>

#include "plan/plan.h"

enum library_id {
#define LIBRARY(id, ...) LIBRARY_##id,
#include "target.def"
};
const struct library plan_libraries[] = {
#define LIBRARY(id, ...) { __VA_ARGS__ },
#include "target.def"
	{ .name = NULL },
};
#define LIB(id) &plan_libraries[LIBRARY_##id]

enum kind_id {
#define KIND(id, ...) KIND_##id,
#include "target.def"
};
static const struct target_kind kinds[] = {
#define KIND(id, ...) { .name = #id, __VA_ARGS__ },
#include "target.def"
};

const struct target_row targets[] = {
#define TARGET(name, kind, ...) { name, &kinds[KIND_##kind], __VA_ARGS__ },
#include "target.def"
	{ .name = NULL },
};

static const struct kernel_row kernel_rows[] = {
/* what a row leaves out stands behind all that it has */
#define ROW(op, target, file, macro, params, ws, where, library, ...) \
	{ OP_##op, #target, file, #macro, params, ws, where, LIB(library) },
#define KERNEL(...) ROW(__VA_ARGS__, "", NONE, )
#define KERNEL_WHERE(...) ROW(__VA_ARGS__, NONE, )
#include "kernel.def"
};

static const char *const calls[N_OPS] = {
#define CALL(op, call) [OP_##op] = call,
#include "kernel.def"
};

static const struct {
	enum op_id op;
	const char *target;
	uint8_t stream;
} stream_rows[] = {
#define STREAM(op, target, stream) { OP_##op, #target, stream },
#include "kernel.def"
};

const char *
runtime_call(enum op_id op)
{
	return calls[op];
}

#define WITH "with="

/* The arguments that a condition names of those that the op can do without, "a,b". */
static struct word
named(const char *where)
{
	const char *with = strstr(where, WITH);

	with = with ? with + strlen(WITH) : "";
	return (struct word){ with, strcspn(with, " ") };
}

/* Those that the op has, in the same way. */
static const char *
present(const struct op *o)
{
	const struct op_row *r = op_row(o->op);
	struct buf b = { 0 };

	for (uint8_t i = 0; i < r->nargs; i++)
		if (r->arg[i].optional && o->arg[i])
			buf_printf(&b, "%s%s", b.n ? "," : "", r->arg[i].name);
	return b.n ? b.s : "";
}

/* One part of a condition, of n characters. */
static bool
part_holds(const char *s, size_t n, const char *arch, const char *weights, const struct sizes *z)
{
	size_t at = strcspn(s, "<>=%");
	const char *value = s + at + (s[at] == '%' || s[at] == '=' ? 1 : 2);
	const char *is = !strncmp(s, "arch=", 5)      ? arch
			 : !strncmp(s, "weights=", 8) ? weights
						      : NULL;
	size_t left = (size_t)(s + n - value);

	if (is)
		return strlen(is) == left && !memcmp(is, value, left);
	if (!strncmp(s, WITH, strlen(WITH))) /* kernel_for compares it */
		return true;
	if (at >= n || s[at] == '=')
		internal("kernel.def: condition '%s'", s);
	uint64_t x = expr_eval(s, at, z), y = expr_eval(value, left, z);
	return s[at] == '%' ? x % y == 0 : s[at] == '<' ? x <= y : x >= y;
}

bool
kernel_holds(const char *where, const char *arch, const char *weights, const struct sizes *z)
{
	for (size_t n; *where; where += n, where += strspn(where, " ")) {
		n = strcspn(where, " ");
		if (!part_holds(where, n, arch, weights, z))
			return false;
	}
	return true;
}

const struct kernel_row *
kernel_for(const struct graph *g, const struct target_row *t, const struct op *o)
{
	const char *weights = spec_str(g->trainer, F_precision_weights), *with = present(o);

	for (const struct kernel_row *k = kernel_rows; k < kernel_rows + LEN(kernel_rows); k++) {
		if (k->op != o->op || !spec_choice(k->target, t->kind->name))
			continue;
		const struct sizes z = *k->where ? op_sizes(g, o) : (struct sizes){ 0 };
		if (word_is(named(k->where), with) && kernel_holds(k->where, t->arch, weights, &z))
			return k;
	}
	return NULL;
}

bool
kernel_file(const char *target, const char *file)
{
	for (uint32_t i = 0; i < LEN(kernel_rows); i++)
		if (spec_choice(kernel_rows[i].target, target) &&
		    !strcmp(kernel_rows[i].file, file))
			return true;
	return false;
}

uint32_t
kernel_rivals(const struct kernel_row *k)
{
	const struct word own = named(k->where);
	uint32_t n = 0;

	for (uint32_t i = 0; i < LEN(kernel_rows); i++) {
		const struct kernel_row *x = &kernel_rows[i];
		const struct word w = named(x->where);
		n += x->op == k->op && !strcmp(x->target, k->target) && w.n == own.n &&
		     !memcmp(w.s, own.s, w.n);
	}
	return n;
}

bool
kernel_written_for(const struct target_row *t)
{
	return !t->kind->archs || spec_choice(t->kind->archs, t->arch);
}

uint8_t
kernel_stream(enum op_id op, const struct target_row *t)
{
	for (uint32_t i = 0; i < LEN(stream_rows); i++)
		if (stream_rows[i].op == op && !strcmp(stream_rows[i].target, t->kind->name))
			return (uint8_t)(stream_rows[i].stream < t->streams ? stream_rows[i].stream
									    : t->streams - 1);
	return 0;
}
