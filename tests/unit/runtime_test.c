/* Unit tests of the runtime: pure functions against known answers, and what files must survive. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/om_rt.h"
#include "../../runtime/rng.h"

static int passed, failed;

#define CHECK(what)                                                                       \
	do {                                                                              \
		if (what)                                                                 \
			passed++;                                                         \
		else                                                                      \
			failed++, printf("%s:%d: FAIL: %s\n", __FILE__, __LINE__, #what); \
	} while (0)

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
	uint64_t same = 0, fixed = 0;

	for (size_t k = 0; k < OM_LEN(n); k++)
		for (uint64_t epoch = 0; epoch < 3; epoch++) {
			bool ok = true;

			memset(seen, 0, sizeof seen);
			for (uint64_t i = 0; i < n[k]; i++) {
				uint64_t j = om_permute(42, epoch, n[k], i);

				ok = ok && j < n[k] && !seen[j];
				if (j < n[k])
					seen[j] = 1;
			}
			CHECK(ok);
		}
	for (uint64_t i = 0; i < 4096; i++) {
		same += om_permute(1, 0, 4096, i) == om_permute(1, 1, 4096, i);
		fixed += om_permute(1, 0, 4096, i) == i;
	}
	CHECK(same < 10 && fixed < 10); /* one each is expected of a random permutation */
	CHECK(om_permute(1, 0, 4096, 7) == om_permute(1, 0, 4096, 7));
	CHECK(om_permute(9, 3, (uint64_t)1 << 62, 12345) < (uint64_t)1 << 62);
	/* every order of three sequences comes up over the epochs */
	for (uint64_t epoch = 0, orders = 0; epoch < 200; epoch++) {
		orders |= (uint64_t)1
			  << (3 * om_permute(5, epoch, 3, 0) + om_permute(5, epoch, 3, 1));
		if (epoch == 199)
			CHECK(__builtin_popcountll(orders) == 6);
	}
}

static void
test_schedules(void)
{
	struct om_lr lr = { OM_COSINE, 1.0, 0.1, 10, 0 };

	CHECK(om_lr_at(&lr, 1, 110) == 0.1);
	CHECK(om_lr_at(&lr, 5, 110) == 0.5);
	CHECK(om_lr_at(&lr, 10, 110) == 1.0);
	CHECK(om_lr_at(&lr, 11, 110) < 1.0 && om_lr_at(&lr, 11, 110) > 0.999);
	CHECK(fabs(om_lr_at(&lr, 60, 110) - 0.55) < 1e-15);
	CHECK(om_lr_at(&lr, 110, 110) == 0.1);
	CHECK(om_lr_at(&lr, 500, 110) == 0.1);
	lr.schedule = OM_LINEAR;
	CHECK(om_lr_at(&lr, 10, 110) == 1.0);
	CHECK(fabs(om_lr_at(&lr, 35, 110) - 0.775) < 1e-15);
	CHECK(om_lr_at(&lr, 110, 110) == 0.1);
	lr.schedule = OM_CONSTANT;
	CHECK(om_lr_at(&lr, 9, 110) == 0.9 && om_lr_at(&lr, 11, 110) == 1 &&
	      om_lr_at(&lr, 110, 110) == 1);
	lr = (struct om_lr){ OM_WSD, 2.0, 0.0, 10, 20 };
	CHECK(om_lr_at(&lr, 10, 110) == 2 && om_lr_at(&lr, 90, 110) == 2);
	CHECK(om_lr_at(&lr, 100, 110) == 1 && om_lr_at(&lr, 110, 110) == 0);
	CHECK(om_lr_at(&lr, 91, 110) == 1.9);
	lr = (struct om_lr){ OM_WSD, 2.0, 0.5, 0, 0 }; /* nothing decays */
	CHECK(om_lr_at(&lr, 1, 1) == 2);
	lr = (struct om_lr){ OM_COSINE, 2.0, 0.5, 5, 0 }; /* all warm-up */
	CHECK(om_lr_at(&lr, 5, 5) == 2);
	lr.warmup = 0;
	CHECK(om_lr_at(&lr, 1, 1) == 1);
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
	CHECK(same);
	CHECK(split);
}

static const char *
npy(const char *dict, int version, struct om_npy *h)
{
	unsigned char p[2048] = "\x93NUMPY";
	size_t n = strlen(dict), skip = version == 1 ? 10 : 12;

	p[6] = (unsigned char)version;
	p[8] = (unsigned char)n;
	p[9] = (unsigned char)(n >> 8);
	memcpy(p + skip, dict, n);
	return om_npy_parse(p, skip + n, h);
}

static void
test_npy(void)
{
	struct om_npy h;
	const char *why;

	CHECK(!npy("{'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }     \n", 1, &h));
	CHECK(h.width == 2 && h.tokens == 1000 && h.head == 10 + 66);
	CHECK(!npy("{'shape': (7,), 'descr':'<u4','fortran_order' : False}\n", 2, &h));
	CHECK(h.width == 4 && h.tokens == 7 && h.head == 12 + 55);
	why = npy("{'descr': '<i8', 'fortran_order': False, 'shape': (10,), }\n", 1, &h);
	CHECK(why && strncmp(why, "holds dtype '<i8', only '<u2' (uint16)", 38) == 0);
	why = npy("{'descr': '>u2', 'fortran_order': False, 'shape': (10,), }\n", 1, &h);
	CHECK(why && strncmp(why, "holds dtype '>u2', only", 23) == 0);
	why = npy("{'descr': '<u2', 'fortran_order': True, 'shape': (10,), }\n", 1, &h);
	CHECK(why && strncmp(why, "is in Fortran order", 19) == 0);
	why = npy("{'descr': '<u2', 'fortran_order': False, 'shape': (10, 20), }\n", 1, &h);
	CHECK(why && strncmp(why, "has shape (10, 20), only one dimension", 38) == 0);
	why = npy("{'descr': '<u2', 'fortran_order': False, 'shape': (), }\n", 1, &h);
	CHECK(why && strncmp(why, "has shape (), only", 18) == 0);
	why = npy("{'descr': '<u2', 'fortran_order': False, 'shape': (-3,), }\n", 1, &h);
	CHECK(why);
	why = npy("{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,), }\n",
	    1, &h);
	CHECK(why && strcmp(why, "has a damaged .npy header") == 0);
	why = npy("{'descr': '<u2'", 1, &h);
	CHECK(why && strcmp(why, "has a damaged .npy header") == 0);
	why = npy("", 3, &h);
	CHECK(why && strncmp(why, "is .npy version 3", 17) == 0);
	CHECK(om_npy_parse((const unsigned char *)"\x93NUMPY\1\0\x76\0{}", 12, &h));
	CHECK(om_npy_parse((const unsigned char *)"\x93NUMPY\2\0\x76\0", 10, &h));
	CHECK(om_npy_parse((const unsigned char *)"0123456789", 10, &h));
	CHECK(om_npy_parse((const unsigned char *)"", 0, &h));
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
	struct om_model m = { .param = param, .nparams = 2 };
	struct om_tensor t = { NULL, 0, 0, 0 };
	static const char *const want[] = { "a.weight", "l.3.e.0.w%%", "l.3.e.1.w%%", "l.3.e.2.w%%",
		"l.11.e.0.w%%", "l.11.e.1.w%%", "l.11.e.2.w%%" };

	CHECK(om_tensor_count(&m) == 7);
	for (size_t i = 0; om_tensor_next(&m, &t); i++) {
		char *name = om_tensor_name(&t);

		CHECK(i < OM_LEN(want) && strcmp(name, want[i]) == 0);
		CHECK(t.first == (i ? (i - 1) * 6 : 0));
		free(name);
	}
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

/* Every sequence once an epoch, labels one ahead, across files of three widths. */
static void
test_data(void)
{
	enum { N = 103, S = 5, NSEQ = (N - 1) / S };
	char dir[] = "/tmp/om-test-XXXXXX", *path[3];
	static const char *const name[] = { "a.u16", "b.u32", "c.bin" };
	struct om_model m = { .seq = S, .vocab = N };
	struct om_conf c = { .order = OM_SEQUENTIAL, .paths = { path, 3 } };
	struct om_data d;
	int32_t token[S], label[S];
	int first = 0;

	if (!mkdtemp(dir))
		abort();
	for (int i = 0; i < 3; i++) {
		FILE *f = fopen(path[i] = om_text("%s/%s", dir, name[i]), "wb");
		int end = i == 2 ? N : first + 31;

		for (; first < end; first++)
			fwrite(&(int32_t){ first }, i == 1 ? 4 : 2, 1, f);
		fclose(f);
	}
	for (int order = OM_SHUFFLE; order <= OM_SEQUENTIAL; order++) {
		int moved = 0;

		c.order = order;
		om_data_open(&d, &m, &c);
		CHECK(d.tokens == N && d.nseq == NSEQ && d.n == 3);
		for (int epoch = 0; epoch < 2; epoch++) {
			bool seen[NSEQ] = { false }, ok = true;

			for (int g = 0; g < NSEQ; g++) {
				om_data_read(&d, (uint64_t)(epoch * NSEQ + g), token, label);
				for (int i = 0; i < S; i++)
					ok = ok && token[i] == token[0] + i &&
					     label[i] == token[i] + 1;
				ok = ok && token[0] % S == 0 && token[0] / S < NSEQ &&
				     !seen[token[0] / S];
				seen[token[0] / S] = true;
				moved += token[0] / S != g;
			}
			CHECK(ok);
		}
		CHECK(order == OM_SHUFFLE ? moved > NSEQ : moved == 0);
		om_data_close(&d);
	}
	for (int i = 0; i < 3; i++) {
		unlink(path[i]);
		free(path[i]);
	}
	rmdir(dir);
}

/* Writes head (with its length before it) and data bytes; gives what om_st_open says of it. */
static const char *
st(const char *head, size_t data)
{
	char path[] = "/tmp/om-test-XXXXXX";
	int fd = mkstemp(path);
	uint64_t n = strlen(head);
	char zero[64] = { 0 };
	static struct om_st s;
	const char *why;

	if (write(fd, &n, 8) != 8 || write(fd, head, n) != (ssize_t)n ||
	    write(fd, zero, data) != (ssize_t)data)
		abort();
	close(fd);
	why = om_st_open(&s, path);
	om_st_close(&s);
	unlink(path);
	return why;
}

static void
test_safetensors(void)
{
	char path[] = "/tmp/om-test-XXXXXX";
	int fd = mkstemp(path);
	struct om_st_tensor t[] = {
		{ (char *)(uintptr_t) "z \"quoted\\ %", "F32", { 2, 3 }, 2, 0, 24 },
		{ (char *)(uintptr_t) "a", "F64", { 1 }, 1, 24, 32 },
		{ (char *)(uintptr_t) "scalar", "F32", { 0 }, 0, 32, 36 },
	};
	char zero[36] = { 0 };
	struct om_st s;
	const struct om_st_tensor *found;

	CHECK(om_st_write_header(fd, t, 3) && om_write_all(fd, zero, 36));
	close(fd);
	CHECK(!om_st_open(&s, path));
	CHECK(s.n == 3 && s.data % 8 == 0);
	found = om_st_find(&s, t[0].name);
	CHECK(found && found->ndims == 2 && found->dim[1] == 3 && found->begin == 0 &&
	      found->end == 24);
	found = om_st_find(&s, "scalar");
	CHECK(found && found->ndims == 0 && found->begin == 32);
	CHECK(!om_st_find(&s, "b"));
	om_st_close(&s);
	unlink(path);
	CHECK(strstr(om_st_open(&s, path), "No such file"));

#define A "{\"a\":{\"dtype\":\"F32\",\"shape\":"
	CHECK(!st(A "[2],\"data_offsets\":[0,8]}}", 8));
	CHECK(!st("{}", 0));
	CHECK(strcmp(st(A "[2],\"data_offsets\":[0,8]}}", 7), "it is truncated") == 0);
	CHECK(strcmp(st(A "[2],\"data_offsets\":[0,8]}}", 9), "it goes on after its last tensor") ==
	      0);
	CHECK(strcmp(st(A "[2],\"data_offsets\":[4,12]}}", 12),
		  "its tensors overlap or leave holes") == 0);
	CHECK(strcmp(st(A "[3],\"data_offsets\":[0,8]}}", 8), "its header's entry of a is wrong") ==
	      0);
	CHECK(strcmp(st(A "[-2],\"data_offsets\":[0,8]}}", 8),
		  "its header's entry of a is wrong") == 0);
	CHECK(st(A "[4294967295,4294967295],\"data_offsets\":[0,8]}}", 8));
	CHECK(st(A "[2],\"data_offsets\":[8,0]}}", 8));
	CHECK(st("{\"a\":3}", 8));
	CHECK(st("{\"a\":{\"dtype\":\"I4\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8));
	CHECK(strcmp(st("[1]", 0), "its header is not a JSON object") == 0);
	CHECK(strcmp(st("{\"a\":", 0), "its header is damaged") == 0);
	CHECK(st("", 0));
#undef A
}

int
main(void)
{
	test_philox();
	test_permute();
	test_schedules();
	test_crc();
	test_npy();
	test_data();
	test_init();
	test_tensors();
	test_texts();
	test_safetensors();
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
