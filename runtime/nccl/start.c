/* Who starts the ranks of a trainer that no launcher started: a process of its own. */
#define _GNU_SOURCE /* environ */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "om_rt.h"
#include "ranks.h"

const struct om_starter om_starter = { "the trainer's process", "", "waiting for the others" };

static volatile sig_atomic_t saves, ends; /* asked for by signals, how often */

static void
on_signal(int sig)
{
	if (sig == SIGUSR1)
		saves++;
	else
		ends++;
}

/* Where rank 0 will wait for the others: a socket that it inherits. */
static int
listen_here(uint32_t *port)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t n = sizeof a;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) != 0 || listen(fd, 1024) != 0 ||
	    getsockname(fd, (struct sockaddr *)&a, &n) != 0)
		om_die("start", "cannot listen at 127.0.0.1: %s", strerror(errno));
	*port = ntohs(a.sin_port);
	return fd;
}

static void
set_number(const char *name, uint32_t n)
{
	char text[16];

	snprintf(text, sizeof text, "%u", n);
	setenv(name, text, 1);
}

static pid_t
start_rank(uint32_t r, const char *self, char **argv, int listener)
{
	pid_t child = fork();

	if (child < 0)
		om_die("start", "cannot start rank %u: %s", r, strerror(errno));
	if (child)
		return child;
	set_number("RANK", r);
	set_number("LOCAL_RANK", r);
	if (r)
		close(listener);
	else
		set_number("OM_LISTEN", (uint32_t)listener);
	execv(self, argv);
	om_die("start", "cannot run %s: %s", self, strerror(errno));
}

/* As a shell says it. */
static int
code_of(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void
om_start(uint32_t world, char **argv, int words, const char *folder)
{
	enum { PATIENCE = 5 }; /* seconds for the others to end after one did not end well */
	struct sigaction act = { .sa_handler = on_signal };
	pid_t *rank = om_alloc(world, sizeof *rank);
	char self[4096];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	int fd = open("/dev/null", O_RDONLY), listener, code = 0, saved = 0;
	uint32_t port, left = world;
	bool killed = false;
	double since = 0;

	(void)folder;
	if (length <= 0)
		om_die("start", "cannot tell this trainer's path: %s", strerror(errno));
	self[length] = 0;
	listener = listen_here(&port);
	if (fd > 0)
		dup2(fd, STDIN_FILENO);
	dup2(words, STDOUT_FILENO);
	dup2(words, STDERR_FILENO);
	set_number("WORLD_SIZE", world);
	set_number("OM_MEET", port);
	sigaction(SIGUSR1, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	for (uint32_t r = 0; r < world; r++)
		rank[r] = start_rank(r, self, argv, listener);
	close(listener);
	while (left) {
		int status, how = 0;
		pid_t ended = waitpid(-1, &status, WNOHANG);

		for (uint32_t r = 0; ended > 0 && r < world; r++) {
			if (rank[r] != ended)
				continue;
			rank[r] = 0;
			left--;
			/* of several at once, one that was killed by others is the cause */
			if (status && (!code || (code < 128 && WIFSIGNALED(status) && !killed)))
				code = code_of(status);
			if (status && !(since > 0))
				since = om_now();
		}
		if (ended > 0)
			continue;
		if (saves > saved) {
			saved = saves;
			how = SIGUSR1;
		}
		if (ends && !(since > 0))
			since = om_now() - PATIENCE + 1, how = SIGTERM;
		if (since > 0 && om_now() - since > PATIENCE)
			how = SIGKILL;
		killed = killed || how == SIGKILL || how == SIGTERM;
		for (uint32_t r = 0; how && r < world; r++)
			if (rank[r]) {
				kill(rank[r], how);
				kill(rank[r], SIGCONT);
			}
		usleep(20000);
	}
	_exit(code ? code : ends ? 128 + SIGTERM : 0);
}
