/*
 * One tile of C for one kind of machine; gemm.h includes this once for each, hence no guard.
 *
 *   OM_TILE         suffix of the function
 *   OM_TILE_TARGET  its attribute
 *   OM_TILE_BYTES   size of a vector register
 *   OM_TILE_MR      rows of the micro-tile, OM_TILE_NV vectors wide
 */
#define OM_TILE_NV 2
#define OM_TILE_MICRO OM_CAT(om_gemm_micro_, OM_TILE)
#define OM_TILE_WIDTH ((int64_t)(OM_TILE_BYTES / sizeof(om_real)))

/* C [rows, cols] (+)= packed A [MR, kc] times columns of packed B, all sums in registers. */
static OM_INLINE OM_TILE_TARGET void
OM_TILE_MICRO(int64_t kc, const om_real *a, const om_real *b, om_real *c, int64_t ldc, int64_t rows,
    int64_t cols, bool add)
{
	typedef om_real vec __attribute__((vector_size(OM_TILE_BYTES), may_alias));
	typedef vec vecu __attribute__((aligned(sizeof(om_real))));
	enum { MR = OM_TILE_MR, NV = OM_TILE_NV, WIDTH = OM_TILE_BYTES / sizeof(om_real) };
	vec acc[MR][NV] = { 0 }, bv[NV];
	for (int64_t p = 0; p < kc; p++, b += OM_LANES) {
#pragma GCC unroll 2
		for (int v = 0; v < NV; v++) {
			const int sliver = v * WIDTH / OM_LANES, at = v * WIDTH % OM_LANES;
			bv[v] = *(const vec *)(b + sliver * OM_KC * OM_LANES + at);
		}
#pragma GCC unroll 16
		for (int i = 0; i < MR; i++) {
			om_real ai = a[i * OM_LDA + p];
#pragma GCC unroll 2
			for (int v = 0; v < NV; v++)
				acc[i][v] += ai * bv[v];
		}
	}
	if (rows >= MR && cols >= NV * WIDTH) {
#pragma GCC unroll 16
		for (int i = 0; i < MR; i++) {
#pragma GCC unroll 2
			for (int v = 0; v < NV; v++) {
				vecu *cv = (vecu *)(c + i * ldc + v * WIDTH);
				if (add)
					acc[i][v] += *cv;
				*cv = acc[i][v];
			}
		}
		return;
	}
	om_real edge[MR][NV * WIDTH];
#pragma GCC unroll 16
	for (int i = 0; i < MR; i++) {
#pragma GCC unroll 2
		for (int v = 0; v < NV; v++)
			*(vecu *)(edge[i] + v * WIDTH) = acc[i][v];
	}
	for (int64_t i = 0; i < om_min(rows, MR); i++) {
		for (int64_t j = 0; j < om_min(cols, NV * WIDTH); j++)
			c[i * ldc + j] = add ? c[i * ldc + j] + edge[i][j] : edge[i][j];
	}
}

/* The tile [i0, i1) x [j0, j1) of C. */
static __attribute__((noinline)) OM_TILE_TARGET void
OM_CAT(om_gemm_, OM_TILE)(const struct om_gemm *g, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
	_Alignas(64) om_real ap[OM_MT * OM_LDA];
	_Alignas(64) om_real bp[OM_NT * OM_KC];
	const int64_t mt = i1 - i0, nt = j1 - j0, rest = nt % OM_LANES, whole = nt - rest;
	if (!g->add && g->k == 0) /* a sum of nothing */
		for (int64_t i = i0; i < i1; i++)
			memset(g->c + i * g->ldc + j0, 0, (size_t)nt * sizeof *g->c);
	for (int64_t p = 0; p < g->k; p += OM_KC) {
		const int64_t kc = om_min(OM_KC, g->k - p);
		const om_real *b = g->b.p + (g->b.t ? j0 * g->b.ld + p : p * g->b.ld + j0);
		const size_t sliver = (size_t)kc * OM_LANES * sizeof *bp;
		if (rest)
			memset(bp + whole * OM_KC, 0, sliver);
		if (OM_TILE_NV * OM_TILE_WIDTH > OM_LANES && (nt + OM_LANES - 1) / OM_LANES % 2)
			memset(bp + (nt + OM_LANES - 1) / OM_LANES * OM_LANES * OM_KC, 0, sliver);
		if (g->b.t) {
			for (int64_t j = 0; j < nt; j += OM_LANES)
				om_transpose(bp + j * OM_KC, OM_LANES, b + j * g->b.ld, g->b.ld,
				    om_min(OM_LANES, nt - j), kc);
		} else {
			for (int64_t r = 0; r < kc; r++)
				om_copy(bp + r * OM_LANES, OM_KC * OM_LANES, b + r * g->b.ld,
				    OM_LANES, whole / OM_LANES, OM_LANES);
			om_copy(bp + whole * OM_KC, OM_LANES, b + whole, g->b.ld, kc, rest);
		}
		if (g->a.t)
			om_transpose(ap, OM_LDA, g->a.p + p * g->a.ld + i0, g->a.ld, kc, mt);
		else
			om_copy(ap, OM_LDA, g->a.p + i0 * g->a.ld + p, g->a.ld, mt, kc);
		for (int64_t i = mt; i % OM_TILE_MR; i++)
			memset(ap + i * OM_LDA, 0, (size_t)kc * sizeof *ap);
		for (int64_t j = 0; j < nt; j += OM_TILE_NV * OM_TILE_WIDTH) {
			const om_real *bj = bp + j / OM_LANES * OM_LANES * OM_KC + j % OM_LANES;
			for (int64_t i = 0; i < mt; i += OM_TILE_MR)
				OM_TILE_MICRO(kc, ap + i * OM_LDA, bj,
				    g->c + (i0 + i) * g->ldc + j0 + j, g->ldc, mt - i, nt - j,
				    g->add || p);
		}
	}
}

#undef OM_TILE
#undef OM_TILE_TARGET
#undef OM_TILE_BYTES
#undef OM_TILE_MR
#undef OM_TILE_NV
#undef OM_TILE_MICRO
#undef OM_TILE_WIDTH
