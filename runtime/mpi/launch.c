/* A trainer of several ranks that no launcher started: it has mpirun start them, and waits. */
#define _GNU_SOURCE /* sets of cores */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "om_rt.h"

static pid_t child;
static char folder[] = "/tmp/om-XXXXXX"; /* mpirun's: one that ends removes what another begins */

/*
 * mpirun that gets SIGTERM kills its ranks within two seconds; SIGUSR1 it hands on to them, and
 * they save and end. Asked twice: at once.
 */
static void
hand_on(int sig)
{
	static volatile sig_atomic_t asked;

	(void)sig;
	kill(child, asked ? SIGTERM : SIGUSR1);
	asked = 1;
}

static _Noreturn void
become_mpirun(uint32_t world, char **argv)
{
	char self[4096], number[16];
	const char *option[16] = { "mpirun", "--quiet", "--bind-to", "none", "--mca",
		"orte_tmpdir_base", folder, "-np", number };
	size_t n = 9, nargs = 0;
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	cpu_set_t cores;
	char **args;
	int fd = open("/dev/null", O_RDONLY);

	if (length <= 0)
		om_die("start", "cannot tell this trainer's path: %s", strerror(errno));
	self[length] = 0;
	snprintf(number, sizeof number, "%u", world);
	if (sched_getaffinity(0, sizeof cores, &cores) != 0 || (uint32_t)CPU_COUNT(&cores) < world)
		option[n++] = "--oversubscribe";
	if (geteuid() == 0)
		option[n++] = "--allow-run-as-root";
	option[n++] = self;
	while (argv[nargs])
		nargs++;
	args = om_alloc(n + nargs + 1, sizeof *args);
	memcpy(args, option, n * sizeof *args);
	memcpy(args + n, argv + 1, nargs * sizeof *args); /* and the NULL */
	/* the terminal's signals are for the trainer, which hands them on; so is its keyboard */
	setpgid(0, 0);
	if (fd > 0)
		dup2(fd, STDIN_FILENO);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	execvp("mpirun", args);
	om_die("start",
	    "this trainer is of %u ranks, and mpirun, which starts them, cannot be run: %s; "
	    "install Open MPI (openmpi-bin)",
	    world, strerror(errno));
}

void
om_comm_launch(uint32_t world, char **argv)
{
	static const int ends[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
	int status;

	if (getenv("OM_LAUNCHED"))
		om_die("start",
		    "the mpirun that is found is not Open MPI's, of which this trainer is; put "
		    "Open MPI's first on PATH");
	setenv("OM_LAUNCHED", "1", 1);
	fflush(stdout);
	if (!mkdtemp(folder))
		om_die("start", "%s: %s", folder, strerror(errno));
	if ((child = fork()) < 0)
		om_die("start", "cannot start mpirun: %s", strerror(errno));
	if (!child)
		become_mpirun(world, argv);
	for (size_t i = 0; i < OM_LEN(ends); i++) {
		struct sigaction act = { .sa_handler = hand_on, .sa_flags = SA_RESTART }, old;

		if (ends[i] != SIGHUP || sigaction(SIGHUP, NULL, &old) != 0 ||
		    old.sa_handler != SIG_IGN) /* nohup's wish */
			sigaction(ends[i], &act, NULL);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	rmdir(folder);
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}
