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
#include "attention.h"
#include "dispatch.h"
#include "embed.h"
#include "grouped.h"
#include "head.h"
#include "linear.h"
#include "rmsnorm.h"
#include "rope.h"
#include "route.h"
#include "swiglu.h"

enum { SEEDS = 8 }; /* grouped's offsets have that many patterns */
static const double tolerance = OM_DOUBLE ? 1e-11 : 2e-5;

/* X(macro, name, params...) for every instance of a family at a size */
#define EMBED(X, t, n, v)                           \
	X(OM_EMBED, embed_##t##_##n##_##v, t, n, v) \
	X(OM_EMBED_BWD, embed_bwd_##t##_##n##_##v, t, n, v)
#define HEAD(X, t, n, v, c)                                                             \
	X(OM_HEAD_LOSS, head_loss_##t##_##n##_##v##_##c, t, n, v, c, 1.0 / (t))         \
	X(OM_HEAD_LOSS_BWD, head_loss_bwd_##t##_##n##_##v##_##c, t, n, v, c, 1.0 / (t)) \
	X(OM_HEAD_LOSS_GRAD, head_loss_grad_##t##_##n##_##v##_##c, t, n, v, c, 1.0 / (t))
#define RMSNORM(X, m, h, n, c)                                \
	X(OM_RMSNORM, rmsnorm_##m##_##h##_##n, m, h, n, 1e-5) \
	X(OM_RMSNORM_BWD, rmsnorm_bwd_##m##_##h##_##n, m, h, n, c)
#define LINEAR(X, m, n, k)                                  \
	X(OM_LINEAR, linear_##m##_##n##_##k, m, n, k)       \
	X(OM_LINEAR_DX, linear_dx_##m##_##n##_##k, m, n, k) \
	X(OM_LINEAR_DW, linear_dw_##m##_##n##_##k, m, n, k)
#define ADD(X, m, n) X(OM_ADD, add_##m##_##n, m, n)
#define ROPE(X, b, s, h, d)                                               \
	X(OM_ROPE_TABLE, rope_table_##b##_##s##_##h##_##d, s, d, 10000.0) \
	X(OM_ROPE, rope_##b##_##s##_##h##_##d, b, s, h, d)                \
	X(OM_ROPE_BWD, rope_bwd_##b##_##s##_##h##_##d, b, s, h, d)
#define ATTENTION(X, b, s, h, g, d, scale)                                           \
	X(OM_ATTENTION, attention_##b##_##s##_##h##_##g##_##d, b, s, h, g, d, scale) \
	X(OM_ATTENTION_BWD, attention_bwd_##b##_##s##_##h##_##g##_##d, b, s, h, g, d, scale)
#define SWIGLU(X, t, k, f)                                          \
	X(OM_SWIGLU, swiglu_##t##_##k##_##f, t, f)                  \
	X(OM_SWIGLU_BWD, swiglu_bwd_##t##_##k##_##f, t, f)          \
	X(OM_SWIGLU_ROUTED, swiglu_routed_##t##_##k##_##f, t, k, f) \
	X(OM_SWIGLU_ROUTED_BWD, swiglu_routed_bwd_##t##_##k##_##f, t, k, f)
#define ROUTE(X, t, e, k)                                                       \
	X(OM_ROUTE, route_##t##_##e##_##k##_0, t, e, k, 0)                      \
	X(OM_ROUTE, route_##t##_##e##_##k##_1, t, e, k, 1)                      \
	X(OM_ROUTE_BWD, route_bwd_##t##_##e##_##k##_0, t, e, k, 0, 0.01, 0.001) \
	X(OM_ROUTE_BWD, route_bwd_##t##_##e##_##k##_1, t, e, k, 1, 0.01, 0.001) \
	X(OM_ROUTE_MAP, route_map_##t##_##e##_##k, t, e, k)
#define DISPATCH(X, t, k, n)                              \
	X(OM_DISPATCH, dispatch_##t##_##k##_##n, t, k, n) \
	X(OM_COMBINE, combine_##t##_##k##_##n, t, k, n)
#define GROUPED(X, r, e, n, k)                                         \
	X(OM_GROUPED, grouped_##r##_##e##_##n##_##k, r, e, n, k)       \
	X(OM_GROUPED_DX, grouped_dx_##r##_##e##_##n##_##k, r, e, n, k) \
	X(OM_GROUPED_DW, grouped_dw_##r##_##e##_##n##_##k, r, e, n, k)
#define UPDATE(X, n, decay, scale) \
	X(OM_SUMSQ, sumsq_##n, n)  \
	X(OM_ADAMW, adamw_##n, n, 0.9, 0.95, 1e-8, decay, scale)

/* clang-format off */
#define INSTANCES(X)                                                                               \
	EMBED(X, 1, 1, 1) EMBED(X, 7, 13, 2) EMBED(X, 67, 33, 13) EMBED(X, 512, 128, 1000)         \
	HEAD(X, 1, 1, 1, 1) HEAD(X, 2, 1, 2, 3) HEAD(X, 7, 13, 33, 2) HEAD(X, 67, 33, 67, 13)      \
	HEAD(X, 300, 67, 333, 128) HEAD(X, 256, 64, 2048, 128)                                    \
	RMSNORM(X, 1, 1, 1, 16) RMSNORM(X, 2, 1, 2, 1) RMSNORM(X, 7, 3, 13, 16)                    \
	RMSNORM(X, 67, 1, 33, 5) RMSNORM(X, 512, 4, 32, 16) RMSNORM(X, 512, 1, 384, 16)            \
	LINEAR(X, 1, 1, 1) LINEAR(X, 2, 1, 2) LINEAR(X, 1, 2, 1) LINEAR(X, 7, 13, 33)              \
	LINEAR(X, 13, 33, 7) LINEAR(X, 33, 67, 13) LINEAR(X, 67, 7, 67) LINEAR(X, 14, 32, 192)     \
	LINEAR(X, 15, 33, 193) LINEAR(X, 253, 257, 67) LINEAR(X, 67, 253, 385)                     \
	LINEAR(X, 512, 8, 128) LINEAR(X, 1024, 384, 128) LINEAR(X, 512, 512, 512)                  \
	ADD(X, 1, 1) ADD(X, 7, 13) ADD(X, 512, 128)                                                \
	ROPE(X, 1, 1, 1, 2) ROPE(X, 2, 7, 3, 6) ROPE(X, 1, 67, 1, 26) ROPE(X, 4, 128, 4, 64)       \
	ATTENTION(X, 1, 1, 1, 1, 1, 1.0) ATTENTION(X, 2, 2, 2, 1, 2, 0.7)                          \
	ATTENTION(X, 2, 7, 4, 2, 13, 0.3) ATTENTION(X, 1, 67, 3, 1, 7, 0.4)                        \
	ATTENTION(X, 1, 57, 2, 2, 33, 0.2) ATTENTION(X, 2, 133, 6, 2, 16, 0.25)                    \
	ATTENTION(X, 1, 200, 1, 1, 300, 0.05) ATTENTION(X, 2, 256, 4, 4, 64, 0.125)                \
	SWIGLU(X, 1, 1, 1) SWIGLU(X, 2, 2, 1) SWIGLU(X, 7, 2, 13) SWIGLU(X, 33, 3, 67)             \
	SWIGLU(X, 13, 1, 600) SWIGLU(X, 512, 2, 256)                                               \
	ROUTE(X, 1, 1, 1) ROUTE(X, 2, 2, 1) ROUTE(X, 7, 7, 7) ROUTE(X, 33, 13, 3)                  \
	ROUTE(X, 67, 67, 1) ROUTE(X, 13, 100, 100) ROUTE(X, 512, 8, 2) ROUTE(X, 300, 128, 8)       \
	DISPATCH(X, 1, 1, 1) DISPATCH(X, 2, 2, 1) DISPATCH(X, 7, 3, 13) DISPATCH(X, 67, 1, 33)     \
	DISPATCH(X, 512, 2, 128)                                                                   \
	GROUPED(X, 1, 1, 1, 1) GROUPED(X, 2, 2, 1, 2) GROUPED(X, 7, 3, 13, 33)                     \
	GROUPED(X, 67, 13, 33, 7) GROUPED(X, 600, 2, 67, 33) GROUPED(X, 1024, 8, 128, 64)          \
	GROUPED(X, 33, 67, 7, 13)                                                                  \
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
	om_rmsnorm_bwd(7, 3, 26, 16, a, b, c, p, out, out2, ws);
	memcpy(x, a, size);
	om_rmsnorm_bwd(7, 3, 26, 16, x, b, c, p, x, two, ws);
	same("rmsnorm_bwd dx:dy", seed, x, out, N);
	same("rmsnorm_bwd dx:dy, dw", seed, two, out2, 26);

	for (int sign = -1; sign <= 1; sign += 2) {
		om_rope(1, 7, 3, 26, (om_real)sign, a, p, out);
		memcpy(x, a, size);
		om_rope(1, 7, 3, 26, (om_real)sign, x, p, x);
		same(sign > 0 ? "rope y:x" : "rope_bwd dx:dy", seed, x, out, N);
	}

	om_swiglu_bwd(21, 26, a, b, c, out, out2);
	memcpy(x, a, size);
	om_swiglu_bwd(21, 26, x, b, c, two, x);
	same("swiglu_bwd du:dh", seed, x, out2, N);
	same("swiglu_bwd du:dh, dg", seed, two, out, N);

	int32_t *src = om_swiglu_src(21, seed);
	om_swiglu_routed_bwd(21, 26, a, b, c, p, src, out, out2, out3);
	memcpy(x, a, size);
	om_swiglu_routed_bwd(21, 26, x, b, c, p, src, two, x, three);
	same("swiglu_routed_bwd du:dh", seed, x, out2, N);
	same("swiglu_routed_bwd du:dh, dg", seed, two, out, N);
	same("swiglu_routed_bwd du:dh, dp", seed, three, out3, 21);

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
test_route_odd_scores(uint64_t seed)
{
	enum { T = 6, E = 13, K = 5 };
	om_real z[T * E], p[T * K], prob[T * E], lse[T];
	int32_t idx[T * K], cnt[E], row[T * K], src[T * K], off[E + 1];
	int64_t load[E] = { 0 };
	double aux[2] = { 0 };
	for (int i = 0; i < T * E; i++)
		z[i] = (om_real)om_unit(seed, (uint64_t)i);
	z[3] = (om_real)NAN;
	for (int c = 0; c < E; c++) {
		z[1 * E + c] = (om_real)NAN;
		z[2 * E + c] = -INFINITY;
		z[3 * E + c] = c % 2 ? INFINITY : z[3 * E + c];
		z[4 * E + c] = 1;
		z[5 * E + c] = c < 3 ? z[5 * E + c] : -INFINITY;
	}
	om_route(T, E, K, true, z, p, idx, prob, lse, cnt, load, aux);
	om_route_map(T, E, K, idx, cnt, row, src, off);
	bool right = off[E] == T * K;
	for (int i = 0; i < T * K; i++) {
		right &= idx[i] >= 0 && idx[i] < E;
		for (int a = i / K * K; a < i; a++)
			right &= idx[a] != idx[i];
		if (i / K == 4)
			right &= idx[i] == i % K;
	}
	report(right, "route on NaN, infinities and ties", seed, OM_WRONG);
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

int
main(int argc, char **argv)
{
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
	omp_set_num_threads(2);
	for (uint64_t seed = first; seed < first + SEEDS; seed++) {
		for (size_t i = 0; i < sizeof instances / sizeof *instances; i++)
			test_instance(&instances[i], seed, seed == first ? 3 : 0);
		test_in_place(seed);
		test_route_odd_scores(seed);
		test_exp(seed);
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed > 0;
}
