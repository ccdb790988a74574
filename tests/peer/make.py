#!/usr/bin/env python3
"""Writes fixtures from Hugging Face's own implementations: small random models of each family with their weights,
tokens, logits, losses, every gradient, and the weights after one AdamW step, in fp32 on the CPU.

Usage: make.py OUT [SEED [FAMILY...]]. Needs PyTorch and transformers; what it writes is committed, so that the tests need neither.
"""
import json
import os
import random
import sys
import tempfile
import traceback

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

VOCAB, BATCH, SEQ = 61, 2, 14
LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1
BALANCE = 0.05  # weight of each layer's load-balance loss
# keys of a config.json that do not say what the model computes
NOT_THE_MODEL = """transformers_version dtype torch_dtype _name_or_path architectures attention_dropout bos_token_id
    chunk_size_feed_forward eos_token_id id2label label2id is_encoder_decoder output_attentions output_hidden_states
    pad_token_id problem_type return_dict use_cache pretraining_tp output_router_logits""".split()


PLAIN = ("llama", "qwen3", "olmo2", "olmo3", "olmoe", "qwen3_moe", "mixtral", "flex_olmo")
SHARED = ("dots1", "glm4_moe", "solar_open", "hy_v3", "ernie4_5_moe", "qwen2_moe")  # families with shared experts


def draw_shared(family, rng, c):
    """What a family with shared experts has beside the sizes."""
    experts = rng.choice([4, 6])
    k = 2  # one whose weight is divided by itself has a gradient of nothing but noise
    c.update(moe_intermediate_size=rng.choice([11, 16]), num_experts_per_tok=k)
    shared = rng.choice([1, 2])
    if family in ("dots1", "glm4_moe", "solar_open"):
        groups = rng.choice([1, 2])
        c.update(n_routed_experts=experts, n_shared_experts=shared, n_group=groups, topk_group=1,
                 norm_topk_prob=rng.random() < 0.7, routed_scaling_factor=rng.choice([1.0, 2.5]),
                 attention_bias=rng.random() < 0.5)
    if family in ("dots1", "glm4_moe"):
        c["first_k_dense_replace"] = rng.choice([0, 1])
    if family == "dots1":
        c.update(sliding_window=4, max_window_layers=rng.choice([1, 9]))
        c["n_shared_experts"] = rng.choice([0, 1, 2])
    if family == "glm4_moe":
        c["rope_parameters"]["partial_rotary_factor"] = 1.0
        c["use_qk_norm"] = rng.random() < 0.5
    if family == "hy_v3":
        # as no other family has them
        c["num_hidden_layers"], types = 3, ["sparse", "dense", rng.choice(["dense", "sparse"])]
        c.update(num_experts=experts, num_shared_experts=shared, router_scaling_factor=2.0, mlp_layer_types=types)
    if family == "ernie4_5_moe":
        del c["num_experts_per_tok"], c["attention_bias"]
        c.update(moe_k=k, moe_num_experts=experts, moe_num_shared_experts=rng.choice([0, 2]), use_bias=False,
                 moe_layer_start_index=rng.choice([0, 1]), router_aux_loss_coef=0.0)
    if family == "qwen2_moe":
        del c["attention_bias"]
        c.update(num_experts=experts, shared_expert_intermediate_size=13, norm_topk_prob=rng.random() < 0.5,
                 qkv_bias=rng.random() < 0.5, mlp_only_layers=rng.choice([[], [0]]), router_aux_loss_coef=0.0)
        if rng.random() < 0.5:
            c.update(use_sliding_window=True, sliding_window=4, max_window_layers=2)
    return c


def draw(family, rng):
    """A random small configuration, as keyword arguments of the family's config class."""
    head = rng.choice([4, 6, 8])
    kv = rng.choice([1, 2])
    heads = kv * rng.choice([1, 2, 3])
    square = family in ("olmo2", "olmo3", "olmoe")
    width = heads * head if square else rng.choice([20, 24, 30])
    if family == "llama":  # which insists on it, though head_dim is its own
        width = heads * rng.choice([5, 8])
    c = dict(
        vocab_size=VOCAB, hidden_size=width, num_hidden_layers=rng.choice([2, 3]), num_attention_heads=heads,
        num_key_value_heads=kv, intermediate_size=rng.choice([17, 24]), max_position_embeddings=SEQ,
        rms_norm_eps=rng.choice([1e-5, 1e-3]), tie_word_embeddings=rng.random() < 0.5, hidden_act="silu",
        attention_bias=False, use_cache=False, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )
    if not square:
        c["head_dim"] = head
    rope = {"rope_type": "default", "rope_theta": rng.choice([100.0, 10000.0])}
    if family == "llama" and rng.random() < 0.7:
        kind = rng.choice(["linear", "llama3", "yarn"])
        rope.update(rope_type=kind, factor=4.0)
        if kind == "llama3":
            rope.update(original_max_position_embeddings=16, low_freq_factor=1.0, high_freq_factor=4.0)
        if kind == "yarn":
            rope.update(original_max_position_embeddings=16, beta_fast=4.0, beta_slow=1.0)
    c["rope_parameters"] = rope
    if family in SHARED:
        return draw_shared(family, rng, c)
    if family == "olmo3":
        c["rope_parameters"] = {"sliding_attention": dict(rope), "full_attention": dict(rope)}
        c["sliding_window"] = rng.choice([1, 3, 5])
        c["layer_types"] = [rng.choice(["sliding_attention", "full_attention"])
                            for _ in range(c["num_hidden_layers"])]
        c["layer_types"][0] = "sliding_attention"
    if family in ("olmoe", "qwen3_moe", "mixtral", "flex_olmo"):
        experts = rng.choice([1, 4, 5])
        key = "num_local_experts" if family == "mixtral" else "num_experts"
        c[key] = experts
        c["num_experts_per_tok"] = rng.choice([1, experts, max(1, experts // 2)])
        c["router_aux_loss_coef"] = BALANCE
    if family in ("olmoe", "qwen3_moe", "flex_olmo"):
        c["norm_topk_prob"] = rng.random() < 0.5
    if family == "qwen3_moe":
        c["moe_intermediate_size"] = rng.choice([11, 16])
        c["decoder_sparse_step"] = 1
        c["mlp_only_layers"] = rng.choice([[], [0]])
    if family == "mixtral":
        c["sliding_window"] = rng.choice([None, 4])
    if family in ("qwen3", "qwen3_moe") and rng.random() < 0.5:
        c.update(use_sliding_window=True, sliding_window=rng.choice([1, 4]))
        if family == "qwen3":
            c["max_window_layers"] = rng.choice([0, 1])
    if family == "qwen3_moe" and rng.random() < 0.3:
        c["decoder_sparse_step"] = 2
    if family == "olmo3" and rng.random() < 0.7:  # rotary embeddings of their own by layer type
        c["rope_parameters"]["full_attention"].update(
            rope_type="yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=4.0, beta_slow=1.0)
        c["rope_parameters"]["sliding_attention"]["rope_theta"] = 300.0
    if rng.random() < 0.3:
        c["hidden_act"] = "gelu_pytorch_tanh"
    return c


def disk_names(model, family):
    """(name on disk, parameter, part of it): transformers keeps experts in one tensor, checkpoints one by one."""
    inner = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    if family == "mixtral":
        inner = {"gate": "w1", "up": "w3", "down": "w2"}
    other = {"mixtral": [(".mlp.", ".block_sparse_moe.")],
             "hy_v3": [(".mlp.gate.", ".mlp.router.gate."), (".mlp.e_score_correction_bias", ".mlp.expert_bias"),
                       (".mlp.shared_experts.", ".mlp.shared_mlp.")],
             "ernie4_5_moe": [(".mlp.gate.moe_statics.", ".mlp.moe_statics.")]}
    biases = [(n, b) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")]
    for name, p in list(model.named_parameters()) + biases:
        where = name
        for a, b in other.get(family, []):
            where = where.replace(a, b)
        if name.endswith("experts.gate_up_proj"):
            for e in range(p.shape[0]):
                half = p.shape[1] // 2
                base = where[: -len("gate_up_proj")] + str(e) + "."
                yield base + inner["gate"] + ".weight", p, (e, slice(0, half))
                yield base + inner["up"] + ".weight", p, (e, slice(half, None))
        elif name.endswith("experts.down_proj"):
            for e in range(p.shape[0]):
                base = where[: -len("down_proj")] + str(e) + "."
                yield base + inner["down"] + ".weight", p, (e,)
        else:
            yield where, p, ()


def part(t, index):
    for i in index[:1]:
        t = t[i]
    for i in index[1:]:
        t = t[i]
    return t.detach().clone().contiguous()


def balance_losses(out, config):
    """Each layer's E * sum(f P) with f as shares of the routed rows: 1 when balanced."""
    experts = getattr(config, "num_experts", None) or config.num_local_experts
    k = config.num_experts_per_tok
    losses = []
    for logits in out.router_logits:
        probs = torch.softmax(logits.float(), dim=-1)
        chosen = torch.topk(probs, k, dim=-1).indices
        f = torch.nn.functional.one_hot(chosen, experts).float().sum(dim=(0, 1)) / (probs.shape[0] * k)
        losses.append(experts * (f * probs.mean(dim=0)).sum())
    return losses


def write(out, family, index, seed):
    rng = random.Random(f"{family} {index} {seed}")
    torch.manual_seed(rng.randrange(1 << 30))
    kwargs = draw(family, rng)
    config = transformers.AutoConfig.for_model(family, **kwargs)
    # grouped products want sizes that are multiples of 16 bytes; the eager ones take any
    eager = dict(attn_implementation="eager", experts_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config, **eager).float().train()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.1 if p.dim() == 1 else 0.3) + (1 if p.dim() == 1 else 0))
            if "shared_expert_gate" in name:  # the only one that can be described: a half of everything
                p.zero_()
        for name, b in list(model.named_buffers()) + list(model.named_parameters()):
            if name.endswith("e_score_correction_bias"):
                b.copy_(torch.randn_like(b) * 0.1)
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1))
    moe = family in ("olmoe", "qwen3_moe", "mixtral", "flex_olmo")  # and its balance is compared
    run = model(input_ids=tokens[:, :-1], **({"output_router_logits": True} if moe else {}))
    loss = torch.nn.functional.cross_entropy(run.logits.float().reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
    balance = balance_losses(run, config) if moe else []
    (loss + BALANCE * sum(balance)).backward()

    folder = os.path.join(out, f"{family}-{index}")
    os.makedirs(folder, exist_ok=True)
    names = list(disk_names(model, family))
    weights, data = {}, {}
    for name, p, index_ in names:
        weights[name] = part(p, index_)
        if p.grad is not None:
            data["grad." + name] = part(p.grad, index_)
    data["tokens"] = tokens.to(torch.int32)
    data["logits"] = run.logits.detach().float().contiguous()
    data["loss"] = loss.detach().reshape(1)
    if moe:
        data["balance"] = torch.stack([b.detach() for b in balance])
    matrices = [p for p in model.parameters() if p.dim() > 1 and p.requires_grad]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
                      lr=LR, betas=BETAS, eps=EPS).step()
    for name, p, index_ in names:
        if p.grad is not None:
            data["step." + name] = part(p, index_)
    save_file(weights, os.path.join(folder, "model.safetensors"))
    save_file(data, os.path.join(folder, "fixture.safetensors"))
    text = config.to_dict()
    for key in NOT_THE_MODEL:
        text.pop(key, None)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(text, f, indent=1, sort_keys=True)
        f.write("\n")

    # what transformers itself would write to disk has these very names
    with tempfile.TemporaryDirectory() as saved_in:
        model.save_pretrained(saved_in)
        with safe_open(os.path.join(saved_in, "model.safetensors"), "pt") as saved:
                have = set(saved.keys())
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if have - tied != {n for n, _, _ in names} - tied:
        print("names differ:", sorted(have ^ {n for n, _, _ in names})[:8])
    print(folder, sum(t.numel() for t in data.values()) * 4 // 1024, "KiB", "loss", loss.item())


def main():
    out, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print("torch", torch.__version__, "transformers", transformers.__version__)
    for family in sys.argv[3:] or PLAIN + SHARED:
        for index in range(2):
            try:
                write(out, family, index, seed)
            except Exception:  # one family must not hide the others
                print("FAILED", family, index)
                traceback.print_exc()


if __name__ == "__main__":
    main()
