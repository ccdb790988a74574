/* Where the elements of a parameter lie. */
#ifndef PLACE_H
#define PLACE_H

#include "om.h"

/* Element k of it, layer after layer: how many elements behind its first one. */
static uint64_t
place(const struct om_param *p, uint64_t k)
{
	uint64_t each = p->numel * (p->experts ? p->experts : 1);

	return k / each * p->stride + k % each;
}

#endif
