/* Questions to the whole pipeline: which change of a description would do. */
#ifndef OLMOGEN_REMEDY_H
#define OLMOGEN_REMEDY_H

#include "plan/plan.h"

/*
 * The answer, a help a line; NULL: there is none. build: what is named should not only be planned,
 * but built.
 */
char *remedy_answer(const struct question *q, bool build);

#endif
