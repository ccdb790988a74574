#include "case.h"
#include "dispatch8.h"

CASE(OM_DISPATCH_8, 0, t_dispatch_8_one, 1, 1, 128)
CASE(OM_DISPATCH_8, 0, t_dispatch_8_odd, 77, 3, 384)
CASE(OM_DISPATCH_2_8, 0, t_dispatch_2_8_odd, 301, 10, 640)

/* OLMoE-1B-7B at 16,384 tokens */
#define READ (16384.0 * 2048 * 2)
#define NUMBERS (131072.0 * 2048)
RATED(OM_DISPATCH_8, 0, 0, READ + NUMBERS * 1.03125, t_dispatch_8_olmoe, 16384, 8, 2048)
RATED(OM_DISPATCH_2_8, 0, 0, READ + NUMBERS * 3.03125, t_dispatch_2_8_olmoe, 16384, 8, 2048)
