/* The process: descriptors, how idle threads wait, how many there are, and their stacks. */
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "om_rt.h"

enum { THREADS_MOST = 4096, STACK_LEAST = 1 << 20 }; /* a GEMM keeps its tiles on the stack */

void
om_proc_start(char **argv)
{
	int fd;

	/* a file that is opened must not become what is printed to */
	while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO)
		;
	if (fd >= 0)
		close(fd);
	/*
	 * libgomp's threads spin while they wait, and where cores are shared they spin away the
	 * time of the one they wait for; asleep they are slow to wake. So they spin for some tens
	 * of microseconds, an operator's gap, and then sleep. It reads its policy before main. That
	 * the name is set ends the loop; a kernel that says no leaves a trainer that is slower.
	 */
	if (getenv("OMP_WAIT_POLICY") || setenv("OMP_WAIT_POLICY", "passive", 1) != 0 ||
	    setenv("GOMP_SPINCOUNT", "30000", 0) != 0)
		return;
	execv("/proc/self/exe", argv);
}

static void *
wait_for(void *gate)
{
	pthread_mutex_lock(gate);
	pthread_mutex_unlock(gate);
	return NULL;
}

/* How many of n threads this machine makes; libgomp would end the process without a word of why. */
static int
threads_made(int n)
{
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	pthread_t *thread = om_alloc((size_t)n, sizeof *thread);
	int made = 1; /* this one */

	pthread_mutex_lock(&gate);
	while (made < n && pthread_create(&thread[made], NULL, wait_for, &gate) == 0)
		made++;
	pthread_mutex_unlock(&gate);
	for (int i = 1; i < made; i++)
		pthread_join(thread[i], NULL);
	free(thread);
	return made;
}

/* Bytes that OMP_STACKSIZE's text asks for, kibibytes where it names no unit; 0: none. */
static uint64_t
stack_asked(const char *s)
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

/* Too small a stack is a segmentation fault in the first large operator. */
static void
check_stack(void)
{
	static const char *const name[] = { "OMP_STACKSIZE", "GOMP_STACKSIZE" };
	struct rlimit limit;

	if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < STACK_LEAST)
		om_die("stack", "is %s (ulimit -s), operators need %s; raise it by ulimit -s 8192",
		    om_bytes(limit.rlim_cur), om_bytes(STACK_LEAST));
	for (size_t i = 0; i < OM_LEN(name); i++) {
		uint64_t n = stack_asked(getenv(name[i]));

		if (n && n < STACK_LEAST)
			om_die("stack", "of threads is %s (%s), operators need %s; unset it",
			    om_bytes(n), name[i], om_bytes(STACK_LEAST));
	}
}

void
om_threads(uint64_t n)
{
	int asked = n ? (int)n : omp_get_max_threads(), made;

	if (!n && om_comm_threads() && !getenv("OMP_NUM_THREADS"))
		asked = (int)om_comm_threads();
	check_stack();
	made = threads_made(asked < THREADS_MOST ? asked : THREADS_MOST);
	if (made < asked)
		printf("threads: %d are asked for, %d can be made here\n", asked, made);
	omp_set_num_threads(made);
}
