/*
 * The part of om_rt.h, which includes it, about data: what a file is, its tokens, sources of
 * them, how much of each is taken, in which order, and reading ahead.
 */
#ifndef OM_DATA_H
#define OM_DATA_H

struct om_list; /* of run.yaml, in om_rt.h */
struct om_set;

/* ---- filetype.c: what a file is by its first bytes ------------------------------------------- */

struct om_npy {
	uint32_t width; /* bytes a token: 1, 2, 4 or 8 */
	bool sign;      /* they may be negative */
	bool truth;     /* they are true or false */
	uint64_t tokens;
	size_t head; /* bytes before the first token */
	bool whole;  /* of what is not read: they are whole numbers, which can be converted */
};
bool om_is_npy(const unsigned char *p, size_t n); /* by its magic */
/* Reads the header in p[n]; NULL, or what is wrong with it (a static text). */
const char *om_npy_parse(const unsigned char *p, size_t n, struct om_npy *npy);
/* What a file with these first n bytes is, if it holds no plain tokens, and what to do; or NULL. */
const char *om_filetype_known(const unsigned char *p, size_t n, uint64_t size);
bool om_is_text(const unsigned char *p, size_t n); /* printable ASCII, too much for chance */
uint64_t om_number_at(const unsigned char *p, uint32_t width); /* little-endian */
/* Whether numbers of this width are halves of wider ones: every second is 0, all along. */
bool om_is_wider(const unsigned char *p, size_t n, uint32_t width);
/* Whether all of them may be tokens of the vocabulary, and are not halves of wider ones. */
bool om_tokens_fit(const unsigned char *p, size_t n, uint32_t width, uint64_t vocab);

/* ---- mix.c: how much of each source a mix takes ---------------------------------------------- */

__extension__ typedef unsigned __int128 om_wide;
#define OM_SHARE_MOST ((uint64_t)1 << 48) /* of a source's size, and its part */
struct om_share {                         /* of one source, in the unit of the mix */
	double weight, repeat;
	uint64_t size;  /* what it has */
	uint64_t limit; /* what an epoch of the mix may take of it */
	uint64_t part;  /* its weight as a whole number: all are to the same scale */
	uint64_t take;  /* what an epoch of the mix takes of it */
};
void om_mix_limits(struct om_share *s, uint32_t n); /* sets limit and part; some part is not 0 */
/*
 * Then take, of a mix of this size; 0: as much as there is. false: not all are within their limits,
 * which the greatest size, *most, would leave them in.
 */
bool om_mix_takes(struct om_share *s, uint32_t n, uint64_t size, uint64_t *most);

/* ---- tokens.c, source.c, rng.h, data.c: what is read ----------------------------------------- */

struct om_file {
	char *path;
	int fd;         /* -1: not open now */
	int format;     /* enum om_filetype, but not OM_AUTO */
	uint32_t width; /* bytes a token */
	bool sign;
	uint64_t head, size, tokens, first; /* first: index of its first token in the stream */
	struct om_file *mask;               /* a byte a token, 0: it is no label; NULL: all are */
};
struct om_source {            /* files that are one stream of tokens */
	struct om_data *data; /* that it is of */
	const char *section;  /* of run.yaml, for messages */
	const char *key;      /* in it, of the files that are looked for */
	int format;
	uint64_t eos, bos, vocab;
	struct om_file *file;
	uint32_t n, cap, crc; /* crc: of all sizes, first and last bytes, to tell data sets apart */
	uint64_t tokens, nseq;
	struct om_pack *pack; /* NULL: sequences are cut from the stream */
	/* of a mix */
	const char *name;
	struct om_share share;
	/* of a mix of documents */
	uint64_t *document; /* [documents + 1] first token of each, of the files' */
	uint64_t documents;
	uint64_t drawn; /* of these the stream is made, one by one; 0: it is that of the files */
	uint64_t *mark; /* tokens of the stream before every 16th that is drawn */
	uint32_t row;   /* of om_permute, by which they are drawn; OM_IN_ORDER: as they lie */
};
struct om_data { /* sources, and the order in which a run reads their sequences */
	struct om_source *source;
	uint32_t nsources, files, crc;
	uint64_t
	    *first; /* [nsources + 1] sequences of an epoch that sources before this one give */
	uint64_t tokens, nseq; /* of all; sequences of an epoch */
	uint64_t seq, vocab, seed;
	uint64_t
	    block; /* sequences that follow one another wherever they are shuffled to, 1: none */
	const char *section;
	int order, packing, unit;
	char *mix; /* what is taken of each source: "7 of 5, 3 of 9 sequences"; NULL: it is none */
	uint64_t *seen; /* [nsources] sequences that were counted; checkpoints keep a mix's */
	bool filter, cut, masks;      /* masks: the model wants to know documents */
	bool gaps;                    /* some tokens may have no label */
	const struct om_steps *steps; /* by which places are left out; NULL: none are */
	const uint32_t *bytes;        /* of text that each token is; NULL: it is not asked */
	int32_t *ids;                 /* one sequence and the token after it */
	bool *begins;                 /* of these: it is the first of a document */
	unsigned char *is;            /* whether each is a label */
	/* before data that cannot be read end the run: saves what is there, and says so */
	char *(*rescue)(void *arg);
	void *arg;
	/* where another thread than that reads them: tells it what is wrong, and does not return */
	void (*tell)(void *told, const char *section, const char *what);
	void *told;
};
struct om_place {
	uint32_t source;
	uint64_t sequence; /* of that source's stream: tokens from sequence * seq on */
};
/* Ends the run, after a rescue; section: of run.yaml. */
_Noreturn void om_data_lost(const struct om_data *d, const char *section, const char *what);
bool om_ends(const char *s, const char *with); /* and does not only consist of it */
/* Format, size and token count of a file; what is no tokens ends the run before it has begun. */
void om_file_inspect(struct om_source *s, struct om_file *f);
/* The same of f's mask. */
void om_mask_inspect(struct om_source *s, struct om_file *f);
/* Whether an index of Megatron's lies beside that .bin. */
bool om_is_megatron(struct om_source *s, const char *path);
/* n tokens of f from its token i, checked against the vocabulary. */
void om_tokens_read(struct om_source *s, struct om_file *f, uint64_t i, size_t n, int32_t *id);
/* Of n tokens of f from its token i: whether each is a label, 0 or 1. */
void om_mask_read(struct om_source *s, struct om_file *f, uint64_t i, size_t n, unsigned char *is);
/* Gives the tokens of each of a file's documents, in order; false: it does not know them. */
bool om_file_documents(
    struct om_source *s, struct om_file *f, void (*each)(void *arg, uint64_t tokens), void *arg);
/*
 * Where its index says that documents begin among its n tokens from `from` on, NULL: nowhere is
 * asked for; false: it does not know.
 */
bool om_file_begins(struct om_source *s, struct om_file *f, uint64_t from, size_t n, bool *begins);
/* Finds the files of a set, and looks at each. */
void om_source_open(struct om_source *s, struct om_data *d, const struct om_set *set);
void om_source_close(struct om_source *s);
/* Finds its documents: each ends where its file's index says, or else by eos, and with the file. */
void om_source_documents(struct om_source *s);
/* Its stream is now so many documents, drawn by a row of permutations of all. */
#define OM_IN_ORDER UINT32_MAX
void om_source_draw(struct om_source *s, uint64_t drawn, uint32_t row);
/* How many times over it is read by so many sequences of its stream. */
double om_source_times(const struct om_source *s, double sequences);
/*
 * n tokens of its stream from token `at` on; is: whether each is a label; begins: which begin a
 * document, NULL: it is not asked.
 */
void om_source_read(
    struct om_source *s, uint64_t at, size_t n, int32_t *id, unsigned char *is, bool *begins);
void
om_data_open(struct om_data *d, const struct om_model *m, const struct om_set *set, uint64_t seed);
void om_data_close(struct om_data *d);
void om_data_rest(struct om_data *d); /* closes files until they are read again */
/* What is read at place g of the run, epoch after epoch. */
struct om_place om_data_place(const struct om_data *d, uint64_t g);
/*
 * Its sequence: token[S]; label[S], where label[i] = token[i+1] or -1, all -1, and true, where it
 * repeats itself and such are filtered; and where the model masks documents first[S], which may be
 * NULL: of each token the place in the sequence of the first one of its document.
 */
bool om_data_read(struct om_data *d, uint64_t g, int32_t *token, int32_t *label, int32_t *first);
/* The share of a mix that a source has. */
double om_data_given(const struct om_data *d, uint32_t source);
/* Prints what a mix takes of its sources, and what a run of so many sequences makes of repeat. */
void om_data_say(const struct om_data *d, uint64_t sequences);
/* Counts n places of the run from g on in seen. */
void om_data_count(const struct om_data *d, uint64_t g, uint64_t n);
/* Where index i < n goes in the order of (seed, row, epoch): a bijection of [0, n). */
uint64_t om_permute(uint64_t seed, uint32_t row, uint64_t epoch, uint64_t n, uint64_t i);

/* ---- pack.c: documents packed into sequences ------------------------------------------------- */

struct om_pack {
	uint64_t most; /* tokens of a sequence */
	bool fragment; /* longer documents are divided, and otherwise cut off */
	/* [n + 1] of each piece in the source's stream: a document, or part of one */
	uint64_t *start;
	uint64_t n, cap, documents, tokens, sequences; /* tokens: in sequences */
	uint32_t *piece, *first; /* pieces of one sequence after the other; [sequences + 1] */
};
/* A plan: the documents of a stream, one after the other, and then where each goes. */
void om_pack_add(struct om_pack *p, uint64_t tokens);
void om_pack_fit(struct om_pack *p);
void om_pack_free(struct om_pack *p);
uint64_t om_pack_length(const struct om_pack *p, uint64_t piece);
/* Prints what the plans of a run's data come to. */
void om_pack_say(const struct om_data *d);
/* Finds a source's documents, and makes its plan. */
void om_pack_open(struct om_source *s);
/*
 * A sequence of it, as om_source_read gives one, and how many tokens it has: its rest is data.eos
 * and has no labels.
 */
uint64_t
om_pack_read(struct om_source *s, uint64_t sequence, int32_t *id, unsigned char *is, bool *begins);

/* ---- labels.c: which tokens of a sequence have a label --------------------------------------- */

/* Whether some 1 to 13 of its n tokens stand 32 times behind one another. */
bool om_repeats(const int32_t *id, uint64_t n);

/* ---- steps.c: which of a run's data each step takes ------------------------------------------ */

struct om_ramp {
	uint64_t until, sequences; /* a step, up to and with that one */
};
struct om_range {
	uint64_t first, end;
};
struct om_steps {
	uint64_t global;      /* sequences of a step behind the ramp */
	struct om_ramp *ramp; /* of the steps before, rising */
	uint32_t nramp;
	struct om_range *gap; /* places of the run's data that no step takes, rising and apart */
	uint32_t ngaps;
};
/* Of the lists of run.yaml; NULL, or why one of them is wrong, free() it: *which list. */
char *om_steps_read(struct om_steps *s, const struct om_model *m, const struct om_list *sizes,
    const struct om_list *skips, const struct om_list **which);
uint64_t om_steps_size(const struct om_steps *s, uint64_t step); /* sequences of it, from 1 */
uint64_t om_steps_all(const struct om_steps *s, uint64_t step);  /* of it and all before it */
/* Where the g-th sequence that steps take stands among all that there are. */
uint64_t om_steps_place(const struct om_steps *s, uint64_t g);
/* The gaps that so many read sequences have come by, as "[first, end], ..."; free() it. */
char *om_steps_gaps(const struct om_steps *s, uint64_t read);
void om_steps_free(struct om_steps *s);

/* ---- ahead.c: microbatches, read before they are asked for ----------------------------------- */

/* This rank's microbatches of a step, or of a round of an evaluation. */
struct om_batch {
	uint64_t place, microbatches; /* where it begins in the run or evaluation, how many it is */
	int32_t *token, *label;       /* [microbatches][micro][seq] */
	int32_t *first;    /* the same, as om_data_read; NULL: the model masks no documents */
	uint64_t labels;   /* how many there are, -1 is none */
	uint64_t bytes;    /* of their text, where the data know it */
	uint64_t repeated; /* sequences that repeat themselves and have no labels */
	double waited;     /* seconds, until it was there */
};
struct om_ahead;
/*
 * Begins to read batches [first, end): of step first + 1 and so on, behind `left` sequences that
 * are left out; steps NULL: of an evaluation, a microbatch each. Sequences from `sequences` on are
 * not there: they fill the last batch, have no labels and count nothing.
 */
struct om_ahead *om_ahead_start(struct om_data *d, const struct om_model *m,
    const struct om_steps *steps, uint64_t left, uint64_t first, uint64_t end, uint64_t sequences);
/* The next batch, which stands until the one after it is asked for. */
const struct om_batch *om_ahead_next(struct om_ahead *a);
void om_ahead_stop(struct om_ahead *a);
/*
 * The place in the run, or in the evaluation, of the first sequence of this rank's microbatch i of
 * a batch that begins there: microbatches are dealt to data ranks in turn, so all layouts have the
 * same.
 */
uint64_t om_ahead_sequence(const struct om_model *m, uint64_t place, uint64_t i);

#endif
