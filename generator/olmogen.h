/*
 * olmogen's table of contents: every stage of the compiler, in order.
 *
 *   load -> check -> graph -> shard -> plan -> emit -> build
 *
 * Each stage takes one struct and gives one; main.c shows them as straight calls. Memory comes from one
 * arena that lives as long as the process works on one description. Indices, not pointers, link things.
 */
#ifndef OLMOGEN_H
#define OLMOGEN_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define OLMOGEN_VERSION "0.1.0"

#define LEN(a) (sizeof(a) / sizeof((a)[0]))
#define PRINTF(f, a) __attribute__((format(printf, f, a)))

enum { EXIT_USER = 1, EXIT_USAGE = 2, EXIT_INTERNAL = 70 };

/* ---- util.c: memory, text, files ------------------------------------------------------------------ */

/* Zeroed memory from the process arena; never freed, never NULL (the process ends when it is out). */
void *xalloc(size_t size);
char *xstrdup(const char *s);
char *xprintf(const char *fmt, ...) PRINTF(1, 2);

/* Appends one element to a growable array { T *a; uint32_t n, cap } and gives its address. */
#define PUSH(arr) (grow((void **)&(arr).a, &(arr).n, &(arr).cap, sizeof(*(arr).a)), &(arr).a[(arr).n - 1])
void grow(void **a, uint32_t *n, uint32_t *cap, size_t size);

/* Checked arithmetic: overflow ends the process as a user's error about sizes ("model too large"). */
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

/* The whole file, or NULL with errno. Terminated; *n is its length. */
char *file_read(const char *path, size_t *n);

const char *human_bytes(uint64_t n);             /* "1.50 GiB" */
const char *commas(uint64_t n);                  /* "6,919,161,856" */
char *sha256_hex(const void *data, size_t n);    /* FIPS 180-4 */
uint32_t edit_distance(const char *a, const char *b);

/* ---- diag.c: what users read ---------------------------------------------------------------------- */

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
/* A bug in olmogen: "olmogen: internal error: ...", exit 70. */
_Noreturn void internal(const char *fmt, ...) PRINTF(1, 2);

/* ---- spec.c: a description as a tree, typed by field.def ------------------------------------------ */

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
enum field_type { INT, NUM, STR, BOOL, ENUM, OBJ, LIST, PAIR, LAYERS };

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
	bool set;         /* given in the file, or filled in by check */
	bool given;       /* given in the file */
	struct pos pos;   /* of the field's name; of the constructor when not given */
	uint32_t rline;   /* line in resolved.lua, set by spec_print */
	enum field_type type;
	int64_t i;        /* INT, BOOL */
	double num, num2; /* NUM, PAIR */
	const char *str;  /* STR, ENUM */
	struct object **list; /* OBJ (one), LIST, LAYERS (n_layers after load) */
	uint32_t n;
};
struct object {
	enum object_type type;
	struct pos pos;        /* of the constructor's name */
	struct value *v;       /* indexed by field id - first field id of the type */
};

struct value *spec_value(const struct object *o, enum field_id f);
int64_t spec_int(const struct object *o, enum field_id f);
double spec_num(const struct object *o, enum field_id f);
const char *spec_str(const struct object *o, enum field_id f);
struct object *spec_obj(const struct object *o, enum field_id f);
bool spec_equal(const struct object *a, const struct object *b); /* same values; positions ignored */
struct object *spec_new(enum object_type type, struct pos pos);

/* Prints a complete trainer as Lua (resolved.lua) and sets every value's rline. Numbers round-trip. */
void spec_print(struct object *trainer, struct buf *out);

/* ---- load.c, srcpos.c: Lua to spec ---------------------------------------------------------------- */

struct define {
	const char *name, *value;
	bool used;
};
struct spec {
	struct object **trainer;
	uint32_t n;
};
/*
 * Runs one file in the sandbox. Defines become the fields of arg. Errors go to diag; then *out may be
 * incomplete and the caller stops.
 */
void load(const char *path, struct define *defs, uint32_t ndefs, struct spec *out);

/* Where constructor name opens on a line, the k-th (from 0) of them there, and where its field stands. */
struct pos srcpos_call(uint32_t file, uint32_t line, const char *name, uint32_t k);
struct pos srcpos_field(struct pos call, const char *field);

/* ---- check.c: every rule; completes the spec ------------------------------------------------------ */

struct target_row {
	const char *name, *kernels;
	double memory_gib, tflops, share, link_gbs;
	const char *weights, *grads, *optimizer;
};
extern const struct target_row targets[];
extern const uint32_t n_targets;
const struct target_row *target_find(const char *name);

/* Fills in defaults and derived values and checks every rule; target != NULL overrides the file's. */
void check(struct object *trainer, const char *target);
/* --explain: one field or object, or everything. False if the name is unknown (suggestion printed). */
bool explain(const char *what);

/* ---- expr.c: sizes as text, "b*s", "2*t*n*v", over one-letter names ------------------------------- */

struct sizes {
	uint64_t v[26];
	bool bound[26];
};
/* Value of an expression; internal error on a letter that is not bound. */
uint64_t expr_eval(const char *e, size_t n, const struct sizes *z);

/* ---- graph.c, build.c, grad.c, graphverify.c: logical tensors and ops ------------------------------ */

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
	uint8_t nints, nfloats, nin, nout;
	char ints[MAX_INTS];
	char floats[MAX_FLOATS][16];
	struct arg_row arg[MAX_ARGS]; /* inputs, then outputs */
};
const struct op_row *op_row(enum op_id op); /* parsed once from op.def */

enum tensor_class {
	T_PARAM, /* weights */
	T_GRAD,  /* gradient sums, one a parameter */
	T_STATE, /* optimizer state */
	T_CONST, /* tables computed at start */
	T_INPUT, /* tokens, labels, ctl */
	T_STAT,  /* sums over the step that the host reads after it */
	T_ACT,   /* everything between; plan finds out what must be saved */
};
typedef uint32_t tensor_id; /* index into graph.tensor; 0 is none */

struct tensor {
	const char *name;     /* C identifier, unique in the graph */
	enum tensor_class class;
	enum dtype dtype;
	uint8_t ndims;
	uint64_t dim[MAX_DIMS];
	uint32_t seg;         /* segment that owns it; its layers repeat the tensor */
	uint32_t rline;       /* line of resolved.lua behind it */
	/* T_PARAM */
	const char *hf;       /* name pattern: %l layer, %e expert (leading dimension) */
	bool ones;            /* initial value 1 instead of normal */
	uint32_t group;       /* index of graph.group */
	tensor_id grad;
	/* T_GRAD, T_STATE */
	tensor_id param;
};

struct op {
	enum op_id op;
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

/* A piece of program that runs once or for several layers: init, embed, a kind of layer, head, update. */
struct segment {
	const char *name;
	uint32_t nlayers;     /* 0: not a layer kind, exists once */
	uint32_t *layer;      /* global layer indices, rising */
	tensor_id x, y;       /* residual stream in and out */
	tensor_id dx, dy;     /* its gradients: out of, and into, the backward pass */
	struct oplist ops[N_PHASES];
};

struct group { /* parameters with the same update */
	double weight_decay, lr_scale;
	bool no_decay;
};

struct graph {
	struct object *trainer;
	struct { struct tensor *a; uint32_t n, cap; } tensor; /* 0 unused */
	struct { struct segment *a; uint32_t n, cap; } seg;   /* init, embed, kinds, head, update */
	struct { struct group *a; uint32_t n, cap; } group;
	uint32_t init, embed, head, update;
	uint32_t n_layers, *kind_of;   /* layer -> segment */
	uint32_t *index_of;            /* layer -> index within its kind */
	uint64_t B, S, T;              /* sequences, length and tokens of a microbatch */
	uint64_t microbatches;         /* a step and rank */
	uint64_t params_total, params_active;
	uint64_t flops_token;          /* forward + backward, a token */
};

struct graph *graph_build(struct object *trainer); /* forward, then gradients and update */
void grad_segment(struct graph *g, uint32_t seg);  /* writes ops[BACKWARD] by op.def's rules */
void graph_verify(const struct graph *g);          /* internal error on a malformed graph */
void graph_print(const struct graph *g, struct buf *out);
uint64_t tensor_elems(const struct tensor *t);     /* one layer's elements */
uint64_t tensor_layers(const struct graph *g, const struct tensor *t);
tensor_id graph_tensor(struct graph *g, const char *name, enum tensor_class c, enum dtype d, uint32_t seg);
/* Binds an op's letters from its attributes and tensors; checks every dimension. NULL, or the fault. */
const char *op_bind(const struct graph *g, const struct op *o, struct sizes *z);
char *op_text(const struct graph *g, const struct op *o);

#endif
