"""What the runner of lesson 16 costs: its schedule, its own use of a core, and its speed-up.

python benchmarks/jobs.py      writes results/jobs.json
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from statistics import median

import _cards as results
from _rounds import enough
from mgpu_helpers import devices, jobs

LENGTHS = (1.2, 0.4, 0.9, 1.6, 0.3, 0.7, 1.1, 0.5)  # seconds
STARTS, SCHEDULES, COUNT = 5, 3, 12_000_000
NAP = "import sys, time; time.sleep(float(sys.argv[1]))"
WORK = "import sys\nfor _ in range(int(sys.argv[1])): pass"


def run(program: str, arguments: tuple[float, ...], devices: list[int]) -> jobs.Report:
    commands = [[sys.executable, "-c", program, str(value)] for value in arguments]
    with tempfile.TemporaryDirectory() as logs:
        return jobs.run(commands, devices=devices, logs=logs, progress=False)


def best(seconds: list[float], n: int) -> float:
    """Return the wall time of jobs that start in order, each as soon as a device is free."""
    free_at = [0.0] * n
    for length in seconds:
        free_at[free_at.index(min(free_at))] += length
    return max(free_at)


def alone(programs: int) -> float:
    """Time pure work in so many processes at once, without the runner."""
    command = [sys.executable, "-c", WORK, str(COUNT)]
    start = time.perf_counter()
    for process in [subprocess.Popen(command) for _ in range(programs)]:
        process.wait()
    return time.perf_counter() - start


def used(seconds: float, devices: list[int]) -> tuple[float, float]:
    """Return the runner's processor time while two scripts sleep so long, and the wall time."""
    began, before = time.perf_counter(), time.process_time()
    run(NAP, (seconds, seconds), devices)
    return time.process_time() - before, time.perf_counter() - began


def main() -> None:
    kind, pool = jobs.allowed()
    if len(pool) < 2:
        print("no card: this benchmark needs two devices, or two cores")
        return
    two = pool[:2]
    run(NAP, (0.0,), two[:1])
    start_up = median(run(NAP, (0.0,), two[:1]).wall for _ in range(STARTS))
    print(f"an empty job takes {start_up * 1e3:.0f} ms")

    schedule = []
    for _ in range(SCHEDULES):
        wanted = best([length + start_up for length in LENGTHS], 2)
        schedule.append(run(NAP, LENGTHS, two).wall / wanted)

    # Starting two jobs and reading their ends is in both, so the difference is what waiting costs.
    (less, short), (more, long) = used(1.0, two), used(4.0, two)
    idle = (more - less) / (long - short)

    speed_up, ceiling, share = [], [], []
    for _ in enough(lambda: [share]):
        side_by_side = run(WORK, (COUNT, COUNT), two).wall
        speed_up.append(run(WORK, (COUNT, COUNT), two[:1]).wall / side_by_side)
        ceiling.append(2 * alone(1) / alone(2))
        share.append(speed_up[-1] / ceiling[-1])
    ratios = [
        results.Ratio.of("time over the best schedule", schedule, 1.05, at_least=False),
        results.Ratio("share of a core, waiting", round(idle, 5), 0.01, at_least=False),
        results.Ratio.of("side by side, speed-up", speed_up),
        results.Ratio.of("side by side, share of processes", share, 0.9),
    ]
    print(*ratios, f"{SCHEDULES} rounds of the schedule, {len(share)} side by side", sep="\n")
    numbers = {
        "schedule": {"ratio": ratios[0].value, "target": 1.05},
        "runner_share_of_a_core": {"share": ratios[1].value, "target": 0.01},
        "side_by_side": {
            "speed_up": ratios[2].value,
            "ceiling": round(median(ceiling), 3),
            "share_of_ceiling": ratios[3].value,
            "target": 0.9,
        },
        "rounds": len(share),
        "schedules": SCHEDULES,
        "kind": kind,
    }
    results.write("jobs", devices.setup(2, exact=True), numbers, ratios)


if __name__ == "__main__":
    main()
