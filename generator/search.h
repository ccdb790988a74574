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

/* ---- remedy.c -------------------------------------------------------------------------------- */

/*
 * The answer, a help a line; NULL: there is none. build: what is named should not only be planned,
 * but built.
 */
char *remedy_answer(const struct question *q, bool build);

#endif
