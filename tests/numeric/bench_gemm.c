/*
 * GEMM against OpenBLAS: medians of both in one run, alternating, on as many threads as the argument
 * says (default: all that OpenMP would use).
 *
 *   gcc -std=c11 -O3 -ffp-contract=fast -fopenmp -fno-math-errno -fno-trapping-math -Ikernels/cpu
 *       tests/numeric/bench_gemm.c -o bench_gemm -lopenblas -lm
 *   env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE ./bench_gemm 2
 */
#define OM_REAL float
#include "linear.h"

#include <cblas.h>
#include <stdio.h>

void openblas_set_num_threads(int n);

enum { RUNS = 31 };

static int
by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* kind 0: y = x w^T; 1: dx = dy w; 2: dw += dy^T x; the last has the shape of w */
static void
bench(int kind, int m, int n, int k)
{
	static const char *const names[] = { "linear", "linear_dx", "linear_dw" };
	float *x = om_check_random((int64_t)m * k, 1, 0), *w = om_check_random((int64_t)n * k, 1, 1);
	float *y = om_check_random((int64_t)m * n, 1, 2);
	double ours[RUNS], blas[RUNS];
	for (int r = -3; r < RUNS; r++) {
		double t0 = omp_get_wtime();
		if (kind == 0)
			om_linear(m, n, k, x, w, y);
		else if (kind == 1)
			om_linear_dx(m, n, k, y, w, x);
		else
			om_linear_dw(m, n, k, y, x, w);
		double t1 = omp_get_wtime();
		if (kind == 0)
			cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, x, k, w, k, 0, y, n);
		else if (kind == 1)
			cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, k, n, 1, y, n, w, k, 0, x, k);
		else
			cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, k, m, 1, y, n, x, k, 1, w, k);
		double t2 = omp_get_wtime();
		if (r >= 0) {
			ours[r] = t1 - t0;
			blas[r] = t2 - t1;
		}
		/* keep the numbers from growing over the runs */
		for (int64_t i = 0; i < (int64_t)n * k; i++)
			w[i] = (float)om_unit(2, (uint64_t)i & 1023);
		for (int64_t i = 0; i < (int64_t)m * k; i++)
			x[i] = (float)om_unit(3, (uint64_t)i & 1023);
		for (int64_t i = 0; i < (int64_t)m * n; i++)
			y[i] = (float)om_unit(4, (uint64_t)i & 1023);
	}
	qsort(ours, RUNS, sizeof *ours, by_value);
	qsort(blas, RUNS, sizeof *blas, by_value);
	double flops = 2.0 * m * n * k / 1e9;
	double a = flops / ours[RUNS / 2], b = flops / blas[RUNS / 2];
	printf("%-10s %5d %5d %5d %10.1f %10.1f %6.2f\n", names[kind], m, n, k, a, b, a / b);
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
	printf("%d threads, OpenBLAS %s; GFLOP/s, median of %d\n", threads, openblas_get_config(), RUNS);
	printf("%-10s %5s %5s %5s %10s %10s %6s\n", "", "m", "n", "k", "ours", "openblas", "ratio");
	for (size_t s = 0; s < sizeof shape / sizeof *shape; s++) {
		for (int kind = 0; kind < 3; kind++)
			bench(kind, shape[s][0], shape[s][1], shape[s][2]);
	}
	return 0;
}
