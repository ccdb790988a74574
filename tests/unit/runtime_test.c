/* Unit tests of the runtime: pure functions against known answers, and what files must survive. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../runtime/om_rt.h"
#include "../../runtime/rng.h"
#include "check.h"

/* Random123's kat_vectors, philox4x32 10. */
static void
test_philox(void)
{
	static const struct {
		uint32_t ctr[4], key[2], out[4];
	} kat[] = {
		{ { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
		{ { ~0u, ~0u, ~0u, ~0u }, { ~0u, ~0u },
		    { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
		{ { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, { 0xa4093822, 0x299f31d0 },
		    { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
	};

	for (size_t i = 0; i < OM_LEN(kat); i++) {
		struct om_philox c;

		memcpy(c.v, kat[i].ctr, sizeof c.v);
		c = om_philox(c, (uint64_t)kat[i].key[1] << 32 | kat[i].key[0]);
		CHECK(memcmp(c.v, kat[i].out, sizeof c.v) == 0);
	}
}

static void
test_permute(void)
{
	static const uint64_t n[] = { 1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 100, 255, 1000,
		4097, 65536 };
	static unsigned char seen[65536];
	uint64_t same = 0, fixed = 0, rows = 0;

	for (size_t k = 0; k < OM_LEN(n); k++)
		for (uint64_t epoch = 0; epoch < 3; epoch++) {
			bool ok = true;

			memset(seen, 0, sizeof seen);
			for (uint64_t i = 0; i < n[k]; i++) {
				uint64_t j = om_permute(42, 0, epoch, n[k], i);

				ok = ok && j < n[k] && !seen[j];
				if (j < n[k])
					seen[j] = 1;
			}
			CHECK(ok);
		}
	for (uint64_t i = 0; i < 4096; i++) {
		same += om_permute(1, 0, 0, 4096, i) == om_permute(1, 0, 1, 4096, i);
		fixed += om_permute(1, 0, 0, 4096, i) == i;
		rows += om_permute(1, 0, 0, 4096, i) == om_permute(1, 1, 0, 4096, i);
	}
	CHECK(same < 10 && fixed < 10 &&
	      rows < 10); /* one each is expected of a random permutation */
	CHECK(om_permute(1, 0, 0, 4096, 7) == om_permute(1, 0, 0, 4096, 7));
	CHECK(om_permute(9, 0, 3, (uint64_t)1 << 62, 12345) < (uint64_t)1 << 62);
	/* every order of three sequences comes up over the epochs */
	for (uint64_t epoch = 0, orders = 0; epoch < 200; epoch++) {
		orders |= (uint64_t)1
			  << (3 * om_permute(5, 0, epoch, 3, 0) + om_permute(5, 0, epoch, 3, 1));
		if (epoch == 199)
			CHECK(__builtin_popcountll(orders) == 6);
	}
}

static void
test_schedules(void)
{
	struct om_lr lr = { .schedule = OM_COSINE, .peak = 1.0, .final = 0.1, .warmup = 10 };

	CHECK(om_lr_at(&lr, 1, 110) == 0.1 && om_lr_at(&lr, 5, 110) == 0.5);
	CHECK(om_lr_at(&lr, 10, 110) == 1.0);
	CHECK(om_lr_at(&lr, 11, 110) < 1.0 && om_lr_at(&lr, 11, 110) > 0.999);
	CHECK(fabs(om_lr_at(&lr, 60, 110) - 0.55) < 1e-15);
	CHECK(om_lr_at(&lr, 110, 110) == 0.1 && om_lr_at(&lr, 500, 110) == 0.1);
	lr.schedule = OM_LINEAR;
	CHECK(om_lr_at(&lr, 10, 110) == 1.0);
	CHECK(fabs(om_lr_at(&lr, 35, 110) - 0.775) < 1e-15);
	CHECK(om_lr_at(&lr, 110, 110) == 0.1);
	lr.schedule = OM_CONSTANT;
	CHECK(om_lr_at(&lr, 9, 110) == 0.9 && om_lr_at(&lr, 11, 110) == 1 &&
	      om_lr_at(&lr, 110, 110) == 1);
	lr = (struct om_lr){ .schedule = OM_WSD, .peak = 2.0, .warmup = 10, .decay = 20 };
	CHECK(om_lr_at(&lr, 10, 110) == 2 && om_lr_at(&lr, 90, 110) == 2);
	CHECK(om_lr_at(&lr, 100, 110) == 1 && om_lr_at(&lr, 110, 110) == 0);
	CHECK(om_lr_at(&lr, 91, 110) == 1.9);
	lr = (struct om_lr){ .schedule = OM_WSD, .peak = 2.0, .final = 0.5 }; /* nothing decays */
	CHECK(om_lr_at(&lr, 1, 1) == 2);
	lr = (struct om_lr){ .peak = 2.0, .final = 0.5, .warmup = 5 }; /* all warm-up */
	CHECK(om_lr_at(&lr, 5, 5) == 2);
	lr.warmup = 0;
	CHECK(om_lr_at(&lr, 1, 1) == 1);
}

/* Those that have no end: what is at the boundaries is exact. */
static void
test_schedules_endless(void)
{
	struct om_lr lr = { .schedule = OM_INVERSE_SQRT, .peak = 3.0, .final = 0.1, .warmup = 16 };

	CHECK(om_lr_at(&lr, 1, 1000) == 3.0 / 16 && om_lr_at(&lr, 16, 1000) == 3);
	CHECK(om_lr_at(&lr, 17, 1000) == 3 * sqrt(16.0 / 17));
	CHECK(om_lr_at(&lr, 64, 1000) == 1.5 && om_lr_at(&lr, 256, 1000) == 0.75);
	CHECK(om_lr_at(&lr, 64, 64) == 1.5); /* whatever the steps */
	CHECK(om_lr_at(&lr, 2000, 1024) == 0.375);
	lr = (struct om_lr){
		.schedule = OM_POWER, .peak = 3.0, .warmup = 4, .reference = 100, .exponent = 0.5
	};
	CHECK(om_lr_at(&lr, 2, 900) == 1.5 && om_lr_at(&lr, 4, 900) == 3);
	CHECK(om_lr_at(&lr, 5, 900) == 3 && om_lr_at(&lr, 100, 900) == 3);
	CHECK(om_lr_at(&lr, 101, 900) < 3 && om_lr_at(&lr, 101, 900) > 2.98);
	CHECK(om_lr_at(&lr, 400, 900) == 1.5 && om_lr_at(&lr, 900, 900) == 3 * pow(9, -0.5));
	lr.reference = 0; /* warm-up's end */
	CHECK(om_lr_at(&lr, 4, 900) == 3 && om_lr_at(&lr, 16, 900) == 1.5);
	lr.exponent = 0;
	CHECK(om_lr_at(&lr, 900, 900) == 3);
}

/* A decay that starts anywhere: it begins with the schedule's rate and ends at the final one. */
static void
test_decay_from(void)
{
	struct om_lr lr = { .peak = 2.0, .final = 0.25, .warmup = 10, .decay = 40 };

	for (int s = OM_COSINE; s <= OM_POWER; s++) {
		double start;
		struct om_lr plain;

		lr.schedule = s;
		lr.reference = 20;
		lr.exponent = 0.5;
		lr.decay_from = 60;
		plain = lr;
		plain.decay_from = 0;
		if (s == OM_WSD) /* it decays there, and not at its own place too */
			plain.schedule = OM_CONSTANT;
		for (uint64_t step = 1; step <= 60; step++)
			CHECK(om_lr_at(&lr, step, 110) == om_lr_at(&plain, step, 110));
		start = om_lr_at(&lr, 60, 110);
		CHECK(om_lr_at(&lr, 80, 110) == 0.5 * start + 0.5 * 0.5);
		CHECK(om_lr_at(&lr, 70, 110) == 0.75 * start + 0.25 * 0.5);
		CHECK(om_lr_at(&lr, 99, 110) > 0.5 && om_lr_at(&lr, 100, 110) == 0.5);
		CHECK(om_lr_at(&lr, 110, 110) == 0.5 && om_lr_at(&lr, 500, 110) == 0.5);
		lr.decay_from = 10; /* at warm-up's end */
		CHECK(om_lr_at(&lr, 10, 110) == 2 && om_lr_at(&lr, 50, 110) == 0.5);
	}
	lr = (struct om_lr){ .schedule = OM_CONSTANT, .peak = 1, .decay = 1, .decay_from = 9 };
	CHECK(om_lr_at(&lr, 9, 10) == 1 && om_lr_at(&lr, 10, 10) == 0);
}

/* The ways that a decay may take, at places where their values are known. */
static void
test_decay_shapes(void)
{
	static const double half[] = { 0.5, 0.5 };
	struct om_lr lr = { .schedule = OM_WSD, .peak = 2, .final = 0.25, .decay = 64 };

	for (int s = OM_DECAY_LINEAR; s <= OM_DECAY_EXPONENTIAL; s++) {
		double want = s == OM_DECAY_MINUS_SQRT    ? 1 - sqrt(0.5)
			      : s == OM_DECAY_EXPONENTIAL ? 2 * sqrt(0.5) - 1
							  : half[s],
		       before = 2;

		lr.decay_shape = s;
		CHECK(om_lr_at(&lr, 36, 100) == 2 && om_lr_at(&lr, 100, 100) == 0.5);
		CHECK(fabs(om_lr_at(&lr, 68, 100) - (0.5 + 1.5 * want)) < 1e-15);
		for (uint64_t step = 37; step <= 100; step++) {
			CHECK(om_lr_at(&lr, step, 100) < before);
			before = om_lr_at(&lr, step, 100);
		}
		lr.decay_from = 10; /* the same way, from another place */
		CHECK(fabs(om_lr_at(&lr, 42, 100) - (0.5 + 1.5 * want)) < 1e-15);
		CHECK(om_lr_at(&lr, 74, 100) == 0.5);
		lr.decay_from = 0;
	}
}

/* Stages meet where they should, and the periods of WSD-S are stages. */
static void
test_stages(void)
{
	struct om_lr_stage stage[] = { { 10, OM_DECAY_LINEAR, 0, 1 },
		{ 20, OM_DECAY_COSINE, 1, 0.5 }, { 5, OM_DECAY_LINEAR, 0.25, 0.25 },
		{ 4, OM_DECAY_MINUS_SQRT, 0.25, 0 } };
	const uint64_t length[] = { 20, 10 };
	const double peak[] = { 1, 0.5 };
	struct om_lr lr = { .schedule = OM_STAGES, .peak = 2, .stage = stage, .nstages = 4 };

	CHECK(fabs(om_lr_at(&lr, 1, 100) - 0.2) < 1e-15 && om_lr_at(&lr, 10, 100) == 2);
	CHECK(om_lr_at(&lr, 20, 100) == 1.5 && om_lr_at(&lr, 30, 100) == 1);
	CHECK(om_lr_at(&lr, 31, 100) == 0.5 && om_lr_at(&lr, 35, 100) == 0.5);
	CHECK(om_lr_at(&lr, 36, 100) == 0.25 && om_lr_at(&lr, 39, 100) == 0);
	CHECK(om_lr_at(&lr, 40, 100) == 0 && om_lr_at(&lr, 100, 100) == 0);
	lr =
	    (struct om_lr){ .schedule = OM_WSDS, .peak = 2, .warmup = 4, .decay = 5, .final = 0.1 };
	om_lr_periods(&lr, length, peak, 2);
	CHECK(lr.nstages == 5);
	CHECK(
	    om_lr_at(&lr, 1, 30) == 0.5 && om_lr_at(&lr, 4, 30) == 2 && om_lr_at(&lr, 15, 30) == 2);
	CHECK(om_lr_at(&lr, 20, 30) == 0.2 && fabs(om_lr_at(&lr, 18, 30) - 0.92) < 1e-15);
	CHECK(om_lr_at(&lr, 21, 30) == 1 && om_lr_at(&lr, 25, 30) == 1);
	CHECK(fabs(om_lr_at(&lr, 26, 30) - 0.84) < 1e-15 && om_lr_at(&lr, 30, 30) == 0.2);
	CHECK(om_lr_at(&lr, 31, 50) == 0.2);
	free(lr.stage);
}

/* SpikeScore beside one that looks at all numbers anew for each step. */
static void
test_spikes(void)
{
	enum { N = 3 * OM_SPIKE_STEPS / 2 };
	static struct om_spike s;
	static double x[2][N], window[OM_SPIKE_WINDOW];
	static bool spike[N];
	uint64_t bad = 0, sum = 0;

	for (uint64_t i = 0; i < N; i++) {
		struct om_philox r = om_philox((struct om_philox){ { (uint32_t)i, 0, 0, 0 } }, 5);

		for (int k = 0; k < 2; k++)
			x[k][i] = 2 + r.v[k] * 0x1p-32 + (r.v[2] % 300 == (uint32_t)k ? 9 : 0);
		if (r.v[3] % 500 == 0)
			x[r.v[3] / 500 % 2][i] = NAN;
		for (int k = 0; k < 2; k++) {
			double mean = 0, square = 0;
			int n = 0;

			for (uint64_t j = i; j-- && n < OM_SPIKE_WINDOW;)
				if (isfinite(x[0][j]) && isfinite(x[1][j]))
					window[n++] = x[k][j];
			for (int j = 0; j < n; j++)
				mean += window[j] / n;
			for (int j = 0; j < n; j++)
				square += pow(window[j] - mean, 2) / (n - 1);
			spike[i] |= !isfinite(x[k][i]) ||
				    (n == OM_SPIKE_WINDOW && x[k][i] > mean + 6 * sqrt(square));
		}
		sum += spike[i];
		sum -= i >= OM_SPIKE_STEPS && spike[i - OM_SPIKE_STEPS];
		bad += om_spike_step(&s, (double[]){ x[0][i], x[1][i] }) !=
		       (double)sum / (double)(i < OM_SPIKE_STEPS ? i + 1 : OM_SPIKE_STEPS);
	}
	CHECK(bad == 0 && sum > 50);
}

static void
test_skip(void)
{
	struct om_conf c = { .skip_sigma = 2, .skip_window = 5 };
	struct om_skip s;
	double limit[2];

	om_skip_open(&s, &c);
	om_skip_step(&s, (double[]){ 1, 10 }, false);
	om_skip_step(&s, (double[]){ 2, 20 }, false);
	om_skip_limits(&s, limit);
	CHECK(isinf(limit[0]) && isinf(limit[1])); /* two of five are not half of them */
	om_skip_step(&s, (double[]){ 99, NAN }, true);
	om_skip_step(&s, (double[]){ NAN, 7 }, true);
	om_skip_limits(&s, limit);
	CHECK(isinf(limit[0]) && s.n == 2 && s.row == 2 && s.total == 2);
	om_skip_step(&s, (double[]){ 3, 30 }, false);
	om_skip_limits(&s, limit); /* 1 2 3: mean 2, unbiased deviation 1 */
	CHECK(limit[0] == 4 && limit[1] == 40 && s.row == 0 && s.total == 2);
	om_skip_step(&s, (double[]){ 4, 40 }, false);
	om_skip_step(&s, (double[]){ 5, 50 }, false);
	om_skip_limits(&s, limit);
	CHECK(limit[0] == 3 + 2 * sqrt(2.5) && s.n == 5);
	om_skip_step(&s, (double[]){ 9, 60 }, false); /* 1 goes */
	om_skip_limits(&s, limit);
	CHECK(s.n == 5 && s.last[0][0] == 2 && s.last[0][4] == 9 && s.last[1][4] == 60);
	CHECK(limit[0] == 4.6 + 2 * sqrt(29.2 / 4) && limit[1] == 40 + 2 * sqrt(250));
	om_skip_close(&s);
	c.skip_window = 2; /* one value has no deviation */
	om_skip_open(&s, &c);
	om_skip_step(&s, (double[]){ 1, 1 }, false);
	om_skip_limits(&s, limit);
	CHECK(isinf(limit[0]));
	om_skip_step(&s, (double[]){ 3, 1 }, false);
	om_skip_limits(&s, limit);
	CHECK(limit[0] == 2 + 2 * sqrt(2) && limit[1] == 1);
	om_skip_close(&s);
	c.skip_sigma = 0;
	om_skip_open(&s, &c);
	for (int i = 0; i < 9; i++)
		om_skip_step(&s, (double[]){ i, i }, false);
	om_skip_limits(&s, limit);
	CHECK(isinf(limit[0]) && isinf(limit[1]) && s.n == 0);
	om_skip_close(&s);
}

/* RFC 3720, B.4; and both ways agree at any length and split. */
static void
test_crc(void)
{
	unsigned char zero[32] = { 0 }, ones[32], count[32], any[300];
	bool same = true, split = true;

	for (int i = 0; i < 32; i++) {
		ones[i] = 255;
		count[i] = (unsigned char)i;
	}
	for (int i = 0; i < 300; i++)
		any[i] = (unsigned char)(i * i + 7);
	CHECK(om_crc32c(0, "123456789", 9) == 0xE3069283);
	CHECK(om_crc32c(0, zero, 32) == 0x8A9136AA);
	CHECK(om_crc32c(0, ones, 32) == 0x62A8AB43);
	CHECK(om_crc32c(0, count, 32) == 0x46DD794E);
	CHECK(om_crc32c_soft(0, count, 32) == 0x46DD794E);
	for (size_t n = 0; n < 300; n++) {
		same = same && om_crc32c(1, any, n) == om_crc32c_soft(1, any, n);
		split = split &&
			om_crc32c(om_crc32c(0, any, n), any + n, 300 - n) == om_crc32c(0, any, 300);
	}
	CHECK(same && split);
}

static void
test_init(void)
{
	enum { N = 200001 };
	static double z[N], w[N];
	double sum = 0, square = 0, most = 0;
	bool same = true;

	om_normal(7, "lm_head.weight", 0, N, z);
	for (int i = 0; i < N; i++) {
		sum += z[i];
		square += z[i] * z[i];
		most = fabs(z[i]) > most ? fabs(z[i]) : most;
	}
	CHECK(fabs(sum / N) < 0.01);
	CHECK(fabs(square / N - 0.9733) < 0.01); /* the variance of a normal cut at 3 */
	CHECK(most <= 3 && most > 2.9);
	/* an element is the same however the range is cut */
	om_normal(7, "lm_head.weight", 333, 1001, w);
	for (int i = 0; i < 1001; i++)
		same = same && w[i] == z[333 + i];
	CHECK(same);
	om_normal(8, "lm_head.weight", 0, 4, w);
	CHECK(w[0] != z[0] && w[3] != z[3]);
	om_normal(7, "lm_head.bias", 0, 4, w);
	CHECK(w[0] != z[0] && w[1] != z[1]);
}

static void
test_tensors(void)
{
	static const uint32_t layer[] = { 3, 11 };
	static const struct om_param param[] = {
		{ .name = "a.weight", .numel = 5, .nlayers = 1 },
		{ .name = "l.%l.e.%e.w%%", .numel = 6, .layer = layer, .nlayers = 2, .experts = 3 },
	};
	static const struct om_bucket bucket = { .elems = 5, .nlayers = 1 };
	struct om_model m = { .param = param,
		.nparams = 1,
		.nbuffers = 1,
		.bucket = &bucket,
		.nbuckets = 1,
		.optimizer = "fp32",
		.moments = "fp32",
		.real = 4,
		.moment_size = 4 };
	struct om_tensor t = { NULL, 0, 0, 0 };
	static const char *const want[] = { "a.weight", "l.3.e.0.w%%", "l.3.e.1.w%%", "l.3.e.2.w%%",
		"l.11.e.0.w%%", "l.11.e.1.w%%", "l.11.e.2.w%%" };

	CHECK(om_tensor_count(&m) == 7);
	for (size_t i = 0; om_tensor_next(&m, &t); i++) {
		char *name = om_tensor_name(&t);

		CHECK(i < OM_LEN(want) && strcmp(name, want[i]) == 0);
		CHECK(t.first == (i ? (i - 1) % 3 * 6 : 0) && t.rep == (i > 3));
		free(name);
	}
	/* a buffer is kept, but it has no moments */
	uint32_t n;
	struct om_entry *e = om_ckpt_entries(&m, OM_TO_SAVE, &n);
	CHECK(n == 9 && strcmp(e[8].t.name, "exp_avg_sq.a.weight") == 0);
	om_ckpt_entries_free(e, n);
	/* of all ranks, in the order of layers and experts */
	m.mesh.size[OM_EXPERT] = 4;
	e = om_ckpt_whole(&m, &n);
	CHECK(n == 27 && strcmp(e[0].t.name, "a.weight") == 0);
	CHECK(strcmp(e[1].t.name, "l.3.e.0.w%%") == 0 && strcmp(e[12].t.name, "l.3.e.11.w%%") == 0);
	CHECK(strcmp(e[24].t.name, "l.11.e.11.w%%") == 0 && e[24].file == 0 && e[25].file == 1);
	om_ckpt_entries_free(e, n);
}

static void
test_texts(void)
{
	CHECK(strcmp(om_commas(0), "0") == 0);
	CHECK(strcmp(om_commas(999), "999") == 0);
	CHECK(strcmp(om_commas(1000), "1,000") == 0);
	CHECK(strcmp(om_commas(UINT64_MAX), "18,446,744,073,709,551,615") == 0);
	CHECK(strcmp(om_bytes(1023), "1023 B") == 0);
	CHECK(strcmp(om_bytes(1536), "1.50 KiB") == 0);
	CHECK(strcmp(om_bytes(UINT64_MAX), "16.00 EiB") == 0);
	CHECK(strcmp(om_clock(42), "0:42") == 0);
	CHECK(strcmp(om_clock(3723), "1:02:03") == 0);
	CHECK(strcmp(om_clock(NAN), "0:00") == 0);
	CHECK(om_distance("peek", "peak") == 1 && om_distance("", "abc") == 3 &&
	      om_distance("a", "a") == 0);
	CHECK(om_distance("0123456789012345678901234567890123456789012345678901234567890123",
		  "a") == UINT32_MAX);
}

/* Every half and every bfloat16, against what their bits mean. */
static void
test_floats(void)
{
	static const struct {
		uint16_t f16, bf16;
		double x;
	} known[] = {
		{ 0x0000, 0x0000, 0 },
		{ 0x3C00, 0x3F80, 1 },
		{ 0xC000, 0xC000, -2 },
		{ 0x7C00, 0x7F80, INFINITY },
		{ 0xFC00, 0xFF80, -INFINITY },
		{ 0x0001, 0x3380, 0x1p-24 }, /* the least subnormal half */
		{ 0x83FF, 0xB880, -0x1.ff8p-15 },
		{ 0x0400, 0x3880, 0x1p-14 },
		{ 0x7BFF, 0x4780, 65504 },
	};
	static uint16_t all[65536];
	static float x[65536];
	bool good = true;
	float one = 0;

	for (uint32_t i = 0; i < 65536; i++)
		all[i] = (uint16_t)i;
	CHECK(om_st_floats("F16", all, 65536, x));
	for (uint32_t i = 0; i < 65536; i++) {
		int e = (int)(i >> 10 & 31);
		double part = i & 1023, sign = i >> 15 ? -1 : 1;
		double want = sign * (e ? ldexp(1024 + part, e - 25) : ldexp(part, -24));

		if (e == 31)
			good = good &&
			       (part > 0 ? isnan(x[i]) : isinf(x[i]) && (x[i] > 0) == (sign > 0));
		else
			good = good && (double)x[i] == want && !signbit(x[i]) == (sign > 0);
	}
	CHECK(good);
	CHECK(om_st_floats("BF16", all, 65536, x));
	for (uint32_t i = 0; i < 65536; i++) {
		uint32_t bits;

		memcpy(&bits, &x[i], sizeof bits);
		good = good && bits == i << 16;
	}
	CHECK(good);
	for (size_t i = 0; i < OM_LEN(known); i++) {
		CHECK(om_st_floats("F16", &known[i].f16, 1, &one) && (double)one == known[i].x);
		if (i < 6)
			CHECK(om_st_floats("BF16", &known[i].bf16, 1, &one) &&
			      (double)one == known[i].x);
	}
	CHECK(om_st_floats("F32", &x[12345], 1, &one) && one == x[12345]);
	CHECK(!om_st_floats("F64", all, 0, x) && !om_st_floats("I32", all, 0, x));
}

/* The upper half of a float, rounded: ties to even, into infinity, NaN stays one. */
static void
test_bf16(void)
{
	static const struct {
		uint32_t bits;
		uint16_t want;
	} known[] = {
		{ 0x00000000, 0x0000 },
		{ 0x80000000, 0x8000 },
		{ 0x3f800000, 0x3f80 },
		{ 0x3f807fff, 0x3f80 },
		{ 0x3f808000, 0x3f80 },
		{ 0x3f808001, 0x3f81 },
		{ 0x3f818000, 0x3f82 },
		{ 0xbf818000, 0xbf82 },
		{ 0x3fffffff, 0x4000 },
		{ 0x00008000, 0x0000 }, /* subnormals */
		{ 0x00018000, 0x0002 },
		{ 0x007fffff, 0x0080 },
		{ 0x7f7f7fff, 0x7f7f },
		{ 0x7f7f8000, 0x7f80 }, /* half a place over the greatest */
		{ 0xff7fffff, 0xff80 },
		{ 0x7f800000, 0x7f80 },
		{ 0xff800000, 0xff80 },
		{ 0x7f800001, 0x7fc0 },
		{ 0xffffffff, 0xffff },
		{ 0x7fc00000, 0x7fc0 },
	};

	for (size_t i = 0; i < OM_LEN(known); i++) {
		float x;

		memcpy(&x, &known[i].bits, sizeof x);
		CHECK(om_to_bf16(x) == known[i].want);
	}
}

/* Leaves nothing that was there in n bytes. */
static void
scribble(unsigned char *arena, size_t n)
{
	for (size_t i = 0; i < n / 4; i++)
		memcpy(arena + 4 * i, &(float){ 12345.678f }, 4);
}

/*
 * bf16 weights beside their masters, in two bytes each and in four: initial values, a checkpoint
 * there and back, an export of the weights themselves, and that imported.
 */
static void
test_masters(size_t size)
{
	enum { N = 5 * 7 + 3 * 11, AT = 64 };
	char dir[] = "/tmp/runtime_test_XXXXXX", *path, *name;
	const uint64_t master = AT + 4 * N, m0 = master + 4 * N, v0 = m0 + 4 * N;
	const struct om_param param[] = {
		{ .name = "a", .numel = 35, .dim = { 5, 7 }, .ndims = 2, .nlayers = 1 },
		{ .name = "b.%e",
		    .numel = 11,
		    .dim = { 11 },
		    .ndims = 1,
		    .nlayers = 1,
		    .experts = 3 },
	};
	struct om_param at[3] = { [2] = { .name = "c",
				      .numel = 3,
				      .dim = { 3 },
				      .ndims = 1,
				      .nlayers = 1,
				      .init = OM_ONE,
				      .weight = v0 + 4 * N } }; /* a buffer */
	const struct om_bucket bucket = {
		.group = OM_DATA, .weight = AT, .elems = N, .nlayers = 1
	};
	struct om_model m = {
		.name = "masters",
		.version = "0",
		.fingerprint = "f",
		.weights = "bf16",
		.optimizer = "fp32",
		.moments = "fp32",
		.real = 4,
		.weight_size = size,
		.moment_size = 4,
		.init_std = 0.02,
		.arena_bytes = v0 + 4 * N + 4 * 3,
		.param = at,
		.nparams = 2,
		.nbuffers = 1,
		.bucket = &bucket,
		.nbuckets = 1,
		.hf_config = "{\n  \"model_type\": \"llama\"\n}\n",
	};
	char *top = mkdtemp(dir);
	struct om_conf c = { .dir = om_text("%s/ckpt", top), .resume = om_text("auto") }, back = c;
	unsigned char *arena = om_arena_new(&m), *again = om_arena_new(&m);
	struct om_ckpt k;
	struct om_st st;
	double z[35];
	bool good = true;

	for (int i = 0; i < 2; i++) {
		at[i] = param[i];
		at[i].weight = AT + size * (i ? 35 : 0);
		at[i].master = master + 4 * (i ? 35 : 0);
		at[i].m = m0 + 4 * (i ? 35 : 0);
		at[i].v = v0 + 4 * (i ? 35 : 0);
		at[i].at = i ? 35 : 0;
	}
	om_init_params(&m, arena, 7);
	om_normal(7, "a", 0, 35, z);
	for (int i = 0; i < N; i++) {
		uint16_t half;
		float x, w;

		memcpy(&x, arena + master + 4 * (uint64_t)i, 4);
		memcpy(&half, arena + AT + size * (uint64_t)i + size - 2, 2);
		if (size == 4)
			memcpy(&w, arena + AT + 4 * (uint64_t)i, 4);
		else
			om_st_floats("BF16", &half, 1, &w);
		good = good && om_to_bf16(x) == half && om_to_bf16(w) == half &&
		       fabsf(x - w) <= fabsf(x) / 256;
		good = good && (i >= 35 || x == (float)(0.02 * z[i]));
	}
	CHECK(good);
	scribble(arena + m0, 2 * 4 * N);

	om_ckpt_open(&k, &m, NULL, NULL, &c);
	om_ckpt_save(&k, arena, 3);
	om_ckpt_close(&k);
	CHECK(om_ckpt_weights(&m, &c, again, stdout) == 3); /* the weights alone */
	CHECK(memcmp(arena, again, m0) == 0 && memcmp(arena + m0, again + m0, 4 * N) != 0);

	path = om_text("%s/out", dir);
	om_export(&m, path, c.dir);
	name = om_text("%s/model.safetensors", path);
	CHECK(!om_st_open(&st, name));
	CHECK(st.n == 5 && strcmp(st.tensor[0].dtype, "BF16") == 0);
	CHECK(strcmp(st.tensor[4].dtype, "F32") == 0);
	for (uint32_t i = 0; i < 4; i++)
		for (uint64_t j = 0; j < (st.tensor[i].end - st.tensor[i].begin) / 2; j++) {
			uint64_t element = (i ? 35 + 11 * (i - 1) : 0) + j;
			uint16_t half;

			good =
			    good &&
			    om_pread_all(st.fd, &half, 2, st.data + st.tensor[i].begin + 2 * j) &&
			    memcmp(&half, arena + AT + size * element + size - 2, 2) == 0;
		}
	CHECK(good);
	om_st_close(&st);

	back.dir = om_text("%s/back", dir);
	om_import(&m, path, back.dir, NULL);
	scribble(again, m.arena_bytes);
	CHECK(om_ckpt_weights(&m, &back, again, stdout) == 0);
	CHECK(memcmp(arena + AT, again + AT, size * N) == 0);
	CHECK(memcmp(arena + at[2].weight, again + at[2].weight, 12) == 0);
	for (int i = 0; i < N; i++) { /* what was exported is all that masters can be now */
		uint16_t half;
		float x, w;

		memcpy(&x, again + master + 4 * (uint64_t)i, 4);
		memcpy(&half, arena + AT + size * (uint64_t)i + size - 2, 2);
		om_st_floats("BF16", &half, 1, &w);
		good = good && x == w;
	}
	CHECK(good);
	free(path);
	free(name);
	free(back.dir);
	free(c.dir);
	free(c.resume);
	path = om_text("rm -rf %s", dir);
	CHECK(system(path) == 0);
	free(path);
}

static void
test_clip(void)
{
	char text[300], *end = text + 99;

	memset(text, 'a', sizeof text);
	memcpy(end, "\xC3\xB6", 2); /* does not fit */
	text[100 + 1] = 0;
	CHECK(strlen(om_clip(text)) == 99 + 3 && strcmp(om_clip(text) + 98, "a...") == 0);
	text[99] = 0;
	CHECK(strcmp(om_clip(text), text) == 0);
	CHECK(strcmp(om_clip("\033[2J\n\177\xC3\xB6"), "?[2J??\xC3\xB6") == 0);
	memset(text, 'a', sizeof text);
	text[299] = 0;
	CHECK(strlen(om_clip(text)) == 103);
}

/* What advice a directory of checkpoints gets, and what is pruned. */
static void
test_advice(void)
{
	char dir[] = "/tmp/om-test-XXXXXX", *path, *text;
	struct om_ckpt k = { .dir = dir, .keep = 1 };
	static const struct {
		uint64_t good, first;
		const char *resumed, *say; /* how the advice begins */
	} row[] = {
		{ 10, 0, NULL, "resume from DIR/step-000005" },
		{ 5, 0, NULL, "resume by checkpoint.resume=DIR/step-000000: DIR/step-000005 is" },
		{ 0, 0, NULL,
		    "start anew with another checkpoint.dir: DIR/step-000005 is suspect" },
		{ 5, 5, "step-000005",
		    "resume from an earlier one by checkpoint.resume=DIR/step-000000: " },
		{ 0, 0, "step-000000",
		    "start anew with another checkpoint.dir: DIR/step-000000, which" },
		{ 7, 5, "step-000005", "resume from DIR/step-000005" },
	};

	if (!mkdtemp(dir))
		abort();
	text = om_ckpt_advice(&k);
	CHECK(strcmp(text, "start anew") == 0);
	free(text);
	for (uint64_t step = 0; step < 10; step += 5) {
		mkdir(path = om_ckpt_step_path(dir, "", step), 0777);
		free(path);
	}
	for (size_t i = 0; i < OM_LEN(row); i++) {
		size_t used = 0;
		const char *s = row[i].say;
		bool same = true;

		k.good = row[i].good;
		k.first = row[i].first;
		k.resumed = row[i].resumed ? om_text("%s/%s", dir, row[i].resumed) : NULL;
		text = om_ckpt_advice(&k);
		for (; *s && same; s++)
			if (strncmp(s, "DIR", 3) == 0) {
				same = strncmp(text + used, dir, strlen(dir)) == 0;
				used += strlen(dir);
				s += 2;
			} else {
				same = text[used++] == *s;
			}
		if (!same)
			printf("%s\n", text);
		CHECK(same);
		free(text);
		free(k.resumed);
	}
	om_ckpt_good(&k, 5); /* nothing is due */
	CHECK(om_ckpt_newest_below(dir, 5, NULL) == 0);
	k.due = true;
	om_ckpt_good(&k, 4); /* the newest one is not known to be good */
	CHECK(om_ckpt_newest_below(dir, 5, NULL) == 0 && k.due);
	om_ckpt_good(&k, 5);
	CHECK(om_ckpt_newest_below(dir, 5, NULL) == OM_NO_STEP);
	CHECK(om_ckpt_newest_below(dir, OM_NO_STEP, NULL) == 5 && k.good == 6 && !k.due);
	rmdir(path = om_ckpt_step_path(dir, "", 5));
	free(path);
	rmdir(dir);
}

/* How often each of n tokens is chosen, of COUNT positions. */
enum { COUNT = 20000 };
static void
choices(const struct om_sampling *s, const double *logit, uint64_t n, double *share)
{
	memset(share, 0, n * sizeof *share);
	for (uint64_t i = 0; i < COUNT; i++)
		share[om_choose(s, i, logit, n)] += 1.0 / COUNT;
}

static bool
near(double share, double p)
{
	return fabs(share - p) <= 5 * sqrt(p * (1 - p) / COUNT);
}

static void
test_choose(void)
{
	const double logit[] = { log(1), log(4), log(4), log(2), -INFINITY, log(5) };
	double share[6], sum = 16, square = 1 + 16 + 16 + 4 + 25;
	struct om_sampling s = { .temperature = 1, .top_p = 1 };
	int32_t other = 0;

	choices(&s, logit, 6, share);
	CHECK(near(share[0], 1 / sum) && near(share[1], 4 / sum) && near(share[2], 4 / sum) &&
	      near(share[3], 2 / sum) && share[4] == 0 && near(share[5], 5 / sum));
	s.temperature = 0.5;
	choices(&s, logit, 6, share);
	CHECK(near(share[0], 1 / square) && near(share[1], 16 / square) &&
	      near(share[5], 25 / square));
	/* a tie for the second */
	s = (struct om_sampling){ .temperature = 1, .top_k = 2, .top_p = 1 };
	choices(&s, logit, 6, share);
	CHECK(near(share[5], 5 / 9.0) && near(share[1], 4 / 9.0) && share[2] == 0);
	/* 5 + 4 + 4 of 16 are more, 5 + 4 less */
	s = (struct om_sampling){ .temperature = 1, .top_p = 0.8 };
	choices(&s, logit, 6, share);
	CHECK(near(share[5], 5 / 13.0) && near(share[1], 4 / 13.0) && near(share[2], 4 / 13.0) &&
	      share[3] == 0);
	/* of the three that top-k leaves, 5 + 4 of 13 are 0.69 */
	s = (struct om_sampling){ .temperature = 1, .top_k = 3, .top_p = 0.69 };
	choices(&s, logit, 6, share);
	CHECK(near(share[5], 5 / 9.0) && near(share[1], 4 / 9.0) && share[2] == 0);
	s = (struct om_sampling){ .temperature = 1, .top_p = 0 };
	choices(&s, logit, 6, share);
	CHECK(fabs(share[5] - 1) < 1e-9);
	s = (struct om_sampling){ .temperature = 1e-300, .top_p = 1 };
	choices(&s, logit, 6, share);
	CHECK(fabs(share[5] - 1) < 1e-9);
	s = (struct om_sampling){ .top_p = 1 };
	CHECK(om_choose(&s, 3, logit, 6) == 5 && om_choose(&s, 4, logit, 5) == 1);
	s = (struct om_sampling){ .temperature = 1, .top_p = 1 };
	for (uint64_t i = 0; i < 100; i++) {
		struct om_sampling t = { .temperature = 1, .top_p = 1, .seed = 1 };

		other += om_choose(&s, i, logit, 6) != om_choose(&t, i, logit, 6);
		CHECK(om_choose(&s, i, logit, 6) == om_choose(&s, i, logit, 6));
	}
	CHECK(other > 30);
}

static void
test_slow(void)
{
	double of;

	CHECK(om_slow((double[]){ 10, 11, 9, 10 }, 4, &of) == 4);
	CHECK(om_slow((double[]){ 10, 11, 7, 10 }, 4, &of) == 2 && fabs(of - 0.7) < 1e-9);
	CHECK(om_slow((double[]){ 3, 100, 100 }, 3, &of) == 0);
	CHECK(om_slow((double[]){ 100, 50 }, 2, &of) == 1);
	CHECK(om_slow((double[]){ 5 }, 1, &of) == 1);
}

int
main(void)
{
	test_philox();
	test_permute();
	test_schedules();
	test_schedules_endless();
	test_decay_from();
	test_decay_shapes();
	test_stages();
	test_spikes();
	test_slow();
	test_skip();
	test_crc();
	test_init();
	test_tensors();
	test_texts();
	test_floats();
	test_bf16();
	test_masters(2);
	test_masters(4);
	test_clip();
	test_advice();
	test_choose();
	return check_end();
}
