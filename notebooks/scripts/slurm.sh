#!/bin/bash
#SBATCH --job-name=workers
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=16
#SBATCH --time=02:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
# One worker on each machine drives all of its GPUs. Slurm says which machines these are: from that
# the launcher makes TF_CONFIG. TensorFlow's own SlurmClusterResolver asks nvidia-smi first, and
# fails where there is none.
#
#     sbatch slurm.sh train_workers.py --epochs 100
#
# The folder has to be one that all machines see: the chief saves there, and all restore from there.
script=${1:?"say which script: sbatch slurm.sh train_workers.py"}
shift
srun --kill-on-bad-exit=0 python -m mgpu_helpers cluster --from slurm \
    --restarts 2 --logs "logs/${SLURM_JOB_ID:-0}_${SLURM_RESTART_COUNT:-0}" "$script" -- "$@"
status=$?
# Two minutes before the time is over all workers save, and end with 75: the job goes back into the
# queue, and its next start goes on with the next step.
if [ $status = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $status
