/* Memory, text and files. One process works on a few descriptions and ends: nothing is freed. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { CHUNK = 1 << 20 };

#ifdef __SANITIZE_ADDRESS__
/* The arena is never freed. */
const char *__asan_default_options(void);
const char *
__asan_default_options(void)
{
	return "detect_leaks=0";
}
#endif

_Noreturn void
internal(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fputs("olmogen: internal error: ", stderr);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputs("; please report it with the description\n", stderr);
	exit(EXIT_INTERNAL);
}

void *
xalloc(size_t size)
{
	static unsigned char *chunk;
	static size_t left;
	void *p;

	size = (size + 15) & ~(size_t)15;
	if (size > CHUNK / 4) {
		p = calloc(1, size);
	} else {
		if (size > left) {
			chunk = calloc(1, CHUNK);
			left = chunk ? CHUNK : 0;
		}
		p = chunk;
		if (chunk) {
			chunk += size;
			left -= size;
		}
	}
	if (!p) {
		fputs("olmogen: error: out of memory\n", stderr);
		exit(EXIT_USER);
	}
	return p;
}

char *
xstrdup(const char *s)
{
	size_t n = strlen(s) + 1;
	return memcpy(xalloc(n), s, n);
}

/* As long as the text, not as a buffer that may grow: names are many. */
char *
xvprintf(const char *fmt, va_list ap)
{
	va_list again;

	va_copy(again, ap);
	size_t n = (size_t)vsnprintf(NULL, 0, fmt, again) + 1;
	va_end(again);
	char *s = xalloc(n);
	vsnprintf(s, n, fmt, ap);
	return s;
}

char *
xprintf(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	char *s = xvprintf(fmt, ap);
	va_end(ap);
	return s;
}

void
array_grow(void **a, uint32_t *n, uint32_t *cap, size_t size)
{
	if (*n == *cap) {
		uint32_t more = *cap ? *cap * 2 : 16;
		void *p = xalloc(more * size);
		if (*n)
			memcpy(p, *a, *n * size);
		*a = p;
		*cap = more;
	}
	memset((char *)*a + *n * size, 0, size);
	++*n;
}

/* Room for n bytes more and a terminator. */
static char *
buf_end(struct buf *b, size_t n)
{
	if (b->n + n + 1 > b->cap) {
		size_t cap = b->cap ? b->cap : 256;
		while (cap < b->n + n + 1)
			cap *= 2;
		char *p = xalloc(cap);
		if (b->n)
			memcpy(p, b->s, b->n);
		b->s = p;
		b->cap = cap;
	}
	return b->s + b->n;
}

void
buf_add(struct buf *b, const char *s, size_t n)
{
	char *end = buf_end(b, n);

	memcpy(end, s, n);
	end[n] = 0;
	b->n += n;
}

void
buf_puts(struct buf *b, const char *s)
{
	buf_add(b, s, strlen(s));
}

void
buf_printf(struct buf *b, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	size_t n = (size_t)vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	va_start(ap, fmt);
	vsnprintf(buf_end(b, n), n + 1, fmt, ap);
	va_end(ap);
	b->n += n;
}

const struct embedded *
embedded_find(const char *path)
{
	for (uint32_t i = 0; i < n_embedded; i++)
		if (!strcmp(embedded[i].path, path))
			return &embedded[i];
	internal("%s is not embedded", path);
}

static int
by_bytes(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void
text_sort(const char **a, uint32_t n)
{
	if (n)
		qsort(a, n, sizeof *a, by_bytes);
}

const char *
text_bytes(uint64_t n)
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double x = (double)n;
	unsigned u = 0;

	for (; x >= 1024 && u + 1 < LEN(unit); u++)
		x /= 1024;
	if (u == 0)
		return xprintf("%d B", (int)n);
	return xprintf(x < 10 ? "%.2f %s" : x < 100 ? "%.1f %s" : "%.0f %s", x, unit[u]);
}

const char *
text_commas(uint64_t n)
{
	char digits[32], *out = xalloc(40), *o = out;
	int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);

	for (int i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			*o++ = ',';
		*o++ = digits[i];
	}
	return out;
}

const char *
text_digits(double x, int least)
{
	char s[40];

	for (int digits = least; digits <= 17; digits++) {
		snprintf(s, sizeof s, "%.*g", digits, x);
		if (strtod(s, NULL) == x)
			break;
	}
	return xstrdup(s);
}

const char *
text_double(double x)
{
	const char *s = text_digits(x, 6);

	return strpbrk(s, ".en") ? s : xprintf("%s.0", s);
}

/* SHA-256, FIPS 180-4. The round constants are the cube roots of the first 64 primes. */
static uint32_t
rotr(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static void
sha256_block(uint32_t h[8], const unsigned char *p)
{
	static const uint32_t k[64] = { 0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b,
		0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
		0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6,
		0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d,
		0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
		0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
		0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585,
		0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
		0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa,
		0xa4506ceb, 0xbef9a3f7, 0xc67178f2 };
	uint32_t w[64], s[8];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
		       (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 64; i++) {
		uint32_t a = w[i - 15], b = w[i - 2];
		w[i] = w[i - 16] + (rotr(a, 7) ^ rotr(a, 18) ^ a >> 3) + w[i - 7] +
		       (rotr(b, 17) ^ rotr(b, 19) ^ b >> 10);
	}
	memcpy(s, h, sizeof s);
	for (int i = 0; i < 64; i++) {
		uint32_t e = s[4], a = s[0];
		uint32_t t1 = s[7] + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) +
			      ((e & s[5]) ^ (~e & s[6])) + k[i] + w[i];
		uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) +
			      ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
		memmove(s + 1, s, 7 * sizeof *s);
		s[4] += t1;
		s[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++)
		h[i] += s[i];
}

char *
sha256_hex(const void *data, size_t n)
{
	uint32_t h[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
		0x1f83d9ab, 0x5be0cd19 };
	const unsigned char *p = data;
	unsigned char tail[128] = { 0 };
	size_t whole = n / 64 * 64, rest = n - whole, end = rest < 56 ? 64 : 128;
	char *hex = xalloc(65);

	for (size_t i = 0; i < whole; i += 64)
		sha256_block(h, p + i);
	if (rest)
		memcpy(tail, p + whole, rest);
	tail[rest] = 0x80;
	for (int i = 0; i < 8; i++)
		tail[end - 1 - (size_t)i] = (unsigned char)((uint64_t)n * 8 >> 8 * i);
	for (size_t i = 0; i < end; i += 64)
		sha256_block(h, tail + i);
	for (int i = 0; i < 8; i++)
		snprintf(hex + 8 * i, 9, "%08x", (unsigned)h[i]);
	return hex;
}
