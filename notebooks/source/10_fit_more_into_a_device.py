# %% [markdown]
# # Fit more into a device
#
# Your model trains with a batch of 64, and a batch of 256 ends in an error that says "out of
# memory".
#
# **In this lesson** one line makes a training step hold much less, and you count whether it then
# computes more.
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

plan = devices.setup(1, exact=True)
plan

# %%
import keras
import numpy as np
import tensorflow as tf

from mgpu_helpers import fit, graph, memory, trace
from mgpu_helpers.lessons import digits, drawings, remedies
from mgpu_helpers.lessons.checks import lesson_10 as checks

device = plan.devices[0]

# %% [markdown]
# ## The lines to paste
#
# Here is a network of ten residual blocks. Each block turns 64 numbers into 256, and these into 64:

# %%
layers, entropy = keras.layers, keras.losses.SparseCategoricalCrossentropy
normal = keras.initializers.RandomNormal


def build(policy="float32"):
    keras.config.set_floatx("float64" if policy == "float64" else "float32")  # for the proofs
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(0)
    with tf.device(device):
        given = keras.Input([28, 28, 1])
        x = layers.Dense(64)(layers.Flatten()(given))
        for _ in range(10):
            wide = layers.Dense(256, "relu")(x)
            x = layers.Add()([x, layers.Dense(64, kernel_initializer=normal(stddev=0.02))(wide)])
        scores = layers.Dense(10, dtype=keras.config.floatx())(x)
        model = keras.Model(given, scores, name="ten_blocks")
        model.compile(keras.optimizers.SGD(0.05), entropy(from_logits=True), jit_compile=False)
    return model


# %% [markdown]
# Each of the three remedies is one line. `pieces=4` takes the batch in 4 pieces. `recompute=True`
# cuts the layers into parts, here four, and runs each part but the last twice. In both lines
# `fit.use` takes the compiled model, and `fit.alone(model)` undoes it. The third line comes before
# the model is built: `keras.config.set_dtype_policy("mixed_bfloat16")`, here in `build`, where
# `dtype=` keeps the scores in float32, because the loss needs more digits:

# %%
models = {"as it is": build()}
models["accumulated"] = fit.use(build(), pieces=4)
models["recomputed"] = fit.use(build(), recompute=True)
models["in bfloat16"] = build("mixed_bfloat16")

# %% [markdown]
# A batch of 1024 digits, 3.2 MB, leaves 10 MB of a device free. Which of the three is enough?
# `memory.plan` estimates what a step with each holds beside the batch, weights included. Under
# *held, about* stands the estimate of the peak, and in brackets its range over possible orders
# of operations. *fits* says whether all of this range is within 10 MB (yes), some of it (perhaps)
# or nothing (no). *work* estimates what the step computes, as a multiple of the plain step. Ignore
# the last row until [[11]]:

# %% tags=["nbval-ignore-output"]
memory.plan(models["as it is"], batch=1024, budget=10e6)

# %% [markdown]
# Only 6 pieces surely fit. But small pieces leave a GPU idle, so take the fewest that fit: a
# traced step ([[03]]) tells whether 4 do, and whether a *perhaps* fits. Here is a step of each
# model:

# %% tags=["varies", "cover"]
x, y = digits.load(1024)
with tf.device(device):
    steps = {name: trace.fit_step(model, (x, y)) for name, model in models.items()}
drawings.hills(steps, device)

# %% [markdown]
# The curves show mostly two things: **activations**, which the forward pass leaves behind for the
# backward pass, and gradients.
#
# - As it is, the curve falls in the backward pass; on cores it climbs first: TensorFlow leaves some
#   gradients of weights until the end, and keeps what these need, activations and their gradients.
# - Accumulated, each piece is a hill. Between two hills the sum of gradients is held.
# - Recomputed, each part is a hill, the last part first. Before each other part runs backward, it
#   runs forward a second time.
# - In bfloat16 more than half stays, because copies of the batch and of the weights in two bytes
#   are added.
#
# The curves leave out the batch and the weights. Does each step fit when the weights are added?

# %%
weights = 4 * models["as it is"].count_params()
for name, step in steps.items():
    print(f"{name:12} fits into 10 MB:", step.peak(device) + weights <= 10e6)

# %% [markdown]
# So four pieces or recomputation are enough, but bfloat16 alone is not.
#
# | | accumulation | recomputation | precision |
# |---|---|---|---|
# | **use it when** | a smaller batch fits | even a small batch does not | fewer digits do no harm |
# | **it costs** | smaller products | most of a second forward pass | 7 digits become 2 or 3 |
# | **or take** | the smaller batch | a smaller model | one of the others, in float32 |
#
# Do the remedies compute more? `graph.flops` counts the multiplications and additions of matrix
# products, the same in bfloat16:

# %%
forward = graph.flops(models["as it is"], batch=1024)
for name in ["as it is", "accumulated", "recomputed"]:
    count = graph.flops(models[name].train_step, (x, y))
    print(f"{name:12} {count / 1e9:.2f} GFLOP, {count / forward:.2f} forward passes")

# %% [markdown]
# Only recomputation computes more than the plain step, by 0.61 forward passes; the plan's *work*
# only estimated this. The last part runs only once: its results are still there. The last product
# of each other part runs once, too, because no gradient needs its result.
#
# ## Accumulation by hand
#
# The gradient of a mean over the batch is the mean of the gradients of its pieces, where each piece
# counts by its share of the examples. So a step may take one piece after the other, add up the
# gradients, and update the weights once. In float64 rounding cannot hide a mistake. `apart` is the
# largest difference between two lists of arrays, as a share of an array's largest entry:

# %%
def apart(ours, theirs):
    pairs = [(np.array(a), np.array(b)) for a, b in zip(ours, theirs)]
    return max(np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in pairs)


model = build("float64")


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
# could run all forward passes first, and hold what they leave. Compare with the whole batch:

# %%
reference, one = trace.function_step(gradients_of, x, y)
ours, four = trace.function_step(accumulated, x, y, [256] * 4)
print("gradients equal to 1e-12:", apart(ours, reference) < 1e-12)
print("less than half is held:", four.peak(device) < 0.5 * one.peak(device))

# %% [markdown]
# Uneven pieces are why `share` is there: without it, pieces of 500, 500 and 24 would let each of
# the 24 count 21 times as much as each of the others. A training step then ends with one update for
# all pieces, `model.optimizer.apply(added, model.trainable_weights)`. `fit.use` does all this
# within `fit`, also with masks and sample weights.
#
# **BatchNormalization** sees only a piece and so gives other numbers. `fit.use` warns of it.
#
# ## Recomputation by hand
#
# The backward pass of a block needs the inputs of its two products: the 64 numbers that it was
# given, and the 256 in between. If we keep the 64, we can compute the 256 again:
#
# ![Three blocks and what is kept of them. As it is: the 64 numbers before each block and the 256
# within it. Recomputed: the 64, and the 256 only within the block whose gradients are being
# computed.](pictures/10_kept_and_again.svg)
#
# A function under `tf.custom_gradient` returns its result, and a second function. The second gets
# `dy`, the gradient of the result, and returns the gradients of the arguments. Our function keeps
# only `x` and the weights:

# %%
def recomputed(block, wait=True):
    @tf.custom_gradient
    def run(x, *weights):
        def gradient(dy):
            with tf.control_dependencies([dy] if wait else []):  # explained below
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
          f"peak {step.peak(device) / plain.peak(device):.1f} of the plain one")  # fmt: skip

# %% [markdown]
# Ten products run twice, the first of each block. The last line shows why `again` waits for `dy`:
# without that, TensorFlow finds that both runs of a block compute the same, and keeps the results
# of the first. No error says so.
#
# `recompute=True` does this with the layers of a built model. It takes several blocks as one part.
# Few parts keep few inputs, but each recomputes much at a time. So a model of n blocks is cut into
# about √n parts (Chen and others, [2016](../docs/sources.md#sublinear)).
#
# ## Precision by hand
#
# Here are a third, a small and a large number in three types:

# %%
for kind in [tf.float32, tf.bfloat16, tf.float16]:
    third, tiny, large = (float(tf.cast(value, kind)) for value in [1 / 3, 1e-8, 1e5])
    print(f"{kind.name:9} {kind.size} bytes  {third:.7f}  {tiny:.1e}  {large:.0f}")

# %% [markdown]
# A bfloat16 keeps two or three digits of any number. A float16 keeps one more, but a small number
# becomes 0, and a large one infinite. So training in float16 needs a **scaled loss**: the loss is
# multiplied by a large number, and later the gradients are divided by it (Micikevicius and others,
# [2017](../docs/sources.md#mixed)). Keras does this by itself under `mixed_float16`.
#
# "Mixed" means that a layer computes in two bytes and keeps its weights in four, because an update
# is often too small to change a bfloat16 weight. So only activations shrink. How much do fewer
# digits change the loss of five steps?

# %%
for name in ["as it is", "in bfloat16"]:
    with tf.device(device):
        history = models[name].fit(x, y, batch_size=1024, epochs=5, verbose=0).history
    print(f"{name:11}", *(f"{value:.1f}" for value in history["loss"]))

# %% [markdown]
# To one decimal nothing changes. That proves nothing for your model: compare its first hundred
# steps, and the metric that you care about.
#
# ## Proof
#
# After two steps of `fit` from the same weights, in float64, the weights should be equal:

# %%
def trained(model):
    with tf.device(device):
        model.fit(x[:512], y[:512], batch_size=256, shuffle=False, verbose=0)
    return model.get_weights()


end = trained(model)
pieces = fit.use(build("float64"), pieces=4)
twice = fit.use(build("float64"), recompute=True)
print("accumulated, equal to 1e-12:", apart(trained(pieces), end) < 1e-12)
print("recomputed,  equal to 1e-12:", apart(trained(twice), end) < 1e-12)

# %% [markdown]
# ## Break it
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
# Where a number is 2, its gradient has to be 2, but five of the six are 0. The second run drew
# another mask, and no error says so. `fit.use` gives both runs the same seeds, and refuses a layer
# that draws without a seed. To check, compare the first losses with those of the plain model.
#
# ## When it does not help
#
# Where one large layer holds most of the memory, recomputation gains little or needs more. And
# where the weights are large and the batch is small, a step holds mostly their gradients. The next
# cell tries all three on a model of each kind, and prints peaks as shares of the plain peak:

# %% tags=["nbval-ignore-output"]
dense, pool = layers.Dense, layers.GlobalMaxPooling2D


def compiled(*stack):
    with tf.device(device):
        model = keras.Sequential([keras.Input([28, 28, 1]), *stack, layers.Dense(10)])
        model.compile("sgd", entropy(from_logits=True), jit_compile=False)
    return model


large = {
    "layer": (128, lambda: compiled(dense(64, "relu"), pool(), dense(32, "relu"))),
    "weights": (16, lambda: compiled(layers.Flatten(), dense(2000))),
}
for name, (size, make) in large.items():
    remedies.compare(f"large {name}", make, (x[:size], y[:size]))

# %% [markdown]
# With a large layer, take pieces or bfloat16. With large weights none of the three helps: pieces
# add a sum of gradients, and bfloat16 a copy of the weights. Go on with [[11]] or [[12]].
#
# ## With a model of another kind
#
# Two Transformer blocks read a digit as 28 rows, with dropout:

# %%
def transformer():
    keras.utils.set_random_seed(0)
    with tf.device(device):
        given = keras.Input([28, 28])
        x = layers.Dense(64)(given)
        for _ in range(2):
            y = layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x)
            x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(0.1)(y)]))
            y = layers.Dense(64)(layers.Dense(256, "relu")(x))
            x = layers.LayerNormalization()(layers.Add()([x, y]))
        model = keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))
        model.compile("sgd", entropy(from_logits=True), jit_compile=False)
    return model

# %%
data, held, losses = (x[:64, ..., 0], y[:64]), [], []
for model in [transformer(), fit.use(transformer(), recompute=True)]:
    with tf.device(device):
        held.append(trace.fit_step(model, data).peak(device))
        losses.append(model.fit(*data, batch_size=32, verbose=0).history["loss"])
print("peak below 60 %:", held[1] < 0.6 * held[0])
print("the same loss:", np.allclose(*losses, rtol=1e-5))

# %% [markdown]
# The loss is the same, so dropout drew the same masks.
#
# ## On GPUs
#
# On a GPU `mixed_bfloat16` also makes large products faster from Ampere on (A100, RTX 30), and
# `mixed_float16` from Volta on (V100, T4). XLA compiles there what each device does, in every
# layout. The models here do without it: it would change their peaks, and the masks of dropout.
#
# ## On your own
#
# Under each exercise is its solution. It stays closed until you click *1 cell hidden*.
#
# **1.** Write `fewest(batch, room, fixed, added, example)`: the smallest number of pieces with
# which a step fits into `room` bytes. It holds `fixed` bytes, `example` bytes for each example of
# the largest piece, and from two pieces on `added` bytes for the sum of gradients. The pieces are
# as equal as whole examples allow. Return 0 where nothing fits.

# %% tags=["exercise"]
def fewest(batch, room, fixed, added, example):
    return batch * example // (room - fixed)


checks.fewest(fewest)

# %% tags=["solution"]
def fewest(batch, room, fixed, added, example):
    def held(pieces):
        return fixed + (added if pieces > 1 else 0) + -(-batch // pieces) * example

    return next((pieces for pieces in range(1, batch + 1) if held(pieces) <= room), 0)


checks.fewest(fewest)

# %% [markdown]
# **2.** Write `drop(x, seed)`, a dropout that may run twice. It keeps about half of the numbers,
# doubled, and draws for each number on its own. `seed` holds two whole numbers. The same seed gives
# the same mask, and another seed another mask. (Look for `stateless` in `tf.random`.)

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
# - In four pieces, or recomputed, a step fitted into 10 MB beside the batch, and in bfloat16 alone
#   it did not.
# - A step computed 3.48 forward passes when recomputed, and 2.87 as it is or in pieces.
# - In pieces and recomputed, weights were equal to 1e-12 after training. In bfloat16 the loss was
#   the same to one decimal.
# - Recomputation that did not wait saved nothing, and with a mask that was drawn again gradients
#   were wrong. Nothing raised an error.
# - Where the weights were large, none of the three helped.
#
# ## In practice
#
# Take bfloat16 first where the loss allows it, because it keeps the batch whole and computes
# nothing twice. If that is not enough, take pieces. Where one piece is still too large, recompute
# it, too: `fit.use(model, pieces=4, recompute=True)`.
#
# Next: [[next]].
