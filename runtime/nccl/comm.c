/*
 * Ranks that meet by themselves, over TCP. Their messages are of small things in memory of the
 * host. They do not block, so that a wait can say whom it is for and no order of them locks up.
 */
#define _GNU_SOURCE /* sets of cores */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "control.h"
#include "om_rt.h"
#include "ranks.h"

struct head {
	uint32_t tag, unused;
	uint64_t bytes;
};
struct message {
	struct message *next;
	struct om_flight *of; /* NULL: nobody has asked for it yet */
	struct message *to;   /* of one that came early: who has asked since */
	uint32_t peer;
	struct head head;
	uint64_t at; /* bytes that are sent or here; of one to be sent its head's first */
	unsigned char *p;
	bool matched, landed;
};
struct om_flight {
	struct message **message;
	uint32_t n, most, up; /* up: that have not landed */
};
struct link {
	int fd;                     /* -1: there is none yet */
	struct message *out, **end; /* to be sent, in order */
	struct head head;           /* of what comes */
	uint32_t headed;            /* bytes of it that are here */
	struct message *in;         /* what comes */
};

static struct om_self self = { .world = 1 };
static struct link *link_of;                        /* [world] */
static struct message *asked, **asked_end = &asked; /* for which nothing has come */
static struct message *early, **early_end = &early; /* came before it was asked for */
static int listener = -1;
static double timeout = 600;
static uint32_t members = 1, threads;
static const struct om_model *models; /* of all stages */

/* ---- messages -------------------------------------------------------------------------------- */

struct om_flight *
om_flight_new(void)
{
	return om_alloc(1, sizeof(struct om_flight));
}

bool
om_flight_up(const struct om_flight *f)
{
	return f->n;
}

static void
take_out(struct message **list, struct message ***end, struct message *m)
{
	struct message **at = list;

	while (*at != m)
		at = &(*at)->next;
	*at = m->next;
	if (*end == &m->next)
		*end = at;
	m->next = NULL;
}

static void
append(struct message ***end, struct message *m)
{
	**end = m;
	*end = &m->next;
}

static struct message *
find(struct message *list, uint32_t peer, uint32_t tag)
{
	while (list && (list->matched || list->peer != peer || list->head.tag != tag))
		list = list->next;
	return list;
}

static void
landed(struct message *m)
{
	m->landed = true;
	m->of->up--;
}

static _Noreturn void
gone(uint32_t peer, const char *what)
{
	om_lost(what,
	    "%s is gone: it was killed, or crashed; train again, from the last checkpoint",
	    om_seat_text(peer));
}

/* The higher of two ranks connects, the lower one is there already: it listens from the start. */
static void
reach(uint32_t peer, const char *what)
{
	struct link *l = &link_of[peer];

	if (l->fd >= 0 || peer > self.rank)
		return;
	if ((l->fd = om_meet_connect(peer)) < 0)
		gone(peer, what);
}

static void
same_size(const struct message *m, uint64_t bytes)
{
	if (m->head.bytes != bytes)
		om_die("messages", "internal error: %s sends %llu bytes where %llu are asked for",
		    om_seat_text(m->peer), (unsigned long long)bytes,
		    (unsigned long long)m->head.bytes);
}

void
om_post(struct om_flight *f, const char *what, bool send, uint32_t peer, uint32_t tag, void *p,
    uint64_t bytes)
{
	struct message *m, *was;

	if (!bytes)
		return;
	if (f->n == f->most) {
		f->most = f->most ? 2 * f->most : 16;
		if (!(f->message = realloc(f->message, f->most * sizeof(struct message *))))
			om_die("memory", "cannot hold %u messages", f->most);
	}
	m = f->message[f->n++] = om_alloc(1, sizeof *m);
	*m = (struct message){ .of = f, .peer = peer, .p = p };
	m->head.tag = tag;
	m->head.bytes = bytes;
	f->up++;
	reach(peer, what);
	if (send) {
		append(&link_of[peer].end, m);
		return;
	}
	if (!(was = find(early, peer, tag))) {
		append(&asked_end, m);
		return;
	}
	same_size(m, was->head.bytes);
	was->matched = true;
	if (was->at < bytes) { /* the rest is on its way */
		was->to = m;
		return;
	}
	memcpy(p, was->p, bytes);
	take_out(&early, &early_end, was);
	free(was->p);
	free(was);
	landed(m);
}

static void
send_more(struct link *l)
{
	struct message *m;

	while ((m = l->out)) {
		const uint64_t heads = sizeof m->head, all = heads + m->head.bytes;
		const void *from = m->at < heads ? (const char *)&m->head + m->at
						 : (const char *)m->p + (m->at - heads);
		ssize_t n = send(l->fd, from, m->at < heads ? heads - m->at : all - m->at,
		    MSG_NOSIGNAL | MSG_DONTWAIT | (m->at < heads ? MSG_MORE : 0));

		if (n <= 0)
			return; /* it takes no more, or is gone, which reading shows */
		if ((m->at += (uint64_t)n) < all)
			continue;
		if (!(l->out = m->next))
			l->end = &l->out;
		landed(m);
	}
}

/* A message begins: of who has asked for it, or it waits for that. */
static struct message *
begin(uint32_t peer, const struct head *h)
{
	struct message *m = find(asked, peer, h->tag);

	if (m) {
		same_size(m, h->bytes);
		take_out(&asked, &asked_end, m);
		return m;
	}
	m = om_alloc(1, sizeof *m);
	m->peer = peer;
	m->head = *h;
	m->p = om_alloc(h->bytes, 1);
	append(&early_end, m);
	return m;
}

static void
complete(struct message *m)
{
	struct message *to = m->to;

	if (m->of) {
		landed(m);
	} else if (to) {
		memcpy(to->p, m->p, m->head.bytes);
		landed(to);
		take_out(&early, &early_end, m);
		free(m->p);
		free(m);
	}
}

/* False: the other end is closed. */
static bool
receive_more(uint32_t peer)
{
	struct link *l = &link_of[peer];

	for (;;) {
		struct message *m = l->in;
		void *to = m ? m->p + m->at : (unsigned char *)&l->head + l->headed;
		size_t room = m ? m->head.bytes - m->at : sizeof l->head - l->headed;
		ssize_t n = recv(l->fd, to, room, MSG_DONTWAIT);

		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		if (n == 0)
			return false;
		if (!m) {
			if ((l->headed += (uint32_t)n) < sizeof l->head)
				continue;
			l->headed = 0;
			l->in = begin(peer, &l->head);
		} else if ((m->at += (uint64_t)n) == m->head.bytes) {
			l->in = NULL;
			complete(m);
		}
	}
}

static bool
waits_for(const struct om_flight *f, uint32_t peer)
{
	for (uint32_t i = 0; i < f->n; i++)
		if (f->message[i]->peer == peer && !f->message[i]->landed)
			return true;
	return false;
}

/* What can be sent and received within so many milliseconds. */
static void
progress(const struct om_flight *f, const char *what, int ms)
{
	static struct pollfd *p;
	const uint32_t n = self.world;
	uint32_t who;
	int fd;

	if (!p)
		p = om_alloc(n + 1, sizeof *p);
	for (uint32_t r = 0; r < n; r++) {
		const struct link *l = &link_of[r];

		p[r] = (struct pollfd){ l->fd, (short)(POLLIN | (l->out ? POLLOUT : 0)), 0 };
	}
	p[n] = (struct pollfd){ listener, POLLIN, 0 };
	if (poll(p, n + 1, ms) <= 0)
		return;
	if (p[n].revents && (fd = om_meet_accept(listener, &who)) >= 0) {
		if (who < n && link_of[who].fd < 0)
			link_of[who].fd = fd;
		else
			close(fd);
	}
	for (uint32_t r = 0; r < n; r++) {
		if (p[r].revents & POLLOUT)
			send_more(&link_of[r]);
		if (!(p[r].revents & ~POLLOUT) || receive_more(r))
			continue;
		close(link_of[r].fd);
		link_of[r].fd = -1;
		if (f->up && waits_for(f, r))
			gone(r, what);
	}
}

static _Noreturn void
give_up(const struct om_flight *f, const char *what)
{
	const struct om_seat *own = om_seat(self.rank);
	const char *stopped = "";
	char whom[200] = "";
	size_t used = 0;

	for (uint32_t r = 0; r < self.world && used + 80 < sizeof whom; r++) {
		char state;

		if (!waits_for(f, r))
			continue;
		state = om_seat(r)->machine == own->machine ? om_process_state(om_seat(r)->pid) : 0;
		if (state == 'T' || state == 't')
			stopped = om_text("; %s is stopped (SIGSTOP)", om_seat_text(r));
		used += (size_t)snprintf(
		    whom + used, sizeof whom - used, "%s%s", used ? ", " : "", om_seat_text(r));
	}
	om_lost(what, "no answer from %s within %.0f s%s; comm.timeout in run.yaml is the limit",
	    whom, timeout, stopped);
}

void
om_land(struct om_flight *f, const char *what)
{
	double began = om_now(), last = began;
	const char *was = om_watchdog_at(NULL); /* this has a limit of its own */

	while (f->up) {
		double t;

		progress(f, what, 200);
		t = om_now();
		if (t - last > 5) /* all of them were stopped, and go on */
			began += t - last;
		last = t;
		if (f->up && t - began > timeout)
			give_up(f, what);
	}
	while (f->n)
		free(f->message[--f->n]);
	om_watchdog_at(was);
}

/* ---- descriptors, and the word that ends waits on the device --------------------------------- */

/* The socket of a rank of this machine: a name that goes with the process, in no folder. */
static socklen_t
name_of(uint32_t rank, struct sockaddr_un *a)
{
	memset(a, 0, sizeof *a);
	a->sun_family = AF_UNIX;
	return (socklen_t)(sizeof(sa_family_t) + 1 +
			   (size_t)snprintf(a->sun_path + 1, sizeof a->sun_path - 1,
			       "olmogen-%d-%u", om_seat(0)->pid, rank));
}

static bool
is_near(uint32_t rank)
{
	return om_seat(rank)->machine == om_seat(self.rank)->machine;
}

static void
send_fd(int s, uint32_t to, int fd, const char *what)
{
	struct sockaddr_un a;
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c = { 0 };
	struct iovec v = { &self.rank, sizeof self.rank };
	struct msghdr m = { &a, name_of(to, &a), &v, 1, &c, sizeof c, 0 };
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);

	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(h), &fd, sizeof fd);
	if (sendmsg(s, &m, MSG_NOSIGNAL) < 0)
		om_die(what, "cannot give %s a descriptor: %s", om_seat_text(to), strerror(errno));
}

static int
take_fd(int s, uint32_t *from, const char *what)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c = { 0 };
	struct iovec v = { from, sizeof *from };
	struct msghdr m = { NULL, 0, &v, 1, &c, sizeof c, 0 };
	struct cmsghdr *h;
	int fd = -1;

	if (recvmsg(s, &m, MSG_CMSG_CLOEXEC) != sizeof *from || !(h = CMSG_FIRSTHDR(&m)) ||
	    h->cmsg_type != SCM_RIGHTS || *from >= self.world)
		om_die(what, "cannot take another rank's descriptor: %s", strerror(errno));
	memcpy(&fd, CMSG_DATA(h), sizeof fd);
	return fd;
}

void
om_share_fd(const char *what, int fd, int *got)
{
	struct sockaddr_un a;
	socklen_t n = name_of(self.rank, &a);
	int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (s < 0 || bind(s, (struct sockaddr *)&a, n) != 0)
		om_die(what, "cannot make a socket for descriptors: %s", strerror(errno));
	om_barrier(what);
	/* rank by rank, so that no queue is ever full */
	for (uint32_t r = 0; r < self.world; r++) {
		got[r] = -1;
		if (r == self.rank) {
			got[r] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
			for (uint32_t to = 0; to < self.world; to++)
				if (to != r && is_near(to))
					send_fd(s, to, fd, what);
		} else if (is_near(r)) {
			struct pollfd p = { s, POLLIN, 0 };
			uint32_t from = r;

			if (poll(&p, 1, (int)(1e3 * timeout)) != 1)
				om_lost(what,
				    "no descriptor from %s within %.0f s; comm.timeout in "
				    "run.yaml is the limit",
				    om_seat_text(r), timeout);
			got[r] = take_fd(s, &from, what);
			if (from != r)
				om_die(what, "internal error: a descriptor of rank %u", from);
		}
		om_barrier(what);
	}
	close(s);
}

static uint32_t *abort_word;

uint32_t *
om_abort_word(void)
{
	return abort_word;
}

void
om_abort_word_is(uint32_t *word)
{
	abort_word = word;
}

/* ---- start and end --------------------------------------------------------------------------- */

void
om_comm_timeout(double seconds)
{
	timeout = seconds;
	om_life_limit(seconds);
}

double
om_comm_limit(void)
{
	return timeout;
}

uint32_t
om_comm_threads(void)
{
	return threads;
}

uint32_t
om_comm_members(void)
{
	return members;
}

uint32_t
om_comm_local(void)
{
	const char *given = getenv("LOCAL_RANK");

	return !om_met() ? 0
	       : given   ? (uint32_t)strtoul(given, NULL, 10)
			 : om_seat(self.rank)->local;
}

void
om_comm_device(void)
{
	if (self.world > 1)
		om_nccl_start(models);
}

void
om_comm_needs(char needs[64], char here[64])
{
	om_nccl_version(needs, here);
}

void
om_comm_waits(bool begins)
{
	om_life_waits(begins);
}

bool
om_comm_first(void)
{
	struct om_self s;

	return !om_self(&s) || !s.rank;
}

/* How many threads each of this machine's ranks may have, by the cores that they run on. */
static void
share_cores(void)
{
	enum { MOST = 1 << 11 }; /* bytes of a set that is told: 16384 cores */
	size_t bytes;
	cpu_set_t *own = om_core_set(&bytes), *all = om_alloc(1, bytes);
	unsigned char *each = om_alloc(self.world, MOST);
	const uint32_t most = (uint32_t)CPU_COUNT_S(bytes, own);

	members = 0;
	memcpy(each + self.rank * MOST, own, bytes < MOST ? bytes : MOST);
	om_all_gather(OM_WORLD, "start", each, (uint64_t)self.world * MOST);
	for (uint32_t r = 0; r < self.world; r++) {
		if (!is_near(r))
			continue;
		members++;
		memcpy(own, each + r * MOST, bytes < MOST ? bytes : MOST);
		CPU_OR_S(bytes, all, all, own);
	}
	threads = (uint32_t)CPU_COUNT_S(bytes, all) / members;
	threads = threads > most ? most : threads;
	threads = threads ? threads : 1;
	free(own);
	free(all);
	free(each);
}

void
om_comm_start(const struct om_model *m, char **argv)
{
	const uint32_t world = (uint32_t)m->mesh.size[OM_WORLD];
	int *life;

	models = m;
	/* before the driver begins: a message that waits must not be in the way of other streams */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	if (!om_self(&self)) {
		self = (struct om_self){ .world = 1 };
		om_comm_launch(world, timeout, argv);
	}
	om_ranks_set(&m->mesh, self.rank);
	if (self.world != world)
		om_die("start",
		    "this trainer is of %u ranks (pipeline %u x data %u), %u were started (by %s); "
		    "start %u, or the trainer itself without a launcher",
		    world, (unsigned)m->mesh.size[OM_PIPELINE], (unsigned)m->mesh.size[OM_DATA],
		    self.world, self.launcher, world);
	om_comm_enter(self.rank, timeout);
	life = om_alloc(world, sizeof *life);
	link_of = om_alloc(world, sizeof *link_of);
	for (uint32_t r = 0; r < world; r++) {
		link_of[r].fd = -1;
		link_of[r].end = &link_of[r].out;
	}
	/* who has started all ranks looks after them until they have met */
	listener = om_meet(&self, getenv("OM_MEET") ? timeout + 10 : timeout, life);
	om_comm_stage(OM_RUNS);
	om_life_start(&self, life, timeout);
	free(life);
	share_cores();
	if (self.rank && !freopen("/dev/null", "w", stdout)) /* rank 0 speaks for all */
		om_die("start", "/dev/null: %s", strerror(errno));
}

void
om_comm_end(void)
{
	if (!link_of)
		return;
	om_barrier("end");
	fflush(stdout);
	om_comm_stage(OM_ENDS);
	om_life_end();
}

bool
om_comm_speaks(void)
{
	/* what ends a rank before it seeks the others is what it was given: all got the same */
	return (om_met() || !self.rank) && om_life_speaks() && om_comm_spoke();
}

void
om_comm_abort(int status, bool spoke)
{
	if (!link_of)
		exit(status);
	om_life_abort(status, spoke);
}
