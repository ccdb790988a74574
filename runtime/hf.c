/*
 * Weights from Hugging Face's layout: config.json, model*.safetensors, and an index where there are
 * several. Any family will do whose config.json says the same model.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hf.h"

enum { CHUNK = 1 << 20, LISTED = 10 }; /* bytes that are compared at a time */

struct source {
	const struct om_model *m;
	const char *dir;
	struct om_hf_model config; /* theirs */
	json_t *index;             /* of the files, NULL: there is one file */
	json_t *where;             /* tensor: number of its file */
	struct om_st *st;
	char **file;      /* their names */
	uint32_t n, open; /* the one whose descriptor is held */
	struct om_hf_item *item;
	uint32_t items, *item_of; /* of the entries that are asked for */
	unsigned char *buf;
	float *x;
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

/* What of the trainer's own model need not be as it is in theirs, out of which it is upcycled. */
static void
forget(struct om_hf_model *own, const struct om_hf_model *theirs)
{
	static const enum om_hf_key of_experts[] = { OM_HF_num_experts, OM_HF_num_experts_per_tok,
		OM_HF_moe_intermediate_size, OM_HF_shared_expert_intermediate_size,
		OM_HF_norm_topk_prob, OM_HF_routed_scaling_factor, OM_HF_n_group,
		OM_HF_topk_group };
	/* of a model with experts, their number and that of a token's */
	size_t n = theirs->score ? 2 : OM_LEN(of_experts);

	for (uint32_t l = 0; l < own->layers && l < theirs->layers; l++)
		own->moe[l] &= theirs->moe[l];
	for (size_t i = 0; i < n; i++)
		own->v[of_experts[i]] = theirs->v[of_experts[i]];
	if (!own->v[OM_HF_intermediate_size])
		own->v[OM_HF_intermediate_size] = theirs->v[OM_HF_intermediate_size];
	own->score = theirs->score ? own->score : NULL;
}

/* Everything that config.json and the trainer's own say of the model is the same. */
static void
check_config(struct source *s, bool upcycle)
{
	static struct om_hf_model own;
	struct om_hf_difference d;
	json_t *theirs;

	om_hf_own(s->m, "import", &own);
	theirs = read_json(s, "config.json");
	if (!theirs)
		om_die("import", "%s/config.json: %s; give the directory of a model", s->dir,
		    strerror(ENOENT));
	read_config(s, theirs, &s->config);
	if (upcycle)
		forget(&own, &s->config);
	if (om_hf_differ(&s->config, &own, &d))
		om_die("import",
		    "%s/config.json has %s = %s, the trainer's model %s; generate a trainer for "
		    "this model: olmogen --from-hf=%s",
		    s->dir, d.what, d.a, d.b, s->dir);
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

static bool
tied(const struct source *s)
{
	return s->config.v[OM_HF_tie_word_embeddings] != 0;
}

/*
 * Not a weight of this model: older files keep the frequencies of rotary embeddings, tied heads are
 * copies, and layers behind the last one predict further tokens, which transformers leaves out too.
 */
static bool
needless(const struct source *s, const char *name)
{
	static const char frequency[] = "rotary_emb.inv_freq", layers[] = "model.layers.";
	size_t n = strlen(name), m = sizeof frequency - 1;

	return (n >= m && strcmp(name + n - m, frequency) == 0) ||
	       (strcmp(name, "lm_head.weight") == 0 && tied(s)) ||
	       (s->config.family->more_layers && strncmp(name, layers, sizeof layers - 1) == 0 &&
		   strtoull(name + sizeof layers - 1, NULL, 10) >= s->config.layers);
}

static void
listed(FILE *f, uint32_t *count, const char *name)
{
	if ((*count)++ < LISTED)
		fprintf(f, "%s%s", *count > 1 ? ", " : "", om_clip(name));
}

/* Every tensor of the model is in the files, and every one of the files in the model. */
static void
check_names(struct source *s, const struct om_hf_item *item, uint32_t n)
{
	char **name = om_alloc(n, sizeof *name), *text[2] = { NULL, NULL };
	size_t size[2];
	FILE *f[2] = { open_memstream(&text[0], &size[0]), open_memstream(&text[1], &size[1]) };
	uint32_t count[2] = { 0, 0 }, file = 0;

	if (!f[0] || !f[1])
		om_die("memory", "cannot list tensors");
	for (uint32_t i = 0; i < n; i++) {
		name[i] = item[i].t.name;
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

	if (!tied(s) || !t[0] || !t[1])
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

/* Where a tensor is, its shape and type having been checked; *file is the number of its file. */
static const struct om_st_tensor *
check_tensor(struct source *s, const struct om_hf_item *item, uint32_t *file)
{
	const struct om_st_tensor *t = find(s, item->t.name, file);
	char shape[2][128] = { "", "" };
	float none;

	for (int i = 0; i < 2; i++) {
		FILE *f = fmemopen(shape[i], sizeof shape[i], "w");

		if (f) {
			om_ckpt_shape(f, i ? &item->t : t);
			fclose(f);
		}
	}
	if (strcmp(shape[0], shape[1]) != 0)
		om_die("import", "%s/%s: %s is %s, the model's is %s", s->dir, s->file[*file],
		    item->t.name, shape[0], shape[1]);
	if (!om_st_floats(t->dtype, &none, 0, &none))
		om_die("import", "%s/%s: %s is %s, only F32, BF16 and F16 are read", s->dir,
		    s->file[*file], item->t.name, t->dtype);
	return t;
}

/* What is a number, and zero where the model has nothing of the kind. */
static void
check_numbers(struct source *s, const struct om_hf_item *item, uint32_t file, uint64_t at,
    const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (!isfinite(x[i]))
			om_die("import",
			    "%s/%s: %s has %g as element %llu, with which no loss is a number; the "
			    "weights are spoilt, download them again",
			    s->dir, s->file[file], item->t.name, (double)x[i],
			    (unsigned long long)(at + i));
		if (!item->e && x[i] != 0)
			om_die("import",
			    "%s/%s: %s has %g as element %llu, and this trainer's model has no "
			    "such tensor, as if it were zero; %s",
			    s->dir, s->file[file], item->t.name, (double)x[i],
			    (unsigned long long)(at + i),
			    item->t.ndims == 1 || item->form == OM_HF_ROW
				? "generate one whose router { } has bias_gamma over 0"
				: "a gated shared expert cannot be described");
	}
}

/* Reads a piece of a tensor that is known to be there. */
static void
read_piece(struct source *s, const struct om_hf_item *item, uint64_t at, size_t n)
{
	uint32_t file = 0;
	const struct om_st_tensor *t = find(s, item->t.name, &file);
	uint64_t numel = 1;
	size_t width;

	for (int i = 0; i < t->ndims; i++)
		numel *= t->dim[i];
	width = (size_t)((t->end - t->begin) / numel);
	fetch(s, file, t, at * width, s->buf, n * width);
	om_st_floats(t->dtype, s->buf, n, s->x);
	check_numbers(s, item, file, at, s->x, n);
}

static bool
giver_shape(void *of, const char *name, uint64_t dim[2])
{
	struct source *s = of;
	enum om_hf_form form;
	char *theirs = om_hf_name(s->config.family, name, &form);
	uint32_t file;
	const struct om_st_tensor *t = theirs ? find(s, theirs, &file) : NULL;

	dim[0] = t ? t->dim[form == OM_HF_ROW] : 0;
	dim[1] = t && t->ndims > 1 && form != OM_HF_ROW ? t->dim[1] : 0;
	free(theirs);
	return t;
}

static size_t
giver_take(void *of, const struct om_entry *e, uint32_t n)
{
	struct source *s = of;
	uint32_t file = 0;
	size_t most;

	s->item = om_hf_items(s->m, &s->config, e, n, &s->items);
	s->item_of = om_alloc(n, sizeof *s->item_of);
	for (uint32_t i = 0; i < n; i++)
		s->item_of[i] = UINT32_MAX;
	for (uint32_t i = 0; i < s->items; i++)
		if (s->item[i].e)
			s->item_of[s->item[i].e - e] = i;
	check_names(s, s->item, s->items);
	most = om_hf_most(s->item, s->items);
	s->buf = om_alloc(most > CHUNK ? most : CHUNK, sizeof(float));
	s->x = om_alloc(most, sizeof *s->x);
	check_copy(s, s->buf);
	for (uint32_t i = 0; i < s->items; i++) {
		const struct om_hf_item *item = &s->item[i];
		uint64_t numel = 1;

		check_tensor(s, item, &file);
		for (int d = 0; d < item->t.ndims; d++)
			numel *= item->t.dim[d];
		for (uint64_t at = 0, some; !item->e && at < numel; at += some) {
			some = om_hf_some(item, numel - at);
			read_piece(s, item, at, some);
		}
	}
	return most;
}

static size_t
giver_some(void *of, uint32_t i, uint64_t left)
{
	const struct source *s = of;

	return s->item_of[i] == UINT32_MAX ? (size_t)left
					   : om_hf_some(&s->item[s->item_of[i]], left);
}

static void
giver_read(void *of, uint32_t i, uint64_t at, double *x, size_t n)
{
	struct source *s = of;

	if (s->item_of[i] == UINT32_MAX) { /* a bias, of which the family has none */
		memset(x, 0, n * sizeof *x);
		return;
	}
	read_piece(s, &s->item[s->item_of[i]], at, n);
	for (size_t j = 0; j < n; j++)
		x[j] = (double)s->x[j];
	om_hf_form(&s->item[s->item_of[i]], x, n, true);
}

static void
giver_close(void *of)
{
	struct source *s = of;

	for (uint32_t i = 0; i < s->n; i++) {
		om_st_close(&s->st[i]);
		free(s->file[i]);
	}
	om_hf_items_free(s->item, s->items);
	json_decref(s->index);
	json_decref(s->where);
	free(s->item_of);
	free(s->st);
	free(s->file);
	free(s->buf);
	free(s->x);
}

void
om_hf_giver(struct om_giver *g, const struct om_model *m, const char *dir, bool upcycle)
{
	static struct source s;

	s = (struct source){ .m = m, .dir = dir };
	check_config(&s, upcycle);
	open_files(&s);
	*g = (struct om_giver){ &s, dir, giver_shape, giver_take, giver_some, giver_read,
		giver_close, s.config.v[OM_HF_num_experts_per_tok] };
}
