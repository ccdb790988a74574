/*
 * The parts of a step, an arena without a device, numbers out of an arena or a copy: the same for
 * every device.
 */
#include "om_rt.h"

void
om_agree(const char *what, const void *p, size_t n)
{
	uint32_t own = om_crc32c(0, p, n), first = own;

	om_bcast(what, &first, sizeof first);
	if (!om_any(what, own != first))
		return;
	if (own != first)
		om_die(what, "differs from rank 0's; give all ranks the same");
	om_barrier(what); /* another one says it, and ends all */
}

unsigned char *
om_arena_host(const struct om_model *m)
{
	uint64_t written = 1 << 20; /* and what is small */

	for (uint32_t i = 0; i < m->nparams + m->nbuffers; i++) {
		const struct om_param *p = &m->param[i];

		written += (p->experts ? p->experts : 1) * p->nlayers * p->numel *
			   (om_param_size(m, p) + (p->master != OM_NO_MASTER ? m->real : 0));
	}
	return om_arena_map(m->arena_bytes, written < m->arena_bytes ? written : m->arena_bytes);
}

double
om_get_f64(const unsigned char *arena, uint64_t off)
{
	double x;

	om_get(arena, off, &x, sizeof x);
	return x;
}

const void *
om_stat(const struct om_model *m, const struct om_result *r, uint64_t off)
{
	return (const unsigned char *)r->stat + (off - m->stat_off);
}

double
om_stat_f64(const struct om_model *m, const struct om_result *r, uint64_t off)
{
	return *(const double *)om_stat(m, r, off);
}

void
om_part(const struct om_model *m, enum om_part part, unsigned char *arena)
{
	switch (part) {
	case OM_RUN_INIT:
		m->init(arena);
		break;
	case OM_RUN_ZERO:
		m->zero(arena);
		break;
	case OM_RUN_UPDATE:
		m->update(arena);
		break;
	case OM_RUN_DECODE:
		m->decode.run(arena, 0);
		break;
	case OM_RUN_PROMPT:
		m->prompt.run(arena, 0);
		break;
	case OM_RUN_EVALUATE:
		m->eval(arena, 0);
		break;
	default:
		for (int ph = 0; ph < OM_N_PHASES && m->pass[ph]; ph++)
			m->pass[ph](arena, 0, (int)part - OM_RUN_MICROBATCH);
	}
}
