"""How RunMetadata names an operation, and how many bytes a tensor has."""

from __future__ import annotations

import math
import re
from typing import Any


def plain_name(name: str) -> str:
    """Give the name that an operation has for people: what is fed has that of its placeholder."""
    return re.sub(r"^_arg_(.+)_\d+_\d+$", r"\1", name)


def size_of(node: Any, tensor: str) -> int | None:
    """Count a tensor's bytes from its shape; None for one without a fixed size (a string)."""
    import tensorflow as tf

    slot = int(tensor.partition(":")[2] or 0)
    for output in node.output:
        if output.slot == slot:
            about = output.tensor_description
            kind = tf.dtypes.as_dtype(about.dtype)
            if kind not in (tf.string, tf.resource, tf.variant):
                return kind.size * math.prod(dim.size for dim in about.shape.dim)
    return None
