/*
 * trainer generate: goes on with prompts, as many at once as the trainer has rows for; where one
 * ends, the next one takes its row.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "om_rt.h"
#include "tokenizer.h"

#define OPERATION "generate"
/* A vocabulary of bytes, and of so few more that they are marks beside them. */
enum { BYTES = 256, BYTES_END = 2 * BYTES, PROMPTS_MOST = 100 << 20, WHERE = 200 };

/* ---- the command ----------------------------------------------------------------------------- */

struct options {
	const char *prompt, *tokens, *prompts, *tokenizer, *checkpoint;
	uint64_t max_tokens, top_k, stop, threads;
	struct om_sampling sampling;
};
enum { TEXT, WHOLE, NUMBER };
static const struct option {
	const char *name, *value;
	int kind;
	size_t at; /* in struct options */
	double min, max;
	const char *doc;
} options[] = {
#define AT(member) offsetof(struct options, member)
	{ "--prompt", "TEXT", TEXT, AT(prompt), 0, 0,
	    "goes on with this text, and prints text: of models of bytes, or by a tokenizer" },
	{ "--tokens", "1,2,3", TEXT, AT(tokens), 0, 0,
	    "goes on with these tokens, and prints tokens, or text if there is a tokenizer" },
	{ "--prompts", "PATH", TEXT, AT(prompts), 0, 0,
	    "goes on with all of a file, a line each, {\"prompt\": TEXT} or {\"tokens\": [1, 2]}, "
	    "and prints such lines" },
	{ "--tokenizer", "PATH", TEXT, AT(tokenizer), 0, 0,
	    "a tokenizer.json of Hugging Face's, byte-level BPE, of the model's tokens" },
	{ "--checkpoint", "DIR", TEXT, AT(checkpoint), 0, 0,
	    "a step directory, or that of all, whose newest it takes; default ." },
	{ "--max-tokens", "N", WHOLE, AT(max_tokens), 1, 1e9,
	    "ends after so many; default: at the model's sequence length" },
	{ "--stop", "ID", WHOLE, AT(stop), 0, 1e9, "ends after this token; default: none" },
	{ "--temperature", "T", NUMBER, AT(sampling.temperature), 0, 1000,
	    "divides the logits; 0: always the likeliest token; default 1" },
	{ "--top-k", "N", WHOLE, AT(sampling.top_k), 0, 1e9,
	    "then only the N likeliest; default 0: all" },
	{ "--top-p", "P", NUMBER, AT(sampling.top_p), 0, 1,
	    "then only the likeliest that make up P; default 1: all" },
	{ "--seed", "N", WHOLE, AT(sampling.seed), 0, 9007199254740992,
	    "another one gives another text; default 0" },
	{ "--threads", "N", WHOLE, AT(threads), 0, 4096, "default 0: all" },
#undef AT
};

void
om_generate_help(void)
{
	printf("Goes on with a prompt, or with several, and prints what comes after each.\n\n");
	for (size_t i = 0; i < OM_LEN(options); i++)
		printf("  %-14s %-6s %s\n", options[i].name, options[i].value, options[i].doc);
}

static int
unknown(const char *word)
{
	const char *near = NULL;
	uint32_t best = 4;

	for (size_t i = 0; i < OM_LEN(options); i++)
		if (om_distance(word, options[i].name) < best) {
			best = om_distance(word, options[i].name);
			near = options[i].name;
		}
	fprintf(stderr, "trainer: generate has no %s", om_clip(word));
	if (near)
		fprintf(stderr, ", did you mean %s?\n", near);
	else
		fprintf(stderr, "; trainer generate --help lists what it has\n");
	return OM_EXIT_USAGE;
}

static void
set(struct options *o, const struct option *k, const char *s)
{
	void *at = (char *)o + k->at;
	char *end;
	double x;

	if (k->kind == TEXT) {
		*(const char **)at = s;
		return;
	}
	errno = 0;
	x = strtod(s, &end);
	if (!*s || *end || errno ||
	    s[strspn(s, k->kind == WHOLE ? "0123456789" : "0123456789.eE+-")] ||
	    !(x >= k->min && x <= k->max))
		om_die(OPERATION, "%s %s: must be a %snumber from %.0f to %.0f", k->name,
		    om_clip(s), k->kind == WHOLE ? "whole " : "", k->min, k->max);
	if (k->kind == NUMBER)
		*(double *)at = x;
	else
		*(uint64_t *)at = strtoull(s, NULL, 10);
}

/* Reads "--name value" and "--name=value"; 0, or the exit status. */
static int
read_options(struct options *o, int argc, char **argv)
{
	bool seen[OM_LEN(options)] = { false };

	for (int i = 0; i < argc; i++) {
		const char *eq = strchr(argv[i], '='), *value = eq ? eq + 1 : argv[i + 1];
		size_t n = eq ? (size_t)(eq - argv[i]) : strlen(argv[i]), k = 0;

		while (k < OM_LEN(options) &&
		       (strncmp(options[k].name, argv[i], n) != 0 || strlen(options[k].name) != n))
			k++;
		if (k == OM_LEN(options))
			return unknown(argv[i]);
		if (!value || seen[k]) {
			fprintf(stderr, "trainer: generate: %s %s\n", options[k].name,
			    value ? "is given twice" : "needs a value");
			return OM_EXIT_USAGE;
		}
		seen[k] = true;
		set(o, &options[k], value);
		i += !eq;
	}
	return 0;
}

/* ---- prompts --------------------------------------------------------------------------------- */

struct sequence {
	int32_t *token;      /* room for a whole one */
	uint64_t prompt, n;  /* tokens of the prompt; and all so far */
	uint64_t at;         /* of which the caches have so many */
	bool text;           /* text is what is wanted of it */
	struct om_held held; /* of the text so far, the beginning of a character */
	char where[WHERE];   /* the option, or the file and line, that it is of, for messages */
};

/* One token more; those beyond a sequence's length are counted alone. */
static void
add(const struct om_model *m, struct sequence *s, int32_t id)
{
	if (s->prompt < m->seq)
		s->token[s->prompt] = id;
	s->prompt++;
}

static void
need_vocab(const struct om_model *m, const struct sequence *s, bool fits, const char *id, int n)
{
	if (!fits)
		om_die(OPERATION, "%s: token %s is %.*s, the model's vocab_size is %s", s->where,
		    om_commas(s->prompt), n, id, om_commas(m->vocab));
}

/* "1,2,3" */
static void
read_tokens(const struct om_model *m, struct sequence *q, const char *s)
{
	for (const char *all = s; *s;) {
		char *end;
		unsigned long long id = strtoull(s, &end, 10);

		if (*s < '0' || *s > '9' || (*end && (*end != ',' || !end[1])))
			om_die(OPERATION, "%s %s: must be whole numbers and commas, 1,2,3",
			    q->where, om_clip(all));
		need_vocab(m, q, id < m->vocab, s, (int)strspn(s, "0123456789"));
		add(m, q, (int32_t)id);
		s = *end ? end + 1 : end;
	}
}

static void
read_text(const struct om_model *m, struct sequence *q, const struct om_tokenizer *t, const char *s)
{
	char why[OM_TOKENIZER_WHY];
	int32_t *id = NULL;
	size_t n = strlen(s);

	q->text = true;
	if (!t && (m->vocab < BYTES || m->vocab >= BYTES_END))
		om_die(OPERATION,
		    "this model's %s tokens are not bytes; give --tokenizer PATH or --tokens "
		    "1,2,3",
		    om_commas(m->vocab));
	if (t && !(id = om_tokenizer_encode(t, s, n, &n, why)))
		om_die(OPERATION, "%s: %s", q->where, why);
	for (size_t i = 0; i < n; i++)
		add(m, q, id ? id[i] : (unsigned char)s[i]);
	free(id);
}

/* A line of a file of prompts. */
static void
read_line(const struct om_model *m, struct sequence *q, const struct om_tokenizer *t, const char *s,
    size_t n)
{
	char why[OM_JSON_WHY];
	json_t *line = om_json_parse(s, n, why);
	const json_t *text, *ids;

	if (!line)
		om_die(OPERATION, "%s: %s", q->where, why);
	text = json_object_get(line, "prompt");
	ids = json_object_get(line, "tokens");
	if (json_object_size(line) != 1 || !(json_is_string(text) || json_is_array(ids)))
		om_die(OPERATION, "%s: must be {\"prompt\": TEXT} or {\"tokens\": [1, 2, 3]}",
		    q->where);
	if (text)
		read_text(m, q, t, json_string_value(text));
	for (size_t i = 0; i < json_array_size(ids); i++) {
		const json_t *x = json_array_get(ids, i);
		uint64_t id = om_json_whole(x);
		char *shown = json_dumps(x, JSON_ENCODE_ANY);

		need_vocab(m, q, id < m->vocab, shown ? om_clip(shown) : "?", 80);
		free(shown);
		add(m, q, (int32_t)id);
	}
	json_decref(line);
}

static struct sequence *
new_sequence(const struct om_model *m, struct sequence **all, uint64_t *n)
{
	struct sequence *more = realloc(*all, (*n + 1) * sizeof *more);

	if (!more)
		om_die(OPERATION, "no memory for prompt %s", om_commas(*n));
	*all = more;
	more += (*n)++;
	*more = (struct sequence){ .token = om_alloc(m->seq, sizeof *more->token) };
	return more;
}

/* All prompts, their number in n. */
static struct sequence *
read_prompts(
    const struct om_model *m, const struct options *o, const struct om_tokenizer *t, uint64_t *n)
{
	struct sequence *all = NULL, *q;
	char *file = NULL;
	size_t bytes = 0, line = 1;

	*n = 0;
	if (!!o->prompt + !!o->tokens + !!o->prompts != 1)
		om_die(OPERATION,
		    "needs a prompt: either --prompt TEXT, --tokens 1,2,3 or --prompts PATH");
	if (o->prompts && !(file = om_file_or_pipe_read(o->prompts, PROMPTS_MOST, &bytes)))
		om_die(OPERATION, "--prompts %s: %s", o->prompts, om_file_why());
	for (size_t i = 0, len; i < bytes; i += len + 1, line++) {
		const char *end = memchr(file + i, '\n', bytes - i);

		len = end ? (size_t)(end - file) - i : bytes - i;
		if (strspn(file + i, " \t\r") >= len)
			continue;
		q = new_sequence(m, &all, n);
		snprintf(q->where, sizeof q->where, "%s:%zu", om_clip(o->prompts), line);
		read_line(m, q, t, file + i, len);
	}
	free(file);
	if (o->prompts && !*n)
		om_die(OPERATION, "--prompts %s: there is none in it", o->prompts);
	if (!o->prompts) {
		q = new_sequence(m, &all, n);
		snprintf(q->where, sizeof q->where, o->prompt ? "--prompt" : "--tokens");
		if (o->prompt)
			read_text(m, q, t, o->prompt);
		else
			read_tokens(m, q, o->tokens);
	}
	for (q = all; q < all + *n; q++) {
		const char *in = o->prompts ? q->where : "", *colon = o->prompts ? ": " : "";

		if (!q->prompt)
			om_die(OPERATION, "%s%sthe prompt is empty; it needs one token at least",
			    in, colon);
		if (q->prompt >= m->seq)
			om_die(OPERATION,
			    "%s%sthe prompt has %s tokens, the model's sequence_length is %s; give "
			    "%s at most",
			    in, colon, om_commas(q->prompt), om_commas(m->seq),
			    om_commas(m->seq - 1));
		q->n = q->prompt;
	}
	return all;
}

/* ---- what is printed ------------------------------------------------------------------------- */

/* A token's text, whole characters only; what has none by its number. */
static void
print_text(FILE *f, struct om_tokenizer *t, struct om_held *held, int32_t id)
{
	char byte = (char)id;
	size_t n = 1;
	const char *s = t ? om_tokenizer_bytes(t, id, &n) : id < BYTES ? &byte : NULL;

	om_utf8_print(f, held, s ? s : "", s ? n : 0, !s);
	if (!s)
		fprintf(f, "<%d>", (int)id);
}

/* A token of the one prompt, as it comes. */
static void
print_token(struct om_tokenizer *t, struct sequence *q)
{
	int32_t id = q->token[q->n - 1];

	if (t || q->text)
		print_text(stdout, t, &q->held, id);
	else
		printf(q->n == q->prompt + 1 ? "%d" : ",%d", (int)id);
	fflush(stdout);
}

/* What came after a prompt of several. */
static void
print_line(struct om_tokenizer *t, struct sequence *q)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		om_die(OPERATION, "no memory for the text of %s", q->where);
	printf("{\"tokens\": [");
	for (uint64_t i = q->prompt; i < q->n; i++) {
		printf(i == q->prompt ? "%d" : ", %d", (int)q->token[i]);
		if (t || q->text)
			print_text(f, t, &q->held, q->token[i]);
	}
	om_utf8_print(f, &q->held, "", 0, true);
	fclose(f);
	printf("]");
	if (t || q->text) {
		printf(", \"text\": ");
		om_json_string(stdout, text);
	}
	printf("}\n");
	fflush(stdout);
	free(text);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* The next token of each row, into token; -1: its logits are not finite. */
static void
choose(const struct om_model *m, const struct options *o, unsigned char *arena,
    const struct om_row *row, const uint64_t *of, uint64_t n, double *logit, int32_t *token)
{
	struct om_sampling sampling = o->sampling;

	if (sampling.temperature == 0) {
		om_likeliest_after(m, arena, row, n, token);
		return;
	}
	om_logits_after(m, arena, row, n, logit);
	for (uint64_t i = 0; i < n; i++) {
		bool finite = true;

		for (uint64_t v = 0; v < m->vocab; v++)
			finite &= isfinite(logit[i * m->vocab + v]) != 0;
		sampling.sequence = (uint32_t)of[row[i].sequence];
		token[i] = finite ? om_choose(&sampling, (uint64_t)row[i].position + 1,
					logit + i * m->vocab, m->vocab)
				  : -1;
	}
}

/* A sequence goes on by a token; false: it was the last one. */
static bool
go_on(const struct om_model *m, const struct options *o, struct sequence *q, int32_t token)
{
	uint64_t most = m->seq - q->prompt;

	if (token < 0)
		om_die(OPERATION,
		    "the logits after token %s are not finite: the weights are spoilt; use an "
		    "older checkpoint",
		    om_commas(q->n - 1));
	q->token[q->n++] = token;
	most = o->max_tokens && o->max_tokens < most ? o->max_tokens : most;
	return (uint64_t)token != o->stop && q->n - q->prompt < most;
}

/* Goes on with all of them; gives the number of tokens that came. */
static uint64_t
generate(const struct om_model *m, const struct options *o, unsigned char *arena,
    struct om_tokenizer *t, struct sequence *all, uint64_t nall)
{
	uint64_t room = m->decode.n, next = 0, ended = 0, came = 0, n;
	uint64_t *of = om_alloc(room, sizeof *of); /* the sequence of each row, nall: none */
	bool *over = om_alloc(nall, sizeof *over);
	struct om_row *row = om_alloc(room, sizeof *row);
	double *logit = om_alloc(room * m->vocab, sizeof *logit);
	int32_t *token = om_alloc(room, sizeof *token);
	struct om_prompt *begun = om_alloc(room, sizeof *begun);

	for (uint64_t r = 0; r < room; r++)
		of[r] = nall;
	while (ended < nall && !ferror(stdout)) {
		n = 0;
		for (uint64_t r = 0; r < room; r++) {
			struct sequence *q;

			if (of[r] < nall || next == nall)
				continue;
			q = &all[of[r] = next++];
			if (m->prompt.run)
				q->at = q->prompt - 1;
			begun[n++] = (struct om_prompt){ q->token, q->at, (uint32_t)r };
		}
		if (m->prompt.run)
			om_prompts_put(m, arena, begun, n);
		n = 0;
		for (uint64_t r = 0; r < room; r++) {
			struct sequence *q;

			if (of[r] == nall)
				continue;
			q = &all[of[r]];
			row[n++] = (struct om_row){ q->token[q->at], (int32_t)q->at, (int32_t)r };
			q->at++;
		}
		choose(m, o, arena, row, of, n, logit, token);
		for (uint64_t i = 0; i < n; i++) {
			uint64_t *r = &of[row[i].sequence];
			struct sequence *q = &all[*r];

			if (q->at < q->prompt)
				continue;
			over[*r] = !go_on(m, o, q, token[i]);
			came++;
			if (!o->prompts)
				print_token(t, q);
			if (over[*r])
				*r = nall;
		}
		for (; ended < nall && over[ended]; ended++)
			if (o->prompts)
				print_line(t, &all[ended]);
	}
	free(of);
	free(over);
	free(row);
	free(logit);
	free(token);
	free(begun);
	return came;
}

int
om_generate(const struct om_model *m, int argc, char **argv)
{
	struct options o = {
		.checkpoint = ".", .stop = OM_NO_STEP, .sampling = { .temperature = 1, .top_p = 1 }
	};
	struct om_tokenizer *t = NULL;
	struct sequence *all;
	double before;
	unsigned char *arena;
	uint64_t nall, came, prompts = 0;
	int status;

	if ((status = read_options(&o, argc, argv)))
		return status;
	if (!m->decode.run)
		om_die(OPERATION,
		    "this trainer has no decode program: there are no kernels of it for target %s; "
		    "use a trainer of the same model for target cpu, which reads the same "
		    "checkpoints",
		    m->target);
	if (o.tokenizer)
		t = om_tokenizer_need(OPERATION, o.tokenizer, m->vocab);
	all = read_prompts(m, &o, t, &nall);
	if (o.stop != OM_NO_STEP && o.stop >= m->vocab)
		om_die(OPERATION, "--stop %s: the model's vocab_size is %s", om_commas(o.stop),
		    om_commas(m->vocab));
	om_device_start(o.threads);
	arena = om_arena_new(m);
	om_run(m, OM_RUN_INIT, arena);
	om_err_step(om_ckpt_weights_at(
	    m, o.checkpoint, "name its folder by --checkpoint DIR", OM_OWN_WEIGHTS, arena, stderr));
	for (uint64_t i = 0; i < nall; i++)
		prompts += all[i].prompt;
	before = om_now();
	came = generate(m, &o, arena, t, all, nall);
	if (!o.prompts) {
		om_utf8_print(stdout, &all->held, "", 0, true);
		putchar('\n');
	}
	fprintf(stderr, "generate: %s after %s, %s tokens/s\n", om_count(came, "token"),
	    om_commas(prompts), om_commas((uint64_t)((double)came / (om_now() - before))));
	om_tokenizer_close(t);
	for (uint64_t i = 0; i < nall; i++)
		free(all[i].token);
	free(all);
	return 0;
}
