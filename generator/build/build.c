/*
 * Builds an emitted tree with its own Makefile: one description of the build, with or without
 * olmogen.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "build/build.h"

void
build_end_with_parent(void)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM);
}

bool
build(const char *dir, int jobs, const char *set, bool verbose)
{
	char *argv[] = { "make", "-C", xstrdup(dir), xprintf("-j%d", jobs), "--no-print-directory",
		verbose ? "V=1" : "-s", set ? xstrdup(set) : NULL, NULL };
	/*
	 * the trainer's bytes must not depend on who builds: neither on their variables nor on a
	 * make around us
	 */
	static const char *const theirs[] = { "CFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS",
		"GNUMAKEFLAGS", "MAKEFILES", "MFLAGS", "MAKELEVEL", "V" };
	int status;
	pid_t child;

	fflush(NULL);
	child = fork();
	if (child == 0) {
		build_end_with_parent();
		for (unsigned i = 0; i < LEN(theirs); i++)
			unsetenv(theirs[i]);
		execvp(argv[0], argv);
		diag_failed(
		    "cannot run make: %s; install make, or use --emit-only", strerror(errno));
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0)
		return diag_failed("cannot start make: %s", strerror(errno));
	if (status == 0 && !access(xprintf("%s/trainer", dir), X_OK))
		return true;
	return diag_failed(
	    "the build in %s failed; the sources are there, 'make -C %s V=1' shows the commands",
	    dir, dir);
}
