/*
 * Layouts of several ranks: schedules have the bubbles and the memory that are known of them, every
 * layout passes the proof over all ranks, and what is planted in one does not.
 * In the repository's root, under sanitizers.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* its statics too: a fault of one rank alone can only be planted in what it expands programs to */
#define rankcheck_fault rankcheck_fault_here
#define rankcheck rankcheck_here
#include "../../generator/shard/rankcheck.c"

#include "check.h"
#include "describe.h"

/* ---- schedules ---- */

/* Percent of a step in which the average rank waits; the most microbatches alive on each rank. */
static double
bubble(const struct shard *s, uint32_t *live)
{
	uint64_t **start = xalloc(s->mesh.size[OM_PIPELINE] * sizeof *start), busy = 0;

	for (uint32_t i = 0; i < s->mesh.size[OM_PIPELINE]; i++) {
		const struct stage *st = &s->stage[i];
		uint32_t now = 0;
		start[i] = xalloc(st->step->action.n * sizeof **start);
		for (uint32_t k = 0; k < st->step->action.n; k++) {
			const struct action *a = &st->step->action.a[k];
			if (a->kind != PASS)
				continue;
			now += a->phase == FORWARD;
			now -= a->phase == BACKWARD;
			if (live && live[i] < now)
				live[i] = now;
			busy += schedule_cost(s->graph, a->phase);
		}
	}
	uint64_t end = schedule_run(s, 0, start, s->nstages);
	return end ? 100 - 100 * (double)busy / (double)(end * s->mesh.size[OM_PIPELINE]) : 100;
}

static void
bubbles(void)
{
	static const struct {
		struct layout l;
		double bubble;
		uint32_t live[4];
	} known[] = {
		{ { "gpipe", 4, 1, .microbatches = 8 }, 27.27, { 8, 8, 8, 8 } },
		{ { "1f1b", 4, 1, .microbatches = 8 }, 27.27, { 4, 3, 2, 1 } },
		{ { "1f1b", 4, 1, .microbatches = 2 }, 60.00, { 2, 2, 2, 1 } },
		/* Olmo-core's numbers; its V has 23.8 % where backward takes as long as forward */
		{ { "interleaved", 4, 2, .microbatches = 8 }, 15.79, { 11, 9, 7, 5 } },
		{ { "v", 4, 2, .microbatches = 8 }, 27.27, { 6, 6, 5, 6 } },
		{ { "v", 4, 2, .microbatches = 16 }, 15.79, { 6, 6, 5, 6 } },
	};

	for (uint32_t i = 0; i < LEN(known); i++) {
		uint32_t live[4] = { 0 };
		double b = bubble(layout_shard(known[i].l), live);
		expect(
		    fabs(b - known[i].bubble) < 0.005 && !memcmp(live, known[i].live, sizeof live),
		    xprintf("%s: bubble %.2f, alive %u %u %u %u", known[i].l.schedule, b, live[0],
			live[1], live[2], live[3]));
	}
	/* gradients of weights fill time in which a stage would wait */
	double whole =
	    bubble(layout_shard((struct layout){ "1f1b", 4, 1, .microbatches = 8 }), NULL);
	double split = bubble(
	    layout_shard((struct layout){ "1f1b", 4, 1, .microbatches = 8, .split = true }), NULL);
	expect(
	    whole > 27 && split < whole - 7, xprintf("split: bubble %.2f of %.2f", split, whole));
	for (uint32_t p = 2; p <= 8; p++)
		for (uint32_t c = 1; c <= 4; c++)
			for (uint32_t m = p; m <= 32; m += p) {
				struct layout l = { c > 1   ? "interleaved"
						    : m % 2 ? "gpipe"
							    : "1f1b",
					p, c, .microbatches = m };
				double want = 100.0 * (p - 1) / (c * m + p - 1);
				expect(fabs(bubble(layout_shard(l), NULL) - want) < 1e-9,
				    xprintf("%s, %u ranks, %u chunks, %u microbatches", l.schedule,
					p, c, m));
			}
}

/* ---- who has which layers ---- */

static void
splits(void)
{
	static const struct {
		struct layout l;
		uint32_t n[4];
	} want[] = {
		{ { "1f1b", 4, 1, 4, .layers = 8 }, { 2, 2, 2, 2 } },
		{ { "1f1b", 4, 1, 4, .layers = 9 }, { 3, 2, 2, 2 } }, /* the first layer is dense */
		{ { "1f1b", 4, 1, 4, .layers = 11, .vocab = 200 }, { 3, 3, 3, 2 } },
		{ { "1f1b", 4, 1, 4, .layers = 10, .vocab = 1000 }, { 3, 3, 3, 1 } },
	};

	for (uint32_t i = 0; i < LEN(want); i++) {
		const struct shard *s = layout_shard(want[i].l);
		for (uint32_t k = 0; k < 4; k++)
			expect(s->stage[k].n == want[i].n[k],
			    xprintf("split %u: stage %u has %u layers", i, k, s->stage[k].n));
	}
}

static void
capacities(void)
{
	static const struct {
		const char *capacity;
		uint32_t expert;
		uint64_t rows; /* of 8 tokens, 2 of 8 experts each */
	} want[] = { { "worst", 1, 16 }, { "worst", 4, 64 }, { "worst", 8, 64 }, { "1.25", 4, 20 },
		{ "1.01", 4, 17 }, { "0.01", 4, 1 }, { "100", 4, 64 } };

	for (uint32_t i = 0; i < LEN(want); i++) {
		const struct shard *s =
		    layout_shard((struct layout){ "1f1b", 1, 1, 1, .data = want[i].expert,
			.expert = want[i].expert, .layers = 2, .capacity = want[i].capacity });
		const struct graph *g = s->graph;
		uint64_t rows = shard_capacity(s, g->seg.a[g->kind_of[1]].ffn);
		expect(rows == want[i].rows,
		    xprintf("capacity %s over %u ranks: %llu rows", want[i].capacity,
			want[i].expert, (unsigned long long)rows));
	}
}

/* ---- groups ---- */

/* Ranks counted up, innermost coordinate first: those of a group are alike on all other axes. */
static void
naive_group(const uint64_t *degree, uint32_t n, uint32_t axes, uint64_t world)
{
	uint64_t coord[64][8] = { 0 };
	uint32_t bad = 0;

	for (uint64_t r = 1; r < world; r++) {
		memcpy(coord[r], coord[r - 1], sizeof coord[r]);
		for (uint32_t a = 0; ++coord[r][a] == degree[a]; a++)
			coord[r][a] = 0;
	}
	for (uint64_t r = 0; r < world; r++) {
		uint64_t size = 0;
		for (uint64_t k = 0; k < world; k++) {
			bool in = true;
			for (uint32_t a = 0; a < n; a++)
				in &= axes >> a & 1 || coord[k][a] == coord[r][a];
			if (!in)
				continue;
			bad += om_axes_place(degree, axes, k) != size;
			bad += om_axes_member(degree, axes, r, size) != k;
			size++;
		}
		bad += om_axes_size(degree, axes) != size;
	}
	expect(!bad, xprintf("%u faults in groups of axes %x, degrees %llu %llu %llu ...", bad,
			 axes, (unsigned long long)degree[0], (unsigned long long)degree[1],
			 (unsigned long long)degree[2]));
}

/* The formula for ranks, of meshes of up to six axes; and the groups of the mesh that there is. */
static void
groups(void)
{
	uint32_t draw = 12345;
#define NEXT(n) ((draw = draw * 1103515245 + 12345) >> 16) % (n)
	for (uint32_t t = 0; t < 400; t++) {
		uint64_t degree[8] = { 1, 1, 1, 1, 1, 1, 1, 1 }, world = 1;
		uint32_t n = t % 6 + 1;
		for (uint32_t a = 0; a < n; a++) {
			uint64_t d = NEXT(4) + 1;
			degree[a] = world * d <= 64 ? d : 1;
			world *= degree[a];
		}
		naive_group(degree, n, NEXT(1u << n), world);
	}
	for (uint32_t t = 0; t < 100; t++) {
		uint64_t e = NEXT(4) + 1, copies = NEXT(4) + 1, stages = NEXT(4) + 1;
		uint64_t data = e * copies, world = data * stages, bad = 0;
		struct om_mesh m = om_mesh((uint64_t[OM_N_AXES]){ [OM_AXIS_EXPERT] = e,
		    [OM_AXIS_EXPERT_DATA] = copies,
		    [OM_AXIS_PIPELINE] = stages });
		for (uint64_t r = 0; r < world; r++) {
			const uint64_t place[][2] = { { OM_ALONE, 0 }, { OM_WORLD, r },
				{ OM_DATA, r % data }, { OM_EXPERT, r % data % e },
				{ OM_EXPERT_DATA, r % data / e }, { OM_PIPELINE, r / data } };
			for (uint32_t i = 0; i < LEN(place); i++)
				bad += om_mesh_place(&m, place[i][0], r) != place[i][1];
		}
		bad +=
		    m.size[OM_ALONE] != 1 || m.size[OM_WORLD] != world || m.size[OM_DATA] != data;
		expect(!bad, xprintf("%llu faults in a mesh of %llu x %llu x %llu",
				 (unsigned long long)bad, (unsigned long long)e,
				 (unsigned long long)copies, (unsigned long long)stages));
	}
#undef NEXT
}

/* ---- the proof over all ranks ---- */

static void
random_layouts(void)
{
	static const char *const kinds[] = { "gpipe", "1f1b", "interleaved", "v" };
	uint32_t state = 1;
#define RANDOM(n) ((state = state * 1103515245 + 12345) / 65536 % 32768 % (n))

	for (int i = 0; i < 400; i++) {
		uint32_t kind = RANDOM(4), p = 1 + RANDOM(8), m = 1 + RANDOM(32);
		uint32_t expert = 1u << RANDOM(3), data = expert * (1 + RANDOM(3));
		uint32_t chunks = p == 1 ? 1 : kind == 2 ? 2 + RANDOM(2) : kind == 3 ? 2 : 1;
		struct layout l = { kinds[kind], p, chunks, m, data, expert,
			.layers = p * chunks + 1 + RANDOM(4), .split = RANDOM(2) };
		const char *fault = rankcheck_fault(layout_shard(l));
		expect(!fault, xprintf("%s%s, %u ranks, %u chunks, %u microbatches, %u x %u: %s",
				   l.schedule, l.split ? " in three phases" : "", p, chunks, m,
				   data, expert, fault ? fault : ""));
	}
}

static struct action *
find(struct shard *s, uint32_t stage, enum action_kind kind, enum phase phase, uint32_t microbatch)
{
	struct step *st = s->stage[stage].step;

	for (uint32_t i = 0; i < st->action.n; i++)
		if (st->action.a[i].kind == kind && st->action.a[i].phase == phase &&
		    st->action.a[i].microbatch == microbatch)
			return &st->action.a[i];
	abort();
}

static void
drop(struct stage *of, struct action *a)
{
	struct step *st = of->step;

	memmove(a, a + 1, (size_t)(st->action.a + st->action.n - (a + 1)) * sizeof *a);
	st->action.n--;
}

static void
early_reuse(struct shard *s)
{
	for (uint32_t i = 0; i < s->stage[1].step->action.n; i++)
		if (s->stage[1].step->action.a[i].microbatch == 3)
			s->stage[1].step->action.a[i].slot = find(s, 1, RECEIVE, FORWARD, 1)->slot;
}

static void
too_few_slots(struct shard *s)
{
	s->stage[0].slots--;
}

static void
missing_receive(struct shard *s)
{
	drop(&s->stage[2], find(s, 2, RECEIVE, FORWARD, 2));
}

static void
missing_gradient(struct shard *s)
{
	drop(&s->stage[1], find(s, 1, RECEIVE, BACKWARD, 2));
}

static void
missing_send(struct shard *s)
{
	drop(&s->stage[1], find(s, 1, SEND, FORWARD, 2));
}

static void
unsent_gradient(struct shard *s)
{
	drop(&s->stage[1], find(s, 1, SEND, BACKWARD, 2));
}

static void
dropped_forward(struct shard *s)
{
	drop(&s->stage[3], find(s, 3, PASS, FORWARD, 5));
}

static void
dropped_microbatch(struct shard *s)
{
	for (uint32_t i = 0; i < s->mesh.size[OM_PIPELINE]; i++)
		for (uint32_t k = s->stage[i].step->action.n; k-- > 0;)
			if (s->stage[i].step->action.a[k].microbatch == 6)
				drop(&s->stage[i], &s->stage[i].step->action.a[k]);
}

static void
forward_twice(struct shard *s)
{
	struct action a = *find(s, 0, PASS, FORWARD, 1);
	*find(s, 0, PASS, BACKWARD, 1) = a;
}

static void
swapped_sends(struct shard *s)
{
	struct action *a = find(s, 0, SEND, FORWARD, 0), *b = find(s, 0, SEND, FORWARD, 1), t = *a;
	*a = *b;
	*b = t;
}

/* The sender's own order is right, but it is another than the receiver's. */
static void
swapped_microbatches(struct shard *s)
{
	for (uint32_t i = 0; i < s->stage[0].step->action.n; i++) {
		struct action *a = &s->stage[0].step->action.a[i];
		if (a->microbatch < 2)
			a->microbatch = !a->microbatch;
	}
}

static void
wrong_tag(struct shard *s)
{
	find(s, 1, SEND, FORWARD, 0)->tag += 2;
}

static void
wrong_peer(struct shard *s)
{
	find(s, 1, SEND, FORWARD, 0)->stage = 3;
}

static void
no_peer(struct shard *s)
{
	find(s, 1, SEND, FORWARD, 0)->stage = 4;
}

static void
gradient_first(struct shard *s)
{
	struct stage *st = &s->stage[0];
	struct action *at = find(s, 0, RECEIVE, BACKWARD, 0), a = *at;
	memmove(st->step->action.a + 1, st->step->action.a,
	    (size_t)(at - st->step->action.a) * sizeof a);
	st->step->action.a[0] = a;
}

static void
overlapping_chunks(struct shard *s)
{
	s->stage[1].chunk->first--;
}

static struct op *
op_in(struct shard *s, struct oplist *l, enum op_id op, bool experts)
{
	const struct graph *g = s->graph;

	for (uint32_t i = 0; i < l->n; i++) {
		const struct tensor *t = &g->tensor.a[l->a[i].arg[0]];
		if (l->a[i].op == op &&
		    tensor_by_expert(t->param ? &g->tensor.a[t->param] : t) == experts)
			return &l->a[i];
	}
	abort();
}

static struct op *
update_op(struct shard *s, enum op_id op, bool experts)
{
	return op_in(s, &s->graph->seg.a[s->graph->update].ops[FORWARD], op, experts);
}

/* The sum of a gradient of a layer with experts. */
static struct op *
sum_op(struct shard *s, bool experts)
{
	struct oplist *l = &s->graph->seg.a[s->graph->kind_of[1]].ops[BACKWARD];

	return op_in(s, l, OP_reduce_scatter, experts);
}

static void
wrong_bucket(struct shard *s)
{
	sum_op(s, true)->group = OM_DATA;
}

static void
wrong_dense_bucket(struct shard *s)
{
	sum_op(s, false)->group = OM_EXPERT_DATA;
}

static void
other_copies(struct shard *s)
{
	s->graph->tensor.a[update_op(s, OP_all_gather, true)->arg[0]].copies = OM_DATA;
}

static void
other_sum(struct shard *s)
{
	s->graph->tensor.a[sum_op(s, false)->arg[0]].sum = OM_EXPERT_DATA;
}

static void
reduced_twice(struct shard *s)
{
	struct op *o = sum_op(s, true);
	*sum_op(s, false) = *o;
}

static void
not_gathered(struct shard *s)
{
	update_op(s, OP_all_gather, false)->op = OP_sum_norm;
}

static void
read_before_reduced(struct shard *s)
{
	struct oplist *l = &s->graph->seg.a[s->graph->kind_of[1]].ops[BACKWARD];
	struct op *r = sum_op(s, true);
	*PUSH(s->graph->seg.a[s->graph->update].ops[FORWARD]) = *r;
	memmove(r, r + 1, (size_t)(l->a + --l->n - r) * sizeof *r);
}

/* A gradient's sum before the last that is added to it. */
static void
reduced_too_soon(struct shard *s)
{
	struct oplist *l = &s->graph->seg.a[s->graph->kind_of[1]].ops[BACKWARD];
	struct op *r = sum_op(s, true), t = *r;
	for (uint32_t i = 0; i < l->n; i++) {
		struct op *o = &l->a[i];
		if (o->op != OP_grouped_dw || o->arg[3] != t.arg[0])
			continue;
		*r = *o;
		*o = t;
		return;
	}
	abort();
}

static void
alone(struct shard *s)
{
	struct oplist *l = &s->graph->seg.a[s->graph->kind_of[1]].ops[FORWARD];

	for (uint32_t i = 0; i < l->n; i++)
		if (l->a[i].op == OP_ep_dispatch)
			l->a[i].group = OM_ALONE;
}

static void
wrong_mesh(struct shard *s)
{
	s->mesh.size[OM_EXPERT_DATA] = 1;
}

static void
other_width(struct shard *s)
{
	struct graph *g = s->graph;
	g->tensor.a[g->seg.a[g->kind_of[1]].y].dim[1]--;
}

static void
planted(void)
{
	static const struct {
		const char *name;
		void (*plant)(struct shard *s);
		const char *says;
	} fault[] = {
		{ "early slot reuse", early_reuse, "the slot holds microbatch 1" },
		{ "too few slots", too_few_slots, "stage 0: chunk 0 has slot 3 of 3" },
		{ "missing receive", missing_receive, "its input was not received" },
		{ "missing receive of a gradient", missing_gradient, "gradient was not received" },
		{ "missing send", missing_send, "stage 1 sent microbatch 3" },
		{ "gradient not sent", unsent_gradient,
		    "gradient of microbatch 2 of chunk 0 was not sent" },
		{ "dropped forward pass", dropped_forward, "microbatch 5" },
		{ "dropped microbatch", dropped_microbatch, "microbatch 6 has no forward pass" },
		{ "forward twice", forward_twice, "a second time" },
		{ "two sends swapped", swapped_sends, "send x of microbatch 1" },
		{ "another order", swapped_microbatches, "stage 0 sent microbatch 1" },
		{ "wrong tag", wrong_tag, "tag 4 is of another edge" },
		{ "wrong peer", wrong_peer, "goes from stage 1 to stage 3" },
		{ "no peer", no_peer, "no stage 4" },
		{ "gradient before its forward pass", gradient_first,
		    "deadlock: rank 0: stage 0, "
		    "action 0 (receive dx" },
		{ "layers of two chunks", overlapping_chunks, "where layer " },
		{ "wrong bucket", wrong_bucket, "do not hold the same experts" },
		{ "wrong bucket of what is dense", wrong_dense_bucket,
		    "do not hold the same layers" },
		{ "copies of an expert on other experts' ranks", other_copies,
		    "is cut into 2, and 4 ranks of a stage" },
		{ "a dense sum of some ranks", other_sum, "is cut into 1, and 2 ranks" },
		{ "reduced twice", reduced_twice, "reduce_scatter: " },
		{ "not gathered", not_gathered, "all_gather: 0 of " },
		{ "read before it is reduced", read_before_reduced, "comes after sumsq" },
		{ "reduced too soon", reduced_too_soon, "comes before grouped_dw" },
		{ "experts' rows alone", alone, "ep_dispatch is not among" },
		{ "wrong mesh", wrong_mesh, "the mesh is no product" },
		{ "streams of two widths", other_width, "bytes, which wants" },
	};

	for (uint32_t i = 0; i < LEN(fault); i++) {
		struct shard *s = layout_shard(
		    (struct layout){ "1f1b", 4, 1, 8, .data = 4, .expert = 2, .layers = 9 });
		const char *said = rankcheck_fault(s);
		expect(!said, xprintf("nothing planted: %s", said ? said : ""));
		fault[i].plant(s);
		said = rankcheck_fault(s);
		expect(said && strstr(said, fault[i].says),
		    xprintf("%s: %s", fault[i].name, said ? said : "not caught"));
	}
}

/* ---- a third phase, and steps of several numbers of microbatches ---- */

static uint32_t
life(enum phase from, enum phase to)
{
	uint32_t l = 0;

	while (lives[l].from != from || lives[l].to != to)
		l++;
	return l;
}

/* What is kept from one phase to a later one has one room less than microbatches that need it. */
static void
too_few_rooms(void)
{
	static const char *const says[N_LIVES] = { "whose backward pass has not run",
		"whose weights pass has not run", "whose weights pass has not run" };
	struct layout l = { "gpipe", 4, 1, .microbatches = 8, .split = true };

	for (uint32_t k = 0; k < N_LIVES; k++) {
		struct shard *s = layout_shard(l);
		struct chunk *c = &s->stage[1].chunk[0];
		expect(c->rooms[k].n > 1, "rooms for several microbatches");
		c->rooms[k].n--;
		const char *said = rankcheck_fault(s);
		expect(said && strstr(said, says[k]),
		    xprintf("a room less from %s to %s: %s", graph_phase_names[lives[k].from],
			graph_phase_names[lives[k].to], said ? said : "not caught"));
	}
}

static void
late_weights(void)
{
	struct layout l = { "1f1b", 4, 1, .microbatches = 8, .split = true };
	struct shard *s = layout_shard(l);
	struct action *w = find(s, 1, PASS, WEIGHTS, 2), *b = find(s, 1, PASS, BACKWARD, 2), t = *w;

	/* what is written later is kept for fewer microbatches */
	expect(s->stage[0].rooms[life(FORWARD, WEIGHTS)] == 4 &&
		   s->stage[0].rooms[life(BACKWARD, WEIGHTS)] == 1,
	    "each life has room of its own");
	*w = *b;
	*b = t;
	const char *said = rankcheck_fault(s);
	expect(said && strstr(said, "its backward pass is not in the slot"),
	    xprintf("weights before backward: %s", said ? said : "not caught"));
	s = layout_shard(l);
	drop(&s->stage[1], find(s, 1, PASS, WEIGHTS, 2));
	said = rankcheck_fault(s);
	expect(said && strstr(said, "microbatch 2"),
	    xprintf("no weights pass: %s", said ? said : "not caught"));
	s = layout_shard(l);
	find(s, 1, SEND, BACKWARD, 2)->phase = WEIGHTS;
	said = rankcheck_fault(s);
	expect(said && strstr(said, "nothing is sent there"),
	    xprintf("a message: %s", said ? said : "not caught"));
}

/* A list for each number of microbatches, in the same slots; each is proven. */
static void
several_steps(void)
{
	static const uint64_t counts[] = { 2, 3, 8 };
	static const char *const kinds[] = { "gpipe", "1f1b", "interleaved", "v" };

	for (uint32_t i = 0; i < 2 * LEN(kinds); i++) {
		uint32_t chunks = i % LEN(kinds) < 2 ? 1 : 2;
		struct layout l = { kinds[i % LEN(kinds)], 4, chunks, .microbatches = 8,
			.split = i >= LEN(kinds) };
		struct shard *s = layout_shard(l), *once = layout_shard(l);
		schedule(s, l.schedule, counts, LEN(counts));
		const char *said = rankcheck_fault(s);
		expect(
		    !said, xprintf("%s in steps of 2, 3 and 8: %s", l.schedule, said ? said : ""));
		for (uint32_t k = 0; k < 4; k++) {
			const struct stage *a = &s->stage[k], *b = &once->stage[k];
			uint32_t n = 0;
			for (uint32_t j = 0; j < a->step[1].action.n; j++)
				n += a->step[1].action.a[j].kind == PASS;
			expect(a->nsteps == 3 && n == 3 * chunks * (l.split ? 3 : 2),
			    "passes of three microbatches");
			expect(a->step[2].action.n == b->step[0].action.n &&
				   !memcmp(a->step[2].action.a, b->step[0].action.a,
				       b->step[0].action.n * sizeof *b->step[0].action.a),
			    "the largest step is as if it were the only one");
		}
		s->stage[1].step[1].action.a[0].microbatch++;
		expect(rankcheck_fault(s) != NULL, "a fault of one step alone");
	}
}

/* A stage's program that one rank has for its own. */
static struct events *
own_program(struct run *r, uint64_t rank)
{
	struct events *own = xalloc(sizeof *own);

	*own = (struct events){ xalloc(r->program[rank]->n * sizeof *own->a), r->program[rank]->n,
		r->program[rank]->n };
	memcpy(own->a, r->program[rank]->a, own->n * sizeof *own->a);
	r->program[rank] = own;
	return own;
}

/* One rank does two things of its group in the other order than the others. */
static void
swapped_collectives(void)
{
	struct shard *s =
	    layout_shard((struct layout){ "v", 2, 2, 4, .data = 4, .expert = 2, .layers = 12 });
	uint32_t caught = 0, tried = 0, n = 2;
	struct run r;

	expect(!prepare(s, 0, &r) && !run_all(&r), "every rank in one order");
	for (uint32_t i = 0; i + 1 < n; i++) {
		expect(!prepare(s, 0, &r), "a fresh run");
		struct events *own = own_program(&r, 5);
		struct event *e = &own->a[i], t = *e;
		n = own->n;
		/* of two groups others may still meet it */
		if (!e[0].meeting || !e[1].meeting || e[0].meeting->group != e[1].meeting->group)
			continue;
		e[0] = e[1];
		e[1] = t;
		tried++;
		const char *said = run_all(&r);
		caught += said && strstr(said, "rank 5: ") && strstr(said, ", where ");
	}
	expect(
	    tried > 20 && caught == tried, xprintf("%u of %u swapped collectives", caught, tried));

	/* the same sum of two layers: nothing but the layer tells them apart */
	expect(!prepare(s, 0, &r), "a fresh run");
	struct events *sums = own_program(&r, 5);
	for (uint32_t i = tried = 0; i < sums->n; i++)
		for (uint32_t k = i + 1; k < sums->n && !tried; k++) {
			const struct meeting *a = sums->a[i].meeting, *b = sums->a[k].meeting;
			if (!a || !b || a->op != b->op || a->op->op != OP_reduce_scatter)
				continue;
			sums->a[i].meeting = b;
			sums->a[k].meeting = a;
			tried++;
		}
	const char *other = run_all(&r);
	expect(tried && other && strstr(other, "rank 5: ") && strstr(other, ", where "),
	    xprintf("two layers' sums swapped: %s", other));

	/* one that is left out: the others wait, and it is said for whom */
	expect(!prepare(s, 0, &r), "a fresh run");
	own_program(&r, 5)->n--;
	const char *said = run_all(&r);
	expect(said && strstr(said, "rank 5, which has ended"),
	    xprintf("a collective left out: %s", said));
}

/* As many ranks as the largest models take, in little time. */
static void
many_ranks(void)
{
	const char *said = rankcheck_fault(layout_shard(
	    (struct layout){ "interleaved", 16, 2, 64, .data = 32, .expert = 8, .layers = 64 }));
	expect(!said, xprintf("512 ranks: %s", said));
}

int
main(void)
{
	bubbles();
	splits();
	capacities();
	groups();
	random_layouts();
	planted();
	swapped_collectives();
	too_few_rooms();
	late_weights();
	several_steps();
	many_ranks();
	return check_end();
}
