/*
 * How ranks meet: a launcher's environment says which one this is, and where rank 0 listens. All
 * connect there, and are told where all others are. The connection to rank 0 stays, see life.c.
 */
#define _GNU_SOURCE /* accept4 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "om_rt.h"
#include "ranks.h"

enum { PORTS = 16 }; /* that rank 0 may listen at, one after the other */

/* ---- who this is ----------------------------------------------------------------------------- */

/* By the variables that each sets; key: what tells this job from others. */
static const struct launcher {
	const char *name, *rank, *size, *key;
} launchers[] = {
	{ "torchrun", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID" },
	{ "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE" },
	{ "PMI", "PMI_RANK", "PMI_SIZE", "PMI_ID" },
	{ "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID" },
};

static const struct launcher *
launched(uint32_t *rank, uint32_t *world)
{
	for (size_t i = 0; i < OM_LEN(launchers); i++) {
		const char *r = getenv(launchers[i].rank), *n = getenv(launchers[i].size);

		if (!r || !n || strtoul(n, NULL, 10) < 2)
			continue;
		*rank = (uint32_t)strtoul(r, NULL, 10);
		*world = (uint32_t)strtoul(n, NULL, 10);
		return &launchers[i];
	}
	return NULL;
}

bool
om_self(struct om_self *s)
{
	const struct launcher *l = launched(&s->rank, &s->world);

	s->launcher = l ? l->name : NULL;
	return l;
}

static uint64_t
mix(uint64_t h, const void *p, size_t n)
{
	const unsigned char *c = p;

	for (size_t i = 0; i < n; i++) /* FNV-1a */
		h = (h ^ c[i]) * 0x100000001b3;
	return h;
}

/* Processes with the same number are on one machine, and see one another. */
static uint64_t
machine(void)
{
	static const char *const space[] = { "/proc/self/ns/pid", "/proc/self/ns/net" };
	char text[256] = "";
	uint64_t h = 0xcbf29ce484222325;
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
	struct stat st;

	if (f) {
		if (!fgets(text, sizeof text, f))
			text[0] = 0;
		fclose(f);
	}
	h = mix(h, text, strlen(text));
	gethostname(text, sizeof text - 1);
	h = mix(h, text, strlen(text));
	for (size_t i = 0; i < OM_LEN(space); i++)
		if (stat(space[i], &st) == 0)
			h = mix(h, &st.st_ino, sizeof st.st_ino);
	return h;
}

/* ---- where rank 0 is ------------------------------------------------------------------------- */

struct place {
	char host[256];
	uint32_t port, ports; /* the first, and how many */
	const char *file;     /* that says it, NULL: it is known */
	uint64_t key;         /* of the job: who knows it belongs to it */
};

/* The first of "node[07-12,20],other3"; false: there is none. */
static bool
first_host(const char *list, char host[256])
{
	size_t n = strcspn(list, ",["), digits = 0;

	if (!n || n > 200)
		return false;
	memcpy(host, list, n);
	if (list[n] == '[') {
		digits = strcspn(list + n + 1, ",-]");
		if (digits > 40)
			return false;
		memcpy(host + n, list + n + 1, digits);
	}
	host[n + digits] = 0;
	return true;
}

static uint32_t
number_of(const char *name)
{
	const char *s = getenv(name);

	return s ? (uint32_t)strtoul(s, NULL, 10) : 0;
}

static void
find_place(struct place *p, uint32_t world)
{
	const char *address = getenv("MASTER_ADDR"), *nodes = getenv("SLURM_STEP_NODELIST"),
		   *key = NULL;
	uint32_t rank, size, port = number_of("MASTER_PORT"), own = number_of("OM_MEET");
	const struct launcher *l = launched(&rank, &size);

	if (l)
		key = getenv(l->key);
	p->key = mix(0xcbf29ce484222325, key ? key : "", key ? strlen(key) : 0);
	p->key = mix(p->key, &world, sizeof world) ^ own;
	p->ports = PORTS;
	/* torchrun itself listens at its MASTER_PORT */
	p->port = port ? port + 1 : 20000 + (uint32_t)(p->key % 20000);
	if ((p->file = getenv("OM_RENDEZVOUS")) && !own)
		return;
	nodes = nodes ? nodes : getenv("SLURM_JOB_NODELIST");
	if (own) { /* it started itself */
		p->file = NULL;
		p->port = own;
		p->ports = 1;
		snprintf(p->host, sizeof p->host, "127.0.0.1");
	} else if (address && *address) {
		snprintf(p->host, sizeof p->host, "%s", address);
	} else if (number_of("OMPI_COMM_WORLD_LOCAL_SIZE") == world) {
		snprintf(p->host, sizeof p->host, "127.0.0.1");
	} else if (!nodes || strcmp(l->name, "srun") != 0 || !first_host(nodes, p->host)) {
		om_die("start",
		    "nothing says where rank 0 is; set MASTER_ADDR to its host on all ranks "
		    "(mpirun -x MASTER_ADDR=HOST), or OM_RENDEZVOUS to a file that all hosts see");
	}
}

/* By rank 0: where it listens is in the file; the others read it. */
static void
write_place(const char *path, uint32_t port, uint64_t key)
{
	char host[200] = "", *text, *tmp = om_text("%s.new", path);
	int fd;

	gethostname(host, sizeof host - 1);
	text = om_text("%s %u %llu\n", host, port, (unsigned long long)key);
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || !om_write_all(fd, text, strlen(text)) || close(fd) != 0 ||
	    rename(tmp, path) != 0)
		om_die("start", "%s: %s; OM_RENDEZVOUS names a file that all hosts see", path,
		    strerror(errno));
	free(text);
	free(tmp);
}

static bool
read_place(struct place *p)
{
	unsigned long long key;
	FILE *f = fopen(p->file, "r");
	bool good = f && fscanf(f, "%199s %u %llu", p->host, &p->port, &key) == 3;

	if (f)
		fclose(f);
	if (good)
		p->key = key;
	p->ports = 1;
	return good;
}

/* ---- sockets --------------------------------------------------------------------------------- */

static void
settle(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
}

/* All n bytes within some seconds, or false. */
static bool
transfer(int fd, bool out, void *p, size_t n, double seconds)
{
	double until = om_now() + seconds;

	for (size_t at = 0; at < n;) {
		double left = until - om_now();
		struct pollfd w = { fd, out ? POLLOUT : POLLIN, 0 };
		ssize_t k;

		if (left <= 0 || poll(&w, 1, (int)(1e3 * left) + 1) < 0)
			return false;
		if (!w.revents)
			continue;
		k = out ? send(fd, (char *)p + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT)
			: recv(fd, (char *)p + at, n - at, MSG_DONTWAIT);
		if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
			return false;
		at += k > 0 ? (size_t)k : 0;
	}
	return true;
}

/* Listens at a port, 0: any that is free; -1: it is taken. */
static int
listen_at(uint32_t port)
{
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
	struct sockaddr_in a4 = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int one = 1, none = 0, fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool six = fd >= 0;

	if (six) { /* and IPv4 with it */
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &none, sizeof none);
		six = bind(fd, (struct sockaddr *)&a6, sizeof a6) == 0;
		if (!six) {
			bool taken = errno == EADDRINUSE;

			close(fd);
			if (taken)
				return -1;
		}
	}
	if (!six) {
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			om_die("start", "cannot make a socket: %s", strerror(errno));
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(fd, (struct sockaddr *)&a4, sizeof a4) != 0) {
			close(fd);
			return -1;
		}
	}
	if (listen(fd, 1024) != 0)
		om_die("start", "cannot listen: %s", strerror(errno));
	return fd;
}

/* The address and port of a socket's own end, or of the other one, as of IPv6. */
static void
end_of(int fd, bool other, uint8_t address[16], uint16_t *port)
{
	struct sockaddr_storage s = { 0 };
	struct sockaddr *to = (struct sockaddr *)&s;
	socklen_t n = sizeof s;

	if ((other ? getpeername(fd, to, &n) : getsockname(fd, to, &n)) != 0)
		om_die("start", "cannot tell a socket's address: %s", strerror(errno));
	memset(address, 0, 16);
	if (s.ss_family == AF_INET6) {
		const struct sockaddr_in6 *a = (const void *)&s;

		memcpy(address, &a->sin6_addr, 16);
		*port = ntohs(a->sin6_port);
	} else {
		const struct sockaddr_in *a = (const void *)&s;

		address[10] = address[11] = 0xff;
		memcpy(address + 12, &a->sin_addr, 4);
		*port = ntohs(a->sin_port);
	}
}

static bool
is_loopback(const uint8_t a[16])
{
	static const uint8_t one[16] = { [15] = 1 };

	return memcmp(a, one, 16) == 0 || (a[10] == 0xff && a[12] == 127);
}

/* Connects within a few seconds; -1: not. */
static int
connect_to(const struct sockaddr *a, socklen_t n)
{
	int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
	struct pollfd w = { fd, POLLOUT, 0 };
	socklen_t size = sizeof error;

	if (fd < 0)
		return -1;
	if (connect(fd, a, n) != 0 &&
	    (errno != EINPROGRESS || poll(&w, 1, 3000) != 1 ||
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error)) {
		close(fd);
		return -1;
	}
	settle(fd);
	return fd;
}

/* ---- the meeting ----------------------------------------------------------------------------- */

/* What a connection begins with. */
struct hello {
	uint64_t magic, key;
	uint32_t rank, world;
	struct om_seat seat; /* of a rank that comes to rank 0 */
};
static const uint64_t magic = 0x316b6e61726d6f67;
static struct om_seat *seats;
static uint64_t secret; /* of this run: who comes with it is one of its ranks */
static uint32_t self;

const struct om_seat *
om_seat(uint32_t rank)
{
	return &seats[rank];
}

bool
om_met(void)
{
	return seats;
}

const char *
om_seat_text(uint32_t rank)
{
	static char text[4][128];
	static unsigned turn;
	char *t = text[turn++ % OM_LEN(text)];
	const struct om_seat *s = seats ? &seats[rank] : NULL;

	if (!s || !s->pid)
		snprintf(t, sizeof text[0], "rank %u", rank);
	else
		snprintf(t, sizeof text[0], "rank %u (process %d%s%s)", rank, s->pid,
		    s->machine == seats[self].machine ? "" : " on ",
		    s->machine == seats[self].machine ? "" : s->host);
	return t;
}

/* Takes who comes until all are there. */
static void
receive(int listener, const struct place *p, uint32_t world, double limit, int *life)
{
	double until = om_now() + limit;

	for (uint32_t here = 1; here < world;) {
		struct pollfd w = { listener, POLLIN, 0 };
		struct hello h;
		uint32_t missing = 1;
		uint16_t port;
		int fd;

		while (missing < world && life[missing] >= 0)
			missing++;
		if (om_now() > until)
			om_lost("start",
			    "after %.0f s rank %u has not come, and %u of %u are here; "
			    "comm.timeout "
			    "in run.yaml is the limit",
			    limit, missing, here, world);
		if (poll(&w, 1, 100) != 1 || (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
			continue;
		settle(fd);
		if (!transfer(fd, false, &h, sizeof h, 3) || h.magic != magic || h.key != p->key ||
		    h.world != world || !h.rank || h.rank >= world) {
			close(fd); /* of another job */
			continue;
		}
		if (life[h.rank] >= 0)
			om_die("start",
			    "two processes say that they are rank %u: one on %s, one "
			    "on %s; give each its own",
			    h.rank, seats[h.rank].host, h.seat.host);
		seats[h.rank] = h.seat;
		end_of(fd, true, seats[h.rank].address, &port);
		life[h.rank] = fd;
		here += transfer(fd, true, &(uint64_t){ magic }, sizeof magic, 3);
	}
}

/* One try at all ports. */
static int
seek(const struct place *p, const struct hello *h)
{
	struct addrinfo hint = { .ai_socktype = SOCK_STREAM }, *all, *a;
	char port[16];
	uint64_t answer;
	int fd = -1;

	for (uint32_t i = 0; i < p->ports && fd < 0; i++) {
		snprintf(port, sizeof port, "%u", p->port + i);
		if (getaddrinfo(p->host, port, &hint, &all) != 0)
			return -1;
		for (a = all; a && fd < 0; a = a->ai_next) {
			if ((fd = connect_to(a->ai_addr, a->ai_addrlen)) < 0)
				continue;
			if (transfer(fd, true, (void *)(uintptr_t)h, sizeof *h, 3) &&
			    transfer(fd, false, &answer, sizeof answer, 3) && answer == magic)
				break;
			close(fd); /* somebody else */
			fd = -1;
		}
		freeaddrinfo(all);
	}
	return fd;
}

/* Local places follow from the seats; addresses that only rank 0's machine knows are made known. */
static void
arrange(uint32_t world, const int *life)
{
	for (uint32_t r = 0; r < world; r++) {
		seats[r].local = 0;
		for (uint32_t k = 0; k < r; k++)
			seats[r].local += seats[k].machine == seats[r].machine;
	}
	if (self) { /* rank 0 is where it was found, and so are those that came to it from there */
		uint16_t port;
		uint8_t first[16];

		end_of(life[0], true, first, &port);
		for (uint32_t r = 0; r < world; r++)
			if (!r || is_loopback(seats[r].address))
				memcpy(seats[r].address, first, 16);
	}
}

int
om_meet(const struct om_self *s, double limit, int *life)
{
	struct place p = { 0 };
	struct hello h = { .magic = magic, .rank = s->rank, .world = s->world };
	struct om_seat *own = &h.seat;
	int listener = listen_at(0), door = -1;
	double until = om_now() + limit;

	self = s->rank;
	find_place(&p, s->world);
	seats = om_alloc(s->world, sizeof *seats);
	gethostname(own->host, sizeof own->host - 1);
	own->machine = machine();
	own->pid = (int32_t)getpid();
	end_of(listener, false, own->address, &own->port);
	for (uint32_t r = 0; r < s->world; r++)
		life[r] = -1;
	if (!self) {
		const char *given = getenv("OM_LISTEN"); /* by the trainer that started this one */
		uint16_t port;
		uint8_t any[16];

		door = given ? atoi(given) : -1;
		for (uint32_t i = 0; door < 0 && i < p.ports; i++)
			door = listen_at(p.file ? 0 : p.port + i);
		if (door < 0)
			om_die("start",
			    "the ports %u to %u are all taken; set MASTER_PORT to one "
			    "before free ones",
			    p.port, p.port + p.ports - 1);
		end_of(door, false, any, &port);
		if (p.file)
			write_place(p.file, port, p.key);
		seats[0] = *own;
		receive(door, &p, s->world, limit, life);
		close(door);
		if (getentropy(&secret, sizeof secret) != 0)
			secret = p.key ^ (uint64_t)(1e9 * om_now());
		for (uint32_t r = 1; r < s->world; r++)
			if (!transfer(life[r], true, &secret, sizeof secret, 10) ||
			    !transfer(life[r], true, seats, s->world * sizeof *seats, 10))
				om_lost("start", "%s is gone", om_seat_text(r));
		if (p.file)
			unlink(p.file);
	} else {
		while (life[0] < 0) {
			if (!p.file || read_place(&p)) {
				h.key = p.key;
				life[0] = seek(&p, &h);
			}
			if (life[0] >= 0)
				break;
			if (om_now() > until)
				om_lost("start",
				    "rank 0 cannot be reached at %s within %.0f s; comm.timeout in "
				    "run.yaml is the limit",
				    *p.host ? p.host : p.file, limit);
			nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
		}
		if (!transfer(life[0], false, &secret, sizeof secret, until - om_now() + 10) ||
		    !transfer(life[0], false, seats, s->world * sizeof *seats, 30))
			_exit(OM_EXIT_LOST); /* rank 0 has said why */
	}
	arrange(s->world, life);
	return listener;
}

int
om_meet_connect(uint32_t rank)
{
	const struct om_seat *s = &seats[rank];
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(s->port) };
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(s->port) };
	struct hello h = { .magic = magic, .key = secret, .rank = self };
	int fd;

	if (s->address[10] == 0xff && s->address[11] == 0xff) {
		memcpy(&four.sin_addr, s->address + 12, 4);
		fd = connect_to((struct sockaddr *)&four, sizeof four);
	} else {
		memcpy(&six.sin6_addr, s->address, 16);
		fd = connect_to((struct sockaddr *)&six, sizeof six);
	}
	if (fd >= 0 && transfer(fd, true, &h, sizeof h, 10))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

int
om_meet_accept(int listener, uint32_t *rank)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	struct hello h;

	if (fd < 0)
		return -1;
	if (!transfer(fd, false, &h, sizeof h, 10) || h.magic != magic || h.key != secret) {
		close(fd);
		return -1;
	}
	settle(fd);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	*rank = h.rank;
	return fd;
}
