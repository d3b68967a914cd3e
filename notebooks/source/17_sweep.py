# %% [markdown]
# # Sweep
#
# You look for the best learning rate. A loop tries one setting after the other on one of your four
# GPUs. At night the second setting fails and ends the loop, and in the morning the others have not
# run.
#
# **In this lesson** one line tries every combination of your settings on all devices, goes on after
# a failure, and prints a table in which you find the best. Three of its rows, without two columns:
#
# ```text
# name               status  loss   accuracy
# lr=0.1,data=large  done    1.262     0.897
# lr=0.3,data=large  done    0.655     0.922
# lr=1,data=large    done    0.926     0.758
# ```
#
# A **sweep** has a job for each combination. You start it in a terminal:
#
# ```shell
# mgpu run your_script.py --grid lr=0.1,0.3,1 data=small,large --skip-done
# ```
#
# In the picture, three of the six jobs fail, because a file is missing. When it is there, you start
# the same line again. With `--skip-done`, only these three run:
#
# ![Two starts of six jobs. In the first, three are done and three fail. The second skips what is
# done and runs the others. A file keeps how each job ended.](pictures/17_again.svg)
#
# Your script has to take its settings as arguments and print its result as a line of JSON:
#
# ```python
# import argparse
# import json
#
# parser = argparse.ArgumentParser()
# parser.add_argument("--lr", type=float, default=0.1)
# parser.add_argument("--data", default="small")
# options = parser.parse_args()
# ...  # build and train with options.lr and options.data
# print(json.dumps({"loss": float(loss), "accuracy": float(accuracy)}))
# ```
#
# **You need** [[16]].

# %%
import os

from mgpu_helpers import devices, jobs

if len(jobs.allowed()[1]) < 2:  # with fewer than two GPUs, cores stand in
    os.environ["MGPU_MODE"] = "cores"
plan = devices.setup(2, exact=True)
plan

# %%
import json
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import datetime
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from mgpu_helpers.lessons import digits
from mgpu_helpers.lessons.checks import lesson_17 as checks

# %% [markdown]
# ## A script to sweep
#
# Our script learns handwritten digits with one layer of weights. It computes with NumPy, so that a
# job takes a fraction of a second. Here the digits come from files:

# %%
folder = Path(tempfile.mkdtemp())
script = folder / "softmax.py"


def save(name, **options):
    images, labels = digits.load(**options)
    np.savez(folder / f"{name}.npz", x=images.reshape(len(images), -1), y=labels)


save("unseen", test=True)
save("small", n=100)

# %%
script.write_text("""
import argparse, json
import numpy as np
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--data", default="small")
options = parser.parse_args()
data, unseen = np.load(options.data + ".npz"), np.load("unseen.npz")
x, y, weights = data["x"], np.eye(10)[data["y"]], np.zeros([784, 10])
def guess(x):
    shares = np.exp(x @ weights)
    return shares / shares.sum(1, keepdims=True)
for _ in range(20):
    weights -= options.lr * x.T @ (guess(x) - y) / len(x)
loss = -np.log(guess(x)[y == 1]).mean()
accuracy = np.mean(guess(unseen["x"]).argmax(1) == unseen["y"])
print(json.dumps({"loss": round(loss, 3), "accuracy": round(accuracy, 3)}))
""")
alone = [sys.executable, script, "--lr=0.3"]
print(subprocess.run(alone, cwd=folder, capture_output=True, text=True).stdout)

# %% [markdown]
# ## Try it
#
# The function `mgpu` runs a line as a terminal does, and prints the runner's messages, its table
# and the exit status. The large data set is still missing:

# %%
def mgpu(line, parts=2):
    command = [sys.executable, "-m", "mgpu_helpers", *line.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    print(*done.stdout.split("\n\n")[:parts], f"exit status {done.returncode}", sep="\n\n")


sweep = "run softmax.py --grid lr=0.1,0.3,1 data=small,large --skip-done"

# %% tags=["nbval-ignore-output"]
mgpu(sweep)

# %%
print((folder / "logs" / "02_lr=0.1,data=large.log").read_text().splitlines()[-1])

# %% [markdown]
# Three jobs failed, and the others went on. The last line of a failed job's log names the cause.
# Now we save the missing file and start the line again:

# %% tags=["nbval-ignore-output"]
save("large", n=1000)
mgpu(sweep)

# %% [markdown]
# Only the three failed jobs ran. If you add a value to the line, only the new jobs run.
#
# ## Find the best
#
# The runner keeps all results in the file `logs/jobs.jsonl`. It adds a line of JSON when a job
# starts, and another when it ends; the newest counts. `read` returns the lines of jobs that have
# ended.
#
# The lowest loss, 0.354, belongs to a setting that is not the best, because it is the loss of the
# training images. So we choose by the accuracy on unseen digits:

# %%
def read(logs):
    lines = (folder / logs / "jobs.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["status"] != "running"]


# %% tags=["cover"]
done = {row["name"]: row["result_accuracy"] for row in read("logs") if row["status"] == "done"}
print("the best:", max(done, key=done.get))
rates, (figure, ax) = [0.1, 0.3, 1], plt.subplots(figsize=(5.2, 3.2))
for data, style in [("small", "o-"), ("large", "s--")]:
    ax.plot(rates, [100 * done[f"lr={rate},data={data}"] for rate in rates], style, label=data)
ax.set(xscale="log", xlabel="learning rate", ylabel="right answers, %", ylim=(70, 100))
ax.set_xticks(rates, rates)
ax.minorticks_off()
ax.legend(title="data")
ax.set_title("Accuracy by learning rate and data", loc="left")
plt.show()

# %% [markdown]
# Here the best rate lies inside the grid. If yours is at the edge, add a value beyond it.
#
# ## Proof
#
# A continued sweep has to give the results of an unbroken one, and must not do anything twice. Here
# is the same grid without a failure, with logs in another folder:

# %%
mgpu("run softmax.py --grid lr=0.1,0.3,1 data=small,large --logs once", parts=0)

# %%
def results(logs):
    return {row["name"]: row["result_loss"] for row in read(logs) if row["status"] == "done"}


print("equal results:", results("logs") == results("once"))
print(*sorted(Counter(row["status"] for row in read("logs")).items()))

# %% [markdown]
# The losses are equal. The file of the continued sweep has six rows with "done" and three with
# "failed", so no job that was done ran again.
#
# ## Break it
#
# We edit the script, so that it takes 100 steps instead of 20. Write down how many of the six jobs
# you expect to run when we start the line again:

# %% tags=["nbval-ignore-output"]
script.write_text(script.read_text().replace("range(20)", "range(100)"))
mgpu(sweep, parts=1)

# %% [markdown]
# None ran, so the results are still those of 20 steps, and no error says so. The runner knows a job
# by its command and its folder, and does not look into the script. To find such results, compare
# the start of each job with the last change of the script:

# %%
changed = script.stat().st_mtime
begun = [row["started_at"] for row in read("logs") if row["status"] == "done"]
starts = [datetime.fromisoformat(each).timestamp() for each in begun]
print(sum(start < changed for start in starts), "of", len(starts), "are older than the script")

# %% [markdown]
# After each change of a script, begin a new folder with `--logs v2`.
#
# | | `mgpu run SCRIPT --grid` |
# |---|---|
# | **Use it when** | you compare settings, and each training fits on one GPU |
# | **It costs** | a start of TensorFlow for each setting, and a script that takes arguments |
# | **Instead** | KerasTuner or Optuna, if earlier results should choose the next setting |
#
# ## A grid, or settings at random?
#
# A grid grows as a product: four settings with five values each are 625 jobs. Often only a few of
# the settings matter. Then random settings find as good a result with far fewer jobs ([Bergstra and
# Bengio](../docs/sources.md#random)), because each job tries a new value of those that matter,
# while a grid repeats a few. In this drawing only the learning rate matters:
#
# ![A grid of nine jobs tries three rates, which all miss the best one. Nine random jobs try nine
# rates, one close to the best.](pictures/17_grid_or_random.svg)
#
# To try random settings, give `--each` a file with the arguments of a job in each line. We draw the
# exponent of the rate, because rates differ by factors:

# %% tags=["nbval-ignore-output"]
rng = np.random.default_rng(0)
drawn = [(10 ** rng.uniform(-1, 0), rng.choice(["small", "large"])) for _ in range(4)]
(folder / "random.txt").write_text("".join(f"--lr={lr:.2f} --data={data}\n" for lr, data in drawn))
mgpu("run softmax.py --each random.txt --logs random")  # with 100 steps, since "Break it"

# %% [markdown]
# ## Before you choose
#
# The best of many results is partly luck. So measure the best setting again, on data that had no
# part in the choice.
#
# ## On GPUs
#
# If a small training keeps only a part of a GPU busy, try `--per-device 2`, with a memory limit for
# each job ([[05]]).
#
# On a cluster, [sweep.slurm](scripts/sweep.slurm) asks Slurm for four GPUs and sweeps on them, and
# [sweep.yaml](scripts/sweep.yaml) sweeps on Kubernetes. Neither has run on a cluster yet.
#
# ## On your own
#
# **1.** Write `wall(seconds, n)`, which returns how long a sweep takes. `seconds` lists how long
# each job takes. The jobs start in their order on n devices, each as soon as a device is free.
# `wall([3, 8, 8, 1, 9], 2)` is 18: the last job starts at 9, and the other device is idle from 11.

# %% tags=["exercise"]
def wall(seconds, n):
    return sum(seconds) / n


checks.wall(wall)

# %% tags=["solution"]
def wall(seconds, n):
    free_at = [0] * n
    for length in seconds:
        first = free_at.index(min(free_at))
        free_at[first] += length
    return max(free_at)


checks.wall(wall)

# %% [markdown]
# **2.** Write `again(names, rows)`, which returns the names of the jobs that a sweep still has to
# run, in the order of `names`. `names` are all its jobs. `rows` are dictionaries with a name and a
# status, one for each time that a job ended, the oldest first. A job may have no row, or several,
# of which the newest counts.

# %% tags=["exercise"]
def again(names, rows):
    return [row["name"] for row in rows if row["status"] != "done"]


checks.again(again)

# %% tags=["solution"]
def again(names, rows):
    newest = {row["name"]: row["status"] for row in rows}
    return [name for name in names if newest.get(name) != "done"]


checks.again(again)

# %% [markdown]
# ## What we saw
#
# - One line ran a grid of six trainings, and the rate 0.3 was the best.
# - The same line ran the failed jobs later. The results were those of a sweep without a failure.
# - After the script was edited, 6 of 6 results were older than the script, and no error said so.
#
# ## In practice
#
# Paste the line with your script in it, and keep `--skip-done`. Begin with few values far apart.
#
# Next: [[next]].
