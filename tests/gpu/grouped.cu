#include "ways.h"

#define BF16 4e-3 /* the rounding, 2^-8 of the largest value */
#define F32 1e-4  /* sums in fp32, which wgmma truncates at each step of 16 */

WAYS(OM_GROUPED, BF16, t_grouped_one, 1, 1, 8, 8)
WAYS(OM_GROUPED, BF16, t_grouped_few, 50, 70, 48, 56)
WAYS(OM_GROUPED, BF16, t_grouped_odd, 1501, 7, 136, 72)
WAYS(OM_GROUPED, BF16, t_grouped_mid, 3000, 16, 328, 264)
WAYS(OM_GROUPED_DX_2, BF16, t_grouped_dx_2_one, 1, 1, 8, 8)
WAYS(OM_GROUPED_DX_2, BF16, t_grouped_dx_2_few, 50, 70, 48, 56)
WAYS(OM_GROUPED_DX_2, BF16, t_grouped_dx_2_odd, 1501, 7, 72, 136)
WAYS(OM_GROUPED_DX_2, BF16, t_grouped_dx_2_mid, 3000, 16, 328, 264)
WAYS(OM_GROUPED_DX, BF16, t_grouped_dx_one, 1, 1, 8, 8)
WAYS(OM_GROUPED_DX, BF16, t_grouped_dx_few, 50, 70, 48, 56)
WAYS(OM_GROUPED_DX, BF16, t_grouped_dx_odd, 1501, 7, 72, 136)
WAYS(OM_GROUPED_DX, BF16, t_grouped_dx_mid, 3000, 16, 328, 264)
WAYS(OM_GROUPED_DW, F32, t_grouped_dw_one, 1, 1, 8, 8, 1)
WAYS(OM_GROUPED_DW, F32, t_grouped_dw_one_store, 1, 1, 8, 8, 0)
WAYS(OM_GROUPED_DW, F32, t_grouped_dw_few, 50, 70, 48, 56, 1)
WAYS(OM_GROUPED_DW, F32, t_grouped_dw_few_store, 50, 70, 48, 56, 0)
WAYS(OM_GROUPED_DW, F32, t_grouped_dw_odd, 1501, 7, 136, 72, 1)
WAYS(OM_GROUPED_DW, F32, t_grouped_dw_odd_store, 1501, 7, 136, 72, 0)
WAYS(OM_GROUPED_DW, F32, t_grouped_dw_mid, 3000, 16, 328, 264, 1)
WAYS(OM_GROUPED_DW, F32, t_grouped_dw_mid_store, 3000, 16, 328, 264, 0)

/* OLMoE-1B-7B at 16,384 tokens: up and gate [1024, 2048], down [2048, 1024] */
#define FLOPS 2.0 * 131072 * 1024 * 2048
REAL(OM_GROUPED, BF16, FLOPS, t_grouped_up, 131072, 64, 1024, 2048)
REAL(OM_GROUPED, BF16, FLOPS, t_grouped_down, 131072, 64, 2048, 1024)
REAL(OM_GROUPED_DX_2, BF16, 2 * FLOPS, t_grouped_dx_2_up, 131072, 64, 1024, 2048)
REAL(OM_GROUPED_DX, BF16, FLOPS, t_grouped_dx_up, 131072, 64, 1024, 2048)
REAL(OM_GROUPED_DX, BF16, FLOPS, t_grouped_dx_down, 131072, 64, 2048, 1024)
REAL(OM_GROUPED_DW, 2 * F32, FLOPS, t_grouped_dw_up, 131072, 64, 1024, 2048, 1)
REAL(OM_GROUPED_DW, 2 * F32, FLOPS, t_grouped_dw_down, 131072, 64, 2048, 1024, 1)
REAL(OM_GROUPED_DW, 2 * F32, FLOPS, t_grouped_dw_up_store, 131072, 64, 1024, 2048, 0)
