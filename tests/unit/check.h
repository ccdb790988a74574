/* What unit tests count with, and the line that they end with. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <stdbool.h>
#include <stdio.h>

static int passed, failed;

/* A condition whose meaning, or the values behind it, a text says. */
static inline void
expect(bool ok, const char *what)
{
	ok ? passed++ : failed++;
	if (!ok)
		printf("failed: %s\n", what);
}

/* A condition that says itself what it means. */
#define CHECK(x) expect((x), __FILE__ ":" CHECK_LINE(__LINE__) ": " #x)
#define CHECK_LINE(n) CHECK_TEXT(n)
#define CHECK_TEXT(n) #n

/* What main returns. */
static inline int
check_end(void)
{
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}

#endif
