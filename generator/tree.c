/*
 * An emitted tree in memory, and how it comes to disk: only what changed, through temporary names.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "olmogen.h"

struct buf *
tree_file(struct tree *t, const char *path)
{
	struct file *f = PUSH(*t);

	f->path = path;
	buf_puts(&f->text, "");
	return &f->text;
}

/* The name in a line that holds nothing but a comment with "@slot NAME". */
static const char *
slot_name(const char *line, size_t n)
{
	const char *at = NULL;

	for (size_t i = 0; i + 6 < n && !at; i++)
		if (!memcmp(line + i, "@slot ", 6))
			at = line + i + 6;
	if (!at || strspn(line, " \t/*#<!-") != (size_t)(at - 6 - line))
		return NULL;
	return xprintf("%.*s", (int)strspn(at, "abcdefghijklmnopqrstuvwxyz_"), at);
}

void
template_fill(
    struct tree *t, const char *path, const char *from, const struct slot *slot, uint32_t n)
{
	const struct embedded *e = embedded_find(from);
	struct buf *out = tree_file(t, path);
	uint32_t used = 0;

	for (const char *s = (const char *)e->data, *end = s + e->n; s < end;) {
		const char *nl = memchr(s, '\n', (size_t)(end - s));
		size_t len = nl ? (size_t)(nl - s) + 1 : (size_t)(end - s);
		const char *name = slot_name(s, len);
		uint32_t k = 0;
		if (!name) {
			buf_add(out, s, len);
		} else {
			while (k < n && strcmp(slot[k].name, name))
				k++;
			if (k == n || used & 1u << k)
				internal("%s: slot '%s' is unknown or comes twice", from, name);
			used |= 1u << k;
			buf_puts(out, slot[k].text);
		}
		s += len;
	}
	if (used != (1u << n) - 1)
		internal("%s: a slot is missing", from);
}

/* ---- disk ---- */

static bool
complain(const char *what, const char *path)
{
	fprintf(stderr, "olmogen: error: %s %s: %s\n", what, path, strerror(errno));
	return false;
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

static bool
write_file(const char *path, const struct buf *text)
{
	const char *tmp = xprintf("%s.tmp", path);
	FILE *f;

	if (!make_dirs(path))
		return false;
	f = fopen(tmp, "wb");
	if (!f)
		return complain("cannot write", tmp);
	bool ok = fwrite(text->s, 1, text->n, f) == text->n;
	ok &= !fclose(f);
	if (!ok || rename(tmp, path)) {
		complain("cannot write", path);
		remove(tmp);
		return false;
	}
	return true;
}

static bool
same(const char *path, const struct buf *text)
{
	size_t n;
	char *old = file_read(path, &n);

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

/* Files that the manifest of an earlier generation lists; nothing else is ever removed. */
static void
remove_stale(const struct tree *t, const char *dir)
{
	size_t n;
	char *text = file_read(xprintf("%s/manifest.yaml", dir), &n);
	yaml_parser_t parser;
	yaml_document_t doc;

	if (!text || !yaml_parser_initialize(&parser))
		return;
	yaml_parser_set_input_string(&parser, (unsigned char *)text, n);
	if (!yaml_parser_load(&parser, &doc)) {
		yaml_parser_delete(&parser);
		return;
	}
	for (int i = 1;; i++) {
		yaml_node_t *node = yaml_document_get_node(&doc, i);
		if (!node)
			break;
		if (node->type != YAML_MAPPING_NODE)
			continue;
		for (yaml_node_pair_t *p = node->data.mapping.pairs.start;
		     p < node->data.mapping.pairs.top; p++) {
			yaml_node_t *k = yaml_document_get_node(&doc, p->key);
			yaml_node_t *v = yaml_document_get_node(&doc, p->value);
			if (k->type != YAML_SCALAR_NODE || v->type != YAML_SCALAR_NODE ||
			    strcmp((char *)k->data.scalar.value, "file"))
				continue;
			const char *path = (char *)v->data.scalar.value;
			if (*path != '/' && !strstr(path, "..") && !in_tree(t, path))
				remove(xprintf("%s/%s", dir, path));
		}
	}
	yaml_document_delete(&doc);
	yaml_parser_delete(&parser);
}

bool
tree_write(const struct tree *t, const char *dir, bool verbose)
{
	uint32_t wrote = 0;

	remove_stale(t, dir);
	for (uint32_t i = 0; i < t->n; i++) {
		const char *path = xprintf("%s/%s", dir, t->a[i].path);
		if (same(path, &t->a[i].text))
			continue;
		if (!write_file(path, &t->a[i].text))
			return false;
		if (verbose)
			fprintf(stderr, "wrote %s\n", path);
		wrote++;
	}
	if (verbose)
		fprintf(stderr, "%s: %u of %u files written\n", dir, wrote, t->n);
	return true;
}

bool
tree_check(const struct tree *t, const char *dir)
{
	bool ok = true;

	for (uint32_t i = 0; i < t->n; i++) {
		const char *path = xprintf("%s/%s", dir, t->a[i].path);
		if (same(path, &t->a[i].text))
			continue;
		fprintf(stderr, "%s: %s\n", path, access(path, F_OK) ? "missing" : "differs");
		ok = false;
	}
	if (!ok)
		fprintf(stderr, "olmogen: error: %s is stale: generate it again\n", dir);
	return ok;
}
