/*
 * What a target cannot build of what can be planned: ops and sizes without a kernel for it, more
 * ranks than it has a way to join, tensors too large for the kernels' counters; and what its device
 * has no room for.
 */
#include <string.h>

#include "plan/plan.h"

static const struct need {
	enum op_id op;
	const char *target;
	char letter;
	enum { MULTIPLE_OF, AT_MOST } rule;
	uint64_t value;
} needs[] = {
#define NEEDS(op, target, letter, rule, value) { OP_##op, #target, letter, rule, value },
#include "kernel.def"
};

/* A size that kernels ask something of: where it comes from, and all that they ask. */
struct asked {
	const struct value *v;
	uint64_t x, multiple, most;
	enum op_id op; /* one that cannot do it */
	bool refused;
};
ARRAY_TYPE(all_asked, struct asked);

enum { SIZES_MAX = 8 };

/* The sizes nearest to the one asked for that would do, rising; gives how many. */
static uint32_t
would_do(const struct asked *a, uint64_t *x)
{
	uint64_t low = (a->x < a->most ? a->x : a->most) / a->multiple * a->multiple;
	uint32_t n = 0;

	if (a->most / a->multiple <= SIZES_MAX) {
		for (uint64_t y = a->multiple; y <= a->most; y += a->multiple)
			x[n++] = y;
		return n;
	}
	if (low)
		x[n++] = low;
	if (low + a->multiple <= a->most && a->multiple > 1)
		x[n++] = low + a->multiple;
	return n;
}

static void
refuse_size(const struct asked *a, const struct target_row *target)
{
	uint64_t x[SIZES_MAX];
	uint32_t n = would_do(a, x);
	struct buf b = { 0 };

	diag_error(a->v->pos, "%s gives %s a size of %s, for which target %s has no kernel",
	    spec_name(a->v->f), op_row(a->op)->name, text_commas(a->x), target->name);
	if (spec_is(a->v, a->x)) {
		struct question *q = ask();
		for (uint32_t i = 0; i < n && a->multiple > 1; i++)
			ask_value(q, a->v, n, xprintf("%llu", llu(x[i])));
		if (a->multiple > 1)
			return;
		const char *most = xprintf("%llu", llu(a->most));
		ask_words(
		    q, xprintf("use %s = %s or less", fields[a->v->f].name, most), a->v, most);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		buf_printf(&b, "%s%llu", !i ? "" : i + 1 < n ? ", " : " or ", llu(x[i]));
	diag_help("it follows from %s; there are kernels for %s%s", fields[a->v->f].name, b.s,
	    a->multiple == 1 ? " or less" : "");
}

/* The one of a size that an op has. */
static struct asked *
asked_of(struct all_asked *all, const struct op *o, uint64_t x)
{
	const struct value *v = spec_size(o->line, x);

	for (uint32_t i = 0; i < all->n; i++)
		if (all->a[i].v == v && all->a[i].x == x)
			return &all->a[i];
	*PUSH(*all) = (struct asked){ v, x, 1, UINT64_MAX, o->op, false };
	return &all->a[all->n - 1];
}

static void
offer_cpu(const struct plan *p, struct question *q, const char *why)
{
	ask_words(q, xprintf("use --target=cpu to %s", why),
	    spec_value(p->graph->trainer, F_trainer_target), "\"cpu\"");
}

/* What the target has no kernels for, an op or a size, once a field, at the one behind it. */
static void
check_needs(const struct plan *p)
{
	struct all_asked all = { 0 };
	const struct value *absent = NULL; /* the field of the last one */

	for (struct launch_at at = { 0 }; plan_next(p, &at) && at.seg < p->graph->decode;) {
		const struct op *o = &at.launch->op;
		struct sizes z;
		if (!kernel_for(p->graph, p->target, o) && !runtime_call(o->op) &&
		    absent != o->line->v) {
			absent = o->line->v;
			diag_error(o->line->v->pos,
			    "%s asks for %s, for which target %s has no kernel",
			    spec_name(o->line->v->f), op_row(o->op)->name, p->target->name);
			offer_cpu(p, ask(), "build");
		}
		for (const struct need *n = needs; n < needs + LEN(needs); n++) {
			if (at.phase != FORWARD || n->op != o->op ||
			    strcmp(n->target, p->target->kind->name) || op_bind(p->graph, o, &z))
				continue;
			struct asked *a = asked_of(&all, o, z.v[n->letter - 'a']);
			if (n->rule == AT_MOST && n->value < a->most)
				a->most = n->value;
			if (n->rule == MULTIPLE_OF && a->multiple % n->value) {
				if (n->value % a->multiple)
					internal("NEEDS: %llu of multiples of %llu", llu(n->value),
					    llu(a->multiple));
				a->multiple = n->value;
			}
			if (!a->refused && (a->x % a->multiple || a->x > a->most)) {
				a->refused = true;
				a->op = o->op;
			}
		}
	}
	for (uint32_t j = 0; j < all.n; j++)
		if (all.a[j].refused)
			refuse_size(&all.a[j], p->target);
}

void
plan_buildable(const struct plan *p)
{
	const struct graph *g = p->graph;
	const struct target_kind *kind = p->target->kind;
	const struct value *weights = spec_value(g->trainer, F_precision_weights);
	const struct value *micro = spec_value(g->trainer, F_batch_micro);

	ask_about(g->trainer, p->target->name);
	for (tensor_id t = 0; (t = tensor_next(g, T_ACT, t));) {
		const struct format *is = g->tensor.a[t].format;
		if (target_format(p->target, is) == is || !strcmp(is->name, kind->rounds))
			continue;
		diag_error(weights->pos, "%s is in %s, and kernels of target %s round to %s alone",
		    g->tensor.a[t].name, is->name, p->target->name, kind->rounds);
		ask_value(ask(), weights, 1, xprintf("\"%s\"", kind->rounds));
		break;
	}
	/* every target's kernels count rows in an int32 */
	for (tensor_id t = 0; (t = tensor_next(g, T_ACT, t));) {
		const struct tensor *x = &g->tensor.a[t];
		uint64_t most =
		    x->role == ROLE_ACT || x->role == ROLE_ROWS ? kind->many : kind->most;
		if (x->seg >= g->decode)
			continue;
		if (x->dim[0] > INT32_MAX)
			diag_error(micro->pos,
			    "batch.micro = %lld sequences give %s rows a microbatch (%s); kernels "
			    "count to 2^31 - 1",
			    (long long)micro->i, text_commas(x->dim[0]), x->name);
		else if (most && tensor_elems(x) > most)
			diag_error(micro->pos,
			    "batch.micro = %lld sequences give %s numbers in one tensor (%s); "
			    "kernels of target %s count to %s",
			    (long long)micro->i, text_commas(tensor_elems(x)), x->name,
			    p->target->name, text_commas(most));
		else
			continue;
		diag_help("use a smaller micro, sequence_length or top_k");
		break;
	}
	if (kernel_written_for(p->target)) {
		check_needs(p);
	} else {
		diag_error(spec_value(g->trainer, F_trainer_target)->pos,
		    "target %s can be planned, but this version has no kernels for it",
		    p->target->name);
		diag_help("--plan shows the plan");
		offer_cpu(p, ask(), "build");
	}
}

/* ---- does it fit ---- */

/* The stage whose ranks need most. */
const struct plan *
plan_worst(const struct plan *p)
{
	const struct plan *worst = p;

	for (uint32_t i = 1; i < p->n_stages; i++)
		if (p[i].arena_bytes > worst->arena_bytes)
			worst = &p[i];
	return worst;
}

/* Bytes that a tensor takes on a rank of the stage, all layers and slots; scratch counts once. */
static uint64_t
tensor_on_rank(const struct plan *p, tensor_id t)
{
	const struct place *pl = &p->place[t];
	const struct tensor *x = &p->graph->tensor.a[t];
	uint64_t n = pl->bytes;

	if (pl->region == R_SCRATCH)
		return n;
	n = size_mul(n, plan_layers(p, t));
	if (x->class == T_STATE)
		n /= p->shard->mesh.size[p->graph->tensor.a[x->param].copies];
	return pl->region == R_SAVED ? size_mul(n, p->here->rooms[pl->life]) / p->here->nchunks : n;
}

/* True if it was saved in the place of another tensor, which it overwrites. */
static bool
in_place(const struct plan *p, tensor_id t)
{
	const struct place *to = &p->place[t];

	for (tensor_id u = 1; u < t && to->kind == PLACE && to->region == R_SAVED; u++)
		if (p->place[u].kind == PLACE && p->place[u].region == R_SAVED &&
		    p->place[u].off == to->off)
			return true;
	return false;
}

static void
five_largest(const struct plan *p, struct buf *out)
{
	const struct graph *g = p->graph;
	tensor_id top[5] = { 0 };

	for (tensor_id t = 1; t < g->tensor.n; t++) {
		uint64_t n = tensor_on_rank(p, t);
		int i = 0;
		while (i < 5 && n <= tensor_on_rank(p, top[i]))
			i++;
		if (i == 5 || g->tensor.a[t].class == T_CACHE || g->tensor.a[t].class == T_MERGED ||
		    in_place(p, t))
			continue;
		memmove(&top[i + 1], &top[i], (size_t)(4 - i) * sizeof *top);
		top[i] = t;
	}
	for (int i = 0; i < 5 && top[i]; i++)
		buf_printf(out, "%s%s %s", i ? ", " : "", g->tensor.a[top[i]].name,
		    text_bytes(tensor_on_rank(p, top[i])));
}

void
plan_fits(const struct plan *p)
{
	struct object *t = p->graph->trainer;
	double gib = spec_num(t, F_trainer_device_memory);
	uint64_t device = (uint64_t)(gib * 1073741824.0);
	const struct plan *worst = plan_worst(p);
	uint64_t need = worst->arena_bytes;
	struct buf top = { 0 }, parts = { 0 };

	if (gib <= 0 || need <= device)
		return;
	ask_about(t, p->target->name);
	struct value *where = spec_value(t, F_trainer_device_memory);
	diag_error(where->given ? where->pos : spec_value(t, F_trainer_target)->pos,
	    "%s needs %s on a rank%s, %s more than %s", spec_str(t, F_trainer_name),
	    text_bytes(need), p->n_stages > 1 ? xprintf(" of stage %u", worst->stage) : "",
	    text_bytes(need - device),
	    where->given ? xprintf("trainer.device_memory = %.6g GiB", gib)
			 : xprintf("the %.6g GiB of %s", gib, p->target->card));
	for (int r = 0; r < N_REGIONS; r++)
		if (worst->region_bytes[r] > need / 1000)
			buf_printf(&parts, "%s%s %s", parts.n ? ", " : "", plan_region_names[r],
			    text_bytes(worst->region_bytes[r]));
	diag_help("of that: %s", parts.s);
	five_largest(worst, &top);
	diag_help("the largest buffers: %s", top.s);
	struct question *q = ask();
	if (q)
		q->need = need;
}
