/*
 * Embedding by its definition, in double: what the checks of embed.h compare kernels of every
 * target with. It shares no code with them.
 */
#ifndef OM_EMBED_REF_H
#define OM_EMBED_REF_H

#include <stdint.h>

/* x of token i, element j: of the row of w [v, n] that the token names. */
static inline double
om_embed_ref(const int32_t *tok, struct om_in w, int64_t n, int64_t i, int64_t j)
{
	return om_in(w, tok[i] * n + j);
}

/* What dw gains at an element of [v, n]: dx [t, n] of every token that names its row. */
static inline double
om_embed_ref_dw(struct om_in dx, const int32_t *tok, int64_t t, int64_t n, int64_t at)
{
	double sum = 0;
	for (int64_t i = 0; i < t; i++)
		sum += tok[i] == at / n ? om_in(dx, i * n + at % n) : 0;
	return sum;
}

#endif
