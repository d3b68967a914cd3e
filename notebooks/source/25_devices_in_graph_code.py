# %% [markdown]
# # Devices in graph code
#
# You inherit a program of 2017 that trains two graphs, each on a GPU of its own. It stops with `is
# being mapped to multiple devices`. When you have mended this, it runs and prints losses that
# change. But does it train, and do both GPUs work at once? Today each graph is a Keras model, and
# each model trains in a thread of its own:
#
# ```python
# with tf.device(device):
#     model.fit(images, labels)
# ```
#
# **In this lesson** you mend such a program, from [Wonik Jang's article](../docs/sources.md#jang),
# in three steps: its devices, its loop, and a thread for each graph. Then both graphs train at
# once, and have the weights of the Keras models to 1e-12.
#
# The program gives each session a GPU by a list, `visible_device_list`. TensorFlow numbers the GPUs
# of a list from 0, so two lists give one name, `/gpu:0`, to two GPUs. This is [the
# error](../docs/errors.md#mapped). So all sessions need one list, and each graph is built for a
# device of it:
#
# ![Left: two sessions of one process list GPU 0 and GPU 1. Each calls its own GPU number 0, which
# is an error. Right: the process has one list, and each graph is built for a device of
# it.](pictures/25_one_list.svg)
#
# **You need** [[04]], [[05]], [[16]], [[18]], [[23]] and [[24]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import jobs
from mgpu_helpers.lessons import digits, lesson_25
from mgpu_helpers.lessons.checks import lesson_25 as checks
from mgpu_helpers.lessons.state import apart

# %% [markdown]
# ## What still works
#
# The table has the options that the article and a [wiki page](../docs/sources.md#wiki) of 2017 set,
# and what replaces them ([calls](../docs/sources.md#calls)). A process takes its options of GPUs
# from its first session. It ignores options of memory in a later session, without an error:
#
# | in an old program | does it still work? | today |
# |---|---|---|
# | `log_device_placement` | yes | `tf.debugging.set_log_device_placement` |
# | `allow_soft_placement` | yes, off by default | on by default ([[04]]) |
# | `allow_growth` | first session only | `tf.config.experimental.set_memory_growth` |
# | `per_process_gpu_memory_fraction` | first session only | `memory_limit`, in MiB ([[05]]) |
# | `visible_device_list`, one for a script | first session only | `mgpu run` ([[16]]) |
# | another `visible_device_list` for each session | no: an error | `tf.device` for each model |
#
# ## A device for each graph
#
# The article trains two graphs whose hidden layers differ in width. Ours have layers an eighth as
# wide, no dropout and plain gradient descent:

# %%
def mean_loss(x, labels, hidden):
    draw = tf1.variance_scaling_initializer(2.0, seed=9)
    shapes = [3, 3, 1, 8], [3, 3, 8, 8], [3, 3, 8, 16], [256, hidden // 8], [hidden // 8, 10]
    weights = [tf1.get_variable(f"w{n}", each, tf1.float64, draw) for n, each in enumerate(shapes)]
    for kernel in weights[:3]:
        x = tf1.nn.relu(tf1.nn.conv2d(x, kernel, 1, "SAME"))
        x = tf1.nn.max_pool2d(x, 2, 2, "SAME")
    x = tf1.nn.relu(tf1.matmul(tf1.reshape(x, [-1, 256]), weights[3]))
    scores, classes = tf1.matmul(x, weights[4]), tf1.one_hot(labels, 10, dtype=tf1.float64)
    entropy = tf1.nn.softmax_cross_entropy_with_logits_v2(labels=classes, logits=scores)
    return tf1.reduce_mean(entropy)


# %% [markdown]
# `tf1.device` gives each graph its device. The operations have the same names in both graphs, so
# one loop can find them:

# %%
def build_graph(hidden, device):
    with tf1.Graph().as_default() as graph, tf1.device(device):
        x = tf1.placeholder(tf1.float64, [None, 28, 28, 1], name="input")
        labels = tf1.placeholder(tf1.int64, [None], name="label")
        loss = tf1.identity(mean_loss(x, labels, hidden), name="cross_entropy")
        tf1.train.GradientDescentOptimizer(0.125).minimize(loss, name="train_step")
        tf1.global_variables_initializer()  # an operation with the name "init"
    return graph


# %% [markdown]
# Both sessions get the same configuration, and `init` gives the weights their first values:

# %%
def start(hidden, device):
    session = tf1.Session(graph=build_graph(hidden, device), config=plan.session_config())
    session.run("init")
    return session


def weights_of(session):
    return session.run(session.graph.get_collection("trainable_variables"))


# %%
widths, homes = [2400, 4800], [plan.devices[0], plan.devices[-1]]  # hidden units in the article
sessions = [*map(start, widths, homes)]
begin = [*map(weights_of, sessions)]

# %% [markdown]
# ## What does the loop train?
#
# The article's loop runs both sessions with each batch, and fetches `cross_entropy:0`, the loss.
# Ours gives all batches to one session and then to the next, which trains the same. Each graph has
# five weights. Write down how many of them you expect to change in eight batches:

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
# No weight changed. A session computes only what a fetch needs. The loss does not need
# `train_step`, which updates the weights, and the loop does not fetch it. The losses change because
# the batches do. Here is the loop with the missing fetch:

# %%
try_loop("cross_entropy:0", "train_step")

# %% [markdown]
# ## Both graphs at once
#
# The loop has a second flaw. `session.run` returns when its step is done, so one device waits while
# the other works. With a thread for each session ([[18]]) both devices can work. We time a pass
# over the eight batches in each way:

# %%
def at_once(work, *given):
    with ThreadPoolExecutor(len(given[0])) as pool:
        return list(pool.map(work, *given))


# %% tags=["varies", "cover"]
def timed(session):
    return lesson_25.timed(session, batches)


passes = {"loop": [*map(timed, sessions)], "threads": at_once(timed, sessions)}
lesson_25.show(passes, homes).set_title("When each graph trained", loc="left")
plt.show()

# %% [markdown]
# White lines separate the eight steps. In the loop, the second graph begins when the first has done
# its pass. With threads, both train at the same time.
#
# ## Proof
#
# Do the graphs train what Keras trains? `lesson_25.build` makes a Keras model as `build` did in
# [[24]], with the widths of this lesson. Each model begins with the weights of its graph, and
# trains in a thread of its own:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")


def train(model, device):
    with tf.device(device):
        model.fit(images, labels, batch_size=64, shuffle=False, verbose=0)


models = [*map(lesson_25.build, widths, begin, homes)]
_ = at_once(train, models, homes)

# %% [markdown]
# New sessions begin with the same weights, because of `seed=9`, and train for the same eight steps,
# also in threads:

# %%
sessions = [*map(start, widths, homes)]
of_graphs = at_once(lambda session: run(session, "cross_entropy:0", "train_step"), sessions)
for session, model in zip(sessions, models):
    print("weights of fit to 1e-12:", apart(weights_of(session), model.get_weights()) < 1e-12)

# %% [markdown]
# ## Or a script for each graph
#
# The article also trains each graph in a script of its own. Script A has the `visible_device_list`
# "0" and script B has "1". With the runner of [[16]] no script has to know its GPU: each is shown
# only one, which has number 0 inside the script. So both run
# [train_graph.py](scripts/train_graph.py) with "0":

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
# ## Break it
#
# Many programs of 2017 set `allow_soft_placement`, so that they start on any machine. We build a
# graph for `/gpu:77`, which we do not have. Write down what happens without this option, and with
# it:

# %%
for soft in (False, True):
    config = plan.session_config(soft_placement=soft)
    session = tf1.Session(graph=build_graph(2400, "/gpu:77"), config=config)
    try:
        session.run("init")
        print(f"soft={soft}: no error, loss {run(session, 'cross_entropy:0')[0]:.2f}")
    except tf.errors.InvalidArgumentError as error:
        print(f"soft={soft}: {type(error).__name__}")

# %% [markdown]
# Without the option TensorFlow [cannot assign a device](../docs/errors.md#assign). With it,
# TensorFlow takes another device and says nothing. So a program with a wrong name may train on only
# one of your GPUs. These lines print where a session puts each operation:
#
# ```python
# from mgpu_helpers import trace
#
# config = plan.session_config(log_placement=True)
# with trace.placement() as log, tf1.Session(graph=graph, config=config) as session:
#     session.run("init")  # the first run places the whole graph
# print(log)
# ```
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
# two strings name the same device of this process. Job, replica and task do not count.

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
# number of the GPU that the program calls `name`. `outside("3,1,2", "2,0", "/gpu:1")` is 3: entry 1
# of "2,0" is 0, and entry 0 of "3,1,2" is 3.

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
# - With soft placement, a graph for a GPU that is not there ran without an error.
#
# ## In practice
#
# To keep the program, replace its `ConfigProto` by `plan.session_config(log_placement=True)`, print
# the placements, and check that the weights change. To replace it, make each graph a Keras model,
# and compare the weights after a few steps, as we did.
#
# This is the last lesson.
