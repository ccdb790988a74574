#include "dispatch.h"

#include "add.h"
#include "case.h"

/*
 * dispatch copies: exact. combine adds in float and rounds once, at most 2^-8 of the sum;
 * combine_add twice, and gives the bits of combine and add one after the other.
 */
#define DISPATCH(t, k, n)                                                \
	CASE(OM_DISPATCH, 0, dispatch_##t##_##k##_##n, t, k, n)          \
	CASE(OM_COMBINE, 4e-3, combine_##t##_##k##_##n, t, k, n)         \
	CASE(OM_COMBINE_ADD, 8e-3, combine_add_##t##_##k##_##n, t, k, n) \
	CASE(SAME, 0, combine_same_##t##_##k##_##n, t, k, n)
#define SAME(NAME, t, k, n)                   \
	OM_COMBINE(NAME##_combine, t, k, n)   \
	OM_ADD(NAME##_add, t, n)              \
	OM_COMBINE_ADD(NAME##_fused, t, k, n) \
	SAME_CHECK(NAME, t, k, n)
#ifdef __CUDACC__
#define SAME_CHECK(...)
#else
#define SAME_CHECK(NAME, t, k, n)                                                     \
	double NAME##_check(uint64_t seed)                                            \
	{                                                                             \
		return same(NAME##_combine, NAME##_add, NAME##_fused, t, k, n, seed); \
	}

static double
same(om_dispatch_fn *combine, void (*add)(const om_bf16 *, const om_bf16 *, om_bf16 *),
    om_combine_add_fn *fused, int64_t t, int64_t k, int64_t n, uint64_t seed)
{
	const size_t bytes = (size_t)(t * n) * sizeof(om_bf16);
	int32_t *row = malloc((size_t)(t * k) * sizeof *row),
		*src = malloc((size_t)(t * k) * sizeof *src);
	om_dispatch_order(t * k, seed, row, src);
	const int32_t *drow = om_check_copy(row, (size_t)(t * k) * sizeof *row);
	const om_bf16 *y = om_check_bf16(t * k * n, seed, 1, 1);
	const om_bf16 *other = om_check_bf16(t * n, seed, 2, 1);
	om_bf16 *sum = om_check_nan(bytes), *x = om_check_nan(bytes);
	fused(y, drow, NULL, other, sum);
	combine(y, drow, NULL, x);
	add(x, other, x);
	const double e = case_same(sum, x, bytes);
	om_check_end();
	free(row);
	free(src);
	return e;
}
#endif

DISPATCH(1, 1, 8)
DISPATCH(7, 3, 24)
DISPATCH(67, 1, 40)
DISPATCH(100, 8, 264)
DISPATCH(333, 11, 520)
DISPATCH(65, 64, 128)
DISPATCH(1001, 2, 2056)
RATED(OM_DISPATCH, 0, 0, 9.0 * 2 * 16384 * 2048, dispatch_16384_8_2048, 16384, 8, 2048)
RATED(OM_COMBINE, 4e-3, 0, 9.0 * 2 * 16384 * 2048, combine_16384_8_2048, 16384, 8, 2048)
RATED(OM_COMBINE_ADD, 8e-3, 0, 10.0 * 2 * 16384 * 2048, combine_add_16384_8_2048, 16384, 8, 2048)
