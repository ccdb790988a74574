/*
 * inst/: one line a kernel instance; src/launch.h and src/launch.c: the functions that step.c
 * calls.
 */
#include <ctype.h>
#include <string.h>

#include "emit/emit.h"

/* The kernel's or launch function's parameters, of the op's row: "const float *x, ...". */
static const char *
args(const struct plan *p, const struct instance *in, bool types)
{
	const struct op_row *r = op_row(in->kernel->op);
	struct buf b = { 0 };

	for (uint8_t i = 0; i < r->nargs; i++) {
		if (!in->format[i])
			continue;
		buf_puts(&b, i ? ", " : "");
		if (types)
			buf_printf(&b, "%s%s *", i < r->nin ? "const " : "", in->format[i]->c);
		/* "do" is a C word */
		buf_printf(&b, "%s%s", r->arg[i].name, strcmp(r->arg[i].name, "do") ? "" : "_");
	}
	if (*in->kernel->workspace)
		buf_printf(&b, types ? ", %s *ws" : ", ws",
		    target_format(p->target, p->graph->format[ROLE_STAT])->c);
	return b.s;
}

/*
 * "linear_MxNxK: x[m,k] w[n,k], gives y[m,n]": what the sizes in the names of instances are; and
 * behind them, of a gradient's.
 */
static void
explain_sizes(const struct instance *in, struct buf *b)
{
	const struct op_row *r = op_row(in->kernel->op);
	struct buf line = { 0 };
	const char *between = "_";

	buf_printf(&line, "/* %s", r->name);
	for (uint8_t i = 0; i < r->nargs; i++)
		if (r->arg[i].optional && in->format[i])
			buf_printf(&line, "_%s", r->arg[i].name);
	for (const char *s = in->kernel->params; *s; s += strcspn(s, " "), s += strspn(s, " "))
		if (*s == '+') {
			buf_puts(&line, "[_store: it is not added to]");
		} else if (s[1] != '=') {
			buf_printf(&line, "%s%c", between, toupper(*s));
			between = "x";
		}
	for (uint8_t i = 0; i < r->nargs; i++) {
		const struct arg_row *a = &r->arg[i];
		if (!in->format[i])
			continue;
		buf_printf(&line, "%s %s%s%s[",
		    !i            ? ":"
		    : i == r->nin ? ","
				  : "",
		    i == r->nin ? "gives " : "", a->accumulate ? "+" : "", a->name);
		for (uint8_t d = 0; d < a->ndims; d++)
			buf_printf(&line, "%s%.*s", d ? "," : "", a->dim[d].n, a->dim[d].s);
		buf_puts(&line, "]");
	}
	buf_puts(&line, " */");
	emit_line(b, 0, "%s", line.s);
}

/* The next instance from a number on of another's kernel, or file of kernels; 0: there is none. */
static uint32_t
alike(const struct plan *p, uint32_t from, uint32_t other, bool file)
{
	const struct kernel_row *k = p->inst->a[other].kernel;

	for (uint32_t i = from; i < p->inst->n; i++)
		if (file ? !strcmp(p->inst->a[i].kernel->file, k->file) : p->inst->a[i].kernel == k)
			return i;
	return 0;
}

/* One kernel's instances, under what their sizes are. */
static void
define_instances(const struct plan *p, uint32_t first, struct buf *b)
{
	buf_puts(b, "\n");
	explain_sizes(&p->inst->a[first], b);
	for (uint32_t i = first; i; i = alike(p, i + 1, i, false)) {
		const struct instance *in = &p->inst->a[i];
		struct buf line = { 0 };
		buf_printf(&line, "%s(om_k_%s", in->kernel->macro, in->name);
		for (uint8_t n = 0; n < in->nparams; n++)
			buf_printf(&line, ", %llu", llu(in->param[n]));
		for (uint8_t n = 0; n < op_row(in->kernel->op)->nconsts; n++)
			buf_printf(&line, ", %s", text_double(in->floats[n]));
		buf_puts(&line, ")");
		const char *calls = xprintf("/* %s: %u call%s a pass */", in->used_by.s, in->calls,
		    in->calls > 1 ? "s" : "");
		bool behind = line.n + 1 + strlen(calls) <= 100;
		if (behind)
			buf_printf(&line, " %s", calls);
		else
			emit_line(b, 0, "%s", calls);
		emit_line(b, 0, "%s", line.s);
	}
}

static void
instances(const struct plan *p, struct tree *t)
{
	for (uint32_t i = 1; i < p->inst->n; i++) {
		const char *file = p->inst->a[i].kernel->file;
		if (alike(p, 1, i, true) != i)
			continue;
		int stem = (int)strcspn(file, ".");
		struct buf *b =
		    tree_file(t, xprintf("inst/%.*s.%s", stem, file, p->target->kind->source));
		emit_banner(p, "/*", xprintf("instances of kernels/%s", file), b);
		if (p->target->kind->one_number)
			buf_puts(b, "#include \"config.h\"\n");
		buf_printf(b, "#include \"%s\"\n", file);
		for (uint32_t k = i; k; k = alike(p, k + 1, k, true))
			if (alike(p, 1, k, false) == k)
				define_instances(p, k, b);
	}
}

/* One instance's function: the call of its kernel, and of what its results then need. */
static void
launch_function(const struct plan *p, const struct instance *in, struct buf *b)
{
	const struct op_row *r = op_row(in->kernel->op);
	const char *params = args(p, in, true);
	struct buf call = { 0 };

	buf_printf(&call, "(%s)", args(p, in, false));
	for (uint8_t k = 0; k < r->nargs; k++)
		if (in->round[k])
			buf_printf(
			    &call, "; om_round(%llu, %s)", llu(in->round[k]), r->arg[k].name);
	if (strlen("LAUNCH(, (), )") + strlen(in->name) + strlen(params) + call.n <= 100) {
		buf_printf(b, "LAUNCH(%s, (%s), %s)\n", in->name, params, call.s);
	} else {
		buf_printf(b, "LAUNCH(%s,\n", in->name);
		emit_line(b, 0, "    (%s),", params);
		emit_line(b, 0, "    %s)", call.s);
	}
}

/* src/launch.c: a function for each instance, and the table of them. */
static void
launch_functions(const struct plan *p, struct tree *t)
{
	struct buf names = { 0 }, functions = { 0 }, ops = { 0 }, numbers = { 0 };
	bool rounds = false;

	buf_puts(&names, "enum {");
	buf_puts(&ops, "struct om_op om_ops[OM_N_OPS] = {\n");
	for (uint32_t i = 1; i < p->inst->n; i++) {
		const struct instance *in = &p->inst->a[i];
		for (uint8_t k = 0; k < MAX_ARGS; k++)
			rounds |= in->round[k] != 0;
		buf_printf(&names, " OP_%s,", in->name);
		launch_function(p, in, &functions);
		emit_line(&ops, 1,
		    "[OP_%s] = { .name = \"%s\", .flops = %s, .bytes = %s, .check = "
		    "om_k_%s_check, .tolerance = OM_TOLERANCE },",
		    in->name, in->name, text_double(in->flops), text_double(in->bytes), in->name);
	}
	buf_puts(&ops, "};\n");
	emit_line(&numbers, 0, "%s };", names.s);
	const struct slot slot[] = {
		{ "round", rounds ? "#include \"round.h\"\n" : "" },
		{ "numbers", numbers.s },
		{ "functions", functions.s },
		{ "ops", ops.s },
	};
	emit_source(p, t, "launch.c", slot, LEN(slot));
}

/* src/launch.h: what they are called and given. */
static void
launch_prototypes(const struct plan *p, struct tree *t)
{
	struct buf b = { 0 };

	if (!p->target->kind->one_number)
		buf_puts(&b, "typedef uint16_t om_bf16; /* its bits */\n\n");
	buf_printf(
	    &b, "enum { OM_N_OPS = %u };\nextern struct om_op om_ops[OM_N_OPS];\n", p->inst->n - 1);
	for (uint32_t k = 1; k < p->inst->n; k++) {
		if (alike(p, 1, k, false) != k)
			continue;
		explain_sizes(&p->inst->a[k], &b);
		for (uint32_t i = k; i; i = alike(p, i + 1, i, false))
			emit_line(&b, 0, "void launch_%s(%s);", p->inst->a[i].name,
			    args(p, &p->inst->a[i], true));
	}
	emit_source(p, t, "launch.h", (struct slot[]){ { "launches", b.s } }, 1);
}

void
emit_cubins(const struct plan *p, struct tree *t)
{
	struct buf cubins = { 0 }, list = { 0 };

	for (uint32_t i = 0; i < t->n; i++) {
		const char *path = t->a[i].path;
		int folder = (int)strcspn(path, "/"), stem = (int)strcspn(path, ".");
		if (strcmp(path + stem, ".cu"))
			continue;
		const char *name = xprintf("%.*s", stem - folder - 1, path + folder + 1);
		buf_printf(&cubins, "CUBIN(%.*s, %s)\n", folder, path, name);
		buf_printf(&list, "cubin_%.*s_%s, ", folder, path, name);
	}
	buf_puts(&cubins, "\n");
	emit_line(&cubins, 0, "const void *const om_cubins[] = { %sNULL };", list.s);
	emit_source(p, t, "cubins.c", (struct slot[]){ { "cubins", cubins.s } }, 1);
}

void
emit_launch(const struct plan *p, struct tree *t)
{
	instances(p, t);
	launch_prototypes(p, t);
	launch_functions(p, t);
}
