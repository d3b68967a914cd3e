"""Run the ten lines of docs/package.md and draw the README's picture of what they trace.

Call it as ``python tools/draw_readme.py``.

It is a chart of timings: draw it where nothing else runs, with MGPU_MODE=cores as the lessons are.
"""

from __future__ import annotations

import re
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from mgpu_helpers.lessons import digits

ROOT = Path(__file__).resolve().parent.parent
TURNS = 20  # steps, of which the shortest is drawn


def code_with(page: Path, call: str) -> str:
    """Return the first Python code of a Markdown page that has this call."""
    codes = re.findall(r"```python\n(.+?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return next(code for code in codes if call in code)


def build_model() -> Any:
    """Make a small convolutional network for the digits, as a reader's own."""
    import keras

    layers = keras.layers
    model = keras.Sequential([
        keras.Input((28, 28, 1)),
        layers.Conv2D(32, 3, activation="relu", name="conv1"),
        layers.MaxPooling2D(name="pool1"),
        layers.Conv2D(64, 3, activation="relu", name="conv2"),
        layers.BatchNormalization(name="norm"),
        layers.MaxPooling2D(name="pool2"),
        layers.Flatten(name="flatten"),
        layers.Dense(128, activation="relu", name="dense"),
        layers.Dense(10, name="logits"),
    ])  # fmt: skip
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def run(page: Path, call: str = "trace.fit_step") -> dict[str, Any]:
    """Run the page's lines as a reader does who has a model and data; return their names."""
    x, y = data = digits.load(256)
    given = {"build_model": build_model, "data": data, "x": x, "y": y}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ten_lines.py"
        file.write_text(code_with(page, call), encoding="utf-8")
        return runpy.run_path(str(file), given)


def main() -> int:
    """Draw the picture into docs/; return the exit status."""
    names = run(ROOT / "docs" / "package.md")
    steps = [names["trace"].fit_step(names["model"], names["data"]) for _ in range(TURNS)]
    shortest = min(steps, key=lambda step: step.length)
    axes = names["charts"].timeline(shortest, by="layer")
    lanes = [label.get_text().partition("\n")[2] for label in axes.get_yticklabels()]
    called = ["host", *(f"device {i}" for i in range(len(lanes) - 1))]
    axes.set_yticklabels([f"{name}\n{busy}" for name, busy in zip(called, lanes, strict=True)])
    figure = axes.figure
    figure.savefig(ROOT / "docs" / "ten_lines.png", metadata={"Software": None})
    print(f"the step took {shortest.length * 1e3:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
