/*
 * src/step.c: the step, one function a layer kind and phase, one op a line in the order of the
 * plan.
 */
#include <string.h>

#include "emit/emit.h"

/* Layers then have a number among those of their kind in the chunk too. */
static bool
several_chunks(const struct plan *p)
{
	return p->shard->stage[0].nchunks > 1;
}

/* The layer of the residual stream, before or behind it, that a tensor of a segment is. */
static const char *
stream_layer(const struct plan *p, const struct segment *seg, const struct place *pl)
{
	if (seg->nlayers)
		return pl->next ? "layer + 1" : "layer";
	if (seg->y)
		return "0";
	return p->n_stages == 1 ? "OM_N_LAYERS" : xprintf("%u", p->entry[p->graph->n_layers]);
}

/* The C expression of the address of a launch's argument, inside a function of segment s. */
static const char *
address(const struct plan *p, uint32_t s, const struct launch *st, tensor_id t)
{
	const struct graph *g = p->graph;
	const struct tensor *x = &g->tensor.a[t];
	const struct place *pl = &p->place[t];
	bool many = g->seg.a[x->seg].nlayers != 0;

	if (pl->kind == DSTREAM && !pl->stride)
		return "DSTREAM";
	if (pl->kind != PLACE)
		return xprintf("%s(slot, %s)", pl->kind == STREAM ? "STREAM" : "DSTREAM",
		    stream_layer(p, &g->seg.a[s], pl));
	if (pl->region == R_SAVED)
		return xprintf("SAVED(%s, %sslot, %s)", x->name,
		    g->last_phase > BACKWARD ? xprintf("%u, ", pl->life) : "",
		    !many               ? "0"
		    : several_chunks(p) ? "j"
					: "i");
	if (!many || pl->region == R_SCRATCH)
		return xprintf("ONE(%s)", x->name);
	/* the update goes over all layers, if not through a bucket's */
	return xprintf("LAYER(%s, %s)", x->name, s == g->update && st->layers == 1 ? "0" : "i");
}

static void
comment(const struct plan *p, const struct launch *st, int tabs, struct buf *b)
{
	const struct graph *g = p->graph;
	const struct op_row *r = op_row(st->op.op);
	struct buf line = { 0 };

	if (st->span)
		buf_printf(&line, "%s%s, %llu elements%s",
		    st->tensors > 1 ? xprintf("%u tensors from ", st->tensors) : "",
		    g->tensor.a[st->op.arg[0]].name, llu(st->span),
		    st->layers > 1 ? " of each layer" : "");
	for (uint8_t i = r->nin; i < r->nargs && !st->span; i++) {
		tensor_id t = st->op.arg[i];
		if (!t)
			continue;
		buf_printf(&line, "%s%s%s %s", line.n ? ", " : "", r->arg[i].accumulate ? "+" : "",
		    tensor_short_name(g, t), emit_shape(&g->tensor.a[t]));
	}
	const struct line *from = st->op.line;
	emit_line(b, tabs, "/* %s: %s, %s */", r->name, line.s,
	    from->origin ? from->origin : xprintf("resolved.lua:%u", from->number));
}

/* What ranks do together: the runtime's call, with what its words in braces stand for. */
static void
collective(const struct plan *p, uint32_t s, const struct launch *st, struct buf *b)
{
	const struct tensor *t = &p->graph->tensor.a[st->op.arg[0]];
	uint64_t n = st->span;
	const struct {
		const char *word, *text;
	} words[] = {
		{ "{group}", emit_group(st->op.group) },
		{ "{at}", address(p, s, st, st->op.arg[0]) },
		{ "{name}", t->name },
		{ "{n}", emit_number(n) },
		{ "{size}", emit_number(plan_bytes(p, st->op.arg[0], 1)) },
		{ "{bytes}", emit_number(plan_bytes(p, st->op.arg[0], n)) },
	};

	for (const char *c = runtime_call(st->op.op); *c;) {
		unsigned i = 0;
		while (i < LEN(words) && strncmp(c, words[i].word, strlen(words[i].word)))
			i++;
		if (i < LEN(words))
			buf_puts(b, words[i].text);
		else
			buf_printf(b, "%c", *c);
		c += i < LEN(words) ? strlen(words[i].word) : 1;
	}
}

/* An event is called after the first launch that records it. Each stage has its own update. */
static const char *
event(const struct plan *p, uint32_t number)
{
	const struct launch_at *by = &p->event[number];

	if (by->seg == p->graph->update && p->n_stages > 1)
		return xprintf("DONE_update_%u", number);
	return xprintf(
	    "DONE_%s_%s_%u", p->graph->seg.a[by->seg].name, graph_phase_names[by->phase], by->i);
}

static void
streams(const struct plan *p, struct buf *b)
{
	if (p->streams == 1)
		return;
	buf_printf(b,
	    "\n/*\n * A part of the step has %u streams; launches go to the first but behind "
	    "om_on.\n"
	    " * A wait is for the event's last record in the part, whichever layer's it is.\n */\n"
	    "enum {\n",
	    p->streams);
	for (uint32_t e = 1; e <= p->events; e++) {
		const struct op *o = &p->event[e].launch->op;
		const struct op_row *r = op_row(o->op);
		emit_line(b, 1, "%s, /* %s: %s */", event(p, e), r->name,
		    p->graph->tensor.a[o->arg[r->nin]].name);
	}
	buf_puts(b, "};\n");
}

/* What a segment's function is told of the microbatch, behind a type, or as arguments. */
static const char *
told(const struct program *prog, const char *type)
{
	return xprintf("%s%s%s%s", prog->first ? ", " : "",
	    prog->first ? xprintf("%sfirst", type) : "", prog->last ? ", " : "",
	    prog->last ? xprintf("%slast", type) : "");
}

/* The function to call: in the first microbatch its gradient is stored, or cleared before. */
static void
launched(const struct plan *p, uint32_t s, int ph, const struct launch *st, struct buf *body,
    struct buf *call)
{
	const char *name = p->inst->a[st->inst].name;
	bool varies = p->prog[s][ph].first && st->first;

	for (uint8_t k = 0; st->first && !st->stores && k < MAX_ARGS; k++)
		if (p->graph->tensor.a[st->op.arg[k]].class == T_GRAD)
			buf_printf(body, "%s\tom_clear(%s, %llu);\n",
			    varies ? "\tif (first)\n\t" : "", address(p, s, st, st->op.arg[k]),
			    llu(p->place[st->op.arg[k]].bytes));
	if (varies && st->stores)
		buf_printf(
		    call, "(first ? launch_%s : launch_%s)(", p->inst->a[st->stores].name, name);
	else
		buf_printf(call, "launch_%s(", name);
}

/* What a launch is given: its tensors, and its workspace. */
static void
arguments(const struct plan *p, uint32_t s, int ph, uint32_t i, struct buf *call)
{
	const struct launch *st = &p->prog[s][ph].a[i];
	const struct op_row *r = op_row(st->op.op);
	uint64_t ranks = p->shard->mesh.size[st->op.group];

	for (uint8_t k = 0; k < r->nargs; k++) {
		tensor_id t = st->op.arg[k];
		const char *at = t ? address(p, s, st, t) : NULL;
		enum tensor_class class = p->graph->tensor.a[t].class;
		if (!t)
			continue;
		if (st->span && (class == T_PARAM || class == T_GRAD) && ranks > 1)
			at = xprintf("PART(%s, %s, %llu)", at, emit_group(st->op.group),
			    llu(plan_bytes(p, t, st->span / ranks)));
		buf_printf(call, "%s%s", k ? ", " : "", at);
	}
	if (st->workspace_bytes)
		buf_printf(call, ", WORKSPACE(%s)", emit_workspace(p, s, ph, i));
	buf_puts(call, ");");
}

/* A launch, behind what it waits for; on: the stream whose turn it is. */
static void
statement(
    const struct plan *p, uint32_t s, int ph, uint32_t i, int tabs, uint8_t *on, struct buf *b)
{
	const struct launch *st = &p->prog[s][ph].a[i];
	const struct op_row *r = op_row(st->op.op);
	const char *once = r->last ? "last" : r->first && p->prog[s][ph].first ? "first" : NULL;
	struct buf call = { 0 };

	for (uint32_t w = 0; w < st->wait.n; w++)
		emit_line(b, tabs, "om_wait(%u, %s);", st->stream, event(p, st->wait.a[w]));
	if (st->stream != *on)
		emit_line(b, tabs, "om_on(%u);", st->stream);
	*on = st->stream;
	comment(p, st, tabs, b);
	if (once)
		emit_line(b, tabs, "if (%s)", once);
	if (runtime_call(st->op.op)) {
		collective(p, s, st, &call);
	} else {
		launched(p, s, ph, st, b, &call);
		arguments(p, s, ph, i, &call);
	}
	emit_line(b, tabs + (once != NULL), "%s", call.s);
	if (st->event)
		emit_line(b, tabs, "om_record(%u, %s);", st->stream, event(p, st->event));
}

/* The statements of a segment's function. */
static void
body(const struct plan *p, uint32_t s, int ph, struct buf *b)
{
	const struct program *prog = &p->prog[s][ph];
	uint8_t on = 0;

	for (uint32_t i = 0, n; i < prog->n; i += n) {
		const struct launch *st = &prog->a[i];
		const bool loop = st->span && st->layers > 1;
		uint8_t begins = on;
		for (n = 1; i + n < prog->n && prog->a[i + n].follows;)
			n++;
		if (loop)
			emit_line(b, 1, "for (int i = 0; i < %u; i++) {", (unsigned)st->layers);
		for (uint32_t k = 0; k < n; k++)
			statement(p, s, ph, i + k, 1 + loop, &on, b);
		if (loop && on != begins) /* as the next turn finds it */
			emit_line(b, 2, "om_on(%u);", on = begins);
		if (loop)
			emit_line(b, 1, "}");
	}
	if (on)
		emit_line(b, 1, "om_on(0);");
}

static void
function(const struct plan *p, uint32_t s, int ph, struct buf *b)
{
	const struct segment *seg = &p->graph->seg.a[s];

	buf_puts(b, "\nstatic void\n");
	emit_line(b, 0, "%s_%s(unsigned char *arena%s%s%s)", seg->name, graph_phase_names[ph],
	    p->prog[s][ph].slot ? ", int slot" : "",
	    !seg->nlayers       ? ""
	    : several_chunks(p) ? ", int layer, int i, int j"
				: ", int layer, int i",
	    told(&p->prog[s][ph], "bool "));
	buf_puts(b, "{\n");
	body(p, s, ph, b);
	buf_puts(b, "}\n");
}

/* "layer - 3": a layer's number among others, while the loop counts it in the model. */
static const char *
shifted(uint32_t number, uint32_t layer)
{
	int shift = (int)number - (int)layer;

	return shift ? xprintf("layer %c %d", shift < 0 ? '-' : '+', shift < 0 ? -shift : shift)
		     : "layer";
}

/* A pass over one chunk: its ends, if it has them, and loops over runs of layers of one kind. */
static void
call_chunk(const struct plan *p, const struct chunk *c, enum pass_id pass, int tabs, struct buf *b)
{
	const struct graph *g = p->graph;
	struct visits v = { 0 };

	shard_visits(p->graph, c, pass, &v);
	for (uint32_t k = 0, n; k < v.n; k += n) {
		uint32_t s = v.a[k].seg, first = v.a[k].layer;
		enum phase ph = v.a[k].phase;
		const struct program *prog = &p->prog[s][ph];
		const char *name = xprintf("%s_%s", g->seg.a[s].name, graph_phase_names[ph]);
		for (n = 1; k + n < v.n && v.a[k + n].seg == s;)
			n++;
		if (!g->seg.a[s].nlayers) {
			if (prog->n)
				emit_line(b, tabs, "SEGMENT(%s, -1, arena%s%s);", name,
				    prog->slot ? ", slot" : "", told(prog, ""));
			continue;
		}
		uint32_t last = v.a[k + n - 1].layer, low = first < last ? first : last;
		if (ph == FORWARD)
			emit_line(
			    b, tabs, "for (int layer = %u; layer < %u; layer++)", first, last + 1);
		else
			emit_line(
			    b, tabs, "for (int layer = %u; layer >= %u; layer--)", first, last);
		emit_line(b, tabs + 1, "SEGMENT(%s, layer, arena, slot, %s, %s%s%s);", name,
		    shifted(p->entry[low], low), shifted(p->index[low], low),
		    several_chunks(p) ? xprintf(", %s", shifted(p->saved_index[low], low)) : "",
		    told(prog, ""));
	}
}

/* What a pass knows of its microbatch; each of an evaluation is a first one. */
static void
microbatch(const struct plan *p, int ph, bool trains, struct buf *b)
{
	const struct graph *g = p->graph;
	bool first = false, last = false;

	for (uint32_t s = g->embed; s <= g->head; s++) {
		first |= p->prog[s][ph].first;
		last |= p->prog[s][ph].last;
	}
	if (first)
		emit_line(b, 1, "const bool first = %s;", trains ? "of & OM_FIRST" : "true");
	if (last)
		buf_puts(b, "\tconst bool last = of & OM_LAST;\n");
	buf_puts(b, first || last ? "\n" : trains ? "\t(void)of; /* of each the same */\n" : "");
}

/* The passes of a stage, over the chunk that the slot belongs to. */
static void
stage_passes(const struct plan *p, struct buf *b)
{
	for (enum pass_id i = 0; i < N_PASSES; i++) {
		const struct pass pass = shard_pass(p->graph, i);
		bool trains = i <= PASS_WEIGHTS;
		if (!plan_has_pass(p, i))
			continue;
		buf_printf(b, "\nvoid\nom_%s(unsigned char *arena, int slot%s)\n{\n",
		    emit_stage_name(p, pass.name), trains ? ", int of" : "");
		if (trains || i == PASS_EVALUATE)
			microbatch(p, pass.phase, trains, b);
		for (uint32_t c = 0; c < p->here->nchunks; c++) {
			const struct chunk *ch = &p->here->chunk[c];
			if (p->here->nchunks > 1)
				buf_printf(b, "\t%sif (slot < %u) { /* layers %u .. %u */\n",
				    c ? "} else " : "", ch->slot + ch->slots, ch->first,
				    ch->first + ch->n - 1);
			call_chunk(p, ch, i, p->here->nchunks > 1 ? 2 : 1, b);
		}
		buf_puts(b, p->here->nchunks > 1 ? "\t}\n}\n" : "}\n");
	}
}

/* Tables once, and the update: what is on this stage of them. */
static void
stage_ends(const struct plan *p, struct buf *b)
{
	const struct graph *g = p->graph;

	for (unsigned i = 0; i < 2; i++) {
		uint32_t s = i ? g->update : g->init;
		buf_printf(b, "\n/* %s */\nvoid\nom_%s(unsigned char *arena)\n{\n",
		    i ? "squared norm of all gradients, clipping, then every parameter's step"
		      : "constant tables, once",
		    emit_stage_name(p, i ? "update" : "init"));
		if (p->n_stages > 1 && !i)
			buf_printf(b, "\tom_at = &om_layouts[%u];\n", p->stage);
		body(p, s, FORWARD, b);
		buf_puts(b, p->prog[s][FORWARD].n ? "}\n" : "\t(void)arena; /* none */\n}\n");
	}
}

/* What step.c gives. */
static const char *
prototypes(const struct plan *p)
{
	bool many = p->n_stages > 1;
	struct buf b = { 0 };

	if (many)
		buf_puts(&b, "void om_zero(unsigned char *arena);\n");
	for (uint32_t i = 0; i < p->n_stages; i++) {
		buf_printf(&b, "void om_%s(unsigned char *arena);\n%s",
		    emit_stage_name(&p[i], "init"),
		    many ? "" : "void om_zero(unsigned char *arena);\n");
		for (enum pass_id k = 0; k < N_PASSES; k++)
			if (plan_has_pass(p, k))
				buf_printf(&b, "void om_%s(unsigned char *arena, int slot%s);\n",
				    emit_stage_name(&p[i], shard_pass(p->graph, k).name),
				    k <= PASS_WEIGHTS ? ", int of" : "");
		buf_printf(
		    &b, "void om_%s(unsigned char *arena);\n", emit_stage_name(&p[i], "update"));
	}
	return b.s;
}

void
emit_step(const struct plan *p, struct tree *t)
{
	const struct graph *g = p->graph;
	const char *stat = p->n_stages > 1 ? "om_at->stat" : "OM_STAT";
	struct buf b = { 0 };

	streams(p, &b);
	if (p->n_stages > 1)
		buf_puts(&b, "\nconst struct om_layout *om_at = &om_layouts[0];\n");
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < p->n_stages; i++)
				if (s != g->init && s != g->update && plan_function(&p[i], s, ph))
					function(&p[i], s, ph, &b);
	for (uint32_t i = 0; i < p->n_stages; i++)
		stage_ends(&p[i], &b);
	buf_printf(&b,
	    "\n/* statistics, before the first microbatch of a step */\n"
	    "void\nom_zero(unsigned char *arena)\n{\n\tom_clear(arena + %s, %s%s);\n}\n",
	    stat, stat, p->n_stages > 1 ? "_bytes" : "_BYTES");
	for (uint32_t i = 0; i < p->n_stages; i++)
		stage_passes(&p[i], &b);
	emit_source(p, t, "step.c", (struct slot[]){ { "functions", b.s } }, 1);
	emit_source(p, t, "step.h", (struct slot[]){ { "prototypes", prototypes(p) } }, 1);
}
