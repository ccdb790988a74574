#!/usr/bin/env python3
"""AdamW's and Muon's first 20 steps as PyTorch does them, on a fixture's weights, in fp32 on the CPU.

optimizer.py make FIXTURE OUT     writes OUT/tokens.u8, and losses and final weights of each optimizer; needs PyTorch and
                                  transformers. What it writes is committed.
optimizer.py check OUT NAME METRICS LAST FIRST
                                  compares a trainer's losses, and the weights that it exports, LAST, with those of NAME;
                                  FIRST: the fixture's

Muon's products are in bf16 as PyTorch has them, and, to compare with a CPU's trainer, in fp32 (`muon`): the same function
with another cast. Matrices of experts are parameters of their own. Embedding, head and vectors have AdamW.
"""
import json
import os
import struct
import sys

STEPS, ROWS, SEQ, VOCAB = 20, 2, 14, 61
LR, MUON_LR, BETAS, EPS, DECAY, BALANCE = 5e-3, 2e-2, (0.9, 0.95), 1e-8, 0.1, 0.05


def run(fixture, tokens, name):
    import torch
    import transformers
    from safetensors.torch import load_file
    from make import balance_losses, disk_names

    torch.manual_seed(0)
    with open(os.path.join(fixture, "config.json")) as f:
        text = json.load(f)
    family = text.pop("model_type")
    config = transformers.AutoConfig.for_model(family, **text)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager").float().train()
    given = load_file(os.path.join(fixture, "model.safetensors"))
    leaves = {n: (torch.nn.Parameter(given[n].clone()), p, i) for n, p, i in disk_names(model, family)}

    def spread():
        with torch.no_grad():
            for leaf, p, i in leaves.values():
                p[i].copy_(leaf) if i else p.copy_(leaf)

    matrices = [leaf for n, (leaf, _, _) in leaves.items() if leaf.dim() == 2 and ".layers." in n]
    ends = [leaf for n, (leaf, _, _) in leaves.items() if leaf.dim() == 2 and ".layers." not in n]
    vectors = [leaf for leaf, _, _ in leaves.values() if leaf.dim() == 1]
    adamw = [{"params": ends + ([] if name != "adamw" else matrices), "weight_decay": DECAY},
             {"params": vectors, "weight_decay": 0.0}]
    optimizers = [torch.optim.AdamW(adamw, lr=LR, betas=BETAS, eps=EPS)]
    if name != "adamw":
        scale = "match_rms_adamw" if name.endswith("rms") else "original"
        optimizers.append(torch.optim.Muon(matrices, lr=LR if name.endswith("rms") else MUON_LR, weight_decay=DECAY,
                                           momentum=0.95, nesterov=True, adjust_lr_fn=scale))
    losses = []
    for step in range(STEPS):
        spread()
        model.zero_grad(set_to_none=True)
        at = step * ROWS * SEQ
        x = torch.stack([tokens[at + r * SEQ:at + (r + 1) * SEQ] for r in range(ROWS)])
        y = torch.stack([tokens[at + r * SEQ + 1:at + (r + 1) * SEQ + 1] for r in range(ROWS)])
        out = model(input_ids=x, output_router_logits=True)
        loss = torch.nn.functional.cross_entropy(out.logits.float().reshape(-1, VOCAB), y.reshape(-1))
        losses.append(loss.item())
        (loss + BALANCE * sum(balance_losses(out, config))).backward()
        for leaf, p, i in leaves.values():
            leaf.grad = (p.grad[i] if i else p.grad).clone()
        for o in optimizers:
            o.step()
    return losses, {n: leaf.detach() for n, (leaf, _, _) in leaves.items()}


def make(fixture, out):
    import inspect
    import random

    import torch
    from safetensors.torch import save_file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from torch.optim import _muon

    rng = random.Random("optimizer")
    data = bytes(rng.randrange(VOCAB) for _ in range(STEPS * ROWS * SEQ + 1))
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "tokens.u8"), "wb") as f:
        f.write(data)
    tokens = torch.tensor(list(data))
    record = {"torch": torch.__version__, "losses": {}}
    plain = _muon._zeropower_via_newtonschulz
    source = inspect.getsource(plain)
    assert source.count(".bfloat16()") == 1
    space = dict(vars(_muon))
    exec(source.replace(".bfloat16()", ".float()"), space)  # the same in fp32
    for name in ("adamw", "muon", "muon_rms", "muon_bf16"):
        wide = not name.endswith("bf16")
        _muon._zeropower_via_newtonschulz = space["_zeropower_via_newtonschulz"] if wide else plain
        record["losses"][name], weights = run(fixture, tokens, name)
        if name in ("adamw", "muon"):
            some = {n: w for n, w in weights.items() if ".layers.1." in n or ".layers." not in n}
            save_file(some, os.path.join(out, name + ".safetensors"))
        print(name, record["losses"][name][0], record["losses"][name][-1])
    with open(os.path.join(out, "losses.json"), "w") as f:
        json.dump(record, f, indent=1)
        f.write("\n")


def tensors(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head.pop("__metadata__", None)
    return {n: struct.unpack("<%df" % ((t["data_offsets"][1] - t["data_offsets"][0]) // 4),
                             data[t["data_offsets"][0]:t["data_offsets"][1]]) for n, t in head.items()}


def check(out, name, metrics, model, first):
    passed = failed = 0

    def expect(ok, what):
        nonlocal passed, failed
        passed, failed = passed + bool(ok), failed + (not ok)
        if not ok:
            print("FAIL", what)

    with open(os.path.join(out, "losses.json")) as f:
        losses = json.load(f)["losses"]
    with open(metrics) as f:
        ours = [line["loss"] for line in map(json.loads, f) if "loss" in line]
    expect(len(ours) == STEPS, "%d losses" % len(ours))
    for step, (a, b) in enumerate(zip(ours, losses[name])):
        expect(abs(a - b) <= 2e-5 * b, "%s, step %d: loss %.7g, PyTorch's is %.7g" % (name, step + 1, a, b))
    if name == "muon":  # what bf16 makes of it, as PyTorch has it
        for step, (a, b) in enumerate(zip(ours, losses["muon_bf16"])):
            expect(abs(a - b) <= 2e-2 * b, "muon, step %d: loss %.7g, PyTorch's in bf16 is %.7g" % (step + 1, a, b))
    path = os.path.join(out, name + ".safetensors")
    if os.path.exists(path):
        got, begin = tensors(model), tensors(first)
        for tensor, want in tensors(path).items():
            moved = sum((a - b) ** 2 for a, b in zip(want, begin[tensor])) ** 0.5
            off = sum((a - b) ** 2 for a, b in zip(want, got[tensor])) ** 0.5
            expect(off <= 1e-3 * moved, "%s: %s is off by %.2g of its way" % (name, tensor, off / (moved or 1)))
    print("%d passed, %d failed" % (passed, failed))
    sys.exit(failed > 0)


if sys.argv[1] == "make":
    make(*sys.argv[2:])
else:
    check(*sys.argv[2:])
