/*
 * The language: from the text of a description to complete trainers.
 *
 * load runs the Lua file in a sandbox (no files, no clock, bounded work and memory) and gives a
 * struct spec, whose values keep their line and column. It must never derive a value, fill in a
 * default or depend on the order of a table. check completes one trainer, driven by field.def, and
 * reports up to DIAG_MAX errors in one go. It must never stop at the first error or repair a value.
 * Beside them are --explain, and --from-hf, which prints a description of a Hugging Face model.
 */
#ifndef OLMOGEN_LANG_H
#define OLMOGEN_LANG_H

#include "base/base.h"

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
struct object_row {
	const char *name, *doc;
};
extern const struct object_row objects[N_OBJECTS];

struct object;
struct line;
struct value {
	enum field_id f;
	bool set;       /* given in the file, or filled in by check */
	bool given;     /* given in the file */
	bool refused;   /* given in the file, but not set: check found it in error */
	bool idle;      /* given in the file, but check took it back: it means nothing here */
	struct pos pos; /* of the field's name; of the constructor when not given */
	const struct line *line; /* of resolved.lua, set by spec_print */
	int64_t i;               /* INT, BOOL */
	double num;              /* NUM */
	const char *str;         /* STR, ENUM; a word in place of a NUM */
	struct object **list;    /* OBJ (one), LIST, LAYERS (n_layers after load) */
	uint32_t n;
	double *nums; /* INTS, PAIR */
	uint32_t nnums;
};
struct object {
	enum object_type type;
	struct pos pos;  /* of the constructor's name */
	struct value *v; /* one a field, in their order */
	uint32_t n;
};
/* A line of resolved.lua. */
struct line {
	uint32_t number;
	const struct value *v;     /* the first on it */
	const struct object *of;   /* whose field that is */
	const struct line *around; /* of the field that has this object; NULL: the trainer */
	const char *origin; /* where the description has it, or what is around: "tiny.lua:14" */
};

/*
 * A field of an object, or of one inside it of which there is one alone: a trainer has all but its
 * layers' (F_batch_micro, F_lm_head_tied). It may be unset.
 */
struct value *spec_value(const struct object *o, enum field_id f);
int64_t spec_int(const struct object *o, enum field_id f);
double spec_num(const struct object *o, enum field_id f);
const char *spec_str(const struct object *o, enum field_id f);
struct object *spec_obj(const struct object *o, enum field_id f);
/* The same values; positions are ignored. */
bool spec_equal(const struct object *a, const struct object *b);
bool spec_again(const struct value *v, uint32_t i); /* an entry before i is the same object */
struct object *spec_new(enum object_type type, struct pos pos);
/*
 * A trainer's own copy of an object as the file gives it: check fills in what depends on the rest
 * of the trainer. Objects that are shared stay shared.
 */
struct object *spec_copy(const struct object *from);
bool spec_choice(const char *choices, const char *text); /* one of "a|b|c" */
const char *spec_closest_choice(enum field_id f, const char *text);
const char *spec_name(enum field_id f); /* "moe.top_k" */
/* Choices "a|b|c" in words: "a, b or c", each between before and after. */
char *spec_choices(const char *choices, const char *before, const char *after);

/*
 * Prints a trainer as Lua that loads to an equal one and prints to the same bytes (a complete one
 * is resolved.lua), and sets the line of every value. What isn't set is left out.
 */
void spec_print(struct object *trainer, bool complete, struct buf *out);
/*
 * Where a size x comes from that a line is behind: of the object there and those around it the
 * first whole number that the file gives as x (spec_is), or else what stands on the line.
 */
const struct value *spec_size(const struct line *line, uint64_t x);
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

/* ---- check.c, target.c, explain.c, from_hf.c: every rule; completes the spec ----------------- */

/* What a trainer is linked with, or opens, beside libc's family. */
struct library {
	const char *name, *file, *licence;
};
/* How the kernels of several targets are written and built, and what their trainers consist of. */
struct target_kind {
	const char *name;    /* of folders in kernels/ and runtime/, and of templates/NAME.mk */
	const char *source;  /* what files of instances end with, "c" */
	bool one_number;     /* kernels know one type of number, of config.h; else each format's */
	bool nvrtc;          /* compiles them, into cubins that the trainer carries */
	const char *archs;   /* that they are written for, "90a|100a"; NULL: any */
	uint64_t most, many; /* numbers of a tensor they count to; of an activation; 0: any */
	const char *comm;    /* the folder of runtime/ by which several ranks join */
	const char *comm_start; /* starts ranks on several hosts, before the trainer's command */
	const char *comm_make;  /* the file of templates/ for them; NULL: the kind's own */
	bool comm_apart;        /* what they do together has a stream of its own */
	bool reach;             /* those that share experts reach one another's memory */
	const struct library *library, *comm_library; /* NULL: none */
	uint64_t least_bytes;                         /* that kernels' numbers have */
	const char *rounds; /* of formats shorter than that, the one that kernels round to */
	const char *weights, *grads, *optimizer; /* the default formats */
	const char *choices;  /* the formats of weights that there are kernels for, "a|b" */
	const char *measured; /* the target that rate.def has rates of; NULL: it has none */
	int64_t prompt;       /* generation.prompt for a sequence, unless it is shorter */
};
struct target_row {
	const char *name;
	const struct target_kind *kind;
	const char *arch; /* as the compiler of its kernels calls it, "": any */
	const char *card; /* whose memory and peak these are, "an H100 SXM (80 GB)" */
	double memory_gib, tflops, memory_gbs;
	uint32_t host;                /* ranks of one that are linked; 0: any */
	double link_gbs, network_gbs; /* of a rank: between those, and between hosts; 0: unknown */
	uint32_t streams;             /* most that launches of a step are spread over */
};
/* The row of a table that ends with one without a name; NULL if there is none. */
const struct target_row *target_find(const struct target_row *table, const char *name);
void spec_targets(const struct target_row *table); /* makes them trainer.target's choices */
/* What a tensor's numbers are: a row of runtime/format.def. */
struct format {
	const char *name, *scale, *wider;
	const char *c; /* the type of a number in kernels */
	uint32_t bits, block, rows;
};
const struct format *format_find(const char *name); /* internal error: there is none */
/* Of n numbers in a row, with their scales. */
uint64_t format_bytes(const struct format *f, uint64_t n);
/* What a format's numbers lie in on the target: itself, or a wider one. */
const struct format *target_format(const struct target_row *t, const struct format *f);
uint64_t target_bytes(const struct target_row *t, const struct format *f, uint64_t n);

/*
 * Fills in defaults and derived values and checks every rule but those about sizes of the whole.
 * The table has the targets there are; target != NULL overrides the file's.
 */
void check(struct object *trainer, const struct target_row *table, const char *target);
/* ---- ask.c: what would do in place of an error; asked here, tried by who knows all stages ---- */

/* A field gets another value, as Lua text; NULL: it is left out. */
struct change {
	enum field_id f;
	struct pos
	    at; /* of the value; it is changed in all that is made there; file 0: everywhere */
	const char *lua;
};
/* One way out of an error, words without changes are advice that nobody tries. */
struct way {
	const char *words; /* NULL: "use NAME = VALUE", and values of one field stand together */
	struct change change[2];
	uint32_t n, most; /* values of the field to be named */
};
struct checked {
	const struct object *trainer;
	const char *target; /* in place of the trainer's, NULL: its own */
};
struct question {
	int error; /* whose help the answer is: diag_last */
	struct checked of;
	ARRAY(struct way) way; /* those of one field in a row, the likeliest first */
	uint64_t need;         /* bytes, more than the device has: what would need less? 0: no */
};
void ask_about(const struct object *trainer, const char *target); /* the questions that follow */
const struct checked *ask_checked(uint32_t i); /* those that were checked; NULL after the last */
/* Begins a question about the last error; NULL if that was a repetition, or a trial's. */
struct question *ask(void);
/* NULL has them go nowhere. */
void ask_value(struct question *q, const struct value *v, uint32_t most, const char *lua);
void ask_choices(struct question *q, const struct value *v, const char *choices);
/* Advice, "use a pipeline"; with a value a change that can be tried. */
void ask_words(struct question *q, const char *words, const struct value *v, const char *lua);
/* A field is left out, or two together. */
void ask_without(struct question *q, const struct value *v, const struct value *too);
/* The first question that was not taken yet, NULL: there is none. */
const struct question *ask_take(void);
/* Changes a copy of a description as an edit of its text would; false if it is not there. */
bool spec_change(struct object *trainer, const struct change *c);
bool spec_whole(const struct object *o); /* all that the file gives has a value */
struct schedule_row {                    /* a choice of parallel.schedule */
	const char *name;
	int64_t lo, hi; /* chunks of layers that a rank can have; lo by default */
};
const struct schedule_row *schedule_find(const char *name);

/*
 * --explain: an object ("moe"), a field of one ("moe.top_k"), all fields of a name ("top_k"), or
 * everything (NULL). False, said why, if nothing has that name.
 */
bool explain(const char *what);

enum { NAME_LENGTH_MAX = 80 }; /* bytes of trainer.name */
/*
 * from_hf.c: prints a description of the model of DIR/config.json, for a target (NULL: none is
 * named) and the sizes that -D gives. False, said why, if it cannot.
 */
bool
from_hf(const char *dir, const struct target_row *target, const struct define *defs, uint32_t n);

/* ---- private to this folder ------------------------------------------------------------------ */

extern const char spec_name_letters[];            /* of trainer.name */
const char *spec_type(enum field_id f);           /* "an integer" */
const char *spec_range(enum field_id f);          /* "an integer in 1 .. 8" */
const char *spec_assigned(const struct value *v); /* "moe.top_k = 8" */
/* Of two INT: "parallel.pipeline * parallel.chunks = 2 * 3 = 6" */
const char *spec_product(const struct value *a, const struct value *b);
/* Gives a field of the object a value that a Lua text says, in a form that field.def has. */
void spec_set(const struct object *o, struct value *v, const char *lua);
void spec_refuse(struct value *v); /* it is in error: rules pass over it */
/* Notes where a value stands that the last error speaks of, or its default. */
void spec_note(const struct value *v);

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

/* ---- sandbox.c: Lua without files, clocks and unbounded work --------------------------------- */

struct lua_State;
struct lua_State *sandbox_open(uint32_t file, struct define *defs, uint32_t ndefs);
int sandbox_run(struct lua_State *L);          /* number of results, -1 after an error */
struct pos sandbox_where(struct lua_State *L); /* of the call being executed */
/* A value in words: 'string "64"'. */
const char *sandbox_describe(struct lua_State *L, int index);
void sandbox_unused(const struct define *d); /* an error: the file doesn't read it */

/* ---- rules.c, idle.c, eight.c: parts of check ------------------------------------------------ */

void check_rules(const struct object *trainer); /* the rules between whole numbers */
void check_idle(const struct object *o);        /* those of fields that would mean nothing */
void check_eight(const struct object *trainer); /* those of products in 8 bits */

#endif
