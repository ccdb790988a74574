/*
 * Instructions of every machine since Ampere (sm_80) as functions, for gemm_mma.h, attention_mma.h
 * and head.h: copies to shared memory that a thread does not wait for, and the products of a warp.
 * Each comment begins with the name of the PTX instruction. An address in shared memory is a
 * uint32_t (om_smem).
 */
#ifndef OM_SM80_H
#define OM_SM80_H

#include "om_cuda.h"

#ifdef __CUDACC__

/* cp.async: 16 aligned bytes to shared memory. */
OM_DEV void
om_async_load(uint32_t to, const void *from)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* The same, of which the first `bytes` are read and the others are zero. */
OM_DEV void
om_async_load(uint32_t to, const void *from, int bytes)
{
	asm volatile(
	    "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
	    : "memory");
}

/* cp.async.commit_group: this thread's copies since the last one become a group. */
OM_DEV void
om_async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* cp.async.wait_group: all but the last LEFT groups of this thread have arrived. */
template <int LEFT>
OM_DEV void
om_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* cp.async.wait_all: all copies of this thread have arrived. */
OM_DEV void
om_async_wait_all(void)
{
	asm volatile("cp.async.wait_all;" ::: "memory");
}

/*
 * ldmatrix: four matrices of 8 x 8 numbers of 16 bits from shared memory to the registers of a
 * warp, x[m] of matrix m. Lane i gives the address of row i % 8 of matrix i / 8, and gets of each
 * matrix the two numbers of row i / 4 from column i % 4 * 2 on; transposed, those of column i / 4.
 */
template <int TRANSPOSED>
OM_DEV void
om_ldmatrix(uint32_t *x, uint32_t row)
{
	if constexpr (TRANSPOSED)
		asm volatile(
		    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		    : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
		    : "r"(row)
		    : "memory");
	else
		asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
			     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
			     : "r"(row)
			     : "memory");
}

/*
 * mma.sync: c [16, 8] += a [16, 16] b [16, 8] by a warp. Lane l has of c the columns l % 4 * 2 and
 * the next, in rows l / 4 and l / 4 + 8.
 */
OM_DEV void
om_mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
	    "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
#endif
