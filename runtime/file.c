/* Reading what others wrote: regular files, under a limit; and wrong names. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

enum { PATIENCE = 10000 }; /* milliseconds that a pipe may be silent */

static _Thread_local char why[128];

const char *
om_file_why(void)
{
	return why;
}

static void
because(int error, const char *text)
{
	snprintf(why, sizeof why, "%s", text);
	errno = error;
}

static const char *
kind(mode_t mode)
{
	return S_ISFIFO(mode)  ? "is a pipe, not a regular file"
	       : S_ISCHR(mode) ? "is a device, not a regular file"
	       : S_ISBLK(mode) ? "is a disk, not a regular file"
			       : "is not a regular file";
}

/* As om_open_regular; pipe: NULL, or whether it is one, which is then no error. */
static int
open_file(const char *path, uint64_t *size, bool *pipe)
{
	/* without waiting for who writes to a pipe */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) != 0)
		because(errno, strerror(errno));
	else if (S_ISDIR(st.st_mode))
		because(EISDIR, strerror(EISDIR));
	else if (!S_ISREG(st.st_mode) && !(pipe && S_ISFIFO(st.st_mode)))
		because(EINVAL, kind(st.st_mode));
	else {
		*size = (uint64_t)st.st_size;
		if (pipe)
			*pipe = S_ISFIFO(st.st_mode);
		return fd;
	}
	if (fd >= 0) {
		int error = errno;

		close(fd);
		errno = error;
	}
	return -1;
}

int
om_open_regular(const char *path, uint64_t *size)
{
	return open_file(path, size, NULL);
}

/* Reads to the end, whatever size was said: files of /proc have none. */
static char *
read_rest(int fd, bool pipe, size_t cap, size_t max, size_t *n)
{
	char *s = malloc(cap + 1), *more;
	struct pollfd comes = { fd, POLLIN, 0 };
	ssize_t got;

	for (*n = 0; s;) {
		got = read(fd, s + *n, cap - *n);
		if (got < 0 && errno == EINTR)
			continue;
		/* none who writes is here yet, or what they write is not */
		if ((got < 0 && errno == EAGAIN) || (!got && pipe && !*n)) {
			pipe = got < 0;
			if (poll(&comes, 1, PATIENCE) != 0)
				continue;
			free(s);
			because(ETIMEDOUT, "is a pipe into which nobody wrote for 10 seconds");
			return NULL;
		}
		if (got <= 0)
			break;
		*n += (size_t)got;
		if (*n > max) {
			free(s);
			because(EFBIG, "");
			snprintf(why, sizeof why, "is larger than %zu bytes, the most that is read",
			    max);
			return NULL;
		}
		if (*n == cap) {
			cap *= 2;
			if (!(more = realloc(s, cap + 1)))
				free(s);
			s = more;
		}
	}
	if (!s || got < 0) {
		because(s ? errno : ENOMEM, strerror(s ? errno : ENOMEM));
		free(s);
		return NULL;
	}
	s[*n] = 0;
	return s;
}

static char *
read_file(const char *path, size_t max, size_t *n, bool *pipe)
{
	uint64_t size;
	int fd = open_file(path, &size, pipe), error;
	char *s;

	if (fd < 0)
		return NULL;
	s = read_rest(fd, pipe && *pipe, (size < max ? (size_t)size : max) + 4096, max, n);
	error = errno;
	close(fd);
	errno = error;
	return s;
}

char *
om_file_read(const char *path, size_t max, size_t *n)
{
	return read_file(path, max, n, NULL);
}

char *
om_file_or_pipe_read(const char *path, size_t max, size_t *n)
{
	bool pipe;

	return read_file(path, max, n, &pipe);
}

static uint32_t
least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

uint32_t
om_distance(const char *a, const char *b)
{
	enum { LONGEST = 63 };
	size_t na = strlen(a), nb = strlen(b);
	uint32_t d[LONGEST + 1][LONGEST + 1]; /* between the first i and j letters */

	if (na > LONGEST || nb > LONGEST)
		return UINT32_MAX;
	for (size_t i = 0; i <= na; i++)
		for (size_t j = 0; j <= nb; j++) {
			d[i][j] = (uint32_t)(i + j);
			if (!i || !j)
				continue;
			d[i][j] = least(least(d[i - 1][j], d[i][j - 1]) + 1,
			    d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
		}
	return d[na][nb];
}
