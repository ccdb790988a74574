/* The process: descriptors, how many threads there are, and their stacks. */
#define _GNU_SOURCE /* sets of cores */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "om_rt.h"

/* THREADS_CORE: more on each core wait for one another; a GEMM keeps its tiles on the stack */
enum { THREADS_MOST = 4096, THREADS_CORE = 16, STACK_LEAST = 1 << 20 };

void
om_proc_start(void)
{
	int fd;

	signal(SIGXFSZ, SIG_IGN); /* a file beyond ulimit -f is an error of write, which says so */
	/* a file that is opened must not become what is printed to */
	while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO)
		;
	if (fd >= 0)
		close(fd);
}

const char *
om_proc_count(const char **name)
{
	/* of Open MPI; of MPICH, Intel MPI and others with PMI; of srun */
	static const char *const names[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
		"SLURM_STEP_NUM_TASKS" };

	for (size_t i = 0; i < OM_LEN(names); i++) {
		const char *n = getenv(*name = names[i]);

		if (n && strtol(n, NULL, 10) > 1)
			return n;
	}
	return NULL;
}

/* ---- cores ----------------------------------------------------------------------------------- */

void *
om_core_set(size_t *bytes)
{
	enum { MOST = 1 << 20 };

	/* the kernel refuses a set that is smaller than its own, whose size it tells nobody */
	for (int n = CPU_SETSIZE; n <= MOST; n *= 2) {
		cpu_set_t *set = om_alloc(*bytes = CPU_ALLOC_SIZE(n), 1);

		if (sched_getaffinity(0, *bytes, set) == 0)
			return set;
		free(set);
		if (errno != EINVAL)
			break;
	}
	om_die("start", "cannot tell the cores of this process: sched_getaffinity: %s",
	    strerror(errno));
}

/* The two numbers of a control group's limit: microseconds of all cores in a period of so many. */
static bool
limit_of(const char *dir, bool unified, double *cores)
{
	static const char *const file[][2] = { { "cpu.cfs_quota_us", "cpu.cfs_period_us" },
		{ "cpu.max", NULL } };
	char text[100] = "";
	double quota = 0, period = 0;

	for (int i = 0; i < 2 && file[unified][i]; i++) {
		char *path = om_text("%s/%s", dir, file[unified][i]);
		size_t used = strlen(text), n;
		char *s = om_file_read(path, sizeof text / 2 - 1, &n);

		snprintf(text + used, sizeof text - used, "%s ", s ? s : "");
		free(s);
		free(path);
	}
	/* no limit is "max 100000", or -1 */
	if (sscanf(text, "%lf %lf", &quota, &period) != 2 || quota <= 0 || period <= 0)
		return false;
	*cores = quota / period;
	return true;
}

double
om_core_limit(const char *groups, const char *root)
{
	size_t length;
	char *text = om_file_read(groups, 1 << 20, &length), *rest = text, *line;
	double least = 0, cores;

	/* lines are NUMBER:CONTROLLERS:PATH; the unified hierarchy's has no controllers */
	while (text && (line = strsep(&rest, "\n"))) {
		char *path, *names, *name;
		bool unified, counts;

		strsep(&line, ":");
		names = strsep(&line, ":");
		if (!(path = line))
			continue;
		unified = counts = !*names;
		while ((name = strsep(&names, ",")))
			counts = counts || strcmp(name, "cpu") == 0;
		/* groups above have limits too; in a container only its own can be seen, as root */
		for (char *end = path + strlen(path); counts && end >= path; end--) {
			if (*end && *end != '/')
				continue;
			*end = 0;
			char *dir = om_text("%s%s%s", root, unified ? "" : "/cpu", path);
			if (limit_of(dir, unified, &cores) && (!least || cores < least))
				least = cores;
			free(dir);
		}
	}
	free(text);
	return least;
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *
wait_for(void *gate)
{
	pthread_mutex_lock(gate);
	pthread_mutex_unlock(gate);
	return NULL;
}

/* Bytes that OMP_STACKSIZE's text asks for, kibibytes where it names no unit; 0: none. */
static uint64_t
stack_bytes(const char *s)
{
	static const char unit[] = "BKMG";
	char *end = NULL;
	uint64_t n = s ? strtoull(s, &end, 10) : 0;
	const char *u;

	if (!n)
		return 0;
	end += strspn(end, " \t");
	u = *end ? strchr(unit, *end & ~32) : unit + 1; /* & ~32: in capitals */
	return u && n <= UINT64_MAX >> 30 ? n << 10 * (u - unit) : 0;
}

/* What the environment wants threads' stacks to have, and its variable; 0: nothing. */
static uint64_t
stack_asked(const char **name)
{
	uint64_t n = stack_bytes(getenv(*name = "OMP_STACKSIZE"));

	return n ? n : stack_bytes(getenv(*name = "GOMP_STACKSIZE"));
}

/*
 * How many of n threads this machine makes, with the stacks that libgomp would give them; it would
 * end the process without a word of why.
 */
static int
threads_made(int n)
{
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	pthread_t *thread = om_alloc((size_t)n, sizeof *thread);
	pthread_attr_t attr;
	const char *name;
	uint64_t stack = stack_asked(&name);
	int made = 1; /* this one */

	pthread_attr_init(&attr);
	if (stack)
		pthread_attr_setstacksize(&attr, stack);
	pthread_mutex_lock(&gate);
	while (made < n && pthread_create(&thread[made], &attr, wait_for, &gate) == 0)
		made++;
	pthread_mutex_unlock(&gate);
	for (int i = 1; i < made; i++)
		pthread_join(thread[i], NULL);
	pthread_attr_destroy(&attr);
	free(thread);
	return made;
}

/* Too small a stack is a segmentation fault in the first large operator. */
static void
check_stack(void)
{
	struct rlimit limit;
	const char *name;
	uint64_t n = stack_asked(&name);

	if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < STACK_LEAST)
		om_die("stack", "is %s (ulimit -s), operators need %s; raise it by ulimit -s 8192",
		    om_bytes(limit.rlim_cur), om_bytes(STACK_LEAST));
	if (n && n < STACK_LEAST)
		om_die("stack", "of threads is %s (%s), operators need %s; unset it", om_bytes(n),
		    name, om_bytes(STACK_LEAST));
}

void
om_threads(uint64_t n)
{
	int asked = n ? (int)n : omp_get_max_threads(), cores = omp_get_num_procs(), made;
	int most = cores < THREADS_MOST / THREADS_CORE ? cores * THREADS_CORE : THREADS_MOST;
	double limit = om_core_limit("/proc/self/cgroup", "/sys/fs/cgroup") / om_comm_members();

	if (!n && !getenv("OMP_NUM_THREADS")) {
		if (om_comm_threads())
			asked = (int)om_comm_threads();
		/* more would use up the group's time early, and all stop until its period ends */
		if (limit > 0 && asked > limit)
			asked = (int)ceil(limit);
	}
	check_stack();
	if (asked > most) {
		printf(
		    "threads: %d are asked for, %d are tried: %d for each of %d cores, more would "
		    "wait for one another\n",
		    asked, most, THREADS_CORE, cores);
		asked = most;
	}
	made = threads_made(asked < omp_get_thread_limit() ? asked : omp_get_thread_limit());
	if (made < asked)
		printf("threads: %d are asked for, %d can be made here\n", asked, made);
	omp_set_num_threads(made);
	if (made > 1)
		om_spin_start();
}

static void *
beside(void *arg)
{
	struct om_beside *b = arg;

	om_spin_apart(true);
	b->run(b->arg);
	om_spin_apart(false);
	b->done = true;
	return NULL;
}

void
om_beside(struct om_beside *b, void (*run)(void *arg), void *arg)
{
	sigset_t all, old;

	om_beside_end(b);
	b->run = run;
	b->arg = arg;
	b->done = false;
	sigfillset(&all); /* signals are for the main thread */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	b->on = pthread_create(&b->thread, NULL, beside, b) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!b->on) /* no thread is to be had: the main one does it */
		run(arg);
}

bool
om_beside_busy(const struct om_beside *b)
{
	return b->on && !b->done;
}

void
om_beside_end(struct om_beside *b)
{
	if (b->on)
		pthread_join(b->thread, NULL);
	b->on = false;
}
