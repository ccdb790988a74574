#!/bin/sh
# Dense models that become models of experts, and experts that become more. Usage: tests/peer/upcycle.sh OLMOGEN WORKDIR
# WORKDIR has the trees that run.sh built there, what they imported and exported.
set -u
. "$(dirname "$0")/../suite.sh"
olmogen=$(realpath "$1")
cd "$2" || exit 1
python3 -c 'import struct; open("ids", "wb").write(struct.pack("<4000H", *((i * i + i // 7) % 61 for i in range(4000))))'
printf 'data: { paths: [ids], format: uint16 }\nsteps: 1\nlr: { peak: 1e-3 }\neval: { paths: [ids], format: uint16 }\n' >up.yaml
hidden=$(sed -n 's/.*mlp { hidden_size = \([0-9]*\).*/\1/p' qwen3-0.lua | head -n 1)
trainer() { # NAME FIELDS [WIDTH] of moe; where qwen3-0 is dense
	sed "s/mlp { hidden_size = $hidden/moe { hidden_size = ${3:-$hidden}, $2/" qwen3-0.lua >"$1.lua"
	"$olmogen" --emit-only -o "$1" "$1.lua" >"$1.log" 2>&1 &&
		make -s -j2 -C "$1" CFLAGS="${CFLAGS:--O1}" LDFLAGS= >>"$1.log" 2>&1 || fail "$1: $(head -n 3 "$1.log")"
}
loss() { # TRAINER CHECKPOINTS: to all digits
	rm -f up.jsonl
	"$1/trainer" eval up.yaml checkpoint.dir="$2" log.metrics=up.jsonl >up.out 2>&1 || tail -n 1 up.out
	sed -n 's/.*"eval_loss": *\([0-9.e+-]*\).*/\1/p' up.jsonl
}
near() { # NAME TRAINER CHECKPOINTS MOST LEAST: as far from the dense model's loss as that, in parts of it
	is=$(loss "$2" "$3")
	echo "$dense $is $4 $5" | awk '{ d = ($2 - $1) / $1; if (d < 0) d = -d; exit !($2 > 0 && d <= $3 && d >= $4) }' && ok ||
		fail "$1: the loss is $is, the dense model's $dense"
}
import() { # NAME TRAINER FROM TO OPTIONS: and what it says
	rm -rf "$4"
	name=$1 with=$2
	shift 2
	"$with/trainer" import "$@" >up.out 2>&1 && ok || fail "$name: $(tail -n 1 up.out)"
}
said() { grep -q -- "$1" up.out && ok || fail "says no '$1': $(cat up.out)"; }
no() { # TRAINER FROM TEXT OPTIONS: refused
	text=$3
	"$1/trainer" import "$2" up.no $4 >up.out 2>&1
	[ $? = "${5:-1}" ] && [ ! -e up.no ] && ok || fail "$text: not refused"
	said "$text"
}
weights() { # CHECKPOINTS NAME: the bytes of one tensor
	python3 - "$1/step-000000" "$2" <<'PY'
import json, struct, sys
d, name = sys.argv[1:]
f = open(d + "/" + json.load(open(d + "/index.json"))["tensors"][name]["file"], "rb").read()
n = struct.unpack("<Q", f[:8])[0]
a, b = json.loads(f[8:8 + n])[name]["data_offsets"]
print(f[8 + n + a:8 + n + b].hex())
PY
}

trainer few 'num_experts = 3, top_k = 2, router = router { normalize = true }'
trainer more 'num_experts = 6, top_k = 4, router = router { normalize = true }'
dense=$(loss qwen3-0 qwen3-0/in)
expert=model.layers.0.mlp.experts
import "dense layers" few qwen3-0/out up.a upcycle=0
said 'experts are copies of dense layers with noise of 0; routers are fresh'
near "dense layers, no noise" few up.a 1e-6 0
[ "$(weights up.a $expert.0.up_proj.weight)" = "$(weights up.a $expert.2.up_proj.weight)" ] && ok || fail "copies differ"
import "of a checkpoint" few qwen3-0/in up.b upcycle=0
cmp -s up.a/step-000000/index.json up.b/step-000000/index.json && ok || fail "a checkpoint and its export give other weights"
import "with noise" few qwen3-0/out up.c upcycle=0.1 seed=3
near "with noise" few up.c 0.2 1e-5
[ "$(weights up.c $expert.0.up_proj.weight)" != "$(weights up.c $expert.2.up_proj.weight)" ] && ok || fail "noise is the same"
import "again" few qwen3-0/out up.d upcycle=0.1 seed=3
cmp -s up.c/step-000000/index.json up.d/step-000000/index.json && ok || fail "another time other weights"
import "another seed" few qwen3-0/out up.d upcycle=0.1 seed=4
[ "$(weights up.c $expert.0.up_proj.weight)" != "$(weights up.d $expert.0.up_proj.weight)" ] && ok || fail "the seed changes nothing"
[ "$(weights up.c model.layers.0.mlp.gate.weight)" != "$(weights up.d model.layers.0.mlp.gate.weight)" ] && ok ||
	fail "the router is not the seed's"

# experts half as wide: two are a copy, and are chosen together
trainer fine 'num_experts = 6, top_k = 4, router = router { normalize = true }' $((hidden / 2))
import "parts of dense layers" fine qwen3-0/out up.h upcycle=0
said 'experts are parts of copies of dense layers, 2 of each, with noise of 0; routers are fresh, and alike for the parts of a copy'
near "parts of dense layers, no noise" fine up.h 1e-6 0
[ "$(weights up.h $expert.0.down_proj.weight)" = "$(weights up.h $expert.4.down_proj.weight)" ] &&
	[ "$(weights up.h $expert.0.down_proj.weight)" != "$(weights up.h $expert.1.down_proj.weight)" ] && ok || fail "other parts"
import "parts with noise" fine qwen3-0/in up.i upcycle=0.1
near "parts of dense layers with noise" fine up.i 0.2 1e-5
trainer odd 'num_experts = 5, top_k = 3' $((hidden / 2))
no odd qwen3-0/out "moe.hidden_size = $((hidden / 2)) has to be that or a part of it, and moe.num_experts = 5 a multiple" upcycle=0

# experts that become more, of a checkpoint and of its export: what was chosen is chosen twice
was=$(loss few up.c)
import "more experts" more up.c up.e upcycle=0
said 'experts, 2 of each, are copies with noise of 0'
[ "$(loss more up.e | cut -c 1-8)" = "$(echo "$was" | cut -c 1-8)" ] && ok || fail "the loss was $was, is $(loss more up.e)"
rm -rf up.hf && few/trainer export up.hf up.c >/dev/null && import "of an export" more up.hf up.f upcycle=0
cmp -s up.e/step-000000/index.json up.f/step-000000/index.json && ok || fail "a checkpoint and its export give other experts"
import "more, with noise" more up.c up.g upcycle=0.01
[ "$(weights up.g model.layers.0.mlp.gate.weight)" != "$(weights up.e model.layers.0.mlp.gate.weight)" ] && ok ||
	fail "no choice between copies"

no qwen3-0 qwen3-0/out "this trainer's model has no experts; leave out upcycle=" upcycle=0
no few up.c "nothing in it becomes more; leave out upcycle=" upcycle=0
no few up.e "has 6 experts, the trainer's model 3, which has to be a multiple" upcycle=0
no more up.hf 'has num_experts = 3, the trainer' ''
no few mixtral-0/in 'only experts, and what is said of training, may differ' upcycle=0
cp -r qwen3-0/out up.heads && sed 's/"num_attention_heads": 2/"num_attention_heads": 6/' qwen3-0/out/config.json >up.heads/config.json
no few up.heads "num_attention_heads = 6, the trainer's model 2" upcycle=0
no few qwen3-0/out 'import takes upcycle=NOISE, from 0 to 1, and with it seed=N' seed=3 2
no few qwen3-0/out 'import takes upcycle=NOISE, from 0 to 1, and with it seed=N' upcycle=2 2
trainer narrow 'num_experts = 2, top_k = 1, shared_hidden_size = 8'
no narrow qwen3-0/in 'has no shared expert, the trainer.s model has one' upcycle=0
suite_end
