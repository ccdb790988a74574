/*
 * One step of two microbatches, and one token of decode, with mock launchers: the order of calls
 * and where their arguments lie.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "layout.h"
#include "om.h"
#include "step.h"
#include "trace.h"

static unsigned char *arena;

void
trace(const char *name, int n, ...)
{
	va_list ap;

	printf("%s", name);
	va_start(ap, n);
	for (int i = 0; i < n; i++)
		printf(" %td", va_arg(ap, unsigned char *) - arena);
	va_end(ap);
	putchar('\n');
}

/* nobody profiles */
bool om_profile;

void
om_range_begin(const char *segment, int layer)
{
	(void)segment, (void)layer;
}

void
om_range_end(void)
{
}

void
om_clear(void *p, uint64_t bytes)
{
	printf("om_clear %td of %llu\n", (unsigned char *)p - arena, (unsigned long long)bytes);
}

int
main(void)
{
	arena = malloc(OM_ARENA_BYTES);
	om_init(arena);
	om_zero(arena);
	for (int i = 0; i < 2; i++) {
		om_forward(arena, 0, i ? OM_LAST : OM_FIRST);
		om_backward(arena, 0, i ? OM_LAST : OM_FIRST);
	}
	om_update(arena);
	om_decode(arena, 0);
	free(arena);
	return 0;
}
