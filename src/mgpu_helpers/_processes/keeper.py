"""Keeps one job: a process of its own, which outlives a runner that is killed.

It starts the job, passes signals on to it, ends what the job leaves running, children with a
session of their own included, and writes down how the job ended. While it lives it holds the lock
of that file, which it inherits. It waits for the job's command on its standard input, so that a
runner that is killed before it has written who runs what leaves nothing running.

It is read by a bare Python, and imports only what is read within milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time

SIZE = 64  # bytes of the file; they are there from the start, for a disk may be full at the end
PASSED = {getattr(signal, f"SIG{name}") for name in "INT HUP QUIT USR1 USR2 CONT WINCH".split()}
SUBREAPER, DEATH_SIGNAL = 36, 1  # Linux's numbers, for prctl


def stat(pid: int | str) -> list[str]:
    """Return what Linux says of a process from its state on: state, parent, group, session, …"""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().decode(errors="replace").rpartition(")")[2].split()
    except OSError:  # it has ended since, or this is no Linux
        return []


def _all() -> dict[int, list[str]]:
    """Return what Linux says of each process, by its number."""
    pids = filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ())
    return {int(pid): fields for pid in pids if (fields := stat(pid))}


def below(root: int) -> list[tuple[int, int]]:
    """List the living processes that a process has started, and those of its session, by groups."""
    known = _all()
    found, more = {root}, {pid for pid, fields in known.items() if int(fields[3]) == root}
    while more:
        found |= more
        more = {pid for pid, fields in known.items() if int(fields[1]) in found} - found
    return [(pid, int(known[pid][2])) for pid in found - {root} if known[pid][0] not in "ZX"]


def kill_below(root: int) -> None:
    """Kill all that a process has started."""
    for pid, _ in below(root):
        send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> bool:
    """Send a signal to a process, or with a minus to a group; say whether somebody got it."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def group_lives(group: int) -> bool:
    """Say whether a process of the group runs; on Linux one that waits to be read does not."""
    known = _all()
    alive = any(int(its[2]) == group and its[0] not in "ZX" for its in known.values())
    return send(-group, 0) and (alive or not known)


def _prctl(option: int, value: int) -> bool:
    try:
        import ctypes

        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0
    except (ImportError, OSError, AttributeError):  # no Linux
        return False


def _start(words: list[bytes], mask: set[int | signal.Signals]) -> int:
    """Start the job in a group of its own; return its number, or raise why there is none."""
    told, tells = os.pipe()  # closed by a program that starts
    keeper = os.getpid()
    job = os.fork()
    if not job:
        try:
            os.setpgid(0, 0)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
                signal.signal(number, signal.SIG_DFL)
            if _prctl(DEATH_SIGNAL, signal.SIGKILL) and os.getppid() != keeper:
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvp(words[0], words)
        except OSError as error:
            os.write(tells, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(tells)
    with open(told, "rb") as file:
        why = file.read()
    if why:
        os.waitpid(job, 0)
        raise OSError(int(why), os.strerror(int(why)))
    return job


def main(file: int, grace: float) -> int:
    """Run the job that standard input names; return its exit status, below 0 for a signal."""
    sizes = sys.stdin.buffer.readline().split()
    text = sys.stdin.buffer.read(int(sizes[0])) if sizes else b""
    words = text.split(b"\0")[:-1]
    if not sizes or (len(text), len(words)) != (int(sizes[0]), int(sizes[1])):
        return 1  # the runner was killed
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(file, False)
    began = time.monotonic()

    def write(status: object) -> None:
        line = f"{status} {time.monotonic() - began:.3f}".encode()
        os.pwrite(file, line.ljust(SIZE - 1) + b"\n", 0)

    waits_for = PASSED | {signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, lambda *_: None)  # where what is ignored is not waited for
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waits_for)
    subreaper = _prctl(SUBREAPER, 1)
    try:
        job = _start(words, mask)
    except OSError as error:
        name = os.fsdecode(words[0])
        said = f"{name!r} cannot be started ({error.strerror}): {_remedy(name, error)}"
        write("-")
        os.write(1, f"{said}\n".encode(errors="replace"))
        return 127
    code, ends = None, False
    while True:
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == job:
                    code = os.waitstatus_to_exitcode(found[1])
                    write(code)
                    ends = ends or _end(job, grace)  # what it has left running
        except ChildProcessError:
            while not subreaper and group_lives(job):  # there are some that are not this one's
                if signal.SIGALRM in signal.sigpending():
                    send(-job, signal.SIGKILL)
                time.sleep(0.03)
            break
        number = signal.sigwait(waits_for)
        if number == signal.SIGTERM:
            ends = ends or _end(job, grace)
        elif number == signal.SIGALRM:
            send(-job, signal.SIGKILL)
            kill_below(os.getpid())
        elif number in PASSED:
            send(-job, number)
    assert code is not None
    return code


def _end(job: int, grace: float) -> bool:
    """Ask all to end, once; those that have not after the grace are killed."""
    signal.setitimer(signal.ITIMER_REAL, max(grace, 0.001), 0.05)
    send(-job, signal.SIGTERM)
    for pid, group in below(os.getpid()):
        if group != job:
            send(pid, signal.SIGTERM)
    return True


def _remedy(name: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and "/" not in name:
        return "install it, or name it with its folder."
    if isinstance(error, FileNotFoundError):
        return "see that it is there, and the program that its first line names."
    if isinstance(error, PermissionError):
        return f"chmod +x {name}, or name the program that reads it."
    return f"name the program that reads it, as in 'bash {name}'."


if __name__ == "__main__":
    ended = main(int(sys.argv[1]), float(sys.argv[2]))
    if ended < 0:  # as the job, for whoever waits for this process
        try:
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(-ended, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-ended})
        except (ImportError, OSError, ValueError):  # SIGKILL cannot be set
            pass
        os.kill(os.getpid(), -ended)
    os._exit(ended if ended >= 0 else 128 - ended)
