/*
 * Saving: each rank's shards, index.json, and the directory's name once all is on the disk.
 *
 * The state of a step is copied and written beside the next steps, by a thread that asks nothing of
 * other ranks. What all ranks do together is done by their main threads: a save begins with the
 * directory and the numbers of shards, and ends, steps later, with index.json and the name.
 */
#define _GNU_SOURCE /* sync_file_range */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt.h"

/* Bytes of a write, which a cache holds, and after which the disk begins with them. */
enum { CHUNK = 1 << 20, BEGIN = 16 << 20 };

uint64_t om_shard_bytes = (uint64_t)4 << 30;

static const char *const stem[] = { "model", "optimizer" };

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

static char *
slice_name(const struct om_entry *e)
{
	return om_ckpt_slice_name(e->t.name, e->begin, e->end, e->numel);
}

/* A directory that is being written; what fails is said when all ranks have come so far. */
struct out {
	struct om_ckpt *k;
	char *tmp;
	char *failed; /* "FILE: why", the first; NULL: nothing has */
};

/* How this rank's shards of a kind are numbered: from first + 1 on, of all. */
struct numbers {
	uint32_t mine, first, all;
};

/* A save that is under way: the thread beside has it until it is done, but for flow's end. */
struct om_save {
	struct out o;
	uint64_t step;
	struct om_entry *e;
	uint32_t n;
	struct numbers of[2];
	struct om_flow flow;
	bool copied; /* the arena may change */
	char *skip;  /* SkipStep's windows as they were, "": none */
	char *seen;  /* of a mix, sequences of each source as they were, "12, 0" */
	double began;
};

static bool
fail(struct out *o, const char *file)
{
	if (!o->failed)
		o->failed = om_text("%s/%s: %s", o->tmp, file, strerror(errno));
	return false;
}

/* What to do about the reason in a text. */
static const char *
way_out(const struct om_ckpt *k, const char *why)
{
	if (strstr(why, strerror(ENOSPC)) || strstr(why, strerror(EDQUOT)))
		return om_ckpt_make_room(k);
	return strstr(why, strerror(EFBIG)) ? "raise ulimit -f" : "set that right";
}

/* Ends the process; the half-written directory goes, it may fill the disk. */
_Noreturn static void
give_up(struct out *o, const char *why)
{
	char *last = om_ckpt_newest(o->k);

	om_ckpt_remove(o->tmp);
	om_die("checkpoint", "%s; %s%s; %s, and train again", why,
	    last ? "the last whole checkpoint is " : "there is no whole checkpoint",
	    last ? last : "", way_out(o->k, why));
}

_Noreturn static void
lost(struct out *o, const char *file)
{
	fail(o, file);
	give_up(o, o->failed);
}

/* The texts of all ranks one after the other, on the first; NULL on the others. */
static char *
gather(const char *text)
{
	uint64_t n;

	return om_gather("checkpoint", text, strlen(text), &n);
}

/*
 * Goes on when no rank has failed: the first one ends the job, and removes the directory once
 * nobody writes to it. x[n] are summed over the ranks on the way.
 */
static void
settle(struct out *o, int64_t *x, uint64_t n)
{
	char *mine, *why;

	x[0] = o->failed != NULL;
	om_all_sum_i64(OM_WORLD, "checkpoint", x, n);
	if (!x[0])
		return;
	if (om_size(OM_WORLD) == 1)
		give_up(o, o->failed);
	mine = o->failed ? om_text("rank %u, %s\n", om_rank(OM_WORLD), o->failed) : NULL;
	if ((why = gather(mine ? mine : ""))) {
		*strchr(why, '\n') = 0; /* one will do */
		give_up(o, why);
	}
	free(mine);
	om_barrier("checkpoint"); /* waits for the end */
	abort();
}

static int
create(struct out *o, const char *file)
{
	int fd = om_create(o->tmp, file);

	if (fd < 0)
		fail(o, file);
	return fd;
}

static bool
finish(struct out *o, const char *file, int fd)
{
	return (fsync(fd) == 0 && close(fd) == 0) || fail(o, file);
}

static char *
shard_name(int file, uint32_t shard, uint32_t shards)
{
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

static bool
write_head(int fd, const struct om_entry *e, uint32_t n, int file, uint32_t shard)
{
	struct om_st_tensor *head = om_alloc(n, sizeof *head);
	uint32_t used = 0;
	bool ok;

	for (uint32_t i = 0; i < n; i++)
		if (e[i].file == file && e[i].shard == shard) {
			head[used] = e[i].t;
			head[used].name = slice_name(&e[i]);
			if (e[i].end - e[i].begin != e[i].numel) {
				head[used].ndims = 1;
				head[used].dim[0] = e[i].end - e[i].begin;
			}
			used++;
		}
	ok = om_st_write_header(fd, head, used);
	while (used)
		free(head[--used].name);
	free(head);
	return ok;
}

static bool
write_shard(struct om_save *w, const char *name, int file, uint32_t shard)
{
	int fd = create(&w->o, name);
	bool ok = fd >= 0 && (write_head(fd, w->e, w->n, file, shard) || fail(&w->o, name));
	off_t wrote = 0, begun = 0; /* of the tensors; the rest is fsync's */

	for (uint32_t i = 0; i < w->n && ok; i++) {
		struct om_entry *e = &w->e[i];
		uint64_t left = (e->end - e->begin) * e->size, at = 0;
		/* bytes in the arena for one of the file */
		size_t ratio = left / (e->t.end - e->t.begin);

		if (e->file != file || e->shard != shard)
			continue;
		for (size_t some; left && ok; left -= some, at += some) {
			unsigned char *p;

			some = left < CHUNK ? (size_t)left : CHUNK;
			p = om_flow_take(&w->flow, i, at, &some);
			if (ratio == 2)
				narrow(p, some / e->size, e->size);
			e->crc = om_crc32c(e->crc, p, some / ratio);
			ok = om_write_all(fd, p, some / ratio) || fail(&w->o, name);
			wrote += (off_t)(some / ratio);
			if (wrote - begun >= BEGIN) {
				sync_file_range(fd, begun, wrote - begun, SYNC_FILE_RANGE_WRITE);
				begun = wrote;
			}
		}
	}
	return ok && finish(&w->o, name, fd);
}

/* This rank's shards of a kind. */
static void
write_shards(struct om_save *w, int file)
{
	const struct numbers *of = &w->of[file];

	for (uint32_t s = 1; s <= of->mine && !w->o.failed; s++) {
		char *name = shard_name(file, of->first + s, of->all);

		write_shard(w, name, file, s);
		free(name);
	}
}

static void
write_text(struct out *o, const char *name, const char *text, size_t n)
{
	int fd = create(o, name);

	if (fd < 0 || !om_write_all(fd, text, n) || !finish(o, name, fd))
		lost(o, name);
}

static FILE *
text_open(char **text, size_t *size)
{
	FILE *f = open_memstream(text, size);

	if (!f)
		om_die("memory", "cannot list tensors");
	return f;
}

static void
text_close(FILE *f)
{
	if (fclose(f) != 0)
		om_die("memory", "cannot list tensors");
}

/* A comma after each line but the last. */
static void
cut_comma(char *lines)
{
	size_t n = strlen(lines);

	if (n > 1)
		strcpy(lines + n - 2, "\n");
}

/* Hugging Face's index: which file holds which weight. */
static void
write_hf_index(
    struct out *o, const struct om_entry *e, uint32_t n, const struct numbers *of, uint64_t total)
{
	static const char name[] = "model.safetensors.index.json";
	char *text, *lines;
	size_t size;
	FILE *f = text_open(&text, &size);

	for (uint32_t i = 0; i < n && e[i].file == 0; i++) {
		char *file = shard_name(0, of->first + e[i].shard, of->all);

		om_json_string(f, e[i].t.name);
		fprintf(f, ": \"%s\",\n", file);
		free(file);
	}
	text_close(f);
	lines = gather(text);
	free(text);
	if (!lines)
		return;
	cut_comma(lines);
	f = text_open(&text, &size);
	fprintf(f, "{\n\"metadata\": {\"total_size\": %llu},\n\"weight_map\": {\n%s}}\n",
	    (unsigned long long)total, lines);
	text_close(f);
	write_text(o, name, text, size);
	free(text);
	free(lines);
}

/* The windows, in digits enough for every bit; "" where there are none. */
static char *
skip_text(const struct om_skip *s)
{
	static const char *const name[] = { "loss", "norm" };
	char *text;
	size_t size;
	FILE *f;

	if (!s)
		return om_alloc(1, 1);
	f = text_open(&text, &size);

	fprintf(f, ",\n\"skip_step\": {\"skipped\": %llu, \"in_a_row\": %llu",
	    (unsigned long long)s->total, (unsigned long long)s->row);
	if (s->fresh)
		fprintf(f, ", \"updates_before_moments\": %llu", (unsigned long long)s->fresh);
	if (s->back)
		fprintf(f, ", \"rollbacks\": %llu, \"left_out\": %llu, \"left_sequences\": %llu",
		    (unsigned long long)s->back, (unsigned long long)s->left,
		    (unsigned long long)s->left_sequences);
	for (int i = 0; i < 2; i++) {
		fprintf(f, ",\n\"%s\": [", name[i]);
		for (uint32_t j = 0; j < s->n; j++)
			fprintf(f, "%s%.17g", j ? ", " : "", s->last[i][j]);
		fputc(']', f);
	}
	fputc('}', f);
	text_close(f);
	return text;
}

/* This rank's lines of index.json. */
static char *
index_lines(const struct om_entry *e, uint32_t n, const struct numbers of[2])
{
	char *text;
	size_t size;
	FILE *f = text_open(&text, &size);

	for (uint32_t i = 0; i < n; i++) {
		const struct numbers *shards = &of[e[i].file];
		char *file = shard_name(e[i].file, shards->first + e[i].shard, shards->all);
		char *name = slice_name(&e[i]);

		om_json_string(f, name);
		fprintf(
		    f, ": {\"file\": \"%s\", \"dtype\": \"%s\", \"shape\": ", file, e[i].t.dtype);
		om_ckpt_shape(f, &e[i].t);
		if (e[i].end - e[i].begin != e[i].numel)
			fprintf(f, ", \"slice\": [%llu, %llu]", (unsigned long long)e[i].begin,
			    (unsigned long long)e[i].end);
		fprintf(f, ", \"crc32c\": \"%08x\"},\n", e[i].crc);
		free(file);
		free(name);
	}
	text_close(f);
	return text;
}

/* What the fingerprint is of, so that another trainer can say what differs. */
static void
write_facts(FILE *f, const char *fact)
{
	const char *comma = "";

	fprintf(f, ",\n\"description\": {");
	for (size_t n; *fact; fact += n + 1, comma = ",") {
		const char *is = strstr(fact, " = ");
		char *name, *value;

		n = strcspn(fact, "\n");
		name = om_text("%.*s", (int)(is - fact), fact);
		value = om_text("%.*s", (int)(fact + n - is - 3), is + 3);
		fprintf(f, "%s\n", comma);
		om_json_string(f, name);
		fprintf(f, ": ");
		om_json_string(f, value);
		free(name);
		free(value);
	}
	fprintf(f, "}");
}

/* What checkpoints keep of a mix; free() it. */
static char *
seen_text(const struct om_data *d)
{
	char *text = om_text("%s", "");

	for (uint32_t i = 0; d && d->mix && i < d->nsources; i++) {
		char *more =
		    om_text("%s%s%llu", text, i ? ", " : "", (unsigned long long)d->seen[i]);

		free(text);
		text = more;
	}
	return text;
}

static void
write_data(FILE *f, const struct om_data *d, const char *seen, uint64_t step, uint64_t left)
{
	const uint64_t next = om_steps_all(d->steps, step);
	char *gaps = om_steps_gaps(d->steps, next + left);

	fprintf(f,
	    ",\n\"data\": {\"tokens\": %llu, \"files\": %u, \"crc32c\": \"%08x\", "
	    "\"order\": \"%s\", \"seed\": %llu, \"next_sequence\": %llu",
	    (unsigned long long)d->tokens, d->files, d->crc, om_key_word(OM_ORDERS, d->order),
	    (unsigned long long)d->seed, (unsigned long long)next);
	if (d->mix) {
		fprintf(f, ", \"mix\": ");
		om_json_string(f, d->mix);
		fprintf(f, ", \"seen\": [%s]", seen);
	}
	if (*gaps)
		fprintf(f, ", \"skipped\": [%s]", gaps);
	free(gaps);
	fprintf(f, "}");
}

static void
write_index(struct om_save *w, char *lines)
{
	const struct om_ckpt *k = w->o.k;
	const uint64_t step = w->step;
	const struct om_data *d = k->data;
	char *text;
	size_t size;
	FILE *f = text_open(&text, &size);

	fprintf(f, "{\n\"format\": %d,\n\"step\": %llu,\n\"model\": ", OM_CKPT_FORMAT,
	    (unsigned long long)step);
	om_json_string(f, k->m->name);
	fprintf(f, ",\n\"fingerprint\": ");
	om_json_string(f, k->m->fingerprint);
	fprintf(f, ",\n\"olmogen\": ");
	om_json_string(f, k->m->version);
	if (*om_comm_library())
		fprintf(f, ",\n\"sums\": \"%s\"", om_comm_library());
	if (k->m->muon) {
		fprintf(f, ",\n\"muon\": ");
		om_json_string(f, k->m->muon);
	}
	if (k->m->facts)
		write_facts(f, k->m->facts);
	if (d)
		write_data(f, d, w->seen, step, k->skip ? k->skip->left_sequences : 0);
	fputs(w->skip, f);
	cut_comma(lines);
	fprintf(f, ",\n\"tensors\": {\n%s},\n", lines);
	if (fflush(f) == 0)
		fprintf(f, "\"crc32c\": \"%08x\"}\n", om_crc32c(0, text, size));
	text_close(f);
	write_text(&w->o, "index.json", text, size);
	free(text);
}

/* What is whole and on the disk gets its name. */
static void
publish(struct out *o, const char *path)
{
	int fd = open(o->tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fsync(fd) != 0 || close(fd) != 0 || rename(o->tmp, path) != 0 ||
	    (o->k->lock >= 0 && fsync(o->k->lock) != 0))
		lost(o, "");
}

static void
make_tmp(struct out *o)
{
	if (mkdir(o->tmp, 0777) != 0)
		lost(o, "");
}

/* Deals this rank's entries into shards, which are numbered through all ranks. */
static void
number(struct om_entry *e, uint32_t n, struct numbers of[2])
{
	uint32_t rank = om_rank(OM_WORLD), world = om_size(OM_WORLD);
	int64_t *count = om_alloc(2 * (size_t)world, sizeof *count);

	for (int file = 0; file < 2; file++)
		count[2 * rank + (uint32_t)file] = deal(e, n, file);
	om_all_sum_i64(OM_WORLD, "checkpoint", count, 2 * (uint64_t)world);
	for (int file = 0; file < 2; file++) {
		of[file] = (struct numbers){ 0 };
		for (uint32_t r = 0; r < world; r++) {
			uint32_t shards = (uint32_t)count[2 * r + (uint32_t)file];

			of[file].all += shards;
			of[file].first += r < rank ? shards : 0;
			of[file].mine = r == rank ? shards : of[file].mine;
		}
	}
	free(count);
}

static void
grow(void *arg)
{
	struct om_ckpt *k = arg;

	om_slots_grow(&k->slots, k->part, k->async && !k->spare);
}

void
om_ckpt_prepare(struct om_ckpt *k)
{
	if (!k->dir || !k->async || k->save)
		return;
	k->spare = k->spare ? k->spare : om_spare_new(k->part);
	om_beside(&k->beside, grow, k);
}

/* This rank's files, whoever the thread is. */
static void
write_files(void *arg)
{
	struct om_save *w = arg;
	struct om_ckpt *k = w->o.k;

	grow(k);
	for (int file = 0; file < 2; file++)
		write_shards(w, file);
	om_flow_end(&w->flow); /* where a write has failed, too */
}

void
om_ckpt_save(struct om_ckpt *k, const unsigned char *arena, uint64_t step)
{
	double before = om_now();
	struct om_save *w = om_alloc(1, sizeof *w);

	om_ckpt_end(k);
	om_beside_end(&k->beside);
	om_ckpt_room(k);
	*w = (struct om_save){
		.o = { .k = k, .tmp = om_ckpt_step_path(k->dir, ".tmp-", step) },
		.step = step,
		.skip = skip_text(k->skip),
		.seen = seen_text(k->data),
		.began = before,
	};
	w->e = om_ckpt_entries(k->m, OM_TO_SAVE, &w->n);
	if (!om_rank(OM_WORLD))
		make_tmp(&w->o);
	number(w->e, w->n, w->of); /* before the directory is there no rank has all the numbers */
	om_flow_open(&w->flow, &k->slots, arena, w->e, w->n);
	if (k->spare) {
		om_flow_keep(&w->flow, k->spare);
		w->copied = true;
	}
	om_aside_begin();
	k->save = w;
	if (k->async)
		om_beside(&k->beside, write_files, w);
	else
		write_files(w);
	k->held = om_now() - before;
	if (!k->async)
		om_ckpt_end(k);
}

void
om_ckpt_copied(struct om_ckpt *k)
{
	double before = om_now();

	if (!k->save || k->save->copied)
		return;
	om_flow_wait(&k->save->flow);
	om_aside_end();
	k->save->copied = true;
	k->held += om_now() - before;
}

bool
om_ckpt_writes(const struct om_ckpt *k)
{
	return k->save && om_beside_busy(&k->beside);
}

/* Says what a save took; of an import there is nothing to tell. */
static void
tell(const struct om_save *w, uint64_t bytes)
{
	const struct om_ckpt *k = w->o.k;

	if (om_rank(OM_WORLD) || !k->data)
		return;
	om_log_clear();
	printf("checkpoint: step %s, %s in %s, the run waited %s\n", om_commas(w->step),
	    om_bytes(bytes), om_took(om_now() - w->began), om_took(k->held));
	fflush(stdout);
}

void
om_ckpt_end(struct om_ckpt *k)
{
	enum { FAILED, CUT, WEIGHTS, BYTES, SUMS };
	int64_t sum[SUMS] = { 0 };
	struct om_save *w = k->save;
	double before = om_now();
	char *path, *text, *lines;

	if (!w)
		return;
	om_beside_end(&k->beside);
	om_ckpt_copied(k);
	for (uint32_t i = 0; i < w->n; i++) {
		const struct om_entry *e = &w->e[i];
		int64_t bytes = (int64_t)(e->t.end - e->t.begin);

		sum[CUT] += !e->file && e->end - e->begin != e->numel;
		sum[WEIGHTS] += e->file ? 0 : bytes;
		sum[BYTES] += bytes;
	}
	settle(&w->o, sum, SUMS);
	if (!sum[CUT]) /* it knows whole tensors only */
		write_hf_index(&w->o, w->e, w->n, &w->of[0], (uint64_t)sum[WEIGHTS]);
	text = index_lines(w->e, w->n, w->of);
	lines = gather(text);
	if (lines) {
		write_index(w, lines);
		path = om_ckpt_step_path(k->dir, "", w->step);
		publish(&w->o, path);
		free(path);
	}
	om_barrier("checkpoint");
	free(text);
	free(lines);
	k->save = NULL;
	k->due = true;
	k->held += om_now() - before;
	tell(w, (uint64_t)sum[BYTES]);
	om_flow_close(&w->flow);
	om_ckpt_entries_free(w->e, w->n);
	free(w->skip);
	free(w->seen);
	free(w->o.tmp);
	free(w);
}
