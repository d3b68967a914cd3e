# %% [markdown]
# # Fit more into a device
#
# Your model trains with a batch of 64, and a batch of 256 ends in an error that says "out of
# memory". A second GPU would have the same trouble.
#
# **In this lesson** one line makes a training step hold much less, and you count what that line
# adds to the computing.
#
# **You will learn** to
# - take a batch in pieces with one update: **accumulation**,
# - compute activations twice in place of keeping them: **recomputation**,
# - keep them in half the bytes: **precision**,
# - tell when none of the three helps.
#
# **You need** [[03]].

# %%
from mgpu_helpers import devices

plan = devices.setup(1)
plan

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from mgpu_helpers import charts, fit, graph, memory, trace
from mgpu_helpers.lessons import digits
from mgpu_helpers.lessons.checks import lesson_10 as checks

device = plan.devices[0]

# %% [markdown]
# ## The lines to paste
#
# Here is a network of ten residual blocks. Each block makes 256 numbers from the 64 that it is
# given, and 64 from these:

# %%
layers, entropy = keras.layers, keras.losses.SparseCategoricalCrossentropy
normal = keras.initializers.RandomNormal


def build():
    keras.utils.set_random_seed(0)
    with tf.device(device):
        given = keras.Input([28, 28, 1])
        x = layers.Dense(64)(layers.Flatten()(given))
        for _ in range(10):
            wide = layers.Dense(256, "relu")(x)
            x = layers.Add()([x, layers.Dense(64, kernel_initializer=normal(stddev=0.02))(wide)])
        scores = layers.Dense(10, dtype=keras.config.floatx())(x)
        model = keras.Model(given, scores)
        model.compile(keras.optimizers.SGD(0.05), entropy(from_logits=True))
    return model


# %% [markdown]
# Each of the three remedies is one line. `fit.accumulate` takes the batch in 4 pieces, and
# `fit.recompute` runs the layers in parts, each but the last twice. Both take the compiled model,
# and `fit.alone(model)` undoes both. The third line stands before the model is built. In `build`,
# `dtype=keras.config.floatx()` keeps the scores in float32, because the loss needs all their
# digits. `model.fit` stays as it was:

# %%
models = {"as it is": build()}
models["accumulated"] = fit.accumulate(build(), 4)
models["recomputed"] = fit.recompute(build())
keras.config.set_dtype_policy("mixed_bfloat16")
models["in bfloat16"] = build()

# %% [markdown]
# How much does a step of `fit` hold, with a batch of 1024 digits? A trace tells, as in [[03]].
# Compare the heights of the curves, and not the times, because tracing slows a step down:

# %% tags=["varies", "cover"]
keras.config.set_dtype_policy("float32")
x, y = digits.load(1024)
figure, axes = plt.subplots(2, 2, figsize=(9, 6), sharey=True)
peaks = {}
for ax, (name, model) in zip(axes.flat, models.items()):
    with tf.device(device):
        step = trace.fit_step(model, (x, y))
    peaks[name] = step.peak(device)
    charts.live_bytes(step, ax).legend().remove()
    ax.set_title(f"{name}, at most {peaks[name] / 1e6:.1f} MB", loc="left")
figure.tight_layout()
plt.show()

# %%
whole = peaks["as it is"]
for name, most in [("accumulated", 40), ("recomputed", 40), ("in bfloat16", 70)]:
    print(f"{name:12} below {most} %:", peaks[name] < most / 100 * whole)
print("the weights below 10 %:", 4 * build().count_params() < 0.1 * whole)

# %% [markdown]
# The curves leave out the weights, which would add 1.5 MB to each. They show mostly
# **activations**: what the forward pass leaves behind for the backward pass. The step as it is
# climbs up to the dashed line. Behind it, it climbs on: gradients of the activations come on top,
# and little is freed yet. In pieces the step climbs four low hills, each with a forward and a
# backward pass, and the dashed line marks the first backward pass. Recomputed it climbs one hill
# for each of its four parts. In bfloat16 it climbs a little over half as high.
#
# | | accumulation | recomputation | precision |
# |---|---|---|---|
# | **use it when** | a smaller batch fits | even a small batch does not | fewer digits do no harm |
# | **it costs** | smaller products | most of a second forward pass | most of the digits |
# | **instead** | the smaller batch | a smaller model | float32 and one of the others |
#
# What do they cost in computing? `graph.flops` counts the multiplications and additions of all
# matrix products in a step:

# %%
forward = graph.flops(build(), batch=1024)
for name, model in models.items():
    count = graph.flops(model.train_step, (x, y))
    print(f"{name:12} {count / 1e9:.2f} GFLOP, {count / forward:.2f} forward passes")

# %% [markdown]
# Only recomputation computes more, by less than a whole forward pass.
#
# ## Precision by hand
#
# Here are a third, a small number and a large one in three types:

# %%
for kind in [tf.float32, tf.bfloat16, tf.float16]:
    third, tiny, large = (float(tf.cast(value, kind)) for value in [1 / 3, 1e-8, 1e5])
    print(f"{kind.name:9} {kind.size} bytes  {third:.7f}  {tiny:.1e}  {large:.0f}")

# %% [markdown]
# A bfloat16 keeps two or three digits of any number. A float16 keeps one more, but a small number
# becomes 0, and a large one infinite. So training in float16 needs a **scaled loss**: the loss is
# multiplied by a large number, and the gradients are divided by it afterwards (Micikevicius and
# others, [2017](../docs/sources.md#mixed)). Keras does this by itself under `mixed_float16`.
#
# "Mixed" means that a layer computes in two bytes and keeps its weights in four, because an update
# is often smaller than the last digit that a bfloat16 has for the weight. So only the activations
# shrink. Fewer digits also change the loss. Here it is for five steps:

# %%
for policy in ["float32", "mixed_bfloat16"]:
    keras.config.set_dtype_policy(policy)
    with tf.device(device):
        history = build().fit(x, y, batch_size=1024, epochs=5, verbose=0).history
    print(f"{policy:14}", *(f"{value:.1f}" for value in history["loss"]))

# %% [markdown]
# To one digit after the point both are the same. That proves nothing for your model: compare the
# first hundred steps there, and the metric that you care about.
#
# ## Accumulation by hand
#
# The gradient of a mean over the batch is the mean of the gradients of its pieces, where each piece
# counts by its share of the examples. So a step may take one piece after the other, add up the
# gradients, and update the weights once. We compute in float64, where rounding cannot hide a
# mistake. `apart` is the largest difference between two lists of arrays, as a share of an array's
# largest entry:

# %%
def apart(ours, theirs):
    pairs = [(np.array(a), np.array(b)) for a, b in zip(ours, theirs)]
    return max(np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in pairs)


keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
model = build()


def gradients_of(x, y):
    with tf.device(device), tf.GradientTape() as tape:
        value = model.loss(y, model(x, training=True))
        return tape.gradient(value, model.trainable_weights)


def accumulated(x, y, sizes):
    added = [tf.zeros_like(weight) for weight in model.trainable_weights]
    for images, labels in zip(tf.split(x, sizes), tf.split(y, sizes)):
        share = images.shape[0] / x.shape[0]
        with tf.control_dependencies(added):
            images = tf.identity(images)
        added = [a + share * g for a, g in zip(added, gradients_of(images, labels))]
    return added


# %% [markdown]
# `control_dependencies` lets a piece begin only when the sum before it is there. Otherwise a graph
# could run the forward passes of all pieces first, and hold them all. Compare with the whole batch:

# %%
reference, one = trace.function_step(gradients_of, x, y)
ours, four = trace.function_step(accumulated, x, y, [256] * 4)
print("gradients equal to 1e-12:", apart(ours, reference) < 1e-12)
print("less than half is held:", four.peak(device) < 0.5 * one.peak(device))

# %% [markdown]
# The gradients are the same, and less is held. A step ends with
# `model.optimizer.apply(added, model.trainable_weights)`, once for all pieces. `fit.accumulate`
# does this within `fit`, also with masks and sample weights. It warns of BatchNormalization, which
# sees only a piece and so gives other numbers.
#
# ## Recomputation by hand
#
# The backward pass of a block needs the inputs of its two products: the 64 numbers that it was
# given, and the 256 in between. Keep the 64, and the 256 can be computed again:
#
# ![Three blocks and what is kept of them. As it is: the 64 numbers before each block and the 256
# within it. Recomputed: the 64, and the 256 only within the block whose gradients are being
# computed.](pictures/10_kept_and_again.svg)
#
# A function under `tf.custom_gradient` returns its result, and a second function. This one is given
# `dy`, the gradient of the result, and computes those of the arguments. Ours keeps `x` and the
# weights, and nothing else:

# %%
def recomputed(block, wait=True):
    @tf.custom_gradient
    def run(x, *weights):
        def gradient(dy):
            with tf.control_dependencies([dy] if wait else []):
                again = tf.identity(x)
            with tf.GradientTape() as tape:
                tape.watch([again, *weights])
                y = block(again, *weights)
            return tape.gradient(y, [again, *weights], dy)

        return block(x, *weights), gradient

    return run


# %% [markdown]
# Try it on ten blocks without Keras. `called` calls a block, either as it is or recomputed:

# %%
random = np.random.default_rng(0)
sides = [[64, 256], [256, 64]] * 10
with tf.device(device):
    kernels = [tf.Variable(random.normal(0, 0.1, side)) for side in sides]


def block(x, wide, back):
    return x + tf.nn.relu(x @ wide) @ back


def slopes(called):
    def gradients(x):
        with tf.device(device), tf.GradientTape() as tape:
            for wide, back in zip(kernels[::2], kernels[1::2]):
                x = called(x, tf.convert_to_tensor(wide), tf.convert_to_tensor(back))
            return tape.gradient(tf.reduce_mean(tf.square(x)), kernels)

    return gradients


# %%
batch = tf.constant(random.normal(size=[1024, 64]))
theirs, plain = trace.function_step(slopes(block), batch)
for name, wait in [("recomputed", True), ("without waiting", False)]:
    ours, step = trace.function_step(slopes(recomputed(block, wait)), batch)
    was, now = (sum("MatMul" in op.type for op in each.ops) for each in (plain, step))
    print(f"{name:15} products {was} -> {now}, equal to 1e-12: {apart(ours, theirs) < 1e-12},",
          f"below 60 %: {step.peak(device) < 0.6 * plain.peak(device)}")  # fmt: skip

# %% [markdown]
# Recomputed, ten products run twice: the first of each block. The gradients are the same, and less
# is held. The last line shows why `again` waits for `dy`: without that, TensorFlow finds that both
# runs of a block compute the same, and keeps the results of the first. Nothing fails, and nothing
# is saved, so look at the peak of a trace, too.
#
# `fit.recompute` does this with the layers of a built model. It takes several blocks as one part,
# because the input of each part is kept. Where this input is about as large as what a block keeps
# inside, a good number of parts is about the square root of the number of blocks (Chen and others,
# [2016](../docs/sources.md#sublinear)).
#
# ## Proof
#
# Train with `fit` for four steps from the same weights. In the end the weights should be equal:

# %%
def trained(model):
    with tf.device(device):
        model.fit(x, y, batch_size=256, shuffle=False, verbose=0)
    return model.get_weights()


end = trained(build())
print("accumulated, equal to 1e-12:", apart(trained(fit.accumulate(build(), 4)), end) < 1e-12)
print("recomputed,  equal to 1e-12:", apart(trained(fit.recompute(build())), end) < 1e-12)

# %% [markdown]
# ## Break it
#
# **Pieces of unequal size that count alike.** Somebody averages the gradients of three pieces, and
# the last of them is small:

# %%
sizes = [500, 500, 24]
several = [gradients_of(*piece) for piece in zip(tf.split(x, sizes), tf.split(y, sizes))]
mean = [sum(three) / 3 for three in zip(*several)]
print("averaged, within 10 %:", apart(mean, reference) < 0.1)
print("by shares, equal to 1e-12:", apart(accumulated(x, y, sizes), reference) < 1e-12)

# %% [markdown]
# Each of the 24 examples counted about twenty times as much as one of the other thousand, and
# nothing failed. This cell is the check: compare unequal pieces with the whole batch.
#
# **A mask that is drawn again.** This dropout sets each number to 0 with a chance of one half, and
# doubles the others. Here it goes through `recomputed`:

# %%
tf.random.set_seed(1)
ones = tf.Variable(tf.ones(10))
with tf.GradientTape() as tape:
    dropped = recomputed(lambda x: tf.nn.dropout(x, 0.5))(tf.convert_to_tensor(ones))
print(*dropped.numpy().astype(int), "gradient", *tape.gradient(dropped, ones).numpy().astype(int))

# %% [markdown]
# Where a number is 2, its gradient has to be 2, but some of these gradients are 0. The second run
# drew another mask, and no error says so. `fit.recompute` gives both runs the same seeds, and
# refuses a layer that draws without a seed. The check is to compare the losses of the first steps
# with the plain model's.
#
# ## When it does not help
#
# Where one large layer holds most, running it twice gains nothing. And where the weights are large
# and the batch is small, a step holds mostly their gradient. Try all three on both. True means that
# the peak fell below 80 %:

# %%
keras.config.set_floatx("float32")
dense, pool = layers.Dense, layers.GlobalMaxPooling2D


def compiled(*stack):
    with tf.device(device):
        model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Dense(10)])
        model.compile("sgd", entropy(from_logits=True))
    return model


def compare(name, size, make):
    keras.config.set_dtype_policy("mixed_bfloat16")
    half = make()
    keras.config.set_dtype_policy("float32")
    held = []
    for model in [make(), fit.recompute(make(), 2), fit.accumulate(make(), 4), half]:
        with tf.device(device):
            held.append(trace.fit_step(model, (x[:size], y[:size])).peak(device))
    again, pieces, half = (peak < 0.8 * held[0] for peak in held[1:])
    print(f"{name:13} recomputed {again}, in pieces {pieces}, in bfloat16 {half}")


compare("large layer", 128, lambda: compiled(dense(64, "relu"), pool(), dense(32, "relu")))
compare("large weights", 16, lambda: compiled(layers.Flatten(), dense(2000)))

# %% [markdown]
# Pieces and bfloat16 help with a large layer. Nothing helps with large weights: pieces add a sum of
# gradients to what is held, and bfloat16 a copy of the weights. Go on with [[11]] or
# [[12]].
#
# ## On GPUs
#
# All of this holds on a GPU. There `mixed_bfloat16` also makes large products faster, from Ampere
# on (A100, RTX 30), and `mixed_float16` already from Volta on (V100, T4). Keras compiles with XLA
# on a GPU, and `fit.accumulate` and `fit.recompute` switch that off, because XLA would choose its
# own order. Pieces that are too small leave a GPU idle, so take the fewest that fit.
#
# ## With a model of another kind
#
# Three Transformer blocks read a digit as 28 rows, with dropout. XLA is off, because with it the
# plain step would draw other masks than the recomputed one. `memory.plan` counts what a step would
# hold with each remedy: the likely number, and in brackets the range that *fits* compares with
# 15 MB. *Work* is what the step would compute, as a multiple of the plain one. The last row, where
# bytes cross between the host and the device, is a remedy of [[11]]:

# %% tags=["nbval-ignore-output"]
def transformer():
    keras.utils.set_random_seed(0)
    with tf.device(device):
        given = keras.Input([28, 28])
        x = layers.Dense(64)(given)
        for _ in range(3):
            y = layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x)
            x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(0.1)(y)]))
            y = layers.Dense(64)(layers.Dense(256, "relu")(x))
            x = layers.LayerNormalization()(layers.Add()([x, y]))
        model = keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))
        model.compile("sgd", entropy(from_logits=True), jit_compile=False)
    return model


memory.plan(transformer(), batch=64, budget=15e6)

# %%
data, held, losses = (x[:64, ..., 0], y[:64]), [], []
for model in [transformer(), fit.recompute(transformer())]:
    with tf.device(device):
        held.append(trace.fit_step(model, data).peak(device))
        losses.append(model.fit(*data, batch_size=32, verbose=0).history["loss"])
print("below 60 %:", held[1] < 0.6 * held[0], "the same loss:", np.allclose(*losses, rtol=1e-5))

# %% [markdown]
# Pieces fit, and so does recomputation, with more work. Recomputed, the peak fell indeed, and the
# loss is the same, so dropout drew the same masks.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** A model has `blocks` equal blocks. Plain training keeps `inside` bytes of each until the
# backward pass. Recomputed in parts, it keeps `crossing` bytes for every part all the time, and
# while a part runs again, `inside` bytes for each block of this part. The parts are as equal as
# whole blocks allow. Write `best(blocks, inside, crossing)`, the smallest number of parts that
# holds least.

# %% tags=["exercise"]
def best(blocks, inside, crossing):
    return round(blocks**0.5)


checks.best(best)

# %% tags=["solution"]
def best(blocks, inside, crossing):
    def held(parts):
        return parts * crossing + -(-blocks // parts) * inside

    return min(range(1, blocks + 1), key=held)


checks.best(best)

# %% [markdown]
# **2.** Write `drop(x, seed)`, a dropout that may run twice. It keeps about half of the numbers,
# doubled, and draws for each number on its own. `seed` holds two whole numbers. The same seed gives
# the same mask, and another seed another mask. (Look among the functions of `tf.random` whose names
# begin with `stateless`.)

# %% tags=["exercise"]
def drop(x, seed):
    return tf.nn.dropout(x, 0.5)


checks.drop(drop)

# %% tags=["solution"]
def drop(x, seed):
    kept = tf.random.stateless_uniform(tf.shape(x), seed) < 0.5
    return tf.where(kept, 2 * x, tf.zeros_like(x))


checks.drop(drop)

# %% [markdown]
# ## What we saw
#
# - In four pieces, or recomputed, a step held below 40 % of what it had held, and in bfloat16 below
#   70 %.
# - Recomputed, a step computed as much as 3.48 forward passes, where the others computed 2.87.
# - In pieces and recomputed, weights were equal to 1e-12 after training. In bfloat16 the loss
#   was the same to one digit after the point.
# - Without waiting nothing was saved. With a new mask, or with unequal pieces that count alike,
#   gradients were wrong. Nothing raised an error.
# - Where the weights were large, none of the three helped.
#
# ## In practice
#
# Take bfloat16 first where the loss allows it, because it keeps the batch whole and computes
# nothing twice. Then take pieces. Where one piece is still too large, recompute it, too:
# `fit.accumulate(fit.recompute(model), 4)`.
#
# Next: [[next]].
