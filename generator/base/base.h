/*
 * Memory, growable arrays and text, files, checked sizes, and the diagnostics that users read.
 *
 * Takes and gives plain C values. Memory comes from one arena that lives as long as the process
 * works on one description: nothing is freed. Indices, not pointers, link things. The headers of
 * runtime/ that olmogen shares with trainers (file.h, group.h, json.h, hf_config.h, yaml_limits.h)
 * count as part of this folder.
 *
 * Must never know anything of models.
 */
#ifndef OLMOGEN_BASE_H
#define OLMOGEN_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "file.h" /* of runtime/ */

#define OLMOGEN_VERSION "0.1.0"

#define LEN(a) (sizeof(a) / sizeof((a)[0]))
#define PRINTF(f, a) __attribute__((format(printf, f, a)))

enum { EXIT_USER = 1, EXIT_USAGE = 2, EXIT_INTERNAL = 70 };

/* ---- util.c: memory, text, files ------------------------------------------------------------- */

/* Ends the process at a bug in olmogen: "olmogen: internal error: ...", exit 70. */
_Noreturn void internal(const char *fmt, ...) PRINTF(1, 2);
/*
 * Zeroed memory from the process arena; never freed, never NULL (the process ends when it is out).
 */
void *xalloc(size_t size);
char *xstrdup(const char *s);
char *xprintf(const char *fmt, ...) PRINTF(1, 2);
char *xvprintf(const char *fmt, va_list ap);

/* A growable array, or a type of one. PUSH appends one zeroed element and gives its address. */
#define ARRAY(T) ARRAY_TYPE(, T)
#define ARRAY_TYPE(name, T)      \
	struct name {            \
		T *a;            \
		uint32_t n, cap; \
	}
#define PUSH(arr)                                                               \
	(array_grow((void **)&(arr).a, &(arr).n, &(arr).cap, sizeof(*(arr).a)), \
	    &(arr).a[(arr).n - 1])
void array_grow(void **a, uint32_t *n, uint32_t *cap, size_t size);

/* A growable text. */
struct buf {
	char *s; /* always terminated once anything was added */
	size_t n, cap;
};
void buf_add(struct buf *b, const char *s, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF(2, 3);

enum { FILE_MOST = 100000000 }; /* bytes of a file that is read */

/* Files that are in olmogen itself, by their path in the repository; embed.c puts them there. */
struct embedded {
	const char *path;
	const unsigned char *data;
	size_t n;
};
extern const struct embedded embedded[];
extern const uint32_t n_embedded;
const struct embedded *embedded_find(const char *path); /* internal error: there is none */

/* For "%llu": a uint64_t is of another type on some machines. */
static inline unsigned long long
llu(uint64_t n)
{
	return n;
}
void text_sort(const char **a, uint32_t n); /* by their bytes */
const char *text_bytes(uint64_t n);         /* "1.50 GiB" */
const char *text_commas(uint64_t n);        /* "6,919,161,856" */
/* A double that C and Lua read back exactly: in no more digits than it needs, or so many. */
const char *text_digits(double x, int least);
const char *text_double(double x);            /* as short as it can be, and no integer: "1.0" */
char *sha256_hex(const void *data, size_t n); /* FIPS 180-4 */

/* ---- diag.c: what users read ----------------------------------------------------------------- */

struct pos {
	uint32_t file;           /* index of diag_file(); 0 = no file (command line) */
	uint32_t line, col, len; /* from 1; line 0 = position unknown; col 0 = whole line */
};
enum { DIAG_MAX = 20, DIAG_NONE = -1 };
int pos_order(struct pos a, struct pos b); /* by where they begin: below, above or 0 */

uint32_t diag_file(const char *path, const char *text, size_t n);
const char *diag_file_name(uint32_t file);
const char *diag_file_text(uint32_t file, size_t *n);
/* A line of it without its end; false: it has no such. */
bool diag_source_line(uint32_t file, uint32_t line, const char **s, size_t *n);
/* One error with its source line and caret; note and help belong to the error before them. */
void diag_error(struct pos p, const char *fmt, ...) PRINTF(2, 3);
void diag_note(struct pos p, const char *fmt, ...) PRINTF(2, 3);
void diag_help(const char *fmt, ...) PRINTF(1, 2);
/* The last error, for a help that comes later; DIAG_NONE if it was a repetition, or a trial's. */
int diag_last(void);
void diag_help_of(int error, const char *help);
bool diag_shown(int error); /* it is one of the first DIAG_MAX */
/*
 * A trial to be rid of an error, or DIAG_NONE: what is reported until its end is not kept. The
 * worst so far: nothing, an error that stands there from before, another one, one where that error
 * stands.
 */
enum diag_trial { TRIAL_CLEAN, TRIAL_AGAIN, TRIAL_NEW, TRIAL_SAME };
void diag_trial(int error);
enum diag_trial diag_tried(void);
bool diag_trying(void);
void diag_trial_end(void);
/* Prints what was collected, sorted by position, at most DIAG_MAX; gives the number of errors. */
int diag_flush(void);
int diag_count(void);
void diag_line(struct buf *b); /* moves what was collected into one line, without notes and help */
/* The name closest to a word if it is close enough to be meant, else NULL. */
const char *diag_closest(const char *word, const char *const *names, uint32_t n);
/* An error that has no place in a description: a line "olmogen: error: ...". Gives false. */
bool diag_failed(const char *fmt, ...) PRINTF(1, 2);

/* ---- size.c: checked arithmetic -------------------------------------------------------------- */

/* Overflow ends the process, as a user's error at the trainer that size_at named. */
void size_at(struct pos p);
uint64_t size_mul(uint64_t a, uint64_t b);
uint64_t size_add(uint64_t a, uint64_t b);
uint64_t size_align(uint64_t n, uint64_t to);

#endif
