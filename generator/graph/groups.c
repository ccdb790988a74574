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

/* Gives each parameter its group: the first pattern of adamw.groups that matches its tensors. */
void
graph_groups(struct graph *g)
{
	struct value *list = spec_value(g->trainer, F_adamw_groups);
	enum { SEEN = 1, HELD = 2, SPLIT = 4 };
	uint8_t *state = xalloc(list->n + 1);
	double decay = spec_num(g->trainer, F_adamw_weight_decay);
	struct buf names = { 0 }, name = { 0 };

	for (tensor_id i = 0; (i = tensor_next(g, T_PARAM, i));) {
		struct tensor *t = &g->tensor.a[i];
		struct param_group grp = { t->ndims == 1 ? 0 : decay, 1, false };
		bool taken = false;
		uint32_t k;
		name_into(&name, t->hf, "*", "*");
		buf_printf(&names, "%s%s", names.n ? ", " : "", name.s);
		for (k = 0; k < list->n; k++) {
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
			if (spec_value(o, F_group_weight_decay)->set)
				grp.weight_decay = spec_num(o, F_group_weight_decay);
			grp.lr_scale = spec_num(o, F_group_lr_scale);
		}
		for (k = 0; k < g->param_group.n; k++)
			if (g->param_group.a[k].weight_decay == grp.weight_decay &&
			    g->param_group.a[k].lr_scale == grp.lr_scale)
				break;
		if (k == g->param_group.n)
			*PUSH(g->param_group) = grp;
		t->param_group = k;
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
