/*
 * The memory of the ranks that kernels reach: this rank's arena, with a board for each group behind
 * it, is shared, and those of the other ranks of its expert group are mapped.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "gpu.h"
#include "om_gpu.h"
#include "om_rt.h"
#include "peers.h"
#include "ranks.h"

static const enum om_group reached[] = { OM_EXPERT };
static const struct om_peers *peers[OM_N_GROUPS]; /* on the device */

static uint64_t
board_at(uint64_t bytes, enum om_group g)
{
	return (bytes + 255) / 256 * 256 +
	       (uint64_t)g * ((sizeof(struct om_board) + 255) / 256 * 256);
}

/* What kernels know of a group: base is where this rank has each other's memory. */
static const struct om_peers *
group_of(enum om_group g, unsigned char *const *base, uint64_t bytes)
{
	const uint32_t me = om_rank(OM_WORLD);
	struct om_peers p = { .me = om_rank(g),
		.n = om_size(g),
		.group = g,
		.limit = (uint64_t)(om_comm_limit() * 1e9),
		.waiting = om_gpu_waiting,
		.abort = om_abort_word(),
		.board = (struct om_board *)(void *)(base[me] + board_at(bytes, g)) };
	void *device = om_gpu_new(sizeof p);

	for (uint32_t i = 0; i < p.n; i++)
		p.to[i] = base[om_ranks_member(g, i)] - base[me];
	om_gpu_put(device, &p, sizeof p);
	return device;
}

static void *
shared_arena(uint64_t bytes)
{
	const uint32_t world = om_size(OM_WORLD), me = om_rank(OM_WORLD);
	unsigned char **base = om_alloc(world, sizeof *base);
	uint64_t *size = om_alloc(world, sizeof *size);
	int own, *fd = om_alloc(world, sizeof *fd);

	size[me] = board_at(bytes, OM_N_GROUPS);
	base[me] = om_gpu_shared_new(&size[me], &own);
	om_gpu_fill(base[me], 0, size[me]);
	om_gpu_beside = OM_PEERS_BLOCKS;
	om_gpu_waiting = memset(om_gpu_locked(sizeof *om_gpu_waiting), 0, sizeof *om_gpu_waiting);
	om_all_gather(OM_WORLD, "sizes of memory", size, world * sizeof *size);
	om_share_fd("memory of the ranks", own, fd);
	for (size_t k = 0; k < OM_LEN(reached); k++) {
		const enum om_group g = reached[k];
		if (om_size(g) > OM_PEERS_MOST)
			om_die("memory of the ranks", "a group of %u; %d are the most", om_size(g),
			    OM_PEERS_MOST);
		for (uint32_t i = 0; i < om_size(g); i++) {
			const uint32_t r = om_ranks_member(g, i);
			if (fd[r] < 0)
				om_die("memory of the ranks",
				    "rank %u is on another host, and ranks that share experts "
				    "have to be on one: start %u ranks on each host, in order",
				    r, om_size(g));
			if (!base[r])
				base[r] = om_gpu_shared_map(fd[r], size[r]);
		}
		peers[g] = group_of(g, base, bytes);
	}
	for (uint32_t r = 0; r < world; r++)
		if (fd[r] >= 0)
			close(fd[r]);
	close(own);
	om_gpu_wait();
	om_barrier("memory of the ranks"); /* boards are empty before anyone writes */
	free(fd);
	free(size);
	unsigned char *arena = base[me];
	free(base);
	return arena;
}

/* Experts' ranks that exchange blocks may be anywhere. */
static void *
new_arena(uint64_t bytes)
{
	return om_size(OM_EXPERT) > 1 && !om_reaches ? om_gpu_new(bytes) : shared_arena(bytes);
}

__attribute__((constructor)) static void
share_arena(void)
{
	om_gpu_arena = new_arena;
}

const struct om_peers *
om_peers(int group)
{
	return om_check_rank ? om_check_rank : peers[group];
}
