/*
 * Multiple choice: questions of JSON lines, each with a context and what may follow it. A choice is
 * scored by the loss of its tokens behind those of the context, and the answer is the choice of the
 * least.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "tokenizer.h"

enum { CHOICES_MOST = 1024 /* of a question */ };

struct choice {
	size_t context, at;  /* its first tokens, of all */
	uint64_t before, n;  /* how many of the context, and of its own */
	uint64_t bytes;      /* of its text */
	uint64_t row, place; /* the sequence it is in, and where it begins there */
};
struct question {
	uint32_t first, n, answer; /* its choices */
};
struct om_quiz {
	const char *section;
	uint64_t seed;
	int32_t *token;
	size_t ntokens, room;
	struct choice *choice;
	uint32_t nchoices;
	struct question *question;
	uint32_t nquestions, files, crc;
	uint64_t rows, cut; /* sequences; choices whose context lost its beginning */
	bool bytes;         /* those of all texts are known */
};

/* Where the question that is read stands. */
struct reader {
	struct om_quiz *q;
	const struct om_model *m;
	struct om_tokenizer *t;
	const uint32_t *bytes; /* of each token's text, NULL: not known */
	const char *path;
	unsigned long long line;
};

#define WRONG(r, ...) wrong(r, om_text(__VA_ARGS__))
_Noreturn static void
wrong(const struct reader *r, const char *what)
{
	om_die(r->q->section, "%s:%llu: %s", r->path, r->line, what);
}

static void
put(struct om_quiz *q, int32_t id)
{
	if (q->ntokens == q->room) {
		q->room = q->room ? 2 * q->room : 1024;
		q->token = realloc(q->token, q->room * sizeof *q->token);
		if (!q->token)
			om_die("memory", "cannot hold %s", om_count(q->room, "token"));
	}
	q->token[q->ntokens++] = id;
}

/* A text's tokens; what the tokenizer puts before one is the context's, none is put behind. */
static void
put_text(struct reader *r, const char *what, const char *s, size_t n, bool context)
{
	char why[OM_TOKENIZER_WHY];
	int32_t *id;
	size_t count;

	if (!r->t && (r->m->vocab < OM_BYTES || r->m->vocab >= 2 * OM_BYTES))
		WRONG(r,
		    "%s is text, and this model's %s tokens are not bytes; set data.tokenizer, or "
		    "give lists of tokens",
		    what, om_commas(r->m->vocab));
	for (size_t i = 0; !r->t && i < n; i++)
		put(r->q, (unsigned char)s[i]);
	if (!r->t)
		return;
	if (!(id = om_tokenizer_encode(r->t, s, n, &count, why)))
		WRONG(r, "%s: %s", what, why);
	for (size_t i = context ? 0 : r->t->before.n; i < count - r->t->behind.n; i++)
		put(r->q, id[i]);
	free(id);
}

/* The tokens of a context or choice; gives how many, and the bytes of its text. */
static uint64_t
put_tokens(struct reader *r, const char *what, const json_t *x, bool context, uint64_t *bytes)
{
	const size_t from = r->q->ntokens;

	*bytes = json_string_length(x);
	if (json_is_string(x))
		put_text(r, what, json_string_value(x), json_string_length(x), context);
	else if (!json_is_array(x))
		WRONG(r, "%s must be a text or a list of tokens", what);
	for (size_t i = 0; i < json_array_size(x); i++) {
		const uint64_t id = om_json_whole(json_array_get(x, i));

		if (id >= r->m->vocab)
			WRONG(r, "%s[%zu] is no token below vocab_size = %s", what, i,
			    om_commas(r->m->vocab));
		put(r->q, (int32_t)id);
		*bytes += r->bytes ? r->bytes[id] : 0;
	}
	if (r->q->ntokens == from)
		WRONG(r, "%s has no tokens%s", what,
		    context ? "; give it one, as the token that begins a text" : "");
	return r->q->ntokens - from;
}

static void
read_question(struct reader *r, const json_t *x)
{
	struct om_quiz *q = r->q;
	const json_t *choices = json_object_get(x, "choices"), *bytes = json_object_get(x, "bytes");
	const size_t n = json_array_size(choices), context = q->ntokens;
	const uint64_t answer = om_json_whole(json_object_get(x, "answer"));
	uint64_t none, before;

	if (!json_object_get(x, "context"))
		WRONG(r, "context is missing, a text or a list of tokens");
	if (n < 2 || n > CHOICES_MOST)
		WRONG(
		    r, "choices must be a list of 2 to %d texts or lists of tokens", CHOICES_MOST);
	if (answer >= n)
		WRONG(r, "answer must be a whole number from 0 to %zu, the place of the right one",
		    n - 1);
	if (bytes && json_array_size(bytes) != n)
		WRONG(r, "bytes must be a list of %zu numbers, one a choice", n);
	before = put_tokens(r, "context", json_object_get(x, "context"), true, &none);
	q->question = realloc(q->question, (q->nquestions + 1) * sizeof *q->question);
	q->choice = realloc(q->choice, (q->nchoices + n) * sizeof *q->choice);
	if (!q->question || !q->choice)
		om_die("memory", "cannot hold %s", om_count(q->nquestions + 1, "question"));
	q->question[q->nquestions++] =
	    (struct question){ q->nchoices, (uint32_t)n, (uint32_t)answer };
	for (size_t i = 0; i < n; i++) {
		struct choice *c = &q->choice[q->nchoices++];
		char *what = om_text("choices[%zu]", i);

		*c = (struct choice){ .context = context, .at = q->ntokens, .before = before };
		c->n = put_tokens(r, what, json_array_get(choices, i), false, &c->bytes);
		if (c->n > r->m->seq)
			WRONG(r, "%s has %s, the model's sequence_length is %s", what,
			    om_count(c->n, "token"), om_commas(r->m->seq));
		if (bytes)
			c->bytes = om_json_whole(json_array_get(bytes, i));
		if (bytes && (!c->bytes || c->bytes > OM_PLACES))
			WRONG(r, "bytes[%zu] must be a whole number from 1 on", i);
		q->bytes = q->bytes && c->bytes;
		free(what);
	}
}

static void
read_file(struct reader *r, const char *path)
{
	struct om_quiz *q = r->q;
	const uint32_t before = q->nquestions;
	char why[OM_JSON_WHY];
	size_t n;
	char *text = om_file_read(path, OM_JSON_MOST, &n);

	if (!text)
		om_die(q->section, "%s: %s; correct %s.questions", path, om_file_why(), q->section);
	q->crc = om_crc32c(q->crc, text, n);
	r->path = path;
	r->line = 1;
	for (size_t at = 0, len; at < n; at += len + 1, r->line++) {
		const char *end = memchr(text + at, '\n', n - at);
		json_t *x;

		len = end ? (size_t)(end - text) - at : n - at;
		if (strspn(text + at, " \t\r") >= len)
			continue;
		if (!(x = om_json_parse(text + at, len, why)))
			WRONG(r,
			    "%s; a line is {\"context\": ..., \"choices\": [...], \"answer\": 0}",
			    why);
		read_question(r, x);
		json_decref(x);
	}
	if (q->nquestions == before)
		om_die(q->section, "%s: has no questions, which are lines of JSON", path);
	free(text);
}

/*
 * Where each choice goes: of a model that masks documents into sequences with others, one behind
 * the other. The last token of a choice is a label alone.
 */
static void
lay_out(struct om_quiz *q, const struct om_model *m)
{
	uint64_t row = 0, place = 0;

	for (struct choice *c = q->choice; c < q->choice + q->nchoices; c++) {
		if (c->before + c->n - 1 > m->seq) {
			const uint64_t cut = c->before + c->n - 1 - m->seq;

			c->context += cut;
			c->before -= cut;
			q->cut++;
		}
		if (place && (!m->document_off || place + c->before + c->n - 1 > m->seq)) {
			row++;
			place = 0;
		}
		c->row = row;
		c->place = place;
		place += c->before + c->n - 1;
	}
	q->rows = row + 1;
}

struct om_quiz *
om_quiz_open(const struct om_model *m, const struct om_set *set, uint64_t seed,
    struct om_tokenizer *t, const uint32_t *bytes)
{
	struct om_quiz *q = om_alloc(1, sizeof *q);
	struct reader r = { .q = q, .m = m, .t = t, .bytes = bytes };

	*q = (struct om_quiz){ .section = set->section, .seed = seed, .bytes = true };
	for (uint32_t i = 0; i < set->questions.n; i++)
		read_file(&r, set->questions.a[i]);
	q->files = set->questions.n;
	lay_out(q, m);
	return q;
}

uint32_t
om_quiz_crc(const struct om_quiz *q)
{
	return q->crc;
}

void
om_quiz_say(const struct om_quiz *q)
{
	uint64_t most = 0;

	for (const struct choice *c = q->choice; c < q->choice + q->nchoices; c++)
		most = c->before + c->n > most ? c->before + c->n : most;
	printf("%s: %s in %s, %s in %s, of %s at most", q->section,
	    om_count(q->nquestions, "question"), om_count(q->files, "file"),
	    om_count(q->nchoices, "choice"), om_count(q->rows, "sequence"),
	    om_count(most, "token"));
	if (q->cut)
		printf("; the context of %s is cut to that", om_count(q->cut, "choice"));
	printf("\n");
}

/* The first choice from which on a sequence has them. */
static const struct choice *
first_of(const struct om_quiz *q, uint64_t row)
{
	uint32_t from = 0, to = q->nchoices;

	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (q->choice[mid].row < row)
			from = mid + 1;
		else
			to = mid;
	}
	return q->choice + from;
}

/*
 * A sequence. What is behind its choices repeats it, so that experts have there what they have
 * elsewhere, and has no labels.
 */
static void
fill(const struct om_quiz *q, uint64_t row, uint64_t seq, int32_t *token, int32_t *label,
    int32_t *first)
{
	const struct choice *end = q->choice + q->nchoices;
	uint64_t used = 0;

	memset(label, -1, seq * sizeof *label);
	for (const struct choice *c = first_of(q, row); c < end && c->row == row; c++)
		for (uint64_t i = 0; i < c->before + c->n - 1; i++) {
			token[used] = i < c->before ? q->token[c->context + i]
						    : q->token[c->at + i - c->before];
			if (i + 1 >= c->before)
				label[used] = q->token[c->at + i + 1 - c->before];
			first[used++] = (int32_t)c->place;
		}
	for (uint64_t i = used; i < seq; i++) {
		token[i] = used ? token[i % used] : 0;
		first[i] = (int32_t)used;
	}
}

/* Adds to the losses of choices those of the microbatch that ran last. */
static void
add_up(const struct om_quiz *q, const struct om_model *m, const unsigned char *arena, uint64_t row,
    void *score, double *loss)
{
	const struct choice *end = q->choice + q->nchoices;

	om_get(arena, m->score_off, score, m->micro * m->seq * m->real);
	for (const struct choice *c = first_of(q, row); c < end && c->row < row + m->micro; c++)
		for (uint64_t i = 0; i < c->n; i++) {
			const uint64_t at = (c->row - row) * m->seq + c->place + c->before - 1 + i;

			loss[c - q->choice] += m->real == 4 ? (double)((const float *)score)[at]
							    : ((const double *)score)[at];
		}
}

/* Which choice has the least loss over its length; of equal ones the first. NaN is not less. */
static uint32_t
best_of(const struct om_quiz *q, const struct question *x, const double *loss, int by)
{
	uint32_t best = UINT32_MAX;
	double least = INFINITY;

	for (uint32_t i = 0; i < x->n; i++) {
		const struct choice *c = &q->choice[x->first + i];
		const double length[] = { 1, (double)c->n, (double)c->bytes };
		const double y = loss[x->first + i] / length[by];

		if (y < least) {
			least = y;
			best = i;
		}
	}
	return best;
}

static void
sum_up(const struct om_quiz *q, const double *loss, struct om_score *s)
{
	const double n = (double)q->nquestions;

	s->questions = q->nquestions;
	s->bytes = q->bytes;
	for (const struct question *x = q->question; x < q->question + q->nquestions; x++) {
		const struct choice *right = &q->choice[x->first + x->answer];
		const double own = loss[x->first + x->answer];
		double others = 0;

		for (int by = 0; by < OM_BY; by++)
			s->right[by] += best_of(q, x, loss, by) == x->answer ? 1 / n : 0;
		for (uint32_t i = 0; i < x->n; i++)
			others += exp(own - loss[x->first + i]);
		s->probability += 1 / others / n;
		s->loss += own / (double)right->n / n;
		s->bits += own / log(2) / (double)right->bytes / n;
	}
}

bool
om_quiz_run(const struct om_quiz *q, const struct om_model *m, unsigned char *arena,
    const volatile sig_atomic_t *stop, struct om_score *s)
{
	const uint64_t n = m->micro * m->seq, round = m->micro * om_size(OM_DATA);
	const uint64_t rounds = (q->rows + round - 1) / round;
	const uint64_t often = om_size(OM_PIPELINE) > 1 ? 8 : 1;
	int32_t *token = om_alloc(3 * n, sizeof *token), *label = token + n, *first = label + n;
	double *loss = om_alloc(q->nchoices, sizeof *loss);
	void *score = om_alloc(n, m->real);
	bool stopped = false;

	om_ctl_write(m, arena, 0, 1, NULL, m->global * m->seq, m->global);
	om_run(m, OM_RUN_ZERO, arena);
	for (uint64_t i = 0; i < rounds; i++) {
		const uint64_t row = om_ahead_sequence(m, i * round, 0);

		if (i % often == 0 && (stopped = om_any("evaluation", *stop)))
			break;
		for (uint64_t j = 0; j < m->micro; j++)
			fill(q, row + j, m->seq, token + j * m->seq, label + j * m->seq,
			    first + j * m->seq);
		om_draw_write(m, arena, q->seed, row);
		om_put(arena, m->token_off, token, n * sizeof *token);
		om_put(arena, m->label_off, label, n * sizeof *label);
		om_documents_put(m, arena, first);
		om_run_forward(m, arena);
		if (m->score_off)
			add_up(q, m, arena, row, score, loss);
	}
	om_run_forward_end(m, arena);
	om_all_sum_f64(OM_WORLD, "losses of choices", loss, q->nchoices);
	sum_up(q, loss, s);
	free(token);
	free(loss);
	free(score);
	return !stopped;
}

void
om_quiz_close(struct om_quiz *q)
{
	if (!q)
		return;
	free(q->token);
	free(q->choice);
	free(q->question);
	free(q);
}
