"""How a device is locked: a lock on a file, which every runner on the machine respects.

A job inherits the open files that hold its locks. The kernel keeps a lock until the last process
that has the file open has closed it or has ended, so that a device stays taken as long as its job
runs, even when the runner is killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(eq=False)
class Place:
    """A device, or a share of one, that a job can have."""

    kind: str
    number: int
    uuid: str | None
    slot: int
    shared: bool
    path: Path  # the device's lock file
    held: tuple[int, ...] = ()  # the open lock files, which a job inherits

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"

    def files(self) -> list[tuple[Path, int]]:
        """List the lock files with the kind of lock: all who share a device hold its file."""
        if not self.shared:
            return [(self.path, fcntl.LOCK_EX)]
        share = self.path.with_name(f"{self.path.name}.{self.slot}")
        return [(self.path, fcntl.LOCK_SH), (share, fcntl.LOCK_EX)]

    def check(self) -> None:
        """Raise a RuntimeError where the lock files cannot be used."""
        for path, _ in self.files():
            os.close(_open(path))

    def lock(self) -> bool:
        """Lock the place if nobody else holds it; say whether it is locked now."""
        for path, mode in self.files():
            self.held += (own(_open(path)),)
            if not lock(self.held[-1], mode):
                self.release()
                return False
        return True

    def release(self) -> None:
        """Close this process's lock files; a job that inherited them keeps its locks."""
        for fd in reversed(self.held):
            close(fd)  # LOCK_UN would unlock the file for those who inherited it, too
        self.held = ()


_owned: set[int] = set()  # open files with a lock, which a fork of the runner is not to keep


def own(fd: int) -> int:
    """Keep an open file from forks that are no jobs, such as workers of multiprocessing."""
    _owned.add(fd)
    return fd


def close(fd: int) -> None:
    """Close an open file that was this process's own."""
    _owned.discard(fd)
    os.close(fd)


def _close_in_fork() -> None:
    for fd in list(_owned):
        with contextlib.suppress(OSError):
            close(fd)


os.register_at_fork(after_in_child=_close_in_fork)


def places(kind: str, pool: Mapping[int, str | None], per_device: int = 1) -> list[Place]:
    """List the places on the devices of a pool, which has each device's number and its UUID."""
    folder = lock_folder()
    # Slot by slot, so that jobs fill the devices before they share one.
    return [
        Place(kind, number, uuid, slot, per_device > 1,
              folder / f"{kind.lower()}-{uuid or number}".replace("/", "_"))
        for slot in range(per_device)
        for number, uuid in pool.items()
    ]  # fmt: skip


def lock(fd: int, mode: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file; say whether nobody else holds it. A disk without locks raises OSError."""
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def lock_logs(fd: int) -> bool:
    """Lock an open log or folder of logs; a disk without locks counts as locked."""
    try:
        return lock(fd)
    except OSError:
        return True


def lock_folder() -> Path:
    """Return the folder of the locks, which everybody may write to; make it where it is not."""
    # Not tempfile.gettempdir: that goes elsewhere, and apart from the others, when a disk is full.
    folder = Path(os.environ.get("TMPDIR") or "/tmp").absolute() / "mgpu-jobs"
    try:
        if not os.path.lexists(folder):
            # It must never be seen with narrower rights, so it is made aside.
            aside = tempfile.mkdtemp(prefix="mgpu-jobs-", dir=folder.parent)
            os.chmod(aside, 0o1777)
            try:
                os.rename(aside, folder)
            except OSError:  # another runner was faster
                os.rmdir(aside)
        usable = stat.S_ISDIR(os.lstat(folder).st_mode) and os.access(folder, os.W_OK | os.X_OK)
        reason = "it is not a folder that all may write to"
    except OSError as error:
        usable, reason = False, str(error.strerror)
    if not usable:
        raise RuntimeError(
            f"{folder} cannot hold the devices' locks ({reason}): set TMPDIR, or remove it."
        )
    return folder


def _open(path: Path) -> int:
    """Open a lock file for reading and writing; make it, for everybody, where it is not."""
    try:
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
                break
            except FileNotFoundError:
                lock_folder()  # it may have been tidied away since
                made, aside = tempfile.mkstemp(prefix=".", dir=path.parent)
                os.fchmod(made, 0o666)
                os.close(made)
                with contextlib.suppress(FileExistsError):
                    os.link(aside, path)
                os.unlink(aside)
    except OSError as error:
        raise RuntimeError(f"{path} cannot be locked ({error.strerror}): remove it.") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RuntimeError(f"{path} cannot be locked (it is not a file): remove it.")
    return fd
