/*
 * manifest.yaml, for programs: what the trainer is, its parameters, buffers and files. Written by
 * libyaml.
 */
#include <string.h>
#include <yaml.h>

#include "emit/emit.h"

static yaml_emitter_t emitter;
static yaml_event_t e; /* the next one */

static int
append(void *b, unsigned char *s, size_t n)
{
	buf_add(b, (const char *)s, n);
	return 1;
}

static void
event(int made)
{
	if (!made || !yaml_emitter_emit(&emitter, &e))
		internal(
		    "manifest: libyaml: %s", emitter.problem ? emitter.problem : "out of memory");
}

static void
scalar(const char *s, bool quoted)
{
	event(yaml_scalar_event_initialize(&e, NULL, NULL, (const yaml_char_t *)s, (int)strlen(s),
	    1, 1, quoted ? YAML_DOUBLE_QUOTED_SCALAR_STYLE : YAML_PLAIN_SCALAR_STYLE));
}

/* A map, under a key of the one around it or in a list: on one line, or on one for each key. */
static void
open_map(const char *key, bool flow)
{
	if (key)
		scalar(key, false);
	event(yaml_mapping_start_event_initialize(
	    &e, NULL, NULL, 1, flow ? YAML_FLOW_MAPPING_STYLE : YAML_BLOCK_MAPPING_STYLE));
}

static void
close_map(void)
{
	event(yaml_mapping_end_event_initialize(&e));
}

static void
open_list(const char *key, bool flow)
{
	scalar(key, false);
	event(yaml_sequence_start_event_initialize(
	    &e, NULL, NULL, 1, flow ? YAML_FLOW_SEQUENCE_STYLE : YAML_BLOCK_SEQUENCE_STYLE));
}

static void
close_list(void)
{
	event(yaml_sequence_end_event_initialize(&e));
}

static void
text(const char *key, const char *value)
{
	scalar(key, false);
	scalar(value, true);
}

static void
number(const char *key, uint64_t value)
{
	scalar(key, false);
	scalar(emit_number(value), false);
}

static void
tensors(const struct plan *p)
{
	static const char *const kinds[] = { "offset", "stream", "stream gradient" };
	const struct graph *g = p->graph;

	open_list("parameters", false);
	for (tensor_id i = 0; (i = tensor_next(g, T_PARAM, i));) {
		const struct tensor *t = &g->tensor.a[i];
		if (!plan_layers(p, i))
			continue;
		open_map(NULL, true);
		text("name", t->hf);
		text("tensor", t->name);
		open_list("shape", true);
		for (uint8_t d = 0; d < t->ndims; d++)
			scalar(emit_number(t->dim[d]), false);
		close_list();
		number("layers", plan_layers(p, i));
		number("group", t->param_group);
		close_map();
	}
	close_list();
	open_list("buffers", false);
	for (tensor_id i = 1; i < g->tensor.n; i++) {
		const struct tensor *t = &g->tensor.a[i];
		const struct place *pl = &p->place[i];
		if (!pl->bytes)
			continue;
		open_map(NULL, true);
		text("tensor", t->name);
		text("type", emit_shape(t));
		text("region", plan_region_names[pl->region]);
		text("place", kinds[pl->kind]);
		number("offset", pl->off);
		number("bytes", pl->bytes);
		number("stride", pl->stride);
		number("layers",
		    pl->kind == DSTREAM || pl->region == R_SCRATCH ? 1 : plan_layers(p, i));
		close_map();
	}
	close_list();
}

/* A rank's arena: of one stage, where there are several. */
static void
memory(const struct plan *p)
{
	number("arena_bytes", p->arena_bytes);
	open_map("regions", false);
	for (int r = 0; r < N_REGIONS; r++)
		if (p->region_bytes[r]) {
			open_map(plan_region_names[r], true);
			number("offset", p->region_off[r]);
			number("bytes", p->region_bytes[r]);
			close_map();
		}
	close_map();
	tensors(p);
}

void
emit_manifest(const struct plan *p, const char *fingerprint, struct tree *t)
{
	const struct graph *g = p->graph;
	const struct om_mesh *m = &p->shard->mesh;
	struct buf out = { 0 };

	if (!yaml_emitter_initialize(&emitter))
		internal("manifest: libyaml: out of memory");
	yaml_emitter_set_output(&emitter, append, &out);
	yaml_emitter_set_width(&emitter, -1);
	event(yaml_stream_start_event_initialize(&e, YAML_UTF8_ENCODING));
	event(yaml_document_start_event_initialize(&e, NULL, NULL, NULL, 1));
	open_map(NULL, false);
	number("schema", 1);
	text("olmogen", OLMOGEN_VERSION);
	text("name", spec_str(g->trainer, F_trainer_name));
	text("target", p->target->name);
	text("fingerprint", fingerprint);
	open_map("precision", true);
	text("weights", g->format[ROLE_WEIGHT]->name);
	text("gradients", g->format[ROLE_GRAD]->name);
	text("optimizer", g->format[ROLE_MASTER]->name);
	text("moments", g->format[ROLE_MOMENT]->name);
	close_map();
	open_map("ranks", true);
	for (enum om_group i = OM_WORLD; i < OM_N_GROUPS; i++)
		number(om_group_name[i], m->size[i]);
	close_map();
	number("parameters_total", g->params_total);
	number("parameters_active", g->params_active);
	number("flops_token", g->flops_token);
	number("tokens_microbatch", g->T);
	number("microbatches", g->microbatches);
	if (p->n_stages > 1) {
		open_list("stages", false);
		for (uint32_t i = 0; i < p->n_stages; i++) {
			open_map(NULL, false);
			memory(&p[i]);
			close_map();
		}
		close_list();
	} else {
		memory(p);
	}
	open_list("kernels", false);
	for (uint32_t i = 1; i < p->inst->n; i++) {
		open_map(NULL, true);
		text("name", p->inst->a[i].name);
		text("source", xprintf("kernels/%s", p->inst->a[i].kernel->file));
		text("used_by", p->inst->a[i].used_by.s);
		close_map();
	}
	close_list();
	open_list("libraries", false);
	for (const struct library *l = plan_libraries; l->name; l++)
		if (plan_uses(p, l)) {
			open_map(NULL, true);
			text("name", l->name);
			text("file", l->file);
			text("licence", l->licence);
			close_map();
		}
	close_list();
	open_list("files", false);
	for (uint32_t i = 0; i < t->n; i++) {
		open_map(NULL, true);
		text("file", t->a[i].path);
		text("sha256", sha256_hex(t->a[i].text.s, t->a[i].text.n));
		scalar("generated", false);
		scalar(t->a[i].verbatim ? "false" : "true", false);
		close_map();
	}
	close_list();
	close_map();
	event(yaml_document_end_event_initialize(&e, 1));
	event(yaml_stream_end_event_initialize(&e));
	yaml_emitter_delete(&emitter);
	*tree_file(t, "manifest.yaml") = out;
}
