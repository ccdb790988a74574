/* A config.json for --from-hf: the input is the file. */
#include "lang/lang.h"
#include "fuzz.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	fuzz_file("config.json", data, n);
	from_hf(fuzz_folder(), NULL, NULL, 0);
	return 0;
}
