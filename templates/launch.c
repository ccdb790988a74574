/*@banner calls kernels, and measures them while bench asks for it*/
#include "launch.h"
/*@slot round*/

/*@slot numbers*/

/* the function that step.c calls: the kernel, of inst/, and what its results then need */
#define LAUNCH(name, params, kernel) \
	void om_k_##name params; \
	double om_k_##name##_check(uint64_t seed); \
	void launch_##name params \
	{ \
		if (om_profile) \
			om_op_begin(&om_ops[OP_##name]); \
		om_k_##name kernel; \
		if (om_profile) \
			om_op_end(&om_ops[OP_##name]); \
	}

/*@slot functions*/

/*@slot ops*/
