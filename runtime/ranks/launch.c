/*
 * A trainer of several ranks that no launcher started: it has a process start them (om_start:
 * mpirun, or one of its own), and waits. Each rank signs a roll, a file that both map, before it
 * waits for the others: so the trainer sees which one does not come, and which was the first to be
 * gone. And ranks print through pipes with names, past that process, so that what comes from it are
 * its own words: they are shown where it fails and no rank has said why.
 */
#define _GNU_SOURCE /* pipe2, nftw */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "om_rt.h"
#include "ranks.h"

/* What becomes of a start: ranks train, or are ended before they do. The first word decides. */
enum outcome { OPEN, TRAINED, ENDED };

struct roll {
	atomic_int spoke, outcome; /* a rank has said why all end; enum outcome */
	struct {
		atomic_int pid, stage; /* enum om_stage */
	} rank[];
};

static struct roll *roll; /* NULL: no trainer has started the ranks */
static pid_t child;
static char folder[] = "/tmp/om-ranks-XXXXXX"; /* of its own: one that ends removes it */

static volatile sig_atomic_t asked;    /* how often a signal asked for the end */
static volatile sig_atomic_t asked_by; /* the last of them */

static void
on_signal(int sig)
{
	asked++;
	asked_by = sig;
}

static struct roll *
map_roll(int fd, size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	close(fd);
	return p == MAP_FAILED ? NULL : p;
}

/* Whether the start's outcome is this one. */
static bool
decide(enum outcome outcome)
{
	int was = OPEN;

	return atomic_compare_exchange_strong(&roll->outcome, &was, outcome) || was == (int)outcome;
}

/* The state of a process, as the kernel's letter; 0: there is none. */
char
om_process_state(int pid)
{
	char path[32], line[512] = "";
	const char *p;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	if ((f = fopen(path, "r"))) {
		if (!fgets(line, sizeof line, f))
			line[0] = 0;
		fclose(f);
	}
	p = strrchr(line, ')'); /* after the name, which may hold anything */
	return p && p[1] ? p[2] : kill(pid, 0) == 0 || errno != ESRCH ? '?' : 0;
}

/* ---- the ranks' side ------------------------------------------------------------------------- */

static uint32_t self; /* this rank */

/* From here on descriptor fd is a pipe of the folder, past the starter. */
static void
print_to(const char *name, int fd)
{
	char *path = om_text("%s/%s", getenv("OM_LAUNCHED"), name);
	int to = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC); /* without waiting for a reader */

	if (to >= 0) {
		fcntl(to, F_SETFL, 0);
		dup2(to, fd);
		close(to);
	}
	free(path);
}

/* The roll of the trainer that started this rank; NULL: none did. */
static struct roll *
find_roll(void)
{
	const char *at = getenv("OM_LAUNCHED");
	struct stat st;
	char *path = om_text("%s/roll", at ? at : "");
	int fd = at ? open(path, O_RDWR | O_CLOEXEC) : -1;

	free(path);
	if (fd < 0 || fstat(fd, &st) != 0 ||
	    (size_t)st.st_size < sizeof *roll + (self + 1) * sizeof roll->rank[0])
		return NULL;
	return map_roll(fd, (size_t)st.st_size);
}

/* In the midst of waiting nothing else may be called. */
static void
on_alarm(int sig)
{
	static const char text[] = " does not end: a rank is stopped, or cannot be "
				   "reached; comm.timeout in "
				   "run.yaml is how long the others wait for it\n";
	ssize_t n = write(STDERR_FILENO, "start: ", 7);

	n += write(STDERR_FILENO, om_starter.meeting, strlen(om_starter.meeting));
	n += write(STDERR_FILENO, text, sizeof text - 1);
	(void)sig, (void)n;
	_exit(OM_EXIT_LOST);
}

void
om_comm_enter(uint32_t rank, double timeout)
{
	self = rank;
	if ((roll = find_roll())) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a starter that is killed leaves none behind */
		print_to("out", STDOUT_FILENO);
		print_to("err", STDERR_FILENO);
		roll->rank[self].pid = (int)getpid();
	} else { /* nobody else watches; the first rank speaks before the others do */
		signal(SIGALRM, on_alarm);
		alarm((unsigned)(timeout < 1e6 ? timeout : 1e6) + 1 + self);
	}
}

void
om_comm_stage(enum om_stage stage)
{
	alarm(0);
	if (roll)
		roll->rank[self].stage = stage;
}

bool
om_comm_spoke(void)
{
	return !roll || !atomic_exchange(&roll->spoke, 1);
}

void
om_comm_ready(void)
{
	om_barrier("start");
	if (roll && !om_rank(OM_WORLD) && !decide(TRAINED)) {
		om_comm_speaks(); /* the trainer does, which has all ended */
		om_comm_abort(OM_EXIT_USER, true);
	}
}

/* ---- the trainer's side ---------------------------------------------------------------------- */

enum { OUT = 1, ERR, WORDS, NPIPES }; /* of the ranks, by descriptor; the starter's own words */

struct launch {
	uint32_t world;
	double timeout;
	int pipe[NPIPES];
	bool lost[NPIPES]; /* who read it has left */
	char words[1 << 13];
	size_t nwords;
	int gone, pid;  /* the rank that was the first to be gone, -1: none */
	bool cut_short; /* a signal ended them before they had anything to save, or at once */
	bool late;      /* some did not come */
};

/*
 * What the ranks print goes through here, so that a reader who leaves ends nothing. Takes what
 * there is.
 */
static void
pass_on(struct launch *l, int i)
{
	char text[1 << 14];
	ssize_t n;

	while ((n = read(l->pipe[i], text, sizeof text)) > 0 || (n < 0 && errno == EINTR)) {
		size_t room = sizeof l->words - l->nwords;

		if (n < 0)
			continue;
		if (i != WORDS && !l->lost[i])
			l->lost[i] = !om_write_all(i, text, (size_t)n);
		if (i != WORDS)
			continue;
		room = (size_t)n < room ? (size_t)n : room;
		memcpy(l->words + l->nwords, text, room);
		l->nwords += room;
	}
}

static bool
is_stopped(uint32_t r)
{
	int pid = roll->rank[r].pid;
	char state = pid ? om_process_state(pid) : 0;

	return state == 'T' || state == 't';
}

/* Whether ranks have not met the others; names one, which is stopped if any is. */
static bool
tell_late(const struct launch *l)
{
	uint32_t late = l->world;
	bool stopped = false;

	for (uint32_t r = 0; !stopped && r < l->world; r++) {
		if (roll->rank[r].stage >= OM_RUNS)
			continue;
		stopped = is_stopped(r);
		if (stopped || late == l->world)
			late = r;
	}
	if (late == l->world)
		return false;
	fprintf(stderr,
	    "start: after %.0f s rank %u (process %d) %s%s; comm.timeout in run.yaml is the "
	    "limit\n",
	    l->timeout, late, (int)roll->rank[late].pid,
	    stopped                ? "is stopped (SIGSTOP)"
	    : roll->rank[late].pid ? "is still in "
				   : "has not started",
	    stopped || !roll->rank[late].pid ? "" : om_starter.meeting);
	return true;
}

/* The first that is gone without having ended in order. */
static void
find_gone(struct launch *l)
{
	for (uint32_t r = 0; l->gone < 0 && r < l->world; r++) {
		int pid = roll->rank[r].pid;
		char state = pid ? om_process_state(pid) : '?';

		if (roll->rank[r].stage < OM_ENDS && (!state || strchr("ZX", state))) {
			l->gone = (int)r;
			l->pid = pid;
		}
	}
}

/* Whether all ranks ended in order, be it with a status that is not 0. */
static bool
all_ended(const struct launch *l)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < l->world; r++)
		n += roll->rank[r].stage == OM_ENDS;
	return n == l->world;
}

/* Why it failed, where no rank has said it and no signal asked for it. */
static void
explain(const struct launch *l, int status)
{
	const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;

	if (WIFSIGNALED(status)) {
		fprintf(stderr,
		    "ranks: %s (process %d), which runs them, was ended by a signal (%s); "
		    "train again, from the last checkpoint\n",
		    om_starter.name, (int)child, strsignal(WTERMSIG(status)));
		return;
	}
	/* of a signal to a rank they say nothing more */
	if (l->gone < 0 || code <= 128)
		fwrite(l->words, 1, l->nwords, stderr);
	if (l->gone >= 0)
		fprintf(stderr,
		    "ranks: rank %d (process %d) was the first to be gone (%s); train again, from "
		    "the last checkpoint\n",
		    l->gone, l->pid, code > 128 ? strsignal(code - 128) : "it ended by itself");
	else
		fprintf(stderr, "start: %s, which starts the ranks%s%s, ended with status %d%s\n",
		    om_starter.name, *om_starter.must ? " and has to be " : "", om_starter.must,
		    code, l->nwords ? "; its words are above" : ", without a word");
}

/* Until the starter has ended; gives its status. */
static int
attend(struct launch *l)
{
	enum { PATIENCE = 10 }; /* seconds for it to end its ranks */
	struct pollfd p[NPIPES] = { { 0 } };
	const double began = om_now();
	double since = 0;
	int told = 0, status;
	bool save = false, over;

	for (int i = 0; i < NPIPES; i++)
		p[i] = (struct pollfd){ i ? l->pipe[i] : -1, POLLIN, 0 };
	do {
		poll(p, NPIPES, 50);
		over = waitpid(child, &status, WNOHANG) == child;
		for (int i = OUT; i < NPIPES; i++) {
			pass_on(l, i);
			if (p[i].revents & POLLHUP)
				p[i].fd = -1;
		}
		if (!over)
			find_gone(l);
		/*
		 * A starter that gets SIGTERM kills its ranks; SIGUSR1 it hands on to them, and
		 * they save and end, once they train. Asked twice: at once.
		 */
		if (asked > told) {
			told = asked;
			save = told == 1 && !decide(ENDED);
			since = save ? 0 : om_now();
			kill(child, save ? SIGUSR1 : SIGTERM);
		}
		if (!told && !since && om_now() - began > l->timeout && tell_late(l)) {
			roll->spoke = 1;
			l->late = true;
			decide(ENDED); /* who is stopped is woken before they end */
			since = om_now();
			kill(child, SIGTERM);
		}
		if (since > 0 && om_now() - since > PATIENCE)
			kill(-child, SIGKILL);
	} while (!over);
	l->cut_short = told && !save;
	if (told == 1 && !save)
		fprintf(stderr, "ended by a signal, before there was anything to save\n");
	if (!told && !roll->spoke && !all_ended(l))
		explain(l, status);
	return status;
}

/* Ranks print to the starter's terminal or a pipe: they cannot see where that goes in the end. */
static void
tell_width(void)
{
	struct winsize size = { 0, 0, 0, 0 };
	char text[16];

	if (!isatty(STDOUT_FILENO))
		return;
	ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
	snprintf(text, sizeof text, "%d", size.ws_col ? size.ws_col : 80);
	setenv("OM_TERMINAL", text, 1);
}

static int
remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st, (void)kind, (void)at;
	return remove(path);
}

static void
remove_folder(const char *path)
{
	nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Holds a folder for as long as this process lives; false: another one does. */
static bool
hold(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
		return true;
	if (fd >= 0)
		close(fd);
	return false;
}

/* Removes folders of trainers that were killed: theirs, and held by none. */
static void
remove_left(void)
{
	DIR *tmp = opendir("/tmp");
	struct dirent *entry;

	while (tmp && (entry = readdir(tmp))) {
		char *path, *roll_in;
		struct stat st;

		if (strncmp(entry->d_name, "om-ranks-", 9) != 0)
			continue;
		path = om_text("/tmp/%s", entry->d_name);
		roll_in = om_text("%s/roll", path); /* is made when the folder is held */
		if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
		    access(roll_in, F_OK) == 0 && hold(path))
			remove_folder(path);
		free(roll_in);
		free(path);
	}
	if (tmp)
		closedir(tmp);
}

/* The folder with run.yaml, roll and two pipes with names; and the pipe for the starter's words. */
static void
prepare(struct launch *l, int words[2])
{
	static const char *const name[] = { "roll", "out", "err" };
	const size_t bytes = sizeof *roll + l->world * sizeof roll->rank[0];
	char *copy;

	remove_left();
	if (!mkdtemp(folder) || !hold(folder))
		om_die("start", "%s: %s", folder, strerror(errno));
	for (int i = 0; i < WORDS; i++) {
		char *path = om_text("%s/%s", folder, name[i]);

		/* with a writer of our own, a pipe has no end before the last rank's */
		if ((i && mkfifo(path, 0600) != 0) ||
		    (l->pipe[i] = open(
			 path, O_RDWR | O_CLOEXEC | (i ? O_NONBLOCK : O_CREAT | O_EXCL), 0600)) < 0)
			om_die("start", "%s: %s", path, strerror(errno));
		free(path);
	}
	copy = om_text("%s/run.yaml", folder);
	if (!om_conf_copy(copy))
		om_die("start", "%s: %s", copy, strerror(errno));
	free(copy);
	if (ftruncate(l->pipe[0], (off_t)bytes) != 0 || !(roll = map_roll(l->pipe[0], bytes)))
		om_die("start", "%s: cannot map %zu bytes: %s", folder, bytes, strerror(errno));
	if (pipe2(words, O_CLOEXEC) != 0)
		om_die("start", "cannot make a pipe: %s", strerror(errno));
	l->pipe[WORDS] = words[0];
	fcntl(words[0], F_SETFL, O_NONBLOCK);
}

void
om_comm_launch(uint32_t world, double timeout, char **argv)
{
	static const int ends[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
	static struct launch l;
	int status, words[2];

	if (getenv("OM_LAUNCHED"))
		om_die("start",
		    "the %s that is found is not %s, of which this trainer is; put that one first "
		    "on PATH",
		    om_starter.name, om_starter.must);
	fflush(stdout);
	l = (struct launch){ .world = world, .timeout = timeout, .gone = -1 };
	prepare(&l, words);
	setenv("OM_LAUNCHED", folder, 1);
	tell_width();
	if ((child = fork()) < 0)
		om_die("start", "cannot start %s: %s", om_starter.name, strerror(errno));
	if (!child) {
		/* the terminal's signals are for the trainer, which hands them on */
		setpgid(0, 0);
		prctl(
		    PR_SET_PDEATHSIG, SIGKILL); /* and its ranks with it: who would tell of them */
		om_start(world, argv, words[1], folder);
	}
	close(words[1]);
	signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < OM_LEN(ends); i++) {
		struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART }, old;

		if (ends[i] != SIGHUP || sigaction(SIGHUP, NULL, &old) != 0 ||
		    old.sa_handler != SIG_IGN) /* nohup's wish */
			sigaction(ends[i], &act, NULL);
	}
	status = attend(&l);
	remove_folder(folder);
	status = l.cut_short           ? 128 + asked_by
		 : l.late              ? OM_EXIT_LOST
		 : WIFSIGNALED(status) ? 128 + WTERMSIG(status)
				       : WEXITSTATUS(status);
	if (!status && !all_ended(&l))
		status = OM_EXIT_USER; /* what starts nothing may end well */
	/* nobody has to read the console of training; other commands are for what they print */
	if (l.lost[OUT] && !status && argv[1] && strcmp(argv[1], "train") != 0)
		om_die("output", "cannot be written: %s", strerror(EPIPE));
	exit(status);
}
