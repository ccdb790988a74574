/* Reading a Hugging Face config.json: types, ranges, its family's defaults, what is refused. */
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "hf_config.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define UNSET OM_HF_UNSET

#define SCALED (1u << OM_HF_LINEAR | 1u << OM_HF_YARN | 1u << OM_HF_LLAMA3)
#define BY_LENGTH (1u << OM_HF_YARN | 1u << OM_HF_LLAMA3)
const char *const om_hf_rope_types[OM_HF_ROPE_TYPES] = { "default", "linear", "yarn", "llama3" };
enum { THETA, FACTOR, ORIGINAL, FAST, SLOW, ATTENTION };
const struct om_hf_rope_row om_hf_ropes[OM_HF_ROPES] = {
	{ "rope_theta", "theta", ~0u, OM_HF_NUM, 1, 1e12, UNSET },
	{ "factor", "factor", SCALED, OM_HF_NUM, 1, 1e6, NAN },
	{ "original_max_position_embeddings", "original_length", BY_LENGTH, OM_HF_INT, 1, 16777216,
	    UNSET },
	{ "beta_fast", "beta_fast", 1u << OM_HF_YARN, OM_HF_NUM, 1e-3, 1e6, 32 },
	{ "beta_slow", "beta_slow", 1u << OM_HF_YARN, OM_HF_NUM, 1e-3, 1e6, 1 },
	{ "attention_factor", "attention_factor", 1u << OM_HF_YARN, OM_HF_NUM, 0, 1e6, UNSET },
	{ "low_freq_factor", "low_freq_factor", 1u << OM_HF_LLAMA3, OM_HF_NUM, 1e-3, 1e6, NAN },
	{ "high_freq_factor", "high_freq_factor", 1u << OM_HF_LLAMA3, OM_HF_NUM, 1e-3, 1e6, NAN },
};

/* The gated activations of both sides. */
static const char *const activations[][2] = { { "silu", "swiglu" }, { "swish", "swiglu" },
	{ "gelu_pytorch_tanh", "geglu" }, { "gelu_new", "geglu" } };

/*
 * Keys that mean nothing for what the model computes: of files, of saving, of generation, of
 * classification, of rounding, of layers behind the model's. Those that begin with _ or end with
 * _token_id are among them.
 */
static const char *const passed_over[] = { "transformers_version", "transformers.js_config",
	"architectures", "dtype", "torch_dtype", "name_or_path", "use_cache", "return_dict",
	"return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores",
	"chunk_size_feed_forward", "pretraining_tp", "id2label", "label2id", "num_labels",
	"problem_type", "finetuning_task", "task_specific_params", "tokenizer_class",
	"gradient_checkpointing", "attn_implementation", "experts_implementation", "prefix",
	"torchscript", "use_bfloat16", "tf_legacy_loss", "do_sample", "temperature", "top_k",
	"top_p", "typical_p", "max_length", "min_length", "max_new_tokens", "num_beams",
	"num_beam_groups", "num_return_sequences", "diversity_penalty", "repetition_penalty",
	"length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "early_stopping",
	"bad_words_ids", "remove_invalid_values", "exponential_decay_length_penalty",
	"suppress_tokens", "begin_suppress_tokens", "num_mtp_layers", "enable_moe_fp32_combine" };

/* Keys of every family that change what weights or layers are. */
static const char *const refused[][2] = {
	{ "quantization_config", "quantized weights are not read; give the model's own" },
	{ "compression_config", "compressed weights are not read; give the model's own" },
	{ "per_layer_config", "layers with configurations of their own cannot be described" },
	{ "is_encoder_decoder", "only decoders can be described" },
	{ "add_cross_attention", "only decoders without cross-attention can be described" },
};

struct reader {
	struct om_hf_model *m;
	const json_t *config;
	FILE *errors, *warnings;
	bool failed;
};

/* A line of its own, whatever a key is called. */
static void __attribute__((format(printf, 2, 0))) put(FILE *f, const char *fmt, va_list ap)
{
	char line[768];

	vsnprintf(line, sizeof line, fmt, ap);
	om_plain(line);
	fprintf(f, "%s\n", line);
}

static void __attribute__((format(printf, 2, 3))) fail(struct reader *r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put(r->errors, fmt, ap);
	va_end(ap);
	r->failed = true;
}

static void __attribute__((format(printf, 2, 3))) warn(struct reader *r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put(r->warnings, fmt, ap);
	va_end(ap);
}

void
om_hf_number(char text[32], enum om_hf_type type, double x)
{
	if (type == OM_HF_BOOL)
		snprintf(text, 32, "%s", x != 0 ? "true" : "false");
	if (type == OM_HF_INT)
		snprintf(text, 32, "%.0f", x);
	for (int digits = 6; type == OM_HF_NUM && digits <= 17; digits++) {
		snprintf(text, 32, "%.*g", digits, x);
		if (strtod(text, NULL) == x)
			break;
	}
	if (type == OM_HF_NUM && !strpbrk(text, ".en"))
		strcat(text, ".0");
}

enum { VALUE = 64, UNKNOWN_MOST = 20 }; /* bytes shown; unknown keys that are named */
/* A value in the file's own words, cut where it is long. */
static const char *
shown(const json_t *v, char text[VALUE])
{
	char *s;

	if (json_is_real(v)) {
		om_hf_number(text, OM_HF_NUM, json_real_value(v));
		return text;
	}
	s = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
	snprintf(text, VALUE, "%s", s ? s : "?");
	if (s && strlen(s) >= VALUE)
		strcpy(text + VALUE - 4, "...");
	free(s);
	return text;
}

/* A key's value as it was given or filled in. */
static const char *
with_value(const struct reader *r, enum om_hf_key k, char text[128])
{
	char number[32];

	om_hf_number(number, om_hf_keys[k].type, r->m->v[k]);
	snprintf(text, 128, "%s = %s%s%s%s", om_hf_key_name(r->m->family, k), number,
	    r->m->given[k] ? "" : " (the default of ",
	    r->m->given[k] ? "" : r->m->family->model_type, r->m->given[k] ? "" : ")");
	return text;
}

/* A number or truth value of the type and range; false: said why. */
static bool
number(struct reader *r, const char *where, const json_t *v, enum om_hf_type type, double lo,
    double hi, double *x)
{
	char value[VALUE], from[32], to[32];
	bool fits = type == OM_HF_BOOL  ? json_is_boolean(v)
		    : type == OM_HF_INT ? json_is_integer(v)
					: json_is_number(v);
	double y = json_is_boolean(v) ? json_is_true(v) : json_number_value(v);

	if (fits && y >= lo && y <= hi) {
		*x = y;
		return true;
	}
	if (type == OM_HF_BOOL) {
		fail(r, "%s = %s: must be true or false", where, shown(v, value));
		return false;
	}
	snprintf(from, sizeof from, "%g", lo);
	snprintf(to, sizeof to, type == OM_HF_INT ? "%.0f" : "%g", hi);
	fail(r, "%s = %s: must be a %snumber in %s .. %s%s", where, shown(v, value),
	    type == OM_HF_INT ? "whole " : "", from, to,
	    json_is_string(v) ? ", without quotes" : "");
	return false;
}

static const json_t *
member(const json_t *map, const char *key)
{
	const json_t *v = json_object_get(map, key);

	return json_is_null(v) ? NULL : v;
}

/* null, false, 0, and what is empty: nothing is asked for. */
static bool
is_off(const json_t *v)
{
	return !v || json_is_null(v) || json_is_false(v) ||
	       (json_is_number(v) && json_number_value(v) == 0) ||
	       (json_is_string(v) && !json_string_length(v)) ||
	       (json_is_array(v) && !json_array_size(v)) ||
	       (json_is_object(v) && !json_object_size(v));
}

static const char *
known_families(void)
{
	static char list[256];

	for (unsigned i = 0; i < OM_HF_FAMILIES && (i || !*list); i++)
		snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
		    om_hf_families[i].model_type);
	return list;
}

static double
missing(const struct reader *r, enum om_hf_key k)
{
	return om_hf_missing(r->m->family, k);
}

static const char *
name_of(const struct reader *r, enum om_hf_key k)
{
	return om_hf_key_name(r->m->family, k);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* By either name, as transformers reads both. */
static const json_t *
value_of(struct reader *r, enum om_hf_key k)
{
	const char *name = om_hf_other_name(r->m->family, k);
	const json_t *v = json_object_get(r->config, name_of(r, k)),
		     *other = name ? json_object_get(r->config, name) : NULL;
	char a[VALUE], b[VALUE];

	if (is_off(other))
		return v;
	if (!is_off(v) && !json_equal(v, other))
		fail(r, "%s = %s, and %s = %s: they are the same thing; remove the wrong one",
		    name_of(r, k), shown(v, a), name, shown(other, b));
	return other;
}

/* Every key by its row; what is missing is the family's. */
static void
read_keys(struct reader *r)
{
	double *v = r->m->v;

	for (int k = 0; k < OM_HF_KEYS; k++) {
		const struct om_hf_row *row = &om_hf_keys[k];
		const json_t *given;

		v[k] = missing(r, (enum om_hf_key)k);
		if (isnan(v[k]) || !(given = value_of(r, (enum om_hf_key)k)))
			continue;
		if (k == OM_HF_sliding_window && is_off(given) &&
		    !isnan(missing(r, OM_HF_use_sliding_window)))
			v[k] = UNSET; /* 0 is what such a family writes for none */
		else if (!json_is_null(given))
			r->m->given[k] = number(r, name_of(r, (enum om_hf_key)k), given, row->type,
			    row->lo, row->hi, &v[k]);
		else if (k == OM_HF_num_key_value_heads)
			v[k] = OM_HF_HEADS;
		else if (k == OM_HF_sliding_window)
			v[k] = UNSET;
	}
	for (int k = 0; k < OM_HF_KEYS; k++) {
		double usual = missing(r, (enum om_hf_key)k);
		char value[128], text[32] = "null";

		if (om_hf_keys[k].use == OM_HF_ONLY && r->m->given[k] && v[k] != usual) {
			if (usual != UNSET)
				om_hf_number(text, om_hf_keys[k].type, usual);
			fail(r,
			    "%s cannot be described; %s, the default, is the only value that can",
			    with_value(r, (enum om_hf_key)k, value), text);
		}
		if (k == OM_HF_moe_layer_end_index) /* of which -1 is the last layer */
			continue;
		v[k] = isnan(v[k]) || v[k] == UNSET ? 0
		       : v[k] == OM_HF_HEADS        ? v[OM_HF_num_attention_heads]
		       : v[k] == OM_HF_WIDTH
			   ? floor(v[OM_HF_hidden_size] / v[OM_HF_num_attention_heads])
			   : v[k];
	}
}

static void
read_activation(struct reader *r)
{
	const json_t *act = member(r->config, "hidden_act");
	char value[VALUE];

	r->m->hidden_act = activations[0][0];
	r->m->activation = activations[0][1];
	if (!act)
		return;
	for (unsigned i = 0; i < COUNT(activations); i++)
		if (json_is_string(act) && strcmp(json_string_value(act), activations[i][0]) == 0) {
			r->m->activation = activations[i][1];
			r->m->hidden_act = activations[i & ~1u][0];
			return;
		}
	fail(r, "hidden_act = %s: must be \"silu\" or \"gelu_pytorch_tanh\"", shown(act, value));
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* layer_types: whether each layer slides. */
static void
read_types(struct reader *r, const json_t *types, bool *slides)
{
	char value[VALUE];

	if (!json_is_array(types) || json_array_size(types) != r->m->layers) {
		fail(r, "layer_types = %s: must be a list of num_hidden_layers = %u entries",
		    shown(types, value), r->m->layers);
		return;
	}
	for (uint32_t l = 0; l < r->m->layers; l++) {
		const json_t *t = json_array_get(types, l);
		const char *s = json_is_string(t) ? json_string_value(t) : "";

		slides[l] = strcmp(s, "sliding_attention") == 0;
		if (!slides[l] && strcmp(s, "full_attention") != 0)
			fail(r,
			    "layer_types[%u] = %s: must be \"full_attention\" or "
			    "\"sliding_attention\"",
			    l, shown(t, value));
	}
}

static void
read_windows(struct reader *r)
{
	struct om_hf_model *m = r->m;
	const struct om_hf_family *f = m->family;
	const json_t *types = member(r->config, "layer_types");
	bool asks = !isnan(missing(r, OM_HF_use_sliding_window)), any = false;
	bool slides[OM_HF_LAYERS] = { false };
	double window = asks && !m->v[OM_HF_use_sliding_window] ? 0 : m->v[OM_HF_sliding_window];

	if (f->windows == OM_HF_NEVER && window)
		fail(r,
		    "sliding_window = %.0f: some attention implementations of transformers heed it "
		    "in %s and some do not; only null can be described",
		    window, f->model_type);
	for (uint32_t l = 0; l < m->layers && f->windows != OM_HF_NEVER; l++)
		slides[l] = f->windows == OM_HF_ALL    ? window != 0
			    : f->slides == OM_HF_THREE ? l % 4 != 3
			    : f->slides == OM_HF_EVEN
				? window && l % 2 == 0 && l < m->v[OM_HF_max_window_layers]
				: window && l >= m->v[OM_HF_max_window_layers];
	if (types && f->windows == OM_HF_TYPES)
		read_types(r, types, slides);
	for (uint32_t l = 0; l < m->layers; l++) {
		any |= slides[l];
		m->window[l] = slides[l] ? window : 0;
	}
	if (any && !window)
		fail(r,
		    asks && m->v[OM_HF_sliding_window]
			? "layer_types has \"sliding_attention\", but use_sliding_window is false; "
			  "set one of them right"
			: "sliding_window = null, but some layers are \"sliding_attention\"; give "
			  "the window");
}

/* mlp_only_layers: those that have none after all. */
static void
read_only_layers(struct reader *r)
{
	struct om_hf_model *m = r->m;
	const json_t *only = member(r->config, "mlp_only_layers");
	char where[40], value[VALUE];
	double x;

	if (only && !json_is_array(only))
		fail(r, "mlp_only_layers = %s: must be a list of layers", shown(only, value));
	for (size_t i = 0; i < json_array_size(only); i++) {
		snprintf(where, sizeof where, "mlp_only_layers[%zu]", i);
		if (number(r, where, json_array_get(only, i), OM_HF_INT, 0, m->layers - 1, &x))
			m->moe[(uint32_t)x] = false;
	}
}

/* mlp_layer_types: whether each layer has them. */
static void
read_mlp_types(struct reader *r)
{
	struct om_hf_model *m = r->m;
	const json_t *types = member(r->config, "mlp_layer_types");
	char value[VALUE];

	if (!types)
		return;
	if (!json_is_array(types) || json_array_size(types) != m->layers) {
		fail(r, "mlp_layer_types = %s: must be a list of num_hidden_layers = %u entries",
		    shown(types, value), m->layers);
		return;
	}
	for (uint32_t l = 0; l < m->layers; l++) {
		const json_t *t = json_array_get(types, l);
		const char *s = json_is_string(t) ? json_string_value(t) : "";

		m->moe[l] = strcmp(s, "sparse") == 0;
		if (!m->moe[l] && strcmp(s, "dense") != 0)
			fail(r, "mlp_layer_types[%u] = %s: must be \"dense\" or \"sparse\"", l,
			    shown(t, value));
	}
}

/* Facts that the model does not have become 0; those that its family implies become themselves. */
static void
settle(struct om_hf_model *m)
{
	const struct om_hf_family *f = m->family;
	bool dense = false, moe = false;
	double *v = m->v;

	for (uint32_t l = 0; l < m->layers; l++) {
		dense |= !m->moe[l];
		moe |= m->moe[l];
	}
	m->qk_norm = isnan(om_hf_missing(f, OM_HF_use_qk_norm)) || v[OM_HF_use_qk_norm] != 0
			 ? f->qk_norm
			 : "none";
	m->bias = !v[OM_HF_attention_bias] ? "none" : f->open_output ? "qkv" : "all";
	m->score = !moe ? NULL : f->sigmoid ? "sigmoid" : "softmax";
	if (moe && !v[OM_HF_moe_intermediate_size])
		v[OM_HF_moe_intermediate_size] = v[OM_HF_intermediate_size];
	if (f->normalize == OM_HF_YES)
		v[OM_HF_norm_topk_prob] = 1;
	if (!isnan(om_hf_missing(f, OM_HF_n_shared_experts)))
		v[OM_HF_shared_expert_intermediate_size] =
		    v[OM_HF_n_shared_experts] * v[OM_HF_moe_intermediate_size];
	if (isnan(om_hf_missing(f, OM_HF_routed_scaling_factor)))
		v[OM_HF_routed_scaling_factor] = 1;
	if (isnan(om_hf_missing(f, OM_HF_n_group)))
		v[OM_HF_n_group] = v[OM_HF_topk_group] = 1;
	if (!dense)
		v[OM_HF_intermediate_size] = 0;
	if (!moe)
		v[OM_HF_num_experts] = v[OM_HF_num_experts_per_tok] =
		    v[OM_HF_moe_intermediate_size] = v[OM_HF_norm_topk_prob] =
			v[OM_HF_shared_expert_intermediate_size] = v[OM_HF_routed_scaling_factor] =
			    v[OM_HF_n_group] = v[OM_HF_topk_group] = 0;
}

static void
check_experts(struct reader *r)
{
	const double *v = r->m->v;
	double e = v[OM_HF_num_experts], groups = v[OM_HF_n_group], most = v[OM_HF_topk_group];
	char a[128], b[128];

	if (!r->m->score)
		return;
	if (!e || !v[OM_HF_num_experts_per_tok]) {
		fail(r, "%s is missing",
		    name_of(r, e ? OM_HF_num_experts_per_tok : OM_HF_num_experts));
		return;
	}
	if (v[OM_HF_moe_intermediate_size] > om_hf_keys[OM_HF_moe_intermediate_size].hi)
		fail(r, "intermediate_size = %.0f: must be at most %.0f, as the width of an expert",
		    v[OM_HF_moe_intermediate_size], om_hf_keys[OM_HF_moe_intermediate_size].hi);
	if (v[OM_HF_shared_expert_intermediate_size] >
	    om_hf_keys[OM_HF_shared_expert_intermediate_size].hi)
		fail(r, "%s, of %.0f each: the shared expert must be at most %.0f wide",
		    with_value(r, OM_HF_n_shared_experts, a), v[OM_HF_moe_intermediate_size],
		    om_hf_keys[OM_HF_shared_expert_intermediate_size].hi);
	if (v[OM_HF_num_experts_per_tok] > e)
		fail(r, "%s is more than %s", with_value(r, OM_HF_num_experts_per_tok, a),
		    with_value(r, OM_HF_num_experts, b));
	else if (fmod(e, groups) != 0 || (!isnan(missing(r, OM_HF_n_group)) && e / groups < 2))
		fail(r, "%s: each of %s has to have two or more of them, and as many as the others",
		    with_value(r, OM_HF_num_experts, a), with_value(r, OM_HF_n_group, b));
	else if (most > groups)
		fail(r, "%s is more than %s", with_value(r, OM_HF_topk_group, a),
		    with_value(r, OM_HF_n_group, b));
	else if (v[OM_HF_num_experts_per_tok] > e / groups * most)
		fail(r, "%s is more than the experts of %s",
		    with_value(r, OM_HF_num_experts_per_tok, a),
		    with_value(r, OM_HF_topk_group, b));
}

static void
check_sizes(struct reader *r)
{
	const double *v = r->m->v;
	double d = v[OM_HF_hidden_size], h = v[OM_HF_num_attention_heads],
	       kv = v[OM_HF_num_key_value_heads], hd = v[OM_HF_head_dim];
	const char *type = r->m->family->model_type;
	char a[128], b[128], c[128];

	with_value(r, OM_HF_num_attention_heads, a);
	if (fmod(h, kv) != 0)
		fail(r, "%s does not divide %s; give num_key_value_heads, a divisor",
		    with_value(r, OM_HF_num_key_value_heads, b), a);
	if (r->m->family->heads_divide && fmod(d, h) != 0)
		fail(r, "%s is not a multiple of %s, which %s has to be",
		    with_value(r, OM_HF_hidden_size, b), a, type);
	else if (hd < 1 || fmod(hd, 2) != 0)
		fail(r, "head_dim = %.0f%s: must be even, for rotary embeddings", hd,
		    r->m->given[OM_HF_head_dim] ? "" : " (hidden_size / num_attention_heads)");
	else if (r->m->family->square && h * hd != d)
		fail(r, "%s times %s is not %s, which %s has to be", a,
		    with_value(r, OM_HF_head_dim, b), with_value(r, OM_HF_hidden_size, c), type);
	check_experts(r);
}

/* ---- rotary embeddings ----------------------------------------------------------------------- */

/* A dictionary at a key, NULL: there is none, or nothing in it. */
static const json_t *
dictionary(struct reader *r, const json_t *map, const char *where, const char *key)
{
	const json_t *v = member(map, key);
	char value[VALUE];

	if (v && !json_is_object(v)) {
		fail(r, "%s%s = %s: must be a dictionary", where, key, shown(v, value));
		return NULL;
	}
	return v && json_object_size(v) ? v : NULL;
}

/* The number at a key of a dictionary, or what it is where it is missing. */
static double
rope_number(struct reader *r, const json_t *map, const char *where, const char *key,
    enum om_hf_type type, double lo, double hi, double otherwise)
{
	const json_t *v = member(map, key);
	char path[128];
	double x = otherwise;

	snprintf(path, sizeof path, "%s%s%s", where, *where ? "." : "", key);
	if (v)
		number(r, path, v, type, lo, hi, &x);
	return x;
}

/* YaRN's factor on cosines and sines: 0.1 m ln(factor) + 1, or a ratio of two of these. */
static double
attention_factor(struct reader *r, const json_t *map, const char *where, double factor)
{
	double m = rope_number(r, map, where, "mscale", OM_HF_NUM, 0, 1e6, 0);
	double all = rope_number(r, map, where, "mscale_all_dim", OM_HF_NUM, 0, 1e6, 0);

	if (m > 0 && all > 0)
		return (0.1 * m * log(factor) + 1) / (0.1 * all * log(factor) + 1);
	return 0.1 * log(factor) + 1;
}

static void
unknown_parameters(
    struct reader *r, const json_t *map, const char *where, enum om_hf_rope_type type)
{
	static const char *const others[] = { "rope_type", "type", "partial_rotary_factor" },
				 *const yarns[] = { "mscale", "mscale_all_dim", "truncate" };
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)map, key, v)
	{
		bool known = is_off(v);
		for (unsigned i = 0; i < OM_HF_ROPES; i++)
			known |= om_hf_ropes[i].types >> type & 1 &&
				 strcmp(key, om_hf_ropes[i].key) == 0;
		for (unsigned i = 0; i < 3; i++)
			known |= strcmp(key, others[i]) == 0 ||
				 (type == OM_HF_YARN && strcmp(key, yarns[i]) == 0);
		if (!known)
			warn(r,
			    "%s: key %s is not known where rope_type is \"%s\"; nothing was done "
			    "with it",
			    where, key, om_hf_rope_types[type]);
	}
}

/* One set of parameters; theta: what it is where the dictionary has none. */
static void
read_rope(
    struct reader *r, const json_t *map, const char *where, double theta, struct om_hf_rope *p)
{
	const json_t *kind = member(map, "rope_type"), *v;
	double length = r->m->v[OM_HF_max_position_embeddings], outer = 0;
	char value[VALUE], text[128];
	unsigned type = 0;

	kind = kind ? kind : member(map, "type");
	for (; kind && type < OM_HF_ROPE_TYPES; type++)
		if (json_is_string(kind) &&
		    strcmp(json_string_value(kind), om_hf_rope_types[type]) == 0)
			break;
	if (type == OM_HF_ROPE_TYPES) {
		fail(r,
		    "%s.rope_type = %s: must be \"default\", \"linear\", \"yarn\" or \"llama3\"",
		    where, shown(kind, value));
		return;
	}
	p->type = (enum om_hf_rope_type)type;
	if (!r->m->family->rope_by_type && BY_LENGTH >> type & 1)
		outer = rope_number(
		    r, r->config, "", om_hf_ropes[ORIGINAL].key, OM_HF_INT, 1, 16777216, 0);
	for (unsigned i = 0; i < OM_HF_ROPES; i++) {
		const struct om_hf_rope_row *row = &om_hf_ropes[i];
		double usual = i == THETA ? theta : i == ORIGINAL ? length : row->missing;

		if (!(row->types >> type & 1))
			continue;
		if (isnan(usual) && !member(map, row->key)) {
			fail(r, "%s.%s is missing, and rope_type \"%s\" needs it", where, row->key,
			    om_hf_rope_types[type]);
			return;
		}
		if (i == ATTENTION)
			usual = attention_factor(r, map, where, p->v[FACTOR]);
		p->v[i] =
		    is_off(member(map, row->key)) && (i == FAST || i == SLOW)
			? usual
			: rope_number(r, map, where, row->key, row->type, row->lo, row->hi, usual);
	}
	if (outer > 0) /* transformers gives the one outside of the dictionary priority */
		p->v[ORIGINAL] = outer;
	if (type == OM_HF_YARN && json_is_false(member(map, "truncate")))
		fail(r,
		    "%s.truncate = false cannot be described; true, the default, is the only value "
		    "that can",
		    where);
	if ((v = member(map, "partial_rotary_factor")) && json_number_value(v) != 1)
		fail(r,
		    "%s.partial_rotary_factor = %s cannot be described; 1 is the only value that "
		    "can",
		    where, shown(v, value));
	else if (!v && r->m->v[OM_HF_partial_rotary_factor] != 1)
		fail(r, "%s cannot be described; 1.0 is the only value that can",
		    with_value(r, OM_HF_partial_rotary_factor, text));
	unknown_parameters(r, map, where, p->type);
}

/* Where one dictionary holds for all layers: rope_scaling, the older name, comes first. */
static void
read_rope_of_all(struct reader *r)
{
	const json_t *new = dictionary(r, r->config, "", "rope_parameters"),
		     *old = dictionary(r, r->config, "", "rope_scaling"), *map = old ? old : new;
	const char *where = old ? "rope_scaling" : "rope_parameters";
	const json_t *outer = member(r->config, "rope_theta"), *inner = member(map, "rope_theta");
	double theta =
	    rope_number(r, r->config, "", "rope_theta", OM_HF_NUM, 1, 1e12, r->m->family->theta);
	char a[VALUE], b[VALUE];

	if (member(map, "full_attention") || member(map, "sliding_attention"))
		fail(r,
		    "%s: %s has one set of rotary embeddings for all layers, not one a layer type",
		    where, r->m->family->model_type);
	if (old && new && !json_equal(old, new))
		warn(r, "rope_parameters and rope_scaling differ; rope_scaling holds, as in "
			"transformers");
	if (outer && inner && json_number_value(outer) != json_number_value(inner))
		warn(r, "rope_theta = %s is not used: %s.rope_theta = %s holds, as in transformers",
		    shown(outer, a), where, shown(inner, b));
	read_rope(r, map, where, theta, &r->m->rope[0]);
	r->m->rope[1] = r->m->rope[0];
}

/*
 * Olmo 3: rope_parameters has a dictionary a layer type; rope_scaling, and a rope_theta beside
 * them, are of full attention alone.
 */
static void
read_rope_by_type(struct reader *r)
{
	static const char *const name[] = { "full_attention", "sliding_attention" };
	const json_t *new = dictionary(r, r->config, "", "rope_parameters"),
		     *scaling = dictionary(r, r->config, "", "rope_scaling");
	const json_t *outer = member(r->config, "rope_theta");
	double usual = r->m->family->theta,
	       theta = rope_number(r, r->config, "", "rope_theta", OM_HF_NUM, 1, 1e12, usual);
	bool any[2] = { false };
	char where[64], value[VALUE];

	for (uint32_t l = 0; l < r->m->layers; l++)
		any[r->m->window[l] != 0] = true;
	if (new && !member(new, name[0]) && !member(new, name[1])) {
		fail(r,
		    "rope_parameters: %s has a dictionary for each layer type, \"full_attention\" "
		    "and \"sliding_attention\"",
		    r->m->family->model_type);
		return;
	}
	for (int k = 0; k < 2; k++) {
		const json_t *own = dictionary(r, new, "rope_parameters.", name[k]);
		json_t *map = own ? json_copy((json_t *)(uintptr_t)own) : json_object();

		snprintf(where, sizeof where, "rope_parameters.%s", name[k]);
		if (k == 0 && scaling) {
			json_object_update(map, (json_t *)(uintptr_t)scaling);
			snprintf(where, sizeof where, "rope_scaling");
		}
		if (member(map, "type") && !member(map, "rope_type"))
			fail(r, "%s.type = %s: transformers reads rope_type alone here; write that",
			    where, shown(member(map, "type"), value));
		else
			read_rope(r, map, where, k ? usual : theta, &r->m->rope[k]);
		if (k == 1 && any[1] && outer && theta != usual && !member(map, "rope_theta"))
			warn(r,
			    "rope_theta = %s holds for full attention alone, as in transformers; "
			    "sliding_attention has %s's default %g: write rope_parameters to say "
			    "it",
			    shown(outer, value), r->m->family->model_type, usual);
		json_decref(map);
	}
}

/* ---- everything else ------------------------------------------------------------------------- */

static bool
all_full(const json_t *types)
{
	bool full = json_is_array(types);

	for (size_t i = 0; full && i < json_array_size(types); i++) {
		const json_t *t = json_array_get(types, i);
		full = json_is_string(t) && strcmp(json_string_value(t), "full_attention") == 0;
	}
	return full;
}

static bool
ends(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && strcmp(s + n - m, end) == 0;
}

/* Whether a key is read by this family, was refused by now, or means nothing. */
static bool
is_known(const struct reader *r, const char *key, const json_t *v)
{
	static const char *const always[] = { "model_type", "hidden_act", "rope_theta",
		"rope_scaling", "rope_parameters" };
	const struct om_hf_family *f = r->m->family;
	bool known = *key == '_' || ends(key, "_token_id") || ends(key, "_token_ids");

	for (int k = 0; k < OM_HF_KEYS; k++) {
		const char *other = om_hf_other_name(f, (enum om_hf_key)k);

		known |= !isnan(missing(r, (enum om_hf_key)k)) &&
			 (strcmp(key, name_of(r, (enum om_hf_key)k)) == 0 ||
			     (other && strcmp(key, other) == 0));
	}
	for (unsigned i = 0; i < COUNT(always); i++)
		known |= strcmp(key, always[i]) == 0;
	for (unsigned i = 0; i < COUNT(passed_over); i++)
		known |= strcmp(key, passed_over[i]) == 0;
	if (strcmp(key, "layer_types") == 0)
		known |= f->windows == OM_HF_TYPES || all_full(v);
	if (strcmp(key, "mlp_only_layers") == 0)
		known |= f->moe == OM_HF_STEP;
	if (strcmp(key, "mlp_layer_types") == 0)
		known |= f->moe == OM_HF_LISTED;
	if (strcmp(key, "max_window_layers") == 0) /* Qwen's own files have it; nothing reads it */
		known |= f->windows == OM_HF_ALL;
	if (strcmp(key, om_hf_ropes[ORIGINAL].key) == 0)
		known |= !f->rope_by_type && r->m->rope[0].v[ORIGINAL] > 0;
	return known;
}

static void
check_refused(struct reader *r)
{
	char value[VALUE];
	const json_t *v;

	for (unsigned i = 0; i < COUNT(refused); i++)
		if (!is_off(v = json_object_get(r->config, refused[i][0])))
			fail(r, "%s = %s: %s", refused[i][0], shown(v, value), refused[i][1]);
}

static void
unknown_keys(struct reader *r)
{
	const json_t *arch = member(r->config, "architectures");
	bool named = !json_array_size(arch);
	char value[VALUE];
	const char *key;
	size_t unknown = 0;
	json_t *v;

	for (size_t i = 0; i < json_array_size(arch); i++) {
		const json_t *a = json_array_get(arch, i);
		named |= json_is_string(a) &&
			 strcmp(json_string_value(a), r->m->family->architecture) == 0;
	}
	if (!named)
		warn(r, "architectures = %s: read as %s", shown(arch, value),
		    r->m->family->architecture);
	json_object_foreach((json_t *)(uintptr_t)r->config, key, v)
	{
		if (is_off(v) || is_known(r, key, v))
			continue;
		if (unknown++ < UNKNOWN_MOST)
			warn(r, "key %s = %s is not known for %s; nothing was done with it", key,
			    shown(v, value), r->m->family->model_type);
	}
	if (unknown > UNKNOWN_MOST)
		warn(r, "and %zu more keys are not known", unknown - UNKNOWN_MOST);
}

bool
om_hf_read(struct om_hf_model *m, const json_t *config, FILE *errors, FILE *warnings)
{
	struct reader r = { m, config, errors, warnings, false };
	const json_t *type = member(config, "model_type");
	char value[VALUE];

	memset(m, 0, sizeof *m);
	m->family = om_hf_family(json_string_value(type));
	if (!m->family) {
		fail(&r, "model_type %s%s%s; known are %s", type ? "= " : "is missing",
		    type ? shown(type, value) : "", type ? " is not known" : "", known_families());
		return false;
	}
	read_keys(&r);
	read_activation(&r);
	check_refused(&r);
	if (r.failed) /* what follows divides by some of them */
		return false;
	m->layers = (uint32_t)m->v[OM_HF_num_hidden_layers];
	read_windows(&r);
	for (uint32_t l = 0; l < m->layers; l++)
		m->moe[l] = om_hf_has_experts(m->family, m->v, l);
	if (m->family->moe == OM_HF_STEP)
		read_only_layers(&r);
	if (m->family->moe == OM_HF_LISTED)
		read_mlp_types(&r);
	settle(m);
	check_sizes(&r);
	if (m->family->rope_by_type)
		read_rope_by_type(&r);
	else
		read_rope_of_all(&r);
	if (!r.failed)
		unknown_keys(&r);
	return !r.failed;
}
