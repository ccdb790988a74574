/*
 * Products in 8 bits: which formats go together, in which layers, and the sizes whose blocks come
 * out even.
 */
#include <string.h>

#include "lang/lang.h"

/*
 * What products multiply, and which is the default: of the first always, of others beside that in
 * 8 bits; one that is not set is that of weights.
 */
static const struct {
	enum field_id f, as;
} products[] = {
	{ F_precision_experts, F_precision_weights },
	{ F_precision_experts_dx, F_precision_experts },
	{ F_precision_experts_dw, F_precision_weights },
};

static bool
is(const struct value *v, const char *s)
{
	return v->set && !strcmp(v->str, s);
}

/* How many numbers of a row share a scale; 1: none do. */
static uint32_t
block_of(const struct value *v)
{
	return v->set ? format_find(v->str)->block : 1;
}

/* A size of layers whose products are of 8 bits. */
static void
check_size(const struct value *size, const struct value *by)
{
	int64_t block = block_of(by);

	if (!size->set || size->i % block == 0)
		return;
	diag_error(size->pos, "%s is not divisible by %lld, the numbers that share a scale in %s",
	    spec_assigned(size), (long long)block, by->str);
	if (by->given)
		spec_note(by);
	struct question *q = ask();
	for (int64_t x = size->i / block * block; x <= size->i + block; x += block)
		if (x > 0)
			ask_value(q, size, 2, xprintf("%lld", (long long)x));
	if (size->i % format_find("mxfp8")->block == 0)
		ask_value(q, by, 1, "\"mxfp8\"");
	ask_without(q, by, NULL);
}

/* The layers that have products in 8 bits: some do, and their sizes are those of blocks. */
static void
check_layers(const struct object *precision, const struct object *model, const struct value *by)
{
	static const enum field_id sizes[] = { F_moe_hidden_size, F_moe_shared_hidden_size };
	const struct value *layers = spec_value(model, F_transformer_feed_forward);
	struct value *exempt = spec_value(precision, F_precision_exempt);
	uint32_t experts = 0, eight = 0;

	for (uint32_t i = 0; i < layers->n; i++) {
		bool out = layers->list[i]->type != OBJ_moe;
		experts += !out;
		for (uint32_t k = 0; k < exempt->nnums; k++)
			out |= exempt->nums[k] == i;
		if (out)
			continue;
		if (!eight++)
			check_size(spec_value(model, F_transformer_d_model), by);
		for (size_t k = 0; k < LEN(sizes); k++)
			check_size(spec_value(layers->list[i], sizes[k]), by);
	}
	if (!layers->set || eight)
		return;
	diag_error(by->pos, "%s, but %s", spec_assigned(by),
	    !experts ? "no layer has experts"
	    : exempt->given
		? "all layers that have experts are exempt"
		: "all layers that have experts are exempt, as the first and the last are");
	if (experts && exempt->given)
		spec_note(exempt);
	struct question *q = ask();
	if (experts)
		ask_value(q, exempt, 1, "{}");
	ask_without(q, by, NULL);
}

/* Layers that are exempt: the first and the last, or those that are there. */
static void
check_exempt(struct value *exempt, const struct value *n_layers)
{
	if (!n_layers->set)
		return;
	if (!exempt->given) {
		exempt->set = true;
		exempt->nums = xalloc(2 * sizeof *exempt->nums);
		exempt->nums[1] = (double)n_layers->i - 1;
		exempt->nnums = n_layers->i > 1 ? 2 : 1;
	}
	for (uint32_t i = 0; i < exempt->nnums && exempt->set; i++) {
		if (exempt->nums[i] < (double)n_layers->i)
			continue;
		diag_error(exempt->pos, "%s has layer %.0f, but %s", spec_name(exempt->f),
		    exempt->nums[i], spec_assigned(n_layers));
		spec_note(n_layers);
		diag_help("layers are counted from 0");
		spec_refuse(exempt);
	}
}

/* What is for products in 8 bits, and no product is; or for one of their formats. */
static void
check_means(struct value *v, const struct value *experts, const char *choices, const char *why)
{
	if (!v->given || !v->set)
		return;
	diag_error(v->pos, "%s means nothing: %s", spec_name(v->f), why);
	struct question *q = ask();
	ask_without(q, v, NULL);
	ask_choices(q, experts, choices);
	spec_refuse(v);
}

void
check_eight(const struct object *trainer)
{
	const struct object *precision = spec_obj(trainer, F_trainer_precision);
	const struct object *model = spec_obj(trainer, F_trainer_model);
	const struct value *weights, *by = NULL;
	bool mx = false;

	if (!precision || !model || !(weights = spec_value(precision, F_precision_weights))->set)
		return;
	for (size_t i = 0; i < LEN(products); i++) {
		struct value *v = spec_value(precision, products[i].f);
		if (!v->given && spec_value(precision, products[i].as)->set && (!i || by)) {
			v->set = true;
			v->str = spec_str(precision, products[i].as);
		}
		bool eight = block_of(v) > 1;
		if (!v->given && !v->set)
			continue;
		if (!v->set || (eight ? strcmp(weights->str, "fp64") != 0 : is(v, weights->str))) {
			by = eight && !by ? v : by;
			mx |= is(v, "mxfp8");
			continue;
		}
		diag_error(
		    v->pos, "%s does not go with %s", spec_assigned(v), spec_assigned(weights));
		if (weights->given)
			spec_note(weights);
		struct question *q = ask();
		ask_value(q, v, 3, xprintf("\"%s\"", weights->str));
		if (!eight)
			ask_choices(q, v, "mxfp8|fp8_block");
		spec_refuse(v);
	}
	const struct value *experts = spec_value(precision, F_precision_experts);
	struct value *scale = spec_value(precision, F_precision_scale);
	struct value *exempt = spec_value(precision, F_precision_exempt);
	if (!by)
		check_means(exempt, experts, "mxfp8|fp8_block", "no product is in 8 bits");
	if (!mx)
		check_means(scale, experts, "mxfp8",
		    by ? "scales of fp8_block are by rceil" : "no product is in mxfp8");
	else if (!scale->given) {
		scale->set = true;
		scale->str = "rceil";
	}
	if (!by)
		return;
	check_exempt(exempt, spec_value(model, F_transformer_n_layers));
	if (exempt->set)
		check_layers(precision, model, by);
}
