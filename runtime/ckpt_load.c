/*
 * Loading a checkpoint: index.json first, which must be whole, of this model and of these data;
 * then each tensor against its shape and checksum. Any error ends the process with nothing on disk
 * changed.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "om_rt.h"

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

/* A scalar's text, "" of anything else. */
static const char *
string(const yaml_node_t *node)
{
	return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
}

static yaml_node_t *
get(struct loader *l, const yaml_node_t *map, const char *key)
{
	if (map && map->type == YAML_MAPPING_NODE)
		for (yaml_node_pair_t *p = map->data.mapping.pairs.start;
		     p < map->data.mapping.pairs.top; p++) {
			yaml_node_t *k = yaml_document_get_node(&l->doc, p->key);

			if (strcmp(string(k), key) == 0)
				return yaml_document_get_node(&l->doc, p->value);
		}
	return NULL;
}

static const char *
text(struct loader *l, const yaml_node_t *map, const char *key)
{
	yaml_node_t *v = get(l, map, key);

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
	yaml_parser_t parser;
	yaml_node_t *root, *tensors;

	free(name);
	if (!s)
		bad(l, "index.json", "%s", strerror(errno));
	if (n < tail || strncmp(s + n - tail, last, sizeof last - 1) != 0 ||
	    strtoul(s + n - tail + sizeof last - 1, NULL, 16) != om_crc32c(0, s, n - tail))
		bad(l, "index.json", "is damaged");
	if (!yaml_parser_initialize(&parser))
		om_die("memory", "cannot start the YAML parser");
	yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&parser, (unsigned char *)s, n);
	if (!yaml_parser_load(&parser, &l->doc) || !(root = yaml_document_get_root_node(&l->doc)))
		bad(l, "index.json", "is damaged");
	yaml_parser_delete(&parser);
	free(s);
	if (strtol(text(l, root, "format"), NULL, 10) != OM_CKPT_FORMAT)
		bad(l, "index.json", "is format %s, this trainer reads %d", text(l, root, "format"),
		    OM_CKPT_FORMAT);
	tensors = get(l, root, "tensors");
	if (!tensors || tensors->type != YAML_MAPPING_NODE)
		bad(l, "index.json", "has no \"tensors\"");
	l->row =
	    om_alloc((size_t)(tensors->data.mapping.pairs.top - tensors->data.mapping.pairs.start),
		sizeof *l->row);
	for (yaml_node_pair_t *p = tensors->data.mapping.pairs.start;
	     p < tensors->data.mapping.pairs.top; p++) {
		l->row[l->n].name = string(yaml_document_get_node(&l->doc, p->key));
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
	yaml_node_t *dims = row ? get(l, row->map, "shape") : NULL;
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
			    strtoull(string(yaml_document_get_node(&l->doc, *i)), NULL, 10);
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
	yaml_node_t *data = get(l, root, "data");
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

	for (uint32_t i = 0; i < n; i++) {
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

	while (k->dir && (later = om_ckpt_newest_below(k->dir, UINT64_MAX, NULL)) > step) {
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

uint64_t
om_ckpt_resume(struct om_ckpt *k, const struct om_conf *c, unsigned char *arena)
{
	bool automatic = strcmp(c->resume, "auto") == 0;
	char *newest = om_ckpt_newest(k);
	struct loader l = { .k = k, .path = automatic ? newest : c->resume };
	const char *base;
	uint64_t step, before;
	struct om_entry *e;
	yaml_node_t *root;
	uint32_t n;

	if (strcmp(c->resume, "none") == 0) {
		if (newest)
			om_die("checkpoint",
			    "%s is here already; use checkpoint.resume=auto to go on from it, or "
			    "another "
			    "checkpoint.dir",
			    newest);
		return 0;
	}
	if (!l.path)
		return 0;
	before = automatic ? om_ckpt_newest_below(
				 k->dir, om_ckpt_newest_below(k->dir, UINT64_MAX, NULL), NULL)
			   : 0;
	if (before) {
		char *path = om_ckpt_step_path(k->dir, "", before);

		l.remedy = om_text("resume from the one before it by checkpoint.resume=%s", path);
		free(path);
	} else {
		l.remedy = om_text("restore it, or start anew with another checkpoint.dir");
	}
	e = om_ckpt_entries(k->m, &n);
	root = read_index(&l);
	check_model(&l, root, e, n);
	if (!c->ignore_data)
		check_data(&l, root);
	step = strtoull(text(&l, root, "step"), NULL, 10);
	base = strrchr(l.path, '/') ? strrchr(l.path, '/') + 1 : l.path;
	if (om_ckpt_step_of(base) && om_ckpt_step_of(base) != step)
		bad(&l, "index.json", "is of step %llu, its directory is not",
		    (unsigned long long)step);
	if (step > c->steps)
		om_die("checkpoint",
		    "%s is at step %llu, past the run's end: steps is %llu; raise steps", l.path,
		    (unsigned long long)step, (unsigned long long)c->steps);
	load_tensors(&l, arena, e, n);
	set_aside(k, step);
	if (k->dir)
		om_ckpt_prune(k); /* a kill may have come between the last save and this */
	printf("checkpoint: resumed from %s\n", l.path);
	yaml_document_delete(&l.doc);
	free(l.row);
	free(l.remedy);
	free(newest);
	om_ckpt_entries_free(e, n);
	return step;
}
