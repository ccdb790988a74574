/*
 * Hugging Face's side of a model: which of transformers' architectures it is, and its config.json.
 * field.def says how each field is exported.
 */
#include <stdlib.h>
#include <string.h>

#include "emit/emit.h"

/* ---- what can be exported -------------------------------------------------------------------- */

enum how { SAID, LAYER, ASIDE, INSIDE, ONE_OF };
#define ONLY(some, why) ONE_OF, some, why
static const struct said {
	enum how how;
	const char *some, *why;
} exported[N_FIELDS] = {
#define OBJECT(...)
#define FIELD(o, f, type, lo, hi, dflt, choices, how_, doc) { .how = how_ },
#include "lang/field.def"
#undef OBJECT
#undef FIELD
};

static double
as_number(const struct value *v)
{
	return fields[v->f].type == NUM ? v->num : (double)v->i;
}

/* Whether a value is one of those that can be said. */
static bool
sayable(const struct value *v, const char *some)
{
	return fields[v->f].type == ENUM ? spec_choice(some, v->str)
					 : as_number(v) == strtod(some, NULL);
}

/* The first field that no config.json can say, with its value and the reason; NULL: none. */
static const char *
not_said(const struct object *o)
{
	const char *odd = NULL;

	for (uint32_t f = 0; f < N_FIELDS && !odd; f++) {
		const struct said *row = &exported[f];
		if (fields[f].object != o->type)
			continue;
		const struct value *v = spec_value(o, (enum field_id)f);
		for (uint32_t i = 0; i < v->n && row->how == INSIDE && !odd; i++)
			odd = not_said(v->list[i]);
		if (row->how == ONE_OF && !sayable(v, row->some))
			odd = xprintf("%s = %s: %s", spec_name((enum field_id)f),
			    fields[v->f].type == ENUM ? v->str : spec_text(v), row->why);
	}
	return odd;
}

/* The first field that has to be the same in two layers, and is not; N_FIELDS: none. */
static enum field_id
differs(const struct object *a, const struct object *b)
{
	for (uint32_t f = 0; f < N_FIELDS; f++) {
		enum how how = exported[f].how;
		if (fields[f].object != a->type || how == ASIDE || how == LAYER)
			continue;
		const struct value *x = spec_value(a, (enum field_id)f),
				   *y = spec_value(b, (enum field_id)f);
		enum field_id inside = how == INSIDE ? differs(x->list[0], y->list[0]) : N_FIELDS;
		if (inside != N_FIELDS)
			return inside;
		if (how != INSIDE && strcmp(spec_text(x), spec_text(y)))
			return (enum field_id)f;
	}
	return N_FIELDS;
}

/* ---- a model's facts ------------------------------------------------------------------------- */

static void
rope_facts(const struct object *rope, struct om_hf_rope *p)
{
	static const enum object_type kinds[] = { [OM_HF_DEFAULT] = OBJ_unscaled,
		[OM_HF_LINEAR] = OBJ_linear_scaling,
		[OM_HF_YARN] = OBJ_yarn,
		[OM_HF_LLAMA3] = OBJ_llama3 };
	const struct object *scaling = spec_obj(rope, F_rope_scaling);

	for (unsigned i = 0; i < LEN(kinds); i++)
		if (kinds[i] == scaling->type)
			p->type = (enum om_hf_rope_type)i;
	p->v[0] = spec_num(rope, F_rope_theta);
	for (uint32_t f = 0; f < N_FIELDS; f++)
		for (unsigned i = 1; i < OM_HF_ROPES && fields[f].object == scaling->type; i++)
			if (!strcmp(fields[f].name, om_hf_ropes[i].field))
				p->v[i] = as_number(spec_value(scaling, (enum field_id)f));
}

/* Which layers have experts, as the keys of every family would say it. */
static void
place_facts(struct om_hf_model *m)
{
	double *v = m->v;
	uint32_t first = m->layers, last = 0, second = 0;

	for (uint32_t l = 0; l < m->layers; l++) {
		if (!m->moe[l])
			continue;
		second = first < l && !second ? l : second;
		first = first < l ? first : l;
		last = l;
	}
	v[OM_HF_decoder_sparse_step] = 1;
	v[OM_HF_first_k_dense_replace] = v[OM_HF_moe_layer_start_index] = first;
	v[OM_HF_moe_layer_end_index] = last;
	v[OM_HF_moe_layer_interval] = second ? second - first : 1;
}

/* What a layer with experts says; NULL, or why no configuration can say it. */
static const char *
expert_facts(const struct object *moe, struct om_hf_model *m, bool biased)
{
	const struct object *router = spec_obj(moe, F_moe_router);
	const char *score = spec_str(router, F_router_score);
	double hidden = (double)spec_int(moe, F_moe_hidden_size), *v = m->v,
	       shared = (double)spec_int(moe, F_moe_shared_hidden_size);
	bool chosen = !strcmp(score, "topk_softmax");

	/* a softmax over the chosen ones is one over all, divided by the sum of the chosen */
	m->score = chosen ? "softmax" : score;
	v[OM_HF_norm_topk_prob] = spec_int(router, F_router_normalize) || chosen;
	v[OM_HF_num_experts] = (double)spec_int(moe, F_moe_num_experts);
	v[OM_HF_num_experts_per_tok] = (double)spec_int(moe, F_moe_top_k);
	v[OM_HF_moe_intermediate_size] = hidden;
	v[OM_HF_shared_expert_intermediate_size] = shared;
	v[OM_HF_n_shared_experts] = shared / hidden;
	v[OM_HF_routed_scaling_factor] = spec_num(router, F_router_weight_scale);
	v[OM_HF_n_group] = (double)spec_int(router, F_router_n_groups);
	v[OM_HF_topk_group] = (double)spec_int(router, F_router_top_groups);
	v[OM_HF_router_aux_loss_coef] = spec_num(router, F_router_load_balance);
	return biased && chosen
		   ? "router.bias_gamma: no architecture has a bias of what topk_softmax chooses by"
		   : NULL;
}

/* What the layers say; NULL, or why no configuration can say it. */
static const char *
layer_facts(const struct graph *g, struct om_hf_model *m, bool *biased)
{
	const struct object *at = NULL, *ffn[2] = { NULL }, *rope[2] = { NULL };
	double window = 0, *v = m->v;

	for (uint32_t l = 0; l < g->n_layers; l++) {
		const struct segment *seg = &g->seg.a[g->kind_of[l]];
		double w = (double)spec_int(seg->attention, F_attention_window);
		bool moe = seg->ffn->type == OBJ_moe;
		const struct object *r = spec_obj(seg->attention, F_attention_rope);
		at = at ? at : seg->attention;
		ffn[moe] = ffn[moe] ? ffn[moe] : seg->ffn;
		rope[w != 0] = rope[w != 0] ? rope[w != 0] : r;
		enum field_id f = differs(at, seg->attention);
		f = f == N_FIELDS ? differs(ffn[moe], seg->ffn) : f;
		if (f != N_FIELDS)
			return xprintf("%s differs by layer", spec_name(f));
		if (r->type != OBJ_rope)
			return "attention.rope = nope: no architecture has layers without it";
		if (!spec_equal(rope[w != 0], r))
			return "attention.rope differs by layer";
		if (w && window && w != window)
			return "attention.window has several sizes";
		window = w ? w : window;
		m->window[l] = w;
		m->moe[l] = moe;
		*biased |=
		    moe && spec_num(spec_obj(seg->ffn, F_moe_router), F_router_bias_gamma) > 0;
	}
	for (int k = 0; k < 2; k++)
		rope_facts(rope[k] ? rope[k] : rope[!k], &m->rope[k]);
	m->qk_norm = spec_str(at, F_attention_qk_norm);
	m->bias = spec_str(at, F_attention_bias);
	v[OM_HF_use_qk_norm] = strcmp(m->qk_norm, "none") != 0;
	v[OM_HF_attention_bias] = strcmp(m->bias, "none") != 0;
	v[OM_HF_num_attention_heads] = (double)spec_int(at, F_attention_n_heads);
	v[OM_HF_num_key_value_heads] = (double)spec_int(at, F_attention_n_kv_heads);
	v[OM_HF_head_dim] = (double)spec_int(at, F_attention_head_dim);
	v[OM_HF_sliding_window] = window;
	const char *act[2] = { ffn[0] ? spec_str(ffn[0], F_mlp_activation) : NULL,
		ffn[1] ? spec_str(ffn[1], F_moe_activation) : NULL };
	m->activation = act[0] ? act[0] : act[1];
	m->hidden_act = strcmp(m->activation, "geglu") ? "silu" : "gelu_pytorch_tanh";
	if (act[0] && act[1] && strcmp(act[0], act[1]))
		return "mlp.activation and moe.activation differ";
	if (ffn[0])
		v[OM_HF_intermediate_size] = (double)spec_int(ffn[0], F_mlp_hidden_size);
	place_facts(m);
	return ffn[1] ? expert_facts(ffn[1], m, *biased) : NULL;
}

/* What a family has of a model, in this order, and what is said of the first that it has not. */
static const char *const unlike[] = { "places its norms otherwise", "has another qk_norm",
	"scores experts otherwise", "has experts in other layers", "has no such windows",
	"has the same rotary embeddings in all layers", "has no such biases in its attention",
	"divides the chosen weights by their sum", "has no such shared expert",
	"has no bias of the choice of experts", "does not scale the chosen weights",
	"does not choose among groups of two experts and more", "has heads that make up the width",
	"has a width that its heads divide" };

static bool
has_key(const struct om_hf_family *f, enum om_hf_key k)
{
	double usual = om_hf_missing(f, k);

	return usual == usual;
}

/* Whether the family's keys can say which layers have experts. */
static bool
same_places(const struct om_hf_family *f, const struct om_hf_model *m)
{
	bool any = false, same = true;

	for (uint32_t l = 0; l < m->layers; l++) {
		any |= m->moe[l];
		same &= m->moe[l] == om_hf_has_experts(f, m->v, l);
	}
	return any == (f->moe != OM_HF_DENSE) &&
	       (same || f->moe == OM_HF_STEP || f->moe == OM_HF_LISTED);
}

static bool
same_shared(const struct om_hf_family *f, const double *v)
{
	double shared = v[OM_HF_shared_expert_intermediate_size], n = v[OM_HF_n_shared_experts];

	return has_key(f, OM_HF_n_shared_experts)
		   ? n == (double)(uint64_t)n
		   : shared == 0 || has_key(f, OM_HF_shared_expert_intermediate_size);
}

/* How many of these a family has; all of them: the model is of the family. */
static unsigned
likeness(
    const struct om_hf_family *f, const struct om_hf_model *m, const char *placement, bool biased)
{
	uint32_t windows = 0;
	const double *v = m->v;
	double heads = v[OM_HF_num_attention_heads], width = v[OM_HF_hidden_size],
	       groups = v[OM_HF_n_group];
	unsigned n = 0;

	for (uint32_t l = 0; l < m->layers; l++)
		windows += m->window[l] != 0;
	const bool has[LEN(unlike)] = {
		!strcmp(f->placement, placement),
		!strcmp(f->qk_norm, m->qk_norm) ||
		    (has_key(f, OM_HF_use_qk_norm) && !v[OM_HF_use_qk_norm]),
		!m->score || f->sigmoid == !strcmp(m->score, "sigmoid"),
		same_places(f, m),
		!windows || f->windows == OM_HF_TYPES ||
		    (f->windows == OM_HF_ALL && windows == m->layers),
		f->rope_by_type || !memcmp(&m->rope[0], &m->rope[1], sizeof m->rope[0]),
		!v[OM_HF_attention_bias] ||
		    (f->bias != OM_HF_NO && f->open_output == !strcmp(m->bias, "qkv")),
		f->normalize != OM_HF_YES || v[OM_HF_norm_topk_prob],
		same_shared(f, v),
		f->choice_bias || !biased,
		has_key(f, OM_HF_routed_scaling_factor) || v[OM_HF_routed_scaling_factor] == 1 ||
		    !m->score,
		has_key(f, OM_HF_n_group) ? v[OM_HF_num_experts] >= 2 * groups : groups <= 1,
		!f->square || heads * v[OM_HF_head_dim] == width,
		!f->heads_divide || (uint64_t)width % (uint64_t)heads == 0,
	};
	while (n < LEN(unlike) && has[n])
		n++;
	return n;
}

/* The model as a config.json has it, but for its family; that is NULL, with the reason, if none. */
static void
find_model(const struct graph *g, struct om_hf_model *m, const char **reason)
{
	const struct object *tr = spec_obj(g->trainer, F_trainer_model);
	const char *placement = spec_str(tr, F_transformer_norm_placement);
	bool biased = false;

	memset(m, 0, sizeof *m);
	m->layers = g->n_layers;
	m->v[OM_HF_vocab_size] = (double)spec_int(tr, F_transformer_vocab_size);
	m->v[OM_HF_hidden_size] = (double)spec_int(tr, F_transformer_d_model);
	m->v[OM_HF_num_hidden_layers] = g->n_layers;
	m->v[OM_HF_max_position_embeddings] = (double)g->S;
	m->v[OM_HF_rms_norm_eps] = spec_num(spec_obj(tr, F_transformer_norm), F_rms_norm_eps);
	m->v[OM_HF_tie_word_embeddings] =
	    (double)spec_int(spec_obj(tr, F_transformer_lm_head), F_lm_head_tied);
	m->v[OM_HF_initializer_range] = spec_num(spec_obj(tr, F_transformer_init), F_normal_std);
	if ((*reason = not_said(tr)) || (*reason = layer_facts(g, m, &biased)))
		return;
	unsigned best = 0, most = 0;
	for (unsigned i = 0; i < OM_HF_FAMILIES && most < LEN(unlike); i++) {
		unsigned n = likeness(&om_hf_families[i], m, placement, biased);
		best = n > most ? i : best;
		most = n > most ? n : most;
	}
	if (most == LEN(unlike))
		m->family = &om_hf_families[best];
	else
		*reason = xprintf("no architecture is like it: %s, the closest, %s",
		    om_hf_families[best].model_type, unlike[most]);
}

/* ---- config.json ----------------------------------------------------------------------------- */

static void
rope_json(const struct om_hf_rope *p, struct buf *b)
{
	char text[32];

	buf_printf(b, "{\"rope_type\": \"%s\"", om_hf_rope_types[p->type]);
	for (unsigned i = 0; i < OM_HF_ROPES; i++)
		if (om_hf_ropes[i].types >> p->type & 1) {
			om_hf_number(text, om_hf_ropes[i].type, p->v[i]);
			buf_printf(b, ", \"%s\": %s", om_hf_ropes[i].key, text);
		}
	buf_puts(b, "}");
}

/*
 * rope_parameters is of transformers 5; older ones have rope_theta and rope_scaling, which cannot
 * say of sliding windows what is not the default.
 */
static void
ropes_json(const struct om_hf_model *m, struct buf *b)
{
	const struct om_hf_rope *full = &m->rope[0], *sliding = &m->rope[1];

	buf_puts(b, "  \"rope_parameters\": ");
	if (m->family->rope_by_type) {
		buf_puts(b, "{\n    \"full_attention\": ");
		rope_json(full, b);
		buf_puts(b, ",\n    \"sliding_attention\": ");
		rope_json(sliding, b);
		buf_puts(b, "\n  }");
	} else {
		rope_json(full, b);
	}
	buf_puts(b, ",\n");
	if (m->family->rope_by_type &&
	    (sliding->type != OM_HF_DEFAULT || sliding->v[0] != full->v[0]))
		return;
	buf_printf(b, "  \"rope_theta\": %s,\n", text_double(full->v[0]));
	if (full->type != OM_HF_DEFAULT) {
		buf_puts(b, "  \"rope_scaling\": ");
		rope_json(full, b);
		buf_puts(b, ",\n");
	}
}

/* Whether a key is written, and what: the family has it, and its default may not hold. */
static bool
written(const struct om_hf_model *m, enum om_hf_key k, bool slides, double *x)
{
	*x = k == OM_HF_use_sliding_window      ? slides
	     : k == OM_HF_partial_rotary_factor ? 1
						: m->v[k];
	if (k == OM_HF_intermediate_size && !*x) /* of experts, or of layers that are not there */
		*x = m->v[OM_HF_moe_intermediate_size];
	if (!has_key(m->family, k) || om_hf_keys[k].use == OM_HF_ONLY ||
	    k == OM_HF_output_router_logits ||
	    (k == OM_HF_partial_rotary_factor && om_hf_missing(m->family, k) == 1))
		return false;
	return k == OM_HF_sliding_window ? slides : k != OM_HF_max_window_layers;
}

/* A list of a text for each layer. */
static void
types_json(const char *key, const struct om_hf_model *m, const char *texts[2], struct buf *b)
{
	buf_printf(b, "  \"%s\": [", key);
	for (uint32_t l = 0; l < m->layers; l++)
		buf_printf(b, "%s\"%s\"", l ? ", " : "",
		    texts[*key == 'm' ? m->moe[l] : m->window[l] > 0]);
	buf_puts(b, "],\n");
}

static const char *
config_json(const struct om_hf_model *m, const char *dtype)
{
	struct buf b = { 0 };
	bool slides = m->v[OM_HF_sliding_window] > 0;
	const char *sep = "";
	char text[32];
	double x;

	buf_printf(&b, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
	    m->family->architecture, m->family->model_type);
	for (int k = 0; k < OM_HF_KEYS; k++) {
		if (!written(m, (enum om_hf_key)k, slides, &x))
			continue;
		om_hf_number(text, om_hf_keys[k].type, x);
		const char *name = om_hf_key_name(m->family, (enum om_hf_key)k);
		const char *other = om_hf_other_name(m->family, (enum om_hf_key)k);
		buf_printf(&b, "  \"%s\": %s,\n", name, text);
		if (other && !strcmp(name, "num_experts")) /* versions read the one or the other */
			buf_printf(&b, "  \"%s\": %s,\n", other, text);
	}
	buf_printf(&b, "  \"hidden_act\": \"%s\",\n", m->hidden_act);
	ropes_json(m, &b);
	if (m->family->windows == OM_HF_TYPES &&
	    (slides || !has_key(m->family, OM_HF_use_sliding_window)))
		types_json("layer_types", m,
		    (const char *[]){ "full_attention", "sliding_attention" }, &b);
	if (m->family->moe == OM_HF_LISTED)
		types_json("mlp_layer_types", m, (const char *[]){ "dense", "sparse" }, &b);
	if (m->family->moe == OM_HF_STEP) {
		buf_puts(&b, "  \"mlp_only_layers\": [");
		for (uint32_t l = 0; l < m->layers; l++)
			if (!m->moe[l]) {
				buf_printf(&b, "%s%u", sep, l);
				sep = ", ";
			}
		buf_puts(&b, "],\n");
	}
	/* some families' own is beyond small vocabularies, or has no gradient */
	buf_printf(&b, "  \"pad_token_id\": null,\n  \"torch_dtype\": \"%s\"\n}\n", dtype);
	return b.s;
}

/* What was written, read as import reads it, is the model: the trainer compares by it. */
static void
check_config(const char *json, const struct om_hf_model *m)
{
	static struct om_hf_model back;
	struct om_hf_difference d;
	char why[OM_JSON_WHY], *said = NULL;
	size_t n;
	FILE *f = open_memstream(&said, &n);
	json_t *config = om_json_parse(json, strlen(json), why);

	if (!f)
		internal("config.json: out of memory");
	if (!config)
		internal("config.json: %s", why);
	bool read = om_hf_read(&back, config, f, f);
	fclose(f);
	if (!read || n)
		internal("config.json: %s", said);
	if (om_hf_differ(&back, m, &d))
		internal("config.json: %s = %s, the model's is %s", d.what, d.a, d.b);
	json_decref(config);
	free(said);
}

const char *
hf_config(const struct graph *g, const char **reason)
{
	static struct om_hf_model m;
	const struct object *pr = spec_obj(g->trainer, F_trainer_precision);
	const char *json;

	find_model(g, &m, reason);
	if (!m.family)
		return NULL;
	json = config_json(
	    &m, strcmp(spec_str(pr, F_precision_weights), "bf16") ? "float32" : "bfloat16");
	check_config(json, &m);
	return json;
}
