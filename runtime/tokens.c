/*
 * One file of tokens: what formats there are, how each is recognised, and its tokens by number.
 *
 * Tokens are read by pread, not through a mapping: a file that shrinks under a mapping is a SIGBUS
 * in the middle of a step, while a short read is an error with a name. Both go through the page
 * cache, and a sequence is a few KiB.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "om_rt.h"

enum {
	BYTES = 256,
	U16_MOST = 65536, /* tokens that uint16 can tell apart */
	EDGE = 4096       /* bytes of a file's ends that are looked at before training */
};

bool
om_ends(const char *s, const char *with)
{
	size_t n = strlen(s), w = strlen(with);

	return n > w && strcmp(s + n - w, with) == 0;
}

_Noreturn void
om_data_lost(const struct om_data *d, const char *section, const char *what)
{
	char *kept = d->rescue ? d->rescue(d->arg) : NULL;

	om_die(section, "%s%s%s", what, kept ? "; " : "", kept ? kept : "");
}

/* An error in a file ends the run, but not what it has done. */
_Noreturn OM_PRINTF(3, 4) static void lost(
    const struct om_source *s, const struct om_file *f, const char *fmt, ...)
{
	char what[1024], *all;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	all = om_text("%s: %s", f->path, what);
	if (s->data->tell)
		s->data->tell(s->data->told, s->section, all);
	om_data_lost(s->data, s->section, all);
}

/* Opens a file if it isn't open; when descriptors run out, all others give theirs back. */
static void
file_open(struct om_source *s, struct om_file *f)
{
	uint64_t size;

	for (int try = 0; f->fd < 0; try++) {
		f->fd = om_open_regular(f->path, &size);
		if (f->fd >= 0)
			break;
		if (try || (errno != EMFILE && errno != ENFILE))
			lost(s, f, "%s; make it readable again", om_file_why());
		om_data_rest(s->data);
	}
}

static void
file_read(struct om_source *s, struct om_file *f, uint64_t off, void *p, size_t n)
{
	file_open(s, f);
	if (!om_pread_all(f->fd, p, n, off)) {
		if (errno)
			lost(s, f, "%s at byte %llu; check the disk", strerror(errno),
			    (unsigned long long)off);
		lost(s, f,
		    "ends before byte %llu, it had %s when training began; restore it and resume",
		    (unsigned long long)(off + n), om_commas(f->size));
	}
}

/* ---- NumPy arrays ---------------------------------------------------------------------------- */

/* Python that writes an array of whole numbers as tokens, or fails where one is none; free() it. */
static char *
conversion(const struct om_source *s, const struct om_file *f)
{
	bool plain = !f->path[strcspn(f->path, "'\"\\\n$`%")]; /* needs no quoting */

	return om_text("convert it, which keeps every value: python3 -c \"import numpy as np; a = "
		       "np.load('%s', mmap_mode='r').ravel(); assert 0 <= a.min() and a.max() < "
		       "%llu; np.save('tokens.npy', a.astype('<u%d'))\"",
	    plain ? f->path : "FILE", (unsigned long long)s->vocab, s->vocab <= U16_MOST ? 2 : 4);
}

/* Whether the file has the bytes that its header says, and any tokens. */
static void
check_size(const struct om_source *s, const struct om_file *f)
{
	if (f->tokens > (UINT64_MAX - f->head) / f->width ||
	    f->size != f->head + f->tokens * f->width)
		lost(s, f,
		    "its header says %s tokens, %s bytes in all, but it has %s; copy it again",
		    om_commas(f->tokens), om_commas(f->head + f->tokens * f->width),
		    om_commas(f->size));
	if (!f->tokens)
		lost(s, f, "holds no tokens; leave it out of %s.paths", s->section);
}

static bool
npy_is(struct om_source *s, struct om_file *f, const unsigned char *head, size_t n)
{
	(void)s, (void)f;
	return om_is_npy(head, n);
}

static void
npy_read(struct om_source *s, struct om_file *f, const unsigned char *head, size_t n)
{
	struct om_npy h;
	const char *why = om_npy_parse(head, n, &h);

	if (why)
		lost(s, f, "%s%s%s", why, h.whole ? "; " : "", h.whole ? conversion(s, f) : "");
	if (h.truth)
		lost(s, f,
		    "holds true and false, not tokens; a mask of labels is one of "
		    "%s.label_mask_paths",
		    s->section);
	f->width = h.width;
	f->sign = h.sign;
	f->head = h.head;
	f->tokens = h.tokens;
	check_size(s, f);
}

/* Says what a file may be that is to be a NumPy array and has no header. */
_Noreturn static void
npy_lacks(const struct om_source *s, const struct om_file *f, const unsigned char *head, size_t n)
{
	bool named = om_ends(f->path, ".npy");
	char fit[64] = "";
	int some = 0;

	if (om_is_text(head, n))
		lost(s, f, "has no .npy header, it is text; %s",
		    named ? "give it another name" : "leave out the format npy");
	for (uint32_t width = 2; width <= 8; width *= 2)
		if (f->size % width == 0 && (width > 2 || s->vocab <= U16_MOST) &&
		    om_tokens_fit(head, n, width, s->vocab))
			sprintf(strchr(fit, 0), "%suint%u", some++ ? " or " : "", 8 * width);
	lost(s, f, "has no .npy header%s; set %s.format=%s%s",
	    named ? ", so it is tokens alone, as Dolma and OLMo-core write them under that name"
		  : "",
	    s->section, some ? fit : "uint16, uint32 or uint64",
	    some == 1 ? "" : ", as it was written");
}

/* ---- llm.c's files --------------------------------------------------------------------------- */

/*
 * As its data_common.py writes them: a header of 256 int32, of which the first three are a magic
 * number, a version and the number of tokens.
 */
enum { LLMC_HEAD = 1024 };
static const struct {
	uint32_t magic, version, width;
} llmc[] = { { 20240520, 1, 2 }, { 20240801, 7, 4 } };

/* The row of a file's magic number; OM_LEN(llmc): it has none of them. */
static size_t
llmc_row(const unsigned char *head, size_t n)
{
	size_t i = 0;

	if (n < 4)
		return OM_LEN(llmc);
	while (i < OM_LEN(llmc) && om_number_at(head, 4) != llmc[i].magic)
		i++;
	return i;
}

static bool
llmc_is(struct om_source *s, struct om_file *f, const unsigned char *head, size_t n)
{
	(void)s, (void)f;
	return llmc_row(head, n) < OM_LEN(llmc);
}

static void
llmc_read(struct om_source *s, struct om_file *f, const unsigned char *head, size_t n)
{
	size_t i = llmc_row(head, n);

	if (n < LLMC_HEAD)
		lost(s, f, "ends within its header of 1,024 bytes, at byte %zu; copy it again", n);
	if (om_number_at(head + 4, 4) != llmc[i].version)
		lost(s, f,
		    "is a data file of llm.c, of version %llu (byte 4); with magic number %u, %u "
		    "is read",
		    (unsigned long long)om_number_at(head + 4, 4), llmc[i].magic, llmc[i].version);
	f->head = LLMC_HEAD;
	f->width = llmc[i].width;
	f->tokens = om_number_at(head + 8, 4);
	check_size(s, f);
}

/* ---- Megatron's data sets -------------------------------------------------------------------- */

/*
 * Tokens alone in NAME.bin, and beside it NAME.idx, as indexed_dataset.py of Megatron-LM writes it:
 * magic, version, a number for the type of tokens, how many sequences and how many document ends
 * there are; then of each sequence its tokens (int32), of each its first byte (int64), and the
 * sequences that documents begin with, and one past the last (int64).
 */
#define MEGATRON_MAGIC "MMIDIDX\0"
enum { MAGIC_BYTES = 9, MEGATRON_HEAD = 34 };
static const struct {
	uint32_t width; /* 0: of other numbers */
	bool sign;
} megatron[] = { { 0, false }, { 1, false }, { 1, true }, { 2, true }, { 4, true }, { 8, true },
	{ 0, true }, { 0, true }, { 2, false } };

/* The index of that .bin, which has to be closed; its path is NULL where there is none. */
static struct om_file
index_open(struct om_source *s, const char *bin)
{
	struct om_file x = { .fd = -1 };
	unsigned char magic[MAGIC_BYTES];
	struct stat st;
	char *path;

	if (!om_ends(bin, ".bin"))
		return x;
	path = om_text("%.*s.idx", (int)strlen(bin) - 4, bin);
	if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= MAGIC_BYTES) {
		x.path = path;
		x.size = (uint64_t)st.st_size;
		file_read(s, &x, 0, magic, sizeof magic);
		if (memcmp(magic, MEGATRON_MAGIC, sizeof magic) == 0)
			return x;
		close(x.fd);
		x.path = NULL;
	}
	free(path);
	return x;
}

static void
index_close(struct om_file *x)
{
	if (x->path)
		close(x->fd);
	free(x->path);
}

bool
om_is_megatron(struct om_source *s, const char *path)
{
	struct om_file x = index_open(s, path);
	bool is = x.path != NULL;

	index_close(&x);
	return is;
}

static bool
megatron_is(struct om_source *s, struct om_file *f, const unsigned char *head, size_t n)
{
	(void)head, (void)n;
	return om_is_megatron(s, f->path);
}

/* A number of two's complement. */
static int64_t
signed_at(const unsigned char *p, uint32_t width)
{
	unsigned above = 64 - 8 * width;

	return (int64_t)(om_number_at(p, width) << above) >> above;
}

/* One of the arrays of an index, from the front to the back. */
struct cursor {
	uint64_t at, end; /* bytes: of the next number, and behind the last */
	uint32_t width;
	uint64_t from, until; /* bytes that are in p */
	unsigned char p[1 << 15];
};

static int64_t
next(struct om_source *s, struct om_file *x, struct cursor *c)
{
	int64_t number;

	if (c->at == c->until) {
		c->from = c->at;
		c->until = c->end - c->at < sizeof c->p ? c->end : c->at + sizeof c->p;
		file_read(s, x, c->from, c->p, (size_t)(c->until - c->from));
	}
	number = signed_at(c->p + (c->at - c->from), c->width);
	c->at += c->width;
	return number;
}

/* Reads the head of the index x: of f its type of tokens, and how long the arrays are. */
static void
index_head(struct om_source *s, struct om_file *f, struct om_file *x, uint64_t *sequences,
    uint64_t *documents)
{
	unsigned char p[MEGATRON_HEAD];
	uint64_t size;

	if (x->size < sizeof p)
		lost(s, x, "ends within its header of %zu bytes, at byte %s; copy it again",
		    sizeof p, om_commas(x->size));
	file_read(s, x, 0, p, sizeof p);
	if (om_number_at(p + 9, 8) != 1)
		lost(s, x, "is a Megatron index of version %llu (byte 9), 1 is read",
		    (unsigned long long)om_number_at(p + 9, 8));
	if (p[17] >= OM_LEN(megatron) || !megatron[p[17]].width)
		lost(s, x,
		    "says that tokens are of type %u (byte 17); read are whole numbers, types 1 to "
		    "5 and 8",
		    p[17]);
	f->width = megatron[p[17]].width;
	f->sign = megatron[p[17]].sign;
	*sequences = om_number_at(p + 18, 8);
	*documents = om_number_at(p + 26, 8);
	size = *sequences > x->size || *documents > x->size
		   ? UINT64_MAX
		   : sizeof p + 12 * *sequences + 8 * *documents;
	if (size == x->size - *sequences && *sequences)
		lost(s, x, "is of a data set that is not of text alone, which is not read");
	if (size != x->size || !*documents)
		lost(s, x,
		    "its header says %llu sequences and %llu ends of documents (bytes 18 and 26), "
		    "which do not make its %s bytes; copy it again",
		    (unsigned long long)*sequences, (unsigned long long)*documents,
		    om_commas(x->size));
}

/* Sequence i of f, of which the index x says this; the one before it ends at byte `end`. */
static void
index_check(const struct om_source *s, const struct om_file *f, const struct om_file *x, uint64_t i,
    int64_t tokens, int64_t begin, uint64_t end, uint64_t at)
{
	if (tokens < 0 || begin < 0 || (uint64_t)begin > f->size ||
	    (uint64_t)tokens > (f->size - (uint64_t)begin) / f->width)
		lost(s, x,
		    "sequence %llu, %lld tokens from byte %lld on (byte %llu), is not within %s, "
		    "which has %s bytes; copy both again",
		    (unsigned long long)i, (long long)tokens, (long long)begin,
		    (unsigned long long)at, f->path, om_commas(f->size));
	if ((uint64_t)begin != end)
		lost(s, x,
		    "sequence %llu begins at byte %lld of %s (byte %llu), the one before it ends "
		    "at %llu; write the data set anew",
		    (unsigned long long)i, (long long)begin, f->path, (unsigned long long)at,
		    (unsigned long long)end);
}

static bool
megatron_documents(
    struct om_source *s, struct om_file *f, void (*each)(void *arg, uint64_t tokens), void *arg)
{
	struct om_file x = index_open(s, f->path);
	struct cursor length = { .at = MEGATRON_HEAD, .width = 4 }, begin = { .width = 8 },
		      document = { .width = 8 };
	uint64_t sequences, documents, end = 0, first = 0, n = 0;
	int64_t of = 0, before = 0;

	if (!x.path)
		lost(s, f, "its .idx is gone since training began; restore it and resume");
	index_head(s, f, &x, &sequences, &documents);
	length.end = begin.at = length.at + 4 * sequences;
	begin.end = document.at = begin.at + 8 * sequences;
	document.end = x.size;
	length.until = length.at;
	begin.until = begin.at;
	document.until = document.at;
	for (uint64_t i = 0; i <= sequences; i++) {
		/* documents that begin with it, or end with the last */
		for (; n < documents; n++, before = of) {
			if (document.at < begin.end + 8 * (n + 1))
				of = next(s, &x, &document);
			if (of < before || (!n && of))
				lost(s, &x,
				    "document %llu begins with sequence %lld (byte %llu), after "
				    "%lld",
				    (unsigned long long)n, (long long)of,
				    (unsigned long long)(document.at - 8), (long long)before);
			if ((uint64_t)of != i)
				break;
			if (n && each)
				each(arg, (end - first) / f->width);
			first = end;
		}
		if (i < sequences) {
			int64_t tokens = next(s, &x, &length), from = next(s, &x, &begin);

			index_check(s, f, &x, i, tokens, from, end, begin.at - 8);
			end += (uint64_t)tokens * f->width;
		}
	}
	if (n < documents || (uint64_t)before != sequences)
		lost(s, &x, "its documents end with sequence %lld (byte %llu), but it has %llu",
		    (long long)of, (unsigned long long)(document.at - 8),
		    (unsigned long long)sequences);
	if (end != f->size)
		lost(s, f, "has %s bytes, but by %s it has %s; copy both again", om_commas(f->size),
		    x.path, om_commas(end));
	index_close(&x);
	return true;
}

/* The first token of document k by the index x of f, whose arrays begin at bytes at[0], at[1]. */
static uint64_t
megatron_begin(
    struct om_source *s, struct om_file *f, struct om_file *x, const uint64_t at[2], uint64_t k)
{
	const uint64_t sequences = (at[1] - at[0]) / 8;
	unsigned char p[8];
	uint64_t first, byte = f->size;

	file_read(s, x, at[1] + 8 * k, p, sizeof p);
	if ((first = om_number_at(p, 8)) < sequences) {
		file_read(s, x, at[0] + 8 * first, p, sizeof p);
		byte = om_number_at(p, 8);
	}
	if (first > sequences || byte > f->size)
		lost(s, x,
		    "document %llu (byte %llu) is not where it was when training began; restore it "
		    "and resume",
		    (unsigned long long)k, (unsigned long long)(at[1] + 8 * k));
	return byte / f->width;
}

static void
megatron_begins(struct om_source *s, struct om_file *f, uint64_t from, size_t n, bool *begins)
{
	struct om_file x = index_open(s, f->path);
	uint64_t sequences, lo = 0, hi, begin;

	if (!x.path)
		lost(s, f, "its .idx is gone since training began; restore it and resume");
	index_head(s, f, &x, &sequences, &hi);
	const uint64_t at[2] = { MEGATRON_HEAD + 4 * sequences, MEGATRON_HEAD + 12 * sequences };
	const uint64_t documents = hi;

	while (lo < hi) { /* the first document that begins at or behind `from` */
		uint64_t mid = (lo + hi) / 2;

		if (megatron_begin(s, f, &x, at, mid) < from)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < documents && (begin = megatron_begin(s, f, &x, at, lo)) < from + n; lo++)
		begins[begin - from] = true;
	index_close(&x);
}

static void
megatron_read(struct om_source *s, struct om_file *f, const unsigned char *head, size_t n)
{
	(void)head, (void)n;
	megatron_documents(s, f, NULL, NULL);
	f->tokens = f->size / f->width;
}

/* ---- the table of formats -------------------------------------------------------------------- */

static const struct {
	const char *what;   /* it is, where the file says so itself; NULL: it has no header */
	const char *suffix; /* of names that auto takes for it */
	uint32_t width;     /* of one without a header */
	bool (*is)(struct om_source *s, struct om_file *f, const unsigned char *head, size_t n);
	/* sets width, sign, head and tokens; ends the run where something is wrong */
	void (*read)(struct om_source *s, struct om_file *f, const unsigned char *head, size_t n);
	bool (*documents)(struct om_source *s, struct om_file *f,
	    void (*each)(void *arg, uint64_t tokens), void *arg); /* NULL: it does not know */
	/* of these tokens; sets begins, which is all false, where one is a document's first */
	void (*begins)(
	    struct om_source *s, struct om_file *f, uint64_t from, size_t n, bool *begins);
	const char *lacks; /* of one that is asked for and is none */
} form[] = {
	[OM_RAW] = { .width = 1 },
	[OM_U8] = { .suffix = ".u8", .width = 1 },
	[OM_U16] = { .suffix = ".u16", .width = 2 },
	[OM_U32] = { .suffix = ".u32", .width = 4 },
	[OM_U64] = { .suffix = ".u64", .width = 8 },
	[OM_NPY] = { "a NumPy array", ".npy", 0, npy_is, npy_read, NULL, NULL, NULL },
	[OM_LLMC] = { "a data file of llm.c", NULL, 0, llmc_is, llmc_read, NULL, NULL,
	    "does not begin with a magic number of llm.c's data files" },
	[OM_MEGATRON] = { "a Megatron data set", NULL, 0, megatron_is, megatron_read,
	    megatron_documents, megatron_begins,
	    "is no .bin with an index of Megatron's beside it, a .idx" },
};

/* The format of a file that has no header, by its name alone. */
static int
format_of(const struct om_source *s, const struct om_file *f)
{
	if (s->format != OM_AUTO)
		return s->format;
	if (om_ends(f->path, ".bin")) /* the narrower one that holds the vocabulary */
		return s->vocab <= U16_MOST ? OM_U16 : OM_U32;
	for (int i = OM_AUTO + 1; i < (int)OM_LEN(form); i++)
		if (form[i].suffix && om_ends(f->path, form[i].suffix))
			return i;
	return OM_RAW;
}

bool
om_file_documents(
    struct om_source *s, struct om_file *f, void (*each)(void *arg, uint64_t tokens), void *arg)
{
	return form[f->format].documents && form[f->format].documents(s, f, each, arg);
}

bool
om_file_begins(struct om_source *s, struct om_file *f, uint64_t from, size_t n, bool *begins)
{
	if (!form[f->format].begins)
		return false;
	if (begins) {
		memset(begins, 0, n * sizeof *begins);
		form[f->format].begins(s, f, from, n, begins);
	}
	return true;
}

/* ---- looking at a file before training ------------------------------------------------------- */

/* What is taken for numbers of that width and has no header to say so must look like it. */
static void
check_width(const struct om_source *s, const struct om_file *f, const unsigned char *head, size_t n)
{
	uint32_t bits = 8 * f->width;

	if (f->size % f->width)
		lost(s, f,
		    "has %s bytes, not a multiple of %u; it is truncated, or its format is not "
		    "uint%u: set %s.format",
		    om_commas(f->size), f->width, bits, s->section);
	if (om_is_text(head, n) && f->width > 1)
		lost(s, f, "is text, not uint%u tokens; set %s.format=bytes to train on its bytes",
		    bits, s->section);
	for (uint32_t width = 4; width >= f->width; width /= 2)
		if (om_is_wider(head, n, width))
			lost(s, f,
			    "every second uint%u is 0, so its tokens are uint%u; set "
			    "%s.format=uint%u",
			    8 * width, 16 * width, s->section, 16 * width);
	if (f->width < 4 && s->vocab > (uint64_t)1 << bits)
		lost(s, f,
		    "uint%u holds tokens up to %s, the model's vocab_size is %s; set "
		    "%s.format=uint32 if they are that, or save them as a NumPy array of uint%u, "
		    "whose header says so",
		    bits, om_commas(((uint64_t)1 << bits) - 1), om_commas(s->vocab), s->section,
		    bits);
}

static uint64_t
token_at(const struct om_file *f, const unsigned char *p)
{
	return f->sign ? (uint64_t)signed_at(p, f->width) : om_number_at(p, f->width);
}

/* Token i of f is x, which the model does not have. */
_Noreturn static void
beyond(
    const struct om_source *s, const struct om_file *f, uint64_t i, uint64_t x, const char *remedy)
{
	bool negative = f->sign && x > INT64_MAX;

	lost(s, f, "token %llu is %s%llu, the model's vocab_size is %llu; %s",
	    (unsigned long long)i, negative ? "-" : "", (unsigned long long)(negative ? -x : x),
	    (unsigned long long)s->vocab, remedy);
}

/* A token beyond the vocabulary among n bytes p at `at` of the file is found before training. */
static void
check_tokens(const struct om_source *s, const struct om_file *f, const unsigned char *p, size_t n,
    uint64_t at)
{
	size_t i = at < f->head ? f->head - at : (f->width - (at - f->head) % f->width) % f->width;
	char hint[160] = "use data of the model's tokenizer";

	for (; f->format != OM_RAW && i + f->width <= n; i += f->width) {
		uint64_t x = token_at(f, p + i);

		if (x < s->vocab)
			continue;
		if (!form[f->format].what && f->width == 4 && s->vocab > U16_MOST)
			strcat(hint, "; tokens that are uint16 can be a NumPy array, or be written "
				     "as uint32");
		for (uint32_t width = 2; !form[f->format].what && !at && width <= 8; width *= 2)
			if (width != f->width && (width > 2 || s->vocab <= U16_MOST) &&
			    om_tokens_fit(p, n, width, s->vocab))
				snprintf(hint, sizeof hint,
				    "as uint%u they would fit: set %s.format=uint%u", 8 * width,
				    s->section, 8 * width);
		beyond(s, f, (at + i - f->head) / f->width, x, hint);
	}
}

/* Raw bytes are for models that can take all of them, and that were meant for little else. */
static void
check_bytes(const struct om_source *s, const struct om_file *f)
{
	if (s->vocab < BYTES)
		lost(s, f,
		    "raw bytes need a vocab_size of 256, the model's is %s; set %s.format, or name "
		    "the files one by one",
		    om_commas(s->vocab), s->section);
	if (s->vocab >= 2 * BYTES && s->format == OM_AUTO)
		lost(s, f,
		    "would be read as raw bytes, 256 of the model's vocab_size of %s; give token "
		    "files, or set %s.format=bytes to train on its bytes",
		    om_commas(s->vocab), s->section);
}

/* What the file is, by what it begins with or what lies beside it, or by its name. */
static void
recognise(struct om_source *s, struct om_file *f, const unsigned char *head, size_t n)
{
	const char *other = om_filetype_known(head, n, f->size);

	if (other)
		lost(s, f, "%s", other);
	f->format = format_of(s, f);
	for (int i = OM_AUTO + 1; i < (int)OM_LEN(form); i++)
		if (form[i].is && form[i].is(s, f, head, n)) {
			f->format = i;
			form[i].read(s, f, head, n);
			/* the width that it has may be asked for, too */
			if (s->format != OM_AUTO && s->format != i &&
			    (s->format == OM_RAW || form[s->format].width != f->width))
				lost(s, f, "is %s of %sint%u; leave out %s.format, or set it to %s",
				    form[i].what, f->sign ? "" : "u", 8 * f->width, s->section,
				    om_key_word(OM_FORMATS, i));
			return;
		}
	if (f->format == OM_NPY)
		npy_lacks(s, f, head, n);
	if (form[f->format].lacks)
		lost(s, f, "%s; correct %s.format", form[f->format].lacks, s->section);
	f->width = form[f->format].width;
	f->tokens = f->size / f->width;
	if (f->format != OM_RAW)
		check_width(s, f, head, n);
}

/* Opens it, and finds out how long it is. */
static void
measure(struct om_source *s, struct om_file *f)
{
	struct stat st;

	file_open(s, f);
	if (fstat(f->fd, &st) != 0)
		lost(s, f, "%s", strerror(errno));
	f->size = (uint64_t)st.st_size;
}

void
om_file_inspect(struct om_source *s, struct om_file *f)
{
	unsigned char head[EDGE], tail[EDGE];
	size_t n;

	measure(s, f);
	if (!f->size)
		lost(s, f, "is empty; remove it or leave it out of %s.paths", s->section);
	n = f->size < sizeof head ? (size_t)f->size : sizeof head;
	file_read(s, f, 0, head, n);
	file_read(s, f, f->size - n, tail, n);
	recognise(s, f, head, n);
	if (f->format == OM_RAW)
		check_bytes(s, f);
	check_tokens(s, f, head, n, 0);
	check_tokens(s, f, tail, n, f->size - n);
	/* identity: the size and both ends, since reading all of a large data set takes hours */
	s->crc = om_crc32c(s->crc, &(uint64_t[]){ f->size, f->width }, 16);
	s->crc = om_crc32c(s->crc, head, n);
	s->crc = om_crc32c(s->crc, tail, n);
}

/* ---- its tokens ------------------------------------------------------------------------------ */

void
om_tokens_read(struct om_source *s, struct om_file *f, uint64_t i, size_t n, int32_t *id)
{
	unsigned char p[1 << 16];

	for (size_t piece; n; i += piece, n -= piece, id += piece) {
		piece = n < sizeof p / f->width ? n : sizeof p / f->width;
		file_read(s, f, f->head + i * f->width, p, piece * f->width);
		for (size_t j = 0; j < piece; j++) {
			uint64_t x = token_at(f, p + j * f->width);

			if (x >= s->vocab)
				beyond(s, f, i + j, x, "use data of the model's tokenizer");
			id[j] = (int32_t)x;
		}
	}
}

/* ---- masks of labels ------------------------------------------------------------------------- */

void
om_mask_read(struct om_source *s, struct om_file *f, uint64_t i, size_t n, unsigned char *is)
{
	struct om_file *m = f->mask;

	file_read(s, m, m->head + i, is, n);
	for (size_t j = 0; j < n; j++)
		if (is[j] > 1)
			lost(s, m,
			    "byte %llu is %u; a mask holds 1 for tokens that are labels, and 0",
			    (unsigned long long)(m->head + i + j), is[j]);
}

/* A NumPy array of bool or uint8, or as OLMo-core writes it, its bytes alone. */
void
om_mask_inspect(struct om_source *s, struct om_file *f)
{
	struct om_file *m = f->mask;
	unsigned char head[EDGE];
	uint64_t edge;
	struct om_npy h;
	const char *why;

	measure(s, m);
	edge = m->size < EDGE ? m->size : EDGE;
	file_read(s, m, 0, head, (size_t)edge);
	m->tokens = m->size;
	if (om_is_npy(head, (size_t)edge)) {
		if ((why = om_npy_parse(head, (size_t)edge, &h)))
			lost(s, m, "%s; a mask is one of bool or uint8", why);
		if (h.width > 1)
			lost(s, m, "holds numbers of %u bytes; a mask is one of bool or uint8",
			    h.width);
		m->head = h.head;
		m->width = 1;
		m->tokens = h.tokens;
		check_size(s, m);
	}
	if (m->tokens != f->tokens)
		lost(s, m, "has %s values, and %s has %s tokens; a mask has a byte for each",
		    om_commas(m->tokens), f->path, om_commas(f->tokens));
	edge = f->tokens < EDGE ? f->tokens : EDGE;
	om_mask_read(s, f, 0, (size_t)edge, head);
	s->crc = om_crc32c(s->crc, head, (size_t)edge);
	om_mask_read(s, f, f->tokens - edge, (size_t)edge, head);
	s->crc = om_crc32c(s->crc, head, (size_t)edge);
}
