#!/bin/bash
#SBATCH --job-name=workers
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=16
#SBATCH --time=02:00:00
# One worker on each machine drives all of its GPUs. Slurm says which machines these are: from that
# the launcher makes TF_CONFIG. TensorFlow's own SlurmClusterResolver asks nvidia-smi first, and
# fails where there is none.
#
#     sbatch slurm.sh train_workers.py --epochs 100
#
# The folder has to be one that all machines see: the chief saves there, and all restore from there.
script=${1:?"say which script: sbatch slurm.sh train_workers.py"}
shift
exec srun --kill-on-bad-exit=0 python -m mgpu_helpers cluster --from slurm \
    --restarts 2 --logs "logs/${SLURM_JOB_ID:-0}" "$script" -- "$@"
