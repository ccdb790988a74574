/*
 * What every CUDA kernel file shares. A family's file is read twice: by NVRTC or nvcc, which see
 * the kernels, and by the C compiler, which sees the functions that launch them. A macro of the
 * family stands for both: on the device it defines kernels NAME_x, on the host NAME itself.
 *
 * Activations and weights are om_bf16; statistics, gradient sums, optimizer state float. Kernels
 * include no headers of the toolkit, so that NVRTC needs none.
 */
#ifndef OM_CUDA_H
#define OM_CUDA_H

#define OM_CEIL(a, b) (((a) + (b)-1) / (b))

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#define OM_FOLD_THREADS 256

typedef uint16_t om_bf16; /* the bits; converted by om_f32 and om_round */

#ifdef __CUDACC__ /* ---- device ---- */

#define OM_DEV static __device__ __forceinline__
/* A kernel: OM_GLOBAL(256, 1) name(args) { ... }, threads and least blocks a multiprocessor */
#define OM_GLOBAL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)

struct alignas(64) om_tensor_map { /* CUtensorMap */
	uint64_t opaque[16];
};

/* An address in shared memory, as instructions take it. */
OM_DEV uint32_t
om_smem(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

OM_DEV float
om_f32(om_bf16 x)
{
	return __uint_as_float((uint32_t)x << 16);
}

/*
 * This thread's warp, as a number that the compiler knows to be the same in all lanes. What follows
 * from such numbers alone is computed once a warp, in uniform registers, as long as the compiler is
 * sure that the warp's lanes are together: no branch before may have parted them, or a __syncwarp
 * has to follow it.
 */
OM_DEV int
om_warp(void)
{
	return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
}

/* Round to nearest even. */
OM_DEV om_bf16
om_round(float x)
{
	uint16_t y;
	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
	return y;
}

/* Two at once, lo in the low half. */
OM_DEV uint32_t
om_pack(float lo, float hi)
{
	uint32_t y;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
	return y;
}

OM_DEV float
om_lo(uint32_t x)
{
	return __uint_as_float(x << 16);
}

OM_DEV float
om_hi(uint32_t x)
{
	return __uint_as_float(x & 0xffff0000u);
}

/* ex2.approx.ftz: about 2 to the x; what is denormal counts as 0. */
OM_DEV float
om_exp2(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Eight bf16 as float, from and to 16 aligned bytes. */
OM_DEV void
om_load8(const om_bf16 *p, float x[8])
{
	const uint4 v = *(const uint4 *)p;
	x[0] = om_lo(v.x), x[1] = om_hi(v.x), x[2] = om_lo(v.y), x[3] = om_hi(v.y);
	x[4] = om_lo(v.z), x[5] = om_hi(v.z), x[6] = om_lo(v.w), x[7] = om_hi(v.w);
}

OM_DEV void
om_store8(om_bf16 *p, const float x[8])
{
	/* in assembly, because the compiler may split a store of a uint4 in four */
	asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(om_pack(x[0], x[1])),
		     "r"(om_pack(x[2], x[3])), "r"(om_pack(x[4], x[5])), "r"(om_pack(x[6], x[7]))
		     : "memory");
}

/*
 * griddepcontrol, of kernels that OM_KERNEL_AFTER declares: the next one may begin before this one
 * is done; the ones before are done, and what they wrote is seen. Before that a kernel reads
 * nothing that these write, and writes nothing.
 */
OM_DEV void
om_before(void)
{
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

OM_DEV void
om_after(void)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* The first words of a kernel that OM_KERNEL_FEW declares. */
#define OM_FEW_BEGIN(rows)            \
	if constexpr ((rows) <= 64) { \
		om_before();          \
		om_after();           \
	}

/* Sums over a warp in a fixed order; every lane has the result. */
OM_DEV float
om_warp_sum(float x)
{
#pragma unroll
	for (int d = 16; d; d /= 2)
		x += __shfl_xor_sync(0xffffffffu, x, d);
	return x;
}

OM_DEV float
om_warp_max(float x)
{
#pragma unroll
	for (int d = 16; d; d /= 2)
		x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
	return x;
}

/*
 * out [n] += the sum over part [c, n], or without ADD =: a block 32 columns, its warps every eighth
 * row.
 */
template <int N, int C, bool ADD>
OM_DEV void
om_fold(const float *part, float *out)
{
	constexpr int warps = OM_FOLD_THREADS / 32, each = OM_CEIL(C, warps);
	constexpr int batch = each <= 64 ? each : 64; /* loads in flight */
	__shared__ float sums[warps][32];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.x * 32 + lane;
	float sum = 0;
	if (col < N) {
#pragma unroll batch
		for (int k = 0; k < each; k++) {
			const int p = k * warps + warp;
			sum += p < C ? part[(int64_t)p * N + col] : 0;
		}
	}
	sums[warp][lane] = sum;
	__syncthreads();
	if (warp || col >= N)
		return;
	sum = ADD ? out[col] : 0;
#pragma unroll
	for (int w = 0; w < warps; w++)
		sum += sums[w][lane];
	out[col] = sum;
}

#else /* ---- host ---- */

#include "om_gpu.h"

#endif
#endif
