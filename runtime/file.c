/* Reading what others wrote: regular files, under a limit. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

static char why[128];

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

int
om_open_regular(const char *path, uint64_t *size)
{
	/* without waiting for who writes to a pipe */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) != 0)
		because(errno, strerror(errno));
	else if (S_ISDIR(st.st_mode))
		because(EISDIR, strerror(EISDIR));
	else if (!S_ISREG(st.st_mode))
		because(EINVAL, kind(st.st_mode));
	else {
		*size = (uint64_t)st.st_size;
		return fd;
	}
	if (fd >= 0) {
		int error = errno;

		close(fd);
		errno = error;
	}
	return -1;
}

/* Reads to the end, whatever size was said: files of /proc have none. */
static char *
read_rest(int fd, size_t cap, size_t max, size_t *n)
{
	char *s = malloc(cap + 1), *more;
	ssize_t got;

	for (*n = 0; s;) {
		got = read(fd, s + *n, cap - *n);
		if (got < 0 && errno == EINTR)
			continue;
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

char *
om_file_read(const char *path, size_t max, size_t *n)
{
	uint64_t size;
	int fd = om_open_regular(path, &size), error;
	char *s;

	if (fd < 0)
		return NULL;
	s = read_rest(fd, (size < max ? (size_t)size : max) + 4096, max, n);
	error = errno;
	close(fd);
	errno = error;
	return s;
}
