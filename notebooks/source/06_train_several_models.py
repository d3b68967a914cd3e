# %% [markdown]
# # Train several models at once
#
# You train five models, for an ensemble or to compare them. One ends, the next begins, and all the
# time only one of your GPUs works. A model that is too small to be spread over several GPUs can
# still have one of them to itself, and all five can train at the same time.
#
# **In this lesson** Keras models train at the same time in one process, each on a device of its
# own, and vote on digits that they have not seen.
#
# **You will learn** to
# - train Keras models at once, with a thread for each,
# - prove that each learned what it would have learned alone,
# - join their predictions, and say how sure the gain is,
# - do the same with graphs and sessions, as older code does,
# - notice a loop that trains nothing.
#
# **You need** [[00]] and [[01]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import tempfile
import threading
import time

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from keras import layers

from mgpu_helpers import charts, ensemble, timing, trace
from mgpu_helpers.lessons import digits, drawings, networks
from mgpu_helpers.lessons.checks import lesson_06 as checks

# %% [markdown]
# ## The trouble
#
# `build` makes a Keras model that reads digits. Its network is that of the article *Multi-GPUs* by
# Wonik Jang ([2017](../docs/sources.md#jang)), an eighth as wide. The block of `tf.device` puts the
# weights on a device, and with them what Adam keeps for each weight, its *slots*. (On a GPU machine
# Keras would compile the step with XLA, TensorFlow's compiler. `jit_compile=False` makes it the
# same step everywhere.)

# %%
def build(units, device, dropout=0.2, rate=1e-3):
    keras.utils.set_random_seed(units)
    with tf.device(device):
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
        adam.build(model.trainable_variables)
        model.compile(adam, "sparse_categorical_crossentropy", jit_compile=False)
    return model


# %% [markdown]
# The article trains two such networks, with 2400 and 4800 units in the last hidden layer: 300 and
# 600 here. They get the first and the last device of the plan. (A plan with a single device has
# both on it, and then nothing is gained by what follows.) The upper half of the drawing is what
# most loops do, and the lower half is what we want. The cells after it do what the upper half
# shows:
#
# ![Two devices over time. In turn: the small model trains on device 0 while device 1 is idle, then
# the large one on device 1 while device 0 is idle. At once: both begin together, and it ends when
# the large one has ended.](pictures/06_turns.svg)

# %%
units = {"small": 300, "large": 600}
homes = {"small": plan.devices[0], "large": plan.devices[-1]}
models = {name: build(units[name], homes[name]) for name in units}
images, labels = digits.load(1024)
batches = list(digits.batches(images, labels, 256))

# %% tags=["nbval-ignore-output"]
def train(name):
    with tf.device(homes[name]):
        for x, y in batches:
            models[name].train_on_batch(x, y)


began = time.perf_counter()
for name in models:
    train(name)
    print(f"{name} is trained after {time.perf_counter() - began:.1f} s")

# %% [markdown]
# `large` began when `small` had ended. Until then its device was idle, and afterwards the other one
# was.
#
# ## A thread for each
#
# A Python program can have several **threads**. `start` lets a thread run beside the others, and
# `join` waits for its end. Here are two small examples before the models:
#
# - Each piece of work is a pause of 0.3 seconds. In turn, two of them take 0.6 seconds. How long do
#   they take at once?
# - Two threads make a tensor, and both calls stand in the same `tf.device` block. Where are the
#   tensors?

# %% tags=["nbval-ignore-output"]
def in_turn(work, names):
    for name in names:
        work(name)


def at_once(work, names):
    threads = [threading.Thread(target=work, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def pause(name):
    time.sleep(0.3)


for way in [in_turn, at_once]:
    began = time.perf_counter()
    way(pause, ["a", "b"])
    print(f"{way.__name__:8}{time.perf_counter() - began:.1f} s")

# %% tags=["unplaced"]
def look(who):
    print(f"{who} puts a tensor on {devices.short(tf.ones([]).device)}")


with tf.device(plan.devices[-1]):
    look("this thread")
    at_once(look, ["another thread"])

# %% [markdown]
# Two pauses at once take as long as one. And the other thread put its tensor where TensorFlow puts
# what nobody placed: a thread does **not** inherit the `tf.device` block around its start. That is
# why `train` has the block inside. (With a single device that is a GPU, both are there by chance.)
#
# Is a training like a pause? Python has one lock for all threads, the **GIL** (global interpreter
# lock), and only the thread that holds it runs Python code. A thread that pauses gives it back. So
# does TensorFlow while it computes, and meanwhile another thread can start its step. Here are the
# two trainings, in turn and at once, seven times each:

# %%
timing.compare(
    lambda: in_turn(train, models), lambda: at_once(train, models), repeats=7,
    names=("in turn", "at once"), warmup=1,
)  # fmt: skip

# %% [markdown]
# Twice as fast would be the most, and two things keep it below that:
#
# - Between two steps Keras runs Python code, and for that a thread needs the GIL.
# - The cores of one processor share its memory and its caches.
#
# Where other programs keep the cores busy, nothing is gained.
#
# ## The helper
#
# `ensemble.train` does the same, and keeps the losses and the times. It takes **members**. A member
# has a name, a step, and a prediction. `ensemble.from_keras` makes one from a compiled Keras model,
# and works on the device of the model's weights. Each member makes twelve steps here, and each step
# is a bar in the charts. Look at the lower row, and at the width of the bars:

# %%
members = [ensemble.from_keras(name, models[name]) for name in models]
runs = {
    "in turn": ensemble.train(members, batches * 3, at_once=False),
    "at once": ensemble.train(members, batches * 3),
}

# %% tags=["varies", "cover"]
for name, run in runs.items():
    small, large = run.spans.values()
    print(f"{name}: large began before small had ended:", large[0][0] < small[-1][1])
    ax = charts.spans(run.spans, homes)
    ax.set_title(name, loc="left")
    ax.set_xlim(0, 1.02 * max(run.wall for run in runs.values()))
    plt.show()

# %% [markdown]
# In turn, one row is empty while the other has bars. At once, both rows have bars at the same time.
# They are usually wider than in turn: a step takes longer when the other model computes too, for
# the two reasons above. So where cores are free the run gets shorter, but not by half.
#
# ## Proof: the same weights
#
# Training at once must give what training in turn gives. Here are two new pairs, with the same
# weights at the start, the same batches and the same dropout. Count the numbers that differ, in the
# weights, in Adam's slots and in the counters of steps:

# %%
def values(models):
    both = [[*model.variables, *model.optimizer.variables] for model in models]
    return [np.asarray(value) for value in sum(both, [])]


# %%
def learned(way):
    pair = {name: build(units[name], homes[name]) for name in units}
    members = [ensemble.from_keras(name, model) for name, model in pair.items()]
    ensemble.train(members, batches * 2, at_once=(way is at_once))
    return values(pair.values())


# %%
def compare(one, other):
    off = 0.01 if plan.on_gpus else 0
    differ = sum(np.sum(~np.isclose(a, b, rtol=off, atol=off)) for a, b in zip(one, other))
    print(f"{differ} of {sum(a.size for a in one):,} numbers differ")


compare(learned(in_turn), learned(at_once))

# %% [markdown]
# In `cores` mode they are equal to the last bit: each operation computes with one thread, so it
# adds in one order. Some kernels of a GPU add in the order in which their threads come. There two
# runs may differ by rounding, even in turn, and `compare` counts what is more than 0.01 off.
#
# ## Vote
#
# Three new members train for five passes, with smaller batches and a higher learning rate. The
# third, `tiny`, gets the third device. Where there are fewer, it shares the first. Instead of a
# list, `ensemble.train` takes a function here. It gives the batches of member 0, 1 or 2, each in an
# order of its own.
#
# Then the members predict 360 digits that they have not seen. The second cell prints the shape of
# each prediction, and from a trace of one step the device that computed:

# %%
def own_batches(place):
    for epoch in range(5):
        yield from digits.batches(images, labels, 128, seed=100 * place + epoch)


units["tiny"], homes["tiny"] = 150, plan.devices[2 % len(plan)]
voters = [ensemble.from_keras(name, build(units[name], homes[name], rate=5e-3)) for name in units]
ensemble.train(voters, own_batches)
test_images, test_labels = digits.load(test=True)
predicted = ensemble.predictions(voters, test_images)

# %%
for voter in voters:
    _, step = trace.function_step(voter.step, *batches[0])
    print(voter.name, predicted[voter.name].shape, end=" ")
    print("convolutions on", *{op.device for op in step.ops if "Conv2D" in op.type})

# %% [markdown]
# Each gave ten probabilities for each digit, and each computed on the device that it was given.
# There are two ways to join the predictions:
#
# - In a **vote** each member names its likeliest digit, and the digit named most often wins. A tie
#   goes to the digit with the largest sum of probabilities.
# - Or the probabilities are **averaged**. A member that is sure then counts for more.
#
# Look at the accuracies, and at the lines through the points. They reach one *standard error* to
# each side. The axis does not begin at 0:

# %% tags=["varies"]
answers = {name: array.argmax(axis=1) for name, array in predicted.items()}
answers |= {"vote": ensemble.vote(predicted), "average": ensemble.mean(predicted)}
right = {name: answer == test_labels for name, answer in answers.items()}
drawings.accuracies({name: each.mean() for name, each in right.items()}, of=len(test_labels))
plt.show()
average_member = np.mean([right[name] for name in predicted])
print("vote better than the average member:   ", right["vote"].mean() > average_member)
print("average better than the average member:", right["average"].mean() > average_member)

# %% [markdown]
# How sure is that? Another 360 digits would have given other accuracies. The standard error says
# how far such a number usually is from the one on endlessly many digits. For a share p of n digits
# it is the square root of p (1 - p) / n, here one or two percentage points. Accuracies that differ
# by so little cannot be told apart.
#
# A comparison digit by digit is sharper. Only those digits count that one of the two got right and
# the other did not. If the vote gains g digits and loses l, the standard error of g - l is about
# the square root of g + l. Believe a gain of two standard errors or more. A smaller one may be
# chance. The first cell compares the vote with each member.
#
# The second cell shows some digits that the vote got right and at least one member did not. Above
# each is what `small`, `large` and `tiny` said:

# %% tags=["nbval-ignore-output"]
for name in predicted:
    gained = np.sum(right["vote"] & ~right[name])
    lost = np.sum(right[name] & ~right["vote"])
    print(f"vote against {name:6}{gained:2} gained, {lost:2} lost:", end=" ")
    print(f"{gained - lost:+3d}, {(gained - lost) / np.sqrt(gained + lost):.1f} standard errors")

# %% tags=["varies"]
said = np.stack([answers[name] for name in predicted])
saved = np.flatnonzero(right["vote"] & (said != test_labels).any(axis=0))[:6]
drawings.digits(test_images[saved], [" ".join(map(str, said[:, i])) for i in saved])
plt.show()

# %% [markdown]
# Where one member errs and the other two are right, they outvote it. Where all three say something
# else, it is a tie, and the sum of the probabilities has decided. Where all three say the same
# wrong digit, no vote helps. The members differ in their layers, their weights at the start and the
# order of their batches. The more they differ, the less their errors overlap.
#
# ## The same in a graph
#
# The article builds a graph for each network and trains it in a session, and much code is written
# that way ([[01]] explains the words). Here are its two graphs. Their parts have the same names,
# with a **scope** in front of them, `g1` or `g2`. The mask of the dropout follows from the number
# of the step and from the number of hidden units, so that a training can be repeated.
# `networks.jang` takes the article's number of units and the width, an eighth:

# %%
def build_graph(scope, hidden, device):
    network = networks.jang(hidden=hidden, width=0.125)
    with tf.Graph().as_default() as graph, tf.device(device), tf.name_scope(scope):
        x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="input")
        y = tf1.placeholder(tf.int64, [None], name="label")
        keep = tf1.placeholder_with_default(1.0, [], name="keep")
        step = tf1.train.get_or_create_global_step()
        weights = networks.classic(network, seed=hidden)
        seed = tf.stack([tf.cast(step, tf.int32), hidden])
        scores = networks.logits(network, weights, x, keep=keep, seed=seed)
        loss = tf.identity(networks.loss(y, scores), name="cross_entropy")
        tf1.train.AdamOptimizer(1e-3).minimize(loss, global_step=step, name="train_step")
        tf.nn.softmax(scores, name="probabilities")
        tf1.global_variables_initializer()  # an operation called init
    return graph


places = {"g1": plan.devices[0], "g2": plan.devices[-1]}
graphs = {"g1": build_graph("g1", 2400, places["g1"]), "g2": build_graph("g2", 4800, places["g2"])}

# %% [markdown]
# A part is found by its scope and its name. What ends in `:0` is a tensor, and what does not is an
# operation. The first cell finds two parts of each graph.
#
# The second cell starts the sessions as the article does: it gives each a GPU by
# `visible_device_list`, in one process. Does that run today?

# %%
for scope, graph in graphs.items():
    print(graph.get_tensor_by_name(f"{scope}/input:0").name, end="  ")
    print(graph.get_operation_by_name(f"{scope}/train_step").name)

# %%
try:
    for number, graph in enumerate(graphs.values()):
        config = tf1.ConfigProto()
        config.gpu_options.visible_device_list = str(number)
        tf1.Session(graph=graph, config=config)
    print("no error (without a GPU nobody reads the list)")
except tf.errors.OpError as error:
    print(error.message)

# %% [markdown]
# With GPUs it does not. A process numbers its GPUs once, and the second list gives `/GPU:0` another
# meaning. TensorFlow says that the device "is being mapped to multiple" ones and stops ([TensorFlow
# issue 19083](https://github.com/tensorflow/tensorflow/issues/19083)). Without two GPUs the cell
# cannot show it. So the graphs here are placed with `tf.device`, and every session sees all
# devices.
#
# ### A loop that trains nothing
#
# The article's loop runs `cross_entropy` and never `train_step`. It gives a loss for each batch, as
# a training does. Does it train?
#
# `start` makes a session. (`devices=1` says that one device works at a time in it. In `cores` mode
# it then has one thread of its own.) `moved` runs a loop with the fetches that it is given, and
# counts the weights that changed:

# %%
def start(scope):
    config = plan.session_config(devices=1, soft_placement=True)
    session = tf1.Session(graph=graphs[scope], config=config)
    session.run(f"{scope}/init")
    return session


# %%
def moved(scope, fetches):
    session = start(scope)
    weights = graphs[scope].get_collection("trainable_variables")
    before = session.run(weights)
    for x, y in batches:
        session.run(fetches, {f"{scope}/input:0": x, f"{scope}/label:0": y})
    count = sum(not np.array_equal(a, b) for a, b in zip(before, session.run(weights)))
    return f"{count} of {len(weights)} weights moved"


print("fetching the loss:", moved("g1", ["g1/cross_entropy:0"]))
print("fetching both:    ", moved("g1", ["g1/cross_entropy:0", "g1/train_step"]))

# %% [markdown]
# The article's loop moved nothing. A session runs what is fetched and what that needs, and the loss
# does not need the training. So a loop has to fetch both, as `in_session` does below. Any training
# deserves this check: after the first step, some weights must have moved.
#
# ### Two sessions at once
#
# The article has the trouble that this lesson began with: its sessions run one after the other. Our
# `at_once` changes that. A thread does not inherit the default graph either, so `train_graph` names
# its session. Look for the same proof as above:

# %%
def train_graph(scope):
    for x, y in batches:
        feed = {f"{scope}/input:0": x, f"{scope}/label:0": y, f"{scope}/keep:0": 0.8}
        sessions[scope].run([f"{scope}/cross_entropy:0", f"{scope}/train_step"], feed)


# %%
weights = []
for way in [in_turn, at_once]:
    sessions = {scope: start(scope) for scope in graphs}
    way(train_graph, graphs)
    both = [s.run(s.graph.get_collection("variables")) for s in sessions.values()]
    weights.append(sum(both, []))  # one list of two
compare(*weights)

# %% [markdown]
# Two sessions at once gave what they gave in turn.
#
# ### The same losses as Keras
#
# Are the graphs and the Keras models the same networks? From the same weights and without dropout,
# their losses should agree. `in_session` makes a member from a scope and a session of its own. A
# step is all that this needs, and nothing is predicted:

# %%
def keras_models():
    made = [build(hidden // 8, places[scope], dropout=0) for scope, hidden in hiddens.items()]
    for model, hidden in zip(made, hiddens.values()):
        network = networks.jang(hidden=hidden, width=0.125)
        model.set_weights(list(networks.initial(network, seed=hidden).values()))
    return made


def in_session(scope):
    session = start(scope)

    def step(x, y):
        feed = {f"{scope}/input:0": x, f"{scope}/label:0": y}
        return session.run([f"{scope}/cross_entropy:0", f"{scope}/train_step"], feed)

    return ensemble.Member(scope, step, predict=None)


hiddens = {"g1": 2400, "g2": 4800}
today = [ensemble.from_keras(*pair) for pair in zip(hiddens, keras_models())]
classic = [in_session(scope) for scope in graphs]
losses = [list(ensemble.train(pair, batches).losses.values()) for pair in (today, classic)]
apart = np.max(np.abs(np.divide(*losses) - 1))
print(f"{np.size(losses[0])} losses, less than 0.1 % apart:", apart < 1e-3)

# %% [markdown]
# ## One function with all steps
#
# Instead of threads, one `tf.function` can hold the steps of all models. They do not depend on each
# other, so TensorFlow can run them at the same time. `train_step` is the step inside Keras's
# `train_on_batch`. It gives the mean of the losses so far, which is compared with the mean of the
# losses above:

# %%
pair = keras_models()


@tf.function
def step_all(x, y):
    means = []
    for model, device in zip(pair, places.values()):
        with tf.device(device):
            means.append(model.train_step((x, y))["loss"])
    return means


for x, y in batches:
    means = np.array(step_all(x, y))
apart = np.max(np.abs(means / np.mean(losses[0], axis=1) - 1))
print("2 mean losses, less than 0.1 % apart:", apart < 1e-3)

# %% [markdown]
# They agree. A call of this function returns when the slowest model has made its step. Threads do
# not wait for each other.
#
# ## Break it
#
# **One iterator for two members.** A generator deals out its batches, each to whoever asks first.
# So two members that share one would each see a part of the batches. `ensemble.train`
# makes a list of an iterator, and all members see all of it. What if a function gives the same
# iterator to both?

# %%
shared = digits.batches(images, labels, 128)
try:
    ensemble.train(members, lambda place: shared)
except ValueError as error:
    print(error)

# %% [markdown]
# `ensemble.train` refuses it.
#
# **An error in one member.** In the first cell, the third batch of `large` has lost the lower half
# of each image. The other member ends the step that it is in, and the error carries the run so far.
#
# **A wrong label.** In the second cell, each label is one too high. The labels are 0 to 9, so each
# 9 becomes a 10. On the CPU the loss raises an error. On a GPU it does not, because a kernel cannot
# raise. There the loss becomes NaN, the step writes NaN into the weights, and the training goes on
# without a word. So check the loss as well:

# %%
broken = [*batches[:2], (images[:256, :14], labels[:256])]
try:
    ensemble.train(members, lambda place: [batches, broken][place])
except ensemble.MemberError as error:
    print(f"{error.name} failed in step {error.step}, losses: {len(error.run.losses['large'])}")

# %%
x, y = batches[0]
for member in [members[0], classic[0]]:
    try:
        loss = np.ravel(member.step(x, y + 1))[0]
        assert np.isfinite(loss), "the loss is not a number"
    except (tf.errors.InvalidArgumentError, AssertionError):
        print(member.name, "caught")

# %% [markdown]
# On a CPU the cell catches TensorFlow's error, and on a GPU that of the assertion. The loss comes
# as a number in every step here, so the check costs nothing.
#
# ## With your own model
#
# Here is a model with batch normalization, compiled with a metric. Two of them train at once and
# are saved half-way, with their optimizers, by TensorFlow's `tf.train.Checkpoint`. Two new ones,
# with other weights at the start, resume from the file. Then all four go on. Do the new ones end
# where the first two end?

# %%
def my_models(*seeds):
    for seed, device in zip(seeds, [plan.devices[0], plan.devices[-1]]):
        keras.utils.set_random_seed(seed)
        inner = [layers.Flatten(), layers.BatchNormalization(), layers.Dense(10, "softmax")]
        with tf.device(device):
            model = keras.Sequential([keras.Input([28, 28, 1]), *inner])
            model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
            model.optimizer.build(model.trainable_variables)
        yield model


def checkpoint(models):
    return tf.train.Checkpoint(models=models, optimizers=[each.optimizer for each in models])


def go_on(models, batches):
    ensemble.train([ensemble.from_keras(each.name, each) for each in models], batches)


first, resumed = list(my_models(1, 2)), list(my_models(3, 4))
go_on(first, batches[:2])
with tempfile.TemporaryDirectory() as folder:
    file = checkpoint(first).write(f"{folder}/half-way")
    checkpoint(resumed).read(file).assert_consumed()
go_on(first + resumed, batches[2:])
compare(values(first), values(resumed))

# %% [markdown]
# The moving averages of the batch normalization, Adam's slots and the counters are among these
# numbers. `assert_consumed` raises an error if a number of the file found no place. An optimizer
# that has not trained has no slots yet: without `optimizer.build` they would be filled later.
#
# What to watch for:
#
# - Build the model in a `tf.device` block and compile it there. Its weights stay where they were
#   built, and the optimizer and the metrics have variables too. Where there is a GPU, Keras
#   compiles the step with XLA, which accepts no variable of another device.
# - Set the seed before each model is built. Members with the same seed and the same batches are one
#   model twice.
# - A step here is `train_on_batch`, which calls no callbacks. `fit` does, and can run in a thread
#   for each model as well: call it in place of `train_on_batch` in a function such as `train`.
# - Give each member an iterator of its own over its `tf.data` pipeline.
# - Only variables are saved. The place in the data is not among them: go on with the batches that
#   the members have not seen.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `trains(session, fetches, feed)`. It runs the fetches once and returns True if any
# trainable variable of the session's graph has another value than before, and False if none has.
# The fetches may be anything that `session.run` takes.

# %% tags=["exercise"]
def trains(session, fetches, feed):
    session.run(fetches, feed)
    return True


checks.trains(trains)

# %% tags=["solution"]
def trains(session, fetches, feed):
    weights = session.graph.get_collection("trainable_variables")
    before = session.run(weights)
    session.run(fetches, feed)
    return any(not np.array_equal(a, b) for a, b in zip(before, session.run(weights)))


checks.trains(trains)

# %% [markdown]
# **2.** Sometimes no answer is better than a wrong one. Write `agreed(predicted)`. It takes the
# members' probabilities, as in `predicted` above, and returns a label for each digit: the one that
# all members say, or -1 where they do not all say the same. There may be any number of members.

# %% tags=["exercise"]
def agreed(predicted):
    return ensemble.vote(predicted)


checks.agreed(agreed)

# %% tags=["solution"]
def agreed(predicted):
    said = np.stack([array.argmax(axis=1) for array in predicted.values()])
    return np.where((said == said[0]).all(axis=0), said[0], -1)


checks.agreed(agreed)

# %% [markdown]
# **3.** Our `at_once` drops what the work returns. Write `run_all(functions)`. It calls all
# functions at once, each in a thread of its own, and returns a list of their results in the order
# of the functions.

# %% tags=["exercise"]
def run_all(functions):
    return [function() for function in functions]


checks.run_all(run_all)

# %% tags=["solution"]
def run_all(functions):
    results = [None] * len(functions)

    def call(i):
        results[i] = functions[i]()

    threads = [threading.Thread(target=call, args=[i]) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


checks.run_all(run_all)

# %% [markdown]
# ## What we saw
#
# - Two Keras models trained at once, with a thread and a device for each. In `cores` mode none of
#   their 729,020 numbers differed from those of a training in turn.
# - A thread did not inherit the `tf.device` block around its start.
# - Vote and average were better than the average member. The standard error said which gains 360
#   digits can show.
# - The article's loop fetched the loss alone and moved 0 of 5 weights. Fetching the training too
#   moved all 5.
# - Two sessions at once gave the weights of two sessions in turn. Their losses were those of the
#   Keras models to 0.1 %, and so were those of one function with all steps.
# - Two models with batch normalization were saved half-way, and two new ones resumed from the
#   file. They ended where the first two ended.
#
# ## In practice
#
# Use this when you train several models at the same time, and each of them fits on one device. It
# costs a few lines and a thread for each model, and one process holds all of them in memory.
#
# - Is a thread for each model best, or one function or graph with all, or a process for each?
#   `benchmarks/ensemble.py` measures it on your machine. It trains in sessions. By its stored
#   [card](../results/ensemble.json) all three take little more than half of the time in turn on two
#   cores. Keras models run more Python between two steps and gain less: for them the comparison
#   above counts.
# - Separate models are easier to change than one function that holds all of them.
# - Threads share the GIL. Where much Python runs between two steps, for example to prepare the
#   data, give each model a process of its own ([[04]]).
# - Do so too where models need different libraries or belong to different people. A crash then ends
#   only one of them.
# - Save often. After an error in one member, the others can be saved and resumed.
# - Other seeds are the cheapest difference between members. With other networks, or other parts of
#   the data, their errors overlap less.
# - An ensemble predicts with all its members, so it costs as much as all of them together.
# - The digits here come with this package. Those of the article are MNIST.
#
# Next: [[next]].
