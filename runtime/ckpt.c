/*
 * Checkpoints: DIR/step-000100/ holds safetensors shards of weights and moments, Hugging Face's
 * index of the weights, and index.json, which names every tensor's file, shape and checksum and
 * ends with its own. All is written under DIR/.tmp-..., synced, and renamed: a name without a dot
 * is a whole checkpoint.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "om_rt.h"

enum { CHUNK = 1 << 22 };

uint64_t om_shard_bytes = (uint64_t)4 << 30;

/*
 * What a stored tensor has in three places; weights are shards of their own, moments share theirs.
 * A checkpoint's weights are the masters, an export's the weights.
 */
static const struct {
	const char *prefix;
	size_t at; /* offset member of om_param */
	int file;  /* 0 model, 1 optimizer */
} part[] = {
	{ "", offsetof(struct om_param, weight), 0 },
	{ "exp_avg.", offsetof(struct om_param, m), 1 },
	{ "exp_avg_sq.", offsetof(struct om_param, v), 1 },
};
static const char *const stem[] = { "model", "optimizer" };

struct om_entry *
om_ckpt_entries(const struct om_model *m, bool hf, uint32_t *n)
{
	size_t parts = hf ? 1 : OM_LEN(part);
	uint64_t count = parts * om_tensor_count(m);
	struct om_entry *all = om_alloc(count, sizeof *all), *e = all;

	for (size_t i = 0; i < parts; i++)
		for (struct om_tensor t = { NULL, 0, 0, 0 }; om_tensor_next(m, &t); e++) {
			bool bf16 = hf && t.p->master != OM_NO_MASTER;
			uint64_t off, size = bf16 ? 2 : hf ? sizeof(float) : m->real;
			char *name;

			if (i && t.p >= m->param + m->nparams) /* buffers have no moments */
				break;
			name = om_tensor_name(&t, hf);
			memcpy(&off, (const char *)t.p + part[i].at, sizeof off);
			if (!hf && !part[i].file)
				off = om_param_home(t.p);
			e->t = (struct om_st_tensor){ om_text("%s%s", part[i].prefix, name),
				bf16        ? "BF16"
				: size == 4 ? "F32"
					    : "F64",
				{ t.p->dim[0], t.p->dim[1] }, t.p->ndims, 0, t.p->numel * size };
			e->p = t.p;
			e->first = t.first;
			e->off = off + t.first * (hf ? om_param_size(m, t.p) : m->real);
			e->file = part[i].file;
			free(name);
		}
	*n = (uint32_t)(e - all);
	return all;
}

void
om_ckpt_entries_free(struct om_entry *e, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		free(e[i].t.name);
	free(e);
}

/* Deals the entries of one kind of file into shards; sets their offsets and gives the number of
 * shards. */
static uint32_t
deal(struct om_entry *e, uint32_t n, int file)
{
	uint32_t shard = 0;
	uint64_t at = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t bytes = e[i].t.end - e[i].t.begin;

		if (e[i].file != file)
			continue;
		if (!shard || at + bytes > om_shard_bytes) {
			shard++;
			at = 0;
		}
		e[i].shard = shard;
		e[i].t.begin = at;
		e[i].t.end = at += bytes;
	}
	return shard;
}

void
om_ckpt_shape(FILE *f, const struct om_st_tensor *t)
{
	fputc('[', f);
	for (int i = 0; i < t->ndims; i++)
		fprintf(f, "%s%llu", i ? ", " : "", (unsigned long long)t->dim[i]);
	fputc(']', f);
}

/* ---- directories ----------------------------------------------------------------------------- */

uint64_t
om_ckpt_step_of(const char *name)
{
	const char *digits = name + 5;

	if (strncmp(name, "step-", 5) != 0 || strlen(digits) < 6 ||
	    digits[strspn(digits, "0123456789")])
		return OM_NO_STEP;
	return strtoull(digits, NULL, 10);
}

uint64_t
om_ckpt_newest_below(const char *dir, uint64_t below, uint64_t *count)
{
	DIR *d = opendir(dir);
	struct dirent *entry;
	uint64_t best = OM_NO_STEP;

	if (count)
		*count = 0;
	while (d && (entry = readdir(d))) {
		uint64_t step = om_ckpt_step_of(entry->d_name);

		if (count && step != OM_NO_STEP)
			++*count;
		if (step < below && (best == OM_NO_STEP || step > best))
			best = step;
	}
	if (d)
		closedir(d);
	return best;
}

char *
om_ckpt_step_path(const char *dir, const char *prefix, uint64_t step)
{
	return om_text("%s/%sstep-%06llu", dir, prefix, (unsigned long long)step);
}

/* Removes a directory of plain files; false: errno. */
static bool
remove_dir(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *entry;

	while (d && (entry = readdir(d)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			unlinkat(dirfd(d), entry->d_name, 0);
	if (d)
		closedir(d);
	return rmdir(path) == 0;
}

static void
make_dirs(const char *path)
{
	char *part = om_text("%s", path);

	for (char *s = part + 1; *s; s++)
		if (*s == '/') {
			*s = 0;
			mkdir(part, 0777);
			*s = '/';
		}
	if (mkdir(part, 0777) != 0 && errno != EEXIST)
		om_die("checkpoint", "%s: cannot be made: %s; correct checkpoint.dir", path,
		    strerror(errno));
	free(part);
}

void
om_ckpt_open(struct om_ckpt *k, const struct om_model *m, const struct om_data *d,
    struct om_skip *skip, const struct om_conf *c)
{
	struct dirent *entry;
	DIR *dir;

	*k = (struct om_ckpt){
		.dir = *c->dir ? c->dir : NULL,
		.keep = c->keep,
		.lock = -1,
		.m = m,
		.data = d,
		.skip = skip,
	};
	if (!k->dir)
		return;
	make_dirs(k->dir);
	if ((k->lock = open(k->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 ||
	    !(dir = opendir(k->dir)))
		om_die("checkpoint", "%s: %s; correct checkpoint.dir", k->dir, strerror(errno));
	if (flock(k->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
		om_die("checkpoint",
		    "%s: another trainer is writing here; give each its own checkpoint.dir",
		    k->dir);
	if (faccessat(k->lock, ".", W_OK, 0) != 0)
		om_die("checkpoint", "%s: %s; make it writable", k->dir, strerror(errno));
	while ((entry = readdir(dir)))
		if (strncmp(entry->d_name, ".tmp-step-", 10) == 0) {
			char *path = om_text("%s/%s", k->dir, entry->d_name);

			if (!remove_dir(path)) /* the first save would fail of it */
				om_die("checkpoint",
				    "%s, which a killed run left, cannot be removed: %s; remove it",
				    path, strerror(errno));
			free(path);
		}
	closedir(dir);
}

void
om_ckpt_close(struct om_ckpt *k)
{
	if (k->lock >= 0)
		close(k->lock);
	k->lock = -1;
	free(k->resumed);
}

char *
om_ckpt_newest(const struct om_ckpt *k)
{
	uint64_t step = k->dir ? om_ckpt_newest_below(k->dir, OM_NO_STEP, NULL) : OM_NO_STEP;

	return step != OM_NO_STEP ? om_ckpt_step_path(k->dir, "", step) : NULL;
}

/* The newest one of a directory that finite numbers followed, NULL: none. */
static char *
newest_good(const struct om_ckpt *k, const char *dir)
{
	uint64_t step = om_ckpt_newest_below(dir, k->good, NULL);

	return step != OM_NO_STEP ? om_ckpt_step_path(dir, "", step) : NULL;
}

char *
om_ckpt_advice(const struct om_ckpt *k)
{
	char *newest = om_ckpt_newest(k), *good = k->dir ? newest_good(k, k->dir) : NULL, *text;

	if (k->resumed && k->good == k->first) { /* it was the first step: what was loaded is bad */
		char *dir = om_text("%s", k->resumed), *end = strrchr(dir, '/');

		if (end)
			*end = 0;
		free(good);
		good = newest_good(k, end ? dir : ".");
		text =
		    good ? om_text("resume from an earlier one by checkpoint.resume=%s: %s, which "
				   "this run began with, is at fault",
			       good, k->resumed)
			 : om_text("start anew with another checkpoint.dir: %s, which this run "
				   "began with, is at fault, and none is earlier",
			       k->resumed);
		free(dir);
	} else if (!newest) {
		text = om_text("start anew");
	} else if (!good) {
		text = om_text("start anew with another checkpoint.dir: %s is suspect, no finite "
			       "step came after it",
		    newest);
	} else if (strcmp(good, newest) == 0) {
		text = om_text("resume from %s", good);
	} else {
		text = om_text("resume by checkpoint.resume=%s: %s is suspect, no finite step came "
			       "after it",
		    good, newest);
	}
	free(newest);
	free(good);
	return text;
}

/* Removes the oldest ones beyond keep. */
static void
prune(const struct om_ckpt *k)
{
	uint64_t count, oldest = 0, s;

	for (om_ckpt_newest_below(k->dir, OM_NO_STEP, &count); k->keep && count > k->keep;
	     count--) {
		char *path, *tmp;

		for (s = OM_NO_STEP; (s = om_ckpt_newest_below(k->dir, s, NULL)) != OM_NO_STEP;)
			oldest = s;
		path = om_ckpt_step_path(k->dir, "", oldest);
		/* half removed, it must not look whole */
		tmp = om_ckpt_step_path(k->dir, ".tmp-", oldest);
		if (rename(path, tmp) == 0)
			remove_dir(tmp);
		free(path);
		free(tmp);
	}
}

void
om_ckpt_good(struct om_ckpt *k, uint64_t step)
{
	k->good = step + 1;
	if (k->due)
		prune(k);
	k->due = false;
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* Ends the process after a write that failed; the half-written directory goes, it may fill the
 * disk. */
_Noreturn static void
save_failed(struct om_ckpt *k, const char *tmp, const char *file)
{
	int error = errno;
	char *last = om_ckpt_newest(k);

	remove_dir(tmp);
	if (!k->dir)
		om_die("export", "%s/%s: %s; give another directory, or free some space", tmp, file,
		    strerror(error));
	om_die("checkpoint", "%s/%s: %s; the last whole checkpoint is %s", tmp, file,
	    strerror(error), last ? last : "none");
}

static int
create(struct om_ckpt *k, const char *tmp, const char *file)
{
	char *path = om_text("%s/%s", tmp, file);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	free(path);
	if (fd < 0)
		save_failed(k, tmp, file);
	return fd;
}

static void
finish(struct om_ckpt *k, const char *tmp, const char *file, int fd)
{
	if (fsync(fd) != 0 || close(fd) != 0)
		save_failed(k, tmp, file);
}

/* The only shard of an export has no number. */
static char *
shard_name(const struct om_ckpt *k, int file, uint32_t shard, uint32_t shards)
{
	if (!k->dir && shards == 1)
		return om_text("%s.safetensors", stem[file]);
	return om_text("%s-%05u-of-%05u.safetensors", stem[file], shard, shards);
}

/* Halves n numbers in place: doubles are rounded to floats, floats that hold bf16 lose nothing. */
static void
narrow(unsigned char *p, size_t n, size_t size)
{
	double x;
	float y;

	for (size_t i = 0; i < n; i++)
		if (size == sizeof x) {
			memcpy(&x, p + i * sizeof x, sizeof x);
			memcpy(p + i * sizeof y, &(float){ (float)x }, sizeof y);
		} else {
			memcpy(&y, p + i * sizeof y, sizeof y);
			memcpy(p + i * 2, &(uint16_t){ om_to_bf16(y) }, 2);
		}
}

static void
write_shard(struct om_ckpt *k, const unsigned char *arena, const char *tmp, const char *name,
    struct om_entry *e, uint32_t n, int file, uint32_t shard)
{
	struct om_st_tensor *head = om_alloc(n, sizeof *head);
	unsigned char *buf = om_alloc(CHUNK, 2);
	int fd = create(k, tmp, name);
	uint32_t used = 0;

	for (uint32_t i = 0; i < n; i++)
		if (e[i].file == file && e[i].shard == shard)
			head[used++] = e[i].t;
	if (!om_st_write_header(fd, head, used))
		save_failed(k, tmp, name);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t left = e[i].t.end - e[i].t.begin, off = e[i].off;
		/* bytes in the arena for one of an export */
		size_t size = om_param_size(k->m, e[i].p),
		       ratio = k->dir ? 1 : size * e[i].p->numel / left;

		if (e[i].file != file || e[i].shard != shard)
			continue;
		for (size_t some; left; left -= some, off += ratio * some) {
			some = left < CHUNK ? (size_t)left : CHUNK;
			om_get(arena, off, buf, ratio * some);
			if (ratio == 2)
				narrow(buf, ratio * some / size, size);
			e[i].crc = om_crc32c(e[i].crc, buf, some);
			if (!om_write_all(fd, buf, some))
				save_failed(k, tmp, name);
		}
	}
	finish(k, tmp, name, fd);
	free(head);
	free(buf);
}

static void
write_text(struct om_ckpt *k, const char *tmp, const char *name, const char *text, size_t n)
{
	int fd = create(k, tmp, name);

	if (!om_write_all(fd, text, n))
		save_failed(k, tmp, name);
	finish(k, tmp, name, fd);
}

/* Hugging Face's index: which file holds which weight. */
static void
write_hf_index(
    struct om_ckpt *k, const char *tmp, const struct om_entry *e, uint32_t n, uint32_t shards)
{
	char *text = NULL;
	size_t size = 0;
	uint64_t total = 0;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		save_failed(k, tmp, "model.safetensors.index.json");
	for (uint32_t i = 0; i < n; i++)
		total += e[i].file == 0 ? e[i].t.end - e[i].t.begin : 0;
	fprintf(f, "{\n\"metadata\": {\"total_size\": %llu},\n\"weight_map\": {",
	    (unsigned long long)total);
	for (uint32_t i = 0; i < n && e[i].file == 0; i++) {
		char *name = shard_name(k, 0, e[i].shard, shards);

		fprintf(f, "%s\n", i ? "," : "");
		om_json_string(f, e[i].t.name);
		fprintf(f, ": \"%s\"", name);
		free(name);
	}
	fprintf(f, "\n}}\n");
	if (fclose(f) != 0)
		save_failed(k, tmp, "model.safetensors.index.json");
	write_text(k, tmp, "model.safetensors.index.json", text, size);
	free(text);
}

/* The windows, in digits enough for every bit. */
static void
write_skip(FILE *f, const struct om_skip *s)
{
	static const char *const name[] = { "loss", "norm" };

	fprintf(f, ",\n\"skip_step\": {\"skipped\": %llu, \"in_a_row\": %llu",
	    (unsigned long long)s->total, (unsigned long long)s->row);
	for (int i = 0; i < 2; i++) {
		fprintf(f, ",\n\"%s\": [", name[i]);
		for (uint32_t j = 0; j < s->n; j++)
			fprintf(f, "%s%.17g", j ? ", " : "", s->last[i][j]);
		fputc(']', f);
	}
	fputc('}', f);
}

static void
write_index(struct om_ckpt *k, const char *tmp, const struct om_entry *e, uint32_t n,
    const uint32_t shards[2], uint64_t step)
{
	const struct om_data *d = k->data;
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		save_failed(k, tmp, "index.json");
	fprintf(f, "{\n\"format\": %d,\n\"step\": %llu,\n\"model\": ", OM_CKPT_FORMAT,
	    (unsigned long long)step);
	om_json_string(f, k->m->name);
	fprintf(f, ",\n\"fingerprint\": ");
	om_json_string(f, k->m->fingerprint);
	fprintf(f, ",\n\"olmogen\": ");
	om_json_string(f, k->m->version);
	if (d)
		fprintf(f,
		    ",\n\"data\": {\"tokens\": %llu, \"files\": %u, \"crc32c\": \"%08x\", "
		    "\"order\": "
		    "\"%s\", "
		    "\"seed\": %llu, \"next_sequence\": %llu}",
		    (unsigned long long)d->tokens, d->n, d->crc,
		    d->order == OM_SHUFFLE ? "shuffle" : "sequential", (unsigned long long)d->seed,
		    (unsigned long long)(step * k->m->global));
	if (k->skip)
		write_skip(f, k->skip);
	fprintf(f, ",\n\"tensors\": {");
	for (uint32_t i = 0; i < n; i++) {
		char *name = shard_name(k, e[i].file, e[i].shard, shards[e[i].file]);

		fprintf(f, "%s\n", i ? "," : "");
		om_json_string(f, e[i].t.name);
		fprintf(
		    f, ": {\"file\": \"%s\", \"dtype\": \"%s\", \"shape\": ", name, e[i].t.dtype);
		om_ckpt_shape(f, &e[i].t);
		fprintf(f, ", \"crc32c\": \"%08x\"}", e[i].crc);
		free(name);
	}
	fprintf(f, "\n},\n");
	if (fflush(f) == 0)
		fprintf(f, "\"crc32c\": \"%08x\"}\n", om_crc32c(0, text, size));
	if (fclose(f) != 0)
		save_failed(k, tmp, "index.json");
	write_text(k, tmp, "index.json", text, size);
	free(text);
}

/* All shards of a kind of file; gives their number. */
static uint32_t
write_shards(struct om_ckpt *k, const unsigned char *arena, const char *tmp, struct om_entry *e,
    uint32_t n, int file)
{
	uint32_t shards = deal(e, n, file);

	for (uint32_t s = 1; s <= shards; s++) {
		char *name = shard_name(k, file, s, shards);

		write_shard(k, arena, tmp, name, e, n, file, s);
		free(name);
	}
	return shards;
}

/* What is whole and on the disk gets its name. */
static void
publish(struct om_ckpt *k, const char *tmp, const char *path)
{
	int fd = open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fsync(fd) != 0 || close(fd) != 0 || rename(tmp, path) != 0 ||
	    (k->lock >= 0 && fsync(k->lock) != 0))
		save_failed(k, tmp, "");
}

void
om_ckpt_save(struct om_ckpt *k, const unsigned char *arena, uint64_t step)
{
	char *tmp = om_ckpt_step_path(k->dir, ".tmp-", step);
	char *path = om_ckpt_step_path(k->dir, "", step);
	uint32_t n, shards[2];
	struct om_entry *e = om_ckpt_entries(k->m, false, &n);

	if (mkdir(tmp, 0777) != 0)
		save_failed(k, tmp, "");
	for (int file = 0; file < 2; file++)
		shards[file] = write_shards(k, arena, tmp, e, n, file);
	write_hf_index(k, tmp, e, n, shards[0]);
	write_index(k, tmp, e, n, shards, step);
	publish(k, tmp, path);
	free(tmp);
	free(path);
	om_ckpt_entries_free(e, n);
	k->due = true;
}

void
om_ckpt_export(const struct om_model *m, const unsigned char *arena, const char *dir)
{
	static const char generation[] = "{\n  \"_from_model_config\": true\n}\n";
	struct om_ckpt k = { .lock = -1, .m = m };
	char *tmp = om_free_name(dir, ".tmp");
	uint32_t n, shards;
	struct om_entry *e = om_ckpt_entries(m, true, &n);

	if (mkdir(tmp, 0777) != 0)
		save_failed(&k, tmp, "");
	shards = write_shards(&k, arena, tmp, e, n, 0);
	if (shards > 1)
		write_hf_index(&k, tmp, e, n, shards);
	write_text(&k, tmp, "config.json", m->hf_config, strlen(m->hf_config));
	write_text(&k, tmp, "generation_config.json", generation, sizeof generation - 1);
	publish(&k, tmp, dir);
	printf("export: %s tensors in %s file%s, %s\n", om_commas(n), om_commas(shards),
	    shards == 1 ? "" : "s", dir);
	free(tmp);
	om_ckpt_entries_free(e, n);
}
