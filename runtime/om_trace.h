/* trace.c: what ran when in a step, for a picture. */
#ifndef OM_TRACE_H
#define OM_TRACE_H

#include "om_rt.h"

/* From here on, until it is written, what runs while om_profile is set is kept, by stream. */
void om_trace_begin(uint32_t streams);
bool om_tracing(void);
/* The part of the step, or a segment of a layer (-1: of none), that what follows is in. */
void om_trace_enter(const char *name, int layer);
void om_trace_leave(void);
uint32_t om_trace_at(void); /* a number for where that is now */
/* An operator that ran there on a stream, in seconds as om_now() has them. */
void om_trace_op(const struct om_op *op, uint32_t at, int stream, double begin, double end);
/* What the host did, or waited for, since `begin`. */
void om_trace_host(const char *what, double begin);
/*
 * By all ranks: rank 0 writes all of their events, with times since each rank's `origin`, as Trace
 * Event Format and as a page; NULL: not that one.
 */
void om_trace_write(const struct om_model *m, const char *trace, const char *html, double origin);

#endif
