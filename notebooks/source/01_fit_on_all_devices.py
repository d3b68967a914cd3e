# %% [markdown]
# # Fit on all devices
#
# You have a Keras model and two GPUs, but `model.fit` trains on only one of them. These lines use
# both:
#
# ```python
# from mgpu_helpers import devices, fit
#
# plan = devices.setup()
# with fit.strategy(plan).scope():
#     model = build()
# model.fit(x, y, batch_size=64)
# ```
#
# Each device has a **replica** of the model, which computes the gradients of a **shard** of the
# batch. An **all-reduce** returns the sum of the gradients to every replica, so the copies of the
# weights stay equal. In the picture, a model with one weight, w, learns from five numbers, as in
# *A step by hand*, below:
#
# ![Two devices compute the gradients 5.6 and 16.4. The all-reduce returns their sum, 22, to both,
# and each changes its own w from 1 to 0.78.](pictures/01_replicas.svg)
#
# **In this lesson** you check that two devices train a network to the weights of one device, to
# twelve digits. You measure when two devices are faster, and see two mistakes that spoil the
# training without an error.
#
# Take `fit.strategy` if your script makes the model and one device can hold it. Otherwise take
# `fit.use(model, plan)`, which can also cut a model that is too large for one device.
#
# **You need** [[00]], and `tf.GradientTape` for the step by hand.

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import textwrap
import warnings
from collections import Counter

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, timing, trace
from mgpu_helpers.lessons import digits, drawings
from mgpu_helpers.lessons.checks import lesson_01 as checks

layers = keras.layers
warnings.filterwarnings("ignore", "`shuffle=True`")  # fit keeps the order of a Dataset

# %% [markdown]
# ## Try it
#
# The model is a small network for handwritten digits. We compare results to many decimals, so
# `jit_compile=False` turns off XLA, a compiler that would add numbers in another order:

# %%
def build(synchronized=False):
    keras.utils.set_random_seed(8)
    model = keras.Sequential([
        keras.Input([28, 28, 1]), layers.Conv2D(32, 7, padding="same", activation="relu"),
        layers.MaxPool2D(4), layers.Conv2D(16, 3, use_bias=False),
        layers.BatchNormalization(synchronized=synchronized, name="norm"), layers.ReLU(),
        layers.Flatten(), layers.Dense(10)])  # fmt: skip
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), entropy, metrics=["accuracy"], jit_compile=False)
    return model

# %% [markdown]
# `fit.batches` makes a Dataset of arrays. The devices share each batch of 120 images, the **global
# batch**. The last one has 61 images, which two devices cannot share evenly:

# %%
images, labels = digits.load(901)
data = fit.batches(images, labels, batch_size=120)
with fit.strategy(plan).scope():
    model = build()
print("losses:", np.round(model.fit(data, epochs=3, verbose=0).history["loss"], 1))

# %% [markdown]
# The loss falls, but are these the steps of one device? `fit.check` takes the same step on all
# devices and on one, compares both, and puts everything back. It lists a sentence for each problem:

# %%
print(fit.check(model, data))

# %% [markdown]
# The list is empty, so `fit.check` found no problem.
#
# ## What each device does
#
# We trace a step of 420 images, on one device and on all. Each step has five convolutions. Two are
# the forward pass. In the backward pass, two compute the gradients of the kernels, and one computes
# the gradient of the second layer's input.

# %%
with tf.device(plan.devices[0]):
    alone = build()


def shortest(model, device=None):
    with tf.device(device):
        steps = [trace.fit_step(model, (images[:420], labels[:420])) for _ in range(3)]
    return min(steps, key=lambda step: step.length)  # the least disturbed


steps = {"One device": shortest(alone, plan.devices[0]), "All devices": shortest(model)}
for name, step in steps.items():
    print(name, sorted(Counter(op.device for op in step.ops if "Conv2D" in op.type).items()))

# %% tags=["varies", "cover"]
drawings.steps(steps, line="a weight's gradient is added up", numbered=True)
plt.show()

# %% [markdown]
# Each device computes all five convolutions for its own shard, at the same time as the others.
#
# How many bytes of weights and optimizer state does each device hold?

# %%
strategy = fit.strategy(plan)  # for these devices, it is the same one each time
for name, each in (("one", alone), ("all", model)):
    held = Counter()
    for variable in each.variables + each.optimizer.variables:
        for copy in strategy.experimental_local_results(variable.value):
            held[devices.short(copy.device)] += copy.numpy().nbytes
    print(name, dict(held))

# %% [markdown]
# Each device holds all of it. So a second device makes room for a larger batch, but not for a
# larger model.
#
# ## When it is faster
#
# We time five steps on one device and on all, with a small and a large batch:

# %%
def on_one(data):
    with tf.device(plan.devices[0]):
        alone.fit(data, verbose=0)


for size in (8, 420):
    some = fit.batches(images[:size], labels[:size], batch_size=size).repeat(5)
    both = (lambda: on_one(some)), (lambda: model.fit(some, verbose=0))
    names = "one device", "all devices"
    print(f"{size:3} images,", timing.compare(*both, warmup=1, repeats=5, names=names))

# %% [markdown]
# With 420 images, most of a step is computing that two devices can share, so two are faster. With 8
# images, one device is faster. A step also has fixed work that does not shrink with the batch, such
# as starting operations and the all-reduce. The brackets are a range in which the median of many
# pairs of runs is likely to be.
#
# ## A step by hand
#
# Here is the step of the picture, with TensorFlow's own `MirroredStrategy`, which we call the
# **plain strategy**. The weight is w = 1, and the loss is the mean of (w·x)² over the numbers 1 to
# 5. So the gradient is the mean of 2x², which is 22.
#
# A replica sees only its shard. If it divides the sum over its shard by the size of the *global*
# batch, the gradients of all replicas add up to 22. The learning rate is 0.01, so each w falls by
# 0.22, to 0.78:

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


# %%
numbers = tf.data.Dataset.from_tensors(tf.range(1.0, 6.0))
(shards,) = plain.experimental_distribute_dataset(numbers)
gradients = plain.run(replica, args=(shards, 5.0))  # calls replica on every device
for name, value in ("shards", shards), ("gradients", gradients), ("weights", weight.value):
    print(name, *[np.round(each, 2) for each in plain.experimental_local_results(value)])
print(f"added up: {plain.reduce('SUM', gradients, axis=None):.2f}")

# %% [markdown]
# ## Proof
#
# Rounding in float32 could hide a mistake, so we train in float64. The last batch is uneven: one
# replica gets a single image.

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
size = 20 * len(plan)
uneven = fit.batches(*digits.load(2 * size + 2 * len(plan) - 1), batch_size=size)

# %%
def trained(scope, data, **options):
    with scope:
        model = build(**options)
        model.fit(data, epochs=2, verbose=0)
    return model.get_weights()


def apart(ours, theirs):
    # the largest difference, as a share of the largest weight of its variable
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, theirs))

# %%
one = trained(tf.device(plan.devices[0]), uneven)
ours = trained(fit.strategy(plan).scope(), uneven)
print("equal to 1e-12:", apart(ours, one) < 1e-12)
print("training changed the first kernel:", apart(build().get_weights()[:1], one[:1]) > 0.01)

# %% [markdown]
# ## Break it
#
# Now we build the same model under the plain strategy, and ask `fit.check` before we train:

# %%
with plain.scope():
    broken = build()
for sentence in fit.check(broken, uneven, proof=False):  # looks, and compares no steps
    print(textwrap.fill(sentence, 88, subsequent_indent="  "))

# %% [markdown]
# These sentences name two cures: even batches, and `synchronized=True`. Write down what you expect:
# are even batches enough, or do we need both cures?

# %%
even = uneven.take(2)
of_even = trained(tf.device(plan.devices[0]), even)
cases = {"no cure": (uneven, one, False), "even batches": (even, of_even, False),
         "both cures": (even, of_even, True)}  # fmt: skip
for name, (some, wanted, synchronized) in cases.items():
    ours = trained(plain.scope(), some, synchronized=synchronized)
    print(f"{name:12} equal to 1e-12: {apart(ours, wanted) < 1e-12}")

# %% [markdown]
# We need both. Under the plain strategy Keras takes the mean of each shard, and these means count
# equally, even if one shard is larger. Without `synchronized=True`, each replica normalizes by the
# mean of its own shard.
#
# `fit.strategy` repairs both by itself, and more, such as masks and dropout ([the
# table](../docs/fit_tests.md#what-is-mended)).
#
# | | |
# |---|---|
# | **Use it when** | the model fits on one GPU and keeps it busy |
# | **It costs** | all weights on every device, and an all-reduce in each step |
# | **Instead** | one device, if steps are short; [[10]] or [[11]], if the model does not fit |
#
# ## On GPUs
#
# > NVIDIA's library NCCL does the all-reduce between GPUs. `fit.strategy` sends gradients in packs
# > of at least 25 MiB, those of the last layers first. So in a large model the exchange starts
# > while the backward pass still runs.
#
# ## On your own
#
# **1.** Write `evaluate(strategy, losses_of, data)`, which returns the mean loss of all examples.
# `data` is a dataset of global batches of any size. `losses_of` takes a shard and returns a loss
# for each of its examples; it has to run on the replicas. `strategy.gather(values, axis=0)` joins
# what they return. The given lines return a mean of means.

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
# replicas take shards of this size, one after the other, until no example is left. So four replicas
# share five examples as 2, 2, 1 and 0. Write `leaves_empty(examples, batch, replicas)` for a
# dataset of `examples` examples in batches of `batch`, the last of which may be smaller. It returns
# whether some batch leaves a replica empty.

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
# - With `fit.strategy`, each of two devices computed 5 convolutions in every step.
# - The gradients of two replicas added up to 22.00, the gradient of the whole batch.
# - The weights were equal to those of one device to 1e-12; under the plain strategy they were equal
#   only with both cures.
#
# ## In practice
#
# Call `fit.check(model, data)` once, and time `fit` against one device. If you gain little, enlarge
# the batch. If your learning rate was found with a batch of 64, `fit.check(model, data,
# rate_for=64)` proposes another.
#
# Later lessons quote what each way costs for one small Transformer of 0.9 million weights ([the
# table](../docs/layouts.md#what-each-costs)).
#
# Next: [[next]].
