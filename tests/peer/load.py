#!/usr/bin/env python3
"""Loads exported models with transformers and compares the loss with the trainer's own evaluation.

Usage: load.py FOLDER. FOLDER holds ids.u16 (tokens) and one folder a model: what `trainer export` wrote, and eval.json, the
line of metrics of `trainer eval ... eval.paths=[ids.u16]` (sequences in order from the start). Needs PyTorch.
"""
import json
import os
import sys

import numpy
import torch
import transformers


def main():
    folder = sys.argv[1]
    ids = torch.from_numpy(numpy.fromfile(os.path.join(folder, "ids.u16"), dtype="<u2").astype("int64"))
    passed = failed = 0
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not os.path.isdir(path):
            continue
        with open(os.path.join(path, "eval.json")) as f:
            ours = json.load(f)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
            output_loading_info=True)
        seq = model.config.max_position_embeddings
        total = count = 0
        with torch.no_grad():
            for i in range(ours["eval_tokens"] // seq):
                x = ids[i * seq:i * seq + seq + 1]
                logits = model(input_ids=x[None, :-1]).logits[0].float()
                total += torch.nn.functional.cross_entropy(logits, x[1:], reduction="sum").item()
                count += seq
        loss = total / count
        clean = not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        good = clean and abs(loss - ours["eval_loss"]) <= 1e-5 * loss
        passed += good
        failed += not good
        print(f"{name}: {type(model).__name__} loss {loss:.6f}, the trainer's {ours['eval_loss']:.6f}",
              "" if clean else info)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


main()
