/*
 * graph_verify must object: gradients dropped, shapes bent, ops swapped. Each fault is planted in a
 * child, which must end as an internal error. In the repository's root, under sanitizers.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "describe.h"

static struct graph *
make_graph(void)
{
	struct object *trainer = trainer_of("models/tiny.lua", NULL, 0, NULL);

	with_bias(trainer);
	return graph_of(trainer);
}

static struct oplist *
list(struct graph *g, const char *seg, int phase)
{
	for (uint32_t s = 0; s < g->seg.n; s++)
		if (!strcmp(g->seg.a[s].name, seg))
			return &g->seg.a[s].ops[phase];
	abort();
}

static struct op *
find(struct oplist *l, enum op_id id)
{
	for (uint32_t i = 0; i < l->n; i++)
		if (l->a[i].op == id)
			return &l->a[i];
	abort();
}

static void
drop(struct oplist *l, struct op *o)
{
	memmove(o, o + 1, (size_t)(l->a + l->n - (o + 1)) * sizeof *o);
	l->n--;
}

static void
drop_gradient(struct graph *g)
{
	struct oplist *l = list(g, "moe", BACKWARD);
	drop(l, find(l, OP_grouped_dw));
}

static void
drop_forward(struct graph *g)
{
	struct oplist *l = list(g, "moe", FORWARD);
	drop(l, find(l, OP_route_map));
}

static void
drop_update(struct graph *g)
{
	struct oplist *l = list(g, "update", FORWARD);
	drop(l, find(l, OP_adamw));
}

static void
drop_bias_update(struct graph *g)
{
	struct oplist *l = list(g, "update", FORWARD);
	drop(l, find(l, OP_bias_update));
}

static void
update_twice(struct graph *g)
{
	struct oplist *l = list(g, "update", FORWARD);
	struct op *o = find(l, OP_adamw);
	o[1] = o[0];
}

static void
wrong_shape(struct graph *g)
{
	g->tensor.a[find(list(g, "dense", FORWARD), OP_linear)->arg[2]].dim[1]++;
}

static void
wrong_role(struct graph *g)
{
	g->tensor.a[find(list(g, "moe", FORWARD), OP_route)->arg[0]].role = ROLE_ACT;
}

static void
wrong_argument(struct graph *g)
{
	struct op *o = find(list(g, "moe", BACKWARD), OP_grouped_dx);
	o->arg[1] = o->arg[0];
}

static void
missing_argument(struct graph *g)
{
	find(list(g, "moe", FORWARD), OP_combine)->arg[1] = 0;
}

static void
defined_twice(struct graph *g)
{
	struct oplist *l = list(g, "dense", FORWARD);
	find(l, OP_rmsnorm)->arg[2] = find(l, OP_linear)->arg[0];
	*PUSH(*l) = *find(l, OP_rmsnorm);
}

static void
swapped_order(struct graph *g)
{
	struct op *o = find(list(g, "moe", FORWARD), OP_dispatch), t = o[0];
	o[0] = o[1];
	o[1] = t;
}

/* The weights of a dense layer's gate and up as one tensor. */
static struct tensor *
merge(struct graph *g)
{
	static const struct fusion row = { "g = linear(x, w1) ; u = linear(x, w2)",
		"g, u = linear_2(x, w1|w2)" };

	fuse_graph(g, NULL, &row, 1);
	graph_verify(g);
	return &g->tensor.a[g->tensor.n - 1];
}

static void
part_missing(struct graph *g)
{
	merge(g)->part[1] = 0;
}

static void
part_of_another(struct graph *g)
{
	g->tensor.a[merge(g)->part[1]].whole = 0;
}

static void
update_in_a_layer(struct graph *g)
{
	*PUSH(*list(g, "dense", FORWARD)) = *find(list(g, "update", FORWARD), OP_clip);
}

static void
no_such_phase(struct graph *g)
{
	struct oplist *l = list(g, "dense", BACKWARD);
	*PUSH(*list(g, "dense", WEIGHTS)) = *find(l, OP_linear_dw);
	drop(l, find(l, OP_linear_dw));
}

static void
no_stream_gradient(struct graph *g)
{
	for (uint32_t s = 0; s < g->seg.n; s++)
		g->seg.a[s].dx = 0;
}

static void
no_copies(struct graph *g)
{
	g->tensor.a[op_arg(find(list(g, "moe", FORWARD), OP_route), "b")].copies = OM_ALONE;
}

static void
no_sum(struct graph *g)
{
	g->tensor.a[op_arg(find(list(g, "moe", FORWARD), OP_route), "load")].sum = OM_ALONE;
}

static void
graph_faults(void)
{
	static const struct {
		const char *name;
		void (*plant)(struct graph *g);
	} fault[] = {
		{ "dropped gradient", drop_gradient },
		{ "dropped forward op", drop_forward },
		{ "dropped update", drop_update },
		{ "dropped update of a buffer", drop_bias_update },
		{ "parameter updated twice", update_twice },
		{ "wrong shape", wrong_shape },
		{ "wrong role", wrong_role },
		{ "wrong argument", wrong_argument },
		{ "missing argument", missing_argument },
		{ "tensor defined twice", defined_twice },
		{ "swapped ops", swapped_order },
		{ "an op of the update in a layer", update_in_a_layer },
		{ "an op in a phase that is none", no_such_phase },
		{ "a merged tensor without its second part", part_missing },
		{ "a part that is none", part_of_another },
		{ "no stream gradient", no_stream_gradient },
		{ "a buffer that no ranks hold", no_copies },
		{ "counts that no ranks sum", no_sum },
	};

	graph_verify(make_graph());
	for (unsigned i = 0; i < LEN(fault); i++) {
		int status = 0;
		fflush(stdout);
		pid_t child = fork();
		if (!child) {
			struct graph *g = make_graph();
			if (!freopen("/dev/null", "w", stderr))
				_exit(1);
			fault[i].plant(g);
			graph_verify(g);
			_exit(0);
		}
		expect(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
			   WEXITSTATUS(status) == EXIT_INTERNAL,
		    fault[i].name);
	}
}

static uint32_t
ops_of(const struct graph *g, enum phase ph)
{
	uint32_t n = 0;

	for (uint32_t s = g->embed; s <= g->head; s++)
		n += g->seg.a[s].ops[ph].n;
	return n;
}

/* The gradients of parameters become a phase of their own, and nothing else does. */
static void
split(void)
{
	struct graph *g = make_graph();
	uint32_t before = ops_of(g, BACKWARD);

	graph_split(g);
	graph_verify(g);
	expect(ops_of(g, BACKWARD) + ops_of(g, WEIGHTS) == before, "each op is in a phase");
	expect(find(list(g, "moe", WEIGHTS), OP_grouped_dw) &&
		   find(list(g, "dense", WEIGHTS), OP_linear_dw) &&
		   find(list(g, "embed", WEIGHTS), OP_embed_bwd) &&
		   find(list(g, "moe", BACKWARD), OP_grouped_dx),
	    "weights' gradients are moved, activations' are not");
	for (uint32_t s = g->embed; s <= g->head; s++)
		for (uint32_t i = 0; i < g->seg.a[s].ops[WEIGHTS].n; i++) {
			const struct op *o = &g->seg.a[s].ops[WEIGHTS].a[i];
			expect(g->tensor.a[o->arg[op_row(o->op)->nin]].class == T_GRAD,
			    "they alone are moved");
		}
}

/* A norm is cheap to repeat; a sum is kept, since to repeat it one of its terms would be. */
static void
recompute(void)
{
	static const struct {
		const char *what;
		uint32_t norms, sums, rows, products;
	} all[] = { { "rows", 0, 0, 1, 0 }, { "cheap", 4, 0, 1, 0 }, { "experts", 0, 0, 1, 2 },
		{ "block", 4, 1, 1, 2 } };

	for (uint32_t n = 0; n < LEN(all); n++) {
		struct define what = { "recompute", all[n].what, false };
		struct graph *g = graph_of(trainer_of("models/olmoe-1b-7b.lua", &what, 1, NULL));
		const struct oplist *l = list(g, "moe", BACKWARD);
		uint32_t norms = 0, sums = 0, rows = 0, products = 0;
		for (uint32_t i = 0; i < l->n; i++) {
			const struct op *o = &l->a[i];
			bool again =
			    strstr(g->tensor.a[o->arg[op_row(o->op)->nin]].name, "_re_") != NULL;
			norms += again && o->op == OP_rmsnorm;
			sums += again && o->op == OP_add;
			rows += again && o->op == OP_dispatch;
			products += again && o->op == OP_grouped;
		}
		expect(norms == all[n].norms && sums == all[n].sums && rows == all[n].rows &&
			   products == all[n].products,
		    xprintf("recompute %s repeats what it should", all[n].what));
	}
}

int
main(void)
{
	graph_faults();
	split();
	recompute();
	return check_end();
}
