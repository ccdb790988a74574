/*
 * Text to tokens and back, as Hugging Face's tokenizers does by a tokenizer.json of byte-level BPE.
 * Knows nothing of models. What a file asks for and is not here is refused when it is opened.
 */
#ifndef OM_TOKENIZER_H
#define OM_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "json.h"

enum { OM_TOKENIZER_WHY = OM_JSON_WHY };

/* ---- tokenizer.c, tokenizer_file.c ----------------------------------------------------------- */

struct om_tokenizer;
/*
 * Reads a tokenizer.json whose tokens are below vocab. NULL: why says what is wrong, and where in
 * the file: by line and column, or as "pre_tokenizer.pretokenizers[1].behavior".
 */
struct om_tokenizer *
om_tokenizer_open(const char *path, uint64_t vocab, char why[OM_TOKENIZER_WHY]);
/* The same, and what is wrong ends the process. */
struct om_tokenizer *om_tokenizer_need(const char *operation, const char *path, uint64_t vocab);
void om_tokenizer_close(struct om_tokenizer *t); /* which may be NULL */
/*
 * The tokens of n bytes of text, *count of them; free() it. With what the file puts before and
 * behind. Bytes that are not UTF-8 count as U+FFFD. NULL: why says what cannot be done.
 */
int32_t *om_tokenizer_encode(const struct om_tokenizer *t, const char *s, size_t n, size_t *count,
    char why[OM_TOKENIZER_WHY]);
/*
 * The bytes of a token, *n of them, which need not be whole characters; they stand until the next
 * call. NULL: no token has this number.
 */
const char *om_tokenizer_bytes(struct om_tokenizer *t, int32_t id, size_t *n);

/* What reading a file (tokenizer_file.c) and using it share. */
enum {
	OM_BYTES = 256,
	OM_ALPHABET = 512,   /* code points that stand for bytes are below */
	OM_SPLITS_MOST = 32, /* of the pre-tokenizer */
	OM_AFFIX_MOST = 64   /* tokens that are put before or behind a text */
};
struct om_splitter {            /* of the pre-tokenizer */
	struct om_split *split; /* NULL: all is one piece */
	bool matches;           /* what is between matches is dropped */
	bool space;             /* a piece that begins with no space gets one */
	bool last;              /* ByteLevel: then pieces are merged */
};
struct om_added { /* a token that is found in the text as it is */
	uint32_t *c;
	size_t n;
	int32_t id;
	bool single_word, lstrip, rstrip, normalized, special;
};
struct om_merge {
	uint64_t key;
	uint32_t rank; /* from 1; 0: none is here */
	int32_t id;
};
struct om_affix {
	int32_t id[OM_AFFIX_MOST];
	size_t n;
};
struct om_tokenizer {
	json_t *file, *vocab;
	const char **text;         /* of each token, NULL: none; in the file's memory */
	uint64_t size;             /* the greatest token, plus 1 */
	uint32_t letter[OM_BYTES]; /* code point that stands for a byte, */
	int byte[OM_ALPHABET];     /* and back, -1 */
	int32_t byte_id[OM_BYTES]; /* -1: no token */
	char *bytes;               /* of one token */
	bool nfc, ignore_merges;
	struct om_splitter step[OM_SPLITS_MOST];
	size_t nsteps;
	struct om_added *added;
	size_t nadded;
	struct om_affix before, behind;
	struct om_merge *merge; /* a hash table */
	size_t merges, merge_mask;
};
/* The token with this text, in letters that stand for bytes; -1: none. */
int32_t om_tokenizer_find(const struct om_tokenizer *t, const char *text);
static inline uint64_t
om_merge_key(int32_t left, int32_t right)
{
	return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}
/* Where the merge of two tokens is, or may be put. */
struct om_merge *om_tokenizer_merge(const struct om_tokenizer *t, int32_t left, int32_t right);

/* ---- split.c: the regular expressions of tokenizers ------------------------------------------ */

struct om_split;
/*
 * Compiles a pattern for code points, with Oniguruma's meaning; what is not of the part of its
 * language that tokenizers are written in is refused. NULL: why says what, and at which character.
 */
struct om_split *om_split_open(const char *pattern, char why[OM_TOKENIZER_WHY]);
void om_split_close(struct om_split *s);
/* Where the search goes on; start with the text's length and zeros. */
struct om_found {
	size_t n, at;      /* of the text; where to look from */
	bool any;          /* there was a match before */
	size_t begin, end; /* the match */
	uint64_t steps;    /* done so far */
};
enum om_find { OM_FOUND, OM_NO_MORE, OM_TOO_LONG }; /* too long: by steps, not by size */
enum om_find om_split_next(const struct om_split *s, const uint32_t *text, struct om_found *f);

/* ---- unicode.c, unicode.def ------------------------------------------------------------------ */

/* General categories, marks and such in one; a bit each in masks. */
enum om_class {
	OM_CLASS_OTHER,
	OM_CLASS_LU,
	OM_CLASS_LL,
	OM_CLASS_LT,
	OM_CLASS_LM,
	OM_CLASS_LO,
	OM_CLASS_MARK,
	OM_CLASS_ND,
	OM_CLASS_NL,
	OM_CLASS_NO,
	OM_CLASS_PC,
	OM_CLASS_PUNCTUATION, /* without Pc */
	OM_CLASS_SYMBOL,
	OM_CLASS_SEPARATOR,
};
#define OM_CLASS_BIT(c) (1u << OM_CLASS_##c)
enum om_class om_class(uint32_t c);
bool om_is_space(uint32_t c); /* White_Space */
/*
 * Takes one code point from n > 0 bytes of UTF-8, gives how many bytes it has. Bytes that are none
 * are U+FFFD, as many at once as could begin a character. 0: these are the beginning of one.
 */
size_t om_utf8_get(const char *s, size_t n, uint32_t *c);
enum { OM_UTF8_MOST = 4, OM_UTF8_NONE = 0xFFFD };
size_t om_utf8_put(char s[OM_UTF8_MOST], uint32_t c); /* gives how many bytes it wrote */
/* All of n bytes; what they end in the midst of is U+FFFD too. *count code points; free() it. */
uint32_t *om_utf8_all(const char *s, size_t n, size_t *count);
/*
 * Text that comes in pieces: what may be the beginning of a character is held back until the rest
 * comes, so that only whole characters are printed. end: nothing more comes.
 */
struct om_held {
	char s[OM_UTF8_MOST];
	size_t n;
};
void om_utf8_print(FILE *f, struct om_held *h, const char *s, size_t n, bool end);
/* Normalization Form C of *n code points, *n of them then; free() it. */
uint32_t *om_nfc(const uint32_t *c, size_t *n);

#endif
