/*@banner where everything lies in a rank's arena, by its stage*/
#ifndef OM_LAYOUT_H
#define OM_LAYOUT_H

#include <stdint.h>

#include "om_comm.h"

/* bytes from the arena's start; what a stage has nothing of is 0 */
struct om_layout {
	uint64_t stat, stat_bytes, scratch;
	uint64_t slot_stride, stream, dstream;
/*@slot offsets*/
};
/*@slot layouts*/

/*
 * Addresses of tensors, as the functions of step.c have arena, slot, layer (its place in
 * the chunk), i (among its kind on this rank) and j (in its chunk) at hand.
 */
#define ONE(t) ((void *)(arena + om_at->t))
#define LAYER(t, i) ((void *)(arena + om_at->t + (uint64_t)(i) * OM_STRIDE_##t))
/*@slot saved*/
#define WORKSPACE(w) ((void *)(arena + om_at->scratch + OM_WS_##w))
/*@slot part*/

/*@slot strides*/

/*@slot workspaces*/
#endif
