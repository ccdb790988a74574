/*@banner where everything lies in the rank's arena, in bytes*/
#ifndef OM_LAYOUT_H
#define OM_LAYOUT_H

#include <stdint.h>

/* regions, in this order; of 64 bits, so that what is added to them cannot overflow */
/*@slot regions*/

/*
 * Addresses of tensors, as the functions of step.c have arena, slot, layer and i (the layer's
 * index within its kind) at hand.
 */
#define ONE(t) ((void *)(arena + OM_OFF_##t))
#define LAYER(t, i) ((void *)(arena + OM_OFF_##t + (uint64_t)(i) * OM_STRIDE_##t))
/*@slot saved*/
#define WORKSPACE(w) ((void *)(arena + OM_SCRATCH + OM_WS_##w))
/*@slot part*/

/*@slot places*/

/*@slot workspaces*/
/*@slot asserts*/

#endif
