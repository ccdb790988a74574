/*
 * What a trainer computes, as numbers to compare with those of another target's: linked with an
 * emitted tree in place of its main.c. Usage: dump OUT STEPS. Writes doubles: the loss of each
 * step, then the gradients of one microbatch at the first weights, then the last weights; before
 * each tensor its name's line. Tokens are a learnable sequence made here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "om_rt.h"

const char om_manifest[] = "", om_plan[] = "";

static const struct om_model *m = om_models;
static unsigned char *arena;
static FILE *out;

/* Sequences that count up by 1, 2 or 3 with some noise, so that there is something to learn. */
static void
tokens(uint64_t step, uint64_t micro)
{
	uint64_t n = m->micro * m->seq, r = step * 977 + micro * 31 + 5;
	int32_t *token = om_alloc(n + 1, sizeof *token);

	for (uint64_t i = 0; i <= n; i++) {
		r = r * 6364136223846793005u + 1442695040888963407u;
		if (i % m->seq == 0 || r >> 60 == 0)
			token[i] = (int32_t)((r >> 33) % m->vocab);
		else
			token[i] =
			    (int32_t)(((uint64_t)token[i - 1] + 1 + i / m->seq % 3) % m->vocab);
	}
	om_put(arena, m->token_off, token, n * sizeof *token);
	om_put(arena, m->label_off, token + 1, n * sizeof *token);
	/* documents of a token up to the whole sequence */
	for (uint64_t i = 0; i < n; i++) {
		r = r * 6364136223846793005u + 1442695040888963407u;
		token[i] = i % m->seq && r >> 58 ? token[i - 1] : (int32_t)(i % m->seq);
	}
	om_documents_put(m, arena, token);
	om_draw_write(m, arena, 7, (step * m->microbatches + micro) * m->micro);
	free(token);
}

static void
tensor(const char *kind, const struct om_tensor *t, const float *x)
{
	char *name = om_tensor_name(t);

	fprintf(out, "%s %s %llu\n", kind, name, (unsigned long long)t->p->numel);
	fwrite(x, sizeof *x, t->p->numel, out);
	free(name);
}

static void
gradients(void)
{
	om_run(m, OM_RUN_ZERO, arena);
	tokens(0, 0);
	om_run(m, OM_RUN_FIRST, arena);
	fprintf(out, "loss - %d\n", 2);
	fwrite((float[]){ (float)om_get_f64(arena, m->loss_off),
		   (float)om_get_f64(arena, m->loss_off + 8) },
	    sizeof(float), 2, out);
	for (struct om_tensor t = { NULL, 0, 0, 0 }; om_tensor_next(m, &t);) {
		if (t.p >= m->param + m->nparams) /* routers' biases have none */
			break;
		float *x = om_alloc(t.p->numel, sizeof *x);

		om_get(arena, t.p->grad + (t.rep * t.p->stride + t.first) * sizeof *x, x,
		    t.p->numel * sizeof *x);
		tensor("grad", &t, x);
		free(x);
	}
}

int
main(int argc, char **argv)
{
	uint64_t steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	float *loss = om_alloc(steps + 1, sizeof *loss);

	if (argc < 2 || !(out = fopen(argv[1], "wb")))
		return 2;
	om_device_start(0);
	arena = om_arena_new(m);
	om_run(m, OM_RUN_INIT, arena);
	om_init_params(m, arena, 3);
	gradients();
	for (uint64_t s = 1; s <= steps; s++) {
		om_ctl_write(m, arena, 2e-3 * (s < 10 ? (double)s / 10 : 1), s, NULL,
		    m->global * m->seq, m->global);
		om_lots_write(m, arena, 7, s);
		om_run(m, OM_RUN_ZERO, arena);
		for (uint64_t i = 0; i < m->microbatches; i++) {
			tokens(s, i);
			om_run(m, i ? OM_RUN_MICROBATCH : OM_RUN_FIRST, arena);
		}
		om_run(m, OM_RUN_UPDATE, arena);
		loss[s - 1] = (float)om_get_f64(arena, m->loss_off);
	}
	fprintf(out, "curve - %llu\n", (unsigned long long)steps);
	fwrite(loss, sizeof *loss, steps, out);
	return fclose(out) != 0;
}
