/*
 * SkipStep: a step whose loss or gradient norm stands far out of the last accepted ones changes no
 * weight. The host computes the limits before the step, the device compares: nothing waits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"

void
om_skip_open(struct om_skip *s, const struct om_conf *c)
{
	*s = (struct om_skip){ .sigma = c->skip_sigma, .window = (uint32_t)c->skip_window };
	for (int i = 0; i < 2; i++)
		s->last[i] = om_alloc(s->window, sizeof *s->last[i]);
}

void
om_skip_close(struct om_skip *s)
{
	for (int i = 0; i < 2; i++)
		free(s->last[i]);
}

/* Always summed from the oldest on, so that a resumed run finds the same limits to the bit. */
static double
limit_of(const double *x, uint32_t n, double sigma)
{
	double mean = 0, square = 0;

	for (uint32_t i = 0; i < n; i++)
		mean += x[i];
	mean /= n;
	for (uint32_t i = 0; i < n; i++)
		square += (x[i] - mean) * (x[i] - mean);
	return mean + sigma * sqrt(square / (n - 1)); /* unbiased, as torch.std */
}

void
om_skip_limits(const struct om_skip *s, double limit[2])
{
	bool ready = s->sigma > 0 && s->n >= 2 && s->n >= (s->window + 1) / 2;

	for (int i = 0; i < 2; i++)
		limit[i] = ready ? limit_of(s->last[i], s->n, s->sigma) : INFINITY;
}

void
om_skip_step(struct om_skip *s, const double x[2], bool skipped)
{
	uint64_t old = s->n == s->window; /* the oldest makes room */

	s->row = skipped ? s->row + 1 : 0;
	s->total += skipped;
	if (skipped || !(s->sigma > 0))
		return;
	s->n -= (uint32_t)old;
	for (int i = 0; i < 2; i++) {
		memmove(s->last[i], s->last[i] + old, s->n * sizeof *s->last[i]);
		s->last[i][s->n] = x[i];
	}
	s->n++;
}
