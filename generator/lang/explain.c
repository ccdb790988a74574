/* --explain: the language's table, for people. */
#include <string.h>

#include "lang/lang.h"

enum { COLUMN = 22 };

static const char *
default_text(const struct field_row *row)
{
	if (!row->dflt)
		return "required";
	return *row->dflt ? xprintf("default %s", row->dflt) : "default depends";
}

static void
explain_object(enum object_type type)
{
	printf("%s { ... }: %s\n", objects[type].name, objects[type].doc);
	for (uint32_t f = 0; f < N_FIELDS; f++)
		if (fields[f].object == type)
			printf("  %-*s%s; %s\n  %-*s%s\n", COLUMN, fields[f].name, spec_range(f),
			    default_text(&fields[f]), COLUMN, "", fields[f].doc);
}

/* The name that was meant: an object, a field, or an object's field. */
static const char *
suggestion(const char *what)
{
	const char *name[N_OBJECTS + 2 * N_FIELDS];
	uint32_t n = 0;
	for (uint32_t t = OBJ_none + 1; t < N_OBJECTS; t++)
		name[n++] = objects[t].name;
	for (uint32_t f = 0; f < N_FIELDS; f++)
		name[n++] = fields[f].name;
	for (uint32_t f = 0; f < N_FIELDS; f++)
		name[n++] = spec_name(f);
	return diag_closest(what, name, n);
}

bool
explain(const char *what)
{
	bool found = false;
	for (uint32_t t = OBJ_none + 1; t < N_OBJECTS; t++) {
		if (what && strcmp(what, objects[t].name) != 0)
			continue;
		printf("%s", found ? "\n" : "");
		explain_object(t);
		found = true;
	}
	for (uint32_t f = 0; what && f < N_FIELDS; f++) {
		if (strcmp(what, fields[f].name) != 0 && strcmp(what, spec_name(f)) != 0)
			continue;
		printf("%s%s\n", found ? "\n" : "", spec_name(f));
		printf("  %s; %s\n  %s\n", spec_range(f), default_text(&fields[f]), fields[f].doc);
		found = true;
	}
	if (found)
		return true;
	const char *like = suggestion(what);
	diag_error((struct pos){ 0 }, "nothing is called %s%s", what,
	    like ? xprintf("; did you mean %s?", like) : "");
	if (!like) {
		struct buf b = { 0 };
		for (uint32_t t = OBJ_none + 1; t < N_OBJECTS; t++)
			buf_printf(&b, "%s%s", b.n ? ", " : "", objects[t].name);
		diag_help("there are %s", b.s);
	}
	diag_flush();
	return false;
}
