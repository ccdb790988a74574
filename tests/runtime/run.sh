#!/bin/bash
# End-to-end tests of the runtime, with the hand-written trainer of tests/unit/runtime_model.c.
# usage: tests/runtime/run.sh [--bless | all]   (--bless rewrites the expected messages; all: more kills)
set -u
. "$(dirname "$0")/../suite.sh"
export LC_ALL=C
cd "$(dirname "$0")" || exit 1
bless=${1:-} which=${1:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/out

await() { # FILE TEXT: waits till the file has it, half a minute at most
	for _ in $(seq 300); do
		grep -q "$2" "$1" 2>/dev/null && return
		sleep 0.1
	done
}

# ---- build: the runtime once plain and once under the sanitizers, six models -----------------------------
mkdir "$work/o" "$work/s"
{
	compiles "$work/o" "$plain" one
	compiles "$work/s" "$san" one
	m=$root/tests/unit/runtime_model.c
	echo "$cc $plain -DOM_CPU_STEPS=2 -c $root/runtime/cpu/device.c -o $work/ahead.o"
	# copies that are saved take longer than many steps, and the next update waits for them
	echo '#include <unistd.h>
#include "om_rt.h"
void __real_om_aside_get(const unsigned char *, uint64_t, void *, size_t, uint32_t);
void __wrap_om_aside_get(const unsigned char *, uint64_t, void *, size_t, uint32_t);
void
__wrap_om_aside_get(const unsigned char *arena, uint64_t off, void *to, size_t n, uint32_t slot)
{
	usleep(2000);
	__real_om_aside_get(arena, off, to, n, slot);
}' >"$work/slow.c"
	echo "$cc $plain -c $work/slow.c -o $work/slow.o"
	echo "$cc $plain -c $m -o $work/float.o"
	echo "$cc $plain -DTEST_GLOBAL=64 -c $m -o $work/deep.o"
	echo "$cc $plain -DTEST_S=64 -c $m -o $work/long.o"
	echo "$cc $plain -DTEST_REAL=double -DTEST_SHARD=1000000 -c $m -o $work/double.o"
	echo "$cc $plain -DTEST_D=4 -DTEST_V=64 -DTEST_NAME='\"other\"' -c $m -o $work/other.o"
	echo "$cc $plain -DTEST_D=4 -DTEST_V=100352 -DTEST_NAME='\"wide\"' -c $m -o $work/wide.o"
	echo "$cc $san -c $m -o $work/san.o"
	for t in runtime runtime_file runtime_mix runtime_proc runtime_tokenizer; do echo "$cc $san -c $root/tests/unit/${t}_test.c -o $work/${t}_test.o"; done
} | side_by_side || suite_stop "does not compile"
for v in float double other wide deep long; do
	$cc "$work/$v.o" "$work"/o/*.o -static -lyaml -ljansson -lm -o "$work/$v" 2>"$work/ld" || { cat "$work/ld"; fail "link $v"; }
done
for v in float deep; do
	$cc "$work/$v.o" "$work/ahead.o" "$work/slow.o" -Wl,--wrap=om_aside_get $(ls "$work"/o/*.o | grep -v device.o) -static -lyaml -ljansson -lm \
		-o "$work/$v-ahead" 2>"$work/ld" || { cat "$work/ld"; fail "link $v-ahead"; }
done
mv "$work/float-ahead" "$work/ahead"
for v in san runtime_test runtime_file_test runtime_mix_test runtime_proc_test runtime_tokenizer_test; do
	$cc $san "$work/$v.o" "$work"/s/*.o -lyaml -ljansson -lm -o "$work/$v" || fail "link $v"
done
for t in runtime runtime_file runtime_mix runtime_proc; do check "unit tests of $t" sh -c "cd $work && ./${t}_test"; done
fixtures=$root/tests/peer/tokenizers
check "unit tests of tokenizers" "$work/runtime_tokenizer_test" "$fixtures"
[ "$failed" = 0 ] || suite_stop "what follows needs these"
T=$work/float S=$work/san

# ---- messages of run.yaml, whole; "#! a b" on the first line are overrides -----------------------------------
for f in *.yaml; do
	n=${f%.yaml}
	args=()
	if [ "$(head -c 2 "$f")" = "#!" ]; then
		case $n in
		override_value) args=(lr.peak=fast steps=-3 'lr={peek: 1}') ;;
		override_key) args=(lr.peek=1 batch.global=3 =4 lr.peak steps=) ;;
		override_mix) args=(data.mix.wbe.weight=2 data.mix.code.repeat=2 data.mix.code.repeat=3 data.mix.code.wieght=1) ;;
		override_twice) args=(seed=1 seed=2 'data.paths=[a') ;;
		esac
	fi
	"$S" train "$f" ${args[@]+"${args[@]}"} >"$work/out" 2>"$work/err"
	echo "exit $?" >>"$work/err"
	[ "$bless" = --bless ] && cp "$work/err" "$n.err"
	if diff -u "$n.err" "$work/err" >"$work/diff" && [ ! -s "$work/out" ]; then ok; else
		fail "$f"
		cat "$work/diff"
	fi
done

# ---- the command line --------------------------------------------------------------------------------------
cd "$work" || exit 1
python3 - <<'PY'
import random, struct
random.seed(1)
text = "".join(random.choice("the cat sat on a mat. ") for _ in range(9000)).encode()
open("corpus.txt", "wb").write(text)
def npy(name, body, n, descr="<u2"):
  d = ("{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }" % (descr, n)).encode()
  d += b" " * (-(len(d) + 11) % 64) + b"\n"
  open(name, "wb").write(b"\x93NUMPY\1\0" + struct.pack("<H", len(d)) + d + body)
u2 = struct.pack("<%dH" % len(text), *text)
u4 = struct.pack("<%dI" % len(text), *text)
open("t.bin", "wb").write(u2)
open("t.u32", "wb").write(u4)
npy("t.npy", u2, len(text))
npy("t4.npy", u4, len(text), "<u4")
npy("short.npy", u2[:-4], len(text))
open("empty.bin", "wb").close()
open("odd.bin", "wb").write(u2[:-1])
open("small.txt", "wb").write(text[:16])
open("least.txt", "wb").write(text[:17])
bad = bytearray(u2)
bad[2 * 1234:2 * 1234 + 2] = struct.pack("<H", 70 + 256)
open("bad.bin", "wb").write(bad)
bad = bytearray(u4)
bad[4 * 1234:4 * 1234 + 4] = struct.pack("<I", 4000000000)
open("bad.u32", "wb").write(bad)
open("fake.npy", "wb").write(text)
open("low.bin", "wb").write(struct.pack("<%dH" % len(text), *(x % 64 for x in text)))

# other people's files
def put(name, *parts): open(name, "wb").write(b"".join(parts))
ids = [random.randrange(100278) for _ in range(400)]
put("raw.npy", u2)  # as Dolma writes: tokens alone
put("raw4.npy", u4)
put("wide.bin", struct.pack("<400I", *ids))
put("narrow.u32", struct.pack("<400H", *(x % 50000 for x in ids)))
put("u4.bin", u4)
put("i8.bin", struct.pack("<%dq" % len(text), *text))
put("raw8.npy", struct.pack("<%dQ" % len(text), *text))
put("t.u8", text), put("t.u64", struct.pack("<%dQ" % len(text), *text)), put("odd.u64", bytes(27))
put("text.bin", text[:8000])
put("late.u16", u2[:-4], struct.pack("<2H", 9, 300))
npy("u4.npy", struct.pack("<400I", *ids), 400, "<u4")
npy("u2.npy", u2[:800], 400)
npy("be.npy", u2[:800], 400, ">u2")
npy("f4.npy", u4[:1600], 400, "<f4")
def grid(name, order):
  d = ("{'descr': '<u2', 'fortran_order': %s, 'shape': (20, 20), }" % order).encode()
  put(name, b"\x93NUMPY\1\0", struct.pack("<H", 118), d + b" " * (117 - len(d)) + b"\n", u2[:800])
grid("2d.npy", False), grid("f.npy", True)

# what headers and indices say, as llm.c's data_common.py and Megatron-LM's indexed_dataset.py write it
def pack(code, x): return struct.pack("<%d%s" % (len(x), code), *x)
def llmc(name, magic, version, n, body): put(name, struct.pack("<3i", magic, version, n), bytes(1012), body)
llmc("llm16.bin", 20240520, 1, len(text), u2), llmc("llm32.bin", 20240801, 7, len(text), u4)
llmc("llm.version.bin", 20240520, 2, len(text), u2), llmc("llm.short.bin", 20240801, 7, len(text), u4[:-4])
llmc("llm.none.bin", 20240520, 1, 0, b""), llmc("llm.minus.bin", 20240801, 7, -1, u4)
llmc("llm.token.bin", 20240520, 1, 3000, pack("H", [256] + [9] * 2999))
put("llm.cut.bin", struct.pack("<3i", 20240801, 7, 9000), bytes(40)), put("llm.eval.bin", struct.pack("<3i", 20240522, 1, 9))
sizes = [150] * 59 + [0, 100, 50]
ends = [0, 1, 3, 3, 30, 62]
pointers = [4 * sum(sizes[:i]) for i in range(62)]
def mega(name, dtype, code, tokens=list(text), sizes=sizes, ends=ends, at=None, version=1, head=None, more=b"", cut=0):
  at = at or [struct.calcsize(code) * sum(sizes[:i]) for i in range(len(sizes))]
  idx = b"".join((b"MMIDIDX\0\0", struct.pack("<QBQQ", version, dtype, *(head or (len(sizes), len(ends)))),
    pack("i", sizes), pack("q", at), pack("q", ends), more))
  put(name + ".idx", idx[:len(idx) - cut]), put(name + ".bin", pack(code, tokens))
for dtype, code, descr in (1, "B", "|u1"), (2, "b", "|i1"), (3, "h", "<i2"), (4, "i", "<i4"), (5, "q", "<i8"), (8, "H", "<u2"):
  mega("mega%d" % dtype, dtype, code)
  npy("n%d.npy" % dtype, pack(code, text), len(text), descr)
npy("minus.npy", pack("i", [7] * 399 + [-7]), 400, "<i4")
npy("large.npy", pack("q", [7] * 399 + [1 << 40]), 400, "<i8")
def at(i, x): return [x if j == i else y for j, y in enumerate(pointers)]
mega("m.version", 4, "i", version=2), mega("m.dtype", 6, "i"), mega("m.dtype99", 99, "i")
mega("m.counts", 4, "i", head=(63, 6)), mega("m.huge", 4, "i", head=(1 << 61, 1 << 61)), mega("m.cut", 4, "i", cut=8)
mega("m.head", 4, "i", cut=8 * 68 + 4 * 62 + 9), mega("m.modes", 4, "i", more=bytes(62)), mega("m.no", 4, "i", ends=[])
mega("m.outside", 4, "i", at=at(40, 36000 - 4)), mega("m.minus", 4, "i", at=at(40, -4)), mega("m.far", 4, "i", at=at(40, 1 << 40))
mega("m.hole", 4, "i", at=at(40, 24004))
mega("m.size", 4, "i", sizes=[150] * 59 + [-1, 101, 50], at=pointers), mega("m.long", 4, "i", tokens=list(text) + [9])
mega("m.short", 4, "i", tokens=list(text)[:-1]), mega("m.byte", 8, "H"), put("m.byte.bin", u2, b"x")
mega("m.first", 4, "i", ends=[1, 62]), mega("m.back", 4, "i", ends=[0, 30, 29, 62])
mega("m.last", 4, "i", ends=[0, 61]), mega("m.past", 4, "i", ends=[0, 63]), mega("m.token", 4, "i", tokens=[9] * 8999 + [-3])
mega("m.sign", 2, "b", tokens=[-1] + [9] * 8999), mega("m.late", 4, "i", tokens=[9] * 5000 + [300] + [9] * 3999)
# one stream of three
mega("mega.a", 5, "q", tokens=list(text[:3001]), sizes=[3000, 1], ends=[0, 2])
llmc("llm.b.bin", 20240801, 7, 2990, pack("I", text[3001:5991])), npy("n.c.npy", pack("i", text[5991:]), 3009, "<i4")
put("m.lone.idx", open("mega4.idx", "rb").read())
put("x.gz", b"\x1f\x8b\x08\0", u2[:800])
put("x.zst", b"\x28\xb5\x2f\xfd", u2[:800])
put("x.npz", b"PK\3\4", u2[:800])
put("x.parquet", b"PAR1", u2[:800])
put("x.arrow", b"\xff\xff\xff\xff\x18\3\0\0\x10\0\0\0\0\0\x0a\0", u2[:800])
put("x.safetensors", struct.pack("<Q", 60), b'{"x":', u2[:800])
put("lfs.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
PY
mkdir -p dir/b dir/.hidden
head -c 3000 corpus.txt >dir/a.txt
tail -c +3001 corpus.txt | head -c 3000 >dir/b/c.txt
tail -c +6001 corpus.txt >dir/c.txt
echo junk >dir/.hidden/x
echo junk >dir/.x
mkdir loop && ln -s .. loop/up && ln -s ../corpus.txt loop/a
printf 'data: {paths: [corpus.txt]}\nsteps: 30\nlr: {peak: 1e-2, warmup: 5}\nthreads: 2\n' >run.yaml
head -c 2400 corpus.txt >half.txt

# ---- limits of what is read: each of these took seconds or gigabytes, or never ended --------------------------
python3 - <<'PY'
base = "data: {paths: [corpus.txt]}\nsteps: 3\n"
open("flow.yaml", "w").write("[" * 100000)
open("block.yaml", "w").write("- " * 50000)
open("level.yaml", "w").write("data: {paths: " + "[" * 98 + "]" * 98 + "}\n")
open("keys.yaml", "w").write("".join("k%d: 1\n" % i for i in range(60000)))
open("twice.yaml", "w").write("steps: 1\n" * 60000)
open("anchors.yaml", "w").write("".join("- &a%d x\n" % i for i in range(60000)))
open("tags.yaml", "w").write("".join("%%TAG !a%d! x\n" % i for i in range(60000)) + "---\n" + base)
open("large.yaml", "w").write(base + "#" * (1 << 20) + "\n")
open("zero.yaml", "w").write('data: {paths: ["a\\0b"]}\nsteps: 3\n')
open("loop.yaml", "w").write("data: &a {paths: *a, data: *a}\nmodel: &m {model: *m}\nsteps: 3\n")
PY
mkfifo pipe.yaml
limit() { says "limit: $1" 1 "$2" timeout 20 "$S" train "$1"; } # milliseconds each
limit flow.yaml "flow.yaml:1:101: error: there are more than 100 levels here"
limit block.yaml "block.yaml:1:201: error: there are more than 100 levels here"
limit level.yaml "level.yaml:1:15: error: data.paths = [...] must be a list of texts"
limit keys.yaml "keys.yaml: 59980 more errors"
limit twice.yaml "twice.yaml: 59979 more errors"
limit anchors.yaml "anchors.yaml:101:3: error: there are more than 100 anchors or %TAG lines"
limit tags.yaml "tags.yaml:101:1: error: there are more than 100 anchors or %TAG lines"
limit large.yaml "large.yaml: error: cannot be read: is larger than 1048576 bytes, the most that is read"
limit zero.yaml "zero.yaml:1:16: error: this text has a zero byte in it"
limit loop.yaml "data.paths = {...} must be a list of texts"
limit /dev/zero "/dev/zero: error: cannot be read: is a device, not a regular file"
("$S" train pipe.yaml >silent.out 2>&1; echo $? >silent.status) & # it takes 10 seconds, and is looked at in the end
mkfifo pipe.txt pipe.json
cp t.bin piped.bin && mkfifo piped.idx
check "a pipe beside data" timeout 5 "$S" train run.yaml data.paths=[piped.bin] steps=6
says "a pipe as data" 1 "pipe.txt" timeout 5 "$S" train run.yaml data.paths=[pipe.txt]
check "run.yaml from a shell's <()" "$S" train <(cat run.yaml) steps=6
check "run.yaml from standard input" sh -c "(sleep 0.3; cat run.yaml) | $S train /dev/stdin steps=6"

says "no jansson" 1 "jansson.h is missing: install libjansson-dev" gcc -nostdinc -I"$work" -E "$root/runtime/json.h"
says "no command" 2 "usage: trainer train" "$S"
says "help" 0 "usage: trainer train" "$S" --help
says "version" 0 "bigram, generated by olmogen 0.1.0 for cpu" "$S" --version
says "unknown command" 2 "trainer: distil is not a command; train, eval, data, export, import, average, generate, report, info, selftest, \
bench and preflight are" "$S" distil
says "near command" 2 "trainer: trian is not a command, did you mean train?" "$S" trian
says "no run.yaml" 2 "trainer: train takes run.yaml [key=value ...]; trainer train --help says more" "$S" train steps=3
says "train --help" 0 "fraction of the peak" "$S" train --help
for c in train eval data export import average generate info selftest bench preflight; do
	says "$c --help" 0 "usage: trainer $c" "$S" "$c" --help
done
says "selftest of something" 2 "trainer: selftest takes no arguments" "$S" selftest linear
says "info of two" 2 "trainer: info takes [--manifest | --plan | --keys]" "$S" info --plan --keys
says "info" 0 "model.layers.%l.mlp.experts.%e.weight" "$S" info
says "info --keys" 0 "a whole number from 1 to 1000000000; required" "$S" info --keys
says "info --plan" 0 "the plan" "$S" info --plan
says "info --manifest" 0 "manifest: 1" "$S" info --manifest
says "info --x" 2 "info has no --x, it has --manifest, --plan and --keys" "$S" info --x
says "selftest" 0 "2 passed, 0 failed" "$S" selftest
says "failing selftest" 1 "1 passed, 1 failed" env OM_TEST_BAD=1 "$S" selftest
says "bench" 0 "tokens/s" "$S" bench steps=2
check "bench adds up" awk -f "$root/tests/shares.awk" "$work/out"
says "preflight" 0 " GFLOP/s " "$S" preflight
says "preflight takes nothing" 2 "trainer: preflight takes no arguments" "$S" preflight all
says "bench steps" 2 "bench takes steps=N" "$S" bench steps=0
says "bench with a trace" 0 "tokens/s" "$S" bench --trace=trace.json steps=1
check "the trace is JSON" python3 -c 'import json; assert json.load(open("trace.json"))["traceEvents"]'
says "bench with a trace of no name" 2 "and --html=FILE" "$S" bench --trace=
says "bench with a page" 0 "tokens/s" "$S" bench --html=bench.html steps=1
check "the page has the trace" grep -q traceEvents bench.html
says "bench with a trace that cannot be" 1 "trace: nowhere/x: No such file or directory" "$S" bench steps=1 --trace=nowhere/x
says "bench steps, too many" 2 "bench takes steps=N, N from 1 to 999999" "$S" bench steps=18446744073709551616
for a in info selftest --help --version "train --help" "bench steps=1"; do
	# shellcheck disable=SC2086 # two words
	("$S" $a >/dev/full) 2>"$work/err"
	[ $? = 1 ] && grep -q 'output: cannot be written: No space left on device' "$work/err" && ok ||
		fail "$a to a full disk"
done
says "arena" 1 "bigram: rank 0, arena: needs 1.00 EiB (1,152,921,504,606,846,976 bytes)" \
	env OM_TEST_ARENA=1152921504606846976 "$S" bench
says "arena beyond ulimit -v" 1 "arena: needs 1.00 GiB (1,073,741,824 bytes): Cannot allocate memory, the limit of all \
that a process maps is 488.28 MiB (ulimit -v); raise it" sh -c "ulimit -v 500000; OM_TEST_ARENA=1073741824 $T bench"
says "stack" 1 "stack: is 512.00 KiB (ulimit -s), operators need 1.00 MiB" sh -c "ulimit -s 512; $T bench steps=1"
says "stack of threads" 1 "stack: of threads is 256.00 KiB (OMP_STACKSIZE), operators need 1.00 MiB" \
	env OMP_STACKSIZE=256 "$T" selftest
for s in 8M "2 g" 4096 junk; do check "OMP_STACKSIZE=$s" env OMP_STACKSIZE="$s" OMP_NUM_THREADS=2 "$T" selftest; done
check "more threads than there can be" sh -c "OMP_NUM_THREADS=100000 $T bench steps=1 | tee X.out &&
	grep -q '^threads: 100000 are asked for, $(($(nproc) * 16)) are tried: 16 for each of $(nproc) cores' X.out"
check "more than a limit lets there be" sh -c "ulimit -v 90000; OMP_NUM_THREADS=16 $T bench steps=1 >X.out 2>&1
	grep -q '^threads: 16 are asked for, [0-9]* can be made here' X.out"
check "stacks of a size of which few fit" sh -c "ulimit -v 3000000; OMP_STACKSIZE=1G OMP_NUM_THREADS=8 $T bench steps=1 >X.out 2>&1 &&
	grep -q '^threads: 8 are asked for, [23] can be made here' X.out"
check "a limit of OpenMP" sh -c "OMP_THREAD_LIMIT=1 OMP_NUM_THREADS=4 $T bench steps=1 >X.out 2>&1 &&
	grep -q '^threads: 4 are asked for, 1 can be made here' X.out"
# a thread watches for load, and takes no signal; not where the environment says how to wait
watched() { # watched NAME ENV...: the signals that the watching thread of a trainer of two threads blocks
	env -u OMP_WAIT_POLICY "${@:2}" OMP_NUM_THREADS=2 OM_TEST_NAP=300000 "$T" bench steps=1 >/dev/null &
	for _ in 1 2 3 4 5 6 7 8; do sleep 0.1 && [ -e "/proc/$!/task/$!" ] && [ "$(ls "/proc/$!/task" | wc -l)" -gt 1 ] && break; done
	for t in /proc/$!/task/*; do grep -qx om-spin "$t/comm" && grep SigBlk "$t/status"; done >"$work/out"
	kill $! && wait $!
	[ $? = 143 ] && ok || fail "$1: a signal does not end it"
}
watched "by default"
grep -q 'f$' "$work/out" && ok || fail "no thread watches for load, or it takes signals: $(cat "$work/out")"
for e in OMP_WAIT_POLICY=active GOMP_SPINCOUNT=0; do
	watched "$e" $e
	[ ! -s "$work/out" ] && ok || fail "a thread watches, though $e"
done
says "abi" 1 "generated for runtime 999" env OM_TEST_ABI=1 "$S" info

# ---- data ----------------------------------------------------------------------------------------------------
loss() { "$1" train run.yaml "${@:2}" 2>&1 | grep -o 'loss [0-9.]*, ' | tail -1; }
want=$(loss "$S")
[ -n "$want" ] && ok || fail "trains on bytes"
for p in t.bin t.u32 t.npy t4.npy t.u8 t.u64 n{1,2,3,4,5,8}.npy mega{1,2,3,4,5,8}.bin mega4 'mega8.*' llm16.bin llm32.bin \
	dir 'dir/**/../*.txt' 'd?r' '[d]ir/' loop/a; do
	[ "$p" = 'dir/**/../*.txt' ] && p='[dir/a.txt, "dir/[b]/c*", dir/c.txt]' || p="[\"$p\"]"
	[ "$(loss "$S" "data.paths=$p")" = "$want" ] && ok || fail "data.paths=$p gives another loss"
done
[ "$(loss "$T")" = "$want" ] && ok || fail "sanitized and static trainers differ"
[ "$(loss "$T" threads=1)" = "$want" ] && ok || fail "threads change the loss"
[ "$(loss "$T" seed=1)" != "$want" ] && ok || fail "the seed changes nothing"
[ "$(loss "$T" data.order=sequential)" != "$want" ] && ok || fail "the order changes nothing"
[ -n "$(loss "$S" data.paths=least.txt)" ] && ok || fail "one sequence is enough"
d() { says "data: $1" 1 "bigram: rank 0, data: $2" "$S" train run.yaml "data.paths=$1" "${@:3}"; }
d none.txt 'none.txt: No such file or directory; correct data.paths'
d 'n*.txt' 'n*.txt: no file matches; correct data.paths'
d empty.bin 'empty.bin: is empty; remove it or leave it out of data.paths'
d odd.bin 'odd.bin: has 17,999 bytes, not a multiple of 2; it is truncated, or its format is not uint16'
d short.npy 'short.npy: its header says 9,000 tokens, 18,128 bytes in all, but it has 18,124; copy it again'
d fake.npy 'fake.npy: has no .npy header'
d corpus.txt 'corpus.txt: has no .npy header' data.format=npy
d small.txt '16 tokens in 1 file, but a sequence takes 16 and its last label one more; add data'
d '[t.bin, small.txt]' 'small.txt is raw bytes, t.bin is tokens; set data.format'
d loop 'loop/up/loop: this link leads back to a directory above it'
d /dev/null '/dev/null: is neither a file nor a directory'
d raw.npy 'raw.npy: has no .npy header, so it is tokens alone, as Dolma and OLMo-core write them under that name; set data.format=uint16'
d raw8.npy "raw8.npy: has no .npy header, so it is tokens alone, as Dolma and OLMo-core write them under that name; set \
data.format=uint64"
d raw4.npy 'raw4.npy: has no .npy header, so it is tokens alone, as Dolma and OLMo-core write them under that name; set data.format=uint32'
[ "$(loss "$S" data.paths=raw.npy data.format=uint16)" = "$want" ] && ok || fail "headerless .npy of uint16"
[ "$(loss "$S" data.paths=raw4.npy data.format=uint32)" = "$want" ] && ok || fail "headerless .npy of uint32"
[ "$(loss "$S" data.paths=raw8.npy data.format=uint64)" = "$want" ] && ok || fail "headerless .npy of uint64"
d fake.npy 'fake.npy: has no .npy header, it is text; give it another name'
for f in auto npy uint16; do
	says "a NumPy array as $f" 0 "data: 400 tokens in 1 file" "$S" train run.yaml steps=5 data.paths=u2.npy data.format=$f
done
d u2.npy 'u2.npy: is a NumPy array of uint16; leave out data.format, or set it to npy' data.format=uint32
d u2.npy 'u2.npy: is a NumPy array of uint16; leave out data.format' data.format=bytes
load="convert it, which keeps every value: python3 -c \"import numpy as np; a = np.load('NAME', mmap_mode='r').ravel(); \
assert 0 <= a.min() and a.max() < 256; np.save('tokens.npy', a.astype('<u2'))\""
d be.npy "be.npy: holds dtype '>u2'; read are little-endian numbers of 1, 2, 4 or 8 bytes; ${load/NAME/be.npy}"
d minus.npy "minus.npy: token 399 is -7, the model's vocab_size is 256; use data"
d large.npy "large.npy: token 399 is 1099511627776, the model's vocab_size is 256; use data"
d 2d.npy "2d.npy: has shape (20, 20), only one dimension is read; ${load/NAME/2d.npy}"
d f.npy "f.npy: is in Fortran order, column after column; ${load/NAME/f.npy}"
d f4.npy "f4.npy: holds dtype '<f4'; tokens are whole numbers, as uint16 and uint32 are"
for f in auto uint16 uint32 bytes; do d x.gz 'x.gz: is compressed by gzip; unpack it' data.format=$f; done

# llm.c and Megatron
d llm16.bin 'llm16.bin: is a data file of llm.c of uint16; leave out data.format, or set it to llmc' data.format=uint32
d llm.version.bin 'llm.version.bin: is a data file of llm.c, of version 2 (byte 4); with magic number 20240520, 1 is read'
d llm.short.bin 'llm.short.bin: its header says 9,000 tokens, 37,024 bytes in all, but it has 37,020; copy it again'
d llm.minus.bin 'llm.minus.bin: its header says 4,294,967,295 tokens, 17,179,870,204 bytes in all, but it has 37,024'
d llm.none.bin 'llm.none.bin: holds no tokens; leave it out of data.paths'
d llm.cut.bin 'llm.cut.bin: ends within its header of 1,024 bytes, at byte 52; copy it again'
d llm.eval.bin 'llm.eval.bin: is a file of llm.c of questions and answers, not of tokens alone; leave it out'
d llm.token.bin "llm.token.bin: token 0 is 256, the model's vocab_size is 256; use data of the model's tokenizer"
d t.bin "t.bin: does not begin with a magic number of llm.c's data files; correct data.format" data.format=llmc
d t.bin "t.bin: is no .bin with an index of Megatron's beside it, a .idx; correct data.format" data.format=megatron
d mega4.bin 'mega4.bin: is a Megatron data set of int32; leave out data.format, or set it to megatron' data.format=uint16
for f in uint32 megatron; do check "as $f, too" "$S" train run.yaml steps=6 data.paths=mega4.bin data.format=$f; done
d mega4.idx 'mega4.idx: is the index of a Megatron data set; name the .bin beside it, which it says how to read'
d 'm.lone*' 'm.lone.idx: is the index of a Megatron data set; name the .bin beside it'
d m.version.bin 'm.version.idx: is a Megatron index of version 2 (byte 9), 1 is read'
d m.dtype.bin 'm.dtype.idx: says that tokens are of type 6 (byte 17); read are whole numbers, types 1 to 5 and 8'
d m.dtype99.bin 'm.dtype99.idx: says that tokens are of type 99 (byte 17); read'
d m.head.bin 'm.head.idx: ends within its header of 34 bytes, at byte 25; copy it again'
# more files than descriptors, and an index beside each
mkdir sets && for i in 1 2 3 4 5 6 7 8 9; do cp mega4.bin sets/$i.bin && cp mega4.idx sets/$i.idx; done
says "data: few descriptors" 0 "data: 81,000 tokens in 9 files" sh -c "ulimit -n 9; $T train run.yaml steps=6 data.paths=[sets]"
counts() {
	d "m.$1.bin" "m.$1.idx: its header says $2 sequences and $3 ends of documents (bytes 18 and 26), which do not make its $4 bytes"
}
counts counts 63 6 826
counts huge 2305843009213693952 2305843009213693952 826
counts cut 62 6 818
counts no 62 0 778
d m.modes.bin 'm.modes.idx: is of a data set that is not of text alone, which is not read'
d m.outside.bin 'm.outside.idx: sequence 40, 150 tokens from byte 35996 on (byte 602), is not within m.outside.bin, which has 36,000 bytes'
d m.far.bin 'm.far.idx: sequence 40, 150 tokens from byte 1099511627776 on (byte 602), is not within m.far.bin'
d m.minus.bin 'm.minus.idx: sequence 40, 150 tokens from byte -4 on (byte 602), is not within m.minus.bin'
d m.size.bin 'm.size.idx: sequence 59, -1 tokens from byte 35400 on (byte 754), is not within m.size.bin'
d m.short.bin 'm.short.idx: sequence 61, 50 tokens from byte 35800 on (byte 770), is not within m.short.bin, which has 35,996 bytes'
d m.hole.bin 'm.hole.idx: sequence 40 begins at byte 24004 of m.hole.bin (byte 602), the one before it ends at 24000'
d m.long.bin 'm.long.bin: has 36,004 bytes, but by m.long.idx it has 36,000; copy both again'
d m.byte.bin 'm.byte.bin: has 18,001 bytes, but by m.byte.idx it has 18,000; copy both again'
d m.first.bin 'm.first.idx: document 0 begins with sequence 1 (byte 778), after 0'
d m.back.bin 'm.back.idx: document 2 begins with sequence 29 (byte 794), after 30'
d m.last.bin 'm.last.idx: its documents end with sequence 61 (byte 786), but it has 62'
d m.past.bin 'm.past.idx: its documents end with sequence 63 (byte 786), but it has 62'
d m.token.bin "m.token.bin: token 8999 is -3, the model's vocab_size is 256; use data of the model's tokenizer"
d m.sign.bin "m.sign.bin: token 0 is -1, the model's vocab_size is 256; use data of the model's tokenizer"
d odd.u64 'odd.u64: has 27 bytes, not a multiple of 8; it is truncated, or its format is not uint64'
# the command data
says "data: bad token" 1 "data: m.late.bin: token 5000 is 300, the model's vocab_size is 256" "$S" data run.yaml data.paths=m.late.bin
says "data: eos" 1 "data: data.eos = 256 is not a token, the model's vocab_size is 256; correct it" "$S" data run.yaml data.eos=256
says "data: what it is" 1 "data.eos = x must be a whole number from 0 to 4294967295, or none" "$S" data run.yaml data.eos=x
says "data: bos" 1 "data: data.bos = 256 is not a token, the model's vocab_size is 256; correct it" "$S" data run.yaml data.bos=256
says "data: labels of what is not known" 1 "data.cut_labels is about documents, and the file has no index that says where they end; \
set data.eos to the token that ends one" "$S" data run.yaml data.cut_labels=true
check "data: labels cut" "$S" train run.yaml steps=5 data.paths=n5.npy data.eos=46 data.cut_labels=true checkpoint.dir=CUT
for other in "data.eos=46" "data.eos=46 data.cut_labels=true data.repetition_filter=true" "data.eos=32 data.cut_labels=true"; do
	# shellcheck disable=SC2086 # several
	says "data: resumed with other labels, $other" 1 "was trained with a data checksum of" \
		"$S" train run.yaml steps=8 data.paths=n5.npy checkpoint.dir=CUT $other
done
check "data: documents" sh -c "$S data run.yaml 'data.paths=[mega4.bin, llm16.bin, n5.npy]' data.eos=46 >data.out &&
	$S data run.yaml data.paths=n5.npy data.eos=46 data.bos=32 >bos.out"
cat >documents.py <<'PY'
text = open("corpus.txt", "rb").read()
sizes, ends = [150] * 59 + [0, 100, 50], [0, 1, 3, 3, 30, 62]
by_index = [sum(sizes[a:b]) for a, b in zip(ends, ends[1:])]
by_eos = [len(s) + 1 for s in text.split(b".")]
by_eos[-1] -= 1
by_eos = [n for n in by_eos if n]
by_bos = next(l for l in open("bos.out").read().split("\n") if l.endswith(" n5.npy")).split()
assert by_bos[1] == f"{1 + text.count(b'. '):,}" != f"{len(by_eos):,}", by_bos
out = open("data.out").read()
every, below = by_index + 2 * by_eos, -1
for name, n in (("mega4.bin", by_index), ("llm16.bin", by_eos), ("n5.npy", by_eos), ("in all", every)):
  line = next(l for l in out.split("\n") if l.endswith(" " + name)).split()
  want = [f"{sum(n):,}", f"{len(n):,}", f"{min(n):,}", f"{sum(n) / len(n):.1f}", f"{max(n):,}"]
  assert line[:5] == want, (line, want)
for l in out.split("\n"):
  if l.startswith("up to"):
    most, n, _, of = l.split()[2:]
    most = int(most.replace(",", ""))
    these = [x for x in every if below < x <= most]
    assert int(n.replace(",", "")) == len(these) and abs(float(of[:-1]) - 100 * sum(these) / sum(every)) < 0.051, l
    below = most
assert below >= max(every) and "27,000 tokens in 3 files, 1,687 sequences" in out, out
PY
check "data: documents counted" python3 documents.py
says "data: no documents" 0 "9,000             -         -         -           -  llmc uint32      llm32.bin" \
	"$S" data run.yaml data.paths=llm32.bin
says "data: held-out data too" 0 "eval: 9,000 tokens in 1 file" "$S" data run.yaml eval.paths=mega3.bin
says "data: without steps" 0 "an epoch is 140.50 steps of 4 sequences" "$S" data <(echo 'data: {paths: [mega1.bin]}')

d x.zst 'x.zst: is compressed by zstd; unpack it'
d x.npz 'x.npz: is a zip archive, as .npz and'
d x.parquet 'x.parquet: is a Parquet file; write its tokens'
d x.arrow 'x.arrow: is an Arrow stream'
d x.safetensors 'x.safetensors: is a safetensors file'
d lfs.bin 'lfs.bin: is a pointer of Git LFS in place of the file'
d u4.bin 'u4.bin: every second uint16 is 0, so its tokens are uint32; set data.format=uint32'
[ "$(loss "$S" data.paths=u4.bin data.format=uint32)" = "$want" ] && ok || fail "a .bin of uint32, as said"
d i8.bin 'i8.bin: every second uint32 is 0, so its tokens are uint64; set data.format=uint64'
[ "$(loss "$S" data.paths=i8.bin data.format=uint64)" = "$want" ] && ok || fail "a .bin of uint64, as said"
d text.bin 'text.bin: is text, not uint16 tokens; set data.format=bytes'
d t.bin 't.bin: token 0 is ' data.format=uint32
says "data: the other width" 1 "the model's vocab_size is 256; as uint16 they would fit: set data.format=uint16" \
	"$S" train run.yaml data.paths=t.bin data.format=uint32
d late.u16 "late.u16: token 8999 is 300, the model's vocab_size is 256; use data of the model's tokenizer"
w() { says "data, a vocabulary of 100,352: $1" "$2" "$3" "$work/wide" train run.yaml steps=5 "data.paths=$1" "${@:4}"; }
w wide.bin 0 "data: 400 tokens in 1 file"
w u4.npy 0 "data: 400 tokens in 1 file"
w wide.bin 1 "wide.bin: uint16 holds tokens up to 65,535, the model's vocab_size is 100,352; set data.format=uint32 if" \
	data.format=uint16
w u2.npy 0 "data: 400 tokens in 1 file" # its header says so
w narrow.u32 1 "use data of the model's tokenizer; tokens that are uint16 can be a NumPy array, or be written as uint32"
w corpus.txt 1 "corpus.txt: would be read as raw bytes, 256 of the model's vocab_size of 100,352; give token files, or set \
data.format=bytes"
w half.txt 0 "data: 2,400 tokens" data.format=bytes
w half.txt 0 "eval: step 5, loss" data.format=bytes eval.paths=least.txt # it has the data's format
w half.txt 1 "eval: least.txt: would be read as raw bytes" data.format=bytes eval.paths=least.txt eval.format=auto
says "eval: other formats" 1 "bigram: rank 0, eval: u4.bin: every second uint16 is 0, so its tokens are uint32; set \
eval.format=uint32" "$S" train run.yaml eval.paths=u4.bin
says "bad token" 1 "bad.bin: token 1234 is 326, the model's vocab_size is 256; use data of the model's tokenizer" \
	"$S" train run.yaml data.paths=bad.bin data.order=sequential
says "bad token's step" 1 "bigram: rank 0, step 20, data: bad.u32: token 1234 is 4000000000" \
	"$S" train run.yaml data.paths=bad.u32 data.order=sequential
says "vocabulary of bytes" 1 "corpus.txt: raw bytes need a vocab_size of 256, the model's is 64" \
	"$work/other" train run.yaml
# nothing that was trained is lost to them
says "bad token: the steps before are saved" 1 "tokenizer; steps up to 19 are in R/step-000019" \
	"$S" train run.yaml data.paths=bad.u32 data.order=sequential checkpoint.dir=R
says "bad token: they were saved" 1 "tokenizer; steps up to 19 are in R2/step-000019" \
	"$S" train run.yaml data.paths=bad.u32 data.order=sequential checkpoint.dir=R2 checkpoint.every=19
check "bad token: both the same" sh -c "cmp R/step-000019/index.json R2/step-000019/index.json"
says "bad token, steps ahead" 1 "step 20, data: bad.u32: token 1234 is 4000000000" \
	"$work/ahead" train run.yaml data.paths=bad.u32 data.order=sequential checkpoint.dir=R3
check "bad token, steps ahead: the same" sh -c "cmp R/step-000019/index.json R3/step-000019/index.json"
says "bad token in an evaluation" 1 "eval: bad.u32: token 1234 is 4000000000, the model's vocab_size is 256; use data of \
the model's tokenizer; steps up to 7 are in R4/step-000007" \
	"$S" train run.yaml data.paths=t.u32 eval.paths=bad.u32 eval.every=7 checkpoint.dir=R4
cp corpus.txt shrinks.txt
rm -f out
(await out "^start: "; truncate -s 100 shrinks.txt) &
says "a file that shrinks" 1 "shrinks.txt: ends before byte" \
	env OM_TEST_NAP=5000 "$S" train run.yaml steps=1000 data.paths=shrinks.txt
wait
# more files than descriptors
mkdir many
split -b 150 -a 3 corpus.txt many/p
[ "$(ulimit -n 20; loss "$T" data.paths=many)" = "$want" ] && ok || fail "60 files with 20 descriptors"

# ---- labels ----------------------------------------------------------------------------------------------------
# of 12 sequences of 64 tokens the 3rd, 8th and 9th repeat themselves; two more only with the token after them
python3 - <<'PY'
text = open("corpus.txt", "rb").read()
part = [text[64 * i:64 * i + 64] for i in range(12)] + [b"."]
part[2] = part[2][:20] + 32 * b"x" + part[2][52:]
part[7], part[8] = 32 * b"ab", part[8][:32] + 32 * b"y"
part[4], part[5] = part[4][:33] + 31 * b"z", b"z" + part[5][1:]
open("repeats.txt", "wb").write(b"".join(part))
PY
long() { rm -f F.jsonl; "$work/long" train run.yaml lr.warmup=0 data.order=sequential log.metrics=F.jsonl "$@" >/dev/null; }
share() { long steps=3 data.paths=repeats.txt "$@" && python3 -c 'import json
print([json.loads(l).get("repeated") for l in open("F.jsonl")])'; }
[ "$(share data.repetition_filter=true)" = "[0.25, 0.25, 0.25]" ] && [ "$(share)" = "[None, None, None]" ] && ok ||
	fail "repetition filter: $(cat F.jsonl)"
# the loss is the mean over what is left: here of three sequences, each of which has also a step of its own
python3 - <<'PY'
text = open("corpus.txt", "rb").read()
part = [b"." + text[64 * i:64 * i + 63] for i in range(3)]
for i in range(3): open("only%d.txt" % i, "wb").write(4 * part[i] + b".")
open("left.txt", "wb").write(part[0] + b"." + 63 * b"x" + part[1] + part[2] + b".")
PY
step_loss() { long steps=1 "$@" && python3 -c 'import json
x = json.loads(open("F.jsonl").read()); print(x["loss"], x["head_z"], x.get("masked"))'; }
for i in 0 1 2; do step_loss data.paths=only$i.txt; done >only
step_loss data.paths=left.txt data.repetition_filter=true >left
check "the loss is the mean over labels" python3 -c 'x = [l.split() for l in open("only")]
left = open("left").read().split()
for k in 0, 1: assert abs(sum(float(y[k]) for y in x) / 3 - float(left[k])) < 1e-7, (x, left)
assert left[2] == "0.25" and x[0][2] == "None"'
# all of a step are filtered: a loss of 0, which is said, and it goes on
python3 -c 'open("all.txt", "wb").write(257 * b"x")'
[ "$(step_loss data.paths=all.txt data.repetition_filter=true)" = "0 0 1" ] && ok || fail "a step without labels"

# masks
python3 - <<'PY'
import random, struct
random.seed(7)
n = len(open("corpus.txt", "rb").read())
mask = bytes(random.random() < 0.7 for _ in range(n))
def npy(name, body, n, descr):
  d = ("{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }" % (descr, n)).encode()
  open(name, "wb").write(b"\x93NUMPY\1\0" + struct.pack("<H", 118) + d + b" " * (117 - len(d)) + b"\n" + body)
open("mask.raw", "wb").write(mask)
npy("mask.bool", mask, n, "|b1"), npy("mask.u1", mask, n, "|u1"), npy("mask.u2", mask + mask, n, "<u2"), npy("mask.cut", mask, n + 1, "|b1")
open("mask.short", "wb").write(mask[:-1])
open("mask.wide", "wb").write(mask + mask)
open("mask.2", "wb").write(b"\2" + mask[1:])
open("mask.ff", "wb").write(mask[:-1] + b"\xff")
open("mask.late", "wb").write(mask[:4500] + b"\7" + mask[4501:])
open("mask.none", "wb").write(bytes(n))
# the labels of an epoch: its sequences share a token, and cut_labels leaves out what follows a full stop
text, count = open("corpus.txt", "rb").read(), (n - 1) // 16 * 16
for name, cut in ("labels.mask", False), ("labels.cut", True):
  has = sum(mask[i] and not (cut and text[i - 1] == 46) for i in range(1, count + 1))
  open(name, "w").write("labels: {:,} of the {:,} tokens of an epoch have one, {:.1f}%".format(has, count, 100 * has / count))
PY
mask() { says "mask: $1" 1 "bigram: rank 0, data: $2" "$S" train run.yaml "data.label_mask_paths=$1"; }
mask mask.short 'mask.short: has 8,999 values, and corpus.txt has 9,000 tokens; a mask has a byte for each'
mask mask.wide 'mask.wide: has 18,000 values, and corpus.txt has 9,000 tokens'
mask mask.2 'mask.2: byte 0 is 2; a mask holds 1 for tokens that are labels, and 0'
mask mask.ff 'mask.ff: byte 8999 is 255; a mask holds 1'
mask mask.u2 'mask.u2: holds numbers of 2 bytes; a mask is one of bool or uint8'
mask mask.cut 'mask.cut: its header says 9,001 tokens, 9,129 bytes in all, but it has 9,128'
mask be.npy "be.npy: holds dtype '>u2'; read are little-endian numbers of 1, 2, 4 or 8 bytes; a mask is one of bool or uint8"
mask nowhere 'nowhere: No such file or directory; correct data.label_mask_paths'
mask 'no*where' 'no*where: no file matches; correct data.label_mask_paths'
mask '[mask.raw, mask.u1]' 'data.label_mask_paths are 2 files, data.paths are 1 file; each has a mask, in the same order'
d mask.bool 'mask.bool: holds true and false, not tokens; a mask of labels is one of data.label_mask_paths'
says "mask: a byte in its midst" 1 "step 71, data: mask.late: byte 4500 is 7; a mask holds 1 for tokens that are labels, and 0; steps up \
to 70 are in M/step-000070" "$S" train \
	run.yaml steps=100 data.order=sequential data.label_mask_paths=mask.late checkpoint.dir=M
for m in raw bool u1; do
	rm -rf M$m
	check "mask.$m" "$S" train run.yaml data.label_mask_paths=mask.$m checkpoint.dir=M$m log.metrics=M$m.jsonl
done
check "masks are the same in each format" sh -c "for m in bool u1; do for f in Mraw/step-000030/*.safetensors; do
	cmp \$f M\$m/step-000030/\${f##*/} || exit 1; done; done"
check "the share that is masked" python3 -c 'import json
x = [json.loads(l)["masked"] for l in open("Mraw.jsonl")]
assert abs(sum(x) / len(x) - 0.3) < 0.05 and len(set(x)) > 9, x'
says "another mask" 1 "Mraw/step-000030 was trained with a data checksum of" "$S" train run.yaml steps=40 data.label_mask_paths=mask.none checkpoint.dir=Mraw
says "no mask any more" 1 "Mraw/step-000030 was trained with a data checksum of" "$S" train run.yaml steps=40 checkpoint.dir=Mraw
says "trainer data checks masks" 1 "mask.late: byte 4500 is 7" "$S" data run.yaml data.label_mask_paths=mask.late
says "trainer data says how fast training reads" 0 "in the order of training: 562 sequences read in" "$S" data run.yaml
says "trainer data counts labels" 0 "$(cat labels.mask)" "$S" data run.yaml data.label_mask_paths=mask.u1
says "trainer data counts labels as training has them" 0 "$(cat labels.cut)" "$S" data run.yaml data.label_mask_paths=mask.u1 \
	data.cut_labels=true data.eos=46
says "no label at all" 1 "step 10, data: 10 steps in a row have no token with a label; correct the label masks" \
	"$S" train run.yaml data.label_mask_paths=mask.none
says "no label in an evaluation" 1 "eval: no token has a label, and there is no loss; correct its label_mask_paths" \
	"$S" train run.yaml eval.paths=corpus.txt eval.label_mask_paths=mask.none
says "a mask of nothing" 1 "eval.label_mask_paths is set, but eval.paths is not set" "$S" train run.yaml eval.label_mask_paths=[mask.u1]

# packing: documents are sentences
pack() { "$S" train run.yaml data.eos=46 "$@"; }
python3 - <<'PY'
import math
def fit(lengths, S, fragment):
  pieces = []
  for n in lengths: pieces += [S] * (n // S) + [n % S][:n % S] if fragment else [min(n, S)]
  rooms = []
  for n in sorted(pieces, reverse=True):
    at = min((r, i) for i, r in enumerate(rooms + [S]) if r >= n)[1]
    if at == len(rooms): rooms.append(S)
    rooms[at] -= n
  return len(rooms), sum(pieces)
text = open("corpus.txt", "rb").read()
lengths = [len(x) + 1 for x in text.split(b".")]
lengths[-1] -= 1
lengths = [n for n in lengths if n]
for fragment in 0, 1:
  n, tokens = fit(lengths, 16, fragment)
  open("plan%d" % fragment, "w").write("packing: {:,} documents in {:,} sequences, {:.2f}% of which is filled up, {:,} token{} left out\n".format(
    len(lengths), n, 100 - 100 * tokens / (16 * n), len(text) - tokens, "" if len(text) - tokens == 1 else "s"))
PY
for p in truncate fragment; do
	[ $p = truncate ] && plan=plan0 || plan=plan1
	says "packing, $p" 0 "$(cat $plan)" pack data.packing=$p checkpoint.dir=P$p log.metrics=P$p.jsonl checkpoint.every=10
	says "packing, $p: trainer data" 0 "$(cat $plan)" "$S" data run.yaml data.eos=46 data.packing=$p
	rm -rf P$p/step-0000[23]0
	check "packing, $p: goes on" pack data.packing=$p checkpoint.dir=Q$p
	check "packing, $p: goes on" pack data.packing=$p checkpoint.dir=P$p
	check "packing, $p: the same weights" sh -c "for f in Q$p/step-000030/*.safetensors; do cmp \$f P$p/step-000030/\${f##*/} ||
		exit 1; done"
done
says "packing without ends of documents" 1 "data: data.packing takes the token that ends a document, and fills sequences with it; \
set data.eos" "$S" train run.yaml data.packing=truncate
says "packing by a token that is nowhere" 1 "data: data.eos = 7 ends no document in 1 file, and data.packing = truncate leaves 99.8% of all \
tokens out; correct data.eos, or set data.packing=fragment" "$S" train run.yaml data.packing=truncate data.eos=7
says "packed otherwise" 1 "Ptruncate/step-000030 was trained with a data checksum of" pack steps=40 data.packing=fragment \
	checkpoint.dir=Ptruncate
check "pads have no labels" python3 -c 'import json
x = [json.loads(l)["masked"] for l in open("Ptruncate.jsonl")]
assert all(1 / 16 <= m < 0.9 for m in x) and max(x) > 1 / 16, x'
# what a sequence is filled up with does not make it one that repeats itself
printf 'a short one.' >one.txt
[ "$(step_loss data.paths=one.txt data.eos=46 data.packing=truncate data.repetition_filter=true | cut -d" " -f3)" = 0.828125 ] && ok ||
	fail "packing and the repetition filter: $(cat F.jsonl)"

# ---- checkpoints: formats, kill and resume ---------------------------------------------------------------------
same() { for f in "$1"/*.safetensors; do cmp "$f" "$2/$(basename "$f")" || return 1; done; }
for v in float double; do
	B=$work/$v
	rm -rf A ck
	"$B" train run.yaml steps=60 checkpoint.dir=A >/dev/null || fail "$v trains"
	check "$v: resume by parts" sh -c "$B train run.yaml steps=60 checkpoint.dir=ck checkpoint.every=20 &&
		rm -r ck/step-000060 ck/step-000040 && $B train run.yaml steps=60 checkpoint.dir=ck"
	check "$v: bitwise the same" same A/step-000060 ck/step-000060
done
# the same tokens in the same order from other formats, also in one stream, and after a resume
for p in mega4.bin llm16.bin '[mega.a.bin, llm.b.bin, n.c.npy]'; do
	rm -rf ck
	check "$p: resume" sh -c "$B train run.yaml steps=60 checkpoint.dir=ck checkpoint.every=20 'data.paths=$p' &&
		rm -r ck/step-000060 ck/step-000040 && $B train run.yaml steps=60 checkpoint.dir=ck 'data.paths=$p'"
	check "$p: the weights of raw bytes" same A/step-000060 ck/step-000060
done
. "$root/tests/runtime/mix.sh"
. "$root/tests/runtime/steps.sh"
# a step begins before the last one's results are read, as on a GPU, and saves are copied slowly: nothing else differs
B=$work/ahead
numbers() { sed 's/, "tokens_per_s": [^,]*, "data_wait": [^,]*, "tflops": [^,]*//; s/ [0-9.,]* tok.s.*//; s/ in [0-9.]* s$//' "$1"; }
for v in float ahead; do
	rm -rf "A$v"
	"$work/$v" train run.yaml steps=60 checkpoint.dir=A$v checkpoint.every=25 eval.paths=[half.txt] eval.every=10 \
		log.every=1 log.metrics=$v.jsonl 2>&1 | grep -E '^(step|eval)' >$v.out
	numbers $v.jsonl >$v.numbers
	numbers $v.out >>$v.numbers
done
check "steps ahead: the same numbers" sh -c "cmp float.numbers ahead.numbers && [ \$(wc -l <ahead.numbers) = 132 ]"
for s in 25 50 60; do check "steps ahead: bitwise the same at $s" same Afloat/step-0000$s Aahead/step-0000$s; done
says "steps ahead: the step of a NaN" 1 "step 7, loss: is nan" env OM_TEST_NAN=7 "$B" train run.yaml
says "steps ahead: SkipStep" 0 "1 skipped" env OM_TEST_NAN=7 "$B" train run.yaml skip_step.sigma=6
rm -rf ck
OM_TEST_NAP=10000 "$B" train run.yaml steps=60 checkpoint.dir=ck >ck.out 2>&1 &
pid=$!
await ck.out "^start: "
kill -TERM $pid
wait $pid
[ $? = 3 ] && ok || fail "steps ahead: SIGTERM's status"
check "steps ahead: goes on from there" sh -c "tail -n 1 ck.out && $B train run.yaml steps=60 checkpoint.dir=ck"
check "steps ahead: bitwise the same" same Afloat/step-000060 ck/step-000060
cat >check.py <<'PY'
import json, struct, sys
d = sys.argv[1]
index = json.load(open(d + "/index.json"))
hf = json.load(open(d + "/model.safetensors.index.json"))
seen, total = {}, 0
for name, t in index["tensors"].items():
  f = open(d + "/" + t["file"], "rb")
  n = struct.unpack("<Q", f.read(8))[0]
  head = json.loads(f.read(n))
  a, b = head[name]["data_offsets"]
  size = {"F32": 4, "F64": 8}[t["dtype"]]
  for x in t["shape"]: size *= x
  assert b - a == size and head[name]["shape"] == t["shape"] and head[name]["dtype"] == t["dtype"]
  if not name.startswith("exp_avg"):
    assert hf["weight_map"][name] == t["file"]
    total += size
assert hf["metadata"]["total_size"] == total
assert len(hf["weight_map"]) * 3 == len(index["tensors"]) == 24
assert "exp_avg_sq.model.layers.1.mlp.experts.1.weight" in index["tensors"]
assert index["data"]["next_sequence"] == 4 * index["step"]
PY
rm -rf A
"$T" train run.yaml steps=300 checkpoint.dir=A checkpoint.every=290 log.metrics=A.jsonl >/dev/null
check "checkpoint's JSON and shards" python3 check.py A/step-000300

# kill -9 at random moments, mostly while the last save is written beside the steps; a run that comes to its end begins anew
rm -rf K K.jsonl
kills=0 ends=0
killed() { # DELAY: a run that is killed after it, or ends
	OM_TEST_NAP=2000 "$T" train run.yaml steps=300 checkpoint.dir=K checkpoint.every=7 checkpoint.keep=3 \
		log.metrics=K.jsonl >>K.out 2>&1 &
	pid=$!
	sleep "$1"
	if kill -9 $pid 2>/dev/null; then kills=$((kills + 1)); fi
	wait $pid 2>/dev/null
}
[ "$which" = all ] && most=100 || most=12
for i in $(seq 1000); do
	[ $kills -lt $most ] || break
	if killed "0.$((RANDOM % 3))$((RANDOM % 10))"; then
		ends=$((ends + 1))
		same A/step-000300 K/step-000300 || fail "another run after $kills kills"
		rm -rf K K.jsonl
	fi
done
for i in 1 2 4 8 16 30; do # longer in the end, on a machine that is slow
	killed $i && break
done
[ $kills -ge $most ] && [ -d K/step-000300 ] && ok || fail "killed only $kills times, or never done"
check "bitwise the same after $kills kills" same A/step-000300 K/step-000300
[ "$(ls -A K | tr '\n' ' ')" = "step-000287 step-000294 step-000300 " ] && ok || fail "keep=3 left $(ls -A K)"
cat >metrics.py <<'PY'
import json, sys
def bad(x): raise ValueError(x)
a, b = ([json.loads(l, parse_constant=bad) for l in open(f)] for f in sys.argv[1:3])
assert [x["step"] for x in b] == list(range(1, 301)), "steps"
for x, y in zip(a, b):
  for took in "tokens_per_s", "data_wait", "tflops": assert x.pop(took) >= 0 and y.pop(took) >= 0
  assert y.pop("resumed", y["step"] - 1) == y["step"] - 1
  assert x == y, (x, y)
assert x["tokens"] == 300 * 64 and x["moe"][1]["dead"] == 0 and x["load_balance"] == 1
assert abs(x["total"] - x["loss"] - 2 * (0.01 + 0.0005) - 1e-3 * x["head_z"]) < 1e-9 and abs(x["z"] - 0.5) < 1e-9
assert x["head_z"] > 1 and "skipped" not in x
PY
check "metrics after kills" python3 metrics.py A.jsonl K.jsonl

# what stays: the newest two, those of every ninth step, and those that are named, the one before training among them
rm -rf N
named="checkpoint.every=3 checkpoint.keep=2 checkpoint.keep_every=9 checkpoint.steps=[0,4,5]"
"$S" train run.yaml steps=30 checkpoint.dir=N $named >/dev/null
[ "$(ls -A N | tr '\n' ' ')" = "step-000000 step-000004 step-000005 step-000009 step-000018 step-000027 step-000030 " ] &&
	ok || fail "kept: $(ls -A N)"
cp -r N/step-000030 N30 && rm -r N/step-00000[1-9] N/step-0000[1-3]*
check "from the one before training" "$S" train run.yaml steps=30 checkpoint.dir=N $named
check "from the one before training, the same" same N30 N/step-000030
check "resumed, there is no other one before training" sh -c "! ls N | grep -v 'step-0000\(00\|04\|05\|09\|18\|27\|30\)$'"

# ---- signals ---------------------------------------------------------------------------------------------------
for sig in TERM INT HUP; do
	rm -rf C C.out
	# python resets what a background job ignores
	OM_TEST_NAP=2000 python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL), signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$S" train run.yaml steps=300 checkpoint.dir=C >C.out 2>&1 &
	pid=$!
	await C.out "^step "
	kill -$sig $pid
	wait $pid
	status=$?
	[ $status = 3 ] && grep -q 'stopped: step [0-9]* of 300, .*, checkpoint C/step-000' C.out && ok ||
		{ fail "SIG$sig: status $status"; tail -3 C.out; }
	check "resumes after SIG$sig" "$T" train run.yaml steps=300 checkpoint.dir=C
	check "bitwise after SIG$sig" same A/step-000300 C/step-000300
done
grep -q '^finishing step [0-9]*; again to stop without saving$' C.out && ok || fail "a signal is not answered"
# a step of 32 microbatches that takes long is left out, and nobody can tell afterwards
rm -rf L L.jsonl
"$work/deep" train run.yaml steps=8 checkpoint.dir=L checkpoint.every=1 log.metrics=L.jsonl >/dev/null
for v in deep deep-ahead; do
	before=1 # steps before the one that is left out
	[ $v = deep ] || before=2
	rm -rf C C.out C.jsonl
	OM_TEST_PAUSE=200000 "$work/$v" train run.yaml steps=8 checkpoint.dir=C log.metrics=C.jsonl >C.out 2>&1 &
	pid=$!
	await C.out "^step 1/8 "
	kill -TERM $pid
	wait $pid
	status=$?
	[ $status = 3 ] && grep -q '^finishing step '$((before + 1))'; again to stop without saving$' C.out &&
		grep -q '^step '$((before + 1))' is left out, as it takes long; it is done anew on resume$' C.out &&
		grep -q '^stopped: step '$before' of 8, .* checkpoint C/step-00000'$before'$' C.out && ok ||
		{ fail "$v: a long step, status $status"; tail -3 C.out; }
	check "$v: the step before is saved" same L/step-00000$before C/step-00000$before
	check "$v: goes on" "$work/$v" train run.yaml steps=8 checkpoint.dir=C log.metrics=C.jsonl
	check "$v: and gets where a run gets that was not stopped" same L/step-000008 C/step-000008
	check "$v: with the same metrics" python3 -c 'import json, sys
a, b = ([json.loads(l) for l in open(f)] for f in ("L.jsonl", "C.jsonl"))
for x in a + b: x.pop("tokens_per_s"), x.pop("data_wait"), x.pop("tflops"), x.pop("resumed", 0)
assert a == b and [x["step"] for x in a] == list(range(1, 9)), (a, b)'
done
rm -rf C C.out
OM_TEST_NAP=400000 "$work/deep" train run.yaml steps=8 checkpoint.dir=C >C.out 2>&1 &
pid=$!
await C.out "^start: "
check "a thread reads data, which no signal disturbs" sh -c "cd /proc/$pid/task && cd \$(grep -lx om-data */comm | cut -d/ -f1) &&
	grep -q '^SigBlk:.*fffffffe7ffbfeff$' status"
kill -TERM $pid
wait $pid
[ $? = 3 ] && grep -q '^stopped: step 1 of 8, .*, checkpoint C/step-000001$' C.out && ok ||
	{ fail "a step that ends soon is not left out"; tail -3 C.out; }
rm -f C.out
OM_TEST_NAP=3000000 "$T" train run.yaml >C.out 2>&1 &
pid=$!
await C.out "^start: "
kill -TERM $pid
sleep 0.1
kill -TERM $pid
wait $pid
[ $? = 143 ] && ok || fail "a second SIGTERM does not end it at once"
rm -f C.out
OM_TEST_NAP=10000 nohup "$T" train run.yaml >C.out 2>&1 &
pid=$!
await C.out "^start: "
kill -HUP $pid
wait $pid
[ $? = 0 ] && ok || fail "nohup does not keep SIGHUP away"
check "nobody reads the console" sh -c "{ $T train run.yaml log.every=1 log.metrics=pipe.jsonl; echo \$? >status; } |
	head -1; [ \$(cat status) = 0 ] && [ \$(wc -l <pipe.jsonl) = 30 ]"
check "a full console" sh -c "$T train run.yaml >/dev/full"
check "closed descriptors" sh -c "rm -f pipe.jsonl; $T train run.yaml log.metrics=pipe.jsonl <&- >&- 2>&- &&
	python3 -c 'import json; assert [json.loads(l)[\"step\"] for l in open(\"pipe.jsonl\")] == list(range(1, 31))'"

cat >edit_index.py <<'PY'
# edit_index.py INDEX PATTERN: takes what the pattern matches out of index.json, which then ends with its new checksum
import re, sys
s = open(sys.argv[1]).read()
s = re.sub(sys.argv[2], "", s, flags=re.S)
s = s[:s.rindex('"crc32c"')]
def crc32c(b):
  c = 0xffffffff
  for x in b:
    c ^= x
    for _ in range(8): c = c >> 1 ^ (0x82f63b78 if c & 1 else 0)
  return c ^ 0xffffffff
open(sys.argv[1], "w").write(s + '"crc32c": "%08x"}\n' % crc32c(s.encode()))
PY
edit_index() { python3 edit_index.py "$@"; }

# ---- a new run from the weights of a checkpoint ----------------------------------------------------------------------
cat >started.py <<'PY'
# started.py NEW FROM FRESH PATTERN: the weights of NEW are those of FRESH where the pattern matches, else FROM's; no moments
import json, re, struct, sys
def read(d):
  index, out = json.load(open(d + "/index.json")), {}
  for name, t in index["tensors"].items():
    b = open(d + "/" + t["file"], "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    first, end = json.loads(b[8:8 + n])[name]["data_offsets"]
    out[name] = b[8 + n + first:8 + n + end]
  return out
new, old, fresh = map(read, sys.argv[1:4])
assert new.keys() == old.keys()
for name, b in new.items():
  if name.startswith("exp_avg"): assert not any(b), name
  else: assert b == (fresh if re.search(sys.argv[4], name) else old)[name], name
PY
rm -rf N N2
begin="steps=5 checkpoint.every=1 checkpoint.steps=[0]"
"$S" train run.yaml $begin checkpoint.dir=N2 >/dev/null
says "start" 0 "checkpoint: begins with 8 of 8 weight tensors from A/step-000300, all else is a new run's" \
	"$S" train run.yaml $begin checkpoint.dir=N checkpoint.start=A/step-000300
check "start: weights" python3 started.py N/step-000000 A/step-000300 N2/step-000000 '^$'
says "start: goes on with its own" 0 "checkpoint: resumed from N/step-000005" \
	"$S" train run.yaml steps=6 checkpoint.dir=N checkpoint.start=A/step-000300
rm -rf N
says "start: some" 0 "checkpoint: begins with 6 of 8 weight tensors from A/step-000300" "$S" train run.yaml $begin \
	checkpoint.dir=N checkpoint.start=A/step-000300 "checkpoint.leave=['model.layers.1.*experts.?.weight']"
check "start: weights of some" python3 started.py N/step-000000 A/step-000300 N2/step-000000 'layers.1.*experts'
rm -rf N
says "start: one" 0 "checkpoint: begins with 1 of 8 weight tensors" "$S" train run.yaml $begin \
	checkpoint.dir=N checkpoint.start=A/step-000300 checkpoint.take=lm_head.weight
check "start: weights of one" python3 started.py N/step-000000 A/step-000300 N2/step-000000 '^(?!lm_head)'
s() { # s NAME TEXT ARGUMENTS...: refused
	says "start: $1" 1 "$2" "$S" train run.yaml checkpoint.start="$3" "${@:4}"
}
s "no such name" "checkpoint.leave: lm_haed.weight: no tensor is called so, here or in A/step-000300; the closest is lm_head.weight" \
	A/step-000300 checkpoint.leave=lm_haed.weight
s "a folder" "A is a folder of checkpoints, not one; the newest in it is checkpoint.start=A/step-000300" A
s "none there" "there is none in nowhere: it has no folder step-... and no index.json; correct checkpoint.start" \
	nowhere
says "start: another shape" 1 "A/step-000300: tensor lm_head.weight is F32 [256, 8], the trainer's is F32 [64, 4]; \
leave it out by checkpoint.leave, and it begins as in a new run" "$work/other" train run.yaml data.paths=low.bin \
	checkpoint.start=A/step-000300
says "start: another batch" 0 "from A/step-000300, all else is a new run's; not alike: batch.global is 4 there, 64 here" \
	"$work/deep" train run.yaml steps=2 lr.warmup=0 checkpoint.start=A/step-000300
says "start: other numbers" 1 "A/step-000300 holds F32, this trainer has F64" "$work/double" train run.yaml \
	checkpoint.start=A/step-000300
rm -rf D && cp -r A D
python3 - <<'PY'
import re
s = open("D/step-000300/index.json").read()
open("D/step-000300/index.json", "w").write(s.replace('"lm_head.weight"', '"lm_had.weight"', 1))
PY
edit_index D/step-000300/index.json '^$'
says "start: missing there" 1 "D/step-000300: tensor lm_head.weight [256, 8] is missing; leave it out by checkpoint.leave" \
	"$S" train run.yaml checkpoint.start=D/step-000300
says "start: missing here" 1 "D/step-000300: tensor lm_had.weight is none of this trainer's; leave it out by checkpoint.leave" \
	"$S" train run.yaml checkpoint.start=D/step-000300 checkpoint.leave=lm_head.weight

# ---- what a checkpoint must not survive --------------------------------------------------------------------------
fresh() { rm -rf D; cp -r A D; }
c() { # c NAME TEXT [overrides]: refused with the text, and the directory is as it was
	local before after
	before=$(cd D && find . -type f -exec md5sum {} + | sort)
	says "checkpoint: $1" 1 "$2" "$S" train run.yaml steps=310 checkpoint.dir=D "${@:3}"
	after=$(cd D && find . -type f -exec md5sum {} + | sort)
	[ "$before" = "$after" ] && ok || fail "checkpoint: $1: the directory changed"
}
fresh
flip() { python3 -c 'import sys
f = open(sys.argv[1], "r+b"); f.seek(int(sys.argv[2]), 2 if sys.argv[2][0] == "-" else 0); b = f.read(1)
f.seek(-1, 1); f.write(bytes([b[0] ^ 1]))' "$@"; }
N=D/step-000300
flip $N/model-00001-of-00002.safetensors -5
c "a flipped bit" "tensor model.layers.1.mlp.experts.1.weight: its checksum is "
c "says how to go on" "the file is damaged; resume from the one before it by checkpoint.resume=D/step-000290"
says "resume from the one before" 0 "D/step-000300 is later than the one resumed from; moved to D/old-step-000300" \
	"$S" train run.yaml steps=300 checkpoint.dir=D checkpoint.resume=D/step-000290
check "and get there" same A/step-000300 D/step-000300
fresh
truncate -s -1 $N/optimizer-00002-of-00004.safetensors
c "truncated" "optimizer-00002-of-00004.safetensors: it is truncated"
fresh
truncate -s 5 $N/model-00001-of-00002.safetensors
c "cut to 5 bytes" "model-00001-of-00002.safetensors: it is truncated"
fresh
rm $N/model-00002-of-00002.safetensors
c "a shard is missing" "model-00002-of-00002.safetensors: No such file or directory"
fresh
flip $N/index.json 12
c "index.json flipped" "index.json: is damaged; resume from"
fresh
truncate -s 500 $N/index.json
c "index.json cut" "index.json: is damaged"
rm $N/index.json
c "no index.json" "index.json: No such file or directory"
fresh
flip $N/model-00001-of-00002.safetensors 60
c "header flipped" "model-00001-of-00002.safetensors: "
fresh
mv D/step-000300 D/step-000305
c "renamed" "index.json: is of step 300, its directory is not"
fresh
c "other data" "D/step-000300 was trained with a token count of 9000, now it is 2400; restore that, or go on" \
	data.paths=half.txt
c "other seed" "was trained with seed 0, now it is 5" seed=5
c "other order" "was trained with data.order shuffle, now it is sequential" data.order=sequential
tr a b <corpus.txt >swapped.txt
c "other text of that size" "was trained with a data checksum of " data.paths=swapped.txt
one="is one checkpoint, not the folder of them; use checkpoint.dir=D, or to begin another folder with it checkpoint.resume=D"
for d in D/step-000300 D/step-000300//; do
	says "checkpoint.dir=$d" 1 "checkpoint: checkpoint.dir = $d $one/step-000300" "$S" train run.yaml checkpoint.dir=$d
	says "eval of checkpoint.dir=$d" 1 "checkpoint: checkpoint.dir = $d $one" \
		"$S" eval run.yaml eval.paths=half.txt checkpoint.dir=$d
done
says "checkpoint.dir here" 1 "use checkpoint.dir=., or" sh -c "cd D && $S train ../run.yaml data.paths=../corpus.txt \
	checkpoint.dir=step-000300"
c "resume=none" "D/step-000300 is here already; use checkpoint.resume=auto to go on from it" checkpoint.resume=none
c "a folder of them" "D is a folder of checkpoints, not one; the newest in it is checkpoint.resume=D/step-000300" \
	checkpoint.resume=D
c "no such checkpoint" "there is none in E/step-000001: it has no folder step-... and no index.json; correct \
checkpoint.resume" checkpoint.resume=E/step-000001
says "past the end" 1 "is at step 300, past the run's end: steps is 200; raise steps" \
	"$S" train run.yaml checkpoint.dir=D steps=200
says "other data, asked for" 0 "done: step 310 of 310" \
	"$S" train run.yaml steps=310 checkpoint.dir=D checkpoint.ignore_data=true data.paths=half.txt
says "all done" 0 "done: all 310 steps are done" "$S" train run.yaml steps=310 checkpoint.dir=D data.paths=half.txt \
	checkpoint.ignore_data=true
says "another model" 1 "D/step-000310 is of model bigram (f00dbigram4), this trainer is other (f00dother4): vocab_size is \
256 there, 64 here; d_model is 8 there, 4 here; resume with the trainer that wrote it" \
	"$work/other" train run.yaml data.paths=low.bin checkpoint.dir=D
says "another batch" 1 "this trainer is bigram (f00ddeep): batch.global is 4 there, 64 here; resume with" \
	"$work/deep" train run.yaml checkpoint.dir=D
says "another format" 1 "is F32 [256, 8], the trainer's is F64 [256, 8]" "$work/double" train run.yaml checkpoint.dir=D
# one that a trainer of before there was a description has written
cp -r D DD
edit_index DD/step-000310/index.json '"description": \{.*?\},\n'
says "another model, no description" 1 "this trainer is other (f00dother4): tensor model.embed_tokens.weight is F32 \
[256, 8], the trainer's is F32 [64, 4]" "$work/other" train run.yaml data.paths=low.bin checkpoint.dir=DD
says "another batch, no description" 1 "this trainer is bigram (f00ddeep); resume with the trainer that wrote it" \
	"$work/deep" train run.yaml checkpoint.dir=DD
says "no description, the same model" 0 "all 310 steps are done" "$S" train run.yaml steps=310 checkpoint.dir=DD \
	checkpoint.ignore_data=true
OM_TEST_NAP=100000 "$T" train run.yaml checkpoint.dir=D steps=400 checkpoint.ignore_data=true >D.out &
pid=$!
await D.out "^start: "
says "two trainers" 1 "D: another trainer is writing here" "$S" train run.yaml checkpoint.dir=D
{ kill -9 $pid; wait $pid; } 2>/dev/null
mkdir -p D/.tmp-step-000777
touch D/.tmp-step-000777/x D/mine
check "leftovers are removed" sh -c "$T train run.yaml steps=310 checkpoint.dir=D checkpoint.ignore_data=true &&
	[ ! -e D/.tmp-step-000777 ] && [ -e D/mine ]"
mkdir -p D/.tmp-step-000777/mine
says "a leftover with a folder in it" 1 "D/.tmp-step-000777, which a killed run left, cannot be removed: Directory not \
empty; remove it" "$S" train run.yaml checkpoint.dir=D
touch file
says "checkpoint.dir is a file" 1 "file" "$S" train run.yaml checkpoint.dir=file
says "a fresh start" 0 "fresh start: no checkpoint in new" "$S" train run.yaml checkpoint.dir=new
check "which a resumed run has not" sh -c "! $S train run.yaml checkpoint.dir=new steps=31 | grep 'fresh start'"
check "deep directories" "$S" train run.yaml checkpoint.dir=x/y/z checkpoint.keep_every=0 log.tensorboard=u/v/w
want "of TensorBoard's too" "$(ls u/v/w | wc -l)" 1
(
	ulimit -f 4
	says "no space" 1 "there is no whole checkpoint; raise ulimit -f, and train again" "$T" train run.yaml checkpoint.dir=F
	[ -z "$(ls -A F)" ] || fail "no space: left $(ls -A F)"
	echo "$passed $failed" >counts
)
read -r passed failed <counts

# ---- numbers that are none, metrics ------------------------------------------------------------------------------
rm -rf G
says "loss is NaN" 1 "bigram: rank 0, step 12, loss: is nan, the step was not applied; lower lr.peak or raise \
lr.warmup, and resume from G/step-000010" env OM_TEST_NAN=12 "$S" train run.yaml checkpoint.dir=G checkpoint.every=5
says "norm is NaN" 1 "bigram: rank 0, step 11, gradient norm: is nan" \
	env OM_TEST_NORM=1 "$S" train run.yaml checkpoint.dir=G checkpoint.every=5
[ "$(ls G | tail -1)" = step-000010 ] && ok || fail "a bad step was saved"
rm -rf G
g() { # g NAME TEXT N: where the loss is NaN from step N of the process on
	says "$1" 1 "$2" env OM_TEST_FROM="$3" "$S" train run.yaml checkpoint.dir=G checkpoint.every=1 checkpoint.keep=1 \
		checkpoint.async=false
}
g "a checkpoint that no good step followed" "bigram: rank 0, step 6, loss: is nan, the step was not applied; lower \
lr.peak or raise lr.warmup, and resume by checkpoint.resume=G/step-000004: G/step-000005 is suspect" 6
[ "$(ls G | tr '\n' ' ')" = "step-000004 step-000005 " ] && ok || fail "keep=1 left $(ls G)"
g "and it is resumed from" "step 6, loss: is nan, the step was not applied; lower lr.peak or raise lr.warmup, and \
resume from an earlier one by checkpoint.resume=G/step-000004: G/step-000005, which this run began with, is at fault" 1
says "the one before is good" 0 "G/step-000005 is later than the one resumed from" \
	"$S" train run.yaml checkpoint.dir=G checkpoint.every=1 checkpoint.keep=1 checkpoint.resume=G/step-000004
[ "$(ls G | tr '\n' ' ')" = "old-step-000005 step-000030 " ] && ok || fail "keep=1 left $(ls G)"
rm -r G/step-000030
g "the first one is bad" "step 2, loss: is nan, the step was not applied; lower lr.peak or raise lr.warmup, and start \
anew with another checkpoint.dir: G/step-000001 is suspect, no finite step came after it" 2
g "and resumed from" "start anew with another checkpoint.dir: G/step-000001, which this run began with, is at fault" 1
says "whose gradient" 1 "gradient norm: is nan by that of model.layers.1.mlp.experts.1.weight, the step was not applied" \
	env OM_TEST_NORM=2 OM_TEST_AT=2256 "$S" train run.yaml
check "and of a skipped step" sh -c "OM_TEST_NORM=2 OM_TEST_AT=2256 $S train run.yaml skip_step.sigma=6 log.metrics=NF &&
	grep -c not_finite NF | grep -qx 1 && grep '^{.step.: 2,' NF | grep -q '.not_finite.: .model.layers.1.mlp.experts.1.weight.'"
check "a new run moves old metrics" sh -c "$S train run.yaml log.metrics=A.jsonl && [ \$(wc -l <A.jsonl) = 30 ] &&
	[ \$(wc -l <A.jsonl.old) = 300 ] && $S train run.yaml log.metrics=A.jsonl && [ -e A.jsonl.old.2 ]"
touch A.jsonl.tmp
check "a resumed run spares METRICS.tmp" sh -c "$S train run.yaml checkpoint.dir=W steps=5 log.metrics=A.jsonl &&
	$S train run.yaml checkpoint.dir=W steps=8 log.metrics=A.jsonl && [ -e A.jsonl.tmp ] && [ ! -s A.jsonl.tmp ] &&
	[ \$(wc -l <A.jsonl) = 8 ]"
check "metrics to a pipe" sh -c "$S train run.yaml log.metrics=/dev/stderr 2>&1 >/dev/null | grep -q '^{.step.: 30,'"
printf 'lr:\ncheckpoint:\n  # dir: x\n' >>sections.yaml
check "empty sections" "$S" train sections.yaml data.paths=corpus.txt steps=3
says "not a metrics file" 1 "metrics: run.yaml: is not a file of metrics; give log.metrics another path" \
	"$S" train run.yaml log.metrics=run.yaml
mkfifo metrics.pipe
says "metrics to a pipe that nobody reads" 1 "metrics: metrics.pipe: is a pipe that nobody reads; correct log.metrics" \
	timeout 5 "$S" train run.yaml log.metrics=metrics.pipe
says "metrics nowhere" 1 "metrics: no/where: No such file or directory; correct log.metrics" \
	"$S" train run.yaml log.metrics=no/where
rm -rf H
"$T" train run.yaml checkpoint.dir=H log.metrics=H.jsonl >/dev/null
printf '{"step": 31, "tok' >>H.jsonl
check "a torn line goes" sh -c "$S train run.yaml steps=35 checkpoint.dir=H log.metrics=H.jsonl &&
	[ \$(wc -l <H.jsonl) = 35 ] && python3 -c 'import json; [json.loads(l) for l in open(\"H.jsonl\")]'"
lr() { # METRICS KEY=VALUE...: the rates of a run, by its metrics
	"$S" train lr.yaml log.metrics="$1" lr.peak=1e-2 lr.decay_shape=minus_sqrt "${@:2}" >/dev/null &&
		sed -i 's/.*\("lr": [^,]*\).*/\1/' "$1"
}
printf 'data: {paths: [corpus.txt]}\nsteps: 30\n' >lr.yaml
lr LR1 lr.schedule=wsd lr.warmup=5 lr.decay=10
lr LR2 lr.schedule=wsd lr.unit=tokens lr.warmup=320 lr.decay=640
lr LR3 lr.schedule=wsds lr.periods=30 lr.warmup=5 lr.decay=10
lr LR4 lr.schedule=wsd steps=20 lr.length=30 lr.warmup=5 lr.decay=10
cat >>lr.yaml <<EOF
lr:
  peak: 1e-2
  schedule: stages
  stages: ["1 over 5 from 0", "1 over 15", "0.1 over 10 minus_sqrt"]
EOF
"$S" train lr.yaml log.metrics=LR5 >/dev/null
sed -i 's/.*\("lr": [^,]*\).*/\1/' LR5
check "a schedule in tokens, as a period, as stages, and one that a run leaves early" sh -c "[ \$(wc -l <LR1) = 30 ] &&
	cmp LR1 LR2 && cmp LR1 LR3 && head -n 20 LR1 | cmp - LR4 && cmp LR1 LR5"
tb="train run.yaml eval.paths=corpus.txt eval.every=10 eval.sequences=4 checkpoint.dir=TBC log.metrics=TB.jsonl log.tensorboard=TB"
check "tensorboard" sh -c "$S $tb steps=25 checkpoint.every=10 && sleep 1 && $S $tb steps=30 checkpoint.resume=TBC/step-000020 &&
	[ \$(ls TB | wc -l) = 2 ] && python3 $root/tests/runtime/events.py TB TB.jsonl"
cat >report.py <<'PY'
import json, re
lines = [json.loads(l) for l in open("TB.jsonl")]
run, = json.loads(re.search('id="data">(.*?)</script>', open("TB.html").read(), re.S)[1])
steps = [x for x in lines if "loss" in x]
assert run["last"] == 30 and [21, "restart", "from the checkpoint of step 20"] in run["events"], run["events"]
assert ["%.7g" % x["loss"] for x in steps] == ["%.7g" % y for y in run["series"]["loss"]["y"]], run["series"]["loss"]
assert all(("load" in l) == (x["step"] % 10 == 0) for x in steps for l in x["moe"])
l = steps[9]["moe"][0]
assert run["heats"]["moe/%d/load" % l["layer"]]["rows"] == len(l["load"]), run["heats"]
PY
check "report" sh -c "$S report TB.jsonl >TB.html && python3 report.py"
says "report of nothing" 1 "report: none.jsonl: " "$S" report none.jsonl
check "tensorboard alone" sh -c "$S train run.yaml steps=5 log.tensorboard=TB2 && grep -aq grad_norm TB2/events.*"
says "tensorboard nowhere" 1 "tensorboard: corpus.txt/where: Not a directory; correct log.tensorboard" \
	"$S" train run.yaml log.tensorboard=corpus.txt/where
check "terminal: a bar" python3 -c 'import pty, sys, os
out = b""
def read(fd):
  global out
  d = os.read(fd, 4096)
  out += d
  return d
status = pty.spawn(sys.argv[1:], read)
assert status == 0 and b"\rstep 1/30 [" in out and b"done: step 30 of 30" in out, out
assert b"step  1/30  loss" in out and b"step 30/30  loss" in out, out' env LC_ALL=C NO_COLOR=1 "$S" train run.yaml
check "terminal: a bar in Unicode and colour, and the losses" python3 -c 'import pty, sys, os, re
out = b""
def read(fd):
  global out
  d = os.read(fd, 4096)
  out += d
  return d
status = pty.spawn(sys.argv[1:], read)
bars = [b.decode() for b in re.findall(rb"\rstep \d+/600 (.*?)\x1b\[K", out)]
assert status == 0 and all(re.match("▕\x1b\\[36m█*[▏▎▍▌▋▊▉]?\x1b\\[0m *▏", b) for b in bars), bars
drawn = [m.group(1) for m in (re.search("▏ ([▁▂▃▄▅▆▇█]+) +loss", b) for b in bars) if m]
# a loss that falls begins with the highest block; of 600 steps there are 12 blocks at most
assert drawn and all(d[0] == "█" and 2 <= len(d) <= 12 for d in drawn), bars' \
	env -u LC_ALL -u NO_COLOR LC_CTYPE=C.UTF-8 OM_TERMINAL=120 "$S" train run.yaml steps=600

# ---- SkipStep ------------------------------------------------------------------------------------------------------
# Step 25 is a spike. Up to it nothing differs from a run without SkipStep, its weights are those of step 24.
skip() { # skip DIR [overrides]
	local dir=$1
	shift
	"$T" train run.yaml steps=40 skip_step.sigma=6 skip_step.window=16 checkpoint.dir="$dir" "$@"
}
weights() { for f in "$1"/model-*.safetensors "$1"/optimizer-*; do cmp "$f" "$2/$(basename "$f")" || return 1; done; }
rm -rf P Q U
OM_TEST_SPIKE=25 skip P checkpoint.every=1 log.metrics=P.jsonl >P.out
check "weights are not those of the spike" weights P/step-000024 P/step-000025
check "the next step trains" sh -c "! cmp P/step-000025/model-00001-of-00002.safetensors \
	P/step-000026/model-00001-of-00002.safetensors"
grep -q '^step 25/40 .*  1 skipped .*(this step was skipped)$' P.out &&
	grep -q '^step 30/40 .*  1 skipped .* left$' P.out && grep -q 'loss [0-9.]*, 1 skipped, checkpoint' P.out &&
	ok || fail "the console does not say what was skipped"
says "nan has no sign" 0 "step  3/30  loss nan  lr" env OM_TEST_NAN=3 "$T" train run.yaml skip_step.sigma=6
says "routes that are cut" 0 "% of routes cut  " env OM_TEST_CUT=1 "$T" train run.yaml
check "of one: one" sh -c "$T train run.yaml data.paths=least.txt steps=5 threads=1 >one.out; grep -q 'a step, 1 thread$' one.out &&
	grep -q '^data: 17 tokens in 1 file, 1 sequence, an' one.out && grep -q ', 320 tokens in 0[.][0-9][0-9] s, loss' one.out"
check "without a spike, nothing is skipped" sh -c "$T train run.yaml steps=24 checkpoint.dir=Q lr.schedule=constant &&
	$T train run.yaml steps=24 lr.schedule=constant checkpoint.dir=U skip_step.sigma=6 skip_step.window=16"
check "and SkipStep changes no bit" weights Q/step-000024 U/step-000024
cat >skip.py <<'PY'
import json, math, sys
rows = [json.loads(l) for l in open(sys.argv[1])]
skipped = json.loads(sys.argv[2])
assert [x["step"] for x in rows] == list(range(1, 41))
assert [x["step"] for x in rows if x["skipped"]] == skipped, [x["step"] for x in rows if x["skipped"]]
assert [x["skipped_total"] for x in rows] == [sum(s <= i for s in skipped) for i in range(1, 41)]
index = json.load(open(sys.argv[3] + "/step-000040/index.json"))["skip_step"]
kept = [x for x in rows if not x["skipped"]][-16:]
assert index["skipped"] == len(skipped) and index["in_a_row"] == 0
for key, name in ("loss", "loss"), ("norm", "grad_norm"):
  assert len(index[key]) == 16
  assert all(abs(a - x[name]) <= 1e-9 * a for a, x in zip(index[key], kept)), key
PY
check "metrics and windows" python3 skip.py P.jsonl '[25]' P
# resumed within the windows' filling and right after the spike; a spike of another kind each
rm -rf R
check "SkipStep: parts" sh -c "
	OM_TEST_SPIKE=25 $T train run.yaml steps=40 skip_step.sigma=6 skip_step.window=16 checkpoint.dir=R \
		checkpoint.every=5 log.metrics=R.jsonl && rm -r R/step-000040 R/step-00003[05] &&
	$T train run.yaml steps=40 skip_step.sigma=6 skip_step.window=16 checkpoint.dir=R log.metrics=R.jsonl"
check "SkipStep: resumes to the bit" weights P/step-000040 R/step-000040
check "SkipStep: and to the bit of its windows" cmp P/step-000040/index.json R/step-000040/index.json
check "SkipStep: metrics of the parts" python3 skip.py R.jsonl '[25]' R
check "SkipStep: resumed before the spike" sh -c "rm -r R/step-000040 R/step-000025 &&
	OM_TEST_SPIKE=5 $T train run.yaml steps=40 skip_step.sigma=6 skip_step.window=16 checkpoint.dir=R \
		log.metrics=R.jsonl"
check "SkipStep: skips it too, by the windows it loaded" cmp P/step-000040/index.json R/step-000040/index.json
for what in NAN NORM; do
	rm -rf R R2.jsonl
	env OM_TEST_$what=3 "$T" train run.yaml steps=3 lr.warmup=0 skip_step.sigma=6 checkpoint.dir=R \
		checkpoint.every=1 >/dev/null
	check "SkipStep: $what changes nothing" weights R/step-000002 R/step-000003
	rm -r R
	export OM_TEST_$what=3
	OM_TEST_SPIKE=25 skip R log.metrics=R2.jsonl >/dev/null
	unset OM_TEST_$what
	check "SkipStep: $what" python3 skip.py R2.jsonl '[3, 25]' R
done
# a checkpoint of before there was SkipStep, and one with other windows
cp -r P V
rm -r V/step-00002[6-9] V/step-00003* V/step-000040
edit_index V/step-000025/index.json '"skip_step": \{.*?\},\n'
grep -q skip_step V/step-000025/index.json && fail "skip_step is still in the index" || ok
check "no windows in the checkpoint" "$S" train run.yaml steps=40 skip_step.sigma=6 skip_step.window=16 checkpoint.dir=V
python3 -c 'import json
s = json.load(open("V/step-000040/index.json"))["skip_step"]
assert s["skipped"] == 0 and len(s["loss"]) == len(s["norm"]) == 15, s' && ok || fail "windows that were not there"
check "a shorter window keeps the newest" sh -c "$S train run.yaml steps=41 skip_step.sigma=6 skip_step.window=4 \
	checkpoint.dir=V && python3 -c 'import json
a, b = (json.load(open(\"V/step-0000%d/index.json\" % i))[\"skip_step\"] for i in (40, 41))
assert b[\"loss\"][:3] == a[\"loss\"][-3:] and b[\"norm\"][:3] == a[\"norm\"][-3:] and len(b[\"loss\"]) == 4'"
rm -rf R
for from in 2 1; do # the second time resumes with 29 skipped in a row
	[ $from = 2 ] && why="R/step-000030 is suspect" || why="R/step-000030, which this run began with, is at fault"
	says "50 skipped in a row, $from" 1 "bigram: rank 0, step 51, skip_step: 50 steps in a row were skipped; lower \
lr.peak or raise skip_step.sigma, and start anew with another checkpoint.dir: $why" env OM_TEST_FROM=$from \
		"$S" train run.yaml steps=200 skip_step.sigma=6 checkpoint.dir=R checkpoint.every=30
done
says "3 skipped in a row" 1 "step 4, skip_step: 3 steps in a row were skipped" env OM_TEST_FROM=2 \
	"$S" train run.yaml steps=200 skip_step.sigma=6 skip_step.most=3 checkpoint.dir=
# rollback: a run whose 8th step is NaN goes on from step 5, with the data of the 9th. A run on a text without those of
# steps 6 to 8 gives the same weights; the label that looks over the seam is the same.
python3 - <<'PY'
g, s = 4 * 16, bytearray(open("corpus.txt", "rb").read()[:4000])
s[5 * g] = s[8 * g]
open("seam.txt", "wb").write(s)
open("cut.txt", "wb").write(s[:5 * g] + s[8 * g:])
PY
roll() { # DIR COMMAND...
	local dir=$1
	shift
	"$@" run.yaml data.order=sequential 'data.paths=[seam.txt]' steps=20 checkpoint.every=5 skip_step.rollbacks=2 \
		checkpoint.dir="$dir" log.metrics="$dir.jsonl" >"$dir.out" 2>&1
}
same_step() { # NAME DIR DIR STEP
	[ -s "$2/step-$4/index.json" ] && cmp <(cat "$2/step-$4"/*.safetensors) <(cat "$3/step-$4"/*.safetensors) && ok || fail "$1: other weights"
}
rm -rf RO RC RA RK
check "without the data" "$T" train run.yaml data.order=sequential 'data.paths=[cut.txt]' steps=20 checkpoint.every=5 checkpoint.dir=RC
for t in "RO $T" "RA $work/ahead"; do
	roll ${t%% *} env OM_TEST_NAN=8 "${t#* }" train
	want "rollback" "$? $(grep -c '^rollback 1 of at most 2: back to R[OA]/step-000005, the data of 3 steps are left out$' "${t%% *}.out")" "0 1"
	same_step "rollback" "${t%% *}" RC 000020
done
grep -q '"skip_step": {"skipped": 0, "in_a_row": 0, "rollbacks": 1, "left_out": 3, "left_sequences": 12' RO/step-000010/index.json &&
	ok || fail "rollback: index.json"
want "rollback: metrics" "$(grep -c '"step"' RO.jsonl) $(grep -c '"rollbacks": 1' RO.jsonl)" "20 15"
cp -r RO RK && rm -rf RK/step-000015 RK/step-000020
roll RK "$T" train && same_step "rollback, then resumed" RK RO 000020
rm -rf RK RN
says "rollbacks come to an end" 1 "bigram: rank 0, step 6, loss: is nan, the step was not applied; lower lr.peak" sh -c "
	OM_TEST_FROM=8 $S train run.yaml data.order=sequential steps=20 checkpoint.every=5 skip_step.rollbacks=2 checkpoint.dir=RN"
want "rollbacks: how many" "$(grep -o '^rollback .*' out)" "rollback 1 of at most 2: back to RN/step-000005, the data of 3 steps are left out
rollback 2 of at most 2: back to RN/step-000005, the data of 1 step are left out"
rm -rf RN
says "nothing to go back to" 1 "step 2, loss: is nan, the step was not applied" env OM_TEST_NAN=2 "$S" train run.yaml steps=20 \
	checkpoint.every=5 skip_step.rollbacks=2 checkpoint.dir=RN
rm -rf RN
says "back after skipped steps" 1 "step 8, skip_step: 3 steps in a row were skipped" env OM_TEST_FROM=9 "$S" train run.yaml steps=20 \
	checkpoint.every=5 skip_step.sigma=6 skip_step.most=3 skip_step.rollbacks=1 checkpoint.dir=RN
grep -q '^rollback 1 of at most 1: back to RN/step-000005, the data of 6 steps are left out$' out && ok || fail "back after skipped: $(grep roll out)"
# what a rollback gave up is pruned as other checkpoints are, what a user gave up is not
want "what was given up" "$(echo RN/*)" "RN/bad-step-000010 RN/step-000005"
mkdir RN/bad-step-000007 RN/old-step-000008 RN/old-step-000009
check "and is pruned" "$S" train run.yaml steps=20 checkpoint.dir=RN checkpoint.every=5 checkpoint.keep=1
want "what is left of it" "$(echo RN/*)" "RN/bad-step-000010 RN/old-step-000008 RN/old-step-000009 RN/step-000020"
says "the bar of skipped steps" 0 "1 skipped" python3 -c 'import os, pty, sys
os.environ["OM_TEST_SPIKE"] = "25"
sys.exit(pty.spawn(sys.argv[1:]))' "$S" train run.yaml skip_step.sigma=6 skip_step.window=16

# ---- evaluation ----------------------------------------------------------------------------------------------------
tail -c 500 corpus.txt >held.txt # 31 sequences: the last microbatch is half of padding
rm -rf J X J.jsonl X.jsonl
"$T" train run.yaml checkpoint.dir=X checkpoint.every=3 log.metrics=X.jsonl >/dev/null
"$S" train run.yaml checkpoint.dir=J checkpoint.every=3 log.metrics=J.jsonl eval.every=7 eval.paths=held.txt >J.out
check "evaluation disturbs nothing" weights X/step-000030 J/step-000030
check "nor at any step" weights X/step-000009 J/step-000009
says "eval" 0 "$(grep -o 'eval: step 30, loss .* in' J.out)" "$S" eval run.yaml checkpoint.dir=J eval.paths=held.txt
[ "$(grep -c '^eval: ' J.out)" = 5 ] && ok || fail "eval.every=7 of 30 steps is not 5 evaluations"
says "eval of an older one" 0 "$(grep -o 'eval: step 21, loss .* in' J.out)" "$S" eval run.yaml \
	checkpoint.resume=J/step-000021 eval.paths=held.txt steps=5 data.paths=none
cat >bigram.py <<'PY'
# the bigram model in doubles: of a checkpoint, the loss of a label behind a token
import json, math, struct
def model(d):
  index, D, known = json.load(open(d + "/index.json"))["tensors"], 8, {}
  def tensor(name):
    f = open(d + "/" + index[name]["file"], "rb")
    size = struct.unpack("<Q", f.read(8))[0]
    a, b = json.loads(f.read(size))[name]["data_offsets"]
    f.seek(8 + size + a)
    return struct.unpack("<%df" % ((b - a) // 4), f.read(b - a))
  emb, head = tensor("model.embed_tokens.weight"), tensor("lm_head.weight")
  norm = [tensor("model.layers.%d.norm.weight" % l) for l in range(2)]
  mat = [[tensor("model.layers.%d.mlp.experts.%d.weight" % (l, e)) for e in range(2)] for l in range(2)]
  def loss(t, label):
    if t not in known:
      x = emb[t * D:t * D + D]
      for l in range(2):
        y = [norm[l][i] * x[i] for i in range(D)]
        x = [x[i] + sum(mat[l][t % 2][i * D + j] * y[j] for j in range(D)) for i in range(D)]
      z = [sum(a * b for a, b in zip(head[v * D:v * D + D], x)) for v in range(256)]
      known[t] = z, math.log(sum(map(math.exp, z)))
    return known[t][1] - known[t][0][label]
  return loss
PY
cat >eval.py <<'PY'
# what a checkpoint's loss is, beside what the trainer says
import json, math, sys, bigram
loss, n = bigram.model(sys.argv[1]), 16 * int(sys.argv[3])
text = open(sys.argv[2], "rb").read()
mean = sum(loss(t, label) for t, label in list(zip(text, text[1:]))[:n]) / n
row = [r for r in map(json.loads, open(sys.argv[4])) if "eval_loss" in r and r["step"] == int(sys.argv[5])][-1]
assert set(row) == {"step", "eval_loss", "eval_perplexity", "eval_bits_per_byte", "eval_tokens"}
assert row["eval_tokens"] == n, row
assert abs(row["eval_loss"] - mean) < 1e-6, (row, mean)
assert abs(row["eval_perplexity"] / math.exp(row["eval_loss"]) - 1) < 1e-8
assert abs(row["eval_bits_per_byte"] * math.log(2) - row["eval_loss"]) < 1e-8
PY
check "all 31 sequences count, and no padding" python3 eval.py J/step-000030 held.txt 31 J.jsonl 30
check "metrics' lines are in order" python3 -c 'import json
rows = [json.loads(l) for l in open("J.jsonl")]
assert [r["step"] for r in rows if "eval_loss" in r] == [7, 14, 21, 28, 30] and len(rows) == 35
assert [r["step"] for r in rows] == sorted(r["step"] for r in rows)'
before=$(find J -type f -exec md5sum {} + | sort)
check "eval.sequences, and metrics if asked" sh -c "$S eval run.yaml checkpoint.dir=J eval.paths=held.txt \
	eval.sequences=5 log.metrics=J.jsonl && python3 eval.py J/step-000030 held.txt 5 J.jsonl 30 &&
	[ \$(wc -l <J.jsonl) = 36 ] && $S eval run.yaml checkpoint.dir=J eval.paths=held.txt eval.sequences=1000 \
	checkpoint.resume=J/step-000009 log.metrics=J2.jsonl && python3 eval.py J/step-000009 held.txt 31 J2.jsonl 9"
[ "$before" = "$(find J -type f -exec md5sum {} + | sort)" ] && ok || fail "eval writes into the checkpoints"
check "eval while it is trained" sh -c "OM_TEST_NAP=50000 $T train run.yaml steps=40 checkpoint.dir=J >/dev/null &
	sleep 0.2; $S eval run.yaml checkpoint.dir=J eval.paths=held.txt; s=\$?; kill -9 \$!; exit \$s"
check "only at the end" sh -c "$T train run.yaml eval.paths=held.txt >X.out && [ \$(grep -c ^eval: X.out) = 1 ]"
grep -q '^eval: step 30, ' X.out && ok || fail "the end is not evaluated"
sed '/^steps/d' run.yaml >no_steps.yaml # its schedule counts for nothing
check "no steps" "$S" eval no_steps.yaml checkpoint.dir=J eval.paths=held.txt
says "but to train" 1 "no_steps.yaml: error: steps is missing" "$S" train no_steps.yaml
e() { says "eval: $1" 1 "$2" "$S" eval run.yaml "${@:3}"; }
e "no data" "run.yaml: error: eval.paths is missing" checkpoint.dir=J
e "an empty list" "eval.paths is missing" eval.paths=[]
e "no checkpoint.dir" "checkpoint: there is none to evaluate, checkpoint.dir is not set; set checkpoint.resume to the \
path of one" eval.paths=held.txt
e "an empty one" "checkpoint: there is none to evaluate, many has none; set" eval.paths=held.txt checkpoint.dir=many
e "resume=none" "checkpoint: there is none to evaluate, checkpoint.resume is none" eval.paths=held.txt \
	checkpoint.dir=J checkpoint.resume=none
e "files" "bigram: rank 0, eval: none.txt: No such file or directory; correct eval.paths" eval.paths=none.txt
e "formats" "eval: odd.bin: has 17,999 bytes, not a multiple of 2; it is truncated, or its format is not uint16: set \
eval.format" eval.paths=odd.bin
e "tokens" "bigram: rank 0, eval: bad.bin: token 1234 is 326" eval.paths=bad.bin checkpoint.dir=J
e "tokens further on" "bigram: rank 0, step 30, eval: bad.u32: token 1234 is 4000000000" eval.paths=bad.u32 checkpoint.dir=J
says "eval without run.yaml" 2 "trainer: eval takes run.yaml" "$S" eval
says "eval of no run.yaml" 1 "usage: trainer eval run.yaml" "$S" eval none.yaml
says "eval --help" 0 "usage: trainer eval run.yaml" "$S" eval --help
says "held-out data are checked first" 1 "rank 0, eval: none.txt" "$S" train run.yaml eval.paths=none.txt
rm -rf R C.out
OM_TEST_NAP=1500 "$T" train run.yaml steps=9999 eval.paths=corpus.txt eval.every=1 checkpoint.dir=R >C.out 2>&1 &
pid=$!
await C.out "^eval: "
kill -TERM $pid
wait $pid
status=$?
[ $status = 3 ] && grep -q '^stopped: step .*, checkpoint R/step-' C.out && ok ||
	{ fail "SIGTERM within an evaluation: status $status"; tail -3 C.out; }
. "$root/tests/runtime/quiz.sh"

# ---- schedules -----------------------------------------------------------------------------------------------------
rates() { rm -f L.jsonl; "$T" train run.yaml log.metrics=L.jsonl "$@" >/dev/null &&
	python3 -c 'import json; print(*(json.loads(l)["lr"] for l in open("L.jsonl")))'; }
r() { # r NAME RATES [overrides]: rates of steps 4, 5, 6, 20, 25, 30
	local got
	got=$(rates "${@:3}" | cut -d' ' -f4,5,6,20,25,30)
	[ "$got" = "$2" ] && ok || fail "$1: $got"
}
r inverse_sqrt "0.008 0.01 0.009128709292 0.005 0.004472135955 0.004082482905" lr.schedule=inverse_sqrt
r power "0.01 0.01 0.01 0.005 0.004 0.003333333333" lr.schedule=power lr.warmup=0 lr.reference=10 lr.exponent=1
r wsd "0.008 0.01 0.01 0.01 0.01 0.001" lr.schedule=wsd
[ "$(rates lr.schedule=wsd steps=5 lr.warmup=0)" = "0.01 0.01 0.01 0.01 0.001" ] && ok || fail "wsd of five steps"
[ "$(rates lr.schedule=wsd steps=5)" = "0.002 0.004 0.006 0.008 0.01" ] && ok || fail "wsd of nothing but warm-up"
r decay_from "0.008 0.01 0.01 0.01 0.006 0.002" lr.schedule=constant lr.decay_from=20 lr.final=0.2
r "decay_from of wsd" "0.008 0.01 0.01 0.01 0.002 0.002" lr.schedule=wsd lr.decay_from=20 lr.decay=5 lr.final=0.2
rm -rf R
check "a decay started on resume" sh -c "$T train run.yaml lr.schedule=constant checkpoint.dir=R log.metrics=L2.jsonl &&
	$T train run.yaml lr.schedule=constant lr.decay_from=30 lr.final=0 steps=40 checkpoint.dir=R \\
		log.metrics=L2.jsonl && python3 -c 'import json
lr = [json.loads(l)[\"lr\"] for l in open(\"L2.jsonl\")]
assert lr[29] == 0.01 and abs(lr[34] - 0.005) < 1e-12 and lr[39] == 0, lr'"

# ---- Hugging Face's layout -------------------------------------------------------------------------------------------
cat >hf.py <<'PY'
# hf.py COMMAND DIR ...: reads, checks and damages an export; the formats are written down here once more
import json, os, struct, sys
def read(path):
  b = open(path, "rb").read()
  n = struct.unpack("<Q", b[:8])[0]
  head = json.loads(b[8:8 + n])
  meta = head.pop("__metadata__")
  assert meta == {"format": "pt"}
  return {k: (v["dtype"], v["shape"], b[8 + n:][slice(*v["data_offsets"])]) for k, v in head.items()}
def write(path, tensors):
  head, data = {}, b""
  for name, (dtype, shape, b) in tensors.items():
    head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(b)]}
    data += b
  h = json.dumps(head).encode()
  open(path, "wb").write(struct.pack("<Q", len(h)) + h + data)
def whole(d):
  index = json.load(open(d + "/model.safetensors.index.json"))
  tensors = {}
  for f in sorted(set(index["weight_map"].values())): tensors.update(read(d + "/" + f))
  assert sorted(tensors) == sorted(index["weight_map"])
  return index, tensors
what, d = sys.argv[1:3]
if what == "check": # against the checkpoint it is of
  _, mine = whole(sys.argv[3])
  index, theirs = whole(d)
  assert sorted(os.listdir(d))[:2] == ["config.json", "generation_config.json"]
  assert json.load(open(d + "/config.json"))["rope_theta"] == 1e4
  assert json.load(open(d + "/generation_config.json")) is not None
  assert index["metadata"]["total_size"] == sum(len(x[2]) for x in theirs.values())
  assert sorted(theirs) == sorted(mine)
  for name, (dtype, shape, b) in mine.items():
    if dtype == "F64":
      b = struct.pack("<%df" % (len(b) // 8), *struct.unpack("<%dd" % (len(b) // 8), b))
    assert theirs[name] == ("F32", shape, b), name
if what == "same":
  assert whole(d)[1] == whole(sys.argv[3])[1]
if what == "single": # one file, in half precision if asked; lm_head in the other one
  _, t = whole(d)
  os.makedirs(sys.argv[3])
  for name, (dtype, shape, b) in list(t.items()) if len(sys.argv) > 4 else []:
    x = struct.unpack("<%df" % (len(b) // 4), b)
    if (sys.argv[4] == "F16") != (name == "lm_head.weight"): t[name] = "F16", shape, struct.pack("<%de" % len(x), *x)
    else: t[name] = "BF16", shape, b"".join(b[i + 2:i + 4] for i in range(0, len(b), 4))
  t["model.layers.0.self_attn.rotary_emb.inv_freq"] = "F32", [2], bytes(8)
  write(sys.argv[3] + "/model.safetensors", t)
  open(sys.argv[3] + "/config.json", "w").write(open(d + "/config.json").read())
if what == "edit": # edit DIR OUT EXPRESSION: on t, the tensors, and c, the configuration
  os.makedirs(sys.argv[3])
  t, c = whole(d)[1], json.load(open(d + "/config.json"))
  exec(sys.argv[4])
  write(sys.argv[3] + "/model.safetensors", t)
  json.dump(c, open(sys.argv[3] + "/config.json", "w"))
if what == "halves": # the checkpoint's weights are those of the file, widened
  b = open(sys.argv[3] + "/model.safetensors", "rb").read()
  n = struct.unpack("<Q", b[:8])[0]
  head = json.loads(b[8:8 + n])
  for name, (dtype, shape, w) in whole(d)[1].items():
    v = head[name]
    raw = b[8 + n:][slice(*v["data_offsets"])]
    if v["dtype"] == "F16": want = struct.pack("<%df" % (len(raw) // 2), *struct.unpack("<%de" % (len(raw) // 2), raw))
    else: want = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
    assert w == want and w.strip(b"\0"), name
PY
for v in float double; do
	rm -rf Y Z I "Y$v"
	"$work/$v" train run.yaml checkpoint.dir=Y >/dev/null
	check "$v: export" "$work/$v" export Z/ Y
	if [ $v = float ]; then
		check "export is the weights" python3 hf.py check Z Y/step-000030
		mv Z EX
		check "import" "$S" import EX I
		check "the same to the bit" python3 hf.py same I/step-000000 Y/step-000030
		mv Y YF
	else
		check "fp64: one file" [ "$(ls Z | tr '\n' ' ')" = "config.json generation_config.json model.safetensors " ]
		check "fp64: import" "$work/$v" import Z I
		mkdir ZZ # an empty directory will do
		check "fp64: and export" "$work/$v" export ZZ I/step-000000
		check "fp64: rounded once" cmp Z/model.safetensors ZZ/model.safetensors
	fi
done
mv I ID
check "import one file" sh -c "python3 hf.py single EX EX1 && $S import EX1 I && python3 hf.py same YF/step-000030 I/step-000000"
check "training starts from it" "$S" train run.yaml checkpoint.dir=I log.metrics=I.jsonl checkpoint.every=10
python3 -c 'import json
a, b = (json.loads(open(f).readline())["loss"] for f in ("I.jsonl", "A.jsonl"))
assert a < b - 0.5, (a, b)' && [ -e I/step-000000 ] && ok || fail "it does not begin with the weights"
check "and resumes" "$S" train run.yaml checkpoint.dir=I steps=35
says "with the first run's data" 1 "was trained with seed 0, now it is 5" \
	"$S" train run.yaml checkpoint.dir=I steps=40 seed=5
for h in F16 BF16; do
	rm -rf H1 I2
	check "import of $h" sh -c "python3 hf.py single EX H1 $h && $S import H1 I2 && python3 hf.py halves I2/step-000000 H1"
done
check "export of an import" sh -c "$S export Z2 I2/step-000000 && python3 hf.py check Z2 I2/step-000000"
check "export of the newest here" sh -c "cd I2 && $S export ../Z3 && cmp ../Z2/config.json ../Z3/config.json"
says "eval of an import" 0 "eval: step 0, loss" "$S" eval run.yaml checkpoint.dir=I2 eval.paths=held.txt
check "weights that are spoilt" env OM_TEST_SPOIL=3 "$S" train run.yaml checkpoint.dir=YN steps=3 lr.warmup=0
says "their export" 0 "bigram: export: warning: lm_head.weight has nan as a weight, 1 other tensor too; no \
loss is a number with it, export an earlier checkpoint" "$S" export ZS YN
says "export into a full directory" 1 "export: many is not empty; give a new directory" "$S" export many YF
says "export into a file" 1 "export: file: Not a directory" "$S" export file YF
check "export into new folders" sh -c "$S export ZN/a/b YF && cmp EX/config.json ZN/a/b/config.json"
check "export to where a link leads" sh -c "mkdir ZR && ln -s ZR ZL && $S export ZL YF && cmp EX/config.json ZR/config.json"
ln -s gone ZG
says "export by a link to nothing" 1 "export: ZG is a link: No such file or directory; give" "$S" export ZG YF
says "export into this folder" 1 "export: .: give a new directory by its name" "$S" export . YF
says "export without a name" 2 "trainer: export takes DIR [CHECKPOINT]" "$S" export "" YF
says "import without a name" 2 "trainer: import takes DIR CKPTDIR" "$S" import EX ""
says "import and an option" 2 "trainer: import takes DIR CKPTDIR" "$S" import EX -x
says "export of nothing" 1 "checkpoint: there is none in none: it has no folder step-... and no index.json; name its \
folder: trainer export DIR CHECKPOINT" "$S" export Z4 none
says "export of nothing here" 1 "checkpoint: there is none in this folder: it has no" "$S" export Z4
says "export without an architecture" 1 \
	"other: rank 0, export: this model has no Hugging Face architecture: a width of 4" \
	"$work/other" export Z4 YF
says "import without one" 1 "import: this model has no Hugging Face architecture" "$work/other" import EX I4
says "export usage" 2 "trainer: export takes DIR [CHECKPOINT]; trainer export --help says more" "$S" export
says "import usage" 2 "trainer: import takes DIR CKPTDIR [upcycle=NOISE [seed=N]]; trainer import --help says more" "$S" import EX
for a in seed=1 upcycle= upcycle=x upcycle=-1 upcycle=2 upcycle=nan upcycle=0x more=1 "upcycle=0 seed=x"; do
	# shellcheck disable=SC2086 # two words
	says "import $a" 2 "trainer: import takes upcycle=NOISE, from 0 to 1, and with it seed=N" "$S" import EX I4 $a
done
says "upcycling without routers" 1 "import: this trainer's model has no experts; leave out upcycle=" "$S" import YF I4 upcycle=0
says "import over checkpoints" 1 "import: YF/step-000030 is here already; give another directory" "$S" import EX YF
says "import of nothing" 1 "import: many/config.json: No such file or directory" "$S" import many I4
m() { # m NAME TEXT EXPRESSION [VARIABLE]: the edited export is refused
	rm -rf M
	python3 hf.py edit EX M "$3"
	says "import: $1" 1 "bigram: rank 0, import: $2" env ${4:-A=} "$S" import M I4
}
m "another width" "M/config.json has hidden_size = 16, the trainer's model 8; generate a trainer" \
	'c["hidden_size"] = 16'
m "another theta" "M/config.json has rope_theta = 500000.0, the trainer's model 10000.0" 'c["rope_theta"] = 5e5'
m "theta's newer place" "M/config.json has rope_theta = 7.0, the trainer's model 10000.0" \
	'del c["rope_theta"]; c["rope_parameters"] = {"rope_theta": 7.0}'
m "another eps" "M/config.json has rms_norm_eps = 1e-06, the trainer's model 1e-05" 'c["rms_norm_eps"] = 1e-6'
m "normalised weights" "M/config.json has norm_topk_prob = true, the trainer's model false" 'c["norm_topk_prob"] = True'
m "a missing tensor" "M: has no model.layers.0.norm.weight; generate" 'del t["model.layers.0.norm.weight"]'
m "a left-over tensor" "M: has tensors that are not the model's: extra; generate" 't["extra"] = "I64", [], bytes(8)'
m "a renamed tensor" "M: has no lm_head.weight; has tensors that are not the model's: head; generate" \
	't["head"] = t.pop("lm_head.weight")'
m "many" "M: has no lm_head.weight; has tensors that are not the model's: x00, x01, x02, x03, x04, x05, x06, x07, x08, \
x09 and 2 more" \
	'del t["lm_head.weight"]; t.update({"x%02d" % i: ("F32", [1, 1, 1], bytes(4)) for i in range(12)})'
m "another shape" "M/model.safetensors: lm_head.weight is [8, 256], the model's is [256, 8]" \
	'd, s, b = t["lm_head.weight"]; t["lm_head.weight"] = d, [8, 256], b'
m "another type" "M/model.safetensors: model.layers.1.norm.weight is F64, only F32, BF16 and F16 are read" \
	't["model.layers.1.norm.weight"] = "F64", [8], bytes(64)'
m "a weight that is no number" "M/model.safetensors: lm_head.weight has nan as element 5, with which no loss is a number" \
	'd, s, b = t["lm_head.weight"]; t["lm_head.weight"] = "F32", s, b[:20] + b"\0\0\xc0\x7f" + b[24:]'
m "tied here, not there" "M/config.json has tie_word_embeddings = false, the trainer's model true" '0' OM_TEST_TIED=1
m "a tied head that is no copy" "M: lm_head.weight is not a copy of model.embed_tokens.weight, though config.json has" \
	'c["tie_word_embeddings"] = True' OM_TEST_TIED=1
rm -rf M
python3 hf.py edit EX M 'c["tie_word_embeddings"] = True; t["lm_head.weight"] = t["model.embed_tokens.weight"]'
check "a tied head's copy is left over" env OM_TEST_TIED=1 "$S" import M I3
cp -r EX M2
truncate -s -1 M2/model-00001-of-00002.safetensors
says "import: truncated" 1 "import: M2/model-00001-of-00002.safetensors: it is truncated" "$S" import M2 I4
rm M2/model-00001-of-00002.safetensors
says "import: a file is missing" 1 "M2/model-00001-of-00002.safetensors: No such file" "$S" import M2 I4
says "import: weights of another kind" 1 "M5 has neither model.safetensors nor model.safetensors.index.json; give" \
	sh -c "mkdir M5 && cp EX/config.json M5 && touch M5/pytorch_model.bin && exec $S import M5 I4"
says "import: a limit on files" 1 "I4/.tmp-step-000000/model-00001-of-00002.safetensors: File too large; there is no whole checkpoint" \
	bash -c "ulimit -f 1; exec $S import EX I4"
rm -rf I4
says "import: a pointer of Git LFS" 1 "M5/model.safetensors: is a pointer of Git LFS in place of the file; get that by git lfs" \
	sh -c "printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4\n' >M5/model.safetensors; exec $S import M5 I4"
says "import: a file, not a folder" 1 "EX/config.json/config.json: Not a directory; give the directory of a model" \
	"$S" import EX/config.json I4
# more files than descriptors: each has a tensor that is none of the model's weights
python3 - EX M3 <<'PY'
import json, os, struct, sys
d, out = sys.argv[1:]
os.makedirs(out)
index = json.load(open(d + "/model.safetensors.index.json"))
for f in set(index["weight_map"].values()) | {"config.json"}: os.link(d + "/" + f, out + "/" + f)
for i in range(1500):
  name = "model.layers.%d.self_attn.rotary_emb.inv_freq" % i
  h = json.dumps({name: {"dtype": "U16", "shape": [0, 5], "data_offsets": [0, 0]}}).encode()
  index["weight_map"][name] = "extra-%d.safetensors" % i
  open(out + "/" + index["weight_map"][name], "wb").write(struct.pack("<Q", len(h)) + h)
json.dump(index, open(out + "/model.safetensors.index.json", "w"))
PY
check "import of 1,500 files with 100 descriptors" sh -c "ulimit -n 100; $S import M3 I5 && cmp I5/step-000000/index.json \
	I/step-000000/index.json"
for f in config.json model.safetensors.index.json model-00001-of-00002.safetensors; do
	rm -rf M4
	cp -r EX M4
	rm M4/$f
	mkfifo M4/$f
	says "import: a pipe as $f" 1 "import: M4/$f: is a pipe, not a regular file" timeout 5 "$S" import M4 I4
	ln -sf /dev/zero M4/$f
	says "import: a device as $f" 1 "import: M4/$f: is a device, not a regular file" timeout 5 "$S" import M4 I4
done
echo '{' >M2/model.safetensors.index.json
says "import: damaged index" 1 "M2/model.safetensors.index.json: line 1, column 2: string or '}' expected near end of file; download it again" "$S" import M2 I4
[ ! -e I4 ] && [ -z "$(ls -d Z*.tmp* 2>/dev/null)" ] && ok || fail "a refused import or export leaves something"

# ---- the watchdog --------------------------------------------------------------------------------------------------
says "a step that does not end" 4 "bigram: rank 0, step 1, watchdog: computing a step has not ended for 1 s, and watchdog in" \
	env OM_TEST_NAP=20000000 "$S" train run.yaml watchdog=1 checkpoint.dir=
mkfifo full # nobody reads it, and soon it takes no more
sleep 60 <full &
says "metrics that are stuck" 4 "watchdog: writing metrics has not ended for 1 s" "$S" train run.yaml steps=100000 watchdog=1 \
	log.metrics=full log.every=1 checkpoint.dir=
kill $!
says "steps that end" 0 "done: step 30 of 30" env OM_TEST_NAP=50000 "$S" train run.yaml watchdog=1 checkpoint.dir=

# ---- launch/slurm.sh, with a Slurm that only writes down what it is asked --------------------------------------------
mkdir -p slurm/bin
cat >slurm/bin/srun <<'SH'
#!/bin/sh
echo "srun $*" >>slurm/calls
while case $1 in --*) ;; *) false ;; esac; do shift; done
exec "$@"
SH
sed 's/srun/mpirun/; s/^while.*/shift 2/' slurm/bin/srun >slurm/bin/mpirun
printf '#!/bin/sh\necho "scontrol $*" >>slurm/calls\n' >slurm/bin/scontrol
printf '#!/bin/sh\nexit $2\n' >slurm/ends
printf '#!/bin/sh\nkill -$2 $$\nsleep 9\n' >slurm/dies
chmod +x slurm/bin/* slurm/ends slurm/dies
job=(env "PATH=$work/slurm/bin:$PATH" SLURM_JOB_ID=42)
slurm() { # NAME STATUS requeue|"" VARIABLE=VALUE... -- ARGUMENTS: how it ends, and whether it queues the job anew
	local name=$1 status=$2 queued=${3:+scontrol requeue 42} set=()
	shift 3
	while [ "$1" != -- ]; do set+=("$1"); shift; done
	shift
	rm -f slurm/calls
	"${job[@]}" ${set[@]+"${set[@]}"} bash "$root/templates/slurm.sh" "$@" >out 2>&1
	want "slurm: $name" "$? $(grep scontrol slurm/calls)" "$status $queued"
}
slurm "done" 0 "" "TRAINER=$T" -- run.yaml steps=9 checkpoint.dir=
slurm "cores" 0 "" "TRAINER=$T" SLURM_CPUS_ON_NODE=3 -- run.yaml steps=9 checkpoint.dir=
grep -q "^srun --nodes=1 --ntasks=1 --cpus-per-task=3 --cpu-bind=none $T train run.yaml steps=9 checkpoint.dir=$" slurm/calls && ok ||
	fail "slurm: $(cat slurm/calls)"
slurm "a wrong key" 1 "" "TRAINER=$T" LEAST=0 -- run.yaml stepz=2
slurm "a rank is lost" 0 requeue TRAINER=slurm/ends LEAST=0 -- 4
slurm "a rank is lost at once" 4 "" TRAINER=slurm/ends -- 4
slurm "killed" 0 requeue TRAINER=slurm/dies LEAST=0 -- 9
slurm "usage" 2 "" TRAINER=slurm/ends LEAST=0 -- 2
slurm "saved" 0 requeue TRAINER=slurm/ends -- 3
slurm "saved, on several nodes" 0 requeue TRAINER=slurm/ends SLURM_JOB_NUM_NODES=2 -- 3
grep -q "^mpirun --bind-to none slurm/ends train 3$" slurm/calls && ok || fail "slurm: $(cat slurm/calls)"
slurm "restarted often" 3 "" TRAINER=slurm/ends SLURM_RESTART_COUNT=7 REQUEUES=7 -- 3
for s in USR1 TERM; do # before the time limit; or by scancel
	rm -rf SL slurm/calls
	"${job[@]}" "TRAINER=$T" OM_TEST_NAP=5 bash "$root/templates/slurm.sh" run.yaml steps=100000 checkpoint.dir=SL log.metrics=SL.jsonl >sl.out 2>&1 &
	await SL.jsonl '"step": 3,'
	kill -$s $!
	[ $s = USR1 ] || kill -TERM $(pgrep -P $!)
	wait $!
	want "slurm: $s" "$? $(grep -c scontrol slurm/calls) $(ls SL | wc -l)" "$([ $s = USR1 ] && echo 0 1 1 || echo 3 0 1)"
	rm -f SL.jsonl
done
! command -v shellcheck >/dev/null || check "slurm.sh: shellcheck" shellcheck "$root/templates/slurm.sh"

# ---- generate ----------------------------------------------------------------------------------------------
gen() { "$S" generate --checkpoint YF "$@" 2>gen.err; }
same() { # same NAME TEXT COMMAND...: the command succeeds and prints it
	local name=$1 text=$2 got
	shift 2
	got=$("$@" 2>"$work/out") && [ "$got" = "$text" ] && ok || {
		fail "$name: got $got, not $text"
		tail -3 "$work/out"
	}
}
sampled=$(gen --tokens 116,104) greedy=$(gen --tokens 116,104 --temperature 0)
[ "$(echo "$sampled" | tr ',' '\n' | grep -c '^[0-9]*$')" = 14 ] && ok || fail "generate to the end: $sampled"
grep -q '^checkpoint: YF/step-000030$' gen.err && grep -q '^generate: 14 tokens after 2, .* tokens/s$' gen.err && ok ||
	fail "generate says: $(cat gen.err)"
same "generate again" "$sampled" gen --tokens 116,104
same "generate by default" "$sampled" gen --tokens=116,104 --seed=0 --temperature=1.0 --top-k 0 --top-p 1 --threads 1
same "generate from a step" "$sampled" "$S" generate --tokens 116,104 --checkpoint YF/step-000030
same "generate here" "$sampled" sh -c "cd YF && exec $S generate --tokens 116,104"
[ "$sampled" != "$(gen --tokens 116,104 --seed 1)" ] && ok || fail "generate: another seed, the same tokens"
[ "$sampled" != "$greedy" ] && ok || fail "generate: greedy as sampled"
same "greedy, whatever the rest" "$greedy" gen --tokens 116,104 --temperature 0 --top-k 7 --top-p 0.3 --seed 9
same "top-k 1 is greedy" "$greedy" gen --tokens 116,104 --top-k 1
same "top-p 0 is greedy" "$greedy" gen --tokens 116,104 --top-p 0
same "max-tokens" "${greedy%%,*}" gen --tokens 116,104 --temperature 0 --max-tokens 1
same "stop" "${greedy%%,*}" gen --tokens 116,104 --temperature 0 --stop "${greedy%%,*}"
same "a long prompt" "1" sh -c "$S generate --checkpoint YF --tokens 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1 --max-tokens 99 |
	grep -c '^[0-9]*$'"
same "text is its bytes, whole characters" "$(gen --tokens 116,104 | python3 -c '
import sys
print(bytes(map(int, sys.stdin.read().split(","))).decode("utf-8", "replace"))')" gen --prompt th
# several at once, more than there are rows: each is what it is alone, but for what it draws by
printf '{"tokens": [116, 104]}\n\n{"prompt": "th"}\n{"tokens": [1]}\n{"tokens": [9, 9, 9, 9, 9, 9, 9]}\n{"tokens": [2, 3]}\n{"prompt": "a\\n"}\n' >prompts.json
gen --prompts prompts.json --temperature 0 >several
for i in 1:116,104 3:1 4:9,9,9,9,9,9,9 5:2,3; do
	same "prompt ${i%%:*} of several" "$(gen --tokens "${i#*:}" --temperature 0)" \
		sh -c "sed -n ${i%%:*}p several | sed 's/.*\[//; s/\].*//; s/ //g'"
done
same "a text among several" "$(gen --prompt th --temperature 0)" \
	python3 -c 'import json; print(json.loads(open("several").readlines()[1])["text"])'
same "several in passes of their own" "$(cat several)" env OM_TEST_PROMPT=1 "$S" generate --checkpoint YF \
	--prompts prompts.json --temperature 0
same "a prompt in passes" "$sampled" env OM_TEST_PROMPT=1 "$S" generate --checkpoint YF --tokens 116,104
gen --prompts prompts.json >drawn
same "the first of several draws as one" "$sampled" sh -c "sed -n '1s/.*\[//; 1s/\].*//; 1s/ //gp' drawn"
[ "$(sed -n 1p drawn)" != "$(sed 2d drawn | sed -n 2p)" ] && ok || fail "several prompts: one draw"
check "fp64: generate" "$work/double" generate --checkpoint Y --tokens 1,2
check "generate --help" sh -c "$S generate --help | grep -q -- '--top-p *P '"
g() { says "generate: $1" 1 "bigram: rank 0, generate: $2" "$S" generate --checkpoint YF "${@:3}"; }
g "no prompt" "needs a prompt: either --prompt TEXT, --tokens 1,2,3 or --prompts PATH"
g "two prompts" "needs a prompt: either" --prompt a --tokens 1
g "an empty prompt" "the prompt is empty; it needs one token at least" --prompt ""
g "no tokens" "the prompt is empty" --tokens ""
g "a full prompt" "the prompt has 16 tokens, the model's sequence_length is 16; give 15 at most" --prompt 0123456789abcdef
g "a longer prompt" "the prompt has 9,000 tokens, the model's" --prompt "$(head -c 9000 corpus.txt)"
g "a token too high" "--tokens: token 1 is 256, the model's vocab_size is 256" --tokens 255,256
g "a token far too high" "--tokens: token 0 is 99999999999999999999999, the" --tokens 99999999999999999999999
for t in 1,,2 ,1 1, -1 1.5 " 1" "1 2" x 1,x; do g "tokens '$t'" "--tokens $t: must be whole numbers and commas" --tokens "$t"; done
g "temperature" "--temperature -1: must be a number from 0 to 1000" --prompt a --temperature -1
g "temperature nan" "--temperature nan: must be a number" --prompt a --temperature nan
g "temperature empty" "--temperature : must be a number" --prompt a --temperature ""
g "top-p" "--top-p 1.5: must be a number from 0 to 1" --prompt a --top-p 1.5
g "top-k" "--top-k 1.5: must be a whole number from 0" --prompt a --top-k 1.5
g "max-tokens" "--max-tokens 0: must be a whole number from 1 to 1000000000" --prompt a --max-tokens 0
g "seed" "--seed 1x: must be a whole number" --prompt a --seed 1x
g "threads" "--threads 5000: must be a whole number from 0 to 4096" --prompt a --threads 5000
g "stop" "--stop 256: the model's vocab_size is 256" --prompt a --stop 256
echo '{"prompt": "a"}
{"tokens": [1, 256]}' >prompts.json
g "a file of prompts, a token" "prompts.json:2: token 1 is 256, the model's vocab_size is 256" --prompts prompts.json
for i in '[1]|prompts.json:1: ' '{"tokens": 1}|prompts.json:1: must be {"prompt": TEXT} or' '{"tokens": [1.5]}|prompts.json:1: token 0 is 1.5' \
	'{"tokens": []}|prompts.json:1: the prompt is empty' '{"prompt": "0123456789abcdef"}|prompts.json:1: the prompt has 16 tokens' \
	' |--prompts prompts.json: there is none in it'; do
	echo "${i%%|*}" >prompts.json
	g "a file of prompts, ${i%%|*}" "${i#*|}" --prompts prompts.json
done
g "no file of prompts" "--prompts none.json: " --prompts none.json
u() { says "generate: $1" 2 "trainer: generate$2" "$S" generate "${@:3}"; }
u "an unknown option" " has no --banana; trainer generate --help" --banana 1
u "a near option" " has no --temprature, did you mean --temperature?" --temprature 1
u "no option" " has no run.yaml" run.yaml
u "no value" ": --prompt needs a value" --prompt
u "twice" ": --seed is given twice" --seed 1 --seed 2
says "generate from nothing" 1 "checkpoint: there is none in none: it has no folder step-... and no index.json; name its \
folder by --checkpoint DIR" "$S" generate --checkpoint none --prompt a
says "generate from nothing here" 1 "checkpoint: there is none in this folder: it has no" "$S" generate --prompt a
mkdir -p step-000009
says "generate from a damaged one" 1 "checkpoint: ./step-000009/index.json: No such file or directory; restore it" \
	"$S" generate --checkpoint step-000009 --prompt a
rmdir step-000009
says "no tokenizer" 1 "other: rank 0, generate: this model's 64 tokens are not bytes; give --tokenizer PATH or --tokens \
1,2,3" "$work/other" generate --prompt a
# by a tokenizer: the prompt becomes tokens, and what comes is text in whole characters
python3 - "$fixtures" <<'PY'
import struct, sys
ids = [int(x) for line in open(sys.argv[1] + "/llama3.txt") for x in line.split("|")[0].split()]
open("wide.u32", "wb").write(struct.pack("<%dI" % (len(ids) + 40), 100000, *ids, *[7] * 39))
PY
printf 'data: { paths: [wide.u32], order: sequential, tokenizer: %s/llama3.json }\nsteps: 1\ncheckpoint: { dir: WD }\n' \
	"$fixtures" >wide.yaml
says "data: first sequences as text" 0 ' 1  "<100000><|begin_of_text|><|begin_of_text|> <|begin_of_text|>\n<|begin_of_text|>\r\n<|begin_of_text|>' \
	"$work/wide" data wide.yaml
sed -n '/^the first sequences begin with$/,$p' out | tail -n +4 | grep -q '^ 3  "' && ok || fail "data: three sequences: $(tail -3 out)"
says "data: a tokenizer of more tokens" 1 "data: $fixtures/llama3.json: model.vocab has token \"" "$work/other" data wide.yaml
says "data: no tokenizer there" 1 "wide: rank 0, data: none.json: No such file" "$work/wide" data wide.yaml data.tokenizer=none.json
check "train for generation by a tokenizer" "$work/wide" train wide.yaml
wide() { "$work/wide" generate --checkpoint WD --seed 3 --max-tokens 4 "$@" 2>/dev/null; }
ids=$(wide --tokens "641,71,72,643")
same "a prompt by a tokenizer" "$(wide --tokens 641,71,72,643 --tokenizer "$fixtures/llama3.json")" \
	wide --prompt 'hi<|eot_id|>' --tokenizer "$fixtures/llama3.json"
[ "$(wide --tokens "641,71,72,643" --tokenizer "$fixtures/llama3.json" | grep -o '<[0-9]*>' | wc -l)" = \
	"$(echo "$ids" | tr ',' '\n' | awk '$1 > 643' | wc -l)" ] && ok || fail "tokens without a text: $ids"
says "generate: no such tokenizer" 1 "wide: rank 0, generate: none.json: No such file or directory" \
	"$work/wide" generate --checkpoint WD --prompt a --tokenizer none.json
says "generate: a full prompt by a tokenizer" 1 "the prompt has 16 tokens, the model's sequence_length is 16" \
	"$work/wide" generate --checkpoint WD --prompt "0 0 0 0 0 0 0 0" --tokenizer "$fixtures/llama3.json"
cat >text.jsonl <<'Q'
{"context": "hi", "choices": ["h<|eot_id|>", "i"], "answer": 0}
{"context": "i", "choices": ["hi", "ih", "h"], "answer": 1}
Q
cat >ids.jsonl <<'Q'
{"context": [641, 71, 72], "choices": [[71, 643], [72]], "answer": 0, "bytes": [11, 1]}
{"context": [641, 72], "choices": [[71, 72], [72, 71], [71]], "answer": 1}
Q
check "questions by a tokenizer, and their tokens" sh -c "for q in text ids; do $work/wide eval wide.yaml log.metrics=\$q.m \
	eval.sets.quiz.questions=\$q.jsonl || exit 1; done && cmp text.m ids.m && grep -q accuracy_bytes text.m"
says "bits of a byte by a tokenizer" 0 " bits a byte, " "$work/wide" eval wide.yaml eval.paths=wide.u32
says "and none without" 1 "context is text, and this model's 100,352 tokens are not bytes; set data.tokenizer, or give lists of tokens" \
	"$work/wide" eval wide.yaml data.tokenizer= eval.sets.quiz.questions=text.jsonl
says "no decode program" 1 "bigram: rank 0, generate: this trainer has no decode program: there are no kernels of it \
for target cpu;" env OM_TEST_NODECODE=1 "$S" generate --prompt a
says "generate to a full disk" 1 "output: cannot be written" sh -c "$S generate --checkpoint YF --prompt a >/dev/full"

wait
says "run.yaml from a pipe that stays silent" 1 "error: cannot be read: is a pipe into which nobody wrote for 10 seconds" \
	sh -c 'cat silent.out; exit $(cat silent.status)'
suite_end
