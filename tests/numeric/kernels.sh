#!/bin/sh
# Every kernel family at tiny, odd and real sizes against naive fp64 versions, in float and double, and every gradient
# rule against finite differences; without "all", double for this machine alone and gradient rules only under sanitizers.
# Usage: tests/numeric/kernels.sh WORKDIR [all] [SEED]
set -u
. "$(dirname "$0")/../suite.sh"
work=$1 for_double="-march=native -DOM_NO_CLONES"
[ "${2:-}" != all ] || { shift && for_double=; }
seed=${2:-$(date +%s)}
here=$(dirname "$0")
flags="-std=c11 -D_POSIX_C_SOURCE=200809L -O2 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fopenmp
	-Wall -Wextra -Werror -I$here/../../kernels/cpu -I$here/../../kernels -I$here/../../runtime"

one() { # name, source, flags
	name=$1 source=$2
	shift 2
	if gcc $flags "$@" -o "$work/$name" "$here/$source" -lm; then
		count "$name, seed $seed" "$("$work/$name" "$seed")"
	else
		fail "$name: does not compile"
	fi
}

mkdir -p "$work"
one kernels_float kernel_check.c -DOM_REAL=float
# shellcheck disable=SC2086 # words
one kernels_double kernel_check.c -DOM_REAL=double $for_double
[ "$for_double" ] || one kernels_grad kernel_grad.c
one kernels_grad_ubsan kernel_grad.c -DOM_NO_CLONES -fsanitize=address,undefined -fno-sanitize-recover=all
suite_end
