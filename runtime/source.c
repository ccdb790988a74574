/* A source of tokens: files that are one stream, found by names, directories and globs. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "om_rt.h"

/* ---- finding files --------------------------------------------------------------------------- */

static void
add(struct om_source *s, const char *path)
{
	if (s->n == s->cap) {
		s->cap = s->cap ? 2 * s->cap : 16;
		if (!(s->file = realloc(s->file, s->cap * sizeof *s->file)))
			om_die("memory", "cannot list %u data files", s->cap);
	}
	s->file[s->n++] = (struct om_file){ .path = om_text("%s", path), .fd = -1 };
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
walk(struct om_source *s, const char *path, const struct place *above, bool named)
{
	struct place here = { above, 0, 0 };
	struct dirent *entry;
	struct stat st;
	DIR *dir;

	if (stat(path, &st) != 0) {
		int error = errno;
		char *bin = om_text("%s.bin", path);

		if (!om_is_megatron(s, bin))
			om_die(s->section, "%s: %s; correct %s.%s", path, strerror(error),
			    s->section, s->key);
		add(s, bin); /* what Megatron calls a data set is both names without their ends */
		free(bin);
		return;
	}
	if (!S_ISDIR(st.st_mode)) {
		if (S_ISREG(st.st_mode))
			add(s, path);
		else if (named)
			om_die(s->section, "%s: is neither a file nor a directory; correct %s.%s",
			    path, s->section, s->key);
		return;
	}
	here.dev = st.st_dev;
	here.ino = st.st_ino;
	for (const struct place *p = above; p; p = p->above)
		if (p->dev == here.dev && p->ino == here.ino)
			om_die(s->section,
			    "%s: this link leads back to a directory above it; remove it", path);
	if (!(dir = opendir(path)))
		om_die(s->section, "%s: %s; make it readable", path, strerror(errno));
	while ((entry = readdir(dir))) {
		size_t n = strlen(path);
		char *name;

		if (entry->d_name[0] == '.')
			continue;
		name = om_text("%s%s%s", path, n && path[n - 1] == '/' ? "" : "/", entry->d_name);
		walk(s, name, &here, false);
		free(name);
	}
	closedir(dir);
}

/*
 * Expands the first part of pattern that has a wildcard and goes on with the rest. Not glob(3): it
 * drags the user database into a static program.
 */
static void
expand(struct om_source *s, const char *pattern)
{
	size_t wild = strcspn(pattern, "*?["), from = wild,
	       to = wild + strcspn(pattern + wild, "/");
	struct dirent *entry;
	struct stat st;
	char *where, *part;
	DIR *dir;

	if (stat(pattern, &st) == 0) { /* a name, even one with brackets in it */
		walk(s, pattern, NULL, true);
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

				expand(s, next);
				free(next);
			}
		closedir(dir);
	}
	free(where);
	free(part);
}

/* Of files from `first` on, which are sorted, Megatron's indices whose .bin is there too. */
static void
leave_out_indices(struct om_source *s, uint32_t first)
{
	uint32_t kept = first;

	for (uint32_t i = first; i < s->n; i++) {
		struct om_file f = s->file[i], bin = { .path = om_text("%s", f.path) };
		size_t n = strlen(f.path);
		bool out = false;

		if (om_ends(f.path, ".idx")) {
			memcpy(bin.path + n - 4, ".bin", 4);
			out = bsearch(&bin, s->file + first, kept - first, sizeof bin, by_path) &&
			      om_is_megatron(s, bin.path);
		}
		free(bin.path);
		if (out)
			free(f.path);
		else
			s->file[kept++] = f;
	}
	s->n = kept;
}

/* ---- the stream ------------------------------------------------------------------------------ */

static void
check_token(const struct om_source *s, const char *key, uint64_t id)
{
	if (id != OM_NONE && id >= s->vocab)
		om_die(s->section,
		    "%s.%s = %llu is not a token, the model's vocab_size is %s; correct it",
		    s->name ? s->section : "data", key, (unsigned long long)id,
		    om_commas(s->vocab));
}

/* The files that a list names, in its order. */
static void
find(struct om_source *s, const struct om_list *paths, const char *key)
{
	s->key = key;
	for (uint32_t i = 0; i < paths->n; i++) {
		const char *path = paths->a[i];
		uint32_t first = s->n;

		if (strpbrk(path, "*?["))
			expand(s, path);
		else
			walk(s, path, NULL, true);
		if (s->n == first)
			om_die(s->section, "%s: no file matches; correct %s.%s", path, s->section,
			    s->key);
		qsort(s->file + first, s->n - first, sizeof *s->file, by_path);
		leave_out_indices(s, first);
	}
}

/* Gives each file the mask that has its place in the list of masks. */
static void
find_masks(struct om_source *s, const struct om_list *paths)
{
	struct om_source masks = { .data = s->data, .section = s->section };

	find(&masks, paths, "label_mask_paths");
	if (masks.n != s->n)
		om_die(s->section,
		    "%s.label_mask_paths are %s, %s.paths are %s; each has a mask, in the same "
		    "order",
		    s->section, om_count(masks.n, "file"), s->section, om_count(s->n, "file"));
	for (uint32_t i = 0; i < s->n; i++) {
		s->file[i].mask = &masks.file[i];
		om_mask_inspect(s, &s->file[i]);
	}
}

/* The sequences of a stream's whole blocks, which the last label is behind. */
static uint64_t
whole_blocks(const struct om_data *d, uint64_t tokens)
{
	return tokens ? (tokens - 1) / (d->seq * d->block) * d->block : 0;
}

void
om_source_open(struct om_source *s, struct om_data *d, const struct om_set *set)
{
	*s = (struct om_source){ .data = d,
		.vocab = d->vocab,
		.section = set->section,
		.name = set->name,
		.format = set->format,
		.eos = set->eos,
		.bos = set->bos };
	check_token(s, "eos", s->eos);
	check_token(s, "bos", s->bos);
	find(s, &set->paths, "paths");
	for (uint32_t i = 0; i < s->n; i++) {
		struct om_file *f = &s->file[i], *f0 = &s->file[0];

		om_file_inspect(s, f);
		if ((f->format == OM_RAW) != (f0->format == OM_RAW))
			om_die(s->section,
			    "%s is raw bytes, %s is tokens; set %s.format, or name the files one "
			    "by one",
			    f->format == OM_RAW ? f->path : f0->path,
			    f->format == OM_RAW ? f0->path : f->path, s->section);
		om_documents_check(s, f);
		f->first = s->tokens;
		s->tokens += f->tokens;
	}
	if (set->masks.n)
		find_masks(s, &set->masks);
	if (d->packing != OM_STREAM) {
		om_pack_open(s);
		return;
	}
	/* successive sequences share a token: the last label of one is the first input of the next
	 */
	s->nseq = whole_blocks(d, s->tokens);
	if (!s->nseq)
		om_die(s->section,
		    "%s in %s, but a %s takes %s and its last label one more; add data",
		    om_count(s->tokens, "token"), om_count(s->n, "file"),
		    d->block > 1 ? "block" : "sequence", om_commas(d->seq * d->block));
}

void
om_source_close(struct om_source *s)
{
	for (uint32_t i = 0; i < s->n; i++) {
		if (s->file[i].mask)
			free(s->file[i].mask->path);
		free(s->file[i].path);
	}
	if (s->n)
		free(s->file[0].mask); /* all are one array */
	free(s->file);
	free(s->document);
	free(s->mark);
	om_pack_free(s->pack);
}

/* n tokens of its files from token `at` on. */
static void
read_files(struct om_source *s, uint64_t at, size_t n, int32_t *id, unsigned char *is, bool *begins)
{
	uint64_t lo = 0, hi = s->n - 1;

	while (lo < hi) { /* the last file that begins at or before it */
		uint64_t mid = (lo + hi + 1) / 2;

		if (s->file[mid].first <= at)
			lo = mid;
		else
			hi = mid - 1;
	}
	for (size_t piece; n; lo++, at += piece, n -= piece, id += piece) {
		struct om_file *f = &s->file[lo];
		uint64_t from = at - f->first;

		piece = n < f->tokens - from ? n : (size_t)(f->tokens - from);
		om_tokens_read(s, f, from, piece, id);
		if (f->mask)
			om_mask_read(s, f, from, piece, is);
		else
			memset(is, 1, piece);
		is += piece;
		if (begins) {
			om_documents_find(s, f, from, piece, id, begins);
			begins += piece;
		}
	}
}

/* ---- documents ------------------------------------------------------------------------------- */

enum { MARK = 16 };

/* Another document of so many tokens, behind those there are. */
static void
end_document(void *arg, uint64_t tokens)
{
	struct om_source *s = arg;
	uint64_t n = s->documents++;

	if ((n & (n + 1)) == 0 && /* there is room up to a power of 2 */
	    !(s->document = realloc(s->document, (2 * n + 2) * sizeof *s->document)))
		om_die("memory", "cannot list %s", om_count(2 * n, "document"));
	if (!n)
		s->document[0] = 0;
	s->document[n + 1] = s->document[n] + tokens;
}

void
om_source_documents(struct om_source *s)
{
	for (struct om_file *f = s->file; f < s->file + s->n; f++)
		if (!om_documents_each(s, f, end_document, s))
			om_die(s->section,
			    "%s: nothing says where its documents end, and data.unit is documents; "
			    "set %s.eos to the token that ends one",
			    f->path, s->section);
}

/* Which of its documents is the k-th that is drawn: each once, then each once more. */
static uint64_t
drawn(const struct om_source *s, uint64_t k)
{
	uint64_t round = k / s->documents, i = k % s->documents;

	if (s->row == OM_IN_ORDER)
		return i;
	return om_permute(s->data->seed, s->row, round, s->documents, i);
}

void
om_source_draw(struct om_source *s, uint64_t n, uint32_t row)
{
	uint64_t tokens = 0;

	s->drawn = n;
	s->row = row;
	s->mark = om_alloc(n / MARK + 1, sizeof *s->mark);
	for (uint64_t k = 0; k < n; k++) {
		uint64_t i = drawn(s, k);

		if (k % MARK == 0)
			s->mark[k / MARK] = tokens;
		tokens += s->document[i + 1] - s->document[i];
	}
	s->nseq = whole_blocks(s->data, tokens);
}

double
om_source_times(const struct om_source *s, double sequences)
{
	double times = s->nseq ? sequences / (double)s->nseq : 0;

	return s->drawn ? times * (double)s->drawn / (double)s->documents : times;
}

void
om_source_read(
    struct om_source *s, uint64_t at, size_t n, int32_t *id, unsigned char *is, bool *begins)
{
	uint64_t lo = 0, hi = s->drawn ? (s->drawn - 1) / MARK : 0, before;

	if (!s->drawn) {
		read_files(s, at, n, id, is, begins);
		return;
	}
	while (lo < hi) { /* the last mark at or before it */
		uint64_t mid = (lo + hi + 1) / 2;

		if (s->mark[mid] <= at)
			lo = mid;
		else
			hi = mid - 1;
	}
	before = s->mark[lo];
	for (uint64_t k = MARK * lo; n; k++) {
		const uint64_t *first = &s->document[drawn(s, k)], tokens = first[1] - first[0],
			       from = at - before;
		size_t piece = n < tokens - from ? n : (size_t)(tokens - from);

		before += tokens;
		if (before <= at)
			continue;
		read_files(s, first[0] + from, piece, id, is, NULL);
		if (begins) {
			memset(begins, 0, piece * sizeof *begins);
			*begins = !from;
			begins += piece;
		}
		at += piece;
		n -= piece;
		id += piece;
		is += piece;
	}
}
