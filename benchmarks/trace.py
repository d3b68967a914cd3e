"""What it costs to trace one step of a Keras model, and to draw it (lesson 00's helpers).

python benchmarks/trace.py    writes results/trace.json

A trace builds the step's graph anew and runs it twice, so it is compared with the first call of
`train_on_batch`, which builds it too, and some plain steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

import _cards as results
from _rounds import enough
from mgpu_helpers import charts, devices, timing, trace

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from keras_models import built  # noqa: E402

MODELS = "residual", "transformer", "lstm"  # mobilenet takes longest, and is as residual is
LEAST = 2  # rounds: each takes seconds, and the ratios are far from their target
STEPS, PICTURE = 5, 10_000  # STEPS: how many plain steps a trace may cost besides


def seconds(call: Callable[..., Any], *args: Any) -> float:
    begin = time.perf_counter()
    call(*args)
    return time.perf_counter() - begin


def draw(step: trace.Trace, by: str | None) -> None:
    import matplotlib.pyplot as plt

    charts.timeline(step, by=by).figure.canvas.draw()
    plt.close("all")


def main() -> None:
    matplotlib.use("Agg")
    plan = devices.setup(1, exact=True)
    numbers, ratios = {}, []
    for done, name in enumerate(MODELS):
        first, traced, plain, share = [], [], [], []
        for _ in enough(lambda: [share], least=LEAST, share=1 / (len(MODELS) - done)):  # noqa: B023
            model, x, y = built(name)  # a new one each time, whose graph nobody has built yet
            first.append(seconds(model.train_on_batch, x, y))
            plain.append(timing.measure(lambda: model.train_on_batch(x, y), repeats=9).median)  # noqa: B023
            began = time.perf_counter()
            _, step = trace.function_step(model.train_on_batch, x, y)
            traced.append(time.perf_counter() - began)
            share.append(traced[-1] / (first[-1] + STEPS * plain[-1]))
        drawn = [seconds(draw, step, None) for _ in range(2)]
        mapped = seconds(lambda: charts.placement_map(step).figure.canvas.draw())  # noqa: B023
        ratio = results.Ratio.of(f"{name}: trace, of graph and {STEPS} steps", share, 1.0,
                                 at_least=False)  # fmt: skip
        ratios.append(ratio)
        numbers[name] = {
            "rounds": len(first), "operations": len(step.ops), "first_s": min(first),
            "plain_ms": 1e3 * min(plain), "traced_s": min(traced),
            "timeline_s": min(drawn), "by_layer_s": seconds(draw, step, "layer"), "map_s": mapped,
        }  # fmt: skip
        print(ratio, {k: round(v, 3) for k, v in numbers[name].items()})
        if len(step.ops) >= PICTURE:
            ratios.append(results.Ratio.of(f"{name}: timeline of {len(step.ops):,} operations, s",
                                           drawn, 1.0, at_least=False))  # fmt: skip
    print(*ratios, sep="\n")
    results.write("trace", plan, {"models": numbers}, ratios)


if __name__ == "__main__":
    main()
