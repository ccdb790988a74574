/*
 * From a tree to a trainer: kernels by NVRTC in child processes, kept in a cache of cubins; the
 * rest by cc, through the tree's own Makefile.
 *
 * Takes a tree that was written to a folder, and leaves the trainer there.
 *
 * Must never be needed by emit: a tree builds without olmogen.
 */
#ifndef OLMOGEN_BUILD_H
#define OLMOGEN_BUILD_H

#include "emit/emit.h"

/* ---- nvrtc.c, build.c ------------------------------------------------------------------------ */

/*
 * Compiles each NAME.cu of the tree to NAME.cubin beside it, as many at once as jobs. False, said
 * why: no NVRTC here, an error, or a kernel that spills.
 */
bool nvrtc_build(const struct tree *t, const char *dir, const char *arch, int jobs, bool verbose);

/*
 * Runs the emitted Makefile. set: a variable of it, "STATIC=1", or NULL. False if it failed (its
 * output has been shown).
 */
bool build(const char *dir, int jobs, const char *set, bool verbose);
void build_end_with_parent(void); /* a child's promise, also of what it becomes */

#endif
