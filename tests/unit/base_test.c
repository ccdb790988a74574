/* Memory, text and diagnostics, and sizes beyond 64 bits. Under sanitizers. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

#include "check.h"

static void
test_memory(void)
{
	ARRAY(uint64_t) list = { 0 };
	bool zero = true;

	for (uint64_t i = 0; i < 1000; i++) {
		uint64_t *x = PUSH(list);
		zero &= *x == 0;
		*x = i;
	}
	for (uint64_t i = 0; i < 1000; i++)
		zero &= list.a[i] == i;
	CHECK(zero && list.n == 1000);
	for (size_t n = 1; n < 4 << 20; n *= 3) {
		unsigned char *p = xalloc(n);
		CHECK(p[0] == 0 && p[n - 1] == 0 && (uintptr_t)p % 16 == 0);
		memset(p, 1, n);
	}
}

static void
test_text(void)
{
	struct buf b = { 0 };

	for (int i = 0; i < 1000; i++)
		buf_printf(&b, "%d,", i % 10);
	buf_puts(&b, "end");
	CHECK(b.n == 2003 && strlen(b.s) == 2003 && !strcmp(b.s + 1996, "8,9,end"));
	CHECK(!strcmp(text_bytes(0), "0 B") && !strcmp(text_bytes(1023), "1023 B"));
	CHECK(!strcmp(text_bytes(1536), "1.50 KiB") && !strcmp(text_bytes(~0ull), "16.0 EiB"));
	CHECK(!strcmp(text_commas(0), "0") && !strcmp(text_commas(999), "999"));
	CHECK(!strcmp(text_commas(6919161856), "6,919,161,856"));
	CHECK(!strcmp(text_double(0.1), "0.1") && !strcmp(text_double(3), "3.0"));
	CHECK(atof(text_double(1.0 / 3)) == 1.0 / 3 && !strcmp(text_double(1e-300), "1e-300"));
	/* FIPS 180-4's own examples, of one block and of two */
	CHECK(!strcmp(sha256_hex("abc", 3),
	    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
	CHECK(!strcmp(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56),
	    "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
}

static void
test_diag(void)
{
	static const char *const names[] = { "top_k", "num_experts", "eps" };
	struct pos none = { 0 };

	CHECK(!strcmp(diag_closest("topk", names, 3), "top_k"));
	CHECK(!strcmp(diag_closest("n_experts", names, 3), "num_experts"));
	CHECK(!strcmp(diag_closest("ep", names, 3), "eps"));
	CHECK(!diag_closest("eqx", names, 3));
	CHECK(!diag_closest("", names, 3));
	diag_error(none, "a");
	diag_error(none, "a");
	diag_note(none, "of a repetition");
	diag_error(none, "b");
	CHECK(diag_count() == 2);
	for (int i = 0; i < 3000; i++)
		diag_error(none, "error %d", i);
	CHECK(diag_flush() == 3002 && diag_count() == 0);
}

/* What is tried leaves no trace but how it went. */
static void
test_trial(void)
{
	struct pos first = { 0, 1, 1, 1 }, second = { 0, 2, 1, 1 }, third = { 0, 3, 1, 1 };

	diag_error(second, "b");
	diag_error(first, "a");
	CHECK(diag_last() == 1 && diag_shown(1));
	diag_trial(1);
	CHECK(diag_trying() && diag_tried() == TRIAL_CLEAN);
	diag_error(second, "b");
	CHECK(diag_tried() == TRIAL_AGAIN && diag_last() == DIAG_NONE);
	diag_error(third, "c");
	CHECK(diag_tried() == TRIAL_NEW);
	diag_error(second, "b");
	CHECK(diag_tried() == TRIAL_NEW);
	diag_error(first, "a, with another value");
	CHECK(diag_tried() == TRIAL_SAME);
	diag_trial_end();
	diag_trial(0);
	diag_error(second, "b");
	CHECK(diag_tried() == TRIAL_SAME);
	diag_trial_end();
	CHECK(!diag_trying() && diag_count() == 2);
	for (uint32_t i = 0; i < DIAG_MAX; i++)
		diag_error((struct pos){ 0, 1, 2 + i, 1 }, "more");
	CHECK(!diag_shown(0) && diag_shown(1));
	diag_flush();
}

static uint64_t
product_too_large(void)
{
	return size_mul(1ull << 32, 1ull << 32);
}

static uint64_t
sum_too_large(void)
{
	return size_add(~0ull, 1);
}

static uint64_t
alignment_too_large(void)
{
	return size_align(~0ull - 2, 256);
}

/* Each in a child, which must end with a user's error. */
static void
test_sizes(void)
{
	static uint64_t (*const fault[])(
	    void) = { product_too_large, sum_too_large, alignment_too_large };

	CHECK(size_mul(1ull << 32, (1ull << 32) - 1) == ~0ull << 32 && size_mul(0, ~0ull) == 0);
	CHECK(size_add(~0ull, 0) == ~0ull);
	CHECK(size_align(0, 256) == 0 && size_align(1, 256) == 256 && size_align(256, 256) == 256);
	for (unsigned i = 0; i < LEN(fault); i++) {
		int status = 0;
		fflush(stdout);
		pid_t child = fork();
		if (!child)
			_exit(fault[i]() ? 2 : 3);
		CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
		      WEXITSTATUS(status) == EXIT_USER);
	}
}

int
main(void)
{
	stderr = fopen("/dev/null", "w"); /* messages are tested by tests/err */
	if (!stderr)
		return 1;
	test_memory();
	test_text();
	test_diag();
	test_trial();
	test_sizes();
	return check_end();
}
