/*
 * Attention. Probabilities, gradients of scores and results are cut to bf16, 2^-8 of a value at
 * most; errors are in units of a row's size (attention.h): three times that.
 */
#if OM_ARCH == 90
#include "attention_kept.h"
#else
#include "attention_mma.h"
#endif
#include "case.h"

#define TOLERANCE 1.2e-2
#define FLOPS(b, s, h, d, w) (2.0 * b * h * d * (2.0 * s * w - w * (w - 1.0)))
#define BOTH(NAME, b, s, h, g, d, w, scale)                                      \
	CASE(OM_ATTENTION, TOLERANCE, attention_##NAME, b, s, h, g, d, w, scale) \
	CASE(OM_ATTENTION_BWD, TOLERANCE, attention_bwd_##NAME, b, s, h, g, d, w, scale)
#define BOTH_RATED(NAME, b, s, h, g, d, w, scale)                                                \
	RATED(OM_ATTENTION, TOLERANCE, FLOPS(b, s, h, d, w), 0, attention_##NAME, b, s, h, g, d, \
	    w, scale)                                                                            \
	RATED(OM_ATTENTION_BWD, TOLERANCE, 2 * FLOPS(b, s, h, d, w), 0, attention_bwd_##NAME, b, \
	    s, h, g, d, w, scale)
/* of documents; timed, they are of 512 tokens */
#define MASKED(NAME, b, s, h, g, d, w, scale)                                               \
	CASE(OM_ATTENTION_MASKED, TOLERANCE, attention_doc_##NAME, b, s, h, g, d, w, scale) \
	CASE(OM_ATTENTION_BWD_MASKED, TOLERANCE, attention_bwd_doc_##NAME, b, s, h, g, d, w, scale)
#define MASKED_RATED(NAME, b, s, h, g, d, w, scale)                                            \
	RATED(OM_ATTENTION_MASKED, TOLERANCE, s / 512.0 * FLOPS(b, 512, h, d, 512), 0,         \
	    attention_doc_##NAME, b, s, h, g, d, w, scale)                                     \
	RATED(OM_ATTENTION_BWD_MASKED, TOLERANCE, 2 * s / 512.0 * FLOPS(b, 512, h, d, 512), 0, \
	    attention_bwd_doc_##NAME, b, s, h, g, d, w, scale)

BOTH(one, 1, 1, 1, 1, 32, 1, 0.25)
BOTH(tiny, 2, 9, 6, 2, 32, 9, 0.1767766952966369)
BOTH(tiny_window, 2, 9, 6, 2, 32, 3, 0.1767766952966369)
BOTH(odd_128, 2, 200, 4, 4, 128, 200, 0.08838834764831845)
BOTH(odd_64, 2, 333, 4, 2, 64, 333, 0.125)
BOTH(odd_96, 1, 333, 4, 2, 96, 333, 0.1)
BOTH(odd_32, 3, 333, 2, 1, 32, 333, 0.1767766952966369)
BOTH(one_key_head, 2, 777, 8, 1, 128, 777, 0.08838834764831845)
BOTH(grouped_64, 2, 1024, 16, 4, 64, 1024, 0.125)
BOTH(window_128, 2, 1024, 4, 2, 128, 128, 0.08838834764831845)
BOTH(window_100_64, 1, 1000, 4, 4, 64, 100, 0.125)
BOTH(window_1, 1, 300, 2, 2, 128, 1, 0.08838834764831845)
BOTH(window_96, 1, 700, 2, 1, 96, 257, 0.1)
BOTH_RATED(olmoe, 4, 4096, 16, 16, 128, 4096, 0.08838834764831845)
BOTH_RATED(olmoe_64, 4, 4096, 16, 16, 64, 4096, 0.125)
BOTH_RATED(long, 2, 8192, 16, 16, 128, 8192, 0.08838834764831845)
BOTH_RATED(grouped, 4, 4096, 32, 4, 128, 4096, 0.08838834764831845)
BOTH_RATED(window, 4, 4096, 16, 16, 128, 1024, 0.08838834764831845)
BOTH_RATED(dense, 2, 8192, 32, 8, 64, 8192, 0.125)
MASKED(one, 1, 1, 1, 1, 32, 1, 0.25)
MASKED(tiny, 2, 9, 6, 2, 32, 9, 0.1767766952966369)
MASKED(tiny_window, 2, 9, 6, 2, 32, 3, 0.1767766952966369)
/* every row of these is compared */
MASKED(all_128, 1, 577, 1, 1, 128, 577, 0.08838834764831845)
MASKED(all_64, 1, 577, 1, 1, 64, 577, 0.125)
MASKED(all_window, 1, 577, 1, 1, 128, 140, 0.08838834764831845)
MASKED(all_window_64, 1, 577, 1, 1, 64, 20, 0.125)
MASKED(odd_128, 2, 200, 4, 4, 128, 200, 0.08838834764831845)
MASKED(odd_96, 1, 333, 4, 2, 96, 333, 0.1)
MASKED(odd_32, 3, 333, 2, 1, 32, 333, 0.1767766952966369)
MASKED(one_key_head, 2, 777, 8, 1, 128, 777, 0.08838834764831845)
MASKED(grouped_64, 2, 1024, 16, 4, 64, 1024, 0.125)
MASKED(window_128, 2, 1024, 4, 2, 128, 128, 0.08838834764831845)
MASKED(window_1, 1, 300, 2, 2, 128, 1, 0.08838834764831845)
MASKED_RATED(olmoe, 4, 4096, 16, 16, 128, 4096, 0.08838834764831845)
MASKED_RATED(olmoe_64, 4, 4096, 16, 16, 64, 4096, 0.125)
MASKED_RATED(grouped, 4, 4096, 32, 4, 128, 4096, 0.08838834764831845)

#if OM_ARCH == 90
/* where gradients of scores are kept, in n sections of heads */
#define KEPT(NAME, b, s, h, g, d, w, n, scale)                                                     \
	CASE(OM_ATTENTION_BWD_KEPT, TOLERANCE, attention_kept_##NAME, b, s, h, g, d, w,            \
	    OM_AT_PAIRS(s, w), n, scale)                                                           \
	CASE(OM_ATTENTION_BWD_KEPT_MASKED, TOLERANCE, attention_kept_doc_##NAME, b, s, h, g, d, w, \
	    OM_AT_PAIRS(s, w), n, scale)
#define KEPT_RATED(NAME, b, s, h, g, d, w, n, scale)                         \
	RATED(OM_ATTENTION_BWD_KEPT, TOLERANCE, 2 * FLOPS(b, s, h, d, w), 0, \
	    attention_kept_##NAME, b, s, h, g, d, w, OM_AT_PAIRS(s, w), n, scale)
KEPT(one, 1, 1, 1, 1, 64, 1, 1, 0.25)
KEPT(all_128, 1, 577, 1, 1, 128, 577, 1, 0.08838834764831845)
KEPT(all_64, 1, 577, 1, 1, 64, 577, 1, 0.125)
KEPT(all_window, 1, 577, 1, 1, 128, 140, 1, 0.08838834764831845)
KEPT(all_window_64, 1, 577, 1, 1, 64, 20, 1, 0.125)
KEPT(odd_128, 2, 200, 4, 4, 128, 200, 3, 0.08838834764831845)
KEPT(odd_64, 2, 333, 4, 2, 64, 333, 4, 0.125)
KEPT(one_key_head, 2, 777, 8, 1, 128, 777, 2, 0.08838834764831845)
KEPT(grouped_64, 2, 1024, 16, 4, 64, 1024, 3, 0.125)
KEPT(window_128, 2, 1024, 4, 2, 128, 128, 3, 0.08838834764831845)
KEPT(window_65, 1, 1000, 4, 4, 64, 65, 1, 0.125)
KEPT(window_1, 1, 300, 2, 2, 128, 1, 1, 0.08838834764831845)
KEPT_RATED(olmoe, 4, 4096, 16, 16, 128, 4096, 2, 0.08838834764831845)
KEPT_RATED(dense, 2, 8192, 32, 8, 64, 8192, 4, 0.125)
KEPT_RATED(coarse, 4, 4096, 16, 4, 128, 4096, 2, 0.08838834764831845)
KEPT_RATED(window, 1, 16384, 20, 4, 128, 4096, 4, 0.08838834764831845)
KEPT_RATED(long, 1, 16384, 20, 4, 128, 16384, 4, 0.08838834764831845)
#endif
