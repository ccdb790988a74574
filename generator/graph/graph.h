/*
 * The mathematics: from a complete trainer to logical tensors and ops.
 *
 * graph_build takes a trainer that passed check and gives a struct graph: the forward pass, the
 * backward pass by the gradient rules of op.def, the update, and decoding; recomputation is a
 * rewrite of it. graph_verify proves it after each stage that rewrites it.
 *
 * Must never know bytes, ranks' programs or streams.
 */
#ifndef OLMOGEN_GRAPH_H
#define OLMOGEN_GRAPH_H

#include "group.h"
#include "lang/lang.h"

/* ---- expr.c: sizes as text, "b*s", "2*t*n*v", over one-letter names -------------------------- */

struct sizes {
	uint64_t v[26];
	bool bound[26];
};
/* Value of an expression; internal error on a letter that is not bound. */
uint64_t expr_eval(const char *e, size_t n, const struct sizes *z);

/* ---- the other files of this folder ---------------------------------------------------------- */

enum op_id {
#define OP(name, ...) OP_##name,
#include "op.def"
#undef OP
	N_OPS,
};
enum { MAX_ARGS = 18, MAX_INTS = 6, MAX_FLOATS = 6, MAX_DIMS = 4, MAX_PARTS = 3 };
/* What a tensor's numbers are for: each has a format of its own choice. */
enum role {
	ROLE_ACT,
	ROLE_STAT, /* sums and norms, scores and route weights: at least fp32 */
	ROLE_GRAD, /* sums of weights' gradients */
	ROLE_MOMENT,
	ROLE_INT32,
	ROLE_INT64,
	ROLE_FP64,
	ROLE_EIGHT,   /* e4m3, with scales beside it */
	ROLE_SCALE,   /* a power of two in 8 bits */
	ROLE_SCALE32, /* in a float; op.def means it by the one before */
	/* op.def means these by the first, and by ROLE_MOMENT */
	ROLE_WEIGHT,
	ROLE_ROWS, /* of routed tokens, as they are sent to experts and back */
	ROLE_MASTER,
	N_ROLES
};

struct arg_row {
	char name[8];
	bool accumulate, optional;
	enum role role;
	uint8_t ndims;
	struct {
		const char *s;
		uint8_t n;
	} dim[MAX_DIMS];
};
/* What op.def says of some ops in words. */
#define TRAITS         \
	TRAIT(root)    \
	TRAIT(route)   \
	TRAIT(balance) \
	TRAIT(sends)   \
	TRAIT(returns) \
	TRAIT(step) TRAIT(first) TRAIT(last) TRAIT(flat) TRAIT(part) TRAIT(collective)
struct op_row {
	const char *name, *flops, *grad, *apart, *eight;
	uint8_t nints, nfloats, nconsts; /* nconsts: floats that the kernel itself takes */
	uint8_t nin, nout, nargs;        /* nargs: both */
	char ints[MAX_INTS];
	char floats[MAX_FLOATS][16];
	struct arg_row arg[MAX_ARGS]; /* inputs, then outputs */
	uint16_t takes[MAX_ARGS]; /* of an output: inputs whose buffer it may take, a bit each */
#define TRAIT(name) bool name;
	TRAITS
#undef TRAIT
	enum om_group group; /* of a collective; OM_ALONE: its tensor says which */
};
const struct op_row *op_row(enum op_id op); /* parsed once from op.def */

struct word {
	const char *s;
	size_t n;
};
bool word_is(struct word w, const char *s);
/* Splits the next word off a list that ends at one of stop; false at the end. */
bool word_next(const char **s, const char *stop, struct word *w);
/* "dx, +dw = op(dy, x)", or without an op "da = dy"; "... if x". */
struct rule {
	enum op_id op; /* N_OPS: none */
	uint8_t nout, nin;
	struct word out[MAX_ARGS], in[MAX_ARGS], when; /* without "+" */
	bool adds[MAX_ARGS];
};
enum op_id op_find(struct word name);
/* Reads the next of a column's rules, which ";" is between; false at their end. */
bool rule_next(const char **s, struct rule *r);
/* The number of an op's argument; -1: it has none of that name. */
int op_find_arg(const struct op_row *r, struct word name);
/* It has a row for each routed one. */
bool arg_routed(const struct arg_row *a);
/* The collective that is for tensors of a role. */
enum op_id op_collective(enum role role);

enum tensor_class {
	T_NONE,   /* tensor 0: what an op does without */
	T_PARAM,  /* weights */
	T_GRAD,   /* gradient sums, one a parameter */
	T_STATE,  /* optimizer state */
	T_MERGED, /* parameters that lie one after the other, as the argument of one op */
	T_BUFFER, /* kept in checkpoints and changed by the update, but without a gradient */
	T_COPY,   /* of weights in 8 bits: made in a step's first microbatch, for all of them */
	T_CONST,  /* tables computed at start */
	T_INPUT,  /* tokens, labels, ctl, what random routers and moments draw by */
	T_STAT,   /* sums over the step that the host reads after it */
	T_CACHE,  /* keys and values of the tokens so far; from one decode to the next */
	T_ACT,    /* everything between; plan finds out what must be saved */
};
typedef uint32_t tensor_id; /* index into graph.tensor; 0 is none */

enum {
	STATE_MASTER,
	STATE_M,
	STATE_V,
	STATE_AVERAGE,
	N_STATES
}; /* what an update keeps of a parameter */
struct tensor {
	const char *name; /* C identifier, unique in the graph */
	enum tensor_class class;
	enum role role;
	const struct format *format;
	uint8_t ndims;
	uint64_t dim[MAX_DIMS];
	uint32_t seg;            /* segment that owns it; its layers repeat the tensor */
	const struct line *line; /* of the description, behind it */
	/* T_PARAM, T_BUFFER */
	const char *hf; /* name pattern: %l layer, %e expert (leading dimension) */
	enum { INIT_NORMAL, INIT_ONE, INIT_ZERO } init;
	enum om_group copies; /* ranks that hold the same of it */
	/* T_GRAD, T_STAT */
	enum om_group sum; /* ranks whose sums make that of the step */
	/* T_PARAM */
	uint32_t param_group; /* index of graph.param_group */
	uint64_t head;        /* rows of a head, of which the parameter's are; 0: of none */
	/* T_PARAM; T_ACT while its segment is walked backwards: the gradient so far, of parts */
	tensor_id grad;
	uint8_t parts;
	tensor_id state[N_STATES]; /* T_PARAM; 0: it has none such */
	/* T_GRAD, T_STATE */
	tensor_id param;
	tensor_id part[MAX_PARTS]; /* T_MERGED: in their order, 0 after the last */
	tensor_id whole;           /* T_PARAM: the merged tensor that it is a part of */
};

struct op {
	enum op_id op;
	enum om_group group; /* of ranks that do it together */
	tensor_id arg[MAX_ARGS];
	uint64_t ints[MAX_INTS];
	double floats[MAX_FLOATS];
	const struct line *line;
};

/*
 * What a microbatch passes, one after the other. The gradients of parameters are part of BACKWARD,
 * or a phase of their own (split.c) that may come whenever there is time for it. What a phase reads
 * of one before it is kept until then.
 */
enum phase { FORWARD, BACKWARD, WEIGHTS, N_PHASES };
extern const char *const graph_phase_names[N_PHASES];
ARRAY_TYPE(oplist, struct op);

/*
 * A piece of program that runs once or for several layers: init, embed, a kind of layer, head,
 * update, eval, and embed, kinds and head again for decode, embed and kinds for prompts.
 */
struct segment {
	const char *name;
	const struct object *attention, *ffn, *recompute; /* of a kind of layer */
	uint32_t nlayers;                                 /* 0: not a layer kind, exists once */
	bool eight;       /* its products may be of 8 bits: no layer of it is exempt */
	uint32_t *layer;  /* global layer indices, rising */
	tensor_id first;  /* of its tensors; those of the forward pass follow one another */
	tensor_id x, y;   /* residual stream in and out */
	tensor_id dx, dy; /* its gradients: out of, and into, the backward pass */
	struct oplist ops[N_PHASES];
};

struct param_group { /* parameters with the same update */
	double weight_decay, lr_scale;
	const char *name;    /* of those whose rates run.yaml may set; NULL: it may not */
	tensor_id ctl;       /* a step's scalars, with the rate */
	uint64_t rows, cols; /* of the matrices that Muon steps one by one; 0: AdamW does */
};

struct pair {
	uint64_t window, flops; /* forward and backward */
};

struct graph {
	struct object *trainer;
	const struct format *format[N_ROLES];
	ARRAY(struct tensor) tensor; /* 0 unused */
	ARRAY(struct segment) seg;   /* in the order of struct segment's comment */
	ARRAY(struct param_group) param_group;
	uint32_t init, embed, head, update, eval;
	/*
	 * Their embeds, with kinds and decode's head behind them: what generates, the last
	 * segments; prompt is the number of segments where there is none
	 */
	uint32_t decode, prompt;
#define PROMPT_RUN 64                /* rows of a prompt: each so many are of one sequence */
	uint32_t n_layers, *kind_of; /* layer -> segment */
	uint32_t *index_of;          /* layer -> index within its kind */
	uint64_t B, S, T;            /* sequences, length and tokens of a microbatch */
	uint64_t microbatches;       /* a step and rank */
	enum phase last_phase;       /* BACKWARD, or WEIGHTS */
	uint64_t params_total, params_active;
	uint64_t flops_token;                /* forward + backward, a token */
	tensor_id tokens, labels, ctl, loss; /* what the host gives a step, and reads of it */
	tensor_id score;                     /* of each token, of an evaluation */
	tensor_id rate; /* of the weights' average, what the host says of it; 0: there is none */
	tensor_id documents; /* where they begin and end; 0: attention knows none */
	tensor_id lots;      /* the same, of how moments are drawn; 0: they are not */
	/* where it knows them: by window, what a query and a key cost in all layers */
	ARRAY(struct pair) pairs;
};

/* An op among all of a graph: segment by segment, in each phase after phase. */
struct op_at {
	uint32_t seg, i;
	enum phase phase;
	struct op *op;
};

struct graph *graph_build(struct object *trainer); /* forward, then gradients and update */
/* Goes on to the next op; from zeroes, or where only a segment is said, to the first. */
bool graph_next(const struct graph *g, struct op_at *at);
void graph_verify(const struct graph *g); /* internal error on a malformed graph */
/* Moves what only gradients of parameters need from BACKWARD to WEIGHTS, which it was part of. */
void graph_split(struct graph *g);
void graph_print(const struct graph *g, struct buf *out);
uint64_t tensor_elems(const struct tensor *t); /* one layer's elements */
/* What lies where a tensor does: its parts, 0 after the last, or it alone. */
struct part_list {
	tensor_id a[MAX_PARTS + 1];
};
struct part_list tensor_parts(const struct graph *g, tensor_id t);
uint64_t tensor_layers(const struct graph *g, const struct tensor *t);
/* The next one of a class behind t, from 0 on; 0: there is none. */
tensor_id tensor_next(const struct graph *g, enum tensor_class c, tensor_id t);
/* The leading dimension of a parameter counts experts: each is a tensor of the checkpoint. */
bool tensor_by_expert(const struct tensor *t);
tensor_id
graph_tensor(struct graph *g, const char *name, enum tensor_class c, enum role r, uint32_t seg);
/* Another tensor of that shape, for the same segment and lines. */
tensor_id
graph_like(struct graph *g, tensor_id of, enum tensor_class c, enum role r, const char *name);
const char *tensor_short_name(const struct graph *g, tensor_id t); /* without its segment's */
void graph_role(struct graph *g, tensor_id t, enum role r); /* gives the tensor its format, too */
/*
 * Binds an op's letters from its attributes and tensors; checks every dimension. NULL, or the
 * fault.
 */
const char *op_bind(const struct graph *g, const struct op *o, struct sizes *z);
/* The letters of an op that is right; internal error on a fault. */
struct sizes op_sizes(const struct graph *g, const struct op *o);
/* Gives activations and statistics of an op the shapes that follow from those of its inputs. */
void op_shape(struct graph *g, const struct op *o);
bool op_reads(const struct op *o, tensor_id t);
bool op_writes(const struct op *o, tensor_id t);
/* The argument of that name in op.def, which has one; 0: the op does without it. */
tensor_id op_arg(const struct op *o, const char *name);
/* The op of a kind of layer that chooses experts, NULL for a dense one. */
const struct op *graph_route(const struct segment *s);
uint64_t op_flops(const struct graph *g, const struct op *o); /* one call, one layer */
char *op_text(const struct graph *g, const struct op *o);

/* ---- private to this folder ------------------------------------------------------------------ */

/*
 * groups.c: gives each parameter its group; patterns that match nothing, or split one, are errors.
 */
void graph_groups(struct graph *g);
void grad_segment(struct graph *g, uint32_t seg); /* writes ops[BACKWARD] by op.def's rules */
/*
 * Rewrites a kind of layer to recompute routed "rows", "cheap" ops, "experts" or the "block" in its
 * backward pass.
 */
void recompute_segment(struct graph *g, uint32_t seg, const char *what);
/* eight.c: products of a kind of layer become those of numbers in 8 bits, by op.def's rules. */
void eight_segment(struct graph *g, uint32_t seg);

#endif
