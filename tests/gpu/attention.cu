/*
 * Attention. Probabilities, gradients of scores and results are cut to bf16, 2^-8 of a value at most;
 * errors are in units of a row's size (attention.h): three times that.
 */
#include "attention.h"
#include "case.h"

#define TOLERANCE 1.2e-2
#define FLOPS(b, s, h, d, w) (2.0 * b * h * d * (2.0 * s * w - w * (w - 1.0)))
#define BOTH(NAME, b, s, h, g, d, w, scale)                                                \
	CASE(OM_ATTENTION, TOLERANCE, attention_##NAME, b, s, h, g, d, w, scale)           \
	CASE(OM_ATTENTION_BWD, TOLERANCE, attention_bwd_##NAME, b, s, h, g, d, w, scale)
#define BOTH_RATED(NAME, b, s, h, g, d, w, scale)                                                \
	RATED(OM_ATTENTION, TOLERANCE, FLOPS(b, s, h, d, w), 0, attention_##NAME, b, s, h, g, d, w, \
	    scale)                                                                                 \
	RATED(OM_ATTENTION_BWD, TOLERANCE, 2 * FLOPS(b, s, h, d, w), 0, attention_bwd_##NAME, b, s, \
	    h, g, d, w, scale)

BOTH(one, 1, 1, 1, 1, 32, 1, 0.25)
BOTH(tiny, 2, 9, 6, 2, 32, 9, 0.1767766952966369)
BOTH(tiny_window, 2, 9, 6, 2, 32, 3, 0.1767766952966369)
BOTH(odd_128, 2, 200, 4, 4, 128, 200, 0.08838834764831845)
BOTH(odd_64, 2, 333, 4, 2, 64, 333, 0.125)
BOTH(odd_96, 1, 333, 4, 2, 96, 333, 0.1)
BOTH(odd_32, 3, 333, 2, 1, 32, 333, 0.1767766952966369)
BOTH(one_key_head, 2, 777, 8, 1, 128, 777, 0.08838834764831845)
BOTH(grouped_64, 2, 1024, 16, 4, 64, 1024, 0.125)
BOTH(window_128, 2, 1024, 4, 2, 128, 128, 0.08838834764831845)
BOTH(window_100_64, 1, 1000, 4, 4, 64, 100, 0.125)
BOTH(window_1, 1, 300, 2, 2, 128, 1, 0.08838834764831845)
BOTH(window_96, 1, 700, 2, 1, 96, 257, 0.1)
BOTH_RATED(olmoe, 4, 4096, 16, 16, 128, 4096, 0.08838834764831845)
BOTH_RATED(olmoe_64, 4, 4096, 16, 16, 64, 4096, 0.125)
BOTH_RATED(long, 2, 8192, 16, 16, 128, 8192, 0.08838834764831845)
BOTH_RATED(grouped, 4, 4096, 32, 4, 128, 4096, 0.08838834764831845)
BOTH_RATED(window, 4, 4096, 16, 16, 128, 1024, 0.08838834764831845)

/* experiments: a pass alone, and variants */
#ifdef __CUDACC__
#define OM_AT_PART(NAME, KEYS, X, N, b, s, h, g, d, w, scale)                                     \
	OM_GLOBAL(384, 1)                                                                    \
	NAME##_x(const __grid_constant__ om_tensor_map a0,                                 \
	    const __grid_constant__ om_tensor_map a1, const __grid_constant__ om_tensor_map b0, \
	    const __grid_constant__ om_tensor_map b1, const __grid_constant__ om_tensor_map o0, \
	    const __grid_constant__ om_tensor_map o1, const float *stat)                     \
	{                                                                                    \
		om_attention_bwd<b, s, h, g, d, OM_AT_MIN(w, s), KEYS, X>(                      \
		    &a0, &a1, &b0, &b1, &o0, &o1, stat, (float)(scale));                      \
	}
#define OM_AT_FORWARD(NAME, X, b, s, h, g, d, w, scale)                                          \
	OM_GLOBAL(OM_AT_THREADS(d), 1)                                                       \
	NAME##_x(const __grid_constant__ om_tensor_map q, const __grid_constant__ om_tensor_map k, \
	    const __grid_constant__ om_tensor_map v, const __grid_constant__ om_tensor_map o, \
	    float *lse, uint32_t *counter)                                                   \
	{                                                                                    \
		om_attention<b, s, h, g, d, OM_AT_MIN(w, s), X>(                                \
		    &q, &k, &v, &o, lse, counter, (float)(scale));                           \
	}
#else
#define OM_AT_FORWARD(NAME, X, b, s, h, g, d, w, scale)                                          \
	OM_KERNEL(NAME##_x, OM_AT_THREADS(d), OM_AT_SMEM(d))                                 \
	void NAME(const om_bf16 *q, const om_bf16 *k, const om_bf16 *v, om_bf16 *o, float *lse, \
	    void *ws)                                                                        \
	{                                                                                    \
		om_attention(&NAME##_x, b, s, h, g, d, q, k, v, o, lse, ws);                 \
	}                                                                                    \
	double NAME##_check(uint64_t seed)                                                   \
	{                                                                                    \
		return om_attention_check(NAME, b, s, h, g, d, w, scale, seed);              \
	}
#define OM_AT_PART(NAME, KEYS, X, N, b, s, h, g, d, w, scale)                                     \
	OM_KERNEL(NAME##_x, 384, OM_AT_BWD_SMEM(d, N))                     \
	double NAME##_check(uint64_t seed)                                                   \
	{                                                                                    \
		return om_at_part(&NAME##_x, KEYS, b, s, h, g, d, seed);              \
	}
static inline double
om_at_part(struct om_kernel *x, int keys, int64_t b, int64_t s, int64_t h, int64_t g, int64_t d, uint64_t seed)
{
	const int64_t nq = b * s * h * d, nk = b * s * g * d, pad = OM_AT_PAD(s);
	om_bf16 *grad = om_check_bf16(nq, seed, 0, 1), *q = om_check_bf16(nq, seed, 1, 1);
	om_bf16 *k = om_check_bf16(nk, seed, 2, 1), *v = om_check_bf16(nk, seed, 3, 1);
	om_bf16 *y0 = om_check_nan(2 * (size_t)nq), *y1 = om_check_nan(2 * (size_t)nq);
	float *stat = om_check_f32(2 * b * h * pad, seed, 4, 0.1f);
	struct om_tensor_map mgrad, mq, mk, mv, m0, m1;
	om_attention_map(&mgrad, grad, b, s, h, d);
	om_attention_map(&mq, q, b, s, h, d);
	om_attention_map(&mk, k, b, s, g, d);
	om_attention_map(&mv, v, b, s, g, d);
	om_attention_map(&m0, y0, b, s, keys ? g : h, d);
	om_attention_map(&m1, y1, b, s, keys ? g : h, d);
	if (keys)
		OM_TIME(OM_LAUNCH(*x, (uint32_t)(b * g * pad / 128), 1, 1, &mk, &mv, &mq, &mgrad, &m0, &m1, &stat));
	else
		OM_TIME(OM_LAUNCH(*x, (uint32_t)(b * h * pad / 128), 1, 1, &mq, &mgrad, &mk, &mv, &m0, &m1, &stat));
	om_check_end();
	return 0;
}
#endif
#define SCALE 0.08838834764831845
#define F1 FLOPS(4, 4096, 16, 128, 4096)
RATED(OM_AT_FORWARD, TOLERANCE, F1, 0, x_forward_free, 1, 4, 4096, 16, 16, 128, 4096, SCALE)
RATED(OM_AT_FORWARD, TOLERANCE, F1 / 2, 0, x_forward_free_64, 1, 4, 4096, 16, 16, 64, 4096, 0.125)
RATED(OM_AT_PART, TOLERANCE, 2 * F1, 0, x_keys, true, 0, 64, 4, 4096, 16, 16, 128, 4096, SCALE)
RATED(OM_AT_PART, TOLERANCE, 2 * F1, 0, x_keys_late, true, 1, 64, 4, 4096, 16, 16, 128, 4096, SCALE)
RATED(OM_AT_PART, TOLERANCE, 1.5 * F1, 0, x_queries, false, 0, 128, 4, 4096, 16, 16, 128, 4096, SCALE)
RATED(OM_AT_PART, TOLERANCE, 1.5 * F1, 0, x_queries_late, false, 2, 64, 4, 4096, 16, 16, 128, 4096, SCALE)
RATED(OM_AT_PART, TOLERANCE, F1, 0, x_keys_64, true, 0, 64, 4, 4096, 16, 16, 64, 4096, 0.125)
RATED(OM_AT_PART, TOLERANCE, 0.75 * F1, 0, x_queries_64, false, 0, 128, 4, 4096, 16, 16, 64, 4096, 0.125)
