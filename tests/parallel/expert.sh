#!/bin/sh
# The kernels of expert parallelism: 1, 2, 4 and 8 ranks that are threads, in float and double, and under the sanitizers,
# and ranks that are processes; memory beyond the experts' rows that cannot be touched; and CUDA's kernels, emulated.
# Usage: tests/parallel/expert.sh WORKDIR [SEED]
set -u
. "$(dirname "$0")/../suite.sh"
work=$1 seed=${2:-$(date +%s)}
here=$(dirname "$0")
flags="-std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -O2 -ffp-contract=fast -fno-math-errno -fno-trapping-math
	-fopenmp -Wall -Wextra -Werror -I$here/../../kernels/cpu -I$here/../../kernels -I$here/../../runtime"

one() { # name, source, flags
	name=$1 source=$2
	shift 2
	if gcc $flags "$@" -o "$work/$name" "$here/$source" "$here/threads.c" -lm; then
		count "$name, seed $seed" "$("$work/$name" "$seed" 2>&1)"
	else
		fail "$name: does not compile"
	fi
}
processes() { # real, "ranks expert"...
	real=$1
	shift
	rm -rf "$work/o"
	mkdir "$work/o"
	if compiles "$work/o" "$plain" mpi | side_by_side &&
		mpicc $flags -DOM_MPI -DOM_REAL=$real -o "$work/expert_mpi" "$here/expert_check.c" "$work"/o/*.o -lyaml -ljansson -lm
	then
		for layout; do
			count "expert_mpi $layout, seed $seed" "$("$work/expert_mpi" "$seed" $layout 2>&1)"
		done
	else
		fail "expert_mpi: does not compile"
	fi
}

mkdir -p "$work"
one expert_float expert_check.c -DOM_REAL=float
one expert_double expert_check.c -DOM_REAL=double
one expert_san expert_check.c -DOM_REAL=float -DOM_NO_CLONES -fsanitize=address,undefined -fno-sanitize-recover=all
processes float "1 1" "2 2" "4 2" "8 8"
one tail_float tail_check.c -DOM_REAL=float
one tail_double tail_check.c -DOM_REAL=double
root=$here/../..
if command -v g++ >/dev/null; then
	for check in peers far; do
		if g++ -std=c++17 -O1 -Wall -Wextra -Werror -Wno-sign-compare -Wno-unknown-pragmas -Wno-unused-parameter -Wno-clobbered \
			-DOM_EP_THREADS=64 -I"$root/kernels/cuda" -I"$root/kernels" -I"$root/runtime" -I"$root/runtime/cuda" \
			-o "$work/$check" "$here/${check}_check.cc" -lpthread; then
			count "$check, seed $seed" "$(timeout 100 "$work/$check" "$seed" 2>&1)"
		else
			fail "$check: does not compile"
		fi
	done
fi
suite_end
