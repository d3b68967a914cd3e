"""What is held now: asked of the process, TensorFlow and the driver, and watched over time."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mgpu_helpers import nvml
from mgpu_helpers._later import tf


def process() -> int | None:
    """Give the resident bytes of this process; on macOS the most so far, None on Windows.

    >>> process() > 10**6
    True
    """
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Sample(NamedTuple):
    """What was held `at` seconds after the start, in bytes; None where nothing says it."""

    at: float
    process: int | None
    driver: dict[int, int | None]  #: by the driver's number of the GPU: all that is used there
    #: by device, the most that TensorFlow handed out since the sample before; empty in cores mode
    allocator: dict[str, int]


class Phase(NamedTuple):
    """A named part of what was watched, in seconds after the start."""

    name: str
    start: float
    end: float


class Monitor:
    """Watch memory from a thread while a `with` block runs, with a sample every so many seconds.

    reason says why the driver's numbers are missing; None where they are not. On GPUs each sample
    calls TensorFlow's `reset_memory_stats`.

    >>> with Monitor() as seen, seen.phase("a product"):
    ...     product = tf.ones([500, 500]) @ tf.ones([500, 500])
    >>> seen.peak > 0, [phase.name for phase in seen.phases]
    (True, ['a product'])
    """

    def __init__(self, every: float = 0.1) -> None:
        if not every > 0:  # the thread would keep a core busy
            raise ValueError(f"every={every!r} is no pause: use seconds above 0, such as 0.1.")
        self.every = every
        self.reason: str | None = None
        self._samples: list[Sample] = []
        self.phases: list[Phase] = []  #: those that are over
        self._gpus: tuple[int, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mgpu-monitor", daemon=True)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Give the samples so far: one at each end of the block and of a phase, and the rest."""
        return tuple(sorted(self._samples, key=lambda sample: sample.at))

    @property
    def peak(self) -> int:
        """Give the most bytes that the process held in a sample; 0 where nothing says it."""
        return max((s.process or 0 for s in self._samples), default=0)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark what runs in the block as a phase."""
        if not self._thread.is_alive():
            raise RuntimeError(f"phase {name!r} is not watched: open it inside `with monitor:`.")
        self._take()
        start = self._now()
        try:
            yield
        finally:
            self.phases.append(Phase(name, start, self._now()))
            self._take()

    def __enter__(self) -> Monitor:
        if self._thread.ident is not None:  # its samples would begin anew
            raise RuntimeError("this monitor has been started before: make another, Monitor().")
        self._begin = time.perf_counter()
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._take()

    def _watch(self) -> None:
        while not self._stop.wait(self.every):
            self._take()

    def _take(self) -> None:
        self._samples.append(Sample(self._now(), process(), self._driver(), self._allocator()))

    def _now(self) -> float:
        return time.perf_counter() - self._begin

    def _driver(self) -> dict[int, int | None]:
        if self.reason is None:
            try:
                report = nvml.query()
            except Exception as error:  # whatever it is, the samples go on without the driver
                self.reason = f"the driver does not answer any more: {error}"
            else:
                if report.gpus:
                    self._gpus = tuple(gpu.index for gpu in report.gpus)
                    return {gpu.index: gpu.memory_used for gpu in report.gpus}
                self.reason = report.reason or "the driver finds no GPU"
        return dict.fromkeys(self._gpus)

    def _allocator(self) -> dict[str, int]:
        from mgpu_helpers.devices.plan import current

        plan = current()  # where there is one, TensorFlow has started
        if plan is None or not plan.on_gpus:
            return {}
        of, held = tf.config.experimental, {}
        for device in plan.devices:  # a step may begin and end between two samples
            name = device.removeprefix("/")
            held[device] = of.get_memory_info(name)["peak" if self._samples else "current"]
            of.reset_memory_stats(name)
        return held
