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
# - start many scripts with one line, or by hand, and see what became of each,
# - tell which number stands for which GPU,
# - leave other people's GPUs alone on a shared server.
#
# **You need** [[00]].

# %%
import os

from mgpu_helpers import devices, jobs

if len(jobs.allowed()[1]) < 2:  # where there is only one GPU, cores stand in
    os.environ["MGPU_MODE"] = "cores"
plan = devices.setup(2, exact=True)
plan

# %%
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import tensorflow as tf
from tensorflow.python.eager import context

from mgpu_helpers import charts
from mgpu_helpers.lessons.checks import lesson_04 as checks
from mgpu_helpers.lessons.one_device import on
from mgpu_helpers.lessons.pretend import pretend_gpus, pretend_server

# %% [markdown]
# ## The lines to paste
#
# [train.py](scripts/train.py) is a plain Keras script, which names no device. In a terminal, this
# line trains with it twice, each time on a GPU of its own:
#
# ```shell
# mgpu run "scripts/train.py --width 16" "scripts/train.py --width 32"
# ```
#
# Scripts for which no GPU is free wait in a queue. What a script prints goes to a log. In Python
# `jobs.run` does the same; `devices` names the ones that it may use. Without a GPU, and in this
# lesson also with only one, cores of the processor stand in. Here a narrow and a wide network train
# on two devices, and then on the first of the two alone:

# %%
folder = Path(tempfile.mkdtemp())
_, allowed = jobs.allowed()  # the numbers of the GPUs, or cores, that this process may use
names, widths = ["narrow", "wide"], [16, 32]


def train(way, devices=None):
    commands = [
        [sys.executable, "scripts/train.py", f"--width={width}", f"--output={folder / way / name}",
         "--epochs=1"]
        for name, width in zip(names, widths)
    ]  # fmt: skip
    return jobs.run(commands, names=names, devices=devices, logs=folder / way, progress=False)


# %%
two = train("two")
one = train("one", two[0].devices)
print([(job.name, job.status) for job in (*one, *two)])
assert one.ok and two.ok, [job.tail for job in (*one, *two)]

# %% tags=["varies", "cover", "nbval-ignore-output"]
shape = {"figsize": (8, 4), "height_ratios": [3, 5]}
_, axes = plt.subplots(2, sharex=True, layout="constrained", **shape)
for ax, report in zip(axes, (one, two)):
    charts.jobs(report, ax)
    used = sorted({number for job in report for number in job.devices})
    ax.set_title(f"devices {used}: {report.wall:.1f} s in all", loc="left")
    ax.label_outer()
ax.set_xlim(0, 1.02 * max(one.wall, two.wall))
plt.show()

# %% [markdown]
# Each bar is a script from start to end, with the start of Python and TensorFlow. On one device the
# second script waits for the first. On two devices they run side by side.
#
# | `mgpu run`, `jobs.run` | |
# |---|---|
# | Use them when | each training fits on one GPU, and you have several |
# | They cost | the start of Python and TensorFlow for each script, in seconds and in memory |
# | Instead | [[06]] for small models in one process; [[07]] for one training on all GPUs |
#
# ## How it works
#
# Left to itself, each TensorFlow process takes nearly all the memory of every GPU ([[02]]) and
# computes on the first one. So two scripts land as in the left half of the drawing:
#
# ![Left, no setting: a.py computes on GPU 0 and takes the memory of all four, and b.py finds none.
# Right: a.py works on GPU 0, b.py on GPU 1.](pictures/04_landing.svg)
#
# So it is with cores. Here two processes without any setting print what they may use:

# %% tags=["nbval-ignore-output"]
look = folder / "look.py"
look.write_text("from mgpu_helpers import jobs; print('may use', *jobs.allowed())")
for _ in range(2):
    seen = subprocess.run([sys.executable, look], capture_output=True, text=True).stdout
    print(seen, end="")

# %% [markdown]
# Both processes see every device. CUDA, through which TensorFlow uses GPUs, shows a program
# only the GPUs that the variable `CUDA_VISIBLE_DEVICES` names. Written in front of a command, a
# variable is set for that command alone. So this recipe, in a terminal, gives two scripts a GPU
# each:
#
# ```shell
# export CUDA_DEVICE_ORDER=PCI_BUS_ID
# CUDA_VISIBLE_DEVICES=0 python a.py > a.log 2>&1 & a=$!
# CUDA_VISIBLE_DEVICES=1 python b.py > b.log 2>&1 & b=$!
# wait $a; echo "a: $?"; wait $b; echo "b: $?"
# ```
#
# The first line makes CUDA number the GPUs as `nvidia-smi` does; without it, the fastest GPU comes
# first. `> a.log 2>&1` sends what a script prints to a file. `&` starts the script in the
# background, and `$!` is the number of its process. `wait $a` waits until that process ends, and
# `$?` is then its exit status, which is 0 for success.
#
# On cores, `taskset` takes the place of the variable. `on(device)` returns the words in front of
# a command that limit it to this device. With them, the recipe runs look.py twice:

# %% tags=["nbval-ignore-output"]
a, b = (" ".join(on(device)) for device in (allowed[0], allowed[-1]))
recipe = f"""
{a} "{sys.executable}" look.py > a.log 2>&1 & a=$!
{b} "{sys.executable}" look.py > b.log 2>&1 & b=$!
wait $a; echo "a: $?"; wait $b; echo "b: $?"
"""
shell = subprocess.run(recipe, shell=True, cwd=folder, capture_output=True, text=True)
print(shell.stdout + f"in front of a: {a}")
for log, device in {"a.log": allowed[0], "b.log": allowed[-1]}.items():
    said = (folder / log).read_text().strip()
    print(log, "says:", said)
    assert said.endswith(f" [{device}]") or sys.platform == "darwin"

# %% [markdown]
# Now each process sees one device. Of the words in front, `env` sets variables for the command
# behind it; on cores, `-1` hides every GPU.
#
# ### Which number is which GPU
#
# `CUDA_VISIBLE_DEVICES` may name several GPUs. Inside the process they get new numbers, from 0, in
# the order of the list:
#
# ![Four GPUs, numbered 0 to 3 outside. With CUDA_VISIBLE_DEVICES=2,0 a process sees two: GPU 2 as
# /GPU:0, and GPU 0 as /GPU:1.](pictures/04_numbers.svg)
#
# A script and its logs speak of the inner number, `nvidia-smi` of the outer one. CUDA reads the
# variable when TensorFlow first asks for GPUs. Set later, the variable has no effect, and no error
# says so.
#
# ## A queue
#
# The function below starts a waiting command on each free device, and frees the device when the
# command has ended. Two naps show it:

# %% tags=["nbval-ignore-output"]
def run(commands, numbers):
    free, waiting, running = list(numbers), list(commands), {}
    while waiting or running:
        while waiting and free:
            device = free.pop(0)
            child = subprocess.Popen([*on(device), *waiting.pop(0)])
            running[child] = device
        for child in list(running):
            if child.poll() is not None:  # it has ended
                free.append(running.pop(child))
        time.sleep(0.05)


nap = [sys.executable, "-c", "import time; time.sleep(0.3)"]
for numbers in (allowed[:1], allowed[:2]):
    began = time.perf_counter()
    run([nap, nap], numbers)
    print(f"devices {numbers}: {time.perf_counter() - began:.1f} s")

# %% [markdown]
# On one device the naps follow each other, and on two they overlap. A program with such a queue is
# a **runner**, as `mgpu run` is.
#
# ## Proof
#
# Each network trained alone and beside the other, and must have learnt the same. Each time the
# script wrote the losses and a hash of the weights to a file. A set counts equal contents once:

# %%
for name in names:
    files = [folder / way / name / "train.json" for way in ("one", "two")]
    contents = {file.read_bytes() for file in files}
    print(f"{name:6} files: {len(files)}, different contents: {len(contents)}")

# %% [markdown]
# The files are equal, byte for byte. On one core a script computes with one thread, so its sums are
# added in the same order every time. For GPUs `train.py` fixes the order (below).
#
# ## Break it
#
# **A script fails, and the shell does not say so.** The command `false` always fails. Here it runs
# beside `true`, first with a plain `wait` for both, and then with the last line of the recipe:

# %%
for end in ("wait; echo both: $?", "wait $a; echo a: $?; wait $b; echo b: $?"):
    shell = subprocess.run(f"false & a=$!; true & b=$!; {end}", shell=True, capture_output=True)
    print(f"{end:42}", *shell.stdout.decode().splitlines(), sep="  ")

# %% [markdown]
# After a plain `wait` the exit status is 0, although a command has failed.
#
# `jobs.run` reports each failure. Of six jobs on two devices (`free`), one fails, one hangs, and
# one is killed:

# %%
programs = {
    "short": "import time; time.sleep(0.3); print('ok')",
    "fails": "import time; time.sleep(0.4); raise SystemExit('no such file: digits.npz')",
    "hangs": "import time; time.sleep(600)",
    "killed": "import os, signal, time; time.sleep(0.4); os.kill(os.getpid(), signal.SIGKILL)",
    "long": "import time; time.sleep(0.6)",
    "last": "print('ok')",
}
commands = [[sys.executable, "-c", program] for program in programs.values()]
queue = jobs.run(commands, names=programs, free=min(2, len(allowed)), time_limit=1.5,
                 logs=folder / "six", progress=False)  # fmt: skip
for job in queue:
    print(f"{job.name:12} {job.status:10} {job.returncode:4}  {job.tail}")

# %% tags=["varies", "nbval-ignore-output"]
charts.jobs(queue).set_title("A queue of six", loc="left")
plt.show()

# %% [markdown]
# The hatched jobs did not end well, and the others went on. The last column is what a job printed
# last: it says why `fails` failed. Python gives the signal that ended a process as a negative exit
# status: -15 is SIGTERM, which the runner sends when the time is up, and -9 is SIGKILL, sent here
# by the job itself, and by Linux when the host has no memory left. `mgpu run` ends with exit status
# 1 if a job has failed.
#
# ## On a shared server
#
# Before each job `jobs.run` asks the driver who uses the GPUs. It leaves alone each GPU on which
# others compute, or of which less than a tenth of the memory is free. On this pretended
# server with four GPUs of 80 GiB, another user holds 79 GiB of GPU 0 and 4 GiB of GPU 1:

# %% tags=["nbval-ignore-output"]
tell = [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"]
with pretend_server(used={0: 79, 1: 4}):
    shared = jobs.run([tell, tell], names=["a", "b"], logs=folder / "shared")
assert [job.tail for job in shared] == ["2", "3"]  # what each printed

# %% [markdown]
# The runner says which GPUs it leaves alone, and why. The jobs got the two others. If all were in
# use, the jobs would wait; `--busy` or `--devices 0,1` overrules that.
#
# The driver lists a script only seconds after its start. Until then a second runner could take the
# same GPU. A **lock** prevents it: the operating system gives the lock of a file to one process at
# a time, and frees it when that process ends. `jobs.run` holds one for each device that it uses:
#
# ![Over time: without a lock A sees that 0 is free, B looks before A has taken it and sees the
# same, and both take 0. With a lock B finds 0 locked, and takes 1.](pictures/04_race.svg)
#
# The locks are files in `/tmp/mgpu-jobs`. Other users' `mgpu run` looks there too, unless their
# `TMPDIR` differs.
#
# ## When not to
#
# Where an input pipeline already keeps all cores of the host busy, a second script slows both down.
# Where the host's memory is too small for several TensorFlows, see [[06]].
#
# ## On GPUs
#
# A job on a GPU has a thread for every core of the host; `TF_NUM_INTRAOP_THREADS=4` in front of
# `mgpu run` gives each job four. On a GPU some operations add in a changing order; `train.py` calls
# `tf.config.experimental.enable_op_determinism()`, which fixes it.
#
# With `--devices-each 2` each job gets two GPUs, for a script that uses both, as in [[07]].
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** A script was started with `CUDA_VISIBLE_DEVICES` and says that it trains on `/GPU:1`. Write
# `outside(visible, device)`, which gives nvidia-smi's number, where CUDA_DEVICE_ORDER is
# PCI_BUS_ID: `outside("3,0", "/GPU:1")` is 0.

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
# **2.** Write `environment(device)`, which returns the environment for a child process that may
# see GPU `device` alone, in nvidia-smi's numbering. The notebook's own environment must stay as it
# is.

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
# - Two processes without any setting could use every device; with a few words in front, one each.
# - Two scripts wrote the same bytes one after the other and side by side.
# - After a plain `wait` the shell's exit status was 0 although a command had failed.
# - In a queue of six, the runner named the jobs that failed, and the others went on.
# - On a pretended server the runner used the GPUs that nobody else used.
#
# ## In practice
#
# Start your scripts with `mgpu run`. For two scripts on GPUs that nobody else uses, the recipe is
# enough. `mgpu` alone prints which number is which GPU, and which are in use. Next: [[next]].

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# In classic code the session's `ConfigProto` lists the GPUs that a process may use. In Wonik Jang's
# article "Multi-GPUs" of 2017 ([sources](../docs/sources.md#jang)) one script has the list "0" and
# the other the list "1". [train_graph.py](scripts/train_graph.py) trains that article's network.
# Below are its lines for the list, and a run by our runner. The list is "0" by default: on GPUs
# each job sees one, which has number 0 inside.

# %%
script = Path("scripts/train_graph.py").read_text()
print(script[script.index("config =") : script.index("    session.run(start)")])
command = [sys.executable, "scripts/train_graph.py", f"--output={folder / 'c'}"]
(graph,) = jobs.run([command], logs=folder / "graph", progress=False)
print(graph.status)

# %% [markdown]
# In one process all sessions need the same list: a second list fails with "TensorFlow device
# (GPU:0) is being mapped to multiple devices" ([issue
# 19083](https://github.com/tensorflow/tensorflow/issues/19083)).
#
# Today `tf.config` takes the place of this list. We ask for GPUs 2 and 0 of four pretended ones:

# %%
with pretend_gpus(4) as gpus:
    tf.config.set_visible_devices([gpus[2], gpus[0]], "GPU")
    print("asked for 2,0:", context.context().config.gpu_options.visible_device_list)

# %% [markdown]
# `tf.config` has sorted the list, so `/GPU:0` is GPU 0. With `CUDA_VISIBLE_DEVICES=2,0` it is GPU
# 2, and also with "2,0" in a `ConfigProto`: both keep the order.
