/*
 * Emits and builds a description's tree as if its target had several streams, which no target of
 * target.def has, or its backward pass two phases, or its weights' format rows of experts that
 * begin at multiples of a number: for tests of what these take.
 * Usage: streams DESCRIPTION.lua TARGET STREAMS[,split][,rows=N][,emit] FOLDER [NAME=VALUE]...;
 * with a folder that is "-", the plan is printed instead; with emit nothing is built.
 */
#include <stdlib.h>
#include <string.h>

#include "build/build.h"

/* The format of the rows of experts has another name for the same numbers. */
static void
align_rows(struct graph *g, const char *rows)
{
	const struct format *old = g->format[ROLE_ROWS];
	struct format *new = xalloc(sizeof *new);

	*new = *old;
	new->rows = (uint32_t)strtoul(rows, NULL, 10);
	for (uint32_t i = 0; i < N_ROLES; i++)
		g->format[i] = g->format[i] == old ? new : g->format[i];
	for (tensor_id t = 1; t < g->tensor.n; t++)
		g->tensor.a[t].format = g->format[g->tensor.a[t].role];
}

int
main(int argc, char **argv)
{
	struct spec s = { 0 };
	struct buf resolved = { 0 }, text = { 0 };
	struct story story = { 0 };
	struct tree tree = { 0 };
	struct define defs[16];
	struct target_row target;
	uint32_t n = 0;

	if (argc < 5)
		return 2;
	for (int i = 5; i < argc && n < LEN(defs); i++) {
		char *eq = strchr(argv[i], '=');
		if (!eq)
			return 2;
		*eq = 0;
		defs[n++] = (struct define){ argv[i], eq + 1, false };
	}
	load(argv[1], defs, n, &s);
	if (diag_flush())
		return 1;
	check(s.trainer[0], targets, argv[2]);
	if (diag_flush())
		return 1;
	spec_print(s.trainer[0], true, &resolved);
	struct graph *g = graph_build(s.trainer[0]);
	if (diag_flush())
		return 1;
	if (strstr(argv[3], ",split"))
		graph_split(g);
	if (strstr(argv[3], ",rows="))
		align_rows(g, strstr(argv[3], ",rows=") + strlen(",rows="));
	graph_print(g, &story.graph);
	target = *target_find(targets, argv[2]);
	target.streams = (uint32_t)strtoul(argv[3], NULL, 10);
	struct shard *sh = shard(g, &target);
	graph_print(g, &story.shard);
	fuse(sh);
	struct plan *p = plan(sh);
	if (!strcmp(argv[4], "-")) {
		plan_print(p, &text);
		plan_report(p, &text);
		fwrite(text.s, 1, text.n, stdout);
	}
	plancheck(p);
	if (!strcmp(argv[4], "-"))
		return 0;
	emit(p, &story, resolved.s, s.trainer[0]->pos.file, &tree);
	if (!tree_write(&tree, argv[4], false))
		return 1;
	if (strstr(argv[3], ",emit"))
		return 0;
	return !(
	    nvrtc_build(&tree, argv[4], target.arch, 2, false) && build(argv[4], 2, NULL, false));
}
