"""Say what each all-reduce of a step waits for, and train with gradients in packs and in one.

As a script it does so as one worker of several, on whatever devices there are.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from keras_models import keras, tf
from mgpu_helpers.fit._islands import Compiled

LAYERS, UNITS = 6, 32  # a gradient of a layer has 4 KiB and a bias
LARGE = 512  # one of 1 MiB


def made(strategy: Any, size: int, units: int = UNITS) -> Any:
    """Make a model whose gradients are exchanged in packs of so many bytes, 0 for one pack."""
    strategy.packs = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=size)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(units, "tanh") for _ in range(LAYERS)]
        model = keras.Sequential([keras.Input([units]), *layers])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    return model


def waits(strategy: Any, size: int, compiled: bool = False) -> list[int]:
    """Give how many products of the backward pass each all-reduce of gradients waits for.

    compiled: of large layers, how many compiled functions it waits for.
    """
    units = LARGE if compiled else UNITS
    model, x = made(strategy, size, units), tf.ones([4, units])
    step = tf.function(lambda: strategy.run(model.train_step, [(x, x)]))
    if compiled:
        step = Compiled(step, strategy.extended.worker_devices).run
    graph, found = step.get_concrete_function().graph, []
    for op in graph.get_operations():
        if op.type == "CollectiveReduceV2" and op.inputs[0].shape.num_elements() != 1:
            seen: set[str] = set()
            left = [op]
            while left:
                each = left.pop()
                if each.name not in seen:
                    seen.add(each.name)
                    left += [*each.control_inputs, *(t.op for t in each.inputs)]
            if compiled:
                found.append(sum("Call" in name for name in seen))
                continue
            names = [name.rpartition("/")[2] for name in seen if "gradient_tape" in name]
            found.append(sum(name.startswith("MatMul") for name in names))
    return found


def main() -> None:
    from mgpu_helpers import fit

    strategy = fit.strategy()
    x = np.random.default_rng(0).normal(size=[24, UNITS]).astype("float32")
    weights = []
    for size in (0, 8000):
        model = made(strategy, size)
        model.fit(x, x, batch_size=8, epochs=2, verbose=0)
        weights.append(model.get_weights())
    same = all(map(np.allclose, *weights))
    with strategy.scope():  # a pack has one type
        wide = keras.layers.Dense(2, dtype="float64")
        two = keras.Sequential([keras.Input([UNITS]), keras.layers.Dense(2), wide])
        two.compile("adam", "mse")
    two.fit(x, x[:, :2], verbose=0)
    model.steps_per_execution = 2
    try:
        said = bool(model.fit(x, x, verbose=0)) and "nothing"
    except ValueError as error:
        said = str(error)
    model.steps_per_execution = 1
    data = tf.data.Dataset.from_tensors((x, x))
    try:
        model.fit(strategy.distribute_datasets_from_function(lambda context: data), verbose=0)
    except ValueError as error:
        said += str(error)
    found = {"one": waits(strategy, 0), "packs": waits(strategy, 8000), "same": same}
    found |= {"in a loop": "steps_per_execution=2" in said, "parts": "data of its own" in said}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
