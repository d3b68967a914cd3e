"""The checks of lesson 02's exercises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgpu_helpers import devices, private
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, listed, numbers
from mgpu_helpers.lessons.pretend import pretend_gpus

_MIB = 2**20


@exercise
def quarter_and_growth(answer: Any) -> str:
    """Check exercise 1 of lesson 02: a ConfigProto with growth and a quarter of each GPU."""
    from tensorflow.compat.v1 import ConfigProto

    if not isinstance(answer, ConfigProto):
        raise NotYet(f"a configuration is a tf1.ConfigProto, not a {type(answer).__name__}")
    options = answer.gpu_options
    if options.per_process_gpu_memory_fraction > 1:
        raise NotYet(
            f"{options.per_process_gpu_memory_fraction:g} is a share, so it means "
            f"{options.per_process_gpu_memory_fraction:g} times the GPU; a quarter is 0.25"
        )
    if options.per_process_gpu_memory_fraction != 0.25:
        raise NotYet(f"the share is {options.per_process_gpu_memory_fraction:g}, not a quarter")
    if not options.allow_growth:
        raise NotYet("the session takes its quarter at once: let it grow")
    # What else it sets may hide a GPU, or be a limit, for which the share is ignored. What the plan
    # of this notebook sets is no choice of the reader's.
    plan = devices.current()
    ours = plan.session_config() if plan else ConfigProto()
    asked = {"per_process_gpu_memory_fraction", "allow_growth"}
    fields = {field.name for field, _ in options.ListFields()} - asked
    besides = {name for name in fields
               if getattr(options, name) != getattr(ours.gpu_options, name)}  # fmt: skip
    if "GPU" in answer.device_count and answer.device_count != ours.device_count:
        besides.add("device_count")
    if besides:
        raise NotYet(f"it also sets {' and '.join(sorted(besides))}: leave that out")
    return "it starts small and takes a quarter of each GPU at most"


@exercise
def last_two_grow(function: Callable[[Sequence[Any]], Any]) -> str:
    """Check exercise 2 of lesson 02: the last two GPUs are visible and grow, the others hidden."""
    import tensorflow as tf

    for n in range(2, 9):
        with pretend_gpus(n) as gpus:
            wanted = [gpu.name[-5:] for gpu in gpus[-2:]]
            call(function, list(gpus))
            if private.started():
                raise NotYet("it started TensorFlow: make the settings and no tensor")
            if not tf.config.get_visible_devices("CPU"):
                raise NotYet(
                    "it hides the CPU, and TensorFlow does not start without one: "
                    'set_visible_devices(…, "GPU") leaves it visible'
                )
            seen = sorted(gpu.name[-5:] for gpu in tf.config.get_visible_devices("GPU"))
            if seen != wanted:
                hidden = "none" if not seen else " and ".join(seen)
                raise NotYet(
                    f"of {n} GPUs TensorFlow sees {hidden}; it should see {' and '.join(wanted)}"
                )
            grows = tf.config.experimental.get_memory_growth
            still = [gpu.name[-5:] for gpu in gpus[-2:] if not grows(gpu)]
            if still:
                raise NotYet(f"of {n} GPUs no growth is set on {' and '.join(still)}: both need it")
            if any(tf.config.get_logical_device_configuration(gpu) for gpu in gpus[-2:]):
                raise NotYet("a limit takes the growth away: set none")
    return "of 2 to 8 GPUs TensorFlow sees the last two, and both grow"


@exercise
def taken_by_growth(function: Callable[[list[int]], Any]) -> str:
    """Check exercise 3 of lesson 02: the order of tensors for which growth takes least."""
    rng = np.random.default_rng(seed=2)
    way = "return the same sizes in another order, in a list"
    for _ in range(6):
        sizes = [int(size) * _MIB for size in rng.integers(3, 200, rng.integers(3, 6))]
        got = numbers(listed(call(function, list(sizes)), way), (len(sizes),), way).tolist()
        if sorted(got) != sorted(sizes):
            raise NotYet(way)
        least, taken = _least(sizes), sum(grown(got))
        if taken > least:
            said = ", ".join(str(size // _MIB) for size in sizes)
            raise NotYet(
                f"for tensors of {said} MiB your order takes {taken // _MIB} MiB, and there is "
                f"one that takes {least // _MIB}: try all of them with itertools.permutations"
            )
    return "no order of these tensors takes less"


def grown(tensors: Sequence[int]) -> list[int]:
    """Give the regions that growth takes for tensors in this order, as the lesson has it."""
    regions: list[int] = []
    rooms: list[int] = []
    region = 2 * _MIB
    for tensor in tensors:
        fitting = [room for room in rooms if room >= tensor]
        if fitting:
            room = min(fitting)
            rooms.remove(room)
        else:
            enough = region >= tensor
            while region < tensor:
                region *= 2
            room = region
            regions.append(region)
            region *= 2 if enough else 1
        if room >= 2 * tensor or room - tensor >= 128 * _MIB:
            rooms.append(room - tensor)
    return regions


def _least(sizes: Sequence[int]) -> int:
    import itertools

    return min(sum(grown(order)) for order in itertools.permutations(sizes))
