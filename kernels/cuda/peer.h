/*
 * How kernels of several ranks wait for each other. Everything is in order with a stream: a rank
 * comes to the points of a group one after the other, writes the number of each to all boards, and
 * waits until its own board has that number of every rank.
 *
 * Nothing here needs all blocks of a kernel to be on the device at once, nor that ranks have a
 * device each: at the first point of a kernel each block tells the others that this rank is there,
 * and at the last one the block that is done last tells, waits and counts. A wait ends when the
 * host says so, or after its limit, which the host reads; what kernels do after that is worth
 * nothing, and the process ends.
 */
#ifndef OM_PEER_H
#define OM_PEER_H

#include "om_cuda.h"

#include "peers.h"

#ifdef __CUDACC__

#ifndef OM_PEER_EMULATED
/* What this thread, and threads it has met, wrote before is seen by who sees the number. */
OM_DEV void
om_peer_write(uint64_t *p, uint64_t x)
{
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(x) : "memory");
}

OM_DEV uint64_t
om_peer_read(const uint64_t *p)
{
	uint64_t x;
	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
	return x;
}

OM_DEV uint64_t
om_peer_nanoseconds(void)
{
	uint64_t x;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(x));
	return x;
}
#endif

/* What lies at p here, in the memory of rank r. */
template <class X>
OM_DEV X *
om_peer_at(const om_peers *peers, X *p, int r)
{
	return (X *)((char *)p + peers->to[r]);
}

/* All threads of a block call it, and what all of them wrote before is told. */
OM_DEV void
om_peer_tell(const om_peers *peers, uint64_t epoch)
{
	__syncthreads();
	if (threadIdx.x < peers->n)
		om_peer_write(
		    om_peer_at(peers, &peers->board->came[peers->me], threadIdx.x), epoch);
}

/* False when this rank, or its host, has given up. */
OM_DEV bool
om_peer_patient(const om_peers *peers, int r, uint64_t epoch, uint64_t *begun)
{
	volatile om_waiting *w = peers->waiting;
	const uint64_t now = om_peer_nanoseconds();
	if (!*begun)
		*begun = now;
	if (w->lost || *(const volatile uint32_t *)peers->abort)
		return false;
	if (now - *begun < peers->limit)
		return true;
	w->rank = r;
	w->group = peers->group;
	w->epoch = epoch;
	__threadfence_system();
	w->lost = 1;
	return false;
}

/* All threads of a block wait until every rank has come so far; false: it is given up. */
OM_DEV bool
om_peer_wait(const om_peers *peers, uint64_t epoch)
{
	bool there = true;
	if (threadIdx.x < peers->n) {
		const uint64_t *came = &peers->board->came[threadIdx.x];
		uint64_t begun = 0;
		for (uint32_t turn = 1; there && om_peer_read(came) < epoch; turn++) {
			__nanosleep(40);
			if (turn % 256 == 0)
				there = om_peer_patient(peers, threadIdx.x, epoch, &begun);
		}
	}
	return __syncthreads_and(there);
}

/* The first point of a kernel of several blocks: all ranks are done with what came before it. */
OM_DEV bool
om_peer_enter(const om_peers *peers, uint64_t epoch)
{
	om_peer_tell(peers, epoch);
	return om_peer_wait(peers, epoch);
}

/* Its last one: all ranks are done with it. */
OM_DEV void
om_peer_leave(const om_peers *peers, uint64_t epoch)
{
	__shared__ bool last;
	om_board *board = peers->board;
	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence_system();
		last = atomicAdd(&board->done, 1u) == gridDim.x - 1;
		__threadfence_system();
	}
	__syncthreads();
	if (!last)
		return;
	om_peer_tell(peers, epoch);
	om_peer_wait(peers, epoch);
	if (threadIdx.x == 0) {
		board->done = 0;
		board->epoch = epoch;
	}
}

#endif
#endif
