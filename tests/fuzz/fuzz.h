/*
 * Harnesses of what reads files from outside, each with libFuzzer's entry point. run.sh builds them
 * with clang's libFuzzer, or with driver.c, which is enough to see that they still work.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
/* The path of a file of that name with these bytes, in this process' own folder in memory. */
const char *fuzz_file(const char *name, const void *data, size_t n);
/* That folder. */
const char *fuzz_folder(void);
/* What om_die leaves: all that is allocated and opened from begin on, clean frees and closes. */
void fuzz_begin(void);
void fuzz_clean(void);

#endif
