/*
 * The backward kernels against finite differences, in double: for every gradient rule of op.def,
 * central differences of a random linear functional of the op's outputs, for every element of every
 * input, at small odd sizes. Argument: the first of SEEDS seeds; without one, the time.
 *
 * Tolerance: with steps of 2^-14 the differences err by about 1e-9 of their scale; 1e-6 is asked
 * for.
 */
#define OM_REAL double
#include <stdio.h>
#include <time.h>

#include "add.h"
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

enum { SEEDS = 3, MOST = 4096 };

static uint64_t seed;
static int passed, failed;

/* Inputs, outputs, the functional's coefficients (dy), gradients and statistics of the op. */
static double in0[MOST], in1[MOST], in2[MOST], out0[MOST], co0[MOST];
static double g0[MOST], g1[MOST], g2[MOST], stat[MOST], prob[MOST], ws[MOST];
static int32_t ints0[MOST], ints1[MOST], counts[MOST];

static void
fill(double *p, int stream)
{
	for (uint64_t i = 0; i < MOST; i++)
		p[i] = om_unit(om_hash(seed, (uint64_t)stream), i);
}

/* New random inputs and coefficients; NaN everywhere else. */
static void
begin(void)
{
	fill(in0, 0);
	fill(in1, 1);
	fill(in2, 2);
	fill(co0, 3);
	for (int i = 0; i < MOST; i++) {
		out0[i] = stat[i] = prob[i] = ws[i] = NAN;
		g0[i] = g1[i] = g2[i] = NAN;
	}
}

/* A gradient that its kernel adds to. */
static double *
sum(double *g)
{
	return memset(g, 0, MOST * sizeof *g);
}

static double
functional(int64_t n)
{
	double f = 0;
	for (int64_t i = 0; i < n; i++)
		f += co0[i] * out0[i];
	return f;
}

/* f depends on x [n]; grad is what the kernels say about it. */
static void
compare(const char *name, double (*f)(void), double *x, const double *grad, int64_t n)
{
	const double step = 0x1p-14;
	double diff = 0, scale = 0;
	for (int64_t i = 0; i < n; i++) {
		double was = x[i];
		x[i] = was + step;
		double up = f();
		x[i] = was - step;
		double down = f();
		x[i] = was;
		double want = (up - down) / (2 * step), d = fabs(grad[i] - want);
		diff = d <= diff ? diff : d == d ? d : OM_WRONG; /* a NaN stays */
		scale = fmax(scale, fabs(want));
	}
	bool right = diff <= 1e-6 * scale;
	passed += right;
	failed += !right;
	if (!right)
		printf("FAIL %s seed %llu error %g of %g\n", name, (unsigned long long)seed, diff,
		    scale);
}

OM_LINEAR(linear, 7, 5, 13)
OM_LINEAR_DX(linear_dx, 7, 5, 13)
OM_LINEAR_DW(linear_dw, 7, 5, 13)

static double
linear_f(void)
{
	linear(in0, in1, out0);
	return functional(7 * 5);
}

static void
test_linear(void) /* and gate, whose kernels these are */
{
	begin();
	linear_dx(co0, in1, g0);
	linear_dw(co0, in0, sum(g1));
	compare("linear x", linear_f, in0, g0, 7 * 13);
	compare("linear w", linear_f, in1, g1, 5 * 13);
}

OM_GROUPED(grouped, 19, 5, 3, 7)
OM_GROUPED_DX(grouped_dx, 19, 5, 3, 7)
OM_GROUPED_DW(grouped_dw, 19, 5, 3, 7)

static double
grouped_f(void)
{
	grouped(in0, in1, ints0, out0);
	return functional(ints0[5] * 3);
}

static void
test_grouped(void)
{
	begin();
	int32_t *off = om_grouped_offsets(19, 5, seed | 1);
	memcpy(ints0, off, 6 * sizeof *off);
	free(off);
	grouped_dx(co0, in1, ints0, g0);
	grouped_dw(co0, in0, ints0, sum(g1));
	compare("grouped x", grouped_f, in0, g0, 19 * 7);
	compare("grouped w", grouped_f, in1, g1, 5 * 3 * 7);
}

OM_EMBED(embed, 13, 7, 5)
OM_EMBED_BWD(embed_bwd, 13, 7, 5)

static double
embed_f(void)
{
	embed(ints0, in0, out0);
	return functional(13 * 7);
}

static void
test_embed(void)
{
	begin();
	for (int i = 0; i < 13; i++)
		ints0[i] = (int32_t)(om_hash(seed, (uint64_t)i) % 5);
	embed_bwd(co0, ints0, sum(g0));
	compare("embed w", embed_f, in0, g0, 5 * 7);
}

OM_HEAD_LOSS(head_loss, 13, 5, 11, 4, 0.3)
OM_HEAD_LOSS_BWD(head_loss_bwd, 13, 5, 11, 4, 0.3)
OM_HEAD_LOSS_GRAD(head_loss_grad, 13, 5, 11, 4, 0.3)

static double
head_f(void)
{
	double loss = 0;
	head_loss(in0, in1, ints0, stat, &loss, ws);
	return loss;
}

static void
test_head(void)
{
	double loss = 0;
	begin();
	for (int i = 0; i < 13; i++) /* 11: masked */
		ints0[i] = (int32_t)(om_hash(seed, (uint64_t)i) % 12);
	head_f();
	head_loss_bwd(in0, in1, ints0, stat, g0, sum(g1), ws);
	compare("head_loss x", head_f, in0, g0, 13 * 5);
	compare("head_loss w", head_f, in1, g1, 11 * 5);
	head_loss_grad(in0, in1, ints0, &loss, g0, sum(g1), ws);
	compare("head_loss_grad x", head_f, in0, g0, 13 * 5);
	compare("head_loss_grad w", head_f, in1, g1, 11 * 5);
}

OM_RMSNORM(rmsnorm, 7, 3, 5, 1e-2)
OM_RMSNORM_BWD(rmsnorm_bwd, 7, 3, 5, 4)

static double
rmsnorm_f(void)
{
	rmsnorm(in0, in1, out0, stat);
	return functional(7 * 3 * 5);
}

static void
test_rmsnorm(void)
{
	begin();
	rmsnorm_f();
	rmsnorm_bwd(co0, in0, in1, stat, g0, sum(g1), ws);
	compare("rmsnorm x", rmsnorm_f, in0, g0, 7 * 3 * 5);
	compare("rmsnorm w", rmsnorm_f, in1, g1, 5);
}

OM_ADD(add, 7, 5)

static double
add_f(void)
{
	add(in0, in1, out0);
	return functional(7 * 5);
}

static void
test_add(void)
{
	begin();
	compare("add a", add_f, in0, co0, 7 * 5);
	compare("add b", add_f, in1, co0, 7 * 5);
}

OM_ROPE_TABLE(rope_table, 5, 6, 100.0)
OM_ROPE(rope, 2, 5, 3, 6)
OM_ROPE_BWD(rope_bwd, 2, 5, 3, 6)

static double
rope_f(void)
{
	rope(in0, stat, out0);
	return functional(2 * 5 * 3 * 6);
}

static void
test_rope(void)
{
	begin();
	rope_table(stat);
	rope_bwd(co0, stat, g0);
	compare("rope x", rope_f, in0, g0, 2 * 5 * 3 * 6);
}

/* The first spans tiles, the second has a group of three heads. */
OM_ATTENTION(attention_long, 1, 131, 2, 1, 3, 0.6)
OM_ATTENTION_BWD(attention_long_bwd, 1, 131, 2, 1, 3, 0.6)
OM_ATTENTION(attention_group, 2, 7, 6, 2, 5, 0.4)
OM_ATTENTION_BWD(attention_group_bwd, 2, 7, 6, 2, 5, 0.4)

static double
attention_long_f(void)
{
	attention_long(in0, in1, in2, out0, stat);
	return functional(131 * 2 * 3);
}

static double
attention_group_f(void)
{
	attention_group(in0, in1, in2, out0, stat);
	return functional(2 * 7 * 6 * 5);
}

static void
test_attention(void)
{
	begin();
	attention_long_f();
	attention_long_bwd(co0, in0, in1, in2, out0, stat, g0, g1, g2, ws);
	compare("attention q", attention_long_f, in0, g0, 131 * 2 * 3);
	compare("attention k", attention_long_f, in1, g1, 131 * 3);
	compare("attention v", attention_long_f, in2, g2, 131 * 3);
	begin();
	attention_group_f();
	attention_group_bwd(co0, in0, in1, in2, out0, stat, g0, g1, g2, ws);
	compare("attention, groups, q", attention_group_f, in0, g0, 2 * 7 * 6 * 5);
	compare("attention, groups, k", attention_group_f, in1, g1, 2 * 7 * 2 * 5);
	compare("attention, groups, v", attention_group_f, in2, g2, 2 * 7 * 2 * 5);
}

OM_SWIGLU(swiglu, 7, 13)
OM_SWIGLU_BWD(swiglu_bwd, 7, 13)

static double
swiglu_f(void)
{
	swiglu(in0, in1, out0);
	return functional(7 * 13);
}

static void
test_swiglu(void)
{
	begin();
	swiglu_bwd(co0, in0, in1, g0, g1);
	compare("swiglu g", swiglu_f, in0, g0, 7 * 13);
	compare("swiglu u", swiglu_f, in1, g1, 7 * 13);
}

OM_SWIGLU_ROUTED(swiglu_routed, 5, 3, 7)
OM_SWIGLU_ROUTED_BWD(swiglu_routed_bwd, 5, 3, 7)

static double
swiglu_routed_f(void)
{
	swiglu_routed(in0, in1, in2, ints0, out0);
	return functional(15 * 7);
}

static void
test_swiglu_routed(void)
{
	begin();
	int32_t *src = om_swiglu_src(15, seed);
	memcpy(ints0, src, 15 * sizeof *src);
	free(src);
	swiglu_routed_bwd(co0, in0, in1, in2, ints0, g0, g1, g2);
	compare("swiglu_routed g", swiglu_routed_f, in0, g0, 15 * 7);
	compare("swiglu_routed u", swiglu_routed_f, in1, g1, 15 * 7);
	compare("swiglu_routed p", swiglu_routed_f, in2, g2, 15);
}

OM_DISPATCH(dispatch, 5, 3, 7)
OM_COMBINE(combine, 5, 3, 7)

static double
dispatch_f(void)
{
	dispatch(in0, ints0, ints1, out0);
	return functional(15 * 7);
}

static double
combine_f(void)
{
	combine(in0, ints0, ints1, out0);
	return functional(5 * 7);
}

static void
test_dispatch(void)
{
	int32_t *row, *src;
	begin();
	om_dispatch_order(15, seed, &row, &src);
	memcpy(ints0, row, 15 * sizeof *row);
	memcpy(ints1, src, 15 * sizeof *src);
	free(row);
	free(src);
	combine(co0, ints0, ints1, g0);
	compare("dispatch x", dispatch_f, in0, g0, 5 * 7);
	dispatch(co0, ints0, ints1, g0);
	compare("combine y", combine_f, in0, g0, 15 * 7);
}

/* route: the functional is that of p, plus lb aux[0] and zl aux[1], both of a size with it. */
OM_ROUTE(route_plain, 9, 7, 3, 0)
OM_ROUTE_BWD(route_plain_bwd, 9, 7, 3, 0, 1.5, 0.25)
OM_ROUTE(route_norm, 9, 7, 3, 1)
OM_ROUTE_BWD(route_norm_bwd, 9, 7, 3, 1, 1.5, 0.25)
OM_ROUTE(route_all, 5, 4, 4, 1)
OM_ROUTE_BWD(route_all_bwd, 5, 4, 4, 1, 1.5, 0.25)

static om_route_fn *route;
static int64_t route_chosen;

static double
route_f(void)
{
	int64_t load[16] = { 0 };
	double aux[2] = { 0 };
	route(in0, out0, ints0, prob, stat, counts, load, aux);
	return functional(route_chosen) + 1.5 * aux[0] + 0.25 * aux[1];
}

static void
test_route(const char *name, om_route_fn *fwd, om_route_bwd_fn *bwd, int t, int e, int k)
{
	begin();
	route = fwd;
	route_chosen = t * k;
	/*
	 * A token's scores are a permutation of levels 0.3 apart, moved by less than 0.1: no step
	 * changes the choice, and f stays as it is.
	 */
	for (int i = 0; i < t; i++) {
		for (int c = 0; c < e; c++) {
			int level = 0;
			for (int o = 0; o < e; o++)
				level += in1[i * e + o] < in1[i * e + c];
			in0[i * e + c] = 0.3 * level + 0.05 * om_unit(seed, (uint64_t)(i * e + c));
		}
	}
	route_f();
	bwd(co0, ints0, prob, stat, counts, g0);
	compare(name, route_f, in0, g0, t * e);
}

int
main(int argc, char **argv)
{
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
	omp_set_num_threads(1); /* kernel_check shows that it makes no difference */
	for (seed = first; seed < first + SEEDS; seed++) {
		test_linear();
		test_grouped();
		test_embed();
		test_head();
		test_rmsnorm();
		test_add();
		test_rope();
		test_attention();
		test_swiglu();
		test_swiglu_routed();
		test_dispatch();
		test_route("route z", route_plain, route_plain_bwd, 9, 7, 3);
		test_route("route z, normalized", route_norm, route_norm_bwd, 9, 7, 3);
		test_route("route z, all experts", route_all, route_all_bwd, 5, 4, 4);
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed > 0;
}
