"""The peer of bench prompt=512 tokens=256: transformers' generate on OLMoE-1B-7B's shape, its static cache compiled.

Usage: peer_generate.py BATCH [EXPERTS [SECONDS [LAYERS]]]. EXPERTS is what multiplies experts: batched_mm, to which generate
itself turns for tokens behind the prompt, or grouped_mm, which is kept for these too. The first call compiles, the second one is
timed; it ends after so many SECONDS, and rates are those of the tokens that came, so that slow ones have one, too.
"""
import contextlib
import statistics
import sys
import time

import torch
import transformers
from transformers import OlmoeConfig, OlmoeForCausalLM, StoppingCriteria

batch = int(sys.argv[1])
experts = sys.argv[2] if len(sys.argv) > 2 else "batched_mm"
most = float(sys.argv[3]) if len(sys.argv) > 3 else 120
layers = int(sys.argv[4]) if len(sys.argv) > 4 else 16
prompt, tokens, vocab = 512, 256, 50304
device = "cuda" if torch.cuda.is_available() else "cpu"


class Clock(StoppingCriteria):
    """When each token came; all rows end when there is no time left, or so many came."""

    def __init__(self, tokens):
        self.start, self.at, self.tokens = time.time(), [], tokens

    def __call__(self, ids, scores, **kwargs):
        ids.sum().item()
        self.at.append(time.time() - self.start)
        over = self.at[-1] > most or len(self.at) == self.tokens
        return torch.full((ids.shape[0],), over, dtype=torch.bool, device=ids.device)


config = OlmoeConfig(vocab_size=vocab, hidden_size=2048 if device == "cuda" else 64, intermediate_size=1024, num_hidden_layers=layers,
                     num_attention_heads=16, num_key_value_heads=16, num_experts=64, num_experts_per_tok=8, max_position_embeddings=1024)
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
with torch.device(device):
    model = OlmoeForCausalLM._from_config(config, attn_implementation="sdpa", experts_implementation="grouped_mm").eval()
if experts == "grouped_mm":
    model._optimize_model_for_decode = contextlib.nullcontext
x = torch.randint(0, vocab, (batch, prompt), device=device)
print(f"torch {torch.__version__}, transformers {transformers.__version__}, {experts}, {layers} layers", flush=True)
for name, n in ("compiles", 12), ("timed", tokens):
    clock = Clock(n)
    with torch.no_grad():
        model.generate(x, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, cache_implementation="static",
                       stopping_criteria=[clock], pad_token_id=0, eos_token_id=1)
    times = [b - a for a, b in zip(clock.at[len(clock.at) // 2:], clock.at[len(clock.at) // 2 + 1:])]
    step = statistics.median(times) if times else float("nan")
    print(f"transformers, {name}: {batch} sequences, {len(clock.at)} tokens in {clock.at[-1]:.3f} s, the first after "
          f"{clock.at[0]:.3f} s, the later half {1e3 * step:.3f} ms each; {batch * len(clock.at) / clock.at[-1]:,.0f} tokens/s, "
          f"as 256 tokens: {batch * 256 / (clock.at[0] + 255 * step):,.0f}", flush=True)
