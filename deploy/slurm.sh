#!/bin/bash
# A run on SLURM, on one node or several: sbatch deploy/slurm.sh (docs/guides/deploy.md). Submit it from the clone.
# Change the resources. CONFIG, RUNS and NAME are variables: sbatch --export=ALL,NAME=mine deploy/slurm.sh. Further
# arguments are settings: sbatch deploy/slurm.sh run.steps=500
#SBATCH --job-name=r3-grpo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%x-%j.log
#SBATCH --signal=B:TERM@600
set -euo pipefail

CONFIG=${CONFIG:-configs/deepscaler_r1_1p5b_16gpu.yaml}
RUNS=${RUNS:-$PWD/runs}
NAME=${NAME:-$SLURM_JOB_NAME-$SLURM_JOB_ID} # a requeued job keeps its id, and so finds its run again
PORT=${PORT:-6379}

# shellcheck source=/dev/null
[[ -f .venv/bin/activate ]] && source .venv/bin/activate
address=$SLURMD_NODENAME:$PORT

# Without a token, whoever reaches a node runs code on it as this user. srun gives these variables to the other nodes.
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
export RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}

# Ray's nodes: the head here, where this script and the driver run, the others by srun.
ray start --head --port "$PORT" --num-cpus "$SLURM_CPUS_PER_TASK" --disable-usage-stats --block &
nodes=($!)
if ((SLURM_NNODES > 1)); then
  srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$SLURMD_NODENAME" \
    ray start --address "$address" --num-cpus "$SLURM_CPUS_PER_TASK" --disable-usage-stats --block &
  nodes+=($!)
fi
trap 'kill "${nodes[@]}" 2>/dev/null || true' EXIT

# SLURM's notice, ten minutes before the limit or with a preemption, comes to this script alone. The driver gets it and
# leaves a checkpoint, for which it needs Ray's nodes; then the job is queued again.
notified=0 driver=
trap 'notified=1; [[ -z $driver ]] || kill -TERM "$driver" 2>/dev/null || true' TERM

all_nodes='
import sys, time, ray
ray.init(address=sys.argv[1], logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(1)
'
deadline=$((SECONDS + ${NODES_WAIT_S:-900}))
until timeout 120 python -c "$all_nodes" "$address" "$SLURM_NNODES"; do
  if ((SECONDS >= deadline)); then
    echo "error: not all of $SLURM_NNODES nodes joined Ray at $address within ${NODES_WAIT_S:-900} s; see above" >&2
    exit 1
  fi
  sleep 2
done

RAY_ADDRESS=$address python -m algorithms.r3_grpo --continue --config "$CONFIG" \
  "run.dir=$RUNS" "run.name=$NAME" run.restarts=3 "$@" &
driver=$!
status=0
wait "$driver" || status=$?
if ((notified)); then # the signal ended the wait, not yet the driver
  status=0
  wait "$driver" || status=$?
  ((status == 0)) || scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
