"""Run the lessons on this machine's GPUs and say what held: ``make gpu``.

Every lesson runs from its first cell to its last. What it says is judged against its stored
outputs, which come from ``cores`` mode: numbers and places may differ, but no cell may fail or take
over a minute, no proof may turn from True to False, and no solution may be refused. Then the
benchmarks run. The verdict goes to a card, ``results/gpu-MACHINE.json``, and the lessons' pictures
into a folder of that name. The exit status is 1 where something did not hold, or without a GPU.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from check_notebooks import text_of
from lessons import ROOT, cover, tags
from mgpu_helpers import devices, nvml, results

SLOW = 60  # seconds for a cell; a GPU that compiles its kernels at first use can take minutes
GIVE_UP = 900

# Not timed and not judged: the kernels are compiled, and their driver keeps them on disk.
WARM = """
from mgpu_helpers import devices
from mgpu_helpers.lessons import digits, networks
plan = devices.setup(2)
print(plan)
import tensorflow as tf
images, labels = digits.load(128)
network = networks.tensorlight(0.125)
for device in plan.devices:
    weights = networks.variables(network, device=device)
    with tf.device(device):
        with tf.GradientTape() as tape:
            loss = networks.loss(labels, networks.logits(network, weights, images))
        tape.gradient(loss, list(weights.values()))
        print(f"{device} warm, loss {loss:.2f}")
"""


@dataclass
class Verdict:
    """What held and what did not, in sentences that name the lesson and the cell."""

    cells: int = 0
    proofs: int = 0
    solutions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        held = (
            f"{len(self.seconds)} lessons, {self.cells} cells, {self.proofs} proofs, "
            f"{self.solutions} solutions, {sum(self.seconds.values()):.0f} s"
        )
        if not self.found:
            return f"verdict: all of it held ({held})"
        return "\n".join([f"verdict: {len(self.found)} did not hold ({held})", *self.found])


def run(notebook: NotebookNode, folder: Path) -> Iterator[tuple[int, float, str]]:
    """Run every code cell in place; give its number, its seconds and what went wrong, if anything.

    A cell that fails does not stop the others; a kernel that dies or hangs does.
    """
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=GIVE_UP, record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as ipython:
        env = os.environ | {"IPYTHONDIR": ipython, "PYTEST_CURRENT_TEST": "verdict"}
        with client.setup_kernel(env=env, stderr=subprocess.DEVNULL):
            for number, cell in enumerate(notebook.cells, 1):
                if cell.cell_type != "code":
                    continue
                began, wrong = time.perf_counter(), ""
                try:
                    client.execute_cell(cell, number - 1)
                except CellExecutionError as error:
                    wrong = f"fails: {error.ename}: {error.evalue.strip().splitlines()[-1:]}"
                except (CellTimeoutError, DeadKernelError) as error:
                    yield number, time.perf_counter() - began, f"ends the lesson: {error}"
                    return
                yield number, time.perf_counter() - began, wrong


def judge(stored: NotebookNode, now: NotebookNode) -> str:
    """Say what a cell says now and should not, by its stored output; "" when all is well."""
    before, after = text_of(stored).splitlines(), text_of(now).splitlines()
    refused = [line for line in after if line.startswith("not yet")]
    if "solution" in tags(stored) and (refused or not any(x.startswith("yes") for x in after)):
        return f"refuses its own solution: {' '.join(refused) or 'it says nothing'}"

    was, now_ = (re.findall(r"\b(?:True|False)\b", "\n".join(x)) for x in (before, after))
    turned = "True False" in map(" ".join, zip(was, now_, strict=False))
    if turned or now_.count("False") > was.count("False"):
        new = [line for line in after if "False" in line and line not in before]
        return f"prints False: {'; '.join(new)}"
    return ""


def try_lesson(path: Path, verdict: Verdict, pictures: Path) -> None:
    """Run a notebook, add to the verdict, and keep the picture of its cell tagged cover."""
    stored = nbformat.read(path, as_version=4)
    now = nbformat.read(path, as_version=4)
    for cell in now.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    for number, seconds, wrong in run(now, path.parent):
        was, cell = stored.cells[number - 1], now.cells[number - 1]
        verdict.cells += 1
        verdict.proofs += len(re.findall(r"\bTrue\b", text_of(was)))
        verdict.solutions += "solution" in tags(was)
        verdict.seconds[path.stem] = verdict.seconds.get(path.stem, 0) + seconds
        wrong = wrong or judge(was, cell)
        if not wrong and seconds > SLOW:
            wrong = f"takes {seconds:.0f} s"
        if wrong:
            verdict.found.append(f"  {path.stem}, cell {number}, {wrong}")
    if picture := cover(now):
        pictures.mkdir(parents=True, exist_ok=True)
        (pictures / f"{path.stem}.png").write_bytes(picture)


def benchmarks(folder: Path, verdict: Verdict) -> dict[str, dict[str, float]]:
    """Run the benchmarks and give the ratios of the cards that they wrote, by benchmark."""
    began = time.time()
    env = os.environ | {"MGPU_RESULTS": str(folder)}
    if subprocess.run([sys.executable, str(ROOT / "benchmarks")], env=env).returncode:
        verdict.found.append("  a benchmark failed: make bench shows what it says")
    new = [path for path in folder.glob("*.json") if path.stat().st_mtime >= began]
    return {card.name: {ratio.name: ratio.value for ratio in card.ratios}
            for card in map(results.read, sorted(new))}  # fmt: skip


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("numbers", nargs="*", metavar="NN", help="lessons (default: all)")
    parser.add_argument("--folder", type=Path, default=ROOT / "notebooks", help="where they are")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="where cards go")
    parser.add_argument("--no-bench", action="store_true", help="leave out the benchmarks")
    options = parser.parse_args()
    driver = nvml.query()
    if not driver.gpus and os.environ.get("MGPU_MODE") != "cores":
        print(
            f"There is no GPU here ({driver.reason.rstrip('.')}): make test and make rehearse "
            "check the lessons without one."
        )
        return 1
    if driver.gpus:
        warm = subprocess.run([sys.executable, "-c", WARM], text=True, capture_output=True)
        print(warm.stderr.strip().splitlines()[-1] if warm.returncode else warm.stdout, flush=True)
        if warm.returncode:
            return 1
    names = dict.fromkeys(gpu.name for gpu in driver.gpus) or ["no GPU"]
    name = "gpu-" + re.sub("[^a-z0-9]+", "-", f"{len(driver.gpus)} {' '.join(names)}".lower())
    verdict = Verdict()
    for path in sorted(options.folder.glob("*.ipynb")):
        if not options.numbers or path.name[:2] in options.numbers:
            try_lesson(path, verdict, options.results / name)
            print(f"{path.stem}: {verdict.seconds.get(path.stem, 0):.0f} s", flush=True)
    ratios = {} if options.no_bench else benchmarks(options.results.resolve(), verdict)
    print(verdict)
    numbers = {
        "driver": driver.driver, "held": not verdict.found, "found": verdict.found,
        "cells": verdict.cells, "proofs": verdict.proofs, "solutions": verdict.solutions,
        "seconds": {lesson: round(s, 1) for lesson, s in verdict.seconds.items()},
        "benchmarks": ratios,
    }  # fmt: skip
    results.write(name, devices.setup(2), numbers, folder=options.results)
    return 1 if verdict.found else 0


if __name__ == "__main__":
    sys.exit(main())
