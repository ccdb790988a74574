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
 * Quiet from the start; a thread that waited for a core is load, until three periods of 0.1 s were
 * calm. Where the kernel tells nothing, it is load.
 */
static void
test_spin_loaded(void)
{
	char text[64];
	int calm = 0;

	CHECK(mkdir("tasks", 0777) == 0 && mkdir("tasks/7", 0777) == 0 &&
	      mkdir("tasks/8", 0777) == 0);
	put_file("tasks/7/schedstat", "5000000 900000000 3\n");
	CHECK(!om_spin_loaded("tasks", 1));
	put_file("tasks/7/schedstat", "0 0 0\n");
	CHECK(om_spin_loaded("tasks", 1.1));
	for (int i = 0; i < 9; i++)
		CHECK(om_spin_loaded("tasks", 2 + i));
	for (int i = 0; i < 9; i++)
		CHECK(om_spin_loaded("none", 12 + i));
	for (int i = 0; i < 20; i++) { /* nanoseconds it ran, nanoseconds it waited */
		put_file("tasks/7/schedstat", "5000000 900000000 3\n");
		snprintf(text, sizeof text, "1 %d 3\n",
		    1000 + 4000000 * i + 20000000 * (i >= 8) + 20000000 * (i >= 14));
		put_file("tasks/8/schedstat", text);
		calm = i == 8 || i == 14 ? 0 : calm + 1;
		CHECK(om_spin_loaded("tasks", 20 + 0.1 * i) == (calm < 3));
	}
}

/*
 * A machine under load for a minute, that does so many passes a second with either spin: what share
 * of the work is done that always the faster one would do.
 */
static double
spin_share(double few, double many)
{
	struct om_spin s = { .on = false };
	struct om_work w = { 0, 0 };
	double left = 1, faster = few > many ? few : many;
	bool long_spin = false;

	for (int i = 1; i <= 600; i++) {
		double now = 0.1 * i, then = now - 0.1, speed = long_spin ? many : few;
		while (speed > 0 && left <= speed * (now - then)) {
			then += left / speed;
			left = 1;
			w.done++;
			w.at = then;
		}
		left -= speed * (now - then);
		long_spin = om_spin_choose(&s, true, now, &w) > 1000;
	}
	return (double)w.done / (faster * 60);
}

static void
test_spin_choose(void)
{
	struct om_spin s = { .on = false };
	struct om_work w = { 0, 0 };

	uint64_t quiet = om_spin_choose(&s, false, 1, &w), few = om_spin_choose(&s, true, 2, &w);
	CHECK(few >= 1000 && quiet > 2 * few && s.bound);
	CHECK(om_spin_choose(&s, false, 3, &w) == quiet && !s.bound);
	/* whichever is faster, by much or little, or alone makes any progress, is found */
	CHECK(spin_share(20, 80) > 0.9);
	CHECK(spin_share(80, 20) > 0.9);
	CHECK(spin_share(200, 0) > 0.9);
	CHECK(spin_share(3, 0.1) > 0.8);
	CHECK(spin_share(0.5, 2) > 0.7); /* a pass takes two seconds */
	CHECK(spin_share(100, 101) > 0.98);
}

int
main(void)
{
	test_core_set();
	test_core_limit();
	test_spin_loaded();
	test_spin_choose();
	return check_end();
}
