/*
 * The CUDA driver, opened when the trainer starts, so that it also starts where there is none and
 * says so. Everything runs in one context, in one stream but for the launches of a graph.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu.h"
#include "om_gpu.h"
#include "om_rt.h"
#include "peers.h"

/* clang-format off */
#define DRIVER(F)                                                                            \
	F(cuInit) F(cuDriverGetVersion) F(cuGetErrorName) F(cuGetErrorString)                 \
	F(cuDeviceGetCount) F(cuDeviceGet) F(cuDeviceGetName) F(cuDeviceGetAttribute)         \
	F(cuDeviceGetPCIBusId)                                                                \
	F(cuDevicePrimaryCtxRetain) F(cuDevicePrimaryCtxSetFlags) F(cuCtxSetCurrent)          \
	F(cuMemGetInfo) F(cuMemAlloc) F(cuMemFree) F(cuMemAllocHost)                          \
	F(cuMemHostRegister) F(cuMemHostUnregister)                                           \
	F(cuMemGetAllocationGranularity) F(cuMemCreate) F(cuMemAddressReserve) F(cuMemMap)    \
	F(cuMemSetAccess) F(cuMemExportToShareableHandle) F(cuMemImportFromShareableHandle)   \
	F(cuMemRelease)                                                                       \
	F(cuMemsetD8Async)                                                                    \
	F(cuMemcpyHtoDAsync) F(cuMemcpyDtoHAsync) F(cuMemcpyDtoDAsync)            \
	F(cuModuleLoadData) F(cuModuleGetFunctionCount) F(cuModuleEnumerateFunctions)         \
	F(cuFuncGetName) F(cuFuncSetAttribute)                                                \
	F(cuStreamCreate) F(cuStreamCreateWithPriority) F(cuStreamSynchronize) \
	 F(cuStreamWaitEvent) F(cuLaunchKernelEx)     \
	F(cuEventCreate) F(cuEventRecord) F(cuEventSynchronize) F(cuEventElapsedTime)         \
	F(cuStreamBeginCapture) F(cuStreamEndCapture) F(cuGraphInstantiate) F(cuGraphLaunch)  \
	F(cuGraphDestroy) F(cuTensorMapEncodeTiled)
/* clang-format on */

/* cuda.h maps some names to versions of themselves; so do the members, and the names looked up */
static struct {
#define MEMBER(f) __typeof__(&f) f;
	DRIVER(MEMBER)
} cu;
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

enum { FIRST_PRIORITY = -100 };            /* the driver takes the highest that it has */
enum { STAGES = 4 };                       /* pinned buffers that puts and gets go through */
static const size_t stage_bytes = 8 << 20; /* of one: enough for the bus to run at its speed */
static struct {
	unsigned char *p;
	CUevent done;
	bool used;
} stage[STAGES];
static unsigned turn;

static struct {
	CUstream stream;
	CUevent begun, ended, *there; /* there: of each slot, its last copy */
	uint32_t n;                   /* slots */
} aside;

static CUdevice device;
static CUcontext context;
static int driver_version; /* 13000: of CUDA 13.0 */
static CUstream stream;    /* the first; all but launches are in it */
static CUstream on;        /* launches are in */
static struct {            /* what a part of the step that has its streams may use */
	CUstream *stream;
	CUevent *joint, *event;
	bool *done; /* the event was recorded */
	uint32_t streams;
	bool running;
	int on; /* the number of `on` */
} parts;
static struct om_kernel *kernels;
static char device_name[128], device_model[64], device_bus[32];
static uint32_t multiprocessors;
static const char *current; /* operation, where it is waited for */
static bool running;        /* the device is taken, and kernels may be under way */

#define FAULTY "the device is faulty: run elsewhere. The last checkpoint is whole"
/* What helps against an error whose text does not say so. */
static const struct {
	CUresult error;
	const char *advice;
} advice[] = {
	{ CUDA_ERROR_ECC_UNCORRECTABLE, FAULTY },
	{ CUDA_ERROR_HARDWARE_STACK_ERROR, FAULTY },
	{ CUDA_ERROR_DEVICE_UNAVAILABLE,
	    "another process has this GPU for itself (nvidia-smi lists it, and the compute mode): "
	    "end it, or choose another GPU by CUDA_VISIBLE_DEVICES" },
	{ CUDA_ERROR_OUT_OF_MEMORY,
	    "other processes hold this GPU's memory (nvidia-smi lists them): end them, or choose "
	    "another GPU by CUDA_VISIBLE_DEVICES" },
	{ CUDA_ERROR_STUB_LIBRARY,
	    "the first libcuda.so.1 is the CUDA Toolkit's, made for linking alone: take its folder "
	    "out of LD_LIBRARY_PATH" },
	{ CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
	    "libcuda.so.1 and the driver in the kernel are of different versions: restart the "
	    "machine, or the container with the libraries of its driver" },
	{ CUDA_ERROR_SYSTEM_NOT_READY,
	    "on a machine with NVSwitch, nvidia-fabricmanager has to run" },
	{ CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
	    "this GPU does not reach that of another rank (nvidia-smi topo -p2p r): experts lie on "
	    "several ranks only where GPUs have NVLink or PCIe access to one another" },
	{ CUDA_ERROR_UNKNOWN,
	    "nvidia-smi and dmesg say more; often the driver's modules are not loaded, or the "
	    "container has no access to /dev/nvidia*" },
};

static void
check(CUresult r, const char *operation)
{
	const char *name = "?", *text = "unknown error", *more = NULL;

	if (r == CUDA_SUCCESS)
		return;
	for (size_t i = 0; i < OM_LEN(advice); i++)
		if (advice[i].error == r)
			more = advice[i].advice;
	if (!more && running && !current)
		more = "OM_SYNC=1 in the environment names the operator. The last checkpoint is "
		       "whole";
	cu.cuGetErrorName(r, &name);
	cu.cuGetErrorString(r, &text);
	(running ? om_lost : om_die)(current ? current : operation, "%s (%s)%s%s", text, name,
	    more ? "; " : "", more ? more : "");
}

void
om_kernel_add(struct om_kernel *k)
{
	k->next = kernels;
	kernels = k;
}

static void
open_driver(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	const char *why = lib ? "" : om_text("%s", dlerror());

	if (!lib)
		om_die("driver",
		    "no NVIDIA driver here: %s; run on a machine with a GPU, or build it by "
		    "olmogen --target=cpu%s",
		    why, om_lacks());
#define FIND(f)                                                                                \
	*(void **)&cu.f = dlsym(lib, TEXT(f));                                                 \
	if (!cu.f)                                                                             \
		om_die("driver", "libcuda.so.1 lacks " TEXT(f) "; update the NVIDIA driver%s", \
		    om_lacks());
	DRIVER(FIND)
}

void
om_gpu_driver(char text[128])
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	__typeof__(&cuDriverGetVersion) get_version = NULL;
	__typeof__(&cuInit) init = NULL;
	__typeof__(&cuDeviceGetCount) get_count = NULL;
	__typeof__(&cuDeviceGetName) get_name = NULL;
	__typeof__(&cuDeviceGetAttribute) get = NULL;
	const CUdevice_attribute of[] = { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
		CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR };
	char name[64];
	int v = 0, n = 0, arch[2];
	size_t used;

	if (lib) {
		*(void **)&get_version = dlsym(lib, "cuDriverGetVersion");
		*(void **)&init = dlsym(lib, "cuInit");
		*(void **)&get_count = dlsym(lib, "cuDeviceGetCount");
		*(void **)&get_name = dlsym(lib, "cuDeviceGetName");
		*(void **)&get = dlsym(lib, "cuDeviceGetAttribute");
	}
	if (!get_version || !init || !get_count || !get_name || !get || get_version(&v)) {
		snprintf(text, 128, "no driver");
		return;
	}
	used = (size_t)snprintf(text, 128, "a driver for CUDA %d.%d", v / 1000, v % 1000 / 10);
	if (init(0) || get_count(&n) || !n || get_name(name, sizeof name, 0) ||
	    get(&arch[0], of[0], 0) || get(&arch[1], of[1], 0))
		snprintf(text + used, 128 - used, ", no GPU");
	else
		snprintf(text + used, 128 - used,
		    n > 1 ? ", %d GPUs, %s (sm_%d%d)" : ", %d GPU, %s (sm_%d%d)", n, name, arch[0],
		    arch[1]);
}

void
om_device_needs(char needs[OM_NEEDS], char here[OM_NEEDS])
{
	char more[64], found[64], driver[128], glibc[16], own[16];

	om_comm_needs(more, found);
	om_gpu_driver(driver);
	om_glibc(glibc, own);
	snprintf(needs, OM_NEEDS, "a driver for CUDA %d.%d or later, a GPU of sm_%da%s%s%s%s%s",
	    CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, OM_ARCH, *more ? ", " : "", more,
	    *glibc ? ", glibc " : "", glibc, *glibc ? " or later" : "");
	snprintf(here, OM_NEEDS, "%s%s%s%s%s", driver, *found ? ", " : "", found,
	    *own ? ", glibc " : "", own);
}

const char *
om_lacks(void)
{
	static char text[2 * OM_NEEDS + 64];
	char needs[OM_NEEDS], here[OM_NEEDS];

	om_device_needs(needs, here);
	snprintf(text, sizeof text, ". This trainer needs %s. Here: %s", needs, here);
	return text;
}

static int
attribute(CUdevice_attribute a)
{
	int x;

	check(cu.cuDeviceGetAttribute(&x, a, device), "device");
	return x;
}

static struct om_kernel *
kernel_of(const char *name)
{
	struct om_kernel *k = kernels;

	while (k && strcmp(k->name, name) != 0)
		k = k->next;
	return k;
}

static void
load_cubin(const void *image)
{
	unsigned n = 0;
	CUmodule module;
	CUfunction *f;
	CUresult r = cu.cuModuleLoadData(&module, image);

	if (r != CUDA_SUCCESS && driver_version < CUDA_VERSION)
		om_die("driver",
		    "this NVIDIA driver is made for CUDA %d.%d and does not load kernels that CUDA "
		    "%d.%d compiled; update the driver, or build the trainer with an older CUDA "
		    "Toolkit%s",
		    driver_version / 1000, driver_version % 1000 / 10, CUDA_VERSION / 1000,
		    CUDA_VERSION % 1000 / 10, om_lacks());
	check(r, "loading kernels");
	check(cu.cuModuleGetFunctionCount(&n, module), "loading kernels");
	f = om_alloc(n + 1, sizeof(CUfunction));
	check(cu.cuModuleEnumerateFunctions(f, n, module), "loading kernels");
	for (unsigned i = 0; i < n; i++) {
		struct om_kernel *k;
		const char *name;

		check(cu.cuFuncGetName(&name, f[i]), "loading kernels");
		k = kernel_of(name);
		if (!k)
			continue;
		k->function = f[i];
		if (k->smem > 48 << 10)
			check(cu.cuFuncSetAttribute(f[i],
				  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)k->smem),
			    name);
	}
	free(f);
}

static void
load_kernels(void)
{
	for (const void *const *image = om_cubins; *image; image++)
		load_cubin(*image);
	for (struct om_kernel *k = kernels; k; k = k->next)
		if (!k->function)
			om_die(k->name, "is in no cubin of this trainer; build it anew");
}

/* Of those that are visible: which these are is CUDA_VISIBLE_DEVICES' business. */
static void
take_device(void)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	CUresult r = cu.cuInit(0);
	uint32_t own = om_comm_local();
	int count = 0, arch;

	if (r == CUDA_SUCCESS)
		r = cu.cuDeviceGetCount(&count);
	if (r == CUDA_ERROR_NO_DEVICE || (r == CUDA_SUCCESS && !count))
		om_die("device",
		    "the driver shows no GPU%s%s; nvidia-smi lists what the machine has%s",
		    visible ? ", CUDA_VISIBLE_DEVICES is " : "",
		    !visible   ? ""
		    : *visible ? om_clip(visible)
			       : "empty",
		    om_lacks());
	check(r, "driver");
	check(cu.cuDriverGetVersion(&driver_version), "driver");
	if (count == 1) /* each rank may be shown its own */
		own = 0;
	if (own >= (uint32_t)count)
		om_die("device",
		    "the driver shows %d GPUs%s%s, and this is rank %u of this machine, from 0; "
		    "start "
		    "as many ranks on it as it has GPUs",
		    count, visible ? ", CUDA_VISIBLE_DEVICES is " : "",
		    visible ? om_clip(visible) : "", own);
	check(cu.cuDeviceGet(&device, (int)own), "device");
	check(cu.cuDeviceGetName(device_model, sizeof device_model, device), "device");
	check(cu.cuDeviceGetPCIBusId(device_bus, sizeof device_bus, device), "device");
	snprintf(device_name, sizeof device_name, count > 1 ? "%s (GPU %u of %d)" : "%s",
	    device_model, own, count);
	arch = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
	       attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
	if (arch != OM_ARCH)
		om_die("device",
		    "%s is of architecture sm_%d, and this trainer's kernels are for sm_%da alone; "
		    "choose another GPU by CUDA_VISIBLE_DEVICES, or build for this one's "
		    "architecture (olmogen --explain=target lists them)%s",
		    device_name, arch, OM_ARCH, om_lacks());
}

void
om_gpu_start(void)
{
	open_driver();
	take_device();
	multiprocessors = (uint32_t)attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	/* who waits for the device sleeps */
	check(cu.cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_BLOCKING_SYNC), "context");
	check(cu.cuDevicePrimaryCtxRetain(&context, device), "context");
	check(cu.cuCtxSetCurrent(context), "context");
	check(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
	on = stream;
	for (int i = 0; i < STAGES; i++) {
		check(cu.cuMemAllocHost((void **)&stage[i].p, stage_bytes), "pinned memory");
		check(cu.cuEventCreate(
			  &stage[i].done, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
		    "event");
	}
	load_kernels();
	running = true;
}

const char *
om_gpu_name(void)
{
	return device_name;
}

uint32_t om_gpu_beside;

const char *
om_gpu_model(void)
{
	return device_model;
}

const char *
om_gpu_bus(void)
{
	return device_bus;
}

uint32_t
om_sms(void)
{
	return multiprocessors - (on == stream ? 0 : om_gpu_beside);
}

void *
om_gpu_new(uint64_t bytes)
{
	CUdeviceptr p = 0;

	check(cu.cuMemAlloc(&p, bytes ? bytes : 1), "memory");
	return (void *)(uintptr_t)p;
}

void *
om_gpu_spare(uint64_t bytes)
{
	CUdeviceptr p;

	return cu.cuMemAlloc(&p, bytes) == CUDA_SUCCESS ? (void *)(uintptr_t)p : NULL;
}

void *(*om_gpu_arena)(uint64_t bytes) = om_gpu_new;

/* Maps an allocation of the driver's, whose handle is given up: what is mapped stays. */
static void *
map(CUmemGenericAllocationHandle h, uint64_t bytes, const char *operation)
{
	const CUmemAccessDesc own = { { CU_MEM_LOCATION_TYPE_DEVICE, device },
		CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr p = 0;

	check(cu.cuMemAddressReserve(&p, bytes, 0, 0, 0), operation);
	check(cu.cuMemMap(p, bytes, 0, h, 0), operation);
	check(cu.cuMemSetAccess(p, bytes, &own, 1), operation);
	check(cu.cuMemRelease(h), operation);
	return (void *)(uintptr_t)p;
}

void *
om_gpu_shared_new(uint64_t *bytes, int *fd)
{
	const CUmemAllocationProp how = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, device } };
	CUmemGenericAllocationHandle h;
	size_t unit;

	check(cu.cuMemGetAllocationGranularity(&unit, &how, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
	    "memory");
	*bytes = (*bytes + unit - 1) / unit * unit;
	check(cu.cuMemCreate(&h, *bytes, &how, 0), "memory");
	check(cu.cuMemExportToShareableHandle(fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	    "memory that other ranks map");
	return map(h, *bytes, "memory");
}

void *
om_gpu_shared_map(int fd, uint64_t bytes)
{
	CUmemGenericAllocationHandle h;

	check(cu.cuMemImportFromShareableHandle(
		  &h, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	    "memory of another rank");
	return map(h, bytes, "memory of another rank");
}

void
om_gpu_memory(uint64_t *used, uint64_t *total)
{
	size_t available, all;

	check(cu.cuMemGetInfo(&available, &all), "memory");
	*used = all - available;
	*total = all;
}

void
om_gpu_free(void *p)
{
	check(cu.cuMemFree((CUdeviceptr)(uintptr_t)p), "memory");
}

/* What the device was given may wait for other ranks. */
static void
await_event(CUevent e, const char *operation)
{
	CUresult r;

	om_comm_waits(true);
	r = cu.cuEventSynchronize(e);
	om_comm_waits(false);
	check(r, operation);
}

/* The next pinned buffer, once the copy that used it last is done. */
static unsigned
next_stage(void)
{
	unsigned i = turn++ % STAGES;

	if (stage[i].used)
		await_event(stage[i].done, "copy");
	return i;
}

void
om_gpu_put(void *to, const void *from, size_t bytes)
{
	for (size_t at = 0, n; at < bytes; at += n) {
		unsigned i = next_stage();

		n = bytes - at < stage_bytes ? bytes - at : stage_bytes;
		memcpy(stage[i].p, (const char *)from + at, n);
		check(cu.cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)to + at, stage[i].p, n, stream),
		    "copy");
		check(cu.cuEventRecord(stage[i].done, stream), "copy");
		stage[i].used = true;
	}
}

void
om_gpu_get(void *to, const void *from, size_t bytes)
{
	size_t sent = 0, got = 0;
	unsigned first = turn;

	/* as many copies are under way as there are buffers */
	while (got < bytes) {
		size_t n;

		while (sent < bytes && sent - got < STAGES * stage_bytes) {
			unsigned i = next_stage();

			n = bytes - sent < stage_bytes ? bytes - sent : stage_bytes;
			check(cu.cuMemcpyDtoHAsync(
				  stage[i].p, (CUdeviceptr)(uintptr_t)from + sent, n, stream),
			    "copy");
			check(cu.cuEventRecord(stage[i].done, stream), "copy");
			stage[i].used = true;
			sent += n;
		}
		n = bytes - got < stage_bytes ? bytes - got : stage_bytes;
		await_event(stage[first % STAGES].done, "device");
		memcpy((char *)to + got, stage[first % STAGES].p, n);
		first++;
		got += n;
	}
}

void *
om_gpu_locked(size_t bytes)
{
	void *p;

	check(cu.cuMemAllocHost(&p, bytes), "pinned memory");
	return p;
}

void
om_gpu_fetch(void *locked, const void *from, size_t bytes)
{
	check(cu.cuMemcpyDtoHAsync(locked, (CUdeviceptr)(uintptr_t)from, bytes, stream), "copy");
}

/*
 * The driver holds all calls of the process while it locks pages, and takes them first if they are
 * not there: gigabytes of them would stop training for seconds. So they are taken here.
 */
void *
om_gpu_aside_new(size_t bytes, uint32_t slot)
{
	enum { HUGE_PAGE = 2 << 20, PAGE = 4096 };
	unsigned char *p = aligned_alloc(HUGE_PAGE, bytes);

	if (!p)
		return NULL;
	madvise(p, bytes, MADV_HUGEPAGE);
	for (size_t i = 0; i < bytes; i += PAGE)
		((volatile unsigned char *)p)[i] = 0;
	check(cu.cuCtxSetCurrent(context), "context"); /* of the thread that asks */
	if (cu.cuMemHostRegister(p, bytes, 0) != CUDA_SUCCESS) {
		free(p);
		return NULL;
	}
	if (slot == aside.n) {
		CUevent *more = om_alloc(++aside.n, sizeof *more);

		if (slot)
			memcpy(more, aside.there, slot * sizeof *more);
		free(aside.there);
		aside.there = more;
		check(
		    cu.cuEventCreate(&more[slot], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
		    "event");
	}
	return p;
}

void
om_gpu_aside_free(void *p)
{
	check(cu.cuMemHostUnregister(p), "pinned memory");
	free(p);
}

void
om_gpu_aside_begin(void)
{
	if (!aside.stream) {
		check(cu.cuStreamCreate(&aside.stream, CU_STREAM_NON_BLOCKING), "stream");
		check(cu.cuEventCreate(&aside.begun, CU_EVENT_DISABLE_TIMING), "event");
		check(cu.cuEventCreate(&aside.ended, CU_EVENT_DISABLE_TIMING), "event");
	}
	check(cu.cuEventRecord(aside.begun, stream), "event");
	check(cu.cuStreamWaitEvent(aside.stream, aside.begun, 0), "event");
}

void
om_gpu_aside_get(void *locked, const void *from, size_t bytes, uint32_t slot)
{
	check(cu.cuCtxSetCurrent(context), "context");
	check(cu.cuMemcpyDtoHAsync(locked, (CUdeviceptr)(uintptr_t)from, bytes, aside.stream),
	    "copy");
	check(cu.cuEventRecord(aside.there[slot], aside.stream), "copy");
}

void
om_gpu_aside_wait(uint32_t slot)
{
	check(cu.cuEventSynchronize(aside.there[slot]), "device");
}

void
om_gpu_aside_end(void)
{
	check(cu.cuEventRecord(aside.ended, aside.stream), "event");
	check(cu.cuStreamWaitEvent(stream, aside.ended, 0), "event");
}

void
om_gpu_copy(void *to, const void *from, size_t bytes)
{
	check(cu.cuMemcpyDtoDAsync(
		  (CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, stream),
	    "copy");
}

void
om_gpu_fill(void *p, int byte, size_t bytes)
{
	check(cu.cuMemsetD8Async((CUdeviceptr)(uintptr_t)p, (unsigned char)byte, bytes, stream),
	    "fill");
}

void
om_set_zero(void *p, size_t bytes)
{
	check(cu.cuMemsetD8Async((CUdeviceptr)(uintptr_t)p, 0, bytes, on), "fill");
}

void
om_gpu_operation(const char *name)
{
	current = name;
}

struct om_waiting *om_gpu_waiting;

/* Kernels have given up waiting for another rank: what they computed since is worth nothing. */
static void
check_waiting(void)
{
	if (om_gpu_waiting && om_gpu_waiting->lost)
		om_lost(current ? current : "experts on several ranks",
		    "rank %u of the group %s does not come; comm.timeout in run.yaml is the limit",
		    om_gpu_waiting->rank, om_group_name[om_gpu_waiting->group]);
}

void
om_gpu_wait(void)
{
	CUresult r;

	om_comm_waits(true);
	r = cu.cuStreamSynchronize(stream);
	om_comm_waits(false);
	check(r, "device");
	check_waiting();
}

void
om_launch(const struct om_kernel *k, uint32_t x, uint32_t y, uint32_t z, void **args)
{
	CUlaunchAttribute how[2];
	CUlaunchConfig c = { x, y, z, k->threads, 1, 1, k->smem, on, how, 0 };

	if (k->cluster)
		how[c.numAttrs++] =
		    (CUlaunchAttribute){ .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
			    .value.clusterDim = { k->cluster, 1, 1 } };
	if (k->after)
		how[c.numAttrs++] =
		    (CUlaunchAttribute){ .id =
					     CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
			    .value.programmaticStreamSerializationAllowed = 1 };

	if (x && y && z)
		check(cu.cuLaunchKernelEx(&c, k->function, args, NULL), k->name);
}

void
om_map(struct om_tensor_map *map, enum om_element type, const void *p, int rank,
    const uint64_t *dim, const uint64_t *stride, const uint32_t *box, int swizzle)
{
	static const cuuint32_t one[5] = { 1, 1, 1, 1, 1 };
	cuuint64_t d[5], s[5] = { 0 };
	CUtensorMapSwizzle w = swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
			       : swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
			       : swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
					       : CU_TENSOR_MAP_SWIZZLE_NONE;

	_Static_assert(sizeof(CUtensorMap) == sizeof *map, "kernels declare it themselves");
	for (int i = 0; i < rank; i++) {
		d[i] = dim[i];
		if (i + 1 < rank)
			s[i] = stride[i];
	}
	check(cu.cuTensorMapEncodeTiled((CUtensorMap *)map,
		  type == OM_MAP_F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
				     : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
		  (cuuint32_t)rank, (void *)(uintptr_t)p, d, s, box, one,
		  CU_TENSOR_MAP_INTERLEAVE_NONE, w, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
		  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
	    "tensor map");
}

void
om_on(int s)
{
	parts.on = parts.running ? s : 0;
	on = parts.running ? parts.stream[s] : stream;
}

int
om_gpu_on(void)
{
	return parts.on;
}

void
om_record(int s, int event)
{
	if (!parts.running)
		return;
	check(cu.cuEventRecord(parts.event[event], parts.stream[s]), "event");
	parts.done[event] = true;
}

void
om_wait(int s, int event)
{
	if (parts.running && parts.done[event])
		check(cu.cuStreamWaitEvent(parts.stream[s], parts.event[event], 0), "event");
}

/* Once, before the first use. */
static void
parts_new(uint32_t streams, uint32_t events)
{
	if (parts.stream)
		return;
	parts.stream = om_alloc(streams + 1, sizeof *parts.stream);
	parts.joint = om_alloc(streams + 1, sizeof *parts.joint);
	parts.event = om_alloc(events + 1, sizeof *parts.event);
	parts.done = om_alloc(events + 1, sizeof *parts.done);
	parts.streams = streams;
	parts.stream[0] = stream;
	for (uint32_t s = 1; s < streams; s++) {
		/* what has a stream of its own comes before the first one's: others wait for it */
		check(cu.cuStreamCreateWithPriority(
			  &parts.stream[s], CU_STREAM_NON_BLOCKING, FIRST_PRIORITY),
		    "stream");
		check(cu.cuEventCreate(&parts.joint[s], CU_EVENT_DISABLE_TIMING), "event");
	}
	for (uint32_t e = 0; e < events; e++)
		check(cu.cuEventCreate(&parts.event[e], CU_EVENT_DISABLE_TIMING), "event");
}

/* From the first stream to the others, or back. */
static void
parts_joint(bool fork)
{
	for (uint32_t s = 1; s < parts.streams; s++) {
		CUstream other = parts.stream[s];

		check(cu.cuEventRecord(parts.joint[s], fork ? stream : other), "event");
		check(cu.cuStreamWaitEvent(fork ? other : stream, parts.joint[s], 0), "event");
	}
}

struct om_gpu_graph {
	CUgraphExec exec;
	const char *what;
};

void
om_gpu_fork(void (*f)(void *), void *arg, uint32_t streams, uint32_t events)
{
	parts_new(streams, events);
	memset(parts.done, 0, events * sizeof *parts.done);
	parts_joint(true);
	parts.running = true;
	f(arg);
	parts.running = false;
	om_on(0);
	parts_joint(false);
}

struct om_gpu_graph *
om_gpu_record(void (*f)(void *), void *arg, const char *what, uint32_t streams, uint32_t events)
{
	struct om_gpu_graph *g = om_alloc(1, sizeof *g);
	CUgraph graph;

	g->what = what;
	parts_new(streams, events);
	check(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), what);
	om_gpu_fork(f, arg, streams, events);
	check(cu.cuStreamEndCapture(stream, &graph), what);
	check(cu.cuGraphInstantiate(&g->exec, graph, 0), what);
	check(cu.cuGraphDestroy(graph), what);
	return g;
}

void
om_gpu_play(struct om_gpu_graph *g)
{
	check(cu.cuGraphLaunch(g->exec, stream), g->what);
}

void *
om_gpu_stream(void)
{
	return on;
}

struct om_gpu_side {
	CUstream stream;
	CUevent begun, ended;
};

struct om_gpu_side *
om_gpu_side(void)
{
	struct om_gpu_side *s = om_alloc(1, sizeof *s);

	check(cu.cuStreamCreateWithPriority(&s->stream, CU_STREAM_NON_BLOCKING, FIRST_PRIORITY),
	    "stream");
	check(cu.cuEventCreate(&s->begun, CU_EVENT_DISABLE_TIMING), "event");
	check(cu.cuEventCreate(&s->ended, CU_EVENT_DISABLE_TIMING), "event");
	return s;
}

void *
om_gpu_side_begin(struct om_gpu_side *s)
{
	check(cu.cuEventRecord(s->begun, stream), "event");
	check(cu.cuStreamWaitEvent(s->stream, s->begun, 0), "event");
	return s->stream;
}

void
om_gpu_side_end(struct om_gpu_side *s)
{
	check(cu.cuEventRecord(s->ended, s->stream), "event");
}

void
om_gpu_side_wait(struct om_gpu_side *s)
{
	check(cu.cuStreamWaitEvent(stream, s->ended, 0), "event");
}

struct om_gpu_mark {
	CUevent event;
	struct om_gpu_mark *next;
};
static struct om_gpu_mark *spare; /* events are made once: there are thousands in a step */

struct om_gpu_mark *
om_gpu_mark(void)
{
	struct om_gpu_mark *m = spare;

	if (m) {
		spare = m->next;
	} else {
		m = om_alloc(1, sizeof *m);
		check(cu.cuEventCreate(&m->event, CU_EVENT_BLOCKING_SYNC), "event");
	}
	check(cu.cuEventRecord(m->event, on), "event");
	return m;
}

void
om_gpu_reach(struct om_gpu_mark *m)
{
	await_event(m->event, "device");
	check_waiting();
}

double
om_gpu_between(struct om_gpu_mark *a, struct om_gpu_mark *b)
{
	float ms;

	om_gpu_reach(b);
	check(cu.cuEventElapsedTime(&ms, a->event, b->event), "event");
	return ms * 1e-3;
}

void
om_gpu_mark_free(struct om_gpu_mark *m)
{
	m->next = spare;
	spare = m;
}
