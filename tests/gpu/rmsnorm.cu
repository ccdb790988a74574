#include "rmsnorm.h"

#include "add.h"
#include "case.h"

/*
 * One rounding to bf16, at most 2^-8 of the value. The checks hold what is float, r and dw, to a
 * four hundredth of that: a sum of t terms errs by about sqrt(t) 2^-24. What is added to or turned
 * is rounded twice.
 */
#define RMSNORM(m, p, n, c)                                                              \
	CASE(OM_RMSNORM, 4e-3, rmsnorm_##m##_##p##_##n, m, p, n, 1e-5)                   \
	CASE(OM_ADD_RMSNORM, 4e-3, add_rmsnorm_##m##_##p##_##n, m, p, n, 1e-5)           \
	CASE(OM_RMSNORM_BWD, 4e-3, rmsnorm_bwd_##m##_##p##_##n, m, p, n, c, 1)           \
	CASE(OM_RMSNORM_BWD, 4e-3, rmsnorm_bwd_store_##m##_##p##_##n, m, p, n, c, 0)     \
	CASE(OM_RMSNORM_ADD_BWD, 8e-3, rmsnorm_add_bwd_##m##_##p##_##n, m, p, n, c, 1)   \
	CASE(OM_RMSNORM_ADD_BWD, 8e-3, rmsnorm_add_bwd_store_##m##_##p##_##n, m, p, n, c, 0) \
	CASE(SAME_ADD, 0, same_add_##m##_##p##_##n, m, p, n, c)
#define ROPE(b, s, h, d, n, c) ROPE_(b##_##s##_##h##_##d##_##n, b, s, h, d, n, c)
#define ROPE_(SIZES, b, s, h, d, n, c)                                                    \
	CASE(OM_RMSNORM_ROPE, 8e-3, rmsnorm_rope_##SIZES, b, s, h, d, n, 1e-5)            \
	CASE(OM_RMSNORM_ROPE_BWD, 8e-3, rmsnorm_rope_bwd_##SIZES, b, s, h, d, n, c, 1)    \
	CASE(OM_RMSNORM_ROPE_BWD, 8e-3, rmsnorm_rope_store_##SIZES, b, s, h, d, n, c, 0)  \
	CASE(SAME_ROPE, 0, same_rope_##SIZES, b, s, h, d, n, c)

/* The fused kernels give the bits of the others one after the other. */
#define SAME_ADD(NAME, m, p, n, c)                                                                \
	OM_RMSNORM(NAME##_norm, m, p, n, 1e-5)                                                    \
	OM_RMSNORM_BWD(NAME##_norm_bwd, m, p, n, c, 1)                                            \
	OM_ADD(NAME##_add, m, (p) * (n))                                                          \
	OM_ADD_RMSNORM(NAME##_fused, m, p, n, 1e-5)                                               \
	OM_RMSNORM_ADD_BWD(NAME##_fused_bwd, m, p, n, c, 1)                                       \
	SAME_CHECK(NAME, add, (int64_t)(m) * (p) * (n), n, 1, c)
#define SAME_ROPE(NAME, b, s, h, d, n, c)                                                         \
	OM_RMSNORM(NAME##_norm, (b) * (s), (h) * (d) / (n), n, 1e-5)                              \
	OM_RMSNORM_BWD(NAME##_norm_bwd, (b) * (s), (h) * (d) / (n), n, c, 1)                      \
	OM_ROPE(NAME##_rope, b, s, h, d)                                                          \
	OM_ROPE_BWD(NAME##_rope_bwd, b, s, h, d)                                                  \
	OM_RMSNORM_ROPE(NAME##_fused, b, s, h, d, n, 1e-5)                                        \
	OM_RMSNORM_ROPE_BWD(NAME##_fused_bwd, b, s, h, d, n, c, 1)                                \
	SAME_CHECK(NAME, rope, (int64_t)(b) * (s) * (h) * (d), n, (s) * (d), c)

#ifdef __CUDACC__
#define SAME_CHECK(...)
#else
struct same { /* given to both ways, x and other also as gradients; [0] fused, [1] not */
	om_bf16 *x, *other, *w, *sum[2], *y[2], *dx[2], *between;
	float *tab, *r[2], *dw[2], *ws;
};

static struct same
same_begin(int64_t all, int64_t n, int64_t table, int64_t c, uint64_t seed)
{
	struct same a = { .x = om_check_bf16(all, seed, 0, 1),
		.other = om_check_bf16(all, seed, 1, 1),
		.w = om_check_bf16(n, seed, 2, 1) };
	a.tab = om_check_f32(table, seed, 3, 1);
	a.ws = om_check_nan((size_t)(c * n) * sizeof *a.ws);
	a.between = om_check_nan((size_t)all * sizeof *a.between);
	for (int i = 0; i < 2; i++) {
		a.sum[i] = om_check_nan((size_t)all * 2);
		a.y[i] = om_check_nan((size_t)all * 2);
		a.dx[i] = om_check_nan((size_t)all * 2);
		a.r[i] = om_check_nan((size_t)(all / n) * sizeof(float));
		a.dw[i] = om_check_sum(n, true, seed, 4);
	}
	return a;
}

static double
same_end(const struct same *a, int64_t all, int64_t n)
{
	double e = case_same(a->sum[0], a->sum[1], (size_t)all * sizeof(om_bf16));
	e += case_same(a->y[0], a->y[1], (size_t)all * sizeof(om_bf16));
	e += case_same(a->dx[0], a->dx[1], (size_t)all * sizeof(om_bf16));
	e += case_same(a->r[0], a->r[1], (size_t)(all / n) * sizeof(float));
	e += case_same(a->dw[0], a->dw[1], (size_t)n * sizeof(float));
	om_check_end();
	return e;
}

#define SAME_CHECK(NAME, WITH, all, n, table, c)                      \
	double NAME##_check(uint64_t seed)                            \
	{                                                             \
		struct same a = same_begin(all, n, table, c, seed);   \
		SAME_##WITH(NAME, a)                                  \
		return same_end(&a, all, n);                          \
	}
#define SAME_add(NAME, a)                                                             \
	NAME##_fused(a.x, a.other, a.w, a.sum[0], a.y[0], a.r[0]);                    \
	NAME##_add(a.x, a.other, a.sum[1]);                                           \
	NAME##_norm(a.sum[1], a.w, a.y[1], a.r[1]);                                   \
	NAME##_fused_bwd(a.x, a.sum[0], a.w, a.r[0], a.other, a.dx[0], a.dw[0], a.ws); \
	NAME##_norm_bwd(a.x, a.sum[1], a.w, a.r[1], a.between, a.dw[1], a.ws);        \
	NAME##_add(a.other, a.between, a.dx[1]);
#define SAME_rope(NAME, a)                                                            \
	NAME##_fused(a.x, a.w, a.tab, a.y[0], a.r[0]);                                \
	NAME##_norm(a.x, a.w, a.between, a.r[1]);                                     \
	NAME##_rope(a.between, a.tab, a.y[1]);                                        \
	NAME##_fused_bwd(a.other, a.tab, a.x, a.w, a.r[0], a.dx[0], a.dw[0], a.ws);   \
	NAME##_rope_bwd(a.other, a.tab, a.between);                                   \
	NAME##_norm_bwd(a.between, a.x, a.w, a.r[1], a.dx[1], a.dw[1], a.ws);
#endif

RMSNORM(1, 1, 8, 264)
RMSNORM(2, 1, 32, 1)
RMSNORM(7, 3, 40, 16)
RMSNORM(67, 5, 64, 5)
RMSNORM(67, 1, 72, 5)
RMSNORM(129, 3, 128, 264)
RMSNORM(33, 3, 136, 264)
RMSNORM(77, 1, 256, 3)
RMSNORM(77, 1, 384, 3)
RMSNORM(301, 1, 768, 264)
RMSNORM(65, 2, 1024, 7)
RMSNORM(65, 1, 1032, 7)
RMSNORM(301, 1, 2048, 264)
RMSNORM(301, 1, 2056, 264)
RMSNORM(19, 1, 5120, 5)
RMSNORM(19, 1, 7168, 5)
RMSNORM(19, 1, 8192, 264)
ROPE(1, 1, 1, 64, 64, 1)
ROPE(1, 3, 2, 16, 16, 2)
ROPE(2, 33, 3, 32, 32, 5)
ROPE(2, 33, 6, 32, 192, 5)
ROPE(1, 77, 6, 64, 64, 264)
ROPE(1, 77, 5, 64, 320, 3)
ROPE(3, 67, 1, 128, 128, 7)
ROPE(3, 67, 3, 128, 128, 7)
ROPE(2, 67, 4, 128, 128, 16)
ROPE(2, 301, 16, 128, 128, 264)
ROPE(2, 301, 16, 128, 2048, 264)
ROPE(1, 35, 20, 128, 2560, 4)
ROPE(1, 19, 64, 128, 8192, 5)
ROPE(1, 67, 4, 256, 256, 5)
#define REAL(m, p, n)                                                                       \
	RATED(OM_RMSNORM, 4e-3, 0, 4.0 * m * p * n, rmsnorm_##m##_##p##_##n, m, p, n, 1e-5) \
	RATED(OM_RMSNORM_BWD, 4e-3, 0, 6.0 * m * p * n, rmsnorm_bwd_##m##_##p##_##n, m, p, n, \
	    264, 1)
REAL(16384, 1, 2048)
REAL(65536, 1, 2048)
REAL(16384, 16, 128)
REAL(16384, 1, 2560)
REAL(16384, 1, 4096)
REAL(16384, 1, 7168)
#define TOKENS (16384.0 * 2048)
RATED(OM_ADD_RMSNORM, 4e-3, 0, 8 * TOKENS, add_rmsnorm_16384_1_2048, 16384, 1, 2048, 1e-5)
RATED(OM_RMSNORM_ADD_BWD, 8e-3, 0, 8 * TOKENS, rmsnorm_add_bwd_16384_1_2048, 16384, 1, 2048, 264, 1)
RATED(OM_RMSNORM_ROPE, 8e-3, 0, 4 * TOKENS, rmsnorm_rope_16384_2048, 4, 4096, 16, 128, 2048, 1e-5)
RATED(OM_RMSNORM_ROPE, 8e-3, 0, 4 * TOKENS, rmsnorm_rope_16384_16_128, 4, 4096, 16, 128, 128, 1e-5)
RATED(OM_RMSNORM_ROPE, 8e-3, 0, 1 * TOKENS, rmsnorm_rope_16384_4_128, 4, 4096, 4, 128, 128, 1e-5)
RATED(OM_RMSNORM_ROPE_BWD, 8e-3, 0, 6 * TOKENS, rmsnorm_rope_bwd_16384_2048, 4, 4096, 16, 128, 2048,
    264, 1)
RATED(OM_RMSNORM_ROPE_BWD, 8e-3, 0, 6 * TOKENS, rmsnorm_rope_bwd_16384_16_128, 4, 4096, 16, 128,
    128, 264, 1)
