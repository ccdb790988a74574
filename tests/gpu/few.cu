#include "few.h"

#include "ways.h"

/* As in linear.cu: a bf16 rounds once, float sums are in fp32. */
#define BF16 4e-3
#define F32 1e-4

CASE(OM_FEW, BF16, t_few_tiny, 1, 8, 8)
CASE(OM_FEW, BF16, t_few_odd, 7, 48, 56)
CASE(OM_FEW, BF16, t_few_more, 61, 136, 1064)
CASE(OM_FEW, BF16, t_few_long, 3, 40, 11000)
CASE(OM_FEW_F32, F32, t_few_f32, 9, 50, 520)
CASE(OM_FEW_3, BF16, t_few_3, 5, 48, 8, 136, 56)
CASE(OM_FEW_GLU, 2 * BF16, t_few_glu, 17, 72, 264, 0)
CASE(OM_FEW_GLU, 2 * BF16, t_few_glu_gelu, 2, 264, 2056, 1)
WAYS(OM_FEW_GROUPED, BF16, t_few_grouped_one, 1, 1, 8, 8)
WAYS(OM_FEW_GROUPED, BF16, t_few_grouped, 50, 70, 48, 56)
WAYS(OM_FEW_GROUPED, BF16, t_few_grouped_more, 400, 7, 136, 520)
WAYS(OM_FEW_GROUPED_GLU, 2 * BF16, t_few_grouped_glu, 50, 70, 48, 56, 0)
WAYS(OM_FEW_GROUPED_GLU, 2 * BF16, t_few_grouped_glu_more, 400, 7, 136, 2056, 1)

/* OLMoE-1B-7B, 1 and 32 rows; bytes are those of w */
#define OF(rows, n, k) 2.0 * (rows) * (n) * (k)
RATED(OM_FEW_3, BF16, 0, OF(1, 6144, 2048), t_few_qkv, 1, 2048, 2048, 2048, 2048)
RATED(OM_FEW_3, BF16, 0, OF(1, 6144, 2048), t_few_qkv_32, 32, 2048, 2048, 2048, 2048)
RATED(OM_FEW, BF16, 0, OF(1, 2048, 2048), t_few_o, 1, 2048, 2048)
RATED(OM_FEW_F32, F32, 0, OF(1, 64, 2048), t_few_gate, 1, 64, 2048)
RATED(OM_FEW_F32, F32, 0, OF(1, 50304, 2048), t_few_head, 1, 50304, 2048)
RATED(OM_FEW_F32, F32, 0, OF(1, 50304, 2048), t_few_head_32, 32, 50304, 2048)
RATED(OM_FEW_GROUPED_GLU, 2 * BF16, 0, OF(8, 2048, 2048), t_few_up, 8, 64, 1024, 2048, 0)
RATED(OM_FEW_GROUPED_GLU, 2 * BF16, 0, OF(64, 2048, 2048), t_few_up_32, 256, 64, 1024, 2048, 0)
RATED(OM_FEW_GROUPED, BF16, 0, OF(8, 2048, 1024), t_few_down, 8, 64, 2048, 1024)
RATED(OM_FEW_GROUPED, BF16, 0, OF(64, 2048, 1024), t_few_down_32, 256, 64, 2048, 1024)
