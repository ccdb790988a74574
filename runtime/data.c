/*
 * What a run reads, place by place: sources of tokens, cut into sequences, in a computed order.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "om_rt.h"
#include "rng.h"

/* ---- order ----------------------------------------------------------------------------------- */

/*
 * A balanced Feistel network over the smallest 4^h >= n, walked along its cycle until it lands
 * below n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): under four rounds of
 * the network on average.
 */
uint64_t
om_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i)
{
	unsigned half = 0;
	uint32_t mask;

	if (n < 2)
		return 0;
	while (half < 32 && (n - 1) >> (2 * half))
		half++;
	mask = (uint32_t)(((uint64_t)1 << half) - 1);
	do {
		uint32_t left = (uint32_t)(i >> half) & mask, right = (uint32_t)i & mask;

		for (uint32_t round = 0; round < 8; round++) {
			/* the top bit keeps these counters apart from those of initial weights */
			struct om_philox f =
			    om_philox((struct om_philox){ { right, round | 0x80000000,
					  (uint32_t)epoch, (uint32_t)(epoch >> 32) } },
				seed);
			uint32_t next = left ^ (f.v[0] & mask);

			left = right;
			right = next;
		}
		i = (uint64_t)left << half | right;
	} while (i >= n);
	return i;
}

struct om_place
om_data_place(const struct om_data *d, uint64_t g)
{
	uint64_t epoch = g / d->nseq, i = g % d->nseq;

	if (d->order == OM_SHUFFLE)
		i = om_permute(d->seed, epoch, d->nseq, i);
	return (struct om_place){ 0, i };
}

/* ---- what is read ---------------------------------------------------------------------------- */

void
om_data_open(struct om_data *d, const struct om_model *m, const struct om_set *set, uint64_t seed)
{
	*d = (struct om_data){ .seq = m->seq,
		.vocab = m->vocab,
		.seed = seed,
		.section = set->section,
		.order = set->order,
		.filter = set->filter,
		.cut = set->cut,
		.gaps = set->filter || set->cut,
		.masks = m->document_off != 0,
		.packing = set->packing,
		.nsources = 1 };
	d->source = om_alloc(d->nsources, sizeof *d->source);
	for (uint32_t i = 0; i < d->nsources; i++) {
		struct om_source *s = &d->source[i];

		om_source_open(s, d, set);
		d->files += s->n;
		d->tokens += s->tokens;
		d->nseq += s->nseq;
		d->crc = s->crc;
		d->gaps = d->gaps || s->pack || s->file[0].mask;
	}
	d->ids = om_alloc(d->seq + 1, sizeof *d->ids);
	d->begins = om_alloc(d->seq + 1, sizeof *d->begins);
	d->is = om_alloc(d->seq + 1, 1);
}

void
om_data_rest(struct om_data *d)
{
	for (struct om_source *s = d->source; s < d->source + d->nsources; s++)
		for (struct om_file *f = s->file; f < s->file + s->n; f++)
			for (struct om_file *x = f; x; x = x->mask)
				if (x->fd >= 0) {
					close(x->fd);
					x->fd = -1;
				}
}

void
om_data_close(struct om_data *d)
{
	om_data_rest(d);
	for (uint32_t i = 0; i < d->nsources; i++)
		om_source_close(&d->source[i]);
	free(d->source);
	free(d->ids);
	free(d->begins);
	free(d->is);
}

bool
om_data_read(struct om_data *d, uint64_t g, int32_t *token, int32_t *label, int32_t *first)
{
	const struct om_place p = om_data_place(d, g);
	const bool documents = (d->masks && first) || d->cut;
	struct om_source *s = &d->source[p.source];
	bool *begins = documents ? d->begins : NULL;
	uint64_t n = d->seq;

	if (s->pack)
		n = om_pack_read(s, p.sequence, d->ids, d->is, begins);
	else
		om_source_read(s, p.sequence * d->seq, d->seq + 1, d->ids, d->is, begins);
	memcpy(token, d->ids, d->seq * sizeof *token);
	for (uint64_t i = 0; i < d->seq; i++)
		label[i] = d->is[i + 1] ? d->ids[i + 1] : -1;
	if (documents)
		om_documents_of(d, begins, label, first);
	if (!d->filter || !om_repeats(token, n))
		return false;
	memset(label, -1, d->seq * sizeof *label);
	return true;
}
