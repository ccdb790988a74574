/* A step's scalars, which the host writes before it: runtime/om.h's enum om_ctl. */
#ifndef OM_CTL_H
#define OM_CTL_H

enum {
	OM_CTL_LR,
	OM_CTL_BIAS1,
	OM_CTL_BIAS2,
	OM_CTL_NORM2,
	OM_CTL_COEF,
	OM_CTL_LOSS_LIMIT,
	OM_CTL_NORM_LIMIT,
	OM_CTL_SKIPPED,
	OM_CTL_PER_LABEL,
	OM_CTL_N
};

#endif
