/* run.yaml: the input is the file. */
#include "../../runtime/om_rt.h"
#include "fuzz.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct om_conf conf;

	om_conf_load(&conf, 1024, "train", fuzz_file("run.yaml", data, n), 0, NULL);
	om_conf_free(&conf);
	return 0;
}
