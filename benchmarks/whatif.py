"""A step replayed from its trace: beside what was traced, and beside changes that were made.

python benchmarks/whatif.py    writes results/whatif.json

What a replay predicts of a change is compared with the change itself, timed in turn with the step
as it was. On a machine that does other work too, a thread waits for its core in the middle of a
step: such a trace is longer than its replay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import _cards as results
from _rounds import compare
from _steps import Step
from mgpu_helpers import devices, fit, scaling, timing, trace, whatif
from mgpu_helpers._formatting import table
from mgpu_helpers.lessons import digits, networks
from mgpu_helpers.whatif.changes import Change
from mgpu_helpers.whatif.machine import measured

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from keras_models import built  # noqa: E402
from keras_models import lesson as keras_lesson  # noqa: E402

TRACES, WARMUP = 3, 1
CLOSE, CHANGE, EXPLAINED = 0.02, 0.10, 2.0  # targets: two errors, and seconds
KERAS = "residual", 32  # and its batch size


class Way(NamedTuple):
    """A step that can be run and traced."""

    run: Callable[[], Any]
    trace: Callable[[], trace.Trace]


class Case(NamedTuple):
    """A change of a step: as it is, as it is then, and what is asked of its traces."""

    name: str
    before: Way
    after: Way
    ask: Callable[[list[trace.Trace]], Change]


def lesson(plan: devices.Plan, network: Any, setting: scaling.Setting) -> Way:
    """Make a step of lessons 07 and 19, with Adam."""
    step = Step(plan, network, setting)
    return Way(step, lambda: trace.session_step(step.session, step.train, step.feed)[1])


def in_stages(plan: devices.Plan, pieces: int, batch: int) -> Way:
    """Make a step of lesson 13, in pieces through two stages."""
    import keras
    import tensorflow as tf

    with tf.device(plan.host):
        model = keras_lesson("jang", 0.5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3), loss, jit_compile=False)
    third = [layer.name for layer in model.layers if "conv" in layer.name][2]
    fit.use(model, plan, stages=[third], pieces=pieces)
    data = digits.load(batch)
    return Way(lambda: model.train_on_batch(*data), lambda: trace.fit_step(model, data))


def two_layers(plan: devices.Plan, width: int) -> Way:
    """Make a step of two devices in which one operation, "wide", can be made smaller."""
    import tensorflow as tf

    x, wide, y = (tf.random.uniform(shape) for shape in ((512, width), (width, 512), (512, 2048)))
    deep = tf.random.uniform([2048, 512])

    @tf.function
    def step():
        with tf.device(plan.devices[0]):
            first = tf.nn.relu(tf.linalg.matmul(x, wide, name="wide"))
        with tf.device(plan.devices[1]):
            second = tf.linalg.matmul(tf.linalg.matmul(y, deep), first)
        with tf.device(plan.devices[0]):
            return tf.reduce_sum(tf.linalg.matmul(second, first))

    return Way(lambda: step().numpy(), lambda: trace.function_step(step)[1])


def by_keras(name: str, where: tuple[str, ...], batch: int) -> Way:
    """Make a training step of a Keras model in towers on these devices."""
    model, x, y = built(name, batch, "sgd")
    fit.use(model, where, synchronized=False)
    return Way(lambda: model.train_on_batch(x, y), lambda: trace.fit_step(model, (x, y)))


def wide_of(steps: list[trace.Trace]) -> float:
    return median(op.length for step in steps for op in step.ops if op.name == "wide")


def cases(plan: devices.Plan) -> list[Case]:
    def half(steps):
        return whatif.towers(steps, 1, batch=0.5)

    def two(steps):
        return whatif.towers(steps, 2)

    found, setting = [], scaling.Setting
    for network, batch in ((networks.tensorlight(), 64),
                           (networks.jang(hidden=600, width=0.5), 256)):  # fmt: skip
        one = lesson(plan, network, setting(1, batch))
        found.append(Case(f"{network.name}, half the batch", one,
                          lesson(plan, network, setting(1, batch // 2)), half))  # fmt: skip
        found.append(Case(f"{network.name}, two towers", one,
                          lesson(plan, network, setting(2, batch // 2)), two))  # fmt: skip
    for pieces in (1, 4):
        found.append(Case(f"two stages, {pieces} in flight, half the batch",
                          in_stages(plan, pieces, 256), in_stages(plan, pieces, 128),
                          half))  # fmt: skip
    slow, quick = two_layers(plan, 4096), two_layers(plan, 512)
    found.append(Case("two devices, one operation faster", slow, quick, lambda steps: whatif.faster(
        steps, "^wide$", by=wide_of(steps) / wide_of([quick.trace() for _ in range(TRACES)])
    )))  # fmt: skip
    name, batch = KERAS
    one = by_keras(name, plan.devices[:1], batch)
    found.append(Case(f"{name}, half the batch", one,
                      by_keras(name, plan.devices[:1], batch // 2), half))  # fmt: skip
    found.append(Case(f"{name}, two towers", one, by_keras(name, plan.devices[:2], batch), two))
    return found


def main() -> None:
    plan = devices.setup(2, exact=True)
    print(plan, measured(), sep="\n", flush=True)
    replays, rows = {}, []
    made = cases(plan)
    for done, (name, before, after, ask) in enumerate(made):
        for _ in range(WARMUP):
            before.run()
        steps = [before.trace() for _ in range(TRACES)]
        again, change = whatif.replay(steps), ask(steps)
        replays[name] = again.ratio - 1
        real = compare(before.run, after.run, warmup=WARMUP, share=1 / (len(made) - done))
        error = change.ratio / real.ratio - 1
        rows.append((name, replays[name], change, real, error))
        print(f"{name}: {again}; {change}; measured {real.ratio:.2f}: {error:+.1%}", flush=True)
    model, x, y = built("mobilenet")
    step = trace.function_step(model.train_on_batch, x, y)[1]
    explained = timing.measure(lambda: whatif.explain(step), warmup=0, repeats=TRACES).seconds
    lines = [("change", "replay", "times as fast, predicted", "measured", "error")]
    lines += [(name, f"{off:+.1%}", f"{change.ratio:.2f}", f"{real.ratio:.2f}", f"{error:+.1%}")
              for name, off, change, real, error in rows]  # fmt: skip
    print(*table(lines), sep="\n")
    off = [abs(error) for error in replays.values()]
    missed = [abs(row[-1]) for row in rows]
    ratios = [
        results.Ratio.of("replay of a trace, error", off, CLOSE, at_least=False),
        results.Ratio("replay of a trace, largest error", round(max(off), 4)),
        results.Ratio.of("change predicted, error", missed, CHANGE, at_least=False),
        results.Ratio("change predicted, largest error", round(max(missed), 4)),
        results.Ratio.of("a step of MobileNetV2 explained, s", explained, EXPLAINED,
                         at_least=False),
    ]  # fmt: skip
    print(*ratios, sep="\n")
    machine = measured()
    results.write("whatif", plan, {
        "traces": TRACES, "operations_explained": len(step.ops),
        "operation_us": round(machine.operation * 1e6, 2), "wake_us": round(machine.wake * 1e6, 1),
        "changes": [
            {"change": name, "traced_replay_error": round(off, 4),
             "predicted_ratio": round(change.ratio, 3), "measured_ratio": round(real.ratio, 3),
             "measured_low": round(real.low, 3), "measured_high": round(real.high, 3),
             "error": round(error, 4), "pairs": len(real.ratios)}
            for name, off, change, real, error in rows
        ],
    }, ratios)  # fmt: skip


if __name__ == "__main__":
    main()
