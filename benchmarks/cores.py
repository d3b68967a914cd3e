"""Is a device of cores mode worth one core?

Two towers against one device on the same global batch, training the digits, and, as the most that
this machine can give, two independent one-core processes against one of them. All four in turn, in
one run.
"""

from __future__ import annotations

import os
import sys
import time
from statistics import median

import _cards as results
import _workers
from _rounds import enough
from _steps import Step
from mgpu_helpers import devices, scaling
from mgpu_helpers.lessons import networks

GLOBAL_BATCH, STEPS, ROUNDS, TARGET = 512, 4, 9, 0.9


def build(plan, n) -> Step:
    """Make a training step of n towers, which share the variables of the host."""
    layout = scaling.Layout(n, GLOBAL_BATCH // n, "host")
    return Step(plan, networks.tensorlight(width=0.25), layout)


def seconds(step) -> float:
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    return time.perf_counter() - begin


def worker() -> None:
    """Be a one-core process: time some steps for every line that comes in."""
    step = build(devices.setup(1), 1)
    step()
    _workers.serve(lambda: seconds(step))


def main() -> None:
    os.environ["MGPU_MODE"] = "cores"  # which is what this is about, on any machine
    plan = devices.setup(2)
    print(plan)
    workers = [_workers.start(__file__, "worker") for _ in range(2)]
    one, two = build(plan, 1), build(plan, 2)
    for warm_up in (one, two, lambda: _workers.together(workers)):
        warm_up()
    towers, ceiling, step = [], [], []
    for _ in enough(ROUNDS, lambda: (towers, ceiling)):
        alone = seconds(one)
        towers.append(alone / seconds(two))
        ceiling.append(2 * _workers.together(workers[:1]) / _workers.together(workers))
        step.append(alone / STEPS)
    _workers.stop(workers)
    share = [ours / most for ours, most in zip(towers, ceiling, strict=True)]
    ratios = [
        results.Ratio.of("two towers, speed-up", towers),
        results.Ratio.of("two processes, speed-up", ceiling),
        results.Ratio.of("towers, share of processes", share, TARGET),
    ]
    print(f"one device: {median(step) * 1e3:.0f} ms a step of {GLOBAL_BATCH}; {len(step)} rounds")
    print(*ratios, sep="\n")
    two_towers, two_processes, share_of_ceiling = (ratio.value for ratio in ratios)
    numbers = {
        "two_towers": two_towers,
        "two_processes": two_processes,
        "share_of_ceiling": share_of_ceiling,
        "target": TARGET,
        "rounds": len(step),
        "global_batch_size": GLOBAL_BATCH,
    }
    results.write("cores", plan, numbers, ratios)


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
