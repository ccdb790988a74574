#include "adamw.h"

#include "case.h"

/*
 * sumsq and clip compute in double: 2^-53 sqrt(n). adamw without master rounds w to bf16 in each of
 * two steps and decays or moves it between: some 3 x 2^-8 of the largest weight; the checks hold
 * what is float to a part of 1200 of that.
 */
#define UPDATE(n, decay, scale)                                             \
	CASE(OM_SUMSQ, 1e-12, sumsq_##n, n, 264)                            \
	CASE(OM_ADAMW, 1.2e-2, adamw_##n, n, 0.9, 0.95, 1e-8, decay, scale) \
	CASE(OM_ADAMW_MASTER, 1.2e-2, adamw_master_##n, n, 0.9, 0.95, 1e-8, decay, scale)
UPDATE(1, 0.1, 1.0)
UPDATE(3, 0.1, 1.0)
UPDATE(4, 0.1, 1.0)
UPDATE(67, 0.0, 0.5)
UPDATE(2048, 0.1, 2.0)
UPDATE(100003, 0.1, 1.0)
UPDATE(5000008, 0.1, 1.0)
/* moments to the bit, masters as those of the others */
#define DRAWN(n, decay, scale) \
	CASE(OM_ADAMW_DRAWN, 1.2e-2, adamw_drawn_##n, n, 0.9, 0.95, 1e-8, decay, scale)
DRAWN(4, 0.1, 1.0)
DRAWN(64, 0.1, 1.0)
DRAWN(2048, 0.0, 0.5)
DRAWN(100004, 0.1, 2.0)
DRAWN(5000008, 0.1, 1.0)
CASE(OM_SUMSQ, 1e-12, sumsq_5000010_3, 5000010, 3)
CASE(OM_CLIP, 1e-15, clip_1, 1.0)
CASE(OM_CLIP, 1e-15, clip_0, 0.0)
CASE(OM_CLIP, 1e-15, clip_small, 0.01)
/* n e gamma; two roundings of 2^-24 of biases under 2 */
CASE(OM_BIAS_UPDATE, 3e-7, bias_update_1, 1, 1, 0.001)
CASE(OM_BIAS_UPDATE, 3e-7, bias_update_8, 8, 8, 0.001)
CASE(OM_BIAS_UPDATE, 3e-7, bias_update_odd, 259, 37, 0.01)
CASE(OM_BIAS_UPDATE, 3e-7, bias_update_deepseek, 58 * 256, 256, 0.001)
/* one projection of all experts of a layer: 64 x 1024 x 2048 */
RATED(OM_SUMSQ, 1e-12, 0, 4 * 134217728.0, sumsq_134217728, 134217728, 264)
RATED(OM_ADAMW, 1.2e-2, 0, 24 * 134217728.0, adamw_134217728, 134217728, 0.9, 0.95, 1e-8, 0.1, 1.0)
RATED(OM_ADAMW_MASTER, 1.2e-2, 0, 30 * 134217728.0, adamw_master_134217728, 134217728, 0.9, 0.95,
    1e-8, 0.1, 1.0)
RATED(OM_ADAMW_DRAWN, 1.2e-2, 0, 22 * 134217728.0, adamw_drawn_134217728, 134217728, 0.9, 0.95,
    1e-8, 0.1, 1.0)
