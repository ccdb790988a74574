/*
 * The checks of quantise.h: every number and scale is compared with quantise_ref.h's. Numbers come
 * from 2^-24 to 2^24 times unit scale, by lots of 96, with zeros of both signs,
 * subnormals, magnitudes on the edge of an exponent, and a few NaN and infinities among them.
 */
#ifndef OM_QUANTISE_CHECK_H
#define OM_QUANTISE_CHECK_H

#include <stdlib.h>
#include <string.h>

#include "quantise_ref.h"

struct om_quantise_case {
	int64_t m, k;
	int b, f, j;
	bool sat;
};
struct om_quantise_w_case {
	int64_t e, n, k;
	int b, f;
	bool q, t;
};
typedef void
om_quantise_fn(const om_bf16 *x, const int32_t *off, om_e4m3 *q, void *s, int64_t *sat);
typedef void om_dequantise_fn(const om_e4m3 *q, const void *s, const int32_t *off, om_bf16 *x);
typedef void om_quantise_w_fn(const om_bf16 *w, om_e4m3 *q, void *s, om_e4m3 *t, void *st);
typedef void om_dequantise_w_fn(const om_e4m3 *q, const void *s, om_bf16 *w);

enum { OM_QUANTISE_SAMPLES = 48 };

/* A place for sample s among n: the ends, or a random one. */
static inline int64_t
om_quantise_pick(int64_t s, int64_t n, uint64_t seed, int stream)
{
	if (s % 5 == 0)
		return s % 2 ? n - 1 : 0;
	return (int64_t)((om_unit(seed, stream, s) / 3.4641016151377544 + 0.5) * (double)(n - 1));
}

static inline om_bf16
om_quantise_in(int64_t i, uint64_t seed)
{
	static const om_bf16 odd[] = { 0, 0x8000, 1, 0x8001, 0x43e0, 0xc3e0, 0x43e1, 0x0040, 0x3f80,
		0x7f80, 0xffc0, 0x7f7f };
	i %= OM_CHECK_PERIOD;
	const int64_t lot = i / 96;
	const double what = om_unit(seed, 31, i) / 3.4641016151377544 + 0.5;
	union {
		float f;
		uint32_t bits;
	} u = { om_unit_bf16(seed, 30, i) * exp2f((float)floor(14 * om_unit(seed, 32, lot))) };
	if (lot % 11 == 5) /* few bits, as of numbers that lie half way between two of E4M3 */
		u.bits &= 0xffe80000u;
	if (lot % 13 == 7)
		return lot % 2 ? 0x8000 : 0;
	if (what < 2e-3)
		return odd[(int)(what * 6000) % 9];
	if (what > 1 - 4e-5) /* a block in some 200 */
		return odd[9 + i % 3];
	return (om_bf16)(u.bits >> 16);
}

static inline om_bf16 *
om_quantise_array(int64_t n, uint64_t seed)
{
	const int64_t most = n < OM_CHECK_PERIOD ? n : OM_CHECK_PERIOD;
	om_bf16 *host = (om_bf16 *)malloc(most * 2);
#pragma omp parallel for
	for (int64_t i = 0; i < most; i++)
		host[i] = om_quantise_in(i, seed);
	om_bf16 *device = (om_bf16 *)om_check_repeat(host, n, 2);
	free(host);
	return device;
}

/* A block's exponent: `high` rows of `wide` numbers, rows `pitch` apart. */
static inline int
om_quantise_of(
    int64_t first, int64_t high, int64_t wide, int64_t pitch, int b, int f, uint64_t seed)
{
	double most = 0;
	for (int64_t i = 0; i < high; i++)
		for (int64_t j = 0; j < wide; j++) {
			const double x =
			    fabs(om_bf16_f32(om_quantise_in(first + i * pitch + j, seed)));
			if (isnan(x))
				return OM_NO_SCALE;
			most = fmax(most, x);
		}
	return om_exponent_ref(most, f, b == 32 ? -127 : -126);
}

/* What a scale is in memory: so many bytes, of this value. */
static inline uint32_t
om_quantise_stored(int e, int b)
{
	const union {
		float f;
		uint32_t bits;
	} u = { ldexpf(1, e) };
	if (b == 32)
		return e == OM_NO_SCALE ? 255 : (uint32_t)(e + 127);
	return e == OM_NO_SCALE ? 0x7fc00000u : u.bits;
}

static inline om_e4m3
om_quantise_q(int64_t i, int e, uint64_t seed)
{
	return e == OM_NO_SCALE ? 0x7f
				: om_e4m3_code_ref(ldexp(om_bf16_f32(om_quantise_in(i, seed)), -e));
}

/* Reads scale i. */
static inline uint32_t
om_quantise_scale(const void *s, int64_t i, int b)
{
	const size_t bytes = b == 32 ? 1 : 4;
	uint32_t x = 0;
	om_check_read(&x, (const char *)s + i * bytes, bytes);
	return x;
}

static inline bool
om_quantise_poisoned(const void *p, int64_t first, int64_t n)
{
	unsigned char *got = (unsigned char *)malloc(n + 1);
	bool kept = true;
	om_check_read(got, (const char *)p + first, n);
	for (int64_t i = 0; i < n; i++)
		kept &= got[i] == 0xff;
	free(got);
	return kept;
}

/* Of the last of j offsets, the only one that is read. */
static inline int32_t *
om_quantise_off(const struct om_quantise_case *x, uint64_t seed, int64_t *rows)
{
	int32_t *off = (int32_t *)calloc(x->j + 1, sizeof *off);
	*rows = x->m;
	if (x->j)
		*rows = (int64_t)((om_unit(seed, 8, 0) / 3.4641016151377544 + 0.5) * (double)x->m);
	if (x->j)
		off[x->j - 1] = (int32_t)*rows;
	int32_t *device = x->j ? (int32_t *)om_check_copy(off, x->j * sizeof *off) : NULL;
	free(off);
	return device;
}

static inline double
om_quantise_check(om_quantise_fn *run, const struct om_quantise_case *x, uint64_t seed)
{
	const int64_t size = x->m * x->k, across = x->k / x->b;
	const int64_t width = x->b == 32 ? 1 : 4, scales = x->m * across * width;
	const bool whole = size <= 1 << 20;
	int64_t rows, cut = 0;
	int32_t *off = om_quantise_off(x, seed, &rows);
	om_bf16 *in = om_quantise_array(size, seed);
	om_e4m3 *q = (om_e4m3 *)om_check_nan(size), *got = (om_e4m3 *)malloc(x->k);
	void *s = om_check_nan(scales);
	int64_t counts[2] = { 3, 5 };
	int64_t *sat = x->sat ? (int64_t *)om_check_copy(counts, sizeof counts) : NULL;
	bool wrong = false;
	run(in, off, q, s, sat);
	for (int64_t at = 0; at < (whole ? rows : OM_QUANTISE_SAMPLES) && rows > 0; at++) {
		const int64_t row = whole ? at : om_quantise_pick(at, rows, seed, 90);
		om_check_read(got, q + row * x->k, x->k);
		for (int64_t c = 0; c < across; c++) {
			const int64_t first = row * x->k + c * x->b;
			const int e = om_quantise_of(first, 1, x->b, 0, x->b, x->f, seed);
			const int64_t place = x->b == 32 ? row * across + c : c * x->m + row;
			wrong |= om_quantise_scale(s, place, x->b) != om_quantise_stored(e, x->b);
			for (int64_t i = 0; i < x->b; i++) {
				const om_e4m3 want = om_quantise_q(first + i, e, seed);
				wrong |= got[c * x->b + i] != want;
				cut += e != OM_NO_SCALE &&
				       fabs(ldexp(
					   om_bf16_f32(om_quantise_in(first + i, seed)), -e)) > 464;
			}
		}
	}
	wrong |= whole && !om_quantise_poisoned(q, rows * x->k, size - rows * x->k);
	if (whole && x->b == 32)
		wrong |= !om_quantise_poisoned(s, rows * across, scales - rows * across);
	for (int64_t c = 0; c < across && whole && x->b == 128; c++)
		wrong |= !om_quantise_poisoned(s, (c * x->m + rows) * 4, (x->m - rows) * 4);
	if (sat) {
		om_check_read(counts, sat, sizeof counts);
		wrong |= (whole && counts[0] != cut + 3) || counts[1] != rows * x->k + 5;
	}
	OM_TIME(run(in, off, q, s, sat));
	om_check_end();
	free(got);
	return wrong ? OM_WRONG : 0;
}

/* Random bytes, of which some are NaN. */
static inline om_e4m3
om_dequantise_in(int64_t i, uint64_t seed)
{
	return (om_e4m3)((om_unit(seed, 33, i) / 3.4641016151377544 + 0.5) * 256);
}

/* Scales of all exponents that there are, and NaN. */
static inline int
om_dequantise_exponent(int64_t i, int b, uint64_t seed)
{
	const double x = om_unit(seed, 34, i) / 3.4641016151377544 + 0.5;
	const int e = (int)(x * 256) - 127;
	return e == 128 ? OM_NO_SCALE : b == 128 && e < -126 ? -126 : e;
}

static inline void
om_dequantise_arrays(int64_t n, int64_t scales, int b, uint64_t seed, om_e4m3 **q, void **s)
{
	const int64_t width = b == 32 ? 1 : 4;
	const int64_t most = n < OM_CHECK_PERIOD ? n : OM_CHECK_PERIOD;
	om_e4m3 *host = (om_e4m3 *)malloc(most);
	for (int64_t i = 0; i < most; i++)
		host[i] = om_dequantise_in(i, seed);
	*q = (om_e4m3 *)om_check_repeat(host, n, 1);
	free(host);
	char *values = (char *)malloc(scales * width);
	for (int64_t i = 0; i < scales; i++) {
		const uint32_t one = om_quantise_stored(om_dequantise_exponent(i, b, seed), b);
		memcpy(values + i * width, &one, width);
	}
	*s = om_check_copy(values, scales * width);
	free(values);
}

static inline bool
om_dequantise_right(om_bf16 got, int64_t q, int64_t s, int b, uint64_t seed)
{
	const int e = om_dequantise_exponent(s, b, seed);
	const double value = om_e4m3_ref(om_dequantise_in(q, seed));
	const float is = om_bf16_f32(got);
	if (e == OM_NO_SCALE || isnan(value))
		return isnan(is);
	/* to bf16 of a number that has four bits: exact but for what is subnormal there */
	double want = ldexp(value, e);
	const double step = 0x1p-133;
	if (fabs(want) < 0x1p-126)
		want = nearbyint(want / step) * step;
	if (fabs(want) > 0x1.ffp127)
		return isinf(is) && !signbit(is) == !signbit(want);
	return is == want && !signbit(is) == !signbit(want);
}

static inline double
om_dequantise_check(om_dequantise_fn *run, const struct om_quantise_case *x, uint64_t seed)
{
	const int64_t size = x->m * x->k, across = x->k / x->b;
	const bool whole = size <= 1 << 20;
	int64_t rows;
	int32_t *off = om_quantise_off(x, seed, &rows);
	om_e4m3 *q;
	void *s;
	om_bf16 *out = (om_bf16 *)om_check_nan(size * 2), *got = (om_bf16 *)malloc(x->k * 2);
	bool wrong = false;
	om_dequantise_arrays(size, x->m * across, x->b, seed, &q, &s);
	run(q, s, off, out);
	for (int64_t at = 0; at < (whole ? rows : OM_QUANTISE_SAMPLES) && rows > 0; at++) {
		const int64_t row = whole ? at : om_quantise_pick(at, rows, seed, 90);
		om_check_read(got, out + row * x->k, x->k * 2);
		for (int64_t i = 0; i < x->k; i++) {
			const int64_t c = i / x->b;
			wrong |= !om_dequantise_right(got[i], row * x->k + i,
			    x->b == 32 ? row * across + c : c * x->m + row, x->b, seed);
		}
	}
	wrong |= whole && !om_quantise_poisoned(out, rows * x->k * 2, (size - rows * x->k) * 2);
	OM_TIME(run(q, s, off, out));
	om_check_end();
	free(got);
	return wrong ? OM_WRONG : 0;
}

/* In a stack of weights [e, high, wide], blocks of h x b: the scale of an element. */
static inline int64_t
om_quantise_place(const struct om_quantise_w_case *x, int64_t high, int64_t wide, int64_t e,
    int64_t row, int64_t col)
{
	const int64_t h = x->b == 32 ? 1 : x->b;
	return (e * (high / h) + row / h) * (wide / x->b) + col / x->b;
}

static inline double
om_quantise_w_check(om_quantise_w_fn *run, const struct om_quantise_w_case *x, uint64_t seed)
{
	const int64_t size = x->e * x->n * x->k, one = x->n * x->k;
	const int64_t scales = size / (x->b == 32 ? x->b : x->b * x->b) * (x->b == 32 ? 1 : 4);
	om_bf16 *w = om_quantise_array(size, seed);
	om_e4m3 *q = (om_e4m3 *)om_check_nan(x->q ? size : 1), got;
	om_e4m3 *t = (om_e4m3 *)om_check_nan(x->t ? size : 1);
	void *s = om_check_nan(x->q ? scales : 1), *st = om_check_nan(x->t ? scales : 1);
	bool wrong = false;
	run(w, q, s, t, st);
	for (int64_t at = 0; at < OM_QUANTISE_SAMPLES * 8; at++) {
		const int64_t e = om_quantise_pick(at / 7, x->e, seed, 90);
		const int64_t n = om_quantise_pick(at, x->n, seed, 91);
		const int64_t k = om_quantise_pick(at + at / 8, x->k, seed, 92);
		const int64_t h = x->b == 32 ? 1 : x->b, i = e * one + n * x->k + k;
		if (x->q) {
			const int scale =
			    om_quantise_of(e * one + n / h * h * x->k + k / x->b * x->b, h, x->b,
				x->k, x->b, x->f, seed);
			om_check_read(&got, q + i, 1);
			wrong |= got != om_quantise_q(i, scale, seed);
			wrong |= om_quantise_scale(s, om_quantise_place(x, x->n, x->k, e, n, k),
				     x->b) != om_quantise_stored(scale, x->b);
		}
		if (x->t) {
			const int scale =
			    om_quantise_of(e * one + n / x->b * x->b * x->k + k / h * h, x->b, h,
				x->k, x->b, x->f, seed);
			om_check_read(&got, t + e * one + k * x->n + n, 1);
			wrong |= got != om_quantise_q(i, scale, seed);
			wrong |= om_quantise_scale(st, om_quantise_place(x, x->k, x->n, e, k, n),
				     x->b) != om_quantise_stored(scale, x->b);
		}
	}
	OM_TIME(run(w, q, s, t, st));
	om_check_end();
	return wrong ? OM_WRONG : 0;
}

static inline double
om_dequantise_w_check(om_dequantise_w_fn *run, const struct om_quantise_w_case *x, uint64_t seed)
{
	const int64_t size = x->e * x->n * x->k, one = x->n * x->k;
	om_e4m3 *q;
	void *s;
	om_bf16 *w = (om_bf16 *)om_check_nan(size * 2), got;
	bool wrong = false;
	om_dequantise_arrays(size, size / (x->b == 32 ? x->b : x->b * x->b), x->b, seed, &q, &s);
	run(q, s, w);
	for (int64_t at = 0; at < OM_QUANTISE_SAMPLES * 8; at++) {
		const int64_t e = om_quantise_pick(at / 7, x->e, seed, 90);
		const int64_t n = om_quantise_pick(at, x->n, seed, 91);
		const int64_t k = om_quantise_pick(at + at / 8, x->k, seed, 92);
		om_check_read(&got, w + e * one + n * x->k + k, 2);
		wrong |= !om_dequantise_right(got, e * one + (x->t ? k * x->n + n : n * x->k + k),
		    x->t ? om_quantise_place(x, x->k, x->n, e, k, n)
			 : om_quantise_place(x, x->n, x->k, e, n, k),
		    x->b, seed);
	}
	OM_TIME(run(q, s, w));
	om_check_end();
	return wrong ? OM_WRONG : 0;
}

#endif
