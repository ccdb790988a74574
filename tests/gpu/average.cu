#include "average.h"

#include "case.h"

/* two roundings of 2^-24 of numbers under 1 */
CASE(OM_AVERAGE_MASTER, 3e-7, average_1, 1)
CASE(OM_AVERAGE_MASTER, 3e-7, average_3, 3)
CASE(OM_AVERAGE_MASTER, 3e-7, average_1024, 1024)
CASE(OM_AVERAGE_MASTER, 3e-7, average_odd, 100003)
RATED(OM_AVERAGE_MASTER, 3e-7, 0, 12 * 134217728.0, average_134217728, 134217728)
