#!/bin/sh
# make bench: medians of what the project promises on a CPU; peers are measured in the same run. No test depends on it.
set -eu
cd "$(dirname "$0")/.."
work=build/bench
rm -rf $work
mkdir -p $work
gcc -std=c11 -O2 -o $work/measure tests/measure.c
measure=$work/measure

grep -m1 'model name' /proc/cpuinfo || true
echo "$(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg)"
echo
printf '%-52s %s\n' "what (promised)" "median, largest memory"
row() { # what, runs, command
	what=$1 n=$2
	shift 2
	printf '%-52s %s\n' "$what" "$($measure "$n" "$@")"
}
for model in models/*.lua; do
	row "--plan $model (0.2 s, 100 MB)" 11 build/olmogen --plan "$model"
done
row "emission of olmoe-1b-7b (0.5 s)" 5 sh -c \
	"rm -rf $work/olmoe && build/olmogen --target=cpu --emit-only -o $work/olmoe models/olmoe-1b-7b.lua"
echo "olmoe-1b-7b: $(cat $work/olmoe/src/* $work/olmoe/inst/* | wc -l) lines in src/ and inst/ (2,000)"
row "build of tiny from nothing (10 s)" 3 sh -c "rm -rf $work/tiny && build/olmogen -o $work/tiny models/tiny.lua"
cat >$work/run.yaml <<EOF
data: { paths: [generator], format: bytes }
steps: 1
EOF
row "tiny: process start to the end of its first step" 5 $work/tiny/trainer train $work/run.yaml
for i in 1 2 3 4 5; do
	$work/tiny/trainer train $work/run.yaml | sed -n 's/^start: .*after \([0-9.]*\) s.*/\1/p'
done | sort -n | sed -n '3s/.*/tiny: start to first step (0.3 s): & s/p'
echo
$work/tiny/trainer bench steps=20
echo
if echo 'int main(void){return 0;}' | gcc -x c - -lopenblas -o $work/try 2>/dev/null; then
	gcc -std=c11 -D_POSIX_C_SOURCE=200809L -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fopenmp \
		-Ikernels/cpu -o $work/bench_gemm tests/numeric/bench_gemm.c -lopenblas -lm
	# Debian 12's OpenBLAS falls back to an old kernel on processors newer than itself: name the best it has
	if grep -qm1 avx512f /proc/cpuinfo; then
		OPENBLAS_CORETYPE=SkylakeX OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=30000 $work/bench_gemm
	else
		env -u OPENBLAS_CORETYPE OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=30000 $work/bench_gemm
	fi
else
	echo "GEMM against OpenBLAS: skipped, libopenblas-dev is not installed"
fi
