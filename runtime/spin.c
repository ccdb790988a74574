/*
 * How idle threads wait. libgomp's spin for a number of pauses, and then sleep. On cores of their
 * own they had better spin for long: to wake a sleeper takes as long as an operator, and of 16
 * quiet cores threads that sleep at once use 60 %. Where others want the cores, who spins takes the
 * time of the thread that all wait for: 0.5 ms of it makes 8 cores with one busy process 7 times
 * slower. No number suits both, so a thread asks the kernel every 100 ms whether others want them.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "om_rt.h"

/*
 * libgomp's, which it reads at each wait. Its shared library hides it: a trainer that is linked to
 * that, as ours are not, waits by libgomp's own rule.
 */
extern unsigned long long gomp_spin_count_var __attribute__((weak));

/* A pause takes 5 to 45 ns. */
enum {
	SPIN_SHORT = 300,   /* a few microseconds: under load as good as to sleep at once */
	SPIN_LONG = 100000, /* milliseconds: longer than the gap of any operator */
	SHARE_MOST = 5,     /* per cent: quiet threads wait for under 1, under load for over 25 */
	CALM_LEAST = 3,     /* periods without load before the long spin */
	TASKS_MOST = 4200,  /* of more threads than we make, the rest is not looked at */
};

/* Nanoseconds that a thread was ready to run and had no core; false: the kernel does not tell. */
static bool
waited_of(int dir, const char *id, uint64_t *waited)
{
	char text[100] = "";
	uint64_t ran = 0; /* 0: it has never run, or the kernel counts nothing */
	char *path = om_text("%s/schedstat", id);
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0 && read(fd, text, sizeof text - 1) < 0)
		text[0] = 0;
	if (fd >= 0)
		close(fd);
	free(path);
	return sscanf(text, "%" SCNu64 " %" SCNu64, &ran, waited) == 2 && ran;
}

uint64_t
om_spin_count(const char *tasks, double now)
{
	static struct {
		long id;
		uint64_t waited;
	} seen[TASKS_MOST];
	static double last;
	static int calm = CALM_LEAST; /* a short run on quiet cores is as fast as a long one */
	const long self = syscall(SYS_gettid);
	struct dirent *e;
	DIR *d = opendir(tasks);
	uint64_t most = 0, waited; /* of the thread that waited most: one delays all */
	size_t n = 0;

	while (d && n < TASKS_MOST && (e = readdir(d))) {
		long id = atol(e->d_name);

		if (id <= 0 || id == self || !waited_of(dirfd(d), e->d_name, &waited))
			continue;
		/* the kernel lists them by age: one that is not in its place is new there */
		if (seen[n].id == id && waited - seen[n].waited > most)
			most = waited - seen[n].waited;
		seen[n].id = id;
		seen[n++].waited = waited;
	}
	if (d)
		closedir(d);
	calm = n && (double)most * 1e-9 * 100 <= SHARE_MOST * (now - last) ? calm + 1 : 0;
	last = now;
	return calm >= CALM_LEAST ? SPIN_LONG : SPIN_SHORT;
}

static void *
watch(void *unused)
{
	prctl(PR_SET_NAME, "om-spin");
	for (;;) {
		nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
		__atomic_store_n(&gomp_spin_count_var, om_spin_count("/proc/self/task", om_now()),
		    __ATOMIC_RELAXED);
	}
	return unused;
}

void
om_spin_start(void)
{
	static bool started;
	sigset_t all, old;
	pthread_t thread;

	if (started || !&gomp_spin_count_var || getenv("OMP_WAIT_POLICY") ||
	    getenv("GOMP_SPINCOUNT"))
		return;
	started = true;
	gomp_spin_count_var = om_spin_count("/proc/self/task", om_now());
	/* signals are for the thread that trains: their handlers end what it waits for */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, watch, NULL) == 0)
		pthread_detach(thread);
	else
		gomp_spin_count_var = SPIN_SHORT;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}
