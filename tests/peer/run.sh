#!/bin/sh
# Committed fixtures: --from-hf gives the description, the generated trainer must agree with what transformers recorded
# (make.py). The weights go in by `trainer import` and come out by `trainer export`. Needs neither PyTorch nor transformers.
# Usage: tests/peer/run.sh OLMOGEN WORKDIR [all | FIXTURES]; without "all", the first of each family and what imports.txt edits
set -u
. "$(dirname "$0")/../suite.sh"
here=$(dirname "$0")
olmogen=$1 work=$2 which=${3:-few}
case $which in all | few) fixtures=$here/fixtures ;; *) fixtures=$which ;; esac
rm -rf "$work"
mkdir -p "$work"

for config in "$fixtures"/*/config.json; do
	dir=$(dirname "$config")
	name=$(basename "$dir")
	[ "$which" != few ] || [ "${name%-0}" != "$name" ] || grep -q "^$name " "$here/imports.txt" || continue
	tree=$work/$name
	# the fixture's batch, and its optimizer: no clipping
	"$olmogen" --from-hf="$dir" | sed 's/batch { .* }/batch { micro = 2, global = 2 },\
  optimizer = adamw { clip_norm = 0 }/' >"$work/$name.lua"
	if "$olmogen" --emit-only -o "$tree" "$work/$name.lua" >/dev/null &&
		make -s -j2 -C "$tree" CFLAGS="${CFLAGS:--O1}" LDFLAGS= >/dev/null &&
		gcc -std=c11 -D_POSIX_C_SOURCE=200809L -O1 -Wall -Wextra -Werror -fopenmp -I"$tree/src" -I"$tree/runtime" \
			-o "$tree/check" "$here/check.c" \
			$(ls "$tree"/obj/src/*.o "$tree"/obj/inst/*.o "$tree"/obj/runtime/*.o | grep -v src/main.o) -lyaml -ljansson -lm
	then
		"$tree/trainer" import "$dir" "$tree/in" >"$tree/log" 2>&1 &&
			"$tree/trainer" export "$tree/out" "$tree/in" >>"$tree/log" 2>&1 || tail -n 3 "$tree/log"
		count "$name" "$("$tree/check" "$dir/fixture.safetensors" "$dir/model.safetensors" "$tree/out/model.safetensors")"
	else
		fail "$name: does not build"
	fi
done

# 20 steps of a run, from a fixture's weights on, as PyTorch's optimizers take them (optimizer.py)
echo "data: { paths: [$here/optimizer/tokens.u8], order: sequential }
steps: 20
lr: { schedule: constant, peak: 5e-3 }
log: { every: 1 }" >"$work/optimizer.yaml"
optimizer() { # NAME TREE FIELD...: the rest of its adamw {}; without, the tree is there
	name=$1 tree=$work/$2 dir=$here/fixtures/qwen3_moe-0
	[ $# = 2 ] || {
		"$olmogen" --from-hf="$dir" | sed "s/batch { .* }/batch { micro = 2, global = 2 }, optimizer = adamw { clip_norm = 0, $3 }/" \
			>"$tree.lua"
		"$olmogen" --emit-only -o "$tree" "$tree.lua" >/dev/null && make -s -j2 -C "$tree" CFLAGS="${CFLAGS:--O1}" >/dev/null
	}
	"$tree/trainer" import "$dir" "$tree/run" >"$tree/log" 2>&1 &&
		"$tree/trainer" train "$work/optimizer.yaml" checkpoint.dir="$tree/run" log.metrics="$tree/metrics" >>"$tree/log" 2>&1 &&
		"$tree/trainer" export "$tree/last" "$tree/run" >>"$tree/log" 2>&1 || tail -n 3 "$tree/log"
	count "20 steps of $name" "$(python3 "$here/optimizer.py" check "$here/optimizer" "$name" "$tree/metrics" \
		"$tree/last/model.safetensors" "$dir/model.safetensors")"
}
count "fields and their export" "$(sh "$here/fields.sh" "$olmogen" "$work/fields")"
count "descriptions of config.json" "$(sh "$here/configs.sh" "$olmogen" "$work/configs")"
if [ "$fixtures" = "$here/fixtures" ]; then # the edits, and the optimizers' steps, are of their numbers
	optimizer adamw qwen3_moe-0
	optimizer muon muon 'matrices = muon { scale = "original", lr_scale = 4 }'
	[ "$which" != all ] || optimizer muon_rms muon_rms 'matrices = muon {}'
	count "imports of edited folders" "$(sh "$here/imports.sh" "$here/imports.txt" "$work")"
	count "upcycling" "$(sh "$here/upcycle.sh" "$olmogen" "$work")"
fi
[ $passed -gt 0 ] || fail "nothing was compared"
suite_end
