/*
 * olmogen's table of contents: every stage of the compiler, in order.
 *
 *   load -> check -> graph -> shard -> plan -> emit -> build
 *
 * Each stage takes one struct and gives one; main.c shows them as straight calls. Memory comes from
 * one arena that lives as long as the process works on one description. Indices, not pointers, link
 * things.
 */
#ifndef OLMOGEN_H
#define OLMOGEN_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "file.h" /* of runtime/, as json.h: what trainers share with olmogen */
#include "hf_config.h"

#define OLMOGEN_VERSION "0.1.0"

#define LEN(a) (sizeof(a) / sizeof((a)[0]))
#define PRINTF(f, a) __attribute__((format(printf, f, a)))

enum { EXIT_USER = 1, EXIT_USAGE = 2, EXIT_INTERNAL = 70 };

/* ---- util.c: memory, text, files ------------------------------------------------------------- */

/*
 * Zeroed memory from the process arena; never freed, never NULL (the process ends when it is out).
 */
void *xalloc(size_t size);
char *xstrdup(const char *s);
char *xprintf(const char *fmt, ...) PRINTF(1, 2);

/* A growable array. PUSH appends one zeroed element and gives its address. */
#define ARRAY(T)                 \
	struct {                 \
		T *a;            \
		uint32_t n, cap; \
	}
#define PUSH(arr) \
	(grow((void **)&(arr).a, &(arr).n, &(arr).cap, sizeof(*(arr).a)), &(arr).a[(arr).n - 1])
void grow(void **a, uint32_t *n, uint32_t *cap, size_t size);

/*
 * Checked arithmetic: overflow ends the process, as a user's error at the trainer that set_size_pos
 * named.
 */
struct pos;
void set_size_pos(struct pos p);
uint64_t mul64(uint64_t a, uint64_t b);
uint64_t add64(uint64_t a, uint64_t b);
uint64_t align64(uint64_t n, uint64_t to);

/* A growable text. */
struct buf {
	char *s; /* always terminated once anything was added */
	size_t n, cap;
};
void buf_add(struct buf *b, const char *s, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF(2, 3);
void buf_vprintf(struct buf *b, const char *fmt, va_list ap);

/* A regular file of at most 100 MB, terminated; *n: length. NULL: errno, and om_file_why(). */
char *file_read(const char *path, size_t *n);

const char *human_bytes(uint64_t n);          /* "1.50 GiB" */
const char *commas(uint64_t n);               /* "6,919,161,856" */
char *sha256_hex(const void *data, size_t n); /* FIPS 180-4 */
uint32_t edit_distance(const char *a, const char *b);

/* ---- diag.c: what users read ----------------------------------------------------------------- */

struct pos {
	uint32_t file;           /* index of diag_file(); 0 = no file (command line) */
	uint32_t line, col, len; /* from 1; line 0 = position unknown; col 0 = whole line */
};
enum { DIAG_MAX = 20 };

uint32_t diag_file(const char *path, const char *text, size_t n);
const char *diag_file_name(uint32_t file);
const char *diag_file_text(uint32_t file, size_t *n);
/* One error with its source line and caret; note and help belong to the error before them. */
void diag_error(struct pos p, const char *fmt, ...) PRINTF(2, 3);
void diag_note(struct pos p, const char *fmt, ...) PRINTF(2, 3);
void diag_help(const char *fmt, ...) PRINTF(1, 2);
/* Prints what was collected, sorted by position, at most DIAG_MAX; gives the number of errors. */
int diag_flush(void);
int diag_count(void);
void diag_rewind(int count);   /* forgets those after the first so many */
void diag_line(struct buf *b); /* moves what was collected into one line, without notes and help */
/* The name closest to a word if it is close enough to be meant, else NULL. */
const char *diag_closest(const char *word, const char *const *names, uint32_t n);
/* A bug in olmogen: "olmogen: internal error: ...", exit 70. */
_Noreturn void internal(const char *fmt, ...) PRINTF(1, 2);

/* ---- spec.c: a description as a tree, typed by field.def ------------------------------------- */

enum object_type {
	OBJ_none = 0,
#define OBJECT(o, doc) OBJ_##o,
#define FIELD(...)
#include "field.def"
#undef OBJECT
#undef FIELD
	N_OBJECTS,
};
enum field_id { /* F_moe_num_experts, ... in table order */
#define OBJECT(...)
#define FIELD(o, f, ...) F_##o##_##f,
#include "field.def"
#undef OBJECT
#undef FIELD
	N_FIELDS,
};
enum field_type { INT, NUM, STR, BOOL, ENUM, OBJ, LIST, INTS, PAIR, LAYERS };

struct field_row {
	enum object_type object;
	const char *name;
	enum field_type type;
	double lo, hi;
	const char *dflt, *choices, *doc;
};
extern const struct field_row fields[N_FIELDS];
extern const char *const object_names[N_OBJECTS];
extern const char *const object_docs[N_OBJECTS];

struct object;
struct value {
	bool set;       /* given in the file, or filled in by check */
	bool given;     /* given in the file */
	bool idle;      /* given in the file, but check took it back: it means nothing here */
	struct pos pos; /* of the field's name; of the constructor when not given */
	uint32_t rline; /* line in resolved.lua, set by spec_print */
	enum field_type type;
	int64_t i;            /* INT, BOOL */
	double num, num2;     /* NUM, PAIR */
	const char *str;      /* STR, ENUM; a word in place of a NUM */
	struct object **list; /* OBJ (one), LIST, LAYERS (n_layers after load) */
	uint32_t n;
	int64_t *ints; /* INTS */
	uint32_t nints;
};
struct object {
	enum object_type type;
	struct pos pos;  /* of the constructor's name */
	struct value *v; /* indexed by field id - first field id of the type */
};

struct value *spec_value(const struct object *o, enum field_id f);
int64_t spec_int(const struct object *o, enum field_id f);
double spec_num(const struct object *o, enum field_id f);
const char *spec_str(const struct object *o, enum field_id f);
struct object *spec_obj(const struct object *o, enum field_id f);
bool
spec_equal(const struct object *a, const struct object *b); /* same values; positions ignored */
struct object *spec_new(enum object_type type, struct pos pos);
/*
 * A trainer's own copy of an object as the file gives it: check fills in what depends on the rest
 * of the trainer. Objects that are shared stay shared.
 */
struct object *spec_copy(const struct object *from);
bool spec_choice(const char *choices, const char *text); /* one of "a|b|c" */
const char *spec_closest_choice(enum field_id f, const char *text);
const char *spec_name(enum field_id f);  /* "moe.top_k" */
const char *spec_type(enum field_id f);  /* "an integer" */
const char *spec_range(enum field_id f); /* "an integer in 1 .. 8" */
/* Choices "a|b|c" in words: "a, b or c", each between before and after. */
char *spec_choices(const char *choices, const char *before, const char *after);

/*
 * Prints a trainer as Lua (a complete one is resolved.lua) and sets every value's rline. Numbers
 * round-trip.
 */
void spec_print(struct object *trainer, bool complete, struct buf *out);

/* The first field whose value stands on that line of resolved.lua; *f is which. */
const struct value *spec_line(const struct object *trainer, uint32_t rline, enum field_id *f);
/*
 * The same for a size x that comes from there: of that object and those around it the first whole
 * number that the file gives as x (spec_is), or else what stands at the line.
 */
const struct value *
spec_size(const struct object *trainer, uint32_t rline, uint64_t x, enum field_id *f);
bool spec_is(const struct value *v, uint64_t x);

/* A value as Lua on one line, for comparing; of LAYERS all entries. */
const char *spec_text(const struct value *v);
/*
 * Each field that makes a model what it is, "PATH = VALUE" a line; where layers that have it
 * differ, their values in a row: "3 x 8, 1 x 0".
 */
const char *spec_facts(const struct object *model);

/* ---- load.c: Lua to spec --------------------------------------------------------------------- */

struct define {
	const char *name, *value;
	bool used;
};
struct spec {
	uint32_t file; /* index of diag_file(), 0 if it can't be read */
	struct object **trainer;
	uint32_t n;
};
/*
 * Runs one file in the sandbox. Defines become the fields of arg. Errors go to diag. The trainers
 * in *out can be checked even then: a value that was in error is given but not set, and check
 * passes over it.
 */
void load(const char *path, struct define *defs, uint32_t ndefs, struct spec *out);

/* ---- srcpos.c: the file as tokens; Lua gets one token a line, so that its lines are exact */

char *srcpos_split(uint32_t file, size_t *n);          /* the text for Lua */
struct pos srcpos_token(uint32_t file, uint32_t line); /* of the token on a line of it */
struct pos srcpos_call(uint32_t file, uint32_t line);  /* of the name called there */
struct pos srcpos_name(uint32_t file, uint32_t line, const char *name);
struct pos srcpos_return(uint32_t file); /* of the last return */
/* Where a field stands in the table of a call, else the call; *first where it is given twice. */
struct pos srcpos_field(struct pos call, const char *field, struct pos *first);
/* Whether the field that is given there has a number, a string or a truth value, and no more. */
bool srcpos_literal(struct pos field);

/* ---- sandbox.c, sandlib.c: Lua without files, clocks and unbounded work ---------------------- */

struct lua_State;
struct lua_State *sandbox_open(uint32_t file, struct define *defs, uint32_t ndefs);
int sandbox_run(struct lua_State *L);                   /* number of results, -1 after an error */
struct pos sandbox_where(struct lua_State *L);          /* of the call being executed */
char *sandbox_describe(struct lua_State *L, int index); /* a value in words: 'string "64"' */
void sandbox_unused(const struct define *d);            /* an error: the file doesn't read it */
void sandbox_library(struct lua_State *L);              /* into the table of globals */
void sandbox_work(struct lua_State *L, uint64_t work);  /* an error where it is too much */
void sandbox_reader(struct lua_State *L, int (*reader)(struct lua_State *), const char *name);
const char *sandbox_closest(struct lua_State *L, int index, const char *word);

/* ---- check.c, rules.c, idle.c, explain.c: every rule; completes the spec --------------------- */

struct target_row {
	const char *name, *kernels;
	const char *arch; /* as the compiler of its kernels calls it, NULL: kernels are C */
	const char *card; /* whose memory and peak these are, "an H100 SXM (80 GB)" */
	double memory_gib, tflops, share, link_gbs;
	uint64_t least_bytes;                    /* that a number takes, however short its format */
	const char *weights, *grads, *optimizer; /* the default formats */
	const char *choices; /* the formats of weights it has kernels for, "a|b" */
};
extern const struct target_row targets[];
extern const uint32_t n_targets;
const struct target_row *target_find(const char *name);

/*
 * Fills in defaults and derived values and checks every rule; target != NULL overrides the file's.
 */
void check(struct object *trainer, const char *target);
void check_rules(const struct object *trainer); /* the part of it between whole numbers */
void check_idle(const struct object *o);        /* and that of fields that would mean nothing */
/* As if the file did not give the field. */
void check_default(const struct object *o, enum field_id f);
struct schedule_row { /* a choice of parallel.schedule */
	const char *name;
	int64_t lo, hi; /* chunks of layers that a rank can have; lo by default */
};
const struct schedule_row *schedule_find(const char *name);
/*
 * --explain: one field or object, or everything. False if the name is unknown (suggestion printed).
 */
bool explain(const char *what);

/* ---- expr.c: sizes as text, "b*s", "2*t*n*v", over one-letter names -------------------------- */

struct sizes {
	uint64_t v[26];
	bool bound[26];
};
/* Value of an expression; internal error on a letter that is not bound. */
uint64_t expr_eval(const char *e, size_t n, const struct sizes *z);

/* ---- graph.c, model.c, groups.c, grad.c, recompute.c, graphverify.c: tensors and ops --------- */

enum op_id {
#define OP(name, ...) OP_##name,
#include "op.def"
#undef OP
	N_OPS,
};
enum { MAX_ARGS = 12, MAX_INTS = 6, MAX_FLOATS = 6, MAX_DIMS = 4 };
enum dtype { DT_ACT, DT_STAT, DT_GRAD, DT_OPT, DT_I32, DT_I64, DT_F64, N_DTYPES };

struct arg_row {
	char name[8];
	bool accumulate;
	enum dtype dtype;
	uint8_t ndims;
	struct {
		const char *s;
		uint8_t n;
	} dim[MAX_DIMS];
};
struct op_row {
	const char *name, *flops, *inplace, *grad;
	uint8_t nints, nfloats, nconsts, nin,
	    nout; /* nconsts: floats that the kernel itself takes */
	char ints[MAX_INTS];
	char floats[MAX_FLOATS][16];
	struct arg_row arg[MAX_ARGS]; /* inputs, then outputs */
};
const struct op_row *op_row(enum op_id op); /* parsed once from op.def */
enum op_id op_find(const char *name, size_t n);

enum tensor_class {
	T_PARAM,  /* weights */
	T_GRAD,   /* gradient sums, one a parameter */
	T_STATE,  /* optimizer state */
	T_BUFFER, /* kept in checkpoints and changed by the update, but without a gradient */
	T_CONST,  /* tables computed at start */
	T_INPUT,  /* tokens, labels, ctl, what random routers draw by */
	T_STAT,   /* sums over the step that the host reads after it */
	T_CACHE,  /* keys and values of the tokens so far; from one decode to the next */
	T_ACT,    /* everything between; plan finds out what must be saved */
};
typedef uint32_t tensor_id; /* index into graph.tensor; 0 is none */

struct tensor {
	const char *name; /* C identifier, unique in the graph */
	enum tensor_class class;
	enum dtype dtype;
	uint8_t ndims;
	uint64_t dim[MAX_DIMS];
	uint32_t seg;   /* segment that owns it; its layers repeat the tensor */
	uint32_t rline; /* line of resolved.lua behind it */
	/* T_PARAM, T_BUFFER */
	const char *hf; /* name pattern: %l layer, %e expert (leading dimension) */
	enum { INIT_NORMAL, INIT_ONE, INIT_ZERO } init;
	/* T_PARAM */
	bool experts;   /* the leading dimension counts experts */
	uint32_t group; /* index of graph.group */
	/* T_PARAM; T_ACT while its segment is walked backwards: the gradient so far, of parts */
	tensor_id grad;
	uint8_t parts;
	tensor_id state; /* T_PARAM: the first of its states, which follow one another */
	/* T_GRAD, T_STATE */
	tensor_id param;
};

/* Ranks that do something together; runtime/om_comm.h says which they are. */
enum ranks { ALONE, WORLD, DATA, EXPERT, EXPERT_DATA, PIPELINE, N_RANKS };

struct op {
	enum op_id op;
	enum ranks ranks;
	tensor_id arg[MAX_ARGS];
	uint64_t ints[MAX_INTS];
	double floats[MAX_FLOATS];
	uint32_t rline;
};

enum phase { FORWARD, BACKWARD, N_PHASES };
struct oplist {
	struct op *a;
	uint32_t n, cap;
};

/*
 * A piece of program that runs once or for several layers: init, embed, a kind of layer, head,
 * update, eval, and embed, kinds and head again for decode.
 */
struct segment {
	const char *name;
	const struct object *attention, *ffn, *recompute; /* of a kind of layer */
	uint32_t nlayers;                                 /* 0: not a layer kind, exists once */
	uint32_t *layer;                                  /* global layer indices, rising */
	tensor_id first;  /* of its tensors; those of the forward pass follow one another */
	tensor_id x, y;   /* residual stream in and out */
	tensor_id dx, dy; /* its gradients: out of, and into, the backward pass */
	struct oplist ops[N_PHASES];
};

struct group { /* parameters with the same update */
	double weight_decay, lr_scale;
};

struct graph {
	struct object *trainer;
	ARRAY(struct tensor) tensor; /* 0 unused */
	ARRAY(struct segment) seg;   /* in the order of struct segment's comment */
	ARRAY(struct group) group;
	uint32_t init, embed, head, update, eval;
	uint32_t decode;             /* its embed; it, kinds and head are the last segments */
	uint32_t n_layers, *kind_of; /* layer -> segment */
	uint32_t *index_of;          /* layer -> index within its kind */
	uint64_t B, S, T;            /* sequences, length and tokens of a microbatch */
	uint64_t microbatches;       /* a step and rank */
	uint64_t params_total, params_active;
	uint64_t flops_token; /* forward + backward, a token */
};

struct graph *graph_build(struct object *trainer); /* forward, then gradients and update */
/*
 * groups.c: gives each parameter its group; patterns that match nothing, or split one, are errors.
 */
void graph_groups(struct graph *g);
/* Checkpoint name with layer and expert filled in (texts: "3" or "*"). */
const char *param_name(const char *hf, const char *layer, const char *expert);
void grad_segment(struct graph *g, uint32_t seg); /* writes ops[BACKWARD] by op.def's rules */
/*
 * Rewrites a kind of layer to recompute "cheap" ops, "experts" or the "block" in its backward pass.
 */
void recompute_segment(struct graph *g, uint32_t seg, const char *what);
void graph_verify(const struct graph *g); /* internal error on a malformed graph */
void graph_print(const struct graph *g, struct buf *out);
uint64_t tensor_elems(const struct tensor *t); /* one layer's elements */
uint64_t tensor_layers(const struct graph *g, const struct tensor *t);
tensor_id
graph_tensor(struct graph *g, const char *name, enum tensor_class c, enum dtype d, uint32_t seg);
/*
 * Binds an op's letters from its attributes and tensors; checks every dimension. NULL, or the
 * fault.
 */
const char *op_bind(const struct graph *g, const struct op *o, struct sizes *z);
/* The update works on all layers of a parameter at once, as one flat vector. */
bool op_flat(enum op_id op);
/* The argument of that name in op.def; 0 if the op has none. */
tensor_id op_arg(const struct op *o, const char *name);
/* The op of a kind of layer that chooses experts, NULL for a dense one. */
const struct op *graph_route(const struct segment *s);
uint64_t op_flops(const struct graph *g, const struct op *o); /* one call, one layer */
char *op_text(const struct graph *g, const struct op *o);

/* ---- shard.c, expert.c: who owns what -------------------------------------------------------- */

/*
 * world = pipeline * data; expert divides data; expert ranks are innermost. Rank is data, not code.
 */
struct mesh {
	uint64_t data, expert, pipeline; /* degrees */
	uint64_t expert_data;            /* ranks that hold the same experts */
	uint64_t world;
};
enum collective_kind {
	SEND_RECV,
	REDUCE_SCATTER,
	ALL_GATHER,
	ROW_DISPATCH,
	ROW_COMBINE,
	N_COLLECTIVES
};
struct collective {
	enum collective_kind kind;
	uint64_t ranks; /* size of the group */
	uint64_t bytes; /* that one rank sends, a step */
};
/* Layers that are next to each other in the model and on one rank. */
struct chunk {
	uint32_t first, n; /* layers */
	uint32_t place;    /* among the chunks of the whole pipeline */
	bool embed, head;
	uint32_t slot, slots; /* of its microbatches in flight, among the rank's */
};
/* One thing that a rank of the pipeline does; a step is a list of them. */
enum deed { DO_FORWARD, DO_BACKWARD, SEND_X, RECV_X, SEND_DX, RECV_DX };
struct action {
	enum deed deed;
	uint32_t chunk, slot, microbatch;
	uint32_t stage; /* whom it sends to or receives from */
	uint32_t tag;   /* 2 * place of the edge's lower chunk, + 1 for gradients */
};
struct stage { /* what one rank of the pipeline has */
	struct chunk *chunk;
	uint32_t nchunks;
	uint32_t n; /* layers in all */
	bool embed, head;
	uint64_t slots;
	ARRAY(struct action) action; /* of a step */
	ARRAY(struct collective) comm;
};
struct shard {
	struct graph *graph;
	struct mesh mesh;
	struct stage *stage; /* mesh.pipeline of them */
};
/*
 * The graph is rewritten for what several ranks do together: expert.c. shard_mesh alone is the
 * arithmetic of a layout.
 */
struct shard *shard(struct graph *g);
struct shard *shard_mesh(struct graph *g, uint64_t data, uint64_t expert, uint64_t pipeline);
void shard_print(const struct shard *s, struct buf *out);
/* Rows that a rank has for the tokens which others, and it itself, send to its experts. */
uint64_t shard_capacity(const struct shard *s, const struct object *moe);
/* expert.c: rows of routed tokens go to the ranks of their experts. */
void shard_experts(struct shard *s);
/* expert.c: the load-balance loss counts experts over all data ranks where it is to. */
void shard_balance(struct shard *s);
/* expert.c: gradients are summed over ranks, each steps its part of the weights. */
void shard_update(struct shard *s);
/* How many ranks are in a group of that kind. */
uint64_t mesh_ranks(const struct mesh *m, enum ranks r);
/* How many layers of a kind a chunk has, and a stage. */
uint64_t chunk_layers(const struct chunk *c, const struct segment *kind);
uint64_t stage_kind(const struct stage *st, const struct segment *kind);
/* How many layers of a tensor's segment a stage holds (1 for what exists once and is there). */
uint64_t stage_layers(const struct shard *s, uint32_t stage, const struct tensor *t);

/* ---- schedule.c: what each stage does when -------------------------------------------------- */

/* The stage of the chunk at a place of the pipeline. */
uint32_t schedule_stage(const char *kind, uint32_t pipeline, uint32_t place);
/* Fills in slots and actions of all stages. */
void schedule(struct shard *s, const char *kind);
enum { COST_FORWARD = 1, COST_BACKWARD = 2, SCHEDULE_COST = COST_FORWARD + COST_BACKWARD };
/*
 * When each action starts, by stage and action, where passes take those times and messages none;
 * gives the end of the last, 0 if some wait for ever.
 */
uint64_t schedule_run(const struct shard *s, uint64_t **start);

/* ---- rankcheck.c: every rank's program against all others ------------------------------------ */

/*
 * Messages meet, collectives are the same for all their members, nobody waits for ever, slots are
 * free when they are taken, each gradient is reduced once by those who have it; internal error
 * naming the first fault.
 */
void rankcheck(const struct shard *s);
/* The same check; NULL, or the fault. For tests that plant faults. */
const char *ranks_fault(const struct shard *s);

/* ---- fuse.c, plan.c, needs.c, plancheck.c, remedy.c, report.c: kernels, offsets, costs ------- */

/* Rewrites pairs of ops into one where fuse.def has a row for the target. */
void fuse(struct shard *s);

struct kernel_row {
	enum op_id op;
	const char *target, *file, *macro, *params, *workspace;
};
struct instance { /* a kernel at one shape: one line of inst/ */
	const struct kernel_row *kernel;
	const char *name; /* "linear_512x384x128" */
	uint64_t param[8];
	uint8_t nparams;
	double floats[MAX_FLOATS];
	double flops, bytes; /* of one call */
	/* elements of an output that are rounded to its format after the kernel; 0: it is right */
	uint64_t round[MAX_ARGS];
	struct buf used_by; /* the segments that call it, for people */
	uint32_t calls;
};

enum region {
	R_INPUT,
	R_STAT,
	R_CONST,
	R_WEIGHT,
	R_GRAD,
	R_STATE,
	R_BUFFER,
	R_SAVED,
	R_SCRATCH,
	R_COMM,
	N_REGIONS
};
extern const char *const region_names[N_REGIONS];

enum place_kind {
	PLACE,   /* region + off + layer * stride; saved tensors repeat by slot */
	STREAM,  /* entry layer (x) or layer + 1 (y) of the residual stream, saved by slot */
	DSTREAM, /* the stream's gradient: one buffer that every layer rewrites */
};
struct place {
	enum place_kind kind;
	enum region region;
	uint64_t off;    /* bytes from the arena's start */
	uint64_t bytes;  /* of one layer */
	uint64_t stride; /* between layers */
	bool next;       /* STREAM: layer + 1 */
};

struct step {
	struct op op;
	uint32_t inst;      /* index of plan.inst, 0: none (planning only) */
	uint64_t workspace; /* byte offset; bytes 0: none */
	uint64_t workspace_bytes;
	/*
	 * update: elements of the run of tensors that starts at the arguments; op.ranks share them
	 */
	uint64_t span;
	uint32_t tensors; /* update: how many */
	uint8_t stream;
	int32_t wait; /* step of this program, on another stream, that must have ended; -1: none */
};
struct program {
	struct step *a;
	uint32_t n, cap;
};

struct instances {
	struct instance *a; /* 0 unused */
	uint32_t n, cap;
};
/* A run of parameters, contiguous in weights and gradients, that the same ranks have and step. */
struct bucket {
	enum ranks ranks;
	uint32_t group;
	uint64_t first, elems; /* of the regions of weights and gradients; padded */
	uint64_t state;        /* first element of this rank's part in each state's array */
};
struct plan { /* of one stage of the pipeline; there is one a stage */
	struct shard *shard;
	struct graph *graph;
	const struct target_row *target;
	uint32_t stage, n_stages;
	/* of each layer, if it is here: among its kind on this rank, and in its chunk */
	uint32_t *index, *saved_index;
	uint32_t *entry; /* and the entry of the residual stream that it reads */
	ARRAY(struct bucket) bucket;
	struct place *place;              /* by tensor */
	struct program (*prog)[N_PHASES]; /* by segment */
	struct instances *inst;           /* of all stages */
	uint64_t region_off[N_REGIONS], region_bytes[N_REGIONS];
	uint64_t slots, slot_stride;        /* of R_SAVED */
	uint64_t stream_off, stream_stride; /* an entry before each layer of a chunk, and a last */
	uint64_t hop_off; /* chunks' gradients on their way, one after the other */
	uint64_t dstream_off;
	uint64_t cache_bytes, cache_more; /* of decode; those that the arena would not have else */
	uint64_t arena_bytes;
	bool kernels; /* every op of training has a kernel on this target */
	bool decode;  /* decode is part of the trainer: every op of it has one too */
};
uint64_t format_bytes(const struct object *trainer, const char *format); /* "fp32" -> 4 */
const char *dtype_format(const struct plan *p, enum dtype d);            /* "bf16", "int32" */
uint64_t dtype_bytes(const struct plan *p, enum dtype d);                /* that it lies in */
bool written_for(const struct target_row *t); /* needs.c: kernels of the target's architecture */
bool collective_op(enum op_id op); /* done by the runtime, without a kernel of the target's */
const struct kernel_row *kernel_for(enum op_id op, const char *kernels); /* NULL: none */
/* An array, one a stage. */
struct plan *plan(struct shard *s);
/* How many layers of a tensor there are on the stage; 0: none, and nothing of it is placed. */
uint64_t plan_layers(const struct plan *p, tensor_id t);
bool on_stage(const struct plan *p, uint32_t layer);
/*
 * The bucket of a parameter, or of a parameter's gradient, and its first element there; NULL: the
 * tensor belongs to none.
 */
const struct bucket *plan_bucket(const struct plan *p, tensor_id t, uint64_t *at);
/*
 * Simulates two microbatches, an update, an evaluation and two tokens of decode over the buffers;
 * internal error naming the first fault.
 */
void plancheck(const struct plan *p);
/* The same check; NULL, or the fault. For tests that plant faults. */
const char *plan_fault(const struct plan *p);
/*
 * remedy.c: a user's error where the plan does not fit the device: five largest buffers, and what
 * would do. Only what check, and a build where one is to follow, would take is proposed.
 */
void plan_fits(const struct plan *p, bool build);
/*
 * A user's error where this version cannot build what it can plan: several ranks, a target without
 * kernels.
 */
void plan_buildable(const struct plan *p);
void plan_print(const struct plan *p, struct buf *out);  /* --dump=plan: every buffer, every step */
void plan_report(const struct plan *p, struct buf *out); /* --plan and PLAN.txt, for people */

/* ---- emit*.c, hf.c, from_hf.c, tree.c: files ------------------------------------------------ */

struct file {
	const char *path; /* inside the tree */
	struct buf text;
	bool verbatim; /* copied as it is, not written by emit */
};
struct tree {
	struct file *a;
	uint32_t n, cap;
};
/* The whole emitted tree in memory. input is the description's text, copied into model/. */
void emit(const struct plan *p, const char *resolved, uint32_t input, struct tree *out);
/* A new file of the tree. */
struct buf *tree_file(struct tree *t, const char *path);
/*
 * A template with its slots filled: lines that hold only a comment "@slot NAME" become that slot's
 * text.
 */
struct slot {
	const char *name, *text;
};
void template_fill(
    struct tree *t, const char *path, const char *from, const struct slot *slot, uint32_t n);

/*
 * from_hf.c: prints a description of the model of DIR/config.json, for a target (NULL: none is
 * named) and the sizes that -D gives. False, said why, if it cannot.
 */
bool from_hf(const char *dir, const char *target, const struct define *defs, uint32_t n);
/* Text that the parts of emit share. */
void emit_wrapped(struct buf *b, int tabs, const char *text);
const char *emit_shape(const struct plan *p, const struct tensor *t);
const char *emit_double(double x);
/* The first stage that has the tensor at a place of its own; NULL: none. */
const struct plan *placed_somewhere(const struct plan *p, tensor_id t);
const char *emit_ranks(enum ranks r);                                /* "OM_DATA" */
const char *emit_stage_name(const struct plan *p, const char *name); /* "forward_2" */
void emit_prototype(const struct plan *p, const struct instance *in, bool types, struct buf *b);
/*
 * hf.c: the config.json of the model; NULL and the reason if transformers has no such architecture.
 */
const char *hf_config(const struct graph *g, const char **reason);
const struct om_hf_family *hf_family_of(const struct graph *g); /* NULL: none is this model */
const char *hf_name(const struct om_hf_family *m, const char *name);
/* The parts of emit, one a file or two of the tree. */
void emit_banner(
    const struct plan *p, const char *what, const char *open, const char *close, struct buf *b);
void emit_config(const struct plan *p, struct tree *t); /* src/config.h, src/layout.h */
void emit_launch(const struct plan *p, struct tree *t); /* src/launch.h, src/launch.c, inst/ */
/* src/cubins.c: the compiled kernels of every .cu in the tree as the runtime loads them. */
void emit_cubins(const struct plan *p, struct tree *t);
void emit_step(const struct plan *p, struct tree *t);                            /* src/step.c */
void emit_params(const struct plan *p, const char *fingerprint, struct tree *t); /* src/params.c */
void
emit_manifest(const struct plan *p, const char *fingerprint, struct tree *t); /* manifest.yaml */
/*
 * Writes what changed, through temporary names; removes files that the old manifest lists and the
 * tree lacks.
 */
bool tree_write(const struct tree *t, const char *dir, bool verbose);
/* --check: false, and the first differences on stderr, if dir is not exactly this tree. */
bool tree_check(const struct tree *t, const char *dir);

/* ---- nvrtc.c, build.c ------------------------------------------------------------------------ */

/*
 * Compiles each NAME.cu of the tree to NAME.cubin beside it, as many at once as jobs. False, said
 * why: no NVRTC here, an error, or a kernel that spills.
 */
bool nvrtc_build(const struct tree *t, const char *dir, const char *arch, int jobs, bool verbose);

/* Runs the emitted Makefile. False if it failed (its output has been shown). */
bool build(const char *dir, int jobs, bool verbose);
void end_with_parent(void); /* a child's promise, also of what it becomes */

/* ---- embedded by embed.c: templates, kernels, runtime, licence ------------------------------- */
struct embedded {
	const char *path;
	const unsigned char *data;
	size_t n;
};
extern const struct embedded embedded[];
extern const uint32_t n_embedded;
const struct embedded *embedded_find(const char *path);

#endif
