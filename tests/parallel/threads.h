/*
 * What om_comm.h says of exchanges and gathers, with threads of one process as the ranks of one
 * group: for tests of kernels. A call that disagrees with another rank's ends the process.
 */
#ifndef THREADS_H
#define THREADS_H

#include <stdint.h>

/* w threads call f, each of them a rank; before and after, this is the only rank. */
void threads_run(uint32_t w, void (*f)(void));

#endif
