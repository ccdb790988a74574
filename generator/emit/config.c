/* src/config.h and src/layout.h: every constant of the trainer, every buffer's place. */
#include <stdlib.h>
#include <string.h>

#include "emit/emit.h"

static void
define(struct buf *b, const char *name, uint64_t v, const char *comment)
{
	buf_printf(b, "#define %-20s %llu%s%s%s\n", name, (unsigned long long)v,
	    *comment ? " /* " : "", comment, *comment ? " */" : "");
}

/* A line and what it is: behind it, or before it where that would be too wide. */
static void
commented(struct buf *b, const char *tab, const char *line, const char *what)
{
	if (strlen(line) + strlen(what) + 7 + 8 * strlen(tab) <= 100)
		buf_printf(b, "%s%s /* %s */\n", tab, line, what);
	else
		buf_printf(b, "%s/* %s */\n%s%s\n", tab, what, tab, line);
}

static void
config(const struct plan *p, struct tree *t)
{
	const struct graph *g = p->graph;
	struct object *tr = g->trainer, *m = spec_obj(tr, F_trainer_model);
	struct object *ba = spec_obj(tr, F_trainer_batch);
	struct object *opt = spec_obj(tr, F_trainer_optimizer);
	const struct format *real = target_format(p->target, g->format[ROLE_ACT]);
	struct buf *b = tree_file(t, "src/config.h");

	emit_banner(p, "the numbers of the model and of its step", "/*", "*/", b);
	buf_puts(b, "#ifndef OM_CONFIG_H\n#define OM_CONFIG_H\n\n#include <stdint.h>\n\n");
	if (p->target->kind->one_number)
		buf_printf(b, "#define OM_REAL %s\n", real->c);
	/* of the largest value; products of bf16 are rounded to one part in 256 at their end */
	buf_printf(b, "#define OM_TOLERANCE %s /* of selftest, relative */\n\n",
	    real->bits == 16   ? "1.5e-2"
	    : real->bits == 64 ? "1e-11"
			       : "2e-5");
	buf_printf(b, "#define OM_NAME \"%s\"\n", spec_str(tr, F_trainer_name));
	define(b, "OM_VOCAB", (uint64_t)spec_int(m, F_transformer_vocab_size), "vocabulary");
	define(b, "OM_D_MODEL", (uint64_t)spec_int(m, F_transformer_d_model),
	    "width of the residual stream");
	define(b, "OM_N_LAYERS", g->n_layers, "");
	define(b, "OM_SEQ", g->S, "tokens in a sequence");
	define(b, "OM_MICRO", g->B, "sequences in a microbatch");
	define(b, "OM_GLOBAL", (uint64_t)spec_int(ba, F_batch_global), "sequences in a step");
	define(b, "OM_MICROBATCHES", g->microbatches, "in a step");
	define(b, "OM_PARAMS_TOTAL", g->params_total, "");
	define(b, "OM_PARAMS_ACTIVE", g->params_active, "for one token");
	define(b, "OM_FLOPS_TOKEN", g->flops_token, "forward and backward");
	buf_printf(b, "\n#define OM_INIT_STD %s\n",
	    text_double(spec_num(spec_obj(m, F_transformer_init), F_normal_std)));
	buf_printf(b, "#define OM_HEAD_Z_LOSS %s\n",
	    text_double(spec_num(spec_obj(m, F_transformer_lm_head), F_lm_head_z_loss)));
	buf_printf(b, "#define OM_BETA1 %s\n", text_double(spec_value(opt, F_adamw_betas)->num));
	buf_printf(b, "#define OM_BETA2 %s\n", text_double(spec_value(opt, F_adamw_betas)->num2));
	buf_printf(b, "#define OM_CLIP_NORM %s\n", text_double(spec_num(opt, F_adamw_clip_norm)));
	buf_puts(b, "\n#endif\n");
}

/* The first stage that has the tensor at a place of its own; NULL: none. */
static const struct plan *
placed_somewhere(const struct plan *p, tensor_id t)
{
	for (uint32_t i = 0; i < p->n_stages; i++)
		if (p[i].place[t].bytes && p[i].place[t].kind == PLACE)
			return &p[i];
	return NULL;
}

/* Whether layers repeat the tensor, so that its place has a stride. */
static bool
repeated(const struct plan *p, tensor_id t)
{
	const struct tensor *x = &p->graph->tensor.a[t];
	return p->place[t].kind == PLACE &&
	       (p->place[t].region == R_SAVED ||
		   (p->graph->seg.a[x->seg].nlayers && p->place[t].region != R_SCRATCH));
}

/* Where lives are several, and a slot's rooms for them with it. */
static void
rooms(const struct plan *p, const char *t, const char *own, struct buf *b)
{
	buf_printf(b,
	    "/* bytes to a slot's room of a life%s */\n#define ROOM(life, slot) %s\n"
	    "#define SAVED(t, life, slot, i) \\\n\t((void *)(arena + %s + ROOM(life, slot) + "
	    "\\\n\t    (uint64_t)(i) * OM_STRIDE_##t))\n",
	    p->n_stages > 1 ? "" : ": there is one",
	    p->n_stages > 1 ? "om_at->room[life][slot]" : "((uint64_t)(slot))", t);
	buf_printf(b,
	    "#define STREAM(slot, layer) \\\n\t((void *)(arena + %sstream + ROOM(%u, slot) + "
	    "\\\n\t    (uint64_t)(layer) * OM_STRIDE_stream))\n"
	    "#define DSTREAM(slot, layer) \\\n\t((void *)(arena + %sdstream + ROOM(%u, slot) + "
	    "\\\n\t    (uint64_t)(layer) * OM_STRIDE_stream))\n",
	    own, p->stream_life, own, p->dstream_life);
}

/* Macros for addresses; t: the text that gives the offset of t, own: what precedes plan's own. */
static void
addresses(const struct plan *p, const char *t, const char *own, const char *slot_stride,
    const char *scratch, struct buf *b)
{
	buf_printf(b, "#define ONE(t) ((void *)(arena + %s))\n", t);
	buf_printf(
	    b, "#define LAYER(t, i) ((void *)(arena + %s + (uint64_t)(i) * OM_STRIDE_##t))\n", t);
	if (p->graph->last_phase > BACKWARD)
		rooms(p, t, own, b);
	else
		buf_printf(b,
		    "#define SAVED(t, slot, i) \\\n\t((void *)(arena + %s + (uint64_t)(slot) * %s "
		    "+ "
		    "\\\n\t    (uint64_t)(i) * OM_STRIDE_##t))\n"
		    "#define STREAM(slot, layer) \\\n\t((void *)(arena + %sstream + "
		    "(uint64_t)(slot) "
		    "* %s + \\\n\t    (uint64_t)(layer) * OM_STRIDE_stream))\n"
		    "#define DSTREAM ((void *)(arena + %sdstream))\n",
		    t, slot_stride, own, slot_stride, own);
	buf_printf(b, "#define WORKSPACE(w) ((void *)(arena + %s + OM_WS_##w))\n", scratch);
	if (p->shard->mesh.size[OM_WORLD] > 1)
		buf_puts(b, "/* the part of a bucket of parameters that is this rank's to step */\n"
			    "#define PART(at, group, bytes) \\\n\t((void *)((unsigned char *)at + "
			    "om_rank(group) * (uint64_t)(bytes)))\n");
	buf_puts(b, "\n");
}

/* What kernels need beside their tensors: bytes from the start of the scratch region. */
static void
workspaces(const struct plan *p, struct buf *b)
{
	ARRAY(struct {
		const char *name;
		uint64_t off;
		uint64_t bytes;
	})
	list = { 0 };

	for (uint32_t k = 0; k < p->n_stages; k++)
		for (uint32_t s = 0; s < p->graph->seg.n; s++)
			for (int ph = 0; ph < N_PHASES; ph++)
				for (uint32_t i = 0; i < p[k].prog[s][ph].n; i++) {
					const struct launch *st = &p[k].prog[s][ph].a[i];
					if (!st->workspace_bytes || !emit_from(&p[k], s, ph))
						continue;
					PUSH(list)->name = emit_workspace(&p[k], s, ph, i);
					list.a[list.n - 1].off =
					    st->workspace - p[k].region_off[R_SCRATCH];
					list.a[list.n - 1].bytes = st->workspace_bytes;
				}
	if (list.n)
		buf_puts(b, "/* workspaces of kernels, in the scratch region */\n");
	for (uint32_t i = 0; i < list.n; i++)
		commented(b, "",
		    xprintf(
			"#define OM_WS_%s %llu", list.a[i].name, (unsigned long long)list.a[i].off),
		    text_bytes(list.a[i].bytes));
	if (list.n)
		buf_puts(b, "\n");
}

/* The same addresses where they depend on the stage: the table is in params.c. */
static void
layout_by_stage(const struct plan *p, struct buf *b)
{
	const struct graph *g = p->graph;

	emit_banner(p, "where everything lies in a rank's arena, by its stage", "/*", "*/", b);
	buf_puts(b, "#ifndef OM_LAYOUT_H\n#define OM_LAYOUT_H\n\n#include <stdint.h>\n\n"
		    "#include \"om_comm.h\"\n\n"
		    "/* bytes from the arena's start; what a stage has nothing of is 0 */\n"
		    "struct om_layout {\n\tuint64_t stat, stat_bytes, scratch;\n"
		    "\tuint64_t slot_stride, stream, dstream;\n");
	uint64_t slots = 0;
	for (uint32_t i = 0; i < p->n_stages; i++)
		slots = p->shard->stage[i].slots > slots ? p->shard->stage[i].slots : slots;
	if (g->last_phase > BACKWARD)
		buf_printf(b, "\tuint64_t room[%u][%u];\n", N_LIVES, (unsigned)slots);
	for (tensor_id i = 1; i < g->tensor.n; i++)
		if (placed_somewhere(p, i))
			commented(b, "\t", xprintf("uint64_t %s;", g->tensor.a[i].name),
			    emit_shape(&g->tensor.a[i]));
	buf_printf(b,
	    "};\nextern const struct om_layout om_layouts[%u], *om_at; /* om_at: this rank's "
	    "*/\n\n",
	    p->n_stages);
	buf_puts(b,
	    "/*\n * Addresses of tensors, as the functions of step.c have arena, slot, layer (its "
	    "place in\n * the chunk), i (among its kind on this rank) and j (in its chunk) at "
	    "hand.\n */\n");
	addresses(p, "om_at->t", "om_at->", "om_at->slot_stride", "om_at->scratch", b);
	buf_printf(b, "#define OM_STRIDE_stream %llu\n", (unsigned long long)p->stream_stride);
	for (tensor_id i = 1; i < g->tensor.n; i++) {
		const struct plan *at = placed_somewhere(p, i);
		if (at && repeated(at, i))
			buf_printf(b, "#define OM_STRIDE_%s %llu\n", g->tensor.a[i].name,
			    (unsigned long long)at->place[i].stride);
	}
	buf_puts(b, "\n");
	workspaces(p, b);
	buf_puts(b, "#endif\n");
}

struct placed {
	uint64_t off;
	tensor_id t;
};

static int
by_off(const void *a, const void *b)
{
	const struct placed *x = a, *y = b;

	return x->off != y->off ? (x->off < y->off ? -1 : 1) : (x->t > y->t) - (x->t < y->t);
}

/* Tensors with a place of their own, as they lie in the arena. */
static const struct placed *
by_place(const struct plan *p, uint32_t *n)
{
	struct placed *all = xalloc(p->graph->tensor.n * sizeof *all);

	*n = 0;
	for (tensor_id t = 1; t < p->graph->tensor.n; t++)
		if (p->place[t].kind == PLACE && p->place[t].bytes)
			all[(*n)++] = (struct placed){ p->place[t].off, t };
	qsort(all, *n, sizeof *all, by_off);
	return all;
}

static void
layout(const struct plan *p, struct tree *t)
{
	const struct graph *g = p->graph;
	struct buf *b = tree_file(t, "src/layout.h");

	if (p->n_stages > 1) {
		layout_by_stage(p, b);
		return;
	}
	emit_banner(p, "where everything lies in the rank's arena, in bytes", "/*", "*/", b);
	buf_puts(b, "#ifndef OM_LAYOUT_H\n#define OM_LAYOUT_H\n\n#include <stdint.h>\n\n"
		    "/* regions, in this order */\n");
	for (int r = 0; r < N_REGIONS; r++) {
		if (!p->region_bytes[r])
			continue;
		buf_printf(b, "#define OM_%-14s %llu /* %s, %s */\n", emit_regions[r],
		    (unsigned long long)p->region_off[r], plan_region_names[r],
		    text_bytes(p->region_bytes[r]));
		buf_printf(b, "#define OM_%-14s %llu\n", xprintf("%s_BYTES", emit_regions[r]),
		    (unsigned long long)p->region_bytes[r]);
	}
	buf_printf(b, "#define OM_%-14s %llu /* %s */\n\n", "ARENA_BYTES",
	    (unsigned long long)p->arena_bytes, text_bytes(p->arena_bytes));

	buf_puts(b, "/*\n * Addresses of tensors, as the functions of step.c have arena, slot, "
		    "layer and i (the layer's\n"
		    " * index within its kind) at hand.\n */\n");
	addresses(p, "OM_OFF_##t", "OM_OFF_", "OM_SLOT_STRIDE", "OM_SCRATCH", b);
	buf_printf(b, "#define OM_SLOT_STRIDE %llu /* %llu microbatch%s in flight */\n",
	    (unsigned long long)p->kept[p->stream_life].stride,
	    (unsigned long long)p->shard->stage[p->stage].slots,
	    p->shard->stage[p->stage].slots > 1 ? "es" : "");
	const struct tensor *sx = &g->tensor.a[g->seg.a[g->head].x];
	buf_printf(
	    b, "/* residual stream: %s before each layer and after the last */\n", emit_shape(sx));
	buf_printf(b, "#define OM_OFF_stream %llu\n", (unsigned long long)p->stream_off);
	buf_printf(b, "#define OM_STRIDE_stream %llu\n", (unsigned long long)p->stream_stride);
	buf_printf(b, "#define OM_OFF_dstream %llu /* its gradient */\n\n",
	    (unsigned long long)p->dstream_off);

	uint32_t n;
	const struct placed *in_order = by_place(p, &n);
	for (int r = 0; r < N_REGIONS; r++) {
		bool any = false;
		for (uint32_t k = 0; k < n; k++) {
			tensor_id i = in_order[k].t;
			const struct tensor *x = &g->tensor.a[i];
			const struct place *pl = &p->place[i];
			uint32_t layers = g->seg.a[x->seg].nlayers;
			if ((int)pl->region != r)
				continue;
			if (!any)
				buf_printf(b, "/* %s */\n", plan_region_names[r]);
			any = true;
			commented(b, "",
			    xprintf("#define OM_OFF_%s %llu", x->name, (unsigned long long)pl->off),
			    xprintf("%s %s%s", emit_shape(x), text_bytes(pl->bytes),
				repeated(p, i) && layers > 1 ? xprintf(" x%u", layers) : ""));
			if (repeated(p, i))
				buf_printf(b, "#define OM_STRIDE_%s %llu\n", x->name,
				    (unsigned long long)pl->stride);
		}
		if (any)
			buf_puts(b, "\n");
	}

	workspaces(p, b);

	/* a hand that edits this file cannot make regions overlap unnoticed */
	int last = -1;
	for (int r = 0; r < N_REGIONS; r++) {
		if (!p->region_bytes[r])
			continue;
		if (last >= 0)
			emit_wrapped(b, 0,
			    xprintf("_Static_assert(OM_%s + OM_%s_BYTES <= OM_%s, \"%s reach into "
				    "%s\");",
				emit_regions[last], emit_regions[last], emit_regions[r],
				plan_region_names[last], plan_region_names[r]));
		last = r;
	}
	emit_wrapped(b, 0,
	    xprintf(
		"_Static_assert(OM_%s + OM_%s_BYTES <= OM_ARENA_BYTES, \"%s leave the arena\");",
		emit_regions[last], emit_regions[last], plan_region_names[last]));
	buf_puts(b, "\n#endif\n");
}

void
emit_config(const struct plan *p, struct tree *t)
{
	config(p, t);
	layout(p, t);
}
