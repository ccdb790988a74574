#!/bin/sh
# Builds model_check against several variants of model.lua and runs each on two seeds.
# Usage: tests/numeric/run.sh OLMOGEN WORKDIR
set -u
olmogen=$1 work=$2
here=$(dirname "$0")
passed=0 failed=0

# variant: olmogen's flags : what the test is told
variant() {
	name=$1 flags=$2 defs=$3
	dir=$work/$name
	cflags="-O1 -fsanitize=undefined -fno-sanitize-recover=all"
	if "$olmogen" $flags --emit-only -o "$dir" "$here/model.lua" >/dev/null &&
		make -s -C "$dir" CFLAGS="$cflags" LDFLAGS="-fsanitize=undefined" >/dev/null &&
		gcc -std=c11 -D_POSIX_C_SOURCE=200809L -O1 -Wall -Wextra -Werror -fopenmp $defs -I"$dir/src" \
			-I"$dir/runtime" -fsanitize=undefined -o "$dir/model_check" "$here/model_check.c" \
			$(ls "$dir"/obj/src/*.o "$dir"/obj/inst/*.o "$dir"/obj/runtime/*.o | grep -v src/main.o) -lyaml -lm
	then
		for seed in 1 77; do
			out=$("$dir/model_check" $seed)
			echo "$name, seed $seed: $(echo "$out" | tail -n 1)"
			echo "$out" | grep FAIL | head -n 5
			set -- $(echo "$out" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p')
			passed=$((passed + ${1:-0})) failed=$((failed + ${2:-1}))
		done
	else
		echo "$name: does not build"
		failed=$((failed + 1))
	fi
}

variant plain "" "-DQK=0 -DNORMALIZE=0 -DSHARED=0 -DTOP_K=2 -DDENSE=0 -DTIED=0"
variant full "-D qk=full -D normalize=true -D shared=6 -D tied=true" \
	"-DQK=1 -DNORMALIZE=1 -DSHARED=6 -DTOP_K=2 -DDENSE=0 -DTIED=1"
variant head "-D qk=head -D shared=3 -D k=5 -D dense=-1 -D kv=1 -D normalize=true" \
	"-DQK=2 -DNORMALIZE=1 -DSHARED=3 -DTOP_K=5 -DDENSE=-1 -DTIED=0"
variant top1 "-D qk=head -D k=1 -D dense=1 -D kv=6 -D tied=true -D clip=0" \
	"-DQK=2 -DNORMALIZE=0 -DSHARED=0 -DTOP_K=1 -DDENSE=1 -DTIED=1"
echo "$passed passed, $failed failed"
test "$failed" = 0
