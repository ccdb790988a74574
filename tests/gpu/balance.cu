#include "balance.h"

#include "case.h"

/* Sums of floats, in double. */
#define BALANCE(t, e, k, w, c) CASE(OM_BALANCE_ALL, 1e-9, balance_all_##t##_##e, t, e, k, w, c)
BALANCE(1, 1, 1, 2, 64)
BALANCE(100, 20, 3, 3, 7)
BALANCE(333, 96, 4, 2, 64)
BALANCE(4096, 512, 8, 16, 64)
BALANCE(16384, 64, 8, 2, 64)
