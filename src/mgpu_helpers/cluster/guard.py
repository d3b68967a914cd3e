"""Ends the workers when their launcher has gone, however it went; a process of its own.

The launcher writes the number of each worker's process group here, and kills this process when the
workers have ended. If the launcher is killed first, its end of the pipe closes. Linux's
parent-death signal would end the workers themselves, but not the processes that they started.
"""

if __name__ == "__main__":
    import os
    import signal
    import sys

    for group in [int(line) for line in sys.stdin]:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:  # it has ended
            pass
