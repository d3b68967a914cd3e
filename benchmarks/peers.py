"""`fit` on two devices beside other ways to train the same Keras models on two cores.

make bench ONLY=peers, which makes an environment with JAX in .venv-peers when it is not there. Then
python benchmarks/peers.py table, which puts the card's numbers into docs/compare.md.

Each way is a process of its own (`_peer`) that fits the same model from the same weights on the
same arrays. Their first losses have to agree. Ratios are to TensorFlow as it is, on one device that
has the threads of both cores: below 1 a way is faster.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median

import _cards as results
import _rounds
import _workers
from _peer import STEPS
from mgpu_helpers import devices

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT, JAX = ROOT / ".venv-peers", "0.10.2"
FIRST, LEAST, CLOSE = "TensorFlow", 8, 1e-3
WAYS = (
    FIRST, "TensorFlow, XLA", "fit.strategy", "fit.strategy, XLA", "fit.use", "fit.use, XLA",
    "MirroredStrategy", "JAX", "JAX, DataParallel",
)  # fmt: skip
NOT_MEASURED = {"PyTorch": "its wheel for Linux brings gigabytes of CUDA"}
NOT_YET = "Not measured yet.\n"
PLACE = re.compile("(?<=<!-- peers -->\n).*?(?=<!-- end of peers -->)", re.DOTALL)


def with_jax() -> str:
    """Give the Python of an environment with Keras and JAX; make it where it is missing or old."""
    python, ready = ENVIRONMENT / "bin/python", ENVIRONMENT / ".ready"
    wanted = [*(f"{name}=={version(name)}" for name in ("keras", "numpy")), f"jax=={JAX}"]
    if not ready.exists() or ready.read_text().split() != wanted:
        print(f"installing {', '.join(wanted)} into {ENVIRONMENT.name}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *wanted], check=True)
        ready.write_text("\n".join(wanted))
    return str(python)


def start(way: str, model: str, python: str) -> subprocess.Popen:
    """Start the process of a way."""
    backend = "jax" if way.startswith("JAX") else "tensorflow"
    env = {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
    if way == "JAX, DataParallel":
        env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        env["NPROC"] = "4"  # threads: with two, both may wait in one all-reduce until it gives up
    file = str(Path(__file__).with_name("_peer.py"))
    python = python if backend == "jax" else sys.executable
    return _workers.start(file, way, model, python=python, **env)


def ask(worker: subprocess.Popen) -> list[float]:
    """Have a process train for a pass, and give its answer."""
    worker.stdin.write("go\n")
    worker.stdin.flush()
    if answer := worker.stdout.readline():
        return json.loads(answer)
    raise RuntimeError(f"the process of {worker.args[2:]} ended: its error is above")


def measure(model: str, python: str, share: float):
    """Train a model in all ways; give what each round took, and the first passes' losses."""
    workers = {way: start(way, model, python) for way in WAYS}
    try:
        first = {way: [ask(worker) for _ in range(2)][0] for way, worker in workers.items()}
        losses = {way: said[2] for way, said in first.items()}
        if max(abs(loss - losses[FIRST]) for loss in losses.values()) > CLOSE:
            raise RuntimeError(f"{model}: not all train the same, their first losses are {losses}")
        calls = {way: lambda worker=worker: ask(worker)[:2] for way, worker in workers.items()}
        taken = _rounds.in_turn(calls, seconds=lambda both: both[0], least=LEAST, share=share)
        return taken, losses
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()


def table(card: results.Card) -> str:
    """Write what a card says for docs/compare.md."""
    rows = [["", *(f"{model}, time" for model in STEPS)], ["---"] * 3, [FIRST, "1", "1"]]
    cells = {ratio.name: ratio.cells() for ratio in card.ratios}
    for way in WAYS[1:]:
        found = [cells[f"{model}, {way}: time over {FIRST}"] for model in STEPS]
        rows.append([way, *(f"{value} ({spread})" for _, value, spread, *_ in found)])
    rows += [[way, "not measured", "not measured"] for way in card.numbers["not_measured"]]
    on = f"On {card.machine}, {card.date} ([card](../results/{card.name}.json)):"
    return "\n".join([on, "", *(f"| {' | '.join(row)} |" for row in rows), ""])


def main() -> None:
    os.environ["MGPU_MODE"] = "cores"  # which is what this is about, on any machine
    python, plan = with_jax(), devices.setup(2, exact=True)
    print(plan)
    if hasattr(os, "sched_setaffinity"):  # no way is to have more than two cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    ratios, ms, first = [], {}, {}
    for done, (model, (_, steps)) in enumerate(STEPS.items()):
        taken, first[model] = measure(model, python, 1 / (len(STEPS) - done))
        ms[model] = {
            way: [round(1e3 * median(clock) / steps, 2) for clock in zip(*rounds, strict=True)]
            for way, rounds in taken.items()
        }
        for clock, kind in enumerate(("time", "processor time")):
            for way in WAYS[1:]:
                both = zip(taken[way], taken[FIRST], strict=False)  # a way ends when it is known
                rounds = [ours[clock] / theirs[clock] for ours, theirs in both]
                ratios.append(results.Ratio.of(f"{model}, {way}: {kind} over {FIRST}", rounds))
    print(*ratios, sep="\n")
    numbers = {"batch_and_steps": STEPS, "ms_and_processor_ms_a_step": ms, "first_losses": first}
    numbers |= {"keras": version("keras"), "jax": JAX, "not_measured": NOT_MEASURED}
    results.write("peers", plan, numbers, ratios)


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        page = ROOT / "docs/compare.md"
        card = results.read(ROOT / "results/peers.json")
        page.write_text(PLACE.sub(lambda _: table(card), page.read_text(encoding="utf-8")))
    else:
        main()
