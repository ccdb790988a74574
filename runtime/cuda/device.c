/*
 * The device that is a GPU: the arena is device memory, a part of the step is a CUDA graph,
 * recorded when it is first asked for.
 */
#include <cuda.h>
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "om_gpu.h"
#include "om_rt.h"
#include "om_trace.h"

static struct om_gpu_graph *graph[OM_N_PARTS];
static bool started, sync_all;
static const unsigned char *own; /* the arena */
static uint64_t own_bytes;

void
om_device_start(uint64_t threads)
{
	const char *sync = getenv("OM_SYNC");

	om_threads(threads);
	om_gpu_start();
	om_comm_device();
	started = true;
	sync_all = om_profile = sync && strcmp(sync, "1") == 0;
}

/* The plan was for a larger device, or others use this one. */
static void
check_memory(const struct om_model *m)
{
	const uint64_t need = m->arena_bytes;
	uint64_t used, total;

	om_gpu_memory(&used, &total);
	if (need > total)
		om_die("arena",
		    "needs %s, and %s has %s, %s of them free; the plan was for %s with %s: run it "
		    "on such a GPU, or have olmogen plan for this one (olmogen --explain=target "
		    "lists the cards that it knows)",
		    om_bytes(need), om_gpu_name(), om_bytes(total), om_bytes(total - used),
		    m->target, m->memory ? om_bytes(m->memory) : "any memory");
	if (need > total - used)
		om_die("arena",
		    "needs %s, and of the %s of %s %s are free; end what else runs there "
		    "(nvidia-smi lists it), choose another GPU by CUDA_VISIBLE_DEVICES, or "
		    "generate with a smaller batch { micro } or with recompute",
		    om_bytes(need), om_bytes(total), om_gpu_name(), om_bytes(total - used));
}

unsigned char *
om_arena_new(const struct om_model *m)
{
	unsigned char *p;

	check_memory(m);
	p = om_gpu_arena(m->arena_bytes);
	om_gpu_fill(p, 0, m->arena_bytes);
	own = p;
	own_bytes = m->arena_bytes;
	return p;
}

bool
om_arena_has(const void *p)
{
	return own && (uintptr_t)p - (uintptr_t)own < own_bytes;
}

void
om_put(unsigned char *arena, uint64_t off, const void *src, size_t n)
{
	if (started)
		om_gpu_put(arena + off, src, n);
	else
		memcpy(arena + off, src, n);
}

void
om_get(const unsigned char *arena, uint64_t off, void *dst, size_t n)
{
	if (started)
		om_gpu_get(dst, arena + off, n);
	else
		memcpy(dst, arena + off, n);
}

void
om_copy(void *to, const void *from, size_t n)
{
	om_gpu_copy(to, from, n);
}

void *
om_spare_new(uint64_t bytes)
{
	/* what libraries, graphs and kernels may still ask the driver for */
	const uint64_t reserve = (uint64_t)4 << 30;
	uint64_t used, total;

	if (!started)
		return NULL;
	om_gpu_memory(&used, &total);
	return total - used < reserve || total - used - reserve < bytes ? NULL
									: om_gpu_spare(bytes);
}

void
om_spare_free(void *p)
{
	if (p)
		om_gpu_free(p);
}

void
om_clear(void *p, uint64_t bytes)
{
	om_set_zero(p, bytes); /* in order with the launches beside it */
}

void *
om_aside_new(size_t bytes, uint32_t slot)
{
	return started ? om_gpu_aside_new(bytes, slot) : malloc(bytes);
}

void
om_aside_free(void *p)
{
	if (started)
		om_gpu_aside_free(p);
	else
		free(p);
}

void
om_aside_begin(void)
{
	if (started)
		om_gpu_aside_begin();
}

void
om_aside_get(const unsigned char *arena, uint64_t off, void *to, size_t n, uint32_t slot)
{
	if (started)
		om_gpu_aside_get(to, arena + off, n, slot);
	else
		memcpy(to, arena + off, n);
}

void
om_aside_wait(uint32_t slot)
{
	if (started)
		om_gpu_aside_wait(slot);
}

void
om_aside_end(void)
{
	if (started)
		om_gpu_aside_end();
}

struct part {
	const struct om_model *m;
	enum om_part part;
	unsigned char *arena;
	struct pass *pass; /* NULL: it is none */
};
/* A pass of a chunk, as it is recorded: of a phase, a slot and a microbatch. */
struct pass {
	int phase, slot, of; /* phase -1: of an evaluation */
	struct om_gpu_graph *graph;
	struct pass *next;
};

static void
launch(void *arg)
{
	const struct part *p = arg;

	if (!p->pass)
		om_part(p->m, p->part, p->arena);
	else if (p->pass->phase < 0)
		p->m->eval(p->arena, p->pass->slot);
	else
		p->m->pass[p->pass->phase](p->arena, p->pass->slot, p->pass->of);
}

/*
 * Without a graph: in one stream, so that an operator has the device for itself and its time is its
 * own; but for a picture in its streams, as in training.
 */
static void
by_operators(struct part *p, const char *name)
{
	om_range_begin(name, -1);
	if (om_tracing())
		om_gpu_fork(launch, p, p->m->streams, p->m->events);
	else
		launch(p);
	om_range_end();
}

static void
run_pass(const struct om_model *m, unsigned char *arena, struct pass want)
{
	static const char *const name[] = { "evaluation", "forward pass", "backward pass",
		"gradients of weights" };
	static struct pass *passes;
	struct pass *x = passes;
	struct part p = { .m = m, .arena = arena };

	while (x && (x->phase != want.phase || x->slot != want.slot || x->of != want.of))
		x = x->next;
	if (!x) {
		x = om_alloc(1, sizeof *x);
		*x = want;
		x->next = passes;
		passes = x;
	}
	p.pass = x;
	if (om_profile) {
		by_operators(&p, name[x->phase + 1]);
		return;
	}
	if (!x->graph)
		x->graph = om_gpu_record(launch, &p, name[x->phase + 1], m->streams, m->events);
	om_gpu_play(x->graph);
}

void
om_run_pass(const struct om_model *m, enum om_phase phase, unsigned char *arena, int slot, int of)
{
	run_pass(m, arena, (struct pass){ .phase = (int)phase, .slot = slot, .of = of });
}

void
om_run_eval(const struct om_model *m, unsigned char *arena, int slot)
{
	run_pass(m, arena, (struct pass){ .phase = -1, .slot = slot });
}

void
om_run(const struct om_model *m, enum om_part part, unsigned char *arena)
{
	static const char *const name[] = { "constants", "start of a step", "microbatch",
		"first microbatch", "last microbatch", "only microbatch", "update", "evaluation",
		"token", "prompt" };
	struct part p = { .m = m, .part = part, .arena = arena };

	if (om_profile || part == OM_RUN_INIT) {
		by_operators(&p, name[part]);
		return;
	}
	if (!graph[part])
		graph[part] = om_gpu_record(launch, &p, name[part], m->streams, m->events);
	om_gpu_play(graph[part]);
}

uint64_t
om_steps_most(void)
{
	return sync_all ? 1 : OM_STEPS_MOST; /* so that an error's step is known too */
}

static struct {
	struct om_result *r; /* page-locked: the copy is the stream's, the host goes on */
	struct om_gpu_mark *there;
} result[OM_STEPS_MOST];

void
om_result_send(const struct om_model *m, const unsigned char *arena, uint64_t step)
{
	struct om_result **r = &result[step % OM_STEPS_MOST].r;

	if (!*r)
		*r = om_gpu_locked(sizeof **r + m->stat_bytes);
	om_gpu_fetch((*r)->ctl, arena + m->ctl_off, sizeof(*r)->ctl);
	om_gpu_fetch((*r)->stat, arena + m->stat_off, m->stat_bytes);
	result[step % OM_STEPS_MOST].there = om_gpu_mark();
}

const struct om_result *
om_result_wait(uint64_t step)
{
	struct om_gpu_mark *there = result[step % OM_STEPS_MOST].there;

	om_gpu_reach(there);
	om_gpu_mark_free(there);
	return result[step % OM_STEPS_MOST].r;
}

OM_KERNEL(om_init_normal, 256, 0)

bool
om_device_normal(const struct om_model *m, unsigned char *arena, const struct om_tensor *t,
    uint64_t seed, uint64_t name)
{
	unsigned char *w = arena + om_weight_at(m, t->p, t->rep, t->first), *master;
	uint64_t n = t->p->numel, begin, end;
	double std = m->init_std;

	om_param_part(m, t->p, &begin, &end);
	begin = begin > t->first ? begin - t->first : 0;
	end = end > t->first ? end - t->first : 0;
	master = arena + om_state_at(m, t->p, t->p->master, t->rep, t->first + begin);
	OM_LAUNCH(
	    om_init_normal, om_sms() * 8, 1, 1, &w, &master, &begin, &end, &n, &seed, &name, &std);
	return true;
}

/*
 * ---- operators one by one: bench's marks around every launch, read when all is done; and for a
 * trainer that fails, OM_SYNC=1: the device is waited for after each, so that an error has a name
 */

static struct om_gpu_mark *begin;
static struct span {
	struct om_op *op;
	uint32_t at; /* in a trace */
	int stream;
	struct om_gpu_mark *begin, *end;
	struct span *next;
} * spans;

void
om_op_begin(const struct om_op *op)
{
	om_gpu_operation(op->name);
	nvtxRangePushA(op->name);
	if (!sync_all)
		begin = om_gpu_mark();
}

void
om_op_end(struct om_op *op)
{
	if (sync_all) {
		om_gpu_wait();
	} else {
		struct span *s = om_alloc(1, sizeof *s);

		*s = (struct span){ op, om_trace_at(), om_gpu_on(), begin, om_gpu_mark(), spans };
		spans = s;
	}
	nvtxRangePop();
	om_gpu_operation(NULL);
}

/* For Nsight Systems: part of the step, segment and layer, operator */
void
om_range_begin(const char *segment, int layer)
{
	char text[64];

	if (layer < 0)
		snprintf(text, sizeof text, "%s", segment);
	else
		snprintf(text, sizeof text, "%s, layer %d", segment, layer);
	nvtxRangePushA(text);
	om_trace_enter(segment, layer);
}

void
om_range_end(void)
{
	om_trace_leave();
	nvtxRangePop();
}

void
om_profile_end(void)
{
	struct om_gpu_mark *now = om_gpu_mark();

	om_gpu_wait();
	double there = om_now();
	for (struct span *s; (s = spans); free(s)) {
		spans = s->next;
		double seconds = om_gpu_between(s->begin, s->end);
		s->op->seconds += seconds;
		s->op->calls++;
		double end = there - om_gpu_between(s->end, now);
		om_trace_op(s->op, s->at, s->stream, end - seconds, end);
		om_gpu_mark_free(s->begin);
		om_gpu_mark_free(s->end);
	}
	om_gpu_mark_free(now);
}

void
om_device_memory(uint64_t *used, uint64_t *total)
{
	om_gpu_memory(used, total);
}

void
om_device_text(char text[64])
{
	snprintf(text, 64, "%s", om_gpu_name());
}
