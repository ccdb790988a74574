#!/bin/sh
# --from-hf on every file of configs.txt, which says how. Usage: tests/peer/configs.sh OLMOGEN WORKDIR
set -u
. "$(dirname "$0")/../suite.sh"
olmogen=$(realpath "$1") work=$2 table=$(realpath "$(dirname "$0")/configs.txt")
rm -rf "$work"
mkdir -p "$work/x" && cd "$work" || exit 1
six='"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64, "vocab_size": 256'

bad() { # a block fails once
	[ "$clean" = 0 ] || failed=$((failed + 1))
	clean=0
	echo "FAIL $name: $1"
}
run() { # the command, once for a block, when the first line about it comes
	[ "$status" = none ] || return
	# shellcheck disable=SC2086 # options are words
	"$olmogen" --from-hf=x $options >out.lua 2>err
	status=$?
	# one line, in which \n stands for a line's end
	said=$(cat out.lua err | sed ':a;N;$!ba;s/\n/\\n/g')
}
there_and_back() { # what is described can be exported, and that describes the same
	rm -rf tree
	"$olmogen" --emit-only --target=cpu -o tree out.lua >/dev/null 2>err || bad "it is not emitted: $(head -n 2 err)"
	mkdir -p tree/x
	# the text of a C string
	sed -n '/^static const char hf_config/,/;$/p' tree/src/params.c 2>/dev/null |
		sed '1d; s/^[^"]*"//; s/";*$//; s/\\n$/@/; s/\\"/"/g' | tr -d '\n' | tr '@' '\n' >tree/x/config.json
	"$olmogen" --from-hf=tree/x >back.lua 2>err && [ ! -s err ] || bad "its export: $(head -n 2 err)"
	# all but the family and the longest sequence, which the model does not have
	for f in out back; do sed '1d; s/sequence_length = .*//; /^  target = /d; s/micro = .*//' $f.lua >$f.same; done
	cmp -s out.same back.same || bad "its export describes another model: $(diff out.same back.same | head -n 4)"
}
finish() { # what holds for every block
	[ "$name" ] || return
	run
	if [ $status = 0 ] && [ $refused = 0 ]; then
		there_and_back
	elif [ $refused = 1 ]; then
		[ $status != 0 ] && [ $status -lt 3 ] && [ ! -s out.lua ] || bad "not refused, status $status"
	else
		bad "status $status: $(head -n 2 err)"
	fi
	passed=$((passed + clean))
}

name='' status=none refused=0
while IFS= read -r line; do
	text=${line#??}
	case $line in
	'== '*)
		finish
		name=${line#== } status=none options='' refused=0 clean=1
		;;
	'{'*) printf '%s\n' "$line" | sed "s/SMALL/\"num_hidden_layers\": 4, $six/; s/SIX/$six/" >x/config.json ;;
	'$ '*) options=$text ;;
	'+ '* | '? '* | '! '* | '- '*) run ;;
	esac
	case $line in
	'! '*) refused=1 ;;
	esac
	case $line in
	'+ '* | '? '* | '! '*) case $said in *"$text"*) ;; *) bad "says no '$text': $(head -n 3 err)" ;; esac ;;
	'- '*) case $said in *"$text"*) bad "says '$text'" ;; esac ;;
	esac
done <"$table"
finish
# a folder's name becomes a trainer's, which has at most 80 bytes
long=$(printf '%0200d' 0) name="a folder's name" clean=1
mkdir "$long" && echo '{"model_type": "llama", "num_hidden_layers": 1, '"$six"'}' >"$long/config.json"
"$olmogen" --from-hf="$long" >out.lua 2>err && "$olmogen" --plan out.lua >/dev/null 2>err || bad "$(head -n 2 err)"
"$olmogen" --from-hf= >/dev/null 2>err
[ $? = 2 ] && grep -q 'names no folder' err || bad "no name: $(cat err)"
passed=$((passed + clean))
# a file of nothing but unknown keys: some are named, the others counted
name="many unknown keys" clean=1
{
	echo '{"model_type": "llama", "num_hidden_layers": 1, '"$six"
	seq 60000 | sed 's/.*/, "x&": 1/'
	echo '}'
} >x/config.json
"$olmogen" --from-hf=x >out.lua 2>err && [ "$(wc -l <err)" = 21 ] && grep -q 'warning: x/config.json: and 59980 more keys are not known' err ||
	bad "$(wc -l <err) lines, the last: $(tail -n 1 err)"
passed=$((passed + clean))
suite_end
