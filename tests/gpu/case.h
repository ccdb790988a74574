/*
 * A kernel instance under test: CASE(MACRO, name, params...) defines it, and on the host enters its
 * check into the list that main.c runs.
 */
#ifndef CASE_H
#define CASE_H

#ifdef __CUDACC__
#define CASE(M, tolerance, NAME, ...) M(NAME, __VA_ARGS__)
#else
#include <stddef.h>
#include <stdint.h>
struct test_case {
	const char *name;
	double (*check)(uint64_t seed);
	double tolerance;    /* largest error over largest value */
	double flops, bytes; /* of one call, 0: not worth a rate */
	struct test_case *next;
};
void case_add(struct test_case *c);
double case_same(const void *a, const void *b, size_t bytes); /* of the device: 0, or wrong */
#define CASE(M, TOLERANCE, NAME, ...) RATED(M, TOLERANCE, 0, 0, NAME, __VA_ARGS__)
#define RATED(M, TOLERANCE, FLOPS, BYTES, NAME, ...)                                             \
	M(NAME, __VA_ARGS__)                                                                     \
	__attribute__((constructor)) static void NAME##_case(void)                               \
	{                                                                                        \
		static struct test_case c = { #NAME, NAME##_check, TOLERANCE, FLOPS, BYTES, 0 }; \
		case_add(&c);                                                                    \
	}
#endif
#ifdef __CUDACC__
#define RATED(M, TOLERANCE, FLOPS, BYTES, NAME, ...) M(NAME, __VA_ARGS__)
#endif

#endif
