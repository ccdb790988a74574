/*
 * What a Hugging Face config.json says of its model, as transformers 5.24 reads it, and how its
 * weights are stored. olmogen describes a model by it (--from-hf) and checks by it what it exports;
 * a trainer compares what it imports with the config.json of its own model.
 */
#ifndef OM_HF_CONFIG_H
#define OM_HF_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "json.h"

enum { OM_HF_LAYERS = 1024, OM_HF_FAMILIES = 14, OM_HF_ROPES = 8 };

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
	double lo, hi;
};
extern const struct om_hf_row om_hf_keys[OM_HF_KEYS];

/* One of transformers' architectures. Of what is EITHER, the configuration or the layer says it. */
enum om_hf_has { OM_HF_NO, OM_HF_YES, OM_HF_EITHER };
enum om_hf_windows {
	OM_HF_NEVER,
	OM_HF_ALL,   /* every layer slides, or none */
	OM_HF_TYPES, /* layer_types says it by layer */
};
/* Where layer_types is missing: those from max_window_layers on slide, */
enum om_hf_slides {
	OM_HF_FROM,
	OM_HF_THREE, /* three of four, */
	OM_HF_EVEN,  /* or every second one below max_window_layers */
};
enum om_hf_moe { /* which layers have experts */
	OM_HF_DENSE,
	OM_HF_EVERY,
	OM_HF_STEP,   /* every decoder_sparse_step-th that is not in mlp_only_layers */
	OM_HF_AFTER,  /* those from first_k_dense_replace on */
	OM_HF_LISTED, /* mlp_layer_types says it by layer; where it is missing, all but the first */
	OM_HF_RANGE,  /* moe_layer_start_index, moe_layer_end_index, moe_layer_interval */
};
/*
 * Defaults that are no numbers; every range but one begins at 0 or above. 0: the family has no such
 * key.
 */
enum {
	OM_HF_UNSET = -1, /* null: there is no such thing */
	OM_HF_HEADS = -2, /* num_attention_heads */
	OM_HF_WIDTH = -3, /* hidden_size / num_attention_heads */
	OM_HF_ZERO = -4,
};
struct om_hf_family {
	const char *architecture, *model_type;
	const char *placement, *qk_norm; /* as our fields have them; with use_qk_norm, or none */
	enum om_hf_moe moe;
	enum om_hf_has normalize, bias;
	enum om_hf_windows windows;
	enum om_hf_slides slides;
	bool rope_by_type; /* full and sliding layers have rotary embeddings of their own */
	bool square;       /* heads make up the width exactly */
	bool heads_divide; /* the width is a multiple of the heads, whatever head_dim is */
	bool sigmoid;      /* scores of experts; else softmax */
	bool choice_bias;  /* its routers have one */
	bool open_output;  /* attention_bias is not of the output's projection */
	bool gated;        /* its shared expert has a gate, which has to be zero: a factor of 1/2 */
	bool more_layers;  /* its files may have layers behind the model's, for other predictions */
	double theta;      /* the default */
	double missing[OM_HF_KEYS]; /* what keys are where they are missing */
};
extern const struct om_hf_family om_hf_families[OM_HF_FAMILIES];
const struct om_hf_family *om_hf_family(const char *model_type); /* NULL: not known */
/* NAN: it has no such key. */
double om_hf_missing(const struct om_hf_family *f, enum om_hf_key k);
const char *om_hf_key_name(const struct om_hf_family *f, enum om_hf_key k);
/* A second name that means the same; NULL: it has none. */
const char *om_hf_other_name(const struct om_hf_family *f, enum om_hf_key k);

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
 * of one without dense layers; moe_intermediate_size is the experts' in every family, and
 * shared_expert_intermediate_size that of all shared experts together.
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
	const char *qk_norm, *bias, *score;  /* as our fields have them; score: NULL, no experts */
};

/*
 * Reads one. False: every reason is a line in errors, with key, value and rule. What transformers
 * passes over although it could mean something is a line in warnings.
 */
bool om_hf_read(struct om_hf_model *m, const json_t *config, FILE *errors, FILE *warnings);
/* Whether the family's keys, whose values are v, give a layer experts; LISTED: by default. */
bool om_hf_has_experts(const struct om_hf_family *f, const double *v, uint32_t layer);
/* The first fact in which two models differ, false: none. Values are texts for people. */
struct om_hf_difference {
	char what[80], a[40], b[40];
};
bool
om_hf_differ(const struct om_hf_model *a, const struct om_hf_model *b, struct om_hf_difference *d);
/* A number as it is written in a config.json: the shortest that reads back. */
void om_hf_number(char text[32], enum om_hf_type type, double x);

/* How a family stores a tensor that the model has. */
enum om_hf_form {
	OM_HF_SAME,
	OM_HF_PAIRS,  /* rows of a head: ours i and i + head_dim / 2 are neighbours */
	OM_HF_DOUBLE, /* numbers are twice ours */
	OM_HF_ROW,    /* a vector as a matrix of one row */
};
/* Its name there, NULL: the family has none; free() it. name is ours, with its layer's number. */
char *om_hf_name(const struct om_hf_family *f, const char *name, enum om_hf_form *form);
/*
 * The i-th tensor of a layer with experts that is zero in the family, and in ours is none, by our
 * name behind "model.layers.N."; false: there are no more. biased: our routers have their biases.
 */
struct om_hf_zero {
	const char *name;
	uint64_t dim[2];
	int ndims;
	bool wide; /* fp32 whatever the weights are */
};
bool om_hf_zero(const struct om_hf_model *m, bool biased, unsigned i, struct om_hf_zero *z);

#endif
