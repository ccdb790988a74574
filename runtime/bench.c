/* Measuring and checking the operators a trainer consists of. */
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "rng.h"

enum { SEEDS = 3 };

int
om_selftest(const struct om_model *m)
{
	uint32_t passed = 0, failed = 0;

	om_threads(0);
	for (uint32_t i = 0; i < m->nops; i++) {
		const struct om_op *op = &m->op[i];
		double worst = 0;
		bool ok;

		if (!op->check) {
			printf("%-40s %10s\n", op->name, "no check");
			continue;
		}
		for (uint64_t seed = 1; seed <= SEEDS; seed++) {
			double error = op->check(seed);

			if (!(error <= worst) && !isnan(worst)) /* a NaN stays */
				worst = error;
		}
		ok = worst <= op->tolerance;
		printf("%-40s %10.2e  at most %.0e  %s\n", op->name, worst, op->tolerance,
		    ok ? "ok" : "FAIL");
		fflush(stdout);
		ok ? passed++ : failed++;
	}
	printf("%u passed, %u failed\n", passed, failed);
	return failed ? OM_EXIT_USER : 0;
}

static int
by_time(const void *a, const void *b)
{
	const struct om_op *x = *(const struct om_op *const *)a,
			   *y = *(const struct om_op *const *)b;

	return x->seconds > y->seconds ? -1 : x->seconds < y->seconds ? 1 : x < y ? -1 : x > y;
}

static void
table(const struct om_model *m, uint64_t steps, double seconds)
{
	const struct om_op **row = om_alloc(m->nops, sizeof *row);
	double rest = seconds;

	printf("%-40s %8s %10s %6s %9s %8s\n", "a step", "calls", "ms", "share", "GFLOP/s", "GB/s");
	for (uint32_t i = 0; i < m->nops; i++)
		row[i] = &m->op[i];
	qsort(row, m->nops, sizeof *row, by_time);
	for (uint32_t i = 0; i < m->nops; i++) {
		double calls = (double)row[i]->calls, t = row[i]->seconds;

		rest -= t;
		if (calls > 0)
			printf("%-40s %8.0f %10.3f %5.1f%% %9.2f %8.2f\n", row[i]->name,
			    calls / (double)steps, 1e3 * t / (double)steps, 100 * t / seconds,
			    t > 0 ? 1e-9 * row[i]->flops * calls / t : 0,
			    t > 0 ? 1e-9 * row[i]->bytes * calls / t : 0);
	}
	printf("%-40s %8s %10.3f %5.1f%%\n", "(between operators)", "", 1e3 * rest / (double)steps,
	    100 * rest / seconds);
	free(row);
}

int
om_bench(const struct om_model *m, uint64_t steps)
{
	unsigned char *arena;
	size_t n = m->micro * m->seq;
	int32_t *token = om_alloc(n, sizeof *token);
	uint64_t tokens = m->global * m->seq;
	double seconds = 0;

	om_threads(0);
	arena = om_arena_new(m->arena_bytes);
	m->init(arena);
	om_init_params(m, arena, 0);
	printf("%s on %s: %llu steps of %s random tokens, %d threads\n", m->name, m->target,
	    (unsigned long long)steps, om_commas(tokens), omp_get_max_threads());
	fflush(stdout);
	for (uint64_t step = 0; step <= steps; step++) { /* the first one warms up */
		double before;

		if (step == 1) {
			for (uint32_t i = 0; i < m->nops; i++) {
				m->op[i].seconds = 0;
				m->op[i].calls = 0;
			}
			om_profile = true;
			seconds = 0;
		}
		before = om_now();
		om_ctl_write(m, arena, 1e-4, step + 1, NULL);
		m->zero(arena);
		for (uint64_t i = 0; i < m->microbatches; i++) {
			for (size_t j = 0; j < n; j++)
				token[j] = (int32_t)(om_philox((struct om_philox){ { (uint32_t)j,
								   (uint32_t)(j >> 32), (uint32_t)i,
								   (uint32_t)step } },
							 0)
							 .v[0] %
						     m->vocab);
			om_put(arena, m->token_off, token, n * sizeof *token);
			om_put(arena, m->label_off, token, n * sizeof *token);
			m->forward(arena, 0);
			m->backward(arena, 0);
		}
		m->update(arena);
		seconds += om_now() - before;
	}
	om_profile = false;
	table(m, steps, seconds);
	printf("%.3f ms a step, %s tokens/s, %.2f GFLOP/s\n", 1e3 * seconds / (double)steps,
	    om_commas((uint64_t)((double)(steps * tokens) / seconds)),
	    1e-9 * (double)m->flops_token * (double)(steps * tokens) / seconds);
	free(token);
	return 0;
}
