# %% [markdown]
# # Fit on several machines
#
# Your training fills all GPUs of one machine, and you have a second machine. TensorFlow has a
# strategy for both together, but the `fit` of Keras 3 fails under it ([issue
# 20585](../docs/sources.md)).
#
# **In this lesson** you add three lines to a script and start it with a launcher. Then `fit` trains
# in two processes the model that one process would train, with losses and weights less than 1e-5
# apart.
#
# ![Of five rows two go to worker 0 and three to worker 1. Their gradients go into one all-reduce,
# and each updates its copy of all weights.](pictures/21_two_machines.svg)
#
# A **worker** is one process. Usually each machine runs one, which drives all of its GPUs. Each
# worker computes gradients of its part of every batch. An **all-reduce** adds them up and returns
# the sum to each worker, so all make the same update. These lines do it:
#
# ```python
# import keras
# from mgpu_helpers import devices, fit  # added
#
# keras.utils.set_random_seed(1)  # added: the same order on all workers
# with fit.strategy(devices.setup()).scope():  # added
#     model = build()  # makes and compiles your model
# model.fit(images, labels)  # batch_size is that of all workers together
# ```
#
# ```shell
# mgpu cluster --hosts a:20000,b:20000 --index 0 train.py  # on machine a
# mgpu cluster --hosts a:20000,b:20000 --index 1 train.py  # on machine b
# ```
#
# Both machines need the script and this package.
#
# **You need** [[01]] and [[07]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import json
import tempfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import cluster
from mgpu_helpers.lessons import drawings, workers
from mgpu_helpers.lessons.checks import lesson_21 as checks

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Try it
#
# One machine is enough to try this: `mgpu cluster --workers 2` starts both workers there, and so
# does `cluster.run` in Python. NVIDIA's library NCCL refuses two workers on one GPU, so ours train
# on cores. The script [train_workers.py](scripts/train_workers.py) trains a small network in three
# passes of eight steps. With `--slow`, worker 1 pauses 0.05 s before each step, for a later
# section:

# %%
script = "scripts/train_workers.py"
with workers.on_cores():
    report = cluster.run(script, ["--slow", "0.05", "--folder", folder / "two"], workers=2,
                         logs=folder / "logs", progress=False)  # fmt: skip
for worker in report:
    print(worker.name, worker.status, np.round(worker.result["history"]["loss"], 2))

# %% [markdown]
# `worker.result` is the last line that a worker prints, read as JSON.
#
# ## Proof
#
# `run_alone` runs the script in this process, without `fit.strategy`. We compare its losses and
# weights with those of the workers. Each worker also returned a **digest** of its weights and its
# optimizer, a short text that differs if any bit does:

# %%
alone = workers.run_alone(script, folder / "one", plan.host)
print("losses of one process", np.round(alone["history"]["loss"], 2))

# %%
ours, theirs = alone["model"], keras.models.load_model(folder / "two" / "model.keras")
losses = alone["history"]["loss"], report[0].result["history"]["loss"]
weights = ours.get_weights(), theirs.get_weights()
for name, both in {"losses": losses, "weights": weights}.items():
    far = max(np.abs(mine - other).max() for mine, other in zip(*both))
    print(f"{name} less than 1e-5 apart:", far < 1e-5)
print("same bits on both workers:", report[0].result["state"] == report[1].result["state"])

# %% [markdown]
# The workers trained the same model. Only rounding differs, because the gradients are added in
# another order.
#
# | | |
# |---|---|
# | **Use it when** | one machine is full, and its steps are long, as counted below |
# | **It costs** | seconds for the start, an exchange in each step, waits for the slowest worker |
# | **Instead** | fill one machine first: its GPUs exchange gigabytes in a second |
#
# ## By hand
#
# To find the others, each worker reads its environment variable `TF_CONFIG`, which has the
# addresses of all workers and its own index. The launcher writes it:

# %%
def config(hosts, index):
    return json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})


hosts = ["a:20000", "b:20000"]
print(config(hosts, 0))

# %% [markdown]
# If `TF_CONFIG` lists several workers, `fit.strategy` makes TensorFlow's
# `MultiWorkerMirroredStrategy`, and mends `fit` for it.
#
# Why is the sum of the gradients the right one? Take the five rows of the picture, with the values
# 1 to 5. The loss is the mean of (w·x)², at w = 1. One worker has two rows and the other three, and
# each divides by the size of the **global batch**, which is 5:

# %%
def gradient(x, size):
    return float(tf.reduce_sum(2 * x**2) / size)


with tf.device(plan.host):
    x = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0])
    print("whole batch", gradient(x, 5))
    print("workers", gradient(x[:2], 5), "+", gradient(x[2:], 5))

# %% [markdown]
# ## The slowest worker decides
#
# No worker can leave the all-reduce before all have come. Here are the eight steps of the last
# pass:

# %% tags=["varies", "cover"]
drawings.workers([worker.result["times"][-8:] for worker in report])
plt.show()

# %% [markdown]
# Worker 0 begins each step at once, and waits in it for worker 1, the **straggler**. Time a step of
# each machine alone before you blame the network.
#
# ## When a second machine pays
#
# Two machines compute half of the batch each, and exchange their gradients, which takes x seconds.
# If half of the batch takes half of the time, a step of s seconds becomes s/2 + x, which is less
# than s if **s > 2x**.
#
# To find x, count what is sent. The gradients have P bytes, 4 for each parameter. In a **ring** of
# n workers each sends 2(n - 1)/n · P bytes. Over a link of 10 Gbit/s this takes at least:

# %%
resnet = 25_557_032  # the parameters of a ResNet-50
for name, weights in {"our network": ours.count_params(), "ResNet-50": resnet}.items():
    sent = 2 * (2 - 1) / 2 * 4 * weights
    print(f"{name:12} {sent:>13,.0f} bytes, {1000 * sent * 8 / 10e9:6.2f} ms")

# %% [markdown]
# If nothing is computed during the exchange, a step of ResNet-50 has to take more than 164 ms on
# one machine ([[20]]).
#
# ## Break it
#
# Write down what two workers do if worker 1 gets
#
# 1. no TF_CONFIG,
# 2. a list with another address of worker 0,
# 3. the index of worker 0.
#
# `cluster.check` finds these mistakes before any worker is started:

# %%
print(*cluster.check(None))
print(*cluster.check(config(hosts, 0), config(["c:20000", "b:20000"], 1)))
print(*cluster.check(config(hosts, 0), config(hosts, 0)))

# %% [markdown]
# We also started such workers:
#
# 1. Worker 1 trains a model of its own, without an error, and worker 0 waits for it.
# 2. Both wait for up to an hour, if no launcher ends them.
# 3. On one machine, one ends with "Could not start gRPC server", and the other waits.
#
# If a worker does not come, the launcher ends the others after ten minutes and names it. [Other
# mistakes](../docs/package.md#several-machines) have a page.
#
# All workers also have to read the same data in the same order. `fit` shuffles arrays, so the lines
# above set a seed. A dataset needs one of its own, as in `shuffle(1000, seed=1)`.
#
# ## On GPUs
#
# All machines need equally many GPUs, and NCCL does the all-reduce. [Slurm](scripts/slurm.sh) and
# [Kubernetes](scripts/kubernetes.yaml) start the same launcher. TensorFlow's workers listen on
# **all** interfaces of a machine and ask for no password, so close their ports to strangers.
#
# ## On your own
#
# **1.** The function below gives each worker its rows, but of 10 rows on 3 workers nobody reads the
# last. Mend `rows_of(count, workers, index)`, which returns the numbers of the rows that worker
# `index` reads. Each row has to be read once, and no worker may have two rows more than another.

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
# **2.** How long does an all-reduce take over slow links? Write
# `reduce_seconds(size, workers, megabits, unlimited)` for gradients of `size` bytes, in a ring with
# links of `megabits` Mbit/s. Only 95.6 % of this rate is left for gradients. Add `unlimited`, the
# seconds for copying and adding, which pass over a link of any speed.

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
# - On two workers `fit` had losses and weights less than 1e-5 from those of one process, and both
#   workers held the same bits.
# - Two parts of a batch had gradients of 2.0 and 20.0, and the whole batch had 22.0.
#
# ## In practice
#
# Paste the lines, and run the script with `mgpu cluster --workers 2` on one machine first, with
# `MGPU_MODE=cores` if it has a single GPU. Then compare a step with twice an exchange.
#
# Next: [[next]].
