/*
 * The beginning of om_rt.h: what knows nothing of models, data and checkpoints. Messages, memory,
 * time, the process and its threads.
 */
#ifndef OM_HOST_H
#define OM_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define OM_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define OM_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* ---- err.c: what users read when something is wrong ------------------------------------------ */

/* Says who speaks: the model's name, and the step being computed (from 1; 0: none yet). */
void om_err_name(const char *name);
void om_err_step(uint64_t step);
/* Runs before anything is printed to stderr: takes the progress bar off the screen. */
void om_err_before(void (*hook)(void));
/* Ends all ranks, status 1, with one line "NAME: rank 0, step 12, OPERATION: what; remedy". */
_Noreturn void om_die(const char *operation, const char *fmt, ...) OM_PRINTF(2, 3);
/* The same of what is no fault of the user's, and may be gone in another run: status 4. */
_Noreturn void om_lost(const char *operation, const char *fmt, ...) OM_PRINTF(2, 3);
/* The same from a thread beside, whatever the others wait for or hold: ends this process alone. */
_Noreturn void om_lost_here(const char *operation, const char *fmt, ...) OM_PRINTF(2, 3);

/* A text that errors point into: a file, or one key=value of the command line. */
struct om_src {
	const char *name, *text;
	size_t n;
	bool arg;
};
struct om_at {
	const struct om_src *src;
	uint32_t line, col, len; /* from 1, in characters; line 0: no position */
};
/* One error with its source line and caret; note and help belong to the error before them. */
void om_diag(struct om_at at, const char *fmt, ...) OM_PRINTF(2, 3);
void om_diag_note(struct om_at at, const char *fmt, ...) OM_PRINTF(2, 3);
void om_diag_help(const char *fmt, ...) OM_PRINTF(1, 2);
enum { OM_DIAG_MAX = 20 }; /* further errors are counted, not printed */
int om_diag_count(void);
/* A text of the user's for a message, cut after 100 bytes; one of four, reused in turn. */
const char *om_clip(const char *s);

/* ---- host.c: memory, time, small texts ------------------------------------------------------- */

void *om_alloc(size_t n, size_t size); /* zeroed; ends the process when memory is out */
char *om_text(const char *fmt, ...) OM_PRINTF(1, 2); /* a new string; free() it */
/* path and suffix, and where that is taken ".2", ".3", ... after it; free() it. */
char *om_free_name(const char *path, const char *suffix);
int om_create(const char *dir, const char *file);   /* a new file in it, to write; < 0: errno */
bool om_write_all(int fd, const void *p, size_t n); /* false: errno */
/* Of glibc: the version that this program's symbols need, and the one here; "": it is static. */
void om_glibc(char needs[16], char here[16]);
/* One of 16 static texts, reused in turn. */
const char *om_commas(uint64_t n);                   /* 12,345 */
const char *om_bytes(uint64_t n);                    /* 1.50 GiB */
const char *om_count(uint64_t n, const char *thing); /* 1 step, 2,000 steps */
const char *om_number(double x, const char *format); /* by that of printf, ".4f"; or nan */
const char *om_clock(double seconds);                /* 0:42, 1:02:03 */
const char *om_took(double seconds);                 /* 0.31 s, 42.1 s, 1:02 */

double om_get_f64(const unsigned char *arena, uint64_t off);
/*
 * Zeroed memory of the host, of which this program will write `written` bytes and only read the
 * rest, which takes none. Not enough: ends the process, saying how much there is.
 */
unsigned char *om_arena_map(uint64_t bytes, uint64_t written);
uint64_t om_memory_available(void); /* that this process may still take, by the kernel's account */

/* ---- proc.c: the process --------------------------------------------------------------------- */

void om_proc_start(void); /* takes descriptors 0 to 2 */
/*
 * How many processes a launcher has started, by the variable of the environment that says so; NULL:
 * this one alone.
 */
const char *om_proc_count(const char **name);
/* The cores that this process may run on, a cpu_set_t of so many bytes; free() it. */
void *om_core_set(size_t *bytes);
/*
 * How many cores' time the control groups of a process allow it, 0: no limit. groups: the file that
 * names them, /proc/self/cgroup; root: where they are mounted, of either version.
 */
double om_core_limit(const char *groups, const char *root);
/*
 * 0: as many as the cores, or fewer where a control group allows fewer. Never more than the machine
 * makes; ends the process where stacks are too small.
 */
void om_threads(uint64_t n);

/* A thread beside the main one, for one thing at a time; start with { .on = false }. */
struct om_beside {
	pthread_t thread;
	bool on; /* it was started, and nobody has waited for its end */
	_Atomic bool done;
	void (*run)(void *arg);
	void *arg;
};
void om_beside(struct om_beside *b, void (*run)(void *arg), void *arg);
bool om_beside_busy(const struct om_beside *b);
void om_beside_end(struct om_beside *b); /* waits for it, if it was started */

/* ---- spin.c: how idle threads wait ----------------------------------------------------------- */

/* From here on a thread watches for how long they had better spin, unless the environment says. */
void om_spin_start(void);
/*
 * Called by a thread that computes nothing, when it begins and before it ends: it may run on any
 * core, and that it waits for one does not count.
 */
void om_spin_apart(bool begins);
/* What the main thread tells it: so many passes are done, a backward one counts as two. */
void om_spin_work(uint32_t done);
/*
 * Whether others want the cores: a thread waited for one for over 5 % of the time since the last
 * call, or the kernel does not tell. tasks: the folder of the process's threads, /proc/self/task;
 * now: seconds.
 */
bool om_spin_loaded(const char *tasks, double now);
struct om_work {
	uint64_t done;
	double at; /* when the last of it was done */
};
enum { OM_SPIN_ARMS = 2 };
struct om_spin {
	bool on, kept; /* under load; the faster one is kept, or else one is being tried */
	int arm;
	bool bound; /* each thread keeps to a core of its own */
	double began, until, rate[OM_SPIN_ARMS];
	uint64_t before;      /* work done when this arm began */
	struct om_work first; /* the first that was done after that */
};
/* Every 100 ms: for how many pauses idle threads spin from now on. */
uint64_t om_spin_choose(struct om_spin *s, bool loaded, double now, const struct om_work *w);

/* ---- preflight.c ----------------------------------------------------------------------------- */

struct om_model;
int om_preflight(const struct om_model *m);
/* Which of n rates is the least, if it is slow; n: none is. of_median: that of the least. */
uint32_t om_slow(const double *x, uint32_t n, double *of_median);

#endif
