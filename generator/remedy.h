/* Questions to the whole pipeline: which change of a description would do. */
#ifndef OLMOGEN_REMEDY_H
#define OLMOGEN_REMEDY_H

#include "plan/plan.h"

/*
 * A user's error where the plan does not fit the device: five largest buffers, and what would do.
 * Only what check, and a build where one is to follow, would take is proposed.
 */
void remedy_fits(const struct plan *p, bool build);

#endif
