/*
 * What a target's row says, and a format's. The table of targets is plan's, from target.def; check
 * is given it.
 */
#include <string.h>

#include "lang/lang.h"

static const struct format formats[] = {
#define FORMAT(name, bits, block, scale, rows, wider, c, safetensors) \
	{ #name, scale, wider, c, bits, block, rows },
#include "format.def"
#undef FORMAT
};

const struct format *
format_find(const char *name)
{
	for (uint32_t i = 0; i < LEN(formats); i++)
		if (!strcmp(formats[i].name, name))
			return &formats[i];
	internal("there is no format '%s'", name);
}

uint64_t
format_bytes(const struct format *f, uint64_t n)
{
	uint64_t bytes = size_align(size_mul(n, f->bits), 8) / 8;

	if (f->block > 1)
		bytes = size_add(
		    bytes, format_bytes(format_find(f->scale), (n + f->block - 1) / f->block));
	return bytes;
}

const struct target_row *
target_find(const struct target_row *table, const char *name)
{
	for (; table->name; table++)
		if (strcmp(table->name, name) == 0)
			return table;
	return NULL;
}

const struct format *
target_format(const struct target_row *t, const struct format *f)
{
	while (f->bits < 8 * t->kind->least_bytes && *f->wider)
		f = format_find(f->wider);
	return f;
}

uint64_t
target_bytes(const struct target_row *t, const struct format *f, uint64_t n)
{
	return format_bytes(target_format(t, f), n);
}
