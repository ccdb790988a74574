#include "route.h"

#include "case.h"
#ifndef __CUDACC__
#include <stdio.h>
#endif

/*
 * Everything is float, on unit logits. Probabilities and gradients: some roundings of 2^-24 and
 * exp's 2e-7, of values that may be a tenth of the largest; lse 2e-7 of 5.
 */
#define ROUTE 2e-6
/* The gradient of the losses alone is a difference of near equals: e times a float's rounding. */
#define ROUTE_BWD 2e-5

/* t e k j c g q n factor: all scores, with and without normalisation; groups, sequences, factors */
CASE(OM_ROUTE, ROUTE, route_one, 1, 1, 1, 0, 0, 1, 1, 1, 1.0)
CASE(OM_ROUTE, ROUTE, route_tiny, 12, 8, 2, 0, 0, 1, 1, 1, 1.0)
CASE(OM_ROUTE, ROUTE, route_odd, 99, 37, 5, 1, 0, 1, 1, 3, 2.5)
CASE(OM_ROUTE, ROUTE, route_chosen, 70, 60, 4, 0, 2, 1, 1, 2, 1.0)
CASE(OM_ROUTE, ROUTE, route_chosen_j, 33, 8, 2, 1, 2, 1, 1, 1, 0.5)
CASE(OM_ROUTE, ROUTE, route_sigmoid, 257, 48, 6, 1, 1, 1, 1, 1, 1.0)
CASE(OM_ROUTE, ROUTE, route_sigmoid_raw, 64, 17, 17, 0, 1, 1, 1, 4, 3.0)
CASE(OM_ROUTE, ROUTE, route_groups, 130, 24, 3, 1, 1, 6, 2, 2, 2.5)
CASE(OM_ROUTE, ROUTE, route_groups_of_1, 65, 20, 4, 0, 0, 20, 5, 5, 1.0)
CASE(OM_ROUTE, ROUTE, route_all, 100, 100, 100, 1, 0, 1, 1, 1, 1.0)
/* the sum of 512 chosen is made in their order, as the CPU does */
CASE(OM_ROUTE, 3 * ROUTE, route_512_all, 40, 512, 512, 0, 2, 1, 1, 2, 1.0)
CASE(OM_ROUTE, ROUTE, route_512_groups, 72, 512, 22, 1, 1, 512, 100, 1, 1.0)
CASE(OM_ROUTE, ROUTE, route_512, 1000, 512, 10, 1, 0, 1, 1, 1, 1.0)
RATED(OM_ROUTE, ROUTE, 0, 16384.0 * 64 * 8, route_olmoe, 16384, 64, 8, 0, 0, 1, 1, 1, 1.0)
RATED(OM_ROUTE, ROUTE, 0, 16384.0 * 64 * 8, route_olmoe_4, 16384, 64, 8, 0, 0, 1, 1, 4, 1.0)
RATED(OM_ROUTE, ROUTE, 0, 16384.0 * 128 * 8, route_qwen3, 16384, 128, 8, 1, 0, 1, 1, 4, 1.0)
RATED(OM_ROUTE, ROUTE, 0, 8192.0 * 256 * 8, route_deepseek, 8192, 256, 8, 1, 1, 8, 4, 2, 2.5)

/* the same, chosen by score and bias, by lot, in turn */
CASE(OM_ROUTE_BIASED, ROUTE, route_biased_tiny, 12, 8, 2, 0, 0, 1, 1, 1, 1.0)
CASE(OM_ROUTE_BIASED, ROUTE, route_biased_odd, 99, 37, 5, 1, 0, 1, 1, 3, 2.5)
CASE(OM_ROUTE_BIASED, ROUTE, route_biased_chosen, 70, 60, 4, 0, 2, 1, 1, 2, 1.0)
CASE(OM_ROUTE_BIASED, ROUTE, route_biased_groups, 130, 24, 3, 1, 1, 6, 2, 2, 2.5)
CASE(OM_ROUTE_BIASED, ROUTE, route_biased_groups_of_1, 65, 20, 4, 0, 0, 20, 5, 5, 1.0)
CASE(OM_ROUTE_BIASED, ROUTE, route_biased_512, 72, 512, 22, 1, 1, 1, 1, 1, 1.0)
RATED(OM_ROUTE_BIASED, ROUTE, 0, 8192.0 * 256 * 8, route_biased_deepseek, 8192, 256, 8, 1, 1, 8, 4,
    2, 2.5)
CASE(OM_ROUTE_RANDOM, ROUTE, route_random_one, 1, 1, 1, 0, 0, 1, 1, 1, 1.0)
CASE(OM_ROUTE_RANDOM, ROUTE, route_random_odd, 99, 37, 5, 1, 0, 1, 1, 3, 2.5)
CASE(OM_ROUTE_RANDOM, ROUTE, route_random_chosen, 70, 60, 4, 0, 2, 1, 1, 2, 1.0)
CASE(OM_ROUTE_RANDOM, ROUTE, route_random_groups, 130, 24, 3, 1, 1, 6, 2, 2, 2.5)
CASE(OM_ROUTE_RANDOM, ROUTE, route_random_all, 100, 100, 100, 1, 0, 1, 1, 1, 1.0)
CASE(OM_ROUTE_RANDOM, ROUTE, route_random_512, 72, 512, 22, 1, 1, 512, 100, 1, 1.0)
RATED(OM_ROUTE_RANDOM, ROUTE, 0, 16384.0 * 64 * 8, route_random_olmoe, 16384, 64, 8, 0, 0, 1, 1, 1,
    1.0)
CASE(OM_ROUTE_UNIFORM, ROUTE, route_uniform_one, 1, 1, 1, 0, 0, 1, 1, 1, 1.0)
CASE(OM_ROUTE_UNIFORM, ROUTE, route_uniform_odd, 99, 37, 5, 1, 1, 1, 1, 3, 2.5)
CASE(OM_ROUTE_UNIFORM, ROUTE, route_uniform_all, 70, 60, 60, 0, 2, 1, 1, 2, 1.0)
RATED(OM_ROUTE_UNIFORM, ROUTE, 0, 16384.0 * 64 * 8, route_uniform_olmoe, 16384, 64, 8, 0, 0, 1, 1,
    1, 1.0)

/*
 * From equal logits the CPU chooses equally, and weighs equally to the last bit: HASH is what
 * kernels/cpu/route.h gives (with fused multiply-adds, as on any CPU of the last ten years).
 */
#ifdef __CUDACC__
#define AS_CPU(NAME, M, HASH, ...) M(NAME##_run, __VA_ARGS__)
#else
#define AS_CPU(NAME, M, HASH, ...)                                      \
	M(NAME##_run, __VA_ARGS__)                                      \
	static double NAME##_check(uint64_t seed)                       \
	{                                                               \
		(void)seed;                                             \
		return as_cpu(NAME##_run_by, BY_##M, &NAME##_run_shape, HASH); \
	}

/* what experts are chosen by, of each macro */
enum {
	BY_OM_ROUTE = OM_BY_SCORE,
	BY_OM_ROUTE_BIASED = OM_BY_BIAS,
	BY_OM_ROUTE_RANDOM = OM_BY_DRAW,
	BY_OM_ROUTE_UNIFORM = OM_BY_TURN
};

static uint64_t
hash(uint64_t h, const void *p, int64_t bytes) /* FNV-1a */
{
	for (int64_t i = 0; i < bytes; i++)
		h = (h ^ ((const unsigned char *)p)[i]) * 0x100000001b3u;
	return h;
}

static double
as_cpu(om_route_fn *run, int by, const struct om_route *r, uint64_t want)
{
	float *z = malloc((size_t)(r->t * r->e) * sizeof *z), bias[512];
	const int64_t draw[3] = { 0x123456789abcdef, 3, (1LL << 32) - 50 };
	const void *input = by == OM_BY_BIAS ? (void *)bias : by == OM_BY_DRAW ? draw : NULL;
	const size_t size = by == OM_BY_BIAS ? (size_t)r->e * sizeof *bias : sizeof draw;
	uint64_t h = 0xcbf29ce484222325u;
	for (int64_t i = 0; i < r->t * r->e; i++) /* 4096 values: some of a token are equal */
		z[i] = (float)(i * i * 40503 % 4096) / 256 - 8;
	for (int64_t c = 0; c < r->e; c++)
		bias[c] = (float)(c * 37 % 64) / 640 - 0.05f;
	struct om_route_out o = om_route_run(run, r, z, input, size, false);
	h = hash(h, o.idx, r->t * r->k * 4);
	h = hash(h, o.p, r->t * r->k * 4);
	h = hash(h, o.prob, r->t * r->e * 4);
	if (h != want)
		printf("hash 0x%016llxu\n", (unsigned long long)h);
	om_route_free(&o);
	free(z);
	return h == want ? 0 : OM_WRONG;
}
#endif
CASE(AS_CPU, 0, route_as_cpu, OM_ROUTE, 0x7106cf86e32d63e3u, 200, 60, 6, 1, 0, 1, 1, 1, 2.5)
CASE(AS_CPU, 0, route_as_cpu_chosen, OM_ROUTE, 0xe0b6bd3389f3c01eu, 100, 130, 20, 0, 2, 1, 1, 1,
    1.0)
CASE(AS_CPU, 0, route_as_cpu_groups, OM_ROUTE, 0xdac8805cd569c55fu, 200, 256, 8, 1, 1, 8, 4, 2, 2.5)
CASE(AS_CPU, 0, route_as_cpu_biased, OM_ROUTE_BIASED, 0x79f2eab877b9e61au, 200, 60, 6, 1, 0, 1, 1,
    1, 2.5)
CASE(AS_CPU, 0, route_as_cpu_biased_chosen, OM_ROUTE_BIASED, 0xfdd27145adb6358eu, 100, 130, 20, 0,
    2, 1, 1, 1, 1.0)
CASE(AS_CPU, 0, route_as_cpu_biased_groups, OM_ROUTE_BIASED, 0x2debc174ad2942d4u, 200, 256, 8, 1,
    1, 8, 4, 2, 2.5)
CASE(AS_CPU, 0, route_as_cpu_random, OM_ROUTE_RANDOM, 0xa71e9cafbda96d8au, 200, 61, 6, 1, 0, 1, 1,
    1, 2.5)
CASE(AS_CPU, 0, route_as_cpu_random_groups, OM_ROUTE_RANDOM, 0x35324110fa8f1798u, 200, 256, 8, 1,
    1, 8, 4, 2, 2.5)
CASE(AS_CPU, 0, route_as_cpu_uniform, OM_ROUTE_UNIFORM, 0x8f36b32ffec1d16cu, 200, 60, 7, 1, 1, 1,
    1, 1, 2.5)
/* the same, lb zl */
CASE(OM_ROUTE_BWD, ROUTE_BWD, route_bwd_one, 1, 1, 1, 0, 0, 1, 1, 1, 1.0, 0.01, 0.001)
CASE(OM_ROUTE_BWD, ROUTE_BWD, route_bwd_tiny, 12, 8, 2, 0, 0, 1, 1, 1, 1.0, 0.01, 0.001)
CASE(OM_ROUTE_BWD, ROUTE_BWD, route_bwd_odd, 99, 37, 5, 1, 0, 1, 1, 3, 2.5, 0.02, 0.001)
CASE(OM_ROUTE_BWD, ROUTE_BWD, route_bwd_chosen, 70, 60, 4, 0, 2, 1, 1, 2, 1.0, 0.01, 0.001)
CASE(OM_ROUTE_BWD, ROUTE_BWD, route_bwd_sigmoid, 257, 48, 6, 1, 1, 1, 1, 1, 1.0, 0.01, 0.001)
CASE(OM_ROUTE_BWD, ROUTE_BWD, route_bwd_sigmoid_raw, 64, 17, 17, 0, 1, 1, 1, 4, 3.0, 0.01, 0.001)
CASE(OM_ROUTE_BWD, ROUTE_BWD, route_bwd_groups, 130, 24, 3, 1, 1, 6, 2, 2, 2.5, 0.01, 0.001)
CASE(OM_ROUTE_BWD, ROUTE_BWD, route_bwd_512, 40, 512, 512, 0, 2, 1, 1, 2, 1.0, 0.01, 0.001)
RATED(OM_ROUTE_BWD, ROUTE_BWD, 0, 16384.0 * 64 * 8, route_bwd_olmoe, 16384, 64, 8, 0, 0, 1, 1, 4,
    1.0, 0.01, 0.001)
RATED(OM_ROUTE_BWD, ROUTE_BWD, 0, 16384.0 * 128 * 8, route_bwd_qwen3, 16384, 128, 8, 1, 0, 1, 1, 4,
    1.0, 0.01, 0.001)
RATED(OM_ROUTE_BWD, ROUTE_BWD, 0, 8192.0 * 256 * 12, route_bwd_deepseek, 8192, 256, 8, 1, 1, 8, 4,
    2, 2.5, 0.01, 0.001)

/* t e k n: right or wrong; each also with all tokens on the same k experts */
CASE(OM_ROUTE_MAP_FEW, 0, t_route_map_few, 33, 70, 7, 3)
CASE(OM_ROUTE_MAP_FEW, 0, t_route_map_few_one, 1, 64, 8, 1)
CASE(OM_ROUTE_MAP, 0, route_map_one, 1, 1, 1, 1)
CASE(OM_ROUTE_MAP, 0, route_map_tiny, 12, 8, 2, 3)
CASE(OM_ROUTE_MAP, 0, route_map_odd, 1001, 37, 5, 7)
CASE(OM_ROUTE_MAP, 0, route_map_top1, 4099, 60, 1, 1)
CASE(OM_ROUTE_MAP, 0, route_map_all, 640, 96, 96, 2)
CASE(OM_ROUTE_MAP, 0, route_map_512, 2048, 512, 22, 1)
RATED(OM_ROUTE_MAP, 0, 0, 16384.0 * 8 * 12, route_map_olmoe, 16384, 64, 8, 1)
RATED(OM_ROUTE_MAP, 0, 0, 16384.0 * 8 * 12, route_map_olmoe_4, 16384, 64, 8, 4)
RATED(OM_ROUTE_MAP, 0, 0, 131072.0 * 8 * 12, route_map_long, 131072, 128, 8, 1)
