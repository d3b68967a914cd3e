# %% [markdown]
# # Devices in graph code
#
# You inherit a program of 2017 that gives each of its two graphs a GPU. It runs and prints losses
# that change, but does it train? And which of its settings still act?
#
# **In this lesson** you run programs of 2017 that place graphs on devices, find a loop that never
# trains, and learn which lines of today do the same.
#
# ![Left: two sessions of one process list GPU 0 and GPU 1. Each calls its own GPU number 0, which
# is an error. Right: the process has one list, and each graph is built for a device of
# it.](pictures/25_one_list.svg)
#
# Graphs and scripts with a GPU each come from [Wonik Jang's article](../docs/sources.md#jang), the
# log and the memory from a [wiki page](../docs/sources.md#wiki). Two graphs of the article will
# train to the weights of these lines, to 1e-12:
#
# ```python
# with tf.device(device):  # in a thread for each model
#     model.fit(images, labels)
# ```
#
# **You need** [[04]], [[18]] and [[23]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import charts, jobs, trace
from mgpu_helpers.lessons import digits, networks
from mgpu_helpers.lessons.checks import lesson_25 as checks
from mgpu_helpers.lessons.pretend import gpu_options, pretend_gpus
from mgpu_helpers.lessons.state import apart

# %% [markdown]
# ## Two graphs in one process
#
# The article trains two graphs whose hidden layers differ. Each session lists another GPU, which is
# an [error](../docs/errors.md#mapped), because a process numbers its GPUs only once. So `tf.device`
# gives each graph its device here, and both sessions get the same configuration. The operations
# have equal names, so that one loop can find them in both graphs:

# %%
widths, homes = [2400, 4800], [plan.devices[0], plan.devices[-1]]  # hidden units in the article


def build_graph(width, device):
    network = networks.jang(width, width=0.125)  # an eighth as wide
    with tf.Graph().as_default() as graph, tf.device(device):
        x = tf1.placeholder(tf.float64, [None, 28, 28, 1], name="input")
        y = tf1.placeholder(tf.int64, [None], name="label")
        start = networks.initial(network).items()
        weights = {n: tf1.get_variable(n, initializer=np.float64(value)) for n, value in start}
        loss = networks.loss(y, networks.logits(network, weights, x))
        tf.identity(loss, name="cross_entropy")
        tf1.train.GradientDescentOptimizer(0.125).minimize(loss, name="train_step")
        tf1.global_variables_initializer()
    return graph


# %%
config = plan.session_config()
sessions = [tf1.Session(graph=build_graph(*pair), config=config) for pair in zip(widths, homes)]
for session in sessions:
    session.run("init")


def weights_of(session):
    return session.run(session.graph.get_collection("trainable_variables"))


begin = [weights_of(session) for session in sessions]

# %% [markdown]
# ## Break it
#
# What `session.run` is asked for is called a **fetch**. The article's loop fetches
# `cross_entropy:0` for each batch. Each graph has five weights, three of convolutions and two of
# dense layers. Write down how many of them you expect to change in eight batches:

# %%
images, labels = digits.load(512)
batches = list(zip(np.split(images, 8), np.split(labels, 8)))


def run(session, *fetches):
    results = [session.run(fetches, {"input:0": x, "label:0": y}) for x, y in batches]
    return [loss for loss, *_ in results]


# %%
def try_loop(*fetches):
    for session, before in zip(sessions, begin):
        losses = run(session, *fetches)
        changed = sum(np.any(a != b) for a, b in zip(weights_of(session), before))
        print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}, weights that changed: {changed}")


try_loop("cross_entropy:0")

# %% [markdown]
# No weight changed. A session computes only what a fetch needs, and nobody fetched `train_step`.
# The losses still differ from batch to batch, so the output looks like a training. Here is the loop
# with the missing fetch:

# %%
try_loop("cross_entropy:0", "train_step")

# %% [markdown]
# Now all five weights change, and both losses fall.
#
# ## Both graphs at once
#
# The loop has a second flaw. `session.run` returns when its step is done, so only one of the two
# devices works at a time. With a thread for each session ([[18]]), both can. We time a pass in each
# way:

# %%
def timed(session):
    spans = []
    for x, y in batches:
        begun = time.perf_counter()
        session.run("train_step", {"input:0": x, "label:0": y})
        spans.append([begun, time.perf_counter()])
    return spans


def at_once(work, *given):
    with ThreadPoolExecutor(len(given[0])) as pool:
        return list(pool.map(work, *given))


# %% tags=["varies", "cover"]
rows, places = {}, {}
for way, results in {"loop": [*map(timed, sessions)], "threads": at_once(timed, sessions)}.items():
    for i, (home, spans) in enumerate(zip(homes, results), 1):
        rows[f"{way}: graph {i}"] = np.array(spans) - results[0][0][0]
        places[f"{way}: graph {i}"] = home
charts.spans(rows, places).set_title("When each graph trained", loc="left")
plt.show()

# %% [markdown]
# White lines separate the eight steps of a pass. In the loop, the second graph begins when the
# first has done its pass. With threads, both train at the same time.
#
# ## Proof
#
# Today's lines are a Keras model for each graph. Each begins with the weights of its graph, and
# trains in a thread of its own:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
layers = keras.layers


def build(width, weights, home):
    stack = [keras.Input([28, 28, 1])]
    for filters in (8, 8, 16):
        stack.append(layers.Conv2D(filters, 3, 1, "same", activation="relu", use_bias=False))
        stack.append(layers.MaxPooling2D(padding="same"))
    stack += [layers.Flatten(), layers.Dense(width // 8, "relu", use_bias=False)]
    with tf.device(home):
        model = keras.Sequential([*stack, layers.Dense(10, use_bias=False)])
    model.set_weights(weights)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.device(home):
        model.compile(keras.optimizers.SGD(0.125), loss, jit_compile=False)
    return model


# %%
def train(model, device):
    with tf.device(device):
        model.fit(images, labels, batch_size=64, shuffle=False, verbose=0)


models = [*map(build, widths, begin, homes)]
_ = at_once(train, models, homes)

# %% [markdown]
# The graphs begin again and train for the same eight steps, in threads as well:

# %%
def train_graph(session):
    session.run("init")
    return run(session, "cross_entropy:0", "train_step")


of_graphs = at_once(train_graph, sessions)
for session, model in zip(sessions, models):
    print("weights of fit to 1e-12:", apart(weights_of(session), model.get_weights()) < 1e-12)

# %% [markdown]
# The graphs have trained to the weights of `fit`.
#
# ## A GPU for each script
#
# The article also trains each graph in a script of its own. Script A sets `visible_device_list` to
# "0", script B to "1". That still works, but each script has to know its GPU. The runner of [[16]]
# shows each script a single GPU, which has number 0 inside, so "0" is right for both.
# [train_graph.py](scripts/train_graph.py) is such a script:

# %%
folder = Path(tempfile.mkdtemp())
script = [sys.executable, "scripts/train_graph.py", "--gpu=0"]
commands = [[*script, f"--hidden={width}", f"--output={folder / str(width)}"] for width in widths]
report = jobs.run(commands, names="AB", logs=folder, progress=False)

# %%
for job, width, of_graph in zip(report, widths, of_graphs):
    losses = json.loads((folder / f"{width}/train_graph.json").read_text())
    print(f"script {job.name} {job.status}, loss {losses[0]:.2f} to {losses[-1]:.2f}")
    print("  losses of the graph to 1e-12:", np.allclose(of_graph, losses, rtol=1e-12, atol=0))

# %% [markdown]
# ## Names and the log
#
# A **device string** such as `/cpu:0` or `/gpu:1` names a device, and `tf.device` takes it as in
# 2017. The wiki's program multiplies on two GPUs and adds on the host. With `log_device_placement`
# its session reports where it plans each operation. Here `session_config` returns a `ConfigProto`
# that also knows the plan's devices, and `trace.placement` collects the report. Then the same
# function runs as a `tf.function`:

# %%
def program(names):
    with tf.device(plan.host):
        a = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    products = []
    for name in names:
        with tf.device(name):
            products.append(tf.matmul(a, a))
    with tf.device(plan.host):
        return tf.add_n(products)


# %%
with tf.Graph().as_default() as graph:
    total = program(homes)
config = plan.session_config(log_placement=True)
with trace.placement() as log, tf1.Session(graph=graph, config=config) as session:
    session.run(total)
with trace.placement() as today:
    tf.function(program)(homes)
for name in ("MatMul", "MatMul_1", "AddN"):
    print(f"{name:8}  session {log.device_of(name)}  tf.function {today.device_of(name)}")

# %% [markdown]
# Both plan the products and the sum on the same devices.
#
# ## Memory
#
# A `ConfigProto` also holds the options of memory. TensorFlow reads them once, at its first call in
# a process. A session that comes later cannot change them, and gets no error. Which options do two
# calls of today set? Because TensorFlow has started here, `pretend_gpus` lists an invented GPU:

# %%
with pretend_gpus(1) as gpus:
    tf.config.experimental.set_memory_growth(gpus[0], True)
    tf.config.set_visible_devices(gpus, "GPU")
    for option, value in gpu_options().ListFields():
        print(option.name, value)

# %% [markdown]
# They set two options of the `ConfigProto`. Another, `per_process_gpu_memory_fraction`, is a share
# of each GPU's memory, and today's `memory_limit` is a number of MiB. The wiki's share of 0.4
# becomes 6553 on a GPU of 16 GiB ([[05]]).
#
# ## What still works
#
# `tf1` is `tensorflow.compat.v1`, where these names still are:
#
# | in the sources | does it still work? | today |
# |---|---|---|
# | `/cpu:0`, `/gpu:1`, `tf.device` | yes | the same; names from `plan.devices` |
# | `tf.Session`, `tf.ConfigProto` | in `tf1` | `fit`; `tf.config` before TensorFlow starts |
# | `log_device_placement` | yes | `tf.debugging.set_log_device_placement` |
# | `allow_soft_placement` | yes, off by default | on by default ([[04]]) |
# | `allow_growth` | in the first session | `tf.config.experimental.set_memory_growth` |
# | `per_process_gpu_memory_fraction` | in the first session | `memory_limit`, in MiB |
# | `visible_device_list`, one for a script | in the first session | `mgpu run` |
# | another `visible_device_list` for each session | no: an error | `tf.device` for each model |
# | `tf.placeholder`, `get_tensor_by_name` | in `tf1` | arguments of `fit` |
# | `tf.train.RMSPropOptimizer` | in `tf1`; its mean begins with 1 | Keras's `RMSprop`, from 0 |
# | `tf.global_variables_initializer` | in `tf1` | nothing: Keras does it |
#
# | | a session with devices of its own |
# |---|---|
# | **Use it when** | you have to know what an old program did |
# | **It costs** | settings that are ignored in silence, and one loop for each session |
# | **Instead** | `mgpu run` for scripts ([[16]]), threads with `fit` for models ([[18]]) |
#
# ## On GPUs
#
# The numbers in `visible_device_list` count among the GPUs that `CUDA_VISIBLE_DEVICES` shows.
# Inside the program the GPUs are numbered from 0, in the order of `visible_device_list`.
#
# ## On your own
#
# **1.** Logs and programs write one device in several ways: `/gpu:1`, `/GPU:1`, `/device:GPU:1` and
# `/job:localhost/replica:0/task:0/device:GPU:1`. Write `same(one, other)`, which returns True if
# two strings name the same device of this process.

# %% tags=["exercise"]
def same(one, other):
    return one == other


checks.same(same)

# %% tags=["solution"]
def same(one, other):
    a, b = map(tf.DeviceSpec.from_string, (one, other))
    return (a.device_type, a.device_index) == (b.device_type, b.device_index)


checks.same(same)

# %% [markdown]
# **2.** A program starts with `CUDA_VISIBLE_DEVICES` set to `shown`, and its session has the
# `visible_device_list` `listed`. Write `outside(shown, listed, name)`, which returns nvidia-smi's
# number of the GPU that the program calls `name`. `outside("3,1,2", "2,0", "/gpu:1")` is 3.

# %% tags=["exercise"]
def outside(shown, listed, name):
    return int(name[-1])


checks.outside(outside)

# %% tags=["solution"]
def outside(shown, listed, name):
    inside = int(name.rpartition(":")[2])
    middle = int(listed.split(",")[inside])
    return int(shown.split(",")[middle])


checks.outside(outside)

# %% [markdown]
# ## What we saw
#
# - The article's loop changed 0 weights, because it never fetched `train_step`.
# - Two graphs had the weights of `fit` and the losses of two scripts, to 1e-12.
# - A session and a `tf.function` planned both products and their sum on the same devices.
#
# ## In practice
#
# Pass `plan.session_config()` instead of the old `ConfigProto`. Then read its log, and check that
# the weights change.
#
# Next: [[next]].
