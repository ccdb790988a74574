/*
 * Fields that would mean nothing beside another one: an order of microbatches without a pipeline.
 * They are an error where the description itself decides that, and pass where it could be
 * otherwise: where the other field is computed, as in pipeline = arg.pipeline or 1, so that a sweep
 * needs no "if". What passes goes back to its default, and resolved.lua does not show it.
 */
#include <stdlib.h>
#include <string.h>

#include "lang/lang.h"

static const struct row {
	enum field_id f, by;
	const char *is;   /* the value of by that makes f mean nothing; NULL: that of f, or none */
	const char *dflt; /* the value of f that says nothing anyway; NULL: every one does */
	const char *why, *help;
} rows[] = {
	{ F_parallel_schedule, F_parallel_pipeline, "1", "\"1f1b\"",
	    "one stage passes its microbatches one after the other", "a pipeline" },
	{ F_parallel_chunks, F_parallel_pipeline, "1", "1", "one stage has all layers",
	    "a pipeline" },
	{ F_parallel_split, F_parallel_pipeline, "1", NULL, "one stage has all layers",
	    "a pipeline" },
	{ F_parallel_capacity, F_parallel_expert, "1", "\"worst\"",
	    "no rows are sent to experts of other ranks, and none is cut", "expert ranks" },
	{ F_parallel_pair_capacity, F_parallel_expert, "1", "\"worst\"",
	    "no rows are sent to experts of other ranks, and none is cut", "expert ranks" },
	{ F_parallel_overlap, F_parallel_data, "1", "true",
	    "one rank has all gradients and weights", "data ranks" },
	{ F_router_balance_over, F_router_load_balance, "0", "\"batch\"",
	    "there is no load-balance loss whose means they could be", "a load_balance above 0" },
	{ F_router_normalize, F_router_score, "\"topk_softmax\"", "false",
	    "these weights add up to 1 already", "score = \"softmax\" or \"sigmoid\"" },
	{ F_router_n_groups, F_router_top_groups, NULL, "1",
	    "a token may use all groups, which limits nothing", "a smaller top_groups" },
	{ F_group_weight_decay, F_group_lr_scale, "0", NULL,
	    "decay is times the learning rate, and these parameters stay as they are",
	    "an lr_scale above 0" },
};

static void
set_default(const struct object *o, struct value *v)
{
	v->given = v->set = false;
	v->idle = !*fields[v->f].dflt;
	if (!v->idle)
		spec_set(o, v, fields[v->f].dflt);
}

static void
check_row(const struct object *o, const struct row *row)
{
	struct value *v = spec_value(o, row->f), *by = spec_value(o, row->by);
	const char *is = row->is ? row->is : spec_text(v);
	if (!v->given || !v->set || (by->given && !by->set) ||
	    (by->set && strcmp(spec_text(by), is) != 0))
		return;
	if ((by->given && !srcpos_literal(by->pos)) ||
	    (row->dflt && !strcmp(spec_text(v), row->dflt))) {
		set_default(o, v);
		if (!row->is) /* a share of what is no longer there */
			set_default(o, by);
		return;
	}
	diag_error(v->pos, "%s means nothing: %s", spec_assigned(v), row->why);
	if (by->given)
		diag_note(by->pos, "%s here", spec_assigned(by));
	else if (by->set)
		diag_note(v->pos, "%s by default", spec_assigned(by));
	else
		diag_note(v->pos, "%s is n_groups by default", spec_name(by->f));
	struct question *q = ask();
	ask_without(q, v, NULL);
	ask_words(q, xprintf("use %s", row->help), NULL, NULL);
	spec_refuse(v);
}

/*
 * One object whose values are in range and whose defaults are filled in; those that derive from
 * others are not yet.
 */
void
check_idle(const struct object *o)
{
	for (size_t i = 0; i < LEN(rows); i++)
		if (fields[rows[i].f].object == o->type)
			check_row(o, &rows[i]);
}
