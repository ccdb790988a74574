/*
 * One safetensors file: eight bytes of length, a JSON object { name: { dtype, shape, data_offsets }
 * }, and the tensors' bytes without a hole. The header is read by libyaml: JSON is YAML.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"

bool
om_pread_all(int fd, void *p, size_t n, uint64_t off)
{
	char *s = p;

	while (n) {
		ssize_t got = pread(fd, s, n, (off_t)off);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			if (!got)
				errno = 0;
			return false;
		}
		s += got;
		off += (uint64_t)got;
		n -= (size_t)got;
	}
	return true;
}

void
om_json_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++)
		if (*s == '"' || *s == '\\')
			fprintf(f, "\\%c", *s);
		else if ((unsigned char)*s < 32)
			fprintf(f, "\\u%04x", *s);
		else
			fputc(*s, f);
	fputc('"', f);
}

bool
om_st_write_header(int fd, const struct om_st_tensor *t, uint32_t n)
{
	unsigned char length[8];
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	bool ok;

	if (!f)
		return false;
	fprintf(f, "{\"__metadata__\":{\"format\":\"pt\"}");
	for (uint32_t i = 0; i < n; i++) {
		fputc(',', f);
		om_json_string(f, t[i].name);
		fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", t[i].dtype);
		for (int j = 0; j < t[i].ndims; j++)
			fprintf(f, "%s%llu", j ? "," : "", (unsigned long long)t[i].dim[j]);
		fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t[i].begin,
		    (unsigned long long)t[i].end);
	}
	fputc('}', f);
	while (fflush(f) == 0 && size % 8) /* the data begin at a multiple of 8 */
		fputc(' ', f);
	if (fclose(f) != 0) {
		free(text);
		return false;
	}
	for (int i = 0; i < 8; i++)
		length[i] = (unsigned char)((uint64_t)size >> 8 * i);
	ok = om_write_all(fd, length, 8) && om_write_all(fd, text, size);
	free(text);
	return ok;
}

/* What tensors may be of; foreign files may hold some that no trainer reads. */
static const struct {
	const char *name;
	uint64_t bytes;
} dtypes[] = {
	{ "F32", 4 },
	{ "F64", 8 },
	{ "BF16", 2 },
	{ "F16", 2 },
	{ "I64", 8 },
	{ "I32", 4 },
	{ "I16", 2 },
	{ "I8", 1 },
	{ "U8", 1 },
	{ "BOOL", 1 },
	{ "F8_E4M3", 1 },
	{ "F8_E5M2", 1 },
};

/* A whole number of a JSON sequence, UINT64_MAX: it isn't one. */
static uint64_t
number_at(yaml_document_t *doc, const yaml_node_t *seq, int i)
{
	const char *s =
	    om_json_text(yaml_document_get_node(doc, seq->data.sequence.items.start[i]));

	return *s && !s[strspn(s, "0123456789")] && strlen(s) < 19 ? strtoull(s, NULL, 10)
								   : UINT64_MAX;
}

static bool
tensor_parse(yaml_document_t *doc, yaml_node_t *map, struct om_st_tensor *t)
{
	bool shape = false, offsets = false;
	uint64_t bytes = 0;

	if (map->type != YAML_MAPPING_NODE)
		return false;
	for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
	     p++) {
		const char *key = om_json_text(yaml_document_get_node(doc, p->key));
		yaml_node_t *v = yaml_document_get_node(doc, p->value);
		bool seq = v->type == YAML_SEQUENCE_NODE;
		long n = seq ? v->data.sequence.items.top - v->data.sequence.items.start : 0;

		for (size_t i = 0; strcmp(key, "dtype") == 0 && i < OM_LEN(dtypes); i++)
			if (strcmp(om_json_text(v), dtypes[i].name) == 0) {
				t->dtype = dtypes[i].name;
				bytes = dtypes[i].bytes;
			}
		if (strcmp(key, "shape") == 0 && seq && n <= OM_ST_DIMS) {
			shape = true;
			t->ndims = (int)n;
			for (int i = 0; i < n; i++)
				t->dim[i] = number_at(doc, v, i);
		}
		if (strcmp(key, "data_offsets") == 0 && seq && n == 2) {
			offsets = true;
			t->begin = number_at(doc, v, 0);
			t->end = number_at(doc, v, 1);
		}
	}
	if (!t->dtype || !shape || !offsets || t->end < t->begin)
		return false;
	for (int i = 0; i < t->ndims; i++)
		if (t->dim[i] > UINT32_MAX || __builtin_mul_overflow(bytes, t->dim[i], &bytes))
			return false;
	return bytes == t->end - t->begin;
}

static int
by_begin(const void *a, const void *b)
{
	const struct om_st_tensor *x = a, *y = b;

	return x->begin < y->begin ? -1 : x->begin > y->begin ? 1 : strcmp(x->name, y->name);
}

static int
by_name(const void *a, const void *b)
{
	return strcmp(
	    ((const struct om_st_tensor *)a)->name, ((const struct om_st_tensor *)b)->name);
}

static const char *
header_parse(struct om_st *st, yaml_document_t *doc)
{
	static char why[256];
	yaml_node_t *root = yaml_document_get_root_node(doc);
	yaml_node_pair_t *p, *end;
	uint64_t at = 0;

	if (!root || root->type != YAML_MAPPING_NODE)
		return "its header is not a JSON object";
	p = root->data.mapping.pairs.start;
	end = root->data.mapping.pairs.top;
	st->tensor = om_alloc((size_t)(end - p), sizeof *st->tensor);
	for (; p < end; p++) {
		struct om_st_tensor *t = &st->tensor[st->n];
		const char *name = om_json_text(yaml_document_get_node(doc, p->key));

		if (strcmp(name, "__metadata__") == 0)
			continue;
		if (!tensor_parse(doc, yaml_document_get_node(doc, p->value), t)) {
			snprintf(why, sizeof why, "its header's entry of %.120s is wrong", name);
			return why;
		}
		t->name = om_text("%s", name);
		st->n++;
	}
	qsort(st->tensor, st->n, sizeof *st->tensor, by_begin);
	for (uint32_t i = 0; i < st->n; at = st->tensor[i++].end)
		if (st->tensor[i].begin != at)
			return "its tensors overlap or leave holes";
	if (st->data + at != st->size)
		return st->data + at > st->size ? "it is truncated"
						: "it goes on after its last tensor";
	qsort(st->tensor, st->n, sizeof *st->tensor, by_name);
	for (uint32_t i = 1; i < st->n; i++)
		if (strcmp(st->tensor[i - 1].name, st->tensor[i].name) == 0)
			return "it has a tensor twice";
	return NULL;
}

const char *
om_st_open(struct om_st *st, const char *path)
{
	unsigned char length[8];
	uint64_t n = 0;
	const char *why;
	yaml_document_t doc;
	struct stat s;
	char *text;

	memset(st, 0, sizeof *st);
	if ((st->fd = open(path, O_RDONLY | O_CLOEXEC)) < 0 || fstat(st->fd, &s) != 0)
		return strerror(errno);
	st->size = (uint64_t)s.st_size;
	if (!om_pread_all(st->fd, length, 8, 0))
		return errno ? strerror(errno) : "it is truncated";
	for (int i = 0; i < 8; i++)
		n |= (uint64_t)length[i] << 8 * i;
	if (n > (uint64_t)1 << 32 || n + 8 > st->size)
		return "it is truncated, or not a safetensors file";
	st->data = n + 8;
	text = om_alloc((size_t)n + 1, 1);
	if (!om_pread_all(st->fd, text, (size_t)n, 8)) {
		free(text);
		return errno ? strerror(errno) : "it is truncated";
	}
	if (om_json_load(&doc, text, (size_t)n)) {
		why = header_parse(st, &doc);
		yaml_document_delete(&doc);
	} else {
		why = "its header is damaged";
	}
	free(text);
	return why;
}

const struct om_st_tensor *
om_st_find(const struct om_st *st, const char *name)
{
	struct om_st_tensor key = { .name = (char *)(uintptr_t)name };

	return st->n ? bsearch(&key, st->tensor, st->n, sizeof key, by_name) : NULL;
}

void
om_st_close(struct om_st *st)
{
	if (st->fd >= 0)
		close(st->fd);
	for (uint32_t i = 0; i < st->n; i++)
		free(st->tensor[i].name);
	free(st->tensor);
	memset(st, 0, sizeof *st);
	st->fd = -1;
}

/* The float of a half: its subnormals are normal numbers here. */
static float
half(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, part = h & 1023;
	uint32_t bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | part << 13;
	float x;

	if (!exponent) {
		x = (float)part * 0x1p-24f;
		return sign ? -x : x;
	}
	memcpy(&x, &bits, sizeof x);
	return x;
}

bool
om_st_floats(const char *dtype, const void *p, size_t n, float *x)
{
	uint16_t h;

	if (strcmp(dtype, "F32") == 0) {
		memcpy(x, p, n * sizeof *x);
		return true;
	}
	if (strcmp(dtype, "F16") != 0 && strcmp(dtype, "BF16") != 0)
		return false;
	for (size_t i = 0; i < n; i++) {
		memcpy(&h, (const char *)p + 2 * i, sizeof h);
		if (*dtype == 'F')
			x[i] = half(h);
		else
			memcpy(&x[i], &(uint32_t){ (uint32_t)h << 16 }, sizeof *x);
	}
	return true;
}
