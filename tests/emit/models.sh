#!/bin/sh
# Parameters and FLOPs of the models in models/: published totals, and the field's formula evaluated here.
# Usage: tests/emit/models.sh OLMOGEN
set -u
. "$(dirname "$0")/../suite.sh"
olmogen=$1

billions() { # rounded to three digits after the point
	echo "$1" | awk '{ printf "%.3f", $1 / 1e9 }'
}
# name flags published_total published_active (billions) vocab heads_matrices d layers seq
# heads kv head_dim qk_norm dense_layers dense_hidden experts top_k hidden shared norms
pin() {
	name=$1 flags=$2 total=$3 active=$4 V=$5 ends=$6 D=$7 L=$8 S=$9
	shift 9
	H=$1 KV=$2 HD=$3 QK=$4 LD=$5 FD=$6 E=$7 K=$8 F=$9
	shift 9
	FS=$1 norms=$2 # norms of width d outside of the layers
	plan=$("$olmogen" --plan $flags "models/$name.lua") || fail "$name $flags"
	shared=$((ends * V * D + norms * D + L * (2 * D * H * HD + 2 * D * KV * HD + 2 * D + QK) + LD * 3 * D * FD +
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
pin olmoe-1b-7b "" 6.919 1.282 50304 2 2048 16 4096 16 16 128 4096 0 0 64 8 1024 0 1
# Olmo-core 3's eight-layer series, totals as published
for row in "8 4.580 3.171" "32 13.037 3.172" "48 18.674 3.172" "64 24.312 3.173" "128 46.863 3.175"; do
	set -- $row
	pin moe-8l "-D experts=$1" "$2" "$3" 100352 2 4096 8 8192 32 8 128 256 1 20480 "$1" 4 4096 4096 2
done
pin tiny "" 0.002 0.001 256 1 128 4 128 4 2 32 64 1 384 8 2 128 128 1

# the other descriptions: totals as printed, which round to the published ones named beside them
total() { # name flags total active
	plan=$("$olmogen" --plan $2 "models/$1.lua") || fail "$1 $2"
	want "$1 $2: parameters" "$(echo "$plan" | sed -n 's/ *parameters *\([0-9,]*\)  total/\1/p')" "$3"
	want "$1 $2: active" "$(echo "$plan" | sed -n 's/ *\([0-9,]*\)  active.*/\1/p')" "$4"
}
total qwen3-30b-a3b "" 30,532,122,624 3,353,032,704           # 30.5B, 3.3B
total mixtral-8x7b "" 46,702,792,704 12,879,925,248           # 46.7B, 12.9B
total olmo3-7b "" 7,298,011,136 7,298,011,136                 # 7.3B
total llama3-8b "" 8,030,261,248 8,030,261,248                # 8.03B
total olmo3-moe "-D size=tiny" 12,912,173,056 1,587,552,256   # 12.912B, 1.588B
total olmo3-moe "-D size=small" 40,863,183,872 4,294,095,872  # 40.863B, 4.294B
total olmo3-moe "-D size=medium" 137,272,594,176 7,379,193,600          # 137.273B, 7.379B
total olmo3-moe "-D size=large" 295,989,153,536 15,138,557,696          # 295.989B, 15.139B
total olmo3-moe "-D size=ultra" 1,200,484,519,680 58,358,763,264        # 1200.485B, 58.359B
total olmo3-moe "-D size=ultra -D experts=256 -D expert=32 -D micro=2" 2,379,501,014,784 58,406,735,616

# a deep pipeline is planned in the memory of its actions, six million here, with little beside them
deep="--plan -D pipeline=256 -D layers=256 -D microbatches=4096 tests/unit/layout.lua"
want "a deep pipeline in 400 MB" "$(ulimit -v 400000 && "$olmogen" $deep | sed -n "s/.*bubble *\([0-9.]*\) %.*/\1/p")" 5.9
suite_end
