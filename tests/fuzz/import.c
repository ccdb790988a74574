/*
 * A folder of Hugging Face's that import reads: config.json is right, the index and a.safetensors
 * are the input, apart by a line "=". Without that line all is model.safetensors. The model is that
 * of unit/runtime_model.c.
 */
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/om_rt.h"
#include "fuzz.h"

int model_main(int argc, char **argv); /* runtime_model.c's main */
_Noreturn void __wrap_om_comm_abort(int status, bool spoke);
_Noreturn void __wrap_om_ckpt_open(struct om_ckpt *k, const struct om_model *m,
    const struct om_data *d, struct om_skip *skip, const struct om_conf *c);
unsigned char *__wrap_om_arena_host(const struct om_model *m);

static struct om_model model;
static jmp_buf out;

/* In place of om_main.c's. */
int
om_main(const struct om_model *m, int argc, char **argv)
{
	(void)argc, (void)argv;
	model = *m;
	return 0;
}

/* A fault of the input ends here, */
_Noreturn void
__wrap_om_comm_abort(int status, bool spoke)
{
	(void)status, (void)spoke;
	longjmp(out, 1);
}

/* and what could be read here, before a checkpoint is written. */
_Noreturn void
__wrap_om_ckpt_open(struct om_ckpt *k, const struct om_model *m, const struct om_data *d,
    struct om_skip *skip, const struct om_conf *c)
{
	(void)k, (void)m, (void)d, (void)skip, (void)c;
	longjmp(out, 1);
}

unsigned char *
__wrap_om_arena_host(const struct om_model *m)
{
	static unsigned char *arena;

	if (!arena)
		arena = aligned_alloc(64, (m->arena_bytes + 63) / 64 * 64);
	return arena;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const char index[] = "model.safetensors.index.json", whole[] = "model.safetensors";
	static char *argv[] = { NULL };
	const uint8_t *line = NULL;
	char path[300];

	if (!model.hf_config) {
		model_main(0, argv);
		fuzz_file("config.json", model.hf_config, strlen(model.hf_config));
		__wrap_om_arena_host(&model);
	}
	for (size_t i = 0; i + 3 <= n && !line; i++)
		if (memcmp(data + i, "\n=\n", 3) == 0)
			line = data + i;
	snprintf(path, sizeof path, "%s/%s", fuzz_folder(), line ? whole : index);
	unlink(path);
	if (line) {
		fuzz_file(index, data, (size_t)(line - data));
		fuzz_file("a.safetensors", line + 3, n - 3 - (size_t)(line - data));
	} else {
		fuzz_file(whole, data, n);
	}
	fuzz_begin();
	if (!setjmp(out))
		om_import(&model, fuzz_folder(), "unused", NULL);
	fuzz_clean();
	return 0;
}
