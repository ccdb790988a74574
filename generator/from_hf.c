/*
 * --from-hf DIR: reads a Hugging Face config.json and prints a description of the same model. What
 * the language cannot say is refused by name; nothing is passed over that would change the model.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "olmogen.h"

static const char *path;
static bool failed;

static void
refuse(const char *fmt, const char *a, const char *b)
{
	fprintf(stderr, "olmogen: error: %s: ", path);
	fprintf(stderr, fmt, a, b);
	fputc('\n', stderr);
	failed = true;
}

/* NULL where it is missing or null. */
static const json_t *
member(const json_t *j, const char *key)
{
	const json_t *v = json_object_get(j, key);
	return json_is_null(v) ? NULL : v;
}

/* The value as JSON has it. */
static const char *
shown(const json_t *v)
{
	return json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
}

/* NULL where it is missing. */
static const char *
text(const json_t *j, const char *key)
{
	const json_t *v = member(j, key);
	if (v && !json_is_string(v))
		refuse("%s = %s is not a text", key, shown(v));
	return json_string_value(v);
}

static double
number(const json_t *j, const char *key, double missing)
{
	const json_t *v = member(j, key);
	double x = v ? json_number_value(v) : missing;

	if (v && !json_is_number(v))
		refuse("%s = %s is not a number", key, shown(v));
	if (isnan(x)) {
		refuse("%s is missing%s", key, "");
		return 1;
	}
	return x;
}

static bool
yes(const json_t *j, const char *key)
{
	const json_t *v = member(j, key);
	if (v && !json_is_boolean(v))
		refuse("%s = %s is neither true nor false", key, shown(v));
	return json_is_true(v);
}

static const json_t *
mapping(const json_t *j, const char *key)
{
	const json_t *v = member(j, key);
	return json_is_object(v) ? v : NULL;
}

static void
rope_text(const json_t *j, bool slides, struct buf *b)
{
	/*
	 * transformers 5 has rope_parameters, for some models one a layer type; before:
	 * rope_scaling
	 */
	const json_t *p = mapping(j, "rope_parameters");
	const json_t *of_type = mapping(p, slides ? "sliding_attention" : "full_attention");
	p = of_type ? of_type : p;
	const json_t *sc = p ? p : mapping(j, "rope_scaling");
	double theta = number(j, "rope_theta", 10000);

	if (p)
		theta = number(p, "rope_theta", theta);
	const char *type = sc ? text(sc, "rope_type") : NULL;

	if (sc && !type)
		type = text(sc, "type");
	buf_printf(b, "rope { theta = %s", emit_double(theta));
	if (type && !strcmp(type, "linear")) {
		buf_printf(b, ", scaling = linear_scaling { factor = %s }",
		    emit_double(number(sc, "factor", NAN)));
	} else if (type && !strcmp(type, "yarn")) {
		double factor = number(sc, "factor", NAN);
		const json_t *truncate = member(sc, "truncate");
		if (member(sc, "mscale") || json_is_false(truncate))
			refuse("yarn with mscale or without truncation is not known%s%s", "", "");
		buf_printf(b,
		    ", scaling = yarn { factor = %s, original_length = %.0f, beta_fast = %s, "
		    "beta_slow = %s, attention_factor = %s }",
		    emit_double(factor),
		    number(sc, "original_max_position_embeddings",
			number(j, "max_position_embeddings", NAN)),
		    emit_double(number(sc, "beta_fast", 32)),
		    emit_double(number(sc, "beta_slow", 1)),
		    emit_double(number(sc, "attention_factor", 0.1 * log(factor) + 1)));
	} else if (type && !strcmp(type, "llama3")) {
		buf_printf(b,
		    ", scaling = llama3 { factor = %s, original_length = %.0f, "
		    "low_freq_factor = %s, high_freq_factor = %s }",
		    emit_double(number(sc, "factor", NAN)),
		    number(sc, "original_max_position_embeddings", NAN),
		    emit_double(number(sc, "low_freq_factor", 1)),
		    emit_double(number(sc, "high_freq_factor", 4)));
	} else if (type && strcmp(type, "default")) {
		refuse("rope_type = %s is not known%s", type, "");
	}
	buf_puts(b, " }");
}

static bool
listed(const json_t *j, const char *key, uint32_t l)
{
	const json_t *list = member(j, key);

	for (size_t i = 0; i < json_array_size(list); i++)
		if (om_json_whole(json_array_get(list, i)) == l)
			return true;
	return false;
}

/* The l-th entry of layer_types is "sliding_attention". */
static bool
sliding(const json_t *j, uint32_t l)
{
	const char *type = json_string_value(json_array_get(member(j, "layer_types"), l));

	return type && !strcmp(type, "sliding_attention");
}

static void
describe(const json_t *j, const char *name, struct buf *b)
{
	const char *type = text(j, "model_type");
	const struct hf_family *family = hf_family(type);
	uint32_t windows = 0, dense = 0;

	if (!family) {
		refuse("model_type %s is not known; known are llama, qwen3, olmo2, olmo3, olmoe, "
		       "qwen3_moe, "
		       "mixtral%s",
		    type ? type : "(missing)", "");
		return;
	}
	double d = number(j, "hidden_size", NAN), heads = number(j, "num_attention_heads", NAN);
	double kv = number(j, "num_key_value_heads", heads),
	       layers = number(j, "num_hidden_layers", NAN);
	double head_dim = number(j, "head_dim", floor(d / heads)),
	       seq = number(j, "max_position_embeddings", NAN);
	double window = number(j, "sliding_window", 0),
	       hidden = number(j, "intermediate_size", NAN);
	const char *act = text(j, "hidden_act");
	if (act && strcmp(act, "silu") && strcmp(act, "swish"))
		refuse("hidden_act = %s: only silu is known%s", act, "");
	if (yes(j, "mlp_bias"))
		refuse("mlp_bias = %s is not known%s", "true", "");
	if (member(j, "clip_qkv"))
		refuse("clip_qkv = %s is not known%s", shown(member(j, "clip_qkv")), "");
	if (yes(j, "use_sliding_window"))
		refuse("use_sliding_window = %s is not known%s", "true", "");
	if (family->moe && number(j, "decoder_sparse_step", 1) != 1)
		refuse("decoder_sparse_step = %s: only 1 is known%s",
		    shown(member(j, "decoder_sparse_step")), "");
	if (!(layers >= 1 && layers <= 1024)) {
		refuse("num_hidden_layers is not in 1 .. 1024%s%s", "", "");
		return;
	}
	for (uint32_t l = 0; l < (uint32_t)layers; l++) {
		windows += window > 0 && sliding(j, l);
		dense += family->moe && listed(j, "mlp_only_layers", l);
	}
	if (window > 0 && !windows && !strcmp(type, "mixtral"))
		windows = (uint32_t)layers;

	buf_printf(b,
	    "-- from a Hugging Face config.json; the batch is yours to choose\nreturn trainer {\n"
	    "  name = \"%s\",\n  model = transformer {\n",
	    name);
	buf_printf(b,
	    "    vocab_size = %.0f,\n    d_model = %.0f,\n    n_layers = %.0f,\n"
	    "    sequence_length = tonumber(arg.sequence_length) or %.0f,\n",
	    number(j, "vocab_size", NAN), d, layers, seq);
	buf_printf(b, "    norm = rms_norm { eps = %s },\n    norm_placement = \"%s\",\n",
	    emit_double(number(j, "rms_norm_eps", 1e-6)), family->placement);
	/* full attention and the sliding kind; what all layers are stands alone */
	struct buf at[2] = { { 0 } };
	for (int k = 0; k < 2; k++) {
		buf_printf(&at[k],
		    "attention {\n        n_heads = %.0f, n_kv_heads = %.0f, head_dim = %.0f,\n"
		    "        qk_norm = \"%s\", bias = \"%s\", window = %.0f,\n        rope = ",
		    heads, kv, head_dim, family->qk_norm, yes(j, "attention_bias") ? "all" : "none",
		    k ? window : 0);
		rope_text(j, k, &at[k]);
		buf_puts(&at[k], ",\n      }");
	}
	if (windows && windows < (uint32_t)layers) {
		buf_puts(b, "    attention = function(layer)\n      local full = {");
		const char *sep = "";
		for (uint32_t l = 0; l < (uint32_t)layers; l++)
			if (!sliding(j, l)) {
				buf_printf(b, "%s [%u] = true", sep, l);
				sep = ",";
			}
		buf_printf(b,
		    " }\n      if full[layer] then return %s end\n      return %s\n    end,\n",
		    at[0].s, at[1].s);
	} else {
		buf_printf(b, "    attention = %s,\n", at[windows != 0].s);
	}
	const char *mlp = xprintf("mlp { hidden_size = %.0f }", hidden);
	if (!family->moe) {
		buf_printf(b, "    feed_forward = %s,\n", mlp);
	} else {
		double experts =
		    number(j, member(j, "num_experts") ? "num_experts" : "num_local_experts", NAN);
		const char *moe = xprintf(
		    "moe {\n        num_experts = %.0f, top_k = %.0f, hidden_size = %.0f,\n"
		    "        router = router { normalize = %s, load_balance = %s, z_loss = 0 },\n"
		    "      }",
		    experts, number(j, "num_experts_per_tok", NAN),
		    number(j, "moe_intermediate_size", hidden),
		    family->normalize == YES || yes(j, "norm_topk_prob") ? "true" : "false",
		    emit_double(number(j, "router_aux_loss_coef", 0.001)));
		if (!dense) {
			buf_printf(b, "    feed_forward = %s,\n", moe);
		} else {
			buf_puts(b, "    feed_forward = function(layer)\n      local dense = {");
			const char *sep = "";
			for (uint32_t l = 0; l < (uint32_t)layers; l++)
				if (listed(j, "mlp_only_layers", l)) {
					buf_printf(b, "%s [%u] = true", sep, l);
					sep = ",";
				}
			buf_printf(b,
			    " }\n      if dense[layer] then return %s end\n      return %s\n    "
			    "end,\n",
			    mlp, moe);
		}
	}
	buf_printf(b,
	    "    lm_head = lm_head { tied = %s },\n    init = normal { std = %s },\n  },\n",
	    yes(j, "tie_word_embeddings") ? "true" : "false",
	    emit_double(number(j, "initializer_range", 0.02)));
	buf_puts(b, "  batch = batch { micro = 1, global = tonumber(arg.global) or 1 },\n}\n");
}

bool
from_hf(const char *dir)
{
	struct buf b = { 0 }, name = { 0 };
	char why[OM_JSON_WHY];
	const char *base = dir + strlen(dir);

	path = xprintf("%s/config.json", dir);
	json_t *config = om_json_file(path, why);
	if (!config) {
		refuse("%s%s", why,
		    errno == ENOENT ? "; give the folder of a Hugging Face model" : "");
		return false;
	}
	/* the folder's last part, in the letters that a name may have */
	while (base > dir && base[-1] == '/')
		base--;
	const char *end = base;
	while (base > dir && base[-1] != '/')
		base--;
	for (; base < end; base++)
		if (strchr(
			"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *base))
			buf_add(&name, base, 1);
	describe(config, name.n && *name.s != '.' && *name.s != '-' ? name.s : "from-hf", &b);
	if (!failed)
		fwrite(b.s, 1, b.n, stdout);
	return !failed;
}
