# %% [markdown]
# # Give each script its GPU
#
# Several scripts run side by side, each on a device of its own, and whatever goes wrong in one of
# them leaves the others alone.
#
# [[previous]] limited what one process takes of a GPU. With several GPUs it is simpler to give
# each process one, and nothing does that by itself.
#
# **You will learn** to
# - say which GPU a script may see, in three ways, and what number it then has,
# - run scripts side by side, and a queue of them over few devices,
# - end what hangs, and read what failed,
# - choose a free GPU without a race,
# - do the same under Slurm and Kubernetes.
#
# **You need** lessons 00 and 02.

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import tensorflow as tf
from tensorflow.python.eager import context

from mgpu_helpers import charts, jobs, memory
from mgpu_helpers.lessons.checks import lesson_04 as checks

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Two scripts and nothing said
#
# There are two scripts beside this notebook: `scripts/train_a.py` trains a network in a graph and
# a session, `scripts/train_b.py` a wider one with a `tf.function`. Each takes `--width`,
# `--steps`, `--seed` and `--output`, and writes its losses and a digest of its weights. None of
# them names a GPU. This is the middle of the second:

# %%
script = Path("scripts/train_b.py").read_text()
print(script[script.index("@tf.function") : script.index("learned =")])

# %% [markdown]
# What may a script use that is started with no settings? A small one looks, twice:

# %%
look = """
from mgpu_helpers import jobs
kind, allowed = jobs.allowed()
print(kind, *allowed)
"""
for _ in range(2):
    seen = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout
    print("machine ", seen, end="")

# %% [markdown]
# Both may use the same, and all of it: GPUs, or without one the cores of this process. With GPUs,
# the TensorFlow that starts first takes nearly all memory of all of them (lesson 02), and the
# second finds none.
#
# ## Three ways to say which
#
# **In the `ConfigProto`.** The classic form names GPUs by number. The first session of a process
# reads it when it starts:

# %%
config = tf.compat.v1.ConfigProto()
config.gpu_options.visible_device_list = "2,0"
print(config)

# %% [markdown]
# **In `tf.config`.** The modern form takes TensorFlow's own list. Four GPUs that are not there, as
# in lesson 02, show what becomes of it:

# %%
with memory.pretend_gpus(4) as gpus:
    tf.config.set_visible_devices([gpus[2], gpus[0]], "GPU")
    print(context.context().config.gpu_options)

# %% [markdown]
# **In the environment.** `CUDA_VISIBLE_DEVICES` works from outside, for every program that uses
# CUDA. With it the other GPUs are not there at all.
#
# In all three ways the GPUs get new numbers inside, from 0. `ConfigProto` and environment keep the
# order of your list; `tf.config`, as you see above, goes back to its own. `nvidia-smi` keeps its
# numbers. So write the mapping down before you trust one:

# %%
def mapping(visible):
    return {f"/GPU:{inside}": f"nvidia-smi's {number}" for inside, number in enumerate(visible)}


print(mapping([2, 0]))

# %% [markdown]
# That is true only if both count alike. CUDA numbers the fastest GPU 0 unless
# `CUDA_DEVICE_ORDER=PCI_BUS_ID` is set, while `nvidia-smi` goes by the bus. `devices.setup` and
# the runner below set it. `python -m mgpu_helpers` prints the mapping of your machine, card by
# card.
#
# ## One after the other, and side by side
#
# This is what there is to share out here. With one device or one core, all that follows runs in
# turn:

# %%
kind, allowed = jobs.allowed()
print("machine ", kind, *allowed)

# %% [markdown]
# To start a command on one of them, change its environment, and no other's. On Linux a core is
# chosen with `taskset`:

# %%
def start(command, device, **pipes):
    alone = os.environ | {"CUDA_VISIBLE_DEVICES": str(device), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if kind == "core":
        alone["CUDA_VISIBLE_DEVICES"] = "-1"
        if sys.platform == "linux":
            command = ["taskset", "--cpu-list", str(device), *command]
    return subprocess.Popen(command, env=alone, text=True, **pipes)


# %% [markdown]
# A runner in a dozen lines. As long as something waits and a device is free, it starts the next.
# When one ends, its device is free. Try it with two naps of half a second:

# %%
def run(commands, free):
    free, waiting, running = list(free), list(commands), {}
    while waiting or running:
        while waiting and free:
            device = free.pop(0)
            running[start(waiting.pop(0), device)] = device
        for child in [child for child in running if child.poll() is not None]:
            free.append(running.pop(child))
        time.sleep(0.05)


nap = [sys.executable, "-c", "import time; time.sleep(0.5)"]
for free in (allowed[:1], allowed[:2]):
    began = time.perf_counter()
    run([nap, nap], free)
    print(f"timing   {len(free)} at a time: {time.perf_counter() - began:.1f} s")

# %% [markdown]
# `jobs.run` is this runner, and adds a log for each job, time limits, an end for everything when
# you interrupt it, and a lock on each device. First both scripts on one device, then on two:

# %%
def train(output):
    arguments = ["--steps", "20", "--output", str(folder / output)]
    return [[sys.executable, f"scripts/train_{which}.py", *arguments] for which in "ab"]


in_turn = jobs.run(
    train("in_turn"), devices=allowed[:1], logs=folder / "in_turn", progress=False
)
side_by_side = jobs.run(
    train("side_by_side"), devices=allowed[:2], logs=folder / "side_by_side", progress=False
)
print([(job.name, job.status) for job in (*in_turn.jobs, *side_by_side.jobs)])
print(f"timing   in turn {in_turn.wall:.1f} s, side by side {side_by_side.wall:.1f} s")

# %% [markdown]
# And the chart of who ran where and when:

# %% tags=["varies", "cover"]
longest = 1.02 * max(in_turn.wall, side_by_side.wall)
for title, report in {"In turn": in_turn, "Side by side": side_by_side}.items():
    ax = charts.jobs(report)
    ax.set(xlim=(0, longest))
    ax.set_title(title, loc="left")
    plt.show()

# %% [markdown]
# In turn, one device ran one script and then the other. Side by side, each ran one.
#
# ## Proof
#
# Side by side must not change what is learned. Each script wrote the losses of all steps and a
# digest of all weights. The files have to be equal, bit for bit:

# %%
for name in ("train_a.json", "train_b.json"):
    first, second = (folder / where / name for where in ("in_turn", "side_by_side"))
    print(name, "is the same:", first.read_bytes() == second.read_bytes())

# %% [markdown]
# Each script used one device, and in `cores` mode one thread. So it added the same numbers in the
# same order. On a GPU some operations add in an order of their own: call
# `tf.config.experimental.enable_op_determinism()` where that matters.
#
# ## More scripts than devices
#
# Six jobs, two devices. One fails, one hangs, one is interrupted. Each is a small program:

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
queue = jobs.run(
    commands, names=programs, devices=allowed[:2], time_limit=1.5, logs=folder, progress=False
)
for job in queue.jobs:
    print(f"{job.name:12} {job.status:10} {job.returncode}")

# %% [markdown]
# The others went on. A negative number is the signal that ended the process: -15 is SIGTERM, sent
# when the time was up, and -2 is SIGINT, an interrupt. What ignores SIGTERM gets SIGKILL five
# seconds later. The end of a job's output is kept:

# %%
print(queue["fails"].tail)

# %% tags=["varies"]
charts.jobs(queue).set_title("A queue of six", loc="left")
plt.show()

# %% [markdown]
# The queue keeps its order: a job starts as soon as a device is free. The hatched bars did not end
# well.
#
# Interrupt the kernel while `jobs.run` waits, and it ends every job before the cell stops; no
# process is left behind.
#
# ## Which device is free?
#
# On a machine for yourself, all of them. On one that you share, look first: at memory, at use, and
# at other people's processes. `jobs.freest` does, and says so where there is no GPU:

# %%
try:
    print("machine  free:", jobs.freest(1))
except RuntimeError as error:
    print("machine ", error)

# %% [markdown]
# But looking is not taking. Between the look and the moment when your script shows on the device,
# seconds pass, and whoever looks meanwhile sees it free. Here are two runners. Each looks which
# device has no mark, says so, and marks it when it is told to go on, which is when both have
# looked:

# %%
choose = """
import sys
from pathlib import Path
marks = Path(sys.argv[1])
free = [device for device in ("0", "1") if not (marks / device).exists()]
print("looked", flush=True); input()
(marks / free[0]).touch()
print("takes device", free[0])
"""


def two_at_once(program):
    with tempfile.TemporaryDirectory() as marks:
        command, pipes = [sys.executable, "-c", program, marks], {"stdin": -1, "stdout": -1}
        both = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]
        for runner in both:
            runner.stdout.readline()
        return sorted(runner.communicate("go on\n")[0].strip() for runner in both)


print(two_at_once(choose))

# %% [markdown]
# Both took the same. A **lock** makes looking and taking one act. The system gives the lock of a
# file to one process at a time, and frees it when that process ends, however it ends:

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
        pass
print("looked", flush=True); input()
print("takes device", device)
"""
print(two_at_once(lock))

# %% [markdown]
# `jobs.run` holds such a lock on each device that it uses. It keeps all runners of this machine
# apart, yours and other people's. A job inherits the lock, so its device stays taken as long as the
# job runs, even without its runner. No lock stops a script that somebody starts by hand.
#
# ## What a cluster does
#
# Slurm and Kubernetes do the same for many machines: they hand out GPUs, and a program sees only
# its own. Slurm says so in `CUDA_VISIBLE_DEVICES`:

# %%
print(Path("scripts/two_jobs.slurm").read_text())

# %% [markdown]
# `python -m mgpu_helpers run` is `jobs.run` from a terminal; what stands behind `--` goes to every
# script. The runner uses only the devices that it was given. Give it one, here with a core:

# %%
may = "from mgpu_helpers import jobs; print(len(jobs.allowed()[1]), 'device')"
given = start([sys.executable, "-c", may], allowed[0], stdout=subprocess.PIPE)
print(given.communicate()[0])

# %% [markdown]
# Kubernetes gives each pod GPUs of its own, and nothing is left to choose inside:

# %%
print(Path("scripts/two_jobs.yaml").read_text())

# %% [markdown]
# ## Break it
#
# **The variable set too late.** The program hides every GPU, but TensorFlow has looked for them by
# then. Without a GPU there is nothing to hide; so it also pins itself to one core, when
# TensorFlow's threads are there already (Linux only):

# %%
late = """
import os, sys
import tensorflow as tf
tf.ones([]).numpy()
before = len(tf.config.list_logical_devices("GPU"))
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
print("every GPU is still there:", len(tf.config.list_logical_devices("GPU")) == before)

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
threads = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
print("threads that may use other cores:", max(map(len, threads)) > 1)
"""
quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
done = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True, env=quiet)
print(done.stdout)

# %% [markdown]
# No error, no warning, and no effect. The driver reads the variable once, when TensorFlow first
# asks for GPUs. Set it in the shell, in the parent, or before any import. A core is inherited in
# the same way: by what is started afterwards, and TensorFlow's threads were not.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** A script was started with `CUDA_VISIBLE_DEVICES` and says that it trains on `/GPU:1`.
# Write `outside(visible, device)`, which gives nvidia-smi's number: `outside("3,0", "/GPU:1")` is
# 0.

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
# nvidia-smi's numbering. The notebook's own environment must stay as it is. The check starts a
# child with it.

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
# **3.** How long does a queue take? Write `wall(seconds, n)`: jobs of so many seconds start in
# their order on n devices, each as soon as one is free. `wall([2, 2, 3], 2)` is 5.

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
# ## What we saw
#
# - A script started with no settings could use everything.
# - Visible GPUs got new numbers, from 0; `tf.config` did not keep the order of the list.
# - Two trainings side by side, each on its own device, gave the same files as one after the other.
# - In a queue, jobs that failed, hung and were interrupted left the others alone.
# - Two runners that looked before they took chose the same device; with a lock they did not.
# - A setting that came after the start had no effect, and no error said so.
#
# ## In practice
#
# - Two sessions of one process with different lists fail on today's TensorFlow: "TensorFlow device
#   (GPU:0) is being mapped to multiple devices" (tensorflow issue 19083). A process has one
#   numbering of its GPUs. Give each script its own process, or see each GPU and use `tf.device`.
# - Processes on different GPUs still share the disk, the memory and the cores of the host. When
#   two side by side take longer than one, look at the input pipeline first.
# - Locks are for the runners of one machine. Between machines that is the work of Slurm,
#   Kubernetes, or whatever your cluster has.
# - A runner that is killed with SIGKILL cannot end its jobs. They go on and keep the locks of their
#   devices, which they inherited. The next `jobs.run` waits until they have ended.
# - `nvidia-smi -L` prints each GPU's UUID. `CUDA_VISIBLE_DEVICES` takes it instead of a number,
#   and it stays the same when a card is added.
#
# Next: [[next]].
