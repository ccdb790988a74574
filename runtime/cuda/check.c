/* What the checks of CUDA kernels share: random and poisoned arrays, errors, timing. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "om_gpu.h"
#include "om_rt.h"

/*
 * Random arrays repeat after a prime number of elements, which no size of a tensor divides: so that
 * arrays of billions are made by copies on the device.
 */
enum { MOST = 256, TIMES = 12, WARM = 3, PERIOD = OM_CHECK_PERIOD };

bool om_check_timing;
double om_check_seconds;
const struct om_peers *om_check_rank;
bool om_reaches;
static void *array[MOST];
static unsigned arrays;
static struct om_gpu_mark *mark[TIMES + 1];

/* splitmix64's finaliser (Steele, Lea, Flood 2014) over seed and counter */
static uint64_t
hash(uint64_t seed, uint64_t i)
{
	uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xd1342543de82ef95u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

double
om_unit(uint64_t seed, int stream, int64_t i)
{
	uint64_t h = hash(hash(seed, (uint64_t)stream), (uint64_t)(i % PERIOD));

	return (double)(float)(((double)(h >> 11) * 0x1p-53 - 0.5) * 3.4641016151377544);
}

float
om_bf16_f32(uint16_t x)
{
	uint32_t bits = (uint32_t)x << 16;
	float f;

	memcpy(&f, &bits, sizeof f);
	return f;
}

static uint16_t
round_bf16(float x)
{
	uint32_t b;

	memcpy(&b, &x, sizeof b);
	return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

float
om_unit_bf16(uint64_t seed, int stream, int64_t i)
{
	return om_bf16_f32(round_bf16((float)om_unit(seed, stream, i)));
}

double
om_in(struct om_in a, int64_t i)
{
	double x = a.host  ? (double)a.host[i]
		   : a.f32 ? om_unit(a.seed, a.stream, i)
			   : (double)om_unit_bf16(a.seed, a.stream, i);

	return a.scale > 0 ? a.scale * x : x;
}

static void *
take(size_t bytes)
{
	if (arrays == MOST)
		om_die("check", "more than %d arrays", MOST);
	return array[arrays++] = om_gpu_new(bytes);
}

void *
om_check_nan(size_t bytes)
{
	void *p = take(bytes);

	om_gpu_fill(p, 0xff, bytes);
	return p;
}

void *
om_check_copy(const void *host, size_t bytes)
{
	void *p = take(bytes);

	om_gpu_put(p, host, bytes);
	return p;
}

void
om_check_write(void *device, const void *host, size_t bytes)
{
	om_gpu_put(device, host, bytes);
}

void *
om_check_repeat(const void *host, int64_t n, size_t size)
{
	int64_t period = n < PERIOD ? n : PERIOD;
	char *device = take((size_t)n * size);

	om_gpu_put(device, host, (size_t)period * size);
	for (int64_t done = period, some; done < n; done += some) {
		some = n - done < done ? n - done : done;
		om_gpu_copy(device + (size_t)done * size, device, (size_t)some * size);
	}
	return device;
}

static void *
repeat(void *host, int64_t n, size_t size)
{
	void *device = om_check_repeat(host, n, size);

	free(host);
	return device;
}

uint16_t *
om_check_bf16(int64_t n, uint64_t seed, int stream, float scale)
{
	int64_t period = n < PERIOD ? n : PERIOD;
	uint16_t *p = om_alloc((size_t)period, sizeof *p);

#pragma omp parallel for
	for (int64_t i = 0; i < period; i++)
		p[i] = round_bf16(om_unit_bf16(seed, stream, i) * scale);
	return repeat(p, n, sizeof *p);
}

float *
om_check_f32(int64_t n, uint64_t seed, int stream, float scale)
{
	int64_t period = n < PERIOD ? n : PERIOD;
	float *p = om_alloc((size_t)period, sizeof *p);

#pragma omp parallel for
	for (int64_t i = 0; i < period; i++)
		p[i] = (float)om_unit(seed, stream, i) * scale;
	return repeat(p, n, sizeof *p);
}

float *
om_check_sum(int64_t n, bool add, uint64_t seed, int stream)
{
	return add ? om_check_f32(n, seed, stream, 1) : om_check_nan((size_t)n * sizeof(float));
}

void
om_check_read(void *host, const void *device, size_t bytes)
{
	om_gpu_get(host, device, bytes);
}

void
om_check_end(void)
{
	om_gpu_wait();
	while (arrays)
		om_gpu_free(array[--arrays]);
}

void
om_err_add(struct om_err *e, double got, double want)
{
	double d = fabs(got - want);

	if (!(d <= DBL_MAX))
		e->wrong = true;
	if (d > e->diff)
		e->diff = d;
	if (fabs(want) > e->scale)
		e->scale = fabs(want);
}

double
om_err_value(const struct om_err *e)
{
	if (e->wrong)
		return OM_WRONG;
	return e->scale > 0 ? e->diff / e->scale : e->diff;
}

void
om_time_begin(void)
{
	om_gpu_wait();
}

static int
rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

bool
om_time_more(int i)
{
	double t[TIMES];

	if (i >= WARM)
		mark[i - WARM] = om_gpu_mark();
	if (i < WARM + TIMES)
		return true;
	for (int k = 0; k < TIMES; k++)
		t[k] = om_gpu_between(mark[k], mark[k + 1]);
	for (int k = 0; k <= TIMES; k++)
		om_gpu_mark_free(mark[k]);
	qsort(t, TIMES, sizeof *t, rising);
	om_check_seconds = (t[TIMES / 2 - 1] + t[TIMES / 2]) / 2;
	return false;
}
