/* run.yaml: the input is the file. */
#include "../../runtime/om_rt.h"
#include "fuzz.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	const struct om_model model = { .global = 8, .micro = 2, .seq = 128, .microbatches = 4 };
	struct om_conf conf;

	om_conf_load(&conf, &model, "train", fuzz_file("run.yaml", data, n), 0, NULL);
	om_conf_free(&conf);
	return 0;
}
