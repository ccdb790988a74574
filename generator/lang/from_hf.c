/*
 * --from-hf DIR: prints a description of the model of a Hugging Face config.json. What the language
 * cannot say is refused by name; what could mean something and is not known is warned about.
 */
#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hf_config.h" /* of runtime/ */
#include "lang/lang.h"

/* Each line of a text on its own; frees it. */
static void
say(const char *what, const char *path, char *lines)
{
	for (char *s = lines, *end; s && (end = strchr(s, '\n')); s = end + 1)
		fprintf(stderr, "olmogen: %s: %s: %.*s\n", what, path, (int)(end - s), s);
	free(lines);
}

static void
rope_text(const struct om_hf_rope *p, struct buf *b)
{
	static const char *const constructor[] = {
		[OM_HF_LINEAR] = "linear_scaling", [OM_HF_YARN] = "yarn", [OM_HF_LLAMA3] = "llama3"
	};
	const char *sep = "";

	buf_printf(b, "rope { theta = %s", text_double(p->v[0]));
	if (p->type != OM_HF_DEFAULT) {
		buf_printf(b, ", scaling = %s { ", constructor[p->type]);
		for (unsigned i = 1; i < OM_HF_ROPES; i++)
			if (om_hf_ropes[i].types >> p->type & 1) {
				buf_printf(b, "%s%s = %s", sep, om_hf_ropes[i].field,
				    om_hf_ropes[i].type == OM_HF_INT ? xprintf("%.0f", p->v[i])
								     : text_double(p->v[i]));
				sep = ", ";
			}
		buf_puts(b, " }");
	}
	buf_puts(b, " }");
}

/*
 * What layers have: the one text that is of all of them, or a function that gives the first one to
 * those that are listed.
 */
static void
by_layer(const char *field, const char *list, const bool *first, uint32_t n, const char *text[2],
    struct buf *b)
{
	uint32_t count = 0;
	const char *sep = "";

	for (uint32_t l = 0; l < n; l++)
		count += first[l];
	if (!count || count == n) {
		buf_printf(b, "    %s = %s,\n", field, text[!count]);
		return;
	}
	buf_printf(b, "    %s = function(layer)\n      local %s = {", field, list);
	for (uint32_t l = 0; l < n; l++)
		if (first[l]) {
			buf_printf(b, "%s [%u] = true", sep, l);
			sep = ",";
		}
	buf_printf(b, " }\n      if %s[layer] then return %s end\n      return %s\n    end,\n",
	    list, text[0], text[1]);
}

static void
attention_text(const struct om_hf_model *m, struct buf *b)
{
	bool full[OM_HF_LAYERS];
	struct buf at[2] = { { 0 } };

	for (uint32_t l = 0; l < m->layers; l++)
		full[l] = !m->window[l];
	for (int k = 0; k < 2; k++) {
		buf_printf(&at[k],
		    "attention {\n        n_heads = %.0f, n_kv_heads = %.0f, head_dim = %.0f,\n"
		    "        qk_norm = \"%s\", bias = \"%s\", window = %.0f,\n        rope = ",
		    m->v[OM_HF_num_attention_heads], m->v[OM_HF_num_key_value_heads],
		    m->v[OM_HF_head_dim], m->qk_norm, m->bias, k ? m->v[OM_HF_sliding_window] : 0);
		rope_text(&m->rope[k], &at[k]);
		buf_puts(&at[k], ",\n      }");
	}
	by_layer("attention", "full", full, m->layers, (const char *[]){ at[0].s, at[1].s }, b);
}

/* A router, in as few fields as say what it is. */
static const char *
router_text(const struct om_hf_model *m)
{
	const double *v = m->v;
	struct buf b = { 0 };

	buf_puts(&b, "router { ");
	if (m->family->sigmoid)
		buf_puts(&b, "score = \"sigmoid\", ");
	buf_printf(&b, "normalize = %s, ", v[OM_HF_norm_topk_prob] != 0 ? "true" : "false");
	if (v[OM_HF_routed_scaling_factor] != 1)
		buf_printf(&b, "weight_scale = %s, ", text_double(v[OM_HF_routed_scaling_factor]));
	if (v[OM_HF_n_group] != 1)
		buf_printf(&b, "n_groups = %.0f, top_groups = %.0f, ", v[OM_HF_n_group],
		    v[OM_HF_topk_group]);
	if (m->family->choice_bias)
		buf_puts(&b, "bias_gamma = 0.001, ");
	buf_printf(
	    &b, "load_balance = %s, z_loss = 0 }", text_double(v[OM_HF_router_aux_loss_coef]));
	return b.s;
}

static void
feed_forward_text(const struct om_hf_model *m, struct buf *b)
{
	const char *act =
	    strcmp(m->activation, "swiglu") ? xprintf(", activation = \"%s\"", m->activation) : "";
	double shared_size = m->v[OM_HF_shared_expert_intermediate_size];
	const char *shared = shared_size ? xprintf(", shared_hidden_size = %.0f", shared_size) : "";
	const char *said =
	    m->family->choice_bias
		? "        -- transformers does not say how the bias of the choice was moved\n"
		: "        -- transformers adds this loss only where output_router_logits is "
		  "true\n";
	bool dense[OM_HF_LAYERS];

	for (uint32_t l = 0; l < m->layers; l++)
		dense[l] = !m->moe[l];
	by_layer("feed_forward", "dense", dense, m->layers,
	    (const char *[]){
		xprintf("mlp { hidden_size = %.0f%s }", m->v[OM_HF_intermediate_size], act),
		xprintf("moe {\n        num_experts = %.0f, top_k = %.0f, hidden_size = %.0f%s%s,\n"
			"%s        router = %s,\n      }",
		    m->v[OM_HF_num_experts], m->v[OM_HF_num_experts_per_tok],
		    m->v[OM_HF_moe_intermediate_size], shared, act, said, router_text(m)) },
	    b);
}

/* What -D sets of the description's own sizes. */
enum { LENGTH, MICRO, GLOBAL, N_SIZES };
static const char *const size_names[] = { "sequence_length", "micro", "global" };

static void
describe(const struct om_hf_model *m, const char *name, const char *target,
    const unsigned long size[N_SIZES], struct buf *b)
{
	double longest = m->v[OM_HF_max_position_embeddings];

	buf_printf(b,
	    "-- The model of a Hugging Face config.json (%s), by olmogen --from-hf. What is "
	    "trained "
	    "at once\n-- is yours to choose, here or by -D sequence_length=N, -D micro=N and -D "
	    "global=N.\nreturn trainer {\n  name = \"%s\",\n",
	    m->family->model_type, name);
	if (target)
		buf_printf(b, "  target = \"%s\",\n", target);
	buf_printf(b,
	    "  model = transformer {\n    vocab_size = %.0f,\n    d_model = %.0f,\n"
	    "    n_layers = %u,\n    sequence_length = arg.sequence_length or %lu, -- "
	    "max_position_embeddings is %.0f\n",
	    m->v[OM_HF_vocab_size], m->v[OM_HF_hidden_size], m->layers, size[LENGTH], longest);
	buf_printf(b, "    norm = rms_norm { eps = %s },\n    norm_placement = \"%s\",\n",
	    text_double(m->v[OM_HF_rms_norm_eps]), m->family->placement);
	attention_text(m, b);
	feed_forward_text(m, b);
	buf_printf(b,
	    "    lm_head = lm_head { tied = %s },\n    init = normal { std = %s },\n  },\n"
	    "  batch = batch { micro = arg.micro or %lu, global = arg.global or %lu },\n}\n",
	    m->v[OM_HF_tie_word_embeddings] != 0 ? "true" : "false",
	    text_double(m->v[OM_HF_initializer_range]), size[MICRO], size[GLOBAL]);
}

/* The sizes that -D gives; false, said why, where it gives something else. */
static bool
take_sizes(const struct define *defs, uint32_t n, unsigned long size[N_SIZES])
{
	for (uint32_t i = 0; i < n; i++) {
		unsigned k = 0;
		char *end;
		while (k < N_SIZES && strcmp(size_names[k], defs[i].name))
			k++;
		if (k == N_SIZES)
			return diag_failed(
			    "--from-hf reads no -D %s; it takes -D sequence_length=N, -D "
			    "micro=N and -D global=N",
			    defs[i].name);
		size[k] = strtoul(defs[i].value, &end, 10);
		if (!strchr("123456789", *defs[i].value) || *end || size[k] > 1u << 30)
			return diag_failed("-D %s=%s: must be a whole number in 1 .. %u",
			    defs[i].name, defs[i].value, 1u << 30);
	}
	if (!size[MICRO])
		size[MICRO] = 1;
	if (!size[GLOBAL])
		size[GLOBAL] = size[MICRO];
	return true;
}

/* The folder's last part, in the letters that a name may have. */
static const char *
name_of(const char *dir)
{
	struct buf name = { 0 };

	for (const char *base = basename(xstrdup(dir)); *base; base++)
		if (strchr(spec_name_letters, *base) && name.n < NAME_LENGTH_MAX)
			buf_add(&name, base, 1);
	return name.n && *name.s != '.' && *name.s != '-' ? name.s : "from-hf";
}

/* The known family that an unknown model_type is close to; NULL: none. */
static const char *
closest_family(const json_t *config)
{
	const char *type = json_string_value(json_object_get(config, "model_type"));
	const char *names[OM_HF_FAMILIES];

	for (unsigned i = 0; i < OM_HF_FAMILIES; i++)
		names[i] = om_hf_families[i].model_type;
	return type && !om_hf_family(type) ? diag_closest(type, names, OM_HF_FAMILIES) : NULL;
}

bool
from_hf(const char *dir, const struct target_row *target, const struct define *defs, uint32_t n)
{
	static struct om_hf_model m;
	const char *path = xprintf("%s/config.json", dir), *closest;
	char why[OM_JSON_WHY], *lines[2];
	unsigned long size[N_SIZES] = { 0 };
	struct buf b = { 0 };
	size_t len[2];

	if (!take_sizes(defs, n, size))
		return false;
	json_t *config = om_json_file(path, why);
	if (!config)
		return diag_failed("%s: %s%s", path, why,
		    errno == ENOENT || errno == ENOTDIR
			? "; give the folder of a Hugging Face model"
			: "");
	FILE *errors = open_memstream(&lines[0], &len[0]),
	     *warnings = open_memstream(&lines[1], &len[1]);
	if (!errors || !warnings)
		internal("out of memory");
	bool ok = om_hf_read(&m, config, errors, warnings);
	fclose(errors);
	fclose(warnings);
	say("error", path, lines[0]);
	say("warning", path, lines[1]);
	if ((closest = closest_family(config)))
		fprintf(stderr, "  help: %s is the closest\n", closest);
	json_decref(config);
	if (!ok)
		return false;
	double longest = m.v[OM_HF_max_position_embeddings];
	bool device = target && target->tflops > 0;
	if (size[LENGTH] > longest)
		fprintf(stderr,
		    "olmogen: warning: %s: sequence_length = %lu is more than "
		    "max_position_embeddings = %.0f\n",
		    path, size[LENGTH], longest);
	if (!size[LENGTH]) /* what a first run of the target does in seconds */
		size[LENGTH] = (unsigned long)fmin(longest, device ? 4096 : 1024);
	describe(&m, name_of(dir), target ? target->name : NULL, size, &b);
	fwrite(b.s, 1, b.n, stdout);
	return true;
}
