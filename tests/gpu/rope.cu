#include "rope.h"

#include "case.h"

/*
 * The table is float, rounded once from double: 2^-24, where the reference takes the same angle by
 * another way, at most some 1e-10 off. rope rounds once to bf16, at most 2^-8 of the value.
 *
 * Scalings and bounds of models, Qwen's YaRN and Llama 3.1; s: short enough for a ramp within few
 * positions; n: a ramp over all pairs; e: an empty one.
 */
#define SCALED(s, d, name, ...) \
	CASE(OM_ROPE_TABLE, 1e-7, rope_table_##s##_##d##_##name, s, d, __VA_ARGS__)
#define TABLE(s, d)                                              \
	SCALED(s, d, 0, 0, 10000.0, 0.0, 0.0, 0.0, 0.0, 1.0)     \
	SCALED(s, d, 1, 1, 1e6, 2.5, 0.0, 0.0, 0.0, 1.0)         \
	SCALED(s, d, 2, 2, 1e6, 4.0, 32.0, 1.0, 32768.0, 1.1386) \
	SCALED(s, d, 2s, 2, 50.0, 3.0, 2.0, 1.5, 64.0, 0.9)      \
	SCALED(s, d, 2n, 2, 1e4, 3.0, 1e4, 1e-6, 64.0, 1.0)      \
	SCALED(s, d, 2e, 2, 1e4, 3.0, 32.0, 1.0, 6.2, 1.0)       \
	SCALED(s, d, 3, 3, 5e5, 8.0, 1.0, 4.0, 8192.0, 1.0)      \
	SCALED(s, d, 3s, 3, 50.0, 8.0, 1.0, 4.0, 20.0, 1.0)
#define ROPE(b, s, h, d)                                            \
	CASE(OM_ROPE, 4e-3, rope_##b##_##s##_##h##_##d, b, s, h, d) \
	CASE(OM_ROPE_BWD, 4e-3, rope_bwd_##b##_##s##_##h##_##d, b, s, h, d)
TABLE(1, 16)
TABLE(67, 48)
TABLE(4096, 128)
CASE(OM_ROPE_TABLE, 1e-7, rope_table_131072_64, 131072, 64, 3, 5e5, 8.0, 1.0, 4.0, 8192.0, 1.0)
ROPE(1, 1, 1, 16)
ROPE(2, 7, 3, 48)
ROPE(1, 67, 6, 80)
ROPE(4, 128, 5, 256)
ROPE(3, 333, 1, 128)
RATED(OM_ROPE, 4e-3, 0, 4.0 * 4 * 4096 * 2048, rope_4_4096_16_128, 4, 4096, 16, 128)
RATED(OM_ROPE_BWD, 4e-3, 0, 4.0 * 4 * 4096 * 2048, rope_bwd_4_4096_16_128, 4, 4096, 16, 128)
RATED(OM_ROPE, 4e-3, 0, 4.0 * 16 * 4096 * 2048, rope_16_4096_16_128, 16, 4096, 16, 128)
RATED(OM_ROPE, 4e-3, 0, 4.0 * 4 * 4096 * 512, rope_4_4096_4_128, 4, 4096, 4, 128)
