#!/bin/sh
# Builds the kernel tests for sm_90a without a GPU. Usage: tests/gpu/build.sh OUT [FAMILY...]; gives OUT/kernels, of family
# peers, which is a program of its own, OUT/peers.
# A kernel that spills fails the build. OM_ARCH=100: with the code for other architectures, as the H200 can run it.
set -eu
cd "$(dirname "$0")/../.."
out=$1
shift
mkdir -p "$out"
[ $# -gt 0 ] || set -- $(cd tests/gpu && ls *.cu | sed 's/\.cu$//' | grep -vx peers)
main=tests/gpu/main.c program=kernels
[ "$*" != peers ] || main= program=peers
objects=
for f in "$@"; do
	nvcc -std=c++17 -cubin -DOM_ARCH=${OM_ARCH:-90} -gencode arch=compute_90a,code=sm_90a -Xptxas=-v -Ikernels/cuda -Ikernels \
		-Iruntime -Iruntime/cuda -Itests/gpu -o "$out/$f.cubin" "tests/gpu/$f.cu" 2>"$out/$f.log" || { cat "$out/$f.log"; exit 1; }
	if grep -B2 -E '(^|[ ,])[1-9][0-9]* bytes (spill|stack)' "$out/$f.log"; then
		exit 1
	fi
	gcc -std=c11 -D_GNU_SOURCE -DOM_ARCH=${OM_ARCH:-90} -O2 -Wall -Wextra -Werror -fopenmp -Ikernels/cuda -Ikernels -Iruntime -Iruntime/cuda -Itests/gpu \
		-x c -c -o "$out/$f.o" "tests/gpu/$f.cu"
	objects="$objects $out/$f.o"
done
for f in "$@"; do
	printf '.section .rodata\n.balign 64\ncubin_%s: .incbin "%s"\n' "$f" "$out/$f.cubin"
done >"$out/cubins.s"
{
	printf '.section .data.rel.ro,"aw"\n.balign 8\n.globl om_cubins\nom_cubins:\n'
	for f in "$@"; do
		printf '.quad cubin_%s\n' "$f"
	done
	printf '.quad 0\n.section .note.GNU-stack,"",@progbits\n'
} >>"$out/cubins.s"
# of the runtime only what is called: the rest of these files needs others, and libraries
gcc -std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -DOM_ARCH=90 -O2 -Wall -Wextra -Werror -fopenmp -ffunction-sections -Wl,--gc-sections -Iruntime \
	-Iruntime/cuda -Itests/gpu -I/usr/local/cuda/include -o "$out/$program" $main runtime/cuda/gpu.c \
	runtime/cuda/check.c runtime/err.c runtime/host.c runtime/group.c runtime/one/comm.c $objects "$out/cubins.s" -ldl -lm
