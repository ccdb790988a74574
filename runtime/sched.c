/* Learning-rate schedules: pure functions of the step. */
#include <math.h>

#include "om_rt.h"

double
om_lr_at(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	uint64_t from = lr->warmup;
	double x, left = 1;

	if (step > steps)
		step = steps;
	/* rises in equal parts, so that the last warm-up step has the peak */
	if (step <= lr->warmup)
		return lr->peak * ((double)step / (double)lr->warmup);
	if (lr->schedule == OM_WSD)
		from = steps - (lr->decay < steps ? lr->decay : steps);
	if (lr->schedule == OM_CONSTANT || step <= from)
		return lr->peak;
	x = (double)(step - from) / (double)(steps - from); /* 0 < x <= 1, 1 at the last step */
	if (lr->schedule == OM_COSINE)
		left = 0.5 * (1 + cos(3.14159265358979323846 * x));
	else
		left = 1 - x;
	return lr->peak * (lr->final + (1 - lr->final) * left);
}
