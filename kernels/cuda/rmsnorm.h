/*
 * Root mean square norm (Zhang and Sennrich, 2019). A row of h * n numbers is h groups of n, each
 * normalised on its own; the groups share w [n].
 *
 *   rmsnorm      y [m, h * n] = x r w, r [m * h] = 1 / sqrt(mean(x^2) + eps)
 *   rmsnorm_bwd  dx = r (dy w - x r^2 mean(dy w x)); dx may be dy;
 *                dw [n] += sum over groups of dy x r
 *
 * n is a multiple of 8, at most 8192. A group belongs to OM_RMSNORM_TEAM threads of a block of
 * 256: as many as it has vectors of 8 numbers, rounded up to a power of two. Beyond 2048 numbers a
 * thread has several vectors. They stay in registers between the sum and its use. Several groups
 * are under way at once (OM_RMSNORM_DEEP), all loaded before the first is used, so that enough
 * bytes are in flight and a barrier serves them all.
 *
 * In rmsnorm_bwd a block walks through one of c fixed ranges of groups; a thread keeps dw of its
 * columns. ws [c, n] holds the ranges' sums; _fold adds them in a fixed order.
 */
#ifndef OM_RMSNORM_H
#define OM_RMSNORM_H

#include "om_cuda.h"

#define OM_RMSNORM_THREADS 256
#define OM_RMSNORM_TEAM(n)    \
	((n) > 1024     ? 256 \
	    : (n) > 512 ? 128 \
	    : (n) > 256 ? 64  \
	    : (n) > 128 ? 32  \
	    : (n) > 64  ? 16  \
	    : (n) > 32  ? 8   \
			: 4)
#define OM_RMSNORM_VECTORS(n) OM_CEIL(n, 8 * OM_RMSNORM_TEAM(n)) /* of a thread and group */
/* groups under way at once: of a team, forward and backward, and of a block, forward */
#define OM_RMSNORM_DEEP(n) (OM_RMSNORM_VECTORS(n) >= 2 ? 1 : 2)
#define OM_RMSNORM_BWD_DEEP(n) (OM_RMSNORM_VECTORS(n) >= 4 ? 1 : 4 / OM_RMSNORM_VECTORS(n))
#define OM_RMSNORM_GROUPS(n) (OM_RMSNORM_THREADS / OM_RMSNORM_TEAM(n) * OM_RMSNORM_DEEP(n))

#define OM_RMSNORM_SIZES(m, h, n)                                                     \
	static_assert((m) >= 1 && (h) >= 1 && (n) >= 1, "rmsnorm: sizes start at 1"); \
	static_assert((n) % 8 == 0, "rmsnorm: the width is a multiple of 8");         \
	static_assert((n) <= 8192, "rmsnorm: the width is at most 8192");

#ifdef __CUDACC__

OM_DEV void
om_rmsnorm_open(const uint4 v, float x[8])
{
	x[0] = om_lo(v.x), x[1] = om_hi(v.x), x[2] = om_lo(v.y), x[3] = om_hi(v.y);
	x[4] = om_lo(v.z), x[5] = om_hi(v.z), x[6] = om_lo(v.w), x[7] = om_hi(v.w);
}

/*
 * Sums each of x over the thread's team; all of the block call it. turn alternates from one call to
 * the next: it chooses the buffer, so that one barrier a call is enough.
 */
template <int TEAM, int DEEP>
OM_DEV void
om_rmsnorm_sum(float x[DEEP], int turn)
{
#pragma unroll
	for (int d = (TEAM < 32 ? TEAM : 32) / 2; d; d /= 2) {
#pragma unroll
		for (int u = 0; u < DEEP; u++)
			x[u] += __shfl_xor_sync(0xffffffffu, x[u], d);
	}
	if constexpr (TEAM > 32) {
		constexpr int warps = TEAM / 32;
		__shared__ float part[2][OM_RMSNORM_THREADS / 32][DEEP];
		if (threadIdx.x % 32 == 0) {
#pragma unroll
			for (int u = 0; u < DEEP; u++)
				part[turn][threadIdx.x / 32][u] = x[u];
		}
		__syncthreads();
#pragma unroll
		for (int u = 0; u < DEEP; u++) {
			x[u] = 0;
#pragma unroll
			for (int w = 0; w < warps; w++)
				x[u] += part[turn][threadIdx.x / TEAM * warps + w][u];
		}
	}
}

/* Eight numbers at p, or zeros. The branch is one load: it becomes a predicate. */
OM_DEV uint4
om_rmsnorm_load(bool in, const om_bf16 *p)
{
	uint4 v = make_uint4(0, 0, 0, 0);
	if (in)
		v = *(const uint4 *)p;
	return v;
}

/* One store of 16 bytes: nvcc takes some of om_store8's apart. */
OM_DEV void
om_rmsnorm_store(om_bf16 *p, const float x[8])
{
	asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(om_pack(x[0], x[1])),
		     "r"(om_pack(x[2], x[3])), "r"(om_pack(x[4], x[5])), "r"(om_pack(x[6], x[7]))
		     : "memory");
}

template <int64_t GROUPS, int N>
OM_DEV void
om_rmsnorm(float eps, const om_bf16 *x, const om_bf16 *w, om_bf16 *y, float *r)
{
	constexpr int team = OM_RMSNORM_TEAM(N), vectors = OM_RMSNORM_VECTORS(N),
		      deep = OM_RMSNORM_DEEP(N), teams = OM_RMSNORM_THREADS / team;
	const int lane = threadIdx.x % team;
	const int64_t first = (int64_t)blockIdx.x * (teams * deep) + threadIdx.x / team;
	uint4 a[deep][vectors], b[vectors];
	float scale[deep] = {};
#pragma unroll
	for (int v = 0; v < vectors; v++) {
		const int c = (lane + v * team) * 8;
#pragma unroll
		for (int u = 0; u < deep; u++) {
			const int64_t i = first + u * teams;
			a[u][v] = om_rmsnorm_load(i < GROUPS && c < N, x + i * N + c);
		}
		b[v] = om_rmsnorm_load(c < N, w + c);
	}
#pragma unroll
	for (int u = 0; u < deep; u++) {
#pragma unroll
		for (int v = 0; v < vectors; v++) {
			float p[8];
			om_rmsnorm_open(a[u][v], p);
#pragma unroll
			for (int j = 0; j < 8; j++)
				scale[u] += p[j] * p[j];
		}
	}
	om_rmsnorm_sum<team, deep>(scale, 0);
#pragma unroll
	for (int u = 0; u < deep; u++) {
		const int64_t i = first + u * teams;
		scale[u] = rsqrtf(scale[u] * (1.0f / N) + eps);
		if (lane == 0 && i < GROUPS)
			r[i] = scale[u];
#pragma unroll
		for (int v = 0; v < vectors; v++) {
			const int c = (lane + v * team) * 8;
			float p[8], q[8];
			om_rmsnorm_open(a[u][v], p);
			om_rmsnorm_open(b[v], q);
#pragma unroll
			for (int j = 0; j < 8; j++)
				p[j] = p[j] * scale[u] * q[j];
			if (i < GROUPS && c < N)
				om_rmsnorm_store(y + i * N + c, p);
		}
	}
}

template <int64_t GROUPS, int N, int C>
OM_DEV void
om_rmsnorm_bwd(
    const om_bf16 *dy, const om_bf16 *x, const om_bf16 *w, const float *r, om_bf16 *dx, float *ws)
{
	constexpr int team = OM_RMSNORM_TEAM(N), vectors = OM_RMSNORM_VECTORS(N),
		      deep = OM_RMSNORM_BWD_DEEP(N), teams = OM_RMSNORM_THREADS / team;
	const int lane = threadIdx.x % team, mine = threadIdx.x / team;
	const int64_t lo = GROUPS * blockIdx.x / C, hi = GROUPS * (blockIdx.x + 1) / C;
	float dw[vectors][8] = {};
	int turn = 0;
	for (int64_t i0 = lo; i0 < hi; i0 += teams * deep) { /* the same for all of the block */
		uint4 d[deep][vectors], a[deep][vectors];
		float along[deep] = {}, ri[deep];
#pragma unroll
		for (int u = 0; u < deep; u++) {
			const int64_t i = i0 + mine + u * teams;
			ri[u] = 0;
			if (i < hi)
				ri[u] = r[i];
#pragma unroll
			for (int v = 0; v < vectors; v++) {
				const int c = (lane + v * team) * 8;
				d[u][v] = om_rmsnorm_load(i < hi && c < N, dy + i * N + c);
				a[u][v] = om_rmsnorm_load(i < hi && c < N, x + i * N + c);
			}
		}
#pragma unroll
		for (int v = 0; v < vectors; v++) {
			const int c = (lane + v * team) * 8;
			float p[8], q[8], s[8];
			om_rmsnorm_open(om_rmsnorm_load(c < N, w + c), s);
#pragma unroll
			for (int u = 0; u < deep; u++) {
				om_rmsnorm_open(d[u][v], p);
				om_rmsnorm_open(a[u][v], q);
#pragma unroll
				for (int j = 0; j < 8; j++) {
					p[j] *= q[j];
					along[u] += p[j] * s[j];
					dw[v][j] += p[j] * ri[u];
				}
			}
		}
		om_rmsnorm_sum<team, deep>(along, turn);
		turn ^= 1;
#pragma unroll
		for (int v = 0; v < vectors; v++) {
			const int c = (lane + v * team) * 8;
			float p[8], q[8], s[8];
			om_rmsnorm_open(om_rmsnorm_load(c < N, w + c), s);
#pragma unroll
			for (int u = 0; u < deep; u++) {
				const int64_t i = i0 + mine + u * teams;
				const float back = along[u] * ri[u] * ri[u] * (1.0f / N);
				om_rmsnorm_open(d[u][v], p);
				om_rmsnorm_open(a[u][v], q);
#pragma unroll
				for (int j = 0; j < 8; j++)
					p[j] = ri[u] * (p[j] * s[j] - q[j] * back);
				if (i < hi && c < N)
					om_rmsnorm_store(dx + i * N + c, p);
			}
		}
	}
	/* the teams' sums, in order; a group of several vectors a thread has but one team */
	float *const out = ws + (int64_t)blockIdx.x * N;
	if constexpr (teams == 1) {
#pragma unroll
		for (int v = 0; v < vectors; v++) {
			const int c = (lane + v * team) * 8;
			if (c < N) {
				*(float4 *)(out + c) =
				    make_float4(dw[v][0], dw[v][1], dw[v][2], dw[v][3]);
				*(float4 *)(out + c + 4) =
				    make_float4(dw[v][4], dw[v][5], dw[v][6], dw[v][7]);
			}
		}
	} else {
		__shared__ float part[OM_RMSNORM_THREADS * 8];
#pragma unroll
		for (int j = 0; j < 8; j++)
			part[(mine * team + lane) * 8 + j] = dw[0][j];
		__syncthreads();
#pragma unroll 1
		for (int c = threadIdx.x; c < N; c += OM_RMSNORM_THREADS) {
			float sum = 0;
			for (int t = 0; t < teams; t++)
				sum += part[t * team * 8 + c];
			out[c] = sum;
		}
	}
}

#define OM_RMSNORM(NAME, m, h, n, eps)                                       \
	OM_RMSNORM_SIZES(m, h, n)                                            \
	OM_GLOBAL(OM_RMSNORM_THREADS, 4)                                     \
	NAME##_x(const om_bf16 *x, const om_bf16 *w, om_bf16 *y, float *r)   \
	{                                                                    \
		om_rmsnorm<(int64_t)(m) * (h), n>((float)(eps), x, w, y, r); \
	}

#define OM_RMSNORM_BWD(NAME, m, h, n, c, add)                                           \
	OM_RMSNORM_SIZES(m, h, n)                                                       \
	static_assert((c) >= 1, "rmsnorm_bwd: at least one partial sum");               \
	OM_GLOBAL(OM_RMSNORM_THREADS, 2)                                                \
	NAME##_x(const om_bf16 *dy, const om_bf16 *x, const om_bf16 *w, const float *r, \
	    om_bf16 *dx, float *ws)                                                     \
	{                                                                               \
		om_rmsnorm_bwd<(int64_t)(m) * (h), n, c>(dy, x, w, r, dx, ws);          \
	}                                                                               \
	OM_GLOBAL(OM_FOLD_THREADS, 1) NAME##_fold(const float *ws, float *dw)           \
	{                                                                               \
		om_fold<n, c, add>(ws, dw);                                             \
	}

#else /* ---- host ---- */

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rmsnorm_ref.h"

#define OM_RMSNORM(NAME, m, h, n, eps)                                                           \
	OM_RMSNORM_SIZES(m, h, n)                                                                \
	OM_KERNEL(NAME##_x, OM_RMSNORM_THREADS, 0)                                               \
	void NAME(const om_bf16 *x, const om_bf16 *w, om_bf16 *y, float *r)                      \
	{                                                                                        \
		OM_LAUNCH(NAME##_x, OM_CEIL((int64_t)(m) * (h), OM_RMSNORM_GROUPS(n)), 1, 1, &x, \
		    &w, &y, &r);                                                                 \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_rmsnorm_check(NAME, (int64_t)(m) * (h), n, eps, seed);                 \
	}

#define OM_RMSNORM_BWD(NAME, m, h, n, c, add)                                            \
	OM_RMSNORM_SIZES(m, h, n)                                                        \
	static_assert((c) >= 1, "rmsnorm_bwd: at least one partial sum");                \
	OM_KERNEL(NAME##_x, OM_RMSNORM_THREADS, 0)                                       \
	OM_KERNEL(NAME##_fold, OM_FOLD_THREADS, 0)                                       \
	void NAME(const om_bf16 *dy, const om_bf16 *x, const om_bf16 *w, const float *r, \
	    om_bf16 *dx, float *dw, float *ws)                                           \
	{                                                                                \
		OM_LAUNCH(NAME##_x, c, 1, 1, &dy, &x, &w, &r, &dx, &ws);                 \
		OM_LAUNCH(NAME##_fold, OM_CEIL(n, 32), 1, 1, &ws, &dw);                  \
	}                                                                                \
	double NAME##_check(uint64_t seed)                                               \
	{                                                                                \
		return om_rmsnorm_bwd_check(NAME, (int64_t)(m) * (h), n, c, add, seed);  \
	}

enum { OM_RMSNORM_SAMPLES = 64, OM_RMSNORM_COLUMNS = 32 };

/* The sth of at most OM_RMSNORM_SAMPLES groups that are looked at; the last ones are among them. */
static inline int64_t
om_rmsnorm_sample(int64_t s, int64_t groups, uint64_t seed)
{
	if (groups <= OM_RMSNORM_SAMPLES)
		return s;
	if (s < 8)
		return groups - 1 - s;
	return (int64_t)((om_unit(seed, 99, s) / 3.4641016151377544 + 0.5) * (double)(groups - 1));
}

static inline double
om_rmsnorm_check(void (*run)(const om_bf16 *, const om_bf16 *, om_bf16 *, float *), int64_t groups,
    int64_t n, double eps, uint64_t seed)
{
	om_bf16 *x = om_check_bf16(groups * n, seed, 0, 1), *w = om_check_bf16(n, seed, 1, 1);
	om_bf16 *y = om_check_nan((size_t)(groups * n) * sizeof *y);
	om_bf16 *got = malloc((size_t)n * sizeof *got);
	float *r = om_check_nan((size_t)groups * sizeof *r), gr;
	struct om_err ey = { .scale = 1 }, er = { 0 };
	run(x, w, y, r);
	for (int64_t s = 0; s < groups && s < OM_RMSNORM_SAMPLES; s++) {
		const int64_t i = om_rmsnorm_sample(s, groups, seed);
		const double ri = om_rmsnorm_ref_r(OM_BF16(0), n, eps, i);
		om_check_read(got, y + i * n, (size_t)n * sizeof *got);
		om_check_read(&gr, r + i, sizeof gr);
		om_err_add(&er, gr, ri);
		for (int64_t j = 0; j < n; j++)
			om_err_add(&ey, om_bf16_f32(got[j]),
			    om_rmsnorm_ref_y(OM_BF16(0), OM_BF16(1), ri, n, i, j));
	}
	OM_TIME(run(x, w, y, r));
	om_check_end();
	free(got);
	/* r is float: held to 1e-5 where y is held to 4e-3 */
	return fmax(om_err_value(&ey), 400 * om_err_value(&er));
}

static inline double
om_rmsnorm_bwd_check(void (*run)(const om_bf16 *, const om_bf16 *, const om_bf16 *, const float *,
			 om_bf16 *, float *, float *),
    int64_t groups, int64_t n, int64_t c, bool add, uint64_t seed)
{
	om_bf16 *dy = om_check_bf16(groups * n, seed, 0, 1),
		*x = om_check_bf16(groups * n, seed, 1, 1);
	om_bf16 *w = om_check_bf16(n, seed, 2, 1);
	om_bf16 *dx = om_check_nan((size_t)(groups * n) * sizeof *dx);
	float *rh = malloc((size_t)groups * sizeof *rh);
	for (int64_t i = 0; i < groups; i++)
		rh[i] = (float)(fabs(om_unit(seed, 3, i)) + 0.5);
	float *r = om_check_copy(rh, (size_t)groups * sizeof *r);
	float *dw = om_check_sum(n, add, seed, 4), *again = om_check_sum(n, add, seed, 4);
	float *ws = om_check_nan((size_t)(c * n) * sizeof *ws);
	float *gw = malloc(2 * (size_t)n * sizeof *gw);
	om_bf16 *got = malloc(2 * (size_t)n * sizeof *got);
	struct om_err ex = { .scale = 1 }, ew = { .scale = 1 };
	run(dy, x, w, r, dx, dw, ws);
	/* once more, in place: dy is then lost, and its random numbers are asked for again */
	run(dy, x, w, r, dy, again, ws);
	for (int64_t s = 0; s < groups && s < OM_RMSNORM_SAMPLES; s++) {
		const int64_t i = om_rmsnorm_sample(s, groups, seed);
		const double along = om_rmsnorm_ref_along(OM_BF16(0), OM_BF16(1), OM_BF16(2), n, i);
		om_check_read(got, dx + i * n, (size_t)n * sizeof *got);
		om_check_read(got + n, dy + i * n, (size_t)n * sizeof *got);
		ex.wrong |= memcmp(got, got + n, (size_t)n * sizeof *got) != 0;
		for (int64_t j = 0; j < n; j++)
			om_err_add(&ex, om_bf16_f32(got[j]),
			    om_rmsnorm_ref_dx(
				OM_BF16(0), OM_BF16(1), OM_BF16(2), (double)rh[i], along, n, i, j));
	}
	om_check_read(gw, dw, (size_t)n * sizeof *gw);
	om_check_read(gw + n, again, (size_t)n * sizeof *gw);
	ew.wrong |= memcmp(gw, gw + n, (size_t)n * sizeof *gw) != 0;
	for (int64_t s = 0; s < n && s < OM_RMSNORM_COLUMNS; s++) {
		const int64_t j =
		    n <= OM_RMSNORM_COLUMNS ? s : s * (n - 1) / (OM_RMSNORM_COLUMNS - 1);
		om_err_add(&ew, gw[j],
		    (add ? om_in(OM_F32(4), j) : 0) + om_rmsnorm_ref_dw(OM_BF16(0), OM_BF16(1),
							  (struct om_in){ .host = rh }, groups, n,
							  j));
	}
	OM_TIME(run(dy, x, w, r, dx, dw, ws));
	om_check_end();
	free(rh);
	free(gw);
	free(got);
	/* dw is float: held to 1e-5 where dx is held to 4e-3 */
	return fmax(om_err_value(&ex), 400 * om_err_value(&ew));
}

#endif
#endif
