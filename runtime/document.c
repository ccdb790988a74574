/*
 * Where documents begin and end within sequences: by a file's index, or by the token that ends one.
 * What a model that masks documents is given of them.
 */
#include <stdlib.h>

#include "om_rt.h"

enum { PIECE = 1 << 16 }; /* tokens that are read at a time */

void
om_documents_check(struct om_source *s, struct om_file *f)
{
	if (!(s->data->masks || s->data->cut) || s->eos != OM_NONE ||
	    om_file_begins(s, f, 0, 0, NULL))
		return;
	om_die(s->section,
	    "%s: %s, and the file has no index that says where they end; set data.eos to the token "
	    "that ends one",
	    f->path,
	    s->data->masks ? "the model masks documents" : "data.cut_labels is about documents");
}

bool
om_document_ends(const struct om_source *s, int32_t id, int32_t next)
{
	return s->eos != OM_NONE && (uint64_t)id == s->eos &&
	       (s->bos == OM_NONE || (uint64_t)next == s->bos);
}

bool
om_documents_each(
    struct om_source *s, struct om_file *f, void (*each)(void *arg, uint64_t tokens), void *arg)
{
	int32_t *id, before = 0;
	uint64_t since = 0;

	if (om_file_documents(s, f, each, arg))
		return true;
	if (s->eos == OM_NONE)
		return false;
	id = om_alloc(PIECE, sizeof *id);
	for (uint64_t i = 0, n; i < f->tokens; i += n) {
		n = f->tokens - i < PIECE ? f->tokens - i : PIECE;
		om_tokens_read(s, f, i, (size_t)n, id);
		for (uint64_t j = 0; j < n; before = id[j++])
			if (i + j && om_document_ends(s, before, id[j])) {
				each(arg, i + j - since);
				since = i + j;
			}
	}
	each(arg, f->tokens - since); /* a file's end is a document's */
	free(id);
	return true;
}

void
om_documents_find(struct om_source *s, struct om_file *f, uint64_t from, size_t n,
    const int32_t *id, bool *begins)
{
	if (om_file_begins(s, f, from, n, begins))
		return;
	for (size_t i = 0; i < n; i++)
		begins[i] = i ? om_document_ends(s, id[i - 1], id[i]) : !from;
}

void
om_documents_of(const struct om_data *d, const bool *begins, int32_t *label, int32_t *first)
{
	for (size_t i = 0; i < d->seq; i++) {
		if (first)
			first[i] = i && !begins[i] ? first[i - 1] : (int32_t)i;
		if (d->cut && begins[i + 1])
			label[i] = -1;
	}
}

double
om_documents_spared(const struct om_model *m, const int32_t *first, uint64_t sequences)
{
	double flops = 0;

	for (const struct om_pairs *p = m->pairs; first && p < m->pairs + m->npairs; p++)
		for (uint64_t i = 0; i < sequences * m->seq; i++) {
			const uint64_t all = i % m->seq + 1, own = all - (uint64_t)first[i];

			flops += (double)p->flops * (double)((all < p->window ? all : p->window) -
							     (own < p->window ? own : p->window));
		}
	return flops;
}

void
om_documents_put(const struct om_model *m, unsigned char *arena, const int32_t *first)
{
	const size_t n = m->micro * m->seq;
	int32_t *doc, *last;

	if (!m->document_off)
		return;
	doc = om_alloc(2 * n, sizeof *doc);
	last = doc + n;
	for (size_t i = n; i-- > 0;) {
		const int32_t at = (int32_t)(i % m->seq), end = (int32_t)m->seq - 1;

		doc[i] = first ? first[i] : 0;
		last[i] = at == end || (first && first[i + 1] == at + 1) ? at : last[i + 1];
	}
	om_put(arena, m->document_off, doc, 2 * n * sizeof *doc);
	free(doc);
}
