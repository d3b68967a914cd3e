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
# - give a script its GPU with one word in front of the command,
# - tell which number stands for which GPU,
# - run more scripts than you have GPUs, and see what became of each,
# - choose a free GPU on a shared machine without a race,
# - run one script with many arguments, and read the results as a table.
#
# **You need** [[00]] and [[02]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import matplotlib.pyplot as plt
import tensorflow as tf
from tensorflow.python.eager import context

from mgpu_helpers import charts, jobs
from mgpu_helpers.lessons.checks import lesson_04 as checks
from mgpu_helpers.lessons.pretend import pretend_gpus

# %% [markdown]
# ## The trouble
#
# Left to itself, each TensorFlow takes nearly all the memory of every GPU ([[02]]) and computes on
# the first one ([[00]]). The left half of the drawing is what happens to two scripts. The right
# half is what we want. The cell after it starts two processes that are told nothing, and each
# prints the devices that it may use:
#
# ![Two scripts on a machine with four GPUs. Left, nothing said: both work on GPU 0. Right, a GPU
# for each: a.py works on GPU 0, b.py on GPU 1.](pictures/04_landing.svg)

# %% tags=["nbval-ignore-output"]
look = "from mgpu_helpers import jobs; print('may use', *jobs.allowed())"
for _ in range(2):
    seen = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout
    print(seen, end="")

# %% [markdown]
# Both may use the same devices, and all of them: every GPU, or every core where there is no GPU.
#
# ## Two lines of shell
#
# CUDA reads the variable `CUDA_VISIBLE_DEVICES`, and the program sees only the GPUs that it names.
# Written in front of a command, the variable is set for that command alone. So this is the
# whole remedy, in a terminal:
#
# ```shell
# CUDA_VISIBLE_DEVICES=0 python train.py       > a.log 2>&1 &
# CUDA_VISIBLE_DEVICES=1 python train_graph.py > b.log 2>&1 &
# wait
# ```
#
# `> a.log 2>&1` sends everything that a script prints to a file. `&` starts it in the background,
# and `wait` waits for both.
#
# To try this here, we need the devices of this machine. `jobs.allowed` gave their kind and their
# numbers above. With GPUs these are the numbers that `nvidia-smi` shows. Without a GPU they
# are cores, and the variable cannot help. There `taskset` takes its place: a Linux program that
# lets a command use only the cores that you name. On macOS nothing does that, and scripts share
# all cores. The function `on` gives the words to put in front of a command:

# %% tags=["nbval-ignore-output"]
kind, allowed = jobs.allowed()


def on(device):
    if kind == "GPU":
        return ["env", "CUDA_DEVICE_ORDER=PCI_BUS_ID", f"CUDA_VISIBLE_DEVICES={device}"]
    pinned = ["taskset", "--cpu-list", str(device)] if sys.platform == "linux" else []
    return ["env", "CUDA_VISIBLE_DEVICES=-1", *pinned]


print(*on(allowed[0]))

# %% [markdown]
# `env` sets variables for the command behind it. On cores the value `-1` hides every GPU, if there
# is one. Now the two lines run. Instead of a training, each runs the program from above. What may
# it use now?

# %% tags=["nbval-ignore-output"]
folder = Path(tempfile.mkdtemp())
first = shlex.join([*on(allowed[0]), sys.executable, "-c", look])
second = shlex.join([*on(allowed[-1]), sys.executable, "-c", look])
recipe = f"""
{first} > a.log 2>&1 &
{second} > b.log 2>&1 &
wait
"""
subprocess.run(recipe, shell=True, cwd=folder)
for log, device in {"a.log": allowed[0], "b.log": allowed[-1]}.items():
    said = (folder / log).read_text().strip()
    print(log, "says:", said)
    assert said.endswith(f" [{device}]") or sys.platform == "darwin"

# %% [markdown]
# Each may use one device. For two scripts on two GPUs that nobody else uses, you need no more than
# this. But the recipe leaves four questions open:
#
# - Which GPU is number 0?
# - What starts a third script when a GPU is free again?
# - Did every script end well?
# - Does somebody else use these GPUs?
#
# The third is worse than it looks. Here is a recipe whose first command fails:

# %%
shell = subprocess.run("false & true & wait", shell=True)
print("exit status:", shell.returncode)

# %% [markdown]
# The exit status is 0, the sign that all went well, although the command `false` always fails.
# A bare `wait` does not pass a failure on. `wait PID` does, for the one process whose number you
# give it, and the shell keeps that number in `$!` when it has started the process.
#
# ## Which number is which GPU
#
# The variable may name several GPUs. Inside the process they get new numbers, from 0, in the order
# of the list:
#
# ![Four GPUs, numbered 0 to 3 outside. With CUDA_VISIBLE_DEVICES=2,0 a process sees two: GPU 2 as
# /GPU:0, and GPU 0 as /GPU:1.](pictures/04_numbers.svg)
#
# GPU 2 has become `/GPU:0`. In a script and its logs you read the inner number, and on the screen
# of `nvidia-smi` the outer one.
#
# The drawing holds only if both count the GPUs alike. `nvidia-smi` counts them by their place on
# the bus. CUDA begins with the fastest, unless `CUDA_DEVICE_ORDER=PCI_BUS_ID` is set. That is why
# `on` sets it; `devices.setup` and the runner below do so too. `python -m mgpu_helpers` prints the
# mapping of your machine, GPU by GPU.
#
# A script can also choose for itself, with `tf.config.set_visible_devices`, before TensorFlow
# starts. Look at the order that TensorFlow keeps. The four GPUs are pretended, as in [[02]]:

# %%
with pretend_gpus(4) as gpus:
    tf.config.set_visible_devices([gpus[2], gpus[0]], "GPU")
    print("asked for 2,0:", context.context().config.gpu_options.visible_device_list)

# %% [markdown]
# `tf.config` has sorted the list. Here `/GPU:0` is GPU 0, and with the variable it was GPU 2.
#
# ## A queue
#
# A runner answers the second question, and it is a dozen lines. As long as something waits and a
# device is free, it starts the next command. When one ends, its device is free again. Below the
# runner are two naps of half a second to try it with, first on one device and then on two:

# %% tags=["nbval-ignore-output"]
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


nap = [sys.executable, "-c", "import time; time.sleep(0.5)"]
for free in (allowed[:1], allowed[:2]):
    began = time.perf_counter()
    run([nap, nap], free)
    print(f"devices {free}: {time.perf_counter() - began:.1f} s")

# %% [markdown]
# On one device the naps follow each other and take more than a second. On two they overlap.
#
# `jobs.run` is this runner, and adds to it a log and an exit status for each job, time limits, and
# a lock on each device. It gets two trainings that lie beside this notebook:
#
# - [train.py](scripts/train.py) is plain Keras and names no device.
# - [train_graph.py](scripts/train_graph.py) trains another network, in a graph and a session.
#
# Each writes its losses to a file, and a hash of its weights. They run on one device and then on
# two. The charts show what ran where and when:

# %%
def both(way, numbers):
    options = ["--output", str(folder / way)]
    scripts = ["scripts/train.py", "scripts/train_graph.py"]
    commands = [[sys.executable, script, *options] for script in scripts]
    return jobs.run(commands, devices=numbers, logs=folder / "logs" / way, progress=False)


in_turn = both("in_turn", allowed[:1])
side_by_side = both("side_by_side", allowed[:2])
print([(job.name, job.status) for job in (*in_turn, *side_by_side)])

# %% tags=["varies", "cover", "nbval-ignore-output"]
longest = 1.02 * max(in_turn.wall, side_by_side.wall)
for title, report in {"In turn": in_turn, "Side by side": side_by_side}.items():
    ax = charts.jobs(report)
    ax.set(xlim=(0, longest))
    ax.set_title(title, loc="left")
    plt.show()

# %% [markdown]
# In turn, one device ran one script and then the other. Side by side, each of two devices ran one,
# and the longer one set the time. The import of TensorFlow takes most of each bar.
#
# ## Proof: the same trainings
#
# Where a script runs, and beside what, must not change what it learns. Each has now run in turn
# and side by side. Its two files have to be equal, byte for byte:

# %%
for name in ("train.json", "train_graph.json"):
    files = [folder / way / name for way in ("in_turn", "side_by_side")]
    contents = {file.read_bytes() for file in files}
    print(f"{name}: written by {len(files)} runs, different contents: {len(contents)}")

# %% [markdown]
# Both runs wrote the same: all losses and all weights are equal to the last bit. Two things make
# this possible. A script that is pinned to one core computes with one thread, so it always adds in
# the same order. For GPUs both scripts call `tf.config.experimental.enable_op_determinism()`,
# because some operations there otherwise add in an order that changes. Two GPUs of different kinds
# may still differ in the last digits.
#
# ## What became of each
#
# The third question was whether every script ended well. Here are six jobs for two devices. One
# fails, one hangs, and one is interrupted:

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
    commands, names=programs, devices=allowed[:2], time_limit=2, logs=folder / "six", progress=False
)
for job in queue.jobs:
    print(f"{job.name:12} {job.status:10} {job.returncode:4}  {job.tail}")

# %% [markdown]
# The other jobs went on. The last column is what the job printed last, so you see why `fails`
# failed. A negative exit status is the signal that ended the process:
#
# - -15 is SIGTERM, which the runner sends when the time is up. A job that ignores it gets SIGKILL
#   five seconds later.
# - -2 is SIGINT, an interrupt.
#
# The chart shows when each of them ran:

# %% tags=["varies", "nbval-ignore-output"]
charts.jobs(queue).set_title("A queue of six", loc="left")
plt.show()

# %% [markdown]
# The hatched jobs did not end well. If you interrupt the kernel while `jobs.run` waits, it ends
# every job before the cell stops.
#
# ## Which GPU is free?
#
# The last question is about other people. On a machine that you share, look first: at the memory,
# at the load, and at the processes of others. `jobs.freest` does this for GPUs, and says so where
# there is none:

# %% tags=["nbval-ignore-output"]
try:
    print("the freest GPU is", *jobs.freest(1))
except RuntimeError as error:
    print(error)

# %% [markdown]
# But to look is not to take. Seconds pass between the look and the moment when your script shows
# on the GPU. Whoever looks meanwhile sees it free, and two runners take the same GPU:
#
# ![Two runners over time. A looks and sees that 0 is free; B looks before A has taken it, and sees
# the same; then A takes 0, and B takes 0.](pictures/04_race.svg)
#
# Here is such a runner. It picks the first device without a mark, reports that it has
# looked, and waits for a line of input. Then it marks the device. Two of them start at once, and we
# tell them to go on when both have looked:

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
# Now each has a device of its own. `jobs.run` holds such a lock on every device that it uses. The
# locks keep all runners of this machine apart, yours and other people's, as long as they have the
# same temporary folder. A job inherits the lock: its device stays taken as long as the job runs,
# even if the runner is killed.
#
# No lock stops a script that somebody starts by hand. So, before each job, the runner also asks the
# driver. It leaves alone a GPU on which other people's processes compute, or of which less than a
# tenth of the memory is free. One line names it and says why, and it gets jobs when it is free
# again. Three options change that, here as arguments and in a terminal with `--`:
#
# - `devices=[0, 1]` names the devices, and these are used whoever else is on them.
# - `busy=True` uses all, in use or not.
# - `free=2` uses two at a time, the freest first.
#
# In a container the driver often does not tell of other people's processes. Then only the memory
# counts.
#
# ## One script, many arguments
#
# Often the jobs are one script with different arguments, which is called a sweep. The script below
# throws random points into a square. The share that falls into the quarter circle, times 4, is
# about pi. It prints its result as JSON. In a terminal, `python -m mgpu_helpers run` is `jobs.run`,
# and `--grid` makes a job of every combination. Look at the order of the starts and the ends:

# %% tags=["nbval-ignore-output"]
(folder / "darts.py").write_text("""
import argparse, json, random
parser = argparse.ArgumentParser()
parser.add_argument("--points", type=int)
parser.add_argument("--seed", type=int)
options = parser.parse_args()
draw = random.Random(options.seed).random
inside = sum(draw() ** 2 + draw() ** 2 < 1 for _ in range(options.points))
print(json.dumps({"pi": 4 * inside / options.points}))
""")


numbers = ",".join(map(str, allowed[:2]))


def mgpu_run(*words):
    command = [sys.executable, "-m", "mgpu_helpers", "run", *words, "--devices", numbers]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stderr


mgpu_run("darts.py", "--grid", "points=2000000", "seed=1,2")

# %% [markdown]
# Each job is named after its arguments. Where there are two devices, both jobs started before one
# was done. Now the sweep grows: a second number of points gives four combinations. `--skip-done`
# leaves out what is done already:

# %% tags=["nbval-ignore-output"]
mgpu_run("darts.py", "--grid", "points=1000000,2000000", "seed=1,2", "--skip-done")

# %% [markdown]
# Two of the four jobs were skipped. The runner knows them from `logs/jobs.jsonl`, to which it adds
# a line of JSON for each job. What a job prints as a JSON object is its result: a column of the
# table above, and of that file, with `result_` in front. A job that failed has no result, so `get`
# puts a dash. Where pandas is installed, `pandas.read_json(path, lines=True)` reads the file, too:

# %%
def read(path):
    return [json.loads(line) for line in (folder / path).read_text().splitlines()]


# %%
def table(rows, *columns):
    print(*(f"{column:22}" for column in columns))
    for row in sorted(rows, key=lambda row: row["name"]):
        print(*(f"{row.get(column, '-')!s:22}" for column in columns))


table(read("logs/jobs.jsonl"), "name", "status", "result_pi")

# %% [markdown]
# Four jobs have estimated pi, two of them in the first run. A job that failed, or that you
# interrupted, is not done: the same command runs it again. The runner compares commands and working
# folders. It does not notice that you have edited the script. Instead of `--grid`, `--each FILE`
# takes a file that has the arguments of a job on each line.
#
# A job can also have several devices, for a script that uses them itself. And a runner that was
# itself given one device has only that one to share out. The cell starts a job with two devices
# and a process with one, and each counts what it may use:

# %% tags=["nbval-ignore-output"]
count = [sys.executable, "-c", "from mgpu_helpers import jobs; print(len(jobs.allowed()[1]))"]
each = len(allowed[:2])
job = jobs.run([count], devices_each=each, logs=folder / "pair", progress=False)[0]
print("a job with two devices may use", job.tail)
given = subprocess.run([*on(allowed[0]), *count], capture_output=True, text=True)
print("a process that was given one may use", given.stdout)

# %% [markdown]
# The first may use two, or one on a machine with a single device. In a terminal this is
# `--devices-each 2`. The second may use one (on macOS without a GPU: all cores).
#
# ## The same in a graph
#
# In classic code the session's `ConfigProto` says which GPUs a process sees. In Wonik Jang's
# article "Multi-GPUs" of 2017 ([sources](../docs/sources.md#jang)) one script has the list "0" and
# the other the list "1". `train_graph.py` takes its list from `--gpu`. The cell prints these lines
# of it, and then a `ConfigProto` with a list of two:

# %%
script = Path("scripts/train_graph.py").read_text()
print(script[script.index("config =") : script.index("    session.run(start)")])
config = tf.compat.v1.ConfigProto()
config.gpu_options.visible_device_list = "2,0"
print(config.gpu_options)

# %% [markdown]
# The list has kept its order. `--gpu` is "0" unless you say otherwise. A script that was started
# with `CUDA_VISIBLE_DEVICES` sees one GPU, and inside its number is 0. Without the variable you
# would start the scripts with `--gpu 0` and `--gpu 1`. These are the three ways to choose:
#
# | | set | order of the list |
# |---|---|---|
# | `CUDA_VISIBLE_DEVICES` | before the process starts | kept |
# | `tf.config.set_visible_devices` | before TensorFlow starts | sorted |
# | `visible_device_list` of a `ConfigProto` | with the first session of the process | kept |
#
# ## Slurm and Kubernetes
#
# A cluster hands out GPUs in the same way. Slurm gives a job its GPUs and names them in
# `CUDA_VISIBLE_DEVICES`. The file [two_jobs.slurm](scripts/two_jobs.slurm) asks for two GPUs and
# starts the runner in one line, `python -m mgpu_helpers run train.py train_graph.py`. Kubernetes
# gives each pod GPUs of its own. [two_jobs.yaml](scripts/two_jobs.yaml) asks for two pods with one
# GPU each; nothing is left to choose inside, and no runner is needed.
#
# Neither file has been submitted to a cluster: take them as a starting point. What this lesson has
# run is what the first one relies on: a process that was given one device finds that one alone.
#
# ## With your own model
#
# Here is a Keras script with batch normalization. It takes a learning rate and prints its accuracy
# on unseen digits as JSON. It knows nothing of GPUs or of the runner. The sweep compares two
# learning rates, each in a process of its own on the next device that is free:

# %% tags=["nbval-ignore-output"]
(folder / "own.py").write_text("""
import argparse, json
import tensorflow as tf
from mgpu_helpers.lessons import digits
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
rate = parser.parse_args().lr
tf.keras.utils.set_random_seed(0)
layers = tf.keras.layers
model = tf.keras.Sequential([layers.Flatten(), layers.Dense(32, use_bias=False),
    layers.BatchNormalization(momentum=0.9), layers.ReLU(), layers.Dense(10)])
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(tf.keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
model.fit(*digits.load(), epochs=3, verbose=0)
_, accuracy = model.evaluate(*digits.load(test=True), verbose=0)
print(json.dumps({"accuracy": round(accuracy, 3)}))
""")
mgpu_run("own.py", "--grid", "lr=0.1,0.001", "--logs", "own")
table(read("own/jobs.jsonl"), "name", "status", "seconds", "result_accuracy")

# %%
rows = read("own/jobs.jsonl")
done = [row for row in rows if row["status"] == "done"]
best = max(done, key=lambda row: row["result_accuracy"])
print(f"{len(done)} results, {len(rows) - len(done)} failed, the best is {best['name']}")

# %% [markdown]
# The larger rate wins by far. What to watch for with a script of your own:
#
# - Give the script a seed, or two runs of the same command differ.
# - Batch normalization keeps moving averages, and only evaluation uses them. These three epochs are
#   135 steps. With Keras's default momentum of 0.99 the averages would still hold a quarter of
#   their starting values (0.99 to the power of 135 is 0.26). That is why the script sets 0.9.
# - Print the result at the end, on a line of its own. The last line that is a JSON object counts.
# - If a script writes a file, put the arguments into its name. Jobs that run at the same time must
#   not write to the same place.
#
# ## Break it
#
# **The variable set too late.** A program sets `CUDA_VISIBLE_DEVICES` in its own code, when
# TensorFlow has already looked for GPUs. In this notebook it has looked, and the cell makes that
# mistake. Without a GPU there is nothing to hide. So the cell makes the same mistake with cores: it
# pins itself to one when TensorFlow's threads already run. At the end it undoes both:

# %% tags=["nbval-ignore-output"]
before = tf.config.list_logical_devices("GPU")
with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="-1"):
    after = tf.config.list_logical_devices("GPU")
print("GPUs:", len(before), "before,", len(after), "after")
assert len(before) == len(after)
def cores_of_threads():
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread may have ended
            if (task / "comm").read_text().startswith("tf_"):
                found[task.name] = os.sched_getaffinity(int(task.name))
    return found


if hasattr(os, "sched_setaffinity"):  # Linux
    cores, early = os.sched_getaffinity(0), cores_of_threads()
    os.sched_setaffinity(0, {min(cores)})
    late = cores_of_threads()
    os.sched_setaffinity(0, cores)
    kept = [late[thread] == early[thread] for thread in early.keys() & late.keys()]
    print(f"{sum(kept)} of TensorFlow's {len(kept)} threads may use the cores that they had")
    assert all(kept)

# %% [markdown]
# There is no error, no warning, and no effect. With GPUs, the first line says that every one of
# them is still there; without GPUs it proves nothing. The second line shows the same mistake on
# Linux: only the thread that asked was pinned. CUDA reads the variable once, when TensorFlow first
# asks for GPUs. Threads inherit their cores when they start. So set both from outside, before
# Python starts. The check: let the script print `len(tf.config.list_logical_devices("GPU"))` at its
# start, and read it in the log.
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
# **3.** How long does a queue take? Write `wall(seconds, n)`, where `seconds` is the list of how
# long each job takes. The jobs start in their order on n devices, each as soon as a device is free.
# `wall([2, 2, 3], 2)` is 5.

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
# - Two processes that were told nothing could both use every device.
# - With a few words in front, each of two commands could use one device. The shell reported success
#   although a command had failed.
# - Visible GPUs get new numbers, from 0. `tf.config` sorted the list; the `ConfigProto` kept it.
# - Each of two trainings ran in turn and side by side, and wrote the same bytes both times.
# - In a queue of six, jobs that failed, hung and were interrupted left the others alone.
# - Two runners that looked before they took chose the same device. With a lock they did not.
# - A sweep of two jobs grew to four, and only the new ones ran.
# - A setting that came after TensorFlow's start had no effect, and no error said so.
#
# ## In practice
#
# Use this when each training fits on one GPU and you have several trainings. It costs some seconds
# of start for each script, and the memory of a Python process with TensorFlow. For two scripts use
# the shell; for a queue, a sweep or a shared machine use the runner.
#
# - Processes on different GPUs still share the disk, the memory and the cores of the host. When two
#   side by side take longer than one alone, look at the input pipeline first.
# - A job on a core computes with one thread. A job on a GPU starts a pool with a thread for each
#   core of the host, so four jobs on 16 cores have 64. `TF_NUM_INTRAOP_THREADS=4` in front of the
#   runner gives each job four.
# - A process has one numbering of its GPUs. Two sessions of one process with different lists fail
#   on today's TensorFlow: "TensorFlow device (GPU:0) is being mapped to multiple devices"
#   ([issue 19083](https://github.com/tensorflow/tensorflow/issues/19083)). Give each script a
#   process of its own, or let the process see all GPUs and use `tf.device`.
# - The locks are for the runners of one machine. Between machines Slurm or Kubernetes does this
#   work.
# - A runner that is killed with SIGKILL cannot end its jobs. They go on and keep their locks, and
#   the next `jobs.run` waits for those devices.
# - `nvidia-smi -L` prints each GPU's UUID. `CUDA_VISIBLE_DEVICES` takes it instead of a number, and
#   it stays the same when a GPU is added.
#
# Next: [[next]].
