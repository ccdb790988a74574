/* Memory, the host's arena among it, time and small texts. */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "om_rt.h"

bool om_profile;

double
om_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void *
om_alloc(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	if (!p)
		om_die("memory", "cannot allocate %s; free memory on this machine",
		    om_bytes(n * size));
	return p;
}

char *
om_text(const char *fmt, ...)
{
	va_list ap;
	int n;
	char *s;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	s = om_alloc((size_t)n + 1, 1);
	va_start(ap, fmt);
	vsnprintf(s, (size_t)n + 1, fmt, ap);
	va_end(ap);
	return s;
}

char *
om_free_name(const char *path, const char *suffix)
{
	struct stat st;
	char *name = om_text("%s%s", path, suffix);

	for (int i = 2; lstat(name, &st) == 0; i++) {
		free(name);
		name = om_text("%s%s.%d", path, suffix, i);
	}
	return name;
}

static char *
scratch(void)
{
	static _Thread_local char text[16][48];
	static _Thread_local unsigned i;

	return text[i++ % 16];
}

const char *
om_commas(uint64_t n)
{
	char *s = scratch() + 31;

	*s = 0;
	for (int digit = 0; n || !digit; n /= 10, digit++) {
		if (digit && digit % 3 == 0)
			*--s = ',';
		*--s = (char)('0' + n % 10);
	}
	return s;
}

const char *
om_count(uint64_t n, const char *thing)
{
	char *s = scratch();

	snprintf(s, 48, "%s %s%s", om_commas(n), thing, n == 1 ? "" : "s");
	return s;
}

/* printf gives nan a sign, which says nothing. */
const char *
om_number(double x, const char *format)
{
	char *s = scratch(), f[8];

	snprintf(f, sizeof f, "%%%s", format);
	snprintf(s, 48, isnan(x) ? "nan" : f, x);
	return s;
}

const char *
om_bytes(uint64_t n)
{
	static const char unit[][4] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	char *s = scratch();
	double x = (double)n / 1024;
	size_t u = 0;

	if (n < 1024) {
		snprintf(s, 32, "%u B", (unsigned)n);
		return s;
	}
	for (; x >= 1024 && u + 1 < OM_LEN(unit); u++)
		x /= 1024;
	snprintf(s, 32, "%.2f %s", x, unit[u]);
	return s;
}

const char *
om_clock(double seconds)
{
	char *s = scratch();
	unsigned long t = seconds > 0 && seconds < 1e9 ? (unsigned long)(seconds + 0.5) : 0;

	if (t < 3600)
		snprintf(s, 32, "%lu:%02lu", t / 60, t % 60);
	else
		snprintf(s, 32, "%lu:%02lu:%02lu", t / 3600, t / 60 % 60, t % 60);
	return s;
}

const char *
om_took(double seconds)
{
	char *s;

	if (seconds >= 60)
		return om_clock(seconds);
	s = scratch();
	snprintf(s, 48, seconds < 9.95 ? "%.2f s" : "%.1f s", seconds);
	return s;
}

/* The number after key in a small kernel file, 0: none (or "max"). */
static uint64_t
number_in(const char *path, const char *key)
{
	size_t n;
	char *s = om_file_read(path, 1 << 20, &n), *at = s ? strstr(s, key) : NULL;
	uint64_t x = at ? strtoull(at + strlen(key), NULL, 10) : 0;

	free(s);
	return x;
}

uint64_t
om_memory_available(void)
{
	uint64_t host = 1024 * (number_in("/proc/meminfo", "MemAvailable:") +
				   number_in("/proc/meminfo", "SwapFree:"));
	uint64_t limit = number_in("/sys/fs/cgroup/memory.max", "");
	uint64_t used = number_in("/sys/fs/cgroup/memory.stat", "anon "); /* file cache gives way */

	if (!host)
		host = UINT64_MAX; /* no account: let mmap decide */
	if (limit && limit > used && limit - used < host)
		return limit - used;
	return host;
}

unsigned char *
om_arena_map(uint64_t bytes, uint64_t written)
{
	const uint64_t huge = 2 << 20; /* aligned, so that huge pages can back all of it */
	uint64_t available = om_memory_available();
	unsigned char *p = MAP_FAILED;
	struct rlimit limit;

	if (written <= available && bytes <= SIZE_MAX - huge) {
		p = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | (written < bytes ? MAP_NORESERVE : 0), -1, 0);
		if (p == MAP_FAILED && getrlimit(RLIMIT_AS, &limit) == 0 &&
		    limit.rlim_cur != RLIM_INFINITY)
			om_die("arena",
			    "needs %s (%s bytes): %s, the limit of all that a process maps is %s "
			    "(ulimit -v); raise it",
			    om_bytes(bytes), om_commas(bytes), strerror(errno),
			    om_bytes(limit.rlim_cur));
		if (p == MAP_FAILED)
			om_die("arena", "needs %s (%s bytes): %s, though %s are available",
			    om_bytes(bytes), om_commas(bytes), strerror(errno),
			    om_bytes(available));
	}
	if (p == MAP_FAILED)
		om_die("arena", "needs %s (%s bytes), %s are available; use a larger machine%s",
		    om_bytes(written), om_commas(written), om_bytes(available),
		    written < bytes ? "" : ", or a smaller batch { micro } in the Lua description");
	p += (huge - (uintptr_t)p % huge) % huge;
	madvise(p, bytes, MADV_HUGEPAGE); /* a wish; kernels without it say no */
	return p;
}

int
om_create(const char *dir, const char *file)
{
	char *path = om_text("%s/%s", dir, file);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), error = errno;

	free(path);
	errno = error;
	return fd;
}

bool
om_write_all(int fd, const void *p, size_t n)
{
	const char *s = p;

	while (n) {
		ssize_t got = write(fd, s, n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return false;
		s += got;
		n -= (size_t)got;
	}
	return true;
}

/* Of the first object, which is the program: the newest version that its symbols have. */
static int
find_glibc(struct dl_phdr_info *info, size_t size, void *newest)
{
	const ElfW(Dyn) *d = NULL;
	const char *texts = NULL, *at = NULL;
	ElfW(Xword) n = 0;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	for (; d && d->d_tag != DT_NULL; d++) { /* the loader has made addresses of offsets */
		texts = d->d_tag == DT_STRTAB ? (const void *)d->d_un.d_ptr : texts;
		at = d->d_tag == DT_VERNEED ? (const void *)(info->dlpi_addr + d->d_un.d_ptr) : at;
		n = d->d_tag == DT_VERNEEDNUM ? d->d_un.d_val : n;
	}
	while (texts && at && n--) {
		const ElfW(Verneed) *need = (const void *)at;
		const char *v = at + need->vn_aux;

		for (unsigned i = 0; i < need->vn_cnt; i++) {
			const ElfW(Vernaux) *x = (const void *)v;
			unsigned major, minor;

			if (sscanf(texts + x->vna_name, "GLIBC_%u.%u", &major, &minor) == 2 &&
			    1000 * major + minor > *(unsigned *)newest)
				*(unsigned *)newest = 1000 * major + minor;
			v += x->vna_next;
		}
		at += need->vn_next;
	}
	return 1; /* no further one */
}

void
om_glibc(char needs[16], char here[16])
{
	unsigned newest = 0;

	dl_iterate_phdr(find_glibc, &newest);
	snprintf(needs, 16, newest ? "%u.%u" : "", newest / 1000, newest % 1000);
	snprintf(here, 16, "%s", newest ? gnu_get_libc_version() : "");
}
