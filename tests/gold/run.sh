#!/bin/sh
# Golden trees of three small models: what is generated (src/, inst/, PLAN.txt, resolved.lua), and the trace of one
# step, made by gcc from step.c and launch functions that only print their name and where their arguments lie.
# Usage: tests/gold/run.sh OLMOGEN WORKDIR; BLESS=1 rewrites the goldens (make bless).
set -u
. "$(dirname "$0")/../suite.sh"
olmogen=$1 work=$2
here=$(dirname "$0")

for model in "$here"/*.lua; do
	name=$(basename "$model" .lua)
	tree=$work/$name new=$work/$name.gold
	rm -rf "$tree" "$new"
	"$olmogen" --emit-only -o "$tree" "$model" >/dev/null || {
		fail "$name is not emitted"
		continue
	}
	mkdir -p "$new/model"
	cp -r "$tree/src" "$tree/inst" "$tree/PLAN.txt" "$new"
	cp "$tree/model/resolved.lua" "$new/model"
	awk -f "$here/mock.awk" "$tree/src/launch.h" >"$work/mock.c"
	if gcc -std=c11 -Wall -Werror -I"$tree/src" -I"$tree/runtime" -I"$here" -o "$work/trace" "$work/mock.c" \
		"$here/trace.c" "$tree/src/step.c"; then
		"$work/trace" >"$new/trace.txt"
	else
		fail "$name has no trace" # also while blessing: a tree without its trace is no golden one
		continue
	fi
	if [ "${BLESS:-0}" = 1 ]; then
		rm -rf "$here/$name"
		cp -r "$new" "$here/$name"
	fi
	if diff -ru "$here/$name" "$new" >"$work/$name.diff"; then
		ok
	else
		fail "golden tree $name (make bless, if this change is meant):"
		head -n 40 "$work/$name.diff"
	fi
done
suite_end
