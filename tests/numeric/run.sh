#!/bin/sh
# Builds model_check and decode_check against several variants of model.lua, bf16_check against some in bf16 and
# fp32, and eight_check against some of eight.lua, and runs each on a seed: variants that have every value of every option between them, or all, on two seeds.
# Usage: [CFLAGS=-O1] tests/numeric/run.sh OLMOGEN WORKDIR [all]
set -u
. "$(dirname "$0")/../suite.sh"
olmogen=$1 work=$2 which=${3:-few}
seeds=1
[ "$which" != all ] || seeds="1 77"
here=$(dirname "$0")

# A tree in $work/NAME and checks linked with it: name, olmogen's flags, the checks, what they are told, the model
build() {
	dir=$work/$1
	cflags="${CFLAGS:--O1} -fsanitize=undefined -fno-sanitize-recover=all"
	"$olmogen" $2 --emit-only -o "$dir" "$here/${5:-model}.lua" >/dev/null &&
		make -s -j2 -C "$dir" CFLAGS="$cflags" LDFLAGS="-fsanitize=undefined" >/dev/null &&
		# tensor, offset, bytes, stride, layers of the bf16 numbers that lie somewhere of their own
		grep 'type: "bf16' "$dir/manifest.yaml" | grep -v 'place: "stream"\|region: "scratch", place: "offset"\|: "decode_\|: "prompt_' |
			sed 's/^- {tensor: //; s/, type.*offset: /, /; s/[a-z]*: //g; s/^/{ /; s/}$/ },/' >"$dir/buffers.h" &&
		for check in $3; do
			gcc -std=c11 -D_POSIX_C_SOURCE=200809L -O1 -Wall -Wextra -Werror -fopenmp $4 -I"$here/../../kernels" -I"$dir" -I"$dir/src" \
				-I"$dir/runtime" -fsanitize=undefined -o "$dir/$check" "$here/$check.c" \
				$(ls "$dir"/obj/src/*.o "$dir"/obj/inst/*.o "$dir"/obj/runtime/*.o | grep -v src/main.o) \
				-lyaml -ljansson -lm || return 1
		done
}
# variant: olmogen's flags : what the test is told : the checks, where not all
variant() {
	build "$1" "$2" "${4:-model_check decode_check}" "$3" || { fail "$1: does not build"; return; }
	for seed in $seeds; do
		for check in ${4:-model_check decode_check}; do
			count "$1, $check, seed $seed" "$("$work/$1/$check" $seed)"
		done
	done
}
# decode alone, longer and not in fp64
decode() {
	build "$1" "$2 -D seq=70" decode_check "" || { fail "$1: does not build"; return; }
	for seed in $seeds; do
		count "$1, seed $seed" "$("$work/$1/decode_check" $seed)"
	done
}
# the same in bf16, against fp32
rounded() {
	build "$1-fp32" "$2 -D weights=fp32" bf16_check "" && build "$1" "$2 -D weights=bf16" bf16_check "" ||
		{ fail "$1: does not build"; return; }
	for seed in $seeds; do
		"$work/$1-fp32/bf16_check" $seed "$work/$1/fp32"
		count "$1, seed $seed" "$("$work/$1/bf16_check" $seed "$work/$1/fp32")"
	done
}
# experts in 8 bits: the rest of olmogen's flags, what the test is told
eight() {
	build "$1" "$2" eight_check "$3" eight || { fail "$1: does not build"; return; }
	for seed in $seeds; do
		count "$1, seed $seed" "$("$work/$1/eight_check" $seed)"
	done
}

big() { # at full length alone
	[ "$which" != all ] || "$@"
}

big variant plain "" ""
variant full "-D qk=full -D normalize=true -D shared=6 -D tied=true -D rope=linear -D documents=mask" \
	"-DQK=1 -DNORMALIZE=1 -DSHARED=6 -DTIED=1 -DROPE=1 -DDOCUMENTS=1"
variant head "-D rows=3 -D prompt=4 -D qk=head -D shared=3 -D k=6 -D dense=-1 -D kv=1 -D normalize=true -D window=4" \
	"-DQK=2 -DNORMALIZE=1 -DSHARED=3 -DTOP_K=6 -DDENSE=-1 -DKV=1 -DWINDOW=4"
variant top1 "-D qk=head -D k=1 -D dense=1 -D kv=6 -D tied=true -D clip=0 -D placement=post -D act=geglu" \
	"-DQK=2 -DTOP_K=1 -DDENSE=1 -DKV=6 -DTIED=1 -DPLACEMENT=1 -DACT=1"
variant peri "-D prompt=3 -D placement=peri -D bias=all -D act=relu2 -D shared=5 -D emb_scale=3.5 -D emb_norm=true -D window=1" \
	"-DPLACEMENT=2 -DBIAS=2 -DACT=2 -DSHARED=5 -DEMB_SCALE=3.5 -DEMB_NORM=1 -DWINDOW=1"
variant sigmoid "-D rows=2 -D prompt=9 -D score=sigmoid -D normalize=true -D weight_scale=2.5 -D groups=3 -D top_groups=2 -D k=3 -D bias=qkv -D rope=yarn \
	-D balance=sequence -D documents=mask" \
	"-DSCORE=1 -DNORMALIZE=1 -DWEIGHT_SCALE=2.5 -DGROUPS=3 -DTOP_GROUPS=2 -DTOP_K=3 -DBIAS=1 -DROPE=2 -DBALANCE=2 -DDOCUMENTS=1"
variant topk "-D score=topk_softmax -D k=3 -D weight_scale=0.5 -D rope=llama3 -D rope2=nope -D head_z=0.3 -D documents=mask" \
	"-DSCORE=2 -DTOP_K=3 -DWEIGHT_SCALE=0.5 -DROPE=3 -DNOPE=1 -DHEAD_Z=0.3 -DDOCUMENTS=1"
big variant groups "-D score=sigmoid -D groups=6 -D top_groups=3 -D rope=linear -D act=geglu -D shared=4 -D head_z=0.1 -D emb_scale=0.5" \
	"-DSCORE=1 -DGROUPS=6 -DTOP_GROUPS=3 -DROPE=1 -DACT=1 -DSHARED=4 -DHEAD_Z=0.1 -DEMB_SCALE=0.5"
big rounded bf16 "-D k=6 -D qk=head -D shared=5 -D normalize=true"
rounded bf16_all "-D k=6 -D qk=full -D placement=peri -D bias=all -D act=geglu -D score=sigmoid -D emb_norm=true -D tied=true"
big decode decode "-D weights=fp32 -D qk=head -D window=5 -D rope=yarn -D shared=5 -D normalize=true -D placement=post \
	-D emb_scale=3.5 -D emb_norm=true -D tied=true"
decode decode_peri "-D rows=5 -D prompt=16 -D weights=fp32 -D qk=full -D bias=all -D kv=1 -D score=sigmoid -D k=3 -D dense=1 -D placement=peri \
	-D rope=llama3 -D rope2=nope -D window=64"
decode decode_bf16 "-D rows=2 -D prompt=70 -D weights=bf16 -D k=6 -D qk=head -D shared=5 -D normalize=true -D window=9"
variant biased "-D score=sigmoid -D normalize=true -D groups=3 -D top_groups=2 -D k=3 -D gamma=0.25 -D shared=4 -D dense=-1" \
	"-DSCORE=1 -DNORMALIZE=1 -DGROUPS=3 -DTOP_GROUPS=2 -DTOP_K=3 -DGAMMA=0.25 -DSHARED=4 -DDENSE=-1"
big variant biased_softmax "-D k=3 -D gamma=0.125" "-DTOP_K=3 -DGAMMA=0.125"
big variant biased_topk "-D score=topk_softmax -D gamma=0.125 -D dense=1" "-DSCORE=2 -DGAMMA=0.125 -DDENSE=1"
# decode chooses by the scores whatever training does
variant random "-D routing=random -D score=sigmoid -D groups=3 -D top_groups=2 -D k=3" \
	"-DROUTING=1 -DSCORE=1 -DGROUPS=3 -DTOP_GROUPS=2 -DTOP_K=3" model_check
big variant random_topk "-D routing=random -D score=topk_softmax -D dense=-1 -D window=4" \
	"-DROUTING=1 -DSCORE=2 -DDENSE=-1 -DWINDOW=4" model_check
variant uniform "-D routing=uniform -D k=4 -D normalize=true -D shared=5 -D balance=sequence -D window=4 \
	-D documents=mask" "-DROUTING=2 -DTOP_K=4 -DNORMALIZE=1 -DSHARED=5 -DBALANCE=2 -DWINDOW=4 \
	-DDOCUMENTS=1" model_check
eight mxfp8 "-D experts=mxfp8 -D scale=floor -D dw=mxfp8 -D recompute=experts" "-DFORWARD=32 -DDX=32 -DDW=1 -DBY_FLOOR=1"
eight fp8_block "-D experts=fp8_block" "-DFORWARD=128 -DDX=128 -DDW=0"
big eight mxfp8_plain "-D experts=mxfp8 --no-fuse" "-DFORWARD=32 -DDX=32 -DDW=0"
big eight fp8_mixed "-D experts=fp8_block -D dx=mxfp8 -D scale=floor -D recompute=rows" "-DFORWARD=128 -DDX=32 -DDW=0 -DBY_FLOOR=1"
suite_end
