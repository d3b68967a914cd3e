"""Measure steps of your own, as rows that `fit` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mgpu_helpers._later import tf
from mgpu_helpers.scaling.model import Measurement, Setting


def measure(
    step_of: Callable[[int, int], Any],
    devices: Sequence[int] = (1, 2),
    batches: Sequence[int] = (8, 32),
    *,
    steps: int = 1,
    variables: str = "device",
    warmup: int = 3,
    repeats: int = 20,
) -> list[Measurement]:
    """Time a step on each number of devices with each per-device batch; seconds are the median.

    step_of(n, batch) makes the step: a function without arguments, or a tuple of a function and its
    arguments. All are made first and then timed in turn, so that a machine that drifts slows all
    alike; each is waited for. Where a call takes several steps, as `fit` does, `steps` says how
    many. `variables` is that of `Setting`.

    In cores mode eager code and `tf.function` share one pool of threads for all devices, so a
    single device may work on several cores at once: then more devices gain less than they do where
    each has its own processor, as on GPUs. A `Session` with `plan.session_config(devices=n)` has a
    thread for each device in use. Where devices share cores, also on a busy machine, a step grows
    with the global batch: fit "input" instead of "moving".

    >>> from mgpu_helpers import towers
    >>> def step_of(n, batch):
    ...     shards = [tf.ones([batch, 4])] * n
    ...     return tf.function(lambda: towers.run(tf.reduce_sum, plan.devices[:n], shards))
    >>> [row.setting for row in measure(step_of, batches=[8], repeats=5)]
    [1 device x 8, 2 devices x 8]
    """
    from mgpu_helpers import timing
    from mgpu_helpers.devices import current

    plan = current()
    if plan and (most := max(devices, default=0)) > len(plan):
        raise ValueError(
            f"devices={list(devices)}, and the plan has {len(plan)}: leave out what is above, or "
            f"restart with devices.setup({most})."
        )
    runs = {Setting(n, b, variables): _run(step_of(n, b)) for n in devices for b in batches}
    taken = timing.several(runs, warmup=warmup, repeats=repeats)
    return [Measurement(each, taken[each].median / steps, "measured here") for each in runs]


def _run(step: Any) -> Callable[[], None]:
    """Make a function that runs a step to its end; on a GPU a call returns before that."""
    function, *arguments = step if isinstance(step, tuple) else (step,)

    def run() -> None:
        function(*arguments)
        if tf.executing_eagerly():  # in a graph it was Session.run, which waits
            tf.test.experimental.sync_devices()

    return run
