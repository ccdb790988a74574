/*
 * The checks of expert.h's kernels. One device is all ranks, one after the other: each has a part
 * of one array, where what crosses from rank to rank lies behind its board, and boards say that the
 * others have come already.
 */
#ifndef OM_EXPERT_CHECK_H
#define OM_EXPERT_CHECK_H

#include "expert_ref.h"

struct om_ep_shape {
	int64_t t, e, k, n, w, c, u, q;
};
typedef void om_ep_begin_fn(const int32_t *);
typedef void om_ep_end_fn(const int32_t *, const int32_t *, int32_t *, int32_t *, int32_t *,
    int32_t *, int64_t *, void *);
typedef void om_ep_rows_fn(
    const om_bf16 *, const int32_t *, const int32_t *, const int32_t *, const int32_t *, om_bf16 *);
typedef void
om_ep_combine_fn(const om_bf16 *, const int32_t *, const int32_t *, const int32_t *, om_bf16 *);
typedef void om_ep_numbers_fn(
    const float *, const int32_t *, const int32_t *, const int32_t *, const int32_t *, float *);
/* A part of expert_far.h's kernels on a rank; and of its ep_map. */
typedef void om_ep_far_fn(int part, int me, const void *from, const int32_t *idx,
    const int32_t *row, const int32_t *map, void *to, void *out, void *in);
typedef void om_ep_far_begin_fn(int me, const int32_t *cnt, int32_t *count);
typedef void om_ep_far_end_fn(int me, const int32_t *, const int32_t *, int32_t *, int32_t *,
    int32_t *, int32_t *, int64_t *, int32_t *count, int32_t *ws);
enum { OM_EP_SAMPLES = 128, OM_EP_BOARD = (sizeof(struct om_board) + 255) / 256 * 256 };

/* The ranks' parts of memory, stride bytes apart. */
struct om_ep_world {
	char *memory;
	int64_t stride;
	struct om_peers *peers; /* of each rank */
};

static inline struct om_ep_world
om_ep_world(char *memory, int64_t stride, int64_t w)
{
	struct om_ep_world m = { memory, stride, NULL };
	struct om_peers all[OM_PEERS_MOST] = { 0 };
	const struct om_waiting waiting = { 0 };
	void *nobody = om_check_copy(&waiting, sizeof waiting);
	struct om_board *board = calloc(1, sizeof *board);
	for (int r = 0; r < OM_PEERS_MOST; r++)
		board->came[r] = UINT64_MAX;
	for (int64_t me = 0; me < w; me++) {
		all[me] = (struct om_peers){ (uint32_t)me, (uint32_t)w, OM_EXPERT, 1000000000,
			(struct om_board *)(memory + me * stride), nobody, nobody, { 0 } };
		for (int64_t r = 0; r < w; r++)
			all[me].to[r] = (r - me) * stride;
		om_check_write(memory + me * stride, board, sizeof *board);
	}
	free(board);
	m.peers = om_check_copy(all, sizeof all);
	return m;
}

static inline struct om_ep_ref
om_ep_check_ref(const struct om_ep_shape *s, int64_t me, uint64_t seed)
{
	return om_ep_ref_new(s->t, s->e, s->k, s->w, s->c, s->u, s->q, me, seed);
}

/* Of either file's ep_map, begun on all ranks before it is ended on any; the other two are NULL. */
static inline double
om_ep_any_map_check(om_ep_begin_fn *begin, om_ep_end_fn *end, om_ep_far_begin_fn *far_begin,
    om_ep_far_end_fn *far_end, int64_t n, struct om_ep_shape s, uint64_t seed)
{
	const int64_t routes = s.t * s.k, here = s.e / s.w;
	const size_t bytes = (size_t)routes * 4, maps = (size_t)s.e * OM_EP_PARTS * 4;
	struct om_ep_world m =
	    om_ep_world(om_check_nan((size_t)s.w * OM_EP_BOARD), OM_EP_BOARD, s.w);
	int32_t *cnt = calloc((size_t)(s.w * n * s.e), 4), *d_cnt, *d_idx;
	int32_t *row = malloc(bytes), *src = malloc(bytes), *map = malloc(maps);
	int32_t off[OM_PEERS_COUNTS + 1];
	int64_t cut[2];
	bool right = true;
	struct om_ep_ref ref = om_ep_check_ref(&s, 0, seed);
	for (int64_t i = 0; i < s.w * routes; i++)
		cnt[(i / routes * n + i % routes / (routes / n)) * s.e + ref.idx[i]]++;
	d_cnt = om_check_copy(cnt, (size_t)(s.w * n * s.e) * 4);
	d_idx = om_check_copy(ref.idx, (size_t)s.w * bytes);
	om_ep_ref_free(&ref);
	int32_t *count = om_check_nan((size_t)(s.w * s.e) * 4),
		*all = malloc((size_t)(s.w * s.e) * 4);
	for (int64_t me = 0; me < s.w; me++) {
		om_check_rank = m.peers + me;
		if (begin)
			begin(d_cnt + me * n * s.e);
		else
			far_begin((int)me, d_cnt + me * n * s.e, count);
	}
	om_check_read(all, count, (size_t)(s.w * s.e) * 4);
	for (int64_t me = 0; me < s.w; me++) {
		const int64_t before[2] = { 5, 7 };
		int32_t *d_row = om_check_nan(bytes), *d_src = om_check_nan(bytes);
		int32_t *d_map = om_check_nan(maps), *d_off = om_check_nan(sizeof off);
		int64_t *d_cut = om_check_copy(before, sizeof before);
		void *ws = om_check_nan((size_t)(n * OM_ROUTE_MOST * s.e) * 4);
		om_check_rank = m.peers + me;
		if (end)
			end(d_idx + me * routes, d_cnt + me * n * s.e, d_row, d_src, d_map, d_off,
			    d_cut, ws);
		else
			far_end((int)me, d_idx + me * routes, d_cnt + me * n * s.e, d_row, d_src,
			    d_map, d_off, d_cut, om_check_copy(all, (size_t)(s.w * s.e) * 4), ws);
		om_check_read(row, d_row, bytes);
		om_check_read(src, d_src, bytes);
		om_check_read(map, d_map, maps);
		om_check_read(off, d_off, sizeof off);
		om_check_read(cut, d_cut, sizeof cut);
		ref = om_ep_check_ref(&s, me, seed);
		right &= !memcmp(row, ref.row + me * routes, bytes) &&
			 !memcmp(src, ref.src, bytes) && !memcmp(map, ref.map, maps) &&
			 !memcmp(off, ref.off, (size_t)(here + 1) * 4) && cut[0] == 5 + ref.cut &&
			 cut[1] == 7 + routes;
		om_ep_ref_free(&ref);
	}
	om_check_rank = NULL;
	om_check_end();
	free(cnt);
	free(all);
	free(row);
	free(src);
	free(map);
	return right ? 0 : OM_WRONG;
}

static inline double
om_ep_map_check(
    om_ep_begin_fn *begin, om_ep_end_fn *end, int64_t n, struct om_ep_shape s, uint64_t seed)
{
	return om_ep_any_map_check(begin, end, NULL, NULL, n, s, seed);
}

static inline double
om_ep_far_map_check(om_ep_far_begin_fn *begin, om_ep_far_end_fn *end, int64_t n,
    struct om_ep_shape s, uint64_t seed)
{
	return om_ep_any_map_check(NULL, NULL, begin, end, n, s, seed);
}

/* The sth of at most OM_EP_SAMPLES of n that are looked at; the ends are among them. */
static inline int64_t
om_ep_sample(int64_t s, int64_t n, uint64_t seed)
{
	const int64_t i = (int64_t)((om_unit(seed, 99, s) / 3.4641016151377544 + 0.5) * (double)n);
	if (n <= OM_EP_SAMPLES)
		return s;
	return s < 2 ? s * (n - 1) : i < 0 ? 0 : i < n ? i : n - 1;
}

static inline float
om_ep_number(const void *p, int64_t i, bool rows)
{
	return rows ? om_bf16_f32(((const om_bf16 *)p)[i]) : ((const float *)p)[i];
}

/* What the kernels of a rank are given, but for their rows. */
struct om_ep_given {
	struct om_ep_ref ref;
	int32_t *idx, *row, *src, *map;
};

static inline struct om_ep_given
om_ep_given(const struct om_ep_shape *s, int64_t me, uint64_t seed)
{
	struct om_ep_given g = { .ref = om_ep_check_ref(s, me, seed) };
	const size_t bytes = (size_t)g.ref.routes * 4;
	g.idx = om_check_copy(g.ref.idx + me * g.ref.routes, bytes);
	g.row = om_check_copy(g.ref.row + me * g.ref.routes, bytes);
	g.src = om_check_copy(g.ref.src, bytes);
	g.map = om_check_copy(g.ref.map, (size_t)s->e * OM_EP_PARTS * 4);
	return g;
}

/* The blocks of all ranks, which are exchanged between the parts of a far kernel. */
struct om_ep_blocks {
	char *out, *in; /* [w, w, q, n] */
	int64_t bytes;  /* of one */
};

static inline struct om_ep_blocks
om_ep_blocks(const struct om_ep_shape *s, int64_t size)
{
	const int64_t bytes = s->q * s->n * size;
	return (struct om_ep_blocks){ om_check_nan((size_t)(s->w * s->w * bytes)),
		om_check_nan((size_t)(s->w * s->w * bytes)), bytes };
}

static inline void
om_ep_blocks_go(const struct om_ep_shape *s, const struct om_ep_blocks *b)
{
	char *block = malloc((size_t)b->bytes);
	for (int64_t i = 0; i < s->w * s->w; i++) {
		if (i / s->w == i % s->w)
			continue;
		om_check_read(block, b->out + i * b->bytes, (size_t)b->bytes);
		om_check_write(
		    b->in + (i % s->w * s->w + i / s->w) * b->bytes, block, (size_t)b->bytes);
	}
	free(block);
}

/* Dispatch, or with one number a route weights: every kept route's is where it belongs. */
static inline double
om_ep_send_check(om_ep_rows_fn *rows, om_ep_numbers_fn *weights, om_ep_far_fn *far, bool wide,
    struct om_ep_shape s, uint64_t seed)
{
	const int64_t routes = s.t * s.k, size = wide ? 2 : 4, each = wide ? s.t : routes;
	const int64_t stride = OM_EP_BOARD + (s.c * s.n * size + 255) / 256 * 256;
	char *memory = om_check_nan((size_t)(s.w * stride));
	struct om_ep_world m = om_ep_world(memory, stride, s.w);
	void *x = wide ? (void *)om_check_bf16(s.w * each * s.n, seed, 1, 1)
		       : (void *)om_check_f32(s.w * each * s.n, seed, 1, 1);
	char *got = malloc((size_t)(s.n * size));
	bool *used = calloc((size_t)(s.w * s.c), 1);
	bool right = true;
	struct om_ep_ref ref = { 0 };
	struct om_ep_blocks b = { 0 };
	if (far)
		b = om_ep_blocks(&s, size);
	for (int64_t turn = 0; turn < (far ? 2 : 1) * s.w; turn++) {
		const int64_t me = turn % s.w, at = me * each * s.n;
		struct om_ep_given g = om_ep_given(&s, me, seed);
		if (turn == s.w)
			om_ep_blocks_go(&s, &b);
		void *to = memory + me * stride + OM_EP_BOARD;
		om_check_rank = m.peers + me;
		if (far)
			far((int)(turn / s.w), (int)me, (char *)x + at * size, g.idx, g.row, g.map,
			    to, b.out + me * s.w * b.bytes, b.in + me * s.w * b.bytes);
		else if (rows)
			rows((om_bf16 *)x + at, g.idx, g.row, g.src, g.map, to);
		else
			weights((float *)x + at, g.idx, g.row, g.src, g.map, to);
		om_ep_ref_free(&ref);
		ref = g.ref;
	}
	om_check_rank = NULL;
	for (int64_t i = 0; i < s.w * routes; i++)
		if (ref.row[i] >= 0)
			used[ref.idx[i] / (s.e / s.w) * s.c + ref.row[i]] = true;
	for (int64_t q = 0; q < s.w * routes && q < OM_EP_SAMPLES; q++) {
		const int64_t i = om_ep_sample(q, s.w * routes, seed);
		if (ref.row[i] < 0)
			continue;
		const char *from = memory + ref.idx[i] / (s.e / s.w) * stride + OM_EP_BOARD;
		om_check_read(got, from + ref.row[i] * s.n * size, (size_t)(s.n * size));
		for (int64_t j = 0; j < s.n; j++) {
			const int64_t of = (wide ? i / s.k : i) * s.n + j;
			right &= om_ep_number(got, j, wide) ==
				 (wide ? om_unit_bf16(seed, 1, of) : (float)om_unit(seed, 1, of));
		}
	}
	/* rows that are no route's: 0 before an expert's end, untouched behind the last one's */
	for (int64_t me = 0; me < s.w; me++) {
		struct om_ep_ref own = om_ep_check_ref(&s, me, seed);
		const int64_t end = own.off[s.e / s.w];
		for (int64_t q = 0, n = 0; q < s.c && n < OM_EP_SAMPLES; q++) {
			if (used[me * s.c + q])
				continue;
			n++;
			om_check_read(got, memory + me * stride + OM_EP_BOARD + q * s.n * size,
			    (size_t)(s.n * size));
			for (int64_t j = 0; j < s.n * size; j++)
				right &= (unsigned char)got[j] == (q < end ? 0 : 0xff);
		}
		om_ep_ref_free(&own);
	}
	om_ep_ref_free(&ref);
	om_check_end();
	free(got);
	free(used);
	return right ? 0 : OM_WRONG;
}

/* Combine, or with one number a route weights_bwd. */
static inline double
om_ep_return_check(om_ep_combine_fn *rows, om_ep_numbers_fn *weights, om_ep_far_fn *far, bool wide,
    struct om_ep_shape s, uint64_t seed)
{
	const int64_t routes = s.t * s.k, size = wide ? 2 : 4, per = wide ? s.k : 1;
	const int64_t stride = OM_EP_BOARD + (s.c * s.n * size + 255) / 256 * 256;
	const int64_t whole = s.w * stride / size, board = OM_EP_BOARD / size;
	char *memory = wide ? (char *)om_check_bf16(whole, seed, 1, 1)
			    : (char *)om_check_f32(whole, seed, 1, 1);
	struct om_ep_world m = om_ep_world(memory, stride, s.w);
	char *got = malloc((size_t)(s.n * size));
	struct om_err err = { .scale = 1 };
	struct om_ep_blocks b = { 0 };
	if (far)
		b = om_ep_blocks(&s, size);
	for (int64_t turn = far ? 0 : s.w; turn < 2 * s.w; turn++) {
		const int64_t me = turn % s.w;
		struct om_ep_given g = om_ep_given(&s, me, seed);
		if (far && turn == s.w)
			om_ep_blocks_go(&s, &b);
		void *from = memory + me * stride + OM_EP_BOARD;
		void *x = om_check_nan((size_t)(routes / per * s.n * size));
		om_check_rank = m.peers + me;
		if (far)
			far((int)(turn / s.w), (int)me, from, g.idx, g.row, g.map, x,
			    b.out + me * s.w * b.bytes, b.in + me * s.w * b.bytes);
		else if (rows)
			rows(from, g.idx, g.row, g.map, x);
		else
			weights(from, g.idx, g.row, g.src, g.map, x);
		for (int64_t q = 0; turn >= s.w && q < routes / per && q < OM_EP_SAMPLES; q++) {
			const int64_t i = om_ep_sample(q, routes / per, seed);
			om_check_read(got, (char *)x + i * s.n * size, (size_t)(s.n * size));
			for (int64_t j = 0; j < s.n; j++) {
				double want = 0;
				for (int64_t a = i * per; a < (i + 1) * per; a++) {
					const int64_t b = me * routes + a, row = g.ref.row[b];
					const int64_t of =
					    g.ref.idx[b] / (s.e / s.w) * stride / size + board +
					    row * s.n + j;
					if (row >= 0)
						want += wide ? (double)om_unit_bf16(seed, 1, of)
							     : om_unit(seed, 1, of);
				}
				om_err_add(&err, om_ep_number(got, j, wide), want);
			}
		}
		om_ep_ref_free(&g.ref);
	}
	om_check_rank = NULL;
	om_check_end();
	free(got);
	return om_err_value(&err);
}

#endif
