#!/bin/sh
# Builds, for each set of options of model.lua, what dump.c needs: one program for the GPU, one for the CPU in bf16, one
# for the CPU in fp32; and small trainers. No GPU needed. Usage: tests/gpu/models.sh OLMOGEN OUT
set -eu
olmogen=$(realpath "$1") out=$2
cd "$(dirname "$0")/../.."
mkdir -p "$out"
out=$(realpath "$out")

dump() { # NAME TREE LIBS...: links dump.c with a tree
	name=$1 tree=$2
	shift 2
	gcc -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fopenmp -I"$tree/src" -I"$tree/runtime" -o "$out/$name" \
		tests/gpu/dump.c $(ls "$tree"/obj/src/*.o "$tree"/obj/inst/*.o "$tree"/obj/runtime/*.o |
			grep -v src/main.o) "$@"
}
variant() { # NAME -D...
	v=$1
	shift
	"$olmogen" -o "$out/tree.$v.gpu" "$@" -D target=cuda:sm_90a tests/gpu/model.lua >/dev/null
	"$olmogen" -o "$out/tree.$v.cpu" "$@" tests/gpu/model.lua >/dev/null
	"$olmogen" -o "$out/tree.$v.fp32" "$@" -D weights=fp32 tests/gpu/model.lua >/dev/null
	dump "$v.gpu" "$out/tree.$v.gpu" -Wl,-Bstatic -lyaml -ljansson -Wl,-Bdynamic -lm -ldl
	dump "$v.cpu" "$out/tree.$v.cpu" -Wl,-Bstatic -lyaml -ljansson -Wl,-Bdynamic -lm
	dump "$v.fp32" "$out/tree.$v.fp32" -Wl,-Bstatic -lyaml -ljansson -Wl,-Bdynamic -lm
	cp "$out/tree.$v.gpu/trainer" "$out/$v.trainer"
	cp "$out/tree.$v.cpu/trainer" "$out/$v.cputrainer"
	rm -rf "$out/tree.$v.gpu" "$out/tree.$v.cpu" "$out/tree.$v.fp32"
}
ranks() { # NAME -D...: a trainer whose step has four microbatches of one rank, in some layout
	t=$1
	shift
	"$olmogen" -o "$out/tree.$t" "$@" -D global=12 tests/gpu/model.lua >/dev/null
	cp "$out/tree.$t/trainer" "$out/$t"
	rm -rf "$out/tree.$t"
}
variant plain
"$(dirname "$olmogen")/tests/streams" tests/gpu/model.lua cuda:sm_90a 2 "$out/tree.streams" >/dev/null
cp "$out/tree.streams/trainer" "$out/streams.trainer"
rm -rf "$out/tree.streams"
variant mixed -D qk=full -D bias=all -D window=64 -D score=sigmoid -D groups=2 -D k=3 -D placement=peri \
	-D balance=sequence -D tied=true -D head_z=1e-4 -D head_dim=64 -D act=geglu -D nope=true -D vocab=503 -D documents=mask
variant edges -D experts=1 -D k=1 -D kv=1 -D seq=77 -D shared=0 -D act=relu2 -D emb_scale=2 -D emb_norm=true \
	-D normalize=false -D recompute=block -D placement=post -D vocab=501
variant routed -D gamma=0.01 -D routing=random -D head_dim=64 -D moments=bf16
variant all -D experts=6 -D k=6 -D score=topk_softmax -D kv=6 -D qk=none -D recompute=experts -D documents=mask
variant eight -D d=256 -D hidden=384 -D shared=128 -D k=3 -D eight=fp8_block -D recompute=experts
variant floor -D d=256 -D hidden=160 -D shared=0 -D eight=mxfp8 -D scale=floor
ranks whole.trainer -D target=cuda:sm_90a
ranks dp2.trainer -D target=cuda:sm_90a -D data=2
ranks apart.trainer -D target=cuda:sm_90a -D data=2 -D apart=true
ranks pp2.trainer -D target=cuda:sm_90a -D pipeline=2
ranks gpipe.trainer -D target=cuda:sm_90a -D pipeline=2 -D schedule=gpipe
ranks four.trainer -D target=cuda:sm_90a -D data=2 -D pipeline=2
ranks ep2.trainer -D target=cuda:sm_90a -D data=2 -D expert=2
ranks epapart.trainer -D target=cuda:sm_90a -D data=2 -D expert=2 -D apart=true
ranks cut.trainer -D target=cuda:sm_90a -D data=2 -D expert=2 -D capacity=0.9 -D balance=global
for t in "muon" "dp2muon -D data=2" "ep2muon -D data=2 -D expert=2"; do
	# shellcheck disable=SC2086 # words
	set -- $t
	name=$1
	shift
	ranks "$name.trainer" -D target=cuda:sm_90a -D muon=0.95 -D moments=bf16 "$@"
done
ranks far.trainer -D target=cuda:h100-nvl -D data=4 -D expert=4
ranks farcut.trainer -D target=cuda:h100-nvl -D data=4 -D expert=4 -D pair=0.9
ranks farcut.cputrainer -D data=4 -D expert=4 -D pair=0.9
ranks dp2.cputrainer -D data=2
ranks cut.cputrainer -D data=2 -D expert=2 -D capacity=0.9 -D balance=global
gcc -std=c11 -O2 -Wall -Wextra -Werror -o "$out/compare" tests/gpu/compare.c -lm
