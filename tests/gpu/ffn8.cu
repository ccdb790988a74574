#include "ffn8.h"
#include "glu.h"
#include "ways.h"

#define BF16 4e-3 /* the rounding, 2^-8 of the largest value */

#define FFN(r, e, f, n)                                                          \
	WAYS(OM_GROUPED_GLU_8, BF16, t_grouped_glu_8_##r, r, e, f, n, 0)         \
	WAYS(OM_GROUPED_DX_GLU_8, BF16, t_grouped_dx_glu_8_##r, r, e, n, f, 1)   \
	WAYS(OM_GROUPED_DX_GLU_H_8, BF16, t_grouped_dx_glu_h_8_##r, r, e, n, f, 0) \
	CASE(OM_GROUPED_GLU_ROWS_8, BF16, t_grouped_glu_rows_8_##r, r, e, f, n, 1) \
	CASE(OM_GROUPED_DX_GLU_ROWS_8, BF16, t_grouped_dx_glu_rows_8_##r, r, e, n, f, 0) \
	CASE(OM_GROUPED_DX_GLU_H_ROWS_8, BF16, t_grouped_dx_glu_h_rows_8_##r, r, e, n, f, 1)
FFN(4, 1, 128, 128)
FFN(52, 70, 256, 128)
FFN(1500, 7, 384, 640)
FFN(3000, 16, 128, 384)
FFN(2048, 256, 128, 128)

/* OLMoE-1B-7B at 16,384 tokens */
#define FLOPS 2.0 * 131072 * 1024 * 2048
REAL(OM_GROUPED_GLU_8, BF16, 2 * FLOPS, t_grouped_glu_8, 131072, 64, 1024, 2048, 0)
REAL(OM_GROUPED_DX_GLU_8, BF16, FLOPS, t_grouped_dx_glu_8, 131072, 64, 2048, 1024, 0)
REAL(OM_GROUPED_DX_GLU_H_8, BF16, FLOPS, t_grouped_dx_glu_h_8, 131072, 64, 2048, 1024, 0)

/* The same bits as the ops one by one, on a skewed share of rows; only dp's order differs. */
#define SAME(NAME, r, e, f, n, a)                          \
	OM_GROUPED_GLU_8(NAME##_glu, r, e, f, n, a)        \
	OM_GROUPED_DX_GLU_H_8(NAME##_slope, r, e, n, f, a) \
	OM_GROUPED_8(NAME##_up, r, e, f, n)                \
	OM_GLU_ROUTED(NAME##_act, r, 1, f, a)              \
	OM_GLU_ROUTED_BWD(NAME##_back, r, 1, f, a)         \
	OM_QUANTISE_ROUTED(NAME##_q, r, f, 128, 0, 10)
SAME(t_ffn8_same, 3004, 9, 384, 256, 0)
#ifndef __CUDACC__
static double
same_bits(uint64_t seed)
{
	enum { R = 3004, E = 9, F = 384, N = 256, BYTES = R * F * 2, SCALES = R * F / 128 * 4 };
	int32_t off[E + 1], *src = om_glu_src(R, seed), *d_src = om_check_copy(src, R * 4);
	const struct om_grouped8_case x = { R, E, F, N, 1, off, om_ffn8_down(N, 2) };
	float *p = om_check_f32(R, seed, 2, 1), *dp = om_check_nan(R * 4);
	om_bf16 *one[6], *fused[6];
	om_e4m3 *oneq[3], *fusedq[3];
	float *ones[3], *fuseds[3];
	void *ws = om_check_nan(OM_FFN_TILES(F) * R * 4);
	bool same = true;

	om_gemm_share(off, R, E, OM_SHARE_SKEWED, seed);
	const struct om_grouped8_arrays v = om_grouped8_fill(&x, 2, seed);
	for (int i = 0; i < 6; i++) {
		one[i] = om_check_nan(BYTES);
		fused[i] = om_check_nan(BYTES);
	}
	for (int i = 0; i < 3; i++) {
		oneq[i] = om_check_nan(BYTES / 2), fusedq[i] = om_check_nan(BYTES / 2);
		ones[i] = om_check_nan(SCALES), fuseds[i] = om_check_nan(SCALES);
	}
	t_ffn8_same_up(v.a[0], v.sa[0], v.w[0], v.sw[0], v.off, one[0]);
	t_ffn8_same_up(v.a[0], v.sa[0], v.w[1], v.sw[1], v.off, one[1]);
	t_ffn8_same_act(one[0], one[1], p, d_src, one[2]);
	t_ffn8_same_q(one[2], v.off, oneq[0], ones[0]);
	/* dh: the same product once more */
	t_ffn8_same_back(one[0], one[0], one[1], p, d_src, one[4], one[5], dp);
	t_ffn8_same_q(one[4], v.off, oneq[1], ones[1]);
	t_ffn8_same_q(one[5], v.off, oneq[2], ones[2]);
	t_ffn8_same_glu(v.a[0], v.sa[0], v.w[0], v.sw[0], v.w[1], v.sw[1], v.off, p, d_src,
	    fused[0], fused[1], fusedq[0], fuseds[0]);
	t_ffn8_same_slope(v.a[0], v.sa[0], v.w[0], v.sw[0], v.off, fused[0], fused[1], p, d_src,
	    fused[2], fused[4], fused[5], dp, fusedq[1], fuseds[1], fusedq[2], fuseds[2], ws);
	for (int i = 0; i < 6; i++)
		same &= i == 3 || om_ffn_same(one[i], fused[i], BYTES, 0);
	for (int i = 0; i < 3; i++)
		same &= om_ffn_same(oneq[i], fusedq[i], BYTES / 2, 0) &&
			om_ffn_same(ones[i], fuseds[i], SCALES, 0);
	om_check_end();
	free(src);
	return same ? 0 : OM_WRONG;
}
__attribute__((constructor)) static void
same_case(void)
{
	static struct test_case c = { "t_ffn8_same_bits", same_bits, 0, 0, 0, 0 };
	case_add(&c);
}
#endif
