/* The tables of what there is to plan for: target.def, and of kernel.def which kernels. */
#include <string.h>

#include "plan/plan.h"

const struct target_row targets[] = {
#define TARGET(id, ...) { __VA_ARGS__ },
#include "target.def"
#undef TARGET
	{ .name = NULL },
};

static const struct kernel_row kernel_rows[] = {
#define KERNEL(op, target, file, macro, params, ws) { OP_##op, #target, file, #macro, params, ws },
#include "kernel.def"
};

static const struct {
	const char *target, *arch;
} archs[] = {
#define ARCH(target, arch) { #target, arch },
#include "kernel.def"
};

static const char *const calls[N_OPS] = {
#define CALL(op, call) [OP_##op] = call,
#include "kernel.def"
};

static const struct {
	enum op_id op;
	const char *target;
	uint8_t stream;
} stream_rows[] = {
#define STREAM(op, target, stream) { OP_##op, #target, stream },
#include "kernel.def"
};

const char *
runtime_call(enum op_id op)
{
	return calls[op];
}

const struct kernel_row *
kernel_for(enum op_id op, const char *target)
{
	for (uint32_t i = 0; i < LEN(kernel_rows); i++)
		if (kernel_rows[i].op == op && !strcmp(kernel_rows[i].target, target))
			return &kernel_rows[i];
	return NULL;
}

/* Kernels that are C run anywhere. */
bool
kernel_written_for(const struct target_row *t)
{
	for (uint32_t i = 0; i < LEN(archs); i++)
		if (t->arch && !strcmp(archs[i].target, t->kernels) &&
		    !strcmp(archs[i].arch, t->arch))
			return true;
	return !t->arch;
}

uint8_t
kernel_stream(enum op_id op, const struct target_row *t)
{
	for (uint32_t i = 0; i < LEN(stream_rows); i++)
		if (stream_rows[i].op == op && !strcmp(stream_rows[i].target, t->kernels))
			return (uint8_t)(stream_rows[i].stream < t->streams ? stream_rows[i].stream
									    : t->streams - 1);
	return 0;
}
