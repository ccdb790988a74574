/*
 * The command data: reads all of the data, as training will, and says what there is. Every token
 * is checked against the vocabulary, of which training looks at both ends of a file first.
 */
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "tokenizer.h"

enum { SPANS = 64, PIECE = 1 << 16, SHOWN = 3, SHOWN_POINTS = 300 };

/* Documents by their length in tokens. */
struct lengths {
	bool known; /* for all files that are counted */
	uint64_t n, tokens, least, most;
	uint64_t span[SPANS], in[SPANS]; /* of at most 2^i tokens: documents, and tokens in them */
};

static void
count(void *arg, uint64_t tokens)
{
	struct lengths *l = arg;
	int i = 0;

	while (i < SPANS - 1 && tokens > (uint64_t)1 << i)
		i++;
	l->least = l->n && l->least < tokens ? l->least : tokens;
	l->most = l->most > tokens ? l->most : tokens;
	l->n++;
	l->tokens += tokens;
	l->span[i]++;
	l->in[i] += tokens;
}

static void
add(struct lengths *to, const struct lengths *l)
{
	to->known = to->known && l->known;
	if (l->n)
		to->least = to->n && to->least < l->least ? to->least : l->least;
	to->most = to->most > l->most ? to->most : l->most;
	to->n += l->n;
	to->tokens += l->tokens;
	for (int i = 0; i < SPANS; i++) {
		to->span[i] += l->span[i];
		to->in[i] += l->in[i];
	}
}

/* Reads a file to its end; its documents end where its index says, or else with data.eos. */
static void
read_all(struct om_source *s, struct om_file *f, struct lengths *l)
{
	bool index = om_file_documents(s, f, count, l), eos = !index && s->eos != OM_NONE;
	int32_t *id = om_alloc(PIECE, sizeof *id), before = 0;
	unsigned char *is = om_alloc(PIECE, 1);
	uint64_t since = 0;

	for (uint64_t i = 0, n; i < f->tokens; i += n) {
		n = f->tokens - i < PIECE ? f->tokens - i : PIECE;
		om_tokens_read(s, f, i, (size_t)n, id);
		if (f->mask)
			om_mask_read(s, f, i, (size_t)n, is);
		for (uint64_t j = 0; eos && j < n; before = id[j++])
			if (i + j && om_document_ends(s, before, id[j])) {
				count(l, i + j - since);
				since = i + j;
			}
	}
	if (eos) /* a file's end is a document's */
		count(l, f->tokens - since);
	l->known = index || eos;
	free(id);
	free(is);
}

static void
row(uint64_t tokens, const struct lengths *l, const char *format, const char *path)
{
	printf("%18s", om_commas(tokens));
	if (l->known && l->n)
		printf(" %13s %9s %9s %11s", om_commas(l->n), om_commas(l->least),
		    om_number((double)l->tokens / (double)l->n, ".1f"), om_commas(l->most));
	else
		printf(" %13s %9s %9s %11s", "-", "-", "-", "-");
	printf("  %-16s %s\n", format, path);
	fflush(stdout); /* the next file may take long */
}

/* As much of a text as is shown, in quotes; what a terminal would obey by its number. */
static void
quote(const char *s, size_t n)
{
	static const char named[] = "\n\r\t\"\\", letters[] = "nrt\"\\";
	size_t count;
	uint32_t *c = om_utf8_all(s, n, &count);

	putchar('"');
	for (size_t i = 0; i < count && i < SHOWN_POINTS; i++) {
		const char *name = c[i] && c[i] < 128 ? strchr(named, (int)c[i]) : NULL;
		char text[OM_UTF8_MOST];

		if (name)
			printf("\\%c", letters[name - named]);
		else if (c[i] < ' ' || (c[i] >= 127 && c[i] < 0xA0))
			printf("\\u%04X", (unsigned)c[i]);
		else
			fwrite(text, 1, om_utf8_put(text, c[i]), stdout);
	}
	printf("\"%s\n", count > SHOWN_POINTS ? "..." : "");
	free(c);
}

/* What training begins with, as text. */
static void
first_sequences(struct om_data *d, struct om_tokenizer *t)
{
	int32_t *token = om_alloc(d->seq, sizeof *token), *label = om_alloc(d->seq, sizeof *label);

	printf("\nthe first sequences begin with\n");
	for (uint64_t g = 0; g < SHOWN && g < d->nseq; g++) {
		char *text;
		size_t size;
		FILE *f = open_memstream(&text, &size);

		om_data_read(d, g, token, label, NULL);
		for (uint64_t i = 0; i < d->seq && f; i++) {
			size_t n;
			const char *s = om_tokenizer_bytes(t, token[i], &n);

			if (s)
				fwrite(s, 1, n, f);
			else
				fprintf(f, "<%d>", (int)token[i]);
		}
		if (!f || fclose(f) != 0)
			om_die("memory", "cannot hold the text of a sequence");
		printf("%2llu  ", (unsigned long long)g + 1);
		quote(text, size);
		free(text);
	}
	free(token);
	free(label);
}

/* How fast sequences are read as training does it, for a second at most. */
static void
reading_rate(struct om_data *d)
{
	int32_t *token = om_alloc(d->seq, sizeof *token), *label = om_alloc(d->seq, sizeof *label),
		*first = d->masks ? om_alloc(d->seq, sizeof *first) : NULL;
	double began = om_now(), took;
	uint64_t g = 0;

	do
		om_data_read(d, g, token, label, first);
	while (++g < d->nseq && om_now() - began < 1);
	took = om_now() - began;
	printf("in the order of training: %s read in %s, %s tokens a second\n",
	    om_count(g, "sequence"), om_took(took),
	    om_commas((uint64_t)((double)(g * d->seq) / took)));
	free(token);
	free(label);
	free(first);
}

/*
 * How many tokens of an epoch have a label, as training will have it: by masks, ends of documents,
 * packing and the filter. Read in the order of the files, which disks like.
 */
static void
labels(struct om_data *d)
{
	int32_t *token = om_alloc(d->seq, sizeof *token), *label = om_alloc(d->seq, sizeof *label);
	uint64_t n = 0, repeated = 0, all = d->nseq * d->seq;

	if (d->order == OM_SHUFFLE)
		d->order = OM_SEQUENTIAL;
	for (uint64_t g = 0; g < d->nseq; g++) {
		repeated += om_data_read(d, g, token, label, NULL);
		for (uint64_t i = 0; i < d->seq; i++)
			n += label[i] >= 0;
	}
	printf("labels: %s of the %s of an epoch have one, %.1f%%", om_commas(n),
	    om_count(all, "token"), 100 * (double)n / (double)all);
	if (d->filter)
		printf("; the repetition filter leaves out %s", om_count(repeated, "sequence"));
	printf("\n");
	free(token);
	free(label);
}

/* Reads the files of a source, each a line; gives their bytes. */
static uint64_t
files(struct om_source *s, struct lengths *all)
{
	uint64_t bytes = 0;

	*all = (struct lengths){ .known = true };
	for (struct om_file *f = s->file; f < s->file + s->n; f++) {
		struct lengths l = { 0 };
		char format[32];

		read_all(s, f, &l);
		snprintf(format, sizeof format, "%s", om_key_word(OM_FORMATS, f->format));
		if (f->format >= OM_NPY)
			snprintf(format, sizeof format, "%s %sint%u",
			    om_key_word(OM_FORMATS, f->format), f->sign ? "" : "u", 8 * f->width);
		row(f->tokens, &l, format, f->path);
		add(all, &l);
		bytes += f->size;
	}
	return bytes;
}

/* A line for each source of a mix, of which the run takes so many sequences. */
static void
sources(const struct om_data *d, const struct lengths *of, uint64_t run)
{
	double parts = 0;

	for (uint32_t i = 0; i < d->nsources; i++)
		parts += (double)d->source[i].share.part;
	printf("\n%-16s %6s %18s %13s %8s %8s %15s %15s %8s%s\n", "source", "files", "tokens",
	    "documents", "asked", "given", "sequences",
	    d->unit == OM_OF_DOCUMENTS ? "documents taken" : "of them", "times",
	    run ? "  in the run" : "");
	for (uint32_t i = 0; i < d->nsources; i++) {
		const struct om_source *s = &d->source[i];
		uint64_t n = d->first[i + 1] - d->first[i];
		double times = om_source_times(s, (double)n);

		printf("%-16s %6u %18s %13s %7.2f%% %7.2f%% %15s %15s %8.2f", s->name, s->n,
		    om_commas(s->tokens), of[i].known ? om_commas(of[i].n) : "-",
		    100 * (double)s->share.part / parts, 100 * om_data_given(d, i),
		    om_commas(s->nseq), om_commas(s->drawn ? s->drawn : n), times);
		if (run)
			printf("  %10.2f", times * (double)run / (double)d->nseq);
		printf("\n");
	}
}

static void
one_set(const struct om_model *m, const struct om_conf *c, const struct om_set *set,
    struct om_tokenizer *t)
{
	struct lengths all = { .known = true }, *of;
	uint64_t bytes = 0, passed = 0,
		 run = set == &c->data ? om_steps_all(&c->plan, c->steps) : 0;
	struct om_data d;
	double began;

	om_data_open(&d, m, set, c->seed);
	of = om_alloc(d.nsources, sizeof *of);
	printf("%s: %s in %s, %s of %s\n", set->section, om_count(d.tokens, "token"),
	    om_count(d.files, "file"), om_count(d.nseq, "sequence"), om_count(d.seq, "token"));
	if (set == &c->data) {
		printf("an epoch is %.2f steps of %s", (double)d.nseq / (double)m->global,
		    om_count(m->global, "sequence"));
		if (run)
			printf(", %s are %.2f epochs", om_count(c->steps, "step"),
			    (double)run / (double)d.nseq);
		printf("\n");
	}
	om_data_say(&d, run);
	om_pack_say(&d);
	printf("\n%18s %13s %9s %9s %11s  %-16s %s\n", "tokens", "documents", "shortest", "mean",
	    "longest", "format", "file");
	began = om_now();
	for (uint32_t i = 0; i < d.nsources; i++) {
		bytes += files(&d.source[i], &of[i]);
		add(&all, &of[i]);
	}
	if (d.files > 1)
		row(d.tokens, &all, "", "in all");
	printf("read and checked in %s, %s a second\n", om_took(om_now() - began),
	    om_bytes((uint64_t)((double)bytes / (om_now() - began))));
	if (set == &c->data)
		reading_rate(&d);
	if (d.mix)
		sources(&d, of, run);
	if (all.n)
		printf("\n%18s %13s %9s %9s\n", "documents of", "documents", "share", "of tokens");
	for (int i = 0; i < SPANS && passed < all.n; passed += all.span[i++])
		if (passed + all.span[i])
			printf("up to %12s %13s %8.1f%% %8.1f%%\n", om_commas((uint64_t)1 << i),
			    om_commas(all.span[i]), 100 * (double)all.span[i] / (double)all.n,
			    100 * (double)all.in[i] / (double)(all.tokens ? all.tokens : 1));
	if (t)
		first_sequences(&d, t);
	if (d.gaps)
		labels(&d);
	free(of);
	om_data_close(&d);
}

int
om_survey(const struct om_model *m, const struct om_conf *c)
{
	struct om_set own = c->eval; /* without the sets beside it */
	struct om_tokenizer *t = NULL;
	struct om_quiz *q;

	own.nsources = 0;
	if (*c->tokenizer)
		t = om_tokenizer_need(c->data.section, c->tokenizer, m->vocab);
	one_set(m, c, &c->data, t);
	if (own.paths.n) {
		printf("\n");
		one_set(m, c, &own, t);
	}
	for (const struct om_set *s = c->eval.source; s < c->eval.source + c->eval.nsources; s++) {
		printf("\n");
		if (s->paths.n) {
			one_set(m, c, s, t);
			continue;
		}
		q = om_quiz_open(m, s, c->seed, t, NULL);
		om_quiz_say(q);
		om_quiz_close(q);
	}
	om_tokenizer_close(t);
	return 0;
}
