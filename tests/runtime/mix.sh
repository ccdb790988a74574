# Mixes of sources, from end to end; run.sh reads it. Shares and orders themselves are of unit/runtime_mix_test.c.
# shellcheck shell=bash
mkdir mix && cd mix || exit 1
python3 -c 'import random
random.seed(5)
for name, n, kinds in ("web", 9000, 60), ("code", 3000, 20), ("math", 700, 5):
  open(name, "wb").write(bytes(random.randrange(40, 40 + kinds) for _ in range(n)))'
cat >run.yaml <<'Y'
data:
  mix:
    web: { paths: [web], weight: 0.5 }
    code: { paths: code, weight: 0.3, repeat: 2, eos: 45 }
    math: { paths: [math], weight: 0.2, repeat: 4.5 }
steps: 60
log: { every: 20 }
Y
m() { # m NAME TEXT OVERRIDES...: refused with the text
	says "mix: $1" 1 "$2" "$S" train run.yaml "${@:3}"
}
m "too large" "data: a mix of data.size = 20,000 tokens takes 10,000 of web, which has 8,992 and with repeat = 1 gives \
8,992; set data.mix.web.repeat=1.113 data.mix.code.repeat=2.006 data.mix.math.repeat=5.814, or data.size=15484 at most" \
	data.size=20000
check "mix: what that says is enough" "$S" train run.yaml steps=1 data.size=20000 data.mix.web.repeat=1.113 \
	data.mix.code.repeat=2.006 data.mix.math.repeat=5.814
check "mix: or that" "$S" train run.yaml steps=1 data.size=15484
m "a token more" "data.size=15484 at most" data.size=15485
m "sequences" "a mix of data.size = 968 sequences takes 193 of math, which has 43 and with repeat = 4.45 gives 191; set \
data.mix.math.repeat=4.489, or data.size=959 at most" data.unit=sequences data.size=968 data.mix.math.repeat=4.45 \
	data.mix.web.repeat=2 data.mix.code.repeat=2
m "too small" "data.mix.math: its share of the mix, 14 tokens, gives no sequence of 16 tokens and the label behind it; raise its \
weight, or data.size" \
	data.size=74
m "no file" "data.mix.web: none: No such file or directory; correct data.mix.web.paths" data.mix.web.paths=none
m "its format" "set data.mix.code.format=bytes" data.mix.code.format=uint16
m "its eos" "data.mix.web.eos = 300 is not a token" data.eos=300
: >empty
m "an empty file" "data.mix.math: empty: is empty; remove it or leave it out of data.mix.math.paths" data.mix.math.paths=empty
head -c 3000 /dev/zero >code.mask
m "masks" "data.mix.code.label_mask_paths are 2 files, data.mix.code.paths are 1 file; each has a mask" \
	'data.mix.code.label_mask_paths=[code.mask, code.mask]'
says "mix: a source's mask" 0 "labels: 8,864 of the 12,656 tokens of an epoch have one, 70.0%" "$S" data run.yaml data.mix.code.label_mask_paths=code.mask
says "mix: packed" 0 "source math: " "$S" train run.yaml data.packing=truncate data.eos=42
m "no such source" "did you mean data.mix.web?" data.mix.wbe.weight=1
says "mix: more epochs than one" 0 "mix: in 2.53 epochs math is read 9.29 times, its repeat = 4.5 is of one epoch" \
	"$S" data run.yaml steps=500

m "documents without ends" "data.mix.web: web: nothing says where its documents end, and data.unit is documents; set \
data.mix.web.eos to the token that ends one" data.unit=documents
m "too few documents" "data.mix.math: its share of the mix, 1 document, gives no sequence of 16 tokens and the label \
behind it" data.unit=documents data.eos=42 data.size=5
m "too many documents" "a mix of data.size = 9,000 documents takes 2,700 of code, which has " data.unit=documents data.eos=42 \
	data.size=9000 data.mix.web.repeat=99 data.mix.math.repeat=99

# what the command data says, against the rules in fractions
cat >table.py <<'PY'
import sys
from fractions import Fraction as F
from math import floor
run, out = int(sys.argv[1]), sys.stdin.read().split("\n")
size = {"web": 562, "code": 187, "math": 43}
weight = {"web": F(5, 10), "code": F(3, 10), "math": F(2, 10)}
repeat = {"web": 1, "code": 2, "math": F(9, 2)}
tokens = {s: 16 * n for s, n in size.items()}
n = sum(tokens.values())
f = min([F(1)] + [floor(tokens[s] * repeat[s]) / (n * weight[s]) for s in size])
take = {s: floor(f * n * weight[s]) // 16 for s in size}
every = sum(take.values())
at = next(i for i, l in enumerate(out) if l.startswith("source "))
for s, line in zip(size, out[at + 1:]):
  text = open(s, "rb").read()
  documents = text.count(b"-") + (text[-1] != ord("-")) if s == "code" else "-"
  want = [s, 1, len(text), documents, "%.2f%%" % (100 * weight[s]), "%.2f%%" % (100 * take[s] / every), size[s], take[s],
    "%.2f" % (take[s] / size[s]), "%.2f" % (run * take[s] / size[s] / every)]
  assert line.replace(",", "").split() == [str(x) for x in want], (line, want)
PY
check "mix: the table" sh -c "$S data run.yaml >data.out && python3 table.py 240 <data.out"

# what is read of each source, in metrics and at the end, also of a run that was resumed at any step
cat >seen.py <<'PY'
import json, re, sys
a, b = ([json.loads(l) for l in open(f)] for f in sys.argv[1:3])
assert [x["sources"] for x in a] == [x["sources"] for x in b] and len(a) == 60
last = {s: 0 for s in ("web", "code", "math")}
for x in a:
  assert sum(x["sources"].values()) == x["tokens"] and list(x["sources"]) == list(last)
  assert all(last[s] <= n and n % 16 == 0 for s, n in x["sources"].items())
  last = x["sources"]
for s, n in re.findall(r"^source (\w+): ([\d,]+) tokens, ", open(sys.argv[3]).read(), re.M):
  assert last.pop(s) == int(n.replace(",", ""))
assert not last
PY
for order in shuffle curriculum interleave sequential documents; do
	of="data.order=$order"
	[ $order != documents ] || of="data.unit=documents data.eos=42"
	rm -rf ck ck.jsonl A.jsonl
	"$T" train run.yaml $of checkpoint.dir=A$order log.metrics=A.jsonl >A.out || fail "mix: $order trains"
	for step in 1 7 30 31 60; do
		"$T" train run.yaml $of checkpoint.dir=ck log.metrics=ck.jsonl checkpoint.every=$step >ck.out ||
			fail "mix: $order goes on"
		[ $step = 60 ] || for d in ck/step-*; do [ $((10#${d#ck/step-})) -le $step ] || rm -r "$d"; done
	done
	check "mix: $order resumed" same A$order/step-000060 ck/step-000060
	check "mix: $order resumed: sources" python3 seen.py A.jsonl ck.jsonl ck.out
	[ $order = shuffle ] || check "mix: $order is another order" sh -c "! cmp -s A$order/step-000060/model-00001-of-*.safetensors \
		Ashuffle/step-000060/model-00001-of-*.safetensors"
done
echo 'data: {mix: {all: {paths: [web, code]}}}' >one.yaml && echo 'data: {paths: [web, code]}' >plain.yaml
check "mix: of one source" sh -c "$T train one.yaml steps=300 checkpoint.dir=one &&
	$T train plain.yaml steps=300 checkpoint.dir=plain"
check "mix: of one source: its paths' weights" same one/step-000300 plain/step-000300

# another mix is another run's
r() { # r NAME TEXT OVERRIDES...: resuming is refused
	m "resume with $1" "$2; restore that, or go on with other data by checkpoint.ignore_data=true" steps=70 \
		checkpoint.dir=Ashuffle "${@:3}"
}
of="was trained with a data.mix of 396 of 562, 237 of 187, 158 of 43 sequences, now it is"
r "other weights" "$of 440 of 562, 264 of 187, 88 of 43 sequences" data.mix.math.weight=0.1
r "another order" "was trained with data.order shuffle, now it is interleave" data.order=interleave
sed s/web:/prose:/ run.yaml >prose.yaml
says "mix: resume with other names" 0 "source prose: 2," "$S" train prose.yaml steps=70 checkpoint.dir=Ashuffle
says "mix: resume without it" 1 "$of none; restore that" "$S" train plain.yaml checkpoint.dir=Ashuffle steps=80
cd .. || exit 1
