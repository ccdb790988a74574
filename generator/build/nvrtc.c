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

/* The oldest NVRTC whose kernels of an architecture do not spill and are right, as 13000. */
static const struct {
	const char *arch;
	int version;
} oldest[] = { { "90a", 12040 }, { "100a", 13000 } };

static bool
open_nvrtc(const char *arch)
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
	static const char *const names[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so" };
	const char *home = getenv("CUDA_HOME") ? getenv("CUDA_HOME") : getenv("CUDA_PATH");
	int major = 0, minor = 0, least = 0;
	void *lib = NULL;

	for (unsigned i = 0; i < LEN(oldest); i++)
		least = strcmp(oldest[i].arch, arch) == 0 ? oldest[i].version : least;
	const char *install = xprintf("install the CUDA Toolkit (%d.%d or later) or set CUDA_HOME "
				      "to it",
	    least / 1000, least % 1000 / 10);

	/* the user's choice alone, or the usual folder and then the loader's */
	for (unsigned i = 0; i < LEN(names) && !lib; i++)
		lib = dlopen(
		    xprintf("%s/lib64/%s", home ? home : "/usr/local/cuda", names[i]), RTLD_NOW);
	for (unsigned i = 0; i < LEN(names) && !lib && !home; i++)
		lib = dlopen(names[i], RTLD_NOW);
	if (!lib)
		return diag_failed(
		    "cannot compile CUDA kernels: there is no libnvrtc.so%s%s; %s. The sources "
		    "are emitted: make builds them where nvcc is",
		    home ? " in the lib64 of CUDA_HOME = " : "", home ? home : "", install);
	for (unsigned i = 0; i < LEN(symbols); i++) {
		void *f = dlsym(lib, symbols[i].name);
		if (!f)
			return diag_failed("libnvrtc.so lacks %s; it is too old", symbols[i].name);
		memcpy(symbols[i].at, &f, sizeof f);
	}
	rtc.Version(&major, &minor);
	return 1000 * major + 10 * minor >= least ||
	       diag_failed("cannot compile CUDA kernels for sm_%s: NVRTC is of CUDA %d.%d; %s",
		   arch, major, minor, install);
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

/* A name of this process's own: others may be writing the same cubin. */
static bool
write_cubin(const char *path, const struct buf *cubin)
{
	return tree_replace(path, xprintf("%s.%ld.tmp", path, (long)getpid()), cubin);
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
	       !strcmp(f->path, "runtime/peers.h") || !strcmp(f->path, "runtime/normal.h");
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
		fprintf(stderr, "%s\n", log);
		return diag_failed("%s: %s", f->path, rtc.GetErrorString(r));
	}
	const char *fault = spilled(log);
	if (fault)
		return diag_failed("%s: a kernel uses local memory: %s", f->path, fault);
	rtc.GetCUBINSize(p, &size);
	struct buf cubin = { .s = xalloc(size), .n = size, .cap = size };
	rtc.GetCUBIN(p, cubin.s);
	if (!write_cubin(to, &cubin))
		return diag_failed("cannot write %s: %s", to, strerror(errno));
	buf_puts(&cubin, sha256_hex(cubin.s, size));
	if (cached)
		write_cubin(cached, &cubin);
	return true;
}

/*
 * A cubin of the cache, which has its SHA-256 behind it; false: there is none that is whole. The
 * file's time becomes that of this use.
 */
static bool
cache_read(const char *path, struct buf *cubin)
{
	enum { DIGITS = 64 };
	size_t n;
	char *s = om_file_read(path, FILE_MOST, &n);

	if (!s || n <= DIGITS)
		return false;
	utimensat(AT_FDCWD, path, NULL, 0);
	*cubin = (struct buf){ .s = s, .n = n - DIGITS, .cap = n };
	return !memcmp(s + cubin->n, sha256_hex(s, cubin->n), DIGITS);
}

/* When a file was written, in nanoseconds. */
static int64_t
time_of(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

struct cached {
	const char *path;
	int64_t used;
	uint64_t size;
};

static int
by_use(const void *a, const void *b)
{
	const struct cached *x = a, *y = b;

	return (x->used > y->used) - (x->used < y->used);
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
		c.used = time_of(&st);
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

	return stat(path, &a) || stat(than, &b) || time_of(&a) < time_of(&b);
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
		diag_failed("a compiler of CUDA kernels was ended by signal %d (%s); where memory "
			    "is short, -j1 takes the least",
		    WTERMSIG(status), strsignal(WTERMSIG(status)));
	return status == 0;
}

/*
 * Makes one file's cubin: gives it that of the cache, or starts a compiler and counts it. False:
 * said why.
 */
static bool
make_cubin(const struct tree *t, const struct file *f, const char *dir, const char *arch,
    const char *cache, bool verbose, int *running)
{
	const char *to = xprintf("%s/%.*s.cubin", dir, (int)strcspn(f->path, "."), f->path);
	const char *cached = cache ? xprintf("%s/%s.cubin", cache, key_of(t, f, arch)) : NULL;
	struct buf have;

	if (cached && cache_read(cached, &have))
		return (tree_same(to, &have) && !stale(to, t, f, dir)) || write_cubin(to, &have);
	if (verbose)
		printf("NVRTC %s\n", f->path);
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		build_end_with_parent();
		_exit(!compile(t, f, arch, to, cached));
	}
	if (child < 0)
		return diag_failed("cannot start a compiler of CUDA kernels: %s", strerror(errno));
	++*running;
	return true;
}

bool
nvrtc_build(const struct tree *t, const char *dir, const char *arch, int jobs, bool verbose)
{
	const char *cache = cache_folder();
	int running = 0;
	bool ok = true;

	if (!open_nvrtc(arch))
		return false;
	for (uint32_t i = 0; i < t->n && ok; i++) {
		const struct file *f = &t->a[i];
		if (strcmp(f->path + strcspn(f->path, "."), ".cu"))
			continue;
		if (running == jobs) {
			ok &= ended_well();
			running--;
		}
		ok = ok && make_cubin(t, f, dir, arch, cache, verbose, &running);
	}
	for (; running; running--)
		ok &= ended_well();
	if (cache)
		cache_prune(cache);
	return ok;
}
