#!/usr/bin/env python3
"""Random configurations as transformers reads them, beside what --from-hf describes and the trainer of that exports.

Usage: configs.py OLMOGEN WORKDIR [SEED [COUNT]]. Needs transformers, not PyTorch. Each configuration leaves out keys and spells
others in older ways; that which comes back through olmogen must be the same model to transformers' own classes.
"""
import json
import math
import os
import random
import re
import subprocess
import sys

import transformers
from transformers import AutoConfig

FAMILIES = "llama qwen3 olmo2 olmo3 olmoe qwen3_moe mixtral".split()


def draw_rope(family, rng):
    kind = rng.choice(["default", "linear", "yarn", "llama3"])
    # Olmo 3 does not read the older name
    rope = {"type" if family != "olmo3" and rng.random() < 0.3 else "rope_type": kind}
    if rng.random() < 0.4:
        rope["rope_theta"] = rng.choice([7.0, 777])
    if kind != "default":
        rope["factor"] = rng.choice([2, 4.5, 8])
    if kind in ("yarn", "llama3") and (family == "olmo3" or rng.random() < 0.6):
        rope["original_max_position_embeddings"] = rng.choice([16, 32])
    if kind == "yarn":
        for key, values in dict(beta_fast=[30, None, 0], beta_slow=[2, None], attention_factor=[1.5, None],
                                mscale=[2.0], mscale_all_dim=[1.0, 0.5]).items():
            if rng.random() < 0.4:
                rope[key] = rng.choice(values)
    if kind == "llama3":
        rope.update(low_freq_factor=1.0, high_freq_factor=rng.choice([4.0, 2]))
    return rope


def draw(family, rng):
    """Some of the keys of a small model."""
    def maybe(chance, **keys):
        for key, values in keys.items():
            if rng.random() < chance:
                c[key] = rng.choice(values)

    heads = rng.choice([1, 2, 4, 8])
    c = dict(num_attention_heads=heads, hidden_size=heads * rng.choice([2, 4, 6, 16]))
    divisors = [k for k in (1, 2, 4, 8) if heads % k == 0]
    maybe(1 if family in ("qwen3", "qwen3_moe", "mixtral") else 0.8, num_key_value_heads=divisors)
    maybe(0.9, num_hidden_layers=[1, 2, 3, 4, 5, 8])
    layers = c.get("num_hidden_layers") or AutoConfig.for_model(family).num_hidden_layers
    maybe(0.5, vocab_size=[100, 7], intermediate_size=[10, 20], max_position_embeddings=[64, 256],
          rms_norm_eps=[1e-3, 1e-6], tie_word_embeddings=[True, False], initializer_range=[0.1])
    if family != "olmoe":
        maybe(0.5, head_dim=[2, 4, 8])
    if family != "mixtral":
        maybe(0.5, attention_bias=[True, False])
    if family in ("olmoe", "qwen3_moe", "mixtral"):
        c[rng.choice(["num_experts", "num_local_experts"])] = rng.choice([8, 16])
        maybe(0.5, num_experts_per_tok=[1, 2, 8], router_aux_loss_coef=[0.5])
    if family in ("olmoe", "qwen3_moe"):
        maybe(0.5, norm_topk_prob=[True, False])
    if family == "qwen3_moe":
        maybe(0.5, decoder_sparse_step=[1, 2], moe_intermediate_size=[12],
              mlp_only_layers=[sorted(rng.sample(range(layers), layers // 2))])
    if family in ("qwen3", "qwen3_moe"):
        maybe(0.5, use_sliding_window=[True, True, False], sliding_window=[3, 9, None])
    if family == "qwen3":
        maybe(0.5, max_window_layers=[0, 1, 2, 50])
    if family in ("olmo3", "mixtral"):
        maybe(0.6, sliding_window=[3, 9])
    if family == "olmo3":
        maybe(0.4, layer_types=[[rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]])
    maybe(0.4, rope_theta=[100, 1e5, 500000.0])
    if rng.random() < 0.3:
        c["rope_scaling"] = draw_rope(family, rng)
    elif rng.random() < 0.5:
        c["rope_parameters"] = draw_rope(family, rng) if family != "olmo3" else {
            kind: draw_rope(family, rng) for kind in ("full_attention", "sliding_attention") if rng.random() < 0.8}
    return c


def rope_facts(rope):
    kind = rope["rope_type"]
    facts = {"rope_type": kind, "rope_theta": float(rope["rope_theta"])}
    if kind != "default":
        facts["factor"] = float(rope["factor"])
    if kind in ("yarn", "llama3"):
        facts["original"] = rope["original_max_position_embeddings"]
    if kind == "llama3":
        facts["low"], facts["high"] = rope["low_freq_factor"], rope["high_freq_factor"]
    if kind == "yarn":
        def scale(m):
            return 0.1 * m * math.log(rope["factor"]) + 1 if rope["factor"] > 1 else 1.0
        m, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
        factor = rope.get("attention_factor")
        if factor is None:
            factor = scale(m) / scale(all_dim) if m and all_dim else scale(1)
        facts.update(fast=rope.get("beta_fast") or 32, slow=rope.get("beta_slow") or 1, attention=round(factor, 12))
    return facts


def facts(c):
    """What transformers' modeling code computes from a configuration: of the model, and by layer."""
    config = AutoConfig.for_model(**json.loads(json.dumps(c)))
    get = lambda key, otherwise=None: getattr(config, key, otherwise)  # noqa: E731
    yield [get(k) for k in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "initializer_range")]
    yield [get("head_dim") or config.hidden_size // config.num_attention_heads, bool(get("attention_bias")), config.hidden_act]
    for layer in range(config.num_hidden_layers):
        types = get("layer_types")
        window = config.sliding_window if get("sliding_window") and (
            not types or types[layer] == "sliding_attention") else None
        rope = config.rope_parameters
        moe = get("num_experts") and (c["model_type"] != "qwen3_moe" or (
            layer not in config.mlp_only_layers and (layer + 1) % config.decoder_sparse_step == 0))
        yield [window, rope_facts(rope[types[layer]] if config.model_type == "olmo3" else rope)]
        yield [config.num_experts, config.num_experts_per_tok, get("norm_topk_prob", True), get("router_aux_loss_coef"),
               get("moe_intermediate_size", config.intermediate_size)] if moe else [config.intermediate_size]


def back(olmogen, work, c):
    """The configuration of a trainer that is generated from the description of this one."""
    with open(f"{work}/config.json", "w") as f:
        json.dump(c, f)
    description = subprocess.run([olmogen, "--from-hf=" + work], capture_output=True, text=True, check=True).stdout
    with open(f"{work}/model.lua", "w") as f:
        f.write(description)
    subprocess.run([olmogen, "--emit-only", "-o", f"{work}/tree", f"{work}/model.lua"], capture_output=True, check=True)
    with open(f"{work}/tree/src/params.c") as f:
        text = re.search(r"hf_config\[\] =\n(.*?);\n", f.read(), re.S).group(1)
    return json.loads("".join(json.loads(line.strip()) for line in text.split("\n")))


def main():
    olmogen, work = os.path.abspath(sys.argv[1]), sys.argv[2]
    seed, count = int(sys.argv[3]) if len(sys.argv) > 3 else 0, int(sys.argv[4]) if len(sys.argv) > 4 else 200
    os.makedirs(work, exist_ok=True)
    transformers.logging.set_verbosity_error()
    passed = failed = 0
    for index in range(count):
        rng = random.Random(f"{seed} {index}")
        family = rng.choice(FAMILIES)
        c = dict(model_type=family, **draw(family, rng))
        try:
            wanted = list(facts(c))
        except Exception as e:  # transformers refuses it, as some combinations that were drawn
            print(f"{index}: transformers: {type(e).__name__} {e}".split("\n")[0][:120])
            continue
        try:
            got = list(facts(back(olmogen, work, c)))
        except subprocess.CalledProcessError as e:
            got = [e.stderr]
        passed += got == wanted
        failed += got != wanted
        if got != wanted:
            print(f"FAIL {index}: {json.dumps(c)}:", *[x for x in zip(got, wanted) if x[0] != x[1]][:1])
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


main()
