#include "expert_far.h"

#include "case.h"

/*
 * Rows and weights move: exact. combine adds in float and rounds once, at most 2^-8 of the sum.
 * t tokens in p parts, e experts, top-k, width n, w ranks with c rows each, whose experts begin at
 * multiples of u.
 */
#define EXPERT(NAME, t, p, e, k, n, w, c, u)                                             \
	CASE(OM_EP_MAP, 0, ep_map_##NAME, t, e, k, p, w, c, u, (t) * (k))                        \
	CASE(OM_EP_DISPATCH, 0, ep_dispatch_##NAME, t, 5 * (e), k, n, w, c, u, 16)       \
	CASE(OM_EP_COMBINE, 4e-3, ep_combine_##NAME, t, 5 * (e), k, n, w, c, 16)         \
	CASE(OM_EP_WEIGHTS, 0, ep_weights_##NAME, t, 5 * (e), k, w, c, u, 16)            \
	CASE(OM_EP_WEIGHTS_BWD, 1e-6, ep_weights_bwd_##NAME, t, 5 * (e), k, w, c, 16)

EXPERT(one, 1, 1, 1, 1, 8, 1, 1, 1)
EXPERT(two, 6, 2, 2, 2, 24, 2, 12, 1)
EXPERT(odd, 67, 1, 6, 3, 40, 3, 250, 1)
EXPERT(cut, 100, 1, 16, 4, 264, 4, 90, 1)
EXPERT(multiple, 333, 3, 12, 5, 520, 2, 1888, 16)
EXPERT(multiple_cut, 333, 1, 12, 5, 512, 2, 800, 16)
EXPERT(many, 65, 1, 512, 11, 1032, 8, 715, 1)
EXPERT(sixteen, 257, 1, 64, 8, 2056, 16, 257, 1)
EXPERT(olmoe, 16384, 4, 64, 8, 2048, 2, 262144, 1)

/* The same where ranks exchange blocks of q rows; and cuts by pairs where they do not. */
#define FAR(NAME, t, p, e, k, n, w, c, u, q)                                             \
	CASE(OM_EP_MAP, 0, ep_map_pairs_##NAME, t, e, k, p, w, c, u, q)                  \
	CASE(OM_EP_FAR_MAP, 0, ep_far_map_##NAME, t, e, k, p, w, c, u, q)                \
	CASE(OM_EP_FAR_DISPATCH, 0, ep_far_dispatch_##NAME, t, 5 * (e), k, n, w, c, u, q) \
	CASE(OM_EP_FAR_COMBINE, 4e-3, ep_far_combine_##NAME, t, 5 * (e), k, n, w, c, q)  \
	CASE(OM_EP_FAR_WEIGHTS, 0, ep_far_weights_##NAME, t, 5 * (e), k, w, c, u, q)     \
	CASE(OM_EP_FAR_WEIGHTS_BWD, 1e-6, ep_far_weights_bwd_##NAME, t, 5 * (e), k, w, c, q)

FAR(two, 6, 2, 2, 2, 24, 2, 12, 1, 6)
FAR(cut, 100, 1, 16, 4, 264, 4, 260, 1, 70)
FAR(multiple, 333, 3, 12, 5, 520, 2, 1888, 16, 700)
FAR(one_row, 33, 1, 64, 3, 64, 16, 99, 1, 1)
FAR(olmoe, 4096, 4, 64, 8, 2048, 4, 65536, 1, 9000)
