/*
 * Text to tokens and back: what comes before merging (added tokens, normalisation, splits), merging
 * itself by a heap, and the bytes of a token.
 */
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "tokenizer.h"

const char *
om_tokenizer_bytes(struct om_tokenizer *t, int32_t id, size_t *n)
{
	const char *s = id >= 0 && (uint64_t)id < t->size ? t->text[id] : NULL;
	size_t left;

	if (!s)
		return NULL;
	*n = 0;
	for (left = strlen(s); left;) {
		uint32_t c;
		size_t took = om_utf8_get(s, left, &c);

		if (c >= OM_ALPHABET || t->byte[c] < 0) { /* a text, as it is */
			*n = strlen(t->text[id]);
			return t->text[id];
		}
		t->bytes[(*n)++] = (char)t->byte[c];
		s += took;
		left -= took;
	}
	return t->bytes;
}

int32_t
om_tokenizer_find(const struct om_tokenizer *t, const char *text)
{
	json_t *id = json_object_get(t->vocab, text);

	return id ? (int32_t)json_integer_value(id) : -1;
}

struct om_merge *
om_tokenizer_merge(const struct om_tokenizer *t, int32_t left, int32_t right)
{
	uint64_t key = om_merge_key(left, right), at = key * 0x9E3779B97F4A7C15 >> 32;

	while (t->merge[at & t->merge_mask].rank && t->merge[at & t->merge_mask].key != key)
		at++;
	return &t->merge[at & t->merge_mask];
}

/* ---- text to tokens -------------------------------------------------------------------------- */

struct job {
	const struct om_tokenizer *t;
	int32_t *id;
	size_t n, room;
	char *why;
};

static void
put(struct job *j, int32_t id)
{
	if (j->n == j->room) {
		size_t room = j->room ? 2 * j->room : 256;
		int32_t *more = om_alloc(room, sizeof *more);

		if (j->n)
			memcpy(more, j->id, j->n * sizeof *more);
		free(j->id);
		j->id = more;
		j->room = room;
	}
	j->id[j->n++] = id;
}

struct symbol {     /* the tokens of a piece, each knows its neighbours */
	int32_t id; /* -1: it was merged into the one before */
	size_t before, next;
};
struct pair { /* that may be merged, in a heap: the lowest rank first, then the first place */
	uint32_t rank;
	size_t at;
	int32_t left, right, id;
};
struct heap {
	struct pair *pair;
	size_t n;
};

static bool
is_before(const struct pair *a, const struct pair *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void
heap_put(struct heap *h, struct pair x)
{
	size_t i = h->n++;

	for (; i && is_before(&x, &h->pair[(i - 1) / 2]); i = (i - 1) / 2)
		h->pair[i] = h->pair[(i - 1) / 2];
	h->pair[i] = x;
}

static struct pair
heap_take(struct heap *h)
{
	struct pair first = h->pair[0], x = h->pair[--h->n];
	size_t i = 0, low;

	while ((low = 2 * i + 1) < h->n) {
		low += low + 1 < h->n && is_before(&h->pair[low + 1], &h->pair[low]);
		if (!is_before(&h->pair[low], &x))
			break;
		h->pair[i] = h->pair[low];
		i = low;
	}
	h->pair[i] = x;
	return first;
}

/* Puts the pair of a symbol and its next one, where there is a merge of it. */
static void
consider(const struct om_tokenizer *t, struct heap *h, const struct symbol *s, size_t at, size_t n)
{
	struct om_merge *m;

	if (at >= n || s[at].next >= n)
		return;
	m = om_tokenizer_merge(t, s[at].id, s[s[at].next].id);
	if (m->rank)
		heap_put(h, (struct pair){ m->rank, at, s[at].id, s[s[at].next].id, m->id });
}

/* Merges n symbols as long as there is a pair to merge. Each merge puts two pairs at most. */
static void
merge_all(const struct om_tokenizer *t, struct symbol *s, size_t n)
{
	struct heap h = { .pair = om_alloc(3 * n, sizeof *h.pair) };

	for (size_t i = 0; i < n; i++)
		consider(t, &h, s, i, n);
	while (h.n) {
		struct pair p = heap_take(&h);
		size_t next = s[p.at].next;

		if (s[p.at].id != p.left || next >= n || s[next].id != p.right)
			continue; /* one of them is gone */
		s[p.at].id = p.id;
		s[p.at].next = s[next].next;
		s[next].id = -1;
		if (s[p.at].next < n)
			s[s[p.at].next].before = p.at;
		consider(t, &h, s, s[p.at].before, n);
		consider(t, &h, s, p.at, n);
	}
	free(h.pair);
}

/* One piece of text. */
static bool
merge_piece(struct job *j, const uint32_t *c, size_t n)
{
	const struct om_tokenizer *t = j->t;
	char *bytes = om_alloc(n * OM_UTF8_MOST + 1, 1), *letters;
	struct symbol *s;
	size_t nbytes = 0, nletters = 0;
	int32_t whole = -1;

	for (size_t i = 0; i < n; i++)
		nbytes += om_utf8_put(bytes + nbytes, c[i]);
	if (t->ignore_merges) {
		letters = om_alloc(nbytes * OM_UTF8_MOST + 1, 1);
		for (size_t i = 0; i < nbytes; i++)
			nletters +=
			    om_utf8_put(letters + nletters, t->letter[(unsigned char)bytes[i]]);
		whole = om_tokenizer_find(t, letters);
		free(letters);
	}
	if (whole >= 0) {
		put(j, whole);
		free(bytes);
		return true;
	}
	s = om_alloc(nbytes, sizeof *s);
	for (size_t i = 0; i < nbytes && !*j->why; i++) {
		unsigned char byte = (unsigned char)bytes[i];

		s[i] = (struct symbol){ t->byte_id[byte], i ? i - 1 : SIZE_MAX, i + 1 };
		if (s[i].id < 0)
			snprintf(j->why, OM_TOKENIZER_WHY,
			    "the vocabulary has no token for byte 0x%02X of the text", byte);
	}
	if (!*j->why)
		merge_all(t, s, nbytes);
	for (size_t i = 0; i < nbytes && !*j->why; i++)
		if (s[i].id >= 0)
			put(j, s[i].id);
	free(s);
	free(bytes);
	return !*j->why;
}

/* A piece of text from a step of the pre-tokenizer on; behind the last one it is merged. */
static bool
split_piece(struct job *j, size_t which, const uint32_t *c, size_t n)
{
	const struct om_splitter *step = &j->t->step[which];
	struct om_found f = { .n = n };
	enum om_find found = OM_NO_MORE;
	uint32_t *spaced = NULL;
	size_t from = 0;
	bool well = true;

	if (!n)
		return true;
	if (which == j->t->nsteps)
		return merge_piece(j, c, n);
	if (step->space && c[0] != ' ') {
		spaced = om_alloc(n + 1, sizeof *spaced);
		spaced[0] = ' ';
		memcpy(spaced + 1, c, n * sizeof *c);
		c = spaced;
		f.n = ++n;
	}
	while (well && step->split && (found = om_split_next(step->split, c, &f)) == OM_FOUND) {
		well = (step->matches || split_piece(j, which + 1, c + from, f.begin - from)) &&
		       split_piece(j, which + 1, c + f.begin, f.end - f.begin);
		from = f.end;
	}
	if (found == OM_TOO_LONG) {
		snprintf(j->why, OM_TOKENIZER_WHY,
		    "splitting %zu characters takes longer than it may: the pattern goes back too "
		    "often",
		    n);
		well = false;
	}
	well = well && (step->matches || split_piece(j, which + 1, c + from, n - from));
	free(spaced);
	return well;
}

/* As regular expressions of Rust have \w. */
static bool
is_word(uint32_t c)
{
	const uint32_t classes = OM_CLASS_BIT(LU) | OM_CLASS_BIT(LL) | OM_CLASS_BIT(LT) |
				 OM_CLASS_BIT(LM) | OM_CLASS_BIT(LO) | OM_CLASS_BIT(MARK) |
				 OM_CLASS_BIT(ND) | OM_CLASS_BIT(NL) | OM_CLASS_BIT(PC);

	return (classes >> om_class(c) & 1) || c == 0x200C || c == 0x200D ||
	       (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
	       (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

/* The longest added token of a pass that begins here; NULL: none. */
static const struct om_added *
added_at(const struct om_tokenizer *t, const uint32_t *c, size_t n, bool normalized)
{
	const struct om_added *best = NULL;

	for (const struct om_added *a = t->added; a < t->added + t->nadded; a++)
		if (a->normalized == normalized && a->n <= n && a->c[0] == c[0] &&
		    memcmp(a->c, c, a->n * sizeof *c) == 0 && (!best || a->n > best->n))
			best = a;
	return best;
}

static bool find_added(struct job *j, const uint32_t *c, size_t n, bool normalized);

/* What is between added tokens: normalised and searched for more of them, then split. */
static bool
between(struct job *j, const uint32_t *c, size_t n, bool normalized)
{
	uint32_t *normal;
	bool well;

	if (normalized)
		return split_piece(j, 0, c, n);
	if (!j->t->nfc)
		return find_added(j, c, n, true);
	normal = om_nfc(c, &n);
	well = find_added(j, normal, n, true);
	free(normal);
	return well;
}

/* Takes added tokens out of a text: first of the text as it is, then of the normalised one. */
static bool
find_added(struct job *j, const uint32_t *c, size_t n, bool normalized)
{
	size_t from = 0;

	for (size_t at = 0; at < n;) {
		const struct om_added *a = added_at(j->t, c + at, n - at, normalized);
		size_t begin = at, end;

		if (!a) {
			at++;
			continue;
		}
		at = end = begin + a->n;
		if (a->single_word &&
		    ((begin && is_word(c[begin - 1])) || (end < n && is_word(c[end]))))
			continue;
		while (a->lstrip && begin > from && om_is_space(c[begin - 1]))
			begin--;
		while (a->rstrip && end < n && om_is_space(c[end]))
			end++;
		if (begin > from && !between(j, c + from, begin - from, normalized))
			return false;
		put(j, a->id);
		from = end;
	}
	return from >= n || between(j, c + from, n - from, normalized);
}

int32_t *
om_tokenizer_encode(const struct om_tokenizer *t, const char *s, size_t n, size_t *count,
    char why[OM_TOKENIZER_WHY])
{
	struct job j = { .t = t, .why = why };
	uint32_t *c = om_utf8_all(s, n, &n);
	bool well;

	*why = '\0';
	for (size_t i = 0; i < t->before.n; i++)
		put(&j, t->before.id[i]);
	well = find_added(&j, c, n, false);
	for (size_t i = 0; i < t->behind.n; i++)
		put(&j, t->behind.id[i]);
	free(c);
	*count = j.n;
	if (well)
		return j.id ? j.id : om_alloc(1, sizeof *j.id);
	free(j.id);
	return NULL;
}
