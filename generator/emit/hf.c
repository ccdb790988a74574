/*
 * Hugging Face's side of a model: which of transformers' architectures it is, its config.json, and
 * the names that differ from ours. field.def says how each field is exported.
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

/* What the layers say; NULL, or why no configuration can say it. */
static const char *
layer_facts(const struct graph *g, struct om_hf_model *m)
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
	}
	for (int k = 0; k < 2; k++)
		rope_facts(rope[k] ? rope[k] : rope[!k], &m->rope[k]);
	v[OM_HF_num_attention_heads] = (double)spec_int(at, F_attention_n_heads);
	v[OM_HF_num_key_value_heads] = (double)spec_int(at, F_attention_n_kv_heads);
	v[OM_HF_head_dim] = (double)spec_int(at, F_attention_head_dim);
	v[OM_HF_attention_bias] = strcmp(spec_str(at, F_attention_bias), "none") != 0;
	v[OM_HF_sliding_window] = window;
	const char *act[2] = { ffn[0] ? spec_str(ffn[0], F_mlp_activation) : NULL,
		ffn[1] ? spec_str(ffn[1], F_moe_activation) : NULL };
	m->activation = act[0] ? act[0] : act[1];
	m->hidden_act = strcmp(m->activation, "geglu") ? "silu" : "gelu_pytorch_tanh";
	if (act[0] && act[1] && strcmp(act[0], act[1]))
		return "mlp.activation and moe.activation differ";
	if (ffn[0])
		v[OM_HF_intermediate_size] = (double)spec_int(ffn[0], F_mlp_hidden_size);
	if (!ffn[1])
		return NULL;
	const struct object *router = spec_obj(ffn[1], F_moe_router);
	v[OM_HF_num_experts] = (double)spec_int(ffn[1], F_moe_num_experts);
	v[OM_HF_num_experts_per_tok] = (double)spec_int(ffn[1], F_moe_top_k);
	v[OM_HF_moe_intermediate_size] = (double)spec_int(ffn[1], F_moe_hidden_size);
	/* a softmax over the chosen ones is one over all, divided by the sum of the chosen */
	v[OM_HF_norm_topk_prob] = spec_int(router, F_router_normalize) ||
				  !strcmp(spec_str(router, F_router_score), "topk_softmax");
	v[OM_HF_router_aux_loss_coef] = spec_num(router, F_router_load_balance);
	return NULL;
}

/* What a family has of a model, in this order, and what is said of the first that it has not. */
static const char *const unlike[] = { "places its norms otherwise", "has another qk_norm",
	"has experts in other layers", "has no such windows",
	"has the same rotary embeddings in all layers", "has no biases in its attention",
	"divides the chosen weights by their sum", "has heads that make up the width",
	"has a width that its heads divide" };

/* How many of these a family has; all of them: the model is of the family. */
static unsigned
likeness(const struct om_hf_family *f, const struct om_hf_model *m, const char *placement,
    const char *qk_norm)
{
	uint32_t windows = 0, moes = 0;
	const double *v = m->v;
	double heads = v[OM_HF_num_attention_heads], width = v[OM_HF_hidden_size];
	unsigned n = 0;

	for (uint32_t l = 0; l < m->layers; l++) {
		windows += m->window[l] != 0;
		moes += m->moe[l];
	}
	const bool has[LEN(unlike)] = {
		!strcmp(f->placement, placement),
		!strcmp(f->qk_norm, qk_norm),
		f->moe == OM_HF_NO    ? !moes
		: f->moe == OM_HF_YES ? moes == m->layers
				      : moes > 0,
		!windows || f->windows == OM_HF_TYPES ||
		    (f->windows == OM_HF_ALL && windows == m->layers),
		f->rope_by_type || !memcmp(&m->rope[0], &m->rope[1], sizeof m->rope[0]),
		f->bias != OM_HF_NO || !v[OM_HF_attention_bias],
		f->normalize != OM_HF_YES || v[OM_HF_norm_topk_prob],
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
	const char *placement = spec_str(tr, F_transformer_norm_placement), *qk_norm;

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
	m->v[OM_HF_decoder_sparse_step] = 1;
	if ((*reason = not_said(tr)) || (*reason = layer_facts(g, m)))
		return;
	qk_norm = spec_str(g->seg.a[g->kind_of[0]].attention, F_attention_qk_norm);
	unsigned best = 0, most = 0;
	for (unsigned i = 0; i < OM_HF_FAMILIES && most < LEN(unlike); i++) {
		unsigned n = likeness(&om_hf_families[i], m, placement, qk_norm);
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
	const struct om_hf_row *row = &om_hf_keys[k];
	double usual = row->missing[m->family - om_hf_families];

	*x = k == OM_HF_use_sliding_window ? slides : m->v[k];
	if (k == OM_HF_intermediate_size && !*x) /* of experts, or of layers that are not there */
		*x = m->v[OM_HF_moe_intermediate_size];
	if (usual != usual || row->use == OM_HF_ONLY || k == OM_HF_output_router_logits)
		return false;
	return k == OM_HF_sliding_window ? slides : k != OM_HF_max_window_layers;
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
		buf_printf(&b, "  \"%s\": %s,\n", om_hf_keys[k].key, text);
		if (k == OM_HF_num_experts) /* some versions read the one, some the other */
			buf_printf(&b, "  \"num_local_experts\": %s,\n", text);
	}
	buf_printf(&b, "  \"hidden_act\": \"%s\",\n", m->hidden_act);
	ropes_json(m, &b);
	if (slides && m->family->windows == OM_HF_TYPES) {
		buf_puts(&b, "  \"layer_types\": [");
		for (uint32_t l = 0; l < m->layers; l++)
			buf_printf(&b, "%s\"%s_attention\"", l ? ", " : "",
			    m->window[l] > 0 ? "sliding" : "full");
		buf_puts(&b, "],\n");
	}
	if (m->family->moe == OM_HF_EITHER) {
		buf_puts(&b, "  \"mlp_only_layers\": [");
		for (uint32_t l = 0; l < m->layers; l++)
			if (!m->moe[l]) {
				buf_printf(&b, "%s%u", sep, l);
				sep = ", ";
			}
		buf_puts(&b, "],\n");
	}
	buf_printf(&b, "  \"torch_dtype\": \"%s\"\n}\n", dtype);
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

const struct om_hf_family *
hf_family_of(const struct graph *g)
{
	static struct om_hf_model m;
	const char *reason;

	find_model(g, &m, &reason);
	return m.family;
}

/*
 * The name under which transformers stores a parameter of this model; ours where that is the same.
 */
const char *
hf_name(const struct om_hf_family *m, const char *name)
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
