"""The models of lesson 08, always with the same weights at the start, and what it counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons import digits
from mgpu_helpers.trace import Trace


def digits_model() -> Any:
    """Make a compiled network of two convolutions for digits, with its optimizer built."""
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(0)
    convolutions = [layers.Conv2D(n, 5, strides=2, activation="relu") for n in (16, 32)]
    model = keras.Sequential(
        [keras.Input([28, 28, 1]), *convolutions, layers.Flatten(), layers.Dense(10)]
    )
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), entropy)
    model.optimizer.build(model.trainable_variables)
    return model


def norm_model(synchronized: bool = False) -> Any:
    """Make a compiled network of 784 inputs with a BatchNormalization called norm."""
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(0)
    norm = layers.BatchNormalization(momentum=0.5, synchronized=synchronized, name="norm")
    model = keras.Sequential([keras.Input([784]), layers.Dense(3), norm, layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def one_weight() -> Any:
    """Make the compiled model of one weight, which is 1."""
    import keras

    weight = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input([1]), weight])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def brighter() -> Any:
    """Give a dataset of 840 digits, brighter from image to image, for `norm_model`."""
    import tensorflow as tf

    images, labels = digits.load(840)
    light = np.linspace(0.2, 2, 840, dtype="float32")[:, None]
    return tf.data.Dataset.from_tensor_slices((images.reshape(840, 784) * light, labels / 9))


def ramp(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Give so many rising numbers, and the answer 0 for each, for `one_weight`."""
    x = np.linspace(0.5, 2, count, dtype="float32").reshape(-1, 1)
    return x, 0 * x


def three_epochs(model: Any, batch: int, *examples: np.ndarray) -> float:
    """Give the weight of `one_weight` after three passes, from 1, without shuffling."""
    import tensorflow as tf

    model.set_weights([np.ones([1, 1])])
    data = tf.data.Dataset.from_tensor_slices(examples).batch(batch)
    model.fit(data.repeat(), steps_per_epoch=3 * len(data), verbose=0)  # one iterator for all
    return model.get_weights()[0].item()


def three_steps(model: Any) -> str:
    """Say the losses of three steps of `norm_model` on `brighter`, and what replicas then hold.

    These are the moving variances of each, and what each predicts of the first image.
    """
    import tensorflow as tf

    data = brighter().batch(840).repeat()
    losses = model.fit(data, epochs=3, steps_per_epoch=1, verbose=0).history["loss"]
    strategy = model.distribute_strategy
    image, _ = next(iter(brighter().batch(1)))
    predict = tf.function(lambda: strategy.run(model, args=(image,)))
    predicted = np.ravel(strategy.experimental_local_results(predict())).round(2)
    copies = strategy.experimental_local_results(model.get_layer("norm").moving_variance.value)
    variances = " ".join(str(np.round(copy, 2)) for copy in copies)
    return f"losses {np.round(losses, 3)}  variances {variances}  predicts {predicted}"


def shards(strategy: Any, size: int) -> list[int]:
    """Count the examples that each replica of a strategy gets of a batch of so many."""
    import tensorflow as tf

    data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(size).batch(size))
    return [len(part) for part in strategy.experimental_local_results(next(iter(data)))]


def convolutions(step: Trace) -> dict[str, int]:
    """Count the convolutions that each device of the plan computed in a step."""
    plan = planned()
    found = Counter(op.device for op in step.ops if "Conv2D" in op.type)
    return {device: found[device] for device in (plan.host, *plan.devices)}


def print_crossing(step: Trace) -> None:
    """Print what crossed in a step, in kB, without what is less than half a kB."""
    for (source, target), size in step.bytes_between().items():
        if size > 500:
            print(f"  {source} -> {target}  {size / 1e3:.0f} kB")


def kinds(step: Trace) -> list[str]:
    """List the kinds of all-reduce that a step's graph asks for."""
    return sorted({each.by for each in step.collectives} - {""})


def difference(weights: list[np.ndarray], others: list[np.ndarray]) -> float:
    """Give the largest difference of any weight, as a share of the largest of its variable."""
    pairs = zip(weights, others, strict=True)
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs if b.any())


def life(strategy: Any, model: Any, data: Any, steps: int) -> tuple[float, float]:
    """Give the seconds of some steps of `fit` on a new iterator, and those until it has ended."""
    begin = time.perf_counter()
    batches = iter(strategy.experimental_distribute_dataset(data))
    for _ in range(steps):
        model.train_function(batches)
    stepped = time.perf_counter()
    del batches
    return stepped - begin, time.perf_counter() - begin


def iterators(strategy: Any, function: Callable[[], Any]) -> int:
    """Count the iterators of distributed datasets that a call of the function makes."""
    import tensorflow as tf

    kind = type(strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(8)))
    with mock.patch.object(kind, "__iter__", autospec=True, side_effect=kind.__iter__) as made:
        function()
    return made.call_count
