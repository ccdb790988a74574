/*
 * olmogen --init: a description to begin with, from the answers to three questions: how large, for
 * which machine, how long a sequence. Shapes are like those of published models: a layer for every
 * 128 of width, heads of 128, experts half as wide as the model; the layout is the fastest of the
 * search.
 */
#define _GNU_SOURCE
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "search.h"

struct wish {
	double total, active; /* parameters; the same: no experts */
	const char *target;
	uint64_t ranks, sequence;
};
struct shape {
	uint64_t vocab, width, layers, heads, kv_heads, hidden, experts,
	    top_k; /* 0 experts: dense */
	bool tied;
	double total, active, cost;
};

/* ---- what is asked --------------------------------------------------------------------------- */

/* "7B", "1.5M"; what stands behind it. */
static const char *
count_of(const char *s, double *n)
{
	static const char units[] = "KMBT";
	char *end;

	*n = strtod(s, &end);
	const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
	if (end == s || !unit || !(*n > 0))
		return NULL;
	*n *= pow(1000, (double)(unit - units) + 1);
	return end + 1;
}

static bool
take_parameters(struct wish *w, const char *s)
{
	const char *rest = count_of(s, &w->total);

	w->active = w->total;
	if (rest && rest[0] == '-' && (rest[1] & ~0x20) == 'A')
		rest = count_of(rest + 2, &w->active);
	return rest && !*rest && w->active <= w->total && w->total >= 1e5 && w->total <= 1e14;
}

static bool
take_whole(uint64_t *n, const char *s, uint64_t least, uint64_t most)
{
	char *end;

	*n = strtoull(s, &end, 10);
	return end > s && !*end && *n >= least && *n <= most && s[0] != '-';
}

/* "cuda:h200 x 8", "cpu" */
static bool
take_machine(struct wish *w, const char *s)
{
	char *name = xstrdup(s), *x = strchr(name, ' ');

	w->ranks = 1;
	if (x) {
		*x++ = 0;
		x += strspn(x, " x");
		if (!take_whole(&w->ranks, x, 1, 1 << 20))
			return false;
	}
	const struct target_row *t = target_find(targets, name);
	w->target = t ? t->name : NULL;
	return t;
}

/* The GPUs of this machine, as the driver lists them; else its processor. */
static const char *
machine_here(void)
{
	static const struct {
		const char *model, *target;
	} cards[] = { { "H200", "cuda:h200" }, { "H100 NVL", "cuda:h100-nvl" },
		{ "H100", "cuda:h100" }, { "B200", "cuda:b200" } };
	const char *answer = "cpu";
	char line[256];
	glob_t g;

	if (glob("/proc/driver/nvidia/gpus/*/information", 0, NULL, &g))
		return answer;
	FILE *f = fopen(g.gl_pathv[0], "r");
	bool model = f && fgets(line, sizeof line, f) && !strncmp(line, "Model:", 6);
	for (unsigned i = 0; model && i < LEN(cards); i++)
		if (strstr(line, cards[i].model)) {
			answer = xprintf("%s x %zu", cards[i].target, g.gl_pathc);
			break;
		}
	if (f)
		fclose(f);
	globfree(&g);
	return answer;
}

/* What a flag says, or who sits at the terminal; else what is offered. */
static const char *
ask_user(const char *question, const char *offer, const struct define *flag)
{
	char line[128];

	if (flag)
		return flag->value;
	if (!isatty(STDIN_FILENO))
		return offer;
	fprintf(stderr, "%s [%s] ", question, offer);
	if (!fgets(line, sizeof line, stdin))
		return offer;
	line[strcspn(line, "\r\n")] = 0;
	return *line ? xstrdup(line) : offer;
}

static const struct define *
flag_named(struct define *defs, uint32_t n, const char *name)
{
	for (uint32_t i = 0; i < n; i++)
		if (!strcmp(defs[i].name, name)) {
			defs[i].used = true;
			return &defs[i];
		}
	return NULL;
}

static bool
wrong(const char *what, const char *answer, const char *rule)
{
	return diag_failed("--init: %s \"%s\" is not %s", what, answer, rule);
}

static bool
take_wish(struct wish *w, const char *target, struct define *defs, uint32_t n)
{
	const struct define named = { "machine", target, true };
	const struct define *ranks = flag_named(defs, n, "ranks");
	const char *here = machine_here(), *s;

	s = ask_user("How many parameters? 7B; with experts, of which a token uses 1B: 7B-A1B",
	    strcmp(here, "cpu") ? "7B-A1B" : "2M-A1M", flag_named(defs, n, "parameters"));
	if (!take_parameters(w, s))
		return wrong("parameters", s, "a number like 350M, 7B or 7B-A1B");
	s = ask_user("For which machine, and how many of it? cpu; cuda:h200 x 8", here,
	    target ? &named : NULL);
	if (!take_machine(w, s))
		return wrong("machine", s,
		    xprintf("%s; behind it x and a number of ranks",
			spec_choices(fields[F_trainer_target].choices, "", "")));
	if (ranks && !take_whole(&w->ranks, ranks->value, 1, 1 << 20))
		return wrong("ranks", ranks->value, "a whole number from 1");
	s = ask_user("Tokens of a sequence?", w->total < 5e7 ? "256" : "4096",
	    flag_named(defs, n, "sequence_length"));
	if (!take_whole(&w->sequence, s, 16, 1 << 20))
		return wrong("sequence_length", s, "a whole number from 16 to 1048576");
	for (uint32_t i = 0; i < n; i++)
		if (!defs[i].used)
			return diag_failed(
			    "--init: -D %s is not known; it takes parameters, ranks, "
			    "sequence_length, and --target",
			    defs[i].name);
	return true;
}

/* ---- a shape of that size -------------------------------------------------------------------- */

static double
apart(double a, double b)
{
	return log(a / b) * log(a / b);
}

/* How many parameters a shape has, and how far it is from what is wished and what is usual. */
static void
measure(struct shape *s, const struct wish *w)
{
	double d = (double)s->width, kv = (double)(s->kv_heads * s->width / s->heads);
	double layer = 2 * d * (d + kv), ffn = 3 * d * (double)s->hidden;
	double ends = (s->tied ? 1 : 2) * (double)s->vocab * d, L = (double)s->layers;

	s->total = ends + L * (layer + ffn * (double)(s->experts ? s->experts : 1));
	s->active = ends + L * (layer + ffn * (double)(s->experts ? s->top_k : 1));
	s->cost = 100 * apart(s->total, w->total) + apart(L, fmax(4, d / 128)) +
		  0.02 * (s->width > 2048 && s->width % 1024);
	if (s->experts)
		s->cost += 50 * apart(s->active, w->active) +
			   0.2 * apart((double)s->hidden, d / 2) + 0.2 * apart((double)s->top_k, 8);
}

static struct shape
find_shape(const struct wish *w)
{
	bool moe = w->active < w->total;
	struct shape best = { .cost = INFINITY }, s = { 0 };

	s.vocab = w->total < 5e7 ? 256 : 100352;
	s.tied = w->active < 1e9;
	for (s.width = 128; s.width <= 24576; s.width += s.width < 1024 ? 128 : 512) {
		uint64_t head = s.width < 512 ? 32 : s.width < 1024 ? 64 : 128;
		s.heads = s.width / head;
		s.kv_heads = s.heads % 4 || s.heads < 16 ? s.heads : s.heads / 4;
		for (s.layers = 2; s.layers <= 128; s.layers += s.layers < 32 ? 1 : 4) {
			if (!moe) {
				s.hidden = (8 * s.width / 3 + 127) / 128 * 128;
				measure(&s, w);
				best = s.cost < best.cost ? s : best;
				continue;
			}
			for (s.experts = 4; s.experts <= 512; s.experts *= 2)
				for (s.top_k = 1; s.top_k <= 8 && s.top_k <= s.experts / 2;
				     s.top_k *= 2)
					for (s.hidden = 64; s.hidden <= s.width; s.hidden *= 2) {
						measure(&s, w);
						best = s.cost < best.cost ? s : best;
					}
		}
	}
	return best;
}

/* ---- the description ------------------------------------------------------------------------- */

/* "6.9B" */
static const char *
short_count(double n)
{
	static const char units[] = "KMBT";
	int u = n >= 1e12 ? 3 : n >= 1e9 ? 2 : n >= 1e6 ? 1 : 0;

	return xprintf("%.3g%c", n / pow(1000, u + 1), units[u]);
}

static void
describe(const struct wish *w, const struct shape *s, uint64_t sequences, const struct candidate *l,
    struct buf *b)
{
	const char *total = short_count(s->total), *active = short_count(s->active);

	buf_printf(b, "-- %s parameters%s, for %llu rank%s of %s.\n", total,
	    s->experts ? xprintf(", of which each token uses %s", active) : "", llu(w->ranks),
	    w->ranks == 1 ? "" : "s", w->target);
	buf_puts(b,
	    "-- Every number is yours to change. What a field means: olmogen --explain=FIELD; what "
	    "it "
	    "costs:\n-- olmogen --plan FILE; other layouts: olmogen --search=RANKS FILE.\n\n");
	buf_printf(b, "return trainer {\n  name = \"model-%s%s%s\",\n  target = \"%s\",\n\n", total,
	    s->experts ? "-a" : "", s->experts ? active : "", w->target);
	buf_printf(b, "  model = transformer {\n    vocab_size = %llu, -- %s\n", llu(s->vocab),
	    s->vocab == 256 ? "bytes; with a tokenizer its number of tokens"
			    : "your tokenizer's; a multiple of 128 is fast");
	buf_printf(b, "    d_model = %llu,\n    n_layers = %llu,\n    sequence_length = %llu,\n",
	    llu(s->width), llu(s->layers), llu(w->sequence));
	buf_printf(b,
	    "    attention = attention { n_heads = %llu, n_kv_heads = %llu, qk_norm = \"head\", "
	    "rope = rope { theta = %s } },\n",
	    llu(s->heads), llu(s->kv_heads), w->sequence > 4096 ? "500000" : "10000");
	if (s->experts)
		buf_printf(b,
		    "    feed_forward = moe {\n      num_experts = %llu,\n      top_k = %llu, -- "
		    "experts of a "
		    "token\n      hidden_size = %llu, -- of one of them\n"
		    "      router = router { load_balance = 0.01, z_loss = 0.001 },\n    },\n",
		    llu(s->experts), llu(s->top_k), llu(s->hidden));
	else
		buf_printf(b, "    feed_forward = mlp { hidden_size = %llu },\n", llu(s->hidden));
	if (l)
		buf_printf(b,
		    "    recompute = recompute { what = \"%s\" }, -- the least with which it "
		    "fits\n",
		    search_levels[l->level]);
	buf_printf(b,
	    "    lm_head = lm_head { tied = %s },\n    init = normal { std = 0.02 },\n  },\n\n",
	    s->tied ? "true" : "false");
	buf_printf(b,
	    "  batch = batch { micro = %llu, global = %llu }, -- sequences: %s tokens a step\n",
	    llu(l ? l->micro : 1), llu(sequences), text_commas(sequences * w->sequence));
	if (l)
		buf_printf(b, "  parallel = %s, -- the fastest that fits\n", search_text(l));
	buf_puts(b, "  optimizer = adamw { betas = { 0.9, 0.95 }, weight_decay = 0.1, clip_norm = "
		    "1.0 },\n}\n");
}

/* The trainer of a text, which the search takes changed copies of. */
static struct object *
trainer_of(const struct buf *text)
{
	char path[] = "/tmp/olmogen-init-XXXXXX";
	struct spec spec;
	int fd = mkstemp(path);

	if (fd < 0 || write(fd, text->s, text->n) != (ssize_t)text->n || close(fd)) {
		diag_failed("--init: %s cannot be written", path);
		return NULL;
	}
	load(path, NULL, 0, &spec);
	unlink(path);
	if (!spec.n || diag_count())
		return NULL;
	check(spec.trainer[0], targets, NULL);
	spec.trainer[0]->pos = (struct pos){ 0 }; /* nobody has the file */
	return diag_count() ? NULL : spec.trainer[0];
}

bool
init(const char *target, struct define *defs, uint32_t n, struct buf *out)
{
	struct wish w;
	struct buf text = { 0 };
	uint32_t found;

	if (!take_wish(&w, target, defs, n))
		return false;
	struct shape s = find_shape(&w);
	/* so many tokens a step as models of the size are trained with, in parts for every rank */
	double tokens = !strcmp(w.target, "cpu") ? 8192
			: s.active < 5e8         ? 1 << 19
			: s.active < 3e9         ? 1 << 21
						 : 1 << 22;
	uint64_t sequences = w.ranks;
	while ((double)(sequences * w.sequence) < tokens)
		sequences *= 2;
	describe(&w, &s, sequences, NULL, &text);
	struct object *t = trainer_of(&text);
	const struct found *best = t ? search_layouts(t, NULL, w.ranks, &found) : NULL;
	if (best)
		describe(&w, &s, sequences, &best[0].at, out);
	return best;
}
