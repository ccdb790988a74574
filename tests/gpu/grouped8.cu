#include "grouped8.h"
#include "ways.h"

#define BF16 4e-3 /* the rounding, 2^-8 of the largest value */

WAYS(OM_GROUPED_8, BF16, t_grouped_8_one, 4, 1, 128, 128)
WAYS(OM_GROUPED_8, BF16, t_grouped_8_few, 52, 70, 128, 256)
WAYS(OM_GROUPED_8, BF16, t_grouped_8_odd, 1500, 7, 384, 128)
WAYS(OM_GROUPED_8, BF16, t_grouped_8_mid, 3000, 16, 640, 4352)
WAYS(OM_GROUPED_DX_8, BF16, t_grouped_dx_8_odd, 1500, 7, 128, 384)
WAYS(OM_GROUPED_2_8, BF16, t_grouped_2_8_few, 52, 70, 256, 128)
WAYS(OM_GROUPED_2_8, BF16, t_grouped_2_8_odd, 1500, 7, 384, 256)
WAYS(OM_GROUPED_DX_2_8, BF16, t_grouped_dx_2_8_few, 52, 70, 128, 256)
WAYS(OM_GROUPED_DX_2_8, BF16, t_grouped_dx_2_8_odd, 1500, 7, 384, 128)
WAYS(OM_GROUPED_DX_2_8, BF16, t_grouped_dx_2_8_mid, 3000, 16, 2176, 640)

/* OLMoE-1B-7B at 16,384 tokens: gate and up [2 x 1024, 2048], down [2048, 1024] */
#define FLOPS 2.0 * 131072 * 1024 * 2048
REAL(OM_GROUPED_8, BF16, 2 * FLOPS, t_grouped_8_up, 131072, 64, 2048, 2048)
REAL(OM_GROUPED_2_8, BF16, 2 * FLOPS, t_grouped_2_8_up, 131072, 64, 1024, 2048)
REAL(OM_GROUPED_8, BF16, FLOPS, t_grouped_8_down, 131072, 64, 2048, 1024)
REAL(OM_GROUPED_DX_8, BF16, FLOPS, t_grouped_dx_8_down, 131072, 64, 2048, 1024)
REAL(OM_GROUPED_DX_2_8, BF16, 2 * FLOPS, t_grouped_dx_2_8_up, 131072, 64, 1024, 2048)
