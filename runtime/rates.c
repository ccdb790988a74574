/* lr.groups: groups of parameters whose learning rate has a schedule of its own. */
#include <stdlib.h>
#include <string.h>

#include "rates.h"

/* What may be said of a group: lr's keys of that name, and scale. */
enum kind { NUMBER, PLACE, WORD };
static const struct word {
	const char *name;
	enum kind kind;
	size_t at; /* in struct om_lr */
	double most;
} words[] = {
	{ "scale", NUMBER, offsetof(struct om_lr, peak), 1000 },
	{ "final", NUMBER, offsetof(struct om_lr, final), 1 },
	{ "warmup", PLACE, offsetof(struct om_lr, warmup), (double)OM_PLACES },
	{ "decay", PLACE, offsetof(struct om_lr, decay), (double)OM_PLACES },
	{ "decay_from", PLACE, offsetof(struct om_lr, decay_from), (double)OM_PLACES },
	{ "schedule", WORD, offsetof(struct om_lr, schedule), 0 },
	{ "decay_shape", WORD, offsetof(struct om_lr, decay_shape), 0 },
};

/* "NAME=VALUE" into the schedule; false: it is none. */
static bool
read_word(const char *s, struct om_lr *lr)
{
	const char *value = strchr(s, '=');
	const struct word *w = words;
	char *end, *to;

	if (!value++)
		return false;
	for (; w < words + OM_LEN(words); w++)
		if (strlen(w->name) == (size_t)(value - 1 - s) &&
		    strncmp(w->name, s, strlen(w->name)) == 0)
			break;
	if (w == words + OM_LEN(words) || !*value)
		return false;
	to = (char *)lr + w->at;
	if (w->kind == WORD) {
		char key[24];
		int choice;

		snprintf(key, sizeof key, "lr.%s", w->name);
		choice = om_key_choice(om_key_find(key)->choices, value);
		memcpy(to, &choice, sizeof choice);
		return choice >= 0;
	}
	double x = strtod(value, &end);
	if (*end || !(x >= 0 && x <= w->most))
		return false;
	uint64_t place = (uint64_t)x;
	if (w->kind == PLACE && (double)place != x)
		return false;
	x = w->at == offsetof(struct om_lr, peak) ? x * lr->peak : x;
	memcpy(to, w->kind == PLACE ? (void *)&place : (void *)&x, sizeof x);
	return true;
}

/* Why a schedule cannot be; NULL: it can. */
static const char *
fault_of(const struct om_lr *lr, const struct om_lr *all)
{
	uint64_t n = lr->length;

	if (lr->schedule != all->schedule &&
	    (lr->schedule == OM_POWER || lr->schedule == OM_WSDS || lr->schedule == OM_STAGES))
		return "power, wsds and stages have keys of their own: only lr.schedule can be one";
	if (lr->warmup > n)
		return "the warm-up is longer than the schedule";
	if (lr->schedule == OM_INVERSE_SQRT && !lr->warmup)
		return "inverse_sqrt falls from the warm-up on, which is 0";
	if (lr->schedule == OM_WSD && lr->decay > n - lr->warmup)
		return "warm-up and decay are longer than the schedule";
	if (lr->decay_from &&
	    (lr->decay_from < lr->warmup || lr->decay_from >= n || lr->decay > n - lr->decay_from))
		return "the decay from decay_from does not lie between warm-up and the schedule's "
		       "end";
	return NULL;
}

void
om_rates_read(struct om_conf *c)
{
	struct om_at at = om_conf_given("lr.groups");

	c->rate = om_alloc(c->groups.n, sizeof *c->rate);
	for (uint32_t i = 0; i < c->groups.n; i++) {
		struct om_rate *r = &c->rate[i];
		char *copy = om_text("%s", c->groups.a[i]), *next, *s = strtok_r(copy, " ", &next);
		const char *fault = s ? NULL : "it is empty";

		r->group = om_text("%s", s ? s : "");
		r->lr = c->lr;
		while (!fault && (s = strtok_r(NULL, " ", &next)))
			if (!read_word(s, &r->lr))
				fault =
				    "one of its words is none of scale, schedule, warmup, final, "
				    "decay, "
				    "decay_from and decay_shape with \"=\" and a value of that key";
		if (!fault)
			fault = fault_of(&r->lr, &c->lr);
		for (uint32_t j = 0; j < i && !fault; j++)
			if (strcmp(c->rate[j].group, r->group) == 0)
				fault = "the group is there twice";
		if (fault) {
			om_diag(at, "lr.groups: \"%s\": %s", om_clip(c->groups.a[i]), fault);
			om_diag_help(
			    "a group is \"NAME [scale=X] [schedule=S] [warmup=N] [final=X] "
			    "[decay=N] [decay_from=N] [decay_shape=S]\"");
		}
		free(copy);
	}
}

void
om_rates_free(struct om_conf *c)
{
	for (uint32_t i = 0; c->rate && i < c->groups.n; i++)
		free(c->rate[i].group);
	free(c->rate);
}

void
om_rates_check(const struct om_conf *c, const struct om_model *m)
{
	for (uint32_t i = 0; i < c->groups.n; i++) {
		char *names = om_text("%s", ""), *more;
		bool found = false;

		for (uint32_t k = 0; k < m->nparam_groups; k++) {
			const char *name = m->param_group[k].name;

			if (!name)
				continue;
			found |= strcmp(name, c->rate[i].group) == 0;
			if (strstr(names, name))
				continue;
			more = om_text("%s%s%s", names, *names ? ", " : "", name);
			free(names);
			names = more;
		}
		if (!found)
			om_die("run.yaml", "lr.groups: this trainer has no group called %s; %s%s",
			    c->rate[i].group,
			    *names ? "those with a name are "
				   : "none of its groups has a name, which is "
				     "said by group { match, name } in the "
				     "description",
			    names);
		free(names);
	}
}

void
om_rates_write(const struct om_conf *c, const struct om_model *m, unsigned char *arena, uint64_t at,
    double factor)
{
	for (uint32_t i = 0; i < c->groups.n; i++) {
		const struct om_rate *r = &c->rate[i];
		double rate = factor * om_lr_at(&r->lr, at, r->lr.length);

		for (uint32_t k = 0; k < m->nparam_groups; k++)
			if (m->param_group[k].name && strcmp(m->param_group[k].name, r->group) == 0)
				om_put(arena, m->param_group[k].ctl + OM_LR * sizeof rate, &rate,
				    sizeof rate);
	}
}
