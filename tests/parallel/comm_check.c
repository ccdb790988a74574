/*
 * Every function of om_comm.h against naive sums, on random sizes; and ranks that wait, for
 * run.sh to kill one. usage: comm_check DATA EXPERT PIPELINE SEED
 *                            comm_check DATA EXPERT PIPELINE wait|die|bad SECONDS
 * OM_TEST_INIT=RANK,SIGNAL: that rank gets the signal as it enters MPI_Init, or before it goes to
 * meet the others. With OM_TCP the ranks are those of runtime/nccl, which meet by themselves; of
 * that the part that needs a device is left out.
 */
#ifndef OM_TCP
#include <mpi.h>
#endif
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/om_rt.h"
#include "../../runtime/rng.h"

static struct om_model model;
static uint32_t data, expert, pipeline; /* its degrees */
static uint64_t failures, checks;
static uint32_t crc; /* of all that was received: two runs give the same */

static void
raise_for_test(const char *rank)
{
	const char *test = getenv("OM_TEST_INIT");

	if (test && rank && atoi(test) == atoi(rank))
		raise(atoi(strchr(test, ',') + 1));
}

#ifdef OM_TCP
#include "../../runtime/nccl/control.h"

int __real_om_meet(const struct om_self *s, double limit, int *life);
int __wrap_om_meet(const struct om_self *s, double limit, int *life);
int
__wrap_om_meet(const struct om_self *s, double limit, int *life)
{
	raise_for_test(getenv("RANK"));
	return __real_om_meet(s, limit, life);
}
#else
int
MPI_Init_thread(int *argc, char ***argv, int need, int *got)
{
	raise_for_test(getenv("OMPI_COMM_WORLD_RANK"));
	return PMPI_Init_thread(argc, argv, need, got);
}
#endif

static void
expect(bool good, const char *what, enum om_group g, uint64_t n)
{
	checks++;
	if (good || failures++ > 5)
		return;
	fprintf(stderr, "FAIL: rank %u: %s of group %d, %llu\n", om_rank(OM_WORLD), what, g,
	    (unsigned long long)n);
}

/* A random number of (a, b, c), the same on all ranks. */
static uint64_t
draw(uint64_t a, uint64_t b, uint64_t c)
{
	struct om_philox o = om_philox(
	    (struct om_philox){ { (uint32_t)a, (uint32_t)b, (uint32_t)c, (uint32_t)(c >> 32) } },
	    4711);

	return o.v[0] | (uint64_t)o.v[1] << 32;
}

/* What element i of rank r's input is: of all magnitudes, so that another order is seen. */
static double
element(uint64_t seed, uint32_t r, uint64_t i)
{
	uint64_t x = draw(seed, r, i);

	return ((double)(x % 2000001) - 1e6) * (x >> 40 & 1 ? 1e-9 : 1.0 / 3);
}

/* Place of world rank w in stage, data, expert group and so on, by the words of group.def. */
struct place {
	uint32_t stage, d, replica, expert;
};

static struct place
place_of(uint32_t w)
{
	struct place p = { w / data, w % data, 0, 0 };

	p.replica = p.d / expert;
	p.expert = p.d % expert;
	return p;
}

/* The world ranks of this rank's group, in order; gives how many, *self: which of them it is. */
static uint32_t
members(enum om_group g, uint32_t *w, uint32_t *self)
{
	struct place me = place_of(om_rank(OM_WORLD));
	uint32_t n = 0;

	for (uint32_t i = 0; i < data * pipeline; i++) {
		struct place p = place_of(i);
		bool in[OM_N_GROUPS] = { [OM_ALONE] = i == om_rank(OM_WORLD),
			[OM_WORLD] = true,
			[OM_DATA] = p.stage == me.stage,
			[OM_EXPERT] = p.stage == me.stage && p.replica == me.replica,
			[OM_EXPERT_DATA] = p.stage == me.stage && p.expert == me.expert,
			[OM_PIPELINE] = p.d == me.d };

		if (!in[g] && i != om_rank(OM_WORLD)) /* of axes that are not there, each alone */
			continue;
		if (i == om_rank(OM_WORLD))
			*self = n;
		w[n++] = i;
	}
	return n;
}

static void
sums(enum om_group g, uint64_t seed)
{
	uint32_t w[512], self = 0, size = members(g, w, &self);
	/* now and then so long that it takes several of run.sh's small blocks */
	uint64_t n = size * (draw(seed, 1, g) % 7 ? draw(seed, 2, g) % 300 : 30000 / size);
	float *f = om_alloc(n + 1, sizeof *f);
	double *d = om_alloc(n + 1, sizeof *d), *a = om_alloc(n + 1, sizeof *a);
	int64_t *k = om_alloc(n + 1, sizeof *k);
	bool good = true;

	expect(om_size(g) == size && om_rank(g) == self, "place", g, size);
	for (uint64_t i = 0; i < n; i++) {
		a[i] = d[i] = element(seed, om_rank(OM_WORLD), i);
		f[i] = (float)d[i];
		k[i] = (int64_t)draw(seed, om_rank(OM_WORLD), i) >> 12;
	}
	om_reduce_scatter(g, "reduce-scatter", f, n, sizeof *f);
	om_reduce_scatter(g, "reduce-scatter", d, n, sizeof *d);
	om_all_sum_f64(g, "sum", a, n);
	om_all_sum_i64(g, "sum", k, n);
	for (uint64_t i = 0; i < n; i++) {
		bool own = i / (n / size) == self;
		double sum = element(seed, w[0], i), of_floats = (float)sum;
		int64_t whole = (int64_t)draw(seed, w[0], i) >> 12;

		for (uint32_t r = 1; r < size; r++) {
			sum += element(seed, w[r], i);
			of_floats += (double)(float)element(seed, w[r], i);
			whole += (int64_t)draw(seed, w[r], i) >> 12;
		}
		good = good && a[i] == sum && k[i] == whole &&
		       (!own || (d[i] == sum && f[i] == (float)of_floats));
	}
	expect(good, "sums", g, n);
	if (n) {
		crc = om_crc32c(crc, a, n * sizeof *a);
		crc = om_crc32c(crc, f + self * (n / size), n / size * sizeof *f);
	}
	for (uint64_t i = 0; i < n; i++)
		d[i] = i / (n / size) == self ? element(seed, om_rank(OM_WORLD), i) : -1;
	om_all_gather(g, "all-gather", d, n * sizeof *d);
	good = true;
	for (uint64_t i = 0; i < n; i++)
		good = good && d[i] == element(seed, w[i / (n / size)], i);
	expect(good, "all-gather", g, n);
	free(f);
	free(d);
	free(a);
	free(k);
}

/* Bytes of the k-th piece from world rank a to b: none, few, or some of run.sh's small messages. */
static uint64_t
piece_bytes(uint64_t seed, uint32_t a, uint32_t b, uint32_t k)
{
	uint64_t x = draw(seed, a * 4096 + b, 77 + k);

	return x % 3 == 0 ? 0 : x % 11 == 1 ? 300000 + x % 999 : x % 5000;
}

static void
exchange(enum om_group g, uint64_t seed)
{
	enum { EACH = 3 };
	uint32_t w[512], self = 0, size = members(g, w, &self), n = size * EACH, me;
	struct om_piece *out = om_alloc(n, sizeof *out), *in = om_alloc(n, sizeof *in);
	bool good = true;

	me = om_rank(OM_WORLD);
	for (uint32_t i = 0; i < n; i++) { /* the two lists go round in different orders */
		uint32_t to = (self + i) % size, from = (self + 2 * size - i % size) % size;

		out[i].rank = to;
		out[i].bytes = piece_bytes(seed, me, w[to], i / size);
		out[i].p = om_alloc(out[i].bytes + 1, 1);
		for (uint64_t j = 0; j < out[i].bytes; j++)
			((unsigned char *)out[i].p)[j] = (unsigned char)(me * 31 + i / size + j);
		in[i].rank = from;
		in[i].bytes = piece_bytes(seed, w[from], me, i / size);
		in[i].p = om_alloc(in[i].bytes + 1, 1);
	}
	om_exchange(g, "exchange", out, n, in, n);
	for (uint32_t i = 0; i < n; i++) {
		const unsigned char *p = in[i].p;

		for (uint64_t j = 0; j < in[i].bytes; j++)
			good = good && p[j] == (unsigned char)(w[in[i].rank] * 31 + i / size + j);
		good = good && p[in[i].bytes] == 0;
		crc = om_crc32c(crc, p, in[i].bytes);
	}
	expect(good, "exchange", g, n);
	for (uint32_t i = 0; i < n; i++) {
		free(out[i].p);
		free(in[i].p);
	}
	free(out);
	free(in);
}

/* To both neighbours and to itself at once, large and small, several messages of each tag. */
static void
neighbours(uint64_t seed)
{
	uint32_t n = om_size(OM_PIPELINE), s = om_rank(OM_PIPELINE);
	uint64_t most = 500000, bytes[3];
	unsigned char *out[3], *in = om_alloc(most, 1);
	bool good = true;

	for (int k = 0; k < 3; k++)
		out[k] = om_alloc(most, 1);
	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t k = 0; k < 3; k++) { /* k - 1: to the one before, itself, after */
			bytes[k] = 1 + draw(seed, round, k) % (round ? most : 2000);
			om_sent(k, "sent");
			memset(out[k], (int)(s * 16 + k * 4 + round), bytes[k]);
			om_send((s + n + k - 1) % n, k, "send", out[k], bytes[k]);
		}
		for (uint32_t k = 3; k-- > 0;) {
			uint32_t from = (s + n + 1 - k) % n;

			om_recv(from, k, "receive", in, bytes[k]);
			for (uint64_t j = 0; j < bytes[k]; j++)
				good = good && in[j] == (from * 16 + k * 4 + round) % 256;
		}
	}
	for (uint32_t k = 0; k < 3; k++) {
		om_sent(k, "sent");
		free(out[k]);
	}
	free(in);
	expect(good, "neighbours", OM_PIPELINE, n);
}

static void
of_runtime(uint64_t seed)
{
	uint32_t n = om_size(OM_WORLD), self = om_rank(OM_WORLD), who = draw(seed, 5, 5) % n;
	uint64_t bytes = draw(seed, self, 9) % 3 ? draw(seed, self, 9) % 100000 : 0;
	uint64_t total, each, said = self ? 0 : seed + 1;
	char *mine = om_alloc(bytes + 1, 1), *block, *p;
	bool good = true;

	expect(om_any("any", self == who), "any", OM_WORLD, who);
	expect(!om_any("any", false), "none", OM_WORLD, who);
	om_barrier("barrier");
	om_bcast("broadcast", &said, sizeof said);
	expect(said == seed + 1, "broadcast", OM_WORLD, seed);
	memset(mine, (int)self + 1, bytes);
	block = p = om_gather("gather", mine, bytes, &total);
	for (uint32_t r = 0; !self && r < n; r++) {
		each = draw(seed, r, 9) % 3 ? draw(seed, r, 9) % 100000 : 0;
		for (uint64_t j = 0; good && j < each; j++)
			good = *p++ == (char)(r + 1);
	}
	good = good && (!block || (p == block + total && !*p));
	expect(good && !block == (self != 0), "gather", OM_WORLD, bytes);
	free(block);
	free(mine);
}

/* Steps that all do together, until run.sh ends one of them; each leaves its number in a file. */
static void
steps(bool die)
{
	for (uint64_t step = 1;; step++) {
		char *path = om_text("pid.%u", om_rank(OM_WORLD));
		FILE *f = step == 3 ? fopen(path, "w") : NULL;

		om_err_step(step);
		usleep(1000);
		om_barrier("test of ranks");
		if (f) {
			fprintf(f, "%d\n", (int)getpid());
			fclose(f);
		}
		free(path);
		if (die && step == 5 && om_rank(OM_WORLD) == om_size(OM_WORLD) - 1)
			om_die("test", "as it was told");
	}
}

int
main(int argc, char **argv)
{
	uint64_t seed, all, total;
	char *block;
	int64_t sum[2];

	if (argc < 5)
		return OM_EXIT_USAGE;
	data = (uint32_t)atoi(argv[1]);
	expert = (uint32_t)atoi(argv[2]);
	pipeline = (uint32_t)atoi(argv[3]);
	model.mesh = om_mesh((uint64_t[OM_N_AXES]){ [OM_AXIS_EXPERT] = expert,
	    [OM_AXIS_EXPERT_DATA] = data / expert,
	    [OM_AXIS_PIPELINE] = pipeline });
	om_err_name("comm_check");
	if (argc > 5)
		om_comm_timeout(atof(argv[5]));
	om_comm_start(&model, argv);
	seed = strtoull(argv[4], NULL, 10);
	if (strcmp(argv[4], "bad") == 0) /* all at once: one line */
		om_die("test", "all are bad");
	if (strcmp(argv[4], "wait") == 0 || strcmp(argv[4], "die") == 0)
		steps(argv[4][0] == 'd');
	for (uint64_t i = 0; i < 12; i++) {
		for (int g = 0; g < OM_N_GROUPS; g++) {
			sums((enum om_group)g, seed + i);
			exchange((enum om_group)g, seed + i);
		}
		neighbours(seed + i);
		of_runtime(seed + i);
	}
	sum[0] = (int64_t)failures;
	sum[1] = (int64_t)checks;
	om_all_sum_i64(OM_WORLD, "result", sum, 2);
	all = crc; /* the ranks' own differ */
	if ((block = om_gather("result", &crc, sizeof crc, &total)))
		all = om_crc32c(0, block, total);
	free(block);
	printf("%lld checks, %lld failed, %08llx, threads %u\n", (long long)sum[1],
	    (long long)sum[0], (unsigned long long)all, om_comm_threads());
	om_comm_end();
	return sum[0] ? OM_EXIT_USER : 0;
}
