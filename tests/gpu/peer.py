"""The peer of bench: Hugging Face transformers training OLMoE-1B-7B's shape on one GPU.

Usage: peer.py [eager|compile] [STEPS]. Sequence 4096, 4 sequences a step, bf16 weights and moments without fp32
masters, fused AdamW, grouped_mm experts: less work and less memory than the trainer does. Prints tokens/s, the median.
"""
import statistics
import sys
import time

import torch
from transformers import OlmoeConfig, OlmoeForCausalLM

mode = sys.argv[1] if len(sys.argv) > 1 else "eager"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 6
batch, length, vocab = 4, 4096, 50304

config = OlmoeConfig(vocab_size=vocab, hidden_size=2048, intermediate_size=1024, num_hidden_layers=16,
                     num_attention_heads=16, num_key_value_heads=16, num_experts=64, num_experts_per_tok=8,
                     max_position_embeddings=length, output_router_logits=True, router_aux_loss_coef=0.01,
                     use_cache=False)
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = OlmoeForCausalLM._from_config(config, attn_implementation="sdpa", experts_implementation="grouped_mm")
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
step = torch.compile(model) if mode == "compile" else model

times = []
for i in range(steps + 3):
    x = torch.randint(0, vocab, (batch, length), device="cuda")
    torch.cuda.synchronize()
    start = time.time()
    step(input_ids=x, labels=x).loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    if i >= 3:
        times.append(time.time() - start)
seconds = statistics.median(times)
print(f"transformers {mode}: {batch * length / seconds:,.0f} tokens/s, {1e3 * seconds:.1f} ms a step, "
      f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
