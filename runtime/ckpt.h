/* What reading a checkpoint consists of: its index. */
#ifndef OM_CKPT_H
#define OM_CKPT_H

#include "json.h"
#include "om_rt.h"

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
};
_Noreturn OM_PRINTF(3, 4) void om_index_bad(
    const struct om_index *l, const char *file, const char *fmt, ...);
/* The whole of index.json, after its own checksum; and taken apart. */
char *om_index_read(struct om_index *l, size_t *n);
void om_index_parse(struct om_index *l, const char *s, size_t n);
/* It is of this model and has these tensors, all of them; or the process ends. */
void om_index_check(struct om_index *l, const struct om_entry *e, uint32_t n, uint32_t all);
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
