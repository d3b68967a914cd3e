"""The checks of lesson 02's exercises."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_helpers import _private, devices
from mgpu_helpers.lessons import pretend
from mgpu_helpers.lessons.checks.judge import call, exercise, expect, listed, numbers

_MIB = 2**20


@exercise
def quarter_and_growth(answer: Any) -> str:
    """Check exercise 1 of lesson 02: a ConfigProto with growth and a quarter of each GPU."""
    from tensorflow.compat.v1 import ConfigProto

    a_config = isinstance(answer, ConfigProto)
    expect(a_config, f"a configuration is a tf1.ConfigProto, not a {type(answer).__name__}")
    options = answer.gpu_options
    share = options.per_process_gpu_memory_fraction
    expect(share <= 1, f"{share:g} is a share, so it means {share:g} times the GPU; a quarter is "
           "0.25")
    expect(share == 0.25, f"the share is {share:g}, not a quarter")
    expect(options.allow_growth, "the session takes its quarter at once: let it grow")
    # What else it sets may hide a GPU, or be a limit, for which the share is ignored. What the plan
    # of this notebook sets is no choice of the reader's.
    plan = devices.current()
    ours = plan.session_config() if plan else ConfigProto()
    asked = {"per_process_gpu_memory_fraction", "allow_growth"}
    besides = {field.name for field, value in options.ListFields()
               if field.name not in asked and value != getattr(ours.gpu_options, field.name)}
    if "GPU" in answer.device_count and answer.device_count != ours.device_count:
        besides.add("device_count")
    expect(not besides, f"it also sets {' and '.join(sorted(besides))}: leave that out")
    return "it starts small and takes a quarter of each GPU at most"


@exercise
def last_two_grow(function: Any) -> str:
    """Check exercise 2 of lesson 02: the last two GPUs are visible and grow, the others hidden."""
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


@exercise
def taken_by_growth(function: Any) -> str:
    """Check exercise 3 of lesson 02: the order of tensors for which growth takes least."""
    rng, way = np.random.default_rng(2), "return the same sizes in another order, in a list"
    for _ in range(6):
        sizes = [int(size) * _MIB for size in rng.integers(3, 200, rng.integers(3, 6))]
        got = numbers(listed(call(function, list(sizes)), way), (len(sizes),), way).tolist()
        expect(sorted(got) == sorted(sizes), way)
        taken = sum(grown(got)) // _MIB
        least = min(sum(grown(order)) for order in itertools.permutations(sizes)) // _MIB
        said = ", ".join(str(size // _MIB) for size in sizes)
        expect(taken <= least, f"for tensors of {said} MiB your order takes {taken} MiB, and there "
               f"is one that takes {least}: try all of them with itertools.permutations")
    return "no order of these tensors takes less"


def grown(tensors: Sequence[int]) -> list[int]:
    """Give the regions that growth takes for tensors in this order, as the lesson has it."""
    regions: list[int] = []
    rooms: list[int] = []
    region = 2 * _MIB
    for tensor in tensors:
        if fitting := [room for room in rooms if room >= tensor]:
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
