/*
 * What every CPU kernel file shares: the number type, vectors, the share of a thread, exp, sums.
 *
 * An instance file defines OM_REAL (float or double) and includes one family. Activations,
 * statistics, gradients and optimizer state are om_real. Results never depend on the number of
 * threads: whoever computes an element computes all of it.
 */
#ifndef OM_CPU_H
#define OM_CPU_H

#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef OM_REAL
#error "define OM_REAL as float or double before including a kernel"
#endif
typedef OM_REAL om_real;

#define OM_CAT_(a, b) a##b
#define OM_CAT(a, b) OM_CAT_(a, b)
#define OM_IS_DOUBLE_float 0
#define OM_IS_DOUBLE_double 1
#define OM_DOUBLE OM_CAT(OM_IS_DOUBLE_, OM_REAL)

/*
 * Sums run over OM_LANES lanes on every machine, so that every bit is that of the widest. The lanes
 * are two vectors of 32 bytes and not one of 64: gcc keeps vectors longer than a register in
 * memory.
 */
enum { OM_LANES = 64 / sizeof(om_real), OM_WIDTH = OM_LANES / 2 };
typedef om_real om_vec __attribute__((vector_size(32), may_alias));
typedef om_vec om_vecu __attribute__((aligned(sizeof(om_real))));

#define OM_INLINE inline __attribute__((always_inline))

/*
 * Leaf functions compile three times and bind to the machine at start. A leaf holds no OpenMP
 * region (gcc would outline it for one machine only); it is called inside one. Off under the
 * sanitizers, whose own start-up comes after the binding.
 */
#if defined(__x86_64__) && __GNUC__ >= 12 && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(OM_NO_CLONES)
#define OM_MACHINES target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")
#define OM_CLONES __attribute__((unused, noinline, OM_MACHINES))
#else
#define OM_CLONES __attribute__((unused, noinline))
#endif

/* As many operations one thread does before others would have woken up. */
enum { OM_SERIAL = 1 << 15 };

/* The calling thread's part of [0, total): inside a parallel region, om_lo(n) up to om_hi(n). */
static inline int64_t
om_lo(int64_t total)
{
	return total * omp_get_thread_num() / omp_get_num_threads();
}

static inline int64_t
om_hi(int64_t total)
{
	return total * (omp_get_thread_num() + 1) / omp_get_num_threads();
}

/* out [n] += the sum over the rows of part [c, n], in order; or without add = */
static inline void
om_sum_rows(int64_t n, int64_t c, bool add, const om_real *part, om_real *out)
{
	if (!add)
		memset(out, 0, (size_t)n * sizeof *out);
	for (int64_t p = 0; p < c; p++) {
		for (int64_t j = 0; j < n; j++)
			out[j] += part[p * n + j];
	}
}

static inline int64_t
om_min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/*
 * e^x. In float: x = n ln 2 + r with |r| <= ln 2 / 2, a Taylor polynomial of degree 7 (remainder
 * 5e-9), and n added to the exponent's bits. Free of branches, so that loops over it vectorise.
 * Relative error below 2e-7; 0 where the result would be subnormal, infinity above the range, NaN
 * for NaN.
 */
static OM_INLINE om_real
om_exp(om_real x)
{
#if OM_DOUBLE
	return exp(x);
#else
	const float shift = 0x1.8p23f; /* adding it rounds to an integer, in the low bits */
	float t = x * 0x1.715476p0f + shift;
	float n = t - shift;
	/* ln 2 in two parts, n times the first is exact */
	float r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
	float p = 1.0f / 5040;
	p = p * r + 1.0f / 720;
	p = p * r + 1.0f / 120;
	p = p * r + 1.0f / 24;
	p = p * r + 1.0f / 6;
	p = p * r + 0.5f;
	p = p * r + 1;
	p = p * r + 1;
	uint32_t pb, tb;
	memcpy(&pb, &p, sizeof pb);
	memcpy(&tb, &t, sizeof tb);
	pb += tb << 23; /* the shift's own bits leave at the top */
	memcpy(&p, &pb, sizeof p);
	p = x < -0x1.5d589ep6f ? 0 : p;       /* ln 2^-126 */
	p = x > 0x1.62e42ep6f ? INFINITY : p; /* ln 2^128 */
	return x == x ? p : x;
#endif
}

static OM_INLINE om_real
om_sigmoid(om_real x)
{
	return 1 / (1 + om_exp(-x));
}

/* Uses up its lanes. */
static OM_INLINE om_real
om_lanes_sum(om_real *lane)
{
	for (int w = OM_LANES / 2; w; w /= 2) {
		for (int l = 0; l < w; l++)
			lane[l] += lane[l + w];
	}
	return lane[0];
}

/* Inner product and sum over OM_LANES lanes, lanes then added as a tree. */
static OM_INLINE om_real
om_dot(const om_real *a, const om_real *b, int64_t n)
{
	om_vec acc[2] = { 0 };
	om_real lane[OM_LANES];
	int64_t i = 0;
	for (; i + OM_LANES <= n; i += OM_LANES) {
		for (int v = 0; v < 2; v++) {
			const int64_t at = i + v * OM_WIDTH;
			acc[v] += *(const om_vecu *)(a + at) * *(const om_vecu *)(b + at);
		}
	}
	memcpy(lane, acc, sizeof acc);
	for (int l = 0; i < n; i++, l++)
		lane[l] += a[i] * b[i];
	return om_lanes_sum(lane);
}

static OM_INLINE om_real
om_sum(const om_real *a, int64_t n)
{
	om_vec acc[2] = { 0 };
	om_real lane[OM_LANES];
	int64_t i = 0;
	for (; i + OM_LANES <= n; i += OM_LANES) {
		for (int v = 0; v < 2; v++)
			acc[v] += *(const om_vecu *)(a + i + v * OM_WIDTH);
	}
	memcpy(lane, acc, sizeof acc);
	for (int l = 0; i < n; i++, l++)
		lane[l] += a[i];
	return om_lanes_sum(lane);
}

/* The largest; NaN is passed over. */
static OM_INLINE om_real
om_max(const om_real *a, int64_t n)
{
	om_vec acc[2] = { 0 };
	om_real lane[OM_LANES];
	int64_t i = 0;
	acc[0] = acc[1] = acc[0] - INFINITY;
	for (; i + OM_LANES <= n; i += OM_LANES) {
		for (int v = 0; v < 2; v++) {
			om_vec x = *(const om_vecu *)(a + i + v * OM_WIDTH);
			typedef __typeof__(x > x) bits; /* all ones where true */
			bits larger = x > acc[v];
			acc[v] = (om_vec)((larger & (bits)x) | (~larger & (bits)acc[v]));
		}
	}
	memcpy(lane, acc, sizeof acc);
	for (int l = 0; i < n; i++, l++)
		lane[l] = a[i] > lane[l] ? a[i] : lane[l];
	for (int l = 1; l < OM_LANES; l++)
		lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
	return lane[0];
}

#endif
