/*
 * Kernels and places: from a shard to launches, offsets and bytes.
 *
 * fuse rewrites the graph by fuse.def for the target; plan takes the shard and gives an array of
 * struct plan, one a pipeline stage: a kernel instance for each op (kernel.def), streams and
 * events, the offset of every buffer in the rank's arena, costs (target.def, rate.def). plancheck
 * proves each. plan_buildable says what can be planned but not built.
 *
 * Must never print C or look at the host.
 */
#ifndef OLMOGEN_PLAN_H
#define OLMOGEN_PLAN_H

#include "shard/shard.h"

/* ---- tables.c: the machines and the kernels that there are ----------------------------------- */

extern const struct target_row targets[];     /* the last has no name */
extern const struct library plan_libraries[]; /* neither has theirs; the first is none */

/* ---- the other files of this folder: kernels, offsets, events, costs ------------------------- */

struct fusion { /* a row of fuse.def, which says what the texts mean */
	const char *match, *into;
};
/*
 * Rewrites the graph by the rows of fuse.def for the target, if the trainer wants it; or by any,
 * where a target, if one is given, has a kernel for what comes of it.
 */
void fuse(struct shard *s);
void fuse_graph(struct graph *g, const struct target_row *t, const struct fusion *rows, uint32_t n);

struct kernel_row {
	enum op_id op;
	const char *target, *file, *macro, *params, *workspace;
	const char *where; /* condition, "": always */
	const struct library *library;
};
struct instance { /* a kernel at one shape: one line of inst/ */
	const struct kernel_row *kernel;
	const char *name; /* "linear_512x384x128" */
	uint64_t param[8];
	uint8_t nparams;
	const struct format *format[MAX_ARGS]; /* in which its arguments lie; NULL: there is none */
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
	R_COPY,
	R_SAVED,
	R_SCRATCH,
	R_COMM,
	N_REGIONS
};
extern const char *const plan_region_names[N_REGIONS];

enum place_kind {
	PLACE,  /* region + off + layer * stride; saved tensors repeat by their life's rooms */
	STREAM, /* entry layer (x) or layer + 1 (y) of the residual stream, saved */
	/*
	 * the stream's gradient: one buffer that every layer rewrites, or where a later phase reads
	 * it entry layer (dx) or layer + 1 (dy), saved
	 */
	DSTREAM,
};
struct place {
	enum place_kind kind;
	enum region region;
	uint64_t off;    /* bytes from the arena's start */
	uint64_t bytes;  /* of one layer */
	uint64_t stride; /* between layers */
	bool next;       /* STREAM, DSTREAM: layer + 1 */
	uint8_t life;    /* of what is saved */
};

struct launch {
	struct op op;
	uint32_t inst; /* index of plan.inst, 0: none (planning only) */
	/*
	 * Of a microbatch's launches that write its gradient this is the first: in a step's first
	 * microbatch the instance `stores` takes its place, or if there is none, 0, the gradient is
	 * cleared before.
	 */
	bool first;
	uint32_t stores;
	uint64_t workspace; /* byte offset; bytes 0: none */
	uint64_t workspace_bytes;
	/*
	 * update: elements of the run of buckets that starts at the arguments; or of one that
	 * op.group share, as they are of so many layers
	 */
	uint64_t span, layers;
	uint32_t tensors; /* update: how many */
	uint8_t stream;
	uint32_t event;       /* recorded on the stream behind it; 0: none */
	ARRAY(uint32_t) wait; /* events of other streams, which its own waits for before it */
	bool follows; /* the launch before it, layer by layer: they are of the same bucket */
};
enum { MAX_STREAMS = 4 };
/* The launches of a segment in a phase: a function of step.c. */
struct program {
	struct launch *a;
	uint32_t n, cap;
	/*
	 * Whose function it is, and events: stages share those of the first that has the segment,
	 * but each has the ends of a step for itself.
	 */
	struct program *of;
	bool slot, first, last; /* it depends on the slot, or on the microbatch being the step's */
};

/* A launch among all of a plan: segment by segment, in each phase after phase. */
struct launch_at {
	uint32_t seg, i;
	enum phase phase;
	struct launch *launch;
};
struct extent { /* bytes of the arena */
	uint64_t off, end;
};
ARRAY_TYPE(instances, struct instance); /* 0 unused */
/*
 * The parameters of a layer, or of an end of the model, that the same ranks have and one update
 * steps: contiguous in weights, in gradients, and, the rank's part of them, in each state. The
 * buckets of a kind's layers on the stage follow one another.
 */
struct bucket {
	enum om_group group;
	uint64_t layers;
	uint64_t first, elems;    /* of the regions of weights and gradients; of a layer, padded */
	uint64_t state[N_STATES]; /* first element of this rank's parts in each state's array */
};
struct
    home { /* of a parameter: its bucket, from 1, and the first element there; 0: it is in none */
	uint32_t bucket;
	uint64_t at;
};
struct plan { /* of one stage of the pipeline; there is one a stage */
	struct shard *shard;
	struct graph *graph;
	const struct target_row *target;
	uint32_t stage, n_stages;
	const struct stage *here; /* what the stage has of the model, and does */
	/* of each layer, if it is here: among its kind on this rank, and in its chunk */
	uint32_t *index, *saved_index;
	uint32_t *entry; /* and the entry of the residual stream that it reads */
	ARRAY(struct bucket) bucket;
	struct home *home;                /* by tensor */
	struct place *place;              /* by tensor */
	struct program (*prog)[N_PHASES]; /* by segment */
	struct instances *inst;           /* of all stages */
	uint32_t streams, events;         /* that launches use, of all stages; events from 1 */
	struct launch_at *event;          /* the first launch of any stage that records it */
	uint64_t region_off[N_REGIONS], region_bytes[N_REGIONS];
	struct {
		uint64_t off, stride; /* of R_SAVED: its first room; between them */
	} kept[N_LIVES];
	uint64_t stream_off, stream_stride; /* an entry before each layer of a chunk, and a last */
	uint64_t *hop; /* by chunk: its gradient on its way to the one before; 0: there is none */
	uint64_t dstream_off;
	uint8_t stream_life, dstream_life; /* N_LIVES: one buffer, which is not saved */
	uint64_t cache_more;               /* of decode's, what the arena would not have else */
	uint64_t arena_bytes;
	bool decode; /* decode is part of the trainer: every op of it has one too */
};
/* How many numbers of the tensor belong to n of its parameter, if it is a state of one; else n. */
uint64_t plan_elems(const struct plan *p, tensor_id t, uint64_t n);
/* Of n numbers of the tensor, as they lie in the arena. */
uint64_t plan_bytes(const struct plan *p, tensor_id t, uint64_t n);
/*
 * What a call of a launch is worth, and the bytes of its arguments; of one that stores its
 * gradient, or adds to it.
 */
struct cost {
	double flops, bytes;
};
struct cost plan_cost(const struct plan *p, const struct launch *st, bool stores);
/* How the runtime is called for an op that ranks do together without a kernel; NULL: it is none. */
const char *runtime_call(enum op_id op);
/* The first row of kernel.def for the op whose condition holds; NULL: none. */
const struct kernel_row *
kernel_for(const struct graph *g, const struct target_row *t, const struct op *o);
/* Whether the plan's trainer, of all its stages, is linked with the library or opens it. */
bool plan_uses(const struct plan *p, const struct library *l);
bool kernel_file(const char *kernels, const char *file); /* a row of these kernels names it */
/* An array, one a stage. */
struct plan *plan(struct shard *s);
bool plan_has_pass(const struct plan *p, enum pass_id pass);
/* Which room of a life a slot of the stage has. */
uint32_t plan_room(const struct plan *p, uint32_t life, uint32_t slot);
/* Whether the stage's program of a segment is a function, which others may share. */
bool plan_function(const struct plan *p, uint32_t seg, enum phase phase);
/* Goes on to the next launch; from zeroes to the first. */
bool plan_next(const struct plan *p, struct launch_at *at);
/* The bytes of a launch's argument, in a layer and slot; NULL: of the tensor in one layer. */
struct extent plan_extent(
    const struct plan *p, const struct launch *st, tensor_id t, uint32_t layer, uint32_t slot);
/* Where what an action sends or receives lies, at an end of its chunk; 0: it is a pass. */
uint64_t plan_hop(const struct plan *p, const struct action *a);
/* How many layers of a tensor there are on the stage; 0: none, and nothing of it is placed. */
uint64_t plan_layers(const struct plan *p, tensor_id t);
bool plan_on_stage(const struct plan *p, uint32_t layer);
/*
 * The bucket of a parameter, or of what belongs to one, and its first element there; NULL: the
 * tensor belongs to none.
 */
const struct bucket *plan_bucket(const struct plan *p, tensor_id t, uint64_t *at);
/*
 * Simulates two microbatches, an update, an evaluation and what generates over the buffers;
 * internal error naming the first fault.
 */
void plancheck(const struct plan *p);
/* The same check; NULL, or the fault. For tests that plant faults. */
const char *plancheck_fault(const struct plan *p);
/*
 * A user's error where this version cannot build what it can plan: several ranks, a target without
 * kernels.
 */
void plan_buildable(const struct plan *p);
/* A user's error where the plan does not fit the device: what takes the room. */
void plan_fits(const struct plan *p);
const struct plan *plan_worst(const struct plan *p); /* the stage whose ranks need most */
/*
 * How long a step should take, of the stage that takes longest, by measured rates (rate.def). What
 * is sent takes its time alone on the link.
 */
enum expected_part {
	PRODUCTS,
	ATTENTION,
	ROWS,
	OPTIMIZER,
	COMMUNICATION,
	BUBBLE,
	N_EXPECTED_PARTS
};
struct expected {
	/* kernels like the target's were measured; if not, only plans of one target compare */
	bool known;
	double seconds[N_EXPECTED_PARTS], step;
	double bubble; /* share of the passes' time in which the average stage waits */
	const struct target_row *scaled_from; /* NULL: rates are the target's own */
};
struct expected plan_expected(const struct plan *p);
/* Seconds that what one rank sends takes, alone on the links; 0: they are not known. */
double expected_sent(const struct target_row *t, const struct collective *c);
extern const char *const plan_part_names[N_EXPECTED_PARTS];
/* One call of a launch that adds to its gradient, and the part; 0: unknown, or it is sent. */
double plan_seconds(const struct plan *p, const struct launch *l, enum expected_part *part);
void plan_print(const struct plan *p, struct buf *out);  /* --dump=plan: every buffer, every step */
void plan_report(const struct plan *p, struct buf *out); /* --plan and PLAN.txt, for people */

/* ---- private to this folder ------------------------------------------------------------------ */

/* Of one launch at such rates: what a row of rate.def says. */
double expected_seconds(double flops, double bytes, double tflops, double gbs, double us);
/* Whether there are kernels for the target's architecture. */
bool kernel_written_for(const struct target_row *t);
/* Whether a row's condition holds for an architecture, a format of weights, and sizes. */
bool kernel_holds(const char *where, const char *arch, const char *weights, const struct sizes *z);
uint32_t kernel_rivals(const struct kernel_row *k); /* rows that an op has to choose from */
/* The stream that the target's launches of an op go to. */
uint8_t kernel_stream(enum op_id op, const struct target_row *t);
/* Takes so many bytes of a region; where they begin in it. */
enum { PLAN_ALIGN = 256 };
uint64_t plan_take(struct plan *p, enum region r, uint64_t bytes);
/* How many layers of a kind the chunk with the most has: for so many a microbatch has room. */
uint64_t plan_slot_layers(const struct plan *p, const struct segment *seg);
/* Whether the stage runs the segment. */
bool plan_runs(const struct plan *p, uint32_t seg);
/* activation.c: gives activations and workspaces of the stage's programs their places. */
void plan_activations(struct plan *p);
struct extent plan_workspace(const struct launch *st);
bool extents_meet(struct extent a, struct extent b);
/*
 * stream.c: gives launches of all stages events to record and to wait for, so that none overtakes,
 * on another stream, what it must not.
 */
void plan_events(struct plan *all, uint32_t n);

#endif
