"""A plan: a host and n devices, as names for `tf.device`; and which devices are there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._formatting import counted, whole_number
from mgpu_helpers._names import short
from mgpu_helpers.devices.machine import one_of_several_workers

MODES = ("gpus", "split-gpu", "cores")  # what `setup` makes; the plan of `adopt` says "adopted"
MEANS = {
    "gpus": "every device is a GPU of its own",
    "split-gpu": "every device is a share of a GPU",
    "cores": "every device stands for one core of the CPU",
    "adopted": "what TensorFlow had, with the threads, memory and TF32 that it had",
}
MOST = 64  # more logical devices than any one machine has GPUs
MEBIBYTE = 2**20
_plan: Plan | None = None


def asked_mode() -> str | None:
    """Return the mode that MGPU_MODE asks for, None for any; a ValueError where it is none."""
    mode = os.environ.get("MGPU_MODE") or None
    if mode not in (None, *MODES):
        raise ValueError(f"MGPU_MODE={mode!r} is not a mode: use {', '.join(MODES)}.")
    return mode


@dataclass(frozen=True, repr=False)
class Plan:
    """A host and n devices, as names for `tf.device`, and what stands behind them."""

    mode: str  #: "gpus", "split-gpu" or "cores"; "adopted" where TensorFlow had started
    host: str
    devices: tuple[str, ...]
    real: tuple[str, ...]  #: what each of the devices is
    cores: int  #: those that this process may use
    machine: str
    note: str  #: what the machine has that the plan does not use, or why there is no GPU
    float32: str = ""  #: how exact float32 is; "" where there is nothing to say

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def on_gpus(self) -> bool:
        """Say whether the devices are GPUs or shares of one; else they are CPUs."""
        return self.devices[0].startswith("/GPU")

    @property
    def timing(self) -> str:
        """Say in one sentence what a timing means on these devices."""
        n = len(self)
        if self.mode == "split-gpu" or any("shared by" in real for real in self.real):
            return "the devices share a GPU: placement and results are real, a speed-up is not"
        if n == 1:
            on = " on one core" if self.mode == "cores" else ""
            return f"one device{on}: there is nothing to speed up, add a device to compare"
        if self.on_gpus:
            return f"{n} devices, each a GPU: a speed-up measured here is real"
        on = counted(self.cores, "core")
        if self.mode == "adopted":
            return (
                f"{n} devices share {on}, and one alone may use them all: "
                "a speed-up measured here is not against one core"
            )
        if n <= self.cores:
            return (
                f"{n} devices on {on}: a speed-up measured here is real parallel work, at most "
                f"{n} times"
            )
        return (
            f"{n} devices on {on}: results are real, a timing beyond "
            f"{counted(self.cores, 'device')} shows nothing"
        )

    @property
    def corner(self) -> str:
        """Name the mode and the machine in a few words, for the corner of a chart."""
        return f"{self.mode} mode · {counted(len(self), 'device')} · {self.machine}"

    def __repr__(self) -> str:
        lines = [f"mode     {self.mode}: {MEANS[self.mode]}", f"host     {self.host}  the CPU"]
        for i, (name, real) in enumerate(zip(self.devices, self.real, strict=True)):
            lines.append(f"{'' if i else 'devices':9}{name}  {real}")
        lines += [f"machine  {self.machine}; {self.note}", f"timing   {self.timing}"]
        return "\n".join(lines + [f"float32  {self.float32}"] * bool(self.float32))

    def session_config(
        self, *, devices: int | None = None, log_placement: bool = False,
        soft_placement: bool = False,
    ) -> Any:  # fmt: skip
        """Build the `ConfigProto` that gives a classic Session the same devices as this plan.

        A Session that is given a config of its own forgets what `tf.config` was told; so this one
        starts from it. `devices` is how many of them work at once (all, when None): in cores mode
        the Session gets that many threads of its own. How GPUs share out their memory is the plan's
        for the life of the process: no Session can change it.
        """
        from tensorflow.compat.v1 import ConfigProto

        used = len(self) if devices is None else whole_number(
            "devices", devices, "a number of devices of this plan", 1, most=len(self),
            also="restart the kernel and call devices.setup with more",
        )  # fmt: skip
        config = ConfigProto()
        config.CopyFrom(_private.configured())
        config.log_device_placement = log_placement
        config.allow_soft_placement = soft_placement
        if self.mode == "cores":
            config.intra_op_parallelism_threads = 1
            # Without a name the threads are the Session's own; a named pool would be shared, and
            # Sessions that work at the same time would wait for each other.
            config.session_inter_op_thread_pool.add(num_threads=used)
        return config


def current() -> Plan | None:
    """Return the plan that `setup` or `adopt` made in this process; None before it.

    >>> current() is plan
    True
    """
    return _plan


def planned() -> Plan:
    """Return the plan of this process, which there has to be."""
    if _plan is None:
        raise RuntimeError("there is no plan yet: call devices.setup() first.")
    return _plan


def remember(plan: Plan) -> Plan:
    """Keep the plan of this process, which `current` gives from now on."""
    global _plan
    _plan = plan
    return plan


def checked(devices: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of devices as a plan writes them; raise ValueError if one is not there.

    Told to place something on a device that is not there, TensorFlow places it elsewhere, without
    a word. A device may be written in any of TensorFlow's ways, or be a `tf.config.LogicalDevice`.
    TensorFlow is started where it has not been. Without a plan the devices of a classic graph are
    not looked up: its Session may have others.

    >>> checked(["cpu:0", "/device:CPU:1"])
    ('/CPU:0', '/CPU:1')
    """
    import tensorflow as tf

    given = [] if isinstance(devices, str) else [getattr(d, "name", d) for d in devices]
    if not given or not all(isinstance(name, str) for name in given):
        raise ValueError(f"devices={devices!r} is no list of devices: give one, as plan.devices.")
    if current() is None and not tf.compat.v1.executing_eagerly_outside_functions():
        return tuple(given)
    names = [d.name for d in tf.config.list_logical_devices()]
    there = {_written(name): short(name) for name in names}
    if one_of_several_workers():  # whose devices have the worker's name before their own
        there |= {short(name): short(name) for name in names}
    for name in given:
        if _written(name) not in there:
            raise ValueError(
                f"there is no device {name!r}, and TensorFlow would use another one without a "
                f"word: use {', '.join(dict.fromkeys(there.values()))}."
            )
    return tuple(there[_written(name)] for name in given)


def placed(device: Any) -> contextlib.AbstractContextManager[Any]:
    """Place on a device; None leaves it to the surrounding one, which `tf.device(None)` does not.

    A device that is not there raises ValueError.

    >>> with placed("/CPU:0"):
    ...     x = tf.ones([2])
    """
    import tensorflow as tf

    return contextlib.nullcontext() if device is None else tf.device(*checked([device]))


def _written(name: str) -> str:
    """Write a name as it is looked up: in full where it names a job of a cluster."""
    name = name.removeprefix("/job:localhost/replica:0/task:0")
    return name if "/job:" in name else short(name)
