"""Ends the workers when their launcher has gone, however it went; a process of its own.

The launcher names a mark, writes the number of each worker's process here, writes it with a minus
when the worker has ended, and kills this process at the end. If the launcher is killed first, its
end of the pipe closes. Linux's parent-death signal would end the workers, but not what they have
started.
"""

import os
import signal

MARK = "MGPU_CLUSTER"  # what workers start inherits it in its environment, with a launcher's mark
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def end_all(leaders: "Iterable[int]", mark: str = "") -> None:
    """End what workers have started, also what has made a process group of its own.

    A worker leads a session, which only a process that makes one of its own leaves: that is found
    by the mark.
    """
    ended, groups = set[int](), {*leaders}
    while True:
        for group in groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except OSError:  # it has ended
                pass
        ended |= groups
        groups = _groups_of({*map(str, ended)}, mark) - ended
        if not groups:  # nor has one that is ended here started another meanwhile
            return


def _groups_of(sessions: set[str], mark: str) -> set[int]:
    groups = set()
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            with open(f"/proc/{pid}/stat", errors="replace") as file:
                state, _, group, session = file.read().rpartition(")")[2].split()[:4]
            if state in "ZX":
                continue
            if session not in sessions:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if not mark or f"{MARK}={mark}".encode() not in file.read().split(b"\0"):
                        continue
        except OSError:  # it has ended, or is somebody else's
            continue
        groups.add(int(group))
    return groups


if __name__ == "__main__":
    import sys

    for ends in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, signal.SIG_IGN)  # Slurm sends it to every process of a job
    running: set[int] = set()
    for number in map(int, sys.stdin):
        running ^= {abs(number)}
    end_all(running, sys.argv[1])
