/* A trainer of several ranks that no launcher started: it has mpirun start them, and waits. */
#define _GNU_SOURCE /* pipe2 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "om_rt.h"

static pid_t child;
static char folder[] = "/tmp/om-XXXXXX"; /* mpirun's: one that ends removes what another begins */

static volatile sig_atomic_t asked; /* how often a signal asked for the end */

static void
on_signal(int sig)
{
	(void)sig;
	asked++;
}

static char *
ready_file(const char *at)
{
	return om_text("%s/ready", at);
}

void
om_comm_ready(void)
{
	const char *at = getenv("OM_LAUNCHED");
	char *path;

	om_barrier("start");
	if (!at || om_rank(OM_WORLD))
		return;
	path = ready_file(at);
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	free(path);
}

/*
 * What the ranks print goes through here, so that a reader who leaves ends nothing: mpirun would
 * die of it. False: there is no more.
 */
static bool
pass_on(int from, int to, bool *lost)
{
	char text[1 << 14];
	ssize_t n = read(from, text, sizeof text);

	if (n > 0 && !*lost)
		*lost = !om_write_all(to, text, (size_t)n);
	return n > 0 || (n < 0 && errno == EINTR);
}

/* Until mpirun has ended; gives its status. */
static int
attend(const int pipes[2], bool lost[2])
{
	enum { PATIENCE = 10 }; /* seconds for mpirun to end its ranks */
	struct pollfd p[2] = { { pipes[0], POLLIN, 0 }, { pipes[1], POLLIN, 0 } };
	char *ready = ready_file(folder);
	double since = 0;
	int told = 0, status, open = 2;
	bool save = false;

	while (open || waitpid(child, &status, WNOHANG) != child) {
		poll(p, 2, 50);
		for (int i = 0; i < 2; i++)
			if (p[i].fd >= 0 && p[i].revents && !pass_on(p[i].fd, i + 1, &lost[i])) {
				p[i].fd = -1;
				open--;
			}
		/*
		 * mpirun that gets SIGTERM kills its ranks; SIGUSR1 it hands on to them, and they
		 * save and end, once they train. Asked twice: at once.
		 */
		if (asked > told) {
			told = asked;
			save = told == 1 && access(ready, F_OK) == 0;
			since = save ? 0 : om_now();
			kill(child, save ? SIGUSR1 : SIGTERM);
		}
		if (since > 0 && om_now() - since > PATIENCE)
			kill(-child, SIGKILL);
	}
	unlink(ready);
	free(ready);
	if (told == 1 && !save)
		fprintf(stderr, "ended by a signal, before there was anything to save\n");
	return status;
}

static _Noreturn void
become_mpirun(uint32_t world, char **argv, const int out[2])
{
	char self[4096], number[16];
	const char *option[16] = { "mpirun", "--quiet", "--bind-to", "none", "--mca",
		"orte_tmpdir_base", folder, "-np", number };
	size_t n = 9, nargs = 0;
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	char **args;
	int fd = open("/dev/null", O_RDONLY);

	if (length <= 0)
		om_die("start", "cannot tell this trainer's path: %s", strerror(errno));
	self[length] = 0;
	snprintf(number, sizeof number, "%u", world);
	if (om_core_count() < world)
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
	dup2(out[0], STDOUT_FILENO);
	dup2(out[1], STDERR_FILENO);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	execvp("mpirun", args);
	om_die("start",
	    "this trainer is of %u ranks, and mpirun, which starts them, cannot be run: %s; "
	    "install Open MPI (openmpi-bin)",
	    world, strerror(errno));
}

/* The ranks' output is mpirun's terminal or a pipe: they cannot see where it goes in the end. */
static void
tell_width(void)
{
	struct winsize size = { 0, 0, 0, 0 };
	char text[16];

	if (!isatty(STDOUT_FILENO))
		return;
	ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
	snprintf(text, sizeof text, "%d", size.ws_col ? size.ws_col : 80);
	setenv("OM_TERMINAL", text, 1);
}

void
om_comm_launch(uint32_t world, char **argv)
{
	static const int ends[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
	int status, pipes[2][2];
	bool lost[2] = { false, false };

	if (getenv("OM_LAUNCHED"))
		om_die("start",
		    "the mpirun that is found is not Open MPI's, of which this trainer is; put "
		    "Open MPI's first on PATH");
	fflush(stdout);
	if (!mkdtemp(folder))
		om_die("start", "%s: %s", folder, strerror(errno));
	setenv("OM_LAUNCHED", folder, 1);
	tell_width();
	if (pipe2(pipes[0], O_CLOEXEC) != 0 || pipe2(pipes[1], O_CLOEXEC) != 0)
		om_die("start", "cannot make a pipe: %s", strerror(errno));
	if ((child = fork()) < 0)
		om_die("start", "cannot start mpirun: %s", strerror(errno));
	if (!child)
		become_mpirun(world, argv, (int[]){ pipes[0][1], pipes[1][1] });
	close(pipes[0][1]);
	close(pipes[1][1]);
	signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < OM_LEN(ends); i++) {
		struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART }, old;

		if (ends[i] != SIGHUP || sigaction(SIGHUP, NULL, &old) != 0 ||
		    old.sa_handler != SIG_IGN) /* nohup's wish */
			sigaction(ends[i], &act, NULL);
	}
	status = attend((int[]){ pipes[0][0], pipes[1][0] }, lost);
	rmdir(folder);
	status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	/* nobody has to read the console of training; other commands are for what they print */
	if (lost[0] && !status && argv[1] && strcmp(argv[1], "train") != 0)
		om_die("output", "cannot be written: %s", strerror(EPIPE));
	exit(status);
}
