#!/bin/sh
# Random layouts of random small models: refused with a position, or 2 steps agree with one rank.
# Usage: random.sh OLMOGEN WORKDIR SEED N
set -u
. "$(dirname "$0")/../suite.sh"
: "${2:?OLMOGEN WORKDIR}"
olmogen=$(realpath "$1") work=$(realpath -m "$2") seed=$3 n=$4
cd "$(dirname "$0")/../.." || exit 1
refused=0
rm -rf "$work"
mkdir -p "$work"
awk -f tests/parallel/text.awk >"$work/data"
cat >"$work/run.yaml" <<EOF2
data: { paths: [$work/data], format: bytes, eos: 32 }
steps: 2
lr: { schedule: constant, peak: 1e-3, warmup: 2 }
checkpoint: { every: 1, keep: 0 }
comm: { timeout: 60 }
EOF2
# a model, and after the bar its layout: at most 8 ranks
awk -v seed="$seed" -v n="$n" 'function any(list, a, m) { m = split(list, a, " "); return a[int(rand() * m) + 1] }
	BEGIN {
		srand(seed)
		for (i = 0; i < n; i++) {
			printf "documents=%s layers=%s experts=%s k=%s micro=%s shared=%s balance=%s recompute=%s gamma=%s |",
				any("ignore mask"), any("2 3 4 5 6"),
				any("4 6 8 12"), any("1 2 3 4"), any("1 2"), any("0 40"), any("batch sequence"),
				any("none none rows experts block cheap"), any("0 0.01")
			p = any("1 1 2 2 3 4"); d = any(p > 2 ? "1 2" : p > 1 ? "1 2 3 4" : "2 3 4 8")
			printf " data=%s expert=%s", d, any(d % 2 ? "1 " d : d % 4 ? "1 2" : "1 2 4")
			if (p > 1)
				printf " pipeline=%s schedule=%s", p, any("gpipe 1f1b interleaved v")
			print ""
		}
	}' >"$work/list"
i=0
while IFS='|' read -r model layout; do
	i=$((i + 1))
	d=
	for o in $model; do d="$d -D $o"; done
	l=
	for o in $layout; do l="$l -D $o"; done
	if ! "$olmogen" --emit-only -o "$work/many" -D global=24 $d $l tests/parallel/model.lua >"$work/log" 2>&1; then
		if [ $? -le 2 ] && grep -qE '^[^ ]*:[0-9]+:[0-9]+: error: ' "$work/log"; then
			ok
			refused=$((refused + 1))
		else
			fail "refused without a position: $d $l"
			head -n 3 "$work/log"
		fi
		continue
	fi
	good=1
	rm -rf "$work/a" "$work/b"
	tree "$work/one" -D global=24 $d tests/parallel/model.lua >"$work/log" 2>&1 &&
		make -s -j2 -C "$work/many" >"$work/log" 2>&1 &&
		OMP_NUM_THREADS=1 timeout 300 "$work/one/trainer" train "$work/run.yaml" checkpoint.dir="$work/a" >"$work/log" 2>&1 &&
		OMP_NUM_THREADS=1 OM_POISON=1 timeout 300 "$work/many/trainer" train "$work/run.yaml" checkpoint.dir="$work/b" \
			>"$work/log" 2>&1 || good=0
	# Adam's first step is as large where a gradient is nearly nothing, whichever its sign: beyond it, weights are near
	for what in "1e-5 1 exp_avg." "2e-3 2 model." "1e-3 2 exp_avg."; do
		set -- $what
		[ $good = 1 ] || continue
		build/tests/compare "$1" "$work/a/step-00000$2" "$work/b/step-00000$2" "$3" >"$work/log" 2>&1 || good=0
	done
	if [ $good = 1 ]; then
		ok
	else
		fail "$d $l"
		tail -n 5 "$work/log"
	fi
done <"$work/list"
echo "$refused of $i were refused (seed $seed)"
suite_end
