# %% [markdown]
# # Sweep
#
# You look for the learning rate and the width with which your script trains best. A loop in the
# shell tries one setting after the other on one of four GPUs, and three stay idle. At night the
# machine restarts during the seventh setting, and in the morning you begin again with the first.
#
# **In this lesson** one line tries a grid of settings on all devices, goes on after a failure, and
# gives a table in which you find the best.
#
# **You will learn** to
# - make a job of every combination of some values,
# - make a sweep larger, and go on after a failure, without repeating what is done,
# - read the results as a table, and notice results that are missing or from an older script,
# - start a sweep from a batch script.
#
# **You need** [[04]].

# %%
import os

from mgpu_helpers import devices, jobs

if len(jobs.allowed()[1]) < 2:  # where there is only one GPU, cores stand in
    os.environ["MGPU_MODE"] = "cores"
plan = devices.setup(2, exact=True)
plan

# %%
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import matplotlib.pyplot as plt

from mgpu_helpers.lessons import drawings
from mgpu_helpers.lessons.checks import lesson_05 as checks

# %% [markdown]
# ## The lines to paste
#
# A script can be swept when it takes its settings as arguments, and prints its result as a line of
# JSON, of which the last counts. [train.py](scripts/train.py), the Keras script of [[04]], does
# both. In your own script, these lines are enough:
#
# ```python
# import argparse
# import json
#
# parser = argparse.ArgumentParser()
# parser.add_argument("--lr", type=float, default=0.1)
# parser.add_argument("--width", type=int, default=16)
# parser.add_argument("--epochs", type=int, default=3)
# parser.add_argument("--seed", type=int, default=0)
# options = parser.parse_args()
# ...  # build and train with options.lr, options.width, options.epochs and options.seed
# print(json.dumps({"loss": float(loss), "accuracy": float(accuracy)}))
# ```
#
# Then this line, in a terminal, tries two learning rates with two widths each. What follows `--` is
# given to every job and is not in its name:
#
# ```shell
# mgpu run train.py --grid lr=0.01,0.1 width=2,16 --skip-done -- --epochs 1
# ```
#
# The function `mgpu` runs such a line, always in the same temporary folder. It prints what a
# terminal would show (with `brief`, only the table, the first failure and where the logs are), and
# how the line ended:

# %%
folder = Path(tempfile.mkdtemp())
shutil.copy("scripts/train.py", folder)


def mgpu(line, brief=False):
    began = time.perf_counter()
    command = [sys.executable, "-m", "mgpu_helpers", *line.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    said = (done.stdout + done.stderr).replace(f"{folder}{os.sep}", "").strip()
    print("\n\n".join(said.split("\n\n")[1:4] if brief else [said]))
    print(f"exit status {done.returncode} after {time.perf_counter() - began:.1f} s")


# %% tags=["nbval-ignore-output"]
mgpu("run train.py --grid lr=0.01,0.1 width=2,16 --skip-done -- --epochs 1")

# %% [markdown]
# Each job is named after its settings in the grid and runs on the next free device. The line took
# less time than its jobs together, because several devices worked at once.
#
# | | |
# |---|---|
# | **Use it when** | you compare settings, and each training fits on one GPU |
# | **It costs** | a start of TensorFlow for each setting, and a script that takes arguments |
# | **Instead** | KerasTuner or Optuna, where earlier results choose the next setting |
#
# The larger rate and the larger width have won. So the next line tries a still larger rate, with
# that width alone. `--skip-done` leaves out two of its three jobs, which are done:

# %% tags=["nbval-ignore-output"]
mgpu("run train.py --grid lr=0.01,0.1,1 width=16 --skip-done -- --epochs 1")

# %% [markdown]
# When a job starts, and when it ends, the runner adds a line of JSON to `logs/jobs.jsonl`. `read`
# gives those of ended jobs: `name` holds the settings, and `result_accuracy` the accuracy that the
# job printed; all five have one. The chart shows accuracy against rate, a curve for each width:

# %%
def read(logs):
    lines = (folder / logs / "jobs.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["status"] != "running"]


# %% tags=["cover"]
rows, curves = read("logs"), {}
print("the best:", max(rows, key=lambda row: row["result_accuracy"])["name"])
for row in sorted(rows, key=lambda row: row["name"]):
    setting = dict(pair.split("=") for pair in row["name"].split(","))
    curve = curves.setdefault(f"width {setting['width']}", {})
    curve[float(setting["lr"])] = row["result_accuracy"]
drawings.against_rate(curves, of=360)
plt.show()

# %% [markdown]
# The error bars are standard errors: how far the choice of the 360 digits usually moves an
# accuracy. Another seed moves it, too. With a rate of 1 nothing is learnt: one digit in ten is
# right, as in guessing. The best rate lies between two worse ones. The best width is the largest
# tried, so try a wider one next.
#
# ## How it works
#
# `jobs.grid` makes every combination of the given values, like two nested loops. Here are the jobs
# of the first sweep:

# %%
by_hand = [[f"--lr={lr}", f"--width={width}"] for lr in (0.01, 0.1) for width in (2, 16)]
sweep = jobs.grid(lr=[0.01, 0.1], width=[2, 16])
print(*sweep.items(), sep="\n")
print("the same:", list(sweep.values()) == by_hand)

# %% [markdown]
# A job is a command with such arguments:
# `[sys.executable, "train.py", *arguments, "--epochs=1"]`.
# `jobs.run(commands, names=sweep, skip_done=True)` runs a list of such commands.
#
# ## Go on after a failure
#
# The script parabola.py looks for the lowest point of x² by gradient descent. The gradient is 2x,
# so a step with the rate 0.1 multiplies x by 0.8. A file, `near.txt` or `far.txt`, holds the x at
# which it starts. Here the script runs alone, from x = 1:

# %%
parabola = folder / "parabola.py"
parabola.write_text("""
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--start", default="near")
parser.add_argument("--steps", type=int, default=5)
options = parser.parse_args()
x = float(open(options.start + ".txt").read())
for _ in range(options.steps):
    x -= options.lr * 2 * x
print(json.dumps({"loss": x * x}))
""")
(folder / "near.txt").write_text("1")
alone = [sys.executable, "parabola.py", "--lr=0.1"]
print(subprocess.run(alone, cwd=folder, capture_output=True, text=True).stdout, end="")
print(f"by hand {(0.8**5) ** 2:.6f}")

# %% [markdown]
# The loss is the square of x. Of a grid of four such jobs two fail, because `far.txt` is still
# missing:

# %% tags=["nbval-ignore-output"]
mgpu("run parabola.py --grid lr=0.1,0.4 start=near,far --skip-done --logs again", brief=True)

# %% [markdown]
# Below the table is the end of a failed job's log, which names the cause. The exit status is 1, so
# a shell script can notice the failure. Now the file is written, and the same line runs again:

# %% tags=["nbval-ignore-output"]
(folder / "far.txt").write_text("10")
mgpu("run parabola.py --grid lr=0.1,0.4 start=near,far --skip-done --logs again")

# %% [markdown]
# The two finished jobs were skipped, and the failed ones ran again:
#
# ![Two starts of four jobs. The first adds to jobs.jsonl how four jobs ended: two done and two
# failed. The second skips the two done, and adds two lines.](pictures/05_again.svg)
#
# After Ctrl-C or a crash (not shown), the same line goes on; a job cut off halfway begins again.
#
# ## Proof
#
# A continued sweep has to give the results of an unbroken one, and must not repeat what is done.
# Here is the same grid in another folder, without a failure:

# %% tags=["nbval-ignore-output"]
mgpu("run parabola.py --grid lr=0.1,0.4 start=near,far --logs once", brief=True)

# %%
def results(logs):
    return {row["name"]: row["result_loss"] for row in read(logs) if row["status"] == "done"}


print("equal results:", results("again") == results("once"), len(results("once")))
print(*sorted(Counter(row["status"] for row in read("again")).items()))

# %% [markdown]
# In the folder `again` four rows are of finished jobs, no two of the same job, and two of failures.
#
# ## Break it
#
# **A training that exits with 0 and a loss of NaN.** The rate 2 multiplies x by -3 in each step,
# and after a thousand steps x is not a number (NaN). Which row is the best?

# %% tags=["nbval-ignore-output"]
mgpu("run parabola.py --grid lr=2,0.1,0.4 --logs diverged -- --steps 1000", brief=True)

# %%
done = sorted(read("diverged"), key=lambda row: row["name"])
try:
    min(done, key=lambda row: row["result_loss"])
except TypeError as error:
    print(Counter(row["status"] for row in done), error)
finite = [row for row in done if row["result_loss"] is not None]
print("the best is", min(finite, key=lambda row: row["result_loss"])["name"])

# %% [markdown]
# The best is the rate 0.4, once the job without a result is left out. JSON has no NaN, so the
# runner writes `null`, which Python reads as `None`. The table shows `-`, as for a failed job.
# "Done" says only that the exit status was 0. Look for missing results before you choose.
#
# **A script that was edited.** The runner compares a command's words and folder, but does not look
# into the script. Here parabola.py is changed to print |x| instead of x², and the sweep from above
# starts again:

# %% tags=["nbval-ignore-output"]
before = parabola.read_text()
parabola.write_text(before.replace('"loss": x * x', '"loss": abs(x)'))
mgpu("run parabola.py --grid lr=0.1,0.4 start=near,far --skip-done --logs once", brief=True)

# %% [markdown]
# All four jobs are skipped, and the table has results of the old script. No error says so. To find
# out, compare the start of each job with the last change of the script:

# %%
changed = parabola.stat().st_mtime
starts = [datetime.fromisoformat(row["started_at"]).timestamp() for row in read("once")]
parabola.write_text(before)
print(sum(start < changed for start in starts), "of", len(starts), "are older than the script")

# %% [markdown]
# After a change begin a new folder, with `--logs v2`. If you change what follows `--`, names stay
# the same but jobs are new: take a new folder, too.
#
# ## When not to
#
# A grid grows as a product: four settings with five values each are 625 jobs. But mostly only a few
# of the settings matter, and then a random search finds an equally good setting with far fewer jobs
# (Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", 2012,
# [sources](../docs/sources.md#random)). In this drawing only the rate matters:
#
# ![A grid of nine jobs tries three rates, and all miss the best one. Nine jobs at random try nine
# rates, one of them close to it.](pictures/05_grid_or_random.svg)
#
# Random settings come from a file, which has the arguments of a job on each line. Here each line
# draws a rate between 0.1 and 1, and all start at `near`:

# %% tags=["nbval-ignore-output"]
draw = random.Random(0)
lines = [f"--lr={10 ** draw.uniform(-1, 0):.4f} --start=near" for _ in range(6)]
(folder / "settings.txt").write_text("\n".join(lines))
mgpu("run parabola.py --each settings.txt --logs drawn", brief=True)

# %% [markdown]
# Six jobs tried six rates; six jobs of a grid with both starts try three. The rate 0.5727 is better
# than the grid's best, 0.4. The best result of many is partly luck, so measure the best setting
# once more, on data that had no part in the choice. Where two are close, compare them with more
# seeds, such as `seed=0,1,2` in the grid.
#
# ## On GPUs and on a cluster
#
# As in [[04]], GPUs that others use are left alone. A small training keeps only a part of a GPU
# busy: then try `--per-device 2`, with a memory limit for each job ([[02]]). Without a seed and
# `tf.config.experimental.enable_op_determinism()` two runs of one setting may differ.
#
# The batch script [sweep.slurm](scripts/sweep.slurm) asks Slurm for four GPUs, and starts the
# runner on them with `--skip-done`. You submit it with
# `sbatch sweep.slurm train.py --grid lr=0.01,0.1 width=2,16`. Slurm ends the sweep at its time
# limit; submit the same line again, and only unfinished jobs run. Without Slurm, bash can run the
# script, here twice:

# %% tags=["nbval-ignore-output"]
line = "parabola.py --grid lr=0.1,0.4 start=near,far --logs slurm"
path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
for _ in range(2):
    command = ["bash", Path("scripts/sweep.slurm").resolve(), *line.split()]
    done = subprocess.run(command, cwd=folder, env=os.environ | {"PATH": path},
                          capture_output=True, text=True)  # fmt: skip
    print(done.stdout.splitlines()[0])

# %% [markdown]
# The second run skipped all four jobs. In Kubernetes each pod has GPUs of its own, so no runner is
# needed, and there is no table: [sweep.yaml](scripts/sweep.yaml) has four pods, and picks each
# pod's arguments by its number. Neither file has run on a cluster.
#
# ## With a program of another kind
#
# The program need not be in Python. A shell script that `mgpu run wide.sh --grid width=16` starts
# can end with this:
#
# ```shell
# echo "{\"width\": ${1#--width=}}"
# ```
#
# If your program writes a file, put the arguments into its name, because jobs that run at once must
# not write to the same place.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** How long will a sweep take? Write `wall(seconds, n)`, where `seconds` is the list of how
# long each job takes. The jobs start in their order on n devices, each as soon as a device is free.
# `wall([6, 1, 1, 4, 9], 2)` is 15, because the longest job comes last.

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
# **2.** Which jobs has a sweep still to run? Write `again(names, rows)`. `names` are all jobs of
# the sweep. `rows` are the lines of its file, the oldest first, as dictionaries with a name and a
# status. No two jobs share a name. A job may have several rows, of which the newest counts, or
# none. Return the names of the jobs that are left, in the order of `names`.

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
# - One line ran a grid of four trainings, and a second grid, with a larger rate, ran only its new
#   job.
# - Of five settings the rate 0.1 with width 16 was the best.
# - A sweep that had failed in part went on, and its 4 results were those of one without a failure.
# - Of 3 jobs that were done, one had no result.
# - After the script was edited, 4 of 4 results were older than the script, and no error said so.
#
# ## In practice
#
# Paste the line with your script in it, and keep `--skip-done`, with new `--logs` after each change
# of the script. Begin with few values far apart, and make the grid larger where the best one lies
# at its edge. If you have pandas,
# `pandas.read_json("logs/jobs.jsonl", lines=True)` makes a table of all results. Next: [[next]].
