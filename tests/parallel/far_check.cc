/*
 * The kernels of kernels/cuda/expert_far.h, emulated by emulate.h, of all ranks one after the other:
 * routes, and what crosses from rank to rank in blocks, against expert_ref.h and sums over it. What
 * is not a route's in a block, a row or a sum begins as NaN. Usage: far_check [SEED [TURNS]]
 */
#include "emulate.h"

#include "expert_far.h"

#include <cstdio>
#include <cstdlib>

#include "expert_ref.h"

static uint64_t seed = 1;
static int passed, failed;

static void
is(const char *what, const char *name, bool right)
{
	(right ? passed : failed)++;
	if (!right)
		printf("FAIL %s: %s, seed %llu\n", name, what, (unsigned long long)seed);
}

static om_bf16
number(uint64_t a, uint64_t b)
{
	uint64_t z = (a + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u + b;
	z = (z ^ z >> 29) * 0x94d049bb133111ebu;
	return om_round((float)(int)((z ^ z >> 32) % 7) - 3); /* sums of a few are exact */
}

template <class F, class... A>
static void
launch(F kernel, unsigned blocks, unsigned threads, A... args)
{
	emulate::launch([=] { kernel(args...); }, blocks, threads, 2, seed + blocks);
}

struct layout {
	const char *name;
	int t, p, e, k, n, w, c, u, q;
	void (*tell)(int, const int32_t *, int32_t *);
	void (*count)(const int32_t *, int32_t *);
	void (*rows)(int, int32_t *, int32_t *, int32_t *, int64_t *);
	void (*place)(const int32_t *, const int32_t *, const int32_t *, const int32_t *, int32_t *,
	    int32_t *);
	void (*there_out)(int, const uint4 *, const int32_t *, const int32_t *, const int32_t *,
	    uint4 *, uint4 *);
	void (*there_in)(int, const int32_t *, uint4 *, uint4 *);
	void (*back_out)(int, const int32_t *, uint4 *, uint4 *);
	void (*back_in)(int, const om_bf16 *, const int32_t *, const int32_t *, const int32_t *,
	    const om_bf16 *, om_bf16 *);
	void (*weights_out)(int, const float *, const int32_t *, const int32_t *, const int32_t *,
	    float *, float *);
	void (*weights_in)(int, const int32_t *, float *, float *);
	void (*weights_back_out)(int, const int32_t *, float *, float *);
	void (*weights_back_in)(int, const float *, const int32_t *, const int32_t *,
	    const int32_t *, const float *, float *);
};

/* Blocks of all ranks, [w, w, q, n]; those of other ranks come. */
template <class X>
static void
exchange(const layout &l, size_t each, const std::vector<X> &out, std::vector<X> &in)
{
	for (int a = 0; a < l.w; a++)
		for (int b = 0; b < l.w; b++)
			for (size_t i = 0; a != b && i < each; i++)
				in[(b * l.w + a) * each + i] = out[(a * l.w + b) * each + i];
}

static void
turn(const layout &l, uint64_t turn_seed)
{
	const int routes = l.t * l.k, here = l.e / l.w, maps = OM_EP_PARTS * l.e;
	const unsigned parts = (unsigned)(l.p * OM_ROUTE_PARTS(l.t / l.p, l.k)), blocks = 3;
	const size_t block = (size_t)l.q * l.n, all = (size_t)l.w * l.w;
	std::vector<int32_t> cnt(l.w * l.p * l.e), count(l.w * l.e), row(l.w * routes), map(l.w * maps);
	std::vector<om_ep_ref> ref;
	bool right[5] = { true, true, true, true, true };

	for (int me = 0; me < l.w; me++) {
		ref.push_back(om_ep_ref_new(l.t, l.e, l.k, l.w, l.c, l.u, l.q, me, turn_seed));
		for (int i = 0; i < routes; i++)
			cnt[(me * l.p + i / (routes / l.p)) * l.e + ref[me].idx[me * routes + i]]++;
		launch(l.tell, 1, OM_EP_MAP_THREADS, me, cnt.data() + me * l.p * l.e, count.data());
	}
	for (int me = 0; me < l.w; me++) {
		const int32_t *idx = ref[me].idx + me * routes, *own = cnt.data() + me * l.p * l.e;
		std::vector<int32_t> counts(count), src(routes), off(here + 1),
		    ws(l.p * OM_ROUTE_MOST * l.e);
		int64_t cut[2] = { 3, 4 };
		launch(l.count, parts, 256, idx, ws.data());
		launch(l.rows, 1, OM_EP_MAP_THREADS, me, counts.data(), map.data() + me * maps,
		    off.data(), cut);
		launch(l.place, parts, 256, idx, own, ws.data(), map.data() + me * maps,
		    row.data() + me * routes, src.data());
		right[0] &= !memcmp(&row[me * routes], ref[me].row + me * routes, routes * 4) &&
			    !memcmp(src.data(), ref[me].src, routes * 4) &&
			    !memcmp(&map[me * maps], ref[me].map, maps * 4) &&
			    !memcmp(off.data(), ref[me].off, off.size() * 4) &&
			    cut[0] == 3 + ref[me].cut && cut[1] == 4 + routes;
	}

	/* tokens' rows and routes' weights go there */
	const size_t rows_each = (size_t)l.c * l.n;
	std::vector<om_bf16> x((size_t)l.t * l.n), out(all * block, 0x7fff), in(out),
	    rows(l.w * rows_each, 0x7fff), y(l.w * x.size(), 0x7fff);
	std::vector<float> p(routes), wout(all * l.q, NAN), win(wout), numbers(l.w * l.c, NAN),
	    dp(l.w * routes, NAN);
	for (int me = 0; me < l.w; me++) {
		const int32_t *idx = ref[me].idx + me * routes;
		for (size_t i = 0; i < x.size(); i++)
			x[i] = number(turn_seed * 64 + me, i);
		for (int i = 0; i < routes; i++)
			p[i] = (float)(me * routes + i + 1);
		launch(l.there_out, blocks, OM_EP_THREADS, me, (const uint4 *)x.data(), idx,
		    &row[me * routes], &map[me * maps], (uint4 *)&rows[me * rows_each],
		    (uint4 *)&out[me * l.w * block]);
		launch(l.weights_out, blocks, OM_EP_THREADS, me, p.data(), idx, &row[me * routes],
		    &map[me * maps], &numbers[me * l.c], &wout[me * l.w * l.q]);
	}
	exchange(l, block, out, in);
	exchange(l, l.q, wout, win);
	std::vector<bool> used(l.w * l.c);
	for (int me = 0; me < l.w; me++) {
		launch(l.there_in, blocks, OM_EP_THREADS, me, &map[me * maps],
		    (uint4 *)&rows[me * rows_each], (uint4 *)&in[me * l.w * block]);
		launch(l.weights_in, blocks, OM_EP_THREADS, me, &map[me * maps], &numbers[me * l.c],
		    &win[me * l.w * l.q]);
	}
	for (int i = 0; i < l.w * routes; i++) {
		const int there = ref[0].row[i], owner = ref[0].idx[i] / here;
		if (there < 0)
			continue;
		used[owner * l.c + there] = true;
		right[2] &= numbers[owner * l.c + there] == (float)(i + 1);
		for (int j = 0; j < l.n; j++)
			right[1] &= rows[owner * rows_each + (size_t)there * l.n + j] ==
				    number(turn_seed * 64 + i / routes, i % routes / l.k * l.n + j);
	}
	for (int i = 0; i < l.w * l.c; i++) {
		const bool valid = i % l.c < ref[i / l.c].off[here];
		for (int j = 0; j < l.n && !used[i]; j++)
			right[1] &= rows[(size_t)i * l.n + j] == (valid ? 0 : 0x7fff);
		right[2] &= used[i] || (valid ? numbers[i] == 0 : std::isnan(numbers[i]));
	}

	/* and what the experts make of them comes back */
	for (size_t i = 0; i < rows.size(); i++)
		rows[i] = used[i / l.n] ? number(turn_seed * 64 + 32, i) : 0x7fff;
	for (int i = 0; i < l.w * l.c; i++)
		numbers[i] = used[i] ? (float)(i + 1) : NAN;
	std::fill(out.begin(), out.end(), 0x7fff), std::fill(in.begin(), in.end(), 0x7fff);
	std::fill(wout.begin(), wout.end(), NAN), std::fill(win.begin(), win.end(), NAN);
	for (int me = 0; me < l.w; me++) {
		launch(l.back_out, blocks, OM_EP_THREADS, me, &map[me * maps],
		    (uint4 *)&rows[me * rows_each], (uint4 *)&out[me * l.w * block]);
		launch(l.weights_back_out, blocks, OM_EP_THREADS, me, &map[me * maps],
		    &numbers[me * l.c], &wout[me * l.w * l.q]);
	}
	exchange(l, block, out, in);
	exchange(l, l.q, wout, win);
	for (int me = 0; me < l.w; me++) {
		const int32_t *idx = ref[me].idx + me * routes;
		launch(l.back_in, blocks, OM_EP_THREADS, me, &rows[me * rows_each], idx,
		    &row[me * routes], &map[me * maps], &in[me * l.w * block], &y[me * x.size()]);
		launch(l.weights_back_in, blocks, OM_EP_THREADS, me, &numbers[me * l.c], idx,
		    &row[me * routes], &map[me * maps], &win[me * l.w * l.q], &dp[me * routes]);
	}
	for (size_t i = 0; i < y.size(); i++) {
		float want = 0;
		for (int a = 0; a < l.k; a++) {
			const size_t route = i / l.n * l.k + a;
			const int there = ref[0].row[route];
			if (there >= 0)
				want += om_f32(number(turn_seed * 64 + 32,
				    ref[0].idx[route] / here * rows_each + (size_t)there * l.n +
					i % l.n));
		}
		right[3] &= om_f32(y[i]) == want;
	}
	for (int i = 0; i < l.w * routes; i++) {
		const int there = ref[0].row[i];
		right[4] &= dp[i] ==
			    (there < 0 ? 0 : (float)(ref[0].idx[i] / here * l.c + there + 1));
	}
	const char *what[] = { "map", "dispatch", "weights", "combine", "weights_bwd" };
	for (int k = 0; k < 5; k++)
		is(what[k], l.name, right[k]);
	for (om_ep_ref &r : ref)
		om_ep_ref_free(&r);
}

#define LAYOUT(NAME, t, p, e, k, n, w, c, u, q)                                               \
	OM_EP_FAR_MAP(NAME##_map, t, e, k, p, w, c, u, q)                                     \
	OM_EP_FAR_DISPATCH(NAME##_there, t, 5 * (e), k, n, w, c, u, q)                        \
	OM_EP_FAR_COMBINE(NAME##_back, t, 5 * (e), k, n, w, c, q)                             \
	OM_EP_FAR_WEIGHTS(NAME##_weights, t, 5 * (e), k, w, c, u, q)                          \
	OM_EP_FAR_WEIGHTS_BWD(NAME##_weights_back, t, 5 * (e), k, w, c, q)                    \
	static const layout NAME = { #NAME, t, p, e, k, n, w, c, u, q, NAME##_map_tell,       \
		NAME##_map_count, NAME##_map_rows, NAME##_map_place, NAME##_there_out,        \
		NAME##_there_in, NAME##_back_out, NAME##_back_in, NAME##_weights_out,         \
		NAME##_weights_in, NAME##_weights_back_out, NAME##_weights_back_in };

LAYOUT(worst, 12, 2, 4, 2, 8, 2, 48, 1, 24)
LAYOUT(cut, 30, 1, 6, 3, 24, 3, 40, 1, 25)
LAYOUT(multiple, 20, 1, 8, 4, 16, 4, 96, 8, 30)
LAYOUT(one_row, 9, 1, 16, 9, 264, 8, 162, 1, 1)
LAYOUT(many, 8, 1, 64, 3, 8, 32, 100, 1, 5)

int
main(int argc, char **argv)
{
	const int turns = argc > 2 ? atoi(argv[2]) : 4;
	if (argc > 1)
		seed = strtoull(argv[1], NULL, 10);
	for (const layout *l : { &worst, &cut, &multiple, &one_row, &many })
		for (int i = 0; i < turns; i++) /* each pattern of routes */
			turn(*l, seed * 1000 + i);
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
