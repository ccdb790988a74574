/* Sets that a model is measured on: in a run between steps, and as a command of its own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "tokenizer.h"

struct om_eval_set {
	struct om_score score; /* of the last evaluation */
	struct om_quiz *quiz;  /* NULL: of tokens */
	struct om_data data;
	uint64_t sequences;
};

/* Bytes of text that each token is, 0 of special ones; NULL: not known. free() it. */
static uint32_t *
bytes_of(const struct om_model *m, struct om_tokenizer *t)
{
	uint32_t *bytes = t || m->vocab < 2 * OM_BYTES ? om_alloc(m->vocab, sizeof *bytes) : NULL;
	size_t n;

	for (uint64_t i = 0; bytes && i < m->vocab; i++)
		if (!t)
			bytes[i] = i < OM_BYTES;
		else if (om_tokenizer_bytes(t, (int32_t)i, &n))
			bytes[i] = (uint32_t)n;
	for (size_t i = 0; t && i < t->nadded; i++)
		if (t->added[i].special)
			bytes[t->added[i].id] = 0;
	return bytes;
}

/* Without a tokenizer only raw bytes are text. */
static bool
is_text(const struct om_data *d, const struct om_tokenizer *t)
{
	const struct om_source *s = d->source;

	for (uint32_t i = 0; !t && i < s->n; i++)
		if (s->file[i].format != OM_RAW)
			return false;
	return true;
}

static void
open_set(struct om_eval *e, struct om_eval_set *x, const struct om_model *m,
    const struct om_set *set, uint64_t seed, struct om_tokenizer *t)
{
	x->score.set = set->name;
	if (set->questions.n) {
		x->quiz = om_quiz_open(m, set, seed, t, e->bytes);
		return;
	}
	om_data_open(&x->data, m, set, seed);
	x->data.bytes = is_text(&x->data, t) ? e->bytes : NULL;
	x->sequences = set->sequences;
	if (!x->sequences || x->sequences > x->data.nseq)
		x->sequences = x->data.nseq;
}

void
om_eval_open(struct om_eval *e, const struct om_model *m, const struct om_conf *c)
{
	struct om_set own = c->eval; /* without the sets beside it */
	struct om_tokenizer *t =
	    *c->tokenizer ? om_tokenizer_need("data", c->tokenizer, m->vocab) : NULL;

	own.nsources = 0;
	*e = (struct om_eval){ .average = c->eval_of == OM_AVERAGE_WEIGHTS,
		.n = (own.paths.n > 0) + c->eval.nsources };
	e->set = om_alloc(e->n, sizeof *e->set);
	e->bytes = bytes_of(m, t);
	if (own.paths.n)
		open_set(e, e->set, m, &own, c->seed, t);
	for (uint32_t i = 0; i < c->eval.nsources; i++)
		open_set(
		    e, &e->set[e->n - c->eval.nsources + i], m, &c->eval.source[i], c->seed, t);
	om_tokenizer_close(t);
	for (uint32_t i = 0; i < e->n; i++) {
		const struct om_eval_set *x = &e->set[i];
		const uint64_t same[] = { x->data.tokens, x->data.crc,
			x->quiz ? om_quiz_crc(x->quiz) : 0 };

		om_agree("data of evaluations", same, sizeof same);
	}
}

void
om_eval_close(struct om_eval *e)
{
	for (uint32_t i = 0; i < e->n; i++) {
		if (!e->set[i].quiz)
			om_data_close(&e->set[i].data);
		om_quiz_close(e->set[i].quiz);
	}
	free(e->set);
	free(e->bytes);
}

void
om_eval_rescue(struct om_eval *e, char *(*rescue)(void *arg), void *arg)
{
	for (uint32_t i = 0; i < e->n; i++) {
		e->set[i].data.rescue = rescue;
		e->set[i].data.arg = arg;
	}
}

/* Mean token loss; false: *stop came to some rank, nothing is known. */
static bool
run_tokens(struct om_eval_set *x, const struct om_model *m, unsigned char *arena,
    const volatile sig_atomic_t *stop)
{
	enum { LABELS, BYTES, SUMS };
	struct om_score *s = &x->score;
	const size_t bytes = m->micro * m->seq * sizeof(int32_t);
	const uint64_t round = m->micro * om_size(OM_DATA); /* each data rank a microbatch */
	/* all stop at the same place; to agree empties a pipeline */
	const uint64_t often = om_size(OM_PIPELINE) > 1 ? 8 : 1;
	const uint64_t rounds = (x->sequences + round - 1) / round;
	struct om_ahead *ahead = om_ahead_start(&x->data, m, NULL, 0, 0, rounds, x->sequences);
	bool stopped = false;
	int64_t sum[SUMS] = { 0 };

	/* how many labels there are is known at the end: here nothing is weighted */
	om_ctl_write(m, arena, 0, 1, NULL, m->global * m->seq, m->global);
	om_run(m, OM_RUN_ZERO, arena); /* a step begins with it too, so it disturbs none */
	for (uint64_t n = 0; n < rounds; n++) {
		const struct om_batch *b;

		if (n % often == 0 && (stopped = om_any("evaluation", *stop)))
			break;
		b = om_ahead_next(ahead);
		sum[LABELS] += (int64_t)b->labels;
		sum[BYTES] += (int64_t)b->bytes;
		om_draw_write(m, arena, x->data.seed, om_ahead_sequence(m, b->place, 0));
		om_put(arena, m->token_off, b->token, bytes);
		om_put(arena, m->label_off, b->label, bytes);
		om_documents_put(m, arena, b->first);
		om_run_forward(m, arena);
	}
	om_ahead_stop(ahead);
	om_all_sum_i64(OM_DATA, "labels of an evaluation", sum, SUMS);
	if (!sum[LABELS] && !stopped)
		om_data_lost(&x->data, x->data.section,
		    "no token has a label, and there is no loss; correct its label_mask_paths, "
		    "data.cut_labels or data.repetition_filter, or raise eval.sequences");
	s->tokens = (uint64_t)sum[LABELS];
	/* the model divides by a step's tokens */
	s->loss = om_run_forward_end(m, arena) * (double)(m->global * m->seq) / (double)s->tokens;
	s->bytes = x->data.bytes && sum[BYTES];
	s->bits = s->loss * (double)s->tokens / (double)sum[BYTES] / log(2);
	return !stopped;
}

bool
om_eval_run(struct om_eval *e, const struct om_model *m, unsigned char *arena,
    const volatile sig_atomic_t *stop, struct om_log *log, uint64_t step)
{
	const struct om_score **score = om_alloc(e->n, sizeof *score);
	bool whole = true;

	if (e->average)
		om_average_swap(m, arena, true);
	for (uint32_t i = 0; i < e->n && whole; i++) {
		struct om_eval_set *x = &e->set[i];
		const double before = om_now();

		x->score = (struct om_score){ .set = x->score.set };
		whole = x->quiz ? om_quiz_run(x->quiz, m, arena, stop, &x->score)
				: run_tokens(x, m, arena, stop);
		x->score.seconds = om_now() - before;
		score[i] = &x->score;
	}
	if (e->average)
		om_average_swap(m, arena, false);
	if (whole)
		om_log_eval(log, step, score, e->n);
	free(score);
	return whole;
}

int
om_eval(const struct om_model *m, struct om_conf *c, int npaths, char **path)
{
	static const volatile sig_atomic_t never;
	uint64_t step = 0, size = 0;
	char *list = om_ckpt_list(npaths, path, &size);
	unsigned char *arena;
	struct om_eval e;
	struct om_log log;

	om_eval_open(&e, m, c);
	om_device_start(c->threads);
	arena = om_arena_new(m);
	om_run(m, OM_RUN_INIT, arena);
	for (const char *at = list; at == list || at < list + size; at += strlen(at) + 1) {
		step = npaths ? om_ckpt_weights_at(m, at, "name another", c->eval_of, arena, stdout)
			      : om_ckpt_weights(m, c, arena, stdout);
		om_err_step(step);
		if (at == list)
			om_log_open(&log, m, NULL, NULL, c, step);
		om_eval_run(&e, m, arena, &never, &log, step);
		if (!npaths)
			break;
	}
	om_log_close(&log);
	om_eval_close(&e);
	free(list);
	return 0;
}
