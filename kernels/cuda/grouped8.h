/*
 * grouped.h's products of e4m3 in blocks (quantise.h), rows 1 x 128, weights 128 x 128:
 *
 *   grouped_8       y  [r, n] = xq [r, k] wq [e, n, k]^T
 *   grouped_dx_8    dx [r, k] = dyq [r, n] wtq [e, k, n]^T
 *   grouped_2_8     ya, yb [r, n] = xq [r, k] times wq [e, n, k], and times vq
 *   grouped_dx_2_8  dx [r, k] = daq times wtq [e, k, n] + dbq times vtq
 *
 * Scales belong to rows, so experts may have any number of them, from any row on. r % 4 == 0: the
 * copy engine reads scales of rows, whose lines are 16 bytes apart.
 */
#ifndef OM_GROUPED8_H
#define OM_GROUPED8_H

#include "gemm8_sm90.h"

#define OM_GROUPED_8_SIZES(r, e, n, k)                                                        \
	static_assert((r) >= 1 && (r) <= 0x7fffff00, "grouped_8: rows are counted in int32"); \
	static_assert((r) % 4 == 0 && (e) >= 1, "grouped_8: r % 4");                          \
	static_assert((n) >= 128 && (k) >= 128 && (n) % 128 == 0 && (k) % 128 == 0,           \
	    "grouped_8: n % 128, k % 128");

#ifdef __CUDACC__ /* ---- device ---- */

#define OM_TWO(a) om_beside<a, a> /* in a macro's argument */
#define OM_GROUPED_8(NAME, r, e, n, k) \
	OM_GROUPED_8_SIZES(r, e, n, k) \
	OM_GEMM8_KERNEL(               \
	    NAME##_x, om_gemm8_plain<false>, OM_GEMM_ROWS, e, r, om_beside<n>, om_beside<(k) / 2>)
#define OM_GROUPED_2_8(NAME, r, e, n, k) \
	OM_GROUPED_8_SIZES(r, e, n, k)   \
	OM_GEMM8_KERNEL(                 \
	    NAME##_x, om_gemm8_plain<true>, OM_GEMM_ROWS, e, r, om_beside<n>, om_beside<(k) / 2>)
#define OM_GROUPED_DX_8(NAME, r, e, n, k) OM_GROUPED_8(NAME, r, e, k, n)
#define OM_GROUPED_DX_2_8(NAME, r, e, n, k) \
	OM_GROUPED_8_SIZES(r, e, n, k)      \
	OM_GEMM8_KERNEL(                    \
	    NAME##_x, om_gemm8_plain<false>, OM_GEMM_ROWS, e, r, om_beside<k>, OM_TWO((n) / 2))

#else /* ---- host ---- */

#include <assert.h>

/* ins: A there are, one or two; outs: C */
#define OM_GROUPED_8_RUN(NAME, r, e, n_, k_, ins, outs)                                            \
	OM_GROUPED_8_SIZES(r, e, n_, k_)                                                           \
	OM_KERNEL(NAME##_x, OM_GEMM_THREADS, OM_GEMM8_SMEM(OM_GEMM8_Y_BOXES, e))                   \
	static inline void NAME##_run(const om_e4m3 *a, const float *sa, const om_e4m3 *b,         \
	    const float *sb, const om_e4m3 *w, const float *sw, const om_e4m3 *v, const float *sv, \
	    const int32_t *off, om_bf16 *y, om_bf16 *z)                                            \
	{                                                                                          \
		om_gemm8_run(&NAME##_x,                                                            \
		    &(struct om_gemm8_call){ .x = { .groups = OM_GEMM_ROWS,                        \
						 .g = e,                                           \
						 .m = r,                                           \
						 .n = { n_ },                                      \
						 .k = { (k_) / 2, (ins) > 1 ? (k_) / 2 : 0 },      \
						 .step = OM_GEMM8_WIDTH / (outs),                  \
						 .planes = 1,                                      \
						 .pad = 1,                                         \
						 .size = 2,                                        \
						 .a = { OM_AS16(a), OM_AS16(b) },                  \
						 .c = { y, z },                                    \
						 .off = off },                                     \
			.b = { w, v },                                                             \
			.sa = { sa, sb },                                                          \
			.sb = { sw, sv } });                                                       \
	}                                                                                          \
	double NAME##_check_as(uint64_t seed, int how)                                             \
	{                                                                                          \
		int32_t off[(e) + 1];                                                              \
		om_gemm_share(off, r, e, how, seed);                                               \
		return om_grouped8_check(NAME##_run,                                               \
		    &(struct om_grouped8_case){ r, e, n_, k_, ins, off, 0 }, outs, seed);          \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return NAME##_check_as(seed, seed % OM_SHARE_WAYS);                                \
	}

#define OM_AS16(p) ((const om_bf16 *)(p))
#define OM_GROUPED_8(NAME, r, e, n, k)                                                    \
	OM_GROUPED_8_RUN(NAME, r, e, n, k, 1, 1)                                          \
	void NAME(const om_e4m3 *xq, const float *xs, const om_e4m3 *wq, const float *ws, \
	    const int32_t *off, om_bf16 *y)                                               \
	{                                                                                 \
		NAME##_run(xq, xs, NULL, NULL, wq, ws, NULL, NULL, off, y, NULL);         \
	}
#define OM_GROUPED_DX_8(NAME, r, e, n, k) OM_GROUPED_8(NAME, r, e, k, n)
#define OM_GROUPED_2_8(NAME, r, e, n, k)                                                      \
	OM_GROUPED_8_RUN(NAME, r, e, n, k, 1, 2)                                              \
	void NAME(const om_e4m3 *xq, const float *xs, const om_e4m3 *wq, const float *ws,     \
	    const om_e4m3 *vq, const float *vs, const int32_t *off, om_bf16 *ya, om_bf16 *yb) \
	{                                                                                     \
		NAME##_run(xq, xs, NULL, NULL, wq, ws, vq, vs, off, ya, yb);                  \
	}
#define OM_GROUPED_DX_2_8(NAME, r, e, n, k)                                                   \
	OM_GROUPED_8_RUN(NAME, r, e, k, n, 2, 1)                                              \
	void NAME(const om_e4m3 *daq, const float *das, const om_e4m3 *dbq, const float *dbs, \
	    const om_e4m3 *wtq, const float *wts, const om_e4m3 *vtq, const float *vts,       \
	    const int32_t *off, om_bf16 *dx)                                                  \
	{                                                                                     \
		NAME##_run(daq, das, dbq, dbs, wtq, wts, vtq, vts, off, dx, NULL);            \
	}

/* ---- checks: numbers about normal, up to 448, and scales from 2^-3 to 2^2 ---- */

typedef void om_grouped8_fn(const om_e4m3 *a, const float *sa, const om_e4m3 *b, const float *sb,
    const om_e4m3 *w, const float *sw, const om_e4m3 *v, const float *sv, const int32_t *off,
    om_bf16 *y, om_bf16 *z);

/* Rows of `ins` matrices [r, k] times weights [e, n, k], whose scales are 2^down times smaller. */
struct om_grouped8_case {
	int64_t r, e, n, k;
	int ins;
	const int32_t *off;
	int down;
};
struct om_grouped8_arrays {
	om_e4m3 *a[2], *w[2];
	float *sa[2], *sw[2];
	int32_t *off;
};

/* Number i of matrix `of`: the rows', or from 2 on weights'; and scale i. */
static inline om_e4m3
om_grouped8_q(int of, int64_t i, uint64_t seed)
{
	double sum = 0;
	for (int j = 0; j < 4; j++)
		sum += om_unit(seed, 40 + of * 4 + j, i);
	return om_e4m3_code_ref(64 * sum);
}

static inline double
om_grouped8_s(int of, int64_t i, uint64_t seed)
{
	return exp2(floor(1.5 * om_unit(seed, 60 + of, i)));
}

/* An array on the device, of which lines of `line` have `used` numbers and then NaN. */
static inline void *
om_grouped8_array(int of, int64_t rows, int64_t k, int64_t used, uint64_t seed)
{
	const int64_t n = rows * k, most = n < OM_CHECK_PERIOD ? n : OM_CHECK_PERIOD;
	om_e4m3 *host = (om_e4m3 *)malloc(most);
#pragma omp parallel for
	for (int64_t i = 0; i < most; i++)
		host[i] = om_grouped8_q(of, i, seed);
	om_e4m3 *device = (om_e4m3 *)om_check_repeat(host, n, 1);
	free(host);
	if (used < rows) {
		host = (om_e4m3 *)malloc((rows - used) * k);
		memset(host, 0x7f, (rows - used) * k);
		om_check_write(device + used * k, host, (rows - used) * k);
		free(host);
	}
	return device;
}

static inline void *
om_grouped8_scales(int of, int64_t lines, int64_t rows, int64_t used, int down, uint64_t seed)
{
	float *host = (float *)malloc(lines * rows * sizeof *host);
#pragma omp parallel for
	for (int64_t i = 0; i < lines * rows; i++)
		host[i] = i % rows < used ? (float)ldexp(om_grouped8_s(of, i, seed), -down) : NAN;
	void *device = om_check_copy(host, lines * rows * sizeof *host);
	free(host);
	return device;
}

static inline struct om_grouped8_arrays
om_grouped8_fill(const struct om_grouped8_case *x, int weights, uint64_t seed)
{
	struct om_grouped8_arrays v = { .off = NULL };
	const int64_t used = x->off[x->e], rows = x->e * x->n, k = x->k;
	const int64_t blocks = rows / 128 * (k / 128);
	for (int i = 0; i < x->ins; i++) {
		v.a[i] = (om_e4m3 *)om_grouped8_array(i, x->r, k, used, seed);
		v.sa[i] = (float *)om_grouped8_scales(i, k / 128, x->r, used, 0, seed);
	}
	for (int i = 0; i < weights; i++) {
		v.w[i] = (om_e4m3 *)om_grouped8_array(2 + i, rows, k, rows, seed);
		v.sw[i] = (float *)om_grouped8_scales(2 + i, 1, blocks, blocks, x->down, seed);
	}
	v.off = (int32_t *)om_check_copy(x->off, (x->e + 1) * sizeof *v.off);
	return v;
}

/* beside: which of two weights, where one A is multiplied by both. */
static inline double
om_grouped8_want(
    const struct om_grouped8_case *x, int beside, int64_t row, int64_t col, uint64_t seed)
{
	const int64_t blocks = x->k / 128, group = om_gemm_ref_group(x->off, row);
	const int64_t at = (group * x->n + col) * x->k;
	double sum = 0;
	for (int i = 0; i < x->ins; i++)
		for (int64_t b = 0; b < blocks; b++) {
			const int w = 2 + i + beside;
			const int64_t sw = (group * (x->n / 128) + col / 128) * blocks + b;
			const double s =
			    om_grouped8_s(i, b * x->r + row, seed) * om_grouped8_s(w, sw, seed);
			for (int64_t k = b * 128; k < (b + 1) * 128; k++)
				sum += s * om_e4m3_ref(om_grouped8_q(i, row * x->k + k, seed)) *
				       om_e4m3_ref(om_grouped8_q(w, at + k, seed));
		}
	return ldexp(sum, -x->down);
}

static inline double
om_grouped8_check(om_grouped8_fn *run, const struct om_grouped8_case *x, int outs, uint64_t seed)
{
	const int64_t used = x->off[x->e], size = x->r * x->n;
	const int weights = x->ins > outs ? x->ins : outs;
	const struct om_grouped8_arrays v = om_grouped8_fill(x, weights, seed);
	om_bf16 *y[2][2] = { { NULL } }, got[2];
	struct om_err e = { .scale = 1 };
	for (int i = 0; i < 2; i++) {
		for (int k = 0; k < outs; k++)
			y[i][k] = (om_bf16 *)om_check_nan(size * 2);
		run(v.a[0], v.sa[0], v.a[1], v.sa[1], v.w[0], v.sw[0], v.w[1], v.sw[1], v.off,
		    y[i][0], y[i][1]);
	}
	for (int k = 0; k < outs && size <= OM_GEMM_WHOLE; k++) { /* padding is not written */
		om_bf16 *all[2] = { malloc(size * 2), malloc(size * 2) };
		for (int i = 0; i < 2; i++)
			om_check_read(all[i], y[i][k], size * 2);
		e.wrong |= memcmp(all[0], all[1], size * 2) != 0;
		for (int64_t i = used * x->n; i < size; i++)
			e.wrong |= all[0][i] != 0xffff;
		free(all[0]);
		free(all[1]);
	}
	for (int64_t s = 0; s < OM_GEMM_SAMPLES && used > 0; s++) {
		const int64_t row = om_gemm_pick(s, used, seed, 90);
		const int64_t col = om_gemm_pick(s + s / 8, x->n, seed, 91);
		const int k = s % outs;
		for (int i = 0; i < 2; i++)
			om_check_read(&got[i], y[i][k] + row * x->n + col, 2);
		e.wrong |= got[0] != got[1];
		om_err_add(&e, om_bf16_f32(got[0]), om_grouped8_want(x, k, row, col, seed));
	}
	OM_TIME(run(v.a[0], v.sa[0], v.a[1], v.sa[1], v.w[0], v.sw[0], v.w[1], v.sw[1], v.off,
	    y[0][0], y[0][1]));
	om_check_end();
	return om_err_value(&e);
}

#endif
#endif
