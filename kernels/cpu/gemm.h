/*
 * C [m, n] = A [m, k] B [k, n], or C += A B, on row-major arrays; A and B may be stored transposed.
 *
 * The scheme is that of Goto and van de Geijn ("Anatomy of high-performance matrix multiplication",
 * 2008) as BLIS arranges it, with tiles of C as the unit of parallel work: one thread computes a tile of
 * at most OM_MT x OM_NT over the whole of k, block by block of OM_KC, from private packed copies of A and
 * B on its stack. Nothing is shared, so there is no barrier, and grouped products hand out the tiles of
 * all experts in one go. The price, B packed again for each OM_MT rows, is a few percent.
 *
 * An element is the sum over blocks of k, in order, of sums over the block's products, in order. Neither
 * tiles, threads nor the machine's vector length change that order.
 *
 * Packed A: rows of OM_LDA. Packed B: slivers of OM_LANES columns, [sliver][k][lane]. Both are padded
 * with zeros; nothing beyond the arrays is read.
 */
#ifndef OM_GEMM_H
#define OM_GEMM_H

#include "om_cpu.h"

enum {
	OM_KC = 768 / sizeof(om_real), /* two slivers of B take half of a 48 KiB L1 */
	OM_LDA = OM_KC + OM_LANES,     /* an odd number of lines: rows of A spread over the cache's sets */
	OM_MU = 14, OM_NU = 32,        /* the largest micro-tile; tiles are cut at its multiples */
	OM_MT = 18 * OM_MU,            /* also a multiple of the others' heights */
	OM_NT = 8 * OM_NU,             /* stack: 252 * 832 + 256 * 768 bytes, 400 KiB */
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
		for (; c + OM_LANES <= cols; c += OM_LANES)
			*(om_vecu *)(d + c) = *(const om_vecu *)(s + c);
		for (; c < cols; c++)
			d[c] = s[c];
	}
}

/* d[c, r] = s[r, c], by blocks of 4 x 4 */
static OM_INLINE void
om_transpose(om_real *d, int64_t dld, const om_real *s, int64_t sld, int64_t rows, int64_t cols)
{
	typedef om_real vec4 __attribute__((vector_size(4 * sizeof(om_real)), may_alias,
	    aligned(sizeof(om_real))));
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

/* C [rows, cols] (+)= packed A [mr, kc] times nv slivers of B, all sums in registers. */
static OM_INLINE void
om_gemm_micro(const int mr, const int nv, int64_t kc, const om_real *a, const om_real *b, om_real *c,
    int64_t ldc, int64_t rows, int64_t cols, bool add)
{
	om_vec acc[OM_MU][2], bv[2];
#pragma GCC unroll 16
	for (int i = 0; i < mr; i++) {
#pragma GCC unroll 2
		for (int v = 0; v < nv; v++)
			acc[i][v] = (om_vec){ 0 };
	}
	for (int64_t p = 0; p < kc; p++) {
#pragma GCC unroll 2
		for (int v = 0; v < nv; v++)
			bv[v] = *(const om_vec *)(b + (v * OM_KC + p) * OM_LANES);
#pragma GCC unroll 16
		for (int i = 0; i < mr; i++) {
			om_real ai = a[i * OM_LDA + p];
#pragma GCC unroll 2
			for (int v = 0; v < nv; v++)
				acc[i][v] += ai * bv[v];
		}
	}
	if (rows >= mr && cols >= nv * OM_LANES) {
#pragma GCC unroll 16
		for (int i = 0; i < mr; i++) {
#pragma GCC unroll 2
			for (int v = 0; v < nv; v++) {
				om_vecu *cv = (om_vecu *)(c + i * ldc + v * OM_LANES);
				if (add)
					acc[i][v] += *cv;
				*cv = acc[i][v];
			}
		}
		return;
	}
	om_real edge[OM_MU][2 * OM_LANES];
#pragma GCC unroll 16
	for (int i = 0; i < mr; i++) {
#pragma GCC unroll 2
		for (int v = 0; v < nv; v++)
			*(om_vecu *)(edge[i] + v * OM_LANES) = acc[i][v];
	}
	for (int64_t i = 0; i < om_min(rows, mr); i++) {
		for (int64_t j = 0; j < om_min(cols, nv * OM_LANES); j++)
			c[i * ldc + j] = add ? c[i * ldc + j] + edge[i][j] : edge[i][j];
	}
}

/* The tile [i0, i1) x [j0, j1) of C. */
static OM_INLINE void
om_gemm_tile(const int mr, const int nv, const struct om_gemm *g, int64_t i0, int64_t i1, int64_t j0,
    int64_t j1)
{
	_Alignas(64) om_real ap[OM_MT * OM_LDA];
	_Alignas(64) om_real bp[OM_NT * OM_KC];
	const int64_t mt = i1 - i0, nt = j1 - j0, step = nv * OM_LANES;
	for (int64_t p = 0; p < g->k; p += OM_KC) {
		const int64_t kc = om_min(OM_KC, g->k - p);
		for (int64_t j = 0; j < nt; j += OM_LANES) {
			om_real *d = bp + j * OM_KC;
			int64_t cols = om_min(OM_LANES, nt - j);
			if (cols < OM_LANES)
				memset(d, 0, (size_t)kc * OM_LANES * sizeof *d);
			if (g->b.t)
				om_transpose(d, OM_LANES, g->b.p + (j0 + j) * g->b.ld + p, g->b.ld, cols, kc);
			else
				om_copy(d, OM_LANES, g->b.p + p * g->b.ld + j0 + j, g->b.ld, kc, cols);
		}
		if ((nt + OM_LANES - 1) / OM_LANES % nv) /* a micro-tile reads nv slivers */
			memset(bp + (nt + OM_LANES - 1) / OM_LANES * OM_LANES * OM_KC, 0,
			    (size_t)kc * OM_LANES * sizeof *bp);
		if (g->a.t)
			om_transpose(ap, OM_LDA, g->a.p + p * g->a.ld + i0, g->a.ld, kc, mt);
		else
			om_copy(ap, OM_LDA, g->a.p + i0 * g->a.ld + p, g->a.ld, mt, kc);
		for (int64_t i = mt; i % mr; i++)
			memset(ap + i * OM_LDA, 0, (size_t)kc * sizeof *ap);
		for (int64_t j = 0; j < nt; j += step) {
			for (int64_t i = 0; i < mt; i += mr)
				om_gemm_micro(mr, nv, kc, ap + i * OM_LDA, bp + j * OM_KC,
				    g->c + (i0 + i) * g->ldc + j0 + j, g->ldc, mt - i, nt - j, g->add || p);
		}
	}
}

/* Micro-tiles: as many sums as the registers hold beside nv vectors of B and one element of A. */
#ifdef __x86_64__
static __attribute__((noinline, target("avx512f"))) void
om_gemm_avx512(const struct om_gemm *g, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
	om_gemm_tile(14, 2, g, i0, i1, j0, j1);
}

static __attribute__((noinline, target("avx2,fma"))) void
om_gemm_avx2(const struct om_gemm *g, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
	om_gemm_tile(6, 1, g, i0, i1, j0, j1);
}
#endif

static __attribute__((noinline)) void
om_gemm_any(const struct om_gemm *g, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
	om_gemm_tile(2, 1, g, i0, i1, j0, j1);
}

/*
 * Thread tid of nth computes every nth tile, counting on from *item, so that several products can be
 * shared out as one. With ways > 1 a product is cut finer until its tiles divide by ways.
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
		int64_t item = 0;
		om_gemm_share(g, omp_get_num_threads(), omp_get_thread_num(), omp_get_num_threads(), &item);
	}
}

#endif
