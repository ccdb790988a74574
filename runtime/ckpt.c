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

/* What a stored tensor has in three places; weights are shards of their own, moments share theirs.
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
om_ckpt_entries(const struct om_model *m, uint32_t *n)
{
	uint64_t count = OM_LEN(part) * om_tensor_count(m);
	struct om_entry *all = om_alloc(count, sizeof *all), *e = all;

	for (size_t i = 0; i < OM_LEN(part); i++)
		for (struct om_tensor t = { NULL, 0, 0, 0 }; om_tensor_next(m, &t); e++) {
			char *name = om_tensor_name(&t);
			uint64_t off;

			memcpy(&off, (const char *)t.p + part[i].at, sizeof off);
			e->t = (struct om_st_tensor){ om_text("%s%s", part[i].prefix, name),
				m->real == 4 ? "F32" : "F64", { t.p->dim[0], t.p->dim[1] },
				t.p->ndims, 0, t.p->numel * m->real };
			e->off = off + t.first * m->real;
			e->file = part[i].file;
			free(name);
		}
	*n = (uint32_t)count;
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
		return 0;
	return strtoull(digits, NULL, 10);
}

uint64_t
om_ckpt_newest_below(const char *dir, uint64_t below, uint64_t *count)
{
	DIR *d = opendir(dir);
	struct dirent *entry;
	uint64_t best = 0;

	if (count)
		*count = 0;
	while (d && (entry = readdir(d))) {
		uint64_t step = om_ckpt_step_of(entry->d_name);

		if (count && step)
			++*count;
		if (step > best && step < below)
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

/* Removes a directory of plain files. */
static void
remove_dir(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *entry;

	while (d && (entry = readdir(d)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			unlinkat(dirfd(d), entry->d_name, 0);
	if (d)
		closedir(d);
	rmdir(path);
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
om_ckpt_open(
    struct om_ckpt *k, const struct om_model *m, const struct om_data *d, const struct om_conf *c)
{
	struct dirent *entry;
	DIR *dir;

	*k = (struct om_ckpt){
		.dir = *c->dir ? c->dir : NULL, .keep = c->keep, .lock = -1, .m = m, .data = d
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

			remove_dir(path);
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
}

char *
om_ckpt_newest(const struct om_ckpt *k)
{
	uint64_t step = k->dir ? om_ckpt_newest_below(k->dir, UINT64_MAX, NULL) : 0;

	return step ? om_ckpt_step_path(k->dir, "", step) : NULL;
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

static char *
shard_name(int file, uint32_t shard, uint32_t shards)
{
	return om_text("%s-%05u-of-%05u.safetensors", stem[file], shard, shards);
}

static void
write_shard(struct om_ckpt *k, const unsigned char *arena, const char *tmp, const char *name,
    struct om_entry *e, uint32_t n, int file, uint32_t shard)
{
	struct om_st_tensor *head = om_alloc(n, sizeof *head);
	unsigned char *buf = om_alloc(CHUNK, 1);
	int fd = create(k, tmp, name);
	uint32_t used = 0;

	for (uint32_t i = 0; i < n; i++)
		if (e[i].file == file && e[i].shard == shard)
			head[used++] = e[i].t;
	if (!om_st_write_header(fd, head, used))
		save_failed(k, tmp, name);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t left = e[i].t.end - e[i].t.begin, off = e[i].off;

		if (e[i].file != file || e[i].shard != shard)
			continue;
		for (size_t some; left; left -= some, off += some) {
			some = left < CHUNK ? (size_t)left : CHUNK;
			om_get(arena, off, buf, some);
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
		char *name = shard_name(0, e[i].shard, shards);

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
	fprintf(f,
	    ",\n\"data\": {\"tokens\": %llu, \"files\": %u, \"crc32c\": \"%08x\", \"order\": "
	    "\"%s\", "
	    "\"seed\": %llu, \"next_sequence\": %llu},\n\"tensors\": {",
	    (unsigned long long)d->tokens, d->n, d->crc,
	    d->order == OM_SHUFFLE ? "shuffle" : "sequential", (unsigned long long)d->seed,
	    (unsigned long long)(step * k->m->global));
	for (uint32_t i = 0; i < n; i++) {
		char *name = shard_name(e[i].file, e[i].shard, shards[e[i].file]);

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

void
om_ckpt_prune(struct om_ckpt *k)
{
	uint64_t count, oldest = 0, s;

	for (om_ckpt_newest_below(k->dir, UINT64_MAX, &count); k->keep && count > k->keep;
	     count--) {
		char *path, *tmp;

		for (s = UINT64_MAX; (s = om_ckpt_newest_below(k->dir, s, NULL));)
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
om_ckpt_save(struct om_ckpt *k, const unsigned char *arena, uint64_t step)
{
	char *tmp = om_ckpt_step_path(k->dir, ".tmp-", step);
	char *path = om_ckpt_step_path(k->dir, "", step);
	uint32_t n, shards[2];
	struct om_entry *e = om_ckpt_entries(k->m, &n);
	int fd;

	if (mkdir(tmp, 0777) != 0)
		save_failed(k, tmp, "");
	for (int file = 0; file < 2; file++) {
		shards[file] = deal(e, n, file);
		for (uint32_t s = 1; s <= shards[file]; s++) {
			char *name = shard_name(file, s, shards[file]);

			write_shard(k, arena, tmp, name, e, n, file, s);
			free(name);
		}
	}
	write_hf_index(k, tmp, e, n, shards[0]);
	write_index(k, tmp, e, n, shards, step);
	if ((fd = open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 || fsync(fd) != 0 ||
	    close(fd) != 0 || rename(tmp, path) != 0 || fsync(k->lock) != 0)
		save_failed(k, tmp, "");
	free(tmp);
	free(path);
	om_ckpt_entries_free(e, n);
	om_ckpt_prune(k);
}
