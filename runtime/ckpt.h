/* What the files of checkpoints offer one another alone. */
#ifndef OM_CKPT_H
#define OM_CKPT_H

#include "json.h"
#include "om_rt.h"

/* ---- ckpt_copy.c: a rank's part of a checkpoint on its way out of the arena ------------------ */

uint64_t om_flow_bytes(const struct om_entry *e); /* of one entry, and what aligns the next */
extern uint64_t om_slots_most;                    /* for tests: there are no more */
/* Gets slots for so many bytes: all of them, as far as there is memory, or a few. */
void om_slots_grow(struct om_slots *s, uint64_t bytes, bool all);
void om_slots_free(struct om_slots *s);
/* The bytes of entries in the arena, which one thread takes in their order. */
struct om_flow {
	struct om_slots *slots;
	const unsigned char *arena;
	const struct om_entry *e;
	uint32_t n, first;         /* first: the entry with which the next slot begins */
	uint64_t *place;           /* [n + 1]: where each entry's bytes begin among all */
	const unsigned char *kept; /* on the device, a copy of all; NULL: the arena is read */
	uint64_t asked, there;     /* slots that were asked for, and that are known to be there */
	pthread_mutex_t lock;
	pthread_cond_t change;
	bool copied; /* the arena is not read any more */
};
void om_flow_open(struct om_flow *f, struct om_slots *slots, const unsigned char *arena,
    const struct om_entry *e, uint32_t n);
/* Copies them all to memory of the device, so that the arena may change. */
void om_flow_keep(struct om_flow *f, unsigned char *to);
/* Bytes of entry i from `byte` on, at most *n; *n: how many there are in one piece. */
unsigned char *om_flow_take(struct om_flow *f, uint32_t i, uint64_t byte, size_t *n);
void om_flow_end(struct om_flow *f);  /* takes no more */
void om_flow_wait(struct om_flow *f); /* another thread: until all is copied, or that */
void om_flow_close(struct om_flow *f);

/* ---- ckpt.c: the directory ------------------------------------------------------------------- */

/* "free some space, or keep fewer by checkpoint.keep", and what there is to remove; free() it. */
char *om_ckpt_make_room(const struct om_ckpt *k);

/* ---- ckpt.c: how many are weights, with moments, and with averages; of all ranks ------------- */

const uint32_t *om_ckpt_kinds(const struct om_entry *e, uint32_t n, uint32_t all[3]);
void om_ckpt_count(const struct om_model *m, const struct om_entry *e, uint32_t n, uint32_t all[3]);

/* ---- ckpt_index.c: what is where in a checkpoint --------------------------------------------- */

struct om_index {
	const struct om_ckpt *k;
	char *path, *remedy; /* what to do where it is damaged */
	json_t *doc;
	struct om_index_row {     /* its tensors and slices of them, by tensor and place */
		const char *name; /* in its shard */
		char *tensor;
		uint64_t begin, end;
		const json_t *map;
	} * row;
	uint32_t n;
	bool averages; /* it has averages, and so has the trainer */
	bool fresh;    /* its moments are of another optimizer: ours begin at zero */
};
_Noreturn OM_PRINTF(3, 4) void om_index_bad(
    const struct om_index *l, const char *file, const char *fmt, ...);
/* The whole of index.json, after its own checksum; and taken apart. */
char *om_index_read(struct om_index *l, size_t *n);
void om_index_parse(struct om_index *l, const char *s, size_t n);
/*
 * It is of this model and has these tensors, all of them; or the process ends. all: how many
 * weights all ranks have, with moments, and with averages. Moments may be another optimizer's; what
 * then says which.
 */
void om_index_check(struct om_index *l, const struct om_entry *e, uint32_t n, const uint32_t all[3],
    char *what, size_t size);
/* Whether a tensor is loaded: of moments not where they are another optimizer's. */
bool om_index_goes_on(const struct om_index *l, const char *name);
/* The same of the weights that are wanted: there and here, and alike. */
void om_index_check_some(struct om_index *l, const struct om_entry *e, uint32_t n,
    bool (*wanted)(const void *arg, const char *name), const void *arg);
/* "batch.global is 1 there, 2 here; ...": how the checkpoint's model differs; "": not known. */
void om_index_facts(const struct om_index *l, char *what, size_t size);
/* Or of one that differs from it in its experts alone. */
void om_index_related(struct om_index *l);
/* Says how the index's tensor differs from ours; false: it doesn't. */
bool om_index_differs(struct om_index *l, const struct om_entry *e, char *what, size_t size);
void om_index_shape(const struct om_index_row *row, struct om_st_tensor *t);
void om_index_free(struct om_index *l);
const char *om_index_text(struct om_index *l, const json_t *map, const char *key);
uint64_t om_index_whole(struct om_index *l, const json_t *map, const char *key);
/* The first row of a tensor, and the one after it; NULL: there is none. */
const struct om_index_row *om_index_find(const struct om_index *l, const char *tensor);
const struct om_index_row *om_index_next(const struct om_index *l, const struct om_index_row *row);
/* The tensor of a row in its shard, as the index says it is. */
const struct om_st_tensor *om_index_tensor(struct om_index *l, const struct om_index_row *row,
    const struct om_entry *e, const struct om_st *st);
/* What was read of a row, all of it, has its checksum. */
void om_index_sum(struct om_index *l, const struct om_index_row *row, uint32_t crc);
size_t om_index_size(const char *dtype); /* bytes of a number */

#endif
