"""What is predicted of Keras models before they run, against papers, hand counts and real traces.

python benchmarks/predictions.py    writes results/predictions.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import _cards as results
from mgpu_helpers import devices, graph, memory, trace
from mgpu_helpers._formatting import size_text, table
from mgpu_helpers.lessons import networks

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from keras_models import COMPILED, built, compiled  # noqa: E402

# Batches that are traced, the batch that is asked for, and how often each is traced: steps of the
# first two differ among themselves.
MODELS = {
    "lstm": ((16, 32, 64), 256, 2),
    "transformer": ((8, 16, 32), 128, 3),
    "residual": ((4, 8, 16), 64, 1),
}
WITH = 32  # the batch of the others, which are traced at that one only, and with kernels in turn
KINDS = {  # what convolves differs by them: "residual" with one, "segmentation" with the other
    "1": ("oneDNN", ("lstm", "transformer"), COMPILED[::2]),
    "0": ("no oneDNN", ("residual",), COMPILED[1::2]),
}
# Multiply-adds an image of 224 x 224: Sandler et al., MobileNetV2, 2018, table 4; ResNet-50 with
# its strides where Keras has them, as in He et al., 2015, table 1, to three digits.
PUBLISHED = {"MobileNetV2": 300e6, "ResNet50": 3.86e9}
FEW, CLOSE = 0.10, 0.02


def child() -> None:
    """Trace and count the models in this process; print a line of JSON for each."""
    import tensorflow as tf

    plan = devices.setup(1, exact=True)
    device = plan.devices[0]
    _, models, others = KINDS[os.environ["TF_ENABLE_ONEDNN_OPTS"]]
    for name in models:
        batches, target, repeats = MODELS[name]
        with tf.device(device):
            model, x, y = built(name, target)
            model.optimizer.build(model.trainable_variables)
            train = tf.function(lambda x, y, model=model: model.train_step((x, y)))
            found = memory.measure(
                lambda b, f=train, x=x, y=y: (f, x[:b], y[:b]), batches, device, repeats=repeats
            )
            large = [trace.function_step(train, x, y)[1] for _ in range(repeats)]
        said, real = found.at(target), median(step.peak(device) for step in large)
        rows = []
        for batch, steps in [*found.traces.items(), (target, large)][1:]:
            held = memory.predict(model, batch)
            own = held.weights + held.slots
            peaks = [own + step.peak(device, scratch=False) for step in steps]
            inside = all(held.low <= peak <= held.high for peak in peaks)
            rows.append((batch, held.total, held.low, held.high, median(peaks), inside, own))
        line = {"bytes": said.bytes, "error": said.error, "real": real, "doubts": said.doubts,
                "peaks": found.peaks, "target": target, "own": found.variables}  # fmt: skip
        print(json.dumps({"model": name, "line": line, "counted": rows}), flush=True)
    for name in others:
        with tf.device(device):
            model, x, y = compiled(name, WITH, large=True)
            held = memory.predict(model, WITH)
            step = trace.fit_step(model, (x, y))
        own = held.weights + held.slots
        peak = own + step.peak(device, scratch=False)
        row = WITH, held.total, held.low, held.high, peak, held.low <= peak <= held.high, own
        print(json.dumps({"model": name, "line": None, "counted": [row]}), flush=True)


def flops() -> dict[str, float]:
    """Compare FLOP with what is published or counted by hand; give the errors."""
    import keras
    import tensorflow as tf

    errors = {}
    for name, published in PUBLISHED.items():
        model = getattr(keras.applications, name)(weights=None, input_shape=(224, 224, 3))
        got = graph.flops(model) / 2
        errors[name] = abs(got / published - 1)
        print(f"{name}: {got / 1e6:,.1f} M multiply-adds, published {published / 1e6:,.0f} M")
    for make in (networks.tensorlight, networks.p40, networks.jang):
        network = make()
        weights = networks.variables(network)

        def train(x, y, network=network, weights=weights):
            with tf.GradientTape() as tape:
                cost = networks.loss(y, networks.logits(network, weights, x))
            return tape.gradient(cost, weights)

        got = graph.flops(train, tf.TensorSpec((1, *network.input)), tf.TensorSpec((1,), tf.int64))
        errors[network.name] = abs(got / networks.flops(network) - 1)
        print(f"{network.name}: {got:,} FLOP to train, by hand {networks.flops(network):,}")
    return errors


def main() -> None:
    began = time.perf_counter()
    start = [sys.executable, __file__, "child"]
    env = os.environ | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    children = {
        said: subprocess.Popen(start, env=env | {"TF_ENABLE_ONEDNN_OPTS": option}, text=True,
                               stdout=subprocess.PIPE)
        for option, (said, *_) in KINDS.items()
    }  # fmt: skip
    found = {}
    for said, each in children.items():
        lines = each.communicate()[0].splitlines()
        if each.returncode:
            sys.exit(f"the traces with {said} failed: exit status {each.returncode}")
        found[said] = [json.loads(line) for line in lines if line.startswith("{")]
    lines, counts, of_step, outside, beyond = [], [], [], 0, 0
    rows = [("model", "kernels", "batch", "traced", "by the line", "", "counted", "", "range")]
    for said, models in found.items():
        for each in models:
            line = each["line"]
            if line:
                lines.append(abs(line["bytes"] / line["real"] - 1))
                beyond += abs(line["bytes"] - line["real"]) > line["error"]
            for batch, total, low, high, real, inside, own in each["counted"]:
                counts.append(abs(total / real - 1))
                of_step.append((real - own) / (total - own))  # what memory.predict's MARGIN is for
                outside += not inside
                by_line = "", ""
                if line and batch == line["target"]:
                    error = line["bytes"] / line["real"] - 1
                    by_line = f"{size_text(line['bytes'])} of {size_text(line['real'])}", (
                        f"{error:+.1%} (+-{line['error'] / line['bytes']:.0%})"
                    )
                rows.append((each["model"], said, str(batch), size_text(real), *by_line,
                             size_text(total), f"{total / real - 1:+.1%}",
                             f"{size_text(low)} to {size_text(high)}"
                             + ("" if inside else ", OUTSIDE")))  # fmt: skip
    print(*table(rows), sep="\n")
    print(f"traced and counted in {time.perf_counter() - began:.0f} s")
    plan = devices.setup(1, exact=True)
    off = flops()
    published = max(off[name] for name in PUBLISHED)
    by_hand = max(error for name, error in off.items() if name not in PUBLISHED)
    ratios = [
        results.Ratio("line through small traces, largest error", round(max(lines), 4), FEW, False),
        results.Ratio("line, targets beyond its error", beyond, 0, False),
        results.Ratio.of("counted bytes, error", counts, FEW, at_least=False),
        results.Ratio("counted bytes, traces outside the range", outside, 0, False),
        results.Ratio("a step over what is counted, the least", round(min(of_step), 4)),
        results.Ratio("a step over what is counted, the most", round(max(of_step), 4)),
        results.Ratio("FLOP, published, largest error", round(published, 4), CLOSE, False),
        results.Ratio("FLOP, by hand, largest error", by_hand, 0, False),
    ]
    print(*ratios, sep="\n")
    results.write("predictions", plan, {"memory": found, "flop_errors": off}, ratios)


if __name__ == "__main__":
    child() if "child" in sys.argv[1:] else main()
