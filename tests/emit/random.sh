#!/bin/sh
# Random descriptions: valid ones pass every verifier and their sources compile; corrupted ones end with a position.
# Usage: tests/emit/random.sh OLMOGEN WORKDIR [FIRST_SEED [COUNT]]
set -u
. "$(dirname "$0")/../suite.sh"
olmogen=$1 work=$2 first=${3:-1} count=${4:-40}
here=$(dirname "$0")
mkdir -p "$work"

seed=$first
while [ "$seed" -lt $((first + count)) ]; do
	tree=$work/random
	rm -rf "$tree"
	if "$olmogen" -D seed="$seed" --emit-only -o "$tree" "$here/random.lua" >/dev/null 2>"$work/err" &&
		(for f in step launch params; do
			gcc -std=c11 -fopenmp -Wall -Wextra -Werror -I"$tree/runtime" -I"$tree/kernels" -fsyntax-only "$tree/src/$f.c" || exit 1
		done) 2>"$work/err" &&
		{ [ $((seed % 10)) != 0 ] || { make -s -C "$tree" CFLAGS="${CFLAGS:--O1}" && "$tree/trainer" selftest >"$work/err"; }; }
	then
		ok
	else
		fail "seed $seed:"
		head -n 5 "$work/err"
	fi
	corrupt=$((seed % 15 + 1))
	"$olmogen" -D seed="$seed" -D corrupt=$corrupt --plan "$here/random.lua" >/dev/null 2>"$work/err"
	status=$?
	# a fault in a kind of layer that this seed does not have is none
	if { [ $status = 1 ] && grep -qE '^[^ ]*random.lua:[0-9]+:[0-9]+: error: ' "$work/err"; } ||
		{ [ $status = 0 ] && [ $corrupt -le 4 ]; }; then
		ok
	else
		fail "seed $seed, corruption $corrupt: status $status"
		head -n 5 "$work/err"
	fi
	seed=$((seed + 1))
done
suite_end
