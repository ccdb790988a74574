/* Loss on held-out data: in a run between steps, and as a command of its own. */
#include "om_rt.h"

void
om_eval_open(struct om_eval *e, const struct om_model *m, const struct om_conf *c)
{
	*e = (struct om_eval){ .sequences = c->eval_sequences };
	om_data_open(&e->data, m, &c->eval, c->seed);
	if (!e->sequences || e->sequences > e->data.nseq)
		e->sequences = e->data.nseq;
}

void
om_eval_close(struct om_eval *e)
{
	om_data_close(&e->data);
}

bool
om_eval_run(struct om_eval *e, const struct om_model *m, unsigned char *arena,
    const volatile sig_atomic_t *stop, double *loss, uint64_t *tokens)
{
	const size_t bytes = m->micro * m->seq * sizeof(int32_t);
	const uint64_t round = m->micro * om_size(OM_DATA); /* each data rank a microbatch */
	/* all stop at the same place; to agree empties a pipeline */
	const uint64_t often = om_size(OM_PIPELINE) > 1 ? 8 : 1;
	const uint64_t rounds = (e->sequences + round - 1) / round;
	struct om_ahead *ahead = om_ahead_start(&e->data, m, 1, 0, rounds, e->sequences);
	bool stopped = false;
	int64_t labels = 0;

	/* how many labels there are is known at the end: here nothing is weighted */
	om_ctl_write(m, arena, 0, 1, NULL, m->global * m->seq);
	om_run(m, OM_RUN_ZERO, arena); /* a step begins with it too, so it disturbs none */
	for (uint64_t n = 0; n < rounds; n++) {
		const struct om_batch *b;

		if (n % often == 0 && (stopped = om_any("evaluation", *stop)))
			break;
		b = om_ahead_next(ahead);
		labels += (int64_t)b->labels;
		om_draw_write(m, arena, e->data.seed, om_ahead_sequence(m, 1, n, 0));
		om_put(arena, m->token_off, b->token, bytes);
		om_put(arena, m->label_off, b->label, bytes);
		om_documents_put(m, arena, b->first);
		om_run_forward(m, arena);
	}
	om_ahead_stop(ahead);
	om_all_sum_i64(OM_DATA, "labels of an evaluation", &labels, 1);
	if (!labels && !stopped)
		om_data_lost(&e->data, e->data.section,
		    "no token has a label, and there is no loss; correct eval.label_mask_paths, "
		    "data.cut_labels or data.repetition_filter, or raise eval.sequences");
	*tokens = (uint64_t)labels;
	/* the model divides by a step's tokens */
	*loss = om_run_forward_end(m, arena) * (double)(m->global * m->seq) / (double)labels;
	return !stopped;
}

int
om_eval(const struct om_model *m, struct om_conf *c)
{
	static const volatile sig_atomic_t never;
	unsigned char *arena;
	struct om_eval e;
	struct om_log log;
	uint64_t step, tokens;
	double loss, before;

	om_eval_open(&e, m, c);
	om_device_start(c->threads);
	arena = om_arena_new(m);
	om_run(m, OM_RUN_INIT, arena);
	step = om_ckpt_weights(m, c, arena, stdout);
	om_err_step(step);
	om_log_open(&log, m, NULL, NULL, c, step);
	before = om_now();
	om_eval_run(&e, m, arena, &never, &loss, &tokens);
	om_log_eval(&log, step, loss, tokens, om_now() - before);
	om_log_close(&log);
	om_eval_close(&e);
	return 0;
}
