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

plan = devices.setup(2)
plan

# %%
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from keras import layers

from mgpu_helpers import charts, ensemble, trace
from mgpu_helpers.lessons import digits, drawings, networks
from mgpu_helpers.lessons.checks import lesson_06 as checks
from mgpu_helpers.lessons.lesson_06 import watched

# %% [markdown]
# ## The lines to paste
#
# `build` makes and compiles a Keras model that reads digits, the network of the article
# *Multi-GPUs* by Wonik Jang ([2017](../docs/sources.md#jang)), an eighth as wide. Put your own
# model there. The cell after it makes two models, for the first and the last device of the plan.
# Each is built **and compiled** in the block of its device, because the optimizer and the metrics
# have variables too:

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
# Then each `fit` runs in a **thread**, a part of the program that runs beside the others.
# `pool.map` calls `train` for all models at the same time and returns the histories in the order of
# the models. The second cell traces one step of each model and prints which device computed:

# %%
def train(model, device, epochs=2, *callbacks):
    with tf.device(device):
        return model.fit(images, labels, epochs=epochs, callbacks=[*callbacks], **options).history


with ThreadPoolExecutor(len(models)) as pool:
    histories = list(pool.map(train, models, homes))

# %%
for name, model, device, history in zip(names, models, homes, histories):
    with tf.device(device):
        step = trace.fit_step(model, (images[:128], labels[:128]))
    computed = {op.device for op in step.ops if "Conv2D" in op.type}
    print(f"{name}: loss {history['loss'][-1]:.1f}, convolutions on", *computed)

# %% [markdown]
# Each model trained on its own device and has a history, as usual. There are two other ways:
#
# | | use it when | it costs |
# |---|---|---|
# | **a thread for each** | each fits on one GPU, and you keep `fit` | Python code takes turns |
# | **one function** (below) | steps are short, and all take the same batches | you write the loop |
# | **a process for each** ([[04]]) | one crash must not end the rest | TensorFlow starts in each |
#
# ## How it works
#
# The upper half of the drawing shows what most loops do, and the lower half what the lines above
# do:
#
# ![Two devices over time. In turn, each is idle while the other trains. At once, both begin
# together.](pictures/06_turns.svg)
#
# Here are both ways as functions. Then, in one `tf.device` block, `look` makes a tensor in this
# thread and another in a new one. On which devices are they?

# %% tags=["unplaced"]
def in_turn(work, *given):
    return list(map(work, *given))


def at_once(work, *given):
    with ThreadPoolExecutor(len(given[0])) as pool:
        return list(pool.map(work, *given))


def look(who):
    return f"{who} put a tensor on {devices.short(tf.ones([]).device)}"


with tf.device(plan.devices[-1]):
    print(*in_turn(look, ["this thread"]), *at_once(look, ["another thread"]), sep="\n")

# %% [markdown]
# The other thread's tensor is on the default device, as if nobody had placed it: a thread does
# **not** inherit the `tf.device` block around its start. That is why `train` opens the block
# itself.
#
# ## Proof: the same weights
#
# Training at once must give what training in turn gives. So two new models, built with the same
# seeds, train in turn. `compare` counts the numbers that differ, in all variables of the models and
# of their optimizers:

# %%
def values(models):
    every = [[*model.variables, *model.optimizer.variables] for model in models]
    return [np.asarray(variable) for variable in sum(every, [])]


def compare(one, other):
    off = 0.01 if plan.on_gpus else 0
    differ = sum(np.sum(~np.isclose(a, b, rtol=off, atol=off)) for a, b in zip(one, other))
    print(f"{differ} of {sum(a.size for a in one):,} numbers differ")


# %%
alone = build_both()
start = [model.get_weights() for model in alone]
in_turn(train, alone, homes)
compare(values(models), values(alone))

# %% [markdown]
# No number differs, because in `cores` mode each operation computes with one thread of the
# processor and so adds in one order.
#
# ## With a model of another kind
#
# Here are models with BatchNormalization and a metric. Two of them train for a pass at once, and a
# callback saves each. Both files are loaded, each on its device, and all four models go on at once.
# Do the loaded models end where the first two end?

# %%
def normed(seed, device):
    keras.utils.set_random_seed(seed)
    inner = [layers.Flatten(), layers.BatchNormalization(), layers.Dense(10, "softmax")]
    with tf.device(device):
        model = keras.Sequential([keras.Input([28, 28, 1]), *inner])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def load(file, device):
    with tf.device(device):
        return keras.models.load_model(file)


# %%
ends = [plan.devices[0], plan.devices[-1]]
first = in_turn(normed, [1, 2], ends)
with tempfile.TemporaryDirectory() as folder:
    files = [f"{folder}/1.keras", f"{folder}/2.keras"]
    at_once(train, first, ends, [1, 1], map(keras.callbacks.ModelCheckpoint, files))
    loaded = in_turn(load, files, ends)
at_once(train, first + loaded, ends * 2, [1] * 4)
compare(values(first), values(loaded))

# %% [markdown]
# They do, with all moving averages and Adam's numbers.
#
# ## Was it faster?
#
# Python has one lock for all threads, the **GIL** (global interpreter lock), and only the thread
# that holds it runs Python code. TensorFlow releases the lock while it computes a step, and
# meanwhile another thread can start its own. Only the Python code between the steps takes turns.
#
# Now both models train for six more passes in turn, and then at once. `watched` gives each `train`
# a callback of Keras that notes when its steps run:

# %% tags=["varies", "nbval-ignore-output"]
ways = {"in turn": in_turn, "at once": at_once}
runs = {name: watched(way, train, models, homes, [6, 6]) for name, way in ways.items()}
for name, run in runs.items():
    print(f"{name} {run.wall:.2f} s")
print(f"{runs['in turn'].wall / runs['at once'].wall:.1f} times as fast")

# %% tags=["varies", "cover"]
for name, run in runs.items():
    ax = charts.spans(dict(zip(names, run.spans)), dict(zip(names, homes)))
    ax.set(xlim=(0, 1.02 * max(each.wall for each in runs.values())))
    ax.set_title(name, loc="left")
    plt.show()

# %% [markdown]
# Each bar is a step, and in a gap `fit` begins a pass. In turn, one row is empty while the other
# has bars. At once, both have bars at the same time, and bars and gaps are usually wider: the
# models share one processor, and Python code takes turns. So the run gets shorter, but usually not
# by half.
#
# ## One function
#
# One `tf.function` can hold the steps of all models. The steps do not depend on each other, so
# TensorFlow can run them at the same time after a single call from Python. `train_step` is what
# `fit` runs for each batch. After the 8 batches of one pass, the losses should be those of `fit`:

# %%
pair = build_both()


@tf.function
def step_all(x, y):
    losses = []
    for model, device in zip(pair, homes):
        with tf.device(device):
            losses.append(model.train_step((x, y))["loss"])
    return losses


# %%
for x, y in zip(np.split(images, 8), np.split(labels, 8)):
    losses = np.array(step_all(x, y))  # of all batches so far, as fit's bar shows it
of_fit = [history["loss"][0] for history in histories]
print("less than 0.1 % from those of fit:", np.allclose(losses, of_fit, rtol=1e-3))

# %% [markdown]
# The losses are those of `fit`, and no thread was needed.
#
# ## Vote
#
# The models of an **ensemble** answer together. In a **vote** each model names its likeliest class,
# and the class named most often wins. Where the **average** of the probabilities decides instead, a
# model that is sure counts for more.
#
# A third model, `tiny`, joins on the third device, or on the first where there are only two. It
# trains for six passes and the others for six more, and then all predict 360 digits that they have
# not seen. In the chart, a line reaches one *standard error* to each side of its point: that is how
# far a share of 360 digits usually is from the true share.

# %%
names, homes = [*names, "tiny"], [*homes, plan.devices[2 % len(plan)]]
keras.utils.set_random_seed(150)
with tf.device(homes[2]):
    models.append(build(150, rate=1e-2))
at_once(train, models, homes, [6, 6, 6])
test_images, test_labels = digits.load(test=True)
members = in_turn(ensemble.from_keras, names, models)
predicted = ensemble.predictions(members, test_images)

# %% tags=["varies"]
answers = {name: rows.argmax(axis=1) for name, rows in predicted.items()}
answers |= {"vote": ensemble.vote(predicted), "average": ensemble.mean(predicted)}
right = {name: answer == test_labels for name, answer in answers.items()}
drawings.accuracies({name: each.mean() for name, each in right.items()}, of=len(test_labels))
plt.show()
usual = np.mean([right[name] for name in names])
for way in ("vote", "average"):
    print(way, "beats the mean of the three models:", right[way].mean() > usual)

# %% [markdown]
# The vote and the average usually beat the mean of the three models' accuracies. They need not beat
# the best model: here the lines of all three overlap. A vote helps where models err on different
# digits, so let the models differ in their layers, their first weights or their data.
#
# ## Break it
#
# **A function that is made in a loop.** Somebody makes a function without arguments for each model,
# and calls all three. Which models were trained?

# %%
calls = [lambda: train(model, device, 1) for model, device in zip(models, homes)]
before = [model.get_weights() for model in models]
for call in calls:
    call()

# %%
for name, model, was in zip(names, models, before):
    moved = sum(np.any(a != b) for a, b in zip(was, model.get_weights()))
    print(f"{name:6}{moved} of {len(was)} weights moved")

# %% [markdown]
# All three calls trained the last model, because a lambda looks `model` up when it is called, and
# by then the loop has ended. No error says so: count the weights that moved. `map` with arguments,
# as above, avoids this.
#
# **A seed in a thread.** Building in the threads looks natural too, but the seed belongs to the
# whole process. Here both threads set a seed, wait for each other, and build. Do the models begin
# as those that were built in turn?

# %%
meeting = threading.Barrier(2)


def first_weights(size, device):
    keras.utils.set_random_seed(size)
    meeting.wait()  # until both are here
    with tf.device(device):
        return build(size).get_weights()


begun = at_once(first_weights, units, homes)
print("as alone:", all(np.array_equal(a, b) for a, b in zip(sum(begun, []), sum(start, []))))

# %% [markdown]
# They do not, because one thread's seed replaced the other's. So build in turn, before the threads
# start.
#
# ## When not to
#
# Where a step is short, most of its time is Python's, and the threads wait for the lock. Then take
# one function, or a process for each model. With longer steps, threads, one function and processes
# are about equally fast: `benchmarks/ensemble.py` timed two larger models, in TensorFlow 1, and
# each way was 1.6 to 1.7 times as fast as in turn ([result](../results/ensemble.json)).
#
# ## On GPUs
#
# On a GPU, Keras compiles each step with XLA, TensorFlow's compiler, which accepts no variable of
# another device: a model that is built in the block of the second GPU and compiled outside of it
# raises an error with "Trying to access resource". `build` switches XLA off, so that the trace
# names each convolution; yours need not. Some kernels add in the order in which their threads
# finish, so two runs may differ by rounding even in turn, and `compare` lets a difference of 0.01
# plus 1 % pass.
#
# ## The same in a graph: if you inherit such code
#
# The article builds a graph for each network and runs it in a session ([[01]] explains the
# words). The parts of its two graphs have the same names, with a **scope** in front of them, `g1`
# or `g2`. `networks.jang` gets the article's number of units and divides it by eight:

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
graphs = {scope: build_graph(scope, hiddens[scope], device) for scope, device in zip(hiddens, ends)}

# %% [markdown]
# The article's `visible_device_list` ends in [an error](../docs/errors.md#mapped) here; `tf.device`
# replaces it.
#
# `in_session` trains with the given fetches and returns all variables before and after. The
# article's loop fetches `cross_entropy` and never `train_step`. Do the weights move?

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


# %%
both = ("cross_entropy:0", "train_step")
for fetches in (both[:1], both):
    begun, ended = in_session("g1", *fetches)
    moved = sum(np.any(a != b) for a, b in zip(begun[:5], ended))  # the weights come first
    print(fetches, moved, "of 5 weights moved")

# %% [markdown]
# The article's loop moved nothing, because a session computes what is fetched and what that needs,
# and computing the loss does not need the training operation. Do both graphs, trained at once, end
# as in turn?

# %%
def train_graph(scope):
    return in_session(scope, *both)[1]


compare(sum(in_turn(train_graph, graphs), []), sum(at_once(train_graph, graphs), []))

# %% [markdown]
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
# **2.** With `map` one error costs the results of all models. Write `run_all(functions)`. It calls
# all functions at once, each in a thread of its own, and returns a list in their order: what each
# returned, or the exception that it raised.

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
# - The vote and the average of three models beat the mean of the three models' accuracies.
# - Functions made in a loop trained the last model alone: of the others 0 of 5 weights moved.
# - One function with all steps gave the losses of `fit` to 0.1 %.
#
# ## In practice
#
# Build and compile each model under its device, one after another, and call `fit` in a thread
# for each. Where the run at once is hardly shorter than in turn, take one function, or give each a
# process ([[04]]). Next: [[next]].
