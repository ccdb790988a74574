/*
 * plan.html: plans as a page to explore, one file that needs nothing else. Its data are the texts
 * of --dump and PLAN.txt, which the page reads, and the numbers that those leave out: costs of
 * launches, what stages do when, the ranks of groups.
 */
#include <string.h>

#include "emit/emit.h"

/* A page is for people: of more than that it shows the first ones. */
enum { MOST_PASSES = 400000, MOST_RANKS = 8192, MOST_KINDS = 64 };

bool
emit_has_page(const struct graph *g)
{
	return g->head - g->embed - 1 <= MOST_KINDS;
}

static void
json_text(struct buf *out, const char *key, const char *s)
{
	buf_printf(out, "\"%s\":\"", key);
	for (; *s; s++)
		if (*s == '\n')
			buf_puts(out, "\\n");
		else if (strchr("\"\\", *s))
			buf_printf(out, "\\%c", *s);
		else if ((unsigned char)*s < ' ' || strchr("<&", *s)) /* of HTML, too */
			buf_printf(out, "\\u%04x", (unsigned char)*s);
		else
			buf_add(out, s, 1);
	buf_puts(out, "\",");
}

static void
json_number(struct buf *out, const char *key, double x)
{
	buf_printf(out, "\"%s\":%.16g,", key, x);
}

static void
json_names(struct buf *out, const char *key, const char *const *names, unsigned n)
{
	buf_printf(out, "\"%s\":[", key);
	for (unsigned i = 0; i < n; i++)
		buf_printf(out, "%s\"%s\"", i ? "," : "", names[i]);
	buf_puts(out, "],");
}

/* "name":[ of items that begin with a comma but for the first. */
static void
json_list(struct buf *out, const char *key, struct buf *items)
{
	buf_printf(out, "\"%s\":[%s],", key, items->n ? items->s + 1 : "");
	*items = (struct buf){ 0 };
}

/* Of each group, for each rank the first of those that it acts with. */
static void
groups(const struct shard *s, struct buf *out)
{
	const uint64_t world = s->mesh.size[OM_WORLD];
	struct buf list = { 0 };

	for (enum om_group g = OM_WORLD; g < OM_N_GROUPS; g++) {
		buf_printf(&list, ",{\"name\":\"%s\",\"size\":%llu,\"first\":[", om_group_name[g],
		    llu(s->mesh.size[g]));
		for (uint64_t r = 0; r < world && r < MOST_RANKS; r++)
			buf_printf(
			    &list, "%s%llu", r ? "," : "", llu(om_mesh_member(&s->mesh, g, r, 0)));
		buf_puts(&list, "]}");
	}
	json_list(out, "groups", &list);
}

static void
segments(const struct shard *s, struct buf *out)
{
	const struct graph *g = s->graph;
	struct buf list = { 0 }, items = { 0 };

	for (uint32_t k = 0; k < g->seg.n; k++) {
		const struct segment *seg = &g->seg.a[k];
		buf_puts(&list, ",{");
		json_text(&list, "name", seg->name);
		for (uint32_t i = 0; i < seg->nlayers; i++)
			buf_printf(&items, ",%u", seg->layer[i]);
		json_list(&list, "layers", &items);
		if (seg->nlayers && graph_route(seg)) {
			json_number(
			    &list, "experts", (double)spec_int(seg->ffn, F_moe_num_experts));
			json_number(&list, "top_k", (double)spec_int(seg->ffn, F_moe_top_k));
			json_number(&list, "hidden", (double)spec_int(seg->ffn, F_moe_hidden_size));
			json_number(&list, "capacity", (double)shard_capacity(s, seg->ffn));
		}
		buf_printf(&list, "\"at\":%u}", k);
	}
	json_list(out, "segments", &list);
}

/* Microbatch, chunk and phase of each pass as one number, in order. */
static void
passes(const struct plan *p, struct buf *out)
{
	const struct step *step = &p->here->step[p->here->nsteps - 1];
	struct buf list = { 0 };
	uint32_t n = 0;

	for (uint32_t i = 0; i < step->action.n && n < MOST_PASSES / p->n_stages; i++) {
		const struct action *a = &step->action.a[i];
		if (a->kind != PASS)
			continue;
		n++;
		buf_printf(&list, ",%llu",
		    llu((a->microbatch * (uint64_t)p->here->nchunks + a->chunk) * N_PHASES +
			a->phase));
	}
	json_list(out, "passes", &list);
}

/* What --dump=plan does not say of buffers and launches, in its order of them. */
static void
unsaid(const struct plan *p, struct buf *out)
{
	const struct graph *g = p->graph;
	struct buf list = { 0 };
	uint64_t at;

	for (tensor_id t = 1; t < g->tensor.n; t++) {
		const struct place *pl = &p->place[t];
		const struct bucket *b = plan_bucket(p, t, &at);
		/* last, who steps it together, by the number of the group here; -1: nobody */
		if (pl->bytes)
			buf_printf(&list, ",[%d,%d,%u,%llu,%d]", pl->kind, pl->next, pl->life,
			    llu(plan_layers(p, t)), b ? (int)b->group - OM_WORLD : -1);
	}
	json_list(out, "buffers", &list);
	for (struct launch_at i = { 0 }; plan_next(p, &i);) {
		enum expected_part part = N_EXPECTED_PARTS;
		const struct cost c = plan_cost(p, i.launch, false);
		double seconds = plan_seconds(p, i.launch, &part);
		buf_printf(&list, ",[%.16g,%.16g,%.6g,%d,%llu,%llu,%llu]", c.flops, c.bytes,
		    seconds, part, llu(i.launch->workspace), llu(i.launch->workspace_bytes),
		    llu(i.launch->layers));
	}
	json_list(out, "launches", &list);
}

static void
stage(const struct plan *p, struct buf *out)
{
	const struct stage *st = p->here;
	struct buf list = { 0 };

	buf_puts(out, ",{");
	json_text(out, "layers", shard_layers_text(st));
	json_number(out, "slots", (double)st->slots);
	for (const struct chunk *c = st->chunk; c < st->chunk + st->nchunks; c++) {
		buf_printf(&list,
		    ",{\"first\":%u,\"n\":%u,\"place\":%u,\"embed\":%d,\"head\":%d,"
		    "\"slot\":%u,\"slots\":%u,\"rooms\":[",
		    c->first, c->n, c->place, c->embed, c->head, c->slot, c->slots);
		for (unsigned l = 0; l < N_LIVES; l++)
			buf_printf(
			    &list, "%s[%u,%u]", l ? "," : "", c->rooms[l].first, c->rooms[l].n);
		buf_puts(&list, "]}");
	}
	json_list(out, "chunks", &list);
	for (const struct collective *c = st->comm.a; c < st->comm.a + st->comm.n; c++)
		buf_printf(&list, ",{\"kind\":%d,\"ranks\":%llu,\"bytes\":%llu,\"seconds\":%.6g}",
		    c->kind, llu(c->ranks), llu(c->bytes), expected_sent(p->target, c));
	json_list(out, "sends", &list);
	for (uint32_t b = 0; b < p->bucket.n; b++)
		buf_printf(&list, ",[%d,%llu,%llu]", (int)p->bucket.a[b].group - OM_WORLD,
		    llu(p->bucket.a[b].layers), llu(p->bucket.a[b].elems));
	json_list(out, "buckets", &list);
	for (unsigned l = 0; l < N_LIVES; l++)
		buf_printf(&list, ",%llu", llu(p->kept[l].stride));
	json_list(out, "kept", &list);
	passes(p, out);
	unsaid(p, out);
	buf_printf(out, "\"stage\":%u}", p->stage);
}

static void
expected(const struct plan *p, struct buf *out)
{
	const struct expected e = plan_expected(p);
	struct buf list = { 0 };

	for (int i = 0; i < N_EXPECTED_PARTS; i++)
		buf_printf(&list, ",%.6g", e.known ? e.seconds[i] : 0);
	json_list(out, "seconds", &list);
	json_number(out, "step", e.known ? e.step : 0);
	json_number(out, "bubble", e.bubble);
}

void
emit_page_data(
    const struct plan *p, const struct story *story, const char *refused, struct buf *out)
{
	const struct graph *g = p->graph;
	const struct target_row *t = p->target;
	struct buf report = { 0 }, graph = { 0 }, dump = { 0 }, list = { 0 };

	plan_report(p, &report);
	graph_print(g, &graph);
	plan_print(p, &dump);
	buf_puts(out, "{");
	json_text(out, "name", spec_str(g->trainer, F_trainer_name));
	json_text(out, "target", t->name);
	json_text(out, "card", t->card);
	json_text(out, "refused", refused);
	json_text(out, "plan", report.s);
	json_text(out, "graph", story->graph.s);
	json_text(out, "shard", story->shard.s);
	json_text(out, "fuse", graph.s);
	json_text(out, "dump", dump.s);
	json_number(out, "tflops", t->tflops);
	json_number(out, "memory_gbs", t->memory_gbs);
	json_number(out, "memory_gib", spec_num(g->trainer, F_trainer_device_memory));
	json_number(out, "T", (double)g->T);
	json_number(out, "S", (double)g->S);
	json_number(out, "D", (double)spec_int(g->trainer, F_transformer_d_model));
	json_number(out, "row_bytes",
	    (double)target_bytes(
		t, g->format[ROLE_ROWS], (uint64_t)spec_int(g->trainer, F_transformer_d_model)));
	json_number(out, "rows_multiple", (double)p->shard->expert_rows);
	json_number(out, "microbatches", (double)g->microbatches);
	json_number(out, "global", (double)spec_int(g->trainer, F_batch_global));
	json_number(out, "params_total", (double)g->params_total);
	json_number(out, "params_active", (double)g->params_active);
	json_number(out, "flops_token", (double)g->flops_token);
	json_number(out, "world", (double)p->shard->mesh.size[OM_WORLD]);
	for (enum phase ph = FORWARD; ph <= g->last_phase; ph++)
		buf_printf(&list, ",%u", schedule_cost(g, ph));
	json_list(out, "costs", &list);
	json_names(out, "phases", graph_phase_names, N_PHASES);
	json_names(out, "regions", plan_region_names, N_REGIONS);
	json_names(out, "parts", plan_part_names, N_EXPECTED_PARTS);
	json_names(out, "sent", shard_sent_names, N_COLLECTIVES);
	buf_printf(out,
	    "\"ends\":{\"init\":%u,\"embed\":%u,\"head\":%u,\"update\":%u,\"eval\":%u,"
	    "\"decode\":%u},",
	    g->init, g->embed, g->head, g->update, g->eval, g->decode);
	expected(p, out);
	groups(p->shard, out);
	segments(p->shard, out);
	for (uint32_t i = 0; i < p->n_stages; i++)
		stage(&p[i], &list);
	json_list(out, "stages", &list);
	json_text(out, "version", OLMOGEN_VERSION);
	out->s[out->n - 1] = '}';
}

/* All files of a folder that end so, one after the other. */
static const char *
files(const char *folder, const char *end)
{
	struct buf out = { 0 };

	for (uint32_t i = 0; i < n_embedded; i++) {
		const struct embedded *e = &embedded[i];
		if (!strncmp(e->path, folder, strlen(folder)) &&
		    !strcmp(strrchr(e->path, '.'), end))
			buf_add(&out, (const char *)e->data, e->n);
	}
	return out.s;
}

void
emit_page(const char *data, struct tree *out)
{
	const struct slot slot[] = {
		{ "page.css", (const char *)embedded_find("runtime/page/page.css")->data },
		{ "plan.css", files("generator/page/", ".css") },
		{ "data", data },
		{ "page.js", (const char *)embedded_find("runtime/page/page.js")->data },
		{ "plan.js", files("generator/page/", ".js") },
	};

	emit_template(NULL, out, "plan.html", "generator/page/plan.html", slot, LEN(slot));
}
