/* What a plan costs: memory by rank and kind, time, traffic; the page that --plan prints. */
#include <string.h>

#include "plan/plan.h"

static void
print_stage(const struct plan *p, struct buf *out)
{
	const struct graph *g = p->graph;

	if (p->n_stages > 1)
		buf_printf(out, "stage %u\n", p->stage);
	buf_printf(out, "arena %llu bytes\n", llu(p->arena_bytes));
	for (int r = 0; r < N_REGIONS; r++)
		buf_printf(out, "  region %-17s %14llu %14llu\n", plan_region_names[r],
		    llu(p->region_off[r]), llu(p->region_bytes[r]));
	buf_puts(out, "buffers\n");
	for (tensor_id t = 1; t < g->tensor.n; t++) {
		const struct place *pl = &p->place[t];
		uint32_t layers = g->seg.a[g->tensor.a[t].seg].nlayers;
		if (!pl->bytes)
			continue;
		buf_printf(out, "  %-28s %-17s %14llu %14llu", g->tensor.a[t].name,
		    plan_region_names[pl->region], llu(pl->off), llu(pl->bytes));
		if (layers && pl->kind != DSTREAM)
			buf_printf(out, " x%u stride %llu", layers, llu(pl->stride));
		buf_puts(out, "\n");
	}
	for (struct launch_at at = { 0 }; plan_next(p, &at);) {
		const struct launch *st = at.launch;
		const struct launch *events = &p->prog[at.seg][at.phase].of->a[at.i];
		if (!at.i)
			buf_printf(
			    out, "%s %s\n", g->seg.a[at.seg].name, graph_phase_names[at.phase]);
		buf_printf(out, "  %3u stream %u  %-30s %s", at.i, st->stream,
		    runtime_call(st->op.op) ? op_row(st->op.op)->name : p->inst->a[st->inst].name,
		    op_text(g, &st->op));
		for (uint32_t w = 0; w < events->wait.n; w++)
			buf_printf(out, ", after event %u", events->wait.a[w]);
		if (events->event)
			buf_printf(out, ", then event %u", events->event);
		buf_puts(out, "\n");
	}
}

void
plan_print(const struct plan *p, struct buf *out)
{
	for (uint32_t i = 0; i < p->n_stages; i++)
		print_stage(&p[i], out);
	buf_puts(out, "kernels\n");
	for (uint32_t i = 1; i < p->inst->n; i++) {
		const struct kernel_row *k = p->inst->a[i].kernel;
		buf_printf(out, "  %-30s %s%s%s\n", p->inst->a[i].name, k->file,
		    *k->where ? " where " : "", k->where);
	}
}

static const char *
human_flops(double x)
{
	static const char *const unit[] = { "", " K", " M", " G", " T", " P", " E", " Z" };
	unsigned u = 0;

	for (; x >= 1000 && u + 1 < LEN(unit); u++)
		x /= 1000;
	return xprintf("%.4g%s", x, unit[u]);
}

static void
row(struct buf *out, const char *name, const char *value, const char *more)
{
	buf_printf(out, "  %-22s %18s%s%s\n", name, value, *more ? "  " : "", more);
}

/* "0..3, 8" */
static const char *
layers_text(const uint32_t *layer, uint32_t n)
{
	struct buf b = { 0 };

	for (uint32_t i = 0, j; i < n; i = j + 1) {
		for (j = i; j + 1 < n && layer[j + 1] == layer[j] + 1;)
			j++;
		buf_printf(&b, j > i ? "%s%u..%u" : "%s%u", i ? ", " : "", layer[i], layer[j]);
	}
	return b.s;
}

/* "rows in layers 0..11; none in 12..15" */
static const char *
recompute_text(const struct graph *g)
{
	const struct value *v = spec_value(g->trainer, F_transformer_recompute);
	uint32_t *layer = xalloc(v->n * sizeof *layer);
	struct buf b = { 0 };

	for (uint32_t i = 0; i < v->n; i++) {
		const char *what = spec_str(v->list[i], F_recompute_what);
		uint32_t n = 0, before = 0;
		for (uint32_t k = 0; k < v->n; k++)
			if (!strcmp(spec_str(v->list[k], F_recompute_what), what)) {
				before += k < i;
				layer[n++] = k;
			}
		if (!before)
			buf_printf(&b, "%s%s in %s%s", i ? "; " : "", what, i ? "" : "layers ",
			    layers_text(layer, n));
	}
	return b.s;
}

static void
report_memory(const struct plan *p, struct buf *out)
{
	static const enum region order[] = { R_WEIGHT, R_GRAD, R_STATE, R_BUFFER, R_COPY, R_SAVED,
		R_SCRATCH, R_COMM, R_CONST, R_INPUT, R_STAT };
	const struct om_mesh *m = &p->shard->mesh;
	double gib = spec_num(p->graph->trainer, F_trainer_device_memory);

	buf_puts(out, "\nmemory a rank\n");
	if (gib > 0)
		row(out, "device", xprintf("%.6g GiB", gib),
		    gib != p->target->memory_gib ? "by trainer.device_memory"
						 : xprintf("of %s", p->target->card));
	buf_printf(out, "  %-22s  %s: %s%s\n", "recompute", recompute_text(p->graph),
	    text_bytes(plan_worst(p)->arena_bytes), gib > 0 ? xprintf(" of %.6g GiB", gib) : "");
	for (uint32_t i = 0; i < m->size[OM_PIPELINE]; i++) {
		const struct stage *st = &p->shard->stage[i];
		const uint64_t *bytes = p[i].region_bytes;
		if (m->size[OM_PIPELINE] > 1)
			buf_printf(out, " stage %u: %s\n", i, shard_layers_text(st));
		for (unsigned k = 0; k < LEN(order); k++)
			if (bytes[order[k]])
				row(out, plan_region_names[order[k]], text_bytes(bytes[order[k]]),
				    order[k] != R_SAVED ? ""
				    : st->slots > 1
					? xprintf("%s microbatches in flight", shard_slots_text(st))
				    : p->cache_more ? xprintf("%s of that for generate's cache",
							  text_bytes(p->cache_more))
						    : "");
		row(out, "total", text_bytes(p[i].arena_bytes),
		    gib > 0 ? xprintf("of %.6g GiB, %.1f %%", gib,
				  (double)p[i].arena_bytes / (gib * 10737418.24))
			    : "");
	}
}

/* What has to be where the trainer is built or runs. */
static void
report_libraries(const struct plan *p, struct buf *out)
{
	const char *title = "\nlibraries\n";

	for (const struct library *l = plan_libraries; l->name; l++)
		if (plan_uses(p, l)) {
			buf_puts(out, title);
			title = "";
			row(out, l->name, l->file, xprintf("licence: %s", l->licence));
		}
}

/* Of ops with several kernels, those that were chosen, by op and condition. */
static void
report_choices(const struct plan *p, struct buf *out)
{
	const char *title = "\nkernels chosen of several\n";

	for (uint32_t i = 1; i < p->inst->n; i++) {
		const struct kernel_row *k = p->inst->a[i].kernel;
		bool shown = kernel_rivals(k) == 1;
		for (uint32_t j = 1; j < i; j++)
			shown |= p->inst->a[j].kernel == k;
		if (shown)
			continue;
		buf_puts(out, title);
		title = "";
		row(out, op_row(k->op)->name, k->file,
		    *k->where ? xprintf("where %s", k->where) : "for all others");
	}
}

/* "16 ranks, 8 on a host, 61.2 ms at 400 GB/s" */
static const char *
sent_text(const struct target_row *t, const struct collective *c)
{
	double seconds = expected_sent(t, c);
	struct buf b = { 0 };

	buf_printf(&b, "%llu ranks", llu(c->ranks));
	if (c->near < c->ranks)
		buf_printf(&b, ", %llu on a host", llu(c->near));
	if (seconds > 0)
		buf_printf(
		    &b, ", %.1f ms at %.0f GB/s", seconds * 1e3, (double)c->bytes / seconds * 1e-9);
	return b.s;
}

/* What every two ranks exchange where experts are on several hosts, of each kind of layer. */
static void
report_blocks(const struct plan *p, struct buf *out)
{
	const struct graph *g = p->graph;
	uint64_t expert = p->shard->mesh.size[OM_EXPERT], last = 0;

	for (uint32_t k = g->embed + 1; k < g->head; k++) {
		if (!graph_route(&g->seg.a[k]))
			continue;
		uint64_t rows = shard_pair_rows(p->shard, g->seg.a[k].ffn);
		uint64_t bytes = target_bytes(p->target, g->format[ROLE_ROWS],
		    size_mul(rows, (uint64_t)spec_int(g->trainer, F_transformer_d_model)));
		if (rows != last)
			row(out, "blocks between ranks", text_bytes(bytes),
			    xprintf(
				"of %s rows each, by pair_capacity; %llu go and %llu come for a "
				"layer's rows",
				text_commas(rows), llu(expert - 1), llu(expert - 1)));
		last = rows;
	}
}

/* Bytes sent and the time that they take alone on the link; nothing where there is one rank. */
static void
report_wire(const struct plan *p, struct buf *out)
{
	if (p->shard->mesh.size[OM_WORLD] == 1)
		return;
	buf_puts(out, "\nsent by a rank in a step\n");
	if (shard_blocks(p->shard))
		report_blocks(p, out);
	for (uint32_t i = 0; i < p->shard->nstages; i++) {
		const struct stage *st = &p->shard->stage[i];
		if (p->shard->nstages > 1)
			buf_printf(out, " stage %u\n", i);
		for (uint32_t c = 0; c < st->comm.n; c++)
			row(out, shard_sent_names[st->comm.a[c].kind],
			    text_bytes(st->comm.a[c].bytes), sent_text(p->target, &st->comm.a[c]));
	}
}

enum { TIMELINE_WIDTH = 88, TIMELINE_ROWS = 32 };

static const struct step *
full_step(const struct stage *st)
{
	return &st->step[st->nsteps - 1];
}

static void
report_pipeline(const struct shard *s, struct buf *out)
{
	uint32_t chunks = s->stage[0].nchunks, stages = s->nstages;
	int digits = (int)strlen(xprintf("%llu", llu(s->graph->microbatches) - 1));
	int cell = 1 + digits + (chunks > 1);
	uint64_t columns = TIMELINE_WIDTH / (uint64_t)cell;
	uint32_t shown = stages < TIMELINE_ROWS ? stages : TIMELINE_ROWS;
	uint64_t *start[TIMELINE_ROWS];

	if (stages == 1)
		return;
	uint64_t end = schedule_run(s, s->stage[0].nsteps - 1, start, shown);
	bool cut = end > columns || stages > shown;
	buf_printf(out, "\npipeline: forward and backward of each microbatch%s; columns are time\n",
	    chunks > 1 ? ", in chunks a, b .." : "");
	columns = end < columns ? end : columns;
	for (uint32_t i = 0; i < shown; i++) {
		const struct stage *st = &s->stage[i];
		size_t n = (size_t)columns * (size_t)cell;
		char *line = xalloc(n + (size_t)cell * 2 + 1);
		memset(line, '.', n);
		for (uint32_t k = 0; k < full_step(st)->action.n; k++) {
			const struct action *a = &full_step(st)->action.a[k];
			uint64_t at = start[i][k];
			if (at >= columns || a->kind != PASS)
				continue;
			const char *text = xprintf("%c%u%s", "FBW" [a->phase], a -> microbatch,
			    chunks > 1 ? (char[]) { (char)('a' + a->chunk), 0 } : "");
			memset(line + at * (uint64_t)cell, a->phase == FORWARD ? ' ' : '-',
			    (size_t)cell * schedule_cost(s->graph, a->phase));
			memcpy(line + at * (uint64_t)cell, text, strlen(text));
		}
		while (n && line[n - 1] == ' ')
			n--;
		buf_printf(out, "  stage %-3u %.*s\n", i, (int)n, line);
	}
	if (cut)
		buf_printf(out, "  (%llu of %llu columns, %u of %u stages)\n", llu(columns),
		    llu(end), shown, stages);
}

static const char *
attention_text(const struct object *o)
{
	int64_t window = spec_int(o, F_attention_window);

	return xprintf("%lld heads of %lld, %lld key/value%s%s",
	    (long long)spec_int(o, F_attention_n_heads),
	    (long long)spec_int(o, F_attention_head_dim),
	    (long long)spec_int(o, F_attention_n_kv_heads),
	    window ? xprintf(", window %lld", (long long)window) : "",
	    spec_obj(o, F_attention_rope)->type == OBJ_nope ? ", no positions" : "");
}

static const char *
ffn_text(const struct object *o)
{
	if (o->type == OBJ_mlp)
		return xprintf("hidden %lld", (long long)spec_int(o, F_mlp_hidden_size));
	int64_t shared = spec_int(o, F_moe_shared_hidden_size);
	return xprintf("%lld experts of %lld, top %lld%s",
	    (long long)spec_int(o, F_moe_num_experts), (long long)spec_int(o, F_moe_hidden_size),
	    (long long)spec_int(o, F_moe_top_k),
	    shared ? xprintf(", shared %lld", (long long)shared) : "");
}

/* Where the step's time goes. */
static void
report_expected(const struct expected *e, struct buf *out)
{
	if (!e->known)
		return;
	buf_printf(out, "\nexpected step%s\n",
	    e->scaled_from
		? xprintf(", scaled by peak and bandwidth from rates of %s", e->scaled_from->card)
		: "");
	for (int i = 0; i < N_EXPECTED_PARTS; i++)
		if (e->seconds[i] > 0)
			row(out, plan_part_names[i], xprintf("%.1f ms", 1e3 * e->seconds[i]),
			    xprintf("%.1f %%", 100 * e->seconds[i] / e->step));
}

/* What experts' products multiply, if not weights and activations as they are. */
static void
report_eight(const struct graph *g, struct buf *out)
{
	static const struct {
		const char *what;
		enum field_id f;
	} products[] = { { "forward", F_precision_experts },
		{ "gradients", F_precision_experts_dx },
		{ "gradients of weights", F_precision_experts_dw } };
	const struct value *exempt = spec_value(g->trainer, F_precision_exempt);
	struct buf b = { 0 };
	uint32_t layers = 0, *layer = xalloc(g->n_layers * sizeof *layer);

	for (size_t i = 0; i < LEN(products); i++) {
		const struct value *v = spec_value(g->trainer, products[i].f);
		buf_printf(&b, "%s%s %s", i ? ", " : "", products[i].what,
		    v->set ? v->str : g->format[ROLE_WEIGHT]->name);
	}
	for (uint32_t l = 0; l < g->n_layers && exempt->set; l++)
		if (g->seg.a[g->kind_of[l]].eight && graph_route(&g->seg.a[g->kind_of[l]]))
			layer[layers++] = l;
	if (layers)
		row(out, "", "",
		    xprintf("experts in layers %s: %s", layers_text(layer, layers), b.s));
}

void
plan_report(const struct plan *p, struct buf *out)
{
	const struct graph *g = p->graph;
	const struct om_mesh *m = &p->shard->mesh;
	const struct object *t = g->trainer;
	const struct format *weight = g->format[ROLE_WEIGHT];
	uint64_t global = (uint64_t)spec_int(t, F_batch_global), tokens = size_mul(global, g->S);
	double step_flops = (double)g->flops_token * (double)tokens;
	const struct expected e = plan_expected(p);

	buf_printf(out, "%s for %s, %s: pipeline %llu x data %llu, experts over %llu\n\n",
	    spec_str(t, F_trainer_name), p->target->name,
	    m->size[OM_WORLD] == 1 ? "1 rank" : xprintf("%llu ranks", llu(m->size[OM_WORLD])),
	    llu(m->size[OM_PIPELINE]), llu(m->size[OM_DATA]), llu(m->size[OM_EXPERT]));
	row(out, "parameters", text_commas(g->params_total), "total");
	row(out, "", text_commas(g->params_active), "active for a token");
	row(out, "precision", weight->name,
	    xprintf("weights and activations%s; gradients %s, optimizer %s, moments %s",
		target_format(p->target, weight) != weight
		    ? xprintf(", in %llu bytes here", llu(target_bytes(p->target, weight, 1)))
		    : "",
		g->format[ROLE_GRAD]->name, g->format[ROLE_MASTER]->name,
		g->format[ROLE_MOMENT]->name));
	report_eight(g, out);
	row(out, "step", text_commas(tokens),
	    xprintf("tokens: %llu sequence%s of %llu%s", llu(global), global > 1 ? "s" : "",
		llu(g->S), g->documents ? ", documents masked" : ""));
	row(out, "microbatches", text_commas(g->microbatches),
	    xprintf("a rank and step, %llu x %llu tokens", llu(g->B), llu(g->S)));
	if (p->streams > 1)
		row(out, "streams", text_commas(p->streams),
		    xprintf("with %u events%s", p->events,
			p->streams > p->target->streams ? "; the last one is for what ranks send"
							: ""));
	row(out, "FLOPs", text_commas(g->flops_token),
	    "a token, forward and backward, causal half, no recompute");
	row(out, "", human_flops(step_flops), "a step");
	if (m->size[OM_PIPELINE] > 1)
		row(out, "pipeline bubble", xprintf("%.1f %%", 100 * e.bubble),
		    xprintf("%s, chunks balanced", spec_str(t, F_parallel_schedule)));
	if (e.known)
		row(out, "expected step", xprintf("%.4g s", e.step),
		    xprintf("%.0f tokens/s a rank, %.1f %% of %.0f TFLOP/s",
			(double)tokens / e.step / (double)m->size[OM_WORLD],
			100 * step_flops / e.step / (double)m->size[OM_WORLD] /
			    (p->target->tflops * 1e12),
			p->target->tflops));
	else
		row(out, "expected step", "unknown", "depends on the machine: ask 'trainer bench'");
	report_expected(&e, out);
	buf_puts(out, "\nlayers\n");
	for (uint32_t s = g->embed + 1; s < g->head; s++) {
		const struct segment *seg = &g->seg.a[s];
		row(out, seg->name, layers_text(seg->layer, seg->nlayers),
		    xprintf("%s; %s", attention_text(seg->attention), ffn_text(seg->ffn)));
	}
	report_pipeline(p->shard, out);
	report_memory(p, out);
	report_wire(p, out);
	report_libraries(p, out);
	report_choices(p, out);
}
