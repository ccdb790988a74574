/*
 * Ranks that are processes of Open MPI. Messages do not block, so that a wait can say whom it is
 * for, and no size of them locks up.
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
#include "om_trace.h"
#include "ranks.h"

#ifndef OM_COMM_PIECE           /* tests make it small */
#define OM_COMM_PIECE (1 << 30) /* bytes of one message: MPI counts by int */
#endif
enum { PIECE = OM_COMM_PIECE };

/* What the ranks of one machine show one another. */
struct board {
	atomic_int told; /* one has said why all end */
	struct {
		int pid, rank; /* 0: not to be seen from here */
	} member[];
};

/* Messages under way, and the rank at the other end of each. */
struct om_flight {
	MPI_Request *request;
	int *peer, n, cap;
};

static MPI_Comm all = MPI_COMM_NULL; /* groups are tags in it */
static double timeout = 600;
static struct board *board;
static MPI_Win board_win;
static uint32_t nmembers = 1, members = 1, threads; /* nmembers: that can be seen from here */

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

struct om_flight *
om_flight_new(void)
{
	return om_alloc(1, sizeof(struct om_flight));
}

bool
om_flight_up(const struct om_flight *f)
{
	return f->n;
}

void
om_post(struct om_flight *f, const char *what, bool send, uint32_t rank, uint32_t tag, void *p,
    uint64_t bytes)
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
		f->peer[f->n] = (int)rank;
		check(
		    send
			? MPI_Isend(from, n, MPI_BYTE, (int)rank, (int)tag, all, &f->request[f->n])
			: MPI_Irecv(from, n, MPI_BYTE, (int)rank, (int)tag, all, &f->request[f->n]),
		    what);
	}
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
missing(const struct om_flight *f, char *text, size_t room)
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
give_up(const struct om_flight *f, const char *what)
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
void
om_land(struct om_flight *f, const char *what)
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

const struct om_far *
om_far(const void *x)
{
	(void)x;
	return NULL;
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
	b->member[self].rank = (int)om_rank(OM_WORLD);
	MPI_Barrier(local);
	board = b;
}

const char *
om_comm_library(void)
{
	return "";
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
	uint32_t world = (uint32_t)m->mesh.size[OM_WORLD];
	const char *processes, *name, *r;
	int n, got;
	MPI_Comm local;

	om_ranks_set(&m->mesh, 0);
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
	r = getenv("OMPI_COMM_WORLD_RANK");
	r = r ? r : getenv("PMIX_RANK");
	om_comm_enter((uint32_t)strtoul(r, NULL, 10), timeout);
	if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &got) != MPI_SUCCESS)
		om_die("start", "Open MPI cannot start");
	om_comm_stage(OM_RUNS);
	MPI_Comm_dup(MPI_COMM_WORLD, &all);
	MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
	MPI_Comm_rank(all, &n);
	om_ranks_set(&m->mesh, (uint32_t)n);
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
	threads = share_cores(local);
	/* from another container's view of processes, theirs would look dead */
	for (uint32_t i = 0; i < nmembers; i++)
		if (!om_process_state(board->member[i].pid))
			nmembers = 0;
	MPI_Comm_free(&local);
	if (om_rank(OM_WORLD) && !freopen("/dev/null", "w", stdout)) /* rank 0 speaks for all */
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
}

bool
om_comm_speaks(void)
{
	(void)om_comm_spoke();
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
