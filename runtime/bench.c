/* Measuring and checking the operators a trainer consists of. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"
#include "om_trace.h"
#include "rng.h"

enum { SEEDS = 3, WARM = 2 };

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

/*
 * Where the time of steps went that ran operator by operator. Each operator's is taken within its
 * step's, so that they and the rest add up to the whole.
 */
static void
table(const struct om_model *m, uint64_t steps, double seconds)
{
	static const char *const line = "%-40s %8s %10.3f %5.1f%%\n";
	const struct om_op **row = om_alloc(m->nops, sizeof *row);
	double rest = seconds;

	printf("%-40s %8s %10s %6s %9s %8s\n", "a step, operator by operator", "calls", "ms",
	    "share", "GFLOP/s", "GB/s");
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
	printf(line,
	    om_size(OM_WORLD) > 1 ? "(between operators, other ranks)" : "(between operators)", "",
	    1e3 * rest / (double)steps, 100 * rest / seconds);
	printf(line, "(all of them)", "", 1e3 * seconds / (double)steps, 100.0);
	free(row);
}

struct run {
	const struct om_model *m;
	unsigned char *arena;
	int32_t *token; /* [micro * seq] */
	uint64_t step;  /* from 1 */
};

/* Random tokens, others on every data rank. */
static void
feed(void *arg, uint64_t i)
{
	struct run *r = arg;
	const struct om_model *m = r->m;
	size_t n = m->micro * m->seq;

	i = i * om_size(OM_DATA) + om_rank(OM_DATA);
	for (size_t j = 0; j < n; j++)
		r->token[j] =
		    (int32_t)(om_philox((struct om_philox){ { (uint32_t)j, (uint32_t)(j >> 32),
					    (uint32_t)i, (uint32_t)r->step } },
				  0)
				  .v[0] %
			      m->vocab);
	om_draw_write(m, r->arena, 0, r->step * m->global + i * m->micro);
	om_put(r->arena, m->token_off, r->token, n * sizeof *r->token);
	om_put(r->arena, m->label_off, r->token, n * sizeof *r->token);
	om_documents_put(m, r->arena, NULL);
}

/* The seconds of a step that is over when this returns. */
static double
step_run(struct run *r)
{
	double before = om_now();

	om_ctl_write(r->m, r->arena, 1e-4, ++r->step, NULL, r->m->global * r->m->seq, r->m->global);
	om_lots_write(r->m, r->arena, 0, r->step);
	om_run_step(r->m, r->arena,
	    &(struct om_feed){ .put = feed, .arg = r, .microbatches = r->m->microbatches });
	om_get_f64(r->arena, r->m->loss_off);
	return om_now() - before;
}

static int
rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Steps as training runs them: their times in rising order; free() it. */
static double *
time_steps(struct run *r, uint64_t steps)
{
	double *t = om_alloc(steps, sizeof *t);

	for (int i = 0; i < WARM; i++)
		step_run(r);
	for (uint64_t i = 0; i < steps; i++)
		t[i] = step_run(r);
	qsort(t, steps, sizeof *t, rising);
	return t;
}

/* Steps in which every operator is timed by itself, after one that warms up; their time in all. */
static double
time_operators(struct run *r, uint64_t steps)
{
	double seconds = 0;

	om_profile = true;
	for (uint64_t i = 0; i <= steps; i++) {
		double t = step_run(r);

		om_profile_end();
		for (uint32_t j = 0; !i && j < r->m->nops; j++) {
			r->m->op[j].seconds = 0;
			r->m->op[j].calls = 0;
		}
		seconds += i ? t : 0;
	}
	om_profile = false;
	return seconds;
}

/* One step more, operator by operator but in its streams, whose pictures go into files. */
static void
trace_step(struct run *r, const char *trace, const char *html)
{
	double origin;

	om_barrier("trace"); /* ranks begin together */
	origin = om_now();
	om_profile = true;
	om_trace_begin(r->m->streams);
	step_run(r);
	om_profile_end();
	om_profile = false;
	om_trace_write(r->m, trace, html, origin);
}

/* How a step's rate compares with what this device can do. */
static void
efficiency(const struct om_model *m, double rate)
{
	double best = 0;

	rate /= om_size(OM_WORLD);             /* a device's share */
	for (uint32_t i = 0; i < m->nops; i++) /* what matrix products reach on this device */
		if (m->op[i].seconds > 0 &&
		    m->op[i].flops * (double)m->op[i].calls / m->op[i].seconds > best)
			best = m->op[i].flops * (double)m->op[i].calls / m->op[i].seconds;
	if (best > 0)
		printf("%.1f%% of the %.2f GFLOP/s of its fastest product", 100 * rate / best,
		    1e-9 * best);
	if (m->peak > 0)
		printf("%s%.1f%% of the data sheet's %.0f TFLOP/s (MFU)", best > 0 ? ", " : "",
		    100 * rate / m->peak, 1e-12 * m->peak);
	if (best > 0 || m->peak > 0)
		printf("\n");
}

/* One token more of each row, the likeliest ones; gives the seconds. */
static double
one_more(const struct om_model *m, unsigned char *arena, struct om_row *row)
{
	int32_t *token = om_alloc(m->decode.n, sizeof *token);
	double before = om_now();

	om_likeliest_after(m, arena, row, m->decode.n, token);
	for (uint64_t r = 0; r < m->decode.n; r++) {
		row[r].token = token[r] < 0 ? 0 : token[r];
		row[r].position++;
	}
	free(token);
	return om_now() - before;
}

/* Random prompts, but for the last token of each, which is left to row. */
static void
prompts(const struct om_model *m, unsigned char *arena, uint64_t prompt, struct om_row *row)
{
	int32_t *all = om_alloc(m->decode.n * prompt, sizeof *all);
	struct om_prompt *p = om_alloc(m->decode.n, sizeof *p);

	for (uint64_t r = 0; r < m->decode.n; r++) {
		int32_t *token = all + r * prompt;

		for (uint64_t i = 0; i < prompt; i++) {
			struct om_philox at = { { (uint32_t)i, (uint32_t)r } };

			token[i] = (int32_t)(om_philox(at, 0).v[0] % m->vocab);
		}
		p[r] = (struct om_prompt){ token, prompt - 1, (uint32_t)r };
		row[r] = (struct om_row){ token[prompt - 1], (int32_t)prompt - 1, (int32_t)r };
	}
	if (m->prompt.run)
		om_prompts_put(m, arena, p, m->decode.n);
	free(all);
	free(p);
}

int
om_bench_generate(const struct om_model *m, uint64_t prompt, uint64_t tokens)
{
	const double n = (double)m->decode.n;
	struct om_row *row = om_alloc(m->decode.n, sizeof *row);
	double *t = om_alloc(tokens, sizeof *t), first = 0, total = 0, step = 0;
	unsigned char *arena;
	char device[64];

	if (!m->decode.run)
		om_die("bench", "this trainer has no program that generates");
	if (prompt + tokens > m->seq)
		om_die("bench",
		    "%s after a prompt of %s are more than the model's sequence_length, %s",
		    om_count(tokens, "token"), om_commas(prompt), om_commas(m->seq));
	om_device_start(0);
	arena = om_arena_new(m);
	om_run(m, OM_RUN_INIT, arena);
	om_init_params(m, arena, 0);
	om_device_text(device);
	printf("%s on %s: %s after a prompt of %s, %s at once, %s\n", m->name, m->target,
	    om_count(tokens, "token"), om_commas(prompt), om_count(m->decode.n, "sequence"),
	    device);
	fflush(stdout);
	for (int i = 0; i < 2; i++) { /* the first time warms up */
		double before = om_now();

		prompts(m, arena, prompt, row);
		one_more(m, arena, row);
		first = om_now() - before;
		for (uint64_t k = 0; k + 1 < tokens; k++)
			t[k] = one_more(m, arena, row);
		total = om_now() - before;
	}
	prompts(m, arena, prompt, row);
	om_profile = true;
	for (int i = 0; i < 2; i++) {
		step = one_more(m, arena, row);
		om_profile_end();
		for (uint32_t j = 0; !i && j < m->nops; j++) {
			m->op[j].seconds = 0;
			m->op[j].calls = 0;
		}
	}
	om_profile = false;
	table(m, 1, step);
	qsort(t, tokens - 1, sizeof *t, rising);
	printf("%.3f ms for the prompts and a token", 1e3 * first);
	if (tokens > 1)
		printf(", %.3f ms for the median of others", 1e3 * t[(tokens - 1) / 2]);
	printf(
	    "; %s tokens/s with the prompts\n", om_commas((uint64_t)(n * (double)tokens / total)));
	free(row);
	free(t);
	return 0;
}

/* The device, an arena with first weights, and room for tokens. */
static struct run
begin(const struct om_model *m)
{
	struct run r = { .m = m };

	om_device_start(0);
	r.token = om_alloc(m->micro * m->seq, sizeof *r.token);
	r.arena = om_arena_new(m);
	om_run(m, OM_RUN_INIT, r.arena);
	om_init_params(m, r.arena, 0);
	return r;
}

/* Takes the device; om_op has each operator's time afterwards. */
unsigned char *
om_bench_operators(const struct om_model *m, uint64_t steps)
{
	struct run r = begin(m);

	time_operators(&r, steps);
	free(r.token);
	return r.arena;
}

int
om_bench(const struct om_model *m, uint64_t steps, const char *trace, const char *html)
{
	struct run r = begin(m);
	const double tokens = (double)(m->global * m->seq);
	char device[64];
	double *t, step;
	uint64_t used, total;

	om_device_text(device);
	printf("%s on %s: %s random tokens a step in %s microbatch%s, %s\n", m->name, m->target,
	    om_commas(m->global * m->seq), om_commas(m->microbatches),
	    m->microbatches == 1 ? "" : "es", device);
	fflush(stdout);
	t = time_steps(&r, steps);
	step = (t[(steps - 1) / 2] + t[steps / 2]) / 2;
	table(m, steps, time_operators(&r, steps));
	om_device_memory(&used, &total);
	printf("%.3f ms a step, %s tokens/s, %.2f GFLOP/s: the median of %s as training runs "
	       "them, %.3f to %.3f ms\n",
	    1e3 * step, om_commas((uint64_t)(tokens / step)),
	    1e-9 * (double)m->flops_token * tokens / step, om_count(steps, "step"), 1e3 * t[0],
	    1e3 * t[steps - 1]);
	efficiency(m, (double)m->flops_token * tokens / step);
	if (used)
		printf("memory: arena %s, as planned; with context and kernels %s of %s in use\n",
		    om_bytes(m->arena_bytes), om_bytes(used), om_bytes(total));
	if (trace || html) /* last: where streams overlap, times of operators are not their own */
		trace_step(&r, trace, html);
	free(t);
	free(r.token);
	return 0;
}
