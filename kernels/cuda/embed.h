/*
 * Token embedding.
 *
 *   embed      x [t, n] = w [v, n] at row tok [t]
 *   embed_bwd  dw [v, n], row tok[i], += dx [t, n], row i
 *
 * 0 <= tok < v is the caller's promise; n is a multiple of 8.
 *
 * embed_bwd sorts the places by token, keeping their order, and divides the sorted list into equal
 * pieces, so that no distribution of tokens leaves a block with more work than another:
 *
 *   _sort  each chunk of OM_EMBED_CHUNK tokens is sorted in a block; the rank of a key is the
 *          number of smaller ones, since keys (token, place) are unique
 *   _rank  a key's rank among all is its rank in its chunk and, by binary search, in all others
 *   _rows  a block adds the rows of OM_EMBED_PIECE sorted places to dw, run by run. What belongs
 *          to a run that an earlier piece began goes to a partial sum
 *   _rest  adds the partial sums of a run to dw, in order
 *
 * A row of dw is thus dw + its places in order, cut into pieces that depend on the tokens alone.
 * ws holds a partial sum a piece, the sorted chunks and the sorted places.
 */
#ifndef OM_EMBED_H
#define OM_EMBED_H

#include "om_cuda.h"

#define OM_EMBED_CHUNK 512
#define OM_EMBED_PIECE 32
#define OM_EMBED_THREADS 256
#define OM_EMBED_VECTORS 4 /* of 8, of a thread in embed */
#define OM_EMBED_RANKERS 128
#define OM_EMBED_PIECES(t) OM_CEIL(t, OM_EMBED_PIECE)
/* threads of _rows, 8 columns each */
#define OM_EMBED_WIDE(n) ((n) >= 8 * OM_EMBED_THREADS ? OM_EMBED_THREADS : OM_CEIL(n, 256) * 32)

#define OM_EMBED_SIZES(t, n, v)                                                                 \
	static_assert((t) >= 1 && (n) >= 1 && (v) >= 1, "embed: sizes start at 1");             \
	static_assert((n) % 8 == 0, "embed: the width is a multiple of 8");                     \
	static_assert((int64_t)(t) * (n) / 8 <= 0x7fffffff, "embed: vectors counted in int32"); \
	static_assert((int64_t)(v)*OM_EMBED_CHUNK < 0xffffffff, "embed: a key is 32 bits");

#ifdef __CUDACC__

/* Threads beyond the end load the last vector: a branch would make each load wait for the last. */
template <int64_t T, int N>
OM_DEV void
om_embed(const int32_t *tok, const om_bf16 *w, om_bf16 *x)
{
	constexpr uint32_t wide = N / 8, total = T * wide;
	constexpr uint32_t block = OM_EMBED_THREADS * OM_EMBED_VECTORS;
	constexpr bool even = total % block == 0;
	const uint32_t first = blockIdx.x * block + threadIdx.x;
	uint4 v[OM_EMBED_VECTORS];
#pragma unroll
	for (int u = 0; u < OM_EMBED_VECTORS; u++) {
		const uint32_t at = first + u * OM_EMBED_THREADS;
		const uint32_t i = even ? at : min(at, total - 1);
		v[u] = ((const uint4 *)w)[(int64_t)tok[i / wide] * wide + i % wide];
	}
#pragma unroll
	for (int u = 0; u < OM_EMBED_VECTORS; u++) {
		const uint32_t i = first + u * OM_EMBED_THREADS;
		if (even || i < total)
			((uint4 *)x)[i] = v[u];
	}
}

/* keys [T]: chunk by chunk, token * OM_EMBED_CHUNK + place in the chunk, ascending */
template <int64_t T>
OM_DEV void
om_embed_sort(const int32_t *tok, uint32_t *keys)
{
	__shared__ uint4 key[OM_EMBED_CHUNK / 4];
	const int64_t base = (int64_t)blockIdx.x * OM_EMBED_CHUNK, at = base + threadIdx.x;
	const uint32_t mine =
	    at < T ? (uint32_t)tok[at] * OM_EMBED_CHUNK + threadIdx.x : 0xffffffffu;
	int rank = 0;
	((uint32_t *)key)[threadIdx.x] = mine;
	__syncthreads();
#pragma unroll 8
	for (int j = 0; j < OM_EMBED_CHUNK / 4; j++) {
		const uint4 k = key[j];
		rank += (k.x < mine) + (k.y < mine) + (k.z < mine) + (k.w < mine);
	}
	if (at < T)
		keys[base + rank] = mine;
}

/* place [T]: places sorted by token, then by themselves */
template <int64_t T>
OM_DEV void
om_embed_rank(const uint32_t *keys, int32_t *place)
{
	constexpr int chunks = OM_CEIL(T, OM_EMBED_CHUNK);
	const int64_t at = (int64_t)blockIdx.x * OM_EMBED_RANKERS + threadIdx.x;
	if (at >= T)
		return;
	const uint32_t key = keys[at], token = key / OM_EMBED_CHUNK;
	const int mine = (int)(at / OM_EMBED_CHUNK);
	int64_t rank = at % OM_EMBED_CHUNK;
#pragma unroll 4
	for (int c = 0; c < chunks; c++) {
		/* equal tokens of earlier chunks come before this one, of later ones after */
		const uint32_t bound = (token + (c < mine)) * OM_EMBED_CHUNK;
		const int64_t base = (int64_t)c * OM_EMBED_CHUNK;
		const int n = T - base < OM_EMBED_CHUNK ? (int)(T - base) : OM_EMBED_CHUNK;
		int below = 0;
#pragma unroll
		for (int step = OM_EMBED_CHUNK; step; step /= 2)
			if (below + step <= n && keys[base + below + step - 1] < bound)
				below += step;
		rank += c == mine ? 0 : below;
	}
	place[rank] = mine * OM_EMBED_CHUNK + key % OM_EMBED_CHUNK;
}

template <int64_t T, int N>
OM_DEV void
om_embed_rows(const om_bf16 *dx, const int32_t *tok, const int32_t *place, float *dw, float *part)
{
	constexpr int batch = 2; /* rows in flight: more would leave room for fewer blocks */
	__shared__ int32_t at[OM_EMBED_PIECE], around[OM_EMBED_PIECE + 2];
	/* id[j]: the jth token; -1 beyond the list and after the piece, where its last run ends */
	int32_t *const id = around + 1;
	const int64_t lo = (int64_t)blockIdx.x * OM_EMBED_PIECE;
	if (threadIdx.x < OM_EMBED_PIECE) {
		const bool in = lo + threadIdx.x < T;
		const int32_t i = in ? place[lo + threadIdx.x] : 0;
		at[threadIdx.x] = i;
		id[threadIdx.x] = in ? tok[i] : -1;
	}
	if (threadIdx.x == 0) {
		id[-1] = lo > 0 ? tok[place[lo - 1]] : -1;
		id[OM_EMBED_PIECE] = -1;
	}
	__syncthreads();
	const int col = (blockIdx.y * OM_EMBED_WIDE(N) + threadIdx.x) * 8;
	if (col >= N)
		return;
	bool begun = false; /* the run began in this piece */
	float sum[8] = {};
	for (int j = 0; j < OM_EMBED_PIECE; j += batch) {
		float x[batch][8], old[batch][8];
		/* all, whether used or not: a branch would make each load wait for the last */
#pragma unroll
		for (int u = 0; u < batch; u++) {
			om_load8(dx + (int64_t)at[j + u] * N + col, x[u]);
			const float4 *d = (float4 *)(dw + (int64_t)max(id[j + u], 0) * N + col);
			*(float4 *)&old[u][0] = d[0];
			*(float4 *)&old[u][4] = d[1];
		}
#pragma unroll
		for (int u = 0; u < batch; u++) {
			const bool begins = id[j + u] != id[j + u - 1];
			begun |= begins;
#pragma unroll
			for (int c = 0; c < 8; c++)
				sum[c] = (begins ? old[u][c] : sum[c]) + x[u][c];
			if (id[j + u] == id[j + u + 1])
				continue;
			float4 *d = (float4 *)((begun ? dw + (int64_t)id[j + u] * N
						      : part + (int64_t)blockIdx.x * N) +
					       col);
			d[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
			d[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
		}
	}
}

/* The piece that holds a run's first partial sum adds all of them. */
template <int64_t T, int N>
OM_DEV void
om_embed_rest(const int32_t *tok, const int32_t *place, const float *part, float *dw)
{
	constexpr int pieces = OM_EMBED_PIECES(T);
	const int p = blockIdx.x + 1, col = blockIdx.y * OM_EMBED_THREADS + threadIdx.x;
	const int64_t at = (int64_t)p * OM_EMBED_PIECE;
	const int32_t token = tok[place[at]];
	if (tok[place[at - 1]] != token) /* no run is cut here */
		return;
	if (p > 1 && tok[place[at - OM_EMBED_PIECE - 1]] == token) /* not its first partial sum */
		return;
	int last = p; /* the last piece that begins with the token */
	for (int end = pieces; end - last > 1;) {
		const int mid = (last + end) / 2;
		if (tok[place[(int64_t)mid * OM_EMBED_PIECE]] == token)
			last = mid;
		else
			end = mid;
	}
	if (col >= N)
		return;
	float *const d = dw + (int64_t)token * N + col;
	float sum = *d;
#pragma unroll 32
	for (int q = p; q <= last; q++)
		sum += part[(int64_t)q * N + col];
	*d = sum;
}

#define OM_EMBED(NAME, t, n, v)                                    \
	OM_EMBED_SIZES(t, n, v)                                    \
	OM_GLOBAL(OM_EMBED_THREADS, 1)                             \
	NAME##_x(const int32_t *tok, const om_bf16 *w, om_bf16 *x) \
	{                                                          \
		OM_FEW_BEGIN(t)                                    \
		om_embed<t, n>(tok, w, x);                         \
	}

#define OM_EMBED_BWD(NAME, t, n, v)                                                              \
	OM_EMBED_SIZES(t, n, v)                                                                  \
	OM_GLOBAL(OM_EMBED_CHUNK, 1) NAME##_sort(const int32_t *tok, uint32_t *keys)             \
	{                                                                                        \
		om_embed_sort<t>(tok, keys);                                                     \
	}                                                                                        \
	OM_GLOBAL(OM_EMBED_RANKERS, 1) NAME##_rank(const uint32_t *keys, int32_t *place)         \
	{                                                                                        \
		om_embed_rank<t>(keys, place);                                                   \
	}                                                                                        \
	OM_GLOBAL(OM_EMBED_WIDE(n), 1024 / OM_EMBED_WIDE(n))                                     \
	NAME##_rows(                                                                             \
	    const om_bf16 *dx, const int32_t *tok, const int32_t *place, float *dw, float *part) \
	{                                                                                        \
		om_embed_rows<t, n>(dx, tok, place, dw, part);                                   \
	}                                                                                        \
	OM_GLOBAL(OM_EMBED_THREADS, 1)                                                           \
	NAME##_rest(const int32_t *tok, const int32_t *place, const float *part, float *dw)      \
	{                                                                                        \
		om_embed_rest<t, n>(tok, place, part, dw);                                       \
	}

#else /* ---- host ---- */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "embed_ref.h"

#define OM_EMBED(NAME, t, n, v)                                                                 \
	OM_EMBED_SIZES(t, n, v)                                                                 \
	OM_KERNEL_FEW(NAME##_x, OM_EMBED_THREADS, 0, t)                                         \
	void NAME(const int32_t *tok, const om_bf16 *w, om_bf16 *x)                             \
	{                                                                                       \
		OM_LAUNCH(NAME##_x,                                                             \
		    OM_CEIL((int64_t)(t) * (n) / 8, OM_EMBED_THREADS * OM_EMBED_VECTORS), 1, 1, \
		    &tok, &w, &x);                                                              \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_embed_check(NAME, t, n, v, seed);                                     \
	}

#define OM_EMBED_BWD(NAME, t, n, v)                                                             \
	OM_EMBED_SIZES(t, n, v)                                                                 \
	OM_KERNEL(NAME##_sort, OM_EMBED_CHUNK, 0)                                               \
	OM_KERNEL(NAME##_rank, OM_EMBED_RANKERS, 0)                                             \
	OM_KERNEL(NAME##_rows, OM_EMBED_WIDE(n), 0)                                             \
	OM_KERNEL(NAME##_rest, OM_EMBED_THREADS, 0)                                             \
	void NAME(const om_bf16 *dx, const int32_t *tok, float *dw, float *ws)                  \
	{                                                                                       \
		float *part = ws; /* first: it is read 16 bytes at a time */                    \
		uint32_t *keys = (uint32_t *)(ws + (int64_t)OM_EMBED_PIECES(t) * (n));          \
		int32_t *place = (int32_t *)keys + (t);                                         \
		OM_LAUNCH(NAME##_sort, OM_CEIL(t, OM_EMBED_CHUNK), 1, 1, &tok, &keys);          \
		OM_LAUNCH(NAME##_rank, OM_CEIL(t, OM_EMBED_RANKERS), 1, 1, &keys, &place);      \
		OM_LAUNCH(NAME##_rows, OM_EMBED_PIECES(t), OM_CEIL(n, 8 * OM_EMBED_WIDE(n)), 1, \
		    &dx, &tok, &place, &dw, &part);                                             \
		OM_LAUNCH(NAME##_rest, OM_EMBED_PIECES(t) - 1, OM_CEIL(n, OM_EMBED_THREADS), 1, \
		    &tok, &place, &part, &dw);                                                  \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_embed_bwd_check(NAME, t, n, v, seed);                                 \
	}

enum { OM_EMBED_SAMPLES = 128, OM_EMBED_ALL = 4096 };

/* Uniform in [0, below). */
static inline int64_t
om_embed_pick(uint64_t seed, int stream, int64_t i, int64_t below)
{
	int64_t x =
	    (int64_t)((om_unit(seed, stream, i) / 3.4641016151377544 + 0.5) * (double)below);
	return x < 0 ? 0 : x >= below ? below - 1 : x;
}

/* 0: uniform; 1: half of them a few frequent ones; 2: all the same */
static inline int32_t *
om_embed_tokens(int pattern, int64_t t, int64_t v, uint64_t seed)
{
	int32_t *tok = malloc((size_t)t * sizeof *tok);
	for (int64_t i = 0; i < t; i++) {
		int64_t j = om_embed_pick(seed, 10, pattern == 2 ? 0 : i, v);
		tok[i] = (int32_t)(pattern == 1 && i % 2 ? j % 3 : j);
	}
	return tok;
}

static inline double
om_embed_check(void (*run)(const int32_t *, const om_bf16 *, om_bf16 *), int64_t t, int64_t n,
    int64_t v, uint64_t seed)
{
	int32_t *host = om_embed_tokens(0, t, v, seed);
	int32_t *tok = om_check_copy(host, (size_t)t * sizeof *tok);
	om_bf16 *w = om_check_bf16(v * n, seed, 1, 1),
		*x = om_check_nan((size_t)(t * n) * sizeof *x);
	om_bf16 *row = malloc((size_t)n * sizeof *row);
	struct om_err e = { .scale = 1 };
	run(tok, w, x);
	for (int64_t s = 0; s < t && s < OM_EMBED_SAMPLES; s++) {
		int64_t i = t <= OM_EMBED_SAMPLES ? s
			    : s == 0              ? t - 1
						  : om_embed_pick(seed, 11, s, t);
		om_check_read(row, x + i * n, (size_t)n * sizeof *row);
		for (int64_t j = 0; j < n; j++)
			om_err_add(
			    &e, om_bf16_f32(row[j]), om_embed_ref(host, OM_BF16(1), n, i, j));
	}
	OM_TIME(run(tok, w, x));
	om_check_end();
	free(host);
	free(row);
	return om_err_value(&e);
}

static inline double
om_embed_bwd_check(void (*run)(const om_bf16 *, const int32_t *, float *, float *), int64_t t,
    int64_t n, int64_t v, uint64_t seed)
{
	const size_t scratch = (size_t)(2 * t + (t + 31) / 32 * n) * sizeof(float);
	const bool all = v * n <= OM_EMBED_ALL;
	const int64_t samples = all ? v * n : OM_EMBED_SAMPLES;
	om_bf16 *dx = om_check_bf16(t * n, seed, 1, 1);
	float *dw[2] = { om_check_f32(v * n, seed, 2, 1), om_check_f32(v * n, seed, 2, 1) };
	float *ws = om_check_nan(scratch), got[2];
	int32_t *host[3], *tok[3];
	struct om_err e = { .scale = 1 };
	for (int p = 0; p < 3; p++) {
		host[p] = om_embed_tokens(p, t, v, seed);
		tok[p] = om_check_copy(host[p], (size_t)t * sizeof **tok);
		run(dx, tok[p], dw[0], ws);
	}
	for (int p = 0; p < 3; p++)
		run(dx, tok[p], dw[1], ws);
	for (int64_t s = 0; s < samples; s++) {
		int64_t at = om_embed_pick(seed, 12, s, v * n);
		if (s % 4) /* a row that was hit */
			at = host[s % 4 - 1][om_embed_pick(seed, 13, s, t)] * n + at % n;
		if (all)
			at = s;
		double want = om_in(OM_F32(2), at);
		for (int p = 0; p < 3; p++)
			want += om_embed_ref_dw(OM_BF16(1), host[p], t, n, at);
		for (int k = 0; k < 2; k++)
			om_check_read(&got[k], dw[k] + at, sizeof *got);
		om_err_add(&e, got[0], want);
		e.wrong |= memcmp(&got[0], &got[1], sizeof *got) != 0;
	}
	OM_TIME(run(dx, tok[0], dw[0], ws));
	om_check_end();
	for (int p = 0; p < 3; p++)
		free(host[p]);
	return om_err_value(&e);
}

#endif
#endif
