/* Who starts the ranks of a trainer that no launcher started: Open MPI's mpirun. */
#define _GNU_SOURCE /* F_DUPFD_CLOEXEC */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "om_rt.h"
#include "ranks.h"

const struct om_starter om_starter = { "mpirun", "Open MPI's", "MPI_Init" };

void
om_start(uint32_t world, char **argv, int words, const char *folder)
{
	char self[4096], number[16];
	/*
	 * On this machine, whatever a scheduler or a file says of others, and with as many ranks as
	 * the trainer has, however few tasks were asked of the scheduler.
	 */
	const char *option[20] = { "mpirun", "--bind-to", "none", "--oversubscribe", "--mca", "ras",
		"^slurm,gridengine,tm,lsf,alps,loadleveler", "--mca", "orte_default_hostfile",
		"none", "--mca", "orte_tmpdir_base", folder, "-np", number };
	size_t n = 15, nargs = 0;
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	char **args;
	int fd = open("/dev/null", O_RDONLY), err = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);

	if (length <= 0)
		om_die("start", "cannot tell this trainer's path: %s", strerror(errno));
	self[length] = 0;
	snprintf(number, sizeof number, "%u", world);
	if (geteuid() == 0)
		option[n++] = "--allow-run-as-root";
	option[n++] = self;
	while (argv[nargs])
		nargs++;
	args = om_alloc(n + nargs + 1, sizeof *args);
	memcpy(args, option, n * sizeof *args);
	memcpy(args + n, argv + 1, nargs * sizeof *args); /* and the NULL */
	if (fd > 0)                                       /* the keyboard is the trainer's, too */
		dup2(fd, STDIN_FILENO);
	dup2(words, STDOUT_FILENO);
	dup2(words, STDERR_FILENO);
	execvp("mpirun", args);
	dup2(err, STDERR_FILENO);
	om_die("start",
	    "this trainer is of %u ranks, and mpirun, which starts them, cannot be run: %s; "
	    "install Open MPI (openmpi-bin)",
	    world, strerror(errno));
}
