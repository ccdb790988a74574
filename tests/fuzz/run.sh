#!/bin/sh
# The harnesses of what reads files from outside: import (safetensors with an index), config (--from-hf), run_yaml, data, lua, tokenizer.
# Usage: run.sh check WORK             each seed and 2,000 changes of them, by gcc and its sanitizers; prints "N passed, ..."
#        run.sh fuzz WORK SECONDS      libFuzzer, so long a harness; SEEDS/NAME begin, WORK/NAME.corpus grows
set -u
. "$(dirname "$0")/../suite.sh"
cd "$(dirname "$0")/../.." || exit 2
what=$1 work=$2 seconds=${3:-60}
names='import config run_yaml data lua tokenizer'
mkdir -p "$work"
work=$(realpath "$work")
FUZZ_DIR=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)")
export FUZZ_DIR LC_ALL=C ASAN_OPTIONS=detect_leaks=0:handle_abort=1
trap 'rm -rf "$FUZZ_DIR"' EXIT

if [ "$what" = fuzz ]; then
	san='-O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all'
	cc="clang -std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -w -Iruntime -idirafter $(gcc -print-file-name=include)" # omp.h
	link=-fsanitize=fuzzer gen=$work/gen more=
	echo 'int LLVMFuzzerTestOneInput(const char *p, long n) { return !p && n; }' >"$work/try.c"
	clang -fsanitize=fuzzer,address "$work/try.c" -o "$work/try" 2>"$work/try.log" || {
		cat "$work/try.log" >&2
		echo "make fuzz needs clang with its libFuzzer: install clang and its run-time libraries (libclang-rt-14-dev)" >&2
		exit 1
	}
	make -s CC=clang WARN=-w san_flags="$san" "B=$gen" "$gen/olmogen" || exit 1
else
	link= gen=build/san more=tests/fuzz/driver.c # what make check has built
fi
wrap=-Wl
for f in malloc calloc realloc free om_comm_abort om_ckpt_open om_arena_host; do wrap=$wrap,--wrap=$f; done
heap=-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free

# ---- build ----
rm -rf "$work"/*.o "$work/r" # also of sources that are no longer there
mkdir "$work/r"
{
	compiles "$work/r" "$san" one | grep -v /om_main.c
	echo "$cc $san -w -Dmain=model_main -DTEST_V=16 -c tests/unit/runtime_model.c -o $work/model.o"
	for f in tests/fuzz/*.c; do echo "$cc $san -w -Igenerator -c $f -o $work/$(basename "$f" .c).o"; done
} | side_by_side || suite_stop "does not compile"
[ -z "$more" ] || more=$work/driver.o
objects=$(ls generator/*.c generator/*/*.c | grep -vE '/(main|embed)\.c$' | sed "s|^|$gen/|; s|c$|o|")
generator="$objects $(ls "$gen"/runtime/*.o "$gen"/embedded.o) -llua5.4 -lyaml -ljansson -lm -ldl"
trainer="$work/r/*.o -lyaml -ljansson -lm -lgomp"
for h in $names; do
	case $h in
	import) with="$work/model.o $trainer $wrap" ;;
	run_yaml | tokenizer) with="$trainer $heap" ;;
	data) with="$trainer $heap -Wl,--wrap=om_comm_abort" ;;
	*) with="$generator $heap" ;;
	esac
	# shellcheck disable=SC2086 # lists of words
	$cc $san $link "$work/$h.o" "$work/common.o" $more $with -o "$work/fuzz_$h" || { fail "$h does not link"; continue; }
done

# ---- run ----
# seeds: those of the harness alone, and files of other tests
rm -rf "$work/seeds"
cp -r tests/fuzz/seeds "$work/seeds"
cp models/tiny.lua tests/err/decoys.lua tests/err/constructor_string_long.lua "$work/seeds/lua"
for f in duplicate_dotted many mapping utf8; do cp "tests/runtime/$f.yaml" "$work/seeds/run_yaml"; done
for h in $names; do
	rm -f "$work/fuzz_$h.crash"
	if [ "$what" = check ]; then
		if "$work/fuzz_$h" "$work/seeds/$h" 2000 >"$work/$h.log" 2>&1; then
			ok
			echo "$h: $(tail -n 1 "$work/$h.log")"
		else
			fail "$h; the input is $work/fuzz_$h.crash"
			head -n 30 "$work/$h.log"
		fi
		continue
	fi
	mkdir -p "$work/$h.corpus" "$work/$h.found"
	# the generator frees nothing: each child of -fork ends when its memory is large, and that is no fault
	case $h in
	config | lua) mode='-fork=1 -ignore_ooms=1' ;;
	*) mode=-print_final_stats=1 ;;
	esac
	# shellcheck disable=SC2086 # two words
	nice "$work/fuzz_$h" "$work/$h.corpus" "$work/seeds/$h" "-artifact_prefix=$work/$h.found/" -close_fd_mask=3 \
		-max_len=65536 -timeout=20 $mode -rss_limit_mb=3000 "-max_total_time=$seconds" >"$work/$h.log" 2>&1
	runs=$(sed -n 's/^#\([0-9]*\): cov.*/\1/p; s/^stat::number_of_executed_units: *//p' "$work/$h.log" | tail -n 1)
	found=$(ls "$work/$h.found" | grep -vc '^oom-')
	echo "$h: ${runs:-0} runs, $found crashes or hangs"
	if [ "$found" = 0 ] && [ -n "$runs" ]; then ok; else
		fail "$h"
		tail -n 30 "$work/$h.log"
	fi
done
suite_end
