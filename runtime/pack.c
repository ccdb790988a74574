/*
 * Documents packed whole into sequences: best fit, the longest first, as Ding et al. do it ("Fewer
 * Truncations Improve Language Modeling", 2024) and OLMo-core. The next document goes where it
 * leaves the least room; of sequences with the same room, where that has been longest. The plan is
 * of a source's documents alone, so it is the same on all ranks and whenever a run goes on.
 */
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"

/* ---- the plan -------------------------------------------------------------------------------- */

enum { END = UINT32_MAX };

void
om_pack_add(struct om_pack *p, uint64_t tokens)
{
	const uint64_t most = p->most;

	p->documents += tokens > 0;
	for (uint64_t n, rest = tokens; rest; rest -= n) {
		n = p->fragment && rest > most ? most : rest;
		if (p->n == END)
			om_die("data",
			    "over %s documents of one source cannot be packed; divide it, or leave "
			    "out data.packing",
			    om_commas(p->n));
		if (p->n + 1 >= p->cap) {
			p->cap = p->cap ? 2 * p->cap : 1024;
			p->start = realloc(p->start, p->cap * sizeof *p->start);
			if (!p->start)
				om_die("memory", "cannot list %s", om_count(p->n, "document"));
			p->start[0] = 0;
		}
		p->start[p->n + 1] = p->start[p->n] + n;
		p->n++;
		p->tokens += n < most ? n : most;
	}
}

uint64_t
om_pack_length(const struct om_pack *p, uint64_t piece)
{
	const uint64_t n = p->start[piece + 1] - p->start[piece];

	return n < p->most ? n : p->most;
}

/* Pieces by their length, the longest first, those of one length in their order. */
static uint32_t *
sorted(const struct om_pack *p)
{
	uint32_t *order = om_alloc(p->n, sizeof *order);
	uint64_t *at = om_alloc(p->most + 2, sizeof *at); /* of the first that is shorter */

	for (uint64_t i = 0; i < p->n; i++)
		at[om_pack_length(p, i) - 1]++;
	for (uint64_t n = p->most; n-- > 0;)
		at[n] += at[n + 1];
	for (uint64_t i = 0; i < p->n; i++)
		order[at[om_pack_length(p, i)]++] = (uint32_t)i;
	free(at);
	return order;
}

/* Sequences by the room that they have, which wait in a row for each; and what room there is. */
struct rooms {
	uint32_t *first, *last; /* [most + 1] */
	uint32_t *next;         /* [sequences] */
	uint32_t *tree,
	    leaves; /* a leaf is its room where a sequence has it, else 0; above: the most */
};

static void
mark(struct rooms *r, uint64_t room, bool some)
{
	uint64_t i = r->leaves + room;

	r->tree[i] = some ? (uint32_t)room : 0;
	while (i /= 2)
		r->tree[i] =
		    r->tree[2 * i] > r->tree[2 * i + 1] ? r->tree[2 * i] : r->tree[2 * i + 1];
}

/* The least room of so many tokens or more. */
static uint64_t
best(const struct rooms *r, uint64_t tokens)
{
	uint64_t i = 1;

	while (i < r->leaves)
		i = 2 * i + (r->tree[2 * i] < tokens);
	return i - r->leaves;
}

static void
put(struct rooms *r, uint64_t room, uint32_t sequence)
{
	r->next[sequence] = END;
	if (r->first[room] == END) {
		r->first[room] = sequence;
		mark(r, room, true);
	} else {
		r->next[r->last[room]] = sequence;
	}
	r->last[room] = sequence;
}

static uint32_t
take(struct rooms *r, uint64_t room)
{
	uint32_t sequence = r->first[room];

	if ((r->first[room] = r->next[sequence]) == END)
		mark(r, room, false);
	return sequence;
}

void
om_pack_fit(struct om_pack *p)
{
	uint32_t *order = sorted(p), *in = om_alloc(p->n, sizeof *in);
	struct rooms r = { .leaves = 1 };

	while (r.leaves <= p->most)
		r.leaves *= 2;
	r.tree = om_alloc(2 * (uint64_t)r.leaves, sizeof *r.tree);
	r.first = om_alloc(p->most + 1, sizeof *r.first);
	r.last = om_alloc(p->most + 1, sizeof *r.last);
	r.next = om_alloc(p->n, sizeof *r.next);
	memset(r.first, 0xff, (p->most + 1) * sizeof *r.first);
	mark(&r, p->most, true); /* a new one */
	for (uint64_t k = 0; k < p->n; k++) {
		uint64_t n = om_pack_length(p, order[k]), room = best(&r, n);

		in[order[k]] = room == p->most ? (uint32_t)p->sequences++ : take(&r, room);
		if (room > n)
			put(&r, room - n, in[order[k]]);
	}
	p->first = om_alloc(p->sequences + 2, sizeof *p->first);
	p->piece = om_alloc(p->n, sizeof *p->piece);
	for (uint64_t i = 0; i < p->n; i++)
		p->first[in[i] + 2]++;
	for (uint64_t i = 2; i < p->sequences + 2; i++)
		p->first[i] += p->first[i - 1];
	for (uint64_t k = 0; k < p->n; k++)
		p->piece[p->first[in[order[k]] + 1]++] = order[k];
	free(order);
	free(in);
	free(r.tree);
	free(r.first);
	free(r.last);
	free(r.next);
}

void
om_pack_free(struct om_pack *p)
{
	if (!p)
		return;
	free(p->start);
	free(p->first);
	free(p->piece);
	free(p);
}

/* ---- a source's ------------------------------------------------------------------------------ */

static void
add(void *pack, uint64_t tokens)
{
	om_pack_add(pack, tokens);
}

void
om_pack_say(const struct om_data *d)
{
	for (const struct om_source *s = d->source; s < d->source + d->nsources; s++) {
		const struct om_pack *p = s->pack;

		if (p)
			printf("packing: %s in %s, %.2f%% of which is filled up, %s left out\n",
			    om_count(p->documents, "document"), om_count(p->sequences, "sequence"),
			    100 - 100 * (double)p->tokens / (double)(p->sequences * p->most),
			    om_count(s->tokens - p->tokens, "token"));
	}
}

/* A token that ends documents and is nowhere: most of the data would go unread, file by file. */
static void
check_ends(const struct om_source *s)
{
	const struct om_pack *p = s->pack;
	double out = 100 - 100 * (double)p->tokens / (double)s->tokens;

	if (p->documents == s->n && out > 50)
		om_die(s->section,
		    "data.eos = %llu ends no document in %s, and data.packing = truncate leaves "
		    "%.1f%% of all tokens out; correct data.eos, or set data.packing=fragment",
		    (unsigned long long)s->eos, om_count(s->n, "file"), out);
}

void
om_pack_open(struct om_source *s)
{
	struct om_pack *p = s->pack = om_alloc(1, sizeof *p);

	if (s->eos == OM_NONE)
		om_die(s->section,
		    "data.packing takes the token that ends a document, and fills sequences with "
		    "it; set data.eos");
	p->most = s->data->seq;
	p->fragment = s->data->packing == OM_FRAGMENT;
	for (uint32_t i = 0; i < s->n; i++)
		om_documents_each(s, &s->file[i], add, p);
	om_pack_fit(p);
	check_ends(s);
	s->nseq = p->sequences;
	/* other documents are other sequences of the same tokens */
	s->crc = om_crc32c(s->crc, &(uint64_t[]){ p->fragment, p->sequences }, 16);
	s->crc = om_crc32c(s->crc, p->start, (p->n + 1) * sizeof *p->start);
}

uint64_t
om_pack_read(struct om_source *s, uint64_t sequence, int32_t *id, unsigned char *is, bool *begins)
{
	const struct om_pack *p = s->pack;
	uint64_t at = 0;

	for (uint32_t k = p->first[sequence]; k < p->first[sequence + 1]; k++) {
		uint64_t n = om_pack_length(p, p->piece[k]);

		om_source_read(s, p->start[p->piece[k]], (size_t)n, id + at, is + at,
		    begins ? begins + at : NULL);
		if (begins) /* a part of one too, which does not follow what is before it */
			begins[at] = true;
		at += n;
	}
	for (uint64_t i = at; i <= p->most; i++) {
		id[i] = (int32_t)s->eos;
		is[i] = 0;
		if (begins)
			begins[i] = i == at;
	}
	return at;
}
