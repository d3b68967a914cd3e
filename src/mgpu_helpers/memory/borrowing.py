"""What TensorFlow's own convolutions borrow while they run, on a CPU without oneDNN."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import size_text
from mgpu_helpers._later import tf
from mgpu_helpers.devices.plan import current

# As TensorFlow has them in its gradients of a convolution: what several images may take together,
# and the numbers of one image and a thread from which on images come one by one.
_TOGETHER, _ALONE = 30 * 2**20, 2**16
_POOL = 4 + 8  # bytes by number that a MaxPool gave: once more, and where it was


def borrowed(nodes: Iterable[Any], times: float = 1.0) -> int:
    """Give the most bytes that two operations of a step borrow at once on this machine's CPU.

    times is the batch as a share of that of the graph. It is 0 where there is a GPU to compute on,
    or TensorFlow computes with oneDNN, which borrows little.
    """
    plan = current()
    if plan is not None and plan.on_gpus or _private.uses_onednn():
        return 0
    return round(sum(sorted(_of(node, times) for node in nodes)[-2:]))


def sentence(size: int) -> str:
    """Say what is borrowed beside a range."""
    return (
        f"Here TensorFlow computes without oneDNN, and beside that its convolutions borrow up to "
        f"{size_text(size)} while they run."
    )


def _of(node: Any, times: float) -> float:
    kind, op = node.op.type, node.op
    if kind == "MaxPoolGrad":
        return times * _POOL * (op.inputs[1].shape.num_elements() or 0)
    if kind not in ("Conv2DBackpropFilter", "Conv2DBackpropInput"):
        return 0
    of_weights = kind == "Conv2DBackpropFilter"
    filters, ends = (op.outputs[0] if of_weights else op.inputs[1]).shape, op.inputs[2].shape
    if not (filters.is_fully_defined() and ends[1:].is_fully_defined()):
        return 0
    rows_last = op.get_attr("data_format") == b"NHWC"
    image = math.prod(ends[1:3] if rows_last else ends[2:4])
    patch = math.prod(filters[:3])
    work = image * patch + image * filters[3] + patch * filters[3]
    size = op.inputs[2].dtype.size
    one_by_one = not of_weights and (times * ends[0] == 1 or work // _threads() >= _ALONE)
    return (1 if one_by_one else math.ceil(_TOGETHER / size / work)) * image * patch * size


def _threads() -> int:
    return tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count() or 1
