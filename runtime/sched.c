/*
 * Learning-rate schedules: pure functions of the place in the run, which is a number of steps or of
 * tokens.
 */
#include <math.h>

#include "om_rt.h"

/* What is left at x of a way that is 0 to 1: 1 at its beginning, 0 at its end. */
static double
left(enum om_decay decay, double x)
{
	switch (decay) {
	case OM_DECAY_LINEAR:
		return 1 - x;
	case OM_DECAY_COSINE:
		return 0.5 * (1 + cos(3.14159265358979323846 * x));
	case OM_DECAY_MINUS_SQRT:
		return 1 - sqrt(x);
	default: /* halved over the way, and stretched so that it ends at 0 */
		return 2 * pow(0.5, x) - 1;
	}
}

/* All of a where x is 1, of b where it is 0. */
static double
mix(double x, double a, double b)
{
	return x * a + (1 - x) * b;
}

/* From 1 to lr->final, from warm-up's end to the last step. */
static double
toward_final(const struct om_lr *lr, enum om_decay decay, uint64_t step, uint64_t steps)
{
	double x = (double)(step - lr->warmup) / (double)(steps - lr->warmup);

	return lr->final + (1 - lr->final) * left(decay, x);
}

static double
cosine(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	return toward_final(lr, OM_DECAY_COSINE, step, steps);
}

static double
linear(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	return toward_final(lr, OM_DECAY_LINEAR, step, steps);
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
	return lr->final + (1 - lr->final) * left(lr->decay_shape,
						 (double)(step - from) / (double)(steps - from));
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

/* One stage behind the other; after the last one the rate stays where that ends. */
static double
stages(const struct om_lr *lr, uint64_t step, uint64_t steps)
{
	const struct om_lr_stage *s = lr->stage, *last = s + lr->nstages - 1;

	(void)steps;
	for (; s < last && step > s->length; s++)
		step -= s->length;
	return step < s->length
		   ? mix(left(s->shape, (double)step / (double)s->length), s->from, s->to)
		   : s->to;
}

/* What is left of the peak in a step after warm-up. */
static double (*const shape[])(const struct om_lr *lr, uint64_t step, uint64_t steps) = {
	[OM_COSINE] = cosine,
	[OM_LINEAR] = linear,
	[OM_CONSTANT] = constant,
	[OM_WSD] = wsd,
	[OM_INVERSE_SQRT] = inverse_sqrt,
	[OM_POWER] = power,
	[OM_WSDS] = stages,
	[OM_STAGES] = stages,
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
	return mix(left(lr->decay_shape, x), scheduled(lr, from, steps), lr->peak * lr->final);
}

void
om_lr_periods(struct om_lr *lr, const uint64_t *length, const double *peak, uint32_t n)
{
	lr->stage = om_alloc(2 * (size_t)n + 1, sizeof *lr->stage);
	for (uint32_t i = 0; i < n; i++) {
		double high = peak ? peak[i] : 1;
		uint64_t stays = length[i] - lr->decay;

		if (!i && lr->warmup) {
			lr->stage[lr->nstages++] =
			    (struct om_lr_stage){ lr->warmup, OM_DECAY_LINEAR, 0, high };
			stays -= lr->warmup;
		}
		if (stays)
			lr->stage[lr->nstages++] =
			    (struct om_lr_stage){ stays, OM_DECAY_LINEAR, high, high };
		if (lr->decay)
			lr->stage[lr->nstages++] =
			    (struct om_lr_stage){ lr->decay, lr->decay_shape, high, lr->final };
	}
	lr->warmup = 0; /* it is a stage */
}
