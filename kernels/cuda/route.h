/*
 * The router: scores, groups of experts, top-k, balance statistics and losses, and the order of
 * rows. What is computed, and its sources, stand in kernels/cpu/route.h:
 *
 *   route      p [t, k], idx [t, k], prob [t, e], lse [t], cnt [n, e], load [e] +=, aux [2] +=
 *   route_biased, route_random, route_uniform: the same of experts not chosen by the scores alone
 *   route_bwd  dz [t, e]
 *   route_map  row [t, k], src [t * k], off [e + 1]
 *
 * 16 lanes take a token, lane l its experts l, l + 16, ...: these are the lanes of the CPU's sums,
 * and exp is the CPU's, operation by operation, so that from equal z both choose equally, ties of
 * rounded scores included; and draw equally.
 *
 * Sums over tokens: a block sums those of its chunk (route_tokens), which lies in one sequence, and
 * a second kernel adds the chunks in order (route_totals).
 */
#ifndef OM_ROUTE_H
#define OM_ROUTE_H

#include "om_cuda.h"

#include "rng.h"

enum { OM_ROUTE_SOFTMAX, OM_ROUTE_SIGMOID, OM_ROUTE_CHOSEN, OM_ROUTE_SCORES };
/* What experts are chosen by; bias and draw are tensors. */
enum { OM_BY_SCORE, OM_BY_BIAS, OM_BY_DRAW, OM_BY_TURN };
enum {
	OM_ROUTE_LANES = 16,  /* of a token */
	OM_ROUTE_CHUNK = 32,  /* tokens of a block of route */
	OM_ROUTE_TILE = 32,   /* experts of a block of route_totals */
	OM_ROUTE_ROWS = 1024, /* routed rows of a block of route_map, more where there'd be */
	OM_ROUTE_MOST = 128,  /* more blocks a sequence than this */
	OM_ROUTE_FEW = 1024   /* threads of a block that does all of route_map */
};

/* Threads of a block of route: its tokens' scores and groups need shared memory. */
#define OM_ROUTE_THREADS(e, g) ((e) + (g) > 512 ? 128 : 256)
/* Chunks of a sequence of t tokens */
#define OM_ROUTE_CHUNKS(t) OM_CEIL(t, OM_ROUTE_CHUNK)
#define OM_ROUTE_PARTS(t, k)                                                                   \
	(OM_CEIL((t) * (k), OM_ROUTE_ROWS) < OM_ROUTE_MOST ? OM_CEIL((t) * (k), OM_ROUTE_ROWS) \
							   : OM_ROUTE_MOST)

#ifdef __CUDACC__

#define OM_ROUTE_NAN __uint_as_float(0x7fffffffu)
#define OM_ROUTE_INF __uint_as_float(0x7f800000u)
#define OM_ROUTE_LEAST -0x1.fffffep127f /* rank of NaN, and the least: struck out is below it */

/* kernels/cpu/om_cpu.h: om_exp; its products and sums are contracted there too */
OM_DEV float
om_route_exp(float x)
{
	const float shift = 0x1.8p23f;
	const float t = fmaf(x, 0x1.715476p0f, shift), n = t - shift;
	const float r = fmaf(-n, 0x1.7f7d1cp-20f, fmaf(-n, 0x1.62e4p-1f, x));
	float p = 1.0f / 5040;
	p = fmaf(p, r, 1.0f / 720);
	p = fmaf(p, r, 1.0f / 120);
	p = fmaf(p, r, 1.0f / 24);
	p = fmaf(p, r, 1.0f / 6);
	p = fmaf(p, r, 0.5f);
	p = fmaf(p, r, 1);
	p = fmaf(p, r, 1);
	p = __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
	p = x < -0x1.5d589ep6f ? 0 : p;           /* ln 2^-126 */
	p = x > 0x1.62e42ep6f ? OM_ROUTE_INF : p; /* ln 2^128 */
	return x == x ? p : x;
}

OM_DEV float
om_route_sigmoid(float x)
{
	return 1 / (1 + om_route_exp(-x));
}

/* Sum over a token's lanes: the CPU's tree, in every lane, as a + b is b + a. */
OM_DEV float
om_route_sum(float x)
{
#pragma unroll
	for (int d = OM_ROUTE_LANES / 2; d; d /= 2)
		x += __shfl_xor_sync(0xffffffffu, x, d);
	return x;
}

/*
 * Strikes out, as NaN, the experts of all but the Q best of G groups. room: E + G floats for each
 * token.
 */
template <int E, int G, int Q>
OM_DEV void
om_route_groups(int lane, float *rank, float *room)
{
	constexpr int V = OM_CEIL(E, OM_ROUTE_LANES), SIZE = E / G;
	float *group = room + E;
	__syncwarp();
#pragma unroll
	for (int v = 0; v < V; v++) {
		const int i = v * OM_ROUTE_LANES + lane;
		if (i < E)
			room[i] = rank[v] > OM_ROUTE_LEAST ? rank[v] : -OM_ROUTE_INF;
	}
	__syncwarp();
	for (int i = lane; i < G; i += OM_ROUTE_LANES) {
		float best = room[i * SIZE], second = SIZE > 1 ? -OM_ROUTE_INF : 0;
		for (int a = i * SIZE + 1; a < (i + 1) * SIZE; a++) {
			const float x = room[a];
			second = fmaxf(second, fminf(x, best));
			best = fmaxf(x, best);
		}
		group[i] = best + second;
	}
	__syncwarp();
	for (int i = lane; i < G; i += OM_ROUTE_LANES) {
		const float own = group[i];
		int before = 0;
		for (int o = 0; o < G; o++)
			before += group[o] > own || (group[o] == own && o < i);
		room[i] = before < Q; /* the ranks have been read */
	}
	__syncwarp();
#pragma unroll
	for (int v = 0; v < V; v++) {
		const int i = v * OM_ROUTE_LANES + lane;
		if (i < E && room[i / SIZE] == 0)
			rank[v] = OM_ROUTE_NAN;
	}
}

/* The expert of the largest rank, the first of equal ones; struck out are those with NaN. */
template <int V>
OM_DEV int
om_route_best(int lane, const float *rank)
{
	float best = -OM_ROUTE_INF;
	int at = V * OM_ROUTE_LANES;
#pragma unroll
	for (int v = 0; v < V; v++) {
		if (rank[v] > best) {
			best = rank[v];
			at = v * OM_ROUTE_LANES + lane;
		}
	}
#pragma unroll
	for (int d = OM_ROUTE_LANES / 2; d; d /= 2) {
		const float x = __shfl_xor_sync(0xffffffffu, best, d);
		const int i = __shfl_xor_sync(0xffffffffu, at, d);
		if (x > best || (x == best && i < at)) {
			best = x;
			at = i;
		}
	}
	return at;
}

/* Where the sums of route's chunks are in its workspace. */
template <int T, int E, int N> struct om_route_ws {
	static constexpr int CHUNKS = N * OM_ROUTE_CHUNKS(T / N), TILES = OM_CEIL(E, OM_ROUTE_TILE);
	double balance[N * TILES], square[N];
	unsigned done; /* blocks of route_totals that are */
	int count[CHUNKS][E];
	float mass[CHUNKS][E], lse2[CHUNKS];
};

/* Random numbers in the place of a token's scores, into room: kernels/cpu/route.h. */
template <int E>
OM_DEV void
om_route_draw(const int64_t *draw, int64_t token, int lane, float *room)
{
	const uint64_t at = (uint64_t)(draw[2] + token);
	__syncwarp();
#pragma unroll 1
	for (int c = 4 * lane; c < E; c += 4 * OM_ROUTE_LANES) {
		const struct om_philox at_c = { { (uint32_t)at, (uint32_t)(at >> 32),
		    (uint32_t)draw[1], (uint32_t)c / 4 } };
		const struct om_philox r = om_philox(at_c, (uint64_t)draw[0]);
#pragma unroll
		for (int w = 0; w < 4; w++) {
			if (c + w < E)
				room[c + w] = (float)(r.v[w] >> 9) * 0x1p-23f;
		}
	}
	__syncwarp();
}

/*
 * The token's k experts by rank, and their weights by score; every lane of the token goes along,
 * and lane l writes the choices l, l + 16, ... Ranks of those taken are struck out.
 */
template <int E, int K, int BY, bool NORMALIZE>
OM_DEV void
om_route_take(bool live, int64_t token, int lane, float factor, const float *score, float *rank,
    float *p, int32_t *idx, int *count)
{
	constexpr int L = OM_ROUTE_LANES, V = OM_CEIL(E, L);
	constexpr bool LATE = NORMALIZE && K > L;
	float chosen = 0;
	for (int b = 0; b < K; b += L) {
		float mine = 0; /* lane l keeps the choice b + l */
		int where = 0;
#pragma unroll 1
		for (int a = 0; a < min(L, K - b); a++) {
			const int at = BY == OM_BY_TURN ? ((int)token * K + b + a) % E
							: om_route_best<V>(lane, rank);
			float own = 0;
#pragma unroll
			for (int v = 0; v < V; v++) {
				if (v * L + lane == at) {
					own = score[v];
					rank[v] = OM_ROUTE_NAN;
				}
			}
			own = __shfl_sync(0xffffffffu, own, at, L);
			chosen += own;
			mine = lane == a ? own : mine;
			where = lane == a ? at : where;
		}
		if (live && b + lane < K) {
			const int64_t at = token * K + b + lane;
			idx[at] = where;
			atomicAdd(&count[where], 1);
			p[at] = LATE ? mine : factor * (NORMALIZE ? mine / chosen : mine);
		}
	}
	for (int a = lane; LATE && live && a < K; a += L) /* its own */
		p[token * K + a] = factor * (p[token * K + a] / chosen);
}

/* BY: what stands for the scores where they are compared, not where they are weighed. */
template <int T, int E, int K, int J, int C, int G, int Q, int N, int BY>
OM_DEV void
om_route_tokens(float factor, const float *z, const void *by, float *p, int32_t *idx, float *prob,
    float *lse, void *scratch)
{
	constexpr int L = OM_ROUTE_LANES, V = OM_CEIL(E, L), PART = T / N;
	constexpr int THREADS = OM_ROUTE_THREADS(E, G), SLOTS = THREADS / L;
	constexpr int CHUNKS = OM_ROUTE_CHUNKS(PART);
	constexpr bool NORMALIZE = J || C == OM_ROUTE_CHOSEN, SIGMOID = C == OM_ROUTE_SIGMOID;
	constexpr bool GROUPS = Q < G;
	auto *ws = (om_route_ws<T, E, N> *)scratch;
	__shared__ float room[SLOTS][GROUPS ? E + G : E], square[SLOTS];
	__shared__ int count[E];
	const int lane = threadIdx.x % L, slot = threadIdx.x / L;
	const int sequence = blockIdx.x / CHUNKS;
	const int lo = sequence * PART + blockIdx.x % CHUNKS * OM_ROUTE_CHUNK;
	const int hi = min(lo + OM_ROUTE_CHUNK, (sequence + 1) * PART);
	float mass[V] = {}, lse2 = 0;

#pragma unroll 1
	for (int i = threadIdx.x; i < E; i += THREADS)
		count[i] = 0;
	if (blockIdx.x == 0 && threadIdx.x == 0)
		ws->done = 0;
	__syncthreads();

	for (int first = lo; first < hi; first += SLOTS) {
		/* all lanes go along, those without a token with the last one */
		const bool live = first + slot < hi;
		const int64_t token = min(first + slot, hi - 1);
		float score[V], rank[V], max = -OM_ROUTE_INF, sum = 0;
#pragma unroll
		for (int v = 0; v < V; v++) {
			const int i = v * L + lane;
			rank[v] = i < E ? z[token * E + i] : OM_ROUTE_NAN;
			max = fmaxf(max, rank[v]); /* passes over NaN */
		}
#pragma unroll
		for (int d = L / 2; d; d /= 2)
			max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, d));
#pragma unroll
		for (int v = 0; v < V; v++) {
			score[v] = v * L + lane < E ? om_route_exp(rank[v] - max) : 0;
			sum += score[v];
		}
		sum = om_route_sum(sum);
		const float log_sum = max + logf(sum);
		float inverse = 1 / sum;
		if (SIGMOID) {
			sum = 0;
#pragma unroll
			for (int v = 0; v < V; v++) {
				score[v] = v * L + lane < E ? om_route_sigmoid(rank[v]) : 0;
				sum += score[v];
			}
			inverse = 1 / om_route_sum(sum);
		}
		if (BY == OM_BY_DRAW)
			om_route_draw<E>((const int64_t *)by, token, lane, room[slot]);
#pragma unroll
		for (int v = 0; v < V; v++) {
			const int i = v * L + lane;
			const float share = score[v] * inverse;
			score[v] = SIGMOID ? score[v] : share;
			mass[v] += live ? share : 0;
			if (live && i < E)
				prob[token * E + i] = share;
			float x = score[v];
			if (BY == OM_BY_BIAS && i < E) /* not fused with the product in share */
				x = __fadd_rn(
				    C == OM_ROUTE_CHOSEN ? rank[v] : x, ((const float *)by)[i]);
			if (BY == OM_BY_DRAW && i < E)
				x = room[slot][i];
			rank[v] = i < E ? fmaxf(x, OM_ROUTE_LEAST) : OM_ROUTE_NAN;
		}
		lse2 += live ? log_sum * log_sum : 0;
		if (live && lane == 0)
			lse[token] = log_sum;

		if (GROUPS)
			om_route_groups<E, G, Q>(lane, rank, room[slot]);
		om_route_take<E, K, BY, NORMALIZE>(
		    live, token, lane, factor, score, rank, p, idx, count);
	}

	__syncthreads();
#pragma unroll
	for (int v = 0; v < V; v++) {
		if (v * L + lane < E)
			room[slot][v * L + lane] = mass[v];
	}
	square[slot] = lse2;
	__syncthreads();
#pragma unroll 1
	for (int i = threadIdx.x; i < E; i += THREADS) {
		float sum = 0;
#pragma unroll
		for (int s = 0; s < SLOTS; s++)
			sum += room[s][i];
		ws->mass[blockIdx.x][i] = sum;
		ws->count[blockIdx.x][i] = count[i];
	}
	if (threadIdx.x == 0) {
		float sum = 0;
#pragma unroll
		for (int s = 0; s < SLOTS; s++)
			sum += square[s];
		ws->lse2[blockIdx.x] = sum;
	}
}

OM_DEV double
om_route_warp_sum(double x)
{
#pragma unroll
	for (int d = 16; d; d /= 2)
		x += __shfl_xor_sync(0xffffffffu, x, d);
	return x;
}

/* Adds up the chunks of sequence blockIdx.y for 32 experts; the last block adds up those sums. */
template <int T, int E, int K, int N>
OM_DEV void
om_route_totals(void *scratch, int32_t *cnt, int64_t *load, double *aux)
{
	constexpr int CHUNKS = OM_ROUTE_CHUNKS(T / N), TILES = OM_CEIL(E, OM_ROUTE_TILE);
	auto *ws = (om_route_ws<T, E, N> *)scratch;
	__shared__ int counts[32][OM_ROUTE_TILE];
	__shared__ double masses[32][OM_ROUTE_TILE];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int i = blockIdx.x * OM_ROUTE_TILE + lane, sequence = blockIdx.y;
	int count = 0;
	double mass = 0, square = 0;
#pragma unroll 4
	for (int c = warp; i < E && c < CHUNKS; c += 32) {
		count += ws->count[sequence * CHUNKS + c][i];
		mass += ws->mass[sequence * CHUNKS + c][i];
	}
	counts[warp][lane] = count;
	masses[warp][lane] = mass;
	__syncthreads();
	if (warp)
		return;

	count = 0;
	mass = 0;
#pragma unroll
	for (int w = 0; w < 32; w++) {
		count += counts[w][lane];
		mass += masses[w][lane];
	}
	if (i < E) {
		cnt[sequence * E + i] = count;
		atomicAdd((unsigned long long *)&load[i], (unsigned long long)count);
	}
	mass = om_route_warp_sum(count * mass);
	for (int c = lane; blockIdx.x == 0 && c < CHUNKS; c += 32)
		square += ws->lse2[sequence * CHUNKS + c];
	square = om_route_warp_sum(square);

	unsigned last = 0;
	if (lane == 0) {
		ws->balance[sequence * TILES + blockIdx.x] = mass;
		if (blockIdx.x == 0)
			ws->square[sequence] = square;
		__threadfence();
		last = atomicAdd(&ws->done, 1u) == N * TILES - 1;
		__threadfence();
	}
	if (!__shfl_sync(0xffffffffu, last, 0))
		return;
	mass = square = 0;
	for (int s = lane; s < N * TILES; s += 32)
		mass += *(volatile double *)&ws->balance[s];
	for (int s = lane; s < N; s += 32)
		square += *(volatile double *)&ws->square[s];
	mass = om_route_warp_sum(mass);
	square = om_route_warp_sum(square);
	if (lane == 0) {
		const double part = T / N;
		aux[0] += E * mass / (part * part * K * N);
		aux[1] += square / T;
	}
}

/* balance: gradient of prob for each token an expert has; square: of z for lse times softmax */
template <int T, int E, int K, int J, int C, int N>
OM_DEV void
om_route_bwd(float factor, float balance, float square, const float *dp, const float *z,
    const int32_t *idx, const float *prob, const float *lse, const int32_t *cnt, float *dz)
{
	constexpr int L = OM_ROUTE_LANES, V = OM_CEIL(E, L), SLOTS = 256 / L;
	constexpr bool NORMALIZE = J || C == OM_ROUTE_CHOSEN, SIGMOID = C == OM_ROUTE_SIGMOID;
	__shared__ float room[SLOTS][E]; /* of the scores, by way of p */
	const int lane = threadIdx.x % L, slot = threadIdx.x / L;
	const bool live = (int64_t)blockIdx.x * SLOTS + slot < T;
	const int64_t token = live ? (int64_t)blockIdx.x * SLOTS + slot : T - 1;
	const int32_t *count = cnt + token / (T / N) * E;
	float pi[V], zi[V], d[V], chosen = 0, along = 0, mean = 0;

#pragma unroll
	for (int v = 0; v < V; v++) {
		const int i = v * L + lane;
		pi[v] = zi[v] = d[v] = 0;
		if (i >= E)
			continue;
		pi[v] = prob[token * E + i];
		zi[v] = SIGMOID ? z[token * E + i] : 0;
		d[v] = balance * (float)count[i];
		room[slot][i] = 0;
	}
	const float log_sum = lse[token];
	if (NORMALIZE) { /* p = c / sum c; of dp only what is not along p counts */
		for (int a = lane; a < K; a += L) {
			const int64_t at = token * E + idx[token * K + a];
			const float score = SIGMOID ? om_route_sigmoid(z[at]) : prob[at];
			chosen += score;
			along += dp[token * K + a] * score;
		}
		chosen = om_route_sum(chosen);
		along = om_route_sum(along) / chosen;
	}
	const float weight = NORMALIZE ? factor / chosen : factor;
	__syncwarp();
	for (int a = lane; a < K; a += L)
		room[slot][idx[token * K + a]] = (dp[token * K + a] - along) * weight;
	__syncwarp();

	float sum = 0;
#pragma unroll
	for (int v = 0; v < V; v++) {
		const int i = v * L + lane;
		if (!SIGMOID && i < E)
			d[v] += room[slot][i];
		mean += d[v] * pi[v];
		if (SIGMOID && i < E) {
			pi[v] = om_route_sigmoid(zi[v]);
			sum += pi[v];
		}
	}
	mean = om_route_sum(mean);
	if (!SIGMOID)
		mean -= square * log_sum;
	else
		sum = 1 / om_route_sum(sum);
#pragma unroll
	for (int v = 0; v < V; v++) {
		const int i = v * L + lane;
		if (!live || i >= E)
			continue;
		float x = pi[v] * (d[v] - mean);
		if (SIGMOID) /* pi is the score s now, prob = s / sum s */
			x = pi[v] * (1 - pi[v]) * ((d[v] - mean) * sum + room[slot][i]) +
			    square * log_sum * om_route_exp(zi[v] - log_sum);
		dz[token * E + i] = x;
	}
}

/*
 * route_map is a counting sort of the rows idx [t * k] by expert. A sequence's rows are cut into
 * PARTS chunks of tokens. First the rows of each expert in each chunk are counted.
 */
template <int T, int E, int K, int N>
OM_DEV void
om_route_count(const int32_t *idx, int32_t *counts)
{
	constexpr int PARTS = OM_ROUTE_PARTS(T / N, K), TOKENS = OM_CEIL(T / N, PARTS);
	__shared__ int count[E];
	const int begin = blockIdx.x / PARTS * (T / N), part = blockIdx.x % PARTS;
	const int lo = begin + min(part * TOKENS, T / N);
	const int hi = begin + min((part + 1) * TOKENS, T / N);
	for (int c = threadIdx.x; c < E; c += 256)
		count[c] = 0;
	__syncthreads();
#pragma unroll 4
	for (int i = lo * K + threadIdx.x; i < hi * K; i += 256)
		atomicAdd(&count[idx[i]], 1);
	__syncthreads();
	for (int c = threadIdx.x; c < E; c += 256)
		counts[blockIdx.x * E + c] = count[c];
}

/*
 * Then each block places its chunk. An expert's first row of a chunk is behind the experts before,
 * its sequences before (cnt), and its chunks before in the sequence; of a warp, which has a
 * contiguous part of the chunk, also behind the warps before. Where rows are elsewhere, first says
 * where each expert's begin and keep how many of them there are, the others' row is -1.
 */
template <int T, int E, int K, int N>
OM_DEV void
om_route_place(const int32_t *idx, const int32_t *cnt, const int32_t *counts, int32_t *row,
    int32_t *src, int32_t *off, const int32_t *keep = nullptr, const int32_t *first = nullptr)
{
	constexpr int PARTS = OM_ROUTE_PARTS(T / N, K), TOKENS = OM_CEIL(T / N, PARTS);
	constexpr int WARPS = 8, SHARE = OM_CEIL(TOKENS * K, WARPS * 32) * 32;
	constexpr int WIDTH = E <= 32 ? 32 : E <= 64 ? 64 : E <= 128 ? 128 : 256;
	__shared__ int next[WARPS][E], before[E], start[E];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int sequence = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
	const int hi = (sequence * (T / N) + min((part + 1) * TOKENS, T / N)) * K;
	const int lo = min((sequence * (T / N) + part * TOKENS) * K + warp * SHARE, hi);
	const int end = min(lo + SHARE, hi);

	for (int c = threadIdx.x; c < E; c += 256) {
		int all = 0, earlier = 0;
#pragma unroll 4
		for (int s = 0; s < N; s++) {
			const int x = cnt[s * E + c];
			all += x;
			earlier += s < sequence ? x : 0;
		}
		start[c] = all;
		before[c] = earlier;
#pragma unroll
		for (int w = 0; w < WARPS; w++)
			next[w][c] = 0;
	}
	__syncthreads();
	for (int i = lo + lane; i < end; i += 32)
		atomicAdd(&next[warp][idx[i]], 1);
	for (int c = threadIdx.x % WIDTH; c < E; c += WIDTH) {
		int sum = 0;
#pragma unroll 8
		for (int r = threadIdx.x / WIDTH; r < part; r += 256 / WIDTH)
			sum += counts[(blockIdx.x - part + r) * E + c];
		atomicAdd(&before[c], sum);
	}
	if (warp == 0) { /* start becomes the sum of those before; a lane has some neighbours */
		constexpr int V = OM_CEIL(E, 32);
		int sum = 0, run;
		for (int c = lane * V; c < min((lane + 1) * V, E); c++)
			sum += start[c];
		run = sum;
#pragma unroll
		for (int d = 1; d < 32; d *= 2) {
			const int x = __shfl_up_sync(0xffffffffu, run, d);
			run += lane >= d ? x : 0;
		}
		run -= sum;
		for (int c = lane * V; c < min((lane + 1) * V, E); c++) {
			const int x = start[c];
			start[c] = run;
			run += x;
		}
	}
	__syncthreads();
	for (int c = threadIdx.x; c < E; c += 256) {
		int run = start[c] + before[c];
#pragma unroll
		for (int w = 0; w < WARPS; w++) {
			const int x = next[w][c];
			next[w][c] = run;
			run += x;
		}
		if (off && blockIdx.x == 0)
			off[c] = start[c];
	}
	if (off && blockIdx.x == 0 && threadIdx.x == 0)
		off[E] = T * K;
	__syncthreads();

	for (int begin = lo; begin < end; begin += 32) {
		const int i = begin + lane, expert = i < end ? idx[i] : -1;
		const unsigned same = __match_any_sync(0xffffffffu, expert);
		const int rank = __popc(same & ((1u << lane) - 1));
		int at = 0;
		if (i < end)
			at = next[warp][expert] + rank;
		__syncwarp();
		if (i < end) {
			if (rank == 0)
				next[warp][expert] = at + __popc(same);
			const int place = at - start[expert];
			row[i] = !keep ? at : place < keep[expert] ? first[expert] + place : -1;
			src[at] = i;
		}
		__syncwarp();
	}
}

#define OM_ROUTE_BY(NAME, BY, t, e, k, j, c, g, q, n, factor)                                \
	OM_GLOBAL(OM_ROUTE_THREADS(e, g), (e) <= 128 ? 4 : 1)                                \
	NAME##_tokens(const float *z, const void *by, float *p, int32_t *idx, float *prob,   \
	    float *lse, void *ws)                                                            \
	{                                                                                    \
		OM_FEW_BEGIN(t)                                                              \
		om_route_tokens<t, e, k, j, c, g, q, n, BY>(                                 \
		    (float)(factor), z, by, p, idx, prob, lse, ws);                          \
	}                                                                                    \
	OM_GLOBAL(1024, 1) NAME##_totals(void *ws, int32_t *cnt, int64_t *load, double *aux) \
	{                                                                                    \
		OM_FEW_BEGIN(t)                                                              \
		om_route_totals<t, e, k, n>(ws, cnt, load, aux);                             \
	}

#define OM_ROUTE(NAME, ...) OM_ROUTE_BY(NAME, OM_BY_SCORE, __VA_ARGS__)
#define OM_ROUTE_BIASED(NAME, ...) OM_ROUTE_BY(NAME, OM_BY_BIAS, __VA_ARGS__)
#define OM_ROUTE_RANDOM(NAME, ...) OM_ROUTE_BY(NAME, OM_BY_DRAW, __VA_ARGS__)
#define OM_ROUTE_UNIFORM(NAME, ...) OM_ROUTE_BY(NAME, OM_BY_TURN, __VA_ARGS__)

#define OM_ROUTE_BWD(NAME, t, e, k, j, c, g, q, n, factor, lb, zl)                            \
	OM_GLOBAL(256, 1)                                                                     \
	NAME##_tokens(const float *dp, const float *z, const int32_t *idx, const float *prob, \
	    const float *lse, const int32_t *cnt, float *dz)                                  \
	{                                                                                     \
		om_route_bwd<t, e, k, j, c, n>((float)(factor),                               \
		    (float)((double)(lb) * (e) * (n) / ((double)(t) * (t) * (k))),            \
		    (float)(2.0 * (zl) / (t)), dp, z, idx, prob, lse, cnt, dz);               \
	}

#define OM_ROUTE_MAP(NAME, t, e, k, n)                                                        \
	OM_GLOBAL(256, 1) NAME##_count(const int32_t *idx, int32_t *ws)                       \
	{                                                                                     \
		om_route_count<t, e, k, n>(idx, ws);                                          \
	}                                                                                     \
	OM_GLOBAL(256, 1)                                                                     \
	NAME##_place(const int32_t *idx, const int32_t *cnt, const int32_t *ws, int32_t *row, \
	    int32_t *src, int32_t *off)                                                       \
	{                                                                                     \
		om_route_place<t, e, k, n>(idx, cnt, ws, row, src, off);                      \
	}

/*
 * Of few rows: each counts those before it, and each expert those of experts before it. A number
 * has both, the expert and then the row.
 */
template <int T, int E, int K>
OM_DEV void
om_route_few(const int32_t *idx, int32_t *row, int32_t *src, int32_t *off)
{
	constexpr int rows = T * K, fours = OM_CEIL(rows, 4);
	__shared__ int4 all[fours];
	int32_t *number = (int32_t *)all;
	om_before();
	om_after();
	for (int i = threadIdx.x; i < fours * 4; i += OM_ROUTE_FEW)
		number[i] = i < rows ? idx[i] * rows + i : 0x7fffffff;
	__syncthreads();
	for (int i = threadIdx.x; i < rows + E + 1; i += OM_ROUTE_FEW) {
		const int own = i < rows ? number[i] : (i - rows) * rows;
		int before = 0;
#pragma unroll 8
		for (int j = 0; j < fours; j++) {
			const int4 x = all[j];
			before += (x.x < own) + (x.y < own) + (x.z < own) + (x.w < own);
		}
		if (i < rows) {
			row[i] = before;
			src[before] = i;
		} else {
			off[i - rows] = before;
		}
	}
}

#define OM_ROUTE_MAP_FEW(NAME, t, e, k, n)                                     \
	OM_GLOBAL(OM_ROUTE_FEW, 1)                                             \
	NAME##_x(const int32_t *idx, int32_t *row, int32_t *src, int32_t *off) \
	{                                                                      \
		om_route_few<t, e, k>(idx, row, src, off);                     \
	}

#else /* ---- host ---- */

#define OM_ROUTE_SIZES(t, e, k, n)                                                        \
	_Static_assert((t) >= 1 && (e) >= 1 && (e) <= 512, "route: 1 to 512 experts");    \
	_Static_assert((k) >= 1 && (k) <= (e), "route: top-k chooses among the experts"); \
	_Static_assert((n) >= 1 && (t) % (n) == 0, "route: sequences divide the tokens"); \
	_Static_assert((int64_t)(t) * (k) <= 1 << 30, "route: rows are counted in int32");

#define OM_ROUTE_SHAPE(NAME, BY, t, e, k, j, c, g, q, n, factor)                                  \
	OM_ROUTE_SIZES(t, e, k, n)                                                                \
	_Static_assert((c) >= 0 && (c) < OM_ROUTE_SCORES, "route: no such score");                \
	_Static_assert((g) >= 1 && (e) % (g) == 0, "route: groups divide the experts");           \
	_Static_assert((q) >= 1 && (q) <= (g), "route: groups that take part are of them");       \
	_Static_assert((k) <= (e) / (g) * (q), "route: top-k fits in the groups chosen");         \
	_Static_assert((BY) != OM_BY_BIAS || (c) != OM_ROUTE_CHOSEN || (g) == (q),                \
	    "route: logits have no groups");                                                      \
	_Static_assert((BY) != OM_BY_TURN || (g) == (q), "route: turns are taken in all groups"); \
	static const struct om_route NAME##_shape = { t, e, k, j, c, g, q, n, factor };

/* NAME_by: all of them; ws: 2*n*((e+31)/32) + 2*n + 2 + n*((t/n+31)/32)*(2*e+1) floats */
#define OM_ROUTE_BY(NAME, BY, t, e, k, j, c, g, q, n, factor)                                      \
	OM_ROUTE_SHAPE(NAME, BY, t, e, k, j, c, g, q, n, factor)                                   \
	OM_KERNEL_FEW(NAME##_tokens, OM_ROUTE_THREADS(e, g), 0, t)                                 \
	OM_KERNEL_FEW(NAME##_totals, 1024, 0, t)                                                   \
	static void NAME##_by(const float *z, const void *by, float *p, int32_t *idx, float *prob, \
	    float *lse, int32_t *cnt, int64_t *load, double *aux, void *ws)                        \
	{                                                                                          \
		OM_LAUNCH(NAME##_tokens, (n)*OM_ROUTE_CHUNKS((t) / (n)), 1, 1, &z, &by, &p, &idx,  \
		    &prob, &lse, &ws);                                                             \
		OM_LAUNCH(NAME##_totals, OM_CEIL(e, OM_ROUTE_TILE), n, 1, &ws, &cnt, &load, &aux); \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_route_check(NAME##_by, BY, &NAME##_shape, seed);                         \
	}

#define OM_ROUTE_ALONE(NAME, BY, ...)                                                            \
	OM_ROUTE_BY(NAME, BY, __VA_ARGS__)                                                       \
	void NAME(const float *z, float *p, int32_t *idx, float *prob, float *lse, int32_t *cnt, \
	    int64_t *load, double *aux, void *ws)                                                \
	{                                                                                        \
		NAME##_by(z, NULL, p, idx, prob, lse, cnt, load, aux, ws);                       \
	}

#define OM_ROUTE_WITH(NAME, BY, TYPE, ...)                                                         \
	OM_ROUTE_BY(NAME, BY, __VA_ARGS__)                                                         \
	void NAME(const float *z, const TYPE *by, float *p, int32_t *idx, float *prob, float *lse, \
	    int32_t *cnt, int64_t *load, double *aux, void *ws)                                    \
	{                                                                                          \
		NAME##_by(z, by, p, idx, prob, lse, cnt, load, aux, ws);                           \
	}

#define OM_ROUTE(NAME, ...) OM_ROUTE_ALONE(NAME, OM_BY_SCORE, __VA_ARGS__)
#define OM_ROUTE_UNIFORM(NAME, ...) OM_ROUTE_ALONE(NAME, OM_BY_TURN, __VA_ARGS__)
#define OM_ROUTE_BIASED(NAME, ...) OM_ROUTE_WITH(NAME, OM_BY_BIAS, float, __VA_ARGS__)
#define OM_ROUTE_RANDOM(NAME, ...) OM_ROUTE_WITH(NAME, OM_BY_DRAW, int64_t, __VA_ARGS__)

#define OM_ROUTE_BWD(NAME, t, e, k, j, c, g, q, n, factor, lb, zl)                              \
	OM_ROUTE_SHAPE(NAME, OM_BY_SCORE, t, e, k, j, c, g, q, n, factor)                       \
	OM_KERNEL(NAME##_tokens, 256, 0)                                                        \
	void NAME(const float *dp, const float *z, const int32_t *idx, const float *prob,       \
	    const float *lse, const int32_t *cnt, float *dz)                                    \
	{                                                                                       \
		OM_LAUNCH(NAME##_tokens, OM_CEIL(t, 256 / OM_ROUTE_LANES), 1, 1, &dp, &z, &idx, \
		    &prob, &lse, &cnt, &dz);                                                    \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_route_bwd_check(NAME, &NAME##_shape, lb, zl, seed);                   \
	}

#define OM_ROUTE_MAP_FEW(NAME, t, e, k, n)                                                         \
	OM_ROUTE_SIZES(t, e, k, n)                                                                 \
	OM_KERNEL_AFTER(NAME##_x, OM_ROUTE_FEW, 0, 0)                                              \
	void NAME(                                                                                 \
	    const int32_t *idx, const int32_t *cnt, int32_t *row, int32_t *src, int32_t *off)      \
	{                                                                                          \
		(void)cnt;                                                                         \
		OM_LAUNCH(NAME##_x, 1, 1, 1, &idx, &row, &src, &off);                              \
	}                                                                                          \
	static void NAME##_run(const int32_t *idx, const int32_t *cnt, int32_t *row, int32_t *src, \
	    int32_t *off, void *ws)                                                                \
	{                                                                                          \
		(void)ws;                                                                          \
		NAME(idx, cnt, row, src, off);                                                     \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_route_map_check(NAME##_run, t, e, k, n, seed);                           \
	}

/* ws: n*128*e floats */
#define OM_ROUTE_MAP(NAME, t, e, k, n)                                                    \
	OM_ROUTE_SIZES(t, e, k, n)                                                        \
	OM_KERNEL(NAME##_count, 256, 0)                                                   \
	OM_KERNEL(NAME##_place, 256, 0)                                                   \
	void NAME(const int32_t *idx, const int32_t *cnt, int32_t *row, int32_t *src,     \
	    int32_t *off, void *ws)                                                       \
	{                                                                                 \
		const uint32_t blocks = (n)*OM_ROUTE_PARTS((t) / (n), k);                 \
		OM_LAUNCH(NAME##_count, blocks, 1, 1, &idx, &ws);                         \
		OM_LAUNCH(NAME##_place, blocks, 1, 1, &idx, &cnt, &ws, &row, &src, &off); \
	}                                                                                 \
	double NAME##_check(uint64_t seed)                                                \
	{                                                                                 \
		return om_route_map_check(NAME, t, e, k, n, seed);                        \
	}

#include "route_check.h"
#endif
#endif
