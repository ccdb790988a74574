/* What export and import share: the model's tensors as Hugging Face has them. */
#ifndef OM_HF_H
#define OM_HF_H

#include "hf_config.h"
#include "om_rt.h"

struct om_hf_item {
	struct om_st_tensor t;    /* name, type and shape in an export; place in its file */
	const struct om_entry *e; /* whose weights it has; NULL: it is zero */
	enum om_hf_form form;
	uint64_t block;         /* elements that belong together */
	uint64_t rows, columns; /* of a block */
	uint32_t shard;
};
/* Reads a configuration; it has no line about it. */
void om_hf_own(const struct om_model *m, const char *operation, struct om_hf_model *config);
/*
 * Those of the family in config, which is this model; e: all entries of the model, of which the
 * weights come first. A family that has no place for one leaves it out: a bias, which is zero then.
 */
struct om_hf_item *om_hf_items(const struct om_model *m, const struct om_hf_model *config,
    const struct om_entry *e, uint32_t n, uint32_t *items);
void om_hf_items_free(struct om_hf_item *item, uint32_t n);
/* n elements, whole blocks, in place: from our form into theirs, or back. */
void om_hf_form(const struct om_hf_item *item, double *x, size_t n, bool back);
/* How many elements to take at a time. */
size_t om_hf_some(const struct om_hf_item *item, uint64_t left);
size_t om_hf_most(const struct om_hf_item *item, uint32_t n); /* the most that is */

#endif
