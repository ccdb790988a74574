#!/bin/sh
# Runs the suites side by side; each one ends with "N passed, N failed", and the last line is their sum.
# Usage: tests/run.sh [all | SUITE,SUITE...]
#   JOBS=2  how many suites run at a time; otherwise one more than there are processors, since suites of ranks mostly wait
#           for time-outs, and four at most
#   FULL=1  each suite at full length (make bigcheck); SEED=N what random descriptions and layouts begin with, else the day
# tests/README.md says what each suite proves and how long it takes.
set -u
cd "$(dirname "$0")/.." || exit 2
work=build/check
full=${FULL:+all}
seed=${SEED:-$(date +%j)}
# Suites that compare numbers build for this machine alone, with few optimizations where trainers run for long, and with
# none where it takes longer to build them; readme, emit, cuda and all suites of a full run build them as users get them.
quick="env CFLAGS='-O1 -march=native -DOM_NO_CLONES'"
brief="env CFLAGS='-O0 -march=native -DOM_NO_CLONES'"
layouts=3 models=20
[ -z "$full" ] || quick='' brief='' layouts=40 models=100

# Name and command of each suite. The longest ones start first, so that none is alone for long at the end.
table() {
	cat <<EOT
parallel bash tests/parallel/run.sh $work/parallel
trainer $quick sh tests/trainer/run.sh build/olmogen $work/trainer $full
layouts $quick sh tests/parallel/layouts.sh build/olmogen $work/layouts $full
numeric $brief sh tests/numeric/run.sh build/olmogen $work/numeric $full
ckpt bash tests/parallel/ckpt.sh $work/ckpt $full
runtime bash tests/runtime/run.sh $full
cuda sh tests/gpu/compile.sh build/olmogen $work/cuda $full
commands $brief sh tests/gpu/commands.sh build/olmogen $work/commands
page python3 tests/page/plan.py build/olmogen $work/page
report python3 tests/page/report.py $work/report
readme python3 tests/readme/run.py . $work/readme
peer $brief sh tests/peer/run.sh build/olmogen $work/peer $full
layrandom $brief sh tests/parallel/random.sh build/olmogen $work/layrandom $seed $layouts
kernels sh tests/numeric/kernels.sh $work/kernels $full
emit sh tests/emit/run.sh build/olmogen build/san/olmogen $work/emit
random $brief sh tests/emit/random.sh build/olmogen $work/random $seed $models
expert sh tests/parallel/expert.sh $work/expert
lang build/san/tests/lang_test
remedies python3 tests/err/remedies.py build/olmogen $work
err sh tests/err/run.sh build/olmogen
shard build/san/tests/shard_test
models sh tests/emit/models.sh build/olmogen
fuzz sh tests/fuzz/run.sh check $work/fuzz
plan build/san/tests/plan_test
plan_expect build/san/tests/plan_expect_test
plan_fuse build/san/tests/plan_fuse_test
search build/san/tests/search_test
graph build/san/tests/graph_test
base build/san/tests/base_test
gold sh tests/gold/run.sh build/olmogen $work/gold
EOT
}

# One suite by its own process, which says its name when it has ended: the printed line is in NAME.line.
if [ "${1:-}" = --one ]; then
	name=$2
	start=$(date +%s)
	eval "$(table | sed -n "s/^$name //p")" >"$work/$name.log" 2>&1
	status=$?
	line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$work/$name.log" | tail -n 1)
	p=$(echo "$line" | sed 's/ passed.*//')
	f=$(echo "$line" | sed 's/.*passed, //; s/ failed//')
	# a suite that ends without its line, or badly without a failure, has failed
	[ -n "$line" ] || p=0 f=1
	[ $status = 0 ] || [ "$f" != 0 ] || f=1
	times >"$work/$name.times" # in this shell: in a pipe it would be another one's
	cpu=$(awk 'NR == 2 { split($0, t, "[ms ]+"); printf "%d", t[1] * 60 + t[2] + t[3] * 60 + t[4] + 0.5 }' "$work/$name.times")
	printf '%-10s %5d passed, %d failed, %d s, %d s of processors\n' "$name" "$p" "$f" $(($(date +%s) - start)) "$cpu" \
		>"$work/$name.tmp"
	mv "$work/$name.tmp" "$work/$name.line"
	echo "$name"
	exit 0
fi

names=$(table | cut -d ' ' -f 1)
only=$(echo "${1:-all}" | tr ',' ' ')
[ "$only" != all ] || only=$names
for name in $only; do
	echo "$names" | grep -qx -- "$name" || {
		echo "tests/run.sh: there is no suite $name; there are" $(echo "$names" | sort) "and all" >&2
		exit 2
	}
done
jobs=${JOBS:-$(($(nproc 2>/dev/null || echo 1) + 1))}
[ -n "${JOBS:-}" ] || [ "$jobs" -le 4 ] || jobs=4

mkdir -p "$work/bin"
rm -f "$work"/*.line
# Every tree has the same runtime: a compiler cache builds it once for all suites.
if command -v ccache >/dev/null; then
	for cc in gcc cc; do ln -sf "$(command -v ccache)" "$work/bin/$cc"; done
	export PATH="$PWD/$work/bin:$PATH" CCACHE_DIR="${CCACHE_DIR:-$PWD/build/ccache}" CCACHE_NOHASHDIR=1
fi
# Threads and ranks that wait by spinning take processors from other suites: a run of 0.1 s takes 4. Ranks that are bound
# to the first processors leave the others idle.
export OMP_WAIT_POLICY=passive OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none

# Lines come in the order of the table, whichever suite ends first.
start=$(date +%s)
order=$(for name in $names; do case " $(echo $only) " in *" $name "*) echo "$name" ;; esac; done)
echo "$order" | xargs -P "$jobs" -n 1 sh tests/run.sh --one | {
	set -- $order
	while read -r ended; do
		while [ $# -gt 0 ] && [ -e "$work/$1.line" ]; do
			cat "$work/$1.line"
			grep -q ' passed, 0 failed,' "$work/$1.line" || tail -n 40 "$work/$1.log"
			shift
		done
	done
}
for name in $order; do # one that was killed has left no line
	cat "$work/$name.line" 2>/dev/null || echo "$name 0 passed, 1 failed, it did not end"
done | awk -v wall=$(($(date +%s) - start)) '
	{ passed += $2; failed += $4; cpu += $8 }
	/did not end/ { print }
	END {
		printf "%d s, %d s of processors\n%d passed, %d failed\n", wall, cpu, passed, failed
		exit failed != 0
	}'
