#include "ffn.h"
#include "glu.h"
#include "ways.h"

#define BF16 4e-3 /* the rounding, 2^-8 of the largest value */

#define FFN(r, e, f, n)                                                               \
	WAYS(OM_GROUPED_GLU, BF16, t_grouped_glu_##r, r, e, f, n, 0)                  \
	WAYS(OM_GROUPED_DX_GLU, BF16, t_grouped_dx_glu_##r, r, e, n, f, 1)            \
	WAYS(OM_GROUPED_DX_GLU_H, BF16, t_grouped_dx_glu_h_##r, r, e, n, f, 0)        \
	CASE(OM_GROUPED_GLU_ROWS, BF16, t_grouped_glu_rows_##r, r, e, f, n, 1)        \
	CASE(OM_GROUPED_DX_GLU_ROWS, BF16, t_grouped_dx_glu_rows_##r, r, e, n, f, 0)  \
	CASE(OM_GROUPED_DX_GLU_H_ROWS, BF16, t_grouped_dx_glu_h_rows_##r, r, e, n, f, 1) \
	CASE(OM_LINEAR_GLU, BF16, t_linear_glu_##r, r, f, n, 1)                       \
	CASE(OM_LINEAR_DX_GLU, BF16, t_linear_dx_glu_##r, r, n, f, 0)                 \
	CASE(OM_LINEAR_DX_GLU_H, BF16, t_linear_dx_glu_h_##r, r, n, f, 1)
FFN(1, 1, 8, 8)
FFN(50, 70, 48, 56)
FFN(1501, 7, 136, 72)
FFN(3000, 16, 328, 264)
FFN(2999, 3, 1032, 128)

/* OLMoE-1B-7B at 16,384 tokens; its FFN as a dense one */
#define FLOPS 2.0 * 131072 * 1024 * 2048
REAL(OM_GROUPED_GLU, BF16, 2 * FLOPS, t_grouped_glu, 131072, 64, 1024, 2048, 0)
REAL(OM_GROUPED_DX_GLU, BF16, FLOPS, t_grouped_dx_glu, 131072, 64, 2048, 1024, 0)
REAL(OM_GROUPED_DX_GLU_H, BF16, FLOPS, t_grouped_dx_glu_h, 131072, 64, 2048, 1024, 0)
REAL(OM_GROUPED_GLU, BF16, 2 * FLOPS, t_grouped_geglu, 131072, 64, 1024, 2048, 1)
RATED(OM_LINEAR_GLU, BF16, 4.0 * 16384 * 5632 * 2048, 0, t_linear_glu, 16384, 5632, 2048, 0)
RATED(OM_LINEAR_DX_GLU_H, BF16, 2.0 * 16384 * 5632 * 2048, 0, t_linear_dx_glu_h, 16384, 2048, 5632,
    0)

/*
 * The same bits as the ops one by one, on a skewed share of rows, all of g, u, h, dg and du: dp's
 * sum alone has another order.
 */
#define SAME(NAME, r, e, f, n, a)                        \
	OM_GROUPED_GLU(NAME##_glu, r, e, f, n, a)        \
	OM_GROUPED_DX_GLU_H(NAME##_slope, r, e, n, f, a) \
	OM_GROUPED(NAME##_up, r, e, f, n)                \
	OM_GROUPED_DX(NAME##_dx, r, e, n, f)             \
	OM_GLU_ROUTED(NAME##_act, r, 1, f, a)            \
	OM_GLU_ROUTED_BWD(NAME##_back, r, 1, f, a)
SAME(t_ffn_same, 3001, 9, 392, 264, 0)
#ifndef __CUDACC__
static double
same_bits(uint64_t seed)
{
	enum { R = 3001, E = 9, F = 392, N = 264, BYTES = R * F * 2 };
	int32_t off[E + 1], *src = om_glu_src(R, seed), *d_src = om_check_copy(src, R * 4);
	om_bf16 *x = om_check_bf16(R * N, seed, 0, 1);
	om_bf16 *w = om_check_bf16(2 * E * F * N, seed, 1, 0.25f);
	float *p = om_check_f32(R, seed, 2, 1), *dp = om_check_nan(R * 4);
	om_bf16 *one[6], *fused[6];
	void *ws = om_check_nan(OM_FFN_TILES(F) * R * 4);
	bool same = true;

	om_gemm_share(off, R, E, OM_SHARE_SKEWED, seed);
	int32_t *d_off = om_check_copy(off, sizeof off);
	for (int i = 0; i < 6; i++) {
		one[i] = om_check_nan(BYTES);
		fused[i] = om_check_nan(BYTES);
	}
	t_ffn_same_up(x, w, d_off, one[0]);
	t_ffn_same_up(x, w + E * F * N, d_off, one[1]);
	t_ffn_same_act(one[0], one[1], p, d_src, one[2]);
	t_ffn_same_dx(x, w, d_off, one[3]);
	t_ffn_same_back(one[3], one[0], one[1], p, d_src, one[4], one[5], dp);
	t_ffn_same_glu(x, w, d_off, p, d_src, fused[0], fused[1], fused[2]);
	t_ffn_same_slope(x, w, d_off, fused[0], fused[1], p, d_src, fused[3], fused[4], fused[5],
	    dp, ws);
	for (int i = 0; i < 6; i++)
		same &= om_ffn_same(one[i == 3 ? 2 : i], fused[i], BYTES, 0);
	om_check_end();
	free(src);
	return same ? 0 : OM_WRONG;
}
__attribute__((constructor)) static void
same_case(void)
{
	static struct test_case c = { "t_ffn_same_bits", same_bits, 0, 0, 0, 0 };
	case_add(&c);
}
#endif
