#!/bin/sh
# The GPU's tests, on programs that build.sh and models.sh made: every kernel against its naive version, whole models
# against the CPU, trainers that repeat and resume to the bit. Usage: tests/gpu/run.sh OUT; skips where there is no GPU.
set -u
out=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0
if ! [ -e /dev/nvidiactl ] && ! [ -e /usr/local/nvidia ]; then
	echo "skipped: no NVIDIA GPU here"
	echo "0 passed, 0 failed"
	exit 0
fi
count() { # LOG: adds its last line
	line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$1" | tail -n 1)
	[ -n "$line" ] || line="0 passed, 1 failed"
	p=$(echo "$line" | sed 's/ passed.*//') f=$(echo "$line" | sed 's/.*passed, //; s/ failed//')
	passed=$((passed + p)) failed=$((failed + f))
}
is() { # name, status of the check just run
	if [ "$2" = 0 ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL $1"
	fi
}
weights() { # of the newest checkpoint: one checksum over all tensors and moments
	(cd "$1" && cat "$(ls | grep step | tail -n 1)"/*.safetensors | sha256sum)
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

timeout 300 "$out/kernels" 2 >"$work/kernels" 2>&1
count "$work/kernels"
grep -v ' ok ' "$work/kernels" | tail -n 40

for v in plain mixed edges routed all; do
	steps=0
	[ $v != plain ] || steps=200
	[ $v != routed ] || steps=60
	for t in gpu cpu fp32; do
		timeout 200 "$out/$v.$t" "$work/$t" $steps >"$work/$t.log" 2>&1 || tail -n 3 "$work/$t.log"
	done
	echo "model $v:"
	"$out/compare" "$work/gpu" "$work/cpu" "$work/fp32" >"$work/log" 2>&1
	head -n 12 "$work/log"
	count "$work/log"
	timeout 200 "$out/$v.gpu" "$work/again" $steps && cmp -s "$work/gpu" "$work/again"
	is "$v: the same bits again" $?
	timeout 200 "$out/$v.trainer" selftest >"$work/log" 2>&1
	count "$work/log"
	grep -v ' ok$' "$work/log" | tail -n 3
done

cat >"$work/run.yaml" <<EOF2
data: { paths: [generator, kernels], format: bytes }
steps: 12
lr: { peak: 3e-3, warmup: 2 }
EOF2
trainer=$out/plain.trainer
for run in "a" "b" "c checkpoint.every=5 checkpoint.keep=0"; do
	set -- $run
	dir=$1
	shift
	timeout 100 "$trainer" train "$work/run.yaml" checkpoint.dir="$work/$dir" "$@" >"$work/log" 2>&1
	is "trains $run" $?
done
tail -n 3 "$work/log"
[ "$(weights "$work/a")" = "$(weights "$work/b")" ]
is "the same weights again" $?
rm -rf "$work/c/step-000010" "$work/c/step-000012"
timeout 100 "$trainer" train "$work/run.yaml" checkpoint.dir="$work/c" >"$work/log" 2>&1
[ "$(weights "$work/a")" = "$(weights "$work/c")" ]
is "resumed from step 5, the same weights" $?

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
