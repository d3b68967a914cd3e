"""Where parts of a model have their weights, and where a step computed them: lessons 04, 12."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mgpu_helpers import _private, devices, trace
from mgpu_helpers.trace.layers import layer


def places(parts: Iterable[Any], step: trace.Trace) -> str:
    """Tabulate the devices of each part's weights, and of its work in both passes of a step.

    The work is convolutions and matrix products. Keras names an operation after its layer, and
    TensorFlow adds "gradient" in the backward pass. In stages, operations of a model inside a model
    have only the names of its layers.
    """
    heavy = [op for op in step.ops if "Conv" in op.type or "MatMul" in op.type]
    lines = [("part", "weights on", "forward on", "backward on")]
    for part in parts:
        inner = [each.name for each in _private.layers_of(part)]
        ops = [op for op in heavy if part.name in op.name or layer(op.name, inner) in inner]
        found: tuple[set[str], ...] = (
            {devices.short(weight.value.device) for weight in part.weights},
            {op.device for op in ops if "gradient" not in op.name},
            {op.device for op in ops if "gradient" in op.name},
        )
        lines.append((part.name, *(" ".join(sorted(each)) for each in found)))
    return "\n".join("{:8}{:12}{:12}{}".format(*line) for line in lines)
