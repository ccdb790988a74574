/*
 * Experts on several ranks, in rowwise form: a route's final row on its expert's rank is known
 * before anything is sent, so rows arrive where the experts read them. The cut is OLMo-core's:
 * each of w ranks has c rows for the routes of all its e / w experts; cells (expert, source rank),
 * experts first, fill them in turn, and within a cell the first routes in token order are kept. Of
 * what one rank sends to another one's experts the first q go, by expert and token.
 * Each expert's rows begin at a multiple of u; those before the next one's that no route has are 0.
 *
 *   ep_map          row [t, k], src [t * k], map [5, e], off [e / w + 1], cut [2] from idx [t, k]
 *                   and cnt [n, e], as op.def says
 *   ep_dispatch     xr [c, n], the row of route i, = x [t, n], row i / k, of the rank it is of
 *   ep_combine      x [t, n] = sum over k, in order, of the kept routes' rows of y [c, n]
 *   ep_weights      pr [c], the row of route i, = p[i] of the rank it is of
 *   ep_weights_bwd  dp [t, k] = dpr [c] at the kept routes' rows, 0 at the others
 *
 * Between ranks go blocks, the kept routes of one expert: contiguous among the rows, and on their
 * own rank in the workspace, which is in the order of src. Other rows are neither read nor written.
 */
#ifndef OM_EXPERT_H
#define OM_EXPERT_H

#include "check.h"
#include "expert_ref.h"
#include "om_comm.h"

struct om_ep {
	int64_t t, e, k, n, w, c, u, q; /* n: of a row; of ep_map, how many parts cnt has */
};

/* The parts of map, e numbers each. */
enum { OM_EP_START, OM_EP_KEEP, OM_EP_FIRST, OM_EP_COME, OM_EP_AT, OM_EP_PARTS };

static inline int64_t
om_ep_up(int64_t row, int64_t u)
{
	return (row + u - 1) / u * u;
}

/* Of what each rank has for each other one, q rows go. */
static inline void
om_ep_cut(const struct om_ep *s, int32_t *count)
{
	const int64_t here = s->e / s->w;
	for (int64_t pair = 0; pair < s->w * s->w; pair++) {
		int64_t left = s->q;
		for (int64_t i = pair * here; i < (pair + 1) * here; i++) {
			count[i] = (int32_t)om_min(count[i], left);
			left -= count[i];
		}
	}
}

/*
 * All of map but where routes start, and off, from count [w, e] of all ranks. Each rank's rows are
 * dealt out in the order of the cells until none is left.
 */
static inline void
om_ep_rows(const struct om_ep *s, int64_t me, const int32_t *count, int32_t *map, int32_t *off)
{
	const int64_t e = s->e, here = e / s->w;
	int32_t *keep = map + OM_EP_KEEP * e, *first = map + OM_EP_FIRST * e;
	int32_t *come = map + OM_EP_COME * e, *at = map + OM_EP_AT * e, row = 0;
	off[0] = 0;
	for (int64_t i = 0; i < e; i++) {
		const int64_t owner = i / here, own = i % here;
		row = own ? row : 0;
		for (int64_t from = 0; from < s->w; from++) {
			int32_t kept = (int32_t)om_min(count[from * e + i], s->c - row);
			if (from == me) {
				keep[i] = kept;
				first[i] = row;
			}
			if (owner == me) {
				come[from * here + own] = kept;
				at[from * here + own] = row;
			}
			row += kept;
		}
		row = (int32_t)om_ep_up(row, s->u);
		if (owner == me)
			off[own + 1] = row;
	}
}

static inline void
om_ep_map(const struct om_ep *s, const int32_t *idx, const int32_t *cnt, int32_t *row, int32_t *src,
    int32_t *map, int32_t *off, int64_t *cut, om_real *ws)
{
	const int64_t e = s->e, me = om_rank(OM_EXPERT), routes = s->t * s->k;
	const int32_t *keep = map + OM_EP_KEEP * e, *first = map + OM_EP_FIRST * e;
	int32_t *count = (int32_t *)ws, *own = count + me * e, *next = count, *start = map;
	for (int64_t i = 0, begin = 0; i < e; i++) {
		own[i] = 0;
		for (int64_t part = 0; part < s->n; part++)
			own[i] += cnt[part * e + i];
		start[i] = (int32_t)begin;
		begin += own[i];
	}
	om_all_gather(OM_EXPERT, "counts", count, (uint64_t)(s->w * e) * sizeof *count);
	om_ep_cut(s, count);
	om_ep_rows(s, me, count, map, off);
	memcpy(next, start, (size_t)e * sizeof *next); /* counts have served */
	for (int64_t i = 0; i < routes; i++) {
		const int32_t x = idx[i], at = next[x]++, place = at - start[x];
		src[at] = (int32_t)i;
		row[i] = place < keep[x] ? first[x] + place : -1;
		cut[0] += row[i] < 0;
	}
	cut[1] += routes;
}

/*
 * The blocks of rows of n numbers go from where they are in the order of src, sorted [t * k, n], to
 * the experts' rows [c, n], or back. piece has room for 2 e.
 */
static inline void
om_ep_exchange(const char *what, bool back, const struct om_ep *s, int64_t n, const int32_t *map,
    om_real *sorted, om_real *rows, struct om_piece *piece)
{
	const int64_t e = s->e, here = e / s->w;
	const uint64_t size = (uint64_t)n * sizeof *rows;
	struct om_piece *mine = piece, *theirs = piece + e;
	for (int64_t i = 0; i < e; i++) {
		mine[i] = (struct om_piece){ sorted + map[OM_EP_START * e + i] * n,
			(uint64_t)map[OM_EP_KEEP * e + i] * size, (uint32_t)(i / here) };
		theirs[i] = (struct om_piece){ rows + map[OM_EP_AT * e + i] * n,
			(uint64_t)map[OM_EP_COME * e + i] * size, (uint32_t)(i / here) };
	}
	for (int64_t i = e - here; i < e && !back; i++) { /* behind an expert's last cell */
		const int64_t end = map[OM_EP_AT * e + i] + map[OM_EP_COME * e + i];
		memset(rows + end * n, 0, (size_t)(om_ep_up(end, s->u) - end) * size);
	}
	om_exchange(
	    OM_EXPERT, what, back ? theirs : mine, (uint32_t)e, back ? mine : theirs, (uint32_t)e);
}

static inline void
om_ep_dispatch(const struct om_ep *s, const om_real *x, const int32_t *src, const int32_t *map,
    om_real *xr, om_real *ws, struct om_piece *piece)
{
	const int64_t n = s->n, k = s->k, routes = s->t * k;
#pragma omp parallel for schedule(static) if (routes * n > OM_SERIAL)
	for (int64_t r = 0; r < routes; r++)
		memcpy(ws + r * n, x + src[r] / k * n, (size_t)n * sizeof *x);
	om_ep_exchange("row dispatch", false, s, n, map, ws, xr, piece);
}

/* Tokens [lo, hi); y in the order of src. */
static OM_CLONES void
om_ep_combine_range(int64_t lo, int64_t hi, const struct om_ep *s, const om_real *y,
    const int32_t *idx, const int32_t *row, const int32_t *map, om_real *x)
{
	const int64_t n = s->n, k = s->k;
	const int32_t *start = map, *first = map + OM_EP_FIRST * s->e;
	for (int64_t i = lo; i < hi; i++) {
		om_real *d = x + i * n;
		memset(d, 0, (size_t)n * sizeof *d);
		for (int64_t a = i * k; a < (i + 1) * k; a++) {
			if (row[a] < 0)
				continue;
			const int64_t at = start[idx[a]] + row[a] - first[idx[a]];
			const om_real *from = y + at * n;
#pragma omp simd
			for (int64_t j = 0; j < n; j++)
				d[j] += from[j];
		}
	}
}

static inline void
om_ep_combine(const struct om_ep *s, const om_real *y, const int32_t *idx, const int32_t *row,
    const int32_t *map, om_real *x, om_real *ws, struct om_piece *piece)
{
	/* a piece serves both ways; of these rows it is only read */
	om_ep_exchange("row combine", true, s, s->n, map, ws, (om_real *)(uintptr_t)y, piece);
#pragma omp parallel if (s->t * s->k * s->n > OM_SERIAL)
	om_ep_combine_range(om_lo(s->t), om_hi(s->t), s, ws, idx, row, map, x);
}

static inline void
om_ep_weights(const struct om_ep *s, const om_real *p, const int32_t *src, const int32_t *map,
    om_real *pr, om_real *ws, struct om_piece *piece)
{
	for (int64_t r = 0; r < s->t * s->k; r++)
		ws[r] = p[src[r]];
	om_ep_exchange("route weights", false, s, 1, map, ws, pr, piece);
}

static inline void
om_ep_weights_bwd(const struct om_ep *s, const om_real *dpr, const int32_t *src, const int32_t *map,
    om_real *dp, om_real *ws, struct om_piece *piece)
{
	const int32_t *start = map, *keep = map + OM_EP_KEEP * s->e;
	om_ep_exchange("route weights", true, s, 1, map, ws, (om_real *)(uintptr_t)dpr, piece);
	for (int64_t i = 0; i < s->e; i++) {
		const int64_t end = i + 1 < s->e ? start[i + 1] : s->t * s->k;
		for (int64_t r = start[i]; r < end; r++)
			dp[src[r]] = r - start[i] < keep[i] ? ws[r] : 0;
	}
}

#define OM_EP_SHAPE(NAME, t, e, k, n, w, c, u, q)                                           \
	_Static_assert((t) >= 1 && (n) >= 1 && (w) >= 1, "ep: sizes start at 1");           \
	_Static_assert((k) >= 1 && (k) <= (e), "ep: top-k chooses among the experts");      \
	_Static_assert((e) % (w) == 0, "ep: ranks divide the experts");                     \
	_Static_assert((int64_t)(t) * (k) <= INT32_MAX, "ep: routes are counted in int32"); \
	_Static_assert((c) >= 1 && (c) <= INT32_MAX, "ep: rows are counted in int32");      \
	_Static_assert((u) >= 1 && (c) % (u) == 0, "ep: c is a multiple of u");             \
	static const struct om_ep NAME##_shape = { t, e, k, n, w, c, u, q };

#define OM_EP_MAP(NAME, t, e, k, n, w, c, u, q)                                       \
	OM_EP_SHAPE(NAME, t, e, k, n, w, c, u, q)                                     \
	_Static_assert((q) >= 0, "ep: a rank sends rows");                            \
	_Static_assert((t) % (n) == 0, "ep: sequences divide the tokens");            \
	void NAME(const int32_t *idx, const int32_t *cnt, int32_t *row, int32_t *src, \
	    int32_t *map, int32_t *off, int64_t *cut, om_real *ws)                    \
	{                                                                             \
		om_ep_map(&NAME##_shape, idx, cnt, row, src, map, off, cut, ws);      \
	}                                                                             \
	double NAME##_check(uint64_t seed)                                            \
	{                                                                             \
		return om_ep_map_check(NAME, &NAME##_shape, seed);                    \
	}

/* m: of map */
#define OM_EP_MOVE_SHAPE(NAME, t, m, k, n, w, c, u)                                    \
	_Static_assert((m) % OM_EP_PARTS == 0, "ep: map has the same of each expert"); \
	OM_EP_SHAPE(NAME, t, (m) / OM_EP_PARTS, k, n, w, c, u, (int64_t)(t) * (k))

#define OM_EP_DISPATCH(NAME, t, m, k, n, w, c, u)                                               \
	OM_EP_MOVE_SHAPE(NAME, t, m, k, n, w, c, u)                                             \
	void NAME(const om_real *x, const int32_t *idx, const int32_t *row, const int32_t *src, \
	    const int32_t *map, om_real *xr, om_real *ws)                                       \
	{                                                                                       \
		(void)idx, (void)row;                                                           \
		struct om_piece piece[(m) / OM_EP_PARTS * 2];                                   \
		om_ep_dispatch(&NAME##_shape, x, src, map, xr, ws, piece);                      \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_ep_check((struct om_ep_fn){ .dispatch = NAME }, &NAME##_shape, seed); \
	}

#define OM_EP_COMBINE(NAME, t, m, k, n, w, c)                                                   \
	OM_EP_MOVE_SHAPE(NAME, t, m, k, n, w, c, 1)                                             \
	void NAME(const om_real *y, const int32_t *idx, const int32_t *row, const int32_t *map, \
	    om_real *x, om_real *ws)                                                            \
	{                                                                                       \
		struct om_piece piece[(m) / OM_EP_PARTS * 2];                                   \
		om_ep_combine(&NAME##_shape, y, idx, row, map, x, ws, piece);                   \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_ep_check((struct om_ep_fn){ .combine = NAME }, &NAME##_shape, seed);  \
	}

#define OM_EP_WEIGHTS(NAME, t, m, k, w, c, u)                                                   \
	OM_EP_MOVE_SHAPE(NAME, t, m, k, 1, w, c, u)                                             \
	void NAME(const om_real *p, const int32_t *idx, const int32_t *row, const int32_t *src, \
	    const int32_t *map, om_real *pr, om_real *ws)                                       \
	{                                                                                       \
		(void)idx, (void)row;                                                           \
		struct om_piece piece[(m) / OM_EP_PARTS * 2];                                   \
		om_ep_weights(&NAME##_shape, p, src, map, pr, ws, piece);                       \
	}                                                                                       \
	double NAME##_check(uint64_t seed)                                                      \
	{                                                                                       \
		return om_ep_check((struct om_ep_fn){ .weights = NAME }, &NAME##_shape, seed);  \
	}

#define OM_EP_WEIGHTS_BWD(NAME, t, m, k, w, c)                                                     \
	OM_EP_MOVE_SHAPE(NAME, t, m, k, 1, w, c, 1)                                                \
	void NAME(const om_real *dpr, const int32_t *idx, const int32_t *row, const int32_t *src,  \
	    const int32_t *map, om_real *dp, om_real *ws)                                          \
	{                                                                                          \
		(void)idx, (void)row;                                                              \
		struct om_piece piece[(m) / OM_EP_PARTS * 2];                                      \
		om_ep_weights_bwd(&NAME##_shape, dpr, src, map, dp, ws, piece);                    \
	}                                                                                          \
	double NAME##_check(uint64_t seed)                                                         \
	{                                                                                          \
		return om_ep_check((struct om_ep_fn){ .weights_bwd = NAME }, &NAME##_shape, seed); \
	}

/* The kernel that a check runs: one of these. */
typedef void om_ep_map_fn(const int32_t *, const int32_t *, int32_t *, int32_t *, int32_t *,
    int32_t *, int64_t *, om_real *);
typedef void om_ep_move_fn(const om_real *, const int32_t *, const int32_t *, const int32_t *,
    const int32_t *, om_real *, om_real *);
struct om_ep_fn {
	om_ep_move_fn *dispatch, *weights, *weights_bwd;
	void (*combine)(const om_real *, const int32_t *, const int32_t *, const int32_t *,
	    om_real *, om_real *);
};

/*
 * The routes of all ranks, and what the definition makes of them; of this rank what ep_map gives.
 * Where the others aren't there, this rank is the only one, and has all experts on its c rows.
 */
struct om_ep_case {
	struct om_ep s;
	struct om_ep_ref ref;
};

OM_CHECK struct om_ep_case
om_ep_check_case(const struct om_ep *shape, uint64_t seed)
{
	struct om_ep_case c = { .s = *shape };
	if (om_size(OM_EXPERT) != shape->w)
		c.s.w = 1;
	c.ref = om_ep_ref_new(
	    c.s.t, c.s.e, c.s.k, c.s.w, c.s.c, c.s.u, c.s.q, om_rank(OM_EXPERT), seed);
	return c;
}

OM_CHECK double
om_ep_map_check(om_ep_map_fn *run, const struct om_ep *shape, uint64_t seed)
{
	struct om_ep_case c = om_ep_check_case(shape, seed);
	const int64_t e = c.s.e, routes = c.ref.routes, here = e / c.s.w;
	int32_t *cnt = om_check_ints(c.s.n * e, 1, seed, 0);
	int32_t *row = om_check_ints(routes, 9, seed, 1), *src = om_check_ints(routes, 9, seed, 2);
	int32_t *map = om_check_ints(OM_EP_PARTS * e, 9, seed, 3);
	int32_t *off = om_check_ints(here + 1, 9, seed, 4);
	om_real *ws = om_check_nan(c.s.w * e);
	const int32_t *idx = c.ref.idx + c.ref.me * routes;
	int64_t cut[2] = { 5, 7 };
	bool right = true;
	for (int64_t i = 0; i < routes; i++)
		cnt[i * c.s.n / routes * e + idx[i]]++;
	if (c.s.w == shape->w)
		run(idx, cnt, row, src, map, off, cut, ws);
	else
		om_ep_map(&c.s, idx, cnt, row, src, map, off, cut, ws);
	for (int64_t i = 0; i < routes; i++)
		right &= row[i] == c.ref.row[c.ref.me * routes + i] && src[i] == c.ref.src[i];
	for (int64_t i = 0; i <= here; i++)
		right &= off[i] == c.ref.off[i];
	for (int64_t i = 0; i < OM_EP_PARTS * e; i++)
		right &= map[i] == c.ref.map[i];
	right &= cut[0] == 5 + c.ref.cut && cut[1] == 7 + routes;
	om_ep_ref_free(&c.ref);
	free(cnt);
	free(row);
	free(src);
	free(map);
	free(off);
	free(ws);
	return right ? 0 : OM_WRONG;
}

/* Of arrays of all ranks: number i of what the rank holds. */
static inline double
om_ep_check_number(uint64_t seed, int64_t rank, int64_t i)
{
	return (double)(om_real)om_unit(om_hash(seed, (uint64_t)rank), (uint64_t)i);
}

/* What arrives: the tokens' rows, or the routes' weights. */
OM_CHECK void
om_ep_check_rows(
    const struct om_ep_case *c, int64_t per, uint64_t seed, const om_real *got, struct om_err *err)
{
	const int64_t n = c->s.n, here = c->s.e / c->s.w;
	bool *route = om_check_alloc(c->s.c, sizeof *route); /* rows that are one's */
	for (int64_t i = 0; i < c->s.c; i++)
		route[i] = false;
	for (int64_t i = 0; i < c->s.w * c->ref.routes; i++) {
		if (c->ref.idx[i] / here != c->ref.me || c->ref.row[i] < 0)
			continue;
		route[c->ref.row[i]] = true;
		for (int64_t j = 0; j < n; j++)
			om_err_add(err, got[c->ref.row[i] * n + j],
			    om_ep_check_number(
				seed, i / c->ref.routes, i % c->ref.routes / per * n + j));
	}
	for (int64_t i = 0; i < c->ref.off[here] * n; i++)
		err->wrong |= !route[i / n] && got[i] != 0;
	free(route);
	err->wrong |= !om_check_kept(got, c->ref.off[here] * n, c->s.c * n);
}

/* What comes back to route after route, summed over per of them. */
OM_CHECK void
om_ep_check_sums(
    const struct om_ep_case *c, int64_t per, uint64_t seed, const om_real *got, struct om_err *err)
{
	const int64_t n = c->s.n, here = c->s.e / c->s.w;
	for (int64_t i = 0; i < c->ref.routes / per * n; i++) {
		double want = 0;
		for (int64_t a = i / n * per; a < (i / n + 1) * per; a++) {
			const int64_t at = c->ref.me * c->ref.routes + a;
			if (c->ref.row[at] >= 0)
				want += om_ep_check_number(
				    seed, c->ref.idx[at] / here, c->ref.row[at] * n + i % n);
		}
		om_err_add(err, got[i], want);
	}
}

OM_CHECK double
om_ep_check(struct om_ep_fn run, const struct om_ep *shape, uint64_t seed)
{
	struct om_ep_case c = om_ep_check_case(shape, seed);
	const struct om_ep *s = &c.s;
	const bool alone = s->w != shape->w, there = run.dispatch || run.weights;
	const int64_t n = s->n, sums = run.combine || run.dispatch ? s->k : 1;
	const int64_t tokens = c.ref.routes / sums * n, rows = s->c * n,
		      used = c.ref.off[s->e / s->w] * n;
	om_real *in = om_check_random(there ? tokens : rows, seed, (int)c.ref.me);
	om_real *out = there ? om_check_output(used, rows) : om_check_nan(tokens);
	om_real *ws = om_check_nan(c.ref.routes * n);
	struct om_piece *piece = om_check_alloc(2 * s->e, sizeof *piece);
	const int32_t *idx = c.ref.idx + c.ref.me * c.ref.routes,
		      *row = c.ref.row + c.ref.me * c.ref.routes;
	struct om_err err = { .scale = 1 };
	if (!there)
		om_check_spoil(in, used, rows);
	if (run.dispatch && alone)
		om_ep_dispatch(s, in, c.ref.src, c.ref.map, out, ws, piece);
	else if (run.dispatch)
		run.dispatch(in, idx, row, c.ref.src, c.ref.map, out, ws);
	if (run.combine && alone)
		om_ep_combine(s, in, idx, row, c.ref.map, out, ws, piece);
	else if (run.combine)
		run.combine(in, idx, row, c.ref.map, out, ws);
	if (run.weights && alone)
		om_ep_weights(s, in, c.ref.src, c.ref.map, out, ws, piece);
	else if (run.weights)
		run.weights(in, idx, row, c.ref.src, c.ref.map, out, ws);
	if (run.weights_bwd && alone)
		om_ep_weights_bwd(s, in, c.ref.src, c.ref.map, out, ws, piece);
	else if (run.weights_bwd)
		run.weights_bwd(in, idx, row, c.ref.src, c.ref.map, out, ws);
	if (there)
		om_ep_check_rows(&c, sums, seed, out, &err);
	else
		om_ep_check_sums(&c, sums, seed, out, &err);
	om_ep_ref_free(&c.ref);
	free(in);
	free(out);
	free(ws);
	free(piece);
	return om_err_value(&err);
}

#endif
