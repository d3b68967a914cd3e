"""A model cut in two: what each device holds, and what micro-batches gain (lessons 12, 13).

python benchmarks/pipeline.py    writes results/pipeline.json
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import _cards as results
from _rounds import enough
from mgpu_helpers import devices, fit, memory, pipeline, trace
from mgpu_helpers.lessons import digits, schedules
from mgpu_helpers.lessons.state import at_rest

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from keras_models import lesson  # noqa: E402

SMALL, LARGE, PIECES, TRACES = 128, 1024, 8, 3


class Step:
    """A training step of the article's network by Keras: on one device, or as `fit.use` is told."""

    def __init__(self, plan: devices.Plan, size: int, optimizer: str, **layout: Any) -> None:
        import keras
        import tensorflow as tf

        self.where = plan.host if layout else plan.devices[0]
        with tf.device(self.where):
            self.model = lesson("jang", 0.25, 7200)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self.model.compile(optimizer, loss, jit_compile=False)
        if layout:
            begin = layout.pop("begin", None)  # the numbers of layers, whose names Keras counts on
            stages = 2 if begin is None else [self.model.layers[i].name for i in begin]
            fit.use(self.model, plan, stages=stages, **layout)
        self.data = digits.load(size)
        self.seconds()

    def seconds(self) -> float:
        import tensorflow as tf

        began = time.perf_counter()
        with tf.device(self.where):
            self.model.train_on_batch(*self.data)
        return time.perf_counter() - began

    def trace(self) -> trace.Trace:
        import tensorflow as tf

        with tf.device(self.where):
            return trace.fit_step(self.model, self.data)


def largest_part(plan: devices.Plan, **layout: Any) -> dict[bool, int]:
    """Give the bytes of the part that holds most: weights, Adam's slots, and the step's peak.

    That is with and without scratch, which a library borrows for one operation at a time. A cut
    does not share it out where one part has all convolutions.
    """
    step = Step(plan, SMALL, "adam", **layout)
    traces = [step.trace() for _ in range(TRACES)]
    weights, slots = at_rest(step.model.weights), at_rest(step.model.optimizer.variables)
    return {
        scratch: max(
            median(memory.by_use(each, device, weights=weights[device], slots=slots[device],
                                 scratch=scratch).total for each in traces)
            for device in plan.devices[: 2 if layout else 1]
        )
        for scratch in (False, True)
    }  # fmt: skip


def allowed(traces: list[trace.Trace], order: list[list[str]]) -> float:
    """Lay out the schedule with what each stage took for the whole batch, in even pieces."""
    pieces, costs = schedules.check(order), []
    for task in ("F0", "B0"):
        took = [{s.stage: s.length for s in pipeline.spans(t) if s.task == task} for t in traces]
        costs.append([median(each[stage] for each in took) / pieces for stage in (0, 1)])
    return max(end for _, end in schedules.run_times(order, *costs).values())


def main() -> None:
    plan = devices.setup(2, exact=True)
    print(plan)
    uncut = Step(plan, LARGE, "sgd")
    whole, half = largest_part(plan), largest_part(plan, pieces=1)
    cut = pipeline.best_cut(uncut.trace(), plan.devices, pipeline.places(uncut.model))
    print(cut)
    names = [layer.name for layer in uncut.model.layers]
    begin = [names.index(start) for start in cut.starts]
    ways: dict[str, dict[str, Any]] = {
        "in one piece": {"pieces": 1},
        "all forward first": {"pieces": PIECES, "schedule": "all forward first"},
        "one forward, one back": {"pieces": PIECES},
    }
    steps = {"uncut": uncut} | {
        name: Step(plan, LARGE, "sgd", begin=begin, **way) for name, way in ways.items()
    }
    taken: dict[str, list[float]] = {name: [] for name in steps}

    def faster(name: str) -> list[float]:
        return [a / b for a, b in zip(taken["in one piece"], taken[name], strict=True)]

    for round_ in enough(lambda: [faster(name) for name in steps], warmup=2):
        for name, step in steps.items():
            seconds = step.seconds()
            if round_ >= 0:
                taken[name].append(seconds)
    rounds = len(taken["uncut"])
    traces = {name: [step.trace() for _ in range(TRACES)] for name, step in steps.items()}
    peaks = {
        name: median(each.peak(plan.devices[0]) for each in traces[name]) for name in traces
    }
    best = "one forward, one back"
    order = pipeline.one_forward_one_backward(2, PIECES)
    bound = median(taken["in one piece"]) / allowed(traces["in one piece"], order)
    others = ("uncut", "all forward first")
    held_of_all = peaks[best] / peaks["all forward first"]
    ratios = [
        results.Ratio("cut in two, largest part of whole", round(half[False] / whole[False], 4),
                      0.65, False),
        results.Ratio("the same with scratch", round(half[True] / whole[True], 4)),
        *(results.Ratio.of(f"{name}, speed-up", faster(name)) for name in others),
        results.Ratio.of(f"{best}, speed-up", faster(best), 1.5),
        results.Ratio.of(f"{best}, of formula", [r / bound for r in faster(best)], 0.85),
        results.Ratio(f"{best}, held of all first", round(held_of_all, 4), 0.5, False),
    ]
    print(f"in one piece: {median(taken['in one piece']) * 1e3:.1f} ms a step of {LARGE}, "
          f"{PIECES} pieces for the others; {rounds} rounds")  # fmt: skip
    print(*ratios, sep="\n")
    numbers = {
        "rounds": rounds,
        "pieces": PIECES,
        "global_batch_size": LARGE,
        "cut_before": list(cut.starts),
        "stage_ms": [round(part.seconds * 1e3, 2) for part in cut.parts],
        "formula_allows": round(bound, 3),
        "bubble": round(1 / (PIECES + 1), 4),  # (p - 1) / (m + p - 1), of two stages
        "step_ms": {name: round(median(seconds) * 1e3, 2) for name, seconds in taken.items()},
        "first_device_held_MB": {name: round(size / 1e6, 1) for name, size in peaks.items()},
        "largest_part_MB": {name: round(each[False] / 1e6, 1)
                            for name, each in (("whole", whole), ("cut", half))},
    }  # fmt: skip
    results.write("pipeline", plan, numbers, ratios)


if __name__ == "__main__":
    main()
