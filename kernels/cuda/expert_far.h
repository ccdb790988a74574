/*
 * Experts on ranks that do not reach one another's memory: the same routes, rows and sums as those
 * of expert.h. What goes from a rank to another one lies in a block of q rows, whatever the routers
 * chose; the runtime exchanges all blocks at once (om_exchange), so that nothing depends on a count
 * that the host would have to know. A block's rows are in the order of experts and tokens; behind
 * its last one is anything. Counts of routes are gathered before, by all ranks.
 *
 * Each kernel has two parts, of which the first fills the blocks that go (out), and the second
 * takes those that came (in); a rank's own rows are moved by the first, or read where they are.
 * ws: out and in, [w, q, n] each; of ep_map n*128*e + w*e floats.
 */
#ifndef OM_EXPERT_FAR_H
#define OM_EXPERT_FAR_H

#include "expert.h"

#define OM_EP_FAR_SHAPE(t, e, k, n, w, c, u, q) \
	OM_EP_SIZES(t, e, k, n, w, c, u)        \
	static_assert((q) >= 1 && (int64_t)(w) * (q) <= 0x7fffffff, "ep: blocks in int32");

#ifdef __CUDACC__

/* Counts of this rank's routes among those of all ranks, [w, e]; one block. */
template <int E, int N>
OM_DEV void
om_ep_far_tell(int me, const int32_t *cnt, int32_t *count)
{
	for (int i = threadIdx.x; i < E; i += OM_EP_MAP_THREADS) {
		int32_t sum = 0;
		for (int part = 0; part < N; part++)
			sum += cnt[part * E + i];
		count[me * E + i] = sum;
	}
}

/* Where the rows of each expert begin in their block; n: how many there are, [E / HERE, HERE]. */
template <int E, int W>
OM_DEV void
om_ep_far_begin(const int32_t *n, int32_t *begin)
{
	constexpr int HERE = E / W;
	for (int i = threadIdx.x; i < E; i += OM_EP_THREADS) {
		int32_t sum = 0;
		for (int x = i / HERE * HERE; x < i; x++)
			sum += n[x];
		begin[i] = sum;
	}
	__syncthreads();
}

/* A warp copies a row of WIDE units. */
template <int WIDE, class V>
OM_DEV void
om_ep_far_copy(V *to, const V *from)
{
	for (int i = threadIdx.x % 32; i < WIDE; i += 32)
		to[i] = from[i];
}

/* The row, or weight, of each kept route: to its block, or its place here. PER: routes of a row. */
template <int T, int E, int K, int W, int Q, int PER, int WIDE, class V>
OM_DEV void
om_ep_far_send(
    int me, const V *x, const int32_t *idx, const int32_t *row, const int32_t *map, V *here, V *out)
{
	constexpr int HERE = E / W, WARPS = OM_EP_THREADS / 32;
	__shared__ int32_t begin[E];
	om_ep_far_begin<E, W>(map + OM_EP_KEEP * E, begin);
	for (int a = blockIdx.x * WARPS + threadIdx.x / 32; a < T * K; a += gridDim.x * WARPS) {
		const int i = idx[a], owner = i / HERE;
		if (row[a] < 0)
			continue;
		const int64_t slot =
		    (int64_t)owner * Q + begin[i] + row[a] - map[OM_EP_FIRST * E + i];
		om_ep_far_copy<WIDE>(
		    owner == me ? here + (int64_t)row[a] * WIDE : out + slot * WIDE,
		    x + (int64_t)(a / PER) * WIDE);
	}
}

/* Of the rows here that are of other ranks each goes into its block, or comes from there. */
template <int E, int W, int Q, int WIDE, bool BACK, class V>
OM_DEV void
om_ep_far_rows(int me, const int32_t *map, V *rows, V *blocks)
{
	constexpr int HERE = E / W, WARPS = OM_EP_THREADS / 32;
	__shared__ int32_t begin[E];
	om_ep_far_begin<E, W>(map + OM_EP_COME * E, begin);
	for (int j = blockIdx.x * WARPS + threadIdx.x / 32; j < W * Q; j += gridDim.x * WARPS) {
		const int from = j / Q, slot = j % Q;
		int i = from * HERE + HERE - 1; /* the last expert that begins before */
		if (from == me)
			continue;
		while (i > from * HERE && begin[i] > slot)
			i--;
		if (slot - begin[i] >= map[OM_EP_COME * E + i])
			continue;
		V *row = rows + (int64_t)(map[OM_EP_AT * E + i] + slot - begin[i]) * WIDE;
		V *block = blocks + (int64_t)j * WIDE;
		om_ep_far_copy<WIDE>(BACK ? block : row, BACK ? row : block);
	}
}

/* Where the row of a route is that has come back, or is here; NULL: it was cut. */
template <int E, int W, int Q, class V>
OM_DEV const V *
om_ep_far_place(int me, const int32_t *map, const int32_t *begin, const V *rows, const V *in,
    int64_t width, int32_t expert, int32_t row)
{
	const int owner = expert / (E / W);
	if (row < 0)
		return nullptr;
	return owner == me ? rows + row * width
			   : in + ((int64_t)owner * Q + begin[expert] + row -
				      map[OM_EP_FIRST * E + expert]) *
				      width;
}

template <int T, int E, int K, int N, int W, int Q>
OM_DEV void
om_ep_far_sum(int me, const om_bf16 *y, const int32_t *idx, const int32_t *row, const int32_t *map,
    const om_bf16 *in, om_bf16 *x)
{
	__shared__ int32_t begin[E];
	om_ep_far_begin<E, W>(map + OM_EP_KEEP * E, begin);
	om_ep_sum<T, K, N>(x, [=](int a) {
		return om_ep_far_place<E, W, Q>(me, map, begin, y, in, N, idx[a], row[a]);
	});
}

template <int T, int E, int K, int W, int Q>
OM_DEV void
om_ep_far_take(int me, const float *dpr, const int32_t *idx, const int32_t *row, const int32_t *map,
    const float *in, float *dp)
{
	__shared__ int32_t begin[E];
	om_ep_far_begin<E, W>(map + OM_EP_KEEP * E, begin);
	for (int a = blockIdx.x * OM_EP_THREADS + threadIdx.x; a < T * K;
	     a += gridDim.x * OM_EP_THREADS) {
		const float *from =
		    om_ep_far_place<E, W, Q>(me, map, begin, dpr, in, 1, idx[a], row[a]);
		dp[a] = from ? *from : 0;
	}
}

#define OM_EP_FAR_MAP(NAME, t, e, k, n, w, c, u, q)                                                \
	OM_EP_FAR_SHAPE(t, e, k, n, w, c, u, q)                                                    \
	OM_GLOBAL(OM_EP_MAP_THREADS, 1) NAME##_tell(int me, const int32_t *cnt, int32_t *count)    \
	{                                                                                          \
		om_ep_far_tell<e, n>(me, cnt, count);                                              \
	}                                                                                          \
	OM_GLOBAL(256, 1) NAME##_count(const int32_t *idx, int32_t *ws)                            \
	{                                                                                          \
		om_route_count<t, e, k, n>(idx, ws);                                               \
	}                                                                                          \
	OM_GLOBAL(OM_EP_MAP_THREADS, 1)                                                            \
	NAME##_rows(int me, int32_t *count, int32_t *map, int32_t *off, int64_t *cut)              \
	{                                                                                          \
		om_ep_rows<t, e, k, w, c, u, q, e>(me, count, map, off, cut);                      \
	}                                                                                          \
	OM_GLOBAL(256, 1)                                                                          \
	NAME##_place(const int32_t *idx, const int32_t *cnt, const int32_t *ws,                    \
	    const int32_t *map, int32_t *row, int32_t *src)                                        \
	{                                                                                          \
		om_route_place<t, e, k, n>(                                                        \
		    idx, cnt, ws, row, src, nullptr, map + OM_EP_KEEP * e, map + OM_EP_FIRST * e); \
	}

/* V: the unit in which rows of WIDE of them are moved; PER: routes that have the same row */
#define OM_EP_FAR_SEND(NAME, V, PER, WIDE, WORDS, t, e, k, w, u, q)                                \
	OM_GLOBAL(OM_EP_THREADS, 1)                                                                \
	NAME##_out(int me, const V *x, const int32_t *idx, const int32_t *row, const int32_t *map, \
	    V *rows, V *out)                                                                       \
	{                                                                                          \
		om_ep_far_send<t, e, k, w, q, PER, WIDE>(me, x, idx, row, map, rows, out);         \
	}                                                                                          \
	OM_GLOBAL(OM_EP_THREADS, 1) NAME##_in(int me, const int32_t *map, V *rows, V *in)          \
	{                                                                                          \
		om_ep_clear<e, w, u>(map, WORDS, rows);                                            \
		om_ep_far_rows<e, w, q, WIDE, false>(me, map, rows, in);                           \
	}
#define OM_EP_FAR_BACK(NAME, V, WIDE, e, w, q)                                              \
	OM_GLOBAL(OM_EP_THREADS, 1) NAME##_out(int me, const int32_t *map, V *rows, V *out) \
	{                                                                                   \
		om_ep_far_rows<e, w, q, WIDE, true>(me, map, rows, out);                    \
	}

#define OM_EP_FAR_DISPATCH(NAME, t, m, k, n, w, c, u, q)        \
	OM_EP_FAR_SHAPE(t, (m) / OM_EP_PARTS, k, n, w, c, u, q) \
	OM_EP_ROW(n)                                            \
	OM_EP_FAR_SEND(NAME, uint4, k, (n) / 8, (n) / 2, t, (m) / OM_EP_PARTS, k, w, u, q)

#define OM_EP_FAR_COMBINE(NAME, t, m, k, n, w, c, q)                                          \
	OM_EP_FAR_SHAPE(t, (m) / OM_EP_PARTS, k, n, w, c, 1, q)                               \
	OM_EP_ROW(n)                                                                          \
	OM_EP_FAR_BACK(NAME, uint4, (n) / 8, (m) / OM_EP_PARTS, w, q)                         \
	OM_GLOBAL(OM_EP_THREADS, 1)                                                           \
	NAME##_in(int me, const om_bf16 *y, const int32_t *idx, const int32_t *row,           \
	    const int32_t *map, const om_bf16 *in, om_bf16 *x)                                \
	{                                                                                     \
		om_ep_far_sum<t, (m) / OM_EP_PARTS, k, n, w, q>(me, y, idx, row, map, in, x); \
	}

#define OM_EP_FAR_WEIGHTS(NAME, t, m, k, w, c, u, q)            \
	OM_EP_FAR_SHAPE(t, (m) / OM_EP_PARTS, k, 1, w, c, u, q) \
	OM_EP_FAR_SEND(NAME, float, 1, 1, 1, t, (m) / OM_EP_PARTS, k, w, u, q)

#define OM_EP_FAR_WEIGHTS_BWD(NAME, t, m, k, w, c, q)                                          \
	OM_EP_FAR_SHAPE(t, (m) / OM_EP_PARTS, k, 1, w, c, 1, q)                                \
	OM_EP_FAR_BACK(NAME, float, 1, (m) / OM_EP_PARTS, w, q)                                \
	OM_GLOBAL(OM_EP_THREADS, 1)                                                            \
	NAME##_in(int me, const float *dpr, const int32_t *idx, const int32_t *row,            \
	    const int32_t *map, const float *in, float *dp)                                    \
	{                                                                                      \
		om_ep_far_take<t, (m) / OM_EP_PARTS, k, w, q>(me, dpr, idx, row, map, in, dp); \
	}

#else /* ---- host ---- */

#include "om_comm.h"

/* Every two ranks of w exchange blocks of so many bytes. */
static inline void
om_ep_far_exchange(const char *what, uint32_t w, uint64_t bytes, char *out, char *in)
{
	struct om_piece go[OM_PEERS_COUNTS], come[OM_PEERS_COUNTS];
	uint32_t n = 0;
	for (uint32_t r = 0; r < w; r++) {
		if (r == om_rank(OM_EXPERT))
			continue;
		go[n] = (struct om_piece){ out + r * bytes, bytes, r };
		come[n++] = (struct om_piece){ in + r * bytes, bytes, r };
	}
	om_exchange(OM_EXPERT, what, go, n, come, n);
}

#define OM_EP_FAR_MAP(NAME, t, e, k, n, w, c, u, q)                                              \
	OM_EP_FAR_SHAPE(t, e, k, n, w, c, u, q)                                                  \
	OM_ROUTE_SIZES(t, e, k, n)                                                               \
	OM_KERNEL(NAME##_tell, OM_EP_MAP_THREADS, 0)                                             \
	OM_KERNEL(NAME##_count, 256, 0)                                                          \
	OM_KERNEL(NAME##_rows, OM_EP_MAP_THREADS, 0)                                             \
	OM_KERNEL(NAME##_place, 256, 0)                                                          \
	static void NAME##_begin(int me, const int32_t *cnt, int32_t *count)                     \
	{                                                                                        \
		OM_LAUNCH(NAME##_tell, 1, 1, 1, &me, &cnt, &count);                              \
	}                                                                                        \
	static void NAME##_end(int me, const int32_t *idx, const int32_t *cnt, int32_t *row,     \
	    int32_t *src, int32_t *map, int32_t *off, int64_t *cut, int32_t *count, int32_t *ws) \
	{                                                                                        \
		const uint32_t blocks = (n)*OM_ROUTE_PARTS((t) / (n), k);                        \
		OM_LAUNCH(NAME##_count, blocks, 1, 1, &idx, &ws);                                \
		OM_LAUNCH(NAME##_rows, 1, 1, 1, &me, &count, &map, &off, &cut);                  \
		OM_LAUNCH(NAME##_place, blocks, 1, 1, &idx, &cnt, &ws, &map, &row, &src);        \
	}                                                                                        \
	void NAME(const int32_t *idx, const int32_t *cnt, int32_t *row, int32_t *src,            \
	    int32_t *map, int32_t *off, int64_t *cut, void *ws)                                  \
	{                                                                                        \
		int32_t *count = ws;                                                             \
		NAME##_begin((int)om_rank(OM_EXPERT), cnt, count);                               \
		om_all_gather(OM_EXPERT, "counts of routes", count, (uint64_t)(w) * (e)*4);      \
		NAME##_end((int)om_rank(OM_EXPERT), idx, cnt, row, src, map, off, cut, count,    \
		    count + (w) * (e));                                                          \
	}                                                                                        \
	double NAME##_check(uint64_t seed)                                                       \
	{                                                                                        \
		return om_ep_far_map_check(NAME##_begin, NAME##_end, n,                          \
		    (struct om_ep_shape){ t, e, k, 1, w, c, u, q }, seed);                       \
	}

/* Its two parts, and both with the exchange between; from, to: the op's first and last tensors. */
#define OM_EP_FAR_BOTH(NAME, what, V, n, w, q, IN)                                      \
	OM_KERNEL(NAME##_out, OM_EP_THREADS, 0)                                         \
	OM_KERNEL(NAME##_in, OM_EP_THREADS, 0)                                          \
	static void NAME##_part(int part, int me, const V *from, const int32_t *idx,    \
	    const int32_t *row, const int32_t *map, V *to, V *out, V *in)               \
	{                                                                               \
		if (part == 0)                                                          \
			OM_LAUNCH(NAME##_out, om_sms(), 1, 1, IN##_OUT);                \
		else                                                                    \
			OM_LAUNCH(NAME##_in, om_sms(), 1, 1, IN##_IN);                  \
	}                                                                               \
	static void NAME##_any(int part, int me, const void *from, const int32_t *idx,  \
	    const int32_t *row, const int32_t *map, void *to, void *out, void *in)      \
	{                                                                               \
		NAME##_part(part, me, from, idx, row, map, to, out, in);                \
	}                                                                               \
	static void NAME##_all(const V *from, const int32_t *idx, const int32_t *row,   \
	    const int32_t *map, V *to, void *ws)                                        \
	{                                                                               \
		V *out = ws, *in = out + (int64_t)(w) * (q) * (n);                      \
		const int me = (int)om_rank(OM_EXPERT);                                 \
		NAME##_part(0, me, from, idx, row, map, to, out, in);                   \
		om_ep_far_exchange(                                                     \
		    what, w, (uint64_t)(q) * (n) * sizeof(V), (char *)out, (char *)in); \
		NAME##_part(1, me, from, idx, row, map, to, out, in);                   \
	}
/* arguments of the kernels that send, and of those that bring back */
#define OM_EP_THERE_OUT &me, &from, &idx, &row, &map, &to, &out
#define OM_EP_THERE_IN &me, &map, &to, &in
#define OM_EP_BACK_OUT &me, &map, &from, &out
#define OM_EP_BACK_IN &me, &from, &idx, &row, &map, &in, &to

#define OM_EP_FAR_DISPATCH(NAME, t, m, k, n, w, c, u, q)                                        \
	OM_EP_FAR_SHAPE(t, (m) / OM_EP_PARTS, k, n, w, c, u, q)                                 \
	OM_EP_ROW(n)                                                                            \
	OM_EP_FAR_BOTH(NAME, "row dispatch", om_bf16, n, w, q, OM_EP_THERE)                     \
	void NAME(const om_bf16 *x, const int32_t *idx, const int32_t *row, const int32_t *src, \
	    const int32_t *map, om_bf16 *xr, void *ws)                                          \
	{                                                                                       \
		(void)src;                                                                      \
		NAME##_all(x, idx, row, map, xr, ws);                                           \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_ep_send_check(NULL, NULL, NAME##_any, true,                           \
		    (struct om_ep_shape){ t, (m) / OM_EP_PARTS, k, n, w, c, u, q }, seed);      \
	}

#define OM_EP_FAR_COMBINE(NAME, t, m, k, n, w, c, q)                                            \
	OM_EP_FAR_SHAPE(t, (m) / OM_EP_PARTS, k, n, w, c, 1, q)                                 \
	OM_EP_ROW(n)                                                                            \
	OM_EP_FAR_BOTH(NAME, "row combine", om_bf16, n, w, q, OM_EP_BACK)                       \
	void NAME(const om_bf16 *y, const int32_t *idx, const int32_t *row, const int32_t *map, \
	    om_bf16 *x, void *ws)                                                               \
	{                                                                                       \
		NAME##_all(y, idx, row, map, x, ws);                                            \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_ep_return_check(NULL, NULL, NAME##_any, true,                         \
		    (struct om_ep_shape){ t, (m) / OM_EP_PARTS, k, n, w, c, 1, q }, seed);      \
	}

#define OM_EP_FAR_WEIGHTS(NAME, t, m, k, w, c, u, q)                                          \
	OM_EP_FAR_SHAPE(t, (m) / OM_EP_PARTS, k, 1, w, c, u, q)                               \
	OM_EP_FAR_BOTH(NAME, "route weights", float, 1, w, q, OM_EP_THERE)                    \
	void NAME(const float *p, const int32_t *idx, const int32_t *row, const int32_t *src, \
	    const int32_t *map, float *pr, void *ws)                                          \
	{                                                                                     \
		(void)src;                                                                    \
		NAME##_all(p, idx, row, map, pr, ws);                                         \
	}                                                                                     \
	double NAME##_check(uint64_t seed)                                                    \
	{                                                                                     \
		return om_ep_send_check(NULL, NULL, NAME##_any, false,                        \
		    (struct om_ep_shape){ t, (m) / OM_EP_PARTS, k, 1, w, c, u, q }, seed);    \
	}

#define OM_EP_FAR_WEIGHTS_BWD(NAME, t, m, k, w, c, q)                                           \
	OM_EP_FAR_SHAPE(t, (m) / OM_EP_PARTS, k, 1, w, c, 1, q)                                 \
	OM_EP_FAR_BOTH(NAME, "route weights", float, 1, w, q, OM_EP_BACK)                       \
	void NAME(const float *dpr, const int32_t *idx, const int32_t *row, const int32_t *src, \
	    const int32_t *map, float *dp, void *ws)                                            \
	{                                                                                       \
		(void)src;                                                                      \
		NAME##_all(dpr, idx, row, map, dp, ws);                                         \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_ep_return_check(NULL, NULL, NAME##_any, false,                        \
		    (struct om_ep_shape){ t, (m) / OM_EP_PARTS, k, 1, w, c, 1, q }, seed);      \
	}

#endif
#endif
