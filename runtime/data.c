/* Token files as one stream, cut into sequences in a computed order. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
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

	if (stat(path, &st) != 0) {
		int error = errno;
		char *bin = om_text("%s.bin", path);

		if (!om_is_megatron(d, bin))
			om_die(d->section, "%s: %s; correct %s.paths", path, strerror(error),
			    d->section);
		add(d, bin); /* what Megatron calls a data set is both names without their ends */
		free(bin);
		return;
	}
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

/* Of files from `first` on, which are sorted, Megatron's indices whose .bin is there too. */
static void
leave_out_indices(struct om_data *d, uint32_t first)
{
	uint32_t kept = first;

	for (uint32_t i = first; i < d->n; i++) {
		struct om_file f = d->file[i], bin = { .path = om_text("%s", f.path) };
		size_t n = strlen(f.path);
		bool out = false;

		if (om_ends(f.path, ".idx")) {
			memcpy(bin.path + n - 4, ".bin", 4);
			out = bsearch(&bin, d->file + first, kept - first, sizeof bin, by_path) &&
			      om_is_megatron(d, bin.path);
		}
		free(bin.path);
		if (out)
			free(f.path);
		else
			d->file[kept++] = f;
	}
	d->n = kept;
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
		.order = set->order,
		.eos = set->eos };
	if (d->eos != OM_NONE && d->eos >= d->vocab)
		om_die(d->section,
		    "data.eos = %llu is not a token, the model's vocab_size is %s; correct it",
		    (unsigned long long)d->eos, om_commas(d->vocab));
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
		leave_out_indices(d, first);
	}
	for (uint32_t i = 0; i < d->n; i++) {
		struct om_file *f = &d->file[i], *f0 = &d->file[0];

		om_file_inspect(d, f);
		if ((f->format == OM_RAW) != (f0->format == OM_RAW))
			om_die(d->section,
			    "%s is raw bytes, %s is tokens; set %s.format, or name the files one "
			    "by one",
			    f->format == OM_RAW ? f->path : f0->path,
			    f->format == OM_RAW ? f0->path : f->path, d->section);
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
	free(d->ids);
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
		om_tokens_read(d, f, from, n, d->ids + done);
		done += n;
	}
	memcpy(token, d->ids, d->seq * sizeof *token);
	memcpy(label, d->ids + 1, d->seq * sizeof *label);
}
