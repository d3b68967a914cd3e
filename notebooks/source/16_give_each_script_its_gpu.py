# %% [markdown]
# # Give each script its GPU
#
# You have two trainings and a machine with four GPUs. You start both scripts, and both go to the
# first GPU. One of them finds no memory there and dies, and three GPUs stay idle.
#
# **In this lesson** several scripts train side by side, each on a GPU of its own. A neighbour does
# not change what a script learns, and if one script fails, the others go on.
#
# ![Left, no setting: a.py computes on GPU 0 and takes the memory of all four, and b.py finds none.
# Right: a.py works on GPU 0, b.py on GPU 1.](pictures/16_landing.svg)
#
# Left to itself, a TensorFlow process takes nearly all the memory of every GPU ([[05]]), although
# it computes only on the first. If each script sees one GPU only, both have memory.
#
# ## The lines to paste
#
# The command `mgpu` comes with this package. In a terminal, one line is enough:
#
# ```shell
# mgpu run "scripts/train.py --width 16" "scripts/train.py --width 32"
# ```
#
# `mgpu run` is a **runner**: it starts a script on each free GPU, lets the others wait in a queue,
# and writes what a script prints to a file in the folder `logs`.
#
# **You need** [[00]].
#
# `jobs.allowed` lists the devices that this program may use. If these are fewer than two GPUs,
# cores of the processor stand in for them:

# %%
import os

from mgpu_helpers import devices, jobs

if len(jobs.allowed()[1]) < 2:
    os.environ["MGPU_MODE"] = "cores"
plan = devices.setup(2, exact=True)
plan

# %%
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from mgpu_helpers import charts
from mgpu_helpers.lessons.checks import lesson_16 as checks
from mgpu_helpers.lessons.pretend import pretend_server

# %% [markdown]
# ## Try it
#
# [train.py](scripts/train.py) is a plain Keras script, which names no device. `jobs.run` does in
# Python what `mgpu run` does in a terminal. A narrow and a wide network train at the same time:

# %%
folder = Path(tempfile.mkdtemp())
widths = {"narrow": 16, "wide": 32}


def train(*names, to, only=None):
    script = [sys.executable, "scripts/train.py", "--epochs=1"]
    each = [[f"--width={widths[name]}", f"--output={folder / to / name}"] for name in names]
    commands = [[*script, *arguments] for arguments in each]
    return jobs.run(commands, names=names, devices=only, logs=folder / to, progress=False)


# %% tags=["nbval-ignore-output"]
two = train("narrow", "wide", to="together")
for job in two:
    print(job.name, job.status, "on", job.kind, *job.devices)
print("at the same time:", max(job.start for job in two) < min(job.end for job in two))

# %% [markdown]
# ## Proof
#
# Does a neighbour change a training? Above, the wide network trained beside the narrow one. We now
# train it alone, on the device that the narrow one had. Both times the script writes its losses and
# a hash of its weights to a file.
#
# On a GPU some operations add in a changing order, so results differ in the last digits. `train.py`
# calls `tf.config.experimental.enable_op_determinism()`, which fixes the order:

# %%
alone = train("wide", to="alone", only=two[0].devices)
files = [folder / way / "wide" / "train.json" for way in ("together", "alone")]
print("equal files:", files[0].read_bytes() == files[1].read_bytes())

# %% [markdown]
# The files are equal, so neither the neighbour nor the other device changed a loss or a weight.
#
# ## By hand
#
# TensorFlow reaches GPUs through CUDA, and CUDA shows a program only the GPUs that the variable
# `CUDA_VISIBLE_DEVICES` names. If you write a variable in front of a command, it is set for that
# command alone. So this recipe gives two scripts a GPU each:
#
# ```shell
# export CUDA_DEVICE_ORDER=PCI_BUS_ID
# CUDA_VISIBLE_DEVICES=0 python a.py > a.log 2>&1 & a=$!
# CUDA_VISIBLE_DEVICES=1 python b.py > b.log 2>&1 & b=$!
# wait $a; echo "a: $?"; wait $b; echo "b: $?"
# ```
#
# - The first line makes CUDA number the GPUs as `nvidia-smi` does.
# - `> a.log 2>&1` sends what a script prints to a file.
# - `&` starts the script in the background, and `$!` is the number of its process.
# - `wait $a` waits until that process ends. Then `$?` is its exit status, which is 0 for success.
#
# On cores, the command `taskset` does what the variable does for GPUs. The program `look` prints
# the devices that it may use. We run it alone, and then with a prefix that allows one device:

# %% tags=["nbval-ignore-output"]
kind, allowed = jobs.allowed()
look = [sys.executable, "-c", "from mgpu_helpers import jobs; print(*jobs.allowed())"]


def on(device):
    if kind == "GPU":
        return ["env", f"CUDA_VISIBLE_DEVICES={device}"]
    return ["taskset", "--cpu-list", str(device)] if shutil.which("taskset") else []  # not on macOS


for prefix in ([], on(allowed[0]), on(allowed[-1])):
    done = subprocess.run([*prefix, *look], capture_output=True, text=True)
    print(*prefix, "look:", done.stdout, end="")

# %% [markdown]
# ## Break it
#
# Somebody ends the recipe with a plain `wait`, which waits for both scripts. In place of the
# scripts we take `false`, a command that always fails, and `true`, which always succeeds. Which
# exit status do you expect after the plain `wait`? Write it down:

# %%
for end in ("wait; echo both: $?", "wait $a; echo a: $?; wait $b; echo b: $?"):
    shell = subprocess.run(f"false & a=$!; true & b=$!; {end}", shell=True, capture_output=True)
    print(f"{end:42}", *shell.stdout.decode().splitlines(), sep="  ")

# %% [markdown]
# After a plain `wait` the exit status is 0, and nobody learns of the failure. A runner reports
# every job. Here are five jobs on two devices. One fails, one is killed, and one hangs until a time
# limit of 3 seconds ends it. A line shows the status, the exit status, and what the job printed
# last:

# %%
programs = {
    "fails": "import time; time.sleep(0.4); raise SystemExit('no such file: digits.npz')",
    "hangs": "import time; time.sleep(600)",
    "killed": "import os, signal, time; time.sleep(0.4); os.kill(os.getpid(), signal.SIGKILL)",
    "long": "import time; time.sleep(0.6); print('ok')",
    "last": "print('ok')",
}
commands = [[sys.executable, "-c", program] for program in programs.values()]
queue = jobs.run(commands, names=programs, devices=allowed[:2], time_limit=3,
                 logs=folder / "five", progress=False)  # fmt: skip
for job in queue:
    print(f"{job.name:8} {job.status:10} {job.returncode:4}  {job.tail}")

# %% tags=["varies", "cover", "nbval-ignore-output"]
charts.jobs(queue)
plt.show()

# %% [markdown]
# The jobs with hatched bars did not end well. A negative exit status is the number of a signal. The
# runner sent 15, SIGTERM, when the time limit was over. Signal 9 is SIGKILL, which Linux also sends
# when the host runs out of memory. If any job has failed, `mgpu run` itself ends with exit status
# 1.
#
# | | `mgpu run`, `jobs.run` |
# |---|---|
# | **Use them when** | each training fits on one GPU, and you have several |
# | **They cost** | a start of Python and TensorFlow for each script, in seconds and in memory |
# | **Instead** | [[18]] for small models in one process; [[01]] for one training on all GPUs |
#
# ## On a shared server
#
# Before each job the runner asks NVIDIA's driver who uses the GPUs. It leaves alone every GPU on
# which others compute, or of which less than a tenth of the memory is free. On this pretended
# server with four GPUs of 80 GiB, other users hold 79 GiB of GPU 0 and 4 GiB of GPU 1:

# %% tags=["nbval-ignore-output"]
tell = [sys.executable, "-c", "import os; print('GPU', os.environ['CUDA_VISIBLE_DEVICES'])"]
with pretend_server(used={0: 79, 1: 4}):
    shared = jobs.run([tell, tell], names=["a", "b"], logs=folder / "shared")

# %% [markdown]
# The jobs got the two other GPUs. If all were in use, they would wait.
#
# ## On GPUs
#
# `CUDA_VISIBLE_DEVICES` may name several GPUs. Inside the process they get new numbers from 0, in
# the order of the list:
#
# ![Four GPUs, numbered 0 to 3 outside. With CUDA_VISIBLE_DEVICES=2,0 a process sees two: GPU 2 as
# /GPU:0, and GPU 0 as /GPU:1.](pictures/16_numbers.svg)
#
# A script and its logs speak of the inner number, `nvidia-smi` of the outer one. CUDA reads the
# variable when TensorFlow first asks for GPUs, so set it before the script starts.
#
# ## On your own
#
# **1.** A script started with `CUDA_VISIBLE_DEVICES` says that it trains on `/GPU:1`. Which GPU is
# that in `nvidia-smi`? Write `outside(visible, device)`, which returns its number there: `visible`
# is the text of the variable, and `device` the name inside. So `outside("3,0", "/GPU:1")` is 0.
# `CUDA_DEVICE_ORDER` is PCI_BUS_ID.

# %% tags=["exercise"]
def outside(visible, device):
    return int(device[-1])


checks.outside(outside)

# %% tags=["solution"]
def outside(visible, device):
    inside = int(device.rpartition(":")[2])
    return int(visible.split(",")[inside])


checks.outside(outside)

# %% [markdown]
# **2.** Write `environment(device)`, which returns a dictionary like `os.environ` for a child
# process that may see only GPU `device`, in nvidia-smi's numbering. The notebook's own environment
# must not change.

# %% tags=["exercise"]
def environment(device):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    return os.environ


checks.environment(environment)

# %% tags=["solution"]
def environment(device):
    return os.environ | {
        "CUDA_VISIBLE_DEVICES": str(device),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


checks.environment(environment)

# %% [markdown]
# ## What we saw
#
# - Two scripts trained side by side on different devices, and one of them wrote the same bytes when
#   it trained alone.
# - After a plain `wait` the shell's exit status was 0, although a command had failed.
# - Of five jobs the runner named the three that ended badly, and the other two ran to their end.
#
# ## In practice
#
# Start your scripts with `mgpu run`. For two scripts on GPUs that nobody else uses, the recipe is
# enough.
#
# Next: [[next]].
