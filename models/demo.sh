#!/bin/sh
# make demo: a trainer from models/tiny.lua, trained on the project's own sources as bytes: on a GPU that olmogen has
# kernels for, where there is one and the CUDA Toolkit, else on the processor.
# TARGET=cpu chooses; STEPS=300 is how long; OUT=out/tiny is where.
set -eu
cd "$(dirname "$0")/.."
out=${OUT:-out/tiny}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Sets target, and why it is that one.
choose() {
	target=${TARGET:-cpu} why="TARGET says so"
	[ -z "${TARGET:-}" ] || return 0
	gpu=$(nvidia-smi ${CUDA_VISIBLE_DEVICES:+-i "$CUDA_VISIBLE_DEVICES"} --query-gpu=compute_cap,name \
		--format=csv,noheader 2>/dev/null) || gpu=
	gpu=$(echo "$gpu" | head -n 1)
	name=${gpu#*, }
	case $gpu in
	9.0,*) arch=sm_90a ;;
	10.0,*) arch=sm_100a ;;
	'') why="nvidia-smi shows no GPU here" && return ;;
	*) why="olmogen has no kernels for ${name:-this GPU}, of compute capability ${gpu%%,*}" && return ;;
	esac
	# what only the GPU's driver and the toolkit can tell: a trainer is built and takes two steps
	if ! build/olmogen --target="cuda:$arch" -o "$out" models/tiny.lua >"$log" 2>&1; then
		why="for $name, olmogen says: $(sed -n 's/^.*error: //p' "$log" | head -n 1)"
	elif ! "$out/trainer" bench steps=1 >/dev/null 2>"$log"; then
		why="on $name, its trainer says: $(tail -n 1 "$log")"
	else
		target=cuda:$arch why="there is an $name, and the CUDA Toolkit"
	fi
}

choose
case $target in
cpu) steps=${STEPS:-300} every=100 ;;
*) steps=${STEPS:-3000} every=1000 ;; # a step takes a millisecond
esac
echo "== target: $target, because $why; TARGET=cpu or another one chooses"
echo
echo "== olmogen --target=$target --plan models/tiny.lua"
build/olmogen --target="$target" --plan models/tiny.lua
echo
echo "== olmogen --target=$target -o $out models/tiny.lua"
build/olmogen --target="$target" -o "$out" models/tiny.lua
# a copy, so that nothing that edits the sources disturbs the run
rm -rf "$out/corpus"
mkdir "$out/corpus"
cp -r generator kernels runtime templates models README.md "$out/corpus"
cat >"$out/run.yaml" <<EOF
# what may change between runs; 'trainer info --keys' lists every key
data:
  paths: [$out/corpus]
  format: bytes
steps: $steps
lr: { schedule: cosine, peak: 5e-3, warmup: 20, final: 0.1 }
checkpoint: { dir: $out/checkpoints, every: $every, resume: none }
log: { every: $((steps > 20 ? steps / 15 : 1)), metrics: $out/metrics.jsonl }
EOF
echo
echo "== $out/trainer train $out/run.yaml"
rm -rf "$out/checkpoints" "$out/metrics.jsonl"
"$out/trainer" train "$out/run.yaml"
generate=$out/trainer
[ "$target" = cpu ] || generate="build/olmogen --target=cpu -o $out-cpu models/tiny.lua && $out-cpu/trainer"
cat <<EOF

What is where:
  models/tiny.lua            the description; change it and run: build/olmogen models/tiny.lua
  $out/trainer           the trainer, one file: copy it to any x86-64 Linux machine$([ "$target" = cpu ] || echo " with such a GPU")
  $out/src/step.c        the step that was generated, to read; $out/README.md is a tour
  $out/run.yaml          this run; to train on:
                             $out/trainer train $out/run.yaml steps=$((2 * steps)) checkpoint.resume=auto
  $out/checkpoints/      safetensors with Hugging Face's tensor names; to see what they have learnt:
                             $generate generate --checkpoint $out/checkpoints --prompt 'static '
  $out/metrics.jsonl     one line of JSON a step
EOF
