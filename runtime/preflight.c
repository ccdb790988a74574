/*
 * The command preflight: what each rank's device and links do before a run relies on them. Products
 * are those of the trainer's own steps, of which the fastest operator counts; memory is copied
 * within the arena; and ranks exchange pieces of it, each with the one so many places behind it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "om_comm.h"
#include "om_rt.h"

enum { STEPS = 2, TURNS = 4, PIECE = 64 << 20, ALL_PAIRS = 8 };
static const double share = 0.85; /* of the median: who is under it is slow */

/* What a rank has found; links: of the slowest, what it gets and from whom. */
struct found {
	double products, memory, link; /* FLOP/s, bytes/s */
	uint32_t from;
	int32_t pid;
	char host[64];
};

static int
rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

uint32_t
om_slow(const double *x, uint32_t n, double *of_median)
{
	double *sorted = om_alloc(n, sizeof *sorted);
	uint32_t least = 0;

	memcpy(sorted, x, n * sizeof *x);
	qsort(sorted, n, sizeof *sorted, rising);
	for (uint32_t i = 0; i < n; i++)
		least = x[i] < x[least] ? i : least;
	*of_median = x[least] / sorted[n / 2];
	free(sorted);
	return *of_median < share ? least : n;
}

/* Until all that was asked of the device is done. */
static double
done(const struct om_model *m, const unsigned char *arena)
{
	(void)om_get_f64(arena, m->loss_off);
	return om_now();
}

static double
best_product(const struct om_model *m)
{
	double best = 0;

	for (uint32_t i = 0; i < m->nops; i++) {
		double rate = m->op[i].flops * (double)m->op[i].calls / m->op[i].seconds;

		best = m->op[i].seconds > 0 && rate > best ? rate : best;
	}
	return best;
}

static double
copy_rate(const struct om_model *m, unsigned char *arena, uint64_t piece)
{
	double best = 0;

	for (int i = 0; i < TURNS; i++) {
		double before = done(m, arena), took;

		om_copy(arena + piece, arena, piece);
		took = done(m, arena) - before;
		best = 2 * (double)piece / took > best ? 2 * (double)piece / took : best;
	}
	return best;
}

/* What comes from the rank so many places before this one, while all do the same. */
static double
link_rate(const struct om_model *m, unsigned char *arena, uint64_t piece, uint32_t places)
{
	const uint32_t ranks = om_size(OM_WORLD), self = om_rank(OM_WORLD);
	const struct om_piece out = { arena, piece, (self + places) % ranks };
	const struct om_piece in = { arena + piece, piece, (self + ranks - places) % ranks };
	double best = 0;

	for (int i = 0; i < TURNS; i++) { /* the first one connects them */
		double before, took;

		om_barrier("links");
		before = done(m, arena);
		om_exchange(OM_WORLD, "links", &out, 1, &in, 1);
		took = done(m, arena) - before;
		best = (double)piece / took > best ? (double)piece / took : best;
	}
	return best;
}

/* Beside rank 0's words: which rank of them is slow at something. */
static bool
tell_slow(const struct found *all, const char *what, const double *x, uint32_t n)
{
	double of_median;
	const uint32_t r = om_slow(x, n, &of_median);
	char from[32] = "";

	if (r == n)
		return false;
	if (x[r] == all[r].link)
		snprintf(from, sizeof from, ", from rank %u", all[r].from);
	printf("slow: rank %u (process %d on %s): %s%s, %.0f %% of the median\n", r, all[r].pid,
	    all[r].host, what, from, 100 * of_median);
	return true;
}

static void
tell(const struct found *all, uint32_t n)
{
	double *x = om_alloc(3 * n, sizeof *x);
	bool slow = false;

	printf("%4s  %-24s %14s %12s  %s\n", "rank", "host", "products", "memory",
	    n > 1 ? "slowest link" : "");
	for (uint32_t r = 0; r < n; r++) {
		const struct found *f = &all[r];

		printf("%4u  %-24.24s %8.1f GFLOP/s %7.1f GB/s", r, f->host, 1e-9 * f->products,
		    1e-9 * f->memory);
		if (n > 1)
			printf("  %.2f GB/s from rank %u", 1e-9 * f->link, f->from);
		printf("\n");
		x[r] = f->products;
		x[n + r] = f->memory;
		x[2 * n + r] = f->link;
	}
	slow |= tell_slow(all, "products", x, n);
	slow |= tell_slow(all, "memory", x + n, n);
	slow |= n > 1 && tell_slow(all, "what it gets", x + 2 * n, n);
	if (!slow && n > 1)
		printf("no rank is under %.0f %% of the median\n", 100 * share);
	free(x);
}

/* Half of the smallest arena, since stages have others, or PIECE. */
static uint64_t
piece_of_all(const struct om_model *m)
{
	const uint32_t ranks = om_size(OM_WORLD);
	uint64_t *half = om_alloc(ranks, sizeof *half), least = PIECE;

	half[om_rank(OM_WORLD)] = m->arena_bytes / 2 / 4096 * 4096;
	om_all_gather(OM_WORLD, "sizes of memory", half, (uint64_t)ranks * sizeof *half);
	for (uint32_t r = 0; r < ranks; r++)
		least = half[r] < least ? half[r] : least;
	free(half);
	return least;
}

int
om_preflight(const struct om_model *m)
{
	const uint32_t ranks = om_size(OM_WORLD), self = om_rank(OM_WORLD);
	struct found *all = om_alloc(ranks, sizeof *all), *own = &all[self];
	unsigned char *arena = om_bench_operators(m, STEPS);
	const uint64_t piece = piece_of_all(m);

	own->products = best_product(m);
	own->memory = copy_rate(m, arena, piece);
	own->link = INFINITY;
	own->pid = (int32_t)getpid();
	gethostname(own->host, sizeof own->host - 1);
	for (uint32_t d = 1; d<ranks; d = ranks> ALL_PAIRS ? 2 * d : d + 1) {
		double rate = link_rate(m, arena, piece, d);

		if (rate < own->link) {
			own->link = rate;
			own->from = (self + ranks - d) % ranks;
		}
	}
	om_all_gather(OM_WORLD, "what ranks found", all, (uint64_t)ranks * sizeof *all);
	if (!self)
		tell(all, ranks);
	free(all);
	return 0;
}
