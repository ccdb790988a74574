/*
 * tokenizer.json, read: what of it is known and may have which value is a table, and all else is
 * refused, with its place in the file.
 */
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "tokenizer.h"

static const char byte_level[] = /* ByteLevel's own pattern, of GPT-2 */
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- what is supported ----------------------------------------------------------------------- */

/*
 * Each object's members, by the part of the file and its type; values that are written out are the
 * only ones that a member may have.
 */
#define ON_OR_OFF "true|false"
static const struct rule {
	const char *part, *type, *member, *values;
} rules[] = {
	{ "", "", "version", "\"1.0\"" },
	{ "", "", "truncation", "null" },
	{ "", "", "padding", "null" },
	{ "", "", "added_tokens", NULL },
	{ "", "", "normalizer", NULL },
	{ "", "", "pre_tokenizer", NULL },
	{ "", "", "post_processor", NULL },
	{ "", "", "decoder", NULL },
	{ "", "", "model", NULL },
	{ "added_tokens", "", "id", NULL },
	{ "added_tokens", "", "content", NULL },
	{ "added_tokens", "", "single_word", ON_OR_OFF },
	{ "added_tokens", "", "lstrip", ON_OR_OFF },
	{ "added_tokens", "", "rstrip", ON_OR_OFF },
	{ "added_tokens", "", "normalized", ON_OR_OFF },
	{ "added_tokens", "", "special", ON_OR_OFF },
	{ "normalizer", "NFC", "", NULL },
	{ "normalizer", "Sequence", "normalizers", NULL },
	{ "pre_tokenizer", "ByteLevel", "add_prefix_space", ON_OR_OFF },
	{ "pre_tokenizer", "ByteLevel", "trim_offsets", ON_OR_OFF },
	{ "pre_tokenizer", "ByteLevel", "use_regex", ON_OR_OFF },
	{ "pre_tokenizer", "Digits", "individual_digits", ON_OR_OFF },
	{ "pre_tokenizer", "Sequence", "pretokenizers", NULL },
	{ "pre_tokenizer", "Split", "pattern", NULL },
	{ "pre_tokenizer", "Split", "behavior", "\"Isolated\"|\"Removed\"" },
	{ "pre_tokenizer", "Split", "invert", ON_OR_OFF },
	{ "post_processor", "ByteLevel", "add_prefix_space", ON_OR_OFF }, /* changes no token */
	{ "post_processor", "ByteLevel", "trim_offsets", ON_OR_OFF },
	{ "post_processor", "ByteLevel", "use_regex", ON_OR_OFF },
	{ "post_processor", "Sequence", "processors", NULL },
	{ "post_processor", "TemplateProcessing", "single", NULL },
	{ "post_processor", "TemplateProcessing", "pair", NULL }, /* of two texts, never needed */
	{ "post_processor", "TemplateProcessing", "special_tokens", NULL },
	{ "decoder", "ByteLevel", "add_prefix_space", ON_OR_OFF },
	{ "decoder", "ByteLevel", "trim_offsets", ON_OR_OFF },
	{ "decoder", "ByteLevel", "use_regex", ON_OR_OFF },
	{ "model", "BPE", "dropout", "null" },
	{ "model", "BPE", "unk_token", NULL }, /* a byte without a token is an error instead */
	{ "model", "BPE", "continuing_subword_prefix", "null|\"\"" },
	{ "model", "BPE", "end_of_word_suffix", "null|\"\"" },
	{ "model", "BPE", "fuse_unk", ON_OR_OFF },
	{ "model", "BPE", "byte_fallback", "false" },
	{ "model", "BPE", "ignore_merges", ON_OR_OFF },
	{ "model", "BPE", "vocab", NULL },
	{ "model", "BPE", "merges", NULL },
};

struct reader {
	struct om_tokenizer *t;
	uint64_t vocab;
	char place[160]; /* in the file, "model.merges[3]" */
	char *why;
};

/* The first thing that is wrong with what is at the place; gives false. */
OM_PRINTF(2, 3) static bool wrong(struct reader *r, const char *fmt, ...)
{
	char what[OM_TOKENIZER_WHY - sizeof r->place - 2];
	va_list ap;

	if (*r->why)
		return false;
	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	snprintf(r->why, OM_TOKENIZER_WHY, "%s%s%s", r->place, *r->place ? " " : "", what);
	om_plain(r->why);
	return false;
}

/* Goes down to a member, or an entry of an array; gives where it was, for leave(). */
OM_PRINTF(2, 3) static size_t enter(struct reader *r, const char *fmt, ...)
{
	size_t was = strlen(r->place);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(r->place + was, sizeof r->place - was, fmt, ap);
	va_end(ap);
	return was;
}

static void
leave(struct reader *r, size_t was)
{
	r->place[was] = '\0';
}

/* Whether a value is among those, "null|false"; NULL: it may be any. */
static bool
is_among(const json_t *x, const char *values)
{
	char *text = values ? json_dumps(x, JSON_ENCODE_ANY) : NULL;
	size_t n = text ? strlen(text) : 0;
	bool is = !values;

	for (const char *s = values; s && !is; s = strchr(s, '|') ? strchr(s, '|') + 1 : NULL)
		is = text && strncmp(s, text, n) == 0 && (s[n] == '|' || !s[n]);
	free(text);
	return is;
}

/* Its type, of which the part has rules, and its members, each with a value that it may have. */
static bool
check_object(struct reader *r, json_t *x, const char *part, bool typed)
{
	const char *type = typed ? json_string_value(json_object_get(x, "type")) : "", *name;
	bool known = false;
	json_t *value;

	if (!json_is_object(x) || !type)
		return wrong(r, "is no object%s", typed ? " with a type" : "");
	for (size_t i = 0; i < OM_LEN(rules) && !known; i++)
		known = strcmp(rules[i].part, part) == 0 && strcmp(rules[i].type, type) == 0;
	if (!known)
		return wrong(r, "is of type %.60s, which is not supported", type);
	json_object_foreach(x, name, value)
	{
		const struct rule *k = rules, *end = rules + OM_LEN(rules);
		size_t was;

		if (typed && strcmp(name, "type") == 0)
			continue;
		while (k < end && (strcmp(k->part, part) != 0 || strcmp(k->type, type) != 0 ||
				      strcmp(k->member, name) != 0))
			k++;
		was = enter(r, "%s%.60s", *r->place ? "." : "", name);
		if (k == end)
			return wrong(r, "is not known");
		if (!is_among(value, k->values)) {
			char *text = json_dumps(value, JSON_ENCODE_ANY);

			wrong(
			    r, "is %.60s, and only %s is supported", text ? text : "?", k->values);
			free(text);
			return false;
		}
		leave(r, was);
	}
	return true;
}

/* A member that may be missing. */
static bool
is_on(const json_t *x, const char *name, bool otherwise)
{
	const json_t *value = json_object_get(x, name);

	return value ? json_is_true(value) : otherwise;
}

/* The entries of a sequence in the file, each read at its place. */
static bool
each(struct reader *r, json_t *x, const char *name, bool (*read)(struct reader *r, json_t *x))
{
	json_t *list = name ? json_object_get(x, name) : x, *entry;
	size_t was = name ? enter(r, ".%s", name) : strlen(r->place), i;

	if (!json_is_array(list))
		return wrong(r, "is no array");
	if (strlen(r->place) > sizeof r->place / 2)
		return wrong(r, "is nested too deeply");
	json_array_foreach(list, i, entry)
	{
		size_t here = enter(r, "[%zu]", i);

		if (!read(r, entry))
			return false;
		leave(r, here);
	}
	leave(r, was);
	return true;
}

/* ---- the model: tokens and merges ------------------------------------------------------------ */

static bool
add_token(struct reader *r, const char *text, const json_t *id)
{
	uint64_t n = om_json_whole(id);

	if (n >= r->vocab)
		return wrong(r,
		    n > INT32_MAX
			? "gives token \"%.60s\" no whole number as its id"
			: "has token \"%.60s\" as %llu, and the model's vocab_size is %llu",
		    text, (unsigned long long)n, (unsigned long long)r->vocab);
	if (r->t->text[n] && strcmp(r->t->text[n], text) != 0)
		return wrong(r, "gives token \"%.60s\" the id %llu, which \"%.60s\" has too", text,
		    (unsigned long long)n, r->t->text[n]);
	r->t->text[n] = text;
	r->t->size = n + 1 > r->t->size ? n + 1 : r->t->size;
	return true;
}

/* "a b", or ["a", "b"]. */
static bool
read_merge(struct reader *r, json_t *x)
{
	struct om_tokenizer *t = r->t;
	const char *s = json_string_value(x), *space = s ? strchr(s, ' ') : NULL;
	bool pair = json_array_size(x) == 2 && json_is_string(json_array_get(x, 0)) &&
		    json_is_string(json_array_get(x, 1));
	char *part[3]; /* both, and what they become */
	struct om_merge *m;
	int32_t id[3];

	if (s && strncmp(s, "#version", 8) == 0)
		return true;
	if (!pair && (!space || strchr(space + 1, ' ')))
		return wrong(r, "is no pair of tokens, \"a b\" or [\"a\", \"b\"]");
	for (size_t i = 0; i < 2; i++)
		part[i] = pair ? om_text("%s", json_string_value(json_array_get(x, i)))
			       : om_text("%.*s", i ? INT_MAX : (int)(space - s), i ? space + 1 : s);
	part[2] = om_text("%s%s", part[0], part[1]);
	for (size_t i = 0; i < 3; i++) {
		id[i] = om_tokenizer_find(t, part[i]);
		if (id[i] < 0)
			wrong(r, "%s \"%.60s\", which is no token of the vocabulary",
			    i < 2 ? "is of" : "gives", part[i]);
	}
	for (size_t i = 0; i < 3; i++)
		free(part[i]);
	if (*r->why)
		return false;
	m = om_tokenizer_merge(t, id[0], id[1]);
	/* the next one, whatever is left out: a pair that is there twice has the later rank */
	m->rank = (uint32_t)++t->merges;
	m->key = om_merge_key(id[0], id[1]);
	m->id = id[2];
	return true;
}

static bool
read_model(struct reader *r, json_t *x)
{
	struct om_tokenizer *t = r->t;
	const char *text;
	json_t *id, *merges = json_object_get(x, "merges");
	size_t was, room = 64;

	if (!check_object(r, x, "model", true))
		return false;
	t->vocab = json_object_get(x, "vocab");
	was = enter(r, ".vocab");
	if (!json_is_object(t->vocab))
		return wrong(r, "is no object");
	json_object_foreach(t->vocab, text, id) if (!add_token(r, text, id)) return false;
	leave(r, was);
	for (int i = 0; i < OM_BYTES; i++) {
		char letter[OM_UTF8_MOST + 1] = "";

		om_utf8_put(letter, t->letter[i]);
		t->byte_id[i] = om_tokenizer_find(t, letter);
	}
	while (room < 2 * json_array_size(merges))
		room *= 2;
	t->merge = om_alloc(room, sizeof *t->merge);
	t->merge_mask = room - 1;
	t->ignore_merges = is_on(x, "ignore_merges", false);
	return each(r, x, "merges", read_merge);
}

/* ---- what happens before merging ------------------------------------------------------------- */

static bool
read_normalizer(struct reader *r, json_t *x)
{
	if (!check_object(r, x, "normalizer", true))
		return false;
	if (json_object_get(x, "normalizers"))
		return each(r, x, "normalizers", read_normalizer);
	r->t->nfc = true;
	return true;
}

static bool
open_split(struct reader *r, struct om_splitter *step, const char *pattern)
{
	char why[OM_TOKENIZER_WHY];

	step->split = om_split_open(pattern, why);
	return step->split || wrong(r, "is not supported: %s", why);
}

/* {"Regex": "..."}, or {"String": "..."}, which means itself. */
static bool
read_pattern(struct reader *r, struct om_splitter *step, const json_t *x)
{
	const char *regex = json_string_value(json_object_get(x, "Regex")),
		   *s = json_string_value(json_object_get(x, "String"));
	size_t was = enter(r, ".pattern"), n = 0;
	char *quoted;
	bool well;

	if (json_object_size(x) != 1 || (!regex && !s) || !*(regex ? regex : s))
		return wrong(r, "is neither a Regex nor a String");
	if (regex) {
		enter(r, ".Regex");
		well = open_split(r, step, regex);
	} else {
		quoted = om_alloc(2 * strlen(s) + 1, 1);
		for (; *s; s++) {
			if (*s > ' ' && *s < 127 && !(*s >= '0' && *s <= '9') &&
			    !((*s | 32) >= 'a' && (*s | 32) <= 'z'))
				quoted[n++] = '\\';
			quoted[n++] = *s;
		}
		well = open_split(r, step, quoted);
		free(quoted);
	}
	if (well)
		leave(r, was);
	return well;
}

static bool
read_pre_tokenizer(struct reader *r, json_t *x)
{
	struct om_tokenizer *t = r->t;
	const char *type;
	struct om_splitter *step;

	if (!check_object(r, x, "pre_tokenizer", true))
		return false;
	type = json_string_value(json_object_get(x, "type"));
	if (strcmp(type, "Sequence") == 0)
		return each(r, x, "pretokenizers", read_pre_tokenizer);
	if (t->nsteps && t->step[t->nsteps - 1].last)
		return wrong(r, "comes after ByteLevel, which must be the last");
	if (t->nsteps == OM_SPLITS_MOST)
		return wrong(r, "is one more than the %d that are supported", OM_SPLITS_MOST);
	step = &t->step[t->nsteps++];
	if (strcmp(type, "Split") == 0) {
		const char *behavior = json_string_value(json_object_get(x, "behavior"));

		if (!behavior)
			return wrong(r, "has no behavior");
		step->matches = *behavior == 'R'; /* inverted: removes what is none */
		if (step->matches && !is_on(x, "invert", false))
			return wrong(r, "removes its matches, which is supported with invert only");
		return read_pattern(r, step, json_object_get(x, "pattern"));
	}
	if (strcmp(type, "Digits") == 0)
		return open_split(
		    r, step, is_on(x, "individual_digits", false) ? "\\p{N}" : "\\p{N}+");
	step->last = true;
	step->space = is_on(x, "add_prefix_space", true);
	return !is_on(x, "use_regex", true) || open_split(r, step, byte_level);
}

static bool
read_added(struct reader *r, json_t *x)
{
	struct om_added *a = &r->t->added[r->t->nadded];
	const char *text = json_string_value(json_object_get(x, "content"));
	const json_t *id = json_object_get(x, "id");
	int32_t known;

	if (!check_object(r, x, "added_tokens", false))
		return false;
	if (!text)
		return wrong(r, "has no text as its content");
	if (!*text) /* it is nowhere in a text */
		return true;
	known = om_tokenizer_find(r->t, text);
	if (known >= 0 && (uint64_t)known != om_json_whole(id))
		return wrong(
		    r, "has another id than \"%.60s\" in the vocabulary, %d", text, (int)known);
	if (!add_token(r, text, id))
		return false;
	*a = (struct om_added){ .id = (int32_t)om_json_whole(id),
		.single_word = is_on(x, "single_word", false),
		.lstrip = is_on(x, "lstrip", false),
		.rstrip = is_on(x, "rstrip", false),
		.normalized = is_on(x, "normalized", !is_on(x, "special", false)),
		.special = is_on(x, "special", false) };
	a->c = om_utf8_all(text, strlen(text), &a->n);
	if (a->normalized && r->t->nfc) {
		uint32_t *normal = om_nfc(a->c, &a->n);

		free(a->c);
		a->c = normal;
	}
	r->t->nadded++;
	return true;
}

/* ---- what happens after it ------------------------------------------------------------------- */

/* The tokens of a special one go to the affix. */
static bool
add_special(struct reader *r, struct om_affix *to, const json_t *specials, const char *name)
{
	json_t *ids = json_object_get(json_object_get(specials, name), "ids"), *id;
	size_t i;

	if (!json_array_size(ids))
		return wrong(r, "is of \"%.60s\", which special_tokens gives no ids", name);
	json_array_foreach(ids, i, id)
	{
		if (om_json_whole(id) >= r->t->size)
			return wrong(r, "is of \"%.60s\", of whose ids one is no token", name);
		if (to->n == OM_AFFIX_MOST)
			return wrong(r, "makes more than %d tokens", OM_AFFIX_MOST);
		to->id[to->n++] = (int32_t)om_json_whole(id);
	}
	return true;
}

static bool
read_template(struct reader *r, json_t *x)
{
	struct om_tokenizer *t = r->t;
	json_t *single = json_object_get(x, "single"), *entry;
	size_t was = enter(r, ".single"), i, texts = 0;

	if (t->before.n || t->behind.n)
		return wrong(r, "is of a second TemplateProcessing");
	if (!json_is_array(single))
		return wrong(r, "is no array; it is supported as one only");
	json_array_foreach(single, i, entry)
	{
		json_t *special = json_object_get(entry, "SpecialToken"),
		       *sequence = json_object_get(entry, "Sequence");
		const char *name =
		    json_string_value(json_object_get(special ? special : sequence, "id"));
		size_t here = enter(r, "[%zu]", i);

		if (json_object_size(entry) != 1 || !name)
			return wrong(r, "is neither a SpecialToken nor a Sequence with an id");
		if (special) {
			if (!add_special(r, texts ? &t->behind : &t->before,
				json_object_get(x, "special_tokens"), name))
				return false;
		} else if (strcmp(name, "A") != 0 || texts++) {
			return wrong(r, "is not the one Sequence A");
		}
		leave(r, here);
	}
	if (!texts)
		return wrong(r, "has no Sequence A");
	leave(r, was);
	return true;
}

static bool
read_post_processor(struct reader *r, json_t *x)
{
	if (!check_object(r, x, "post_processor", true))
		return false;
	if (json_object_get(x, "processors"))
		return each(r, x, "processors", read_post_processor);
	return !json_object_get(x, "single") || read_template(r, x);
}

static bool
read_decoder(struct reader *r, json_t *x)
{
	return check_object(r, x, "decoder", true);
}

/* ---- a whole file ---------------------------------------------------------------------------- */

/* Printable characters of Latin-1 stand for themselves, other bytes for letters from 256 on. */
static void
make_alphabet(struct om_tokenizer *t)
{
	uint32_t next = OM_BYTES;

	for (size_t i = 0; i < OM_ALPHABET; i++)
		t->byte[i] = -1;
	for (uint32_t i = 0; i < OM_BYTES; i++) {
		bool itself = (i > ' ' && i < 127) || (i > 0xA0 && i != 0xAD);

		t->letter[i] = itself ? i : next++;
		t->byte[t->letter[i]] = (int)i;
	}
}

static bool
read_file(struct reader *r)
{
	static const struct {
		const char *name;
		bool (*read)(struct reader *r, json_t *x);
		bool needed;
	} part[] = {
		{ "model", read_model, true },
		{ "normalizer", read_normalizer, false },
		{ "pre_tokenizer", read_pre_tokenizer, true },
		{ "decoder", read_decoder, true },
	};
	struct om_tokenizer *t = r->t;
	json_t *added = json_object_get(t->file, "added_tokens"), *post;
	size_t was, longest = 0;

	if (!check_object(r, t->file, "", false))
		return false;
	for (size_t i = 0; i < OM_LEN(part); i++) {
		json_t *x = json_object_get(t->file, part[i].name);

		was = enter(r, "%s", part[i].name);
		if ((part[i].needed || (x && !json_is_null(x))) && !part[i].read(r, x))
			return false;
		leave(r, was);
	}
	was = enter(r, "pre_tokenizer");
	if (!t->nsteps || !t->step[t->nsteps - 1].last)
		return wrong(r, "has no ByteLevel as its last step, so this is no byte-level BPE");
	leave(r, was);
	was = enter(r, "added_tokens");
	t->added = om_alloc(json_array_size(added), sizeof *t->added);
	if (added && !each(r, added, NULL, read_added))
		return false;
	leave(r, was);
	post = json_object_get(t->file, "post_processor");
	was = enter(r, "post_processor");
	if (post && !json_is_null(post) && !read_post_processor(r, post))
		return false;
	leave(r, was);
	for (uint64_t i = 0; i < t->size; i++)
		if (t->text[i] && strlen(t->text[i]) > longest)
			longest = strlen(t->text[i]);
	t->bytes = om_alloc(longest + 1, 1);
	return true;
}

struct om_tokenizer *
om_tokenizer_open(const char *path, uint64_t vocab, char why[OM_TOKENIZER_WHY])
{
	struct om_tokenizer *t = om_alloc(1, sizeof *t);
	struct reader r = { .t = t, .vocab = vocab, .why = why };

	*why = '\0';
	t->file = om_json_file(path, why);
	if (t->file) {
		t->text = om_alloc(vocab, sizeof *t->text);
		make_alphabet(t);
		if (read_file(&r))
			return t;
	}
	om_tokenizer_close(t);
	return NULL;
}

struct om_tokenizer *
om_tokenizer_need(const char *operation, const char *path, uint64_t vocab)
{
	char why[OM_TOKENIZER_WHY];
	struct om_tokenizer *t = om_tokenizer_open(path, vocab, why);

	if (!t)
		om_die(operation, "%s: %s", om_clip(path), why);
	return t;
}

void
om_tokenizer_close(struct om_tokenizer *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->nsteps; i++)
		om_split_close(t->step[i].split);
	for (size_t i = 0; i < t->nadded; i++)
		free(t->added[i].c);
	free(t->added);
	free(t->merge);
	free(t->text);
	free(t->bytes);
	json_decref(t->file);
	free(t);
}
