/* The training loop. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "om_rt.h"

static volatile sig_atomic_t stop; /* the signal that asked for the end */

static void
on_signal(int sig)
{
	if (stop)
		_exit(128 + sig); /* asked twice: at once */
	stop = sig;
}

void
om_ctl_write(const struct om_model *m, unsigned char *arena, double lr, uint64_t updates,
    const double limit[2])
{
	double ctl[OM_N_CTL] = { 0 };

	ctl[OM_LR] = lr;
	ctl[OM_BIAS1] = 1 - pow(m->beta1, (double)updates);
	ctl[OM_BIAS2] = 1 - pow(m->beta2, (double)updates);
	ctl[OM_COEF] = 1;
	ctl[OM_LOSS_LIMIT] = limit ? limit[0] : INFINITY;
	ctl[OM_NORM_LIMIT] = limit ? limit[1] : INFINITY;
	om_put(arena, m->ctl_off, ctl, sizeof ctl);
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
	int32_t *token, *label; /* [micro * seq] */
	uint64_t sent;          /* steps that were begun */
	double since;           /* of the time that the next step to end is charged with */
};

/* Ends the run before anything is lost: this step's weights are those of the step before. */
static void
check_finite(struct run *r, double x, const char *what)
{
	if (isfinite(x))
		return;
	om_die(what, "is %s, the step was not applied; lower lr.peak or raise lr.warmup, and %s",
	    isnan(x) ? "nan" : "infinite", om_ckpt_advice(&r->ckpt));
}

static double
rate_of(const struct run *r, uint64_t step)
{
	return om_lr_at(&r->c->lr, step, r->c->steps);
}

/* Begins the next step; the device may still be at the one before. */
static void
step_send(struct run *r)
{
	const struct om_model *m = r->m;
	uint64_t step = ++r->sent, g = (step - 1) * m->global;
	size_t bytes = m->micro * m->seq * sizeof(int32_t);
	double limit[2];

	om_err_step(step);
	om_skip_limits(&r->skip, limit);
	/* Adam's correction is of moments, which a skipped step leaves alone */
	om_ctl_write(m, r->arena, rate_of(r, step), step - r->skip.total, limit);
	om_run(m, OM_RUN_ZERO, r->arena);
	for (uint64_t i = 0; i < m->microbatches; i++) {
		om_draw_write(m, r->arena, r->data.seed, g);
		for (uint64_t j = 0; j < m->micro; j++, g++)
			om_data_read(&r->data, g, r->token + j * m->seq, r->label + j * m->seq);
		om_put(r->arena, m->token_off, r->token, bytes);
		om_put(r->arena, m->label_off, r->label, bytes);
		om_run(m, OM_RUN_MICROBATCH, r->arena);
	}
	om_run(m, OM_RUN_UPDATE, r->arena);
	om_result_send(m, r->arena, step);
}

/* Waits for a step's results, and tells of them. */
static void
step_end(struct run *r, uint64_t step)
{
	const struct om_result *x;
	double loss, norm2, now;
	bool skipped;

	om_err_step(step);
	x = om_result_wait(step);
	loss = om_stat_f64(r->m, x, r->m->loss_off);
	norm2 = x->ctl[OM_NORM2];
	skipped = r->skip.sigma > 0 && x->ctl[OM_SKIPPED] != 0;
	if (!skipped) { /* the update left weights alone where these are not finite */
		check_finite(r, loss, "loss");
		check_finite(r, norm2, "gradient norm");
	}
	if (isfinite(loss) && isfinite(norm2)) /* so are the weights it began with */
		om_ckpt_good(&r->ckpt, step - 1);
	om_skip_step(&r->skip, (double[]){ loss, sqrt(norm2) }, skipped);
	now = om_now();
	om_log_step(&r->log, x, step, rate_of(r, step), now - r->since);
	r->since = now;
}

/* A run that skips every step would go on forever without learning. */
static void
check_skipped(struct run *r)
{
	if (r->skip.row < OM_SKIP_MOST)
		return;
	om_die("skip_step",
	    "%d steps in a row were skipped; lower lr.peak or raise skip_step.sigma, and %s",
	    OM_SKIP_MOST, om_ckpt_advice(&r->ckpt));
}

static bool
save_due(const struct run *r, uint64_t done)
{
	return done == r->c->steps || (r->c->every && done % r->c->every == 0);
}

static bool
eval_due(const struct run *r, uint64_t done)
{
	uint64_t every = r->c->eval_every;

	return r->c->eval.paths.n && (done == r->c->steps || (every && done % every == 0));
}

/* Whether the step after those sent may begin before these have ended: SkipStep's limits are of
 * their results, checkpoints and evaluation are of weights that nothing changes. */
static bool
may_overtake(const struct run *r)
{
	return !stop && !(r->skip.sigma > 0) && !save_due(r, r->sent) && !eval_due(r, r->sent);
}

static uint64_t
save(struct run *r, uint64_t done)
{
	if (r->ckpt.dir) {
		om_log_sync(&r->log); /* metrics reach as far as the checkpoint */
		om_ckpt_save(&r->ckpt, r->arena, done);
	}
	return done;
}

/* After the step's checkpoint: no flaw of the held-out data costs what was trained. */
static void
evaluate(struct run *r, uint64_t done)
{
	uint64_t tokens;
	double before = om_now(), loss;

	if (om_eval_run(&r->eval, r->m, r->arena, &stop, &loss, &tokens))
		om_log_eval(&r->log, done, loss, tokens, om_now() - before);
}

/* No step follows the last checkpoint: a forward pass of the last microbatch stands in for it. */
static void
check_last(struct run *r, uint64_t done)
{
	char *advice;

	if (!r->ckpt.dir)
		return;
	om_run(r->m, OM_RUN_ZERO, r->arena);
	om_run(r->m, OM_RUN_EVALUATE, r->arena);
	if (isfinite(om_get_f64(r->arena, r->m->loss_off))) {
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
	printf("data: %s tokens in %s file%s, %s sequences, an epoch is %.*f steps\n",
	    om_commas(d->tokens), om_commas(d->n), d->n == 1 ? "" : "s", om_commas(d->nseq),
	    epoch < 10 ? 2 : 0, epoch);
	printf("start: step %s of %s after %.2f s\n", om_commas(done + 1), om_commas(r->c->steps),
	    om_now() - start);
	fflush(stdout);
}

static void
catch_signals(void)
{
	static const int ends[] = { SIGTERM, SIGINT, SIGHUP };
	struct sigaction act, old;

	memset(&act, 0, sizeof act);
	act.sa_handler = on_signal;
	act.sa_flags = SA_RESTART;
	for (size_t i = 0; i < OM_LEN(ends); i++)
		if (ends[i] != SIGHUP || sigaction(SIGHUP, NULL, &old) != 0 ||
		    old.sa_handler != SIG_IGN) /* nohup's wish */
			sigaction(ends[i], &act, NULL);
}

int
om_train(const struct om_model *m, struct om_conf *c, double start)
{
	struct run r = { .m = m, .c = c };
	uint64_t done, saved, first;
	char *last;

	signal(SIGPIPE, SIG_IGN); /* who reads the console may leave */
	om_device_start(c->threads);
	om_data_open(&r.data, m, &c->data, c->seed);
	if (c->eval.paths.n)
		om_eval_open(&r.eval, m, c);
	om_skip_open(&r.skip, c);
	om_ckpt_open(&r.ckpt, m, &r.data, &r.skip, c);
	r.arena = om_arena_new(m->arena_bytes);
	om_run(m, OM_RUN_INIT, r.arena);
	r.token = om_alloc(m->micro * m->seq, sizeof *r.token);
	r.label = om_alloc(m->micro * m->seq, sizeof *r.label);
	if (!om_ckpt_resume(&r.ckpt, c, r.arena, &done))
		om_init_params(m, r.arena, c->seed);
	saved = first = done;
	if (done == c->steps) {
		check_last(&r, done);
		printf("done: all %s steps are done; raise steps to train on\n", om_commas(done));
	} else {
		om_log_open(&r.log, m, &r.skip, c, done);
		catch_signals();
		header(&r, done, start);
		r.sent = done;
		while (r.sent > done || (done < c->steps && !stop)) {
			if (r.sent == done)
				r.since = om_now();
			while (
			    r.sent == done || (r.sent - done < om_steps_most() && may_overtake(&r)))
				step_send(&r);
			step_end(&r, ++done);
			check_skipped(&r);
			if (save_due(&r, done))
				saved = save(&r, done);
			if (eval_due(&r, done))
				evaluate(&r, done);
		}
		if (saved != done) /* stopped, maybe within an evaluation */
			save(&r, done);
		om_log_close(&r.log);
		check_last(&r, done);
		last = om_ckpt_newest(&r.ckpt);
		printf("%s: step %s of %s, %s tokens in %s, loss %.4f, ",
		    done < c->steps ? "stopped" : "done", om_commas(done), om_commas(c->steps),
		    om_commas((done - first) * m->global * m->seq),
		    om_clock(om_now() - r.log.start), r.log.ce);
		if (r.skip.total)
			printf("%s skipped, ", om_commas(r.skip.total));
		if (last)
			printf("checkpoint %s\n", last);
		else
			printf(
			    "no checkpoint%s\n", r.ckpt.dir ? "" : ": checkpoint.dir is not set");
		free(last);
	}
	om_ckpt_close(&r.ckpt);
	om_skip_close(&r.skip);
	if (c->eval.paths.n)
		om_eval_close(&r.eval);
	om_data_close(&r.data);
	free(r.token);
	free(r.label);
	return done < c->steps ? OM_EXIT_STOPPED : 0;
}
