# %% [markdown]
# # Find out why it is not faster
#
# You added a GPU, and an epoch takes as long as before. `fit.explain` measures where the time of a
# step goes. In this lesson's example, a slow input and a slow callback cost most of it. The times
# are rounded:
#
# ```
# costs            ms a step
# input                   60
# callback Report         40
# the step itself         20
# ```
#
# **In this lesson** you find the cause with this table and a trace of one step, and predict what a
# cure gains. There are eight usual causes:
#
# ![A decision tree: fit.explain leads to causes 1 to 4, a trace to causes 5 to 8 or the
# exchange.](pictures/02_which_cause.svg)
#
# ## The lines to paste
#
# ```python
# from mgpu_helpers import fit, trace, whatif
#
# print(fit.explain(model, data))
# print(whatif.explain(trace.fit_step(model, data)))  # which device waits for which
# ```
#
# **You need** [[01]], and `tf.function`.

# %%
from mgpu_helpers import devices

plan = devices.setup(2, exact=True)
plan

# %%
import time

import keras
import matplotlib.pyplot as plt
import tensorflow as tf

from mgpu_helpers import charts, fit, trace, whatif
from mgpu_helpers.lessons import drawings, lesson_02
from mgpu_helpers.lessons.checks import lesson_02 as checks
from mgpu_helpers.lessons.lesson_02 import beside, make_step, timed, traces

x, y = lesson_02.batch()

# %% [markdown]
# ## Ask fit
#
# Our model has three dense layers, `wide`, `middle` and `scores`, and trains on all devices. We
# slow it down twice: reading a batch takes 60 ms, and a callback takes 40 ms after each step.

# %%
class Report(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.04)  # writes a log, draws a picture

# %%
slow = tf.data.Dataset.range(4).map(lambda _: lesson_02.read(x, y, seconds=0.06))
with fit.strategy(plan).scope():
    model = lesson_02.model()
    model.compile("sgd", lesson_02.loss())

# %% tags=["nbval-ignore-output"]
print(fit.explain(model, slow, callbacks=[Report()], steps=4))

# %% [markdown]
# `fit.explain` ran some steps, then ran them again with one thing at a time left out, and put the
# weights back. The column *without it* is how long a step then took, and *ms a step* is what that
# saved. This training is **input-bound**, because waiting for data costs most.
#
# Cure what the table lists, and ask again. Once only the step itself is left, trace it. We do so
# with a batch in memory:

# %% tags=["nbval-ignore-output"]
print(whatif.explain(trace.fit_step(model, (x, y))))

# %% [markdown]
# *Overhead* is the time between two operations of a device.
#
# ## The causes and their cures
#
# 1. **Input.** Cache what fits into memory. Otherwise read in parallel and prefetch, as the table
#    says.
# 2. **A callback.** Let it act at every hundredth step.
# 3. **New graphs.** `tf.function` makes a graph for each new shape and each new Python number. Keep
#    to one batch size (`drop_remainder=True`), and pass tensors.
# 4. **Eager code.** Python starts operations one by one. Use `@tf.function`, and compile without
#    `run_eagerly=True`.
# 5. **An idle device.** The trace says that it "ran nothing". Give your compiled model to
#    `fit.use(model, plan)`.
# 6. **A small batch.** The trace shows mostly overhead, because starting an operation takes as long
#    for a small batch as for a large one. Take a larger batch.
# 7. **A straggler.** All others wait for one device, which has a larger shard or is slower. Make
#    shards even, or proportional to speed: `fit.use(model, plan, shares=(2, 1))`.
# 8. **Variables on the host.** They cross to the device in every step. Then
#    `trace.fit_step(...).bytes_between()` shows more bytes than those of the batch. Build the model
#    in the scope of its strategy, or in `tf.device`.
#
# With a large model, devices may also wait for the **exchange** of gradients: for an `AddN` or an
# `AllReduce`. A larger batch helps: a step then computes more, and sends the same bytes. [Rarer
# causes](../docs/errors.md#when-more-devices-are-no-faster) have a page.
#
# ## Replay a step by hand
#
# What would a cure gain? `whatif` changes the traced step as the cure would, and replays it. Take
# these five operations. Each starts when its device is free and the results that it needs are
# there. An arrow is a result that the other device needs. `c` also needs `a`, and `d` needs `c`.
#
# ![Five operations over 15 seconds: a, c and d on the first device, b and e on the
# second.](pictures/02_five_operations.svg)
#
# How long does the step take if `b` takes no time? Write it down, then run the replay:

# %%
def replay(ops):
    ends, free = {}, {}
    for name, (device, seconds, needs) in ops.items():
        ready = [ends[other] for other in needs]
        ends[name] = free[device] = max([free.get(device, 0), *ready]) + seconds
    return max(ends.values())

# %%
five = {"a": ("first", 4, ""), "b": ("second", 6, "a"), "c": ("first", 2, "a"),
        "d": ("first", 3, "bc"), "e": ("second", 2, "d")}  # fmt: skip
without = replay(five | {"b": ("second", 0, "a")})
print(f"as it is: {replay(five)} s. without b, which takes {five['b'][1]} s: {without} s")

# %% [markdown]
# It takes 4 s less, not 6, because `d` then waits for `c`, until 6 s.
#
# ## Predict a cure
#
# Here is a real step on one device, which leaves the second idle (cause 5). The cure is a **tower**
# on each device, which computes the gradients of a shard. `whatif.towers` predicts the cured step
# from traces of the step on one device. `beside` prints the prediction, and then measures both
# steps:

# %% tags=["nbval-ignore-output"]
one, all_of_them = make_step(plan.devices[:1]), make_step(plan.devices)
link = 8e9 if plan.on_gpus else None  # bytes a second over PCIe 3.0; cores share a memory
change = whatif.towers(traces(one), len(plan), bytes_per_second=link)
beside(change, timed(one), timed(all_of_them))

# %% [markdown]
# The measured gain may be smaller than the predicted one, because cores share a memory.
#
# ## Break it
#
# Now the first of two devices gets three quarters of the batch (cause 7). Write down how much
# longer the step will take. In the chart, each wait has the name of the operation that the device
# waited for. `whatif.faster` predicts the step with even shards from that with uneven ones:

# %% tags=["varies", "cover", "nbval-ignore-output"]
share = len(x) // (len(plan) + 2)
sizes = [len(x) - share * (len(plan) - 1)] + [share] * (len(plan) - 1)
uneven = traces(make_step(plan.devices, sizes=sizes))
print("shards:", sizes, whatif.explain(uneven[-1]), sep="\n")
print(whatif.faster(uneven, "tower_0/", by=sizes[0] * len(plan) / len(x)))
pair = {"even shards": traces(all_of_them)[-1], "uneven shards": uneven[-1]}
with drawings.panels(2, 1, figsize=(9, 4.4), sharex=True) as (_, grid):
    for ax, (name, step) in zip(grid.flat, pair.items()):
        charts.blame(step, ax, shown=3).set_title(name, loc="left")
        ax.label_outer()
    ax.set_xlim(0, 1e3 * max(step.length for step in pair.values()))
plt.show()

# %% [markdown]
# The larger shard is 1.5 times an even one, so the step takes about 1.5 times as long. Most of this
# time the second device waits. The prediction is close to the step with even shards, in the upper
# bars.
#
# ## Proof
#
# A step that skips work is faster, too. So we check that the losses are those of one device:

# %%
def losses(**settings):
    step = make_step(**{"where": plan.devices} | settings)
    return [float(step(x, y)) for _ in range(3)]


alone = losses(where=plan.devices[:1])
others = {"all": {}, "uneven": {"sizes": sizes}}
for name, settings in others.items():
    off = max(abs(a / b - 1) for a, b in zip(losses(**settings), alone))
    print(f"{name:7} agrees with one device to one part in a thousand: {off < 1e-3}")

# %% [markdown]
# | | |
# |---|---|
# | **Use it when** | a training is slower than you hoped |
# | **It costs** | some passes of a few steps, and a traced step; no other program may run |
# | **Instead** | a clock, if your loop is not `fit`: [[19]] |
#
# ## On GPUs
#
# > Keras compiles a step with XLA, a compiler, on one GPU, but not on several. A step without XLA
# > may lose more time than the second GPU saves, so `fit.explain` says if XLA was off.
#
# ## On your own
#
# ### Exercise 1
#
# In `replay`, a result is everywhere at once. Write `replay_over(ops, link)`, in which a result
# from another device arrives `link` seconds after its operation has ended. Both devices work on
# while it crosses.

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
# ### Exercise 2
#
# `model, data = lesson_02.patient()` gives a compiled model and its data. It trains in
# `tf.device(plan.devices[0])`, and three of the eight causes slow it down.
#
# - Put their numbers into `causes`. Ask `fit.explain`, cure what it lists, and ask again. If it
#   lists none, look at how the model was compiled. Then trace a step in
#   `tf.device(plan.devices[0])`.
# - Write `treat(model, data)`. It returns a function that makes one pass without the causes, and
#   changes the weights as `lesson_02.fit(model, data)` does.
# - Only the first pass may read the data; later ones take it from memory.

# %% tags=["exercise"]
model, data = lesson_02.patient()  # ask fit.explain(model, data)
causes = {0}


def treat(model, data):
    return lambda: lesson_02.fit(model, data)


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
# - `fit.explain` listed what slowed `fit` down, and a trace said which device waited for which.
# - Without the operation that took 6 of 15 seconds, the step takes 11 s.
#
# ## In practice
#
# Ask `whatif` before you work on a cure, and time the training after it.
#
# Next: [[next]].
