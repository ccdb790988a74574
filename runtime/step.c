/* What a rank does in a step and in an evaluation: microbatches, through its layers. */
#include "om_rt.h"

/* What the i-th of a step's n microbatches is to backward passes; one rank does nothing more in the
 * last. */
static int
of_step(uint64_t n, uint64_t i)
{
	return (i ? 0 : OM_FIRST) | (i + 1 < n || om_size(OM_WORLD) == 1 ? 0 : OM_LAST);
}

/* pass: whether layers are passed; messages go in any case, so that no rank waits in vain. */
static void
act(const struct om_model *m, unsigned char *arena, const struct om_action *a,
    const struct om_feed *f, bool pass)
{
	const uint64_t hop = m->chunk[a->chunk].hop, n = m->hop_bytes;
	bool x = a->phase == OM_FORWARD;

	switch ((enum om_action_kind)a->kind) {
	case OM_PASS: /* others were fed since its forward pass */
		if (!pass)
			break;
		f->put(f->arg, a->microbatch);
		om_run_pass(m, (enum om_phase)a->phase, arena, a->slot,
		    of_step(f->microbatches, a->microbatch));
		break;
	case OM_SEND:
		om_sent(a->tag, x ? "send of activations" : "send of gradients");
		if (!x) /* from where the next chunk's will not come */
			om_copy(arena + hop, arena + a->at, n);
		om_send(a->stage, a->tag, x ? "send of activations" : "send of gradients",
		    arena + (x ? a->at : hop), n);
		break;
	case OM_RECEIVE:
		om_recv(a->stage, a->tag, x ? "activations" : "gradients", arena + a->at, n);
		break;
	}
}

/* The actions of a step; NULL: there is one stage, microbatch comes after microbatch. */
static const struct om_step *
step_of(const struct om_model *m)
{
	for (uint32_t k = 0; k < m->nsteps; k++)
		if (m->step[k].microbatches == m->microbatches)
			return &m->step[k];
	return NULL;
}

/*
 * A step of fewer microbatches does those actions of the whole one that are of them: all ranks
 * leave out the same, so what is sent is received, in the same order.
 */
bool
om_run_step(const struct om_model *m, unsigned char *arena, const struct om_feed *f)
{
	const struct om_step *step = step_of(m);
	bool pass = true;

	om_run(m, OM_RUN_ZERO, arena);
	for (uint64_t i = 0; !step && i < f->microbatches; i++) {
		if (!(pass = pass && (!f->go || f->go(f->arg))))
			break;
		f->put(f->arg, i);
		om_run(m, OM_RUN_MICROBATCH + of_step(f->microbatches, i), arena);
	}
	for (uint32_t i = 0; step && i < step->nactions; i++) {
		const struct om_action *a = &step->action[i];

		if (a->microbatch >= f->microbatches)
			continue;
		if (a->kind == OM_PASS)
			pass = pass && (!f->go || f->go(f->arg));
		act(m, arena, a, f, pass);
	}
	for (uint32_t i = 0; step && i < step->nactions; i++)
		if (step->action[i].kind == OM_SEND)
			om_sent(step->action[i].tag, "end of a step");
	if (f->settle && !f->settle(f->arg))
		return false;
	om_run(m, OM_RUN_UPDATE, arena);
	return true;
}

/* The first action that does this with a chunk's activations; NULL: the pipeline ends there. */
static const struct om_action *
hop_of(const struct om_model *m, uint32_t chunk, enum om_action_kind kind)
{
	const struct om_step *step = step_of(m);

	for (const struct om_action *a = step->action; a < step->action + step->nactions; a++)
		if (a->chunk == chunk && a->kind == kind && a->phase == OM_FORWARD)
			return a;
	return NULL;
}

/* Where a chunk stands in the whole pipeline: its edges tell. */
static uint32_t
place_of(const struct om_model *m, uint32_t chunk)
{
	const struct om_action *from = hop_of(m, chunk, OM_RECEIVE);

	return from ? from->tag / 2 + 1u : 0;
}

void
om_run_forward(const struct om_model *m, unsigned char *arena)
{
	uint32_t done = 0; /* places up to this one */

	if (!m->step) {
		om_run(m, OM_RUN_EVALUATE, arena);
		return;
	}
	for (uint32_t i = 0; i < m->nchunks; i++) {
		const struct om_action *from, *to;
		uint32_t next = UINT32_MAX, k = 0;

		for (uint32_t j = 0; j < m->nchunks; j++)
			if (place_of(m, j) >= done && place_of(m, j) < next)
				next = place_of(m, k = j);
		done = next + 1;
		from = hop_of(m, k, OM_RECEIVE);
		to = hop_of(m, k, OM_SEND);
		if (from)
			om_recv(from->stage, from->tag, "activations of an evaluation",
			    arena + from->at, m->hop_bytes);
		if (to) /* the microbatch before has left */
			om_sent(to->tag, "send of activations");
		om_run_eval(m, arena, (int)m->chunk[k].slot);
		if (to)
			om_send(to->stage, to->tag, "send of activations", arena + to->at,
			    m->hop_bytes);
	}
}

double
om_run_forward_end(const struct om_model *m, unsigned char *arena)
{
	double loss = om_get_f64(arena, m->loss_off);

	for (uint32_t i = 0; m->step && i < m->nchunks; i++) {
		const struct om_action *to = hop_of(m, i, OM_SEND);

		if (to)
			om_sent(to->tag, "end of an evaluation");
	}
	om_all_sum_f64(OM_WORLD, "loss of an evaluation", &loss, 1);
	return loss;
}
