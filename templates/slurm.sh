#!/bin/bash
#@banner trains under Slurm, and queues the job anew when it ends before its last step
#
#     sbatch [options] launch/slurm.sh run.yaml [key=value ...]
#
# In the folder of ./trainer, or with TRAINER=PATH before sbatch; options are the cluster's own
# (--partition, --gpus-per-node, --time, --nodes). Give checkpoint.dir, which the next run goes on
# from. On one node the trainer starts its own ranks; with several nodes they are started below.
#
# Two minutes before the time limit Slurm signals this script, which hands that on: the trainer
# saves and ends. Its status decides. 3, it saved when it was asked to end: the job is queued anew.
# 4, a rank or the device was lost, or death by a signal: the same if the run lasted for LEAST
# seconds (300), since what fails at once will do so again. 1 and 2, an error of run.yaml, data or
# disk: it is not. At most REQUEUES times (100). What Slurm ends, as by scancel, is left alone.
#
#SBATCH --job-name=trainer
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
several='mpirun --bind-to none' # starts the ranks on several nodes; of this trainer:
#@slot several
trainer=${TRAINER:-./trainer} run='' ended=''

trap '[ -z "$run" ] || kill -USR1 "$run"' USR1
trap 'ended=yes' TERM

if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then
	# shellcheck disable=SC2086 # a command and its options
	$several "$trainer" train "$@" &
else
	srun --nodes=1 --ntasks=1 --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" --cpu-bind=none \
		"$trainer" train "$@" &
fi
run=$!
while kill -0 "$run" 2>/dev/null; do # a signal ends a wait, not the run
	wait "$run"
done
wait "$run"
status=$?

requeue=''
if [ "$status" = 3 ]; then
	requeue=yes
elif [ "$status" = 4 ] || [ "$status" -gt 128 ]; then
	[ "$SECONDS" -lt "${LEAST:-300}" ] || requeue=yes
fi
if [ -z "$requeue" ] || [ -n "$ended" ]; then
	echo "slurm.sh: the trainer ended with status $status, the job is not queued anew"
elif [ "${SLURM_RESTART_COUNT:-0}" -ge "${REQUEUES:-100}" ]; then
	echo "slurm.sh: status $status after $SLURM_RESTART_COUNT restarts, which are enough"
else
	echo "slurm.sh: status $status, the job is queued anew"
	scontrol requeue "$SLURM_JOB_ID" && exit 0
	echo "slurm.sh: scontrol cannot do that" >&2
fi
exit "$status"
