/* The training loop. */
#include <math.h>
#include <omp.h>
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
om_threads(uint64_t n)
{
	if (n)
		omp_set_num_threads((int)n);
}

/* Writes the scalars of step 1, 2, ... */
void
om_ctl_write(const struct om_model *m, unsigned char *arena, double lr, uint64_t step)
{
	double ctl[OM_N_CTL] = { 0 };

	ctl[OM_LR] = lr;
	ctl[OM_BIAS1] = 1 - pow(m->beta1, (double)step);
	ctl[OM_BIAS2] = 1 - pow(m->beta2, (double)step);
	ctl[OM_COEF] = 1;
	om_put(arena, m->ctl_off, ctl, sizeof ctl);
}

struct run {
	const struct om_model *m;
	const struct om_conf *c;
	unsigned char *arena;
	struct om_data data;
	struct om_ckpt ckpt;
	struct om_log log;
	int32_t *token, *label; /* [micro * seq] */
};

/* Ends the run before anything is lost: this step's weights are those of the step before. */
static void
check_finite(struct run *r, double x, const char *what)
{
	char *last;

	if (isfinite(x))
		return;
	last = om_ckpt_newest(&r->ckpt);
	om_die(what,
	    "is %s, the step was not applied; lower lr.peak or raise lr.warmup, and resume from %s",
	    isnan(x) ? "nan" : "infinite", last ? last : "the start");
}

/* One step, from 1; gives its learning rate. */
static double
step_run(struct run *r, uint64_t step)
{
	const struct om_model *m = r->m;
	double lr = om_lr_at(&r->c->lr, step, r->c->steps);
	uint64_t g = (step - 1) * m->global;
	size_t bytes = m->micro * m->seq * sizeof(int32_t);

	om_ctl_write(m, r->arena, lr, step);
	m->zero(r->arena);
	for (uint64_t i = 0; i < m->microbatches; i++) {
		for (uint64_t j = 0; j < m->micro; j++, g++)
			om_data_read(&r->data, g, r->token + j * m->seq, r->label + j * m->seq);
		om_put(r->arena, m->token_off, r->token, bytes);
		om_put(r->arena, m->label_off, r->label, bytes);
		m->forward(r->arena, 0);
		m->backward(r->arena, 0);
	}
	check_finite(r, om_get_f64(r->arena, m->loss_off), "loss");
	m->update(r->arena);
	/* the update leaves weights alone where the norm is not finite */
	check_finite(r, om_get_f64(r->arena, m->ctl_off + 8 * OM_NORM2), "gradient norm");
	return lr;
}

static void
header(const struct run *r, uint64_t done, double start)
{
	const struct om_model *m = r->m;
	const struct om_data *d = &r->data;
	double epoch = (double)d->nseq / (double)m->global;

	printf("%s on %s: %s parameters (%s active), %s tokens a step, %d threads\n", m->name,
	    m->target, om_commas(m->params_total), om_commas(m->params_active),
	    om_commas(m->global * m->seq), omp_get_max_threads());
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
	struct sigaction act;

	memset(&act, 0, sizeof act);
	act.sa_handler = on_signal;
	act.sa_flags = SA_RESTART;
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGINT, &act, NULL);
}

int
om_train(const struct om_model *m, struct om_conf *c, double start)
{
	struct run r = { .m = m, .c = c };
	uint64_t done, saved, first;
	char *last;

	om_threads(c->threads);
	om_data_open(&r.data, m, c);
	om_ckpt_open(&r.ckpt, m, &r.data, c);
	r.arena = om_arena_new(m->arena_bytes);
	m->init(r.arena);
	r.token = om_alloc(m->micro * m->seq, sizeof *r.token);
	r.label = om_alloc(m->micro * m->seq, sizeof *r.label);
	done = saved = first = om_ckpt_resume(&r.ckpt, c, r.arena);
	if (!done)
		om_init_params(m, r.arena, c->seed);
	if (done == c->steps) {
		printf("done: all %s steps are done; raise steps to train on\n", om_commas(done));
	} else {
		om_log_open(&r.log, m, c, done);
		header(&r, done, start);
		catch_signals();
		while (done < c->steps && !stop) {
			double before = om_now(), lr;

			om_err_step(done + 1);
			lr = step_run(&r, done + 1);
			done++;
			om_log_step(&r.log, r.arena, done, lr, om_now() - before);
			if (r.ckpt.dir &&
			    (stop || done == c->steps || (c->every && done % c->every == 0))) {
				om_log_sync(&r.log); /* metrics reach as far as the checkpoint */
				om_ckpt_save(&r.ckpt, r.arena, done);
				saved = done;
			}
		}
		om_log_close(&r.log);
		last = om_ckpt_newest(&r.ckpt);
		printf("%s: step %s of %s, %s tokens in %s, loss %.4f, ", stop ? "stopped" : "done",
		    om_commas(done), om_commas(c->steps),
		    om_commas((done - first) * m->global * m->seq),
		    om_clock(om_now() - r.log.start), r.log.ce);
		if (saved == done && last)
			printf("checkpoint %s\n", last);
		else
			printf(
			    "no checkpoint%s\n", r.ckpt.dir ? "" : ": checkpoint.dir is not set");
		free(last);
	}
	om_ckpt_close(&r.ckpt);
	om_data_close(&r.data);
	free(r.token);
	free(r.label);
	return 0;
}
