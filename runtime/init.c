/*
 * Checkpoint tensors by name, and their first values: a function of seed, name and element alone;
 * and what else is drawn.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "normal.h"
#include "om_rt.h"

bool
om_tensor_next(const struct om_model *m, struct om_tensor *t)
{
	if (!m->nparams)
		return false;
	if (!t->p) {
		*t = (struct om_tensor){ .p = m->param };
		return true;
	}
	if (t->expert + 1 < t->p->experts) {
		t->expert++;
		t->first += t->p->numel;
	} else if (t->rep + 1 < t->p->nlayers) {
		*t = (struct om_tensor){ .p = t->p, .rep = t->rep + 1 };
	} else {
		if (t->p + 1 == m->param + m->nparams + m->nbuffers)
			return false;
		*t = (struct om_tensor){ .p = t->p + 1 };
	}
	return true;
}

uint64_t
om_tensor_count(const struct om_model *m)
{
	uint64_t n = 0;

	for (struct om_tensor t = { NULL, 0, 0, 0 }; om_tensor_next(m, &t);)
		n++;
	return n;
}

char *
om_tensor_name(const struct om_tensor *t)
{
	const char *pattern = t->p->name;
	size_t n = strlen(pattern) + 1, used = 0;
	char *name;

	for (const char *s = pattern; (s = strchr(s, '%')); s++)
		n += 10;
	name = om_alloc(n, 1);
	for (const char *s = pattern; *s; s++)
		if (s[0] == '%' && s[1] == 'l')
			used += (size_t)snprintf(
			    name + used, n - used, "%u", t->p->layer ? t->p->layer[t->rep] : 0),
			    s++;
		else if (s[0] == '%' && s[1] == 'e')
			used += (size_t)snprintf(name + used, n - used, "%u",
			    t->expert + t->p->experts * om_rank(OM_EXPERT)),
			    s++;
		else
			name[used++] = *s;
	return name;
}

void
om_param_part(const struct om_model *m, const struct om_param *p, uint64_t *first, uint64_t *end)
{
	uint64_t n = (p->experts ? p->experts : 1) * p->numel, part, from;
	const struct om_bucket *b;

	if (p >= m->param + m->nparams) { /* a buffer is whole on all that hold it */
		*first = 0;
		*end = om_rank(p->copies) ? 0 : n;
		return;
	}
	b = &m->bucket[p->bucket];
	part = b->elems / om_size(b->group);
	from = part * om_rank(b->group);
	*first = from > p->at ? from - p->at : 0;
	*end = from + part > p->at ? from + part - p->at : 0;
	*first = *first < n ? *first : n;
	*end = *end < n ? *end : n;
}

uint64_t
om_muon_cols(const struct om_model *m, const struct om_param *p)
{
	return m->nparam_groups ? m->param_group[p->param_group].cols : 0;
}

uint64_t
om_state_each(const struct om_model *m, const struct om_param *p, uint64_t state)
{
	uint64_t cols = om_muon_cols(m, p);

	return state == p->v && cols ? cols : 1;
}

uint64_t
om_state_at(
    const struct om_model *m, const struct om_param *p, uint64_t state, uint32_t rep, uint64_t i)
{
	const struct om_bucket *b = &m->bucket[p->bucket];
	uint64_t part = b->elems / om_size(b->group), each = om_state_each(m, p, state);
	int64_t at = (int64_t)(rep * part + i - om_rank(b->group) * part) / (int64_t)each;

	return state + (uint64_t)at * (state == p->m || state == p->v ? m->moment_size : m->real);
}

uint64_t
om_weight_at(const struct om_model *m, const struct om_param *p, uint32_t rep, uint64_t i)
{
	return p->weight + (rep * p->stride + i) * om_param_size(m, p);
}

uint64_t
om_home_at(const struct om_model *m, const struct om_param *p, uint32_t rep, uint64_t i)
{
	return p->master != OM_NO_MASTER ? om_state_at(m, p, p->master, rep, i)
					 : om_weight_at(m, p, rep, i);
}

size_t
om_param_size(const struct om_model *m, const struct om_param *p)
{
	return p->master != OM_NO_MASTER ? m->weight_size : m->real;
}

uint16_t
om_to_bf16(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof bits);
	if (isnan(x))
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void
om_put_bf16(unsigned char *arena, uint64_t off, const float *x, uint64_t n, size_t size)
{
	enum { CHUNK = 1 << 14 };
	uint16_t narrow[CHUNK];
	uint32_t wide[CHUNK];

	for (size_t some; n; n -= some, x += some, off += some * size) {
		some = n < CHUNK ? n : CHUNK;
		for (size_t j = 0; j < some; j++) {
			narrow[j] = om_to_bf16(x[j]);
			wide[j] = (uint32_t)narrow[j] << 16;
		}
		om_put(arena, off, size == sizeof *narrow ? (void *)narrow : (void *)wide,
		    some * size);
	}
}

void
om_put_weights(const struct om_model *m, unsigned char *arena, const struct om_param *p,
    uint32_t rep, uint64_t i, const void *x, size_t n)
{
	const float *from = x;
	uint64_t first, end;

	if (p->master == OM_NO_MASTER) {
		om_put(arena, om_weight_at(m, p, rep, i), x, n * m->real);
		return;
	}
	om_param_part(m, p, &first, &end);
	first = first > i ? first : i;
	end = end < i + n ? end : i + n;
	if (first < end)
		om_put(arena, om_state_at(m, p, p->master, rep, first), from + (first - i),
		    (end - first) * m->real);
	om_put_bf16(arena, om_weight_at(m, p, rep, i), from, n, m->weight_size);
}

/* FNV-1a, 64 bits. */
static uint64_t
hash(const char *s)
{
	uint64_t h = 0xcbf29ce484222325;

	for (; *s; s++)
		h = (h ^ (unsigned char)*s) * 0x100000001b3;
	return h;
}

void
om_normal(uint64_t seed, const char *name, uint64_t i, uint64_t n, double *z)
{
	uint64_t h = hash(name), first = i / 2, last = (i + n + 1) / 2;

#pragma omp parallel for schedule(static)
	for (uint64_t block = first; block < last; block++) {
		double both[2], again[2];

		om_normal_pair(seed, h, block, 0, both);
		for (int half = 0; half < 2; half++) {
			uint64_t element = 2 * block + (uint64_t)half;

			if (element < i || element >= i + n)
				continue;
			for (uint32_t redraw = 1; fabs(both[half]) > 3; redraw++) {
				om_normal_pair(seed, h, block, redraw, again);
				both[half] = again[half];
			}
			z[element - i] = both[half];
		}
	}
}

void
om_init_params(const struct om_model *m, unsigned char *arena, uint64_t seed)
{
	enum { CHUNK = 1 << 18 };
	double *z = om_alloc(CHUNK, sizeof *z);
	float *z4 = om_alloc(CHUNK, sizeof *z4);

	for (struct om_tensor t = { NULL, 0, 0, 0 }; om_tensor_next(m, &t);) {
		char *name = om_tensor_name(&t);
		size_t n;

		if (t.p->init == OM_NORMAL && om_device_normal(m, arena, &t, seed, hash(name))) {
			free(name);
			continue;
		}
		for (uint64_t i = 0; i < t.p->numel; i += n) {
			n = t.p->numel - i < CHUNK ? (size_t)(t.p->numel - i) : CHUNK;
			if (t.p->init == OM_NORMAL)
				om_normal(seed, name, i, n, z);
			for (size_t j = 0; j < n; j++) {
				z[j] = t.p->init == OM_NORMAL ? m->init_std * z[j]
							      : t.p->init == OM_ONE;
				z4[j] = (float)z[j];
			}
			om_put_weights(m, arena, t.p, t.rep, t.first + i,
			    m->real == 4 ? (void *)z4 : (void *)z, n);
		}
		free(name);
	}
	free(z);
	free(z4);
}

void
om_draw_write(const struct om_model *m, unsigned char *arena, uint64_t seed, uint64_t sequence)
{
	for (uint32_t i = 0; i < m->nmoe; i++) {
		const struct om_moe *moe = &m->moe[i];
		int64_t(*draw)[3];

		if (!moe->draw)
			continue;
		draw = om_alloc(moe->nlayers, sizeof *draw);
		for (uint32_t l = 0; l < moe->nlayers; l++) {
			draw[l][0] = (int64_t)seed;
			draw[l][1] = moe->layer[l];
			draw[l][2] = (int64_t)(sequence * m->seq);
		}
		om_put(arena, moe->draw, draw, moe->nlayers * sizeof *draw);
		free(draw);
	}
}

static int
by_place(const void *a, const void *b)
{
	const int64_t *x = a, *y = b;

	return (x[OM_PIECE_AT] > y[OM_PIECE_AT]) - (x[OM_PIECE_AT] < y[OM_PIECE_AT]);
}

void
om_lots_write(const struct om_model *m, unsigned char *arena, uint64_t seed, uint64_t step)
{
	const uint64_t odd =
	    0x9e3779b97f4a7c15; /* apart from init's draws, whose key is the seed */
	uint64_t n = 0, first, end;
	int64_t *lots;

	if (!m->lots_off)
		return;
	for (uint32_t i = 0; i < m->nparams; i++)
		n += m->param[i].nlayers;
	lots = om_alloc(OM_LOTS_FIRST + n * OM_PIECE_WORDS, sizeof *lots);
	n = 0;
	for (const struct om_param *p = m->param; p < m->param + m->nparams; p++) {
		uint64_t before = p->experts * p->numel * om_rank(OM_EXPERT), name = hash(p->name);

		om_param_part(m, p, &first, &end);
		for (uint32_t rep = 0; rep < p->nlayers && first < end; rep++) {
			int64_t *piece = lots + OM_LOTS_FIRST + OM_PIECE_WORDS * n++;
			uint64_t layer = p->layer ? p->layer[rep] : 0;

			piece[OM_PIECE_AT] =
			    (int64_t)(om_state_at(m, p, p->m, rep, first) - m->lots_off);
			piece[OM_PIECE_INDEX] = (int64_t)(before + first);
			piece[OM_PIECE_TENSOR] = (int64_t)(name + odd * layer);
		}
	}
	qsort(lots + OM_LOTS_FIRST, n, OM_PIECE_WORDS * sizeof *lots, by_place);
	lots[OM_LOTS_KEY] = (int64_t)(seed + odd * step);
	lots[OM_LOTS_PIECES] = (int64_t)n;
	om_put(arena, m->lots_off, lots, (OM_LOTS_FIRST + n * OM_PIECE_WORDS) * sizeof *lots);
	free(lots);
}
