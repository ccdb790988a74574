/*
 * The kernels of kernels/cuda/expert.h on ranks that are threads, by emulate.h: routes of each turn
 * against expert_ref.h, and what crosses from rank to rank against a sum over it. A rank's launches
 * are in order, its blocks one or a few at a time, and it is late at random. What is between them is
 * made as harmful as a plan allows: rows are used for something else until just before they come,
 * and spoilt as soon as they were read. Then a rank that stays away, and one whose host gives up.
 * Usage: peers_check [SEED [TURNS]]
 */
#include "emulate.h"

#include "expert.h"

#include <cstdio>
#include <cstdlib>

#include "expert_ref.h"

static uint64_t seed = 1;
static int turns = 3, passed, failed;

static void
is(const char *what, const char *name, bool right)
{
	(right ? passed : failed)++;
	if (!right)
		printf("FAIL %s: %s, seed %llu\n", name, what, (unsigned long long)seed);
}

static uint64_t
mix(uint64_t a, uint64_t b)
{
	a = (a + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u + b;
	a = (a ^ a >> 29) * 0x94d049bb133111ebu;
	return a ^ a >> 32;
}

/* A small number, so that sums of them are exact in bf16. */
static om_bf16
number(uint64_t a, uint64_t b)
{
	return om_round((float)(int)(mix(a, b) % 7) - 3);
}

static bool
same(om_bf16 a, float b)
{
	return om_f32(a) == b;
}

struct sizes {
	int t, p, e, k, n, w, c, u, q, blocks;
};
/* A rank's memory: what others reach. */
struct memory {
	om_board board;
	om_bf16 *rows;
	float *weights;
};
struct layout {
	const char *name;
	sizes s;
	void (*count)(const int32_t *, int32_t *);
	void (*tell)(const om_peers *, const int32_t *);
	void (*rows)(const om_peers *, int32_t *, int32_t *, int64_t *);
	void (*place)(const int32_t *, const int32_t *, const int32_t *, const int32_t *, int32_t *,
	    int32_t *);
	void (*dispatch)(const om_peers *, const om_bf16 *, const int32_t *, const int32_t *,
	    const int32_t *, om_bf16 *);
	void (*combine)(
	    const om_peers *, const om_bf16 *, const int32_t *, const int32_t *, om_bf16 *);
	void (*weights)(const om_peers *, const float *, const int32_t *, const int32_t *,
	    const int32_t *, float *);
	void (*weights_bwd)(
	    const om_peers *, const float *, const int32_t *, const int32_t *, float *);
};

struct rank {
	const layout *l;
	om_peers peers;
	om_waiting waiting;
	uint32_t abort;
	char *memory;
	uint64_t random;
	bool right[6];
};
enum { MAP, DISPATCH, WEIGHTS, COMBINE, WEIGHTS_BWD, AGAIN };

static void
late(rank &r)
{
	r.random = mix(r.random, 1);
	for (unsigned i = 0; i < r.random % 200; i++)
		sched_yield();
}

template <class F, class... A>
static void
launch(rank &r, F kernel, unsigned blocks, unsigned threads, A... args)
{
	late(r);
	emulate::launch([=] { kernel(args...); }, blocks, threads, 1 + r.random % 3, r.random);
}

/* What a rank knows of its routes. */
struct routes {
	om_ep_ref ref;
	const int32_t *idx;
	std::vector<int32_t> row, src, map, off;
};

static routes
find_rows(rank &r, uint64_t turn_seed)
{
	const layout &l = *r.l;
	const sizes &s = l.s;
	const int me = (int)r.peers.me, n = s.t * s.k, here = s.e / s.w;
	const unsigned parts = (unsigned)(s.p * OM_ROUTE_PARTS(s.t / s.p, s.k));
	std::vector<int32_t> cnt(s.p * s.e), ws(s.p * OM_ROUTE_MOST * s.e);
	routes o;
	o.ref = om_ep_ref_new(s.t, s.e, s.k, s.w, s.c, s.u, s.q, me, turn_seed);
	o.idx = o.ref.idx + me * n;
	o.row.resize(n), o.src.resize(n), o.map.resize(OM_EP_PARTS * s.e), o.off.resize(here + 1);
	int64_t cut[2] = { 3, 4 };
	for (int i = 0; i < n; i++)
		cnt[i / (n / s.p) * s.e + o.idx[i]]++;
	launch(r, l.tell, 1, OM_EP_MAP_THREADS, &r.peers, cnt.data());
	launch(r, l.count, parts, 256, o.idx, ws.data());
	launch(r, l.rows, 1, OM_EP_MAP_THREADS, &r.peers, o.map.data(), o.off.data(), cut);
	launch(r, l.place, parts, 256, o.idx, cnt.data(), ws.data(), o.map.data(), o.row.data(),
	    o.src.data());
	r.right[MAP] &= !memcmp(o.row.data(), o.ref.row + me * n, n * 4) &&
			!memcmp(o.src.data(), o.ref.src, n * 4) &&
			!memcmp(o.map.data(), o.ref.map, o.map.size() * 4) &&
			!memcmp(o.off.data(), o.ref.off, o.off.size() * 4) &&
			cut[0] == 3 + o.ref.cut && cut[1] == 4 + n;
	return o;
}

/* One turn: routes, rows there, something done with them, rows back. */
static void
turn(rank &r, uint64_t turn_seed)
{
	const layout &l = *r.l;
	const sizes &s = l.s;
	const int me = (int)r.peers.me, n = s.t * s.k, here = s.e / s.w;
	om_bf16 *rows = (om_bf16 *)(r.memory + sizeof(om_board));
	float *numbers = (float *)(rows + (size_t)s.c * s.n);
	std::vector<om_bf16> x((size_t)s.t * s.n), y(x.size());
	std::vector<float> p(n), dp(n);

	for (int again = 0; again < 2; again++) { /* with nothing between */
		routes other = find_rows(r, turn_seed + 500 + again);
		om_ep_ref_free(&other.ref);
	}
	routes o = find_rows(r, turn_seed);
	const om_ep_ref &ref = o.ref;
	for (size_t i = 0; i < x.size(); i++)
		x[i] = number(turn_seed * 64 + me, i);
	for (int i = 0; i < n; i++)
		p[i] = (float)(me * n + i + 1);

	/* until now the place of the rows is something else's */
	for (int i = 0; i < s.c * s.n; i++)
		rows[i] = (om_bf16)mix(turn_seed, i);
	const std::vector<om_bf16> before(rows, rows + (size_t)s.c * s.n);
	late(r);
	r.right[DISPATCH] &= !memcmp(before.data(), rows, before.size() * 2);
	launch(r, l.dispatch, s.blocks, OM_EP_THREADS, &r.peers, x.data(), o.idx,
	    o.row.data(), o.map.data(), rows);
	std::vector<bool> used(s.c);
	for (int i = 0; i < s.w * n; i++) {
		if (ref.idx[i] / here != me || ref.row[i] < 0)
			continue;
		used[ref.row[i]] = true;
		for (int j = 0; j < s.n; j++)
			r.right[DISPATCH] &=
			    rows[ref.row[i] * s.n + j] == number(turn_seed * 64 + i / n,
							      i % n / s.k * s.n + j);
	}
	for (int i = 0; i < s.c * s.n; i++)
		r.right[DISPATCH] &= used[i / s.n] ||
				     rows[i] == (i / s.n < o.off[here] ? 0 : before[i]);
	launch(r, l.weights, s.blocks, OM_EP_THREADS, &r.peers, p.data(), o.idx, o.row.data(),
	    o.map.data(), numbers);
	for (int i = 0; i < s.w * n; i++)
		if (ref.idx[i] / here == me && ref.row[i] >= 0)
			r.right[WEIGHTS] &= numbers[ref.row[i]] == (float)(i + 1);
	for (int i = 0; i < o.off[here]; i++)
		r.right[WEIGHTS] &= used[i] || numbers[i] == 0;

	/* what the experts give, whose expert and row are seen in it */
	for (int i = 0; i < s.c * s.n; i++)
		rows[i] = used[i / s.n] ? number(turn_seed * 64 + 32 + me, i) : 0x7fff;
	for (int i = 0; i < s.c; i++)
		numbers[i] = used[i] ? (float)(i * s.w + me + 1) : NAN;
	launch(r, l.combine, s.blocks, OM_EP_THREADS, &r.peers, rows, o.idx, o.row.data(), y.data());
	for (int i = 0; i < s.c * s.n; i++)
		rows[i] = 0x7fff;
	launch(r, l.weights_bwd, s.blocks, OM_EP_THREADS, &r.peers, numbers, o.idx, o.row.data(),
	    dp.data());
	for (int i = 0; i < s.c; i++)
		numbers[i] = NAN;
	for (int i = 0; i < s.t * s.n; i++) {
		float want = 0;
		for (int a = 0; a < s.k; a++) {
			const int at = i / s.n * s.k + a, there = ref.row[me * n + at];
			if (there >= 0)
				want += om_f32(number(turn_seed * 64 + 32 + o.idx[at] / here,
				    (uint64_t)there * s.n + i % s.n));
		}
		r.right[COMBINE] &= same(y[i], want);
	}
	for (int i = 0; i < n; i++) {
		const int there = ref.row[me * n + i];
		r.right[WEIGHTS_BWD] &=
		    dp[i] == (there < 0 ? 0 : (float)(there * s.w + o.idx[i] / here + 1));
	}
	om_ep_ref_free(&o.ref);
}

/* Ranks of a layout; the last one stays away from the last of its turns. */
static void
run(const layout &l, int from, int n, bool stays, bool abort)
{
	const sizes &s = l.s;
	const size_t each = sizeof(om_board) + (size_t)s.c * s.n * 2 + (size_t)s.c * 4 + 64;
	std::vector<std::unique_ptr<char[]>> memory;
	std::vector<rank> all(s.w);
	for (int i = 0; i < s.w; i++)
		memory.emplace_back(new char[each]());
	for (int i = 0; i < s.w; i++) {
		rank &r = all[i];
		r.l = &l;
		r.memory = memory[i].get();
		r.random = mix(seed, i);
		std::fill(r.right, r.right + 6, true);
		r.peers.me = i, r.peers.n = s.w;
		r.peers.limit = stays && !abort ? 300000000 : 60000000000;
		r.peers.board = (om_board *)r.memory;
		r.peers.waiting = &r.waiting;
		r.peers.abort = &r.abort;
		for (int k = 0; k < s.w; k++)
			r.peers.to[k] = memory[k].get() - memory[i].get();
	}
	std::vector<std::thread> threads;
	for (int i = 0; i < s.w; i++)
		threads.emplace_back([&, i] {
			for (int t = 0; t < n && !(stays && t == n - 1 && i == s.w - 1); t++)
				turn(all[i], seed * 1000 + from + t);
			if (stays && abort && i == s.w - 1)
				for (rank &r : all)
					__atomic_store_n(&r.abort, 1, __ATOMIC_SEQ_CST);
		});
	for (std::thread &t : threads)
		t.join();
	if (stays) {
		bool said = true;
		for (int i = 0; i < s.w - 1; i++)
			said &= all[i].waiting.lost == !abort &&
				(abort || all[i].waiting.rank == (uint32_t)s.w - 1);
		is(abort ? "the host gives up" : "a rank stays away", l.name, said);
		return;
	}
	const char *what[] = { "map", "dispatch", "weights", "combine", "weights_bwd" };
	for (int k = 0; k < AGAIN; k++) {
		bool right = true;
		for (rank &r : all)
			right &= r.right[k] && !r.waiting.lost;
		is(what[k], l.name, right);
	}
}

#define LAYOUT(NAME, t, p, e, k, n, w, c, u, q, b)                                        \
	OM_EP_MAP(NAME##_map, t, e, k, p, w, c, u, q)                                   \
	OM_EP_DISPATCH(NAME##_dispatch, t, 5 * (e), k, n, w, c, u, b)                   \
	OM_EP_COMBINE(NAME##_combine, t, 5 * (e), k, n, w, c, b)                        \
	OM_EP_WEIGHTS(NAME##_weights, t, 5 * (e), k, w, c, u, b)                        \
	OM_EP_WEIGHTS_BWD(NAME##_weights_bwd, t, 5 * (e), k, w, c, b)                   \
	static const layout NAME = { #NAME, { t, p, e, k, n, w, c, u, q, b }, NAME##_map_count, \
		NAME##_map_tell, NAME##_map_rows, NAME##_map_place, NAME##_dispatch_x,  \
		NAME##_combine_x, NAME##_weights_x, NAME##_weights_bwd_x };

LAYOUT(two, 12, 2, 4, 2, 8, 2, 48, 1, 24, 3)
LAYOUT(cut, 30, 1, 6, 3, 24, 3, 40, 1, 25, 4)
LAYOUT(multiple, 20, 1, 8, 4, 16, 4, 96, 8, 80, 2)
LAYOUT(wide, 9, 1, 16, 9, 264, 2, 162, 1, 50, 5)

int
main(int argc, char **argv)
{
	if (argc > 1)
		seed = strtoull(argv[1], NULL, 10);
	if (argc > 2)
		turns = atoi(argv[2]);
	for (const layout *l : { &two, &cut, &multiple, &wide })
		run(*l, 0, turns, false, false);
	run(two, 0, 2, true, false);
	run(cut, 0, 1, true, true);
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
