/* For ranks of runtime/nccl without a device: all memory is the host's. */
#include "../../runtime/nccl/control.h"
#include "../../runtime/ranks/ranks.h"

const struct om_far *
om_far(const void *x)
{
	(void)x;
	return NULL;
}

void
om_nccl_start(const struct om_model *models)
{
	(void)models;
}

const char *
om_comm_library(void)
{
	return "";
}

void
om_nccl_version(char needs[64], char here[64])
{
	*needs = *here = 0;
}
