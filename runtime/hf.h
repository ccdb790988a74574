/* Where import takes weights from, and what it shares with export. */
#ifndef OM_HF_H
#define OM_HF_H

#include "hf_config.h"
#include "om_rt.h"

/* ---- hf_item.c: the model's tensors as Hugging Face has them --------------------------------- */

struct om_hf_item {
	struct om_st_tensor t;    /* name, type and shape in an export; place in its file */
	const struct om_entry *e; /* whose weights it has; NULL: it is zero */
	enum om_hf_form form;
	uint64_t block;         /* elements that belong together */
	uint64_t rows, columns; /* of a block */
	uint32_t shard;
};
/* The model's own configuration; where it has none, the end. */
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

/* ---- upcycle.c: which weights of another model become which of this one ---------------------- */

/* A model's weights, by our names. */
struct om_giver {
	void *of;
	const char *path;
	/* The shape of one; false: it has none of that name. */
	bool (*shape)(void *of, const char *name, uint64_t dim[2]);
	/* What will be read: it is all there, and nothing else. Gives the most elements at once. */
	size_t (*take)(void *of, const struct om_entry *e, uint32_t n);
	/* How many elements of one of these to read at a time; and that, from the first on. */
	size_t (*some)(void *of, uint32_t i, uint64_t left);
	void (*read)(void *of, uint32_t i, uint64_t at, double *x, size_t n);
	void (*close)(void *of);
	double experts_per_token; /* of its layers with experts, 0: not known */
};
void om_hf_giver(struct om_giver *s, const struct om_model *m, const char *dir, bool upcycle);

/* How a weight comes about. */
struct om_origin {
	uint32_t from;   /* of the source's entries; OM_FRESH, OM_NOTHING: of none */
	uint64_t repeat; /* each row of it so many times */
	/* of so many parts that are alike the i-th: of its rows, or of its columns; 1: all of it */
	uint64_t parts, part;
	bool columns;
	double factor, noise;
};
enum { OM_FRESH = UINT32_MAX, OM_NOTHING = UINT32_MAX - 1 };
/*
 * An origin of each of the n entries, the model's weights, and the source's entries that they name;
 * up: NULL, each is of its own name.
 */
struct om_origin *
om_origins(const struct om_model *m, const struct om_giver *s, const struct om_upcycle *up,
    const struct om_entry *e, uint32_t n, struct om_entry **from, uint32_t *nfrom);

#endif
