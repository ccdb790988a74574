/* What the harnesses share. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

static char folder[256], path[300];

static void
remove_folder(void)
{
	static const char *const names[] = { "config.json", "model.safetensors.index.json",
		"a.safetensors", "model.safetensors", "run.yaml", "a.lua", "a.bin", "a.idx",
		"tokenizer.json" };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%s/%s", folder, names[i]);
		unlink(path);
	}
	rmdir(folder);
}

const char *
fuzz_folder(void)
{
	const char *in = getenv("FUZZ_DIR");

	if (!*folder) {
		snprintf(folder, sizeof folder, "%.200s/om-fuzz-XXXXXX", in ? in : "/tmp");
		if (!mkdtemp(folder))
			abort();
		atexit(remove_folder);
	}
	return folder;
}

const char *
fuzz_file(const char *name, const void *data, size_t n)
{
	int fd;

	snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, data, n) != (ssize_t)n || close(fd) != 0)
		abort();
	return path;
}

/*
 * What our objects and jansson allocate (the linker's --wrap) stands in a list until it is freed.
 * What libc allocates for them is not in it, and is freed as ever.
 */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);

enum { LIVE_MOST = 1 << 16 };
static void *live[LIVE_MOST];
static size_t n_live;
static _Thread_local bool tracking; /* libFuzzer's own memory is not ours to free */

static void *
add(void *p)
{
	if (tracking && p && n_live < LIVE_MOST)
		live[n_live++] = p;
	return p;
}

/* The youngest are mostly freed first. */
static void
drop(const void *p)
{
	for (size_t i = n_live; tracking && p && i-- > 0;)
		if (live[i] == p) {
			memmove(&live[i], &live[i + 1], (--n_live - i) * sizeof *live);
			return;
		}
}

void *
__wrap_malloc(size_t n)
{
	return add(__real_malloc(n));
}

void *
__wrap_calloc(size_t n, size_t size)
{
	return add(__real_calloc(n, size));
}

void *
__wrap_realloc(void *p, size_t n)
{
	drop(p);
	return add(__real_realloc(p, n));
}

void
__wrap_free(void *p)
{
	drop(p);
	__real_free(p);
}

static int first; /* descriptors that were there before are not ours */

void
fuzz_begin(void)
{
	tracking = true;
	if (!first) {
		first = dup(0);
		close(first);
	}
}

void
fuzz_clean(void)
{
	tracking = false;
	while (n_live)
		__real_free(live[--n_live]);
	for (int fd = first; fd < first + 16; fd++)
		close(fd);
}
