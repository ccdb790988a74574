/*
 * Rotary position embedding (Su et al., 2021) in Hugging Face's layout: of a head of d numbers, i
 * and i + d/2 are a pair.
 *
 *   rope_table  tab [s, d]: cos of position * frequency_i, i < d/2, then sin of the same, both
 *               times attention
 *   rope        y [b * s, h * d] = x, each pair turned by its position's angle; y may be x
 *   rope_bwd    dx = dy turned back; dx may be dy
 *
 * rope_frequency.h has the frequencies.
 *
 * d is a multiple of 16, so that half a head is whole vectors of 8. In rope a thread turns a vector
 * of pairs of up to four heads of a token: it reads their angles once.
 *
 * rope_table runs once. The host computes the frequencies, as the CPU's kernel does, and passes
 * them as an argument; the device multiplies and takes cos and sin, in double.
 */
#ifndef OM_ROPE_H
#define OM_ROPE_H

#include "om_cuda.h"

#define OM_ROPE_THREADS 256
#define OM_ROPE_HEADS(h) ((h) % 4 == 0 ? 4 : (h) % 2 == 0 ? 2 : 1) /* of a thread */
#define OM_ROPE_ITEMS(b, s, h, d) ((int64_t)(b) * (s) * ((h) / OM_ROPE_HEADS(h)) * ((d) / 16))

#define OM_ROPE_SIZES(b, s, h, d)                                                              \
	static_assert((b) >= 1 && (s) >= 1 && (h) >= 1 && (d) >= 1, "rope: sizes start at 1"); \
	static_assert((d) % 16 == 0, "rope: the head size is a multiple of 16");               \
	static_assert(OM_ROPE_ITEMS(b, s, h, d) <= 0x7fffffff, "rope: vectors counted in int32");
/* a kernel's arguments are at most 4 KiB, of which d / 2 frequencies are the bulk */
#define OM_ROPE_TABLE_SIZES(s, d, y)                                                 \
	OM_ROPE_SIZES(1, s, 1, d)                                                    \
	static_assert((d) <= 1000, "rope_table: the head size is at most 1000");     \
	static_assert((int64_t)(s) * (d) / 2 <= 0x7fffffff, "rope_table: too long"); \
	static_assert((y) >= 0 && (y) <= 3, "rope_table: no such scaling");

#ifdef __CUDACC__

template <int HALF> struct om_rope_turns {
	double f[HALF]; /* radians a position */
};

/* cospi and sinpi reduce their argument exactly; cos and sin would need a long division. */
template <int64_t S, int HALF>
OM_DEV void
om_rope_table(const om_rope_turns<HALF> &turns, double attention, float *tab)
{
	const uint32_t i = blockIdx.x * OM_ROPE_THREADS + threadIdx.x, p = i / HALF, at = i % HALF;
	if (i >= S * HALF)
		return;
	const double half_turns = p * turns.f[at] * 0.31830988618379067154;
	tab[(int64_t)p * (2 * HALF) + at] = (float)(attention * cospi(half_turns));
	tab[(int64_t)p * (2 * HALF) + HALF + at] = (float)(attention * sinpi(half_turns));
}

/* One of a pair, turned: s is the sine for the second of the two, minus the sine for the first. */
OM_DEV float
om_rope_turn(float own, float other, float c, float s)
{
	return fmaf(own, c, other * s);
}

/*
 * The angles of eight numbers of a head, its vector at, as om_rope_turn takes them. SIGN 1 turns,
 * -1 turns back.
 */
template <int D, int SIGN>
OM_DEV void
om_rope_angles(const float *tab, uint32_t position, int at, float c[8], float s[8])
{
	constexpr int wide = D / 16; /* vectors of half a head */
	const float4 *turn = (const float4 *)(tab + (int64_t)position * D + at % wide * 8);
	const float sign = at < wide ? -SIGN : SIGN;
#pragma unroll
	for (int v = 0; v < 2; v++) {
		const float4 p = __ldg(turn + v), q = __ldg(turn + wide * 2 + v);
		c[v * 4] = p.x, c[v * 4 + 1] = p.y, c[v * 4 + 2] = p.z, c[v * 4 + 3] = p.w;
		s[v * 4] = sign * q.x, s[v * 4 + 1] = sign * q.y;
		s[v * 4 + 2] = sign * q.z, s[v * 4 + 3] = sign * q.w;
	}
}

/* SIGN 1 turns, -1 turns back. */
template <int B, int S, int H, int D, int SIGN>
OM_DEV void
om_rope(const om_bf16 *x, const float *tab, om_bf16 *y)
{
	constexpr int heads = OM_ROPE_HEADS(H), rest = H / heads, wide = D / 16, half = D / 2;
	constexpr uint32_t items = OM_ROPE_ITEMS(B, S, H, D);
	const uint32_t i = blockIdx.x * OM_ROPE_THREADS + threadIdx.x;
	if (items % OM_ROPE_THREADS && i >= items)
		return;
	const uint32_t col = i % wide * 8, head = i / wide % rest, token = i / (wide * rest);
	/* neighbours in a warp have neighbouring heads; a thread's own are apart */
	const int64_t at = ((int64_t)token * H + head) * D + col;
	const float4 *turn = (const float4 *)(tab + (int64_t)(token % S) * D + col);
	float p[heads][8], q[heads][8], c[8], s[8];
#pragma unroll
	for (int u = 0; u < heads; u++) {
		om_load8(x + at + u * rest * D, p[u]);
		om_load8(x + at + u * rest * D + half, q[u]);
	}
#pragma unroll
	for (int v = 0; v < 2; v++) {
		*(float4 *)&c[v * 4] = turn[v];
		*(float4 *)&s[v * 4] = turn[half / 4 + v];
	}
#pragma unroll
	for (int u = 0; u < heads; u++) {
#pragma unroll
		for (int j = 0; j < 8; j++) {
			const float a = p[u][j], b = q[u][j];
			p[u][j] = om_rope_turn(a, b, c[j], -(SIGN * s[j]));
			q[u][j] = om_rope_turn(b, a, c[j], SIGN * s[j]);
		}
		om_store8(y + at + u * rest * D, p[u]);
		om_store8(y + at + u * rest * D + half, q[u]);
	}
}

#define OM_ROPE_TABLE(NAME, s, d, y, theta, factor, p, q, length, attention)                 \
	OM_ROPE_TABLE_SIZES(s, d, y)                                                         \
	OM_GLOBAL(OM_ROPE_THREADS, 1)                                                        \
	NAME##_x(const __grid_constant__ om_rope_turns<(d) / 2> turns, double a, float *tab) \
	{                                                                                    \
		om_rope_table<s, (d) / 2>(turns, a, tab);                                    \
	}

#define OM_ROPE_KERNEL(NAME, b, s, h, d, sign)                   \
	OM_ROPE_SIZES(b, s, h, d)                                \
	OM_GLOBAL(OM_ROPE_THREADS, 3)                            \
	NAME##_x(const om_bf16 *x, const float *tab, om_bf16 *y) \
	{                                                        \
		om_rope<b, s, h, d, sign>(x, tab, y);            \
	}
#define OM_ROPE(NAME, b, s, h, d) OM_ROPE_KERNEL(NAME, b, s, h, d, 1)
#define OM_ROPE_BWD(NAME, b, s, h, d) OM_ROPE_KERNEL(NAME, b, s, h, d, -1)

#else /* ---- host ---- */

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rope_frequency.h"
#include "rope_ref.h"

#define OM_ROPE_TABLE(NAME, s, d, y, theta, factor, p, q, length, attention)                       \
	OM_ROPE_TABLE_SIZES(s, d, y)                                                               \
	OM_KERNEL(NAME##_x, OM_ROPE_THREADS, 0)                                                    \
	static const struct om_rope_table NAME##_r = { theta, factor, p, q, length, attention };   \
	void NAME(float *tab)                                                                      \
	{                                                                                          \
		double turns[(d) / 2], a = attention;                                              \
		for (int i = 0; i < (d) / 2; i++)                                                  \
			turns[i] = om_rope_frequency(d, y, i, &NAME##_r);                          \
		OM_LAUNCH(NAME##_x, OM_CEIL((int64_t)(s) * (d) / 2, OM_ROPE_THREADS), 1, 1, turns, \
		    &a, &tab);                                                                     \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_rope_table_check(NAME, s, d, y, &NAME##_r, seed);                        \
	}

#define OM_ROPE_KERNEL(NAME, b, s, h, d, sign)                                                     \
	OM_ROPE_SIZES(b, s, h, d)                                                                  \
	OM_KERNEL(NAME##_x, OM_ROPE_THREADS, 0)                                                    \
	void NAME(const om_bf16 *x, const float *tab, om_bf16 *y)                                  \
	{                                                                                          \
		OM_LAUNCH(NAME##_x, OM_CEIL(OM_ROPE_ITEMS(b, s, h, d), OM_ROPE_THREADS), 1, 1, &x, \
		    &tab, &y);                                                                     \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_rope_check(NAME, (int64_t)(b) * (s), s, h, d, sign, seed);               \
	}
#define OM_ROPE(NAME, b, s, h, d) OM_ROPE_KERNEL(NAME, b, s, h, d, 1)
#define OM_ROPE_BWD(NAME, b, s, h, d) OM_ROPE_KERNEL(NAME, b, s, h, d, -1)

enum { OM_ROPE_ENTRIES = 1000, OM_ROPE_TOKENS = 96 };

static inline double
om_rope_table_check(
    void (*run)(float *), int64_t s, int64_t d, int y, const struct om_rope_table *r, uint64_t seed)
{
	float *tab = om_check_nan((size_t)(s * d) * sizeof *tab);
	float *got = malloc((size_t)(s * d) * sizeof *got);
	struct om_err e = { .scale = 1 };
	run(tab);
	om_check_read(got, tab, (size_t)(s * d) * sizeof *got);
	for (int64_t k = 0; k < s * d; k++)
		e.wrong |= !isfinite(got[k]);
	for (int64_t k = 0; k < s * d && k < OM_ROPE_ENTRIES; k++) {
		int64_t at = k;
		if (s * d > OM_ROPE_ENTRIES)
			at = k < d ? s * d - 1 - k
				   : (int64_t)((om_unit(seed, 9, k) / 3.4641016151377544 + 0.5) *
					       (double)(s * d - 1));
		om_err_add(&e, got[at], om_rope_ref_table(d, y, at, r));
	}
	OM_TIME(run(tab));
	om_check_end();
	free(got);
	return om_err_value(&e);
}

/* Whole tokens, out of place and in place. */
static inline double
om_rope_check(void (*run)(const om_bf16 *, const float *, om_bf16 *), int64_t tokens, int64_t s,
    int64_t h, int64_t d, int sign, uint64_t seed)
{
	const int64_t n = h * d;
	om_bf16 *x = om_check_bf16(tokens * n, seed, 0, 1);
	float *tab = om_check_f32(s * d, seed, 1, 1);
	om_bf16 *y = om_check_nan((size_t)(tokens * n) * sizeof *y);
	om_bf16 *got = malloc(2 * (size_t)n * sizeof *got);
	struct om_err e = { .scale = 1 };
	run(x, tab, y);
	run(x, tab, x);
	for (int64_t k = 0; k < tokens && k < OM_ROPE_TOKENS; k++) {
		int64_t t = k;
		if (tokens > OM_ROPE_TOKENS)
			t = k < 2 ? k * (tokens - 1)
				  : (int64_t)((om_unit(seed, 9, k) / 3.4641016151377544 + 0.5) *
					      (double)(tokens - 1));
		om_check_read(got, y + t * n, (size_t)n * sizeof *got);
		om_check_read(got + n, x + t * n, (size_t)n * sizeof *got);
		e.wrong |= memcmp(got, got + n, (size_t)n * sizeof *got) != 0;
		for (int64_t j = 0; j < n; j++) {
			const double self = om_in(OM_BF16(0), t * n + j);
			const double pair = om_in(OM_BF16(0), t * n + om_rope_ref_pair(d, j));
			om_err_add(&e, om_bf16_f32(got[j]),
			    om_rope_ref_turn(OM_F32(1), d, t % s, sign, j, self, pair));
		}
	}
	OM_TIME(run(x, tab, y));
	om_check_end();
	free(got);
	return om_err_value(&e);
}

#endif
#endif
