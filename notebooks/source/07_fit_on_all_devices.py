# %% [markdown]
# # Fit on all devices
#
# You have a Keras model and two GPUs. You call `model.fit`, and it trains on one of them.
#
# **In this lesson** three lines make `fit` train a model on all devices with the numbers of one
# device, and you catch what spoils such a training without a word.
#
# **You will learn** to
# - put `fit` on all devices, and see that all of them worked,
# - say what each device computes and holds, and what the devices exchange,
# - prove that the weights are those of one device,
# - find with `fit.check` what would spoil a training, before it runs.
#
# **You need** [[00]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import tempfile
import textwrap
import warnings
from collections import Counter

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, fit, timing, trace
from mgpu_helpers.lessons import digits
from mgpu_helpers.lessons.checks import lesson_07 as checks

layers = keras.layers
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
warnings.simplefilter("ignore", UserWarning)  # Keras has one for every Dataset in fit

# %% [markdown]
# ## The lines to paste
#
# Here is a small network for handwritten digits. `batches` makes its data: global batches of 120
# images, in the same order whenever it is called. The last batch has 61 images, which do not divide
# by two:

# %%
def build():
    keras.utils.set_random_seed(8)
    convolutions = [layers.Conv2D(n, 5, strides=2, activation="relu") for n in (16, 32)]
    model = keras.Sequential(
        [keras.Input([28, 28, 1]), *convolutions, layers.Flatten(), layers.Dense(10)]
    )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), entropy, metrics=["accuracy"])
    return model


images, labels = digits.load(901)
new = digits.load(test=True)


def batches():
    return fit.batches(images, labels, batch_size=120, shuffle=True)


# %% [markdown]
# First it trains on one device. (You would leave out the `tf.device` block: TensorFlow chooses the
# first GPU by itself.)

# %%
options = {"validation_data": new, "validation_batch_size": 120, "epochs": 3, "verbose": 0}
with tf.device(plan.devices[0]):
    alone = build()
    of_one = alone.fit(batches(), **options).history

# %% [markdown]
# And then on all of them. The lines to paste are `from mgpu_helpers import devices, fit`,
# `plan = devices.setup()`, which takes all GPUs, and the `with` line. In its block the model is
# built and compiled. `fit` stays as it was:

# %%
with fit.strategy(plan).scope():
    model = build()
of_all = model.fit(batches(), **options).history

# %%
for name, one in of_one.items():
    print(f"{name:12} one {np.round(one, 2)}  all {np.round(of_all[name], 2)}")
close = all(np.allclose(of_one[name], of_all[name], rtol=0, atol=0.005) for name in of_one)
print("less than 0.005 apart:", close)

# %% [markdown]
# Losses, accuracy and validation are those of one device. Did both devices work? A step needs five
# convolutions, two forward and three backward. `trace.fit_step` traces one step of what `fit` runs.
# Look at who computed them, and compare the timelines of both steps:

# %%
with tf.device(plan.devices[0]):
    step_of_one = trace.fit_step(alone, (images[:840], labels[:840]))
step_of_all = trace.fit_step(model, (images[:840], labels[:840]))
for each in (step_of_one, step_of_all):
    print(sorted(Counter(op.device for op in each.ops if "Conv2D" in op.type).items()))

# %% tags=["varies", "cover"]
for each in (step_of_one, step_of_all):
    charts.timeline(each).set_xlim(0, 1e3 * max(step_of_one.length, step_of_all.length))
    plt.show()

# %% [markdown]
# Every device computed five convolutions, each for its share of the batch.
#
# | | |
# |---|---|
# | **Use it when** | the model and its step fit on one GPU, and a step keeps it busy |
# | **It costs** | weights and optimizer state on every device, and an exchange in each step |
# | **Instead** | one device, if steps are short; if it does not fit, [[10]], [[11]] or [[12]] |
#
# ## How it works
#
# The function that computes a step runs once for each device. Such a run, with what belongs to it,
# is a **replica**:
#
# ![Two shards of the global batch go to two replicas, device 0 and device 1. All their gradients
# are added up, and each device has a copy of the weights of its own, which it
# updates.](pictures/07_replicas.svg)
#
# Each replica takes its **shard** of the batch, computes gradients, and gives them to an
# **all-reduce**, which gives back the sum of all. Then it updates its own copy of the weights. As
# all replicas do the same, the copies stay equal.
#
# The next cell adds up the bytes of weights and optimizer state on each device.
# `experimental_local_results` gives what each replica has of a value:

# %%
strategy = fit.strategy(plan)  # the same one again
for name, each in (("one", alone), ("all", model)):
    held = Counter()
    for variable in each.variables + each.optimizer.variables:
        for copy in strategy.experimental_local_results(variable.value):
            held[devices.short(copy.device)] += copy.numpy().nbytes
    print(name, dict(held))

# %% [markdown]
# Now by hand, with one weight w and five numbers. `fit.strategy` gives TensorFlow's own
# `MirroredStrategy`, with mends around it. Here is a plain one. (Make one in a process: a second
# one gives its all-reduces [the same numbers](../docs/errors.md#collective). `fit.strategy` gives
# the same one again.)
#
# The loss is the mean of (w·x)². With w = 1 its gradient is the mean of 2x², which is 22. A replica
# does not know the mean of the batch. It knows its shard and the size of the **global batch**, so
# it divides by that, and the parts of all replicas add up to the mean:

# %%
plain = tf.distribute.MirroredStrategy(plan.devices)
with plain.scope():
    weight, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.01)
numbers = tf.data.Dataset.from_tensors(tf.range(1.0, 6.0))


def replica(x, size):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((weight * x) ** 2) / size
    gradient = tape.gradient(loss, weight.value)
    optimizer.apply([gradient], [weight])  # adds up the gradients of all replicas before
    return gradient


# %%
(shards,) = plain.experimental_distribute_dataset(numbers)
gradients = plain.run(replica, args=(shards, 5.0))
for name, value in [("shards", shards), ("gradients", gradients), ("weights", weight.value)]:
    print(name, *[np.round(each, 2) for each in plain.experimental_local_results(value)])
print(f"added up: {plain.reduce('SUM', gradients, axis=None):.2f}")

# %% [markdown]
# The shards have three numbers and two, the sum is 22, and both copies of the weight took the same
# step of 0.01 · 22.
#
# Keras under a plain `MirroredStrategy` does something else. Each replica takes the mean of its own
# shard, and these means count equally, whatever the sizes. Here the two means are 28/3 and 82/2,
# and half of each makes 25.2 in place of 22. No error says so.
#
# ## Proof
#
# In float64, where rounding cannot hide a mistake, a network with BatchNormalization trains for two
# passes. (XLA, with which Keras compiles for one GPU, would compute in another order.) The last
# batch has a single image, so one of two devices gets none. `apart` gives the largest difference of
# any weight, as a share of the largest one of its variable. The last line says how far the training
# went:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")


def normed(synchronized=False, optimizer=None, rate=0.1):
    keras.utils.set_random_seed(8)
    norm = layers.BatchNormalization(synchronized=synchronized, name="norm")
    stack = [layers.Flatten(), layers.Dense(32, use_bias=False), norm, layers.ReLU()]
    model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Dense(10)], name="normed")
    model.compile(optimizer or keras.optimizers.SGD(rate), entropy, jit_compile=False)
    return model


# %%
size = 60 * len(plan)
every, short = 4 * size, 4 * size + 1
x, y = digits.load(short)


def rows(count, size=size):
    return fit.batches(x[:count], y[:count], batch_size=size)


def trained(scope, count, synchronized=False):
    with scope:
        model = normed(synchronized)
        model.fit(rows(count), epochs=2, verbose=0)
    return model.get_weights()


def apart(ours, theirs):
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, theirs))


# %%
one = {count: trained(tf.device(plan.devices[0]), count) for count in (every, short)}
start = normed().get_weights()
ours = trained(strategy.scope(), short)
print("all devices are below 1e-12 from one:", apart(ours, one[short]) < 1e-12)
print(f"the first kernel began {apart(start[:1], one[short][:1]):.2f} apart")

# %% [markdown]
# ## Break it
#
# **The same with TensorFlow's own strategy.** `fit.check` takes a model and its data, and gives a
# sentence for each trap that it sees. It trains nothing. What does it say of this training, and
# what happens if it runs all the same?

# %%
def say(sentences):
    print(*[textwrap.fill(each, 88, subsequent_indent="  ") for each in sentences], sep="\n")


with plain.scope():
    broken = normed()
say(fit.check(broken, rows(short)))

# %%
history = broken.fit(rows(short), verbose=0).history
print("loss", np.round(history["loss"], 2))
print("NaN:", [each.path.partition("/")[2] for each in broken.variables if np.isnan(each).any()])

# %% [markdown]
# The loss of the pass is a number, and the weight `gamma` is not one: the mean of no images is NaN,
# and the all-reduce gives it to both replicas. The next pass is lost.
#
# Each sentence has its cure. `synchronized=True` lets the replicas exchange their statistics, and
# without the last image every batch divides. Here are either cure alone and both together:

# %%
for count, synchronized in [(short, True), (every, False), (every, True)]:
    far = apart(trained(plain.scope(), count, synchronized), one[count])
    print(f"{count} images, synchronized={synchronized!s:5}  {far:.2f} apart,",
          f"below 1e-12: {far < 1e-12}")  # fmt: skip

# %% [markdown]
# With both cures the plain strategy ends at the weights of one device, and with either alone it
# does not. A model of `fit.strategy` needs neither. There each replica counts by its share of the
# batch, and BatchNormalization takes the statistics of the global batch. It also mends what
# `fit.check` does not look for: clipping by a norm, masks and dropout
# ([the table](../docs/fit.md#what-is-mended)).
#
# **An optimizer from outside of the scope.** It was built before, as somebody does who hands it on
# from another model. Eight steps are taken. What has it counted?

# %%
with plain.scope():
    broken = normed(synchronized=True)
with tf.device(plan.devices[0]):
    outside = keras.optimizers.SGD(0.1)
    outside.build(broken.trainable_variables)
with plain.scope():
    broken.compile(outside, entropy)
say(fit.check(broken, rows(every)))
broken.fit(rows(every), epochs=2, verbose=0)
print("counted steps:", int(outside.iterations))

# %%
outside = keras.optimizers.SGD(0.1)
with strategy.scope():
    broken = normed(optimizer=outside)
try:
    broken.fit(rows(every), verbose=0)
except ValueError as error:
    say([str(error)])

# %% [markdown]
# The plain strategy counted each step once for each replica, so a schedule of the learning rate
# would run twice as fast. `fit.strategy` refuses such an optimizer. `compile("sgd", …)` in the
# scope makes a new one there.
#
# **The learning rate of one device.** More devices invite you to a larger batch. Then a pass has
# fewer steps, and each has to go farther. `rate_for` tells `fit.check` the batch that the rate was
# found with:

# %%
with strategy.scope():
    model = normed(rate=0.05)
say(fit.check(model, rows(every), rate_for=size // 4))

# %%
for batch, rate in [(size // 4, 0.05), (size, 0.05), (size, 0.2)]:
    with strategy.scope():
        model = normed(rate=rate)
    loss = model.fit(rows(every, batch), epochs=2, verbose=0).history["loss"][-1]
    print(f"batch {batch}, rate {rate}: loss {loss:.2f}")

# %% [markdown]
# With four times the batch and the old rate, the loss is still far from where it was. With four
# times the rate it is back there. The rule ends somewhere: try it with your model.
#
# ## When not to
#
# A step of a small batch takes a few milliseconds, and what surrounds it does not get less with
# more devices: Python, the input, the exchange. The next cell times twelve steps of `fit`, on one
# device and on all. (With more devices than cores, or beside other work, such times say nothing.)

# %% tags=["nbval-ignore-output"]
keras.config.set_floatx("float32")
keras.config.set_dtype_policy("float32")
with strategy.scope():
    model = build()


def twelve_steps(model, size):
    def run():
        with tf.device(None if model is not alone else plan.devices[0]):
            model.fit(data, verbose=0)

    data = fit.batches(images[:size], labels[:size], batch_size=size).repeat(12)
    return run


for size in (32, 840):
    ways = {"one": twelve_steps(alone, size), "all": twelve_steps(model, size)}
    took = timing.several(ways, warmup=1, repeats=3)
    print(f"batch {size}", *(f"{name} {each}" for name, each in took.items()), sep="\n  ")

# %% [markdown]
# The small batch gains nothing by more devices. On a quiet machine with a core for each device, the
# large one gains clearly: [docs/fit.md](../docs/fit.md#what-it-costs) has measured it. Where your
# step is as short as the first, enlarge the batch or stay on one device. `fit.explain(model, data)`
# says where its time goes.
#
# ## On GPUs
#
# On whole GPUs the all-reduce is that of NCCL, NVIDIA's library, and it begins while the backward
# pass still runs. A step should keep each GPU busy for tens of milliseconds, or the exchange is
# most of it. On one GPU Keras compiles with XLA by itself and under a strategy it does not, so
# compare with `compile(…, jit_compile=False)`. Mixed precision is one line as ever ([[10]]). For
# several machines the three lines are the same ([[17]]).
#
# ## With a model of another kind
#
# Here sentences of different lengths go through attention with a mask, and the model has two
# outputs with a loss each. After every pass a callback saves it. Then one device loads the file,
# and both train for another pass. The last batch is short again:

# %%
def reader():
    keras.utils.set_random_seed(8)
    words = keras.Input([12], dtype="int32")
    x = layers.Embedding(50, 16, mask_zero=True)(words)
    x = layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 8)(x, x))
    model = keras.Model(words, {"kind": layers.Dense(3)(x), "score": layers.Dense(1)(x)})
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), {"kind": entropy, "score": "mse"})
    return model


random = np.random.default_rng(8)
words = random.integers(1, 50, [205, 12]) * (np.arange(12) < random.integers(1, 13, [205, 1]))
answers = {"kind": words.max(1) % 3, "score": words.mean(1, keepdims=True) / 10}

# %%
with strategy.scope():
    model = reader()
data = fit.batches(words, answers, batch_size=50)
print(fit.check(model, data))

with tempfile.TemporaryDirectory() as folder:
    save = keras.callbacks.ModelCheckpoint(f"{folder}/reader.keras")
    model.fit(data, epochs=2, verbose=0, callbacks=[save])
    with tf.device(plan.devices[0]):
        loaded = keras.models.load_model(f"{folder}/reader.keras")
        loss = loaded.fit(data, verbose=0).history["loss"][0]

print(int(loaded.optimizer.iterations), f"steps, loss {loss:.2f}")
close = np.isclose(model.fit(data, verbose=0).history["loss"][0], loss, rtol=0, atol=1e-4)
print("all devices have this loss to 1e-4:", close)

# %% [markdown]
# `fit.check` has nothing to say. The file holds one copy of everything, the optimizer's state too,
# so it does not matter how many devices wrote it.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `evaluate(strategy, losses_of, data)`. `data` is a dataset of global batches of any
# size. `losses_of` gives a loss for each example of a shard, and has to run on the replicas. Return
# the mean loss of all examples. The stub takes a mean of means.

# %% tags=["exercise"]
def evaluate(strategy, losses_of, data):
    batches = strategy.experimental_distribute_dataset(data)
    losses = [strategy.run(losses_of, args=(batch,)) for batch in batches]
    return np.mean([strategy.reduce("MEAN", each, axis=0) for each in losses])


checks.evaluate(evaluate)

# %% tags=["solution"]
def evaluate(strategy, losses_of, data):
    batches = strategy.experimental_distribute_dataset(data)
    losses = [strategy.run(losses_of, args=(batch,)) for batch in batches]
    return np.mean(np.concatenate(sum(map(strategy.experimental_local_results, losses), ())))


checks.evaluate(evaluate)

# %% [markdown]
# **2.** A plain strategy cuts a batch like this: each replica takes the share that would be even,
# rounded up, until nothing is left. Write `leaves_empty(examples, batch, replicas)`: whether any
# batch of a dataset with so many examples leaves a replica without one. Full batches count, too.

# %% tags=["exercise"]
def leaves_empty(examples, batch, replicas):
    return examples % batch < replicas


checks.leaves_empty(leaves_empty)

# %% tags=["solution"]
def leaves_empty(examples, batch, replicas):
    sizes = {min(batch, examples), examples % batch} - {0}  # of the first batch and the last
    return any(-(-size // replicas) * (replicas - 1) >= size for size in sizes)


checks.leaves_empty(leaves_empty)

# %% [markdown]
# ## What we saw
#
# - Three lines put both devices to work: each computed 5 convolutions of a step, and the history of
#   `fit` was that of one device.
# - The gradients of two replicas added up to 22.00, that of the whole batch.
# - With a last batch of one image, the weights were below 1e-12 from those of one device.
# - TensorFlow's own strategy made `gamma` NaN there. Without that batch it ended 0.05 apart, until
#   BatchNormalization was synchronized, too. `fit.check` named both traps.
# - An optimizer from outside counted 16 steps in place of eight.
#
# ## In practice
#
# Paste the three lines, call `fit.check(model, data)` once, and time `fit` against one device.
# [What is kept of `fit`](../docs/fit.md) is a table, each line of which is tested. Take towers
# ([[09]]) to see or change what happens inside of a step. Next: [[next]].
