/*
 * One safetensors file: eight bytes of length, a JSON object { name: { dtype, shape, data_offsets }
 * }, and the tensors' bytes without a hole.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"
#include "om_rt.h"

enum { ST_WHY = 2 * OM_JSON_WHY };

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

static const struct om_format formats[] = {
#define FORMAT(name, bits, block, scale, rows, wider, c, safetensors) { #name, safetensors, bits },
#include "format.def"
#undef FORMAT
};

const struct om_format *
om_format(const char *name)
{
	for (size_t i = 0; i < OM_LEN(formats); i++)
		if (strcmp(formats[i].name, name) == 0)
			return &formats[i];
	return NULL;
}

/* NULL, or what is wrong with a tensor's entry. */
static const char *
tensor_parse(const json_t *entry, struct om_st_tensor *t)
{
	const json_t *shape = json_object_get(entry, "shape");
	const json_t *offsets = json_object_get(entry, "data_offsets");
	const char *dtype = json_string_value(json_object_get(entry, "dtype"));
	uint64_t bits = 0;

	for (size_t i = 0; dtype && *dtype && i < OM_LEN(formats); i++)
		if (strcmp(dtype, formats[i].dtype) == 0) {
			t->dtype = formats[i].dtype;
			bits = formats[i].bits;
		}
	if (!t->dtype)
		return "its dtype is not one of the format's";
	if (!json_is_array(shape) || json_array_size(shape) > OM_ST_DIMS)
		return "its shape is not a list of at most 8 sizes";
	for (t->ndims = 0; t->ndims < (int)json_array_size(shape); t->ndims++) {
		uint64_t n = om_json_whole(json_array_get(shape, (size_t)t->ndims));

		if (n == UINT64_MAX)
			return "its shape has what is not a size";
		if (__builtin_mul_overflow(bits, n, &bits))
			return "its shape is beyond all memory";
		t->dim[t->ndims] = n;
	}
	t->begin = om_json_whole(json_array_get(offsets, 0));
	t->end = om_json_whole(json_array_get(offsets, 1));
	if (json_array_size(offsets) != 2 || t->end == UINT64_MAX || t->begin > t->end)
		return "its data_offsets are not a first and a last byte";
	if (bits % 8 || bits / 8 != t->end - t->begin)
		return "its data_offsets are not as far apart as its shape and dtype say";
	return NULL;
}

static int
by_begin(const void *a, const void *b)
{
	const struct om_st_tensor *x = a, *y = b;

	/* those without elements before the one that begins where they are */
	return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1)
	       : x->end != y->end   ? (x->end < y->end ? -1 : 1)
				    : strcmp(x->name, y->name);
}

static int
by_name(const void *a, const void *b)
{
	return strcmp(
	    ((const struct om_st_tensor *)a)->name, ((const struct om_st_tensor *)b)->name);
}

static const char *
header_parse(struct om_st *st, json_t *root, char why[ST_WHY])
{
	const char *name, *wrong;
	json_t *entry;
	uint64_t at = 0;

	st->tensor = om_alloc(json_object_size(root), sizeof *st->tensor);
	json_object_foreach(root, name, entry)
	{
		if (strcmp(name, "__metadata__") == 0)
			continue;
		if ((wrong = tensor_parse(entry, &st->tensor[st->n]))) {
			snprintf(why, ST_WHY, "its header's entry of %s is wrong: %s",
			    om_clip(name), wrong);
			return why;
		}
		st->tensor[st->n++].name = om_text("%s", name);
	}
	qsort(st->tensor, st->n, sizeof *st->tensor, by_begin);
	for (uint32_t i = 0; i < st->n; at = st->tensor[i++].end)
		if (st->tensor[i].begin != at) {
			snprintf(why, ST_WHY,
			    "its tensors overlap or leave holes: %s begins at byte %llu, the "
			    "one "
			    "before it ends at %llu",
			    om_clip(st->tensor[i].name), (unsigned long long)st->tensor[i].begin,
			    (unsigned long long)at);
			return why;
		}
	if (at != st->size - st->data)
		return at > st->size - st->data ? "it is truncated"
						: "it goes on after its last tensor";
	qsort(st->tensor, st->n, sizeof *st->tensor, by_name);
	return NULL;
}

/* What a file is whose header would not end within it. */
static const char *
other(const struct om_st *st)
{
	unsigned char head[512] = { 0 };
	size_t n = st->size < sizeof head ? (size_t)st->size : sizeof head;
	const char *what =
	    om_pread_all(st->fd, head, n, 0) ? om_filetype_known(head, n, st->size) : NULL;

	return what ? what : "it is truncated, or not a safetensors file";
}

/* Reads and checks the header of what has just been opened. */
static const char *
header_read(struct om_st *st, char why[ST_WHY])
{
	unsigned char length[8];
	char json[OM_JSON_WHY];
	uint64_t n = 0;
	const char *wrong;
	json_t *root;
	char *text;

	if (!om_pread_all(st->fd, length, 8, 0))
		return errno ? strerror(errno) : "it is truncated";
	for (int i = 0; i < 8; i++)
		n |= (uint64_t)length[i] << 8 * i;
	if (n > st->size - 8)
		return other(st);
	if (n > OM_JSON_MOST)
		return "its header is over 100 MB long, the most that is read";
	st->data = n + 8;
	text = om_alloc((size_t)n + 1, 1);
	if (!om_pread_all(st->fd, text, (size_t)n, 8)) {
		free(text);
		return errno ? strerror(errno) : "it is truncated";
	}
	root = om_json_parse(text, (size_t)n, json);
	free(text);
	if (!root) {
		snprintf(why, ST_WHY, "its header is damaged: %s", json);
		return why;
	}
	wrong = header_parse(st, root, why);
	json_decref(root);
	return wrong;
}

const char *
om_st_open(struct om_st *st, const char *path)
{
	static char why[ST_WHY];

	memset(st, 0, sizeof *st);
	if ((st->fd = om_open_regular(path, &st->size)) < 0)
		return om_file_why();
	return header_read(st, why);
}

const char *
om_st_again(struct om_st *st, const char *path)
{
	uint64_t size;

	if (st->fd < 0 && (st->fd = om_open_regular(path, &size)) < 0)
		return om_file_why();
	return NULL;
}

void
om_st_rest(struct om_st *st)
{
	if (st->fd >= 0)
		close(st->fd);
	st->fd = -1;
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
	om_st_rest(st);
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
