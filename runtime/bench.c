/* Measuring and checking the operators a trainer consists of. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "rng.h"

enum { SEEDS = 3 };

int
om_selftest(const struct om_model *m)
{
	uint32_t passed = 0, failed = 0;

	om_device_start(0);
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

/* A step on random tokens, done when this returns. */
static void
step_run(const struct om_model *m, unsigned char *arena, int32_t *token, uint64_t step)
{
	size_t n = m->micro * m->seq;

	om_ctl_write(m, arena, 1e-4, step, NULL);
	om_run(m, OM_RUN_ZERO, arena);
	for (uint64_t i = 0; i < m->microbatches; i++) {
		for (size_t j = 0; j < n; j++)
			token[j] = (int32_t)(om_philox((struct om_philox){ { (uint32_t)j,
							   (uint32_t)(j >> 32), (uint32_t)i,
							   (uint32_t)step } },
						 0)
						 .v[0] %
					     m->vocab);
		om_draw_write(m, arena, 0, (step * m->microbatches + i) * m->micro);
		om_put(arena, m->token_off, token, n * sizeof *token);
		om_put(arena, m->label_off, token, n * sizeof *token);
		om_run(m, OM_RUN_MICROBATCH, arena);
	}
	om_run(m, OM_RUN_UPDATE, arena);
	om_get_f64(arena, m->loss_off);
}

int
om_bench(const struct om_model *m, uint64_t steps)
{
	unsigned char *arena;
	int32_t *token = om_alloc(m->micro * m->seq, sizeof *token);
	uint64_t tokens = m->global * m->seq;
	char device[64];
	double seconds, rate, best = 0;
	uint64_t used, total;

	om_device_start(0);
	arena = om_arena_new(m->arena_bytes);
	om_run(m, OM_RUN_INIT, arena);
	om_init_params(m, arena, 0);
	om_device_text(device);
	printf("%s on %s: %llu steps of %s random tokens, %s\n", m->name, m->target,
	    (unsigned long long)steps, om_commas(tokens), device);
	fflush(stdout);
	step_run(m, arena, token, 1); /* warms up */
	seconds = om_now();
	for (uint64_t i = 0; i < steps; i++)
		step_run(m, arena, token, 2 + i);
	seconds = om_now() - seconds;
	/* the operators one by one, in steps of their own: a device runs steps as graphs */
	om_profile = true;
	for (uint64_t i = 0; i < steps; i++)
		step_run(m, arena, token, 2 + steps + i);
	om_profile_end();
	om_profile = false;
	om_device_memory(&used, &total);
	table(m, steps, seconds);
	rate = (double)m->flops_token * (double)(steps * tokens) / seconds;
	printf("%.3f ms a step, %s tokens/s, %.2f GFLOP/s\n", 1e3 * seconds / (double)steps,
	    om_commas((uint64_t)((double)(steps * tokens) / seconds)), 1e-9 * rate);
	for (uint32_t i = 0; i < m->nops; i++) /* what matrix products reach on this device */
		if (m->op[i].seconds > 0 &&
		    m->op[i].flops * (double)m->op[i].calls / m->op[i].seconds > best)
			best = m->op[i].flops * (double)m->op[i].calls / m->op[i].seconds;
	if (best > 0)
		printf("%.1f%% of the %.2f GFLOP/s of its fastest product", 100 * rate / best,
		    1e-9 * best);
	if (m->peak > 0)
		printf(", %.1f%% of the data sheet's %.0f TFLOP/s (MFU)", 100 * rate / m->peak,
		    1e-12 * m->peak);
	if (best > 0 || m->peak > 0)
		printf("\n");
	if (used)
		printf("memory: arena %s, as planned; with context and kernels %s of %s in use\n",
		    om_bytes(m->arena_bytes), om_bytes(used), om_bytes(total));
	free(token);
	return 0;
}
