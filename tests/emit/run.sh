#!/bin/sh
# What must hold of emitted trees: the same bytes wherever and however they are made, a tree that builds alone,
# resolved.lua that gives the tree again, --check, stale files.
# Usage: tests/emit/run.sh OLMOGEN OLMOGEN_WITH_SANITIZERS WORKDIR
set -u
. "$(dirname "$0")/../suite.sh"
: "${3:?OLMOGEN OLMOGEN_WITH_SANITIZERS WORKDIR}" # set -u does not end it inside of $(...)
olmogen=$(realpath "$1") san=$(realpath "$2") work=$(realpath -m "$3")
root=$(realpath "$(dirname "$0")/../..")
rm -rf "$work"
mkdir -p "$work"

same() { # name, tree, tree
	diff -r "$2" "$3" >"$work/diff" 2>&1
	status=$?
	[ $status = 0 ] || head -n 5 "$work/diff"
	is "$1" $status
}

cd "$root" || exit 1
for path in models/tiny models/olmoe-1b-7b tests/numeric/eight tests/gold/mixed; do
	model=$(basename $path)
	gen="--target=cpu --emit-only"
	"$olmogen" $gen -o "$work/$model" $path.lua >/dev/null
	is "$model is emitted" $?
	(
		mkdir -p "$work/elsewhere/$(dirname $path)" && cp $path.lua "$work/elsewhere/$path.lua" &&
			cd "$work/elsewhere" &&
			env -i PATH="$PATH" TZ=Asia/Tokyo LC_ALL=tr_TR.UTF-8 HOME=/nowhere USER=nobody \
				"$olmogen" $gen -o "$work/$model-2" "$path.lua" >/dev/null
	)
	same "$model: another folder, time zone, locale, HOME" "$work/$model" "$work/$model-2"
	"$san" $gen -o "$work/$model-3" $path.lua >/dev/null
	same "$model: a build with sanitizers" "$work/$model" "$work/$model-3"
	"$olmogen" $gen -o "$work/$model-4" "$work/$model/model/resolved.lua" >/dev/null
	rm -f "$work/$model-4/model/$model.lua"
	cp $path.lua "$work/$model-4/model/"
	same "$model: resolved.lua gives the tree again" "$work/$model" "$work/$model-4"
done
"$olmogen" --emit-only -D micro=8 -o "$work/auto" models/olmoe-1b-7b.lua >/dev/null &&
	"$olmogen" --emit-only -o "$work/auto-2" "$work/auto/model/resolved.lua" >/dev/null &&
	rm "$work/auto/model/olmoe-1b-7b.lua" && grep -q recompute_b "$work/auto-2/model/resolved.lua"
is "olmoe-1b-7b for a GPU is emitted, with two kinds of layers" $?
same "olmoe-1b-7b for a GPU: resolved.lua gives the tree again" "$work/auto" "$work/auto-2"
lines=$(cat "$work"/olmoe-1b-7b/src/* "$work"/olmoe-1b-7b/inst/* | wc -l)
[ "$lines" -lt 2000 ]
is "olmoe-1b-7b: $lines lines in src/ and inst/, under 2,000" $?

# work and memory grow with the kinds of layers, not with their square, which took 24 GB
cat >"$work/kinds.lua" <<'EOF'
return trainer {
  name = "kinds", target = "cpu",
  model = transformer {
    vocab_size = 256, d_model = 64, n_layers = 1024, sequence_length = 32, attention = attention { n_heads = 4 },
    feed_forward = function(l) return moe { num_experts = 4, top_k = 2, hidden_size = 16 + l } end,
  },
  batch = batch { micro = 2, global = 4 },
}
EOF
(ulimit -v 1000000 && "$olmogen" --dump=emit "$work/kinds.lua" >/dev/null)
is "1024 kinds of layers in 1 GB" $?
"$olmogen" --plan=html "$work/kinds.lua" >"$work/out" 2>&1
[ $? = 1 ] && grep -q "too many kinds of layers for a page" "$work/out"
is "and no page of them" $?

# however many kinds, however long the names: generated lines keep to 100 columns, and what is in brackets together
cat >"$work/long.lua" <<'EOF'
return trainer {
  name = ("n"):rep(80),
  model = transformer {
    vocab_size = 256000, d_model = 8192, n_layers = 48, sequence_length = 8192, norm_placement = "peri",
    attention = function(l) return attention { n_heads = 64, n_kv_heads = 8, qk_norm = "head", bias = "all", window = l % 12 } end,
    feed_forward = function(l)
      return l % 4 == 1 and mlp { hidden_size = 4096 + l, activation = "relu2" } or moe {
        num_experts = 256, top_k = 8, hidden_size = 4096, shared_hidden_size = 2048,
        router = router { normalize = true, weight_scale = 1.2345678901234567, load_balance = 0.012345678901234567, bias_gamma = 0.001 },
      }
    end,
    recompute = recompute { what = arg.what or "none" },
  },
  batch = batch { micro = 16, global = 1024 },
  parallel = parallel { data = arg.data or 1, expert = arg.data or 1, pipeline = arg.pipeline or 1, schedule = "v" },
}
EOF
for flags in "" "-D data=8 -D pipeline=4" "-D what=block" "-D data=2 -D what=experts" "-D pipeline=8 -D what=cheap"; do
	rm -rf "$work/long"
	# shellcheck disable=SC2086 # flags are words
	"$olmogen" --emit-only $flags -o "$work/long" "$work/long.lua" >/dev/null 2>"$work/err" &&
		! awk '/^\t*(\/\*| \*)/ { a = b = $0; if (gsub(/\[/, "", a) != gsub(/\]/, "", b)) print FILENAME ":" FNR }' "$work/long/src/step.c" |
		grep .
	is "12 kinds of layers and more, long names: $flags" $?
done

# wrong usage: status 2, a line that says what, and nothing else
usage() { # text, options
	text=$1
	shift
	"$olmogen" "$@" models/tiny.lua >"$work/out" 2>"$work/err"
	[ $? = 2 ] && [ ! -s "$work/out" ] && [ "$(cat "$work/err")" = "olmogen: error: $text; see olmogen --help" ]
	is "$*: $text" $?
}
targets=$(sed -n 's/^TARGET("\([^"]*\)".*/\1/p' generator/plan/target.def | paste -sd, | sed 's/,/, /g; s/\(.*\), /\1 or /')
usage "--target=x is not known; use $targets" --target=x
usage "--target=cuda:sm90a is not known (did you mean cuda:sm_90a?); use $targets" --target=cuda:sm90a
usage "--target=H200 is not known (did you mean cuda:h200?); use $targets" --target=H200
usage "--target=gpu is not known; use $targets" --target=gpu
usage "--explain= names nothing: --explain=moe is an object, --explain=moe.top_k a field, --explain all of them" --explain=
usage "--target=CPU is not known (did you mean cpu?); use $targets" --target=CPU
usage "--dump=pln (did you mean plan?): the stages are load, check, graph, shard, fuse, plan, emit" --dump=pln
usage "--plan and --check exclude each other" --check --plan
usage "--plan and --dump exclude each other" --plan --dump=graph
usage "--plan and --emit-only exclude each other" --plan --emit-only
usage "--check and --dump exclude each other" --dump=emit --check
usage "--plan and --search exclude each other" --search=8 --plan
usage "--check and --static exclude each other" --static --check
usage "--bundle and --static exclude each other" --static --bundle
usage "--init and --from-hf exclude each other" --init --from-hf=x
usage "--init prints a description on standard output, and takes no models/tiny.lua" --init
usage "--search=0 is not in 1 .. 1048576" --search=0
usage "--search=8x is not in 1 .. 1048576" --search=8x
usage "unknown option --plam (did you mean --plan?)" --plam
usage "unknown option --from_hf=x (did you mean --from-hf?)" --from_hf=x
usage "unknown option --frob" --frob
no_nccl() { # option, target, what trainers of it are
	! "$olmogen" "$1" --target=$2 -o "$work/alone" models/tiny.lua >/dev/null 2>"$work/err" && [ ! -e "$work/alone" ] &&
		grep -qx "olmogen: error: $1 is for trainers of several GPUs, which need NCCL; tiny is of $3" "$work/err"
	is "$1 for a trainer that needs no NCCL" $?
}
no_nccl --bundle cpu CPUs
no_nccl --static cuda:h200 one
missing() { # path, its suggestion
	! "$olmogen" "$1" >/dev/null 2>"$work/err" && [ "$(cat "$work/err")" = "$1: error: can't load the file: No such file or directory$2" ]
	is "$1 is not there$2" $?
}
missing models/tinny.lua "; did you mean models/tiny.lua?"
missing model/tiny "; did you mean models/tiny.lua?"
missing models/elsewhere.lua ""

# what is read is a regular file and has limits: each of these blocked, never ended, or took 20 seconds
rm -rf "$work/odd"
mkdir -p "$work/odd/tree"
refused() { # text, command
	text=$1
	shift
	timeout 10 "$@" >"$work/out" 2>"$work/err"
	[ $? = 1 ] && grep -qF -- "$text" "$work/err"
	is "$text" $?
}
mkfifo "$work/odd/pipe.lua" "$work/odd/tree/manifest.yaml" "$work/odd/config.json"
refused "can't load the file: it is no regular file" "$olmogen" "$work/odd/pipe.lua"
refused "can't load the file: it is no regular file" "$olmogen" /dev/zero
refused "config.json: is a pipe, not a regular file" "$olmogen" --from-hf="$work/odd"
refused "tree holds files, but no manifest.yaml of olmogen's" "$olmogen" --emit-only -o "$work/odd/tree" models/tiny.lua
rm "$work/odd/config.json" "$work/odd/tree/manifest.yaml"
head -c 100000 /dev/zero | tr '\0' '[' | tee "$work/odd/tree/manifest.yaml" | sed 's/^/{"a":/' >"$work/odd/config.json"
refused "config.json: line 1, column 105: more than 100 levels of brackets" "$olmogen" --from-hf="$work/odd"
refused "tree holds files, but no manifest.yaml of olmogen's" "$olmogen" --emit-only -o "$work/odd/tree" models/tiny.lua
truncate -s 100000001 "$work/odd/config.json"
refused "config.json: is larger than 100000000 bytes, the most that is read" "$olmogen" --from-hf="$work/odd"
[ "$("$olmogen" --dump=load models/tiny.lua | head -n 1)" = "-- tiny, as it is given: defaults are not filled in, rules not checked." ]
is "--dump=load does not say that defaults are filled in" $?

# a sweep passes through values beside which other fields mean nothing; resolved.lua does not say them then
"$olmogen" --dump=check models/tiny.lua >"$work/one" && "$olmogen" --dump=check -D pipeline=1 models/tiny.lua >"$work/sweep" &&
	cmp -s "$work/one" "$work/sweep"
is "-D pipeline=1 is the trainer of one rank, whatever the schedule" $?

# only what changed is written
touch -d '2001-01-01' "$work"/tiny/src/*
"$olmogen" --emit-only -o "$work/tiny" models/tiny.lua >/dev/null
[ -z "$(find "$work/tiny/src" -newermt '2002-01-01' -type f)" ]
is "an unchanged file is left alone" $?
"$olmogen" --check -o "$work/tiny" models/tiny.lua >/dev/null 2>&1
is "--check of a fresh tree" $?
echo >>"$work/tiny/src/step.c"
! "$olmogen" --check -o "$work/tiny" models/tiny.lua >/dev/null 2>"$work/err"
is "--check of an edited tree" $?
grep -q 'src/step.c: differs' "$work/err"
is "--check names the file" $?

# a tree that no longer has a kernel loses its instances, and nothing else
cat >"$work/dense.lua" <<'EOF'
return trainer {
  name = "tiny",
  model = transformer {
    vocab_size = 256, d_model = 16, n_layers = 1, sequence_length = 8,
    attention = attention { n_heads = 2 }, feed_forward = mlp { hidden_size = 16 },
  },
  batch = batch { micro = 1, global = 1 },
}
EOF
echo mine >"$work/tiny/notes.txt"
"$olmogen" --emit-only -o "$work/tiny" "$work/dense.lua" >/dev/null
[ ! -e "$work/tiny/inst/route.c" ] && [ -e "$work/tiny/notes.txt" ]
is "stale files go, foreign files stay" $?

for say in --help --version --explain=moe --plan; do
	"$olmogen" $say models/tiny.lua >/dev/full 2>"$work/err"
	[ $? = 1 ] && grep -qF "cannot write to standard output: No space left on device" "$work/err"
	is "$say to a full disk is an error" $?
done

# a generation that ends in the middle, here as it says to a pipe without a reader what it wrote first, is no other's folder
mkfifo "$work/pipe"
(exec 3<>"$work/pipe" 4>"$work/pipe" 3<&- && exec "$olmogen" -v --emit-only -o "$work/ended" models/tiny.lua 2>&4) >/dev/null
[ $? -gt 128 ] && [ "$(find "$work/ended" -type f | wc -l)" = 1 ] &&
	"$olmogen" --emit-only -o "$work/ended" models/tiny.lua >/dev/null && "$olmogen" --check -o "$work/ended" models/tiny.lua
is "a generation that was ended is done again in its folder" $?
rm -rf "$work/ended" && mkdir "$work/ended" && touch "$work/ended/manifest.yaml.tmp" &&
	"$olmogen" --emit-only -o "$work/ended" models/tiny.lua >/dev/null
is "so is one that was ended before its first file" $?

ln -s "$work/not/there" "$work/dangling"
! "$olmogen" --emit-only -o "$work/dangling" models/tiny.lua >/dev/null 2>"$work/err" && grep -qxF "olmogen: error: $work/dangling is a link \
to $work/not/there, which is not there: make that folder, or remove the link" "$work/err"
is "a link to nothing is no folder" $?

# the tree builds with nothing but a compiler, make, libyaml and jansson
cp -r "$work/tiny-2" "$work/alone"
(cd "$work/alone" && env -i "$(command -v make)" -s >"$work/log" 2>&1)
is "the tree builds alone under env -i, without a PATH" $?
[ ! -s "$work/log" ]
is "and without a word" $?
"$work/alone/trainer" selftest >"$work/log"
is "and passes its selftest" $?
! ldd "$work/alone/trainer" >/dev/null 2>&1
is "the trainer is fully static" $?
(cd "$work/alone" && env -i "$(command -v make)" -s install DESTDIR="$work/dest" PREFIX=/opt >/dev/null)
[ -x "$work/dest/opt/bin/trainer" ]
is "make install" $?
(cd "$work/alone" && make help) >"$work/log" 2>&1
for target in $(sed -n 's/^\.PHONY: \(check.*\) help$/\1/p' "$work/alone/Makefile"); do
	grep -q "^make $target " "$work/log" || echo "$target"
done | grep . >"$work/missing"
[ ! -s "$work/missing" ] && grep -q '^make check ' "$work/log"
is "make help lists the targets" $?
at=$(nm "$work/alone/trainer" | awk '$3 == "om_forward" { print $1 }')
line=$(addr2line -e "$work/alone/trainer" "$at" | sed -n 's|^\./src/step\.c:||p')
sed -n "${line:-1}p;$((${line:-1} - 1))p" "$work/alone/src/step.c" | grep -q '^om_forward('
is "debuggers know the trainer's lines" $?
! grep -aqF "$work" "$work/alone/trainer"
is "and no path of the machine is in it" $?
cp -r "$work/tiny-2" "$work/again"
(cd "$work/again" && CCACHE_DISABLE=1 make -s)
cmp -s "$work/alone/trainer" "$work/again/trainer"
is "two builds give the same trainer, byte for byte" $?

# a compiler that cannot build it is named before it has compiled anything
printf '#!/bin/sh\necho "Debian clang version 14.0.6"\n' >"$work/clang-14"
chmod +x "$work/clang-14"
! make -C "$work/again" CC="$work/clang-14" >/dev/null 2>"$work/err" && grep -qxF \
	"make: $work/clang-14 is clang, and trainers need the OpenMP of gcc: install gcc, and make CC=gcc" "$work/err"
is "make CC=clang" $?
(cd "$work/again" && make -s)

# whatever was in the folder before, the next trainer builds there, and of nothing that was made for another
sees() { # name, commands of make -n that must be there, variables of make
	name=$1 want=$2
	shift 2
	(cd "$work/again" && make -n "$@") >"$work/log" 2>&1 && [ "$(grep -c ' -c -o obj/' "$work/log")" = "$want" ]
	is "$name: $want objects are made" $?
}
into() { # options: generates into the same folder
	"$olmogen" --emit-only -o "$work/again" "$@" >/dev/null
}
objects=$(find "$work/again/obj" -name '*.o' | wc -l)
sees "a tree that is built" 0
sees "other flags" "$objects" CFLAGS=-O1
sees "another compiler" "$objects" CC="gcc -m64"
sees "other libraries" "$objects" LDFLAGS=
mv "$work/again/obj/made_with" "$work/made_with"
echo 'obj/inst/rope.o: inst/gone.c' >"$work/again/obj/inst/rope.d"
sees "objects of an older olmogen" "$objects"
mv "$work/made_with" "$work/again/obj/"
into --target=cuda:sm_90a models/tiny.lua
(cd "$work/again" && make -s obj/inst/rope.o obj/runtime/conf.o)
is "cuda after cpu" $?
into -D data=2 -D expert=2 -D micro=4 --target=cpu models/tiny.lua
(cd "$work/again" && make -s obj/inst/rope.o obj/runtime/comm.o)
is "several ranks after cuda" $?
into "$work/dense.lua"
(cd "$work/again" && make -n >/dev/null)
is "other kernels after that" $?
into --target=cpu models/tiny.lua
(cd "$work/again" && make -s)
cmp -s "$work/alone/trainer" "$work/again/trainer"
is "and in the end the first trainer again, byte for byte" $?
(
	cd "$work/alone" && for f in src/*.c; do
		gcc -std=c11 -Wall -Wextra -Wpedantic -Wshadow -Werror -Iruntime -Isrc -fsyntax-only "$f" || exit 1
	done
) 2>"$work/log"
is "src/ is clean C11 under -Wpedantic" $?
for t in "$root"/templates/*.[ch]; do
	gcc -std=c11 -Wall -Wextra -Iruntime -Iruntime/cuda -I"$work/alone/src" -fsyntax-only -x c "$t"
	is "templates/${t##*/} compiles as it stands" $?
done

# a description that needs more than there is: nothing is written
refused() { # name, first line of stderr; nothing is written
	[ ! -e "$work/none" ] && [ "$(head -n 1 "$work/err")" = "$2" ]
	is "$1" $?
}
"$olmogen" --emit-only -o "$work/none" tests/emit/cuda_sizes.lua >/dev/null 2>"$work/err"
[ ! -e "$work/none" ] && cmp -s "$work/err" tests/emit/cuda_sizes.err
is "sizes and ops that a GPU's kernels cannot do are refused, each at its field" $?
"$olmogen" --emit-only -o "$work/none" tests/emit/cuda_needs.lua >/dev/null 2>"$work/err"
[ ! -e "$work/none" ] && cmp -s "$work/err" tests/emit/cuda_needs.err
is "each with the sizes that would do" $?
"$olmogen" --plan tests/emit/cuda_needs.lua >"$work/plan" 2>&1 && [ "$(grep -c '^refused by a build: ' "$work/plan")" = 1 ] &&
	[ "$(tail -n 1 "$work/plan" | grep -o 'cuda_needs.lua:[0-9:]*' | wc -l)" = "$(grep -c error: tests/emit/cuda_needs.err)" ]
is "--plan says so in a line" $?
"$olmogen" --emit-only -o "$work/layers" models/tiny.lua >/dev/null
grep -q 'decode_moe_keys.*layers: 3}' "$work/layers/manifest.yaml" && ! grep -q 'layers: 0}' "$work/layers/manifest.yaml"
is "the manifest counts the layers of every buffer" $?
"$olmogen" --emit-only -D data=16 -D expert=16 -D experts=128 -o "$work/hosts" models/moe-8l.lua >/dev/null 2>"$work/err"
[ $? = 0 ] && ls "$work/hosts/inst" | grep -q expert_far && ! ls "$work/hosts/inst" | grep -qx expert.cu &&
	grep -q '^  blocks between ranks  *512 MiB  of 65,536 rows each' "$work/hosts/PLAN.txt"
is "one set of experts on several hosts' GPUs: kernels that exchange blocks, as the plan says" $?
! make -s B="$work/nolua" HEADERS="stdio.h lua-of-nobody.h" >/dev/null 2>"$work/err" && ! grep -q fatal "$work/err" && grep -qxF \
	"make: gcc finds no lua-of-nobody.h: run 'make deps', which installs what is missing ($work/nolua/headers.log has what gcc said)" "$work/err"
is "a header that is not there: one line, which says make deps" $?
device() { # name, what the plan says of the device, options
	name=$1 want=$2
	shift 2
	"$olmogen" --plan "$@" models/tiny.lua >"$work/plan" 2>&1 && [ "$(sed -n 's/^  device  *//p' "$work/plan")" = "$want" ]
	is "$name: ${want:-no device}" $?
}
device "an architecture" "139 GiB  of an H200, the largest card of sm_90a" --target=cuda:sm_90a
device "a card" "78 GiB  of an H100 SXM (80 GB)" --target=cuda:h100
device "a processor" "" --target=cpu
sed 's/target = "cpu"/target = "cuda:h100", device_memory = 40/' models/tiny.lua >"$work/forty.lua"
"$olmogen" --plan "$work/forty.lua" >"$work/plan" && grep -q '^  device  *40 GiB  by trainer.device_memory$' "$work/plan" &&
	grep -q 'total .* of 40 GiB' "$work/plan"
is "a memory of its own" $?
"$olmogen" --emit-only -o "$work/forty" "$work/forty.lua" >/dev/null
grep -q '\.target = "cuda:h100"' "$work/forty/src/params.c" && grep -q '\.memory = 42949672960,' "$work/forty/src/params.c" &&
	grep -q '^ARCH = 90a$' "$work/forty/Makefile"
is "the trainer knows the card, its memory, and is built for its architecture" $?
# 390 million parameters on a GPU: places of regions, and what is added to them, are under 2^31, their sums beyond
cat >"$work/sums.lua" <<'EOF'
return trainer { name = "sums", target = "cuda:h200",
  model = transformer { vocab_size = 195000, d_model = 1024, n_layers = 1, sequence_length = 512,
    attention = attention { n_heads = 8 }, feed_forward = mlp { hidden_size = 256 }, lm_head = lm_head { tied = false } },
  batch = batch { micro = 1, global = 1 } }
EOF
"$olmogen" --emit-only -o "$work/sums" "$work/sums.lua" >/dev/null &&
	(cd "$work/sums" && gcc -std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -Wall -Wextra -Werror -fsyntax-only \
		-Isrc -Iruntime -Ikernels src/params.c src/step.c src/launch.c) >"$work/err" 2>&1
is "sums of places do not overflow" $?
mkdir "$work/theirs"
echo mine >"$work/theirs/Makefile"
! "$olmogen" --emit-only -o "$work/theirs" models/tiny.lua >/dev/null 2>&1 && [ "$(cat "$work/theirs/Makefile")" = mine ]
is "a folder of other files is left alone" $?

# at a terminal headings are bold; elsewhere, or with NO_COLOR, the text is as in PLAN.txt
cat >"$work/terminal.py" <<'EOF'
import os, pty, sys
out = b""
def read(fd):
    global out
    d = os.read(fd, 4096)
    out += d
    return d
status = pty.spawn(sys.argv[3:], read)
plain = open(sys.argv[1], "rb").read()
assert status == 0, status
text = out.replace(b"\r\n", b"\n")
bold = text.count(b"\x1b[1m")
assert (bold > 2) == (sys.argv[2] == "bold"), bold
assert text.replace(b"\x1b[1m", b"").replace(b"\x1b[0m", b"") == plain, text
EOF
"$olmogen" --plan models/tiny.lua >"$work/plain"
env -u NO_COLOR TERM=xterm python3 "$work/terminal.py" "$work/plain" bold "$olmogen" --plan models/tiny.lua >/dev/null
is "--plan at a terminal has bold headings" $?
NO_COLOR=1 TERM=xterm python3 "$work/terminal.py" "$work/plain" plain "$olmogen" --plan models/tiny.lua >/dev/null
is "--plan with NO_COLOR is plain" $?

# --init: what is asked for within a tenth, a layout that fits, a description that is one
begins() { # least and most parameters, words of the description, options
	least=$1 most=$2 want=$3
	shift 3
	"$olmogen" --init "$@" </dev/null >"$work/init.lua" 2>"$work/err" && "$olmogen" --plan "$work/init.lua" >"$work/plan" &&
		total=$(awk '/^  parameters / { gsub(",", "", $2); print $2; exit }' "$work/plan") &&
		[ "$total" -ge "$least" ] && [ "$total" -le "$most" ] && grep -q -- "$want" "$work/init.lua"
	is "--init $*" $?
}
begins 27000000 33000000 "mlp { hidden_size" -D parameters=30M --target=cpu
begins 6300000000 7700000000 "num_experts = 64" -D parameters=7B-A1B --target=cuda:h200
begins 6300000000 7700000000 "parallel { data = 8, expert = 1, pipeline = 1 }" -D parameters=7B --target=cuda:h200 -D ranks=8
begins 1000000 3000000 "vocab_size = 256" --target=cpu -D parameters=2M-A1M
unfit() { # what is said, options
	want=$1
	shift
	"$olmogen" --init "$@" </dev/null >"$work/out" 2>"$work/err"
	[ $? = 1 ] && [ ! -s "$work/out" ] && grep -qF -- "$want" "$work/err"
	is "--init $*: $want" $?
}
unfit '--init: parameters "7" is not a number like 350M, 7B or 7B-A1B' -D parameters=7
unfit '--init: parameters "1B-A7B" is not a number like' -D parameters=1B-A7B
unfit '--init: ranks "0" is not a whole number from 1' -D ranks=0
unfit '--init: -D size is not known; it takes parameters, ranks, sequence_length, and --target' -D size=7B
unfit 'none of 1 layouts of 1 ranks fits: 1.1' -D parameters=70B --target=cuda:h200

# manual pages and completions know every option and command, and no other; bash's and fish's others are asked for
options=$("$olmogen" --help | grep -oE '^  -(-[a-z-]+|[a-zA-Z])|, --[a-z]+' | tr -d ' ,' | sort -u)
[ "$(sed -nE '/^\.Bl/,/^\.El/s/^\.It (Fl.*)/\1/p' share/man/olmogen.1 | grep -oE 'Fl -?[a-zA-Z-]+|, -[a-z]+' |
	sed 's/^Fl /-/; s/^, /-/' | sort -u)" = "$options" ]
is "olmogen(1) has the options of --help" $?
[ "$(grep -oE "'\*?-[-a-zA-Z]+" share/completion/_olmogen | tr -d "'*" | sed 's/=.*//; s/-$//' | sort -u)" = "$options" ]
is "zsh completes the options of --help" $?
[ "$(sed -nE 's/^complete -c olmogen -(s|l) ([a-zA-Z-]+).*/\1 \2/p' share/completion/olmogen.fish | sed 's/^s /-/; s/^l /--/' | sort -u)" = "$options" ]
is "fish completes the options of --help" $?
commands=$(sed -nE 's/^\t\{ "([a-z]+)", .*/\1/p' runtime/om_main.c | sort -u)
[ "$(sed -nE '/^\.Bl/,/^\.El/s/^\.It Cm ([a-z]+)$/\1/p' share/man/trainer.1 | sort -u)" = "$commands" ]
is "trainer(1) has the commands" $?
completes() { # what is offered for words
	want=$1
	shift
	[ "$(cd "$(dirname "$olmogen")" && PATH=$PWD:$PATH bash -c '. "$0"; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _olmogen
		echo "${COMPREPLY[*]}"' "$root/share/completion/olmogen.bash" "$@")" = "$want" ]
	is "bash completes $*" $?
}
completes "--search" olmogen --se
completes "h100 h100-nvl h200" olmogen --target = cuda : h
completes "graph" olmogen --dump = g
completes "moe" olmogen --explain = mo

suite_end
