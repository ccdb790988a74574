/*
 * index.json of a checkpoint, which must be whole and of this model: which file holds what of each
 * tensor, in what shape, with what checksum.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"

/* bytes; an index has 200 a tensor, and its own checksum, so it may be larger than foreign ones */
enum { INDEX_MOST = 1 << 30 };

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

void
om_index_bad(const struct om_index *l, const char *file, const char *fmt, ...)
{
	char what[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	om_die("checkpoint", "%s/%s: %s; %s", l->path, file, what, l->remedy);
}

const char *
om_index_text(struct om_index *l, const json_t *map, const char *key)
{
	const json_t *v = json_object_get(map, key);

	if (!json_is_string(v))
		om_index_bad(l, "index.json", "has no text \"%s\"", key);
	return json_string_value(v);
}

uint64_t
om_index_whole(struct om_index *l, const json_t *map, const char *key)
{
	uint64_t n = om_json_whole(json_object_get(map, key));

	if (n == UINT64_MAX)
		om_index_bad(l, "index.json", "has no whole number \"%s\"", key);
	return n;
}

static int
by_tensor(const void *a, const void *b)
{
	const struct om_index_row *x = a, *y = b;
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
read_row(struct om_index *l, struct om_index_row *row)
{
	const json_t *slice = json_object_get(row->map, "slice");
	const char *bracket = strrchr(row->name, '[');
	struct om_st_tensor t = { 0 };
	uint64_t numel = 1;
	char *name;

	read_shape(row->map, &t);
	for (int i = 0; i < t.ndims; i++)
		if (__builtin_mul_overflow(numel, t.dim[i], &numel))
			om_index_bad(
			    l, "index.json", "the shape of %s is beyond all memory", row->name);
	row->tensor = om_text("%s", row->name);
	row->end = numel;
	if (slice && bracket) {
		row->begin = om_json_whole(json_array_get(slice, 0));
		row->end = om_json_whole(json_array_get(slice, 1));
		row->tensor[strlen(row->tensor) - strlen(bracket)] = 0;
	}
	name = om_ckpt_slice_name(row->tensor, row->begin, row->end, numel);
	if (strcmp(name, row->name) != 0)
		om_index_bad(l, "index.json", "the slice of %s is wrong", row->name);
	free(name);
}

/* The whole of index.json, after its own checksum. */
char *
om_index_read(struct om_index *l, size_t *n)
{
	static const char last[] = "\"crc32c\": \"", format[] = "\"crc32c\": \"12345678\"}\n";
	char *name = om_text("%s/index.json", l->path);
	size_t tail = sizeof format - 1;
	char *s = om_file_read(name, INDEX_MOST, n);

	free(name);
	if (!s)
		om_index_bad(l, "index.json", "%s", om_file_why());
	if (*n < tail || strncmp(s + *n - tail, last, sizeof last - 1) != 0 ||
	    strtoul(s + *n - tail + sizeof last - 1, NULL, 16) != om_crc32c(0, s, *n - tail))
		om_index_bad(l, "index.json", "is damaged");
	return s;
}

/* Takes it apart, and sorts its tensors. */
void
om_index_parse(struct om_index *l, const char *s, size_t n)
{
	char why[OM_JSON_WHY];
	json_t *tensors;
	const char *name;
	uint64_t format;
	json_t *map;

	if (!(l->doc = om_json_parse(s, n, why)))
		om_index_bad(l, "index.json", "is damaged: %s", why);
	if ((format = om_index_whole(l, l->doc, "format")) != OM_CKPT_FORMAT)
		om_index_bad(l, "index.json", "is format %llu, this trainer reads %d",
		    (unsigned long long)format, OM_CKPT_FORMAT);
	tensors = json_object_get(l->doc, "tensors");
	if (!json_is_object(tensors))
		om_index_bad(l, "index.json", "has no \"tensors\"");
	l->row = om_alloc(json_object_size(tensors), sizeof *l->row);
	json_object_foreach(tensors, name, map)
	{
		struct om_index_row *row = &l->row[l->n++];

		row->name = name;
		row->map = map;
		read_row(l, row);
	}
	qsort(l->row, l->n, sizeof *l->row, by_tensor);
}

/* The first row of a tensor, NULL: there is none. The next ones follow. */
const struct om_index_row *
om_index_find(const struct om_index *l, const char *tensor)
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

const struct om_index_row *
om_index_next(const struct om_index *l, const struct om_index_row *row)
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
bool
om_index_differs(struct om_index *l, const struct om_entry *e, char *what, size_t size)
{
	char mine[64], theirs[64];
	const struct om_st_tensor *t = &e->t;
	const struct om_index_row *row = om_index_find(l, t->name);
	uint64_t at = 0;

	shape_text(mine, t);
	if (!row) {
		snprintf(what, size, "tensor %s %s is missing", t->name, mine);
		return true;
	}
	for (; row; at = row->end, row = om_index_next(l, row)) {
		struct om_st_tensor other = { 0 };
		const char *dtype = om_index_text(l, row->map, "dtype");

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
	if (!row && at == e->numel)
		return false;
	snprintf(what, size, "tensor %s %s is %s element %llu", t->name, mine,
	    row && row->begin < at ? "there twice at" : "missing from", (unsigned long long)at);
	return true;
}

/* Of the same model in other numbers, no older checkpoint is any better. */
static void
check_precision(struct om_index *l, const struct om_entry *e, uint32_t n)
{
	const struct om_index_row *row = n ? om_index_find(l, e[0].t.name) : NULL;
	const char *dtype = row ? om_index_text(l, row->map, "dtype") : NULL;

	if (dtype && strcmp(dtype, e[0].t.dtype) != 0)
		om_die("checkpoint",
		    "%s holds %s, this trainer has %s, by its precision { optimizer = \"%s\" }; "
		    "resume with the trainer that wrote it, or %s",
		    l->path, dtype, e[0].t.dtype, l->k->m->optimizer,
		    l->k->m->hf_config ? "take its weights over by export and import"
				       : "give another checkpoint.dir");
}

void
om_index_facts(const struct om_index *l, char *what, size_t size)
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

/* Whether fields of that name may differ in a model that has more experts than the other. */
static bool
may_differ(const char *name)
{
	static const char *const free_ones[] = { "feed_forward", "init.", "batch.",
		"lm_head.z_loss", "sequence_length" };
	static const char *const strict[] = { "feed_forward.activation",
		"feed_forward.router.score", "feed_forward.router.normalize",
		"feed_forward.router.weight_scale", "feed_forward.router.n_groups",
		"feed_forward.router.top_groups" };
	bool may = false;

	for (size_t i = 0; i < OM_LEN(free_ones); i++)
		may |= strncmp(name, free_ones[i], strlen(free_ones[i])) == 0;
	for (size_t i = 0; i < OM_LEN(strict); i++)
		may &= strcmp(name, strict[i]) != 0;
	return may;
}

void
om_index_related(struct om_index *l)
{
	const json_t *theirs = json_object_get(l->doc, "description");

	for (const char *fact = l->k->m->facts; fact && *fact; fact += strcspn(fact, "\n") + 1) {
		const char *is = strstr(fact, " = ") + 3;
		char *name = om_text("%.*s", (int)(is - 3 - fact), fact);
		char *mine = om_text("%.*s", (int)strcspn(is, "\n"), is);
		const char *other = json_string_value(json_object_get(theirs, name));

		/* a dense model says nothing of routers */
		if (!may_differ(name) && (other || strncmp(name, "feed_forward.", 13) != 0) &&
		    (!other || strcmp(other, mine) != 0))
			om_die("import",
			    "%s: %s is %s there, %s here; only experts, and what is said of "
			    "training, may differ",
			    l->path, name, other ? other : "not", mine);
		free(name);
		free(mine);
	}
}

void
om_index_shape(const struct om_index_row *row, struct om_st_tensor *t)
{
	read_shape(row->map, t);
}

static int
by_string(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Whether the moments are another optimizer's. what: how many there are of each kind. */
static bool
other_optimizer(const struct om_index *l, char *what, size_t size)
{
	enum { KINDS = 8 };
	const char *theirs = json_string_value(json_object_get(l->doc, "muon")), *kind[KINDS];
	uint32_t count[KINDS] = { 0 };
	size_t n = 0, at = 0;

	for (uint32_t i = 0; i < l->n; i++) {
		const char *is = l->row[i].begin ? NULL : om_ckpt_moment(l->row[i].tensor);
		size_t k = 0;

		while (is && k < n && strcmp(kind[k], is) != 0)
			k++;
		if (!is)
			continue;
		kind[k] = is;
		count[k]++;
		n += k == n;
	}
	*what = 0;
	for (size_t k = 0; k < n && at < size; k++)
		at += (size_t)snprintf(what + at, size - at, "%s%.*s of %s", at ? ", " : "",
		    (int)strlen(kind[k]) - 1, kind[k], om_count(count[k], "tensor"));
	return strcmp(theirs ? theirs : "", l->k->m->muon ? l->k->m->muon : "") != 0;
}

bool
om_index_goes_on(const struct om_index *l, const char *name)
{
	return !(l->fresh && om_ckpt_moment(name)) && (l->averages || !om_ckpt_is_average(name));
}

void
om_index_check(struct om_index *l, const struct om_entry *e, uint32_t n, const uint32_t all[3],
    char *others, size_t size)
{
	const struct om_model *m = l->k->m;
	const char *print = om_index_text(l, l->doc, "fingerprint");
	char what[1024] = "", facts[1024];
	uint32_t theirs = 0, mine;

	l->fresh = strcmp(print, m->fingerprint) == 0 && other_optimizer(l, others, size);
	for (uint32_t i = 0; i < l->n && all[2] > all[1]; i++)
		l->averages = l->averages || om_ckpt_is_average(l->row[i].tensor);
	mine = all[!l->fresh] + (l->averages ? all[2] - all[1] : 0);
	for (uint32_t i = 0; i < n; i++)
		if (om_index_goes_on(l, e[i].t.name) &&
		    om_index_differs(l, &e[i], what, sizeof what))
			break;
	om_index_facts(l, facts, sizeof facts);
	if (strcmp(print, m->fingerprint) != 0)
		om_die("checkpoint",
		    "%s is of model %s (%.12s), this trainer is %s (%.12s)%s%s; resume with the "
		    "trainer "
		    "that wrote it, or give another checkpoint.dir",
		    l->path, om_index_text(l, l->doc, "model"), print, m->name, m->fingerprint,
		    *facts || *what ? ": " : "", *facts ? facts : what);
	check_precision(l, e, n);
	if (*what)
		om_index_bad(l, "index.json", "%s", what);
	for (uint32_t i = 0; i < l->n; i++)
		theirs += !l->row[i].begin && om_index_goes_on(l, l->row[i].tensor);
	if (theirs != mine)
		om_index_bad(l, "index.json", "has %u tensors, the trainer %u", theirs, mine);
}

void
om_index_check_some(struct om_index *l, const struct om_entry *e, uint32_t n,
    bool (*wanted)(const void *arg, const char *name), const void *arg)
{
	const char **own = om_alloc(n, sizeof *own), *name;
	char what[1024];

	check_precision(l, e, n);
	for (uint32_t i = 0; i < n; i++) {
		own[i] = e[i].t.name;
		if (!e[i].file && wanted(arg, own[i]) &&
		    om_index_differs(l, &e[i], what, sizeof what))
			om_die("checkpoint",
			    "%s: %s; leave it out by checkpoint.leave, and it begins as in a new "
			    "run",
			    l->path, what);
	}
	qsort(own, n, sizeof *own, by_string);
	for (uint32_t i = 0; i < l->n; i++) {
		name = l->row[i].tensor;
		if (!om_ckpt_moment(name) && wanted(arg, name) &&
		    !bsearch(&name, own, n, sizeof *own, by_string))
			om_die("checkpoint",
			    "%s: tensor %s is none of this trainer's; leave it out by "
			    "checkpoint.leave",
			    l->path, name);
	}
	free(own);
}

/* Bytes of a number in a checkpoint. */
size_t
om_index_size(const char *dtype)
{
	return strcmp(dtype, "BF16") == 0 ? 2 : strcmp(dtype, "F64") == 0 ? 8 : 4;
}

/* The tensor of a row in its shard, as index.json says it is. */
const struct om_st_tensor *
om_index_tensor(struct om_index *l, const struct om_index_row *row, const struct om_entry *e,
    const struct om_st *st)
{
	const struct om_st_tensor *t = om_st_find(st, row->name);
	const char *file = om_index_text(l, row->map, "file"),
		   *dtype = om_index_text(l, row->map, "dtype");
	uint64_t numel = row->end - row->begin;
	bool whole = numel == e->numel;

	if (!t)
		om_index_bad(l, file, "tensor %s is missing", row->name);
	if (strcmp(t->dtype, dtype) != 0 || t->end - t->begin != numel * om_index_size(dtype) ||
	    (whole && (t->ndims != e->t.ndims || memcmp(t->dim, e->t.dim, sizeof t->dim) != 0)))
		om_index_bad(l, file, "tensor %s has another shape than in index.json", row->name);
	return t;
}

/* What was read of a row, all of it, has its checksum. */
void
om_index_sum(struct om_index *l, const struct om_index_row *row, uint32_t crc)
{
	const char *is = om_index_text(l, row->map, "crc32c");

	if (strtoul(is, NULL, 16) != crc)
		om_index_bad(l, om_index_text(l, row->map, "file"),
		    "tensor %s: its checksum is %08x, index.json says %s: the file is damaged",
		    row->name, crc, is);
}

void
om_index_free(struct om_index *l)
{
	json_decref(l->doc);
	for (uint32_t i = 0; i < l->n; i++)
		free(l->row[i].tensor);
	free(l->row);
}
