/*
 * Every CPU kernel's own check at tiny, odd and real sizes, in-place variants, and the router on
 * NaN. Built twice, with -DOM_REAL=float and -DOM_REAL=double. Argument: the first of SEEDS seeds;
 * without one, the time.
 *
 * Tolerance: checks give errors relative to the largest output. A float sum of n terms in the
 * kernels' order errs by about sqrt(n) 2^-24, some 1e-6 at these sizes, and exp adds 1e-7; 2e-5
 * leaves room for bad luck and none for a wrong term. In double the same reasoning gives 1e-14, and
 * 1e-11 is asked for.
 */
#include <stdio.h>
#include <time.h>

#include "add.h"
#include "adamw.h"
#include "average.h"
#include "attention.h"
#include "dispatch.h"
#include "embed.h"
#include "glu.h"
#include "grouped.h"
#include "head.h"
#include "likeliest.h"
#include "linear.h"
#include "muon.h"
#include "quantise.h"
#include "rmsnorm.h"
#include "rope.h"
#include "round.h"
#include "route.h"

enum { SEEDS = 8 }; /* grouped's offsets have that many patterns */
static const double tolerance = OM_DOUBLE ? 1e-11 : 2e-5;

/* X(macro, name, params...) for every instance of a family at a size */
#define EMBED(X, t, n, v)                           \
	X(OM_EMBED, embed_##t##_##n##_##v, t, n, v) \
	X(OM_EMBED_BWD, embed_bwd_##t##_##n##_##v, t, n, v)
#define HEAD(X, t, n, v, c, z)                                                             \
	X(OM_HEAD_LOSS, head_loss_##t##_##n##_##v##_##c, t, n, v, c, 1.0 / (t), z)         \
	X(OM_HEAD_SCORE, head_score_##t##_##n##_##v##_##c, t, n, v, c, 1.0 / (t))          \
	X(OM_HEAD_LOSS_BWD, head_loss_bwd_##t##_##n##_##v##_##c, t, n, v, c, 1.0 / (t), z) \
	X(OM_HEAD_LOSS_GRAD, head_loss_grad_##t##_##n##_##v##_##c, t, n, v, c, 1.0 / (t), z)
#define RMSNORM(X, m, h, n, c)                                        \
	X(OM_RMSNORM, rmsnorm_##m##_##h##_##n, m, h, n, 1e-5)         \
	X(OM_RMSNORM_BWD, rmsnorm_bwd_##m##_##h##_##n, m, h, n, c, 1) \
	X(OM_RMSNORM_BWD, rmsnorm_bwd_store_##m##_##h##_##n, m, h, n, c, 0)
#define LINEAR(X, m, n, k)                                                          \
	X(OM_LINEAR, linear_##m##_##n##_##k, m, n, k)                               \
	X(OM_LINEAR_2, linear_2_##m##_##n##_##k, m, n, (n + 2) / 3, k)              \
	X(OM_LINEAR_3, linear_3_##m##_##n##_##k, m, (n + 1) / 2, n, (n + 3) / 4, k) \
	X(OM_LINEAR_DX, linear_dx_##m##_##n##_##k, m, n, k)                         \
	X(OM_LINEAR_DW, linear_dw_##m##_##n##_##k, m, n, k, 1)                      \
	X(OM_LINEAR_DW, linear_dw_store_##m##_##n##_##k, m, n, k, 0)
#define ADD(X, m, n, c, factor)                              \
	X(OM_ADD, add_##m##_##n, m, n)                       \
	X(OM_BIAS, bias_##m##_##n, m, n)                     \
	X(OM_BIAS_BWD, bias_bwd_##m##_##n, m, n, c, 1)       \
	X(OM_BIAS_BWD, bias_bwd_store_##m##_##n, m, n, c, 0) \
	X(OM_SCALE, scale_##m##_##n, m, n, factor)
/*
 * Scalings and bounds of models, Qwen's YaRN and Llama 3.1; s: short enough for a ramp within 128
 * positions; n: a ramp over all pairs; e: an empty one.
 */
#define ROPE_TABLE(X, s, d)                                                                       \
	X(OM_ROPE_TABLE, rope_table_##s##_##d##_0, s, d, 0, 10000.0, 0.0, 0.0, 0.0, 0.0, 1.0)     \
	X(OM_ROPE_TABLE, rope_table_##s##_##d##_1, s, d, 1, 1e6, 2.5, 0.0, 0.0, 0.0, 1.0)         \
	X(OM_ROPE_TABLE, rope_table_##s##_##d##_2, s, d, 2, 1e6, 4.0, 32.0, 1.0, 32768.0, 1.1386) \
	X(OM_ROPE_TABLE, rope_table_##s##_##d##_2s, s, d, 2, 50.0, 3.0, 2.0, 1.5, 64.0, 0.9)      \
	X(OM_ROPE_TABLE, rope_table_##s##_##d##_2n, s, d, 2, 1e4, 3.0, 1e4, 1e-6, 64.0, 1.0)      \
	X(OM_ROPE_TABLE, rope_table_##s##_##d##_2e, s, d, 2, 1e4, 3.0, 32.0, 1.0, 6.2, 1.0)       \
	X(OM_ROPE_TABLE, rope_table_##s##_##d##_3, s, d, 3, 5e5, 8.0, 1.0, 4.0, 8192.0, 1.0)      \
	X(OM_ROPE_TABLE, rope_table_##s##_##d##_3s, s, d, 3, 50.0, 8.0, 1.0, 4.0, 20.0, 1.0)
#define ROPE(X, b, s, h, d)                                        \
	ROPE_TABLE(X, s, d)                                        \
	X(OM_ROPE, rope_##b##_##s##_##h##_##d, b, s, h, d)         \
	X(OM_ROPE_BWD, rope_bwd_##b##_##s##_##h##_##d, b, s, h, d) \
	X(OM_ROPE_AT, rope_at_##b##_##s##_##h##_##d, b, s, h, d)
#define ATTENTION(X, b, s, h, g, d, w, scale)                                                     \
	X(OM_ATTENTION, attention_##b##_##s##_##h##_##g##_##d##_##w, b, s, h, g, d, w, scale)     \
	X(OM_ATTENTION_BWD, attention_bwd_##b##_##s##_##h##_##g##_##d##_##w, b, s, h, g, d, w,    \
	    scale)                                                                                \
	X(OM_ATTENTION_MASKED, attention_doc_##b##_##s##_##h##_##g##_##d##_##w, b, s, h, g, d, w, \
	    scale)                                                                                \
	X(OM_ATTENTION_BWD_MASKED, attention_bwd_doc_##b##_##s##_##h##_##g##_##d##_##w, b, s, h,  \
	    g, d, w, scale)
#define ATTENTION_AT(X, m, b, s, h, g, d, w, scale)                                                \
	X(OM_CACHE, cache_##m##_##b##_##s##_##h##_##d, m, b, s, h *d)                              \
	X(OM_ATTENTION_AT, attention_at_##m##_##b##_##s##_##h##_##g##_##d##_##w, m, b, s, h, g, d, \
	    w, scale)
#define GLU_(X, t, k, f, a)                                                    \
	X(OM_GLU, glu_##t##_##k##_##f##_##a, t, f, a)                          \
	X(OM_GLU_BWD, glu_bwd_##t##_##k##_##f##_##a, t, f, a)                  \
	X(OM_GLU_ROUTED, glu_routed_##t##_##k##_##f##_##a, t, k, f, a)         \
	X(OM_GLU_ROUTED_BWD, glu_routed_bwd_##t##_##k##_##f##_##a, t, k, f, a) \
	X(OM_GLU_ROWS, glu_rows_##t##_##k##_##f##_##a, t, f, a, k)             \
	X(OM_GLU_ROWS_BWD, glu_rows_bwd_##t##_##k##_##f##_##a, t, f, a, k)
#define RELU2(X, t, k, f)                                                 \
	X(OM_RELU2, relu2_##t##_##k##_##f, t, f)                          \
	X(OM_RELU2_BWD, relu2_bwd_##t##_##k##_##f, t, f)                  \
	X(OM_RELU2_ROUTED, relu2_routed_##t##_##k##_##f, t, k, f)         \
	X(OM_RELU2_ROUTED_BWD, relu2_routed_bwd_##t##_##k##_##f, t, k, f) \
	X(OM_RELU2_ROWS, relu2_rows_##t##_##k##_##f, t, f, k)             \
	X(OM_RELU2_ROWS_BWD, relu2_rows_bwd_##t##_##k##_##f, t, f, k)
#define ROUTE(X, t, e, k, j, c, g, q, n, factor)                                                   \
	X(OM_ROUTE, route_##t##_##e##_##k##_##j##_##c##_##g##_##q##_##n, t, e, k, j, c, g, q, n,   \
	    factor)                                                                                \
	X(OM_ROUTE_BWD, route_bwd_##t##_##e##_##k##_##j##_##c##_##g##_##q##_##n, t, e, k, j, c, g, \
	    q, n, factor, 0.01, 0.001)
#define ROUTE_BIASED(X, t, e, k, j, c, g, q, n, factor)                                            \
	X(OM_ROUTE_BIASED, route_biased_##t##_##e##_##k##_##j##_##c##_##g##_##q##_##n, t, e, k, j, \
	    c, g, q, n, factor)
#define ROUTE_RANDOM(X, t, e, k, j, c, g, q, n, factor)                                            \
	X(OM_ROUTE_RANDOM, route_random_##t##_##e##_##k##_##j##_##c##_##g##_##q##_##n, t, e, k, j, \
	    c, g, q, n, factor)
#define ROUTE_UNIFORM(X, t, e, k, j, c, n, factor)                                                \
	X(OM_ROUTE_UNIFORM, route_uniform_##t##_##e##_##k##_##j##_##c##_##n, t, e, k, j, c, 1, 1, \
	    n, factor)
#define BIAS_UPDATE(X, n, e, gamma) X(OM_BIAS_UPDATE, bias_update_##n##_##e, n, e, gamma)
#define MUON(X, n, r, c, s, j)                                                                     \
	X(OM_MUON, muon_##n##_##r##_##c, (n) * (r) * (c), r, c, s, j, 0.95, 0.0, 0.1, 0.5, 2.5)    \
	X(OM_MUON_MASTER, muon_master_##n##_##r##_##c, (n) * (r) * (c), r, c, s, j, 0.9, 0.0, 0.0, \
	    1.0, 1.0)                                                                              \
	X(OM_MUON_DRAWN, muon_drawn_##n##_##r##_##c, (n) * (r) * (c), r, c, s, j, 0.9, 0.0, 0.0,   \
	    1.0, 1.0)                                                                              \
	X(OM_NORMUON, normuon_##n##_##r##_##c, (n) * (r) * (c), r, c, s, j, 0.95, 0.95, 0.1, 1.0,  \
	    0.2)                                                                                   \
	X(OM_NORMUON_MASTER, normuon_master_##n##_##r##_##c, (n) * (r) * (c), r, c, s, j, 0.95,    \
	    0.9, 0.1, 2.0, 0.2)                                                                    \
	X(OM_NORMUON_DRAWN, normuon_drawn_##n##_##r##_##c, (n) * (r) * (c), r, c, s, j, 0.95, 0.9, \
	    0.1, 2.0, 0.2)
#define ROUTE_MAP(X, t, e, k, n) X(OM_ROUTE_MAP, route_map_##t##_##e##_##k##_##n, t, e, k, n)
#define DISPATCH(X, t, k, n)                              \
	X(OM_DISPATCH, dispatch_##t##_##k##_##n, t, k, n) \
	X(OM_COMBINE, combine_##t##_##k##_##n, t, k, n)
#define QUANTISE(X, m, k, b, f, j)                                                           \
	X(OM_QUANTISE, quantise_##m##_##k##_##b##_##f, m, k, b, f)                           \
	X(OM_QUANTISE_ROUTED, quantise_off_##m##_##k##_##b##_##f, m, k, b, f, j)             \
	X(OM_QUANTISE_COUNTED, quantise_sat_##m##_##k##_##b##_##f, m, k, b, f)               \
	X(OM_QUANTISE_ROUTED_COUNTED, quantise_off_sat_##m##_##k##_##b##_##f, m, k, b, f, j) \
	X(OM_DEQUANTISE, dequantise_##m##_##k##_##b##_##f, m, k, b)                          \
	X(OM_DEQUANTISE_ROUTED, dequantise_off_##m##_##k##_##b##_##f, m, k, b, j)
#define QUANTISE_W(X, e, n, k, b, h, f)                                              \
	X(OM_QUANTISE_W, quantise_w_##e##_##n##_##k##_##b##_##f, e, n, k, b, h, f)   \
	X(OM_QUANTISE_WT, quantise_wt_##e##_##n##_##k##_##b##_##f, e, n, k, b, h, f) \
	X(OM_DEQUANTISE_W, dequantise_w_##e##_##n##_##k##_##b##_##f, e, n, k, b, h)  \
	X(OM_DEQUANTISE_WT, dequantise_wt_##e##_##n##_##k##_##b##_##f, e, n, k, b, h)
#define GROUPED(X, r, e, n, k)                                            \
	X(OM_GROUPED, grouped_##r##_##e##_##n##_##k, r, e, n, k)          \
	X(OM_GROUPED_2, grouped_2_##r##_##e##_##n##_##k, r, e, n, k)      \
	X(OM_GROUPED_DX, grouped_dx_##r##_##e##_##n##_##k, r, e, n, k)    \
	X(OM_GROUPED_DW, grouped_dw_##r##_##e##_##n##_##k, r, e, n, k, 1) \
	X(OM_GROUPED_DW, grouped_dw_store_##r##_##e##_##n##_##k, r, e, n, k, 0)
#define UPDATE(X, n, decay, scale)                                             \
	X(OM_SUMSQ, sumsq_##n, n)                                              \
	X(OM_ADAMW, adamw_##n, n, 0.9, 0.95, 1e-8, decay, scale)               \
	X(OM_ADAMW_MASTER, adamw_master_##n, n, 0.9, 0.95, 1e-8, decay, scale) \
	X(OM_ADAMW_DRAWN, adamw_drawn_##n, n, 0.9, 0.95, 1e-8, decay, scale)

/* clang-format off */
#define GLU(X, t, k, f)                                                                            \
	GLU_(X, t, k, f, 0)                                                                        \
	GLU_(X, t, k, f, 1)                                                                        \
	RELU2(X, t, k, f)
/* every score, with and without j */
#define ROUTE_ALL(X, t, e, k, g, q, n)                                                             \
	ROUTE(X, t, e, k, 0, 0, g, q, n, 1.0) ROUTE(X, t, e, k, 1, 0, g, q, n, 2.5)                \
	ROUTE(X, t, e, k, 0, 1, g, q, n, 1.0) ROUTE(X, t, e, k, 1, 1, g, q, n, 2.5)                \
	ROUTE(X, t, e, k, 0, 2, g, q, n, 0.5) ROUTE(X, t, e, k, 1, 2, g, q, n, 1.0)
#define INSTANCES(X)                                                                               \
	EMBED(X, 1, 1, 1) EMBED(X, 7, 13, 2) EMBED(X, 67, 33, 13) EMBED(X, 512, 128, 1000)         \
	HEAD(X, 1, 1, 1, 1, 0.5) HEAD(X, 2, 1, 2, 3, 0.0) HEAD(X, 7, 13, 33, 2, 0.1)               \
	HEAD(X, 67, 33, 67, 13, 1e-2) HEAD(X, 300, 67, 333, 128, 0.0)                              \
	HEAD(X, 256, 64, 2048, 128, 1e-4)                                                          \
	RMSNORM(X, 1, 1, 1, 16) RMSNORM(X, 2, 1, 2, 1) RMSNORM(X, 7, 3, 13, 16)                    \
	RMSNORM(X, 67, 1, 33, 5) RMSNORM(X, 512, 4, 32, 16) RMSNORM(X, 512, 1, 384, 16)            \
	LINEAR(X, 1, 1, 1) LINEAR(X, 2, 1, 2) LINEAR(X, 1, 2, 1) LINEAR(X, 7, 13, 33)              \
	LINEAR(X, 13, 33, 7) LINEAR(X, 33, 67, 13) LINEAR(X, 67, 7, 67) LINEAR(X, 14, 32, 192)     \
	LINEAR(X, 15, 33, 193) LINEAR(X, 253, 257, 67) LINEAR(X, 67, 253, 385)                     \
	LINEAR(X, 512, 8, 128) LINEAR(X, 1024, 384, 128) LINEAR(X, 512, 512, 512)                  \
	LINEAR(X, 1, 67, 33) LINEAR(X, 1, 257, 385)                                                \
	ADD(X, 1, 1, 16, 1.0) ADD(X, 7, 13, 2, -0.3) ADD(X, 67, 33, 5, 12.0)                       \
	ADD(X, 512, 128, 16, 0.125)                                                                \
	ROPE(X, 1, 1, 1, 2) ROPE(X, 2, 7, 3, 6) ROPE(X, 1, 67, 1, 26) ROPE(X, 4, 128, 4, 64)       \
	ATTENTION(X, 1, 1, 1, 1, 1, 1, 1.0) ATTENTION(X, 2, 2, 2, 1, 2, 1, 0.7)                    \
	ATTENTION(X, 2, 7, 4, 2, 13, 7, 0.3) ATTENTION(X, 1, 67, 3, 1, 7, 2, 0.4)                  \
	ATTENTION(X, 1, 57, 2, 2, 33, 57, 0.2) ATTENTION(X, 2, 133, 6, 2, 16, 133, 0.25)           \
	ATTENTION(X, 2, 133, 6, 2, 16, 132, 0.25) ATTENTION(X, 1, 200, 1, 1, 300, 60, 0.05)        \
	ATTENTION(X, 1, 401, 2, 1, 5, 1, 0.4) ATTENTION(X, 1, 401, 2, 1, 5, 129, 0.4)              \
	ATTENTION(X, 1, 401, 2, 1, 5, 313, 0.4) ATTENTION(X, 2, 256, 4, 4, 64, 256, 0.125)         \
	ATTENTION(X, 1, 512, 4, 2, 32, 128, 0.2)                                                   \
	X(OM_LIKELIEST, likeliest_1, 1, 1) X(OM_LIKELIEST, likeliest_7, 5, 77)                     \
	ATTENTION_AT(X, 1, 1, 1, 1, 1, 1, 1, 1.0) ATTENTION_AT(X, 4, 4, 7, 4, 2, 13, 7, 0.3)       \
	ATTENTION_AT(X, 7, 2, 7, 4, 1, 13, 3, 0.3) ATTENTION_AT(X, 9, 9, 401, 6, 2, 16, 401, 0.25) \
	ATTENTION_AT(X, 1, 1, 401, 6, 2, 16, 129, 0.2)                                             \
	ATTENTION_AT(X, 65, 3, 401, 2, 2, 64, 401, 0.125)                                          \
	GLU(X, 1, 1, 1) GLU(X, 2, 2, 1) GLU(X, 7, 2, 13) GLU(X, 33, 3, 67) GLU(X, 13, 1, 600)      \
	GLU(X, 512, 2, 256)                                                                        \
	ROUTE_ALL(X, 1, 1, 1, 1, 1, 1) ROUTE_ALL(X, 4, 2, 1, 2, 1, 2)                              \
	ROUTE_ALL(X, 33, 12, 3, 4, 2, 3) ROUTE_ALL(X, 66, 10, 4, 10, 5, 2)                         \
	ROUTE_ALL(X, 300, 128, 8, 8, 4, 6)                                                         \
	ROUTE(X, 7, 7, 7, 1, 0, 1, 1, 7, 1.0) ROUTE(X, 67, 67, 1, 0, 1, 67, 1, 1, 3.0)             \
	ROUTE(X, 13, 100, 100, 1, 1, 4, 4, 1, 1.0) ROUTE(X, 13, 100, 25, 1, 1, 4, 1, 13, 1.0)      \
	ROUTE(X, 39, 26, 5, 0, 2, 2, 1, 3, 1.0) ROUTE(X, 512, 8, 2, 1, 0, 1, 1, 4, 1.0)            \
	ROUTE_BIASED(X, 1, 1, 1, 0, 0, 1, 1, 1, 1.0) ROUTE_BIASED(X, 7, 7, 7, 1, 1, 1, 1, 7, 1.0)  \
	ROUTE_BIASED(X, 33, 12, 3, 1, 0, 4, 2, 3, 2.5)                                             \
	ROUTE_BIASED(X, 33, 12, 3, 0, 1, 4, 2, 3, 1.0)                                             \
	ROUTE_BIASED(X, 66, 10, 4, 1, 1, 10, 5, 2, 1.0)                                            \
	ROUTE_BIASED(X, 67, 13, 4, 0, 0, 1, 1, 1, 1.0)                                             \
	ROUTE_BIASED(X, 66, 10, 4, 0, 2, 5, 5, 2, 0.5)                                             \
	ROUTE_BIASED(X, 300, 128, 8, 1, 1, 8, 4, 6, 2.5)                                           \
	ROUTE_BIASED(X, 300, 128, 8, 0, 2, 1, 1, 1, 1.0)                                           \
	ROUTE_RANDOM(X, 1, 1, 1, 0, 0, 1, 1, 1, 1.0) ROUTE_RANDOM(X, 7, 7, 7, 1, 1, 1, 1, 7, 1.0)  \
	ROUTE_RANDOM(X, 33, 12, 3, 1, 0, 4, 2, 3, 2.5)                                             \
	ROUTE_RANDOM(X, 66, 10, 4, 0, 2, 10, 5, 2, 0.5)                                            \
	ROUTE_RANDOM(X, 300, 128, 8, 0, 1, 8, 4, 6, 1.0)                                           \
	ROUTE_UNIFORM(X, 1, 1, 1, 0, 0, 1, 1.0) ROUTE_UNIFORM(X, 7, 7, 7, 1, 1, 7, 1.0)            \
	ROUTE_UNIFORM(X, 33, 12, 5, 0, 1, 3, 2.5) ROUTE_UNIFORM(X, 66, 10, 4, 1, 0, 2, 1.0)        \
	ROUTE_UNIFORM(X, 300, 128, 8, 0, 2, 1, 0.5)                                                \
	X(OM_AVERAGE, average_1, 1) X(OM_AVERAGE_MASTER, average_10007, 10007)                     \
	MUON(X, 1, 1, 1, 5, 1) MUON(X, 3, 7, 1, 2, 0) MUON(X, 2, 5, 9, 5, 1)                       \
	MUON(X, 5, 96, 33, 5, 0) MUON(X, 1, 130, 258, 5, 1) MUON(X, 2, 64, 64, 1, 1)               \
	BIAS_UPDATE(X, 1, 1, 0.1) BIAS_UPDATE(X, 2, 2, 1e-3) BIAS_UPDATE(X, 91, 7, 0.5)            \
	BIAS_UPDATE(X, 64, 64, 0.01) BIAS_UPDATE(X, 2048, 128, 0.001)                              \
	ROUTE_MAP(X, 1, 1, 1, 1) ROUTE_MAP(X, 7, 7, 7, 7) ROUTE_MAP(X, 33, 13, 3, 3)               \
	ROUTE_MAP(X, 67, 67, 1, 1) ROUTE_MAP(X, 300, 128, 8, 2)                                    \
	DISPATCH(X, 1, 1, 1) DISPATCH(X, 2, 2, 1) DISPATCH(X, 7, 3, 13) DISPATCH(X, 67, 1, 33)     \
	DISPATCH(X, 512, 2, 128)                                                                   \
	GROUPED(X, 1, 1, 1, 1) GROUPED(X, 2, 2, 1, 2) GROUPED(X, 7, 3, 13, 33)                     \
	GROUPED(X, 67, 13, 33, 7) GROUPED(X, 600, 2, 67, 33) GROUPED(X, 1024, 8, 128, 64)          \
	GROUPED(X, 33, 67, 7, 13) GROUPED(X, 9, 13, 257, 193)                                      \
	QUANTISE(X, 1, 32, 32, 0, 2) QUANTISE(X, 33, 96, 32, 1, 4) QUANTISE(X, 257, 128, 32, 0, 9) \
	QUANTISE(X, 1, 128, 128, 0, 2) QUANTISE(X, 67, 384, 128, 0, 5)                             \
	QUANTISE_W(X, 1, 32, 32, 32, 1, 0) QUANTISE_W(X, 3, 96, 64, 32, 1, 1)                      \
	QUANTISE_W(X, 1, 128, 128, 128, 128, 0) QUANTISE_W(X, 2, 256, 128, 128, 128, 0)            \
	UPDATE(X, 1, 0.1, 1.0) UPDATE(X, 67, 0.0, 0.5) UPDATE(X, 333, 0.1, 2.0)                    \
	UPDATE(X, 100003, 0.1, 1.0)                                                                \
	X(OM_CLIP, clip_1, 1.0) X(OM_CLIP, clip_0, 0.0) X(OM_CLIP, clip_small, 0.01)
/* clang-format on */

#define DEFINE(macro, name, ...) macro(name, __VA_ARGS__)
#define ROW(macro, name, ...) { #name, name##_check },

INSTANCES(DEFINE)

static const struct instance {
	const char *name;
	double (*check)(uint64_t);
} instances[] = { INSTANCES(ROW) };

static int passed, failed;

static void
report(bool right, const char *name, uint64_t seed, double error)
{
	passed += right;
	failed += !right;
	if (!right)
		printf("FAIL %s seed %llu error %g\n", name, (unsigned long long)seed, error);
}

/* The check passes, and gives the same number to the bit on other numbers of threads. */
static void
test_instance(const struct instance *k, uint64_t seed, int most_threads)
{
	double error = k->check(seed);
	report(error <= tolerance, k->name, seed, error);
	for (int threads = 1; threads <= most_threads; threads += 2) {
		omp_set_num_threads(threads);
		double other = k->check(seed);
		if (memcmp(&other, &error, sizeof error))
			report(false, "on another number of threads", seed, other);
	}
	omp_set_num_threads(2);
}

/* An output in the place of an input: the same bits as apart from it. */
static void
same(const char *name, uint64_t seed, const om_real *together, const om_real *apart, int64_t n)
{
	report(!memcmp(together, apart, (size_t)n * sizeof *apart), name, seed, OM_WRONG);
}

static void
test_in_place(uint64_t seed)
{
	enum { N = 7 * 3 * 26 }; /* numbers in every array; the sizes below multiply to it */
	om_real *a = om_check_random(N, seed, 0), *b = om_check_random(N, seed, 1);
	om_real *c = om_check_random(N, seed, 2), *p = om_check_random(N, seed, 3);
	om_real *out = om_check_nan(N), *out2 = om_check_nan(N), *out3 = om_check_nan(N);
	om_real *two = om_check_nan(N), *three = om_check_nan(N), *ws = om_check_nan(16 * 26);
	om_real *x = om_check_nan(N);
	const size_t size = N * sizeof *x;

	om_add(21, 26, a, b, out);
	memcpy(x, a, size);
	om_add(21, 26, x, b, x);
	same("add y:a", seed, x, out, N);
	memcpy(x, b, size);
	om_add(21, 26, a, x, x);
	same("add y:b", seed, x, out, N);

	memset(out2, 0, 26 * sizeof *out2);
	memset(two, 0, 26 * sizeof *two);
	om_rmsnorm_bwd(7, 3, 26, 16, true, a, b, c, p, out, out2, ws);
	memcpy(x, a, size);
	om_rmsnorm_bwd(7, 3, 26, 16, true, x, b, c, p, x, two, ws);
	same("rmsnorm_bwd dx:dy", seed, x, out, N);
	same("rmsnorm_bwd dx:dy, dw", seed, two, out2, 26);

	for (int sign = -1; sign <= 1; sign += 2) {
		om_rope(1, 7, 3, 26, (om_real)sign, a, p, out);
		memcpy(x, a, size);
		om_rope(1, 7, 3, 26, (om_real)sign, x, p, x);
		same(sign > 0 ? "rope y:x" : "rope_bwd dx:dy", seed, x, out, N);
	}

	om_bias(21, 26, a, b, out);
	memcpy(x, a, size);
	om_bias(21, 26, x, b, x);
	same("bias y:x", seed, x, out, N);
	om_scale(21, 26, 0.3, a, out);
	memcpy(x, a, size);
	om_scale(21, 26, 0.3, x, x);
	same("scale y:x", seed, x, out, N);

	int32_t *src = om_glu_src(21, seed);
	for (int act = OM_SILU; act < OM_GATED; act++) {
		om_glu_bwd(21, 26, act, a, b, c, NULL, NULL, out, out2, NULL);
		memcpy(x, a, size);
		om_glu_bwd(21, 26, act, x, b, c, NULL, NULL, two, x, NULL);
		same("glu_bwd du:dh", seed, x, out2, N);
		same("glu_bwd du:dh, dg", seed, two, out, N);

		om_glu_bwd(21, 26, act, a, b, c, p, src, out, out2, out3);
		memcpy(x, a, size);
		om_glu_bwd(21, 26, act, x, b, c, p, src, two, x, three);
		same("glu_routed_bwd du:dh", seed, x, out2, N);
		same("glu_routed_bwd du:dh, dg", seed, two, out, N);
		same("glu_routed_bwd du:dh, dp", seed, three, out3, 21);

		om_glu_bwd(21, 26, act, a, b, c, p, NULL, out, out2, out3);
		memcpy(x, a, size);
		om_glu_bwd(21, 26, act, x, b, c, p, NULL, two, x, three);
		same("glu_rows_bwd du:dh", seed, x, out2, N);
		same("glu_rows_bwd du:dh, dg", seed, two, out, N);
		same("glu_rows_bwd du:dh, dpr", seed, three, out3, 21);
	}
	om_glu_bwd(21, 26, OM_RELU2, a, b, NULL, NULL, NULL, out, NULL, NULL);
	memcpy(x, a, size);
	om_glu_bwd(21, 26, OM_RELU2, x, b, NULL, NULL, NULL, x, NULL, NULL);
	same("relu2_bwd du:dh", seed, x, out, N);
	om_glu_bwd(21, 26, OM_RELU2, a, b, NULL, p, src, out, NULL, out3);
	memcpy(x, a, size);
	om_glu_bwd(21, 26, OM_RELU2, x, b, NULL, p, src, x, NULL, three);
	same("relu2_routed_bwd du:dh", seed, x, out, N);
	same("relu2_routed_bwd du:dh, dp", seed, three, out3, 21);

	free(src);
	free(a);
	free(b);
	free(c);
	free(p);
	free(out);
	free(out2);
	free(out3);
	free(two);
	free(three);
	free(ws);
	free(x);
}

/* Whatever the scores, the choices are distinct experts, and equal scores go to the lower index. */
static void
test_route_odd_scores(uint64_t seed, int c, int g, int q, bool biased)
{
	enum { T = 6, E = 12, K = 5, N = 2 };
	const struct om_route shape = { T, E, K, true, c, g, q, N, 1 };
	const om_real bias[E] = { -3, -3, -3, -3, -3, -3, -3, -3, -3, -3, -3, -3 };
	om_real z[T * E], p[T * K], prob[T * E], lse[T];
	int32_t idx[T * K], cnt[N * E], row[T * K], src[T * K], off[E + 1];
	int64_t load[E] = { 0 };
	double aux[2] = { 0 };
	for (int i = 0; i < T * E; i++)
		z[i] = (om_real)om_unit(seed, (uint64_t)i);
	z[3] = z[4] = z[10] = (om_real)NAN;
	for (int i = 0; i < E; i++) {
		z[1 * E + i] = (om_real)NAN;
		z[2 * E + i] = -INFINITY;
		z[3 * E + i] = i % 2 ? INFINITY : z[3 * E + i];
		z[4 * E + i] = 1;
		z[5 * E + i] = i < 3 ? z[5 * E + i] : -INFINITY;
	}
	om_route(&shape, z, (struct om_route_by){ .bias = biased ? bias : NULL }, p, idx, prob, lse,
	    cnt, load, aux);
	om_route_map(T, E, K, N, idx, cnt, row, src, off);
	bool right = off[E] == T * K;
	for (int i = 0; i < T * K; i++) {
		right &= idx[i] >= 0 && idx[i] < E;
		for (int a = i / K * K; a < i; a++)
			right &= idx[a] != idx[i];
		if (i / K == 4)
			right &= idx[i] == i % K;
		/* of sigmoids the others are numbers, and come first */
		if (i < K && c == OM_ROUTE_SIGMOID)
			right &= idx[i] != 3 && idx[i] != 4 && idx[i] != 10;
	}
	report(right, "route on NaN, infinities and ties", seed, OM_WRONG);
}

/* Philox's known answers, those of Random123. */
static void
test_random(void)
{
	static const struct {
		struct om_philox counter;
		uint64_t key;
		struct om_philox want;
	} known[] = {
		{ { { 0 } }, 0, { { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } } },
		{ { { ~0u, ~0u, ~0u, ~0u } }, ~UINT64_C(0),
		    { { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } } },
		{ { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 } }, 0x299f31d0a4093822,
		    { { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } } },
	};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		const struct om_philox got = om_philox(known[i].counter, known[i].key);
		report(!memcmp(&got, &known[i].want, sizeof got), "Philox", i, OM_WRONG);
	}
}

/* A table of one piece for moments that lie behind it. */
static void
lots_of(int64_t *lots, int64_t key, const om_real *m, int64_t index, int64_t tensor)
{
	const int64_t table[] = { key, 1, (const char *)m - (const char *)lots, index, tensor };
	memcpy(lots, table, sizeof table);
}

/*
 * Drawn moments: over many keys their mean is what they would be in float, and each is one of its
 * two neighbours. How m, v, the next element and the next key fall have nothing to do with each
 * other.
 */
static void
test_drawn_mean(uint64_t seed)
{
	enum { N = 64, KEYS = 4096, KINDS = 2 };
	const double ctl[OM_CTL_N] = { 0.125, 0.1, 0.05, NAN, 0.7, NAN, NAN, 0 };
	static om_real m[KINDS][N], g[N], w[N], s[N], at[KINDS][N];
	static double sum[KINDS][N], off[KINDS][N], last[KINDS][N];
	double together = 0, beside = 0, after = 0;
	int64_t lots[OM_LOTS_REF];
	bool right = true;

	memset(sum, 0, sizeof sum);
	for (int k = -1; k < KEYS; k++) {
		for (int i = 0; i < N; i++) {
			m[0][i] = (om_real)om_check_bf16((float)om_unit(seed, (uint64_t)i));
			m[1][i] =
			    (om_real)om_check_bf16((float)fabs(om_unit(seed + 1, (uint64_t)i)));
			g[i] = (om_real)om_unit(seed + 2, (uint64_t)i);
		}
		lots_of(lots, (int64_t)(seed + (uint64_t)k), m[0], 5, 7);
		om_adamw(N, 0.9, 0.999, 1e-8, 0, 1, g, ctl, k < 0 ? NULL : lots, w, s, m[0], m[1]);
		for (int j = 0; j < KINDS; j++)
			for (int i = 0; i < N; i++) {
				if (k < 0) { /* not drawn */
					at[j][i] = (om_real)(float)m[j][i];
					continue;
				}
				int e;
				frexp((double)at[j][i], &e);
				off[j][i] = ldexp((double)m[j][i] - (double)at[j][i], 8 - e);
				right &= fabs(off[j][i]) < 1;
				sum[j][i] += off[j][i];
				if (k)
					after += off[j][i] * last[j][i];
				if (i)
					beside += off[j][i] * off[j][i - 1];
				last[j][i] = off[j][i];
			}
		for (int i = 0; i < N && k >= 0; i++)
			together += off[0][i] * off[1][i];
	}
	report(right, "drawn moments are neighbours", seed, OM_WRONG);
	double worst = 0;
	for (int j = 0; j < KINDS; j++)
		for (int i = 0; i < N; i++)
			worst = fmax(worst, fabs(sum[j][i]) / KEYS);
	/* a mean's deviation is at most 1/2 / 64, that of products 1/4 / 512: six of them */
	report(worst < 6 * 0.5 / 64, "drawn moments are right in the mean", seed, worst);
	worst = fmax(fabs(together), fmax(fabs(beside) / 2, fabs(after) / 2)) / (N * KEYS);
	report(worst < 6 * 0.25 / 512, "drawn moments fall apart from each other", seed, worst);
}

/*
 * A long run at beta2 = 0.999: a thousandth is less than half of bf16's last place, so that v to
 * the nearest cannot fall, where drawn it follows what float has. Weights on their way to a target,
 * by gradients whose noise is large for 1000 steps, then small for 2000; to the nearest is float's
 * kernel, its moments rounded after it.
 */
static void
test_drawn_long(uint64_t seed)
{
	enum { N = 512, STEPS = 3000 };
	enum { FLOAT, DRAWN, NEAREST };
	static om_real g[N], w[3][N], s[3][N], m[3][N], v[3][N];
	int64_t lots[OM_LOTS_REF];
	double sum[3] = { 0 }, off[3] = { 0 };

	memset(s, 0, sizeof s);
	memset(m, 0, sizeof m);
	memset(v, 0, sizeof v);
	for (int t = 1; t <= STEPS; t++)
		for (int j = FLOAT; j <= NEAREST; j++) {
			const double noise = t <= 1000 ? 4 : 0.25;
			const double ctl[OM_CTL_N] = { 1e-3, 1 - pow(0.9, t), 1 - pow(0.999, t),
				NAN, 1, NAN, NAN, 0 };
			for (int i = 0; i < N; i++)
				g[i] = (om_real)((double)s[j][i] - 1 +
						 noise * om_unit(seed + (uint64_t)t, (uint64_t)i));
			lots_of(lots, (int64_t)(seed * STEPS) + t, m[j], 0, 1);
			om_adamw(N, 0.9, 0.999, 1e-8, 0, 1, g, ctl, j == DRAWN ? lots : NULL, w[j],
			    s[j], m[j], v[j]);
			if (j == NEAREST) {
				om_round(N, m[j]);
				om_round(N, v[j]);
			}
		}
	for (int j = FLOAT; j <= NEAREST; j++)
		for (int i = 0; i < N; i++) {
			sum[j] += (double)v[j][i];
			off[j] += fabs((double)s[j][i] - 1) / N;
		}
	report(fabs(sum[DRAWN] / sum[FLOAT] - 1) < 0.02, "a long run: drawn v", seed,
	    sum[DRAWN] / sum[FLOAT]);
	report(off[DRAWN] < 1.02 * off[FLOAT], "a long run: drawn weights", seed,
	    off[DRAWN] / off[FLOAT]);
	report(sum[NEAREST] > 3 * sum[FLOAT] && off[NEAREST] > 1.2 * off[FLOAT],
	    "a long run: to the nearest it stalls", seed, sum[NEAREST] / sum[FLOAT]);
}

/*
 * Random routing: what a token gets depends on its number, not on its microbatch, nor on the
 * scores; another seed, layer and number give another choice; every expert is as likely.
 */
static void
test_route_random(uint64_t seed)
{
	enum { T = 512, E = 16, K = 4 };
	static om_real z[T * E], p[T * K], prob[T * E], lse[T];
	static int32_t idx[5][T * K];
	int32_t cnt[E];
	int64_t load[E] = { 0 };
	double aux[2] = { 0 }, chi = 0;
	const int64_t draw[5][3] = { { (int64_t)seed, 3, 1000 }, { (int64_t)seed, 3, 1000 + T / 2 },
		{ (int64_t)seed, 4, 1000 }, { (int64_t)seed + 1, 3, 1000 },
		{ (int64_t)seed, 3, 1000 } };
	for (int i = 0; i < 5; i++) {
		/* half as many tokens the last time */
		const struct om_route shape = { i == 4 ? T / 2 : T, E, K, 0, 0, 1, 1, 1, 1 };
		for (int c = 0; c < T * E; c++)
			z[c] = i ? (om_real)om_unit(seed, (uint64_t)c) : 0;
		om_route(&shape, z, (struct om_route_by){ .draw = draw[i] }, p, idx[i], prob, lse,
		    cnt, load, aux);
	}
	const size_t half = sizeof idx[0] / 2;
	report(!memcmp(idx[1], idx[0] + T * K / 2, half) && !memcmp(idx[4], idx[0], half),
	    "random routing by the token's number", seed, OM_WRONG);
	for (int i = 1; i < 4; i++) {
		int equal = 0;
		for (int c = 0; c < T * K; c++)
			equal += idx[i][c] == idx[0][c];
		/* of 2048, 128 are expected, with a deviation of 11 */
		report(equal > 60 && equal < 200, "other random routing", seed, equal);
	}
	for (int e = 0; e < E; e++) { /* 9216 rows: T K each time, but half the last */
		double want = 4.5 * T * K / E, off = (double)load[e] - want;
		chi += off * off / want;
	}
	/* below a chi-square of 15 degrees: choices are distinct, two of five runs repeat halves */
	report(chi < 60, "random routing is even", seed, chi);
}

/* exp over the whole range of float, and at its ends. */
static void
test_exp(uint64_t seed)
{
	double worst = 0;
	for (uint64_t i = 0; i < 100000; i++) {
		om_real x = (om_real)(om_unit(seed, i) * 50);
		worst = om_worse(worst, fabs((double)om_exp(x) / exp((double)x) - 1));
	}
	report(worst < 2e-7, "exp", seed, worst);
	bool ends = om_exp(-INFINITY) == 0 && om_exp((om_real)-1e30) == 0 && om_exp(0) == 1;
	ends &= isinf(om_exp(INFINITY)) && isinf(om_exp(1000)) && isnan(om_exp((om_real)NAN));
	report(ends, "exp at the ends", seed, OM_WRONG);
}

/* The activations' relative error, near 0 too. */
static void
test_activation(uint64_t seed)
{
	double worst = 0, slope;
	for (int a = OM_SILU; a <= OM_RELU2; a++) {
		for (uint64_t i = 0; i < 10000; i++) {
			double unit = om_unit(seed, i) * pow(10, om_unit(seed + 1, i) * 3 - 5.5);
			om_real x = (om_real)unit, got_slope, got = om_activation(a, x, &got_slope);
			double want = om_glu_ref(a, x, &slope);
			worst = om_worse(worst, fabs((double)got - want) / (fabs(want) + 1e-30));
			worst = om_worse(worst, fabs((double)got_slope - slope));
		}
	}
	report(worst < (OM_DOUBLE ? 1e-14 : 2e-6), "activations", seed, worst);
}

/* Every upper half, with lower ones around the tie, at once: subnormals, infinities, NaN. */
static void
test_round(uint64_t seed)
{
	static const uint32_t low[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };
	enum { LOW = sizeof low / sizeof *low, N = LOW << 16 };
	static om_real x[N + 1];
	double worst = 0;
	for (uint32_t i = 0; i < N; i++) {
		uint32_t bits = i / LOW << 16 | low[i % LOW];
		float f;
		memcpy(&f, &bits, sizeof f);
		x[i] = f;
	}
	x[N] = (om_real)0.3;
	om_round(N, x);
	for (uint32_t i = 0; i < N; i++) {
		uint32_t bits = i / LOW << 16 | low[i % LOW], got, want;
		float f = (float)x[i];
		memcpy(&got, &f, sizeof got);
		memcpy(&f, &bits, sizeof f);
		f = om_check_bf16(f);
		memcpy(&want, &f, sizeof want);
		/* a NaN keeps its sign, is quiet, and has no lower half */
		if (isnan(f)
			? (got ^ bits) >> 31 || !(got & 0x400000) || got & 0xffff || !isnan(x[i])
			: got != want)
			worst = OM_WRONG;
	}
	report(worst == 0 && x[N] == (om_real)0.3, "round", seed, worst);
}

/* All codes, and numbers that lie halfway between two of them, or just beside. */
static void
test_e4m3(void)
{
	for (int code = 0; code < 256; code++) {
		float v = om_of_e4m3((uint8_t)code);
		double want = om_e4m3_ref(code);
		report(isnan(want) ? isnan(v) : (double)v == want && !signbit(v) == (code < 128),
		    "what a code of e4m3 is", (uint64_t)code, (double)v);
		if (isnan(want))
			continue;
		report(om_e4m3(v) == code, "e4m3 of itself", (uint64_t)code, (double)v);
		/* behind the largest as if another one followed */
		double next = (code & 0x7f) < 0x7e ? om_e4m3_ref(code + 1) : copysign(480, want);
		float middle = (float)((want + next) / 2);
		for (int i = -1; i <= 1; i++) {
			float x = i ? nextafterf(middle, (float)i * INFINITY) : middle;
			report(om_e4m3(x) == om_e4m3_code_ref((double)x), "e4m3 near a tie",
			    (uint64_t)code, (double)x);
		}
	}
	static const float far[] = { 512, 1e30f, INFINITY, 1e-30f, 0x1p-149f, 0 };
	for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
		report(om_e4m3(far[i]) == (far[i] > 1 ? 0x7e : 0), "e4m3 from afar", i,
		    (double)far[i]);
		report(om_e4m3(-far[i]) == (far[i] > 1 ? 0xfe : 0x80), "e4m3 from afar", i,
		    (double)-far[i]);
	}
}

int
main(int argc, char **argv)
{
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
	omp_set_num_threads(2);
	test_e4m3();
	for (uint64_t seed = first; seed < first + SEEDS; seed++) {
		for (size_t i = 0; i < sizeof instances / sizeof *instances; i++)
			test_instance(&instances[i], seed, seed == first ? 3 : 0);
		test_in_place(seed);
		for (int c = 0; c < OM_ROUTE_SCORES; c++) {
			for (int biased = 0; biased < 2; biased++) {
				test_route_odd_scores(seed, c, 1, 1, biased);
				test_route_odd_scores(seed, c, 4, 2, biased);
				test_route_odd_scores(seed, c, 12, 6, biased);
			}
		}
		test_random();
		test_route_random(seed);
		test_drawn_mean(seed);
		if (seed == first)
			test_drawn_long(seed);
		test_exp(seed);
		test_activation(seed);
		test_round(seed);
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed > 0;
}
