/*
 * The matrix product under linear, grouped and the head: C = A B^T of bf16, summed in fp32.
 *
 *   A [M, K] or, transposed, [K, M]        C [M, N] bf16, float, or added to float
 *   B [N, K] or, transposed, [K, N]
 *
 * Here is what its cores share: sizes, the walk over tiles, checks. The core is gemm_sm90.h on
 * Hopper, gemm_mma.h elsewhere. In both, a block walks over tiles of C, 128 rows by 64, 128 or 256,
 * slabs of A and B, 64 deep, pass through a ring of stages in shared memory, and the sums stay in
 * registers. Tiles need not divide sizes. An element of C is the work of one block, its sum in one
 * order, whichever block that is.
 *
 * Groups: rows are sorted by group, off[g] .. off[g + 1]; off is on the device.
 *   OM_GEMM_ONE    none
 *   OM_GEMM_ROWS   rows of A and C are in groups, each has its B of [G, N, K]
 *   OM_GEMM_SUMS   the rows that are summed over are in groups, each has its C of [G, M, N]; A and
 *                  B are transposed
 *   OM_GEMM_SPLIT  the sum is cut into G parts, each has its C of [G, M, N]
 * Planes: A may be the sum of two, stored one after the other; A[0] B^T + A[1] B^T is summed slab
 * by slab.
 * Pad: rows of A and of C are that multiple of elements apart. What lies between is not read.
 */
#ifndef OM_GEMM_H
#define OM_GEMM_H

#include "om_cuda.h"

#ifndef OM_ARCH /* the compute capability, times 10 */
#define OM_ARCH 90
#endif

enum { OM_GEMM_ONE, OM_GEMM_ROWS, OM_GEMM_SUMS, OM_GEMM_SPLIT };

#define OM_GEMM_M 128
#define OM_GEMM_K 64
#define OM_GEMM_SMS 132 /* what tiles are chosen for, whatever the device has */
#define OM_GEMM_PITCH(n, pad) (OM_CEIL(n, pad) * (pad))
#define OM_GEMM_ALIGN8(n) OM_GEMM_PITCH(n, 8)

/* The tile's width: 256 is fastest, 128 where it leaves fewer multiprocessors idle. */
#define OM_GEMM_WAVES(m, n, width) OM_CEIL(OM_CEIL(m, OM_GEMM_M) * OM_CEIL(n, width), OM_GEMM_SMS)
#define OM_GEMM_WIDE(n) ((n) <= 64 ? 64 : (n) <= 128 ? 128 : 256)
#define OM_GEMM_WIDTH(m, n) OM_GEMM_WIDTH_OF(m, n, n, n)
/* of n columns, so many if they are counted in whole tiles of 128 and of 256 */
#define OM_GEMM_WIDTH_OF(m, n, n128, n256)                                              \
	(OM_GEMM_WIDE(n) == 256 &&                                                      \
		    OM_GEMM_WAVES(m, n128, 128) * 11 < OM_GEMM_WAVES(m, n256, 256) * 20 \
		? 128                                                                   \
		: OM_GEMM_WIDE(n))

/* Widths of matrices side by side, each rounded up to a multiple of step; their tiles' width. */
#define OM_GEMM_TILED(step, a, b, c) \
	((OM_CEIL(a, step) + OM_CEIL(b, step) + OM_CEIL(c, step)) * (step))
#define OM_GEMM_MORE(a, b) ((a) > (b) ? (a) : (b))
#define OM_GEMM_WIDTH_3(m, a, b, c)                                                           \
	OM_GEMM_WIDTH_OF(m, OM_GEMM_MORE(a, OM_GEMM_MORE(b, c)), OM_GEMM_TILED(128, a, b, c), \
	    OM_GEMM_TILED(256, a, b, c))

/*
 * Parts of a sum over k where C has few tiles: about one tile a multiprocessor, each at least 8
 * slabs, none empty. The partial sums have at most SMS * 128 * 256 elements.
 */
#define OM_GEMM_SLABS(k) OM_CEIL(k, OM_GEMM_K)
#define OM_GEMM_FREE(m, n) (OM_GEMM_SMS / (OM_CEIL(m, OM_GEMM_M) * OM_CEIL(n, OM_GEMM_WIDE(n))))
#define OM_GEMM_LESS(a, b) ((a) < (b) ? (a) : (b))
#define OM_GEMM_WANT(m, n, k)                            \
	(OM_GEMM_FREE(m, n) < 2 || OM_GEMM_SLABS(k) < 16 \
		? 1                                      \
		: OM_GEMM_LESS(OM_GEMM_FREE(m, n), OM_GEMM_SLABS(k) / 8))
#define OM_GEMM_PART(m, n, k) OM_CEIL(OM_GEMM_SLABS(k), OM_GEMM_WANT(m, n, k))
#define OM_GEMM_PARTS(m, n, k) OM_CEIL(OM_GEMM_SLABS(k), OM_GEMM_PART(m, n, k))

#define OM_GEMM_SMEM_MAX 232448 /* 227 KiB */

#ifdef __CUDACC__ /* ---- device ---- */

/* ---- the walk over tiles ---- */

struct om_gemm_tile {
	int round;       /* how many tiles this block had */
	int group, base; /* the tile's group; that group's first tile (OM_GEMM_ROWS) */
	int first;       /* the group's first row of C */
	int row, col;    /* of the tile in the group's C */
	int rows;        /* of the group's C from there on */
	int k, slabs;    /* where its sum starts, and the slabs in it */
	int tail;        /* rows of the sum in the last slab, 0: all */
};

/*
 * This block's next tile. Tiles that run at the same time should share rows of A and B in the
 * second-level cache: within a group they go down 16 tiles of rows, then right.
 *
 * In OM_GEMM_SUMS the work in a tile is that of its group's rows. The largest groups go first, and
 * the blocks take tiles in turn forwards and backwards, which evens out the sums.
 */
template <int GROUPS, int G, int M, int N, int K, int WIDTH, int PLANES>
OM_DEV bool
om_gemm_next(om_gemm_tile &t, const int32_t *off, const int32_t *order)
{
	constexpr int across = OM_CEIL(N, WIDTH), down = 16;
	const int turn = t.round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
	const int tile = t.round++ * gridDim.x + turn;
	int high = OM_CEIL(M, OM_GEMM_M), at, k = K;
	t.first = t.k = 0;
	t.rows = M;
	if (GROUPS == OM_GEMM_ROWS) {
		for (;; t.base += high * across, t.group++) {
			if (t.group == G)
				return false;
			t.rows = off[t.group + 1] - off[t.group];
			high = OM_CEIL(t.rows, OM_GEMM_M);
			if (tile < t.base + high * across)
				break;
		}
		t.first = off[t.group];
		at = tile - t.base;
	} else {
		t.group = tile / (high * across);
		at = tile % (high * across);
		if (t.group >= G)
			return false;
		if (GROUPS == OM_GEMM_SUMS) {
			t.group = order[t.group];
			t.k = off[t.group];
			k = off[t.group + 1] - t.k;
		}
		if (GROUPS == OM_GEMM_SPLIT) {
			constexpr int part = OM_GEMM_PART(M, N, K) * OM_GEMM_K;
			t.k = t.group * part;
			k = min(part, K - t.k);
		}
	}
	const int over = at / (down * across), rest = at % (down * across);
	const int band = min(down, high - over * down);
	t.row = (over * down + rest % band) * OM_GEMM_M;
	t.col = rest / band * WIDTH;
	t.rows -= t.row;
	t.slabs = OM_CEIL(k, OM_GEMM_K) * PLANES;
	t.tail = k % OM_GEMM_K;
	return true;
}

/* The groups by their number of rows, largest first. */
template <int G, int THREADS>
OM_DEV void
om_gemm_order(const int32_t *off, int32_t *order)
{
	for (int i = threadIdx.x; i < G; i += THREADS) {
		const int rows = off[i + 1] - off[i];
		int before = 0;
		for (int j = 0; j < G; j++) {
			const int other = off[j + 1] - off[j];
			before += other > rows || (other == rows && j < i);
		}
		order[before] = i;
	}
	__syncthreads();
}

/*
 * c[i] += the sum of G parts, in order, or without ADD =: what OM_GEMM_SPLIT leaves to do. SIZE: a
 * multiple of 4.
 */
template <int G, int64_t SIZE, bool ADD>
OM_DEV void
om_gemm_sum(const float *part, float *c)
{
	const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
	if (i >= SIZE)
		return;
	float4 x = ADD ? *(float4 *)(c + i) : make_float4(0, 0, 0, 0);
#pragma unroll 8
	for (int g = 0; g < G; g++) {
		const float4 y = *(const float4 *)(part + g * SIZE + i);
		x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
	}
	*(float4 *)(c + i) = x;
}

/*
 * A sum over no rows is 0: such groups' C of SIZE elements, a multiple of 4. They have no slabs, so
 * no tile of theirs is stored.
 */
template <int G, int64_t SIZE, int THREADS>
OM_DEV void
om_gemm_zero(const int32_t *off, float *c)
{
	for (int g = 0; g < G; g++)
		for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
		     i < SIZE && off[g] == off[g + 1]; i += (int64_t)gridDim.x * THREADS * 4)
			*(float4 *)(c + g * SIZE + i) = make_float4(0, 0, 0, 0);
}

#else /* ---- host ---- */

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tiles of C; of rows in groups at most that many, each group may end within one. */
static inline int64_t
om_gemm_tiles(int groups, int64_t g, int64_t m, int64_t n, int width)
{
	const int64_t high = OM_CEIL(m, OM_GEMM_M), wide = OM_CEIL(n, width);
	return groups == OM_GEMM_ROWS ? (high + g) * wide : high * wide * g;
}

#endif

/*
 * OM_GEMM(NAME, type of C, 1 to add to C, groups, G, M, N, K, tile width, 1 for A transposed, 1 for
 * B transposed, planes of A, pad): on the device the kernel NAME, on the host NAME##_run(a, b, c,
 * off).
 */
#if OM_ARCH == 90
#include "gemm_sm90.h"
#else
#include "gemm_mma.h"
#endif

#ifndef __CUDACC__

/* ---- checks ---- */

#include "gemm_ref.h"

/* A product as above, with off on the host; a_float: A is float. */
struct om_gemm_case {
	int groups;
	int64_t g, m, n, k;
	bool at, bt, a_float, c_float, add;
	const int32_t *off;
};
struct om_gemm_arrays {
	void *a, *b, *c[2], *off, *ws;
};

/*
 * Runs a product twice on each of two outputs, v.c[0] and v.c[1], by a call that names c, v.a, v.b,
 * v.off and v.ws; then compares.
 */
#define OM_GEMM_CHECK(seed, floats, CALL, ...)                                     \
	do {                                                                       \
		const struct om_gemm_case om_x = { __VA_ARGS__ };                  \
		const struct om_gemm_arrays v = om_gemm_fill(&om_x, seed, floats); \
		void *c = NULL;                                                    \
		for (int om_run = 0; om_run < 4; om_run++) {                       \
			c = v.c[om_run % 2];                                       \
			CALL;                                                      \
		}                                                                  \
		const double om_error = om_gemm_compare(&om_x, &v, seed);          \
		OM_TIME(CALL);                                                     \
		om_check_end();                                                    \
		return om_error;                                                   \
	} while (0)

/*
 * Ways to share rows among groups: the same to each; at random with a load of 3.4 times the mean
 * and some groups empty; the same with rows left over; all to one.
 */
enum { OM_SHARE_EVEN, OM_SHARE_SKEWED, OM_SHARE_PADDED, OM_SHARE_SINGLE, OM_SHARE_WAYS };

static inline double
om_gemm_weight(int64_t i, int64_t e, int how, uint64_t seed)
{
	const double x = om_unit(seed, 80, i); /* within 1.73 of 0 */
	if (how == OM_SHARE_EVEN)
		return 1;
	if (how == OM_SHARE_SINGLE)
		return i == e / 2;
	return x < -1.4 ? 0 : exp(x);
}

static inline void
om_gemm_share(int32_t *off, int64_t r, int64_t e, int how, uint64_t seed)
{
	const int64_t used = how == OM_SHARE_PADDED ? r - r / 5 : r;
	double sum = 0, before = 0;

	for (int64_t i = 0; i < e; i++)
		sum += om_gemm_weight(i, e, how, seed);
	off[0] = 0;
	for (int64_t i = 0; i < e; i++) {
		before += om_gemm_weight(i, e, how, seed);
		off[i + 1] = sum > 0 ? (int32_t)(before / sum * used) : 0;
	}
	off[e] = used;
}

/* Beyond that many elements sums start from 0, and a check reads only its samples. */
enum { OM_GEMM_WHOLE = 1 << 20, OM_GEMM_SAMPLES = 512 };

/* Rows of C; of them, those in use. */
static inline int64_t
om_gemm_rows(const struct om_gemm_case *x, bool used)
{
	if (x->groups == OM_GEMM_ROWS)
		return used ? x->off[x->g] : x->m;
	return x->groups == OM_GEMM_SUMS ? x->g * x->m : x->m;
}

/* n random elements, of which those from `used` on are NaN */
static inline void *
om_gemm_padded(int64_t n, int64_t used, uint64_t seed, int stream)
{
	if (used == n)
		return om_check_bf16(n, seed, stream, 1);
	om_bf16 *host = (om_bf16 *)malloc(n * sizeof *host);
	for (int64_t i = 0; i < n; i++) {
		union {
			float f;
			uint32_t bits;
		} u = { i < used ? om_unit_bf16(seed, stream, i) : NAN };
		host[i] = u.bits >> 16;
	}
	void *device = om_check_copy(host, n * sizeof *host);
	free(host);
	return device;
}

static inline struct om_gemm_arrays
om_gemm_fill(const struct om_gemm_case *x, uint64_t seed, int64_t floats)
{
	struct om_gemm_arrays v = { .ws = om_check_nan((floats ? floats : 1) * sizeof(float)) };
	const bool rows = x->groups == OM_GEMM_ROWS, sums = x->groups == OM_GEMM_SUMS;
	const int64_t size = om_gemm_rows(x, false) * x->n, k = sums ? x->off[x->g] : x->k;
	if (x->a_float)
		v.a = om_check_f32(x->m * x->k, seed, 0, 1);
	else
		v.a = om_gemm_padded(
		    x->m * x->k, rows ? om_gemm_rows(x, true) * x->k : x->m * k, seed, 0);
	v.b =
	    om_gemm_padded((rows ? x->g : 1) * x->n * x->k, (rows ? x->g : 1) * x->n * k, seed, 1);
	for (int i = 0; i < 2; i++) {
		if (x->add && size <= OM_GEMM_WHOLE)
			v.c[i] = om_check_f32(size, seed, 2, 1);
		else
			v.c[i] = om_check_nan(size * (x->c_float ? 4 : 2));
		if (x->add && size > OM_GEMM_WHOLE)
			om_set_zero(v.c[i], size * 4);
	}
	if (x->off)
		v.off = om_check_copy(x->off, (x->g + 1) * sizeof *x->off);
	return v;
}

/* A place for sample s among n: the ends and tiles' edges, or a random one. */
static inline int64_t
om_gemm_pick(int64_t s, int64_t n, uint64_t seed, int stream)
{
	static const int edge[] = { 0, 63, 64, 127, 128, 255, 256, INT32_MAX };
	const int64_t at =
	    s % 3 ? (om_unit(seed, stream, s) / 3.4641016151377544 + 0.5) * n : edge[s / 3 % 8];
	return at < n ? at : n - 1;
}

/*
 * Products of matrices side by side: x [m, k] times w's rows, of which n[i] give y[i], and the
 * other way round dx [m, k], to which each dy[i] [m, n[i]] adds its part. In groups, off, w is
 * planes: those of all g groups for n[0], then those for n[1]. x, w, dy[i]: streams 0, 1, 2 + i.
 */
struct om_beside_case {
	int64_t g, m, n[3], k;
	const int32_t *off;
};
struct om_beside_arrays {
	void *a[3], *w, *off, *out[2][3];
};

/* The first of w's rows for n[i] in a row's group. */
static inline int64_t
om_beside_w(const struct om_beside_case *x, int i, int64_t row)
{
	if (x->off)
		return (i * x->g + om_gemm_ref_group(x->off, row)) * x->n[0];
	return (i > 0 ? x->n[0] : 0) + (i > 1 ? x->n[1] : 0);
}

static inline double
om_beside_y(const struct om_beside_case *x, int i, int64_t row, int64_t col, uint64_t seed)
{
	return om_gemm_ref((struct om_walk){ OM_BF16(0), row * x->k, 1 },
	    (struct om_walk){ OM_BF16(1), (om_beside_w(x, i, row) + col) * x->k, 1 }, x->k);
}

static inline double
om_beside_dx(const struct om_beside_case *x, int64_t row, int64_t col, uint64_t seed)
{
	double sum = 0;
	for (int i = 0; i < 3; i++)
		sum += om_gemm_ref((struct om_walk){ OM_BF16(2 + i), row * x->n[i], 1 },
		    (struct om_walk){ OM_BF16(1), om_beside_w(x, i, row) * x->k + col, x->k },
		    x->n[i]);
	return sum;
}

/* Runs a product, dx or not, on each of two outputs, by a call that names v and c; compares. */
#define OM_BESIDE_CHECK(seed, dx, CALL, ...)                                       \
	do {                                                                       \
		const struct om_beside_case om_x = { __VA_ARGS__ };                \
		const struct om_beside_arrays v = om_beside_fill(&om_x, dx, seed); \
		void *const *c = NULL;                                             \
		for (int om_run = 0; om_run < 2; om_run++) {                       \
			c = v.out[om_run];                                         \
			CALL;                                                      \
		}                                                                  \
		const double om_error = om_beside_compare(&om_x, &v, dx, seed);    \
		OM_TIME(CALL);                                                     \
		om_check_end();                                                    \
		return om_error;                                                   \
	} while (0)

static inline struct om_beside_arrays
om_beside_fill(const struct om_beside_case *x, bool dx, uint64_t seed)
{
	struct om_beside_arrays v = { .w = NULL };
	const int64_t used = x->off ? x->off[x->g] : x->m, n = x->n[0] + x->n[1] + x->n[2];
	for (int i = 0; i < 3; i++) {
		const int64_t wide = dx ? x->n[i] : i ? 0 : x->k, out = dx ? i ? 0 : x->k : x->n[i];
		if (wide)
			v.a[i] = om_gemm_padded(x->m * wide, used * wide, seed, dx ? 2 + i : 0);
		for (int k = 0; k < 2 && out; k++)
			v.out[k][i] = om_check_nan(x->m * out * 2);
	}
	v.w = om_check_bf16((x->off ? x->g : 1) * n * x->k, seed, 1, 1);
	if (x->off)
		v.off = om_check_copy(x->off, (x->g + 1) * sizeof *x->off);
	return v;
}

static inline double
om_beside_compare(
    const struct om_beside_case *x, const struct om_beside_arrays *v, bool dx, uint64_t seed)
{
	const int64_t used = x->off ? x->off[x->g] : x->m;
	struct om_err e = { .scale = 1 };
	for (int i = 0; i < 3 && (!dx || i == 0) && (dx || x->n[i]); i++) {
		const int64_t wide = dx ? x->k : x->n[i], size = x->m * wide;
		om_bf16 *got[2] = { malloc(size * 2), malloc(size * 2) };
		for (int k = 0; k < 2; k++)
			om_check_read(got[k], v->out[k][i], size * 2);
		e.wrong |= memcmp(got[0], got[1], used * wide * 2) != 0;
		for (int64_t at = used * wide; at < size; at++) /* padding is not written */
			e.wrong |= got[0][at] != 0xffff || got[1][at] != 0xffff;
		for (int64_t s = 0; s < OM_GEMM_SAMPLES && used > 0; s++) {
			const int64_t row = om_gemm_pick(s, used, seed, 90);
			const int64_t col = om_gemm_pick(s + s / 8, wide, seed, 91);
			om_err_add(&e, om_bf16_f32(got[0][row * wide + col]),
			    dx ? om_beside_dx(x, row, col, seed)
			       : om_beside_y(x, i, row, col, seed));
		}
		free(got[0]);
		free(got[1]);
	}
	return om_err_value(&e);
}

static inline double
om_gemm_want(const struct om_gemm_case *x, int64_t row, int64_t col, uint64_t seed)
{
	const int64_t group =
	    x->groups == OM_GEMM_ROWS ? om_gemm_ref_group(x->off, row) : row / x->m;
	const bool sums = x->groups == OM_GEMM_SUMS;
	const int64_t first = sums ? x->off[group] : 0, n = sums ? x->off[group + 1] - first : x->k;
	const int64_t i = sums ? row % x->m : row, down = x->at ? x->m : 1, over = x->bt ? x->n : 1;
	const int64_t b = x->groups == OM_GEMM_ROWS ? group * x->n * x->k : 0;
	const struct om_walk left = { x->a_float ? OM_F32(0) : OM_BF16(0),
		(x->at ? i : i * x->k) + first * down, down };
	const struct om_walk right = { OM_BF16(1), b + (x->bt ? col : col * x->k) + first * over,
		over };
	return om_gemm_ref(left, right, n);
}

static inline double
om_gemm_compare(const struct om_gemm_case *x, const struct om_gemm_arrays *v, uint64_t seed)
{
	const int64_t rows = om_gemm_rows(x, true), size = om_gemm_rows(x, false) * x->n;
	const int64_t width = x->c_float ? 4 : 2,
		      inner = x->groups == OM_GEMM_SUMS ? x->off[x->g] / x->g + 1 : x->k;
	const bool whole = size <= OM_GEMM_WHOLE;
	int64_t samples = inner < 16384 ? OM_GEMM_SAMPLES : OM_GEMM_SAMPLES * 16384 / inner + 16;
	struct om_err e = { .scale = 1 };
	char *got[2] = { NULL, NULL };

	for (int i = 0; i < 2 && whole; i++) {
		got[i] = (char *)malloc(size * width);
		om_check_read(got[i], v->c[i], size * width);
	}
	e.wrong = whole && memcmp(got[0], got[1], size * width) != 0;
	for (int64_t s = 0; s < samples && rows > 0; s++) {
		const int64_t row = om_gemm_pick(s, rows, seed, 90);
		const int64_t col = om_gemm_pick(s + s / 8, x->n, seed, 91), at = row * x->n + col;
		double want = om_gemm_want(x, row, col, seed);
		float value[2] = { 0, 0 };
		for (int i = 0; i < 2; i++) {
			uint32_t bits = 0;
			if (whole)
				memcpy(&bits, got[i] + at * width, width);
			else
				om_check_read(&bits, (char *)v->c[i] + at * width, width);
			if (x->c_float)
				memcpy(&value[i], &bits, 4);
			else
				value[i] = om_bf16_f32((uint16_t)bits);
		}
		if (x->add)
			want = 2 * want + (whole ? (float)om_unit(seed, 2, at) : 0);
		om_err_add(&e, value[0], want);
		e.wrong |= value[0] != value[1];
	}
	/* padding is not written */
	for (int64_t at = rows * x->n; at < size && whole; at++)
		for (int64_t i = 0; i < width; i++)
			e.wrong |= got[0][at * width + i] != (char)0xff;
	free(got[0]);
	free(got[1]);
	return om_err_value(&e);
}

#endif
#endif
