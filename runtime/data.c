/*
 * Token files as one stream, cut into sequences in a computed order.
 *
 * Sequences are read by pread, not through a mapping: a file that shrinks under a mapping is a
 * SIGBUS in the middle of a step, while a short read is an error with a name. Both go through the
 * page cache, and a sequence is a few KiB.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "om_rt.h"
#include "rng.h"

/* ---- order ----------------------------------------------------------------------------------- */

/*
 * A balanced Feistel network over the smallest 4^h >= n, walked along its cycle until it lands
 * below n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): under four rounds of
 * the network on average.
 */
uint64_t
om_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i)
{
	unsigned half = 0;
	uint32_t mask;

	if (n < 2)
		return 0;
	while (half < 32 && (n - 1) >> (2 * half))
		half++;
	mask = (uint32_t)(((uint64_t)1 << half) - 1);
	do {
		uint32_t left = (uint32_t)(i >> half) & mask, right = (uint32_t)i & mask;

		for (uint32_t round = 0; round < 8; round++) {
			/* the top bit keeps these counters apart from those of initial weights */
			struct om_philox f =
			    om_philox((struct om_philox){ { right, round | 0x80000000,
					  (uint32_t)epoch, (uint32_t)(epoch >> 32) } },
				seed);
			uint32_t next = left ^ (f.v[0] & mask);

			left = right;
			right = next;
		}
		i = (uint64_t)left << half | right;
	} while (i >= n);
	return i;
}

/* ---- finding files --------------------------------------------------------------------------- */

enum {
	BYTES = 256,
	U16_MOST = 65536, /* tokens that uint16 can tell apart */
	EDGE = 4096       /* bytes of a file's ends that are looked at before training */
};
#define REMEDY_FORMAT "set %s.format, or name the files one by one"

static void
add(struct om_data *d, const char *path)
{
	if (d->n == d->cap) {
		d->cap = d->cap ? 2 * d->cap : 16;
		if (!(d->file = realloc(d->file, d->cap * sizeof *d->file)))
			om_die("memory", "cannot list %u data files", d->cap);
	}
	d->file[d->n++] = (struct om_file){ .path = om_text("%s", path), .fd = -1 };
}

static int
by_path(const void *a, const void *b)
{
	return strcmp(((const struct om_file *)a)->path, ((const struct om_file *)b)->path);
}

struct place {
	const struct place *above;
	dev_t dev;
	ino_t ino;
};

/* Adds a file, or all files below a directory except dot-files. */
static void
walk(struct om_data *d, const char *path, const struct place *above, bool named)
{
	struct place here = { above, 0, 0 };
	struct dirent *entry;
	struct stat st;
	DIR *dir;

	if (stat(path, &st) != 0)
		om_die(d->section, "%s: %s; correct %s.paths", path, strerror(errno), d->section);
	if (!S_ISDIR(st.st_mode)) {
		if (S_ISREG(st.st_mode))
			add(d, path);
		else if (named)
			om_die(d->section,
			    "%s: is neither a file nor a directory; correct %s.paths", path,
			    d->section);
		return;
	}
	here.dev = st.st_dev;
	here.ino = st.st_ino;
	for (const struct place *p = above; p; p = p->above)
		if (p->dev == here.dev && p->ino == here.ino)
			om_die(d->section,
			    "%s: this link leads back to a directory above it; remove it", path);
	if (!(dir = opendir(path)))
		om_die(d->section, "%s: %s; make it readable", path, strerror(errno));
	while ((entry = readdir(dir))) {
		size_t n = strlen(path);
		char *name;

		if (entry->d_name[0] == '.')
			continue;
		name = om_text("%s%s%s", path, n && path[n - 1] == '/' ? "" : "/", entry->d_name);
		walk(d, name, &here, false);
		free(name);
	}
	closedir(dir);
}

/*
 * Expands the first part of pattern that has a wildcard and goes on with the rest. Not glob(3): it
 * drags the user database into a static program.
 */
static void
expand(struct om_data *d, const char *pattern)
{
	size_t wild = strcspn(pattern, "*?["), from = wild,
	       to = wild + strcspn(pattern + wild, "/");
	struct dirent *entry;
	struct stat st;
	char *where, *part;
	DIR *dir;

	if (stat(pattern, &st) == 0) { /* a name, even one with brackets in it */
		walk(d, pattern, NULL, true);
		return;
	}
	if (!pattern[wild])
		return;
	while (from && pattern[from - 1] != '/')
		from--;
	where = om_text("%.*s", (int)from, pattern);
	part = om_text("%.*s", (int)(to - from), pattern + from);
	if ((dir = opendir(from ? where : "."))) {
		while ((entry = readdir(dir)))
			if (fnmatch(part, entry->d_name, FNM_PERIOD) == 0) {
				char *next = om_text("%s%s%s", where, entry->d_name, pattern + to);

				expand(d, next);
				free(next);
			}
		closedir(dir);
	}
	free(where);
	free(part);
}

/* ---- one file -------------------------------------------------------------------------------- */

static bool
ends(const char *s, const char *with)
{
	size_t n = strlen(s), w = strlen(with);

	return n > w && strcmp(s + n - w, with) == 0;
}

/* An error in a file ends the run, but not what it has done. */
_Noreturn OM_PRINTF(3, 4) static void lost(
    const struct om_data *d, const struct om_file *f, const char *fmt, ...)
{
	char what[1024], *kept;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	kept = d->rescue ? d->rescue(d->arg) : NULL;
	om_die(d->section, "%s: %s%s%s", f->path, what, kept ? "; " : "", kept ? kept : "");
}

/* Opens d->file[i] if it isn't open; when descriptors run out, the other files give theirs back. */
static void
file_open(struct om_data *d, struct om_file *f)
{
	uint64_t size;

	for (int try = 0; f->fd < 0; try++) {
		f->fd = om_open_regular(f->path, &size);
		if (f->fd >= 0)
			break;
		if (try || (errno != EMFILE && errno != ENFILE))
			lost(d, f, "%s; make it readable again", om_file_why());
		for (uint32_t j = 0; j < d->n; j++)
			if (d->file[j].fd >= 0) {
				close(d->file[j].fd);
				d->file[j].fd = -1;
			}
	}
}

static void
file_read(struct om_data *d, struct om_file *f, uint64_t off, void *p, size_t n)
{
	file_open(d, f);
	if (!om_pread_all(f->fd, p, n, off)) {
		if (errno)
			lost(d, f, "%s at byte %llu; check the disk", strerror(errno),
			    (unsigned long long)off);
		lost(d, f,
		    "ends before byte %llu, it had %s when training began; restore it and resume",
		    (unsigned long long)(off + n), om_commas(f->size));
	}
}

/* Python that writes `array`, whole numbers of the file %s in it, as tokens, and fails where one is
 * none. free() it. */
static char *
conversion(const struct om_data *d, const struct om_file *f, const char *array)
{
	bool plain = !f->path[strcspn(f->path, "'\"\\\n$`%")]; /* needs no quoting */
	const char *name = plain ? f->path : "FILE", *at = strstr(array, "%s");

	return om_text("convert it, which keeps every value: python3 -c \"import numpy as np; a = "
		       "%.*s%s%s; assert 0 <= a.min() and a.max() < %llu; np.save('tokens.npy', "
		       "a.astype('<u%d'))\"",
	    (int)(at - array), array, name, at + 2, (unsigned long long)d->vocab,
	    d->vocab <= U16_MOST ? 2 : 4);
}

/* A NumPy array: its header says what the tokens are, whatever was asked for. */
static void
array_inspect(struct om_data *d, struct om_file *f, const unsigned char *head, size_t n)
{
	struct om_npy h;
	const char *why = om_npy_parse(head, n, &h);

	if (why)
		lost(d, f, "%s%s%s", why, h.whole ? "; " : "",
		    h.whole ? conversion(d, f, "np.load('%s', mmap_mode='r').ravel()") : "");
	f->width = h.width;
	f->head = h.head;
	f->tokens = h.tokens;
	if (d->format != OM_AUTO && d->format != OM_NPY &&
	    d->format != (h.width == 2 ? OM_U16 : OM_U32))
		lost(d, f, "is a NumPy array of uint%u; leave out %s.format, or set it to npy",
		    8 * h.width, d->section);
	if (f->size != h.head + h.tokens * h.width)
		lost(d, f,
		    "its header says %s tokens, %s bytes in all, but it has %s; copy it again",
		    om_commas(h.tokens), om_commas(h.head + h.tokens * h.width),
		    om_commas(f->size));
	if (!f->tokens)
		lost(d, f, "holds no tokens; leave it out of %s.paths", d->section);
}

/* Says what a file may be that is to be a NumPy array and has no header. */
_Noreturn static void
no_header(const struct om_data *d, const struct om_file *f, const unsigned char *head, size_t n)
{
	bool named = ends(f->path, ".npy"), u16, u32;

	if (om_is_text(head, n))
		lost(d, f, "has no .npy header, it is text; %s",
		    named ? "give it another name" : "leave out the format npy");
	u16 = d->vocab <= U16_MOST && f->size % 2 == 0 && om_tokens_fit(head, n, 2, d->vocab);
	u32 = f->size % 4 == 0 && om_tokens_fit(head, n, 4, d->vocab);
	lost(d, f, "has no .npy header%s; set %s.format=%s%s",
	    named ? ", so it is tokens alone, as Dolma and OLMo-core write them under that name"
		  : "",
	    d->section,
	    u16 == u32 ? "uint16 or uint32"
	    : u16      ? "uint16"
		       : "uint32",
	    u16 == u32 ? ", as it was written" : "");
}

/* Whether "NAME.idx" of Megatron lies beside "NAME.bin", which then says what the tokens are. */
static void
check_megatron(const struct om_data *d, const struct om_file *f)
{
	static const char *const dtype[] = { "", "u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4",
		"<u2", "<u4" };
	unsigned char p[18];
	char *name, *array;
	uint64_t size;
	bool found;
	int idx;

	if (!ends(f->path, ".bin"))
		return;
	name = om_text("%.*s.idx", (int)strlen(f->path) - 4, f->path);
	idx = om_open_regular(name, &size);
	found = idx >= 0 && om_pread_all(idx, p, sizeof p, 0) && memcmp(p, "MMIDIDX\0\0", 9) == 0;
	if (idx >= 0)
		close(idx);
	if (found && p[17] < OM_LEN(dtype)) {
		array = om_text("np.memmap('%%s', '%s', 'r')", dtype[p[17]]);
		lost(d, f, "is a Megatron data set with its index, %s, which is not read; %s", name,
		    conversion(d, f, array));
	}
	free(name);
}

/* What is taken for numbers of that width and has no header to say so must look like it. */
static void
check_width(const struct om_data *d, const struct om_file *f, const unsigned char *head, size_t n)
{
	if (f->width == 1)
		return;
	if (f->size % f->width)
		lost(d, f,
		    "has %s bytes, not a multiple of %u; it is truncated, or its format is not "
		    "uint%u: set %s.format",
		    om_commas(f->size), f->width, 8 * f->width, d->section);
	if (om_is_text(head, n))
		lost(d, f, "is text, not uint%u tokens; set %s.format=bytes to train on its bytes",
		    8 * f->width, d->section);
	if (om_is_wider(head, n, 4))
		lost(d, f, "holds numbers of 8 bytes, every second uint32 is 0; %s",
		    conversion(d, f, "np.memmap('%s', '<i8', 'r')"));
	if (om_is_wider(head, n, f->width))
		lost(d, f,
		    "every second uint16 is 0, so its tokens are uint32; set %s.format=uint32",
		    d->section);
	if (f->width == 2 && d->vocab > U16_MOST)
		lost(d, f,
		    "uint16 holds tokens up to 65,535, the model's vocab_size is %s; set "
		    "%s.format=uint32 if they are that, or save them as a NumPy array of uint16, "
		    "whose header says so",
		    om_commas(d->vocab), d->section);
}

/* The format of a file that has no header, by its name alone. */
static int
format_of(const struct om_data *d, const struct om_file *f)
{
	if (d->format != OM_AUTO)
		return d->format;
	if (ends(f->path, ".bin")) /* the narrower one that holds the vocabulary */
		return d->vocab <= U16_MOST ? OM_U16 : OM_U32;
	return ends(f->path, ".npy")   ? OM_NPY
	       : ends(f->path, ".u16") ? OM_U16
	       : ends(f->path, ".u32") ? OM_U32
				       : OM_RAW;
}

/* A token beyond the vocabulary among n bytes p at `at` of the file is found before training. */
static void
check_tokens(
    const struct om_data *d, const struct om_file *f, const unsigned char *p, size_t n, uint64_t at)
{
	size_t i = at < f->head ? f->head - at : (f->width - (at - f->head) % f->width) % f->width;
	uint32_t other = f->width == 2 ? 4 : 2;
	char hint[160] = "use data of the model's tokenizer";

	for (; f->width > 1 && i + f->width <= n; i += f->width) {
		uint32_t x = om_token_at(p + i, f->width);

		if (x < d->vocab)
			continue;
		if (!f->head && other == 2 && d->vocab > U16_MOST)
			strcat(hint, "; tokens that are uint16 can be a NumPy array, or be written "
				     "as uint32");
		else if (!f->head && !at && om_tokens_fit(p, n, other, d->vocab))
			snprintf(hint, sizeof hint,
			    "as uint%u they would fit: set %s.format=uint%u", 8 * other, d->section,
			    8 * other);
		lost(d, f, "token %llu is %u, the model's vocab_size is %llu; %s",
		    (unsigned long long)((at + i - f->head) / f->width), x,
		    (unsigned long long)d->vocab, hint);
	}
}

/* Size, format and token count of a file; what is no tokens ends the run before it has begun. */
static void
file_inspect(struct om_data *d, struct om_file *f)
{
	unsigned char head[EDGE], tail[EDGE];
	const char *other;
	struct stat st;
	int format;
	size_t n;

	file_open(d, f);
	if (fstat(f->fd, &st) != 0)
		lost(d, f, "%s", strerror(errno));
	f->size = (uint64_t)st.st_size;
	if (!f->size)
		lost(d, f, "is empty; remove it or leave it out of %s.paths", d->section);
	n = f->size < sizeof head ? (size_t)f->size : sizeof head;
	file_read(d, f, 0, head, n);
	file_read(d, f, f->size - n, tail, n);
	if ((other = om_filetype_known(head, n, f->size)))
		lost(d, f, "%s", other);
	check_megatron(d, f);
	if (om_is_npy(head, n)) {
		array_inspect(d, f, head, n);
	} else {
		if ((format = format_of(d, f)) == OM_NPY)
			no_header(d, f, head, n);
		f->width = format == OM_RAW ? 1 : format == OM_U16 ? 2 : 4;
		f->tokens = f->size / f->width;
		check_width(d, f, head, n);
	}
	if (f->width == 1 && d->vocab < BYTES)
		lost(d, f, "raw bytes need a vocab_size of 256, the model's is %s; " REMEDY_FORMAT,
		    om_commas(d->vocab), d->section);
	if (f->width == 1 && d->vocab >= 2 * BYTES && d->format == OM_AUTO)
		lost(d, f,
		    "would be read as raw bytes, 256 of the model's vocab_size of %s; give token "
		    "files, or set %s.format=bytes to train on its bytes",
		    om_commas(d->vocab), d->section);
	check_tokens(d, f, head, n, 0);
	check_tokens(d, f, tail, n, f->size - n);
	/* identity: the size and both ends, since reading all of a large data set takes hours */
	d->crc = om_crc32c(d->crc, &(uint64_t[]){ f->size, f->width }, 16);
	d->crc = om_crc32c(d->crc, head, n);
	d->crc = om_crc32c(d->crc, tail, n);
}

/* ---- the stream ------------------------------------------------------------------------------ */

void
om_data_open(struct om_data *d, const struct om_model *m, const struct om_set *set, uint64_t seed)
{
	*d = (struct om_data){ .seq = m->seq,
		.vocab = m->vocab,
		.seed = seed,
		.section = set->section,
		.format = set->format,
		.order = set->order };
	for (uint32_t i = 0; i < set->paths.n; i++) {
		const char *path = set->paths.a[i];
		uint32_t first = d->n;

		if (strpbrk(path, "*?["))
			expand(d, path);
		else
			walk(d, path, NULL, true);
		if (d->n == first)
			om_die(
			    d->section, "%s: no file matches; correct %s.paths", path, d->section);
		qsort(d->file + first, d->n - first, sizeof *d->file, by_path);
	}
	for (uint32_t i = 0; i < d->n; i++) {
		struct om_file *f = &d->file[i], *f0 = &d->file[0];

		file_inspect(d, f);
		if ((f->width == 1) != (f0->width == 1))
			om_die(d->section, "%s is raw bytes, %s is tokens; " REMEDY_FORMAT,
			    f->width == 1 ? f->path : f0->path, f->width == 1 ? f0->path : f->path,
			    d->section);
		f->first = d->tokens;
		d->tokens += f->tokens;
	}
	/* successive sequences share a token: the last label of one is the first input of the next
	 */
	d->nseq = (d->tokens - 1) / d->seq;
	if (!d->nseq)
		om_die(d->section,
		    "%s in %s, but a sequence takes %s and its last label one more; add data",
		    om_count(d->tokens, "token"), om_count(d->n, "file"), om_commas(d->seq));
	d->raw = om_alloc(d->seq + 1, 4);
	d->ids = om_alloc(d->seq + 1, sizeof *d->ids);
}

void
om_data_close(struct om_data *d)
{
	for (uint32_t i = 0; i < d->n; i++) {
		if (d->file[i].fd >= 0)
			close(d->file[i].fd);
		free(d->file[i].path);
	}
	free(d->file);
	free(d->raw);
	free(d->ids);
}

/* n tokens of f from its token i, checked against the vocabulary. */
static void
tokens_read(struct om_data *d, struct om_file *f, uint64_t i, size_t n, int32_t *id)
{
	const unsigned char *p = d->raw;

	file_read(d, f, f->head + i * f->width, d->raw, n * f->width);
	for (size_t j = 0; j < n; j++, p += f->width) {
		uint32_t x = om_token_at(p, f->width);

		if (x >= d->vocab)
			lost(d, f,
			    "token %llu is %u, the model's vocab_size is %llu; use data of the "
			    "model's tokenizer",
			    (unsigned long long)(i + j), x, (unsigned long long)d->vocab);
		id[j] = (int32_t)x;
	}
}

void
om_data_read(struct om_data *d, uint64_t g, int32_t *token, int32_t *label)
{
	uint64_t epoch = g / d->nseq, i = g % d->nseq, at, lo = 0, hi = d->n - 1;
	size_t need = d->seq + 1;

	if (d->order == OM_SHUFFLE)
		i = om_permute(d->seed, epoch, d->nseq, i);
	at = i * d->seq;
	while (lo < hi) { /* the last file that begins at or before it */
		uint64_t mid = (lo + hi + 1) / 2;

		if (d->file[mid].first <= at)
			lo = mid;
		else
			hi = mid - 1;
	}
	for (size_t done = 0; done < need; lo++) {
		struct om_file *f = &d->file[lo];
		uint64_t from = at + done - f->first;
		size_t n = need - done;

		if (n > f->tokens - from)
			n = (size_t)(f->tokens - from);
		tokens_read(d, f, from, n, d->ids + done);
		done += n;
	}
	memcpy(token, d->ids, d->seq * sizeof *token);
	memcpy(label, d->ids + 1, d->seq * sizeof *label);
}
