/* Sizes that are checked: a model too large for 64 bits is a user's error. */
#include <stdlib.h>

#include "base/base.h"

static struct pos size_pos;

void
size_at(struct pos p)
{
	size_pos = p;
}

static _Noreturn void
overflow(void)
{
	diag_error(size_pos, "a size of this trainer is beyond 2^64 bytes or elements");
	diag_help("some product of vocab_size, d_model, num_experts, sequence_length and "
		  "batch.micro is too large");
	diag_flush();
	exit(EXIT_USER);
}

uint64_t
size_mul(uint64_t a, uint64_t b)
{
	uint64_t r;
	if (__builtin_mul_overflow(a, b, &r))
		overflow();
	return r;
}

uint64_t
size_add(uint64_t a, uint64_t b)
{
	uint64_t r;
	if (__builtin_add_overflow(a, b, &r))
		overflow();
	return r;
}

uint64_t
size_align(uint64_t n, uint64_t to)
{
	return size_add(n, to - 1) / to * to;
}
