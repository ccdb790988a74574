/*
 * The bytes that a checkpoint holds of a rank, one tensor after the other, on their way to its
 * files: they pass through slots of the host's memory. With a slot for all of them the arena may
 * change as soon as it is copied; with fewer, copies wait for those that were written before them.
 * Where the device has memory for a copy of them all, that is made first, and a few slots will do:
 * it takes milliseconds, the way to the host a second for each 50 GB, or more than a step has, and
 * memory of the host that the device can reach has to be made, at some GB a second.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"

enum { SLOT = 16 << 20, SLOTS_LEAST = 4, ALIGN = 8 };

uint64_t om_slots_most = UINT64_MAX;

static uint64_t
slots_of(uint64_t bytes)
{
	return (bytes + SLOT - 1) / SLOT;
}

uint64_t
om_flow_bytes(const struct om_entry *e)
{
	return ((e->end - e->begin) * e->size + ALIGN - 1) / ALIGN * ALIGN;
}

void
om_slots_grow(struct om_slots *s, uint64_t bytes, bool all)
{
	uint64_t want = slots_of(bytes), least = SLOTS_LEAST;
	/* half of what is free, so that files keep some cache, in equal shares */
	uint64_t room = om_memory_available() / 2 / om_comm_members() / SLOT + s->n;
	unsigned char **slot;

	room = all && room > least ? room : least;
	room = om_slots_most < room ? om_slots_most : room;
	want = want < room ? want : room;
	if (s->n >= want)
		return;
	slot = om_alloc(want, sizeof *slot);
	if (s->n)
		memcpy(slot, s->slot, s->n * sizeof *slot);
	free(s->slot);
	s->slot = slot;
	while (s->n < want && (s->slot[s->n] = om_aside_new(SLOT, s->n)))
		s->n++;
	if (!s->n && want)
		om_die("checkpoint", "there is no memory for a copy of %d bytes", SLOT);
}

void
om_slots_free(struct om_slots *s)
{
	while (s->n)
		om_aside_free(s->slot[--s->n]);
	free(s->slot);
	s->slot = NULL;
}

void
om_flow_open(struct om_flow *f, struct om_slots *slots, const unsigned char *arena,
    const struct om_entry *e, uint32_t n)
{
	*f = (struct om_flow){ .slots = slots, .arena = arena, .e = e, .n = n };
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->change, NULL);
	f->place = om_alloc(n + 1, sizeof *f->place);
	for (uint32_t i = 0; i < n; i++) /* no number is cut by the end of a slot */
		f->place[i + 1] = f->place[i] + om_flow_bytes(&e[i]);
}

void
om_flow_keep(struct om_flow *f, unsigned char *to)
{
	for (uint32_t i = 0; i < f->n; i++)
		om_copy(to + f->place[i], f->arena + f->e[i].off,
		    (f->e[i].end - f->e[i].begin) * f->e[i].size);
	f->kept = to;
	f->copied = true;
}

void
om_flow_close(struct om_flow *f)
{
	pthread_mutex_destroy(&f->lock);
	pthread_cond_destroy(&f->change);
	free(f->place);
}

void
om_flow_end(struct om_flow *f)
{
	pthread_mutex_lock(&f->lock);
	f->copied = true;
	pthread_cond_signal(&f->change);
	pthread_mutex_unlock(&f->lock);
}

void
om_flow_wait(struct om_flow *f)
{
	pthread_mutex_lock(&f->lock);
	while (!f->copied)
		pthread_cond_wait(&f->change, &f->lock);
	pthread_mutex_unlock(&f->lock);
}

/* Asks for the next slot's bytes. */
static void
ask(struct om_flow *f)
{
	uint64_t at = f->asked * SLOT, end = at + SLOT;
	uint32_t slot = (uint32_t)(f->asked++ % f->slots->n);

	for (; f->first < f->n && f->place[f->first] < end; f->first++) {
		const struct om_entry *e = &f->e[f->first];
		uint64_t from = f->place[f->first], size = (e->end - e->begin) * e->size;
		uint64_t begin = at > from ? at - from : 0, stop = end - from;

		stop = stop < size ? stop : size;
		if (begin < stop)
			om_aside_get(f->kept ? f->kept : f->arena,
			    (f->kept ? from : e->off) + begin,
			    f->slots->slot[slot] + (from + begin) % SLOT, stop - begin, slot);
		if (from + size > end) /* the rest is the next one's */
			break;
	}
}

unsigned char *
om_flow_take(struct om_flow *f, uint32_t i, uint64_t byte, size_t *n)
{
	uint64_t at = f->place[i] + byte, slot = at / SLOT, all = slots_of(f->place[f->n]);

	while (f->asked < all && f->asked < slot + f->slots->n)
		ask(f);
	if (f->asked == all)
		om_flow_end(f);
	if (slot >= f->there) {
		om_aside_wait((uint32_t)(slot % f->slots->n));
		f->there = slot + 1;
	}
	*n = *n < SLOT - at % SLOT ? *n : (size_t)(SLOT - at % SLOT);
	return f->slots->slot[slot % f->slots->n] + at % SLOT;
}
