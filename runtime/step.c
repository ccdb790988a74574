/* What a rank does in a step and in an evaluation: microbatches, through its layers. */
#include "om_rt.h"

/* pass: whether layers are passed; messages go in any case, so that no rank waits in vain. */
static void
act(const struct om_model *m, unsigned char *arena, const struct om_action *a,
    const struct om_feed *f, bool pass)
{
	const struct om_chunk *c = &m->chunk[a->chunk];
	const uint64_t at = a->slot * m->slot_stride, n = m->hop_bytes;
	unsigned char *gradient = arena + m->dstream_off;

	switch ((enum om_action_kind)a->kind) {
	case OM_FORWARD:
	case OM_BACKWARD: /* others were fed since its forward pass */
		if (!pass)
			break;
		f->put(f->arg, a->microbatch);
		om_run_slot(
		    m, a->kind == OM_FORWARD ? OM_RUN_FORWARD : OM_RUN_BACKWARD, arena, a->slot);
		break;
	case OM_SEND_X:
		om_sent(a->tag, "send of activations");
		om_send(a->stage, a->tag, "send of activations", arena + c->y + at, n);
		break;
	case OM_RECV_X:
		om_recv(a->stage, a->tag, "activations", arena + c->x + at, n);
		break;
	case OM_SEND_DX: /* from where the next chunk's will not come */
		om_sent(a->tag, "send of gradients");
		om_copy(arena, m->dstream_off, c->hop, n);
		om_send(a->stage, a->tag, "send of gradients", arena + c->hop, n);
		break;
	case OM_RECV_DX:
		om_recv(a->stage, a->tag, "gradients", gradient, n);
		break;
	}
}

bool
om_run_step(const struct om_model *m, unsigned char *arena, const struct om_feed *f)
{
	bool pass = true;

	om_run(m, OM_RUN_ZERO, arena);
	for (uint64_t i = 0; !m->action && i < m->microbatches; i++) {
		if (!(pass = pass && (!f->go || f->go(f->arg))))
			break;
		f->put(f->arg, i);
		om_run(m, OM_RUN_MICROBATCH, arena);
	}
	for (uint32_t i = 0; m->action && i < m->nactions; i++) {
		const struct om_action *a = &m->action[i];

		if (a->kind == OM_FORWARD || a->kind == OM_BACKWARD)
			pass = pass && (!f->go || f->go(f->arg));
		act(m, arena, a, f, pass);
	}
	for (uint32_t i = 0; m->action && i < m->nactions; i++)
		if (m->action[i].kind == OM_SEND_X || m->action[i].kind == OM_SEND_DX)
			om_sent(m->action[i].tag, "end of a step");
	if (f->settle && !f->settle(f->arg))
		return false;
	om_run(m, OM_RUN_UPDATE, arena);
	return true;
}

/* An action of the step that does this with the chunk's activations; NULL: it is the pipeline's
 * end. */
static const struct om_action *
hop_of(const struct om_model *m, uint32_t chunk, enum om_action_kind kind)
{
	for (uint32_t i = 0; i < m->nactions; i++)
		if (m->action[i].chunk == chunk && m->action[i].kind == kind)
			return &m->action[i];
	return NULL;
}

/* Where a chunk stands in the whole pipeline: its edges tell. */
static uint32_t
place_of(const struct om_model *m, uint32_t chunk)
{
	const struct om_action *from = hop_of(m, chunk, OM_RECV_X);

	return from ? from->tag / 2 + 1u : 0;
}

void
om_run_forward(const struct om_model *m, unsigned char *arena)
{
	uint32_t done = 0; /* places up to this one */

	if (!m->action) {
		om_run(m, OM_RUN_EVALUATE, arena);
		return;
	}
	for (uint32_t i = 0; i < m->nchunks; i++) {
		const struct om_action *from, *to;
		const struct om_chunk *c;
		uint32_t next = UINT32_MAX, k = 0;
		uint64_t at;

		for (uint32_t j = 0; j < m->nchunks; j++)
			if (place_of(m, j) >= done && place_of(m, j) < next)
				next = place_of(m, k = j);
		done = next + 1;
		c = &m->chunk[k];
		at = c->slot * m->slot_stride;
		from = hop_of(m, k, OM_RECV_X);
		to = hop_of(m, k, OM_SEND_X);
		if (from)
			om_recv(from->stage, from->tag, "activations of an evaluation",
			    arena + c->x + at, m->hop_bytes);
		if (to) /* the microbatch before has left */
			om_sent(to->tag, "send of activations");
		om_run_slot(m, OM_RUN_EVALUATE, arena, (int)c->slot);
		if (to)
			om_send(to->stage, to->tag, "send of activations", arena + c->y + at,
			    m->hop_bytes);
	}
}

double
om_run_forward_end(const struct om_model *m, unsigned char *arena)
{
	double loss = om_get_f64(arena, m->loss_off);

	for (uint32_t i = 0; m->action && i < m->nactions; i++)
		if (m->action[i].kind == OM_SEND_X)
			om_sent(m->action[i].tag, "end of an evaluation");
	om_all_sum_f64(OM_WORLD, "loss of an evaluation", &loss, 1);
	return loss;
}
