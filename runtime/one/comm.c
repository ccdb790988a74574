/* A world of one rank: what it asks of the others is there already, or has nowhere to go. */
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"

uint32_t
om_rank(enum om_group g)
{
	(void)g;
	return 0;
}

uint32_t
om_size(enum om_group g)
{
	(void)g;
	return 1;
}

void
om_reduce_scatter(enum om_group g, const char *what, void *x, uint64_t n, size_t real)
{
	(void)g, (void)what, (void)x, (void)n, (void)real;
}

void
om_all_gather(enum om_group g, const char *what, void *x, uint64_t bytes)
{
	(void)g, (void)what, (void)x, (void)bytes;
}

void
om_all_sum_f64(enum om_group g, const char *what, double *x, uint64_t n)
{
	(void)g, (void)what, (void)x, (void)n;
}

void
om_all_sum_i64(enum om_group g, const char *what, int64_t *x, uint64_t n)
{
	(void)g, (void)what, (void)x, (void)n;
}

void
om_exchange(enum om_group g, const char *what, const struct om_piece *out, uint32_t nout,
    const struct om_piece *in, uint32_t nin)
{
	(void)g;
	if (nout != nin)
		om_die(what, "internal error: pieces to oneself do not match");
	for (uint32_t i = 0; i < nin; i++)
		if (in[i].bytes)
			memmove(in[i].p, out[i].p, in[i].bytes);
}

static const void *under_way[256]; /* by tag */

void
om_send(uint32_t stage, uint32_t tag, const char *what, const void *x, uint64_t bytes)
{
	(void)stage, (void)bytes;
	if (tag >= OM_LEN(under_way))
		om_die(what, "internal error: tag %u", tag);
	under_way[tag] = x;
}

void
om_sent(uint32_t tag, const char *what)
{
	(void)tag, (void)what;
}

void
om_recv(uint32_t stage, uint32_t tag, const char *what, void *x, uint64_t bytes)
{
	(void)stage;
	if (tag >= OM_LEN(under_way) || !under_way[tag])
		om_die(what, "internal error: nothing sent by tag %u", tag);
	memcpy(x, under_way[tag], bytes);
	under_way[tag] = NULL;
}

bool
om_any(const char *what, bool said)
{
	(void)what;
	return said;
}

void
om_comm_ready(void)
{
}

void
om_barrier(const char *what)
{
	(void)what;
}

void
om_bcast(const char *what, void *p, uint64_t bytes)
{
	(void)what, (void)p, (void)bytes;
}

char *
om_gather(const char *what, const void *p, uint64_t bytes, uint64_t *total)
{
	char *block = om_alloc(bytes + 1, 1);

	(void)what;
	if (bytes)
		memcpy(block, p, bytes);
	*total = bytes;
	return block;
}

void
om_comm_timeout(double seconds)
{
	(void)seconds;
}

uint32_t
om_comm_threads(void)
{
	return 0;
}

const char *
om_comm_library(void)
{
	return "";
}

uint32_t
om_comm_members(void)
{
	return 1;
}

uint32_t
om_comm_local(void)
{
	return 0;
}

void
om_comm_device(void)
{
}

void
om_comm_needs(char needs[64], char here[64])
{
	*needs = *here = 0;
}

void
om_comm_waits(bool begins)
{
	(void)begins;
}

bool
om_comm_first(void)
{
	const char *r = getenv("OMPI_COMM_WORLD_RANK");

	return !r || strcmp(r, "0") == 0;
}

void
om_comm_start(const struct om_model *m, char **argv)
{
	const char *name, *n = om_proc_count(&name);

	(void)m, (void)argv;
	if (n) /* they would train the same, and fight over its files */
		om_die("start",
		    "this trainer is of one rank, %s were started (%s says so); run it once, "
		    "without mpirun or srun",
		    n, name);
}

void
om_comm_end(void)
{
}

bool
om_comm_speaks(void)
{
	return om_comm_first();
}

void
om_comm_abort(int status, bool spoke)
{
	(void)spoke;
	exit(status);
}
