"""Count what each way to train costs on one small Transformer, for the table that grows.

python tools/count_ways.py        writes notebooks/ways.json: bytes and operations, and times

``[[ways]]`` in a lesson's source becomes a table of these rows, up to the lesson's own. Bytes are
those of float32 on CPU devices. A time is a ratio to one device's, the median of several rounds in
which all ways take turns; ways that have more devices than the machine has cores have none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mgpu_helpers import devices, fit, timing, trace
from mgpu_helpers.lessons.compiled import IDLE, functions
from mgpu_helpers.lessons.state import at_rest

ROOT = Path(__file__).resolve().parent.parent
LENGTH, WIDTH, HEADS, BLOCKS, BATCH = 64, 128, 4, 4, 32
ROUNDS = 15
FILE = ROOT / "notebooks" / "ways.json"
#: The lesson without its number, the way, the devices, and the options of `fit.use` and `compile`.
WAYS: list[tuple[str, str, int, dict[str, Any], dict[str, Any]]] = [
    ("meet_your_machine", "one device", 1, {}, {}),
    ("fit_on_all_devices", "shares of the batch, `fit.use`", 2, {}, {}),
    ("compile_what_each_device_does", "shares, compiled", 2, {}, {"jit_compile": True}),
    ("fit_more_into_a_device", "four pieces", 1, {"pieces": 4}, {}),
    ("fit_more_into_a_device", "recompute", 1, {"recompute": True}, {}),
    ("share_out_the_state", "shares, owners", 2, {"state": "owners"}, {}),
    ("split_a_model", "two stages", 2, {"stages": 2}, {}),
    ("pipeline_it", "two stages, four pieces", 2, {"stages": 2, "pieces": 4}, {}),
    ("split_a_layer", "parts of layers", 2, {"layers": "auto"}, {}),
    ("combine_two_ways", "two rows of two stages", 4, {"stages": 2}, {}),
]


def data() -> tuple[np.ndarray, np.ndarray]:
    """Give letters of the project's README, and the letter after each of them."""
    text = (ROOT / "README.md").read_bytes()[: BATCH * LENGTH + 1]
    letters = np.frombuffer(text, np.uint8).astype("int32")
    return letters[:-1].reshape(BATCH, LENGTH), letters[1:].reshape(BATCH, LENGTH)


def build(**how: Any) -> keras.Model:
    """Make a decoder of four blocks that predicts the next letter."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    letters = keras.Input([LENGTH], dtype="int32")
    x = layers.Embedding(256, WIDTH, name="letters")(letters)
    for i in range(BLOCKS):
        y = layers.LayerNormalization(name=f"norm_{i}")(x)
        heads = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name=f"heads_{i}")
        x = layers.Add(name=f"attended_{i}")([x, heads(y, y, use_causal_mask=True)])
        y = layers.LayerNormalization(name=f"norm_up_{i}")(x)
        y = layers.Dense(4 * WIDTH, "relu", name=f"up_{i}")(y)
        y = layers.Dense(WIDTH, name=f"down_{i}")(y)
        x = layers.Add(name=f"block_{i}")([x, y])
    model = keras.Model(letters, layers.Dense(256, name="next")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, **{"jit_compile": False} | how)
    return model


def laid_out(plan: devices.Plan, count: int, options: dict[str, Any], how: dict[str, Any]) -> Any:
    """Make the model and bring it to a layout on so many devices."""
    with tf.device(plan.devices[0]):
        model = build(**how)
        model.optimizer.build(model.trainable_variables)
    if options or count > 1:
        fit.use(model, *([plan.devices[:count]] if count > 1 else []), **options)
    return model


def counted(plan: devices.Plan, model: Any) -> dict[str, int | None]:
    """Count what the fullest device keeps and adds in a step, what crosses, and what is started."""
    with tf.device(plan.devices[0]):
        steps = [trace.fit_step(model, data()) for _ in range(3)]  # threads have another order
    step = min(steps, key=lambda step: max(map(step.peak, plan.devices)))
    kept = at_rest([*model.weights, *model.optimizer.variables])
    return {
        "keeps": max(kept.values()),
        "adds": max(step.peak(device, scratch=False) for device in plan.devices),
        "crosses": sum(step.bytes_between().values()),
        "operations": sum(not (op.type in IDLE or "Var" in op.type) for op in step.ops),
    }


def compiled(counts: dict[str, int | None], model: Any) -> dict[str, int | None]:
    """Count the functions in the place of operations; what they add is XLA's to decide."""
    found, others = functions(model, *data(), batch_size=BATCH, verbose=0)
    return counts | {"adds": None, "operations": len(found) + others}


def times(models: list[Any], measured: list[bool]) -> list[float | None]:
    """Time a step of each model in turn, by the time of the first one; None if not measured."""
    ways = {
        i: partial(model.train_on_batch, *data())
        for i, model in enumerate(models)
        if measured[i]
    }  # fmt: skip
    found = timing.several(ways, warmup=2, repeats=ROUNDS)
    return [
        round(found[i].median / found[0].median, 2) if i in found else None
        for i in range(len(models))
    ]


def rows(plan: devices.Plan) -> Iterator[tuple[dict[str, Any], Any]]:
    """Count each way; give its row, and its model."""
    for lesson, way, count, options, how in WAYS:
        model = laid_out(plan, count, options, how)
        counts = counted(plan, model)
        if how.get("jit_compile"):
            counts = compiled(counts, model)
        yield {"lesson": lesson, "way": way, "devices": count} | counts, model


def main() -> None:
    plan = devices.setup(4)
    found, models = zip(*rows(plan), strict=True)
    cores = os.cpu_count() or 1
    shown = times(list(models), [row["devices"] <= cores for row in found])
    found = [row | {"time": ratio} for row, ratio in zip(found, shown, strict=True)]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in found)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(lines)


if __name__ == "__main__":
    main()
