/*
 * A stand-in for the NVIDIA driver, so that what a trainer's host part does and says is tested
 * where there is no GPU: libcuda.so.1 of a device that computes nothing. A kernel takes 60 us of
 * its stream, beside those of others, and 30 us of a graph; memory is the host's. A recording has
 * streams that join it by waiting for events, and is refused as a driver does where one of them is
 * not joined at its end, or where an event is of another recording. A thread needs the context;
 * and what adamw changes may be copied by another stream only after the update before and before
 * the next one, as events say; what was copied to another block of the device's memory, only after
 * that. The environment makes it another device: FAKE_NAME, FAKE_COUNT (devices), FAKE_ARCH (90),
 * FAKE_VERSION (13000), FAKE_TOTAL and FAKE_FREE (MiB), FAKE_PINNED (MiB of page-locked memory),
 * FAKE_KEPT (1: beside the first stream the host gets nothing but what was copied so); and errors:
 * FAKE_INIT, FAKE_CONTEXT, FAKE_LOAD, FAKE_LAUNCH (numbers of CUresult), FAKE_HANG (the RANK whose
 * device never ends a graph).
 */
#include <cuda.h>
#include <elf.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double recorded; /* seconds of the graph that is being recorded */
static int recording;   /* its number, 0: none */

enum { STREAMS = 32 };
static struct CUstream_st {
	int recording, done[STREAMS]; /* what was given to each stream that is before its next */
	double until;                 /* when it is done with what it was given */
} streams[STREAMS];
static int nstreams, recordings;
static int copied[STREAMS], updated[STREAMS]; /* what each was given up to its last copy, update */
static bool updates;                          /* there is one in what is recorded */
static _Thread_local bool current;            /* the thread has the context */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { BLOCKS = 1000 };
static struct block {
	CUdeviceptr at;
	size_t bytes;
	int kept[STREAMS]; /* what each stream was given up to its last copy to it from elsewhere */
	bool keeps;
} blocks[BLOCKS]; /* of cuMemAlloc, the newest */
static int nblocks;

struct CUevent_st {
	double at;
	int recording, done[STREAMS];
};
struct CUgraphExec_st {
	double seconds;
	bool updates;
};
struct CUmod_st {
	const char *image;
};

static int
given(const char *name, int otherwise)
{
	return getenv(name) ? atoi(getenv(name)) : otherwise;
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static CUresult
wait_until(double t)
{
	while (now() < t)
		if (t - now() > 100)
			sleep(1);
	return CUDA_SUCCESS;
}

/* A stream is given work of so many seconds. */
static void
work(CUstream s, double seconds)
{
	if (s->until < now())
		s->until = now();
	s->until += seconds;
}

static struct block *
block_of(CUdeviceptr p)
{
	for (struct block *b = blocks; b < blocks + BLOCKS; b++)
		if (p - b->at < b->bytes)
			return b;
	return NULL;
}

/* The stream is given something more; whether all of the other streams' `what` comes before it. */
static bool
after(CUstream s, const int *what)
{
	bool all = true;

	s->done[s - streams]++;
	for (int i = 0; i < nstreams; i++)
		all = all && s->done[i] >= what[i];
	return all;
}

/* The names of an image's kernels, which is an ELF file, as functions; gives how many it has. */
static unsigned
kernels(const char *image, CUfunction *to, unsigned most)
{
	const Elf64_Ehdr *h = (const void *)image;
	const Elf64_Shdr *s = (const void *)(image + h->e_shoff);
	const char *names = image + s[h->e_shstrndx].sh_offset;
	unsigned n = 0;

	for (int i = 0; i < h->e_shnum; i++)
		if (strncmp(names + s[i].sh_name, ".text.", 6) == 0) {
			if (n < most)
				to[n] = (CUfunction)(void *)(names + s[i].sh_name + 6);
			n++;
		}
	return n;
}

CUresult
cuInit(unsigned flags)
{
	(void)flags;
	return (CUresult)given("FAKE_INIT", 0);
}
CUresult
cuDriverGetVersion(int *version)
{
	*version = given("FAKE_VERSION", 13000);
	return CUDA_SUCCESS;
}
CUresult
cuGetErrorName(CUresult r, const char **s)
{
	static char name[32];

	snprintf(name, sizeof name, "CUDA_ERROR_%d", (int)r);
	*s = name;
	return CUDA_SUCCESS;
}
CUresult
cuGetErrorString(CUresult r, const char **s)
{
	(void)r;
	*s = "an error";
	return CUDA_SUCCESS;
}
CUresult
cuDeviceGetCount(int *n)
{
	*n = given("FAKE_COUNT", 1);
	return CUDA_SUCCESS;
}
CUresult
cuDeviceGet(CUdevice *d, int i)
{
	*d = i;
	return CUDA_SUCCESS;
}
CUresult
cuDeviceGetName(char *s, int n, CUdevice d)
{
	(void)d;
	snprintf(s, (size_t)n, "%s", getenv("FAKE_NAME") ? getenv("FAKE_NAME") : "Fake GPU");
	return CUDA_SUCCESS;
}
CUresult
cuDeviceGetPCIBusId(char *s, int n, CUdevice d)
{
	snprintf(s, (size_t)n, "0000:%02x:00.0", d);
	return CUDA_SUCCESS;
}
CUresult
cuDeviceGetAttribute(int *x, CUdevice_attribute a, CUdevice d)
{
	const int arch = given("FAKE_ARCH", 90);

	(void)d;
	*x = a == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? arch / 10
	     : a == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? arch % 10
								 : 132;
	return CUDA_SUCCESS;
}
CUresult
cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d)
{
	(void)d;
	*c = NULL;
	return (CUresult)given("FAKE_CONTEXT", 0);
}
CUresult
cuDevicePrimaryCtxSetFlags(CUdevice d, unsigned flags)
{
	(void)d, (void)flags;
	return CUDA_SUCCESS;
}
CUresult
cuCtxSetCurrent(CUcontext c)
{
	(void)c;
	current = true;
	return CUDA_SUCCESS;
}
CUresult
cuMemGetInfo(size_t *available, size_t *total)
{
	*total = (size_t)given("FAKE_TOTAL", 1 << 17) << 20;
	*available = (size_t)given("FAKE_FREE", given("FAKE_TOTAL", 1 << 17) - 500) << 20;
	return CUDA_SUCCESS;
}
CUresult
cuMemAlloc(CUdeviceptr *p, size_t n)
{
	*p = (CUdeviceptr)calloc(1, n);
	blocks[nblocks % BLOCKS] = (struct block){ .at = *p, .bytes = n };
	nblocks++;
	return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult
cuMemFree(CUdeviceptr p)
{
	if (block_of(p))
		*block_of(p) = (struct block){ 0 };
	free((void *)p);
	return CUDA_SUCCESS;
}
/* Memory that processes share is a file without a name, whose descriptor is its handle. */
CUresult
cuMemGetAllocationGranularity(
    size_t *unit, const CUmemAllocationProp *how, CUmemAllocationGranularity_flags flags)
{
	(void)how, (void)flags;
	*unit = 2 << 20;
	return CUDA_SUCCESS;
}
CUresult
cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *how,
    unsigned long long flags)
{
	const int fd = memfd_create("memory of a device", MFD_CLOEXEC);

	(void)how, (void)flags;
	*h = (CUmemGenericAllocationHandle)fd;
	return fd >= 0 && !ftruncate(fd, (off_t)n) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult
cuMemAddressReserve(
    CUdeviceptr *p, size_t n, size_t align, CUdeviceptr near, unsigned long long flags)
{
	void *at = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)align, (void)near, (void)flags;
	*p = (CUdeviceptr)at;
	return at == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult
cuMemMap(
    CUdeviceptr p, size_t n, size_t at, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	void *there = mmap((void *)p, n, PROT_READ, MAP_SHARED | MAP_FIXED, (int)h, (off_t)at);

	(void)flags;
	return there == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult
cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *access, size_t count)
{
	(void)access, (void)count;
	return mprotect((void *)p, n, PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE
							      : CUDA_SUCCESS;
}
CUresult
cuMemExportToShareableHandle(void *fd, CUmemGenericAllocationHandle h,
    CUmemAllocationHandleType type, unsigned long long flags)
{
	(void)flags;
	*(int *)fd = dup((int)h);
	return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_SUCCESS
								: CUDA_ERROR_INVALID_VALUE;
}
CUresult
cuMemImportFromShareableHandle(
    CUmemGenericAllocationHandle *h, void *fd, CUmemAllocationHandleType type)
{
	*h = (CUmemGenericAllocationHandle)dup((int)(uintptr_t)fd);
	return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_SUCCESS
								: CUDA_ERROR_INVALID_VALUE;
}
CUresult
cuMemRelease(CUmemGenericAllocationHandle h)
{
	return close((int)h) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
/* Whether so much more may be pinned. */
static bool
pinned(size_t n)
{
	static size_t all;
	bool room;

	pthread_mutex_lock(&lock);
	room = (all + n) >> 20 < (size_t)given("FAKE_PINNED", 1 << 17);
	all += room ? n : 0;
	pthread_mutex_unlock(&lock);
	return room;
}
CUresult
cuMemAllocHost(void **p, size_t n)
{
	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	*p = pinned(n) ? calloc(1, n) : NULL;
	return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult
cuMemHostRegister(void *p, size_t n, unsigned flags)
{
	(void)flags;
	if (!current || (uintptr_t)p % 4096)
		return CUDA_ERROR_INVALID_CONTEXT;
	return pinned(n) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult
cuMemHostUnregister(void *p)
{
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult
cuMemsetD8Async(CUdeviceptr p, unsigned char x, size_t n, CUstream s)
{
	(void)s;
	memset((void *)p, x, n);
	return CUDA_SUCCESS;
}
CUresult
cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream s)
{
	(void)s;
	memcpy((void *)to, from, n);
	return CUDA_SUCCESS;
}
CUresult
cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream s)
{
	const struct block *b = block_of(from);
	bool ok;

	pthread_mutex_lock(&lock);
	if (b && b->keeps) {
		ok = after(s, b->kept);
	} else {
		ok = after(s, updated) && (s == streams || !given("FAKE_KEPT", 0));
		copied[s - streams] = s->done[s - streams];
	}
	ok = ok && current;
	pthread_mutex_unlock(&lock);
	memcpy(to, (void *)from, n);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}
CUresult
cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s)
{
	struct block *b = block_of(to);
	bool ok = true;

	pthread_mutex_lock(&lock);
	if (b && b != block_of(from)) {
		ok = after(s, updated);
		copied[s - streams] = b->kept[s - streams] = s->done[s - streams];
		b->keeps = true;
	}
	pthread_mutex_unlock(&lock);
	memmove((void *)to, (void *)from, n);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}
CUresult
cuModuleLoadData(CUmodule *m, const void *image)
{
	*m = malloc(sizeof **m);
	(*m)->image = image;
	return (CUresult)given("FAKE_LOAD", 0);
}
CUresult
cuModuleGetFunctionCount(unsigned *n, CUmodule m)
{
	*n = kernels(m->image, NULL, 0);
	return CUDA_SUCCESS;
}
CUresult
cuModuleEnumerateFunctions(CUfunction *f, unsigned n, CUmodule m)
{
	kernels(m->image, f, n);
	return CUDA_SUCCESS;
}
CUresult
cuFuncGetName(const char **name, CUfunction f)
{
	*name = (const char *)f;
	return CUDA_SUCCESS;
}
CUresult
cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int x)
{
	(void)f, (void)a, (void)x;
	return CUDA_SUCCESS;
}
CUresult
cuStreamCreate(CUstream *s, unsigned flags)
{
	(void)flags;
	*s = &streams[nstreams++];
	return CUDA_SUCCESS;
}
CUresult
cuStreamCreateWithPriority(CUstream *s, unsigned flags, int priority)
{
	(void)priority;
	return cuStreamCreate(s, flags);
}
CUresult
cuStreamSynchronize(CUstream s)
{
	return wait_until(s->until);
}
CUresult
cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **args, void **extra)
{
	const bool update = strstr((const char *)f, "adamw");
	bool ok;

	(void)args, (void)extra;
	pthread_mutex_lock(&lock);
	ok = after(c->hStream, copied) || !update || recording;
	updates = updates || update;
	if (update && !recording)
		updated[c->hStream - streams] = c->hStream->done[c->hStream - streams];
	if (recording)
		recorded += 30e-6;
	else
		work(c->hStream, 60e-6);
	pthread_mutex_unlock(&lock);
	if (c->hStream->recording != recording)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (!ok)
		return CUDA_ERROR_ILLEGAL_STATE;
	return (CUresult)given("FAKE_LAUNCH", 0);
}
CUresult
cuEventCreate(CUevent *e, unsigned flags)
{
	(void)flags;
	*e = malloc(sizeof **e);
	return CUDA_SUCCESS;
}
CUresult
cuEventRecord(CUevent e, CUstream s)
{
	pthread_mutex_lock(&lock);
	work(s, 0);
	e->at = s->until;
	e->recording = s->recording;
	memcpy(e->done, s->done, sizeof e->done);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
CUresult
cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
	(void)flags;
	if (e->recording != recording)
		return CUDA_ERROR_CAPTURED_EVENT;
	pthread_mutex_lock(&lock);
	s->recording = e->recording;
	s->until = e->at > s->until ? e->at : s->until;
	for (int i = 0; i < STREAMS; i++)
		s->done[i] = e->done[i] > s->done[i] ? e->done[i] : s->done[i];
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
CUresult
cuEventSynchronize(CUevent e)
{
	return wait_until(e->at);
}
CUresult
cuEventElapsedTime(float *ms, CUevent a, CUevent b)
{
	*ms = (float)(1e3 * (b->at - a->at));
	return CUDA_SUCCESS;
}
CUresult
cuStreamBeginCapture(CUstream s, CUstreamCaptureMode mode)
{
	(void)mode;
	s->recording = recording = ++recordings;
	recorded = 0;
	updates = false;
	return CUDA_SUCCESS;
}
CUresult
cuStreamEndCapture(CUstream s, CUgraph *g)
{
	CUresult r = CUDA_SUCCESS;

	for (int i = 0; i < nstreams; i++)
		if (streams[i].recording && s->done[i] < streams[i].done[i])
			r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	for (int i = 0; i < nstreams; i++)
		streams[i].recording = 0;
	recording = 0;
	*g = NULL;
	return r;
}
CUresult
cuGraphInstantiate(CUgraphExec *x, CUgraph g, unsigned long long flags)
{
	(void)g, (void)flags;
	*x = malloc(sizeof **x);
	(*x)->seconds = recorded;
	(*x)->updates = updates;
	return CUDA_SUCCESS;
}
CUresult
cuGraphLaunch(CUgraphExec x, CUstream s)
{
	bool ok;

	pthread_mutex_lock(&lock);
	ok = after(s, copied) || !x->updates;
	if (x->updates)
		updated[s - streams] = s->done[s - streams];
	work(s, x->seconds);
	if (getenv("FAKE_HANG") && getenv("RANK") && !strcmp(getenv("FAKE_HANG"), getenv("RANK")))
		work(s, 1e6);
	pthread_mutex_unlock(&lock);
	return ok ? (CUresult)given("FAKE_LAUNCH", 0) : CUDA_ERROR_ILLEGAL_STATE;
}
CUresult
cuGraphDestroy(CUgraph g)
{
	(void)g;
	return CUDA_SUCCESS;
}
CUresult
cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *p,
    const cuuint64_t *dim, const cuuint64_t *stride, const cuuint32_t *box, const cuuint32_t *step,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
    CUtensorMapFloatOOBfill fill)
{
	(void)map, (void)type, (void)rank, (void)p, (void)dim, (void)stride, (void)box, (void)step,
	    (void)interleave;
	(void)swizzle, (void)l2, (void)fill;
	return CUDA_SUCCESS;
}
