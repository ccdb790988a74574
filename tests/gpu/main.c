/* Runs the checks of kernel instances. Usage: kernels [-t] [SEEDS [NAME...]]; -t: times them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "case.h"
#include "gpu.h"
#include "om_gpu.h"

enum { SECONDS_MOST = 40 }; /* a case that hangs is killed */

static struct test_case *first, **last = &first;
/* where the child is; it dies with the first fault of the device, and another one goes on */
static volatile struct {
	int next, passed, failed;
} * at;

/* Kernels of several ranks run in checks that say which one this process is. */
const struct om_peers *
om_peers(int group)
{
	(void)group;
	return om_check_rank;
}

void
case_add(struct test_case *c)
{
	*last = c;
	last = &c->next;
}

double
case_same(const void *a, const void *b, size_t bytes)
{
	void *p = malloc(bytes), *q = malloc(bytes);

	om_check_read(p, a, bytes);
	om_check_read(q, b, bytes);
	int differ = memcmp(p, q, bytes);
	free(p);
	free(q);
	return differ ? OM_WRONG : 0;
}

static int
chosen(const char *name, int argc, char **argv)
{
	for (int i = 0; i < argc; i++)
		if (strstr(name, argv[i]))
			return 1;
	return argc <= 0;
}

static void
run(const struct test_case *c, int seeds)
{
	double worst = 0;

	for (int s = 0; s < seeds; s++) {
		double e = c->check((uint64_t)s * 7919 + 11);
		if (!(e <= worst))
			worst = e;
	}
	printf("%-44s %9.2e of %8.1e %s", c->name, worst, c->tolerance,
	    worst <= c->tolerance ? "ok  " : "FAIL");
	if (om_check_timing && om_check_seconds > 0) {
		printf(" %9.1f us", om_check_seconds * 1e6);
		if (c->flops > 0)
			printf(" %6.1f TFLOP/s", c->flops / om_check_seconds / 1e12);
		if (c->bytes > 0)
			printf(" %7.1f GB/s", c->bytes / om_check_seconds / 1e9);
	}
	om_check_seconds = 0;
	printf("\n");
	fflush(stdout);
	if (worst <= c->tolerance)
		at->passed++;
	else
		at->failed++;
}

/* All cases from the one that is next. */
static void
child(int seeds, int argc, char **argv)
{
	int i = 0;

	om_gpu_start();
	for (struct test_case *c = first; c; c = c->next, i++) {
		if (i < at->next || !chosen(c->name, argc, argv))
			continue;
		at->next = i + 1;
		alarm(SECONDS_MOST);
		run(c, seeds);
	}
	exit(0);
}

int
main(int argc, char **argv)
{
	int seeds = 2, k = 1, status, count = 0;

	if (argc > k && !strcmp(argv[k], "-t"))
		om_check_timing = true, k++;
	if (argc > k)
		seeds = atoi(argv[k++]);
	at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (struct test_case *c = first; c; c = c->next)
		count++;
	for (;;) {
		int before = at->next;
		pid_t pid = fork();

		if (pid == 0)
			child(seeds, argc - k, argv + k);
		if (pid < 0 || waitpid(pid, &status, 0) < 0)
			return 2;
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			break;
		if (at->next == before) /* it did not even start */
			break;
		struct test_case *c = first;
		for (int i = 1; i < at->next; i++)
			c = c->next;
		printf("%-44s FAIL: %s\n", c->name,
		    WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? "hangs"
								       : "the process died");
		fflush(stdout);
		at->failed++;
		if (at->next >= count)
			break;
	}
	printf("%d passed, %d failed\n", at->passed, at->failed + (at->passed + at->failed == 0));
	return at->failed != 0 || at->passed == 0;
}
