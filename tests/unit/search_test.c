/*
 * What fits the device's memory: the choices of recompute { what = "auto" }; and the fastest layout
 * of some ranks, against trying all there are.
 */
#include <math.h>
#include <string.h>

#include "check.h"
#include "describe.h"
#include "search.h"

static struct object *
recompute_of(const struct value *re, const char *what)
{
	struct object *o = spec_new(OBJ_recompute, re->pos);

	*spec_value(o, F_recompute_what) =
	    (struct value){ .f = F_recompute_what, .set = true, .given = true, .str = what };
	return o;
}

/*
 * With so many bytes of memory and "auto" in all layers, or all but the first: what is needed, and
 * the layers' choices by their first letters.
 */
static uint64_t
automatic(struct object *trainer, uint64_t device, const char *first, const char **what)
{
	const struct value *re =
	    spec_value(spec_obj(trainer, F_trainer_model), F_transformer_recompute);
	struct buf b = { 0 };

	spec_value(trainer, F_trainer_device_memory)->num = (double)device / 1073741824.0;
	re->list[0] = recompute_of(re, first);
	for (uint32_t i = 1; i < re->n; i++)
		re->list[i] = recompute_of(re, "auto");
	search_recompute(trainer);
	for (uint32_t i = 0; i < re->n; i++)
		buf_printf(&b, "%c", spec_str(re->list[i], F_recompute_what)[0]);
	*what = b.s;
	struct shard *s = shard_of(trainer);
	fuse(s);
	return plan_worst(plan(s))->arena_bytes;
}

/*
 * recompute { what = "auto" }: what fits to the byte is taken, and with a byte less something that
 * needs less; until nothing does, whether the last fits or not.
 */
static void
fills_memory(struct object *trainer, const char *first, const char *want)
{
	struct buf ladder = { 0 };
	const char *what, *again;
	uint64_t need = automatic(trainer, 0, first, &what), less;

	for (;; need = less) {
		uint64_t device = need;
		while (device - device / 100 < need) /* a hundredth stays free */
			device += need - (device - device / 100);
		buf_printf(&ladder, "%s%s", ladder.n ? " " : "", what);
		CHECK(automatic(trainer, device, first, &again) == need && !strcmp(what, again));
		less = automatic(trainer, device - 1, first, &what);
		if (less >= need)
			break;
	}
	CHECK(less == need);
	expect(!strcmp(ladder.s, want), xprintf("auto: %s", ladder.s));
}

/* Whether a is the better of two that fit. */
static bool
faster(const struct found *a, const struct found *b)
{
	return !b->fits || a->expected.step < b->expected.step ||
	       (a->expected.step == b->expected.step && a->need < b->need);
}

/* The line of a layout that the search prints, from its rank on. */
static bool
prints(const char *text, unsigned rank, const struct found *f)
{
	const struct candidate *l = &f->at;
	unsigned long long data, expert, pipeline, micro;
	char line[8], schedule[16] = "", what[16];
	double step, tokens;
	const char *at = strstr(text, xprintf("\n%3u ", rank));
	int chunks = 1, n = 0;

	if (!at || sscanf(at, "%7s %lf %lf %llu %llu %llu %n", line, &step, &tokens, &data, &expert,
		       &pipeline, &n) != 6)
		return false;
	if (l->schedule && sscanf(at + n, "%15s %n", schedule, &chunks) == 1)
		n += chunks;
	chunks = 1;
	if (l->chunks > 1)
		sscanf(at + n, "%d", &chunks), n += 2;
	return sscanf(at + n, "%llu %15s", &micro, what) == 2 &&
	       fabs(step / f->expected.step - 1) < 1e-3 && data == l->data && expert == l->expert &&
	       pipeline == l->pipeline && !strcmp(schedule, l->schedule ? l->schedule : "") &&
	       chunks == (int)l->chunks && micro == l->micro &&
	       !strcmp(what, search_levels[l->level]);
}

/* Every microbatch, and every recomputation, of a layout; the best that fits so far. */
static void
try_all(const struct object *t, struct candidate l, struct found *best)
{
	for (l.micro = 1; l.micro <= 24; l.micro += 24 % (l.micro + 1) ? 2 : 1)
		for (l.level = 0; l.level < SEARCH_LEVELS; l.level++) {
			struct found f = search_try(t, NULL, l);
			if (f.fits && faster(&f, best))
				*best = f;
		}
}

/* What the search prints of some ranks, with so much memory, is what trying everything finds. */
static void
search_is_exhaustive(uint64_t ranks, const char *memory)
{
	static const char *const schedules[] = { "1f1b", "interleaved", "v" };
	struct define def = { "memory", memory, false };
	struct object *t = trainer_of("tests/unit/search.lua", &def, 1, NULL);
	struct found best[64] = { 0 };
	struct buf text = { 0 };
	uint32_t n = 0, layouts;

	for (uint64_t pipeline = 1; pipeline <= ranks; pipeline++)
		for (uint64_t expert = 1; expert <= ranks; expert++)
			for (unsigned k = 0; k < (pipeline > 1 ? LEN(schedules) : 1); k++) {
				struct candidate l = { .data = ranks / pipeline,
					.expert = expert,
					.pipeline = pipeline,
					.schedule = pipeline > 1 ? schedules[k] : NULL };
				if (ranks % pipeline)
					continue;
				for (l.chunks = k ? 2 : 1; l.chunks <= (k ? 4 : 1); l.chunks++)
					try_all(t, l, &best[n]);
				n += best[n].fits;
			}
	const struct found *found = search_layouts(t, NULL, ranks, &layouts);
	CHECK(found != NULL);
	search_print(t, found, layouts, &text);
	expect(strstr(text.s, xprintf(" %u fit", n)) != NULL,
	    xprintf("%llu ranks: %u layouts fit:\n%s", llu(ranks), n, text.s));
	for (unsigned rank = 1; rank <= n && rank <= 10; rank++) {
		struct found *first = &best[0];
		for (unsigned i = 1; i < n; i++)
			if (best[i].fits && faster(&best[i], first))
				first = &best[i];
		expect(prints(text.s, rank, first),
		    xprintf("%llu ranks: number %u:\n%s", llu(ranks), rank, text.s));
		first->fits = false;
	}
}

int
main(void)
{
	fills_memory(layout_trainer((struct layout){ "1f1b", 1, 1, 1, .layers = 3 }), "auto",
	    "nnn rrr nnc rrc ccn ncc ccc bcc ccb bbr bbc cbb bbb");
	fills_memory(layout_trainer((struct layout){ "1f1b", 1, 1, 1, .layers = 3 }), "block",
	    "bnn brr bnc bcc brb bcb bbb");
	fills_memory(layout_trainer((struct layout){ "1f1b", 3, 1, 4, .layers = 7 }), "auto",
	    "nnnnnnn nnrrrrr cnnnnnn rrrrrrr nnccccc rrccccc ccnnnnn ncccccc ccccccc ccbbbbb "
	    "nbbbbbb "
	    "cbbbbbb bbbbbbb");
	search_is_exhaustive(4, "0.03");
	search_is_exhaustive(6, "0.05");
	return check_end();
}
