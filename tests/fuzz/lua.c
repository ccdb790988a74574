/* A description: the input is the file. Loaded, checked and printed, with its own re-lexer. */
#include "plan/plan.h"
#include "fuzz.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct spec s = { 0 };
	struct buf text = { 0 };

	load(fuzz_file("a.lua", data, n), NULL, 0, &s);
	for (uint32_t i = 0; i < s.n && i < 4; i++) {
		check(s.trainer[i], targets, NULL);
		spec_print(s.trainer[i], true, &text);
	}
	diag_flush();
	return 0;
}
