/*
 * What one rank asks of the others, by groups (group.def). Every call of a group is made by all of
 * its ranks in one order, which the plan has proven. Sums are formed in one order: the same bits in
 * every run, and on every rank.
 *
 * A world of one rank: each call is a copy or nothing (one/comm.c); several: messages (ranks.c).
 * Memory is the host's, and a call is over when it returns; or of a device that has its own, and
 * the call is in order with what that does, on the stream whose turn it is.
 * A rank that gets no answer within comm.timeout seconds ends the process with its rank, step,
 * the operation and whom it waited for.
 */
#ifndef OM_COMM_H
#define OM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "group.h"

/* This rank's place in its group, and the group's size: 0 and 1 before om_comm_start. */
uint32_t om_rank(enum om_group g);
uint32_t om_size(enum om_group g);

/*
 * x[n] of every rank is summed; part `rank` of it, n / size elements, holds the sum afterwards and
 * the other parts anything, but 0 where all ranks had that. real: bytes of an element, 4 or 8
 * (float, double); on the host sums of floats are formed in double and rounded once. size divides
 * n. what: the operation, for messages.
 */
void om_reduce_scatter(enum om_group g, const char *what, void *x, uint64_t n, size_t real);
/* Part `rank` of x, bytes / size of it, goes to that part on every rank. */
void om_all_gather(enum om_group g, const char *what, void *x, uint64_t bytes);
void om_all_sum_f64(enum om_group g, const char *what, double *x, uint64_t n);
void om_all_sum_i64(enum om_group g, const char *what, int64_t *x, uint64_t n);

/* A piece of memory that goes to, or comes from, a rank of the group. */
struct om_piece {
	void *p;
	uint64_t bytes; /* 0: nothing is sent */
	uint32_t rank;
};
/*
 * Sends and receives pieces at once. Between two ranks, their pieces go in the order in which both
 * list them, sizes equal; a rank's own are copied.
 */
void om_exchange(enum om_group g, const char *what, const struct om_piece *out, uint32_t nout,
    const struct om_piece *in, uint32_t nin);

/*
 * Between neighbours of the pipeline. A send returns at once, and its bytes must stay until
 * om_sent(tag) has returned; tags are small numbers, at most one message of a tag is under way.
 * Messages of one tag between two ranks arrive in order. To itself: copied by the receive.
 */
void om_send(uint32_t stage, uint32_t tag, const char *what, const void *x, uint64_t bytes);
void om_sent(uint32_t tag, const char *what);
void om_recv(uint32_t stage, uint32_t tag, const char *what, void *x, uint64_t bytes);

#endif
