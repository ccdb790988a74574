/* The device that is this machine's processor: the arena is ordinary memory, a part is a call. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "om_trace.h"

void
om_device_start(uint64_t threads)
{
	om_threads(threads);
}

unsigned char *
om_arena_new(const struct om_model *m)
{
	return om_arena_map(m->arena_bytes, m->arena_bytes);
}

void
om_put(unsigned char *arena, uint64_t off, const void *src, size_t n)
{
	memcpy(arena + off, src, n);
}

void
om_get(const unsigned char *arena, uint64_t off, void *dst, size_t n)
{
	memcpy(dst, arena + off, n);
}

void
om_copy(void *to, const void *from, size_t n)
{
	enum { BLOCK = 1 << 20 };

#pragma omp parallel for schedule(static) if (n > 4 * BLOCK)
	for (size_t at = 0; at < n; at += BLOCK)
		memcpy((char *)to + at, (const char *)from + at, n - at < BLOCK ? n - at : BLOCK);
}

void *
om_spare_new(uint64_t bytes)
{
	(void)bytes;
	return NULL;
}

void
om_spare_free(void *p)
{
	(void)p;
}

void *
om_aside_new(size_t bytes, uint32_t slot)
{
	(void)slot;
	return malloc(bytes);
}

void
om_aside_free(void *p)
{
	free(p);
}

void
om_aside_begin(void)
{
}

void
om_aside_get(const unsigned char *arena, uint64_t off, void *to, size_t n, uint32_t slot)
{
	(void)slot;
	memcpy(to, arena + off, n);
}

void
om_aside_wait(uint32_t slot)
{
	(void)slot;
}

void
om_aside_end(void)
{
}

void
om_run(const struct om_model *m, enum om_part part, unsigned char *arena)
{
	om_part(m, part, arena);
	if (part >= OM_RUN_MICROBATCH && part <= OM_RUN_ONLY)
		om_spin_work(3);
	else if (part == OM_RUN_DECODE || part == OM_RUN_EVALUATE)
		om_spin_work(1);
}

void
om_run_pass(const struct om_model *m, enum om_phase phase, unsigned char *arena, int slot, int of)
{
	m->pass[phase](arena, slot, of);
	om_spin_work(phase == OM_BACKWARD && !m->pass[OM_WEIGHTS] ? 2 : 1);
}

void
om_run_eval(const struct om_model *m, unsigned char *arena, int slot)
{
	m->eval(arena, slot);
	om_spin_work(1);
}

/* More than 1 is for tests: here steps end before they are waited for. */
#ifndef OM_CPU_STEPS
#define OM_CPU_STEPS 1
#endif

uint64_t
om_steps_most(void)
{
	return OM_CPU_STEPS;
}

static struct om_result *result[OM_STEPS_MOST];

void
om_result_send(const struct om_model *m, const unsigned char *arena, uint64_t step)
{
	struct om_result **r = &result[step % OM_STEPS_MOST];

	if (!*r)
		*r = om_alloc(1, sizeof **r + m->stat_bytes);
	memcpy((*r)->ctl, arena + m->ctl_off, sizeof(*r)->ctl);
	memcpy((*r)->stat, arena + m->stat_off, m->stat_bytes);
}

const struct om_result *
om_result_wait(uint64_t step)
{
	return result[step % OM_STEPS_MOST];
}

void
om_clear(void *p, uint64_t bytes)
{
	memset(p, 0, bytes);
}

bool
om_device_normal(const struct om_model *m, unsigned char *arena, const struct om_tensor *t,
    uint64_t seed, uint64_t name)
{
	(void)m, (void)arena, (void)t, (void)seed, (void)name;
	return false; /* the host is the device */
}

static double began;

void
om_op_begin(const struct om_op *op)
{
	(void)op;
	began = om_now();
}

void
om_op_end(struct om_op *op)
{
	double now = om_now();

	op->seconds += now - began;
	op->calls++;
	om_trace_op(op, om_trace_at(), 0, began, now);
}

void
om_range_begin(const char *segment, int layer)
{
	om_trace_enter(segment, layer);
}

void
om_range_end(void)
{
	om_trace_leave();
}

void
om_profile_end(void)
{
}

void
om_device_memory(uint64_t *used, uint64_t *total)
{
	*used = *total = 0;
}

void
om_device_needs(char needs[OM_NEEDS], char here[OM_NEEDS])
{
	char glibc[16], own[16];

	om_glibc(glibc, own);
	snprintf(needs, OM_NEEDS, *glibc ? "glibc %s or later" : "%s", glibc);
	snprintf(here, OM_NEEDS, *own ? "glibc %s" : "%s", own);
}

void
om_device_text(char text[64])
{
	snprintf(text, 64, "%s", om_count((uint64_t)omp_get_max_threads(), "thread"));
}
