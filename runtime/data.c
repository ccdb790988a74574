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

/* Finds 'name': in the header's text and gives what follows. */
static const char *
field(const char *s, const char *name)
{
	const char *at = strstr(s, name);

	if (!at)
		return NULL;
	at += strlen(name);
	at += strspn(at, " ");
	if (*at++ != ':')
		return NULL;
	return at + strspn(at, " ");
}

/* numpy/lib/format.py: magic, version, length, and a Python dictionary padded by spaces. */
const char *
om_npy_parse(const unsigned char *p, size_t n, struct om_npy *npy)
{
	static char why[160];
	char text[1024];
	const char *descr, *order, *shape;
	size_t len, skip;
	char *end;

	if (n < 10 || memcmp(p, "\x93NUMPY", 6) != 0)
		return "has no .npy header";
	if (p[6] != 1 && p[6] != 2) {
		snprintf(why, sizeof why, "is .npy version %d, 1 and 2 are read", p[6]);
		return why;
	}
	skip = p[6] == 1 ? 10 : 12;
	if (n < skip)
		return "ends within its .npy header";
	len = (size_t)p[8] | (size_t)p[9] << 8;
	if (p[6] == 2)
		len |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
	if (len >= sizeof text)
		return "has an .npy header of over 1,023 bytes, which a plain array has not";
	if (n < skip + len)
		return "ends within its .npy header";
	memcpy(text, p + skip, len);
	text[len] = 0;
	descr = field(text, "'descr'");
	order = field(text, "'fortran_order'");
	shape = field(text, "'shape'");
	if (!descr || !order || !shape || strlen(text) != len)
		return "has a damaged .npy header";
	if (strncmp(descr, "'<u2'", 5) == 0)
		npy->width = 2;
	else if (strncmp(descr, "'<u4'", 5) == 0)
		npy->width = 4;
	else {
		snprintf(why, sizeof why,
		    "holds dtype %.*s, only '<u2' (uint16) and '<u4' (uint32) are "
		    "read; save array.astype('<u2')",
		    (int)strcspn(descr, ","), descr);
		return why;
	}
	if (strncmp(order, "False", 5) != 0)
		return "is in Fortran order; save numpy.ascontiguousarray(array)";
	if (*shape != '(')
		return "has a damaged .npy header";
	npy->tokens = strtoull(shape + 1, &end, 10);
	if (end == shape + 1 || shape[1] == '-' || *end != ',' ||
	    end[1 + strspn(end + 1, " ")] != ')') {
		snprintf(why, sizeof why,
		    "has shape %.*s, only one dimension is read; save "
		    "array.reshape(-1)",
		    (int)strcspn(shape, ")") + 1, shape);
		return why;
	}
	if (npy->tokens > UINT64_MAX / 8)
		return "has a damaged .npy header";
	npy->head = skip + len;
	return NULL;
}

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
	char what[512], *kept;
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
	for (int try = 0; f->fd < 0; try++) {
		f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
		if (f->fd >= 0)
			break;
		if (try || (errno != EMFILE && errno != ENFILE))
			lost(d, f, "%s; make it readable again", strerror(errno));
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

/* Size, format and token count of a file. */
static void
file_inspect(struct om_data *d, struct om_file *f)
{
	unsigned char head[1100], edge[4096];
	int format = d->format;
	bool npy;
	struct stat st;
	size_t n;

	file_open(d, f);
	if (fstat(f->fd, &st) != 0)
		om_die(d->section, "%s: %s", f->path, strerror(errno));
	f->size = (uint64_t)st.st_size;
	if (!f->size)
		om_die(d->section, "%s: is empty; remove it or leave it out of %s.paths", f->path,
		    d->section);
	n = f->size < sizeof head ? (size_t)f->size : sizeof head;
	file_read(d, f, 0, head, n);
	npy = n >= 6 && memcmp(head, "\x93NUMPY", 6) == 0;
	if (format == OM_AUTO)
		format = npy || ends(f->path, ".npy")                     ? OM_NPY
			 : ends(f->path, ".bin") || ends(f->path, ".u16") ? OM_U16
			 : ends(f->path, ".u32")                          ? OM_U32
									  : OM_RAW;
	f->width = format == OM_RAW ? 1 : format == OM_U16 ? 2 : 4;
	if (format == OM_NPY) {
		struct om_npy h;
		const char *why = om_npy_parse(head, n, &h);

		if (why)
			om_die(d->section, "%s: %s", f->path, why);
		f->width = h.width;
		f->head = h.head;
		f->tokens = h.tokens;
		if (f->size != h.head + h.tokens * h.width)
			om_die(d->section,
			    "%s: its header says %s tokens, %s bytes in all, but it has %s; copy "
			    "it again",
			    f->path, om_commas(h.tokens), om_commas(h.head + h.tokens * h.width),
			    om_commas(f->size));
		if (!f->tokens)
			om_die(d->section, "%s: holds no tokens; leave it out of %s.paths", f->path,
			    d->section);
	} else {
		f->tokens = f->size / f->width;
		if (f->size % f->width)
			om_die(d->section,
			    "%s: has %s bytes, not a multiple of %u; it is truncated, or its "
			    "format "
			    "is not uint%u: set %s.format",
			    f->path, om_commas(f->size), f->width, 8 * f->width, d->section);
	}
	if (f->width == 1 && d->vocab < 256)
		om_die(d->section,
		    "%s: raw bytes need a vocab_size of 256, the model's is %s; " REMEDY_FORMAT,
		    f->path, om_commas(d->vocab), d->section);
	/* identity: the size and both ends, since reading all of a large data set takes hours */
	d->crc = om_crc32c(d->crc, &(uint64_t[]){ f->size, f->width }, 16);
	n = f->size < sizeof edge ? (size_t)f->size : sizeof edge;
	file_read(d, f, 0, edge, n);
	d->crc = om_crc32c(d->crc, edge, n);
	file_read(d, f, f->size - n, edge, n);
	d->crc = om_crc32c(d->crc, edge, n);
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
		    "%s tokens in %s file%s, but a sequence takes %s and its last label one more; "
		    "add data",
		    om_commas(d->tokens), om_commas(d->n), d->n == 1 ? "" : "s", om_commas(d->seq));
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
		uint32_t x = p[0];

		if (f->width > 1)
			x |= (uint32_t)p[1] << 8;
		if (f->width > 2)
			x |= (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
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
