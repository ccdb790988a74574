#!/usr/bin/env python3
"""Training speed of a generated trainer beside PyTorch eager, fp32, the same model on the same cores, in turn.

Usage: bench.py config FOLDER     writes the config.json to describe (olmogen --from-hf=FOLDER)
       bench.py run TRAINER [THREADS]
The model is models/tiny.lua as transformers can have it: no shared expert. Needs PyTorch and transformers.
"""
import json
import os
import re
import statistics
import subprocess
import sys
import time

CONFIG = dict(
    model_type="qwen3_moe", vocab_size=256, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, intermediate_size=384, moe_intermediate_size=128, num_experts=8,
    num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[0], decoder_sparse_step=1, hidden_act="silu",
    max_position_embeddings=128, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=True,
    router_aux_loss_coef=0.01, attention_bias=False,
)
BATCH, ROUNDS = 8, 5


def torch_rates(threads):
    """Tokens a second of forward, backward and AdamW, for both ways in which transformers runs experts on a CPU."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    models = {}
    for experts in ("eager", "grouped_mm"):
        config = transformers.AutoConfig.for_model(**CONFIG, use_cache=False)
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", experts_implementation=experts).float().train()
        models[experts] = (model, torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95)))
    tokens = torch.randint(0, CONFIG["vocab_size"], (BATCH, CONFIG["max_position_embeddings"] + 1))

    def rate(name, steps=10):
        model, optimizer = models[name]
        start = None
        for step in range(steps + 2):
            if step == 2:
                start = time.perf_counter()
            out = model(input_ids=tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return steps * tokens[:, 1:].numel() / (time.perf_counter() - start)

    return {name: (lambda name=name: rate(name)) for name in models}


def trainer_rate(trainer, threads):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    out = subprocess.run([trainer, "bench", "steps=20"], env=env, capture_output=True, text=True, check=True).stdout
    return float(re.search(r"([0-9,]+) tokens/s", out).group(1).replace(",", ""))


def main():
    if sys.argv[1] == "config":
        os.makedirs(sys.argv[2], exist_ok=True)
        with open(os.path.join(sys.argv[2], "config.json"), "w") as f:
            json.dump(CONFIG, f, indent=1)
        return
    trainer, threads = sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else os.cpu_count()
    peers = torch_rates(threads)
    rates = {name: [] for name in ("trainer", *peers)}
    for _ in range(ROUNDS):
        rates["trainer"].append(trainer_rate(trainer, threads))
        for name, rate in peers.items():
            rates[name].append(rate())
    ours = statistics.median(rates["trainer"])
    print(f"{threads} threads, tokens/s, median of {ROUNDS}")
    for name, r in rates.items():
        m = statistics.median(r)
        print(f"  {name:12} {m:10,.0f}  trainer is {ours / m:.2f}x")


main()
