/*
 * Ranks that are processes of Open MPI. All is done by messages that do not block, so that a wait
 * can say whom it is for and no size of them locks up; every rank forms every sum in the same
 * order.
 */
#define _GNU_SOURCE /* sets of cores */
#include <errno.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "om_rt.h"

#ifndef OM_COMM_PIECE             /* tests make them small */
#define OM_COMM_PIECE (1 << 30)   /* bytes of one message: MPI counts by int */
#define OM_COMM_SCRATCH (4 << 20) /* bytes of what others send to be summed */
#endif
enum { PIECE = OM_COMM_PIECE, SCRATCH = OM_COMM_SCRATCH };

/* What the ranks of one machine show one another. */
struct board {
	atomic_int told; /* one has said why all end */
	struct {
		int pid, rank; /* 0: not to be seen from here */
	} member[];
};

/* Messages under way, and the rank at the other end of each. */
struct flight {
	MPI_Request *request;
	int *peer, n, cap;
	const void *own; /* of a message to this rank itself: its bytes, until they are received */
};

static MPI_Comm all = MPI_COMM_NULL; /* groups are tags in it */
static struct om_mesh mesh;
static uint32_t rank[OM_N_GROUPS], size[OM_N_GROUPS] = {
#define GROUP(NAME, name, axes) 1,
#define AXIS(NAME, name) 1,
#include "group.def"
};
static double timeout = 600;
static struct board *board;
static MPI_Win board_win;
static uint32_t nmembers = 1, members = 1, threads; /* nmembers: that can be seen from here */
static struct flight now, *edge;                    /* of the call that runs; of each tag */
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

/* The rank of the world that is the r-th of a group of this one's. */
static int
world_rank(enum om_group g, uint32_t r)
{
	return (int)om_mesh_member(&mesh, g, rank[OM_WORLD], r);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void
check(int error, const char *what)
{
	char text[MPI_MAX_ERROR_STRING];
	int n;

	if (error == MPI_SUCCESS)
		return;
	MPI_Error_string(error, text, &n);
	om_lost(what, "Open MPI says: %s", text);
}

static void
post(struct flight *f, const char *what, bool send, int peer, int tag, void *p, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += PIECE, f->n++) {
		unsigned char *from = (unsigned char *)p + at;
		int n = (int)(bytes - at < PIECE ? bytes - at : PIECE);

		if (f->n == f->cap) {
			f->cap = f->cap ? 2 * f->cap : 16;
			f->request = realloc(f->request, (size_t)f->cap * sizeof *f->request);
			f->peer = realloc(f->peer, (size_t)f->cap * sizeof *f->peer);
			if (!f->request || !f->peer)
				om_die("memory", "cannot hold %d messages", f->cap);
		}
		f->peer[f->n] = peer;
		check(send ? MPI_Isend(from, n, MPI_BYTE, peer, tag, all, &f->request[f->n])
			   : MPI_Irecv(from, n, MPI_BYTE, peer, tag, all, &f->request[f->n]),
		    what);
	}
}

/* The state of a process, as the kernel's letter; 0: there is none. */
char
om_process_state(int pid)
{
	char path[32], line[512] = "";
	const char *p;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	if ((f = fopen(path, "r"))) {
		if (!fgets(line, sizeof line, f))
			line[0] = 0;
		fclose(f);
	}
	p = strrchr(line, ')'); /* after the name, which may hold anything */
	return p && p[1] ? p[2] : kill(pid, 0) == 0 || errno != ESRCH ? '?' : 0;
}

/* A rank of this machine that is stopped, or gone: has ended or will never run again; -1: none. */
static int
find_rank(bool stopped, int *pid)
{
	for (uint32_t i = 0; i < nmembers; i++) {
		char state;

		if (!(*pid = board->member[i].pid))
			continue;
		state = om_process_state(*pid);
		if (stopped ? state == 'T' || state == 't' : !state || strchr("ZX", state))
			return board->member[i].rank;
	}
	return -1;
}

/* "rank 3 and 5": whom a flight still waits for. */
static void
missing(const struct flight *f, char *text, size_t room)
{
	size_t used = 0;

	text[0] = 0;
	for (int i = 0; i < f->n; i++) {
		int landed = 0;
		bool again = false;

		MPI_Request_get_status(f->request[i], &landed, MPI_STATUS_IGNORE);
		for (int j = 0; j < i; j++)
			again = again || f->peer[j] == f->peer[i];
		if (landed || again || used + 16 > room)
			continue;
		used += (size_t)snprintf(
		    text + used, room - used, "%s%d", used ? ", " : "rank ", f->peer[i]);
	}
}

static _Noreturn void
give_up(const struct flight *f, const char *what)
{
	char whom[200], stopped[100] = "";
	int r, pid;

	missing(f, whom, sizeof whom);
	if ((r = find_rank(true, &pid)) >= 0)
		snprintf(
		    stopped, sizeof stopped, "; rank %d (process %d) is stopped (SIGSTOP)", r, pid);
	om_lost(what, "no answer from %s within %.0f s%s; comm.timeout in run.yaml is the limit",
	    whom, timeout, stopped);
}

/* Waits until all of a flight has landed, asking again and again: ever more rarely, as cores may be
 * shared with the one that is waited for. */
static void
finish(struct flight *f, const char *what)
{
	const double first = om_now();
	double began = first, last = began, looked = began, t;
	const char *was = om_watchdog_at(NULL); /* this has a limit of its own */
	long nap = 20000;                       /* ns */
	int landed, gone = -1, pid = 0;

	for (int i = 0; f->n; i++) {
		check(MPI_Testall(f->n, f->request, &landed, MPI_STATUSES_IGNORE), what);
		if (landed)
			break;
		if (gone >= 0)
			om_lost(what,
			    "rank %d (process %d) is gone: it was killed, or crashed; train again, "
			    "from the last checkpoint",
			    gone, pid);
		if (board && board->told)
			om_lost(what, "another rank has ended");
		if (i < 50) {
			sched_yield();
			continue;
		}
		nanosleep(&(struct timespec){ 0, nap }, NULL);
		nap = nap < 500000 ? 2 * nap : nap;
		t = om_now();
		if (t - last > 5) /* all of them were stopped, and go on */
			began += t - last;
		last = t;
		if (t - looked > 0.2) {
			gone = find_rank(false, &pid);
			looked = t;
		}
		if (t - began > timeout)
			give_up(f, what);
	}
	f->n = 0;
	om_watchdog_at(was);
	om_trace_host(what, first);
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

	for (uint64_t at = 0; ranks > 1 && at < part; at += most) {
		uint64_t m = part - at < most ? part - at : most;
		unsigned char *own = (unsigned char *)x + (self * part + at) * real;

		for (uint32_t r = 0; r < ranks; r++)
			if (r != self)
				post(&now, what, false, world_rank(g, r), g, scratch + r * m * real,
				    m * real);
		for (uint32_t r = 0; r < ranks; r++)
			if (r != self)
				post(&now, what, true, world_rank(g, r), g,
				    (unsigned char *)x + (r * part + at) * real, m * real);
		finish(&now, what);
		memcpy(scratch + self * m * real, own, m * real);
		(real == sizeof(float) ? add_f32 : add_f64)(own, scratch, m, ranks);
	}
}

void
om_all_gather(enum om_group g, const char *what, void *x, uint64_t bytes)
{
	const uint64_t part = bytes / size[g];
	unsigned char *p = x;

	for (uint32_t r = 0; r < size[g]; r++)
		if (r != rank[g])
			post(&now, what, false, world_rank(g, r), g, p + r * part, part);
	for (uint32_t r = 0; r < size[g]; r++)
		if (r != rank[g])
			post(&now, what, true, world_rank(g, r), g, p + rank[g] * part, part);
	finish(&now, what);
}

/* Of numbers of 8 bytes: every rank gets the others' beside its own, rank after rank. */
static void
all_sum(enum om_group g, const char *what, unsigned char *x, uint64_t n, add_up *add)
{
	const uint64_t most = SCRATCH / size[g] / 8;

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
	uint32_t own = 0; /* of out */

	for (uint32_t i = 0; i < nin; i++)
		if (in[i].rank != rank[g])
			post(&now, what, false, world_rank(g, in[i].rank), g, in[i].p, in[i].bytes);
	for (uint32_t i = 0; i < nout; i++)
		if (out[i].rank != rank[g])
			post(&now, what, true, world_rank(g, out[i].rank), g, out[i].p,
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
	finish(&now, what);
}

static struct flight *
edge_of(uint32_t tag)
{
	if (tag >= nedges) {
		uint32_t n = 2 * tag + 16;

		if (!(edge = realloc(edge, n * sizeof *edge)))
			om_die("memory", "cannot hold %u edges", n);
		memset(edge + nedges, 0, (n - nedges) * sizeof *edge);
		nedges = n;
	}
	return &edge[tag];
}

void
om_send(uint32_t stage, uint32_t tag, const char *what, const void *x, uint64_t bytes)
{
	struct flight *f = edge_of(tag);

	if (f->n || f->own)
		om_die(what, "internal error: edge %u has a message under way", tag);
	if (stage == rank[OM_PIPELINE])
		f->own = x;
	else
		post(f, what, true, world_rank(OM_PIPELINE, stage), OM_N_GROUPS + (int)tag,
		    (void *)(uintptr_t)x, bytes);
}

void
om_sent(uint32_t tag, const char *what)
{
	struct flight *f = edge_of(tag);

	if (f->own)
		om_die(what, "internal error: edge %u to this rank itself: nothing received", tag);
	finish(f, what);
}

void
om_recv(uint32_t stage, uint32_t tag, const char *what, void *x, uint64_t bytes)
{
	if (stage == rank[OM_PIPELINE]) {
		struct flight *f = edge_of(tag);

		if (!f->own)
			om_die(
			    what, "internal error: edge %u to this rank itself: nothing sent", tag);
		memcpy(x, f->own, bytes);
		f->own = NULL;
		return;
	}
	post(&now, what, false, world_rank(OM_PIPELINE, stage), OM_N_GROUPS + (int)tag, x, bytes);
	finish(&now, what);
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
		post(&now, what, true, (int)r, OM_WORLD, p, bytes);
	if (rank[OM_WORLD])
		post(&now, what, false, 0, OM_WORLD, p, bytes);
	finish(&now, what);
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
		post(&now, what, true, 0, OM_WORLD, (void *)(uintptr_t)p, bytes);
	} else {
		block = om_alloc(*total + 1, 1);
		if (bytes)
			memcpy(block, p, bytes);
		for (uint32_t r = 1; r < ranks; at += n[r++])
			post(&now, what, false, (int)r, OM_WORLD, block + at, n[r]);
	}
	finish(&now, what);
	free(n);
	return block;
}

void
om_comm_timeout(double seconds)
{
	timeout = seconds;
}

uint32_t
om_comm_threads(void)
{
	return threads;
}

/* ---- start and end --------------------------------------------------------------------------- */

/* How many threads each of this machine's ranks may have, by the cores that they run on. */
static uint32_t
share_cores(MPI_Comm local)
{
	size_t bytes;
	cpu_set_t *own = om_core_set(&bytes); /* as large on all: they are of one kernel */
	unsigned char *each = om_alloc(nmembers, bytes);
	uint32_t n, most = (uint32_t)CPU_COUNT_S(bytes, own);

	MPI_Allgather(own, (int)bytes, MPI_BYTE, each, (int)bytes, MPI_BYTE, local);
	for (uint32_t i = 0; i < nmembers; i++)
		CPU_OR_S(bytes, own, own, (cpu_set_t *)(each + i * bytes));
	n = (uint32_t)CPU_COUNT_S(bytes, own) / nmembers;
	free(own);
	free(each);
	if (n > most)
		n = most;
	return n ? n : 1;
}

/* Hangs up what the ranks of this machine can see of one another. */
static void
share_board(MPI_Comm local)
{
	int self, unit;
	MPI_Aint bytes;
	struct board *b;

	MPI_Comm_rank(local, &self);
	bytes = self ? 0 : (MPI_Aint)(sizeof *b + nmembers * sizeof b->member[0]);
	check(MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, local, &b, &board_win), "start");
	check(MPI_Win_shared_query(board_win, 0, &bytes, &unit, &b), "start");
	if (!self)
		b->told = 0;
	b->member[self].pid = (int)getpid();
	b->member[self].rank = (int)rank[OM_WORLD];
	MPI_Barrier(local);
	board = b;
}

uint32_t
om_comm_members(void)
{
	return members;
}

bool
om_comm_first(void)
{
	const char *r = getenv("OMPI_COMM_WORLD_RANK");

	r = r ? r : getenv("PMIX_RANK");
	return !r || strcmp(r, "0") == 0;
}

void
om_comm_start(const struct om_model *m, char **argv)
{
	uint32_t world = (uint32_t)m->mesh.size[OM_WORLD], r;
	const char *processes, *name;
	int n, got;
	MPI_Comm local;

	if (world == 1)
		return;
	if (!getenv("OMPI_COMM_WORLD_RANK") && !getenv("PMIX_RANK")) {
		if ((processes = om_proc_count(&name)))
			om_die("start",
			    "a launcher that is not Open MPI's started %s processes (%s says so), "
			    "and each would start all ranks; start it once, without a launcher, or "
			    "by Open MPI's mpirun",
			    processes, name);
		om_comm_launch(world, timeout, argv);
	}
	om_comm_enter(timeout);
	if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &got) != MPI_SUCCESS)
		om_die("start", "Open MPI cannot start");
	om_comm_stage(OM_RUNS);
	MPI_Comm_dup(MPI_COMM_WORLD, &all);
	MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
	MPI_Comm_rank(all, &n);
	r = rank[OM_WORLD] = (uint32_t)n;
	MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
	MPI_Comm_size(local, &n);
	nmembers = members = (uint32_t)n;
	share_board(local);
	MPI_Comm_size(all, &n);
	if ((uint32_t)n != world)
		om_die("start",
		    "this trainer is of %u ranks (pipeline %u x data %u), %d were started; start "
		    "%u: mpirun -np %u, or the trainer itself without mpirun",
		    world, (unsigned)m->mesh.size[OM_PIPELINE], (unsigned)m->mesh.size[OM_DATA], n,
		    world, world);
	mesh = m->mesh;
	for (int g = 0; g < OM_N_GROUPS; g++) {
		size[g] = (uint32_t)mesh.size[g];
		rank[g] = (uint32_t)om_mesh_place(&mesh, (enum om_group)g, r);
	}
	scratch = om_alloc(SCRATCH, 1);
	threads = share_cores(local);
	/* from another container's view of processes, theirs would look dead */
	for (uint32_t i = 0; i < nmembers; i++)
		if (!om_process_state(board->member[i].pid))
			nmembers = 0;
	MPI_Comm_free(&local);
	if (r && !freopen("/dev/null", "w", stdout)) /* rank 0 speaks for all */
		om_die("start", "/dev/null: %s", strerror(errno));
}

void
om_comm_end(void)
{
	if (all == MPI_COMM_NULL)
		return;
	om_barrier("end");
	fflush(stdout);
	om_comm_stage(OM_ENDS);
	MPI_Win_free(&board_win);
	MPI_Comm_free(&all);
	MPI_Finalize();
	free(scratch);
}

bool
om_comm_speaks(void)
{
	om_comm_spoke();
	return !board || !atomic_exchange(&board->told, 1);
}

void
om_comm_abort(int status, bool spoke)
{
	if (all == MPI_COMM_NULL)
		exit(status);
	if (!spoke) { /* who spoke is about to end all; it may have its last words to write */
		signal(SIGTERM, SIG_DFL);
		sleep(2);
	}
	MPI_Abort(all, status);
	exit(status);
}
