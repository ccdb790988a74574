/*
 * What a plan costs: memory by rank and kind, the check against the device, the page that --plan
 * prints.
 */
#include <string.h>

#include "olmogen.h"

/* Saved activations and scratch grow with the tokens of a microbatch; the rest does not. */
static uint64_t
scale(uint64_t bytes, uint64_t micro, const struct graph *g)
{
	return mul64(bytes / g->B, micro);
}

/* Bytes of a tensor on a rank of a stage, all its layers there; what shares scratch counts once. */
static uint64_t
tensor_on_rank(const struct plan *p, const struct shard *s, uint32_t stage, tensor_id t)
{
	const struct tensor *x = &p->graph->tensor.a[t];
	const struct mesh *m = &s->mesh;
	bool resident = x->class == T_PARAM || x->class == T_GRAD || x->class == T_STATE;
	bool experts = resident && p->graph->tensor.a[x->class == T_PARAM ? t : x->param].experts;
	uint64_t n = mul64(tensor_elems(x), dtype_bytes(p, x->dtype));

	if (p->place[t].region != R_SCRATCH)
		n = mul64(n, stage_layers(s, stage, x));
	n /= experts ? m->expert : 1;
	return n / (x->class != T_STATE ? 1 : experts ? m->expert_data : m->data);
}

uint64_t
rank_memory(const struct plan *p, const struct shard *s, uint32_t stage, uint64_t micro,
    uint64_t bytes[N_REGIONS])
{
	const struct graph *g = p->graph;
	const struct mesh *m = &s->mesh;
	uint64_t total = 0;

	if (m->world == 1 && micro == g->B) {
		memcpy(bytes, p->region_bytes, N_REGIONS * sizeof *bytes);
		return p->arena_bytes;
	}
	memset(bytes, 0, N_REGIONS * sizeof *bytes);
	for (tensor_id t = 1; t < g->tensor.n; t++) {
		const struct tensor *x = &g->tensor.a[t];
		uint64_t n = tensor_on_rank(p, s, stage, t);
		if (!p->place[t].bytes || x->class == T_CACHE)
			continue;
		if (x->class == T_ACT) {
			if (p->place[t].region != R_SAVED || p->place[t].kind != PLACE)
				continue;
			/* tensors that share a buffer count once */
			bool again = false;
			for (tensor_id u = 1; u < t; u++)
				again |= g->tensor.a[u].class == T_ACT &&
					 p->place[u].kind == PLACE &&
					 p->place[u].region == R_SAVED &&
					 p->place[u].off == p->place[t].off;
			if (again)
				continue;
			n = scale(n, micro, g);
		}
		bytes[p->place[t].region] = add64(bytes[p->place[t].region], n);
	}
	const struct stage *st = &s->stage[stage];
	uint64_t streams = mul64(p->stream_stride, st->n + 1u);
	bytes[R_SAVED] = mul64(add64(bytes[R_SAVED], scale(streams, micro, g)), st->slots);
	uint64_t cached = add64(scale(streams, micro, g), p->cache_bytes);
	if (m->world == 1 && bytes[R_SAVED] < cached)
		bytes[R_SAVED] = cached;
	bytes[R_SCRATCH] = scale(p->region_bytes[R_SCRATCH], micro, g);
	for (int r = 0; r < N_REGIONS; r++)
		total = add64(total, bytes[r]);
	return total;
}

/* ---- does it fit ---- */

static uint64_t
worst_rank(const struct plan *p, const struct shard *s, uint64_t micro, uint32_t *stage,
    uint64_t bytes[N_REGIONS])
{
	uint64_t worst = 0, part[N_REGIONS];

	for (uint32_t i = 0; i < s->mesh.pipeline; i++) {
		uint64_t n = rank_memory(p, s, i, micro, part);
		if (n > worst) {
			worst = n;
			*stage = i;
			memcpy(bytes, part, sizeof part);
		}
	}
	return worst;
}

static void
five_largest(const struct plan *p, uint32_t stage, struct buf *out)
{
	const struct graph *g = p->graph;
	tensor_id top[5] = { 0 };
	uint64_t size[5] = { 0 };

	for (tensor_id t = 1; t < g->tensor.n; t++) {
		uint64_t n = tensor_on_rank(p, p->shard, stage, t);
		if (g->tensor.a[t].class == T_CACHE)
			continue;
		if (p->place[t].region == R_SAVED)
			n = mul64(n, p->shard->stage[stage].slots);
		for (int i = 0; i < 5; i++)
			if (n > size[i]) {
				memmove(&top[i + 1], &top[i], (size_t)(4 - i) * sizeof *top);
				memmove(&size[i + 1], &size[i], (size_t)(4 - i) * sizeof *size);
				top[i] = t;
				size[i] = n;
				break;
			}
	}
	for (int i = 0; i < 5 && top[i]; i++)
		buf_printf(
		    out, "%s%s %s", i ? ", " : "", g->tensor.a[top[i]].name, human_bytes(size[i]));
}

/* A change of the description that needs less memory: the degrees times these powers of two. */
struct remedy {
	bool micro, data, expert, pipeline;
};

/* Applies a remedy at growing strength until it fits; gives what is needed then. */
static uint64_t
try_remedy(const struct plan *p, const struct remedy *r, uint64_t device, struct buf *out)
{
	const struct graph *g = p->graph;
	const struct mesh *m = &p->shard->mesh;
	uint64_t bytes[N_REGIONS], micro = g->B, best = UINT64_MAX;
	uint64_t data = m->data, expert = m->expert, pipeline = m->pipeline;
	uint32_t stage;

	for (int power = 0; power < 8 && best > device; power++) {
		if (r->micro && power)
			micro = micro > 1 ? micro / 2 : micro;
		if (r->data && power)
			data *= 2;
		if (r->expert && power)
			expert *= 2;
		if (r->pipeline && power)
			pipeline *= 2;
		bool legal = pipeline <= g->n_layers && data % expert == 0 &&
			     spec_int(spec_obj(g->trainer, F_trainer_batch), F_batch_global) %
				     (int64_t)(micro * data) ==
				 0;
		for (tensor_id t = 1; t < g->tensor.n; t++)
			legal &= !g->tensor.a[t].experts || g->tensor.a[t].dim[0] % expert == 0;
		if (!legal)
			continue;
		uint64_t n = worst_rank(
		    p, shard_mesh(p->shard->graph, data, expert, pipeline), micro, &stage, bytes);
		if (n >= best)
			break;
		best = n;
		out->n = 0;
		const char *sep = "";
		if (r->micro)
			buf_printf(out, "batch.micro = %llu", (unsigned long long)micro),
			    sep = " with ";
		if (r->data)
			buf_printf(out, "%sparallel.data = %llu", sep, (unsigned long long)data),
			    sep = " with ";
		if (r->expert)
			buf_printf(
			    out, "%sparallel.expert = %llu", sep, (unsigned long long)expert),
			    sep = " with ";
		if (r->pipeline)
			buf_printf(
			    out, "%sparallel.pipeline = %llu", sep, (unsigned long long)pipeline);
		buf_printf(out, ": %s%s", human_bytes(n), n <= device ? ", fits" : "");
	}
	return best;
}

/* What the worst rank needs if every layer recomputes this; the trainer is as before afterwards. */
static uint64_t
with_recompute(const struct plan *p, const char *what)
{
	struct graph *g = p->graph;
	const struct value *re =
	    spec_value(spec_obj(g->trainer, F_trainer_model), F_transformer_recompute);
	const char **old = xalloc(re->n * sizeof *old);
	uint64_t bytes[N_REGIONS];
	uint32_t stage;

	for (uint32_t i = 0; i < re->n; i++)
		old[i] = spec_str(re->list[i], F_recompute_what);
	for (uint32_t i = 0; i < re->n; i++)
		spec_value(re->list[i], F_recompute_what)->str = what;
	struct shard *s = shard(graph_build(g->trainer));
	fuse(s);
	struct plan *other = plan(s);
	for (uint32_t i = 0; i < re->n; i++)
		spec_value(re->list[i], F_recompute_what)->str = old[i];
	return worst_rank(other, s, g->B, &stage, bytes);
}

static void
remedies(const struct plan *p, uint64_t need, uint64_t device)
{
	/*
	 * cheapest first: fewer sequences at a time, then more ranks; both only where one is not
	 * enough
	 */
	static const struct remedy single[] = {
		{ .micro = true },
		{ .data = true },
		{ .data = true, .expert = true },
		{ .pipeline = true },
	};
	static const struct remedy joint[] = {
		{ .micro = true, .data = true, .expert = true },
		{ .micro = true, .pipeline = true },
		{ .data = true, .expert = true, .pipeline = true },
		{ .micro = true, .data = true, .expert = true, .pipeline = true },
	};
	struct buf all = { 0 };
	static const char *const again[] = { "cheap", "experts", "block" };
	bool enough = false;

	for (unsigned i = 0; i < LEN(again); i++) {
		uint64_t n = with_recompute(p, again[i]);
		if (n < need - need / 50)
			buf_printf(&all, "%srecompute { what = \"%s\" }: %s%s", all.n ? "; " : "",
			    again[i], human_bytes(n), n <= device ? ", fits" : "");
	}
	for (unsigned i = 0; i < LEN(single) + LEN(joint); i++) {
		const struct remedy *r = i < LEN(single) ? &single[i] : &joint[i - LEN(single)];
		struct buf one = { 0 };
		if (enough && i >= LEN(single))
			break;
		uint64_t n = try_remedy(p, r, device, &one);
		enough |= n <= device;
		if (n < need - need / 20 && (i < LEN(single) || n <= device))
			buf_printf(&all, "%s%s", all.n ? "; " : "", one.s);
	}
	if (all.n)
		diag_help("use %s", all.s);
	if (!enough)
		diag_help("no smaller microbatch and no layout near this one fits: take a smaller "
			  "model or shorter "
			  "sequences");
}

void
plan_fits(const struct plan *p)
{
	const struct graph *g = p->graph;
	struct object *t = g->trainer;
	double gib = spec_num(t, F_trainer_device_memory);
	uint64_t device = (uint64_t)(gib * 1073741824.0), bytes[N_REGIONS];
	uint32_t stage = 0;
	uint64_t need = worst_rank(p, p->shard, g->B, &stage, bytes);
	struct buf top = { 0 }, parts = { 0 };

	if (gib <= 0 || need <= device)
		return;
	struct value *where = spec_value(t, F_trainer_device_memory);
	diag_error(where->given ? where->pos : spec_value(t, F_trainer_target)->pos,
	    "%s needs %s on a rank%s, %s more than trainer.device_memory = %s GiB",
	    spec_str(t, F_trainer_name), human_bytes(need),
	    p->shard->mesh.pipeline > 1 ? xprintf(" of stage %u", stage) : "",
	    human_bytes(need - device), xprintf("%.6g", gib));
	for (int r = 0; r < N_REGIONS; r++)
		if (bytes[r] > need / 1000)
			buf_printf(&parts, "%s%s %s", parts.n ? ", " : "", region_names[r],
			    human_bytes(bytes[r]));
	diag_help("of that: %s", parts.s);
	five_largest(p, stage, &top);
	diag_help("the largest buffers: %s", top.s);
	remedies(p, need, device);
}

/* ---- text ---- */

static void
place_text(const struct plan *p, tensor_id t, struct buf *out)
{
	const struct tensor *x = &p->graph->tensor.a[t];
	const struct place *pl = &p->place[t];

	buf_printf(out, "  %-28s %-17s %14llu %14llu", x->name, region_names[pl->region],
	    (unsigned long long)pl->off, (unsigned long long)pl->bytes);
	if (p->graph->seg.a[x->seg].nlayers && pl->kind != DSTREAM)
		buf_printf(out, " x%u stride %llu", p->graph->seg.a[x->seg].nlayers,
		    (unsigned long long)pl->stride);
	buf_puts(out, "\n");
}

void
plan_print(const struct plan *p, struct buf *out)
{
	const struct graph *g = p->graph;

	buf_printf(out, "arena %llu bytes\n", (unsigned long long)p->arena_bytes);
	for (int r = 0; r < N_REGIONS; r++)
		buf_printf(out, "  region %-17s %14llu %14llu\n", region_names[r],
		    (unsigned long long)p->region_off[r], (unsigned long long)p->region_bytes[r]);
	buf_puts(out, "buffers\n");
	for (tensor_id t = 1; t < g->tensor.n; t++)
		if (p->place[t].bytes)
			place_text(p, t, out);
	for (uint32_t s = 0; s < g->seg.n; s++)
		for (int ph = 0; ph < N_PHASES; ph++)
			for (uint32_t i = 0; i < p->prog[s][ph].n; i++) {
				const struct step *st = &p->prog[s][ph].a[i];
				if (!i)
					buf_printf(out, "%s %s\n", g->seg.a[s].name,
					    ph ? "backward" : "forward");
				buf_printf(out, "  %3u stream %u  %-30s %s\n", i, st->stream,
				    p->inst.a[st->inst].name, op_text(g, &st->op));
			}
}

static const char *
human_flops(double x)
{
	static const char *const unit[] = { "", " K", " M", " G", " T", " P", " E", " Z" };
	unsigned u = 0;

	for (; x >= 1000 && u + 1 < LEN(unit); u++)
		x /= 1000;
	return xprintf("%.4g%s", x, unit[u]);
}

static void
row(struct buf *out, const char *name, const char *value, const char *more)
{
	buf_printf(out, "  %-22s %18s%s%s\n", name, value, *more ? "  " : "", more);
}

static void
report_memory(const struct plan *p, struct buf *out)
{
	static const enum region order[] = { R_WEIGHT, R_GRAD, R_STATE, R_BUFFER, R_SAVED,
		R_SCRATCH, R_CONST, R_INPUT, R_STAT };
	const struct mesh *m = &p->shard->mesh;
	double gib = spec_num(p->graph->trainer, F_trainer_device_memory);
	uint64_t bytes[N_REGIONS];

	buf_puts(out, "\nmemory a rank\n");
	for (uint32_t i = 0; i < m->pipeline; i++) {
		const struct stage *st = &p->shard->stage[i];
		uint64_t total = rank_memory(p, p->shard, i, p->graph->B, bytes);
		if (m->pipeline > 1)
			buf_printf(out, " stage %u: %slayers %u .. %u%s\n", i,
			    st->embed ? "embedding, " : "", st->first, st->first + st->n - 1,
			    st->head ? ", head" : "");
		for (unsigned k = 0; k < LEN(order); k++)
			if (bytes[order[k]])
				row(out, region_names[order[k]], human_bytes(bytes[order[k]]),
				    order[k] != R_SAVED ? ""
				    : st->slots > 1     ? xprintf("%llu microbatches in flight",
							      (unsigned long long)st->slots)
				    : p->cache_more     ? xprintf("%s of that for generate's cache",
							      human_bytes(p->cache_more))
							: "");
		row(out, "total", human_bytes(total),
		    gib > 0
			? xprintf("of %.6g GiB, %.1f %%", gib, (double)total / (gib * 10737418.24))
			: "");
	}
}

/* Bytes sent and the time that they take alone on the link; nothing where there is one rank. */
static void
report_wire(const struct plan *p, struct buf *out)
{
	static const char *const names[] = { "activations", "gradients reduced", "weights gathered",
		"expert rows sent", "expert rows returned" };

	if (p->shard->mesh.world == 1)
		return;
	buf_puts(out, "\nsent by a rank in a step\n");
	for (uint32_t i = 0; i < p->shard->mesh.pipeline; i++) {
		const struct stage *st = &p->shard->stage[i];
		if (p->shard->mesh.pipeline > 1)
			buf_printf(out, " stage %u\n", i);
		for (uint32_t c = 0; c < st->comm.n; c++)
			row(out, names[st->comm.a[c].kind], human_bytes(st->comm.a[c].bytes),
			    xprintf("%llu ranks%s", (unsigned long long)st->comm.a[c].ranks,
				p->target->link_gbs > 0
				    ? xprintf(", %.1f ms at %.0f GB/s",
					  (double)st->comm.a[c].bytes / p->target->link_gbs / 1e6,
					  p->target->link_gbs)
				    : ""));
	}
}

static const char *
attention_text(const struct object *o)
{
	int64_t window = spec_int(o, F_attention_window);

	return xprintf("%lld heads of %lld, %lld key/value%s%s",
	    (long long)spec_int(o, F_attention_n_heads),
	    (long long)spec_int(o, F_attention_head_dim),
	    (long long)spec_int(o, F_attention_n_kv_heads),
	    window ? xprintf(", window %lld", (long long)window) : "",
	    spec_obj(o, F_attention_rope)->type == OBJ_nope ? ", no positions" : "");
}

static const char *
ffn_text(const struct object *o)
{
	if (o->type == OBJ_mlp)
		return xprintf("hidden %lld", (long long)spec_int(o, F_mlp_hidden_size));
	int64_t shared = spec_int(o, F_moe_shared_hidden_size);
	return xprintf("%lld experts of %lld, top %lld%s",
	    (long long)spec_int(o, F_moe_num_experts), (long long)spec_int(o, F_moe_hidden_size),
	    (long long)spec_int(o, F_moe_top_k),
	    shared ? xprintf(", shared %lld", (long long)shared) : "");
}

void
plan_report(const struct plan *p, struct buf *out)
{
	const struct graph *g = p->graph;
	const struct mesh *m = &p->shard->mesh;
	struct object *t = g->trainer, *ba = spec_obj(t, F_trainer_batch);
	struct object *pr = spec_obj(t, F_trainer_precision);
	uint64_t global = (uint64_t)spec_int(ba, F_batch_global), tokens = mul64(global, g->S);
	double step_flops = (double)g->flops_token * (double)tokens;
	double bubble = (double)(m->pipeline - 1) / (double)(g->microbatches + m->pipeline - 1);

	buf_printf(out, "%s for %s, %s: pipeline %llu x data %llu, experts over %llu\n\n",
	    spec_str(t, F_trainer_name), p->target->name,
	    m->world == 1 ? "1 rank" : xprintf("%llu ranks", (unsigned long long)m->world),
	    (unsigned long long)m->pipeline, (unsigned long long)m->data,
	    (unsigned long long)m->expert);
	row(out, "parameters", commas(g->params_total), "total");
	row(out, "", commas(g->params_active), "active for a token");
	row(out, "precision", spec_str(pr, F_precision_weights),
	    xprintf("weights and activations%s; gradients %s, optimizer %s",
		p->target->least_bytes > 2 && !strcmp(spec_str(pr, F_precision_weights), "bf16")
		    ? xprintf(", in %llu bytes here", (unsigned long long)p->target->least_bytes)
		    : "",
		spec_str(pr, F_precision_grads), spec_str(pr, F_precision_optimizer)));
	row(out, "step", commas(tokens),
	    xprintf("tokens: %llu sequences of %llu", (unsigned long long)global,
		(unsigned long long)g->S));
	row(out, "microbatches", commas(g->microbatches),
	    xprintf("a rank and step, %llu x %llu tokens", (unsigned long long)g->B,
		(unsigned long long)g->S));
	row(out, "FLOPs", commas(g->flops_token),
	    "a token, forward and backward, causal half, no recompute");
	row(out, "", human_flops(step_flops), "a step");
	if (m->pipeline > 1)
		row(out, "pipeline bubble", xprintf("%.1f %%", 100 * bubble), "1F1B");
	if (p->target->tflops > 0) {
		double rate =
		    p->target->tflops * 1e12 * p->target->share * (double)m->world * (1 - bubble);
		row(out, "expected step", xprintf("%.3g s", step_flops / rate),
		    xprintf("%.0f tokens/s a rank, at %.0f %% of %.0f TFLOP/s",
			(double)tokens * rate / step_flops / (double)m->world,
			100 * p->target->share, p->target->tflops));
	} else {
		row(out, "expected step", "unknown", "depends on the machine: ask 'trainer bench'");
	}
	buf_puts(out, "\nlayers\n");
	for (uint32_t s = g->embed + 1; s < g->head; s++) {
		const struct segment *seg = &g->seg.a[s];
		struct buf list = { 0 };
		for (uint32_t i = 0; i < seg->nlayers; i++) {
			uint32_t j = i;
			while (j + 1 < seg->nlayers && seg->layer[j + 1] == seg->layer[j] + 1)
				j++;
			buf_printf(&list, j > i ? "%s%u..%u" : "%s%u", i ? ", " : "", seg->layer[i],
			    seg->layer[j]);
			i = j;
		}
		row(out, seg->name, list.s,
		    xprintf("%s; %s", attention_text(seg->attention), ffn_text(seg->ffn)));
	}
	report_memory(p, out);
	report_wire(p, out);
}
