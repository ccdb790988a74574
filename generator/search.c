/*
 * What recompute { what = "auto" } stands for. Layers that say it are tried with one choice for all
 * of them, and with one that keeps more at one end of the model and one that keeps less behind it,
 * so that few kinds of layers are added; and only where that saves enough, for each kind has its
 * own functions in the emitted step. Each try goes through the stages as any description does.
 */
#include <string.h>

#include "search.h"

const char *const search_levels[SEARCH_LEVELS] = { "none", "rows", "cheap", "experts", "block" };
enum {
	KINDS_MORE = 2,  /* than with one choice for all */
	KINDS_MOST = 32, /* with more there is one choice for all: a plan takes time by the kind */
};

#define ENOUGH 0.005 /* of a step's time */

/* Of the layers n at one end keep what `more` does, the others what `less` does. */
struct choice {
	uint32_t more, less, n;
	bool last; /* it is the model's end */
	bool fits;
	uint32_t kinds;
	double seconds; /* that a step should take */
};
struct search {
	struct object *trainer;
	ARRAY(struct object **) layer;     /* those that say "auto", where the model lists them */
	struct object **as[SEARCH_LEVELS]; /* each with what it would be */
	uint64_t room;                     /* bytes a rank may need */
	struct choice same, mixed;         /* the best that fit */
};

struct plan *
search_plan(struct object *trainer)
{
	struct buf resolved = { 0 };

	spec_print(trainer, true, &resolved); /* ops know their lines of it */
	struct graph *g = graph_build(trainer);
	if (diag_tried() != TRIAL_CLEAN)
		return NULL;
	struct shard *s = shard(g, target_find(targets, spec_str(trainer, F_trainer_target)));
	fuse(s);
	return plan(s);
}

/* False if no layer says "auto". */
static bool
find_layers(struct search *s, struct object *trainer)
{
	const struct value *v = spec_value(trainer, F_transformer_recompute);

	s->trainer = trainer;
	for (uint32_t i = 0; i < v->n; i++)
		if (!strcmp(spec_str(v->list[i], F_recompute_what), "auto"))
			*PUSH(s->layer) = &v->list[i];
	for (uint32_t k = 0; k < SEARCH_LEVELS; k++) {
		s->as[k] = xalloc((s->layer.n + 1) * sizeof **s->as);
		for (uint32_t i = 0; i < s->layer.n; i++) {
			s->as[k][i] = spec_copy(*s->layer.a[i]);
			spec_value(s->as[k][i], F_recompute_what)->str = search_levels[k];
		}
	}
	return s->layer.n > 0;
}

static void
take(const struct search *s, const struct choice *c)
{
	uint32_t all = s->layer.n;

	for (uint32_t i = 0; i < all; i++) {
		bool more = c->last ? i >= all - c->n : i < c->n;
		*s->layer.a[i] = s->as[more ? c->more : c->less][i];
	}
}

/* Plans a choice, and remembers it if it is the best of its form that fits. */
static bool
try(struct search *s, struct choice *c, uint32_t kinds_most)
{
	struct choice *best = c->n ? &s->mixed : &s->same;

	take(s, c);
	diag_trial(DIAG_NONE);
	const struct plan *p = search_plan(s->trainer);
	if (p && diag_tried() == TRIAL_CLEAN) {
		c->kinds = p->graph->head - p->graph->embed - 1;
		c->seconds = plan_expected(p).step;
		c->fits = plan_worst(p)->arena_bytes <= s->room && c->kinds <= kinds_most;
	}
	diag_trial_end();
	if (c->fits && (!best->fits || c->seconds < best->seconds))
		*best = *c;
	return c->fits;
}

/* As many layers as fit keep more than the others. */
static void
try_mixed(struct search *s, uint32_t more, const struct choice *less, bool last)
{
	uint32_t fit = 0, unfit = s->layer.n;

	while (unfit - fit > 1) {
		uint32_t n = (fit + unfit) / 2;
		struct choice c = { .more = more, .less = less->less, .n = n, .last = last };
		*(try(s, &c, less->kinds + KINDS_MORE) ? &fit : &unfit) = n;
	}
}

void
search_recompute(struct object *trainer)
{
	uint64_t device = (uint64_t)(spec_num(trainer, F_trainer_device_memory) * 1073741824.0);
	struct search s = { .room = device ? device - device / 100 : UINT64_MAX };
	struct choice all[SEARCH_LEVELS];

	if (!find_layers(&s, trainer))
		return;
	s.same.less = device ? SEARCH_LEVELS - 1 : 0;
	for (uint32_t k = 0; k < SEARCH_LEVELS && device && !(k && all[0].fits); k++) {
		all[k] = (struct choice){ .less = k };
		try(&s, &all[k], UINT32_MAX);
		bool mix = all[k].fits && all[k].kinds <= KINDS_MOST;
		for (uint32_t more = 0; more < k && mix; more++)
			for (int last = 0; last < 2 && !all[more].fits; last++)
				try_mixed(&s, more, &all[k], last);
	}
	bool worth = s.mixed.fits && s.mixed.seconds < (1 - ENOUGH) * s.same.seconds;
	take(&s, worth ? &s.mixed : &s.same);
}

void
search_least(struct object *trainer)
{
	struct search s = { 0 };

	if (find_layers(&s, trainer))
		take(&s, &(struct choice){ .less = SEARCH_LEVELS - 1 });
}
