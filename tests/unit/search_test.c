/* What fits the device's memory: the choices of recompute { what = "auto" }. */
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
	return check_end();
}
