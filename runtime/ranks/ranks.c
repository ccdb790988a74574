/*
 * What ranks ask of one another, on memory of the host: all of it is messages, so that a wait can
 * say whom it is for, and every rank forms every sum in the same order. Of a device's memory the
 * operations are the device's (om_far).
 */
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "ranks.h"

#ifndef OM_COMM_SCRATCH           /* tests make it small */
#define OM_COMM_SCRATCH (4 << 20) /* bytes of what others send to be summed */
#endif
#ifndef OM_COMM_STAR
#define OM_COMM_STAR 32 /* ranks beyond which little things go by one of them */
#endif
enum { SCRATCH = OM_COMM_SCRATCH, STAR = OM_COMM_STAR, LITTLE = 4096 };

static struct om_mesh mesh;
static uint32_t rank[OM_N_GROUPS], size[OM_N_GROUPS] = {
#define GROUP(NAME, name, axes) 1,
#define AXIS(NAME, name) 1,
#include "group.def"
};
static struct om_flight *now; /* of the call that runs */
static struct edge {          /* of each tag */
	struct om_flight *flight;
	const void *own; /* of a message to this rank itself: its bytes, until they are received */
	const struct om_far *far; /* the last one was of a device's memory */
} * edge;
static uint32_t nedges;
static unsigned char *scratch; /* [SCRATCH] */

uint32_t
om_rank(enum om_group g)
{
	return rank[g];
}

uint32_t
om_size(enum om_group g)
{
	return size[g];
}

uint32_t
om_ranks_member(enum om_group g, uint32_t r)
{
	return (uint32_t)om_mesh_member(&mesh, g, rank[OM_WORLD], r);
}

void
om_ranks_set(const struct om_mesh *of, uint32_t r)
{
	mesh = *of;
	for (int g = 0; g < OM_N_GROUPS; g++) {
		size[g] = (uint32_t)mesh.size[g];
		rank[g] = (uint32_t)om_mesh_place(&mesh, (enum om_group)g, r);
	}
	rank[OM_WORLD] = r; /* whatever the world is, until that is checked */
	now = now ? now : om_flight_new();
	scratch = scratch ? scratch : om_alloc(SCRATCH, 1);
}

/* A command that one process runs, as export, has no other ranks and sends nothing. */
static void
land(const char *what)
{
	if (now)
		om_land(now, what);
}

/* ---- what generated code asks for ------------------------------------------------------------ */

/* to[m] = the sum of from's ranks [m], in their order, rounded once. */
typedef void add_up(void *to, const void *from, uint64_t m, uint32_t ranks);
#define ADD_UP(name, type, wide)                                                 \
	static void name(void *to, const void *from, uint64_t m, uint32_t ranks) \
	{                                                                        \
		const type *x = from;                                            \
		type *y = to;                                                    \
		for (uint64_t i = 0; i < m; i++) {                               \
			wide sum = x[i];                                         \
			for (uint32_t r = 1; r < ranks; r++)                     \
				sum += x[r * m + i];                             \
			y[i] = (type)sum;                                        \
		}                                                                \
	}
ADD_UP(add_f32, float, double)
ADD_UP(add_f64, double, double)
ADD_UP(add_i64, int64_t, int64_t)

/* Part by part, a block of it at a time: a rank gets it from all others, and adds it up. */
void
om_reduce_scatter(enum om_group g, const char *what, void *x, uint64_t n, size_t real)
{
	const uint32_t ranks = size[g], self = rank[g];
	const uint64_t part = n / ranks, most = SCRATCH / ranks / real;
	const struct om_far *far = om_far(x);

	if (far) {
		far->reduce_scatter(g, what, x, n, real);
		return;
	}
	for (uint64_t at = 0; ranks > 1 && at < part; at += most) {
		uint64_t m = part - at < most ? part - at : most;
		unsigned char *own = (unsigned char *)x + (self * part + at) * real;

		for (uint32_t r = 0; r < ranks; r++)
			if (r != self)
				om_post(now, what, false, om_ranks_member(g, r), g,
				    scratch + r * m * real, m * real);
		for (uint32_t r = 0; r < ranks; r++)
			if (r != self)
				om_post(now, what, true, om_ranks_member(g, r), g,
				    (unsigned char *)x + (r * part + at) * real, m * real);
		land(what);
		memcpy(scratch + self * m * real, own, m * real);
		(real == sizeof(float) ? add_f32 : add_f64)(own, scratch, m, ranks);
	}
}

/* The first rank of the group gets all parts, and sends them on: 2 messages a rank. */
static void
gather_by_first(enum om_group g, const char *what, unsigned char *p, uint64_t part)
{
	const bool first = !rank[g];

	for (int back = 0; back < 2; back++) {
		for (uint32_t r = first; r < (first ? size[g] : 1); r++) {
			unsigned char *own = p + (first ? r : rank[g]) * part;

			om_post(now, what, first == (back != 0), om_ranks_member(g, r), g,
			    back ? p : own, back ? size[g] * part : part);
		}
		om_land(now, what);
	}
}

void
om_all_gather(enum om_group g, const char *what, void *x, uint64_t bytes)
{
	const uint64_t part = bytes / size[g];
	const struct om_far *far = om_far(x);
	unsigned char *p = x;

	if (far) {
		far->all_gather(g, what, x, bytes);
		return;
	}
	if (size[g] > STAR && part <= LITTLE) {
		gather_by_first(g, what, p, part);
		return;
	}
	for (uint32_t r = 0; r < size[g]; r++)
		if (r != rank[g])
			om_post(now, what, false, om_ranks_member(g, r), g, p + r * part, part);
	for (uint32_t r = 0; r < size[g]; r++)
		if (r != rank[g])
			om_post(
			    now, what, true, om_ranks_member(g, r), g, p + rank[g] * part, part);
	land(what);
}

/* Of numbers of 8 bytes: every rank gets the others' beside its own, rank after rank. */
static void
all_sum(enum om_group g, const char *what, unsigned char *x, uint64_t n, add_up *add)
{
	const uint64_t most = SCRATCH / size[g] / 8;
	const struct om_far *far = om_far(x);

	if (far) {
		far->sum(g, what, x, n, add == add_i64);
		return;
	}
	for (uint64_t at = 0; size[g] > 1 && at < n; at += most) {
		uint64_t m = n - at < most ? n - at : most;

		memcpy(scratch + rank[g] * m * 8, x + at * 8, m * 8);
		om_all_gather(g, what, scratch, size[g] * m * 8);
		add(x + at * 8, scratch, m, size[g]);
	}
}

void
om_all_sum_f64(enum om_group g, const char *what, double *x, uint64_t n)
{
	all_sum(g, what, (unsigned char *)x, n, add_f64);
}

void
om_all_sum_i64(enum om_group g, const char *what, int64_t *x, uint64_t n)
{
	all_sum(g, what, (unsigned char *)x, n, add_i64);
}

void
om_exchange(enum om_group g, const char *what, const struct om_piece *out, uint32_t nout,
    const struct om_piece *in, uint32_t nin)
{
	const struct om_far *far = om_far(nout ? out[0].p : nin ? in[0].p : NULL);
	uint32_t own = 0; /* of out */

	if (far) {
		far->exchange(g, what, out, nout, in, nin);
		return;
	}
	for (uint32_t i = 0; i < nin; i++)
		if (in[i].rank != rank[g])
			om_post(now, what, false, om_ranks_member(g, in[i].rank), g, in[i].p,
			    in[i].bytes);
	for (uint32_t i = 0; i < nout; i++)
		if (out[i].rank != rank[g])
			om_post(now, what, true, om_ranks_member(g, out[i].rank), g, out[i].p,
			    out[i].bytes);
	for (uint32_t i = 0; i < nin; i++) {
		if (in[i].rank != rank[g])
			continue;
		while (own < nout && out[own].rank != rank[g])
			own++;
		if (own == nout || out[own].bytes != in[i].bytes)
			om_die(what, "internal error: pieces to oneself do not match");
		if (in[i].bytes)
			memmove(in[i].p, out[own].p, in[i].bytes);
		own++;
	}
	land(what);
}

static struct edge *
edge_of(uint32_t tag)
{
	while (tag >= nedges) {
		uint32_t n = nedges ? 2 * nedges : 16;

		if (!(edge = realloc(edge, n * sizeof *edge)))
			om_die("memory", "cannot hold %u edges", n);
		memset(edge + nedges, 0, (n - nedges) * sizeof *edge);
		for (; nedges < n; nedges++)
			edge[nedges].flight = om_flight_new();
	}
	return &edge[tag];
}

void
om_send(uint32_t stage, uint32_t tag, const char *what, const void *x, uint64_t bytes)
{
	struct edge *e = edge_of(tag);
	uint32_t to = om_ranks_member(OM_PIPELINE, stage);

	if (om_flight_up(e->flight) || e->own)
		om_die(what, "internal error: edge %u has a message under way", tag);
	e->far = om_far(x);
	if (stage == rank[OM_PIPELINE])
		e->own = x;
	else if (e->far)
		e->far->send(to, tag, what, x, bytes);
	else
		om_post(e->flight, what, true, to, OM_N_GROUPS + tag, (void *)(uintptr_t)x, bytes);
}

void
om_sent(uint32_t tag, const char *what)
{
	struct edge *e = edge_of(tag);

	if (e->own)
		om_die(what, "internal error: edge %u to this rank itself: nothing received", tag);
	if (e->far)
		e->far->sent(tag, what);
	else
		om_land(e->flight, what);
}

void
om_recv(uint32_t stage, uint32_t tag, const char *what, void *x, uint64_t bytes)
{
	const struct om_far *far = om_far(x);
	uint32_t from = om_ranks_member(OM_PIPELINE, stage);

	if (stage == rank[OM_PIPELINE]) {
		struct edge *e = edge_of(tag);

		if (!e->own)
			om_die(
			    what, "internal error: edge %u to this rank itself: nothing sent", tag);
		if (far)
			far->copy(x, e->own, bytes);
		else
			memcpy(x, e->own, bytes);
		e->own = NULL;
	} else if (far) {
		far->recv(from, tag, what, x, bytes);
	} else {
		om_post(now, what, false, from, OM_N_GROUPS + tag, x, bytes);
		land(what);
	}
}

/* ---- what the runtime asks for --------------------------------------------------------------- */

bool
om_any(const char *what, bool said)
{
	int64_t x = said;

	om_all_sum_i64(OM_WORLD, what, &x, 1);
	return x > 0;
}

void
om_barrier(const char *what)
{
	om_any(what, false);
}

void
om_bcast(const char *what, void *p, uint64_t bytes)
{
	for (uint32_t r = 1; r < size[OM_WORLD] && !rank[OM_WORLD]; r++)
		om_post(now, what, true, r, OM_WORLD, p, bytes);
	if (rank[OM_WORLD])
		om_post(now, what, false, 0, OM_WORLD, p, bytes);
	land(what);
}

char *
om_gather(const char *what, const void *p, uint64_t bytes, uint64_t *total)
{
	const uint32_t ranks = size[OM_WORLD], self = rank[OM_WORLD];
	uint64_t *n = om_alloc(ranks, sizeof *n), at = bytes;
	char *block = NULL;

	n[self] = bytes;
	om_all_gather(OM_WORLD, what, n, ranks * sizeof *n);
	*total = 0;
	for (uint32_t r = 0; r < ranks; r++)
		*total += n[r];
	if (self) {
		om_post(now, what, true, 0, OM_WORLD, (void *)(uintptr_t)p, bytes);
	} else {
		block = om_alloc(*total + 1, 1);
		if (bytes)
			memcpy(block, p, bytes);
		for (uint32_t r = 1; r < ranks; at += n[r++])
			om_post(now, what, false, r, OM_WORLD, block + at, n[r]);
	}
	land(what);
	free(n);
	return block;
}
