/* The table of run.yaml's keys: what each may hold, what is close to a wrong one, and how help
 * prints it. */
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"

const struct om_key om_keys[OM_NKEYS] = {
#define KEY(name, kind, member, min, max, initial, choices, doc)                                \
	{ name, OM_##kind, false, offsetof(struct om_conf, member), min, max, initial, choices, \
		doc },
#define SOURCE(name, kind, member, min, max, initial, choices, doc) \
	{ name, OM_##kind, true, offsetof(struct om_set, member), min, max, initial, choices, doc },
#define FIXED(name, lua)
#include "key.def"
#undef KEY
#undef SOURCE
#undef FIXED
};

const struct om_named om_named[OM_NNAMED] = {
	{ "data.mix.", "source", offsetof(struct om_conf, data) },
	{ "eval.sets.", "set", offsetof(struct om_conf, eval) },
};

const struct om_named *
om_key_named(const char *name)
{
	for (size_t i = 0; i < OM_NNAMED; i++)
		if (strncmp(name, om_named[i].prefix, strlen(om_named[i].prefix)) == 0)
			return &om_named[i];
	return NULL;
}

static const struct {
	const char *name, *lua;
} fixed[] = {
#define KEY(name, kind, member, min, max, initial, choices, doc)
#define SOURCE KEY
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

/* The part of a key that stands for any name. */
static bool
is_any(const char *part, size_t n)
{
	return n == 4 && strncmp(part, "NAME", 4) == 0;
}

const char *
om_key_fixed(const char *name)
{
	for (size_t i = 0; i < OM_LEN(fixed); i++)
		if (strcmp(fixed[i].name, name) == 0)
			return fixed[i].lua;
	return NULL;
}

enum om_match
om_key_match(const char *key, const char *name)
{
	for (;; key++, name++) {
		size_t k = strcspn(key, "."), n = strcspn(name, ".");

		if (!is_any(key, k) && (k != n || strncmp(key, name, n) != 0))
			return OM_APART;
		key += k;
		name += n;
		if (!*name)
			return *key ? OM_ABOVE : OM_SAME;
		if (!*key)
			return OM_APART;
	}
}

void
om_keys_of(const char *section, char *text, size_t size)
{
	const char *before = "";
	size_t used = 0;

	*text = 0;
	for (size_t i = 0; i < OM_NKEYS; i++) {
		const char *key = om_keys[i].name;
		size_t len;

		if (*section && om_key_match(key, section) != OM_ABOVE)
			continue;
		for (const char *s = section; *s; s += strcspn(s, "."), s += *s == '.')
			key += strcspn(key, ".") + 1;
		len = strcspn(key, ".");
		if (strcspn(before, ".") != len || strncmp(before, key, len) != 0)
			used += (size_t)snprintf(text + used, size - used, "%s%.*s%s",
			    used ? ", " : "", is_any(key, len) ? 255 : (int)len,
			    is_any(key, len) ? "a name for each " : key,
			    is_any(key, len) ? om_key_named(om_keys[i].name)->what : "");
		before = key;
	}
}

/* A key, or a section of its first n parts, as it would be under the names that `name` gives. */
static void
candidate(const char *key, size_t n, const char *name, char *text, size_t size)
{
	size_t used = 0;

	*text = 0;
	while (n-- && *key && used < size) {
		size_t k = strcspn(key, "."), of = strcspn(name, ".");
		bool any = is_any(key, k) && of;

		used += (size_t)snprintf(text + used, size - used, "%s%.*s", used ? "." : "",
		    any ? (int)of : (int)k, any ? name : key);
		key += k + (key[k] == '.');
		name += of + (name[of] == '.');
	}
}

static const char *
last_part(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot ? dot + 1 : name;
}

const char *
om_key_closest(const char *name, bool section)
{
	static char text[256];
	const char *last = last_part(name);
	uint32_t least = UINT32_MAX, room;

	room = strlen(last) < 6 ? 1 : (uint32_t)strlen(last) / 3;
	for (size_t i = 0; i < OM_NKEYS; i++) {
		size_t parts = 1;

		for (const char *s = om_keys[i].name; *s; s++)
			parts += *s == '.';
		/* the whole key, or each section that it is in */
		for (size_t n = section ? 1 : parts; n < parts + !section; n++) {
			char whole[256];
			uint32_t d, part = UINT32_MAX;

			candidate(om_keys[i].name, n, name, whole, sizeof whole);
			d = om_distance(name, whole);
			if (!section)
				part = om_distance(last, last_part(whole));
			/* the right name in the wrong section comes after a slip in the right one
			 */
			d = d <= room ? 2 * d : part <= room ? 2 * part + 3 : UINT32_MAX;
			if (d < least) {
				least = d;
				strcpy(text, whole);
			}
		}
	}
	return least < UINT32_MAX ? text : NULL;
}

bool
om_key_may_be_none(const struct om_key *k)
{
	return k->initial && strcmp(k->initial, "none") == 0 &&
	       (k->kind == OM_WHOLE || k->kind == OM_NUMBER);
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
		snprintf(text, 128, "a number from %g to %g%s", k->min, k->max,
		    om_key_may_be_none(k) ? ", or none" : "");
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
