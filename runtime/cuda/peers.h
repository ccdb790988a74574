/*
 * What kernels know of the other ranks of a group whose memory they read and write: ranks of one
 * host, whose arenas are mapped. Ranks of a group have the same plan, so what lies at some place of
 * this rank's arena lies at the same place of every other's. Read by kernels and by the runtime.
 */
#ifndef OM_PEERS_H
#define OM_PEERS_H

enum {
	OM_PEERS_MOST = 16,    /* ranks of a group */
	OM_PEERS_COUNTS = 512, /* numbers that a rank tells the others at once */
	OM_PEERS_BLOCKS = 16   /* of a kernel that sends rows: multiprocessors that it needs */
};

/*
 * Of each rank and group one, behind its arena. Ranks of a group come to the same points in the
 * same order, and number them. came: how far each of them is, which it writes itself; an
 * announcement lies in the half of count that its number's last bit chooses.
 */
struct om_board {
	uint64_t came[OM_PEERS_MOST];
	int32_t count[2][OM_PEERS_MOST][OM_PEERS_COUNTS];
	uint64_t epoch; /* the last point that this rank has passed */
	uint32_t done;  /* blocks of the kernel that is running */
};

/* In page-locked memory: why kernels no longer wait. */
struct om_waiting {
	uint32_t lost; /* a rank did not come in time, or the host says so: nobody waits any more */
	uint32_t rank; /* its place in the group */
	uint32_t group;
	uint64_t epoch;
};

struct om_peers {
	uint32_t me, n, group;
	uint64_t limit; /* nanoseconds that a kernel waits */
	struct om_board *board;
	struct om_waiting *waiting;
	const uint32_t *abort; /* set by the host: nobody waits any more */
	int64_t
	    to[OM_PEERS_MOST]; /* bytes from this rank's memory to each other's, as mapped here */
};

#endif
