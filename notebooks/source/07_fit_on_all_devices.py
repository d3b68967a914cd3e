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
warnings.simplefilter("ignore", UserWarning)  # Keras warns: `shuffle` has no effect

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
# Your data stay arrays or a `tf.data.Dataset`, and the devices share each batch, the **global
# batch**. Here `fit.batches` makes a Dataset of the arrays, so that every training sees them in the
# same order.
#
# We try the lines with a small network for handwritten digits. The last of its batches has 61
# images, which do not divide by two:

# %%
def build():
    keras.utils.set_random_seed(8)
    convolutions = [layers.Conv2D(n, 5, strides=2, activation="relu") for n in (16, 32)]
    model = keras.Sequential(
        [keras.Input([28, 28, 1]), *convolutions, layers.Flatten(), layers.Dense(10)]
    )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), entropy, metrics=["accuracy"])
    return model


# %%
images, labels = digits.load(901)
new = digits.load(test=True)


def batches():
    return fit.batches(images, labels, batch_size=120, shuffle=True)


# %% [markdown]
# First the network trains on one device:

# %%
options = {"validation_data": new, "validation_batch_size": 120, "epochs": 3, "verbose": 0}
with tf.device(plan.devices[0]):
    alone = build()
    of_one = alone.fit(batches(), **options).history

# %% [markdown]
# Then it trains on all devices, with the lines from above:

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
# Losses and accuracies are less than 0.005 apart. But did both devices work? `trace.fit_step` takes
# a step of `fit` and records which device computed what, and when. With 840 images the step is long
# enough to be seen. The step needs five convolutions, two forward and three backward. Look for the
# devices that computed them, first in the counts, then in the timelines:

# %%
with tf.device(plan.devices[0]):
    step_of_one = trace.fit_step(alone, (images[:840], labels[:840]))
step_of_all = trace.fit_step(model, (images[:840], labels[:840]))
for each in (step_of_one, step_of_all):
    print(sorted(Counter(op.device for op in each.ops if "Conv2D" in op.type).items()))

# %% tags=["varies", "cover"]
longest = 1e3 * max(step_of_one.length, step_of_all.length)
for title, each in (("One device", step_of_one), ("All devices", step_of_all)):
    axes = charts.timeline(each)
    axes.set_title(f"{title}: who worked in a step, and when", loc="left")
    axes.set_xlim(0, longest)
    plt.show()

# %% [markdown]
# Each device computed five convolutions, for its share of the batch. The second timeline shows that
# both worked at the same time. A bar is in a device's second row where it began before the bar
# above had ended. Without a GPU an operation takes one core, but two that are ready at once may
# take a core that is idle. So one device alone can use more than its core here. Read from the
# timelines who worked, and not how fast.
#
# | | |
# |---|---|
# | **Use it when** | the model and its step fit on one GPU, and a step keeps it busy |
# | **It costs** | weights and optimizer state on every device, and an exchange in each step |
# | **Instead** | one device, if steps are short; if it does not fit, [[10]], [[11]] or [[12]] |
#
# ## How it works
#
# Each device has a copy of the model, its **replica**. In every step all replicas do the same:
#
# ![Two devices compute gradients, each for its shard of the batch. These are added up, and each
# device updates its own copy of the weights.](pictures/07_replicas.svg)
#
# Each replica takes its **shard** of the global batch and computes the gradients for it. An
# **all-reduce** adds up the gradients of all replicas and gives every replica the sum. With the sum
# each replica updates its own weights, so they stay equal to those of the others.
#
# So each device holds all weights and the whole state of the optimizer. The next cell counts their
# bytes. `experimental_local_results` gives what each replica has of a value:

# %%
strategy = fit.strategy(plan)  # gives the strategy that exists already
for name, each in (("one", alone), ("all", model)):
    held = Counter()
    for variable in each.variables + each.optimizer.variables:
        for copy in strategy.experimental_local_results(variable.value):
            held[devices.short(copy.device)] += copy.numpy().nbytes
    print(name, dict(held))

# %% [markdown]
# Each of the devices holds as many bytes as the one device did.
#
# Now we take a step by hand, with one weight w and a batch of five numbers x. We take it with the
# plain `MirroredStrategy` of TensorFlow, which `fit.strategy` builds on and corrects.
#
# The loss is the mean of (w·x)². With w = 1 its gradient is the mean of 2x², which is 22. A replica
# cannot take this mean, because it has only its shard. But it can divide the sum over its shard by
# the size of the global batch. The results of all replicas then add up to the mean:

# %%
mirrored = tf.distribute.MirroredStrategy(plan.devices)  # kept: a second one would fail
with mirrored.scope():
    weight, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.01)
numbers = tf.data.Dataset.from_tensors(tf.range(1.0, 6.0))


def replica(x, size):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((weight * x) ** 2) / size
    gradient = tape.gradient(loss, weight.value)
    optimizer.apply([gradient], [weight])  # all-reduces the gradients, then updates
    return gradient


# %%
(shards,) = mirrored.experimental_distribute_dataset(numbers)
gradients = mirrored.run(replica, args=(shards, 5.0))
values = {"shards": shards, "gradients": gradients, "weights": weight.value}
values = {name: mirrored.experimental_local_results(each) for name, each in values.items()}
for name, of_replicas in values.items():
    print(name, *[np.round(each, 2) for each in of_replicas])
print(f"added up: {mirrored.reduce('SUM', gradients, axis=None):.2f}")

means = [np.sum(2 * shard**2) / max(len(shard), 1) for shard in values["shards"]]
print("means of the shards:", *np.round(means, 2), f" their average: {np.mean(means):.2f}")

# %% [markdown]
# The shards have three numbers and two. Their gradients add up to 22, and both copies of the weight
# took the same step of 0.01 · 22.
#
# Keras under a plain `MirroredStrategy` computes what the last line shows. There each replica takes
# the mean of its own shard, and these means count equally. Their average is 25.17 in place of 22,
# and no error says so.
#
# ## Proof
#
# In float64, where rounding cannot hide a mistake, a network with BatchNormalization trains for two
# passes, once on one device and once on all. The last batch has a single image, so one of two
# devices gets none. `apart` gives the largest difference of any weight, as a share of the largest
# weight in its variable:

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")


def normed(synchronized=False, optimizer=None):
    keras.utils.set_random_seed(8)
    norm = layers.BatchNormalization(synchronized=synchronized, name="norm")
    stack = [layers.Flatten(), layers.Dense(32, use_bias=False), norm, layers.ReLU()]
    model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Dense(10)], name="normed")
    model.compile(optimizer or keras.optimizers.SGD(0.1), entropy, jit_compile=False)
    return model  # without XLA, which would compute in another order


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
print("one device and all are less than 1e-12 apart:", apart(ours, one[short]) < 1e-12)
print(f"before and after training: {apart(start[:1], one[short][:1]):.2f} apart")

# %% [markdown]
# The weights trained on all devices are less than 1e-12 from those of one device. The training had
# moved the first kernel much farther.
#
# ## Break it
#
# **The same training with TensorFlow's own strategy.** `fit.check` takes a model and its data, and
# gives a sentence for each trap that it sees. The second cell ignores the sentences of the first,
# and trains for two passes:

# %%
def say(sentences):
    print(*[textwrap.fill(each, 88, subsequent_indent="  ") for each in sentences], sep="\n")


with mirrored.scope():
    broken = normed()
say(fit.check(broken, rows(short)))

# %%
first = broken.fit(rows(short), verbose=0).history["loss"]
print("NaN:", [each.path.partition("/")[2] for each in broken.variables if np.isnan(each).any()])
second = broken.fit(rows(short), verbose=0).history["loss"]
print("losses", np.round(first + second, 2))

# %% [markdown]
# The mean of no images is NaN. So the replica without an image has NaN as the gradient of the
# weight `gamma`, and the all-reduce carries it to both replicas. The first loss is still a number,
# so nothing warns you, and the second pass is lost.
#
# Each sentence of `fit.check` names a cure. With `synchronized=True` the replicas exchange their
# statistics, and without the last image every batch divides. The next cell takes each cure alone,
# and then both:

# %%
for count, synchronized in [(short, True), (every, False), (every, True)]:
    far = apart(trained(mirrored.scope(), count, synchronized), one[count])
    print(f"{count} images, synchronized={synchronized!s:5}  {far:.2f} apart,",
          f"below 1e-12: {far < 1e-12}")  # fmt: skip

# %% [markdown]
# With both cures the plain strategy ends at the weights of one device, and with either alone it
# does not. With `fit.strategy` you need neither. It counts each replica by its share of the batch,
# and gives BatchNormalization the statistics of the global batch. It also mends what `fit.check`
# does not look for, such as clipping by a norm, masks and dropout ([the
# table](../docs/fit.md#what-is-mended)).
#
# **An optimizer from outside of the scope.** Here the optimizer is made and built on one device,
# and the model gets it afterwards. Two passes of four batches are eight steps. See how many the
# optimizer counts:

# %%
with mirrored.scope():
    broken = normed(synchronized=True)
with tf.device(plan.devices[0]):
    outside = keras.optimizers.SGD(0.1)
    outside.build(broken.trainable_variables)
with mirrored.scope():
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
# would run twice as fast. `fit.strategy` refuses an optimizer from outside, built or not. The cure
# is to make it in the scope, as `compile("sgd", …)` does there.
#
# A larger batch for more devices needs another learning rate. [[15]] tries the rule for it, which
# `fit.check(model, data, rate_for=64)` applies if the rate was found with a batch of 64.
#
# ## When not to
#
# Python, the input and the exchange take time in every step, and more devices do not shorten it. So
# they gain nothing where a step is short. The next cell times twelve steps of `fit`, of eight
# images each, on one device and on all. The brackets hold the middle half of the times:

# %% tags=["nbval-ignore-output"]
keras.config.set_floatx("float32")
keras.config.set_dtype_policy("float32")
with strategy.scope():
    model = build()
data = fit.batches(images[:8], labels[:8], batch_size=8).repeat(12)


def twelve_steps(model, device=None):
    with tf.device(device):
        model.fit(data, verbose=0)


ways = {"one": lambda: twelve_steps(alone, plan.devices[0]), "all": lambda: twelve_steps(model)}
for name, took in timing.several(ways, warmup=1, repeats=12).items():
    print(name, took)

# %% [markdown]
# The short steps gain nothing, and may even take longer. For steps that gain, see
# [docs/fit.md](../docs/fit.md#what-it-costs): with two cores, batches of 64 and of 512 took less
# time on two devices than on one. So enlarge the batch, or stay on one device. `fit.explain(model,
# data)` says where the time of a step goes.
#
# ## On GPUs
#
# Between physical GPUs the all-reduce is that of NCCL, NVIDIA's library. `fit.strategy` exchanges
# the gradients in packs of at least 25 MiB, those of the last layers first, so in a large model the
# exchange begins while the backward pass still runs. A step should compute for much longer than its
# exchange takes. On one GPU Keras compiles with XLA by itself, and under a strategy it does not, so
# compare the two with `compile(…, jit_compile=False)`. For several machines the three lines are the
# same ([[17]]).
#
# ## With a model of another kind
#
# This model takes sequences of different lengths, filled up with zeros, so its attention has a
# mask. Its two outputs have a loss each. A callback saves the model after every pass. After two
# passes on all devices, one device loads the file, and the saved model and the loaded one train
# for a third pass. The last batch is short again:

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
# `fit.check` found no trap, and the third pass has the same loss on one device as on all. The file
# holds a single copy of everything, also of the optimizer's state, so it does not matter how many
# devices wrote it.
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
# **2.** A plain strategy divides the size of a batch by the number of replicas and rounds up. The
# result is a share. Each replica in turn takes one share, until nothing is left. Write
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
# - Three lines put both devices to work: each computed 5 convolutions of a step, and the history of
#   `fit` was that of one device.
# - The gradients of two replicas added up to 22.00, that of the whole batch.
# - With a last batch of one image, the weights were less than 1e-12 from those of one device.
# - TensorFlow's own strategy made `gamma` NaN on that batch. Without the batch, the weights ended
#   0.05 apart, until BatchNormalization was synchronized, too. `fit.check` named both traps.
# - In TensorFlow's own strategy an optimizer from outside of the scope counted 16 steps in place of
#   eight. `fit.strategy` refuses an optimizer from outside.
#
# ## In practice
#
# Paste the three lines, call `fit.check(model, data)` once, and time `fit` against one device. [A
# table](../docs/fit.md) says what is kept of `fit`, and each of its lines is tested. To see or
# change what happens inside of a step, train in towers ([[09]]). Next: [[next]].
