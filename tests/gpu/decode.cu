#include "decode.h"

#include "case.h"

/* One rounding to bf16, 2^-8 of the largest value. */
#define BF16 4e-3

CASE(OM_LIKELIEST, 0, t_likeliest, 3, 3001)
CASE(OM_LIKELIEST, 0, t_likeliest_few, 2, 7)
CASE(OM_ROPE_AT, BF16, t_rope_at, 5, 37, 3, 96)
CASE(OM_CACHE, BF16, t_cache, 5, 5, 37, 264)
CASE(OM_CACHE, BF16, t_cache_prompt, 16, 2, 37, 64)
/* two roundings */
CASE(OM_HEADS_AT, 2 * BF16, t_heads_at_row, 5, 5, 37, 6, 2, 96, 576, 192, 1e-5)
CASE(OM_HEADS_AT, 2 * BF16, t_heads_at_head, 9, 2, 37, 40, 8, 128, 128, 128, 1e-5)
CASE(OM_ATTENTION_AT, BF16, t_attention_at_one, 1, 1, 1, 1, 1, 32, 1, 0.2)
CASE(OM_ATTENTION_AT, BF16, t_attention_at_odd, 5, 5, 333, 6, 2, 96, 333, 0.1)
CASE(OM_ATTENTION_AT, BF16, t_attention_at_group, 3, 3, 1000, 32, 4, 64, 1000, 0.125)
CASE(OM_ATTENTION_AT, BF16, t_attention_at_window, 9, 9, 700, 16, 2, 128, 129, 0.08)
CASE(OM_ATTENTION_AT, BF16, t_attention_at_prompt, 100, 2, 700, 4, 4, 128, 700, 0.08)
#define CACHED(m, n) 4.0 * (m) * (n) * 2048
RATED(OM_ATTENTION_AT, BF16, 0, 0, t_attention_at, 1, 1, 4096, 16, 16, 128, 4096, 0.088)
RATED(OM_ATTENTION_AT, BF16, 0, 0, t_attention_at_32, 32, 32, 1024, 16, 16, 128, 1024, 0.088)
RATED(OM_HEADS_AT, 2 * BF16, 0, 0, t_heads_at, 1, 1, 4096, 16, 16, 128, 2048, 2048, 1e-5)
RATED(OM_LIKELIEST, 0, 0, 4.0 * 50304, t_likeliest_one, 1, 50304)
