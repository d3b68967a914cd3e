"""The checks of lesson 05's exercises."""

from __future__ import annotations

from typing import Any

from mgpu_helpers import _private
from mgpu_helpers.lessons import pretend
from mgpu_helpers.lessons.checks.judge import call, exercise, expect, same_as


@exercise
def last_two_grow(function: Any) -> str:
    """Check exercise 1 of lesson 05: the last two GPUs are visible and grow, the others hidden."""
    import tensorflow as tf

    grows = tf.config.experimental.get_memory_growth
    for n in range(2, 9):
        with pretend.pretend_gpus(n) as gpus:
            wanted = [gpu.name[-5:] for gpu in gpus[-2:]]
            call(function, list(gpus))
            expect(not _private.started(), "it started TensorFlow: make the settings and no tensor")
            expect(tf.config.get_visible_devices("CPU"), "it hides the CPU, and TensorFlow does "
                   'not start without one: set_visible_devices(…, "GPU") leaves it visible')
            seen = sorted(gpu.name[-5:] for gpu in tf.config.get_visible_devices("GPU"))
            hidden, shown = " and ".join(seen) or "none", " and ".join(wanted)
            expect(seen == wanted, f"of {n} GPUs TensorFlow sees {hidden}; it should see {shown}")
            still = " and ".join(gpu.name[-5:] for gpu in gpus[-2:] if not grows(gpu))
            expect(not still, f"of {n} GPUs no growth is set on {still}: both need it")
            limits = [tf.config.get_logical_device_configuration(gpu) for gpu in gpus[-2:]]
            expect(not any(limits), "a limit takes the growth away: set none")
    return "of 2 to 8 GPUs TensorFlow sees the last two, and both grow"


limit_for = same_as(
    lambda total, context, n: total // n - context,
    lambda: [(16384, 500, 2), (40960, 420, 6), (24576, 600, 1)],
    way="a limit is a whole number of MiB",
    yes="with their contexts the scripts fill the GPU, and none of them is short",
    told=lambda right, got, total, context, n: (
        f"{n} scripts with {got:,} MiB each and contexts of {context} MiB take "
        f"{n * (got + context):,} of {total:,} MiB"
    ),
    unknown="together they should fill the GPU as far as whole MiB can, and take no more",
    wrong={
        "each script has a context, too": lambda total, context, n: total // n,
        "a limit is a whole number of MiB": lambda total, context, n: total / n - context,
        "rounded up, the limits do not fit: round down":
            lambda total, context, n: -(-total // n) - context,
        "each script has a context of its own": lambda total, context, n: (total - context) // n,
        "beside each limit there is one context":
            lambda total, context, n: total // n - n * context,
    },
)  # fmt: skip
