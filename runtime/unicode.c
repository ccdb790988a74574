/* Unicode as far as tokenizers need it: classes of characters, UTF-8, Normalization Form C. */
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "tokenizer.h"

enum {
	POINTS = 0x110000,
	N_PARTS = 0
#define CLASSES(n, text)
#define ORDERS(n, text)
#define PARTS(n, text) +n
#include "unicode.def"
#undef CLASSES
#undef ORDERS
#undef PARTS
	,
	LONGEST = 4, /* code points that one decomposes to, which Unicode will never exceed */
	/* syllables of Hangul are computed */
	S_BASE = 0xAC00,
	L_BASE = 0x1100,
	V_BASE = 0x1161,
	T_BASE = 0x11A7,
	L_COUNT = 19,
	V_COUNT = 21,
	T_COUNT = 28,
	S_COUNT = L_COUNT * V_COUNT * T_COUNT
};

struct parts {
	uint32_t whole, a, b; /* b 0: of one part */
	bool composes;
};

/* ---- the tables ------------------------------------------------------------------------------ */

static struct {
	bool read;
	uint32_t classes, orders, parts; /* how far each is filled */
	uint32_t whole;                  /* of the last parts */
	unsigned char class[POINTS], order[POINTS];
	struct parts by_whole[N_PARTS], by_parts[N_PARTS];
} table;

static void
add_classes(const char *s)
{
	static const char letters[] = "cUltmoMdnr_psz"; /* as enum om_class */

	while (*s) {
		int class = (int)(strchr(letters, *s++) - letters);
		char *end = (char *)s;
		size_t n = *s >= '0' && *s <= '9' ? strtoul(s, &end, 10) : 1;

		memset(table.class + table.classes, class, n);
		table.classes += (uint32_t)n;
		s = end;
	}
}

static void
add_orders(const char *s)
{
	for (char *end = (char *)s; *end; end += *end == ' ') {
		size_t n = strtoul(end, &end, 10);

		memset(table.order + table.orders, (int)strtoul(end + 1, &end, 10), n);
		table.orders += (uint32_t)n;
	}
}

static void
add_parts(const char *s)
{
	for (char *end = (char *)s; *end; end += *end == ' ') {
		struct parts *p = &table.by_whole[table.parts++];

		p->whole = table.whole += (uint32_t)strtoul(end, &end, 16);
		p->a = (uint32_t)strtoul(end + 1, &end, 16);
		p->composes = *end == '+';
		if (*end == '+' || *end == '-')
			p->b = (uint32_t)strtoul(end + 1, &end, 16);
	}
}

static int
compare_parts(const void *x, const void *y)
{
	const struct parts *p = x, *q = y;

	return p->a != q->a ? (p->a > q->a) - (p->a < q->a) : (p->b > q->b) - (p->b < q->b);
}

static int
compare_whole(const void *x, const void *y)
{
	const struct parts *p = x, *q = y;

	return (p->whole > q->whole) - (p->whole < q->whole);
}

static void
read_tables(void)
{
	static const struct {
		void (*add)(const char *s);
		const char *text;
	} row[] = {
#define CLASSES(n, text) { add_classes, text },
#define ORDERS(n, text) { add_orders, text },
#define PARTS(n, text) { add_parts, text },
#include "unicode.def"
#undef CLASSES
#undef ORDERS
#undef PARTS
	};

	if (table.read)
		return;
	table.read = true;
	for (size_t i = 0; i < OM_LEN(row); i++)
		row[i].add(row[i].text);
	memcpy(table.by_parts, table.by_whole, sizeof table.by_parts);
	qsort(table.by_parts, table.parts, sizeof *table.by_parts, compare_parts);
}

enum om_class
om_class(uint32_t c)
{
	read_tables();
	return c < POINTS ? (enum om_class)table.class[c] : OM_CLASS_OTHER;
}

bool
om_is_space(uint32_t c)
{
	return (c >= 9 && c <= 13) || c == 0x85 || om_class(c) == OM_CLASS_SEPARATOR;
}

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

size_t
om_utf8_get(const char *s, size_t n, uint32_t *c)
{
	const unsigned char *u = (const unsigned char *)s;
	unsigned char low = 0x80, high = 0xBF; /* of the second byte */
	size_t more = *u < 0xC2 || *u > 0xF4 ? 0 : *u < 0xE0 ? 1 : *u < 0xF0 ? 2 : 3;

	*c = *u < 0x80 ? *u : OM_UTF8_NONE;
	if (!more)
		return 1;
	low = *u == 0xE0 ? 0xA0 : *u == 0xF0 ? 0x90 : low;
	high = *u == 0xED ? 0x9F : *u == 0xF4 ? 0x8F : high;
	*c = *u & (0x3Fu >> more);
	for (size_t i = 1; i <= more; i++, low = 0x80, high = 0xBF) {
		if (i == n) {
			*c = OM_UTF8_NONE;
			return 0;
		}
		if (u[i] < low || u[i] > high) {
			*c = OM_UTF8_NONE;
			return i;
		}
		*c = *c << 6 | (u[i] & 0x3F);
	}
	return more + 1;
}

size_t
om_utf8_put(char s[OM_UTF8_MOST], uint32_t c)
{
	size_t more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
	static const unsigned char lead[] = { 0, 0xC0, 0xE0, 0xF0 };

	for (size_t i = more; i > 0; i--, c >>= 6)
		s[i] = (char)(0x80 | (c & 0x3F));
	s[0] = (char)(lead[more] | c);
	return more + 1;
}

uint32_t *
om_utf8_all(const char *s, size_t n, size_t *count)
{
	uint32_t *c = om_alloc(n + 1, sizeof *c);

	*count = 0;
	for (size_t i = 0, took; i < n; i += took) {
		took = om_utf8_get(s + i, n - i, &c[(*count)++]);
		took = took ? took : n - i;
	}
	return c;
}

void
om_utf8_print(FILE *f, struct om_held *h, const char *s, size_t n, bool end)
{
	char *all = om_alloc(h->n + n + 1, 1), out[OM_UTF8_MOST];
	size_t i = 0, took;
	uint32_t c;

	memcpy(all, h->s, h->n);
	memcpy(all + h->n, s, n);
	for (n += h->n; i < n; i += took) {
		took = om_utf8_get(all + i, n - i, &c);
		if (!took && !end)
			break;
		took = took ? took : n - i;
		fwrite(out, 1, om_utf8_put(out, c), f);
	}
	h->n = n - i;
	memcpy(h->s, all + i, h->n);
	free(all);
}

/* ---- Normalization Form C -------------------------------------------------------------------- */

/* Writes what c decomposes to, gives how many. */
static size_t
decompose(uint32_t c, uint32_t to[LONGEST])
{
	struct parts key = { .whole = c }, *p;
	uint32_t s = c - S_BASE;
	size_t n = 0;

	if (s < S_COUNT) {
		to[n++] = L_BASE + s / (V_COUNT * T_COUNT);
		to[n++] = V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT;
		if (s % T_COUNT)
			to[n++] = T_BASE + s % T_COUNT;
		return n;
	}
	p = c < 0xC0 ? NULL : bsearch(&key, table.by_whole, table.parts, sizeof *p, compare_whole);
	if (!p) {
		to[0] = c;
		return 1;
	}
	n = decompose(p->a, to); /* only the first part ever decomposes further */
	if (p->b)
		to[n++] = p->b;
	return n;
}

/* What a and b compose to, 0: nothing. */
static uint32_t
compose(uint32_t a, uint32_t b)
{
	struct parts key = { .a = a, .b = b }, *p;

	if (a - L_BASE < L_COUNT && b - V_BASE < V_COUNT)
		return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
	if (a - S_BASE < S_COUNT && (a - S_BASE) % T_COUNT == 0 && b > T_BASE &&
	    b < T_BASE + T_COUNT)
		return a + (b - T_BASE);
	if (b < 0x300) /* the first combining character */
		return 0;
	p = bsearch(&key, table.by_parts, table.parts, sizeof *p, compare_parts);
	return p && p->composes ? p->whole : 0;
}

/* Marks behind a character come in the order of their classes, those of one as they were. */
static void
reorder(uint32_t *c, size_t n)
{
	for (size_t begin = 0, end; begin < n; begin = end) {
		size_t count[256] = { 0 }, sum = 0;
		uint32_t *copy;

		for (end = begin; end < n && table.order[c[end]]; end++)
			count[table.order[c[end]]]++;
		if (end - begin > 1) {
			copy = om_alloc(end - begin, sizeof *copy);
			memcpy(copy, c + begin, (end - begin) * sizeof *copy);
			for (size_t i = 0; i < OM_LEN(count); i++) {
				sum += count[i];
				count[i] = sum - count[i];
			}
			for (size_t i = 0; i < end - begin; i++)
				c[begin + count[table.order[copy[i]]]++] = copy[i];
			free(copy);
		}
		end += end == begin;
	}
}

uint32_t *
om_nfc(const uint32_t *c, size_t *n)
{
	uint32_t *x = om_alloc(*n * LONGEST + 1, sizeof *x), whole;
	size_t all = 0, kept = 0, starter = SIZE_MAX;

	read_tables();
	for (size_t i = 0; i < *n; i++)
		all += decompose(c[i], x + all);
	reorder(x, all);
	for (size_t i = 0; i < all; i++) {
		unsigned char order = table.order[x[i]],
			      before = kept ? table.order[x[kept - 1]] : 0;
		/* nothing between them, or only marks of lower classes */
		bool meet = starter < kept && (starter + 1 == kept || (before && before < order));

		if (meet && (whole = compose(x[starter], x[i]))) {
			x[starter] = whole;
			continue;
		}
		if (!order)
			starter = kept;
		x[kept++] = x[i];
	}
	*n = kept;
	return x;
}
