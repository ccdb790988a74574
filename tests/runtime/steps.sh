# Which data steps take: batches that grow, ranges that are left out; run.sh reads it.
# shellcheck shell=bash
mkdir steps && cd steps || exit 1
python3 -c 'import random
random.seed(4)
# every sequence of 16 begins alike, so that the label before a gap is the same without it
rows = [b"a" + bytes(random.randrange(97, 105) for _ in range(15)) for _ in range(200)]
open("all.txt", "wb").write(b"".join(rows) + b"a")
open("cut.txt", "wb").write(b"".join(rows[:8] + rows[16:40] + rows[43:]) + b"a")'
cat >run.yaml <<'Y'
data: { paths: [all.txt], format: bytes, order: sequential }
steps: 12
lr: { peak: 1e-2 }
checkpoint: { dir: A, every: 4 }
log: { metrics: A.j }
Y
cp run.yaml ramp.yaml
echo 'batch: { sizes: [2 until 3, 4 until 5, "2 until 7"], lr: root }' >>ramp.yaml
same_steps() { # DIR DIR: the last weights and moments
	for f in "$1"/step-000012/*.safetensors; do cmp "$f" "$2/step-000012/${f##*/}" || return 1; done
}
"$S" train run.yaml data.skip='[steps 3 to 4, sequences 40 to 42]' >/dev/null
"$T" train run.yaml data.paths=cut.txt checkpoint.dir=B log.metrics=B.j >/dev/null
check "data.skip is as if its data were not there" same_steps A B
grep -q '"next_sequence": 48, "skipped": \[\[8, 16\], \[40, 43\]\]' A/step-000012/index.json && ok || fail "index.json: skipped"
rm -r A/step-000012 A/step-000008
"$T" train run.yaml data.skip='[steps 3 to 4, sequences 40 to 42]' >/dev/null
check "and after resuming" same_steps A B
no() { says "resume: $1" 1 "$2" "$S" train "$3" checkpoint.dir=C log.metrics= "${@:4}"; }
rm -rf C && cp -r A C && rm -r C/step-000012
no "a range that was read" "C/step-000008 has left out sequences [8, 16] of its data, by data.skip it would have left out [8, 17]; what is \
skipped has to come after step 8: resume from an older checkpoint, or correct data.skip" run.yaml data.skip='[sequences 8 to 16]'
no "a range that is gone" "C/step-000008 has left out sequences [8, 16] of its data, by data.skip it would have left out []" run.yaml
check "resume: a range that comes next, and others without their old one" sh -c "cp -r C D &&
	$T train run.yaml checkpoint.dir=C log.metrics= data.skip='[steps 3 to 4, sequences 40 to 41, sequences 99 to 120]' &&
	$T train run.yaml checkpoint.dir=D log.metrics= checkpoint.ignore_data=true"
rm -rf A B C D
"$S" train ramp.yaml >ramp.out
check "batches that grow" python3 -c 'import json, math
rows = [json.loads(l) for l in open("A.j")]
sizes = [2, 2, 2, 4, 4, 2, 2, 4, 4, 4, 4, 4]
assert [r["batch"] for r in rows] == sizes
assert [r["tokens"] for r in rows] == [16 * sum(sizes[:i + 1]) for i in range(12)]
plain = [1e-2 * (0.1 + 0.9 * (1 + math.cos(math.pi * i / 12)) / 2) for i in range(1, 13)]
assert all(abs(r["lr"] / (p * math.sqrt(b / 4)) - 1) < 1e-9 for r, p, b in zip(rows, plain, sizes)), [r["lr"] for r in rows]'
says "their tokens" 0 "done: step 12 of 12, 608 tokens" cat ramp.out
for at in 4 8; do
	rm -rf B && cp -r A B && rm -rf B/step-000012 "B/step-$(printf %06d $((12 - at)))"
	"$T" train ramp.yaml checkpoint.dir=B log.metrics= >/dev/null
	check "batches that grow, from step $at on" same_steps A B
done
rm -rf C && cp -r A C && rm -r C/step-000012
no "other sizes" "C/step-000008 has read 22 sequences in 8 steps, by batch.sizes they are 32; leave the sizes of steps that are done as they \
were, or set checkpoint.ignore_data" run.yaml
check "a schedule in tokens" sh -c "$S train ramp.yaml checkpoint.dir= checkpoint.every=0 log.metrics=T.j lr.unit=tokens lr.schedule=constant \
	lr.warmup=96 batch.lr=same && grep -q '\"step\": 2, .*\"lr\": 0.006666666667,' T.j && grep -q '\"step\": 3, .*\"lr\": 0.01,' T.j"
cd .. || exit 1
