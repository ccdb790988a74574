/*
 * Reading what others wrote, in trainers and in olmogen: only regular files, since a pipe may block
 * for ever and a device may never end, and never more than a limit. What name a wrong one is near.
 */
#ifndef OM_FILE_H
#define OM_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A descriptor that exec closes, and the file's size; -1: errno, and om_file_why(). */
int om_open_regular(const char *path, uint64_t *size);
/*
 * The whole file and a terminator, *n bytes; free() it. NULL: errno, and om_file_why(). More than
 * max bytes: EFBIG.
 */
char *om_file_read(const char *path, size_t max, size_t *n);
/*
 * The same, and a pipe's text too. For what a shell's <(...) gives; a pipe that stays silent for 10
 * seconds is an error.
 */
char *om_file_or_pipe_read(const char *path, size_t max, size_t *n);
/* What the last call that failed had against its file: a static text. */
const char *om_file_why(void);

/*
 * How many bytes are put in, left out, changed or swapped with their neighbours; texts over 63
 * bytes are far from everything.
 */
uint32_t om_distance(const char *a, const char *b);

/* Control characters, which a terminal would obey, become '?'. */
static inline void
om_plain(char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < 32 || *s == 127)
			*s = '?';
}

#endif
