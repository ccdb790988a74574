#include "linear.h"
#include "case.h"

/*
 * A bf16 result is wrong by at most 2^-8 of the largest value, its rounding. Float results are sums
 * in fp32, which wgmma truncates at each step of 16.
 */
#define BF16 4e-3
#define F32 1e-4

CASE(OM_LINEAR, BF16, t_linear_tiny, 1, 8, 8)
CASE(OM_LINEAR, BF16, t_linear_odd, 66, 48, 56)
CASE(OM_LINEAR, BF16, t_linear_edge, 257, 264, 72)
CASE(OM_LINEAR, BF16, t_linear_tall, 5000, 136, 520)
CASE(OM_LINEAR, BF16, t_linear_wide, 200, 5000, 320)
CASE(OM_LINEAR_F32, F32, t_linear_f32_odd, 66, 50, 56)
CASE(OM_LINEAR_F32, F32, t_linear_f32_edge, 300, 516, 104)
CASE(OM_LINEAR_DX, BF16, t_linear_dx_tiny, 1, 8, 8)
CASE(OM_LINEAR_DX, BF16, t_linear_dx_odd, 66, 48, 56)
CASE(OM_LINEAR_DX, BF16, t_linear_dx_edge, 257, 72, 264)
CASE(OM_LINEAR_DX, BF16, t_linear_dx_tall, 5000, 520, 200)
CASE(OM_LINEAR_DW, F32, t_linear_dw_tiny, 1, 8, 8, 1)
CASE(OM_LINEAR_DW, F32, t_linear_dw_tiny_store, 1, 8, 8, 0)
CASE(OM_LINEAR_DW, F32, t_linear_dw_odd, 66, 48, 56, 1)
CASE(OM_LINEAR_DW, F32, t_linear_dw_odd_store, 66, 48, 56, 0)
CASE(OM_LINEAR_DW, F32, t_linear_dw_edge, 257, 264, 328, 1)
CASE(OM_LINEAR_DW, F32, t_linear_dw_edge_store, 257, 264, 328, 0)
CASE(OM_LINEAR_DW, F32, t_linear_dw_parts, 3001, 136, 264, 1)
CASE(OM_LINEAR_DW, F32, t_linear_dw_parts_store, 3001, 136, 264, 0)
CASE(OM_GATE, F32, t_gate_one, 100, 1, 64)
CASE(OM_GATE, F32, t_gate_odd, 333, 13, 136)
CASE(OM_GATE, F32, t_gate_many, 333, 500, 264)
CASE(OM_GATE_DX, BF16, t_gate_dx_one, 100, 1, 64)
CASE(OM_GATE_DX, BF16, t_gate_dx_odd, 333, 13, 136)
CASE(OM_GATE_DX, BF16, t_gate_dx_many, 333, 501, 264)
CASE(OM_GATE_DW, F32, t_gate_dw_one, 100, 1, 64, 1)
CASE(OM_GATE_DW, F32, t_gate_dw_one_store, 100, 1, 64, 0)
CASE(OM_GATE_DW, F32, t_gate_dw_odd, 1533, 13, 136, 1)
CASE(OM_GATE_DW, F32, t_gate_dw_odd_store, 1533, 13, 136, 0)
CASE(OM_GATE_DW, F32, t_gate_dw_many, 333, 501, 264, 1)
CASE(OM_GATE_DW, F32, t_gate_dw_many_store, 333, 501, 264, 0)

/* OLMoE-1B-7B at 16,384 tokens: projections, gate, head in chunks */
#define PRODUCT(m, n, k) 2.0 * (m) * (n) * (k)
RATED(OM_LINEAR, BF16, PRODUCT(16384, 2048, 2048), 0, t_linear, 16384, 2048, 2048)
RATED(OM_LINEAR_DX, BF16, PRODUCT(16384, 2048, 2048), 0, t_linear_dx, 16384, 2048, 2048)
RATED(OM_LINEAR_DW, 2 * F32, PRODUCT(16384, 2048, 2048), 0, t_linear_dw, 16384, 2048, 2048, 1)
RATED(OM_LINEAR_DW, 2 * F32, PRODUCT(16384, 2048, 2048), 0, t_linear_dw_store, 16384, 2048, 2048, 0)
RATED(OM_LINEAR_DW, 2 * F32, PRODUCT(16384, 512, 2048), 0, t_linear_dw_small, 16384, 512, 2048, 1)
RATED(OM_LINEAR_F32, F32, PRODUCT(1024, 50304, 2048), 0, t_head_1024, 1024, 50304, 2048)
RATED(OM_LINEAR_F32, F32, PRODUCT(2048, 50304, 2048), 0, t_head_2048, 2048, 50304, 2048)
RATED(OM_LINEAR_DX, BF16, PRODUCT(1024, 50304, 2048), 0, t_head_dx_1024, 1024, 50304, 2048)
RATED(OM_LINEAR_DX, BF16, PRODUCT(2048, 50304, 2048), 0, t_head_dx_2048, 2048, 50304, 2048)
RATED(OM_LINEAR_DW, F32, PRODUCT(1024, 50304, 2048), 0, t_head_dw_1024, 1024, 50304, 2048, 1)
RATED(OM_LINEAR_DW, F32, PRODUCT(2048, 50304, 2048), 0, t_head_dw_2048, 2048, 50304, 2048, 1)
RATED(OM_LINEAR_DW, 2 * F32, PRODUCT(4096, 50304, 2048), 0, t_head_dw_4096, 4096, 50304, 2048, 1)
#define TOUCHED(z) 16384.0 * (2048 * 2 + 64 * (z))
RATED(OM_GATE, F32, PRODUCT(16384, 64, 2048), TOUCHED(4), t_gate, 16384, 64, 2048)
RATED(OM_GATE_DX, BF16, PRODUCT(16384, 64, 2048), TOUCHED(12), t_gate_dx, 16384, 64, 2048)
RATED(OM_GATE_DW, 2 * F32, PRODUCT(16384, 64, 2048), TOUCHED(12), t_gate_dw, 16384, 64, 2048, 1)
