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
from mgpu_helpers import devices, pipeline, scaling, timing, towers, trace, whatif
from mgpu_helpers._formatting import table
from mgpu_helpers.lessons import digits, networks
from mgpu_helpers.whatif.changes import Change
from mgpu_helpers.whatif.machine import measured

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from keras_models import built  # noqa: E402

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


def lesson(plan: devices.Plan, network: Any, layout: scaling.Layout) -> Way:
    """Make a step of lessons 09 and 15, with Adam."""
    step = Step(plan, network, layout)
    return Way(step, lambda: trace.session_step(step.session, step.train, step.feed)[1])


def in_stages(plan: devices.Plan, pieces: int, batch: int) -> Way:
    """Make a step of lesson 14, in pieces through two stages."""
    import tensorflow.compat.v1 as tf1

    network = networks.jang(hidden=2400, width=0.5)
    images, labels = digits.load(batch)
    with tf1.Graph().as_default() as graph:
        with tf1.device(plan.host):
            x, y = (tf1.placeholder(each.dtype, each.shape) for each in (images, labels))
        stages = networks.stages(network, ["conv3"], plan.devices)
        order = pipeline.one_forward_one_backward(2, pieces)
        slopes = pipeline.gradients(stages, networks.loss, x, y, order)[1]
        weights = [(slopes[n], w) for stage in stages for n, w in stage.weights.items()]
        fetched = tf1.train.GradientDescentOptimizer(1e-3).apply_gradients(weights)
        start = tf1.global_variables_initializer()
    session = tf1.Session(graph=graph, config=plan.session_config(soft_placement=True))
    session.run(start)
    feed = {x: images, y: labels}
    return Way(lambda: session.run(fetched, feed),
               lambda: trace.session_step(session, fetched, feed)[1])  # fmt: skip


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
    step = towers.train_step(model, "sgd", model.loss, where, batch_norm="average")
    return Way(lambda: step(x, y).numpy(), lambda: trace.function_step(step, x, y)[1])


def wide_of(steps: list[trace.Trace]) -> float:
    return median(op.length for step in steps for op in step.ops if op.name == "wide")


def cases(plan: devices.Plan) -> list[Case]:
    def half(steps):
        return whatif.scaled(steps, 0.5)

    def two(steps):
        return whatif.towers(steps, 2)

    found, layout = [], scaling.Layout
    for network, batch in ((networks.tensorlight(), 64),
                           (networks.jang(hidden=600, width=0.5), 256)):  # fmt: skip
        one = lesson(plan, network, layout(1, batch))
        found.append(Case(f"{network.name}, half the batch", one,
                          lesson(plan, network, layout(1, batch // 2)), half))  # fmt: skip
        found.append(Case(f"{network.name}, two towers", one,
                          lesson(plan, network, layout(2, batch // 2)), two))  # fmt: skip
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
        replays[name] = median(again.errors)
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
