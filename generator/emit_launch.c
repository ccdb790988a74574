/*
 * inst/: one line a kernel instance; src/launch.h and src/launch.c: the functions that step.c
 * calls.
 */
#include <string.h>

#include "olmogen.h"

static const char *
args(const struct instance *in, bool types)
{
	struct buf b = { 0 };

	emit_prototype(in, types, &b);
	return b.s;
}

static void
instances(const struct plan *p, struct tree *t)
{

	for (uint32_t i = 1; i < p->inst.n; i++) {
		const char *file = p->inst.a[i].kernel->file;
		bool done = false;
		for (uint32_t k = 1; k < i; k++)
			done |= !strcmp(p->inst.a[k].kernel->file, file);
		if (done)
			continue;
		int stem = (int)strcspn(file, ".");
		struct buf *b = tree_file(t, xprintf("inst/%.*s.c", stem, file));
		emit_banner(p, xprintf("instances of kernels/%s", file), "/*", "*/", b);
		buf_printf(b, "#include \"config.h\"\n#include \"%s\"\n\n", file);
		for (uint32_t k = i; k < p->inst.n; k++) {
			const struct instance *in = &p->inst.a[k];
			struct buf line = { 0 };
			if (strcmp(in->kernel->file, file))
				continue;
			buf_printf(&line, "%s(om_k_%s", in->kernel->macro, in->name);
			for (uint8_t n = 0; n < in->nparams; n++)
				buf_printf(&line, ", %llu", (unsigned long long)in->param[n]);
			for (uint8_t n = 0; n < op_row(in->kernel->op)->nconsts; n++)
				buf_printf(&line, ", %s", emit_double(in->floats[n]));
			buf_puts(&line, ")");
			emit_wrapped(b, 0,
			    xprintf("/* %s: called for %u layer%s or end%s */", in->used_by,
				in->calls, in->calls > 1 ? "s" : "", in->calls > 1 ? "s" : ""));
			emit_wrapped(b, 0, line.s);
		}
	}
}

static void
launchers(const struct plan *p, struct tree *t)
{
	struct buf *h = tree_file(t, "src/launch.h"), *c;

	emit_banner(p, "one launch function a kernel instance", "/*", "*/", h);
	buf_puts(h, "#ifndef OM_LAUNCH_H\n#define OM_LAUNCH_H\n\n#include <stdint.h>\n\n#include "
		    "\"config.h\"\n"
		    "#include \"om.h\"\n\ntypedef OM_REAL om_real;\n\n");
	buf_printf(
	    h, "enum { OM_N_OPS = %u };\nextern struct om_op om_ops[OM_N_OPS];\n\n", p->inst.n - 1);
	for (uint32_t i = 1; i < p->inst.n; i++)
		emit_wrapped(h, 0,
		    xprintf("void launch_%s(%s);", p->inst.a[i].name, args(&p->inst.a[i], true)));
	buf_puts(h, "\n#endif\n");

	c = tree_file(t, "src/launch.c");
	emit_banner(p, "calls kernels, and measures them while bench asks for it", "/*", "*/", c);
	buf_puts(c, "#include \"launch.h\"\n\n");
	for (uint32_t i = 1; i < p->inst.n; i++) {
		const struct instance *in = &p->inst.a[i];
		emit_wrapped(c, 0, xprintf("void om_k_%s(%s);", in->name, args(in, true)));
		emit_wrapped(c, 0, xprintf("double om_k_%s_check(uint64_t seed);", in->name));
	}
	buf_puts(c, "\nstruct om_op om_ops[OM_N_OPS] = {\n");
	for (uint32_t i = 1; i < p->inst.n; i++) {
		const struct instance *in = &p->inst.a[i];
		emit_wrapped(c, 1,
		    xprintf("{ .name = \"%s\", .flops = %s, .bytes = %s, .check = om_k_%s_check, "
			    ".tolerance = "
			    "OM_TOLERANCE },",
			in->name, emit_double(in->flops), emit_double(in->bytes), in->name));
	}
	buf_puts(c, "};\n\n#define LAUNCH(op, call) \\\n\tdo { \\\n"
		    "\t\tdouble start = om_profile ? om_now() : 0; \\\n\t\tcall; \\\n"
		    "\t\tif (om_profile) { \\\n\t\t\tom_ops[op].seconds += om_now() - start; \\\n"
		    "\t\t\tom_ops[op].calls++; \\\n\t\t} \\\n\t} while (0)\n");
	for (uint32_t i = 1; i < p->inst.n; i++) {
		const struct instance *in = &p->inst.a[i];
		buf_puts(c, "\nvoid\n");
		emit_wrapped(c, 0, xprintf("launch_%s(%s)", in->name, args(in, true)));
		buf_puts(c, "{\n");
		emit_wrapped(
		    c, 1, xprintf("LAUNCH(%u, om_k_%s(%s));", i - 1, in->name, args(in, false)));
		buf_puts(c, "}\n");
	}
}

void
emit_launch(const struct plan *p, struct tree *t)
{
	instances(p, t);
	launchers(p, t);
}
