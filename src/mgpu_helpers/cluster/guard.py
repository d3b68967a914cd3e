"""Ends the workers when their launcher has gone, however it went; a process of its own.

The launcher writes the number of each worker's process here, writes it with a minus when the
worker has ended, and kills this process at the end. If the launcher is killed first, its end of the
pipe closes. Linux's parent-death signal would end the workers, but not what they have started.
"""

import os
import signal


def end_session(leader: int) -> None:
    """End what a worker has started, also what has made a process group of its own.

    A worker leads a session, which only a process that makes one of its own leaves.
    """
    for group in {leader, *_groups_of(leader)}:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:  # it has ended
            pass


def _groups_of(session: int) -> set[int]:
    groups = set()
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            with open(f"/proc/{pid}/stat", errors="replace") as file:
                state, _, group, its_session = file.read().rpartition(")")[2].split()[:4]
        except OSError:  # it has ended
            continue
        if its_session == str(session) and state not in "ZX":
            groups.add(int(group))
    return groups


if __name__ == "__main__":
    import sys

    for ends in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, signal.SIG_IGN)  # Slurm sends it to every process of a job
    leaders: set[int] = set()
    for number in map(int, sys.stdin):
        leaders ^= {abs(number)}
    for each in leaders:
        end_session(each)
