/* The GPU behind the runtime: device, context and streams. om_gpu.h is what kernels see of it. */
#ifndef GPU_H
#define GPU_H

#include <stddef.h>
#include <stdint.h>

/* Images of the trainer's cubins, ended by NULL. */
extern const void *const om_cubins[];

/*
 * Opens the driver, takes of the devices that CUDA_VISIBLE_DEVICES shows the one whose number is
 * this rank's among those of its machine, or the only one, loads the cubins and finds every kernel.
 * Ends the process with one line where something is missing: no driver or too
 * old a one, no device, another process that has it for itself, a wrong architecture.
 */
void om_gpu_start(void);
/* "a driver for CUDA 13.0, 8 GPUs, NVIDIA H200 (sm_90)", "no driver"; before that, too. */
void om_gpu_driver(char text[128]);
/* What errors of the start end with: what this trainer needs of a machine, and what is here. */
const char *om_lacks(void);
const char *om_gpu_name(void);  /* "NVIDIA H200", or of several "NVIDIA H200 (GPU 0 of 8)" */
const char *om_gpu_model(void); /* "NVIDIA H200" */
const char *om_gpu_bus(void);   /* where this machine has it, "0000:1b:00.0" */
/* Device memory, not initialised; too little: ends the process saying how much there is. */
void *om_gpu_new(uint64_t bytes);
void *om_gpu_spare(uint64_t bytes); /* NULL: there is not so much */
void om_gpu_free(void *p);
/*
 * Memory that other processes of this host map by a descriptor; bytes become a multiple of what the
 * driver deals in. And that of another process, on any device that this one reaches.
 */
void *om_gpu_shared_new(uint64_t *bytes, int *fd);
void *om_gpu_shared_map(int fd, uint64_t bytes);
/* Where the arena lies: om_gpu_new's, or where ranks reach one another's memory, shared. */
extern void *(*om_gpu_arena)(uint64_t bytes);
/* What kernels say that wait for other ranks (peers.h), or NULL; who waits for the device looks. */
extern struct om_waiting *om_gpu_waiting;
/* Multiprocessors that launches on other streams leave to the first, where rows are sent beside. */
extern uint32_t om_gpu_beside;
void om_gpu_memory(uint64_t *used, uint64_t *total);
/* In order with the stream. The source of a put may be reused at once; a get waits for its data. */
void om_gpu_put(void *device, const void *host, size_t bytes);
void om_gpu_get(void *host, const void *device, size_t bytes);
/* The same into page-locked memory, without waiting: it is there when a later mark is reached. */
void *om_gpu_locked(size_t bytes);
void om_gpu_fetch(void *locked, const void *device, size_t bytes);
/*
 * Copies into page-locked memory beside the first stream, for one other thread, into slots in
 * order: new gives a slot's memory, NULL where there is none. The copies come after what the first
 * stream was given before begin, and before what it is given after end.
 */
void *om_gpu_aside_new(size_t bytes, uint32_t slot);
void om_gpu_aside_free(void *p);
void om_gpu_aside_begin(void);
void om_gpu_aside_get(void *locked, const void *device, size_t bytes, uint32_t slot);
void om_gpu_aside_wait(uint32_t slot);
void om_gpu_aside_end(void);
void om_gpu_copy(void *to, const void *from, size_t bytes);
void om_gpu_fill(void *device, int byte, size_t bytes);
void om_gpu_wait(void);                  /* until the stream is done */
void om_gpu_operation(const char *name); /* who an error is laid to; NULL: not known any more */

/*
 * Lets f launch to so many streams with so many events (om.h), all behind what the first stream has
 * so far, and what follows behind all of them. What is launched outside of it goes to the first
 * stream, in order, whatever stream it names.
 */
void om_gpu_fork(void (*f)(void *), void *arg, uint32_t streams, uint32_t events);
int om_gpu_on(void); /* the number of the stream that launches go to */
/* Records what f launches so as a graph, and plays it back on the first stream. */
struct om_gpu_graph;
struct om_gpu_graph *
om_gpu_record(void (*f)(void *), void *arg, const char *what, uint32_t streams, uint32_t events);
void om_gpu_play(struct om_gpu_graph *g);

/* The stream whose turn it is, a CUstream, for a library. */
void *om_gpu_stream(void);
/*
 * Streams beside the first one, outside of recordings: begin gives the stream, what comes on it is
 * behind all that the first one was given; end is behind that, and wait has the first one wait for
 * the last end.
 */
struct om_gpu_side;
struct om_gpu_side *om_gpu_side(void);
void *om_gpu_side_begin(struct om_gpu_side *s);
void om_gpu_side_end(struct om_gpu_side *s);
void om_gpu_side_wait(struct om_gpu_side *s);

/*
 * Time between two calls, in seconds, known after the second is waited for: of each the stream that
 * launches go to counts.
 */
struct om_gpu_mark;
struct om_gpu_mark *om_gpu_mark(void);
void om_gpu_reach(struct om_gpu_mark *m);                            /* waits for it */
double om_gpu_between(struct om_gpu_mark *a, struct om_gpu_mark *b); /* waits; frees neither */
void om_gpu_mark_free(struct om_gpu_mark *m);

#endif
