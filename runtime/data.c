/*
 * What a run reads, place by place: sources of tokens, cut into sequences, in a computed order.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "om_rt.h"
#include "rng.h"

/* Rows of permutations: below these, of each source's sequences. */
enum { ROW_OF_MIX = 1 << 24, ROW_OF_DOCUMENTS = 1 << 25 /* and the source */ };

/* ---- order ----------------------------------------------------------------------------------- */

/*
 * A balanced Feistel network over the smallest 4^h >= n, walked along its cycle until it lands
 * below n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): under four rounds of
 * the network on average.
 */
uint64_t
om_permute(uint64_t seed, uint32_t row, uint64_t epoch, uint64_t n, uint64_t i)
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
			    om_philox((struct om_philox){ { right, round | row << 3 | 0x80000000,
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

/*
 * Whose the i-th block of an epoch is, and the how many-th of it. Sources are bisected, which
 * takes the same time for any number of sequences, and needs but the table of how many each gives:
 * one behind the other, what comes before `first[mid]` is of the first half; interleaved, a part of
 * the first i that is as near as can be to the first half's share of all.
 */
static uint32_t
source_of(const struct om_data *d, uint64_t *i)
{
	uint32_t from = 0, to = d->nsources;

	while (to - from > 1) {
		uint32_t mid = (from + to) / 2;
		uint64_t all = (d->first[to] - d->first[from]) / d->block,
			 half = (d->first[mid] - d->first[from]) / d->block,
			 before = *i < half ? *i : half;
		bool is = *i < half;

		if (d->order == OM_INTERLEAVE) {
			before = (uint64_t)((om_wide)*i * half / all);
			is = (om_wide)(*i + 1) * half / all > before;
		}
		*i = is ? before : *i - before;
		*(is ? &to : &from) = mid;
	}
	return from;
}

/*
 * Each source is an endless row of its epochs, each a permutation of its blocks. An epoch of the
 * mix takes the next ones of each, and shuffles what it takes. The sequences of a block follow one
 * another.
 */
struct om_place
om_data_place(const struct om_data *d, uint64_t g)
{
	uint64_t epoch, i, n;
	const struct om_source *s;
	uint32_t k;

	g = d->steps ? om_steps_place(d->steps, g) : g;
	epoch = g / d->nseq;
	i = g % d->nseq / d->block;
	if (d->order == OM_SHUFFLE && d->nsources > 1)
		i = om_permute(d->seed, ROW_OF_MIX, epoch, d->nseq / d->block, i);
	k = source_of(d, &i);
	s = &d->source[k];
	n = s->nseq / d->block;
	i += epoch * (d->first[k + 1] - d->first[k]) / d->block;
	epoch = i / n;
	i %= n;
	if (d->order != OM_SEQUENTIAL)
		i = om_permute(d->seed, k, epoch, n, i);
	return (struct om_place){ k, i * d->block + g % d->block };
}

void
om_data_count(const struct om_data *d, uint64_t g, uint64_t n)
{
	for (uint64_t i = g; i < g + n; i++)
		d->seen[om_data_place(d, i).source]++;
}

/* ---- what is read ---------------------------------------------------------------------------- */

/* A mix of this size takes more of some sources than they may give: ends the run. */
_Noreturn static void
too_much(const struct om_data *d, const struct om_share *share, uint64_t size, uint64_t most)
{
	char *remedy = om_text("%s", ""), *unit = om_text("%s", om_key_word(OM_UNITS, d->unit));
	uint32_t worst = d->nsources;

	for (uint32_t i = 0; i < d->nsources; i++)
		if (share[i].take > share[i].limit) {
			double repeat = (double)share[i].take / (double)share[i].size;
			char *more = om_text("%s%s%s.repeat=%.15g", remedy, *remedy ? " " : "",
			    d->source[i].section, ceil(repeat * 1000) / 1000);

			free(remedy);
			remedy = more;
			worst = worst < i ? worst : i;
		}
	om_die(d->section,
	    "a mix of data.size = %s %s takes %s of %s, which has %s and with repeat = %.15g gives "
	    "%s; set %s, or data.size=%llu at most",
	    om_commas(size), unit, om_commas(share[worst].take), d->source[worst].name,
	    om_commas(share[worst].size), share[worst].repeat, om_commas(share[worst].limit),
	    remedy, (unsigned long long)most);
}

/* How much of each source an epoch takes, in sequences. */
static void
take(struct om_data *d, const struct om_set *set)
{
	struct om_share *share = om_alloc(d->nsources, sizeof *share);
	size_t size;
	uint64_t most;
	FILE *f;

	for (uint32_t i = 0; i < d->nsources; i++) {
		const struct om_set *of = &set->source[i];
		struct om_source *s = &d->source[i];

		if (d->unit == OM_OF_DOCUMENTS)
			om_source_documents(s);
		share[i] = (struct om_share){ .weight = of->weight,
			.repeat = of->repeat,
			.size = d->unit == OM_OF_TOKENS      ? s->nseq * d->seq
				: d->unit == OM_OF_DOCUMENTS ? s->documents
							     : s->nseq };
		if (s->tokens > OM_SHARE_MOST)
			om_die(s->section, "has %s tokens, a source of a mix at most %s; divide it",
			    om_commas(s->tokens), om_commas(OM_SHARE_MOST));
	}
	d->crc = 0;
	om_mix_limits(share, d->nsources);
	if (!om_mix_takes(share, d->nsources, set->size, &most))
		too_much(d, share, set->size, most);
	f = open_memstream(&d->mix, &size);
	for (uint32_t i = 0; i < d->nsources; i++) {
		struct om_source *s = &d->source[i];
		uint64_t n = share[i].take, of = s->nseq;

		s->share = share[i];
		if (d->unit == OM_OF_TOKENS)
			n /= d->seq;
		if (d->unit != OM_OF_DOCUMENTS)
			n -= n % d->block;
		if (d->unit == OM_OF_DOCUMENTS && n) {
			om_source_draw(
			    s, n, d->order == OM_SEQUENTIAL ? OM_IN_ORDER : ROW_OF_DOCUMENTS + i);
			of = n = s->nseq; /* a stream that is drawn is read once an epoch */
		}
		if (!n && share[i].part)
			om_die(s->section,
			    "its share of the mix, %s, gives no sequence of %s and the label "
			    "behind "
			    "it; raise its weight, or data.size",
			    om_count(
				share[i].take, d->unit == OM_OF_DOCUMENTS ? "document" : "token"),
			    om_count(d->seq, "token"));
		d->first[i + 1] = d->first[i] + n;
		d->crc =
		    om_crc32c(d->crc, &(uint64_t[]){ s->crc, of, n, s->drawn, s->documents }, 40);
		if (f)
			fprintf(f, "%s%llu of %llu", i ? ", " : "",
			    (unsigned long long)(s->drawn ? s->drawn : n),
			    (unsigned long long)(s->drawn ? s->documents : of));
	}
	if (f)
		fprintf(f, " %s", d->unit == OM_OF_DOCUMENTS ? "documents" : "sequences");
	if (!f || fclose(f) != 0)
		om_die("memory", "cannot say what a mix of %u sources is", d->nsources);
	free(share);
}

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
		.unit = set->unit,
		.block = set->block ? set->block / m->seq : 1,
		.nsources = set->nsources ? set->nsources : 1 };
	if (set->block % m->seq)
		om_die(set->section,
		    "data.block = %llu has to be a multiple of the model's sequence_length = %llu",
		    (unsigned long long)set->block, (unsigned long long)m->seq);
	d->source = om_alloc(d->nsources, sizeof *d->source);
	d->first = om_alloc(d->nsources + 1, sizeof *d->first);
	d->seen = om_alloc(d->nsources, sizeof *d->seen);
	for (uint32_t i = 0; i < d->nsources; i++) {
		struct om_source *s = &d->source[i];

		om_source_open(s, d, set->nsources ? &set->source[i] : set);
		d->files += s->n;
		d->tokens += s->tokens;
		d->first[i + 1] = s->nseq;
		d->crc = s->crc;
		d->gaps = d->gaps || s->pack || s->file[0].mask;
	}
	if (set->nsources)
		take(d, set);
	if (d->filter || d->cut) /* other labels are other data */
		d->crc = om_crc32c(d->crc, &(uint64_t[]){ d->filter, d->cut }, 16);
	for (uint32_t i = 0; (d->masks || d->cut) && i < d->nsources; i++) /* other documents too */
		d->crc = om_crc32c(d->crc, &(uint64_t[]){ d->source[i].eos, d->source[i].bos }, 16);
	if (set->block) /* and another order */
		d->crc = om_crc32c(d->crc, &set->block, sizeof set->block);
	d->nseq = d->first[d->nsources];
	d->ids = om_alloc(d->seq + 1, sizeof *d->ids);
	d->begins = om_alloc(d->seq + 1, sizeof *d->begins);
	d->is = om_alloc(d->seq + 1, 1);
}

double
om_data_given(const struct om_data *d, uint32_t source)
{
	uint64_t documents = 0;

	for (uint32_t i = 0; i < d->nsources; i++)
		documents += d->source[i].drawn;
	if (documents)
		return (double)d->source[source].drawn / (double)documents;
	return (double)(d->first[source + 1] - d->first[source]) / (double)d->nseq;
}

void
om_data_say(const struct om_data *d, uint64_t sequences)
{
	double epochs = (double)sequences / (double)d->nseq;

	for (uint32_t i = 0; d->mix && i < d->nsources; i++) {
		const struct om_source *s = &d->source[i];
		uint64_t n = d->first[i + 1] - d->first[i];

		printf("%s %s %.2f%% (%s of %s)%s", i ? "," : "mix:", s->name,
		    100 * om_data_given(d, i), om_commas(s->drawn ? s->drawn : n),
		    om_commas(s->drawn ? s->documents : s->nseq), i + 1 < d->nsources ? "" : "\n");
	}
	for (uint32_t i = 0; d->mix && epochs > 1 && i < d->nsources; i++) {
		double n = (double)(d->first[i + 1] - d->first[i]),
		       times = epochs * om_source_times(&d->source[i], n);

		if (times > d->source[i].share.repeat)
			printf("mix: in %.2f epochs %s is read %.2f times, its repeat = %.15g is "
			       "of one epoch; data.size makes that longer\n",
			    epochs, d->source[i].name, times, d->source[i].share.repeat);
	}
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
	free(d->first);
	free(d->mix);
	free(d->seen);
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
