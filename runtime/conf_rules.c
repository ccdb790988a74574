/* The rules between keys of run.yaml, and what follows from them for keys that are not given. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "rates.h"

/* "TO over LENGTH", then a shape and "from FROM", which is else where the last stage ended. */
static bool
read_stage(const char *s, double before, struct om_lr_stage *stage)
{
	unsigned long long length;
	double to;
	char word[16];
	int n, shape;

	if (sscanf(s, "%lf over %llu%n", &to, &length, &n) != 2 || (s[n] && s[n] != ' '))
		return false;
	*stage = (struct om_lr_stage){ length, OM_DECAY_LINEAR, before, to };
	s += n;
	if (sscanf(s, " %15s%n", word, &n) == 1 && (shape = om_key_choice(OM_DECAYS, word)) >= 0) {
		stage->shape = shape;
		s += n;
	}
	if (sscanf(s, " from %lf%n", &stage->from, &n) == 1)
		s += n;
	return !s[strspn(s, " ")] && length && length <= OM_PLACES && stage->from >= 0 &&
	       stage->from <= 1000 && to >= 0 && to <= 1000;
}

static void
read_stages(struct om_conf *c)
{
	struct om_lr *lr = &c->lr;
	const struct om_list *list = &c->stages;

	lr->stage = om_alloc(list->n, sizeof *lr->stage);
	for (uint32_t i = 0; i < list->n; i++) {
		double before = i ? lr->stage[i - 1].to : 1;

		if (!read_stage(list->a[i], before, &lr->stage[i])) {
			om_diag(om_conf_given("lr.stages"), "lr.stages: \"%s\" is not a stage",
			    om_clip(list->a[i]));
			om_diag_help("a stage is \"TO over LENGTH\", parts of the peak, and may "
				     "have one of %s, and \"from FROM\"",
			    OM_DECAYS);
			return;
		}
	}
	lr->nstages = list->n;
}

/* The periods of WSD-S, which become stages. */
static void
read_periods(struct om_conf *c)
{
	struct om_lr *lr = &c->lr;
	const struct om_list *periods = &c->periods, *peaks = &c->peaks;
	uint64_t *length = om_alloc(periods->n, sizeof *length);
	double *peak = om_alloc(periods->n, sizeof *peak);
	bool good = !peaks->n || peaks->n == periods->n;
	char *end;

	if (!good) {
		om_diag(om_conf_given("lr.peaks"), "lr.peaks is of %s, lr.periods of %u",
		    om_count(peaks->n, "number"), periods->n);
		om_diag_help("give one a period");
	}
	for (uint32_t i = 0; i < periods->n && good; i++) {
		uint64_t least = lr->decay + (i ? 0 : lr->warmup);
		const char *s = periods->a[i];

		length[i] = s[strspn(s, "0123456789")] ? 0 : strtoull(s, NULL, 10);
		if (length[i] < least || !length[i] || length[i] > OM_PLACES) {
			om_diag(om_conf_given("lr.periods"),
			    "lr.periods: %s must be a whole number from %llu on, %s", om_clip(s),
			    (unsigned long long)least,
			    i ? "lr.decay" : "lr.warmup and lr.decay together");
			om_diag_help("lengthen the period, or shorten these");
			good = false;
		}
		peak[i] = peaks->n ? strtod(peaks->a[i], &end) : 1;
		if (peaks->n && (*end || !(peak[i] >= lr->final && peak[i] <= 1000))) {
			om_diag(om_conf_given("lr.peaks"),
			    "lr.peaks: %s must be a number from lr.final = %g to 1000",
			    om_clip(peaks->a[i]), lr->final);
			om_diag_help("it is a part of lr.peak, from which the period decays");
			good = false;
		}
	}
	if (good)
		om_lr_periods(lr, length, peak, periods->n);
	free(length);
	free(peak);
}

/* The schedule's length as messages say it. */
static const char *
end_text(const struct om_conf *c, char text[64])
{
	unsigned long long end = c->lr.length, steps = c->steps;

	if (!c->lr.ends_with_run)
		snprintf(text, 64, "lr.length = %llu", end);
	else if (c->lr.unit == OM_TOKENS)
		snprintf(text, 64, "the %llu tokens of steps = %llu", end, steps);
	else
		snprintf(text, 64, "steps = %llu", steps);
	return text;
}

/* All that is left, or of wsd a tenth of all, where the warm-up leaves so much. */
static uint64_t
decay_default(const struct om_lr *lr)
{
	uint64_t tenth = lr->length < 20 ? 1 : lr->length / 10, left = lr->length - lr->warmup;

	if (lr->decay_from)
		return lr->length - lr->decay_from;
	return tenth < left ? tenth : left;
}

/* Whether a schedule is as long as its parts. */
static bool
is_staged(const struct om_lr *lr)
{
	return lr->schedule == OM_STAGES || lr->schedule == OM_WSDS;
}

/* The rules between the places of warm-up and decay, whose keys are those that schedule has. */
static void
rules_lr(struct om_conf *c)
{
	const struct om_lr *lr = &c->lr;
	struct om_at decay = om_conf_given("lr.decay"), from = om_conf_given("lr.decay_from");
	struct om_at warmup = om_conf_given("lr.warmup"), schedule = om_conf_given("lr.schedule");
	unsigned long long w = lr->warmup, d = lr->decay, f = lr->decay_from, n = lr->length;
	const char *unit = lr->unit == OM_TOKENS ? "token" : "step";
	struct om_lr of_one;
	char end[64];
	double rate;

	if (lr->schedule == OM_STAGES)
		read_stages(c);
	if (lr->schedule == OM_WSDS)
		read_periods(c);
	if (is_staged(lr) && !lr->nstages)
		return;
	of_one = *lr;
	of_one.peak = 1;
	end_text(c, end);
	if (lr->schedule == OM_INVERSE_SQRT && !w) {
		om_diag(schedule, "lr.schedule = inverse_sqrt falls from lr.warmup on, which is 0");
		om_diag_help("set lr.warmup to the %s up to which the rate rises", unit);
	}
	if (lr->schedule == OM_POWER && !w && !lr->reference) {
		om_diag(schedule, "lr.schedule = power falls from lr.reference on, which is 0");
		om_diag_help(
		    "set lr.reference to the %s up to which the rate stays at the peak", unit);
	}
	if (lr->reference && w > lr->reference) {
		om_diag(warmup, "lr.warmup = %llu is more than lr.reference = %llu", w,
		    (unsigned long long)lr->reference);
		om_diag_help("use lr.warmup from 0 to %llu", (unsigned long long)lr->reference);
	}
	if (w > n) {
		om_diag(warmup, "lr.warmup = %llu is more than %s", w, end);
		om_diag_help("use lr.warmup from 0 to %llu", n);
	} else if (f && f < w) {
		om_diag(from, "lr.decay_from = %llu is within the warm-up, lr.warmup = %llu", f, w);
		om_diag_help("use lr.decay_from from %llu on, or a shorter warm-up", w);
	} else if (f >= n) {
		om_diag(from, "lr.decay_from = %llu is not before the last %s, %s", f, unit, end);
		om_diag_help("raise %s, by the %ss of decay",
		    lr->ends_with_run ? "steps" : "lr.length", unit);
	} else if (f && d > n - f) {
		om_diag(
		    decay, "lr.decay_from = %llu and lr.decay = %llu are more than %s", f, d, end);
		om_diag_help("use lr.decay from 0 to %llu", n - f);
	} else if (f && (rate = om_lr_at(&of_one, f, n)) < lr->final) {
		om_diag(from,
		    "lr.decay_from = %llu has a rate of %.3g of the peak, lr.final = %g is "
		    "more",
		    f, rate, lr->final);
		om_diag_help("use lr.final from 0 to %.3g", rate);
	} else if (!f && lr->schedule == OM_WSD && d > n - w) {
		om_diag(decay, "lr.warmup = %llu and lr.decay = %llu are more than %s", w, d, end);
		om_diag_help("use lr.decay from 0 to %llu", n - w);
	}
}

static void
rules_checkpoint(struct om_conf *c)
{
	static const char *const key[] = { "checkpoint.every", "checkpoint.keep",
		"checkpoint.steps" };
	const bool set[] = { c->every, c->keep, c->saves.n };

	for (size_t i = 0; i < OM_LEN(key) && !*c->dir; i++)
		if (set[i]) {
			om_diag(om_conf_given(key[i]), "%s is set, checkpoint.dir is not", key[i]);
			om_diag_help("set checkpoint.dir to the directory they go to");
			break;
		}
	if (!*c->resume) {
		om_diag(om_conf_given("checkpoint.resume"), "checkpoint.resume is empty");
		om_diag_help("it is auto, none or the path of a checkpoint");
	}
	if (*c->start && strcmp(c->resume, "auto") != 0 && strcmp(c->resume, "none") != 0) {
		om_diag(om_conf_given("checkpoint.start"),
		    "checkpoint.start begins a new run, and checkpoint.resume goes on with one");
		om_diag_help("give one of them");
	}
	if (c->every && c->keep_every % c->every) {
		om_diag(om_conf_given("checkpoint.keep_every"),
		    "checkpoint.keep_every = %llu is not a multiple of checkpoint.every = %llu",
		    (unsigned long long)c->keep_every, (unsigned long long)c->every);
		om_diag_help("use checkpoint.keep_every = %llu",
		    (unsigned long long)((c->keep_every / c->every + 1) * c->every));
	}
	c->given = om_alloc(c->saves.n, sizeof *c->given);
	for (uint32_t i = 0; i < c->saves.n; i++) {
		const char *s = c->saves.a[i];

		c->given[i] = strtoull(s, NULL, 10);
		if (s[strspn(s, "0123456789")] || strlen(s) > 10 ||
		    (c->steps && c->given[i] > c->steps)) {
			om_diag(om_conf_given("checkpoint.steps"),
			    "checkpoint.steps: %s is not a whole number from 0 to steps = %llu",
			    om_clip(s), (unsigned long long)c->steps);
			om_diag_help("leave it out, or raise steps");
		}
	}
}

/* What sources of a mix must have, beside one another. */
static void
rules_mix(const struct om_conf *c)
{
	const struct om_set *data = &c->data;
	struct om_at paths = om_conf_given("data.paths");
	bool weighted = false, some = false;

	if (!data->nsources && data->order > OM_SEQUENTIAL) {
		om_diag(om_conf_given("data.order"),
		    "data.order = %s is of a mix, and data.mix is not set",
		    om_key_word(OM_ORDERS, data->order));
		om_diag_help("set data.mix, or data.order to shuffle or sequential");
	}
	if (data->block && data->packing != OM_STREAM) {
		om_diag(om_conf_given("data.block"),
		    "data.block keeps tokens together for sequences of another length, and "
		    "data.packing makes other sequences then");
		om_diag_help("leave out one of them");
	}
	if (data->nsources && data->packing != OM_STREAM && data->unit == OM_OF_DOCUMENTS) {
		om_diag(om_conf_given("data.packing"),
		    "data.packing puts all documents of a source into sequences, and data.unit = "
		    "documents takes some");
		om_diag_help("set data.unit to tokens or sequences, or leave out data.packing");
	}
	if (data->nsources && paths.line) {
		om_diag(paths, "data.paths is set, and data.mix as well");
		om_diag_note(om_conf_named(data->source, NULL), "this is the mix's first source");
		om_diag_help("make the paths a source of the mix, or leave out one of them");
	}
	for (uint32_t i = 0; i < data->nsources; i++) {
		weighted = weighted || !isnan(data->source[i].weight);
		some = some || !(data->source[i].weight <= 0); /* none is not 0 */
	}
	for (uint32_t i = 0; weighted && i < data->nsources; i++)
		if (isnan(data->source[i].weight)) {
			om_diag(om_conf_named(&data->source[i], NULL),
			    "%s has no weight, and other sources have one",
			    data->source[i].section);
			om_diag_help("give each source a weight, or none of them");
		}
	if (data->nsources && !some) {
		om_diag(om_conf_named(data->source, NULL), "all weights of the mix are 0");
		om_diag_help("raise one of them");
	}
}

/* What a set of eval is of. */
static void
rules_eval(const struct om_conf *c)
{
	static const char *const of_tokens[] = { "format", "label_mask_paths", "sequences" };

	for (const struct om_set *s = c->eval.source; s < c->eval.source + c->eval.nsources; s++) {
		if (!s->paths.n == !s->questions.n) {
			om_diag(om_conf_named(s, NULL), "%s has %s", s->section,
			    s->paths.n ? "paths, and questions as well"
				       : "neither paths nor questions");
			om_diag_help("paths are of tokens, questions of multiple choice: give one");
			continue;
		}
		for (size_t i = 0; i < OM_LEN(of_tokens) && s->questions.n; i++) {
			char *key = om_text("eval.sets.NAME.%s", of_tokens[i]);
			struct om_at at = om_conf_named(s, key);

			if (at.line) {
				om_diag(at, "%s.%s is set, but the set is of questions", s->section,
				    of_tokens[i]);
				om_diag_help("leave it out: all questions of the files are asked");
			}
			free(key);
		}
	}
}

/* Sizes of batches and what is left out. */
static void
rules_plan(struct om_conf *c, const struct om_model *m)
{
	const struct om_list *which;
	char *why = om_steps_read(&c->plan, m, &c->sizes, &c->skips, &which);

	if (why) {
		const bool sizes = which == &c->sizes;

		om_diag(om_conf_given(sizes ? "batch.sizes" : "data.skip"), "%s: %s",
		    sizes ? "batch.sizes" : "data.skip", why);
		om_diag_help(sizes ? "an item is \"SEQUENCES until STEP\""
				   : "an item is \"steps A to B\" or \"sequences A to B\"");
	}
	free(why);
}

uint64_t
om_conf_lr_place(const struct om_conf *c, uint64_t step, uint64_t seq)
{
	return c->lr.unit == OM_TOKENS ? om_steps_all(&c->plan, step) * seq : step;
}

void
om_conf_rules(struct om_conf *c, const struct om_model *m)
{
	bool endless = c->lr.schedule == OM_INVERSE_SQRT || c->lr.schedule == OM_POWER ||
		       c->lr.schedule == OM_STAGES;
	const char *needs = c->lr.schedule == OM_STAGES && !c->stages.n ? "lr.stages"
			    : c->lr.schedule != OM_WSDS                 ? NULL
			    : !c->periods.n                             ? "lr.periods"
			    : !c->lr.decay                              ? "lr.decay"
									: NULL;
	bool evaluates = om_conf_evaluates(c);
	const char *no_average = "the trainer keeps no averages";
	const char *keep_average = "adamw { average = true } in the description";
	const char *nothing = "neither eval.paths nor eval.sets is set";
	bool decays = c->lr.schedule == OM_WSD || c->lr.schedule == OM_WSDS || c->lr.decay_from;
	const struct {
		const char *key;
		bool used;
		const char *why, *help; /* why it has no effect, what gives it one */
	} rule[] = {
		{ "average.decay", m->average_off, no_average, keep_average },
		{ "average.from", m->average_off, no_average, keep_average },
		{ "eval.of", m->average_off || c->eval_of == OM_OWN_WEIGHTS, no_average,
		    keep_average },
		{ "batch.lr", c->sizes.n, "batch.sizes is not set", "batch.sizes" },
		{ "data.unit", c->data.nsources, "data.mix is not set", "data.mix" },
		{ "data.size", c->data.nsources, "data.mix is not set", "data.mix" },
		{ "data.label_mask_paths", !c->data.nsources, "data.mix is set",
		    "data.mix.NAME.label_mask_paths of each source" },
		{ "lr.decay", decays, "lr.schedule is not wsd or wsds and lr.decay_from is not set",
		    "lr.schedule: wsd or lr.decay_from" },
		{ "lr.decay_shape", decays,
		    "lr.schedule is not wsd or wsds and lr.decay_from is not set",
		    "lr.schedule: wsd or lr.decay_from" },
		{ "lr.periods", c->lr.schedule == OM_WSDS, "lr.schedule is not wsds",
		    "lr.schedule: wsds" },
		{ "lr.peaks", c->lr.schedule == OM_WSDS, "lr.schedule is not wsds",
		    "lr.schedule: wsds" },
		{ "lr.stages", c->lr.schedule == OM_STAGES, "lr.schedule is not stages",
		    "lr.schedule: stages" },
		{ "lr.warmup", c->lr.schedule != OM_STAGES, "lr.schedule is stages",
		    "a first stage \"1 over LENGTH from 0\"" },
		{ "lr.length", !is_staged(&c->lr), "the schedule is as long as its parts",
		    "another lr.schedule" },
		{ "lr.final", !endless || c->lr.decay_from,
		    "lr.schedule has no end and lr.decay_from is not set", "lr.decay_from" },
		{ "lr.reference", c->lr.schedule == OM_POWER, "lr.schedule is not power",
		    "lr.schedule: power" },
		{ "lr.exponent", c->lr.schedule == OM_POWER, "lr.schedule is not power",
		    "lr.schedule: power" },
		{ "skip_step.window", om_conf_given("skip_step.sigma").line,
		    "skip_step.sigma is not set", "skip_step.sigma, to 6 for example" },
		{ "checkpoint.take", *c->start, "checkpoint.start is not set", "checkpoint.start" },
		{ "checkpoint.leave", *c->start, "checkpoint.start is not set",
		    "checkpoint.start" },
		{ "checkpoint.keep_every", c->keep || !c->keep_every,
		    "checkpoint.keep is not: all are kept", "checkpoint.keep" },
		{ "skip_step.rollbacks", *c->dir && (c->every || c->saves.n),
		    "checkpoint.every is not set", "checkpoint.every and checkpoint.dir" },
		{ "skip_step.most", om_conf_given("skip_step.sigma").line,
		    "skip_step.sigma is not set", "skip_step.sigma, to 6 for example" },
		{ "eval.format", evaluates, nothing, "eval.paths" },
		{ "eval.label_mask_paths", c->eval.paths.n, "eval.paths is not set", "eval.paths" },
		{ "eval.start", evaluates, nothing, "eval.paths" },
		{ "eval.every", evaluates, nothing, "eval.paths" },
		{ "eval.sequences", evaluates, nothing, "eval.paths" },
	};

	if (needs) {
		om_diag(om_conf_given("lr.schedule"), "this schedule needs %s", needs);
		om_diag_help("%s: %s", needs, om_key_find(needs)->doc);
		return;
	}
	rules_checkpoint(c);
	for (size_t i = 0; i < OM_LEN(rule); i++)
		if (om_conf_given(rule[i].key).line && !rule[i].used) {
			om_diag(om_conf_given(rule[i].key), "%s is set, but %s", rule[i].key,
			    rule[i].why);
			om_diag_help("set %s, or leave out %s", rule[i].help, rule[i].key);
		}
	rules_plan(c, m);
	c->lr.ends_with_run = !c->lr.length;
	if (c->lr.ends_with_run)
		c->lr.length = om_conf_lr_place(c, c->steps, m->seq);
	rules_mix(c);
	rules_eval(c);
	if (c->steps) /* eval needs none */
		rules_lr(c);
	if (!c->lr.decay)
		c->lr.decay = decay_default(&c->lr);
	if (c->steps)
		om_rates_read(c);
}
