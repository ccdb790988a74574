/*
 * C [m, n] = A [m, k] B [k, n], or C += A B, on row-major arrays; A and B may be stored transposed.
 *
 * The scheme is that of Goto and van de Geijn ("Anatomy of high-performance matrix multiplication",
 * 2008) as BLIS arranges it, with tiles of C as the unit of parallel work: one thread computes a
 * tile of at most OM_MT x OM_NT over the whole of k, block by block of OM_KC, from private packed
 * copies of A and B on its stack. Nothing is shared, so there is no barrier, and grouped products
 * hand out the tiles of all experts in one go. The price, B packed again for each OM_MT rows, is a
 * few percent.
 *
 * An element is the sum over blocks of k, in order, of sums over the block's products, in order.
 * Neither tiles, threads nor the machine's vector length change that order.
 *
 * Packed A: rows of OM_LDA. Packed B: slivers of OM_LANES columns, [sliver][k][lane]. Both are
 * padded with zeros; nothing beyond the arrays is read.
 */
#ifndef OM_GEMM_H
#define OM_GEMM_H

#include "om_cpu.h"

enum {
	OM_KC = 768 / sizeof(om_real), /* two slivers of B take half of a 48 KiB L1 */
	OM_LDA = OM_KC + OM_LANES,     /* an odd number of lines: rows spread over cache sets */
	OM_MU = 14,                    /* the largest micro-tile, at whose multiples C is cut */
	OM_NU = 32,
	OM_MT = 18 * OM_MU, /* a multiple of the other micro-tiles' heights too */
	OM_NT = 8 * OM_NU,  /* stack: 252 * 832 + 256 * 768 bytes, 400 KiB */
};

struct om_mat {
	const om_real *p;
	int64_t ld; /* elements from a stored row to the next */
	bool t;     /* stored transposed */
};

struct om_gemm {
	int64_t m, n, k;
	struct om_mat a, b;
	om_real *c;
	int64_t ldc;
	bool add; /* C += A B; without it C is not read */
};

/* d[r, c] = s[r, c] */
static OM_INLINE void
om_copy(om_real *d, int64_t dld, const om_real *s, int64_t sld, int64_t rows, int64_t cols)
{
	for (int64_t r = 0; r < rows; r++, d += dld, s += sld) {
		int64_t c = 0;
		/* two vectors a round: of one, gcc would make a slow "rep movs" */
		for (; c + OM_LANES <= cols; c += OM_LANES) {
			om_vec v0 = *(const om_vecu *)(s + c);
			om_vec v1 = *(const om_vecu *)(s + c + OM_WIDTH);
			*(om_vecu *)(d + c) = v0;
			*(om_vecu *)(d + c + OM_WIDTH) = v1;
		}
		for (; c < cols; c++)
			d[c] = s[c];
	}
}

/* d[c, r] = s[r, c], by blocks of 4 x 4 */
static OM_INLINE void
om_transpose(om_real *d, int64_t dld, const om_real *s, int64_t sld, int64_t rows, int64_t cols)
{
	typedef om_real vec4
	    __attribute__((vector_size(4 * sizeof(om_real)), may_alias, aligned(sizeof(om_real))));
	int64_t r = 0;
	for (; r + 4 <= rows; r += 4) {
		const om_real *s0 = s + r * sld;
		int64_t c = 0;
		for (; c + 4 <= cols; c += 4) {
			vec4 a0 = *(const vec4 *)(s0 + c), a1 = *(const vec4 *)(s0 + sld + c);
			vec4 a2 = *(const vec4 *)(s0 + 2 * sld + c);
			vec4 a3 = *(const vec4 *)(s0 + 3 * sld + c);
			vec4 b0 = __builtin_shufflevector(a0, a1, 0, 4, 1, 5);
			vec4 b1 = __builtin_shufflevector(a2, a3, 0, 4, 1, 5);
			vec4 b2 = __builtin_shufflevector(a0, a1, 2, 6, 3, 7);
			vec4 b3 = __builtin_shufflevector(a2, a3, 2, 6, 3, 7);
			om_real *d0 = d + c * dld + r;
			*(vec4 *)d0 = __builtin_shufflevector(b0, b1, 0, 1, 4, 5);
			*(vec4 *)(d0 + dld) = __builtin_shufflevector(b0, b1, 2, 3, 6, 7);
			*(vec4 *)(d0 + 2 * dld) = __builtin_shufflevector(b2, b3, 0, 1, 4, 5);
			*(vec4 *)(d0 + 3 * dld) = __builtin_shufflevector(b2, b3, 2, 3, 6, 7);
		}
		for (; c < cols; c++) {
			for (int i = 0; i < 4; i++)
				d[c * dld + r + i] = s0[i * sld + c];
		}
	}
	for (; r < rows; r++) {
		for (int64_t c = 0; c < cols; c++)
			d[c * dld + r] = s[r * sld + c];
	}
}

/*
 * om_gemm_NAME, a tile of C on one kind of machine: as many sums as its registers
 * hold beside two vectors of B and one element of A.
 */
#ifdef __x86_64__
#define OM_TILE avx512
#define OM_TILE_TARGET __attribute__((target("avx512f")))
#define OM_TILE_BYTES 64
#define OM_TILE_MR 14
#include "gemm_tile.h"

#define OM_TILE avx2
#define OM_TILE_TARGET __attribute__((target("avx2,fma")))
#define OM_TILE_BYTES 32
#define OM_TILE_MR 6
#include "gemm_tile.h"
#endif

#define OM_TILE any
#define OM_TILE_TARGET
#define OM_TILE_BYTES 16
#define OM_TILE_MR 6
#include "gemm_tile.h"

/*
 * Thread tid of nth computes every nth tile, counting on from *item, so that several products can
 * be shared out as one. With ways > 1 a product is cut finer until its tiles divide by ways.
 */
static void
om_gemm_share(const struct om_gemm *g, int ways, int tid, int nth, int64_t *item)
{
	/* whole micro-tiles, dealt out evenly over mb x nb tiles */
	const int64_t mu = (g->m + OM_MU - 1) / OM_MU, nu = (g->n + OM_NU - 1) / OM_NU;
	const int64_t nb = (g->n + OM_NT - 1) / OM_NT;
	int64_t mb = (g->m + OM_MT - 1) / OM_MT;
	while (mb * nb % ways && mb * nb < 4 * ways && mu / (mb + 1) >= 2)
		mb++;
	for (int64_t t = 0; t < mb * nb; t++) {
		if ((*item)++ % nth != tid)
			continue;
		int64_t ib = t / nb, jb = t % nb;
		int64_t i0 = mu * ib / mb * OM_MU, i1 = om_min(g->m, mu * (ib + 1) / mb * OM_MU);
		int64_t j0 = nu * jb / nb * OM_NU, j1 = om_min(g->n, nu * (jb + 1) / nb * OM_NU);
#ifdef __x86_64__
		if (__builtin_cpu_supports("avx512f"))
			om_gemm_avx512(g, i0, i1, j0, j1);
		else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
			om_gemm_avx2(g, i0, i1, j0, j1);
		else
#endif
			om_gemm_any(g, i0, i1, j0, j1);
	}
}

/* By the calling thread alone. */
static inline void
om_gemm_serial(const struct om_gemm *g)
{
	int64_t item = 0;
	om_gemm_share(g, 1, 0, 1, &item);
}

/* By all threads. */
static inline void
om_gemm(const struct om_gemm *g)
{
#pragma omp parallel
	{
		const int nth = omp_get_num_threads();
		int64_t item = 0;
		om_gemm_share(g, nth, omp_get_thread_num(), nth, &item);
	}
}

#endif
