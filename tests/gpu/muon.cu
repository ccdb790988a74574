#include "muon.h"

#include "case.h"

/* 4 % of the largest element, of which the check gives a quarter */
#define MUON(size, count, r, c, s, j, b)                                                          \
	CASE(OM_MUON_MASTER, 1.2e-2, muon_##size, (int64_t)(count) * (r) * (c), r, c, s, j, b,    \
	    0.95, 0.0, 0.1, 0.5, 2.0)                                                             \
	CASE(OM_NORMUON_MASTER, 1.2e-2, normuon_##size, (int64_t)(count) * (r) * (c), r, c, s, j, \
	    b, 0.9, 0.95, 0.0, 1.0, 0.2)
#define DRAWN(size, count, r, c, s, j, b)                                                        \
	CASE(OM_MUON_DRAWN, 1.2e-2, muon_drawn_##size, (int64_t)(count) * (r) * (c), r, c, s, j, \
	    b, 0.95, 0.0, 0.1, 0.5, 2.0)                                                         \
	CASE(OM_NORMUON_DRAWN, 1.2e-2, normuon_drawn_##size, (int64_t)(count) * (r) * (c), r, c, \
	    s, j, b, 0.9, 0.95, 0.0, 1.0, 0.2)
MUON(8x8, 1, 8, 8, 5, 1, 1)
MUON(8x64, 5, 8, 64, 5, 0, 2)
MUON(72x40, 7, 72, 40, 5, 1, 3)
MUON(136x264, 3, 136, 264, 5, 1, 3)
MUON(264x136, 3, 264, 136, 2, 0, 2)
MUON(512x512, 4, 512, 512, 5, 1, 4)
MUON(1024x2048, 2, 1024, 2048, 5, 1, 1)
MUON(2048x1024, 2, 2048, 1024, 5, 1, 2)
DRAWN(8x64, 5, 8, 64, 5, 0, 2)
DRAWN(136x264, 3, 136, 264, 5, 1, 3)
DRAWN(264x136, 4, 264, 136, 5, 1, 2)

/* one projection of all experts of a layer; half of attention's matrices */
#define FLOPS(count, l, h) 5.0 * (count) * (4.0 * (l) * (l) * (h) + 2.0 * (l) * (l) * (l))
RATED(OM_MUON_MASTER, 1.2e-2, FLOPS(64, 1024, 2048), 0, muon_up, (int64_t)64 * 1024 * 2048, 1024,
    2048, 5, 1, 64, 0.95, 0.0, 0.1, 1.0, 9.0)
RATED(OM_MUON_MASTER, 1.2e-2, FLOPS(64, 1024, 2048), 0, muon_down, (int64_t)64 * 1024 * 2048, 2048,
    1024, 5, 1, 64, 0.95, 0.0, 0.1, 1.0, 9.0)
RATED(OM_MUON_MASTER, 1.2e-2, FLOPS(32, 2048, 2048), 0, muon_attention, (int64_t)32 * 2048 * 2048,
    2048, 2048, 5, 1, 32, 0.95, 0.0, 0.1, 1.0, 9.0)
