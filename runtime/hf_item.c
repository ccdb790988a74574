/*
 * The model's tensors as Hugging Face has them: names, shapes, what is in another order or has
 * another factor there, and what is there and not here.
 */
#include <stdlib.h>
#include <string.h>

#include "hf.h"

enum { SOME = 1 << 20 };

void
om_hf_own(const struct om_model *m, const char *operation, struct om_hf_model *config)
{
	char why[OM_JSON_WHY], *lines = NULL;
	json_t *json;
	size_t n;
	FILE *f = open_memstream(&lines, &n);

	if (!f)
		om_die("memory", "cannot read config.json");
	if (!m->hf_config)
		om_die(operation, "this model has no Hugging Face architecture: %s",
		    m->hf_refusal ? m->hf_refusal : "it is not known why");
	json = om_json_parse(m->hf_config, strlen(m->hf_config), why);
	if (!json || !om_hf_read(config, json, f, f))
		om_die(operation, "the trainer's own config.json is damaged; generate again");
	fclose(f);
	free(lines);
	json_decref(json);
}

/* How an export stores numbers: a weight's in its own format, all else in fp32. */
static const char *
type_of(const struct om_model *m, bool weight)
{
	return weight && strcmp(m->weights, "bf16") == 0 ? "BF16" : "F32";
}

static uint64_t
numel(const struct om_st_tensor *t)
{
	uint64_t n = 1;

	for (int i = 0; i < t->ndims; i++)
		n *= t->dim[i];
	return n;
}

/* Shape, block and bytes, from what we have. */
static void
shape(struct om_hf_item *item, const uint64_t dim[2], int ndims, uint64_t head)
{
	struct om_st_tensor *t = &item->t;

	t->ndims = ndims;
	memcpy(t->dim, dim, 2 * sizeof *dim);
	if (item->form == OM_HF_ROW) {
		t->ndims = 2;
		t->dim[1] = dim[0];
		t->dim[0] = 1;
	}
	item->rows = item->columns = 1;
	if (item->form == OM_HF_PAIRS) {
		item->rows = head;
		item->columns = dim[1];
	}
	item->block = item->rows * item->columns;
	t->end = numel(t) * (strcmp(t->dtype, "BF16") == 0 ? 2 : 4);
}

/* Whether the routers of a layer have biases of their own. */
static bool
has_bias(const struct om_entry *e, uint32_t n, uint32_t layer)
{
	char *name = om_text("model.layers.%u.mlp.gate.e_score_correction_bias", layer);
	bool is = false;

	for (uint32_t i = 0; i < n && !is; i++)
		is = strcmp(e[i].t.name, name) == 0;
	free(name);
	return is;
}

struct om_hf_item *
om_hf_items(const struct om_model *m, const struct om_hf_model *config, const struct om_entry *e,
    uint32_t n, uint32_t *items)
{
	enum { ZEROS = 8 }; /* a layer has fewer */
	struct om_hf_item *all = om_alloc(n + ZEROS * (size_t)config->layers, sizeof *all),
			  *item = all;
	uint64_t head = (uint64_t)config->v[OM_HF_head_dim];
	struct om_hf_zero z;

	for (; n && e[n - 1].file; n--)
		;
	for (uint32_t i = 0; i < n; i++, item++) {
		item->e = &e[i];
		item->t.name = om_hf_name(config->family, e[i].t.name, &item->form);
		if (!item->t.name) {
			item--;
			continue;
		}
		item->t.dtype = type_of(m, e[i].p->master != OM_NO_MASTER);
		shape(item, e[i].p->dim, e[i].p->ndims, head);
	}
	for (uint32_t l = 0; l < config->layers; l++)
		for (unsigned j = 0; config->moe[l] && om_hf_zero(config, has_bias(e, n, l), j, &z);
		     j++, item++) {
			char *name = om_text("model.layers.%u.%s", l, z.name);

			item->t.name = om_hf_name(config->family, name, &item->form);
			item->t.dtype = type_of(m, !z.wide);
			shape(item, z.dim, z.ndims, head);
			free(name);
		}
	*items = (uint32_t)(item - all);
	return all;
}

void
om_hf_items_free(struct om_hf_item *item, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		free(item[i].t.name);
	free(item);
}

size_t
om_hf_some(const struct om_hf_item *item, uint64_t left)
{
	uint64_t some = SOME / item->block;

	some = (some ? some : 1) * item->block;
	return (size_t)(left < some ? left : some);
}

size_t
om_hf_most(const struct om_hf_item *item, uint32_t n)
{
	size_t most = SOME;

	for (uint32_t i = 0; i < n; i++)
		most = item[i].block > most ? (size_t)item[i].block : most;
	return most;
}

/* The rows of a head: ours are first all first ones of the pairs, then all second ones. */
static void
pair(const struct om_hf_item *item, double *x, double *y, bool back)
{
	uint64_t half = item->rows / 2, size = item->columns;

	for (uint64_t i = 0; i < item->rows; i++) {
		uint64_t theirs = i < half ? 2 * i : 2 * (i - half) + 1;

		memcpy(y + (back ? i : theirs) * size, x + (back ? theirs : i) * size,
		    size * sizeof *x);
	}
	memcpy(x, y, item->block * sizeof *x);
}

void
om_hf_form(const struct om_hf_item *item, double *x, size_t n, bool back)
{
	double *y;

	if (item->form == OM_HF_DOUBLE)
		for (size_t i = 0; i < n; i++)
			x[i] *= back ? 0.5 : 2;
	if (item->form != OM_HF_PAIRS)
		return;
	y = om_alloc(item->block, sizeof *y);
	for (size_t i = 0; i < n; i += item->block)
		pair(item, x + i, y, back);
	free(y);
}
