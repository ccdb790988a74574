/*
 * From a complete description to the graph of one microbatch and the update, for all layers by
 * kind.
 */
#include <string.h>

#include "graph/graph.h"
#include "rng.h"

/* A table of cosines and sines, made once for all layers that have the same. */
struct rope_made {
	const struct object *rope;
	uint64_t head_dim;
	tensor_id table;
};

/* The segment being built and the line of resolved.lua that its next ops and tensors stand for. */
struct builder {
	struct graph *g;
	uint32_t seg;
	const struct line *line;
	uint64_t B, T;  /* sequences and tokens: of a microbatch, or rows of decode or a prompt */
	uint32_t shift; /* of these two: from a segment of training to the one built; 0: training */
	tensor_id at;   /* of these two: position and sequence of each row */
	ARRAY(struct rope_made) ropes;
};

#define ATTN "model.layers.%l.self_attn."

/*
 * Weights, buffers and statistics of decode and prompts are those of training, and prompts have the
 * caches of decode; 0: it is none.
 */
static tensor_id
of_others(const struct builder *b, const char *name, enum tensor_class c)
{
	const struct graph *g = b->g;
	uint32_t seg = b->seg - b->shift;

	if (c == T_CACHE && b->seg >= g->prompt)
		seg = b->seg - (g->prompt - g->decode);
	else if (c != T_PARAM && c != T_GRAD && c != T_BUFFER && c != T_STAT)
		return 0;
	for (tensor_id t = g->seg.a[seg].first; g->tensor.a[t].seg <= seg; t++)
		if (g->tensor.a[t].seg == seg && g->tensor.a[t].class == c &&
		    !strcmp(tensor_short_name(g, t), name))
			return t;
	return 0;
}

/* A format for each role. */
static void
choose_formats(struct graph *g)
{
	const struct object *pr = g->trainer;
	const struct format *weight = format_find(spec_str(pr, F_precision_weights));

	memcpy(g->format,
	    (const struct format *[N_ROLES]){
		[ROLE_ACT] = weight,
		[ROLE_STAT] = weight->bits < 32 ? format_find("fp32") : weight,
		[ROLE_GRAD] = format_find(spec_str(pr, F_precision_grads)),
		[ROLE_MOMENT] = format_find(spec_str(pr, F_precision_moments)),
		[ROLE_INT32] = format_find("int32"),
		[ROLE_INT64] = format_find("int64"),
		[ROLE_FP64] = format_find("fp64"),
		[ROLE_EIGHT] = format_find("e4m3"),
		[ROLE_SCALE] = format_find("e8m0"),
		[ROLE_SCALE32] = format_find("fp32"),
		[ROLE_WEIGHT] = weight,
		[ROLE_ROWS] = weight,
		[ROLE_MASTER] = format_find(spec_str(pr, F_precision_optimizer)),
	    },
	    sizeof g->format);
}

static tensor_id
tensor(struct builder *b, const char *name, enum tensor_class c, enum role r, int ndims,
    const uint64_t *dim)
{
	tensor_id id = b->shift ? of_others(b, name, c) : 0;

	if (id)
		return id;
	id = graph_tensor(b->g, name, c, r, b->seg);
	struct tensor *t = &b->g->tensor.a[id];
	t->ndims = (uint8_t)ndims;
	if (ndims)
		memcpy(t->dim, dim, (size_t)ndims * sizeof *dim);
	t->line = b->line;
	if (!b->g->seg.a[b->seg].first)
		b->g->seg.a[b->seg].first = id;
	return id;
}
#define DIMS(...)                                             \
	(int)LEN(((uint64_t[]){ __VA_ARGS__ })), (uint64_t[]) \
	{                                                     \
		__VA_ARGS__                                   \
	}
#define ACT(b, name, ...) tensor(b, name, T_ACT, ROLE_ACT, DIMS(__VA_ARGS__))

/* A weight with its gradient; hf: its checkpoint name; copies: ranks that have the same of it. */
static tensor_id
param(struct builder *b, const char *name, const char *hf, enum om_group copies, int ndims,
    const uint64_t *dim)
{
	struct graph *g = b->g;
	tensor_id id = tensor(b, name, T_PARAM, ROLE_WEIGHT, ndims, dim);
	tensor_id grad = tensor(b, xprintf("g_%s", name), T_GRAD, ROLE_GRAD, ndims, dim);

	g->tensor.a[grad].param = id;
	g->tensor.a[grad].sum = g->tensor.a[id].copies = copies;
	g->tensor.a[id].grad = grad;
	g->tensor.a[id].hf = hf;
	g->tensor.a[id].init = ndims == 1 ? INIT_ONE : INIT_NORMAL;
	return id;
}

/*
 * Adds an op. Each tensor that it gives, where none is said, has the next name, and the shape and
 * role of op.def. It is an activation, or what an op adds to: a statistic of all data ranks.
 */
static struct op
op(struct builder *b, const char *const *name, struct op o)
{
	const struct op_row *r = op_row(o.op);

	o.line = b->line;
	for (uint8_t i = r->nin; i < r->nargs; i++)
		if (!o.arg[i] && !r->arg[i].optional) {
			bool sum = r->arg[i].accumulate;
			o.arg[i] =
			    tensor(b, *name++, sum ? T_STAT : T_ACT, r->arg[i].role, 0, NULL);
			b->g->tensor.a[o.arg[i]].sum = sum ? OM_DATA : OM_ALONE;
		}
	op_shape(b->g, &o);
	*PUSH(b->g->seg.a[b->seg].ops[FORWARD]) = o;
	return o;
}

/* The same; what it gives, of several the first. */
static tensor_id
result(struct builder *b, const char *const *name, struct op o)
{
	return op(b, name, o).arg[op_row(o.op)->nin];
}
#define NAMES(...) ((const char *const[]){ __VA_ARGS__ })
#define OP_(...) ((struct op){ __VA_ARGS__ })

static uint64_t
size_of(const struct object *o, enum field_id f)
{
	return (uint64_t)spec_int(o, f);
}

static uint32_t
segment(struct graph *g, const char *name)
{
	struct segment *s = PUSH(g->seg);

	s->name = name;
	return g->seg.n - 1;
}

/* A product with n results; pre tells the shared expert's tensors from a dense layer's. */
static tensor_id
linear(struct builder *b, const char *pre, const char *hf, const char *name, tensor_id x,
    uint64_t n, const char *out)
{
	tensor_id w = param(b, xprintf("%s%s_proj", pre, name),
	    xprintf("%s%s_proj.weight", hf, name), OM_DATA, DIMS(n, b->g->tensor.a[x].dim[1]));

	return result(b, NAMES(xprintf("%s%s", pre, out)), OP_(OP_linear, .arg = { x, w }));
}

/* Of attention's product of that name. */
static tensor_id
bias(struct builder *b, const char *name, tensor_id x, const char *out)
{
	tensor_id c = param(b, xprintf("%s_bias", name), xprintf("%s%s_proj.bias", ATTN, name),
	    OM_DATA, DIMS(b->g->tensor.a[x].dim[1]));

	b->g->tensor.a[c].init = INIT_ZERO;
	return result(b, NAMES(out), OP_(OP_bias, .arg = { x, c }));
}

/* RMS norm over heads groups of each row with a weight; heads = 1 is the whole row. */
static tensor_id
norm_by(struct builder *b, tensor_id w, tensor_id x, uint64_t heads, const char *out)
{
	double eps = spec_num(b->g->trainer, F_rms_norm_eps);

	return result(b, NAMES(out, xprintf("%s_rms", out)),
	    OP_(OP_rmsnorm, .arg = { x, w }, .ints = { heads }, .floats = { eps }));
}

static tensor_id
norm(struct builder *b, const char *name, const char *hf, tensor_id x, uint64_t heads,
    const char *out)
{
	tensor_id w = param(b, name, hf, OM_DATA, DIMS(b->g->tensor.a[x].dim[1] / heads));

	return norm_by(b, w, x, heads, out);
}

/* The table of a rope and head size. */
static tensor_id
rope_table(struct builder *b, const struct object *rope, uint64_t HD)
{
	struct graph *g = b->g;
	const struct object *sc = spec_obj(rope, F_rope_scaling);
	/* in the order of op.def's scalings: fields for factor p q length attention; 0: none */
	static const struct {
		enum object_type type;
		enum field_id of[5];
	} kinds[] = { { OBJ_unscaled, { 0 } }, { OBJ_linear_scaling, { F_linear_scaling_factor } },
		{ OBJ_yarn, { F_yarn_factor, F_yarn_beta_fast, F_yarn_beta_slow,
				F_yarn_original_length, F_yarn_attention_factor } },
		{ OBJ_llama3, { F_llama3_factor, F_llama3_low_freq_factor,
				  F_llama3_high_freq_factor, F_llama3_original_length } } };
	uint32_t seg = b->seg, n = b->ropes.n;

	for (uint32_t i = 0; i < n; i++)
		if (b->ropes.a[i].head_dim == HD && spec_equal(b->ropes.a[i].rope, rope))
			return b->ropes.a[i].table;
	b->seg = g->init;
	b->line = spec_value(rope, F_rope_theta)->line;
	tensor_id t = tensor(b, n ? xprintf("rope_table_%u", n + 1) : "rope_table", T_CONST,
	    ROLE_STAT, DIMS(g->S, HD));
	struct op o = OP_(OP_rope_table, .arg = { t },
	    .floats = { [0] = spec_num(rope, F_rope_theta), [1] = 1, [5] = 1 });
	while (kinds[o.ints[0]].type != sc->type)
		o.ints[0]++;
	for (unsigned i = 0; i < LEN(kinds->of); i++) {
		enum field_id f = kinds[o.ints[0]].of[i];
		if (f)
			o.floats[1 + i] =
			    fields[f].type == INT ? (double)spec_int(sc, f) : spec_num(sc, f);
	}
	op(b, NULL, o);
	b->seg = seg;
	*PUSH(b->ropes) = (struct rope_made){ rope, HD, t };
	return t;
}

static tensor_id
attention(struct builder *b, const struct object *at, tensor_id x)
{
	struct graph *g = b->g;
	uint64_t H = size_of(at, F_attention_n_heads), HK = size_of(at, F_attention_n_kv_heads);
	uint64_t HD = size_of(at, F_attention_head_dim), D = g->tensor.a[x].dim[1];
	uint64_t window = size_of(at, F_attention_window);
	const char *qk_norm = spec_str(at, F_attention_qk_norm);
	bool normed = strcmp(qk_norm, "none") != 0,
	     biased = strcmp(spec_str(at, F_attention_bias), "none");
	const struct object *rope = spec_obj(at, F_attention_rope);
	double scale = 1 / __builtin_sqrt((double)HD);
	tensor_id qkv[3], o;
	static const char *const names[] = { "q", "k", "v" };

	for (int i = 0; i < 3; i++) {
		uint64_t heads = i ? HK : H;
		b->line = spec_value(at, F_attention_n_heads)->line;
		const char *out = normed && i < 2 ? xprintf("%s_raw", names[i]) : names[i];
		qkv[i] = linear(b, "", ATTN, names[i], x, heads * HD,
		    biased ? xprintf("%s_plain", names[i]) : out);
		const struct oplist *made = &g->seg.a[b->seg].ops[FORWARD];
		g->tensor.a[made->a[made->n - 1].arg[1]].head = HD;
		b->line = spec_value(at, F_attention_bias)->line;
		if (biased)
			qkv[i] = bias(b, names[i], qkv[i], out);
		b->line = spec_value(at, F_attention_qk_norm)->line;
		if (normed && i < 2)
			qkv[i] = norm(b, xprintf("%s_norm", names[i]),
			    xprintf("%s%s_norm.weight", ATTN, names[i]), qkv[i],
			    strcmp(qk_norm, "head") ? 1 : heads, xprintf("%s_normed", names[i]));
	}
	for (int i = 0; i < 2 && rope->type == OBJ_rope; i++) {
		uint64_t heads = i ? HK : H;
		tensor_id table = rope_table(b, rope, HD);
		b->line = spec_value(at, F_attention_rope)->line;
		struct op rotate =
		    b->at
			? OP_(OP_rope_at, .arg = { qkv[i], table, b->at }, .ints = { HD })
			: OP_(OP_rope, .arg = { qkv[i], table }, .ints = { b->B, g->S, heads, HD });
		qkv[i] = result(b, NAMES(xprintf("%s_rot", names[i])), rotate);
	}
	b->line = spec_value(at, F_attention_n_heads)->line;
	if (!window || window > g->S)
		window = g->S;
	if (b->at) {
		uint64_t n =
		    size_of(spec_obj(g->trainer, F_trainer_generation), F_generation_batch);
		tensor_id keys = tensor(b, "keys", T_CACHE, ROLE_ACT, DIMS(n, g->S, HK * HD));
		tensor_id values = tensor(b, "values", T_CACHE, ROLE_ACT, DIMS(n, g->S, HK * HD));
		op(b, NULL, OP_(OP_cache, .arg = { qkv[1], qkv[2], b->at, keys, values }));
		o = result(b, NAMES("heads"),
		    OP_(OP_attention_at, .arg = { qkv[0], keys, values, b->at },
			.ints = { H, HK, HD, window, b->seg >= g->prompt ? PROMPT_RUN : 1 },
			.floats = { scale }));
	} else {
		o = result(b, NAMES("heads", "heads_lse"),
		    OP_(OP_attention, .arg = { qkv[0], qkv[1], qkv[2], g->documents },
			.ints = { b->B, g->S, H, HK, HD, window }, .floats = { scale }));
	}
	bool out_bias = !strcmp(spec_str(at, F_attention_bias), "all");
	o = linear(b, "", ATTN, "o", o, D, out_bias ? "attn_plain" : "attn");
	return out_bias ? bias(b, "o", o, "attn") : o;
}

/* Of the hidden activations. */
struct activation {
	const char *name;
	bool gated;
	uint64_t a; /* of op.def's glu */
};

static const struct activation *
activation(const char *name)
{
	static const struct activation all[] = { { "swiglu", true, 0 }, { "geglu", true, 1 },
		{ "relu2", false, 0 } };
	uint32_t i = 0;

	while (strcmp(all[i].name, name))
		i++;
	return &all[i];
}

static tensor_id
mlp(struct builder *b, tensor_id x, uint64_t F, const char *act, const char *pre, const char *hf)
{
	const struct activation *ac = activation(act);
	tensor_id g = ac->gated ? linear(b, pre, hf, "gate", x, F, "gate") : 0;
	tensor_id u = linear(b, pre, hf, "up", x, F, "up");
	tensor_id h = result(b, NAMES(xprintf("%shidden", pre)),
	    g ? OP_(OP_glu, .arg = { g, u }, .ints = { ac->a }) : OP_(OP_relu2, .arg = { u }));

	return linear(b, pre, hf, "down", h, b->g->tensor.a[x].dim[1], "out");
}

static tensor_id
grouped(struct builder *b, const char *name, tensor_id x, tensor_id off, uint64_t E, uint64_t n,
    const char *out)
{
	tensor_id w = param(b, xprintf("%s_proj", name),
	    xprintf("model.layers.%%l.mlp.experts.%%e.%s_proj.weight", name), OM_EXPERT_DATA,
	    DIMS(E, n, b->g->tensor.a[x].dim[1]));

	return result(b, NAMES(out), OP_(OP_grouped, .arg = { x, w, off }));
}

/* Each token's experts, and the weights of these. */
static struct op
route(struct builder *b, const struct object *m, tensor_id x)
{
	struct graph *g = b->g;
	const struct object *ro = spec_obj(m, F_moe_router);
	/* in the order of op.def's scores */
	static const char *const scores[] = { "softmax", "sigmoid", "topk_softmax" };
	uint64_t E = size_of(m, F_moe_num_experts), K = size_of(m, F_moe_top_k), score = 0;
	uint64_t parts = strcmp(spec_str(ro, F_router_balance_over), "sequence") ? 1 : b->B;
	/* what is generated is no stress run, and has no place in the data to draw by */
	const char *routing = b->shift ? "learned" : spec_str(ro, F_router_routing);
	/* the losses are means over microbatches and data-parallel ranks */
	double shares = (double)g->microbatches * (double)spec_int(g->trainer, F_parallel_data);

	while (strcmp(scores[score], spec_str(ro, F_router_score)))
		score++;
	b->line = spec_value(ro, F_router_score)->line;
	tensor_id w = param(b, "router", "model.layers.%l.mlp.gate.weight", OM_DATA,
	    DIMS(E, g->tensor.a[x].dim[1]));
	op(b, NAMES("weights", "chosen", "probs", "scores_lse", "counts", "load", "aux"),
	    OP_(strcmp(routing, "uniform") ? OP_route : OP_route_uniform,
		.arg = { result(b, NAMES("scores"), OP_(OP_gate, .arg = { x, w })) },
		.ints = { K, size_of(ro, F_router_normalize), score, size_of(ro, F_router_n_groups),
		    size_of(ro, F_router_top_groups), parts },
		.floats = { spec_num(ro, F_router_weight_scale),
		    spec_num(ro, F_router_load_balance) / shares,
		    spec_num(ro, F_router_z_loss) / shares }));
	const struct oplist *l = &g->seg.a[b->seg].ops[FORWARD];
	struct op *o = &l->a[l->n - 1]; /* what it may do without is made last */
	if (spec_num(ro, F_router_bias_gamma) > 0) {
		tensor_id bias = tensor(b, "choice_bias", T_BUFFER, ROLE_STAT, DIMS(E));
		struct tensor *t = &g->tensor.a[bias];
		t->hf = "model.layers.%l.mlp.gate.e_score_correction_bias";
		t->init = INIT_ZERO;
		t->copies = OM_DATA;
		t->line = spec_value(ro, F_router_bias_gamma)->line;
		o->arg[1] = bias;
	} else if (!strcmp(routing, "random")) {
		o->arg[2] = tensor(b, "draw", T_INPUT, ROLE_INT64, DIMS(3));
	}
	return *o;
}

static tensor_id
moe(struct builder *b, const struct object *m, tensor_id x)
{
	const char *act = spec_str(m, F_moe_activation);
	const struct activation *ac = activation(act);
	uint64_t D = b->g->tensor.a[x].dim[1], E = size_of(m, F_moe_num_experts);
	uint64_t F = size_of(m, F_moe_hidden_size), FS = size_of(m, F_moe_shared_hidden_size);
	tensor_id xr, gate, up, h, y, sum;

	struct op chosen = route(b, m, x);
	tensor_id p = op_arg(&chosen, "p");
	b->line = spec_value(m, F_moe_num_experts)->line;
	struct op map = op(b, NAMES("row", "src", "offsets"),
	    OP_(OP_route_map, .arg = { op_arg(&chosen, "idx"), op_arg(&chosen, "cnt") }));
	tensor_id row = op_arg(&map, "row"), src = op_arg(&map, "src"), off = op_arg(&map, "off");
	xr = result(b, NAMES("routed"), OP_(OP_dispatch, .arg = { x, row, src }));
	b->line = spec_value(m, F_moe_hidden_size)->line;
	gate = ac->gated ? grouped(b, "gate", xr, off, E, F, "gate") : 0;
	up = grouped(b, "up", xr, off, E, F, "up");
	h = result(b, NAMES("hidden"),
	    gate ? OP_(OP_glu_routed, .arg = { gate, up, p, src }, .ints = { ac->a })
		 : OP_(OP_relu2_routed, .arg = { up, p, src }));
	y = grouped(b, "down", h, off, E, D, "rows");
	sum = result(b, NAMES("out"), OP_(OP_combine, .arg = { y, row, src }));
	if (!FS)
		return sum;
	b->line = spec_value(m, F_moe_shared_hidden_size)->line;
	tensor_id s = mlp(b, x, FS, act, "shared_", "model.layers.%l.mlp.shared_expert.");
	return result(b, NAMES("mixed"), OP_(OP_add, .arg = { sum, s }));
}

/* Norm of a branch's end, if norms are placed there; name is that of its parameter. */
static tensor_id
norm_if(
    struct builder *b, bool here, const char *name, const char *hf, tensor_id x, const char *out)
{
	b->line = spec_value(b->g->trainer, F_transformer_norm)->line;
	return here ? norm(b, name, xprintf("model.layers.%%l.%s.weight", hf), x, 1, out) : x;
}

static void
layer(struct builder *b, const struct object *at, const struct object *ffn)
{
	struct graph *g = b->g;
	const struct object *tr = g->trainer;
	const char *placement = spec_str(tr, F_transformer_norm_placement);
	bool before = strcmp(placement, "post") != 0, after = strcmp(placement, "pre") != 0;
	tensor_id x, a, mid, f;

	b->line = spec_value(tr, F_transformer_d_model)->line;
	x = g->seg.a[b->seg].x = ACT(b, "x", b->T, size_of(tr, F_transformer_d_model));
	/* the names are those of OLMoE (pre), OLMo 2 (post) and Gemma 2 (peri) */
	a = norm_if(b, before, "attn_norm", "input_layernorm", x, "attn_in");
	a = attention(b, at, a);
	a = norm_if(b, after, "attn_post_norm", "post_attention_layernorm", a, "attn_normed");
	b->line = spec_value(tr, F_transformer_attention)->line;
	mid = result(b, NAMES("mid"), OP_(OP_add, .arg = { x, a }));
	f = norm_if(b, before, "ffn_norm",
	    after ? "pre_feedforward_layernorm" : "post_attention_layernorm", mid, "ffn_in");
	if (ffn->type == OBJ_moe) {
		f = moe(b, ffn, f);
	} else {
		b->line = spec_value(ffn, F_mlp_hidden_size)->line;
		f = mlp(b, f, size_of(ffn, F_mlp_hidden_size), spec_str(ffn, F_mlp_activation), "",
		    "model.layers.%l.mlp.");
	}
	f = norm_if(b, after, "ffn_post_norm", "post_feedforward_layernorm", f, "ffn_normed");
	b->line = spec_value(tr, F_transformer_feed_forward)->line;
	g->seg.a[b->seg].y = result(b, NAMES("y"), OP_(OP_add, .arg = { mid, f }));
}

static bool
exempt(const struct graph *g, uint32_t layer)
{
	const struct value *v = spec_value(g->trainer, F_precision_exempt);

	for (uint32_t i = 0; i < v->nnums; i++)
		if ((uint32_t)v->nums[i] == layer)
			return true;
	return false;
}

/*
 * Layers with equal attention, feed-forward and recomputation, and products in 8 bits or none, are
 * one kind; kinds come in the order of their first layer.
 */
static void
find_kinds(struct graph *g)
{
	const struct object *tr = g->trainer;
	const struct value *at = spec_value(tr, F_transformer_attention);
	const struct value *ff = spec_value(tr, F_transformer_feed_forward);
	const struct value *re = spec_value(tr, F_transformer_recompute);
	uint32_t count[2] = { 0 };

	g->kind_of = xalloc(g->n_layers * sizeof *g->kind_of);
	g->index_of = xalloc(g->n_layers * sizeof *g->index_of);
	for (uint32_t l = 0; l < g->n_layers; l++) {
		uint32_t k = g->embed + 1;
		bool eight = !exempt(g, l);
		while (k < g->seg.n &&
		       !(g->seg.a[k].eight == eight && spec_equal(g->seg.a[k].ffn, ff->list[l]) &&
			   spec_equal(g->seg.a[k].attention, at->list[l]) &&
			   spec_equal(g->seg.a[k].recompute, re->list[l])))
			k++;
		if (k == g->seg.n) {
			bool is_moe = ff->list[l]->type == OBJ_moe;
			uint32_t nth = ++count[is_moe];
			const char *base = is_moe ? "moe" : "dense";
			segment(g, nth > 1 ? xprintf("%s%u", base, nth) : base);
			g->seg.a[k].eight = eight;
			g->seg.a[k].attention = at->list[l];
			g->seg.a[k].ffn = ff->list[l];
			g->seg.a[k].recompute = re->list[l];
			g->seg.a[k].layer = xalloc(g->n_layers * sizeof(uint32_t));
		}
		g->kind_of[l] = k;
		g->index_of[l] = g->seg.a[k].nlayers;
		g->seg.a[k].layer[g->seg.a[k].nlayers++] = l;
	}
}

/* What the optimizer keeps of a parameter: of Muon's, in place of v, NorMuon's number a row. */
static void
keep_states(struct builder *b, tensor_id param)
{
	static const char *const name[N_STATES] = { "master", "m", "v", "average" };
	struct graph *g = b->g;
	const struct object *muon = spec_obj(g->trainer, F_adamw_matrices);
	bool master = g->format[ROLE_WEIGHT] != g->format[ROLE_MASTER];
	bool matrix = g->param_group.a[g->tensor.a[param].param_group].rows;

	for (int j = master ? STATE_MASTER : STATE_M; j < N_STATES; j++) {
		if (j == STATE_V && matrix && !spec_num(muon, F_muon_row_beta))
			continue;
		if (j == STATE_AVERAGE && !g->rate)
			continue;
		tensor_id s = graph_like(g, param, T_STATE,
		    j == STATE_MASTER || j == STATE_AVERAGE ? ROLE_MASTER : ROLE_MOMENT,
		    xprintf("%s_%s", name[j], tensor_short_name(g, param)));
		g->tensor.a[s].param = param;
		g->tensor.a[s].ndims -= j == STATE_V && matrix;
		g->tensor.a[param].state[j] = s;
	}
}

/* Scalars of a group with a name, beside those of all: the host writes them, clip's are copied. */
static void
group_ctl(struct builder *b, struct param_group *k)
{
	struct graph *g = b->g;

	k->ctl = g->ctl;
	if (!k->name)
		return;
	for (struct param_group *o = g->param_group.a; o < k; o++)
		if (o->name && !strcmp(o->name, k->name)) {
			k->ctl = o->ctl;
			return;
		}
	k->ctl = tensor(b, xprintf("ctl_%s", k->name), T_INPUT, ROLE_FP64, DIMS(9));
	op(b, NULL, OP_(OP_share_ctl, .arg = { g->ctl, k->ctl }));
}

/* The step of a parameter by AdamW. */
static struct op
adamw_step(const struct graph *g, tensor_id param)
{
	const struct tensor *t = &g->tensor.a[param];
	const struct param_group *group = &g->param_group.a[t->param_group];
	const struct value *betas = spec_value(g->trainer, F_adamw_betas);

	return OP_(OP_adamw,
	    .arg = { t->grad, group->ctl, g->lots, param, t->state[STATE_MASTER], t->state[STATE_M],
		t->state[STATE_V] },
	    .floats = { betas->nums[0], betas->nums[1], spec_num(g->trainer, F_adamw_eps),
		group->weight_decay, group->lr_scale });
}

/* By Muon. */
static struct op
muon_step(const struct graph *g, tensor_id param)
{
	const struct tensor *t = &g->tensor.a[param];
	const struct param_group *group = &g->param_group.a[t->param_group];
	const struct object *muon = spec_obj(g->trainer, F_adamw_matrices);
	uint64_t r = group->rows, c = group->cols, less = r < c ? r : c, more = r < c ? c : r;
	double factor = strcmp(spec_str(muon, F_muon_scale), "original")
			    ? 0.2 * __builtin_sqrt((double)more)
			    : __builtin_sqrt(r > c ? (double)r / (double)c : 1);

	return OP_(OP_muon,
	    .arg = { t->grad, group->ctl, g->lots, param, t->state[STATE_MASTER], t->state[STATE_M],
		t->state[STATE_V] },
	    .ints = { r, c, less, more, (uint64_t)spec_int(muon, F_muon_steps),
		(uint64_t)spec_int(muon, F_muon_nesterov) },
	    .floats = { spec_num(muon, F_muon_momentum), spec_num(muon, F_muon_row_beta),
		group->weight_decay, group->lr_scale, factor });
}

/* Squared norm over all gradients, clipping, then the step of every parameter and router bias. */
static void
update(struct builder *b)
{
	struct graph *g = b->g;
	tensor_id ctl = g->ctl;
	const struct object *opt = g->trainer;
	ARRAY(tensor_id) params = { 0 }; /* by group */
	uint32_t ntensors = g->tensor.n;
	uint64_t pieces = 0;

	for (uint32_t k = 0; k < g->param_group.n; k++)
		for (tensor_id i = 1; i < ntensors; i++)
			if (g->tensor.a[i].class == T_PARAM && g->tensor.a[i].param_group == k)
				*PUSH(params) = i;
	/* what the host says of how moments are drawn: a piece for each layer of a parameter */
	for (uint32_t i = 0; i < params.n; i++)
		pieces = size_add(pieces, tensor_layers(g, &g->tensor.a[params.a[i]]));
	if (g->format[ROLE_MOMENT] != g->format[ROLE_MASTER])
		g->lots = tensor(b, "lots", T_INPUT, ROLE_INT64,
		    DIMS(size_add(OM_LOTS_FIRST, size_mul(pieces, OM_PIECE_WORDS))));
	b->line = spec_value(opt, F_adamw_clip_norm)->line;
	for (uint32_t i = 0; i < params.n; i++)
		op(b, NULL, OP_(OP_sumsq, .arg = { g->tensor.a[params.a[i]].grad, ctl }));
	op(b, NULL,
	    OP_(OP_clip, .arg = { g->loss, ctl }, .floats = { spec_num(opt, F_adamw_clip_norm) }));
	const struct line *opt_line = b->line = spec_value(g->trainer, F_trainer_optimizer)->line;
	if (spec_int(g->trainer, F_adamw_average))
		g->rate = tensor(b, "average_rate", T_INPUT, ROLE_FP64, DIMS(1));
	for (uint32_t k = 0; k < g->param_group.n; k++)
		group_ctl(b, &g->param_group.a[k]);
	for (uint32_t i = 0; i < params.n; i++) {
		keep_states(b, params.a[i]);
		bool muon = g->param_group.a[g->tensor.a[params.a[i]].param_group].rows;
		/* Muon's kernels depend on the matrix's sides, and so on the field behind them */
		b->line = muon ? g->tensor.a[params.a[i]].line : opt_line;
		op(b, NULL, muon ? muon_step(g, params.a[i]) : adamw_step(g, params.a[i]));
	}
	for (uint32_t i = 0; i < params.n && g->rate; i++) {
		const tensor_id *state = g->tensor.a[params.a[i]].state;
		op(b, NULL,
		    OP_(OP_average, .arg = { params.a[i], state[STATE_MASTER], g->rate,
					state[STATE_AVERAGE] }));
	}
	for (tensor_id i = 1; i < ntensors; i++) {
		const struct tensor *t = &g->tensor.a[i];
		if (t->class != T_BUFFER)
			continue;
		const struct segment *s = &g->seg.a[t->seg];
		b->line = t->line;
		op(b, NULL,
		    OP_(OP_bias_update, .arg = { op_arg(graph_route(s), "load"), ctl, i },
			.ints = { t->dim[0] },
			.floats = { spec_num(s->ffn, F_router_bias_gamma) }));
	}
}

/* An op of attention that knows documents: what it does in all layers that have it. */
static void
count_pairs(struct graph *g, const struct op *o, uint64_t flops)
{
	const struct sizes z = op_sizes(g, o);
	uint64_t s = z.v['s' - 'a'], w = z.v['w' - 'a'];
	uint32_t i = 0;

	while (i < g->pairs.n && g->pairs.a[i].window != w)
		i++;
	if (i == g->pairs.n)
		*PUSH(g->pairs) = (struct pair){ .window = w };
	g->pairs.a[i].flops += flops / (z.v['b' - 'a'] * (2 * s * w - w * (w - 1)) / 2);
}

/*
 * Totals by the field's conventions: an active expert is one a token visits; no recompute counted.
 */
static void
count(struct graph *g)
{
	uint64_t flops = 0;

	for (uint32_t i = 1; i < g->tensor.n; i++) {
		const struct tensor *t = &g->tensor.a[i];
		if (t->class != T_PARAM)
			continue;
		uint64_t all = size_mul(tensor_elems(t), tensor_layers(g, t)), active = all;
		if (tensor_by_expert(t))
			active = all / t->dim[0] * size_of(g->seg.a[t->seg].ffn, F_moe_top_k);
		g->params_total = size_add(g->params_total, all);
		g->params_active = size_add(g->params_active, active);
	}
	for (struct op_at at = { 0 }; graph_next(g, &at) && at.seg < g->update;) {
		uint64_t n = g->seg.a[at.seg].nlayers;
		uint64_t each = size_mul(op_flops(g, at.op), n ? n : 1);
		flops = size_add(flops, each);
		if (g->documents && op_reads(at.op, g->documents))
			count_pairs(g, at.op, each);
	}
	g->flops_token = flops / g->T;
}

/* The embedded tokens, scaled and normalised where the description says so. */
static void
embed(struct builder *b, tensor_id tokens, tensor_id w)
{
	double factor = spec_num(b->g->trainer, F_embedding_scale);
	tensor_id x = result(b, NAMES("x0"), OP_(OP_embed, .arg = { tokens, w }));

	b->line = spec_value(b->g->trainer, F_transformer_embedding)->line;
	if (factor != 1)
		x = result(b, NAMES("scaled"), OP_(OP_scale, .arg = { x }, .floats = { factor }));
	if (spec_int(b->g->trainer, F_embedding_norm))
		x = norm(b, "norm", "model.embed_norm.weight", x, 1, "normed");
	b->g->seg.a[b->seg].y = x;
}

/* The final norm; gives what the output weights are multiplied by. */
static tensor_id
head_norm(struct builder *b, tensor_id norm_w)
{
	tensor_id x, h;

	b->line = spec_value(b->g->trainer, F_transformer_norm)->line;
	x = b->g->seg.a[b->seg].x = ACT(b, "x", b->T, b->g->tensor.a[norm_w].dim[0]);
	h = norm_by(b, norm_w, x, 1, "in");
	b->line = spec_value(b->g->trainer, F_lm_head_tied)->line;
	return h;
}

/*
 * The final norm and the loss; once for training, and once more, forward only, for evaluation,
 * which gives each token's too.
 */
static void
head(struct builder *b, tensor_id norm_w, tensor_id w)
{
	struct graph *g = b->g;
	double labels = (double)spec_int(g->trainer, F_batch_global) * (double)g->S;
	tensor_id h = head_norm(b, norm_w);

	if (b->seg == g->eval)
		g->score = result(b, NAMES("score"),
		    OP_(OP_head_score, .arg = { h, w, g->labels, g->ctl, 0, g->loss },
			.floats = { 1 / labels }));
	else
		op(b, NAMES("logits_lse"),
		    OP_(OP_head_loss, .arg = { h, w, g->labels, g->ctl, 0, g->loss },
			.floats = { 1 / labels, spec_num(b->g->trainer, F_lm_head_z_loss) }));
}

/*
 * Rows of any sequences, each a token at a position: the same layers on the same weights, that
 * leave their keys and values in caches. The segments up to the last one are made anew from those
 * of training.
 */
static void
rows(struct builder *b, const char *name, uint64_t n, uint32_t last, tensor_id tokens_w)
{
	struct graph *g = b->g;
	uint32_t first = g->seg.n;
	tensor_id token;

	b->B = b->T = n;
	b->shift = first - g->embed;
	for (uint32_t s = g->embed; s <= last; s++) {
		struct segment old = g->seg.a[s];
		*PUSH(g->seg) = (struct segment){ .name = xprintf("%s_%s", name, old.name),
			.attention = old.attention,
			.ffn = old.ffn,
			.layer = old.layer,
			.nlayers = old.nlayers };
	}
	b->seg = first;
	b->line = spec_value(b->g->trainer, F_transformer_vocab_size)->line;
	token = tensor(b, "token", T_INPUT, ROLE_INT32, DIMS(n));
	b->at = tensor(b, "at", T_INPUT, ROLE_INT32, DIMS(size_mul(2, n)));
	embed(b, token, tokens_w);
	for (uint32_t k = g->embed + 1; k < g->head; k++) {
		b->seg = k + b->shift;
		layer(b, g->seg.a[k].attention, g->seg.a[k].ffn);
	}
}

/*
 * A row for each sequence that is generated, with the logits of the token after it; and rows of a
 * prompt, of which nothing but keys and values is wanted.
 */
static void
generation(struct builder *b, tensor_id tokens_w, tensor_id norm_w, tensor_id w)
{
	struct graph *g = b->g;
	const struct object *how = spec_obj(g->trainer, F_trainer_generation);
	uint64_t prompt = size_of(how, F_generation_prompt);

	g->decode = g->seg.n;
	g->prompt = UINT32_MAX;
	rows(b, "decode", size_of(how, F_generation_batch), g->head, tokens_w);
	b->seg = g->head + b->shift;
	tensor_id logits =
	    result(b, NAMES("logits"), OP_(OP_logits, .arg = { head_norm(b, norm_w), w }));
	op(b, NAMES("likeliest"), OP_(OP_likeliest, .arg = { logits }));
	g->prompt = g->seg.n;
	if (prompt)
		rows(b, "prompt", prompt, g->head - 1, tokens_w);
}

struct graph *
graph_build(struct object *trainer)
{
	struct graph *g = xalloc(sizeof *g);
	uint64_t V = size_of(trainer, F_transformer_vocab_size);
	uint64_t D = size_of(trainer, F_transformer_d_model);
	struct builder b = { .g = g };
	tensor_id tokens_w, w, norm_w;

	g->trainer = trainer;
	g->last_phase = BACKWARD;
	g->n_layers = (uint32_t)spec_int(trainer, F_transformer_n_layers);
	b.B = g->B = size_of(trainer, F_batch_micro);
	g->S = size_of(trainer, F_transformer_sequence_length);
	b.T = g->T = size_mul(g->B, g->S);
	g->microbatches =
	    size_of(trainer, F_batch_global) / g->B / size_of(trainer, F_parallel_data);
	choose_formats(g);
	*PUSH(g->tensor) = (struct tensor){ .name = "none" };
	g->init = segment(g, "init");
	g->embed = segment(g, "embed");
	find_kinds(g);

	b.seg = g->embed;
	b.line = spec_value(trainer, F_transformer_vocab_size)->line;
	g->tokens = tensor(&b, "tokens", T_INPUT, ROLE_INT32, DIMS(g->T));
	g->labels = tensor(&b, "labels", T_INPUT, ROLE_INT32, DIMS(g->T));
	g->ctl = tensor(&b, "ctl", T_INPUT, ROLE_FP64, DIMS(9));
	/* behind others, since to the runtime offset 0 says that there is none */
	if (strcmp(spec_str(trainer, F_batch_documents), "ignore"))
		g->documents =
		    tensor(&b, "documents", T_INPUT, ROLE_INT32, DIMS(size_mul(2, g->T)));
	w = tokens_w = param(&b, "tokens_w", "model.embed_tokens.weight", OM_DATA, DIMS(V, D));
	embed(&b, g->tokens, w);

	for (uint32_t k = g->embed + 1, n = g->seg.n; k < n; k++) {
		b.seg = k;
		layer(&b, g->seg.a[k].attention, g->seg.a[k].ffn);
	}

	g->head = b.seg = segment(g, "head");
	b.line = spec_value(trainer, F_transformer_norm)->line;
	norm_w = param(&b, "norm", "model.norm.weight", OM_DATA, DIMS(D));
	b.line = spec_value(trainer, F_transformer_lm_head)->line;
	if (!spec_int(trainer, F_lm_head_tied))
		w = param(&b, "w", "lm_head.weight", OM_DATA, DIMS(V, D));
	g->loss = tensor(&b, "loss", T_STAT, ROLE_FP64, DIMS(2));
	g->tensor.a[g->loss].sum = OM_WORLD;
	head(&b, norm_w, w);

	for (uint32_t s = g->embed; s <= g->head; s++)
		grad_segment(g, s);

	g->update = b.seg = segment(g, "update");
	graph_groups(g);
	update(&b);

	g->eval = b.seg = segment(g, "eval");
	head(&b, norm_w, w);
	generation(&b, tokens_w, norm_w, w);
	if (!diag_count())
		count(g);
	for (uint32_t k = g->embed + 1; k < g->head; k++) {
		recompute_segment(g, k, spec_str(g->seg.a[k].recompute, F_recompute_what));
		eight_segment(g, k);
	}
	return g;
}
