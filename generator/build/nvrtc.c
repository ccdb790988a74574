/*
 * Compiles the kernels of an emitted tree, NAME.cu, into NAME.cubin beside it, with the toolkit's
 * NVRTC opened here: olmogen needs no CUDA until a trainer for it is built. Cubins are kept by
 * content in the user's cache, so that a kernel that did not change is not compiled again; it has a
 * limit, and those that were not used for the longest time go first.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "build/build.h"

typedef struct nvrtc_program *program;
static struct {
	int (*Version)(int *, int *);
	int (*CreateProgram)(
	    program *, const char *, const char *, int, const char *const *, const char *const *);
	int (*CompileProgram)(program, int, const char *const *);
	int (*GetCUBINSize)(program, size_t *);
	int (*GetCUBIN)(program, char *);
	int (*GetProgramLogSize)(program, size_t *);
	int (*GetProgramLog)(program, char *);
	const char *(*GetErrorString)(int);
} rtc;

static bool
open_nvrtc(void)
{
	static const struct {
		const char *name;
		void *at;
	} symbols[] = { { "nvrtcVersion", &rtc.Version },
		{ "nvrtcCreateProgram", &rtc.CreateProgram },
		{ "nvrtcCompileProgram", &rtc.CompileProgram },
		{ "nvrtcGetCUBINSize", &rtc.GetCUBINSize }, { "nvrtcGetCUBIN", &rtc.GetCUBIN },
		{ "nvrtcGetProgramLogSize", &rtc.GetProgramLogSize },
		{ "nvrtcGetProgramLog", &rtc.GetProgramLog },
		{ "nvrtcGetErrorString", &rtc.GetErrorString } };
	static const char *const names[] = { "libnvrtc.so.13", "libnvrtc.so" };
	const char *home = getenv("CUDA_HOME") ? getenv("CUDA_HOME") : getenv("CUDA_PATH");
	int major = 0, minor = 0;
	void *lib = NULL;

	/* the user's choice alone, or the usual folder and then the loader's */
	for (unsigned i = 0; i < LEN(names) && !lib; i++)
		lib = dlopen(
		    xprintf("%s/lib64/%s", home ? home : "/usr/local/cuda", names[i]), RTLD_NOW);
	for (unsigned i = 0; i < LEN(names) && !lib && !home; i++)
		lib = dlopen(names[i], RTLD_NOW);
	if (!lib) {
		fprintf(stderr,
		    "olmogen: error: cannot compile CUDA kernels: there is no libnvrtc.so%s%s; "
		    "install the CUDA Toolkit (13.0 or later) or set CUDA_HOME to it. The sources "
		    "are emitted: make builds them where nvcc is\n",
		    home ? " in the lib64 of CUDA_HOME = " : "", home ? home : "");
		return false;
	}
	for (unsigned i = 0; i < LEN(symbols); i++) {
		void *f = dlsym(lib, symbols[i].name);
		if (!f) {
			fprintf(stderr, "olmogen: error: libnvrtc.so lacks %s; it is too old\n",
			    symbols[i].name);
			return false;
		}
		memcpy(symbols[i].at, &f, sizeof f);
	}
	rtc.Version(&major, &minor);
	if (major < 13) {
		fprintf(stderr,
		    "olmogen: error: cannot compile CUDA kernels: NVRTC is of CUDA %d.%d; install "
		    "the CUDA Toolkit (13.0 or later) or set CUDA_HOME to it\n",
		    major, minor);
		return false;
	}
	return true;
}

/* The folder of cached cubins, made if need be; NULL: keep none. */
static const char *
cache_folder(void)
{
	const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

	if (!base || *base != '/')
		base = home && *home == '/' ? xprintf("%s/.cache", home) : NULL;
	if (!base)
		return NULL;
	mkdir(base, 0777);
	const char *dir = xprintf("%s/olmogen", base);
	return mkdir(dir, 0777) == 0 || errno == EEXIST ? dir : NULL;
}

static bool
file_write(const char *path, const char *data, size_t n)
{
	const char *temporary = xprintf("%s.%ld.tmp", path, (long)getpid());
	FILE *f = fopen(temporary, "wb");
	bool ok = f && fwrite(data, 1, n, f) == n;

	if (f)
		ok = fclose(f) == 0 && ok;
	ok = ok && rename(temporary, path) == 0;
	if (!ok)
		unlink(temporary);
	return ok;
}

/*
 * ptxas's report has a line "... N bytes spill stores ..." a kernel; registers that spill, or
 * arrays that landed in local memory, are a fault of the kernel's author that must not go unseen.
 */
static const char *
spilled(const char *log)
{
	const char *function = NULL;

	for (const char *s = log; *s; s += strcspn(s, "\n"), s += *s == '\n') {
		size_t n = strcspn(s, "\n");
		unsigned long stack, stores, loads;
		const char *entry = strstr(s, "Compiling entry function '");
		const char *at = strstr(s, " bytes stack frame");
		if (entry && entry < s + n)
			function = entry + strlen("Compiling entry function '");
		if (!at || at > s + n)
			continue;
		if (sscanf(s + strspn(s, " "), "%lu bytes stack frame, %lu bytes spill stores, %lu",
			&stack, &stores, &loads) == 3 &&
		    stack + stores + loads)
			return xprintf("%.*s: %.*s", function ? (int)strcspn(function, "'") : 1,
			    function ? function : "?", (int)(n - strspn(s, " ")),
			    s + strspn(s, " "));
	}
	return NULL;
}

/* What a file of kernels may include. */
static bool
header_of(const struct file *f)
{
	return !strncmp(f->path, "kernels/", 8) || !strcmp(f->path, "runtime/rng.h") ||
	       !strcmp(f->path, "runtime/normal.h");
}

/* One file of the tree, compiled; false: said why. */
static bool
compile(const struct tree *t, const struct file *f, const char *arch, const char *to,
    const char *cached)
{
	const char **header = xalloc(t->n * sizeof *header), **name = xalloc(t->n * sizeof *name);
	const char *options[] = { xprintf("--gpu-architecture=sm_%s", arch),
		xprintf("-DOM_ARCH=%.*s", (int)strspn(arch, "0123456789"), arch), "--std=c++17",
		"--ptxas-options=-v", "-default-device" };
	int n = 0, r;
	size_t size;
	program p;

	for (uint32_t i = 0; i < t->n; i++)
		if (header_of(&t->a[i])) {
			header[n] = t->a[i].text.s;
			name[n++] = strchr(t->a[i].path, '/') + 1;
		}
	r = rtc.CreateProgram(&p, f->text.s, f->path, n, header, name);
	if (!r)
		r = rtc.CompileProgram(p, (int)LEN(options), options);
	rtc.GetProgramLogSize(p, &size);
	char *log = xalloc(size + 1);
	rtc.GetProgramLog(p, log);
	if (r) {
		fprintf(
		    stderr, "%s\nolmogen: error: %s: %s\n", log, f->path, rtc.GetErrorString(r));
		return false;
	}
	const char *fault = spilled(log);
	if (fault) {
		fprintf(
		    stderr, "olmogen: error: %s: a kernel uses local memory: %s\n", f->path, fault);
		return false;
	}
	rtc.GetCUBINSize(p, &size);
	char *cubin = xalloc(size);
	rtc.GetCUBIN(p, cubin);
	if (!file_write(to, cubin, size)) {
		fprintf(stderr, "olmogen: error: cannot write %s: %s\n", to, strerror(errno));
		return false;
	}
	if (cached) {
		struct buf b = { 0 };
		buf_add(&b, cubin, size);
		buf_puts(&b, sha256_hex(cubin, size));
		file_write(cached, b.s, b.n);
	}
	return true;
}

/*
 * A cubin of the cache, which has its SHA-256 behind it; NULL: there is none that is whole. The
 * file's time becomes that of this use.
 */
static char *
cache_read(const char *path, size_t *n)
{
	enum { DIGITS = 64 };
	char *s = file_read(path, n);

	if (!s || *n <= DIGITS)
		return NULL;
	utimensat(AT_FDCWD, path, NULL, 0);
	*n -= DIGITS;
	return memcmp(s + *n, sha256_hex(s, *n), DIGITS) ? NULL : s;
}

struct cached {
	const char *path;
	struct timespec used;
	uint64_t size;
};

static int
by_use(const void *a, const void *b)
{
	const struct timespec *x = &((const struct cached *)a)->used,
			      *y = &((const struct cached *)b)->used;

	if (x->tv_sec != y->tv_sec)
		return x->tv_sec < y->tv_sec ? -1 : 1;
	return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/*
 * Removes what was used the longest ago from the cache where it has more than OLMOGEN_CACHE_MIB,
 * 512 by default: a cubin has some 100 KB, and a trainer some dozens.
 */
static void
cache_prune(const char *folder)
{
	enum { MIB = 512 };
	const char *asked = getenv("OLMOGEN_CACHE_MIB");
	char *end = NULL;
	uint64_t mib = asked && *asked ? strtoull(asked, &end, 10) : MIB, total = 0;
	ARRAY(struct cached) all = { 0 };
	DIR *d = opendir(folder);

	if ((end && *end) || mib > UINT64_MAX >> 20) {
		fprintf(stderr,
		    "olmogen: warning: OLMOGEN_CACHE_MIB = %s is no number of MiB; %d are kept\n",
		    asked, MIB);
		mib = MIB;
	}
	for (struct dirent *e; d && (e = readdir(d));) {
		struct cached c = { .path = xprintf("%s/%s", folder, e->d_name) };
		struct stat st;
		if (lstat(c.path, &st) != 0 || !S_ISREG(st.st_mode))
			continue;
		c.used = st.st_mtim;
		c.size = (uint64_t)st.st_size;
		total += c.size;
		*PUSH(all) = c;
	}
	if (d)
		closedir(d);
	if (total <= mib << 20)
		return;
	qsort(all.a, all.n, sizeof *all.a, by_use);
	for (uint32_t i = 0; i < all.n && total > mib << 20; i++)
		if (unlink(all.a[i].path) == 0)
			total -= all.a[i].size;
}

/* What decides a cubin's bytes. */
static const char *
key_of(const struct tree *t, const struct file *f, const char *arch)
{
	struct buf b = { 0 };
	int major = 0, minor = 0;

	rtc.Version(&major, &minor);
	buf_printf(&b, "%s %s nvrtc %d.%d\n", OLMOGEN_VERSION, arch, major, minor);
	buf_add(&b, f->text.s, f->text.n);
	for (uint32_t i = 0; i < t->n; i++)
		if (header_of(&t->a[i]))
			buf_add(&b, t->a[i].text.s, t->a[i].text.n);
	return sha256_hex(b.s, b.n);
}

static bool
older(const char *path, const char *than)
{
	struct stat a, b;

	if (stat(path, &a) || stat(than, &b))
		return true;
	return a.st_mtim.tv_sec < b.st_mtim.tv_sec ||
	       (a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec < b.st_mtim.tv_nsec);
}

/* Whether make would compile the cubin again: something that it is made of is younger. */
static bool
stale(const char *cubin, const struct tree *t, const struct file *f, const char *dir)
{
	for (uint32_t i = 0; i < t->n; i++)
		if ((&t->a[i] == f || header_of(&t->a[i]) || !strcmp(t->a[i].path, "Makefile")) &&
		    older(cubin, xprintf("%s/%s", dir, t->a[i].path)))
			return true;
	return false;
}

/* Whether one of the compilers has done its work; one that was killed could not say why not. */
static bool
ended_well(void)
{
	int status;

	if (wait(&status) < 0)
		return false;
	if (WIFSIGNALED(status))
		fprintf(stderr,
		    "olmogen: error: a compiler of CUDA kernels was ended by signal %d (%s); where "
		    "memory is short, -j1 takes the least\n",
		    WTERMSIG(status), strsignal(WTERMSIG(status)));
	return status == 0;
}

bool
nvrtc_build(const struct tree *t, const char *dir, const char *arch, int jobs, bool verbose)
{
	const char *cache = cache_folder();
	int running = 0;
	bool ok = true;

	if (!open_nvrtc())
		return false;
	fflush(NULL);
	for (uint32_t i = 0; i < t->n || running; i++) {
		const struct file *f = i < t->n ? &t->a[i] : NULL;
		size_t n;
		if (running == jobs || (!f && running)) {
			ok &= ended_well();
			running--;
		}
		if (!ok || !f || strcmp(f->path + strcspn(f->path, "."), ".cu"))
			continue;
		int stem = (int)strcspn(f->path, ".");
		const char *to = xprintf("%s/%.*s.cubin", dir, stem, f->path);
		const char *cached =
		    cache ? xprintf("%s/%s.cubin", cache, key_of(t, f, arch)) : NULL;
		char *have = cached ? cache_read(cached, &n) : NULL;
		if (have) {
			size_t m;
			char *old = file_read(to, &m);
			if (!old || m != n || memcmp(old, have, n) || stale(to, t, f, dir))
				ok &= file_write(to, have, n);
			continue;
		}
		if (verbose)
			printf("NVRTC %s\n", f->path);
		fflush(NULL);
		pid_t child = fork();
		if (child == 0) {
			build_end_with_parent();
			_exit(!compile(t, f, arch, to, cached));
		}
		if (child < 0)
			fprintf(stderr,
			    "olmogen: error: cannot start a compiler of CUDA kernels: %s\n",
			    strerror(errno));
		ok &= child > 0;
		running += child > 0;
	}
	if (cache)
		cache_prune(cache);
	return ok;
}
