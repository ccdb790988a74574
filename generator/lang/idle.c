/*
 * Fields that would mean nothing beside another one: an order of microbatches without a pipeline.
 * They are an error where the description itself decides that, and pass where it could be
 * otherwise: where the other field is computed, as in pipeline = arg.pipeline or 1, so that a sweep
 * needs no "if". What passes goes back to its default, and resolved.lua does not show it.
 */
#include <stdlib.h>
#include <string.h>

#include "lang/lang.h"

static bool
is_one(const struct object *o, enum field_id by)
{
	return spec_int(o, by) == 1;
}

static bool
is_zero(const struct object *o, enum field_id by)
{
	return spec_num(o, by) == 0;
}

static bool
adds_to_one(const struct object *o, enum field_id by)
{
	return !strcmp(spec_str(o, by), "topk_softmax");
}

static bool
all_groups(const struct object *o, enum field_id by)
{
	return !spec_value(o, by)->given || spec_int(o, by) == spec_int(o, F_router_n_groups);
}

static const struct {
	enum field_id f, by;
	const char *dflt; /* the value of f that says nothing anyway; NULL: every one does */
	bool (*idle)(const struct object *o, enum field_id by);
	const char *why, *help;
} rows[] = {
	{ F_parallel_schedule, F_parallel_pipeline, "\"1f1b\"", is_one,
	    "one stage passes its microbatches one after the other", "a pipeline" },
	{ F_parallel_chunks, F_parallel_pipeline, "1", is_one, "one stage has all layers",
	    "a pipeline" },
	{ F_parallel_split, F_parallel_pipeline, NULL, is_one, "one stage has all layers",
	    "a pipeline" },
	{ F_parallel_capacity, F_parallel_expert, "\"worst\"", is_one,
	    "no rows are sent to experts of other ranks, and none is cut", "expert ranks" },
	{ F_router_balance_over, F_router_load_balance, "\"batch\"", is_zero,
	    "there is no load-balance loss whose means they could be", "a load_balance above 0" },
	{ F_router_normalize, F_router_score, "false", adds_to_one,
	    "these weights add up to 1 already", "score = \"softmax\" or \"sigmoid\"" },
	{ F_router_n_groups, F_router_top_groups, "1", all_groups,
	    "a token may use all groups, which limits nothing", "a smaller top_groups" },
	{ F_group_weight_decay, F_group_lr_scale, NULL, is_zero,
	    "decay is times the learning rate, and these parameters stay as they are",
	    "an lr_scale above 0" },
};

/*
 * One object whose values are in range and whose defaults are filled in; those that derive from
 * others are not yet.
 */
void
check_idle(const struct object *o)
{
	for (size_t i = 0; i < LEN(rows); i++) {
		if (fields[rows[i].f].object != o->type)
			continue;
		struct value *v = spec_value(o, rows[i].f), *by = spec_value(o, rows[i].by);
		if (!v->given || !v->set || (by->given && !by->set) || !rows[i].idle(o, rows[i].by))
			continue;
		if ((by->given && !srcpos_literal(by->pos)) ||
		    (rows[i].dflt && !strcmp(spec_text(v), rows[i].dflt))) {
			default_again(o, v);
			if (rows[i].idle == all_groups) /* a share of what is no longer there */
				default_again(o, by);
			continue;
		}
		diag_error(v->pos, "%s means nothing: %s", spec_assigned(v), rows[i].why);
		if (by->given)
			diag_note(by->pos, "%s here", spec_assigned(by));
		else if (by->set)
			diag_note(v->pos, "%s by default", spec_assigned(by));
		else
			diag_note(v->pos, "%s is n_groups by default", spec_name(by->f));
		struct question *q = ask();
		ask_without(q, v, NULL);
		ask_words(q, xprintf("use %s", rows[i].help));
		default_refuse(v);
	}
}
