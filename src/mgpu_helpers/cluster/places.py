"""Which devices each worker gets, and how they and the logs are held against others."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from mgpu_helpers.cluster.setup import Setup
from mgpu_helpers.jobs import locks
from mgpu_helpers.jobs.locks import Place
from mgpu_helpers.wording import counted


def shared_out(kind: str, pool: dict[int, str | None], n: int) -> list[list[Place]]:
    """Share the devices out in equal parts; more workers than cores have all cores in common."""
    places = locks.places(kind, pool)
    if n > len(places) and kind == "GPU":
        raise ValueError(
            f"workers={n}, but there {'is' if len(places) == 1 else 'are'} "
            f"{counted(len(places), 'GPU')}, and two workers cannot share one: ask for fewer, or "
            "set MGPU_MODE=cores."
        )
    each = len(places) // n
    return [places[i * each : (i + 1) * each] or places for i in range(n)]


@contextlib.contextmanager
def alone(setup: Setup) -> Iterator[None]:
    """Hold the GPUs against other runners, and the logs against other clusters, for the block."""
    held: list[Place] = []
    with contextlib.ExitStack() as logs:
        try:
            for index in setup.shares:
                log = setup.log(index, 0)
                try:
                    file = logs.enter_context(open(log, "ab"))
                except OSError as error:
                    raise RuntimeError(
                        f"{log} cannot be written ({error.strerror}): choose another folder with "
                        "logs=..."
                    ) from None
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise RuntimeError(
                        f"Another cluster writes to {log}: choose another folder with logs=..."
                    ) from None
                except OSError:  # this disk has no locks
                    pass
            # Cores are not locked: the kernel shares them out. In a job the runner holds the locks.
            if setup.kind == "GPU" and "MGPU_JOB_DEVICE" not in os.environ:
                for place in (place for share in setup.shares.values() for place in share):
                    if not place.lock():
                        raise RuntimeError(
                            f"{place} is held by another runner: wait until that has ended, or "
                            f"name other GPUs in CUDA_VISIBLE_DEVICES. lsof {place.path} shows it."
                        )
                    held.append(place)
            yield
        finally:
            for place in held:
                place.release()
