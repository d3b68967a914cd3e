"""A model cut in two: what each device holds, and what micro-batches gain (lessons 12, 14).

python benchmarks/pipeline.py    writes results/pipeline.json
"""

from __future__ import annotations

import time
from statistics import median

import _cards as results
from _rounds import enough
from mgpu_helpers import devices, memory, pipeline, trace
from mgpu_helpers.lessons import digits, networks, schedules

NETWORK = networks.jang(hidden=7200, width=0.25)
ARTICLE, LAYERS = ["fc1"], ["conv1", "conv2", "conv3", "fc1", "output"]
SMALL, LARGE, PIECES, TRACES = 128, 1024, 8, 3


class Step:
    """A training step of the network, cut and in pieces, in a Session of its own."""

    def __init__(self, plan: devices.Plan, starts, schedule, size: int, optimizer: str) -> None:
        import tensorflow.compat.v1 as tf1

        where = plan.devices[: len(starts) + 1]
        with tf1.Graph().as_default() as graph:
            with tf1.device(plan.host):
                x = tf1.placeholder(tf1.float32, [None, 28, 28, 1])
                y = tf1.placeholder(tf1.int64, [None])
            stages = networks.stages(NETWORK, starts, where)
            _, gradients = pipeline.gradients(stages, networks.loss, x, y, schedule)
            pairs = [(gradients[n], w) for stage in stages for n, w in stage.weights.items()]
            self.train = getattr(tf1.train, optimizer)(1e-3).apply_gradients(pairs)
            init = tf1.global_variables_initializer()
        config = plan.session_config(soft_placement=True)
        self.session = tf1.Session(graph=graph, config=config)
        self.session.run(init)
        images, labels = digits.load(size)
        self.feed = {x: images, y: labels}
        self.seconds()

    def seconds(self) -> float:
        began = time.perf_counter()
        self.session.run(self.train, self.feed)
        return time.perf_counter() - began

    def trace(self) -> trace.Trace:
        return trace.session_step(self.session, self.train, self.feed)[1]


def largest_part(plan: devices.Plan, starts: list[str]) -> dict[bool, int]:
    """Give the bytes of the part that holds most: weights, Adam's slots, and the step's peak.

    That is with and without scratch, which a library borrows for one operation at a time. A cut
    does not share it out where one part has all convolutions.
    """
    step = Step(plan, starts, None, SMALL, "AdamOptimizer")
    traces = [step.trace() for _ in range(TRACES)]
    parts = list(zip(networks.cut(NETWORK, starts), plan.devices, strict=False))
    own = [4 * networks.parameters(part) for part, _ in parts]
    return {
        scratch: max(
            median(memory.by_use(each, device, weights=weights, slots=2 * weights,
                                 scratch=scratch).total for each in traces)
            for weights, (_, device) in zip(own, parts, strict=True)
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
    whole, half = largest_part(plan, []), largest_part(plan, ARTICLE)
    uncut = Step(plan, [], None, LARGE, "GradientDescentOptimizer")
    cut = pipeline.best_cut(uncut.trace(), plan.devices, LAYERS)
    print(cut)
    ways = {
        "one after the other": pipeline.one_by_one,
        "all forward first": pipeline.all_forward,
        "one forward, one back": pipeline.one_forward_one_backward,
    }
    orders = {"in one piece": pipeline.one_by_one(2, 1)}
    orders |= {name: way(2, PIECES) for name, way in ways.items()}
    steps = {"uncut": uncut} | {
        name: Step(plan, list(cut.starts), order, LARGE, "GradientDescentOptimizer")
        for name, order in orders.items()
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
    bound = median(taken["in one piece"]) / allowed(traces["in one piece"], orders[best])
    others = ("uncut", "one after the other", "all forward first")
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
