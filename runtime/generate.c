/*
 * trainer generate: goes on with a prompt, token by token, by the model's decode program, whose
 * caches keep what earlier tokens gave to attention. The prompt takes the same way.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "rng.h"
#include "tokenizer.h"

#define OPERATION "generate"
/* A vocabulary of bytes, and of so few more that they are marks beside them. */
enum { BYTES = 256, BYTES_END = 2 * BYTES };

struct om_next { /* a token that may come next */
	double z;
	int32_t id;
};

/* ---- one token ------------------------------------------------------------------------------- */

void
om_logits_after(
    const struct om_model *m, unsigned char *arena, int32_t token, uint64_t position, double *logit)
{
	int32_t at = (int32_t)position;
	float *narrow = (float *)logit; /* the front half; widened from its end */

	om_put(arena, m->decode_token_off, &token, sizeof token);
	om_put(arena, m->decode_position_off, &at, sizeof at);
	om_run(m, OM_RUN_DECODE, arena);
	om_get(arena, m->logits_off, logit, m->vocab * m->real);
	for (uint64_t i = m->real == sizeof *narrow ? m->vocab : 0; i-- > 0;) {
		float x;

		memcpy(&x, narrow + i, sizeof x);
		logit[i] = (double)x;
	}
}

/* The likelier one first; of equal ones the lower id. */
static int
by_logit(const void *a, const void *b)
{
	const struct om_next *x = a, *y = b;

	return x->z != y->z ? (x->z < y->z) - (x->z > y->z) : (x->id > y->id) - (x->id < y->id);
}

int32_t
om_choose(const struct om_sampling *s, uint64_t position, const double *logit, uint64_t vocab)
{
	struct om_philox r = om_philox(
	    (struct om_philox){ { (uint32_t)position, (uint32_t)(position >> 32) } }, s->seed);
	double u = (double)((((uint64_t)r.v[0] << 32) | r.v[1]) >> 11) * 0x1p-53, sum = 0;
	struct om_next *next;
	uint64_t n = 0, best = 0;
	int32_t id;

	for (uint64_t i = 1; i < vocab; i++)
		if (logit[i] > logit[best])
			best = i;
	if (s->temperature == 0)
		return (int32_t)best;
	next = om_alloc(vocab, sizeof *next);
	for (uint64_t i = 0; i < vocab; i++)
		next[i] = (struct om_next){ (logit[i] - logit[best]) / s->temperature, (int32_t)i };
	qsort(next, vocab, sizeof *next, by_logit);
	if (s->top_k && s->top_k < vocab)
		vocab = s->top_k;
	for (uint64_t i = 0; i < vocab; i++)
		sum += next[i].z = exp(next[i].z);
	/* the fewest that together have top_p of what is left, and from then on all there is */
	for (double p = 0; n < vocab && (!n || p < s->top_p * sum); n++)
		p += next[n].z;
	sum = 0;
	for (uint64_t i = 0; i < n; i++)
		sum += next[i].z;
	id = next[0].id;
	for (uint64_t i = 0; i < n && u >= 0; i++) { /* none with a probability of 0 */
		if (next[i].z > 0)
			id = next[i].id;
		u -= next[i].z / sum;
	}
	free(next);
	return id;
}

/* ---- the command ----------------------------------------------------------------------------- */

struct options {
	const char *prompt, *tokens, *tokenizer, *checkpoint;
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
	printf("Goes on with the prompt and prints what comes after it.\n\n");
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

/* The next of "1,2,3", and where it ends. */
static int32_t
read_token(const struct om_model *m, const struct options *o, uint64_t n, const char **s)
{
	char *end;
	unsigned long long id = strtoull(*s, &end, 10);

	if (**s < '0' || **s > '9' || (*end && (*end != ',' || !end[1])))
		om_die(OPERATION, "--tokens %s: must be whole numbers and commas, 1,2,3",
		    om_clip(o->tokens));
	if (id >= m->vocab)
		om_die(OPERATION, "--tokens: token %s is %.*s, the model's vocab_size is %s",
		    om_commas(n), (int)strspn(*s, "0123456789"), *s, om_commas(m->vocab));
	*s = *end ? end + 1 : end;
	return (int32_t)id;
}

/* The prompt's tokens, in room for a whole sequence; gives their number. */
static uint64_t
read_prompt(
    const struct om_model *m, const struct options *o, const struct om_tokenizer *t, int32_t *token)
{
	const char *s = o->prompt ? o->prompt : o->tokens;
	char why[OM_TOKENIZER_WHY];
	int32_t *encoded = NULL, id;
	uint64_t n = 0;
	size_t end;

	if (!o->prompt == !o->tokens)
		om_die(OPERATION, "needs a prompt: either --prompt TEXT or --tokens 1,2,3");
	if (o->prompt && !t && (m->vocab < BYTES || m->vocab >= BYTES_END))
		om_die(OPERATION,
		    "this model's %s tokens are not bytes; give --tokenizer PATH or --tokens "
		    "1,2,3",
		    om_commas(m->vocab));
	end = o->prompt ? strlen(o->prompt) : 0;
	if (o->prompt && t && !(encoded = om_tokenizer_encode(t, s, end, &end, why)))
		om_die(OPERATION, "--prompt: %s", why);
	for (; o->prompt ? n < end : *s; n++) {
		id = encoded     ? encoded[n]
		     : o->prompt ? (unsigned char)s[n]
				 : read_token(m, o, n, &s);
		if (n < m->seq)
			token[n] = id;
	}
	free(encoded);
	if (!n)
		om_die(OPERATION, "the prompt is empty; it needs one token at least");
	if (n >= m->seq)
		om_die(OPERATION,
		    "the prompt has %s tokens, the model's sequence_length is %s; give %s at most",
		    om_commas(n), om_commas(m->seq), om_commas(m->seq - 1));
	return n;
}

/*
 * A token's text, whole characters only; what has none by its number, and so all tokens where
 * tokens are asked for.
 */
static void
print(const struct options *o, struct om_tokenizer *t, struct om_held *held, int32_t id, bool first)
{
	char byte = (char)id;
	size_t n = 1;
	const char *s = t ? om_tokenizer_bytes(t, id, &n) : id < BYTES ? &byte : NULL;

	if (!t && !o->prompt) {
		printf(first ? "%d" : ",%d", (int)id);
	} else {
		om_utf8_print(stdout, held, s ? s : "", s ? n : 0, !s);
		if (!s)
			printf("<%d>", (int)id);
	}
	fflush(stdout);
}

int
om_generate(const struct om_model *m, int argc, char **argv)
{
	struct options o = {
		.checkpoint = ".", .stop = OM_NO_STEP, .sampling = { .temperature = 1, .top_p = 1 }
	};
	struct om_tokenizer *t = NULL;
	struct om_held held = { .n = 0 };
	int32_t *token;
	double *logit, before;
	unsigned char *arena;
	uint64_t prompt, n, end;
	int status;

	if ((status = read_options(&o, argc, argv)))
		return status;
	if (!m->decode)
		om_die(OPERATION,
		    "this trainer has no decode program: there are no kernels of it for target %s; "
		    "use a trainer of the same model for target cpu, which reads the same "
		    "checkpoints",
		    m->target);
	token = om_alloc(m->seq, sizeof *token);
	logit = om_alloc(m->vocab, sizeof *logit);
	if (o.tokenizer)
		t = om_tokenizer_need(OPERATION, o.tokenizer, m->vocab);
	n = prompt = read_prompt(m, &o, t, token);
	if (o.stop != OM_NO_STEP && o.stop >= m->vocab)
		om_die(OPERATION, "--stop %s: the model's vocab_size is %s", om_commas(o.stop),
		    om_commas(m->vocab));
	end = o.max_tokens && o.max_tokens < m->seq - n ? n + o.max_tokens : m->seq;
	om_device_start(o.threads);
	arena = om_arena_new(m);
	om_run(m, OM_RUN_INIT, arena);
	om_err_step(om_ckpt_weights_at(
	    m, o.checkpoint, "name its folder by --checkpoint DIR", arena, stderr));
	before = om_now();
	for (uint64_t i = 0; n < end && !ferror(stdout); i++) {
		om_logits_after(m, arena, token[i], i, logit);
		if (i + 1 < n)
			continue;
		for (uint64_t v = 0; v < m->vocab; v++)
			if (!isfinite(logit[v]))
				om_die(OPERATION,
				    "the logits after token %s are not finite: the weights are "
				    "spoilt; use an older checkpoint",
				    om_commas(i));
		token[n] = om_choose(&o.sampling, n, logit, m->vocab);
		print(&o, t, &held, token[n], n == prompt);
		if ((uint64_t)token[n++] == o.stop)
			break;
	}
	om_utf8_print(stdout, &held, "", 0, true);
	putchar('\n');
	fprintf(stderr, "generate: %s after %s, %s tokens/s\n", om_count(n - prompt, "token"),
	    om_commas(prompt), om_commas((uint64_t)((double)(n - 1) / (om_now() - before))));
	om_tokenizer_close(t);
	free(token);
	free(logit);
	return 0;
}
