/* The table of run.yaml's keys: what each may hold, what is close to a wrong one, and how help
 * prints it. */
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"

const struct om_key om_keys[OM_NKEYS] = {
#define KEY(name, kind, member, min, max, initial, choices, doc) \
	{ name, OM_##kind, offsetof(struct om_conf, member), min, max, initial, choices, doc },
#define FIXED(name, lua)
#include "key.def"
#undef KEY
#undef FIXED
};

static const struct {
	const char *name, *lua;
} fixed[] = {
#define KEY(name, kind, member, min, max, initial, choices, doc)
#define FIXED(name, lua) { name, lua },
#include "key.def"
};

const struct om_key *
om_key_find(const char *name)
{
	for (const struct om_key *k = om_keys; k < om_keys + OM_NKEYS; k++)
		if (strcmp(k->name, name) == 0)
			return k;
	abort();
}

const char *
om_key_fixed(const char *name)
{
	for (size_t i = 0; i < OM_LEN(fixed); i++)
		if (strcmp(fixed[i].name, name) == 0)
			return fixed[i].lua;
	return NULL;
}

void
om_keys_of(const char *section, size_t n, char *text, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; i < OM_NKEYS; i++)
		if (!n ||
		    (strncmp(om_keys[i].name, section, n) == 0 && om_keys[i].name[n] == '.')) {
			const char *name = om_keys[i].name + (n ? n + 1 : 0);
			size_t len = n ? strlen(name) : strcspn(name, ".");

			if (!n && i && strncmp(om_keys[i - 1].name, name, len) == 0 &&
			    strchr(". ", om_keys[i - 1].name[len] ? om_keys[i - 1].name[len] : ' '))
				continue; /* this section is listed */
			used += (size_t)snprintf(
			    text + used, size - used, "%s%.*s", used ? ", " : "", (int)len, name);
		}
}

const char *
om_key_closest(const char *name, bool section)
{
	static char text[64];
	const char *last = strrchr(name, '.');
	uint32_t least = UINT32_MAX, room;

	last = last ? last + 1 : name;
	room = strlen(last) < 6 ? 1 : (uint32_t)strlen(last) / 3;
	for (size_t i = 0; i < OM_NKEYS; i++) {
		const char *dot = strchr(om_keys[i].name, '.');
		char whole[64];
		uint32_t d, part = UINT32_MAX;

		if (section && !dot)
			continue;
		snprintf(whole, sizeof whole, "%.*s",
		    section ? (int)(dot - om_keys[i].name) : (int)strlen(om_keys[i].name),
		    om_keys[i].name);
		d = om_distance(name, whole);
		if (!section)
			part = om_distance(last, dot ? dot + 1 : whole);
		/* the right name in the wrong section comes after a slip in the right one */
		d = d <= room ? 2 * d : part <= room ? 2 * part + 3 : UINT32_MAX;
		if (d < least) {
			least = d;
			strcpy(text, whole);
		}
	}
	return least < UINT32_MAX ? text : NULL;
}

bool
om_key_may_be_none(const struct om_key *k)
{
	return k->kind == OM_WHOLE && k->initial && strcmp(k->initial, "none") == 0;
}

void
om_key_rule(const struct om_key *k, char text[128])
{
	size_t n = 0;

	switch (k->kind) {
	case OM_WHOLE:
		snprintf(text, 128, "a whole number from %.0f to %.0f%s", k->min, k->max,
		    om_key_may_be_none(k) ? ", or none" : "");
		break;
	case OM_NUMBER:
		snprintf(text, 128, "a number from %g to %g", k->min, k->max);
		break;
	case OM_YESNO:
		snprintf(text, 128, "true or false");
		break;
	case OM_TEXT:
		snprintf(text, 128, "a text");
		break;
	case OM_LIST:
		snprintf(text, 128, "a list of texts");
		break;
	case OM_CHOICE:
		n = (size_t)snprintf(text, 128, "one of ");
		for (const char *s = k->choices; *s && n < 126; s++) {
			if (*s == ' ')
				text[n++] = ',';
			text[n++] = *s;
		}
		text[n] = 0;
		break;
	}
}

int
om_key_choice(const char *choices, const char *s)
{
	size_t n = strlen(s);

	for (int i = 0;; i++) {
		size_t len = strcspn(choices, " ");

		if (len == n && strncmp(choices, s, n) == 0)
			return i;
		if (!choices[len])
			return -1;
		choices += len + 1;
	}
}

const char *
om_key_word(const char *choices, int i)
{
	static char word[32];

	for (; i; i--)
		choices += strcspn(choices, " ") + 1;
	snprintf(word, sizeof word, "%.*s", (int)strcspn(choices, " "), choices);
	return word;
}

void
om_conf_help(FILE *f)
{
	for (size_t i = 0; i < OM_NKEYS; i++) {
		char text[128];

		om_key_rule(&om_keys[i], text);
		fprintf(f, "  %-24s%s\n%26s%s; %s%s\n", om_keys[i].name, om_keys[i].doc, "", text,
		    om_keys[i].initial ? "default " : "required",
		    om_keys[i].initial ? om_keys[i].initial : "");
	}
}
