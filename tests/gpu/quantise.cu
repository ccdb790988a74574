#include "quantise.h"
#include "case.h"

#define BOTH(M, NAME, ...)                          \
	CASE(M, 0, NAME##_128, __VA_ARGS__, 128, 0) \
	CASE(M, 0, NAME##_32, __VA_ARGS__, 32, 0)   \
	CASE(M, 0, NAME##_32f, __VA_ARGS__, 32, 1)
#define WEIGHTS(M, NAME, ...)                            \
	CASE(M, 0, NAME##_128, __VA_ARGS__, 128, 128, 0) \
	CASE(M, 0, NAME##_32, __VA_ARGS__, 32, 1, 0)     \
	CASE(M, 0, NAME##_32f, __VA_ARGS__, 32, 1, 1)
BOTH(OM_QUANTISE, t_quantise_one, 1, 128)
BOTH(OM_QUANTISE, t_quantise_mid, 777, 1280)
CASE(OM_QUANTISE, 0, t_quantise_tail, 300, 416, 32, 0)
CASE(OM_QUANTISE_COUNTED, 0, t_quantise_counted, 211, 416, 32, 1)
CASE(OM_QUANTISE_COUNTED, 0, t_quantise_counted_128, 211, 512, 128, 1)
CASE(OM_QUANTISE_ROUTED, 0, t_quantise_routed, 333, 1024, 128, 0, 9)
CASE(OM_QUANTISE_ROUTED_COUNTED, 0, t_quantise_routed_counted, 1333, 256, 32, 1, 2)
WEIGHTS(OM_QUANTISE_W, t_quantise_w_one, 1, 128, 128)
WEIGHTS(OM_QUANTISE_W, t_quantise_w, 7, 256, 384)
WEIGHTS(OM_QUANTISE_WT, t_quantise_wt, 7, 256, 384)
WEIGHTS(OM_QUANTISE_W_2, t_quantise_w_2, 7, 384, 256)
CASE(OM_QUANTISE_W_2, 0, t_quantise_w_2_tail, 5, 96, 160, 32, 1, 0)
CASE(OM_DEQUANTISE, 0, t_dequantise_128, 100, 640, 128)
CASE(OM_DEQUANTISE, 0, t_dequantise_32, 100, 160, 32)
CASE(OM_DEQUANTISE_ROUTED, 0, t_dequantise_routed, 600, 256, 128, 5)
CASE(OM_DEQUANTISE_W, 0, t_dequantise_w_128, 7, 256, 384, 128, 128)
CASE(OM_DEQUANTISE_W, 0, t_dequantise_w_32, 7, 96, 416, 32, 1)
CASE(OM_DEQUANTISE_WT, 0, t_dequantise_wt_128, 7, 256, 384, 128, 128)
CASE(OM_DEQUANTISE_WT, 0, t_dequantise_wt_32, 7, 96, 416, 32, 1)

/* OLMoE-1B-7B at 16,384 tokens: routed rows, and the weights gate|up and down of a layer */
#define ROWS (131072.0 * 2048)
#define MATRICES (128.0 * 1024 * 2048)
RATED(OM_QUANTISE, 0, 0, ROWS * 3.03125, t_quantise_real_128, 131072, 2048, 128, 0)
RATED(OM_QUANTISE, 0, 0, ROWS * 3.03125, t_quantise_real_32, 131072, 2048, 32, 0)
RATED(OM_QUANTISE_ROUTED, 0, 0, 0, t_quantise_routed_real, 131072, 2048, 128, 0, 65)
RATED(OM_QUANTISE_COUNTED, 0, 0, ROWS * 3.03125, t_quantise_counted_real, 131072, 2048, 32, 1)
RATED(OM_QUANTISE_W_2, 0, 0, MATRICES * 4, t_quantise_w_2_real_128, 128, 1024, 2048, 128, 128, 0)
RATED(OM_QUANTISE_W_2, 0, 0, MATRICES * 4.0625, t_quantise_w_2_real_32, 128, 1024, 2048, 32, 1, 0)
RATED(OM_QUANTISE_W, 0, 0, MATRICES * 3, t_quantise_w_real, 128, 1024, 2048, 128, 128, 0)
RATED(OM_DEQUANTISE, 0, 0, ROWS * 3.03125, t_dequantise_real, 131072, 2048, 128)
RATED(OM_DEQUANTISE_WT, 0, 0, MATRICES * 3, t_dequantise_wt_real, 128, 1024, 2048, 128, 128)
