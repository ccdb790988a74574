/*
 * Who owns what and does what when: from a graph to the program of every rank.
 *
 * shard takes a graph and the target, gives a struct shard: the mesh, each pipeline stage's layers,
 * slots and actions, the bytes it sends; and rewrites the graph for what several ranks do together.
 * There is one program for all ranks, a rank is data. rankcheck proves the programs of all ranks
 * against each other.
 *
 * Must never change the mathematics.
 */
#ifndef OLMOGEN_SHARD_H
#define OLMOGEN_SHARD_H

#include "graph/graph.h"

/* ---- shard.c, mesh.c: who owns what -------------------------------------------------------- */

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
	uint64_t ranks; /* size of the group, or 2 */
	uint64_t near;  /* those on one host, itself counted */
	uint64_t bytes; /* that one rank sends, a step */
};
/*
 * What a phase writes and a later one is the last to read lives so long. There is room for as many
 * microbatches as are between those two phases at a time. A microbatch in flight has a slot, and by
 * it a room of each life: where phases are two, the slot's own.
 */
enum { N_LIVES = N_PHASES * (N_PHASES - 1) / 2 };
struct life {
	enum phase from, to;
};
extern const struct life lives[N_LIVES];
struct rooms {
	uint32_t first, n; /* among the rank's */
};
/* Layers that are next to each other in the model and on one rank. */
struct chunk {
	uint32_t first, n; /* layers */
	uint32_t place;    /* among the chunks of the whole pipeline */
	bool embed, head;
	uint32_t slot, slots; /* of its microbatches in flight, among the rank's */
	struct rooms rooms[N_LIVES];
};
/*
 * One thing that a rank of the pipeline does: a microbatch passes a phase of the chunk, or what it
 * passes on there comes or goes: the residual stream forward, its gradient backward.
 */
enum action_kind { PASS, SEND, RECEIVE };
struct action {
	enum action_kind kind;
	enum phase phase;
	uint32_t chunk, slot, microbatch;
	uint32_t stage; /* whom it sends to or receives from */
	uint32_t tag;   /* 2 * place of the edge's lower chunk, + 1 for gradients */
};
/* A step of so many microbatches: one action after the other. */
struct step {
	uint64_t microbatches;
	ARRAY(struct action) action; /* none: there is one stage */
};
struct stage { /* what one rank of the pipeline has */
	struct chunk *chunk;
	uint32_t nchunks;
	uint32_t n; /* layers in all */
	bool embed, head;
	uint64_t slots, rooms[N_LIVES];
	struct step *step; /* by rising number of microbatches; the last is the description's */
	uint32_t nsteps;
	ARRAY(struct collective) comm;
};
struct shard {
	struct graph *graph;
	const struct target_row *target;
	struct om_mesh mesh;  /* world = pipeline * data, expert divides data */
	uint64_t expert_rows; /* each expert's rows begin at a multiple of it */
	struct stage *stage;
	uint32_t nstages; /* of the pipeline */
};
/* The graph is rewritten for what several ranks do together: expert.c. */
struct shard *shard(struct graph *g, const struct target_row *target);
void shard_print(const struct shard *s, struct buf *out);
extern const char *const shard_sent_names[N_COLLECTIVES];
const char *
shard_layers_text(const struct stage *st); /* "embedding, layers 0 .. 3; layers 8 .. 9" */
const char *shard_slots_text(const struct stage *st); /* "8 + 4", of each chunk */
/* Of one layer's tensor in the target's memory. */
uint64_t shard_bytes(const struct shard *s, tensor_id t);
/* Rows that a rank has for the tokens which others, and it itself, send to its experts. */
uint64_t shard_capacity(const struct shard *s, const struct object *moe);
/* Rows that a rank sends to each rank of its expert group at most. */
uint64_t shard_pair_rows(const struct shard *s, const struct object *moe);
/* Of a group's ranks those on the host of its first; a host has so many ranks in a row. */
uint64_t shard_near(const struct shard *s, enum om_group group);
/* Whether rows go in blocks of that size, since experts' ranks do not reach each other's memory. */
bool shard_blocks(const struct shard *s);
/* The group, or OM_ALONE where it is of one rank. */
enum om_group shard_group(const struct shard *s, enum om_group g);
/* Into how many parts the ranks of a stage cut a parameter between them; 1: all have all of it. */
uint64_t shard_parts(const struct shard *s, const struct tensor *param);
/* Which room of a life a slot has. */
uint32_t chunk_room(const struct chunk *c, uint32_t life, uint32_t slot);
/* How many layers of a kind a chunk has, and a stage. */
uint64_t chunk_layers(const struct chunk *c, const struct segment *kind);
uint64_t stage_kind(const struct stage *st, const struct segment *kind);
/* How many layers of a segment a stage runs (1 of what exists once), and of a tensor it holds. */
uint64_t stage_runs(const struct shard *s, uint32_t stage, uint32_t seg);
uint64_t stage_layers(const struct shard *s, uint32_t stage, const struct tensor *t);

/*
 * A pass over a chunk: the segments at its ends, and how far the pass's own kinds of layers are
 * behind training's.
 */
enum pass_id {
	PASS_FORWARD,
	PASS_BACKWARD,
	PASS_WEIGHTS,
	PASS_EVALUATE,
	PASS_DECODE,
	PASS_PROMPT,
	N_PASSES
};
struct pass {
	const char *name;
	enum phase phase;
	uint32_t first, last, own; /* last 0: its layers end it */
};
struct visit { /* what a pass does of a segment */
	uint32_t seg;
	enum phase phase;
	uint32_t layer, slot;
};
ARRAY_TYPE(visits, struct visit);
struct pass shard_pass(const struct graph *g, enum pass_id pass);
/* Adds a chunk's pass, in order. */
void
shard_visits(const struct graph *g, const struct chunk *c, enum pass_id pass, struct visits *out);
/*
 * What of the residual stream, or backward of its gradient, is before a chunk's first layer, or
 * behind its last one.
 */
struct chunk_end {
	tensor_id t;
	uint32_t layer;
};
struct chunk_end
chunk_end(const struct graph *g, const struct chunk *c, enum phase phase, bool first);

/* ---- schedule.c: what each stage does when --------------------------------------------------- */

enum { SCHEDULE_COST = 3 }; /* of all phases */
/* How long a pass takes. */
uint32_t schedule_cost(const struct graph *g, enum phase phase);
/*
 * When each action of a step starts, by stage and action, of so many of the first stages, where
 * passes take those times and what moves data none; gives the end of the last, 0 if some wait for
 * ever.
 */
uint64_t schedule_run(const struct shard *s, uint32_t step, uint64_t **start, uint32_t stages);

/* ---- rankcheck.c: every rank's program against all others ------------------------------------ */

/*
 * Messages meet, collectives are the same for all their members, nobody waits for ever, slots are
 * free when they are taken, each gradient is reduced once by those who have it; internal error
 * naming the first fault.
 */
void rankcheck(const struct shard *s);
/* The same check; NULL, or the fault. For tests that plant faults. */
const char *rankcheck_fault(const struct shard *s);

/* ---- private to this folder ------------------------------------------------------------------ */

/* expert.c: rows of routed tokens go to the ranks of their experts. */
void shard_experts(struct shard *s);
/* expert.c: the load-balance loss counts experts over all data ranks where it is to. */
void shard_balance(struct shard *s);
/* expert.c: gradients are summed over ranks, each steps its part of the weights. */
void shard_update(struct shard *s);
/* shard.c: "send dx". */
const char *shard_action_text(const struct action *a);
/* The stage of the chunk at a place of the pipeline. */
uint32_t schedule_stage(const char *kind, uint32_t pipeline, uint32_t place);
/* Fills in slots, and actions of steps of so many microbatches, of all stages. */
void schedule(struct shard *s, const char *kind, const uint64_t *microbatches, uint32_t n);

#endif
