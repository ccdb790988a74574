/* The emitted tree: which files it has and what they share. Every decision was made before. */
#include <string.h>

#include "emit/emit.h"

static void
copy(struct tree *t, const char *to, const char *from)
{
	const struct embedded *e = embedded_find(from);

	buf_add(tree_file(t, to), (const char *)e->data, e->n);
	t->a[t->n - 1].verbatim = true;
}

/* Whether a file of the kind's kernels is that one, or includes it. */
static bool
needs(const char *kind, const char *file, const char *name)
{
	static const char include[] = "#include \"";
	const char *path = xprintf("kernels/%s/%s", kind, file);
	uint32_t i = 0;

	if (!strcmp(file, name))
		return true;
	while (i < n_embedded && strcmp(embedded[i].path, path))
		i++;
	const char *s = i < n_embedded ? (const char *)embedded[i].data : "";
	while ((s = strstr(s, include))) {
		s += sizeof include - 1;
		if (needs(kind, xprintf("%.*s", (int)strcspn(s, "\""), s), name))
			return true;
	}
	return false;
}

/* A file of kernels that no instance needs; headers that every kernel may include are none. */
static bool
unused(const struct plan *p, const char *name)
{
	const char *kind = p->target->kind->name;

	if (!kernel_file(kind, name))
		return false;
	for (uint32_t k = 1; k < p->inst->n; k++)
		if (needs(kind, p->inst->a[k].kernel->file, name))
			return false;
	return true;
}

/*
 * What all targets have, and the folders of the target's kind and of how its ranks join (and of all
 * that have several), flat; of kernels what is used.
 */
static void
copy_folder(const struct plan *p, const char *top, struct tree *t)
{
	const char *kind = p->target->kind->name;
	bool many = p->shard->mesh.size[OM_WORLD] > 1;
	const char *comm = many ? p->target->kind->comm : "one";

	for (uint32_t i = 0; i < n_embedded; i++) {
		const char *path = embedded[i].path, *name = path + strlen(top) + 1;
		if (strncmp(path, top, strlen(top)) || name[-1] != '/')
			continue;
		const char *slash = strchr(name, '/');
		const char *folder = slash ? xprintf("%.*s", (int)(slash - name), name) : kind;
		if (!strcmp(folder, "page")) /* which stays a folder */
			copy(t, path, path);
		name = slash ? slash + 1 : name;
		if ((!strcmp(folder, kind) || !strcmp(folder, comm) ||
			(many && !strcmp(folder, "ranks"))) &&
		    !unused(p, name))
			copy(t, xprintf("%s/%s", top, name), path);
	}
}

/* How the ranks are started, for README.md. */
static const char *
launch_lines(const struct plan *p, const char *start)
{
	const struct target_row *t = p->target;
	uint32_t world = (uint32_t)p->shard->mesh.size[OM_WORLD];
	uint32_t host = t->host && t->host < world ? t->host : world;
	struct buf b = { 0 };

	if (world == 1)
		return "";
	buf_printf(&b,
	    "It is of %u ranks. On one machine it starts them itself; on several, which share its "
	    "files:\n"
	    "\n    %s ./trainer train run.yaml\n",
	    world, start);
	if (t->kind->nvrtc)
		buf_printf(&b,
		    "    torchrun --no-python --nnodes=%u --nproc-per-node=%u --rdzv-backend=c10d "
		    "\\\n"
		    "        --rdzv-endpoint=HOST:29400 ./trainer train run.yaml\n"
		    "    mpirun -np %u -x MASTER_ADDR=HOST ./trainer train run.yaml    # HOST: of "
		    "rank 0\n"
		    "\nEach rank has a GPU of its own, %u a machine, and NCCL 2.18 or later, whose "
		    "`libnccl.so.2` the system finds\nor lies beside the trainer, where `make "
		    "BUNDLE=1` puts it; `make STATIC=1` links it in. NCCL's licence\n"
		    "(BSD-3-Clause) goes with its copies.\n",
		    (world + host - 1) / host, host, world, host);
	buf_puts(&b, "\n");
	return b.s;
}

static void
emit_project(const struct plan *p, const struct story *story, struct tree *t)
{
	struct buf inst = { 0 }, rt = { 0 }, plan_text = { 0 }, data = { 0 };
	const char *name = spec_str(p->graph->trainer, F_trainer_name);

	for (uint32_t i = 0; i < t->n; i++) {
		const char *path = t->a[i].path;
		int stem = (int)strcspn(path, ".");
		if (!strncmp(path, "inst/", 5))
			buf_printf(&inst, " \\\n\t%.*s.o", stem, path);
		if (!strncmp(path, "runtime/", 8) && !strcmp(path + stem, ".c"))
			buf_printf(&rt, " \\\n\t%.*s.o", stem, path);
	}
	bool many = p->shard->mesh.size[OM_WORLD] > 1;
	const struct target_kind *kind = p->target->kind;
	const char *file = many && kind->comm_make ? kind->comm_make : kind->name;
	const struct embedded *mk = embedded_find(xprintf("templates/%s.mk", file));
	const char *arch = "";
	if (p->target->kind->nvrtc) /* "90a" and its number, which sources ask for */
		arch = xprintf("ARCH = %s\nOM_ARCH = %.*s\n", p->target->arch,
		    (int)strspn(p->target->arch, "0123456789"), p->target->arch);
	plan_report(p, &plan_text);
	*tree_file(t, "PLAN.txt") = plan_text;
	if (emit_has_page(p->graph)) {
		emit_page_data(p, story, "", &data);
		emit_page(data.s, t);
	}
	const struct slot make[] = {
		{ "objects", xprintf("%sINST =%s\nRUNTIME =%s\n", arch, inst.s, rt.s) },
		{ "target", (const char *)mk->data },
	};
	const char *start = xprintf(kind->comm_start, (unsigned)p->shard->mesh.size[OM_WORLD]);
	const struct slot slurm = { "several", xprintf("several='%s'\n", start) };
	const struct slot readme[] = {
		{ "title", xprintf("# %s\n", name) },
		{ "ranks", launch_lines(p, start) },
		{ "plan", xprintf("```\n%s```\n", plan_text.s) },
	};
	emit_source(p, t, "main.c", NULL, 0);
	emit_template(p, t, "Makefile", "templates/Makefile", make, LEN(make));
	emit_template(p, t, "README.md", "templates/README.md", readme, LEN(readme));
	emit_template(p, t, "launch/slurm.sh", "templates/slurm.sh", &slurm, 1);
}

/*
 * Generated text keeps to 100 columns, without blanks at line ends, so that people can read and
 * diff it.
 */
static void
check_text(const struct file *f)
{
	size_t col = 0;
	unsigned line = 1;

	for (size_t i = 0; i < f->text.n; i++) {
		char c = f->text.s[i];
		if (c != '\n') {
			col += c == '\t' ? 8 - col % 8 : 1;
			continue;
		}
		if (i && (f->text.s[i - 1] == ' ' || f->text.s[i - 1] == '\t'))
			internal("emit: %s:%u ends with a blank", f->path, line);
		if (col > 100 && strcmp(f->path, "PLAN.txt") && strcmp(f->path, "README.md") &&
		    strcmp(f->path, "plan.html"))
			internal("emit: %s:%u has %zu columns", f->path, line, col);
		col = 0;
		line++;
	}
}

/*
 * What a checkpoint belongs to: the model, and the step that the order of data follows.
 * Recomputation, layout, microbatch and optimizer may change between a run and its continuation.
 */
static const char *
fingerprint_of(const struct object *trainer)
{
	const struct object *m = spec_obj(trainer, F_trainer_model);
	struct buf b = { 0 };

	for (uint32_t f = 0; f < N_FIELDS; f++)
		if (fields[f].object == OBJ_transformer && f != F_transformer_recompute)
			buf_printf(&b, "%s = %s\n", fields[f].name, spec_text(spec_value(m, f)));
	buf_printf(&b, "global = %lld\n", (long long)spec_int(trainer, F_batch_global));
	return sha256_hex(b.s, b.n);
}

void
emit(const struct plan *p, const struct story *story, const char *resolved, uint32_t input,
    struct tree *t)
{
	const char *fingerprint = fingerprint_of(p->graph->trainer);
	const char *base = strrchr(diag_file_name(input), '/');
	size_t len;
	const char *text = diag_file_text(input, &len);

	emit_config(p, t);
	emit_launch(p, t);
	emit_step(p, t);
	emit_params(p, fingerprint, t);
	copy_folder(p, "runtime", t);
	copy_folder(p, "kernels", t);
	if (p->target->kind->nvrtc)
		emit_cubins(p, t);
	copy(t, "LICENSE", "LICENSE");
	emit_project(p, story, t);
	buf_puts(tree_file(t, "model/resolved.lua"), resolved);
	for (uint32_t i = 0; i < t->n; i++)
		if (!t->a[i].verbatim && strncmp(t->a[i].path, "model/", 6))
			check_text(&t->a[i]);
	emit_manifest(p, fingerprint, t);
	/*
	 * the input is beside resolved.lua for people; nothing depends on it, so that resolved.lua
	 * gives this tree
	 */
	base = base ? base + 1 : diag_file_name(input);
	if (strcmp(base, "resolved.lua")) {
		buf_add(tree_file(t, xprintf("model/%s", base)), text, len);
		t->a[t->n - 1].verbatim = true;
	}
}
