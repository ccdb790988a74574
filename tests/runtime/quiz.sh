# Sets of evaluations and multiple choice, from end to end; run.sh reads it. A scorer of its own computes what is to come out.
# shellcheck shell=bash
mkdir quiz && cd quiz || exit 1
cat >make.py <<'PY'
# a file of questions, texts and lists of tokens; the first choice of each is asked for again as the last one
import json, random
random.seed(3)
text = lambda n: "".join(random.choice("abcdefgh é") for _ in range(n))
ids = lambda s: list(s.encode())
held = text(400)
open("held.txt", "w").write(held)
open("train.txt", "w").write(text(9000))
with open("q.jsonl", "w") as f:
  for i in range(41):
    choices = [text(random.randrange(1, 6)) for _ in range(random.randrange(2, 6))]
    q = {"context": text(random.randrange(1, 30)), "choices": choices + choices[:1], "answer": random.randrange(len(choices))}
    if i % 3 == 0:
      q = {"id": i, "context": ids(q["context"]), "choices": [ids(c) for c in q["choices"]], "answer": q["answer"]}
    if i == 7:
      q["bytes"] = [9 - i for i in range(len(q["choices"]))]
    f.write(json.dumps(q) + "\n" + "\n" * (i == 5))
PY
python3 make.py
cat >run.yaml <<'Y'
data: { paths: [train.txt], format: bytes }
steps: 20
lr: { peak: 1e-1 }
eval:
  start: true
  every: 10
  sequences: 9
  sets:
    all: { paths: [held.txt], sequences: 0 }
    nine: { paths: [held.txt] }
    quiz: { questions: [q.jsonl] }
checkpoint: { dir: C, every: 10, steps: [0] }
log: { metrics: m.jsonl, tensorboard: TB }
Y
cat >score.py <<'PY'
# what questions and texts come to by checkpoints; usage: score.py METRICS CHECKPOINT...
import json, math, sys
sys.path.append("..")
import bigram
def tokens(x):
  return list(x.encode()) if isinstance(x, str) else x
def quiz(loss):
  right = [0, 0, 0]
  share = mean = bits = 0
  questions = [json.loads(line) for line in open("q.jsonl") if line.strip()]
  for q in questions:
    scores = []
    for i, c in enumerate(map(tokens, q["choices"])):
      before = tokens(q["context"])[-1:]
      nll = sum(loss(a, b) for a, b in zip(before + c, c))
      scores.append((nll, nll / len(c), nll / (q["bytes"][i] if "bytes" in q else len(c))))
    a = q["answer"]
    for k in range(3):
      right[k] += min(range(len(scores)), key=lambda i: scores[i][k]) == a
    share += math.exp(-scores[a][0]) / sum(math.exp(-s[0]) for s in scores)
    mean += scores[a][1]
    bits += scores[a][2] / math.log(2)
  n = len(questions)
  return {"loss": mean / n, "accuracy": right[0] / n, "accuracy_tokens": right[1] / n, "accuracy_bytes": right[2] / n,
          "probability": share / n, "bits_per_byte": bits / n, "questions": n}
def text(loss, sequences):
  t = open("held.txt", "rb").read()
  n = 16 * (sequences or (len(t) - 1) // 16)
  mean = sum(loss(a, b) for a, b in list(zip(t, t[1:]))[:n]) / n
  return {"loss": mean, "perplexity": math.exp(mean), "bits_per_byte": mean / math.log(2), "tokens": n}
rows = [r for r in map(json.loads, open(sys.argv[1])) if "eval" in r]
assert [r["step"] for r in rows] == [int(d[-6:]) for d in sys.argv[2:]], rows
for row, d in zip(rows, sys.argv[2:]):
  loss = bigram.model(d)
  want = {"all": text(loss, 0), "nine": text(loss, 9), "quiz": quiz(loss)}
  assert set(row) == {"step", "eval"} and list(row["eval"]) == list(want), row
  for name, x in want.items():
    assert set(row["eval"][name]) == set(x), (name, row)
    for k, v in x.items():
      assert abs(row["eval"][name][k] - v) <= 1e-5 * v, (d, name, k, row["eval"][name][k], v)
assert len(rows) == 1 or len({r["eval"]["quiz"]["accuracy"] for r in rows}) > 1, "all steps answer alike"
PY
"$S" train run.yaml >T.out
check "sets at the start, every so many steps and at the end" python3 score.py m.jsonl C/step-000000 C/step-000010 C/step-000020
check "sets in TensorBoard" python3 "$root/tests/runtime/events.py" TB m.jsonl
says "sets are told" 0 "$(grep -o 'eval: step 20, quiz: accuracy .* bits a byte, 41 questions' T.out)" "$S" eval run.yaml log.metrics=e.jsonl
check "a folder of checkpoints, and one" sh -c "$S eval run.yaml C log.metrics=l.jsonl C/step-000010 &&
	head -n 3 l.jsonl >l && [ \$(wc -l <l.jsonl) = 4 ] && python3 score.py l C/step-000000 C/step-000010 C/step-000020"
says "of data" 0 "eval.sets.quiz: 41 questions in 1 file, " "$S" data run.yaml
check "the bits of a run without" sh -c "sed '/^eval/,/quiz:/d' run.yaml >plain.yaml && $T train plain.yaml checkpoint.dir=P \
	log.metrics= log.tensorboard= && for f in C/step-000020/*.safetensors; do cmp \$f P/step-000020/\${f##*/} || exit 1; done"

cat >mean.py <<'PY'
# whether the weights of the first checkpoint are the mean of the others'
import json, struct, sys
def load(d):
  for name, t in sorted(json.load(open(d + "/index.json"))["tensors"].items()):
    if not name.startswith("exp_avg"):
      f = open(d + "/" + t["file"], "rb")
      size = struct.unpack("<Q", f.read(8))[0]
      a, b = json.loads(f.read(size))[name]["data_offsets"]
      f.seek(8 + size + a)
      yield from struct.unpack("<%df" % ((b - a) // 4), f.read(b - a))
mean, *of = map(list, map(load, sys.argv[1:]))
single = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]
assert mean == [single(sum(x) / len(x)) for x in zip(*of)] and len(mean) > 4000
PY
check "a mean of the last checkpoints" sh -c "$S average M C last=2 && python3 mean.py M/step-000000 C/step-000010 C/step-000020"
check "which is measured" sh -c "$S eval run.yaml M log.metrics=M.j log.tensorboard= && python3 score.py M.j M/step-000000"
says "average over checkpoints" 1 "average: M/step-000000 is here already; give another directory" "$S" average M C
says "average of too many" 1 "average: there are 4 checkpoints, and last=5" "$S" average N C C/step-000010 last=5
says "average of last=0" 2 "trainer: average takes last=N, N from 1 to 999999" "$S" average N C last=0

bad() { # bad NAME TEXT LINE: a file of questions that is refused with the text
	printf '%s\n' '{"context": "a", "choices": ["b", "c"], "answer": 1}' "$3" >bad.jsonl
	says "questions: $1" 1 "bigram: rank 0, eval.sets.quiz: bad.jsonl:2: $2" "$S" eval run.yaml eval.sets.quiz.questions=bad.jsonl
}
bad "no JSON" "line 1, column 2: " "{,"
bad "a list" "" "[]"
bad "nothing to go on from" "context is missing, a text or a list of tokens" '{"choices": ["a", "b"], "answer": 0}'
bad "an empty context" "context has no tokens; give it one, as the token that begins a text" '{"context": "", "choices": ["a", "b"], "answer": 0}'
bad "no choices" "choices must be a list of 2 to 1024 texts or lists of tokens" '{"context": "a", "choices": ["a"], "answer": 0}'
bad "an empty choice" "choices[1] has no tokens" '{"context": "a", "choices": ["a", ""], "answer": 0}'
bad "a number" "choices[1] must be a text or a list of tokens" '{"context": "a", "choices": ["a", 1], "answer": 0}'
bad "a token" "context[1] is no token below vocab_size = 256" '{"context": [1, 256], "choices": ["a", "b"], "answer": 0}'
bad "no answer" "answer must be a whole number from 0 to 1, the place of the right one" '{"context": "a", "choices": ["a", "b"]}'
bad "an answer of none" "answer must be a whole number from 0 to 1" '{"context": "a", "choices": ["a", "b"], "answer": 2}'
bad "a long choice" "choices[0] has 17 tokens, the model's sequence_length is 16" \
	'{"context": "a", "choices": ["aaaaaaaaaaaaaaaaa", "b"], "answer": 0}'
bad "few bytes" "bytes must be a list of 2 numbers, one a choice" '{"context": "a", "choices": ["a", "b"], "answer": 0, "bytes": [1]}'
bad "no bytes" "bytes[1] must be a whole number from 1 on" '{"context": "a", "choices": ["a", "b"], "answer": 0, "bytes": [1, 0]}'
: >none.jsonl
b() { says "sets: $1" 1 "$2" "$S" eval run.yaml "${@:3}"; }
b "an empty file" "none.jsonl: has no questions, which are lines of JSON" eval.sets.quiz.questions=none.jsonl
b "no file" "no.jsonl: No such file or directory; correct eval.sets.quiz.questions" eval.sets.quiz.questions=no.jsonl
b "no checkpoint" "checkpoint: quiz.sh is none, and has none in it; name a folder step-N, or one of such" quiz.sh
b "no file of a set" "eval.sets.nine: no.txt: No such file or directory; correct eval.sets.nine.paths" eval.sets.nine.paths=no.txt
cd .. || exit 1
