/* Parameter groups: which update settings a parameter has, by patterns of its checkpoint names. */
#include <fnmatch.h>
#include <string.h>

#include "graph/graph.h"

static void
name_into(struct buf *b, const char *hf, const char *layer, const char *expert)
{
	for (b->n = 0; *hf; hf++)
		if (*hf == '%')
			buf_puts(b, *++hf == 'l' ? layer : expert);
		else
			buf_add(b, hf, 1);
}

/* Names of the parameter's tensors that a pattern takes and leaves; NULL: none. */
static void
match(const struct graph *g, const struct tensor *t, const char *pattern, const char **hit,
    const char **miss)
{
	const struct segment *s = &g->seg.a[t->seg];
	uint64_t experts = tensor_by_expert(t) ? t->dim[0] : 1;
	struct buf name = { 0 };

	*hit = *miss = NULL;
	for (uint32_t l = 0; l < (s->nlayers ? s->nlayers : 1) && !(*hit && *miss); l++)
		for (uint64_t e = 0; e < experts; e++) {
			char layer[12], expert[24];
			snprintf(layer, sizeof layer, "%u", s->nlayers ? s->layer[l] : 0);
			snprintf(expert, sizeof expert, "%llu", (unsigned long long)e);
			name_into(&name, t->hf, layer, expert);
			const char **which = fnmatch(pattern, name.s, FNM_NOESCAPE) ? miss : hit;
			if (!*which)
				*which = xstrdup(name.s);
		}
}

/* What Muon steps of a parameter one by one: an expert's matrix, a head's rows, or all of it. */
static void
by_muon(const struct graph *g, const struct tensor *t, struct param_group *grp)
{
	const struct object *muon = spec_obj(g->trainer, F_adamw_matrices);
	bool heads = t->head && spec_int(muon, F_muon_per_head);

	grp->rows = heads ? t->head : t->dim[t->ndims - 2];
	grp->cols = t->dim[t->ndims - 1];
	grp->lr_scale *= spec_num(muon, F_muon_lr_scale);
}

/* What a group of the description sets; false: Muon is to step a vector. */
static bool
set_by(const struct object *o, const struct tensor *t, struct param_group *grp, bool *muon)
{
	const struct value *update = spec_value(o, F_group_update);

	if (spec_value(o, F_group_weight_decay)->set)
		grp->weight_decay = spec_num(o, F_group_weight_decay);
	grp->lr_scale = spec_num(o, F_group_lr_scale);
	if (spec_value(o, F_group_name)->set)
		grp->name = spec_str(o, F_group_name);
	if (update->set)
		*muon = !strcmp(update->str, "muon");
	return !*muon || t->ndims > 1;
}

/* The group with these settings, a new one if there is none. */
static uint32_t
group_of(struct graph *g, const struct param_group *grp)
{
	uint32_t k = 0;

	for (; k < g->param_group.n; k++) {
		const struct param_group *o = &g->param_group.a[k];
		if (o->weight_decay == grp->weight_decay && o->lr_scale == grp->lr_scale &&
		    o->rows == grp->rows && o->cols == grp->cols &&
		    !strcmp(o->name ? o->name : "", grp->name ? grp->name : ""))
			return k;
	}
	*PUSH(g->param_group) = *grp;
	return k;
}

/* Gives each parameter its group: the first pattern of adamw.groups that matches its tensors. */
void
graph_groups(struct graph *g)
{
	struct value *list = spec_value(g->trainer, F_adamw_groups);
	enum { SEEN = 1, HELD = 2, SPLIT = 4, VECTOR = 8 };
	uint8_t *state = xalloc(list->n + 1);
	double decay = spec_num(g->trainer, F_adamw_weight_decay);
	bool matrices = spec_obj(g->trainer, F_adamw_matrices)->type == OBJ_muon;
	struct buf names = { 0 }, name = { 0 };

	for (tensor_id i = 0; (i = tensor_next(g, T_PARAM, i));) {
		struct tensor *t = &g->tensor.a[i];
		struct param_group grp = { .weight_decay = t->ndims == 1 ? 0 : decay,
			.lr_scale = 1 };
		bool taken = false, muon = matrices && t->ndims > 1 && g->seg.a[t->seg].nlayers;
		name_into(&name, t->hf, "*", "*");
		buf_printf(&names, "%s%s", names.n ? ", " : "", name.s);
		for (uint32_t k = 0; k < list->n; k++) {
			const struct object *o = list->list[k];
			const char *hit, *miss;
			match(g, t, spec_str(o, F_group_match), &hit, &miss);
			if (!hit)
				continue;
			state[k] |= SEEN;
			if (miss && !(state[k] & SPLIT)) {
				diag_error(spec_value(o, F_group_match)->pos,
				    "group.match = \"%s\" matches %s but not %s",
				    spec_str(o, F_group_match), hit, miss);
				diag_help("a group holds all layers and experts of a parameter: "
					  "use * for the layer and the expert");
				state[k] |= SPLIT;
			}
			if (miss || taken)
				continue;
			taken = true;
			state[k] |= HELD;
			if (!set_by(o, t, &grp, &muon) && !(state[k] & VECTOR)) {
				diag_error(spec_value(o, F_group_update)->pos,
				    "%s is a vector, and Muon steps matrices", name.s);
				diag_help(
				    "narrow the pattern \"%s\", or say nothing of the update: "
				    "Muon steps the matrices anyway",
				    spec_str(o, F_group_match));
				state[k] |= VECTOR;
			}
		}
		if (tensor_by_expert(t))
			grp.lr_scale *= spec_num(g->trainer, F_adamw_expert_lr_scale);
		if (muon && t->ndims > 1)
			by_muon(g, t, &grp);
		t->param_group = group_of(g, &grp);
	}
	for (uint32_t k = 0; k < list->n; k++) {
		struct value *v = spec_value(list->list[k], F_group_match);
		if (!(state[k] & SEEN)) {
			diag_error(v->pos, "group.match = \"%s\" matches no parameter", v->str);
			diag_help("the parameters are %s", names.s);
		} else if (!(state[k] & (HELD | SPLIT))) {
			diag_error(v->pos,
			    "group.match = \"%s\" never holds: groups before it take all it "
			    "matches",
			    v->str);
			diag_help("the first group that matches a parameter holds: put the "
				  "narrower pattern first");
		}
	}
}
