"""Trace the steps of docs/traces.md: ``python tools/draw_traces.py [NAME ...]``, or all.

The code of a lesson runs up to its chart, with its seeds, and then its step is traced. For the page
of the site that is stored as docs/traces/NAME.json; docs/traces/NAME.png is the lesson's chart of
it, which stands there without scripts. Times move: draw where nothing else runs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from lessons import NOTEBOOKS, ROOT, environment, read
from mgpu_helpers import charts, devices
from mgpu_helpers._names import order
from mgpu_helpers.trace import Trace
from mgpu_helpers.trace.records import lanes
from mgpu_helpers.trace.step import working

FOLDER = ROOT / "docs" / "traces"
STEPS = {  # by name: the lesson, its chart, the code of the last cell that runs, what traces a step
    "two_towers": ("07", "timeline", "def shortest(step)", "shortest(steps['All devices'])"),
    "uneven_towers": ("02", "timeline", "uneven = traces(",
                     "traces(make_step(plan.devices, sizes=sizes))[-1]"),
    "split_model": ("12", "timeline", "show(model", "trace.fit_step(model, digits.load(512))"),
    "pipeline": ("13", "pipeline", "def staged",
                 "trace.fit_step(staged(build, 8), (images, labels))"),
}  # fmt: skip
TURNS = 30  # traces, of which the shortest is stored
MOST = 200_000  # bytes of a file
BACK = re.compile(r"gradient|/B\d+/")  # in the names of the backward pass


def run(number: str, until: str, expression: str) -> Trace:
    """Run a lesson to the cell with this code, and return the shortest trace of its step."""
    (lesson,) = (each for each in read() if each.number == number)
    names: dict[str, Any] = {}
    for cell in lesson.cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, lesson.name, "exec"), names)
            if until in cell.source:
                break
    return min((eval(expression, names) for _ in range(TURNS)), key=lambda step: step.length)


def ms(seconds: float) -> float:
    """Give milliseconds, to the nanosecond, in which clocks count."""
    return round(seconds * 1e3, 6)


def packed(step: Trace, corner: str) -> str:
    """Write what the page shows of a step as JSON, with a line for each block; times in ms."""
    rows, blocks = [], []
    for row, device in enumerate(step.devices):
        beside = lanes(op for op in working(step) if op.device == device)
        kind, index = order(device)
        colour = "host" if device == "/CPU:0" else f"d{(index - (kind == '/CPU')) % 8}"
        busy = round(1 - step.idle(device), 6)
        rows.append({"device": device, "colour": colour, "busy": busy, "lanes": len(beside)})
        for lane, ops in enumerate(beside):
            for op in ops:
                what = row, lane, op.name, op.type, ms(op.start), ms(op.length)
                blocks.append([*what, int(bool(BACK.search(op.name)))])
    copies = [
        [step.devices.index(c.source), step.devices.index(c.target), c.tensor, c.bytes,
         ms(c.start), ms(c.length)] for c in step.copies
    ]  # fmt: skip
    about = {"corner": corner, "length": ms(step.length), "rows": rows}
    parts = about | {"blocks": sorted(blocks, key=lambda block: block[4]), "copies": copies}
    text = json.dumps(parts, separators=(",", ":"), allow_nan=False)
    return re.sub(r"(?<=\]),(?=\[)", ",\n", text) + "\n"


def main(names: list[str]) -> int:
    """Store the named steps, each lesson in a Python of its own; return the exit status."""
    if len(names) != 1:
        env = environment() | {"MPLBACKEND": "Agg", "MGPU_REPEATS": "1"}
        calls = [[sys.executable, __file__, name] for name in names or STEPS]
        return max(subprocess.run(call, env=env, cwd=NOTEBOOKS).returncode for call in calls)
    (name,) = names
    number, chart, *how = STEPS[name]
    step = run(number, *how)
    text = packed(step, devices.current().corner)
    if len(text) > MOST:
        raise ValueError(f"{name} has {len(text)} bytes, more than {MOST}: trace a smaller step.")
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
    figure = getattr(charts, chart)(step).figure
    figure.savefig(FOLDER / f"{name}.png", metadata={"Software": None})
    print(f"{name}: {len(step.ops)} operations in {step.length * 1e3:.1f} ms, {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
