/*
 * What trainers of several ranks have, whatever carries their messages: the operations of om_comm.h
 * on memory of the host (ranks.c), and a trainer that starts its ranks itself (launch.c). The
 * folder beside this one, mpi or nccl, has the rest: how ranks meet and end, these messages, and
 * what a device does with memory of its own.
 */
#ifndef RANKS_H
#define RANKS_H

#include "om_comm.h"

/* ---- ranks.c --------------------------------------------------------------------------------- */

/* The layout is known, and which of its ranks this one is. */
void om_ranks_set(const struct om_mesh *mesh, uint32_t rank);
uint32_t om_ranks_member(enum om_group g, uint32_t r); /* the rank of the world that it is */

/*
 * ---- FOLDER/comm.c: messages between ranks of the world. Those of one tag between two ranks
 * arrive in the order in which both have posted them; their bytes stay until all of the flight has
 * landed.
 */
struct om_flight;
struct om_flight *om_flight_new(void);
bool om_flight_up(const struct om_flight *f); /* some of it was posted since it landed last */
void om_post(struct om_flight *f, const char *what, bool send, uint32_t rank, uint32_t tag, void *p,
    uint64_t bytes);
void
om_land(struct om_flight *f, const char *what); /* waits; ends the process where it is in vain */

/* The same operations on memory of a device, in order with what that does. */
struct om_far {
	void (*reduce_scatter)(enum om_group g, const char *what, void *x, uint64_t n, size_t real);
	void (*all_gather)(enum om_group g, const char *what, void *x, uint64_t bytes);
	void (*exchange)(enum om_group g, const char *what, const struct om_piece *out,
	    uint32_t nout, const struct om_piece *in, uint32_t nin);
	void (*sum)(enum om_group g, const char *what, void *x, uint64_t n, bool whole);
	void (*send)(uint32_t rank, uint32_t tag, const char *what, const void *x, uint64_t bytes);
	void (*sent)(uint32_t tag, const char *what);
	void (*recv)(uint32_t rank, uint32_t tag, const char *what, void *x, uint64_t bytes);
	void (*copy)(void *to, const void *from, uint64_t bytes);
};
const struct om_far *om_far(const void *x); /* NULL: this is memory of the host */

/* ---- launch.c -------------------------------------------------------------------------------- */

/* Has the ranks started on this machine, and ends as they do. */
_Noreturn void om_comm_launch(uint32_t world, double timeout, char **argv);
/*
 * What a rank tells who started it, or an alarm where nobody did, since it may wait without end for
 * the others to come.
 */
enum om_stage { OM_IN_INIT, OM_RUNS, OM_ENDS };
void om_comm_enter(uint32_t rank, double timeout);
void om_comm_stage(enum om_stage stage);
bool om_comm_spoke(void);       /* it is about to say why all end; false: another one has */
char om_process_state(int pid); /* as the kernel's letter; 0: there is no such process */

/* FOLDER/start.c: who starts the ranks */
struct om_starter {
	const char *name;    /* "mpirun" */
	const char *must;    /* what it has to be, for messages, "Open MPI's" */
	const char *meeting; /* where ranks wait for one another, "MPI_Init" */
};
extern const struct om_starter om_starter;
/*
 * Becomes the process that runs the ranks, in a new group; what it says itself goes to words. A
 * signal SIGUSR1 it hands on to them, of SIGTERM it ends them; it ends as they do. folder: for what
 * it keeps while they run.
 */
_Noreturn void om_start(uint32_t world, char **argv, int words, const char *folder);

#endif
