/* What a target's row says. The table of them is plan's, from target.def; check is given it. */
#include <string.h>

#include "lang/lang.h"

const struct target_row *
target_find(const struct target_row *table, const char *name)
{
	for (; table->name; table++)
		if (strcmp(table->name, name) == 0)
			return table;
	return NULL;
}

uint64_t
format_bytes(const char *format)
{
	return strstr(format, "64") ? 8 : strstr(format, "16") ? 2 : 4;
}

uint64_t
target_bytes(const struct target_row *t, const char *format)
{
	uint64_t n = format_bytes(format);

	return n > t->least_bytes ? n : t->least_bytes;
}
