/* src/params.c: the tables by which the runtime knows the parameters, the experts and the step. */
#include <string.h>

#include "emit/emit.h"

/* A tensor's offset: by name, or where stages differ the number. */
static const char *
off(const struct plan *p, tensor_id t)
{
	return p->n_stages > 1 ? emit_number(p->place[t].off)
			       : xprintf("OM_OFF_%s", p->graph->tensor.a[t].name);
}

/* A byte of a region, in the same way: "OM_WEIGHT + 131072". */
static const char *
in_region(const struct plan *p, enum region r, uint64_t at)
{
	if (p->n_stages > 1)
		return emit_number(p->region_off[r] + at);
	return at ? xprintf("OM_%s + %llu", emit_regions[r], llu(at))
		  : xprintf("OM_%s", emit_regions[r]);
}

static const char *
layers_name(const struct plan *p, uint32_t s)
{
	return emit_stage_name(p, xprintf("%s_layers", p->graph->seg.a[s].name));
}

static void
layer_lists(const struct plan *p, struct buf *b)
{
	const struct graph *g = p->graph;

	for (uint32_t s = g->embed + 1; s < g->head; s++) {
		struct buf line = { 0 };
		if (!stage_kind(p->here, &g->seg.a[s]))
			continue;
		buf_printf(&line, "static const uint32_t %s[] = { ", layers_name(p, s));
		for (uint32_t i = 0; i < g->seg.a[s].nlayers; i++)
			if (plan_on_stage(p, g->seg.a[s].layer[i]))
				buf_printf(&line, "%u, ", g->seg.a[s].layer[i]);
		buf_puts(&line, "};");
		emit_line(b, 0, "%s", line.s);
	}
}

/* The rows of a class of tensors; gives their number. */
static uint32_t
param_rows(const struct plan *p, enum tensor_class class, struct buf *b)
{
	static const char *const inits[] = { "OM_NORMAL", "OM_ONE", "OM_ZERO" };
	const struct graph *g = p->graph;
	uint32_t n = 0;

	for (tensor_id i = 0; (i = tensor_next(g, class, i));) {
		const struct tensor *t = &g->tensor.a[i];
		const struct segment *s = &g->seg.a[t->seg];
		if (!plan_layers(p, i))
			continue;
		uint8_t lead = tensor_by_expert(t);
		uint64_t experts = lead ? t->dim[0] : 0, at;
		const struct bucket *bucket = plan_bucket(p, i, &at);
		struct buf line = { 0 }, dims = { 0 };
		n++;
		buf_printf(b, "\t{\n\t\t.name = \"%s\",\n", t->hf);
		if (class == T_BUFFER) {
			emit_line(b, 2, ".weight = %s,", off(p, i));
		} else {
			emit_line(b, 2, ".weight = %s, .grad = %s,", off(p, i), off(p, t->grad));
			emit_line(b, 2, ".m = %s,%s", off(p, t->state[STATE_M]),
			    !t->state[STATE_V] ? ""
					       : xprintf(" .v = %s,", off(p, t->state[STATE_V])));
		}
		if (t->state[STATE_MASTER])
			emit_line(b, 2, ".master = %s,", off(p, t->state[STATE_MASTER]));
		if (t->state[STATE_AVERAGE])
			emit_line(b, 2, ".average = %s,", off(p, t->state[STATE_AVERAGE]));
		buf_printf(&line, ".copies = %s,", emit_group(t->copies));
		if (bucket)
			buf_printf(&line, " .bucket = %u, .at = %llu,",
			    (unsigned)(bucket - p->bucket.a), llu(at));
		if (s->nlayers)
			buf_printf(&line, " .stride = %llu,",
			    llu(p->place[i].stride / plan_bytes(p, i, 1)));
		emit_line(b, 2, "%s", line.s);
		for (uint8_t d = lead; d < t->ndims; d++)
			buf_printf(&dims, "%s%llu", d > lead ? ", " : "", llu(t->dim[d]));
		emit_line(b, 2, ".numel = %llu, .dim = { %s }, .ndims = %u, .experts = %llu,",
		    llu(tensor_elems(t) / (lead ? experts : 1)), dims.s, t->ndims - lead,
		    llu(experts));
		buf_printf(b,
		    "\t\t.layer = %s, .nlayers = %llu, .init = %s, .param_group = %u,\n\t},\n",
		    s->nlayers ? layers_name(p, t->seg) : "NULL", llu(plan_layers(p, i)),
		    inits[t->init], t->param_group);
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
		emit_line(b, 1,
		    "{ .group = %s, .weight = %s, .grad = %s, .elems = %llu, .nlayers = %llu },",
		    emit_group(k->group),
		    in_region(
			p, R_WEIGHT, target_bytes(p->target, g->format[ROLE_WEIGHT], k->first)),
		    in_region(p, R_GRAD, target_bytes(p->target, g->format[ROLE_GRAD], k->first)),
		    llu(k->elems), llu(k->layers));
	}
	buf_puts(b, "};\n");
}

static void
groups(const struct plan *p, struct buf *b)
{
	const struct graph *g = p->graph;

	buf_printf(b, "\nstatic const struct om_param_group %s[] = {\n",
	    emit_stage_name(p, "param_groups"));
	for (uint32_t i = 0; i < g->param_group.n; i++) {
		const struct param_group *k = &g->param_group.a[i];
		emit_line(b, 1, "{ .weight_decay = %s, .lr_scale = %s%s%s },",
		    text_double(k->weight_decay), text_double(k->lr_scale),
		    !k->cols ? "" : xprintf(", .cols = %llu", llu(k->cols)),
		    !k->name ? ""
			     : xprintf(", .name = \"%s\", .ctl = %s", k->name, off(p, k->ctl)));
	}
	buf_puts(b, "};\n");
}

/* What the host gives the layers of a kind or reads of them: by the names of op.def. */
static void
host_tensors(const struct plan *p, const struct segment *seg, struct buf *b)
{
	const struct graph *g = p->graph;
	bool *done = xalloc(g->tensor.n * sizeof *done);

	for (uint32_t n = seg->ops[FORWARD].n, i = 0; i < n + seg->ops[BACKWARD].n; i++) {
		const struct op *o = i < n ? &seg->ops[FORWARD].a[i] : &seg->ops[BACKWARD].a[i - n];
		const struct op_row *r = op_row(o->op);
		for (uint8_t k = 0; k < r->nargs; k++) {
			const struct tensor *t = &g->tensor.a[o->arg[k]];
			const char *name = r->arg[k].name;
			if (done[o->arg[k]] || !g->seg.a[t->seg].nlayers ||
			    (t->class != T_STAT && t->class != T_INPUT))
				continue;
			done[o->arg[k]] = true;
			emit_line(b, 2, "%s",
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
		const struct object *m = g->seg.a[s].ffn;
		uint64_t layers = stage_kind(p->here, &g->seg.a[s]);
		if (!o || !layers)
			continue;
		if (!n++)
			buf_printf(b, "\nstatic const struct om_moe %s[] = {\n",
			    emit_stage_name(p, "moes"));
		buf_puts(b, "\t{\n");
		host_tensors(p, &g->seg.a[s], b);
		emit_line(b, 2, ".layer = %s, .nlayers = %llu, .experts = %lld, .top_k = %lld,",
		    layers_name(p, s), llu(layers), (long long)spec_int(m, F_moe_num_experts),
		    (long long)spec_int(m, F_moe_top_k));
		buf_printf(b, "\t\t.load_balance = %s, .z_loss = %s,\n\t},\n",
		    text_double(spec_num(m, F_router_load_balance)),
		    text_double(spec_num(m, F_router_z_loss)));
	}
	if (n)
		buf_puts(b, "};\n");
	return n;
}

/* The inside of a C string, which ends and goes on after each `behind` where it is long. */
static void
quoted(const char *s, size_t n, char behind, size_t width, const char *gap, struct buf *b)
{
	size_t col = 0;

	for (size_t i = 0; i < n; i++) {
		buf_printf(b, s[i] == '"' || s[i] == '\\' ? "\\%c" : "%c", s[i]);
		col += s[i] == '"' ? 2 : 1;
		if (s[i] == behind && col >= width && i + 1 < n) {
			buf_printf(b, "\"%s\"", gap);
			col = 0;
		}
	}
}

/* A text, line by line: what follows a break is at most a name and a number. */
static void
text_of(const char *name, const char *s, struct buf *b)
{
	buf_printf(b, "\nstatic const char %s[] =", name);
	for (; *s; s += strcspn(s, "\n") + 1) {
		buf_puts(b, "\n\t    \"");
		quoted(s, strcspn(s, "\n"), ',', 41, "\n\t    ", b);
		buf_puts(b, "\\n\"");
	}
	buf_puts(b, ";\n");
}

/* What Muon keeps: checkpoints of another optimizer are told by that. */
static const char *
muon_keeps(const struct graph *g)
{
	struct buf text = { 0 };

	for (tensor_id i = 0; (i = tensor_next(g, T_PARAM, i));) {
		const struct tensor *t = &g->tensor.a[i];
		if (g->param_group.a[t->param_group].rows)
			buf_printf(&text, "%s%s\n", t->hf, t->state[STATE_V] ? " rows" : "");
	}
	return text.s;
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
		buf_printf(b, "\t\t.%s = %llu,\n", fixed[i].name, llu(fixed[i].v));
	for (uint32_t l = 0; l < N_LIVES && g->last_phase > BACKWARD; l++) {
		struct buf line = { 0 };
		for (uint32_t k = 0; k < p->here->slots; k++)
			buf_printf(&line, "%llu, ", llu(plan_room(p, l, k) * p->kept[l].stride));
		emit_line(b, 2, ".room[%u] = { %s},", l, line.s);
	}
	for (tensor_id i = 1; i < g->tensor.n; i++)
		if (p->place[i].bytes && p->place[i].kind == PLACE)
			buf_printf(
			    b, "\t\t.%s = %llu,\n", g->tensor.a[i].name, llu(p->place[i].off));
	buf_puts(b, "\t},\n");
}

/* What a stage does in a step, and its chunks. */
static void
schedule_tables(const struct plan *p, struct buf *b)
{
	static const char *const kinds[] = { "OM_PASS", "OM_SEND", "OM_RECEIVE" };
	static const char *const phases[] = { "OM_FORWARD", "OM_BACKWARD", "OM_WEIGHTS" };

	buf_printf(b, "\nstatic const struct om_chunk %s[] = {\n", emit_stage_name(p, "chunks"));
	for (uint32_t i = 0; i < p->here->nchunks; i++) {
		const struct chunk *c = &p->here->chunk[i];
		emit_line(b, 1,
		    "{ .embed = %s, .head = %s, .slot = %u, .slots = %u, .hop = %llu },",
		    c->embed ? "true" : "false", c->head ? "true" : "false", c->slot, c->slots,
		    llu(p->hop[i]));
	}
	buf_puts(b, "};\n");
	for (uint32_t k = 0; k < p->here->nsteps; k++) {
		buf_printf(b,
		    "\n/* { kind, phase, chunk, slot, stage, tag, microbatch, at } */\nstatic "
		    "const "
		    "struct om_action %s_%u[] = {\n",
		    emit_stage_name(p, "actions"), (unsigned)p->here->step[k].microbatches);
		for (uint32_t i = 0; i < p->here->step[k].action.n; i++) {
			const struct action *a = &p->here->step[k].action.a[i];
			buf_printf(b, "\t{ %s, %s, %u, %u, %u, %u, %u, %llu },\n", kinds[a->kind],
			    phases[a->phase], a->chunk, a->slot, a->stage, a->tag, a->microbatch,
			    llu(plan_hop(p, a)));
		}
		buf_puts(b, "};\n");
	}
	buf_printf(b, "\nstatic const struct om_step %s[] = {\n", emit_stage_name(p, "steps"));
	for (uint32_t k = 0; k < p->here->nsteps; k++)
		buf_printf(b, "\t{ %u, %s_%u, %u },\n", (unsigned)p->here->step[k].microbatches,
		    emit_stage_name(p, "actions"), (unsigned)p->here->step[k].microbatches,
		    p->here->step[k].action.n);
	buf_puts(b, "};\n");
}

/* Fields of an initializer, ".a = 1, .b = 2,", one a line. */
static void
fields_of(struct buf *b, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	const char *all = xvprintf(fmt, ap);
	va_end(ap);
	for (const char *s = all; s; s = strstr(s, ", .") ? strstr(s, ", .") + 2 : NULL) {
		const char *end = strstr(s, ", .");
		emit_line(b, 2, "%.*s", end ? (int)(end - s + 1) : (int)strlen(s), s);
	}
}

/* A stage's struct om_model. */
static void
model(const struct plan *p, const char *fingerprint, const char *refusal, const uint32_t n[3],
    struct buf *b)
{
	const struct graph *g = p->graph;
	bool many = p->n_stages > 1;
	double gib = spec_num(g->trainer, F_trainer_device_memory);
	struct buf mesh = { 0 }, passes = { 0 };
	const struct {
		const char *name;
		enum region r;
	} regions[] = { { "weight", R_WEIGHT }, { "grad", R_GRAD }, { "state", R_STATE },
		{ "stat", R_STAT } };

	for (enum om_group i = 0; i < OM_N_GROUPS; i++)
		buf_printf(&mesh, "%s[%s] = %llu", i ? ", " : "", emit_group(i),
		    llu(p->shard->mesh.size[i]));
	for (enum phase ph = FORWARD; ph <= g->last_phase; ph++)
		buf_printf(&passes, "om_%s, ", emit_stage_name(p, graph_phase_names[ph]));
	buf_puts(b, "\t{\n");
	fields_of(b, ".abi = 1, .name = OM_NAME, .target = \"%s\", .version = \"%s\",",
	    p->target->name, OLMOGEN_VERSION);
	fields_of(b, ".fingerprint = \"%s\", .facts = facts,", fingerprint);
	fields_of(b, ".weights = \"%s\", .grads = \"%s\", .optimizer = \"%s\", .moments = \"%s\",",
	    g->format[ROLE_WEIGHT]->name, g->format[ROLE_GRAD]->name, g->format[ROLE_MASTER]->name,
	    g->format[ROLE_MOMENT]->name);
	const struct value *experts = spec_value(g->trainer, F_precision_experts);
	if (experts->set && format_find(experts->str)->block > 1)
		fields_of(b, ".experts = \"%s\",", experts->str);
	if (muon_keeps(g))
		fields_of(b, ".muon = muon_keeps,");
	fields_of(b, ".manifest = om_manifest, .plan = om_plan, .vocab = OM_VOCAB, .seq = OM_SEQ, "
		     ".micro = OM_MICRO, .global = OM_GLOBAL, .layers = OM_N_LAYERS, "
		     ".microbatches = OM_MICROBATCHES, .params_total = OM_PARAMS_TOTAL, "
		     ".params_active = OM_PARAMS_ACTIVE, .flops_token = OM_FLOPS_TOKEN,");
	if (p->target->tflops > 0)
		fields_of(b, ".peak = %s,", text_double(p->target->tflops * 1e12));
	if (gib > 0)
		fields_of(b, ".memory = %llu,", llu((uint64_t)(gib * 1073741824.0)));
	fields_of(b, ".real = %llu, .weight_size = %llu, .moment_size = %llu,",
	    llu(target_bytes(p->target, g->format[ROLE_MASTER], 1)),
	    llu(target_bytes(p->target, g->format[ROLE_WEIGHT], 1)),
	    llu(target_bytes(p->target, g->format[ROLE_MOMENT], 1)));
	fields_of(b,
	    ".init_std = OM_INIT_STD, .beta1 = OM_BETA1, .beta2 = OM_BETA2, "
	    ".clip_norm = OM_CLIP_NORM, .mesh = { { %s } }, .stage = %u,",
	    mesh.s, p->stage);
	if (many)
		fields_of(b,
		    ".step = %s, .nsteps = %u, .chunk = %s, .nchunks = %u, .hop_bytes = %llu,",
		    emit_stage_name(p, "steps"), p->here->nsteps, emit_stage_name(p, "chunks"),
		    p->here->nchunks, llu(shard_bytes(p->shard, g->seg.a[g->head].x)));
	fields_of(b, ".arena_bytes = %s,", many ? emit_number(p->arena_bytes) : "OM_ARENA_BYTES");
	for (unsigned i = 0; i < LEN(regions); i++)
		fields_of(b, ".%s_off = %s, .%s_bytes = %llu,", regions[i].name,
		    in_region(p, regions[i].r, 0), regions[i].name,
		    llu(p->region_bytes[regions[i].r]));
	fields_of(b, ".token_off = %s, .label_off = %s, .ctl_off = %s, .loss_off = %s,",
	    off(p, g->tokens), off(p, g->labels), off(p, g->ctl), off(p, g->loss));
	fields_of(b, ".param = %s, .nparams = %u, .bucket = %s, .nbuckets = %u,",
	    emit_stage_name(p, "params"), n[0], emit_stage_name(p, "buckets"), p->bucket.n);
	fields_of(b, ".param_group = %s, .nparam_groups = %u,", emit_stage_name(p, "param_groups"),
	    g->param_group.n);
	if (n[1])
		fields_of(b, ".nbuffers = %u,", n[1]);
	if (g->documents)
		fields_of(b, ".document_off = %s, .pairs = pairs, .npairs = %u,",
		    off(p, g->documents), g->pairs.n);
	if (g->lots)
		fields_of(b, ".lots_off = %s,", off(p, g->lots));
	if (g->rate)
		fields_of(b, ".average_off = %s,", off(p, g->rate));
	if (p->streams > 1)
		fields_of(b, ".streams = %u, .events = %u,", p->streams, p->events);
	if (refusal) {
		buf_puts(b, "\t\t.hf_refusal = \"");
		quoted(refusal, strlen(refusal), ' ', 50, "\n\t\t    ", b);
		buf_puts(b, "\",\n");
	} else {
		fields_of(b, ".hf_config = hf_config,");
	}
	if (n[2])
		fields_of(b, ".moe = %s, .nmoe = %u,", emit_stage_name(p, "moes"), n[2]);
	fields_of(b, ".head_z_loss = OM_HEAD_Z_LOSS, .op = om_ops, .nops = OM_N_OPS,");
	fields_of(b,
	    ".init = om_%s, .zero = om_zero, .pass = { %s}, .eval = om_%s, .update = om_%s,",
	    emit_stage_name(p, "init"), passes.s, emit_stage_name(p, "evaluate"),
	    emit_stage_name(p, "update"));
	if (p->here->head)
		fields_of(b, ".score_off = %s,", off(p, g->score));
	for (enum pass_id i = PASS_DECODE; i <= PASS_PROMPT; i++) {
		const struct pass pass = shard_pass(g, i);
		if (!plan_has_pass(p, i))
			continue;
		fields_of(b,
		    ".%s = { .run = om_%s, .n = %llu, .each = %d, .token_off = "
		    "OM_OFF_%s_embed_token, .at_off = OM_OFF_%s_embed_at },",
		    pass.name, pass.name, llu(g->tensor.a[g->seg.a[pass.first].y].dim[0]),
		    i == PASS_PROMPT ? PROMPT_RUN : 1, pass.name, pass.name);
	}
	if (p->decode)
		fields_of(b, ".logits_off = OM_OFF_decode_head_logits, "
			     ".likeliest_off = OM_OFF_decode_head_likeliest,");
	buf_puts(b, "\t},\n");
}

void
emit_params(const struct plan *p, const char *fingerprint, struct tree *t)
{
	const struct graph *g = p->graph;
	struct buf b = { 0 }, models = { 0 };

	if (p->n_stages > 1) {
		buf_printf(&b, "\nconst struct om_layout om_layouts[%u] = {\n", p->n_stages);
		for (uint32_t i = 0; i < p->n_stages; i++)
			layout_row(&p[i], &b);
		buf_puts(&b, "};\n");
	}
	for (uint32_t i = 0; i < p->n_stages; i++)
		groups(&p[i], &b);
	if (g->documents)
		buf_puts(&b, "\nstatic const struct om_pairs pairs[] = {\n");
	for (uint32_t i = 0; i < g->pairs.n; i++)
		buf_printf(&b, "\t{ .window = %llu, .flops = %llu },\n", llu(g->pairs.a[i].window),
		    llu(g->pairs.a[i].flops));
	if (g->documents)
		buf_puts(&b, "};\n");
	/* what the fingerprint is of, so that a checkpoint of another model is told what differs */
	text_of("facts",
	    xprintf("%sbatch.global = %lld\n", spec_facts(spec_obj(g->trainer, F_trainer_model)),
		(long long)spec_int(g->trainer, F_batch_global)),
	    &b);
	const char *reason = NULL, *json = hf_config(g, &reason);
	if (json)
		text_of("hf_config", json, &b);
	if (muon_keeps(g))
		text_of("muon_keeps", muon_keeps(g), &b);
	for (uint32_t i = 0; i < p->n_stages; i++) {
		uint32_t n[3];
		buf_puts(&b, "\n");
		layer_lists(&p[i], &b);
		params(&p[i], &n[0], &n[1], &b);
		n[2] = moes(&p[i], &b);
		if (p->n_stages > 1)
			schedule_tables(&p[i], &b);
		model(&p[i], fingerprint, reason, n, &models);
	}
	buf_printf(&b, "\nconst struct om_model om_models[%u] = {\n%s};\n", p->n_stages, models.s);
	emit_source(p, t, "params.c", (struct slot[]){ { "tables", b.s } }, 1);
	emit_source(p, t, "model.h", NULL, 0);
}
