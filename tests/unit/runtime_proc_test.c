/* Which cores a process may use, of more than 1,024 and under control groups; how threads wait. */
#define _GNU_SOURCE /* sets of cores */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../runtime/om_rt.h"
#include "check.h"

/* In libc's place, what a machine of 4,096 cores answers: it refuses sets that are smaller. */
int
sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
	(void)pid;
	if (bytes < 4096 / 8) {
		errno = EINVAL;
		return -1;
	}
	CPU_ZERO_S(bytes, set);
	for (size_t i = 1000; i < 4000; i++)
		CPU_SET_S(i, bytes, set);
	return 0;
}

static void
test_core_set(void)
{
	size_t bytes;
	cpu_set_t *set = om_core_set(&bytes);

	CHECK(bytes == 4096 / 8 && CPU_ISSET_S(3999, bytes, set) && !CPU_ISSET_S(999, bytes, set));
	CHECK(CPU_COUNT_S(bytes, set) == 3000);
	free(set);
}

static void
put_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	CHECK(f && fputs(text, f) >= 0);
	if (f)
		fclose(f);
}

/* Control groups of both versions, the one above with the lower limit, and a container's. */
static void
test_core_limit(void)
{
	static const char *const dir[] = { "cg", "cg/job", "cg/job/step", "cg/cpu",
		"cg/cpu/docker" };
	for (size_t i = 0; i < OM_LEN(dir); i++)
		CHECK(mkdir(dir[i], 0777) == 0);
	CHECK(om_core_limit("cg/none", "cg") == 0);
	put_file("cg/self", "0::/job/step\n");
	CHECK(om_core_limit("cg/self", "cg") == 0);
	put_file("cg/job/step/cpu.max", "max 100000\n");
	CHECK(om_core_limit("cg/self", "cg") == 0);
	put_file("cg/job/step/cpu.max", "250000 100000\n");
	CHECK(om_core_limit("cg/self", "cg") == 2.5);
	put_file("cg/job/cpu.max", "75000 50000\n");
	CHECK(om_core_limit("cg/self", "cg") == 1.5);
	put_file("cg/job/cpu.max", "800000 100000\n");
	CHECK(om_core_limit("cg/self", "cg") == 2.5);
	put_file("cg/self", "0::/../elsewhere\n"); /* a container's own is its root */
	put_file("cg/cpu.max", "300000 100000\n");
	CHECK(om_core_limit("cg/self", "cg") == 3);
	put_file("cg/self", "9:cpuset:/job/step\n4:cpuacct,cpu:/docker\n0::/unseen\n");
	CHECK(unlink("cg/cpu.max") == 0);
	put_file("cg/cpu/docker/cpu.cfs_quota_us", "-1\n");
	put_file("cg/cpu/docker/cpu.cfs_period_us", "100000\n");
	CHECK(om_core_limit("cg/self", "cg") == 0);
	put_file("cg/cpu/docker/cpu.cfs_quota_us", "50000\n");
	CHECK(om_core_limit("cg/self", "cg") == 0.5);
}

/*
 * The spin is long from the start; a thread that waited for a core makes it short, until three
 * periods of 0.1 s were calm. Where the kernel tells nothing, it is short.
 */
static void
test_spin_count(void)
{
	uint64_t few, many, n;
	char text[64];
	int calm = 0;

	CHECK(mkdir("tasks", 0777) == 0 && mkdir("tasks/7", 0777) == 0 &&
	      mkdir("tasks/8", 0777) == 0);
	put_file("tasks/7/schedstat", "5000000 900000000 3\n");
	many = om_spin_count("tasks", 1);
	CHECK(many >= 10000);
	put_file("tasks/7/schedstat", "0 0 0\n");
	few = om_spin_count("tasks", 1.1);
	CHECK(few >= 100 && few <= 1000);
	for (int i = 0; i < 9; i++)
		CHECK(om_spin_count("tasks", 2 + i) == few);
	for (int i = 0; i < 9; i++)
		CHECK(om_spin_count("none", 12 + i) == few);
	for (int i = 0; i < 20; i++) { /* nanoseconds it ran, nanoseconds it waited */
		put_file("tasks/7/schedstat", "5000000 900000000 3\n");
		snprintf(text, sizeof text, "1 %d 3\n",
		    1000 + 4000000 * i + 20000000 * (i >= 8) + 20000000 * (i >= 14));
		put_file("tasks/8/schedstat", text);
		calm = i == 8 || i == 14 ? 0 : calm + 1;
		n = om_spin_count("tasks", 20 + 0.1 * i);
		CHECK(n == (calm >= 3 ? many : few));
	}
}

int
main(void)
{
	test_core_set();
	test_core_limit();
	test_spin_count();
	return check_end();
}
