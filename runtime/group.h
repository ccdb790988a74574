/*
 * The mesh of ranks: one formula from a rank to its place in each group, and to the others of it.
 * olmogen lays out by it, proves by it what ranks do together, and trainers find each other by it.
 */
#ifndef OM_GROUP_H
#define OM_GROUP_H

#include <stdint.h>

enum om_axis {
#define GROUP(NAME, name, axes)
#define AXIS(NAME, name) OM_AXIS_##NAME,
#include "group.def"
	OM_N_AXES
};
enum om_group {
#define GROUP(NAME, name, axes) OM_##NAME,
#define AXIS(NAME, name) OM_##NAME,
#include "group.def"
	OM_N_GROUPS
};
extern const char *const om_group_name[OM_N_GROUPS]; /* "data" */

/* The formula, of any axes by their degrees, innermost first; axes: a bit for each of a group's. */
uint64_t om_axes_size(const uint64_t *degree, uint32_t axes);
uint64_t om_axes_place(const uint64_t *degree, uint32_t axes, uint64_t rank);
uint64_t om_axes_member(const uint64_t *degree, uint32_t axes, uint64_t rank, uint64_t i);

struct om_mesh {
	uint64_t size[OM_N_GROUPS]; /* ranks of each group; of an axis its degree */
};
struct om_mesh om_mesh(const uint64_t degree[OM_N_AXES]); /* 0: not said, which is 1 */
const uint64_t *om_degrees(const struct om_mesh *m);      /* by axis */
/* Which of its group's members a rank is; the rank that is the i-th of a rank's group. */
uint64_t om_mesh_place(const struct om_mesh *m, enum om_group g, uint64_t rank);
uint64_t om_mesh_member(const struct om_mesh *m, enum om_group g, uint64_t rank, uint64_t i);

#endif
