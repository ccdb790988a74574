/*
 * Expert parallelism's kernels: random layouts, routes and capacities against a naive version over
 * the routes of all ranks, the gradients of dispatch, experts and combine together, and the
 * kernels' own checks. Built with -DOM_REAL=float and double. The ranks are threads, 1, 2, 4 and 8;
 * with -DOM_MPI processes, as many as said, in groups of EXPERT.
 * Usage: expert_check SEED [RANKS EXPERT]
 *
 * Tolerance: rows are moved, not changed; sums over at most 64 routes of numbers near 1 err by some
 * 1e-6 in float and 1e-15 in double, relative to the largest.
 */
#include <stdio.h>
#include <time.h>

#include "expert.h"
#ifdef OM_MPI
#include "om_rt.h"
#else
#include "threads.h"
#endif

enum { LAYOUTS = 60, SEEDS = 8 };
static const double tolerance = OM_DOUBLE ? 1e-12 : 1e-5;

static uint64_t first;
static int64_t passed, failed; /* rank 0 counts */

/* Right if it is so on every rank. */
static void
agree(bool right, const char *name, uint64_t seed, double error)
{
	const uint32_t n = om_size(OM_DATA), me = om_rank(OM_DATA);
	int32_t all[64] = { 0 }, rights = 0;
	all[me] = right;
	om_all_gather(OM_DATA, "results", all, n * sizeof *all);
	for (uint32_t r = 0; r < n; r++)
		rights += all[r];
	if (!right)
		fprintf(stderr, "FAIL %s, rank %u of %u, seed %llu, error %g\n", name, me, n,
		    (unsigned long long)seed, error);
	if (me == 0) {
		passed += rights == (int32_t)n;
		failed += rights != (int32_t)n;
	}
}

/* ---- the definition, over all ranks, in double ---- */

struct naive {
	struct om_ep s;
	int64_t parts, routes;
	int32_t *idx;    /* [w, t * k] */
	int32_t *row;    /* [w, t * k]: final row on the expert's rank, or -1 */
	int64_t *valid;  /* [w] rows that a rank gets */
	double *x, *p;   /* [w, t, n], [w, t, k] */
	double *co;      /* [w, t, n]: gradient of the outputs */
	double *y;       /* [w, t, n]: outputs */
	double *dx, *dp; /* gradients of x and p */
};

static int64_t
below(uint64_t seed, uint64_t i, int64_t n)
{
	return (int64_t)(om_hash(seed, i) % (uint64_t)n);
}

/* A number as the kernels see it. */
static double
number(uint64_t seed, int stream, int64_t i)
{
	return (double)(om_real)om_unit(om_hash(seed, (uint64_t)stream), (uint64_t)i);
}

/* What expert x does: a row squared, times this and the weight of the route. */
static double
factor(int64_t x)
{
	return (double)(om_real)(0.5 + (double)(x % 7) * 0.25);
}

/*
 * k different experts of a token. Patterns: any; all of one expert first; one expert and its rank
 * preferred; the last rank's only, or as many as k needs; another preference of each rank.
 */
static void
route(const struct naive *a, uint64_t seed, int64_t rank, int64_t token, int32_t *idx)
{
	const int64_t e = a->s.e, here = e / a->s.w, hot = below(seed, 7, e);
	for (int64_t c = 0; c < a->s.k; c++) {
		uint64_t own =
		    om_hash(om_hash(seed, 8), (uint64_t)((rank * a->s.t + token) * e + c));
		int64_t x = (int64_t)(own % (uint64_t)e);
		switch (seed % 5) {
		case 1:
			x = (hot + c) % e;
			break;
		case 2:
			x = own >> 62 ? hot / here * here + (int64_t)(own >> 8) % here : x;
			x = own >> 63 ? hot : x;
			break;
		case 3:
			x = e - 1 - x % here;
			break;
		case 4:
			x = own >> 62 ? (rank * 5 + x / 4) % e : x;
			break;
		}
		for (int64_t b = 0; b < c; b++) {
			if (idx[b] == x) {
				x = (x + e - 1) % e;
				b = -1;
			}
		}
		idx[c] = (int32_t)x;
	}
}

static int64_t
up(int64_t x, int64_t u)
{
	return x % u ? x + u - x % u : x;
}

/* routes of each rank and expert, the clamped running sum, and from it the rows */
static void
cut(struct naive *a)
{
	const int64_t w = a->s.w, e = a->s.e, here = e / w, c = a->s.c;
	int64_t *count = om_check_alloc(w * e, sizeof *count), *kept = om_check_alloc(w * e, 8);
	memset(count, 0, (size_t)(w * e) * sizeof *count);
	for (int64_t i = 0; i < w * a->routes; i++)
		count[i / a->routes * e + a->idx[i]]++;
	for (int64_t i = 0; i < w * e; i++) { /* what its rank has sent there before */
		int64_t before = 0;
		for (int64_t x = i / here * here; x < i; x++)
			before += count[x];
		count[i] = om_min(count[i], a->s.q - before);
	}
	for (int64_t d = 0; d < w; d++) {
		int64_t sum = 0, last = 0;
		for (int64_t l = 0; l < here; l++) {
			for (int64_t s = 0; s < w; s++) {
				sum += count[s * e + d * here + l];
				kept[s * e + d * here + l] = (sum < c ? sum : c) - last;
				last = sum < c ? sum : c;
			}
			last = sum = up(last, a->s.u);
		}
		a->valid[d] = last;
	}
	for (int64_t i = 0; i < w * a->routes; i++) {
		const int64_t s = i / a->routes, x = a->idx[i], d = x / here;
		int64_t place = 0, base = 0;
		for (int64_t b = s * a->routes; b < i; b++)
			place += a->idx[b] == x;
		for (int64_t o = d * here; o < x; o++) {
			for (int64_t r = 0; r < w; r++)
				base += kept[r * e + o];
			base = up(base, a->s.u);
		}
		for (int64_t r = 0; r < s; r++)
			base += kept[r * e + x];
		a->row[i] = (int32_t)(place < kept[s * e + x] ? base + place : -1);
	}
	free(count);
	free(kept);
}

/* The objective is the sum of co y. Gives it, and y and the gradients where they are asked for. */
static double
chain(struct naive *a, bool gradients)
{
	const int64_t n = a->s.n, k = a->s.k, tokens = a->s.w * a->s.t;
	double objective = 0;
	for (int64_t i = 0; gradients && i < tokens * n; i++)
		a->y[i] = a->dx[i] = 0;
	for (int64_t i = 0; i < tokens * k; i++) {
		double sum = 0, f = factor(a->idx[i]), p = a->p[i];
		for (int64_t j = i / k * n; a->row[i] >= 0 && j < (i / k + 1) * n; j++) {
			double square = f * a->x[j] * a->x[j];
			sum += a->co[j] * square;
			if (gradients) {
				a->y[j] += p * square;
				a->dx[j] += 2 * p * f * a->x[j] * a->co[j];
			}
		}
		objective += p * sum;
		if (gradients)
			a->dp[i] = sum;
	}
	return objective;
}

/* The objective is a square in x and linear in p: differences have no error but rounding. */
static double
differences(struct naive *a, uint64_t seed)
{
	double worst = 0;
	for (uint64_t i = 0; i < 8; i++) {
		const int64_t ax = below(seed, 100 + i, a->s.w * a->s.t * a->s.n);
		const int64_t ap = below(seed, 200 + i, a->s.w * a->routes);
		double *at[] = { a->x + ax, a->p + ap }, said[] = { a->dx[ax], a->dp[ap] };
		for (int o = 0; o < 2; o++) {
			double was = *at[o];
			*at[o] = was + 0.5;
			double up = chain(a, false);
			*at[o] = was - 0.5;
			double down = chain(a, false);
			*at[o] = was;
			worst = om_worse(worst, fabs(up - down - said[o]) / (1 + fabs(up)));
		}
	}
	return worst;
}

static int64_t
most(const int64_t *x, int64_t n)
{
	int64_t m = 0;
	for (int64_t i = 0; i < n; i++)
		m = x[i] > m ? x[i] : m;
	return m;
}

static struct naive
naive(uint64_t seed)
{
	const int64_t w = om_size(OM_EXPERT);
	struct naive a = { .s = { .w = w, .c = 1 << 30, .u = 1, .q = 1 << 30 } };
	if (below(seed, 12, 2))
		a.s.u += below(seed, 13, 20);
	a.parts = 1 + below(seed, 0, 3);
	a.s.t = a.parts * (1 + below(seed, 1, below(seed, 2, 2) ? 5 : 19));
	a.s.e = w * (1 + below(seed, 3, below(seed, 4, 2) ? 3 : 64 / w));
	a.s.k = below(seed, 5, 8) ? 1 + below(seed, 6, a.s.e < 8 ? a.s.e : 8) : a.s.e;
	a.s.n = 1 + below(seed, 9, 37);
	const int64_t routes = a.routes = a.s.t * a.s.k, numbers = w * a.s.t * a.s.n;
	if (below(seed, 14, 2))
		a.s.q = 1 + below(seed, 15, routes);
	a.idx = om_check_alloc(w * routes, sizeof *a.idx);
	a.row = om_check_alloc(w * routes, sizeof *a.row);
	a.valid = om_check_alloc(w, sizeof *a.valid);
	a.p = om_check_alloc(w * routes, sizeof *a.p);
	a.dp = om_check_alloc(w * routes, sizeof *a.dp);
	a.x = om_check_alloc(numbers, sizeof *a.x);
	a.co = om_check_alloc(numbers, sizeof *a.co);
	a.y = om_check_alloc(numbers, sizeof *a.y);
	a.dx = om_check_alloc(numbers, sizeof *a.dx);
	for (int64_t i = 0; i < w * a.s.t; i++)
		route(&a, seed, i / a.s.t, i % a.s.t, a.idx + i * a.s.k);
	for (int64_t i = 0; i < numbers; i++) {
		a.x[i] = number(seed, 1, i);
		a.co[i] = number(seed, 2, i);
	}
	for (int64_t i = 0; i < w * routes; i++)
		a.p[i] = number(seed, 3, i);
	/* capacity: more than enough, exactly enough, one row, too few, any; in units */
	cut(&a);
	const int64_t need = most(a.valid, w);
	switch (below(seed, 10, 5)) {
	case 0:
		a.s.c = need + below(seed, 11, 9);
		break;
	case 1:
		a.s.c = need;
		break;
	case 2:
		a.s.c = 1;
		break;
	case 3:
		a.s.c = need > a.s.u ? need - a.s.u : 1;
		break;
	default:
		a.s.c = 1 + below(seed, 11, need);
	}
	a.s.c = up(a.s.c, a.s.u);
	cut(&a);
	chain(&a, true);
	return a;
}

static void
naive_free(struct naive *a)
{
	free(a->idx);
	free(a->row);
	free(a->valid);
	free(a->x);
	free(a->p);
	free(a->co);
	free(a->y);
	free(a->dx);
	free(a->dp);
}

/* ---- the kernels, as a layer calls them ---- */

struct layer {
	int32_t *row, *src, *map, *off;
	om_real *xr, *pr, *yr, *y;          /* forward */
	om_real *dyr, *dxr, *dpr, *dx, *dp; /* backward */
	int64_t cut[2];
};

static om_real *
part(const double *all, int64_t rank, int64_t n)
{
	om_real *p = om_check_alloc(n, sizeof *p);
	for (int64_t i = 0; i < n; i++)
		p[i] = (om_real)all[rank * n + i];
	return p;
}

static struct layer
layer(const struct naive *a)
{
	const struct om_ep *s = &a->s;
	struct om_ep map = *s;
	const int64_t me = om_rank(OM_EXPERT), here = s->e / s->w, n = s->n, routes = a->routes;
	struct layer l = { .cut = { 100, 200 } };
	const int32_t *idx = a->idx + me * routes;
	om_real *x = part(a->x, me, s->t * n), *p = part(a->p, me, routes);
	om_real *co = part(a->co, me, s->t * n), *ws = om_check_nan(routes * n + s->w * s->e);
	struct om_piece *piece = om_check_alloc(2 * s->e, sizeof *piece);
	int32_t *cnt = om_check_ints(a->parts * s->e, 1, 0, 0);
	for (int64_t i = 0; i < routes; i++)
		cnt[i * a->parts / routes * s->e + idx[i]]++;
	l.row = om_check_ints(routes, 99, 0, 0);
	l.src = om_check_ints(routes, 99, 0, 1);
	l.map = om_check_ints(OM_EP_PARTS * s->e, 99, 0, 2);
	l.off = om_check_ints(here + 1, 99, 0, 3);
	l.xr = om_check_nan(s->c * n);
	l.yr = om_check_nan(s->c * n);
	l.dyr = om_check_nan(s->c * n);
	l.dxr = om_check_nan(s->c * n);
	l.pr = om_check_nan(s->c);
	l.dpr = om_check_nan(s->c);
	l.y = om_check_nan(s->t * n);
	l.dx = om_check_nan(s->t * n);
	l.dp = om_check_nan(routes);

	map.n = a->parts;
	om_ep_map(&map, idx, cnt, l.row, l.src, l.map, l.off, l.cut, ws);
	om_ep_dispatch(s, x, l.src, l.map, l.xr, ws, piece);
	om_ep_weights(s, p, l.src, l.map, l.pr, ws, piece);
	for (int64_t i = 0; i < here; i++) {
		const om_real f = (om_real)factor(me * here + i);
		for (int64_t r = l.off[i] * n; r < l.off[i + 1] * n; r++)
			l.yr[r] = l.pr[r / n] * f * l.xr[r] * l.xr[r];
	}
	om_ep_combine(s, l.yr, idx, l.row, l.map, l.y, ws, piece);

	om_ep_dispatch(s, co, l.src, l.map, l.dyr, ws, piece);
	for (int64_t i = 0; i < here; i++) {
		const om_real f = (om_real)factor(me * here + i);
		for (int64_t r = l.off[i]; r < l.off[i + 1]; r++) {
			l.dpr[r] = 0;
			for (int64_t j = r * n; j < (r + 1) * n; j++) {
				l.dpr[r] += l.dyr[j] * f * l.xr[j] * l.xr[j];
				l.dxr[j] = 2 * l.pr[r] * f * l.xr[j] * l.dyr[j];
			}
		}
	}
	om_ep_combine(s, l.dxr, idx, l.row, l.map, l.dx, ws, piece);
	om_ep_weights_bwd(s, l.dpr, l.src, l.map, l.dp, ws, piece);
	free(x);
	free(p);
	free(co);
	free(ws);
	free(piece);
	free(cnt);
	return l;
}

static void
layer_free(struct layer *l)
{
	free(l->row);
	free(l->src);
	free(l->map);
	free(l->off);
	free(l->xr);
	free(l->pr);
	free(l->yr);
	free(l->y);
	free(l->dyr);
	free(l->dxr);
	free(l->dpr);
	free(l->dx);
	free(l->dp);
}

/* The largest error, relative to the largest number of all ranks. */
static double
compare(const om_real *got, const double *want, int64_t n)
{
	struct om_err e = { .scale = 1 };
	for (int64_t i = 0; i < n; i++)
		om_err_add(&e, got[i], want[om_rank(OM_EXPERT) * n + i]);
	return om_err_value(&e);
}

/* The rows that came, to the bit, 0 behind an expert's last, and NaN where none belongs. */
static bool
arrived(const struct naive *a, const double *all, int64_t per, int64_t n, const om_real *got)
{
	const int64_t here = a->s.e / a->s.w, me = om_rank(OM_EXPERT);
	const double **want = calloc((size_t)a->s.c, sizeof *want); /* of each row; NULL: zeros */
	bool right = want != NULL;
	for (int64_t i = 0; i < a->s.w * a->routes; i++)
		if (a->idx[i] / here == me && a->row[i] >= 0)
			want[a->row[i]] = all + i / per * n;
	for (int64_t i = 0; i < a->s.c * n; i++)
		right &= i < a->valid[me] * n
			     ? (double)got[i] == (want[i / n] ? want[i / n][i % n] : 0)
			     : isnan(got[i]);
	free(want);
	return right;
}

static bool
same(const void *a, const void *b, int64_t n, size_t size)
{
	return !memcmp(a, b, (size_t)n * size);
}

static void
test_layout(uint64_t seed)
{
	struct naive a = naive(seed);
	const struct om_ep *s = &a.s;
	const int64_t me = om_rank(OM_EXPERT), here = s->e / s->w, routes = a.routes;
	omp_set_num_threads(1);
	struct layer l = layer(&a);
	int64_t lost = 0, total = 0;
	bool right = l.off[0] == 0 && l.off[here] == a.valid[me];
	for (int64_t i = 0; i < here; i++) {
		int64_t rows = 0;
		for (int64_t o = 0; o < s->w * routes; o++)
			rows += a.idx[o] == me * here + i && a.row[o] >= 0;
		right &= l.off[i + 1] - l.off[i] == up(rows, s->u);
		total += up(rows, s->u);
	}
	agree(right && total == a.valid[me], "rows of each expert", seed, OM_WRONG);
	for (int64_t i = 0; i < routes; i++)
		lost += a.row[me * routes + i] < 0;
	agree(same(l.row, a.row + me * routes, routes, sizeof *l.row), "rows of the routes", seed,
	    OM_WRONG);
	agree(
	    l.cut[0] == 100 + lost && l.cut[1] == 200 + routes, "counters", seed, (double)l.cut[0]);
	agree(arrived(&a, a.x, s->k, s->n, l.xr), "dispatched rows", seed, OM_WRONG);
	agree(arrived(&a, a.co, s->k, s->n, l.dyr), "dispatched gradient", seed, OM_WRONG);
	agree(arrived(&a, a.p, 1, 1, l.pr), "weights", seed, OM_WRONG);
	double e = compare(l.y, a.y, s->t * s->n);
	agree(e <= tolerance, "combined rows", seed, e);
	e = compare(l.dx, a.dx, s->t * s->n);
	agree(e <= tolerance, "gradient of the rows", seed, e);
	e = compare(l.dp, a.dp, routes);
	agree(e <= tolerance, "gradient of the weights", seed, e);
	right = true;
	for (int64_t i = 0; i < routes; i++)
		right &= l.row[i] >= 0 || l.dp[i] == 0;
	agree(right, "no gradient of a cut route's weight", seed, OM_WRONG);
	e = differences(&a, seed);
	agree(e <= 1e-11, "the naive gradients", seed, e);

	omp_set_num_threads(3);
	struct layer m = layer(&a);
	agree(same(l.row, m.row, routes, sizeof *l.row) && same(l.src, m.src, routes, 4) &&
		  same(l.map, m.map, OM_EP_PARTS * s->e, 4) && same(l.off, m.off, here + 1, 4) &&
		  same(l.xr, m.xr, s->c * s->n, sizeof *l.xr) &&
		  same(l.y, m.y, s->t * s->n, sizeof *l.y) &&
		  same(l.dx, m.dx, s->t * s->n, sizeof *l.dx) &&
		  same(l.dp, m.dp, routes, sizeof *l.dp),
	    "the same bits again", seed, OM_WRONG);
	layer_free(&l);
	layer_free(&m);
	naive_free(&a);
}

/* ---- the kernels' own checks ---- */

#define EP(X, t, e, k, n, w, c, u)                                                                \
	X(OM_EP_MAP, w, map_##t##_##e##_##k##_##n##_##w##_##c, t, e, k, 1, w, c, u, t *k)         \
	X(OM_EP_MAP, w, map_##t##_##e##_##k##_##n##_##w##_##c##_t, t, e, k, t, w, c, u,           \
	    t *k / 2 + 1)                                                                         \
	X(OM_EP_DISPATCH, w, dispatch_##t##_##e##_##k##_##n##_##w##_##c, t, 5 * e, k, n, w, c, u) \
	X(OM_EP_COMBINE, w, combine_##t##_##e##_##k##_##n##_##w##_##c, t, 5 * e, k, n, w, c)      \
	X(OM_EP_WEIGHTS, w, weights_##t##_##e##_##k##_##n##_##w##_##c, t, 5 * e, k, w, c, u)      \
	X(OM_EP_WEIGHTS_BWD, w, weights_bwd_##t##_##e##_##k##_##n##_##w##_##c, t, 5 * e, k, w, c)

/* clang-format off */
#define INSTANCES(X)                                                                               \
	EP(X, 1, 1, 1, 1, 1, 1, 1) EP(X, 7, 5, 3, 13, 1, 21, 1) EP(X, 67, 33, 4, 33, 1, 100, 1)    \
	EP(X, 7, 5, 3, 13, 1, 96, 16) EP(X, 67, 33, 4, 33, 1, 130, 10) EP(X, 3, 2, 1, 1, 2, 1, 1)  \
	EP(X, 13, 6, 5, 7, 2, 70, 1) EP(X, 67, 64, 8, 33, 2, 536, 1) EP(X, 13, 6, 5, 7, 2, 120, 4) \
	EP(X, 1, 4, 4, 3, 4, 4, 1) EP(X, 33, 12, 2, 67, 4, 50, 1) EP(X, 33, 12, 2, 67, 4, 48, 8)   \
	EP(X, 300, 64, 8, 128, 4, 3000, 1) EP(X, 5, 8, 1, 3, 8, 2, 1)                              \
	EP(X, 31, 24, 7, 5, 8, 200, 1) EP(X, 31, 24, 7, 5, 8, 256, 128)                            \
	EP(X, 127, 64, 8, 64, 8, 1100, 1)
/* clang-format on */

#define DEFINE(macro, w, name, ...) macro(name, __VA_ARGS__)
#define ROW(macro, w, name, ...) { #name, w, name##_check },

INSTANCES(DEFINE)

static const struct instance {
	const char *name;
	uint32_t w;
	double (*check)(uint64_t);
} instances[] = { INSTANCES(ROW) };

static void
test_rank(void)
{
	const uint32_t w = om_size(OM_EXPERT);
	for (uint64_t seed = first; seed < first + LAYOUTS; seed++)
		test_layout(seed);
	for (uint64_t seed = first; seed < first + SEEDS; seed++) {
		for (size_t i = 0; i < sizeof instances / sizeof *instances; i++) {
			if (instances[i].w != w && w > 1)
				continue; /* one rank alone tries all, as a self-test does */
			double e = instances[i].check(seed);
			agree(e <= tolerance, instances[i].name, seed, e);
		}
	}
}

int
main(int argc, char **argv)
{
	first = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
#ifdef OM_MPI
	struct om_model model = { 0 };
	if (argc != 4)
		return 2;
	uint64_t expert = (uint64_t)atoi(argv[3]);
	model.mesh = om_mesh((uint64_t[OM_N_AXES]){
	    [OM_AXIS_EXPERT] = expert, [OM_AXIS_EXPERT_DATA] = (uint64_t)atoi(argv[2]) / expert });
	om_err_name("expert_check");
	om_comm_start(&model, argv);
	om_comm_timeout(60);
	test_rank();
#else
	for (uint32_t w = 1; w <= 8; w *= 2)
		threads_run(w, test_rank);
#endif
	printf("%lld passed, %lld failed\n", (long long)passed, (long long)failed);
#ifdef OM_MPI
	om_comm_end();
#endif
	return failed > 0;
}
