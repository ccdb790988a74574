/*
 * Hopper's instructions (sm_90a) as functions, for gemm_sm90.h and attention_sm90.h: barriers in
 * shared memory, the copy engine (TMA), products of a warpgroup (wgmma). Each comment begins with
 * the name of the PTX instruction; "PTX ISA" of the CUDA Toolkit has its whole definition.
 *
 * An address in shared memory is a uint32_t (om_smem), that of a barrier too: 8 bytes, aligned.
 * A warpgroup is four warps, the first of which has a number divisible by four.
 */
#ifndef OM_SM90_H
#define OM_SM90_H

#include "om_cuda.h"

#ifdef __CUDACC__

/*
 * ---- barriers (mbarrier) ----
 * A phase of a barrier is over when as many threads have arrived as it was made for, and all bytes
 * that were announced have been copied. Phases have parity 0, 1, 0, ...
 */

/* mbarrier.init: a barrier for so many arrivals, in its phase of parity 0. */
OM_DEV void
om_bar_init(uint32_t bar, int arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals)
		     : "memory");
}

/*
 * fence.mbarrier_init: barriers that this thread has made can be used by the copy engine; for other
 * threads, a __syncthreads follows.
 */
OM_DEV void
om_bar_ready(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* mbarrier.arrive: this thread arrives, and does not wait. */
OM_DEV void
om_bar_arrive(uint32_t bar)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* mbarrier.arrive.expect_tx: arrives, and the phase lasts until so many bytes more are copied. */
OM_DEV void
om_bar_expect(uint32_t bar, int bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
		     : "memory");
}

/*
 * mbarrier.try_wait: waits until the phase of that parity is over; 1 on a new barrier returns at
 * once. Who waits must not be two phases behind, which parity does not tell from none.
 */
OM_DEV void
om_bar_wait(uint32_t bar, uint32_t parity)
{
	asm volatile("{ .reg .pred p;\n.reg .u32 n;\n"
		     "mov.u32 n, 0;\n"
		     "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
		     "@p bra done;\n"
		     "add.u32 n, n, 1;\n"
		     "setp.gt.u32 p, n, 16777216;\n"
		     "@p trap;\n" /* after seconds: better an error than a hang */
		     "bra again;\n"
		     "done: }" ::"r"(bar),
		     "r"(parity)
		     : "memory");
}

/* bar.sync: threads of the block, a multiple of 32, meet at one of its 16 named barriers. */
OM_DEV void
om_meet(int name, int threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/*
 * ---- the copy engine (TMA) ----
 * A box is what a tensor map says, at coordinates of the innermost dimension first. What lies
 * outside of the tensor is read as zeros, and is not written. One thread issues a copy.
 */

/* cp.async.bulk.tensor: a box to shared memory; its bytes count at the barrier. */
OM_DEV void
om_tma_load(uint32_t to, const om_tensor_map *map, uint32_t bar, int x, int y, int z)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
		     " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
		     "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
		     : "memory");
}

OM_DEV void
om_tma_load(uint32_t to, const om_tensor_map *map, uint32_t bar, int x, int y, int z, int u)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
		     " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
		     "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(u)
		     : "memory");
}

/* cp.async.bulk: a whole number of aligned 16 bytes, in a row, to shared memory. */
OM_DEV void
om_bulk_load(uint32_t to, const void *from, int bytes, uint32_t bar)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
		     " [%0], [%1], %2, [%3];" ::"r"(to),
		     "l"(from), "r"(bytes), "r"(bar)
		     : "memory");
}

/*
 * The same of what is read once, and back of what will be: by the policy evict_first it leaves the
 * second-level cache before what is read again.
 */
#define OM_ONCE "l"(0x12f0000000000000ull)
OM_DEV void
om_bulk_load_once(uint32_t to, const void *from, int bytes, uint32_t bar)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
		     ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
		     "l"(from), "r"(bytes), "r"(bar), OM_ONCE
		     : "memory");
}

OM_DEV void
om_bulk_store_once(void *to, uint32_t from, int bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint"
		     " [%0], [%1], %2, %3;" ::"l"(to),
		     "r"(from), "r"(bytes), OM_ONCE
		     : "memory");
}

/* cp.async.bulk.tensor: a box from shared memory to the device's. */
OM_DEV void
om_tma_store(const om_tensor_map *map, uint32_t from, int x, int y, int z)
{
	asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group"
		     " [%0, {%2, %3, %4}], [%1];" ::"l"(map),
		     "r"(from), "r"(x), "r"(y), "r"(z)
		     : "memory");
}

OM_DEV void
om_tma_store(const om_tensor_map *map, uint32_t from, int x, int y, int z, int u)
{
	asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group"
		     " [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
		     "r"(from), "r"(x), "r"(y), "r"(z), "r"(u)
		     : "memory");
}

/* cp.reduce.async.bulk.tensor: the same, added to what is there. */
OM_DEV void
om_tma_add(const om_tensor_map *map, uint32_t from, int x, int y, int z)
{
	asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group"
		     " [%0, {%2, %3, %4}], [%1];" ::"l"(map),
		     "r"(from), "r"(x), "r"(y), "r"(z)
		     : "memory");
}

/* cp.async.bulk.commit_group: this thread's stores since the last one become a group. */
OM_DEV void
om_bulk_commit(void)
{
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* cp.async.bulk.wait_group.read: all but the last LEFT groups of this thread have read. */
template <int LEFT = 0>
OM_DEV void
om_bulk_wait_read(void)
{
	asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

/* cp.async.bulk.wait_group: all groups of this thread are written. */
OM_DEV void
om_bulk_wait(void)
{
	asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/*
 * fence.proxy.async: what this thread wrote to shared memory can be read by the copy engine and by
 * wgmma; where another thread issues them, a barrier follows.
 */
OM_DEV void
om_fence_async(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/*
 * stmatrix: four matrices of 8 x 8 numbers of 16 bits from the registers of a warp to shared
 * memory. Lane i gives the address of row i % 8 of matrix i / 8, and has of each matrix the two
 * numbers of row i / 4 from column i % 4 * 2 on.
 */
OM_DEV void
om_stmatrix(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
		     "r"(a), "r"(b), "r"(c), "r"(d)
		     : "memory");
}

/* The same, each matrix transposed. */
OM_DEV void
om_stmatrix_turned(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
	asm volatile(
	    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
	    "r"(a), "r"(b), "r"(c), "r"(d)
	    : "memory");
}

/* setmaxnreg: each thread of the warpgroup has so many registers from here on, more or fewer. */
template <int REGISTERS, bool MORE>
OM_DEV void
om_registers(void)
{
	if constexpr (MORE)
		asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
	else
		asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/*
 * ---- products (wgmma) ----
 * A warpgroup multiplies asynchronously: fence, products, commit, wait. Thread t has of an
 * accumulator [64, N], of every 8 columns n, the two from 8 n + t % 4 * 2 on: c[4 n] and c[4 n + 1]
 * in row r = t / 32 * 16 + t % 32 / 4, the next two in row r + 8.
 */

/* wgmma.fence: registers and accumulators written so far are seen by the products that follow. */
OM_DEV void
om_wgmma_fence(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* The same, for a left operand in registers: what computes it does not move below this. */
template <int N>
OM_DEV void
om_wgmma_fence(uint32_t (&a)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+r"(a[i])::"memory");
	om_wgmma_fence();
}

/* wgmma.commit_group: the products since the last one become a group. */
OM_DEV void
om_wgmma_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* wgmma.wait_group: all but the last LEFT groups are done. */
template <int LEFT>
OM_DEV void
om_wgmma_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* An accumulator is there only now, which the compiler does not know: no use moves up. */
template <int N>
OM_DEV void
om_wgmma_keep(float (&c)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(c[i])::"memory");
}

template <int LEFT, int N>
OM_DEV void
om_wgmma_wait(float (&c)[N])
{
	om_wgmma_wait<LEFT>();
	om_wgmma_keep(c);
}

/*
 * The descriptor of an operand in shared memory, in rows of ROW bytes (64 or 128) that are swizzled
 * as the copy engine does. Groups of 8 rows follow each other. leading: bytes to the next column of
 * such rows where the sum is along columns (transposed); otherwise a row holds all that one product
 * reads, and it is not looked at. A later part of the operand: its distance in 16 bytes is added.
 */
template <int ROW>
OM_DEV uint64_t
om_wgmma_desc(uint32_t at, int leading = 16)
{
	static_assert(ROW == 64 || ROW == 128, "rows in 64-byte or 128-byte swizzle");
	const uint64_t rows8 = 8 * ROW, swizzle = ROW == 128 ? 1 : 2;
	return (uint64_t)(at >> 4) | (uint64_t)(leading >> 4) << 16 | rows8 >> 4 << 32 |
	       swizzle << 62;
}

/* the accumulator's registers: their names in the instruction's text, and as operands */
#define OM_R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define OM_R1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define OM_R2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define OM_R3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define OM_R4 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define OM_R5 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define OM_R6 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define OM_R7 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define OM_C4(io, i) io(c[i]), io(c[(i) + 1]), io(c[(i) + 2]), io(c[(i) + 3])
#define OM_C16(io, i) OM_C4(io, i), OM_C4(io, (i) + 4), OM_C4(io, (i) + 8), OM_C4(io, (i) + 12)
#define OM_C64(io, i) \
	OM_C16(io, i), OM_C16(io, (i) + 16), OM_C16(io, (i) + 32), OM_C16(io, (i) + 48)

/* Both operands by descriptor; A, B and so on: the numbers of operands behind the accumulator's. */
#define OM_WGMMA(N, REGISTERS, A, B, ADD, AT, BT, ...)                                     \
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ADD ", 0;\n"                     \
		     "wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" REGISTERS \
		     "}, %" A ", %" B ", p, 1, 1, %" AT ", %" BT ";\n}"                    \
		     : __VA_ARGS__                                                         \
		     : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB))

/* The left operand in registers, the sum along columns of the right one; always added. */
#define OM_WGMMA_R(N, REGISTERS, A0, A1, A2, A3, B, ...)                                         \
	asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" REGISTERS "}, " \
		     "{%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B ", 1, 1, 1, 1;"                 \
		     : __VA_ARGS__                                                               \
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/*
 * wgmma.mma_async: c [64, N] = a [64, 16] b [16, N], added to c. By descriptors; TA
 * and TB: the operand is transposed, its rows are along m (n).
 */
template <int N, int TA, int TB>
OM_DEV void
om_wgmma(float *c, uint64_t a, uint64_t b)
{
	const int add = 1;
	static_assert(N == 64 || N == 128 || N == 256, "widths of a tile");
	if constexpr (N == 64)
		OM_WGMMA("64", OM_R0 "," OM_R1, "32", "33", "34", "35", "36", OM_C16("+f", 0),
		    OM_C16("+f", 16));
	if constexpr (N == 128)
		OM_WGMMA("128", OM_R0 "," OM_R1 "," OM_R2 "," OM_R3, "64", "65", "66", "67", "68",
		    OM_C64("+f", 0));
	if constexpr (N == 256)
		OM_WGMMA("256",
		    OM_R0 "," OM_R1 "," OM_R2 "," OM_R3 "," OM_R4 "," OM_R5 "," OM_R6 "," OM_R7,
		    "128", "129", "130", "131", "132", OM_C64("+f", 0), OM_C64("+f", 64));
}

/* The same, and c is overwritten, whatever it holds: the compiler need not keep it. */
template <int N, int TA, int TB>
OM_DEV void
om_wgmma_first(float *c, uint64_t a, uint64_t b)
{
	static_assert(N == 64 || N == 128 || N == 256, "widths of a tile, or of a step");
	const int add = 0;
	if constexpr (N == 64)
		OM_WGMMA("64", OM_R0 "," OM_R1, "32", "33", "34", "35", "36", OM_C16("=f", 0),
		    OM_C16("=f", 16));
	if constexpr (N == 128)
		OM_WGMMA("128", OM_R0 "," OM_R1 "," OM_R2 "," OM_R3, "64", "65", "66", "67", "68",
		    OM_C64("=f", 0));
	if constexpr (N == 256)
		OM_WGMMA("256",
		    OM_R0 "," OM_R1 "," OM_R2 "," OM_R3 "," OM_R4 "," OM_R5 "," OM_R6 "," OM_R7,
		    "128", "129", "130", "131", "132", OM_C64("=f", 0), OM_C64("=f", 64));
}

/* Both operands by descriptor, in e4m3, which are always along k. */
#define OM_WGMMA_8(N, REGISTERS, A, B, ADD, ...)                                           \
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ADD ", 0;\n"                     \
		     "wgmma.mma_async.sync.aligned.m64n" N "k32.f32.e4m3.e4m3 {" REGISTERS \
		     "}, %" A ", %" B ", p, 1, 1;\n}"                                      \
		     : __VA_ARGS__                                                         \
		     : "l"(a), "l"(b), "r"(add))

/*
 * wgmma.mma_async: c [64, 128] += a [64, 32] b [32, 128] of e4m3. The tensor cores keep about 14
 * bits of such sums: few may be added before they go to sums in fp32.
 */
OM_DEV void
om_wgmma_8(float (&c)[64], uint64_t a, uint64_t b)
{
	const int add = 1;
	OM_WGMMA_8("128", OM_R0 "," OM_R1 "," OM_R2 "," OM_R3, "64", "65", "66", OM_C64("+f", 0));
}

/*
 * The same, and c is overwritten. Where it holds something (AGAIN), the compiler has to keep it in
 * its registers, rather than have two of them where one is added up while the other is computed.
 */
template <bool AGAIN>
OM_DEV void
om_wgmma_8_first(float (&c)[64], uint64_t a, uint64_t b)
{
	const int add = 0;
	if constexpr (AGAIN)
		OM_WGMMA_8(
		    "128", OM_R0 "," OM_R1 "," OM_R2 "," OM_R3, "64", "65", "66", OM_C64("+f", 0));
	else
		OM_WGMMA_8(
		    "128", OM_R0 "," OM_R1 "," OM_R2 "," OM_R3, "64", "65", "66", OM_C64("=f", 0));
}

/* wgmma.mma_async: c [64, N] += a [64, 16] b [16, N], a in registers, b transposed. */
template <int N>
OM_DEV void
om_wgmma_r(float *c, const uint32_t *a, uint64_t b)
{
	static_assert(N == 32 || N == 64 || N == 96 || N == 128, "widths of a head");
	if constexpr (N == 32)
		OM_WGMMA_R("32", OM_R0, "16", "17", "18", "19", "20", OM_C16("+f", 0));
	if constexpr (N == 64)
		OM_WGMMA_R("64", OM_R0 "," OM_R1, "32", "33", "34", "35", "36", OM_C16("+f", 0),
		    OM_C16("+f", 16));
	if constexpr (N == 96)
		OM_WGMMA_R("96", OM_R0 "," OM_R1 "," OM_R2, "48", "49", "50", "51", "52",
		    OM_C16("+f", 0), OM_C16("+f", 16), OM_C16("+f", 32));
	if constexpr (N == 128)
		OM_WGMMA_R("128", OM_R0 "," OM_R1 "," OM_R2 "," OM_R3, "64", "65", "66", "67", "68",
		    OM_C64("+f", 0));
}

#endif
#endif
