/*
 * A stand-in for NCCL, beside that for the driver: libnccl.so.2 that moves nothing. What the ranks
 * of a communicator ask of it has to be the same, call by call, or it refuses the call that
 * differs, where NCCL would hang. The environment makes it another one: FAKE_NCCL (its version,
 * 22809), FAKE_NCCL_ERROR (an operation that fails: "AllReduce"), FAKE_NCCL_ASYNC (the rank whose
 * communicators have an error that comes later).
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CALLS = 1 << 16 };
struct shown { /* by all ranks of a communicator */
	_Atomic uint64_t call[CALLS];
};
struct ncclComm {
	char path[128];
	int rank, ranks, splits;
	uint32_t calls;
	uint32_t sent, received; /* of two ranks, each way has its own */
	struct shown *shown;
};
typedef struct ncclComm *ncclComm_t;
typedef struct {
	char internal[128];
} ncclUniqueId;
static char made[64][128];
static int nmade;
static char problem[200];

static void
clean(void)
{
	while (nmade > 0)
		unlink(made[--nmade]);
}

static ncclComm_t
join(const char *path, int ranks, int rank)
{
	ncclComm_t c = calloc(1, sizeof *c);
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	snprintf(c->path, sizeof c->path, "%s", path);
	c->rank = rank;
	c->ranks = ranks;
	if (fd < 0 || ftruncate(fd, sizeof *c->shown) != 0)
		return NULL;
	c->shown = mmap(NULL, sizeof *c->shown, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (!nmade)
		atexit(clean);
	if (nmade < 64)
		snprintf(made[nmade++], sizeof made[0], "%s", path);
	return c;
}

/* The n-th call of this kind: the first rank that comes says what it is. */
static int
meet(ncclComm_t c, uint32_t at, const char *name, size_t n, int type)
{
	uint64_t h = 0xcbf29ce484222325, was = 0;
	const char *fails = getenv("FAKE_NCCL_ERROR");

	if (fails && strcmp(fails, name) == 0) {
		snprintf(problem, sizeof problem, "%s was told to fail", name);
		return 2;
	}
	for (const char *s = name; *s; s++)
		h = (h ^ (unsigned char)*s) * 0x100000001b3;
	h = (h ^ n) * 0x100000001b3;
	h = (h ^ (unsigned)type) * 0x100000001b3;
	if (atomic_compare_exchange_strong(&c->shown->call[at % CALLS], &was, h) || was == h)
		return 0;
	snprintf(problem, sizeof problem,
	    "rank %d of %d: call %u is %s of %zu, another rank's is not", c->rank, c->ranks, at,
	    name, n);
	return 5;
}

int
ncclGetVersion(int *version)
{
	*version = getenv("FAKE_NCCL") ? atoi(getenv("FAKE_NCCL")) : 22809;
	return 0;
}
int
ncclGetUniqueId(ncclUniqueId *id)
{
	snprintf(id->internal, sizeof id->internal, "/dev/shm/om-nccl-%d", (int)getpid());
	return 0;
}
int
ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
	return (*comm = join(id.internal, ranks, rank)) ? 0 : 2;
}
int
ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *new, void *config)
{
	char path[200];

	(void)config;
	*new = NULL;
	comm->splits++;
	if (color < 0)
		return 0;
	snprintf(path, sizeof path, "%s-%d.%d", comm->path, comm->splits, color);
	return (*new = join(path, comm->ranks, key)) ? 0 : 2;
}
int
ncclCommGetAsyncError(ncclComm_t comm, int *error)
{
	const char *rank = getenv("FAKE_NCCL_ASYNC"), *own = getenv("RANK");

	*error = comm->calls && rank && own && strcmp(rank, own) == 0 ? 6 : 0;
	if (*error)
		snprintf(problem, sizeof problem, "a connection broke");
	return 0;
}
const char *
ncclGetErrorString(int error)
{
	static char text[32];

	snprintf(text, sizeof text, "error %d", error);
	return text;
}
const char *
ncclGetLastError(ncclComm_t comm)
{
	(void)comm;
	return problem;
}
int
ncclAllReduce(const void *from, void *to, size_t n, int type, int op, ncclComm_t comm, void *stream)
{
	(void)from, (void)to, (void)op, (void)stream;
	return meet(comm, comm->calls++, "AllReduce", n, type);
}
int
ncclReduceScatter(
    const void *from, void *to, size_t n, int type, int op, ncclComm_t comm, void *stream)
{
	(void)op, (void)stream;
	if ((const char *)to - (const char *)from !=
	    (ptrdiff_t)((size_t)comm->rank * n * (type == 8 ? 8 : 4))) {
		snprintf(problem, sizeof problem, "ReduceScatter: not this rank's part");
		return 4;
	}
	return meet(comm, comm->calls++, "ReduceScatter", n, type);
}
int
ncclAllGather(const void *from, void *to, size_t n, int type, ncclComm_t comm, void *stream)
{
	(void)from, (void)to, (void)stream;
	return meet(comm, comm->calls++, "AllGather", n, type);
}
/* Of a group the sum, which is the same on all ranks where each sends to each other one. */
static struct {
	bool on;
	ncclComm_t comm;
	size_t sent, received;
} group;
static int
in_group(ncclComm_t c, size_t sent, size_t received)
{
	if (group.comm && group.comm != c) {
		snprintf(problem, sizeof problem, "a group of two communicators");
		return 4;
	}
	group.comm = c;
	group.sent += sent;
	group.received += received;
	return 0;
}
int
ncclGroupStart(void)
{
	group.on = true;
	group.comm = NULL;
	group.sent = group.received = 0;
	return 0;
}
int
ncclGroupEnd(void)
{
	group.on = false;
	if (group.sent != group.received) {
		snprintf(problem, sizeof problem, "a group sends %zu and receives %zu", group.sent,
		    group.received);
		return 4;
	}
	return group.comm ? meet(group.comm, group.comm->calls++, "Group", group.sent, 1) : 0;
}
int
ncclSend(const void *from, size_t n, int type, int peer, ncclComm_t comm, void *stream)
{
	(void)from, (void)stream;
	if (group.on)
		return in_group(comm, n, 0);
	return meet(comm, CALLS / 2 + comm->sent++ % (CALLS / 2), peer ? "Up" : "Down", n, type);
}
int
ncclRecv(void *to, size_t n, int type, int peer, ncclComm_t comm, void *stream)
{
	(void)to, (void)stream;
	if (group.on)
		return in_group(comm, 0, n);
	return meet(
	    comm, CALLS / 2 + comm->received++ % (CALLS / 2), peer ? "Down" : "Up", n, type);
}
