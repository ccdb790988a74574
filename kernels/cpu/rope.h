/*
 * Rotary position embedding (Su et al., 2021) in Hugging Face's layout: of a head of d numbers, i
 * and i + d/2 are a pair.
 *
 *   rope_table  tab [s, d]: cos of position * frequency_i, i < d/2, then sin of the same, both
 *               times attention
 *   rope        y [b * s, h * d] = x, each pair turned by its position's angle; y may be x
 *   rope_bwd    dx = dy turned back; dx may be dy
 *   rope_at     rope of rows of any sequences: at [m] of at [2, m] is the position of each in the
 *               table; -1: there is no such row, and it is turned as position 0
 *
 * rope_frequency.h has the frequencies.
 */
#ifndef OM_ROPE_H
#define OM_ROPE_H

#include "check.h"

#include "rope_frequency.h"
#include "rope_ref.h"
#include "rows_ref.h"

static inline void
om_rope_table(int64_t s, int64_t d, int y, const struct om_rope_table *r, om_real *tab)
{
#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < d / 2; i++) {
		const double f = om_rope_frequency(d, y, i, r);
		for (int64_t p = 0; p < s; p++) {
			tab[p * d + i] = (om_real)(r->attention * cos((double)p * f));
			tab[p * d + d / 2 + i] = (om_real)(r->attention * sin((double)p * f));
		}
	}
}

/* Tokens [lo, hi); sign 1 turns, -1 turns back. */
static OM_CLONES void
om_rope_range(int64_t lo, int64_t hi, int64_t s, int64_t h, int64_t d, om_real sign,
    const om_real *x, const om_real *tab, om_real *y)
{
	const int64_t half = d / 2;
	for (int64_t r = lo * h; r < hi * h; r++) {
		const om_real *cosine = tab + r / h % s * d, *sine = cosine + half;
		const om_real *x0 = x + r * d, *x1 = x0 + half;
		om_real *y0 = y + r * d, *y1 = y0 + half;
#pragma omp simd
		for (int64_t i = 0; i < half; i++) {
			om_real a = x0[i], b = x1[i], sn = sign * sine[i];
			y0[i] = a * cosine[i] - b * sn;
			y1[i] = b * cosine[i] + a * sn;
		}
	}
}

static inline void
om_rope(int64_t b, int64_t s, int64_t h, int64_t d, om_real sign, const om_real *x,
    const om_real *tab, om_real *y)
{
#pragma omp parallel
	om_rope_range(om_lo(b * s), om_hi(b * s), s, h, d, sign, x, tab, y);
}

#define OM_ROPE_SIZES(b, s, h, d)                                                   \
	_Static_assert((b) >= 1 && (s) >= 1 && (h) >= 1, "rope: sizes start at 1"); \
	_Static_assert((d) >= 2 && (d) % 2 == 0, "rope: turns pairs, the head size is even");

#define OM_ROPE_TABLE(NAME, s, d, y, theta, factor, p, q, length, attention)                     \
	OM_ROPE_SIZES(1, s, 1, d)                                                                \
	_Static_assert((y) >= 0 && (y) < OM_ROPE_SCALINGS, "rope_table: no such scaling");       \
	static const struct om_rope_table NAME##_r = { theta, factor, p, q, length, attention }; \
	void NAME(om_real *tab)                                                                  \
	{                                                                                        \
		om_rope_table(s, d, y, &NAME##_r, tab);                                          \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_rope_table_check(NAME, s, d, y, &NAME##_r, seed);                      \
	}

#define OM_ROPE(NAME, b, s, h, d)                                   \
	OM_ROPE_SIZES(b, s, h, d)                                   \
	void NAME(const om_real *x, const om_real *tab, om_real *y) \
	{                                                           \
		om_rope(b, s, h, d, 1, x, tab, y);                  \
	}                                                           \
	double NAME##_check(uint64_t seed)                          \
	{                                                           \
		return om_rope_check(NAME, b, s, h, d, 1, seed);    \
	}

#define OM_ROPE_BWD(NAME, b, s, h, d)                                 \
	OM_ROPE_SIZES(b, s, h, d)                                     \
	void NAME(const om_real *dy, const om_real *tab, om_real *dx) \
	{                                                             \
		om_rope(b, s, h, d, -1, dy, tab, dx);                 \
	}                                                             \
	double NAME##_check(uint64_t seed)                            \
	{                                                             \
		return om_rope_check(NAME, b, s, h, d, -1, seed);     \
	}

static inline void
om_rope_at(int64_t m, int64_t h, int64_t d, const om_real *x, const om_real *tab, const int32_t *at,
    om_real *y)
{
#pragma omp parallel for schedule(static) if (m * h * d > OM_SERIAL)
	for (int64_t r = 0; r < m; r++)
		om_rope_range(0, 1, 1, h, d, 1, x + r * h * d, tab + (at[r] < 0 ? 0 : at[r]) * d,
		    y + r * h * d);
}

#define OM_ROPE_AT(NAME, m, s, h, d)                                                   \
	OM_ROPE_SIZES(m, s, h, d)                                                      \
	void NAME(const om_real *x, const om_real *tab, const int32_t *at, om_real *y) \
	{                                                                              \
		om_rope_at(m, h, d, x, tab, at, y);                                    \
	}                                                                              \
	double NAME##_check(uint64_t seed)                                             \
	{                                                                              \
		return om_rope_at_check(NAME, m, s, h, d, seed);                       \
	}

enum { OM_ROPE_SAMPLES = 256 };

OM_CHECK double
om_rope_table_check(void (*run)(om_real *), int64_t s, int64_t d, int y,
    const struct om_rope_table *r, uint64_t seed)
{
	om_real *tab = om_check_nan(s * d);
	struct om_err e = { .scale = 1 };
	run(tab);
	for (int64_t i = 0; i < om_samples(s * d, OM_ROPE_SAMPLES); i++) {
		int64_t at = om_sample(i, s * d, OM_ROPE_SAMPLES, seed);
		om_err_add(&e, tab[at], om_rope_ref_table(d, y, at, r));
	}
	free(tab);
	return om_err_value(&e);
}

OM_CHECK double
om_rope_check(void (*run)(const om_real *, const om_real *, om_real *), int64_t b, int64_t s,
    int64_t h, int64_t d, int sign, uint64_t seed)
{
	om_real *x = om_check_random(b * s * h * d, seed, 0),
		*tab = om_check_random(s * d, seed, 1);
	om_real *y = om_check_nan(b * s * h * d);
	const struct om_in in = { x }, by = { tab };
	struct om_err e = { .scale = 1 };
	run(x, tab, y);
	for (int64_t i = 0; i < b * s * h * d; i++) {
		double want = om_rope_ref_turn(by, d, i / (h * d) % s, sign, i, om_in(in, i),
		    om_in(in, om_rope_ref_pair(d, i)));
		om_err_add(&e, y[i], want);
	}
	free(x);
	free(tab);
	free(y);
	return om_err_value(&e);
}

OM_CHECK double
om_rope_at_check(void (*run)(const om_real *, const om_real *, const int32_t *, om_real *),
    int64_t m, int64_t s, int64_t h, int64_t d, uint64_t seed)
{
	om_real *x = om_check_random(m * h * d, seed, 0), *tab = om_check_random(s * d, seed, 1);
	om_real *y = om_check_nan(m * h * d);
	int32_t *at = om_check_alloc(2 * m, sizeof *at);
	const struct om_in in = { x }, by = { tab };
	struct om_err e = { .scale = 1 };
	om_rows_ref(m, m, s, seed, at);
	run(x, tab, at, y);
	for (int64_t i = 0; i < m * h * d; i++) {
		const int64_t row = i / (h * d), pos = at[row] < 0 ? 0 : at[row];
		double want = om_rope_ref_turn(
		    by, d, pos, 1, i, om_in(in, i), om_in(in, om_rope_ref_pair(d, i)));
		om_err_add(&e, y[i], want);
	}
	free(x);
	free(tab);
	free(y);
	free(at);
	return om_err_value(&e);
}

#endif
