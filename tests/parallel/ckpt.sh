#!/bin/bash
# Checkpoints and first weights under layouts of several ranks: ckpt_check.c is the trainer. What each layout wrote
# loads into every other, bit for bit; damage is noticed; a save that is killed or fails leaves the last good checkpoint.
# usage: tests/parallel/ckpt.sh WORKDIR [all]
set -u
. "$(dirname "$0")/../suite.sh"
export LC_ALL=C OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
full=${2:-}
rm -rf "$1" && mkdir -p "$1/o" && work=$(cd "$1" && pwd)
# where another mpirun ends, it removes the folder that this one is about to use
OMPI_MCA_orte_tmpdir_base=$(mktemp -d) && export OMPI_MCA_orte_tmpdir_base
trap 'rm -rf "$OMPI_MCA_orte_tmpdir_base"' EXIT
{
	compiles "$work/o" "$san" mpi
	echo "$cc $san -c $root/tests/parallel/ckpt_check.c -o $work/o/ckpt_check.o"
} | side_by_side &&
	# shellcheck disable=SC2086 # several flags
	mpicc -fopenmp $san -Wl,--wrap=mkdir,--wrap=fsync,--wrap=rename,--wrap=om_write_all,--wrap=fstatvfs "$work"/o/*.o -lyaml -ljansson -lm \
		-o "$work/check" || suite_stop "does not compile"
cd "$work" || exit 1

# DATA EXPERT PIPELINE
layouts="1.1.1 2.1.1 2.2.1 4.2.1 1.1.2 2.2.2 4.2.2 4.4.2"
on() { # on LAYOUT ARGUMENTS...: the check under a layout
	local d e p
	IFS=. read -r d e p <<<"$1"
	shift
	timeout 600 mpirun -np $((d * p)) ./check "$d" "$e" "$p" "$@"
}

# ---- first values, and every layout into every other ------------------------------------------------------------------
# One rank holds everything as one row of tensors; a reader that knows only the files puts slices together.
cat >same.py <<'PY'
import json, struct, sys
table = []
for i in range(256):
  c = i
  for _ in range(8): c = c >> 1 ^ (0x82f63b78 if c & 1 else 0)
  table.append(c)
def crc32c(b):
  c = 0xffffffff
  for x in b: c = table[(c ^ x) & 255] ^ c >> 8
  return c ^ 0xffffffff
def read(d, cut):
  text = open(d + "/index.json").read()
  at = text.rindex('"crc32c"')
  assert '"crc32c": "%08x"}\n' % crc32c(text[:at].encode()) == text[at:]
  index, files, out = json.loads(text), {}, {}
  for name, t in index["tensors"].items():
    if t["file"] not in files:
      b = open(d + "/" + t["file"], "rb").read()
      n = struct.unpack("<Q", b[:8])[0]
      head = json.loads(b[8:8 + n])
      head.pop("__metadata__")
      files[t["file"]] = head, b[8 + n:]
    head, data = files[t["file"]]
    h = head.pop(name)
    assert h["dtype"] == t["dtype"]
    data = data[h["data_offsets"][0]:h["data_offsets"][1]]
    assert t["crc32c"] == "%08x" % crc32c(data)
    size, numel = {"BF16": 2, "F32": 4, "F64": 8}[t["dtype"]], 1
    for x in t["shape"]: numel *= x
    first, end = t.get("slice", [0, numel])
    if "slice" in t:
      name, suffix = name[:name.index("[")], name[name.index("["):]
      assert suffix == "[%d:%d]" % (first, end) and h["shape"] == [end - first]
      assert cut
    else:
      assert h["shape"] == t["shape"]
    assert len(data) == (end - first) * size
    all = out.setdefault((name, tuple(t["shape"]), numel * size), {})
    assert first * size not in all
    all[first * size] = data
  assert not any(head for head, data in files.values()), "tensors that the index does not name"
  for key in out:
    b = b""
    for first in sorted(out[key]):
      assert first == len(b), key
      b += out[key][first]
    assert len(b) == key[2], key
    out[key] = b
  index.pop("tensors"), index.pop("crc32c")
  return index, out
one, two = read(sys.argv[1], False), read(sys.argv[2], True)
assert one == two
PY
some() { # some FORMAT: the layouts that it is tried under
	case $1 in fp32 | bf16) echo "$layouts" ;; fp64) echo 1.1.1 2.1.1 ;; *) echo 1.1.1 4.2.2 ;; esac
}
for f in fp32 bf16 fp64 bf16x4 bf16m bf16x4m; do
	for l in $(some $f); do
		check "$f: first values of $l, and a checkpoint" on "$l" $f save 6 "$f/$l"
		check "$f: $l: files" python3 same.py $f/1.1.1/step-000006 "$f/$l/step-000006"
		[ -e "$f/$l/step-000006/model.safetensors.index.json" ] && hf=yes || hf=no
		case $l in 1.1.*) want=yes ;; *) want=no ;; esac # where no tensor is cut
		[ $hf = $want ] && ok || fail "$f: $l: Hugging Face's index: $hf"
	done
done
for f in fp32 bf16 fp64 bf16x4; do
	for l in $(some $f); do
		[ $f = fp64 ] && from=(fp64/*) || from=(fp32/* bf16/* bf16x4/*)
		check "$f: $l loads them all" on "$l" $f load 6 "${from[@]}"
	done
done
check "weights alone" on 4.2.1 bf16 weights 6 fp32/* bf16/*
for l in 1.1.1 4.2.1; do
	check "$l: a new run's first weights" on $l bf16 start 6 fp32/* bf16/*
done
# moments in bf16, and those in fp32 as the nearest; the other way round as they are, where a trainer says so
for l in 1.1.1 4.2.2; do
	for f in bf16m bf16x4m; do
		check "$f: $l loads them all" on $l $f load 6 bf16m/* bf16x4m/* fp32/4.2.1
	done
	CKPT_SHORT=1 check "bf16: $l loads moments in bf16" on $l bf16 load 6 bf16m/* bf16x4m/*
done
says "it says so" 0 "bf16m/4.2.2/step-000006 has moments in BF16, this trainer in F32: each becomes the nearest" \
	env CKPT_SHORT=1 ./check 1 1 1 fp32 load 6 bf16m/4.2.2
# what they are rounded by in a step
for l in $layouts; do
	on "$l" bf16m draws 6 x
done >draws
[ "$(wc -l <draws)" = 8 ] && [ "$(sort -u draws | wc -l)" = 1 ] && ok || fail "draws of all layouts: $(sort draws | uniq -c)"
[ "$(on 2.2.1 bf16m draws 7 x)" != "$(head -n 1 draws)" ] && ok || fail "draws of two steps are the same"
# tensors larger than what is read at once, and several shards of a rank
export CKPT_VOCAB=450000 CKPT_SHARD=100000
check "large tensors are saved" on 2.1.1 fp32 save 6 large
check "large tensors" on 4.2.1 bf16 load 6 large
CKPT_SLOTS=1 check "through one slot" on 2.1.1 fp32 save 6 slot
check "through one slot, the same" diff -r large slot
unset CKPT_VOCAB CKPT_SHARD

# ---- damage: what one rank wrote ---------------------------------------------------------------------------------------
fresh() { rm -rf D && cp -r "bf16/${1:-2.2.1}" D && mkdir D/step-000009 && touch D/step-000009/later; }
export CKPT_RESUME=D/step-000006 # were all well, the later one would move
N=D/step-000006
refused() { # refused NAME TEXT LAYOUT...: under layouts that read it, one rank says so, and no file changes
	local before name=$1 text=$2 l
	shift 2
	before=$(cd D && find . -type f -exec md5sum {} + | sort)
	for l; do
		says "$name ($l)" 1 "$text" on "$l" bf16 load 6 D
		[ "$(grep -c '^ckpt_check: .*; restore it' out)" = 1 ] && ok || fail "$name ($l): not said once"
	done
	[ "$before" = "$(cd D && find . -type f -exec md5sum {} + | sort)" ] && ok || fail "$name: the directory changed"
}
flip() { python3 -c 'import sys
f = open(sys.argv[1], "r+b"); f.seek(int(sys.argv[2]), 2); b = f.read(1); f.seek(-1, 1); f.write(bytes([b[0] ^ 1]))' "$@"; }
fresh
truncate -s -1 $N/optimizer-00002-of-00002.safetensors
refused truncated "optimizer-00002-of-00002.safetensors: it is truncated" 1.1.1 4.2.1
fresh
rm $N/model-00002-of-00002.safetensors
refused missing "model-00002-of-00002.safetensors: No such file or directory" 4.2.1
fresh
flip $N/optimizer-00001-of-00002.safetensors -9
refused "a flipped bit" "the file is damaged" 4.2.1
check "of a moment, so that the weights are good" on 4.2.1 bf16 weights 6 D
fresh
flip $N/index.json -200
refused "a flipped bit in the index" "index.json: is damaged" 4.2.1
cat >edit.py <<'PY'
# takes a slice out of the index, or lets it begin one earlier, or not be what its name says; the index is whole again
import re, sys
how, path = sys.argv[1:]
source = open("same.py").read()
exec(source[:source.index("def read")])
lines = open(path).read().split("\n")
i = next(i for i, s in enumerate(lines) if re.match(r'"model.layers.\d.self_attn.o_proj.weight\[[1-9]', s))
first = int(re.search(r"\[(\d+):", lines[i])[1])
if how == "without": del lines[i]
if how == "twice": lines[i] = lines[i].replace("[%d:" % first, "[%d:" % (first - 1))
if how != "without": lines[i] = lines[i].replace("[%d," % first, "[%d," % (first - 1))
text = "\n".join(lines)
text = text[:text.rindex('"crc32c"')]
open(path, "w").write(text + '"crc32c": "%08x"}\n' % crc32c(text.encode()))
PY
fresh
python3 edit.py without $N/index.json
refused "a slice is not there" "is missing from element" 4.2.1
fresh
python3 edit.py twice $N/index.json
refused "slices overlap" "is there twice at element" 4.2.1
fresh
python3 edit.py wrong $N/index.json
refused "a slice with another name" "the slice of model.layers." 4.2.1
fresh 1.1.2
truncate -s -1 $N/optimizer-00002-of-00002.safetensors
refused "the second stage's" "optimizer-00002-of-00002.safetensors: it is truncated" 1.1.2
unset CKPT_RESUME

# ---- a save that ends early --------------------------------------------------------------------------------------------
check "the checkpoint before" on 2.1.1 bf16 save 6 A
early() { # early WHAT CALL STEP TEXT: WHAT of CKPT_... at a call of a save of step 7; STEP is the last one then
	rm -rf K && cp -r A K
	export CKPT_"$1"="$2"
	says "$1 $2" $([ "$1" = KILL ] && echo 137 || echo 1) "$4" on 2.1.1 bf16 save 7 K
	unset CKPT_"$1"
	[ "$(ls K)" = step-000006 ] || [ "$3" = 7 ] && [ -d "K/step-00000$3" ] && ok || fail "after $1 $2: $(ls -A K)"
}
for call in "0 mkdir 1" "0 write 2" "1 write 2" "1 fsync 1" "1 fsync 2" "0 fsync 2" "0 fsync 3" "0 rename 1"; do
	early FAIL "$call" 6 "No space left on device; the last whole checkpoint is K/step-000006; \
free some space, or keep fewer by checkpoint.keep, and train again"
	[ "$(ls -A K)" = step-000006 ] && ok || fail "FAIL $call leaves $(ls -A K)"
	early KILL "$call" 6 "signal 9"
	check "after KILL $call" on 2.2.1 bf16 load 6 K
	[ "$(ls -A K)" = step-000006 ] && ok || fail "KILL $call leaves $(ls -A K)"
done
early KILL "0 fsync 4" 6 "signal 9" # of the directory
early KILL "0 fsync 5" 7 "signal 9" # of the one above: it has its name
check "with its name it is whole" on 2.2.1 bf16 load 7 K

# one rank, the calls of a save in turn, of writes some: what is there afterwards is whole, and nothing else is
[ "$full" = all ] && writes=1 || writes=80
for call in mkdir write fsync rename; do
	by=1
	[ $call != write ] || by=$writes
	for what in FAIL KILL; do
		for n in $(seq 1 $by 1000); do
			rm -rf K && cp -r A K
			env CKPT_$what="0 $call $n" ./check 1 1 1 bf16 save 7 K >out 2>&1 && break # it has no more of them
			[ -d K/step-000007 ] && step=7 || step=6
			./check 1 1 1 bf16 load $step K >out 2>&1 && ! ls -A K | grep -q tmp && ok ||
				fail "$what $call $n: $(ls -A K)"
		done 2>/dev/null # the shell tells of kills
		[ "$n" -gt 1 ] && [ "$n" -lt 1000 ] && ok || fail "$what $call: $n of them"
	done
done

# room on the disk, of all ranks' parts
rm -rf K && cp -r A K
export CKPT_FREE=20000
match=E says "no room" 1 "K: one takes [0-9.]* KiB, 19.53 KiB are free there, [0-9.]* KiB are missing; the last whole checkpoint is \
K/step-000006; free some space, or keep fewer by checkpoint.keep, and train again" on 2.1.1 bf16 save 7 K
[ "$(ls -A K)" = step-000006 ] && ok || fail "no room: $(ls -A K)"
mkdir K/old-step-000008 K/bad-step-000009
says "no room, and what to remove" 1 "free some space, of 2 checkpoints that this run has given up there (old-step-..., bad-step-...) \
for example, or keep fewer by checkpoint.keep, and train again" on 2.1.1 bf16 save 7 K
rmdir K/old-step-000008 K/bad-step-000009
export CKPT_FREE=260000
match=E says "room for some" 0 "there is room for 2 of the 3, of [0-9.]* KiB each, that are to be there at once" on 2.1.1 bf16 save 7 K
unset CKPT_FREE

# ---- what only the first rank does -------------------------------------------------------------------------------------
check "a third checkpoint" on 2.1.1 bf16 save 8 K
[ "$(ls -A K | tr '\n' ' ')" = "step-000007 step-000008 " ] && ok || fail "two are kept: $(ls -A K)"
export CKPT_RESUME=K/step-000007
check "an older one" on 2.1.1 bf16 load 7 K
unset CKPT_RESUME
[ "$(ls -A K | tr '\n' ' ')" = "old-step-000008 step-000007 " ] && ok || fail "the later one is moved: $(ls -A K)"

suite_end
