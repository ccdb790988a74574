#!/bin/sh
# What is exported: a new field of the language does not compile until its row says how, and what no config.json can say is
# refused by name. Usage: tests/peer/fields.sh OLMOGEN WORKDIR
set -u
. "$(dirname "$0")/../suite.sh"
olmogen=$(realpath "$1") src=$(realpath "$(dirname "$0")/../..") work=$2
rm -rf "$work"
mkdir -p "$work"
cp -r "$src/generator" "$work/generator"
sed -i 's/^FIELD(router, weight_scale/FIELD(router, probe, NUM, 0, 1, "0.0", "", "is it exported?")\n&/' \
	"$work/generator/lang/field.def"

compiles() { # name, 0 or 1: what compiling has to give, and what it has to say
	gcc -std=c11 -D_POSIX_C_SOURCE=200809L -fsyntax-only -I"$work/generator" -I"$src/runtime" "$work/generator/emit/hf.c" \
		>"$work/log" 2>&1
	if [ $? = "$2" ] && { [ -z "$3" ] || grep -q "$3" "$work/log"; }; then
		ok
	else
		fail "$1: $(head -n 3 "$work/log")"
	fi
}
compiles "a field that does not say how it is exported" 1 'macro "FIELD" requires 9 arguments, but only 8 given'
sed -i 's/"is it exported?"/ONLY("0", "no architecture has it"), &/' "$work/generator/lang/field.def"
compiles "a field that does" 0 ""

while IFS='|' read -r attention ffn model want; do
	case $attention in '#'*) continue ;; esac
	cat >"$work/model.lua" <<EOF
return trainer {
  name = "t",
  model = transformer {
    vocab_size = 64, d_model = 16, n_layers = 2, sequence_length = 8,
    attention = attention { n_heads = 2, $attention },
    feed_forward = $ffn,
    $model
  },
  batch = batch { micro = 1, global = 1 },
}
EOF
	rm -rf "$work/tree"
	"$olmogen" --emit-only -o "$work/tree" "$work/model.lua" >/dev/null
	# strings that are broken into pieces are one again
	got=$(sed -n 's/.*\\"model_type\\": \\"\([a-z0-9_]*\).*/\1/p; /hf_refusal/{:a; /,$/!{N; ba}; p}' "$work/tree/src/params.c" |
		tr -d '\n\t"' | sed 's/.hf_refusal = //; s/  */ /g; s/,$//')
	if [ "$got" = "$want" ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL $attention|$ffn|$model: $got"
	fi
done <"$(dirname "$0")/fields.txt"
suite_end
