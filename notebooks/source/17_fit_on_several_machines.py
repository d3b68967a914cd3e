# %% [markdown]
# # Fit on several machines
#
# Your training fills all GPUs of a machine, and there is a second machine. TensorFlow can train on
# both. But one wrong character in the configuration can make every process wait for an hour without
# a word. When a machine fails in the night, nothing starts the training again.
#
# **In this lesson** two and three workers train a network to the weights that one process gets, and
# a training that is killed ends with the same bits as if nothing had happened.
#
# **You will learn** to
# - start the workers of a cluster, and find out why they wait,
# - prove that several workers train what one trains, and that each example is read once,
# - count what crosses between machines, and predict a step over a slow link,
# - restart from a checkpoint after a worker was killed or preempted.
#
# **You need** [[04]], [[09]], [[07]] and [[16]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import cluster, scaling
from mgpu_helpers.charts.base import HOST, axes, colour
from mgpu_helpers.cluster.addresses import free_ports
from mgpu_helpers.lessons.checks import lesson_17 as checks

# %% [markdown]
# ## The trouble
#
# Two machines train one network. One process runs on each, a **worker**, and drives all GPUs of its
# machine. In each step the workers average their gradients, as the towers of [[09]] do. TensorFlow
# has this as `tf.distribute.MultiWorkerMirroredStrategy`. Each worker reads the environment
# variable `TF_CONFIG`, which lists the addresses of all workers and says which of them it is:
#
# ![Machine a with worker 0 and machine b with worker 1, each with GPU 0 and GPU 1; they exchange
# gradients. TF_CONFIG lists a:20000 and b:20000 for both, and says to each which of them it
# is.](pictures/17_two_machines.svg)

# %%
def tf_config(index, hosts):
    return json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})


print(tf_config(1, ["a:20000", "b:20000"]))

# %% [markdown]
# You do not need two machines to learn this. Two processes on one machine, each with a port of its
# own, speak to each other as two machines do, over the loopback interface. In this lesson each
# worker computes on one core, even where there are GPUs, because two workers cannot share a GPU.
#
# First we do everything by hand. The program below is our worker. Each line that it reads is a
# piece of code, as JSON, and it runs that code. So two processes, started once, serve for many
# experiments. What a worker prints goes to its log. `signal.alarm` ends it where a piece takes
# longer than five minutes:

# %%
folder = Path(tempfile.mkdtemp())
program = """
import gc, json, signal, sys
gc.disable()  # to free an old iterator of tf.data can take a minute, and the others would wait
import tensorflow as tf
for line in sys.stdin:
    signal.alarm(300)
    try:
        exec(json.loads(line))
    except Exception as error:
        print(type(error).__name__ + ":", str(error).splitlines()[0])
    signal.alarm(0)
    print("---", flush=True)
"""

# %%
os.environ |= {"MGPU_MODE": "cores", "TF_NUM_INTRAOP_THREADS": "1"}
hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]


def start(index):
    settings = {"TF_CONFIG": tf_config(index, hosts), "CUDA_VISIBLE_DEVICES": "-1"}
    settings |= {"no_proxy": "127.0.0.1"}  # gRPC would ask a proxy for the other worker
    files = {"stdout": open(folder / f"{index}.log", "w"), "stderr": subprocess.DEVNULL}
    return subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | settings, stdin=subprocess.PIPE,
        text=True, bufsize=1, **files)  # fmt: skip


workers = [start(0), start(1)]
asked = [0, 0]

# %% [markdown]
# `tell` sends a piece of code to a worker. `said` waits for what the worker prints, and returns
# None if nothing comes for so many seconds. `ask` sends a piece to both workers and returns both
# answers, and `both` prints them:

# %%
def tell(index, code):
    asked[index] += 1
    workers[index].stdin.write(json.dumps(code) + "\n")


def said(index, seconds=90):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answers = (folder / f"{index}.log").read_text().split("---\n")
        if len(answers) > asked[index]:
            return answers[asked[index] - 1].strip()
        time.sleep(0.02)


def ask(code):
    for index in (0, 1):
        tell(index, code)
    return [said(index) for index in (0, 1)]


def both(code):
    for index, answer in enumerate(ask(code)):
        if answer != "":
            print(f"worker {index}: {answer}")


both("print('TensorFlow is there')")

# %% [markdown]
# Now worker 0 makes the strategy. Worker 1 is late, like a machine that is still starting. What
# does worker 0 say?

# %%
tell(0, "strategy = tf.distribute.MultiWorkerMirroredStrategy()")
print("after one second:", said(0, seconds=1))

# %% [markdown]
# Nothing. It waits in the strategy's constructor, without a message, and would for an hour. As soon
# as worker 1 comes, both go on. Then they add one number each, 1 and 2, in an **all-reduce**: every
# worker gets the sum.

# %%
tell(1, "strategy = tf.distribute.MultiWorkerMirroredStrategy()")
both("""
index = strategy.cluster_resolver.task_id
total = strategy.reduce("sum", strategy.run(lambda: tf.constant(index + 1.0)), axis=None)
print(f"I am {index} of {strategy.num_replicas_in_sync}; the sum is {total:.0f}")""")

# %% [markdown]
# ## A launcher in a dozen lines
#
# By hand you start one process on each machine, watch all of them, and end the others when one
# fails. A launcher does that. Here is one for a single machine. Of the two workers below, one fails
# after a moment, and the other would sleep for a minute:

# %%
def launch(program, n):
    hosts = [f"127.0.0.1:{port}" for port in free_ports(n)]
    running, codes, end = [], [None], time.monotonic() + 60
    for index in range(n):
        settings = os.environ | {"TF_CONFIG": tf_config(index, hosts)}
        running.append(subprocess.Popen([sys.executable, "-c", program], env=settings))
    while None in codes and not any(codes) and time.monotonic() < end:
        time.sleep(0.05)
        codes = [child.poll() for child in running]
    for child in running:
        child.kill()  # nothing happens to one that has ended
    return [child.wait() for child in running]


fails = """
import json, os, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
time.sleep(60 if index == 0 else 0.3)
raise SystemExit(3)
"""
print("exit statuses:", launch(fails, 2))

# %% [markdown]
# Worker 1 ended with status 3, and the launcher killed worker 0 (-9 is SIGKILL). `cluster.run` is
# this launcher, and adds what you need when nobody watches:
#
# - a log for each worker, and a share of the GPUs or cores,
# - the name of the worker that failed **first**, since the errors of the others follow from it,
# - a restart of all, as often as you allow,
# - an end to the wait in the constructor, after 60 seconds, with a sentence about who is missing,
# - no process left behind, however the launcher itself ends.
#
# In a terminal the first line below does that. The other two start one training on two machines:
#
# ```shell
# python -m mgpu_helpers cluster --workers 2 train.py
# python -m mgpu_helpers cluster --hosts a:20000,b:20000 --index 0 train.py   # on machine a
# python -m mgpu_helpers cluster --hosts a:20000,b:20000 --index 1 train.py   # on machine b
# ```
#
# ## One training, any number of workers
#
# The script [train_workers.py](scripts/train_workers.py) trains a small Keras model. Two parts of
# it matter here: where a worker's rows come from, and the training step:

# %%
script = Path("scripts/train_workers.py").read_text()
for first, end in (("def batch", "first, second"), ("@tf.function", "checkpoint =")):
    print(script[script.index(first) : script.index(end)].strip(), end="\n\n")

# %% [markdown]
# - The rows of a step and the mask of its dropout are drawn from **the number of the step**. So
#   each of n workers draws the same batch and takes every nth row of it, and a restarted training
#   goes on with the right rows.
# - The loss is divided by `options.batch`, the batch of **all** workers. `optimizer.apply` adds up
#   the gradients of all workers before the update.
# - The loop is the script's own. Keras 3's `fit` does not work under this strategy:

# %%
both("""
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.zeros([8, 4]), tf.zeros([8, 1]), verbose=0)""")

# %% [markdown]
# That is [issue 20585](https://github.com/keras-team/keras/issues/20585) of Keras. The `fit` of
# Keras 2, which is the package `tf-keras`, works. The models and optimizers of Keras 3 work too, as
# long as the loop is your own. Or make the model in the scope of `fit.strategy()` of this package,
# which [mends `fit`](../docs/fit.md) where Keras 3 fails.
#
# ## Proof: two and three workers train what one trains
#
# The script trains for 20 steps, three times. First it runs on worker 0 without TF_CONFIG, as one
# process that knows nothing of others. Then it runs on our two workers, which have a strategy
# already: `train` gives it that one. At its end each worker prints a digest of its weights and of
# Adam's slots. Worker 0, the **chief**, saves them:

# %%
both(f"""
import os, runpy
from unittest import mock
def train(name):
    sys.argv = ["train_workers.py", "--checkpoints", f"{folder}/{{name}}"]
    with mock.patch.object(tf.distribute, "MultiWorkerMirroredStrategy", lambda: strategy):
        runpy.run_path("scripts/train_workers.py")
""")

tell(0, """
with mock.patch.dict(os.environ):
    del os.environ["TF_CONFIG"]
    train("one")
""")
said(0)
two = ask("train('two')")

# %% [markdown]
# Last, `cluster.run` starts three workers. How far are the weights of two and of three workers from
# those of one process? How many different digests do the workers of a run print?

# %%
def launched(name, *args, **options):
    args = ["--checkpoints", folder / name, *args]
    return cluster.run("scripts/train_workers.py", args, logs=folder / f"{name}_logs",
                       grace=20, time_limit=200, progress=False, **options)  # fmt: skip


def state(name):
    saved = tf.train.load_checkpoint(folder / name / "ckpt-20")
    names = [n for n in saved.get_variable_to_shape_map() if not re.search("OBJECT|counter", n)]
    return {name: saved.get_tensor(name) for name in names}


def digest(printed):
    return json.loads(printed.splitlines()[-1])["state"]


three = [worker.tail for worker in launched("three", workers=3)]
for name, printed in {"two": two, "three": three}.items():
    one, several = state("one"), state(name)
    off = max(np.abs(one[each] - several[each]).max() for each in one)
    print(f"{name:5} workers: largest difference from one below 1e-6: {off < 1e-6}; "
          f"digests: {len(set(map(digest, printed)))}")  # fmt: skip

# %% [markdown]
# The weights are those of one process. The differences below 1e-6 come from the order in which the
# gradients are added. There is one digest in each run, and it covers every weight and every slot:
# all workers of a run hold the same bits.
#
# ## Who reads what
#
# You can give an input pipeline of `tf.data` to the strategy, which then shares it out. Count to
# see whether each example is read once. `seen` collects the numbers that a worker reads of a
# dataset, and `who_reads` counts the numbers from 0 to 23 over both workers:

# %%
define = """
def rows(batch):  # what this worker has of it
    return strategy.experimental_local_results(batch)[0].numpy().tolist()
def seen(dataset):
    print(sum(map(rows, strategy.experimental_distribute_dataset(dataset)), []))
numbers = tf.data.Dataset.range(24)
"""


def who_reads(code):
    lists = [json.loads(answer) for answer in ask(code)]
    times = collections.Counter(lists[0] + lists[1])
    twice, never = (sum(times[row] == n for row in range(24)) for n in (2, 0))
    print(f"worker 0 read {len(lists[0])} examples, worker 1 {len(lists[1])}; "
          f"of 24, {twice} were read twice and {never} never")  # fmt: skip


both(define)
who_reads("seen(numbers.shuffle(24, seed=0).batch(8))")

# %% [markdown]
# Each example was read once. Every worker shuffles all of them, in the same order because of the
# seed, and keeps its own half. Under "Break it" we take away the seed and the sharing.
#
# ## What crosses
#
# The workers average in the ring of [[09]]. Each of n workers sends 2(n - 1) pieces, each an nth of
# the gradients. So P bytes of gradients make 2(n - 1)P bytes on the wire, over all workers. The
# operating system counts the bytes of the loopback interface. Each worker reads that counter before
# and after an all-reduce of 5 MB. Tiny all-reduces before and after it make sure that nobody begins
# before all have read the counter, and nobody reads it again before all have finished. Other
# programs may use the interface meanwhile, so the least of six counts is taken:

# %%
both("""
import psutil, time
def crossed():
    counters = psutil.net_io_counters(pernic=True)
    return sum(each.bytes_sent for name, each in counters.items() if name in ("lo", "lo0"))
@tf.function
def add(x):
    context = tf.distribute.get_replica_context
    return strategy.run(lambda: context().all_reduce("sum", tf.identity(x)))
def least(x):
    counts, one = [], tf.constant([1.0])
    for _ in range(7):
        before = crossed()
        for each in (one, x, one):
            add(each)[0].numpy()
        counts.append(crossed() - before)
    return min(counts[1:]) / (2 * 5_000_000)
float32, float16 = least(tf.ones(1_250_000)), least(tf.ones(1_250_000, tf.float16))
print(f"times 2(n - 1)P: {float32:.2f} in float32, {float16:.2f} in float16")
""")

# %% [markdown]
# Both workers counted the same interface. For n = 2 the bytes are those of the formula, and float16
# halves them. The [card](../results/link.json) of `benchmarks/link.py` has the bytes for two and
# three workers: they are 0.2 to 0.3 % more than the formula, because each packet has a header.
#
# ## When they wait
#
# All workers leave an all-reduce together, so the fast wait for the slow. Here worker 1 has twice
# the work of worker 0 in each step. Each worker notes when it computes and when it is in the
# all-reduce. Processes of one machine have one clock, `time.monotonic`, so both fit into one
# picture:

# %%
both("""
x = tf.random.normal([600, 600])
def step():
    began, y = time.monotonic(), x
    for _ in range(20 * (index + 1)):
        y = tf.linalg.matmul(x, y) / 30
    y[0, 0].numpy()
    computed = time.monotonic()
    add(tf.constant([1.0]))[0].numpy()
    return began, computed, time.monotonic()
marks = [step() for _ in range(7)][1:]
""")

# %% tags=["varies", "cover", "nbval-ignore-output"]
marks = np.array([json.loads(answer) for answer in ask("print(json.dumps(marks))")])
marks -= marks.min()
ax = axes(size=(8, 1.9))
for index, steps in enumerate(marks):
    lane, own = (index - 0.35, 0.7), colour(f"/CPU:{index + 1}")
    ax.broken_barh([(a, b - a) for a, b, _ in steps], lane, color=own)
    ax.broken_barh([(b, c - b) for _, b, c in steps], lane, color=HOST, alpha=0.45)
ax.set_yticks([0, 1], ["worker 0", "worker 1"])
ax.invert_yaxis()
ax.set_xlabel("time, s")
ax.set_title("In colour: computes. Grey: in the all-reduce, where it waits", loc="left")
plt.show()
waits = (marks[:, :, 2] - marks[:, :, 1]).sum(axis=1) / (marks[:, -1, 2] - marks[:, 0, 0])
print(f"worker 0 waits {waits[0]:.0%} of the time, worker 1 {waits[1]:.0%}")

# %% [markdown]
# Worker 0 is grey for up to half of the time. The pair is as fast as its slowest worker, so give
# equal work to equal machines, and look at this picture before you blame the network.
#
# ## A worker dies
#
# The more machines there are, the more often one of them fails. Then all workers end, since none
# can go on alone, and a launcher starts all of them again from the last checkpoint:
#
# ![Two workers over time. After steps 0 to 4 there is a checkpoint. After steps 5 and 6 worker 1 is
# killed; worker 0 waits and ends. After the restart both repeat steps 5 and 6, and go on from 7 to
# the end.](pictures/17_restart.svg)
#
# Who saves? The chief, and nobody else. If all write into one folder, they write over each other's
# files. The script saves after every fifth step, and begins with the last checkpoint that it finds.
#
# With `--kill-at 7` worker 1 sends itself SIGKILL at step 7, two steps after a checkpoint. With
# `--term-at 12` it sends itself SIGTERM at step 12 of the second attempt. SIGTERM is what Slurm,
# Kubernetes and clouds send before they **preempt** a worker, that is, take its machine away.
# TensorFlow's `PreemptionCheckpointHandler` then lets all workers agree on a step, save, each in a
# folder of its own, and end. With `restarts=1` the launcher starts all of them again once:

# %% tags=["nbval-ignore-output"]
report = launched("faults", "--kill-at", "7", "--term-at", "12", workers=2, restarts=1)
print(*[attempt.why for attempt in report.attempts], sep="\n")
lines = report.attempts[0].workers[0].log.read_text().splitlines()
print("worker 0 says:", *[line[:90] for line in lines if re.match("tensorflow|Collective", line)])

# %% [markdown]
# The launcher names worker 1 and SIGKILL. Nothing was wrong with worker 0, but it ended with an
# error about its network. Whoever reads only that log looks for the fault in the wrong machine. In
# the second attempt both workers saved, and ended with exit status 42, with which TensorFlow asks
# for a restart. The launcher names the one that it saw end first.
#
# That was the last restart. A preempted training may go on later, and elsewhere: here on our two
# workers, from the same folder. After how many steps did each of the three runs begin? And does the
# last one end as the training without a fault did?

# %%
printed = [attempt.workers[1].tail for attempt in report.attempts] + ask("train('faults')")
print(*[each.splitlines()[0] for each in printed[:3]], sep="\n")
same = [np.array_equal(value, state("faults")[name]) for name, value in state("two").items()]
print(f"{sum(same)} of {len(same)} saved variables are equal, bit for bit")
print("same digest:", digest(printed[2]) == digest(two[0]))

# %% [markdown]
# Attempt 1 went back to the checkpoint after five steps, so two steps were lost. After SIGTERM
# nothing was lost: the third line is from our worker 0, which began where attempt 1 had saved. Our
# workers have no launcher that counts attempts, so it says 0.
#
# The 14 are four weights, Adam's two slots for each, its step count and its learning rate. All are
# equal to the last bit, as if nothing had happened. Three things make this possible: rows and
# dropout are functions of the step, the slots are in the checkpoint, and each worker computes on
# one core again. A restart with another number of workers reads the same rows, too. Only the order
# changes in which gradients are added, so its weights are within 1e-6, as in the proof.
#
# ## Mistakes that hang
#
# Most mistakes in the setup of a cluster make somebody wait for an hour without a word. We tried
# eight, each on one worker. Every time the others waited. What did the worker itself do?
#
# | mistake | the worker itself |
# |---|---|
# | it was not started | |
# | a host that does not resolve | waits |
# | the wrong address for the chief | waits |
# | `http_proxy` is set, and `no_proxy` is not | waits |
# | the same index as another worker | "Could not start gRPC server" |
# | its port is taken | "Could not start gRPC server" |
# | an index that is not in the list | ValueError |
# | no TF_CONFIG | trains alone, silently |
#
# `cluster.check` takes one TF_CONFIG, or those of all workers, and examines them in under two
# seconds, before TensorFlow starts. What does it say to each mistake? Every port is printed as
# PORT, so two different ones look alike:

# %%
a, b, c = (f"127.0.0.1:{port}" for port in free_ports(3))


def check(name, *configs, no_proxy="127.0.0.1,invalid", **environment):
    with mock.patch.dict(os.environ, environment, no_proxy=no_proxy):
        sentences = cluster.check(*configs) or ["(nothing)"]
    print(f"{name}: {re.sub('[0-9]{4,5}', 'PORT', sentences[0])}")


# %%
check("not started ", tf_config(0, [a, b]))
check("no such host", tf_config(0, ["nowhere.invalid:20000", "lost.invalid:20000"]))
check("wrong chief ", tf_config(0, [a, b]), tf_config(1, [c, b]))
check("proxy       ", tf_config(0, [a, b]), http_proxy="http://proxy:3128", no_proxy="")

# %%
check("same index  ", tf_config(1, [a, b]), tf_config(1, [a, b]))
check("port taken  ", tf_config(0, hosts))
check("index       ", tf_config(2, [a, b]))
check("no TF_CONFIG", None)

# %% [markdown]
# Only the first gets no sentence: a worker that has not started looks like one that will. There
# `cluster.run` helps: it ends the wait after a minute and says who is missing. `python -m
# mgpu_helpers` shows the same sentences where TF_CONFIG is set. It also says that TensorFlow's
# workers listen on **all** interfaces of a machine, whatever the address says: close their ports to
# strangers.
#
# ## A slow link
#
# Between the GPUs of one machine gigabytes cross in a second. Between machines it may be far less.
# In `benchmarks/link.py` each worker has a network of its own, and the link between them lets 200
# or 50 Mbit/s through. Its [card](../results/link.json) has the seconds of an all-reduce of 5 MB.
# Beside them is what the ring of [[16]] predicts. The last column corrects that twice: TCP carries
# 95.6 % of a link's rate, and the time of an all-reduce over an unlimited link is added:

# %% tags=["nbval-ignore-output"]
card = json.loads(Path("../results/link.json").read_text())["numbers"]
gradients, free = scaling.Workload("5 MB", 1_250_000), scaling.Cost(0.0, 0.0)
print("workers  Mbit/s  measured    ring  ring/0.956 + unlimited")
for row in card.get("links", []):
    n, rate, unlimited = row["workers"], row["megabits"], row["unlimited"]
    link = scaling.Link("slow", rate * 125e3, rate * 125e3, rate * 125e3, 0.0, "tbf")
    ring = scaling.ring(gradients, free, n, 1, link).total
    predicted = ring / 0.956 + unlimited
    print(f"{n:7}{rate:8}{row['seconds']:8.3f} s{ring:6.3f} s{predicted:8.3f} s")
print("made with:", card["made"])

# %% [markdown]
# The last column is within a tenth of what was measured. No step can take less time than its
# gradients need to cross. At 200 Mbit/s 5 MB take more than a fifth of a second. The 102 MB of a
# network like ResNet-50 take more than four seconds. Over such a link a second machine pays only
# when a step computes for longer than that.
#
# ## Other ways over several machines
#
# - **Parameter servers** hold the variables, and workers fetch them and send updates back, without
#   waiting for each other (`ParameterServerStrategy`). They are for huge embedding tables, and for
#   workers that come and go. Each update is applied at least once, not exactly once. When we killed
#   a worker in the middle of one, 2001 updates were applied where 2000 had been asked for
#   ([how to see it](../docs/parameter_servers.md)). If a server is killed, the training ends.
# - **Kubeflow's TFJob** sets TF_CONFIG on Kubernetes. It belongs to the legacy version 1 of
#   Kubeflow's operator; version 2.3 lists no runtime for TensorFlow
#   ([sources](../docs/sources.md)). [kubernetes.yaml](scripts/kubernetes.yaml) does without it.
# - **Slurm**: [slurm.sh](scripts/slurm.sh) starts the launcher on every node, with `--from slurm`.
# - **Ray Train** has a TensorflowTrainer, which sets TF_CONFIG too
#   ([guide](https://docs.ray.io/en/latest/train/distributed-tensorflow-keras.html)). It pays where
#   you have Ray already. The guide's example fails with Keras 3 ([sources](../docs/sources.md)).
# - **Horovod** had its [last release](https://github.com/horovod/horovod/releases) in June 2023.
#
# ## With your own model
#
# Here is a Keras model with BatchNormalization, on the two workers from the beginning. All inputs
# of worker 0 are 0, and all inputs of worker 1 are 1, so their mean is 0.5. The momentum is a half:
# one step on all of them together would move the moving mean from 0 halfway to 0.5, to 0.25. What
# do the two workers have?

# %%
both("""
layers = tf.keras.layers
def moving_mean(synchronized):
    with strategy.scope():
        norm = layers.BatchNormalization(momentum=0.5, synchronized=synchronized)
        mine = tf.keras.Sequential([tf.keras.Input([1]), norm, layers.Dense(1)])
        sgd = tf.keras.optimizers.SGD(0.1)
        sgd.build(mine.trainable_variables)
    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((mine(x, training=True) - y) ** 2) / 8
        sgd.apply(tape.gradient(loss, mine.trainable_variables), mine.trainable_variables)
    strategy.run(train_step, (tf.fill([4, 1], float(index)), tf.ones([4, 1])))
    return norm.moving_mean.numpy().item()
print(f"moving mean {moving_mean(False)}; synchronized: {moving_mean(True)}")
""")

# %% [markdown]
# Each worker normalizes by its own batch and keeps its own moving averages, and the checkpoint has
# those of the chief. The proof above does not cover them, because its model has none. With
# `synchronized=True` the workers share the statistics of the whole batch. That costs three small
# all-reduces in the forward pass for each such layer, and more in the backward pass. What to watch
# for with a model of your own:
#
# - Divide the loss by the batch of all workers.
# - Normalize over all workers, or know that evaluation uses the chief's averages.
# - Compare one step on two workers with one step on one, before you train for long.
#
# ## Break it
#
# **No seed.** Each worker shuffles in an order of its own, and keeps half of the result:

# %% tags=["nbval-ignore-output"]
who_reads("seen(numbers.shuffle(24).batch(8))")

# %% [markdown]
# Some examples were read twice, and as many never.
#
# **No sharing.** With the policy `OFF`, and with `distribute_datasets_from_function` if the
# function does not call `shard` itself, every worker reads everything:

# %%
both("""
off = tf.data.Options()
off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
""")
who_reads("seen(numbers.batch(8).with_options(off))")
who_reads("""
batches = strategy.distribute_datasets_from_function(lambda context: numbers.batch(4))
print(sum(map(rows, batches), []))
""")

# %% [markdown]
# **Files that do not divide.** If a dataset reads files, each worker gets whole files. Here are
# three, of eight numbers each. Look at the last batches of worker 1. Then there is one file only,
# which is fewer than there are workers:

# %%
for i in range(3):
    (folder / f"{i}.txt").write_text("\n".join(str(8 * i + row) for row in range(8)))
both(f"""
def files(n):
    names = tf.data.Dataset.from_tensor_slices([f"{folder}/{{i}}.txt" for i in range(n)])
    lines = names.interleave(tf.data.TextLineDataset)
    numbers = lines.map(lambda line: tf.strings.to_number(line, tf.int32)).batch(8)
    return strategy.experimental_distribute_dataset(numbers)
print("examples in each batch:", [len(rows(batch)) for batch in files(3)])
""")
for index in (0, 1):
    tell(index, "print(len(list(files(1))))")
print("one file: worker 0:", said(0).partition(":")[0], "- worker 1, after 1 s:", said(1, 1))
for worker in workers:
    worker.kill()

# %% [markdown]
# In the last two steps worker 1 has nothing. With a mean over its empty batch, its loss would be
# NaN.
#
# None of these three said a word. `who_reads` finds them all: here it would count 16 examples on
# worker 0 and 8 on worker 1. Count before you train for a week.
#
# **Fewer files than workers** do raise an error, but not on every worker. Worker 0 raises "Could
# not apply FILE based sharding", and worker 1 waits for it without a word. So we ended both. For a
# few large files choose `AutoShardPolicy.DATA`, which shares out the examples.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Somebody shares a batch out like this: with 10 rows and 3 workers, nobody reads the last
# row. Mend `rows_of(count, workers, index)`, which gives the numbers of the rows that a worker
# reads. Each row has to be read once, for any count and any number of workers, and no worker may
# have two rows more than another.

# %% tags=["exercise"]
def rows_of(count, workers, index):
    size = count // workers
    return range(index * size, (index + 1) * size)


checks.rows_of(rows_of)

# %% tags=["solution"]
def rows_of(count, workers, index):
    return range(index, count, workers)


checks.rows_of(rows_of)

# %% [markdown]
# **2.** Write `step_seconds(size, workers, megabits, unlimited)`: the seconds of an all-reduce of
# `size` bytes over links of `megabits` Mbit/s, as in the last column above. `unlimited` is its time
# without a limit, in seconds. Predict 5 MB on two workers at 200 Mbit/s, and compare with
# the card.

# %% tags=["exercise"]
def step_seconds(size, workers, megabits, unlimited):
    return size / megabits


checks.step_seconds(step_seconds)

# %% tags=["solution"]
def step_seconds(size, workers, megabits, unlimited):
    sent = 2 * (workers - 1) / workers * size
    return sent * 8 / (megabits * 1e6) / 0.956 + unlimited


checks.step_seconds(step_seconds)

# %% [markdown]
# **3.** Write `saves(tf_config)`: `True` for the one process that writes the checkpoint, `False`
# for all others. `tf_config` is the text of TF_CONFIG, or `None` for a process that trains alone.
# If the cluster has a `chief`, that one saves; otherwise worker 0 does. Parameter servers (`ps`)
# and evaluators never save.

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
# ## What we saw
#
# - A worker whose partner was late waited without a word.
# - The weights of two and three workers were within 1e-6 of those of one process, and all workers
#   of a run had the same bits.
# - Between two workers, gradients made twice their bytes on the wire, and half of that in float16.
# - A worker with twice the work made the other wait for up to half of the time.
# - A training that was killed, restarted, preempted and restarted ended with the same 14 variables,
#   bit for bit.
# - Of eight mistakes in the setup of a cluster, `cluster.check` named seven.
# - Without a seed or without sharing, workers read examples twice or never. With files that do not
#   divide, one worker had nothing to read in half of the steps. Nothing said so.
#
# ## In practice
#
# Use this when one machine with all its GPUs is too slow, and a step computes for longer than its
# gradients cross. It costs some seconds for each start, a checkpoint every few minutes, and the
# wait for the slowest worker.
#
# - First fill one machine: gigabytes a second cross between its GPUs.
# - Let the chief save, often enough that a restart loses only minutes. All workers restore, so
#   the folder has to be one that all machines see.
# - Make data and dropout functions of the step. Then a digest can prove that a restart is exact.
# - Count who reads what, once.
# - Run `cluster.check` on every machine before the first start, and give the launcher restarts.
#
# Next: [[next]].
