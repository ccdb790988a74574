/*
 * What a Hugging Face config.json says of its model, as transformers 5.17 reads it. olmogen
 * describes a model by it (--from-hf) and checks by it what it exports; a trainer compares what it
 * imports with the config.json of its own model.
 */
#ifndef OM_HF_CONFIG_H
#define OM_HF_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "json.h"

enum { OM_HF_LAYERS = 1024, OM_HF_FAMILIES = 7, OM_HF_ROPES = 8 };

/* Keys of hf_key.def, OM_HF_hidden_size and so on. */
enum om_hf_key {
#define HF_KEY(key, ...) OM_HF_##key,
#include "hf_key.def"
#undef HF_KEY
	OM_HF_KEYS
};
enum om_hf_use { OM_HF_FACT, OM_HF_PART, OM_HF_ASIDE, OM_HF_ONLY };
enum om_hf_type { OM_HF_INT, OM_HF_NUM, OM_HF_BOOL };

struct om_hf_row {
	const char *key;
	enum om_hf_use use;
	enum om_hf_type type;
	double lo, hi, missing[OM_HF_FAMILIES]; /* NAN: the family has no such key */
};
extern const struct om_hf_row om_hf_keys[OM_HF_KEYS];

/* One of transformers' architectures. Of what is EITHER, the configuration or the layer says it. */
enum om_hf_has { OM_HF_NO, OM_HF_YES, OM_HF_EITHER };
enum om_hf_windows {
	OM_HF_NEVER,
	OM_HF_ALL,   /* every layer slides, or none */
	OM_HF_TYPES, /* layer_types says it by layer */
};
struct om_hf_family {
	const char *architecture, *model_type;
	const char *placement, *qk_norm; /* as our fields have them */
	enum om_hf_has moe, normalize, bias;
	enum om_hf_windows windows;
	bool slides;       /* where nothing is said, three layers of four */
	bool rope_by_type; /* full and sliding layers have rotary embeddings of their own */
	bool square;       /* heads make up the width exactly */
	bool heads_divide; /* the width is a multiple of the heads, whatever head_dim is */
	double theta;      /* the default */
};
extern const struct om_hf_family om_hf_families[OM_HF_FAMILIES];
const struct om_hf_family *om_hf_family(const char *model_type); /* NULL: not known */

/* A parameter of rotary embeddings: its key, its name in the language, the types that have it. */
enum om_hf_rope_type { OM_HF_DEFAULT, OM_HF_LINEAR, OM_HF_YARN, OM_HF_LLAMA3, OM_HF_ROPE_TYPES };
struct om_hf_rope_row {
	const char *key, *field;
	unsigned types; /* bits 1 << type */
	enum om_hf_type type;
	double lo, hi, missing; /* NAN: has to be there */
};
extern const struct om_hf_rope_row om_hf_ropes[OM_HF_ROPES]; /* the first is rope_theta */
extern const char *const om_hf_rope_types[OM_HF_ROPE_TYPES];
struct om_hf_rope {
	enum om_hf_rope_type type;
	double v[OM_HF_ROPES];
};

/*
 * A model. Facts that it cannot have are 0: num_experts of one without experts, intermediate_size
 * of one without dense layers; moe_intermediate_size is the experts' in every family.
 */
struct om_hf_model {
	const struct om_hf_family *family;
	double v[OM_HF_KEYS];
	bool given[OM_HF_KEYS];
	uint32_t layers;
	double window[OM_HF_LAYERS]; /* 0: full attention */
	bool moe[OM_HF_LAYERS];
	struct om_hf_rope rope[2];           /* of full attention, of sliding windows */
	const char *hidden_act, *activation; /* transformers' name and ours */
};

/*
 * Reads one. False: every reason is a line in errors, with key, value and rule. What transformers
 * passes over although it could mean something is a line in warnings.
 */
bool om_hf_read(struct om_hf_model *m, const json_t *config, FILE *errors, FILE *warnings);
/* The first fact in which two models differ, false: none. Values are texts for people. */
struct om_hf_difference {
	char what[80], a[40], b[40];
};
bool
om_hf_differ(const struct om_hf_model *a, const struct om_hf_model *b, struct om_hf_difference *d);
/* A number as it is written in a config.json: the shortest that reads back. */
void om_hf_number(char text[32], enum om_hf_type type, double x);

#endif
