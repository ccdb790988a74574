/* What a run's numbers say of its health: spikes of loss and norm, whose gradient is no number. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"

/* ---- spikes ---------------------------------------------------------------------------------- */

/* Whether x is 6 standard deviations over the mean of the window, or no finite number. */
static bool
far_over(const double *window, double x)
{
	double mean = 0, square = 0;

	for (int i = 0; i < OM_SPIKE_WINDOW; i++)
		mean += window[i] / OM_SPIKE_WINDOW;
	for (int i = 0; i < OM_SPIKE_WINDOW; i++)
		square += (window[i] - mean) * (window[i] - mean);
	return !(x <= mean + 6 * sqrt(square / (OM_SPIKE_WINDOW - 1)));
}

double
om_spike_step(struct om_spike *s, const double x[2])
{
	const bool full = s->finite >= OM_SPIKE_WINDOW;
	unsigned char *slot = &s->was[s->steps++ % OM_SPIKE_STEPS];
	uint64_t steps = s->steps < OM_SPIKE_STEPS ? s->steps : OM_SPIKE_STEPS;

	s->spikes -= *slot;
	*slot = (full && (far_over(s->window[0], x[0]) || far_over(s->window[1], x[1]))) ||
		!isfinite(x[0]) || !isfinite(x[1]);
	s->spikes += *slot;
	if (isfinite(x[0]) && isfinite(x[1])) {
		for (int k = 0; k < 2; k++)
			s->window[k][s->finite % OM_SPIKE_WINDOW] = x[k];
		s->finite++;
	}
	return (double)s->spikes / (double)steps;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* The first of this rank's tensors with an element of its gradient that is not finite; "": none. */
static void
find(const struct om_model *m, unsigned char *arena, char name[OM_TENSOR_NAME])
{
	enum { PIECE = 1 << 16 };
	double *buffer = om_alloc(PIECE, sizeof *buffer);
	struct om_tensor t = { NULL, 0, 0, 0 };

	*name = 0;
	while (!*name && om_tensor_next(m, &t) && t.p < m->param + m->nparams) {
		uint64_t first, end, n;

		om_param_part(m, t.p, &first, &end); /* what others have lies here half summed */
		first = first > t.first ? first : t.first;
		end = end < t.first + t.p->numel ? end : t.first + t.p->numel;
		for (uint64_t i = first; i < end && !*name; i += n) {
			bool good = true;

			n = end - i < PIECE ? end - i : PIECE;
			om_get(arena, t.p->grad + (t.rep * t.p->stride + i) * m->real, buffer,
			    n * m->real);
			for (uint64_t j = 0; j < n; j++)
				good = good &&
				       isfinite(m->real == 4 ? ((float *)buffer)[j] : buffer[j]);
			if (!good) {
				char *whole = om_tensor_name(&t);

				snprintf(name, OM_TENSOR_NAME, "%s", whole);
				free(whole);
			}
		}
	}
	free(buffer);
}

char *
om_not_finite(const struct om_model *m, unsigned char *arena)
{
	char *of = om_alloc(om_size(OM_WORLD), OM_TENSOR_NAME), *name = NULL;

	find(m, arena, of + om_rank(OM_WORLD) * OM_TENSOR_NAME);
	om_all_gather(OM_WORLD, "names of gradients", of, om_size(OM_WORLD) * OM_TENSOR_NAME);
	for (uint32_t r = 0; r < om_size(OM_WORLD) && !name; r++)
		if (of[r * OM_TENSOR_NAME])
			name = om_text("%s", of + r * OM_TENSOR_NAME);
	free(of);
	return name;
}
