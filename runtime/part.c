/* The parts of a step, and one number out of the arena: the same for every device. */
#include "om_rt.h"

double
om_get_f64(const unsigned char *arena, uint64_t off)
{
	double x;

	om_get(arena, off, &x, sizeof x);
	return x;
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
	case OM_RUN_MICROBATCH:
		m->forward(arena, 0);
		m->backward(arena, 0);
		break;
	case OM_RUN_UPDATE:
		m->update(arena);
		break;
	case OM_RUN_DECODE:
		m->decode(arena, 0);
		break;
	default:
		m->eval(arena, 0);
	}
}
