/*
 * The rules between whole numbers of a trainer: what divides what, what bounds what. A rule is a
 * row; its help is computed by trying values, so that what is proposed holds under all the rules.
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
	LEGAL_MAX = 12,    /* values proposed for a divisor, the nearest ones */
	MULTIPLES_MAX = 2, /* ... and for a multiple */
	PROBES = 1 << 17,  /* values tried on each side */
	MICROBATCHES_MAX = 4096,
};

/* What rules know beside whole numbers that the language has fields for. */
enum {
	FEWEST_CHUNKS = N_FIELDS, /* that the schedule takes */
	MOST_CHUNKS,
	SPLIT,      /* chunks that parallel.split lists, 0: it is not given */
	SPLIT_SUM,  /* their layers */
	MOE_LAYERS, /* layers with experts */
	TIED,       /* head and embedding must be on one stage, and are only without a pipeline */
	N_KNOWN
};

/* The values that rules speak about, of one trainer and one of its moe layers. */
struct scope {
	struct value *v[N_FIELDS]; /* NULL: not there */
	int64_t x[N_KNOWN];
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
chunks_go(const int64_t *x)
{
	return x[F_parallel_pipeline] == 1 || !x[FEWEST_CHUNKS] ||
	       (x[F_parallel_chunks] >= x[FEWEST_CHUNKS] && x[F_parallel_chunks] <= x[MOST_CHUNKS]);
}

static bool
split_counts(const int64_t *x)
{
	return !x[SPLIT] || x[SPLIT] == x[F_parallel_pipeline] * x[F_parallel_chunks];
}

static bool
split_adds_up(const int64_t *x)
{
	return !x[SPLIT] || x[SPLIT_SUM] == x[F_transformer_n_layers];
}

static bool
experts_are_there(const int64_t *x)
{
	return x[F_parallel_expert] == 1 || x[MOE_LAYERS];
}

static bool
ends_meet(const int64_t *x)
{
	return x[F_parallel_pipeline] == 1 || !x[TIED];
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
	/* those without a text are reported elsewhere; they are here for what is proposed */
	{ chunks_go, NULL, { F_parallel_chunks, F_parallel_pipeline, N_FIELDS }, RANGE, ALWAYS },
	{ split_counts, NULL, { F_parallel_chunks, F_parallel_pipeline, N_FIELDS }, RANGE, ALWAYS },
	{ split_adds_up, NULL, { F_transformer_n_layers, N_FIELDS }, RANGE, ALWAYS },
	{ experts_are_there, NULL, { F_parallel_expert, N_FIELDS }, RANGE, ALWAYS },
	{ ends_meet, NULL, { F_parallel_pipeline, N_FIELDS }, RANGE, ALWAYS },
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

static bool
speaks_of(const struct rule *r, uint32_t f)
{
	for (size_t i = 0; i < LEN(r->f) && r->f[i] != N_FIELDS; i++)
		if (r->f[i] == f)
			return true;
	return false;
}

/* Whether a field could have the value x: every rule about it would hold where it is shared. */
static bool
legal(const struct scopes *all, const struct value *v, uint32_t f, int64_t x)
{
	for (uint32_t k = 0; k < all->n; k++) {
		struct scope *s = &all->a[k];
		if (s->v[f] != v)
			continue;
		int64_t old = s->x[f];
		for (const struct rule *r = rules; r < rules + LEN(rules); r++) {
			if (!speaks_of(r, f) || !applies(r, s))
				continue;
			s->x[f] = x;
			bool then = r->holds(s->x);
			s->x[f] = old;
			if (!then)
				return false;
		}
	}
	return true;
}

static int
by_size(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return x < y ? -1 : x > y;
}

/* "56 or 64": the legal values nearest to the present one, rising; NULL if none was found. */
static char *
proposals(const struct scopes *all, const struct scope *s, uint32_t f, uint32_t max)
{
	int64_t found[LEGAL_MAX], now = s->x[f];
	uint32_t n = 0;
	for (int64_t d = 1; d < PROBES && n < max; d++)
		for (int sign = -1; sign <= 1 && n < max; sign += 2) {
			int64_t x = now + sign * d;
			if (x >= fields[f].lo && x <= fields[f].hi && legal(all, s->v[f], f, x))
				found[n++] = x;
		}
	if (!n)
		return NULL;
	qsort(found, n, sizeof(*found), by_size);
	struct buf b = { 0 };
	buf_printf(&b, "%s = ", fields[f].name);
	for (uint32_t i = 0; i < n; i++)
		buf_printf(&b, "%s%lld", !i ? "" : i + 1 < n ? ", " : " or ", (long long)found[i]);
	return b.s;
}

static void
broken(const struct rule *r, const struct scopes *all, const struct scope *s)
{
	struct buf help = { 0 };
	uint32_t main = r->f[0];
	for (size_t i = 0; i < LEN(r->f) && r->f[i] != N_FIELDS; i++)
		if (s->v[r->f[i]]->given && !s->v[main]->given)
			main = r->f[i];
	diag_error(s->v[main]->pos, "%s", r->text(s, r->f));
	for (size_t i = 0; i < LEN(r->f) && r->f[i] != N_FIELDS; i++)
		if (r->f[i] != main)
			note_value(s->v[r->f[i]], r->f[i]);
	for (size_t i = 0; i < LEN(r->f) && r->f[i] != N_FIELDS; i++) {
		uint32_t most = r->kind == RANGE ? 1 : i ? LEGAL_MAX : MULTIPLES_MAX;
		char *p = proposals(all, s, r->f[i], most);
		if (p)
			buf_printf(&help, "%s%s", help.n ? ", or " : "", p);
	}
	if (r->when == HEAD_DIM_DERIVED)
		buf_printf(
		    &help, "%sset %s", help.n ? ", or " : "", spec_name(F_attention_head_dim));
	if (help.n)
		diag_help("%s%s", strncmp(help.s, "set ", 4) == 0 ? "" : "use ", help.s);
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

/* What no whole number says. */
static void
take_layout(struct scope *s, const struct object *layout, const struct object *model)
{
	const struct object *head = model ? spec_obj(model, F_transformer_lm_head) : NULL;
	const struct value *schedule = layout ? spec_value(layout, F_parallel_schedule) : NULL;
	const struct value *split = layout ? spec_value(layout, F_parallel_split) : NULL;
	bool scheduled = schedule && schedule->set;

	if (scheduled) {
		s->x[FEWEST_CHUNKS] = schedule_find(schedule->str)->lo;
		s->x[MOST_CHUNKS] = schedule_find(schedule->str)->hi;
	}
	s->x[TIED] =
	    head && spec_int(head, F_lm_head_tied) && !(scheduled && !strcmp(schedule->str, "v"));
	for (uint32_t i = 0; split && split->set && i < split->nints; i++)
		s->x[SPLIT_SUM] += split->ints[i];
	s->x[SPLIT] = split && split->set ? split->nints : 0;
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
	take_layout(base, layout, model);
	for (uint32_t i = 0; layers && i < layers->n; i++)
		base->x[MOE_LAYERS] += layers->list[i]->type == OBJ_moe;
	const struct value *expert = base->v[F_parallel_expert];
	take_layers(&all, model ? spec_value(model, F_transformer_attention) : NULL);
	uint32_t dense = all.n;
	take_layers(&all, layers);
	for (size_t r = 0; r < LEN(rules); r++) {
		bool each = of_layers(&rules[r]);
		for (uint32_t k = each; k < (each ? all.n : 1); k++)
			if (rules[r].text && applies(&rules[r], &all.a[k]) &&
			    !rules[r].holds(all.a[k].x))
				broken(&rules[r], &all, &all.a[k]);
	}
	if (all.n == dense && layers && layers->set && expert && expert->set && expert->i > 1) {
		diag_error(expert->pos,
		    "parallel.expert = %lld, but no layer has experts to share out",
		    (long long)expert->i);
		diag_note(layers->pos, "transformer.feed_forward is set here");
		diag_help("use expert = 1, or a moe layer");
	}
}
