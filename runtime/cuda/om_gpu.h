/*
 * What the host part of a CUDA kernel file may use: launching on the stream whose turn it is,
 * tensor maps, and what a kernel's check needs. Every function ends the process, naming the
 * operation, when the driver reports an error.
 */
#ifndef OM_GPU_H
#define OM_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct om_kernel {
	const char *name;       /* its symbol */
	uint32_t threads, smem; /* of a block; bytes of dynamic shared memory */
	uint32_t cluster;       /* blocks along x, 0: none */
	bool after;             /* begins before the kernel before is done, and waits by itself */
	void *function;         /* found when the trainer starts */
	struct om_kernel *next;
};
void om_kernel_add(struct om_kernel *k);
/* Declares kernel NAME of the cubins for this file's launches. */
#define OM_KERNEL(NAME, THREADS, SMEM)                                                          \
	static struct om_kernel NAME = { .name = #NAME, .threads = (THREADS), .smem = (SMEM) }; \
	__attribute__((constructor)) static void NAME##_add(void)                               \
	{                                                                                       \
		om_kernel_add(&NAME);                                                           \
	}

/* The same of one that calls om_before and om_after (kernels/cuda/om_cuda.h), maybe in clusters. */
#define OM_KERNEL_AFTER(NAME, THREADS, SMEM, CLUSTER)             \
	static struct om_kernel NAME = { .name = #NAME,           \
		.threads = (THREADS),                             \
		.smem = (SMEM),                                   \
		.cluster = (CLUSTER),                             \
		.after = true };                                  \
	__attribute__((constructor)) static void NAME##_add(void) \
	{                                                         \
		om_kernel_add(&NAME);                             \
	}

/* The same where its rows are so few that a launch counts; else as any other. */
#define OM_KERNEL_FEW(NAME, THREADS, SMEM, ROWS)                                           \
	static struct om_kernel NAME = {                                                   \
		.name = #NAME, .threads = (THREADS), .smem = (SMEM), .after = (ROWS) <= 64 \
	};                                                                                 \
	__attribute__((constructor)) static void NAME##_add(void)                          \
	{                                                                                  \
		om_kernel_add(&NAME);                                                      \
	}

/* args: addresses of the kernel's arguments, in order: OM_LAUNCH(k, x, y, z, &a, &b) */
void om_launch(const struct om_kernel *k, uint32_t x, uint32_t y, uint32_t z, void **args);
#define OM_LAUNCH(k, x, y, z, ...) om_launch(&(k), (x), (y), (z), (void *[]){ __VA_ARGS__ })
void om_set_zero(void *p, size_t bytes); /* on that stream */
uint32_t om_sms(void);                   /* multiprocessors for a launch on that stream */
/* A kernel of this trainer reads and writes the memory of its group's other ranks. */
extern bool om_reaches;
#define OM_REACHES(NAME)                                              \
	__attribute__((constructor)) static void NAME##_reaches(void) \
	{                                                             \
		om_reaches = true;                                    \
	}
/* On the device, what kernels know of a group's other ranks, which are on this host (peers.h). */
const struct om_peers *om_peers(int group);

/*
 * A tensor map over a row-major matrix or stack of them: dim[0] is contiguous; stride[i] is the
 * bytes from one to the next along dim[i + 1]. box: elements copied at once; swizzle: 0, 32, 64 or
 * 128 bytes; what lies outside reads as zero.
 */
struct om_tensor_map {
	_Alignas(64) uint64_t opaque[16];
};
enum om_element { OM_MAP_BF16, OM_MAP_F32 };
void om_map(struct om_tensor_map *map, enum om_element type, const void *p, int rank,
    const uint64_t *dim, const uint64_t *stride, const uint32_t *box, int swizzle);

/* ---- checks: kernels on random numbers, compared on the host in double ---- */

#define OM_WRONG 1e30
/*
 * Uniform, mean 0, variance 1; stream tells the arrays of one check apart. The numbers repeat after
 * OM_CHECK_PERIOD of them, a prime.
 */
enum { OM_CHECK_PERIOD = 4194301 };
double om_unit(uint64_t seed, int stream, int64_t i);
float om_unit_bf16(uint64_t seed, int stream, int64_t i); /* the same, rounded to bf16 */
float om_bf16_f32(uint16_t x);
/* Device arrays: random by the two above times scale, copied from the host, or all NaN (0xff). */
uint16_t *om_check_bf16(int64_t n, uint64_t seed, int stream, float scale); /* rounded again */
float *om_check_f32(int64_t n, uint64_t seed, int stream, float scale);
/* What is added to, of unit scale; without add, NaN that must be overwritten. */
float *om_check_sum(int64_t n, bool add, uint64_t seed, int stream);
void *om_check_copy(const void *host, size_t bytes);
/* n elements, of which the host has the first OM_CHECK_PERIOD, or all where there are fewer. */
void *om_check_repeat(const void *host, int64_t n, size_t size);
void *om_check_nan(size_t bytes);
void om_check_write(void *device, const void *host, size_t bytes);
/* Copies back after the stream is done. */
void om_check_read(void *host, const void *device, size_t bytes);
void om_check_end(void); /* frees what the check allocated */
/*
 * What a check gave its kernel, as references read it (kernels/FAMILY_ref.h): a stream times a
 * power of two, in bf16 or in float, or the host's own.
 */
struct om_in {
	const float *host;
	uint64_t seed;
	int stream;
	bool f32;
	double scale; /* 0: 1 */
};
double om_in(struct om_in a, int64_t i);
#define OM_BF16(stream_) ((struct om_in){ .seed = seed, .stream = (stream_) })
#define OM_F32(stream_) ((struct om_in){ .seed = seed, .stream = (stream_), .f32 = true })
struct om_err {
	double diff, scale;
	bool wrong;
};
void om_err_add(struct om_err *e, double got, double want); /* NaN and infinity are wrong */
double om_err_value(const struct om_err *e);                /* largest error over largest value */
/* In place of this rank, one of those that a check is, or NULL. */
extern const struct om_peers *om_check_rank;
/* While om_check_timing is set: the median seconds of one call, over calls after warm-up. */
extern bool om_check_timing;
extern double om_check_seconds;
/* Times a statement at the end of a check, after its results were read. */
#define OM_TIME(...)                                                        \
	do {                                                                \
		if (om_check_timing) {                                      \
			om_time_begin();                                    \
			for (int om_i_ = 0; om_time_more(om_i_); om_i_++) { \
				__VA_ARGS__;                                \
			}                                                   \
		}                                                           \
	} while (0)
void om_time_begin(void);
bool om_time_more(int i); /* records events; after the last call sets om_check_seconds */

#endif
