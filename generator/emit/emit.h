/*
 * The file tree: from plans to text.
 *
 * emit takes the plans of all stages and gives a struct tree in memory, one file of this folder
 * for each emitted file or two. tree_write puts it on disk: only what changed is written, through
 * a temporary name; tree_check compares. Hugging Face's names and config.json of a model are
 * hf.c's. embed.c is a host tool: it makes the table of what olmogen carries.
 *
 * Must never decide anything: that belongs in plan.
 */
#ifndef OLMOGEN_EMIT_H
#define OLMOGEN_EMIT_H

#include "plan/plan.h"

#include "hf_config.h" /* of runtime/ */

/* ---- emit.c and its parts, hf.c, tree.c: files ---------------------------------------------- */

struct file {
	const char *path; /* inside the tree */
	struct buf text;
	bool verbatim; /* copied as it is, not written by emit */
};
struct tree {
	struct file *a;
	uint32_t n, cap;
};
/* What --dump=graph and the graph of --dump=shard say, which later stages have rewritten. */
struct story {
	struct buf graph, shard;
};
/* The whole emitted tree in memory. input is the description's text, copied into model/. */
void emit(const struct plan *p, const struct story *story, const char *resolved, uint32_t input,
    struct tree *out);
/*
 * page.c: a plan's data for plan.html, as JSON, with the reason if a build refuses it, or "". The
 * page of such, with commas between them, as a file of a tree.
 */
void emit_page_data(
    const struct plan *p, const struct story *story, const char *refused, struct buf *out);
void emit_page(const char *data, struct tree *out);
/* Whether there is a page of it: not where there are more kinds of layers than people look at. */
bool emit_has_page(const struct graph *g);
/*
 * Writes what changed, through temporary names; removes files that the old manifest lists and the
 * tree lacks.
 */
bool tree_write(const struct tree *t, const char *dir, bool verbose);
/* Whether a file has that text; gives it the text, through a temporary name, or false and errno. */
bool tree_same(const char *path, const struct buf *text);
bool tree_replace(const char *path, const char *through, const struct buf *text);
/* --check: false, and the first differences on stderr, if dir is not exactly this tree. */
bool tree_check(const struct tree *t, const char *dir);

/* ---- private to this folder ------------------------------------------------------------------ */

/* A new file of the tree. */
struct buf *tree_file(struct tree *t, const char *path);

/* ---- text.c: text that the parts of emit share ----------------------------------------------- */

/*
 * A file of the tree from a template, which is text but for lines that hold nothing but a comment:
 * "@slot NAME" becomes that slot's text, "@banner TEXT" says what the file is.
 */
struct slot {
	const char *name, *text;
};
void emit_template(const struct plan *p, struct tree *t, const char *path, const char *from,
    const struct slot *slot, uint32_t n);
/* src/NAME from templates/NAME. */
void emit_source(
    const struct plan *p, struct tree *t, const char *name, const struct slot *slot, uint32_t n);
/* Whose it is and what, as a comment that begins so. */
void emit_banner(const struct plan *p, const char *comment, const char *what, struct buf *b);
/* One statement, declaration or comment, broken where it passes column 100. */
void emit_line(struct buf *b, int tabs, const char *fmt, ...) PRINTF(3, 4);
extern const char *const emit_regions[N_REGIONS]; /* layout.h: OM_NAME and OM_NAME_BYTES */
const char *emit_number(uint64_t n);
const char *emit_shape(const struct tensor *t);
const char *emit_group(enum om_group g); /* "OM_DATA" */
/* What the workspace of a launch is called: "dense_backward_rmsnorm_bwd". */
const char *emit_workspace(const struct plan *p, uint32_t seg, int phase, uint32_t launch);
const char *emit_stage_name(const struct plan *p, const char *name); /* "forward_2" */

/* The parts of emit, one a file or two of the tree. */
void emit_config(const struct plan *p, struct tree *t); /* src/config.h, src/layout.h */
void emit_launch(const struct plan *p, struct tree *t); /* src/launch.h, src/launch.c, inst/ */
/* src/cubins.c: the compiled kernels of every .cu in the tree as the runtime loads them. */
void emit_cubins(const struct plan *p, struct tree *t);
void emit_step(const struct plan *p, struct tree *t);                            /* src/step.c */
void emit_params(const struct plan *p, const char *fingerprint, struct tree *t); /* src/params.c */
void
emit_manifest(const struct plan *p, const char *fingerprint, struct tree *t); /* manifest.yaml */

/*
 * hf.c: the config.json of the model; NULL and the reason if transformers has no such architecture.
 */
const char *hf_config(const struct graph *g, const char **reason);

#endif
