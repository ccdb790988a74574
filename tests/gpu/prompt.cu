#include "prompt.h"

#include "case.h"

/* As decode.cu's, but probabilities are cut to bf16, too. */
#define TWO_BF16 8e-3

CASE(OM_ATTENTION_PROMPT, TWO_BF16, t_prompt_one, 1, 2, 1, 1, 1, 32, 1, 64, 0.2)
CASE(OM_ATTENTION_PROMPT, TWO_BF16, t_prompt_odd, 333, 3, 333, 6, 2, 96, 333, 64, 0.1)
CASE(OM_ATTENTION_PROMPT, TWO_BF16, t_prompt_group, 200, 1, 1000, 32, 4, 64, 1000, 64, 0.125)
CASE(OM_ATTENTION_PROMPT, TWO_BF16, t_prompt_window, 300, 9, 700, 16, 2, 128, 129, 64, 0.08)
CASE(OM_ATTENTION_PROMPT, TWO_BF16, t_prompt_window_1, 100, 2, 300, 2, 2, 32, 1, 64, 0.2)
CASE(OM_ATTENTION_PROMPT, TWO_BF16, t_prompt_few, 64, 63, 50, 2, 2, 128, 50, 64, 0.08)
RATED(OM_ATTENTION_PROMPT, TWO_BF16, 0, 0, t_prompt, 4096, 32, 1024, 16, 16, 128, 1024, 64, 0.088)
