#!/bin/bash
# Workers of a spool as a Slurm array: each task judges jobs of the spool on one GPU, until none is left.
#
#   export SPOOL=/shared/spool                                 # a folder that all nodes see
#   sbatch --array=0-7 examples/slurm_array.sh                 # eight workers, one GPU each
#   sbatch --array=0-7 --gres=none examples/slurm_array.sh cpu # eight workers without a GPU
#
# Beside it, on the login node or in a job of its own, the driver that asks for kernels and reads the answers:
#
#   kernelwright optimize --all --backend triton --pool spool:$SPOOL
#
# Options of sbatch take precedence over the lines below. VENV names the virtual environment (.venv where you submit).
# WAIT=1 keeps a worker for as long as its time lasts, also where the spool is empty for a while.
#SBATCH --job-name=kernelwright-worker
#SBATCH --array=0-3
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=32G
#SBATCH --gres=gpu:1
#SBATCH --time=02:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=kernelwright-%A_%a.log
set -euo pipefail

: "${SPOOL:?set SPOOL to the folder of the spool, and submit with --export=ALL}"
case "${1:-gpu}" in
gpu) ;;
cpu) export KERNELWRIGHT_DEVICE=none ;;
*)
    echo "usage: sbatch examples/slurm_array.sh [gpu|cpu]" >&2
    exit 2
    ;;
esac

venv="${VENV:-${SLURM_SUBMIT_DIR:-$PWD}/.venv}"
if [ -f "$venv/bin/activate" ]; then
    # shellcheck disable=SC1091
    . "$venv/bin/activate"
fi

# Compilers' products lie on the node: many nodes would wait for each other in a cache on a shared file system.
export KERNELWRIGHT_CACHE_DIR="${KERNELWRIGHT_CACHE_DIR:-${TMPDIR:-/tmp}/kernelwright-$(id -u)}"

# The worker begins no job that would end in the task's last five minutes.
ends="${SLURM_JOB_END_TIME:-$(($(date +%s) + 7200))}"
minutes=$(((ends - $(date +%s)) / 60 - 5))
[ "$minutes" -ge 1 ] || minutes=1

until_empty=(--until-empty)
[ "${WAIT:-0}" = 0 ] || until_empty=()

# Slurm's signal comes three minutes before the end. The first one lets the worker end its job, the second one makes it
# give the job back. That must happen before Slurm ends every process of the task, a candidate's among them. A shell runs
# its trap only between commands and in "wait": hence the worker in the background.
worker=""
second=""
# shellcheck disable=SC2317,SC2329
stop() {
    signalled=1
    [ -n "$worker" ] || return 0
    [ -n "$second" ] || echo "task ${SLURM_ARRAY_TASK_ID:-0}: told to end"
    kill -TERM "$worker" 2>/dev/null || return 0
    [ -z "$second" ] || return 0
    (sleep 100 && kill -TERM "$worker") >/dev/null 2>&1 &
    second=$!
}
trap stop TERM INT
kernelwright worker --spool "$SPOOL" ${until_empty[@]+"${until_empty[@]}"} --max-minutes "$minutes" &
worker=$!
signalled=1
while [ "$signalled" = 1 ]; do
    signalled=0
    status=0
    wait "$worker" || status=$?
done
[ -z "$second" ] || kill "$second" 2>/dev/null || true
echo "task ${SLURM_ARRAY_TASK_ID:-0}: the worker ended with $status (restarts: ${SLURM_RESTART_COUNT:-0})"
exit "$status"
