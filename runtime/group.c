#include "group.h"

const char *const om_group_name[OM_N_GROUPS] = {
#define GROUP(NAME, name, axes) #name,
#define AXIS(NAME, name) #name,
#include "group.def"
};

#define ALL_AXES ((1u << OM_N_AXES) - 1)
#define ON(NAME) (1u << OM_AXIS_##NAME)
static const uint32_t axes_of[OM_N_GROUPS] = {
#define GROUP(NAME, name, axes) axes,
#define AXIS(NAME, name) ON(NAME),
#include "group.def"
};

uint64_t
om_axes_size(const uint64_t *degree, uint32_t axes)
{
	uint64_t n = 1;

	for (uint32_t a = 0; axes >> a; a++)
		n *= axes >> a & 1 ? degree[a] : 1;
	return n;
}

uint64_t
om_axes_place(const uint64_t *degree, uint32_t axes, uint64_t rank)
{
	uint64_t place = 0, n = 1;

	for (uint32_t a = 0; axes >> a; rank /= degree[a++])
		if (axes >> a & 1) {
			place += rank % degree[a] * n;
			n *= degree[a];
		}
	return place;
}

uint64_t
om_axes_member(const uint64_t *degree, uint32_t axes, uint64_t rank, uint64_t i)
{
	uint64_t stride = 1;

	for (uint32_t a = 0; axes >> a; stride *= degree[a++])
		if (axes >> a & 1) {
			rank -= rank / stride % degree[a] * stride;
			rank += i % degree[a] * stride;
			i /= degree[a];
		}
	return rank;
}

/* Axes are the last of the groups. */
const uint64_t *
om_degrees(const struct om_mesh *m)
{
	return m->size + OM_N_GROUPS - OM_N_AXES;
}

struct om_mesh
om_mesh(const uint64_t degree[OM_N_AXES])
{
	struct om_mesh m;

	for (uint32_t a = 0; a < OM_N_AXES; a++)
		m.size[OM_N_GROUPS - OM_N_AXES + a] = degree[a] ? degree[a] : 1;
	for (uint32_t g = 0; g < OM_N_GROUPS; g++)
		m.size[g] = om_axes_size(om_degrees(&m), axes_of[g]);
	return m;
}

uint64_t
om_mesh_place(const struct om_mesh *m, enum om_group g, uint64_t rank)
{
	return om_axes_place(om_degrees(m), axes_of[g], rank);
}

uint64_t
om_mesh_member(const struct om_mesh *m, enum om_group g, uint64_t rank, uint64_t i)
{
	return om_axes_member(om_degrees(m), axes_of[g], rank, i);
}
