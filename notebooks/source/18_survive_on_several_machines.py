# %% [markdown]
# # Survive on several machines
#
# Your training has run on two machines for nine hours when a process on one of them is killed. The
# other machine stops as well, with an error about its network, and the nine hours are lost.
#
# **In this lesson** a training that is killed, and then hangs, goes on by itself and ends with the
# same bits as if nothing had happened, and you read which worker failed first.
#
# **You will learn** to
# - have a training on several workers go on after a failure,
# - find out which worker failed first, and where one hangs,
# - say what a backup has to hold,
# - count the steps that a failure costs.
#
# **You need** [[17]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import cluster
from mgpu_helpers.charts.base import HOST, axes, colour
from mgpu_helpers.lessons.checks import lesson_18 as checks

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The lines to paste
#
# One callback of Keras saves the training after each pass, and lets the next `fit` go on from
# there. Under `fit.strategy` worker 0 writes the backup, and all workers read it. A second callback
# ends the process if 600 s pass from the end of one step to the end of the next, validation
# included.
#
# ```python
# import faulthandler
#
# class Limit(keras.callbacks.Callback):
#     def on_train_batch_end(self, batch, logs=None):
#         faulthandler.dump_traceback_later(600, exit=True)  # seconds to the end of the next step
#
#     def on_train_end(self, logs=None):
#         faulthandler.cancel_dump_traceback_later()
#
# save = keras.callbacks.BackupAndRestore("/shared/backup", double_checkpoint=True)
# model.fit(x, y, callbacks=[save, Limit()])  # a model built under fit.strategy
# ```
#
# - All machines must see the folder. If each has a folder of its own, the workers begin at
#   different passes after a restart, and `fit` raises a ValueError ([what it
#   compares](../docs/fit.md#what-is-kept)).
# - A machine may die while it writes, so `double_checkpoint` keeps the previous backup.
# - When `fit` ends well, the backup is deleted. A script changed after a failure needs a new
#   folder.
# - In a notebook, `Limit` would end the kernel after a hang, or 600 s after an interrupted `fit`.
#
# When a worker fails, the launcher starts all workers again; `--restarts 2` allows this twice:
#
# ```shell
# mgpu cluster --hosts a:20000,b:20000 --index 0 --restarts 2 train.py  # --index 1 on b
# ```
#
# The script of [[17]] has both callbacks, and options that make it fail. Two trainings run it at
# the same time, each on two workers of one thread, for three passes of eight steps, with dropout.
# One is left alone. In the other, worker 1 is killed at step 10, and after the restart it sleeps at
# step 18. The cell may take half a minute:

# %%
os.environ |= {"MGPU_MODE": "cores", "TF_NUM_INTRAOP_THREADS": "1"}  # one thread for each worker
script, common = "scripts/train_workers.py", ["--dropout", "0.3"]
started = subprocess.Popen(
    [sys.executable, "-m", "mgpu_helpers", "cluster", "--workers", "2", "--stalled", "300",
     "--logs", folder / "calm_logs", script, "--", *common, "--folder", folder / "calm"],
    stdout=(said := folder / "calm.txt").open("w"), stderr=subprocess.STDOUT)  # fmt: skip
faults = ["--kill-at", "10", "--sleep-at", "18", "--limit", "6", "--folder", folder / "faults"]
report = cluster.run(script, [*common, *faults], workers=2, restarts=2, stalled=300,
                     logs=folder / "faults_logs", progress=False)  # fmt: skip
print("attempts:", len(report.attempts), "- at the end:", *[worker.status for worker in report])
print("left alone:", "done" if started.wait() == 0 else said.read_text())

# %% [markdown]
# Did both trainings end with the same model? At its end each worker prints a digest: the SHA-256 of
# all bits of `model.variables` and `model.optimizer.variables`.

# %%
def last_line(log):
    return json.loads(log.read_text().splitlines()[-1])


calm = [last_line(folder / "calm_logs" / f"worker_{index}.log")["state"] for index in (0, 1)]
hurt = [worker.result["state"] for worker in report]
print("all four workers have the same bits:", len({*calm, *hurt}) == 1)

# %% [markdown]
# Here is what each attempt did, by the steps in the logs of worker 1:

# %% tags=["cover"]
logs = [attempt.workers[1].log.read_text() for attempt in report.attempts]
steps = [[int(step) for step in re.findall(r"step (\d+)", log)] for log in logs]
ax = axes(size=(8, 2.1), source="two workers on one machine, one thread each")
for number, did in enumerate(steps):
    after = steps[number + 1][0] if number + 1 < len(steps) else did[-1] + 1
    parts = {colour("/CPU:2"): (did[0], after), HOST: (after, did[-1])}
    for own, (begin, until) in parts.items():
        if until > begin:
            ax.broken_barh([(begin, until - begin)], (number - 0.35, 0.7), color=own)
    end = ("was killed at", "slept at", "ended after")[number]
    print(f"attempt {number} began at step {did[0]} and {end} step {did[-1]}")
ax.set_yticks(range(len(steps)), [f"attempt {number}" for number in range(len(steps))])
ax.invert_yaxis()
ax.set_xlabel("steps done")
ax.set_xticks([0, 8, 10, 16, 18, 24])
ax.set_title("In colour: kept. Grey: done again after the restart", loc="left")
plt.show()

# %% [markdown]
# Attempt 1 began at step 8, where the last finished pass had ended, and attempt 2 at step 16.
#
# | | |
# |---|---|
# | **Use it when** | a training runs for longer than you watch it, on one machine or on several |
# | **It costs** | a file per pass; per failure a start and the steps since that file |
# | **Instead** | begin again, where a training takes minutes |
#
# ## Find the worker that failed first
#
# When one worker dies, the others cannot go on alone. So the launcher ends those that do not end by
# themselves, and starts all workers again from the backup. Here are both failures over time, with
# both workers:
#
# ![Two workers, twice. Worker 1 is killed after steps 8 and 9; worker 0 waits and ends, and both
# repeat them. Worker 1 sleeps after steps 16 and 17; worker 0 waits, until Limit ends both after
# 6 s.](pictures/18_restart.svg)
#
# The launcher names the worker that failed first, and what ended it. SIGKILL is the signal that
# ends a process at once:

# %%
print(re.sub(r", after [\d.]+ s", "", report.attempts[0].why))  # without the time

# %% [markdown]
# Nothing was wrong with worker 0. What does its log say?

# %% tags=["nbval-ignore-output"]
said = report.attempts[0].workers[0].log.read_text().splitlines()
errors = [line for line in said if "Error" in line and not line.startswith(("E0", "W0", "I0"))]
print(*[line.strip()[:95] for line in errors[:3]], sep="\n")

# %% [markdown]
# Read alone, this log blames the network. If the launcher ends worker 0 sooner, that log shows no
# error. So begin with the worker that the launcher names.
#
# In attempt 1 worker 1 slept, and worker 0 waited for it in the all-reduce. TensorFlow's threads in
# the sleeping process still answered, so there was no error. After six seconds the `Limit` of each
# worker wrote into the log where the process was, and ended the process. This is the innermost line
# of the script in each log:

# %% tags=["nbval-ignore-output"]
source = Path(script).read_text().splitlines()
for index, worker in enumerate(report.attempts[1].workers):
    places = re.findall(rf'"{script}", line (\d+)', worker.log.read_text())
    print(f"worker {index}:", *[source[int(number) - 1].strip() for number in places[:1]])

# %% [markdown]
# Worker 0 is in the call of `fit`, where it waits. Worker 1 is in the line that sleeps. So compare
# the logs after a hang, and look at the worker whose line differs from those of the others. If all
# logs show `fit`, one worker may hang inside TensorFlow, and the logs do not tell which.
#
# | what fails | who says so | where you read it |
# |---|---|---|
# | a worker is killed | the launcher names it and the signal | the report of the launcher |
# | the script raises an error | the launcher names the first worker | the end of its log |
# | a machine is lost | the launchers elsewhere name its worker, seconds later | their reports |
# | a worker never comes | the launcher, after `--stalled` seconds | the report of the launcher |
# | a step hangs | nobody, until `Limit` ends the process | the lines under "Timeout" in all logs |
#
# After a machine is lost, the workers elsewhere start again, and wait up to `--stalled` seconds
# until you run the command on that machine again.
#
# ## By hand
#
# First the launcher. It starts all workers, waits until one has failed, ends the others, and begins
# again. In attempt 0, worker 1 fails, while worker 0 would sleep for a minute:

# %%
def launch(program, workers, restarts):
    for attempt in range(restarts + 1):
        started = [subprocess.Popen([sys.executable, "-c", program, str(index), str(attempt)])
                   for index in range(workers)]  # fmt: skip
        codes = [None]
        while None in codes and not any(codes):
            time.sleep(0.05)
            codes = [each.poll() for each in started]
        for each in started:
            each.kill()  # nothing happens to one that has ended
        print("attempt", attempt, "ended with", [each.wait() for each in started])
        if not any(codes):
            return


# %%
fails = """
import sys, time
index, attempt = map(int, sys.argv[1:])
if attempt == 0:
    time.sleep(60 if index == 0 else 0.3)
    raise SystemExit(3)
"""
launch(fails, workers=2, restarts=1)

# %% [markdown]
# Worker 1 ended with status 3, so the launcher killed worker 0: -9 is SIGKILL.
#
# Then the backup. What does it have to hold? Here is a training with one weight. Each step draws an
# example x at random, and moves w down the slope of (w - x)² with momentum v:

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
# **A backup that lacks something.** Here each of the four entries in turn is lost, and begins again
# from `start()`:

# %%
for name in start():
    lacking = json.loads(backup) | {name: start()[name]}
    print(f"without {name:6} {train(lacking, until=10)['w']:.6f}")

# %% [markdown]
# Each time the training ends with another weight than 1.304073, and no error says so. In `fit`,
# *step*, *w*, *v* and *random* are the number of passes done, the weights, the optimizer's slots
# and step count, and the position in the data with the state of dropout's random numbers.
#
# **Keras alone.** The callback of Keras does not save the fourth. `fit.strategy` adds dropout's
# state to the backup. Here a model with dropout trains without a strategy for four passes, once
# without a break, and once with an error after the second pass and another `fit`. Do both end with
# the same weights?

# %%
def build():
    keras.utils.set_random_seed(8)
    with tf.device(plan.devices[0]):
        words = [keras.Input([6]), keras.layers.Embedding(20, 8), keras.layers.Flatten()]
        model = keras.Sequential([*words, keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
    return model


class Fails(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise RuntimeError("the machine is gone")


# %%
x = np.random.default_rng(8).integers(0, 20, [96, 6])
y = x.mean(axis=1, keepdims=True) / 10


# %%
def fitted(*callbacks):
    model = build()  # as a new process would
    model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=callbacks)
    return np.concatenate([each.ravel() for each in model.get_weights()])


# %%
def save():
    return keras.callbacks.BackupAndRestore(folder / "alone")


unbroken = fitted()
try:
    fitted(save(), Fails())
except RuntimeError as error:
    print("the first fit:", error)
far = np.abs(unbroken - fitted(save())).max()
print(f"largest difference below 1e-4: {far < 1e-4}")

# %% [markdown]
# Other weights come out, because Keras alone draws the first pass's dropout again. The model need
# not be worse, but equal digests no longer prove the restart. In the training above, which also has
# dropout, `fit.strategy` kept the digests equal.
#
# ## When not to
#
# A training of minutes restarts from zero as quickly as from a backup. For a longer one make the
# passes short, with `steps_per_epoch` and a dataset that repeats. After a restart this dataset
# begins again: shuffle it then with another seed, the same for all workers. Do not use
# `save_freq=n`: Keras would then begin the broken-off pass again with weights that have seen a part
# of it. Each failure costs a start and, on average, half of the time between two backups; a hang
# also costs the seconds of `Limit`.
#
# ## On GPUs
#
# The bits of two runs on GPUs are sure to be equal only after
# `tf.config.experimental.enable_op_determinism()`, which costs time. NCCL does the all-reduce of
# GPUs, and a GPU that waits in it looks 100 % busy in `nvidia-smi`. `Limit` does not watch the
# first step. If that hangs, set `NCCL_DEBUG=INFO`, which prints the network that NCCL takes. Name
# another one with `NCCL_SOCKET_IFNAME`, or switch InfiniBand off with `NCCL_IB_DISABLE=1`
# ([other causes, such as Docker](../docs/errors.md#when-nccl-hangs)).
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Each worker runs what stands after `fit`, so all would write over the same file. Write
# `saves(tf_config)`: `True` for the one process that may write, `False` for all others. `tf_config`
# is the text of TF_CONFIG, or `None` for a process that trains alone. If the cluster has a `chief`,
# that one saves; otherwise worker 0 does. Parameter servers (`ps`) and evaluators never save.

# %% tags=["exercise"]
def saves(tf_config):
    return json.loads(tf_config)["task"]["index"] == 0


checks.saves(saves)

# %% tags=["solution"]
def saves(tf_config):
    config = json.loads(tf_config or '{"cluster": {}, "task": {"type": "worker", "index": 0}}')
    kind = "chief" if "chief" in config["cluster"] else "worker"
    return config["task"] == {"type": kind, "index": 0}


checks.saves(saves)

# %% [markdown]
# **2.** Write `computed(total, every, failures)`: how many steps are computed in all attempts
# together, until `total` steps are done. There is a backup after every `every` steps, counted from
# the beginning of the training. Steps count from 0. Attempt i fails just before step
# `failures[i]`; the same step may occur twice. One more attempt reaches the end.

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
# **3.** Write `first(ends)`: the number of the worker to look at. `ends` has for each worker, in
# order, a tuple of three: the second at which it ended, its exit status, and the number of the
# worker named as lost in its log, or `None`. Begin with the earliest whose status is not 0. If its
# log names another worker, go on to that one, and so on. The names never lead in a circle.

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
# - A training that was killed at step 10 and slept at step 18 ended, in attempt 2, with the bits of
#   one that was left alone.
# - Each restart began where the last finished pass had ended, at steps 8 and 16.
# - The launcher named the worker that was killed. The log of the other one did not.
# - In a hang, the line that each process was in told which worker waited and which one slept.
# - A training whose backup lacked one of four entries ended with another weight, without an error.
#
# ## In practice
#
# Give `fit` the two callbacks and the launcher `--restarts`. On the first day kill a worker
# yourself, and compare digests, which the last lines of [the script](scripts/train_workers.py)
# make.
#
# Next: [[next]].
