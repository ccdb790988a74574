/*
 * Weights to and from Hugging Face's layout: config.json, model*.safetensors, and an index where
 * there are several. The architecture, its names and its config.json are the generator's to know.
 */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf_config.h"
#include "om_rt.h"

enum { CHUNK = 1 << 20, LISTED = 10 };

static void
check_architecture(const struct om_model *m, const char *operation)
{
	if (!m->hf_config)
		om_die(operation, "this model has no Hugging Face architecture: %s",
		    m->hf_refusal ? m->hf_refusal : "it is not known why");
}

/* ---- export ---------------------------------------------------------------------------------- */

static void
check_empty(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *entry;

	if (!d && errno != ENOENT)
		om_die("export", "%s: %s; give a new directory", path, strerror(errno));
	while (d && (entry = readdir(d)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			om_die("export", "%s is not empty; give a new directory", path);
	if (d)
		closedir(d);
}

/* The place to build beside and to rename to: where a link leads. */
static char *
place(const char *dir)
{
	size_t n = strlen(dir);
	struct stat st;
	char *to, *end;

	while (n > 1 && dir[n - 1] == '/')
		n--;
	to = om_text("%.*s", (int)n, dir);
	end = strrchr(to, '/');
	end = end ? end + 1 : to;
	if (strcmp(end, ".") == 0 || strcmp(end, "..") == 0)
		om_die("export", "%s: give a new directory by its name", dir);
	if (lstat(to, &st) == 0 && S_ISLNK(st.st_mode)) {
		end = realpath(to, NULL);
		if (!end)
			om_die("export", "%s is a link: %s; give a new directory", to,
			    strerror(errno));
		free(to);
		to = end;
	}
	return to;
}

/* The first weight of a tensor that is no number; 0 if all of them are. */
static double
odd_weight(const struct om_model *m, const struct om_entry *e, const unsigned char *arena)
{
	size_t size = om_param_size(m, e->p);
	double x = 0;
	float y;

	for (uint64_t i = 0; i < e->end - e->begin && isfinite(x); i++) {
		memcpy(size == sizeof x ? (void *)&x : (void *)&y, arena + e->off + i * size, size);
		x = size == sizeof x ? x : (double)y;
	}
	return isfinite(x) ? 0 : x;
}

/* Weights that are no numbers are exported as they are. */
static void
warn_odd(const struct om_model *m, const unsigned char *arena)
{
	uint32_t n, odd = 0;
	struct om_entry *e = om_ckpt_entries(m, OM_TO_EXPORT, &n);
	char *first = NULL, *more;
	double x;

	for (uint32_t i = 0; i < n; i++)
		if ((x = odd_weight(m, &e[i], arena)) != 0 && !odd++)
			first = om_text("%s has %g as a weight", e[i].t.name, x);
	more = odd > 1 ? om_text(", %s too", om_count(odd - 1, "other tensor")) : NULL;
	if (odd)
		fprintf(stderr,
		    "%s: export: warning: %s%s; no loss is a number with it, export an earlier "
		    "checkpoint\n",
		    m->name, first, more ? more : "");
	free(more);
	free(first);
	om_ckpt_entries_free(e, n);
}

int
om_export(const struct om_model *m, const char *dir, const char *from)
{
	char *to;
	unsigned char *arena;

	check_architecture(m, "export");
	to = place(dir);
	check_empty(to);
	arena = om_arena_host(m);
	om_ckpt_weights_at(
	    m, from, "name its folder: trainer export DIR CHECKPOINT", arena, stdout);
	om_ckpt_export(m, arena, to);
	warn_odd(m, arena);
	free(to);
	return 0;
}

/* ---- import ---------------------------------------------------------------------------------- */

struct source {
	const struct om_model *m;
	const char *dir;
	bool tied;     /* the head is the embedding */
	json_t *index; /* of the files, NULL: there is one file */
	json_t *where; /* tensor: number of its file */
	struct om_st *st;
	char **file;      /* their names */
	uint32_t n, open; /* the one whose descriptor is held */
};

/* Reads DIR/name; NULL: there is no such file. */
static json_t *
read_json(const struct source *s, const char *name)
{
	char *path = om_text("%s/%s", s->dir, name), why[OM_JSON_WHY];
	json_t *x = om_json_file(path, why);

	if (!x && errno != ENOENT) /* EINVAL: it is there, and wrong */
		om_die("import", "%s: %s; %s", path, why,
		    errno == EINVAL ? "download it again" : "give the directory of a model");
	free(path);
	return x;
}

/* Each line of a text on its own, or the first one as the end of this process; frees it. */
static void
say(const struct source *s, char *lines, bool fatal)
{
	for (char *line = lines, *end; (end = strchr(line, '\n')); line = end + 1) {
		*end = 0;
		if (fatal)
			om_die("import", "%s/config.json: %s", s->dir, line);
		fprintf(
		    stderr, "%s: import: warning: %s/config.json: %s\n", s->m->name, s->dir, line);
	}
	free(lines);
}

/* Reads a configuration as transformers does, with its family's defaults. */
static void
read_config(const struct source *s, json_t *config, struct om_hf_model *m)
{
	char *lines[2];
	size_t n[2];
	FILE *errors = open_memstream(&lines[0], &n[0]),
	     *warnings = open_memstream(&lines[1], &n[1]);
	bool good;

	if (!errors || !warnings)
		om_die("memory", "cannot list what is wrong with config.json");
	good = om_hf_read(m, config, errors, warnings);
	fclose(errors);
	fclose(warnings);
	say(s, lines[0], !good);
	say(s, lines[1], false);
	json_decref(config);
}

/* Everything that config.json and the trainer's own say of the model is the same. */
static void
check_config(struct source *s)
{
	struct om_hf_difference d;
	char why[OM_JSON_WHY];
	json_t *theirs = read_json(s, "config.json"), *ours;
	struct om_hf_model a, b;

	if (!theirs)
		om_die("import", "%s/config.json: %s; give the directory of a model", s->dir,
		    strerror(ENOENT));
	if (!(ours = om_json_parse(s->m->hf_config, strlen(s->m->hf_config), why)))
		om_die(
		    "import", "the trainer's own config.json is damaged: %s; generate again", why);
	read_config(s, theirs, &a);
	read_config(s, ours, &b);
	if (om_hf_differ(&a, &b, &d))
		om_die("import",
		    "%s/config.json has %s = %s, the trainer's model %s; generate a trainer for "
		    "this model: olmogen --from-hf=%s",
		    s->dir, d.what, d.a, d.b, s->dir);
	s->tied = b.v[OM_HF_tie_word_embeddings] != 0;
}

/* Opens a file, and notes where its tensors are; of many files, not all can stay open. */
static void
open_file(struct source *s, const char *name)
{
	char *path = om_text("%s/%s", s->dir, name);
	struct om_st *st = &s->st[s->n];
	const char *why = NULL, *tensor;

	if (!s->index && access(path, F_OK) != 0 && errno == ENOENT)
		om_die("import",
		    "%s has neither model.safetensors nor model.safetensors.index.json; give the "
		    "directory of a model whose weights are safetensors",
		    s->dir);
	if (!*name || strchr(name, '/') || (why = om_st_open(st, path)))
		om_die("import", "%s: %s", path,
		    why ? why : "the index names a file outside of its directory");
	om_st_rest(st);
	s->file[s->n] = om_text("%s", name);
	for (uint32_t i = 0; i < st->n; i++) {
		const json_t *other = json_object_get(s->where, tensor = st->tensor[i].name);

		if (other)
			om_die("import", "%s is in %s and in %s", om_clip(tensor),
			    s->file[json_integer_value(other)], name);
		json_object_set_new(s->where, tensor, json_integer(s->n));
	}
	s->n++;
	free(path);
}

/* Opens the files that the index names, or the only one. */
static void
open_files(struct source *s)
{
	json_t *map, *file, *seen = json_object();
	const char *tensor, *name;

	s->where = json_object();
	s->index = read_json(s, "model.safetensors.index.json");
	map = json_object_get(s->index, "weight_map");
	if (s->index && !json_is_object(map))
		om_die("import", "%s/model.safetensors.index.json has no \"weight_map\"", s->dir);
	s->st = om_alloc(json_object_size(map) + 1, sizeof *s->st);
	s->file = om_alloc(json_object_size(map) + 1, sizeof *s->file);
	if (!s->index)
		open_file(s, "model.safetensors");
	json_object_foreach(map, tensor, file)
	{
		if (!(name = json_string_value(file)))
			om_die("import",
			    "%s/model.safetensors.index.json: the file of %s is not a text", s->dir,
			    om_clip(tensor));
		if (json_object_get(seen, name)) /* it is there once a tensor */
			continue;
		json_object_set_new(seen, name, json_true());
		open_file(s, name);
	}
	json_decref(seen);
}

/* Where the tensor is, NULL: nowhere; *file is the number of its file. */
static const struct om_st_tensor *
find(const struct source *s, const char *name, uint32_t *file)
{
	const json_t *where = json_object_get(s->where, name);

	if (where)
		*file = (uint32_t)json_integer_value(where);
	return where ? om_st_find(&s->st[*file], name) : NULL;
}

static int
by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Not a weight: older files keep the frequencies of rotary embeddings, tied heads are copies. */
static bool
needless(const struct source *s, const char *name)
{
	static const char frequency[] = "rotary_emb.inv_freq";
	size_t n = strlen(name), m = sizeof frequency - 1;

	return (n >= m && strcmp(name + n - m, frequency) == 0) ||
	       (strcmp(name, "lm_head.weight") == 0 && s->tied);
}

static void
listed(FILE *f, uint32_t *count, const char *name)
{
	if ((*count)++ < LISTED)
		fprintf(f, "%s%s", *count > 1 ? ", " : "", om_clip(name));
}

/* Every tensor of the model is in the files, and every one of the files in the model. */
static void
check_names(struct source *s, const struct om_entry *e, uint32_t n)
{
	char **name = om_alloc(n, sizeof *name), *text[2] = { NULL, NULL };
	size_t size[2];
	FILE *f[2] = { open_memstream(&text[0], &size[0]), open_memstream(&text[1], &size[1]) };
	uint32_t count[2] = { 0, 0 }, file = 0;

	if (!f[0] || !f[1])
		om_die("memory", "cannot list tensors");
	for (uint32_t i = 0; i < n; i++) {
		name[i] = e[i].t.name;
		if (!find(s, name[i], &file))
			listed(f[0], &count[0], name[i]);
	}
	qsort(name, n, sizeof *name, by_name);
	for (uint32_t i = 0; i < s->n; i++)
		for (uint32_t j = 0; j < s->st[i].n; j++) {
			char *other = s->st[i].tensor[j].name;

			if (!bsearch(&other, name, n, sizeof *name, by_name) && !needless(s, other))
				listed(f[1], &count[1], other);
		}
	for (int i = 0; i < 2; i++) {
		if (count[i] > LISTED)
			fprintf(f[i], " and %u more", count[i] - LISTED);
		fclose(f[i]);
	}
	if (count[0] || count[1])
		om_die("import", "%s: %s%s%s%s%s; generate a trainer for this model", s->dir,
		    count[0] ? "has no " : "", text[0], count[0] && count[1] ? "; " : "",
		    count[1] ? "has tensors that are not the model's: " : "", text[1]);
	free(text[0]);
	free(text[1]);
	free(name);
}

/* Reads n bytes of a tensor from its byte `at` on. */
static void
fetch(
    struct source *s, uint32_t file, const struct om_st_tensor *t, uint64_t at, void *buf, size_t n)
{
	struct om_st *st = &s->st[file];
	char *path = om_text("%s/%s", s->dir, s->file[file]);
	const char *why;

	if (file != s->open)
		om_st_rest(&s->st[s->open]);
	s->open = file;
	if ((why = om_st_again(st, path)))
		om_die("import", "%s: %s", path, why);
	if (!om_pread_all(st->fd, buf, n, st->data + t->begin + at))
		om_die("import", "%s: %s: %s", path, om_clip(t->name),
		    errno ? strerror(errno) : "truncated");
	free(path);
}

/* The copy that is a tied head is one; transformers takes another one for a head of its own. */
static void
check_copy(struct source *s, unsigned char *buf)
{
	static const char head[] = "lm_head.weight", embedding[] = "model.embed_tokens.weight";
	uint32_t file[2] = { 0, 0 };
	const struct om_st_tensor *t[2] = { find(s, head, &file[0]), find(s, embedding, &file[1]) };
	uint64_t size;
	bool same;

	if (!s->tied || !t[0] || !t[1])
		return;
	size = t[0]->end - t[0]->begin;
	same = t[0]->dtype == t[1]->dtype && size == t[1]->end - t[1]->begin;
	for (uint64_t at = 0, n; same && at < size; at += n) {
		n = size - at < CHUNK ? size - at : CHUNK;
		for (int i = 0; i < 2; i++)
			fetch(s, file[i], t[i], at, buf + i * CHUNK, (size_t)n);
		same = memcmp(buf, buf + CHUNK, (size_t)n) == 0;
	}
	if (!same)
		om_die("import",
		    "%s: %s is not a copy of %s, though config.json has tie_word_embeddings = "
		    "true; remove the tensor, or generate a trainer from a config.json with false",
		    s->dir, head, embedding);
}

/* Puts one tensor into the arena, after its shape and type have been checked. */
static void
load(struct source *s, unsigned char *arena, const struct om_entry *e, unsigned char *buf, float *x,
    double *wide)
{
	uint32_t file = 0;
	const struct om_st_tensor *t = find(s, e->t.name, &file);
	uint64_t numel = e->p->numel, width, at = 0, first = e->first;
	char shape[2][128] = { "", "" };

	for (int i = 0; i < 2; i++) {
		FILE *f = fmemopen(shape[i], sizeof shape[i], "w");

		if (f) {
			om_ckpt_shape(f, i ? &e->t : t);
			fclose(f);
		}
	}
	if (strcmp(shape[0], shape[1]) != 0)
		om_die("import", "%s/%s: %s is %s, the model's is %s", s->dir, s->file[file],
		    e->t.name, shape[0], shape[1]);
	if (!om_st_floats(t->dtype, buf, 0, x))
		om_die("import", "%s/%s: %s is %s, only F32, BF16 and F16 are read", s->dir,
		    s->file[file], e->t.name, t->dtype);
	width = numel ? (t->end - t->begin) / numel : 1;
	for (size_t n; numel; numel -= n, at += n * width, first += n) {
		n = numel < CHUNK ? (size_t)numel : CHUNK;
		fetch(s, file, t, at, buf, n * width);
		om_st_floats(t->dtype, buf, n, x);
		for (size_t i = 0; i < n; i++) {
			if (!isfinite(x[i]))
				om_die("import",
				    "%s/%s: %s has %g as element %llu, with which no loss is a "
				    "number; the weights are spoilt, download them again",
				    s->dir, s->file[file], e->t.name, (double)x[i],
				    (unsigned long long)(first - e->first + i));
			wide[i] = (double)x[i];
		}
		om_put_weights(s->m, arena, e->p, e->rep, first,
		    s->m->real == 4 ? (void *)x : (void *)wide, n);
	}
}

int
om_import(const struct om_model *m, const char *from, const char *dir)
{
	struct source s = { .m = m, .dir = from };
	struct om_conf c = { .dir = om_text("%s", dir) };
	struct om_ckpt k;
	unsigned char *arena, *buf;
	double *wide;
	float *x;
	struct om_entry *e;
	uint32_t n;
	char *there;

	check_architecture(m, "import");
	check_config(&s);
	open_files(&s);
	e = om_ckpt_entries(m, OM_TO_EXPORT, &n);
	check_names(&s, e, n);
	buf = om_alloc(CHUNK, sizeof(float));
	x = om_alloc(CHUNK, sizeof *x);
	wide = om_alloc(CHUNK, sizeof *wide);
	check_copy(&s, buf);
	arena = om_arena_host(m);
	for (uint32_t i = 0; i < n; i++)
		load(&s, arena, &e[i], buf, x, wide);
	om_ckpt_open(&k, m, NULL, NULL, &c);
	if ((there = om_ckpt_newest(&k)))
		om_die("import", "%s is here already; give another directory", there);
	om_ckpt_save(&k, arena, 0);
	printf("import: %s, %s/step-000000; train on by checkpoint.dir=%s\n", om_count(n, "tensor"),
	    dir, dir);
	om_ckpt_close(&k);
	om_ckpt_entries_free(e, n);
	for (uint32_t i = 0; i < s.n; i++) {
		om_st_close(&s.st[i]);
		free(s.file[i]);
	}
	json_decref(s.index);
	json_decref(s.where);
	om_conf_free(&c);
	free(s.st);
	free(s.file);
	free(buf);
	free(x);
	free(wide);
	return 0;
}
