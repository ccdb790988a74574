/*
 * Generation with caches against full recomputation: at every position the decode program's logits
 * are those of the forward pass over the whole prefix, and the tokens chosen by them the same. In
 * bf16 sums in another order round to other numbers now and then, and only the logits are compared.
 * Linked with an emitted tree in place of its main.c. Usage: decode_check [SEED]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "layout.h"
#include "model.h"
#include "om_rt.h"
#include "place.h"

const char om_manifest[] = "", om_plan[] = "";

typedef OM_REAL real;
enum { S = OM_SEQ, V = OM_VOCAB, D = OM_D_MODEL, T = OM_MICRO * OM_SEQ, PROMPT = 3 };
enum { MOST = 8 }; /* sequences at once */

static unsigned char *arena;
static int passed, failed, kinds;
static bool bf16;
static uint64_t rng;

static double
uniform(void)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (double)(rng >> 11) / 9007199254740992.0;
}

static void
expect(int ok, const char *what, double got, double want)
{
	passed += ok;
	failed += !ok;
	if (!ok && failed < 20)
		printf("FAIL %s: got %.12g, want %.12g\n", what, got, want);
}

/* Whatever is read before it was written shows as NaN. */
static void
make_weights(void)
{
	memset(arena, 0xff, om_models[0].arena_bytes);
	memset(arena + om_models[0].weight_off, 0, om_models[0].weight_bytes);
	memset(arena + om_models[0].stat_off, 0, om_models[0].stat_bytes);
	for (uint32_t i = 0; i < om_models[0].nparams + om_models[0].nbuffers; i++) {
		const struct om_param *p = &om_models[0].param[i];
		real *w = (real *)(arena + p->weight);
		uint64_t n = p->numel * p->nlayers * (p->experts ? p->experts : 1);
		for (uint64_t k = 0; k < n; k++) {
			real *x = &w[place(p, k)];
			*x = (real)((p->init == OM_ONE) +
				    (uniform() - 0.5) * (p->init == OM_ONE ? 0.5 : 1.2));
			if (bf16 && i < om_models[0].nparams)
				memset(x, 0, 2); /* its lower half */
		}
	}
	om_models[0].init(arena);
}

/* Logits of the prefix's last token, token n - 1, by the program that trains. */
static void
recompute(const int32_t *token, int n, double *logit)
{
	const real *head = NULL;

	for (int t = 0; t < T; t++) {
		((int32_t *)(arena + om_models[0].token_off))[t] = t < n ? token[t] : 0;
		((int32_t *)(arena + om_models[0].label_off))[t] = 0;
	}
	om_documents_put(om_models, arena, NULL);
	om_models[0].zero(arena);
	om_models[0].pass[OM_FORWARD](arena, 0, OM_FIRST);
	for (uint32_t i = 0; i < om_models[0].nparams; i++)
		if (!strcmp(om_models[0].param[i].name, "lm_head.weight") ||
		    (!head && !strcmp(om_models[0].param[i].name, "model.embed_tokens.weight")))
			head = (const real *)(arena + om_models[0].param[i].weight);
	const real *h = (const real *)(arena + OM_OFF_head_in) + (n - 1) * D;
	for (int v = 0; v < V; v++) {
		logit[v] = 0;
		for (int c = 0; c < D; c++)
			logit[v] += (double)h[c] * (double)head[v * D + c];
	}
}

/*
 * Goes on from the prompt; logit [S][V] of every position but the last. The other sequences are as
 * long as they are told from others by, and begin a token later each.
 */
static void
generate(const struct om_sampling *s, int32_t *token, double *logit)
{
	static double all[MOST * V];
	const int n = (int)om_models[0].decode.n, own = n / 2;

	for (int i = 0; i + 1 < S; i++) {
		struct om_row row[MOST];
		int rows = 0, mine = 0;
		for (int k = n - 1; k >= 0; k--) {
			int at = k == own ? i : i - 1 - k;
			if (at < 0)
				continue;
			mine = k == own ? rows : mine;
			row[rows++] =
			    (struct om_row){ k == own ? token[i] : (7 * k + 3 * at) % V, at, k };
		}
		om_logits_after(om_models, arena, row, (uint64_t)rows, all);
		memcpy(logit + i * V, all + mine * V, V * sizeof *logit);
		if (i + 1 >= PROMPT)
			token[i + 1] = om_choose(s, (uint64_t)i + 1, logit + i * V, V);
	}
}

/* The last logits where all tokens before were a prompt, behind another sequence's short one. */
static void
at_once(const int32_t *token, double *logit)
{
	const int own = (int)om_models[0].decode.n / 2;

	const struct om_prompt all[2] = { { token + 1, 2, 0 }, { token, S - 2, (uint32_t)own } };

	om_prompts_put(om_models, arena, own ? all : all + 1, own ? 2 : 1);
	om_logits_after(om_models, arena, &(struct om_row){ token[S - 2], S - 2, own }, 1, logit);
}

static double
differ(const double *a, const double *b)
{
	double worst = 0, scale = 0;

	for (int v = 0; v < V; v++) {
		worst = fmax(worst, isnan(a[v]) || isnan(b[v]) ? INFINITY : fabs(a[v] - b[v]));
		scale = fmax(scale, fabs(b[v]));
	}
	return worst / scale;
}

static void
check(const struct om_sampling *s, const char *what)
{
	static double cached[S * V], again[S * V], full[V];
	const double tolerance = bf16 ? 0.02 : sizeof(real) == 8 ? 1e-10 : 1e-4;
	unsigned char *before = malloc(om_models[0].arena_bytes);
	int32_t token[S], second[S];

	for (int i = 0; i < PROMPT; i++)
		second[i] = token[i] = (int32_t)(uniform() * V);
	memcpy(before, arena, om_models[0].arena_bytes);
	generate(s, token, cached);
	/* nothing that training keeps from step to step has changed */
	expect(!memcmp(before + om_models[0].weight_off, arena + om_models[0].weight_off,
		   om_models[0].weight_bytes) &&
		   !memcmp(before + om_models[0].state_off, arena + om_models[0].state_off,
		       om_models[0].state_bytes) &&
		   !memcmp(before + om_models[0].grad_off, arena + om_models[0].grad_off,
		       om_models[0].grad_bytes),
	    "weights, gradients and states stay", 0, 0);
	free(before);
	for (int n = 1; n < S; n++) {
		recompute(token, n, full);
		double d = differ(cached + (n - 1) * V, full);
		expect(d <= tolerance, what, d, 0);
		kinds += n >= PROMPT && token[n] != token[PROMPT];
		if (n < PROMPT || bf16)
			continue;
		int32_t next = om_choose(s, (uint64_t)n, full, V);
		expect(next == token[n], "the token of full recomputation", token[n], next);
	}
	/* again, over what training left in the caches' memory */
	generate(s, second, again);
	expect(!memcmp(token, second, sizeof token), "the same tokens again", 0, 0);
	expect(!memcmp(cached, again, (S - 1) * V * sizeof *cached), "the same bits again", 0, 0);
	/* the comparison can fail: another token in the past is another future */
	const int own = (int)om_models[0].decode.n / 2;
	om_logits_after(
	    om_models, arena, &(struct om_row){ (token[S - 3] + 1) % V, S - 3, own }, 1, full);
	om_logits_after(om_models, arena, &(struct om_row){ token[S - 2], S - 2, own }, 1, full);
	double d = differ(full, cached + (S - 2) * V);
	expect(d > tolerance, "another past makes a difference", d, tolerance);
	if (!om_models[0].prompt.run)
		return;
	at_once(token, full);
	d = differ(full, cached + (S - 2) * V);
	expect(d <= tolerance, "the prompt in one pass", d, 0);
	second[S - 3] = (token[S - 3] + 1) % V;
	at_once(second, full);
	d = differ(full, cached + (S - 2) * V);
	expect(d > tolerance, "another prompt makes a difference", d, tolerance);
}

int
main(int argc, char **argv)
{
	rng = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	arena = malloc(om_models[0].arena_bytes);
	bf16 = !strcmp(om_models[0].weights, "bf16");
	make_weights();
	check(&(struct om_sampling){ .top_p = 1 }, "logits, greedy");
	check(&(struct om_sampling){ .temperature = 1, .top_p = 1, .seed = rng }, "logits, T 1");
	check(&(struct om_sampling){ .temperature = 0.8, .top_k = 9, .top_p = 0.9, .seed = rng },
	    "logits, T 0.8, top-k 9, top-p 0.9");
	expect(kinds > 0, "tokens are not all the same", kinds, 1);
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
