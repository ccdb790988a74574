/* the part of a bucket of parameters that is this rank's to step */
#define PART(at, group, bytes) \
	((void *)((unsigned char *)at + om_rank(group) * (uint64_t)(bytes)))
