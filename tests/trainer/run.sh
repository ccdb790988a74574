#!/bin/sh
# Trainers end to end: repeatable to the bit, resumed to the bit after a kill, learning, clean under sanitizers.
# Usage: tests/trainer/run.sh OLMOGEN WORKDIR [all]; without "all", tiny learns in fp32 alone.
set -u
. "$(dirname "$0")/../suite.sh"
: "${2:?OLMOGEN WORKDIR}"
olmogen=$(realpath "$1") work=$(realpath -m "$2") which=${3:-few}
cd "$(dirname "$0")/../.." || exit 1
rm -rf "$work"
mkdir -p "$work"

mkdir "$work/text"
cp -r generator kernels runtime "$work/text" # as they are now: all runs see the same
cat >"$work/run.yaml" <<EOF
data: { paths: [$work/text/generator, $work/text/kernels], format: bytes }
steps: 12
lr: { peak: 3e-3, warmup: 2 }
EOF
weights() { # of the newest checkpoint: one checksum over all tensors and moments
	(cd "$1" && cat "$(ls | grep step | tail -n 1)"/*.safetensors | sha256sum)
}
saved() { # bytes of saved activations in a tree
	sed -n 's/^#define OM_SAVED_BYTES *\([0-9]*\).*/\1/p' "$1/src/layout.h"
}
train() { # folder of checkpoints, more arguments
	dir=$1
	shift
	"$trainer" train "$work/run.yaml" checkpoint.dir="$dir" "$@" >"$work/log" 2>&1
}

for real in fp32 fp64 bf16 drawn; do # drawn: with moments in bf16, at a beta2 that needs their roundings drawn
	case $real in drawn) options="real=bf16 -D moments=bf16 -D beta2=0.999" ;; *) options=real=$real ;; esac
	# shellcheck disable=SC2086 # several
	tree "$work/$real" -D $options tests/trainer/small.lua >/dev/null
	is "$real: builds" $?
	trainer=$work/$real/trainer
	"$trainer" selftest >"$work/log"
	is "$real: selftest" $?
	train "$work/$real-a" threads=2
	is "$real: trains" $?
	train "$work/$real-b" threads=2
	[ "$(weights "$work/$real-a")" = "$(weights "$work/$real-b")" ]
	is "$real: the same bits again" $?
	train "$work/$real-c" threads=1
	[ "$(weights "$work/$real-a")" = "$(weights "$work/$real-c")" ]
	is "$real: the same bits on one thread" $?
	train "$work/$real-d" seed=1
	[ "$(weights "$work/$real-a")" != "$(weights "$work/$real-d")" ]
	is "$real: other bits from another seed" $?
	train "$work/$real-e" steps=12 checkpoint.every=5 checkpoint.keep=0
	rm -rf "$work/$real-e/step-000012" "$work/$real-e/step-000010"
	train "$work/$real-e"
	[ "$(weights "$work/$real-a")" = "$(weights "$work/$real-e")" ]
	is "$real: resumed from step 5, the same bits" $?
done

# gradients of weights as a phase of their own, after all of backward: the same sums in the same order
build/tests/streams tests/trainer/small.lua cpu 1,split,emit "$work/split" real=fp32 >"$work/log" 2>&1 &&
	make -s -j2 -C "$work/split" >"$work/log" 2>&1
is "split: builds" $?
trainer=$work/split/trainer
train "$work/split-a" threads=2
[ "$(weights "$work/fp32-b")" = "$(weights "$work/split-a")" ] && grep -q om_weights "$work/split/src/step.c"
is "split: the same bits in three phases" $?

# a checkpoint of bf16 holds fp32 masters: fp32 goes on with it as its own, and the other way round
masters() { # of the newest checkpoint, without the moments
	(cd "$1" && cat "$(ls | grep step | tail -n 1)"/model-*.safetensors | sha256sum)
}
[ "$(masters "$work/fp32-a")" != "$(masters "$work/bf16-a")" ]
is "fp32 and bf16 train differently" $?
for pair in bf16/fp32 fp32/bf16; do
	from=${pair%/*} to=${pair#*/}
	trainer=$work/$from/trainer
	train "$work/$from-to-$to" steps=6
	trainer=$work/$to/trainer
	train "$work/$from-to-$to" steps=12 log.metrics="$work/metrics"
	is "$to goes on from $from" $?
	grep -q '"step": *7,' "$work/metrics" && ! grep -q '"step": *6,' "$work/metrics"
	is "$to goes on from step 6 of $from" $?
done
# moments in bf16 are half of the file, and a trainer of others converts them
moments() { # bytes of them in the newest checkpoint
	(cd "$1" && cat "$(ls | grep step | tail -n 1)"/optimizer-*.safetensors | wc -c)
}
[ $((10 * $(moments "$work/drawn-a"))) -lt $((6 * $(moments "$work/bf16-a"))) ]
is "moments in bf16 take half the bytes" $?
for pair in drawn/bf16 bf16/drawn; do
	from=${pair%/*} to=${pair#*/}
	trainer=$work/$from/trainer
	train "$work/$from-to-$to" steps=6
	trainer=$work/$to/trainer
	train "$work/$from-to-$to" steps=12
	grep -q "step-000006 has moments in .*: each becomes the nearest" "$work/log" && grep -q "done: step 12" "$work/log"
	is "$to goes on from $from, and says what becomes of the moments" $?
done
trainer=$work/fp64/trainer
train "$work/fp32-a" steps=20
grep -q "step-000012 holds F32, this trainer has F64, by its precision { optimizer = \"fp64\" }; resume with the trainer that" \
	"$work/log"
is "fp64 says what to do with a checkpoint of fp32" $?
for real in fp32 bf16; do # no step: the first values are the same, and all of fp32's bits are there
	trainer=$work/$real/trainer
	train "$work/$real-first" steps=1 lr.peak=0 lr.warmup=0
done
[ "$(masters "$work/fp32-first")" = "$(masters "$work/bf16-first")" ]
is "fp32 and bf16 begin with the same numbers" $?

# out to Hugging Face and back: bf16 weights are written as they are, and are then their own masters
tree "$work/hf" -D real=bf16 -D hf=true tests/trainer/small.lua >/dev/null
is "hf: builds" $?
trainer=$work/hf/trainer
train "$work/hf-a"
"$trainer" export "$work/hf-out" "$work/hf-a" >"$work/log" 2>&1
is "hf: exports" $?
grep -q '"torch_dtype": "bfloat16"' "$work/hf-out/config.json"
is "hf: config.json says bfloat16" $?
[ "$(grep -ao '"dtype":"[A-Z0-9]*"' "$work/hf-out/model.safetensors" | sort -u)" = '"dtype":"BF16"' ]
is "hf: every tensor is BF16" $?
"$trainer" import "$work/hf-out" "$work/hf-b" >"$work/log" 2>&1 &&
	"$trainer" export "$work/hf-out2" "$work/hf-b" >"$work/log" 2>&1 &&
	cmp "$work/hf-out/model.safetensors" "$work/hf-out2/model.safetensors" >"$work/log" 2>&1
is "hf: imported and exported, the same bytes" $?
loss() { # of the newest checkpoint
	"$trainer" eval "$work/run.yaml" eval.paths="[$work/text/runtime]" eval.sequences=7 checkpoint.dir="$1" | grep -o 'loss [0-9.]*'
}
[ -n "$(loss "$work/hf-a")" ] && [ "$(loss "$work/hf-a")" = "$(loss "$work/hf-b")" ]
is "hf: imported weights have the loss of those exported" $?
"$trainer" bench steps=3 >"$work/bench" && awk -f tests/shares.awk "$work/bench" >"$work/log"
is "bench, three microbatches: parts add up, none is negative" $?
"$trainer" info | grep -q 'weights and activations bf16, gradients fp32, optimizer fp32, moments fp32'
is "info says the precision" $?

# recomputation changes no bit, and keeps less
[ "$which" = all ] && whats="rows cheap experts block" || whats="cheap block"
for what in $whats; do
	tree "$work/$what" -D recompute=$what tests/trainer/small.lua >/dev/null
	trainer=$work/$what/trainer
	train "$work/$what-a"
	[ "$(weights "$work/fp32-a")" = "$(weights "$work/$what-a")" ]
	is "recompute $what: the same bits" $?
	[ "$(saved "$work/$what")" -lt "$(saved "$work/fp32")" ]
	is "recompute $what: saves less" $?
done
tree "$work/auto" -D recompute=auto -D memory=0.0019 tests/trainer/small.lua >/dev/null
grep -q ' recompute  .*; ' "$work/auto/PLAN.txt"
is "recompute auto: layers differ" $?
trainer=$work/auto/trainer
train "$work/auto-a"
tensors() { # their checksums by name: files have them kind by kind of layer
	grep dtype "$1"/*/index.json | sed 's/,$//' | sort
}
tensors "$work/fp32-a" >"$work/fp32.sums"
[ -s "$work/fp32.sums" ] && tensors "$work/auto-a" | cmp -s - "$work/fp32.sums"
is "recompute auto: the same bits" $?
"$olmogen" --emit-only -o "$work/auto-2" "$work/auto/model/resolved.lua" >/dev/null &&
	diff -r -x trainer -x obj -x small.lua "$work/auto" "$work/auto-2" >"$work/log"
is "recompute auto: resolved.lua gives the tree again" $?

# the unfused graph is the oracle of the fused one: gradients of a step, and in fp64 weights and moments of twelve, on a
# text that stays as it is: AdamW divides by what may be near 0, so one text in many moves a last bit beyond the bound
awk -f tests/parallel/text.awk >"$work/fixed"
[ "$which" = all ] && reals="fp32 fp64" || reals=fp64
for real in $reals; do
	apart=$work/apart-$real
	tree "$apart" -D real=$real --no-fuse tests/trainer/small.lua >/dev/null &&
		"$olmogen" --check -o "$apart" "$apart/model/resolved.lua" >"$work/log" 2>&1
	is "$real, nothing fused: builds, and resolved.lua gives it again" $?
	! grep -q loss_grad "$apart/src/step.c" && grep -q loss_grad "$work/$real/src/step.c"
	is "$real, nothing fused: no loss with its gradient, which are one op else" $?
	for trainer in "$work/$real/trainer" "$apart/trainer"; do
		train "${trainer%/*}/one" steps=1 lr.warmup=0
		train "${trainer%/*}/twelve" data.paths="[$work/fixed]"
	done
	far=$(build/tests/compare $([ $real = fp64 ] && echo 1e-12 || echo 1e-5) "$work/$real/one/step-000001" "$apart/one/step-000001" exp_avg.)
	is "$real, nothing fused: the same gradients ($far)" $?
	[ $real = fp32 ] || far=$(build/tests/compare 1e-12 "$work/$real/twelve/step-000012" "$apart/twelve/step-000012")
	is "$real, nothing fused: the same weights and moments ($far)" $?
done

# weights that are one in storage keep their names, their first values and their place in what is exported and imported
tree "$work/hf-apart" -D real=bf16 -D hf=true --no-fuse tests/trainer/small.lua >/dev/null
is "hf, nothing fused: builds" $?
! grep -q q_proj_k_proj "$work/hf-apart/src/layout.h" && grep -q q_proj_k_proj "$work/hf/src/layout.h"
is "hf: weights of queries and keys are one, and apart where nothing is fused" $?
for tree in hf hf-apart; do
	trainer=$work/$tree/trainer
	train "$work/$tree-first" steps=1 lr.peak=0 lr.warmup=0
	"$trainer" export "$work/$tree-given" "$work/hf-a" >"$work/log" 2>&1
	"$trainer" import "$work/hf-out" "$work/$tree-taken" >"$work/log" 2>&1
done
[ "$(masters "$work/hf-first")" = "$(masters "$work/hf-apart-first")" ]
is "hf, merged or not: the same first values" $?
cmp "$work/hf-given/model.safetensors" "$work/hf-apart-given/model.safetensors" >"$work/log"
is "hf, merged or not: the same export of one checkpoint" $?
[ "$(masters "$work/hf-taken")" = "$(masters "$work/hf-apart-taken")" ]
is "hf, merged or not: the same import" $?

# balancing by biases: they move, are kept, and stay where a step is skipped
tree "$work/bias" -D gamma=0.01 tests/trainer/small.lua >/dev/null
trainer=$work/bias/trainer
biases() { # their checksums in a checkpoint
	grep -c e_score_correction_bias "$1/index.json"
	grep e_score_correction_bias "$1/index.json" | sed 's/.*crc32c//'
}
"$trainer" selftest >"$work/log"
is "biases: selftest" $?
train "$work/bias-a" threads=2
is "biases: trains" $?
train "$work/bias-b" threads=1 eval.paths="[$work/text/runtime]" eval.every=2 eval.sequences=3
[ "$(weights "$work/bias-a")" = "$(weights "$work/bias-b")" ]
is "biases: the same bits on one thread, with evaluations" $?
train "$work/bias-e" checkpoint.every=5 checkpoint.keep=0
[ "$(biases "$work/bias-e/step-000005")" != "$(biases "$work/bias-e/step-000010")" ] &&
	[ "$(biases "$work/bias-e/step-000005" | head -n 1)" = 2 ]
is "biases: one of each layer with experts, moved" $?
rm -rf "$work/bias-e/step-000012" "$work/bias-e/step-000010"
train "$work/bias-e"
[ "$(weights "$work/bias-a")" = "$(weights "$work/bias-e")" ]
is "biases: resumed from step 5, the same bits" $?
train "$work/bias-s" steps=8 lr.peak=1e-9 checkpoint.every=1 checkpoint.keep=0 skip_step.sigma=1e-9 \
	skip_step.window=2 log.metrics="$work/bias.jsonl"
skips=0 wrong=0
for n in 2 3 4 5 6 7 8; do
	before=$work/bias-s/step-00000$((n - 1)) after=$work/bias-s/step-00000$n
	same=1
	[ "$(biases "$before")" = "$(biases "$after")" ] || same=0
	skipped=$(sed -n "${n}s/.*\"skipped\": *\([0-9]*\).*/\1/p" "$work/bias.jsonl")
	[ "$same" = "$skipped" ] || wrong=$((wrong + 1))
	skips=$((skips + skipped))
done
[ $wrong = 0 ] && [ $skips -gt 0 ] && [ $skips -lt 7 ]
is "biases: $skips skipped steps left them alone, others did not" $?
"$olmogen" -D gamma=0.01 -D hf=true --emit-only -o "$work/bias-hf" tests/trainer/small.lua >/dev/null
tr -d '\n\t"' <"$work/bias-hf/src/params.c" | grep -q 'hf_refusal = .*has no bias of the choice of experts'
is "biases: no export, and the reason" $?

# experts by lot or in turn: a function of seed, layer and place in the data, whatever runs it
for routing in random uniform; do
	tree "$work/$routing" -D routing=$routing tests/trainer/small.lua >/dev/null
	trainer=$work/$routing/trainer
	"$trainer" selftest >"$work/log"
	is "$routing: selftest" $?
	train "$work/$routing-a" threads=2 eval.paths="[$work/text/runtime]" eval.sequences=7 log.metrics="$work/$routing.jsonl"
	train "$work/$routing-b" threads=1
	[ "$(weights "$work/$routing-a")" = "$(weights "$work/$routing-b")" ]
	is "$routing: the same bits on one thread, without evaluation" $?
	[ "$(weights "$work/$routing-a")" != "$(weights "$work/fp32-a")" ]
	is "$routing: other bits than learned routing" $?
	train "$work/$routing-e" checkpoint.every=5 checkpoint.keep=0
	rm -rf "$work/$routing-e/step-000012" "$work/$routing-e/step-000010"
	train "$work/$routing-e"
	[ "$(weights "$work/$routing-a")" = "$(weights "$work/$routing-e")" ]
	is "$routing: resumed from step 5, the same bits" $?
	"$trainer" eval "$work/run.yaml" eval.paths="[$work/text/runtime]" eval.sequences=7 checkpoint.dir="$work/$routing-a" \
		log.metrics="$work/$routing-eval.jsonl" >"$work/log" 2>&1
	[ "$(grep -o 'eval_loss[^,]*' "$work/$routing.jsonl")" = "$(grep -o 'eval_loss[^,]*' "$work/$routing-eval.jsonl")" ]
	is "$routing: the evaluation of the run" $?
	[ "$which.$routing" != few.uniform ] || continue
	tree "$work/re$routing" -D routing=$routing -D recompute=block tests/trainer/small.lua >/dev/null
	trainer=$work/re$routing/trainer
	train "$work/$routing-r"
	[ "$(weights "$work/$routing-a")" = "$(weights "$work/$routing-r")" ]
	is "$routing: the same bits recomputed" $?
done
loads() { # the largest of each layer, step by step
	grep -o '"max_load": *[0-9.]*' "$1" | sed 's/.*: *//'
}
[ "$(loads "$work/uniform.jsonl" | sort -u)" = 1 ]
is "uniform: every load is the mean" $?
[ "$(loads "$work/random.jsonl" | sort -u | wc -l)" -gt 5 ]
is "random: loads differ by step and layer" $?

# evaluation on the way disturbs nothing, and agrees with evaluation afterwards
trainer=$work/fp32/trainer
train "$work/eval-a" eval.paths="[$work/text/runtime]" eval.every=5 eval.sequences=7 log.metrics="$work/eval.jsonl"
[ "$(weights "$work/fp32-a")" = "$(weights "$work/eval-a")" ]
is "a run with evaluation: the same bits" $?
before=$(grep eval_loss "$work/eval.jsonl" | tail -n 1 | sed 's/.*"eval_loss": *\([0-9.e-]*\).*/\1/')
"$trainer" eval "$work/run.yaml" eval.paths="[$work/text/runtime]" eval.sequences=7 checkpoint.dir="$work/eval-a" \
	log.metrics="$work/eval2.jsonl" >"$work/log" 2>&1
after=$(grep eval_loss "$work/eval2.jsonl" | tail -n 1 | sed 's/.*"eval_loss": *\([0-9.e-]*\).*/\1/')
[ -n "$before" ] && [ "$before" = "$after" ]
is "trainer eval gives the loss of the last evaluation ($before, $after)" $?

# generation: the same on any number of threads, in any format
for real in fp32 fp64 bf16; do
	trainer=$work/$real/trainer
	"$trainer" generate --checkpoint "$work/$real-a" --tokens 115,116,97 --threads 2 >"$work/gen2" 2>"$work/log" &&
		"$trainer" generate --checkpoint "$work/$real-a" --tokens 115,116,97 --threads 1 >"$work/gen1" 2>"$work/log" &&
		[ "$(tr ',' '\n' <"$work/gen1" | grep -c '^[0-9]*$')" = 30 ] && cmp "$work/gen1" "$work/gen2" >"$work/log"
	is "$real: generates to the end of a sequence, the same on one thread" $?
	"$trainer" generate --checkpoint "$work/$real-a" --tokens 115,116,97 --seed 1 2>"$work/log" | cmp -s - "$work/gen1"
	[ $? = 1 ]
	is "$real: generates something else from another seed" $?
done

# killed at moments that nobody chose
trainer=$work/fp32/trainer
long="steps=150 lr.peak=1e-3"
train "$work/long" $long
kills=0 hits=0
while [ $kills -lt 6 ]; do
	"$trainer" train "$work/run.yaml" $long checkpoint.dir="$work/killed" checkpoint.every=7 \
		checkpoint.keep=2 log.metrics="$work/killed.jsonl" >"$work/log" 2>&1 &
	pid=$!
	sleep 0.$((kills % 4 + 2))
	kill -9 $pid 2>/dev/null && hits=$((hits + 1))
	wait $pid 2>/dev/null
	kills=$((kills + 1))
done
train "$work/killed" $long checkpoint.every=7 checkpoint.keep=2 log.metrics="$work/killed.jsonl"
[ "$(weights "$work/long")" = "$(weights "$work/killed")" ]
is "killed $hits times, the same bits as the run that was not" $?
[ $hits -gt 0 ]
is "a kill hit" $?
awk -F'[:,]' '{ n++; if ($2 + 0 != n) exit 1 } END { exit n != 150 }' "$work/killed.jsonl"
is "its metrics have each step once" $?
for key in loss grad_norm lr tokens_per_s data_wait tflops spikes load_balance z total moe max_load entropy dead; do
	tail -n 1 "$work/killed.jsonl" | grep -q "\"$key\""
	is "metrics have $key" $?
done

# A long run with moments in bf16 beside one with moments in fp32: the second moments' sum, which to the nearest drifts.
# For that weights stand still, so that both see the same gradients; for the loss they do not. Roundings turn routers to
# other choices, by which young runs drift apart: at this rate by under 0.01 in the loss whatever the seed, at 3e-3 by 0.06.
tree "$work/wide" -D real=bf16 -D beta2=0.999 tests/trainer/small.lua >/dev/null
is "moments in fp32, beta2 = 0.999: builds" $?
[ "$which" = all ] && steps=1000 || steps=400
runs="wide drawn"
if [ "$which" = all ]; then # the drawn kernel with half of the last place in place of the draws rounds to the nearest
	"$olmogen" --emit-only -D real=bf16 -D moments=bf16 -D beta2=0.999 -o "$work/nearest" tests/trainer/small.lua >/dev/null
	sed -i 's/bits = draw\[.*\];/bits = 0x80008000 | (draw[0] \& 0);/' "$work/nearest/kernels/adamw.h"
	make -s -j2 -C "$work/nearest" >"$work/log" 2>&1 && grep -q 0x80008000 "$work/nearest/kernels/adamw.h"
	is "moments to the nearest: builds" $?
	runs="$runs nearest"
fi
for run in $runs; do
	trainer=$work/$run/trainer
	train "$work/$run-still" steps=$steps lr.schedule=constant lr.peak=1e-9
	train "$work/$run-long" steps=$steps lr.schedule=constant lr.peak=1e-3 log.metrics="$work/$run-long.jsonl" log.every=1
	tail -n 100 "$work/$run-long.jsonl" | sed 's/.*"loss": *\([0-9.]*\).*/\1/' |
		awk '{ s += $1 } END { print s / NR }' >"$work/$run-long.loss"
done
far=$(build/tests/compare 0.01 "$work"/wide-still/step-* "$work"/drawn-still/step-* exp_avg_sq sum)
is "$steps steps with drawn moments: v is $far of fp32's" $?
paste "$work/wide-long.loss" "$work/drawn-long.loss" | awk '{ exit !($1 - $2 < 0.05 && $2 - $1 < 0.05) }'
is "and the loss is that of fp32's: $(cat "$work/drawn-long.loss"), $(cat "$work/wide-long.loss")" $?
if [ "$which" = all ]; then
	far=$(build/tests/compare 0.05 "$work"/wide-still/step-* "$work"/nearest-still/step-* exp_avg_sq sum)
	[ $? = 1 ]
	is "to the nearest it is not: $far" $?
fi

# it learns more of the bytes than how frequent each is: the mean of 40 steps, since one batch may be hard
entropy=$(find "$work/text/generator" "$work/text/kernels" -type f -exec cat {} + | od -An -v -tu1 -w1 | sort -n | uniq -c |
	awk '{ n += $1; s += $1 * log($1) } END { print log(n) - s / n }')
mean() {
	tail -n 40 "$work/tiny-$1.jsonl" | sed 's/.*"loss": *\([0-9.]*\).*/\1/' | awk '{ s += $1 } END { print s / NR }'
}
[ "$which" = all ] && reals="fp32 bf16" || reals=fp32
for real in $reals; do
	"$olmogen" -D weights=$real -o "$work/tiny-$real" models/tiny.lua >/dev/null
	"$work/tiny-$real/trainer" train "$work/run.yaml" steps=110 lr.peak=2e-3 lr.warmup=10 \
		log.metrics="$work/tiny-$real.jsonl" >"$work/log" 2>&1
	is "tiny trains in $real" $?
	awk -v entropy="$entropy" -v loss="$(mean $real)" 'BEGIN { exit !(loss > 1 && loss < entropy - 0.2) }'
	is "tiny's loss in $real after 110 steps is well under the bytes' entropy, $entropy" $?
done
# a rounding is small, but what it turns a router to is a choice: young runs drift apart, at this rate by 0.01 to 0.02
# whatever the seed, at 5e-3 by up to 0.2
if [ "$which" = all ]; then
	awk -v a="$(mean fp32)" -v b="$(mean bf16)" 'BEGIN { exit !(b - a < 0.1 && a - b < 0.1) }'
	is "bf16 learns as fp32 does, $(mean bf16) and $(mean fp32)" $?
fi

trainer=$work/tiny-fp32/trainer # built as users get it, whatever the others are
for n in 1 2; do train "$work/tiny-on-$n" steps=3 threads=$n; done
[ "$(weights "$work/tiny-on-1")" = "$(weights "$work/tiny-on-2")" ]
is "tiny: the same bits on one thread" $?
"$work/tiny-fp32/trainer" bench steps=2 >"$work/bench" && awk -f tests/shares.awk "$work/bench" >"$work/log"
is "bench, one microbatch: parts add up, none is negative" $?

# the emitted sources under sanitizers, poisoned by nothing but their own memory
"$olmogen" --emit-only -o "$work/san" tests/trainer/small.lua >/dev/null
make -s -j2 -C "$work/san" CFLAGS="$san -O0 -DOM_NO_CLONES" LDFLAGS="$san" >"$work/log" 2>&1
is "builds with sanitizers" $?
trainer=$work/san/trainer
train "$work/san-a" steps=3
is "trains clean under ASan and UBSan" $?
"$trainer" selftest >"$work/log" 2>&1
is "selftest clean under ASan and UBSan" $?
"$trainer" generate --checkpoint "$work/san-a" --prompt "static int" --top-k 9 --top-p 0.9 >"$work/log" 2>&1
is "generates clean under ASan and UBSan" $?

suite_end || tail -n 20 "$work/log"
[ "$failed" = 0 ]
