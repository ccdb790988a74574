/*
 * Every rule of the language that looks at one trainer: fills in defaults and what follows from
 * other fields, and reports each fault with the values that would do. A value in error is given but
 * no longer set; rules pass over it, so that one mistake is one error.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lang/lang.h"

/* ---- one object: defaults, ranges, choices --------------------------------------------------- */

/* Fields that another field of the object bounds. */
static const struct {
	enum field_id f, bound;
} bounds[] = {
	{ F_moe_top_k, F_moe_num_experts },
	{ F_attention_n_kv_heads, F_attention_n_heads },
};

/* A number of a value. */
static void
check_range(const struct object *o, struct value *v, double x)
{
	const struct field_row *row = &fields[v->f];
	const struct value *bound = NULL;
	if (x >= row->lo && x <= row->hi)
		return;
	for (size_t i = 0; i < LEN(bounds); i++)
		if (bounds[i].f == v->f && spec_value(o, bounds[i].bound)->set)
			bound = spec_value(o, bounds[i].bound);
	if (row->type != INT)
		diag_error(v->pos,
		    row->type == NUM ? "%s = %.9g is not in %.9g .. %.9g"
				     : "%s: %.9g is not in %.9g .. %.9g",
		    spec_name(v->f), x, row->lo, row->hi);
	else
		diag_error(v->pos, "%s = %lld is not in %.0f .. %.0f", spec_name(v->f),
		    (long long)v->i, row->lo, bound ? (double)bound->i : row->hi);
	spec_refuse(v);
}

static void
check_value(const struct object *o, struct value *v)
{
	const struct field_row *row = &fields[v->f];
	if (row->type == ENUM || (row->type == NUM && v->str)) {
		if (spec_choice(row->choices, v->str))
			return;
		const char *like = spec_closest_choice(v->f, v->str);
		diag_error(v->pos, "%s = \"%s\" is not known%s", spec_name(v->f), v->str,
		    like ? xprintf("; did you mean \"%s\"?", like) : "");
		diag_help("it can be %s",
		    row->type == NUM ? spec_range(v->f) : spec_choices(row->choices, "\"", "\""));
		spec_refuse(v);
	} else if (row->type == INT || row->type == NUM) {
		check_range(o, v, row->type == INT ? (double)v->i : v->num);
	}
	for (uint32_t i = 0; i < v->nnums && v->set; i++) /* INTS, PAIR */
		check_range(o, v, v->nums[i]);
}

/* An object and those in it; each distinct one once. */
static void
check_object(const struct object *o)
{
	for (struct value *v = o->v; v < o->v + o->n; v++) {
		const struct field_row *row = &fields[v->f];
		if (v->set) {
			check_value(o, v);
		} else if (!v->given && !row->dflt) {
			diag_error(o->pos, "%s is required", spec_name(v->f));
			diag_help("%s is %s: %s", row->name, spec_range(v->f), row->doc);
		} else if (!v->given && *row->dflt) {
			spec_set(o, v, row->dflt);
		}
		for (uint32_t i = 0; i < v->n; i++)
			if (!spec_again(v, i))
				check_object(v->list[i]);
	}
	check_idle(o);
}

/* ---- derived values, formats, names ---------------------------------------------------------- */

/* What a field is unless the file gives it. */
static void
derive(struct value *v, double x)
{
	if (v->given)
		return;
	v->set = true;
	if (fields[v->f].type == INT)
		v->i = (int64_t)x;
	else
		v->num = x;
}

static void
derive_text(struct value *v, const char *s)
{
	if (v->given)
		return;
	v->set = true;
	v->str = s;
}

/* Fields that are as another one of their object by default. */
static const struct {
	enum field_id f, as;
} same[] = {
	{ F_attention_n_kv_heads, F_attention_n_heads },
	{ F_router_top_groups, F_router_n_groups },
};

/* What follows from others in an object and those in it. */
static void
derive_in(const struct object *o, const struct value *width)
{
	for (size_t i = 0; i < LEN(same); i++)
		if (fields[same[i].f].object == o->type && spec_value(o, same[i].as)->set)
			derive(spec_value(o, same[i].f), (double)spec_int(o, same[i].as));
	if (o->type == OBJ_attention) {
		const struct value *heads = spec_value(o, F_attention_n_heads);
		if (heads->set && width->set && width->i % heads->i == 0)
			derive(spec_value(o, F_attention_head_dim), (double)(width->i / heads->i));
	}
	if (o->type == OBJ_yarn && spec_value(o, F_yarn_factor)->set)
		derive(spec_value(o, F_yarn_attention_factor),
		    0.1 * log(spec_num(o, F_yarn_factor)) + 1);
	for (const struct value *v = o->v; v < o->v + o->n; v++)
		for (uint32_t i = 0; i < v->n; i++)
			if (!spec_again(v, i))
				derive_in(v->list[i], width);
}

/*
 * As many tokens of prompts at once as the target is for, of as many sequences as are gone on with;
 * no more than they or a microbatch have, and not so many that a short prompt takes long.
 */
static void
derive_prompt(const struct object *trainer, const struct target_row *row)
{
	const struct object *g = spec_obj(trainer, F_trainer_generation);
	const struct value *seq =
	    spec_value(spec_obj(trainer, F_trainer_model), F_transformer_sequence_length);

	const struct value *micro = spec_value(spec_obj(trainer, F_trainer_batch), F_batch_micro);
	int64_t each, rows;

	if (!g || !row || !seq->set || !micro->set)
		return;
	each = row->kind->prompt < seq->i ? row->kind->prompt : seq->i;
	rows = each * (spec_int(g, F_generation_batch) < 8 ? spec_int(g, F_generation_batch) : 8);
	derive(spec_value(g, F_generation_prompt),
	    (double)(micro->i <= (rows - 1) / seq->i ? micro->i * seq->i : rows));
}

static void
check_formats(const struct object *trainer, const struct target_row *target)
{
	const struct object *precision = spec_obj(trainer, F_trainer_precision);
	if (!precision || !target)
		return;
	static const enum field_id sums[] = { F_precision_grads, F_precision_optimizer,
		F_precision_moments };
	const struct value *machine = spec_value(trainer, F_trainer_target);
	struct value *weights = spec_value(precision, F_precision_weights);
	derive_text(weights, target->kind->weights);
	if (!weights->set)
		return;
	bool wide = strcmp(weights->str, "fp64") == 0, drawn = false;
	if (!spec_choice(target->kind->choices, weights->str)) {
		diag_error(weights->pos, "%s weights are not available on target %s", weights->str,
		    target->name);
		if (machine->given)
			spec_note(machine);
		ask_choices(ask(), weights, target->kind->choices);
		spec_refuse(weights);
		return;
	}
	for (size_t i = 0; i < LEN(sums); i++) {
		struct value *v = spec_value(precision, sums[i]);
		derive_text(v, wide ? "fp64" : i ? target->kind->optimizer : target->kind->grads);
		drawn = v->set && strcmp(v->str, "bf16") == 0; /* moments, of what has masters */
		if (!v->set || (drawn ? strcmp(weights->str, "bf16") == 0
				      : (strcmp(v->str, "fp64") == 0) == wide))
			continue;
		diag_error(
		    v->pos, "%s does not go with %s", spec_assigned(v), spec_assigned(weights));
		if (weights->given)
			spec_note(weights);
		diag_help(drawn ? "bf16 moments are for bf16 weights"
				: "fp64 is for weights, grads, optimizer and moments together");
		spec_refuse(v);
	}
}

static void
check_name(struct value *v)
{
	if (!v->set)
		return;
	size_t n = strlen(v->str), good = strspn(v->str, spec_name_letters);
	const char *why = NULL;
	if (n == 0)
		why = "is empty";
	else if (v->str[good])
		why = "holds characters that are no letter, digit or . _ -";
	else if (*v->str == '.' || *v->str == '-')
		why = xprintf("starts with '%c'", *v->str);
	else if (n > NAME_LENGTH_MAX)
		why = xprintf("is longer than %d bytes", NAME_LENGTH_MAX);
	if (!why)
		return;
	diag_error(v->pos, "%s = \"%s\" %s", spec_name(F_trainer_name), v->str, why);
	diag_help("it is the name of the emitted folder");
	spec_refuse(v);
}

#define GROUP_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

static void
check_groups(const struct object *trainer)
{
	const struct value *groups =
	    spec_value(spec_obj(trainer, F_trainer_optimizer), F_adamw_groups);
	for (uint32_t i = 0; i < groups->n; i++) {
		const struct object *g = groups->list[i];
		struct value *match = spec_value(g, F_group_match);
		struct value *name = spec_value(g, F_group_name);
		if (match->set && !*match->str) {
			diag_error(match->pos, "%s is empty", spec_name(F_group_match));
			diag_help("it is a pattern of tensor names; * matches anything");
			spec_refuse(match);
		}
		if (name->set && (!*name->str || name->str[strspn(name->str, GROUP_LETTERS)])) {
			diag_error(name->pos, "%s is no name of a group", spec_assigned(name));
			diag_help("use letters, digits and _");
			spec_refuse(name);
		}
		if (!spec_value(g, F_group_weight_decay)->given &&
		    !spec_value(g, F_group_lr_scale)->given &&
		    !spec_value(g, F_group_update)->given && !name->given) {
			diag_error(g->pos, "group sets nothing");
			diag_help("set weight_decay, lr_scale, update or name");
		}
	}
}

/* What only Muon can do, and what it cannot. */
static void
check_matrices(const struct object *trainer)
{
	const struct object *adamw = spec_obj(trainer, F_trainer_optimizer);
	const struct value *groups = spec_value(adamw, F_adamw_groups);
	const struct value *scale = spec_value(adamw, F_adamw_expert_lr_scale);
	const struct object *matrices = spec_obj(adamw, F_adamw_matrices);
	const struct value *layers =
	    spec_value(spec_obj(trainer, F_trainer_model), F_transformer_feed_forward);
	bool routed = !layers->set;

	if (!matrices)
		return;
	for (uint32_t i = 0; i < layers->n; i++)
		routed |= layers->list[i]->type == OBJ_moe;
	if (scale->given && scale->set && scale->num != 1 && !routed) {
		diag_error(
		    scale->pos, "%s means nothing: no layer has experts", spec_assigned(scale));
		diag_help("leave it out, or scale the rates of some parameters by group { match, "
			  "lr_scale }");
	}
	for (uint32_t i = 0; i < groups->n; i++) {
		struct value *update = spec_value(groups->list[i], F_group_update);
		if (matrices->type == OBJ_muon || !update->set || strcmp(update->str, "muon"))
			continue;
		diag_error(update->pos, "group.update = \"muon\" without adamw.matrices = muon {}");
		diag_help(
		    "give adamw muon {} as its matrices, which says how, and groups of what Muon "
		    "is not to step adamw as their update");
		spec_refuse(update);
	}
}

/* What a router cannot do at once. */
static void
check_router(const struct object *router)
{
	const struct value *gamma = spec_value(router, F_router_bias_gamma);
	const struct value *score = spec_value(router, F_router_score);
	const struct value *top = spec_value(router, F_router_top_groups);
	const struct value *groups = spec_value(router, F_router_n_groups);
	const struct value *routing = spec_value(router, F_router_routing);
	struct question *q;
	bool grouped = top->set && top->i < groups->i;
	if (routing->set && strcmp(routing->str, "uniform") == 0 && grouped) {
		diag_error(routing->pos,
		    "%s = \"uniform\" gives each expert its turn, in all groups",
		    spec_name(F_router_routing));
		spec_note(top);
		q = ask();
		ask_value(q, routing, 1, "\"random\"");
		ask_without(q, groups, top);
	}
	if (!gamma->set || gamma->num <= 0)
		return;
	if (score->set && strcmp(score->str, "topk_softmax") == 0 && grouped) {
		diag_error(gamma->pos,
		    "%s = %.9g: with topk_softmax the bias is of logits, but groups compete by "
		    "softmax scores",
		    spec_name(F_router_bias_gamma), gamma->num);
		spec_note(top);
		q = ask();
		ask_choices(q, score, "softmax|sigmoid");
		ask_without(q, groups, top);
	}
	if (routing->set && strcmp(routing->str, "learned") != 0) {
		diag_error(gamma->pos, "%s = %.9g, but no score chooses the experts",
		    spec_name(F_router_bias_gamma), gamma->num);
		spec_note(routing);
		q = ask();
		ask_value(q, routing, 1, "\"learned\"");
		ask_without(q, gamma, NULL);
	}
}

static void
check_routers(const struct object *model)
{
	const struct value *layers = spec_value(model, F_transformer_feed_forward);
	for (uint32_t i = 0; i < layers->n; i++)
		if (!spec_again(layers, i) && layers->list[i]->type == OBJ_moe)
			check_router(spec_obj(layers->list[i], F_moe_router));
}

/* ---- the layout ---- */

/* What follows from the degrees; nothing that would stand in the description of one rank. */
static void
derive_parallel(const struct object *p)
{
	struct value *schedule = spec_value(p, F_parallel_schedule);
	struct value *chunks = spec_value(p, F_parallel_chunks);
	struct value *capacity = spec_value(p, F_parallel_capacity);
	struct value *pair = spec_value(p, F_parallel_pair_capacity);
	const struct value *expert = spec_value(p, F_parallel_expert);
	const struct value *pipeline = spec_value(p, F_parallel_pipeline);
	if (expert->set && expert->i > 1) {
		derive_text(capacity, fields[F_parallel_capacity].choices);
		derive_text(pair, fields[F_parallel_pair_capacity].choices);
	}
	if (!pipeline->set || pipeline->i == 1)
		return;
	derive_text(schedule, "1f1b");
	if (schedule->set)
		derive(chunks, (double)schedule_find(schedule->str)->lo);
}

static void
check_chunks(const struct object *p)
{
	const struct value *schedule = spec_value(p, F_parallel_schedule);
	struct value *chunks = spec_value(p, F_parallel_chunks);
	if (!chunks->set || !schedule->set)
		return;
	const struct schedule_row *row = schedule_find(schedule->str);
	if (chunks->i >= row->lo && chunks->i <= row->hi)
		return;
	diag_error(
	    chunks->pos, "%s does not go with %s", spec_assigned(chunks), spec_assigned(schedule));
	spec_note(schedule);
	struct question *q = ask();
	for (int64_t n = row->lo; n <= row->hi; n++)
		ask_value(q, chunks, 2, xprintf("%lld", (long long)n));
	ask_choices(q, schedule, fields[F_parallel_schedule].choices);
	spec_refuse(chunks);
}

/* Layers of each chunk: as many numbers as chunks, which add up to the layers. */
static void
check_split(const struct object *p, const struct object *model)
{
	struct value *split = spec_value(p, F_parallel_split);
	const struct value *layers = spec_value(model, F_transformer_n_layers);
	const struct value *pipeline = spec_value(p, F_parallel_pipeline);
	const struct value *chunks = spec_value(p, F_parallel_chunks);
	if (!split->set || !pipeline->set || !chunks->set)
		return;
	int64_t want = pipeline->i * chunks->i, sum = 0;
	for (uint32_t i = 0; i < split->nnums; i++)
		sum += (int64_t)split->nums[i];
	if (split->nnums != want) {
		diag_error(split->pos, "%s lists %u chunk%s, but %s", spec_name(F_parallel_split),
		    split->nnums, split->nnums == 1 ? "" : "s",
		    chunks->i == 1 ? spec_assigned(pipeline) : spec_product(pipeline, chunks));
		if (pipeline->given)
			spec_note(pipeline);
		diag_help("give one number a chunk, in the order of the model");
	} else if (layers->set && sum != layers->i) {
		diag_error(split->pos, "%s adds up to %lld layers, but %s",
		    spec_name(F_parallel_split), (long long)sum, spec_assigned(layers));
		spec_note(layers);
		diag_help("%lld layer%s too %s; without a split, chunks get equal work",
		    (long long)llabs(sum - layers->i), llabs(sum - layers->i) == 1 ? "" : "s",
		    sum > layers->i ? "many" : "few");
	} else {
		return;
	}
	ask_without(ask(), split, NULL);
	spec_refuse(split);
}

/* One weight on two stages, neither of which would have its whole gradient; a "v" joins them. */
static void
check_tied(const struct object *p, const struct object *model)
{
	const struct value *tied =
	    spec_value(spec_obj(model, F_transformer_lm_head), F_lm_head_tied);
	const struct value *pipeline = spec_value(p, F_parallel_pipeline);
	const struct value *kind = spec_value(p, F_parallel_schedule);
	if (!tied->i || !pipeline->set || pipeline->i == 1 ||
	    (kind->set && !strcmp(kind->str, "v")))
		return;
	diag_error(tied->pos, "%s, but with %s embedding and head are apart", spec_assigned(tied),
	    spec_assigned(pipeline));
	spec_note(pipeline);
	diag_help("this version does not add up gradients of one weight on two stages; a \"v\" has "
		  "both ends on one");
	struct question *q = ask();
	ask_value(q, tied, 1, "false");
	ask_value(q, kind, 1, "\"v\"");
	ask_value(q, pipeline, 1, "1");
}

void
check(struct object *trainer, const struct target_row *table, const char *target)
{
	struct value *machine = spec_value(trainer, F_trainer_target);
	spec_targets(table);
	ask_about(trainer, target);
	if (target) {
		machine->given = false; /* not by the file: it has no place to point at */
		machine->pos = (struct pos){ 0 };
		derive_text(machine, target);
	}
	check_object(trainer);
	const struct target_row *row = machine->set ? target_find(table, machine->str) : NULL;
	const struct object *model = spec_obj(trainer, F_trainer_model);
	const struct object *layout = spec_obj(trainer, F_trainer_parallel);
	check_name(spec_value(trainer, F_trainer_name));
	derive_parallel(layout);
	check_chunks(layout);
	check_split(layout, model);
	check_tied(layout, model);
	check_rules(trainer);
	if (model)
		derive_in(model, spec_value(model, F_transformer_d_model));
	check_routers(model);
	if (row)
		derive(spec_value(trainer, F_trainer_device_memory), row->memory_gib);
	derive_prompt(trainer, row);
	check_formats(trainer, row);
	check_eight(trainer);
	check_groups(trainer);
	check_matrices(trainer);
}
