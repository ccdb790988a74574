#!/bin/sh
# Parameters and FLOPs of the models in models/: published totals, and the field's formula evaluated here.
# Usage: tests/emit/models.sh OLMOGEN
set -u
olmogen=$1
passed=0 failed=0

want() { # what, printed, expected
	if [ "$2" = "$3" ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL $1: $2, expected $3"
	fi
}
billions() { # rounded to three digits after the point
	echo "$1" | awk '{ printf "%.3f", $1 / 1e9 }'
}
# name flags published_total published_active (billions) vocab heads_matrices d layers seq
# heads kv head_dim qk_norm dense_layers dense_hidden experts top_k hidden shared
pin() {
	name=$1 flags=$2 total=$3 active=$4 V=$5 ends=$6 D=$7 L=$8 S=$9
	shift 9
	H=$1 KV=$2 HD=$3 QK=$4 LD=$5 FD=$6 E=$7 K=$8 F=$9
	shift 9
	FS=$1
	plan=$("$olmogen" --plan $flags "models/$name.lua") || failed=$((failed + 1))
	shared=$((ends * V * D + D + L * (2 * D * H * HD + 2 * D * KV * HD + 2 * D + QK) + LD * 3 * D * FD +
		(L - LD) * (D * E + 3 * D * FS)))
	experts=$(((L - LD) * 3 * D * F))
	n=$(echo "$plan" | sed -n 's/ *parameters *\([0-9,]*\)  total/\1/p' | tr -d ,)
	want "$name $flags: parameters" "$n" $((shared + experts * E))
	want "$name $flags: published parameters" "$(billions "$n")" "$total"
	n=$(echo "$plan" | sed -n 's/ *\([0-9,]*\)  active.*/\1/p' | tr -d ,)
	want "$name $flags: active" "$n" $((shared + experts * K))
	want "$name $flags: published active" "$(billions "$n")" "$active"
	flops=$((L * (6 * (2 * D * H * HD + 2 * D * KV * HD) + 6 * H * HD * (S + 1)) + LD * 18 * D * FD +
		(L - LD) * (6 * D * E + 18 * D * F * K + 18 * D * FS) + 6 * D * V))
	want "$name $flags: FLOPs" "$(echo "$plan" | sed -n 's/ *FLOPs *\([0-9,]*\)  a token.*/\1/p' | tr -d ,)" "$flops"
}

# OLMoE-1B-7B (Muennighoff et al. 2024): 6.9B and 1.3B; to three digits from its released configuration
pin olmoe-1b-7b "" 6.919 1.282 50304 2 2048 16 4096 16 16 128 4096 0 0 64 8 1024 0
# Olmo-core 3's eight-layer series, totals as published
for row in "8 4.580 3.171" "32 13.037 3.172" "48 18.674 3.172" "64 24.312 3.173" "128 46.863 3.175"; do
	set -- $row
	pin moe-8l "-D experts=$1" "$2" "$3" 100352 2 4096 8 8192 32 8 128 256 1 20480 "$1" 4 4096 4096
done
pin tiny "" 0.002 0.001 256 1 128 4 128 4 2 32 64 1 384 8 2 128 128

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
