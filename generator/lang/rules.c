/*
 * The rules between whole numbers of a trainer: what divides what, what bounds what. A rule is a
 * row; for its help, the nearest values by which it would hold come into question.
 */
#include <stdlib.h>
#include <string.h>

#include "lang/lang.h"

static const struct schedule_row schedules[] = { { "gpipe", 1, 1 }, { "1f1b", 1, 1 },
	{ "interleaved", 2, 64 }, { "v", 2, 2 } };

const struct schedule_row *
schedule_find(const char *name)
{
	for (size_t i = 0; i < LEN(schedules); i++)
		if (!strcmp(schedules[i].name, name))
			return &schedules[i];
	internal("rules.c: schedules[] has no row for \"%s\"", name);
}

enum {
	DIVISORS_MAX = 12, /* values named for a divisor, the nearest ones */
	MULTIPLES_MAX = 2, /* ... and for a multiple */
	NEAREST_MAX = 64,  /* values of a field that come into question */
	PROBES = 1 << 17,  /* ... and how far they are looked for on each side */
	MICROBATCHES_MAX = 4096,
	RULE_FIELDS = 4,
};

/* The values that rules speak about, of one trainer and one of its moe layers. */
struct scope {
	const struct value *v[N_FIELDS]; /* NULL: not there */
	int64_t x[N_FIELDS];
};

/* ---- whether they hold ----------------------------------------------------------------------- */

/* The first field is a multiple of the others. */
static bool
divisible(const int64_t *x, const uint32_t *f)
{
	return x[f[0]] % (x[f[1]] * (f[2] ? x[f[2]] : 1)) == 0;
}

/* The second field bounds the first. */
static bool
bounded(const int64_t *x, const uint32_t *f)
{
	return x[f[0]] <= x[f[1]];
}

/* The first field, or what comes out where it is divided by the second. */
static bool
even(const int64_t *x, const uint32_t *f)
{
	int64_t by = f[1] ? x[f[1]] : 1;
	return x[f[0]] % by != 0 || x[f[0]] / by % 2 == 0;
}

/* Whatever groups a token gets, they must hold enough experts. */
static bool
enough_in_groups(const int64_t *x, const uint32_t *f)
{
	(void)f;
	return x[F_moe_num_experts] % x[F_router_n_groups] != 0 ||
	       x[F_router_top_groups] > x[F_router_n_groups] ||
	       x[F_moe_top_k] <=
		   x[F_moe_num_experts] / x[F_router_n_groups] * x[F_router_top_groups];
}

static bool
enough_for_chunks(const int64_t *x, const uint32_t *f)
{
	return x[f[0]] > x[f[2]] || x[f[0]] * x[f[1]] <= x[f[2]];
}

static int64_t
microbatches(const int64_t *x)
{
	return x[F_batch_global] / (x[F_batch_micro] * x[F_parallel_data]);
}

/* Each is some lines of a rank's program. */
static bool
few_microbatches(const int64_t *x, const uint32_t *f)
{
	(void)f;
	return x[F_parallel_pipeline] == 1 || microbatches(x) <= MICROBATCHES_MAX;
}

/* What generates lies where a microbatch does. */
static bool
in_microbatch(const int64_t *x, const uint32_t *f)
{
	return x[f[0]] <= x[f[1]] * x[f[2]];
}

/* ---- what is said where they do not ---------------------------------------------------------- */

static const char *
not_divisible(const struct scope *s, const uint32_t *f)
{
	return xprintf("%s is not divisible by %s", spec_assigned(s->v[f[0]]),
	    f[2] ? spec_product(s->v[f[1]], s->v[f[2]]) : spec_assigned(s->v[f[1]]));
}

static const char *
not_in_range(const struct scope *s, const uint32_t *f)
{
	return xprintf("%s is not in %.0f .. %lld", spec_assigned(s->v[f[0]]), fields[f[0]].lo,
	    (long long)s->x[f[1]]);
}

static const char *
more_than_microbatch(const struct scope *s, const uint32_t *f)
{
	return xprintf("%s is more than the tokens of a microbatch, %s, in whose place they are "
		       "computed",
	    spec_assigned(s->v[f[0]]), spec_product(s->v[f[1]], s->v[f[2]]));
}

static const char *
too_few_in_groups(const struct scope *s, const uint32_t *f)
{
	int64_t each = s->x[F_moe_num_experts] / s->x[F_router_n_groups];
	return xprintf("%s is more than the %lld experts of %s group%s", spec_assigned(s->v[f[0]]),
	    (long long)(each * s->x[f[1]]), spec_assigned(s->v[f[1]]), s->x[f[1]] == 1 ? "" : "s");
}

static const char *
odd_head(const struct scope *s, const uint32_t *f)
{
	return xprintf("%s is odd: rotary embedding turns pairs", spec_assigned(s->v[f[0]]));
}

static const char *
odd_quotient(const struct scope *s, const uint32_t *f)
{
	return xprintf(
	    "the head size %s / %s = %lld / %lld = %lld is odd: rotary embedding turns pairs",
	    spec_name(f[0]), spec_name(f[1]), (long long)s->x[f[0]], (long long)s->x[f[1]],
	    (long long)(s->x[f[0]] / s->x[f[1]]));
}

static const char *
too_many_chunks(const struct scope *s, const uint32_t *f)
{
	return xprintf(
	    "%s chunks, but %s", spec_product(s->v[f[0]], s->v[f[1]]), spec_assigned(s->v[f[2]]));
}

static const char *
too_many_microbatches(const struct scope *s, const uint32_t *f)
{
	return xprintf("%s is %lld microbatches a rank; a pipeline takes at most %d",
	    spec_assigned(s->v[f[0]]), (long long)microbatches(s->x), MICROBATCHES_MAX);
}

/* ---- the table ------------------------------------------------------------------------------- */

enum when { ALWAYS, HEAD_DIM_GIVEN, HEAD_DIM_DERIVED, GROUPS_GIVEN };

/* One field bounds the other: the nearest value will do. One is a multiple of the others: more may.
 */
enum { RANGE, DIVISORS };

/*
 * The message speaks of the fields in this order; 0, trainer.name, ends them. The first one that is
 * given carries the error.
 */
static const struct rule {
	bool (*holds)(const int64_t *x, const uint32_t *f);
	const char *(*text)(const struct scope *s, const uint32_t *f);
	uint32_t f[RULE_FIELDS + 1], kind;
	enum when when;
} rules[] = {
	{ divisible, not_divisible, { F_transformer_d_model, F_attention_n_heads }, DIVISORS,
	    HEAD_DIM_DERIVED },
	{ even, odd_quotient, { F_transformer_d_model, F_attention_n_heads }, DIVISORS,
	    HEAD_DIM_DERIVED },
	{ even, odd_head, { F_attention_head_dim }, DIVISORS, HEAD_DIM_GIVEN },
	{ divisible, not_divisible, { F_attention_n_heads, F_attention_n_kv_heads }, DIVISORS,
	    ALWAYS },
	{ bounded, not_in_range, { F_moe_top_k, F_moe_num_experts }, RANGE, ALWAYS },
	{ divisible, not_divisible, { F_moe_num_experts, F_router_n_groups }, DIVISORS, ALWAYS },
	{ bounded, not_in_range, { F_router_top_groups, F_router_n_groups }, RANGE, GROUPS_GIVEN },
	{ enough_in_groups, too_few_in_groups,
	    { F_moe_top_k, F_router_top_groups, F_router_n_groups, F_moe_num_experts }, RANGE,
	    GROUPS_GIVEN },
	{ divisible, not_divisible, { F_moe_num_experts, F_parallel_expert }, DIVISORS, ALWAYS },
	{ divisible, not_divisible, { F_parallel_data, F_parallel_expert }, DIVISORS, ALWAYS },
	{ bounded, not_in_range, { F_parallel_pipeline, F_transformer_n_layers }, RANGE, ALWAYS },
	{ enough_for_chunks, too_many_chunks,
	    { F_parallel_pipeline, F_parallel_chunks, F_transformer_n_layers }, RANGE, ALWAYS },
	{ divisible, not_divisible, { F_batch_global, F_batch_micro, F_parallel_data }, DIVISORS,
	    ALWAYS },
	{ few_microbatches, too_many_microbatches,
	    { F_batch_global, F_batch_micro, F_parallel_data, F_parallel_pipeline }, RANGE,
	    ALWAYS },
	{ in_microbatch, more_than_microbatch,
	    { F_generation_prompt, F_batch_micro, F_transformer_sequence_length }, RANGE, ALWAYS },
	{ in_microbatch, more_than_microbatch,
	    { F_generation_batch, F_batch_micro, F_transformer_sequence_length }, RANGE, ALWAYS },
};

static bool
applies(const struct rule *r, const struct scope *s)
{
	const struct value *head = s->v[F_attention_head_dim], *top = s->v[F_router_top_groups];
	if (r->when == GROUPS_GIVEN && (!top || !top->given))
		return false;
	if ((r->when == HEAD_DIM_GIVEN || r->when == HEAD_DIM_DERIVED) &&
	    (!head || head->given != (r->when == HEAD_DIM_GIVEN)))
		return false;
	for (const uint32_t *f = r->f; *f; f++)
		if (!s->v[*f] || !s->v[*f]->set)
			return false;
	return true;
}

/* Values of a field by which the rule would hold, the nearest first. */
static void
nearest(struct question *q, const struct rule *r, const struct scope *s, uint32_t f, uint32_t most)
{
	struct scope then = *s;
	uint32_t n = 0;

	for (int64_t d = 1; q && d < PROBES && n < NEAREST_MAX; d++)
		for (int sign = -1; sign <= 1; sign += 2) {
			int64_t x = then.x[f] = s->x[f] + sign * d;
			if (x < fields[f].lo || x > fields[f].hi || !r->holds(then.x, r->f))
				continue;
			ask_value(q, s->v[f], most, xprintf("%lld", (long long)x));
			n++;
		}
}

static void
broken(const struct rule *r, const struct scope *s)
{
	const struct value *main = s->v[r->f[0]];
	for (const uint32_t *f = r->f; *f; f++)
		if (s->v[*f]->given && !main->given)
			main = s->v[*f];
	diag_error(main->pos, "%s", r->text(s, r->f));
	for (const uint32_t *f = r->f; *f; f++)
		if (s->v[*f] != main)
			spec_note(s->v[*f]);
	struct question *q = ask();
	for (const uint32_t *f = r->f; *f; f++)
		nearest(q, r, s, *f,
		    r->kind == RANGE ? 1
		    : f > r->f       ? DIVISORS_MAX
				     : MULTIPLES_MAX);
	if (r->when == HEAD_DIM_DERIVED) {
		int64_t even = s->x[F_transformer_d_model] / s->x[F_attention_n_heads] / 2 * 2;
		for (int64_t x = even > 0 ? even : 2; x <= even + 2; x += 2)
			ask_value(q, s->v[F_attention_head_dim], MULTIPLES_MAX,
			    xprintf("%lld", (long long)x));
	}
}

/* An object and those that it has one of. */
static void
take(struct scope *s, const struct object *o)
{
	for (const struct value *v = o->v; v < o->v + o->n; v++)
		if (fields[v->f].type == INT) {
			s->v[v->f] = v;
			s->x[v->f] = v->i;
		} else if (fields[v->f].type == OBJ && v->n) {
			take(s, v->list[0]);
		}
}

/* All scopes of a trainer: one without layers, and one for each distinct object of them. */
struct scopes {
	ARRAY(struct scope) scope;
};

/*
 * One scope more for each distinct object of the layers; those made again by a function are equal.
 */
static void
take_layers(struct scopes *all, const struct value *layers)
{
	uint32_t before = all->scope.n;
	for (uint32_t i = 0; i < layers->n; i++) {
		const struct object *o = layers->list[i];
		if (spec_again(layers, i) || o->type == OBJ_mlp)
			continue;
		struct scope *s = PUSH(all->scope);
		*s = all->scope.a[0];
		take(s, o);
		for (uint32_t k = before; k + 1 < all->scope.n; k++)
			if (memcmp(all->scope.a[k].x, s->x, sizeof(s->x)) == 0) {
				all->scope.n--;
				break;
			}
	}
}

/*
 * Checks the rules of a trainer whose objects are checked one by one and whose derived values are
 * not filled in yet. A rule is passed over if one of its fields is in error. One that is not about
 * layers is the same in each scope, and reported once.
 */
void
check_rules(const struct object *trainer)
{
	const struct object *model = spec_obj(trainer, F_trainer_model);
	const struct value *expert =
	    spec_value(spec_obj(trainer, F_trainer_parallel), F_parallel_expert);
	const struct value *layers = spec_value(model, F_transformer_feed_forward);
	struct scopes all = { 0 };
	take(PUSH(all.scope), trainer);
	take_layers(&all, spec_value(model, F_transformer_attention));
	uint32_t dense = all.scope.n;
	take_layers(&all, layers);
	for (const struct rule *r = rules; r < rules + LEN(rules); r++)
		for (const struct scope *s = all.scope.a; s < all.scope.a + all.scope.n; s++)
			if (applies(r, s) && !r->holds(s->x, r->f))
				broken(r, s);
	if (all.scope.n == dense && layers->set && expert->set && expert->i > 1) {
		diag_error(expert->pos, "%s, but no layer has experts to share out",
		    spec_assigned(expert));
		spec_note(layers);
		struct question *q = ask();
		ask_value(q, expert, 1, "1");
		ask_words(q, "use a moe layer", NULL, NULL);
	}
}
