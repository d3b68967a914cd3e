"""What `memory.predict` and `memory.plan` print as ranges, against traced steps of many models.

python benchmarks/ranges.py                writes results/ranges.json: three small models
python benchmarks/ranges.py all            five, and twelve of keras.applications: hours
python benchmarks/ranges.py VGG16 text     two batches of these
python benchmarks/ranges.py of FILE ...    writes the card of what was printed by
    TF_ENABLE_ONEDNN_OPTS=1 python benchmarks/ranges.py child VGG16 text >> FILE     and with 0

Each is traced with oneDNN and without: in `fit`, under `fit.strategy`, and with `fit.use` in
shares, in pieces and recomputed. What is in the range is what tensors hold; of convolutions
without oneDNN, what `borrowed` says comes on top.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import _cards as results
from mgpu_helpers import devices
from mgpu_helpers._formatting import size_text, table

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from keras_ranges import APPLICATIONS, SMALL, compared  # noqa: E402

BATCHES, FACTOR = {"few": (32,), "small": (32, 128), "applications": (4, 16)}, 2.0
FEW = "wide", "autoencoder", "text"
KINDS = {"1": "oneDNN", "0": "no oneDNN"}


def child(names: list[str]) -> None:
    """Count and trace models in this process, a few without names; print lines of JSON."""
    plan = devices.setup(2)
    for name in names or FEW:
        kind = "applications" if name in APPLICATIONS else "small" if names else "few"
        for batch in BATCHES[kind]:
            for row in compared(plan, name, batch):
                kernels = KINDS[os.environ["TF_ENABLE_ONEDNN_OPTS"]]
                print(json.dumps({"kernels": kernels, **row}), flush=True)


def traced(names: list[str]) -> Iterator[str]:
    """Give the lines of both children."""
    children = {
        kernels: subprocess.Popen(
            [sys.executable, __file__, "child", *names], text=True, stdout=subprocess.PIPE,
            env=os.environ | {"TF_ENABLE_ONEDNN_OPTS": option},
        )
        for option, kernels in KINDS.items()
    }  # fmt: skip
    for kernels, each in children.items():
        lines = each.communicate()[0].splitlines()
        if each.returncode:
            sys.exit(f"the traces with {kernels} failed: exit status {each.returncode}")
        yield from lines


def main() -> None:
    began, given = time.perf_counter(), sys.argv[1:]
    if given[:1] == ["of"]:
        lines = [line for file in given[1:] for line in Path(file).read_text().splitlines()]
    else:
        lines = [*traced([*SMALL, *APPLICATIONS] if given == ["all"] else given)]
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    print(*table([("model", "kernels", "batch", "way", "range", "held", ""), *(
        (row["model"], row["kernels"], str(row["batch"]), row["way"],
         f"{size_text(row['low'])} to {size_text(row['high'])}", size_text(row["held"]),
         "" if row["inside"] else "OUTSIDE") for row in rows
    )]), sep="\n")  # fmt: skip
    print(f"counted and traced in {time.perf_counter() - began:.0f} s")
    outside = sum(not row["inside"] for row in rows) / len(rows)
    factors = [row["high"] / row["low"] for row in rows]
    ratios = [
        results.Ratio("ranges, share that a trace was outside of", round(outside, 4), 0, False),
        results.Ratio.of("ranges, most over least", factors, FACTOR, at_least=False),
    ]
    print(*ratios, sep="\n")
    results.write("ranges", devices.setup(2), {"rows": rows}, ratios)


if __name__ == "__main__":
    child(sys.argv[2:]) if sys.argv[1:2] == ["child"] else main()
