/*
 * Runs a command N times: median wall time and largest resident set. Usage: measure N COMMAND
 * [ARGUMENT...]
 */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int
compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double
now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int
main(int argc, char **argv)
{
	int n = argc > 2 ? atoi(argv[1]) : 0;
	double *wall = calloc((size_t)(n > 0 ? n : 1), sizeof *wall);
	long rss = 0;

	if (n < 1 || !wall) {
		fprintf(stderr, "usage: measure N COMMAND [ARGUMENT...]\n");
		return 2;
	}
	for (int i = 0; i < n; i++) {
		struct rusage ru;
		int status;
		double start = now();
		pid_t child = fork();
		if (!child) {
			int null = open("/dev/null", O_WRONLY);
			dup2(null, 1);
			dup2(null, 2);
			execvp(argv[2], argv + 2);
			_exit(127);
		}
		if (child < 0 || wait4(child, &status, 0, &ru) < 0 || status) {
			fprintf(stderr, "measure: %s failed\n", argv[2]);
			return 1;
		}
		wall[i] = now() - start;
		rss = ru.ru_maxrss > rss ? ru.ru_maxrss : rss;
	}
	qsort(wall, (size_t)n, sizeof *wall, compare);
	printf("%.3f s  %.1f MB\n", wall[n / 2], (double)rss / 1024);
	return 0;
}
