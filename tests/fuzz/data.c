/*
 * Token files: the input is a Megatron data set, a.bin and a.idx, apart by a line "=". Without that
 * line it is a.bin alone, llm.c's, a NumPy array or plain tokens. All is read, as by the command
 * data.
 */
#include <setjmp.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/om_rt.h"
#include "fuzz.h"

_Noreturn void __wrap_om_comm_abort(int status, bool spoke);

static jmp_buf out;

/* A fault of the input ends here. */
_Noreturn void
__wrap_om_comm_abort(int status, bool spoke)
{
	(void)status, (void)spoke;
	longjmp(out, 1);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const struct om_model model = { .seq = 16, .vocab = 256, .global = 4 };
	char *path[1], index[300];
	struct om_conf conf = { .steps = 3,
		.tokenizer = (char *)"",
		.data = { .section = "data", .paths = { path, 1 }, .eos = 7 } };
	const uint8_t *line = NULL;

	for (size_t i = 0; i + 3 <= n && !line; i++)
		if (memcmp(data + i, "\n=\n", 3) == 0)
			line = data + i;
	snprintf(index, sizeof index, "%s/a.idx", fuzz_folder());
	unlink(index);
	if (line)
		fuzz_file("a.idx", line + 3, n - 3 - (size_t)(line - data));
	fuzz_begin();
	path[0] = om_text("%s", fuzz_file("a.bin", data, line ? (size_t)(line - data) : n));
	if (!setjmp(out))
		om_survey(&model, &conf);
	fuzz_clean();
	return 0;
}
