/* src/params.c: the tables by which the runtime knows the parameters, the experts and the step. */
#include <string.h>

#include "emit/emit.h"

/* A tensor's offset: by name, or where stages differ the number. */
static const char *
off(const struct plan *p, tensor_id t)
{
	return p->n_stages > 1 ? xprintf("%llu", (unsigned long long)p->place[t].off)
			       : xprintf("OM_OFF_%s", p->graph->tensor.a[t].name);
}

/* A byte of a region, in the same way: "OM_WEIGHT + 131072". */
static const char *
in_region(const struct plan *p, enum region r, uint64_t at)
{
	if (p->n_stages > 1)
		return xprintf("%llu", (unsigned long long)(p->region_off[r] + at));
	return at ? xprintf("OM_%s + %llu", emit_regions[r], (unsigned long long)at)
		  : xprintf("OM_%s", emit_regions[r]);
}

/* The layers of a kind that are on the stage. */
static uint32_t
layers_here(const struct plan *p, uint32_t s)
{
	return (uint32_t)stage_kind(&p->shard->stage[p->stage], &p->graph->seg.a[s]);
}

static void
layer_lists(const struct plan *p, struct buf *b)
{
	const struct graph *g = p->graph;

	for (uint32_t s = g->embed + 1; s < g->head; s++) {
		const struct segment *seg = &g->seg.a[s];
		uint32_t n = layers_here(p, s);
		struct buf line = { 0 };
		if (!n)
			continue;
		buf_printf(&line, "static const uint32_t %s[] = { ",
		    emit_stage_name(p, xprintf("%s_layers", seg->name)));
		for (uint32_t k = 0; k < n; k++)
			for (uint32_t i = 0; i < seg->nlayers; i++)
				if (plan_on_stage(p, seg->layer[i]) && p->index[seg->layer[i]] == k)
					buf_printf(&line, "%u, ", seg->layer[i]);
		buf_puts(&line, "};");
		emit_wrapped(b, 0, line.s);
	}
}

/* The rows of a class of tensors; gives their number. */
static uint32_t
param_rows(const struct plan *p, enum tensor_class class, struct buf *b)
{
	static const char *const inits[] = { "OM_NORMAL", "OM_ONE", "OM_ZERO" };
	const struct graph *g = p->graph;
	const struct om_hf_family *family = hf_family_of(g);
	uint32_t n = 0;

	for (tensor_id i = 1; i < g->tensor.n; i++) {
		const struct tensor *t = &g->tensor.a[i];
		const struct segment *s = &g->seg.a[t->seg];
		if (t->class != class || !plan_layers(p, i))
			continue;
		uint8_t lead = tensor_by_expert(t);
		n++;
		buf_printf(b, "\t{\n\t\t.name = \"%s\",\n", t->hf);
		const char *exported = hf_name(family, t->hf);
		if (strcmp(exported, t->hf))
			buf_printf(b, "\t\t.hf_name = \"%s\",\n", exported);
		if (class == T_BUFFER) {
			emit_wrapped(b, 2, xprintf(".weight = %s,", off(p, i)));
		} else {
			emit_wrapped(
			    b, 2, xprintf(".weight = %s, .grad = %s,", off(p, i), off(p, t->grad)));
			emit_wrapped(b, 2,
			    xprintf(".m = %s, .v = %s,", off(p, t->state[STATE_M]),
				off(p, t->state[STATE_V])));
		}
		if (t->state[STATE_MASTER])
			emit_wrapped(
			    b, 2, xprintf(".master = %s,", off(p, t->state[STATE_MASTER])));
		uint64_t at;
		const struct bucket *bucket = plan_bucket(p, i, &at);
		struct buf line = { 0 };
		buf_printf(&line, ".copies = %s,", emit_group(t->copies));
		if (bucket)
			buf_printf(&line, " .bucket = %u, .at = %llu,",
			    (unsigned)(bucket - p->bucket.a), (unsigned long long)at);
		if (s->nlayers)
			buf_printf(&line, " .stride = %llu,",
			    (unsigned long long)(p->place[i].stride / plan_bytes(p, i, 1)));
		emit_wrapped(b, 2, line.s);
		line.n = 0;
		buf_printf(&line, ".numel = %llu, .dim = { ",
		    (unsigned long long)(tensor_elems(t) / (lead ? t->dim[0] : 1)));
		for (uint8_t d = lead; d < t->ndims; d++)
			buf_printf(&line, "%llu%s", (unsigned long long)t->dim[d],
			    d + 1 < t->ndims ? ", " : "");
		buf_printf(&line, " }, .ndims = %u, .experts = %llu,", t->ndims - lead,
		    (unsigned long long)(lead ? t->dim[0] : 0));
		emit_wrapped(b, 2, line.s);
		buf_printf(b,
		    "\t\t.layer = %s, .nlayers = %u, .init = %s, .param_group = %u,\n\t},\n",
		    s->nlayers ? emit_stage_name(p, xprintf("%s_layers", s->name)) : "NULL",
		    s->nlayers ? layers_here(p, t->seg) : 1, inits[t->init], t->param_group);
	}
	return n;
}

static void
params(const struct plan *p, uint32_t *nparams, uint32_t *nbuffers, struct buf *b)
{
	const struct graph *g = p->graph;

	buf_printf(b, "\nstatic const struct om_param %s[] = {\n", emit_stage_name(p, "params"));
	*nparams = param_rows(p, T_PARAM, b);
	*nbuffers = param_rows(p, T_BUFFER, b);
	buf_printf(
	    b, "};\n\nstatic const struct om_bucket %s[] = {\n", emit_stage_name(p, "buckets"));
	for (uint32_t i = 0; i < p->bucket.n; i++) {
		const struct bucket *k = &p->bucket.a[i];
		emit_wrapped(b, 1,
		    xprintf("{ .group = %s, .weight = %s, .grad = %s, .elems = %llu, .nlayers "
			    "= %llu },",
			emit_group(k->group),
			in_region(
			    p, R_WEIGHT, target_bytes(p->target, g->format[ROLE_WEIGHT], k->first)),
			in_region(
			    p, R_GRAD, target_bytes(p->target, g->format[ROLE_GRAD], k->first)),
			(unsigned long long)k->elems, (unsigned long long)k->layers));
	}
	buf_puts(b, "};\n");
}

static void
groups(const struct plan *p, struct buf *b)
{
	const struct graph *g = p->graph;

	buf_puts(b, "\nstatic const struct om_param_group param_groups[] = {\n");
	for (uint32_t i = 0; i < g->param_group.n; i++)
		buf_printf(b, "\t{ .weight_decay = %s, .lr_scale = %s },\n",
		    text_double(g->param_group.a[i].weight_decay),
		    text_double(g->param_group.a[i].lr_scale));
	buf_puts(b, "};\n");
}

/* What the host gives the layers of a kind or reads of them: by the names of op.def. */
static void
host_tensors(const struct plan *p, const struct segment *seg, struct buf *b)
{
	const struct graph *g = p->graph;
	bool *done = xalloc(g->tensor.n * sizeof *done);

	for (uint32_t i = 0; i < seg->ops[FORWARD].n; i++) {
		const struct op *o = &seg->ops[FORWARD].a[i];
		const struct op_row *r = op_row(o->op);
		for (uint8_t k = 0; k < r->nin + r->nout; k++) {
			const struct tensor *t = &g->tensor.a[o->arg[k]];
			const char *name = r->arg[k].name;
			if (done[o->arg[k]] || (t->class != T_STAT && t->class != T_INPUT))
				continue;
			done[o->arg[k]] = true;
			emit_wrapped(b, 2,
			    t->class == T_INPUT ? xprintf(".%s = %s,", name, off(p, o->arg[k]))
						: xprintf(".%s = %s, .%s_stride = OM_STRIDE_%s,",
						      name, off(p, o->arg[k]), name, t->name));
		}
	}
}

static uint32_t
moes(const struct plan *p, struct buf *b)
{
	const struct graph *g = p->graph;
	uint32_t n = 0;

	for (uint32_t s = g->embed + 1; s < g->head; s++) {
		const struct op *o = graph_route(&g->seg.a[s]);
		if (!o || !layers_here(p, s))
			continue;
		const struct object *m = g->seg.a[s].ffn;
		const struct object *r = spec_obj(m, F_moe_router);
		if (!n++)
			buf_printf(b, "\nstatic const struct om_moe %s[] = {\n",
			    emit_stage_name(p, "moes"));
		buf_puts(b, "\t{\n");
		host_tensors(p, &g->seg.a[s], b);
		emit_wrapped(b, 2,
		    xprintf(".layer = %s, .nlayers = %u, .experts = %lld, .top_k = %lld,",
			emit_stage_name(p, xprintf("%s_layers", g->seg.a[s].name)),
			layers_here(p, s), (long long)spec_int(m, F_moe_num_experts),
			(long long)spec_int(m, F_moe_top_k)));
		buf_printf(b, "\t\t.load_balance = %s, .z_loss = %s,\n\t},\n",
		    text_double(spec_num(r, F_router_load_balance)),
		    text_double(spec_num(r, F_router_z_loss)));
	}
	if (n)
		buf_puts(b, "};\n");
	return n;
}

/* A line of text as a C string of its own, newline included; long ones are broken after commas. */
static void
quoted_line(const char *s, size_t n, struct buf *b)
{
	enum { WIDTH = 40 }; /* what follows a break is at most a name and a number */
	size_t col = 0;

	buf_puts(b, "\n\t    \"");
	for (size_t i = 0; i < n; i++) {
		buf_printf(b, s[i] == '"' || s[i] == '\\' ? "\\%c" : "%c", s[i]);
		col += s[i] == '"' ? 2 : 1;
		if (s[i] == ',' && col > WIDTH && i + 1 < n) {
			buf_puts(b, "\"\n\t    \"");
			col = 0;
		}
	}
	buf_puts(b, "\\n\"");
}

/* A sentence as a C string, broken after blanks. */
static void
quoted_text(const char *s, struct buf *b)
{
	enum { WIDTH = 50 };
	size_t col = 0;

	buf_puts(b, "\"");
	for (; *s; s++, col++) {
		if (col >= WIDTH && s[-1] == ' ') {
			buf_puts(b, "\"\n\t\t    \"");
			col = 0;
		}
		buf_printf(b, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
	}
	buf_puts(b, "\"");
}

/* What one stage has where: a row of om_layouts. */
static void
layout_row(const struct plan *p, struct buf *b)
{
	const struct graph *g = p->graph;
	const struct {
		const char *name;
		uint64_t v;
	} fixed[] = {
		{ "stat", p->region_off[R_STAT] },
		{ "stat_bytes", p->region_bytes[R_STAT] },
		{ "scratch", p->region_off[R_SCRATCH] },
		{ "slot_stride", p->kept[p->stream_life].stride },
		{ "stream", p->stream_off },
		{ "dstream", p->dstream_off },
	};

	buf_printf(b, "\t{ /* stage %u: %s */\n", p->stage, text_bytes(p->arena_bytes));
	for (unsigned i = 0; i < LEN(fixed); i++)
		buf_printf(b, "\t\t.%s = %llu,\n", fixed[i].name, (unsigned long long)fixed[i].v);
	for (uint32_t l = 0; l < N_LIVES && g->last_phase > BACKWARD; l++) {
		struct buf line = { 0 };
		for (uint32_t k = 0; k < p->shard->stage[p->stage].slots; k++)
			buf_printf(&line, "%llu, ",
			    (unsigned long long)(plan_room(p, l, k) * p->kept[l].stride));
		emit_wrapped(b, 2, xprintf(".room[%u] = { %s},", l, line.s));
	}
	for (tensor_id i = 1; i < g->tensor.n; i++)
		if (p->place[i].bytes && p->place[i].kind == PLACE)
			buf_printf(b, "\t\t.%s = %llu,\n", g->tensor.a[i].name,
			    (unsigned long long)p->place[i].off);
	buf_puts(b, "\t},\n");
}

/* Where what goes or comes lies: at an end of the chunk, forward its x or y, backward dx or dy. */
static uint64_t
hop_at(const struct plan *p, const struct action *a)
{
	const struct graph *g = p->graph;
	const struct chunk *c = &p->shard->stage[p->stage].chunk[a->chunk];
	bool forward = a->phase == FORWARD, low = forward == (a->kind == RECEIVE);
	uint32_t layer = low ? c->first : c->first + c->n - 1;
	const struct segment *kind = &g->seg.a[g->kind_of[layer]];
	tensor_id t = forward ? (low ? kind->x : kind->y) : (low ? kind->dx : kind->dy);

	return a->kind == PASS ? 0 : plan_extent(p, NULL, t, layer, a->slot).off;
}

/* What a stage does in a step, and its chunks. */
static void
schedule_tables(const struct plan *p, struct buf *b)
{
	static const char *const kinds[] = { "OM_PASS", "OM_SEND", "OM_RECEIVE" };
	static const char *const phases[] = { "OM_FORWARD", "OM_BACKWARD", "OM_WEIGHTS" };
	const struct stage *st = &p->shard->stage[p->stage];
	uint64_t hop = p->hop_off;

	buf_printf(b, "\nstatic const struct om_chunk %s[] = {\n", emit_stage_name(p, "chunks"));
	for (uint32_t i = 0; i < st->nchunks; i++) {
		const struct chunk *c = &st->chunk[i];
		emit_wrapped(b, 1,
		    xprintf("{ .embed = %s, .head = %s, .slot = %u, .slots = %u, .hop = %llu },",
			c->embed ? "true" : "false", c->head ? "true" : "false", c->slot, c->slots,
			(unsigned long long)(c->place ? hop : 0)));
		hop += c->place ? p->stream_stride : 0;
	}
	buf_puts(b, "};\n");
	for (uint32_t k = 0; k < st->nsteps; k++) {
		buf_printf(b,
		    "\n/* { kind, phase, chunk, slot, stage, tag, microbatch, at } */\nstatic "
		    "const "
		    "struct om_action %s_%u[] = {\n",
		    emit_stage_name(p, "actions"), (unsigned)st->step[k].microbatches);
		for (uint32_t i = 0; i < st->step[k].action.n; i++) {
			const struct action *a = &st->step[k].action.a[i];
			buf_printf(b, "\t{ %s, %s, %u, %u, %u, %u, %u, %llu },\n", kinds[a->kind],
			    phases[a->phase], a->chunk, a->slot, a->stage, a->tag, a->microbatch,
			    (unsigned long long)hop_at(p, a));
		}
		buf_puts(b, "};\n");
	}
	buf_printf(b, "\nstatic const struct om_step %s[] = {\n", emit_stage_name(p, "steps"));
	for (uint32_t k = 0; k < st->nsteps; k++)
		buf_printf(b, "\t{ %u, %s_%u, %u },\n", (unsigned)st->step[k].microbatches,
		    emit_stage_name(p, "actions"), (unsigned)st->step[k].microbatches,
		    st->step[k].action.n);
	buf_puts(b, "};\n");
}

/* What the fingerprint is of, so that a checkpoint of another model can be told what differs. */
static void
facts(const struct plan *p, struct buf *b)
{
	const struct object *trainer = p->graph->trainer;
	const char *s =
	    xprintf("%sbatch.global = %lld\n", spec_facts(spec_obj(trainer, F_trainer_model)),
		(long long)spec_int(spec_obj(trainer, F_trainer_batch), F_batch_global));

	buf_puts(b, "\nstatic const char facts[] =");
	for (; *s; s += strcspn(s, "\n") + 1)
		quoted_line(s, strcspn(s, "\n"), b);
	buf_puts(b, ";\n");
}

static void
model(const struct plan *p, const char *fingerprint, const char *refusal, const uint32_t n[3],
    struct buf *b)
{
	const struct graph *g = p->graph;
	const struct {
		const char *name;
		enum region r;
	} regions[] = { { "weight", R_WEIGHT }, { "grad", R_GRAD }, { "state", R_STATE },
		{ "stat", R_STAT } };

	buf_puts(b, "\t{\n\t\t.abi = 1,\n");
	buf_printf(b, "\t\t.name = OM_NAME,\n\t\t.target = \"%s\",\n\t\t.version = \"%s\",\n",
	    p->target->name, OLMOGEN_VERSION);
	buf_printf(b, "\t\t.fingerprint = \"%s\",\n\t\t.facts = facts,\n", fingerprint);
	buf_printf(b, "\t\t.weights = \"%s\",\n\t\t.grads = \"%s\",\n\t\t.optimizer = \"%s\",\n",
	    g->format[ROLE_WEIGHT]->name, g->format[ROLE_GRAD]->name, g->format[ROLE_MOMENT]->name);
	buf_puts(b, "\t\t.manifest = om_manifest,\n\t\t.plan = om_plan,\n");
	buf_puts(b, "\t\t.vocab = OM_VOCAB,\n\t\t.seq = OM_SEQ,\n\t\t.micro = OM_MICRO,\n"
		    "\t\t.global = OM_GLOBAL,\n"
		    "\t\t.layers = OM_N_LAYERS,\n\t\t.microbatches = OM_MICROBATCHES,\n"
		    "\t\t.params_total = OM_PARAMS_TOTAL,\n\t\t.params_active = OM_PARAMS_ACTIVE,\n"
		    "\t\t.flops_token = OM_FLOPS_TOKEN,\n");
	if (p->target->tflops > 0)
		buf_printf(b, "\t\t.peak = %s,\n", text_double(p->target->tflops * 1e12));
	double gib = spec_num(g->trainer, F_trainer_device_memory);
	if (gib > 0)
		buf_printf(b, "\t\t.memory = %llu,\n", (unsigned long long)(gib * 1073741824.0));
	buf_printf(b, "\t\t.real = %llu,\n\t\t.weight_size = %llu,\n",
	    (unsigned long long)target_bytes(p->target, g->format[ROLE_MASTER], 1),
	    (unsigned long long)target_bytes(p->target, g->format[ROLE_WEIGHT], 1));
	buf_puts(b, "\t\t.init_std = OM_INIT_STD,\n"
		    "\t\t.beta1 = OM_BETA1,\n\t\t.beta2 = OM_BETA2,\n"
		    "\t\t.clip_norm = OM_CLIP_NORM,\n");
	struct buf mesh = { 0 };
	for (enum om_group i = 0; i < OM_N_GROUPS; i++)
		buf_printf(&mesh, "%s[%s] = %llu", i ? ", " : ".mesh = { { ", emit_group(i),
		    (unsigned long long)p->shard->mesh.size[i]);
	buf_puts(&mesh, " } },");
	emit_wrapped(b, 2, mesh.s);
	buf_printf(b, "\t\t.stage = %u,\n", p->stage);
	if (p->n_stages > 1)
		buf_printf(b,
		    "\t\t.step = %s,\n\t\t.nsteps = %u,\n\t\t.chunk = %s,\n"
		    "\t\t.nchunks = %u,\n\t\t.hop_bytes = %llu,\n",
		    emit_stage_name(p, "steps"), p->shard->stage[p->stage].nsteps,
		    emit_stage_name(p, "chunks"), p->shard->stage[p->stage].nchunks,
		    (unsigned long long)shard_bytes(p->shard, g->seg.a[g->head].x));
	if (p->n_stages > 1)
		buf_printf(b, "\t\t.arena_bytes = %llu,\n", (unsigned long long)p->arena_bytes);
	else
		buf_puts(b, "\t\t.arena_bytes = OM_ARENA_BYTES,\n");
	for (unsigned i = 0; i < LEN(regions); i++)
		buf_printf(b, "\t\t.%s_off = %s,\n\t\t.%s_bytes = %llu,\n", regions[i].name,
		    in_region(p, regions[i].r, 0), regions[i].name,
		    (unsigned long long)p->region_bytes[regions[i].r]);
	buf_printf(b,
	    "\t\t.token_off = %s,\n\t\t.label_off = %s,\n\t\t.ctl_off = %s,\n"
	    "\t\t.loss_off = %s,\n",
	    off(p, g->tokens), off(p, g->labels), off(p, g->ctl), off(p, g->loss));
	buf_printf(b,
	    "\t\t.param = %s,\n\t\t.nparams = %u,\n\t\t.bucket = %s,\n\t\t.nbuckets = %u,\n"
	    "\t\t.param_group = param_groups,\n\t\t.nparam_groups = %u,\n",
	    emit_stage_name(p, "params"), n[0], emit_stage_name(p, "buckets"), p->bucket.n,
	    g->param_group.n);
	if (n[1])
		buf_printf(b, "\t\t.nbuffers = %u,\n", n[1]);
	if (p->streams > 1)
		buf_printf(b, "\t\t.streams = %u,\n\t\t.events = %u,\n", p->streams, p->events);
	buf_puts(b, refusal ? "\t\t.hf_refusal = " : "\t\t.hf_config = hf_config");
	if (refusal)
		quoted_text(refusal, b);
	buf_puts(b, ",\n");
	if (n[2])
		buf_printf(
		    b, "\t\t.moe = %s,\n\t\t.nmoe = %u,\n", emit_stage_name(p, "moes"), n[2]);
	buf_printf(b,
	    "\t\t.head_z_loss = OM_HEAD_Z_LOSS,\n"
	    "\t\t.op = om_ops,\n\t\t.nops = OM_N_OPS,\n\t\t.init = om_%s,\n"
	    "\t\t.zero = om_zero,\n",
	    emit_stage_name(p, "init"));
	buf_printf(b, "\t\t.pass = { ");
	for (enum phase ph = FORWARD; ph <= g->last_phase; ph++)
		buf_printf(b, "om_%s, ", emit_stage_name(p, graph_phase_names[ph]));
	buf_printf(b, "},\n\t\t.eval = om_%s,\n\t\t.update = om_%s,\n",
	    emit_stage_name(p, "evaluate"), emit_stage_name(p, "update"));
	if (p->decode)
		buf_puts(b, "\t\t.decode = om_decode,\n\t\t.decode_token_off = "
			    "OM_OFF_decode_embed_token,\n\t\t.decode_position_off = "
			    "OM_OFF_decode_embed_position,\n\t\t.logits_off = "
			    "OM_OFF_decode_head_logits,\n");
	buf_puts(b, "\t},\n");
}

void
emit_params(const struct plan *p, const char *fingerprint, struct tree *t)
{
	const struct graph *g = p->graph;
	struct buf *b = tree_file(t, "src/params.c"), models = { 0 };

	emit_banner(p, "parameters, groups, experts: what the runtime has to know", "/*", "*/", b);
	buf_puts(b, "#include <stddef.h>\n\n#include \"config.h\"\n#include \"launch.h\"\n#include "
		    "\"layout.h\"\n"
		    "#include \"model.h\"\n#include \"om.h\"\n#include \"step.h\"\n");
	if (p->n_stages > 1) {
		buf_printf(b, "\nconst struct om_layout om_layouts[%u] = {\n", p->n_stages);
		for (uint32_t i = 0; i < p->n_stages; i++)
			layout_row(&p[i], b);
		buf_puts(b, "};\n");
	}
	groups(p, b);
	facts(p, b);
	const char *reason = NULL, *json = hf_config(g, &reason);
	if (json) {
		buf_puts(b, "\nstatic const char hf_config[] =");
		for (; *json; json += strcspn(json, "\n") + 1)
			quoted_line(json, strcspn(json, "\n"), b);
		buf_puts(b, ";\n");
	}
	for (uint32_t i = 0; i < p->n_stages; i++) {
		uint32_t n[3];
		buf_puts(b, "\n");
		layer_lists(&p[i], b);
		params(&p[i], &n[0], &n[1], b);
		n[2] = moes(&p[i], b);
		if (p->n_stages > 1)
			schedule_tables(&p[i], b);
		model(&p[i], fingerprint, reason, n, &models);
	}
	buf_printf(b, "\nconst struct om_model om_models[%u] = {\n%s};\n", p->n_stages, models.s);

	b = tree_file(t, "src/model.h");
	emit_banner(p, "the model as the runtime sees it", "/*", "*/", b);
	buf_puts(b, "#ifndef OM_MODEL_H\n#define OM_MODEL_H\n\n#include \"om.h\"\n\n"
		    "extern const char om_manifest[], om_plan[]; /* manifest.yaml and PLAN.txt, in "
		    "main.c */\n"
		    "extern const struct om_model om_models[]; /* one a stage of the pipeline "
		    "*/\n\n#endif\n");
}
