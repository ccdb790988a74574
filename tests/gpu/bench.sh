#!/bin/sh
# Speed on one GPU, ours and the peers' in one run: kernels, those of several ranks on two GPUs where there are two, then
# OLMoE-1B-7B's whole step, with the optimizer after every microbatch of 16,384 tokens and after eight. Usage:
# tests/gpu/bench.sh OUT, where make bench-gpu built kernels, peers, olmoe4, olmoe32 and streams32, the same on two streams,
# generation by rows1 and rows32, and the shapes of shapes.lua; PyTorch's and transformers' where these are.
set -u
out=$(realpath "$1")
cd "$(dirname "$0")" || exit 1
"$out/kernels" -t 1 t_linear t_head_2048 t_grouped attention_olmoe attention_bwd_olmoe \
	attention_doc_olmoe attention_bwd_doc_olmoe | grep -E "TFLOP|FAIL|passed"
devices=$(ls /dev/nvidia[0-9]* 2>/dev/null | wc -l)
"$out/peers" -t "$devices" | grep -E ' us|FAIL|passed'
[ "$devices" -gt 1 ] || echo "the ranks of these kernels shared one GPU: two say what links do"
python3 peer_ops.py
for mode in eager compile; do
	python3 peer.py $mode 2>&1 | tail -n 1
done
for n in 1 32; do # prompts gone on with, by ours and by transformers
	"$out/rows$n/trainer" bench prompt=512 tokens=256 | tail -n 1
	for experts in batched_mm grouped_mm; do
		python3 peer_generate.py $n $experts 2>&1 | tail -n 1
	done
done
"$out/olmoe4/trainer" bench steps=20
"$out/olmoe32/trainer" bench steps=6
"$out/streams32/trainer" bench steps=6
for layout in dp2 ep2 pp2; do # of eight microbatches as well, on two GPUs
	[ "$devices" -lt 2 ] || "$out/olmoe-$layout/trainer" bench steps=6
done
for shape in dense fine windows series coarse; do
	"$out/$shape/trainer" bench steps=3 | tail -n 3
done
