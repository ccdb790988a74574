/*
 * How idle threads wait. libgomp's spin for a number of pauses, and then sleep. On cores of their
 * own they had better spin for long: to wake a sleeper takes as long as an operator, and of 16
 * quiet cores threads that sleep at once use 60 %. Where others want the cores, who spins takes the
 * time of the thread that all wait for: 0.5 ms of it makes 8 cores with one busy process 7 times
 * slower. No number suits both, so a thread asks the kernel every 100 ms whether others want them.
 * Where they do, threads that each keep to a core of their own and spin for half a millisecond get
 * half of each core, and are up to five times as fast as those that sleep and are moved about. But
 * where a core has more to do than one thread of ours and one of others, they may make no step at
 * all. So both are tried, and the faster one is kept for sixteen times as long.
 */
#define _GNU_SOURCE /* sets of cores */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
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
	SPIN_LONG = 100000,  /* milliseconds: longer than the gap of any operator */
	SPIN_MIDDLE = 30000, /* about half a millisecond */
	SPIN_SHORT = 300,    /* a few microseconds: under load as good as to sleep at once */
	SHARE_MOST = 5,      /* per cent: quiet threads wait for under 1, under load for over 25 */
	CALM_LEAST = 3,      /* periods without load before the long spin */
	TASKS_MOST = 4200,   /* of more threads than we make, the rest is not looked at */
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

/* Threads that compute nothing; 0: none. */
static long apart[8];

/* Puts `to` where `from` is; false: it is nowhere. */
static bool
apart_swap(long from, long to)
{
	for (size_t i = 0; i < OM_LEN(apart); i++) {
		long was = from;

		if (__atomic_compare_exchange_n(
			&apart[i], &was, to, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			return true;
	}
	return false;
}

bool
om_spin_loaded(const char *tasks, double now)
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

		if (id <= 0 || id == self || apart_swap(id, id) ||
		    !waited_of(dirfd(d), e->d_name, &waited))
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
	return calm < CALM_LEAST;
}

/* ---- which spin is faster under load ---- */

static void
try_arm(struct om_spin *s, int arm, bool kept, double now, const struct om_work *w)
{
	s->arm = arm;
	s->kept = kept;
	s->began = now;
	s->before = w->done;
	s->first = (struct om_work){ 0, 0 };
}

/*
 * Work a second since the first piece that was done whole under this spin; enough: it says
 * something.
 */
static double
rate_of(const struct om_spin *s, double now, const struct om_work *w, bool *enough)
{
	*enough = s->first.done && w->at - s->first.at >= 0.4;
	if (s->first.done && w->at > s->first.at)
		return (double)(w->done - s->first.done) / (w->at - s->first.at);
	return (double)(w->done - s->before) / (now - s->began);
}

/* A trial that takes too long: it has under half of the other's speed, or there is no other yet. */
static bool
given_up(const struct om_spin *s, double now, const struct om_work *w)
{
	double took = now - s->began, other = s->rate[!s->arm];

	if (other > 0)
		return took > 0.5 && (double)(w->done - s->before + 2) < other * took / 2;
	return s->arm == 0 && took > 2;
}

uint64_t
om_spin_choose(struct om_spin *s, bool loaded, double now, const struct om_work *w)
{
	static const uint64_t spin[OM_SPIN_ARMS] = { SPIN_MIDDLE, SPIN_SHORT };
	int other = !s->arm;
	bool enough;

	if (!loaded) {
		s->on = s->bound = false;
		return SPIN_LONG;
	}
	if (!s->on) {
		*s = (struct om_spin){ .on = true };
		try_arm(s, 0, false, now, w);
	}
	/* the piece that was under way at the change was done under both */
	if (!s->first.done && w->done != s->before)
		s->first = *w;
	double rate = rate_of(s, now, w, &enough);
	if (s->kept) {
		if (enough)
			s->rate[s->arm] = rate;
		if (now >= s->until)
			try_arm(s, other, false, now, w);
	} else if (enough || given_up(s, now, w)) {
		s->rate[s->arm] = rate;
		if (s->rate[other] > 0 || s->arm) {
			s->until = now + fmax(8, 16 * (now - s->began));
			try_arm(s, s->rate[1] > s->rate[0], true, now, w);
		} else {
			try_arm(s, other, false, now, w);
		}
	}
	s->bound = s->arm == 0;
	return spin[s->arm];
}

/* ---- a core for each thread ---- */

static struct {
	cpu_set_t *set; /* the process's cores */
	size_t bytes;
	int n; /* threads that compute; 0: they stay where the kernel puts them */
	pid_t id[TASKS_MOST];
} team;

/* The cores and threads, where there are as many cores and the environment does not place them. */
static void
team_find(void)
{
	int n = omp_get_max_threads();

	team.set = om_core_set(&team.bytes);
	if (getenv("OMP_PROC_BIND") || getenv("OMP_PLACES") || getenv("GOMP_CPU_AFFINITY") ||
	    n > TASKS_MOST || n > CPU_COUNT_S(team.bytes, team.set))
		return;
#pragma omp parallel
	team.id[omp_get_thread_num()] = (pid_t)syscall(SYS_gettid);
	team.n = n;
}

/* The core that a thread ran on last. */
static int
core_of(pid_t id)
{
	char *path = om_text("/proc/self/task/%d/stat", (int)id);
	size_t length;
	char *text = om_file_read(path, 4096, &length), *s = text ? strrchr(text, ')') : NULL;

	free(path);
	/* the 39th field; the 2nd, a name in parentheses, may contain blanks */
	for (int field = 2; s && field < 39; field++)
		if ((s = strchr(s, ' ')))
			s++;
	int core = s ? atoi(s) : -1;
	free(text);
	return core;
}

/* Each thread on the core where it is, or on a free one; or all wherever the process may be. */
static void
team_bind(bool bound)
{
	cpu_set_t *taken = om_alloc(team.bytes, 1), *one = om_alloc(team.bytes, 1);

	for (int i = 0; i < team.n; i++) {
		int core = core_of(team.id[i]);

		if (core < 0 || !CPU_ISSET_S((size_t)core, team.bytes, team.set) ||
		    CPU_ISSET_S((size_t)core, team.bytes, taken))
			for (core = 0; !CPU_ISSET_S((size_t)core, team.bytes, team.set) ||
				       CPU_ISSET_S((size_t)core, team.bytes, taken);)
				core++;
		CPU_SET_S((size_t)core, team.bytes, taken);
		CPU_ZERO_S(team.bytes, one);
		CPU_SET_S((size_t)core, team.bytes, one);
		/* what the kernel refuses changes speed alone */
		(void)sched_setaffinity(team.id[i], team.bytes, bound ? one : team.set);
	}
	free(taken);
	free(one);
}

void
om_spin_apart(bool begins)
{
	const long self = syscall(SYS_gettid);

	apart_swap(begins ? 0 : self, begins ? self : 0);
	if (begins && team.n) /* who made it may keep to a core */
		(void)sched_setaffinity(0, team.bytes, team.set);
}

static struct om_work work;
static pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;

void
om_spin_work(uint32_t done)
{
	pthread_mutex_lock(&work_lock);
	work.done += done;
	work.at = om_now();
	pthread_mutex_unlock(&work_lock);
}

static void *
watch(void *unused)
{
	struct om_spin s = { .on = false };

	prctl(PR_SET_NAME, "om-spin");
	for (;;) {
		struct om_work w;
		nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
		double now = om_now();
		pthread_mutex_lock(&work_lock);
		w = work;
		pthread_mutex_unlock(&work_lock);
		bool bound = s.bound, loaded = om_spin_loaded("/proc/self/task", now);
		__atomic_store_n(
		    &gomp_spin_count_var, om_spin_choose(&s, loaded, now, &w), __ATOMIC_RELAXED);
		if (s.bound != bound)
			team_bind(s.bound);
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
	team_find();
	gomp_spin_count_var = om_spin_loaded("/proc/self/task", om_now()) ? SPIN_SHORT : SPIN_LONG;
	/* signals are for the thread that trains: their handlers end what it waits for */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, watch, NULL) == 0)
		pthread_detach(thread);
	else
		gomp_spin_count_var = SPIN_SHORT;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}
