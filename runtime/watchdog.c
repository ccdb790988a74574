/*
 * A thread that ends a run which does not move: a disk or a device that never answers would hold
 * its job until the time limit. Time is counted by the thread's own naps, so that a process that
 * was stopped is not blamed for it. Waits for other ranks are comm.timeout's to end.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "om_rt.h"

static _Atomic(const char *) place; /* NULL: nowhere that is watched */
static atomic_ullong moves;
static double most, waited, since; /* for ranks, of the thread that tells its places */

const char *
om_watchdog_at(const char *what)
{
	const double now = om_now();

	if (since > 0)
		waited += now - since;
	since = what ? 0 : now;
	atomic_fetch_add(&moves, 1);
	return atomic_exchange(&place, what);
}

double
om_watchdog_waited(void)
{
	return waited;
}

static void *
watch(void *arg)
{
	const double nap = most > 4 ? 1 : most / 4;
	const struct timespec t = { (time_t)nap, (long)(1e9 * (nap - (double)(time_t)nap)) };
	unsigned long long seen = 0, now;
	const char *what;
	double stayed = 0;

	(void)arg;
	for (;;) {
		nanosleep(&t, NULL);
		now = atomic_load(&moves);
		what = atomic_load(&place);
		stayed = now == seen && what ? stayed + nap : 0;
		seen = now;
		if (stayed >= most)
			om_lost_here("watchdog",
			    "%s has not ended for %.0f s, and watchdog in run.yaml gives it no "
			    "more; train again, from the last checkpoint",
			    what, most);
	}
	return NULL;
}

void
om_watchdog_start(double seconds)
{
	pthread_t thread;
	sigset_t all, old;

	if (!(seconds > 0))
		return;
	most = seconds;
	sigfillset(&all); /* signals are the main thread's */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, watch, NULL) != 0)
		om_die("watchdog", "cannot start a thread; unset watchdog");
	pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}
