/*
 * Loading a checkpoint: index.json first, which must be whole, of this model and of these data;
 * then each tensor against its shape and checksum. Any error ends the process with nothing on disk
 * changed.
 *
 * The first rank chooses the checkpoint, and the others go on when it has found nothing wrong with
 * its index. Each then reads what is its own, from whichever slices there are.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"
#include "om_rt.h"

/* bytes; an index has 200 a tensor, and its own checksum, so it may be larger than foreign ones */
enum { CHUNK = 1 << 22, INDEX_MOST = 1 << 30 };

static void
shape_text(char text[64], const struct om_st_tensor *t)
{
	FILE *f = fmemopen(text, 64, "w");

	text[0] = 0;
	if (f) {
		om_ckpt_shape(f, t);
		fclose(f);
	}
}

struct loader {
	const struct om_ckpt *k;
	char *path, *remedy;
	json_t *doc;
	struct row {              /* index.json's tensors and slices of them, by tensor and place */
		const char *name; /* in its shard */
		char *tensor;
		uint64_t begin, end;
		const json_t *map;
	} * row;
	uint32_t n;
};

_Noreturn OM_PRINTF(3, 4) static void bad(
    const struct loader *l, const char *file, const char *fmt, ...)
{
	char what[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	om_die("checkpoint", "%s/%s: %s; %s", l->path, file, what, l->remedy);
}

static const char *
text(struct loader *l, const json_t *map, const char *key)
{
	const json_t *v = json_object_get(map, key);

	if (!json_is_string(v))
		bad(l, "index.json", "has no text \"%s\"", key);
	return json_string_value(v);
}

static uint64_t
whole(struct loader *l, const json_t *map, const char *key)
{
	uint64_t n = om_json_whole(json_object_get(map, key));

	if (n == UINT64_MAX)
		bad(l, "index.json", "has no whole number \"%s\"", key);
	return n;
}

static int
by_tensor(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	int name = strcmp(x->tensor, y->tensor);

	return name ? name : x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void
read_shape(const json_t *map, struct om_st_tensor *t)
{
	const json_t *dims = json_object_get(map, "shape");

	while (t->ndims < 2 && (t->dim[t->ndims] = om_json_whole(
				    json_array_get(dims, (size_t)t->ndims))) != UINT64_MAX)
		t->ndims++;
}

static void
read_row(struct loader *l, struct row *row)
{
	const json_t *slice = json_object_get(row->map, "slice");
	const char *bracket = strrchr(row->name, '[');
	struct om_st_tensor t = { 0 };
	uint64_t numel = 1;
	char *name;

	read_shape(row->map, &t);
	for (int i = 0; i < t.ndims; i++)
		if (__builtin_mul_overflow(numel, t.dim[i], &numel))
			bad(l, "index.json", "the shape of %s is beyond all memory", row->name);
	row->tensor = om_text("%s", row->name);
	row->end = numel;
	if (slice && bracket) {
		row->begin = om_json_whole(json_array_get(slice, 0));
		row->end = om_json_whole(json_array_get(slice, 1));
		row->tensor[strlen(row->tensor) - strlen(bracket)] = 0;
	}
	name = om_ckpt_slice_name(row->tensor, row->begin, row->end, numel);
	if (strcmp(name, row->name) != 0)
		bad(l, "index.json", "the slice of %s is wrong", row->name);
	free(name);
}

/* The whole of index.json, after its own checksum. */
static char *
read_index(struct loader *l, size_t *n)
{
	static const char last[] = "\"crc32c\": \"", format[] = "\"crc32c\": \"12345678\"}\n";
	char *name = om_text("%s/index.json", l->path);
	size_t tail = sizeof format - 1;
	char *s = om_file_read(name, INDEX_MOST, n);

	free(name);
	if (!s)
		bad(l, "index.json", "%s", om_file_why());
	if (*n < tail || strncmp(s + *n - tail, last, sizeof last - 1) != 0 ||
	    strtoul(s + *n - tail + sizeof last - 1, NULL, 16) != om_crc32c(0, s, *n - tail))
		bad(l, "index.json", "is damaged");
	return s;
}

/* Takes it apart, and sorts its tensors. */
static void
parse_index(struct loader *l, const char *s, size_t n)
{
	char why[OM_JSON_WHY];
	json_t *tensors;
	const char *name;
	uint64_t format;
	json_t *map;

	if (!(l->doc = om_json_parse(s, n, why)))
		bad(l, "index.json", "is damaged: %s", why);
	if ((format = whole(l, l->doc, "format")) != OM_CKPT_FORMAT)
		bad(l, "index.json", "is format %llu, this trainer reads %d",
		    (unsigned long long)format, OM_CKPT_FORMAT);
	tensors = json_object_get(l->doc, "tensors");
	if (!json_is_object(tensors))
		bad(l, "index.json", "has no \"tensors\"");
	l->row = om_alloc(json_object_size(tensors), sizeof *l->row);
	json_object_foreach(tensors, name, map)
	{
		struct row *row = &l->row[l->n++];

		row->name = name;
		row->map = map;
		read_row(l, row);
	}
	qsort(l->row, l->n, sizeof *l->row, by_tensor);
}

/* The first row of a tensor, NULL: there is none. The next ones follow. */
static const struct row *
find(const struct loader *l, const char *tensor)
{
	uint32_t low = 0, high = l->n;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (strcmp(l->row[mid].tensor, tensor) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low < l->n && strcmp(l->row[low].tensor, tensor) == 0 ? &l->row[low] : NULL;
}

static const struct row *
next(const struct loader *l, const struct row *row)
{
	const char *tensor = row->tensor;

	row++;
	return row < l->row + l->n && strcmp(row->tensor, tensor) == 0 ? row : NULL;
}

/* A checkpoint may have moments of the other format: they are converted. */
static bool
may_be(const struct om_entry *e, const char *dtype)
{
	return strcmp(e->t.dtype, dtype) == 0 ||
	       (e->file && strcmp(e->t.dtype, "F64") != 0 &&
		   (strcmp(dtype, "F32") == 0 || strcmp(dtype, "BF16") == 0));
}

/* Says how the index's tensor differs from ours; false: it doesn't. */
static bool
differs(struct loader *l, const struct om_entry *e, char *what, size_t size)
{
	char mine[64], theirs[64];
	const struct om_st_tensor *t = &e->t;
	const struct row *row = find(l, t->name);
	uint64_t at = 0;

	shape_text(mine, t);
	if (!row) {
		snprintf(what, size, "tensor %s %s is missing", t->name, mine);
		return true;
	}
	for (; row; at = row->end, row = next(l, row)) {
		struct om_st_tensor other = { 0 };
		const char *dtype = text(l, row->map, "dtype");

		read_shape(row->map, &other);
		shape_text(theirs, &other);
		if (strcmp(mine, theirs) != 0 || !may_be(e, dtype)) {
			snprintf(what, size, "tensor %s is %s %s, the trainer's is %s %s", t->name,
			    dtype, theirs, t->dtype, mine);
			return true;
		}
		if (row->begin != at || row->end <= at)
			break;
	}
	if (!row && at == e->p->numel)
		return false;
	snprintf(what, size, "tensor %s %s is %s element %llu", t->name, mine,
	    row && row->begin < at ? "there twice at" : "missing from", (unsigned long long)at);
	return true;
}

/* The number of tensors, each counted by the rank that has its beginning. */
static uint32_t
count(const struct om_model *m, const struct om_entry *e, uint32_t n)
{
	int64_t all = 0;

	for (uint32_t i = 0; i < n; i++)
		all += !e[i].begin && (e[i].p < m->param + m->nparams || !om_rank(e[i].p->copies));
	om_all_sum_i64(OM_WORLD, "checkpoint", &all, 1);
	return (uint32_t)all;
}

/* Of the same model in other numbers, no older checkpoint is any better. */
static void
check_precision(struct loader *l, const struct om_entry *e, uint32_t n)
{
	const struct row *row = n ? find(l, e[0].t.name) : NULL;
	const char *dtype = row ? text(l, row->map, "dtype") : NULL;

	if (dtype && strcmp(dtype, e[0].t.dtype) != 0)
		om_die("checkpoint",
		    "%s holds %s, this trainer has %s, by its precision { optimizer = \"%s\" }; "
		    "resume with the trainer that wrote it, or %s",
		    l->path, dtype, e[0].t.dtype, l->k->m->optimizer,
		    l->k->m->hf_config ? "take its weights over by export and import"
				       : "give another checkpoint.dir");
}

/* "batch.global is 1 there, 2 here; ...": how the checkpoint's model differs; "": not known. */
static void
facts_differ(const struct loader *l, char *what, size_t size)
{
	enum { MOST = 4 }; /* that are named */
	const json_t *theirs = json_object_get(l->doc, "description"), *value;
	const char *mine = l->k->m->facts, *key, *fact;
	size_t used = 0, n = 0;
	char *name;

	*what = 0;
	if (!mine || !json_is_object(theirs))
		return;
	for (fact = mine; *fact; fact += strcspn(fact, "\n") + 1) {
		const char *is = strstr(fact, " = ") + 3, *other;
		int len = (int)strcspn(is, "\n");

		name = om_text("%.*s", (int)(is - 3 - fact), fact);
		other = json_string_value(json_object_get(theirs, name));
		if ((!other || strncmp(other, is, (size_t)len) != 0 || other[len]) && n++ < MOST)
			used += (size_t)snprintf(what + used, size - used,
			    "%s%s is %.50s there, %.*s here", used ? "; " : "", name,
			    other ? other : "not", len < 50 ? len : 50, is);
		free(name);
	}
	json_object_foreach((json_t *)(uintptr_t)theirs, key, value)
	{
		bool ours = false;

		name = om_text("%s = ", key);
		for (fact = mine; *fact && !ours; fact += strcspn(fact, "\n") + 1)
			ours = strncmp(fact, name, strlen(name)) == 0;
		if (!ours && n++ < MOST)
			used += (size_t)snprintf(what + used, size - used,
			    "%s%.60s is %.50s there, not here", used ? "; " : "", key,
			    json_is_string(value) ? json_string_value(value) : "?");
		free(name);
	}
	if (n > MOST)
		snprintf(what + used, size - used, "; and %zu more", n - MOST);
}

static void
check_model(struct loader *l, const struct om_entry *e, uint32_t n, uint32_t all)
{
	const struct om_model *m = l->k->m;
	const char *print = text(l, l->doc, "fingerprint");
	char what[1024] = "", facts[1024];
	uint32_t theirs = 0;

	for (uint32_t i = 0; i < n; i++)
		if (differs(l, &e[i], what, sizeof what))
			break;
	facts_differ(l, facts, sizeof facts);
	if (strcmp(print, m->fingerprint) != 0)
		om_die("checkpoint",
		    "%s is of model %s (%.12s), this trainer is %s (%.12s)%s%s; resume with the "
		    "trainer "
		    "that wrote it, or give another checkpoint.dir",
		    l->path, text(l, l->doc, "model"), print, m->name, m->fingerprint,
		    *facts || *what ? ": " : "", *facts ? facts : what);
	check_precision(l, e, n);
	if (*what)
		bad(l, "index.json", "%s", what);
	for (uint32_t i = 0; i < l->n; i++)
		theirs += !l->row[i].begin;
	if (theirs != all)
		bad(l, "index.json", "has %u tensors, the trainer %u", theirs, all);
}

static void
check_data(struct loader *l)
{
	const struct om_data *d = l->k->data;
	const json_t *data = json_object_get(l->doc, "data");
	char seed[32], tokens[32], files[32], crc[32], number[32];
	const struct {
		const char *key, *name, *now;
	} fact[] = {
		{ "seed", "seed", seed },
		{ "order", "data.order", d->order == OM_SHUFFLE ? "shuffle" : "sequential" },
		{ "tokens", "a token count of", tokens },
		{ "files", "a file count of", files },
		{ "crc32c", "a data checksum of", crc },
	};

	if (!data) /* imported weights have seen none, the first run's are theirs */
		return;
	snprintf(seed, sizeof seed, "%llu", (unsigned long long)d->seed);
	snprintf(tokens, sizeof tokens, "%llu", (unsigned long long)d->tokens);
	snprintf(files, sizeof files, "%u", d->files);
	snprintf(crc, sizeof crc, "%08x", d->crc);
	for (size_t i = 0; i < OM_LEN(fact); i++) {
		const char *then = json_string_value(json_object_get(data, fact[i].key));

		if (!then) {
			snprintf(number, sizeof number, "%llu",
			    (unsigned long long)whole(l, data, fact[i].key));
			then = number;
		}
		if (strcmp(fact[i].now, then) != 0)
			om_die("checkpoint",
			    "%s was trained with %s %s, now it is %s; restore that, or go on with "
			    "other "
			    "data by checkpoint.ignore_data=true",
			    l->path, fact[i].name, then, fact[i].now);
	}
}

/* Of which row an entry takes something; each file is opened once. */
struct take {
	const char *file;
	const struct om_entry *e;
	const struct row *row;
};

static int
by_file(const void *a, const void *b)
{
	const struct take *x = a, *y = b;
	int file = strcmp(x->file, y->file);

	return file           ? file
	       : x->e != y->e ? (x->e < y->e ? -1 : 1)
			      : (x->row < y->row ? -1 : x->row > y->row);
}

/* Bytes of a number in a checkpoint. */
static size_t
size_of(const char *dtype)
{
	return strcmp(dtype, "BF16") == 0 ? 2 : strcmp(dtype, "F64") == 0 ? 8 : 4;
}

/* Puts elements [begin, end) of a tensor, of the file's dtype, as far as they are the entry's. */
static void
put(const struct om_model *m, unsigned char *arena, const struct om_entry *e, uint64_t begin,
    uint64_t end, const unsigned char *x, const char *dtype)
{
	uint64_t first = begin > e->begin ? begin : e->begin, beyond = end < e->end ? end : e->end;
	uint64_t n = beyond - first, off = e->off + (first - e->begin) * e->size;
	size_t size = size_of(dtype);
	float *wide;

	if (first >= beyond)
		return;
	x += (first - begin) * size;
	if (e->file == 0) {
		om_put_weights(m, arena, e->p, e->rep, e->first + (first - e->begin), x, n);
	} else if (strcmp(dtype, e->t.dtype) == 0 && size == e->size) {
		om_put(arena, off, x, n * size);
	} else {
		wide = om_alloc(n, sizeof *wide);
		om_st_floats(dtype, x, n, wide);
		if (strcmp(e->t.dtype, "BF16") == 0)
			om_put_bf16(arena, off, wide, n, e->size);
		else
			om_put(arena, off, wide, n * sizeof *wide);
		free(wide);
	}
}

/* Reads all of a row, for its checksum's sake, and puts what the entry has of it. */
static void
take_row(struct loader *l, unsigned char *arena, const struct take *take, const struct om_st *st,
    unsigned char *buf)
{
	const struct om_entry *e = take->e;
	const struct row *row = take->row;
	const struct om_st_tensor *t = om_st_find(st, row->name);
	const char *dtype = text(l, row->map, "dtype");
	size_t size = size_of(dtype);
	const char *crc_text = text(l, row->map, "crc32c");
	uint64_t at = row->begin, offset, numel = row->end - row->begin;
	bool whole = numel == e->p->numel;
	uint32_t crc = 0;

	if (!t)
		bad(l, take->file, "tensor %s is missing", row->name);
	if (strcmp(t->dtype, dtype) != 0 || t->end - t->begin != numel * size ||
	    (whole && (t->ndims != e->t.ndims || memcmp(t->dim, e->t.dim, sizeof t->dim) != 0)))
		bad(l, take->file, "tensor %s has another shape than in index.json", row->name);
	offset = st->data + t->begin;
	for (size_t some; at < row->end; at += some, offset += some * size) {
		some = row->end - at < CHUNK / size ? (size_t)(row->end - at) : CHUNK / size;
		if (!om_pread_all(st->fd, buf, some * size, offset))
			bad(l, take->file, "tensor %s: %s", row->name,
			    errno ? strerror(errno) : "truncated");
		crc = om_crc32c(crc, buf, some * size);
		put(l->k->m, arena, e, at, at + some, buf, dtype);
	}
	if (strtoul(crc_text, NULL, 16) != crc)
		bad(l, take->file,
		    "tensor %s: its checksum is %08x, index.json says %s: the file is damaged",
		    row->name, crc, crc_text);
}

static void
load_tensors(struct loader *l, unsigned char *arena, const struct om_entry *e, uint32_t n)
{
	struct take *take = om_alloc((size_t)n + l->n, sizeof *take);
	unsigned char *buf = om_alloc(CHUNK, 1);
	struct om_st st = { .fd = -1 };
	uint32_t used = 0;

	for (uint32_t i = 0; i < n && (l->k->data || e[i].file == 0); i++)
		for (const struct row *row = find(l, e[i].t.name); row; row = next(l, row))
			if (row->begin < e[i].end && e[i].begin < row->end)
				take[used++] =
				    (struct take){ text(l, row->map, "file"), &e[i], row };
	qsort(take, used, sizeof *take, by_file);
	for (uint32_t i = 0; i < used; i++) {
		const char *file = take[i].file, *why;

		if (!i || strcmp(file, take[i - 1].file) != 0) {
			char *name = om_text("%s/%s", l->path, file);

			om_st_close(&st);
			if (strchr(file, '/') || (why = om_st_open(&st, name)))
				bad(l, file, "%s",
				    strchr(file, '/') ? "is outside of the checkpoint" : why);
			free(name);
		}
		take_row(l, arena, &take[i], &st, buf);
	}
	om_st_close(&st);
	free(buf);
	free(take);
}

/* Says so where moments are converted. */
static void
tell_moments(struct loader *l, const struct om_entry *e, uint32_t n)
{
	const char *dtype;

	while (n && !e->file)
		e++, n--;
	dtype = n ? text(l, find(l, e->t.name)->map, "dtype") : NULL;
	if (dtype && strcmp(dtype, e->t.dtype) != 0)
		printf("checkpoint: %s has moments in %s, this trainer in %s: each becomes the "
		       "nearest\n",
		    l->path, dtype, e->t.dtype);
}

/* What is read are the masters of this rank's part: the other ranks have the others' weights. */
static void
gather_weights(const struct om_model *m, unsigned char *arena)
{
	for (uint32_t i = 0; i < m->nbuckets; i++) {
		const struct om_bucket *b = &m->bucket[i];

		for (uint64_t l = 0, bytes = b->elems * m->weight_size; l < b->nlayers; l++)
			om_all_gather(b->group, "checkpoint", arena + b->weight + l * bytes, bytes);
	}
}

/* Steps after the one resumed from belong to a run that is given up: they move aside, never away.
 */
static void
set_aside(struct om_ckpt *k, uint64_t step)
{
	uint64_t later;

	while (k->dir && (later = om_ckpt_newest_below(k->dir, OM_NO_STEP, NULL)) != OM_NO_STEP &&
	       later > step) {
		char *from = om_ckpt_step_path(k->dir, "", later);
		char *aside = om_ckpt_step_path(k->dir, "old-", later),
		     *to = om_free_name(aside, "");

		if (rename(from, to) != 0)
			om_die("checkpoint", "%s: cannot be moved to %s: %s", from, to,
			    strerror(errno));
		printf(
		    "checkpoint: %s is later than the one resumed from; moved to %s\n", from, to);
		free(from);
		free(aside);
		free(to);
	}
}

/* What SkipStep had seen. Checkpoints of before it, and of runs with it off, have no windows. */
static void
load_skip(struct loader *l)
{
	static const char *const name[] = { "loss", "norm" };
	struct om_skip *s = l->k->skip;
	const json_t *map = json_object_get(l->doc, "skip_step");
	size_t n[2];

	if (!map)
		return;
	s->total = whole(l, map, "skipped");
	s->row = whole(l, map, "in_a_row");
	for (int i = 0; i < 2; i++) {
		const json_t *list = json_object_get(map, name[i]), *x;

		if (!json_is_array(list))
			bad(l, "index.json", "has no \"%s\"", name[i]);
		n[i] = json_array_size(list);
		if (n[i] != n[0])
			bad(l, "index.json", "has %zu losses and %zu norms", n[0], n[i]);
		s->n = s->sigma > 0 ? (uint32_t)(n[i] < s->window ? n[i] : s->window) : 0;
		for (uint32_t j = 0; j < s->n; j++) { /* the newest, if the window is shorter now */
			x = json_array_get(list, n[i] - s->n + j);
			if (!json_is_number(x))
				bad(l, "index.json", "has what is no number in \"%s\"", name[i]);
			s->last[i][j] = json_number_value(x);
		}
	}
}

/* Everything that the index must say; gives the step. */
static uint64_t
check(struct loader *l, const struct om_conf *c, const char *index, size_t size,
    const struct om_entry *e, uint32_t n, uint32_t all)
{
	const struct om_ckpt *k = l->k;
	const char *base;
	uint64_t step;

	parse_index(l, index, size);
	check_model(l, e, n, all);
	if (k->data && !c->ignore_data)
		check_data(l);
	step = whole(l, l->doc, "step");
	base = strrchr(l->path, '/') ? strrchr(l->path, '/') + 1 : l->path;
	if (om_ckpt_step_of(base) != OM_NO_STEP && om_ckpt_step_of(base) != step)
		bad(l, "index.json", "is of step %llu, its directory is not",
		    (unsigned long long)step);
	if (k->data && step > c->steps)
		om_die("checkpoint",
		    "%s is at step %llu, past the run's end: steps is %llu; raise steps", l->path,
		    (unsigned long long)step, (unsigned long long)c->steps);
	if (k->skip)
		load_skip(l);
	return step;
}

/* A text of the first rank's on all of them; free() it, on the first it is the same. */
static char *
share(char *s, size_t *n)
{
	uint64_t size = s ? *n : UINT64_MAX;

	om_bcast("checkpoint", &size, sizeof size);
	if (size == UINT64_MAX)
		return NULL;
	if (om_rank(OM_WORLD))
		s = om_alloc((size_t)size + 1, 1);
	om_bcast("checkpoint", s, size);
	*n = (size_t)size;
	return s;
}

/* Loads all of the checkpoint, or of one that is not trained on the weights; gives its step. */
static uint64_t
load(struct loader *l, const struct om_conf *c, unsigned char *arena)
{
	const struct om_ckpt *k = l->k;
	char *index = NULL;
	size_t size = 0;
	uint32_t n, all;
	struct om_entry *e = om_ckpt_entries(k->m, OM_TO_LOAD, &n);
	uint64_t step = 0;

	all = count(k->m, e, n);
	if (!om_rank(OM_WORLD)) {
		index = read_index(l, &size);
		step = check(l, c, index, size, e, n, all);
	}
	index = share(index, &size);
	if (om_rank(OM_WORLD))
		step = check(l, c, index, size, e, n, all);
	if (k->data)
		tell_moments(l, e, n);
	load_tensors(l, arena, e, n);
	gather_weights(k->m, arena);
	om_barrier("checkpoint"); /* no rank has found damage */
	json_decref(l->doc);
	for (uint32_t i = 0; i < l->n; i++)
		free(l->row[i].tensor);
	free(l->row);
	free(index);
	om_ckpt_entries_free(e, n);
	return step;
}

/* What to do about a damaged one. */
static char *
remedy_new(const struct om_ckpt *k, bool automatic)
{
	uint64_t before = OM_NO_STEP;
	char *path, *text;

	if (automatic)
		before = om_ckpt_newest_below(
		    k->dir, om_ckpt_newest_below(k->dir, OM_NO_STEP, NULL), NULL);
	if (before == OM_NO_STEP)
		return om_text(
		    "restore it%s", k->data ? ", or start anew with another checkpoint.dir" : "");
	path = om_ckpt_step_path(k->dir, "", before);
	text = om_text(k->data ? "resume from the one before it by checkpoint.resume=%s"
			       : "use the one before it, %s",
	    path);
	free(path);
	return text;
}

/* A path must be that of one checkpoint, if maybe a damaged one; how: how another is named. */
static void
check_path(const char *path, const char *how)
{
	const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	uint64_t newest = om_ckpt_newest_below(path, OM_NO_STEP, NULL);

	if (om_ckpt_is_one(path))
		return;
	if (newest != OM_NO_STEP)
		om_die("checkpoint",
		    "%s is a folder of checkpoints, not one; the newest in it is "
		    "checkpoint.resume=%s",
		    path, om_ckpt_step_path(path, "", newest));
	if (access(path, F_OK) != 0 || om_ckpt_step_of(base) == OM_NO_STEP)
		om_die("checkpoint",
		    "there is none in %s: it has no folder step-... and no index.json; %s",
		    strcmp(path, ".") == 0 ? "this folder" : path, how);
}

/* The first rank's choice by checkpoint.resume, its path, and what to do if it is damaged. */
static void
choose(struct loader *l, const struct om_conf *c)
{
	bool automatic = strcmp(c->resume, "auto") == 0;
	size_t n = 0;

	if (!om_rank(OM_WORLD)) {
		l->path = automatic ? om_ckpt_newest(l->k) : om_text("%s", c->resume);
		if (!automatic)
			check_path(l->path, "correct checkpoint.resume");
		l->remedy = l->path ? remedy_new(l->k, automatic) : NULL;
		n = l->path ? strlen(l->path) : 0;
	}
	l->path = share(l->path, &n);
	n = l->remedy ? strlen(l->remedy) : 0;
	l->remedy = share(l->remedy, &n);
}

bool
om_ckpt_resume(struct om_ckpt *k, const struct om_conf *c, unsigned char *arena, uint64_t *step)
{
	struct loader l = { .k = k };
	char *newest;

	*step = 0;
	if (strcmp(c->resume, "none") == 0) {
		if ((newest = om_ckpt_newest(k)))
			om_die("checkpoint",
			    "%s is here already; use checkpoint.resume=auto to go on from it, or "
			    "another "
			    "checkpoint.dir",
			    newest);
		return false;
	}
	choose(&l, c);
	if (l.path) {
		*step = k->first = k->good = load(&l, c, arena);
		k->due = k->dir; /* a kill may have come between the last save and its pruning */
		k->resumed = l.path;
		if (!om_rank(OM_WORLD))
			set_aside(k, *step);
		printf("checkpoint: resumed from %s\n", l.path);
	}
	free(l.remedy);
	return l.path;
}

uint64_t
om_ckpt_weights(const struct om_model *m, const struct om_conf *c, unsigned char *arena, FILE *f)
{
	struct om_ckpt k = { .dir = *c->dir ? c->dir : NULL, .lock = -1, .m = m };
	bool automatic = strcmp(c->resume, "auto") == 0;
	struct loader l = { .k = &k };
	uint64_t step;

	if (automatic && k.dir)
		om_ckpt_check_dir(k.dir);
	if (strcmp(c->resume, "none") != 0)
		choose(&l, c);
	if (!l.path)
		om_die("checkpoint",
		    "there is none to evaluate, %s%s; set checkpoint.resume to the path of one",
		    automatic && k.dir ? k.dir : "",
		    !automatic ? "checkpoint.resume is none"
		    : k.dir    ? " has none"
			       : "checkpoint.dir is not set");
	step = load(&l, c, arena);
	fprintf(f, "checkpoint: %s\n", l.path);
	free(l.remedy);
	free(l.path);
	return step;
}

uint64_t
om_ckpt_weights_at(
    const struct om_model *m, const char *path, const char *how, unsigned char *arena, FILE *f)
{
	bool many = om_ckpt_newest_below(path, OM_NO_STEP, NULL) != OM_NO_STEP;
	struct om_conf c = { .dir = om_text("%s", many ? path : ""),
		.resume =
		    many ? om_text("auto") : om_text("%s%s", strchr(path, '/') ? "" : "./", path) };
	uint64_t step;

	if (!many)
		check_path(path, how);
	step = om_ckpt_weights(m, &c, arena, f);
	om_conf_free(&c);
	return step;
}
