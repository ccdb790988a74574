/*
 * The runtime's contract with generated code. src/params.c defines one struct om_model; src/main.c
 * hands it to om_main. Offsets are bytes into one arena that is allocated, zeroed, at start;
 * nothing is allocated in a step.
 */
#ifndef OM_H
#define OM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "om_comm.h"

#define OM_ABI 1

/*
 * Scalars of a step, written by the host before it, at ctl_off (fp64). NORM2 is the device's.
 */
enum om_ctl {
	OM_LR,    /* learning rate */
	OM_BIAS1, /* 1 - beta1^n, n updates with this one */
	OM_BIAS2, /* 1 - beta2^n */
	OM_NORM2, /* sum of squared gradients; host writes 0 */
	/* factor on gradients: host writes the microbatches of a whole step over this one's, 1 or
	   more, which losses and norms are multiplied by too; clipping lowers it */
	OM_COEF,
	OM_LOSS_LIMIT, /* a step of a greater token loss is skipped; host writes it, or infinity */
	OM_NORM_LIMIT, /* the same of the gradient norm */
	OM_SKIPPED,    /* 1: weights and moments were left alone; non-finite steps always are */
	/* of a label in the loss: tokens of the step over those that have one; 1 where all have */
	OM_PER_LABEL,
	OM_N_CTL,
};

#define OM_NO_MASTER 0 /* of a parameter whose weight is all there is */

/* One stored parameter tensor; it stands for layers x experts tensors of the checkpoint. */
struct om_param {
	const char *name;      /* in checkpoints; %l layer, %e expert */
	uint64_t weight, grad; /* byte offsets */
	uint64_t m, v;         /* optimizer moments, byte offsets; v 0: Muon has none */
	uint64_t master;       /* weights in fp32, of which weight is the rounding to bf16 */
	uint64_t average;      /* of weights over steps, where there is one, as a master is kept */
	/*
	 * Moments and masters are kept by the ranks of the parameter's bucket in equal parts: rank
	 * r has elements [r * part, (r + 1) * part) of a layer's bucket, of which this parameter is
	 * those from `at` on. So element i of layer l lies at m + (l * part + i - r * part) *
	 * moment_size, if at + i is in the part; of a master, times real. Of v of a matrix that
	 * Muon steps there is a number a row, where others have one an element.
	 */
	uint32_t bucket;
	uint64_t at;
	uint64_t stride; /* elements from a layer's weight, or gradient, to the next one's */
	uint64_t numel;  /* elements of one checkpoint tensor */
	uint64_t dim[2]; /* its shape */
	int ndims;
	const uint32_t *layer; /* global layer of each repetition, NULL: exists once */
	uint32_t nlayers;      /* repetitions (1 if layer is NULL) */
	enum om_group copies;  /* ranks that hold the same of it */
	uint32_t experts;      /* leading dimension split over names, 0: none; those of this rank */
	enum om_init { OM_NORMAL, OM_ONE, OM_ZERO } init; /* what it starts at */
	int param_group;                                  /* index into om_model.param_group */
};

struct om_param_group {
	double weight_decay, lr_scale;
	uint64_t cols;    /* of the matrices that Muon steps, each by itself; 0: AdamW does */
	const char *name; /* in lr.groups; NULL: its rate is that of all */
	uint64_t ctl;     /* where it has a name: its own scalars of a step, as at ctl_off */
};

/*
 * Parameters of a layer, or of an end of the model, contiguous in weights and gradients: gradients
 * are summed over these ranks, each updates its part, and gathers the others' weights. The buckets
 * of layers of one kind follow one another.
 */
struct om_bucket {
	enum om_group group;
	uint64_t weight, grad; /* byte offsets */
	uint64_t elems;        /* of a layer, padding included; the number of ranks divides it */
	uint32_t nlayers;
};

/*
 * What a rank of a pipeline does in a step, one after the other: a microbatch passes a phase of a
 * chunk; the residual stream, forward, or its gradient, backward, goes to the next one or comes.
 */
enum om_phase { OM_FORWARD, OM_BACKWARD, OM_WEIGHTS, OM_N_PHASES };
enum om_action_kind { OM_PASS, OM_SEND, OM_RECEIVE };
struct om_action {
	uint8_t kind;        /* enum om_action_kind */
	uint8_t phase;       /* enum om_phase */
	uint8_t chunk;       /* of this rank's layers */
	uint16_t slot;       /* storage of the microbatch's activations */
	uint16_t stage;      /* whom it sends to or receives from */
	uint16_t tag;        /* of the edge between two chunks: twice the lower one's place in the
				whole pipeline, and 1 more for gradients */
	uint32_t microbatch; /* of the step */
	uint64_t at;         /* bytes: where what it sends or receives lies */
};
struct om_step { /* of so many microbatches */
	uint64_t microbatches;
	const struct om_action *action;
	uint32_t nactions;
};

/* Layers that are next to each other in the model and on one rank; a rank has one or several. */
struct om_chunk {
	bool embed, head;
	uint32_t slot, slots; /* its own: the first, how many; a slot's number tells the chunk */
	/* a buffer for the gradient on its way to the chunk before, 0: there is none */
	uint64_t hop;
};

/*
 * A kind of MoE layer, for metrics and random routing. Per layer of the kind: load int64[experts],
 * aux fp64[2], and draw int64[3], contiguous; draw is the seed, the layer and the number of the
 * microbatch's first token, and written by the host before it.
 */
struct om_moe {
	uint64_t load, load_stride; /* bytes; tokens routed to each expert, summed over the step */
	/* [0] load-balance loss, [1] z-loss, unweighted, summed over microbatches */
	uint64_t aux, aux_stride;
	/* int64[2]: routes that a rank had no rows for, and all; 0: experts are not shared out */
	uint64_t cut, cut_stride;
	/* int64[2]: numbers that became the largest of 8 bits, and all; 0: nothing counts them */
	uint64_t sat, sat_stride;
	uint64_t draw; /* what a random router draws by; 0: it is none */
	const uint32_t *layer;
	uint32_t nlayers, experts, top_k;
	double load_balance, z_loss;
};

/* Operations of a query and a key in all layers of a window, forward and backward. */
struct om_pairs {
	uint64_t window, flops;
};

/* One kernel instance, or one op on it: what bench and selftest print. */
struct om_op {
	const char *name; /* instance, "linear_512x128x128" */
	double flops;     /* of one call */
	double bytes;     /* read and written by one call, each buffer once */
	/* largest relative error against a naive fp64 version, sampled; NULL: none */
	double (*check)(uint64_t seed);
	double tolerance;
	double seconds; /* summed by om_op_end */
	uint64_t calls;
};
/* Around a kernel's launch while om_profile is set. */
extern bool om_profile;
void om_op_begin(const struct om_op *op);
void om_op_end(struct om_op *op);
/* Around a segment's ops, while it is set; layer -1: of none. */
void om_range_begin(const char *segment, int layer);
void om_range_end(void);
/*
 * Streams of a part of the step, on a device that has them: they begin it together, and it ends
 * when all are done. What is launched from now on goes to that one; a stream records an event
 * behind what it has so far, or waits for an event's last record, for nothing where the part has
 * none yet.
 */
void om_on(int stream);
void om_record(int stream, int event);
void om_wait(int stream, int event);
void om_clear(void *p, uint64_t bytes); /* zeroes a part of the arena, in order with the kernels */
double om_now(void);                    /* monotonic seconds */

/*
 * Which of a step's microbatches a backward pass is of, but for those between: the first one stores
 * gradients, the others add to them; in the last one ranks sum a layer's as soon as it is done.
 */
enum om_of { OM_FIRST = 1, OM_LAST = 2 };

/*
 * Tokens of any of decode.n sequences, each after all those of its sequence before it. Of a
 * prompt's each so many rows are of one sequence, one after the other, and behind these none.
 */
struct om_rows {
	void (*run)(unsigned char *arena, int slot); /* NULL: the trainer has no such program */
	uint64_t n, each;
	uint64_t token_off; /* int32[n] */
	uint64_t at_off;    /* int32[2][n]: position, -1: there is no such row; sequence */
};

struct om_model {
	int abi;
	const char *name, *target, *version; /* version of olmogen */
	const char
	    *fingerprint; /* sha256 of model and global batch: a checkpoint of another is foreign */
	const char *facts; /* what that is of, for messages: "NAME = VALUE" a line; NULL: none */
	const char *weights, *grads; /* formats: "bf16", "fp32" or "fp64" */
	const char *optimizer, *moments;
	const char *experts; /* what their products multiply in 8 bits; NULL: none do */
	const char *muon; /* what Muon keeps: a line for each parameter that it steps; NULL: none */
	const char *manifest; /* manifest.yaml, whole */
	const char *plan;     /* PLAN.txt, whole */
	uint64_t vocab, seq, micro, global, layers, microbatches;
	uint64_t params_total, params_active, flops_token;
	uint64_t memory; /* bytes that the plan takes the device to have, 0: it was not checked */
	double peak; /* floating point operations a second by the device's data sheet, 0: unknown */
	size_t real; /* bytes of om_real, which gradients and masters are: 4 or 8 */
	size_t weight_size; /* of a weight with a master: 2, or a float's 4 that hold a bf16 */
	size_t moment_size; /* of a moment: as om_real, or as weight_size */
	double init_std;
	double beta1, beta2, clip_norm;
	struct om_mesh mesh;        /* of all ranks; microbatches are a rank's own */
	uint32_t stage;             /* of the pipeline that this model is; there is one a stage */
	const struct om_step *step; /* NULL: one stage, microbatch after microbatch */
	uint32_t nsteps;
	const struct om_chunk *chunk;
	uint32_t nchunks;
	uint64_t hop_bytes; /* of what stages send: [micro * seq, d_model] */
	uint64_t arena_bytes;
	uint64_t weight_off, weight_bytes; /* regions of the arena, whole */
	/* between gradients lie zeros from the start on, over which their norm goes too */
	uint64_t grad_off, grad_bytes;
	uint64_t state_off, state_bytes;
	uint64_t stat_off, stat_bytes; /* zeroed by zero() */
	uint64_t token_off, label_off; /* int32[micro * seq]; one microbatch */
	/*
	 * int32[2][micro * seq]: of each token the first and the last one of its document, by their
	 * place in the sequence; 0: attention knows no documents
	 */
	uint64_t document_off;
	const struct om_pairs *pairs; /* where it does; flops_token is of whole sequences */
	uint32_t npairs;
	uint64_t ctl_off; /* fp64[OM_N_CTL] */
	uint64_t
	    lots_off; /* int64[]: what roundings of moments are drawn by (rng.h); 0: none are */
	uint64_t
	    average_off;    /* fp64[1]: by how much averages go towards the weights; 0: none are */
	uint64_t loss_off;  /* fp64[2]: mean token loss, mean squared log-sum-exp, of the step */
	double head_z_loss; /* weight of the second in the objective */
	const char
	    *hf_config; /* config.json of that architecture; NULL: there is none, because of */
	const char *hf_refusal; /* ... this */
	const struct om_param *param;
	uint32_t nparams;
	uint32_t nbuffers; /* after them in param: kept in checkpoints, but with weight alone */
	const struct om_bucket *bucket;
	uint32_t nbuckets;
	const struct om_param_group *param_group;
	uint32_t nparam_groups;
	const struct om_moe *moe;
	uint32_t nmoe;
	struct om_op *op;
	uint32_t nops;
	uint32_t streams, events;           /* of a part; 0: one stream, and none */
	void (*init)(unsigned char *arena); /* constant tables; after allocation, once */
	void (*zero)(unsigned char *arena); /* statistics, at the start of a step */
	/* by phase, in order; NULL: there are no more. of: enum om_of, or'ed */
	void (*pass[OM_N_PHASES])(unsigned char *arena, int slot, int of);
	/* forward pass that only adds to the losses, as if the microbatch were one of a step's */
	void (*eval)(unsigned char *arena, int slot);
	/* real[micro * seq]: each token's loss, which it leaves there, 0 of one without a label */
	uint64_t score_off;                   /* 0: the end of the model is on another rank */
	void (*update)(unsigned char *arena); /* norm, clipping, the optimizer; reads ctl */
	/*
	 * What generates: decode has a row for each sequence, and gives the logits
	 * [decode.n][vocab] of the tokens after them, and int32[decode.n], which are the likeliest:
	 * of equal logits the first, -1 where they are not all finite. Prompt leaves keys and
	 * values alone. Those of the tokens so far lie where forward and backward work.
	 */
	struct om_rows decode, prompt;
	uint64_t logits_off, likeliest_off;
};

/* The trainer's whole life, of one rank; a model a stage. Gives the exit status. */
int om_main(const struct om_model *models, int argc, char **argv);

#endif
