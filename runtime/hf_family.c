/*
 * transformers' architectures: what a config.json of each means where it says nothing, how each
 * stores weights, and in what two models differ.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hf_config.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

const struct om_hf_row om_hf_keys[OM_HF_KEYS] = {
#define HF_KEY(key, use, type, lo, hi) { #key, OM_HF_##use, OM_HF_##type, lo, hi },
#include "hf_key.def"
#undef HF_KEY
};

#define NO OM_HF_NO
#define YES OM_HF_YES
#define EITHER OM_HF_EITHER
#define UNSET OM_HF_UNSET
#define HEADS OM_HF_HEADS
#define WIDTH OM_HF_WIDTH
#define ZERO OM_HF_ZERO
#define K(key) [OM_HF_##key]
/* A model is exported as the first family whose conditions hold. */
const struct om_hf_family om_hf_families[OM_HF_FAMILIES] = {
	{ "LlamaForCausalLM", "llama", "pre", "none", OM_HF_DENSE, NO, EITHER, .heads_divide = true,
	    .theta = 1e4,
	    .missing = { K(vocab_size) = 32000, K(hidden_size) = 4096, K(intermediate_size) = 11008,
		K(num_hidden_layers) = 32, K(num_attention_heads) = 32,
		K(num_key_value_heads) = HEADS, K(max_position_embeddings) = 2048,
		K(rms_norm_eps) = 1e-6, K(attention_bias) = ZERO, K(mlp_bias) = ZERO } },
	{ "Qwen3ForCausalLM", "qwen3", "pre", "head", OM_HF_DENSE, NO, EITHER, OM_HF_TYPES,
	    .theta = 1e4,
	    .missing = { K(vocab_size) = 151936, K(hidden_size) = 4096,
		K(intermediate_size) = 22016, K(num_hidden_layers) = 32,
		K(num_attention_heads) = 32, K(num_key_value_heads) = 32, K(head_dim) = 128,
		K(max_position_embeddings) = 32768, K(rms_norm_eps) = 1e-6,
		K(attention_bias) = ZERO, K(use_sliding_window) = ZERO, K(sliding_window) = 4096,
		K(max_window_layers) = 28 } },
	{ "Olmo2ForCausalLM", "olmo2", "post", "full", OM_HF_DENSE, NO, EITHER, .theta = 1e4,
	    .missing = { K(vocab_size) = 50304, K(hidden_size) = 4096, K(intermediate_size) = 11008,
		K(num_hidden_layers) = 32, K(num_attention_heads) = 32,
		K(num_key_value_heads) = HEADS, K(max_position_embeddings) = 2048,
		K(rms_norm_eps) = 1e-5, K(attention_bias) = ZERO } },
	{ "Olmo3ForCausalLM", "olmo3", "post", "full", OM_HF_DENSE, NO, EITHER, OM_HF_TYPES,
	    OM_HF_THREE, .rope_by_type = true, .theta = 5e5,
	    .missing = { K(vocab_size) = 50304, K(hidden_size) = 4096, K(intermediate_size) = 11008,
		K(num_hidden_layers) = 32, K(num_attention_heads) = 32,
		K(num_key_value_heads) = HEADS, K(max_position_embeddings) = 2048,
		K(rms_norm_eps) = 1e-5, K(attention_bias) = ZERO, K(sliding_window) = 4096 } },
	{ "OlmoeForCausalLM", "olmoe", "pre", "full", OM_HF_EVERY, EITHER, EITHER, .square = true,
	    .theta = 1e4,
	    .missing = { K(vocab_size) = 50304, K(hidden_size) = 2048, K(intermediate_size) = 2048,
		K(num_hidden_layers) = 16, K(num_attention_heads) = 16,
		K(num_key_value_heads) = HEADS, K(max_position_embeddings) = 4096,
		K(rms_norm_eps) = 1e-5, K(attention_bias) = ZERO, K(sliding_window) = UNSET,
		K(num_experts) = 64, K(num_experts_per_tok) = 8, K(norm_topk_prob) = ZERO,
		K(router_aux_loss_coef) = 0.01, K(output_router_logits) = ZERO,
		K(clip_qkv) = UNSET } },
	{ "Qwen3MoeForCausalLM", "qwen3_moe", "pre", "head", OM_HF_STEP, EITHER, EITHER, OM_HF_ALL,
	    .theta = 1e4,
	    .missing = { K(vocab_size) = 151936, K(hidden_size) = 2048, K(intermediate_size) = 6144,
		K(num_hidden_layers) = 24, K(num_attention_heads) = 32, K(num_key_value_heads) = 4,
		K(max_position_embeddings) = 32768, K(rms_norm_eps) = 1e-6,
		K(attention_bias) = ZERO, K(use_sliding_window) = ZERO, K(sliding_window) = 4096,
		K(num_experts) = 128, K(num_experts_per_tok) = 8, K(moe_intermediate_size) = 768,
		K(norm_topk_prob) = ZERO, K(decoder_sparse_step) = 1,
		K(router_aux_loss_coef) = 0.001, K(output_router_logits) = ZERO } },
	{ "MixtralForCausalLM", "mixtral", "pre", "none", OM_HF_EVERY, YES, NO, OM_HF_ALL,
	    .theta = 1e6,
	    .missing = { K(vocab_size) = 32000, K(hidden_size) = 4096, K(intermediate_size) = 14336,
		K(num_hidden_layers) = 32, K(num_attention_heads) = 32, K(num_key_value_heads) = 8,
		K(max_position_embeddings) = 131072, K(rms_norm_eps) = 1e-5,
		K(sliding_window) = UNSET, K(num_experts) = 8, K(num_experts_per_tok) = 2,
		K(router_aux_loss_coef) = 0.001, K(output_router_logits) = ZERO,
		K(router_jitter_noise) = ZERO } },
	{ "FlexOlmoForCausalLM", "flex_olmo", "post", "full", OM_HF_EVERY, EITHER, EITHER,
	    .theta = 5e5,
	    .missing = { K(vocab_size) = 100352, K(hidden_size) = 4096,
		K(intermediate_size) = 11008, K(num_hidden_layers) = 32,
		K(num_attention_heads) = 32, K(num_key_value_heads) = HEADS,
		K(max_position_embeddings) = 4096, K(rms_norm_eps) = 1e-6, K(attention_bias) = ZERO,
		K(num_experts) = 7, K(num_experts_per_tok) = 5, K(norm_topk_prob) = ZERO,
		K(router_aux_loss_coef) = 0.01, K(output_router_logits) = ZERO } },
	{ "Dots1ForCausalLM", "dots1", "pre", "head", OM_HF_AFTER, EITHER, EITHER, OM_HF_TYPES,
	    .sigmoid = true, .choice_bias = true, .theta = 1e4,
	    .missing = { K(vocab_size) = 152064, K(hidden_size) = 4608,
		K(intermediate_size) = 10944, K(num_hidden_layers) = 62,
		K(num_attention_heads) = 32, K(num_key_value_heads) = 32,
		K(max_position_embeddings) = 2048, K(rms_norm_eps) = 1e-6, K(attention_bias) = ZERO,
		K(sliding_window) = 4096, K(max_window_layers) = 62, K(num_experts) = UNSET,
		K(num_experts_per_tok) = UNSET, K(moe_intermediate_size) = 1408,
		K(n_shared_experts) = UNSET, K(norm_topk_prob) = ZERO, K(routed_scaling_factor) = 1,
		K(n_group) = 1, K(topk_group) = 1, K(first_k_dense_replace) = ZERO,
		K(output_router_logits) = ZERO } },
	{ "Glm4MoeForCausalLM", "glm4_moe", "pre", "head", OM_HF_AFTER, EITHER, EITHER,
	    .sigmoid = true, .choice_bias = true, .open_output = true, .more_layers = true,
	    .theta = 1e4,
	    .missing = { K(vocab_size) = 151552, K(hidden_size) = 4096,
		K(intermediate_size) = 10944, K(num_hidden_layers) = 46,
		K(num_attention_heads) = 96, K(num_key_value_heads) = 8,
		K(max_position_embeddings) = 131072, K(rms_norm_eps) = 1e-5,
		K(attention_bias) = ZERO, K(use_qk_norm) = ZERO, K(num_experts) = 128,
		K(num_experts_per_tok) = 8, K(moe_intermediate_size) = 1408,
		K(n_shared_experts) = 1, K(norm_topk_prob) = 1, K(routed_scaling_factor) = 1,
		K(n_group) = 1, K(topk_group) = 1, K(first_k_dense_replace) = 1,
		K(output_router_logits) = ZERO, K(num_nextn_predict_layers) = 1,
		K(partial_rotary_factor) = 0.5 } },
	{ "SolarOpenForCausalLM", "solar_open", "pre", "none", OM_HF_EVERY, EITHER, EITHER,
	    .sigmoid = true, .choice_bias = true, .open_output = true, .theta = 1e6,
	    .missing = { K(vocab_size) = 196608, K(hidden_size) = 4096, K(num_hidden_layers) = 48,
		K(num_attention_heads) = 64, K(num_key_value_heads) = 8, K(head_dim) = 128,
		K(max_position_embeddings) = 131072, K(rms_norm_eps) = 1e-5,
		K(attention_bias) = ZERO, K(num_experts) = 128, K(num_experts_per_tok) = 8,
		K(moe_intermediate_size) = 1280, K(n_shared_experts) = 1, K(norm_topk_prob) = 1,
		K(routed_scaling_factor) = 1, K(n_group) = 1, K(topk_group) = 1,
		K(output_router_logits) = ZERO } },
	{ "HYV3ForCausalLM", "hy_v3", "pre", "head", OM_HF_LISTED, YES, EITHER, .sigmoid = true,
	    .choice_bias = true, .more_layers = true, .theta = 11158840,
	    .missing = { K(vocab_size) = 120832, K(hidden_size) = 4096,
		K(intermediate_size) = 13312, K(num_hidden_layers) = 80,
		K(num_attention_heads) = 64, K(num_key_value_heads) = 8, K(head_dim) = 128,
		K(max_position_embeddings) = 131072, K(rms_norm_eps) = 1e-5,
		K(attention_bias) = ZERO, K(num_experts) = 192, K(num_experts_per_tok) = 8,
		K(moe_intermediate_size) = 1536, K(n_shared_experts) = 1,
		K(routed_scaling_factor) = 2.826, K(initializer_range) = 0.006,
		K(output_router_logits) = ZERO, K(mlp_bias) = ZERO } },
	{ "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", "pre", "none", OM_HF_RANGE, YES, NO,
	    .choice_bias = true, .theta = 5e5,
	    .missing = { K(vocab_size) = 103424, K(hidden_size) = 2560,
		K(intermediate_size) = 12288, K(num_hidden_layers) = 28,
		K(num_attention_heads) = 20, K(num_key_value_heads) = 4,
		K(max_position_embeddings) = 131072, K(rms_norm_eps) = 1e-5,
		K(tie_word_embeddings) = 1, K(num_experts) = 64, K(num_experts_per_tok) = 6,
		K(moe_intermediate_size) = 1536, K(n_shared_experts) = 2,
		K(moe_layer_start_index) = 1, K(moe_layer_end_index) = UNSET,
		K(moe_layer_interval) = 1, K(router_aux_loss_coef) = 0.001,
		K(output_router_logits) = ZERO, K(use_bias) = ZERO, K(moe_norm_min) = 1e-12 } },
	{ "Qwen2MoeForCausalLM", "qwen2_moe", "pre", "none", OM_HF_STEP, EITHER, EITHER,
	    OM_HF_TYPES, OM_HF_EVEN, .open_output = true, .gated = true, .theta = 1e4,
	    .missing = { K(vocab_size) = 151936, K(hidden_size) = 2048, K(intermediate_size) = 5632,
		K(num_hidden_layers) = 24, K(num_attention_heads) = 16, K(num_key_value_heads) = 16,
		K(max_position_embeddings) = 32768, K(rms_norm_eps) = 1e-6, K(attention_bias) = 1,
		K(use_sliding_window) = ZERO, K(sliding_window) = 4096, K(max_window_layers) = 28,
		K(num_experts) = 60, K(num_experts_per_tok) = 4, K(moe_intermediate_size) = 1408,
		K(shared_expert_intermediate_size) = 5632, K(norm_topk_prob) = ZERO,
		K(decoder_sparse_step) = 1, K(router_aux_loss_coef) = 0.001,
		K(output_router_logits) = ZERO } },
};

const struct om_hf_family *
om_hf_family(const char *model_type)
{
	for (unsigned i = 0; i < OM_HF_FAMILIES && model_type; i++)
		if (strcmp(om_hf_families[i].model_type, model_type) == 0)
			return &om_hf_families[i];
	return NULL;
}

double
om_hf_missing(const struct om_hf_family *f, enum om_hf_key k)
{
	static const double common[OM_HF_KEYS] = { K(tie_word_embeddings) = ZERO,
		K(initializer_range) = 0.02, K(attention_dropout) = ZERO, K(head_dim) = WIDTH,
		K(partial_rotary_factor) = 1 };
	double x = f->missing[k] != 0 ? f->missing[k] : common[k];

	return x == 0 ? NAN : x == ZERO ? 0 : x;
}

/* What a family calls a key. */
struct called {
	const char *family;
	enum om_hf_key key;
	const char *name;
};
static const struct called spelt[] = {
#define HF_SPELT(family, key, name) { #family, OM_HF_##key, #name },
#include "hf_key.def"
#undef HF_SPELT
};
static const struct called also[] = {
#define HF_ALSO(family, key, name) { #family, OM_HF_##key, #name },
#include "hf_key.def"
#undef HF_ALSO
};

static const char *
find(const struct called *rows, size_t n, const struct om_hf_family *f, enum om_hf_key k)
{
	for (size_t i = 0; i < n; i++)
		if (rows[i].key == k && strcmp(rows[i].family, f->model_type) == 0)
			return rows[i].name;
	return NULL;
}

const char *
om_hf_key_name(const struct om_hf_family *f, enum om_hf_key k)
{
	const char *name = find(spelt, COUNT(spelt), f, k);

	return name ? name : om_hf_keys[k].key;
}

const char *
om_hf_other_name(const struct om_hf_family *f, enum om_hf_key k)
{
	return find(also, COUNT(also), f, k);
}

bool
om_hf_has_experts(const struct om_hf_family *f, const double *v, uint32_t layer)
{
	switch (f->moe) {
	case OM_HF_EVERY:
		return true;
	case OM_HF_STEP:
		return (layer + 1) % (uint32_t)v[OM_HF_decoder_sparse_step] == 0;
	case OM_HF_AFTER:
		return layer >= v[OM_HF_first_k_dense_replace];
	case OM_HF_LISTED:
		return layer > 0;
	case OM_HF_RANGE:
		return layer >= v[OM_HF_moe_layer_start_index] &&
		       (v[OM_HF_moe_layer_end_index] < 0 ||
			   layer <= v[OM_HF_moe_layer_end_index]) &&
		       (layer + 1) % (uint32_t)v[OM_HF_moe_layer_interval] == 0;
	default:
		return false;
	}
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Names behind "model.layers.N."; a star stands for the same on both sides. NULL: it has none. */
static const struct {
	const char *families, *ours, *theirs;
	enum om_hf_form form;
} stored[] = {
	{ "mixtral", "mlp.gate.weight", "block_sparse_moe.gate.weight", OM_HF_SAME },
	{ "mixtral", "mlp.experts.*.gate_proj.weight", "block_sparse_moe.experts.*.w1.weight",
	    OM_HF_SAME },
	{ "mixtral", "mlp.experts.*.up_proj.weight", "block_sparse_moe.experts.*.w3.weight",
	    OM_HF_SAME },
	{ "mixtral", "mlp.experts.*.down_proj.weight", "block_sparse_moe.experts.*.w2.weight",
	    OM_HF_SAME },
	{ "hy_v3", "mlp.gate.weight", "mlp.router.gate.weight", OM_HF_SAME },
	{ "hy_v3", "mlp.gate.e_score_correction_bias", "mlp.expert_bias", OM_HF_SAME },
	{ "hy_v3", "mlp.shared_expert.*", "mlp.shared_mlp.*", OM_HF_SAME },
	{ "dots1 glm4_moe solar_open ernie4_5_moe", "mlp.shared_expert.*", "mlp.shared_experts.*",
	    OM_HF_SAME },
	{ "ernie4_5_moe", "mlp.gate.e_score_correction_bias",
	    "mlp.moe_statics.e_score_correction_bias", OM_HF_ROW },
	{ "ernie4_5_moe", "self_attn.q_proj.weight", "self_attn.q_proj.weight", OM_HF_PAIRS },
	{ "ernie4_5_moe", "self_attn.k_proj.weight", "self_attn.k_proj.weight", OM_HF_PAIRS },
	{ "qwen2_moe", "mlp.shared_expert.down_proj.weight", "mlp.shared_expert.down_proj.weight",
	    OM_HF_DOUBLE },
};

/* What a pattern's star stands for in a name, *n bytes of it; NULL: the name is not of it. */
static const char *
star(const char *pattern, const char *name, size_t *n)
{
	size_t before = strcspn(pattern, "*"), size = strlen(name);
	size_t after = pattern[before] ? strlen(pattern + before + 1) : 0;

	if (size < before + after || strncmp(pattern, name, before) != 0 ||
	    strcmp(name + size - after, pattern + before + (pattern[before] == '*')) != 0 ||
	    (!pattern[before] && size != before))
		return NULL;
	*n = size - before - after;
	return name + before;
}

/* Whether a list of words has one. */
static bool
listed(const char *words, const char *word)
{
	size_t n = strlen(word);

	for (const char *s = words; (s = strstr(s, word)); s += n)
		if ((s == words || s[-1] == ' ') && (s[n] == ' ' || !s[n]))
			return true;
	return false;
}

char *
om_hf_name(const struct om_hf_family *f, const char *name, enum om_hf_form *form)
{
	static const char layers[] = "model.layers.", bias[] = "mlp.gate.e_score_correction_bias";
	const char *tail = name, *middle = "", *theirs = name;
	size_t head = 0, n = 0, size;
	char *to = NULL;
	FILE *out;

	*form = OM_HF_SAME;
	if (strncmp(name, layers, sizeof layers - 1) == 0 &&
	    (tail = strchr(name + sizeof layers - 1, '.'))) {
		head = (size_t)(++tail - name);
		theirs = tail;
		if (!f->choice_bias && strcmp(tail, bias) == 0)
			return NULL;
		for (unsigned i = 0; i < COUNT(stored); i++) {
			const char *is = listed(stored[i].families, f->model_type)
					     ? star(stored[i].ours, tail, &n)
					     : NULL;

			if (is) {
				middle = is;
				theirs = stored[i].theirs;
				*form = stored[i].form;
				break;
			}
		}
	}
	if (!(out = open_memstream(&to, &size)))
		return NULL;
	fwrite(name, 1, head, out);
	size = strcspn(theirs, "*");
	fprintf(out, "%.*s", (int)size, theirs);
	if (theirs[size])
		fprintf(out, "%.*s%s", (int)n, middle, theirs + size + 1);
	return fclose(out) == 0 ? to : NULL;
}

bool
om_hf_zero(const struct om_hf_model *m, bool biased, unsigned i, struct om_hf_zero *z)
{
	const struct om_hf_family *f = m->family;
	uint64_t d = (uint64_t)m->v[OM_HF_hidden_size], e = (uint64_t)m->v[OM_HF_num_experts];
	/* a shared expert of no width has its matrices all the same, but in Ernie 4.5 */
	bool bare = (f->sigmoid || f->gated) && !m->v[OM_HF_shared_expert_intermediate_size];
	const struct om_hf_zero all[] = {
		{ "mlp.gate.e_score_correction_bias", { e }, 1, true },
		{ "mlp.shared_expert_gate.weight", { 1, d }, 2, false },
		{ "mlp.shared_expert.gate_proj.weight", { 0, d }, 2, false },
		{ "mlp.shared_expert.up_proj.weight", { 0, d }, 2, false },
		{ "mlp.shared_expert.down_proj.weight", { d, 0 }, 2, false },
	};
	const bool has[] = { f->choice_bias && !biased, f->gated, bare, bare, bare };

	for (unsigned j = 0; j < COUNT(all); j++)
		if (has[j] && !i--) {
			*z = all[j];
			return true;
		}
	return false;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool
numbers_differ(
    const char *what, enum om_hf_type type, double a, double b, struct om_hf_difference *d)
{
	char text[2][32];

	/* a default that one side computes and the other has in writing may be rounded */
	if (fabs(a - b) <= 1e-12 * fmax(fabs(a), fabs(b)))
		return false;
	om_hf_number(text[0], type, a);
	om_hf_number(text[1], type, b);
	snprintf(d->what, sizeof d->what, "%s", what);
	snprintf(d->a, sizeof d->a, "%s", type == OM_HF_INT && a == 0 ? "none" : text[0]);
	snprintf(d->b, sizeof d->b, "%s", type == OM_HF_INT && b == 0 ? "none" : text[1]);
	return true;
}

static bool
texts_differ(const char *what, const char *a, const char *b, struct om_hf_difference *d)
{
	snprintf(d->what, sizeof d->what, "%s", what);
	snprintf(d->a, sizeof d->a, "%s", a);
	snprintf(d->b, sizeof d->b, "%s", b);
	return strcmp(a, b) != 0;
}

/* The rotary embeddings of full attention, or of sliding windows, where layers of both are. */
static bool
ropes_differ(const struct om_hf_rope *a, const struct om_hf_rope *b, const char *of,
    struct om_hf_difference *d)
{
	char what[80];

	snprintf(what, sizeof what, "rope_type%s", of);
	if (texts_differ(what, om_hf_rope_types[a->type], om_hf_rope_types[b->type], d))
		return true;
	for (unsigned i = 0; i < OM_HF_ROPES; i++) {
		snprintf(what, sizeof what, "%s%s", om_hf_ropes[i].key, of);
		if (om_hf_ropes[i].types >> a->type & 1 &&
		    numbers_differ(what, om_hf_ropes[i].type, a->v[i], b->v[i], d))
			return true;
	}
	return false;
}

bool
om_hf_differ(const struct om_hf_model *a, const struct om_hf_model *b, struct om_hf_difference *d)
{
	bool any[2] = { false };
	char what[80];

	if (a->family != b->family &&
	    (strcmp(a->family->placement, b->family->placement) != 0 ||
		strcmp(a->qk_norm, b->qk_norm) != 0 ||
		(a->score && b->score && strcmp(a->score, b->score) != 0)))
		return texts_differ("model_type", a->family->model_type, b->family->model_type, d);
	if (strcmp(a->qk_norm, b->qk_norm) != 0)
		return texts_differ("norm of queries and keys", a->qk_norm, b->qk_norm, d);
	for (int k = 0; k < OM_HF_KEYS; k++)
		if (om_hf_keys[k].use == OM_HF_FACT &&
		    numbers_differ(om_hf_keys[k].key, om_hf_keys[k].type, a->v[k], b->v[k], d))
			return true;
	if (strcmp(a->bias, b->bias) != 0)
		return texts_differ("attention's biases", a->bias, b->bias, d);
	if (strcmp(a->activation, b->activation) != 0)
		return texts_differ("hidden_act", a->hidden_act, b->hidden_act, d);
	for (uint32_t l = 0; l < a->layers; l++) {
		any[a->window[l] != 0] = true;
		snprintf(what, sizeof what, "sliding_window of layer %u", l);
		if (numbers_differ(what, OM_HF_INT, a->window[l], b->window[l], d))
			return true;
		snprintf(what, sizeof what, "feed-forward of layer %u", l);
		if (texts_differ(
			what, a->moe[l] ? "experts" : "dense", b->moe[l] ? "experts" : "dense", d))
			return true;
	}
	return (any[0] &&
		   ropes_differ(&a->rope[0], &b->rope[0], any[1] ? " of full_attention" : "", d)) ||
	       (any[1] && ropes_differ(
			      &a->rope[1], &b->rope[1], any[0] ? " of sliding_attention" : "", d));
}
