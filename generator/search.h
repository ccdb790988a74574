/*
 * Questions to the whole pipeline: which of many descriptions is the fastest that fits, and which
 * change of one would do.
 */
#ifndef OLMOGEN_SEARCH_H
#define OLMOGEN_SEARCH_H

#include "plan/plan.h"

/*
 * A complete trainer through the stages that a plan needs, in a trial (diag_trial). NULL: an error
 * was reported before there was one.
 */
struct plan *search_plan(struct object *trainer);
/*
 * Puts what is to be recomputed in place of "auto", layer by layer: of the choices with which each
 * rank needs at most its device's memory less a hundredth the one that costs the least time.
 */
void search_recompute(struct object *trainer);
/* The same for who asks only whether a description could fit: what needs the least memory. */
void search_least(struct object *trainer);

/* What a layer can compute again, as it keeps less. */
enum { SEARCH_LEVELS = 5 };
extern const char *const search_levels[SEARCH_LEVELS];

/* ---- layout.c -------------------------------------------------------------------------------- */

struct candidate { /* a layout, and what goes with it */
	uint64_t data, expert, pipeline, chunks, micro;
	const char *schedule; /* NULL: no pipeline */
	uint32_t level;       /* of search_levels, in all layers */
	uint32_t index;       /* among all layouts */
};
struct found {
	struct candidate at;
	bool legal, fits; /* it keeps the rules; and has room on the device */
	uint64_t need;    /* bytes of the rank that needs most */
	struct expected expected;
};
/* A description, whose own layout does not matter, with another. */
struct found search_try(const struct object *trainer, const char *target, struct candidate l);
/*
 * The best of each of the layouts of so many ranks, n of them, the fastest first; NULL, said why,
 * if none fits. target: in place of the trainer's, or NULL.
 */
const struct found *
search_layouts(const struct object *trainer, const char *target, uint64_t ranks, uint32_t *n);
void
search_print(const struct object *trainer, const struct found *found, uint32_t n, struct buf *out);
const char *search_text(const struct candidate *l); /* "parallel { data = 8, ... }" */

/* ---- init.c ---------------------------------------------------------------------------------- */

/*
 * A description to begin with, by flags and by what is answered at a terminal. False, said why, if
 * an answer means nothing or no layout of the model fits.
 */
bool init(const char *target, struct define *defs, uint32_t n, struct buf *out);

/* ---- remedy.c -------------------------------------------------------------------------------- */

/*
 * The answer, a help a line; NULL: there is none. build: what is named should not only be planned,
 * but built.
 */
char *remedy_answer(const struct question *q, bool build);

#endif
