#!/bin/sh
# Layouts against one rank: loss, every gradient, 20 steps of weights. Usage: layouts.sh OLMOGEN WORKDIR [all]
set -u
. "$(dirname "$0")/../suite.sh"
: "${2:?OLMOGEN WORKDIR}"
olmogen=$(realpath "$1") work=$(realpath -m "$2") which=${3:-few}
cd "$(dirname "$0")/../.." || exit 1
rm -rf "$work" # checkpoints of an earlier run are not to be compared
mkdir -p "$work"
awk -f tests/parallel/text.awk >"$work/data"
cat >"$work/run.yaml" <<EOF2
data: { paths: [$work/data], format: bytes, eos: 32 }
steps: 20
lr: { schedule: constant, peak: 1e-3, warmup: 3 }
checkpoint: { every: 1, keep: 0 }
comm: { timeout: 60 }
EOF2
known="-D score=sigmoid -D shared=48" # with which transformers has the model, Hunyuan 3
build() { # NAME -D...
	name=$1
	shift
	# shellcheck disable=SC2086 # words
	tree "$work/$name" $known "$@" tests/parallel/model.lua >"$work/$name.log" 2>&1
	is "$name builds" $?
	grep error: "$work/$name.log"
}
train() { # NAME: its trainer, into its folder of checkpoints
	name=$1
	shift
	rm -rf "$work/$name.ckpt" "$work/$name.jsonl"
	OMP_NUM_THREADS=1 timeout 300 "$work/$name/trainer" train "$work/run.yaml" checkpoint.dir="$work/$name.ckpt" \
		log.metrics="$work/$name.jsonl" log.every=1 "$@" >"$work/$name.out" 2>&1
	is "$name trains" $?
	[ -d "$work/$name.ckpt/step-000020" ] || tail -n 5 "$work/$name.out"
}
numbers() { # of metrics: losses and norms, one a line; or those of one name
	tr ',{}' '\n\n\n' <"$1" | sed -n 's/^ *"\('"${2:-loss\\|total\\|load_balance\\|z\\|grad_norm}"'\)": *//p'
}
tolerance=1e-5
near() { # NAME BASE
	far=$(build/tests/compare 1e-5 "$work/$2.ckpt/step-000001" "$work/$1.ckpt/step-000001" exp_avg)
	is "$1: gradients of step 1: $far" $?
	far=$(build/tests/compare $tolerance "$work/$2.ckpt/step-000020" "$work/$1.ckpt/step-000020" model)
	is "$1: weights after 20 steps: $far" $?
	numbers "$work/$2.jsonl" >"$work/a"
	numbers "$work/$1.jsonl" >"$work/b"
	paste "$work/a" "$work/b" | awk -v n="$(wc -l <"$work/a")" \
		'{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-5 * ($1 > 0 ? $1 : -$1) + 1e-9) bad = 1 }
		END { exit bad || NR != n || n < 40 }'
	is "$1: losses and norms of 20 steps" $?
}
layout() { # NAME [BASE] -D...: against one rank
	name=$1 base=one
	shift
	case $1 in -*) ;; *) base=$1 && shift ;; esac
	build "$name" "$@"
	OM_POISON=1 train "$name"
	near "$name" $base
}
same() { # NAME BASE: to the bit
	far=$(build/tests/compare 0 "$work/$2.ckpt/step-000020" "$work/$1.ckpt/step-000020")
	is "$1: the bits of $2: $far" $?
}
base() { # NAME -D...: another model on one rank
	build "$@"
	train "$1"
}

base one
layout dp2 -D data=2
layout pp2ep2 -D pipeline=2 -D data=2 -D expert=2
# again: the same bits
rm -rf "$work/first.ckpt" # of an earlier run
mv "$work/pp2ep2.ckpt" "$work/first.ckpt"
train pp2ep2
same pp2ep2 first
OMP_NUM_THREADS=1 timeout 300 "$work/pp2ep2/trainer" bench steps=3 --trace="$work/trace.json" \
	--html="$work/bench.html" >"$work/bench" &&
	awk -f tests/shares.awk "$work/bench" >"$work/bench.log"
is "pp2ep2: bench's parts add up, none is negative" $?
python3 tests/trace.py "$work/trace.json" 4 1 >"$work/log" 2>&1
is "pp2ep2: bench's trace has all ranks' operators, inside their segments" $?
python3 tests/page/bench.py "$work/trace.json" "$work/bench.html" >"$work/log" 2>&1
count "pp2ep2: bench's page" "$(cat "$work/log")"

OMP_NUM_THREADS=1 timeout 100 "$work/pp2ep2/trainer" preflight >"$work/preflight.out" 2>&1 &&
	awk '$1 ~ /^[0-9]+$/ && NF == 11 && $3 > 0 && $5 > 0 && $7 > 0 && $11 != $1 { n++ } $1 == "slow:" || /^no rank is under/ { t++ }
		END { exit n != 4 || !t }' "$work/preflight.out"
is "preflight of four ranks: $(tail -n 1 "$work/preflight.out")" $?
old_glibc "$work/pp2ep2/trainer"

# a trainer of many ranks exports in one process, from a checkpoint of any layout, what one of one rank does
for t in one pp2ep2; do
	"$work/$t/trainer" export "$work/$t.hf" "$work/first.ckpt" >"$work/$t.out" 2>&1
	is "$t exports a checkpoint of four ranks: $(tail -n 1 "$work/$t.out")" $?
done
diff -r "$work/one.hf" "$work/pp2ep2.hf" && [ "$(ls "$work/one.hf" | wc -l)" = 3 ]
is "the same export" $?
for t in one pp2ep2; do
	"$work/$t/trainer" import "$work/pp2ep2.hf" "$work/$t.back" >"$work/back.out" 2>&1 &&
		far=$(build/tests/compare 0 "$work/first.ckpt/step-000020" "$work/$t.back/step-000000" model)
	is "$t imports the weights: $far" $?
done
diff -r "$work/one.back" "$work/pp2ep2.back"
is "the same import" $?

# the same numbers of one checkpoint, whichever trainer measures it
python3 tests/parallel/evals.py make "$work/data" "$work"
measure() { # WHAT NAME: of text whole or documents, of its own checkpoint or the one that is named
	timeout 100 "$work/$2/trainer" eval "$work/run.yaml" "$work/${3:-$2}.ckpt/step-000020" log.metrics="$work/$2.eval" \
		checkpoint.dir="$work" data.cut_labels=true eval.sets.text.paths="$work/$1.txt" eval.sets.quiz.questions="$work/$1.jsonl" >"$work/eval.out" 2>&1
	is "$2 measures $1: $(tail -n 1 "$work/eval.out")" $?
}
for t in one dp2 pp2ep2; do measure whole $t one; done
python3 tests/parallel/evals.py compare "$work/one.eval" "$work/dp2.eval" "$work/pp2ep2.eval"
is "the same numbers under all layouts, and of questions those of their text" $?

# a batch of half the size is what a model of that batch has, routers' losses included, and under every layout
base half -D global=4
for t in one pp2ep2; do
	ln -sfn $t "$work/half$t"
	OM_POISON=1 train half$t "batch.sizes=[4 until 20]"
	near half$t half
done

for t in one pp2ep2; do
	"$work/$t/trainer" average "$work/$t.mean" "$work/first.ckpt" last=3 >"$work/mean.out" 2>&1
	is "$t makes a mean of checkpoints of four ranks: $(tail -n 1 "$work/mean.out")" $?
done
diff -r "$work/one.mean" "$work/pp2ep2.mean"
is "the same mean" $?

# averages of the weights: those of one rank, to the bit after resuming, though they were measured; the mean of checkpoints
averages() { # NAME -D...: those of the last six steps
	build "$@" -D average=true
	OM_POISON=1 train "$1" average.from=15
	rm -rf "$work/$1.again"
	cp -r "$work/$1.ckpt" "$work/$1.again"
	rm -rf "$work/$1".again/step-00001[89] "$work/$1.again/step-000020"
	OMP_NUM_THREADS=1 timeout 100 "$work/$1/trainer" train "$work/run.yaml" checkpoint.dir="$work/$1.again" average.from=15 \
		eval.of=average eval.every=1 eval.paths="$work/whole.txt" >"$work/again.out" 2>&1
	far=$(build/tests/compare 0 "$work/$1.ckpt/step-000020" "$work/$1.again/step-000020") &&
		far=$(build/tests/compare 0 "$work/$1.ckpt/step-000020" "$work/$1.again/step-000020" average)
	is "$1: the same bits after resuming, with averages measured: $far" $?
	for of in "mean last=6" "own of=average"; do
		# shellcheck disable=SC2086 # a name and what it is of
		set -- "$1" $of
		[ "$2" = own ] && from=$work/$1.ckpt/step-000020 || from=$work/$1.ckpt
		"$work/$1/trainer" average "$work/$1.$2" "$from" "$3" >"$work/mean.out" 2>&1
		is "$1: $2: $(tail -n 1 "$work/mean.out")" $?
	done
	far=$(build/tests/compare 1e-6 "$work/$1.mean/step-000000" "$work/$1.own/step-000000" model)
	is "$1: the average is the mean of six checkpoints: $far" $?
	"$work/$1/trainer" eval "$work/run.yaml" "$work/$1.own" checkpoint.dir="$work" eval.paths="$work/whole.txt" >"$work/own.out" 2>&1
	[ "$(sed -n 's/.*\(loss .* bits\).*/\1/p' "$work/own.out")" = "$(sed -n 's/^eval: step 20.*\(loss .* bits\).*/\1/p' "$work/again.out")" ]
	is "$1: it is what was measured: $(tail -n 1 "$work/own.out")" $?
}
averages avg
averages avgbf16 -D weights=bf16 -D data=2 -D expert=2
averages pp2avg -D pipeline=2 -D data=2 -D expert=2
far=$(build/tests/compare 1e-5 "$work/avg.ckpt/step-000020" "$work/pp2avg.ckpt/step-000020" average)
is "pp2avg: averages of one rank: $far" $?
numbers "$work/one.jsonl" >"$work/a"
numbers "$work/avg.jsonl" >"$work/b"
cmp -s "$work/a" "$work/b" && [ "$(wc -l <"$work/a")" -gt 90 ]
is "avg: every number of a trainer without averages" $?

# rows that no rank has room for: the same ones are cut wherever the layers are; of masked documents, too
build cut -D data=2 -D expert=2 -D capacity=0.75 -D pair=0.9 -D documents=mask
OM_POISON=1 train cut
build pp2cut -D pipeline=2 -D data=2 -D expert=2 -D capacity=0.75 -D pair=0.9 -D documents=mask
OM_POISON=1 train pp2cut
near pp2cut cut
cuts() {
	tr ',{}' '\n\n\n' <"$work/$1.jsonl" | sed -n 's/^ *"cut": *//p'
}
cuts cut >"$work/a"
cuts pp2cut >"$work/b"
cmp -s "$work/a" "$work/b" && awk '$1 > 0 && $1 < 1 { n++ } END { exit n < 20 }' "$work/a"
is "the same share of rows is cut in both, some are" $?
build/tests/compare 1e-5 "$work/one.ckpt/step-000020" "$work/cut.ckpt/step-000020" model >/dev/null
[ $? = 1 ]
is "and that changes the weights" $?

# 100 steps, or at full length 500, of which half the tokens are one byte, another one in each: routers send those to a few experts, others each time
awk 'BEGIN { srand(7); for (s = 0; s < 501; s++) for (i = 0; i < 256; i++)
	printf "%c", i % 2 ? 33 + int(90 * rand()) : 33 + s * 37 % 90 }' >"$work/shifts"
ln -sfn cut "$work/shift"
shifts=$([ "$which" = all ] && echo 500 || echo 100)
train shift steps=$shifts data.paths="[$work/shifts]" data.order=sequential checkpoint.every=$shifts lr.peak=1e-4
tr '{' '\n' <"$work/shift.jsonl" | sed -n 's/^"layer": 0,.*"load": \[\([0-9, ]*\)\].*/\1/p' | awk -F', ' -v n=$shifts '
	{ hot = 1; sum = 0; for (i = 1; i <= NF; i++) { sum += $i; if ($i > $hot) hot = i } }
	{ moved += NR > 1 && hot != was; was = hot; twice += $hot > 1.5 * sum / NF }
	END { print NR " steps, another hot expert in " moved ", over 1.5 of the mean in " twice
		exit !(NR == n && moved > 0.4 * n && twice > 0.6 * n) }' >"$work/hot"
is "shifting imbalance: $(cat "$work/hot")" $?
[ "$(cuts shift | sort -u | wc -l)" -gt $((shifts / 5)) ]
is "and another share of rows is cut in each step" $?

# a run that goes on under other layouts: EP and PP, then DP, then one rank
rm -rf "$work/chain.ckpt"
for leg in "pp2ep2 8" "dp2 14" "one 20"; do
	set -- $leg
	OMP_NUM_THREADS=1 timeout 300 "$work/$1/trainer" train "$work/run.yaml" checkpoint.dir="$work/chain.ckpt" \
		steps="$2" >"$work/chain.out" 2>&1
	is "chain: $1 to step $2" $?
done
far=$(build/tests/compare 1e-5 "$work/one.ckpt/step-000020" "$work/chain.ckpt/step-000020" model)
is "chain: weights: $far" $?

# SkipStep, whose limits are of the losses before: the same steps are skipped everywhere
for name in one pp2ep2; do
	ln -sfn $name "$work/skip$name"
	train skip$name skip_step.sigma=1.5 skip_step.window=4
done
near skippp2ep2 skipone
skips() {
	tr ',{}' '\n\n\n' <"$work/$1.jsonl" | sed -n 's/^ *"skipped": *//p'
}
skips skipone >"$work/a"
skips skippp2ep2 >"$work/b"
cmp -s "$work/a" "$work/b" && awk '{ n += $1 } END { exit !(n > 1 && n < 19) }' "$work/a"
is "the same steps are skipped, some are" $?

# more experts than a microbatch has rows for: those without tokens get nothing, and keep what they had
known=
base sparse -D experts=64 -D k=1 -D documents=mask
tolerance=1e-4 # Adam makes much of the gradient of a token or two
layout ep2sparse sparse -D data=2 -D expert=2 -D experts=64 -D k=1 -D documents=mask
for t in sparse ep2sparse; do measure documents $t sparse; done
python3 tests/parallel/evals.py compare "$work/sparse.eval" "$work/ep2sparse.eval"
is "choices that share sequences by documents: the same numbers" $?
tr ',{}' '\n\n\n' <"$work/ep2sparse.jsonl" | awk '/"dead"/ { n += $2 } END { exit n == 0 }'
is "some experts have no token in a step" $?
known="-D score=sigmoid -D shared=48"
tolerance=1e-5

# what no description asks for: experts' rows that begin at multiples of 16, what lies between them adds nothing
variant() { # NAME WORDS NAME=VALUE...
	name=$1 words=$2
	shift 2
	build/tests/streams tests/parallel/model.lua cpu 1,"$words",emit "$work/$name" score=sigmoid shared=48 "$@" >"$work/$name.log" 2>&1 &&
		make -s -j2 -C "$work/$name" >>"$work/$name.log" 2>&1
	is "$name builds" $?
	OM_POISON=1 train "$name"
	near "$name" one
}
variant rows16 rows=16
variant ep2rows16 rows=16 data=2 expert=2
variant pp2rows16 rows=16 data=4 expert=4 pipeline=2 capacity=3

# matrices that are owned and stepped whole, by two ranks and by four, with one number a row besides; a momentum that goes
# on under another layout; the moments of another optimizer are dropped, which is told, on any ranks
tolerance=2e-5 # of a small singular value more is made than of a large one
# experts in 8 bits: a rank's rows are quantised as they were on one; later steps' roundings may fall differently
first_step() { # NAME BASE
	far=$(build/tests/compare 1e-5 "$work/$2.ckpt/step-000001" "$work/$1.ckpt/step-000001" exp_avg)
	is "$1: gradients of step 1: $far" $?
}
base eight -D experts8=mxfp8
build pp2ep2eight -D experts8=mxfp8 -D pipeline=2 -D data=2 -D expert=2 -D recompute=experts
OM_POISON=1 train pp2ep2eight
first_step pp2ep2eight eight
for t in eight pp2ep2eight; do
	numbers "$work/$t.jsonl" saturated | head -n 3 >"$work/$t.saturated" # of the layers, in step 1
done
cmp "$work/eight.saturated" "$work/pp2ep2eight.saturated" && [ "$(wc -l <"$work/eight.saturated")" = 3 ] &&
	awk '$1 < 1e-4 || $1 > 0.1 { bad = 1 } END { exit bad }' "$work/eight.saturated"
is "pp2ep2eight: as many numbers become 448 as on one rank" $?
if [ "$which" = all ]; then # another order of the same sums: the same bits
	build pp2eight -D experts8=mxfp8 -D pipeline=2 -D recompute=block
	OM_POISON=1 train pp2eight
	same pp2eight eight
fi

base muon -D muon=0.95
layout dp4muon muon -D muon=0.95 -D data=4 -D expert=2
layout pp2muon muon -D muon=0.95 -D pipeline=2
same pp2muon muon
tolerance=1e-5
for leg in "pp2muon 7" "muon 20"; do
	set -- $leg
	OMP_NUM_THREADS=1 timeout 300 "$work/$1/trainer" train "$work/run.yaml" checkpoint.dir="$work/muonchain.ckpt" \
		steps="$2" >"$work/chain.out" 2>&1
	is "chain of Muon's: $1 to step $2" $?
done
same muonchain muon
# a group of parameters with a schedule of its own: a rate of 0 leaves them as they are, and any is the same on two stages
rated() { # NAME TRAINER SCHEDULE
	OMP_NUM_THREADS=1 timeout 300 "$work/$2/trainer" train "$work/run.yaml" checkpoint.dir="$work/$1.ckpt" steps=3 \
		"lr.groups=[\"experts $3\"]" >"$work/$1.out" 2>&1
	is "$2 trains with experts $3" $?
}
rated still muon "scale=0"
far=$(build/tests/compare 0 "$work/still.ckpt/step-000001" "$work/still.ckpt/step-000003" model.layers.2.mlp.experts) &&
	! build/tests/compare 1e-5 "$work/still.ckpt/step-000001" "$work/still.ckpt/step-000003" model.layers.2.mlp.s >/dev/null
is "with a rate of 0 experts stay, and shared ones do not: $far" $?
rated slow muon "scale=0.5 schedule=linear warmup=0 final=0"
rated pp2slow pp2muon "scale=0.5 schedule=linear warmup=0 final=0"
far=$(build/tests/compare 0 "$work/slow.ckpt/step-000003" "$work/pp2slow.ckpt/step-000003") &&
	! build/tests/compare 1e-5 "$work/slow.ckpt/step-000003" "$work/muon.ckpt/step-000003" model >/dev/null
is "pp2muon has the bits of muon with that, and they are others than without: $far" $?
for leg in "one dp4muon exp_avg.of.122.tensors,.exp_avg_sq.of.122.tensors" \
	"muon one exp_avg.of.19.tensors,.exp_avg_sq.of.19.tensors,.momentum_buffer.of.103.tensors,.row_mean_sq.of.103.tensors"; do
	set -- $leg
	rm -rf "$work/other.ckpt"
	cp -r "$work/$1.ckpt" "$work/other.ckpt"
	OMP_NUM_THREADS=1 timeout 300 "$work/$2/trainer" train "$work/run.yaml" checkpoint.dir="$work/other.ckpt" steps=21 \
		>"$work/other.out" 2>&1 && grep -q "another optimizer, whose moments are dropped ($3)" "$work/other.out" &&
		grep -q '"updates_before_moments": 20,' "$work/other.ckpt/step-000021/index.json"
	is "$2 goes on from the weights of $1 alone: $(grep dropped "$work/other.out")" $?
done

# moments in bf16, AdamW's and NorMuon's: an element's draws are its own wherever it lies, so only what a sum's last bit turns differs, which is an
# element in some thousands; were the draws others, it would be every second
drawn() { # NAME -D...: against one rank
	name=$1
	shift
	build "$name" -D weights=bf16 -D moments=bf16 -D muon=0.95 -D global=2 "$@"
	OM_POISON=1 train "$name"
	for of in exp_avg momentum_buffer row_mean_sq; do
		far=$(build/tests/compare 1e-5 "$work/drawn.ckpt/step-000002" "$work/$name.ckpt/step-000002" $of 2e-3)
		is "$name: $of after 2 steps: $far" $?
	done
}
base drawn -D weights=bf16 -D moments=bf16 -D muon=0.95 -D global=2
drawn ep2drawn -D data=2 -D expert=2
if [ "$which" = all ]; then
	drawn dp2drawn -D data=2
	drawn pp2drawn -D pipeline=2
	same pp2drawn drawn
fi

if [ "$which" = all ]; then
	layout ep2 -D data=2 -D expert=2
	layout ep4 -D data=4 -D expert=4
	layout dp4ep2 -D data=4 -D expert=2
	for p in 2 4; do
		for s in gpipe 1f1b; do
			layout pp$p$s -D pipeline=$p -D schedule=$s
		done
	done
	layout pp2interleaved -D pipeline=2 -D schedule=interleaved
	layout pp2v -D pipeline=2 -D schedule=v
	layout all8 -D pipeline=2 -D data=4 -D expert=2
	same pp41f1b one
	base eight -D layers=8
	for s in interleaved v; do
		layout pp4$s eight -D layers=8 -D pipeline=4 -D schedule=$s
		same pp4$s eight
	done

	base tied -D tied=true
	layout pp2tied tied -D tied=true -D pipeline=2 -D schedule=v -D data=2
	base biased -D gamma=0.01
	layout ep2biased biased -D data=2 -D expert=2 -D gamma=0.01
	layout pp2biased biased -D pipeline=2 -D gamma=0.01
	base two -D micro=2 -D balance=global
	tolerance=3e-5 # other microbatches, so other sums
	layout dp2global two -D data=2 -D balance=global
	layout ep4micro two -D data=2 -D expert=2 -D micro=1 -D balance=global
	tolerance=1e-5
	for what in rows experts block cheap; do
		layout ep2$what one -D data=2 -D expert=2 -D recompute=$what
	done
	base bf16 -D weights=bf16
	build pp2bf16 -D weights=bf16 -D pipeline=2
	train pp2bf16
	same pp2bf16 bf16
	build dp2bf16 -D weights=bf16 -D data=2 -D expert=2
	train dp2bf16
	# what is near in fp32 may round apart in bf16, and send a token to another expert: then weights part, losses hardly
	far=$(build/tests/compare 1e-5 "$work/bf16.ckpt/step-000005" "$work/dp2bf16.ckpt/step-000005" model)
	is "dp2bf16: weights after 5 steps: $far" $?
	numbers "$work/bf16.jsonl" loss >"$work/a"
	numbers "$work/dp2bf16.jsonl" loss >"$work/b"
	paste "$work/a" "$work/b" | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4 * $1) bad = 1 } END { exit bad || NR != 20 }'
	is "dp2bf16: losses of 20 steps" $?
fi
suite_end
