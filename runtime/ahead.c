/*
 * Microbatches are read in a thread of its own while those before them are computed, so that no
 * step waits for the disk. What belongs together, a step's or an evaluation's round, is a batch;
 * there is one in use and one that is being read. An error ends the run where its batch is asked
 * for, as if it were read then.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "om_rt.h"

enum { BATCHES = 2 };

struct om_ahead {
	struct om_data *data;
	const struct om_model *m;
	const struct om_steps *steps; /* NULL: a microbatch each */
	uint64_t left, end, sequences;
	struct om_batch batch[BATCHES];
	uint64_t next;  /* the next to be asked for; those before the last one are given back */
	uint64_t ready; /* those before it have been read */
	bool stop;
	char *lost;          /* why the batch `ready` cannot be read, NULL: it can */
	const char *section; /* of run.yaml that it is of */
	jmp_buf out;
	bool threaded;
	pthread_t thread;
	pthread_mutex_t lock; /* of next, ready, stop and lost */
	pthread_cond_t moved;
};

uint64_t
om_ahead_sequence(const struct om_model *m, uint64_t place, uint64_t i)
{
	return place + (i * om_size(OM_DATA) + om_rank(OM_DATA)) * m->micro;
}

/* Reads this rank's microbatches of a batch. */
static void
fill(struct om_ahead *a, uint64_t batch)
{
	const struct om_model *m = a->m;
	struct om_batch *b = &a->batch[batch % BATCHES];
	const uint64_t round = m->micro * om_size(OM_DATA);

	b->place = a->left + (a->steps ? om_steps_all(a->steps, batch) : batch * round);
	b->microbatches = a->steps ? om_steps_size(a->steps, batch + 1) / round : 1;
	b->labels = b->repeated = b->bytes = 0;
	for (uint64_t i = 0; i < b->microbatches; i++)
		for (uint64_t j = 0; j < m->micro; j++) {
			uint64_t g = om_ahead_sequence(m, b->place, i) + j;
			int32_t *token = b->token + (i * m->micro + j) * m->seq,
				*label = b->label + (i * m->micro + j) * m->seq;
			int32_t *first = b->first ? b->first + (i * m->micro + j) * m->seq : NULL;

			if (g < a->sequences) {
				b->repeated += om_data_read(a->data, g, token, label, first);
			} else {
				memset(token, 0, m->seq * sizeof *token);
				memset(label, -1, m->seq * sizeof *label);
				if (first)
					memset(first, 0, m->seq * sizeof *first);
			}
			for (uint64_t k = 0; k < m->seq; k++)
				if (label[k] >= 0) {
					b->labels++;
					b->bytes += a->data->bytes ? a->data->bytes[label[k]] : 0;
				}
		}
}

/* The thread that waits for the data ends the run: it alone can save what was done. */
static void
tell(void *arg, const char *section, const char *what)
{
	struct om_ahead *a = arg;

	pthread_mutex_lock(&a->lock);
	a->lost = om_text("%s", what);
	a->section = section;
	pthread_cond_signal(&a->moved);
	pthread_mutex_unlock(&a->lock);
	longjmp(a->out, 1);
}

static void *
read_on(void *arg)
{
	struct om_ahead *a = arg;

	prctl(PR_SET_NAME, "om-data");
	om_spin_apart(true);
	if (setjmp(a->out)) {
		om_spin_apart(false);
		return NULL;
	}
	pthread_mutex_lock(&a->lock);
	while (!a->stop && a->ready < a->end) {
		/* of the batches before next, the last one is in use */
		if (a->ready + 1 - a->next == BATCHES) {
			pthread_cond_wait(&a->moved, &a->lock);
			continue;
		}
		pthread_mutex_unlock(&a->lock);
		fill(a, a->ready);
		pthread_mutex_lock(&a->lock);
		a->ready++;
		pthread_cond_signal(&a->moved);
	}
	pthread_mutex_unlock(&a->lock);
	om_spin_apart(false);
	return NULL;
}

struct om_ahead *
om_ahead_start(struct om_data *d, const struct om_model *m, const struct om_steps *steps,
    uint64_t left, uint64_t first, uint64_t end, uint64_t sequences)
{
	const uint64_t tokens = (steps ? m->microbatches : 1) * m->micro * m->seq;
	struct om_ahead *a = om_alloc(1, sizeof *a);
	sigset_t all, old;

	*a = (struct om_ahead){ .data = d,
		.m = m,
		.steps = steps,
		.left = left,
		.end = end,
		.sequences = sequences,
		.next = first,
		.ready = first };
	for (int i = 0; i < BATCHES; i++) {
		a->batch[i].token = om_alloc(tokens, sizeof(int32_t));
		a->batch[i].label = om_alloc(tokens, sizeof(int32_t));
		if (m->document_off)
			a->batch[i].first = om_alloc(tokens, sizeof(int32_t));
	}
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->moved, NULL);
	d->tell = tell;
	d->told = a;
	/* signals are for the thread that trains: their handlers end what it waits for */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	a->threaded = pthread_create(&a->thread, NULL, read_on, a) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!a->threaded) /* the machine makes no more: data are read when they are asked for */
		d->tell = NULL;
	return a;
}

const struct om_batch *
om_ahead_next(struct om_ahead *a)
{
	const double began = om_now();
	const uint64_t batch = a->next;
	struct om_batch *b = &a->batch[batch % BATCHES];

	pthread_mutex_lock(&a->lock);
	a->next++;
	if (!a->threaded)
		fill(a, a->ready++);
	pthread_cond_signal(&a->moved);
	while (a->ready == batch && !a->lost)
		pthread_cond_wait(&a->moved, &a->lock);
	if (a->ready == batch)
		om_data_lost(a->data, a->section, a->lost);
	pthread_mutex_unlock(&a->lock);
	b->waited = om_now() - began;
	return b;
}

void
om_ahead_stop(struct om_ahead *a)
{
	pthread_mutex_lock(&a->lock);
	a->stop = true;
	pthread_cond_signal(&a->moved);
	pthread_mutex_unlock(&a->lock);
	if (a->threaded)
		pthread_join(a->thread, NULL);
	a->data->tell = NULL;
	for (int i = 0; i < BATCHES; i++) {
		free(a->batch[i].token);
		free(a->batch[i].label);
		free(a->batch[i].first);
	}
	pthread_mutex_destroy(&a->lock);
	pthread_cond_destroy(&a->moved);
	free(a->lost);
	free(a);
}
