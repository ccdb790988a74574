/*
 * Hugging Face's side of a model: which of transformers' architectures it is, its config.json, and
 * the names that differ from ours. A family is a row; the first one whose conditions hold is taken.
 */
#include <string.h>

#include "olmogen.h"

static const struct hf_family families[] = {
	{ "LlamaForCausalLM", "llama", "pre", "none", NO, NO, EITHER, EITHER, false },
	{ "Qwen3ForCausalLM", "qwen3", "pre", "head", NO, NO, EITHER, EITHER, false },
	{ "Olmo2ForCausalLM", "olmo2", "post", "full", NO, NO, EITHER, EITHER, true },
	{ "Olmo3ForCausalLM", "olmo3", "post", "full", NO, YES, EITHER, EITHER, true },
	{ "OlmoeForCausalLM", "olmoe", "pre", "full", YES, NO, EITHER, EITHER, true },
	{ "Qwen3MoeForCausalLM", "qwen3_moe", "pre", "head", EITHER, NO, EITHER, EITHER, false },
	{ "MixtralForCausalLM", "mixtral", "pre", "none", YES, NO, YES, NO, false },
};

const struct hf_family *
hf_family(const char *model_type)
{
	for (unsigned i = 0; i < LEN(families) && model_type; i++)
		if (!strcmp(families[i].model_type, model_type))
			return &families[i];
	return NULL;
}

/* What all layers have in common, and what no family knows. */
struct facts {
	const struct object *at, *moe, *mlp, *router;
	const struct object *rope[2]; /* of full attention, of sliding windows */
	int has_moe, windows;
	int64_t window;
	const char *odd; /* a reason that no family can have this model */
};

static struct facts
find_facts(const struct graph *g)
{
	const struct object *tr = spec_obj(g->trainer, F_trainer_model);
	const struct object *em = spec_obj(tr, F_transformer_embedding);
	struct facts f = { .has_moe = EITHER };
	uint32_t moes = 0, windows = 0;

	for (uint32_t s = g->embed + 1; s < g->head; s++) {
		const struct segment *seg = &g->seg.a[s];
		const struct object *at = seg->attention, *ffn = seg->ffn;
		static const enum field_id same[] = { F_attention_n_heads, F_attention_n_kv_heads,
			F_attention_head_dim };
		for (unsigned i = 0; f.at && i < LEN(same); i++)
			if (spec_int(at, same[i]) != spec_int(f.at, same[i]))
				f.odd = "attention's sizes differ by layer";
		if (f.at &&
		    (strcmp(
			 spec_str(at, F_attention_qk_norm), spec_str(f.at, F_attention_qk_norm)) ||
			strcmp(spec_str(at, F_attention_bias), spec_str(f.at, F_attention_bias))))
			f.odd = "attention's options differ by layer";
		f.at = at;
		int64_t w = spec_int(at, F_attention_window);
		const struct object *rope = spec_obj(at, F_attention_rope), **r = &f.rope[w != 0];
		if (*r && !spec_equal(*r, rope))
			f.odd = "rotary embeddings that differ by layer";
		if (rope->type != OBJ_rope)
			f.odd = "attention without rotary embedding";
		*r = rope;
		if (w && f.window && w != f.window)
			f.odd = "windows of several sizes";
		f.window = w ? w : f.window;
		windows += w ? seg->nlayers : 0;
		const char *act =
		    spec_str(ffn, ffn->type == OBJ_moe ? F_moe_activation : F_mlp_activation);
		if (strcmp(act, "swiglu"))
			f.odd = xprintf("activation %s", act);
		const struct object **kind = ffn->type == OBJ_moe ? &f.moe : &f.mlp;
		if (*kind && !spec_equal(*kind, ffn))
			f.odd = "feed-forward layers of several sizes";
		*kind = ffn;
		moes += ffn->type == OBJ_moe ? seg->nlayers : 0;
	}
	f.has_moe = !moes ? NO : moes == g->n_layers ? YES : EITHER;
	f.windows = windows ? YES : NO;
	for (int k = 0; k < 2; k++)
		f.rope[k] = f.rope[k] ? f.rope[k] : f.rope[!k];
	if (!strcmp(spec_str(f.at, F_attention_bias), "qkv"))
		f.odd = "biases of q, k and v only";
	if (spec_num(em, F_embedding_scale) != 1 || spec_int(em, F_embedding_norm))
		f.odd = "a scaled or normalised embedding";
	if (f.moe) {
		f.router = spec_obj(f.moe, F_moe_router);
		if (spec_int(f.moe, F_moe_shared_hidden_size))
			f.odd = "a shared expert (tensor mlp.shared_expert)";
		else if (strcmp(spec_str(f.router, F_router_score), "softmax"))
			f.odd = "router.score other than softmax";
		else if (spec_num(f.router, F_router_weight_scale) != 1)
			f.odd = "router.weight_scale";
		else if (spec_int(f.router, F_router_top_groups) <
			 spec_int(f.router, F_router_n_groups))
			f.odd = "routing limited to groups";
		else if (spec_num(f.router, F_router_bias_gamma) > 0)
			f.odd = "router.bias_gamma (tensor mlp.gate.e_score_correction_bias)";
		else if (strcmp(spec_str(f.router, F_router_routing), "learned"))
			f.odd = "router.routing other than learned";
	}
	return f;
}

static const struct hf_family *
find_family(const struct graph *g, const struct facts *f)
{
	const struct object *tr = spec_obj(g->trainer, F_trainer_model);
	bool biased = strcmp(spec_str(f->at, F_attention_bias), "none") != 0;
	bool square =
	    spec_int(f->at, F_attention_n_heads) * spec_int(f->at, F_attention_head_dim) ==
	    spec_int(tr, F_transformer_d_model);

	for (unsigned i = 0; i < LEN(families) && !f->odd; i++) {
		const struct hf_family *m = &families[i];
		if (strcmp(m->placement, spec_str(tr, F_transformer_norm_placement)) ||
		    strcmp(m->qk_norm, spec_str(f->at, F_attention_qk_norm)) ||
		    (m->moe != EITHER && m->moe != f->has_moe) ||
		    (m->moe == EITHER && f->has_moe == NO) || m->window != f->windows ||
		    (m->square && !square) || (m->bias == NO && biased) ||
		    (m->normalize == YES && f->router && !spec_int(f->router, F_router_normalize)))
			continue;
		return m;
	}
	return NULL;
}

/* The members of a rope_parameters, as transformers 5 has them. */
static void
rope_json(const struct object *rope, struct buf *b)
{
	const struct object *sc = spec_obj(rope, F_rope_scaling);

	buf_printf(b, "\"rope_theta\": %s", emit_double(spec_num(rope, F_rope_theta)));
	if (sc->type == OBJ_unscaled)
		buf_puts(b, ", \"rope_type\": \"default\"");
	else if (sc->type == OBJ_linear_scaling)
		buf_printf(b, ", \"rope_type\": \"linear\", \"factor\": %s",
		    emit_double(spec_num(sc, F_linear_scaling_factor)));
	else if (sc->type == OBJ_yarn)
		buf_printf(b,
		    ", \"rope_type\": \"yarn\", \"factor\": %s, "
		    "\"original_max_position_embeddings\": "
		    "%lld, \"beta_fast\": %s, \"beta_slow\": %s, \"attention_factor\": %s",
		    emit_double(spec_num(sc, F_yarn_factor)),
		    (long long)spec_int(sc, F_yarn_original_length),
		    emit_double(spec_num(sc, F_yarn_beta_fast)),
		    emit_double(spec_num(sc, F_yarn_beta_slow)),
		    emit_double(spec_num(sc, F_yarn_attention_factor)));
	else
		buf_printf(b,
		    ", \"rope_type\": \"llama3\", \"factor\": %s, "
		    "\"original_max_position_embeddings\": "
		    "%lld, \"low_freq_factor\": %s, \"high_freq_factor\": %s",
		    emit_double(spec_num(sc, F_llama3_factor)),
		    (long long)spec_int(sc, F_llama3_original_length),
		    emit_double(spec_num(sc, F_llama3_low_freq_factor)),
		    emit_double(spec_num(sc, F_llama3_high_freq_factor)));
}

/*
 * By layer type where there are windows; and, for older versions, rope_theta and rope_scaling of
 * all layers.
 */
static void
positions(const struct facts *f, int64_t length, struct buf *b)
{
	buf_printf(
	    b, "  \"max_position_embeddings\": %lld,\n  \"rope_parameters\": {", (long long)length);
	if (f->windows) {
		buf_puts(b, "\n    \"full_attention\": {");
		rope_json(f->rope[0], b);
		buf_puts(b, "},\n    \"sliding_attention\": {");
		rope_json(f->rope[1], b);
		buf_puts(b, "}\n  },\n");
		return;
	}
	rope_json(f->rope[0], b);
	buf_printf(
	    b, "},\n  \"rope_theta\": %s,\n", emit_double(spec_num(f->rope[0], F_rope_theta)));
	if (spec_obj(f->rope[0], F_rope_scaling)->type != OBJ_unscaled) {
		buf_puts(b, "  \"rope_scaling\": {");
		rope_json(f->rope[0], b);
		buf_puts(b, "},\n");
	}
}

static void
layer_types(const struct graph *g, struct buf *b)
{
	buf_puts(b, "  \"layer_types\": [");
	for (uint32_t l = 0; l < g->n_layers; l++)
		buf_printf(b, "%s\"%s_attention\"", l ? ", " : "",
		    spec_int(g->seg.a[g->kind_of[l]].attention, F_attention_window) ? "sliding"
										    : "full");
	buf_puts(b, "],\n");
}

/*
 * The model's config.json; NULL, and the reason, if no architecture of transformers is this model.
 */
const char *
hf_config(const struct graph *g, const char **reason)
{
	const struct object *tr = spec_obj(g->trainer, F_trainer_model);
	const struct object *pr = spec_obj(g->trainer, F_trainer_precision);
	struct facts f = find_facts(g);
	const struct hf_family *m = find_family(g, &f);
	struct buf b = { 0 };

	if (!m) {
		*reason = f.odd
			      ? f.odd
			      : "norm placement, QK norm, windows and experts in this combination";
		return NULL;
	}
	int64_t hidden =
	    f.mlp ? spec_int(f.mlp, F_mlp_hidden_size) : spec_int(f.moe, F_moe_hidden_size);
	buf_printf(&b, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
	    m->architecture, m->model_type);
	buf_printf(
	    &b, "  \"vocab_size\": %lld,\n", (long long)spec_int(tr, F_transformer_vocab_size));
	buf_printf(
	    &b, "  \"hidden_size\": %lld,\n", (long long)spec_int(tr, F_transformer_d_model));
	buf_printf(&b, "  \"intermediate_size\": %lld,\n", (long long)hidden);
	buf_printf(&b, "  \"num_hidden_layers\": %u,\n", g->n_layers);
	buf_printf(&b, "  \"num_attention_heads\": %lld,\n",
	    (long long)spec_int(f.at, F_attention_n_heads));
	buf_printf(&b, "  \"num_key_value_heads\": %lld,\n",
	    (long long)spec_int(f.at, F_attention_n_kv_heads));
	buf_printf(&b, "  \"head_dim\": %lld,\n", (long long)spec_int(f.at, F_attention_head_dim));
	buf_puts(&b, "  \"hidden_act\": \"silu\",\n");
	buf_printf(&b, "  \"rms_norm_eps\": %s,\n",
	    emit_double(spec_num(spec_obj(tr, F_transformer_norm), F_rms_norm_eps)));
	positions(&f, (int64_t)g->S, &b);
	buf_printf(&b, "  \"attention_bias\": %s,\n",
	    strcmp(spec_str(f.at, F_attention_bias), "none") ? "true" : "false");
	if (f.windows) {
		buf_printf(&b, "  \"sliding_window\": %lld,\n", (long long)f.window);
		layer_types(g, &b);
	}
	if (f.moe) {
		buf_printf(&b, "  \"num_experts\": %lld,\n  \"num_local_experts\": %lld,\n",
		    (long long)spec_int(f.moe, F_moe_num_experts),
		    (long long)spec_int(f.moe, F_moe_num_experts));
		buf_printf(&b, "  \"num_experts_per_tok\": %lld,\n",
		    (long long)spec_int(f.moe, F_moe_top_k));
		buf_printf(&b, "  \"moe_intermediate_size\": %lld,\n",
		    (long long)spec_int(f.moe, F_moe_hidden_size));
		buf_printf(&b, "  \"norm_topk_prob\": %s,\n",
		    spec_int(f.router, F_router_normalize) ? "true" : "false");
		buf_printf(&b, "  \"router_aux_loss_coef\": %s,\n",
		    emit_double(spec_num(f.router, F_router_load_balance)));
		buf_puts(&b, "  \"decoder_sparse_step\": 1,\n  \"mlp_only_layers\": [");
		const char *sep = "";
		for (uint32_t l = 0; l < g->n_layers; l++)
			if (g->seg.a[g->kind_of[l]].ffn->type != OBJ_moe) {
				buf_printf(&b, "%s%u", sep, l);
				sep = ", ";
			}
		buf_puts(&b, "],\n");
	}
	buf_printf(&b, "  \"tie_word_embeddings\": %s,\n",
	    spec_int(spec_obj(tr, F_transformer_lm_head), F_lm_head_tied) ? "true" : "false");
	buf_printf(&b, "  \"torch_dtype\": \"%s\"\n}\n",
	    strcmp(spec_str(pr, F_precision_weights), "bf16") ? "float32" : "bfloat16");
	return b.s;
}

const struct hf_family *
hf_family_of(const struct graph *g)
{
	struct facts f = find_facts(g);

	return find_family(g, &f);
}

/*
 * The name under which transformers stores a parameter of this model; ours where that is the same.
 */
const char *
hf_name(const struct hf_family *m, const char *name)
{
	static const char *const mixtral[][2] = {
		{ "mlp.gate.weight", "block_sparse_moe.gate.weight" },
		{ "mlp.experts.%e.gate_proj.weight", "block_sparse_moe.experts.%e.w1.weight" },
		{ "mlp.experts.%e.up_proj.weight", "block_sparse_moe.experts.%e.w3.weight" },
		{ "mlp.experts.%e.down_proj.weight", "block_sparse_moe.experts.%e.w2.weight" },
	};
	const char *tail = strstr(name, "mlp.");

	for (unsigned i = 0; m && !strcmp(m->model_type, "mixtral") && tail && i < LEN(mixtral);
	     i++)
		if (!strcmp(tail, mixtral[i][0]))
			return xprintf("%.*s%s", (int)(tail - name), name, mixtral[i][1]);
	return name;
}
