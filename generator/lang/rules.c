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
};

/* The values that rules speak about, of one trainer and one of its moe layers. */
struct scope {
	struct value *v[N_FIELDS]; /* NULL: not there */
	int64_t x[N_FIELDS];
};

static bool
head_divides(const int64_t *x)
{
	return x[F_transformer_d_model] % x[F_attention_n_heads] == 0;
}

static bool
head_even(const int64_t *x)
{
	if (x[F_attention_head_dim])
		return x[F_attention_head_dim] % 2 == 0;
	return !head_divides(x) || x[F_transformer_d_model] / x[F_attention_n_heads] % 2 == 0;
}

static bool
kv_divides(const int64_t *x)
{
	return x[F_attention_n_heads] % x[F_attention_n_kv_heads] == 0;
}

static bool
enough_experts(const int64_t *x)
{
	return x[F_moe_top_k] <= x[F_moe_num_experts];
}

static bool
groups_divide(const int64_t *x)
{
	return x[F_moe_num_experts] % x[F_router_n_groups] == 0;
}

static bool
enough_groups(const int64_t *x)
{
	return x[F_router_top_groups] <= x[F_router_n_groups];
}

/* Whatever groups a token gets, they must hold enough experts. */
static bool
enough_in_groups(const int64_t *x)
{
	return !groups_divide(x) || !enough_groups(x) ||
	       x[F_moe_top_k] <=
		   x[F_moe_num_experts] / x[F_router_n_groups] * x[F_router_top_groups];
}

static bool
expert_divides_experts(const int64_t *x)
{
	return x[F_moe_num_experts] % x[F_parallel_expert] == 0;
}

static bool
expert_divides_data(const int64_t *x)
{
	return x[F_parallel_data] % x[F_parallel_expert] == 0;
}

static bool
enough_layers(const int64_t *x)
{
	return x[F_parallel_pipeline] <= x[F_transformer_n_layers];
}

static bool
enough_for_chunks(const int64_t *x)
{
	return !enough_layers(x) ||
	       x[F_parallel_pipeline] * x[F_parallel_chunks] <= x[F_transformer_n_layers];
}

static bool
batch_divides(const int64_t *x)
{
	return x[F_batch_global] % (x[F_batch_micro] * x[F_parallel_data]) == 0;
}

static int64_t
microbatches(const int64_t *x)
{
	return x[F_batch_global] / (x[F_batch_micro] * x[F_parallel_data]);
}

/* Each is some lines of a rank's program. */
static bool
few_microbatches(const int64_t *x)
{
	return x[F_parallel_pipeline] == 1 || microbatches(x) <= MICROBATCHES_MAX;
}

static void
note_value(const struct value *v, uint32_t f)
{
	if (v->given)
		diag_note(v->pos, "%s is set here", spec_name(f));
	else
		diag_note(v->pos, "%s = %lld by default", spec_name(f), (long long)v->i);
}

static const char *
not_a_divisor(const struct scope *s, const uint32_t *f)
{
	return xprintf("%s = %lld is not divisible by %s = %lld", spec_name(f[0]),
	    (long long)s->x[f[0]], spec_name(f[1]), (long long)s->x[f[1]]);
}

static const char *
not_in_range(const struct scope *s, const uint32_t *f)
{
	return xprintf("%s = %lld is not in %.0f .. %lld", spec_name(f[0]), (long long)s->x[f[0]],
	    fields[f[0]].lo, (long long)s->x[f[1]]);
}

static const char *
too_few_in_groups(const struct scope *s, const uint32_t *f)
{
	int64_t each = s->x[F_moe_num_experts] / s->x[F_router_n_groups];
	return xprintf("%s = %lld is more than the %lld experts of %s = %lld group%s",
	    spec_name(f[0]), (long long)s->x[f[0]], (long long)(each * s->x[f[1]]), spec_name(f[1]),
	    (long long)s->x[f[1]], s->x[f[1]] == 1 ? "" : "s");
}

static const char *
odd_head(const struct scope *s, const uint32_t *f)
{
	(void)f;
	return xprintf("%s = %lld is odd: rotary embedding turns pairs",
	    spec_name(F_attention_head_dim), (long long)s->x[F_attention_head_dim]);
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
uneven_batch(const struct scope *s, const uint32_t *f)
{
	long long micro = s->x[f[1]], data = s->x[f[2]];
	return xprintf("%s = %lld is not divisible by %s * %s = %lld * %lld = %lld",
	    spec_name(f[0]), (long long)s->x[f[0]], spec_name(f[1]), spec_name(f[2]), micro, data,
	    micro * data);
}

static const char *
too_many_chunks(const struct scope *s, const uint32_t *f)
{
	long long pipeline = s->x[f[0]], chunks = s->x[f[1]];
	return xprintf("%s * %s = %lld * %lld = %lld chunks, but %s = %lld", spec_name(f[0]),
	    spec_name(f[1]), pipeline, chunks, pipeline * chunks, spec_name(f[2]),
	    (long long)s->x[f[2]]);
}

static const char *
too_many_microbatches(const struct scope *s, const uint32_t *f)
{
	return xprintf("%s = %lld is %lld microbatches a rank; a pipeline takes at most %d",
	    spec_name(f[0]), (long long)s->x[f[0]], (long long)microbatches(s->x),
	    MICROBATCHES_MAX);
}

enum when { ALWAYS, HEAD_DIM_GIVEN, HEAD_DIM_DERIVED, GROUPS_GIVEN };

/* One field bounds the other: the nearest value will do. One is a multiple of the others: more may.
 */
enum { RANGE, DIVISORS };

/*
 * The message speaks of the fields in this order, N_FIELDS ends them. The first one that is given
 * carries the error.
 */
static const struct rule {
	bool (*holds)(const int64_t *x);
	const char *(*text)(const struct scope *s, const uint32_t *f);
	uint32_t f[4], kind;
	enum when when;
} rules[] = {
	{ head_divides, not_a_divisor, { F_transformer_d_model, F_attention_n_heads, N_FIELDS },
	    DIVISORS, HEAD_DIM_DERIVED },
	{ head_even, odd_quotient, { F_transformer_d_model, F_attention_n_heads, N_FIELDS },
	    DIVISORS, HEAD_DIM_DERIVED },
	{ head_even, odd_head, { F_attention_head_dim, N_FIELDS, N_FIELDS }, DIVISORS,
	    HEAD_DIM_GIVEN },
	{ kv_divides, not_a_divisor, { F_attention_n_heads, F_attention_n_kv_heads, N_FIELDS },
	    DIVISORS, ALWAYS },
	{ enough_experts, not_in_range, { F_moe_top_k, F_moe_num_experts, N_FIELDS }, RANGE,
	    ALWAYS },
	{ groups_divide, not_a_divisor, { F_moe_num_experts, F_router_n_groups, N_FIELDS },
	    DIVISORS, ALWAYS },
	{ enough_groups, not_in_range, { F_router_top_groups, F_router_n_groups, N_FIELDS }, RANGE,
	    GROUPS_GIVEN },
	{ enough_in_groups, too_few_in_groups,
	    { F_moe_top_k, F_router_top_groups, F_router_n_groups, F_moe_num_experts }, RANGE,
	    GROUPS_GIVEN },
	{ expert_divides_experts, not_a_divisor, { F_moe_num_experts, F_parallel_expert, N_FIELDS },
	    DIVISORS, ALWAYS },
	{ expert_divides_data, not_a_divisor, { F_parallel_data, F_parallel_expert, N_FIELDS },
	    DIVISORS, ALWAYS },
	{ enough_layers, not_in_range, { F_parallel_pipeline, F_transformer_n_layers, N_FIELDS },
	    RANGE, ALWAYS },
	{ enough_for_chunks, too_many_chunks,
	    { F_parallel_pipeline, F_parallel_chunks, F_transformer_n_layers, N_FIELDS }, RANGE,
	    ALWAYS },
	{ batch_divides, uneven_batch, { F_batch_global, F_batch_micro, F_parallel_data, N_FIELDS },
	    DIVISORS, ALWAYS },
	{ few_microbatches, too_many_microbatches,
	    { F_batch_global, F_batch_micro, F_parallel_data, F_parallel_pipeline }, RANGE,
	    ALWAYS },
};

/* All scopes of a trainer: one a distinct moe, or one without. */
struct scopes {
	struct scope *a;
	uint32_t n, cap;
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
	for (size_t i = 0; i < LEN(r->f) && r->f[i] != N_FIELDS; i++)
		if (!s->v[r->f[i]] || !s->v[r->f[i]]->set)
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
			if (x < fields[f].lo || x > fields[f].hi || !r->holds(then.x))
				continue;
			ask_value(q, f, s->v[f]->pos, most, xprintf("%lld", (long long)x));
			n++;
		}
}

static void
broken(const struct rule *r, const struct scope *s)
{
	uint32_t main = r->f[0];
	for (size_t i = 0; i < LEN(r->f) && r->f[i] != N_FIELDS; i++)
		if (s->v[r->f[i]]->given && !s->v[main]->given)
			main = r->f[i];
	diag_error(s->v[main]->pos, "%s", r->text(s, r->f));
	for (size_t i = 0; i < LEN(r->f) && r->f[i] != N_FIELDS; i++)
		if (r->f[i] != main)
			note_value(s->v[r->f[i]], r->f[i]);
	struct question *q = ask();
	for (size_t i = 0; i < LEN(r->f) && r->f[i] != N_FIELDS; i++)
		nearest(q, r, s, r->f[i], r->kind == RANGE ? 1 : i ? DIVISORS_MAX : MULTIPLES_MAX);
	if (r->when == HEAD_DIM_DERIVED) {
		int64_t even = s->x[F_transformer_d_model] / s->x[F_attention_n_heads] / 2 * 2;
		for (int64_t x = even > 0 ? even : 2; x <= even + 2; x += 2)
			ask_value(q, F_attention_head_dim, s->v[F_attention_head_dim]->pos,
			    MULTIPLES_MAX, xprintf("%lld", (long long)x));
	}
}

static void
take(struct scope *s, const struct object *o)
{
	for (uint32_t f = 0; o && f < N_FIELDS; f++)
		if (fields[f].object == o->type && fields[f].type == INT) {
			s->v[f] = spec_value(o, f);
			s->x[f] = s->v[f]->i;
		}
}

/*
 * One scope more for each distinct object of the layers; those made again by a function are equal.
 */
static void
take_layers(struct scopes *all, const struct value *layers)
{
	uint32_t before = all->n;
	for (uint32_t i = 0, j; layers && i < layers->n; i++) {
		const struct object *o = layers->list[i];
		for (j = 0; j < i && layers->list[j] != o;)
			j++;
		if (j < i || o->type == OBJ_mlp)
			continue;
		struct scope *s = PUSH(*all);
		*s = all->a[0];
		take(s, o);
		if (o->type == OBJ_moe)
			take(s, spec_obj(o, F_moe_router));
		for (uint32_t k = before; k + 1 < all->n; k++)
			if (memcmp(all->a[k].x, s->x, sizeof(s->x)) == 0) {
				all->n--;
				break;
			}
	}
}

/* Whether a rule is about layers, and not about the trainer as a whole. */
static bool
of_layers(const struct rule *r)
{
	for (size_t i = 0; i < LEN(r->f) && r->f[i] != N_FIELDS; i++)
		if (fields[r->f[i]].object == OBJ_moe || fields[r->f[i]].object == OBJ_router ||
		    fields[r->f[i]].object == OBJ_attention)
			return true;
	return false;
}

/*
 * Checks the rules of a trainer whose objects are checked one by one and whose derived values are
 * not filled in yet. A rule is passed over if one of its fields is in error.
 */
void
check_rules(const struct object *trainer)
{
	const struct object *model = spec_obj(trainer, F_trainer_model);
	const struct value *layers = model ? spec_value(model, F_transformer_feed_forward) : NULL;
	struct scopes all = { 0 };
	struct scope *base = PUSH(all);
	take(base, trainer);
	take(base, model);
	take(base, spec_obj(trainer, F_trainer_batch));
	const struct object *layout = spec_obj(trainer, F_trainer_parallel);
	take(base, layout);
	const struct value *expert = base->v[F_parallel_expert];
	take_layers(&all, model ? spec_value(model, F_transformer_attention) : NULL);
	uint32_t dense = all.n;
	take_layers(&all, layers);
	for (size_t r = 0; r < LEN(rules); r++) {
		bool each = of_layers(&rules[r]);
		for (uint32_t k = each; k < (each ? all.n : 1); k++)
			if (rules[r].text && applies(&rules[r], &all.a[k]) &&
			    !rules[r].holds(all.a[k].x))
				broken(&rules[r], &all.a[k]);
	}
	if (all.n == dense && layers && layers->set && expert && expert->set && expert->i > 1) {
		diag_error(expert->pos,
		    "parallel.expert = %lld, but no layer has experts to share out",
		    (long long)expert->i);
		diag_note(layers->pos, "transformer.feed_forward is set here");
		struct question *q = ask();
		ask_value(q, F_parallel_expert, expert->pos, 1, "1");
		ask_words(q, "use a moe layer");
	}
}
