"""Ends the workers when their launcher has gone, however it went; a process of its own.

The launcher writes the number of each worker's process group here, writes it with a minus when the
worker has ended, and kills this process at the end. If the launcher is killed first, its end of the
pipe closes. Linux's parent-death signal would end the workers, but not what they have started.
"""

if __name__ == "__main__":
    import os
    import signal
    import sys

    for ends in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, signal.SIG_IGN)  # Slurm sends it to every process of a job
    groups: set[int] = set()
    for number in map(int, sys.stdin):
        groups ^= {abs(number)}
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:  # it has ended
            pass
