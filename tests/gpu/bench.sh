#!/bin/sh
# Speed on one GPU, ours and the peers' in one run: kernels, then OLMoE-1B-7B's whole step, 16,384 tokens of which are a
# microbatch. Usage: tests/gpu/bench.sh KERNELS TRAINER; peers where PyTorch and transformers are.
set -u
kernels=$(realpath "$1") trainer=$(realpath "$2")
cd "$(dirname "$0")" || exit 1
"$kernels" -t 1 t_linear t_head_2048 t_grouped attention_olmoe attention_bwd_olmoe | grep -E "TFLOP|FAIL|passed"
python3 peer_ops.py
for mode in eager compile; do
	python3 peer.py $mode 2>&1 | tail -n 1
done
"$trainer" bench steps=20
