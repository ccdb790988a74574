/* Learning-rate schedules: pure functions of the step. */
#include <math.h>

#include "om_rt.h"

/* Between 1 (left is 1) and lr->final (it is 0). */
static double
toward_final(const struct om_lr *lr, double left)
{
	return lr->final + (1 - lr->final) * left;
}

/* How far the step is on its way from warm-up's end to the last one: 1 there. */
static double
way(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	return (double)(step - lr->warmup) / (double)(steps - lr->warmup);
}

static double
cosine(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	return toward_final(lr, 0.5 * (1 + cos(3.14159265358979323846 * way(lr, step, steps))));
}

static double
linear(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	return toward_final(lr, 1 - way(lr, step, steps));
}

static double
constant(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	(void)lr, (void)step, (void)steps;
	return 1;
}

static double
wsd(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	uint64_t from = steps - (lr->decay < steps ? lr->decay : steps);

	if (lr->decay_from || step <= from) /* decay_from is where its decay starts, then */
		return 1;
	return toward_final(lr, 1 - (double)(step - from) / (double)(steps - from));
}

static double
inverse_sqrt(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	(void)steps;
	return sqrt((double)lr->warmup / (double)step);
}

/*
 * min(peak, a n^b) of Shen et al., "Power Scheduler" (arXiv 2408.13359), with n in steps, b the
 * negative of lr.exponent, and a such that the two meet at lr.reference.
 */
static double
power(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	uint64_t reference = lr->reference ? lr->reference : lr->warmup;

	(void)steps;
	return step <= reference ? 1 : pow((double)step / (double)reference, -lr->exponent);
}

/* What is left of the peak in a step after warm-up. */
static double (*const shape[])(const struct om_lr *lr, uint64_t step, uint64_t steps) = {
	[OM_COSINE] = cosine,
	[OM_LINEAR] = linear,
	[OM_CONSTANT] = constant,
	[OM_WSD] = wsd,
	[OM_INVERSE_SQRT] = inverse_sqrt,
	[OM_POWER] = power,
};

static double
scheduled(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	/* rises in equal parts, so that the last warm-up step has the peak */
	if (step <= lr->warmup)
		return lr->peak * ((double)step / (double)lr->warmup);
	return lr->peak * shape[lr->schedule](lr, step, steps);
}

double
om_lr_at(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	uint64_t from = lr->decay_from;
	double x;

	if (step > steps)
		step = steps;
	if (!from || step <= from)
		return scheduled(lr, step, steps);
	x = step - from < lr->decay ? (double)(step - from) / (double)lr->decay : 1;
	return (1 - x) * scheduled(lr, from, steps) + x * (lr->peak * lr->final);
}
