/* src/config.h and src/layout.h: every constant of the trainer, every buffer's place. */
#include <stdlib.h>
#include <string.h>

#include "emit/emit.h"

static void
size(struct buf *b, const char *name, uint64_t v, const char *comment)
{
	buf_printf(b, *comment ? "#define %-20s %llu /* %s */\n" : "#define %-20s %llu\n", name,
	    llu(v), comment);
}

static void
number(struct buf *b, const char *name, double v)
{
	buf_printf(b, "#define %s %s\n", name, text_double(v));
}

static void
config(const struct plan *p, struct tree *t)
{
	const struct graph *g = p->graph;
	const struct object *tr = g->trainer;
	const struct format *real = target_format(p->target, g->format[ROLE_ACT]);
	struct buf b = { 0 };

	if (p->target->kind->one_number)
		buf_printf(&b, "#define OM_REAL %s\n", real->c);
	/* of the largest value; products of bf16 are rounded to one part in 256 at their end */
	buf_printf(&b, "#define OM_TOLERANCE %s /* of selftest, relative */\n\n",
	    real->bits == 16   ? "1.5e-2"
	    : real->bits == 64 ? "1e-11"
			       : "2e-5");
	buf_printf(&b, "#define OM_NAME \"%s\"\n", spec_str(tr, F_trainer_name));
	size(&b, "OM_VOCAB", (uint64_t)spec_int(tr, F_transformer_vocab_size), "vocabulary");
	size(&b, "OM_D_MODEL", (uint64_t)spec_int(tr, F_transformer_d_model),
	    "width of the residual stream");
	size(&b, "OM_N_LAYERS", g->n_layers, "");
	size(&b, "OM_SEQ", g->S, "tokens in a sequence");
	size(&b, "OM_MICRO", g->B, "sequences in a microbatch");
	size(&b, "OM_GLOBAL", (uint64_t)spec_int(tr, F_batch_global), "sequences in a step");
	size(&b, "OM_MICROBATCHES", g->microbatches, "in a step");
	size(&b, "OM_PARAMS_TOTAL", g->params_total, "");
	size(&b, "OM_PARAMS_ACTIVE", g->params_active, "for one token");
	size(&b, "OM_FLOPS_TOKEN", g->flops_token, "forward and backward");
	buf_puts(&b, "\n");
	number(&b, "OM_INIT_STD", spec_num(tr, F_normal_std));
	number(&b, "OM_HEAD_Z_LOSS", spec_num(tr, F_lm_head_z_loss));
	number(&b, "OM_BETA1", spec_value(tr, F_adamw_betas)->nums[0]);
	number(&b, "OM_BETA2", spec_value(tr, F_adamw_betas)->nums[1]);
	number(&b, "OM_CLIP_NORM", spec_num(tr, F_adamw_clip_norm));
	emit_source(p, t, "config.h", (struct slot[]){ { "numbers", b.s } }, 1);
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

/* Whether layers repeat the tensor, so that its place has a stride. */
static bool
repeated(const struct plan *p, tensor_id t)
{
	const struct tensor *x = &p->graph->tensor.a[t];
	return p->place[t].kind == PLACE &&
	       (p->place[t].region == R_SAVED ||
		   (p->graph->seg.a[x->seg].nlayers && p->place[t].region != R_SCRATCH));
}

/* The stride of a tensor that layers repeat. */
static void
stride(const struct plan *p, tensor_id t, struct buf *b)
{
	if (repeated(p, t))
		buf_printf(b, "#define OM_STRIDE_%s %llu\n", p->graph->tensor.a[t].name,
		    llu(p->place[t].stride));
}

/* A macro for an address: behind the arena's start so far, with a slot's bytes and a layer's. */
static void
macro(struct buf *b, const char *name, const char *off, const char *slot, const char *layer)
{
	buf_printf(b, "#define %s \\\n\t((void *)(arena + %s + %s + \\\n\t    %s))\n", name, off,
	    slot, layer);
}

/* Macros for what is saved of microbatches: in a slot, or where lives are several in its rooms. */
static const char *
saved(const struct plan *p)
{
	bool many = p->n_stages > 1, rooms = p->graph->last_phase > BACKWARD;
	const char *off = many ? "om_at->t" : "OM_OFF_##t", *own = many ? "om_at->" : "OM_OFF_";
	const char *in_slot =
	    xprintf("(uint64_t)(slot) * %s", many ? "om_at->slot_stride" : "OM_SLOT_STRIDE");
	const char *layer = "(uint64_t)(layer) * OM_STRIDE_stream";
	const char *x = xprintf("%sstream", own), *dx = xprintf("%sdstream", own);
	struct buf b = { 0 };

	if (rooms)
		buf_printf(&b,
		    "/* bytes to a slot's room of a life%s */\n#define ROOM(life, slot) %s\n",
		    many ? "" : ": there is one",
		    many ? "om_at->room[life][slot]" : "((uint64_t)(slot))");
	macro(&b, rooms ? "SAVED(t, life, slot, i)" : "SAVED(t, slot, i)", off,
	    rooms ? "ROOM(life, slot)" : in_slot, "(uint64_t)(i) * OM_STRIDE_##t");
	macro(&b, "STREAM(slot, layer)", x,
	    rooms ? xprintf("ROOM(%u, slot)", p->stream_life) : in_slot, layer);
	if (rooms)
		macro(&b, "DSTREAM(slot, layer)", dx, xprintf("ROOM(%u, slot)", p->dstream_life),
		    layer);
	else
		buf_printf(&b, "#define DSTREAM ((void *)(arena + %s))\n", dx);
	return b.s;
}

/* What kernels need beside their tensors: bytes from the start of the scratch region. */
static const char *
workspaces(const struct plan *p)
{
	struct buf b = { 0 };

	for (uint32_t k = 0; k < p->n_stages; k++)
		for (struct launch_at at = { 0 }; plan_next(&p[k], &at);)
			if (at.launch->workspace_bytes && plan_function(&p[k], at.seg, at.phase))
				commented(&b, "",
				    xprintf("#define OM_WS_%s %llu",
					emit_workspace(&p[k], at.seg, at.phase, at.i),
					llu(at.launch->workspace - p[k].region_off[R_SCRATCH])),
				    text_bytes(at.launch->workspace_bytes));
	return b.n ? xprintf("/* workspaces of kernels, in the scratch region */\n%s\n", b.s) : "";
}

/* src/layout.h where offsets depend on the stage: the table of them is in params.c. */
static void
layout_by_stage(const struct plan *p, struct tree *t)
{
	const struct graph *g = p->graph;
	struct buf offsets = { 0 }, strides = { 0 };
	uint64_t slots = 0;

	for (uint32_t i = 0; i < p->n_stages; i++)
		slots = p->shard->stage[i].slots > slots ? p->shard->stage[i].slots : slots;
	if (g->last_phase > BACKWARD)
		buf_printf(&offsets, "\tuint64_t room[%u][%llu];\n", N_LIVES, llu(slots));
	buf_printf(&strides, "#define OM_STRIDE_stream %llu\n", llu(p->stream_stride));
	for (tensor_id i = 1; i < g->tensor.n; i++) {
		const struct plan *at = p; /* the first stage that has it at a place of its own */
		while (at < p + p->n_stages && !(at->place[i].bytes && at->place[i].kind == PLACE))
			at++;
		if (at == p + p->n_stages)
			continue;
		commented(&offsets, "\t", xprintf("uint64_t %s;", g->tensor.a[i].name),
		    emit_shape(&g->tensor.a[i]));
		stride(at, i, &strides);
	}
	const struct slot slot[] = {
		{ "offsets", offsets.s },
		{ "layouts", xprintf("extern const struct om_layout om_layouts[%u], *om_at; /* "
				     "om_at: this rank's */\n",
				 p->n_stages) },
		{ "saved", saved(p) },
		{ "part", (const char *)embedded_find("templates/part.h")->data },
		{ "strides", strides.s },
		{ "workspaces", workspaces(p) },
	};
	emit_template(p, t, "src/layout.h", "templates/layout_stages.h", slot, LEN(slot));
}

struct placed {
	enum region region;
	uint64_t off;
	tensor_id t;
};

static int
by_place(const void *a, const void *b)
{
	const struct placed *x = a, *y = b;

	if (x->region != y->region)
		return x->region < y->region ? -1 : 1;
	return x->off != y->off ? (x->off < y->off ? -1 : 1) : (x->t > y->t) - (x->t < y->t);
}

/* Each tensor's place, region by region. */
static const char *
places(const struct plan *p)
{
	const struct graph *g = p->graph;
	uint64_t slots = p->here->slots;
	struct buf b = { 0 };
	ARRAY(struct placed) all = { 0 };

	for (tensor_id t = 1; t < g->tensor.n; t++)
		if (p->place[t].kind == PLACE && p->place[t].bytes)
			*PUSH(all) = (struct placed){ p->place[t].region, p->place[t].off, t };
	qsort(all.a, all.n, sizeof *all.a, by_place);
	buf_printf(&b, "#define OM_SLOT_STRIDE %llu /* %llu microbatch%s in flight */\n",
	    llu(p->kept[p->stream_life].stride), llu(slots), slots > 1 ? "es" : "");
	buf_printf(&b, "/* residual stream: %s before each layer and after the last */\n",
	    emit_shape(&g->tensor.a[g->seg.a[g->head].x]));
	buf_printf(&b, "#define OM_OFF_stream %llu\n", llu(p->stream_off));
	buf_printf(&b, "#define OM_STRIDE_stream %llu\n", llu(p->stream_stride));
	buf_printf(&b, "#define OM_OFF_dstream %llu /* its gradient */\n", llu(p->dstream_off));
	for (uint32_t k = 0; k < all.n; k++) {
		tensor_id i = all.a[k].t;
		const struct tensor *x = &g->tensor.a[i];
		const struct place *pl = &p->place[i];
		uint32_t layers = g->seg.a[x->seg].nlayers;
		if (!k || all.a[k - 1].region != pl->region)
			buf_printf(&b, "\n/* %s */\n", plan_region_names[pl->region]);
		commented(&b, "", xprintf("#define OM_OFF_%s %llu", x->name, llu(pl->off)),
		    xprintf("%s %s%s", emit_shape(x), text_bytes(pl->bytes),
			repeated(p, i) && layers > 1 ? xprintf(" x%u", layers) : ""));
		stride(p, i, &b);
	}
	return b.s;
}

static void
layout(const struct plan *p, struct tree *t)
{
	struct buf regions = { 0 }, asserts = { 0 };
	bool many = p->shard->mesh.size[OM_WORLD] > 1;
	int last = -1;

	for (int r = 0; r < N_REGIONS; r++) {
		const char *name = emit_regions[r];
		if (!p->region_bytes[r])
			continue;
		buf_printf(&regions, "#define OM_%-14s %lluull /* %s, %s */\n", name,
		    llu(p->region_off[r]), plan_region_names[r], text_bytes(p->region_bytes[r]));
		buf_printf(&regions, "#define OM_%-14s %llu\n", xprintf("%s_BYTES", name),
		    llu(p->region_bytes[r]));
		/* a hand that edits this file cannot make regions overlap unnoticed */
		if (last >= 0)
			emit_line(&asserts, 0,
			    "_Static_assert(OM_%s + OM_%s_BYTES <= OM_%s, \"%s reach into %s\");",
			    emit_regions[last], emit_regions[last], name, plan_region_names[last],
			    plan_region_names[r]);
		last = r;
	}
	buf_printf(&regions, "#define OM_%-14s %llu /* %s */\n", "ARENA_BYTES", llu(p->arena_bytes),
	    text_bytes(p->arena_bytes));
	emit_line(&asserts, 0,
	    "_Static_assert(OM_%s + OM_%s_BYTES <= OM_ARENA_BYTES, \"%s leave the arena\");",
	    emit_regions[last], emit_regions[last], plan_region_names[last]);
	const struct slot slot[] = {
		{ "regions", regions.s },
		{ "saved", saved(p) },
		{ "part", many ? (const char *)embedded_find("templates/part.h")->data : "" },
		{ "places", places(p) },
		{ "workspaces", workspaces(p) },
		{ "asserts", asserts.s },
	};
	emit_source(p, t, "layout.h", slot, LEN(slot));
}

void
emit_config(const struct plan *p, struct tree *t)
{
	config(p, t);
	if (p->n_stages > 1)
		layout_by_stage(p, t);
	else
		layout(p, t);
}
