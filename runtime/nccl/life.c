/*
 * The ranks' lives: a thread of each, beside whatever the main thread waits for. Rank 0's hears the
 * others twice a second. Whoever is about to say why the run ends asks it first, and only the first
 * one does; then it has all others end. A connection that breaks is a rank that is gone.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control.h"
#include "om_rt.h"
#include "ranks.h"

enum { BEAT = 1, ASK, YES, NO, END, BYE };
struct word {
	uint32_t kind;
	int32_t status; /* of END; of BEAT: for how many seconds it has waited for its device */
};

static struct {
	struct om_self self;
	int *fd;       /* of each rank; -1: none */
	double *heard; /* seconds since, by this thread's own naps */
	bool *left;    /* it said that it ends */
	void (*look)(void);
	pthread_t thread;
	pthread_mutex_t write;
	_Atomic double limit;
	atomic_bool on, told, ending, leaves, waits;
	atomic_uint turn;  /* of the waits for the device, which is under way */
	double *waited;    /* seconds that a rank has waited for its device */
	atomic_int answer; /* to ASK: YES or NO */
} life = { .write = PTHREAD_MUTEX_INITIALIZER, .limit = 600 };

static void
tell(uint32_t rank, uint32_t kind, int status)
{
	struct word w = { kind, status };

	pthread_mutex_lock(&life.write);
	/* so little that it fits, or nobody reads it */
	if (life.fd[rank] >= 0)
		(void)!send(life.fd[rank], &w, sizeof w, MSG_NOSIGNAL | MSG_DONTWAIT);
	pthread_mutex_unlock(&life.write);
}

static void
tell_all(uint32_t kind, int status)
{
	for (uint32_t r = 0; r < life.self.world; r++)
		tell(r, kind, status);
}

/* By rank 0, which has told all: a word that came to nobody would take back what they were told. */
static void
hear_out(void)
{
	const double until = om_now() + 1;
	char text[256];

	for (uint32_t r = 1; r < life.self.world; r++) {
		struct pollfd p = { life.fd[r], POLLIN, 0 };
		ssize_t n = 1;

		shutdown(p.fd, SHUT_WR);
		while (p.fd >= 0 && n > 0 && om_now() < until)
			n = poll(&p, 1, 50) == 1 ? recv(p.fd, text, sizeof text, 0) : 1;
	}
}

/* Ends this process, after the others were told where that is rank 0's to do. */
static _Noreturn void
leave(int status)
{
	uint32_t *word = om_abort_word();

	while (atomic_exchange(&life.leaves, true))
		pause(); /* the other thread ends it already, with its status */
	if (word)
		*(volatile uint32_t *)word = 1; /* kernels that wait for a rank do so no more */
	if (!life.self.rank) {
		tell_all(END, status);
		hear_out();
	}
	if (ftrylockfile(stdout) == 0) { /* what rank 0 has printed so far */
		fflush(stdout);
		funlockfile(stdout);
	}
	_exit(status);
}

/* What a rank says, or that it says nothing any more. */
static void
hear(uint32_t r)
{
	struct word w = { 0 };
	ssize_t n = recv(life.fd[r], &w, sizeof w, MSG_WAITALL);

	life.heard[r] = 0;
	if (n < 0 && errno == EINTR)
		return;
	if (n != sizeof w) { /* it has ended */
		pthread_mutex_lock(&life.write);
		close(life.fd[r]);
		life.fd[r] = -1;
		pthread_mutex_unlock(&life.write);
		if (life.left[r] || life.ending)
			return;
		if (life.self.rank) { /* rank 0: another one has to speak */
			if (life.self.rank > 1)
				sleep(1);
			else if (!atomic_exchange(&life.told, true))
				om_lost_here("ranks",
				    "%s is gone: it was killed, or crashed; train again, from the "
				    "last checkpoint",
				    om_seat_text(r));
			leave(OM_EXIT_LOST);
		}
		if (!life.told)
			om_lost("ranks",
			    "%s is gone: it was killed, or crashed; train again, from the last "
			    "checkpoint",
			    om_seat_text(r));
		leave(OM_EXIT_LOST); /* it, or another one, has said why */
	}
	if (w.kind == BEAT)
		life.waited[r] = w.status;
	if (w.kind == ASK)
		tell(r, atomic_exchange(&life.told, true) ? NO : YES, 0);
	if (w.kind == YES || w.kind == NO)
		life.answer = (int)w.kind;
	if (w.kind == END)
		leave(w.status);
	if (w.kind == BYE)
		life.left[r] = true;
}

/* By rank 0, of those that are silent; by the others, of rank 0. */
static void
check_silence(uint32_t r)
{
	const struct om_seat *s = om_seat(r), *own = om_seat(life.self.rank);
	char state = s->machine == own->machine ? om_process_state(s->pid) : 0;
	bool stopped = state == 'T' || state == 't';

	if (life.heard[r] < life.limit + (life.self.rank ? 5 * life.self.rank : 0))
		return;
	om_lost("ranks", "no answer from %s within %.0f s%s; comm.timeout in run.yaml is the limit",
	    om_seat_text(r), life.limit, stopped ? "; it is stopped (SIGSTOP)" : "");
}

/* By rank 0: whoever does not wait for the device is waited for. */
static void
check_waits(void)
{
	uint32_t most = 0, least = 0;

	for (uint32_t r = 1; r < life.self.world; r++) {
		most = life.waited[r] > life.waited[most] ? r : most;
		least = life.waited[r] < life.waited[least] ? r : least;
	}
	if (life.waited[most] < life.limit)
		return;
	if (life.waited[least] < life.limit / 2)
		om_lost("ranks",
		    "no answer from %s within %.0f s: others wait for it on their devices; "
		    "comm.timeout in run.yaml is the limit",
		    om_seat_text(least), life.limit);
	om_lost("device",
	    "what all ranks do together has not ended within %.0f s on any of their devices: the "
	    "network or a device hangs; comm.timeout in run.yaml is the limit",
	    life.limit);
}

static void *
watch(void *arg)
{
	const uint32_t world = life.self.world;
	const double nap = 0.1;
	struct pollfd *p = om_alloc(world, sizeof *p);
	double last = om_now(), spoke = 0, *waited = &life.waited[life.self.rank];
	unsigned turn = 0;

	(void)arg;
	while (life.on) {
		double now, gone;

		for (uint32_t r = 0; r < world; r++)
			p[r] = (struct pollfd){ life.fd[r], POLLIN, 0 };
		poll(p, world, (int)(1e3 * nap));
		for (uint32_t r = 0; r < world; r++)
			if (life.fd[r] >= 0 && p[r].revents)
				hear(r);
		now = om_now();
		gone =
		    now - last < 1 ? now - last : nap; /* while this process was stopped, nothing */
		last = now;
		spoke += gone;
		*waited = life.waits && life.turn == turn ? *waited + gone : 0;
		turn = life.turn;
		if (spoke >= 0.5) {
			tell_all(BEAT, (int)*waited);
			spoke = 0;
		}
		if (!life.self.rank && !life.ending)
			check_waits();
		for (uint32_t r = 0; r < world; r++)
			if (life.fd[r] >= 0 && !life.left[r] && !life.ending) {
				life.heard[r] += gone;
				check_silence(r);
			}
		if (life.look && !life.ending)
			life.look();
	}
	free(p);
	return NULL;
}

void
om_life_start(const struct om_self *s, const int *fd, double limit)
{
	sigset_t all, old;

	life.self = *s;
	life.limit = limit;
	life.fd = om_alloc(s->world, sizeof *life.fd);
	life.heard = om_alloc(s->world, sizeof *life.heard);
	life.left = om_alloc(s->world, sizeof *life.left);
	life.waited = om_alloc(s->world, sizeof *life.waited);
	memcpy(life.fd, fd, s->world * sizeof *fd);
	life.on = true;
	sigfillset(&all); /* signals are the main thread's */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&life.thread, NULL, watch, NULL) != 0)
		om_die("start", "cannot start a thread");
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void
om_life_limit(double seconds)
{
	life.limit = seconds;
}

void
om_life_each(void (*look)(void))
{
	life.look = look;
}

void
om_life_waits(bool begins)
{
	life.turn += begins;
	life.waits = begins;
}

void
om_life_end(void)
{
	if (!life.on)
		return;
	life.ending = true;
	tell_all(BYE, 0);
	for (int i = 0; i < 20 && !life.self.rank; i++) { /* rank 0 goes last */
		bool all = true;

		for (uint32_t r = 1; r < life.self.world; r++)
			all = all && (life.left[r] || life.fd[r] < 0);
		if (all)
			break;
		usleep(100000);
	}
	life.on = false;
	pthread_join(life.thread, NULL);
}

bool
om_life_speaks(void)
{
	if (!life.on || !life.self.rank)
		return !atomic_exchange(&life.told, true);
	if (atomic_exchange(&life.told, true))
		return false;
	if (life.fd[0] < 0)
		return life.self.rank == 1;
	tell(0, ASK, 0);
	for (int i = 0; i < 30 && !life.answer; i++) {
		if (pthread_equal(pthread_self(), life.thread)) { /* nobody else listens */
			struct pollfd p = { life.fd[0], POLLIN, 0 };

			if (poll(&p, 1, 100) == 1)
				hear(0);
		} else {
			usleep(100000);
		}
	}
	return life.answer != NO;
}

void
om_life_abort(int status, bool spoke)
{
	if (!life.on)
		_exit(status);
	if (life.self.rank && spoke) {
		tell(0, END, status);
		leave(status);
	}
	if (!spoke) /* who spoke is about to end all; it may have its last words to write */
		sleep(2);
	leave(status);
}
