# %% [markdown]
# # Fit on all devices
#
# You have a Keras model and two GPUs. You call `model.fit`, and it trains on one of them.
#
# **In this lesson** three lines make `fit` train a model on all devices, with the losses and
# weights of one device, and you find the mistakes that spoil such a training without an error.
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

plan = devices.setup(2, exact=True)
plan

# %%
import tempfile
import textwrap
import warnings
from collections import Counter
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, timing, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_07 as checks

layers = keras.layers
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
warnings.filterwarnings("ignore", "`shuffle=True`")  # fit keeps the order of a Dataset

# %% [markdown]
# ## The lines to paste
#
# Three lines are new, and `fit` stays as it was:
#
# ```python
# from mgpu_helpers import devices, fit
#
# plan = devices.setup()  # all GPUs; comes before the first tensor
# with fit.strategy(plan).scope():
#     model = build()  # builds the model and compiles it
# ```
#
# `fit.strategy` is TensorFlow's `MirroredStrategy` with repairs for what Keras gets wrong there.
# "Break it" shows what that is, and "Proof" that it is mended. Your data stay arrays or a
# `tf.data.Dataset`, and the devices share each batch, the **global batch**. We try the lines with a
# small network for handwritten digits. `jit_compile=False` turns off XLA, which compiles on GPUs
# and would compute in another order:

# %%
def build():
    keras.utils.set_random_seed(8)
    convolution = partial(layers.Conv2D, padding="same", activation="relu")
    stack = [convolution(32, 7), layers.MaxPool2D(4), convolution(16, 3), layers.Flatten()]
    model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Dense(10)])
    sgd = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(sgd, entropy, metrics=["accuracy"], jit_compile=False)
    return model


# %% [markdown]
# First it trains on one device, then on all. `fit.batches` makes a Dataset of arrays, in the same
# order for both; `shuffle=True` would give a new order in each pass. The last batch has 61 images,
# which do not divide by two:

# %%
images, labels = digits.load(901)
data = fit.batches(images, labels, batch_size=120)
options = {"validation_data": digits.load(test=True), "epochs": 3, "verbose": 0}
with tf.device(plan.devices[0]):
    alone = build()
    of_one = alone.fit(data, **options).history

# %%
with fit.strategy(plan).scope():
    model = build()
of_all = model.fit(data, **options).history

# %%
for name, one in of_one.items():
    print(f"{name:12} one {np.round(one, 2)}  all {np.round(of_all[name], 2)}")
close = all(np.allclose(of_one[name], of_all[name], rtol=0, atol=0.005) for name in of_one)
print("less than 0.005 apart:", close)

# %% [markdown]
# Losses and accuracies are less than 0.005 apart. Was it faster, too? That depends on the batch.
# Five steps of `fit` are timed below on one device and on all, with a small global batch and a
# large one:

# %%
def on_one(data):
    with tf.device(plan.devices[0]):
        alone.fit(data, verbose=0)


# %%
names = "one device", "all devices"
for size in (8, 840):
    data = fit.batches(images[:size], labels[:size], batch_size=size).repeat(5)
    both = (lambda: on_one(data)), (lambda: model.fit(data, verbose=0))
    print(f"{size:3} images,", timing.compare(*both, warmup=1, repeats=5, names=names))

# %% [markdown]
# With 8 images a second device gains nothing, or costs time: feeding the data and adding up the
# gradients take time in every step, and more devices do not shorten that. With 840 images two cores
# are clearly faster; [[15]] says how many pairs a small difference needs. GPUs finish this network
# too soon to gain.
#
# | | |
# |---|---|
# | **Use it when** | the model and its step fit on one GPU, and a step keeps it busy |
# | **It costs** | weights and optimizer state on every device, and an exchange in each step |
# | **Instead** | for short steps one device; if the model does not fit, [[10]], [[11]] or [[12]] |
#
# ## How it works
#
# What does each device do? `trace.fit_step` records which device computes what in a step of `fit`,
# and when. The step needs five convolutions, 1 and 2 forward, 3 to 5 backward:

# %%
def shortest(model, device=None):
    with tf.device(device):
        steps = [trace.fit_step(model, (images[:840], labels[:840])) for _ in range(3)]
    return min(steps, key=lambda step: step.length)  # the least disturbed step


steps = {"One device": shortest(alone, plan.devices[0]), "All devices": shortest(model)}
for name, step in steps.items():
    print(name, sorted(Counter(op.device for op in step.ops if "Conv2D" in op.type).items()))

# %% tags=["varies", "cover"]
drawings.steps(steps, line="a kernel's gradient is added up", numbered=True)
plt.show()

# %% [markdown]
# Each device computed all five convolutions for its share of the batch, at the same time as the
# others. At a black line the gradients of one kernel, one from each device, are added up. The first
# line is that of the Dense layer; a sum may wait until its device is free. Where the step gains,
# `fit` gains less, as it also spends time before and between steps. One device alone may use both
# cores: bars of half the height are two operations at once, so the measured gain is rather too
# small. A GPU may have bars too narrow for numbers, and in the gaps mostly waits for the host,
# which starts its operations.
#
# Each device has a copy of the model, its **replica**, which computes the gradients for its
# **shard** of the global batch. Here is a step with one weight w and a batch of five numbers:
#
# ![The first device computes a gradient of 5.6 from the numbers 1, 2 and 3, the second one 16.4
# from 4 and 5. The all-reduce gives both the sum 22, and each changes its own w from 1 to
# 0.78.](pictures/07_replicas.svg)
#
# An **all-reduce** adds up the gradients of all replicas and gives every replica the sum. With it
# each replica updates its own weights, so they stay equal to those of the others.
#
# Now we take this step by hand, with TensorFlow's own `MirroredStrategy`, here called the **plain
# strategy**. It may exist beside `fit.strategy(plan)`, but make only one plain strategy: the
# all-reduce of a second may fail ([why](../docs/errors.md#collective)).
#
# The loss is the mean of (w·x)². With w = 1 its gradient is the mean of 2x², which is 22. A replica
# has only its shard and cannot take this mean. But it can divide the sum over its shard by the size
# of the global batch, and these results add up to the mean:

# %%
plain = tf.distribute.MirroredStrategy(plan.devices)
with plain.scope():
    weight, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.01)


def replica(x, size):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((weight * x) ** 2) / size
    gradient = tape.gradient(loss, weight.value)
    optimizer.apply([gradient], [weight])  # all-reduces the gradients, then updates
    return gradient


# %% [markdown]
# `plain.run` calls `replica` on every device. `experimental_local_results` lists what each of them
# holds of a value, and `reduce` adds up what they returned:

# %%
numbers = tf.data.Dataset.from_tensors(tf.range(1.0, 6.0))
(shards,) = plain.experimental_distribute_dataset(numbers)
gradients = plain.run(replica, args=(shards, 5.0))
for name, value in ("shards", shards), ("gradients", gradients), ("weights", weight.value):
    print(name, *[np.round(each, 2) for each in plain.experimental_local_results(value)])
print(f"added up: {plain.reduce('SUM', gradients, axis=None):.2f}")

# %% [markdown]
# The gradients add up to 22, and each copy of the weight took the same step of 0.01 · 22.
#
# Each replica needs all weights and the whole state of the optimizer. The next cell counts their
# bytes for the network of digits:

# %%
strategy = fit.strategy(plan)  # gives the strategy that exists already
for name, each in (("one", alone), ("all", model)):
    held = Counter()
    for variable in each.variables + each.optimizer.variables:
        for copy in strategy.experimental_local_results(variable.value):
            held[devices.short(copy.device)] += copy.numpy().nbytes
    print(name, dict(held))

# %% [markdown]
# Each device holds a whole copy.
#
# ## Proof
#
# In float64, where rounding hides no mistake, a network with BatchNormalization trains for two
# passes, once on one device and once on all. The last batch has a single image, so one of two
# devices gets none:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
size = 60 * len(plan)
x, y = digits.load(4 * size + 1)
uneven = fit.batches(x, y, batch_size=size)


def normed(synchronized=False):
    keras.utils.set_random_seed(8)
    norm = layers.BatchNormalization(synchronized=synchronized, name="norm")
    stack = [layers.Flatten(), layers.Dense(32, use_bias=False), norm, layers.ReLU()]
    model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Dense(10)])
    model.compile(keras.optimizers.SGD(0.1), entropy, jit_compile=False)
    return model  # without XLA, which would compute in another order


# %% [markdown]
# `apart` gives the largest difference, relative to the largest weight of the same variable:

# %%
def trained(scope, data, **options):
    with scope:
        model = normed(**options)
        model.fit(data, epochs=2, verbose=0)
    return model.get_weights()


def apart(ours, theirs):
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, theirs))


one = trained(tf.device(plan.devices[0]), uneven)
ours = trained(strategy.scope(), uneven)
print("one device and all are less than 1e-12 apart:", apart(ours, one) < 1e-12)
print(f"before and after training: {apart(normed().get_weights()[:1], one[:1]):.2f} apart")

# %% [markdown]
# The weights agree to 1e-12, and the training had moved the first kernel much farther.
#
# ## Break it
#
# Under the plain strategy Keras lets each replica take the mean of its own shard, and these means
# count equally. What would that give for the five numbers above, whose mean of 2x² is 22?

# %%
parts = plain.experimental_local_results(shards)
means = [np.sum(2 * part**2) / max(len(part), 1) for part in parts]
print("means of the shards:", *np.round(means, 2), f" their average: {np.mean(means):.2f}")

# %% [markdown]
# The average of the means is 25.17 in place of 22, and no error would say so. `fit.check` takes a
# model and its data, and gives a sentence for each such trap that it sees. Here it looks at the
# training of the proof; the cell after it runs that anyway:

# %%
with plain.scope():
    broken = normed()
for sentence in fit.check(broken, uneven, proof=False):
    print(textwrap.fill(sentence, 88, subsequent_indent="  "))

# %%
losses = broken.fit(uneven, epochs=2, verbose=0).history["loss"]
print("plain strategy, losses:", np.round(losses, 2))

# %% [markdown]
# BatchNormalization takes the mean of no images, which is NaN, and the all-reduce carries it to
# every replica. The first loss is still a number, so nothing warns you; the second pass is lost.
#
# Each sentence names a cure. Without the last image every batch divides evenly, and with
# `synchronized=True` the replicas exchange their statistics. The next cell takes the first cure
# alone, and then both:

# %%
even = uneven.take(4)
one = trained(tf.device(plan.devices[0]), even)
for both in (False, True):
    far = apart(trained(plain.scope(), even, synchronized=both), one)
    print(f"even batches, synchronized={both!s:5} {far:.2f} apart, below 1e-12: {far < 1e-12}")

# %% [markdown]
# With both cures the plain strategy ends at the weights of one device. `fit.check` knows more
# traps:
#
# | with the plain strategy | what happens | the cure |
# |---|---|---|
# | a loss that is a sum | gradients are divided by the number of replicas | take the mean |
# | an optimizer made outside | the step counter goes up once per replica | compile in the scope |
#
# `fit.strategy` needs only the last cure, and refuses to train without it. It mends the other
# traps itself, and some that `fit.check` does not look for, such as clipping by a norm, masks and
# dropout ([the table](../docs/fit.md#what-is-mended)).
#
# ## On GPUs
#
# Between physical GPUs the all-reduce is that of NCCL, NVIDIA's library. There `fit.strategy`
# exchanges the gradients in packs of at least 25 MiB; elsewhere it adds up each gradient by itself.
# The packs of the last layers go first, so in a large model the exchange begins while the backward
# pass still runs. A step should compute for much longer than its exchange takes. For several
# machines the three lines are the same ([[17]]).
#
# ## With a model of another kind
#
# This model takes sequences of 12 or 6 words, filled up with zeros, which a mask leaves out. Its
# two outputs have a loss each. A callback saves the model after every pass. After two passes on all
# devices, one device loads the file, and the saved model and the loaded one train for a third pass:

# %%
keras.config.set_floatx("float32")
keras.config.set_dtype_policy("float32")


def reader():
    keras.utils.set_random_seed(8)
    words = keras.Input([12], dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(50, 16, mask_zero=True)(words))
    model = keras.Model(words, {"kind": layers.Dense(3)(x), "score": layers.Dense(1)(x)})
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), {"kind": entropy, "score": "mse"})
    return model


words = np.random.default_rng(8).integers(1, 50, [205, 12])
words[::2, 6:] = 0
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
# `fit.check` found no trap, and the same gradients and variables after a step on all devices as on
# one; then it put everything back. The third pass has the same loss on one
# device as on all. The file holds one copy of everything, the optimizer's state included.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `evaluate(strategy, losses_of, data)`, which returns the mean loss of all examples.
# `data` is a dataset of global batches, which may differ in size. `losses_of` takes a shard, gives
# a loss for each of its examples, and has to run on the replicas. The stub returns a mean of means.

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
    return np.mean(np.concatenate([strategy.gather(each, axis=0) for each in losses]))


checks.evaluate(evaluate)

# %% [markdown]
# **2.** The plain strategy divides the size of a batch by the number of replicas and rounds up. The
# replicas take shares of this size, one after the other, until no example is left. Write
# `leaves_empty(examples, batch, replicas)` for a dataset of `examples` examples in batches of
# `batch`, of which the last may be smaller. It returns whether any batch leaves a replica empty.

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
# - Three lines put both devices to work: losses and accuracies were less than 0.005 from those of
#   one device.
# - All devices were no faster with the small batch. With the large one, two cores were
#   clearly faster.
# - The gradients of two replicas added up to 22.00, that of the whole batch.
# - With a last batch of one image, the weights were less than 1e-12 from those of one device.
# - The plain strategy lost its second pass to NaN on that batch. Without that batch, the weights
#   ended 0.05 apart. With BatchNormalization synchronized too, they agreed.
#
# ## In practice
#
# Paste the three lines, call `fit.check(model, data)` once, and time `fit` against one device. If
# all devices gain little, enlarge the batch. If the learning rate was found with a batch of 64,
# `fit.check(model, data, rate_for=64)` proposes another. `fit.explain(model, data)` says where the
# time of a step goes. [A table](../docs/fit.md) says what is kept of `fit`. To see or change a
# step, train in towers ([[09]]). Next: [[next]].
