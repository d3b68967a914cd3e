# %% [markdown]
# # Train several models at once
#
# You train several Keras models, for an ensemble or to compare them. One ends, the next begins, and
# all the time only one of your GPUs works.
#
# **In this lesson** Keras models train at the same time in one process, on different devices, and
# vote on digits that they have not seen.
#
# **You will learn** to
# - call `fit` in a thread for each model,
# - choose between threads, one function and processes,
# - prove that each model learned what it would have learned alone,
# - join their predictions.
#
# **You need** [[00]] and [[01]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from keras import layers

from mgpu_helpers import charts, timing, trace
from mgpu_helpers.lessons import digits, drawings, networks
from mgpu_helpers.lessons.checks import lesson_06 as checks
from mgpu_helpers.lessons.lesson_06 import stepped, timed, watched

# %% [markdown]
# ## The lines to paste
#
# `build` makes and compiles a Keras model that reads digits, the network of the article
# *Multi-GPUs* by Wonik Jang ([2017](../docs/sources.md#jang)), an eighth as wide. Put your own
# model there. `shuffle` is off only to give all ways below the same batches; leave yours on. The
# second cell makes two models, one for the first device of the plan, and one for the last. Each is
# built **and compiled** in the block of its device, because the optimizer and the metrics have
# variables too:

# %%
def build(units, dropout=0.2, rate=5e-3):
    model = keras.Sequential([keras.Input([28, 28, 1])])
    for filters in [8, 8, 16]:
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu", use_bias=False))
        model.add(layers.MaxPooling2D(padding="same"))
        model.add(layers.Dropout(dropout))
    model.add(layers.Flatten())
    model.add(layers.Dense(units, activation="relu", use_bias=False))
    model.add(layers.Dropout(dropout))
    model.add(layers.Dense(10, activation="softmax", use_bias=False))
    adam = keras.optimizers.Adam(rate, epsilon=1e-8)
    model.compile(adam, "sparse_categorical_crossentropy", jit_compile=False)
    return model


images, labels = digits.load(1024)
options = {"batch_size": 128, "shuffle": False, "verbose": 0}

# %%
names, units, homes = ["small", "large"], [300, 600], [plan.devices[0], plan.devices[-1]]


def build_both():
    models = []
    for size, device in zip(units, homes):
        keras.utils.set_random_seed(size)
        with tf.device(device):
            models.append(build(size))
    return models


models = build_both()

# %% [markdown]
# Then each `fit` runs in a **thread**, a part of a program that runs beside its other parts.
# `pool.map` calls `train` for all models at the same time and returns the histories in the order of
# the models. The second cell traces a step of each model in the block of its device, as in `train`,
# and prints where the convolutions ran. A trace leaves the weights as they were:

# %%
def train(model, device, epochs=2, callbacks=None):
    with tf.device(device):
        return model.fit(images, labels, epochs=epochs, callbacks=callbacks, **options).history


with ThreadPoolExecutor(len(models)) as pool:
    histories = list(pool.map(train, models, homes))

# %%
for name, model, device, history in zip(names, models, homes, histories):
    with tf.device(device):
        step = trace.fit_step(model, (images[:128], labels[:128]))
    ran = {op.device for op in step.ops if "Conv2D" in op.type}
    print(f"{name}: loss {history['loss'][-1]:.1f}, convolutions on", *ran)

# %% [markdown]
# Each traced step ran on its model's device. The table compares threads with two other ways:
#
# | | use it when | it costs |
# |---|---|---|
# | **a thread for each** | each fits on a GPU, and you keep `fit` | threads take turns in Python |
# | **one function** (below) | steps are short, and equally many for all | you write the loop |
# | **a process for each** ([[04]]) | one crash must not end the rest | TensorFlow starts in each |
#
# ## How it works
#
# The upper half of the drawing shows what most loops do. The lower half is the best that the lines
# above can do:
#
# ![Two devices over time. In turn, each is idle while the other trains. At once, both begin
# together.](pictures/06_turns.svg)
#
# Here are both ways as functions.
#
# Does a new thread keep the `tf.device` block? In one, `look` makes a tensor in this thread and one
# in a new thread:

# %% tags=["unplaced"]
def in_turn(work, *given):
    return list(map(work, *given))


def at_once(work, *given):
    with ThreadPoolExecutor(len(given[0])) as pool:
        return list(pool.map(work, *given))


def look(who):
    return f"{who} put a tensor on {devices.short(tf.ones([]).device)}"


with tf.device(plan.devices[-1]):
    print(look("this thread"))
    print(*at_once(look, ["another thread"]))

# %% [markdown]
# The other thread's tensor is on the default device: a thread does **not** inherit the `tf.device`
# block around its start. That is why `train` opens the block itself.
#
# A seed belongs to the whole process. Here two threads set a seed each, wait for each other, and
# build. Do their models start with the weights of those built in turn?

# %%
meeting = threading.Barrier(2)


def first_weights(size, device):
    keras.utils.set_random_seed(size)
    meeting.wait()  # until both threads are here
    with tf.device(device):
        return build(size).get_weights()


twins, same = build_both(), []
for model, weights in zip(twins, at_once(first_weights, units, homes)):
    same += map(np.array_equal, model.get_weights(), weights)
print("as built in turn:", all(same))

# %% [markdown]
# They do not, because one thread's seed replaced the other's. So build before the threads start.
#
# ## Proof: the same weights
#
# Training at once must give what training in turn gives. So the models of `twins`, which have the
# same seeds, train in turn. `compare` counts the numbers that differ (on GPUs, by more than 0.01
# plus 1 %), in all variables of the models and of their optimizers:

# %%
def values(models):
    found = []
    for model in models:
        found += [np.asarray(each) for each in model.variables + model.optimizer.variables]
    return found


def compare(one, other, off=0.01 if plan.on_gpus else 0):
    differ = sum(np.sum(~np.isclose(a, b, rtol=off, atol=off)) for a, b in zip(one, other))
    print(f"{differ} of {sum(a.size for a in one):,} numbers differ")


# %%
in_turn(train, twins, homes)
compare(values(models), values(twins))

# %% [markdown]
# None differs. In `cores` mode each operation computes with one thread of the processor, and so
# adds in one order. On GPUs some kernels add in any order, so even two runs in turn may differ by
# rounding.
#
# ## One function
#
# One `tf.function` can hold a step of each model. The steps do not depend on each other, so
# TensorFlow can run them at the same time after a single call from Python. `train_step` is what
# `fit` runs for each batch. `joined` has the same seeds. After a pass of 8 batches, are its losses
# those of `fit`?

# %%
joined = build_both()


def one_step(which, x, y):
    with tf.device(homes[which]):
        return joined[which].train_step((x, y))["loss"]


@tf.function
def step_all(x, y):
    return [one_step(which, x, y) for which in range(2)]


# %%
batches = list(zip(np.split(images, 8), np.split(labels, 8)))
for x, y in batches:
    losses = np.array(step_all(x, y))  # a mean over the pass, as fit's progress bar shows it
of_fit = [history["loss"][0] for history in histories]
print("less than 0.1 % from those of fit:", np.allclose(losses, of_fit, rtol=1e-3))

# %% [markdown]
# They are, and no thread was needed.
#
# ## Was it faster?
#
# Python has one lock for all threads, the **GIL** (global interpreter lock), and only the thread
# that holds it runs Python code. TensorFlow releases the lock while it computes a step, and
# meanwhile another thread can start its own.
#
# Here four ways train two models for a pass: `fit` in turn and at once, a function for each model
# in turn, and one function for both. All have run before, so nothing is traced. Each ratio is the
# median of five pairs of runs; the brackets hold the middle half. The chart shows the run of each
# way nearest to its median. These runs are no pairs, so their times may give other ratios. A bar is
# a step, and a pale box a call of `fit`. Which way is fastest?

# %%
step_each = tf.function(one_step)  # traced for each model
for which in range(2):
    step_each(which, *batches[0])

ways = {
    "fit, in turn": lambda: watched(in_turn, train, twins, homes, [1, 1]),
    "fit, at once": lambda: watched(at_once, train, twins, homes, [1, 1]),
    "functions, in turn": lambda: stepped(batches, partial(step_each, 0), partial(step_each, 1)),
    "one function": lambda: stepped(batches, step_all),
}

# %% tags=["varies"]
took, runs = timed(ways, repeats=5)
pairs = [("fit, in turn", "fit, at once"), ("functions, in turn", "one function"),
         ("fit, in turn", "one function")]  # fmt: skip
for slow, fast in pairs:
    print(timing.Comparison(took[slow], took[fast], (slow, fast)))

# %% tags=["varies", "cover"]
for ax, run in drawings.calls(runs):
    charts.spans(dict(zip(names, run.spans)), dict(zip(names, homes)), ax)
plt.show()

# %% [markdown]
# One function is. In a box, `fit` does other work before its first step and after its last, or its
# thread waits. Where models share a processor, their steps take longer. So `fit` at once is usually
# faster than in turn, but not twice as fast.
#
# The functions leave out that other work, and one function runs both models' steps at the same
# time. A longer pass has the same start, paid once a call, so there one function gains less over
# `fit`.
#
# ## Vote
#
# The models of an **ensemble** answer together. They may differ in kind: `flat`, with
# BatchNormalization and a metric, trains on the third device, or on the first of two. All three
# train for four passes at once, `small` and `large` after their first two, and a callback saves
# `flat`. Does the saved model equal `flat`, with moving averages and Adam's variables?

# %%
places = [*homes, plan.devices[2 % len(plan)]]
keras.utils.set_random_seed(1)
with tf.device(places[2]):
    inner = [layers.Flatten(), layers.BatchNormalization(momentum=0.9), layers.Dense(10, "softmax")]
    flat = keras.Sequential([keras.Input([28, 28, 1]), *inner])
    adam = keras.optimizers.Adam(0.01)
    flat.compile(adam, "sparse_categorical_crossentropy", metrics=["accuracy"])

# %%
voters = [*models, flat]
with tempfile.TemporaryDirectory() as folder:
    saver = keras.callbacks.ModelCheckpoint(f"{folder}/flat.keras")
    at_once(train, voters, places, [4, 4, 4], [None, None, [saver]])
    with tf.device(places[2]):
        loaded = keras.models.load_model(f"{folder}/flat.keras")
compare(values([flat]), values([loaded]), off=0)

# %% [markdown]
# It does. Now the three predict 360 unseen digits. In a **vote** each model names its likeliest
# class, and the class named most often wins. Where the **average** of the probabilities decides, a
# model that is sure counts for more. `votes` counts the models that name each digit. Adding the
# average, always below one vote, only decides ties. (`mgpu_helpers.ensemble` has both as `vote` and
# `mean`.) In the chart, a line reaches one *standard error* to each side of its point, the usual
# distance from the true share. The dashed line is the mean of the three.

# %%
def predict(model, device):
    with tf.device(device):
        return model.predict_on_batch(test_images)


test_images, test_labels = digits.load(test=True)
predicted = np.array(at_once(predict, voters, places))  # [model, image, digit]
named = predicted.argmax(axis=2)
average = predicted.mean(axis=0)
votes = np.eye(10)[named].sum(axis=0) + average

# %% tags=["varies"]
right = np.array([*named, votes.argmax(axis=1), average.argmax(axis=1)]) == test_labels
shares, usual = right.mean(axis=1), right[:3].mean()
drawings.accuracies(dict(zip([*names, "flat", "vote", "average"], shares)), of=360, mean=usual)
plt.show()
print("the vote and the average beat the mean:", shares[3] > usual, shares[4] > usual)

# %% [markdown]
# After few passes, a simple model like `flat` can lead. The vote and the average usually beat the
# mean. They need not beat the best model: here their lines overlap that of the best. A vote helps
# where models err on different digits, so let the models differ in their layers, their first
# weights or their data.
#
# ## Break it
#
# **A function that is made in a loop.** Somebody makes a function for each model, and calls all
# three. Which weights move?

# %%
calls = [lambda: train(model, device, 1) for model, device in zip(voters, places)]
before = [model.get_weights() for model in voters]
for call in calls:
    call()

# %%
for name, model, was in zip([*names, "flat"], voters, before):
    moved = sum(np.any(a != b) for a, b in zip(was, model.get_weights()))
    print(f"{name:6}{moved} of {len(was)} weights moved")

# %% [markdown]
# All three calls trained the last model, because a lambda looks `model` up when it is called, and
# by then the loop has ended. No error says so: count the weights that moved.
# `pool.map(train, voters, places)` avoids this.
#
# ## When not to
#
# One model in a hurry gains nothing from this: use all GPUs for it ([[07]]). Two models on one GPU
# share its memory and time. Where steps are short, more of the time is Python's, in which threads
# take turns: use one function, or a process for each model.
#
# With two larger models in loops of TensorFlow 1, without `fit`, threads, one function and
# processes were each 1.6 to 1.7 times as fast as in turn on two cores
# ([result](../results/ensemble.json) of `benchmarks/ensemble.py`).
#
# ## On GPUs
#
# On a GPU, Keras compiles each step with XLA, TensorFlow's compiler, which refuses variables of
# other devices: a model that is built in the block of the second GPU and compiled outside of it
# raises an error with "Trying to access resource". `build` switches XLA off, so that the trace
# names each convolution; you can leave it on.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `trains(model, step)`. It calls the function `step` once and returns True if any
# trainable weight of the Keras model has another value than before, and False if none has.

# %% tags=["exercise"]
def trains(model, step):
    before = model.trainable_variables
    step()
    return before != model.trainable_variables


checks.trains(trains)

# %% tags=["solution"]
def trains(model, step):
    before = [weight.numpy() for weight in model.trainable_variables]
    step()
    return any(np.any(a != b.numpy()) for a, b in zip(before, model.trainable_variables))


checks.trains(trains)

# %% [markdown]
# **2.** With `pool.map` one error loses the results of all models. Write `run_all(functions)`. It
# calls all functions at once, each in a thread of its own, and returns a list in their order: what
# each returned, or the exception that it raised.

# %% tags=["exercise"]
def run_all(functions):
    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(lambda function: function(), functions))


checks.run_all(run_all)

# %% tags=["solution"]
def run_all(functions):
    with ThreadPoolExecutor(len(functions)) as pool:
        calls = [pool.submit(function) for function in functions]
    return [call.exception() or call.result() for call in calls]


checks.run_all(run_all)

# %% [markdown]
# ## What we saw
#
# - Two Keras models trained at once, with a thread and a device for each. In `cores` mode 0 of
#   their 729,020 numbers differed from those of a training in turn.
# - A thread did not inherit the `tf.device` block around its start, and of two seeds that were set
#   in threads one replaced the other.
# - Of four ways to train two models, one function for both took the least time. Its losses were
#   those of `fit` to 0.1 %.
# - The vote and the average of three models beat the mean of their accuracies.
# - Functions made in a loop trained the last model alone: of the others 0 of 5 weights moved.
#
# ## In practice
#
# Build and compile each model under its device, one after another, and call `fit` in a thread for
# each. Where that is hardly faster than in turn, take one function or a process for each.
#
# Next: [[next]].

# %% [markdown]
# ## The same in a graph: if you inherit such code
#
# The article builds a graph for each network and runs it in a session ([[01]]). The parts of its
# graphs have the same names, with a **scope** in front of them, `g1` or `g2`. In one process the
# article's `visible_device_list` raises [an error](../docs/errors.md#mapped): `tf.device` takes its
# place. `networks.jang` divides the article's number of units by eight:

# %%
def build_graph(scope, hidden, device):
    network = networks.jang(hidden=hidden, width=0.125)
    with tf.Graph().as_default() as graph, tf.device(device), tf.name_scope(scope):
        x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="input")
        y = tf1.placeholder(tf.int64, [None], name="label")
        weights = networks.classic(network, seed=hidden)
        loss = tf.identity(networks.loss(y, networks.logits(network, weights, x)), "cross_entropy")
        tf1.train.AdamOptimizer(1e-3).minimize(loss, name="train_step")
        tf1.global_variables_initializer()  # an operation called init
    return graph


hiddens = {"g1": 2400, "g2": 4800}
graphs = {scope: build_graph(scope, hidden, device)
          for (scope, hidden), device in zip(hiddens.items(), homes)}  # fmt: skip

# %% [markdown]
# The article's loop fetches `cross_entropy` and never `train_step`. `in_session` runs such a loop
# with the given fetches and returns all variables before and after. Do the weights move?

# %%
def in_session(scope, *fetches):
    config = plan.session_config(devices=1, soft_placement=True)
    variables = graphs[scope].get_collection("variables")
    with tf1.Session(graph=graphs[scope], config=config) as session:
        session.run(f"{scope}/init")
        begun = session.run(variables)
        for x, y in digits.batches(images, labels, 256):
            feed = {f"{scope}/input:0": x, f"{scope}/label:0": y}
            session.run([f"{scope}/{each}" for each in fetches], feed)
        return begun, session.run(variables)


loss, training = "cross_entropy:0", "train_step"
for fetches in ([loss], [loss, training]):
    begun, ended = in_session("g1", *fetches)
    moved = sum(np.any(a != b) for a, b in zip(begun[:5], ended))  # the weights come first
    print(fetches, moved, "of 5 weights moved")

# %% [markdown]
# The article's loop moved nothing: a session computes what is fetched and what that needs, and the
# loss does not need the training operation. With both fetches, graphs trained at once equal those
# trained in turn:

# %%
def train_graph(scope):
    return in_session(scope, loss, training)[1]


for one, other in zip(in_turn(train_graph, graphs), at_once(train_graph, graphs)):
    compare(one, other)
