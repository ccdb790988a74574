/*
 * Loading a checkpoint: index.json first, which must be whole, of this model and of these data;
 * then each tensor against its shape and checksum. Any error ends the process with nothing on disk
 * changed.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

enum { CHUNK = 1 << 22 };

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
	const char *path;
	char *remedy;
	yaml_document_t doc;
	struct row { /* index.json's tensors, by name */
		const char *name;
		yaml_node_t *map;
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
text(struct loader *l, const yaml_node_t *map, const char *key)
{
	yaml_node_t *v = om_json_get(&l->doc, map, key);

	if (!v || v->type != YAML_SCALAR_NODE)
		bad(l, "index.json", "has no \"%s\"", key);
	return (const char *)v->data.scalar.value;
}

static int
by_name(const void *a, const void *b)
{
	return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

/* Reads index.json, checks its own checksum, and sorts its tensors. */
static yaml_node_t *
read_index(struct loader *l)
{
	static const char last[] = "\"crc32c\": \"", format[] = "\"crc32c\": \"12345678\"}\n";
	char *name = om_text("%s/index.json", l->path);
	size_t n = 0, tail = sizeof format - 1;
	char *s = om_file_read(name, (size_t)1 << 32, &n);
	yaml_node_t *root, *tensors;

	free(name);
	if (!s)
		bad(l, "index.json", "%s", strerror(errno));
	if (n < tail || strncmp(s + n - tail, last, sizeof last - 1) != 0 ||
	    strtoul(s + n - tail + sizeof last - 1, NULL, 16) != om_crc32c(0, s, n - tail))
		bad(l, "index.json", "is damaged");
	if (!om_json_load(&l->doc, s, n))
		bad(l, "index.json", "is damaged");
	root = yaml_document_get_root_node(&l->doc);
	free(s);
	if (strtol(text(l, root, "format"), NULL, 10) != OM_CKPT_FORMAT)
		bad(l, "index.json", "is format %s, this trainer reads %d", text(l, root, "format"),
		    OM_CKPT_FORMAT);
	tensors = om_json_get(&l->doc, root, "tensors");
	if (!tensors || tensors->type != YAML_MAPPING_NODE)
		bad(l, "index.json", "has no \"tensors\"");
	l->row =
	    om_alloc((size_t)(tensors->data.mapping.pairs.top - tensors->data.mapping.pairs.start),
		sizeof *l->row);
	for (yaml_node_pair_t *p = tensors->data.mapping.pairs.start;
	     p < tensors->data.mapping.pairs.top; p++) {
		l->row[l->n].name = om_json_text(yaml_document_get_node(&l->doc, p->key));
		l->row[l->n++].map = yaml_document_get_node(&l->doc, p->value);
	}
	qsort(l->row, l->n, sizeof *l->row, by_name);
	return root;
}

/* Says how the index's tensor differs from ours; false: it doesn't. */
static bool
differs(
    struct loader *l, const struct om_st_tensor *t, const struct row *row, char *what, size_t size)
{
	char mine[64], theirs[64];
	struct om_st_tensor other = { 0 };
	yaml_node_t *dims = row ? om_json_get(&l->doc, row->map, "shape") : NULL;
	const char *dtype;

	shape_text(mine, t);
	if (!row) {
		snprintf(what, size, "tensor %s %s is missing", t->name, mine);
		return true;
	}
	dtype = text(l, row->map, "dtype");
	if (dims && dims->type == YAML_SEQUENCE_NODE)
		for (yaml_node_item_t *i = dims->data.sequence.items.start;
		     i < dims->data.sequence.items.top && other.ndims < 2; i++)
			other.dim[other.ndims++] =
			    strtoull(om_json_text(yaml_document_get_node(&l->doc, *i)), NULL, 10);
	shape_text(theirs, &other);
	if (strcmp(mine, theirs) == 0 && strcmp(t->dtype, dtype) == 0)
		return false;
	snprintf(what, size, "tensor %s is %s %s, the trainer's is %s %s", t->name, dtype, theirs,
	    t->dtype, mine);
	return true;
}

static void
check_model(struct loader *l, yaml_node_t *root, const struct om_entry *e, uint32_t n)
{
	const struct om_model *m = l->k->m;
	const char *print = text(l, root, "fingerprint");
	char what[512] = "";

	for (uint32_t i = 0; i < n; i++) {
		struct row key = { e[i].t.name, NULL };

		if (differs(l, &e[i].t, bsearch(&key, l->row, l->n, sizeof key, by_name), what,
			sizeof what))
			break;
	}
	if (strcmp(print, m->fingerprint) != 0)
		om_die("checkpoint",
		    "%s is of model %s (%.12s), this trainer is %s (%.12s)%s%s; resume with the "
		    "trainer "
		    "that wrote it, or give another checkpoint.dir",
		    l->path, text(l, root, "model"), print, m->name, m->fingerprint,
		    *what ? "; " : "", what);
	if (*what)
		bad(l, "index.json", "%s", what);
	if (l->n != n)
		bad(l, "index.json", "has %u tensors, the trainer %u", l->n, n);
}

static void
check_data(struct loader *l, yaml_node_t *root)
{
	const struct om_data *d = l->k->data;
	yaml_node_t *data = om_json_get(&l->doc, root, "data");
	char seed[32], tokens[32], files[32], crc[32];
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
	snprintf(files, sizeof files, "%u", d->n);
	snprintf(crc, sizeof crc, "%08x", d->crc);
	for (size_t i = 0; i < OM_LEN(fact); i++)
		if (strcmp(fact[i].now, text(l, data, fact[i].key)) != 0)
			om_die("checkpoint",
			    "%s was trained with %s %s, now it is %s; restore that, or go on with "
			    "other "
			    "data by checkpoint.ignore_data=true",
			    l->path, fact[i].name, text(l, data, fact[i].key), fact[i].now);
}

static void
load_tensors(struct loader *l, unsigned char *arena, const struct om_entry *e, uint32_t n)
{
	unsigned char *buf = om_alloc(CHUNK, 1);
	const char *open = "";
	struct om_st st = { .fd = -1 };

	for (uint32_t i = 0; i < n && (l->k->data || e[i].file == 0); i++) {
		struct row key = { e[i].t.name, NULL },
			   *row = bsearch(&key, l->row, l->n, sizeof key, by_name);
		const char *file = text(l, row->map, "file"), *why;
		const char *crc_text = text(l, row->map, "crc32c");
		uint64_t left = e[i].t.end - e[i].t.begin, off = e[i].off, at;
		const struct om_st_tensor *t;
		uint32_t crc = 0;

		if (strcmp(file, open) != 0) {
			char *name = om_text("%s/%s", l->path, file);

			om_st_close(&st);
			if (strchr(file, '/') || (why = om_st_open(&st, name)))
				bad(l, file, "%s",
				    strchr(file, '/') ? "is outside of the checkpoint" : why);
			free(name);
			open = file;
		}
		if (!(t = om_st_find(&st, e[i].t.name)))
			bad(l, file, "tensor %s is missing", e[i].t.name);
		if (strcmp(t->dtype, e[i].t.dtype) != 0 || t->end - t->begin != left ||
		    t->ndims != e[i].t.ndims || memcmp(t->dim, e[i].t.dim, sizeof t->dim) != 0)
			bad(l, file, "tensor %s has another shape than in index.json", e[i].t.name);
		at = st.data + t->begin;
		for (size_t some; left; left -= some, off += some, at += some) {
			some = left < CHUNK ? (size_t)left : CHUNK;
			if (!om_pread_all(st.fd, buf, some, at))
				bad(l, file, "tensor %s: %s", e[i].t.name,
				    errno ? strerror(errno) : "truncated");
			crc = om_crc32c(crc, buf, some);
			if (e[i].file == 0)
				om_put_weights(l->k->m, arena, e[i].p,
				    e[i].first + (off - e[i].off) / l->k->m->real, buf,
				    some / l->k->m->real);
			else
				om_put(arena, off, buf, some);
		}
		if (strtoul(crc_text, NULL, 16) != crc)
			bad(l, file,
			    "tensor %s: its checksum is %08x, index.json says %s: the file is "
			    "damaged",
			    e[i].t.name, crc, crc_text);
	}
	om_st_close(&st);
	free(buf);
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
load_skip(struct loader *l, yaml_node_t *root)
{
	static const char *const name[] = { "loss", "norm" };
	struct om_skip *s = l->k->skip;
	yaml_node_t *map = om_json_get(&l->doc, root, "skip_step");
	ptrdiff_t n[2];

	if (!map)
		return;
	s->total = strtoull(text(l, map, "skipped"), NULL, 10);
	s->row = strtoull(text(l, map, "in_a_row"), NULL, 10);
	for (int i = 0; i < 2; i++) {
		yaml_node_t *list = om_json_get(&l->doc, map, name[i]);
		yaml_node_item_t *item;

		if (!list || list->type != YAML_SEQUENCE_NODE)
			bad(l, "index.json", "has no \"%s\"", name[i]);
		item = list->data.sequence.items.top;
		n[i] = item - list->data.sequence.items.start;
		if (n[i] != n[0])
			bad(l, "index.json", "has %td losses and %td norms", n[0], n[i]);
		s->n = s->sigma > 0 ? (uint32_t)(n[i] < s->window ? n[i] : s->window) : 0;
		for (uint32_t j = s->n; j-- > 0;) /* the newest, if the window is shorter now */
			s->last[i][j] =
			    strtod(om_json_text(yaml_document_get_node(&l->doc, *--item)), NULL);
	}
}

/* Loads all of the checkpoint, or of one that is not trained on the weights; gives its step. */
static uint64_t
load(struct loader *l, const struct om_conf *c, unsigned char *arena)
{
	const struct om_ckpt *k = l->k;
	const char *base;
	struct om_entry *e;
	yaml_node_t *root;
	uint64_t step;
	uint32_t n;

	e = om_ckpt_entries(k->m, false, &n);
	root = read_index(l);
	check_model(l, root, e, n);
	if (k->data && !c->ignore_data)
		check_data(l, root);
	step = strtoull(text(l, root, "step"), NULL, 10);
	base = strrchr(l->path, '/') ? strrchr(l->path, '/') + 1 : l->path;
	if (om_ckpt_step_of(base) != OM_NO_STEP && om_ckpt_step_of(base) != step)
		bad(l, "index.json", "is of step %llu, its directory is not",
		    (unsigned long long)step);
	if (k->data && step > c->steps)
		om_die("checkpoint",
		    "%s is at step %llu, past the run's end: steps is %llu; raise steps", l->path,
		    (unsigned long long)step, (unsigned long long)c->steps);
	if (k->skip)
		load_skip(l, root);
	load_tensors(l, arena, e, n);
	yaml_document_delete(&l->doc);
	free(l->row);
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

bool
om_ckpt_resume(struct om_ckpt *k, const struct om_conf *c, unsigned char *arena, uint64_t *step)
{
	bool automatic = strcmp(c->resume, "auto") == 0;
	char *newest = om_ckpt_newest(k);
	struct loader l = { .k = k, .path = automatic ? newest : c->resume };

	*step = 0;
	if (strcmp(c->resume, "none") == 0) {
		if (newest)
			om_die("checkpoint",
			    "%s is here already; use checkpoint.resume=auto to go on from it, or "
			    "another "
			    "checkpoint.dir",
			    newest);
		return false;
	}
	if (!l.path)
		return false;
	l.remedy = remedy_new(k, automatic);
	*step = k->first = k->good = load(&l, c, arena);
	set_aside(k, *step);
	k->resumed = om_text("%s", l.path);
	k->due = k->dir; /* a kill may have come between the last save and its pruning */
	printf("checkpoint: resumed from %s\n", l.path);
	free(l.remedy);
	free(newest);
	return true;
}

uint64_t
om_ckpt_weights(const struct om_model *m, const struct om_conf *c, unsigned char *arena, FILE *f)
{
	struct om_ckpt k = { .dir = *c->dir ? c->dir : NULL, .lock = -1, .m = m };
	bool automatic = strcmp(c->resume, "auto") == 0;
	char *newest = om_ckpt_newest(&k);
	struct loader l = { .k = &k, .path = automatic ? newest : c->resume };
	uint64_t step;

	if (strcmp(c->resume, "none") == 0 || !l.path)
		om_die("checkpoint",
		    "there is none to evaluate, %s%s; set checkpoint.resume to the path of one",
		    automatic && k.dir ? k.dir : "",
		    !automatic ? "checkpoint.resume is none"
		    : k.dir    ? " has none"
			       : "checkpoint.dir is not set");
	l.remedy = remedy_new(&k, automatic);
	step = load(&l, c, arena);
	fprintf(f, "checkpoint: %s\n", l.path);
	free(l.remedy);
	free(newest);
	return step;
}

uint64_t
om_ckpt_weights_at(const struct om_model *m, const char *path, unsigned char *arena, FILE *f)
{
	bool many = om_ckpt_newest_below(path, OM_NO_STEP, NULL) != OM_NO_STEP;
	struct om_conf c = { .dir = om_text("%s", many ? path : ""),
		.resume =
		    many ? om_text("auto") : om_text("%s%s", strchr(path, '/') ? "" : "./", path) };
	uint64_t step = om_ckpt_weights(m, &c, arena, f);

	om_conf_free(&c);
	return step;
}
