/*
 * What a target cannot build of what can be planned: ops and sizes without a kernel for it, more
 * ranks than it has a way to join, tensors too large for the kernels' counters.
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
	enum field_id f;
	uint64_t x, multiple, most;
	enum op_id op; /* one that cannot do it */
	bool refused;
};

/* Sizes that would do: "32, 64, 96 or 128", the nearest, or "512 or less". */
static const char *
would_do(const struct asked *a)
{
	uint64_t low = (a->x < a->most ? a->x : a->most) / a->multiple * a->multiple;
	struct buf b = { 0 };

	if (a->most / a->multiple <= 8)
		for (uint64_t x = a->multiple; x <= a->most; x += a->multiple)
			buf_printf(&b, "%s%llu",
			    x == a->multiple            ? ""
			    : x + a->multiple > a->most ? " or "
							: ", ",
			    (unsigned long long)x);
	else if (a->multiple == 1)
		buf_printf(&b, "%llu or less", (unsigned long long)a->most);
	else if (!low || low + a->multiple > a->most)
		buf_printf(&b, "%llu", (unsigned long long)(low ? low : a->multiple));
	else
		buf_printf(&b, "%llu or %llu", (unsigned long long)low,
		    (unsigned long long)(low + a->multiple));
	return b.s;
}

/* What the target has no kernels for, an op or a size, once each, at the field behind it. */
static void
check_needs(const struct plan *p)
{
	ARRAY(struct asked) all = { 0 };
	bool absent[N_OPS] = { 0 };

	for (uint32_t s = 0; s < p->graph->decode; s++)
		for (uint32_t i = 0; i < p->prog[s][FORWARD].n; i++) {
			const struct op *o = &p->prog[s][FORWARD].a[i].op;
			enum field_id f;
			const struct value *v;
			struct sizes z;
			/* what several ranks add is refused as a whole, or is the runtime's */
			if (!kernel_for(p->graph, p->target, o) && !absent[o->op] &&
			    p->shard->mesh.size[OM_WORLD] == 1) {
				absent[o->op] = true;
				v = spec_line(p->graph->trainer, o->rline, &f);
				diag_error(v->pos,
				    "%s asks for %s, for which target %s has no kernel",
				    spec_name(f), op_row(o->op)->name, p->target->name);
			}
			for (uint32_t k = 0; k < LEN(needs); k++) {
				const struct need *n = &needs[k];
				struct asked *a = NULL;
				if (n->op != o->op || strcmp(n->target, p->target->kernels) ||
				    op_bind(p->graph, o, &z))
					continue;
				uint64_t x = z.v[n->letter - 'a'];
				v = spec_size(p->graph->trainer, o->rline, x, &f);
				for (uint32_t j = 0; j < all.n; j++)
					if (all.a[j].v == v && all.a[j].x == x)
						a = &all.a[j];
				if (!a) {
					a = PUSH(all);
					*a = (struct asked){ v, f, x, 1, UINT64_MAX, o->op, false };
				}
				if (n->rule == AT_MOST && n->value < a->most)
					a->most = n->value;
				if (n->rule == MULTIPLE_OF && a->multiple % n->value) {
					if (n->value % a->multiple)
						internal("NEEDS: %llu of multiples of %llu",
						    (unsigned long long)n->value,
						    (unsigned long long)a->multiple);
					a->multiple = n->value;
				}
				if (!a->refused && (x % a->multiple || x > a->most)) {
					a->refused = true;
					a->op = o->op;
				}
			}
		}
	for (uint32_t j = 0; j < all.n; j++) {
		const struct asked *a = &all.a[j];
		if (!a->refused)
			continue;
		diag_error(a->v->pos, "%s gives %s a size of %s, for which target %s has no kernel",
		    spec_name(a->f), op_row(a->op)->name, commas(a->x), p->target->name);
		diag_help(spec_is(a->v, a->x) ? "use %s = %s"
					      : "it follows from %s; there are kernels for %s",
		    fields[a->f].name, would_do(a));
	}
}

void
plan_buildable(const struct plan *p)
{
	static const struct {
		enum field_id field;
		const char *name;
	} degree[] = { { F_parallel_data, "data" }, { F_parallel_pipeline, "pipeline" } };
	struct object *par = spec_obj(p->graph->trainer, F_trainer_parallel);

	for (unsigned i = 0; i < LEN(degree) && p->target->arch; i++) {
		if (spec_int(par, degree[i].field) == 1)
			continue;
		diag_error(spec_value(par, degree[i].field)->pos,
		    "parallel.%s = %lld: this version builds trainers of one rank for %s",
		    degree[i].name, (long long)spec_int(par, degree[i].field), p->target->name);
		diag_help("--plan answers for any layout; to build, use %s = 1, or --target=cpu to "
			  "rehearse the layout",
		    degree[i].name);
	}
	/*
	 * kernels index rows by int32; those of a device vectors of 8 too, and single numbers of
	 * what is not an activation
	 */
	for (tensor_id t = 1; t < p->graph->tensor.n; t++) {
		const struct tensor *x = &p->graph->tensor.a[t];
		uint64_t most = x->role == ROLE_ACT || x->role == ROLE_ROWS
				    ? (uint64_t)INT32_MAX * 8
				    : INT32_MAX / 2;
		const struct value *v =
		    spec_value(spec_obj(p->graph->trainer, F_trainer_batch), F_batch_micro);
		if (x->class != T_ACT || (x->seg >= p->graph->decode))
			continue;
		if (x->dim[0] > INT32_MAX)
			diag_error(v->pos,
			    "batch.micro = %lld sequences give %s rows a microbatch (%s); kernels "
			    "count to 2^31 - 1",
			    (long long)v->i, commas(x->dim[0]), x->name);
		else if (p->target->arch && tensor_elems(x) > most)
			diag_error(v->pos,
			    "batch.micro = %lld sequences give %s numbers in one tensor (%s); "
			    "kernels of target %s count to %s",
			    (long long)v->i, commas(tensor_elems(x)), x->name, p->target->name,
			    commas(most));
		else
			continue;
		diag_help("use a smaller micro, sequence_length or top_k");
		break;
	}
	if (kernel_written_for(p->target)) {
		check_needs(p);
	} else {
		diag_error(spec_value(p->graph->trainer, F_trainer_target)->pos,
		    "target %s can be planned, but this version has no kernels for it",
		    p->target->name);
		diag_help("--plan shows the plan; to build, use --target=cpu");
	}
}
