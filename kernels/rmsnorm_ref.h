/*
 * Norms by their definition, in double: what the checks of rmsnorm.h compare kernels of every
 * target with. It shares no code with them. Groups of n elements: x [groups, n], w [n], r [groups].
 */
#ifndef OM_RMSNORM_REF_H
#define OM_RMSNORM_REF_H

#include <math.h>
#include <stdint.h>

/* r of group i. */
static inline double
om_rmsnorm_ref_r(struct om_in x, int64_t n, double eps, int64_t i)
{
	double sum = 0;
	for (int64_t j = 0; j < n; j++)
		sum += om_in(x, i * n + j) * om_in(x, i * n + j);
	return 1 / sqrt(sum / (double)n + eps);
}

/* y of group i, element j, whose r is ri. */
static inline double
om_rmsnorm_ref_y(struct om_in x, struct om_in w, double ri, int64_t n, int64_t i, int64_t j)
{
	return om_in(x, i * n + j) * ri * om_in(w, j);
}

/* dx of group i, element j: what dy does directly, and through r, along x. */
static inline double
om_rmsnorm_ref_along(struct om_in dy, struct om_in x, struct om_in w, int64_t n, int64_t i)
{
	double along = 0;
	for (int64_t j = 0; j < n; j++)
		along += om_in(dy, i * n + j) * om_in(w, j) * om_in(x, i * n + j);
	return along;
}

static inline double
om_rmsnorm_ref_dx(struct om_in dy, struct om_in x, struct om_in w, double ri, double along,
    int64_t n, int64_t i, int64_t j)
{
	return ri * om_in(dy, i * n + j) * om_in(w, j) -
	       ri * ri * ri * om_in(x, i * n + j) * along / (double)n;
}

/* What dw[j] gains from all groups. */
static inline double
om_rmsnorm_ref_dw(
    struct om_in dy, struct om_in x, struct om_in r, int64_t groups, int64_t n, int64_t j)
{
	double sum = 0;
	for (int64_t i = 0; i < groups; i++)
		sum += om_in(dy, i * n + j) * om_in(x, i * n + j) * om_in(r, i);
	return sum;
}

#endif
