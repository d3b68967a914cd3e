# %% [markdown]
# # Fit on several machines
#
# Your training fills all GPUs of one machine, and a second machine is free. TensorFlow has a
# strategy for both together, but Keras 3's `fit` fails under it, and a mistake in the setup makes
# everybody wait.
#
# **In this lesson** you add two lines to a script and start it with a launcher, and `fit` trains in
# two processes the model that a single process would train.
#
# **You will learn** to
# - start `fit` on several machines, and prove that the model is that of one process,
# - read the configuration of a worker, and have it checked before anybody waits,
# - see that the workers share out every batch, and what happens if their data differ,
# - count what crosses between machines, and predict how long that takes over a slow link.
#
# **You need** [[07]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import collections
import contextlib
import json
import os
import re
import tempfile
from pathlib import Path
from unittest import mock

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import cluster, scaling
from mgpu_helpers.charts.base import HOST, axes, colour
from mgpu_helpers.cluster.addresses import free_ports
from mgpu_helpers.lessons import workers
from mgpu_helpers.lessons.checks import lesson_17 as checks

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The lines to paste
#
# The script [train_workers.py](scripts/train_workers.py) trains a small Keras model. The two lines
# to paste are the import and the line marked "added":

# %%
path = "scripts/train_workers.py"
script = Path(path).read_text()
print(re.search(r"from mgpu_helpers import [\w, ]+\w", script)[0], end="\n…\n")
print(script[script.index("keras.utils") : script.index("callbacks =")].rstrip())

# %% [markdown]
# A **worker** is the process on one machine, and it drives all GPUs of its machine. You start the
# script on each machine with `mgpu cluster`:
#
# ```shell
# mgpu cluster --hosts a:20000,b:20000 --index 0 train_workers.py   # on machine a
# mgpu cluster --hosts a:20000,b:20000 --index 1 train_workers.py   # on machine b
# ```
#
# What a worker prints goes to a file in the folder `logs`.
#
# To try this, one machine is enough: `mgpu cluster --workers 2 train_workers.py` starts two
# processes there, which speak to each other as two machines do. `cluster.run` does the same from
# Python. Here each worker computes on one core, even on a machine with GPUs, because two workers
# cannot share a GPU:

# %%
one_core = {"MGPU_MODE": "cores", "TF_NUM_INTRAOP_THREADS": "1"}
with mock.patch.dict(os.environ, one_core):
    report = cluster.run(path, ["--folder", folder / "two"], workers=2, logs=folder / "logs",
                         progress=False)  # fmt: skip
for worker in report:
    print(worker.name, worker.status, np.round(worker.result["history"]["loss"], 2))

# %% [markdown]
# Both workers have the same losses. Are these the losses of one process? To find out, the script
# runs here without the added line. Then its weights are compared with the file that the workers
# saved. Each worker also printed a digest of every bit of its weights and of its optimizer's
# variables:

# %%
plain = script.replace("with fit.strategy(devices.setup()).scope():", "if True:")
words = ["plain", "--folder", str(folder / "one")]
with tf.device(plan.host), mock.patch("sys.argv", words), contextlib.redirect_stdout(None):
    exec(plain, alone := {})

# %%
ours, theirs = alone["model"], keras.models.load_model(folder / "two" / "model.keras")
pairs = zip(ours.get_weights(), theirs.get_weights())
far = max(np.abs(mine - other).max() for mine, other in pairs)
print("losses of one process", np.round(alone["history"]["loss"], 2))
print("weights less than 1e-5 apart:", far < 1e-5)
print("same bits on both workers:", report[0].result["state"] == report[1].result["state"])

# %% [markdown]
# The workers trained the model that one process trains. Only rounding differs, because they add the
# numbers in another order. The script's dropout is 0 here: with dropout the workers drop other
# units than one process does. The file that the workers saved is from the callback ModelCheckpoint,
# which under `fit.strategy` writes only on worker 0, the **chief**.
#
# | | |
# |---|---|
# | **Use it when** | a full machine is too slow, and its steps take longer than an exchange |
# | **It costs** | seconds for each start, an exchange in each step, waits for the slowest worker |
# | **Instead** | fill one machine first ([[07]]): its GPUs exchange gigabytes in a second |
#
# ## How it works
#
# `fit.strategy` finds the environment variable `TF_CONFIG`, takes TensorFlow's
# `MultiWorkerMirroredStrategy` and mends Keras 3's `fit`, which fails under that strategy ([the
# error](../docs/errors.md#perreplica)). `TF_CONFIG` lists the addresses of all workers and says
# which of them this worker is:
#
# ![Machine a with worker 0 and machine b with worker 1, each with GPU 0 and GPU 1; they exchange
# gradients. TF_CONFIG lists a:20000 and b:20000 for both, and says to each which of them it
# is.](pictures/17_two_machines.svg)

# %%
print(*workers.tf_configs(["a:20000", "b:20000"]), sep="\n")

# %% [markdown]
# By hand you set this variable on each machine and start your script. Here are two processes that
# have it, and run any code that we send them. `both` sends code to both workers and prints their
# answers. `tell` sends it to one worker, and `said` returns what that worker prints, or None after
# `seconds` of silence. Worker 0 now makes the strategy, and worker 1 is late, like a machine that
# is still starting:

# %%
pair = workers.Pair()
pair.both("from mgpu_helpers import fit; print('here')")
pair.tell(0, "strategy = fit.strategy()")
print("worker 0, after one second:", pair.said(0, seconds=1))

# %% [markdown]
# Worker 0 says nothing: it waits in the strategy's constructor, for up to an hour. As soon as
# worker 1 makes its strategy too, both go on. Then each worker gives its index plus 1 to an
# **all-reduce**: worker 0 gives 1, worker 1 gives 2, and each gets the sum:

# %%
pair.tell(1, "strategy = fit.strategy()")
pair.both("""
index = strategy.cluster_resolver.task_id
total = strategy.reduce("sum", strategy.run(lambda: tf.constant(index + 1.0)), axis=None)
print(f"one of {strategy.num_replicas_in_sync}; the sum is {total:.0f}")""")

# %% [markdown]
# In `fit` the numbers are gradients: each worker computes those of its share of the batch, and
# their sum is the gradient of the whole batch, as in [[07]].
#
# Which share is that? Every worker reads all the data, and takes its part of each batch. `rows`
# collects what a worker takes from a dataset:

# %%
pair.both("""
def rows(data):
    parts = [strategy.run(lambda x: x, (batch,))
             for batch in strategy.experimental_distribute_dataset(data)]
    return [int(n) for part in parts for n in strategy.experimental_local_results(part)[0]]
numbers = tf.data.Dataset.range(20)
print(rows(numbers.batch(5)))""")

# %% [markdown]
# Each of the twenty numbers went to one worker. Of each batch of five, worker 0 takes two and
# worker 1 takes three.
#
# ## What crosses
#
# The workers exchange gradients in a ring: the P bytes of the gradients are cut into n pieces, and
# each of the n workers sends 2(n - 1) of them, together 2(n - 1)P bytes. To test this, each worker
# reads the operating system's counter of sent bytes before and after an all-reduce of 5 MB. The
# tiny all-reduces around it make the workers wait until both have read the counter. Other programs
# may send meanwhile, so the least of six counts is taken:

# %%
pair.both("""
import psutil
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
            strategy.experimental_local_results(add(each))[0].numpy()
        counts.append(crossed() - before)
    return min(counts[1:]) / (2 * 5_000_000)
print(f"float32: {least(tf.ones(1_250_000)):.2f} times 2(n - 1)P,"
      f" float16: {least(tf.ones(1_250_000, tf.float16)):.2f}")""")

# %% [markdown]
# For two workers the bytes are those of the formula, and float16 halves them. Both workers print
# the same, because on one machine they read the same counter.
#
# How long does that take between two machines? `benchmarks/link.py` gives each worker a network of
# its own, with links of 200 or 50 Mbit/s. Its [card](../results/link.json) has the seconds of an
# all-reduce of 5 MB over each link, and over a link without a limit. The column "ring" has the
# ring's bytes over the link's rate. The last column corrects this twice: TCP carries 95.6 % of that
# rate, and the time without a limit is added:

# %% tags=["nbval-ignore-output"]
card = json.loads(Path("../results/link.json").read_text())["numbers"]
gradients, free = scaling.Workload("5 MB", 1_250_000), scaling.Cost(0.0, 0.0)
print("workers  Mbit/s  measured  unlimited    ring  ring/0.956 + unlimited")
for row in card.get("links", []):
    n, rate, unlimited = row["workers"], row["megabits"], row["unlimited"]
    link = scaling.Link("slow", rate * 125e3, rate * 125e3, rate * 125e3, 0.0, "tbf")
    ring = scaling.ring(gradients, free, n, 1, link).total
    predicted = ring / 0.956 + unlimited
    times = f"{row['seconds']:8.3f} s{unlimited:9.3f} s{ring:6.3f} s{predicted:8.3f} s"
    print(f"{n:7}{rate:8}{times}")

# %% [markdown]
# In every row the last column is nearer to what was measured than the ring alone, though in the
# last row it is about a tenth too low. At 200 Mbit/s, 5 MB take more than a fifth of a second, so
# the 102 MB of a network like ResNet-50 would take more than four seconds. If the exchange waits
# for the backward pass, a second machine pays only where a step computes for longer than this.
#
# ## When not to
#
# All workers leave an all-reduce together, so the fast ones wait for the slow ones. Here worker 1
# multiplies twice as many matrices as worker 0 in each step. Both note when they compute and when
# they are in the all-reduce. They still know `add` and `index` from above, and `ask` returns their
# answers:

# %%
pair.both("""
import json, time
x = tf.random.normal([600, 600])
def step():
    began, y = time.monotonic(), x
    for _ in range(20 * (index + 1)):
        y = tf.linalg.matmul(x, y) / 30
    y[0, 0].numpy()
    computed = time.monotonic()
    strategy.experimental_local_results(add(tf.constant([1.0])))[0].numpy()
    return began, computed, time.monotonic()
marks = [step() for _ in range(7)][1:]""")

# %% tags=["varies", "cover", "nbval-ignore-output"]
marks = np.array([json.loads(answer) for answer in pair.ask("print(json.dumps(marks))")])
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
# The pair is as fast as its slower worker, and much of the lane of worker 0 is grey. So take equal
# machines, and draw this picture before you blame the network.
#
# ## Break it
#
# **Another order on each worker.** Without a seed each worker shuffles the twenty numbers in an
# order of its own. Each still takes its part of every batch, but the batches are no longer the
# same:

# %% tags=["nbval-ignore-output"]
taken = map(json.loads, pair.ask("print(rows(numbers.shuffle(20).batch(10)))"))
times = collections.Counter(sum(taken, []))
twice, never = (sum(times[row] == n for row in range(20)) for n in (2, 0))
print(f"of 20 examples {twice} were read twice and {never} never")

# %% [markdown]
# Some examples are read twice, and as many are never read. What do `fit.check` and `fit` say?

# %%
pair.both("""
import keras, re
with strategy.scope():
    model = keras.Sequential([keras.Input([]), keras.layers.Reshape([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
labelled = tf.data.Dataset.range(20).map(lambda n: (tf.cast(n, tf.float32), 1.0))
data = labelled.shuffle(20).batch(10)
print(fit.check(model, data)[0].partition(",")[0])
try:
    model.fit(data, verbose=0)
except ValueError as error:
    print("fit:", re.sub(r" [\\d.]+, [\\d.]+\\.", " …", str(error)).partition(", as")[0])""")

# %% [markdown]
# After its first step `fit` compares what the workers have read, and stops them all where that
# differs. The cure is a seed: `keras.utils.set_random_seed` before the data are made, or
# `fit.batches(x, y, shuffle=True)`.
#
# **A mistake in the setup.** We made each of these eight mistakes on one worker. Every time the
# others waited. What did the worker itself do?
#
# | mistake | the worker itself |
# |---|---|
# | not started | is not there |
# | no such host, wrong address of the chief, `http_proxy` without `no_proxy` | waits |
# | same index as another worker, port taken by another program | "Could not start gRPC server" |
# | no such index in the list | ValueError |
# | no TF_CONFIG | trains alone, silently |
#
# `cluster.check` examines one TF_CONFIG, or those of all workers, before TensorFlow starts. What
# does it say to each mistake? Every port is printed as PORT:

# %%
a, b, c = (f"127.0.0.1:{port}" for port in free_ports(3))
right, wrong = workers.tf_configs([a, b]), workers.tf_configs([c, b])


def check(name, *configs, no_proxy="127.0.0.1,invalid", **environment):
    with mock.patch.dict(os.environ, environment, no_proxy=no_proxy):
        sentences = cluster.check(*configs) or ["(nothing)"]
    print(f"{name}: {re.sub('[0-9]{4,5}', 'PORT', sentences[0])}")


# %%
check("not started", right[0])
check("no such host", workers.tf_configs(["nowhere.invalid:20000", "lost.invalid:20000"])[0])
check("wrong chief", right[0], wrong[1])
check("proxy", right[0], http_proxy="http://proxy:3128", no_proxy="")

# %%
check("same index", right[1], right[1])
check("port taken", workers.tf_configs(pair.hosts)[0])
check("no such index", right[1].replace('"index": 1', '"index": 2'))
check("no TF_CONFIG", None)

# %% [markdown]
# Seven mistakes get a sentence. A worker that was not started gets none, because it may still
# start. For such a worker the others wait a minute under `mgpu cluster`, which then says who is
# missing. The command also writes TF_CONFIG for you.
#
# ## On GPUs
#
# All machines need equally many GPUs. On GPUs NCCL does the all-reduce, which begins while the
# backward pass still runs; [[18]] says what to do when it hangs. [Slurm](scripts/slurm.sh) and
# [Kubernetes](scripts/kubernetes.yaml) start the same launcher. For workers that come and go there
# are [parameter servers](../docs/parameter_servers.md). TensorFlow's workers listen on **all**
# interfaces of a machine and ask for no password: close their ports to strangers.
#
# ## With a model of another kind
#
# Here sentences of different lengths go through an embedding with a mask and BatchNormalization to
# two outputs, and the last batch is short. The same code runs on both workers, and then here
# without a strategy:

# %%
reader = """
import keras, numpy as np
layers = keras.layers
def train(scope):
    keras.utils.set_random_seed(8)
    draw = np.random.default_rng(8)
    words = draw.integers(1, 50, [205, 12]) * (np.arange(12) < draw.integers(1, 13, [205, 1]))
    y = {"kind": words.max(1) % 3, "score": words.mean(1, keepdims=True) / 10}
    with scope:
        given = keras.Input([12], dtype="int32")
        x = layers.GlobalAveragePooling1D()(layers.Embedding(50, 16, mask_zero=True)(given))
        x = layers.BatchNormalization()(x)
        outputs = {"kind": layers.Dense(3, "softmax")(x), "score": layers.Dense(1)(x)}
        model = keras.Model(given, outputs)
        losses = {"kind": "sparse_categorical_crossentropy", "score": "mse"}
        model.compile(keras.optimizers.SGD(0.1), losses)
    model.fit(words, y, batch_size=50, epochs=2, verbose=0)
    return f"loss {model.evaluate(words, y, batch_size=50, verbose=0)[0]:.2f}"
"""
pair.both(reader + "\nprint(train(strategy.scope()))")

# %%
exec(reader, here := {})
with tf.device(plan.host):
    print("one process:", here["train"](contextlib.nullcontext()))
pair.close()

# %% [markdown]
# The losses are equal to two decimals, with masks, the statistics of BatchNormalization and a short
# batch.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** With the function below nobody reads the last of 10 rows on 3 workers. Mend
# `rows_of(count, workers, index)`, which gives the numbers of the rows that a worker reads. For
# any count and any number of workers, each row has to be read once, and no worker may have two
# rows more than another.

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
# **2.** Write `reduce_seconds(size, workers, megabits, unlimited)`: the seconds of an all-reduce of
# `size` bytes over links of `megabits` Mbit/s, as in the last column of the table of links.
# `unlimited` is the time without a limit, in seconds.

# %% tags=["exercise"]
def reduce_seconds(size, workers, megabits, unlimited):
    return size / megabits


checks.reduce_seconds(reduce_seconds)

# %% tags=["solution"]
def reduce_seconds(size, workers, megabits, unlimited):
    sent = 2 * (workers - 1) / workers * size
    return sent * 8 / (megabits * 1e6) / 0.956 + unlimited


checks.reduce_seconds(reduce_seconds)

# %% [markdown]
# ## What we saw
#
# - With two lines added, `fit` on two workers had the losses of one process, and weights less than
#   1e-5 from its weights. Both workers held the same bits.
# - A worker waited without a word for another that was late.
# - An all-reduce sent 1.00 times 2(n - 1)P bytes, and half of that in float16.
# - A worker with more work made the other wait.
# - Without a seed some examples were read twice and some never, and `fit` stopped. Of eight
#   mistakes in the setup, `cluster.check` named seven.
#
# ## In practice
#
# Paste the two lines and run the script with `mgpu cluster --workers 2` on one machine first.
# Before you take a second machine, compare the seconds that your gradients take over its link with
# the seconds of a step.
#
# Next: [[next]].
