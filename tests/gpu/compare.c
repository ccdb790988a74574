/*
 * Compares what dump wrote for a model on the GPU with the same on the CPU, and with fp32 on the
 * CPU. Usage: compare GPU CPU FP32.
 *
 * Rounding to bf16 at every op takes the CPU's gradients some way from those of fp32; the GPU's may
 * be MORE times as far. A token near a tie may change its expert by a rounding, which moves the
 * gradients of two experts by a tenth, here or there: so tensors are compared by the lower quartile
 * of their kind (names that differ in numbers alone), where no token moved; what is wrong in a
 * kernel shows in all of them. And each must keep within GROSS: a gradient that is half, double or
 * another's is further off.
 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double MORE = 1.6, FLOOR = 2e-3, GROSS = 0.4; /* of a tensor's norm */

struct record {
	char kind[16], name[200];
	unsigned long long n;
	float *x;
};

static struct distance {
	char kind[200];
	double gpu, cpu;
} * all;
static size_t count;
static int passed, failed;

static int
next(FILE *f, struct record *r)
{
	if (fscanf(f, "%15s %199s %llu", r->kind, r->name, &r->n) != 3 || fgetc(f) != '\n')
		return 0;
	r->x = malloc((r->n + 1) * sizeof *r->x);
	return r->x && fread(r->x, sizeof *r->x, r->n, f) == r->n;
}

/* || a - b || / || b || */
static double
distance(const struct record *a, const struct record *b)
{
	double d = 0, s = 0;

	for (unsigned long long i = 0; i < b->n; i++) {
		d += ((double)a->x[i] - b->x[i]) * ((double)a->x[i] - b->x[i]);
		s += (double)b->x[i] * b->x[i];
	}
	return s > 0 ? sqrt(d / s) : sqrt(d);
}

static void
is(int ok, const char *what, const char *name, double gpu, double cpu)
{
	ok ? passed++ : failed++;
	if (!ok)
		printf("FAIL %s %s: GPU %.3g, CPU %.3g\n", what, name, gpu, cpu);
}

static void
gradient(const struct record *r)
{
	struct distance *d;
	size_t n = 0;

	all = realloc(all, (count + 1) * sizeof *all);
	d = &all[count++];
	for (const char *s = r->name; *s; s++)
		if (*s < '0' || *s > '9')
			d->kind[n++] = *s;
		else if (n && d->kind[n - 1] != '#')
			d->kind[n++] = '#';
	d->kind[n] = 0;
	d->gpu = distance(&r[0], &r[2]);
	d->cpu = distance(&r[1], &r[2]);
	is(d->gpu < GROSS, "grad, from fp32,", r->name, d->gpu, d->cpu);
}

/* Runs drift apart; what they have learned must not. */
static void
curve(const struct record *r)
{
	unsigned long long n = r->n < 20 ? r->n : 20;
	double last[2] = { 0 };

	if (!n)
		return;
	for (unsigned long long i = 0; i < n; i++)
		for (int k = 0; k < 2; k++)
			last[k] += r[k].x[r->n - 1 - i] / (double)n;
	printf("%llu steps: loss %.4f to %.4f, on the CPU %.4f to %.4f\n", r->n, r->x[0], last[0],
	    r[1].x[0], last[1]);
	is(fabs(last[0] - last[1]) < 0.03 * last[1] && last[0] < 0.8 * r->x[0], "loss",
	    "at the end", last[0], last[1]);
}

static int
rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double
quartile(const char *kind, size_t at)
{
	double *x = malloc(count * sizeof *x);
	size_t n = 0;

	for (size_t i = 0; i < count; i++)
		if (!strcmp(all[i].kind, kind))
			memcpy(&x[n++], (const char *)&all[i] + at, sizeof *x);
	qsort(x, n, sizeof *x, rising);
	double q = x[n / 4];
	free(x);
	return q;
}

int
main(int argc, char **argv)
{
	double worst = 0;
	struct record r[3];
	FILE *f[3];

	for (int i = 0; i < 3; i++)
		if (argc != 4 || !(f[i] = fopen(argv[i + 1], "rb"))) {
			printf("0 passed, 1 failed\n");
			return 2;
		}
	while (next(f[0], &r[0])) {
		for (int i = 1; i < 3; i++)
			if (!next(f[i], &r[i]) || strcmp(r[i].name, r[0].name) ||
			    r[i].n != r[0].n) {
				printf("FAIL %s: the files differ in form\n0 passed, 1 failed\n",
				    r[0].name);
				return 1;
			}
		if (!strcmp(r[0].kind, "curve")) {
			curve(r);
		} else if (!strcmp(r[0].kind, "grad")) {
			gradient(r);
		} else {
			printf("loss %.6f, CPU bf16 %.6f, fp32 %.6f\n", r[0].x[0], r[1].x[0],
			    r[2].x[0]);
			is(distance(&r[0], &r[1]) < 1e-3, "loss", "and z-loss", r[0].x[0],
			    r[1].x[0]);
		}
		for (int i = 0; i < 3; i++)
			free(r[i].x);
	}
	for (size_t i = 0; i < count; i++) {
		size_t first = 0;
		while (strcmp(all[first].kind, all[i].kind))
			first++;
		if (first != i)
			continue;
		double gpu = quartile(all[i].kind, offsetof(struct distance, gpu));
		double cpu = quartile(all[i].kind, offsetof(struct distance, cpu));
		is(gpu <= MORE * cpu + FLOOR, "lower quartile of", all[i].kind, gpu, cpu);
		worst = gpu / (cpu + FLOOR) > worst ? gpu / (cpu + FLOOR) : worst;
	}
	printf(
	    "%zu gradients: quartiles of kinds at most %.2f times as far from fp32 as the CPU's\n",
	    count, worst);
	printf("%d passed, %d failed\n", passed, failed + (passed == 0));
	return failed || !passed;
}
