# %% [markdown]
# # Find out why it is not faster
#
# You added a GPU, and an epoch takes as long as before. There are eight usual causes, each with a
# cure of its own. A wrong guess can cost you a day.
#
# **In this lesson** two calls say where the time of your training goes. You see the causes in small
# cases, with their cures and, where a trace can tell, a prediction of the gain.
#
# **You will learn** to
# - let `fit.explain` say what each step of `fit` waits for,
# - read from a trace which device waited for which, and
# - replay a step, and ask what a change would give.
#
# **You need** [[07]] and [[09]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import time

import keras
import matplotlib.pyplot as plt
import tensorflow as tf

from mgpu_helpers import charts, fit, timing, towers, trace, whatif
from mgpu_helpers.lessons import lesson_19
from mgpu_helpers.lessons.checks import lesson_19 as checks
from mgpu_helpers.lessons.lesson_19 import timed

layers = keras.layers

# %% [markdown]
# ## The lines to paste
#
# Here is a small model. Its input reads a batch in 50 ms, as from a slow disk, and a callback works
# for 30 ms after each step:

# %%
x, y = lesson_19.batch()
first, loss_of = plan.devices[0], lesson_19.loss()


def build(**options):
    with tf.device(first):
        model = lesson_19.model()
        model.compile("sgd", loss_of, **options)
    return model


class Report(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.03)  # writes a log, draws a picture


small = lesson_19.batch(80)
slow = tf.data.Dataset.range(4).map(lambda _: lesson_19.read(*small))

# %% [markdown]
# `fit.explain` runs a few steps as they are, and again without each thing that costs time:

# %% tags=["nbval-ignore-output"]
model = build()
with tf.device(first):
    print(fit.explain(model, slow, callbacks=[Report()], steps=4))

# %% [markdown]
# A row has what something costs, what a step would take without it, and what to do. A cost is what
# you would gain. The row "the step itself" is a step with nothing around it. The callback is
# missing: the next batch is read while it works, so without it a step would take as long. One cause
# can hide another, so ask again after each cure. The second call,
# `whatif.explain(trace.fit_step(model, data))`, looks into the step itself. What you may see:
#
# | what you see | the cause |
# |---|---|
# | `fit.explain` lists `input` | 1. the input starves the step |
# | it lists a callback | 2. Python works, or reads a number, in every step |
# | it lists `new shapes` | 3. a function is traced again and again |
# | it lists `run_eagerly` | 4. eager code where a graph would do |
# | `whatif.explain` says "ran nothing" | 5. nothing runs on that device |
# | it says "a step under 2 ms" | 6. the batch is too small for the split |
# | it says that a device waited long for another | 7. one shard is larger, or one device slower |
# | in `bytes_between()` the host sends more than a batch | 8. variables are on the wrong device |
#
# | `fit.explain`, `whatif.explain` | |
# |---|---|
# | **Use them when** | a training is slower than you hoped, before you change anything |
# | **They cost** | some passes of a few steps; one traced step |
# | **Instead** | a clock, where your loop is not `fit`: [[15]] |
#
# [Rarer causes](../docs/errors.md#when-more-devices-are-no-faster) have a page.
#
# ## Outside of the step
#
# **1. The input starves the step.** Cures are `cache` for what fits into memory and
# `num_parallel_calls` in `map` for what does not. `prefetch` at the end reads ahead, which
# TensorFlow did here by itself, so `cache` is the cure. Now the callback is listed:

# %% tags=["nbval-ignore-output"]
ready = slow.cache().repeat().prefetch(tf.data.AUTOTUNE)
with tf.device(first):
    print(fit.explain(model, ready, callbacks=[Report()], steps=4))

# %% [markdown]
# **2. Python works in every step.** Let a callback act at every hundredth step. In your own loop,
# `float(loss)` in each step makes Python wait for the number, and then the GPU for Python. Read the
# losses at the end.
#
# **3. A function is traced again and again.** `tf.function` makes a new graph for each new Python
# number and each new shape. `calls` gives a function four numbers, or batches of four sizes, and
# counts its graphs:

# %%
def calls(batches, rates, **settings):
    predict = tf.function(lambda x, rate: rate * model(x), **settings)
    for batch, rate in zip(batches, rates):
        predict(batch, rate)
    return predict.experimental_get_tracing_count()


rates = [0.1, 0.2, 0.3, 0.4]
tensors = [tf.constant(rate) for rate in rates]
batches = [lesson_19.batch(size)[0] for size in (80, 40, 20, 10)]
same = batches[:1] * 4
print("Python numbers:", calls(same, rates), " tensors:", calls(same, tensors))
print("sizes:", calls(batches, tensors), " relaxed:",
      calls(batches, tensors, reduce_retracing=True))  # fmt: skip

# %% [markdown]
# The cures are tensors in place of numbers, batches of one size (`drop_remainder=True`), and
# `reduce_retracing=True` or an `input_signature`.
#
# **4. Eager code where a graph would do.** Python starts the operations of all devices one by one.
# The cure is `@tf.function`, and in Keras no `run_eagerly=True`. If a last line says "more or
# less", a cost near to that time is uncertain:

# %% tags=["nbval-ignore-output"]
with tf.device(first):
    print(fit.explain(build(run_eagerly=True), small, steps=4))

# %% [markdown]
# ## Inside of the step: a replay by hand
#
# Here are five operations. An arrow is a result that the other device needs:
#
# ![Five operations on two devices over 15 seconds. First: a from 0 to 4, c from 4 to 6, d from 10
# to 13. Second: b from 4 to 10, e from 13 to 15. Arrows: b needs a, d needs b, e needs
# d.](pictures/19_five_operations.svg)
#
# An operation starts when its device is free and all that it needs is there. By that rule `replay`
# computes when the last operation ends. Each operation has its device, its seconds, and the letters
# of those that it needs; they stand in the order in which they start. The loop gives one of them no
# time:

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
# ## A healthy step
#
# `make_step` makes the step of [[09]]. The cases change `where` the towers are, the `home` of the
# variables, and the `sizes` of the shards:

# %%
def make_step(where, home=first, sizes=None):
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
# `traces` takes three traces and puts the fastest last, which was disturbed least. `whatif.replay`
# replays each. `whatif.explain` says how long each device worked, and what it waited for. In the
# chart, a wait has the pale colour of the device waited for. Copies, a free core, overhead and the
# short waits together are grey:

# %%
def traces(step, *batch):
    found = [trace.function_step(step, *(batch or (x, y)))[1] for _ in range(3)]
    return sorted(found, key=lambda each: each.length, reverse=True)


# %% tags=["varies", "nbval-ignore-output"]
healthy = make_step(plan.devices)
of_healthy = traces(healthy)
print(whatif.replay(of_healthy), whatif.explain(of_healthy[-1]), sep="\n")
charts.blame(of_healthy[-1])
plt.show()

# %% [markdown]
# A healthy step is mostly work. A device waits for *a free core* while other devices use them all,
# and *overhead* is what TensorFlow and other programs took between operations.
#
# **5. Nothing runs on the second device.** Nobody asked for it, or its name has a typo and
# TensorFlow took another device ([[01]]). `whatif.explain` says "ran nothing" of the idle device.
# Here are the devices that worked:

# %%
def typo(x):
    with tf.device("/GPU:91"):
        return tf.linalg.matmul(x, x, transpose_a=True)


one = make_step(plan.devices[:1])
of_one, of_typo = traces(one), trace.function_step(typo, x)[1]
for name, step in (("healthy", of_healthy[-1]), ("one", of_one[-1])):
    print(f"{name:8}", *[device for device in plan.devices if device in step.devices])
print("typo     ran on /GPU:91:", "/GPU:91" in of_typo.devices)

# %% [markdown]
# The cure is a strategy ([[07]]), `fit.parallel` or towers ([[09]]). `whatif.towers` predicts the
# gain from the traces of one device; on GPUs it needs the speed of their link. `beside` prints the
# prediction, which starts from the replayed time, and then how both steps compare, run in turn;
# `timed` waits until all devices have ended. What you measure can lie outside the prediction's
# range:

# %%
def beside(change, before, after):
    names = ("before", "after")
    print(change, timing.compare(before, after, warmup=1, repeats=6, names=names), sep="\n")


# %% tags=["nbval-ignore-output"]
speed = 8e9 if plan.on_gpus else None  # bytes a second; in cores mode nothing is copied
change = whatif.towers(of_one, len(plan), bytes_per_second=speed)
beside(change, timed(one), timed(healthy))

# %% [markdown]
# **6. The batch is too small for the split.** All devices work, and the step takes longer than on
# one: starting the operations and updating the weights take as long for a small batch as for a
# large one. Here each device gets four examples. The cure is a larger batch: `after` has as many
# examples on each device as `before` on its one device. Its time should be about the same:

# %% tags=["nbval-ignore-output"]
few, large = (lesson_19.batch(n * len(plan)) for n in (4, len(x)))
print(timing.compare(timed(one, *few), timed(healthy, *few), names=("one", "all")))
print(whatif.explain(traces(healthy, *few)[-1]))
change = whatif.towers(of_one, len(plan), batch=1, bytes_per_second=speed)
beside(change, timed(one), timed(healthy, *large))

# %% [markdown]
# **7. One shard is larger, or one device is slower.** The others wait for it when the gradients are
# averaged. Here the first device has the largest shard. The prediction makes the operations of its
# tower (`tower_0/` in their names) faster, by as much as its shard is too large:

# %% tags=["varies", "cover", "nbval-ignore-output"]
share = len(x) // (len(plan) + 2)
sizes = [len(x) - share * (len(plan) - 1)] + [share] * (len(plan) - 1)
uneven = make_step(plan.devices, sizes=sizes)
of_uneven = traces(uneven)
print("shards:", sizes, whatif.explain(of_uneven[-1]), sep="\n")
change = whatif.faster(of_uneven, "tower_0/", by=sizes[0] * len(plan) / len(x))
beside(change, timed(uneven), timed(healthy))
charts.blame(of_uneven[-1])
plt.show()

# %% [markdown]
# The cure is even shards, or shards in proportion to speed. `whatif.explain` names the slow device,
# not the reason.
#
# **8. The variables are on the wrong device.** A Keras model built outside of any `tf.device` block
# has its weights on the first GPU, or on the host where there is none. Here one device computes.
# The variables are at home on it, and then on the host:

# %%
hosted = make_step(plan.devices[:1], home=plan.host)
of_hosted = traces(hosted)
for name, step in (("at home", of_one[-1]), ("on the host", of_hosted[-1])):
    for (a, b), size in step.bytes_between().items():
        print(f"{name:12} {a} -> {b} {size:>10,} bytes")

# %% [markdown]
# From the host, all weights go to the device, and all gradients come back. The cure is to build the
# model in its device's block. In `cores` mode all devices share one memory, and a clock shows next
# to nothing. So the replay says what the bytes would cost over a link of 1 GB/s:

# %% tags=["nbval-ignore-output"]
for name, steps in (("at home", of_one), ("on the host", of_hosted)):
    print(f"{name:12}", whatif.link(steps, 1e9))

# %% [markdown]
# ## Proof
#
# A step that does less is faster, too, so a cure has to leave the losses as they were. Here are
# three losses of one device, and whether the other steps, from the same weights, have them:

# %%
def losses(**settings):
    step = make_step(**{"where": plan.devices} | settings)
    return [float(step(x, y)) for _ in range(3)]


alone = losses(where=plan.devices[:1])
print("one device  ", *(f"{loss:.3f}" for loss in alone))
others = {"all": {}, "uneven": {"sizes": sizes}, "on the host": {"home": plan.host}}
for name, settings in others.items():
    off = max(abs(a / b - 1) for a, b in zip(losses(**settings), alone))
    print(f"{name:12} agree to one part in a thousand: {off < 1e-3}")

# %% [markdown]
# ## When not to
#
# A replay cannot foresee that TensorFlow chooses another kernel, and it refuses a step under 2 ms,
# and one with a loop. `fit.explain` takes differences of times, so nothing else should run
# meanwhile. For large trainings on GPUs, *Daydream* ([2020](../docs/sources.md#daydream)) and
# *dPRO* ([2022](../docs/sources.md#dpro)) go further.
#
# ## On GPUs
#
# Python prepares the next step while the GPU works, unless Python waits for a number (cause 2). On
# one GPU, without a strategy, Keras uses XLA, which takes seconds to compile each new graph (3). A
# batch that is large for a CPU can be too small for a GPU: a step of short kernels takes as long as
# the host needs to start them (6). Bytes matter where sending takes long beside the step (8).
#
# ## With a model of another kind
#
# Here is a convolution with BatchNormalization. `faster` takes what stands in the names of
# operations, such as the name of a layer, and says what you gain if those operations are twice as
# fast:

# %% tags=["nbval-ignore-output"]
with tf.device(first):
    stack = [layers.Conv2D(32, 3, name="conv"), layers.BatchNormalization(name="norm")]
    model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Flatten(), layers.Dense(10)])
    model.compile("sgd", loss_of)
    step = trace.fit_step(model, (tf.reshape(x, [-1, 28, 28, 1])[:210], y[:210]))
print(whatif.explain(step), whatif.faster(step, "conv"), whatif.faster(step, "norm"), sep="\n")

# %% [markdown]
# Here `norm` gains more than `conv`.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `replay_over(ops, link)`, the replay by hand with a link; `ops` is as above. A result
# from another device arrives `link` seconds after its operation has ended, one from the same device
# at once.

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
# `lesson_19.fit(model, data)` does. The whole model has to be called on every device. From the
# second pass on, no batch may be read again, and the model may run only in graphs. Times are only
# shown. One of the causes hides behind another until that is cured.

# %% tags=["exercise"]
causes = {0}


def treat(model, data):
    return lambda: lesson_19.fit(model, data)


checks.treated(treat, causes)

# %% tags=["solution"]
causes = {1, 4, 5}  # an input slower than the step, run_eagerly=True, one device


def treat(model, data):
    fit.parallel(model, plan.devices)
    model.run_eagerly = False
    kept = data.cache()
    return lambda: model.fit(kept, shuffle=False, verbose=0)


checks.treated(treat, causes)

# %% [markdown]
# ## What we saw
#
# - `fit.explain` found what slows a training outside of its step, and `whatif.explain` which device
#   waited in it.
# - Four Python numbers made 4 graphs of a function, and four tensors made 1.
# - Without the operation that took 6 of 15 seconds, the step takes 11.
# - With the variables on the host, all weights and gradients crossed.
# - All devices, uneven shards and variables on the host had the losses of one device.
#
# ## In practice
#
# Call `fit.explain` first. If the row "the step itself" is the largest, trace a step. Ask
# `faster`, `towers` or `link` of `whatif` before you work, and time the change afterwards. If you
# get an error instead, see [Errors, by their message](../docs/errors.md).
#
# Next: [[next]].
