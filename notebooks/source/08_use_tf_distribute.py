# %% [markdown]
# # Use tf.distribute
#
# You have a Keras model and two GPUs. You call `model.fit`, and it trains on one of them.
# TensorFlow has `tf.distribute.MirroredStrategy` for this, and three lines are enough to use it.
# But it has traps that spoil a training, and no error tells you: a last batch that does not divide,
# a mean in the wrong place, GPUs that do not exist.
#
# **In this lesson** TensorFlow's own strategy trains one model on all devices and ends at the
# weights of one device, and you catch seven mistakes, most of which raise no error.
#
# **You will learn** to
# - train with `fit` and with a loop of your own under `MirroredStrategy`,
# - see what it keeps on each device, and what the devices exchange,
# - prove that it takes the steps of one device and of the towers of lesson 07,
# - say before a training whether its batches suit the devices,
# - choose between a strategy, towers and one device.
#
# **You need** [[06]] and [[07]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import gc
import tempfile
import warnings
from collections import Counter

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from mgpu_helpers import charts, timing, towers, trace
from mgpu_helpers.lessons import digits, replicas
from mgpu_helpers.lessons.checks import lesson_08 as checks
from mgpu_helpers.towers.batches import replica_sizes

layers, losses = keras.layers, keras.losses
warnings.simplefilter("ignore", UserWarning)  # Keras has one for every dataset in fit

# %% [markdown]
# ## The trouble
#
# `replicas.digits_model` makes a compiled Keras network of two convolutions for handwritten digits,
# always with the same weights at the start. A batch has all 840 images. `trace.fit_step` traces one
# step of what `fit` runs. On GPUs TensorFlow would choose the first one. Here a `tf.device` block
# chooses the first device, so that every machine does the same.
#
# One step needs five convolutions: two forward, and three in the backward pass. Look at which
# devices computed them:

# %%
data = tf.data.Dataset.from_tensor_slices(digits.load(840))
with tf.device(plan.devices[0]):
    alone = replicas.digits_model()
    step_alone = trace.fit_step(alone, data.batch(840))
print(replicas.convolutions(step_alone))

# %% [markdown]
# The first device computed everything. The first three lines of the next cell change that. What is
# made in the `scope` of a strategy belongs to that strategy. Look at the numbers, and compare the
# timelines of both steps, which have the same axis:

# %%
strategy = tf.distribute.MirroredStrategy(plan.devices)
with strategy.scope():
    mirrored = replicas.digits_model()

step = trace.fit_step(mirrored, data.batch(840))
print(replicas.convolutions(step))

# %% tags=["varies", "cover"]
for each in (step_alone, step):
    charts.timeline(each).set_xlim(0, 1e3 * max(step_alone.length, step.length))
    plt.show()

# %% [markdown]
# A timeline has a row only for a device that ran something, so the first timeline has none for the
# others. In the second, every device computed five convolutions, each for its shard of the batch.
#
# ## What it does
#
# The function that computes a step runs once for each device. Such a run, with what belongs to it,
# is a **replica**. It is a tower of lesson 07 with one difference: it has weights of its own.
#
# ![Two shards of the global batch go to two replicas, device 0 and device 1. All their gradients
# are added up, and each device has a copy of the weights of its own, which it
# updates.](pictures/08_replicas.svg)
#
# No weights are sent, and no host averages gradients. The devices exchange their gradients in an
# **all-reduce**: each gives its own and gets the sum of all. Then each updates its own weights. As
# all do the same, the copies stay equal.
#
# The first cell adds up the bytes of weights and optimizer state that each device holds, for the
# model on one device and then for the mirrored one. `experimental_local_results` gives what each
# replica has of a value.
#
# The second cell shows the exchange. What a device gives to the all-reduce is no copy from one
# device to another, so it is listed by itself, in `step.collectives`, and `replicas.kinds`
# reads there which all-reduce TensorFlow chose. Then come the copies between devices. The third
# cell has those of `ReductionToOneDevice`, which adds up on the first device and sends the sum
# back:

# %%
for model in (alone, mirrored):
    held = Counter()
    for variable in model.variables + model.optimizer.variables:
        for copy in strategy.experimental_local_results(variable.value):
            held[devices.short(copy.device)] += copy.numpy().nbytes
    print(dict(held))

# %%
print("weights", 4 * mirrored.count_params(), "bytes; each gives to the all-reduce:")
print(sorted((each.device, each.bytes) for each in step.collectives))
print("kinds of all-reduce:", replicas.kinds(step))
replicas.print_crossing(step)

# %%
to_one = tf.distribute.MirroredStrategy(plan.devices, tf.distribute.ReductionToOneDevice())
with to_one.scope():
    added_on_one = replicas.digits_model()
replicas.print_crossing(trace.fit_step(added_on_one, data.batch(840)))

# %% [markdown]
# - Every device holds as many bytes as one device held alone.
# - Each device gave one gradient for all weights to the all-reduce, as many bytes as they have.
#   Lesson 07 kept one set of weights instead, and sent it to every device in every step.
# - A device that comes early waits there for the last one. A timeline leaves this waiting blank,
#   and `whatif.explain` names what that one did meanwhile ([[14]]).
# - The host sent each device its shard of the batch. With `ReductionToOneDevice`, gradients and
#   their sum are copied as well.
#
# Cores use a ring as in lesson 07, and so do GPUs that are shares of one. On whole GPUs the kind is
# NCCL, NVIDIA's library. The second argument of `MirroredStrategy`, `cross_device_ops`, chooses
# another.
#
# A process should have one strategy with the usual all-reduce. Two of them give their all-reduces
# the same numbers, and TensorFlow stops both where one number comes with two shapes. Give further
# strategies `ReductionToOneDevice`, as here.
#
# ## A loop of your own
#
# `fit` hides the step. Written out, it has three parts:
#
# - `replica` is a tower: the loss of a shard, its gradients and the update. `optimizer.apply` adds
#   up the gradients of all replicas before it changes the weights.
# - `strategy.run` calls it on every device.
# - `strategy.reduce` adds up the replicas' losses to one number.
#
# The gradients of the replicas are added. So each replica has to add its losses as well, and divide
# by the size of the **global batch**. Then each has a part of the mean, and the parts add up to it.
# (`tf.nn.compute_average_loss` is this division. A model with regularizers needs one term more:
# `tf.nn.scale_regularization_loss(model.losses)`.)

# %%
def make_step(model, size):
    each = losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(each(y, model(x, training=True))) / size
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica, args=batch), axis=None)

    return step


# %% [markdown]
# ## Proof: the same weights
#
# Four ways take ten steps, from the same weights: one device, the towers of lesson 07, the loop,
# and `fit`. A batch has 168 images, or a few less, so that it divides over the devices, and
# `fifths` has five of them. `towers.train_step` is lesson 07's step for a Keras model. The first
# cell trains. It prints the loss of the tenth step, except for `fit`, which reports only the mean
# of a pass.
#
# The second cell compares the weights with those of one device. `replicas.difference` gives the
# largest difference of any weight, as a share of the largest one of its variable. The last line
# says how far the ten steps moved the weights:

# %%
entropy = losses.SparseCategoricalCrossentropy(from_logits=True)
share = 168 - 168 % len(plan)
fifths = data.batch(share, drop_remainder=True)
with tf.device(plan.host):
    one, tower = replicas.digits_model(), replicas.digits_model()
start = one.get_weights()
step_on_one = towers.train_step(one, one.optimizer, entropy, plan.devices[:1])
step_in_towers = towers.train_step(tower, tower.optimizer, entropy, plan.devices)
for x, y in fifths.repeat(2):
    loss, loss_in_towers = step_on_one(x, y), step_in_towers(x, y)
print(f"one {loss:.4f}  towers {loss_in_towers:.4f}")

with strategy.scope():
    looped = replicas.digits_model()
loop_step = make_step(looped, size=share)
for batch in strategy.experimental_distribute_dataset(fifths.repeat(2)):
    loss = loop_step(batch)
print(f"own loop {loss:.4f}")
history = mirrored.fit(fifths.repeat(2), verbose=0)

# %%
after_ten = one.get_weights()
for name, model in [("towers", tower), ("own loop", looped), ("fit", mirrored)]:
    differ = replicas.difference(model.get_weights(), after_ten)
    print(f"{name:8} agrees to 1e-5: {differ < 1e-5}")
print(f"the ten steps moved a kernel by {replicas.difference(start[::2], after_ten[::2]):.2f}")

# %% [markdown]
# All end at the weights of one device. A float32 is exact to about `1e-7`, and ten steps add up
# such errors, so the bound is `1e-5`. The last line is measured in the same way.
#
# ## BatchNormalization
#
# A replica sees only its shard of a batch, so a BatchNormalization normalizes by the statistics of
# that shard. If it is made with `synchronized=True`, the replicas exchange their statistics, in
# more all-reduces. As in lesson 07, the batch gets brighter from image to image, so that the shards
# differ.
#
# Each line has the losses of three steps. After them come the moving variances of each replica, and
# what each replica predicts of one and the same image. The first line is from one device, the
# second from synchronized replicas, and the third from replicas each by itself:

# %%
with tf.device(plan.devices[0]):
    print(replicas.three_steps(replicas.norm_model()))
with strategy.scope():
    together, apart = replicas.norm_model(synchronized=True), replicas.norm_model()
print(replicas.three_steps(together), replicas.three_steps(apart), sep="\n")

# %% [markdown]
# The synchronized replicas have the numbers of one device. The others have different losses from
# the first step on. Their variances are smaller, because what differs between the shards is left
# out.
#
# Each of these replicas keeps moving statistics of its own, and Keras 3 never averages them. So the
# prediction of an image depends on the replica that gets it. What is read or saved is the first
# replica's. The better the examples are mixed, the less the replicas differ; `synchronized=True`
# is right in any case.
#
# ## Input
#
# `experimental_distribute_dataset` takes a dataset of **global** batches and cuts each of them.
# `distribute_datasets_from_function` calls a function of yours, once on each host. Each batch of
# the dataset that it returns goes to one replica as it is: it is a **per-device** batch. Look at
# what each replica gets. A line is a list of batches, and each batch is a list of shards:

# %%
size = 2 * len(plan)
numbers = tf.data.Dataset.range(2 * size)


def print_parts(distributed):
    parts = [strategy.experimental_local_results(each) for each in distributed]
    print([[part.numpy().tolist() for part in each] for each in parts])


def made_here(context):
    return numbers.batch(context.get_per_replica_batch_size(size))


print_parts(strategy.experimental_distribute_dataset(numbers.batch(size)))
print_parts(strategy.distribute_datasets_from_function(made_here))
print_parts(strategy.experimental_distribute_dataset(numbers.batch(size).shuffle(2, seed=3)))
print_parts(strategy.experimental_distribute_dataset(numbers.shuffle(100, seed=3).batch(size)))

# %% [markdown]
# - In the first line each replica has its shard of a global batch.
# - The second is the same, because `get_per_replica_batch_size` divides the global batch. Without
#   it each replica would get as many examples as a global batch has.
# - In the third, `shuffle` stands behind `batch`: only whole batches changed places. If the
#   examples are sorted, the replicas go on seeing different classes.
# - In the last it stands before `batch`, as it should, and mixes the examples.
#
# Both ways fetch the next batch to the devices while they work. End your dataset with
# `.prefetch(2)`, so that the host has that batch ready.
#
# ## Break it
#
# **A last batch that does not divide.** Here is the model with one weight of lesson 07. It is 1 at
# first and should become 0. The global batch is four examples on two devices. Seven examples leave
# a last batch of three, and five leave one. Compare the weights after three passes:

# %%
with tf.device(plan.devices[0]):
    on_one = replicas.one_weight()
with strategy.scope():
    on_all = replicas.one_weight()

for count in (2 * size, 2 * size - 1, size + 1):
    examples = replicas.ramp(count)
    weights = [replicas.three_epochs(model, size, *examples) for model in (on_one, on_all)]
    print(f"{count} examples: one {weights[0]:.4f}  all {weights[1]:.4f}")

# %% [markdown]
# Where every batch divides, all devices together reach the weight of one. Where the last one does
# not, they reach another, and no error says so. Each replica takes the mean of its own examples,
# and these means count equally. So two examples in one replica count as much as a single one in
# another, and a replica without examples counts as 0.
#
# **A batch smaller than the number of replicas.** `fit` refuses any first batch that does not
# divide, but its error does not say what is wrong. `towers.check_batches` does, before anything is
# trained. It takes the number of examples, the global batch and the number of replicas. (Of a
# Dataset it looks at the batches: `towers.check_batches(data, replicas=2)`.) In a terminal it is
# `python -m mgpu_helpers batches 7 4 2`. Compare the first line, from `fit`, with the others. A
# `fit` that failed leaves its iterators to Python's garbage collector, which is called here for a
# reason that "Does it pay?" gives:

# %%
try:
    on_all.fit(*replicas.ramp(1), verbose=0)
except tf.errors.InvalidArgumentError as error:
    print(error.message.partition("}} ")[2].partition(" [Op")[0])
gc.collect()

for count, batch in [(1, 1), (2 * size, size), (2 * size - 1, size), (size + 1, size)]:
    try:
        towers.check_batches(count, batch, len(plan))
    except ValueError as error:
        print(error)

# %% [markdown]
# Where the batches divide, nothing is printed. For the others, `batch(..., drop_remainder=True)`
# leaves the last batch out. If every example is needed, fill that batch up with examples of weight
# 0. `fit` divides by the number of all examples in a batch, also those of weight 0, so the real
# ones need a larger weight:

# %%
def padded(x, y):
    missing = -len(x) % size
    weights = np.ones([len(x), 1], "float32")
    weights[missing - size :] = size / (size - missing)  # in the last batch
    return [np.pad(each, [(0, missing), (0, 0)]) for each in (x, y, weights)]


for count in (2 * size - 1, size + 1):
    x, y = replicas.ramp(count)
    wanted, got = (replicas.three_epochs(on_one, size, x, y),
                   replicas.three_epochs(on_all, size, *padded(x, y)))  # fmt: skip
    print(f"{count} examples: one {wanted:.4f}  all, filled up {got:.4f}")

# %% [markdown]
# These are the weights of one device.
#
# **An empty replica with BatchNormalization.** The mean of no examples is not a number (NaN). The
# first cell trains on one example more than a batch. It prints the loss, and the weights that
# became NaN.
#
# The second cell predicts which last batches do this. Of a last batch, each of n replicas takes
# ⌈last/n⌉ examples until none are left. So one stays empty when ⌈last/n⌉·(n − 1) ≥ last.
# `replicas.shards` cuts a batch by the strategy and counts what each replica got.
# `replica_sizes` computes these numbers for any number of replicas. Compare the rule with
# the shards here, and with those of four replicas:

# %%
few = replicas.brighter().take(size + 1).batch(size)
with strategy.scope():
    model = replicas.norm_model()
print("loss", np.round(model.fit(few, verbose=0).history["loss"], 3))
print("NaN:", [v.path.partition("/")[2] for v in model.variables if np.isnan(v).any()])

# %%
for last in range(1, 8):
    here, four = replicas.shards(strategy, last), replica_sizes(last, 4)
    assert here == replica_sizes(last, len(plan))
    rule = [-(-last // n) * (n - 1) >= last for n in (len(plan), 4)]
    print(f"last {last}  here {here} empty {rule[0]!s:5}  four {four} empty {rule[1]}")

# %% [markdown]
# With two devices, the second one had no example of the last batch. The loss is a number all the
# same, but the weight `gamma` is not, on both of them: the all-reduce adds their gradients.
# `keras.callbacks.TerminateOnNaN` looks at the loss only. It stops the next pass, when the weights
# are lost already. The check that catches this is `check_batches`, before the training.
#
# **A mean in place of the scaled loss.** A loop of your own that ends in `reduce_mean` takes the
# mean of each shard, and the all-reduce adds these means. Here are as many ones, twos, threes and
# fours as in lesson 07, and the right gradient is 15. The lines differ in the loss of a replica,
# and in whether the all-reduce adds or averages:

# %%
numbers = tf.data.Dataset.from_tensors(tf.repeat([1.0, 2.0, 3.0, 4.0], 210))
batch = next(iter(strategy.experimental_distribute_dataset(numbers)))
with strategy.scope():
    weight = tf.Variable(1.0)


@tf.function
def gradient(loss_of, how):
    def replica(x):
        with tf.GradientTape() as tape:
            loss = loss_of((weight * x) ** 2)
        return tf.distribute.get_replica_context().all_reduce(how, tape.gradient(loss, weight))

    return strategy.experimental_local_results(strategy.run(replica, args=(batch,)))[0]


print(f"scaled, added:   {gradient(lambda each: tf.reduce_sum(each) / 840, 'sum'):.3f}")
print(f"mean, added:     {gradient(tf.reduce_mean, 'sum'):.3f}")
print(f"mean, averaged:  {gradient(tf.reduce_mean, 'mean'):.3f}")

# %% [markdown]
# With two devices the second gradient is 30, so a step of SGD goes twice as far. The third is right
# by luck, because all shards have one size, and you do not get it from `optimizer.apply`, which
# adds. Adam divides by the size of the gradients, so its losses hardly show the mistake. The check
# is the proof above: take a few steps of SGD, and compare the weights with those of one device.
#
# **Devices that do not exist.** TensorFlow may put elsewhere what you send to a missing GPU. So a
# strategy on two GPUs that do not exist has two replicas, and trains. `places` asks where the
# copies of a variable are:

# %%
def places(strategy):
    with strategy.scope():
        probe = tf.Variable(0.0)
    return {devices.short(copy.device) for copy in strategy.experimental_local_results(probe)}


nowhere = tf.distribute.MirroredStrategy(
    ["GPU:62", "GPU:63"], tf.distribute.ReductionToOneDevice())  # fmt: skip
with nowhere.scope():
    model = replicas.one_weight()
print("loss", model.fit(*replicas.ramp(4), verbose=0).history["loss"])
for each in (nowhere, strategy):
    print(each.num_replicas_in_sync, "replicas, places:", len(places(each)))
assert len(places(strategy)) == strategy.num_replicas_in_sync

# %% [markdown]
# On the missing GPUs, two replicas took turns in one place. The check is the last line of the cell:
# as many places as replicas. (With the usual all-reduce such replicas never finish a step, because
# they wait for each other in that place.)
#
# **Made outside the scope.** What happens then depends on what it is:
#
# - A model is refused. `fit` speaks of the scope, and a loop of your own ends in an error that has
#   no words: the first cell shows it.
# - An optimizer is refused by `fit`, unless it has been built. One that has been built is refused
#   nowhere. Its variables are single, and every replica updates them, also the one in which Adam
#   counts its steps. `ten_steps` gives the count and the weight after ten steps.
# - What is only read is fetched from its place in every step: right, but slow. `sent` adds up a
#   table of 400,000 bytes on each replica, and gives what the first device sends to the last.
#
# The second cell tries the optimizer and the table, outside the scope and inside:

# %%
try:
    batch = next(iter(strategy.experimental_distribute_dataset(data.batch(840))))
    make_step(alone, size=840)(batch)
except AssertionError as error:
    print("its last word:", str(error).split()[-1])

# %%
kernel = on_all.weights[0]


def ten_steps(adam):
    step = tf.function(lambda: strategy.run(lambda: adam.apply([kernel**2], [kernel])))
    kernel.assign([[1.0]])
    for _ in range(10):
        step()
    return f"counted {adam.iterations.numpy()} steps, weight {kernel.numpy().item():.4f}"


def sent(table):
    _, step = trace.function_step(lambda: strategy.run(lambda: tf.reduce_sum(table)))
    return step.bytes_between().get((plan.devices[0], plan.devices[-1]), 0)


with tf.device(plan.devices[0]):
    adam, table = keras.optimizers.Adam(0.1), tf.Variable(tf.ones([1000, 100]))
    adam.build([kernel])
print(f"outside: {ten_steps(adam)}, {sent(table):,} bytes")
with strategy.scope():
    adam, table = keras.optimizers.Adam(0.1), tf.Variable(tf.ones([1000, 100]))
    adam.build([kernel])
print(f"inside:  {ten_steps(adam)}, {sent(table):,} bytes")

# %% [markdown]
# Outside, the ten steps were counted once for each replica, and the weight differs. The check is
# that `iterations` agrees with your own count. (`compile` in the scope makes the optimizer there.)
# The table from outside crosses in every step, and the one from inside is on each device already.
#
# ## Does it pay?
#
# The first cell times eight ways in turn. All but the last take six steps, each with all 840
# images. For `fit` these are two passes of three steps:
#
# - One device, the towers, the loop, and `fit`. The batches of the loop are on the devices already.
# - A loop that reads its last loss only. The first three read a loss in every step, which is the
#   seventh mistake: **`float(loss)` in every step**.
# - `fit` with an endless dataset. `steps_per_epoch` tells it where a pass ends.
# - The same, with `steps_per_execution=3` in `compile`: three steps in one call.
#
# With more devices than cores the times say nothing, so each way then runs once.
#
# The last way, "begin", is a piece of `fit`: it begins with the distributed dataset and takes no
# step. The second cell counts how often the two ways of `fit` begin. From the difference of their
# times it computes what a beginning takes. Then it takes some steps of `fit` on an iterator, ends
# it, and says when:

# %% tags=["nbval-ignore-output"]
six, endless = data.batch(840).repeat(6), data.batch(840).repeat()
batches, ready = list(six), list(strategy.experimental_distribute_dataset(six))
loop_step = make_step(looped, size=840)
with to_one.scope():
    added_on_one.compile("sgd", entropy, steps_per_execution=3)


def fit(model, batches, steps=None):
    return lambda: model.fit(batches, epochs=2, steps_per_epoch=steps, verbose=0)


ways = {
    "one device": lambda: [step_on_one(x, y).numpy() for x, y in batches],
    "towers": lambda: [step_in_towers(x, y).numpy() for x, y in batches],
    "own loop": lambda: [loop_step(batch).numpy() for batch in ready],
    "own loop, last loss": lambda: [loop_step(batch) for batch in ready][-1].numpy(),
    "fit": fit(mirrored, endless.take(3)),
    "fit, steps_per_epoch": fit(mirrored, endless, steps=3),
    "fit, three in a call": fit(added_on_one, endless, steps=3),
    "begin": lambda: iter(strategy.experimental_distribute_dataset(six)),
}
rounds = (1, 3) if len(plan) <= plan.cores else (0, 1)
took = timing.several(ways, warmup=rounds[0], repeats=rounds[1])
print(*(f"{name:20} {each}" for name, each in took.items()), sep="\n")

# %% tags=["nbval-ignore-output"]
slow, fast, begin = (1e3 * took[name].median for name in ("fit", "fit, steps_per_epoch", "begin"))
often, few = (replicas.iterators(strategy, ways[name]) for name in ("fit", "fit, steps_per_epoch"))
print(f"fit began {often} times, and {few} times with steps_per_epoch")
difference = (slow - fast) / (often - few)
print(f"a beginning: {difference:.0f} ms by the difference, {begin:.0f} ms by itself")
for steps in (2, 5, 20)[: rounds[1]]:
    stepped, ended = replicas.life(strategy, mirrored, endless, steps)
    print(f"begin and {steps} steps: {1e3 * stepped:.0f} ms, ended after {1e3 * ended:.0f} ms")

# %% [markdown]
# With a core for each device, the towers and the loop take about two thirds of the time of one
# device. `fit` takes longer, although its steps take about as long as theirs. This is where the
# rest of its time goes:
#
# With Keras 3.15 `fit` begins once before the first pass, and twice in each. Each time TensorFlow
# rewrites the dataset's graph, and starts threads that feed each replica. A short pass takes longer
# to begin than to run.
#
# Later it has to stop these threads, and that may take longer still. A thread of each iterator
# tunes its buffers, and sleeps in between: 10 ms, then 20, then 40, and so on, up to a minute. The
# signal to stop wakes it. If it looks before the signal is complete, it goes back to sleep. Then
# whoever ends the iterator waits until the thread wakes by itself: 310, 630, 1270 or 2550 ms after
# it started. Where one of the last lines ends long after its steps, that has happened.
#
# Each device has such an iterator. They end one after the other, and each of them can double the
# wait. A `fit` that failed leaves them to the garbage collector, which comes at any later time. The
# older they are, the longer they wait, and it is another cell that stands still. On eight devices
# one stood still for more than two minutes. So call `gc.collect()` right after such an error.
#
# The rest of `fit` costs little. `benchmarks/distribute.py` counts processor time, in which nobody
# waits: the beginnings and the steps make up 96 % of a call, and a step of `fit` takes as long as
# one of the loop ([card](../results/distribute.json)). The other 4 % are callbacks and metrics.
#
# So give `fit` an endless dataset and `steps_per_epoch`: it then begins twice in all, however many
# passes there are. All this is work of the host, and GPU users pay for it as well.
# `steps_per_execution` saves the way through Python between steps. It needs `ReductionToOneDevice`
# here: TensorFlow refuses a ring in the loop that Keras makes of it, with an error about a
# placeholder.
#
# On cores a step is finished when it returns, so reading its loss costs little. On a GPU a step
# returns at once, and Python prepares the next one meanwhile, unless `float` waits: [[14]] draws
# both. Keep the losses as tensors, and read them now and then. The check is the first cell's: time
# a loop that reads every loss against one that reads the last.
#
# On GPUs the kernels of a network this small take less time than starting them, so more devices do
# not pay. A step should keep each GPU busy for tens of milliseconds ([[07]], [[11]]). On one GPU
# `compile` turns on XLA by itself, and under a strategy it does not: compare with
# `jit_compile=False`.
#
# ## The family
#
# | strategy | weights | for |
# |---|---|---|
# | `OneDeviceStrategy` | on the device | trying code for strategies on one device |
# | `MirroredStrategy` | a copy on each device | the GPUs of one machine: this lesson |
# | `CentralStorageStrategy` | on the host | one machine; a step copies all weights to each device |
# | `MultiWorkerMirroredStrategy` | a copy on each device | several machines in step: [[13]] |
# | `ParameterServerStrategy` | on servers | several machines, each at its own pace |
# | `TPUStrategy` | a copy on each core | TPUs |
#
# The next cell runs the first and the third, which have to end at the weights of one device. The
# lesson [[13]] runs the fourth, and [a page of its own](../docs/parameter_servers.md) the fifth. A
# TPU runs nowhere here.
#
# At its end the cell makes a graph of the old kind, as lessons 01 to 07 build it for a session.
# There a distributed dataset has no iterator. Towers have no such limit. All cells of this lesson
# run on TensorFlow 2.18 as on 2.21, with the same Keras 3.15.

# %%
central = tf.distribute.experimental.CentralStorageStrategy(plan.devices, plan.host)
for other in (tf.distribute.OneDeviceStrategy(plan.devices[0]), central):
    with other.scope():
        model = replicas.digits_model()
    model.fit(fifths.repeat(2), verbose=0)
    agrees = replicas.difference(model.get_weights(), after_ten) < 1e-5
    print(sorted(places(other)), "agrees to 1e-5:", agrees)

with tf.Graph().as_default():
    try:
        iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))
    except RuntimeError as error:
        print(error)

# %% [markdown]
# **DTensor** goes another way. A tensor is cut over devices, and an operation on it runs on all of
# them. A **mesh** names the devices, and a **layout** says along which axis a tensor is cut. The
# first cell cuts the kernel of a layer by columns, and compares its product with the whole one.
#
# `keras.distribution` of Keras 3 promises this for whole models. The second cell asks it for a copy
# of the weights on every device, and counts the copies of a weight:

# %%
mesh = dtensor.create_mesh([("model", len(plan))], devices=[each[1:] for each in plan.devices])
by_columns = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
whole = dtensor.Layout.replicated(mesh, rank=2)
width = 12 * len(plan)
with tf.device(plan.host):
    x, kernel = tf.random.stateless_normal([2, width, width], seed=[0, 0])
    cut = dtensor.relayout(dtensor.copy_to_mesh(kernel, whole), by_columns)
    product = tf.matmul(dtensor.copy_to_mesh(x, whole), cut)
print([(devices.short(part.device), part.shape[1]) for part in dtensor.unpack(product)])
differ = np.asarray(dtensor.relayout(product, whole)) - x @ kernel
print("agrees to 1e-5:", np.abs(differ).max() < 1e-5)

# %%
names = [each[1:].lower() for each in plan.devices]
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=names))
weight = replicas.one_weight().weights[0].value
keras.distribution.set_distribution(None)
print(len(strategy.experimental_local_results(weight)), "copy")

# %% [markdown]
# Each device computed its columns of the product. `keras.distribution` accepted all devices and
# made one copy of the weight: with TensorFlow as the backend it does nothing.
#
# ## With your own model
#
# Here is a small residual network with BatchNormalization; put your own in its place. It trains on
# all devices, with a metric and a callback that saves it. Then one device loads the file, and both
# train for another pass. Compare their accuracy and their weights.
#
# The second cell makes the network in **mixed precision**, which is one line before the model is
# made, and times a prediction with it, and without:

# %%
def residual():
    given = keras.Input([28, 28, 1])
    outer = layers.Conv2D(8, 5, strides=4)(given)
    inner = layers.ReLU()(layers.BatchNormalization(synchronized=True)(outer))
    joined = layers.Add()([outer, layers.Conv2D(8, 3, padding="same")(inner)])
    return keras.Model(given, layers.Dense(10)(layers.Flatten()(joined)))


towers.check_batches(5 * share, share, len(plan))
endless = fifths.repeat()
with strategy.scope():
    model = residual()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), entropy, metrics=["accuracy"])

with tempfile.TemporaryDirectory() as folder:
    save = keras.callbacks.ModelCheckpoint(f"{folder}/model.keras")
    model.fit(endless, epochs=2, steps_per_epoch=5, verbose=0, callbacks=[save])
    with tf.device(plan.devices[0]):
        loaded = keras.models.load_model(f"{folder}/model.keras")
for each in (model, loaded):
    accuracy = each.fit(endless, steps_per_epoch=5, verbose=0).history["accuracy"][0]
    print(f"{each.optimizer.iterations.numpy()} steps, accuracy {accuracy:.2f}")
print("agree to 1e-4:", replicas.difference(loaded.get_weights(), model.get_weights()) < 1e-4)

# %%
keras.mixed_precision.set_dtype_policy("mixed_float16")
with strategy.scope():
    half = residual()
    half.compile("sgd", entropy)
keras.mixed_precision.set_dtype_policy("float32")
half.fit(endless, steps_per_epoch=5, verbose=0)
print(half.layers[1].kernel.dtype, half.layers[1].compute_dtype, type(half.optimizer).__name__)
with tf.device(plan.devices[0]):
    full, mixed = tf.function(model), tf.function(half)
    compared = timing.compare(
        lambda: full(batches[0][0]).numpy(), lambda: mixed(batches[0][0]).numpy(),
        repeats=10, names=("float32", "mixed_float16"),
    )  # fmt: skip
compared

# %% [markdown]
# The file has one copy of everything, the optimizer's state too, so it does not matter how many
# replicas wrote it. A callback runs once, not once for each replica. A metric counts every example
# once, also in a last batch that does not divide. So `evaluate` and `predict` are right there.
#
# In mixed precision the weights stay float32, and the layers compute in float16. The
# `LossScaleOptimizer` multiplies the loss by a large number, so that small gradients do not become
# 0. A loop of your own has to do that itself: `optimizer.scale_loss(loss)` before the gradients.
#
# Cores have no fast float16, so float32 is faster here. GPUs with tensor cores compute convolutions
# and products several times as fast in float16.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `replica_loss(losses, global_batch)`. It takes the losses of the examples that one
# replica got. What it returns, added up over all replicas, is the mean loss of the global batch. A
# replica may have any number of examples, also none.

# %% tags=["exercise"]
def replica_loss(losses, global_batch):
    return tf.reduce_mean(losses)


checks.replica_loss(replica_loss)

# %% tags=["solution"]
def replica_loss(losses, global_batch):
    return tf.reduce_sum(losses) / global_batch


checks.replica_loss(replica_loss)

# %% [markdown]
# **2.** Write `evaluate(strategy, losses_of, data)`. `data` is a dataset of global batches of any
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
# **3.** Write `leaves_empty(examples, batch, replicas)`: whether any batch of a dataset leaves a
# replica without examples. Full batches count, too.

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
# - Three lines put both devices to work, each with a copy of the weights and of the optimizer's
#   state. In a step they exchanged one gradient for all weights.
# - After ten steps the loop, `fit`, lesson 07's towers and one device had the same weights to 1e-5.
# - Synchronized BatchNormalization had the losses of one device. Each replica by itself had not,
#   and kept moving statistics of its own.
# - A last batch that does not divide changed the weights without a word. An empty replica turned a
#   weight into NaN, and the loss stayed a number.
# - A mean in place of the scaled loss turned a gradient of 15 into one of 30. A strategy on GPUs
#   that do not exist trained all the same. An optimizer from outside counted 20 steps in place of
#   ten.
# - `fit` took longer to begin with its dataset, and to end it, than for its steps. With
#   `steps_per_epoch` it began less often.
#
# ## In practice
#
# Use this when the model fits on one GPU, one machine has several, and your program calls `fit`. It
# costs a copy of the weights and the optimizer's state on each device, an all-reduce in every step,
# and care with the last batch.
#
# - `with fit.strategy(plan).scope():` of this package, in place of the strategy's own scope, mends
#   what this lesson broke: the last batch, the statistics, the beginnings. [What it keeps of
#   `fit`](../docs/fit.md) is a table, each line of which is tested.
# - With the plain strategy, call `towers.check_batches` before the training, or `fit.check(model,
#   data)`, which knows the other traps too.
# - Make each BatchNormalization with `synchronized=True`. Otherwise what you save has the first
#   replica's moving statistics.
# - With short passes, give `fit` an endless dataset and `steps_per_epoch`.
# - The batch of a dataset is the global batch. More devices at the same per-device batch make it
#   larger, and you may have to choose the learning rate anew.
# - Take towers ([[07]]) for a step that you want to see or to change, and for batches that do not
#   divide: `towers.train_step` weights the shards by their sizes.
# - Several machines need another strategy: [[13]]. A model that does not fit on one GPU needs
#   [[09]].
#
# Next: [[next]].
