/*
 * From a complete description to the graph of one microbatch and the update, for all layers by
 * kind.
 */
#include <string.h>

#include "graph/graph.h"

/* The segment being built and the line of resolved.lua that its next ops and tensors stand for. */
struct builder {
	struct graph *g;
	uint32_t seg;
	const struct line *line;
	uint64_t B, T;      /* sequences and tokens: of a microbatch, or of decode, which are 1 */
	uint32_t shift;     /* decode: from a segment of training to the one built; 0: training */
	tensor_id position; /* decode: of its token */
	struct rope_made {
		const struct object *rope;
		uint64_t head_dim;
		tensor_id table;
		struct rope_made *next;
	} * ropes;
};

#define ATTN "model.layers.%l.self_attn."

/* Weights, buffers and statistics of decode are those of training; 0: it is none. */
static tensor_id
of_training(const struct builder *b, const char *name, enum tensor_class c)
{
	const struct graph *g = b->g;
	uint32_t seg = b->seg - b->shift;

	if (c != T_PARAM && c != T_GRAD && c != T_BUFFER && c != T_STAT)
		return 0;
	for (tensor_id t = g->seg.a[seg].first; g->tensor.a[t].seg <= seg; t++)
		if (g->tensor.a[t].seg == seg && g->tensor.a[t].class == c &&
		    !strcmp(g->tensor.a[t].name + strlen(g->seg.a[seg].name) + 1, name))
			return t;
	return 0;
}

/* A format for each role. */
static void
choose_formats(struct graph *g)
{
	const struct object *pr = spec_obj(g->trainer, F_trainer_precision);
	const struct format *weight = format_find(spec_str(pr, F_precision_weights));
	const struct format *state = format_find(spec_str(pr, F_precision_optimizer));

	memcpy(g->format,
	    (const struct format *[N_ROLES]){
		[ROLE_ACT] = weight,
		[ROLE_STAT] = weight->bits < 32 ? format_find("fp32") : weight,
		[ROLE_GRAD] = format_find(spec_str(pr, F_precision_grads)),
		[ROLE_MOMENT] = state,
		[ROLE_INT32] = format_find("int32"),
		[ROLE_INT64] = format_find("int64"),
		[ROLE_FP64] = format_find("fp64"),
		[ROLE_WEIGHT] = weight,
		[ROLE_ROWS] = weight,
		[ROLE_MASTER] = state,
	    },
	    sizeof g->format);
}

static tensor_id
tensor(struct builder *b, const char *name, enum tensor_class c, enum role r, int ndims,
    const uint64_t *dim)
{
	tensor_id id = b->shift ? of_training(b, name, c) : 0;

	if (id)
		return id;
	id = graph_tensor(b->g, name, c, r, b->seg);
	struct tensor *t = &b->g->tensor.a[id];
	t->ndims = (uint8_t)ndims;
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

/* What is counted over the microbatches of a step, and then over the ranks of a group. */
static tensor_id
stat(struct builder *b, const char *name, enum role r, enum om_group sum, uint64_t n)
{
	tensor_id id = tensor(b, name, T_STAT, r, DIMS(n));

	b->g->tensor.a[id].sum = sum;
	return id;
}

static struct op *
op(struct builder *b, enum op_id id, const tensor_id *arg)
{
	struct op *o = PUSH(b->g->seg.a[b->seg].ops[FORWARD]);
	const struct op_row *r = op_row(id);

	o->op = id;
	o->line = b->line;
	memcpy(o->arg, arg, (r->nin + r->nout) * sizeof *arg);
	return o;
}
#define OP_(b, id, ...) op(b, id, (tensor_id[]){ __VA_ARGS__ })

static uint32_t
segment(struct graph *g, const char *name)
{
	struct segment *s = PUSH(g->seg);

	s->name = name;
	return g->seg.n - 1;
}

static tensor_id
linear(
    struct builder *b, const char *name, const char *hf, tensor_id x, uint64_t n, const char *out)
{
	uint64_t m = b->g->tensor.a[x].dim[0], k = b->g->tensor.a[x].dim[1];
	tensor_id w = param(b, name, hf, OM_DATA, DIMS(n, k)), y = ACT(b, out, m, n);

	OP_(b, OP_linear, x, w, y);
	return y;
}

static tensor_id
bias(struct builder *b, const char *name, const char *hf, tensor_id x, const char *out)
{
	uint64_t m = b->g->tensor.a[x].dim[0], n = b->g->tensor.a[x].dim[1];
	tensor_id c = param(b, name, hf, OM_DATA, DIMS(n)), y = ACT(b, out, m, n);

	b->g->tensor.a[c].init = INIT_ZERO;
	OP_(b, OP_bias, x, c, y);
	return y;
}

/* RMS norm over heads groups of each row; heads = 1 is the whole row. */
static tensor_id
norm(struct builder *b, const char *name, const char *hf, tensor_id x, uint64_t heads,
    const char *out)
{
	struct object *tr = spec_obj(b->g->trainer, F_trainer_model);
	uint64_t m = b->g->tensor.a[x].dim[0], n = b->g->tensor.a[x].dim[1];
	tensor_id w = param(b, name, hf, OM_DATA, DIMS(n / heads));
	tensor_id y = ACT(b, out, m, n);
	tensor_id r = tensor(b, xprintf("%s_rms", out), T_ACT, ROLE_STAT, DIMS(m * heads));
	struct op *o = OP_(b, OP_rmsnorm, x, w, y, r);

	o->ints[0] = heads;
	o->floats[0] = spec_num(spec_obj(tr, F_transformer_norm), F_rms_norm_eps);
	return y;
}

/* The table of a rope and head size, made once for all layers that have the same. */
static tensor_id
rope_table(struct builder *b, const struct object *rope, uint64_t HD)
{
	struct graph *g = b->g;
	const struct object *sc = spec_obj(rope, F_rope_scaling);
	/* in the order of op.def's scalings */
	static const enum object_type kinds[] = { OBJ_unscaled, OBJ_linear_scaling, OBJ_yarn,
		OBJ_llama3 };
	uint32_t seg = b->seg, n = 0;

	for (struct rope_made *m = b->ropes; m; m = m->next, n++)
		if (m->head_dim == HD && spec_equal(m->rope, rope))
			return m->table;
	b->seg = g->init;
	b->line = spec_value(rope, F_rope_theta)->line;
	tensor_id t = tensor(b, n ? xprintf("rope_table_%u", n + 1) : "rope_table", T_CONST,
	    ROLE_STAT, DIMS(g->S, HD));
	struct op *o = OP_(b, OP_rope_table, t);
	while (kinds[o->ints[0]] != sc->type)
		o->ints[0]++;
	o->floats[0] = spec_num(rope, F_rope_theta);
	o->floats[1] = o->floats[5] = 1;
	if (sc->type == OBJ_linear_scaling) {
		o->floats[1] = spec_num(sc, F_linear_scaling_factor);
	} else if (sc->type == OBJ_yarn) {
		o->floats[1] = spec_num(sc, F_yarn_factor);
		o->floats[2] = spec_num(sc, F_yarn_beta_fast);
		o->floats[3] = spec_num(sc, F_yarn_beta_slow);
		o->floats[4] = (double)spec_int(sc, F_yarn_original_length);
		o->floats[5] = spec_num(sc, F_yarn_attention_factor);
	} else if (sc->type == OBJ_llama3) {
		o->floats[1] = spec_num(sc, F_llama3_factor);
		o->floats[2] = spec_num(sc, F_llama3_low_freq_factor);
		o->floats[3] = spec_num(sc, F_llama3_high_freq_factor);
		o->floats[4] = (double)spec_int(sc, F_llama3_original_length);
	}
	b->seg = seg;
	struct rope_made *m = xalloc(sizeof *m);
	*m = (struct rope_made){ rope, HD, t, b->ropes };
	b->ropes = m;
	return t;
}

static tensor_id
attention(struct builder *b, const struct object *at, tensor_id x)
{
	struct graph *g = b->g;
	uint64_t H = (uint64_t)spec_int(at, F_attention_n_heads), D = g->tensor.a[x].dim[1];
	uint64_t HK = (uint64_t)spec_int(at, F_attention_n_kv_heads);
	uint64_t HD = (uint64_t)spec_int(at, F_attention_head_dim);
	uint64_t window = (uint64_t)spec_int(at, F_attention_window);
	const char *qk_norm = spec_str(at, F_attention_qk_norm);
	bool normed = strcmp(qk_norm, "none") != 0,
	     biased = strcmp(spec_str(at, F_attention_bias), "none");
	const struct object *rope = spec_obj(at, F_attention_rope);
	tensor_id qkv[3], o, lse;
	static const char *const names[] = { "q", "k", "v" };

	for (int i = 0; i < 3; i++) {
		uint64_t heads = i ? HK : H;
		b->line = spec_value(at, F_attention_n_heads)->line;
		const char *out = normed && i < 2 ? xprintf("%s_raw", names[i]) : names[i];
		qkv[i] = linear(b, xprintf("%s_proj", names[i]),
		    xprintf("%s%s_proj.weight", ATTN, names[i]), x, heads * HD,
		    biased ? xprintf("%s_plain", names[i]) : out);
		b->line = spec_value(at, F_attention_bias)->line;
		if (biased)
			qkv[i] = bias(b, xprintf("%s_bias", names[i]),
			    xprintf("%s%s_proj.bias", ATTN, names[i]), qkv[i], out);
		b->line = spec_value(at, F_attention_qk_norm)->line;
		if (normed && i < 2)
			qkv[i] = norm(b, xprintf("%s_norm", names[i]),
			    xprintf("%s%s_norm.weight", ATTN, names[i]), qkv[i],
			    strcmp(qk_norm, "head") ? 1 : heads, xprintf("%s_normed", names[i]));
	}
	for (int i = 0; i < 2 && rope->type == OBJ_rope; i++) {
		tensor_id table = rope_table(b, rope, HD), y;
		b->line = spec_value(at, F_attention_rope)->line;
		y = ACT(b, xprintf("%s_rot", names[i]), b->T, (i ? HK : H) * HD);
		uint64_t ints[] = { b->B, g->S, i ? HK : H, HD };
		if (b->position)
			memcpy(OP_(b, OP_rope_at, qkv[i], table, b->position, y)->ints, ints + 2,
			    2 * sizeof *ints);
		else
			memcpy(OP_(b, OP_rope, qkv[i], table, y)->ints, ints, sizeof ints);
		qkv[i] = y;
	}
	b->line = spec_value(at, F_attention_n_heads)->line;
	o = ACT(b, "heads", b->T, H * HD);
	if (!window || window > g->S)
		window = g->S;
	uint64_t ints[] = { b->B, g->S, H, HK, HD, window };
	struct op *p;
	if (b->position) {
		tensor_id keys = tensor(b, "keys", T_CACHE, ROLE_ACT, DIMS(g->S, HK * HD));
		tensor_id values = tensor(b, "values", T_CACHE, ROLE_ACT, DIMS(g->S, HK * HD));
		p = OP_(b, OP_attention_at, qkv[0], qkv[1], qkv[2], b->position, o, keys, values);
		memcpy(p->ints, ints + 2, 4 * sizeof *ints);
	} else {
		lse = tensor(b, "heads_lse", T_ACT, ROLE_STAT, DIMS(b->B * H * g->S));
		p = OP_(b, OP_attention, qkv[0], qkv[1], qkv[2], o, lse);
		memcpy(p->ints, ints, sizeof ints);
	}
	p->floats[0] = 1 / __builtin_sqrt((double)HD);
	bool out_bias = !strcmp(spec_str(at, F_attention_bias), "all");
	o = linear(b, "o_proj", ATTN "o_proj.weight", o, D, out_bias ? "attn_plain" : "attn");
	return out_bias ? bias(b, "o_bias", ATTN "o_proj.bias", o, "attn") : o;
}

/* Of the hidden activations; routed: as weighted rows of experts. */
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

/* prefix tells the shared expert's tensors from a dense layer's. */
static tensor_id
mlp(struct builder *b, tensor_id x, uint64_t F, const char *act, const char *prefix, const char *hf)
{
	uint64_t T = b->T, D = b->g->tensor.a[x].dim[1];
	const struct activation *ac = activation(act);
	tensor_id g = 0, u, h;

	if (ac->gated)
		g = linear(b, xprintf("%sgate_proj", prefix), xprintf("%sgate_proj.weight", hf), x,
		    F, xprintf("%sgate", prefix));
	u = linear(b, xprintf("%sup_proj", prefix), xprintf("%sup_proj.weight", hf), x, F,
	    xprintf("%sup", prefix));
	h = ACT(b, xprintf("%shidden", prefix), T, F);
	if (ac->gated)
		OP_(b, OP_glu, g, u, h)->ints[0] = ac->a;
	else
		OP_(b, OP_relu2, u, h);
	return linear(b, xprintf("%sdown_proj", prefix), xprintf("%sdown_proj.weight", hf), h, D,
	    xprintf("%sout", prefix));
}

static tensor_id
grouped(struct builder *b, const char *name, tensor_id x, tensor_id off, uint64_t E, uint64_t n,
    const char *out)
{
	uint64_t R = b->g->tensor.a[x].dim[0], k = b->g->tensor.a[x].dim[1];
	tensor_id w = param(b, xprintf("%s_proj", name),
	    xprintf("model.layers.%%l.mlp.experts.%%e.%s_proj.weight", name), OM_EXPERT_DATA,
	    DIMS(E, n, k));
	tensor_id y = ACT(b, out, R, n);

	OP_(b, OP_grouped, x, w, off, y);
	return y;
}

static tensor_id
moe(struct builder *b, const struct object *m, tensor_id x)
{
	struct graph *g = b->g;
	const struct object *ro = spec_obj(m, F_moe_router);
	const char *act = spec_str(m, F_moe_activation);
	/* in the order of op.def's scores */
	static const char *const scores[] = { "softmax", "sigmoid", "topk_softmax" };
	uint64_t parts = strcmp(spec_str(ro, F_router_balance_over), "sequence") ? 1 : b->B;
	uint64_t T = b->T, D = g->tensor.a[x].dim[1];
	uint64_t E = (uint64_t)spec_int(m, F_moe_num_experts),
		 K = (uint64_t)spec_int(m, F_moe_top_k);
	uint64_t F = (uint64_t)spec_int(m, F_moe_hidden_size), R = size_mul(T, K);
	uint64_t FS = (uint64_t)spec_int(m, F_moe_shared_hidden_size);
	tensor_id w, z, p, idx, prob, lse, cnt, load, aux, row, src, off, xr, gate, up, h, y;
	tensor_id bias = 0, draw = 0;
	/* what is generated is no stress run, and has no place in the data to draw by */
	const char *routing = b->shift ? "learned" : spec_str(ro, F_router_routing);

	b->line = spec_value(ro, F_router_score)->line;
	w = param(b, "router", "model.layers.%l.mlp.gate.weight", OM_DATA, DIMS(E, D));
	z = tensor(b, "scores", T_ACT, ROLE_STAT, DIMS(T, E));
	OP_(b, OP_gate, x, w, z);
	p = tensor(b, "weights", T_ACT, ROLE_STAT, DIMS(T, K));
	idx = tensor(b, "chosen", T_ACT, ROLE_INT32, DIMS(T, K));
	prob = tensor(b, "probs", T_ACT, ROLE_STAT, DIMS(T, E));
	lse = tensor(b, "scores_lse", T_ACT, ROLE_STAT, DIMS(T));
	cnt = tensor(b, "counts", T_ACT, ROLE_INT32, DIMS(parts, E));
	load = stat(b, "load", ROLE_INT64, OM_DATA, E);
	aux = stat(b, "aux", ROLE_FP64, OM_DATA, 2);
	if (spec_num(ro, F_router_bias_gamma) > 0) {
		bias = tensor(b, "choice_bias", T_BUFFER, ROLE_STAT, DIMS(E));
		g->tensor.a[bias].hf = "model.layers.%l.mlp.gate.e_score_correction_bias";
		g->tensor.a[bias].init = INIT_ZERO;
		g->tensor.a[bias].copies = OM_DATA;
		g->tensor.a[bias].line = spec_value(ro, F_router_bias_gamma)->line;
	} else if (!strcmp(routing, "random")) {
		draw = tensor(b, "draw", T_INPUT, ROLE_INT64, DIMS(3));
	}
	struct op *o = strcmp(routing, "uniform")
			   ? OP_(b, OP_route, z, bias, draw, p, idx, prob, lse, cnt, load, aux)
			   : OP_(b, OP_route_uniform, z, p, idx, prob, lse, cnt, load, aux);
	uint64_t score = 0;
	while (strcmp(scores[score], spec_str(ro, F_router_score)))
		score++;
	memcpy(o->ints,
	    (uint64_t[]){ K, (uint64_t)spec_int(ro, F_router_normalize), score,
		(uint64_t)spec_int(ro, F_router_n_groups),
		(uint64_t)spec_int(ro, F_router_top_groups), parts },
	    6 * sizeof(uint64_t));
	/* the losses are means over microbatches and data-parallel ranks */
	double shares = (double)g->microbatches *
			(double)spec_int(spec_obj(g->trainer, F_trainer_parallel), F_parallel_data);
	o->floats[0] = spec_num(ro, F_router_weight_scale);
	o->floats[1] = spec_num(ro, F_router_load_balance) / shares;
	o->floats[2] = spec_num(ro, F_router_z_loss) / shares;

	b->line = spec_value(m, F_moe_num_experts)->line;
	row = tensor(b, "row", T_ACT, ROLE_INT32, DIMS(T, K));
	src = tensor(b, "src", T_ACT, ROLE_INT32, DIMS(R));
	off = tensor(b, "offsets", T_ACT, ROLE_INT32, DIMS(E + 1));
	OP_(b, OP_route_map, idx, cnt, row, src, off);
	xr = ACT(b, "routed", R, D);
	OP_(b, OP_dispatch, x, row, src, xr);
	b->line = spec_value(m, F_moe_hidden_size)->line;
	gate = activation(act)->gated ? grouped(b, "gate", xr, off, E, F, "gate") : 0;
	up = grouped(b, "up", xr, off, E, F, "up");
	h = ACT(b, "hidden", R, F);
	if (gate)
		OP_(b, OP_glu_routed, gate, up, p, src, h)->ints[0] = activation(act)->a;
	else
		OP_(b, OP_relu2_routed, up, p, src, h);
	y = grouped(b, "down", h, off, E, D, "rows");
	tensor_id sum = ACT(b, "out", T, D);
	OP_(b, OP_combine, y, row, src, sum);
	if (!FS)
		return sum;
	b->line = spec_value(m, F_moe_shared_hidden_size)->line;
	tensor_id s = mlp(b, x, FS, act, "shared_", "model.layers.%l.mlp.shared_expert.");
	tensor_id both = ACT(b, "mixed", T, D);
	OP_(b, OP_add, sum, s, both);
	return both;
}

/* Norm of a branch's end, if norms are placed there; name is that of its parameter. */
static tensor_id
norm_if(
    struct builder *b, bool here, const char *name, const char *hf, tensor_id x, const char *out)
{
	const struct object *tr = spec_obj(b->g->trainer, F_trainer_model);

	b->line = spec_value(tr, F_transformer_norm)->line;
	return here ? norm(b, name, xprintf("model.layers.%%l.%s.weight", hf), x, 1, out) : x;
}

static void
layer(struct builder *b, const struct object *at, const struct object *ffn)
{
	struct graph *g = b->g;
	struct object *tr = spec_obj(g->trainer, F_trainer_model);
	uint64_t D = (uint64_t)spec_int(tr, F_transformer_d_model);
	const char *placement = spec_str(tr, F_transformer_norm_placement);
	bool before = strcmp(placement, "post") != 0, after = strcmp(placement, "pre") != 0;
	tensor_id x, a, mid, f, y;

	b->line = spec_value(tr, F_transformer_d_model)->line;
	x = g->seg.a[b->seg].x = ACT(b, "x", b->T, D);
	/* the names are those of OLMoE (pre), OLMo 2 (post) and Gemma 2 (peri) */
	a = norm_if(b, before, "attn_norm", "input_layernorm", x, "attn_in");
	a = attention(b, at, a);
	a = norm_if(b, after, "attn_post_norm", "post_attention_layernorm", a, "attn_normed");
	b->line = spec_value(tr, F_transformer_attention)->line;
	mid = ACT(b, "mid", b->T, D);
	OP_(b, OP_add, x, a, mid);
	f = norm_if(b, before, "ffn_norm",
	    after ? "pre_feedforward_layernorm" : "post_attention_layernorm", mid, "ffn_in");
	if (ffn->type == OBJ_moe) {
		f = moe(b, ffn, f);
	} else {
		b->line = spec_value(ffn, F_mlp_hidden_size)->line;
		f = mlp(b, f, (uint64_t)spec_int(ffn, F_mlp_hidden_size),
		    spec_str(ffn, F_mlp_activation), "", "model.layers.%l.mlp.");
	}
	f = norm_if(b, after, "ffn_post_norm", "post_feedforward_layernorm", f, "ffn_normed");
	b->line = spec_value(tr, F_transformer_feed_forward)->line;
	y = ACT(b, "y", b->T, D);
	OP_(b, OP_add, mid, f, y);
	g->seg.a[b->seg].y = y;
}

/*
 * Layers with equal attention, feed-forward and recomputation are one kind; kinds come in the order
 * of their first layer.
 */
static void
find_kinds(struct graph *g)
{
	const struct object *tr = spec_obj(g->trainer, F_trainer_model);
	const struct value *at = spec_value(tr, F_transformer_attention);
	const struct value *ff = spec_value(tr, F_transformer_feed_forward);
	const struct value *re = spec_value(tr, F_transformer_recompute);
	uint32_t count[2] = { 0 };

	g->kind_of = xalloc(g->n_layers * sizeof *g->kind_of);
	g->index_of = xalloc(g->n_layers * sizeof *g->index_of);
	for (uint32_t l = 0; l < g->n_layers; l++) {
		uint32_t k = g->embed + 1;
		while (k < g->seg.n && !(spec_equal(g->seg.a[k].ffn, ff->list[l]) &&
					   spec_equal(g->seg.a[k].attention, at->list[l]) &&
					   spec_equal(g->seg.a[k].recompute, re->list[l])))
			k++;
		if (k == g->seg.n) {
			bool is_moe = ff->list[l]->type == OBJ_moe;
			uint32_t nth = ++count[is_moe];
			const char *base = is_moe ? "moe" : "dense";
			segment(g, nth > 1 ? xprintf("%s%u", base, nth) : base);
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

/* Squared norm over all gradients, clipping, then the step of every parameter and router bias. */
static void
update(struct builder *b)
{
	struct graph *g = b->g;
	tensor_id ctl = g->ctl;
	struct object *opt = spec_obj(g->trainer, F_trainer_optimizer);
	const struct value *betas = spec_value(opt, F_adamw_betas);
	bool master = g->format[ROLE_WEIGHT] != g->format[ROLE_MASTER];
	static const char *const state[N_STATES] = { "master", "m", "v" };
	uint32_t ntensors = g->tensor.n, seg = b->seg;

	b->line = spec_value(opt, F_adamw_clip_norm)->line;
	for (uint32_t k = 0; k < g->param_group.n; k++)
		for (uint32_t i = 1; i < ntensors; i++)
			if (g->tensor.a[i].class == T_PARAM && g->tensor.a[i].param_group == k)
				OP_(b, OP_sumsq, g->tensor.a[i].grad, ctl);
	OP_(b, OP_clip, g->loss, ctl)->floats[0] = spec_num(opt, F_adamw_clip_norm);
	for (uint32_t k = 0; k < g->param_group.n; k++)
		for (uint32_t i = 1; i < ntensors; i++) {
			if (g->tensor.a[i].class != T_PARAM || g->tensor.a[i].param_group != k)
				continue;
			tensor_id s[N_STATES] = { 0 };
			b->line = g->tensor.a[i].line;
			for (int j = master ? STATE_MASTER : STATE_M; j < N_STATES; j++) {
				b->seg = g->tensor.a[i].seg;
				const char *name =
				    g->tensor.a[i].name + strlen(g->seg.a[b->seg].name) + 1;
				s[j] = tensor(b, xprintf("%s_%s", state[j], name), T_STATE,
				    j == STATE_MASTER ? ROLE_MASTER : ROLE_MOMENT,
				    g->tensor.a[i].ndims, g->tensor.a[i].dim);
				g->tensor.a[s[j]].param = i;
				g->tensor.a[i].state[j] = s[j];
				b->seg = seg;
			}
			b->line = spec_value(g->trainer, F_trainer_optimizer)->line;
			struct op *o = OP_(b, OP_adamw, g->tensor.a[i].grad, ctl, i,
			    s[STATE_MASTER], s[STATE_M], s[STATE_V]);
			o->floats[0] = betas->num;
			o->floats[1] = betas->num2;
			o->floats[2] = spec_num(opt, F_adamw_eps);
			o->floats[3] = g->param_group.a[k].weight_decay;
			o->floats[4] = g->param_group.a[k].lr_scale;
			g->param_group.a[k].whole = op_row(o->op)->whole;
		}
	for (tensor_id i = 1; i < ntensors; i++) {
		const struct segment *s = &g->seg.a[g->tensor.a[i].seg];
		if (g->tensor.a[i].class != T_BUFFER)
			continue;
		const struct object *ro = spec_obj(s->ffn, F_moe_router);
		b->line = g->tensor.a[i].line;
		struct op *o = OP_(b, OP_bias_update, op_arg(graph_route(s), "load"), ctl, i);
		o->ints[0] = g->tensor.a[i].dim[0];
		o->floats[0] = spec_num(ro, F_router_bias_gamma);
	}
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
		if (tensor_by_expert(t)) {
			struct object *m = spec_value(
			    spec_obj(g->trainer, F_trainer_model), F_transformer_feed_forward)
					       ->list[g->seg.a[t->seg].layer[0]];
			active = all / t->dim[0] * (uint64_t)spec_int(m, F_moe_top_k);
		}
		g->params_total = size_add(g->params_total, all);
		g->params_active = size_add(g->params_active, active);
	}
	for (uint32_t s = 0; s < g->update; s++)
		for (int p = 0; p < N_PHASES; p++)
			for (uint32_t i = 0; i < g->seg.a[s].ops[p].n; i++) {
				uint64_t n = op_flops(g, &g->seg.a[s].ops[p].a[i]);
				flops = size_add(flops,
				    size_mul(n, g->seg.a[s].nlayers ? g->seg.a[s].nlayers : 1));
			}
	g->flops_token = flops / g->T;
}

/* The embedded tokens, scaled and normalised where the description says so. */
static void
embed(struct builder *b, tensor_id tokens, tensor_id w)
{
	struct graph *g = b->g;
	const struct object *tr = spec_obj(g->trainer, F_trainer_model);
	const struct object *em = spec_obj(tr, F_transformer_embedding);
	uint64_t D = g->tensor.a[w].dim[1];
	double factor = spec_num(em, F_embedding_scale);
	tensor_id x = ACT(b, "x0", b->T, D);

	OP_(b, OP_embed, tokens, w, x);
	b->line = spec_value(tr, F_transformer_embedding)->line;
	if (factor != 1) {
		tensor_id y = ACT(b, "scaled", b->T, D);
		OP_(b, OP_scale, x, y)->floats[0] = factor;
		x = y;
	}
	if (spec_int(em, F_embedding_norm))
		x = norm(b, "norm", "model.embed_norm.weight", x, 1, "normed");
	g->seg.a[b->seg].y = x;
}

/* The final norm; gives what the output weights are multiplied by. */
static tensor_id
head_norm(struct builder *b, tensor_id norm_w, uint64_t D)
{
	struct graph *g = b->g;
	const struct object *tr = spec_obj(g->trainer, F_trainer_model);
	tensor_id x, h, r;

	b->line = spec_value(tr, F_transformer_norm)->line;
	x = g->seg.a[b->seg].x = ACT(b, "x", b->T, D);
	h = ACT(b, "in", b->T, D);
	r = tensor(b, "in_rms", T_ACT, ROLE_STAT, DIMS(b->T));
	struct op *o = OP_(b, OP_rmsnorm, x, norm_w, h, r);
	o->ints[0] = 1;
	o->floats[0] = spec_num(spec_obj(tr, F_transformer_norm), F_rms_norm_eps);
	b->line = spec_value(spec_obj(tr, F_transformer_lm_head), F_lm_head_tied)->line;
	return h;
}

/* The final norm and the loss; once for training, and once more, forward only, for evaluation. */
static void
head(struct builder *b, tensor_id norm_w, tensor_id w)
{
	struct graph *g = b->g;
	const struct object *tr = spec_obj(g->trainer, F_trainer_model);
	const struct object *ba = spec_obj(g->trainer, F_trainer_batch);
	const struct object *lm = spec_obj(tr, F_transformer_lm_head);
	tensor_id h = head_norm(b, norm_w, g->tensor.a[w].dim[1]), lse;

	lse = tensor(b, "logits_lse", T_ACT, ROLE_STAT, DIMS(b->T));
	struct op *o = OP_(b, OP_head_loss, h, w, g->labels, lse, g->loss);
	o->floats[0] = 1 / ((double)spec_int(ba, F_batch_global) * (double)g->S);
	o->floats[1] = spec_num(lm, F_lm_head_z_loss);
}

/*
 * One token of one sequence, at a position: the same layers on the same weights, one row a tensor,
 * that leave their keys and values in caches. Gives the logits of the token after it.
 */
static void
decode(struct builder *b, tensor_id tokens_w, tensor_id norm_w, tensor_id w)
{
	struct graph *g = b->g;
	const struct object *tr = spec_obj(g->trainer, F_trainer_model);
	uint64_t V = g->tensor.a[w].dim[0], D = g->tensor.a[w].dim[1];
	tensor_id token, h, logits;

	b->B = b->T = 1;
	b->shift = g->seg.n - g->embed;
	g->decode = g->seg.n;
	for (uint32_t s = g->embed; s <= g->head; s++) {
		struct segment old = g->seg.a[s];
		segment(g, xprintf("decode_%s", old.name));
		struct segment *new = &g->seg.a[s + b->shift];
		new->attention = old.attention;
		new->ffn = old.ffn;
		new->layer = old.layer;
		new->nlayers = old.nlayers;
	}
	b->seg = g->decode;
	b->line = spec_value(tr, F_transformer_vocab_size)->line;
	token = tensor(b, "token", T_INPUT, ROLE_INT32, DIMS(1));
	b->position = tensor(b, "position", T_INPUT, ROLE_INT32, DIMS(1));
	embed(b, token, tokens_w);
	for (uint32_t k = g->embed + 1; k < g->head; k++) {
		b->seg = k + b->shift;
		layer(b, g->seg.a[k].attention, g->seg.a[k].ffn);
	}
	b->seg = g->head + b->shift;
	h = head_norm(b, norm_w, D);
	logits = tensor(b, "logits", T_ACT, ROLE_STAT, DIMS(1, V));
	OP_(b, OP_logits, h, w, logits);
}

struct graph *
graph_build(struct object *trainer)
{
	struct graph *g = xalloc(sizeof *g);
	struct object *tr = spec_obj(trainer, F_trainer_model);
	struct object *ba = spec_obj(trainer, F_trainer_batch);
	uint64_t V = (uint64_t)spec_int(tr, F_transformer_vocab_size);
	uint64_t D = (uint64_t)spec_int(tr, F_transformer_d_model);
	struct builder b = { .g = g };
	tensor_id tokens_w, w, norm_w;

	g->trainer = trainer;
	g->last_phase = BACKWARD;
	g->n_layers = (uint32_t)spec_int(tr, F_transformer_n_layers);
	g->B = (uint64_t)spec_int(ba, F_batch_micro);
	g->S = (uint64_t)spec_int(tr, F_transformer_sequence_length);
	g->T = size_mul(g->B, g->S);
	g->microbatches =
	    (uint64_t)spec_int(ba, F_batch_global) / g->B /
	    (uint64_t)spec_int(spec_obj(trainer, F_trainer_parallel), F_parallel_data);
	b.B = g->B;
	b.T = g->T;
	choose_formats(g);
	*PUSH(g->tensor) = (struct tensor){ .name = "none" };
	g->init = segment(g, "init");
	g->embed = segment(g, "embed");
	find_kinds(g);

	b.seg = g->embed;
	b.line = spec_value(tr, F_transformer_vocab_size)->line;
	g->tokens = tensor(&b, "tokens", T_INPUT, ROLE_INT32, DIMS(g->T));
	g->labels = tensor(&b, "labels", T_INPUT, ROLE_INT32, DIMS(g->T));
	w = tokens_w = param(&b, "tokens_w", "model.embed_tokens.weight", OM_DATA, DIMS(V, D));
	embed(&b, g->tokens, w);

	for (uint32_t k = g->embed + 1, n = g->seg.n; k < n; k++) {
		b.seg = k;
		layer(&b, g->seg.a[k].attention, g->seg.a[k].ffn);
	}

	g->head = b.seg = segment(g, "head");
	b.line = spec_value(tr, F_transformer_norm)->line;
	norm_w = param(&b, "norm", "model.norm.weight", OM_DATA, DIMS(D));
	b.line = spec_value(tr, F_transformer_lm_head)->line;
	if (!spec_int(spec_obj(tr, F_transformer_lm_head), F_lm_head_tied))
		w = param(&b, "w", "lm_head.weight", OM_DATA, DIMS(V, D));
	g->loss = stat(&b, "loss", ROLE_FP64, OM_WORLD, 2);
	head(&b, norm_w, w);

	for (uint32_t s = g->embed; s <= g->head; s++)
		grad_segment(g, s);

	g->update = b.seg = segment(g, "update");
	g->ctl = tensor(&b, "ctl", T_INPUT, ROLE_FP64, DIMS(8));
	graph_groups(g);
	update(&b);

	g->eval = b.seg = segment(g, "eval");
	head(&b, norm_w, w);
	decode(&b, tokens_w, norm_w, w);
	if (!diag_count())
		count(g);
	for (uint32_t k = g->embed + 1; k < g->head; k++)
		recompute_segment(g, k, spec_str(g->seg.a[k].recompute, F_recompute_what));
	return g;
}
