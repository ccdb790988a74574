#!/bin/sh
# make demo: a trainer from models/tiny.lua, trained on the project's own sources as bytes.
set -eu
cd "$(dirname "$0")/.."
steps=${STEPS:-300}

echo "== olmogen --plan models/tiny.lua"
build/olmogen --plan models/tiny.lua
echo
echo "== olmogen models/tiny.lua"
build/olmogen models/tiny.lua
# a copy, so that nothing that edits the sources disturbs the run
rm -rf out/tiny/corpus
mkdir out/tiny/corpus
cp -r generator kernels runtime templates models README.md out/tiny/corpus
cat >out/tiny/run.yaml <<EOF
# what may change between runs; 'trainer info --keys' lists every key
data:
  paths: [out/tiny/corpus]
  format: bytes
steps: $steps
lr: { schedule: cosine, peak: 5e-3, warmup: 20, final: 0.1 }
checkpoint: { dir: out/tiny/checkpoints, every: 100, resume: none }
log: { every: 20, metrics: out/tiny/metrics.jsonl }
EOF
echo
echo "== out/tiny/trainer train out/tiny/run.yaml"
rm -rf out/tiny/checkpoints out/tiny/metrics.jsonl
out/tiny/trainer train out/tiny/run.yaml
cat <<EOF

What is where:
  models/tiny.lua            the description; change it and run: build/olmogen models/tiny.lua
  out/tiny/trainer           the trainer, one static file: copy it to any x86-64 Linux machine
  out/tiny/src/step.c        the step that was generated, to read; out/tiny/README.md is a tour
  out/tiny/run.yaml          this run; to train on:
                             out/tiny/trainer train out/tiny/run.yaml steps=600 checkpoint.resume=auto
  out/tiny/checkpoints/      safetensors with Hugging Face's tensor names; to see what they have learnt:
                             out/tiny/trainer generate --checkpoint out/tiny/checkpoints --prompt 'static '
  out/tiny/metrics.jsonl     one line of JSON a step
EOF
