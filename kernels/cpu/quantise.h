/*
 * Numbers in 8 bits: e4m3, of which a block shares a scale, a power of two.
 *
 *   quantise       q [m, k], s   of x [m, k]: b numbers of a row share a scale. Rows from off's
 *                                last of j numbers on are neither read nor written
 *   quantise_w     q [e, n, k], s of w [e, n, k]: b numbers of h rows share one
 *   quantise_wt    t [e, k, n], s of w [e, n, k] transposed: b of n, and h of k
 *   dequantise...  what they stand for: x, or w in its own order
 *
 * b is 32, as in OCP MX 1.0: a scale is a byte, its exponent + 127, and those of x lie as
 * [m, k / 32]; or 128: a scale is a float, and they lie as [k / 128, m]. f: by which rule it is
 * chosen, 0 rceil, the least by which nothing is above 448, 1 floor, by which what is becomes 448.
 * Numbers are rounded to the nearest, ties to even; a zero keeps its sign. In a block with a NaN or
 * an infinity scale and numbers are NaN. Of zeros alone, or less than the least scale is for, a
 * block has that: 2^-127, or as a float 2^-126.
 */
#ifndef OM_QUANTISE_H
#define OM_QUANTISE_H

#include "check.h"

#include "quantise_ref.h"

enum { OM_NAN_BITS = 0x7fc00000 };

static OM_INLINE uint32_t
om_bits(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof u);
	return u;
}

static OM_INLINE float
om_of_bits(uint32_t u)
{
	float x;
	memcpy(&x, &u, sizeof x);
	return x;
}

/* 2^e, for e in -127 .. 127 */
static OM_INLINE float
om_power(int e)
{
	return om_of_bits(e > -127 ? (uint32_t)(e + 127) << 23 : 1u << 22);
}

/* The nearest e4m3 of a number that is no NaN. */
static OM_INLINE uint8_t
om_e4m3(float x)
{
	uint32_t u = om_bits(x), a = u & 0x7fffffff;
	/* from 2^-6 on: half of the last place, less one where that is even, carries upwards */
	uint32_t large = ((a + 0x7ffff + (a >> 20 & 1)) >> 20) - ((127 - 7) << 3);
	/* below, numbers are multiples of 2^-9, the last place of 2^14 */
	uint32_t small = om_bits(om_of_bits(a) + 0x1p14f) - om_bits(0x1p14f);
	uint32_t code = a < 0x3c800000 ? small : large;
	return (uint8_t)((code < 0x7e ? code : 0x7e) | (u >> 24 & 0x80));
}

static OM_INLINE float
om_of_e4m3(uint8_t code)
{
	uint32_t a = code & 0x7f;
	float x = om_of_bits(a == OM_E4M3_NAN ? OM_NAN_BITS : a << 20) * 0x1p120f;
	return code & 0x80 ? -x : x;
}

/* A tensor of blocks: their numbers, steps between these, and the steps between blocks' scales. */
struct om_blocks {
	int64_t rows, cols; /* of numbers */
	int64_t h, b;       /* of a block: rows, numbers of one */
	const om_real *x;   /* [rows, cols], to be quantised */
	om_real *y;         /* ... dequantised */
	uint8_t *q;         /* steps between rows, and between numbers of one */
	int64_t row, col;
	void *s; /* steps between scales of blocks of the next rows, and of the next columns */
	int64_t down, right;
	bool bytes; /* scales are of 8 bits */
	bool by_floor;
};

/* The exponent of the scale of a block, of whose numbers top has the largest's bits. */
static OM_INLINE int
om_block_exponent(const struct om_blocks *a, uint32_t top)
{
	int e = (int)(top >> 23) - 127 - 8 + (!a->by_floor && (top & 0x7fffff) > 0x600000);
	int least = a->bytes ? -127 : -126;
	return top >= 0x7f800000 ? OM_NO_SCALE : e > least ? e : least;
}

/* The numbers of one block with a stride between those of a row; gives how many are too large. */
static OM_INLINE int64_t
om_quantise_block(const struct om_blocks *a, int64_t i, int64_t j, int64_t step)
{
	const int64_t b = a->b;
	int64_t at = i / a->h * a->down + j / b * a->right;
	uint32_t top = 0;
	int64_t large = 0;
	for (int64_t r = i; r < i + a->h; r++) {
		for (int64_t c = j; c < j + b; c++) {
			uint32_t u = om_bits((float)a->x[r * a->cols + c]) & 0x7fffffff;
			top = u > top ? u : top;
		}
	}
	int e = om_block_exponent(a, top);
	if (a->bytes)
		((uint8_t *)a->s)[at] = e == OM_NO_SCALE ? 0xff : (uint8_t)(e + 127);
	else
		((float *)a->s)[at] = e == OM_NO_SCALE ? om_of_bits(OM_NAN_BITS) : om_power(e);
	float by = e == OM_NO_SCALE ? 0 : om_power(-e);
	for (int64_t r = i; r < i + a->h; r++) {
		const om_real *x = a->x + r * a->cols;
		uint8_t *q = a->q + r * a->row;
		for (int64_t c = j; c < j + b; c++) {
			float v = (float)x[c] * by;
			q[c * step] = e == OM_NO_SCALE ? OM_E4M3_NAN : om_e4m3(v);
			large += fabsf(v) > 464;
		}
	}
	return large;
}

static OM_CLONES int64_t
om_quantise_range(const struct om_blocks *a, int64_t lo, int64_t hi)
{
	const int64_t across = a->cols / a->b;
	int64_t large = 0;
	for (int64_t n = lo; n < hi; n++) {
		int64_t i = n / across * a->h, j = n % across * a->b;
		large += a->col == 1 ? om_quantise_block(a, i, j, 1)
				     : om_quantise_block(a, i, j, a->col);
	}
	return large;
}

static inline int64_t
om_quantise(const struct om_blocks *a)
{
	const int64_t blocks = a->rows / a->h * (a->cols / a->b);
	int64_t large = 0;
#pragma omp parallel reduction(+ : large) if (a->rows * a->cols > OM_SERIAL)
	large += om_quantise_range(a, om_lo(blocks), om_hi(blocks));
	return large;
}

static OM_CLONES void
om_dequantise_range(const struct om_blocks *a, int64_t lo, int64_t hi)
{
	for (int64_t i = lo; i < hi; i++) {
		for (int64_t j = 0; j < a->cols; j += a->b) {
			int64_t at = i / a->h * a->down + j / a->b * a->right;
			uint8_t byte = a->bytes ? ((const uint8_t *)a->s)[at] : 0;
			float by = !a->bytes      ? ((const float *)a->s)[at]
				   : byte == 0xff ? om_of_bits(OM_NAN_BITS)
						  : om_power(byte - 127);
			const uint8_t *q = a->q + i * a->row + j * a->col;
			om_real *y = a->y + i * a->cols + j;
			for (int64_t c = 0; c < a->b; c++)
				y[c] = (om_real)(om_of_e4m3(q[c * a->col]) * by);
		}
	}
}

static inline void
om_dequantise(const struct om_blocks *a)
{
#pragma omp parallel if (a->rows * a->cols > OM_SERIAL)
	om_dequantise_range(a, om_lo(a->rows), om_hi(a->rows));
}

/* Of activations: rows of those in a buffer of m. */
static inline struct om_blocks
om_row_blocks(int64_t m, int64_t k, int64_t b, int64_t rows, uint8_t *q, void *s)
{
	bool bytes = b == 32;
	return (struct om_blocks){ .rows = rows,
		.cols = k,
		.h = 1,
		.b = b,
		.q = q,
		.row = k,
		.col = 1,
		.s = s,
		.down = bytes ? k / b : 1,
		.right = bytes ? 1 : m,
		.bytes = bytes };
}

/* Of weights [n, k]; turned: q is [k, n], and b numbers of n and h of k share a scale. */
static inline struct om_blocks
om_weight_blocks(int64_t n, int64_t k, int64_t b, int64_t h, bool turned, uint8_t *q, void *s)
{
	struct om_blocks a = { .rows = n,
		.cols = k,
		.h = h,
		.b = b,
		.q = q,
		.row = k,
		.col = 1,
		.s = s,
		.down = k / b,
		.right = 1,
		.bytes = b == 32 };
	if (!turned)
		return a;
	a.h = b;
	a.b = h;
	a.row = 1;
	a.col = n;
	a.down = 1;
	a.right = n / b;
	return a;
}

static inline void
om_quantise_rows(int64_t m, int64_t k, int64_t b, bool by_floor, int64_t rows, const om_real *x,
    uint8_t *q, void *s, int64_t *sat)
{
	struct om_blocks a = om_row_blocks(m, k, b, rows, q, s);
	a.x = x;
	a.by_floor = by_floor;
	int64_t large = om_quantise(&a);
	if (sat) {
		sat[0] += large;
		sat[1] += rows * k;
	}
}

static inline void
om_dequantise_rows(
    int64_t m, int64_t k, int64_t b, int64_t rows, const uint8_t *q, const void *s, om_real *x)
{
	struct om_blocks a = om_row_blocks(m, k, b, rows, (uint8_t *)q, (void *)s);
	a.y = x;
	om_dequantise(&a);
}

/* The weights of e experts one after the other; x to be quantised, or y. */
static inline void
om_weights(int64_t e, int64_t n, int64_t k, int64_t b, int64_t h, bool by_floor, bool turned,
    const om_real *x, om_real *y, uint8_t *q, void *s)
{
	for (int64_t i = 0; i < e; i++) {
		struct om_blocks a = om_weight_blocks(n, k, b, h, turned, q + i * n * k,
		    (char *)s + i * (n * k / (b * h)) * (b == 32 ? 1 : 4));
		a.by_floor = by_floor;
		a.x = x + i * n * k;
		a.y = y + i * n * k;
		if (x)
			om_quantise(&a);
		else
			om_dequantise(&a);
	}
}

/* The type of a scale. */
#define OM_SCALE_OF(b) __typeof__(__builtin_choose_expr((b) == 32, (uint8_t)0, 0.0f))

#define OM_QUANTISE_SIZES(m, k, b, h)                                                           \
	_Static_assert(((b) == 32 && (h) == 1) || (b) == 128, "quantise: blocks of 32 or 128"); \
	_Static_assert((m) >= 1 && (k) >= 1 && (k) % (b) == 0 && (m) % (h) == 0,                \
	    "quantise: sizes are of whole blocks");

#define OM_QUANTISE(NAME, m, k, b, f)                               \
	OM_QUANTISE_SIZES(m, k, b, 1)                               \
	void NAME(const om_real *x, uint8_t *q, OM_SCALE_OF(b) * s) \
	{                                                           \
		om_quantise_rows(m, k, b, f, m, x, q, s, NULL);     \
	}                                                           \
	OM_QUANTISE_CHECK(NAME, m, k, b, f, 0, NULL, x, q, s)

#define OM_QUANTISE_ROUTED(NAME, m, k, b, f, j)                                         \
	OM_QUANTISE_SIZES(m, k, b, 1)                                                   \
	void NAME(const om_real *x, const int32_t *off, uint8_t *q, OM_SCALE_OF(b) * s) \
	{                                                                               \
		om_quantise_rows(m, k, b, f, off[(j)-1], x, q, s, NULL);                \
	}                                                                               \
	OM_QUANTISE_CHECK(NAME, m, k, b, f, j, NULL, x, off, q, s)

#define OM_QUANTISE_COUNTED(NAME, m, k, b, f)                                      \
	OM_QUANTISE_SIZES(m, k, b, 1)                                              \
	void NAME(const om_real *x, uint8_t *q, OM_SCALE_OF(b) * s, int64_t * sat) \
	{                                                                          \
		om_quantise_rows(m, k, b, f, m, x, q, s, sat);                     \
	}                                                                          \
	OM_QUANTISE_CHECK(NAME, m, k, b, f, 0, sat, x, q, s, sat)

#define OM_QUANTISE_ROUTED_COUNTED(NAME, m, k, b, f, j)                                          \
	OM_QUANTISE_SIZES(m, k, b, 1)                                                            \
	void NAME(                                                                               \
	    const om_real *x, const int32_t *off, uint8_t *q, OM_SCALE_OF(b) * s, int64_t * sat) \
	{                                                                                        \
		om_quantise_rows(m, k, b, f, off[(j)-1], x, q, s, sat);                          \
	}                                                                                        \
	OM_QUANTISE_CHECK(NAME, m, k, b, f, j, sat, x, off, q, s, sat)

#define OM_DEQUANTISE(NAME, m, k, b)                                       \
	OM_QUANTISE_SIZES(m, k, b, 1)                                      \
	void NAME(const uint8_t *q, const OM_SCALE_OF(b) * s, om_real * x) \
	{                                                                  \
		om_dequantise_rows(m, k, b, m, q, s, x);                   \
	}                                                                  \
	OM_DEQUANTISE_CHECK(NAME, m, k, b, 0, q, s, x)

#define OM_DEQUANTISE_ROUTED(NAME, m, k, b, j)                                                \
	OM_QUANTISE_SIZES(m, k, b, 1)                                                         \
	void NAME(const uint8_t *q, const OM_SCALE_OF(b) * s, const int32_t *off, om_real *x) \
	{                                                                                     \
		om_dequantise_rows(m, k, b, off[(j)-1], q, s, x);                             \
	}                                                                                     \
	OM_DEQUANTISE_CHECK(NAME, m, k, b, j, q, s, off, x)

/* turned: t is [e, k, n] */
#define OM_QUANTISE_WEIGHTS(NAME, e, n, k, b, h, f, turned)                                        \
	OM_QUANTISE_SIZES(n, k, b, h)                                                              \
	_Static_assert(!(turned) || ((n) % (b) == 0 && (k) % (h) == 0), "quantise: whole blocks"); \
	void NAME(const om_real *w, uint8_t *q, OM_SCALE_OF(b) * s)                                \
	{                                                                                          \
		om_weights(e, n, k, b, h, f, turned, w, NULL, q, s);                               \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		int64_t size = (e) * (n) * (k);                                                    \
		om_real *w = om_quantise_input(size, seed);                                        \
		uint8_t *q = om_check_alloc(size, 1);                                              \
		OM_SCALE_OF(b) *s = om_check_alloc(size / ((b) * (h)), sizeof *s);                 \
		NAME(w, q, s);                                                                     \
		double v = om_weights_check(e, n, k, b, h, f, turned, w, q, s, NULL);              \
		free(w);                                                                           \
		free(q);                                                                           \
		free(s);                                                                           \
		return v;                                                                          \
	}
#define OM_QUANTISE_W(NAME, e, n, k, b, h, f) OM_QUANTISE_WEIGHTS(NAME, e, n, k, b, h, f, false)
#define OM_QUANTISE_WT(NAME, e, n, k, b, h, f) OM_QUANTISE_WEIGHTS(NAME, e, n, k, b, h, f, true)

#define OM_DEQUANTISE_WEIGHTS(NAME, e, n, k, b, h, turned)                                         \
	OM_QUANTISE_SIZES(n, k, b, h)                                                              \
	_Static_assert(!(turned) || ((n) % (b) == 0 && (k) % (h) == 0), "quantise: whole blocks"); \
	void NAME(const uint8_t *q, const OM_SCALE_OF(b) * s, om_real * w)                         \
	{                                                                                          \
		om_weights(e, n, k, b, h, false, turned, NULL, w, (uint8_t *)q, (void *)s);        \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		int64_t size = (e) * (n) * (k);                                                    \
		om_real *w = om_check_nan(size);                                                   \
		uint8_t *q = om_check_alloc(size, 1);                                              \
		OM_SCALE_OF(b) *s = om_check_alloc(size / ((b) * (h)), sizeof *s);                 \
		om_quantised_input(size, size / ((b) * (h)), (b) == 32, q, s, seed);               \
		NAME(q, s, w);                                                                     \
		double v = om_weights_check(e, n, k, b, h, false, turned, NULL, q, s, w);          \
		free(w);                                                                           \
		free(q);                                                                           \
		free(s);                                                                           \
		return v;                                                                          \
	}
#define OM_DEQUANTISE_W(NAME, e, n, k, b, h) OM_DEQUANTISE_WEIGHTS(NAME, e, n, k, b, h, false)
#define OM_DEQUANTISE_WT(NAME, e, n, k, b, h) OM_DEQUANTISE_WEIGHTS(NAME, e, n, k, b, h, true)

/* ---- the checks ---- */

/* What rows are given, with padding behind them, and j numbers of off where there are any. */
#define OM_QUANTISE_CHECK(NAME, m, k, b, f, j, counted, ...)                                  \
	double NAME##_check(uint64_t seed)                                                    \
	{                                                                                     \
		int64_t size = (m) * (k);                                                     \
		int32_t *off = om_quantise_off(m, j, seed);                                   \
		int64_t rows = (j) ? off[(j)-1] : (m);                                        \
		int64_t count[2] = { 3, 4 }, *sat = count;                                    \
		om_real *x = om_quantise_input(size, seed);                                   \
		uint8_t *q = om_check_alloc(size, 1);                                         \
		OM_SCALE_OF(b) *s = om_check_alloc(size / (b), sizeof *s);                    \
		om_check_spoil(x, rows *(k), size);                                           \
		memset(q, 7, (size_t)size);                                                   \
		memset(s, 7, (size_t)(size / (b)) * sizeof *s);                               \
		NAME(__VA_ARGS__);                                                            \
		double v =                                                                    \
		    om_rows_check(m, k, b, f, rows, x, q, s, (counted) ? count : NULL, NULL); \
		free(off);                                                                    \
		free(x);                                                                      \
		free(q);                                                                      \
		free(s);                                                                      \
		(void)sat;                                                                    \
		return v;                                                                     \
	}
#define OM_DEQUANTISE_CHECK(NAME, m, k, b, j, ...)                               \
	double NAME##_check(uint64_t seed)                                       \
	{                                                                        \
		int64_t size = (m) * (k);                                        \
		int32_t *off = om_quantise_off(m, j, seed);                      \
		int64_t rows = (j) ? off[(j)-1] : (m);                           \
		om_real *x = om_check_output(rows * (k), size);                  \
		uint8_t *q = om_check_alloc(size, 1);                            \
		OM_SCALE_OF(b) *s = om_check_alloc(size / (b), sizeof *s);       \
		om_quantised_input(size, size / (b), (b) == 32, q, s, seed);     \
		NAME(__VA_ARGS__);                                               \
		double v = om_rows_check(m, k, b, 0, rows, NULL, q, s, NULL, x); \
		free(off);                                                       \
		free(x);                                                         \
		free(q);                                                         \
		free(s);                                                         \
		return v;                                                        \
	}

/* Of j offsets the last one, of which alone kernels ask, up to m. */
OM_CHECK int32_t *
om_quantise_off(int64_t m, int64_t j, uint64_t seed)
{
	int32_t *off = om_check_alloc(j, sizeof *off);
	for (int64_t i = 0; i < j; i++)
		off[i] = seed % 2 ? (int32_t)m : (int32_t)(om_hash(seed, 2) % (uint64_t)(m + 1));
	return off;
}

/*
 * Floats of all magnitudes: 32 after 32, or 128, are of one, or zeros; some lie halfway between two
 * codes, some are 448 or 464 or just beside it, of some that is the largest; few are NaN or
 * infinite.
 */
OM_CHECK om_real *
om_quantise_input(int64_t n, uint64_t seed)
{
	om_real *x = om_check_alloc(n, sizeof *x);
	for (int64_t i = 0; i < n; i++) {
		uint64_t wide = om_hash(seed + 78, (uint64_t)(i / 128));
		uint64_t of = wide % 2 ? wide : om_hash(seed + 77, (uint64_t)(i / 32));
		uint64_t own = om_hash(seed, (uint64_t)i), kind = of / 2 % 8;
		int e = kind == 0 ? -140 : kind == 1 ? 118 : (int)(of / 16 % 24) - 12;
		double v = om_unit(seed, (uint64_t)i);
		if (own % 16 < 5) { /* a tie, or a code itself */
			int code = (int)(own / 16 % 126);
			v = (om_e4m3_ref(code) + om_e4m3_ref(code + (int)(own % 2))) / 1024;
		}
		if (own % 16 == 5)
			v = 0.875 + (double)((int)(own / 64 % 3) - 1) * 0x1p-20;
		if (own % 16 == 6)
			v = 464. / 512 + (double)((int)(own / 64 % 3) - 1) * 0x1p-20;
		if (kind == 2)
			v = 0;
		if (kind == 3 || kind == 4)
			v = fmin(fabs(v), kind == 3 ? 0.875 : 0.99);
		x[i] = (om_real)(float)ldexp(own & 32 ? -v : v, e);
		if (of / 1024 % 16 == 0 && own / 1024 % 64 == 0)
			x[i] = (om_real)(own & 64 ? NAN : own & 32 ? -INFINITY : INFINITY);
	}
	return x;
}

/* All codes and scales. */
OM_CHECK void
om_quantised_input(int64_t n, int64_t blocks, bool bytes, uint8_t *q, void *s, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++)
		q[i] = (uint8_t)om_hash(seed, (uint64_t)i);
	for (int64_t i = 0; i < blocks; i++) {
		uint64_t of = om_hash(seed + 77, (uint64_t)i);
		if (bytes)
			((uint8_t *)s)[i] = (uint8_t)of;
		else
			((float *)s)[i] = of % 255 == 254 ? NAN : ldexpf(1, (int)(of % 255) - 126);
	}
}

/* A block: rows and numbers from x, q and y on, a scale, and of its values those above 448. */
struct om_block_check {
	int64_t rows, cols, xrow, xcol, qrow, qcol;
	const om_real *x; /* NULL: q and s were given */
	const uint8_t *q;
	const om_real *y;
	const void *s;
	bool bytes, by_floor;
};

OM_CHECK bool
om_block_right(const struct om_block_check *c, int64_t *large)
{
	double a = 0, by = 0;
	bool right = true;
	uint8_t byte = c->bytes ? *(const uint8_t *)c->s : 0;
	float scale = c->bytes ? 0 : *(const float *)c->s;

	for (int64_t i = 0; i < c->rows * c->cols && c->x; i++) {
		double v = (double)c->x[i / c->cols * c->xrow + i % c->cols * c->xcol];
		a = fabs(v) > a || isnan(v) ? fabs(v) : a;
		if (isnan(a))
			break;
	}
	int e = om_exponent_ref(a, c->by_floor, c->bytes ? -127 : -126);
	if (!c->x)
		by = c->bytes ? byte == 0xff ? (double)NAN : ldexp(1, byte - 127) : (double)scale;
	else if (e == OM_NO_SCALE)
		right = c->bytes ? byte == 0xff : om_bits(scale) == OM_NAN_BITS;
	else
		right = c->bytes ? byte == e + 127 : (double)scale == ldexp(1, e);
	for (int64_t i = 0; i < c->rows * c->cols; i++) {
		int64_t at = i / c->cols * c->xrow + i % c->cols * c->xcol;
		uint8_t q = c->q[i / c->cols * c->qrow + i % c->cols * c->qcol];
		if (!c->x) {
			float want = (float)(om_e4m3_ref(q) * by), got = (float)c->y[at];
			right &= isnan(want) ? isnan(got) : om_bits(want) == om_bits(got);
			continue;
		}
		double v = e == OM_NO_SCALE ? 0 : ldexp((double)c->x[at], -e);
		*large += fabs(v) > 464;
		right &= q == (e == OM_NO_SCALE ? OM_E4M3_NAN : om_e4m3_code_ref(v));
	}
	return right;
}

OM_CHECK double
om_rows_check(int64_t m, int64_t k, int64_t b, bool by_floor, int64_t rows, const om_real *x,
    const uint8_t *q, const void *s, const int64_t *count, const om_real *y)
{
	int64_t large = 0;
	bool bytes = b == 32, right = true;
	for (int64_t i = 0; i < m * (k / b); i++) {
		int64_t row = i / (k / b), j = i % (k / b), at = bytes ? i : j * m + row;
		const uint8_t *from = q + row * k + j * b;
		const char *scale = (const char *)s + at * (bytes ? 1 : 4);
		if (row < rows)
			right &= om_block_right(
			    &(struct om_block_check){ 1, b, k, 1, k, 1,
				x ? x + row * k + j * b : NULL, from,
				y ? y + row * k + j * b : NULL, scale, bytes, by_floor },
			    &large);
		for (int64_t c = 0; row >= rows && x && c < b; c++)
			right &= from[c] == 7 && scale[c % (bytes ? 1 : 4)] == 7;
	}
	if (count)
		right &= count[0] == 3 + large && count[1] == 4 + rows * k;
	if (y)
		right &= om_check_kept(y, rows * k, m * k);
	return right ? 0 : OM_WRONG;
}

OM_CHECK double
om_weights_check(int64_t e, int64_t n, int64_t k, int64_t b, int64_t h, bool by_floor, bool turned,
    const om_real *x, const uint8_t *q, const void *s, const om_real *y)
{
	const int64_t rows = turned ? k : n, cols = turned ? n : k; /* of q */
	const int64_t across = cols / b, blocks = rows / h * across;
	bool bytes = b == 32, right = true;
	for (int64_t i = 0; i < e * blocks; i++) {
		int64_t r = i % blocks / across * h, c = i % across * b, large = 0;
		int64_t at = i / blocks * n * k + (turned ? c * k + r : r * k + c);
		right &= om_block_right(
		    &(struct om_block_check){ h, b, turned ? 1 : k, turned ? k : 1, cols, 1,
			x ? x + at : NULL, q + i / blocks * n * k + r * cols + c, y ? y + at : NULL,
			(const char *)s + i * (bytes ? 1 : 4), bytes, by_floor },
		    &large);
	}
	return right ? 0 : OM_WRONG;
}

#endif
