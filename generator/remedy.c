/*
 * Whether a plan fits its device; where it does not, what takes the memory and which changes of the
 * description would need less. Each is tried as a user would: the changed description is checked
 * and planned again.
 */
#include <string.h>

#include "remedy.h"

/* The stage whose ranks need most. */
static const struct plan *
worst_stage(const struct plan *p)
{
	const struct plan *worst = p;

	for (uint32_t i = 1; i < p->n_stages; i++)
		if (p[i].arena_bytes > worst->arena_bytes)
			worst = &p[i];
	return worst;
}

/* ---- does it fit ---- */

/* Bytes that a tensor takes on a rank of the stage, all layers and slots; scratch counts once. */
static uint64_t
tensor_on_rank(const struct plan *p, tensor_id t)
{
	const struct place *pl = &p->place[t];
	const struct tensor *x = &p->graph->tensor.a[t];
	uint64_t n = pl->bytes;

	if (pl->region == R_SCRATCH)
		return n;
	n = mul64(n, plan_layers(p, t));
	if (x->class == T_STATE)
		n /= p->shard->mesh.size[p->graph->tensor.a[x->param].copies];
	return pl->region == R_SAVED ? mul64(n, p->slots) / p->shard->stage[p->stage].nchunks : n;
}

static void
five_largest(const struct plan *p, struct buf *out)
{
	const struct graph *g = p->graph;
	tensor_id top[5] = { 0 };
	uint64_t size[5] = { 0 };

	for (tensor_id t = 1; t < g->tensor.n; t++) {
		uint64_t n = tensor_on_rank(p, t);
		if (g->tensor.a[t].class == T_CACHE)
			continue;
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

/* Other values of a description; 0 and NULL: as it is. */
struct change {
	uint64_t micro, data, expert, pipeline;
	const char *recompute;
	double capacity;
};

/* An object of the trainer; one that it has by default gets a place in the description. */
static struct object *
part_of(struct object *o, enum field_id f, enum object_type type)
{
	struct value *v = spec_value(o, f);

	if (!v->set) {
		v->list = xalloc(sizeof *v->list);
		v->list[0] = spec_new(type, (struct pos){ 0 });
		v->n = 1;
		v->set = v->given = true;
	}
	return v->list[0];
}

static void
give(struct object *o, enum field_id f, uint64_t x)
{
	struct value *v = spec_value(o, f);

	if (!x)
		return;
	v->i = (int64_t)x;
	v->set = v->given = true;
	v->pos = (struct pos){ 0 }; /* nothing that is written there */
}

static void
apply(struct object *t, const struct change *c, uint32_t n_layers)
{
	struct object *layout = part_of(t, F_trainer_parallel, OBJ_parallel);

	give(spec_obj(t, F_trainer_batch), F_batch_micro, c->micro);
	give(layout, F_parallel_data, c->data);
	give(layout, F_parallel_expert, c->expert);
	give(layout, F_parallel_pipeline, c->pipeline);
	if (c->capacity > 0) {
		struct value *v = spec_value(layout, F_parallel_capacity);
		v->num = c->capacity;
		v->str = NULL;
		v->set = v->given = true;
	}
	if (c->recompute) {
		struct value *v = spec_value(spec_obj(t, F_trainer_model), F_transformer_recompute);
		struct object *o = spec_new(OBJ_recompute, (struct pos){ 0 });
		spec_value(o, F_recompute_what)->str = c->recompute;
		spec_value(o, F_recompute_what)->set = spec_value(o, F_recompute_what)->given =
		    true;
		v->list = xalloc(n_layers * sizeof *v->list);
		for (v->n = 0; v->n < n_layers; v->n++)
			v->list[v->n] = o;
		v->set = v->given = true;
	}
}

/* What the worst rank needs after a change; UINT64_MAX if it would be refused. */
static uint64_t
what_if(const struct plan *p, const struct change *c, bool build)
{
	struct object *t = spec_copy(p->graph->trainer);
	int before = diag_count();
	uint64_t need = UINT64_MAX;

	apply(t, c, p->graph->n_layers);
	check(t, targets, p->target->name);
	struct graph *g = diag_count() == before ? graph_build(t) : NULL;
	if (g && diag_count() == before) {
		struct shard *s = shard(g, p->target);
		fuse(s);
		const struct plan *other = plan(s);
		if (build)
			plan_buildable(other);
		if (diag_count() == before)
			need = worst_stage(other)->arena_bytes;
	}
	diag_rewind(before);
	return need;
}

/* A change of the description that needs less memory: the degrees times these powers of two. */
struct remedy {
	bool micro, data, expert, pipeline;
};

/* Applies a remedy at growing strength until it fits; gives what is needed then. */
static uint64_t
try_remedy(
    const struct plan *p, const struct remedy *r, uint64_t device, bool build, struct buf *out)
{
	const struct om_mesh *m = &p->shard->mesh;
	uint64_t best = UINT64_MAX;

	for (int power = 1; power < 8 && best > device; power++) {
		const struct {
			bool use;
			const char *name;
			uint64_t x;
		} part[] = { { r->micro, "batch.micro", p->graph->B >> power },
			{ r->data, "parallel.data", m->size[OM_DATA] << power },
			{ r->expert, "parallel.expert", m->size[OM_EXPERT] << power },
			{ r->pipeline, "parallel.pipeline", m->size[OM_PIPELINE] << power } };
		if (r->micro && !part[0].x)
			break;
		uint64_t n = what_if(p,
		    &(struct change){ r->micro ? part[0].x : 0, r->data ? part[1].x : 0,
			r->expert ? part[2].x : 0, r->pipeline ? part[3].x : 0, NULL, 0 },
		    build);
		if (n == UINT64_MAX)
			continue;
		if (n >= best)
			break;
		best = n;
		out->n = 0;
		for (unsigned i = 0; i < LEN(part); i++)
			if (part[i].use)
				buf_printf(out, "%s%s = %llu", out->n ? " with " : "", part[i].name,
				    (unsigned long long)part[i].x);
		buf_printf(out, ": %s%s", human_bytes(n), n <= device ? ", fits" : "");
	}
	return best;
}

static void
remedies(const struct plan *p, uint64_t need, uint64_t device, bool build)
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
	const struct object *pa = spec_obj(p->graph->trainer, F_trainer_parallel);
	const struct om_mesh *m = &p->shard->mesh;
	struct buf all = { 0 };
	static const char *const again[] = { "cheap", "experts", "block" };
	bool enough = false;

	for (unsigned i = 0; i < LEN(again); i++) {
		uint64_t n = what_if(p, &(struct change){ .recompute = again[i] }, build);
		if (n < need - need / 50)
			buf_printf(&all, "%srecompute { what = \"%s\" }: %s%s", all.n ? "; " : "",
			    again[i], human_bytes(n), n <= device ? ", fits" : "");
	}
	if (m->size[OM_EXPERT] > 1 && spec_value(pa, F_parallel_capacity)->str) {
		uint64_t n = what_if(p, &(struct change){ .capacity = 1.25 }, build);
		enough |= n <= device;
		if (n < need - need / 50)
			buf_printf(&all, "%sparallel.capacity = 1.25, which cuts rows: %s%s",
			    all.n ? "; " : "", human_bytes(n), n <= device ? ", fits" : "");
	}
	for (unsigned i = 0; i < LEN(single) + LEN(joint); i++) {
		const struct remedy *r = i < LEN(single) ? &single[i] : &joint[i - LEN(single)];
		struct buf one = { 0 };
		if (enough && i >= LEN(single))
			break;
		uint64_t n = try_remedy(p, r, device, build, &one);
		enough |= n <= device;
		if (n < need - need / 20 && (i < LEN(single) || n <= device))
			buf_printf(&all, "%s%s", all.n ? "; " : "", one.s);
	}
	if (all.n)
		diag_help("use %s", all.s);
	if (build && p->target->arch)
		diag_help(
		    "this version builds trainers of one rank for %s; --plan tries layouts of "
		    "several too",
		    p->target->name);
	else if (!enough)
		diag_help("no smaller microbatch and no layout near this one fits: take a smaller "
			  "model or shorter "
			  "sequences");
}

void
remedy_fits(const struct plan *p, bool build)
{
	struct object *t = p->graph->trainer;
	double gib = spec_num(t, F_trainer_device_memory);
	uint64_t device = (uint64_t)(gib * 1073741824.0);
	const struct plan *worst = worst_stage(p);
	uint64_t need = worst->arena_bytes;
	struct buf top = { 0 }, parts = { 0 };

	if (gib <= 0 || need <= device)
		return;
	struct value *where = spec_value(t, F_trainer_device_memory);
	diag_error(where->given ? where->pos : spec_value(t, F_trainer_target)->pos,
	    "%s needs %s on a rank%s, %s more than %s", spec_str(t, F_trainer_name),
	    human_bytes(need), p->n_stages > 1 ? xprintf(" of stage %u", worst->stage) : "",
	    human_bytes(need - device),
	    where->given ? xprintf("trainer.device_memory = %.6g GiB", gib)
			 : xprintf("the %.6g GiB of %s", gib, p->target->card));
	for (int r = 0; r < N_REGIONS; r++)
		if (worst->region_bytes[r] > need / 1000)
			buf_printf(&parts, "%s%s %s", parts.n ? ", " : "", plan_region_names[r],
			    human_bytes(worst->region_bytes[r]));
	diag_help("of that: %s", parts.s);
	five_largest(worst, &top);
	diag_help("the largest buffers: %s", top.s);
	remedies(p, need, device, build);
}
