/*
 * The expected time of a step: that of its launches, as bench measured it; of other cards by the
 * ratio of what they have; of several ranks with what they send and wait for.
 */
#include <math.h>
#include <string.h>

#include "check.h"
#include "describe.h"

#define OLMOE "models/olmoe-1b-7b.lua"

/* A description on a target, with definitions "name=value ...". */
static struct plan *
plan_of(const char *file, const char *target, const char *defines)
{
	struct define def[8] = { { 0 } };
	uint32_t n = 0;

	for (struct word w; word_next(&defines, "", &w); n++) {
		def[n].name = xprintf("%.*s", (int)w.n, w.s);
		defines++; /* = */
		word_next(&defines, "", &w);
		def[n].value = xprintf("%.*s", (int)w.n, w.s);
	}
	struct shard *s = shard_of(trainer_of(file, def, n, target));
	fuse(s);
	return plan(s);
}

static struct expected
olmoe(const char *target, const char *global)
{
	return plan_expected(plan_of(OLMOE, target, xprintf("recompute=rows global=%s", global)));
}

static bool
near(double a, double b, double part)
{
	return fabs(a - b) <= part * fabs(b);
}

/* What `trainer bench` said on one H200, 2026-12-01: make bench-gpu has the same. */
static void
as_measured(void)
{
	static const struct {
		const char *file, *defines;
		double ms;
	} cases[] = {
		{ OLMOE, "recompute=rows global=32", 2057.9 },
		{ OLMOE, "global=4 recompute=cheap", 300.7 },
		{ "tests/gpu/shapes.lua", "shape=dense", 2240.2 },
		{ "tests/gpu/shapes.lua", "shape=fine", 872.3 },
		{ "tests/gpu/shapes.lua", "shape=windows", 1727.3 },
		{ "models/moe-8l.lua", "experts=8 data=1 expert=1 global=16", 4147.7 },
	};

	for (uint32_t i = 0; i < LEN(cases); i++) {
		struct expected e =
		    plan_expected(plan_of(cases[i].file, "cuda:h200", cases[i].defines));
		expect(e.known && near(e.step, cases[i].ms / 1e3, 0.1),
		    xprintf("%s takes %g ms, measured were %g", cases[i].defines, 1e3 * e.step,
			cases[i].ms));
	}
}

static void
sums(void)
{
	struct expected eight = olmoe("cuda:h200", "32");
	struct expected one = olmoe("cuda:h200", "4"), two = olmoe("cuda:h200", "8");
	double sum = 0, first = one.step - one.seconds[OPTIMIZER], second = two.step - one.step;

	/* 3 s of products and 4 s of bytes */
	expect(near(expected_seconds(3e12, 8e9, 1, 2, 1e6), 6, 1e-9), "5 s, and 1 s a call");
	expect(near(expected_seconds(3e12, 8e9, 0, 2, 0), 4, 1e-9), "bytes alone");
	for (int i = 0; i < N_EXPECTED_PARTS; i++)
		sum += eight.seconds[i];
	expect(near(eight.step, sum, 1e-9), "a step is its parts");
	expect(near(one.seconds[OPTIMIZER], eight.seconds[OPTIMIZER], 1e-9), "one update a step");
	/* the first microbatch stores what others add to */
	expect(second > 1.005 * first && second < 1.05 * first,
	    xprintf("microbatches of %g and %g s", first, second));
	expect(near(eight.step, one.step + 7 * second, 1e-9), "and all others are alike");
}

/* The update only moves bytes, attention hardly any. */
static void
other_cards(void)
{
	struct expected h200 = olmoe("cuda:h200", "32"), h100 = olmoe("cuda:h100", "32");
	struct expected nvl = olmoe("cuda:h100-nvl", "32");

	expect(!h200.scaled_from && !olmoe("cuda:sm_90a", "32").scaled_from, "it was measured");
	expect(h100.scaled_from && !strcmp(h100.scaled_from->name, "cuda:h200"), "by an H200");
	expect(near(h100.seconds[OPTIMIZER], h200.seconds[OPTIMIZER] * 4800 / 3350, 1e-3),
	    "by memory's bandwidth");
	expect(near(nvl.seconds[ATTENTION], h200.seconds[ATTENTION] * 989 / 835, 0.01), "by peak");
	expect(!olmoe("cpu", "32").known, "nobody knows the processor");
}

/* What is sent takes its time alone, and a pipeline waits. */
static void
ranks(void)
{
	struct plan *p = plan_of("tests/unit/layout.lua", "cuda:h200",
	    "pipeline=2 schedule=1f1b microbatches=3 data=2 expert=2 layers=2");
	struct plan alone[2] = { p[0], p[1] };
	struct expected e = plan_expected(p);
	double sent[2] = { 0 },
	       passes = e.seconds[PRODUCTS] + e.seconds[ATTENTION] + e.seconds[ROWS];

	for (uint32_t i = 0; i < LEN(sent); i++)
		for (uint32_t c = 0; c < p->shard->stage[i].comm.n; c++)
			sent[i] += (double)p->shard->stage[i].comm.a[c].bytes / 370e9;
	expect(near(e.bubble, 0.25, 1e-9) && near(e.seconds[BUBBLE], passes / 3, 1e-9),
	    "a quarter of the passes' time is the bubble's");
	expect(e.seconds[COMMUNICATION] > 0 && (near(e.seconds[COMMUNICATION], sent[0], 1e-9) ||
						   near(e.seconds[COMMUNICATION], sent[1], 1e-9)),
	    "a stage's bytes, by the link");
	alone[0].n_stages = alone[1].n_stages = 1;
	expect(near(e.step, plan_expected(&alone[1]).step, 1e-9) &&
		   e.step > 1.01 * plan_expected(&alone[0]).step,
	    "the last stage, with the experts and the head, takes longest");
	p = plan_of("tests/unit/layout.lua", "cuda:h200",
	    "pipeline=2 schedule=1f1b microbatches=3 data=2 expert=2 layers=2 capacity=1");
	expect(near(e.seconds[PRODUCTS], plan_expected(p).seconds[PRODUCTS], 1e-9) &&
		   near(e.seconds[ROWS], plan_expected(p).seconds[ROWS], 0.02),
	    "room for more rows than a rank has routes takes no time");
}

int
main(void)
{
	as_measured();
	sums();
	other_cards();
	ranks();
	return check_end();
}
