# %% [markdown]
# # Train several models at once
#
# You train several Keras models, for an ensemble or to compare them. One trains after the other,
# and only one of your GPUs works at a time.
#
# **In this lesson** each model trains on a device of its own, all at the same time, and learns what
# it learns alone.
#
# ![Two GPUs over time. In turn, each is idle while the other trains. At once, both begin
# together.](pictures/18_turns.svg)
#
# In turn, the times of both models add up. At once, at best, you wait only for the larger one. On
# cores, both ways end with the same 88,772 numbers of two models and their optimizers, as we prove
# below.
#
# A **thread** is a part of a program that runs beside its other parts. These lines build and
# compile each model on its device, and start a thread for each:
#
# ```python
# from concurrent.futures import ThreadPoolExecutor
#
#
# def make(device):
#     with tf.device(device):
#         model = build()
#         model.compile("adam", "mse")
#     return model
#
#
# def train(model, device):
#     with tf.device(device):
#         return model.fit(images, labels, epochs=5).history
#
#
# models = [make(device) for device in homes]
# with ThreadPoolExecutor(len(models)) as pool:
#     histories = list(pool.map(train, models, homes))
# ```
#
# `homes` lists the device of each model.
#
# **You need** [[00]], [[04]] and [[06]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, timing, trace
from mgpu_helpers.lessons import digits
from mgpu_helpers.lessons.checks import lesson_18 as checks

layers = keras.layers

# %% [markdown]
# ## Try it
#
# We train two networks that read digits. One is twice as wide as the other:

# %%
def build(width):
    conv = partial(layers.Conv2D, kernel_size=3, padding="same", activation="relu")
    stack = [conv(width), layers.MaxPool2D(), conv(2 * width), layers.MaxPool2D()]
    stack += [layers.Flatten(), layers.Dropout(0.2), layers.Dense(10, "softmax")]
    model = keras.Sequential([keras.Input([28, 28, 1]), *stack])
    adam = keras.optimizers.Adam(0.006)
    model.compile(adam, "sparse_categorical_crossentropy", jit_compile=False)
    return model

# %% [markdown]
# Build **and compile** each model in the block of its device, because the optimizer and the metrics
# have variables, too:

# %%
names, widths, homes = ["small", "large"], [8, 16], [plan.devices[0], plan.devices[-1]]


def make(width, device):
    keras.utils.set_random_seed(width)
    with tf.device(device):
        return build(width)

# %% [markdown]
# `train` opens the block of its device, and `at_once` calls it for both models at the same time.
# `shuffle` is off because later sections need the same batches again:

# %%
images, labels = digits.load(1024)
options = {"batch_size": 128, "shuffle": False, "verbose": 0}


def train(model, device, epochs=2):
    with tf.device(device):
        return model.fit(images, labels, epochs=epochs, **options).history

# %%
def at_once(work, *given):
    with ThreadPoolExecutor(len(given[0])) as pool:
        return list(pool.map(work, *given))


models = list(map(make, widths, homes))
histories = at_once(train, models, homes)

# %% [markdown]
# Where did each model train? `trace.fit_step` records the operations of one step, and leaves the
# weights as they are:

# %%
for name, model, device, history in zip(names, models, homes, histories):
    with tf.device(device):
        step = trace.fit_step(model, (images[:128], labels[:128]))
    ran = {op.device for op in step.ops if "Conv2D" in op.type}
    print(f"{name}: loss {history['loss'][-1]:.1f}, convolutions on", *ran)

# %% [markdown]
# ## Why `train` opens the block
#
# You may want to put the block around the start of the threads instead. Does a new thread keep it?
# Inside one block, `look` makes a tensor in this thread and another in a new thread:

# %% tags=["unplaced"]
def look(who):
    return f"{who} put a tensor on {devices.short(tf.ones([]).device)}"


with tf.device(plan.devices[-1]):
    print(look("this thread"))
    print(*at_once(look, ["another thread"]))

# %% [markdown]
# The other thread's tensor is on TensorFlow's default device. A thread does **not** inherit the
# block around its start, so `train` opens one itself.
#
# ## Proof
#
# We build both models again, with the same seeds. These `twins` train in turn. Then we compare
# every number that the models and their optimizers hold. On GPUs some operations add in a changing
# order, so there we count only differences of more than 0.01 plus 1 %:

# %%
def values(models):
    return [np.asarray(each) for m in models for each in [*m.variables, *m.optimizer.variables]]


def compare(one, other, off=0.01 if plan.on_gpus else 0):
    differ = sum(np.sum(~np.isclose(a, b, rtol=off, atol=off)) for a, b in zip(one, other))
    print(f"{differ} of {sum(a.size for a in one):,} numbers differ")


# %%
twins = list(map(make, widths, homes))
for model, device in zip(twins, homes):
    train(model, device)
compare(values(models), values(twins))

# %% [markdown]
# No number differs, although `Dropout` draws random numbers: each model has a generator of its own.
#
# ## Was it faster?
#
# Python has one lock for all threads, the **GIL** (global interpreter lock), and only the thread
# that holds it runs Python. TensorFlow releases the lock while it computes a step, and meanwhile
# another thread can start a step of its model. `clocked` notes when a `fit` began and ended:

# %%
def clocked(model, device):
    begun = time.perf_counter()
    train(model, device)
    return begun, time.perf_counter()


# %% tags=["varies", "cover"]
calls = {"in turn": [*map(clocked, twins, homes)], "at once": at_once(clocked, twins, homes)}
spans, places = {}, {}
for way, run in calls.items():
    for name, device, span in zip(names, homes, run):
        spans[f"{way}: {name}"] = [np.subtract(span, run[0][0])]
        places[f"{way}: {name}"] = device
charts.spans(spans, places)
plt.show()

# %%
one_pass = partial(train, epochs=1)
timing.compare(
    lambda: at_once(one_pass, twins, homes), lambda: [*map(one_pass, twins, homes)],
    names=("at once", "in turn"), warmup=0, repeats=5)  # fmt: skip

# %% [markdown]
# On two quiet cores, both models are done sooner at once, but not in half of the time, because each
# takes longer than in turn. Two things can slow them down: the threads take turns in Python, and
# the cores share the memory.
#
# ## One function for all
#
# With threads, Python starts each step of each model. A single `tf.function` can hold a step of all
# models, and TensorFlow runs them at the same time after one call from Python. `step_of` makes such
# a function: `train_step` is what `fit` runs for each batch. The models `joined` start with the
# same seeds as before. After a pass of 8 batches, are their losses those of `fit`?

# %%
def step_of(models, homes):
    def step(x, y):
        losses = []
        for model, device in zip(models, homes):
            with tf.device(device):
                losses.append(model.train_step((x, y))["loss"])
        return losses

    return tf.function(step)


def pass_of(*steps):
    for x, y in zip(np.split(images, 8), np.split(labels, 8)):
        losses = [np.array(step(x, y)) for step in steps]
    return losses  # means over the pass, as those of fit


# %%
joined = list(map(make, widths, homes))
both = step_of(joined, homes)
of_fit = [history["loss"][0] for history in histories]
print("less than 0.1 % from those of fit:", np.allclose(pass_of(both), of_fit, rtol=1e-3))

# %% [markdown]
# To see what comes from the second device, we also time a function for each model, in turn:

# %%
each = [step_of([model], [device]) for model, device in zip(joined, homes)]
took = timing.several({
    "fit in turn": lambda: [*map(one_pass, twins, homes)],
    "functions in turn": lambda: pass_of(*each),
    "one function": lambda: pass_of(both),
}, warmup=1, repeats=15)  # fmt: skip
for names in zip(took, [*took][1:]):
    print(timing.Comparison(*map(took.get, names), names))

# %% [markdown]
# The losses are those of `fit`. The first line shows what is gained without `fit`'s own Python
# around each step, and the second what the second device adds.
#
# | | use it when | it costs |
# |---|---|---|
# | **a thread for each** | each model fits on a GPU, and you keep `fit` | turns in Python |
# | **one function** | steps are short, and equally many for all | you write the loop |
# | **a process for each** ([[16]]) | one crash must not end all | TensorFlow starts in each |
#
# In a benchmark with two larger models on two cores, without `fit`, the three ways were 1.7 to 1.9
# times as fast as in turn ([result](../results/ensemble.json)).
#
# ## Break it
#
# So far the models were built one after the other. Now each thread sets a seed and builds its
# model. `meeting` lets none build before both seeds are set. Will the models begin with the weights
# that they have when they are built in turn? Write down what you expect.

# %%
meeting = threading.Barrier(2)


def make_in_thread(width, device):
    keras.utils.set_random_seed(width)
    meeting.wait()  # until both threads are here
    with tf.device(device):
        return build(width)


pairs = zip(values(map(make, widths, homes)), values(at_once(make_in_thread, widths, homes)))
print("all weights as built in turn:", all(np.array_equal(a, b) for a, b in pairs))

# %% [markdown]
# They do not, and no error says so. A seed belongs to the whole process, so the second seed
# replaced the first. Build the models before the threads start.
#
# ## On GPUs
#
# On a GPU, Keras compiles each step with XLA, TensorFlow's compiler, which refuses variables of
# other devices. If you build a model in the block of the second GPU but compile it outside, `fit`
# raises an error with "Trying to access resource". `build` switches XLA off so that the trace names
# each convolution. Leave it on in yours.
#
# ## On your own
#
# **1.** Write `trains(model, step)`. It calls `step` once and returns True if any trainable weight
# of the model has changed, and False if none has. It notices a thread that trains another model
# than you think.

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
# - Two models trained at once, each on its own device, and 0 of their 88,772 numbers differed from
#   those of a training in turn.
# - One function with a step of both models had the losses of `fit` to 0.1 %.
# - A thread did not inherit the `tf.device` block around its start.
# - Of two seeds set in threads, one replaced the other.
#
# ## In practice
#
# Build and compile each model under its device, one after another, and call `fit` in a thread for
# each. If that is hardly faster, and your steps are short, take one function.
#
# Next: [[next]].
