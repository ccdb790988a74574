/*
 * Linear maps of experts: rows sorted by expert, expert i has the rows [off[i], off[i + 1]).
 *
 *   grouped     y  [r, n]     = x  [r, k] w [e, n, k]^T, each row with its expert's w
 *   grouped_2   ya, yb [r, n] = x times the first half of w [2 e, n, k], and times the second
 *   grouped_dx  dx [r, k]     = dy [r, n] w [e, n, k]
 *   grouped_dw  dw [e, n, k] += dy [r, n]^T x [r, k], over each expert's rows; or without add =,
 *               which is 0 where there are none
 *
 * r is the buffers' capacity. Rows from off[e] on are padding, neither read nor written. The tiles
 * of all experts are dealt out to the threads in turn, since one small expert can't occupy them
 * all. Where r is small, as for one token, each thread computes its part of every row.
 */
#ifndef OM_GROUPED_H
#define OM_GROUPED_H

#include "check.h"
#include "gemm.h"
#include "gemv.h"

#include "gemm_ref.h"

/* Each of `parts` outputs has weights of its own, one behind the other. */
static inline void
om_grouped_few(int parts, int64_t e, int64_t n, int64_t k, const om_real *x, const om_real *w,
    const int32_t *off, om_real *const *y)
{
#pragma omp parallel if (parts * off[e] * n * k > OM_SERIAL)
	for (int64_t i = 0; i < parts * e; i++) {
		for (int64_t o = off[i % e]; o < off[i % e + 1]; o++)
			om_gemv_range(
			    om_lo(n), om_hi(n), k, x + o * k, w + i * n * k, y[i / e] + o * n);
	}
}

static inline void
om_grouped(int parts, int64_t r, int64_t e, int64_t n, int64_t k, const om_real *x,
    const om_real *w, const int32_t *off, om_real *const *y)
{
	if (r <= OM_FEW) {
		om_grouped_few(parts, e, n, k, x, w, off, y);
		return;
	}
#pragma omp parallel
	for (int64_t i = 0, item = 0; i < parts * e; i++) {
		int64_t o = off[i % e], rows = off[i % e + 1] - o;
		om_gemm_share(&(struct om_gemm){ rows, n, k, { x + o * k, k, false },
				  { w + i * n * k, k, true }, y[i / e] + o * n, n, false },
		    1, omp_get_thread_num(), omp_get_num_threads(), &item);
	}
}

static inline void
om_grouped_dx(int64_t e, int64_t n, int64_t k, const om_real *dy, const om_real *w,
    const int32_t *off, om_real *dx)
{
#pragma omp parallel
	for (int64_t i = 0, item = 0; i < e; i++) {
		int64_t o = off[i], rows = off[i + 1] - o;
		om_gemm_share(&(struct om_gemm){ rows, k, n, { dy + o * n, n, false },
				  { w + i * n * k, k, false }, dx + o * k, k, false },
		    1, omp_get_thread_num(), omp_get_num_threads(), &item);
	}
}

static inline void
om_grouped_dw(int64_t e, int64_t n, int64_t k, bool add, const om_real *dy, const om_real *x,
    const int32_t *off, om_real *dw)
{
#pragma omp parallel
	for (int64_t i = 0, item = 0; i < e; i++) {
		int64_t o = off[i], rows = off[i + 1] - o;
		om_gemm_share(&(struct om_gemm){ n, k, rows, { dy + o * n, n, true },
				  { x + o * k, k, false }, dw + i * n * k, k, add },
		    1, omp_get_thread_num(), omp_get_num_threads(), &item);
	}
}

#define OM_GROUPED_SIZES(r, e, n, k)                                                        \
	_Static_assert((r) >= 1 && (r) <= INT32_MAX, "grouped: rows are counted in int32"); \
	_Static_assert((e) >= 1 && (n) >= 1 && (k) >= 1, "grouped: sizes start at 1");

#define OM_GROUPED(NAME, r, e, n, k)                                                  \
	OM_GROUPED_SIZES(r, e, n, k)                                                  \
	void NAME(const om_real *x, const om_real *w, const int32_t *off, om_real *y) \
	{                                                                             \
		om_grouped(1, r, e, n, k, x, w, off, (om_real *const[]){ y });        \
	}                                                                             \
	double NAME##_check(uint64_t seed)                                            \
	{                                                                             \
		return om_grouped_check(NAME, NULL, r, e, n, k, seed);                \
	}

#define OM_GROUPED_2(NAME, r, e, n, k)                                                        \
	OM_GROUPED_SIZES(r, e, n, k)                                                          \
	void NAME(                                                                            \
	    const om_real *x, const om_real *w, const int32_t *off, om_real *ya, om_real *yb) \
	{                                                                                     \
		om_grouped(2, r, e, n, k, x, w, off, (om_real *const[]){ ya, yb });           \
	}                                                                                     \
	double NAME##_check(uint64_t seed)                                                    \
	{                                                                                     \
		return om_grouped_check(NULL, NAME, r, e, n, k, seed);                        \
	}

#define OM_GROUPED_DX(NAME, r, e, n, k)                                                 \
	OM_GROUPED_SIZES(r, e, n, k)                                                    \
	void NAME(const om_real *dy, const om_real *w, const int32_t *off, om_real *dx) \
	{                                                                               \
		om_grouped_dx(e, n, k, dy, w, off, dx);                                 \
	}                                                                               \
	double NAME##_check(uint64_t seed)                                              \
	{                                                                               \
		return om_grouped_dx_check(NAME, r, e, n, k, seed);                     \
	}

#define OM_GROUPED_DW(NAME, r, e, n, k, add)                                            \
	OM_GROUPED_SIZES(r, e, n, k)                                                    \
	void NAME(const om_real *dy, const om_real *x, const int32_t *off, om_real *dw) \
	{                                                                               \
		om_grouped_dw(e, n, k, add, dy, x, off, dw);                            \
	}                                                                               \
	double NAME##_check(uint64_t seed)                                              \
	{                                                                               \
		return om_grouped_dw_check(NAME, r, e, n, k, add, seed);                \
	}

typedef void om_grouped_fn(const om_real *, const om_real *, const int32_t *, om_real *);
enum { OM_GROUPED_SAMPLES = 256 };

/*
 * Offsets by seed: every row used or some left over; even or random shares, half of the experts
 * empty, or one expert with everything.
 */
OM_CHECK int32_t *
om_grouped_offsets(int64_t r, int64_t e, uint64_t seed)
{
	int32_t *off = om_check_alloc(e + 1, sizeof *off);
	int64_t used = seed % 2 ? r : (int64_t)(om_hash(seed, 0) % (uint64_t)(r + 1));
	int64_t only = (int64_t)(om_hash(seed, 1) % (uint64_t)e);
	for (int64_t i = 0; i <= e; i++)
		off[i] = 0;
	for (int64_t row = 0; row < used; row++) {
		int64_t i = (int64_t)(om_hash(seed, (uint64_t)row + 2) % (uint64_t)e);
		switch (seed / 2 % 4) {
		case 0:
			i = row % e;
			break;
		case 1:
			i = i / 2 * 2;
			break;
		case 2:
			i = only;
			break;
		}
		off[i + 1]++;
	}
	for (int64_t i = 0; i < e; i++)
		off[i + 1] += off[i];
	return off;
}

/* Random rows, NaN in the padding. */
OM_CHECK om_real *
om_grouped_rows(int64_t r, int64_t width, int64_t used, uint64_t seed, int stream)
{
	om_real *p = om_check_random(r * width, seed, stream);
	om_check_spoil(p, used * width, r * width);
	return p;
}

/* got [r, wide] = a [r, inner] times w, whose strides along the two are given. */
OM_CHECK double
om_grouped_rows_check(const om_real *got, const om_real *a, const om_real *w, const int32_t *off,
    int64_t r, int64_t e, int64_t wide, int64_t inner, int64_t w_wide, int64_t w_inner,
    uint64_t seed)
{
	struct om_err err = { .scale = 1 };
	int64_t used = off[e], total = used * wide;
	for (int64_t s = 0; s < om_samples(total, OM_GROUPED_SAMPLES); s++) {
		int64_t at = om_sample(s, total, OM_GROUPED_SAMPLES, seed), row = at / wide,
			j = at % wide;
		int64_t i = om_gemm_ref_group(off, row);
		om_err_add(&err, got[at],
		    om_gemm_ref((struct om_walk){ { a }, row * inner, 1 },
			(struct om_walk){ { w }, i * wide * inner + j * w_wide, w_inner }, inner));
	}
	err.wrong |= !om_check_kept(got, total, r * wide);
	return om_err_value(&err);
}

/* One output, or two. */
OM_CHECK double
om_grouped_check(om_grouped_fn *one,
    void (*two)(const om_real *, const om_real *, const int32_t *, om_real *, om_real *), int64_t r,
    int64_t e, int64_t n, int64_t k, uint64_t seed)
{
	int32_t *off = om_grouped_offsets(r, e, seed);
	om_real *x = om_grouped_rows(r, k, off[e], seed, 0),
		*w = om_check_random(2 * e * n * k, seed, 1);
	om_real *y[] = { om_check_output(off[e] * n, r * n), om_check_output(off[e] * n, r * n) };
	one ? one(x, w, off, y[0]) : two(x, w, off, y[0], y[1]);
	double v = 0;
	for (int i = 0; i < (one ? 1 : 2); i++)
		v = om_worse(v,
		    om_grouped_rows_check(y[i], x, w + i * e * n * k, off, r, e, n, k, k, 1, seed));
	for (int i = 0; i < 2; i++)
		free(y[i]);
	free(off);
	free(x);
	free(w);
	return v;
}

OM_CHECK double
om_grouped_dx_check(om_grouped_fn *run, int64_t r, int64_t e, int64_t n, int64_t k, uint64_t seed)
{
	int32_t *off = om_grouped_offsets(r, e, seed);
	om_real *dy = om_grouped_rows(r, n, off[e], seed, 0),
		*w = om_check_random(e * n * k, seed, 1);
	om_real *dx = om_check_output(off[e] * k, r * k);
	run(dy, w, off, dx);
	double v = om_grouped_rows_check(dx, dy, w, off, r, e, k, n, 1, k, seed);
	free(off);
	free(dy);
	free(w);
	free(dx);
	return v;
}

OM_CHECK double
om_grouped_dw_check(
    om_grouped_fn *run, int64_t r, int64_t e, int64_t n, int64_t k, bool add, uint64_t seed)
{
	int32_t *off = om_grouped_offsets(r, e, seed);
	om_real *dy = om_grouped_rows(r, n, off[e], seed, 0);
	om_real *x = om_grouped_rows(r, k, off[e], seed, 1);
	om_real *dw = om_check_sum(e * n * k, add, seed, 2), *old = om_check_copy(dw, e * n * k);
	struct om_err err = { .scale = 1 };
	run(dy, x, off, dw);
	for (int64_t s = 0; s < om_samples(e * n * k, OM_GROUPED_SAMPLES); s++) {
		int64_t at = om_sample(s, e * n * k, OM_GROUPED_SAMPLES, seed);
		int64_t i = at / (n * k), a = at / k % n, b = at % k;
		om_err_add(&err, dw[at],
		    (add ? (double)old[at] : 0) +
			om_gemm_ref((struct om_walk){ { dy }, off[i] * n + a, n },
			    (struct om_walk){ { x }, off[i] * k + b, k }, off[i + 1] - off[i]));
	}
	free(off);
	free(dy);
	free(x);
	free(dw);
	free(old);
	return om_err_value(&err);
}

#endif
