/* The training loop. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "om_rt.h"
#include "rates.h"

/* What ranks tell one another at the end of a step; from RANKS on how long each was at work. */
enum { LEFT, STOP, WRITES, TIME, RANKS };
/* Seconds that a step may still take to its end after a signal; a longer one is left out. */
enum { PATIENCE = 2 };

static volatile sig_atomic_t stop;     /* the signal that asked for the end */
static volatile sig_atomic_t now_step; /* the one under way, for its answer */

/* A second signal ends the process at once; the first is answered, by what a handler may call. */
static void
on_signal(int sig)
{
	static const char before[] = "\nfinishing step ",
			  after[] = "; again to stop without saving\n";
	char text[sizeof before + sizeof after + 24];
	size_t at = sizeof text;
	int error = errno;
	ssize_t wrote = 0;

	if (stop)
		_exit(128 + sig);
	stop = sig;
	at -= sizeof after - 1;
	memcpy(text + at, after, sizeof after - 1);
	for (sig_atomic_t n = now_step, first = 1; n || first; n /= 10, first = 0)
		text[--at] = (char)('0' + n % 10);
	at -= sizeof before - 1;
	memcpy(text + at, before, sizeof before - 1);
	if (now_step && !om_rank(OM_WORLD)) /* before the first there is nothing to finish */
		wrote = write(STDERR_FILENO, text + at, sizeof text - at);
	(void)wrote; /* nobody has to read it */
	errno = error;
}

void
om_ctl_write(const struct om_model *m, unsigned char *arena, double lr, uint64_t updates,
    const double limit[2], uint64_t labels, uint64_t sequences)
{
	double ctl[OM_N_CTL] = { 0 };

	ctl[OM_LR] = lr;
	ctl[OM_BIAS1] = 1 - pow(m->beta1, (double)updates);
	ctl[OM_BIAS2] = 1 - pow(m->beta2, (double)updates);
	ctl[OM_COEF] = (double)m->global / (double)sequences;
	ctl[OM_LOSS_LIMIT] = limit ? limit[0] : INFINITY;
	ctl[OM_NORM_LIMIT] = limit ? limit[1] : INFINITY;
	/* the model divides by the step's tokens; where none has a label, there is no loss */
	ctl[OM_PER_LABEL] = labels ? (double)(sequences * m->seq) / (double)labels : 1;
	om_put(arena, m->ctl_off, ctl, sizeof ctl);
	for (uint32_t k = 0; k < m->nparam_groups; k++)
		if (m->param_group[k].name)
			om_put(arena, m->param_group[k].ctl, ctl, sizeof ctl);
}

struct run {
	const struct om_model *m;
	const struct om_conf *c;
	unsigned char *arena;
	struct om_data data;
	struct om_skip skip;
	struct om_eval eval;
	struct om_ckpt ckpt;
	struct om_log log;
	struct om_ahead *ahead;
	const struct om_batch *batch;       /* of the step under way */
	struct om_told told[OM_STEPS_MOST]; /* of the steps under way */
	uint64_t sent;                      /* steps that were begun */
	uint64_t pass,
	    often;     /* passes of the step under way; after how many ranks ask each other */
	double began;  /* when the step under way began */
	double waited; /* for ranks, before it */
	int64_t *sum[OM_STEPS_MOST]; /* of the steps under way */
	double asked;                /* when a signal was seen first, 0: none was */
	bool written;                /* all ranks' parts of a save, which may be ended */
	bool left;                   /* of the step under way, this rank leaves out the rest */
	bool started;   /* it has been evaluated before its first step, if that is asked for */
	bool ending;    /* some rank had a signal, as all know: no step begins */
	uint64_t whole; /* and all of them enqueued, their update too */
	uint64_t done, saved; /* ended; in a checkpoint */
	double since;         /* of the time that the next step to end is charged with */
	char *to;             /* the checkpoint to go back to, NULL: none */
	uint64_t to_step;
	uint64_t unlabelled; /* steps in a row that had no label */
};

/*
 * Whether the run goes back to a checkpoint, as all ranks decide alike: the newest good one from
 * before the first step that was bad.
 */
static bool
goes_back(struct run *r, uint64_t first_bad)
{
	if (r->skip.back < r->c->rollbacks && r->data.rescue) /* not while it ends */
		r->to = om_ckpt_back(&r->ckpt, first_bad - 1, &r->to_step);
	return r->to;
}

/*
 * Numbers that are none end the run before anything is lost, or take it back: this step's weights
 * are those of the step before.
 */
static void
check_finite(struct run *r, uint64_t step, double x, const char *what, const char *tensor)
{
	if (isfinite(x) || r->to)
		return;
	if (goes_back(r, step))
		printf("step %s: %s is %s%s%s\n", om_commas(step), what,
		    isnan(x) ? "nan" : "infinite", tensor ? " by that of " : "",
		    tensor ? tensor : "");
	else
		om_die(what,
		    "is %s%s%s, the step was not applied; lower lr.peak or raise lr.warmup, and %s",
		    isnan(x) ? "nan" : "infinite", tensor ? " by that of " : "",
		    tensor ? tensor : "", om_ckpt_advice(&r->ckpt));
}

static void
feed(void *arg, uint64_t i)
{
	struct run *r = arg;
	const struct om_model *m = r->m;
	const uint64_t n = m->micro * m->seq;

	om_draw_write(m, r->arena, r->data.seed, om_ahead_sequence(m, r->batch->place, i));
	om_put(r->arena, m->token_off, r->batch->token + i * n, n * sizeof(int32_t));
	om_put(r->arena, m->label_off, r->batch->label + i * n, n * sizeof(int32_t));
	om_documents_put(m, r->arena, r->batch->first ? r->batch->first + i * n : NULL);
}

/*
 * Whether a step goes on. After a signal it has PATIENCE to come to its end; what takes longer is
 * left out, as the weights are those of the step before until the update. The data ranks of a
 * stage, which may meet within a pass, ask one another about once a second, by the time that the
 * last step took.
 */
static bool
go(void *arg)
{
	struct run *r = arg;
	int64_t enough;

	if (stop && !(r->asked > 0))
		r->asked = om_now();
	enough = r->asked > 0 && om_now() - r->asked > PATIENCE;
	if (om_size(OM_DATA) == 1 || r->pass % r->often == 0) {
		om_all_sum_i64(OM_DATA, "microbatch", &enough, 1);
		r->left = r->left || enough;
	}
	r->pass++;
	return !r->left;
}

/* By all ranks, before the update: whether it is made, and whether another step follows. */
static bool
settle(void *arg)
{
	struct run *r = arg;
	const double took = om_now() - r->began, waited = om_watchdog_waited() - r->waited;
	int64_t *sum = r->sum[r->sent % OM_STEPS_MOST];
	double passes;

	sum[LEFT] = r->left;
	sum[STOP] = stop != 0;
	sum[WRITES] = om_ckpt_writes(&r->ckpt);
	sum[TIME] = (int64_t)(1e6 * took);
	memset(sum + RANKS, 0, om_size(OM_WORLD) * sizeof *sum);
	sum[RANKS + om_rank(OM_WORLD)] = (int64_t)(1e6 * (took - waited));
	om_all_sum_i64(OM_WORLD, "end of a step", sum, RANKS + om_size(OM_WORLD));
	r->told[r->sent % OM_STEPS_MOST].busy = sum + RANKS;
	r->ending = r->ending || sum[STOP];
	r->written = !sum[WRITES];
	passes = 1e6 * (double)r->pass * om_size(OM_WORLD) / (double)(sum[TIME] + 1);
	r->often = passes < 1 ? 1 : passes < 1e9 ? (uint64_t)passes : 1000000000;
	if (!sum[LEFT])
		om_ckpt_copied(&r->ckpt);
	return !sum[LEFT];
}

/*
 * A step may by chance have no label: its loss is 0, and it teaches nothing. As many in a row are a
 * mask or an end of documents that is wrong.
 */
static void
check_labels(struct run *r, uint64_t labels)
{
	enum { MOST = 10 };
	char *what;

	r->unlabelled = labels ? 0 : r->unlabelled + 1;
	if (!labels && !om_rank(OM_WORLD)) {
		om_log_clear();
		printf("step %s: no token has a label\n", om_commas(r->sent));
	}
	if (r->unlabelled < MOST)
		return;
	what = om_text("%s in a row have no token with a label; correct the label masks, "
		       "data.cut_labels, data.packing or data.repetition_filter",
	    om_count(r->unlabelled, "step"));
	om_data_lost(&r->data, r->data.section, what);
}

/*
 * Takes the step's microbatches, which are in memory unless the disk is slower than training; gives
 * how many labels they have on all ranks.
 */
static uint64_t
take_batch(struct run *r, struct om_told *told)
{
	enum { LABELS, REPEATED, SUMS };
	const struct om_steps *plan = &r->c->plan;
	uint64_t tokens;
	int64_t sum[SUMS];

	r->batch = om_ahead_next(r->ahead);
	told->place = r->batch->place;
	told->sequences = om_steps_size(plan, r->sent);
	told->all = om_steps_all(plan, r->sent);
	told->ramps = plan->nramp;
	told->share = (double)told->sequences / (double)plan->global;
	tokens = told->sequences * r->m->seq;
	told->waited = r->batch->waited;
	told->spared =
	    om_documents_spared(r->m, r->batch->first, r->batch->microbatches * r->m->micro);
	told->masked = told->repeated = -1;
	if (!r->data.gaps)
		return tokens;
	sum[LABELS] = (int64_t)r->batch->labels;
	sum[REPEATED] = (int64_t)r->batch->repeated;
	om_all_sum_i64(OM_DATA, "labels of a step", sum, SUMS);
	check_labels(r, (uint64_t)sum[LABELS]);
	told->masked = 1 - (double)sum[LABELS] / (double)tokens;
	if (r->data.filter)
		told->repeated = (double)sum[REPEATED] / (double)told->sequences;
	return (uint64_t)sum[LABELS];
}

/* Begins the next step; the device may still be at the one before. */
static void
step_send(struct run *r)
{
	const struct om_model *m = r->m;
	uint64_t step = ++r->sent, labels;
	struct om_feed f = { 0, feed, go, settle, r };
	struct om_told *told = &r->told[step % OM_STEPS_MOST];
	double limit[2];

	now_step = (sig_atomic_t)step;
	r->pass = 0;
	r->left = false;
	r->began = om_now();
	r->waited = om_watchdog_waited();
	om_err_step(step);
	om_watchdog_at("reading data");
	labels = take_batch(r, told);
	om_watchdog_at("computing a step");
	f.microbatches = r->batch->microbatches;
	told->lr = om_lr_at(&r->c->lr, om_conf_lr_place(r->c, step, m->seq), r->c->lr.length) *
		   (r->c->batch_lr == OM_LR_ROOT ? sqrt(told->share) : 1);
	om_skip_limits(&r->skip, limit);
	/* Adam's correction is of moments, which a skipped step leaves alone */
	om_ctl_write(m, r->arena, told->lr, step - r->skip.total - r->skip.fresh, limit, labels,
	    told->sequences);
	om_rates_write(r->c, m, r->arena, om_conf_lr_place(r->c, step, m->seq),
	    r->c->batch_lr == OM_LR_ROOT ? sqrt(told->share) : 1);
	om_lots_write(m, r->arena, r->c->seed, step);
	om_average_write(m, r->c, r->arena, step);
	if (om_run_step(m, r->arena, &f)) {
		om_result_send(m, r->arena, step);
		r->whole = step;
		return;
	}
	om_err_step(--r->sent); /* so the weights are those of the step before */
	printf(
	    "step %s is left out, as it takes long; it is done anew on resume\n", om_commas(step));
	fflush(stdout);
}

/* Waits for a step's results, and tells of them. */
static void
step_end(struct run *r, uint64_t step)
{
	struct om_told *told = &r->told[step % OM_STEPS_MOST];
	const struct om_result *x;
	double loss, norm2, now;
	char *not_finite = NULL;
	bool skipped;

	om_err_step(step);
	om_watchdog_at("computing a step");
	x = om_result_wait(step);
	loss = om_stat_f64(r->m, x, r->m->loss_off) / told->share;
	norm2 = x->ctl[OM_NORM2] / (told->share * told->share);
	if (!isfinite(norm2))
		not_finite = om_not_finite(r->m, r->arena);
	skipped = r->skip.sigma > 0 && x->ctl[OM_SKIPPED] != 0;
	if (!skipped) { /* the update left weights alone where these are not finite */
		check_finite(r, step, loss, "loss", NULL);
		check_finite(r, step, norm2, "gradient norm", not_finite);
	}
	if (isfinite(loss) && isfinite(norm2)) /* so are the weights it began with */
		om_ckpt_good(&r->ckpt, step - 1);
	om_skip_step(&r->skip, (double[]){ loss, sqrt(norm2) }, skipped);
	now = om_now();
	told->took = now - r->since;
	told->not_finite = not_finite;
	om_watchdog_at("writing metrics");
	om_log_step(&r->log, x, step, told);
	free(not_finite);
	r->since = now;
}

/* A run that skips every step would go on forever without learning. */
static void
check_skipped(struct run *r)
{
	if (r->skip.row < r->c->skip_most || r->to)
		return;
	if (goes_back(r, r->done + 1 - r->skip.row)) {
		printf("step %s: %s in a row were skipped\n", om_commas(r->done),
		    om_count(r->skip.row, "step"));
		return;
	}
	om_die("skip_step",
	    "%s in a row were skipped; lower lr.peak or raise skip_step.sigma, and %s",
	    om_count(r->skip.row, "step"), om_ckpt_advice(&r->ckpt));
}

static bool
save_due(const struct run *r, uint64_t done)
{
	return done == r->c->steps || (r->c->every && done % r->c->every == 0) ||
	       om_ckpt_given(&r->ckpt, done);
}

static bool
eval_due(const struct run *r, uint64_t done)
{
	uint64_t every = r->c->eval_every;

	return r->eval.n && (done == r->c->steps || (every && done % every == 0));
}

/*
 * Whether the step after those sent begins, as all ranks decide alike. It does before some have
 * ended only where SkipStep has no limits of their results, and no checkpoint or evaluation is of
 * the weights that they leave.
 */
static bool
may_begin(const struct run *r, uint64_t under_way)
{
	if (r->sent == r->c->steps || under_way == om_steps_most())
		return false;
	if (under_way && (r->skip.sigma > 0 || save_due(r, r->sent) || eval_due(r, r->sent)))
		return false;
	return !r->ending;
}

static void
save(struct run *r)
{
	om_watchdog_at("writing a checkpoint");
	if (r->ckpt.dir) {
		om_ckpt_end(&r->ckpt);
		om_log_sync(&r->log); /* metrics reach as far as the checkpoint */
		r->ckpt.async = r->c->async && r->done < r->c->steps && !r->ending;
		om_ckpt_save(&r->ckpt, r->arena, r->done);
	}
	r->written = false;
	r->saved = r->done;
}

/* What saves the run before data that cannot be read end it. */
static void
rescue_set(struct run *r, char *(*by)(void *arg))
{
	r->data.rescue = by;
	r->data.arg = r;
	om_eval_rescue(&r->eval, by, r);
}

/*
 * The weights are those of the last whole step, however far the next one has come. Only of one
 * rank: the others wait for this one in the midst of theirs, and all have to save together.
 */
static char *
rescue(void *arg)
{
	struct run *r = arg;
	uint64_t at = r->sent;
	char *path, *text = NULL;

	rescue_set(r, NULL); /* saving may end in an error too */
	if (!r->ckpt.dir || om_size(OM_WORLD) > 1)
		return NULL;
	while (r->done < r->whole)
		step_end(r, ++r->done);
	r->ending = true;
	if (r->saved != r->done)
		save(r);
	om_ckpt_end(&r->ckpt);
	om_err_step(at);
	if ((path = om_ckpt_newest(&r->ckpt)))
		text = om_text("steps up to %llu are in %s", (unsigned long long)r->done, path);
	free(path);
	return text;
}

/* After the step's checkpoint: no flaw of the held-out data costs what was trained. */
static void
evaluate(struct run *r)
{
	om_watchdog_at("an evaluation");
	if (!om_eval_run(&r->eval, r->m, r->arena, &stop, &r->log, r->done))
		r->ending = true;
}

/* No step follows the last checkpoint: a forward pass of the last microbatch stands in for it. */
static void
check_last(struct run *r, uint64_t done)
{
	char *advice;

	if (!r->ckpt.dir)
		return;
	om_run(r->m, OM_RUN_ZERO, r->arena);
	om_run_forward(r->m, r->arena);
	if (isfinite(om_run_forward_end(r->m, r->arena))) {
		om_ckpt_good(&r->ckpt, done);
		return;
	}
	advice = om_ckpt_advice(&r->ckpt);
	printf("checkpoint: after the last step the loss is not finite; %s\n", advice);
	free(advice);
}

static void
header(const struct run *r, uint64_t done, double start)
{
	const struct om_model *m = r->m;
	const struct om_data *d = &r->data;
	double epoch = (double)d->nseq / (double)m->global;

	char device[64];

	om_device_text(device);
	printf("%s on %s: %s parameters (%s active), %s tokens a step, %s\n", m->name, m->target,
	    om_commas(m->params_total), om_commas(m->params_active), om_commas(m->global * m->seq),
	    device);
	if (om_size(OM_WORLD) > 1)
		printf("ranks: %u: pipeline %u x data %u, of these expert %u\n", om_size(OM_WORLD),
		    om_size(OM_PIPELINE), om_size(OM_DATA), om_size(OM_EXPERT));
	printf("data: %s in %s, %s, an epoch is %.*f steps\n", om_count(d->tokens, "token"),
	    om_count(d->files, "file"), om_count(d->nseq, "sequence"), epoch < 10 ? 2 : 0, epoch);
	om_data_say(d, om_steps_all(&r->c->plan, r->c->steps));
	om_pack_say(d);
	if (!r->ckpt.resumed && r->ckpt.dir)
		printf("fresh start: no checkpoint in %s\n", r->ckpt.dir);
	printf("start: step %s of %s after %s\n", om_commas(done + 1), om_commas(r->c->steps),
	    om_took(om_now() - start));
	fflush(stdout);
}

static void
footer(const struct run *r, uint64_t first)
{
	const struct om_model *m = r->m;
	char *last = om_ckpt_newest(&r->ckpt);
	const struct om_data *d = &r->data;

	for (uint32_t i = 0; d->mix && i < d->nsources; i++)
		printf("source %s: %s, %.2f%% of the run, %.2f epochs of it\n", d->source[i].name,
		    om_count(d->seen[i] * d->seq, "token"),
		    100 * (double)d->seen[i] /
			(double)(r->done ? om_steps_all(&r->c->plan, r->done) : 1),
		    om_source_times(&d->source[i], (double)d->seen[i]));
	printf("%s: step %s of %s, %s in %s, ", r->done < r->c->steps ? "stopped" : "done",
	    om_commas(r->done), om_commas(r->c->steps),
	    om_count(
		(om_steps_all(&r->c->plan, r->done) - om_steps_all(&r->c->plan, first)) * m->seq,
		"token"),
	    om_took(om_now() - r->log.start));
	if (r->done > first)
		printf("loss %s, ", om_number(r->log.ce, ".4f"));
	if (r->skip.total)
		printf("%s skipped, ", om_commas(r->skip.total));
	if (last)
		printf("checkpoint %s\n", last);
	else
		printf("no checkpoint%s\n", r->ckpt.dir ? "" : ": checkpoint.dir is not set");
	free(last);
}

static void
catch_signals(void)
{
	/* SIGUSR1 is what mpirun hands on to its ranks */
	static const int ends[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
	struct sigaction act, old;

	memset(&act, 0, sizeof act);
	act.sa_handler = on_signal;
	act.sa_flags = SA_RESTART;
	for (size_t i = 0; i < OM_LEN(ends); i++)
		if (ends[i] != SIGHUP || sigaction(SIGHUP, NULL, &old) != 0 ||
		    old.sa_handler != SIG_IGN) /* nohup's wish */
			sigaction(ends[i], &act, NULL);
}

/* Ranks of several machines may have been given what differs, and would train on regardless. */
static void
agree(const struct run *r)
{
	const uint64_t data[] = { r->data.tokens, r->data.crc };
	uint64_t keys[OM_NKEYS];

	om_agree("trainer", r->m->manifest, strlen(r->m->manifest));
	om_conf_numbers(r->c, keys);
	om_agree("run.yaml", keys, sizeof keys);
	om_agree("run.yaml", r->c->given, r->c->saves.n * sizeof *r->c->given);
	om_agree("run.yaml", r->c->plan.ramp, r->c->plan.nramp * sizeof *r->c->plan.ramp);
	om_agree("run.yaml", r->c->plan.gap, r->c->plan.ngaps * sizeof *r->c->plan.gap);
	om_agree("data", data, sizeof data);
}

/*
 * For tests: NaN wherever nothing was written, so that whoever reads it is found out. What starts
 * as zero stays zero.
 */
static void
poison(const struct om_model *m, unsigned char *arena)
{
	enum { PIECE = 1 << 20 };
	unsigned char *nan = om_alloc(1, PIECE);

	memset(nan, 0xff, PIECE);
	for (uint64_t at = 0; at < m->arena_bytes; at += PIECE)
		om_put(arena, at, nan, m->arena_bytes - at < PIECE ? m->arena_bytes - at : PIECE);
	om_clear(arena + m->weight_off, m->weight_bytes);
	om_clear(arena + m->state_off, m->state_bytes);
	om_clear(arena + m->grad_off, m->grad_bytes);
	for (const struct om_param *p = m->param; p < m->param + m->nparams; p++)
		for (uint64_t l = 0, at = 0, n; l < p->nlayers; l++, at = 0)
			for (uint64_t all = (p->experts ? p->experts : 1) * p->numel * m->real;
			     at < all; at += n) {
				n = all - at < PIECE ? all - at : PIECE;
				om_put(arena, p->grad + l * p->stride * m->real + at, nan, n);
			}
	free(nan);
}

/* Loads what there is to go on from, or makes the first weights. */
static void
begin(struct run *r)
{
	if (!om_ckpt_resume(&r->ckpt, r->c, r->arena, &r->done)) {
		om_init_params(r->m, r->arena, r->c->seed);
		if (*r->c->start)
			om_ckpt_start(&r->ckpt, r->c, r->arena);
		om_average_begin(r->m, r->arena);
	}
	r->saved = r->whole = r->sent = r->done;
}

/*
 * From here on the run goes on from another checkpoint than the one that run.yaml names. Steps are
 * numbered as before, and their data are those behind all that was read.
 */
static void
go_back(struct run *r, struct om_conf *c)
{
	const uint64_t again = r->done - r->to_step, back = r->skip.back + 1,
		       left = r->skip.left + again,
		       sequences = r->skip.left_sequences + om_steps_all(&c->plan, r->done) -
				   om_steps_all(&c->plan, r->to_step);

	printf("rollback %s of at most %s: back to %s, the data of %s are left out\n",
	    om_commas(back), om_commas(c->rollbacks), r->to, om_count(again, "step"));
	while (r->done < r->sent) /* what is under way is lost */
		om_result_wait(++r->done);
	free(c->resume);
	c->resume = r->to;
	r->to = NULL;
	om_ckpt_close(&r->ckpt);
	om_skip_close(&r->skip);
	om_skip_open(&r->skip, c);
	om_ckpt_open(&r->ckpt, r->m, &r->data, &r->skip, c);
	r->ckpt.rollback = true;
	begin(r);
	r->skip.back = back; /* of the run; the checkpoint may be from before the last rollback */
	r->skip.left = left;
	r->skip.left_sequences = sequences;
	r->skip.row = 0;
	om_ckpt_good(&r->ckpt, r->done);
}

/* Steps until the last one, a signal, or numbers that take the run back. */
static void
train(struct run *r, double start)
{
	const uint64_t first = r->done;

	om_ckpt_plan(&r->ckpt, r->done, r->c->steps, r->c->every);
	om_log_open(&r->log, r->m, &r->data, &r->skip, r->c, r->done);
	header(r, r->done, start);
	rescue_set(r, rescue);
	if (!r->ckpt.resumed && om_ckpt_given(&r->ckpt, 0)) {
		om_ckpt_prepare(&r->ckpt);
		save(r);
	}
	if (r->c->eval_start && !r->started)
		evaluate(r);
	r->started = true;
	r->ahead = om_ahead_start(
	    &r->data, r->m, &r->c->plan, r->skip.left_sequences, r->done, r->c->steps, UINT64_MAX);
	while (!r->to) {
		if (r->sent == r->done)
			r->since = om_now();
		while (may_begin(r, r->sent - r->done))
			step_send(r);
		if (r->sent == r->done)
			break;
		om_watchdog_at("writing a checkpoint");
		if (r->written)
			om_ckpt_end(&r->ckpt);
		step_end(r, ++r->done);
		if (r->done == first + 1 && (r->c->every || r->c->saves.n))
			om_ckpt_prepare(&r->ckpt); /* now all other memory is in use */
		check_skipped(r);
		if (!r->to && save_due(r, r->done)) {
			save(r);
			r->ending = r->ending || om_any("checkpoint", stop);
		}
		if (!r->to && eval_due(r, r->done) && !r->ending)
			evaluate(r);
	}
	om_ahead_stop(r->ahead);
	rescue_set(r, NULL);
	if (r->saved != r->done && !r->to) /* stopped, maybe within an evaluation */
		save(r);
	om_ckpt_end(&r->ckpt);
	om_watchdog_at(NULL);
	om_log_close(&r->log);
	if (r->to)
		return;
	if (r->done > first)
		check_last(r, r->done);
	footer(r, first);
}

int
om_train(const struct om_model *m, struct om_conf *c, double start)
{
	struct run r = { .m = m, .c = c, .often = 1 };

	signal(SIGPIPE, SIG_IGN); /* who reads the console may leave */
	for (int i = 0; i < OM_STEPS_MOST; i++)
		r.sum[i] = om_alloc(RANKS + om_size(OM_WORLD), sizeof *r.sum[i]);
	om_data_open(&r.data, m, &c->data, c->seed);
	r.data.steps = &c->plan;
	if (om_conf_evaluates(c))
		om_eval_open(&r.eval, m, c);
	agree(&r);
	om_skip_open(&r.skip, c);
	om_rates_check(c, m);
	om_ckpt_open(&r.ckpt, m, &r.data, &r.skip, c);
	om_device_start(c->threads);
	r.arena = om_arena_new(m);
	if (getenv("OM_POISON"))
		poison(m, r.arena);
	om_run(m, OM_RUN_INIT, r.arena);
	begin(&r);
	if (r.done == c->steps) {
		check_last(&r, r.done);
		printf(
		    "done: all %s are done; raise steps to train on\n", om_count(r.done, "step"));
	} else {
		catch_signals();
		om_comm_ready();
		om_watchdog_start((double)c->watchdog);
		for (train(&r, start); r.to; train(&r, om_now()))
			go_back(&r, c);
	}
	om_ckpt_close(&r.ckpt);
	om_skip_close(&r.skip);
	for (int i = 0; i < OM_STEPS_MOST; i++)
		free(r.sum[i]);
	om_eval_close(&r.eval);
	om_data_close(&r.data);
	return r.done < c->steps ? OM_EXIT_STOPPED : 0;
}
