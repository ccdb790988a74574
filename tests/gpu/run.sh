#!/bin/sh
# The GPU's tests, on programs that build.sh and models.sh made: every kernel against its naive version, whole models
# against the CPU, trainers that repeat and resume to the bit. Usage: tests/gpu/run.sh OUT; skips where there is no GPU.
set -u
. "$(dirname "$0")/../suite.sh"
out=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit 1
if ! [ -e /dev/nvidiactl ] && ! [ -e /usr/local/nvidia ]; then
	suite_skip "no NVIDIA GPU here"
fi
weights() { # of the newest checkpoint: one checksum over all tensors and moments
	(cd "$1" && cat "$(ls | grep step | tail -n 1)"/*.safetensors | sha256sum)
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

timeout 300 "$out/kernels" 2 >"$work/kernels" 2>&1
count kernels "$(cat "$work/kernels")"
grep -v ' ok ' "$work/kernels" | tail -n 40

# ranks that are processes, on a GPU each or on one
timeout 200 "$out/peers" "$(ls /dev/nvidia[0-9]* 2>/dev/null | wc -l)" >"$work/log" 2>&1
count "kernels of several ranks" "$(cat "$work/log")"
grep -v '^ok ' "$work/log" | tail -n 20

for v in plain mixed edges routed all eight floor; do
	steps=0
	[ $v != plain ] || steps=200
	[ $v != routed ] || steps=60
	for t in gpu cpu fp32; do
		timeout 200 "$out/$v.$t" "$work/$t" $steps >"$work/$t.log" 2>&1 || tail -n 3 "$work/$t.log"
	done
	echo "model $v:"
	"$out/compare" "$work/gpu" "$work/cpu" "$work/fp32" >"$work/log" 2>&1
	head -n 12 "$work/log"
	count "model $v" "$(cat "$work/log")"
	timeout 200 "$out/$v.gpu" "$work/again" $steps && cmp -s "$work/gpu" "$work/again"
	is "$v: the same bits again" $?
	timeout 200 "$out/$v.trainer" selftest >"$work/log" 2>&1
	count "$v: selftest" "$(cat "$work/log")"
	grep -v ' ok$' "$work/log" | tail -n 3
done

cat >"$work/run.yaml" <<EOF2
data: { paths: [generator, kernels], format: bytes }
steps: 12
lr: { peak: 3e-3, warmup: 2 }
EOF2
for v in plain routed; do
	trainer=$out/$v.trainer
	for run in "a" "b" "c checkpoint.every=5 checkpoint.keep=0"; do
		set -- $run
		dir=$work/$v-$1
		shift
		timeout 100 "$trainer" train "$work/run.yaml" checkpoint.dir="$dir" "$@" >"$work/log" 2>&1
		is "$v trains $run" $?
	done
	tail -n 1 "$work/log"
	[ "$(weights "$work/$v-a")" = "$(weights "$work/$v-b")" ]
	is "$v: the same weights again" $?
	rm -rf "$work/$v-c/step-000010" "$work/$v-c/step-000012"
	timeout 100 "$trainer" train "$work/run.yaml" checkpoint.dir="$work/$v-c" >"$work/log" 2>&1
	[ "$(weights "$work/$v-a")" = "$(weights "$work/$v-c")" ]
	is "$v: resumed from step 5, the same weights" $?
done

# saves that are written beside the steps hold what those hold that are waited for
for how in true false; do
	timeout 100 "$out/plain.trainer" train "$work/run.yaml" checkpoint.dir="$work/beside-$how" checkpoint.every=1 \
		checkpoint.async=$how >"$work/log" 2>&1
	is "plain trains with checkpoint.async=$how" $?
	grep '^checkpoint: step' "$work/log"
done
diff -r "$work/beside-true" "$work/beside-false" >"$work/log" 2>&1
is "each step's checkpoint is the same" $?

timeout 100 "$out/streams.trainer" train "$work/run.yaml" checkpoint.dir="$work/streams" >"$work/log" 2>&1
is "plain trains with two streams" $?
[ "$(weights "$work/plain-a")" = "$(weights "$work/streams")" ]
is "plain: the same weights with two streams" $?

# a GPU's checkpoint on the CPU, and what both export and import
loss() {
	timeout 100 "$1" eval "$work/run.yaml" eval.paths=[runtime] eval.sequences=60 checkpoint.dir="$2" 2>"$work/log" |
		sed -n 's/.*loss \([0-9.]*\),.*/\1/p'
}
gpu=$(loss "$out/plain.trainer" "$work/plain-a") cpu=$(loss "$out/plain.cputrainer" "$work/plain-a")
echo "loss of the GPU's checkpoint: $gpu there, $cpu on the CPU"
awk -v a="$gpu" -v b="$cpu" 'BEGIN { exit !(a > 1 && a - b < 0.01 && b - a < 0.01) }'
is "the GPU's checkpoint has the same loss on the CPU" $?
awk 'BEGIN {
	for (i = 0; i < 90; i++) {
		printf "{\"context\": \"\\tfor (int i = %d; i < n; i++)\", ", i
		printf "\"choices\": [\" {\", \"\\n\\t\\tx[i] = %d;\", \", y\"], \"answer\": %d}\n", 7 * i, i % 3
	}
}' >"$work/questions.jsonl"
for t in trainer cputrainer; do
	timeout 100 "$out/plain.$t" eval "$work/run.yaml" "eval.sets.quiz.questions=[$work/questions.jsonl]" \
		checkpoint.dir="$work/plain-a" 2>"$work/log" | tee "$work/quiz.$t"
done
sed 's/,//g' "$work/quiz.trainer" "$work/quiz.cputrainer" | awk '
	/accuracy/ { n++; for (i = 1; i < NF; i++) { if ($i == "loss") loss[n] = $(i + 1); if ($i == "accuracy") right[n] = $(i + 1) } }
	function far(a, b, most) { return a - b > most || b - a > most }
	END { exit !(n == 2 && right[1] > 0 && !far(right[1], right[2], 0.05) && loss[1] > 0 && !far(loss[1], loss[2], 0.02)) }'
is "multiple choice has the same answers on the CPU, but for close ones" $?
timeout 100 "$out/plain.cputrainer" train "$work/run.yaml" steps=14 checkpoint.dir="$work/plain-b" >"$work/log" 2>&1
is "the CPU goes on with it" $?
timeout 100 "$out/plain.trainer" train "$work/run.yaml" steps=16 checkpoint.dir="$work/plain-b" >"$work/log" 2>&1
is "and the GPU with the CPU's" $?

if command -v compute-sanitizer >/dev/null; then
	for tool in memcheck racecheck synccheck; do
		timeout 200 compute-sanitizer --tool $tool --error-exitcode 9 "$out/edges.gpu" "$work/x" 1 >"$work/log" 2>&1
		is "compute-sanitizer $tool" $?
		grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$work/log"
	done
fi

suite_end
