#!/bin/bash
# Several ranks, as processes on this machine: comm against naive sums; a hand-written model in several layouts against
# one rank; ranks that are killed, stopped, or asked to end. usage: tests/parallel/run.sh WORKDIR
set -u
. "$(dirname "$0")/../suite.sh"
export LC_ALL=C OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cd "$(dirname "$0")/../.." || exit 1
rm -rf "$1" && mkdir -p "$1" && cd "$1" || exit 1
# where another mpirun ends, it removes the folder that this one is about to use
OMPI_MCA_orte_tmpdir_base=$(mktemp -d) && export OMPI_MCA_orte_tmpdir_base
trap 'rm -rf "$OMPI_MCA_orte_tmpdir_base"' EXIT

match=E within="timeout -k 5 180"
once() { # once NAME TEXT: out has one such line
	[ "$(grep -cE -- "$2" out)" = 1 ] && ok || fail "$1: $(grep -cE -- "$2" out) times: $2"
}
gone() { # gone NAME PROGRAM: none of its processes is left
	local n=0
	while pgrep -f "$PWD/$2 " >/dev/null && [ $n -lt 150 ]; do sleep 0.2 && n=$((n + 1)); done
	[ $n -lt 150 ] && ok || fail "$1: processes are left"
}
when() { # when FILE COMMAND...: in the background, once the file is there
	rm -f "$1"
	(
		f=$1 n=0
		shift
		while [ ! -s "$f" ] && [ $n -lt 300 ]; do sleep 0.1 && n=$((n + 1)); done
		sleep 0.3
		"$@"
	) &
}

# ---- build ---------------------------------------------------------------------------------------------------
mkdir o
tcp=$plain\ -I$root/runtime/nccl
{
	compiles o "$plain" mpi
	# so small that a few thousand numbers take several messages and blocks
	echo "mpicc ${cc#* } $plain -DOM_COMM_PIECE=100000 -c $root/runtime/mpi/comm.c -o small.o"
	echo "$cc $plain -DOM_COMM_SCRATCH=65536 -DOM_COMM_STAR=2 -c $root/runtime/ranks/ranks.c -o ranks_small.o"
	echo "mpicc ${cc#* } $plain -c $root/tests/parallel/comm_check.c -o check.o"
	echo "$cc $plain -c $root/runtime/one/comm.c -o one.o"
	for f in comm life meet start; do echo "$cc $tcp -c $root/runtime/nccl/$f.c -o tcp_$f.o"; done
	echo "$cc $tcp -c $root/tests/parallel/near.c -o tcp_near.o"
	echo "$cc $tcp -DOM_TCP -c $root/tests/parallel/comm_check.c -o check_tcp.o"
	echo "$cc $plain -c $root/tests/parallel/layers.c -o l1.o"
	for l in "2 1 1" "1 2 1" "2 2 1" "1 2 2" "2 2 2" "1 4 1"; do
		set -- $l
		echo "$cc $plain -DDATA=$1 -DPIPELINE=$2 -DCHUNKS=$3 -c $root/tests/parallel/layers.c -o l$1$2$3.o"
	done
} | side_by_side || suite_stop "does not compile"
alone=$(ls o/*.o | grep -vE '/(comm|launch|start|ranks)\.o')
mpicc -fopenmp check.o small.o o/launch.o o/start.o ranks_small.o $alone -lyaml -ljansson -lm -o check || fail "link check"
gcc -fopenmp l1.o one.o $alone -lyaml -ljansson -lm -o l1 || fail "link l1"
gcc -fopenmp -Wl,--wrap=om_meet check_tcp.o tcp_*.o o/launch.o ranks_small.o $alone -lyaml -ljansson -lm -o tcp || fail "link tcp"
gcc -fopenmp l222.o tcp_*.o o/launch.o o/ranks.o $alone -lyaml -ljansson -lm -o tcp222 || fail "link tcp222"
for l in 211 121 221 122 222 141; do mpicc -fopenmp l$l.o o/*.o -lyaml -ljansson -lm -o l$l || fail "link l$l"; done
[ "$failed" = 0 ] || suite_stop "what follows needs these"

# ---- functions: each in layouts of 1, 2, 3, 4 and 8 ranks, twice with the same bits ----------------------------
for l in "1 1 1" "2 1 1" "1 1 2" "3 3 1" "2 2 2" "4 2 2" "2 1 4"; do
	says "functions of $l" 0 "^[0-9]+ checks, 0 failed" ./check $l 5
	first=$(cat out)
	if [ "$l" != "2 1 4" ]; then
		says "again $l" 0 "checks" ./check $l 5
		[ "$first" = "$(cat out)" ] && ok || fail "other bits, $l: $first; $(cat out)"
	fi
done
says "under mpirun" 0 "^2[0-9]+ checks, 0 failed" mpirun -np 8 ./check 4 4 2 6

# ---- ends ----------------------------------------------------------------------------------------------------
says "one rank dies" 1 "^comm_check: rank 3, step 5, test: as it was told$" ./check 4 2 1 die 20
once "one rank dies" "^comm_check: "
says "all ranks die" 1 "^comm_check: rank [0-3], test: all are bad$" ./check 4 2 1 bad
once "all ranks die" "^comm_check: "
when pid.2 sh -c 'kill -9 $(cat pid.2)'
says "a killed rank" 137 "^comm_check: rank [013], step [0-9]+, test of ranks: rank 2 \(process [0-9]+\) is gone: " \
	./check 4 2 1 wait 20
once "a killed rank" "^comm_check: "
when pid.0 sh -c 'kill -9 $(cat pid.0)'
says "rank 0 is killed" 137 "^comm_check: rank [123], step [0-9]+, test of ranks: rank 0 .* is gone: " \
	mpirun -np 4 ./check 4 2 1 wait 20
when pid.2 sh -c 'kill -STOP $(cat pid.2)'
# little things go by rank 0: it waits for rank 2, the others for it, and whichever is the first says so
says "a stopped rank" 4 "^comm_check: rank (0, step [0-9]+, test of ranks: no answer from rank 2|\
[13], step [0-9]+, test of ranks: no answer from rank 0) within 3 s; rank 2 \(process [0-9]+\) is stopped" ./check 4 2 1 wait 3
gone "killed and stopped ranks" check
says "another number of ranks" 1 "rank [0-2], start: this trainer is of 4 ranks \(pipeline 1 x data 4\), 3 were started" \
	mpirun -np 3 ./check 4 2 1 1
once "another number of ranks" "^comm_check: "
says "a trainer of one rank" 1 "rank 0, start: this trainer is of one rank, 2 were started" \
	mpirun -np 2 ./l1 bench steps=1
mkdir none bin && touch bin/mpirun && chmod +x bin/mpirun
says "no mpirun" 1 "start: this trainer is of 2 ranks, and mpirun, which starts them, cannot be run: No such file" \
	env PATH="$PWD/none" "$PWD/check" 2 1 1 1
printf '#!/bin/sh\necho "unrecognized argument oversubscribe" >&2\nexit 255\n' >bin/mpirun
says "MPICH's mpirun" 255 "^unrecognized argument oversubscribe" env PATH="$PWD/bin:$PATH" ./check 2 1 1 1
printf '#!/bin/sh\necho "done nothing"\n' >bin/mpirun
says "an mpirun that starts nothing, and ends well" 1 "with status 0; its words are above" env PATH="$PWD/bin:$PATH" ./check 2 1 1 1
printf '#!/bin/sh\nwhile [ "$1" != %s ]; do shift; done\nexec "$@"\n' "$PWD/check" >bin/mpirun
says "another mpirun" 1 "start: the mpirun that is found is not Open MPI's" env PATH="$PWD/bin:$PATH" ./check 2 1 1 1

# ---- starts: a rank that does not come out of MPI_Init, and what mpirun itself says -----------------------------
says "stopped in MPI_Init" 4 "^start: after 3 s rank 2 \(process [0-9]+\) is stopped \(SIGSTOP\); comm.timeout" \
	env OM_TEST_INIT=2,19 ./check 4 2 1 wait 3
[ "$(wc -l <out)" = 1 ] && ok || fail "stopped in MPI_Init: $(cat out)"
says "killed in MPI_Init" 137 "^ranks: rank 2 \(process [0-9]+\) was the first to be gone \(Killed\); train again" \
	env OM_TEST_INIT=2,9 ./check 4 2 1 wait 20
[ "$(wc -l <out)" = 1 ] && ok || fail "killed in MPI_Init: $(cat out)"
says "stopped in MPI_Init, by hand" 4 "^start: MPI_Init does not end: a rank is stopped" \
	env OM_TEST_INIT=2,19 mpirun -np 3 ./check 3 1 1 wait 2
when pid.2 sh -c 'kill -9 $(ps -o ppid= -p $(cat pid.2))'
says "mpirun is killed" 137 "^ranks: mpirun \(process [0-9]+\), which runs them, was ended by a signal \(Killed\); train again" \
	./check 4 2 1 wait 20
gone "ranks that did not start" check
says "mpirun's own words" 1 "^Component: +nonsense" env OMPI_MCA_plm=nonsense ./check 2 1 1 1
once "mpirun's own words" "^start: mpirun, which starts the ranks and has to be Open MPI's, ended with status 1; its words are"
for there in "$(hostname)" other1,other2; do
	says "a scheduler's allocation of $there" 0 "checks, 0 failed" env -u OMPI_MCA_rmaps_base_oversubscribe SLURM_JOBID=7 \
		SLURM_NODELIST="$there" SLURM_TASKS_PER_NODE=1 ./check 2 1 2 5
done
for v in PMI_SIZE=4 SLURM_STEP_NUM_TASKS=4; do
	says "$v" 1 "start: a launcher that is not Open MPI's started 4 processes \(${v%=*} says so\)" env $v ./check 4 2 1 1
	says "$v, a trainer of one rank" 1 "start: this trainer is of one rank, 4 were started \(${v%=*} says so\)" env $v ./l1 bench steps=1
done

# ---- ranks that meet by themselves, over TCP: as those of Open MPI, and by what other launchers say -----------
for l in "3 3 1" "2 2 2"; do
	says "functions of $l" 0 "checks, 0 failed" ./check $l 7
	first=$(cat out)
	says "functions of $l over TCP" 0 "checks, 0 failed" ./tcp $l 7
	[ "$first" = "$(cat out)" ] && ok || fail "other bits over TCP, $l: $first; $(cat out)"
done
says "one rank dies, TCP" 1 "^comm_check: rank 3, step 5, test: as it was told$" ./tcp 4 2 1 die 20
once "one rank dies, TCP" "."
says "all ranks die, TCP" 1 "^comm_check: rank [0-3], test: all are bad$" ./tcp 4 2 1 bad
once "all ranks die, TCP" "."
when pid.2 sh -c 'kill -9 $(cat pid.2)'
says "a killed rank, TCP" 137 "^comm_check: rank [013], step [0-9]+, [a-z ]+: rank 2 \(process [0-9]+\) is gone: " ./tcp 4 2 1 wait 20
once "a killed rank, TCP" "."
when pid.0 sh -c 'kill -9 $(cat pid.0)'
says "rank 0 is killed, TCP" 137 "rank 0 \(process [0-9]+\) (is gone: |was the first to be gone)" ./tcp 4 2 1 wait 20
once "rank 0 is killed, TCP" "."
when pid.2 sh -c 'kill -STOP $(cat pid.2)'
says "a stopped rank, TCP" 4 "no answer from rank 2 \(process [0-9]+\) within 3 s; (rank 2 \(process [0-9]+\)|it) is stopped" \
	./tcp 4 2 1 wait 3
gone "killed and stopped ranks, TCP" tcp
says "stopped before they meet" 4 "^start: after 3 s rank 2 \(process [0-9]+\) is stopped \(SIGSTOP\); comm.timeout" \
	env OM_TEST_INIT=2,19 ./tcp 4 2 1 wait 3
once "stopped before they meet" "."
says "killed before they meet" 137 "^ranks: rank 2 \(process [0-9]+\) was the first to be gone \(Killed\); train again" \
	env OM_TEST_INIT=2,9 ./tcp 4 2 1 wait 20
once "killed before they meet" "."
launched() { # NAME TEXT VARIABLES...: two ranks at once, told who they are by these, where R is the rank
	local name=$1 text=$2
	shift 2
	says "$name" 0 "$text" sh -c 'for R in 0 1; do env $(echo "$*" | sed "s/=R/=$R/") ./tcp 2 1 1 5 & done; wait' sh "$@"
}
launched torchrun "checks, 0 failed" RANK=R WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$((30000 + $$ % 20000))
launched srun "checks, 0 failed" SLURM_PROCID=R SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=$$ "SLURM_STEP_NODELIST=$(hostname)"
launched "a file of all hosts" "checks, 0 failed" PMI_RANK=R PMI_SIZE=2 "OM_RENDEZVOUS=$PWD/where"
[ ! -e where ] && ok || fail "a file of all hosts: it stays"
launched "nobody says where rank 0 is" "rank 0, start: nothing says where rank 0 is; set MASTER_ADDR" PMI_RANK=R PMI_SIZE=2
once "nobody says where rank 0 is" "."
says "mpirun, TCP" 0 "checks, 0 failed" mpirun -np 2 ./tcp 2 1 1 5
says "another number of ranks, TCP" 1 "start: this trainer is of 4 ranks \(pipeline 1 x data 4\), 3 were started \(by Open MPI\)" \
	mpirun --quiet -np 3 ./tcp 4 2 1 1
once "another number of ranks, TCP" "^comm_check: "

# ---- layouts: a hand-written model -----------------------------------------------------------------------------
head -c 60000 "$root/runtime/train.c" >corpus.txt
head -c 5000 "$root/runtime/eval.c" >held.txt
cat >run.yaml <<'Y'
data: {paths: [corpus.txt]}
steps: 20
lr: {peak: 1e-2, warmup: 5}
eval: {paths: [held.txt], every: 10, sequences: 37}
Y
grep -v eval: run.yaml >short.yaml
same() { # same NAME A B BOUND: files of metrics agree within it, relatively
	python3 - "$@" <<'P' && ok || fail "$1"
import json, sys
a, b = ([json.loads(l) for l in open(f)] for f in sys.argv[2:4])
bound = float(sys.argv[4])
def walk(x, y, at):
    if isinstance(x, dict):
        # every expert's load is in the first step of a run, too
        assert x.keys() - {"load"} == y.keys() - {"load"}, (at, x, y)
        for k in x.keys() & y.keys():
            if k not in ("tokens_per_s", "data_wait", "tflops"): walk(x[k], y[k], at + "." + k)
    elif isinstance(x, list):
        assert len(x) == len(y), (at, x, y)
        assert not isinstance(x[0], dict) or [m["layer"] for m in x] == list(range(len(x))) == [m["layer"] for m in y], (at, x, y)
        for i in range(len(x)): walk(x[i], y[i], "%s[%d]" % (at, i))
    else:
        assert abs(x - y) <= bound * abs(x), (at, x, y)
for line in a + b: # which differ between runs, and are not there of one rank, or of one that was not stopped
    for key in ("ranks", "slowest", "resumed"):
        line.pop(key, None)
assert len(a) == len(b) >= 12, (len(a), len(b))
for i in range(len(a)): walk(a[i], b[i], "line %d" % i)
P
}
says "one rank" 0 "^done: step 20 of 20" ./l1 train run.yaml log.metrics=m1 checkpoint.dir=c1
for l in 211 121 221 122 222 141; do
	says "layout $l" 0 "^done: step 20 of 20" ./l$l train run.yaml log.metrics=m$l checkpoint.dir=c$l checkpoint.every=10
	once "only rank 0 is heard, $l" "^step +1/20 "
	same "metrics of layout $l" m1 m$l 1e-5
done
says "the same bits again" 0 "^ranks: 4: pipeline 2 x data 2, of these expert 1$" \
	./l221 train run.yaml log.metrics=again checkpoint.dir=again.d
same "the same bits again" m221 again 0
says "layout 222 over TCP" 0 "^done: step 20 of 20" ./tcp222 train run.yaml log.metrics=mtcp222
same "layout 222 over TCP" m222 mtcp222 0
says "a slow rank" 0 "^done: step 20 of 20" env OM_TEST_SLOW=20000 ./l221 train run.yaml log.metrics=slow
check "is the one that others wait for" python3 -c 'import json
rows = [r for r in map(json.loads, open("slow")) if "ranks" in r]
assert len(rows) == 20 and all(len(r["ranks"]) == 4 and r["slowest"] >= 1 for r in rows)
assert all(r["ranks"][1] > 0.04 for r in rows), [r["ranks"] for r in rows] # it slept so long
assert any(r["ranks"][1] == max(r["ranks"]) and r["slowest"] > 2 for r in rows), [r["ranks"] for r in rows]'
# a rank that waits for others is not blamed by the watchdog
says "the watchdog of ranks" 4 "^layers: rank [01], step 1, watchdog: computing a step has not ended for 1 s" env OM_TEST_NAP=9000000 \
	./l211 train short.yaml watchdog=1
# a step that is not finite takes all ranks back to the same checkpoint, and to the same data
for l in 1 222; do
	says "back in layout $l" 0 "^rollback 1 of at most 1: back to b$l/step-000005, the data of 3 steps are left out$" env OM_TEST_NAN=8 \
		./l$l train run.yaml log.metrics=mb$l checkpoint.dir=b$l checkpoint.every=5 skip_step.rollbacks=1
done
once "only rank 0 tells of a rollback" "^rollback"
same "metrics of layout 222 that went back" mb1 mb222 1e-5
# a Megatron data set of the same tokens is dealt to ranks in the same way
python3 - <<'P'
import struct
t = open("corpus.txt", "rb").read()
open("corpus.bin", "wb").write(struct.pack("<%di" % len(t), *t))
open("corpus.idx", "wb").write(b"MMIDIDX\0\0" + struct.pack("<QBQQiiqqqqq", 1, 4, 2, 3, 999, len(t) - 999, 0, 4 * 999, 0, 1, 2))
P
for l in 221 141; do
	says "Megatron's data in layout $l" 0 "^done: step 20 of 20" ./l$l train run.yaml log.metrics=mega$l data.paths=[corpus.bin]
	same "Megatron's data in layout $l" m$l mega$l 0
done
# labels that are masked, unevenly over the ranks: the loss is the mean over all that are left
python3 - <<'P'
import os, random
random.seed(5)
mask = [random.random() < (i // 777 % 7) / 6 for i in range(os.path.getsize("corpus.txt"))]
open("some.mask", "wb").write(bytes(mask))
open("rest.mask", "wb").write(bytes(not m for m in mask))
open("none.mask", "wb").write(bytes(len(mask)))
open("held.mask", "wb").write(bytes(i % 3 > 0 for i in range(os.path.getsize("held.txt"))))
P
for l in 1 221 141; do
	for m in some rest; do
		says "$m of the labels in layout $l" 0 "^done: step 20 of 20" ./l$l train run.yaml log.metrics=$m$l \
			data.label_mask_paths=[$m.mask] eval.label_mask_paths=[held.mask]
		same "$m of the labels in layout $l" ${m}1 $m$l 1e-5
	done
	says "no labels in layout $l" 1 "step 10, data: 10 steps in a row have no token with a label" ./l$l train run.yaml \
		data.label_mask_paths=[none.mask]
	python3 - m$l some$l rest$l <<'P' && ok || fail "layout $l: the loss is not the mean over labels"
import json, sys
all, some, rest = (json.loads(open(f).readline()) for f in sys.argv[1:])
assert "masked" not in all and abs(some["masked"] + rest["masked"] - 1) < 1e-12 and 0.2 < some["masked"] < 0.8
for k in "loss", "head_z":
    assert abs((1 - some["masked"]) * some[k] + (1 - rest["masked"]) * rest[k] - all[k]) < 1e-6 * all[k], k
P
done
for l in 1 221 141; do
	says "packed in layout $l" 0 "^done: step 20 of 20" ./l$l train run.yaml log.metrics=p$l data.packing=fragment data.eos=10
	same "packed in layout $l" p1 p$l 1e-5
done
cmp -s p1 m1 && fail "packed in lines: the same metrics" || ok
[ "$(grep -c '"eval_tokens": 395}' some221)" = 2 ] && ok || fail "masked evaluation: $(grep eval some221)"
# so is a mix of sources, also one that goes on in another layout
cat >mix.yaml <<'Y'
data:
  mix:
    long: {paths: [corpus.txt], weight: 0.6}
    short: {paths: [held.txt], weight: 0.4, repeat: 3}
steps: 20
lr: {peak: 1e-2, warmup: 5}
Y
for l in 1 221 141; do
	says "a mix in layout $l" 0 "^source short: [0-9,]+ tokens, [34]" ./l$l train mix.yaml log.metrics=mix$l checkpoint.dir=mix$l.d \
		checkpoint.every=5
	same "a mix in layout $l" mix1 mix$l 1e-5
done
rm -r mix221.d/step-0000[12]*
says "a mix goes on in another layout" 0 "^start: step 6 of" ./l141 train mix.yaml log.metrics=mix221 checkpoint.dir=mix221.d
same "a mix goes on in another layout" mix1 mix221 1e-5
for l in 1 211 141 222; do
	rm -rf "t$l" && mkdir "t$l" && cp -r c221/step-000010 "t$l"
	says "go on in layout $l" 0 "^done: step 20 of 20" ./l$l train run.yaml log.metrics=g$l checkpoint.dir=t$l
	python3 - "$l" <<'P' && ok || fail "go on in layout $l: other losses"
import json, sys
def loss(f): return {d["step"]: d["loss"] for d in map(json.loads, open(f)) if "loss" in d}
a, b = loss("m1"), loss("g" + sys.argv[1])
assert set(b) == set(range(11, 21)), b
assert all(abs(a[s] - b[s]) < 1e-5 * a[s] for s in b), (a, b)
P
	says "eval in layout $l" 0 "^eval: step 20, loss" ./l$l eval run.yaml checkpoint.dir=c221
	grep -oE 'loss [0-9.]+' out >loss.$l
	cmp -s loss.1 loss.$l && ok || fail "eval in layout $l: $(cat loss.1 loss.$l)"
done
says "bench" 0 "tokens/s" ./l222 bench steps=2
once "bench" "ms a step"
says "info" 0 "^ranks +4: pipeline 2 x data 2, of these expert 1; " ./l221 info
says "info under mpirun" 0 "^ranks" mpirun -np 4 ./l221 info
once "info under mpirun" "^ranks"
says "selftest" 0 "^0 passed, 0 failed" ./l221 selftest
for c in "export X" "import X Y"; do
	says "$c" 1 "rank 0, ${c%% *}: this model has no Hugging Face architecture" ./l221 $c
done
says "generate" 1 "rank 0, generate: this trainer is of 4 ranks, and weights are in parts on them; build one" ./l221 generate --prompt a
says "an error of run.yaml" 1 "steps = -1 must be" mpirun --quiet -np 4 ./l221 train run.yaml steps=-1
once "an error of run.yaml" "steps = -1 must be"
says "run.yaml from a pipe" 0 "^done: step 20 of 20" bash -c "./l221 train <(cat run.yaml; yes '# long' | head -n 30000)"
says "run.yaml from a descriptor" 0 "^done: step 20 of 20" bash -c "./l221 train /dev/fd/5 5<run.yaml"
says "no data" 1 "data: nowhere: No such file" ./l221 train run.yaml data.paths=[nowhere]
once "no data" "^layers: "

# ---- signals ---------------------------------------------------------------------------------------------------
stop() { # stop NAME SIGNAL WHOM STATUS COMMAND...: a run in the background is asked to end after step 3
	local name=$1 signal=$2 whom=$3 status=$4 got pid
	shift 4
	rm -rf s ms
	OM_TEST_NAP=20000 timeout -k 5 60 "$@" train run.yaml steps=1000 checkpoint.dir=s log.metrics=ms log.every=1 >out 2>&1 &
	pid=$!
	n=0
	while ! grep -q '"step": 3' ms 2>/dev/null && [ $n -lt 300 ]; do sleep 0.1 && n=$((n + 1)); done
	kill -"$signal" "$(pgrep -P $pid -f "$whom" | head -1)"
	wait $pid
	got=$?
	[ $got = "$status" ] && ok || fail "$name: status $got, not $status: $(tail -3 out)"
	last=$(ls -d s/step-* 2>/dev/null | tail -1)
	[ -n "$last" ] && [ -f "$last/index.json" ] && ok || fail "$name: no checkpoint: $(tail -3 out)"
	grep -qE "^stopped: step [0-9]+ of 1,000, .* checkpoint s/step" out && ok || fail "$name: $(tail -3 out)"
	gone "$name" l221
	gone "$name" tcp222
	says "$name: goes on" 0 "^start: step $((10#${last#s/step-} + 1)) of" ./l221 train short.yaml \
		steps=$((10#${last#s/step-} + 2)) checkpoint.dir=s
}
stop "SIGTERM to a trainer that started itself" TERM l221 3 ./l221
stop "SIGINT to it" INT l221 3 ./l221
stop "SIGTERM to one whose ranks meet over TCP" TERM tcp222 3 ./tcp222
stop "SIGUSR1 to mpirun" USR1 mpirun 3 mpirun -np 4 ./l221
stop "SIGTERM to mpirun" TERM mpirun 1 mpirun --mca odls_base_sigkill_timeout 3 -np 4 ./l221

# A step that takes long is left out, though a single rank gets the signal, while the others are at other places of it
# and the data ranks of a stage meet within it; what follows is as if the run had never been stopped. All layouts wait at once.
declare -A long
long() { # long LAYOUT NAP: started after step 10, with microbatches that take so many us
	local l=$1
	mkdir "s$l" && cp -r c$l/step-000010 "s$l" && sed '/"step": 11,/,$d' m$l >"ms$l"
	OM_TEST_NAP=$2 OM_TEST_MEET=1 timeout -k 5 60 ./l$l train run.yaml checkpoint.dir="s$l" log.metrics="ms$l" log.every=1 \
		comm.timeout=20 >"out$l" 2>&1 &
	long[$l]=$!
}
signalled() { # signalled LAYOUT STEP: asked to end within that step
	local l=$1 step=$2 world=0 pid whom n=0
	while ! grep -qE "^(start: step $step|step $((step - 1))/20) " "out$l" && [ $n -lt 300 ]; do sleep 0.1 && n=$((n + 1)); done
	for pid in $(pgrep -f "^[^ ]*/l$l train"); do
		n=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
		[ "${n:--1}" -gt "$world" ] && world=$n whom=$pid
	done
	kill -USR1 "$whom"
}
left() { # left LAYOUT STEP: that step was left out
	local l=$1 step=$2 n
	wait "${long[$l]}"
	n=$?
	[ $n = 3 ] && grep -q "^step $step is left out, as it takes long; it is done anew on resume$" "out$l" &&
		grep -q "^stopped: step $((step - 1)) of 20, .* checkpoint s$l/step-0000$((step - 1))$" "out$l" && ok ||
		fail "layout $l: a long step: status $n: $(tail -3 "out$l")"
	gone "a long step" l$l
	says "layout $l: goes on" 0 "^done: step 20 of 20" ./l$l train run.yaml checkpoint.dir="s$l" log.metrics="ms$l"
	cat "s$l"/step-000020/*.safetensors | cmp -s - <(cat c$l/step-000020/*.safetensors) && ok || fail "layout $l: other weights"
	same "layout $l: metrics as if not stopped" m$l "ms$l" 0
}
long 211 1000000
long 122 500000
long 222 500000
signalled 122 11
signalled 222 11
signalled 211 12
left 122 11
left 222 11
left 211 12

# before there is anything to save: said, and at once; whenever it comes, one of the two ends is told, and no other
for s in 0.1 0.3 0.5 0.7; do
	./l221 train run.yaml steps=100000 checkpoint.dir=early$s >out 2>&1 &
	sleep $s
	kill -TERM $! && wait $!
	n=$?
	early=$(grep -c "^ended by a signal, before there was anything to save$" out) late=$(grep -c "^stopped: step " out)
	case $n$early$late in 301 | 14310) true ;; *) false ;; esac && ok ||
		fail "a signal after $s s: status $n: $(cat out)"
	gone "a signal after $s s" l221
done

# a trainer that is killed has no ranks which go on and keep the next one out
./l221 train run.yaml steps=100000 checkpoint.dir=killed checkpoint.every=1 >/dev/null 2>&1 &
n=0
while [ ! -d killed/step-000001 ] && [ $n -lt 300 ]; do sleep 0.1 && n=$((n + 1)); done
folder=$(tr '\0' '\n' <"/proc/$(pgrep -P $!)/environ" | sed -n 's/^OM_LAUNCHED=//p')
kill -KILL $! && wait $! 2>/dev/null
[ -e "$folder/roll" ] && ok || fail "a kill leaves no folder: $folder"
n=$(find killed -name 'step-*' | sort | tail -n 1 | tr -dc 0-9)
says "at once after a kill" 0 "^checkpoint: resumed from killed/" ./l221 train run.yaml steps=$((10#$n + 10)) checkpoint.dir=killed
[ ! -e "$folder" ] && ok || fail "what the killed one left is still there: $folder"

# who reads the console may leave
rm -rf left
./l221 train run.yaml steps=12 log.every=1 checkpoint.dir=left 2>&1 | head -n 1 >out
[ "${PIPESTATUS[0]}" = 0 ] && [ -d left/step-000012 ] && ok || fail "a reader that leaves ends the run"
./l221 train run.yaml steps=6 >/dev/full && ok || fail "a console that is full ends the run"

# a terminal behind the launcher: lines that stay, and a bar below them as wide as it is
python3 -c 'import fcntl, os, pty, struct, sys, termios
out = b""
pid, fd = pty.fork()
if not pid:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("4H", 24, 60, 0, 0))
    os.execvp(sys.argv[1], sys.argv[1:])
while True:
    try: d = os.read(fd, 4096)
    except OSError: break
    if not d: break
    out += d
assert os.waitpid(pid, 0)[1] == 0, out
bars = [x for x in out.replace(b"\r\n", b"\n").split(b"\r") if x.startswith(b"step ") and b" left\x1b[K" in x]
assert bars and all(len(x.split(b"\x1b")[0]) < 60 for x in bars), out
assert b"step  1/20  loss" in out and b"step 20/20  loss" in out, out
' env LC_ALL=C NO_COLOR=1 ./l221 train short.yaml steps=20 >out 2>&1 && ok || fail "a terminal behind the launcher: $(tail -3 out)"

# ranks that were given what differs
says "another rate on some ranks" 1 "rank [23], run.yaml: differs from rank 0's" \
	mpirun -np 2 ./l221 train run.yaml steps=5 : -np 2 ./l221 train run.yaml steps=5 lr.peak=0.5
says "other data on some ranks" 1 "rank [23], data: differs from rank 0's" \
	mpirun -np 2 ./l221 train run.yaml steps=5 : -np 2 ./l221 train run.yaml steps=5 data.paths=["$root/README.md"]

suite_end
