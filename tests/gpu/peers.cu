/*
 * The kernels of expert.h on ranks that are processes, each of which maps the others' memory: on a
 * device each where there are as many, else all on one. What was sent and what comes back is
 * compared with expert_ref.h; then a recorded turn gives the same bits each time it is played; then
 * a rank stays away, and one's host gives up.
 * Usage: peers DEVICES [TURNS]; with -t before that: times them, which says something on a device
 * each alone.
 */
#include "expert.h"

/* t tokens in p parts, e experts, top-k, width n, w ranks, c rows, u, blocks */
#define PEERS(NAME, t, p, e, k, n, w, c, u, b)                              \
	OM_EP_MAP(NAME##_map, t, e, k, p, w, c, u, (t) * (k))                   \
	OM_EP_DISPATCH(NAME##_dispatch, t, 5 * (e), k, n, w, c, u, b)       \
	OM_EP_COMBINE(NAME##_combine, t, 5 * (e), k, n, w, c, b)            \
	OM_EP_WEIGHTS(NAME##_weights, t, 5 * (e), k, w, c, u, b)            \
	OM_EP_WEIGHTS_BWD(NAME##_weights_bwd, t, 5 * (e), k, w, c, b)       \
	LAYOUT(NAME, t, p, e, k, n, w, c, u)

#ifdef __CUDACC__
#define LAYOUT(...)
#else
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"
#include "om_rt.h"

struct layout {
	const char *name;
	int64_t t, p, e, k, n, w, c, u;
	void (*map)(const int32_t *, const int32_t *, int32_t *, int32_t *, int32_t *, int32_t *,
	    int64_t *, void *);
	om_ep_rows_fn *dispatch;
	om_ep_combine_fn *combine;
	om_ep_numbers_fn *weights, *weights_bwd;
};
#define LAYOUT(NAME, t, p, e, k, n, w, c, u)                                             \
	static const struct layout NAME = { #NAME, t, p, e, k, n, w, c, u, NAME##_map,    \
		NAME##_dispatch, NAME##_combine, NAME##_weights, NAME##_weights_bwd };
#endif

PEERS(two, 512, 2, 8, 3, 136, 2, 3072, 1, 16)
PEERS(cut, 512, 1, 16, 4, 256, 2, 1200, 16, 16)
PEERS(four, 256, 1, 8, 2, 64, 4, 2048, 1, 4)
PEERS(olmoe, 16384, 4, 64, 8, 2048, 2, 160000, 1, 16)
PEERS(olmoe_8, 16384, 4, 64, 8, 2048, 2, 160000, 1, 8)
PEERS(olmoe_32, 16384, 4, 64, 8, 2048, 2, 160000, 1, 32)
PEERS(olmoe_132, 16384, 4, 64, 8, 2048, 2, 160000, 1, 132)

#ifndef __CUDACC__

enum { RANKS = 4 };
static struct { /* of all processes */
	int results[RANKS][3];
	double seconds[RANKS][8];
	uint64_t size[RANKS];
	int came[64];
} * all;
static int links[RANKS][RANKS]; /* of each process to each other, in order */
static int devices, turns = 3, me, n_ranks, met, passed, failed;
static bool timing;
static const struct om_peers *peers;
static uint32_t *give_up;
static char *memory; /* board, rows, numbers */

const struct om_peers *
om_peers(int group)
{
	(void)group;
	return peers;
}

static void
is(const char *layout, const char *what, bool right)
{
	if (right)
		passed++;
	else
		failed++;
	printf("%-4s %s: %s\n", right ? "ok" : "FAIL", layout, what);
	fflush(stdout);
}

static void
meet(void)
{
	__atomic_fetch_add(&all->came[met], 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&all->came[met], __ATOMIC_SEQ_CST) < n_ranks)
		usleep(200);
	met++;
}

static int
swap_fd(int link, int fd)
{
	char room[2][CMSG_SPACE(sizeof fd)] = { { 0 } }, byte = 0;
	struct iovec io = { &byte, 1 };
	struct msghdr m = { .msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = room[0],
		.msg_controllen = sizeof room[0] };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (sendmsg(link, &m, 0) != 1)
		om_die("peers", "cannot send a descriptor");
	m.msg_control = room[1];
	if (recvmsg(link, &m, 0) != 1 || !(c = CMSG_FIRSTHDR(&m)))
		om_die("peers", "no descriptor came");
	memcpy(&fd, CMSG_DATA(c), sizeof fd);
	return fd;
}

static void
share(const struct layout *l, double limit)
{
	struct om_peers p = { .me = (uint32_t)me,
		.n = (uint32_t)l->w,
		.limit = (uint64_t)(limit * 1e9) };
	int own;
	uint64_t bytes = OM_EP_BOARD + (uint64_t)(l->c * l->n) * 2 + (uint64_t)l->c * 4;
	memory = om_gpu_shared_new(&bytes, &own);
	om_gpu_fill(memory, 0, bytes);
	om_gpu_wait();
	for (int r = 0; r < n_ranks; r++)
		if (r != me) {
			int fd = swap_fd(links[me][r], own);
			p.to[r] = (char *)om_gpu_shared_map(fd, bytes) - memory;
			close(fd);
		}
	close(own);
	p.board = (struct om_board *)memory;
	om_gpu_waiting = memset(om_gpu_locked(sizeof *om_gpu_waiting), 0, sizeof *om_gpu_waiting);
	p.waiting = om_gpu_waiting;
	p.abort = give_up = memset(om_gpu_locked(64), 0, 64);
	void *device = om_gpu_new(sizeof p);
	om_gpu_put(device, &p, sizeof p);
	peers = device;
	om_gpu_wait();
	meet();
}

/* What the kernels of a turn are given. */
struct turn {
	const struct layout *l;
	struct om_ep_ref ref;
	int32_t *idx, *cnt, *row, *src, *map, *off;
	int64_t *cut;
	void *ws;
	om_bf16 *x, *y, *rows;
	float *p, *dp, *numbers;
};

static struct turn
turn_new(const struct layout *l, uint64_t seed)
{
	const int64_t routes = l->t * l->k;
	struct turn t = { .l = l };
	int32_t *cnt = calloc((size_t)(l->p * l->e), 4);
	t.ref = om_ep_ref_new(l->t, l->e, l->k, l->w, l->c, l->u, l->t * l->k, me, seed);
	for (int64_t i = 0; i < routes; i++)
		cnt[i / (routes / l->p) * l->e + t.ref.idx[me * routes + i]]++;
	t.idx = om_check_copy(t.ref.idx + me * routes, (size_t)routes * 4);
	t.cnt = om_check_copy(cnt, (size_t)(l->p * l->e) * 4);
	t.row = om_check_nan((size_t)routes * 4);
	t.src = om_check_nan((size_t)routes * 4);
	t.map = om_check_nan((size_t)l->e * 20);
	t.off = om_check_nan((size_t)(l->e + 1) * 4);
	t.cut = om_check_copy((int64_t[2]){ 0, 0 }, 16);
	t.ws = om_check_nan((size_t)(l->p * OM_ROUTE_MOST * l->e) * 4);
	t.x = om_check_bf16(l->t * l->n, seed, me, 1);
	t.y = om_check_nan((size_t)(l->t * l->n) * 2);
	t.p = om_check_f32(routes, seed, 10 + me, 1);
	t.dp = om_check_nan((size_t)routes * 4);
	t.rows = (om_bf16 *)(memory + OM_EP_BOARD);
	t.numbers = (float *)(t.rows + l->c * l->n);
	free(cnt);
	return t;
}

static void
there(struct turn *t)
{
	const struct layout *l = t->l;
	l->map(t->idx, t->cnt, t->row, t->src, t->map, t->off, t->cut, t->ws);
	l->dispatch(t->x, t->idx, t->row, t->src, t->map, t->rows);
	l->weights(t->p, t->idx, t->row, t->src, t->map, t->numbers);
}

static void
back(struct turn *t)
{
	t->l->combine(t->rows, t->idx, t->row, t->map, t->y);
	t->l->weights_bwd(t->numbers, t->idx, t->row, t->src, t->map, t->dp);
}

static void
there_and_back(void *t)
{
	there(t);
	back(t);
}

static void
one_turn(const struct layout *l, uint64_t seed, int right[3])
{
	struct turn t = turn_new(l, seed);
	const int64_t routes = l->t * l->k, here = l->e / l->w;
	const size_t n_rows = (size_t)(l->c * l->n);
	int32_t *row = om_alloc((size_t)routes, 4), off[OM_PEERS_COUNTS + 1];
	om_bf16 *rows = om_alloc(n_rows, 2), *y = om_alloc((size_t)(l->t * l->n), 2);
	float *numbers = om_alloc((size_t)l->c, 4), *dp = om_alloc((size_t)routes, 4);
	int64_t cut[2];
	om_gpu_fill(t.rows, 0xff, n_rows * 2);
	there(&t);
	om_check_read(row, t.row, (size_t)routes * 4);
	om_check_read(off, t.off, (size_t)(here + 1) * 4);
	om_check_read(cut, t.cut, 16);
	right[0] &= !memcmp(row, t.ref.row + me * routes, (size_t)routes * 4) &&
		    !memcmp(off, t.ref.off, (size_t)(here + 1) * 4) && cut[0] == t.ref.cut &&
		    cut[1] == routes;
	om_check_read(rows, t.rows, n_rows * 2);
	om_check_read(numbers, t.numbers, (size_t)l->c * 4);
	for (int64_t i = 0; i < l->w * routes; i++) {
		const int64_t r = t.ref.row[i], from = i / routes;
		if (t.ref.idx[i] / here != me || r < 0)
			continue;
		right[1] &= numbers[r] == (float)om_unit(seed, 10 + (int)from, i % routes);
		for (int64_t j = 0; j < l->n; j += 7)
			right[1] &= om_bf16_f32(rows[r * l->n + j]) ==
				    om_unit_bf16(seed, (int)from, i % routes / l->k * l->n + j);
	}
	/* what comes back is the token as often as it was kept */
	back(&t);
	om_check_read(y, t.y, (size_t)(l->t * l->n) * 2);
	om_check_read(dp, t.dp, (size_t)routes * 4);
	for (int64_t i = 0; i < l->t; i++) {
		int64_t kept = 0;
		for (int64_t a = i * l->k; a < (i + 1) * l->k; a++) {
			const bool is = t.ref.row[me * routes + a] >= 0;
			kept += is;
			right[2] &= dp[a] == (is ? (float)om_unit(seed, 10 + me, a) : 0);
		}
		for (int64_t j = 0; j < l->n; j++) {
			float want = (float)kept * om_unit_bf16(seed, me, i * l->n + j);
			float got = om_bf16_f32(y[i * l->n + j]);
			float diff = got > want ? got - want : want - got;
			right[2] &= diff <= (want > 0 ? want : -want) / 256;
		}
	}
	om_check_end();
	om_ep_ref_free(&t.ref);
	free(row);
	free(rows);
	free(y);
	free(numbers);
	free(dp);
}

static uint64_t
sum_of(const void *device, size_t bytes)
{
	unsigned char *host = om_alloc(bytes, 1);
	uint64_t h = 1469598103934665603u;
	om_check_read(host, device, bytes);
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ host[i]) * 1099511628211u;
	free(host);
	return h;
}

static double
now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void
checked(const struct layout *l, int right[3])
{
	share(l, 60);
	for (int i = 0; i < turns; i++)
		one_turn(l, (uint64_t)i + 1, right);
}

/* A recorded turn, played often. */
static void
recorded(const struct layout *l, int right[3])
{
	share(l, 60);
	struct turn t = turn_new(l, 5);
	struct om_gpu_graph *g = om_gpu_record(there_and_back, &t, "turn", 1, 0);
	uint64_t first = 0;
	for (int i = 0; i < 8 * turns; i++) {
		om_gpu_fill(t.y, 0xff, (size_t)(l->t * l->n) * 2);
		for (int k = 0; k < 3; k++)
			om_gpu_play(g);
		uint64_t sum = sum_of(t.y, (size_t)(l->t * l->n) * 2) ^
			       sum_of(t.dp, (size_t)(l->t * l->k) * 4);
		right[0] &= !i || sum == first;
		first = sum;
	}
}

/* The last rank is missed; or the first one's host gives up. */
static void
missed(const struct layout *l, int right[3])
{
	share(l, 1);
	struct turn t = turn_new(l, 6);
	const double begun = now();
	if (me < n_ranks - 1) {
		there_and_back(&t);
		int32_t ignored;
		/* waits, and does not end the process here */
		struct om_waiting *w = om_gpu_waiting;
		om_gpu_waiting = NULL;
		om_check_read(&ignored, t.row, 4);
		right[0] &= w->lost == 1 && w->rank == (uint32_t)n_ranks - 1;
		right[1] &= now() - begun > 0.9 && now() - begun < 8;
	}
	meet();
}

static void
given_up(const struct layout *l, int right[3])
{
	share(l, 60);
	struct turn t = turn_new(l, 6);
	const double begun = now();
	if (me < n_ranks - 1) {
		there_and_back(&t);
		usleep(300000);
		__atomic_store_n(give_up, 1, __ATOMIC_SEQ_CST);
		om_gpu_wait();
		right[0] &= !om_gpu_waiting->lost && now() - begun < 8;
	}
	meet();
}

/* Both ranks send at once, then both read; off-rank bytes. */
static void
timed(const struct layout *l, int right[3])
{
	enum { TIMES = 10 };
	share(l, 60);
	struct turn t = turn_new(l, 1);
	for (int what = 0; what < 5; what++) {
		struct om_gpu_mark *a = NULL;
		l->map(t.idx, t.cnt, t.row, t.src, t.map, t.off, t.cut, t.ws);
		for (int i = -2; i < TIMES; i++) {
			if (!i)
				a = om_gpu_mark();
			if (what == 0)
				l->map(t.idx, t.cnt, t.row, t.src, t.map, t.off, t.cut, t.ws);
			if (what == 1)
				l->dispatch(t.x, t.idx, t.row, t.src, t.map, t.rows);
			if (what == 2)
				l->combine(t.rows, t.idx, t.row, t.map, t.y);
			if (what == 3)
				l->weights(t.p, t.idx, t.row, t.src, t.map, t.numbers);
			if (what == 4)
				l->weights_bwd(t.numbers, t.idx, t.row, t.src, t.map, t.dp);
		}
		all->seconds[me][what] = om_gpu_between(a, om_gpu_mark()) / TIMES;
	}
	(void)right;
}

/* A process for each rank of a layout does it; whether it was right for all of them. */
static void
ranks(const struct layout *l, void (*f)(const struct layout *, int *), const char *const what[3])
{
	int status, bad = 0;
	n_ranks = (int)l->w;
	for (int i = 0; i < n_ranks; i++)
		for (int k = 0; k < i; k++) {
			int pair[2];
			if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
				exit(2);
			links[i][k] = pair[0];
			links[k][i] = pair[1];
		}
	memset(all, 0, sizeof *all);
	for (me = 0; me < n_ranks; me++) {
		if (fork())
			continue;
		char number[16];
		snprintf(number, sizeof number, "%d", devices >= n_ranks ? me : 0);
		setenv("CUDA_VISIBLE_DEVICES", number, 1);
		alarm(90);
		om_gpu_start();
		int right[3] = { 1, 1, 1 };
		f(l, right);
		memcpy(all->results[me], right, sizeof right);
		exit(0);
	}
	while (wait(&status) > 0)
		bad += status != 0;
	for (int i = 0; i < n_ranks; i++)
		for (int k = 0; k < i; k++) {
			close(links[i][k]);
			close(links[k][i]);
		}
	for (int k = 0; k < 3 && what[k]; k++) {
		bool right = !bad;
		for (int i = 0; i < n_ranks; i++)
			right = right && all->results[i][k];
		is(l->name, what[k], right);
	}
}

static void
times(const struct layout *l)
{
	static const char *const what[] = { "map", "dispatch", "combine", "weights",
		"weights_bwd" };
	struct om_ep_ref ref = om_ep_ref_new(l->t, l->e, l->k, l->w, l->c, l->u, l->t * l->k, 0, 1);
	double off[2] = { 0 };
	for (int64_t i = 0; i < l->w * l->t * l->k; i++)
		off[i / (l->t * l->k)] +=
		    ref.row[i] >= 0 && ref.idx[i] / (l->e / l->w) != i / (l->t * l->k);
	om_ep_ref_free(&ref);
	ranks(l, timed, (const char *const[3]){ "timed" });
	for (int k = 0; k < 5; k++) {
		const double s = all->seconds[0][k] > all->seconds[1][k] ? all->seconds[0][k]
									 : all->seconds[1][k];
		printf("%-10s %-12s %9.1f us", l->name, what[k], s * 1e6);
		if (k == 1 || k == 2)
			printf(" %7.1f GB/s off the rank", off[0] * (double)l->n * 2 / s / 1e9);
		printf("\n");
	}
}

int
main(int argc, char **argv)
{
	static const char *const sent[] = { "rows are found", "rows are there", "rows are back" };
	int at = 1;
	if (at < argc && !strcmp(argv[at], "-t"))
		timing = true, at++;
	if (at == argc)
		return 2;
	devices = atoi(argv[at++]);
	if (at < argc)
		turns = atoi(argv[at]);
	all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ranks(&two, checked, sent);
	ranks(&cut, checked, sent);
	ranks(&four, checked, sent);
	ranks(&two, recorded, (const char *const[3]){ "the same bits each time" });
	ranks(&cut, recorded, (const char *const[3]){ "the same bits each time" });
	ranks(&two, missed, (const char *const[3]){ "a rank that is missed is named", "in time" });
	ranks(&two, given_up, (const char *const[3]){ "the host gives up" });
	if (timing) {
		times(&olmoe_8);
		times(&olmoe);
		times(&olmoe_32);
		times(&olmoe_132);
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
#endif
