# %% [markdown]
# # Give each script its GPU
#
# You have two trainings and a machine with four GPUs. You start both scripts. Both put their work
# on the first GPU, one of them dies because no memory is left there, and three GPUs stay idle.
#
# **In this lesson** several scripts train side by side, each on a GPU of its own, and a failure in
# one of them leaves the others alone.
#
# **You will learn** to
# - start many scripts with one line, each on a GPU of its own,
# - do the same by hand, and tell which number stands for which GPU,
# - see what became of each script,
# - stay out of other people's way on a shared server.
#
# **You need** [[00]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import tensorflow as tf
from tensorflow.python.eager import context

from mgpu_helpers import charts, jobs
from mgpu_helpers.lessons.checks import lesson_04 as checks
from mgpu_helpers.lessons.pretend import pretend_gpus, pretend_server

# %% [markdown]
# ## The lines to paste
#
# [train.py](scripts/train.py) is a plain Keras script, which names no device. In a terminal, one
# line starts two trainings with it, each on a GPU of its own:
#
# ```shell
# mgpu run "train.py --width 16" "train.py --width 32"
# ```
#
# `mgpu` comes with this project (or `python -m mgpu_helpers`). More scripts than GPUs wait in a
# queue, and what each prints goes to a log. In Python this is `jobs.run`. Here one training runs
# alone, and then both run side by side. `free` is how many devices are used at a time:

# %%
folder = Path(tempfile.mkdtemp())
kind, allowed = jobs.allowed()


def train(way, free, **widths):
    commands = [
        [sys.executable, "scripts/train.py", f"--width={width}", f"--output={folder / way / name}"]
        for name, width in widths.items()
    ]
    return jobs.run(commands, names=widths, free=free, logs=folder / way, progress=False)


# %%
alone = train("alone", 1, narrow=16)
both = train("both", min(2, len(allowed)), narrow=16, wide=32)
print([(job.name, job.status) for job in (*alone, *both)])

# %% tags=["varies", "cover", "nbval-ignore-output"]
for title, report in {"One alone": alone, "Side by side": both}.items():
    ax = charts.jobs(report)
    ax.set(xlim=(0, 1.02 * max(alone.wall, both.wall)))
    ax.set_title(title, loc="left")
    plt.show()

# %% [markdown]
# Each bar is a training on its device. Without a GPU, a core of the processor stands in for one. On
# a machine with one device the two trainings follow each other.
#
# | | |
# |---|---|
# | **Use it when** | each training fits on one GPU, and you have several |
# | **It costs** | the start of Python and TensorFlow for each script, in seconds and in memory |
# | **Instead** | [[06]] for small models in one process; [[07]] for one training on all GPUs |
#
# ## How it works
#
# Left to itself, each TensorFlow takes nearly all the memory of every GPU ([[02]]) and computes on
# the first one. So two scripts land as in the left half of the drawing:
#
# ![Two scripts on a machine with four GPUs. Left, nothing said: both work on GPU 0. Right, a GPU
# for each: a.py works on GPU 0, b.py on GPU 1.](pictures/04_landing.svg)
#
# Two processes that are told nothing print the devices that they may use:

# %% tags=["nbval-ignore-output"]
look = "from mgpu_helpers import jobs; print('may use', *jobs.allowed())"
for _ in range(2):
    seen = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout
    print(seen, end="")

# %% [markdown]
# Both may use the same: every GPU, or every core where there is no GPU.
#
# CUDA reads the variable `CUDA_VISIBLE_DEVICES`, and shows a program only the GPUs that it names.
# Written in front of a command, it is set for that command alone. So two scripts need no more than
# this, in a terminal:
#
# ```shell
# CUDA_VISIBLE_DEVICES=0 python a.py > a.log 2>&1 &
# CUDA_VISIBLE_DEVICES=1 python b.py > b.log 2>&1 &
# wait
# ```
#
# `> a.log 2>&1` sends everything that a script prints to a file. `&` starts it in the background,
# and `wait` waits for both. On cores `taskset` takes the place of the variable: it lets a command
# use only the cores that you name. The function `on` gives the words for either kind of device:

# %% tags=["nbval-ignore-output"]
def on(device):
    if kind == "GPU":
        return ["env", "CUDA_DEVICE_ORDER=PCI_BUS_ID", f"CUDA_VISIBLE_DEVICES={device}"]
    pinned = ["taskset", "--cpu-list", str(device)] if sys.platform == "linux" else []
    return ["env", "CUDA_VISIBLE_DEVICES=-1", *pinned]


print(*on(allowed[0]))

# %% [markdown]
# `env` sets variables for the command behind it, and `-1` hides every GPU. (macOS has no `taskset`:
# there scripts share all cores.) Now the three lines run, with the program from above as script:

# %% tags=["nbval-ignore-output"]
first, second = (shlex.join([*on(device), sys.executable, "-c", look])
                 for device in (allowed[0], allowed[-1]))  # fmt: skip
recipe = f"{first} > a.log 2>&1 &\n{second} > b.log 2>&1 &\nwait"
subprocess.run(recipe, shell=True, cwd=folder)
for log, device in {"a.log": allowed[0], "b.log": allowed[-1]}.items():
    said = (folder / log).read_text().strip()
    print(log, "says:", said)
    assert said.endswith(f" [{device}]") or sys.platform == "darwin"

# %% [markdown]
# Each may use one device.
#
# ### Which number is which GPU
#
# The variable may name several GPUs. Inside the process they get new numbers, from 0, in the order
# of the list:
#
# ![Four GPUs, numbered 0 to 3 outside. With CUDA_VISIBLE_DEVICES=2,0 a process sees two: GPU 2 as
# /GPU:0, and GPU 0 as /GPU:1.](pictures/04_numbers.svg)
#
# GPU 2 has become `/GPU:0`. In a script and its logs you read the inner number, and in `nvidia-smi`
# the outer one. CUDA counts as `nvidia-smi` does only where `CUDA_DEVICE_ORDER=PCI_BUS_ID` is set,
# as `on` and `mgpu run` do. Otherwise it begins with the fastest GPU.
#
# A script can also choose for itself, with `tf.config.set_visible_devices`, before TensorFlow
# starts. The four GPUs of the next cell are pretended:

# %%
with pretend_gpus(4) as gpus:
    tf.config.set_visible_devices([gpus[2], gpus[0]], "GPU")
    print("asked for 2,0:", context.context().config.gpu_options.visible_device_list)

# %% [markdown]
# `tf.config` has sorted the list: here `/GPU:0` is GPU 0, and with the variable it was GPU 2.
#
# ## A queue
#
# What starts a third script when a GPU is free again? A runner does, in a dozen lines. As long as
# something waits and a device is free, it starts the next command. When a command ends, its device
# is free again:

# %%
def run(commands, free):
    free, waiting, running = list(free), list(commands), {}
    while waiting or running:
        while waiting and free:
            device = free.pop(0)
            child = subprocess.Popen([*on(device), *waiting.pop(0)])
            running[child] = device
        for child in list(running):
            if child.poll() is not None:  # it has ended
                free.append(running.pop(child))
        time.sleep(0.05)


# %% tags=["nbval-ignore-output"]
nap = [sys.executable, "-c", "import time; time.sleep(0.5)"]
for free in (allowed[:1], allowed[:2]):
    began = time.perf_counter()
    run([nap, nap], free)
    print(f"devices {free}: {time.perf_counter() - began:.1f} s")

# %% [markdown]
# On one device the naps follow each other and take more than a second. On two they overlap.
# `jobs.run` is this runner, with logs, exit statuses, time limits, and a lock on each device.
#
# ## Proof
#
# Where a script runs, and beside what, must not change what it learns. The narrow training has run
# alone and beside another one. Each time it wrote its losses and a hash of its weights to a file:

# %%
files = [folder / way / "narrow" / "train.json" for way in ("alone", "both")]
contents = {file.read_bytes() for file in files}
print("files:", len(files), "different contents:", len(contents))

# %% [markdown]
# Both files are equal, byte for byte. A script that is pinned to one core computes with one thread,
# which always adds in the same order. For GPUs the script calls
# `tf.config.experimental.enable_op_determinism()`, because some operations there otherwise add in
# an order that changes. GPUs of different kinds may still differ in the last digits.
#
# ## Break it
#
# **A script fails, and the shell does not say so.** In this recipe the first of two commands always
# fails:

# %%
shell = subprocess.run("false & true & wait", shell=True)
print("exit status:", shell.returncode)

# %% [markdown]
# The exit status is 0, the sign that all went well. A bare `wait` does not pass a failure on. The
# runner does. Here are six jobs for two devices. One fails, one hangs, and one is interrupted:

# %%
programs = {
    "short": "print('done')",
    "fails": "import time; time.sleep(0.4); raise SystemExit('no such file: digits.npz')",
    "hangs": "import time; time.sleep(600)",
    "interrupted": """import os, signal, time; time.sleep(0.4)
signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)""",
    "long": "import time; time.sleep(0.6)",
    "last": "print('done')",
}
commands = [[sys.executable, "-c", program] for program in programs.values()]
queue = jobs.run(commands, names=programs, free=min(2, len(allowed)), time_limit=2,
                 logs=folder / "six", progress=False)  # fmt: skip
for job in queue:
    print(f"{job.name:12} {job.status:10} {job.returncode:4}  {job.tail}")

# %% tags=["varies", "nbval-ignore-output"]
charts.jobs(queue).set_title("A queue of six", loc="left")
plt.show()

# %% [markdown]
# The other jobs went on; the hatched ones did not end well. The last column is what a job printed
# last, so you see why `fails` failed. A negative exit status is the signal that ended the process:
# -15 is SIGTERM, which the runner sends when the time is up, and -2 is an interrupt. `mgpu run`
# itself ends with the exit status 1 when a job has failed, and Ctrl-C ends all jobs.
#
# ## On a shared server
#
# On a shared server, other people's scripts run on some of the GPUs. So before each job `jobs.run`
# asks the driver. It leaves alone a GPU on which other people's processes compute, or of which less
# than a tenth of the memory is free. The server of the next cell is pretended. It has four GPUs of
# 80 GiB, and a process of another user holds 79 GiB of GPU 0, and 4 of GPU 1:

# %% tags=["nbval-ignore-output"]
tell = [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"]
with pretend_server(used={0: 79, 1: 4}):
    shared = jobs.run([tell, tell], names=["a", "b"], logs=folder / "shared")

# %%
for job in shared:
    print(f"{job.name} was started with CUDA_VISIBLE_DEVICES={job.tail}")

# %% [markdown]
# One line says which GPUs are left alone, and why. The jobs got the two others. Where all are in
# use, jobs wait until one is free. Three options change that: `--devices 0,1` names the GPUs, which
# are used whoever else is on them, `--busy` uses all, and `--free 2` uses two at a time, the freest
# first.
#
# But to look is not to take. Seconds pass until your script shows on its GPU. Another runner that
# looks meanwhile sees that GPU free, and takes it too:
#
# ![Two runners over time. A looks and sees that 0 is free; B looks before A has taken it, and sees
# the same; then A takes 0, and B takes 0.](pictures/04_race.svg)
#
# Here is such a runner. It picks the first device without a mark, reports that it has looked, and
# waits for a line of input before it marks the device. Two of them start, and are told to go on
# when both have looked:

# %%
look_then_take = """
import sys
from pathlib import Path
marks = Path(sys.argv[1])
free = [device for device in ("0", "1") if not (marks / device).exists()]
print("looked", flush=True)
input()
(marks / free[0]).touch()
print("takes device", free[0])
"""


def two_at_once(program):
    with tempfile.TemporaryDirectory() as marks:
        command = [sys.executable, "-c", program, marks]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        runners = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]
        for runner in runners:
            runner.stdout.readline()  # "looked"
        return sorted(runner.communicate("go on\n")[0].strip() for runner in runners)


print(two_at_once(look_then_take))

# %% [markdown]
# Both took device 0. A **lock** makes looking and taking one act. The operating system gives the
# lock of a file to one process at a time, and frees it when that process ends, however it ends:

# %%
lock = """
import fcntl, sys
from pathlib import Path
for device in ("0", "1"):
    file = open(Path(sys.argv[1]) / device, "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except BlockingIOError:
        pass  # somebody else has it
print("looked", flush=True)
input()
print("takes device", device)
"""
print(two_at_once(lock))

# %% [markdown]
# Now each has a device of its own. `jobs.run` holds such a lock on every device that it uses, which
# keeps apart all runners of a machine that have the same temporary folder, other people's too.
#
# ## When not to
#
# Scripts on different GPUs still share the disk, the memory and the cores of the host. When two
# take longer than one alone, look at the input pipeline first. Trainings of a few seconds are
# shorter than the start of a process: train them in one ([[06]]).
#
# ## On GPUs
#
# CUDA reads its variable when TensorFlow first asks for GPUs. Set later, it has no effect, and no
# error says so: let a script print `len(tf.config.list_logical_devices("GPU"))`. A job on a GPU
# starts a thread for each core of the host, so four jobs on 16 cores have 64;
# `TF_NUM_INTRAOP_THREADS=4` in front of `mgpu run` gives each job four. With `--per-device 2` two
# small jobs share a GPU, and each has to limit its memory ([[02]]).
#
# ## With a script that uses several GPUs
#
# With `--devices-each 2` a job has two devices, for a script that uses them itself, as in [[07]].
# And a runner that was itself started on one device has only that one to share out. Here a job with
# two devices and a process with one count what they may use:

# %% tags=["nbval-ignore-output"]
count = [sys.executable, "-c", "from mgpu_helpers import jobs; print(len(jobs.allowed()[1]))"]
each = len(allowed[:2])
job = jobs.run([count], devices_each=each, logs=folder / "pair", progress=False)[0]
print("a job with two devices may use", job.tail)
given = subprocess.run([*on(allowed[0]), *count], capture_output=True, text=True)
print("a process that was given one may use", given.stdout)
assert job.tail == str(each) or sys.platform == "darwin"

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# In classic code the session's `ConfigProto` says which GPUs a process sees. In Wonik Jang's
# article "Multi-GPUs" of 2017 ([sources](../docs/sources.md#jang)) one script has the list "0" and
# the other the list "1". [train_graph.py](scripts/train_graph.py) trains the network of that
# article, and takes its list from `--gpu`. Two of them run side by side. Each sees one GPU, whose
# number inside is 0, so both keep the list "0", which the script has unless told otherwise:

# %%
commands = [[sys.executable, "scripts/train_graph.py", f"--output={folder / name}"]
            for name in ("c", "d")]  # fmt: skip
graphs = jobs.run(commands, free=min(2, len(allowed)), logs=folder / "graphs", progress=False)
contents = {(folder / name / "train_graph.json").read_bytes() for name in ("c", "d")}
print([job.status for job in graphs], "different contents:", len(contents))

# %%
script = Path("scripts/train_graph.py").read_text()
print(script[script.index("config =") : script.index("    session.run(start)")])
config = tf.compat.v1.ConfigProto()
config.gpu_options.visible_device_list = "2,0"
print(config.gpu_options)

# %% [markdown]
# Both trained the same, and a `ConfigProto` keeps the order of its list. Three ways to choose:
#
# | | set | order of the list |
# |---|---|---|
# | `CUDA_VISIBLE_DEVICES` | before the process starts | kept |
# | `tf.config.set_visible_devices` | before TensorFlow starts | sorted |
# | `visible_device_list` of a `ConfigProto` | with the first session of the process | kept |
#
# Two sessions of one process with different lists fail ([issue
# 19083](https://github.com/tensorflow/tensorflow/issues/19083)): "TensorFlow device (GPU:0) is
# being mapped to multiple devices". Give each script a process of its own.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** A script was started with `CUDA_VISIBLE_DEVICES` and says that it trains on `/GPU:1`. Write
# `outside(visible, device)`, which gives nvidia-smi's number: `outside("3,0", "/GPU:1")` is 0.

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
# **2.** Write `environment(device)`, the environment for a child that may see that GPU alone, in
# nvidia-smi's numbering. The notebook's own environment must stay as it is. The check starts
# children with it.

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
# - Two processes that were told nothing could use every device. With a few words in front, each of
#   two commands could use one.
# - A training wrote the same bytes alone and beside another one.
# - In a queue of six, jobs that failed, hung and were interrupted left the others alone. The
#   shell's exit status was 0 although a command had failed.
# - On a pretended server, the runner used the GPUs that nobody else used.
# - Two runners that looked before they took chose the same device. With a lock they did not.
#
# ## In practice
#
# Paste the first line with your scripts in it. For two scripts on GPUs that nobody else uses, the
# three lines of shell are enough. `mgpu` alone prints which number is which GPU, and which are in
# use. Next: [[next]].
