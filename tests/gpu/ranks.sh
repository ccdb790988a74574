#!/bin/sh
# Trainers of several ranks on GPUs, with one GPU's as oracle: the same losses, repeats to the bit, ranks that die. On GPUs of
# their own where there are as many; else the ranks share one: NCCL takes them for as many hosts by NCCL_HOSTID, and they
# talk by sockets, which is slow and right. Usage: tests/gpu/ranks.sh OUT; OUT is of models.sh.
set -u
. "$(dirname "$0")/../suite.sh"
out=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! [ -e /dev/nvidiactl ] && ! [ -e /usr/local/nvidia ] && [ -z "${FAKE_COUNT:-}" ]; then
	suite_skip "no NVIDIA GPU here"
fi
gpus=${FAKE_COUNT:-$(nvidia-smi -L | wc -l)}
port=$((20000 + $$ % 20000))

# the ranks of a trainer, on one GPU as a launcher would start them; the status of rank 0
ranks() { # NUMBER PROGRAM ARGUMENTS...
	n=$1 world=$1
	shift
	if [ "$gpus" -ge "$n" ]; then
		timeout -k 5 100 "$@"
		return
	fi
	port=$((port + 20))
	while [ "$n" -gt 0 ]; do
		n=$((n - 1))
		RANK=$n WORLD_SIZE=$world LOCAL_RANK=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_HOSTID=rank$n NCCL_P2P_DISABLE=1 \
			NCCL_SHM_DISABLE=1 CUDA_VISIBLE_DEVICES=0 timeout -k 5 100 "$@" &
	done
	wait $!
	ranks_status=$?
	wait
	return $ranks_status
}
losses() { # FILE: of metrics, step and loss a line
	sed -n 's/.*"step": \([0-9]*\),.*"loss": \([0-9.]*\),.*/\1 \2/p' "$1"
}
near() { # NAME RUN RUN BOUND: the losses of all steps, relatively
	losses "$work/$2.jsonl" >"$work/a"
	losses "$work/$3.jsonl" >"$work/b"
	[ "$(wc -l <"$work/a")" = 12 ] && paste -d ' ' "$work/a" "$work/b" | awk -v m="$4" '
		{ d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > w) w = d; if ($1 != $3) w = 9 }
		END { print "losses are within " w + 0; exit !(w < m) }'
	is "$1: losses within $4" $?
}
same() { # NAME RUN RUN: the same bits
	[ "$(cat "$work/$2"/step-*/*.safetensors | cksum)" = "$(cat "$work/$3"/step-*/*.safetensors | cksum)" ]
	is "$1: the same weights and moments" $?
}
cat >"$work/run.yaml" <<EOF
data: { paths: [$PWD/tests/gpu], format: bytes }
steps: 12
lr: { peak: 3e-3, warmup: 2 }
log: { every: 1 }
comm: { timeout: 60 }
EOF
train() { # RUN COMMAND...: its log, metrics and checkpoints have that name
	run=$1
	shift
	rm -rf "${work:?}/$run"
	"$@" train "$work/run.yaml" checkpoint.dir="$work/$run" log.metrics="$work/$run.jsonl" >"$work/$run.log" 2>&1
	is "$run: trains" $?
	tail -n 1 "$work/$run.log"
}
train whole "$out/whole.trainer"
for t in dp2 ep2 pp2 gpipe; do
	train $t ranks 2 "$out/$t.trainer"
	near "$t and one GPU" whole $t 2e-3
done
train four ranks 4 "$out/four.trainer"
near "two stages of two data ranks and one GPU" whole four 2e-3
train again ranks 2 "$out/dp2.trainer"
same "dp2 again" dp2 again
train apart ranks 2 "$out/apart.trainer"
same "dp2 without overlap" dp2 apart
train again-ep ranks 2 "$out/ep2.trainer"
same "ep2 again" ep2 again-ep
train epapart ranks 2 "$out/epapart.trainer"
same "ep2 without overlap" ep2 epapart
train cut ranks 2 "$out/cut.trainer"
train cutcpu "$out/cut.cputrainer"
near "routes that are cut, and two ranks of CPUs" cutcpu cut 5e-3
# experts on several hosts, as a target says that has two GPUs a host: blocks by NCCL
train far ranks 4 "$out/far.trainer"
near "ranks that exchange blocks and one GPU" whole far 2e-3
train far-again ranks 4 "$out/far.trainer"
same "blocks again" far far-again
train farcut ranks 4 "$out/farcut.trainer"
train farcutcpu "$out/farcut.cputrainer"
near "blocks that cut, and four ranks of CPUs" farcutcpu farcut 5e-3
train cpu "$out/dp2.cputrainer"
near "dp2 and two ranks of CPUs" cpu dp2 5e-3

# NorMuon with drawn moments, of whose matrices each rank steps some: in two parts the bits of one
sed 's/warmup: 2/&, schedule: constant/' "$work/run.yaml" >"$work/constant.yaml"
parts() { # RUN STEPS COMMAND...: up to each of these steps, in one folder
	run=$1 upto=$2
	shift 2
	for steps in $upto; do
		"$@" train "$work/constant.yaml" checkpoint.dir="$work/$run" log.metrics="$work/$run.jsonl" \
			checkpoint.keep=1 steps="$steps" >"$work/$run.log" 2>&1
		is "$run: trains to step $steps" $?
		tail -n 1 "$work/$run.log"
	done
}
parts muon 12 "$out/muon.trainer"
parts muonparts "5 12" "$out/muon.trainer"
same "muon on one GPU, resumed" muon muonparts
for t in dp2muon ep2muon; do
	parts $t 12 ranks 2 "$out/$t.trainer"
	near "$t and one GPU" muon $t 5e-3
done
parts dp2parts "5 12" ranks 2 "$out/dp2muon.trainer"
same "dp2muon, resumed" dp2muon dp2parts

# steps of which half the tokens are one byte, another one in each: routers send those to a few experts, others each time. Ranks
# of one GPU take turns, 0.3 s a step
shifts=500
[ "$gpus" -ge 2 ] || shifts=200
awk 'BEGIN { srand(7); for (s = 0; s < 501; s++) for (i = 0; i < 2400; i++)
	printf "%c", i % 2 ? 33 + int(90 * rand()) : 33 + s * 37 % 90 }' >"$work/shifts"
ranks 2 "$out/ep2.trainer" train "$work/run.yaml" checkpoint.dir="$work/shift" steps=$shifts data.paths="[$work/shifts]" data.order=sequential \
	lr.peak=1e-4 >"$work/shift.log" 2>&1
is "shifting imbalance: $(tail -n 1 "$work/shift.log")" $?
ranks 2 "$out/ep2.trainer" preflight >"$work/preflight.log" 2>&1
[ $? = 0 ] && [ "$(grep -c 'GFLOP/s .* GB/s from rank' "$work/preflight.log")" = 2 ]
is "preflight: $(tail -n 1 "$work/preflight.log")" $?

# a checkpoint of any is every other's
eval_loss() { # COMMAND...: of the checkpoint of dp2
	"$@" eval "$work/run.yaml" eval.paths=[tests/unit] eval.sequences=30 checkpoint.dir="$work/dp2" 2>&1 |
		sed -n 's/.*loss \([0-9.]*\),.*/\1/p'
}
loss=$(eval_loss "$out/whole.trainer")
for t in dp2 ep2 pp2; do
	want "the loss of dp2's checkpoint, $t" "$(eval_loss ranks 2 "$out/$t.trainer")" "$loss"
done

# a rank that dies, or is stopped, ends the other with one line that names it
ends() { # SIGNAL TEXT
	rm -rf "$work/ends"* # and no metrics from before
	ranks 2 "$out/dp2.trainer" train "$work/run.yaml" steps=1000000 log.metrics="$work/ends.jsonl" comm.timeout=5 >"$work/ends.log" 2>&1 &
	ends_pid=$! n=0
	while ! grep -q '"step": 3,' "$work/ends.jsonl" 2>/dev/null && [ $n -lt 300 ]; do sleep 0.1 && n=$((n + 1)); done
	for p in $(pgrep -f "^[^ ]*/dp2.trainer train $work/run.yaml"); do
		tr '\0' '\n' <"/proc/$p/environ" | grep -qx RANK=1 || continue
		kill -"$1" "$p"
		(sleep 10 && kill -KILL "$p") 2>/dev/null & # who is stopped, and has nobody who looks after it
	done
	n=$(date +%s)
	wait $ends_pid
	ends_status=$? n=$(($(date +%s) - n))
	[ $n -lt 20 ] && [ "$(grep -c '^small: ' "$work/ends.log")" = 1 ] && grep -q "$2" "$work/ends.log"
	is "a rank gets SIG$1: status $ends_status after $n s, one line, $2" $?
	grep '^small: ' "$work/ends.log"
}
ends KILL "rank 1 .* is gone"
ends STOP "no answer from rank 1 "

suite_end
