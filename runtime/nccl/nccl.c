/*
 * What ranks do together in the device's memory, by NCCL: on the stream whose turn it is, so that a
 * recording takes it in. The library is opened when the device is taken. Algorithm and protocol are
 * fixed, so that the same sums are formed in the same order in every run on the same machines.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "gpu.h"
#include "om_gpu.h"
#include "om_rt.h"
#include "ranks.h"

/* Of nccl.h, whose numbers stay the same: a trainer builds where there is none. */
typedef struct ncclComm *ncclComm_t;
typedef struct {
	char internal[128];
} ncclUniqueId;
enum { NCCL_UINT8 = 1, NCCL_INT64 = 4, NCCL_FLOAT32 = 7, NCCL_FLOAT64 = 8 };
enum { NCCL_SUM = 0, NCCL_NO_COLOR = -1, NCCL_IN_PROGRESS = 7, NCCL_OLDEST = 21800 };

static struct {
	int (*ncclGetVersion)(int *version);
	int (*ncclGetUniqueId)(ncclUniqueId *id);
	int (*ncclCommInitRank)(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
	int (*ncclCommSplit)(ncclComm_t comm, int color, int key, ncclComm_t *new, void *config);
	int (*ncclCommGetAsyncError)(ncclComm_t comm, int *error);
	const char *(*ncclGetErrorString)(int error);
	const char *(*ncclGetLastError)(ncclComm_t comm);
	int (*ncclAllReduce)(
	    const void *from, void *to, size_t n, int type, int op, ncclComm_t comm, void *stream);
	int (*ncclReduceScatter)(
	    const void *from, void *to, size_t n, int type, int op, ncclComm_t comm, void *stream);
	int (*ncclAllGather)(
	    const void *from, void *to, size_t n, int type, ncclComm_t comm, void *stream);
	int (*ncclSend)(
	    const void *from, size_t n, int type, int peer, ncclComm_t comm, void *stream);
	int (*ncclRecv)(void *to, size_t n, int type, int peer, ncclComm_t comm, void *stream);
	int (*ncclGroupStart)(void);
	int (*ncclGroupEnd)(void);
} nccl;
/* clang-format off */
#define FUNCTIONS(F)                                                                            \
	F(ncclGetVersion) F(ncclGetUniqueId) F(ncclCommInitRank) F(ncclCommSplit)               \
	F(ncclCommGetAsyncError) F(ncclGetErrorString) F(ncclGetLastError)                      \
	F(ncclAllReduce) F(ncclReduceScatter) F(ncclAllGather) F(ncclSend) F(ncclRecv)          \
	F(ncclGroupStart) F(ncclGroupEnd)
/* clang-format on */
#ifdef OM_NCCL_LINKED /* its archive, make STATIC=1 */
#define DECLARE(f) extern void f(void);
FUNCTIONS(DECLARE)
#define ADDRESS(f) (void (*)(void)) f
#else
#define ADDRESS(f) NULL
#endif
#define FUNCTION(f) { #f, offsetof(__typeof__(nccl), f), ADDRESS(f) },
static const struct {
	const char *name;
	size_t at;
	void (*linked)(void);
} functions[] = { FUNCTIONS(FUNCTION) };

/* Of an edge of the pipeline: its own ranks and stream, so that no message waits for another's. */
struct edge {
	ncclComm_t comm; /* NULL: this rank is at neither end */
	int peer;        /* the other end's place in it */
	bool sends;      /* and not receives */
	struct om_gpu_side *side;
};
static ncclComm_t comm[OM_N_GROUPS]; /* NULL: of a group of one */
static struct edge *edges;           /* by tag */
static uint32_t nedges;
static atomic_bool watched; /* they are all there */
static int version;

static const char *
version_text(int v)
{
	static char text[2][24];
	static int turn;
	char *t = text[turn = !turn];

	snprintf(t, sizeof text[0], "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
	return t;
}

const char *
om_comm_library(void)
{
	static char text[32];

	if (version)
		snprintf(text, sizeof text, "NCCL %s", version_text(version));
	return text;
}

static void
check(int error, ncclComm_t c, const char *what)
{
	const char *more;

	if (!error || error == NCCL_IN_PROGRESS)
		return;
	more = nccl.ncclGetLastError(c);
	om_lost(what, "NCCL %s says: %s%s%s; NCCL_DEBUG=WARN in the environment says more",
	    version_text(version), nccl.ncclGetErrorString(error), more && *more ? ": " : "",
	    more ? more : "");
}

/* ---- start ----------------------------------------------------------------------------------- */

/* One beside the trainer, or the system's; NULL: it is linked in, or there is none. */
static void *
find_library(void)
{
	char beside[4200] = "";
	ssize_t n = readlink("/proc/self/exe", beside, 4096);
	char *slash = n > 0 ? strrchr(beside, '/') : NULL;
	void *lib = NULL;

	if (functions[0].linked)
		return NULL;
	if (slash) {
		strcpy(slash + 1, "libnccl.so.2");
		if (access(beside, F_OK) == 0)
			lib = dlopen(beside, RTLD_NOW | RTLD_LOCAL);
	}
	return lib ? lib : dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
}

/* False: the library lacks it. */
static bool
find_function(void *lib, size_t i)
{
	void **f = (void **)((char *)&nccl + functions[i].at);

	if (functions[i].linked)
		memcpy(f, &functions[i].linked, sizeof *f);
	else
		*f = lib ? dlsym(lib, functions[i].name) : NULL;
	return *f;
}

void
om_nccl_version(char needs[64], char here[64])
{
	int v = 0;

	if (find_function(find_library(), 0) && !nccl.ncclGetVersion(&v))
		snprintf(here, 64, "NCCL %s", version_text(v));
	else
		snprintf(here, 64, "no NCCL");
	snprintf(needs, 64, "NCCL %s or later", version_text(NCCL_OLDEST));
}

static void
open_library(void)
{
	void *lib = find_library();
	const char *why = lib ? "" : om_text("%s", dlerror());

	if (!lib && !functions[0].linked)
		om_die("NCCL",
		    "this trainer is of %u ranks, which need NCCL: %s; install it (libnccl2, or "
		    "pip's nvidia-nccl-cu13) and put its folder into LD_LIBRARY_PATH, or "
		    "libnccl.so.2 beside the trainer%s",
		    om_size(OM_WORLD), why, om_lacks());
	for (size_t i = 0; i < OM_LEN(functions); i++)
		if (!find_function(lib, i))
			om_die("NCCL", "libnccl.so.2 lacks %s; install NCCL %s or later%s",
			    functions[i].name, version_text(NCCL_OLDEST), om_lacks());
	if (nccl.ncclGetVersion(&version) || version < NCCL_OLDEST)
		om_die("NCCL", "libnccl.so.2 is NCCL %s; install %s or later%s",
		    version_text(version), version_text(NCCL_OLDEST), om_lacks());
}

/* What NCCL and the device of each rank are, before any of them waits for another one there. */
struct kit {
	int32_t version;
	char gpu[64], bus[32];
	char host[64]; /* what NCCL takes for a host: no two of its ranks may have one GPU */
};

static void
compare_kits(void)
{
	const uint32_t world = om_size(OM_WORLD), self = om_rank(OM_WORLD);
	struct kit *all = om_alloc(world, sizeof *all), *own = &all[self];
	const char *host = getenv("NCCL_HOSTID");

	own->version = version;
	snprintf(own->gpu, sizeof own->gpu, "%s", om_gpu_model());
	snprintf(own->bus, sizeof own->bus, "%s", om_gpu_bus());
	if (host)
		snprintf(own->host, sizeof own->host, "%s", host);
	else
		snprintf(own->host, sizeof own->host, "%016llx",
		    (unsigned long long)om_seat(self)->machine);
	om_all_gather(OM_WORLD, "devices", all, world * sizeof *all);
	for (uint32_t r = 0; r < world; r++) {
		if (all[r].version != all[0].version)
			om_die("NCCL", "%s has NCCL %s, %s %s; give all ranks the same",
			    om_seat_text(0), version_text(all[0].version), om_seat_text(r),
			    version_text(all[r].version));
		if (strcmp(all[r].gpu, all[0].gpu) != 0)
			om_die("device", "%s has an %s, %s an %s; give all ranks the same",
			    om_seat_text(0), all[0].gpu, om_seat_text(r), all[r].gpu);
		for (uint32_t k = 0; k < r; k++)
			if (strcmp(all[k].host, all[r].host) == 0 &&
			    strcmp(all[k].bus, all[r].bus) == 0)
				om_die("device",
				    "%s and %s have the same GPU (%s); give each its own: "
				    "LOCAL_RANK, or CUDA_VISIBLE_DEVICES of each process",
				    om_seat_text(k), om_seat_text(r), all[r].bus);
	}
	free(all);
}

/*
 * Members of a group that an earlier one has too need no communicator of their own; but that by
 * which rows go between experts in a pass is in order with that pass, as sums of gradients are not.
 */
static enum om_group
same_as(enum om_group g)
{
	if (g == OM_EXPERT && !om_reaches)
		return g;
	for (enum om_group h = OM_WORLD; h < g; h++) {
		uint32_t i = 0;

		if (h == OM_EXPERT && !om_reaches)
			continue;

		while (om_size(h) == om_size(g) && i < om_size(g) &&
		       om_ranks_member(h, i) == om_ranks_member(g, i))
			i++;
		if (i == om_size(g))
			return h;
	}
	return g;
}

/* The stage whose rank does this with messages of a tag; -1: none does. */
static int
end_of_edge(const struct om_model *models, uint32_t tag, enum om_action_kind kind)
{
	for (uint32_t s = 0; s < om_size(OM_PIPELINE); s++)
		for (uint32_t k = 0; k < models[s].nsteps; k++)
			for (uint32_t i = 0; i < models[s].step[k].nactions; i++) {
				const struct om_action *a = &models[s].step[k].action[i];

				if (a->kind == kind && a->tag == tag)
					return (int)s;
			}
	return -1;
}

static void
join_edges(const struct om_model *models)
{
	const int stage = (int)om_rank(OM_PIPELINE);

	for (uint32_t s = 0; s < om_size(OM_PIPELINE); s++)
		for (uint32_t k = 0; k < models[s].nsteps; k++)
			for (uint32_t i = 0; i < models[s].step[k].nactions; i++) {
				const struct om_action *a = &models[s].step[k].action[i];

				if (a->kind != OM_PASS && a->tag >= nedges)
					nedges = a->tag + 1u;
			}
	edges = om_alloc(nedges, sizeof *edges);
	for (uint32_t t = 0; t < nedges; t++) {
		const int from = end_of_edge(models, t, OM_SEND),
			  to = end_of_edge(models, t, OM_RECEIVE);
		const bool at = stage == from || stage == to;

		if (from < 0 || to < 0 || from == to)
			continue;
		check(nccl.ncclCommSplit(
			  comm[OM_PIPELINE], at ? 0 : NCCL_NO_COLOR, stage, &edges[t].comm, NULL),
		    comm[OM_PIPELINE], "start");
		if (!at)
			continue;
		edges[t].sends = stage == from;
		edges[t].peer = (stage == from ? to : from) > stage;
		edges[t].side = om_gpu_side();
	}
}

/*
 * Ranks connect when they first use what they have in common, and the host waits for the others
 * then: here, in one order.
 */
static void
connect_all(void)
{
	double *x = om_gpu_new(sizeof *x);

	om_gpu_fill(x, 0, sizeof *x);
	for (int g = 0; g < OM_N_GROUPS; g++)
		if (comm[g])
			check(nccl.ncclAllReduce(
				  x, x, 1, NCCL_FLOAT64, NCCL_SUM, comm[g], om_gpu_stream()),
			    comm[g], "start");
	for (uint32_t t = 0; t < nedges; t++) {
		const struct edge *e = &edges[t];

		if (e->comm && e->sends)
			check(nccl.ncclSend(x, 1, NCCL_UINT8, e->peer, e->comm, om_gpu_stream()),
			    e->comm, "start");
		else if (e->comm)
			check(nccl.ncclRecv(x, 1, NCCL_UINT8, e->peer, e->comm, om_gpu_stream()),
			    e->comm, "start");
	}
	check(nccl.ncclGroupStart(), NULL, "start");
	for (uint32_t r = 0; !om_reaches && r < om_size(OM_EXPERT); r++) {
		if (r == om_rank(OM_EXPERT))
			continue;
		check(nccl.ncclSend(x, 1, NCCL_UINT8, (int)r, comm[OM_EXPERT], om_gpu_stream()),
		    comm[OM_EXPERT], "start");
		check(nccl.ncclRecv(x, 1, NCCL_UINT8, (int)r, comm[OM_EXPERT], om_gpu_stream()),
		    comm[OM_EXPERT], "start");
	}
	check(nccl.ncclGroupEnd(), NULL, "start");
	om_gpu_wait();
	om_gpu_free(x);
}

/*
 * An error that a device's wait would never end by. A rank that is gone is one: whoever knows which
 * has some seconds to say it.
 */
static void
look(void)
{
	enum { PATIENCE = 3 };
	static double since;

	for (int g = 0; watched && g < OM_N_GROUPS; g++) {
		int error = 0;

		if (!comm[g] || nccl.ncclCommGetAsyncError(comm[g], &error) || !error ||
		    error == NCCL_IN_PROGRESS)
			continue;
		since = since > 0 ? since : om_now();
		if (om_now() - since > PATIENCE)
			check(error, comm[g], "NCCL");
	}
}

void
om_nccl_start(const struct om_model *models)
{
	ncclUniqueId id;

	om_agree("trainer", models->manifest, strlen(models->manifest));
	setenv("NCCL_ALGO", "Ring", 0);
	setenv("NCCL_PROTO", "Simple", 0);
	open_library();
	compare_kits();
	om_abort_word_is(om_gpu_locked(sizeof(uint32_t)));
	*om_abort_word() = 0;
	if (!om_rank(OM_WORLD))
		check(nccl.ncclGetUniqueId(&id), NULL, "start");
	om_bcast("start", &id, sizeof id);
	check(nccl.ncclCommInitRank(
		  &comm[OM_WORLD], (int)om_size(OM_WORLD), id, (int)om_rank(OM_WORLD)),
	    NULL, "start");
	for (enum om_group g = OM_WORLD + 1; g < OM_N_GROUPS; g++) {
		enum om_group same = same_as(g);

		if (om_size(g) == 1)
			continue;
		if (same != g)
			comm[g] = comm[same];
		else
			check(nccl.ncclCommSplit(comm[OM_WORLD], (int)om_ranks_member(g, 0),
				  (int)om_rank(g), &comm[g], NULL),
			    comm[OM_WORLD], "start");
	}
	join_edges(models);
	om_life_each(look);
	watched = true;
	connect_all();
}

/* ---- operations ------------------------------------------------------------------------------ */

static void
reduce_scatter(enum om_group g, const char *what, void *x, uint64_t n, size_t real)
{
	const uint64_t part = n / om_size(g);

	if (comm[g])
		check(nccl.ncclReduceScatter(x, (char *)x + om_rank(g) * part * real, part,
			  real == sizeof(float) ? NCCL_FLOAT32 : NCCL_FLOAT64, NCCL_SUM, comm[g],
			  om_gpu_stream()),
		    comm[g], what);
}

static void
all_gather(enum om_group g, const char *what, void *x, uint64_t bytes)
{
	const uint64_t part = bytes / om_size(g);

	if (comm[g])
		check(nccl.ncclAllGather((char *)x + om_rank(g) * part, x, part, NCCL_UINT8,
			  comm[g], om_gpu_stream()),
		    comm[g], what);
}

static void
exchange(enum om_group g, const char *what, const struct om_piece *out, uint32_t nout,
    const struct om_piece *in, uint32_t nin)
{
	check(nccl.ncclGroupStart(), comm[g], what);
	for (uint32_t i = 0; i < nout; i++)
		check(nccl.ncclSend(out[i].p, out[i].bytes, NCCL_UINT8, (int)out[i].rank, comm[g],
			  om_gpu_stream()),
		    comm[g], what);
	for (uint32_t i = 0; i < nin; i++)
		check(nccl.ncclRecv(in[i].p, in[i].bytes, NCCL_UINT8, (int)in[i].rank, comm[g],
			  om_gpu_stream()),
		    comm[g], what);
	check(nccl.ncclGroupEnd(), comm[g], what);
}

static void
sum(enum om_group g, const char *what, void *x, uint64_t n, bool whole)
{
	if (comm[g])
		check(nccl.ncclAllReduce(x, x, n, whole ? NCCL_INT64 : NCCL_FLOAT64, NCCL_SUM,
			  comm[g], om_gpu_stream()),
		    comm[g], what);
}

static void
send_to(uint32_t rank, uint32_t tag, const char *what, const void *x, uint64_t bytes)
{
	struct edge *e = &edges[tag];

	(void)rank;
	check(nccl.ncclSend(x, bytes, NCCL_UINT8, e->peer, e->comm, om_gpu_side_begin(e->side)),
	    e->comm, what);
	om_gpu_side_end(e->side);
}

static void
sent(uint32_t tag, const char *what)
{
	(void)what;
	if (tag < nedges && edges[tag].side)
		om_gpu_side_wait(edges[tag].side);
}

static void
receive(uint32_t rank, uint32_t tag, const char *what, void *x, uint64_t bytes)
{
	struct edge *e = &edges[tag];

	(void)rank;
	check(nccl.ncclRecv(x, bytes, NCCL_UINT8, e->peer, e->comm, om_gpu_side_begin(e->side)),
	    e->comm, what);
	om_gpu_side_end(e->side);
	om_gpu_side_wait(e->side);
}

const struct om_far *
om_far(const void *x)
{
	static const struct om_far far = { reduce_scatter, all_gather, exchange, sum, send_to, sent,
		receive, om_gpu_copy };

	return om_arena_has(x) ? &far : NULL;
}
