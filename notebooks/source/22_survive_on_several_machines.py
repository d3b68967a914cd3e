# %% [markdown]
# # Survive on several machines
#
# Your training has run on two machines for nine hours when a process on one of them is killed. The
# other stops as well, with an error about its network, and the nine hours are lost.
#
# **In this lesson** a training whose worker is killed goes on by itself and ends, here on CPU
# cores, with the same bits as if nothing had happened. You also see which worker failed first, and
# where one hangs.
#
# ![Two workers over time. After a backup and two more steps worker 1 is killed, and worker 0 waits
# and ends. Attempt 1 does these two steps again, and goes on.](pictures/22_restart.svg)
#
# A worker needs the gradients of the others, so it cannot go on alone. When one has failed, the
# launcher ends all workers and starts them again. Each start is an **attempt**. The workers read a
# **backup**, which was written after the last whole pass over the data. In the picture a pass has
# eight steps, so attempt 1 begins with step 8 and does two steps again. One callback and one option
# are enough:
#
# ```python
# save = keras.callbacks.BackupAndRestore("/shared/backup", double_checkpoint=True)
# model.fit(images, labels, callbacks=[save])  # a model made as in lesson 21
# ```
#
# ```shell
# mgpu cluster --hosts a:20000,b:20000 --index 0 --restarts 2 train.py  # --index 1 on b
# ```
#
# **You need** [[21]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from mgpu_helpers import cluster
from mgpu_helpers.lessons import workers
from mgpu_helpers.lessons.checks import lesson_22 as checks

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Try it
#
# [This script](scripts/train_workers.py) has the callback. It trains with dropout, in three passes
# of eight steps. Because of `--kill-at 10`, worker 1 is killed just before step 10:

# %%
script = "scripts/train_workers.py"
options = ["--dropout", "0.3", "--kill-at", "10", "--anew", "--folder", folder / "trained"]
with workers.on_cores():
    report = cluster.run(script, options, workers=2, restarts=2, logs=folder / "logs",
                         progress=False)  # fmt: skip
print("attempts:", len(report.attempts), "- at the end:", *[worker.status for worker in report])

# %% tags=["varies", "cover"]
workers.timeline(report)
plt.show()

# %% [markdown]
# Attempt 0 is hatched: worker 1 was killed, and so worker 0 failed or was stopped. The script
# prints the number of a step before doing it, so the last step of attempt 0 was not done:

# %%
for attempt in report.attempts:
    steps = workers.steps(attempt.workers[1].log)
    print(f"attempt {attempt.number} came to the steps {steps[0]} to {steps[-1]}")

# %% [markdown]
# ## Proof
#
# At the end, each worker returned a **digest** of all bits of its weights and its optimizer.
# Because of `--anew`, both workers then trained once more from the first step, without a break, and
# returned a digest of that, too:

# %%
after_restart = {worker.result["state"] for worker in report}
without_break = {worker.result["anew"] for worker in report}
print("same bits of both trainings, on both workers:", len(after_restart | without_break) == 1)

# %% [markdown]
# The bits are the same, although the training draws random numbers for dropout.
#
# About the backup:
#
# - All machines have to see its folder.
# - A machine may fail while it writes, so `double_checkpoint` also keeps the previous backup.
# - When `fit` ends well, the backup is deleted. If you change the script, take a new folder.
#
# If a whole machine is lost, the other workers start again and wait ten minutes for it. Run its
# command again in that time.
#
# | | |
# |---|---|
# | **Use it when** | a training runs for longer than you watch it, also with `--workers 1` |
# | **It costs** | a file for each pass; for each failure a start and the steps since that file |
# | **Instead** | begin again, if a training takes minutes |
#
# ## Find the worker that failed first
#
# The launcher names it. SIGKILL is the signal that ends a process at once:

# %%
print(workers.untimed(report.attempts[0].why))

# %% [markdown]
# Nothing was wrong with worker 0. Its log says:

# %% tags=["nbval-ignore-output"]
print(*workers.errors(report.attempts[0].workers[0].log), sep="\n")

# %% [markdown]
# This log blames the network. So begin with the worker that the launcher names.
#
# ## Find the worker that hangs
#
# If a worker hangs, no error comes, and the others wait for it in the all-reduce. When nothing goes
# on in any worker for ten minutes, the launcher shows where each of them is, and ends or restarts
# all. Here, with `stalled=3`, it waits three seconds:

# %%
hangs = folder / "hangs.py"
hangs.write_text("""
import json, os, time
def compute():
    print("step 7", flush=True)
    if index == 1:
        time.sleep(600)  # it hangs
def all_reduce():
    time.sleep(600)  # stands for the wait for worker 1
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
compute()
all_reduce()
""")
stuck = cluster.run(hangs, workers=2, stalled=3, logs=folder / "stuck", progress=False)
print(stuck.attempts[0].doing.replace(f"{folder}/", ""))

# %% [markdown]
# Worker 1 is still computing, and worker 0 waits for it in the all-reduce. So look at the worker
# that is not in the all-reduce. Python sees a whole step of `fit` as one line, so this finds a
# worker that hangs between the steps, as in a callback.
#
# ## By hand
#
# What does a backup have to hold? Here is a training with one weight, w. Each step draws a random
# number x and takes the slope of (w - x)². Then w moves with momentum, so v keeps a part of the
# earlier moves:

# %%
def start():
    return {"step": 0, "w": 1.0, "v": 0.0, "random": np.random.PCG64(8).state}


def train(state, until):
    chance = np.random.PCG64()
    chance.state = state["random"]
    for _ in range(state["step"], until):
        slope = 2 * (state["w"] - np.random.Generator(chance).normal())
        state["v"] = 0.9 * state["v"] - 0.1 * slope
        state["w"] += state["v"]
    return state | {"step": until, "random": chance.state}


# %%
backup = json.dumps(train(start(), until=5))
whole = train(start(), until=10)["w"]
again = train(json.loads(backup), until=10)["w"]
print(f"without a break {whole:.6f}, from the backup {again:.6f}, equal: {whole == again}")

# %% [markdown]
# ## Break it
#
# Now the backup loses one entry at a time, and the training takes it from `start()` instead. Write
# down first which of the four you could do without:

# %%
for name in start():
    lacking = json.loads(backup) | {name: start()[name]}
    print(f"without {name:6} {train(lacking, until=10)['w']:.6f}")

# %% [markdown]
# You need all four, and no error says that one is missing. In `fit`, *step* is the number of passes
# done, *v* what the optimizer keeps, and *random* the state of dropout. Keras's callback alone does
# not save the state of dropout, and `fit.strategy` adds it.
#
# ## If Slurm or Kubernetes ends the job
#
# Both send SIGTERM first, a signal that asks a process to end. Then all workers save after the same
# step, also within a pass. The next start goes on from there ([how](../docs/slurm.md)).
#
# ## On GPUs
#
# Two runs on GPUs are sure to have equal bits only after
# `tf.config.experimental.enable_op_determinism()`, which costs time.
#
# If the first step hangs, see [when NCCL hangs](../docs/errors.md#when-nccl-hangs).
#
# ## On your own
#
# **1.** Write `computed(total, every, failures)`: how many steps all attempts compute together,
# until `total` steps are done. Steps count from 0, and there is a backup after every `every` of
# them. Attempt i fails just before step `failures[i]`, and one more attempt reaches the end. The
# same step may occur twice in `failures`. `computed(20, 5, [7])` is 22, because steps 5 and 6 are
# computed twice.

# %% tags=["exercise"]
def computed(total, every, failures):
    return total + sum(failures)


checks.computed(computed)

# %% tags=["solution"]
def computed(total, every, failures):
    done = kept = 0
    for step in failures:
        done += step - kept
        kept = step // every * every
    return done + total - kept


checks.computed(computed)

# %% [markdown]
# **2.** Write `first(ends)`, which returns the number of the worker to look at. `ends` has for each
# worker a tuple of three: the time in seconds at which it ended, its exit status (below 0 if a
# signal ended it), and the number of the worker that its log names as lost, or `None`. Begin with
# the first to fail, with a status other than 0. If its log names a lost worker, take that one,
# whatever its time and status, and go on in the same way. The names never lead in a circle.

# %% tags=["exercise"]
def first(ends):
    return min(range(len(ends)), key=lambda index: ends[index][0])


checks.first(first)

# %% tags=["solution"]
def first(ends):
    failed = [index for index, (_, status, _) in enumerate(ends) if status != 0]
    worker = min(failed, key=lambda index: ends[index][0])
    while ends[worker][2] is not None:
        worker = ends[worker][2]
    return worker


checks.first(first)

# %% [markdown]
# ## What we saw
#
# - A training that was killed at step 10 went on from step 8, and ended with the bits of one
#   without a break.
# - The launcher named the worker that was killed, and the line in which one hung after step 7.
# - A training whose backup lacked one of 4 entries ended with another weight, without an error.
#
# ## In practice
#
# Give `fit` the callback and the launcher `--restarts`. On the first day kill a worker yourself,
# and see that the training goes on.
#
# Next: [[next]].
