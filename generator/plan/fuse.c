/* Pairs of ops that one kernel does better: the rows of fuse.def that hold for the target. */
#include <string.h>

#include "plan/plan.h"

static bool
reads(const struct op *o, tensor_id t)
{
	for (uint8_t i = 0; i < op_row(o->op)->nin; i++)
		if (o->arg[i] == t)
			return true;
	return false;
}

/* True if no op of the segment but b reads what a, and only a, writes. */
static bool
private_to(const struct graph *g, const struct segment *seg, const struct op *a, const struct op *b)
{
	const struct op_row *r = op_row(a->op);

	for (uint8_t i = r->nin; i < r->nin + r->nout; i++) {
		if (g->tensor.a[a->arg[i]].class != T_ACT)
			continue;
		if (a->arg[i] == seg->y)
			return false;
		for (int p = 0; p < N_PHASES; p++)
			for (uint32_t k = 0; k < seg->ops[p].n; k++)
				if (&seg->ops[p].a[k] != b && reads(&seg->ops[p].a[k], a->arg[i]))
					return false;
	}
	return true;
}

static void
fuse_segment(
    struct graph *g, struct segment *seg, enum op_id first, enum op_id second, enum op_id into)
{
	const struct op_row *r = op_row(into);

	for (uint32_t i = 0; i < seg->ops[FORWARD].n; i++)
		for (uint32_t j = 0; j < seg->ops[BACKWARD].n; j++) {
			struct op a = seg->ops[FORWARD].a[i], *b = &seg->ops[BACKWARD].a[j],
				  f = { 0 };
			if (a.op != first || b->op != second || !private_to(g, seg, &a, b))
				continue;
			f.op = into;
			f.rline = b->rline;
			memcpy(f.ints, b->ints, sizeof f.ints);
			memcpy(f.floats, b->floats, sizeof f.floats);
			for (uint8_t k = 0; k < r->nin + r->nout; k++) {
				f.arg[k] = op_arg(b, r->arg[k].name);
				if (!f.arg[k])
					f.arg[k] = op_arg(&a, r->arg[k].name);
			}
			*b = f;
			seg->ops[FORWARD].n--;
			memmove(&seg->ops[FORWARD].a[i], &seg->ops[FORWARD].a[i + 1],
			    (seg->ops[FORWARD].n - i) * sizeof(struct op));
			i--;
			break;
		}
}

void
fuse(struct shard *s)
{
	static const struct {
		const char *kernels;
		enum op_id first, second, into;
	} rows[] = {
#define FUSE(kernels, first, second, into) { #kernels, OP_##first, OP_##second, OP_##into },
#include "fuse.def"
#undef FUSE
	};
	const char *kernels = s->target->kernels;

	for (uint32_t i = 0; i < LEN(rows); i++)
		for (uint32_t k = 0; k < s->graph->seg.n && !strcmp(rows[i].kernels, kernels); k++)
			fuse_segment(s->graph, &s->graph->seg.a[k], rows[i].first, rows[i].second,
			    rows[i].into);
}
