"""Let `mgpu verdict` run here, with the benchmarks and a card: ``make gpu``.

The verdict goes to a card, ``results/gpu-MACHINE.json``, and the lessons' pictures into a folder of
that name. A rehearsal keeps nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lessons import BENCHMARKS, ROOT, cover
from mgpu_helpers import devices, nvml
from mgpu_helpers.lessons.verdict import Verdict, chosen, found_on_gpus, rehearse

sys.path.append(str(BENCHMARKS))
import _cards  # noqa: E402


def benchmarks(folder: Path, verdict: Verdict) -> dict[str, dict[str, float]]:
    """Run the benchmarks and give the ratios of the cards that they wrote, by benchmark."""
    began = time.time()
    env = os.environ | {"MGPU_RESULTS": str(folder)}
    if subprocess.run([sys.executable, str(ROOT / "benchmarks")], env=env).returncode:
        verdict.found.append("  a benchmark failed: make bench shows what it says")
    new = [path for path in folder.glob("*.json") if path.stat().st_mtime >= began]
    return {card.name: {ratio.name: ratio.value for ratio in card.ratios}
            for card in map(_cards.read, sorted(new))}  # fmt: skip


def keep(
    facts: dict[str, Any], pictures: dict[str, bytes | None], folder: Path, verdict: Verdict
) -> Path:
    """Write the card of a verdict, and the lessons' pictures into a folder of its name."""
    plan, driver = devices.setup(facts["devices"], exact=True), nvml.query()
    names = dict.fromkeys(gpu.name for gpu in driver.gpus) or ["no GPU"]
    name = re.sub("[^a-z0-9]+", "-", f"gpu {len(driver.gpus)} {' '.join(names)}".lower())
    numbers = facts | {
        "driver": driver.driver, "held": not verdict.found, "found": verdict.found,
        "cells": verdict.cells, "proofs": verdict.proofs, "solutions": verdict.solutions,
        "seconds": {lesson: round(s, 1) for lesson, s in verdict.seconds.items()},
    }  # fmt: skip
    for lesson, picture in pictures.items():
        if picture:
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{lesson}.png").write_bytes(picture)
    return _cards.write(name, plan, numbers, folder=folder)


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("numbers", nargs="*", metavar="NN", help="lessons (default: all)")
    parser.add_argument("--folder", type=Path, default=ROOT / "notebooks", help="where they are")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="where cards go")
    parser.add_argument("--no-bench", action="store_true", help="leave out the benchmarks")
    options = parser.parse_args()
    lessons, verdict = chosen(options.folder, options.numbers), Verdict()
    if rehearse(lessons, verdict):
        print(verdict)
        return 1 if verdict.found else 0
    found, now = found_on_gpus(lessons, verdict)
    ratios = {} if options.no_bench else benchmarks(options.results.resolve(), verdict)
    print(verdict)
    pictures = {name: cover(notebook) for name, notebook in now.items()}
    keep(found | {"benchmarks": ratios}, pictures, options.results, verdict)
    return 1 if verdict.found else 0


if __name__ == "__main__":
    sys.exit(main())
