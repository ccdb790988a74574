/*
 * An emitted tree in memory, and how it comes to disk: only what changed, through temporary names.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "emit/emit.h"
#include "yaml_limits.h"

#define MANIFEST "manifest.yaml"

struct buf *
tree_file(struct tree *t, const char *path)
{
	struct file *f = PUSH(*t);

	f->path = path;
	buf_puts(&f->text, "");
	return &f->text;
}

/* ---- disk ---- */

static bool
complain(const char *what, const char *path)
{
	return diag_failed("%s %s: %s", what, path, strerror(errno));
}

static bool
make_dirs(const char *path)
{
	char *p = xstrdup(path);

	for (char *s = p + 1; *s; s++)
		if (*s == '/') {
			*s = 0;
			if (mkdir(p, 0777) && errno != EEXIST)
				return complain("cannot make folder", p);
			*s = '/';
		}
	return true;
}

bool
tree_replace(const char *path, const char *through, const struct buf *text)
{
	FILE *f = fopen(through, "wb");
	bool ok = f && fwrite(text->s, 1, text->n, f) == text->n;

	if (f)
		ok &= !fclose(f);
	ok = ok && !rename(through, path);
	if (!ok) {
		int why = errno;
		unlink(through);
		errno = why;
	}
	return ok;
}

bool
tree_same(const char *path, const struct buf *text)
{
	size_t n;
	char *old = om_file_read(path, FILE_MOST, &n);

	return old && n == text->n && !memcmp(old, text->s, n);
}

static bool
in_tree(const struct tree *t, const char *path)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (!strcmp(t->a[i].path, path))
			return true;
	return false;
}

/* What a map has under a key; NULL: nothing of that type, or it is no map. */
static yaml_node_t *
member(yaml_document_t *doc, yaml_node_t *map, const char *key, yaml_node_type_t type)
{
	bool is_map = map && map->type == YAML_MAPPING_NODE;

	for (yaml_node_pair_t *p = is_map ? map->data.mapping.pairs.start : NULL;
	     is_map && p < map->data.mapping.pairs.top; p++) {
		yaml_node_t *k = yaml_document_get_node(doc, p->key);
		yaml_node_t *v = yaml_document_get_node(doc, p->value);
		if (k->type == YAML_SCALAR_NODE && !strcmp((char *)k->data.scalar.value, key))
			return v->type == type ? v : NULL;
	}
	return NULL;
}

static const char *
text_of(yaml_document_t *doc, yaml_node_t *map, const char *key)
{
	yaml_node_t *n = member(doc, map, key, YAML_SCALAR_NODE);
	const char *s = n ? (char *)n->data.scalar.value : NULL;

	return s && strlen(s) == n->data.scalar.length ? s : NULL;
}

/*
 * Removes what an earlier generation wrote, by its manifest, and this one does not; edited files
 * stay.
 */
static void
remove_stale(const struct tree *t, const char *dir, yaml_document_t *doc, yaml_node_t *files)
{
	for (yaml_node_item_t *i = files->data.sequence.items.start;
	     i < files->data.sequence.items.top; i++) {
		yaml_node_t *item = yaml_document_get_node(doc, *i);
		const char *file = text_of(doc, item, "file"), *sum = text_of(doc, item, "sha256");
		if (!file || !sum || *file == '/' || strstr(file, "..") || in_tree(t, file))
			continue;
		const char *path = xprintf("%s/%s", dir, file);
		size_t n;
		char *old = om_file_read(path, FILE_MOST, &n);
		if (old && !strcmp(sha256_hex(old, n), sum))
			remove(path);
	}
}

/* Whether nothing is in the folder, or the manifest that an olmogen was stopped in writing. */
static bool
is_empty(const char *dir)
{
	DIR *d = opendir(dir);
	bool empty = true;

	for (struct dirent *e; d && (e = readdir(d));)
		empty &= !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
			 !strcmp(e->d_name, MANIFEST ".tmp");
	if (d)
		closedir(d);
	return empty;
}

/* Whether the folder may be written: it is new, or empty, or holds a tree of olmogen's. */
static bool
take_over(const struct tree *t, const char *dir)
{
	size_t n;
	char *text = om_file_read(xprintf("%s/" MANIFEST, dir), FILE_MOST, &n);
	yaml_parser_t parser;
	yaml_document_t doc;
	yaml_mark_t at;
	bool ours = false;

	if (text && !om_yaml_limits(text, n, &at) && yaml_parser_initialize(&parser)) {
		yaml_parser_set_input_string(&parser, (unsigned char *)text, n);
		if (yaml_parser_load(&parser, &doc)) {
			yaml_node_t *root = yaml_document_get_root_node(&doc);
			yaml_node_t *files = member(&doc, root, "files", YAML_SEQUENCE_NODE);
			ours = files && text_of(&doc, root, "olmogen") &&
			       text_of(&doc, root, "schema");
			if (ours)
				remove_stale(t, dir, &doc, files);
			yaml_document_delete(&doc);
		}
		yaml_parser_delete(&parser);
	}
	if (ours || is_empty(dir))
		return true;
	return diag_failed("%s holds files, but no " MANIFEST
			   " of olmogen's; give -o a new or an empty folder",
	    dir);
}

/* One olmogen at a time in a folder; the lock ends with the process. */
static bool
lock(const char *dir)
{
	int fd;

	if (!make_dirs(xprintf("%s/", dir)))
		return false;
	fd = open(dir, O_RDONLY | O_DIRECTORY);
	if (fd < 0 && errno == ENOENT) { /* mkdir found something all the same */
		char to[4096];
		ssize_t n = readlink(dir, to, sizeof to);
		return diag_failed("%s is a link to %.*s, which is not there: make that folder, or "
				   "remove the link",
		    dir, n < 0 ? 0 : (int)n, to);
	}
	if (fd < 0)
		return complain("cannot open folder", dir);
	return !flock(fd, LOCK_EX | LOCK_NB) ||
	       diag_failed("another olmogen is writing to %s", dir);
}

/*
 * The manifest comes first: it says that the folder is ours, so that a generation which a full disk
 * or a signal ended can be repeated in it.
 */
bool
tree_write(const struct tree *t, const char *dir, bool verbose)
{
	uint32_t wrote = 0;

	if (!lock(dir) || !take_over(t, dir))
		return false;
	for (uint32_t k = 0; k < 2 * t->n; k++) {
		const struct file *f = &t->a[k % t->n];
		const char *path = xprintf("%s/%s", dir, f->path);
		if ((k < t->n) != !strcmp(f->path, MANIFEST) || tree_same(path, &f->text))
			continue;
		if (!make_dirs(path))
			return false;
		if (!tree_replace(path, xprintf("%s.tmp", path), &f->text))
			return complain("cannot write", path);
		if (verbose)
			fprintf(stderr, "wrote %s\n", path);
		wrote++;
	}
	if (verbose)
		fprintf(stderr, "%s: %u of %u file%s written\n", dir, wrote, t->n,
		    t->n == 1 ? "" : "s");
	return true;
}

bool
tree_check(const struct tree *t, const char *dir)
{
	bool ok = true;

	for (uint32_t i = 0; i < t->n; i++) {
		const char *path = xprintf("%s/%s", dir, t->a[i].path);
		if (tree_same(path, &t->a[i].text))
			continue;
		fprintf(stderr, "%s: %s\n", path, access(path, F_OK) ? "missing" : "differs");
		ok = false;
	}
	return ok || diag_failed("%s is stale: generate it again", dir);
}
