/*
 * Which of a run's data each step takes: batches may be smaller at first, and ranges be left out.
 * All is computed from run.yaml and the number of the step, so it is the same under every layout.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"

uint64_t
om_steps_size(const struct om_steps *s, uint64_t step)
{
	for (const struct om_ramp *r = s->ramp; r < s->ramp + s->nramp; r++)
		if (step <= r->until)
			return r->sequences;
	return s->global;
}

uint64_t
om_steps_all(const struct om_steps *s, uint64_t step)
{
	uint64_t all = 0, done = 0;

	for (const struct om_ramp *r = s->ramp; r < s->ramp + s->nramp && done < step; r++) {
		const uint64_t until = r->until < step ? r->until : step;

		all += (until - done) * r->sequences;
		done = until;
	}
	return all + (step - done) * s->global;
}

uint64_t
om_steps_place(const struct om_steps *s, uint64_t g)
{
	for (const struct om_range *r = s->gap; r < s->gap + s->ngaps && g >= r->first; r++)
		g += r->end - r->first;
	return g;
}

char *
om_steps_gaps(const struct om_steps *s, uint64_t read)
{
	char *text = om_text("%s", "");
	const uint64_t end = read ? om_steps_place(s, read - 1) : 0;

	for (const struct om_range *r = s->gap; r < s->gap + s->ngaps && r->first < end; r++) {
		char *more = om_text("%s%s[%llu, %llu]", text, *text ? ", " : "",
		    (unsigned long long)r->first, (unsigned long long)r->end);

		free(text);
		text = more;
	}
	return text;
}

/* "SEQUENCES until STEP" */
static char *
read_ramp(struct om_steps *s, const struct om_model *m, const char *text)
{
	const uint64_t part = m->global / m->microbatches;
	const struct om_ramp *before = s->nramp ? &s->ramp[s->nramp - 1] : NULL;
	unsigned long long sequences, until;
	int end = 0;

	if (sscanf(text, "%llu until %llu%n", &sequences, &until, &end) != 2 || text[end] ||
	    strspn(text, "0123456789 until") != strlen(text))
		return om_text("\"%s\" is no size of batches", om_clip(text));
	if (!sequences || sequences > m->global || sequences % part)
		return om_text(
		    "a batch of %llu is no multiple of %llu, which a microbatch of each rank "
		    "has, up to batch.global = %llu",
		    sequences, (unsigned long long)part, (unsigned long long)m->global);
	if (until > OM_STEPS_LAST || until <= (before ? before->until : 0))
		return om_text("step %llu does not come after step %llu", until,
		    (unsigned long long)(before ? before->until : 0));
	s->ramp[s->nramp++] = (struct om_ramp){ until, sequences };
	return NULL;
}

/* "steps A to B" or "sequences A to B" */
static char *
read_gap(struct om_steps *s, const char *text)
{
	const char *of = strncmp(text, "steps ", 6) == 0 ? text + 6 : text + strlen("sequences ");
	const bool steps = of == text + 6;
	const struct om_range *before = s->ngaps ? &s->gap[s->ngaps - 1] : NULL;
	unsigned long long a, b, most = steps ? OM_STEPS_LAST : OM_PLACES;
	struct om_range gap;
	int end = 0;

	if ((!steps && strncmp(text, "sequences ", strlen("sequences ")) != 0) ||
	    sscanf(of, "%llu to %llu%n", &a, &b, &end) != 2 || of[end] ||
	    strspn(of, "0123456789 to") != strlen(of))
		return om_text("\"%s\" is no range", om_clip(text));
	if (a > b || b > most || (steps && !a))
		return om_text(
		    "%llu to %llu are no rising numbers from %d to %llu", a, b, steps, most);
	gap = steps ? (struct om_range){ om_steps_all(s, a - 1), om_steps_all(s, b) }
		    : (struct om_range){ a, b + 1 };
	if (before && gap.first < before->end)
		return om_text("\"%s\" begins with sequence %llu, the range before ends with %llu",
		    om_clip(text), (unsigned long long)gap.first,
		    (unsigned long long)before->end - 1);
	s->gap[s->ngaps++] = gap;
	return NULL;
}

char *
om_steps_read(struct om_steps *s, const struct om_model *m, const struct om_list *sizes,
    const struct om_list *skips, const struct om_list **which)
{
	char *why = NULL;

	*s = (struct om_steps){ .global = m->global };
	s->ramp = om_alloc(sizes->n, sizeof *s->ramp);
	s->gap = om_alloc(skips->n, sizeof *s->gap);
	*which = sizes;
	for (uint32_t i = 0; i < sizes->n && !why; i++)
		why = read_ramp(s, m, sizes->a[i]);
	for (uint32_t i = 0; i < skips->n && !why; i++) {
		*which = skips;
		why = read_gap(s, skips->a[i]);
	}
	return why;
}

void
om_steps_free(struct om_steps *s)
{
	free(s->ramp);
	free(s->gap);
}
