#include "threads.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "om_comm.h"

enum { MOST = 64 };

/* What a rank asks for, while all are between the two barriers. */
struct call {
	const char *what;
	const struct om_piece *out;
	uint32_t nout;
	char *x;
	uint64_t bytes;
};

static pthread_barrier_t barrier;
static struct call calls[MOST];
static uint32_t size = 1;
static _Thread_local uint32_t rank;
static void (*body)(void);

uint32_t
om_rank(enum om_group g)
{
	(void)g;
	return rank;
}

uint32_t
om_size(enum om_group g)
{
	(void)g;
	return size;
}

static void
wait(void)
{
	if (size > 1)
		pthread_barrier_wait(&barrier);
}

static void
differ(const char *what, const char *how, uint32_t other)
{
	fprintf(stderr, "FAIL %s: rank %u and rank %u differ: %s\n", what, rank, other, how);
	exit(1);
}

static void
begin(struct call c)
{
	calls[rank] = c;
	wait();
	for (uint32_t r = 0; r < size; r++) {
		if (strcmp(calls[r].what, c.what))
			differ(c.what, "the operation", r);
		if (calls[r].bytes != c.bytes)
			differ(c.what, "the size", r);
	}
}

void
om_all_gather(enum om_group g, const char *what, void *x, uint64_t bytes)
{
	(void)g;
	begin((struct call){ .what = what, .x = x, .bytes = bytes });
	for (uint32_t r = 0; r < size; r++) {
		if (r != rank)
			memcpy((char *)x + bytes / size * r, calls[r].x + bytes / size * r,
			    bytes / size);
	}
	wait();
}

void
om_exchange(enum om_group g, const char *what, const struct om_piece *out, uint32_t nout,
    const struct om_piece *in, uint32_t nin)
{
	(void)g;
	begin((struct call){ .what = what, .out = out, .nout = nout });
	for (uint32_t r = 0; r < size; r++) {
		const struct call *c = &calls[r];
		uint32_t next = 0;
		for (uint32_t i = 0; i < nin; i++) {
			if (in[i].rank != r || !in[i].bytes)
				continue;
			while (next < c->nout && (c->out[next].rank != rank || !c->out[next].bytes))
				next++;
			if (next == c->nout || c->out[next].bytes != in[i].bytes)
				differ(what, "a piece", r);
			memcpy(in[i].p, c->out[next++].p, in[i].bytes);
		}
		for (; next < c->nout; next++) {
			if (c->out[next].rank == rank && c->out[next].bytes)
				differ(what, "a piece too many", r);
		}
	}
	wait();
}

static void *
start(void *own)
{
	rank = (uint32_t)(uintptr_t)own;
	body();
	return NULL;
}

void
threads_run(uint32_t w, void (*f)(void))
{
	pthread_t thread[MOST];
	size = w;
	body = f;
	pthread_barrier_init(&barrier, NULL, w);
	for (uint32_t r = 0; r < w; r++) {
		if (pthread_create(&thread[r], NULL, start, (void *)(uintptr_t)r)) {
			perror("pthread_create");
			exit(1);
		}
	}
	for (uint32_t r = 0; r < w; r++)
		pthread_join(thread[r], NULL);
	pthread_barrier_destroy(&barrier);
	size = 1;
}
