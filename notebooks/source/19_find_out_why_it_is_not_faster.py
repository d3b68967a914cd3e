# %% [markdown]
# # Find out why it is not faster
#
# You added a GPU, and a step takes as long as before. There are ten usual reasons, and each has a
# cure of its own. If you guess, you can spend a day on the wrong one.
#
# **In this lesson** twelve *patients* (steps, loops and processes that are too slow) are examined,
# cured and timed again, and where a trace can tell, the gain is predicted first. Ten have such a
# reason. One was only timed wrongly (10), and one was changed where it does not help (12).
#
# **You will learn** to
# - replay a step from its trace, and ask what a change would give,
# - read who waited for whom, and for how long,
# - tell apart what a trace shows and what only a clock shows,
# - recognize ten causes, and cure each,
# - find the cause of an error by its message.
#
# **You need** [[00]], [[09]] and [[15]].

# %%
from mgpu_helpers import devices

plan = devices.setup(2)
plan

# %%
import time

import keras
import matplotlib.pyplot as plt
import tensorflow as tf

from mgpu_helpers import charts, timing, towers, trace, whatif
from mgpu_helpers.lessons import errors, lesson_19
from mgpu_helpers.lessons.checks import lesson_19 as checks
from mgpu_helpers.lessons.lesson_19 import timed

# %% [markdown]
# ## A replay by hand
#
# Here are five operations on two devices. An arrow is a result that the other device needs:
#
# ![Five operations on two devices over 15 seconds. First: a from 0 to 4, c from 4 to 6, d from 10
# to 13. Second: b from 4 to 10, e from 13 to 15. Arrows: b needs a, d needs b, e needs
# d.](pictures/19_five_operations.svg)
#
# An operation starts when its device is free and all that it needs is there. That rule is enough to
# lay the step out again. Each operation below has its device, its seconds, and the letters of those
# that it needs. They stand in the order in which they start. `replay` returns the time when all of
# them have ended. The loop replays the step five times more, each time as if one operation took no
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
# `b` took 6 of 15 seconds, and yet the step without it takes 11 seconds, not 9: `d` then waits for
# `c`. A faster `c` gains nothing at all. So the share of a step that an operation takes is not what
# you gain by making it faster. A replay with the change says what you gain.
#
# ## A healthy step
#
# `make_step` makes the step of [[09]] for a small Keras model. The host splits the batch, and each
# device of `where` computes the loss and the gradients of its shard. `home` holds the
# variables, averages the gradients and updates the variables. Two settings make patients of this
# step later: the `sizes` of the shards, and the `widths` of the layers:

# %%
x, y = lesson_19.batch()
loss_of, first = lesson_19.loss(), plan.devices[0]


def make_step(where, home=first, sizes=None, **widths):
    with tf.device(home):
        model = lesson_19.model(**widths)
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
# `traces` takes three traces of a step and puts the fastest last, which other programs disturbed
# the least. `whatif.replay` does with each what `replay` did by hand, and adds the time that
# TensorFlow needs to start each operation. Compare its milliseconds with the traced ones.
# `whatif.explain` says for what share of the step each device worked, and what it waited for. A
# device waits for *a free core* while other devices use them all. *Overhead* is what TensorFlow and
# other programs took between operations. In the chart, pale colours are waiting for another device:

# %%
def traces(step, *batch):
    found = [trace.function_step(step, *(batch or (x, y)))[1] for _ in range(3)]
    return sorted(found, key=lambda each: each.length, reverse=True)


# %% tags=["varies", "cover", "nbval-ignore-output"]
healthy = make_step(plan.devices)
of_healthy = traces(healthy)
print(whatif.replay(of_healthy), whatif.explain(of_healthy[-1]), sep="\n")
charts.blame(of_healthy[-1])
plt.show()

# %% [markdown]
# A healthy step is mostly work. `explain` finds the slow part, not the reason for it. On GPUs it
# also names the copies between them. Where it cannot know, it says so: a step under 2 ms, a loop, a
# GPU without kernel records.
#
# ## 1. Nothing runs on the second device
#
# **Symptom**: a step on two GPUs takes as long as on one. Nobody asked for the second one, or its
# name has a typo. TensorFlow then takes another device, and says nothing. Look at which devices
# worked:

# %%
def typo(x):
    with tf.device("/GPU:91"):
        return tf.linalg.matmul(x, x, transpose_a=True)


one = make_step(plan.devices[:1])
of_one, of_typo = traces(one), trace.function_step(typo, x)[1]
for name, steps in (("healthy", of_healthy), ("one", of_one)):
    print(f"{name:8}", *[device for device in plan.devices if device in steps[-1].devices])
print("typo     ran on /GPU:91:", "/GPU:91" in of_typo.devices)

# %% [markdown]
# What would the other devices give? `whatif.towers` predicts it from the traces of one device. On
# GPUs it needs the speed of the link between them. `beside` prints the prediction, and under it the
# step before and after, timed in turn. Both go into a table at the end. `timed(step)` waits for the
# devices, as in [[15]]:

# %% tags=["nbval-ignore-output"]
table = []


def show(real):
    for name, each in zip(real.names, (real.a, real.b)):
        print(f"{name} {1e3 * each.median:.1f} ms", end="; ")
    print(real)


def beside(name, change, before, after):
    real = timing.compare(before, after, warmup=1, repeats=8, names=("before", "after"))
    table.append((name, change.ratio, real.ratio))
    print(change)
    show(real)


print(whatif.explain(of_one[-1]))
speed = 8e9 if plan.on_gpus else None  # bytes a second; in cores mode nothing is copied
change = whatif.towers(of_one, len(plan), bytes_per_second=speed)
beside("all devices instead of one", change, timed(one), timed(healthy))

# %% [markdown]
# **Cure**: `towers.run`, or a strategy ([[07]]). With `tf.config.set_soft_device_placement(False)`
# the typo raises an error, and the helpers of this package refuse such a name.
#
# ## 2. The input starves the step
#
# **Symptom**: a step takes longer in the loop than in its trace, because the loop waits for the
# input. Here the `map` of a dataset takes 50 ms to read a batch. A dataset reads one batch ahead by
# itself, which does not help where reading takes longer than the step. The trace of a step has no
# input in it. So `reading` puts the reading into the function that is traced, and all devices wait
# for the `PyFunc` that reads:

# %%
def reading(x, y):
    with tf.device(plan.host):
        batch = lesson_19.read(x, y)
    return healthy(*batch)


def loop_over(data):
    for batch in data:
        healthy(*batch)


numbers = tf.data.Dataset.range(6)
slow = numbers.map(lambda _: lesson_19.read(x, y))
quick = numbers.map(lambda _: lesson_19.read(x, y), num_parallel_calls=4)
ways = {"slow": timed(loop_over, slow), "quick": timed(loop_over, quick)}
of_reading = traces(reading)


# %% tags=["varies", "nbval-ignore-output"]
print(whatif.explain(of_reading[-1]))
for name, each in timing.several(ways, warmup=1, repeats=4).items():
    print(f"{name:5} {1e3 * each.median / len(numbers):.0f} ms a step")
charts.blame(of_reading[-1])
plt.show()

# %% [markdown]
# **Cure**: `num_parallel_calls`, as in the dataset `quick`, and `prefetch` where reading takes
# unequal times. (Even `quick` waits here: it reads four batches at a time, so six take 100 ms.)
# `cache` keeps in memory what was read once. More GPUs do not help. On GPUs, add
# `tf.data.experimental.prefetch_to_device`, so that each batch is also copied to the GPU ahead of
# its step.
#
# ## 3. The batch is too small for the split
#
# **Symptom**: more devices gain nothing, although all of them work. Starting the operations and
# updating the weights take as long for a small batch as for a large one. Compare one device with
# all, on a small batch and on the usual one:

# %% tags=["nbval-ignore-output"]
few, large = (lesson_19.batch(n * len(plan)) for n in (4, len(x)))
for batch in (few, (x, y)):
    print(len(batch[0]), "examples:", end=" ")
    show(timing.compare(timed(one, *batch), timed(healthy, *batch), names=("one", "all")))
print(whatif.explain(traces(healthy, *few)[-1]))

# %% [markdown]
# In a step under 2 ms, what TensorFlow does between the operations counts as much as they do, and
# `explain` says so. **Cure**: a larger per-device batch. In the last prediction below, each device
# has as many examples as one had. The others are for one device with another batch:

# %% tags=["nbval-ignore-output"]
for size in (2 * len(x), len(x) // 2, len(few[0])):
    change = whatif.scaled(of_one, batch=size / len(x))
    beside(f"a batch of {size}", change, timed(one), timed(one, *lesson_19.batch(size)))
change = whatif.towers(of_one, len(plan), batch=1, bytes_per_second=speed)
beside("the batch on each device", change, timed(one), timed(healthy, *large))

# %% [markdown]
# Twice and half of the batch are predicted well. The small batch is not. On GPUs much larger
# batches are still too small: a step of short kernels takes as long as the host needs to start
# them.
#
# ## 4. A value is fetched in every step
#
# **Symptom**: between the steps the GPU is idle. The call of a step on a GPU returns at once, and
# Python prepares the next step meanwhile, unless Python waits for a number. On CPUs the call
# returns when the step has ended. `set_synchronous_execution(False)` makes it return at once there
# too. Python does 20 ms of other work after each of five steps. The losses are *fetched* in every
# step, or *kept* as tensors until the end. `stamped` is the healthy step, which also says when it
# began and ended:

# %% tags=["varies", "nbval-ignore-output"]
def loop(fetch):
    steps = []
    for _ in range(5):
        steps.append(stamped(x, y))
        if fetch:
            float(steps[-1][0])
        time.sleep(0.02)  # logs, callbacks, the next batch
    begun = steps[0][1]
    return [(float(begin - begun), float(end - begun)) for _, begin, end in steps]


stamped = lesson_19.stamped(healthy)
ways = {"fetched": lambda: loop(True), "kept": lambda: loop(False)}
tf.config.experimental.set_synchronous_execution(False)
pair = timing.compare(*ways.values(), repeats=5, names=tuple(ways))
ran = {name: way() for name, way in ways.items()}
tf.config.experimental.set_synchronous_execution(True)
show(pair)
ax = charts.spans(ran, dict.fromkeys(ran, first))
ax.set_title("When each step ran", loc="left")
ax.set_yticks(range(2), ran)
plt.show()

# %% [markdown]
# In the upper row Python's work begins when a step has ended. In the lower row both run at the same
# time. **Cure**: keep the losses as tensors, and read them every hundred steps. The trace of a step
# does not show this, because the waiting is between two steps.
#
# ## 5. A function is traced again and again
#
# **Symptom**: every call is as slow as the first. `tf.function` makes a new graph for each new
# Python number and for each new shape. `calls` gives four numbers, or four sizes of a batch, to a
# function, and counts its graphs:

# %%
with tf.device(plan.host):
    model = lesson_19.model()


def calls(batches, rates, **settings):
    predict = tf.function(lambda x, rate: rate * model(x), **settings)
    for batch, rate in zip(batches, rates):
        predict(batch, rate)
    return predict.experimental_get_tracing_count()


rates = [0.1, 0.2, 0.3, 0.4]
tensors = [tf.constant(rate) for rate in rates]
same = [lesson_19.batch(80)[0]] * 4
other = [lesson_19.batch(size)[0] for size in (80, 40, 20, 10)]
print("Python numbers:", calls(same, rates), " tensors:", calls(same, tensors))
print("sizes:", calls(other, tensors), " relaxed:", calls(other, tensors, reduce_retracing=True))

# %% tags=["nbval-ignore-output"]
show(timing.compare(lambda: calls(same, rates), lambda: calls(same, tensors),
                    warmup=1, repeats=5, names=("Python numbers", "tensors")))  # fmt: skip

# %% [markdown]
# **Cure**: a tensor in place of a number, and `reduce_retracing=True` or an `input_signature`
# against many shapes. The trace of a step looks healthy. On GPUs a new graph costs more: with XLA
# (`jit_compile`) each one is compiled, for seconds.
#
# ## 6. Eager code where a graph would do
#
# **Symptom**: one core of the host is busy, and the devices take turns. Python starts one operation
# after the other. `python_function` is the step without its `tf.function`. Both give the same loss:

# %%
eager, graph = make_step(plan.devices).python_function, make_step(plan.devices)
print("the same loss:", abs(float(eager(x, y)) - float(graph(x, y))) < 1e-4)
show(timing.compare(timed(eager), timed(graph), repeats=8, names=("eager", "graph")))

# %% [markdown]
# **Cure**: the decorator `@tf.function`. `function_step` makes a graph of whatever it traces, so
# the trace looks healthy here too. In Keras look for `run_eagerly=True`. On GPUs two devices do
# overlap in eager code, as long as Python is fast enough for both.
#
# ## 7. One shard is larger, or one device is slower
#
# **Symptom**: one device works all the time, and the others wait for it when the gradients are
# averaged. Here the first device has most of the batch. The prediction makes the operations of its
# tower (`tower_0/` in their names) faster, by as much as its shard is too large:

# %% tags=["varies", "nbval-ignore-output"]
share = len(x) // (len(plan) + 2)
sizes = [len(x) - share * (len(plan) - 1)] + [share] * (len(plan) - 1)
uneven = make_step(plan.devices, sizes=sizes)
of_uneven = traces(uneven)
print("shards:", sizes, " even:", len(x) // len(plan))
print(whatif.explain(of_uneven[-1]))
change = whatif.faster(of_uneven, "tower_0/", by=sizes[0] * len(plan) / len(x))
beside("even shards", change, timed(uneven), timed(healthy))
charts.blame(of_uneven[-1])
plt.show()

# %% [markdown]
# **Cure**: even shards, or, where one device is always slower, shards in proportion to speed.
# `explain` names the slow device and not the reason: a GPU that is hot, or shared with somebody,
# looks the same.
#
# ## 8. The variables are on the wrong device
#
# **Symptom**: a step that ought to send only its batch sends megabytes more. A Keras model that is
# built outside of any `tf.device` block has its weights on the first GPU, or on the host where
# there is none. Here one device computes, and the variables are on the host:

# %%
hosted = make_step(plan.devices[:1], home=plan.host)
of_hosted = traces(hosted)
for name, step in (("at home", of_one[-1]), ("on the host", of_hosted[-1])):
    for (a, b), size in step.bytes_between().items():
        print(f"{name:12} {a} -> {b} {size:>10,} bytes")

# %% tags=["nbval-ignore-output"]
for name, steps in (("at home", of_one), ("on the host", of_hosted)):
    print(f"{name:12}", whatif.link(steps, 1e9))
show(timing.compare(timed(hosted), timed(one), repeats=8, names=("on the host", "at home")))

# %% [markdown]
# All weights go to the device, and all gradients come back. **Cure**: build the model in the block
# of its device. In `cores` mode all devices share one memory, so the clock shows next to nothing.
# The replay says what the bytes would cost over a link of 1 GB/s. On GPUs they matter where sending
# them takes long beside the step: for large dense layers and small batches, over PCIe.
#
# ## 9. An average makes an embedding's gradient dense
#
# **Symptom**: the average takes longer than the towers. A batch looks up 840 rows of a table of
# 100,000. So the gradients of the towers have 840 rows in all (`tf.IndexedSlices`). `tf.add_n`
# makes a tensor of 100,000 rows of them. Compare the bytes that go to the table,
# and its sum after a step from zeros:

# %%
with tf.device(first):
    embedding = tf.Variable(tf.zeros([100_000, 32]))
with tf.device(plan.host):
    ids = 100 * tf.range(840, dtype=tf.int64)


def tower(ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((tf.gather(embedding, ids) - 1) ** 2)
    return [tape.gradient(loss, embedding)]


def dense(each):
    with tf.device(plan.host):
        return [tf.add_n(gradients) / len(gradients) for gradients in zip(*each)]


# %%
def make_lookup(average):
    @tf.function
    def step(ids):
        (mean,) = average(towers.run(tower, plan.devices, towers.split(ids, len(plan))))
        with tf.device(first):
            if isinstance(mean, tf.IndexedSlices):
                embedding.scatter_sub(mean)
            else:
                embedding.assign_sub(mean)

    return step


lookups = {"dense": make_lookup(dense), "sparse": make_lookup(towers.average)}
found = {}
for name, step in lookups.items():
    embedding.assign(tf.zeros_like(embedding))
    step(ids)
    found[name] = trace.function_step(step, ids)[1]
    crossed, total = found[name].bytes_between(), float(tf.reduce_sum(embedding))
    print(f"{name:6} {crossed[plan.host, first]:>10,} bytes to the table; its sum is {total:,.0f}")

# %% tags=["nbval-ignore-output"]
print(whatif.explain(found["dense"]))
runs = [timed(step, ids) for step in lookups.values()]
show(timing.compare(*runs, repeats=8, names=("dense", "sparse")))

# %% [markdown]
# Both steps change the table alike, and the dense one waits for `AddN` and for the update of all
# rows. **Cure**: `towers.average`, which keeps a sparse gradient sparse, as
# `tf.clip_by_global_norm` does. On GPUs these bytes also cross a link, so a dense gradient costs
# more there.
#
# ## 10. The first step is in the mean
#
# **Symptom**: a short test finds that two devices are slower than one. The first step makes the
# graph. On GPUs it also loads kernels, and cuDNN tries its algorithms. Compare the mean of ten
# steps with their median:

# %% tags=["nbval-ignore-output"]
fresh = timing.measure(timed(make_step(plan.devices)), warmup=0, repeats=10)
print(f"first {1e3 * fresh.seconds[0]:.0f} ms, mean {1e2 * sum(fresh.seconds):.0f} ms,",
      f"median {1e3 * fresh.median:.0f} ms")  # fmt: skip

# %% [markdown]
# **Cure**: warm up, then take the median, as `timing` does ([[15]]). A new shape later in a
# training brings such a step back (patient 5).
#
# ## 11. Two processes, each with as many threads as cores
#
# **Symptom**: two trainings at once take longer than one after the other. Each starts a thread for
# each core, so there are twice as many threads as cores. Below, two processes multiply matrices at
# once, first with all threads, then each **pinned** to a core of its own. They use NumPy, which
# starts quickly:

# %% tags=["nbval-ignore-output"]
for pinned in (False, True):
    rates = lesson_19.two_processes(pinned)
    print("pinned" if pinned else "free  ", *(f"{rate:.0f} products/s" for rate in rates))

# %% [markdown]
# **Cure**: `taskset`, `os.sched_setaffinity`, or fewer threads for each. A process that is pinned
# before TensorFlow starts makes fewer threads by itself. A pinned process cannot move to a free
# core, so pinning loses where a third program is busy. On GPUs the same happens to the inputs of
# several trainings.
#
# ## 12. A change that makes nothing faster
#
# **Symptom**: you made a layer four times as fast, and the step is as slow as before. **Amdahl's
# law** predicts it: if a share s of the step becomes k times as fast, the step becomes
# 1 / (1 − s + s/k) times as fast. Compare the shares of `middle` and `wide`. Then each gets fewer
# units:

# %% tags=["nbval-ignore-output"]
busy = sum(op.length for op in of_one[-1].ops)
for name, by in (("middle", 4), ("wide", 2)):
    share = sum(op.length for op in of_one[-1].ops if name in op.name) / busy
    print(f"{name}: {share:.0%} of the work, so {1 / (1 - share + share / by):.2f} times as fast")
for name, by, widths in (("middle", 4, {"middle": 16}), ("wide", 2, {"wide": 512})):
    changed = make_step(plan.devices[:1], **widths)
    change = whatif.faster(of_one, name, by=by)
    beside(f"{name} {by} times as fast", change, timed(one), timed(changed))

# %% [markdown]
# **Cure**: ask before you work. The law knows shares only, and a replay also knows what waits for
# what. On several devices the work of all adds up to more than the length of the step, so ask the
# replay there. On GPUs it takes for granted that the host starts the kernels early enough: where
# the GPU waits for the host (patient 3), faster kernels gain nothing.
#
# ## Proof: the same steps
#
# A step that does less is faster too. So a cure has to leave the losses as they were. Here are
# three losses of one device. Those of all devices (1), of uneven shards (7), and of variables on
# the host (8), from the same weights, are compared with them:

# %%
def losses(step):
    return [float(step(x, y)) for _ in range(3)]


alone = losses(make_step(plan.devices[:1]))
print("one device  ", *(f"{loss:.3f}" for loss in alone))
others = {"all": {}, "uneven": {"sizes": sizes}, "on the host": {"home": plan.host}}
for name, settings in others.items():
    found = losses(make_step(plan.devices, **settings))
    off = max(abs(a / b - 1) for a, b in zip(found, alone))
    print(f"{name:12} agree to one part in a thousand: {off < 1e-3}")

# %% [markdown]
# ## Predicted and measured
#
# First one more prediction. In [[12]] a step of two devices gained when its gradients were
# colocated with their operations. Fewer bytes crossed then. If that were the reason, a link that
# costs nothing would gain as much. The table below has all changes: how many times as fast the step
# was predicted to be, how many times as fast it was, and how far the prediction was off:

# %% tags=["nbval-ignore-output"]
(apart, of_apart), (together, _) = lesson_19.cut(colocate=False), lesson_19.cut(colocate=True)
beside("gradients colocated", whatif.link(of_apart, 1e11), apart, together)
print(f"\n{'times as fast':28} predicted measured    off")
for name, predicted, measured in table:
    print(f"{name:28} {predicted:9.2f} {measured:8.2f} {predicted / measured - 1:+6.0%}")

# %% [markdown]
# Most predictions are within a tenth on a machine with nothing else to do. Where another program
# has a core, more devices gain less than predicted. What misses on a quiet machine too:
#
# - **A small batch.** The replay assumes that the time of each operation shrinks with the batch. A
#   product of a few rows takes longer for each row, because it reads all weights.
# - **Colocated gradients.** In `cores` mode a link costs nothing already, and yet colocating gains.
#   The reason is another kernel for the gradient of the pool ([[12]]). A replay keeps the kernels
#   that were traced, so it cannot foresee that.
#
# ## Errors, by their message
#
# | the message contains | cause | cure | lesson |
# |---|---|---|---|
# | mapped to multiple devices | two lists of GPUs in a process | a process each | [[04]], [[06]] |
# | Cannot assign a device for operation | the device is not there | list the devices | [[01]] |
# | cannot be modified after being initialized | set too late | set it first | [[00]], [[02]] |
# | OOM when allocating tensor | too much is held | a smaller batch, a split | [[03]], [[12]] |
# | Failed to get convolution algorithm | no memory left for cuDNN | memory growth | [[02]] |
# | Could not start gRPC server | the port is taken | end the old worker | [[17]] |
# | must have the same size and shape | gradients in different orders | the same order | [[09]] |
# | Attempt to convert a value (PerReplica | a value of each replica | `strategy.reduce` | [[07]] |
# | nodes in a cycle | an operation waits for itself | order tasks, not operations | [[14]] |
# | Tensor had NaN values | a replica without examples | `fit.check` | [[07]] |
#
# [Errors, by their message](../docs/errors.md) says more of each. Seven of them are raised here. An
# eighth needs no GPU either, but takes ten seconds: TensorFlow waits for memory before it says OOM.

# %%
for words in errors.RAISED:
    error = errors.raised(words)
    print(f"{type(error).__name__:23}", words if words in str(error) else error)

# %% [markdown]
# ## With your own model
#
# `trace.fit_step` traces a step of any Keras model ([[00]]), and `faster` takes the name of a
# layer. Here is a model with BatchNormalization. Ask the same of the slowest layers of your own:

# %% tags=["nbval-ignore-output"]
layers = keras.layers
with tf.device(first):
    model = keras.Sequential([
        keras.Input([28, 28, 1]), layers.Conv2D(32, 3, name="conv"),
        layers.BatchNormalization(name="norm"), layers.ReLU(), layers.Flatten(), layers.Dense(10)])
    model.compile("sgd", loss_of)
    step = trace.fit_step(model, (tf.reshape(x, [-1, 28, 28, 1])[:210], y[:210]))
print(whatif.explain(step))
for name in ("conv", "norm"):
    print(whatif.faster(step, name, by=2))

# %% [markdown]
# With BatchNormalization, towers of `"sync"` statistics wait for each other at every such layer
# ([[09]]). `explain` shows this as waiting for `norm`. Under MirroredStrategy ([[07]]) the devices
# meet in an all-reduce. Its work begins when the last device comes, and what that one did before is
# what the others waited for.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `replay_over(ops, link)`, the replay by hand with a link. The operations stand in the
# order in which they start, as above. A result from another device arrives `link` seconds after its
# operation has ended. A result from the same device is there at once.

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
# **2.** `lesson_19.patient()` gives a compiled Keras model and its data. Three of the ten causes
# slow its training down. Name them by their numbers. Then write `treat(model, data)`. `treat`
# returns a function that makes one pass over the data, without any of the three, and leaves the
# model with the weights that `lesson_19.fit(model, data)` would give. The check makes four passes,
# each from other weights, and looks at what is done: the model is called on every device, and from
# the second pass on nothing is read again and Python does not call the model. Times are only
# shown.

# %% tags=["exercise"]
causes = {0}


def treat(model, data):
    return lambda: lesson_19.fit(model, data)


checks.treated(treat, causes)

# %% tags=["solution"]
causes = {1, 2, 6}  # one device, an input slower than the step, and run_eagerly=True


def treat(model, data):
    step = towers.train_step(model, model.optimizer, model.loss, plan.devices)
    kept = data.cache()

    def one_pass():
        for x, y in kept:
            step(x, y)

    return one_pass


checks.treated(treat, causes)

# %% [markdown]
# ## What we saw
#
# - Five operations replayed by hand: without the one that took 6 of 15 seconds, the step took 4
#   less.
# - Twelve patients, each with a symptom and a cure: ten causes, a short test (10), and a change in
#   the wrong place (12). Five causes show in the trace of a step (1, 3, 7, 8, 9), and a sixth if
#   the reading is traced too (2). The others need a clock or a count (4, 5, 6, 11).
# - Nine predictions, each beside its measurement, with the misses: a small batch, another kernel.
# - Seven of ten messages, raised on purpose.
#
# ## In practice
#
# Use this when a step is slower than you hoped, before you change anything. It costs three traces,
# and seconds for the replays.
#
# - Put the length of a trace beside the time of a step in your loop. If the loop takes longer, look
#   outside of the step, at patients 2, 4, 5, 6, 10 and 11.
# - If both are long, let `whatif.explain` say which device ran nothing, as in patient 1, or who
#   waited for whom, as in 7 and 9. In 3 it says that the step is too short, and 8 is seen in the
#   bytes that cross.
# - Ask `faster`, `scaled`, `towers` or `link` before you work, and time the change afterwards.
# - For large trainings on GPUs this has been done by *Daydream* (Zhu and others,
#   [2020](../docs/sources.md#daydream)) and *dPRO* (Hu and others,
#   [2022](../docs/sources.md#dpro)).
#
# Next: [[next]].
