/* The tables that say what can be planned for: target.def. */
#include "plan/plan.h"

const struct target_row targets[] = {
#define TARGET(id, ...) { __VA_ARGS__ },
#include "target.def"
#undef TARGET
	{ .name = NULL },
};
