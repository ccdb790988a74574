/*
 * Routes of several ranks by their definition: which row of its expert's rank each one gets, what
 * is cut, and what ep_map says of it. What the checks of expert.h compare kernels of every target
 * with; it shares no code with them.
 */
#ifndef OM_EXPERT_REF_H
#define OM_EXPERT_REF_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct om_ep_ref {
	int64_t t, e, k, w, c, u, q, me, routes; /* routes of a rank */
	int32_t *idx, *row;                      /* [w, t * k] */
	int32_t *src, *map, *off;                /* of rank me */
	int64_t cut;
};

static inline uint64_t
om_ep_ref_random(uint64_t seed, int64_t rank, int64_t i)
{
	uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)rank * 0xd1342543de82ef95u;
	z = (z ^ z >> 31) * 0xbf58476d1ce4e5b9u + (uint64_t)i * 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0x94d049bb133111ebu;
	return z ^ z >> 29;
}

/* k experts of each token: the first ones, any, one much oftener than others, of every other. */
static inline void
om_ep_ref_routes(const struct om_ep_ref *s, uint64_t seed, int64_t rank, int32_t *idx)
{
	for (int64_t i = 0; i < s->routes; i++) {
		const uint64_t random = om_ep_ref_random(seed, rank, i);
		int64_t x = (int64_t)(random % (uint64_t)s->e), a = i / s->k * s->k;
		switch (seed % 4) {
		case 0:
			x = i % s->k;
			break;
		case 2:
			x = random >> 60 ? s->e / 3 : x;
			break;
		case 3:
			x = x / 2 * 2;
			break;
		}
		while (a < i) { /* another one, until it is new to the token */
			x = idx[a] == x ? (x + 1) % s->e : x;
			for (a = i / s->k * s->k; a < i && idx[a] != x; a++)
				;
		}
		idx[i] = (int32_t)x;
	}
}

static inline void *
om_ep_ref_array(int64_t n, size_t size)
{
	void *p = calloc((size_t)(n ? n : 1), size);
	if (!p)
		abort();
	return p;
}

/* The routes of all ranks, and of rank me what ep_map gives. */
static inline struct om_ep_ref
om_ep_ref_new(int64_t t, int64_t e, int64_t k, int64_t w, int64_t c, int64_t u, int64_t q,
    int64_t me, uint64_t seed)
{
	struct om_ep_ref s = { t, e, k, w, c, u, q, me, t * k, 0, 0, 0, 0, 0, 0 };
	const int64_t here = e / w, routes = s.routes;
	int32_t order = 0;
	int64_t used = 0;
	s.idx = (int32_t *)om_ep_ref_array(w * routes, sizeof *s.idx);
	s.row = (int32_t *)om_ep_ref_array(w * routes, sizeof *s.row);
	s.src = (int32_t *)om_ep_ref_array(routes, sizeof *s.src);
	s.map = (int32_t *)om_ep_ref_array(5 * e, sizeof *s.map);
	s.off = (int32_t *)om_ep_ref_array(here + 1, sizeof *s.off);
	/* of each rank and expert its first route; behind each route the next one of its expert */
	int64_t *first = (int64_t *)om_ep_ref_array(w * e, sizeof *first);
	int64_t *next = (int64_t *)om_ep_ref_array(w * routes, sizeof *next);
	/* what each rank has sent to the one whose experts it is at */
	int64_t *sent = (int64_t *)om_ep_ref_array(w, sizeof *sent);
	for (int64_t from = 0; from < w; from++) {
		om_ep_ref_routes(&s, seed, from, s.idx + from * routes);
		for (int64_t x = 0; x < e; x++)
			first[from * e + x] = -1;
		for (int64_t i = routes - 1; i >= 0; i--) {
			int64_t *head = &first[from * e + s.idx[from * routes + i]];
			next[from * routes + i] = *head;
			*head = i;
		}
	}
	for (int64_t x = 0; x < e; x++) {
		const int64_t own = x % here;
		used = own ? (used + u - 1) / u * u : 0;
		s.map[x] = order;
		for (int64_t from = 0; from < w; from++) {
			const bool mine = from == me, come = x / here == me;
			const int64_t begin = used;
			sent[from] = own ? sent[from] : 0;
			for (int64_t i = first[from * e + x]; i >= 0; i = next[from * routes + i]) {
				int32_t *row = &s.row[from * routes + i];
				*row = sent[from]++ < q && used < c ? (int32_t)used++ : -1;
				if (mine) {
					s.src[order++] = (int32_t)i;
					s.cut += *row < 0;
				}
			}
			if (mine) {
				s.map[e + x] = (int32_t)(used - begin);
				s.map[2 * e + x] = (int32_t)begin;
			}
			if (come) {
				s.map[3 * e + from * here + own] = (int32_t)(used - begin);
				s.map[4 * e + from * here + own] = (int32_t)begin;
			}
		}
		if (x / here == me)
			s.off[own + 1] = (int32_t)((used + u - 1) / u * u);
	}
	free(first);
	free(next);
	free(sent);
	return s;
}

static inline void
om_ep_ref_free(struct om_ep_ref *s)
{
	free(s->idx);
	free(s->row);
	free(s->src);
	free(s->map);
	free(s->off);
}

#endif
