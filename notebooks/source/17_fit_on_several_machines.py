# %% [markdown]
# # Fit on several machines
#
# Your training fills all GPUs of one machine, and a second machine is free. TensorFlow has a
# strategy for both together, but Keras 3's `fit` fails under it, and one wrong worker keeps all the
# others waiting.
#
# **In this lesson** you add two lines to a script and start it with a launcher, and `fit` trains in
# two processes the model that a single process would train.
#
# **You will learn** to
# - start `fit` on several machines, and prove that the model is that of one process,
# - read the configuration of a worker, and have it checked before anybody waits,
# - see that the workers share out every batch, and what happens if their data differ,
# - predict how long the exchange takes over a slow link, and when a second machine pays.
#
# **You need** [[07]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import contextlib
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import cluster
from mgpu_helpers.lessons import drawings, workers
from mgpu_helpers.lessons.checks import lesson_17 as checks

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The lines to paste
#
# The script [train_workers.py](scripts/train_workers.py) trains a small Keras model. The two lines
# to paste are the import and the line marked "added", under which the model's lines are indented:

# %%
path = "scripts/train_workers.py"
print(workers.to_paste(path))

# %% [markdown]
# A **worker** is one process. Usually each machine runs one, which drives all GPUs of that machine.
# You start the script on each machine with `mgpu cluster`:
#
# ```shell
# mgpu cluster --hosts a:20000,b:20000 --index 0 train_workers.py   # on machine a
# mgpu cluster --hosts a:20000,b:20000 --index 1 train_workers.py   # on machine b
# ```
#
# To try this, one machine is enough: `mgpu cluster --workers 2 train_workers.py` starts two
# processes there, and `cluster.run` does the same from Python. NVIDIA's NCCL refuses two workers on
# one GPU: with only one, set `MGPU_MODE=cores` first. The next cell does so; each worker computes
# on one core:

# %%
one_core = {"MGPU_MODE": "cores", "TF_NUM_INTRAOP_THREADS": "1"}
with mock.patch.dict(os.environ, one_core):
    report = cluster.run(path, ["--folder", folder / "two"], workers=2, logs=folder / "logs",
                         progress=False)  # fmt: skip
for worker in report:
    print(worker.name, worker.status, np.round(worker.result["history"]["loss"], 2))

# %% [markdown]
# `run_alone` runs the script in this process without the added line. Compare the losses:

# %%
alone = workers.run_alone(path, folder / "one", plan.host)
print("losses of one process", np.round(alone["history"]["loss"], 2))

# %% [markdown]
# The losses are equal. Next we compare the weights with those that the workers saved. Each worker
# also printed a digest of its weights and its optimizer's variables:

# %%
ours, theirs = alone["model"], keras.models.load_model(folder / "two" / "model.keras")
pairs = zip(ours.get_weights(), theirs.get_weights())
far = max(np.abs(mine - other).max() for mine, other in pairs)
print("weights less than 1e-5 apart:", far < 1e-5)
print("same bits on both workers:", report[0].result["state"] == report[1].result["state"])

# %% [markdown]
# The workers trained the model that one process trains. Only rounding differs, because they add in
# another order. Dropout is 0 here, because the workers would drop other units than one process. The
# saved file is from the script's callback ModelCheckpoint, which under `fit.strategy` writes only
# on worker 0, the **chief**.
#
# | | |
# |---|---|
# | **Use it when** | an exchange takes **under half of one machine's step** |
# | **It costs** | seconds for each start, an exchange in each step, waits for the slowest worker |
# | **Instead** | fill one machine first ([[07]]): its GPUs exchange gigabytes in a second |
#
# ## How it works
#
# `fit.strategy` finds the environment variable `TF_CONFIG`, takes TensorFlow's
# `MultiWorkerMirroredStrategy` and mends Keras 3's `fit`, which fails under that strategy ([the
# error](../docs/errors.md#perreplica)). `TF_CONFIG` lists the addresses of all workers and says
# which of them this worker is:

# %%
print(*workers.tf_configs(["a:20000", "b:20000"]), sep="\n")

# %% [markdown]
# By hand you set this variable on each machine and start your script. Here we start two processes
# with it set; they run any code that we send. `show` sends code to both, or to those named, and
# prints what they print. Worker 0 now makes the strategy, and worker 1 is late:

# %%
pair = workers.Pair()
pair.show("from mgpu_helpers import fit; print('here')")
pair.show("strategy = fit.strategy()", workers=[0], seconds=1)

# %% [markdown]
# Worker 0 waits, for up to an hour. Once worker 1 makes its strategy, both go on. An **all-reduce**
# then adds index plus 1 of both and returns the sum to each:

# %%
pair.show("strategy = fit.strategy()", workers=[1])
pair.show("""
index = strategy.cluster_resolver.task_id
def add(x):
    return strategy.reduce("sum", strategy.run(lambda: tf.constant(x)), axis=None).numpy()
print(f"one of {strategy.num_replicas_in_sync}; the sum is {add(index + 1.0):.0f}")""")

# %% [markdown]
# In `fit` the numbers are gradients. Each worker divides its loss by the size of the whole batch,
# so the sum of their gradients is that of the whole batch. Every worker reads all the data and
# takes its part of each batch. Only data read from several files are shared out by file. `rows`
# collects what a worker takes:

# %%
pair.show("""
def rows(data):
    parts = [strategy.run(lambda x: x, (batch,))
             for batch in strategy.experimental_distribute_dataset(data)]
    return [int(n) for part in parts for n in strategy.experimental_local_results(part)[0]]
numbers = tf.data.Dataset.range(20)
print(rows(numbers.batch(5)))""")

# %% [markdown]
# Of each batch of five, worker 0 takes two and worker 1 three:
#
# ![Of one batch of five rows, 0 and 1 go to worker 0 on machine a, and 2, 3 and 4 to worker 1 on
# machine b. Each has a copy of all weights. The gradients of both go into one all-reduce, and each
# updates its copy, to the same new weights.](pictures/17_two_machines.svg)
#
# ## When a second machine pays
#
# Two machines halve the batch of each, so a step of s seconds becomes s/2 + x at best, with x for
# the exchange of the gradients. That is less than s if **s > 2x**:
#
# ![Bars of a step. One machine computes for s. Two compute for s/2 and exchange gradients for x:
# with a small x they end before one machine, with x = s/2 at the same time, and with a large x
# after it.](pictures/17_pays.svg)
#
# If the batch doubles instead, examples per second rise once **s > x**.
#
# What is x? The workers exchange the P bytes of the gradients, about `4 * model.count_params()`, in
# a ring ([[09]]). Each of n workers sends a piece of P/n bytes in each of 2(n - 1) rounds, so
# 2(n - 1)P/n bytes in all.
#
# How long does that take over a slow link? On one machine `benchmarks/link.py` gives each worker a
# network of its own, with links of 200 or 50 Mbit/s, and its [card](../results/link.json) has the
# seconds of an all-reduce of 5 MB. The column "ring" divides a worker's bytes by the link's rate:

# %% tags=["nbval-ignore-output"]
card = json.loads(Path("../results/link.json").read_text())["numbers"]
print("workers  Mbit/s  measured     ring")
for row in card.get("links", []):
    n, rate = row["workers"], row["megabits"]
    ring = 2 * (n - 1) / n * 5e6 * 8 / (rate * 1e6)
    print(f"{n:7}{rate:8}{row['seconds']:8.3f} s{ring:7.3f} s")

# %% [markdown]
# An exchange takes 10 to 20 % longer than "ring". TCP's overhead and a fixed 0.02 s (exercise 2)
# explain most of it, except in the last row, where we do not know why.
#
# Over 10 Gbit/s, the 102 MB of a network like ResNet-50 take at least 0.08 s on two machines. By
# s > 2x a step then has to take over 0.16 s. `fit.strategy` sends the last layers' gradients first,
# so a part of x passes while the backward pass still runs.
#
# ## When not to
#
# All workers leave an all-reduce together, so the fast ones wait for the slow ones. Here a pause
# stands for the computing, twice as long on worker 1. Both note when computing begins, when it
# ends, and when the all-reduce ends. `ask` returns what they print:

# %% tags=["varies", "cover", "nbval-ignore-output"]
marks = pair.ask("""
import json, time
def step():
    began = time.monotonic()
    time.sleep(0.05 * (index + 1))
    computed = time.monotonic()
    add(1.0)
    return began, computed, time.monotonic()
print(json.dumps([step() for _ in range(7)][1:]))""")
drawings.workers([json.loads(answer) for answer in marks])
plt.show()

# %% [markdown]
# The pair is as fast as its slower worker: for about half of the time worker 0 waits. So take
# equal machines, and time each worker's step alone before you blame the network.
#
# ## Break it
#
# **Another order on each worker.** Without a seed each worker shuffles differently, and takes its
# part of a different batch. What do `fit.check` and `fit` say to such data?

# %% tags=["nbval-ignore-output"]
said = pair.ask("""
import keras
with strategy.scope():
    model = keras.Sequential([keras.Input([]), keras.layers.Reshape([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
labelled = tf.data.Dataset.range(20).map(lambda n: (tf.cast(n, tf.float32), 1.0))
data = labelled.shuffle(20).batch(10)
print(fit.check(model, data)[0])
model.fit(data, verbose=0)""")
print(said[0], "", f"worker 1 says the same: {said[1] == said[0]}", sep="\n")

# %% [markdown]
# After its first step `fit` compares what the workers have read, and stops them all where that
# differs. The cure is the same seed on all workers, as in `shuffle(20, seed=1)`.
#
# **A mistake in the setup.** One worker made each mistake below; in the last row it was not
# started. The others always waited. The table has what the worker with the mistake did, and what
# `cluster.check` says. The check reads the TF_CONFIG of one or all workers before TensorFlow
# starts.
#
# | mistake | the worker itself | `cluster.check` |
# |---|---|---|
# | no TF_CONFIG | trains alone, silently | it is not set |
# | wrong address of the chief | waits | give all the same list |
# | `http_proxy` without `no_proxy` | waits | gRPC would ask that proxy |
# | no such host | waits | the host does not resolve |
# | port taken by another program | "Could not start gRPC server" | the port is taken |
# | same index twice, on one machine | "Could not start gRPC server" | two are worker 1 |
# | no such index in the list | ValueError | give an index from 0 to 1 |
# | not started | is not there | nothing: it may still start |
#
# Here are its sentences for the first three:

# %%
right, wrong = (workers.tf_configs([f"{chief}:20000", "b:20000"]) for chief in "ac")
print(*cluster.check(None))
print(*cluster.check(right[0], wrong[1]))
with mock.patch.dict(os.environ, http_proxy="http://proxy:3128", no_proxy=""):
    print(cluster.check(workers.tf_configs(pair.hosts)[0])[0])

# %% [markdown]
# `mgpu cluster` writes TF_CONFIG for you. With it, workers give up after a minute if one is
# missing, not after an hour, and the launcher says which.
#
# ## On GPUs
#
# All machines need equally many GPUs. NCCL does the all-reduce; [[18]] says what to do when it
# hangs. [Slurm](scripts/slurm.sh) and [Kubernetes](scripts/kubernetes.yaml) start the same
# launcher. For workers that come and go there are [parameter
# servers](../docs/parameter_servers.md). TensorFlow's workers listen on **all** interfaces of a
# machine and ask for no password: close their ports to strangers.
#
# ## With a model of another kind
#
# Here sentences of different lengths go through an embedding with a mask and BatchNormalization,
# and the last batch is short. The same code runs on both workers, and then here:

# %%
reader = """
import keras, numpy as np
layers = keras.layers
def train(scope):
    keras.utils.set_random_seed(9)
    draw = np.random.default_rng(8)
    words = draw.integers(1, 50, [205, 12]) * (np.arange(12) < draw.integers(1, 13, [205, 1]))
    kinds = words.max(1) % 3
    with scope:
        model = keras.Sequential([
            keras.Input([12]), layers.Embedding(50, 16, mask_zero=True),
            layers.GlobalAveragePooling1D(), layers.BatchNormalization(),
            layers.Dense(3, "softmax")])
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    model.fit(words, kinds, batch_size=50, epochs=2, verbose=0)
    return model.evaluate(words, kinds, batch_size=50, verbose=0)
"""
theirs = [float(loss) for loss in pair.ask(reader + "print(train(strategy.scope()))")]
print("losses of two workers", np.round(theirs, 2))

# %%
exec(reader, here := {})
with tf.device(plan.host):
    loss = here["train"](contextlib.nullcontext())
print("loss of one process", round(loss, 2))
print("less than 1e-4 apart:", np.abs(loss - np.array(theirs)).max() < 1e-4)
pair.close()

# %% [markdown]
# The losses agree, because under `fit.strategy` BatchNormalization takes the mean and the variance
# of the whole batch.
#
# ## On your own
#
# Under each exercise is its solution, closed until you click *1 cell hidden*.
#
# **1.** With the function below nobody reads the last of 10 rows on 3 workers. Mend `rows_of(count,
# workers, index)`, which gives the numbers of the rows that a worker reads. Each row has to be read
# once, and no worker may have two rows more than another.

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
# **2.** TCP carries 95.6 % of the rate of these links, and without any limit the workers still need
# `unlimited` seconds: about 0.02 here. Write `reduce_seconds(size, workers, megabits, unlimited)`:
# the seconds of a ring's all-reduce of `size` bytes over links of `megabits` Mbit/s at what TCP
# carries, plus `unlimited`.

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
# - A slower worker made the other wait.
# - Without a seed `fit.check` named the mistake, and `fit` stopped all workers.
#
# ## In practice
#
# Paste the two lines and run the script with `mgpu cluster --workers 2` on one machine first, with
# `MGPU_MODE=cores` if it has a single GPU. Before you take a second machine, compare the seconds of
# a step with twice those of an exchange.
#
# Next: [[next]].
