/*
 * GEMM against OpenBLAS: medians of both in one run, on as many threads as the argument says
 * (default: all that OpenMP would use).
 *
 *   gcc -std=c11 -O3 -ffp-contract=fast -fopenmp -fno-math-errno -fno-trapping-math -Ikernels/cpu
 *       tests/numeric/bench_gemm.c -o bench_gemm -lopenblas -lm
 *   OMP_WAIT_POLICY=passive ./bench_gemm 2
 *
 * The first line names the kernels OpenBLAS chose. It falls back to Prescott, a quarter as fast, on
 * machines newer than itself: then name an older one of the kind, as in OPENBLAS_CORETYPE=SkylakeX.
 */
#define OM_REAL float
#include "linear.h"

#include <cblas.h>
#include <stdio.h>

void openblas_set_num_threads(int n);

enum { RUNS = 51 };

static int
by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* kind 0: y = x w^T; 1: dx = dy w; 2: dw += dy^T x; the last has the shape of w */
static void
run(int kind, bool blas, int m, int n, int k, float *x, float *w, float *y)
{
	if (blas && kind == 0)
		cblas_sgemm(
		    CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, x, k, w, k, 0, y, n);
	else if (blas && kind == 1)
		cblas_sgemm(
		    CblasRowMajor, CblasNoTrans, CblasNoTrans, m, k, n, 1, y, n, w, k, 0, x, k);
	else if (blas)
		cblas_sgemm(
		    CblasRowMajor, CblasTrans, CblasNoTrans, n, k, m, 1, y, n, x, k, 1, w, k);
	else if (kind == 0)
		om_linear(m, 1, (const int64_t[]){ n }, k, x, w, (float *const[]){ y });
	else if (kind == 1)
		om_linear_dx(m, n, k, y, w, x);
	else
		om_linear_dw(m, n, k, true, y, x, w);
}

/* One library at a time: waiting threads of the other would spin beside it. */
static double
median(int kind, bool blas, int m, int n, int k, float *x, float *w, float *y)
{
	double time[RUNS];
	for (double t = omp_get_wtime(); omp_get_wtime() - t < 0.05;)
		run(kind, blas, m, n, k, x, w, y);
	for (int r = 0; r < RUNS; r++) {
		double t = omp_get_wtime();
		run(kind, blas, m, n, k, x, w, y);
		time[r] = omp_get_wtime() - t;
	}
	qsort(time, RUNS, sizeof *time, by_value);
	return time[RUNS / 2];
}

static void
bench(int kind, int m, int n, int k)
{
	static const char *const names[] = { "linear", "linear_dx", "linear_dw" };
	float *x = om_check_random((int64_t)m * k, 1, 0),
	      *w = om_check_random((int64_t)n * k, 1, 1);
	float *y = om_check_random((int64_t)m * n, 1, 2);
	double flops = 2.0 * m * n * k / 1e9;
	double ours = flops / median(kind, false, m, n, k, x, w, y);
	double blas = flops / median(kind, true, m, n, k, x, w, y);
	printf("%-10s %5d %5d %5d %10.1f %10.1f %6.2f\n", names[kind], m, n, k, ours, blas,
	    ours / blas);
	free(x);
	free(w);
	free(y);
}

int
main(int argc, char **argv)
{
	static const int shape[][3] = { { 512, 512, 512 }, { 1024, 128, 384 }, { 1024, 384, 128 },
		{ 1024, 1024, 1024 }, { 128, 8192, 256 } };
	int threads = argc > 1 ? atoi(argv[1]) : omp_get_max_threads();
	omp_set_num_threads(threads);
	openblas_set_num_threads(threads);
	printf("%d threads, OpenBLAS %s; GFLOP/s, median of %d\n", threads, openblas_get_config(),
	    RUNS);
	printf("%-10s %5s %5s %5s %10s %10s %6s\n", "", "m", "n", "k", "ours", "openblas", "ratio");
	for (size_t s = 0; s < sizeof shape / sizeof *shape; s++) {
		for (int kind = 0; kind < 3; kind++)
			bench(kind, shape[s][0], shape[s][1], shape[s][2]);
	}
	return 0;
}
