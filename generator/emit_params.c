/* src/params.c: the tables by which the runtime knows the parameters, the experts and the step. */
#include <string.h>

#include "olmogen.h"

static tensor_id
state_of(const struct graph *g, tensor_id param, const char *which)
{
	for (tensor_id t = 1; t < g->tensor.n; t++)
		if (g->tensor.a[t].class == T_STATE && g->tensor.a[t].param == param &&
		    !strncmp(g->tensor.a[t].name + strlen(g->seg.a[g->tensor.a[t].seg].name) + 1,
			which, strlen(which)))
			return t;
	internal("%s has no state %s", g->tensor.a[param].name, which);
}

static void
layer_lists(const struct plan *p, struct buf *b)
{
	const struct graph *g = p->graph;

	for (uint32_t s = g->embed + 1; s < g->head; s++) {
		struct buf line = { 0 };
		buf_printf(&line, "static const uint32_t %s_layers[] = { ", g->seg.a[s].name);
		for (uint32_t i = 0; i < g->seg.a[s].nlayers; i++)
			buf_printf(&line, "%u, ", g->seg.a[s].layer[i]);
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
	bool bf16 = !strcmp(dtype_format(p, DT_ACT), "bf16");
	uint32_t n = 0;

	for (tensor_id i = 1; i < g->tensor.n; i++) {
		const struct tensor *t = &g->tensor.a[i];
		const struct segment *s = &g->seg.a[t->seg];
		uint8_t lead = t->experts;
		if (t->class != class)
			continue;
		n++;
		buf_printf(b, "\t{\n\t\t.name = \"%s\",\n", t->hf);
		const char *exported = hf_name(g, t->hf);
		if (strcmp(exported, t->hf))
			buf_printf(b, "\t\t.hf_name = \"%s\",\n", exported);
		if (class == T_BUFFER) {
			emit_wrapped(b, 2, xprintf(".weight = OM_OFF_%s,", t->name));
		} else {
			emit_wrapped(b, 2,
			    xprintf(".weight = OM_OFF_%s, .grad = OM_OFF_%s,", t->name,
				g->tensor.a[t->grad].name));
			emit_wrapped(b, 2,
			    xprintf(".m = OM_OFF_%s, .v = OM_OFF_%s,",
				g->tensor.a[state_of(g, i, "m_")].name,
				g->tensor.a[state_of(g, i, "v_")].name));
		}
		if (bf16 && class == T_PARAM)
			emit_wrapped(b, 2,
			    xprintf(".master = OM_OFF_%s,",
				g->tensor.a[state_of(g, i, "master_")].name));
		struct buf line = { 0 };
		buf_printf(&line, ".numel = %llu, .dim = { ",
		    (unsigned long long)(tensor_elems(t) / (lead ? t->dim[0] : 1)));
		for (uint8_t d = lead; d < t->ndims; d++)
			buf_printf(&line, "%llu%s", (unsigned long long)t->dim[d],
			    d + 1 < t->ndims ? ", " : "");
		buf_printf(&line, " }, .ndims = %u, .experts = %llu,", t->ndims - lead,
		    (unsigned long long)(lead ? t->dim[0] : 0));
		emit_wrapped(b, 2, line.s);
		buf_printf(b, "\t\t.layer = %s, .nlayers = %u, .init = %s, .group = %u,\n\t},\n",
		    s->nlayers ? xprintf("%s_layers", s->name) : "NULL",
		    s->nlayers ? s->nlayers : 1, inits[t->init], t->group);
	}
	return n;
}

static void
params(const struct plan *p, uint32_t *nparams, uint32_t *nbuffers, struct buf *b)
{
	const struct graph *g = p->graph;

	buf_puts(b, "\nstatic const struct om_param params[] = {\n");
	*nparams = param_rows(p, T_PARAM, b);
	*nbuffers = param_rows(p, T_BUFFER, b);
	buf_puts(b, "};\n\nstatic const struct om_group groups[] = {\n");
	for (uint32_t i = 0; i < g->group.n; i++)
		buf_printf(b, "\t{ .weight_decay = %s, .lr_scale = %s },\n",
		    emit_double(g->group.a[i].weight_decay), emit_double(g->group.a[i].lr_scale));
	buf_puts(b, "};\n");
}

static uint32_t
moes(const struct plan *p, struct buf *b)
{
	const struct graph *g = p->graph;
	uint32_t n = 0;

	for (uint32_t s = g->embed + 1; s < g->head; s++) {
		const struct op *o = graph_route(&g->seg.a[s]);
		if (!o)
			continue;
		const struct object *m = g->seg.a[s].ffn;
		const struct object *r = spec_obj(m, F_moe_router);
		const char *load = g->tensor.a[op_arg(o, "load")].name;
		const char *aux = g->tensor.a[op_arg(o, "aux")].name;
		if (!n++)
			buf_puts(b, "\nstatic const struct om_moe moes[] = {\n");
		buf_puts(b, "\t{\n");
		emit_wrapped(
		    b, 2, xprintf(".load = OM_OFF_%s, .load_stride = OM_STRIDE_%s,", load, load));
		emit_wrapped(
		    b, 2, xprintf(".aux = OM_OFF_%s, .aux_stride = OM_STRIDE_%s,", aux, aux));
		if (op_arg(o, "draw"))
			emit_wrapped(b, 2,
			    xprintf(".draw = OM_OFF_%s,", g->tensor.a[op_arg(o, "draw")].name));
		emit_wrapped(b, 2,
		    xprintf(".layer = %s_layers, .nlayers = %u, .experts = %lld, .top_k = %lld,",
			g->seg.a[s].name, g->seg.a[s].nlayers,
			(long long)spec_int(m, F_moe_num_experts),
			(long long)spec_int(m, F_moe_top_k)));
		buf_printf(b, "\t\t.load_balance = %s, .z_loss = %s,\n\t},\n",
		    emit_double(spec_num(r, F_router_load_balance)),
		    emit_double(spec_num(r, F_router_z_loss)));
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

void
emit_params(const struct plan *p, const char *fingerprint, struct tree *t)
{
	const struct graph *g = p->graph;
	struct buf *b = tree_file(t, "src/params.c");
	uint32_t nmoe, nparams, nbuffers;

	emit_banner(p, "parameters, groups, experts: what the runtime has to know", "/*", "*/", b);
	buf_puts(b, "#include <stddef.h>\n\n#include \"config.h\"\n#include \"launch.h\"\n#include "
		    "\"layout.h\"\n"
		    "#include \"model.h\"\n#include \"om.h\"\n#include \"step.h\"\n\n");
	layer_lists(p, b);
	params(p, &nparams, &nbuffers, b);
	nmoe = moes(p, b);
	buf_puts(b, "\nconst struct om_model om_model = {\n\t.abi = 1,\n");
	buf_printf(b, "\t.name = \"%s\",\n\t.target = \"%s\",\n\t.version = \"%s\",\n",
	    spec_str(g->trainer, F_trainer_name), p->target->name, OLMOGEN_VERSION);
	buf_printf(b, "\t.fingerprint = \"%s\",\n", fingerprint);
	buf_printf(b, "\t.weights = \"%s\",\n\t.grads = \"%s\",\n\t.optimizer = \"%s\",\n",
	    dtype_format(p, DT_ACT), dtype_format(p, DT_GRAD), dtype_format(p, DT_OPT));
	buf_puts(b, "\t.manifest = om_manifest,\n\t.plan = om_plan,\n");
	buf_puts(b,
	    "\t.vocab = OM_VOCAB,\n\t.seq = OM_SEQ,\n\t.micro = OM_MICRO,\n\t.global = OM_GLOBAL,\n"
	    "\t.layers = OM_N_LAYERS,\n\t.microbatches = OM_MICROBATCHES,\n"
	    "\t.params_total = OM_PARAMS_TOTAL,\n\t.params_active = OM_PARAMS_ACTIVE,\n"
	    "\t.flops_token = OM_FLOPS_TOKEN,\n");
	if (p->target->tflops > 0)
		buf_printf(b, "\t.peak = %s,\n", emit_double(p->target->tflops * 1e12));
	buf_printf(b, "\t.real = %llu,\n\t.weight_size = %llu,\n",
	    (unsigned long long)dtype_bytes(p, DT_OPT), (unsigned long long)dtype_bytes(p, DT_ACT));
	buf_puts(b, "\t.init_std = OM_INIT_STD,\n"
		    "\t.beta1 = OM_BETA1,\n\t.beta2 = OM_BETA2,\n\t.clip_norm = OM_CLIP_NORM,\n"
		    "\t.arena_bytes = OM_ARENA_BYTES,\n"
		    "\t.weight_off = OM_WEIGHT,\n\t.weight_bytes = OM_WEIGHT_BYTES,\n"
		    "\t.grad_off = OM_GRAD,\n\t.grad_bytes = OM_GRAD_BYTES,\n"
		    "\t.state_off = OM_STATE,\n\t.state_bytes = OM_STATE_BYTES,\n"
		    "\t.stat_off = OM_STAT,\n\t.stat_bytes = OM_STAT_BYTES,\n");
	buf_puts(b, "\t.token_off = OM_OFF_embed_tokens,\n\t.label_off = OM_OFF_embed_labels,\n"
		    "\t.ctl_off = OM_OFF_update_ctl,\n\t.loss_off = OM_OFF_head_loss,\n");
	buf_printf(b,
	    "\t.param = params,\n\t.nparams = %u,\n\t.group = groups,\n\t.ngroups = %u,\n", nparams,
	    g->group.n);
	if (nbuffers)
		buf_printf(b, "\t.nbuffers = %u,\n", nbuffers);
	const char *reason = NULL, *json = hf_config(g, &reason);
	if (json) {
		buf_puts(b, "\t.hf_config =");
		for (; *json; json += strcspn(json, "\n") + 1)
			quoted_line(json, strcspn(json, "\n"), b);
		buf_puts(b, ",\n");
	} else {
		buf_printf(b, "\t.hf_refusal = \"%s\",\n", reason);
	}
	if (nmoe)
		buf_printf(b, "\t.moe = moes,\n\t.nmoe = %u,\n", nmoe);
	buf_puts(b, "\t.head_z_loss = OM_HEAD_Z_LOSS,\n"
		    "\t.op = om_ops,\n\t.nops = OM_N_OPS,\n\t.init = om_init,\n\t.zero = om_zero,\n"
		    "\t.forward = om_forward,\n\t.backward = om_backward,\n\t.eval = "
		    "om_evaluate,\n\t.update = om_update,\n");
	if (p->decode)
		buf_puts(b, "\t.decode = om_decode,\n\t.decode_token_off = "
			    "OM_OFF_decode_embed_token,\n\t.decode_position_off = "
			    "OM_OFF_decode_embed_position,\n\t.logits_off = "
			    "OM_OFF_decode_head_logits,\n");
	buf_puts(b, "};\n");

	b = tree_file(t, "src/model.h");
	emit_banner(p, "the model as the runtime sees it", "/*", "*/", b);
	buf_puts(b, "#ifndef OM_MODEL_H\n#define OM_MODEL_H\n\n#include \"om.h\"\n\n"
		    "extern const char om_manifest[], om_plan[]; /* manifest.yaml and PLAN.txt, in "
		    "main.c */\n"
		    "extern const struct om_model om_model;\n\n#endif\n");
}
