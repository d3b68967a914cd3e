# %% [markdown]
# # Find out why it is not faster
#
# You added a GPU, and an epoch takes as long as before. There are eight usual causes, each with a
# cure of its own.
#
# **In this lesson** two calls say where the time of your training goes.
#
# **You will learn** to
# - let `fit.explain` say what a step of `fit` waits for,
# - read from a trace which device waited for which, and
# - predict what a change gives before you make it.
#
# **You need** [[07]] and [[09]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import time

import keras
import matplotlib.pyplot as plt
import tensorflow as tf

from mgpu_helpers import charts, fit, timing, towers, trace, whatif
from mgpu_helpers.lessons import lesson_19
from mgpu_helpers.lessons.checks import lesson_19 as checks
from mgpu_helpers.lessons.lesson_19 import beside, timed, traces

layers = keras.layers

# %% [markdown]
# ## The lines to paste
#
# Here is a model of three dense layers, `wide`, `middle` and `scores`, that trains on all devices.
# Its dataset needs 50 ms for a batch, and a callback works for 30 ms after each step:

# %%
strategy = fit.strategy(plan)
x, y = lesson_19.batch()
loss_of = lesson_19.loss()


def build(**options):
    with strategy.scope():
        model = lesson_19.model()
        model.compile("sgd", loss_of, **options)
    return model


class Report(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.03)  # writes a log, draws a picture


slow = tf.data.Dataset.range(4).map(lambda _: lesson_19.read(x, y))

# %% [markdown]
# `fit.explain` runs a few steps as they are, then again with one thing left out each time. It puts
# the weights back, so call it before or after a training:

# %% tags=["nbval-ignore-output"]
model = build()
print(fit.explain(model, slow, callbacks=[Report()], steps=4))

# %% [markdown]
# "The step itself" is what remains without all that the other rows name. The rows need not add up:
# times differ from run to run, and work hidden behind another wait costs nothing until that wait is
# cured. Ask again after each cure. A trace looks into one step:

# %% tags=["nbval-ignore-output"]
print(whatif.explain(trace.fit_step(model, (x, y))))

# %% [markdown]
# Each device worked during a part of the step. In the rest it waited for a result of another
# device, for *copies* to or from a GPU, for *a free core*, or for *overhead*: time that TensorFlow
# or other programs took between operations. In a healthy step devices wait for each other only
# briefly, unless they share a GPU.
#
# | `fit.explain`, `whatif.explain` | |
# |---|---|
# | **Use them when** | a training is slower than you hoped |
# | **They cost** | some passes of a few steps; one traced step |
# | **Instead** | a clock, where your loop is not `fit`: [[15]] |
#
# ## Which cause is it?
#
# Each cause has a section below, under its number:
#
# ![First fit.explain. Where it lists input: 1, the input is too slow. A callback: 2, Python works
# in every step. New shapes: 3, traced again and again. run_eagerly: 4, eager code, no graph. Where
# it lists nothing but the step itself, a trace or a clock. A device idle: 5, it got no work. No
# gain over one device: 6, the batch is too small. A device waits for another: 7, a large shard or a
# slow device. The host sends a lot: 8, misplaced variables.](pictures/19_which_cause.svg)
#
# [Rarer causes](../docs/errors.md#when-more-devices-are-no-faster) have a page.
#
# ## Causes that `fit.explain` lists
#
# ### 1. The input starves the step
#
# You see the row `input`, as above: reading a batch takes longer than a step. The cure is `cache`
# for data that fit into memory, else `num_parallel_calls` in `map`. With `cache` you get:

# %% tags=["nbval-ignore-output"]
print(fit.explain(model, slow.cache(), callbacks=[Report()], steps=4))

# %% [markdown]
# ### 2. Python works in every step
#
# You see the name of a callback: the next step starts when the callback has ended. The cure is to
# let it act at every hundredth step. In your own loop, read the losses at the end: `float(loss)`
# waits for the GPU.
#
# ### 3. A function is traced again and again
#
# In `fit` you see `new shapes`; for your own functions, count the graphs. `tf.function` makes one
# for each new Python number and each new shape. Here a function gets four numbers, and then batches
# of four sizes:

# %%
def calls(batches, rates, **settings):
    scaled = tf.function(lambda x, rate: rate * tf.reduce_sum(x), **settings)
    for batch, rate in zip(batches, rates):
        scaled(batch, rate)
    return scaled.experimental_get_tracing_count()


rates = [0.1, 0.2, 0.3, 0.4]
tensors = [tf.constant(rate) for rate in rates]
batches = [x[:size] for size in (80, 40, 20, 10)]
same = batches[:1] * 4
print("Python numbers:", calls(same, rates), " tensors:", calls(same, tensors))
print("sizes:", calls(batches, tensors), " relaxed:",
      calls(batches, tensors, reduce_retracing=True))  # fmt: skip

# %% [markdown]
# The cures are tensors in place of numbers, batches of one size (`drop_remainder=True`), and
# `reduce_retracing=True` or an `input_signature`.
#
# ### 4. Eager code where a graph would do
#
# You see `run_eagerly`: Python starts operations one by one. The cure is `@tf.function`, and in
# Keras no `run_eagerly=True`:

# %% tags=["nbval-ignore-output"]
print(fit.explain(build(run_eagerly=True), lesson_19.batch(80), steps=8))

# %% [markdown]
# ## Replay a step by hand
#
# The other four causes are in the step itself. There `whatif` also predicts what a cure would gain,
# by a replay of the traced step. Here are five operations. An arrow is a result that the other
# device needs. On the first device, `c` needs `a`, and `d` needs `c`:
#
# ![Five operations on two devices over 15 seconds. First: a from 0 to 4, c from 4 to 6, d from 10
# to 13. Second: b from 4 to 10, e from 13 to 15. Arrows: b needs a, d needs b, e needs
# d.](pictures/19_five_operations.svg)
#
# An operation starts when its device is free and all that it needs is there. By that rule `replay`
# computes when the last one ends. Each operation, in the order of their starts, has its device, its
# seconds, and the operations that it needs. Each round of the loop sets the time of one to 0:

# %%
def replay(ops):
    ends, free = {}, {}
    for name, (device, seconds, needs) in ops.items():
        ready = [ends[other] for other in needs]
        ends[name] = free[device] = max([free.get(device, 0), *ready]) + seconds
    return max(ends.values())


five = {"a": ("first", 4, ""), "b": ("second", 6, "a"), "c": ("first", 2, "a"),
        "d": ("first", 3, "bc"), "e": ("second", 2, "d")}  # fmt: skip
print("as it is:", replay(five), "s")
for name, (device, seconds, needs) in five.items():
    print(f"without {name}: {replay(five | {name: (device, 0, needs)}):2} s, it took {seconds}")

# %% [markdown]
# `b` took 6 of 15 seconds, and yet the step without it takes 11, not 9: `d` then waits for `c`. So
# what an operation took is not what you can gain.
#
# ## Causes in the step itself
#
# A step as in [[09]] shows these causes: the host splits the batch, a tower on each device computes
# gradients, and one device, `home`, averages them and updates the weights. The cases change
# `where` the towers are, the `home`, and the `sizes` of the shards:

# %%
def make_step(where, home=plan.devices[0], sizes=None):
    with tf.device(home):
        model = lesson_19.model()
    weights = model.trainable_variables

    def tower(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        return [loss, *tape.gradient(loss, weights)]

    @tf.function
    def step(x, y):
        with tf.device(plan.host):
            shards = [tf.split(part, sizes or len(where)) for part in (x, y)]
        loss, *mean = towers.average(towers.run(tower, where, *shards), weights=sizes, device=home)
        with tf.device(home):
            for weight, gradient in zip(weights, mean):
                weight.assign_sub(0.1 * gradient)
        return loss

    return step


# %% [markdown]
# `traces` gives the three fastest of several traces, the fastest last. A prediction compares two
# replays, with the change and without it. So first: does the replay of a healthy step come near its
# trace? On GPUs it must: it keeps the traced pauses.

# %% tags=["nbval-ignore-output"]
healthy = make_step(plan.devices)
of_healthy = traces(healthy)
print(whatif.replay(of_healthy))

# %% [markdown]
# ### 5. Nothing runs on the second device
#
# You see "ran nothing": nobody asked for the device, or its name has a typo. The cure is a
# strategy, `fit.use` or towers. `whatif.towers` predicts what they gain, from traces of one
# device. `beside` prints the prediction, then the measured gain of the second step, `after`, over
# the first, `before`:

# %% tags=["nbval-ignore-output"]
one = make_step(plan.devices[:1])
of_one = traces(one)
print(whatif.explain(of_one[-1]))
speed = 8e9 if plan.on_gpus else None  # bytes a second of the link; in cores mode there is none
beside(whatif.towers(of_one, len(plan), bytes_per_second=speed), timed(one), timed(healthy))

# %% [markdown]
# A prediction assumes that operations are as fast on several busy devices as on one. Devices that
# share a memory slow each other down, so the measured gain is often some percent smaller. Shares of
# one GPU copy inside it and share its computing: neither number is that of a second GPU.
#
# ### 6. The batch is too small for the split
#
# You see no gain over one device: starting operations and updating weights take as long for a small
# batch as for a large one. Here each device gets four examples:

# %% tags=["nbval-ignore-output"]
few, large = (lesson_19.batch(n * len(plan)) for n in (4, len(x)))
print(timing.compare(timed(one, *few), timed(healthy, *few), names=("one", "all")))

# %% [markdown]
# The cure is a larger batch. `before` is one device with its batch, and `after` is all devices,
# each with as large a batch. If `after` took 1.1 times as long, two devices would do 2 / 1.1 = 1.8
# times the work in the same time:

# %% tags=["nbval-ignore-output"]
change = whatif.towers(of_one, len(plan), batch=1, bytes_per_second=speed)
beside(change, timed(one), timed(healthy, *large))

# %% [markdown]
# ### 7. One shard is larger, or one device is slower
#
# You see a long wait for another device: averaging begins when the slowest device's gradients are
# there. Here the first device has the largest shard. The prediction makes that device's operations
# (named `tower_0/`) as fast as with an equal shard:

# %% tags=["varies", "cover", "nbval-ignore-output"]
share = len(x) // (len(plan) + 2)
sizes = [len(x) - share * (len(plan) - 1)] + [share] * (len(plan) - 1)
uneven = make_step(plan.devices, sizes=sizes)
of_uneven = traces(uneven)
print("shards:", sizes, whatif.explain(of_uneven[-1]), sep="\n")
change = whatif.faster(of_uneven, "tower_0/", by=sizes[0] * len(plan) / len(x))
beside(change, timed(uneven), timed(healthy))
pair = {"even shards": of_healthy[-1], "uneven shards": of_uneven[-1]}
for name, step in pair.items():
    axes = charts.blame(step, shown=99)
    axes.set_title(name, loc="left")
    axes.set_xlim(0, 1e3 * max(each.length for each in pair.values()))
    plt.show()

# %% [markdown]
# The prediction leaves out that with even shards the other devices get more to do, so the measured
# gain may be smaller, or none if devices share a GPU. A bar has all of a device's work first, then
# its waits. With even shards those for the first device are short. The cure is even shards, or
# shards in proportion to speed. `whatif.explain` names the slow device, not the reason.
#
# ### 8. The variables are on the wrong device
#
# You see in a trace's `bytes_between()` that the host sends more than the batch: it has the
# weights, too. A Keras model built outside `tf.device` blocks has them on the first GPU, or on
# the host where there is none. Here one device computes, with the variables on it ("at home") and
# then on the host:

# %%
of_hosted = traces(make_step(plan.devices[:1], home=plan.host))
batch = x.numpy().nbytes + y.numpy().nbytes
for name, step in (("at home", of_one[-1]), ("on the host", of_hosted[-1])):
    for (a, b), size in step.bytes_between().items():
        print(f"{name:12} {a} -> {b} {size / batch:4.0%} of the bytes of a batch")

# %% [markdown]
# The cure is to build the model in its device's block. The replay says what the bytes would cost
# over a link of 1 GB/s, also in `cores` mode, where nothing is copied:

# %% tags=["nbval-ignore-output"]
for name, steps in (("at home", of_one), ("on the host", of_hosted)):
    print(f"{name:12}", whatif.link(steps, 1e9))

# %% [markdown]
# ## Proof
#
# A step that skips work is faster, so a cure has to leave the losses as they were. Do the
# other steps, from the same weights, have the losses of one device?

# %%
def losses(**settings):
    step = make_step(**{"where": plan.devices} | settings)
    return [float(step(x, y)) for _ in range(3)]


alone = losses(where=plan.devices[:1])
print("one device   the loss falls:", alone[0] > alone[1] > alone[2])
others = {"all": {}, "uneven": {"sizes": sizes}, "on the host": {"home": plan.host}}
for name, settings in others.items():
    off = max(abs(a / b - 1) for a, b in zip(losses(**settings), alone))
    print(f"{name:12} agree to one part in a thousand: {off < 1e-3}")

# %% [markdown]
# ## When not to
#
# A replay cannot foresee that TensorFlow chooses another kernel. Steps under 2 ms are too short for
# it, and it refuses steps with a loop. `fit.explain` takes differences of times: do not call it
# while other programs run. For large trainings on GPUs, *Daydream*
# ([2020](../docs/sources.md#daydream)) and *dPRO* ([2022](../docs/sources.md#dpro)) go further.
#
# ## On GPUs
#
# On GPUs Keras uses XLA, which takes seconds to compile each new graph
# (cause 3). A step of short kernels takes as long as the host needs to start them, so a batch that
# is large for a CPU can be too small (cause 6).
#
# ## With a model of another kind
#
# `faster` finds operations by name; an operation's name contains that of its layer. Which layer of
# this network would you rather make twice as fast?

# %% tags=["nbval-ignore-output"]
with tf.device(plan.devices[0]):
    stack = [layers.Conv2D(32, 3, name="conv"), layers.BatchNormalization(name="norm")]
    model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Flatten(), layers.Dense(10)])
    model.compile("sgd", loss_of, jit_compile=False)
    step = trace.fit_step(model, (tf.reshape(x, [-1, 28, 28, 1])[:210], y[:210]))
print(whatif.faster(step, "conv"), whatif.faster(step, "norm"), sep="\n")

# %% [markdown]
# Work first on the layer with the larger gain. If both gain little, see cause 6.
#
# ## On your own
#
# Under each exercise is its solution, closed until you click *1 cell hidden*.
#
# **1.** Write `replay_over(ops, link)`, the replay by hand with a link: a result from another
# device arrives `link` seconds after its operation has ended, one from the same device at once.

# %% tags=["exercise"]
def replay_over(ops, link):
    return replay(ops)


checks.replay_over_link(replay_over)

# %% tags=["solution"]
def replay_over(ops, link):
    ends, free = {}, {}
    for name, (device, seconds, needs) in ops.items():
        ready = [ends[other] + link * (ops[other][0] != device) for other in needs]
        ends[name] = free[device] = max([free.get(device, 0), *ready]) + seconds
    return max(ends.values())


checks.replay_over_link(replay_over)

# %% [markdown]
# **2.** `lesson_19.patient()` gives a compiled Keras model and its data. Three of the eight causes
# slow its training down: put their numbers into `causes`. Then write `treat(model, data)`, which
# returns a function that makes one pass over the data without the three, and changes the weights as
# `lesson_19.fit(model, data)` does.

# %% tags=["exercise"]
causes = {0}


def treat(model, data):
    return lambda: lesson_19.fit(model, data)


checks.treated(treat, causes)

# %% tags=["solution"]
causes = {1, 4, 5}  # an input slower than the step, run_eagerly=True, one device


def treat(model, data):
    fit.use(model, plan)
    model.run_eagerly = False
    kept = data.cache()
    return lambda: model.fit(kept, shuffle=False, verbose=0)


checks.treated(treat, causes)

# %% [markdown]
# ## What we saw
#
# - `fit.explain` listed what slows `fit` down, and `whatif.explain` which device waited in a step.
# - Four Python numbers made 4 graphs of a function, and four tensors made 1.
# - Without the operation that took 6 of 15 seconds, the step takes 11.
# - All devices, uneven shards and variables on the host had the losses of one device.
#
# ## In practice
#
# Call `fit.explain` first, and trace a step when only "the step itself" is left. Ask `faster`,
# `towers` or `link` of `whatif` before you work, and time the change afterwards.
#
# Next: [[next]].
