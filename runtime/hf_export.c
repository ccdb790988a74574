/*
 * A checkpoint as Hugging Face has it: config.json, model*.safetensors, and an index where there
 * are several. Weights go from the checkpoint's shards to the files piece by piece, so that a
 * trainer of any number of ranks exports in one process, in as much memory as a piece takes.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf.h"

static void
check_empty(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *entry;

	if (!d && errno != ENOENT)
		om_die("export", "%s: %s; give a new directory", path, strerror(errno));
	while (d && (entry = readdir(d)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			om_die("export", "%s is not empty; give a new directory", path);
	if (d)
		closedir(d);
}

/* The place to build beside and to rename to: where a link leads. */
static char *
place(const char *dir)
{
	size_t n = strlen(dir);
	struct stat st;
	char *to, *end;

	while (n > 1 && dir[n - 1] == '/')
		n--;
	to = om_text("%.*s", (int)n, dir);
	end = strrchr(to, '/');
	end = end ? end + 1 : to;
	if (strcmp(end, ".") == 0 || strcmp(end, "..") == 0)
		om_die("export", "%s: give a new directory by its name", dir);
	if (lstat(to, &st) == 0 && S_ISLNK(st.st_mode)) {
		end = realpath(to, NULL);
		if (!end)
			om_die("export", "%s is a link: %s; give a new directory", to,
			    strerror(errno));
		free(to);
		to = end;
	}
	return to;
}

struct out {
	struct om_reader *from;
	char *tmp; /* what is written, until it is whole */
	struct om_hf_item *item;
	uint32_t n, shards;
	uint32_t odd; /* tensors with what is no number, */
	char *first;  /* the first of them, */
	double what;  /* and what that is */
	bool bad;     /* one is found in the tensor that is written */
	double *x;
	unsigned char *raw;
};

/* The half-written directory goes, it may fill the disk. */
_Noreturn static void
lost(struct out *o, const char *file)
{
	char *why = om_text("%s/%s: %s", o->tmp, file, strerror(errno));

	om_ckpt_remove(o->tmp);
	om_die("export", "%s; give another directory, or free some space", why);
}

static int
create(struct out *o, const char *file)
{
	int fd = om_create(o->tmp, file);

	if (fd < 0)
		lost(o, file);
	return fd;
}

static void
finish(struct out *o, const char *file, int fd)
{
	if (fsync(fd) != 0 || close(fd) != 0)
		lost(o, file);
}

static void
write_text(struct out *o, const char *file, const char *text)
{
	int fd = create(o, file);

	if (!om_write_all(fd, text, strlen(text)))
		lost(o, file);
	finish(o, file, fd);
}

/* Deals tensors into files. */
static void
deal(struct out *o)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < o->n; i++) {
		struct om_st_tensor *t = &o->item[i].t;
		uint64_t bytes = t->end - t->begin;

		if (!o->shards || at + bytes > om_shard_bytes) {
			o->shards++;
			at = 0;
		}
		o->item[i].shard = o->shards;
		t->begin = at;
		t->end = at += bytes;
	}
}

static char *
file_name(const struct out *o, uint32_t shard)
{
	return o->shards == 1 ? om_text("model.safetensors")
			      : om_text("model-%05u-of-%05u.safetensors", shard, o->shards);
}

/* n numbers of the checkpoint as doubles, and from there as an export has them. */
static void
convert(struct out *o, const struct om_hf_item *item, size_t size, size_t n)
{
	bool half = strcmp(item->t.dtype, "BF16") == 0;

	for (size_t i = 0; i < n; i++) {
		float x;

		if (size == sizeof x) {
			memcpy(&x, o->raw + i * size, size);
			o->x[i] = (double)x;
		} else {
			memcpy(&o->x[i], o->raw + i * size, size);
		}
	}
	om_hf_form(item, o->x, n, false);
	for (size_t i = 0; i < n; i++) {
		float x = (float)o->x[i];
		uint16_t narrow = om_to_bf16(x);

		if (half) {
			memcpy(o->raw + 2 * i, &narrow, 2);
			om_st_floats("BF16", &narrow, 1, &x);
		} else {
			memcpy(o->raw + 4 * i, &x, 4);
		}
		if (!isfinite(x) && !o->bad) {
			o->bad = true;
			if (!o->odd++) {
				o->first = om_text("%s", item->t.name);
				o->what = (double)x;
			}
		}
	}
}

static void
write_tensor(struct out *o, const struct om_hf_item *item, const char *file, int fd)
{
	uint64_t bytes = item->t.end - item->t.begin, at = 0;
	size_t to = strcmp(item->t.dtype, "BF16") == 0 ? 2 : 4, size = 0;

	o->bad = false;
	for (size_t n; at * to < bytes; at += n) {
		n = om_hf_some(item, bytes / to - at);
		memset(o->raw, 0, n * to);
		if (item->e) {
			size = om_reader_read(o->from, item->e, at, o->raw, n);
			convert(o, item, size, n);
		}
		if (!om_write_all(fd, o->raw, n * to))
			lost(o, file);
	}
}

static void
write_shard(struct out *o, uint32_t shard)
{
	struct om_st_tensor *head = om_alloc(o->n, sizeof *head);
	char *file = file_name(o, shard);
	int fd = create(o, file);
	uint32_t n = 0;

	for (uint32_t i = 0; i < o->n; i++)
		if (o->item[i].shard == shard)
			head[n++] = o->item[i].t;
	if (!om_st_write_header(fd, head, n))
		lost(o, file);
	for (uint32_t i = 0; i < o->n; i++)
		if (o->item[i].shard == shard)
			write_tensor(o, &o->item[i], file, fd);
	finish(o, file, fd);
	free(file);
	free(head);
}

/* Which file holds which weight. */
static void
write_index(struct out *o)
{
	unsigned long long bytes = 0;
	char *text;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		om_die("memory", "cannot list tensors");
	for (uint32_t i = 0; i < o->n; i++)
		bytes += o->item[i].t.end - o->item[i].t.begin;
	fprintf(f, "{\n\"metadata\": {\"total_size\": %llu},\n\"weight_map\": {\n", bytes);
	for (uint32_t i = 0; i < o->n; i++) {
		char *file = file_name(o, o->item[i].shard);

		om_json_string(f, o->item[i].t.name);
		fprintf(f, ": \"%s\"%s\n", file, i + 1 < o->n ? "," : "");
		free(file);
	}
	fprintf(f, "}}\n");
	if (fclose(f) != 0)
		om_die("memory", "cannot list tensors");
	write_text(o, "model.safetensors.index.json", text);
	free(text);
}

/* What is whole and on the disk gets its name. */
static void
publish(struct out *o, const char *dir)
{
	int fd = open(o->tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fsync(fd) != 0 || close(fd) != 0 || rename(o->tmp, dir) != 0)
		lost(o, "");
}

/* Weights that are no numbers are exported as they are. */
static void
warn_odd(const struct om_model *m, struct out *o)
{
	char *more = o->odd > 1 ? om_text(", %s too", om_count(o->odd - 1, "other tensor")) : NULL;

	if (o->odd)
		fprintf(stderr,
		    "%s: export: warning: %s has %g as a weight%s; no loss is a number with it, "
		    "export an earlier checkpoint\n",
		    m->name, o->first, o->what, more ? more : "");
	free(more);
	free(o->first);
}

int
om_export(const struct om_model *models, const char *dir, const char *from)
{
	static const char generation[] = "{\n  \"_from_model_config\": true\n}\n";
	static struct om_hf_model config;
	const struct om_entry *e;
	struct out o = { 0 };
	uint32_t n;
	char *to;

	om_hf_own(models, "export", &config);
	to = place(dir);
	check_empty(to);
	o.from =
	    om_reader_open(models, from, "name its folder: trainer export DIR CHECKPOINT", stdout);
	e = om_reader_entries(o.from, &n);
	o.item = om_hf_items(models, &config, e, n, &o.n);
	o.x = om_alloc(om_hf_most(o.item, o.n), sizeof *o.x);
	o.raw = om_alloc(om_hf_most(o.item, o.n), sizeof(double));
	deal(&o);
	o.tmp = om_free_name(to, ".tmp");
	om_ckpt_make_parents(to);
	if (mkdir(o.tmp, 0777) != 0)
		lost(&o, "");
	for (uint32_t s = 1; s <= o.shards; s++)
		write_shard(&o, s);
	if (o.shards > 1)
		write_index(&o);
	write_text(&o, "config.json", models->hf_config);
	write_text(&o, "generation_config.json", generation);
	publish(&o, to);
	printf("export: %s in %s, %s\n", om_count(o.n, "tensor"), om_count(o.shards, "file"), to);
	warn_odd(models, &o);
	om_reader_close(o.from);
	om_hf_items_free(o.item, o.n);
	free(o.x);
	free(o.raw);
	free(o.tmp);
	free(to);
	return 0;
}
