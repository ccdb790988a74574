/*
 * From descriptions to what the stages give, for unit tests; a description that is wrong ends
 * them.
 */
#ifndef TESTS_DESCRIBE_H
#define TESTS_DESCRIBE_H

#include <stdlib.h>

#include "plan/plan.h"

static inline struct object *
trainer_of(const char *path, struct define *def, uint32_t n, const char *target)
{
	struct spec s = { 0 };

	load(path, def, n, &s);
	if (s.n)
		check(s.trainer[0], targets, target);
	if (diag_flush())
		exit(1);
	return s.trainer[0];
}

/* Its routers keep biases, so that the graph has buffers, too. */
static inline void
with_bias(struct object *trainer)
{
	const struct value *ffn =
	    spec_value(spec_obj(trainer, F_trainer_model), F_transformer_feed_forward);

	for (uint32_t i = 0; i < ffn->n; i++)
		if (ffn->list[i]->type == OBJ_moe)
			spec_value(spec_obj(ffn->list[i], F_moe_router), F_router_bias_gamma)->num =
			    0.001;
}

static inline struct graph *
graph_of(struct object *trainer)
{
	struct buf resolved = { 0 };

	spec_print(trainer, true, &resolved); /* ops know their lines of it */
	struct graph *g = graph_build(trainer);
	if (diag_flush())
		exit(1);
	return g;
}

static inline struct shard *
shard_of(struct object *trainer)
{
	return shard(graph_of(trainer), target_find(targets, spec_str(trainer, F_trainer_target)));
}

/* A layout of layout.lua, a small model for a CPU; what is 0 is not said. */
struct layout {
	const char *schedule;
	uint32_t pipeline, chunks, microbatches, data, expert, layers, vocab;
	const char *capacity;
	bool split; /* the backward pass, in two phases */
	bool muon;
};

static inline struct object *
layout_trainer(struct layout l)
{
	struct define def[] = {
		{ "pipeline", xprintf("%u", l.pipeline), false },
		{ "microbatches", xprintf("%u", l.microbatches), false },
		{ "data", xprintf("%u", l.data ? l.data : 1), false },
		{ "expert", xprintf("%u", l.expert ? l.expert : 1), false },
		{ "layers", xprintf("%u", l.layers ? l.layers : l.pipeline * l.chunks), false },
		{ "vocab", xprintf("%u", l.vocab ? l.vocab : 32), false },
		{ "schedule", l.schedule, false },
		{ "chunks", xprintf("%u", l.chunks), false },
		{ "capacity", l.capacity ? l.capacity : "worst", false },
		{ "muon", l.muon ? "true" : "false", false },
	};

	return trainer_of("tests/unit/layout.lua", def, LEN(def), NULL);
}

static inline struct shard *
layout_shard(struct layout l)
{
	struct object *t = layout_trainer(l);
	struct graph *g = graph_of(t);
	if (l.split)
		graph_split(g);
	struct shard *s = shard(g, target_find(targets, spec_str(t, F_trainer_target)));
	graph_verify(g);
	return s;
}

#endif
