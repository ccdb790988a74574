/*
 * src/step.c: the step, one function a layer kind and phase, one op a line in the order of the
 * plan.
 */
#include <string.h>

#include "olmogen.h"

static const char *const phase_names[N_PHASES] = { "forward", "backward" };

/* The C expression of a tensor's address inside a function of segment s. */
static const char *
address(const struct plan *p, uint32_t s, tensor_id t)
{
	const struct graph *g = p->graph;
	const struct tensor *x = &g->tensor.a[t];
	const struct place *pl = &p->place[t];
	const struct segment *seg = &g->seg.a[s];
	const char *layer = !seg->nlayers ? (seg->y ? "0" : "OM_N_LAYERS")
			    : pl->next    ? "layer + 1"
					  : "layer";
	bool many = g->seg.a[x->seg].nlayers != 0;

	if (pl->kind == STREAM)
		return xprintf("STREAM(slot, %s)", layer);
	if (pl->kind == DSTREAM)
		return "DSTREAM";
	if (pl->region == R_SAVED)
		return xprintf("SAVED(%s, slot, %s)", x->name, many ? "i" : "0");
	if (many && pl->region != R_SCRATCH)
		return xprintf("LAYER(%s, %s)", x->name, s == g->update ? "0" : "i");
	return xprintf("ONE(%s)", x->name);
}

static void
comment(const struct plan *p, const struct step *st, struct buf *b)
{
	const struct graph *g = p->graph;
	const struct op_row *r = op_row(st->op.op);
	struct buf line = { 0 };

	if (st->span) {
		emit_wrapped(b, 1,
		    xprintf("/* %s over %u tensors from %s, %s elements */", r->name, st->tensors,
			g->tensor.a[st->op.arg[0]].name, commas(st->span)));
		return;
	}
	for (uint8_t i = r->nin; i < r->nin + r->nout; i++) {
		const struct tensor *t = &g->tensor.a[st->op.arg[i]];
		const char *name = t->name;
		/* inside its own function a tensor goes by its short name */
		const char *seg = g->seg.a[t->seg].name;
		if (!strncmp(name, seg, strlen(seg)) && name[strlen(seg)] == '_')
			name += strlen(seg) + 1;
		buf_printf(&line, "%s%s%s %s", line.n ? ", " : "", r->arg[i].accumulate ? "+" : "",
		    name, emit_shape(p, t));
	}
	emit_wrapped(b, 1, xprintf("/* %s: %s, resolved.lua:%u */", r->name, line.s, st->op.rline));
}

static void
function(const struct plan *p, uint32_t s, int ph, struct buf *b)
{
	const struct segment *seg = &p->graph->seg.a[s];
	const struct program *prog = &p->prog[s][ph];
	struct buf body = { 0 };

	for (uint32_t i = 0; i < prog->n; i++) {
		const struct step *st = &prog->a[i];
		const struct op_row *r = op_row(st->op.op);
		struct buf call = { 0 };
		comment(p, st, &body);
		buf_printf(&call, "launch_%s(", p->inst.a[st->inst].name);
		for (uint8_t k = 0; k < r->nin + r->nout; k++)
			buf_printf(&call, "%s%s", k ? ", " : "", address(p, s, st->op.arg[k]));
		if (st->workspace_bytes)
			buf_printf(&call, ", WORKSPACE(UINT64_C(%llu))",
			    (unsigned long long)st->workspace);
		buf_puts(&call, ");");
		emit_wrapped(&body, 1, call.s);
	}
	buf_printf(b, "\nstatic void\n%s_%s(unsigned char *arena%s%s)\n{\n%s}\n", seg->name,
	    phase_names[ph], body.n && strstr(body.s, "slot") ? ", int slot" : "",
	    seg->nlayers ? ", int layer, int i" : "", body.n ? body.s : "");
}

static void
call_segment(const struct plan *p, uint32_t s, int ph, struct buf *b)
{
	const char *name = xprintf("%s_%s", p->graph->seg.a[s].name, phase_names[ph]);
	bool slot = false;

	for (uint32_t i = 0; i < p->prog[s][ph].n; i++)
		for (uint8_t k = 0; k < MAX_ARGS; k++) {
			tensor_id t = p->prog[s][ph].a[i].op.arg[k];
			slot |= t && (p->place[t].kind == STREAM || p->place[t].region == R_SAVED);
		}
	if (p->prog[s][ph].n)
		buf_printf(b, "\tSEGMENT(%s, -1, arena%s);\n", name, slot ? ", slot" : "");
}

/* Loops over runs of layers of one kind; own: from its segment to the pass's own. */
static void
call_layers(const struct plan *p, int ph, uint32_t own, struct buf *b)
{
	const struct graph *g = p->graph;

	for (uint32_t k = 0; k < g->n_layers;) {
		uint32_t l = ph == FORWARD ? k : g->n_layers - 1 - k, n = 1;
		uint32_t s = g->kind_of[l];
		while (k + n < g->n_layers && g->kind_of[ph == FORWARD ? l + n : l - n] == s)
			n++;
		uint32_t first = ph == FORWARD ? l : l - n + 1;
		int shift = (int)g->index_of[first] - (int)first;
		const char *index = shift ? xprintf("layer %c %d", shift < 0 ? '-' : '+',
						shift < 0 ? -shift : shift)
					  : "layer";
		if (ph == FORWARD)
			buf_printf(
			    b, "\tfor (int layer = %u; layer < %u; layer++)\n", first, first + n);
		else
			buf_printf(b, "\tfor (int layer = %u; layer >= %u; layer--)\n",
			    first + n - 1, first);
		buf_printf(b, "\t\tSEGMENT(%s_%s, layer, arena, slot, layer, %s);\n",
		    g->seg.a[s + own].name, phase_names[ph], index);
		k += n;
	}
}

void
emit_step(const struct plan *p, struct tree *t)
{
	const struct graph *g = p->graph;
	struct buf *b = tree_file(t, "src/step.c");

	emit_banner(p, "the step: forward, backward and update, one op a line", "/*", "*/", b);
	buf_puts(b, "#include \"launch.h\"\n#include \"layout.h\"\n#include "
		    "\"step.h\"\n\n"
		    "/* a segment's ops; profilers see them in a range with its name and layer */\n"
		    "#define SEGMENT(function, layer, ...) \\\n\tdo { \\\n"
		    "\t\tif (om_profile) \\\n\t\t\tom_range_begin(#function, layer); \\\n"
		    "\t\tfunction(__VA_ARGS__); \\\n"
		    "\t\tif (om_profile) \\\n\t\t\tom_range_end(); \\\n\t} while (0)\n");
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			if (p->prog[s][ph].n && s != g->init && s != g->update)
				function(p, s, ph, b);
	for (unsigned i = 0; i < 2; i++) {
		struct buf f = { 0 };
		uint32_t s = i ? g->update : g->init;
		function(p, s, FORWARD, &f);
		const char *body =
		    p->prog[s][FORWARD].n ? strchr(f.s, '{') : "{\n\t(void)arena; /* none */\n}\n";
		buf_printf(b, "\n/* %s */\nvoid\nom_%s(unsigned char *arena)\n%s",
		    i ? "squared norm of all gradients, clipping, then every parameter's step"
		      : "constant tables, once",
		    i ? "update" : "init", body);
	}
	buf_puts(b, "\n/* gradients and statistics, before the first microbatch of a step */\n"
		    "void\nom_zero(unsigned char *arena)\n{\n"
		    "\tom_clear(arena + OM_GRAD, OM_GRAD_BYTES);\n"
		    "\tom_clear(arena + OM_STAT, OM_STAT_BYTES);\n}\n");
	const struct {
		const char *name;
		int phase;
		uint32_t first, last, own; /* own: from training's kinds of layers to the pass's */
	} passes[] = {
		{ "forward", FORWARD, g->embed, g->head, 0 },
		{ "backward", BACKWARD, g->head, g->embed, 0 },
		{ "evaluate", FORWARD, g->embed, g->eval, 0 },
		{ "decode", FORWARD, g->decode, g->seg.n - 1, g->decode - g->embed },
	};
	for (unsigned i = 0; i < LEN(passes) - !p->decode; i++) {
		buf_printf(b, "\nvoid\nom_%s(unsigned char *arena, int slot)\n{\n", passes[i].name);
		call_segment(p, passes[i].first, passes[i].phase, b);
		call_layers(p, passes[i].phase, passes[i].own, b);
		call_segment(p, passes[i].last, passes[i].phase, b);
		buf_puts(b, "}\n");
	}

	b = tree_file(t, "src/step.h");
	emit_banner(p, "what step.c gives", "/*", "*/", b);
	buf_puts(b, "#ifndef OM_STEP_H\n#define OM_STEP_H\n\n"
		    "void om_init(unsigned char *arena);\nvoid om_zero(unsigned char *arena);\n"
		    "void om_forward(unsigned char *arena, int slot);\n"
		    "void om_backward(unsigned char *arena, int slot);\n"
		    "void om_evaluate(unsigned char *arena, int slot);\n");
	if (p->decode)
		buf_puts(b, "void om_decode(unsigned char *arena, int slot);\n");
	buf_puts(b, "void om_update(unsigned char *arena);\n\n#endif\n");
}
