/*
 * Ranks that meet by themselves, and what they tell one another past the device: the control plane
 * of trainers whose data go by NCCL. No call of it waits for a device.
 */
#ifndef CONTROL_H
#define CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- meet.c: who this rank is, by its launcher; where the others are ------------------------- */

struct om_self {
	uint32_t rank, world;
	const char *launcher; /* "torchrun" */
};
/* False: no launcher started this process, or it started one alone. */
bool om_self(struct om_self *s);

/* What all ranks know of each. */
struct om_seat {
	char host[64];
	uint64_t machine; /* processes with the same see one another, and share their memory */
	int32_t pid;      /* there */
	uint32_t local;   /* its place among the ranks of its machine */
	uint8_t
	    address[16]; /* of IPv6, or mapped to it; where it listens for the others' messages */
	uint16_t port;
};
/*
 * Finds rank 0 and, by it, all others; limit: seconds until all are there. life gets a connection
 * to each rank of which rank 0 is one end, -1 elsewhere; gives the descriptor where this one
 * listens.
 */
int om_meet(const struct om_self *s, double limit, int *life);
const struct om_seat *om_seat(uint32_t rank);
bool om_met(void); /* the others are known */
/* "rank 3 (process 12 on node7)"; one of four static texts, reused in turn. */
const char *om_seat_text(uint32_t rank);
/* A connection to where a rank listens, of which it knows who is there; and the other's end. */
int om_meet_connect(uint32_t rank);
int om_meet_accept(int listener, uint32_t *rank); /* -1: it was nobody of ours */

/*
 * ---- life.c: the ranks' lives. A thread of each tells rank 0 that it lives, and is told when
 * others have ended; so that a rank which dies, is stopped or waits for a device in vain ends all
 * of them, with one line.
 */

void om_life_start(const struct om_self *s, const int *life, double limit);
void om_life_limit(double seconds);
/* Is called beside the main thread, some ten times a second; it may end the process. */
void om_life_each(void (*look)(void));
void om_life_waits(bool begins); /* the device is waited for */
void om_life_end(void);          /* by all, behind a barrier: from here on nobody misses this one */
/* Whether no rank has said why all end: who asks first does. */
bool om_life_speaks(void);
_Noreturn void om_life_abort(int status, bool spoke);

/* ---- nccl.c: the device's part --------------------------------------------------------------- */

struct om_model;
void om_nccl_start(const struct om_model *models); /* the device is there */
/* Which NCCL it has to be, "NCCL 2.18.0 or later", and which is here. */
void om_nccl_version(char needs[64], char here[64]);

/* ---- comm.c ---------------------------------------------------------------------------------- */

/*
 * Gives every rank of this machine a descriptor of each: got[world], its own one too; -1 for ranks
 * of other machines. By all ranks.
 */
void om_share_fd(const char *what, int fd, int *got);
/*
 * A word that is 0 until the process is about to end because of another rank: in page-locked
 * memory, so that kernels that wait for one see it. NULL: there is no device yet.
 */
uint32_t *om_abort_word(void);
void om_abort_word_is(uint32_t *word); /* the device's, once there is one */
double om_comm_limit(void);            /* seconds that a rank waits for others: comm.timeout */

#endif
