/*
 * Experts on several ranks of one host, in rowwise form: what is computed, the cut and map stand in
 * kernels/cpu/expert.h.
 *
 *   ep_map          row [t, k], src [t * k], map [5, e], off [e / w + 1], cut [2]
 *   ep_dispatch     xr [c, n] of its rank, at its row, = x [t, n], row i / k, for each kept route i
 *   ep_combine      x [t, n] = sum over k, in order, of the kept routes' rows of y [c, n]
 *   ep_weights      pr [c], the row of route i, = p[i] of the rank it is of
 *   ep_weights_bwd  dp [t, k] = dpr [c] at the kept routes' rows, 0 at the others
 *
 * Rows are written to, and read from, the memory of the experts' rank (peer.h), where they lie at
 * the place that they have here. Ranks meet before the first and behind the last of them: when all
 * have come, what was in the place before is not needed any more, and when all are done, rows are
 * whole. ep_map meets once: counts are told with its point.
 *
 * By token, so that routes to this rank and to others come in turn: a warp reads a row of x once
 * and writes it to its k places, or reads k rows and writes their sum. b blocks do all: as few as
 * keep the links busy leave the rest of the device to what runs beside.
 */
#ifndef OM_EXPERT_H
#define OM_EXPERT_H

#include "peer.h"
#include "route.h"

/* The parts of map, e numbers each. */
enum { OM_EP_START, OM_EP_KEEP, OM_EP_FIRST, OM_EP_COME, OM_EP_AT, OM_EP_PARTS };

#ifndef OM_EP_THREADS
#define OM_EP_THREADS 1024
#endif
#define OM_EP_MAP_THREADS 512
#define OM_EP_BATCH 8 /* rows of a token that are read or written at a time */

#define OM_EP_SHAPE(t, e, k, n, w, c, u)                                       \
	static_assert((w) <= OM_PEERS_MOST, "ep: more ranks than a host has"); \
	OM_EP_SIZES(t, e, k, n, w, c, u)
#define OM_EP_SIZES(t, e, k, n, w, c, u)                                                     \
	static_assert((t) >= 1 && (n) >= 1 && (w) >= 1, "ep: sizes start at 1");             \
	static_assert((k) >= 1 && (k) <= (e), "ep: top-k chooses among the experts");        \
	static_assert((e) % (w) == 0, "ep: ranks divide the experts");                       \
	static_assert((e) <= OM_PEERS_COUNTS, "ep: more experts than are told at once");     \
	static_assert((int64_t)(t) * (k) <= 0x7fffffff, "ep: routes are counted in int32");  \
	static_assert((int64_t)(c) >= 1 && (int64_t)(c) <= 0x7fffffff, "ep: rows in int32"); \
	static_assert((u) >= 1 && (c) % (u) == 0, "ep: c is a multiple of u");
#define OM_EP_ROW(n) static_assert((n) % 8 == 0, "ep: the width is a multiple of 8");

#ifdef __CUDACC__

/* How many routes each expert here gets of this rank, to all; one block. */
template <int E, int N>
OM_DEV void
om_ep_announce(const om_peers *peers, const int32_t *cnt)
{
	om_board *board = peers->board;
	const uint64_t epoch = board->epoch + 1;
	int32_t *to = board->count[epoch % 2][peers->me];
	for (int i = threadIdx.x; i < E; i += OM_EP_MAP_THREADS) {
		int32_t sum = 0;
#pragma unroll 4
		for (int part = 0; part < N; part++)
			sum += cnt[part * E + i];
		for (int r = 0; r < peers->n; r++)
			om_peer_at(peers, to, r)[i] = sum;
	}
	om_peer_tell(peers, epoch);
}

/* Of what each rank has for each other one, q rows go; count is [w, STRIDE], of this rank alone. */
template <int T, int E, int K, int W, int Q, int STRIDE>
OM_DEV void
om_ep_cut(int32_t *count)
{
	constexpr int HERE = E / W;
	if constexpr (Q < (int64_t)T * (K < HERE ? K : HERE)) {
		for (int pair = threadIdx.x; pair < W * W; pair += OM_EP_MAP_THREADS) {
			int32_t *n = count + pair / W * STRIDE + pair % W * HERE, left = Q;
			for (int i = 0; i < HERE; i++) {
				n[i] = min(n[i], left);
				left -= n[i];
			}
		}
		__syncthreads();
	}
}

/*
 * All of map, off and cut when every rank has told; one block, a thread an expert. Cells are dealt
 * out in turn until none of the c rows is left; since c is a multiple of u, an expert's first row
 * is c at most, or what the experts before it would need without a limit.
 */
template <int T, int E, int K, int W, int C, int U, int Q, int STRIDE>
OM_DEV void
om_ep_rows(int me, int32_t *count, int32_t *map, int32_t *off, int64_t *cut)
{
	constexpr int HERE = E / W;
	const int i = threadIdx.x, owner = i / HERE, own = i % HERE;
	__shared__ int64_t rows[E]; /* of each expert, of all ranks, in full */
	__shared__ int32_t starts[E], kept[E];
	if (i < E)
		starts[i] = count[me * STRIDE + i];
	__syncthreads();
	om_ep_cut<T, E, K, W, Q, STRIDE>(count);
	if (i < E) {
		int64_t all = 0;
		for (int from = 0; from < W; from++)
			all += count[from * STRIDE + i];
		rows[i] = (all + U - 1) / U * U;
	}
	__syncthreads();
	if (i < E) {
		int64_t begin = 0;
		int32_t start = 0, keep = 0;
		for (int x = i - own; x < i; x++)
			begin += rows[x];
		for (int x = 0; x < i; x++)
			start += starts[x];
		int32_t row = (int32_t)min(begin, (int64_t)C);
		if (owner == me)
			off[own] = row;
		for (int from = 0; from < W; from++) {
			const int32_t part = min(count[from * STRIDE + i], C - row);
			if (from == me) {
				map[OM_EP_START * E + i] = start;
				map[OM_EP_KEEP * E + i] = keep = part;
				map[OM_EP_FIRST * E + i] = row;
			}
			if (owner == me) {
				map[OM_EP_COME * E + from * HERE + own] = part;
				map[OM_EP_AT * E + from * HERE + own] = row;
			}
			row += part;
		}
		if (owner == me && own == HERE - 1)
			off[HERE] = (row + U - 1) / U * U;
		kept[i] = keep;
	}
	__syncthreads();
	if (i == 0) {
		int64_t sum = 0;
		for (int x = 0; x < E; x++)
			sum += kept[x];
		cut[0] += (int64_t)T * K - sum;
		cut[1] += (int64_t)T * K;
	}
}

/* The same of counts that were told by boards, of which this point is the next. */
template <int T, int E, int K, int W, int C, int U, int Q>
OM_DEV void
om_ep_rows_told(const om_peers *peers, int32_t *map, int32_t *off, int64_t *cut)
{
	om_board *board = peers->board;
	const uint64_t epoch = board->epoch + 1;
	om_peer_wait(peers, epoch);
	om_ep_rows<T, E, K, W, C, U, Q, OM_PEERS_COUNTS>(
	    peers->me, board->count[epoch % 2][0], map, off, cut);
	if (threadIdx.x == 0)
		board->epoch = epoch;
}

/* Where a route's row is, at the rank of its expert; NULL: it was cut. */
template <int E, int W, class X>
OM_DEV X *
om_ep_place(const om_peers *peers, X *rows, int64_t width, int32_t expert, int32_t row)
{
	return row < 0 ? nullptr
		       : om_peer_at(peers, rows + row * width, W > 1 ? expert / (E / W) : 0);
}

/*
 * Rows before the next expert's that no route has, here: width numbers each, as 32-bit words. The
 * warps of all blocks take turns.
 */
template <int E, int W, int U>
OM_DEV void
om_ep_clear(const int32_t *map, int64_t words, void *rows)
{
	constexpr int HERE = E / W, WARPS = OM_EP_THREADS / 32;
	const int lane = threadIdx.x % 32;
	const int none = U > 1 ? HERE : 0;
	for (int x = blockIdx.x * WARPS + threadIdx.x / 32; x < none; x += gridDim.x * WARPS) {
		const int64_t end =
		    map[OM_EP_AT * E + E - HERE + x] + map[OM_EP_COME * E + E - HERE + x];
		const int64_t next = (end + U - 1) / U * U * words;
		for (int64_t i = end * words + lane; i < next; i += 32)
			((uint32_t *)rows)[i] = 0;
	}
}

template <int T, int E, int K, int N, int W, int U>
OM_DEV void
om_ep_dispatch(const om_peers *peers, const om_bf16 *x, const int32_t *idx, const int32_t *row,
    const int32_t *map, om_bf16 *xr)
{
	constexpr int WIDE = N / 8, WARPS = OM_EP_THREADS / 32;
	constexpr int BATCH = K < OM_EP_BATCH ? K : OM_EP_BATCH;
	constexpr int AT_ONCE = WIDE < 64 ? 1 : WIDE < 128 ? 2 : 4; /* vectors of a lane */
	const int lane = threadIdx.x % 32;
	const uint64_t epoch = peers->board->epoch;
	if (!om_peer_enter(peers, epoch + 1))
		return;
	om_ep_clear<E, W, U>(map, N / 2, xr);
	for (int t = blockIdx.x * WARPS + threadIdx.x / 32; t < T; t += gridDim.x * WARPS) {
		const uint4 *from = (const uint4 *)(x + (int64_t)t * N);
#pragma unroll 1
		for (int col = lane; col < WIDE; col += 32 * AT_ONCE) {
			uint4 v[AT_ONCE];
#pragma unroll
			for (int i = 0; i < AT_ONCE; i++)
				v[i] = from[WIDE % (32 * AT_ONCE) ? min(col + 32 * i, WIDE - 1)
								  : col + 32 * i];
#pragma unroll 1
			for (int j = 0; j < K; j += BATCH) {
				uint4 *to[BATCH];
#pragma unroll
				for (int b = 0; b < BATCH; b++) {
					const int a = t * K + min(j + b, K - 1);
					to[b] = (uint4 *)om_ep_place<E, W>(
					    peers, xr, N, idx[a], row[a]);
				}
#pragma unroll
				for (int b = 0; b < BATCH; b++) {
					if (!to[b] || (K % BATCH && j + b >= K))
						continue;
#pragma unroll
					for (int i = 0; i < AT_ONCE; i++)
						if (WIDE % (32 * AT_ONCE) == 0 ||
						    col + 32 * i < WIDE)
							to[b][col + 32 * i] = v[i];
				}
			}
		}
	}
	om_peer_leave(peers, epoch + 2);
}

/* x of each token, the sum over its routes' rows, which lie at place(route); NULL: it was cut. */
template <int T, int K, int N, class Place>
OM_DEV void
om_ep_sum(om_bf16 *x, Place place)
{
	constexpr int WIDE = N / 8, WARPS = OM_EP_THREADS / 32;
	constexpr int BATCH = K < OM_EP_BATCH ? K : OM_EP_BATCH;
	const int lane = threadIdx.x % 32;
	for (int t = blockIdx.x * WARPS + threadIdx.x / 32; t < T; t += gridDim.x * WARPS) {
#pragma unroll 1
		for (int col = lane; col < WIDE; col += 32) {
			float sum[8] = {};
#pragma unroll 1
			for (int j = 0; j < K; j += BATCH) {
				uint4 v[BATCH];
#pragma unroll
				for (int b = 0; b < BATCH; b++) {
					const auto from =
					    (const uint4 *)place(t * K + min(j + b, K - 1));
					v[b] = uint4{ 0, 0, 0, 0 };
					if (from && (K % BATCH == 0 || j + b < K))
						v[b] = from[col];
				}
#pragma unroll
				for (int b = 0; b < BATCH; b++) {
					sum[0] += om_lo(v[b].x), sum[1] += om_hi(v[b].x);
					sum[2] += om_lo(v[b].y), sum[3] += om_hi(v[b].y);
					sum[4] += om_lo(v[b].z), sum[5] += om_hi(v[b].z);
					sum[6] += om_lo(v[b].w), sum[7] += om_hi(v[b].w);
				}
			}
			om_store8(x + (int64_t)t * N + col * 8, sum);
		}
	}
}

template <int T, int E, int K, int N, int W>
OM_DEV void
om_ep_combine(
    const om_peers *peers, const om_bf16 *y, const int32_t *idx, const int32_t *row, om_bf16 *x)
{
	const uint64_t epoch = peers->board->epoch;
	if (!om_peer_enter(peers, epoch + 1))
		return;
	om_ep_sum<T, K, N>(
	    x, [=](int a) { return om_ep_place<E, W>(peers, y, N, idx[a], row[a]); });
	om_peer_leave(peers, epoch + 2);
}

template <int T, int E, int K, int W, int U>
OM_DEV void
om_ep_weights(const om_peers *peers, const float *p, const int32_t *idx, const int32_t *row,
    const int32_t *map, float *pr)
{
	const uint64_t epoch = peers->board->epoch;
	if (!om_peer_enter(peers, epoch + 1))
		return;
	om_ep_clear<E, W, U>(map, 1, pr);
	for (int i = blockIdx.x * OM_EP_THREADS + threadIdx.x; i < T * K;
	     i += gridDim.x * OM_EP_THREADS) {
		float *to = om_ep_place<E, W>(peers, pr, 1, idx[i], row[i]);
		if (to)
			*to = p[i];
	}
	om_peer_leave(peers, epoch + 2);
}

template <int T, int E, int K, int W>
OM_DEV void
om_ep_weights_bwd(
    const om_peers *peers, const float *dpr, const int32_t *idx, const int32_t *row, float *dp)
{
	const uint64_t epoch = peers->board->epoch;
	if (!om_peer_enter(peers, epoch + 1))
		return;
	for (int i = blockIdx.x * OM_EP_THREADS + threadIdx.x; i < T * K;
	     i += gridDim.x * OM_EP_THREADS) {
		const float *from = om_ep_place<E, W>(peers, dpr, 1, idx[i], row[i]);
		dp[i] = from ? *from : 0;
	}
	om_peer_leave(peers, epoch + 2);
}

#define OM_EP_MAP(NAME, t, e, k, n, w, c, u, q)                                                    \
	OM_EP_SHAPE(t, e, k, n, w, c, u)                                                           \
	OM_GLOBAL(256, 1) NAME##_count(const int32_t *idx, int32_t *ws)                            \
	{                                                                                          \
		om_route_count<t, e, k, n>(idx, ws);                                               \
	}                                                                                          \
	OM_GLOBAL(OM_EP_MAP_THREADS, 1)                                                            \
	NAME##_tell(const om_peers *peers, const int32_t *cnt)                                     \
	{                                                                                          \
		om_ep_announce<e, n>(peers, cnt);                                                  \
	}                                                                                          \
	OM_GLOBAL(OM_EP_MAP_THREADS, 1)                                                            \
	NAME##_rows(const om_peers *peers, int32_t *map, int32_t *off, int64_t *cut)               \
	{                                                                                          \
		om_ep_rows_told<t, e, k, w, c, u, q>(peers, map, off, cut);                        \
	}                                                                                          \
	OM_GLOBAL(256, 1)                                                                          \
	NAME##_place(const int32_t *idx, const int32_t *cnt, const int32_t *ws,                    \
	    const int32_t *map, int32_t *row, int32_t *src)                                        \
	{                                                                                          \
		om_route_place<t, e, k, n>(                                                        \
		    idx, cnt, ws, row, src, nullptr, map + OM_EP_KEEP * e, map + OM_EP_FIRST * e); \
	}

#define OM_EP_DISPATCH(NAME, t, m, k, n, w, c, u, b)                                              \
	OM_EP_SHAPE(t, (m) / OM_EP_PARTS, k, n, w, c, u)                                          \
	OM_EP_ROW(n)                                                                              \
	OM_GLOBAL(OM_EP_THREADS, 1)                                                               \
	NAME##_x(const om_peers *peers, const om_bf16 *x, const int32_t *idx, const int32_t *row, \
	    const int32_t *map, om_bf16 *xr)                                                      \
	{                                                                                         \
		om_ep_dispatch<t, (m) / OM_EP_PARTS, k, n, w, u>(peers, x, idx, row, map, xr);    \
	}

#define OM_EP_COMBINE(NAME, t, m, k, n, w, c, b)                                                  \
	OM_EP_SHAPE(t, (m) / OM_EP_PARTS, k, n, w, c, 1)                                          \
	OM_EP_ROW(n)                                                                              \
	OM_GLOBAL(OM_EP_THREADS, 1)                                                               \
	NAME##_x(const om_peers *peers, const om_bf16 *y, const int32_t *idx, const int32_t *row, \
	    om_bf16 *x)                                                                           \
	{                                                                                         \
		om_ep_combine<t, (m) / OM_EP_PARTS, k, n, w>(peers, y, idx, row, x);              \
	}

#define OM_EP_WEIGHTS(NAME, t, m, k, w, c, u, b)                                                \
	OM_EP_SHAPE(t, (m) / OM_EP_PARTS, k, 1, w, c, u)                                        \
	OM_GLOBAL(OM_EP_THREADS, 1)                                                             \
	NAME##_x(const om_peers *peers, const float *p, const int32_t *idx, const int32_t *row, \
	    const int32_t *map, float *pr)                                                      \
	{                                                                                       \
		om_ep_weights<t, (m) / OM_EP_PARTS, k, w, u>(peers, p, idx, row, map, pr);      \
	}

#define OM_EP_WEIGHTS_BWD(NAME, t, m, k, w, c, b)                                                 \
	OM_EP_SHAPE(t, (m) / OM_EP_PARTS, k, 1, w, c, 1)                                          \
	OM_GLOBAL(OM_EP_THREADS, 1)                                                               \
	NAME##_x(const om_peers *peers, const float *dpr, const int32_t *idx, const int32_t *row, \
	    float *dp)                                                                            \
	{                                                                                         \
		om_ep_weights_bwd<t, (m) / OM_EP_PARTS, k, w>(peers, dpr, idx, row, dp);          \
	}

#else /* ---- host ---- */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "group.h"

/*
 * ws: n*128*e floats. Begun on all ranks before it is ended on any, in a check where one device
 * stands for all.
 */
#define OM_EP_MAP(NAME, t, e, k, n, w, c, u, q)                                                    \
	OM_EP_SHAPE(t, e, k, n, w, c, u)                                                           \
	OM_ROUTE_SIZES(t, e, k, n)                                                                 \
	OM_KERNEL(NAME##_count, 256, 0)                                                            \
	OM_REACHES(NAME)                                                                           \
	OM_KERNEL(NAME##_tell, OM_EP_MAP_THREADS, 0)                                               \
	OM_KERNEL(NAME##_rows, OM_EP_MAP_THREADS, 0)                                               \
	OM_KERNEL(NAME##_place, 256, 0)                                                            \
	static void NAME##_begin(const int32_t *cnt)                                               \
	{                                                                                          \
		const struct om_peers *peers = om_peers(OM_EXPERT);                                \
		OM_LAUNCH(NAME##_tell, 1, 1, 1, &peers, &cnt);                                     \
	}                                                                                          \
	static void NAME##_end(const int32_t *idx, const int32_t *cnt, int32_t *row, int32_t *src, \
	    int32_t *map, int32_t *off, int64_t *cut, void *ws)                                    \
	{                                                                                          \
		const struct om_peers *peers = om_peers(OM_EXPERT);                                \
		const uint32_t blocks = (n)*OM_ROUTE_PARTS((t) / (n), k);                          \
		OM_LAUNCH(NAME##_count, blocks, 1, 1, &idx, &ws);                                  \
		OM_LAUNCH(NAME##_rows, 1, 1, 1, &peers, &map, &off, &cut);                         \
		OM_LAUNCH(NAME##_place, blocks, 1, 1, &idx, &cnt, &ws, &map, &row, &src);          \
	}                                                                                          \
	void NAME(const int32_t *idx, const int32_t *cnt, int32_t *row, int32_t *src,              \
	    int32_t *map, int32_t *off, int64_t *cut, void *ws)                                    \
	{                                                                                          \
		NAME##_begin(cnt);                                                                 \
		NAME##_end(idx, cnt, row, src, map, off, cut, ws);                                 \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_ep_map_check(NAME##_begin, NAME##_end, n,                                \
		    (struct om_ep_shape){ t, e, k, 1, w, c, u, q }, seed);                         \
	}

#define OM_EP_DISPATCH(NAME, t, m, k, n, w, c, u, b)                                               \
	OM_EP_SHAPE(t, (m) / OM_EP_PARTS, k, n, w, c, u)                                           \
	OM_EP_ROW(n)                                                                               \
	OM_KERNEL(NAME##_x, OM_EP_THREADS, 0)                                                      \
	void NAME(const om_bf16 *x, const int32_t *idx, const int32_t *row, const int32_t *src,    \
	    const int32_t *map, om_bf16 *xr)                                                       \
	{                                                                                          \
		const struct om_peers *peers = om_peers(OM_EXPERT);                                \
		(void)src;                                                                         \
		OM_LAUNCH(NAME##_x, b, 1, 1, &peers, &x, &idx, &row, &map, &xr);                   \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_ep_send_check(NAME, NULL, NULL, true,                                    \
		    (struct om_ep_shape){ t, (m) / OM_EP_PARTS, k, n, w, c, u, (t) * (k) }, seed); \
	}

#define OM_EP_COMBINE(NAME, t, m, k, n, w, c, b)                                                   \
	OM_EP_SHAPE(t, (m) / OM_EP_PARTS, k, n, w, c, 1)                                           \
	OM_EP_ROW(n)                                                                               \
	OM_KERNEL(NAME##_x, OM_EP_THREADS, 0)                                                      \
	void NAME(const om_bf16 *y, const int32_t *idx, const int32_t *row, const int32_t *map,    \
	    om_bf16 *x)                                                                            \
	{                                                                                          \
		const struct om_peers *peers = om_peers(OM_EXPERT);                                \
		(void)map;                                                                         \
		OM_LAUNCH(NAME##_x, b, 1, 1, &peers, &y, &idx, &row, &x);                          \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_ep_return_check(NAME, NULL, NULL, true,                                  \
		    (struct om_ep_shape){ t, (m) / OM_EP_PARTS, k, n, w, c, 1, (t) * (k) }, seed); \
	}

#define OM_EP_WEIGHTS(NAME, t, m, k, w, c, u, b)                                                   \
	OM_EP_SHAPE(t, (m) / OM_EP_PARTS, k, 1, w, c, u)                                           \
	OM_KERNEL(NAME##_x, OM_EP_THREADS, 0)                                                      \
	void NAME(const float *p, const int32_t *idx, const int32_t *row, const int32_t *src,      \
	    const int32_t *map, float *pr)                                                         \
	{                                                                                          \
		const struct om_peers *peers = om_peers(OM_EXPERT);                                \
		(void)src;                                                                         \
		OM_LAUNCH(NAME##_x, b, 1, 1, &peers, &p, &idx, &row, &map, &pr);                   \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_ep_send_check(NULL, NAME, NULL, false,                                   \
		    (struct om_ep_shape){ t, (m) / OM_EP_PARTS, k, 1, w, c, u, (t) * (k) }, seed); \
	}

#define OM_EP_WEIGHTS_BWD(NAME, t, m, k, w, c, b)                                                  \
	OM_EP_SHAPE(t, (m) / OM_EP_PARTS, k, 1, w, c, 1)                                           \
	OM_KERNEL(NAME##_x, OM_EP_THREADS, 0)                                                      \
	void NAME(const float *dpr, const int32_t *idx, const int32_t *row, const int32_t *src,    \
	    const int32_t *map, float *dp)                                                         \
	{                                                                                          \
		const struct om_peers *peers = om_peers(OM_EXPERT);                                \
		(void)src, (void)map;                                                              \
		OM_LAUNCH(NAME##_x, b, 1, 1, &peers, &dpr, &idx, &row, &dp);                       \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_ep_return_check(NULL, NAME, NULL, false,                                 \
		    (struct om_ep_shape){ t, (m) / OM_EP_PARTS, k, 1, w, c, 1, (t) * (k) }, seed); \
	}

#include "expert_check.h"
#endif
#endif
