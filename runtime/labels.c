/* Which tokens of a sequence have a label. */
#include "om_rt.h"

enum { PERIOD_MOST = 13, TIMES = 32 };

/*
 * As OLMo-core's instance filter: a run of 31 p tokens that are each the same as the one p before
 * it. It is looked for from where it would end back to its beginning, so that of text, which does
 * not repeat itself, one token in 31 p is looked at.
 */
bool
om_repeats(const int32_t *id, uint64_t n)
{
	for (uint64_t p = 1; p <= PERIOD_MOST; p++)
		for (uint64_t from = p, run = (TIMES - 1) * p, at; from + run <= n; from = at) {
			for (at = from + run; at > from && id[at - 1] == id[at - 1 - p]; at--)
				;
			if (at == from)
				return true;
		}
	return false;
}
