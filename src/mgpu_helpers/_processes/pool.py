"""What may be used here: the GPUs or cores of this process, and which GPU is the freest."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from mgpu_helpers import nvml
from mgpu_helpers._formatting import whole_number
from mgpu_helpers._processes.locks import Place
from mgpu_helpers.devices import machine
from mgpu_helpers.devices.plan import asked_mode

BUSY = 10  # percent; from there on a GPU counts as busy


def freest(n: int = 1, *, among: Iterable[int] | None = None) -> list[int]:
    """Pick n GPUs, the freest first, as nvidia-smi numbers them; `among` these, or all when None.

    First come those that `jobs.run` would not leave alone, then those that the driver reports less
    than 10 percent busy, then those with the most free memory. What the driver does not report
    counts as taken.

    It only looks: between this call and the start of TensorFlow another script may pick the same
    GPUs. `jobs.run(commands, free=n)` holds a lock on what it gives out. A RuntimeError says why
    there is no GPU to choose. To use the numbers, set the environment before TensorFlow starts:

    >>> numbers = freest(2)  # doctest: +SKIP
    >>> os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # doctest: +SKIP
    >>> os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, numbers))  # doctest: +SKIP
    """
    n = whole_number("n", n, "a number of GPUs", 1)
    if machine.mig():
        raise RuntimeError(
            "CUDA_VISIBLE_DEVICES names MIG devices, of which the driver tells neither load nor "
            "processes: leave one of them in it, or let jobs.run share them out."
        )
    report = nvml.query()
    gpus = {gpu.index: gpu for gpu in report.gpus if not gpu.problem}
    if not gpus:
        reason = next((gpu.problem for gpu in report.gpus), report.reason)
        raise RuntimeError(
            f"There is no GPU to choose: {str(reason).rstrip('.')}. Call devices.setup({n}), which "
            "then uses the CPU's cores; those are all alike."
        )
    named = [number for number in gpus if among is None or number in set(among)]
    if n > len(named):
        raise ValueError(f"n={n}, but these are the GPUs to choose from: {named}.")
    return sorted(named, key=lambda index: (*rank(gpus[index]), index))[:n]


def rank(gpu: nvml.Gpu | None) -> tuple[float, ...]:
    """Say how free a GPU is; what sorts first is the freest. None is one that is not known."""
    if gpu is None:
        return (1, True, 0, 100)
    load = 100 if gpu.utilization is None else gpu.utilization
    others = 2 if gpu.others() else gpu.processes is None
    return others, load >= BUSY, -(gpu.memory_free or 0), load


def allowed() -> tuple[str, list[int]]:
    """List what `run` may use: ("GPU", nvidia-smi's numbers), or ("core", the cores' numbers).

    The GPUs are those in CUDA_VISIBLE_DEVICES, else those of Slurm's allocation, else all; numbers
    in either are read as nvidia-smi's. A MIG device that is named there counts as a GPU of its
    own, and those are numbered from 0 in the order given. Cores are meant where no GPU is visible,
    or where MGPU_MODE=cores: those of this process's affinity, as many as its container may use.

    >>> kind, numbers = allowed()
    >>> kind in ("GPU", "core"), len(numbers) > 0
    (True, True)
    """
    kind, pool, _ = _pool()
    return kind, list(pool)


def chosen(devices: Sequence[int] | None) -> tuple[str, dict[int, str | None]]:
    """Give the kind of the devices that were asked for, and of each its number and its UUID."""
    kind, pool, why = _pool()
    numbers = list(pool) if devices is None else list(devices)
    for number in numbers:
        if number not in pool:
            raise ValueError(
                f"{kind} {number} is not allowed: choose from {', '.join(map(str, pool))}, "
                f"after {why}."
            )
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"devices={devices!r} has none, or one of them twice: name each once (per_device=2 "
            "lets two jobs share one), or leave it out to use all."
        )
    return kind, {number: pool[number] for number in numbers}


def _pool() -> tuple[str, dict[int, str | None], str]:
    """Return the kind, each device's number with its UUID, and what limited the choice."""
    mode = asked_mode()
    listed = () if mode == "cores" else nvml.query().gpus
    gpus: dict[int, str | None] = {gpu.index: gpu.uuid for gpu in listed}
    why = "what this machine has"
    if gpus:
        gpus, why = _visible(gpus)
    for gpu in listed:
        if gpu.problem and gpus.get(gpu.index, "") == gpu.uuid:
            del gpus[gpu.index]
            why += f"; {gpu.problem.rstrip('.')}"
    if gpus:
        return "GPU", gpus, why
    if mode in ("gpus", "split-gpu"):
        raise RuntimeError(
            f"MGPU_MODE={mode}, but no GPU may be used here, after {why}: unset it to use the "
            "CPU's cores, or ask `python -m mgpu_helpers` what is missing."
        )
    cores = machine.affinity()[: machine.cores()]
    return "core", dict.fromkeys(cores), "the cores that this process may use"


def _visible(gpus: dict[int, str | None]) -> tuple[dict[int, str | None], str]:
    """Keep the GPUs that CUDA_VISIBLE_DEVICES or Slurm leaves, and say which of them it was."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is not None:
        names = machine.named(text, gpus)
        spare = (i for i in itertools.count() if i not in names)  # for MIG devices, without one
        kept = dict((i, gpus[i]) if isinstance(i, int) else (next(spare), i) for i in names)
        return kept, f"CUDA_VISIBLE_DEVICES={text!r}"
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        ids: set[int] = set()
        for low, high in re.findall(r"(\d+)(?:-(\d+))?", os.environ.get(name, "")):
            ids.update(range(int(low), int(high or low) + 1))
        if ids:
            # Where Slurm hides the others, the driver numbers the rest anew.
            kept = gpus if len(gpus) <= len(ids) else {i: gpus[i] for i in gpus if i in ids}
            return kept, f"{name}={os.environ[name]!r}"
    return gpus, "what this machine has"


def look(pool: Mapping[int, str | None]) -> dict[int, nvml.Gpu]:
    """Ask the driver for the GPUs of a pool, by their numbers there; lost ones are missing."""
    there = [gpu for gpu in nvml.query().gpus if not gpu.problem]
    by_uuid = {gpu.uuid: gpu for whole in there for gpu in (whole, *whole.parts)}
    by_index = {gpu.index: gpu for gpu in there}
    # By UUID where there is one: the driver may number the rest anew.
    found = {n: by_uuid.get(uuid) if uuid else by_index.get(n) for n, uuid in pool.items()}
    return {number: gpu for number, gpu in found.items() if gpu is not None}


def others_use(pool: Mapping[int, str | None]) -> dict[int, str]:
    """Say of each GPU of a pool that others use who does, by the rule of `nvml.Gpu.others`."""
    return {number: why for number, gpu in look(pool).items() if (why := gpu.others())}


def left_alone(others: Mapping[int, str]) -> str:
    """Name the GPUs that others use, and say that they are left alone."""
    named = ", ".join(f"GPU {number} ({others[number]})" for number in sorted(others))
    return f"{named}: in use, and left alone"


def environment(places: Sequence[Place]) -> dict[str, str]:
    """Give the environment of a job that is to see the devices of these places only."""
    gpus = [place.uuid or str(place.number) for place in places]
    rest = {name: value for name, value in os.environ.items() if name != "MGPU_DEVICES"}
    return rest | {  # the number of devices is the runner's own
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus) if places[0].kind == "GPU" else "-1",
        "PYTHONUNBUFFERED": "1",
    }
